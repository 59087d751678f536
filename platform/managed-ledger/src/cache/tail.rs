//! The newest entries of all logs.
//!
//! Invariants: H2; G1 what a log's tail holds is a contiguous run that ends with its last confirmed entry; G2 small
//! payloads are copied into chunks of their own, so that a large receive buffer is not pinned by one small entry.
//! Lock order: a log's view before the budget's queue is never taken; eviction takes them one after the other.

use crate::api::{CacheSettings, LogEntry};
use crate::layout::Layout;
use bytes::{Bytes, BytesMut};
use meridian_types::Position;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Payloads below this are copied (G2).
const COPY_BELOW_BYTES: usize = 4096;
/// Bytes per chunk of copies.
const CHUNK_BYTES: usize = 64 * 1024;
/// What an entry costs beside its payload.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// A log's shape and newest entries, under one lock, so that a reader sees both at one moment.
#[derive(Debug)]
pub struct View {
    /// The shape.
    pub layout: Layout,
    tail: VecDeque<LogEntry>,
}

/// A view as it is shared.
pub type SharedView = Arc<Mutex<View>>;

impl View {
    /// Without entries.
    pub fn new(layout: Layout) -> Self {
        Self { layout, tail: VecDeque::new() }
    }

    /// Adds entries behind the last one (G1).
    pub fn push(&mut self, entries: impl Iterator<Item = LogEntry>) {
        self.tail.extend(entries);
    }

    /// Drops entries up to `position`.
    pub fn evict(&mut self, position: Position) {
        let count = self.tail.partition_point(|entry| entry.position <= position);
        self.tail.drain(..count);
        if self.tail.is_empty() && self.tail.capacity() > 16 {
            self.tail = VecDeque::new();
        }
    }

    /// Gives back the room of what is empty.
    pub fn rest(&mut self) {
        self.tail.shrink_to_fit();
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.tail = VecDeque::new();
    }

    /// Entries at or after `from`, if the first one there is cached; empty = caught up.
    pub fn read(&self, from: Position, max_entries: u32, max_bytes: u64) -> Option<Vec<LogEntry>> {
        if from > self.layout.last_confirmed() {
            return Some(Vec::new());
        }
        let first = self.tail.front()?;
        if from < first.position && self.layout.next_valid(from) != first.position {
            return None;
        }
        let start = self.tail.partition_point(|entry| entry.position < from);
        let entries = take(self.tail.range(start..), max_entries, max_bytes);
        (!entries.is_empty()).then_some(entries)
    }
}

/// The first entries within the limits; always at least one if there is one.
pub fn take<'a>(entries: impl Iterator<Item = &'a LogEntry>, max_entries: u32, max_bytes: u64) -> Vec<LogEntry> {
    let mut bytes = 0u64;
    let mut taken = Vec::new();
    for entry in entries.take(max_entries.max(1) as usize) {
        bytes += entry.payload.len() as u64;
        if bytes > max_bytes && !taken.is_empty() {
            break;
        }
        taken.push(entry.clone());
    }
    taken
}

#[derive(Debug)]
struct Batch {
    view: Weak<Mutex<View>>,
    up_to: Position,
    bytes: u64,
    at_ms: u64,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Batch>,
    bytes: u64,
}

/// The bound of all tails together.
#[derive(Debug)]
pub struct TailBudget {
    settings: CacheSettings,
    queue: Mutex<Queue>,
    /// Entries served from tails.
    pub hits: AtomicU64,
}

impl TailBudget {
    /// Nothing cached.
    pub fn new(settings: CacheSettings) -> Self {
        Self { settings, queue: Mutex::default(), hits: AtomicU64::new(0) }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.queue.lock().bytes
    }

    /// Counts entries served.
    pub fn hit(&self, entries: usize) {
        self.hits.fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Accounts for entries just pushed into `view` and evicts the oldest of all logs over the bound (H2).
    pub fn account(&self, view: &SharedView, up_to: Position, entries: usize, payload_bytes: u64, now_ms: u64) {
        let bytes = payload_bytes + (entries * ENTRY_OVERHEAD_BYTES) as u64;
        let batch = Batch { view: Arc::downgrade(view), up_to, bytes, at_ms: now_ms };
        let mut queue = self.queue.lock();
        queue.batches.push_back(batch);
        queue.bytes += bytes;
        if queue.bytes <= self.settings.tail_bytes {
            return;
        }
        drop(queue);
        self.evict(|queue, _| queue.bytes > self.settings.tail_bytes);
    }

    /// Drops what is too old.
    pub fn age(&self, now_ms: u64) {
        self.evict(|_, oldest| oldest.at_ms.saturating_add(self.settings.tail_max_age_ms) <= now_ms);
        let mut queue = self.queue.lock();
        if queue.batches.is_empty() && queue.batches.capacity() > 64 {
            queue.batches = VecDeque::new();
        }
    }

    fn evict(&self, goes: impl Fn(&Queue, &Batch) -> bool) {
        loop {
            let mut queue = self.queue.lock();
            if !queue.batches.front().is_some_and(|oldest| goes(&queue, oldest)) {
                return;
            }
            let Some(oldest) = queue.batches.pop_front() else { return };
            queue.bytes -= oldest.bytes;
            drop(queue);
            if let Some(view) = oldest.view.upgrade() {
                view.lock().evict(oldest.up_to);
            }
        }
    }
}

/// Copies small payloads of one confirmed run into chunks of their own (G2); large ones are shared.
pub fn unpin(entries: &mut [LogEntry]) {
    let mut rest = entries;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|entry| {
                bytes += if entry.payload.len() < COPY_BELOW_BYTES { entry.payload.len() } else { 0 };
                bytes <= CHUNK_BYTES
            })
            .count();
        let (run, tail) = rest.split_at_mut(count);
        copy_small(run);
        rest = tail;
    }
}

