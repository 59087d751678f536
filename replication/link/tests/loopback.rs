//! Two links of one process over real sockets: who may call, what a cut does, acknowledgements, calls.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use bytes::Bytes;
use meridian_link::api::BoxFuture;
use meridian_link::{
    AckDelta, AckHandler, AckOutcome, FailoverHandler, HandlerRefusal, LinkConfig, LinkError, LinkTimes, LinkTls,
    OriginMark, PeerState, PositionsHandler, RegionLink, TopicPositions,
};
use meridian_topology::{Endpoint, LinkAddress};
use meridian_types::{EntryId, Incarnation, LedgerId, Position, RegionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;
use tokio::task::JoinHandle;

fn certs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certs")
}

fn load(base: &Path, authority: &Path) -> LinkTls {
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (certificate, key) = (text(base.with_extension("pem")), text(base.with_extension("key")));
    LinkTls::load(&certificate, &key, &text(authority.to_owned()), Duration::ZERO).unwrap().unwrap()
}

fn tls(name: &str, authority: &str) -> LinkTls {
    load(&certs().join(name), &certs().join(format!("{authority}.pem")))
}

fn times() -> LinkTimes {
    LinkTimes { retry_min_ms: 10, retry_max_ms: 100, ask_again_ms: 100, ..LinkTimes::default() }
}

fn link(region: &str, tls: Option<LinkTls>, times: LinkTimes) -> Arc<RegionLink> {
    RegionLink::new(LinkConfig { region: region.into(), version: "1.2.3".into(), tls, times })
}

/// A link that answers, and where.
struct Served {
    link: Arc<RegionLink>,
    at: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn serve(link: Arc<RegionLink>) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    serve_on(link, listener)
}

fn serve_on(link: Arc<RegionLink>, listener: TcpListener) -> Served {
    let at = listener.local_addr().unwrap();
    let served = link.clone();
    let task = tokio::spawn(async move { served.serve(listener, std::future::pending()).await.unwrap() });
    Served { link, at, task }
}

fn given(at: SocketAddr, scheme: &str) -> LinkAddress {
    LinkAddress::Given(Endpoint::link(&format!("{scheme}://{at}")).unwrap())
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    until_in(Duration::from_secs(20), what, holds).await;
}

