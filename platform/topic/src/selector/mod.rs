//! Key_Shared: which consumer owns a key.
//!
//! Role: maps the hash of a sticky key to a slot and the slot to one consumer, by one of three rules: range splitting,
//! ranges named by the clients, a ring of points.
//! Invariants:
//! - H1 a slot has at most one owner; with range splitting or a ring exactly one as soon as there is a consumer.
//! - H2 a consumer that joins takes slots and gives none to others; slots of a consumer that leaves are all that moves.
//! - H3 what a consumer owns is a function of the joins and leaves in their order, not of traffic.
//!
//! Failure: a consumer that cannot be placed is refused with `ConsumerAssign` and changes nothing.
//! Must never know: entries, permits, what is unacked.

mod ring;
mod split;
mod sticky;

use crate::api::{ConsumerKey, TopicError};
use ring::Ring;
use split::Split;
use sticky::Sticky;

/// Slots of range splitting and of ranges named by clients: 0..=65535, of which 0 stands in for nothing (a hash that
/// would fall on it falls on 1).
const SLOTS: u32 = 1 << 16;
/// Last slot.
const LAST_SLOT: u32 = SLOTS - 1;

/// Slots up to and with `end` that are not covered by the segment before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    end: u32,
    owner: Option<ConsumerKey>,
}

#[derive(Debug)]
enum Rule {
    Split(Split),
    Sticky(Sticky),
    Ring(Ring),
}

/// Owners of all slots. Choosing is a binary search; joining and leaving cost as much as there are ranges.
#[derive(Debug)]
pub struct Selector {
    rule: Rule,
    segments: Vec<Segment>,
}

impl Selector {
    /// The broker splits the widest range for each newcomer.
    pub fn auto_split() -> Self {
        Self::by(Rule::Split(Split::default()))
    }

    /// Each consumer names its ranges.
    pub fn sticky() -> Self {
        Self::by(Rule::Sticky(Sticky::default()))
    }

    /// A ring with that many points per consumer.
    pub fn consistent_hash(points_per_consumer: u32) -> Self {
        Self::by(Rule::Ring(Ring::new(points_per_consumer.max(1))))
    }

    fn by(rule: Rule) -> Self {
        Self { rule, segments: Vec::new() }
    }

    /// Adds a consumer; `ranges` (inclusive) are used only if clients name them.
    ///
    /// # Errors
    /// `ConsumerAssign` if the ranges are none, malformed or taken, or if no range can be split further.
    pub fn add(&mut self, key: ConsumerKey, name: &str, ranges: &[(u32, u32)]) -> Result<(), TopicError> {
        match &mut self.rule {
            Rule::Split(split) => split.add(key)?,
            Rule::Sticky(sticky) => sticky.add(key, ranges)?,
            Rule::Ring(ring) => ring.add(key, name),
        }
        self.lay_out();
        Ok(())
    }

    /// Removes a consumer; an absent one is no error.
    pub fn remove(&mut self, key: ConsumerKey) {
        match &mut self.rule {
            Rule::Split(split) => split.remove(key),
            Rule::Sticky(sticky) => sticky.remove(key),
            Rule::Ring(ring) => ring.remove(key),
        }
        self.lay_out();
    }

    /// The owner of a hash (31 bits as the sticky key gives it); `None` if its slot has none.
    pub fn select(&self, hash: u32) -> Option<ConsumerKey> {
        let slot = match self.rule {
            Rule::Ring(_) => hash % LAST_SLOT + 1,
            Rule::Split(_) | Rule::Sticky(_) => (hash % SLOTS).max(1),
        };
        let at = self.segments.partition_point(|segment| segment.end < slot);
        self.segments.get(at).and_then(|segment| segment.owner)
    }

    /// The ranges (inclusive) that a consumer owns, in order.
    pub fn ranges(&self, key: ConsumerKey) -> Vec<(u32, u32)> {
        let mut start = match self.rule {
            Rule::Ring(_) => 1,
            Rule::Split(_) | Rule::Sticky(_) => 0,
        };
        let mut owned = Vec::new();
        for segment in &self.segments {
            if segment.owner == Some(key) {
                owned.push((start, segment.end));
            }
            start = segment.end + 1;
        }
        owned
    }

