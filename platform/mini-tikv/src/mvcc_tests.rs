//! Tests of the decisions of [`Mvcc`].

use super::*;

const MS: u64 = 1 << LOGICAL_BITS;

fn prewrite(start_ts: u64, primary: &str, mutations: &[(&str, Op, &str)]) -> kv::PrewriteRequest {
    let mutation = |(key, op, value): &(&str, Op, &str)| kv::Mutation {
        op: *op as i32,
        key: key.as_bytes().to_vec(),
        value: value.as_bytes().to_vec(),
    };
    kv::PrewriteRequest {
        mutations: mutations.iter().map(mutation).collect(),
        primary_lock: primary.as_bytes().to_vec(),
        start_version: start_ts,
        lock_ttl: 3000,
        ..kv::PrewriteRequest::default()
    }
}

fn key(key: &str) -> Key {
    key.as_bytes().to_vec()
}

fn write(mvcc: &mut Mvcc, start_ts: u64, commit_ts: u64, name: &str, value: &str) {
    assert_eq!(mvcc.prewrite(&prewrite(start_ts, name, &[(name, Op::Put, value)])), []);
    mvcc.commit(&[key(name)], start_ts, commit_ts).unwrap();
}

fn status(lock_ts: u64, current_ts: u64, end: bool) -> kv::CheckTxnStatusRequest {
    kv::CheckTxnStatusRequest {
        primary_key: key("a"),
        lock_ts,
        caller_start_ts: current_ts,
        current_ts,
        rollback_if_not_exist: end,
        ..kv::CheckTxnStatusRequest::default()
    }
}

#[test]
fn reads_see_what_was_committed_by_their_time() {
    let mut mvcc = Mvcc::default();
    write(&mut mvcc, 10, 20, "a", "1");
    write(&mut mvcc, 30, 40, "a", "2");
    let read = |ts| mvcc.get(b"a", ts).unwrap();
    assert_eq!((read(19), read(20), read(39), read(40)), (None, Some(key("1")), Some(key("1")), Some(key("2"))));
}

#[test]
fn of_two_overlapping_writers_the_later_committer_loses() {
    let mut mvcc = Mvcc::default();
    write(&mut mvcc, 15, 20, "a", "1");
    let errors = mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Put, "2")]));
    assert_eq!(errors[0].conflict.as_ref().map(|conflict| conflict.conflict_commit_ts), Some(20));
    let guard = mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Lock, "")]));
    assert!(guard[0].conflict.is_some(), "a key that was only read too");
}

#[test]
fn a_lock_blocks_later_reads_and_writers_only() {
    let mut mvcc = Mvcc::default();
    write(&mut mvcc, 1, 2, "a", "0");
    assert_eq!(mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Put, "1"), ("b", Op::Lock, "")])), []);
    assert_eq!(mvcc.get(b"a", 10).unwrap(), Some(key("0")), "it can only be committed later");
    assert!(mvcc.get(b"a", 11).unwrap_err().locked.is_some());
    assert_eq!(mvcc.get(b"b", 11).unwrap(), None, "a guard hides nothing");
    let errors = mvcc.prewrite(&prewrite(12, "b", &[("b", Op::Put, "1")]));
    assert_eq!(errors[0].locked.as_ref().map(|lock| lock.primary_lock.clone()), Some(key("a")));
}

#[test]
fn a_repeated_prewrite_or_commit_changes_nothing() {
    let mut mvcc = Mvcc::default();
    let request = prewrite(10, "a", &[("a", Op::Put, "1")]);
    assert_eq!((mvcc.prewrite(&request), mvcc.prewrite(&request)), (vec![], vec![]));
    mvcc.commit(&[key("a")], 10, 20).unwrap();
    mvcc.commit(&[key("a")], 10, 20).unwrap();
    assert_eq!(mvcc.prewrite(&request), [], "a late copy of a committed one");
    assert!(mvcc.scan_locks(b"", b"", u64::MAX, 0).is_empty());
    assert!(mvcc.rollback(&[key("a")], 10).unwrap_err().abort.contains("Committed"));
}

#[test]
fn a_rolled_back_transaction_stays_so() {
    let mut mvcc = Mvcc::default();
    mvcc.rollback(&[key("a")], 10).unwrap();
    assert!(mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Put, "1")]))[0].conflict.is_some());
    assert!(mvcc.commit(&[key("a")], 10, 20).unwrap_err().retryable.contains("TxnLockNotFound"));
}

