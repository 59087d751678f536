//! The shells of the cores: each job is a machine, its effects become messages, and answers go back to it.
//!
//! Invariants: J1 a job that is over leaves its process, and answers that come later meet nobody; J2 the rules between
//! machine and world are those of the real shells (a replacement is chosen among registered bookies that stay; digests
//! are checked where the real reader checks them).

use super::bug::Bug;
use super::metadata::{Meta, MetaAnswer};
use super::net::{Address, Answer, Ask, Token};
use super::world::World;
use super::writer::WriterJob;
use meridian_autorecovery::planner::Task;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, ReadEntry, ReadRequest};
use meridian_ledger::layout::SlotSet;
use meridian_ledger::reader::machine::{ReadMachine, Step, replica_order};
use meridian_ledger::recovery::machine::{RecoveryEffect, RecoveryMachine, RecoverySettings};
use meridian_ledger::replicate::machine::{ReplicateEffect, ReplicateMachine};
use meridian_ledger::replicate::{ReplicateSettings, Replicated, Work};
use meridian_ledger::writer::words::Change;
use meridian_ledger::{LedgerError, LedgerRecord, LedgerState};
use meridian_placement::{Candidate, Rule, Shape, replace};
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId, LedgerId};

/// What a process is doing.
pub(super) enum Job {
    Writer(Box<WriterJob>),
    Recovery(Box<RecoveryJob>),
    Replicate(Box<ReplicateJob>),
    Read(Box<ReadJob>),
    /// A metadata call of a broker or worker itself.
    Call,
}

/// Who wanted a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A broker that takes the log over.
    Broker,
    /// A worker: the ledger is replicated afterwards.
    Worker,
}

pub(super) struct RecoveryJob {
    pub machine: RecoveryMachine,
    pub ledger: LedgerId,
    pub wanted: Wanted,
    /// The record as last read.
    known: Option<LedgerRecord>,
    result: Option<Result<LedgerRecord, LedgerError>>,
}

pub(super) struct ReplicateJob {
    pub machine: ReplicateMachine,
    pub ledger: LedgerId,
    pub task: Task,
    result: Option<Result<Replicated, LedgerError>>,
}

/// A read of one entry.
pub(super) struct ReadJob {
    pub machine: ReadMachine,
    pub ledger: LedgerId,
    pub entry: EntryId,
    ensemble: Vec<BookieId>,
    /// Whom to ask next.
    next: Option<usize>,
}

impl World {
    /// The ensemble with as many failed members replaced as possible.
    pub(super) fn replacement(&mut self, change: &Change) -> Result<Vec<BookieId>, u32> {
        let takers = self.takers();
        let available = takers.len() as u32;
        let one = |id: BookieId| Candidate { id, location: Location::default(), last_resort: false };
        let members: Vec<Candidate> = change.ensemble.iter().cloned().map(one).collect();
        let failed: Vec<usize> = change.failed.iter().collect();
        let shape = Shape { ensemble_size: change.layout.ensemble_size(), write_quorum: change.layout.write_quorum() };
        let seed = self.rng.next();
        replace(&members, &failed, takers.into_iter().map(one).collect(), shape, Rule::default(), seed).ok_or(available)
    }

    pub(super) fn begin_recovery(&mut self, proc: usize, ledger: LedgerId, wanted: Wanted) -> Address {
        let times = self.times();
        let settings = RecoverySettings {
            times,
            retry_ms: times.retry_ms,
            deadline_ms: self.now_ms() + 3_000,
            batch_entries: 4,
            batch_bytes: 200,
        };
        let machine = RecoveryMachine::new(ledger, settings);
        self.note(|| format!("process {proc} recovers ledger {ledger}"));
        self.begin(proc, Job::Recovery(Box::new(RecoveryJob { machine, ledger, wanted, known: None, result: None })))
    }

    pub(super) fn begin_replication(&mut self, proc: usize, task: Task) -> Address {
        let now_ms = self.now_ms();
        let due = self.metadata.leaving.iter().filter(|(_, mark)| mark.is_due(now_ms));
        let work = Work { leaving: due.map(|(id, _)| id.clone()).collect(), ..Work::default() };
        let settings = ReplicateSettings {
            batch_entries: 3,
            batch_bytes: 1 << 20,
            runs_in_flight: 2,
            retry_ms: 60,
            patience_ms: 600,
            salt: self.rng.next(),
        };
        let machine = ReplicateMachine::new(task.ledger_id, work, settings, now_ms);
        self.begin(proc, Job::Replicate(Box::new(ReplicateJob { machine, ledger: task.ledger_id, task, result: None })))
    }

