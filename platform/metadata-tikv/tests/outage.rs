//! The store goes away and comes back: every wait is bounded, nothing needs a restart, and the return is no burst.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use meridian_metadata::{Condition, MetadataError, MetadataStore, SharedStore, WatchEvent};
use meridian_metadata_tikv::TikvStore;
use meridian_mini_tikv::{Fault, MiniTikv, Rpc, TikvOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(40);
/// The bounds of a call in these tests, settling included, with room for a busy machine.
const LONGEST_CALL: Duration = Duration::from_secs(9);

fn open(server: &MiniTikv) -> (Arc<TikvStore>, SharedStore) {
    let mut config = support::config(server);
    config.call_timeout_ms = 2000;
    config.step_timeout_ms = 800;
    config.rpc_timeout_ms = 400;
    let store = support::connect(config);
    (store.clone(), store)
}

/// Reads until the store answers again.
async fn answers_again(store: &SharedStore) {
    let started = Instant::now();
    while store.get("k").await.is_err() {
        assert!(started.elapsed() < PATIENCE, "the store did not come back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_store_is_said_in_time_and_found_again() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let (tikv, store) = open(&server);
    store.put("k", "1", Condition::Any).await.unwrap();
    server.faults().freeze(true);
    for _ in 0..3 {
        let started = Instant::now();
        assert!(matches!(store.get("k").await, Err(MetadataError::Unavailable(_))));
        let put = store.put("k", "2", Condition::Any).await;
        assert!(matches!(put, Err(MetadataError::Unavailable(_) | MetadataError::UnknownOutcome(_))), "{put:?}");
        assert!(matches!(store.allocate("s", 1).await, Err(MetadataError::Unavailable(_))));
        assert!(started.elapsed() < 3 * LONGEST_CALL);
    }
    assert!(!tikv.stats().available && tikv.stats().timeouts > 0 && tikv.stats().unavailable > 0);
    server.faults().freeze(false);
    answers_again(&store).await;
    store.put("k", "3", Condition::Any).await.unwrap();
    assert!(tikv.stats().available);
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_hang_while_others_are_answered_are_no_absence() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let (tikv, store) = open(&server);
    store.put("k", "1", Condition::Any).await.unwrap();
    let before = tikv.stats().retries;
    server.faults().inject(Rpc::Prewrite, Fault::HangBefore, 8);
    let mut writers = tokio::task::JoinSet::new();
    for index in 0..4 {
        let store = store.clone();
        writers.spawn(async move { store.put(&format!("w/{index}"), "1", Condition::Any).await.is_ok() });
    }
    // Some give up and some succeed; meanwhile the looks for changes are answered, and nobody else is held back.
    while !writers.is_empty() {
        let stats = tikv.stats();
        assert!(stats.available, "{stats:?}");
        assert!(store.silent_for().unwrap() < PATIENCE / 4);
        if let Ok(Some(ended)) = timeout(Duration::from_millis(5), writers.join_next()).await {
            ended.unwrap();
        }
    }
    assert!(tikv.stats().retries > before, "no commit hung: {:?}", tikv.stats());
    store.put("k", "2", Condition::Any).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_gives_no_time_stamps_is_said_in_time() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let (_tikv, store) = open(&server);
    server.faults().inject(Rpc::Tso, Fault::Hang, 1);
    let started = Instant::now();
    answers_again(&store).await;
    assert!(started.elapsed() < 2 * LONGEST_CALL, "a new connection is made when the old one hangs for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_return_of_the_store_is_no_burst() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let (tikv, store) = open(&server);
    store.put("k", "1", Condition::Any).await.unwrap();
    server.faults().freeze(true);
    let mut callers = Vec::new();
    for index in 0..600 {
        let store = store.clone();
        callers.push(tokio::spawn(async move {
            loop {
                let done = if index % 2 == 0 {
                    store.get("k").await.is_ok()
                } else {
                    store.put(&format!("k/{index}"), "1", Condition::Any).await.is_ok()
                };
                if done {
                    return;
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    let held = server.faults().held();
    assert!(held < 300, "{held} calls waited at the store for its return");
    assert!(tikv.stats().waiting > 300, "the others wait here: {:?}", tikv.stats());
    server.faults().freeze(false);
    let back = Instant::now();
    for caller in callers {
        timeout(PATIENCE, caller).await.expect("an answer in time").unwrap();
    }
    assert!(back.elapsed() < PATIENCE);
    assert_eq!(store.scan("k/").await.unwrap().len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_store_comes_back_with_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = TikvOptions { data_dir: Some(folder.path().to_owned()), ..support::many_regions() };
    let server = MiniTikv::start(&options).unwrap();
    options.listen = server.address();
    let (_first, store) = open(&server);
    let (second, _) = open(&server);
    let mut watch = second.watch("k", None).await.unwrap();
    let before = store.put("k", "1", Condition::Any).await.unwrap();
    assert_eq!(store.allocate("s", 7).await, Ok(0));
    server.kill();
    assert!(matches!(store.get("k").await, Err(MetadataError::Unavailable(_))));
    assert!(store.put("k", "lost", Condition::Any).await.is_err());
    let server = restart(&options).await;
    answers_again(&store).await;
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!((entry.version, &entry.value[..]), (before, &b"1"[..]));
    let after = store.put("k", "2", Condition::Is(before)).await.unwrap();
    assert!(after > before);
    assert_eq!(store.allocate("s", 1).await, Ok(7));
    loop {
        let event = timeout(PATIENCE, watch.next()).await.expect("a change in time").expect("an open store").0;
        if matches!(event, WatchEvent::Put(entry) if entry.version == after) {
            break;
        }
    }
    drop(server);
}

/// Starts again on the same address, which the system may hold for a moment.
async fn restart(options: &TikvOptions) -> MiniTikv {
    let started = Instant::now();
    loop {
        match MiniTikv::start(options) {
            Ok(server) => return server,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_stays_unknown_is_settled_later() {
    let server = MiniTikv::start(&TikvOptions::default()).unwrap();
    let (tikv, store) = open(&server);
    let mut watch = store.watch("k", None).await.unwrap();
    store.put("k", "0", Condition::Any).await.unwrap();
    drop(timeout(PATIENCE, watch.next()).await);
    // The client commits the further keys of a transaction after it has answered: that is over first.
    let started = Instant::now();
    while server.locks() > 0 {
        assert!(started.elapsed() < PATIENCE, "the first write leaves locks");
        tokio::task::yield_now().await;
    }
    // The commit is done and its reply is lost; then nothing answers until the call has given up.
    server.faults().inject(Rpc::Commit, Fault::Freeze, 1);
    let outcome = timeout(PATIENCE, store.put("k", "1", Condition::Any)).await.expect("an answer in time");
    assert!(matches!(outcome, Err(MetadataError::UnknownOutcome(_))), "{outcome:?}");
    assert_eq!(tikv.stats().doubts, 1);
    server.faults().freeze(false);
    let event = timeout(PATIENCE, watch.next()).await.expect("the change in time").expect("an open store").0;
    assert!(matches!(event, WatchEvent::Put(entry) if entry.value == "1"));
    let started = Instant::now();
    while tikv.stats().doubts > 0 {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.put("k", "2", Condition::Any).await.unwrap();
}
