//! The shape of a log: which ledgers it has, how many entries each holds, and the arithmetic of positions over them.
//!
//! Role: pure; every question about "the next", "the one before", "how many between" is answered here.
//! Invariants: Y1 ledger ids ascend; Y2 a ledger holds no confirmed entry while an earlier one has unconfirmed ones (L1), so
//! `first_ordinal` and `first_index` of a ledger are final once it holds an entry; Y3 `last_confirmed` never moves back.
//! Must never know: I/O, clocks, caches.

use crate::api::LedgerInfo;
use meridian_types::{EntryId, LedgerId, Position};

/// One ledger of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerState {
    /// Its id.
    pub id: LedgerId,
    /// Confirmed entries.
    pub entries: u64,
    /// Confirmed bytes.
    pub bytes: u64,
    /// Bytes were estimated by a recovery, not counted.
    pub bytes_estimated: bool,
    /// Index of its first message (Y2).
    pub first_index: u64,
    /// Index after its last message.
    pub end_index: u64,
    /// Entries before it, counted from the first ledger at loading.
    pub first_ordinal: u64,
    /// When it was created.
    pub created_ms: u64,
    /// When it was closed; `None` = open.
    pub closed_ms: Option<u64>,
}

impl LedgerState {
    /// The position of its last confirmed entry, `id:-1` if it is empty.
    pub fn last_position(&self) -> Position {
        Position { ledger_id: self.id, entry_id: EntryId(self.entries as i64 - 1) }
    }
}

/// The ledgers of a log and its end.
#[derive(Debug, Clone)]
pub struct Layout {
    ledgers: Vec<LedgerState>,
    last_confirmed: Position,
    next_index: u64,
    next_ordinal: u64,
}

impl Layout {
    /// A log without ledgers whose last entry (trimmed since) was `last_confirmed`.
    pub fn new(last_confirmed: Position, next_index: u64) -> Self {
        Self { ledgers: Vec::new(), last_confirmed, next_index, next_ordinal: 0 }
    }

    /// Appends an empty ledger.
    pub fn add(&mut self, id: LedgerId, created_ms: u64) {
        debug_assert!(self.ledgers.last().is_none_or(|last| last.id < id), "Y1");
        if self.ledgers.is_empty() {
            // Most logs have one ledger.
            self.ledgers.reserve_exact(1);
        }
        self.ledgers.push(LedgerState {
            id,
            entries: 0,
            bytes: 0,
            bytes_estimated: false,
            first_index: self.next_index,
            end_index: self.next_index,
            first_ordinal: self.next_ordinal,
            created_ms,
            closed_ms: None,
        });
    }

    /// Sets what a ledger holds exactly (loading, recovery, confirmation). Counts never shrink.
    pub fn settle(&mut self, id: LedgerId, entries: u64, bytes: u64, end_index: u64) {
        let (next_index, next_ordinal) = (self.next_index, self.next_ordinal);
        let Some(at) = self.find(id) else { return };
        let ledger = &mut self.ledgers[at];
        if ledger.entries == 0 {
            ledger.first_index = next_index;
            ledger.first_ordinal = next_ordinal;
        }
        ledger.entries = ledger.entries.max(entries);
        ledger.bytes = ledger.bytes.max(bytes);
        ledger.end_index = ledger.end_index.max(end_index);
        let last = ledger.last_position();
        let (end_index, end_ordinal) = (ledger.end_index, ledger.first_ordinal + ledger.entries);
        self.next_index = self.next_index.max(end_index);
        self.next_ordinal = self.next_ordinal.max(end_ordinal);
        if last.entry_id > EntryId::NONE && last > self.last_confirmed {
            self.last_confirmed = last;
        }
    }

    /// Counts a run of confirmed entries of one ledger, in order.
    pub fn confirm(&mut self, up_to: Position, bytes: u64, end_index: u64) {
        let Some(at) = self.find(up_to.ledger_id) else { return };
        let total = self.ledgers[at].bytes + bytes;
        self.settle(up_to.ledger_id, up_to.entry_id.0 as u64 + 1, total, end_index);
    }

    /// Notes that a ledger's bytes are an estimate.
    pub fn estimated(&mut self, id: LedgerId) {
        if let Some(at) = self.find(id) {
            self.ledgers[at].bytes_estimated = true;
        }
    }

    /// Marks a ledger closed.
    pub fn close(&mut self, id: LedgerId, closed_ms: u64) {
        if let Some(at) = self.find(id) {
            self.ledgers[at].closed_ms.get_or_insert(closed_ms);
        }
    }

