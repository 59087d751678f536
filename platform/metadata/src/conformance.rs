//! What every metadata store must do, as tests that take a store.
//!
//! Role: `conformance_tests!(open)` runs each case of this module as a test on a fresh store; `open` is a closure that
//! answers the store and a guard that lives as long as the test. [`reopening`] is for stores that outlive their process.
//! Invariants: the cases name M1 to M6 where they prove them.
//! Failure: a broken rule is a failed assertion.
//! Must never know: a concrete store.
#![allow(clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

use crate::limits::{MAX_KEY_BYTES, MAX_TRANSACTION_BYTES, MAX_VALUE_BYTES};
use crate::store::{Condition, Entry, MetadataError, Operation, SessionId, SharedStore, Version, Watch, WatchEvent};
use bytes::Bytes;
use std::time::Duration;

/// No case waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs every case of [`conformance`](crate::conformance) on the stores that `$open` makes.
#[macro_export]
macro_rules! conformance_tests {
    ($open:expr) => {
        $crate::conformance_tests! { @each $open;
            get_and_put, versions_never_repeat, compare_and_set, transactions_are_whole, checks_and_empty_transactions,
            one_writer_of_many_wins, deletes, ranges_in_pages, long_pages_are_cut, sequences, sequences_are_shared,
            sequence_limits, sessions_end_with_their_keys, sessions_expire, sessions_are_renewed, dead_sessions,
            ephemeral_keys_change_hands, watch_from_now, watch_sees_whole_transactions, watch_resumes,
            watch_of_a_lost_position_rescans, slow_watch_rescans, watch_and_range_have_no_gap, dropped_watch,
            size_limits, keys_are_bytes,
        }
    };
    (@each $open:expr; $($case:ident),* $(,)?) => {
        mod conformance {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                let (store, _guard) = ($open)();
                $crate::conformance::$case(store).await;
            })*
        }
    };
}

fn put(key: &str, value: &str, condition: Condition) -> Operation {
    Operation::Put { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), condition, ephemeral: None }
}

fn ephemeral(key: &str, session: SessionId) -> Operation {
    Operation::Put {
        key: key.into(),
        value: Bytes::from_static(b"e"),
        condition: Condition::Any,
        ephemeral: Some(session),
    }
}

fn delete(key: &str, condition: Condition) -> Operation {
    Operation::Delete { key: key.into(), condition }
}

async fn value(store: &SharedStore, key: &str) -> Option<Bytes> {
    store.get(key).await.unwrap().map(|entry| entry.value)
}

async fn next(watch: &mut Box<dyn Watch>) -> (WatchEvent, Version) {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a change in time").expect("an open store")
}

async fn watch(store: &SharedStore, prefix: &str, from: Option<Version>) -> Box<dyn Watch> {
    store.watch(prefix, from).await.unwrap()
}

/// A value comes back with the version of its write; an unknown key is no error.
pub async fn get_and_put(store: SharedStore) {
    assert_eq!(store.get("a").await.unwrap(), None);
    let version = store.put("a", "1", Condition::Any).await.unwrap();
    let expected = Entry { key: "a".into(), value: "1".into(), version, ephemeral: None };
    assert_eq!(store.get("a").await.unwrap(), Some(expected));
    assert_eq!(store.get("").await.unwrap(), None);
    assert_eq!(store.get("ab").await.unwrap(), None);
}

/// M1: versions grow over keys, over deletion and creation.
pub async fn versions_never_repeat(store: SharedStore) {
    let mut last = store.current_version().await.unwrap();
    for round in 0..10 {
        let put = store.put("a", format!("{round}"), Condition::Any).await.unwrap();
        assert!(put > last);
        let other = store.put("b", "x", Condition::Any).await.unwrap();
        assert!(other > put);
        last = store.delete("a", Condition::Is(put)).await.unwrap();
        assert!(last > other);
        assert_eq!(store.current_version().await.unwrap(), last);
    }
    let again = store.put("a", "x", Condition::Absent).await.unwrap();
    assert!(again > last);
}

