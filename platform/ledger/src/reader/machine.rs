//! One read as a pure machine: which replica is asked next, and what the failures mean together.
//!
//! Invariants: D1 a replica is asked at most once; D2 a damaged or missing replica, an error and silence all lead to
//! the next replica; D3 "lost or damaged" is only said when every replica *looked*: a replica that did not answer
//! leaves the entry's fate open.
//! Must never know: clocks, sockets.

use crate::api::LedgerError;
use crate::layout::{Layout, SlotSet};
use meridian_bookie_api::BookieError;
use meridian_types::{BookieId, EntryId, LedgerId};

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask this member too.
    Ask(usize),
    /// Wait for those already asked.
    Wait,
    /// All have failed.
    Failed(LedgerError),
}

/// See the head of this file.
#[derive(Debug)]
pub struct ReadMachine {
    ledger_id: LedgerId,
    entry: EntryId,
    order: Vec<usize>,
    asked: usize,
    failures: Vec<(BookieId, BookieError)>,
}

impl ReadMachine {
    /// A read of `entry` from the members in `order`.
    pub fn new(ledger_id: LedgerId, entry: EntryId, order: Vec<usize>) -> Self {
        Self { ledger_id, entry, order, asked: 0, failures: Vec::new() }
    }

    /// The next member to ask: at the start, and when those asked are late.
    pub fn next_member(&mut self) -> Option<usize> {
        let slot = self.order.get(self.asked).copied()?;
        self.asked += 1;
        Some(slot)
    }

    /// Whether only the first member was asked so far.
    pub fn is_first(&self) -> bool {
        self.asked <= 1
    }

    /// A member failed.
    pub fn failed(&mut self, bookie: BookieId, error: BookieError) -> Step {
        self.failures.push((bookie, error));
        if let Some(slot) = self.next_member() {
            return Step::Ask(slot);
        }
        if self.failures.len() < self.order.len() {
            return Step::Wait;
        }
        Step::Failed(self.verdict())
    }

    fn verdict(&self) -> LedgerError {
        let looked = |error: &BookieError| {
            matches!(error, BookieError::NoSuchLedger | BookieError::NoSuchEntry | BookieError::Corrupt(_))
        };
        let said = self.failures.iter().map(|(bookie, error)| format!("{bookie}: {error}"));
        let reason = said.collect::<Vec<_>>().join("; ");
        if self.failures.iter().all(|(_, error)| looked(error)) {
            LedgerError::Corrupt { ledger_id: self.ledger_id, entry_id: self.entry, reason }
        } else {
            LedgerError::QuorumUnavailable { ledger_id: self.ledger_id, reason }
        }
    }
}

/// The order in which the members that hold an entry are asked: always the same one first for a ledger (its read-ahead
/// pays), different ones for different ledgers, suspects last.
pub fn replica_order(layout: Layout, ledger_id: LedgerId, entry: EntryId, suspects: SlotSet) -> Vec<usize> {
    let size = layout.ensemble_size() as usize;
    let holders = layout.write_set(entry);
    let start = if layout.is_striped() { entry.0.rem_euclid(size as i64) } else { ledger_id.0.rem_euclid(size as i64) };
    let mut order: Vec<_> = (0..size).map(|step| (start as usize + step) % size).filter(|s| holders.has(*s)).collect();
    order.sort_by_key(|slot| suspects.has(*slot));
    order
}

/// Members that together hold every entry of a striped ensemble: every Qw-th one, beginning at a place that differs
/// from ledger to ledger.
pub fn covering_members(layout: Layout, ledger_id: LedgerId) -> Vec<usize> {
    let size = layout.ensemble_size() as usize;
    let start = ledger_id.0.rem_euclid(size as i64) as usize;
    (0..size).step_by(layout.write_quorum() as usize).map(|step| (start + step) % size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replica_is_asked_once_and_the_verdict_needs_all_to_have_looked() {
        let bookie = |n: usize| BookieId::new(format!("b{n}"));
        let mut read = ReadMachine::new(LedgerId(1), EntryId(5), vec![2, 0, 1]);
        assert_eq!(read.next_member(), Some(2));
        assert_eq!(read.failed(bookie(2), BookieError::Corrupt("x".into())), Step::Ask(0));
        assert_eq!(read.next_member(), Some(1));
        assert_eq!(read.failed(bookie(0), BookieError::NoSuchEntry), Step::Wait);
        let end = read.failed(bookie(1), BookieError::Timeout(5));
        assert!(matches!(end, Step::Failed(LedgerError::QuorumUnavailable { .. })), "{end:?}");

        let mut read = ReadMachine::new(LedgerId(1), EntryId(5), vec![0]);
        assert_eq!(read.next_member(), Some(0));
        let end = read.failed(bookie(0), BookieError::NoSuchLedger);
        assert!(matches!(end, Step::Failed(LedgerError::Corrupt { .. })), "{end:?}");
    }

    #[test]
    fn suspects_are_asked_last_and_only_holders_are_asked() {
        let striped = Layout::new(5, 3, 2).unwrap();
        assert_eq!(replica_order(striped, LedgerId(0), EntryId(4), SlotSet::EMPTY), [4, 0, 1]);
        assert_eq!(replica_order(striped, LedgerId(0), EntryId(4), SlotSet::one(4)), [0, 1, 4]);
        let whole = Layout::new(3, 3, 2).unwrap();
        assert_eq!(replica_order(whole, LedgerId(7), EntryId(4), SlotSet::EMPTY), [1, 2, 0]);
    }

    #[test]
    fn covering_members_hold_every_entry() {
        for (e, qw) in [(3, 2), (5, 3), (4, 1), (7, 3), (6, 3)] {
            let layout = Layout::new(e, qw, 1).unwrap();
            for ledger in 0..i64::from(e) {
                let members = covering_members(layout, LedgerId(ledger));
                for entry in 0..20 {
                    let holders = layout.write_set(EntryId(entry));
                    assert!(members.iter().any(|m| holders.has(*m)), "{e} {qw} {ledger} {entry}");
                }
            }
        }
    }
}