    /// Removes one ledger, whatever its place (empty ones, or a lost one): its entries do not count any more.
    pub fn remove(&mut self, id: LedgerId) {
        if let Some(at) = self.find(id) {
            let gone = self.ledgers.remove(at).entries;
            self.next_ordinal -= gone;
            self.ledgers[at..]
                .iter_mut()
                .for_each(|later| later.first_ordinal = later.first_ordinal.saturating_sub(gone));
        }
    }

    /// Removes the first `count` ledgers.
    pub fn trim(&mut self, count: usize) {
        self.ledgers.drain(..count.min(self.ledgers.len()));
    }

    fn find(&self, id: LedgerId) -> Option<usize> {
        // Nearly always the last one or two.
        let from_end = self.ledgers.iter().rev().take(2).position(|l| l.id == id);
        from_end
            .map(|back| self.ledgers.len() - 1 - back)
            .or_else(|| self.ledgers.binary_search_by_key(&id, |ledger| ledger.id).ok())
    }

    /// The ledgers, oldest first.
    pub fn ledgers(&self) -> &[LedgerState] {
        &self.ledgers
    }

    /// The ledger of that id.
    pub fn ledger(&self, id: LedgerId) -> Option<&LedgerState> {
        self.find(id).map(|at| &self.ledgers[at])
    }

    /// The last confirmed position; `-1:-1` before the first entry ever.
    pub fn last_confirmed(&self) -> Position {
        self.last_confirmed
    }

    /// Index that the next confirmed message gets.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Where the next entry would come if the last ledger went on.
    pub fn end(&self) -> Position {
        self.last_confirmed.next_in_ledger()
    }

    /// The first confirmed position at or after `position`, or [`Layout::end`].
    pub fn next_valid(&self, position: Position) -> Position {
        let first = self.ledgers.partition_point(|ledger| ledger.id < position.ledger_id);
        for ledger in &self.ledgers[first..] {
            let wanted = if ledger.id == position.ledger_id { position.entry_id.0.max(0) } else { 0 };
            if (wanted as u64) < ledger.entries {
                return Position { ledger_id: ledger.id, entry_id: EntryId(wanted) };
            }
        }
        self.end()
    }

    /// The first confirmed position after `position`, or [`Layout::end`].
    pub fn successor(&self, position: Position) -> Position {
        self.next_valid(after(position))
    }

    /// The last confirmed position before `position`; before everything it is `first ledger:-1`.
    pub fn previous(&self, position: Position) -> Position {
        let end = self.ledgers.partition_point(|ledger| ledger.id <= position.ledger_id);
        for ledger in self.ledgers[..end].iter().rev() {
            let limit = if ledger.id == position.ledger_id {
                (position.entry_id.0.max(0) as u64).min(ledger.entries)
            } else {
                ledger.entries
            };
            if limit > 0 {
                return Position { ledger_id: ledger.id, entry_id: EntryId(limit as i64 - 1) };
            }
        }
        self.before_first()
    }

    /// The last confirmed position at or before `position`.
    pub fn at_or_before(&self, position: Position) -> Position {
        self.previous(after(position))
    }

    /// The mark-delete of a cursor that has read nothing.
    pub fn before_first(&self) -> Position {
        match self.ledgers.iter().find(|ledger| ledger.entries > 0) {
            Some(ledger) => Position { ledger_id: ledger.id, entry_id: EntryId::NONE },
            None => self.last_confirmed,
        }
    }

    /// Entries kept strictly before `position`, counted from the first ledger at loading.
    pub fn ordinal(&self, position: Position) -> u64 {
        let at = self.ledgers.partition_point(|ledger| ledger.id < position.ledger_id);
        match self.ledgers.get(at) {
            None => self.next_ordinal,
            Some(ledger) if ledger.id == position.ledger_id => {
                self.start_of(at) + (position.entry_id.0.max(0) as u64).min(ledger.entries)
            }
            Some(_) => self.start_of(at),
        }
    }

    fn start_of(&self, at: usize) -> u64 {
        if self.ledgers[at].entries == 0 { self.next_ordinal } else { self.ledgers[at].first_ordinal }
    }

    /// The position with that ordinal, or [`Layout::end`].
    pub fn at_ordinal(&self, ordinal: u64) -> Position {
        match self.ledgers.iter().find(|l| l.entries > 0 && l.first_ordinal + l.entries > ordinal) {
            Some(ledger) => {
                let entry = ordinal.saturating_sub(ledger.first_ordinal);
                Position { ledger_id: ledger.id, entry_id: EntryId(entry as i64) }
            }
            None => self.end(),
        }
    }