/// A condition that does not hold changes nothing and names the version now.
pub async fn compare_and_set(store: SharedStore) {
    let first = store.put("a", "1", Condition::Absent).await.unwrap();
    let conflict = MetadataError::Conflict { key: "a".into(), current: Some(first) };
    assert_eq!(store.put("a", "2", Condition::Absent).await, Err(conflict.clone()));
    assert_eq!(store.put("a", "2", Condition::Is(Version(first.0 + 1))).await, Err(conflict));
    let second = store.put("a", "2", Condition::Is(first)).await.unwrap();
    let conflict = MetadataError::Conflict { key: "a".into(), current: Some(second) };
    assert_eq!(store.put("a", "3", Condition::Is(first)).await, Err(conflict.clone()));
    assert_eq!(store.delete("a", Condition::Is(first)).await, Err(conflict));
    let absent = MetadataError::Conflict { key: "b".into(), current: None };
    assert_eq!(store.put("b", "1", Condition::Is(first)).await, Err(absent));
    assert_eq!(value(&store, "a").await.unwrap(), "2");
}

/// M2: all operations or none, under one version; no key twice.
pub async fn transactions_are_whole(store: SharedStore) {
    let version = store.commit(vec![put("a", "1", Condition::Absent), put("b", "1", Condition::Absent)]).await.unwrap();
    for key in ["a", "b"] {
        assert_eq!(store.get(key).await.unwrap().unwrap().version, version);
    }
    let failed = store
        .commit(vec![put("c", "2", Condition::Absent), delete("a", Condition::Any), put("b", "2", Condition::Absent)])
        .await;
    assert_eq!(failed, Err(MetadataError::Conflict { key: "b".into(), current: Some(version) }));
    assert_eq!(value(&store, "c").await, None);
    assert_eq!(value(&store, "a").await.unwrap(), "1");
    assert_eq!(store.current_version().await.unwrap(), version);
    let twice = store.commit(vec![put("d", "1", Condition::Any), delete("d", Condition::Any)]).await;
    assert!(matches!(twice, Err(MetadataError::Invalid(_))), "{twice:?}");
}

/// A transaction that writes nothing answers the latest version and checks all the same.
pub async fn checks_and_empty_transactions(store: SharedStore) {
    let version = store.put("a", "1", Condition::Any).await.unwrap();
    let check = |condition| vec![Operation::Check { key: "a".into(), condition }];
    assert_eq!(store.commit(check(Condition::Is(version))).await, Ok(version));
    assert_eq!(store.commit(vec![]).await, Ok(version));
    assert!(matches!(store.commit(check(Condition::Absent)).await, Err(MetadataError::Conflict { .. })));
    let guarded = |condition| {
        let mut operations = check(condition);
        operations.push(put("b", "1", Condition::Any));
        operations
    };
    assert!(store.commit(guarded(Condition::Is(Version(version.0 + 9)))).await.is_err());
    assert_eq!(value(&store, "b").await, None);
    assert!(store.commit(guarded(Condition::Is(version))).await.unwrap() > version);
}

/// Of many that set from the same version exactly one wins, also when they are written together.
pub async fn one_writer_of_many_wins(store: SharedStore) {
    let mut version = store.put("a", "0", Condition::Any).await.unwrap();
    for round in 0..5 {
        let tasks: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move { store.put("a", format!("{round}-{writer}"), Condition::Is(version)).await })
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Ok(won) => winners.push(won),
                Err(error) => assert!(matches!(error, MetadataError::Conflict { .. }), "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(store.get("a").await.unwrap().unwrap().version, winners[0]);
        version = winners[0];
    }
}

/// Deleting an absent key is no error unless a version was asked for.
pub async fn deletes(store: SharedStore) {
    let version = store.put("a", "1", Condition::Any).await.unwrap();
    assert_eq!(store.delete("b", Condition::Any).await, Ok(version));
    assert_eq!(store.delete("b", Condition::Absent).await, Ok(version));
    assert!(matches!(store.delete("b", Condition::Is(version)).await, Err(MetadataError::Conflict { .. })));
    assert!(matches!(store.delete("a", Condition::Absent).await, Err(MetadataError::Conflict { .. })));
    store.delete("a", Condition::Any).await.unwrap();
    assert_eq!(value(&store, "a").await, None);
}

