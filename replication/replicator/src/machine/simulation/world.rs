//! A log, a cursor, a network with faults and a remote topic around one machine, in virtual time.

use super::remote::{Judged, Kind, RemoteTopic};
use crate::machine::limit::LinkLimits;
use crate::machine::words::{
    Effect, Event, Now, OpenFailure, Outgoing, Peer, ReadEntry, Receipt, SendRefusal, StartPoint,
};
use crate::machine::{Bounds, LinkConfig, Machine};
use crate::testing::{LOCAL, Written};
use meridian_managed_ledger::LogEntry;
use meridian_types::Position;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Entries per ledger of the source.
const LEDGER_ENTRIES: i64 = 17;

/// What goes wrong, in thousandths per chance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A send is refused.
    pub refuse: u64,
    /// A spell in which all sends are refused begins when one is.
    pub spell_ms: u64,
    /// The connection is lost, per step.
    pub drop: u64,
    /// An opening fails.
    pub open: u64,
    /// A read fails.
    pub read: u64,
    /// The source's process dies, per step.
    pub crash: u64,
    /// Longest way of a message.
    pub latency_ms: u64,
}

/// A bug of the surroundings or of the machine's rules, to prove the checkers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// None.
    Nothing,
    /// The word *duplicate* is believed of a peer that judges by the highest position (the upstream silent loss).
    BelievesDuplicates,
    /// Receipts of a session that is over are taken for those of the new one.
    OldReceipts,
    /// The remote answers before it stores, and loses what it had in hand when a connection drops.
    AnswersTooEarly,
    /// The network turns two sends round.
    Reorders,
    /// The receiver forgets its marks.
    Forgets,
    /// Reads of before a rewind are taken for those after it.
    OldReads,
}

enum Happening {
    Append,
    Deliver(Event),
    Arrive { session: u64, generation: u64, sent: Outgoing },
    Persist { session: u64, generation: u64, sent: Outgoing },
    Answer { session: u64, event: Event },
    Tick,
    Look { epoch: u64, from: Position },
    Flush,
}

struct SessionState {
    generation: u64,
    open: bool,
    /// What arrives after this is lost.
    cut_ms: u64,
    last_arrival_ms: u64,
    last_answer_ms: u64,
}

/// See the head of the file.
pub struct World {
    random: u64,
    pub now_ms: u64,
    pub machine: Machine,
    pub remote: RemoteTopic,
    faults: Faults,
    planted: Planted,
    bounds: Bounds,
    log: BTreeMap<Position, LogEntry>,
    pub expected: Vec<Position>,
    acked: BTreeSet<Position>,
    acked_durable: BTreeSet<Position>,
    queue: BTreeMap<(u64, u64), Happening>,
    next_happening: u64,
    sessions: HashMap<u64, SessionState>,
    /// Sessions of earlier lives are below.
    life_base: u64,
    epoch: u64,
    persist_ms: u64,
    next_tick_ms: u64,
    refusing_until_ms: u64,
    appends_left: u64,
    pub refusals: u64,
    pub drops: u64,
    pub violations: Vec<String>,
}

fn machine(bounds: Bounds, now_ms: u64) -> Machine {
    let limits = LinkLimits::default();
    Machine::new(LinkConfig { local: LOCAL.into(), remote: "east".into(), bounds, limits, shared: None }, now_ms)
}

impl World {
    /// A world in which `entries` will be appended.
    pub fn new(seed: u64, kind: Kind, faults: Faults, planted: Planted, entries: u64) -> Self {
        let bounds = Bounds {
            max_waiting_entries: 20,
            max_waiting_bytes: 2500,
            read_entries: 12,
            read_bytes: 4000,
            stalled_after_ms: 400,
            restart_after_ms: 900,
            drain_ms: 200,
            min_backoff_ms: 5,
            max_backoff_ms: 100,
        };
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now_ms: 1000,
            machine: machine(bounds, 1000),
            remote: RemoteTopic::new(kind),
            faults,
            planted,
            bounds,
            log: BTreeMap::new(),
            expected: Vec::new(),
            acked: BTreeSet::new(),
            acked_durable: BTreeSet::new(),
            queue: BTreeMap::new(),
            next_happening: 0,
            sessions: HashMap::new(),
            life_base: 0,
            epoch: 0,
            persist_ms: 0,
            next_tick_ms: u64::MAX,
            refusing_until_ms: 0,
            appends_left: entries,
            refusals: 0,
            drops: 0,
            violations: Vec::new(),
        };
        world.at(0, Happening::Append);
        world.at(30, Happening::Flush);
        let start = world.start_point(true);
        world.feed(Event::Started(start));
        world
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    fn hits(&mut self, permille: u64) -> bool {
        permille > 0 && self.chance(1000) < permille
    }

