//! Reads: write caches, then read cache, then index and entry logs; never the journal.
//!
//! Role: a batched read goes on in memory as long as it can and asks for the disk only where it must; what is read
//! ahead of the asked entries goes to the read cache.
//! Invariants: A1 the write caches are looked at before the index, so that an entry on its way from one to the other is
//! always found; A2 "no such entry" is said only after both were looked at (B3); A3 nothing unchecked is given out (S9).
//! Failure: damage is [`BookieError::Corrupt`], only for the entry that was asked for.
//! Must never know: adds, journals.

use crate::core::Core;
use crate::error::StorageError;
use crate::index::Place;
use meridian_bookie_api::{BookieError, ReadEntry, ReadRequest};
use meridian_types::{EntryId, LedgerId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

/// Entries given in one answer at most.
pub const READ_ENTRIES_MAX: u32 = 4096;
/// Payload bytes given in one answer at most (a single larger entry is given).
pub const READ_BYTES_MAX: u64 = 16 << 20;
/// Places looked up at a time.
const PLACES_AT_A_TIME: usize = 512;
/// Times that a place is looked up again because its log was compacted away meanwhile.
const MOVED_RETRIES: u32 = 8;
/// Memory of a cached entry beside its payload.
const READ_ENTRY_OVERHEAD_BYTES: u64 = 96;

/// What may still be given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    entries: u32,
    bytes: u64,
    first: bool,
}

impl Limit {
    pub fn new(max_entries: u32, max_bytes: u64) -> Self {
        Self { entries: max_entries.clamp(1, READ_ENTRIES_MAX), bytes: max_bytes.min(READ_BYTES_MAX), first: true }
    }

    /// Whether anything more may be given.
    pub fn open(&self) -> bool {
        self.entries > 0 && (self.first || self.bytes > 0)
    }

    /// Takes an entry of `len` bytes if it is allowed; the first always is. Closes the limit if it is not.
    pub fn take(&mut self, len: usize) -> bool {
        if !self.open() || (!self.first && len as u64 > self.bytes) {
            self.entries = 0;
            return false;
        }
        self.first = false;
        self.entries -= 1;
        self.bytes = self.bytes.saturating_sub(len as u64);
        true
    }
}

#[derive(Debug)]
struct Run {
    entries: Vec<ReadEntry>,
    bytes: u64,
    touched: bool,
}

/// Runs of consecutive entries read ahead, evicted by second chance.
#[derive(Debug)]
pub(crate) struct ReadCache {
    runs: BTreeMap<(LedgerId, EntryId), Run>,
    order: VecDeque<(LedgerId, EntryId)>,
    bytes: u64,
    max_bytes: u64,
}

impl ReadCache {
    pub fn new(max_bytes: u64) -> Self {
        Self { runs: BTreeMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn insert(&mut self, ledger_id: LedgerId, entries: Vec<ReadEntry>) {
        let Some(first) = entries.first().map(|entry| entry.entry_id) else { return };
        let bytes = entries.iter().map(|entry| entry.payload.len() as u64 + READ_ENTRY_OVERHEAD_BYTES).sum();
        if bytes > self.max_bytes {
            return;
        }
        match self.runs.insert((ledger_id, first), Run { entries, bytes, touched: false }) {
            Some(old) => self.bytes -= old.bytes,
            None => self.order.push_back((ledger_id, first)),
        }
        self.bytes += bytes;
        while self.bytes > self.max_bytes {
            let Some(key) = self.order.pop_front() else { break };
            match self.runs.get_mut(&key) {
                Some(run) if run.touched && key != (ledger_id, first) => {
                    run.touched = false;
                    self.order.push_back(key);
                }
                _ => self.bytes -= self.runs.remove(&key).map_or(0, |run| run.bytes),
            }
        }
    }

    /// Gives consecutive entries from `from`; answers the next one wanted.
    fn run(&mut self, ledger_id: LedgerId, from: EntryId, limit: &mut Limit, out: &mut Vec<ReadEntry>) -> EntryId {
        let mut next = from;
        let Some(((_, first), run)) =
            self.runs.range_mut((ledger_id, EntryId(i64::MIN))..=(ledger_id, from)).next_back()
        else {
            return next;
        };
        let at = (from.0 - first.0) as usize;
        for entry in run.entries.iter().skip(at) {
            if !limit.take(entry.payload.len()) {
                break;
            }
            run.touched = true;
            next = entry.entry_id.next();
            out.push(entry.clone());
        }
        next
    }

    /// Drops what is cached of a ledger.
    pub fn forget(&mut self, ledger_id: LedgerId) {
        let range = (ledger_id, EntryId(i64::MIN))..=(ledger_id, EntryId(i64::MAX));
        let keys: Vec<_> = self.runs.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.bytes -= self.runs.remove(&key).map_or(0, |run| run.bytes);
        }
        self.order.retain(|(ledger, _)| *ledger != ledger_id);
    }
}

/// One read under way.
pub(crate) struct Reading {
    request: ReadRequest,
    next: EntryId,
    limit: Limit,
    out: Vec<ReadEntry>,
    last_entry: EntryId,
}

/// What a read needs next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    Disk,
}

