//! The link of a topic that keeps nothing, as a pure state machine: events and time in, effects out.
//!
//! Invariants:
//! - V1 an entry is sent once or not at all, in the order in which it was published; what is not sent though it was meant
//!   for the remote, or was sent and not answered, is counted.
//! - V2 what came from another region, or names other regions, is never sent and never counted as dropped.
//! - V3 no more than the bounds wait for receipts, and no more is taken than may be sent; what is published beyond that stays
//!   in the queue, which is bounded, too.
//! - V4 entries wait for a session only while the first attempt to have one is under way, and for [`HOLD_MS`] at most; with
//!   a remote that is known to be away they are dropped at once.
//! - V5 a link without messages for its idle time closes, so that topics nobody uses any more can go on both sides.
//!
//! Must never know: sockets, tasks, clocks, policies.

use super::queue::LiveEntry;
use super::words::{LiveCounters, LiveEffect, LiveEvent, LiveView};
use crate::machine::LinkConfig;
use crate::machine::classify::{Sendable, Skip, Verdict, classify};
use crate::machine::limit::{Backoff, Throttle};
use crate::machine::schemas::{Known, Schemas};
use crate::machine::state::LinkState;
use crate::machine::words::{Hold, Now, OpenFailure, Outgoing, Peer};
use bytes::{Bytes, BytesMut};
use meridian_managed_ledger::LogEntry;
use meridian_types::{Incarnation, Position, RegionId};
use meridian_wire::replicate::{Stamp, stamp};
use std::collections::VecDeque;

/// How long entries wait for a session.
pub const HOLD_MS: u64 = 3_000;
/// Entries taken at once.
const RUN_ENTRIES: u32 = 256;
/// Bytes taken at once where no window bounds them.
const RUN_BYTES: u64 = 4 << 20;
/// What the stamp adds to an entry at most, as a rule.
const STAMP_BYTES: u64 = 256;
/// Where an entry "is" that is kept nowhere.
const NOWHERE: Position = Position::new(0, 0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// V5.
    Idle,
    Waiting {
        until_ms: u64,
    },
    Opening,
    Open {
        peer: Peer,
        since_ms: u64,
    },
    Closing,
    Stopped,
}

/// What to do with the entry in front.
enum Next {
    Send(Sendable, Option<Bytes>),
    /// V1.
    Drop,
    /// V2.
    Pass,
    Hold,
}

/// See the head of the file.
pub struct LiveMachine {
    config: LinkConfig,
    local_id: RegionId,
    now: Now,
    phase: Phase,
    session: u64,
    stop_wanted: bool,
    /// Closing for want of messages.
    resting: bool,
    reopen_at_ms: u64,
    hold_until_ms: u64,
    backoff: Backoff,
    schemas: Schemas,
    throttle: Throttle,
    throttled_until_ms: Option<u64>,
    idle_ms: u64,
    /// Taken and not sent.
    held: VecDeque<LiveEntry>,
    /// Messages and bytes of each send without an answer, and what it holds until then.
    flight: VecDeque<(u32, u64, Option<Hold>)>,
    flight_bytes: u64,
    /// Of the last answer, or of the send that nothing was under way before.
    progress_ms: u64,
    entry_ms: u64,
    next_sequence: u64,
    failure: Option<OpenFailure>,
    lost: Option<String>,
    refused: Option<String>,
    buffer: BytesMut,
    counters: LiveCounters,
    state: LinkState,
    state_since_ms: u64,
}

