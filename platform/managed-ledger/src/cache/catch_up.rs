//! Blocks read ahead from storage for readers that lag.
//!
//! While a reader walks through the second half of a block, the next block is read. Invariants: H1–H3; P1 a block is a run of consecutive entries of one ledger; P2 who asks for an entry that another
//! reader is just reading waits for that read instead of repeating it.
//! Lock order: as in [`super::tail`].

use crate::api::{CacheSettings, LogEntry};
use crate::cache::tail::take;
use meridian_types::Position;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

const ENTRY_OVERHEAD_BYTES: usize = 128;

/// A read in progress: of one ledger, from one entry, up to so many.
#[derive(Debug)]
struct Flight {
    first: Position,
    entries: u32,
    done: Arc<Notify>,
}

/// The blocks of one log.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: BTreeMap<Position, Arc<Vec<LogEntry>>>,
    flights: Vec<Flight>,
}

/// Blocks as they are shared.
pub type SharedBlocks = Arc<Mutex<Blocks>>;

/// What a reader does next.
#[derive(Debug)]
pub enum Next {
    /// Here are entries; and the right to read the next block before it is asked for, if the reader nears the end of this
    /// one.
    Entries(Vec<LogEntry>, Option<Landing>),
    /// Another reader is at it: wait, then ask again.
    Wait(OwnedNotified),
    /// Read from storage, then give the result to [`Landing::land`].
    Read(Landing),
}

/// The right to read one block; dropping it without a result lets others try.
#[derive(Debug)]
pub struct Landing {
    blocks: SharedBlocks,
    first: Position,
}

impl Blocks {
    /// Entries from `from` (which exists) on, or what to do to get them.
    pub fn ask(shared: &SharedBlocks, from: Position, max_entries: u32, max_bytes: u64, ahead_entries: u32) -> Next {
        let mut this = shared.lock();
        if let Some((entries, next)) = this.find(from, max_entries, max_bytes) {
            let next = next.filter(|next| !this.is_there(*next)).map(|next| this.fly(shared, next, ahead_entries));
            return Next::Entries(entries, next);
        }
        let covers = |flight: &&Flight| {
            let last = flight.first.entry_id.0 + i64::from(flight.entries);
            flight.first.ledger_id == from.ledger_id && flight.first <= from && from.entry_id.0 < last
        };
        if let Some(flight) = this.flights.iter().find(covers) {
            // Made under the lock: the end of the read can't be missed.
            return Next::Wait(flight.done.clone().notified_owned());
        }
        Next::Read(this.fly(shared, from, ahead_entries))
    }

    fn fly(&mut self, shared: &SharedBlocks, first: Position, entries: u32) -> Landing {
        self.flights.push(Flight { first, entries, done: Arc::new(Notify::new()) });
        Landing { blocks: shared.clone(), first }
    }

    fn is_there(&self, first: Position) -> bool {
        self.blocks.contains_key(&first) || self.flights.iter().any(|flight| flight.first == first)
    }

    /// Entries, and where the next block begins if the reader walks and has passed the middle of this one.
    fn find(&self, from: Position, max_entries: u32, max_bytes: u64) -> Option<(Vec<LogEntry>, Option<Position>)> {
        let (first, block) = self.blocks.range(..=from).next_back()?;
        let skip = usize::try_from(from.entry_id.0 - first.entry_id.0).ok()?;
        if first.ledger_id != from.ledger_id || skip >= block.len() {
            return None;
        }
        let entries = take(block[skip..].iter(), max_entries, max_bytes);
        let walks = skip > 0 && skip + entries.len() > block.len() / 2;
        let next = block.last().filter(|_| walks).map(|last| last.position.next_in_ledger());
        Some((entries, next))
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }
}

impl Landing {
    /// The first entry to read.
    pub fn first(&self) -> Position {
        self.first
    }

    /// Keeps what was read and wakes those who wait. An error of the read is their business: they read themselves.
    pub fn land(self, entries: Vec<LogEntry>, budget: &CatchUpBudget, now_ms: u64) -> Arc<Vec<LogEntry>> {
        let block = Arc::new(entries);
        if !block.is_empty() {
            self.blocks.lock().blocks.insert(self.first, block.clone());
            budget.account(&self.blocks, self.first, &block, now_ms);
        }
        block
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut blocks = self.blocks.lock();
        if let Some(at) = blocks.flights.iter().position(|flight| flight.first == self.first) {
            blocks.flights.swap_remove(at).done.notify_waiters();
        }
    }
}

#[derive(Debug)]
struct Held {
    blocks: Weak<Mutex<Blocks>>,
    first: Position,
    bytes: u64,
    at_ms: u64,
}

/// The bound of all catch-up caches together.
#[derive(Debug)]
pub struct CatchUpBudget {
    settings: CacheSettings,
    queue: Mutex<(VecDeque<Held>, u64)>,
    /// Entries served from blocks.
    pub hits: AtomicU64,
    /// Reads of storage.
    pub storage_reads: AtomicU64,
    /// Entries that they gave.
    pub storage_entries: AtomicU64,
}

impl CatchUpBudget {
    /// Nothing cached.
    pub fn new(settings: CacheSettings) -> Self {
        Self {
            settings,
            queue: Mutex::default(),
            hits: AtomicU64::new(0),
            storage_reads: AtomicU64::new(0),
            storage_entries: AtomicU64::new(0),
        }
    }

    /// The bounds.
    pub fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.queue.lock().1
    }

    /// Counts a read of storage.
    pub fn count_read(&self, entries: usize) {
        self.storage_reads.fetch_add(1, Ordering::Relaxed);
        self.storage_entries.fetch_add(entries as u64, Ordering::Relaxed);
    }

    fn account(&self, blocks: &SharedBlocks, first: Position, block: &[LogEntry], now_ms: u64) {
        let bytes = block.iter().map(|entry| (entry.payload.len() + ENTRY_OVERHEAD_BYTES) as u64).sum();
        let mut queue = self.queue.lock();
        queue.0.push_back(Held { blocks: Arc::downgrade(blocks), first, bytes, at_ms: now_ms });
        queue.1 += bytes;
        drop(queue);
        self.evict(|total, _| total > self.settings.catch_up_bytes);
    }

    /// Drops what is too old.
    pub fn age(&self, now_ms: u64) {
        self.evict(|_, oldest| oldest.at_ms.saturating_add(self.settings.catch_up_max_age_ms) <= now_ms);
    }

    fn evict(&self, goes: impl Fn(u64, &Held) -> bool) {
        loop {
            let mut queue = self.queue.lock();
            let total = queue.1;
            if !queue.0.front().is_some_and(|oldest| goes(total, oldest)) {
                return;
            }
            let Some(oldest) = queue.0.pop_front() else { return };
            queue.1 -= oldest.bytes;
            drop(queue);
            if let Some(blocks) = oldest.blocks.upgrade() {
                blocks.lock().blocks.remove(&oldest.first);
            }
        }
    }
}
