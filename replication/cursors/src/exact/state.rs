//! What is acknowledged of one subscription, by origin.
//!
//! Invariants: X1–X4 of the parent; S1 in an [`OriginAcks`] nothing at or below `upto` stands in `acked` or `partial`, no
//! ledger's set is empty, no entry stands in both, and the entry after `upto` in its ledger is not in `acked`; S2 an
//! origin of which nothing is known does not stand in the map; S3 a deleted state has no origins.
//! Failure: positions that can't exist (negative entry, more than 32 bits) are not taken.
//! Must never know: how many messages an entry has; a batch whose bits are all set is made whole by who knows.

use super::entries::{EntrySet, member};
use super::epoch::{Epoch, Origin};
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Memory of a map's node with its key, roughly.
const NODE_BYTES: usize = 64;

/// Whether an entry is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ackedness<'a> {
    /// Nothing of it.
    No,
    /// Some messages of the batch: words, 1 = acknowledged.
    Partly(&'a [u64]),
    /// All of it.
    Whole,
}

/// What is acknowledged of one origin's messages, in that origin's positions.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginAcks {
    upto: Position,
    acked: BTreeMap<LedgerId, EntrySet>,
    partial: BTreeMap<Position, Box<[u64]>>,
}

impl Default for OriginAcks {
    fn default() -> Self {
        Self { upto: Position::EARLIEST, acked: BTreeMap::new(), partial: BTreeMap::new() }
    }
}

impl OriginAcks {
    /// Everything up to here.
    pub fn upto(&self) -> Position {
        self.upto
    }

    /// Entries above it, by ledger.
    pub fn acked(&self) -> &BTreeMap<LedgerId, EntrySet> {
        &self.acked
    }

    /// Parts of batches above it: words, 1 = acknowledged.
    pub fn partial(&self) -> &BTreeMap<Position, Box<[u64]>> {
        &self.partial
    }

    fn is_empty(&self) -> bool {
        self.upto == Position::EARLIEST && self.acked.is_empty() && self.partial.is_empty()
    }

    fn is_whole(&self, position: Position) -> bool {
        position <= self.upto || self.acked.get(&position.ledger_id).is_some_and(|set| set.contains(position.entry_id))
    }

