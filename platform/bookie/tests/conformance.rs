//! One suite for every [`Bookie`]: on this machine's disks, and the same behind a socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod common;

use common::{Answers, add, add_all, add_entry, all_ok, check, config, payload, read, request, wait};
use meridian_bookie::LocalBookie;
use meridian_bookie_api::{
    AddSink, Bookie, BookieError, FenceState, RemoteBookie, RemoteConfig, ServeConfig, serve_data,
};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Runs one test over both.
fn over_both(test: impl Fn(&dyn Bookie)) {
    let base = tempfile::tempdir().unwrap();
    let local = LocalBookie::open(config(&base.path().join("local"))).unwrap();
    test(&*local);
    let served = LocalBookie::open(config(&base.path().join("remote"))).unwrap();
    let runtime = Runtime::new().unwrap();
    let remote = remote_of(&runtime, served, RemoteConfig::default());
    test(&*remote);
}

fn remote_of(runtime: &Runtime, served: Arc<LocalBookie>, config: RemoteConfig) -> Arc<RemoteBookie> {
    let _inside = runtime.enter();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let id = served.id().clone();
    runtime.spawn(serve_data(listener, served, ServeConfig::default()));
    RemoteBookie::new(id, address, config)
}

#[test]
fn acked_entries_are_read_back() {
    over_both(|bookie| {
        all_ok(&add(bookie, 1, 0..300, 700));
        all_ok(&add(bookie, 2, 0..3, 300_000));
        all_ok(&add(bookie, 3, 0..1, 0));
        check(bookie, 1, 0..300, 700);
        for entry in 0..3 {
            assert_eq!(read(bookie, 2, entry, 1).unwrap()[0].payload, payload(2, entry, 300_000));
        }
        assert!(read(bookie, 3, 0, 1).unwrap()[0].payload.is_empty());
    });
}

#[test]
fn heads_and_bodies_are_one_run() {
    over_both(|bookie| {
        let mut one = add_entry(1, 0, payload(1, 0, 5000), false);
        one.entry.head = meridian_bookie_api::Head::new(b"envelope");
        one.digest = one.entry.digest(one.ledger_id, one.entry_id);
        let expected = one.entry.to_bytes();
        all_ok(&add_all(bookie, vec![one]));
        assert_eq!(read(bookie, 1, 0, 1).unwrap()[0].payload, expected);
    });
}

#[test]
fn absence_is_said_exactly() {
    over_both(|bookie| {
        assert_eq!(read(bookie, 9, 0, 1).unwrap_err(), BookieError::NoSuchLedger);
        assert_eq!(wait(bookie.last_add_confirmed(LedgerId(9))).unwrap_err(), BookieError::NoSuchLedger);
        all_ok(&add(bookie, 9, 0..2, 10));
        assert_eq!(read(bookie, 9, 2, 1).unwrap_err(), BookieError::NoSuchEntry);
    });
}

#[test]
fn last_add_confirmed_only_grows() {
    over_both(|bookie| {
        all_ok(&add(bookie, 9, 0..2, 10));
        let told = wait(bookie.last_add_confirmed(LedgerId(9))).unwrap();
        assert_eq!(told, FenceState { last_add_confirmed: EntryId(0), last_entry: EntryId(1) });
        for (written, expected) in [(1, 1), (0, 1)] {
            wait(bookie.write_lac(LedgerId(9), EntryId(written))).unwrap();
            let told = wait(bookie.last_add_confirmed(LedgerId(9))).unwrap();
            assert_eq!(told.last_add_confirmed, EntryId(expected));
        }
    });
}

#[test]
fn fenced_ledgers_take_recovery_only() {
    over_both(|bookie| {
        all_ok(&add(bookie, 5, 0..3, 10));
        let state = wait(bookie.fence(LedgerId(5))).unwrap();
        assert_eq!(state, FenceState { last_add_confirmed: EntryId(1), last_entry: EntryId(2) });
        assert_eq!(wait(bookie.fence(LedgerId(5))).unwrap(), state, "twice is once");
        assert_eq!(add(bookie, 5, 3..4, 10)[0].result, Err(BookieError::Fenced));
        all_ok(&add_all(bookie, vec![add_entry(5, 3, payload(5, 3, 10), true)]));
        let unseen = wait(bookie.fence(LedgerId(6))).unwrap();
        assert_eq!(unseen, FenceState { last_add_confirmed: EntryId::NONE, last_entry: EntryId::NONE });
        assert_eq!(add(bookie, 6, 0..1, 10)[0].result, Err(BookieError::Fenced));
        let mut fencing = request(7, 0, 1);
        fencing.fence = true;
        assert!(matches!(wait(bookie.read(fencing)), Err(BookieError::NoSuchEntry | BookieError::NoSuchLedger)));
        assert_eq!(add(bookie, 7, 0..1, 10)[0].result, Err(BookieError::Fenced));
    });
}

#[test]
fn answers_of_a_ledger_come_in_order() {
    over_both(|bookie| {
        wait(bookie.fence(LedgerId(2))).unwrap();
        let answers = Arc::new(Answers::default());
        for entry in 0..300 {
            let batch = (0..3).map(|ledger| add_entry(ledger, entry, payload(ledger, entry, 300), false)).collect();
            bookie.add(batch, Arc::clone(&answers) as Arc<dyn AddSink>);
        }
        let results = answers.wait(900);
        for ledger in 0..3 {
            let expected = if ledger == 2 { Err(BookieError::Fenced) } else { Ok(()) };
            let own: Vec<_> = results.iter().filter(|result| result.ledger_id.0 == ledger).collect();
            assert!(own.iter().map(|result| result.entry_id.0).eq(0..300));
            assert!(own.iter().all(|result| result.result == expected));
        }
    });
}

