//! Where entries of a ledger go: pure arithmetic over E, Qw and Qa.
//!
//! Invariants: Y1 entry n goes to Qw consecutive members of the ensemble from index n mod E; Y2 a set of members
//! *blocks* a quorum of acks when every write quorum holds Qw − Qa + 1 of it: then at most Qa − 1 others remain.
//! Failure: a layout that is not E ≥ Qw ≥ Qa ≥ 1 cannot be built.
//! Must never know: bookies' names, time.

use crate::api::LedgerError;
use meridian_types::EntryId;

/// Members of one ensemble at most (a set of them is one word).
pub const ENSEMBLE_MAX: u32 = 32;

/// A set of members of one ensemble, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotSet(u32);

impl SlotSet {
    /// No member.
    pub const EMPTY: SlotSet = SlotSet(0);

    /// The first `count` members.
    pub fn first(count: u32) -> Self {
        Self(if count >= 32 { u32::MAX } else { (1 << count) - 1 })
    }

    /// One member.
    pub fn one(slot: usize) -> Self {
        Self(1 << slot)
    }

    /// Whether the member is in it.
    pub fn has(self, slot: usize) -> bool {
        self.0 & (1 << slot) != 0
    }

    /// Adds a member.
    pub fn insert(&mut self, slot: usize) {
        self.0 |= 1 << slot;
    }

    /// Takes members out.
    pub fn remove_all(&mut self, other: SlotSet) {
        self.0 &= !other.0;
    }

    /// Members of both.
    pub fn and(self, other: SlotSet) -> SlotSet {
        SlotSet(self.0 & other.0)
    }

    /// Members of this and not of the other.
    pub fn without(self, other: SlotSet) -> SlotSet {
        SlotSet(self.0 & !other.0)
    }

    /// Members of either.
    pub fn or(self, other: SlotSet) -> SlotSet {
        SlotSet(self.0 | other.0)
    }

    /// How many.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..32).filter(move |slot| self.has(*slot))
    }
}

/// E ≥ Qw ≥ Qa ≥ 1, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    ensemble_size: u8,
    write_quorum: u8,
    ack_quorum: u8,
}

impl Layout {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] unless [`ENSEMBLE_MAX`] ≥ E ≥ Qw ≥ Qa ≥ 1.
    pub fn new(ensemble_size: u32, write_quorum: u32, ack_quorum: u32) -> Result<Self, LedgerError> {
        let ordered = ensemble_size >= write_quorum && write_quorum >= ack_quorum && ack_quorum >= 1;
        if !ordered || ensemble_size > ENSEMBLE_MAX {
            return Err(LedgerError::Invalid(format!(
                "ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}: expected \
                 {ENSEMBLE_MAX} >= ensemble >= write quorum >= ack quorum >= 1"
            )));
        }
        Ok(Self { ensemble_size: ensemble_size as u8, write_quorum: write_quorum as u8, ack_quorum: ack_quorum as u8 })
    }

    /// E.
    pub fn ensemble_size(self) -> u32 {
        u32::from(self.ensemble_size)
    }

    /// Qw.
    pub fn write_quorum(self) -> u32 {
        u32::from(self.write_quorum)
    }

    /// Qa.
    pub fn ack_quorum(self) -> u32 {
        u32::from(self.ack_quorum)
    }

    /// Whether a member holds only a part of the entries (E > Qw).
    pub fn is_striped(self) -> bool {
        self.ensemble_size > self.write_quorum
    }

    /// All members.
    pub fn all(self) -> SlotSet {
        SlotSet::first(self.ensemble_size())
    }

    /// The members that an entry goes to (Y1).
    pub fn write_set(self, entry: EntryId) -> SlotSet {
        if !self.is_striped() {
            return self.all();
        }
        self.quorum_from(entry.0.rem_euclid(i64::from(self.ensemble_size)) as u32)
    }

    fn quorum_from(self, start: u32) -> SlotSet {
        let size = self.ensemble_size();
        let mut set = SlotSet::EMPTY;
        for step in 0..self.write_quorum() {
            set.insert(((start + step) % size) as usize);
        }
        set
    }

    /// Qw − Qa + 1: so many members of one write quorum that say "not here" or "fenced" leave less than Qa others.
    pub fn blocking(self) -> u32 {
        self.write_quorum() - self.ack_quorum() + 1
    }

    /// Whether `answered` holds Qw − Qa + 1 members of every write quorum (Y2, S4b).
    pub fn blocks_every_quorum(self, answered: SlotSet) -> bool {
        (0..self.ensemble_size()).all(|start| self.quorum_from(start).and(answered).len() >= self.blocking())
    }

    /// Whether every write quorum still has Qa members in `healthy`.
    pub fn can_ack_everywhere(self, healthy: SlotSet) -> bool {
        (0..self.ensemble_size()).all(|start| self.quorum_from(start).and(healthy).len() >= self.ack_quorum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(e: u32, qw: u32, qa: u32) -> Layout {
        Layout::new(e, qw, qa).unwrap()
    }

    #[test]
    fn only_ordered_layouts_exist() {
        for (e, qw, qa) in [(0, 0, 0), (1, 2, 1), (3, 2, 3), (3, 3, 0), (33, 3, 2)] {
            assert!(Layout::new(e, qw, qa).is_err(), "{e} {qw} {qa}");
        }
        assert_eq!(layout(3, 2, 1).blocking(), 2);
    }

    #[test]
    fn entries_go_round_the_ensemble() {
        let l = layout(5, 3, 2);
        let set = |n| l.write_set(EntryId(n)).iter().collect::<Vec<_>>();
        assert_eq!(set(0), [0, 1, 2]);
        assert_eq!(set(3), [0, 3, 4]);
        assert_eq!(set(9), [0, 1, 4]);
    }

    #[test]
    fn blocking_sets_leave_no_ack_quorum_in_any_write_quorum() {
        for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (5, 5, 3), (4, 2, 1)] {
            let l = layout(e, qw, qa);
            for bits in 0..(1u32 << e) {
                let answered = SlotSet(bits);
                let rest = l.all().without(answered);
                let writer_can_ack_somewhere = (0..i64::from(e)).any(|n| l.write_set(EntryId(n)).and(rest).len() >= qa);
                assert_eq!(l.blocks_every_quorum(answered), !writer_can_ack_somewhere, "{e} {qw} {qa} {bits:b}");
            }
        }
    }
}