    fn ackedness(&self, position: Position) -> Ackedness<'_> {
        if self.is_whole(position) {
            return Ackedness::Whole;
        }
        self.partial.get(&position).map_or(Ackedness::No, |words| Ackedness::Partly(words))
    }

    /// S1, after `upto` or `acked` grew.
    fn settle(&mut self) {
        let after = self.upto.entry_id.0.checked_add(1).and_then(|entry| member(EntryId(entry)));
        if let Some(from) = after
            && let Some(end) = self.acked.get(&self.upto.ledger_id).and_then(|set| set.run_end(from))
        {
            self.upto.entry_id = EntryId(i64::from(end));
        }
        let upto = self.upto;
        if self.acked.first_key_value().is_some_and(|(ledger, _)| *ledger <= upto.ledger_id) {
            self.acked = self.acked.split_off(&upto.ledger_id);
            if let Some(set) = self.acked.get_mut(&upto.ledger_id) {
                set.remove_up_to(upto.entry_id);
                if set.is_empty() {
                    self.acked.remove(&upto.ledger_id);
                }
            }
        }
        if self.partial.first_key_value().is_some_and(|(at, _)| *at <= upto) {
            let after = Position { ledger_id: upto.ledger_id, entry_id: EntryId(upto.entry_id.0.saturating_add(1)) };
            self.partial = self.partial.split_off(&after);
        }
    }

    /// S1: parts of entries of a ledger that are whole now.
    fn drop_parts(&mut self, ledger_id: LedgerId) {
        let Some(set) = self.acked.get(&ledger_id).filter(|_| !self.partial.is_empty()) else { return };
        let of_ledger =
            Position { ledger_id, entry_id: EntryId(0) }..=Position { ledger_id, entry_id: EntryId(i64::MAX) };
        let whole = |at: &Position| set.contains(at.entry_id);
        let gone: Vec<Position> = self.partial.range(of_ledger).map(|(at, _)| *at).filter(whole).collect();
        gone.iter().for_each(|at| {
            self.partial.remove(at);
        });
    }

    /// Takes what `other` knows; what was new of it.
    fn join(&mut self, other: &OriginAcks) -> OriginAcks {
        let mut new = OriginAcks::default();
        let mut settle = false;
        if other.upto > self.upto {
            (self.upto, new.upto, settle) = (other.upto, other.upto, true);
            self.settle();
        }
        for (ledger, set) in other.acked.range(self.upto.ledger_id..) {
            let mut set = set.clone();
            if *ledger == self.upto.ledger_id {
                set.remove_up_to(self.upto.entry_id);
            }
            if set.is_empty() {
                continue;
            }
            if let Some(joined) = self.acked.entry(*ledger).or_default().join(&set) {
                new.acked.insert(*ledger, joined);
                settle = true;
                self.drop_parts(*ledger);
            }
        }
        if settle {
            self.settle();
        }
        for (at, words) in &other.partial {
            if !self.is_whole(*at)
                && let Some(added) = self.join_part(*at, words)
            {
                new.partial.insert(*at, added);
            }
        }
        new
    }

    /// Sets bits of a batch; the new ones.
    fn join_part(&mut self, at: Position, words: &[u64]) -> Option<Box<[u64]>> {
        let len = words.len() - words.iter().rev().take_while(|word| **word == 0).count();
        let words = &words[..len];
        let known = self.partial.get(&at).map_or(&[][..], |known| known);
        let known_at = |index: usize| known.get(index).copied().unwrap_or(0);
        let new: Box<[u64]> = words.iter().enumerate().map(|(index, word)| word & !known_at(index)).collect();
        if new.iter().all(|word| *word == 0) {
            return None;
        }
        let word_at = |index: usize| words.get(index).copied().unwrap_or(0);
        let all = (0..known.len().max(words.len())).map(|index| known_at(index) | word_at(index)).collect();
        self.partial.insert(at, all);
        let new_len = new.len() - new.iter().rev().take_while(|word| **word == 0).count();
        Some(new[..new_len].into())
    }

    fn bytes(&self) -> usize {
        let acked: usize = self.acked.values().map(|set| NODE_BYTES + set.bytes()).sum();
        let partial: usize = self.partial.values().map(|words| NODE_BYTES + 8 * words.len()).sum();
        NODE_BYTES + acked + partial
    }
}

/// What is acknowledged of one subscription, or a part of it (a delta): a join-semilattice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AckState {
    epoch: Epoch,
    deleted: bool,
    origins: BTreeMap<Origin, OriginAcks>,
}