    /// Reads one entry as the reader does: one replica after the other.
    pub(super) fn begin_read(
        &mut self,
        proc: usize,
        record: &LedgerRecord,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Address {
        let (ensemble, _) = record.ensemble_of(entry);
        let ensemble = ensemble.bookies.clone();
        let order = replica_order(record.layout, ledger, entry, SlotSet::EMPTY);
        let mut machine = ReadMachine::new(ledger, entry, order);
        let first = machine.next_member();
        let to = self.begin(proc, Job::Read(Box::new(ReadJob { machine, ledger, entry, ensemble, next: None })));
        if let Some(slot) = first {
            self.ask_read(to, slot);
        }
        to
    }

    fn ask_read(&mut self, to: Address, slot: usize) {
        let Some(Job::Read(job)) = self.procs[to.proc].jobs.get(&to.job) else { return };
        let request = ReadRequest {
            ledger_id: job.ledger,
            first_entry_id: job.entry,
            max_entries: 1,
            max_bytes: 1,
            gaps_allowed: false,
            fence: false,
        };
        let bookie = job.ensemble[slot].clone();
        self.ask_bookie(to, &bookie, Token::Member { round: 0, slot }, Ask::Read(request));
    }

    pub(super) fn ask_bookie(&mut self, from: Address, id: &BookieId, token: Token, ask: Ask) {
        if let Some(at) = self.bookie_at(id) {
            self.ask(from, at, token, ask);
        }
    }

    /// Takes a job out, gives it to `act`, and puts it back unless it is over; then its effects are carried out.
    fn with_job(&mut self, to: Address, act: impl FnOnce(&mut Self, &mut Job) -> bool) {
        let Some(mut job) = self.procs[to.proc].jobs.remove(&to.job) else { return };
        let over = act(self, &mut job);
        // What it did may have ended its process.
        if !over && self.is_alive(to) {
            self.procs[to.proc].jobs.insert(to.job, job);
            self.pump(to);
        }
    }

    pub(super) fn tick_job(&mut self, to: Address) {
        let now_ms = self.now_ms();
        self.with_job(to, |_, job| {
            match job {
                Job::Writer(job) => job.machine.tick(now_ms),
                Job::Recovery(job) => job.machine.tick(now_ms),
                Job::Replicate(job) => job.machine.tick(now_ms),
                Job::Read(_) | Job::Call => {}
            }
            false
        });
    }

    pub(super) fn timed_out(&mut self, to: Address, token: Token, reads: bool) {
        let late = || BookieError::Timeout(1);
        let answer = if reads { Answer::Read(Err(late())) } else { Answer::Fenced(Err(late())) };
        self.answered_by(to, None, token, answer);
    }

    pub(super) fn answered(&mut self, to: Address, bookie: usize, token: Token, answer: Answer) {
        let id = self.bookies[bookie].id.clone();
        self.answered_by(to, Some(id), token, answer);
    }

    fn answered_by(&mut self, to: Address, bookie: Option<BookieId>, token: Token, answer: Answer) {
        let now_ms = self.now_ms();
        let lying = self.bug == Bug::ErrorsCountAsMissing;
        self.with_job(to, |world, job| {
            match (job, answer, token) {
                (job, Answer::Added(results), _) => {
                    if let Some(id) = bookie {
                        give_results(job, now_ms, &id, results);
                    }
                }
                (Job::Recovery(job), Answer::Fenced(result), Token::Member { round, slot }) => {
                    job.machine.fenced(now_ms, round, slot, result);
                }
                (Job::Recovery(job), Answer::Read(mut result), Token::Member { round, slot }) => {
                    if lying && matches!(result, Err(BookieError::Unavailable(_) | BookieError::Timeout(_))) {
                        result = Err(BookieError::NoSuchEntry);
                    }
                    job.machine.answered(now_ms, round, slot, result);
                }
                (Job::Replicate(job), Answer::Read(result), Token::Member { round, slot }) => {
                    job.machine.answered(now_ms, round, slot, result);
                }
                (Job::Read(job), Answer::Read(result), Token::Member { slot, .. }) => {
                    return world.read_answered(to, job, slot, result);
                }
                _ => {}
            }
            false
        });
        self.go_on_reading(to);
    }

    /// Answers whether the read is over.
    fn read_answered(
        &mut self,
        to: Address,
        job: &mut ReadJob,
        slot: usize,
        result: Result<Vec<ReadEntry>, BookieError>,
    ) -> bool {
        let error = match result {
            Ok(entries) => {
                let payload = entries.into_iter().next().map(|entry| entry.payload).unwrap_or_default();
                self.check_read(job.ledger, job.entry, &payload);
                self.read_ended(to.proc, job.ledger, job.entry, true);
                return true;
            }
            Err(error) => error,
        };
        match job.machine.failed(job.ensemble[slot].clone(), error) {
            Step::Failed(_) => {
                self.read_ended(to.proc, job.ledger, job.entry, false);
                true
            }
            Step::Ask(slot) => {
                job.next = Some(slot);
                false
            }
            Step::Wait => false,
        }
    }

    fn go_on_reading(&mut self, to: Address) {
        let next = match self.procs[to.proc].jobs.get_mut(&to.job) {
            Some(Job::Read(job)) => job.next.take(),
            _ => None,
        };
        if let Some(slot) = next {
            self.ask_read(to, slot);
        }
    }

    pub(super) fn meta_answered(&mut self, to: Address, answer: MetaAnswer) {
        let now_ms = self.now_ms();
        if matches!(self.procs[to.proc].jobs.get(&to.job), Some(Job::Call)) {
            self.procs[to.proc].jobs.remove(&to.job);
            return self.call_answered(to.proc, answer);
        }
        self.with_job(to, |world, job| {
            match (job, answer) {
                (Job::Writer(job), MetaAnswer::Ledger(result)) => world.update_loaded(to, job, result),
                (Job::Writer(job), MetaAnswer::Stored(outcome)) => world.update_stored(to, job, outcome),
                (Job::Recovery(job), MetaAnswer::Ledger(result)) => {
                    if let Ok((record, _)) = &result {
                        job.known = Some(record.clone());
                    }
                    job.machine.loaded(now_ms, result);
                }
                (Job::Recovery(job), MetaAnswer::Stored(outcome)) => {
                    // After the mark the stored record differs from the one read in its state alone.
                    if let (meridian_ledger::record::Stored::Done(_), Some(known)) = (&outcome, &mut job.known) {
                        known.state = LedgerState::InRecovery;
                    }
                    job.machine.stored(now_ms, outcome);
                }
                (Job::Replicate(job), MetaAnswer::Ledger(result)) => {
                    job.machine.loaded(now_ms, world.open_end_as_closed(result));
                }
                (Job::Replicate(job), MetaAnswer::Stored(outcome)) => job.machine.stored(now_ms, outcome),
                _ => {}
            }
            false
        });
    }

    /// For [`Bug::OpenEndIsMoved`].
    fn open_end_as_closed(
        &self,
        result: Result<(LedgerRecord, meridian_metadata::Version), LedgerError>,
    ) -> Result<(LedgerRecord, meridian_metadata::Version), LedgerError> {
        let (mut record, version) = result?;
        if self.bug == Bug::OpenEndIsMoved && record.state == LedgerState::Open {
            record.close(EntryId(record.last_ensemble().first.0 - 1), 0, true);
        }
        Ok((record, version))
    }

    /// Carries out what a job's machine decided, until it decides nothing more.
    pub(super) fn pump(&mut self, to: Address) {
        loop {
            let Some(mut job) = self.procs[to.proc].jobs.remove(&to.job) else { return };
            let (moved, over) = match &mut job {
                Job::Writer(job) => self.pump_writer(to, job),
                Job::Recovery(job) => self.pump_recovery(to, job),
                Job::Replicate(job) => self.pump_replication(to, job),
                Job::Read(_) | Job::Call => (false, false),
            };
            if over || !self.is_alive(to) {
                return self.job_over(to, job);
            }
            self.procs[to.proc].jobs.insert(to.job, job);
            if !moved {
                return;
            }
        }
    }

    /// A job has ended: whoever wanted it goes on.
    fn job_over(&mut self, to: Address, job: Job) {
        if !self.is_alive(to) {
            return;
        }
        match job {
            Job::Recovery(mut job) => {
                let result = job.result.take().unwrap_or(Err(LedgerError::NoSuchLedger(job.ledger)));
                match job.wanted {
                    Wanted::Broker => self.log_recovered(to.proc, job.ledger, result),
                    Wanted::Worker => self.ledger_closed(to.proc, job.ledger, result.is_ok()),
                }
            }
            Job::Replicate(mut job) => {
                let result = job.result.take().unwrap_or(Err(LedgerError::NoSuchLedger(job.ledger)));
                self.replicated(to.proc, job.task, result);
            }
            Job::Writer(job) => self.writer_over(to.proc, &job),
            Job::Read(_) | Job::Call => {}
        }
    }

    fn pump_recovery(&mut self, to: Address, job: &mut RecoveryJob) -> (bool, bool) {
        let effects = job.machine.take_effects();
        let moved = !effects.is_empty();
        for effect in effects {
            match effect {
                RecoveryEffect::Load => self.ask_metadata(to, Meta::Load(job.ledger)),
                RecoveryEffect::Store { record, version } => {
                    let before = job.known.clone().map(Box::new);
                    let (record, version) = (Box::new(record), Some(version));
                    self.ask_metadata(to, Meta::Store { ledger: job.ledger, before, record, version });
                }
                RecoveryEffect::Fence { round, slot, bookie } => {
                    self.ask_bookie(to, &bookie, Token::Member { round, slot }, Ask::Fence(job.ledger));
                }
                RecoveryEffect::Read { round, slot, bookie, request } => {
                    self.ask_bookie(to, &bookie, Token::Member { round, slot }, Ask::Read(request));
                }
                RecoveryEffect::Send { bookie, entries } if self.bug == Bug::FoundIsNotRewritten => {
                    job.machine.added(self.now_ms(), &bookie, as_done(&entries));
                }
                RecoveryEffect::Send { bookie, mut entries } => {
                    for add in entries.iter_mut().filter(|_| self.bug == Bug::RecoveryTellsItsProgress) {
                        add.last_add_confirmed = EntryId(add.entry_id.0 - 1);
                    }
                    self.ask_bookie(to, &bookie, Token::None, Ask::Add(entries));
                }
                RecoveryEffect::Replace(change) => {
                    let choice = self.replacement(&change);
                    job.machine.replaced(self.now_ms(), choice);
                }
                RecoveryEffect::Measure { up_to, .. } => {
                    let bytes = self.oracle.bytes_up_to(job.ledger, up_to);
                    job.machine.measured(bytes, true);
                }
                RecoveryEffect::Done(result) => {
                    if result.is_ok() {
                        self.coverage.recoveries += 1;
                        self.coverage.rewritten += job.machine.rewritten();
                    }
                    job.result = Some(result);
                    return (true, true);
                }
            }
        }
        (moved, false)
    }

    fn pump_replication(&mut self, to: Address, job: &mut ReplicateJob) -> (bool, bool) {
        let effects = job.machine.take_effects();
        let moved = !effects.is_empty();
        for effect in effects {
            match effect {
                ReplicateEffect::Load => self.ask_metadata(to, Meta::Load(job.ledger)),
                ReplicateEffect::Choose(change) => {
                    let choice = self.replacement(&change);
                    job.machine.chosen(self.now_ms(), choice);
                }
                // Nobody asks for it: all bookies of this world stand in one place.
                ReplicateEffect::Mend { .. } => job.machine.mendable(self.now_ms(), None),
                ReplicateEffect::Read { run, slot, bookie, request } => {
                    self.ask_bookie(to, &bookie, Token::Member { round: run, slot }, Ask::Read(request));
                }
                ReplicateEffect::Send { bookie, entries } if self.bug == Bug::NothingIsCopied => {
                    job.machine.added(self.now_ms(), &bookie, as_done(&entries));
                }
                ReplicateEffect::Send { bookie, entries } => {
                    self.ask_bookie(to, &bookie, Token::None, Ask::Add(entries));
                }
                ReplicateEffect::Store { before, record, version } => {
                    let (before, record) = (self.as_stored(job.ledger, before), self.as_stored_too(job.ledger, record));
                    let (before, record) = (Some(Box::new(before)), Box::new(record));
                    self.ask_metadata(to, Meta::Store { ledger: job.ledger, before, record, version: Some(version) });
                }
                ReplicateEffect::Done(result) => {
                    if let Ok(Replicated { copies, ensembles, .. }) = &result {
                        self.coverage.copies += copies;
                        self.coverage.moved += u64::from(*ensembles);
                    }
                    job.result = Some(result);
                    return (true, true);
                }
            }
        }
        (moved, false)
    }

    /// [`Bug::OpenEndIsMoved`] lies to the machine about the state; metadata is told the true one.
    fn as_stored(&self, ledger: LedgerId, before: LedgerRecord) -> LedgerRecord {
        match (self.bug, self.metadata.ledgers.get(&ledger)) {
            (Bug::OpenEndIsMoved, Some((record, _))) => record.clone(),
            _ => before,
        }
    }

    fn as_stored_too(&self, ledger: LedgerId, changed: LedgerRecord) -> LedgerRecord {
        match (self.bug, self.metadata.ledgers.get(&ledger)) {
            (Bug::OpenEndIsMoved, Some((record, _))) => LedgerRecord { ensembles: changed.ensembles, ..record.clone() },
            _ => changed,
        }
    }
}

fn give_results(job: &mut Job, now_ms: u64, bookie: &BookieId, results: Vec<AddResult>) {
    match job {
        Job::Writer(job) => job.machine.added(now_ms, bookie, results),
        Job::Recovery(job) => job.machine.added(now_ms, bookie, results),
        Job::Replicate(job) => job.machine.added(now_ms, bookie, results),
        Job::Read(_) | Job::Call => {}
    }
}

/// Answers as if the entries were stored.
fn as_done(entries: &[AddEntry]) -> Vec<AddResult> {
    entries.iter().map(|add| AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result: Ok(()) }).collect()
}
