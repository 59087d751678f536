//! Ledger ids, entry ids and positions.
//!
//! Invariants: T2 positions order by ledger, then entry; [`Position::EARLIEST`] is below and [`Position::LATEST`]
//! above every stored position. On the wire both are unsigned: -1 is `u64::MAX`.

use std::fmt;

/// The id of a ledger; never reused. Real ledgers start at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LedgerId(pub i64);

/// The id of an entry in its ledger, from 0; -1 is "before the first".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub i64);

impl EntryId {
    /// "Before the first entry": the last-add-confirmed of an empty ledger.
    pub const NONE: EntryId = EntryId(-1);

    /// The entry after this one.
    pub fn next(self) -> EntryId {
        EntryId(self.0 + 1)
    }
}

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in a topic partition: ledger, then entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The entry in it.
    pub entry_id: EntryId,
}

impl Position {
    /// Below every stored position (-1:-1).
    pub const EARLIEST: Position = Position { ledger_id: LedgerId(-1), entry_id: EntryId(-1) };
    /// Above every stored position.
    pub const LATEST: Position = Position { ledger_id: LedgerId(i64::MAX), entry_id: EntryId(i64::MAX) };

    /// A position from plain numbers.
    pub const fn new(ledger_id: i64, entry_id: i64) -> Self {
        Self { ledger_id: LedgerId(ledger_id), entry_id: EntryId(entry_id) }
    }

    /// The next entry of the same ledger (which may not exist).
    pub fn next_in_ledger(self) -> Position {
        Position { ledger_id: self.ledger_id, entry_id: self.entry_id.next() }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ledger_id, self.entry_id)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ledger_id, self.entry_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_ledger_then_entry() {
        assert!(Position::EARLIEST < Position::new(0, -1));
        assert!(Position::new(0, 9) < Position::new(1, 0));
        assert!(Position::new(1, 0) < Position::new(1, 1));
        assert!(Position::new(i64::MAX, 3) < Position::LATEST);
    }
}
