//! What the store does, for metrics.
//!
//! Invariants: counters only grow; reading them takes no lock.
//! Failure: none.
//! Must never know: who shows them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A latency: how often, how long in all, how long at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyMs {
    /// How often.
    pub count: u64,
    /// In all.
    pub sum_ms: u64,
    /// At most.
    pub max_ms: u64,
}

/// What a [`TikvStore`](crate::TikvStore) did and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TikvStats {
    /// Calls of the trait.
    pub calls: u64,
    /// Calls that failed because the store was away or overloaded.
    pub unavailable: u64,
    /// Transactions that were repeated because another wrote first.
    pub conflicts: u64,
    /// Steps that were repeated for another reason.
    pub retries: u64,
    /// Steps that took too long.
    pub timeouts: u64,
    /// Commits whose outcome was not known at first.
    pub unknown_outcomes: u64,
    /// Commits whose outcome could not be settled within the call.
    pub unsettled_outcomes: u64,
    /// Outcomes that are still being settled.
    pub doubts: u64,
    /// Times the client was built anew.
    pub reconnects: u64,
    /// Time to get a time stamp.
    pub timestamps: LatencyMs,
    /// Time of a commit, settling included.
    pub commits: LatencyMs,
    /// Looks for changes of other processes.
    pub polls: u64,
    /// Time since the last one that succeeded.
    pub poll_lag_ms: u64,
    /// Age of the oldest change that the last one brought.
    pub change_lag_ms: u64,
    /// Times the watchers were told to read everything again.
    pub rescans: u64,
    /// Sessions that this process ended because they were not renewed.
    pub reaped_sessions: u64,
    /// Sessions at the last look.
    pub sessions: u64,
    /// Calls that wait for a lane, a slot to read or the store's return.
    pub waiting: u64,
    /// The store is believed to be reachable.
    pub available: bool,
}

/// A latency that many tasks add to.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    count: AtomicU64,
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

impl Latency {
    pub(crate) fn add(&self, took: Duration) {
        let took_us = took.as_micros() as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took_us, Ordering::Relaxed);
        self.max_us.fetch_max(took_us, Ordering::Relaxed);
    }

    fn read(&self) -> LatencyMs {
        LatencyMs {
            count: self.count.load(Ordering::Relaxed),
            sum_ms: self.sum_us.load(Ordering::Relaxed) / 1000,
            max_ms: self.max_us.load(Ordering::Relaxed).div_ceil(1000),
        }
    }
}

/// A number that many tasks raise.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`TikvStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: Counter,
    pub(crate) unavailable: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) retries: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) unknown_outcomes: Counter,
    pub(crate) unsettled_outcomes: Counter,
    pub(crate) doubts: Counter,
    pub(crate) reconnects: Counter,
    pub(crate) timestamps: Latency,
    pub(crate) commits: Latency,
    pub(crate) polls: Counter,
    pub(crate) change_lag_ms: Counter,
    pub(crate) rescans: Counter,
    pub(crate) reaped_sessions: Counter,
    pub(crate) sessions: Counter,
    pub(crate) waiting: Counter,
    pub(crate) available: AtomicBool,
}

impl Counters {
    pub(crate) fn read(&self, poll_lag_ms: u64) -> TikvStats {
        TikvStats {
            calls: self.calls.get(),
            unavailable: self.unavailable.get(),
            conflicts: self.conflicts.get(),
            retries: self.retries.get(),
            timeouts: self.timeouts.get(),
            unknown_outcomes: self.unknown_outcomes.get(),
            unsettled_outcomes: self.unsettled_outcomes.get(),
            doubts: self.doubts.get(),
            reconnects: self.reconnects.get(),
            timestamps: self.timestamps.read(),
            commits: self.commits.read(),
            polls: self.polls.get(),
            poll_lag_ms,
            change_lag_ms: self.change_lag_ms.get(),
            rescans: self.rescans.get(),
            reaped_sessions: self.reaped_sessions.get(),
            sessions: self.sessions.get(),
            waiting: self.waiting.get(),
            available: self.available.load(Ordering::Relaxed),
        }
    }
}