impl Reading {
    /// Begins a read; the ledger must be known.
    pub fn begin(core: &Core, request: ReadRequest) -> Result<Self, BookieError> {
        let last_entry = {
            let mut ledgers = core.ledgers.lock();
            let state = ledgers.get(request.ledger_id, false).map_err(|error| error.to_bookie_error())?;
            state.ok_or(BookieError::NoSuchLedger)?.last_entry
        };
        let limit = Limit::new(request.max_entries, request.max_bytes);
        Ok(Self { request, next: request.first_entry_id, limit, out: Vec::new(), last_entry })
    }

    /// Goes on in memory.
    pub fn in_memory(&mut self, core: &Core) -> Step {
        loop {
            if !self.limit.open() || self.next > self.last_entry {
                return Step::Done;
            }
            let before = self.next;
            let mut cached = Vec::new();
            self.next = core.cache.run(self.request.ledger_id, self.next, &mut self.limit, &mut cached);
            self.out.extend(cached.iter().map(crate::cache::CachedEntry::to_read));
            if self.limit.open() && self.next <= self.last_entry {
                let asked = self.next;
                self.next =
                    core.read_cache.lock().run(self.request.ledger_id, self.next, &mut self.limit, &mut self.out);
                if self.next > asked {
                    core.metrics.read_cache_hits.inc_by((self.next.0 - asked.0) as u64);
                }
            }
            if self.next == before {
                return if self.limit.open() { Step::Disk } else { Step::Done };
            }
        }
    }

    /// Reads one run from the disk, then goes on in memory.
    pub fn go_to_disk(&mut self, core: &Core) -> Result<Step, StorageError> {
        for _ in 0..MOVED_RETRIES {
            // A1: caches first.
            let cached = core.cache.first_from(self.request.ledger_id, self.next);
            let places = core.index.places_from(self.request.ledger_id, self.next, PLACES_AT_A_TIME)?;
            let stored = places.first().map(|(entry_id, _)| *entry_id);
            if stored != Some(self.next) {
                let nearest = [cached, stored].into_iter().flatten().min();
                return Ok(match nearest {
                    Some(nearest) if nearest == self.next => Step::Disk,
                    Some(nearest) if self.request.gaps_allowed => {
                        self.next = nearest;
                        self.in_memory(core)
                    }
                    _ => Step::Done,
                });
            }
            let run = contiguous(&places, self.limit.bytes.max(core.config.read_ahead_bytes));
            let mut entries = Vec::with_capacity(run.len());
            core.metrics.read_cache_misses.inc();
            if core.logs.read_run(self.request.ledger_id, run, &mut entries)? {
                self.take_run(core, entries);
                return Ok(self.in_memory(core));
            }
        }
        Err(StorageError::Corrupt(format!(
            "entry {}:{} is in an entry log that does not exist",
            self.request.ledger_id, self.next
        )))
    }

    fn take_run(&mut self, core: &Core, mut entries: Vec<ReadEntry>) {
        let wanted = entries.iter().take_while(|entry| self.limit.take(entry.payload.len())).count();
        let ahead = entries.split_off(wanted);
        if let Some(last) = entries.last() {
            self.next = last.entry_id.next();
        }
        self.out.append(&mut entries);
        let mut cache = core.read_cache.lock();
        cache.insert(self.request.ledger_id, ahead);
        core.metrics.read_cache_bytes.set(cache.bytes() as i64);
    }

