//! The owner of the log: takes it over, publishes, changes ledgers, trims. In small what the shell of a managed ledger does,
//! over the real layout, acknowledgements and trimming.
//!
//! Invariants: L1 entries are appended only to the last ledger of the list, which this owner created and listed under its
//! epoch; L2 a ledger is deleted only after a list without it was stored; L3 whoever loses a compare-and-set of the list is
//! owner no more. A broker that is not named by look-ups any more does not notice by itself: it goes on until it is fenced, or
//! until look-ups name it again, which is a new lease and begins with a new take-over.

use super::bug::Bug;
use super::jobs::{Job, Wanted};
use super::metadata::{Listed, LogRecord, Meta, MetaAnswer};
use super::net::{Address, Proc};
use super::world::World;
use super::writer::WriterJob;
use meridian_ledger::record::Stored;
use meridian_ledger::{LedgerError, LedgerOptions, LedgerRecord};
use meridian_managed_ledger::cursor::ack_set::AckSet;
use meridian_managed_ledger::layout::Layout;
use meridian_managed_ledger::trim::{TrimBounds, trimmable};
use meridian_metadata::Version;
use meridian_placement::{Candidate, Rule, Shape, choose};
use meridian_topology::Location;
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::BTreeMap;

/// Where it stands.
#[derive(Debug, Clone, Default, PartialEq)]
enum Phase {
    #[default]
    Idle,
    Loading,
    Claiming,
    Recovering,
    /// The record of a new ledger is on its way.
    Creating(LedgerId, Box<LedgerRecord>),
    /// The list with the new ledger is on its way.
    Listing(LedgerId, Box<LedgerRecord>, Version),
    Serving,
}

/// What a list on its way is for, while the log is served.
#[derive(Debug, Clone, PartialEq)]
enum Purpose {
    Cursor(Position),
    Trim(Vec<LedgerId>),
}

/// See the head of the file.
pub(super) struct Broker {
    phase: Phase,
    next_at_ms: u64,
    /// The assignment under which it took over.
    assignment: u64,
    known: Option<(LogRecord, Version)>,
    pub(super) log: Layout,
    pub(super) acks: AckSet,
    pub(super) writer: Option<Address>,
    storing: Option<(Purpose, LogRecord)>,
    /// Mark-delete as it is stored.
    saved: Position,
    persist_at_ms: u64,
    pub(super) read_next: Position,
    pub(super) reading: bool,
    pub(super) unacked: Vec<Position>,
}

impl Default for Broker {
    fn default() -> Self {
        let none = Position { ledger_id: LedgerId(-1), entry_id: EntryId::NONE };
        Self {
            phase: Phase::Idle,
            next_at_ms: 0,
            assignment: 0,
            known: None,
            log: Layout::new(none, 0),
            acks: AckSet::new(none, false),
            writer: None,
            storing: None,
            saved: none,
            persist_at_ms: 0,
            read_next: none,
            reading: false,
            unacked: Vec::new(),
        }
    }
}

impl Broker {
    pub(super) fn is_serving(&self) -> bool {
        self.phase == Phase::Serving && self.writer.is_some()
    }
}

impl World {
    pub(super) fn tick_broker(&mut self, proc: Proc) {
        let (now_ms, assigned, assignment) = (self.now_ms(), self.assigned == proc, self.assignments);
        let Some(broker) = self.broker(proc) else { return };
        match broker.phase {
            Phase::Idle if assigned && now_ms >= broker.next_at_ms => {
                broker.phase = Phase::Loading;
                broker.assignment = assignment;
                self.call(proc, Meta::LoadLog);
            }
            Phase::Idle => {}
            _ if assigned && broker.assignment != assignment => self.give_up(proc),
            Phase::Serving => self.serve(proc),
            _ => {}
        }
    }

    fn call(&mut self, proc: Proc, op: Meta) {
        let to = self.begin(proc, Job::Call);
        self.ask_metadata(to, op);
    }