fn copy_small(run: &mut [LogEntry]) {
    let small = |entry: &LogEntry| !entry.payload.is_empty() && entry.payload.len() < COPY_BELOW_BYTES;
    let total = run.iter().filter(|entry| small(entry)).map(|entry| entry.payload.len()).sum();
    if total == 0 {
        return;
    }
    let mut chunk = BytesMut::with_capacity(total);
    for entry in run.iter().filter(|entry| small(entry)) {
        chunk.extend_from_slice(&entry.payload);
    }
    let mut chunk: Bytes = chunk.freeze();
    for entry in run.iter_mut().filter(|entry| small(entry)) {
        entry.payload = chunk.split_to(entry.payload.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{Incarnation, LedgerId, RegionId};

    fn entry(number: i64, bytes: usize) -> LogEntry {
        let position = Position::new(1, number);
        LogEntry {
            position,
            index: number as u64,
            messages: 1,
            marker: false,
            broker_time_ms: 0,
            origin: (RegionId(1), Incarnation(1), position),
            payload: vec![number as u8; bytes].into(),
        }
    }

    fn view() -> SharedView {
        let mut layout = Layout::new(Position::EARLIEST, 0);
        layout.add(LedgerId(1), 0);
        Arc::new(Mutex::new(View::new(layout)))
    }

    fn push(view: &SharedView, budget: &TailBudget, number: i64, now_ms: u64) {
        let mut v = view.lock();
        v.layout.confirm(Position::new(1, number), 100, number as u64 + 1);
        v.push([entry(number, 100)].into_iter());
        drop(v);
        budget.account(view, Position::new(1, number), 1, 100, now_ms);
    }

    #[test]
    fn the_oldest_of_all_logs_goes_first() {
        let budget = TailBudget::new(CacheSettings { tail_bytes: 3 * 228, ..CacheSettings::default() });
        let (a, b) = (view(), view());
        for number in 0..3 {
            push(&a, &budget, number, 0);
        }
        push(&b, &budget, 0, 0);
        assert!(a.lock().read(Position::new(1, 0), 9, 999).is_none());
        assert_eq!(a.lock().read(Position::new(1, 1), 9, 999).unwrap().len(), 2);
        assert_eq!(b.lock().read(Position::EARLIEST, 9, 999).unwrap().len(), 1);
        assert!(budget.bytes() <= 3 * 228);
    }

    #[test]
    fn age_empties_the_tail_and_reads_are_limited() {
        let budget = TailBudget::new(CacheSettings { tail_max_age_ms: 10, ..CacheSettings::default() });
        let a = view();
        for number in 0..5 {
            push(&a, &budget, number, number as u64);
        }
        let read = |from, entries, bytes| a.lock().read(Position::new(1, from), entries, bytes).map(|read| read.len());
        assert_eq!(read(0, 2, 999), Some(2));
        assert_eq!(read(0, 9, 250), Some(2));
        assert_eq!(read(3, 9, 1), Some(1));
        assert_eq!(read(5, 9, 1), Some(0));
        budget.age(12);
        assert_eq!((read(2, 9, 999), read(3, 9, 999)), (None, Some(2)));
        budget.age(99);
        assert_eq!((read(4, 9, 999), budget.bytes()), (None, 0));
    }

    #[test]
    fn small_payloads_leave_their_buffer() {
        let buffer = Bytes::from(vec![7u8; 100_000]);
        let mut entries: Vec<LogEntry> = (0..90).map(|n| entry(n, 0)).collect();
        for (n, entry) in entries.iter_mut().enumerate() {
            let len = if n == 50 { 5000 } else { 1000 + n };
            entry.payload = buffer.slice(n..n + len);
        }
        unpin(&mut entries);
        for (n, entry) in entries.iter().enumerate() {
            let inside = buffer.as_ptr_range().contains(&entry.payload.as_ptr());
            assert_eq!(inside, n == 50, "{n}");
            assert_eq!(entry.payload.len(), if n == 50 { 5000 } else { 1000 + n });
            assert!(entry.payload.iter().all(|byte| *byte == 7));
        }
    }
}