impl LiveMachine {
    /// A link that opens with the first [`LiveEvent::Tick`].
    pub fn new(config: LinkConfig, idle_ms: u64, now_ms: u64) -> Self {
        let backoff = Backoff::new(config.bounds.min_backoff_ms, config.bounds.max_backoff_ms);
        let mut throttle = Throttle::default();
        throttle.set(config.limits.messages_per_second, config.limits.bytes_per_second, now_ms);
        Self {
            local_id: RegionId::of(&config.local),
            now: Now { ms: now_ms, jitter_permille: 0 },
            phase: Phase::Waiting { until_ms: now_ms },
            session: 0,
            stop_wanted: false,
            resting: false,
            reopen_at_ms: now_ms,
            hold_until_ms: now_ms + HOLD_MS,
            backoff,
            schemas: Schemas::new(backoff),
            throttle,
            throttled_until_ms: None,
            idle_ms: idle_ms.max(1),
            held: VecDeque::new(),
            flight: VecDeque::new(),
            flight_bytes: 0,
            progress_ms: now_ms,
            entry_ms: now_ms,
            next_sequence: 0,
            failure: None,
            lost: None,
            refused: None,
            buffer: BytesMut::new(),
            counters: LiveCounters::default(),
            state: LinkState::Connecting,
            state_since_ms: now_ms,
            config,
        }
    }

    /// One step. Time never goes back for the machine.
    pub fn handle(&mut self, now: Now, event: LiveEvent) -> Vec<LiveEffect> {
        self.now = Now { ms: now.ms.max(self.now.ms), ..now };
        let mut effects = Vec::new();
        self.apply(event, &mut effects);
        self.advance(&mut effects);
        self.pump(&mut effects);
        self.note_state();
        debug_assert!(self.flight.len() <= self.config.bounds.max_waiting_entries as usize, "V3");
        effects
    }

    /// Entries and bytes that it would take now; no entries = none before something happens.
    pub fn wants(&self) -> (usize, u64) {
        let run = (RUN_ENTRIES as usize, RUN_BYTES);
        match self.phase {
            Phase::Stopped => (0, 0),
            _ if self.stop_wanted || !self.held.is_empty() => (0, 0),
            Phase::Open { .. } => {
                let bounds = &self.config.bounds;
                let entries = bounds.max_waiting_entries.saturating_sub(self.flight.len() as u32).min(RUN_ENTRIES);
                match bounds.max_waiting_bytes.saturating_sub(self.flight_bytes) {
                    0 => (0, 0),
                    bytes => (entries as usize, bytes),
                }
            }
            Phase::Idle => run,
            Phase::Waiting { .. } | Phase::Opening | Phase::Closing if self.is_holding() => (0, 0),
            Phase::Waiting { .. } | Phase::Opening | Phase::Closing => run,
        }
    }

    /// When a [`LiveEvent::Tick`] is due; `None` = not before something happens.
    pub fn wake_at_ms(&self) -> Option<u64> {
        let bounds = &self.config.bounds;
        let hold = Some(self.hold_until_ms);
        let times = match self.phase {
            Phase::Idle | Phase::Stopped => return None,
            Phase::Waiting { until_ms } => [Some(until_ms), hold, None, None],
            Phase::Opening | Phase::Closing => [hold, None, None, None],
            Phase::Open { .. } if self.flight.is_empty() => {
                [self.throttled_until_ms, self.schemas.wake_at_ms(), Some(self.entry_ms + self.idle_ms), None]
            }
            Phase::Open { .. } => [
                self.throttled_until_ms,
                self.schemas.wake_at_ms(),
                Some(self.progress_ms + bounds.stalled_after_ms),
                Some(self.progress_ms + bounds.restart_after_ms),
            ],
        };
        times.into_iter().flatten().filter(|at_ms| *at_ms > self.now.ms).min()
    }

    /// Nothing will happen any more.
    pub fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// What the link says of itself.
    pub fn view(&self) -> LiveView {
        LiveView {
            state: self.state.clone(),
            since_ms: self.state_since_ms,
            connected_since_ms: match self.phase {
                Phase::Open { since_ms, .. } => Some(since_ms),
                _ => None,
            },
            counters: self.counters,
        }
    }

    /// V4.
    fn is_holding(&self) -> bool {
        self.failure.is_none() && self.now.ms < self.hold_until_ms
    }

    fn is_open(&self, session: u64) -> bool {
        session == self.session && matches!(self.phase, Phase::Open { .. })
    }