#[test]
fn the_same_entry_again_is_taken_again() {
    over_both(|bookie| {
        all_ok(&add(bookie, 1, 0..2, 100));
        all_ok(&add(bookie, 1, 0..2, 100));
        check(bookie, 1, 0..2, 100);
    });
}

#[test]
fn limits_and_gaps() {
    over_both(|bookie| {
        let some = [0, 1, 4, 5].map(|entry| add_entry(4, entry, payload(4, entry, 1000), false));
        all_ok(&add_all(bookie, some.to_vec()));
        let mut reading = request(4, 0, 10);
        assert_eq!(wait(bookie.read(reading)).unwrap().len(), 2);
        reading.gaps_allowed = true;
        let ids: Vec<_> = wait(bookie.read(reading)).unwrap().iter().map(|entry| entry.entry_id.0).collect();
        assert_eq!(ids, [0, 1, 4, 5]);
        reading.max_bytes = 2500;
        assert_eq!(wait(bookie.read(reading)).unwrap().len(), 2);
        reading.max_entries = 1;
        assert_eq!(wait(bookie.read(reading)).unwrap().len(), 1);
    });
}

fn short() -> RemoteConfig {
    RemoteConfig {
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_millis(400),
        ..RemoteConfig::default()
    }
}

#[test]
fn a_silent_bookie_times_out_and_nothing_is_claimed() {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It says hello and nothing more.
    runtime.spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let hello = [&[10, 0, 0, 0, 8, 0][..], &[0x12, 6, 0x08, 1, 0x12, 2], b"b1"].concat();
            stream.write_all(&hello).await.unwrap();
            held.push(stream);
        }
    });
    let _inside = runtime.enter();
    let remote = RemoteBookie::new(BookieId::new("b1"), address.clone(), short());
    assert_eq!(wait(remote.fence(LedgerId(1))).unwrap_err(), BookieError::Timeout(400));
    let results = add(&*remote, 1, 0..3, 10);
    assert!(results.iter().all(|one| one.result == Err(BookieError::Timeout(400))), "{results:?}");
    let other = RemoteBookie::new(BookieId::new("b2"), address, short());
    let refused = wait(other.fence(LedgerId(1))).unwrap_err().to_string();
    assert!(refused.contains("it is bookie b1, not b2"), "{refused}");
}

#[test]
fn a_bookie_that_is_gone_is_unavailable_and_used_again_when_back() {
    let base = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let local = LocalBookie::open(config(base.path())).unwrap();
    let remote = RemoteBookie::new(local.id().clone(), address.to_string(), short());
    let first = Runtime::new().unwrap();
    let std_listener = listener.into_std().unwrap();
    let again = std_listener.try_clone().unwrap();
    let serving: Arc<dyn Bookie> = local;
    let one = Arc::clone(&serving);
    first.spawn(
        async move { serve_data(TcpListener::from_std(std_listener).unwrap(), one, ServeConfig::default()).await },
    );
    all_ok(&add(&*remote, 1, 0..5, 100));
    first.shutdown_background();
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !matches!(wait(remote.fence(LedgerId(2))), Err(BookieError::Unavailable(_) | BookieError::Timeout(_))) {
        assert!(std::time::Instant::now() < deadline);
    }
    runtime
        .spawn(async move { serve_data(TcpListener::from_std(again).unwrap(), serving, ServeConfig::default()).await });
    while add(&*remote, 1, 5..6, 100)[0].result.is_err() {
        assert!(std::time::Instant::now() < deadline);
    }
    check(&*remote, 1, 0..6, 100);
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let base = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let local = LocalBookie::open(config(base.path())).unwrap();
    let remote = RemoteBookie::new(local.id().clone(), address.clone(), RemoteConfig::default());
    runtime.spawn(serve_data(listener, local, ServeConfig::default()));
    all_ok(&add(&*remote, 1, 0..5, 100));
    for garbage in [&[255u8; 64][..], &[3, 0, 0, 0, 9, 0, 1], b"GET / HTTP/1.1\r\n\r\n", &[2, 0, 0, 0, 0, 0]] {
        runtime.block_on(async {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            stream.write_all(garbage).await.unwrap();
            let mut answer = Vec::new();
            let ended = tokio::time::timeout(common::PATIENCE, stream.read_to_end(&mut answer)).await;
            assert!(ended.is_ok(), "closed by the bookie");
        });
    }
    check(&*remote, 1, 0..5, 100);
}

#[test]
fn the_control_service_lists_every_ledger_in_pages() {
    use meridian_bookie_api::control::{control_service, proto};
    let base = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let local = LocalBookie::open(config(base.path())).unwrap();
    for ledger in 0..25 {
        all_ok(&add(&*local, ledger, 0..2, 10));
    }
    let cookie = local.cookie();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(control_service(local));
        tokio::spawn(server.serve_with_incoming(incoming));
        let mut client = proto::bookie_control_client::BookieControlClient::connect(address).await.unwrap();
        let info = client.info(proto::InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.bookie.as_str(), info.ledgers, info.writable, info.cookie), ("b1", 25, true, cookie));
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = proto::ListLedgersRequest { after, limit: 10 };
            let page = client.list_ledgers(page).await.unwrap().into_inner();
            after = page.ledgers.last().copied();
            found.extend(page.ledgers);
            if page.last {
                break;
            }
        }
        assert!(found.into_iter().eq(0..25));
        client.checkpoint(proto::CheckpointRequest {}).await.unwrap();
        let fenced = client.fence(proto::FenceRequest { ledger: 3 }).await.unwrap().into_inner();
        assert_eq!((fenced.last_add_confirmed, fenced.last_entry), (0, 1));
    });
}
