//! One link of a topic to a remote region, as a pure state machine: events and time in, effects out.
//!
//! ```text
//! Started → Open → [Opened] → Read → classify → Send → receipts → Ack
//!                     │                          │
//!                     └── lost, refused, stalled ┘→ rewind to the first entry not through → wait → Open …
//! ```
//!
//! Invariants:
//! - M1 In one session entries are sent in the order of the log, each once, none passed over that is to be sent.
//! - M2 Only what the remote has stored, or what a rule keeps here, is acknowledged ([`flight`], [`proof`]).
//! - M3 A rewind wins over every read, send and receipt begun before it: reads carry an epoch, sends and receipts a session,
//!   and after a rewind both are new.
//! - M4 After one refused send nothing more is sent in that session; what is under way is waited for, within a bound.
//! - M5 A rewind gives back everything: no permit, byte or budget stays taken.
//! - M6 Entries and bytes that wait for receipts are bounded; after a refusal one entry goes, and each receipt adds one.
//! - M7 What is not copied is counted by its reason: expired, undecodable, removed before it was read.
//! - M8 Every wait has an end: what makes no progress with something under way is restarted and counted.
//!
//! Must never know: sockets, tasks, clocks, policies.

mod answers;
pub mod classify;
pub mod flight;
pub mod limit;
pub mod proof;
mod pump;
pub mod reader;
pub mod schemas;
#[cfg(test)]
mod simulation;
pub mod state;
#[cfg(test)]
mod tests;
pub mod words;

use bytes::BytesMut;
use flight::Flight;
use limit::{Backoff, LinkLimits, SharedLimit, Throttle};
use meridian_types::{Position, RegionId};
use proof::Proof;
use reader::{ReadSize, Reader};
use schemas::Schemas;
use state::{Counters, LinkState, LinkView};
use std::sync::Arc;
use words::{Effect, Event, Notice, Now, OpenFailure, Outgoing, Peer, StartPoint};

/// Bounds of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Entries that wait for receipts at most (Pulsar: `replicationProducerQueueSize`).
    pub max_waiting_entries: u32,
    /// Bytes of them.
    pub max_waiting_bytes: u64,
    /// Entries of one read.
    pub read_entries: u32,
    /// Bytes of one read.
    pub read_bytes: u64,
    /// Without a receipt for so long the link says that it is stalled.
    pub stalled_after_ms: u64,
    /// Without a receipt for so long it is restarted.
    pub restart_after_ms: u64,
    /// How long answers are waited for after a refusal.
    pub drain_ms: u64,
    /// First wait before the next try.
    pub min_backoff_ms: u64,
    /// Longest wait before the next try.
    pub max_backoff_ms: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_waiting_entries: 1000,
            max_waiting_bytes: 32 << 20,
            read_entries: 500,
            read_bytes: 2 << 20,
            stalled_after_ms: 10_000,
            restart_after_ms: 30_000,
            drain_ms: 5_000,
            min_backoff_ms: 100,
            max_backoff_ms: 2_000,
        }
    }
}

/// What a link is between.
#[derive(Clone)]
pub struct LinkConfig {
    /// Name of the region here.
    pub local: Arc<str>,
    /// Name of the region there.
    pub remote: Arc<str>,
    /// Bounds.
    pub bounds: Bounds,
    /// Limits at first.
    pub limits: LinkLimits,
    /// A limit shared with other links.
    pub shared: Option<Arc<dyn SharedLimit>>,
}

/// How long a stop waits for the answers to what is under way.
const STOP_DRAIN_MS: u64 = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting { until_ms: u64 },
    Opening,
    Open { peer: Peer, since_ms: u64 },
    Closing,
    Stopped,
}

/// A session that takes no more sends: it ends when everything is answered or the time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    until_ms: u64,
    rename: bool,
}

/// Effects as they come together during one step; a batch of acks and of sends each.
#[derive(Default)]
struct Out {
    effects: Vec<Effect>,
    acks: Vec<Position>,
    sends: Vec<Outgoing>,
}

