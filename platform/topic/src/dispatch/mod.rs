//! Dispatch of one subscription as a state machine: who gets which entry next.
//!
//! Events come in as calls with the time, effects go out through [`Dispatcher::next_effect`]; the shell feeds what it
//! read back in. No clock, I/O, lock or task inside.
//!
//! Invariants:
//! - D1 one read is in flight at most; an answer to a cancelled read is ignored (tickets).
//! - D2 an entry is sent only to a consumer with permits > 0, a writable sink and no unacked limit reached.
//! - D3 Exclusive and Failover: only the active consumer gets entries, in log order, and none during a switch.
//! - D4 Shared and Key_Shared: every entry read is sent, waits in `replay` or `delayed`, or is behind `read_position`.
//! - D5 Key_Shared: entries of one key are unacked at one consumer at most, first deliveries are in log order.
//! - D6 `unacked` is the sum over the consumers; blocked states are functions of counters.
//! - D7 `replay` grows by reading ahead only up to [`LOOK_AHEAD_ENTRIES`].
//!
//! Failure: a failed read is repeated by the shell; nothing here fails but joining.
//! Must never know: sockets, logs, cursors (it is told positions), limits' origin.

mod assign;
mod consumer;
mod join;
mod key_shared;
mod rated;
mod redelivery;
mod replay;
mod single;
mod waiting;

pub(crate) use consumer::{Consumer, ConsumerSpec};
pub(crate) use join::Joining;
pub(crate) use rated::SharedLimits;
pub(crate) use redelivery::Acked;

use crate::api::{ConsumerKey, Delivery, SubscriptionType};
use crate::delayed::DelayedTracker;
use crate::rates::Limiter;
use key_shared::KeyHolders;
use meridian_managed_ledger::LogEntry;
use meridian_types::Position;
use replay::Replay;
use single::SingleActive;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Entries that may wait for replay before dispatch stops reading ahead past blocked keys.
pub(crate) const LOOK_AHEAD_ENTRIES: usize = 20_000;
/// Entries due that are taken from the delayed tracker at once.
const DUE_BATCH: usize = 1000;
/// Messages with a redelivery count that are remembered at most; later ones count from zero.
const REDELIVERY_COUNTS_MAX: usize = 500_000;
/// Chunked messages that are remembered at most.
const CHUNKED_MESSAGES_MAX: usize = 10_000;

/// A part of a chunked message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) uuid: Box<str>,
    pub(crate) id: u32,
    pub(crate) count: u32,
}

/// An entry that may be delivered, with what dispatch needs to know of it.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) entry: LogEntry,
    /// Words, 1 = unacked; empty = nothing of it is acked.
    pub(crate) ack_set: Vec<u64>,
    /// Messages of it that are not acked.
    pub(crate) unacked: u32,
    /// Sticky hash, 0 unless Key_Shared.
    pub(crate) key_hash: u32,
    /// When it may be delivered; 0 = at once.
    pub(crate) deliver_at_ms: u64,
    pub(crate) chunk: Option<Chunk>,
}

/// Numbers that bind dispatch; 0 = no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DispatchLimits {
    pub(crate) max_unacked_per_consumer: u64,
    pub(crate) max_unacked_per_subscription: u64,
    pub(crate) read_entries: u32,
    pub(crate) read_bytes: u64,
    pub(crate) round_robin_entries: u32,
    pub(crate) failover_delay_ms: u64,
    pub(crate) delayed_delivery: bool,
    pub(crate) delayed_tick_ms: u64,
    /// Messages and bytes that may be sent per second.
    pub(crate) rate: (u64, u64),
}

/// What the shell has to do, in this order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send these; then tell [`Dispatcher::set_writable`].
    Deliver { consumer: ConsumerKey, deliveries: Vec<Delivery> },
    /// Read on; answer by [`Dispatcher::read_done`].
    Read { ticket: u64, from: Position, max_entries: u32, max_bytes: u64 },
    /// Read these entries (ascending); answer by [`Dispatcher::replay_read_done`].
    ReadAt { ticket: u64, positions: Vec<Position> },
    /// Everything is read: call [`Dispatcher::data_available`] when something at or after `from` is confirmed.
    WaitForData { from: Position },
    /// Tell a consumer whether it is the active one.
    ActiveChanged { consumer: ConsumerKey, is_active: bool },
    /// Call [`Dispatcher::wake`] at that time.
    WakeAt { at_ms: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Normal { ticket: u64, since_ms: u64 },
    Replay { ticket: u64, since_ms: u64 },
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    sub_type: SubscriptionType,
    limits: DispatchLimits,
    consumers: Vec<Consumer>,
    single: SingleActive,
    keys: Option<KeyHolders>,
    round_robin: usize,
    replay: Replay,
    delayed: DelayedTracker,
    redelivery_counts: HashMap<Position, u32>,
    chunked: HashMap<Box<str>, ConsumerKey>,
    read_position: Position,
    last_confirmed: Position,
    reading: Option<Reading>,
    waits_for_data: bool,
    next_ticket: u64,
    unacked: u64,
    blocked: bool,
    /// Nothing is sent until it is released.
    held: bool,
    limiter: Limiter,
    shared: SharedLimits,
    /// When the dispatch rate allows more, as last worked out.
    rate_wake_ms: Option<u64>,
    /// Messages and bytes that the dispatch rate leaves for this round.
    allowance: (u64, u64),
    /// What this round sent of it; taken from the limits at its end.
    sent: (u64, u64),
    /// Messages per entry lately, to size reads.
    messages_per_entry: u32,
    wake_at_ms: Option<u64>,
    effects: VecDeque<Effect>,
}