    fn at(&mut self, after_ms: u64, happening: Happening) {
        self.next_happening += 1;
        self.queue.insert((self.now_ms + after_ms, self.next_happening), happening);
    }

    fn start_point(&self, created: bool) -> StartPoint {
        let first = self.log.keys().find(|at| !self.acked.contains(at)).copied().unwrap_or_else(|| self.end());
        StartPoint {
            first,
            last_confirmed: self.log.keys().next_back().copied().unwrap_or(Position::EARLIEST),
            created,
            highest_acked: self.acked.last().copied().filter(|acked| *acked > first),
            generation: 0,
        }
    }

    fn end(&self) -> Position {
        self.log.keys().next_back().map_or(Position::new(1, 0), |last| last.next_in_ledger())
    }

    /// Runs until nothing is left to copy or the time is over; answers whether all is copied and acknowledged.
    pub fn run(&mut self, calm_after_ms: u64, limit_ms: u64) -> bool {
        while self.now_ms < limit_ms {
            if self.now_ms > calm_after_ms {
                self.faults = Faults { latency_ms: self.faults.latency_ms, ..Faults::default() };
            }
            if self.appends_left == 0 && self.log.keys().all(|at| self.acked.contains(at)) {
                return true;
            }
            let Some(((at_ms, _), happening)) = self.queue.pop_first() else { return false };
            self.now_ms = self.now_ms.max(at_ms);
            self.happen(happening);
            if self.hits(self.faults.drop) {
                self.drop_connection();
            }
            if self.hits(self.faults.crash) {
                self.crash();
            }
            assert!(self.machine.view().waiting_entries <= self.bounds.max_waiting_entries);
        }
        false
    }

