//! What one cursor has acknowledged: a mark-delete position, the entries acked above it and the acked parts of batches.
//!
//! Role: pure algebra over a [`Layout`]. Invariants: A1 everything at or below mark-delete is acked, the entry after it is
//! not (after every call); A2 no entry at or below mark-delete stands in `acked` or `partial`; A3 an entry is in `acked` or
//! in `partial`, never in both; A4 `acked_entries` is the number of entries in `acked`; A5 nothing is dropped at any size
//! (L4); A6 acks are idempotent and commute.
//! Memory: a cursor without holes owns no allocation.
//! Must never know: I/O, clocks, who acks.

use crate::layout::{Layout, after};
use meridian_types::{EntryId, LedgerId, Position};
use roaring::RoaringBitmap;
use std::collections::{BTreeMap, BTreeSet};

/// The unacked batch indexes of one entry, as on the wire: 1 = unacked.
pub type BatchWords = Box<[u64]>;

/// The acked set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Holes {
    /// Acked entries above mark-delete (A2).
    pub acked: BTreeMap<LedgerId, RoaringBitmap>,
    /// Partly acked entries above mark-delete (A2, A3).
    pub partial: BTreeMap<Position, BatchWords>,
    acked_entries: u64,
}

/// What changed since the last persist: a delta, or everything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    acked: BTreeMap<LedgerId, RoaringBitmap>,
    partial: BTreeSet<Position>,
    everything: bool,
}

/// A state or delta as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct AckState {
    /// Mark-delete.
    pub mark_delete: Position,
    /// Acked entries.
    pub acked: BTreeMap<LedgerId, RoaringBitmap>,
    /// Partly acked entries.
    pub partial: BTreeMap<Position, BatchWords>,
}

/// What one acknowledgement changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acked {
    /// Entries that became acked.
    pub entries: u64,
    /// Messages that became acked.
    pub messages: u64,
    /// Something changed that must be persisted.
    pub changed: bool,
    /// The position is beyond the last confirmed one.
    pub beyond: bool,
}

/// See the head of the file.
#[derive(Debug, Clone)]
pub struct AckSet {
    mark_delete: Position,
    holes: Option<Box<Holes>>,
    changes: Option<Box<Changes>>,
    tracked: bool,
}

fn bit(entry: EntryId) -> u32 {
    // Ledgers are rolled long before (roll::ENTRIES_LIMIT); a negative id is none.
    u32::try_from(entry.0).unwrap_or(u32::MAX)
}

impl AckSet {
    /// Everything up to `mark_delete` is acked. `tracked`: changes are kept to be persisted.
    pub fn new(mark_delete: Position, tracked: bool) -> Self {
        Self { mark_delete, holes: None, changes: None, tracked }
    }

    /// From a stored state.
    pub fn load(state: AckState, tracked: bool) -> Self {
        let mut set = Self::new(state.mark_delete, tracked);
        set.merge(state);
        set.changes = None;
        set
    }

    /// Everything up to here is acked.
    pub fn mark_delete(&self) -> Position {
        self.mark_delete
    }

    /// Acked entries above mark-delete.
    pub fn acked_entries(&self) -> u64 {
        self.holes.as_ref().map_or(0, |holes| holes.acked_entries)
    }

    /// Entries not acked.
    pub fn backlog(&self, layout: &Layout) -> u64 {
        let above = layout.entries_between(after(self.mark_delete), layout.last_confirmed());
        above.saturating_sub(self.acked_entries())
    }

    /// Whether the whole entry is acked.
    pub fn is_acked(&self, position: Position) -> bool {
        position <= self.mark_delete
            || self.holes.as_ref().is_some_and(|holes| {
                holes.acked.get(&position.ledger_id).is_some_and(|set| set.contains(bit(position.entry_id)))
            })
    }

    /// The unacked batch indexes of a partly acked entry.
    pub fn partial(&self, position: Position) -> Option<&BatchWords> {
        self.holes.as_ref()?.partial.get(&position)
    }

    /// The first position at or after `from` that is not acked; it may not exist yet.
    pub fn next_unacked(&self, layout: &Layout, from: Position) -> Position {
        let mut at = layout.next_valid(from.max(after(self.mark_delete)));
        loop {
            match self.acked_run_end(at) {
                None => return at,
                Some(end) => at = layout.successor(end),
            }
        }
    }

    /// The end of the run of acked entries that `at` begins.
    fn acked_run_end(&self, at: Position) -> Option<Position> {
        let set = self.holes.as_ref()?.acked.get(&at.ledger_id)?;
        let start = bit(at.entry_id);
        let mut runs = set.iter();
        runs.advance_to(start);
        let mut end = runs.next_range().filter(|run| *run.start() == start).map(|run| *run.end())?;
        // A run may go on in the next container.
        while let Some(run) = runs.next_range().filter(|run| end.checked_add(1) == Some(*run.start())) {
            end = *run.end();
        }
        Some(Position { ledger_id: at.ledger_id, entry_id: EntryId(i64::from(end)) })
    }

