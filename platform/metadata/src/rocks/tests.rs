//! The conformance suite on RocksDB, and what only a store on disk can do: restart, damage, failed writes.

use super::*;
use crate::store::{Condition, SharedStore, WatchEvent};
use std::sync::atomic::Ordering;

fn fresh() -> (SharedStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Arc::new(RocksStore::open(dir.path()).unwrap()), dir)
}

crate::conformance_tests!(fresh);

#[tokio::test]
async fn reopening() {
    let dir = tempfile::tempdir().unwrap();
    crate::conformance::reopening(|| Arc::new(RocksStore::open(dir.path()).unwrap())).await;
}

#[tokio::test]
async fn a_clean_restart_leaves_no_gap_in_a_sequence() {
    let dir = tempfile::tempdir().unwrap();
    for expected in [0, 1, 2] {
        let store = RocksStore::open(dir.path()).unwrap();
        assert_eq!(store.allocate("s", 1).await, Ok(expected));
    }
}

#[tokio::test]
async fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = RocksStore::open(dir.path()).unwrap();
    let second = RocksStore::open(dir.path()).map(|_| ());
    assert!(matches!(second, Err(MetadataError::Unavailable(why)) if why.contains("can't open")));
}

#[tokio::test]
async fn concurrent_transactions_share_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(RocksStore::open(dir.path()).unwrap());
    let tasks: Vec<_> = (0..256)
        .map(|index| {
            let store: SharedStore = store.clone();
            tokio::spawn(async move { store.put(&format!("k/{index}"), "v", Condition::Absent).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let stats = store.stats();
    assert_eq!(stats.commits, 256);
    assert!(stats.syncs <= 64, "{stats:?}");
    assert_eq!(stats.queued_requests, 0);
}

#[tokio::test]
async fn a_failed_write_is_unknown_and_the_store_heals_itself() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(RocksStore::open(dir.path()).unwrap());
    let store: SharedStore = inner.clone();
    let session = store.open_session(60_000).await.unwrap();
    let before = store.put("a", "1", Condition::Any).await.unwrap();
    let first = store.allocate("s", 1).await.unwrap();
    let mut watch = store.watch("", None).await.unwrap();
    inner.shared.db.faults.fail_next_write.store(true, Ordering::Relaxed);
    let failed = store.put("a", "2", Condition::Is(before)).await;
    assert!(matches!(failed, Err(MetadataError::UnknownOutcome(_))), "{failed:?}");
    assert!(inner.stats().failed);
    assert!(matches!(store.put("a", "3", Condition::Any).await, Err(MetadataError::Unavailable(_))));
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "1", "reads go on");
    assert_eq!(watch.next().await.unwrap().0, WatchEvent::Rescan, "the watch is told when the store is back");
    let after = store.put("a", "4", Condition::Is(before)).await.unwrap();
    assert!(after.0 > before.0 + 1, "M1: the unknown version is not given again");
    assert!(store.allocate("s", 1).await.unwrap() > first);
    store.renew_session(session.id).await.unwrap();
    assert!(!inner.stats().failed);
}

/// A full disk: RocksDB is not asked, so nothing is unknown, nothing is reopened, and no watch has to rescan.
#[tokio::test]
async fn a_full_disk_refuses_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(RocksStore::open(dir.path()).unwrap());
    let store: SharedStore = inner.clone();
    let before = store.put("a", "1", Condition::Any).await.unwrap();
    let first = store.allocate("s", 1).await.unwrap();
    let mut watch = store.watch("", None).await.unwrap();
    inner.shared.db.faults.full.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let refused = store.put("a", "2", Condition::Is(before)).await;
        assert!(matches!(refused, Err(MetadataError::Unavailable(_))), "{refused:?}");
    }
    assert!(inner.stats().failed);
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "1", "reads go on");
    inner.shared.db.faults.full.store(false, Ordering::Relaxed);
    let after = loop {
        match store.put("a", "3", Condition::Is(before)).await {
            Ok(version) => break version,
            Err(error) => assert!(matches!(error, MetadataError::Unavailable(_)), "{error:?}"),
        }
        tokio::task::yield_now().await;
    };
    assert!(after > before);
    assert!(matches!(watch.next().await.unwrap().0, WatchEvent::Put(entry) if entry.value == "3"));
    assert!(store.allocate("s", 1).await.unwrap() > first);
    assert_eq!(inner.shared.db.faults.reopened.load(Ordering::Relaxed), 0);
}