    /// The session that is open now, as the machine numbers it.
    fn open_session(&self) -> u64 {
        let open = self.sessions.iter().filter(|(number, state)| state.open && **number >= self.life_base);
        open.map(|(number, _)| number - self.life_base).max().unwrap_or(0)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver(Event::Read { entries, .. }) if self.planted == Planted::OldReads => {
                self.feed(Event::Read { epoch: self.epoch, entries });
            }
            Happening::Append => self.append(),
            Happening::Deliver(event) => self.feed(event),
            Happening::Arrive { session, generation, sent } => self.arrive(session, generation, sent),
            Happening::Persist { session, generation, sent } => {
                let receipt = self.remote.store(generation, &sent);
                if self.planted != Planted::AnswersTooEarly {
                    self.answer(session, Event::Receipts { session, receipts: vec![receipt] });
                }
            }
            Happening::Answer { session, event } => self.answered(session, event),
            Happening::Tick => {
                if self.next_tick_ms <= self.now_ms {
                    self.next_tick_ms = u64::MAX;
                    self.feed(Event::Tick);
                }
            }
            Happening::Look { epoch, from } => self.look(epoch, from),
            Happening::Flush => {
                self.acked_durable = self.acked.clone();
                self.at(30, Happening::Flush);
            }
        }
    }

    fn append(&mut self) {
        let count = 1 + self.chance(8);
        for _ in 0..count.min(self.appends_left) {
            self.appends_left -= 1;
            let number = self.log.len() as i64;
            let (ledger, entry) = (1 + number / LEDGER_ENTRIES, number % LEDGER_ENTRIES);
            let mut written =
                Written { broker_time_ms: self.now_ms, bytes: self.chance(300) as usize, ..Written::default() };
            written.sequence_id = 1 + number as u64 % 3;
            match self.chance(12) {
                0 => written.replicated_from = Some("east"),
                1 => written.replicate_to = &["south"],
                2 if self.remote.kind != Kind::Old => written.marker = Some(10),
                _ => {}
            }
            let mut stored = written.at(ledger, entry);
            stored.index = number as u64;
            let goes = written.replicated_from.is_none() && written.replicate_to.is_empty();
            if goes {
                self.expected.push(stored.position);
            }
            self.log.insert(stored.position, stored);
        }
        if self.appends_left > 0 {
            let pause = self.chance(12);
            self.at(pause, Happening::Append);
        }
    }

    fn feed(&mut self, event: Event) {
        let now = Now { ms: self.now_ms, jitter_permille: self.chance(1000) as u16 };
        for effect in self.machine.handle(now, event) {
            self.perform(effect);
        }
        if let Some(at_ms) = self.machine.wake_at_ms()
            && (at_ms < self.next_tick_ms || self.next_tick_ms <= self.now_ms)
        {
            self.next_tick_ms = at_ms;
            self.at(at_ms.saturating_sub(self.now_ms), Happening::Tick);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Open { session, generation } => self.open(session, generation),
            Effect::Close { session } => {
                if let Some(state) = self.sessions.get_mut(&(self.life_base + session)) {
                    state.open = false;
                }
                let after = self.way();
                self.at(after, Happening::Deliver(Event::Closed { session }));
            }
            Effect::Read { epoch, from, max_entries, acked_up_to, .. } => {
                self.read(epoch, from, max_entries, acked_up_to)
            }
            Effect::Await { epoch, from } => self.at(3, Happening::Look { epoch, from }),
            Effect::Send { session, entries } => self.send(session, entries),
            Effect::Ack(positions) => self.ack(&positions),
            Effect::Announce(_) | Effect::Marker(_) => {}
            Effect::BringSchema { .. } => self.violations.push("a schema was asked for".into()),
        }
    }

    fn way(&mut self) -> u64 {
        let latency_ms = self.faults.latency_ms;
        1 + self.chance(latency_ms)
    }

    fn open(&mut self, session: u64, generation: u64) {
        let after = self.way();
        if self.hits(self.faults.open) {
            let failure = OpenFailure::Unreachable("no route".into());
            return self.at(after, Happening::Deliver(Event::OpenFailed { session, failure }));
        }
        // A peer lets nobody in under a name whose last sends are still arriving.
        let busy_ms = self.sessions.values().map(|old| old.cut_ms.min(old.last_arrival_ms)).max().unwrap_or(0);
        let after = after.max(busy_ms.saturating_sub(self.now_ms) + 1);
        let state = SessionState { generation, open: true, cut_ms: u64::MAX, last_arrival_ms: 0, last_answer_ms: 0 };
        self.sessions.insert(self.life_base + session, state);
        let peer = self.remote.kind.peer();
        let meridian = peer.meridian || self.planted == Planted::BelievesDuplicates;
        self.at(after, Happening::Deliver(Event::Opened { session, peer: Peer { meridian, ..peer } }));
    }

    fn read(&mut self, epoch: u64, from: Position, max_entries: u32, acked_up_to: Position) {
        self.epoch = epoch;
        let after = self.way() / 2;
        if self.hits(self.faults.read) {
            return self.at(after, Happening::Deliver(Event::ReadFailed { epoch, error: "storage".into() }));
        }
        let read = |(at, entry): (&Position, &LogEntry)| ReadEntry {
            acked: *at <= acked_up_to && self.acked.contains(at),
            entry: entry.clone(),
            hold: None,
        };
        let entries: Vec<ReadEntry> = self.log.range(from..).take(max_entries as usize).map(read).collect();
        self.at(after, Happening::Deliver(Event::Read { epoch, entries }));
    }

    fn look(&mut self, epoch: u64, from: Position) {
        if self.log.range(from..).next().is_some() {
            self.feed(Event::Grown { epoch });
        } else if epoch == self.epoch {
            self.at(3, Happening::Look { epoch, from });
        }
    }

    fn send(&mut self, session: u64, mut entries: Vec<Outgoing>) {
        if self.planted == Planted::Reorders && entries.len() > 1 && self.chance(10) == 0 {
            entries.swap(0, 1);
        }
        for sent in entries {
            let way = self.way();
            let now_ms = self.now_ms;
            let Some(state) = self.sessions.get_mut(&(self.life_base + session)).filter(|state| state.open) else {
                return;
            };
            state.last_arrival_ms = state.last_arrival_ms.max(now_ms + way);
            let (after, generation) = (state.last_arrival_ms - now_ms, state.generation);
            let session = self.life_base + session;
            self.at(after, Happening::Arrive { session, generation, sent });
        }
    }

    fn arrive(&mut self, session: u64, generation: u64, sent: Outgoing) {
        let state = &self.sessions[&session];
        if self.now_ms > state.cut_ms {
            return;
        }
        if self.now_ms >= self.refusing_until_ms && self.hits(self.faults.refuse) {
            let spell_ms = self.faults.spell_ms;
            self.refusing_until_ms = self.now_ms + 1 + self.chance(spell_ms);
        }
        let refuse = self.now_ms < self.refusing_until_ms;
        let number = session.saturating_sub(self.life_base);
        if self.planted == Planted::Forgets && self.chance(50) == 0 {
            self.remote.forget();
        }
        match self.remote.arrive(session, generation, &sent, refuse) {
            Judged::Store => {
                // In order of arrival, for all sessions together.
                self.persist_ms = self.persist_ms.max(self.now_ms + 1 + self.random % 7);
                let after = self.persist_ms - self.now_ms;
                if self.planted == Planted::AnswersTooEarly {
                    let position = Position::new(900, 1);
                    let at = sent.position;
                    let (sequence_id, highest_sequence_id) = (at.ledger_id.0 as u64, at.entry_id.0 as u64);
                    let receipts = vec![Receipt { sequence_id, highest_sequence_id, position }];
                    self.answer(session, Event::Receipts { session: number, receipts });
                }
                self.at(after, Happening::Persist { session, generation, sent });
            }
            Judged::Duplicate(receipt) => {
                self.answer(session, Event::Receipts { session: number, receipts: vec![receipt] });
            }
            judged @ (Judged::Refuse | Judged::Undecided) => {
                self.refusals += 1;
                let undecided = judged == Judged::Undecided;
                let refusal = SendRefusal { sequence_id: sent.sequence_id, error: "refused".into(), undecided };
                self.answer(session, Event::Refused { session: number, refusals: vec![refusal] });
            }
        }
    }

    /// An answer goes on its way back, behind all answers before it.
    fn answer(&mut self, session: u64, event: Event) {
        let way = self.way();
        let now_ms = self.now_ms;
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.last_answer_ms = state.last_answer_ms.max(now_ms + way);
        let after = state.last_answer_ms - now_ms;
        self.at(after, Happening::Answer { session, event });
    }

    fn answered(&mut self, session: u64, event: Event) {
        let cut = self.sessions.get(&session).is_none_or(|state| state.cut_ms < u64::MAX);
        if (cut || session < self.life_base) && self.planted != Planted::OldReceipts {
            return;
        }
        let number = if self.planted == Planted::OldReceipts { self.open_session() } else { session - self.life_base };
        self.feed(match event {
            Event::Receipts { receipts, .. } => Event::Receipts { session: number, receipts },
            Event::Refused { refusals, .. } => Event::Refused { session: number, refusals },
            other => other,
        });
    }

    fn drop_connection(&mut self) {
        let Some(session) = self.sessions.iter().filter(|(_, state)| state.open).map(|(number, _)| *number).max()
        else {
            return;
        };
        self.drops += 1;
        let (way, late) = (self.way(), self.way());
        let now_ms = self.now_ms;
        if let Some(state) = self.sessions.get_mut(&session) {
            state.open = false;
            state.cut_ms = now_ms + way;
        }
        if self.planted == Planted::AnswersTooEarly {
            self.queue.retain(|_, happening| !matches!(happening, Happening::Persist { .. }));
        }
        if session >= self.life_base {
            let lost = Event::Lost { session: session - self.life_base, reason: "cut".into() };
            self.at(late, Happening::Deliver(lost));
        }
    }

    /// The process of the source dies: acknowledgements since the last flush are forgotten.
    fn crash(&mut self) {
        let dead: Vec<u64> = self.sessions.keys().copied().filter(|number| *number >= self.life_base).collect();
        let way = self.way();
        for number in dead {
            if let Some(state) = self.sessions.get_mut(&number) {
                state.open = false;
                state.cut_ms = state.cut_ms.min(self.now_ms + way);
            }
        }
        self.life_base = self.sessions.keys().max().map_or(0, |last| last + 1);
        self.queue.retain(|_, happening| !matches!(happening, Happening::Deliver(_) | Happening::Look { .. }));
        self.acked = self.acked_durable.clone();
        self.machine = machine(self.bounds, self.now_ms);
        let start = self.start_point(false);
        self.feed(Event::Started(start));
    }

    /// The checker of M2: only what the remote has, or what is not to be sent, is acknowledged.
    fn ack(&mut self, positions: &[Position]) {
        for position in positions {
            let goes = self.expected.binary_search(position).is_ok();
            if goes && !self.remote.holds(position) {
                self.violations.push(format!("{position} is acknowledged and not stored"));
            }
            self.acked.insert(*position);
        }
    }

    /// Positions that are there twice, or not at all, or behind a later one.
    pub fn compare(&self) -> (Vec<Position>, Vec<Position>, bool) {
        let mut seen: BTreeMap<Position, u32> = BTreeMap::new();
        self.remote.stored.iter().for_each(|at| *seen.entry(*at).or_default() += 1);
        let marker = |at: &Position| self.log[at].marker;
        let twice = seen.iter().filter(|(at, count)| **count > 1 && !marker(at)).map(|(at, _)| *at).collect();
        let missing = self.expected.iter().filter(|at| !seen.contains_key(at)).copied().collect();
        let first: Vec<Position> = {
            let mut met = BTreeSet::new();
            self.remote.stored.iter().filter(|at| !marker(at) && met.insert(**at)).copied().collect()
        };
        (twice, missing, first.is_sorted())
    }
}