    /// Everything of this ownership is given up; it is tried again later.
    fn give_up(&mut self, proc: Proc) {
        let next_at_ms = self.now_ms() + self.rng.between(20, 150);
        let process = &mut self.procs[proc];
        process.jobs.clear();
        process.waiting.clear();
        if let Some(broker) = self.broker(proc) {
            *broker = Broker { next_at_ms, ..Broker::default() };
        }
    }

    fn set_phase(&mut self, proc: Proc, phase: Phase) {
        if let Some(broker) = self.broker(proc) {
            broker.phase = phase;
        }
    }

    fn list(&mut self, proc: Proc) -> Option<(LogRecord, Version)> {
        self.broker(proc)?.known.clone()
    }

    fn set_list(&mut self, proc: Proc, record: LogRecord, version: Version) {
        if let Some(broker) = self.broker(proc) {
            broker.known = Some((record, version));
        }
    }

    /// An answer to a metadata call of a broker or worker itself.
    pub(super) fn call_answered(&mut self, proc: Proc, answer: MetaAnswer) {
        if let MetaAnswer::Seen(seen) = answer {
            return self.seen(proc, seen.map(|seen| *seen));
        }
        let Some(broker) = self.broker(proc) else { return };
        let phase = broker.phase.clone();
        match (phase, answer) {
            (Phase::Loading, MetaAnswer::Log(Some((record, version)))) => self.claim(proc, record, version),
            (Phase::Claiming, MetaAnswer::Stored(Stored::Done(version))) => self.claimed(proc, version),
            (Phase::Creating(ledger, record), MetaAnswer::Stored(Stored::Done(version))) => {
                self.enlist(proc, ledger, record, version);
            }
            (Phase::Listing(ledger, record, created), MetaAnswer::Stored(Stored::Done(version))) => {
                self.listed(proc, ledger, *record, created, version);
            }
            (Phase::Serving, MetaAnswer::Stored(Stored::Done(version))) => self.list_stored(proc, version),
            // Lost, or nobody knows: an owner that does not know its list begins anew (L3).
            _ => self.give_up(proc),
        }
    }

    fn claim(&mut self, proc: Proc, mut record: LogRecord, version: Version) {
        record.epoch += 1;
        record.owner = proc;
        self.set_list(proc, record.clone(), version);
        self.set_phase(proc, Phase::Claiming);
        self.call(proc, Meta::StoreLog { record: Box::new(record), version });
    }

    fn claimed(&mut self, proc: Proc, version: Version) {
        let Some((record, _)) = self.list(proc) else { return };
        self.coverage.takeovers += 1;
        self.note(|| format!("process {proc} owns the log with epoch {}", record.epoch));
        let open = record.ledgers.last().filter(|ledger| ledger.entries.is_none()).map(|ledger| ledger.id);
        self.set_list(proc, record, version);
        match open {
            Some(ledger) => {
                self.set_phase(proc, Phase::Recovering);
                self.begin_recovery(proc, ledger, Wanted::Broker);
            }
            None => self.create(proc),
        }
    }

    pub(super) fn log_recovered(&mut self, proc: Proc, ledger: LedgerId, result: Result<LedgerRecord, LedgerError>) {
        let Ok(closed) = result else { return self.give_up(proc) };
        let Some((mut record, version)) = self.list(proc) else { return };
        if let Some(listed) = record.ledgers.iter_mut().find(|listed| listed.id == ledger) {
            listed.entries = Some((closed.last_entry.0 + 1) as u64);
        }
        self.set_list(proc, record, version);
        self.create(proc);
    }

    /// A ledger with an id never used before.
    fn create(&mut self, proc: Proc) {
        let layout = self.plan.layout();
        let one = |id| Candidate { id, location: Location::default(), last_resort: false };
        let takers = self.takers().into_iter().map(one).collect();
        let shape = Shape { ensemble_size: layout.ensemble_size(), write_quorum: layout.write_quorum() };
        let seed = self.rng.next();
        let Ok(ensemble) = choose(takers, shape, Rule::default(), seed) else { return self.give_up(proc) };
        let options = LedgerOptions {
            ensemble_size: layout.ensemble_size(),
            write_quorum: layout.write_quorum(),
            ack_quorum: layout.ack_quorum(),
            properties: BTreeMap::new(),
        };
        let ledger = self.metadata.allocate();
        let record = LedgerRecord::new(layout, options, ensemble, self.now_ms());
        self.set_phase(proc, Phase::Creating(ledger, Box::new(record.clone())));
        self.call(proc, Meta::Store { ledger, before: None, record: Box::new(record), version: None });
    }