/// Ranges are in byte order, exact in their prefix and complete over pages.
pub async fn ranges_in_pages(store: SharedStore) {
    let keys = ["p", "p/", "p/1", "p/10", "p/2", "p/é", "p0"];
    let operations = keys.iter().chain(&["o", "q"]).map(|key| put(key, key, Condition::Any)).collect();
    store.commit(operations).await.unwrap();
    for limit in 1..=6 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.range("p/", after.as_deref(), limit).await.unwrap();
            assert!(page.entries.len() <= limit);
            found.extend(page.entries.into_iter().map(|entry| entry.key));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, ["p/", "p/1", "p/10", "p/2", "p/é"], "limit {limit}");
    }
    let after = store.range("p", Some("p/10"), 10).await.unwrap();
    assert_eq!(after.entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["p/2", "p/é", "p0"]);
    assert_eq!(after.next, None);
    assert_eq!(store.range("p", Some("a"), 10).await.unwrap().entries.len(), keys.len());
    assert_eq!(store.range("p", Some("z"), 10).await.unwrap().entries, []);
    assert_eq!(store.scan("").await.unwrap().len(), keys.len() + 2);
    assert_eq!(store.scan("none").await.unwrap(), []);
}

/// A page with large values ends before its limit and says how to go on.
pub async fn long_pages_are_cut(store: SharedStore) {
    let large = Bytes::from(vec![7; MAX_VALUE_BYTES]);
    for index in 0..8 {
        store.put(&format!("big/{index}"), large.clone(), Condition::Any).await.unwrap();
    }
    let page = store.range("big/", None, 100).await.unwrap();
    assert!(page.entries.len() < 8 && page.next.is_some());
    assert_eq!(store.scan("big/").await.unwrap().len(), 8);
}

/// Sequences start at 0, give consecutive numbers and don't know each other.
pub async fn sequences(store: SharedStore) {
    assert_eq!(store.allocate("s", 1).await, Ok(0));
    assert_eq!(store.allocate("s", 10).await, Ok(1));
    assert_eq!(store.allocate("s", 500).await, Ok(11));
    assert_eq!(store.allocate("s", 1).await, Ok(511));
    assert_eq!(store.allocate("t", 1).await, Ok(0));
    assert_eq!(value(&store, "s").await, None, "sequences are not keys");
}

/// M4: numbers given to many callers at once never overlap.
pub async fn sequences_are_shared(store: SharedStore) {
    let tasks: Vec<_> = (0..32u64)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut given = Vec::new();
                for round in 0..20 {
                    let count = 1 + (task * 7 + round) % 13;
                    let first = store.allocate("s", count).await.unwrap();
                    given.extend(first..first + count);
                }
                given
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    let given = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), given);
}

/// Nothing or more than there is can't be allocated, and the refusal uses up no numbers twice.
pub async fn sequence_limits(store: SharedStore) {
    for count in [0, u64::MAX] {
        store.allocate("s", 1).await.unwrap();
        assert!(matches!(store.allocate("s", count).await, Err(MetadataError::Invalid(_))), "{count}");
    }
    assert_eq!(store.allocate("s", 1).await, Ok(2));
}

/// Closing a session deletes its keys and nothing else.
pub async fn sessions_end_with_their_keys(store: SharedStore) {
    let mine = store.open_session(60_000).await.unwrap();
    let other = store.open_session(60_000).await.unwrap();
    assert_ne!(mine.id, other.id);
    assert_eq!(mine.ttl_ms, 60_000);
    store.commit(vec![ephemeral("e/1", mine.id), ephemeral("e/2", mine.id), ephemeral("f", other.id)]).await.unwrap();
    store.put("g", "1", Condition::Any).await.unwrap();
    assert_eq!(store.get("e/1").await.unwrap().unwrap().ephemeral, Some(mine.id));
    let mut changes = watch(&store, "e/", None).await;
    store.close_session(mine.id).await.unwrap();
    assert_eq!(store.scan("e/").await.unwrap(), []);
    assert_eq!(store.scan("").await.unwrap().len(), 2);
    for key in ["e/1", "e/2"] {
        assert!(matches!(next(&mut changes).await.0, WatchEvent::Delete { key: deleted, .. } if deleted == key));
    }
    assert_eq!(store.close_session(mine.id).await, Err(MetadataError::SessionExpired(mine.id)));
    store.renew_session(other.id).await.unwrap();
}