    /// Acks a whole entry of `messages` messages (0 = not known).
    pub fn ack(&mut self, layout: &Layout, position: Position, messages: u32) -> Acked {
        if position <= self.mark_delete || self.is_acked(position) {
            return Acked::default();
        }
        if position > layout.last_confirmed() {
            return Acked { beyond: true, ..Acked::default() };
        }
        if layout.next_valid(position) != position {
            return Acked::default();
        }
        let left = self.holes.as_mut().and_then(|holes| holes.partial.remove(&position)).map(|words| ones(&words));
        if layout.successor(self.mark_delete) == position {
            self.mark_delete = position;
            self.advance(layout);
        } else {
            let holes = self.holes.get_or_insert_default();
            holes.acked.entry(position.ledger_id).or_default().insert(bit(position.entry_id));
            holes.acked_entries += 1;
            if self.tracked {
                let changes = self.changes.get_or_insert_default();
                changes.acked.entry(position.ledger_id).or_default().insert(bit(position.entry_id));
            }
        }
        let messages = left.unwrap_or(u64::from(messages.max(1)));
        Acked { entries: 1, messages, changed: true, beyond: false }
    }

    /// ANDs `unacked` into what is known of the entry; complete when no index of its `messages` is left.
    pub fn ack_partly(&mut self, layout: &Layout, position: Position, unacked: &[u64], messages: u32) -> Acked {
        if position <= self.mark_delete || self.is_acked(position) {
            return Acked::default();
        }
        if position > layout.last_confirmed() {
            return Acked { beyond: true, ..Acked::default() };
        }
        if layout.next_valid(position) != position {
            return Acked::default();
        }
        let known = self.partial(position).cloned();
        let before = match &known {
            Some(words) => words.clone(),
            None if messages > 0 => all_ones(messages),
            None => vec![u64::MAX; unacked.len()].into(),
        };
        let word = |at: usize| unacked.get(at).copied().unwrap_or(0);
        let words: BatchWords = before.iter().enumerate().map(|(at, known)| known & word(at)).collect();
        let left = ones(&words);
        if left == 0 {
            return self.ack(layout, position, messages);
        }
        let newly = if known.is_none() && messages == 0 { 0 } else { ones(&before) - left };
        if known.as_ref() == Some(&words) || (known.is_none() && newly == 0 && messages > 0) {
            return Acked::default();
        }
        self.holes.get_or_insert_default().partial.insert(position, words);
        if self.tracked {
            self.changes.get_or_insert_default().partial.insert(position);
        }
        Acked { entries: 0, messages: newly, changed: true, beyond: false }
    }

    /// Acks everything up to and with `to`. What lies beyond the last confirmed entry is refused.
    pub fn ack_up_to(&mut self, layout: &Layout, to: Position) -> Acked {
        if to > layout.last_confirmed() {
            return Acked { beyond: true, ..Acked::default() };
        }
        let to = layout.at_or_before(to);
        if to <= self.mark_delete {
            return Acked::default();
        }
        let all = layout.entries_between(after(self.mark_delete), to);
        let before = self.acked_entries();
        self.drop_up_to(to);
        let entries = all.saturating_sub(before - self.acked_entries());
        self.mark_delete = to;
        self.advance(layout);
        Acked { entries, messages: entries, changed: true, beyond: false }
    }

    /// Moves to `mark_delete`, in any direction, forgetting every acked entry above it.
    pub fn reset(&mut self, mark_delete: Position, partial: Option<(Position, BatchWords)>) {
        self.mark_delete = mark_delete;
        self.holes = None;
        if let Some((position, words)) = partial.filter(|(_, words)| ones(words) > 0) {
            self.holes.get_or_insert_default().partial.insert(position, words);
        }
        self.everything_changed();
    }

    /// Repairs A1 and A2 after loading or trimming: steps over what is acked or gone.
    pub fn settle(&mut self, layout: &Layout) {
        let floor = layout.before_first();
        if self.mark_delete < floor {
            self.drop_up_to(floor);
            self.mark_delete = floor;
        }
        if let Some(holes) = &mut self.holes {
            // A ledger lost from the middle of the log.
            holes.acked.retain(|ledger, _| layout.ledger(*ledger).is_some());
            holes.partial.retain(|at, _| layout.ledger(at.ledger_id).is_some());
            holes.acked_entries = holes.acked.values().map(RoaringBitmap::len).sum();
        }
        self.advance(layout);
    }

    fn drop_up_to(&mut self, to: Position) {
        let Some(holes) = &mut self.holes else { return };
        let mut kept = holes.acked.split_off(&to.ledger_id);
        let mut gone: u64 = holes.acked.values().map(RoaringBitmap::len).sum();
        if let Some(set) = kept.get_mut(&to.ledger_id) {
            if to.entry_id > EntryId::NONE {
                gone += set.remove_range(..=bit(to.entry_id));
            }
            if set.is_empty() {
                kept.remove(&to.ledger_id);
            }
        }
        holes.acked = kept;
        holes.acked_entries -= gone;
        if holes.partial.first_key_value().is_some_and(|(first, _)| *first <= to) {
            holes.partial = holes.partial.split_off(&after(to));
        }
        if holes.acked.is_empty() && holes.partial.is_empty() {
            self.holes = None;
        }
    }