    fn enlist(&mut self, proc: Proc, ledger: LedgerId, record: Box<LedgerRecord>, created: Version) {
        let Some((mut list, version)) = self.list(proc) else { return };
        list.ledgers.push(Listed { id: ledger, entries: None });
        self.set_list(proc, list.clone(), version);
        self.set_phase(proc, Phase::Listing(ledger, record, created));
        self.call(proc, Meta::StoreLog { record: Box::new(list), version });
    }

    /// The new ledger is in the list (L1): it is written to.
    fn listed(&mut self, proc: Proc, ledger: LedgerId, record: LedgerRecord, created: Version, version: Version) {
        let Some((list, _)) = self.list(proc) else { return };
        let now_ms = self.now_ms();
        let first_time = self.broker(proc).is_some_and(|broker| broker.log.ledgers().is_empty());
        if let Some(broker) = self.broker(proc) {
            if first_time {
                broker.load(&list, now_ms);
            } else {
                broker.log.add(ledger, now_ms);
            }
        }
        self.set_list(proc, list, version);
        self.oracle.created(ledger);
        self.note(|| format!("process {proc} writes to ledger {ledger}"));
        let job = WriterJob::new(self, ledger, record, created);
        let writer = self.begin(proc, Job::Writer(Box::new(job)));
        if let Some(broker) = self.broker(proc) {
            broker.writer = Some(writer);
            broker.phase = Phase::Serving;
        }
    }

    fn serve(&mut self, proc: Proc) {
        self.publish(proc);
        self.consume(proc);
        let now_ms = self.now_ms();
        let Some(broker) = self.broker(proc) else { return };
        if broker.storing.is_some() || broker.writer.is_none() || now_ms < broker.persist_at_ms {
            return;
        }
        broker.persist_at_ms = now_ms + 60;
        self.store_list(proc);
    }

    /// Some entries, or the end of the ledger.
    fn publish(&mut self, proc: Proc) {
        let limit = self.plan.entries_per_ledger as i64;
        let busy = self.healed && self.now_ms() > self.healed_ms + 400;
        let count = if busy { 0 } else { self.rng.below(4) };
        let Some(to) = self.broker(proc).and_then(|broker| broker.writer) else { return };
        let Some(Job::Writer(mut job)) = self.procs[proc].jobs.remove(&to.job) else { return };
        if job.machine.next_entry().0 >= limit {
            job.machine.close();
        } else if count > 0 && job.machine.window_bytes() < 2_000 {
            self.append(to, &mut job, count);
        }
        self.procs[proc].jobs.insert(to.job, Job::Writer(job));
        self.pump(to);
    }

    pub(super) fn confirmed(&mut self, to: Address, ledger: LedgerId, up_to: EntryId) {
        self.check_confirmed(to, ledger, up_to);
        if let Some(broker) = self.broker(to.proc) {
            broker.log.confirm(Position { ledger_id: ledger, entry_id: up_to }, 1, 0);
        }
    }

    /// The writer has closed its ledger, or ended.
    pub(super) fn writer_over(&mut self, proc: Proc, job: &WriterJob) {
        if !job.closed {
            return self.give_up(proc);
        }
        let (ledger, now_ms) = (job.ledger, self.now_ms());
        let entries = (job.machine.confirmed().0 + 1) as u64;
        let Some((mut list, version)) = self.list(proc) else { return };
        if let Some(listed) = list.ledgers.iter_mut().find(|listed| listed.id == ledger) {
            listed.entries = Some(entries);
        }
        self.set_list(proc, list, version);
        let storing = match self.broker(proc) {
            Some(broker) => {
                broker.writer = None;
                broker.log.close(ledger, now_ms);
                broker.storing.is_some()
            }
            None => return,
        };
        // A list on its way would be overtaken: it goes first.
        if !storing {
            self.create(proc);
        }
    }