#[test]
fn a_lock_whose_time_is_over_is_rolled_back_by_who_meets_it() {
    let mut mvcc = Mvcc::default();
    let start_ts = 1000 * MS;
    assert_eq!(mvcc.prewrite(&prewrite(start_ts, "a", &[("a", Op::Put, "1"), ("b", Op::Put, "1")])), []);
    let alive = mvcc.check_status(&status(start_ts, 4000 * MS, true));
    assert_eq!((alive.lock_ttl, alive.action()), (3000, Action::MinCommitTsPushed));
    let expired = mvcc.commit(&[key("a")], start_ts, 2000 * MS).unwrap_err();
    assert!(expired.commit_ts_expired.is_some(), "a pushed lock is not committed below its push");
    let over = mvcc.check_status(&status(start_ts, 4001 * MS, true));
    assert_eq!((over.lock_ttl, over.commit_version, over.action()), (0, 0, Action::TtlExpireRollback));
    assert_eq!(mvcc.locked_by(b"", b"", start_ts, &[]), [key("b")]);
    mvcc.resolve(&[key("b")], start_ts, 0).unwrap();
    assert_eq!(mvcc.get(b"b", u64::MAX - 1).unwrap(), None);
}

#[test]
fn an_unknown_transaction_is_ended_only_when_asked_to() {
    let mut mvcc = Mvcc::default();
    assert!(mvcc.check_status(&status(10, 20, false)).error.is_some_and(|error| error.txn_not_found.is_some()));
    assert_eq!(mvcc.check_status(&status(10, 20, true)).action(), Action::LockNotExistRollback);
    assert!(mvcc.commit(&[key("a")], 10, 20).is_err());
}

#[test]
fn secondary_keys_follow_the_primary() {
    let mut mvcc = Mvcc::default();
    assert_eq!(mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Put, "1"), ("b", Op::Del, "")])), []);
    mvcc.commit(&[key("a")], 10, 20).unwrap();
    assert_eq!(mvcc.check_status(&status(10, 30, true)).commit_version, 20);
    mvcc.resolve(&[key("b")], 10, 20).unwrap();
    assert_eq!(mvcc.get(b"b", 30).unwrap(), None);
    assert_eq!(mvcc.get(b"a", 30).unwrap(), Some(key("1")));
}

#[test]
fn insert_needs_an_absent_key() {
    let mut mvcc = Mvcc::default();
    write(&mut mvcc, 1, 2, "a", "0");
    assert!(mvcc.prewrite(&prewrite(10, "a", &[("a", Op::Insert, "1")]))[0].already_exist.is_some());
    assert_eq!(mvcc.prewrite(&prewrite(10, "b", &[("b", Op::Insert, "1")])), []);
}

#[test]
fn scans_are_ordered_bounded_and_show_locks() {
    let mut mvcc = Mvcc::default();
    for name in ["c", "a", "b", "d"] {
        write(&mut mvcc, 1, 2, name, name);
    }
    assert_eq!(mvcc.prewrite(&prewrite(3, "b", &[("b", Op::Put, "x")])), []);
    let scan = |limit, reverse, version| {
        let request = kv::ScanRequest { limit, reverse, version, ..kv::ScanRequest::default() };
        let pairs = mvcc.scan(b"a", b"d", &request);
        pairs.into_iter().map(|pair| (String::from_utf8(pair.key).unwrap(), pair.error.is_some())).collect::<Vec<_>>()
    };
    let pair = |name: &str, locked| (name.to_owned(), locked);
    assert_eq!(scan(10, false, 10), [pair("a", false), pair("b", true), pair("c", false)]);
    assert_eq!(scan(2, true, 2), [pair("c", false), pair("b", false)]);
}

#[test]
fn garbage_keeps_what_can_be_read() {
    let mut mvcc = Mvcc::default();
    for round in 0..200u64 {
        write(&mut mvcc, round * 1000 * MS + 1, round * 1000 * MS + 2, "a", "x");
    }
    assert!(mvcc.versions() < 150, "old versions go by themselves");
    mvcc.collect_garbage(200_000 * MS);
    assert_eq!(mvcc.versions(), 1);
    assert_eq!(mvcc.get(b"a", 200_000 * MS).unwrap(), Some(key("x")));
    assert_eq!(mvcc.prewrite(&prewrite(200_001 * MS, "a", &[("a", Op::Del, "")])), []);
    mvcc.commit(&[key("a")], 200_001 * MS, 200_001 * MS + 1).unwrap();
    mvcc.collect_garbage(300_000 * MS);
    assert_eq!(mvcc.versions(), 0);
}
