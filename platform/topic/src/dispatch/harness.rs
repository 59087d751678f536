//! A log and a cursor made of plain collections, which answer the dispatcher's reads at once, and a trace of what happens.

use super::{Acked, Candidate, Chunk, ConsumerSpec, DispatchLimits, Dispatcher, Effect, Joining, SharedLimits};
use crate::api::{ConsumerKey, KeySharedPolicy, SubscriptionType, TopicError};
use bytes::Bytes;
use meridian_managed_ledger::LogEntry;
use meridian_types::{Incarnation, Position, RegionId};
use std::collections::{BTreeMap, BTreeSet};

/// One entry of the test log.
#[derive(Debug, Clone, Default)]
pub(super) struct TestEntry {
    pub(super) messages: u32,
    pub(super) key_hash: u32,
    pub(super) deliver_at_ms: u64,
    pub(super) chunk: Option<Chunk>,
}

/// Dispatcher, log, cursor and clock.
pub(super) struct Harness {
    pub(super) core: Dispatcher,
    pub(super) log: Vec<TestEntry>,
    pub(super) acked: BTreeSet<Position>,
    /// Unacked messages of partly acked entries.
    pub(super) partly: BTreeMap<Position, u32>,
    pub(super) now_ms: u64,
    pub(super) trace: Vec<String>,
    /// Everything delivered: consumer and position, in order.
    pub(super) delivered: Vec<(ConsumerKey, Position)>,
    pub(super) reads: usize,
    /// Reads are not answered but kept.
    pub(super) hold_reads: bool,
    pub(super) held: Vec<Effect>,
    pub(super) wake_at_ms: Option<u64>,
    /// Consumers whose sinks take nothing.
    pub(super) stuck: BTreeSet<ConsumerKey>,
}

pub(super) fn limits() -> DispatchLimits {
    DispatchLimits {
        max_unacked_per_consumer: 0,
        max_unacked_per_subscription: 0,
        read_entries: 100,
        read_bytes: 5 << 20,
        round_robin_entries: 20,
        failover_delay_ms: 1000,
        delayed_delivery: true,
        delayed_tick_ms: 1000,
        rate: (0, 0),
    }
}

pub(super) fn at(entry: i64) -> Position {
    Position::new(1, entry)
}

impl Harness {
    pub(super) fn new(sub_type: SubscriptionType) -> Self {
        Self::with_limits(sub_type, limits())
    }

    pub(super) fn with_limits(sub_type: SubscriptionType, limits: DispatchLimits) -> Self {
        Self {
            core: Dispatcher::new(sub_type, limits, SharedLimits::new(), "persistent://a/b/c".into(), None),
            log: Vec::new(),
            acked: BTreeSet::new(),
            partly: BTreeMap::new(),
            now_ms: 1_000_000,
            trace: Vec::new(),
            delivered: Vec::new(),
            reads: 0,
            hold_reads: false,
            held: Vec::new(),
            wake_at_ms: None,
            stuck: BTreeSet::new(),
        }
    }

    pub(super) fn sub_type(&self) -> SubscriptionType {
        self.core.sub_type()
    }

    pub(super) fn first_unacked(&self) -> Position {
        (0..).map(at).find(|position| !self.acked.contains(position)).unwrap_or(at(0))
    }

    pub(super) fn last_confirmed(&self) -> Position {
        at(self.log.len() as i64 - 1)
    }

    pub(super) fn append(&mut self, count: usize) {
        for _ in 0..count {
            self.append_entry(TestEntry { messages: 1, ..TestEntry::default() });
        }
    }

    pub(super) fn append_entry(&mut self, entry: TestEntry) {
        self.log.push(entry);
        let last = self.last_confirmed();
        self.core.data_available(last);
        self.run();
    }

    pub(super) fn append_keys(&mut self, hashes: &[u32]) {
        for hash in hashes {
            self.append_entry(TestEntry { messages: 1, key_hash: *hash, ..TestEntry::default() });
        }
    }

    pub(super) fn join(&mut self, key: u64, name: &str, priority: i32) -> Result<(), TopicError> {
        self.join_with(key, name, priority, None)
    }

    pub(super) fn join_with(
        &mut self,
        key: u64,
        name: &str,
        priority: i32,
        policy: Option<&KeySharedPolicy>,
    ) -> Result<(), TopicError> {
        let joining = Joining {
            spec: ConsumerSpec { key: ConsumerKey(key), name: name.into(), priority, epoch: None },
            key_shared: policy,
            consistent_hashing: None,
            first_unacked: self.first_unacked(),
            last_confirmed: self.last_confirmed(),
        };
        let result = self.core.join(joining, self.now_ms);
        self.run();
        result
    }

    pub(super) fn leave(&mut self, key: u64) {
        let first = self.first_unacked();
        self.core.leave(ConsumerKey(key), self.now_ms, first);
        self.run();
    }

    pub(super) fn flow(&mut self, key: u64, permits: u32) {
        self.core.flow(ConsumerKey(key), permits, self.now_ms);
        self.run();
    }

    pub(super) fn ack(&mut self, key: u64, entry: i64) {
        self.acked.insert(at(entry));
        self.partly.remove(&at(entry));
        self.core.acked(ConsumerKey(key), &[Acked { position: at(entry), left: 0 }], self.now_ms);
        self.run();
    }

