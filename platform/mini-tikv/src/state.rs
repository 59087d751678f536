//! Everything a server holds, behind one lock: keys, regions, clock, journal.
//!
//! Role: applies requests and journals those that changed something.
//! Invariants: T1 to T3; a change that can't be journalled is not answered as done.
//! Failure: [`JournalError`].
//! Must never know: the wire, faults.

use crate::journal::{Change, Journal, JournalError};
use crate::mvcc::Mvcc;
use crate::pb::kvrpcpb as kv;
use crate::regions::Regions;
use crate::tso::Oracle;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A server's state.
#[derive(Debug)]
pub(crate) struct State {
    mvcc: Mvcc,
    pub(crate) regions: Regions,
    oracle: Oracle,
    journal: Option<Journal>,
    safe_point: u64,
}

/// What a journal holds besides the keys.
#[derive(Debug, Default)]
struct Replayed {
    mvcc: Mvcc,
    tso_limit_ms: u64,
    epoch: u64,
    safe_point: u64,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Replayed {
    /// Results are those of the first time; errors can't be, for only what succeeded was journalled.
    fn apply(&mut self, change: Change) {
        match change {
            Change::Prewrite(request) => drop(self.mvcc.prewrite(&request)),
            Change::Commit(request) => {
                drop(self.mvcc.commit(&request.keys, request.start_version, request.commit_version));
            }
            Change::Rollback(request) => drop(self.mvcc.rollback(&request.keys, request.start_version)),
            Change::HeartBeat(request) => {
                let (key, start_ts) = (&request.primary_lock, request.start_version);
                drop(self.mvcc.heart_beat(key, start_ts, request.advise_lock_ttl));
            }
            Change::CheckStatus(request) => drop(self.mvcc.check_status(&request)),
            Change::Resolve(request) => {
                drop(self.mvcc.resolve(&request.keys, request.start_version, request.commit_version));
            }
            Change::TsoLimit(limit_ms) => self.tso_limit_ms = limit_ms,
            Change::Epoch(epoch) => self.epoch = epoch,
            Change::SafePoint(ts) => {
                self.safe_point = ts;
                self.mvcc.collect_garbage(ts);
            }
        }
    }
}

impl State {
    /// Opens the state of a folder, or an empty one; `cut` makes the regions for an epoch.
    pub(crate) fn open(folder: Option<&Path>, cut: impl FnOnce(u64) -> Regions) -> Result<Self, JournalError> {
        let mut replayed = Replayed::default();
        let journal = folder.map(|folder| Journal::open(folder, |change| replayed.apply(change))).transpose()?;
        let mut state = Self {
            mvcc: replayed.mvcc,
            regions: cut(replayed.epoch + 1),
            oracle: Oracle::after(replayed.tso_limit_ms),
            journal,
            safe_point: replayed.safe_point,
        };
        state.keep(|| Change::Epoch(replayed.epoch + 1))?;
        Ok(state)
    }

    fn keep(&mut self, change: impl FnOnce() -> Change) -> Result<(), JournalError> {
        match &mut self.journal {
            Some(journal) => journal.write(&change()),
            None => Ok(()),
        }
    }

    /// A block of time stamps: physical part and highest logical part.
    pub(crate) fn take_stamps(&mut self, count: u64) -> Result<(u64, u64), JournalError> {
        let stamp = self.oracle.take(count, now_ms());
        if let Some(limit_ms) = self.oracle.new_limit_ms() {
            self.keep(|| Change::TsoLimit(limit_ms))?;
        }
        Ok(stamp)
    }

    pub(crate) fn jump(&mut self, by_ms: u64) {
        self.oracle.jump(by_ms);
    }

    pub(crate) fn raise_epoch(&mut self) -> Result<(), JournalError> {
        self.regions.raise_epoch();
        let epoch = self.regions.epoch();
        self.keep(|| Change::Epoch(epoch))
    }

    pub(crate) fn raise_safe_point(&mut self, ts: u64) -> Result<u64, JournalError> {
        if ts > self.safe_point {
            self.safe_point = ts;
            self.mvcc.collect_garbage(ts);
            self.keep(|| Change::SafePoint(ts))?;
        }
        Ok(self.safe_point)
    }

    pub(crate) fn versions(&self) -> usize {
        self.mvcc.versions()
    }

    pub(crate) fn keys(&self) -> &Mvcc {
        &self.mvcc
    }

    pub(crate) fn prewrite(&mut self, request: kv::PrewriteRequest) -> Result<Vec<kv::KeyError>, JournalError> {
        let errors = self.mvcc.prewrite(&request);
        if errors.is_empty() {
            self.keep(|| Change::Prewrite(request))?;
        }
        Ok(errors)
    }

    pub(crate) fn commit(&mut self, request: kv::CommitRequest) -> Result<Option<kv::KeyError>, JournalError> {
        let outcome = self.mvcc.commit(&request.keys, request.start_version, request.commit_version);
        if outcome.is_ok() {
            self.keep(|| Change::Commit(request))?;
        }
        Ok(outcome.err())
    }

    pub(crate) fn rollback(&mut self, request: kv::BatchRollbackRequest) -> Result<Option<kv::KeyError>, JournalError> {
        let outcome = self.mvcc.rollback(&request.keys, request.start_version);
        self.keep(|| Change::Rollback(request))?;
        Ok(outcome.err())
    }

    pub(crate) fn heart_beat(
        &mut self,
        request: kv::TxnHeartBeatRequest,
    ) -> Result<Result<u64, kv::KeyError>, JournalError> {
        let outcome = self.mvcc.heart_beat(&request.primary_lock, request.start_version, request.advise_lock_ttl);
        self.keep(|| Change::HeartBeat(request))?;
        Ok(outcome)
    }

    pub(crate) fn check_status(
        &mut self,
        request: kv::CheckTxnStatusRequest,
    ) -> Result<kv::CheckTxnStatusResponse, JournalError> {
        let answer = self.mvcc.check_status(&request);
        self.keep(|| Change::CheckStatus(request))?;
        Ok(answer)
    }

    /// Ends the locks of each transaction of the request within the bounds.
    pub(crate) fn resolve(
        &mut self,
        request: &kv::ResolveLockRequest,
        (start, end): (&[u8], &[u8]),
    ) -> Result<Option<kv::KeyError>, JournalError> {
        let mut ended: Vec<_> = request.txn_infos.iter().map(|info| (info.txn, info.status)).collect();
        if ended.is_empty() {
            ended.push((request.start_version, request.commit_version));
        }
        for (start_version, commit_version) in ended {
            let keys = self.mvcc.locked_by(start, end, start_version, &request.keys);
            if let Err(error) = self.mvcc.resolve(&keys, start_version, commit_version) {
                return Ok(Some(error));
            }
            let done = kv::ResolveLockRequest { start_version, commit_version, keys, ..Default::default() };
            self.keep(|| Change::Resolve(done))?;
        }
        Ok(None)
    }
}