impl Out {
    fn finish(mut self, session: u64) -> Vec<Effect> {
        if !self.acks.is_empty() {
            self.effects.insert(0, Effect::Ack(self.acks));
        }
        if !self.sends.is_empty() {
            self.effects.push(Effect::Send { session, entries: self.sends });
        }
        self.effects
    }
}

/// See the head of the file.
pub struct Machine {
    config: LinkConfig,
    local_id: RegionId,
    limits: LinkLimits,
    now: Now,
    phase: Phase,
    ending: Option<Ending>,
    stop_wanted: bool,
    session: u64,
    generation: u64,
    reopen_at_ms: u64,
    backoff: Backoff,
    window: u32,
    next_sequence: u64,
    reader: Reader,
    flight: Flight,
    proof: Proof,
    schemas: Schemas,
    throttle: Throttle,
    throttled_until_ms: Option<u64>,
    buffer: BytesMut,
    refused: Option<String>,
    failure: Option<OpenFailure>,
    lost: Option<String>,
    progress_ms: u64,
    stalled_since_ms: Option<u64>,
    oldest_hint_ms: Option<u64>,
    state: LinkState,
    state_since_ms: u64,
    counters: Counters,
    last_notice: Option<(u64, Notice)>,
}

impl Machine {
    /// A link that does nothing before [`Event::Started`].
    pub fn new(config: LinkConfig, now_ms: u64) -> Self {
        let bounds = config.bounds;
        let backoff = Backoff::new(bounds.min_backoff_ms, bounds.max_backoff_ms);
        let limits = config.limits;
        let mut throttle = Throttle::default();
        throttle.set(limits.messages_per_second, limits.bytes_per_second, now_ms);
        Self {
            local_id: RegionId::of(&config.local),
            limits,
            now: Now { ms: now_ms, jitter_permille: 0 },
            phase: Phase::Idle,
            ending: None,
            stop_wanted: false,
            session: 0,
            generation: 0,
            reopen_at_ms: 0,
            backoff,
            window: bounds.max_waiting_entries,
            next_sequence: 0,
            reader: Reader::new(backoff),
            flight: Flight::default(),
            proof: Proof::default(),
            schemas: Schemas::new(backoff),
            throttle,
            throttled_until_ms: None,
            buffer: BytesMut::new(),
            refused: None,
            failure: None,
            lost: None,
            progress_ms: now_ms,
            stalled_since_ms: None,
            oldest_hint_ms: None,
            state: LinkState::Starting,
            state_since_ms: now_ms,
            counters: Counters::default(),
            last_notice: None,
            config,
        }
    }