/// A session that is not renewed ends by itself, and watchers see its keys go.
pub async fn sessions_expire(store: SharedStore) {
    let session = store.open_session(50).await.unwrap();
    store.commit(vec![ephemeral("e", session.id)]).await.unwrap();
    let mut changes = watch(&store, "e", None).await;
    assert!(matches!(next(&mut changes).await.0, WatchEvent::Delete { key, .. } if key == "e"));
    assert_eq!(value(&store, "e").await, None);
    assert_eq!(store.renew_session(session.id).await, Err(MetadataError::SessionExpired(session.id)));
}

/// A renewed session outlives its first time to live.
pub async fn sessions_are_renewed(store: SharedStore) {
    let session = store.open_session(600).await.unwrap();
    let started = tokio::time::Instant::now();
    store.commit(vec![ephemeral("e", session.id)]).await.unwrap();
    let mut interval = tokio::time::interval(Duration::from_millis(50));
    while started.elapsed() < Duration::from_millis(1500) {
        interval.tick().await;
        store.renew_session(session.id).await.unwrap();
    }
    assert!(value(&store, "e").await.is_some());
}

/// A session that ended or never was takes no keys.
pub async fn dead_sessions(store: SharedStore) {
    let session = store.open_session(60_000).await.unwrap();
    store.close_session(session.id).await.unwrap();
    for dead in [session.id, SessionId(u64::MAX)] {
        assert_eq!(store.commit(vec![ephemeral("e", dead)]).await, Err(MetadataError::SessionExpired(dead)));
        assert_eq!(store.renew_session(dead).await, Err(MetadataError::SessionExpired(dead)));
        assert_eq!(store.close_session(dead).await, Err(MetadataError::SessionExpired(dead)));
    }
    assert_eq!(value(&store, "e").await, None);
}

/// An overwritten ephemeral key belongs to its last writer.
pub async fn ephemeral_keys_change_hands(store: SharedStore) {
    let first = store.open_session(60_000).await.unwrap();
    let second = store.open_session(60_000).await.unwrap();
    store
        .commit(vec![ephemeral("moved", first.id), ephemeral("kept", first.id), ephemeral("gone", first.id)])
        .await
        .unwrap();
    store.commit(vec![ephemeral("moved", second.id), put("kept", "1", Condition::Any)]).await.unwrap();
    store.delete("gone", Condition::Any).await.unwrap();
    store.put("gone", "back", Condition::Absent).await.unwrap();
    store.close_session(first.id).await.unwrap();
    let keys: Vec<_> = store.scan("").await.unwrap().into_iter().map(|entry| (entry.key, entry.ephemeral)).collect();
    let expected = [("gone".to_owned(), None), ("kept".to_owned(), None), ("moved".to_owned(), Some(second.id))];
    assert_eq!(keys, expected);
    store.close_session(second.id).await.unwrap();
    assert_eq!(value(&store, "moved").await, None);
}

/// M3: a watch sees changes of its prefix, in order, with value and version, and no others.
pub async fn watch_from_now(store: SharedStore) {
    store.put("w/0", "before", Condition::Any).await.unwrap();
    let mut changes = watch(&store, "w/", None).await;
    store.put("v", "no", Condition::Any).await.unwrap();
    let put = store.put("w/1", "1", Condition::Any).await.unwrap();
    let gone = store.delete("w/1", Condition::Any).await.unwrap();
    let entry = Entry { key: "w/1".into(), value: "1".into(), version: put, ephemeral: None };
    assert_eq!(next(&mut changes).await, (WatchEvent::Put(entry), put));
    assert_eq!(next(&mut changes).await, (WatchEvent::Delete { key: "w/1".into(), version: gone }, gone));
}