async fn until_in(limit: Duration, what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn state(link: &RegionLink, peer: &str) -> PeerState {
    link.peer(peer).unwrap().state
}

fn error(link: &RegionLink, peer: &str) -> String {
    link.peer(peer).unwrap().last_error.map(|(error, _)| error).unwrap_or_default()
}

#[tokio::test]
async fn both_sides_need_a_certificate_that_the_other_trusts() {
    let east = serve(link("east", Some(tls("east", "authority")), times()));
    east.link.set_peers([("west".to_owned(), LinkAddress::None)]);
    let good = link("west", Some(tls("west", "authority")), times());
    good.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("mutual TLS", || state(&good, "east") == PeerState::Connected).await;
    let status = good.peer("east").unwrap();
    assert!(status.tls && status.version.as_deref() == Some("1.2.3"), "{status:?}");
    until("the caller is known", || east.link.peer("west").unwrap().incoming.last_seen_ms > 0).await;

    let stranger = link("west", Some(tls("stranger", "authority")), times());
    stranger.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("a stranger's certificate", || state(&stranger, "east") == PeerState::Disconnected).await;

    let deceived = link("west", Some(tls("west", "other")), times());
    deceived.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("an untrusted server", || error(&deceived, "east").contains("certificate")).await;

    let impostor = link("west", Some(tls("east", "authority")), times());
    impostor.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("a caller with another region's certificate", || {
        error(&impostor, "east").contains("the certificate is not of region west")
    })
    .await;

    let disguised = serve(link("east", Some(tls("west", "authority")), times()));
    let wary = link("west", Some(tls("west", "authority")), times());
    wary.set_peers([("east".to_owned(), given(disguised.at, "https"))]);
    until("a server with another region's certificate", || {
        error(&wary, "east").contains("the certificate is not of region east")
    })
    .await;

    let plain = link("west", None, times());
    plain.set_peers([("east".to_owned(), given(east.at, "http"))]);
    until("no TLS", || state(&plain, "east") == PeerState::Disconnected).await;

    let without = link("west", None, times());
    without.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("no certificates", || error(&without, "east").contains("regionLinkTlsCertificateFilePath")).await;
}

/// Puts other files in the place of a link's; a look sees them by their size or time.
fn put(folder: &Path, name: &str) {
    for kind in ["key", "pem"] {
        let draft = folder.join(format!("draft.{kind}"));
        std::fs::copy(certs().join(format!("{name}.{kind}")), &draft).unwrap();
        std::fs::rename(&draft, folder.join(format!("own.{kind}"))).unwrap();
    }
}

#[tokio::test]
async fn certificates_that_are_replaced_are_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let sides = ["east", "west"].map(|side| {
        let own = folder.path().join(side);
        std::fs::create_dir(&own).unwrap();
        std::fs::copy(certs().join("other.pem"), own.join("authority.pem")).unwrap();
        put(&own, side);
        own
    });
    let made = |at: usize| load(&sides[at].join("own"), &sides[at].join("authority.pem"));
    let east = serve(link("east", Some(made(0)), times()));
    east.link.set_peers([("west".to_owned(), LinkAddress::None)]);
    let west = link("west", Some(made(1)), times());
    west.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("an authority that is not trusted", || error(&west, "east").contains("certificate")).await;
    // Authorities, then certificates, on the side that dials and on the side that is dialled.
    std::fs::copy(certs().join("authority.pem"), sides[1].join("authority.pem")).unwrap();
    std::fs::copy(certs().join("authority.pem"), sides[0].join("authority.pem")).unwrap();
    until("both trust the authority now", || state(&west, "east") == PeerState::Connected).await;
    put(&sides[0], "west");
    // A connection that is there stays; the next one is made with the new files.
    assert_eq!(state(&west, "east"), PeerState::Connected);
    let second = link("west", Some(made(1)), times());
    second.set_peers([("east".to_owned(), given(east.at, "https"))]);
    let disguised = "the certificate is not of region east";
    until("the dialled side shows its new certificate", || error(&second, "east").contains(disguised)).await;
    // Files that do not fit together leave the last good ones in force.
    std::fs::write(sides[0].join("own.key"), "no key").unwrap();
    put(&sides[0], "east");
    until("and the right one again", || state(&second, "east") == PeerState::Connected).await;
    put(&sides[1], "east");
    let third = link("west", Some(made(1)), times());
    third.set_peers([("east".to_owned(), given(east.at, "https"))]);
    until("another region's", || error(&third, "east").contains("the certificate is not of region west")).await;
    put(&sides[1], "west");
    until("the dialling side shows its new certificate", || state(&third, "east") == PeerState::Connected).await;
}

#[tokio::test]
async fn without_tls_only_who_is_said_to_be_may_call() {
    let east = serve(link("east", None, times()));
    let west = link("west", None, times());
    west.set_peers([("east".to_owned(), given(east.at, "http"))]);
    until("not registered", || error(&west, "east").contains("no cluster entry for region west")).await;
    east.link.set_peers([("west".to_owned(), LinkAddress::None)]);
    until("not said", || error(&west, "east").contains("regionLinkUrl=http://")).await;
    assert!(east.link.peer("west").unwrap().incoming.calls_refused > 0);
    east.link.set_peers([("west".to_owned(), given("127.0.0.1:1".parse().unwrap(), "http"))]);
    until("said", || state(&west, "east") == PeerState::Connected).await;
}

#[tokio::test]
async fn another_region_at_the_address_is_not_taken_for_the_peer() {
    let north = serve(link("north", None, times()));
    north.link.set_peers([("west".to_owned(), given("127.0.0.1:1".parse().unwrap(), "http"))]);
    let west = link("west", None, times());
    west.set_peers([("east".to_owned(), given(north.at, "http"))]);
    until("the wrong region", || error(&west, "east").contains("this is region north")).await;
    west.set_peers([("north".to_owned(), given(north.at, "http"))]);
    until("the right region", || state(&west, "north") == PeerState::Connected).await;
    assert!(west.peer("east").is_none());
}

#[tokio::test]
async fn a_peer_that_says_nothing_of_a_link_is_asked_and_left_alone() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    let west = link("west", None, times());
    west.set_peers([("pulsar".to_owned(), LinkAddress::Ask(Endpoint::web(&format!("http://{at}")).unwrap()))]);
    until("no link", || matches!(state(&west, "pulsar"), PeerState::NoLink(_))).await;
    let explained = west.peer("pulsar").unwrap().explain();
    assert!(explained.contains("Apache Pulsar"), "{explained}");
    let refused = west.failover("pulsar", "x", Bytes::new()).await.unwrap_err();
    assert!(matches!(refused, LinkError::NotConnected { .. }), "{refused}");
    assert_eq!(west.failover("nowhere", "x", Bytes::new()).await.unwrap_err(), LinkError::NoPeer("nowhere".into()));
}