    fn apply(&mut self, event: LiveEvent, effects: &mut Vec<LiveEffect>) {
        match event {
            LiveEvent::Tick => {}
            LiveEvent::Entries(run) => self.published(run),
            LiveEvent::Opened { session, peer } if session == self.session && self.phase == Phase::Opening => {
                self.phase = Phase::Open { peer, since_ms: self.now.ms };
                (self.failure, self.lost) = (None, None);
                (self.progress_ms, self.entry_ms) = (self.now.ms, self.now.ms);
                self.schemas.session();
            }
            LiveEvent::OpenFailed { session, failure } if session == self.session && self.phase == Phase::Opening => {
                self.failure = Some(failure);
                self.wait();
            }
            LiveEvent::Answers { session, answers } if self.is_open(session) => self.answered(answers),
            LiveEvent::Lost { session, reason } if session == self.session => self.session_lost(reason),
            LiveEvent::Closed { session } if session == self.session && self.phase == Phase::Closing => {
                self.phase = match (self.stop_wanted, std::mem::take(&mut self.resting)) {
                    (true, _) => Phase::Stopped,
                    (false, true) => Phase::Idle,
                    (false, false) => Phase::Waiting { until_ms: self.reopen_at_ms },
                };
            }
            LiveEvent::Schema { session, version, outcome } if self.is_open(session) => {
                self.schemas.answer(version, outcome, self.now);
            }
            LiveEvent::SetLimits(limits) => {
                self.throttle.set(limits.messages_per_second, limits.bytes_per_second, self.now.ms);
                self.throttled_until_ms = None;
            }
            LiveEvent::Stop => self.stop(effects),
            // Of a session that is over.
            LiveEvent::Opened { .. }
            | LiveEvent::OpenFailed { .. }
            | LiveEvent::Answers { .. }
            | LiveEvent::Lost { .. }
            | LiveEvent::Closed { .. }
            | LiveEvent::Schema { .. } => {}
        }
    }

    fn published(&mut self, run: Vec<LiveEntry>) {
        self.entry_ms = self.now.ms;
        self.held.extend(run);
        let closes_idle = std::mem::take(&mut self.resting);
        if self.phase == Phase::Idle {
            self.phase = Phase::Waiting { until_ms: self.now.ms };
        } else if !closes_idle {
            return;
        }
        self.hold_until_ms = self.now.ms + HOLD_MS;
        self.reopen_at_ms = self.now.ms;
    }

    fn answered(&mut self, answers: Vec<Result<(), String>>) {
        self.progress_ms = self.now.ms;
        for answer in answers {
            let (messages, bytes, _hold) = self.flight.pop_front().unwrap_or_default();
            self.flight_bytes -= bytes;
            match answer {
                Ok(()) => {
                    self.counters.messages += u64::from(messages);
                    self.refused = None;
                    self.backoff.reset();
                }
                Err(error) => {
                    self.counters.dropped_messages += u64::from(messages);
                    self.refused = Some(error);
                }
            }
        }
    }

    /// What was sent and not answered may be there or not: it counts as dropped (V1).
    fn give_up_flight(&mut self) {
        self.counters.dropped_messages += self.flight.iter().map(|(messages, ..)| u64::from(*messages)).sum::<u64>();
        self.flight.clear();
        self.flight_bytes = 0;
        self.throttled_until_ms = None;
    }

    fn session_lost(&mut self, reason: String) {
        match self.phase {
            Phase::Open { since_ms, .. } => {
                if self.now.ms.saturating_sub(since_ms) > self.config.bounds.max_backoff_ms {
                    self.backoff.reset();
                }
                self.give_up_flight();
                self.hold_until_ms = self.now.ms + HOLD_MS;
            }
            Phase::Opening => {}
            // The close that is under way says when it is done.
            _ => return,
        }
        self.lost = Some(reason);
        self.wait();
    }

    fn wait(&mut self) {
        self.phase = Phase::Waiting { until_ms: self.now.ms + self.backoff.next_ms(self.now) };
    }

    fn close(&mut self, effects: &mut Vec<LiveEffect>) {
        self.give_up_flight();
        effects.push(LiveEffect::Close { session: self.session });
        self.phase = Phase::Closing;
    }