    /// Stores the cursor, or a list without the ledgers that nobody needs.
    fn store_list(&mut self, proc: Proc) {
        let (now_ms, bug) = (self.now_ms(), self.bug);
        let Some(broker) = self.broker(proc) else { return };
        let Some((list, version)) = broker.known.clone() else { return };
        let slowest = if bug == Bug::TrimsUnacked { broker.read_next } else { broker.saved };
        let bounds = TrimBounds { slowest: Some(slowest), now_ms, retention_ms: Some(0), retention_bytes: Some(0) };
        let count = trimmable(broker.log.ledgers(), bounds);
        let (purpose, changed) = if count > 0 {
            let gone: Vec<LedgerId> = broker.log.ledgers()[..count].iter().map(|ledger| ledger.id).collect();
            let mut changed = list;
            changed.ledgers.retain(|ledger| !gone.contains(&ledger.id));
            (Purpose::Trim(gone), changed)
        } else if broker.acks.mark_delete() > broker.saved || bug == Bug::ReadPositionPersisted {
            let mut state = broker.acks.state();
            if bug == Bug::ReadPositionPersisted {
                state.mark_delete = broker.log.previous(broker.read_next);
            }
            let mark = state.mark_delete;
            (Purpose::Cursor(mark), LogRecord { acks: Some(state), ..list })
        } else {
            return;
        };
        broker.storing = Some((purpose.clone(), changed.clone()));
        if let (Purpose::Trim(gone), Bug::DeletesBeforeListing) = (&purpose, bug) {
            gone.iter().for_each(|ledger| self.forget(proc, *ledger));
        }
        self.call(proc, Meta::StoreLog { record: Box::new(changed), version });
    }

    /// Deletes a ledger's record; nobody waits for the answer.
    fn forget(&mut self, proc: Proc, ledger: LedgerId) {
        let from = Address { proc, life: self.procs[proc].life, job: 0 };
        self.ask_metadata(from, Meta::Delete(ledger));
    }

    fn list_stored(&mut self, proc: Proc, version: Version) {
        let Some(broker) = self.broker(proc) else { return };
        let Some((purpose, mut list)) = broker.storing.take() else { return };
        // What the writer closed meanwhile is not in the list that was stored.
        if let Some((known, _)) = &broker.known {
            for listed in &mut list.ledgers {
                let closed = known.ledgers.iter().find(|other| other.id == listed.id).and_then(|other| other.entries);
                listed.entries = listed.entries.or(closed);
            }
        }
        broker.known = Some((list, version));
        let writing = broker.writer.is_some();
        match purpose {
            Purpose::Cursor(mark) => broker.saved = broker.saved.max(mark),
            Purpose::Trim(gone) => {
                broker.log.trim(gone.len());
                gone.into_iter().for_each(|ledger| self.forget(proc, ledger));
            }
        }
        if !writing {
            self.create(proc);
        }
    }
}

impl Broker {
    /// The log as its list has it, with the cursor.
    fn load(&mut self, list: &LogRecord, now_ms: u64) {
        let none = Position { ledger_id: LedgerId(-1), entry_id: EntryId::NONE };
        self.log = Layout::new(none, 0);
        for listed in &list.ledgers {
            self.log.add(listed.id, now_ms);
            if let Some(entries) = listed.entries {
                self.log.settle(listed.id, entries, entries, 0);
                self.log.close(listed.id, now_ms);
            }
        }
        self.acks = match &list.acks {
            Some(state) => AckSet::load(state.clone(), false),
            None => AckSet::new(self.log.before_first(), false),
        };
        self.acks.settle(&self.log);
        self.saved = list.acks.as_ref().map_or(none, |state| state.mark_delete);
        self.read_next = self.log.successor(self.acks.mark_delete());
        self.unacked.clear();
        self.reading = false;
    }
}
