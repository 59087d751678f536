//! Delayed delivery: which entries of a subscription wait for their time.
//!
//! Role: an index from time to positions. It is no source of truth: it is filled from entries as they are read, so that
//! after a reload the log itself fills it again, and nothing has to be stored.
//! Invariants:
//! - D1 a position added is given out by [`DelayedTracker::take_due`] once, when its bucket is due, unless it was
//!   forgotten; being tracked never keeps a position from being delivered ("due beats tracked").
//! - D2 no exact bucket is due before the time asked for, and none more than one tick after it.
//! - D3 the index stays near [`EXACT_INDEX_BYTES`]: over it the farthest buckets are joined in pairs. A joined bucket is
//!   due at its earliest member's time: who takes a position looks at the entry's own time and adds it again if it has
//!   to wait longer. What grows with the number of entries is about two bytes each.
//! - D4 the count is the number of positions held, so it is never negative and zero when empty.
//!
//! Must never know: clocks, entries, consumers.

mod positions;

use positions::PositionSet;

use meridian_types::Position;
use std::collections::BTreeMap;

/// What the index may cost besides two bytes per entry, before buckets are joined.
pub const EXACT_INDEX_BYTES: u64 = 4 << 20;

/// Entries that wait for their time, of one subscription.
#[derive(Debug)]
pub struct DelayedTracker {
    tick_ms: u64,
    buckets: BTreeMap<u64, PositionSet>,
    entries: u64,
    index_bytes: u64,
    join_over_bytes: u64,
}

impl DelayedTracker {
    /// An empty tracker; times are rounded up to `tick_ms`.
    pub fn new(tick_ms: u64) -> Self {
        Self {
            tick_ms: tick_ms.max(1),
            buckets: BTreeMap::new(),
            entries: 0,
            index_bytes: 0,
            join_over_bytes: EXACT_INDEX_BYTES,
        }
    }

    /// Another tick, for what is added from now on.
    pub fn set_tick_ms(&mut self, tick_ms: u64) {
        self.tick_ms = tick_ms.max(1);
    }

    /// When an entry is due: its time, rounded up to the tick.
    pub fn due_ms(&self, deliver_at_ms: u64) -> u64 {
        deliver_at_ms.div_ceil(self.tick_ms).saturating_mul(self.tick_ms)
    }

    /// Tracks an entry. Adding it again with the same time changes nothing.
    pub fn add(&mut self, position: Position, deliver_at_ms: u64) {
        let due_ms = self.due_ms(deliver_at_ms);
        let bucket = self.buckets.entry(due_ms).or_default();
        let before = if bucket.is_empty() { 0 } else { bucket.index_bytes() };
        if bucket.insert(position) {
            self.entries += 1;
        }
        self.index_bytes += bucket.index_bytes().saturating_sub(before);
        if self.index_bytes > self.join_over_bytes {
            self.join_far_buckets();
        }
    }

    /// Takes up to `max` positions that are due, earliest bucket first, in order of position within a bucket.
    pub fn take_due(&mut self, now_ms: u64, max: usize) -> Vec<Position> {
        let mut due = Vec::new();
        while due.len() < max {
            let Some(mut first) = self.buckets.first_entry() else { break };
            if *first.key() > now_ms {
                break;
            }
            let before = first.get().index_bytes();
            first.get_mut().take_first(max - due.len(), &mut due);
            let after = if first.get().is_empty() { 0 } else { first.get().index_bytes() };
            self.index_bytes = self.index_bytes.saturating_sub(before.saturating_sub(after));
            if first.get().is_empty() {
                first.remove();
            }
        }
        self.entries -= due.len() as u64;
        self.check();
        due
    }

    /// When the earliest bucket is due.
    pub fn next_due(&self) -> Option<u64> {
        self.buckets.first_key_value().map(|(due_ms, _)| *due_ms)
    }

    /// When the last bucket is due: no entry that waits is due after it, but for members of a bucket that was joined.
    pub fn last_due(&self) -> Option<u64> {
        self.buckets.last_key_value().map(|(due_ms, _)| *due_ms)
    }

    /// Forgets everything at or below a position: it was acknowledged, skipped or expired. Costs a look at each bucket.
    pub fn forget_up_to(&mut self, position: Position) {
        for bucket in self.buckets.values_mut() {
            bucket.remove_up_to(position);
        }
        self.buckets.retain(|_, bucket| !bucket.is_empty());
        self.recount();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.tick_ms);
    }

    /// Entries that wait.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// What the index costs, roughly, without the two bytes per entry.
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// D3: joins the later half of the buckets in pairs until there is room or nothing left to join.
    fn join_far_buckets(&mut self) {
        while self.index_bytes > EXACT_INDEX_BYTES && self.buckets.len() > 2 {
            let far: Vec<u64> = self.buckets.keys().skip(self.buckets.len() / 2).copied().collect();
            for pair in far.chunks_exact(2) {
                if let Some(later) = self.buckets.remove(&pair[1])
                    && let Some(earlier) = self.buckets.get_mut(&pair[0])
                {
                    later.for_each(&mut |position| {
                        earlier.insert(position);
                    });
                }
            }
            if far.len() < 2 {
                break;
            }
            self.recount();
        }
        self.set_bound();
    }

    /// What is over the bound with nothing left to join is looked at again when it has grown by a quarter.
    fn set_bound(&mut self) {
        let is_within = self.index_bytes <= EXACT_INDEX_BYTES;
        self.join_over_bytes = if is_within { EXACT_INDEX_BYTES } else { self.index_bytes + self.index_bytes / 4 };
    }

    fn recount(&mut self) {
        self.entries = self.buckets.values().map(PositionSet::len).sum();
        self.index_bytes = self.buckets.values().map(PositionSet::index_bytes).sum();
        self.set_bound();
    }

    fn check(&self) {
        debug_assert_eq!(self.entries == 0, self.buckets.is_empty(), "D4: no bucket without entries");
    }
}

#[cfg(test)]
mod tests;