    /// A1: mark-delete moves over the run of acked entries behind it.
    fn advance(&mut self, layout: &Layout) {
        loop {
            if self.holes.is_none() {
                return;
            }
            let next = layout.successor(self.mark_delete);
            match self.acked_run_end(next) {
                Some(end) => {
                    self.mark_delete = end;
                    self.drop_up_to(end);
                }
                None => {
                    // A2: entries of ledgers that are gone.
                    let stale = self.holes.as_ref().is_some_and(|holes| {
                        holes.acked.first_key_value().is_some_and(|(ledger, _)| *ledger < self.mark_delete.ledger_id)
                    });
                    if stale {
                        self.drop_up_to(self.mark_delete);
                    }
                    return;
                }
            }
        }
    }

    /// Whether everything must be stored anew.
    pub fn everything_changed(&mut self) {
        if self.tracked {
            self.changes.get_or_insert_default().everything = true;
        }
    }

    /// What to persist: a delta against what was taken before (`false`), or the whole state (`true`).
    pub fn take_changes(&mut self) -> (AckState, bool) {
        let changes = self.changes.take().unwrap_or_default();
        if changes.everything {
            return (self.state(), true);
        }
        let mut delta = AckState { mark_delete: self.mark_delete, acked: changes.acked, partial: BTreeMap::new() };
        delta.acked = delta.acked.split_off(&self.mark_delete.ledger_id);
        if let Some(set) = delta.acked.get_mut(&self.mark_delete.ledger_id) {
            if self.mark_delete.entry_id > EntryId::NONE {
                set.remove_range(..=bit(self.mark_delete.entry_id));
            }
            if set.is_empty() {
                delta.acked.remove(&self.mark_delete.ledger_id);
            }
        }
        for position in changes.partial {
            if let Some(words) = self.partial(position) {
                delta.partial.insert(position, words.clone());
            }
        }
        (delta, false)
    }

    /// The whole state.
    pub fn state(&self) -> AckState {
        let (acked, partial) = match &self.holes {
            Some(holes) => (holes.acked.clone(), holes.partial.clone()),
            None => Default::default(),
        };
        AckState { mark_delete: self.mark_delete, acked, partial }
    }

    /// Adds a delta (loading): mark-delete moves forward only.
    pub fn merge(&mut self, delta: AckState) {
        if delta.mark_delete > self.mark_delete {
            self.drop_up_to(delta.mark_delete);
            self.mark_delete = delta.mark_delete;
        }
        if delta.acked.is_empty() && delta.partial.is_empty() {
            return;
        }
        let holes = self.holes.get_or_insert_default();
        for (ledger, set) in delta.acked {
            *holes.acked.entry(ledger).or_default() |= set;
        }
        holes.partial.extend(delta.partial);
        let acked = &holes.acked;
        holes.partial.retain(|at, _| !acked.get(&at.ledger_id).is_some_and(|set| set.contains(bit(at.entry_id))));
        holes.acked_entries = holes.acked.values().map(RoaringBitmap::len).sum();
        self.drop_up_to(self.mark_delete);
    }

    /// Acked ranges above mark-delete, at most `limit`, and how many there are in all.
    pub fn ranges(&self, limit: usize) -> (Vec<(Position, Position)>, u64) {
        let mut shown = Vec::new();
        let mut count = 0;
        for (ledger, set) in self.holes.iter().flat_map(|holes| &holes.acked) {
            let mut runs = set.iter();
            let mut open: Option<(u32, u32)> = None;
            while let Some(run) = runs.next_range() {
                match &mut open {
                    Some((_, end)) if end.checked_add(1) == Some(*run.start()) => *end = *run.end(),
                    _ => {
                        count += 1;
                        push_range(&mut shown, limit, *ledger, open.replace((*run.start(), *run.end())));
                    }
                }
            }
            push_range(&mut shown, limit, *ledger, open);
        }
        (shown, count)
    }
}

fn push_range(shown: &mut Vec<(Position, Position)>, limit: usize, ledger: LedgerId, run: Option<(u32, u32)>) {
    if let Some((first, last)) = run.filter(|_| shown.len() < limit) {
        let at = |entry: u32| Position { ledger_id: ledger, entry_id: EntryId(i64::from(entry)) };
        shown.push((at(first), at(last)));
    }
}

fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn all_ones(messages: u32) -> BatchWords {
    let mut words = vec![u64::MAX; messages.div_ceil(64) as usize];
    if let Some(last) = words.last_mut().filter(|_| !messages.is_multiple_of(64)) {
        *last = (1 << (messages % 64)) - 1;
    }
    words.into()
}

#[cfg(test)]
#[path = "ack_set_tests.rs"]
mod tests;
