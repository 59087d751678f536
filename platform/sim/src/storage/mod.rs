//! One region's storage in one process from a seed: owners of a log, bookies, autorecovery and metadata.
//!
//! Role: the decisions are those of the real cores: the ledger's writer, its record updates, recovery, re-replication and
//! reads; the placement; holdings; the auditor and the planner of autorecovery; the log's layout, acknowledgements and
//! trimming. Simulated are the clock, disks ([`bookie`]: what is synced and what is not), the network ([`net`]: loss, delay,
//! reordering, partitions), metadata ([`metadata`]: lost answers, outages) and processes (crashes, pauses).
//! Invariants: D1 a seed is a run; D2 the checkers ([`oracle`]) keep their own books; D3 every checker is proven by a bug
//! that can be planted ([`Bug`]).
//! Failure: a run ends with its violations; the seed plays it again.
//! Must never know: sockets, real time.

mod autorecovery;
mod bookie;
mod broker;
mod bug;
mod chaos;
mod coverage;
mod cursor;
mod jobs;
mod metadata;
mod net;
mod oracle;
mod plan;
mod settle;
mod world;
mod writer;

pub use bug::Bug;
pub use coverage::StorageCoverage;
pub use plan::StoragePlan;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Violations of many runs that are kept.
const KEPT: usize = 20;

/// What came of a run.
#[derive(Debug)]
pub struct StorageOutcome {
    /// What the checkers found.
    pub violations: Vec<String>,
    /// What happened.
    pub coverage: StorageCoverage,
    /// Everything that happened, if it was asked for.
    pub trace: Vec<String>,
    /// When it ended on the simulated clock, ms.
    pub ended_ms: u64,
}

/// Plays one seed.
pub fn run_storage(seed: u64, bug: Bug, trace: bool) -> StorageOutcome {
    let mut world = world::World::new(StoragePlan::of(seed), bug, trace);
    world.run();
    StorageOutcome {
        violations: std::mem::take(&mut world.oracle.violations),
        coverage: world.coverage,
        ended_ms: world.now_ms(),
        trace: world.trace.unwrap_or_default(),
    }
}

/// What came of many runs.
#[derive(Debug, Default)]
pub struct StorageReport {
    /// Runs.
    pub runs: u64,
    /// Runs with a violation.
    pub violated: u64,
    /// The first violation of the first of them, with the seed.
    pub first: Vec<(u64, String)>,
    /// What happened in all of them.
    pub coverage: StorageCoverage,
    /// Simulated time of all of them, ms.
    pub simulated_ms: u64,
}

/// Plays `count` seeds from `from` on, on `threads` threads; stops early after `stop_after` violations (0 = never).
pub fn run_many_storage(from: u64, count: u64, bug: Bug, threads: usize, stop_after: u64) -> StorageReport {
    let next = AtomicU64::new(from);
    let report = Mutex::new(StorageReport::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + count {
                return;
            }
            let outcome = run_storage(seed, bug, false);
            let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            report.runs += 1;
            report.coverage.add(&outcome.coverage);
            report.simulated_ms += outcome.ended_ms;
            if let Some(first) = outcome.violations.into_iter().next() {
                report.violated += 1;
                report.first.push((seed, first));
                report.first.sort_unstable();
                report.first.truncate(KEPT);
                if stop_after != 0 && report.violated >= stop_after {
                    next.store(from + count, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
