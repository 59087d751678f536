//! Random lives of subscriptions: consumers come and go, ack, refuse, stall; whatever happens, every message is delivered,
//! none after its ack, and the order rules hold.

use super::harness::{Harness, TestEntry, limits};
use super::{Consumer, DispatchLimits};
use crate::api::{ConsumerKey, SubscriptionType};
use meridian_types::Position;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum Step {
    Append { key: u32, messages: u32, delay_ms: u64 },
    Join,
    Leave(usize),
    Flow(usize, u32),
    Ack(usize, usize),
    AckPartly(usize, usize),
    Nack(usize, usize),
    NackAll(usize),
    Stick(usize, bool),
    HoldReads(bool),
    Sleep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u32..12, 1u32..5, prop_oneof![4 => Just(0u64), 1 => 1u64..4000])
            .prop_map(|(key, messages, delay_ms)| Step::Append { key, messages, delay_ms }),
        2 => Just(Step::Join),
        1 => any::<usize>().prop_map(Step::Leave),
        4 => (any::<usize>(), 1u32..20).prop_map(|(who, permits)| Step::Flow(who, permits)),
        6 => (any::<usize>(), any::<usize>()).prop_map(|(who, which)| Step::Ack(who, which)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(who, which)| Step::AckPartly(who, which)),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(who, which)| Step::Nack(who, which)),
        1 => any::<usize>().prop_map(Step::NackAll),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(who, stuck)| Step::Stick(who, stuck)),
        1 => any::<bool>().prop_map(Step::HoldReads),
        1 => Just(Step::Sleep),
    ]
}

/// A harness with what the checks remember.
struct Life {
    test: Harness,
    next_consumer: u64,
    checked: usize,
    seen: BTreeSet<Position>,
    newest_of_key: BTreeMap<u32, Position>,
    delayed: BTreeSet<Position>,
}

impl Life {
    fn new(sub_type: SubscriptionType) -> Self {
        let limits = DispatchLimits {
            max_unacked_per_consumer: 12,
            max_unacked_per_subscription: 25,
            round_robin_entries: 3,
            read_entries: 5,
            failover_delay_ms: 100,
            delayed_tick_ms: 100,
            ..limits()
        };
        Self {
            test: Harness::with_limits(sub_type, limits),
            next_consumer: 1,
            checked: 0,
            seen: BTreeSet::new(),
            newest_of_key: BTreeMap::new(),
            delayed: BTreeSet::new(),
        }
    }

    fn who(&self, index: usize) -> Option<u64> {
        let consumers = self.test.core.consumers();
        (!consumers.is_empty()).then(|| consumers[index % consumers.len()].key.0)
    }

    /// An entry that the consumer got and has not acked.
    fn held(&self, who: u64, which: usize) -> Option<i64> {
        let of = |(key, position): &(ConsumerKey, Position)| key.0 == who && !self.test.acked.contains(position);
        let held: Vec<i64> =
            self.test.delivered.iter().filter(|one| of(one)).map(|(_, position)| position.entry_id.0).collect();
        (!held.is_empty()).then(|| held[which % held.len()])
    }

    fn join(&mut self) {
        let key = self.next_consumer;
        self.next_consumer += 1;
        let priority = (key % 3) as i32 / 2;
        if self.test.sub_type() == SubscriptionType::Exclusive && !self.test.core.consumers().is_empty() {
            return;
        }
        self.test.join(key, &format!("c{}", key % 5), priority).expect("may join");
    }

    fn take(&mut self, step: Step) {
        let held = |life: &Self, who: usize, which: usize| {
            let who = life.who(who)?;
            Some((who, life.held(who, which)?))
        };
        match step {
            Step::Append { key, messages, delay_ms } => self.append(key, messages, delay_ms),
            Step::Join => self.join(),
            Step::Leave(who) => {
                if let Some(who) = self.who(who) {
                    self.test.leave(who);
                }
            }
            Step::Flow(who, permits) => {
                if let Some(who) = self.who(who) {
                    self.test.flow(who, permits);
                }
            }
            Step::Ack(who, which) => {
                if let Some((who, entry)) = held(self, who, which) {
                    self.test.ack(who, entry);
                }
            }
            Step::AckPartly(who, which) => {
                if let Some((who, entry)) = held(self, who, which) {
                    let position = super::harness::at(entry);
                    let before =
                        self.test.partly.get(&position).copied().unwrap_or(self.test.log[entry as usize].messages);
                    if before > 1 {
                        self.test.ack_partly(who, entry, before - 1);
                    }
                }
            }
            Step::Nack(who, which) => {
                if let Some((who, entry)) = held(self, who, which) {
                    self.test.redeliver(who, &[entry]);
                }
            }
            Step::NackAll(who) => {
                if let Some(who) = self.who(who) {
                    self.test.redeliver(who, &[]);
                }
            }
            Step::Stick(who, stuck) => {
                if let Some(who) = self.who(who) {
                    self.test.set_stuck(who, stuck);
                }
            }
            Step::HoldReads(true) => self.test.hold_reads = true,
            Step::HoldReads(false) => self.test.release_reads(),
            Step::Sleep => {
                if self.test.wake_at_ms.is_some() {
                    self.test.sleep();
                }
            }
        }
    }