    /// One step. Time never goes back for the machine.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.now = Now { ms: now.ms.max(self.now.ms), ..now };
        let mut out = Out::default();
        self.apply(event, &mut out);
        self.advance(&mut out);
        self.note_state();
        debug_assert!(self.flight.waiting_entries() <= self.config.bounds.max_waiting_entries, "M6");
        out.finish(self.session)
    }

    /// When a [`Event::Tick`] is due; `None` = not before something happens.
    pub fn wake_at_ms(&self) -> Option<u64> {
        let bounds = self.config.bounds;
        let watch = (self.flight.waiting_entries() > 0).then(|| {
            let after_ms =
                if self.stalled_since_ms.is_some() { bounds.restart_after_ms } else { bounds.stalled_after_ms };
            self.progress_ms + after_ms
        });
        let phase = match self.phase {
            Phase::Waiting { until_ms } => Some(until_ms),
            Phase::Open { .. } => {
                let own =
                    [self.ending.map(|ending| ending.until_ms), self.throttled_until_ms, self.schemas.wake_at_ms()];
                own.into_iter().flatten().filter(|at_ms| *at_ms > self.now.ms).min()
            }
            Phase::Stopped => return None,
            _ => None,
        };
        // What was due at the last step was looked at then.
        let due = [watch, phase, self.reader.wake_at_ms()].into_iter().flatten();
        due.filter(|at_ms| *at_ms > self.now.ms).min()
    }

    /// Nothing will happen any more.
    pub fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// What the link says of itself.
    pub fn view(&self) -> LinkView {
        LinkView {
            state: self.state.clone(),
            since_ms: self.state_since_ms,
            connected_since_ms: match self.phase {
                Phase::Open { since_ms, .. } => Some(since_ms),
                _ => None,
            },
            counters: self.counters,
            oldest_ms: self.oldest_ms(),
            waiting_entries: self.flight.waiting_entries(),
            waiting_bytes: self.flight.waiting_bytes(),
            queued_entries: self.reader.queued() as u32,
            window: self.window,
            generation: self.generation,
            last_notice: self.last_notice.clone(),
        }
    }

    fn oldest_ms(&self) -> Option<u64> {
        let front = self.flight.front().map(|slot| slot.broker_time_ms);
        let known = front.or_else(|| self.reader.front().map(|ready| ready.broker_time_ms));
        if self.reader.is_caught_up() { known } else { known.or(self.oldest_hint_ms) }
    }

    fn apply(&mut self, event: Event, out: &mut Out) {
        if self.phase == Phase::Stopped {
            return;
        }
        match event {
            Event::Started(start) => self.start(&start),
            Event::Tick => {}
            Event::Read { epoch, entries } => self.read(epoch, entries, out),
            Event::ReadFailed { epoch, error } => self.reader.failed(self.now, epoch, error),
            Event::Grown { epoch } => self.reader.grown(epoch),
            Event::Opened { session, peer } if self.is_in(session) && self.phase == Phase::Opening => self.opened(peer),
            Event::OpenFailed { session, failure } if self.is_in(session) && self.phase == Phase::Opening => {
                self.failure = Some(failure);
                self.wait();
            }
            Event::Receipts { session, receipts } if self.is_open(session) => self.receipts(&receipts, out),
            Event::Refused { session, refusals } if self.is_open(session) => self.refusals(refusals, out),
            Event::Lost { session, reason } if self.is_in(session) => self.session_lost(reason, out),
            Event::Closed { session } if self.is_in(session) && self.phase == Phase::Closing => {
                self.phase = Phase::Waiting { until_ms: self.reopen_at_ms };
            }
            Event::Schema { session, version, outcome } if self.is_open(session) => {
                self.schemas.answer(version, outcome, self.now);
            }
            Event::CursorMoved { first } => self.cursor_moved(first, out),
            Event::SetLimits(limits) => self.set_limits(limits),
            Event::Stop => self.want_stop(out),
            // Of a session that is over (M3).
            Event::Opened { .. }
            | Event::OpenFailed { .. }
            | Event::Receipts { .. }
            | Event::Refused { .. }
            | Event::Lost { .. }
            | Event::Closed { .. }
            | Event::Schema { .. } => {}
        }
    }

    fn is_in(&self, session: u64) -> bool {
        session == self.session
    }

    fn is_open(&self, session: u64) -> bool {
        self.is_in(session) && matches!(self.phase, Phase::Open { .. })
    }

    fn start(&mut self, start: &StartPoint) {
        if self.phase != Phase::Idle {
            return;
        }
        self.proof = Proof::at_start(start);
        self.generation = start.generation;
        if let Some(acked) = start.highest_acked {
            self.reader.expect_acked_up_to(acked);
        }
        self.reader.rewind(start.first, None);
        self.phase = Phase::Waiting { until_ms: self.now.ms };
    }

    fn read(&mut self, epoch: u64, entries: Vec<words::ReadEntry>, out: &mut Out) {
        for effect in self.reader.read(epoch, entries, self.local_id, &self.config.remote) {
            match effect {
                Effect::Announce(notice) => self.announce(notice, out),
                other => out.effects.push(other),
            }
        }
    }

    fn announce(&mut self, notice: Notice, out: &mut Out) {
        match &notice {
            Notice::Gap { messages, .. } => {
                self.counters.gaps += 1;
                self.counters.gap_messages += messages;
            }
            Notice::Undecodable { .. } => self.counters.undecodable += 1,
            Notice::Unproven { .. } => self.counters.unproven_duplicates += 1,
            Notice::Restarted { .. } => self.counters.restarts += 1,
        }
        self.last_notice = Some((self.now.ms, notice.clone()));
        out.effects.push(Effect::Announce(notice));
    }

    fn set_limits(&mut self, limits: LinkLimits) {
        self.limits = limits;
        self.throttle.set(limits.messages_per_second, limits.bytes_per_second, self.now.ms);
        self.throttled_until_ms = None;
    }

    fn opened(&mut self, peer: Peer) {
        self.phase = Phase::Open { peer, since_ms: self.now.ms };
        self.failure = None;
        self.lost = None;
        self.progress_ms = self.now.ms;
        // M6: after trouble one entry goes first.
        let calm = self.refused.is_none() && self.stalled_since_ms.is_none();
        self.window = if calm { self.config.bounds.max_waiting_entries } else { 1 };
        self.schemas.session();
    }

    /// M4: nothing more in this session.
    fn end(&mut self, rename: bool) {
        let until_ms = self.now.ms + self.config.bounds.drain_ms;
        let ending = self.ending.get_or_insert(Ending { until_ms, rename });
        ending.rename |= rename;
    }

    /// Goes back to the first entry that is not through (M3, M5).
    fn rewind(&mut self) {
        let flight = self.flight.front().map(|slot| (slot.position, Some(slot.first_index)));
        let queue = self.reader.front().map(|ready| (ready.position, Some(ready.first_index)));
        let (from, next_index) = flight.or(queue).unwrap_or_else(|| self.reader.place());
        self.oldest_hint_ms = self.oldest_ms();
        self.flight.waiting().for_each(|slot| self.proof.unanswered(slot.position));
        self.flight.clear();
        self.reader.rewind(from, next_index);
        self.throttled_until_ms = None;
        self.counters.rewinds += 1;
    }

    /// Ends the session from this side; the next one is opened after a wait.
    fn close(&mut self, rename: bool, out: &mut Out) {
        if self.stop_wanted {
            return self.stop(out);
        }
        self.ending = None;
        self.rewind();
        self.reopen_at_ms = self.now.ms + self.backoff.next_ms(self.now);
        if rename {
            self.generation = self.now.ms.max(self.generation + 1);
            self.proof.renamed();
        }
        out.effects.push(Effect::Close { session: self.session });
        self.phase = Phase::Closing;
    }

    fn session_lost(&mut self, reason: String, out: &mut Out) {
        match self.phase {
            Phase::Open { since_ms, .. } => {
                self.counters.disconnected += 1;
                if self.now.ms.saturating_sub(since_ms) > self.config.bounds.max_backoff_ms {
                    self.backoff.reset();
                }
                if self.ending.take().is_some_and(|ending| ending.rename) {
                    self.generation = self.now.ms.max(self.generation + 1);
                    self.proof.renamed();
                }
                self.rewind();
            }
            Phase::Opening => {}
            // The close that is under way says when it is done.
            _ => return,
        }
        self.lost = Some(reason);
        if self.stop_wanted {
            return self.stop(out);
        }
        self.wait();
    }

    fn wait(&mut self) {
        self.phase = Phase::Waiting { until_ms: self.now.ms + self.backoff.next_ms(self.now) };
    }

    fn cursor_moved(&mut self, first: Position, out: &mut Out) {
        if self.phase == Phase::Idle {
            return;
        }
        self.proof.moved();
        if matches!(self.phase, Phase::Open { .. }) {
            self.close(false, out);
        }
        self.flight.clear();
        self.oldest_hint_ms = None;
        self.reader.rewind(first, None);
    }

    /// Nothing more is sent; what is under way gets its answers, so that it is not sent again in the next life.
    fn want_stop(&mut self, out: &mut Out) {
        if !matches!(self.phase, Phase::Open { .. }) || self.flight.waiting_entries() == 0 {
            return self.stop(out);
        }
        self.stop_wanted = true;
        let until_ms = self.now.ms + STOP_DRAIN_MS;
        let ending = self.ending.get_or_insert(Ending { until_ms, rename: false });
        ending.until_ms = ending.until_ms.min(until_ms);
    }

    fn stop(&mut self, out: &mut Out) {
        if matches!(self.phase, Phase::Open { .. } | Phase::Opening) {
            out.effects.push(Effect::Close { session: self.session });
        }
        self.flight.clear();
        self.reader.rewind(Position::LATEST, None);
        self.ending = None;
        self.phase = Phase::Stopped;
    }

    /// What follows from where the machine is now.
    fn advance(&mut self, out: &mut Out) {
        self.finish_ending(out);
        self.watch(out);
        match self.phase {
            Phase::Waiting { until_ms } if until_ms <= self.now.ms => {
                self.session += 1;
                self.phase = Phase::Opening;
                out.effects.push(Effect::Open { session: self.session, generation: self.generation });
            }
            Phase::Open { peer, .. } if self.ending.is_none() => {
                self.pump(peer, out);
                self.finish_ending(out);
                self.forget_trouble();
            }
            _ => {}
        }
        if self.phase != Phase::Stopped && self.phase != Phase::Idle {
            let size = self.read_size();
            out.effects.extend(self.reader.want(self.now, size));
        }
    }

    /// Nothing is left that anything could be wrong with.
    fn forget_trouble(&mut self) {
        if self.reader.is_caught_up() && self.flight.entries() == 0 {
            self.refused = None;
            self.stalled_since_ms = None;
            self.window = self.config.bounds.max_waiting_entries;
        }
    }

    /// While nothing can be sent one entry is read ahead: it says how old the oldest one is.
    fn read_size(&self) -> ReadSize {
        let bounds = self.config.bounds;
        if !matches!(self.phase, Phase::Open { .. }) || self.ending.is_some() {
            return ReadSize { entries: 1, bytes: 1 };
        }
        let entries = bounds.read_entries.min(self.window.saturating_mul(2)).max(2);
        let bytes = if entries < bounds.read_entries { bounds.read_bytes / 8 } else { bounds.read_bytes };
        ReadSize { entries, bytes }
    }

    fn finish_ending(&mut self, out: &mut Out) {
        let Some(ending) = self.ending else { return };
        if self.flight.waiting_entries() == 0 || ending.until_ms <= self.now.ms {
            self.close(ending.rename, out);
        }
    }

    /// M8.
    fn watch(&mut self, out: &mut Out) {
        if self.flight.waiting_entries() == 0 {
            return;
        }
        let idle_ms = self.now.ms.saturating_sub(self.progress_ms);
        let bounds = self.config.bounds;
        if idle_ms >= bounds.stalled_after_ms {
            self.stalled_since_ms.get_or_insert(self.progress_ms);
        }
        if idle_ms >= bounds.restart_after_ms {
            self.announce(Notice::Restarted { after_ms: idle_ms }, out);
            self.close(false, out);
        }
    }

    fn note_state(&mut self) {
        let state = self.current_state();
        if std::mem::discriminant(&state) != std::mem::discriminant(&self.state) {
            self.state_since_ms = self.stalled_since_ms.filter(|_| state == LinkState::Stalled).unwrap_or(self.now.ms);
        }
        if state != self.state {
            self.state = state;
        }
    }

    fn current_state(&self) -> LinkState {
        match (self.phase, &self.refused, &self.failure) {
            (Phase::Stopped, ..) => return LinkState::Stopped,
            (Phase::Idle, ..) => return LinkState::Starting,
            _ if self.stalled_since_ms.is_some() => return LinkState::Stalled,
            (_, _, Some(OpenFailure::PartitionMismatch { local, remote })) => {
                return LinkState::PartitionMismatch { local: *local, remote: *remote };
            }
            (_, _, Some(OpenFailure::Schema(why))) => return LinkState::SchemaBlocked(why.clone()),
            (_, _, Some(OpenFailure::Unreachable(why))) => return LinkState::Disconnected(why.clone()),
            (_, _, Some(OpenFailure::Refused(by))) | (_, Some(by), None) => return LinkState::Refused(by.clone()),
            _ => {}
        }
        if let Some(why) = self.schemas.failure() {
            return LinkState::SchemaBlocked(why.to_owned());
        }
        match (self.phase, &self.lost) {
            (Phase::Open { .. }, _) => {}
            (_, Some(why)) => return LinkState::Disconnected(why.clone()),
            _ => return LinkState::Connecting,
        }
        match (self.reader.failure(), self.throttled_until_ms) {
            (Some(why), _) => LinkState::Unreadable(why.to_owned()),
            (None, Some(_)) => LinkState::Throttled,
            _ => LinkState::Running,
        }
    }
}
