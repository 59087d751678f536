//! The lanes of this process in the log of changes, and who may write next.
//!
//! Role: at most [`LANES`] transactions run at once, each alone in its lane. A lane belongs to one process; it is born
//! with its first entry and named after that transaction's start.
//! Invariants: K3 a lane's head is written by one transaction at a time; a lane whose last outcome is not known is
//! never used again; a lane that was idle for long is left behind before anybody may take it away.
//! Failure: too many waiting writers, or none that ends in time, is `None`.
//! Must never know: TiKV's interface.

use crate::format::Head;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Writers at once.
pub(crate) const LANES: usize = 32;
/// Writers that may wait for a lane.
const MAX_WAITING_WRITERS: usize = 4096;
/// How long an entry of the log is kept.
pub(crate) const LOG_RETENTION_MS: u64 = 600_000;
/// Entries of a lane that are kept at most.
const MAX_LANE_ENTRIES: usize = 16_384;
/// Old entries deleted with each new one.
const TRIMMED_AT_ONCE: usize = 4;
/// A lane that was idle for longer is left behind.
const MAX_IDLE: Duration = Duration::from_secs(1200);
/// A lane whose head is older may be taken away by anyone.
pub(crate) const LANE_LIFE_MS: u64 = 1_800_000;

/// What a transaction writes to its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneWrite {
    pub(crate) lane: u64,
    pub(crate) head: Head,
    /// Numbers of the entries to delete.
    pub(crate) trimmed: Vec<u64>,
}

/// One lane.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// `None` until the first entry.
    id: Option<u64>,
    last: u64,
    /// Number and time of the entries that are kept.
    entries: VecDeque<(u64, u64)>,
    used: Option<Instant>,
}

impl Lane {
    /// What the transaction that starts at `version`, which is at `now_ms` of the store's clock, writes here.
    pub(crate) fn next(&mut self, version: u64, now_ms: u64) -> LaneWrite {
        if self.used.is_some_and(|used| used.elapsed() > MAX_IDLE) {
            *self = Self::default();
        }
        let old = |(index, (_, at_ms)): &(usize, &(u64, u64))| {
            at_ms + LOG_RETENTION_MS < now_ms || self.entries.len() - index >= MAX_LANE_ENTRIES
        };
        let trimmed: Vec<_> =
            self.entries.iter().enumerate().take_while(old).take(TRIMMED_AT_ONCE).map(|(_, entry)| entry.0).collect();
        let last = self.last + 1;
        let first = self.entries.get(trimmed.len()).map_or(last, |(number, _)| *number);
        LaneWrite { lane: self.id.unwrap_or(version), head: Head { last, version, first }, trimmed }
    }

    /// The transaction of this write was committed.
    pub(crate) fn committed(&mut self, write: &LaneWrite, now_ms: u64) {
        self.id = Some(write.lane);
        self.last = write.head.last;
        self.entries.drain(..write.trimmed.len());
        self.entries.push_back((write.head.last, now_ms));
        self.used = Some(Instant::now());
    }
}

/// All lanes that are free.
#[derive(Debug)]
pub(crate) struct Lanes {
    free: Mutex<Vec<Lane>>,
    permits: Semaphore,
    waiting: Semaphore,
}

/// A lane that one writer has; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct LaneGuard<'a> {
    lanes: &'a Lanes,
    lane: Lane,
    _permit: tokio::sync::SemaphorePermit<'a>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let free = std::iter::repeat_with(Lane::default).take(LANES).collect();
        Self {
            free: Mutex::new(free),
            permits: Semaphore::new(LANES),
            waiting: Semaphore::new(LANES + MAX_WAITING_WRITERS),
        }
    }

    /// A lane, or `None` if there is none until the deadline.
    pub(crate) async fn take(&self, deadline: Instant) -> Option<LaneGuard<'_>> {
        let _waits = self.waiting.try_acquire().ok()?;
        let permit = tokio::time::timeout_at(deadline, self.permits.acquire()).await.ok()?.ok()?;
        let lane = self.free.lock().pop().unwrap_or_default();
        Some(LaneGuard { lanes: self, lane, _permit: permit })
    }
}

impl LaneGuard<'_> {
    pub(crate) fn lane(&mut self) -> &mut Lane {
        &mut self.lane
    }

    /// Leaves the lane behind: nobody writes to it again.
    pub(crate) fn abandon(&mut self) {
        self.lane = Lane::default();
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        self.lanes.free.lock().push(std::mem::take(&mut self.lane));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_counts_and_trims() {
        let mut lane = Lane::default();
        let first = lane.next(100, 0);
        assert_eq!(first, LaneWrite { lane: 100, head: Head { last: 1, version: 100, first: 1 }, trimmed: vec![] });
        assert_eq!(lane.next(101, 0).lane, 101, "not committed: named after the next try");
        lane.committed(&first, 0);
        for number in 2..=6 {
            let write = lane.next(100 + number, number);
            assert_eq!((write.lane, write.head.last, write.head.first), (100, number, 1));
            lane.committed(&write, number);
        }
        let late = lane.next(900, LOG_RETENTION_MS + 6);
        assert_eq!((late.trimmed.clone(), late.head.first), (vec![1, 2, 3, 4], 5));
        lane.committed(&late, LOG_RETENTION_MS + 6);
        assert_eq!(lane.next(901, LOG_RETENTION_MS + 6).trimmed, [5], "the entry at its limit is kept");
    }

    #[test]
    fn a_lane_is_bounded() {
        let mut lane = Lane::default();
        for number in 0..2 * MAX_LANE_ENTRIES as u64 {
            let write = lane.next(number, 0);
            lane.committed(&write, 0);
        }
        assert!(lane.entries.len() <= MAX_LANE_ENTRIES, "{}", lane.entries.len());
    }

    #[tokio::test]
    async fn only_so_many_write_at_once() {
        let lanes = Lanes::new();
        let soon = || Instant::now() + Duration::from_millis(20);
        let mut held = Vec::new();
        for _ in 0..LANES {
            held.push(lanes.take(soon()).await.unwrap());
        }
        assert!(lanes.take(soon()).await.is_none());
        held.pop();
        assert!(lanes.take(soon()).await.is_some());
    }
}
