//! Everything there is, and what happens next.

use super::bookie::Bookie;
use super::broker::Broker;
use super::bug::Bug;
use super::coverage::StorageCoverage;
use super::jobs::Job;
use super::metadata::{Meta, MetaAnswer, Metadata};
use super::net::{Address, Answer, Ask, Proc, Token};
use super::oracle::Oracle;
use super::plan::StoragePlan;
use crate::plan::Rng;
use meridian_autorecovery::planner::{Planner, PlannerSettings};
use meridian_ledger::writer::words::WriterTimes;
use meridian_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// Between two ticks of a process.
const TICK_MS: u64 = 20;
/// Between two looks of the chaos.
pub(super) const LOOK_MS: u64 = 25;
/// Between two looks whether everything is settled.
const SETTLED_MS: u64 = 100;

pub(super) const PLANNER: PlannerSettings = PlannerSettings {
    ledgers_in_flight: 3,
    retry_ms: 60,
    retry_max_ms: 400,
    hopeless_retry_max_ms: 400,
    busy_ms: 150,
    open_grace_ms: 500,
};

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    Ask { bookie: usize, from: Address, serial: u64, token: Token, ask: Ask },
    Answer { to: Address, bookie: usize, serial: u64, token: Token, answer: Answer },
    Timeout { to: Address, serial: u64, token: Token, reads: bool },
    Meta { from: Address, serial: u64, op: Meta },
    MetaAnswer { to: Address, serial: u64, answer: MetaAnswer },
    Sync { bookie: usize, life: u64 },
    Restart { bookie: usize, life: u64 },
    Tick { proc: Proc, life: u64 },
    Revive { proc: Proc },
    Chaos,
    Settled,
}

/// Events by time; of one time in the order in which they were put.
#[derive(Debug, Default)]
pub(super) struct Queue {
    events: BTreeMap<(u64, u64), Event>,
    now_ms: u64,
    put: u64,
}

impl Queue {
    pub fn after(&mut self, delay_ms: u64, event: Event) {
        self.put += 1;
        self.events.insert((self.now_ms + delay_ms, self.put), event);
    }

    fn pop(&mut self) -> Option<Event> {
        let ((at_ms, _), event) = self.events.pop_first()?;
        self.now_ms = at_ms;
        Some(event)
    }
}

/// What a process is for.
pub(super) enum Part {
    Broker(Box<Broker>),
    Worker(Box<Planner>),
}

/// A broker or worker.
pub(super) struct Process {
    pub up: bool,
    pub life: u64,
    pub paused_until_ms: u64,
    pub jobs: BTreeMap<u64, Job>,
    /// Reads, fences and metadata calls that were not answered yet.
    pub waiting: BTreeSet<u64>,
    pub part: Part,
}

/// See the head of the file.
pub(super) struct World {
    pub plan: StoragePlan,
    pub bug: Bug,
    pub rng: Rng,
    pub queue: Queue,
    pub bookies: Vec<Bookie>,
    pub procs: Vec<Process>,
    pub metadata: Metadata,
    pub oracle: Oracle,
    pub coverage: StorageCoverage,
    pub parted: BTreeMap<(Proc, usize), u64>,
    /// The broker that look-ups name.
    pub assigned: Proc,
    /// How often that changed.
    pub assignments: u64,
    pub healed: bool,
    pub healed_ms: u64,
    pub done: bool,
    pub trace: Option<Vec<String>>,
    numbers: u64,
}

impl World {
    pub fn new(plan: StoragePlan, bug: Bug, trace: bool) -> Self {
        let bookie = |n: usize| {
            let mut bookie = Bookie::new(BookieId::new(format!("b{n}")));
            bookie.fences_nothing = bug == Bug::NothingIsFenced;
            bookie.hides_damage = bug == Bug::DamageIsHidden;
            bookie.forgets_deleted_fences = bug == Bug::DeletedFencesForgotten;
            bookie
        };
        let part = |n: usize| match n < plan.brokers {
            true => Part::Broker(Box::default()),
            false => Part::Worker(Box::new(Planner::new(PLANNER))),
        };
        let process = |n: usize| Process {
            up: true,
            life: 0,
            paused_until_ms: 0,
            jobs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            part: part(n),
        };
        let count = plan.brokers + plan.workers;
        let mut world = Self {
            rng: Rng::new(plan.seed ^ 0x00b0_0c1e),
            queue: Queue { now_ms: 10_000, ..Queue::default() },
            bookies: (0..plan.bookies).map(bookie).collect(),
            procs: (0..count).map(process).collect(),
            metadata: Metadata::default(),
            oracle: Oracle::default(),
            coverage: StorageCoverage::default(),
            parted: BTreeMap::new(),
            assigned: 0,
            assignments: 0,
            healed: false,
            healed_ms: 0,
            done: false,
            trace: trace.then(Vec::new),
            numbers: 0,
            bug,
            plan,
        };
        (0..count).for_each(|proc| world.queue.after(1 + proc as u64, Event::Tick { proc, life: 0 }));
        world.queue.after(LOOK_MS, Event::Chaos);
        world
    }

    pub fn now_ms(&self) -> u64 {
        self.queue.now_ms
    }

