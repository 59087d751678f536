//! Which life of a subscription's state, and whose messages.
//!
//! Invariants: G1 epochs are totally ordered and equal only if one event made them; G2 of two creations that did not know
//! of each other the earlier one wins, so that a consumer that comes to a second region never moves a subscription that
//! exists; of two later events with the same number the later one wins.
//! Must never know: clocks; the times are given and need not agree for G1 to hold.

use meridian_types::{Incarnation, RegionId};
use std::cmp::Ordering;

/// Number of the epoch that the creation of a subscription begins.
const CREATION: u64 = 1;

/// One life of a subscription's state; the default is "before any".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epoch {
    /// Grows with every seek, reset, deletion and creation after one.
    pub number: u64,
    /// When it was raised, ms since 1970 by the clock of the region that raised it.
    pub at_ms: u64,
    /// Who raised it.
    pub region: RegionId,
}

impl Epoch {
    /// The epoch of a subscription that is created and of which nothing else is known.
    pub fn creation(at_ms: u64, region: RegionId) -> Self {
        Self { number: CREATION, at_ms, region }
    }

    /// The epoch after this one. The one after "before any" is a creation.
    pub fn next(self, at_ms: u64, region: RegionId) -> Self {
        Self { number: self.number.saturating_add(1), at_ms, region }
    }

    /// Whether it is the first life of a subscription.
    pub fn is_creation(self) -> bool {
        self.number == CREATION
    }
}

impl Ord for Epoch {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = match self.is_creation() {
            true => other.at_ms.cmp(&self.at_ms),
            false => self.at_ms.cmp(&other.at_ms),
        };
        self.number.cmp(&other.number).then(by_time).then(self.region.cmp(&other.region))
    }
}

impl PartialOrd for Epoch {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Where messages were first stored: a region and the life of the topic there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The region.
    pub region: RegionId,
    /// The topic's incarnation there.
    pub incarnation: Incarnation,
}

impl Origin {
    /// An origin.
    pub fn new(region: RegionId, incarnation: Incarnation) -> Self {
        Self { region, incarnation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_creation_wins_and_the_later_seek() {
        let (a, b) = (RegionId(1), RegionId(2));
        assert!(Epoch::creation(100, a) > Epoch::creation(200, b));
        assert!(Epoch::creation(100, b) > Epoch::creation(100, a));
        let first = Epoch::creation(100, a);
        assert!(first.next(50, b) > first);
        assert!(first.next(60, a) > first.next(50, b));
        assert!(Epoch::default() < Epoch::creation(u64::MAX, a));
        assert!(Epoch::default().next(7, a).is_creation());
    }
}