/// From a full disk RocksDB recovers by itself, and closing it meanwhile would race with that; after other failures only
/// reopening helps.
#[tokio::test]
async fn the_database_is_reopened_only_when_it_does_not_recover_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(RocksStore::open(dir.path()).unwrap());
    let store: SharedStore = inner.clone();
    let faults = &inner.shared.db.faults;
    for (fault, reopened) in [(&faults.fail_next_write, 0), (&faults.broken, 1)] {
        let mut watch = store.watch("", None).await.unwrap();
        fault.store(true, Ordering::Relaxed);
        let failed = store.put("a", "1", Condition::Any).await;
        assert!(matches!(failed, Err(MetadataError::UnknownOutcome(_))), "{failed:?}");
        assert_eq!(watch.next().await.unwrap().0, WatchEvent::Rescan);
        store.put("a", "2", Condition::Any).await.unwrap();
        assert_eq!(faults.reopened.load(Ordering::Relaxed), reopened);
    }
}

#[tokio::test]
async fn keys_of_a_session_that_ended_during_a_failure_go_later() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(RocksStore::open(dir.path()).unwrap());
    let store: SharedStore = inner.clone();
    let session = store.open_session(60_000).await.unwrap();
    let bound =
        Operation::Put { key: "e".into(), value: "1".into(), condition: Condition::Any, ephemeral: Some(session.id) };
    store.commit(vec![bound]).await.unwrap();
    let mut watch = store.watch("e", None).await.unwrap();
    inner.shared.db.faults.fail_next_write.store(true, Ordering::Relaxed);
    let closed = store.close_session(session.id).await;
    assert!(matches!(closed, Err(MetadataError::UnknownOutcome(_))), "{closed:?}");
    assert_eq!(watch.next().await.unwrap().0, WatchEvent::Rescan);
    assert!(matches!(watch.next().await.unwrap().0, WatchEvent::Delete { key, .. } if key == "e"));
    assert_eq!(store.get("e").await.unwrap(), None);
}

#[tokio::test]
async fn damage_in_the_log_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(RocksStore::open(dir.path()).unwrap());
    for index in 0..100 {
        store.put(&format!("k/{index}"), vec![b'x'; 1000], Condition::Any).await.unwrap();
    }
    drop(store);
    let log = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[20_000] ^= 0xff;
    std::fs::write(&log, &bytes).unwrap();
    let opened = RocksStore::open(dir.path()).map(|_| ());
    assert!(matches!(opened, Err(MetadataError::Corrupt(_))), "{opened:?}");
}

#[tokio::test]
async fn a_torn_tail_of_the_log_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(RocksStore::open(dir.path()).unwrap());
    store.put("whole", "1", Condition::Any).await.unwrap();
    store.put("torn", vec![b'x'; 1000], Condition::Any).await.unwrap();
    drop(store);
    let log = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() - 10]).unwrap();
    let store = RocksStore::open(dir.path()).unwrap();
    assert!(store.get("whole").await.unwrap().is_some());
    assert!(store.get("torn").await.unwrap().is_none());
}

#[tokio::test]
async fn callers_learn_at_once_that_the_writer_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(RocksStore::open(dir.path()).unwrap());
    let store: SharedStore = inner.clone();
    store.put("a", "1", Condition::Any).await.unwrap();
    drop(AbandonQueue(inner.shared.clone()));
    for _ in 0..2 {
        let refused = store.put("a", "2", Condition::Any).await;
        assert!(matches!(refused, Err(MetadataError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "1", "reads go on");
}
