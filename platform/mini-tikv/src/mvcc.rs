//! Percolator over versions in memory: the decisions of a store about one request.
//!
//! Role: locks, versions and rollback marks of each key; prewrite, commit, rollback, reads at a time stamp, the state
//! of a transaction, and the end of locks whose time is over.
//! Invariants: a transaction that is committed is never rolled back and the other way round; a key carries at most one
//! lock; a read at a time stamp never changes once it was answered.
//! Failure: a `KeyError` of the protocol.
//! Must never know: regions, the wire, the clock (time comes with the requests).
#![allow(clippy::result_large_err, reason = "the protocol's error, moved into an answer at once")]

use crate::pb::kvrpcpb::{self as kv, Action, KeyError, Op};
use crate::tso::LOGICAL_BITS;
use std::collections::BTreeMap;

/// Versions older than this before a commit, below the newest such one, are dropped.
const KEPT_MS: u64 = 120_000;
/// Versions of a key before old ones are looked for.
const VERSIONS_BEFORE_TRIM: usize = 32;

type Key = Vec<u8>;

#[derive(Debug, Clone)]
struct Lock {
    op: Op,
    primary: Key,
    start_ts: u64,
    ttl_ms: u64,
    value: Vec<u8>,
    min_commit_ts: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Write {
    Put(Vec<u8>),
    Delete,
    /// Only guards the key.
    Guard,
    Rollback,
}

/// What became of a transaction at a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Committed(u64),
    RolledBack,
    Unknown,
}

#[derive(Debug, Default)]
struct Record {
    lock: Option<Lock>,
    /// Commit time stamp to the writes there: a rollback mark may share the stamp of another's commit.
    writes: BTreeMap<u64, Vec<(u64, Write)>>,
}

impl Record {
    fn read(&self, ts: u64) -> Option<&[u8]> {
        for (_, write) in self.writes.range(..=ts).rev().flat_map(|(_, writes)| writes) {
            match write {
                Write::Put(value) => return Some(value),
                Write::Delete => return None,
                Write::Guard | Write::Rollback => {}
            }
        }
        None
    }

    /// Commit and start of the newest write of any kind.
    fn newest(&self) -> Option<(u64, u64)> {
        let (commit, writes) = self.writes.last_key_value()?;
        writes.first().map(|(start, _)| (*commit, *start))
    }

    fn fate(&self, start_ts: u64) -> Fate {
        for (commit, writes) in self.writes.range(start_ts..) {
            for (start, write) in writes {
                if *start == start_ts {
                    return if *write == Write::Rollback { Fate::RolledBack } else { Fate::Committed(*commit) };
                }
            }
        }
        Fate::Unknown
    }

    fn mark_rolled_back(&mut self, start_ts: u64) {
        self.writes.entry(start_ts).or_default().push((start_ts, Write::Rollback));
    }

    fn commit(&mut self, lock: Lock, commit_ts: u64) {
        let write = match lock.op {
            Op::Put | Op::Insert => Write::Put(lock.value),
            Op::Del => Write::Delete,
            _ => Write::Guard,
        };
        self.writes.entry(commit_ts).or_default().insert(0, (lock.start_ts, write));
        if self.writes.len() > VERSIONS_BEFORE_TRIM {
            self.trim(commit_ts.saturating_sub(KEPT_MS << LOGICAL_BITS));
        }
    }

    /// Drops what no read at `safe_ts` or later needs.
    fn trim(&mut self, safe_ts: u64) {
        let is_data =
            |writes: &Vec<(u64, Write)>| writes.iter().any(|(_, write)| matches!(write, Write::Put(_) | Write::Delete));
        let base = self.writes.range(..=safe_ts).rev().find(|(_, writes)| is_data(writes)).map(|(commit, _)| *commit);
        if let Some(base) = base {
            self.writes = self.writes.split_off(&base);
        }
    }

    /// The lock that a read at `ts` must wait for.
    fn blocks(&self, key: &[u8], ts: u64) -> Option<KeyError> {
        let lock = self.lock.as_ref()?;
        let hides = matches!(lock.op, Op::Put | Op::Del | Op::Insert) && lock.start_ts <= ts;
        let pushed = lock.min_commit_ts > ts;
        let own_latest = ts == u64::MAX && lock.primary == key;
        (hides && !pushed && !own_latest).then(|| locked(key, lock))
    }
}

