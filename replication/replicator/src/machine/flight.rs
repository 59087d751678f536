//! Entries between "taken from the queue" and "known to be through", in the order of the log.
//!
//! Role: matches receipts and refusals to sends. Invariants: F1 positions ascend; F2 what waits for a receipt is counted
//! exactly, in entries and bytes, and emptying gives all of it back; F3 an entry leaves only from the front and only when
//! it is through, so what has left is a prefix of the log; F4 an entry that is passed over by rule is through for the
//! cursor only when everything before it is, and one behind an undecided one is not through, so a hole below an
//! acknowledged entry always means a refused one.
//! Must never know: why an entry is sent, time.

use super::words::{Hold, Receipt};
use meridian_types::Position;
use meridian_wire::replicate::MARKER_RECEIPT;
use std::collections::VecDeque;

/// What is known of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Sent, no word yet.
    Waiting,
    /// Stored at the remote.
    Stored,
    /// The remote refused it.
    Refused,
    /// The remote could not tell, of this entry or of one before it.
    Undecided,
    /// Not to be sent.
    Skipped,
}

/// One entry.
#[derive(Clone)]
pub struct Slot {
    /// Where it is.
    pub position: Position,
    /// What is known.
    pub progress: Progress,
    /// Of the SEND.
    pub sequence_id: u64,
    /// Sent as a marker.
    pub marker: bool,
    /// As sent.
    pub bytes: u64,
    /// Messages in it.
    pub messages: u32,
    /// Index of its first message.
    pub first_index: u64,
    /// When the broker took it.
    pub broker_time_ms: u64,
    /// Given back when it leaves.
    pub hold: Option<Hold>,
}

/// What a receipt means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It is for this entry (its place in the flight).
    Slot(usize),
    /// It is for something that is through already.
    Stale,
    /// It is for something that was never sent in this session.
    Unknown,
}

/// See the head of the file.
#[derive(Default)]
pub struct Flight {
    slots: VecDeque<Slot>,
    waiting_entries: u32,
    waiting_bytes: u64,
}

impl Flight {
    /// One more, behind all others.
    pub fn push(&mut self, slot: Slot) {
        debug_assert!(self.slots.back().is_none_or(|last| last.position < slot.position), "F1");
        if slot.progress == Progress::Waiting {
            self.waiting_entries += 1;
            self.waiting_bytes += slot.bytes;
        }
        self.slots.push_back(slot);
    }

    /// Entries that wait for a receipt.
    pub fn waiting_entries(&self) -> u32 {
        self.waiting_entries
    }

    /// Their bytes.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Entries in it, waiting or not.
    pub fn entries(&self) -> usize {
        self.slots.len()
    }

    /// The oldest one that is not through.
    pub fn front(&self) -> Option<&Slot> {
        self.slots.front()
    }

    /// The slot at a place that [`Flight::find`] gave.
    pub fn slot(&self, at: usize) -> Option<&Slot> {
        self.slots.get(at)
    }

    /// What a receipt is for. With `positions`, receipts name source positions and may come in any order; without, they
    /// come in the order of the sends and name sequence ids.
    pub fn find(&self, receipt: &Receipt, positions: bool) -> Match {
        if !positions {
            let head = self.slots.iter().position(|slot| slot.progress == Progress::Waiting);
            return match head {
                Some(at) if self.slots[at].sequence_id == receipt.sequence_id => Match::Slot(at),
                _ => Match::Unknown,
            };
        }
        if receipt.highest_sequence_id == MARKER_RECEIPT {
            // Numbers of sends are never given twice: what is not here is through.
            return self.by_sequence(receipt.sequence_id).map_or(Match::Stale, Match::Slot);
        }
        let position = Position::new(receipt.sequence_id as i64, receipt.highest_sequence_id as i64);
        match self.slots.binary_search_by_key(&position, |slot| slot.position) {
            Ok(at) if self.slots[at].progress == Progress::Waiting => Match::Slot(at),
            Ok(_) => Match::Stale,
            Err(0) => Match::Stale,
            Err(_) => Match::Unknown,
        }
    }