    /// Entries from `from` to `to`, both included.
    pub fn entries_between(&self, from: Position, to: Position) -> u64 {
        self.ordinal(after(to)).saturating_sub(self.ordinal(from))
    }

    /// Entries and bytes kept.
    pub fn totals(&self) -> (u64, u64) {
        self.ledgers.iter().fold((0, 0), |(entries, bytes), l| (entries + l.entries, bytes + l.bytes))
    }

    /// For statistics.
    pub fn info(&self) -> Vec<LedgerInfo> {
        let info = |l: &LedgerState| LedgerInfo {
            ledger_id: l.id,
            entries: l.entries,
            bytes: l.bytes,
            bytes_estimated: l.bytes_estimated,
            first_index: l.first_index,
            last_entry: l.last_position().entry_id,
            created_ms: l.created_ms,
            closed_ms: l.closed_ms,
        };
        self.ledgers.iter().map(info).collect()
    }
}

/// The smallest position above `position`.
pub fn after(position: Position) -> Position {
    match position.entry_id.0.checked_add(1) {
        Some(entry) => Position { ledger_id: position.ledger_id, entry_id: EntryId(entry) },
        None => Position::new(position.ledger_id.0.saturating_add(1), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ledgers 3 (4 entries), 5 (empty), 7 (2 entries), 9 (empty, open).
    fn sample() -> Layout {
        let mut layout = Layout::new(Position::EARLIEST, 0);
        layout.add(LedgerId(3), 0);
        layout.settle(LedgerId(3), 4, 400, 40);
        layout.add(LedgerId(5), 0);
        layout.add(LedgerId(7), 0);
        layout.confirm(Position::new(7, 1), 200, 60);
        layout.add(LedgerId(9), 0);
        layout
    }

    #[test]
    fn positions_step_over_ledger_ends_and_empty_ledgers() {
        let l = sample();
        assert_eq!(l.last_confirmed(), Position::new(7, 1));
        assert_eq!(l.next_valid(Position::EARLIEST), Position::new(3, 0));
        assert_eq!(l.successor(Position::new(3, 3)), Position::new(7, 0));
        assert_eq!(l.next_valid(Position::new(5, 8)), Position::new(7, 0));
        assert_eq!(l.successor(Position::new(7, 1)), Position::new(7, 2));
        assert_eq!(l.next_valid(Position::LATEST), Position::new(7, 2));
        assert_eq!(l.previous(Position::new(7, 0)), Position::new(3, 3));
        assert_eq!(l.previous(Position::LATEST), Position::new(7, 1));
        assert_eq!(l.previous(Position::new(3, 0)), Position::new(3, -1));
        assert_eq!(l.at_or_before(Position::new(3, 99)), Position::new(3, 3));
    }

    #[test]
    fn counts_run_over_ledgers() {
        let l = sample();
        assert_eq!(l.entries_between(Position::EARLIEST, Position::LATEST), 6);
        assert_eq!(l.entries_between(Position::new(3, 2), Position::new(7, 0)), 3);
        assert_eq!(l.entries_between(Position::new(7, 1), Position::new(3, 0)), 0);
        for ordinal in 0..6 {
            assert_eq!(l.ordinal(l.at_ordinal(ordinal)), ordinal);
        }
        assert_eq!(l.at_ordinal(4), Position::new(7, 0));
        assert_eq!(l.at_ordinal(6), l.end());
    }

    #[test]
    fn a_ledger_lost_from_the_middle_counts_no_more() {
        let mut l = sample();
        l.add(LedgerId(10), 0);
        l.confirm(Position::new(10, 2), 1, 63);
        l.remove(LedgerId(7));
        assert_eq!(l.entries_between(Position::EARLIEST, Position::LATEST), 7);
        assert_eq!(l.entries_between(Position::new(3, 3), Position::new(10, 0)), 2);
        assert_eq!(l.at_ordinal(4), Position::new(10, 0));
        assert_eq!(l.successor(Position::new(3, 3)), Position::new(10, 0));
    }

    #[test]
    fn a_trimmed_log_keeps_its_end() {
        let mut l = sample();
        l.trim(4);
        assert_eq!(l.last_confirmed(), Position::new(7, 1));
        assert_eq!(l.before_first(), Position::new(7, 1));
        assert_eq!(l.next_valid(Position::EARLIEST), Position::new(7, 2));
        assert_eq!(l.entries_between(Position::EARLIEST, Position::LATEST), 0);
        l.add(LedgerId(11), 0);
        l.confirm(Position::new(11, 0), 1, 61);
        assert_eq!(l.successor(Position::new(7, 1)), Position::new(11, 0));
        assert_eq!(l.ledgers()[0].first_index, 60);
    }
}