fn lock_info(key: &[u8], lock: &Lock) -> kv::LockInfo {
    kv::LockInfo {
        primary_lock: lock.primary.clone(),
        lock_version: lock.start_ts,
        key: key.to_vec(),
        lock_ttl: lock.ttl_ms,
        txn_size: 1,
        lock_type: lock.op as i32,
        min_commit_ts: lock.min_commit_ts,
    }
}

fn locked(key: &[u8], lock: &Lock) -> KeyError {
    KeyError { locked: Some(lock_info(key, lock)), ..KeyError::default() }
}

fn retryable(why: String) -> KeyError {
    KeyError { retryable: why, ..KeyError::default() }
}

fn abort(why: String) -> KeyError {
    KeyError { abort: why, ..KeyError::default() }
}

fn conflict(request: &kv::PrewriteRequest, key: &[u8], commit_ts: u64, start_ts: u64) -> KeyError {
    let conflict = kv::WriteConflict {
        start_ts: request.start_version,
        conflict_ts: start_ts,
        key: key.to_vec(),
        primary: request.primary_lock.clone(),
        conflict_commit_ts: commit_ts,
        reason: kv::write_conflict::Reason::Optimistic as i32,
    };
    KeyError { conflict: Some(conflict), ..KeyError::default() }
}

fn physical_ms(ts: u64) -> u64 {
    ts >> LOGICAL_BITS
}

/// All keys.
#[derive(Debug, Default)]
pub(crate) struct Mvcc {
    records: BTreeMap<Key, Record>,
}

/// The keys from `start` to before `end`; an empty end is no end.
fn within<'a>(
    records: &'a BTreeMap<Key, Record>,
    start: &[u8],
    end: &'a [u8],
) -> impl DoubleEndedIterator<Item = (&'a Key, &'a Record)> {
    use std::ops::Bound;
    let upper = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
    let empty = !end.is_empty() && start >= end;
    let range = (!empty).then(|| records.range::<[u8], _>((Bound::Included(start), upper)));
    range.into_iter().flatten()
}

impl Mvcc {
    pub(crate) fn get(&self, key: &[u8], ts: u64) -> Result<Option<Vec<u8>>, KeyError> {
        let Some(record) = self.records.get(key) else { return Ok(None) };
        match record.blocks(key, ts) {
            Some(error) => Err(error),
            None => Ok(record.read(ts).map(<[u8]>::to_vec)),
        }
    }

    /// Pairs of a range in order, with an error in place of a value that is locked.
    pub(crate) fn scan(&self, start: &[u8], end: &[u8], request: &kv::ScanRequest) -> Vec<kv::KvPair> {
        let pair = |(key, record): (&Key, &Record)| {
            let key = key.clone();
            if let Some(error) = record.blocks(&key, request.version) {
                return Some(kv::KvPair { error: Some(error), key, value: Vec::new() });
            }
            let value = record.read(request.version)?;
            let value = if request.key_only { Vec::new() } else { value.to_vec() };
            Some(kv::KvPair { error: None, key, value })
        };
        let found = within(&self.records, start, end);
        let limit = request.limit as usize;
        if request.reverse {
            found.rev().filter_map(pair).take(limit).collect()
        } else {
            found.filter_map(pair).take(limit).collect()
        }
    }

    /// Locks all keys of the request or none.
    pub(crate) fn prewrite(&mut self, request: &kv::PrewriteRequest) -> Vec<KeyError> {
        let mut errors = Vec::new();
        let mut fresh = Vec::new();
        for mutation in &request.mutations {
            match self.may_lock(request, mutation) {
                Ok(true) => fresh.push(mutation),
                Ok(false) => {}
                Err(error) if error.locked.is_some() => errors.push(error),
                Err(error) => return vec![error],
            }
        }
        if !errors.is_empty() {
            return errors;
        }
        for mutation in fresh.into_iter().filter(|mutation| mutation.op() != Op::CheckNotExists) {
            let primary = mutation.key == request.primary_lock;
            let lock = Lock {
                op: mutation.op(),
                primary: request.primary_lock.clone(),
                start_ts: request.start_version,
                ttl_ms: request.lock_ttl,
                value: mutation.value.clone(),
                min_commit_ts: if primary { request.start_version + 1 } else { 0 },
            };
            self.records.entry(mutation.key.clone()).or_default().lock = Some(lock);
        }
        Vec::new()
    }