    fn stop(&mut self, effects: &mut Vec<LiveEffect>) {
        self.stop_wanted = true;
        self.held.clear();
        match self.phase {
            Phase::Open { .. } | Phase::Opening => self.close(effects),
            Phase::Idle | Phase::Waiting { .. } => self.phase = Phase::Stopped,
            Phase::Closing | Phase::Stopped => {}
        }
    }

    /// What is due.
    fn advance(&mut self, effects: &mut Vec<LiveEffect>) {
        match self.phase {
            Phase::Waiting { until_ms } if until_ms <= self.now.ms => {
                self.session += 1;
                self.phase = Phase::Opening;
                effects.push(LiveEffect::Open { session: self.session });
            }
            Phase::Open { .. } if self.is_silent_for(self.config.bounds.restart_after_ms) => {
                let after_ms = self.now.ms - self.progress_ms;
                self.counters.restarts += 1;
                self.lost = Some(format!("no answer within {after_ms} ms"));
                self.reopen_at_ms = self.now.ms + self.backoff.next_ms(self.now);
                self.hold_until_ms = self.now.ms;
                self.close(effects);
            }
            Phase::Open { .. } if self.is_unused() => {
                self.resting = true;
                self.close(effects);
            }
            _ => {}
        }
    }

    fn is_silent_for(&self, limit_ms: u64) -> bool {
        !self.flight.is_empty() && self.now.ms - self.progress_ms >= limit_ms
    }

    fn is_unused(&self) -> bool {
        self.flight.is_empty() && self.held.is_empty() && self.now.ms - self.entry_ms >= self.idle_ms
    }

    /// Sends what may go, and drops what can't.
    fn pump(&mut self, effects: &mut Vec<LiveEffect>) {
        self.throttled_until_ms = self.throttled_until_ms.filter(|until_ms| *until_ms > self.now.ms);
        let peer = match self.phase {
            Phase::Open { peer, .. } => Some(peer),
            Phase::Idle | Phase::Stopped => return,
            _ if self.is_holding() => return,
            _ => None,
        };
        let mut sends = Vec::new();
        while let Some(front) = self.held.front().cloned() {
            match self.next(&front, peer, effects) {
                Next::Hold => break,
                Next::Pass => {}
                Next::Drop => self.counters.dropped_messages += u64::from(front.messages),
                Next::Send(send, version) => self.send(&front, &send, version.as_deref(), &mut sends),
            }
            self.held.pop_front();
        }
        if !sends.is_empty() {
            effects.push(LiveEffect::Send { session: self.session, entries: sends });
        }
    }

    fn next(&mut self, front: &LiveEntry, peer: Option<Peer>, effects: &mut Vec<LiveEffect>) -> Next {
        let send = match self.verdict(front) {
            Verdict::Send(send) => send,
            Verdict::Skip(Skip::Undecodable(_)) => {
                self.counters.undecodable += 1;
                return Next::Drop;
            }
            Verdict::Skip(_) => return Next::Pass,
        };
        let Some(peer) = peer else { return Next::Drop };
        let bytes = front.payload.len() as u64;
        if self.is_full(bytes) {
            return Next::Hold;
        }
        if bytes + STAMP_BYTES > peer.max_entry_bytes {
            self.refused = Some(format!("a message has {bytes} bytes, the remote takes {}", peer.max_entry_bytes));
            return Next::Drop;
        }
        let version = match send.schema_version.as_ref().map(|version| (version, self.schemas.ask(version, self.now))) {
            None => None,
            Some((version, Known::Yes(remote))) => remote.filter(|remote| remote != version),
            // It could not be brought over a moment ago: there is nothing to wait for.
            Some((_, Known::Wait)) if self.schemas.wake_at_ms().is_some() => return Next::Drop,
            Some((_, Known::Wait)) => return Next::Hold,
            Some((version, Known::Bring)) => {
                effects.push(LiveEffect::BringSchema { session: self.session, version: version.clone() });
                return Next::Hold;
            }
        };
        if self.within_limits(front.messages, bytes) { Next::Send(send, version) } else { Next::Hold }
    }

