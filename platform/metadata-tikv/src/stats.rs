//! What the store does, for metrics.
//!
//! Invariants: counters only grow; reading them takes no lock.
//! Failure: none.
//! Must never know: who shows them.

use meridian_metadata::Figure;
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
    /// Calls that these transactions carried: those that wait together share one.
    pub written: u64,
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

type Read = fn(&TikvStats) -> f64;

/// What is shown of each figure.
const FIGURES: &[(&str, &str, Read)] = &[
    ("tikv_available", "1 while TiKV is believed to be reachable.", |s| f64::from(u8::from(s.available))),
    ("tikv_calls_total", "Calls of the metadata store.", |s| s.calls as f64),
    ("tikv_unavailable_total", "Calls that failed because TiKV was away or overloaded.", |s| s.unavailable as f64),
    ("tikv_conflicts_total", "Transactions repeated because another wrote first.", |s| s.conflicts as f64),
    ("tikv_retries_total", "Steps repeated for another reason.", |s| s.retries as f64),
    ("tikv_timeouts_total", "Steps that took too long.", |s| s.timeouts as f64),
    ("tikv_unknown_outcomes_total", "Commits read back to learn their outcome.", |s| s.unknown_outcomes as f64),
    ("tikv_unsettled_outcomes_total", "Commits not settled within their call.", |s| s.unsettled_outcomes as f64),
    ("tikv_doubts", "Outcomes that are still being settled.", |s| s.doubts as f64),
    ("tikv_reconnects_total", "Times the client was built anew.", |s| s.reconnects as f64),
    ("tikv_timestamps_total", "Time stamps fetched.", |s| s.timestamps.count as f64),
    ("tikv_timestamp_seconds_total", "Time spent fetching them.", |s| s.timestamps.sum_ms as f64 / 1e3),
    ("tikv_timestamp_max_seconds", "Longest time to fetch one.", |s| s.timestamps.max_ms as f64 / 1e3),
    ("tikv_commits_total", "Transactions of the log of changes.", |s| s.commits.count as f64),
    ("tikv_commit_seconds_total", "Time spent in them.", |s| s.commits.sum_ms as f64 / 1e3),
    ("tikv_commit_max_seconds", "Longest of them.", |s| s.commits.max_ms as f64 / 1e3),
    ("tikv_written_calls_total", "Calls that these transactions carried.", |s| s.written as f64),
    ("tikv_polls_total", "Looks for changes of other processes.", |s| s.polls as f64),
    ("tikv_poll_lag_seconds", "Time since the last one that succeeded.", |s| s.poll_lag_ms as f64 / 1e3),
    ("tikv_change_lag_seconds", "Age of the oldest change of the last one.", |s| s.change_lag_ms as f64 / 1e3),
    ("tikv_rescans_total", "Times that watchers had to read everything again.", |s| s.rescans as f64),
    ("tikv_sessions", "Sessions at the last look.", |s| s.sessions as f64),
    ("tikv_reaped_sessions_total", "Sessions ended here because nobody renewed them.", |s| s.reaped_sessions as f64),
    ("tikv_waiting_calls", "Calls that wait for a lane, a slot or TiKV's return.", |s| s.waiting as f64),
];

impl TikvStats {
    /// For metrics.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        FIGURES.iter().map(|(name, help, read)| Figure { name, help, value: read(self) }).collect()
    }
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
    pub(crate) written: Counter,
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
            written: self.written.get(),
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