    /// Whether the key must still be locked; `false` = it was before.
    fn may_lock(&self, request: &kv::PrewriteRequest, mutation: &kv::Mutation) -> Result<bool, KeyError> {
        let (key, start_ts) = (&mutation.key, request.start_version);
        let Some(record) = self.records.get(key) else { return Ok(true) };
        match record.fate(start_ts) {
            Fate::Committed(_) => return Ok(false),
            Fate::RolledBack => return Err(conflict(request, key, start_ts, start_ts)),
            Fate::Unknown => {}
        }
        match &record.lock {
            Some(lock) if lock.start_ts == start_ts => return Ok(false),
            Some(lock) => return Err(locked(key, lock)),
            None => {}
        }
        if let Some((commit_ts, start)) = record.newest().filter(|(commit_ts, _)| *commit_ts > start_ts) {
            return Err(conflict(request, key, commit_ts, start));
        }
        if matches!(mutation.op(), Op::Insert | Op::CheckNotExists) && record.read(u64::MAX).is_some() {
            let exists = kv::AlreadyExist { key: key.clone() };
            return Err(KeyError { already_exist: Some(exists), ..KeyError::default() });
        }
        Ok(true)
    }

    /// Commits all keys or none.
    pub(crate) fn commit(&mut self, keys: &[Key], start_ts: u64, commit_ts: u64) -> Result<(), KeyError> {
        for key in keys {
            let record = self.records.get(key);
            match record.and_then(|record| record.lock.as_ref()) {
                Some(lock) if lock.start_ts == start_ts => {
                    if commit_ts < lock.min_commit_ts {
                        let expired = kv::CommitTsExpired {
                            start_ts,
                            attempted_commit_ts: commit_ts,
                            key: key.clone(),
                            min_commit_ts: lock.min_commit_ts,
                        };
                        return Err(KeyError { commit_ts_expired: Some(expired), ..KeyError::default() });
                    }
                }
                _ => match record.map_or(Fate::Unknown, |record| record.fate(start_ts)) {
                    Fate::Committed(_) => {}
                    Fate::RolledBack | Fate::Unknown => {
                        return Err(retryable(format!("TxnLockNotFound start_ts={start_ts} commit_ts={commit_ts}")));
                    }
                },
            }
        }
        self.commit_locked(keys, start_ts, commit_ts);
        Ok(())
    }

    fn commit_locked(&mut self, keys: &[Key], start_ts: u64, commit_ts: u64) {
        for key in keys {
            let Some(record) = self.records.get_mut(key) else { continue };
            if let Some(lock) = record.lock.take_if(|lock| lock.start_ts == start_ts) {
                record.commit(lock, commit_ts);
            }
        }
    }

    pub(crate) fn rollback(&mut self, keys: &[Key], start_ts: u64) -> Result<(), KeyError> {
        for key in keys {
            let record = self.records.entry(key.clone()).or_default();
            if record.lock.take_if(|lock| lock.start_ts == start_ts).is_some() {
                record.mark_rolled_back(start_ts);
                continue;
            }
            match record.fate(start_ts) {
                Fate::Committed(commit_ts) => return Err(abort(format!("Committed at {commit_ts}"))),
                Fate::RolledBack => {}
                Fate::Unknown => record.mark_rolled_back(start_ts),
            }
        }
        Ok(())
    }