/// Passes bytes on until it is told to swallow them.
struct Pipe {
    at: SocketAddr,
    silent: tokio::sync::watch::Sender<bool>,
}

async fn pipe(to: SocketAddr) -> Pipe {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let silent = tokio::sync::watch::Sender::new(false);
    let hears = silent.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut cut = hears.subscribe();
            tokio::spawn(async move {
                if *cut.borrow_and_update() {
                    return std::future::pending::<()>().await;
                }
                let mut far = tokio::net::TcpStream::connect(to).await.unwrap();
                let is_cut = tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => false,
                    _ = cut.wait_for(|cut| *cut) => true,
                };
                if is_cut {
                    // Neither end hears of it: both sockets stay open.
                    let _ = cut.wait_for(|cut| !*cut).await;
                }
            });
        }
    });
    Pipe { at, silent }
}

#[tokio::test]
async fn a_silent_cut_is_noticed_and_the_peer_comes_back_by_itself() {
    let east = serve(link("east", None, times()));
    east.link.set_peers([("west".to_owned(), given("127.0.0.1:1".parse().unwrap(), "http"))]);
    let pipe = pipe(east.at).await;
    // As shipped, except for the pauses between attempts.
    let west = link("west", None, times());
    west.set_peers([("east".to_owned(), given(pipe.at, "http"))]);
    until("connected", || state(&west, "east") == PeerState::Connected).await;
    pipe.silent.send_replace(true);
    until_in(Duration::from_secs(15), "the cut is noticed", || state(&west, "east") == PeerState::Disconnected).await;
    assert!(!error(&west, "east").is_empty());
    pipe.silent.send_replace(false);
    until("back", || state(&west, "east") == PeerState::Connected).await;
    assert_eq!(west.peer("east").unwrap().connects, 2);
}

/// Remembers what is to be sent, as a real one does: by subscription, the latest alone.
#[derive(Default)]
struct Acks {
    dirty: Mutex<BTreeMap<String, u8>>,
    sent: Mutex<BTreeMap<u64, (String, u8)>>,
    merged: Mutex<BTreeMap<String, u8>>,
    resyncs: Mutex<Vec<String>>,
    next: Mutex<u64>,
    /// Outcomes to give before the good ones.
    refuse: Mutex<Vec<AckOutcome>>,
}

impl AckHandler for Acks {
    fn connected(&self, _peer: &str) {}

    fn take(&self, _peer: &str, _max_bytes: usize) -> Vec<AckDelta> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        let mut deltas = Vec::new();
        for (subscription, value) in dirty {
            let mut next = self.next.lock();
            *next += 1;
            self.sent.lock().insert(*next, (subscription.clone(), value));
            let payload = Bytes::from(vec![value]);
            deltas.push(AckDelta { token: *next, topic: "t".into(), subscription, full: false, payload });
        }
        deltas
    }

    fn confirmed(&self, _peer: &str, token: u64, outcome: AckOutcome) {
        let Some((subscription, value)) = self.sent.lock().remove(&token) else { panic!("confirmed twice") };
        if outcome != AckOutcome::Stored {
            self.dirty.lock().entry(subscription).or_insert(value);
        }
    }

    fn disconnected(&self, _peer: &str) {
        let sent = std::mem::take(&mut *self.sent.lock());
        let mut dirty = self.dirty.lock();
        for (subscription, value) in sent.into_values() {
            dirty.entry(subscription).or_insert(value);
        }
    }

    fn resync(&self, _peer: &str, topic: &str, subscription: &str) {
        self.resyncs.lock().push(format!("{topic}/{subscription}"));
    }

    fn apply<'a>(&'a self, _from: &'a str, deltas: Vec<AckDelta>) -> BoxFuture<'a, Vec<AckOutcome>> {
        Box::pin(async move {
            let one = |delta: AckDelta| match self.refuse.lock().pop() {
                Some(refusal) => refusal,
                None => {
                    self.merged.lock().insert(delta.subscription, delta.payload[0]);
                    AckOutcome::Stored
                }
            };
            deltas.into_iter().map(one).collect()
        })
    }
}