    /// Runs to the end, on a thread that may wait for the disk.
    pub fn finish_on_disk(mut self, core: &Core) -> Result<Vec<ReadEntry>, BookieError> {
        loop {
            match self.go_to_disk(core) {
                Ok(Step::Done) => return self.answer(core),
                Ok(Step::Disk) => {
                    // The entry may have come into a cache since.
                    if self.in_memory(core) == Step::Done {
                        return self.answer(core);
                    }
                }
                Err(error) => {
                    if matches!(error, StorageError::Corrupt(_)) {
                        core.metrics.corrupt_entries.inc();
                    }
                    if !self.out.is_empty() {
                        return self.answer(core);
                    }
                    tracing::error!(%error, ledger = %self.request.ledger_id, "read failed");
                    return Err(error.to_bookie_error());
                }
            }
            if core.closed.load(Ordering::Relaxed) {
                return Err(BookieError::Unavailable("the bookie is closing".to_owned()));
            }
        }
    }

    /// The answer.
    pub fn answer(self, core: &Core) -> Result<Vec<ReadEntry>, BookieError> {
        if self.out.is_empty() {
            return Err(BookieError::NoSuchEntry);
        }
        core.metrics.read_entries.inc_by(self.out.len() as u64);
        core.metrics.read_bytes.inc_by(self.out.iter().map(|entry| entry.payload.len() as u64).sum());
        Ok(self.out)
    }
}

/// The longest front of `places` that is consecutive in entries and on disk, of about `max_bytes`.
fn contiguous(places: &[(EntryId, Place)], max_bytes: u64) -> &[(EntryId, Place)] {
    let mut bytes = places.first().map_or(0, |(_, place)| u64::from(place.payload_bytes));
    let mut len = places.len().min(1);
    for pair in places.windows(2) {
        let ((last_id, last), (id, place)) = (pair[0], pair[1]);
        bytes += u64::from(place.payload_bytes);
        let follows = id == last_id.next()
            && place.log == last.log
            && place.offset_bytes == crate::entrylog::end_of(&last)
            && bytes <= max_bytes;
        if !follows {
            break;
        }
        len += 1;
    }
    &places[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn entry(id: i64, len: usize) -> ReadEntry {
        let payload = Bytes::from(vec![id as u8; len]);
        ReadEntry { entry_id: EntryId(id), last_add_confirmed: EntryId::NONE, digest: 0, payload }
    }

    #[test]
    fn the_first_entry_is_given_whatever_its_size() {
        let mut limit = Limit::new(3, 10);
        assert!(limit.take(100));
        assert!(!limit.open());
        let mut limit = Limit::new(3, 10);
        assert!(limit.take(4) && limit.take(6) && !limit.take(1));
    }

    #[test]
    fn the_read_cache_is_bounded_and_prefers_what_was_used() {
        let one = 100 + READ_ENTRY_OVERHEAD_BYTES;
        let mut cache = ReadCache::new(3 * one);
        for id in [0, 10, 20] {
            cache.insert(LedgerId(1), vec![entry(id, 100)]);
        }
        let mut out = Vec::new();
        cache.run(LedgerId(1), EntryId(0), &mut Limit::new(9, 999), &mut out);
        assert_eq!(out.len(), 1);
        cache.insert(LedgerId(1), vec![entry(30, 100)]);
        assert_eq!(cache.bytes(), 3 * one);
        assert!(cache.runs.contains_key(&(LedgerId(1), EntryId(0))), "used");
        assert!(!cache.runs.contains_key(&(LedgerId(1), EntryId(10))), "not used");
        cache.forget(LedgerId(1));
        assert_eq!((cache.bytes(), cache.order.len()), (0, 0));
    }

    #[test]
    fn runs_end_where_the_disk_or_the_ids_jump() {
        let place = |log, offset_bytes| Place { log, offset_bytes, payload_bytes: 60 };
        let at = |n: u64| 100 * n;
        let places = [(0, 0), (1, 1), (2, 2), (4, 3), (5, 9)].map(|(id, n)| (EntryId(id), place(1, at(n))));
        assert_eq!(contiguous(&places, 1000).len(), 3);
        assert_eq!(contiguous(&places, 130).len(), 2);
        assert_eq!(contiguous(&places[3..], 1000).len(), 1);
        assert_eq!(contiguous(&[], 1000).len(), 0);
    }
}