    /// The state of a transaction at its primary key; ends it when its lock's time is over.
    pub(crate) fn check_status(&mut self, request: &kv::CheckTxnStatusRequest) -> kv::CheckTxnStatusResponse {
        let mut answer = kv::CheckTxnStatusResponse::default();
        let record = self.records.entry(request.primary_key.clone()).or_default();
        if let Some(lock) = record.lock.as_mut().filter(|lock| lock.start_ts == request.lock_ts) {
            if physical_ms(lock.start_ts) + lock.ttl_ms < physical_ms(request.current_ts) {
                record.lock = None;
                record.mark_rolled_back(request.lock_ts);
                answer.set_action(Action::TtlExpireRollback);
                return answer;
            }
            let caller = request.caller_start_ts;
            if lock.min_commit_ts != 0 && caller != 0 && caller != u64::MAX {
                if caller >= lock.min_commit_ts {
                    lock.min_commit_ts = (caller + 1).max(request.current_ts.min(u64::MAX - 1));
                }
                answer.set_action(Action::MinCommitTsPushed);
            }
            answer.lock_ttl = lock.ttl_ms;
            answer.lock_info = Some(lock_info(&request.primary_key, lock));
            return answer;
        }
        match record.fate(request.lock_ts) {
            Fate::Committed(commit_ts) => answer.commit_version = commit_ts,
            Fate::RolledBack => {}
            Fate::Unknown if request.rollback_if_not_exist => {
                record.mark_rolled_back(request.lock_ts);
                answer.set_action(Action::LockNotExistRollback);
            }
            Fate::Unknown => {
                let unknown = kv::TxnNotFound { start_ts: request.lock_ts, primary_key: request.primary_key.clone() };
                answer.error = Some(KeyError { txn_not_found: Some(unknown), ..KeyError::default() });
            }
        }
        answer
    }

    pub(crate) fn heart_beat(&mut self, key: &[u8], start_ts: u64, ttl_ms: u64) -> Result<u64, KeyError> {
        let record = self.records.get_mut(key);
        match record.and_then(|record| record.lock.as_mut()).filter(|lock| lock.start_ts == start_ts) {
            Some(lock) => {
                lock.ttl_ms = lock.ttl_ms.max(ttl_ms);
                Ok(lock.ttl_ms)
            }
            None => {
                let unknown = kv::TxnNotFound { start_ts, primary_key: key.to_vec() };
                Err(KeyError { txn_not_found: Some(unknown), ..KeyError::default() })
            }
        }
    }

    pub(crate) fn scan_locks(&self, start: &[u8], end: &[u8], max_ts: u64, limit: usize) -> Vec<kv::LockInfo> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        within(&self.records, start, end)
            .filter_map(|(key, record)| {
                record.lock.as_ref().filter(|lock| lock.start_ts <= max_ts).map(|lock| lock_info(key, lock))
            })
            .take(limit)
            .collect()
    }

    /// The keys of a range that a transaction has locked, of `only` if that is not empty.
    pub(crate) fn locked_by(&self, start: &[u8], end: &[u8], start_ts: u64, only: &[Key]) -> Vec<Key> {
        within(&self.records, start, end)
            .filter(|(_, record)| record.lock.as_ref().is_some_and(|lock| lock.start_ts == start_ts))
            .filter(|(key, _)| only.is_empty() || only.contains(key))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Ends a transaction's locks: commits at `commit_ts`, or rolls back if it is 0.
    pub(crate) fn resolve(&mut self, keys: &[Key], start_ts: u64, commit_ts: u64) -> Result<(), KeyError> {
        if commit_ts == 0 {
            return self.rollback(keys, start_ts);
        }
        self.commit_locked(keys, start_ts, commit_ts);
        Ok(())
    }

    /// Drops versions that no read at `safe_ts` or later needs.
    pub(crate) fn collect_garbage(&mut self, safe_ts: u64) {
        self.records.retain(|_, record| {
            record.trim(safe_ts);
            let dead = record.lock.is_none()
                && record.newest().is_none_or(|(commit, _)| commit <= safe_ts)
                && record.read(u64::MAX).is_none();
            !dead
        });
    }

    /// Versions of all keys.
    pub(crate) fn versions(&self) -> usize {
        self.records.values().map(|record| record.writes.len()).sum()
    }
}

#[cfg(test)]
#[path = "mvcc_tests.rs"]
mod tests;
