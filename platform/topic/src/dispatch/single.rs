//! Exclusive and Failover: which consumer is the active one.
//!
//! Invariants: A1 the choice is a function of the consumers, the topic's name and its partition number, so that every
//! broker chooses alike; A2 a Failover switch takes effect only after the delay, with the choice of that moment; until
//! then nobody is sent anything (D3).
//! Must never know: entries, permits.

use super::{Consumer, Dispatcher, Effect};
use crate::api::{ConsumerKey, SubscriptionType};
use meridian_types::Position;
use meridian_wire::key::key_hash;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Points of one consumer on the ring.
const RING_POINTS: usize = 100;

/// The active consumer and a switch under way.
#[derive(Debug)]
pub(super) struct SingleActive {
    topic: Arc<str>,
    partition: Option<u32>,
    active: Option<ConsumerKey>,
    switch_at_ms: Option<u64>,
}

impl SingleActive {
    pub(super) fn new(topic: Arc<str>, partition: Option<u32>) -> Self {
        Self { topic, partition, active: None, switch_at_ms: None }
    }

    pub(super) fn active(&self) -> Option<ConsumerKey> {
        self.active
    }

    pub(super) fn switching(&self) -> bool {
        self.switch_at_ms.is_some()
    }

    pub(super) fn switch_at_ms(&self) -> Option<u64> {
        self.switch_at_ms
    }

    /// A1: among the best priority, by partition number or by a hash ring over the names.
    fn choose(&self, consumers: &[Consumer]) -> Option<ConsumerKey> {
        let best = consumers.iter().map(|consumer| consumer.priority).min()?;
        let mut candidates: Vec<&Consumer> = consumers.iter().filter(|consumer| consumer.priority == best).collect();
        candidates.sort_by(|a, b| a.name.cmp(&b.name).then(a.key.cmp(&b.key)));
        if let Some(partition) = self.partition {
            return Some(candidates[partition as usize % candidates.len()].key);
        }
        if candidates.len() == 1 {
            return Some(candidates[0].key);
        }
        let mut ring = BTreeMap::new();
        for consumer in &candidates {
            for point in 0..RING_POINTS {
                ring.insert(key_hash(format!("{}{point}", consumer.name).as_bytes()), consumer.key);
            }
        }
        let hash = key_hash(self.topic.as_bytes());
        ring.range(hash..).next().or_else(|| ring.first_key_value()).map(|(_, key)| *key)
    }
}

impl Dispatcher {
    /// Chooses anew after consumers changed; answers whether the active one stays.
    pub(super) fn choose_active(&mut self, now_ms: u64, first_unacked: Position) -> bool {
        let chosen = self.single.choose(&self.consumers);
        if chosen == self.single.active {
            return true;
        }
        self.single.active = chosen;
        self.reading = None;
        if chosen.is_none() {
            self.single.switch_at_ms = None;
            return false;
        }
        if self.sub_type == SubscriptionType::Failover && self.limits.failover_delay_ms > 0 {
            self.single.switch_at_ms = Some(now_ms + self.limits.failover_delay_ms);
            self.wake_at_ms = None;
        } else {
            self.single.switch_at_ms = Some(now_ms);
            self.finish_switch(now_ms, first_unacked);
        }
        false
    }

    /// A2: the delay is over; the active consumer starts at the first unacked entry.
    pub(super) fn finish_switch(&mut self, now_ms: u64, first_unacked: Position) {
        if self.single.switch_at_ms.is_none_or(|at_ms| at_ms > now_ms) {
            return;
        }
        self.single.switch_at_ms = None;
        self.rewind(first_unacked);
        if self.sub_type == SubscriptionType::Failover {
            let active = self.single.active;
            for consumer in &self.consumers {
                let is_active = Some(consumer.key) == active;
                self.effects.push_back(Effect::ActiveChanged { consumer: consumer.key, is_active });
            }
        }
    }
}
