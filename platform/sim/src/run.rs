//! One run, and many.

use crate::coverage::Coverage;
use crate::plan::Plan;
use crate::planted::Planted;
use crate::world::World;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Violations of many runs that are kept.
const KEPT: usize = 20;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What the checkers found.
    pub violations: Vec<String>,
    /// What happened.
    pub coverage: Coverage,
    /// Everything that happened, if it was asked for.
    pub trace: Vec<String>,
    /// When it ended on the simulated clock, ms.
    pub ended_ms: u64,
}

/// Plays one seed.
pub fn run(seed: u64, planted: Planted, trace: bool) -> Outcome {
    let mut world = World::new(Plan::of(seed), planted, trace);
    world.run();
    Outcome {
        violations: std::mem::take(&mut world.oracle.violations),
        coverage: world.coverage,
        ended_ms: world.now_ms(),
        trace: world.trace.unwrap_or_default(),
    }
}

/// What came of many runs.
#[derive(Debug, Default)]
pub struct Report {
    /// Runs.
    pub runs: u64,
    /// Runs with a violation.
    pub violated: u64,
    /// The first violation of the first of them, with the seed.
    pub first: Vec<(u64, String)>,
    /// What happened in all of them.
    pub coverage: Coverage,
    /// Simulated time of all of them, ms.
    pub simulated_ms: u64,
}

/// Plays `count` seeds from `from` on, on `threads` threads; stops early after `stop_after` violations (0 = never).
pub fn run_many(from: u64, count: u64, planted: Planted, threads: usize, stop_after: u64) -> Report {
    let next = AtomicU64::new(from);
    let report = Mutex::new(Report::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + count {
                return;
            }
            let outcome = run(seed, planted, false);
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