    /// Writes the rule's state out as segments, neighbours of one owner joined.
    fn lay_out(&mut self) {
        let mut segments = std::mem::take(&mut self.segments);
        segments.clear();
        let mut push = |end: u32, owner: Option<ConsumerKey>| match segments.last_mut() {
            Some(Segment { end: last, owner: before }) if *before == owner => *last = end,
            _ => segments.push(Segment { end, owner }),
        };
        match &self.rule {
            Rule::Split(split) => split.lay_out(&mut push),
            Rule::Sticky(sticky) => sticky.lay_out(&mut push),
            Rule::Ring(ring) => ring.lay_out(&mut push),
        }
        debug_assert!(segments.windows(2).all(|pair| pair[0].end < pair[1].end), "H1: segments rise");
        self.segments = segments;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TopicErrorKind;
    use proptest::prelude::*;

    const A: ConsumerKey = ConsumerKey(1);
    const B: ConsumerKey = ConsumerKey(2);
    const C: ConsumerKey = ConsumerKey(3);

    fn split_of(keys: &[ConsumerKey]) -> Selector {
        let mut selector = Selector::auto_split();
        for key in keys {
            selector.add(*key, "c", &[]).unwrap();
        }
        selector
    }

    #[test]
    fn a_newcomer_takes_the_lower_half_of_the_widest_range() {
        let mut selector = split_of(&[A]);
        assert_eq!(selector.ranges(A), [(0, 65535)]);
        selector.add(B, "b", &[]).unwrap();
        assert_eq!(selector.ranges(B), [(0, 32768)]);
        assert_eq!(selector.ranges(A), [(32769, 65535)]);
        selector.add(C, "c", &[]).unwrap();
        assert_eq!(selector.ranges(C), [(0, 16384)]);
        assert_eq!(selector.ranges(B), [(16385, 32768)]);
    }

    #[test]
    fn a_leaver_gives_its_range_to_its_upper_neighbour_and_the_last_one_to_its_lower() {
        let mut selector = split_of(&[A, B, C]);
        selector.remove(C);
        assert_eq!(selector.ranges(B), [(0, 32768)]);
        selector.remove(A);
        assert_eq!(selector.ranges(B), [(0, 65535)]);
        selector.remove(B);
        selector.remove(B);
        assert_eq!(selector.select(7), None);
    }

    #[test]
    fn hash_zero_falls_on_slot_one() {
        let mut selector = Selector::sticky();
        selector.add(A, "a", &[(0, 0)]).unwrap();
        selector.add(B, "b", &[(1, 65535)]).unwrap();
        assert_eq!(selector.select(0), Some(B));
        assert_eq!(selector.select(65536), Some(B));
    }

    #[test]
    fn sticky_ranges_are_taken_as_named_and_gaps_have_no_owner() {
        let mut selector = Selector::sticky();
        selector.add(A, "a", &[(10, 20), (100, 100)]).unwrap();
        selector.add(B, "b", &[(21, 99)]).unwrap();
        let owners = [9, 10, 20, 21, 99, 100, 101].map(|slot| selector.select(slot));
        assert_eq!(owners, [None, Some(A), Some(A), Some(B), Some(B), Some(A), None]);
        assert_eq!(selector.ranges(A), [(10, 20), (100, 100)]);
        selector.remove(A);
        assert_eq!(selector.select(10), None);
        assert_eq!(selector.ranges(B), [(21, 99)]);
    }

    #[test]
    fn bad_sticky_ranges_are_refused_and_change_nothing() {
        let mut selector = Selector::sticky();
        selector.add(A, "a", &[(10, 20)]).unwrap();
        let bad: [&[(u32, u32)]; 7] =
            [&[], &[(5, 4)], &[(0, 65536)], &[(0, 10)], &[(20, 30)], &[(12, 13)], &[(30, 40), (35, 50)]];
        for ranges in bad {
            let error = selector.add(B, "b", ranges).unwrap_err();
            assert_eq!(error.kind, TopicErrorKind::ConsumerAssign, "{ranges:?}");
            assert_eq!(selector.ranges(B), []);
        }
        assert_eq!(selector.ranges(A), [(10, 20)]);
    }

    #[test]
    fn a_ring_spreads_slots_evenly_also_among_equal_names() {
        for name_of in [|i: u64| format!("consumer-{i}"), |_| "same".to_owned()] {
            let mut selector = Selector::consistent_hash(100);
            for i in 0..10 {
                selector.add(ConsumerKey(i), &name_of(i), &[]).unwrap();
            }
            for i in 0..10 {
                let slots: u32 = selector.ranges(ConsumerKey(i)).iter().map(|(a, b)| b - a + 1).sum();
                assert!((3500..10500).contains(&slots), "{slots} of 65535 slots for one of ten");
            }
        }
    }

    #[test]
    fn three_keys_of_two_consumers_reach_both() {
        let mut selector = split_of(&[A, B]);
        let owners: Vec<_> = (0..3)
            .map(|i| selector.select(meridian_wire::key::key_hash(format!("key-shared-{i}").as_bytes())))
            .collect();
        assert!(owners.contains(&Some(A)) && owners.contains(&Some(B)), "{owners:?}");
        selector.remove(A);
        assert_eq!(selector.select(u32::MAX >> 1), Some(B));
    }

    fn owners(selector: &Selector) -> Vec<Option<ConsumerKey>> {
        (1..LAST_SLOT).step_by(7).map(|hash| selector.select(hash)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// H1, H2 over random joins and leaves.
        #[test]
        fn only_the_joiner_gains_and_only_the_leaver_loses(
            ring in any::<bool>(),
            steps in proptest::collection::vec((0u64..12, any::<bool>()), 1..40),
        ) {
            let mut selector = if ring { Selector::consistent_hash(20) } else { Selector::auto_split() };
            let mut present = std::collections::BTreeSet::new();
            for (id, join) in steps {
                let key = ConsumerKey(id);
                let before = owners(&selector);
                if join && present.insert(key) {
                    selector.add(key, &format!("n{}", id % 3), &[]).unwrap();
                    for (old, new) in before.iter().zip(owners(&selector)) {
                        prop_assert!(*old == new || new == Some(key));
                    }
                } else if !join && present.remove(&key) {
                    selector.remove(key);
                    for (old, new) in before.iter().zip(owners(&selector)) {
                        prop_assert!(*old == new || *old == Some(key));
                    }
                }
                let covered: u32 =
                    present.iter().flat_map(|key| selector.ranges(*key)).map(|(a, b)| b - a + 1).sum();
                let all = if ring { LAST_SLOT } else { SLOTS };
                prop_assert_eq!(covered, if present.is_empty() { 0 } else { all });
                prop_assert!(owners(&selector).iter().all(|owner| owner.is_none_or(|key| present.contains(&key))));
            }
        }
    }
}