impl Dispatcher {
    /// Of a subscription without consumers. `partition` is of the topic, `topic` its name.
    pub(crate) fn new(
        sub_type: SubscriptionType,
        limits: DispatchLimits,
        shared: SharedLimits,
        topic: Arc<str>,
        partition: Option<u32>,
    ) -> Self {
        Self {
            sub_type,
            delayed: DelayedTracker::new(limits.delayed_tick_ms),
            consumers: Vec::new(),
            single: SingleActive::new(topic, partition),
            keys: None,
            round_robin: 0,
            replay: Replay::default(),
            redelivery_counts: HashMap::new(),
            chunked: HashMap::new(),
            read_position: Position::EARLIEST,
            last_confirmed: Position::EARLIEST,
            reading: None,
            waits_for_data: false,
            next_ticket: 0,
            unacked: 0,
            blocked: false,
            held: false,
            limiter: Limiter::new(limits.rate),
            shared,
            rate_wake_ms: None,
            allowance: (u64::MAX, u64::MAX),
            sent: (0, 0),
            limits,
            messages_per_entry: 1,
            wake_at_ms: None,
            effects: VecDeque::new(),
        }
    }

    pub(crate) fn sub_type(&self) -> SubscriptionType {
        self.sub_type
    }

    pub(crate) fn consumers(&self) -> &[Consumer] {
        &self.consumers
    }

