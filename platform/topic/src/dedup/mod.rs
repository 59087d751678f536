//! Deduplication: which sends of a producer are known already.
//!
//! Role: two marks per producer name. *Pushed* is the highest sequence id handed to storage, *persisted* the highest one
//! that storage confirmed. Snapshots of the persisted marks ([`Snapshot`]) and a replay of the entries behind them give
//! the same marks again after a reload.
//! Invariants:
//! - U1 persisted ≤ pushed; both only rise, except that a send that is known not to be stored takes *pushed* back.
//! - U2 [`Verdict::Duplicate`] only for what is covered by *persisted* as a whole; what is only pushed is
//!   [`Verdict::Unknown`], so that the client comes again.
//! - U3 after a send was refused, nothing behind it is stored before it came again or its producer attached anew:
//!   otherwise the marks would cover a hole.
//! - U4 the parts of a chunked message are told apart by their index and the message's uuid: a part stored is not stored
//!   again, and a new attempt under another uuid is stored as a whole.
//! - U8, U9 (see [`ranges`]) where producers are the same in all regions ([`Dedup::exact`]): their messages come by two
//!   paths, so the stored sequence ids are known one by one, and U2 holds for those.
//! - U5 names are bounded: over `max_producers` those that are longest idle and not attached go first.
//!
//! Failure: none; a producer that was forgotten is simply unknown.
//! Must never know: clocks, sinks, storage.

mod mark;
pub mod ranges;
mod snapshot;

pub use mark::{ChunkPart, Mark, Partial, Sequence};
pub use snapshot::{Snapshot, SnapshotError, SnapshotProducer};

use meridian_types::Position;
use ranges::Exact;
use std::collections::HashMap;
use std::sync::Arc;

/// What to do with a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Store it.
    Store,
    /// It is stored already: a receipt without a position.
    Duplicate,
    /// It was sent before and its fate is open: an error that makes the client come again.
    Unknown,
}

#[derive(Debug, Default)]
struct Producer {
    pushed: Mark,
    persisted: Mark,
    /// Instead of the marks.
    exact: Option<Box<Exact>>,
    /// Lowest sequence id of a refused send (U3).
    refused: Option<i64>,
    attached: u32,
    last_active_ms: u64,
}

impl Producer {
    fn store(&mut self, sequence: &Sequence) {
        match &mut self.exact {
            Some(exact) => exact.settle(sequence),
            None => {
                self.persisted.raise(sequence);
                self.pushed.raise(sequence);
            }
        }
    }

    fn highest(&self) -> i64 {
        self.exact.as_ref().map_or(self.pushed.sequence, |exact| exact.highest())
    }

    fn is_settled(&self) -> bool {
        self.exact.as_ref().map_or(self.pushed == self.persisted, |exact| exact.is_settled())
    }

    /// What is stored, as one mark.
    fn mark(&self) -> Mark {
        self.exact.as_ref().map_or(self.persisted, |exact| {
            let (stored, partial) = exact.stored();
            Mark { sequence: stored.highest(), partial }
        })
    }
}

/// The marks of one topic.
#[derive(Debug)]
pub struct Dedup {
    producers: HashMap<Arc<str>, Producer>,
    max_producers: u32,
    exact: bool,
    confirmed_since_snapshot: u64,
    forgotten_since_snapshot: bool,
    snapshot_ms: u64,
}

impl Dedup {
    /// No marks; `max_producers` 0 = no bound.
    pub fn new(max_producers: u32, now_ms: u64) -> Self {
        Self {
            producers: HashMap::new(),
            max_producers,
            exact: false,
            confirmed_since_snapshot: 0,
            forgotten_since_snapshot: false,
            snapshot_ms: now_ms,
        }
    }

    /// No marks, for producers that are the same in all regions.
    pub fn exact(max_producers: u32, now_ms: u64) -> Self {
        Self { exact: true, ..Self::new(max_producers, now_ms) }
    }