    /// A number that was not given before.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn times(&self) -> WriterTimes {
        WriterTimes {
            add_timeout_ms: 150,
            give_up_ms: 1_500,
            retry_ms: 50,
            busy_retry_ms: 20,
            lac_idle_ms: 60,
            window_keep_bytes: 1 << 20,
            change_delay_ms: self.plan.change_delay_ms,
        }
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let now_ms = self.queue.now_ms;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now_ms:>7} {}", text()));
        }
    }

    pub fn bookie_at(&self, id: &BookieId) -> Option<usize> {
        self.bookies.iter().position(|bookie| bookie.id == *id)
    }

    /// The process that an address means, if it still lives.
    pub fn is_alive(&self, to: Address) -> bool {
        self.procs[to.proc].up && self.procs[to.proc].life == to.life
    }

    /// Runs until everything is settled, or a checker has seen enough.
    pub fn run(&mut self) {
        while !self.done && self.oracle.violations.len() < 3 {
            let Some(event) = self.queue.pop() else { break };
            self.coverage.events += 1;
            self.oracle.now_ms = self.queue.now_ms;
            self.happen(event);
        }
    }

    /// Whom an event waits for while it is paused.
    fn waits_for(&self, event: &Event) -> Option<u64> {
        let proc = match event {
            Event::Answer { to, .. } | Event::Timeout { to, .. } | Event::MetaAnswer { to, .. } => to.proc,
            Event::Tick { proc, .. } => *proc,
            _ => return None,
        };
        let until_ms = self.procs[proc].paused_until_ms;
        (until_ms > self.now_ms()).then(|| until_ms - self.now_ms())
    }

    fn happen(&mut self, event: Event) {
        if let Some(delay_ms) = self.waits_for(&event) {
            return self.queue.after(delay_ms, event);
        }
        match event {
            Event::Ask { bookie, from, serial, token, ask } => self.asked(bookie, from, serial, token, ask),
            Event::Answer { to, bookie, serial, token, answer } => {
                let awaited = matches!(answer, Answer::Added(_)) || self.procs[to.proc].waiting.remove(&serial);
                if awaited && self.is_alive(to) {
                    self.answered(to, bookie, token, answer);
                }
            }
            Event::Timeout { to, serial, token, reads } => {
                if self.procs[to.proc].waiting.remove(&serial) && self.is_alive(to) {
                    self.timed_out(to, token, reads);
                }
            }
            Event::Meta { from, serial, op } => self.meta_asked(from, serial, op),
            Event::MetaAnswer { to, serial, answer } => {
                if self.procs[to.proc].waiting.remove(&serial) && self.is_alive(to) {
                    self.meta_answered(to, answer);
                }
            }
            Event::Sync { bookie, life } => self.synced(bookie, life),
            Event::Restart { bookie, life } => self.restart_bookie(bookie, life),
            Event::Tick { proc, life } => self.tick(proc, life),
            Event::Revive { proc } => self.revive(proc),
            Event::Chaos => self.chaos(),
            Event::Settled => {
                self.look_if_settled();
                self.queue.after(SETTLED_MS, Event::Settled);
            }
        }
    }

    fn tick(&mut self, proc: Proc, life: u64) {
        if self.procs[proc].life != life || !self.procs[proc].up {
            return;
        }
        self.queue.after(TICK_MS, Event::Tick { proc, life });
        let jobs: Vec<u64> = self.procs[proc].jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.tick_job(Address { proc, life, job }));
        match self.procs[proc].part {
            Part::Broker(_) => self.tick_broker(proc),
            Part::Worker(_) => self.tick_worker(proc),
        }
    }

    /// A process is gone with everything in it.
    pub fn kill(&mut self, proc: Proc) {
        let process = &mut self.procs[proc];
        process.up = false;
        process.life += 1;
        process.paused_until_ms = 0;
        process.jobs.clear();
        process.waiting.clear();
        match &mut process.part {
            Part::Broker(broker) => **broker = Broker::default(),
            Part::Worker(planner) => **planner = Planner::new(PLANNER),
        }
        self.note(|| format!("process {proc} crashes"));
    }

    pub fn revive(&mut self, proc: Proc) {
        if self.procs[proc].up {
            return;
        }
        self.procs[proc].up = true;
        let life = self.procs[proc].life;
        self.queue.after(1, Event::Tick { proc, life });
        self.note(|| format!("process {proc} starts"));
    }

    pub fn broker(&mut self, proc: Proc) -> Option<&mut Broker> {
        match &mut self.procs[proc].part {
            Part::Broker(broker) => Some(broker),
            Part::Worker(_) => None,
        }
    }

    pub fn planner(&mut self, proc: Proc) -> Option<&mut Planner> {
        match &mut self.procs[proc].part {
            Part::Worker(planner) => Some(planner),
            Part::Broker(_) => None,
        }
    }

    /// A new job of a process.
    pub fn begin(&mut self, proc: Proc, job: Job) -> Address {
        let number = self.number();
        self.procs[proc].jobs.insert(number, job);
        let to = Address { proc, life: self.procs[proc].life, job: number };
        self.pump(to);
        to
    }

    /// Bookies as the directory of any process shows them: registered, and taken for new entries.
    pub fn takers(&self) -> Vec<BookieId> {
        let stays = |id: &BookieId| !self.metadata.leaving.get(id).is_some_and(|mark| mark.is_due(self.now_ms()));
        let up = self.bookies.iter().filter(|bookie| bookie.up && !bookie.lost);
        up.map(|bookie| bookie.id.clone()).filter(stays).collect()
    }

    pub fn is_registered(&self, bookie: &Bookie) -> bool {
        bookie.up || (!bookie.lost && self.now_ms() < bookie.down_since_ms + 100)
    }

    /// The members of an entry's write set as metadata has them.
    pub fn holders(&self, ledger: LedgerId, entry: i64) -> Vec<usize> {
        let Some((record, _)) = self.metadata.ledgers.get(&ledger) else { return Vec::new() };
        let (ensemble, _) = record.ensemble_of(meridian_types::EntryId(entry));
        let slots = record.layout.write_set(meridian_types::EntryId(entry));
        slots.iter().filter_map(|slot| self.bookie_at(&ensemble.bookies[slot])).collect()
    }
}