    /// Where the log ended when last told.
    pub(crate) fn last_confirmed(&self) -> Position {
        self.last_confirmed
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    pub(crate) fn blocked(&self) -> bool {
        self.blocked
    }

    /// Where reading goes on.
    pub(crate) fn read_position(&self) -> Position {
        self.read_position
    }

    /// Entries that wait to be sent again, or for their key.
    pub(crate) fn replay_entries(&self) -> u64 {
        self.replay.len() as u64
    }

    pub(crate) fn delayed_entries(&self) -> u64 {
        self.delayed.len()
    }

    /// When the last of them is due; 0 = none waits.
    pub(crate) fn delayed_until_ms(&self) -> u64 {
        self.delayed.last_due().unwrap_or(0)
    }

    /// Key of the active consumer of an Exclusive or Failover subscription.
    pub(crate) fn active(&self) -> Option<ConsumerKey> {
        if self.is_single() { self.single.active() } else { None }
    }

    /// Hash ranges of a Key_Shared consumer.
    pub(crate) fn key_ranges(&self, consumer: ConsumerKey) -> Vec<(u32, u32)> {
        self.keys.as_ref().map(|keys| keys.ranges(consumer)).unwrap_or_default()
    }

    /// The next thing to do, `None` when everything waits for an event.
    pub(crate) fn next_effect(&mut self, now_ms: u64) -> Option<Effect> {
        if self.effects.is_empty() {
            self.decide(now_ms);
        }
        self.effects.pop_front()
    }

    fn is_single(&self) -> bool {
        matches!(self.sub_type, SubscriptionType::Exclusive | SubscriptionType::Failover)
    }

    fn index_of(&self, key: ConsumerKey) -> Option<usize> {
        self.consumers.iter().position(|consumer| consumer.key == key)
    }

    /// New limits; blocked states follow at once.
    pub(crate) fn set_limits(&mut self, limits: DispatchLimits, shared: SharedLimits) {
        self.limiter.set_rate(limits.rate);
        self.shared = shared;
        self.rate_wake_ms = None;
        self.delayed.set_tick_ms(limits.delayed_tick_ms);
        self.limits = limits;
        self.update_blocked();
    }

    /// Puts another rate in force.
    pub(crate) fn set_rate(&mut self, rate: (u64, u64)) {
        self.limiter.set_rate(rate);
        self.limits.rate = rate;
        self.rate_wake_ms = None;
    }

    fn update_blocked(&mut self) {
        for consumer in &mut self.consumers {
            consumer.update_blocked(self.limits.max_unacked_per_consumer);
        }
        self.update_subscription_blocked();
    }

    fn update_subscription_blocked(&mut self) {
        self.blocked = consumer::blocked_after(self.blocked, self.unacked, self.limits.max_unacked_per_subscription);
    }

    /// A consumer gives permits.
    pub(crate) fn flow(&mut self, key: ConsumerKey, permits: u32, now_ms: u64) {
        let Some(index) = self.index_of(key) else { return };
        let consumer = &mut self.consumers[index];
        consumer.permits = consumer.permits.saturating_add(i64::from(permits));
        consumer.counters.last_flow_ms = now_ms;
    }

    /// Whether a consumer's sink takes more.
    pub(crate) fn set_writable(&mut self, key: ConsumerKey, writable: bool) {
        if let Some(index) = self.index_of(key) {
            self.consumers[index].writable = writable;
        }
    }

    /// Where the log ends now.
    pub(crate) fn data_available(&mut self, last_confirmed: Position) {
        self.waits_for_data = false;
        self.last_confirmed = self.last_confirmed.max(last_confirmed);
    }

    /// The time asked for by [`Effect::WakeAt`] has come.
    pub(crate) fn wake(&mut self, now_ms: u64, first_unacked: Position) {
        self.wake_at_ms = None;
        self.finish_switch(now_ms, first_unacked);
    }

    /// Cancels the read in flight and starts over at the given position.
    pub(crate) fn rewind(&mut self, to: Position) {
        self.reading = None;
        self.waits_for_data = false;
        self.read_position = to;
    }

    /// Everything before was acked by others than consumers.
    pub(crate) fn skip_to(&mut self, first_unacked: Position) {
        if !self.delayed.is_empty() {
            let Position { ledger_id, entry_id } = first_unacked;
            self.delayed.forget_up_to(Position::new(ledger_id.0, entry_id.0.saturating_sub(1)));
        }
        if self.read_position < first_unacked {
            self.rewind(first_unacked);
        }
    }

    /// After a seek; the consumers are gone: nothing before counts.
    pub(crate) fn reset(&mut self, to: Position, last_confirmed: Position) {
        self.rewind(to);
        self.last_confirmed = last_confirmed;
        self.replay.clear();
        self.delayed.clear();
        self.redelivery_counts.clear();
        self.chunked.clear();
    }

    /// Decides what is next: at most one read.
    fn decide(&mut self, now_ms: u64) {
        if self.stalled().is_some() {
            self.ask_for_wake(None, now_ms);
            return;
        }
        if !self.take_allowance(now_ms) {
            let at_ms = self.rate_wake_at(now_ms);
            self.ask_for_wake(Some(at_ms), now_ms);
            return;
        }
        self.take_due(now_ms);
        let max_entries = self.entries_wanted();
        if let Some(positions) = self.pick_replay(max_entries as usize) {
            let ticket = self.new_ticket();
            self.reading = Some(Reading::Replay { ticket, since_ms: now_ms });
            self.effects.push_back(Effect::ReadAt { ticket, positions });
        } else if self.replay.len() >= LOOK_AHEAD_ENTRIES {
            // D7: the keys of the replay have to drain first.
        } else if self.read_position > self.last_confirmed {
            if !self.waits_for_data {
                self.waits_for_data = true;
                self.effects.push_back(Effect::WaitForData { from: self.read_position });
            }
        } else {
            let ticket = self.new_ticket();
            self.reading = Some(Reading::Normal { ticket, since_ms: now_ms });
            self.waits_for_data = false;
            let (from, max_bytes) = (self.read_position, self.limits.read_bytes);
            self.effects.push_back(Effect::Read { ticket, from, max_entries, max_bytes });
        }
        self.ask_for_wake(None, now_ms);
    }

    fn new_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Holds everything back, or goes on.
    pub(crate) fn set_held(&mut self, held: bool) {
        self.held = held;
        if held {
            // D1: what is being read now comes again.
            self.reading = None;
        }
    }

    /// Entries to read: what the permits are good for at the lately seen batch size.
    fn entries_wanted(&self) -> u32 {
        let permits: i64 = if self.is_single() {
            self.single.active().and_then(|key| self.index_of(key)).map_or(0, |index| self.consumers[index].permits)
        } else {
            self.consumers.iter().filter(|consumer| consumer.available()).map(|consumer| consumer.permits).sum()
        };
        let permits = permits.min(i64::try_from(self.allowance.0).unwrap_or(i64::MAX));
        let entries = permits.max(1) as u64 / u64::from(self.messages_per_entry.max(1)) + 1;
        let entries = entries.min(permits.max(1) as u64);
        entries.min(u64::from(self.limits.read_entries.max(1))) as u32
    }

    /// Moves what has fallen due to the replay.
    fn take_due(&mut self, now_ms: u64) {
        if self.delayed.is_empty() || self.replay.len() >= DUE_BATCH {
            return;
        }
        for position in self.delayed.take_due(now_ms, DUE_BATCH) {
            self.replay.add(None, position, 0);
        }
    }

    /// Asks to be woken for the next delayed entry, the end of a switch or when the dispatch rate allows more.
    fn ask_for_wake(&mut self, rate: Option<u64>, now_ms: u64) {
        let switch = self.single.switch_at_ms();
        // What is due already comes with the next event: no need to wake for it.
        let due = self.delayed.next_due().filter(|at_ms| *at_ms > now_ms && !self.consumers.is_empty());
        let Some(at_ms) = switch.into_iter().chain(due).chain(rate).min() else { return };
        if self.wake_at_ms.is_none_or(|set| at_ms < set) {
            self.wake_at_ms = Some(at_ms);
            self.effects.push_back(Effect::WakeAt { at_ms });
        }
    }

    /// Gives back the room of empty queues.
    pub(crate) fn rest(&mut self) {
        self.effects.shrink_to_fit();
        self.consumers.shrink_to_fit();
        self.redelivery_counts.shrink_to_fit();
        self.chunked.shrink_to_fit();
    }

    /// Whether the answer to this read is still waited for.
    pub(crate) fn awaits(&self, ticket: u64) -> bool {
        matches!(self.reading, Some(Reading::Normal { ticket: now, .. } | Reading::Replay { ticket: now, .. })
                 if now == ticket)
    }

    /// Normal read: entries in log order, already acked ones and markers left out; `next` is the position after the
    /// last one looked at. `last_confirmed` may have moved.
    pub(crate) fn read_done(&mut self, ticket: u64, entries: Vec<Candidate>, next: Position, now_ms: u64) {
        if !matches!(self.reading, Some(Reading::Normal { ticket: now, .. }) if now == ticket) {
            return;
        }
        self.reading = None;
        if entries.is_empty() && next == self.read_position {
            // Nothing there in spite of what was said: wait for a later confirmation.
            self.last_confirmed = Position::EARLIEST;
            return;
        }
        if self.is_single() {
            self.deliver_single(entries, next, now_ms);
        } else {
            self.deliver_shared(entries, Some(next), now_ms);
        }
        self.settle_rates(now_ms);
    }

    /// Replay read: the entries found, and those that do not exist or are acked.
    pub(crate) fn replay_read_done(&mut self, ticket: u64, entries: Vec<Candidate>, gone: &[Position], now_ms: u64) {
        if !matches!(self.reading, Some(Reading::Replay { ticket: now, .. }) if now == ticket) {
            return;
        }
        self.reading = None;
        for position in gone {
            self.replay.remove(*position);
            self.redelivery_counts.remove(position);
        }
        self.deliver_shared(entries, None, now_ms);
        self.settle_rates(now_ms);
    }

    fn deliver_single(&mut self, entries: Vec<Candidate>, next: Position, now_ms: u64) {
        let Some(index) = self.single.active().and_then(|key| self.index_of(key)) else { return };
        self.read_position = next;
        let mut deliveries = Vec::with_capacity(entries.len());
        for candidate in entries {
            if self.consumers[index].permits <= 0 || self.rate_used_up() {
                self.read_position = candidate.entry.position;
                break;
            }
            deliveries.push(self.delivery(index, candidate, now_ms));
        }
        if !deliveries.is_empty() {
            self.effects.push_back(Effect::Deliver { consumer: self.consumers[index].key, deliveries });
        }
    }

    /// Takes permits and what the rate allows, and counts; the shape for the wire.
    fn delivery(&mut self, index: usize, candidate: Candidate, now_ms: u64) -> Delivery {
        let entry = candidate.entry;
        self.messages_per_entry = ((self.messages_per_entry * 3 + candidate.unacked) / 4).max(1);
        if self.allowance != (u64::MAX, u64::MAX) {
            self.count_sent(u64::from(candidate.unacked), entry.payload.len() as u64);
        }
        let consumer = &mut self.consumers[index];
        consumer.permits -= i64::from(candidate.unacked);
        consumer.counters.messages_out += u64::from(candidate.unacked);
        consumer.counters.bytes_out += entry.payload.len() as u64;
        consumer.counters.last_consumed_ms = now_ms;
        let redelivery_count = if self.redelivery_counts.is_empty() {
            0
        } else {
            self.redelivery_counts.get(&entry.position).copied().unwrap_or(0)
        };
        if redelivery_count > 0 {
            consumer.counters.redelivered += u64::from(candidate.unacked);
        }
        Delivery {
            position: entry.position,
            redelivery_count,
            ack_set: candidate.ack_set,
            consumer_epoch: consumer.epoch,
            index: entry.index,
            broker_time_ms: entry.broker_time_ms,
            payload: entry.payload,
        }
    }
}

#[cfg(test)]
mod harness;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
