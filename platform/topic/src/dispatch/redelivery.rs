//! Acknowledgements and redelivery as dispatch sees them. What is acked is decided by the cursor; here only counters and
//! waiting sets follow.

use super::{Dispatcher, REDELIVERY_COUNTS_MAX};
use crate::api::ConsumerKey;
use meridian_types::Position;

/// What the cursor says of an entry after an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) position: Position,
    /// Messages of it still unacked; 0 = done.
    pub(crate) left: u32,
}

impl Dispatcher {
    /// The cursor has taken acks that came through a consumer.
    pub(crate) fn acked(&mut self, key: ConsumerKey, acks: &[Acked], now_ms: u64) {
        if let Some(index) = self.index_of(key) {
            self.consumers[index].counters.last_acked_ms = now_ms;
        }
        if self.is_single() {
            return;
        }
        for ack in acks {
            self.acked_one(key, *ack);
        }
        self.update_subscription_blocked();
    }

    fn acked_one(&mut self, key: ConsumerKey, ack: Acked) {
        if ack.left == 0 {
            self.redelivery_counts.remove(&ack.position);
            self.replay.remove(ack.position);
        }
        let Some(index) = self.holder_of(ack.position, key) else { return };
        let consumer = &mut self.consumers[index];
        let before = if ack.left == 0 {
            let before = consumer.release(ack.position);
            if let (Some(before), Some(keys)) = (before, &mut self.keys) {
                keys.release(before.key_hash);
            }
            before
        } else {
            consumer.reduce(ack.position, ack.left)
        };
        let acked = before.map_or(0, |before| before.unacked.saturating_sub(ack.left));
        consumer.counters.acked += u64::from(acked);
        self.unacked -= u64::from(acked);
        consumer.update_blocked(self.limits.max_unacked_per_consumer);
    }

    /// Counts messages acked by a consumer of an Exclusive or Failover subscription.
    pub(crate) fn count_acked(&mut self, key: ConsumerKey, messages: u64) {
        if self.is_single()
            && let Some(index) = self.index_of(key)
        {
            self.consumers[index].counters.acked += messages;
        }
    }

    /// REDELIVER: the given entries of this consumer, or all. Exclusive and Failover start over at the first unacked one.
    pub(crate) fn redeliver(
        &mut self,
        key: ConsumerKey,
        ids: &[Position],
        epoch: Option<u64>,
        first_unacked: Position,
    ) {
        let Some(index) = self.index_of(key) else { return };
        self.consumers[index].epoch = self.consumers[index].epoch.max(epoch);
        if self.is_single() {
            if self.single.active() == Some(key) && !self.single.switching() {
                self.rewind(first_unacked);
            }
            return;
        }
        let all: Vec<Position>;
        let ids = if ids.is_empty() {
            all = self.consumers[index].pending.keys().copied().collect();
            &all
        } else {
            ids
        };
        for position in ids {
            self.redeliver_one(index, *position);
        }
        let limit = self.limits.max_unacked_per_consumer;
        self.consumers[index].update_blocked(limit);
        self.update_subscription_blocked();
    }

    fn redeliver_one(&mut self, index: usize, position: Position) {
        let Some(pending) = self.consumers[index].release(position) else { return };
        self.unacked -= u64::from(pending.unacked);
        if self.redelivery_counts.len() < REDELIVERY_COUNTS_MAX || self.redelivery_counts.contains_key(&position) {
            let count = self.redelivery_counts.entry(position).or_insert(0);
            *count = count.saturating_add(1);
        }
        let mut owner = None;
        if let Some(keys) = &mut self.keys {
            keys.release(pending.key_hash);
            owner = keys.owner(pending.key_hash);
        }
        self.replay.add(owner, position, pending.key_hash);
    }

    /// Entries were acked by others than consumers (TTL, skip, eviction): nobody holds them any more.
    pub(crate) fn purge(&mut self, gone: &dyn Fn(Position) -> bool) {
        self.replay.purge(gone);
        self.redelivery_counts.retain(|position, _| !gone(*position));
        for index in 0..self.consumers.len() {
            let consumer = &mut self.consumers[index];
            let positions: Vec<Position> =
                consumer.pending.keys().copied().filter(|position| gone(*position)).collect();
            for position in positions {
                if let Some(pending) = consumer.release(position) {
                    self.unacked -= u64::from(pending.unacked);
                    if let Some(keys) = &mut self.keys {
                        keys.release(pending.key_hash);
                    }
                }
            }
            consumer.update_blocked(self.limits.max_unacked_per_consumer);
        }
        self.update_subscription_blocked();
    }
}
