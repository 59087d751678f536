//! The two write caches: one takes adds, the other is being flushed.
//!
//! Role: holds every entry from its add until the index knows where it is. Entries are kept per ledger in entry order,
//! so that a flush is a walk and a tail read a binary search.
//! Invariants: W1 an entry is in one of the caches from before it is queued to the journal until its place is in the
//! index; W2 when both are full the journal is held (its queue is the first buffer), and beyond `hard_bytes` adds are
//! refused; W3 a second add of the same entry replaces the first.
//! Must never know: files, fencing.

use crate::journal::Gate;
use bytes::Bytes;
use meridian_bookie_api::{AddEntry, EntryBytes, ReadEntry};
use meridian_types::{EntryId, LedgerId};
use parking_lot::{Condvar, Mutex};
use prometheus::IntGauge;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of an entry beside its payload.
pub const ENTRY_OVERHEAD_BYTES: u64 = std::mem::size_of::<CachedEntry>() as u64;
/// How long the journal is held for room at most, per group; the caches stay bounded by `hard_bytes`.
pub const HOLD_MAX: Duration = Duration::from_millis(1000);

/// An entry in a cache.
#[derive(Debug, Clone)]
pub(crate) struct CachedEntry {
    pub entry_id: EntryId,
    pub last_add_confirmed: EntryId,
    pub digest: u32,
    pub entry: EntryBytes,
}

impl CachedEntry {
    fn bytes(&self) -> u64 {
        self.entry.len() as u64 + ENTRY_OVERHEAD_BYTES
    }

    /// As an answer to a read.
    pub fn to_read(&self) -> ReadEntry {
        ReadEntry {
            entry_id: self.entry_id,
            last_add_confirmed: self.last_add_confirmed,
            digest: self.digest,
            payload: self.entry.to_bytes(),
        }
    }
}

/// One of the two.
#[derive(Debug, Default)]
pub(crate) struct Half {
    ledgers: HashMap<LedgerId, Vec<CachedEntry>>,
    bytes: u64,
}

impl Half {
    fn put(&mut self, ledger_id: LedgerId, cached: CachedEntry) {
        let added = cached.bytes();
        let entries = self.ledgers.entry(ledger_id).or_default();
        if entries.last().is_none_or(|last| last.entry_id < cached.entry_id) {
            entries.push(cached);
        } else {
            match entries.binary_search_by_key(&cached.entry_id, |entry| entry.entry_id) {
                Ok(at) => {
                    self.bytes -= entries[at].bytes();
                    entries[at] = cached;
                }
                Err(at) => entries.insert(at, cached),
            }
        }
        self.bytes += added;
    }

    /// The first entry at or after `from`.
    fn at_or_after(&self, ledger_id: LedgerId, from: EntryId) -> Option<&CachedEntry> {
        let entries = self.ledgers.get(&ledger_id)?;
        entries.get(entries.partition_point(|entry| entry.entry_id < from))
    }

    /// Ledgers in order, each with its entries in order.
    pub fn sorted(&self) -> Vec<(LedgerId, &[CachedEntry])> {
        let mut ledgers: Vec<_> = self.ledgers.iter().map(|(id, entries)| (*id, entries.as_slice())).collect();
        ledgers.sort_unstable_by_key(|(id, _)| *id);
        ledgers
    }

    /// Bytes in it, overhead included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Default)]
struct Halves {
    active: Half,
    flushing: Option<Arc<Half>>,
    closed: bool,
}

/// See the module.
pub(crate) struct WriteCache {
    halves: Mutex<Halves>,
    room: Condvar,
    half_bytes: u64,
    hard_bytes: u64,
    gauge: IntGauge,
}

/// What an insertion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// There is room.
    Room,
    /// The active cache is full: flush.
    Full,
}

impl WriteCache {
    pub fn new(half_bytes: u64, hard_bytes: u64, gauge: IntGauge) -> Self {
        Self { halves: Mutex::new(Halves::default()), room: Condvar::new(), half_bytes, hard_bytes, gauge }
    }

    /// Whether adds must be refused (W2).
    pub fn is_overfull(&self) -> bool {
        self.halves.lock().active.bytes >= self.hard_bytes
    }