    fn append(&mut self, key: u32, messages: u32, delay_ms: u64) {
        let deliver_at_ms = if delay_ms == 0 { 0 } else { self.test.now_ms + delay_ms };
        let key_hash = if self.test.sub_type() == SubscriptionType::KeyShared { 1 + key * 5000 } else { 0 };
        if delay_ms > 0 {
            self.delayed.insert(super::harness::at(self.test.log.len() as i64));
        }
        self.test.append_entry(TestEntry { messages, key_hash, deliver_at_ms, chunk: None });
    }

    /// The rules, over what was delivered since the last check. Acks happen between checks only.
    fn check(&mut self, acked_before: &BTreeSet<Position>) {
        let new: Vec<Position> = self.test.delivered[self.checked..].iter().map(|(_, position)| *position).collect();
        self.checked = self.test.delivered.len();
        for position in new {
            assert!(!acked_before.contains(&position), "{position} was delivered after its ack");
            let key = self.test.log[position.entry_id.0 as usize].key_hash;
            let ordered = self.test.sub_type() != SubscriptionType::Shared && !self.delayed.contains(&position);
            if self.seen.insert(position) && ordered {
                let newest = self.newest_of_key.insert(key, position);
                assert!(
                    newest.is_none_or(|newest| newest < position),
                    "D3, D5: {position} was first sent after {newest:?}"
                );
            }
        }
        if self.test.sub_type() == SubscriptionType::KeyShared {
            self.check_keys();
        }
    }

    /// D5: a key is unacked at one consumer at most.
    fn check_keys(&self) {
        let mut holders: BTreeMap<u32, ConsumerKey> = BTreeMap::new();
        for consumer in self.test.core.consumers() {
            for pending in consumer.pending.values() {
                let holder = *holders.entry(pending.key_hash).or_insert(consumer.key);
                assert_eq!(holder, consumer.key, "key {} is unacked at two consumers", pending.key_hash);
            }
        }
    }

    /// Everybody behaves from now on: everything has to be delivered and acked.
    fn finish(&mut self) {
        self.test.release_reads();
        self.test.stuck.clear();
        if self.test.core.consumers().is_empty() {
            self.join();
        }
        for _ in 0..self.test.log.len() * 3 + 20 {
            let keys: Vec<u64> = self.test.core.consumers().iter().map(|consumer: &Consumer| consumer.key.0).collect();
            for key in keys {
                self.test.set_stuck(key, false);
                self.test.flow(key, 1000);
            }
            if self.test.wake_at_ms.is_some() {
                self.test.sleep();
            }
            let acked = self.test.acked.clone();
            self.check(&acked);
            self.ack_everything_delivered();
            if self.test.acked.len() == self.test.log.len() {
                break;
            }
        }
        assert_eq!(self.test.acked.len(), self.test.log.len(), "waiting: {:?}", self.test.core.waiting());
        assert_eq!(self.test.core.unacked(), 0);
        assert!(!self.test.core.blocked());
    }

    fn ack_everything_delivered(&mut self) {
        let Some(who) = self.who(0) else { return };
        let open: Vec<i64> = self
            .test
            .delivered
            .iter()
            .filter(|(_, position)| !self.test.acked.contains(position))
            .map(|(_, position)| position.entry_id.0)
            .collect();
        for entry in open {
            let acked = self.test.acked.clone();
            self.test.ack(who, entry);
            self.check(&acked);
        }
    }
}

fn live(sub_type: SubscriptionType, steps: Vec<Step>) {
    let mut life = Life::new(sub_type);
    for step in steps {
        let acked = life.test.acked.clone();
        life.take(step);
        life.check(&acked);
    }
    life.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shared_delivers_everything(steps in proptest::collection::vec(step(), 1..150)) {
        live(SubscriptionType::Shared, steps);
    }

    #[test]
    fn key_shared_delivers_everything_in_order_of_keys(steps in proptest::collection::vec(step(), 1..150)) {
        live(SubscriptionType::KeyShared, steps);
    }

    #[test]
    fn failover_delivers_everything_in_order(steps in proptest::collection::vec(step(), 1..100)) {
        live(SubscriptionType::Failover, steps);
    }

    #[test]
    fn exclusive_delivers_everything_in_order(steps in proptest::collection::vec(step(), 1..100)) {
        live(SubscriptionType::Exclusive, steps);
    }
}