    pub(super) fn ack_partly(&mut self, key: u64, entry: i64, left: u32) {
        self.partly.insert(at(entry), left);
        self.core.acked(ConsumerKey(key), &[Acked { position: at(entry), left }], self.now_ms);
        self.run();
    }

    pub(super) fn redeliver(&mut self, key: u64, entries: &[i64]) {
        let ids: Vec<Position> = entries.iter().copied().map(at).collect();
        let first = self.first_unacked();
        self.core.redeliver(ConsumerKey(key), &ids, None, first);
        self.run();
    }

    pub(super) fn set_stuck(&mut self, key: u64, stuck: bool) {
        if stuck {
            self.stuck.insert(ConsumerKey(key));
        } else {
            self.stuck.remove(&ConsumerKey(key));
            self.core.set_writable(ConsumerKey(key), true);
        }
        self.run();
    }

    /// Moves the clock to the time that was asked for.
    pub(super) fn sleep(&mut self) {
        let at_ms = self.wake_at_ms.take().expect("nothing asked to be woken");
        self.now_ms = self.now_ms.max(at_ms);
        let first = self.first_unacked();
        self.core.wake(self.now_ms, first);
        self.run();
    }

    /// What happened since the last call.
    pub(super) fn took(&mut self) -> Vec<String> {
        std::mem::take(&mut self.trace)
    }

    pub(super) fn run(&mut self) {
        while let Some(effect) = self.core.next_effect(self.now_ms) {
            self.execute(effect);
        }
        self.check();
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver { consumer, deliveries } => {
                let list: Vec<String> = deliveries
                    .iter()
                    .map(|delivery| match delivery.redelivery_count {
                        0 => delivery.position.entry_id.to_string(),
                        count => format!("{}r{count}", delivery.position.entry_id),
                    })
                    .collect();
                self.trace.push(format!("{} <- {}", consumer.0, list.join(" ")));
                self.delivered.extend(deliveries.iter().map(|delivery| (consumer, delivery.position)));
                self.core.set_writable(consumer, !self.stuck.contains(&consumer));
            }
            Effect::ActiveChanged { consumer, is_active } => {
                self.trace.push(format!("{} {}", consumer.0, if is_active { "active" } else { "inactive" }));
            }
            Effect::WakeAt { at_ms } => self.wake_at_ms = Some(at_ms),
            Effect::WaitForData { .. } => {}
            Effect::Read { .. } | Effect::ReadAt { .. } if self.hold_reads => self.held.push(effect),
            Effect::Read { ticket, from, max_entries, .. } => {
                self.reads += 1;
                self.read(ticket, from, max_entries);
            }
            Effect::ReadAt { ticket, positions } => {
                self.reads += 1;
                self.read_at(ticket, &positions);
            }
        }
    }

    /// Answers the reads that were held.
    pub(super) fn release_reads(&mut self) {
        self.hold_reads = false;
        for effect in std::mem::take(&mut self.held) {
            self.execute(effect);
        }
        self.run();
    }

    fn read(&mut self, ticket: u64, from: Position, max_entries: u32) {
        let first = if from.ledger_id.0 < 1 { 0 } else { from.entry_id.0 };
        let last = (first + i64::from(max_entries)).min(self.log.len() as i64);
        let entries: Vec<Candidate> = (first..last)
            .map(at)
            .filter(|position| !self.acked.contains(position))
            .map(|p| self.candidate(p))
            .collect();
        let next = if last > first { at(last) } else { from };
        self.core.read_done(ticket, entries, next, self.now_ms);
    }

    fn read_at(&mut self, ticket: u64, positions: &[Position]) {
        assert!(positions.is_sorted(), "positions are asked for in order");
        let (gone, there): (Vec<Position>, Vec<Position>) =
            positions.iter().partition(|position| self.acked.contains(position));
        let entries = there.into_iter().map(|position| self.candidate(position)).collect();
        self.core.replay_read_done(ticket, entries, &gone, self.now_ms);
    }

    fn candidate(&self, position: Position) -> Candidate {
        let entry = &self.log[position.entry_id.0 as usize];
        let unacked = self.partly.get(&position).copied().unwrap_or(entry.messages);
        Candidate {
            entry: LogEntry {
                position,
                index: position.entry_id.0 as u64,
                messages: entry.messages,
                marker: false,
                broker_time_ms: 0,
                origin: (RegionId(0), Incarnation(0), position),
                payload: Bytes::from_static(b"payload"),
            },
            ack_set: Vec::new(),
            unacked,
            key_hash: entry.key_hash,
            deliver_at_ms: entry.deliver_at_ms,
            chunk: entry.chunk.clone(),
        }
    }

    /// D6 and C1 after every step.
    fn check(&self) {
        let mut sum = 0;
        for consumer in self.core.consumers() {
            let held: u64 = consumer.pending.values().map(|pending| u64::from(pending.unacked)).sum();
            assert_eq!(consumer.unacked, held, "C1: a consumer's count is the sum of what it holds");
            sum += held;
        }
        assert_eq!(self.core.unacked(), sum, "D6: the subscription's count is the sum of its consumers'");
    }
}