impl AckState {
    /// Nothing acknowledged under an epoch.
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, deleted: false, origins: BTreeMap::new() }
    }

    /// The subscription was deleted.
    pub fn tombstone(epoch: Epoch) -> Self {
        Self { epoch, deleted: true, origins: BTreeMap::new() }
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the subscription was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Whether nothing is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }

    /// What is acknowledged, by origin.
    pub fn origins(&self) -> &BTreeMap<Origin, OriginAcks> {
        &self.origins
    }

    /// Everything of the origin up to here is acknowledged.
    pub fn upto(&self, origin: Origin) -> Position {
        self.origins.get(&origin).map_or(Position::EARLIEST, |acks| acks.upto)
    }

    /// Whether an entry is acknowledged, by its origin.
    pub fn ackedness(&self, origin: Origin, position: Position) -> Ackedness<'_> {
        self.origins.get(&origin).map_or(Ackedness::No, |acks| acks.ackedness(position))
    }

    /// Entries acknowledged above each `upto`.
    pub fn scattered_entries(&self) -> u64 {
        self.origins.values().flat_map(|acks| acks.acked.values()).map(EntrySet::len).sum()
    }

    /// Bytes that it takes, roughly.
    pub fn bytes(&self) -> usize {
        self.origins.values().map(OriginAcks::bytes).sum()
    }

    /// Everything of the origin up to `position` is acknowledged.
    pub fn raise_upto(&mut self, origin: Origin, position: Position) {
        if position > self.upto(origin) && !self.deleted {
            let acks = self.origins.entry(origin).or_default();
            acks.upto = position;
            acks.settle();
        }
    }

    /// An entry is acknowledged.
    pub fn ack(&mut self, origin: Origin, position: Position) {
        if let Some(entry) = member(position.entry_id) {
            self.ack_run(origin, position.ledger_id, entry..=entry);
        }
    }

    /// A run of entries is acknowledged.
    pub fn ack_run(&mut self, origin: Origin, ledger_id: LedgerId, run: RangeInclusive<u32>) {
        if self.deleted || ledger_id.0 < 0 || run.is_empty() {
            return;
        }
        let acks = self.origins.entry(origin).or_default();
        if acks.acked.entry(ledger_id).or_default().insert_run(run) > 0 {
            acks.drop_parts(ledger_id);
            acks.settle();
        }
    }

    /// Messages of a batch are acknowledged: words, 1 = acknowledged.
    pub fn ack_partly(&mut self, origin: Origin, position: Position, words: &[u64]) {
        let possible = position.ledger_id.0 >= 0 && member(position.entry_id).is_some();
        if self.deleted || !possible || words.iter().all(|word| *word == 0) {
            return;
        }
        let acks = self.origins.entry(origin).or_default();
        if !acks.is_whole(position) {
            acks.join_part(position, words);
        }
    }

    /// Takes what `other` knows; what of it was new here (all of it under a higher epoch).
    pub fn merge(&mut self, other: &AckState) -> AckState {
        if other.epoch > self.epoch {
            *self = other.clone();
            return other.clone();
        }
        let mut new = AckState::new(self.epoch);
        if other.epoch < self.epoch || self.deleted {
            return new;
        }
        for (origin, acks) in &other.origins {
            let learned = self.origins.entry(*origin).or_default().join(acks);
            if !learned.is_empty() {
                new.origins.insert(*origin, learned);
            }
        }
        new
    }

    /// The same knowledge under another epoch.
    pub(crate) fn under(&self, epoch: Epoch) -> AckState {
        AckState { epoch, ..self.clone() }
    }

    /// Only what is acknowledged without a gap, of each origin.
    pub fn uptos(&self) -> AckState {
        let of = |(origin, acks): (&Origin, &OriginAcks)| {
            let known = acks.upto > Position::EARLIEST;
            known.then(|| (*origin, OriginAcks { upto: acks.upto, ..OriginAcks::default() }))
        };
        let origins = self.origins.iter().filter_map(of).collect();
        AckState { epoch: self.epoch, deleted: self.deleted, origins }
    }

    /// Forgets an origin: no region holds messages of it any more, so nobody can ask.
    pub fn forget(&mut self, origin: Origin) {
        self.origins.remove(&origin);
    }

    /// Cuts off a part whose encoding has about `max_bytes` at most (at least one step of progress): every `upto` first.
    pub(crate) fn take_part(&mut self, max_bytes: usize) -> AckState {
        let mut part = self.uptos();
        let mut bytes = 64 * part.origins.len();
        let mut moved = false;
        for (origin, acks) in &mut self.origins {
            acks.upto = Position::EARLIEST;
            while (bytes < max_bytes || !moved)
                && let Some((ledger, set)) = acks.acked.pop_first()
            {
                bytes += 16 + super::wire::runs_len_at_most(&set);
                moved = true;
                part.origins.entry(*origin).or_default().acked.insert(ledger, set);
            }
            while (bytes < max_bytes || !moved)
                && let Some((at, words)) = acks.partial.pop_first()
            {
                bytes += 16 + 10 * words.len();
                moved = true;
                part.origins.entry(*origin).or_default().partial.insert(at, words);
            }
        }
        self.origins.retain(|_, acks| !acks.is_empty());
        part
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