    /// Whether stored sequence ids are known one by one.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// The marks of a snapshot, to be brought up to date by [`Dedup::replayed`] with every entry behind
    /// [`Snapshot::covered`].
    pub fn restore(snapshot: &Snapshot, max_producers: u32, now_ms: u64) -> Self {
        let mut dedup = Self { exact: snapshot.exact, ..Self::new(max_producers, now_ms) };
        for saved in &snapshot.producers {
            let exact = || Box::new(Exact::restored(saved.ranges.clone(), saved.mark.partial));
            let producer = Producer {
                pushed: saved.mark,
                persisted: saved.mark,
                exact: snapshot.exact.then(exact),
                last_active_ms: saved.last_active_ms,
                ..Producer::default()
            };
            dedup.producers.insert(saved.name.as_str().into(), producer);
        }
        dedup
    }

    /// An entry found in the log.
    pub fn replayed(&mut self, name: &str, sequence: &Sequence, stored_ms: u64) {
        let producer = self.producer(name, stored_ms);
        producer.store(sequence);
        self.confirmed_since_snapshot += 1;
        self.bound();
    }

    /// A producer attaches; answers the highest sequence id known for its name, -1 if none.
    pub fn attach(&mut self, name: &str, now_ms: u64) -> i64 {
        let producer = self.producer(name, now_ms);
        producer.attached += 1;
        producer.refused = None;
        let highest = producer.highest();
        self.bound();
        highest
    }

    /// A producer has gone.
    pub fn detach(&mut self, name: &str, now_ms: u64) {
        if let Some(producer) = self.producers.get_mut(name) {
            producer.attached = producer.attached.saturating_sub(1);
            producer.last_active_ms = producer.last_active_ms.max(now_ms);
        }
    }

    /// Decides on a message that came by another region's link. What the link is refused does not stop the producer
    /// here: the link has an order of its own.
    pub fn decide_foreign(&mut self, name: &str, sequence: &Sequence, now_ms: u64) -> Verdict {
        let producer = self.producer(name, now_ms);
        let verdict = producer.exact.as_mut().map_or(Verdict::Store, |exact| exact.decide(sequence));
        self.bound();
        verdict
    }

    /// Storage confirmed a message that came by another region's link.
    pub fn confirm_foreign(&mut self, name: &str, sequence: &Sequence) {
        if self.exact {
            self.confirm(name, sequence);
        }
    }

    /// A message that came by another region's link is known not to be stored.
    pub fn refuse_foreign(&mut self, name: &str, sequence: &Sequence) {
        if let Some(exact) = self.producers.get_mut(name).and_then(|producer| producer.exact.as_mut()) {
            exact.drop_flight(sequence);
        }
    }

    /// Decides on a send, and counts it as pushed if it is to be stored.
    pub fn decide(&mut self, name: &str, sequence: &Sequence, now_ms: u64) -> Verdict {
        let producer = self.producer(name, now_ms);
        if let Some(exact) = &mut producer.exact {
            if producer.refused.is_some_and(|refused| sequence.lowest > refused) {
                return Verdict::Unknown;
            }
            let verdict = exact.decide(sequence);
            if verdict == Verdict::Store {
                producer.refused = None;
            }
            return verdict;
        }
        if producer.refused.is_some_and(|refused| sequence.lowest > refused) {
            return Verdict::Unknown;
        }
        if producer.persisted.covers(sequence) {
            return Verdict::Duplicate;
        }
        if producer.pushed.touches(sequence) && !producer.persisted.touches(sequence) {
            return Verdict::Unknown;
        }
        producer.refused = None;
        producer.pushed.raise(sequence);
        Verdict::Store
    }

    /// Storage confirmed a send.
    pub fn confirm(&mut self, name: &str, sequence: &Sequence) {
        if let Some(producer) = self.producers.get_mut(name) {
            producer.store(sequence);
            self.confirmed_since_snapshot += 1;
        }
    }

