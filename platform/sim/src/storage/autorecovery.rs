//! Workers: the auditor's look and the planner, as the shell of autorecovery drives them. No claims: two workers at one
//! ledger have to be harmless.

use super::jobs::Job;
use super::jobs::Wanted;
use super::metadata::{Meta, Seen};
use super::net::{Address, Proc};
use super::world::World;
use meridian_autorecovery::auditor::{Decision, look};
use meridian_autorecovery::planner::{Outcome, Task};
use meridian_ledger::LedgerError;
use meridian_ledger::replicate::Replicated;
use meridian_types::LedgerId;

/// How long a bookie may be missing.
pub(super) const LOST_GRACE_MS: u64 = 350;

impl World {
    pub(super) fn tick_worker(&mut self, proc: Proc) {
        let looking = self.procs[proc].jobs.values().any(|job| matches!(job, Job::Call));
        if !looking && self.rng.hits(200) {
            let to = self.begin(proc, Job::Call);
            self.ask_metadata(to, Meta::Look);
        }
        loop {
            let now_ms = self.now_ms();
            let Some(task) = self.planner(proc).and_then(|planner| planner.next(now_ms)) else { return };
            self.begin_replication(proc, task);
        }
    }

    pub(super) fn seen(&mut self, proc: Proc, seen: Option<Seen>) {
        let Some(seen) = seen else { return };
        let now_ms = self.now_ms();
        for decision in look(now_ms, LOST_GRACE_MS, &seen.scene) {
            let (bookie, mark) = match decision {
                Decision::Mark(bookie, mark) => (bookie, Some(mark)),
                Decision::Unmark(bookie) => (bookie, None),
                Decision::Held { .. } => continue,
            };
            self.coverage.marked += u64::from(mark.is_some());
            self.note(|| format!("worker {proc} marks {bookie}: {mark:?}"));
            let from = Address { proc, life: self.procs[proc].life, job: 0 };
            self.ask_metadata(from, Meta::Mark(bookie, mark));
        }
        let due = seen.scene.leaving.iter().filter(|(_, mark)| mark.is_due(now_ms)).map(|(bookie, _)| bookie);
        let due: Vec<LedgerId> = due.filter_map(|bookie| seen.holdings.get(bookie)).flatten().copied().collect();
        if let Some(planner) = self.planner(proc) {
            planner.offer(due);
        }
        self.tell_writers();
    }

    /// Brokers follow the marks: their writers replace bookies that leave.
    fn tell_writers(&mut self) {
        let now_ms = self.now_ms();
        let due = self.metadata.leaving.iter().filter(|(_, mark)| mark.is_due(now_ms));
        let leaving: Vec<_> = due.map(|(bookie, _)| bookie.clone()).collect();
        for proc in 0..self.plan.brokers {
            let paused = self.procs[proc].paused_until_ms > now_ms;
            let Some(to) = self.broker(proc).and_then(|broker| broker.writer).filter(|_| !paused) else { continue };
            if let Some(Job::Writer(job)) = self.procs[proc].jobs.get_mut(&to.job) {
                job.machine.leave(&leaving);
                self.pump(to);
            }
        }
    }

    fn task_over(&mut self, proc: Proc, ledger: LedgerId, outcome: Outcome) {
        let now_ms = self.now_ms();
        if let Some(planner) = self.planner(proc) {
            planner.finished(now_ms, ledger, outcome);
        }
    }

    pub(super) fn replicated(&mut self, proc: Proc, task: Task, result: Result<Replicated, LedgerError>) {
        let ledger = task.ledger_id;
        let outcome = match result {
            Ok(Replicated { left_open: true, can_replace: true, .. }) if task.close => {
                self.begin_recovery(proc, ledger, Wanted::Worker);
                return;
            }
            Ok(Replicated { left_open: true, can_replace, .. }) => Outcome::Open { can_replace },
            Ok(_) | Err(LedgerError::NoSuchLedger(_)) => Outcome::Done,
            Err(error) => {
                self.note(|| format!("worker {proc}: ledger {ledger} was not replicated: {error}"));
                Outcome::Failed
            }
        };
        self.task_over(proc, ledger, outcome);
    }

    /// An open ledger without a writer was closed: now it can be replicated.
    pub(super) fn ledger_closed(&mut self, proc: Proc, ledger: LedgerId, closed: bool) {
        if !closed {
            return self.task_over(proc, ledger, Outcome::Failed);
        }
        self.coverage.closed_by_autorecovery += 1;
        self.begin_replication(proc, Task { ledger_id: ledger, close: false });
    }
}