    /// V3.
    fn is_full(&self, more_bytes: u64) -> bool {
        let bounds = &self.config.bounds;
        let over = !self.flight.is_empty() && self.flight_bytes + more_bytes > bounds.max_waiting_bytes;
        self.flight.len() >= bounds.max_waiting_entries.max(1) as usize || over
    }

    fn verdict(&self, entry: &LiveEntry) -> Verdict {
        let entry = LogEntry {
            position: NOWHERE,
            index: 0,
            messages: entry.messages,
            marker: false,
            broker_time_ms: self.now.ms,
            origin: (self.local_id, Incarnation(0), NOWHERE),
            payload: entry.payload.clone(),
        };
        classify(&entry, self.local_id, &self.config.remote)
    }

    fn within_limits(&mut self, messages: u32, bytes: u64) -> bool {
        let mut wait_ms = self.throttle.wait_ms(self.now.ms);
        if wait_ms == 0
            && let Some(shared) = &self.config.shared
        {
            wait_ms = shared.take(self.now.ms, messages, bytes).err().unwrap_or(0);
        }
        if wait_ms > 0 {
            self.throttled_until_ms = Some(self.now.ms + wait_ms);
            return false;
        }
        self.throttle.take(messages, bytes);
        true
    }

    fn send(&mut self, entry: &LiveEntry, send: &Sendable, version: Option<&[u8]>, sends: &mut Vec<Outgoing>) {
        let mark = Stamp { from: &self.config.local, position: None, schema_version: version };
        let Ok(payload) = stamp(&entry.payload, &mark, &mut self.buffer) else {
            self.counters.undecodable += 1;
            self.counters.dropped_messages += u64::from(entry.messages);
            return;
        };
        self.buffer.extend_from_slice(&payload);
        let whole = self.buffer.split().freeze();
        if self.flight.is_empty() {
            self.progress_ms = self.now.ms;
        }
        let bytes = whole.len() as u64;
        self.counters.bytes_sent += bytes;
        self.flight.push_back((entry.messages, bytes, entry.hold.clone()));
        self.flight_bytes += bytes;
        sends.push(Outgoing {
            position: NOWHERE,
            sequence_id: self.next_sequence,
            highest_sequence_id: None,
            messages: entry.messages.max(1),
            marker: false,
            chunk: send.chunk,
            source_position: None,
            entry: whole,
        });
        self.next_sequence += 1;
    }

    fn note_state(&mut self) {
        let state = self.present_state();
        if state != self.state {
            self.state = state;
            self.state_since_ms = self.now.ms;
        }
    }

    fn present_state(&self) -> LinkState {
        match self.phase {
            Phase::Stopped => LinkState::Stopped,
            Phase::Idle => LinkState::Idle,
            Phase::Closing if self.resting => LinkState::Idle,
            Phase::Open { .. } => self.open_state(),
            Phase::Waiting { .. } | Phase::Opening | Phase::Closing => match (&self.failure, &self.lost) {
                (Some(OpenFailure::Unreachable(why)), _) => LinkState::Disconnected(why.clone()),
                (Some(OpenFailure::Refused(why)), _) => LinkState::Refused(why.clone()),
                (Some(OpenFailure::Schema(why)), _) => LinkState::SchemaBlocked(why.clone()),
                (Some(OpenFailure::PartitionMismatch { local, remote }), _) => {
                    LinkState::PartitionMismatch { local: *local, remote: *remote }
                }
                (None, Some(why)) => LinkState::Disconnected(why.clone()),
                (None, None) => LinkState::Connecting,
            },
        }
    }

    fn open_state(&self) -> LinkState {
        let fails = self.schemas.wake_at_ms().is_none_or(|again_ms| again_ms > self.now.ms);
        if let Some(why) = self.schemas.failure().filter(|_| fails) {
            return LinkState::SchemaBlocked(why.to_owned());
        }
        if let Some(why) = &self.refused {
            return LinkState::Refused(why.clone());
        }
        if self.is_silent_for(self.config.bounds.stalled_after_ms) {
            return LinkState::Stalled;
        }
        if self.throttled_until_ms.is_some() { LinkState::Throttled } else { LinkState::Running }
    }
}