    /// A send that was to be stored is known not to be, nor anything of its producer behind it.
    pub fn refuse(&mut self, name: &str, sequence: &Sequence) {
        if let Some(producer) = self.producers.get_mut(name) {
            if let Some(exact) = &mut producer.exact {
                exact.drop_flight(sequence);
            }
            producer.pushed.lower_below(sequence);
            if producer.pushed < producer.persisted {
                producer.pushed = producer.persisted;
            }
            producer.refused = Some(producer.refused.map_or(sequence.lowest, |refused| refused.min(sequence.lowest)));
        }
    }

    /// Highest sequence id known for a name, -1 if none.
    pub fn last_sequence_id(&self, name: &str) -> i64 {
        self.producers.get(name).map_or(-1, Producer::highest)
    }

    /// Forgets names without a producer that were idle for longer; answers how many.
    pub fn forget_idle(&mut self, now_ms: u64, idle_ms: u64) -> usize {
        let before = self.producers.len();
        self.producers
            .retain(|_, producer| producer.attached > 0 || now_ms.saturating_sub(producer.last_active_ms) <= idle_ms);
        let forgotten = before - self.producers.len();
        self.forgotten_since_snapshot |= forgotten > 0;
        forgotten
    }

    /// Whether a snapshot is due: after so many entries, or after so long if anything changed.
    pub fn snapshot_due(&self, now_ms: u64, every_entries: u64, every_ms: u64) -> bool {
        let changed = self.confirmed_since_snapshot > 0 || self.forgotten_since_snapshot;
        self.confirmed_since_snapshot >= every_entries.max(1)
            || (changed && now_ms.saturating_sub(self.snapshot_ms) >= every_ms)
    }

    /// The persisted marks; `covered` is the last entry that was confirmed to this object.
    pub fn snapshot(&mut self, covered: Position, now_ms: u64) -> Snapshot {
        self.confirmed_since_snapshot = 0;
        self.forgotten_since_snapshot = false;
        self.snapshot_ms = now_ms;
        let saved = |(name, producer): (&Arc<str>, &Producer)| SnapshotProducer {
            name: name.to_string(),
            mark: producer.mark(),
            ranges: producer.exact.as_ref().map(|exact| exact.stored().0.clone()).unwrap_or_default(),
            last_active_ms: producer.last_active_ms,
        };
        let known = |(_, producer): &(&Arc<str>, &Producer)| producer.mark() != Mark::default();
        let mut producers: Vec<_> = self.producers.iter().filter(known).map(saved).collect();
        producers.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Snapshot { covered, taken_ms: now_ms, exact: self.exact, producers }
    }

    /// Names known.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether no name is known.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// Name, pushed and persisted sequence id of each, for statistics.
    pub fn marks(&self) -> impl Iterator<Item = (&str, i64, i64)> {
        self.producers.iter().map(|(name, marks)| (&**name, marks.highest(), marks.mark().sequence))
    }

    fn producer(&mut self, name: &str, now_ms: u64) -> &mut Producer {
        if !self.producers.contains_key(name) {
            let exact = self.exact.then(Box::default);
            self.producers.insert(name.into(), Producer { exact, ..Producer::default() });
        }
        let producer = self.producers.entry(name.into()).or_default();
        producer.last_active_ms = producer.last_active_ms.max(now_ms);
        producer
    }

    /// U5: drops a sixteenth at once, so that the search is paid once in many newcomers.
    fn bound(&mut self) {
        let max = self.max_producers as usize;
        if max == 0 || self.producers.len() <= max {
            return;
        }
        let mut idle: Vec<(u64, Arc<str>)> = self
            .producers
            .iter()
            .filter(|(_, producer)| producer.attached == 0 && producer.is_settled())
            .map(|(name, producer)| (producer.last_active_ms, name.clone()))
            .collect();
        idle.sort_unstable();
        let excess = self.producers.len() - max + max / 16;
        for (_, name) in idle.into_iter().take(excess) {
            self.producers.remove(&name);
            self.forgotten_since_snapshot = true;
        }
    }
}

#[cfg(test)]
mod tests;
