//! Several processes on one store: what each sees of the others, and what no fault may break.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use bytes::Bytes;
use meridian_metadata::{Condition, MetadataError, MetadataStore, Operation, SharedStore, Version, Watch, WatchEvent};
use meridian_metadata_tikv::{TikvConfig, TikvStore};
use meridian_mini_tikv::{Fault, MiniTikv, Rpc, TikvOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(40);

fn put(key: &str, value: &str) -> Operation {
    Operation::Put {
        key: key.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        condition: Condition::Any,
        ephemeral: None,
    }
}

async fn next(watch: &mut Box<dyn Watch>) -> (WatchEvent, Version) {
    timeout(PATIENCE, watch.next()).await.expect("a change in time").expect("an open store")
}

fn two(options: &TikvOptions) -> (Arc<TikvStore>, Arc<TikvStore>, MiniTikv) {
    let server = MiniTikv::start(options).expect("a server");
    let stores = [0; 2].map(|_| support::connect(support::config(&server)));
    let [first, second] = stores;
    (first, second, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_one_process_reach_the_other() {
    let (first, second, _server) = two(&support::many_regions());
    let mut watch = second.watch("w/", None).await.unwrap();
    let large = Bytes::from(vec![7; 100_000]);
    let operations = vec![
        put("w/a", "1"),
        put("x", "no"),
        Operation::Put { key: "w/large".into(), value: large.clone(), condition: Condition::Any, ephemeral: None },
    ];
    let version = first.commit(operations).await.unwrap();
    assert!(
        matches!(next(&mut watch).await.0, WatchEvent::Put(entry) if entry.key == "w/a" && entry.version == version)
    );
    assert!(matches!(next(&mut watch).await.0, WatchEvent::Put(entry) if entry.value == large));
    let store: SharedStore = first.clone();
    let gone = store.delete("w/a", Condition::Any).await.unwrap();
    assert_eq!(next(&mut watch).await.0, WatchEvent::Delete { key: "w/a".into(), version: gone });
    assert!(second.stats().polls > 0 && second.stats().change_lag_ms < 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_too_large_for_the_log_is_a_rescan() {
    let (first, second, _server) = two(&TikvOptions::default());
    let mut watch = second.watch("", None).await.unwrap();
    let long = "k".repeat(2000);
    let operations = (0..200).map(|index| put(&format!("{long}{index}"), "v")).collect();
    first.commit(operations).await.unwrap();
    assert_eq!(next(&mut watch).await.0, WatchEvent::Rescan);
}

/// A burst of values that the log only refers to is seen by a process whose calls may take less time than reading them
/// one by one would.
#[tokio::test(flavor = "multi_thread")]
async fn many_large_values_of_others_are_seen_soon() {
    const KEYS: usize = 1_500;
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let first = support::connect(support::config(&server));
    let mut config = support::config(&server);
    config.call_timeout_ms = 250;
    let second = support::connect(config);
    let mut watch = second.watch("", None).await.unwrap();
    let mut writes = tokio::task::JoinSet::new();
    for number in 0..KEYS {
        let store: SharedStore = first.clone();
        writes.spawn(async move {
            store.put(&format!("k{number:04}"), vec![7; 1_100], Condition::Any).await.unwrap();
        });
    }
    while let Some(written) = writes.join_next().await {
        written.unwrap();
    }
    let mut seen = BTreeSet::new();
    while seen.len() < KEYS {
        match next(&mut watch).await.0 {
            WatchEvent::Put(entry) => drop(seen.insert(entry.key)),
            // More than a watch holds: what is there can be read.
            WatchEvent::Rescan => break,
            WatchEvent::Delete { key, .. } => panic!("{key} is gone"),
        }
    }
    assert!(second.stats().change_lag_ms < PATIENCE.as_millis() as u64);
}

/// Writers on three processes, watchers on each: every picture ends the same, and no key ever goes back.
#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_ends_with_the_same_picture() {
    let server = MiniTikv::start(&support::many_regions()).unwrap();
    let stores: Vec<_> = (0..3).map(|_| support::connect(support::config(&server))).collect();
    server.faults().inject_every(Rpc::Commit, Fault::After, 7, 1_000_000);
    server.faults().inject_every(Rpc::Prewrite, Fault::ServerIsBusy, 11, 1_000_000);
    let mut watchers = Vec::new();
    for store in &stores {
        watchers.push(tokio::spawn(follow(store.clone())));
    }
    let mut writers = Vec::new();
    for (number, store) in stores.iter().enumerate() {
        let store: SharedStore = store.clone();
        writers.push(tokio::spawn(async move {
            for round in 0..60 {
                let key = format!("k/{}", (round * 7 + number) % 9);
                if round % 5 == 4 {
                    store.delete(&key, Condition::Any).await.unwrap();
                } else {
                    store.put(&key, format!("{number}-{round}"), Condition::Any).await.unwrap();
                }
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    server.faults().clear();
    let last: SharedStore = stores[0].clone();
    last.put("k/end", "end", Condition::Any).await.unwrap();
    let expected: BTreeMap<_, _> =
        last.scan("k/").await.unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect();
    for watcher in watchers {
        assert_eq!(timeout(PATIENCE, watcher).await.expect("the end in time").unwrap(), expected);
    }
}

/// The picture of one process, kept by its watch alone until `k/end` is there and nothing came for a while.
async fn follow(store: Arc<TikvStore>) -> BTreeMap<String, Bytes> {
    let mut watch = store.watch("k/", None).await.unwrap();
    let mut picture = BTreeMap::new();
    let mut versions: BTreeMap<String, Version> = BTreeMap::new();
    loop {
        let limit = if picture.contains_key("k/end") { Duration::from_secs(2) } else { PATIENCE };
        let Ok(event) = timeout(limit, watch.next()).await else { return picture };
        let (key, version, value) = match event.expect("an open store").0 {
            WatchEvent::Put(entry) => (entry.key, entry.version, Some(entry.value)),
            WatchEvent::Delete { key, version } => (key, version, None),
            WatchEvent::Rescan => panic!("nothing was lost"),
        };
        let before = versions.insert(key.clone(), version);
        assert!(before.is_none_or(|before| before < version), "{key} went back from {before:?} to {version:?}");
        match value {
            Some(value) => picture.insert(key, value),
            None => picture.remove(&key),
        };
    }
}

/// Increments by compare-and-set from many tasks of two processes: the sum is the number of successes.
async fn increments(fault: Fault, every: u64) {
    let server = MiniTikv::start(&support::many_regions()).unwrap();
    let mut config = support::config(&server);
    config.rpc_timeout_ms = 200;
    let stores: Vec<_> = (0..2).map(|_| support::connect(config.clone())).collect();
    let first: SharedStore = stores[0].clone();
    first.put("n", "0", Condition::Absent).await.unwrap();
    for call in [Rpc::Commit, Rpc::Prewrite] {
        server.faults().inject_every(call, fault, every, 1_000_000);
    }
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..6 {
        let store: SharedStore = stores[task % 2].clone();
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            let mut successes = 0;
            while successes < 12 {
                let entry = store.get("n").await.unwrap().unwrap();
                let value: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                match store.put("n", format!("{}", value + 1), Condition::Is(entry.version)).await {
                    Ok(_) => successes += 1,
                    Err(MetadataError::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            done.fetch_add(successes, Ordering::Relaxed);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    server.faults().clear();
    let sum = first.get("n").await.unwrap().unwrap().value;
    assert_eq!(sum, done.load(Ordering::Relaxed).to_string());
    assert!(server.faults().injected() > 3, "faults were met");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_or_doubled_when_replies_are_lost() {
    increments(Fault::After, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_or_doubled_when_calls_hang() {
    increments(Fault::Hang, 25).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_owner_is_fenced_by_the_end_of_its_session() {
    let (owner, other, _server) = two(&TikvOptions::default());
    let session = owner.open_session(400).await.unwrap();
    let owned = |value: &str| Operation::Put {
        key: "owner".into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        condition: Condition::Any,
        ephemeral: Some(session.id),
    };
    owner.commit(vec![owned("1")]).await.unwrap();
    let mut watch = other.watch("owner", None).await.unwrap();
    while !matches!(next(&mut watch).await.0, WatchEvent::Delete { .. }) {}
    let store: SharedStore = other.clone();
    store.put("owner", "other", Condition::Absent).await.unwrap();
    assert_eq!(owner.commit(vec![owned("2")]).await, Err(MetadataError::SessionExpired(session.id)));
    assert_eq!(owner.renew_session(session.id).await, Err(MetadataError::SessionExpired(session.id)));
    assert_eq!(owner.get("owner").await.unwrap().unwrap().value, "other");
    assert_eq!(owner.stats().reaped_sessions + other.stats().reaped_sessions, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_session_survives_jumps_of_the_clock() {
    let (owner, _other, server) = two(&TikvOptions::default());
    let session = owner.open_session(1500).await.unwrap();
    for _ in 0..20 {
        server.jump(60_000);
        tokio::time::sleep(Duration::from_millis(150)).await;
        owner.renew_session(session.id).await.unwrap();
    }
    owner.close_session(session.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_many_keys_ends_whole() {
    let (first, second, _server) = two(&support::many_regions());
    let session = first.open_session(60_000).await.unwrap();
    let bound = |index: usize| Operation::Put {
        key: format!("e/{index:04}"),
        value: Bytes::new(),
        condition: Condition::Any,
        ephemeral: Some(session.id),
    };
    for start in [0, 400] {
        first.commit((start..start + 400).map(bound).collect()).await.unwrap();
    }
    second.close_session(session.id).await.unwrap();
    let store: SharedStore = first.clone();
    assert_eq!(store.scan("e/").await.unwrap(), []);
    assert_eq!(first.close_session(session.id).await, Err(MetadataError::SessionExpired(session.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_go_away_leave_nothing_half_done() {
    let (first, second, _server) = two(&support::many_regions());
    for round in 0..60u64 {
        let operations = vec![put(&format!("a/{round}"), "1"), put(&format!("b/{round}"), "1")];
        let waiting = timeout(Duration::from_micros(round * 400), first.commit(operations));
        drop(waiting.await);
    }
    // Everything that was begun ends; a last write of every lane shows that none is stuck.
    let store: SharedStore = first.clone();
    let mut writes = Vec::new();
    for index in 0..64 {
        let store = store.clone();
        writes.push(tokio::spawn(async move { store.put(&format!("c/{index}"), "1", Condition::Any).await }));
    }
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let other: SharedStore = second;
    let names = |entries: Vec<meridian_metadata::Entry>| {
        entries.into_iter().map(|entry| entry.key[2..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(other.scan("a/").await.unwrap()), names(other.scan("b/").await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_cross_all_regions() {
    let (first, second, server) = two(&support::many_regions());
    for start in (0..3000).step_by(1000) {
        let operations = (start..start + 1000).map(|index| put(&format!("{}", index * 7919 % 3000), "v")).collect();
        first.commit(operations).await.unwrap();
    }
    server.raise_epoch().unwrap();
    let store: SharedStore = second;
    let mut expected: Vec<_> = (0..3000).map(|index| index.to_string()).collect();
    expected.sort();
    let found: Vec<_> = store.scan("").await.unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_wrote_before_it_died_is_seen() {
    let (first, second, _server) = two(&TikvOptions::default());
    let mut watch = second.watch("w/", None).await.unwrap();
    let store: SharedStore = first.clone();
    let last = store.put("w/1", "1", Condition::Any).await.unwrap();
    drop((store, first));
    assert!(matches!(next(&mut watch).await.0, WatchEvent::Put(entry) if entry.version == last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_store_ends_its_watches_and_calls() {
    let (first, _second, _server) = two(&TikvOptions::default());
    let mut watch = first.watch("", None).await.unwrap();
    let call = first.get("a");
    drop(call);
    drop(first);
    assert_eq!(timeout(PATIENCE, watch.next()).await.expect("an end"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_format_is_refused() {
    let (first, second, server) = two(&TikvOptions::default());
    drop(first);
    let mut config = support::config(&server);
    // A prefix whose own record falls on a data key of the other store.
    config.prefix = "test/d".into();
    let store: SharedStore = second;
    store.put("m", "not a store", Condition::Any).await.unwrap();
    let refused = TikvStore::connect(config).await.err();
    assert!(matches!(refused, Some(MetadataError::Corrupt(_))), "{refused:?}");
}

#[tokio::test]
async fn whoever_connects_may_go_away() {
    // Takes connections and answers nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = TikvConfig::new(vec![silent.local_addr().unwrap().to_string()], "p/");
    let cut = tokio::time::timeout(Duration::from_millis(100), TikvStore::connect(config)).await;
    assert!(cut.is_err(), "it can't be connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_is_said_in_time() {
    let mut config = TikvConfig::new(vec!["127.0.0.1:1".into()], "p");
    let started = Instant::now();
    assert!(matches!(TikvStore::connect(config.clone()).await, Err(MetadataError::Unavailable(_))));
    assert!(started.elapsed() < Duration::from_secs(5));
    config.ca_path = Some("ca".into());
    assert!(matches!(TikvStore::connect(config).await, Err(MetadataError::Invalid(_))));
}

/// What a call costs in requests to TiKV, on one region and without anybody in the way.
#[tokio::test(flavor = "multi_thread")]
async fn calls_cost_few_requests() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let mut config = support::config(&server);
    config.poll_interval_ms = 3_600_000;
    let tikv = support::connect(config);
    let store: SharedStore = tikv.clone();
    let session = store.open_session(60_000).await.unwrap();
    store.put("k", "0", Condition::Any).await.unwrap();
    let calls = [Rpc::Tso, Rpc::BatchGet, Rpc::Scan, Rpc::Prewrite, Rpc::Commit, Rpc::CheckTxnStatus, Rpc::ResolveLock];
    let counted = || calls.map(|call| server.faults().count(call));
    // The keys of a transaction but the first are committed behind the answer.
    let settled = async || {
        let started = Instant::now();
        while server.locks() > 0 {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut costs = Vec::new();
    for call in ["get", "put", "check", "renew", "allocate", "range"] {
        settled().await;
        let before = counted();
        match call {
            "get" => drop(store.get("k").await.unwrap()),
            "put" => drop(store.put("k", "1", Condition::Any).await.unwrap()),
            "check" => {
                let check = Operation::Check { key: "none".into(), condition: Condition::Absent };
                store.commit(vec![check]).await.unwrap();
            }
            "renew" => store.renew_session(session.id).await.unwrap(),
            "allocate" => drop(store.allocate("s", 1).await.unwrap()),
            _ => drop(store.range("", None, 10).await.unwrap()),
        }
        settled().await;
        let after = counted();
        costs.push((call, [0, 1, 2, 3, 4, 5, 6].map(|index| after[index] - before[index])));
    }
    let expected = [
        ("get", [1, 1, 0, 0, 0, 0, 0]),
        ("put", [2, 1, 0, 1, 2, 0, 0]),
        ("check", [1, 1, 0, 0, 0, 0, 0]),
        ("renew", [2, 1, 0, 1, 1, 0, 0]),
        ("allocate", [2, 1, 0, 1, 1, 0, 0]),
        ("range", [1, 0, 1, 0, 0, 0, 0]),
    ];
    assert_eq!(costs, expected);
}

/// What opens a thousand logs of one bundle does: each writes keys of its own under one check that all share.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_writes_under_one_check_are_few_transactions_that_meet_nobody() {
    const WRITES: u64 = 1000;
    let server = MiniTikv::start(&TikvOptions::default()).expect("a server");
    let [first, second] = [0; 2].map(|_| {
        let mut config = support::config(&server);
        // However busy the machine is: not the time is looked at, but what it costs.
        config.call_timeout_ms = 30_000;
        support::connect(config)
    });
    let mut watch = second.watch("log/", None).await.unwrap();
    let store: SharedStore = first.clone();
    let owner = store.put("owner", "me", Condition::Absent).await.unwrap();
    let before = first.stats();
    let check = |version| Operation::Check { key: "owner".into(), condition: Condition::Is(version) };
    let mut writes = tokio::task::JoinSet::new();
    for number in 0..WRITES {
        let store = store.clone();
        // Some are wrong about the owner: that is theirs alone.
        let wrong = number % 100 == 7;
        let check = check(if wrong { Version(1) } else { owner });
        writes.spawn(async move { (wrong, store.commit(vec![put(&format!("log/{number}"), "head"), check]).await) });
    }
    while let Some(written) = timeout(PATIENCE, writes.join_next()).await.expect("an answer in time") {
        match written.unwrap() {
            (false, outcome) => assert!(outcome.unwrap() > owner),
            (true, Err(MetadataError::Conflict { key, current })) => {
                assert_eq!((key.as_str(), current), ("owner", Some(owner)));
            }
            (true, other) => panic!("written under a check that does not hold: {other:?}"),
        }
    }
    let after = first.stats();
    assert_eq!(after.conflicts - before.conflicts, 0, "{after:?}");
    assert_eq!(after.written - before.written, WRITES);
    assert!(after.commits.count - before.commits.count <= WRITES / 5, "{after:?}");
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() as u64 != WRITES - WRITES / 100 {
        match next(&mut watch).await.0 {
            WatchEvent::Put(entry) => assert!(seen.insert(entry.key), "told once"),
            other => panic!("{other:?}"),
        }
    }
    // Whoever changes the owner waits for nobody but those that run, and they hold afterwards no more.
    let next_owner = store.put("owner", "you", Condition::Is(owner)).await.unwrap();
    assert!(next_owner > owner);
    let late = store.commit(vec![put("log/late", "head"), check(owner)]).await;
    assert!(matches!(late, Err(MetadataError::Conflict { current: Some(current), .. }) if current == next_owner));
}