#[tokio::test]
async fn acknowledgements_arrive_over_refusals_and_cuts() {
    let (sender, receiver) = (Arc::new(Acks::default()), Arc::new(Acks::default()));
    *receiver.refuse.lock() = vec![AckOutcome::Later("not now".into()), AckOutcome::Resync];
    let east = serve(link("east", None, times()));
    east.link.set_peers([("west".to_owned(), given("127.0.0.1:1".parse().unwrap(), "http"))]);
    east.link.set_acks(receiver.clone());
    let pipe = pipe(east.at).await;
    let west = link("west", None, times());
    west.set_peers([("east".to_owned(), given(pipe.at, "http"))]);
    until("connected", || state(&west, "east") == PeerState::Connected).await;
    // Set late: the connection begins anew with it.
    west.set_acks(sender.clone());
    let put = |name: &str, value: u8| {
        sender.dirty.lock().insert(name.to_owned(), value);
        west.acks_ready("east");
    };
    put("a", 1);
    until("the first delta, refused twice", || receiver.merged.lock().get("a") == Some(&1)).await;
    pipe.silent.send_replace(true);
    for value in 2..200 {
        put("a", value);
        put("b", value);
    }
    until("the cut is noticed", || state(&west, "east") == PeerState::Disconnected).await;
    pipe.silent.send_replace(false);
    until("the last state", || {
        let merged = receiver.merged.lock();
        merged.get("a") == Some(&199) && merged.get("b") == Some(&199)
    })
    .await;
    until("all confirmed", || sender.sent.lock().is_empty() && sender.dirty.lock().is_empty()).await;
    let status = west.peer("east").unwrap().acks;
    assert_eq!((status.in_flight_bytes, status.again), (0, 2), "{status:?}");
    west.request_acks("east", "t", "a");
    until("the request", || receiver.resyncs.lock().as_slice() == ["t/a".to_owned()]).await;
    for _ in 0..1_500 {
        west.request_acks("east", "t", "many");
    }
    until("what is too much asks for everything", || receiver.resyncs.lock().contains(&"/".to_owned())).await;
}

struct Answers;

impl FailoverHandler for Answers {
    fn step<'a>(&'a self, from: &'a str, step: &'a str, body: Bytes) -> BoxFuture<'a, Result<Bytes, HandlerRefusal>> {
        Box::pin(async move {
            match step {
                "echo" => Ok(Bytes::from(format!("{from}:{}", String::from_utf8_lossy(&body)))),
                "later" => Err(HandlerRefusal::Later("draining".into())),
                "hang" => std::future::pending().await,
                _ => Err(HandlerRefusal::Never("no such step".into())),
            }
        })
    }
}

impl PositionsHandler for Answers {
    fn positions<'a>(&'a self, _from: &'a str, topics: Vec<String>) -> BoxFuture<'a, Vec<TopicPositions>> {
        let position = Position { ledger_id: LedgerId(1), entry_id: EntryId(2) };
        let one = move |topic: String| TopicPositions {
            topic,
            incarnation: Incarnation(3),
            last: Some(position),
            marks: vec![OriginMark { region: RegionId(4), incarnation: Incarnation(5), position }],
            error: None,
        };
        Box::pin(async move { topics.into_iter().map(one).collect() })
    }
}

#[tokio::test]
async fn calls_are_answered_refused_or_time_out() {
    let east = serve(link("east", None, times()));
    east.link.set_peers([("west".to_owned(), given("127.0.0.1:1".parse().unwrap(), "http"))]);
    let west = link("west", None, LinkTimes { call_ms: 300, ..times() });
    west.set_peers([("east".to_owned(), given(east.at, "http"))]);
    until("connected", || state(&west, "east") == PeerState::Connected).await;
    let unset = west.failover("east", "echo", Bytes::new()).await.unwrap_err();
    assert!(matches!(unset, LinkError::Later { .. }), "{unset}");
    east.link.set_failover(Arc::new(Answers));
    east.link.set_positions(Arc::new(Answers));
    let echo = west.failover("east", "echo", Bytes::from_static(b"hi")).await.unwrap();
    assert_eq!(&echo[..], b"west:hi");
    let error = |step: &'static str| {
        let west = west.clone();
        async move { west.failover("east", step, Bytes::new()).await.unwrap_err() }
    };
    assert_eq!(error("later").await, LinkError::Later { region: "east".into(), reason: "draining".into() });
    assert_eq!(error("x").await, LinkError::Refused { region: "east".into(), reason: "no such step".into() });
    assert_eq!(error("hang").await, LinkError::TimedOut { region: "east".into(), limit_ms: 300 });
    let positions = west.positions("east", vec!["a".into(), "b".into()]).await.unwrap();
    assert_eq!(positions.len(), 2);
    assert_eq!((positions[1].topic.as_str(), positions[1].marks[0].region), ("b", RegionId(4)));
}