    /// The waiting entry with that number.
    pub fn by_sequence(&self, sequence_id: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.progress == Progress::Waiting && slot.sequence_id == sequence_id)
    }

    /// All that wait for a receipt.
    pub fn waiting(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.progress == Progress::Waiting)
    }

    /// The oldest entry that waits.
    pub fn first_waiting(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.progress == Progress::Waiting)
    }

    /// Something became known of a waiting entry.
    pub fn settle(&mut self, at: usize, progress: Progress) {
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.progress == Progress::Waiting) else { return };
        slot.progress = progress;
        slot.hold = None;
        self.waiting_entries -= 1;
        self.waiting_bytes -= slot.bytes;
    }

    /// Messages before `at` that the remote passed over: a receipt came for a later one. Markers do not count, their
    /// receipts may be late.
    pub fn refuse_passed_over(&mut self, at: usize) -> Vec<Position> {
        let passed: Vec<usize> = (0..at)
            .filter(|&before| self.slots[before].progress == Progress::Waiting && !self.slots[before].marker)
            .collect();
        passed.iter().for_each(|&before| self.settle(before, Progress::Refused));
        passed.into_iter().map(|before| self.slots[before].position).collect()
    }

    /// Whether an entry before this one is undecided: what is said of this one has to be said again (F4).
    pub fn is_behind_undecided(&self, at: usize) -> bool {
        self.slots.iter().take(at).any(|slot| slot.progress == Progress::Undecided)
    }

    /// The next one that is through (F3).
    pub fn pop_through(&mut self) -> Option<Slot> {
        let through = |slot: &Slot| matches!(slot.progress, Progress::Stored | Progress::Skipped);
        if !self.slots.front().is_some_and(through) {
            return None;
        }
        self.slots.pop_front()
    }

    /// Gives everything back (F2).
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(entry: i64, progress: Progress) -> Slot {
        Slot {
            position: Position::new(1, entry),
            progress,
            sequence_id: 100 + entry as u64,
            marker: entry % 10 == 5,
            bytes: 10,
            messages: 1,
            first_index: entry as u64,
            broker_time_ms: 0,
            hold: None,
        }
    }

    fn flight(entries: std::ops::Range<i64>) -> Flight {
        let mut flight = Flight::default();
        entries.for_each(|entry| flight.push(slot(entry, Progress::Waiting)));
        flight
    }

    fn receipt(sequence_id: u64, highest_sequence_id: u64) -> Receipt {
        Receipt { sequence_id, highest_sequence_id, position: Position::new(77, 0) }
    }

    #[test]
    fn receipts_by_position_find_their_entry_in_any_order() {
        let flight = flight(3..8);
        assert_eq!(flight.find(&receipt(1, 4), true), Match::Slot(1));
        assert_eq!(flight.find(&receipt(1, 2), true), Match::Stale);
        assert_eq!(flight.find(&receipt(1, 9), true), Match::Unknown);
        assert_eq!(flight.find(&receipt(105, MARKER_RECEIPT), true), Match::Slot(2));
        assert_eq!(flight.find(&receipt(99, MARKER_RECEIPT), true), Match::Stale);
    }

    #[test]
    fn receipts_without_positions_are_for_the_head() {
        let mut flight = flight(3..8);
        assert_eq!(flight.find(&receipt(103, 0), false), Match::Slot(0));
        assert_eq!(flight.find(&receipt(104, 0), false), Match::Unknown);
        flight.settle(0, Progress::Stored);
        assert_eq!(flight.find(&receipt(104, 0), false), Match::Slot(1));
    }

    #[test]
    fn entries_leave_from_the_front_and_give_everything_back() {
        let mut flight = flight(3..8);
        flight.push(slot(9, Progress::Skipped));
        assert_eq!((flight.waiting_entries(), flight.waiting_bytes()), (5, 50));
        flight.settle(1, Progress::Stored);
        assert!(flight.pop_through().is_none());
        flight.settle(0, Progress::Stored);
        let left: Vec<i64> = std::iter::from_fn(|| flight.pop_through()).map(|slot| slot.position.entry_id.0).collect();
        assert_eq!(left, [3, 4]);
        // 5 is a marker: only 6 was passed over by the receipt of 7.
        assert_eq!(flight.refuse_passed_over(2), [Position::new(1, 6)]);
        flight.settle(2, Progress::Stored);
        assert_eq!((flight.waiting_entries(), flight.front().unwrap().position), (1, Position::new(1, 5)));
        flight.clear();
        assert_eq!((flight.waiting_entries(), flight.waiting_bytes(), flight.entries()), (0, 0, 0));
    }
}
