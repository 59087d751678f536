//! One consumer as dispatch sees it: permits, what it holds unacked, whether it may get more.
//!
//! Invariants: C1 `unacked` is the sum of `pending`, so it is never negative and never drifts; C2 `blocked` is a function
//! of `unacked` and the limit, with hysteresis: set at the limit, cleared at half of it.
//! Must never know: sinks, logs, other consumers.

use crate::api::ConsumerKey;
use meridian_types::Position;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An entry delivered and not yet acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Messages of it still unacked.
    pub(crate) unacked: u32,
    /// Sticky hash of its key, 0 where keys do not matter.
    pub(crate) key_hash: u32,
}

/// Counters for statistics, growing only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConsumerCounters {
    pub(crate) messages_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) redelivered: u64,
    pub(crate) acked: u64,
    pub(crate) last_acked_ms: u64,
    pub(crate) last_consumed_ms: u64,
    pub(crate) last_flow_ms: u64,
}

/// What a consumer is when it joins.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerSpec {
    pub(crate) key: ConsumerKey,
    pub(crate) name: Arc<str>,
    pub(crate) priority: i32,
    pub(crate) epoch: Option<u64>,
}

/// One consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) key: ConsumerKey,
    pub(crate) name: Arc<str>,
    pub(crate) priority: i32,
    pub(crate) epoch: Option<u64>,
    /// Below zero when the last entry was a batch larger than what was left: an entry is never split.
    pub(crate) permits: i64,
    pub(crate) writable: bool,
    pub(crate) blocked: bool,
    pub(crate) unacked: u64,
    pub(crate) pending: BTreeMap<Position, Pending>,
    pub(crate) counters: ConsumerCounters,
}

impl Consumer {
    pub(crate) fn new(spec: ConsumerSpec) -> Self {
        Self {
            key: spec.key,
            name: spec.name,
            priority: spec.priority,
            epoch: spec.epoch,
            permits: 0,
            writable: true,
            blocked: false,
            unacked: 0,
            pending: BTreeMap::new(),
            counters: ConsumerCounters::default(),
        }
    }

    /// Whether it may get an entry now.
    pub(crate) fn available(&self) -> bool {
        self.permits > 0 && self.writable && !self.blocked
    }

    /// C2; a limit of 0 never blocks.
    pub(crate) fn update_blocked(&mut self, limit: u64) {
        self.blocked = blocked_after(self.blocked, self.unacked, limit);
    }

    /// Notes a delivery that has to be acknowledged; what was noted for the position before.
    pub(crate) fn hold(&mut self, position: Position, pending: Pending) -> Option<Pending> {
        let before = self.pending.insert(position, pending);
        self.unacked -= before.map_or(0, |before| u64::from(before.unacked));
        self.unacked += u64::from(pending.unacked);
        before
    }

    /// Lets an entry go; what it was.
    pub(crate) fn release(&mut self, position: Position) -> Option<Pending> {
        let pending = self.pending.remove(&position)?;
        self.unacked -= u64::from(pending.unacked);
        Some(pending)
    }

    /// Sets how many messages of a held entry are left; what it was before. Never raises it.
    pub(crate) fn reduce(&mut self, position: Position, left: u32) -> Option<Pending> {
        let pending = self.pending.get_mut(&position)?;
        let before = *pending;
        pending.unacked = left.min(before.unacked);
        self.unacked -= u64::from(before.unacked - pending.unacked);
        Some(before)
    }
}

/// The blocked state that follows from the counters: set at the limit, cleared at half of it; 0 is no limit.
pub(crate) fn blocked_after(blocked: bool, unacked: u64, limit: u64) -> bool {
    limit != 0 && if blocked { unacked > limit / 2 } else { unacked >= limit }
}