/// M3: a transaction's changes come in the order of its operations, and resuming inside it skips none.
pub async fn watch_sees_whole_transactions(store: SharedStore) {
    let mut changes = watch(&store, "w/", None).await;
    let operations = ["w/b", "x", "w/a", "w/c"].map(|key| put(key, "1", Condition::Any));
    store.commit(operations.to_vec()).await.unwrap();
    let (first, position) = next(&mut changes).await;
    assert!(matches!(first, WatchEvent::Put(entry) if entry.key == "w/b"));
    let mut resumed = watch(&store, "w/", Some(position)).await;
    let mut keys = Vec::new();
    while keys.last().is_none_or(|key| key != "w/c") {
        if let (WatchEvent::Put(entry), _) = next(&mut resumed).await {
            keys.push(entry.key);
        }
    }
    assert!(keys.ends_with(&["w/a".into(), "w/c".into()]), "{keys:?}");
}

/// M3: a watch resumed from the position of an earlier one misses nothing and repeats nothing of whole transactions.
pub async fn watch_resumes(store: SharedStore) {
    let mut changes = watch(&store, "w/", None).await;
    store.put("w/1", "1", Condition::Any).await.unwrap();
    let (_, position) = next(&mut changes).await;
    drop(changes);
    let second = store.put("w/2", "2", Condition::Any).await.unwrap();
    store.put("x", "2", Condition::Any).await.unwrap();
    let mut resumed = watch(&store, "w/", Some(position)).await;
    let third = store.put("w/3", "3", Condition::Any).await.unwrap();
    for version in [second, third] {
        let (event, position) = next(&mut resumed).await;
        assert!(matches!(event, WatchEvent::Put(entry) if entry.version == version));
        assert_eq!(position, version);
    }
}

async fn flood(store: &SharedStore, round: usize) {
    let operations = (0..1000).map(|key| put(&format!("flood/{key}"), &format!("{round}"), Condition::Any)).collect();
    store.commit(operations).await.unwrap();
}

/// M3, M6: the log of changes is bounded; a position it no longer holds, or never held, is a rescan.
pub async fn watch_of_a_lost_position_rescans(store: SharedStore) {
    let old = store.put("flood/0", "0", Condition::Any).await.unwrap();
    for round in 0.. {
        assert!(round < 200, "the log of changes has no bound");
        flood(&store, round).await;
        let mut resumed = watch(&store, "flood/", Some(old)).await;
        if let (WatchEvent::Rescan, position) = next(&mut resumed).await {
            assert!(position > old);
            break;
        }
    }
    let future = Version(store.current_version().await.unwrap().0 + 1000);
    assert_eq!(next(&mut watch(&store, "", Some(future)).await).await.0, WatchEvent::Rescan);
}

/// M3, M6: a watcher that does not read is told to rescan, and sees what comes after it.
pub async fn slow_watch_rescans(store: SharedStore) {
    let mut slow = watch(&store, "flood/", None).await;
    let mut other = watch(&store, "quiet/", None).await;
    for round in 0..40 {
        flood(&store, round).await;
    }
    store.put("quiet/1", "1", Condition::Any).await.unwrap();
    let last = store.put("flood/last", "1", Condition::Any).await.unwrap();
    let (mut rescans, mut seen) = (0, 0);
    loop {
        match next(&mut slow).await.0 {
            WatchEvent::Rescan => rescans += 1,
            WatchEvent::Put(entry) if entry.version == last => break,
            _ => seen += 1,
        }
    }
    assert!(rescans >= 1 && seen < 40_000, "{rescans} rescans, {seen} changes");
    assert!(matches!(next(&mut other).await.0, WatchEvent::Put(entry) if entry.key == "quiet/1"));
}

