//! Exactly which sequence ids of a producer are stored, whichever way they came.
//!
//! Role: for producers that are the same in all regions. Their messages come by two paths, each in order but not both
//! together, so that "everything below the highest" is proven by nothing.
//! Invariants: U8 only what was confirmed is covered; U9 ranges are sorted, apart from each other and at most
//! [`RANGES_MAX`]: over it the lowest one is forgotten, so that an old message is rather stored twice than lost.

use super::Verdict;
use super::mark::{Partial, Sequence};
use std::collections::VecDeque;

/// Ranges remembered for one producer at most.
pub const RANGES_MAX: usize = 256;

/// Stored sequence ids as (first, last).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// Of pairs as they come from a snapshot; what is no range is left out.
    pub fn of(pairs: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut ranges = Self::default();
        for (first, last) in pairs {
            ranges.insert(first, last);
        }
        ranges
    }

    /// The pairs.
    pub fn pairs(&self) -> &[(i64, i64)] {
        &self.0
    }

    /// The highest id, -1 if none.
    pub fn highest(&self) -> i64 {
        self.0.last().map_or(-1, |(_, last)| *last)
    }

    /// Whether all of it is stored.
    pub fn cover(&self, first: i64, last: i64) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < first);
        self.0.get(at).is_some_and(|(from, to)| *from <= first && last <= *to)
    }

    /// Adds what was stored.
    pub fn insert(&mut self, first: i64, last: i64) {
        if last < first {
            return;
        }
        let from = self.0.partition_point(|(_, end)| end.saturating_add(1) < first);
        let to = self.0.partition_point(|(start, _)| *start <= last.saturating_add(1));
        if from == to {
            self.0.insert(from, (first, last));
        } else {
            let merged = (self.0[from].0.min(first), self.0[to - 1].1.max(last));
            self.0.splice(from..to, [merged]);
        }
        if self.0.len() > RANGES_MAX {
            self.0.remove(0);
        }
    }
}

/// The state of one producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exact {
    stored: Ranges,
    /// Parts stored of a chunked message that is not complete.
    partial: Option<Partial>,
    in_flight: VecDeque<Sequence>,
    /// Nothing above it is in flight.
    flight_highest: i64,
}

fn same_part(one: &Sequence, other: &Sequence) -> bool {
    one.chunk.zip(other.chunk).is_none_or(|(a, b)| a.uuid_hash == b.uuid_hash && a.index == b.index)
}

impl Exact {
    /// With what a snapshot says.
    pub fn restored(stored: Ranges, partial: Option<Partial>) -> Self {
        Self { stored, partial, ..Self::default() }
    }

    /// What is stored.
    pub fn stored(&self) -> (&Ranges, Option<Partial>) {
        (&self.stored, self.partial)
    }

    /// Nothing waits for storage.
    pub fn is_settled(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The highest id stored or under way, -1 if none.
    pub fn highest(&self) -> i64 {
        self.in_flight.iter().map(|sequence| sequence.highest).fold(self.stored.highest(), i64::max)
    }

    /// Whether a send is stored as a whole.
    pub fn covers(&self, sequence: &Sequence) -> bool {
        let part = sequence.chunk.zip(self.partial).is_some_and(|(part, seen)| {
            seen.sequence == sequence.highest && seen.uuid_hash == part.uuid_hash && part.index < seen.next
        });
        part || self.stored.cover(sequence.lowest, sequence.highest)
    }

    /// Whether a send like it is under way.
    pub fn is_in_flight(&self, sequence: &Sequence) -> bool {
        if self.in_flight.is_empty() || sequence.lowest > self.flight_highest {
            return false;
        }
        let overlaps = |other: &&Sequence| other.lowest <= sequence.highest && sequence.lowest <= other.highest;
        self.in_flight.iter().filter(overlaps).any(|other| same_part(other, sequence))
    }

    /// Decides on a send, and counts it as under way if it is to be stored.
    pub fn decide(&mut self, sequence: &Sequence) -> Verdict {
        if self.covers(sequence) {
            return Verdict::Duplicate;
        }
        if self.is_in_flight(sequence) {
            return Verdict::Unknown;
        }
        self.push(sequence);
        Verdict::Store
    }

    /// A send goes to storage.
    fn push(&mut self, sequence: &Sequence) {
        self.flight_highest = match self.in_flight.is_empty() {
            true => sequence.highest,
            false => self.flight_highest.max(sequence.highest),
        };
        self.in_flight.push_back(*sequence);
    }

    /// It will not be stored.
    pub fn drop_flight(&mut self, sequence: &Sequence) {
        if self.in_flight.front() == Some(sequence) {
            self.in_flight.pop_front();
        } else if let Some(at) = self.in_flight.iter().position(|other| other == sequence) {
            self.in_flight.remove(at);
        }
    }

    /// It is stored.
    pub fn settle(&mut self, sequence: &Sequence) {
        self.drop_flight(sequence);
        match sequence.chunk {
            Some(part) if !part.last => {
                let next = part.index.saturating_add(1);
                self.partial = Some(Partial { sequence: sequence.highest, uuid_hash: part.uuid_hash, next });
            }
            _ => {
                self.stored.insert(sequence.lowest, sequence.highest);
                if self.partial.is_some_and(|seen| seen.sequence == sequence.highest) {
                    self.partial = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_the_set_of_what_was_inserted(
            pieces in proptest::collection::vec((0i64..60, 0i64..5), 0..60),
            asked in (0i64..70, 0i64..5),
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (first, more) in pieces {
                ranges.insert(first, first + more);
                set.extend(first..=first + more);
            }
            let (first, more) = asked;
            prop_assert_eq!(ranges.cover(first, first + more), (first..=first + more).all(|id| set.contains(&id)));
            prop_assert!(ranges.pairs().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "U9");
            prop_assert_eq!(ranges.highest(), set.last().copied().unwrap_or(-1));
            prop_assert_eq!(Ranges::of(ranges.pairs().iter().copied()), ranges);
        }
    }

    #[test]
    fn the_lowest_range_is_forgotten_first() {
        let ranges = Ranges::of((0..RANGES_MAX as i64 + 1).map(|id| (id * 2, id * 2)));
        assert_eq!(ranges.pairs().len(), RANGES_MAX);
        assert!(!ranges.cover(0, 0) && ranges.cover(2, 2));
    }
}