    /// Puts entries in; `skip` are indexes (ascending) of those that were refused.
    pub fn put<'a>(&self, entries: &[AddEntry], mut skip: impl Iterator<Item = &'a usize>) -> Fill {
        let mut next_skip = skip.next();
        let mut halves = self.halves.lock();
        for (at, add) in entries.iter().enumerate() {
            if next_skip == Some(&at) {
                next_skip = skip.next();
                continue;
            }
            let cached = CachedEntry {
                entry_id: add.entry_id,
                last_add_confirmed: add.last_add_confirmed,
                digest: add.digest,
                entry: add.entry.clone(),
            };
            halves.active.put(add.ledger_id, cached);
        }
        self.update_gauge(&halves);
        if halves.active.bytes >= self.half_bytes { Fill::Full } else { Fill::Room }
    }

    /// Puts one replayed entry in.
    pub fn put_replayed(&self, ledger_id: LedgerId, cached: CachedEntry) -> Fill {
        let mut halves = self.halves.lock();
        halves.active.put(ledger_id, cached);
        self.update_gauge(&halves);
        if halves.active.bytes >= self.half_bytes { Fill::Full } else { Fill::Room }
    }

    fn update_gauge(&self, halves: &Halves) {
        self.gauge.set((halves.active.bytes + halves.flushing.as_ref().map_or(0, |half| half.bytes)) as i64);
    }

    /// Hands the active cache over to a flush. A flush that failed before is handed out again.
    pub fn begin_flush(&self) -> Arc<Half> {
        let mut halves = self.halves.lock();
        if let Some(unfinished) = &halves.flushing {
            return Arc::clone(unfinished);
        }
        let half = Arc::new(std::mem::take(&mut halves.active));
        halves.flushing = Some(Arc::clone(&half));
        drop(halves);
        self.room.notify_all();
        half
    }

    /// The index knows every entry of the flushed cache.
    pub fn end_flush(&self) {
        let mut halves = self.halves.lock();
        let flushed = halves.flushing.take();
        self.update_gauge(&halves);
        drop(halves);
        self.room.notify_all();
        drop(flushed);
    }

    /// A run of consecutive entries from `from`; ends at the first one missing here. Answers the next one wanted.
    pub fn run(
        &self,
        ledger_id: LedgerId,
        from: EntryId,
        limit: &mut crate::read::Limit,
        out: &mut Vec<CachedEntry>,
    ) -> EntryId {
        let halves = self.halves.lock();
        let mut next = from;
        while limit.open() {
            let found = [Some(&halves.active), halves.flushing.as_deref()]
                .into_iter()
                .flatten()
                .find_map(|half| half.at_or_after(ledger_id, next).filter(|entry| entry.entry_id == next));
            let Some(cached) = found else { break };
            if !limit.take(cached.entry.len()) {
                break;
            }
            out.push(cached.clone());
            next = next.next();
        }
        next
    }

    /// The lowest entry at or after `from` in either cache.
    pub fn first_from(&self, ledger_id: LedgerId, from: EntryId) -> Option<EntryId> {
        let halves = self.halves.lock();
        let lowest = |half: &Half| half.at_or_after(ledger_id, from).map(|entry| entry.entry_id);
        let flushing = halves.flushing.as_deref().and_then(lowest);
        match (lowest(&halves.active), flushing) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether either cache holds entries of the ledger.
    pub fn holds(&self, ledger_id: LedgerId) -> bool {
        let halves = self.halves.lock();
        halves.active.ledgers.contains_key(&ledger_id)
            || halves.flushing.as_ref().is_some_and(|half| half.ledgers.contains_key(&ledger_id))
    }

    /// Ends every wait.
    pub fn close(&self) {
        self.halves.lock().closed = true;
        self.room.notify_all();
    }
}

impl Gate for WriteCache {
    fn wait_for_room(&self) -> bool {
        let full =
            |halves: &Halves| !halves.closed && halves.flushing.is_some() && halves.active.bytes >= self.half_bytes;
        let mut halves = self.halves.lock();
        if !full(&halves) {
            return false;
        }
        let deadline = Instant::now() + HOLD_MAX;
        while full(&halves) && !self.room.wait_until(&mut halves, deadline).timed_out() {}
        true
    }
}

/// Copies a payload out of a larger buffer, so that it does not keep that buffer alive.
pub(crate) fn owned_payload(bytes: &[u8]) -> EntryBytes {
    EntryBytes::plain(Bytes::copy_from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Limit;

    fn cached(entry: i64, text: &'static str) -> CachedEntry {
        CachedEntry {
            entry_id: EntryId(entry),
            last_add_confirmed: EntryId::NONE,
            digest: 0,
            entry: EntryBytes::plain(Bytes::from_static(text.as_bytes())),
        }
    }

    fn cache(half_bytes: u64) -> WriteCache {
        WriteCache::new(half_bytes, half_bytes * 4, IntGauge::new("g", "g").unwrap())
    }

    #[test]
    fn runs_cross_both_caches_and_end_at_a_gap() {
        let cache = cache(1 << 20);
        for entry in [2, 0, 1] {
            cache.put_replayed(LedgerId(1), cached(entry, "old"));
        }
        let half = cache.begin_flush();
        assert_eq!(half.sorted()[0].1.iter().map(|e| e.entry_id.0).collect::<Vec<_>>(), [0, 1, 2]);
        for entry in [1, 3, 5] {
            cache.put_replayed(LedgerId(1), cached(entry, "new"));
        }
        let mut out = Vec::new();
        let next = cache.run(LedgerId(1), EntryId(0), &mut Limit::new(100, 1 << 20), &mut out);
        assert_eq!(next, EntryId(4));
        let texts: Vec<_> = out.iter().map(|e| &e.entry.body[..]).collect();
        assert_eq!(texts, [&b"old"[..], b"new", b"old", b"new"]);
        assert_eq!(cache.first_from(LedgerId(1), EntryId(4)), Some(EntryId(5)));
        cache.end_flush();
        assert_eq!(cache.first_from(LedgerId(1), EntryId(0)), Some(EntryId(1)));
    }

    #[test]
    fn room_is_counted_and_given_back() {
        let cache = cache(ENTRY_OVERHEAD_BYTES + 3);
        assert_eq!(cache.put_replayed(LedgerId(1), cached(0, "abc")), Fill::Full);
        assert_eq!(cache.put_replayed(LedgerId(1), cached(0, "ab")), Fill::Room, "replaced, not added");
        assert!(!cache.wait_for_room(), "one flush can still begin");
        cache.begin_flush();
        assert_eq!(cache.halves.lock().active.bytes, 0);
        assert!(cache.holds(LedgerId(1)));
        cache.end_flush();
        assert!(!cache.holds(LedgerId(1)));
    }
}