/// M3: version, range, watch from the version: the picture is complete while others write.
pub async fn watch_and_range_have_no_gap(store: SharedStore) {
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for index in 0..200 {
                store.put(&format!("k/{}", index % 17), format!("{index}"), Condition::Any).await.unwrap();
            }
            store.put("k/end", "end", Condition::Any).await.unwrap();
        })
    };
    let from = store.current_version().await.unwrap();
    let mut picture: std::collections::BTreeMap<_, _> =
        store.scan("k/").await.unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect();
    let mut changes = watch(&store, "k/", Some(from)).await;
    while !picture.contains_key("k/end") {
        match next(&mut changes).await.0 {
            WatchEvent::Put(entry) => drop(picture.insert(entry.key, entry.value)),
            event => panic!("{event:?}"),
        }
    }
    writer.await.unwrap();
    let now: std::collections::BTreeMap<_, _> =
        store.scan("k/").await.unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect();
    assert_eq!(picture, now);
}

/// A dropped watch costs nothing and disturbs no other.
pub async fn dropped_watch(store: SharedStore) {
    let mut kept = watch(&store, "w", None).await;
    for _ in 0..100 {
        drop(watch(&store, "w", None).await);
    }
    store.put("w", "1", Condition::Any).await.unwrap();
    assert!(matches!(next(&mut kept).await.0, WatchEvent::Put(_)));
}

/// M6: what is over a limit is refused by name, what is at it is taken.
pub async fn size_limits(store: SharedStore) {
    let key = "k".repeat(MAX_KEY_BYTES);
    store.put(&key, vec![1; MAX_VALUE_BYTES], Condition::Any).await.unwrap();
    assert_eq!(value(&store, &key).await.unwrap().len(), MAX_VALUE_BYTES);
    let refused = |result: Result<Version, MetadataError>, expected: &str| match result {
        Err(MetadataError::TooLarge { what, bytes, max_bytes }) => {
            assert!(what == expected && bytes > max_bytes, "{what} {bytes} {max_bytes}");
        }
        other => panic!("{expected}: {other:?}"),
    };
    refused(store.put(&format!("{key}k"), "1", Condition::Any).await, "key");
    refused(store.put("k", vec![1; MAX_VALUE_BYTES + 1], Condition::Any).await, "value");
    let many = (0..=MAX_TRANSACTION_BYTES / MAX_VALUE_BYTES)
        .map(|key| Operation::Put {
            key: key.to_string(),
            value: vec![1; MAX_VALUE_BYTES].into(),
            condition: Condition::Any,
            ephemeral: None,
        })
        .collect();
    refused(store.commit(many).await, "transaction");
    assert_eq!(value(&store, "0").await, None);
}

/// Any text is a key, any bytes are a value.
pub async fn keys_are_bytes(store: SharedStore) {
    for key in ["", "\0", "a\0b", "\u{10ffff}", "ü/", "//"] {
        store.put(key, vec![0, 255, 10], Condition::Absent).await.unwrap();
        assert_eq!(value(&store, key).await.unwrap(), [0u8, 255, 10].as_slice(), "{key:?}");
    }
    assert_eq!(store.scan("").await.unwrap().len(), 6);
    assert_eq!(store.scan("\u{10ffff}").await.unwrap().len(), 1);
}

/// For stores that outlive their process: `open` opens the same store again, after the one before was dropped.
pub async fn reopening(open: impl Fn() -> SharedStore) {
    let store = open();
    let session = store.open_session(60_000).await.unwrap();
    let version = store.put("kept", "1", Condition::Any).await.unwrap();
    store.commit(vec![ephemeral("session", session.id)]).await.unwrap();
    assert_eq!(store.allocate("s", 7).await, Ok(0));
    let last = store.delete("none", Condition::Any).await.unwrap();
    drop(store);
    let store = open();
    assert_eq!(store.get("kept").await.unwrap().unwrap().version, version);
    assert_eq!(value(&store, "session").await, None, "the session died with its process");
    assert!(store.allocate("s", 1).await.unwrap() >= 7, "M4");
    assert_eq!(store.renew_session(session.id).await, Err(MetadataError::SessionExpired(session.id)));
    assert_ne!(store.open_session(60_000).await.unwrap().id, session.id);
    let mut resumed = watch(&store, "", Some(version)).await;
    assert_eq!(next(&mut resumed).await.0, WatchEvent::Rescan, "what was missed is said");
    assert!(store.put("kept", "2", Condition::Is(version)).await.unwrap() > last, "M1");
}
