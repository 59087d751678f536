//! Range splitting: the first consumer owns everything, a newcomer gets the lower half of the widest range.
//!
//! Invariants: H4 ranges are known by their upper bound (inclusive, the topmost is [`SLOTS`]); each is at least one wide.

use super::{LAST_SLOT, SLOTS};
use crate::api::{ConsumerKey, TopicError, TopicErrorKind};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Split {
    by_upper: BTreeMap<u32, ConsumerKey>,
}

impl Split {
    pub(super) fn add(&mut self, key: ConsumerKey) -> Result<(), TopicError> {
        if self.by_upper.is_empty() {
            self.by_upper.insert(SLOTS, key);
            return Ok(());
        }
        let (lower, upper) = self.widest();
        if upper - lower <= 1 {
            let count = self.by_upper.len();
            let message = format!("No hash range is left to split: {count} consumers own one slot each");
            return Err(TopicError::new(TopicErrorKind::ConsumerAssign, message));
        }
        self.by_upper.insert(upper - (upper - lower) / 2, key);
        Ok(())
    }

    /// The first of the widest ranges, as (bound below, upper bound).
    fn widest(&self) -> (u32, u32) {
        let mut below = 0;
        let mut widest = (0, 0);
        for upper in self.by_upper.keys() {
            if upper - below > widest.1 - widest.0 {
                widest = (below, *upper);
            }
            below = *upper;
        }
        widest
    }

    /// The range falls to its upper neighbour; the topmost one to its lower neighbour.
    pub(super) fn remove(&mut self, key: ConsumerKey) {
        let Some(upper) = self.by_upper.iter().find_map(|(upper, owner)| (*owner == key).then_some(*upper)) else {
            return;
        };
        self.by_upper.remove(&upper);
        if upper == SLOTS
            && let Some((_, heir)) = self.by_upper.pop_last()
        {
            self.by_upper.insert(SLOTS, heir);
        }
    }

    pub(super) fn lay_out(&self, push: &mut impl FnMut(u32, Option<ConsumerKey>)) {
        for (upper, owner) in &self.by_upper {
            let is_topmost_alone = *upper == SLOTS && self.by_upper.contains_key(&LAST_SLOT);
            if !is_topmost_alone {
                push((*upper).min(LAST_SLOT), Some(*owner));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_ends_with_one_slot_each() {
        let mut split = Split { by_upper: (1..=SLOTS).map(|upper| (upper, ConsumerKey(u64::from(upper)))).collect() };
        let error = split.add(ConsumerKey(u64::MAX)).unwrap_err();
        assert_eq!(error.kind, TopicErrorKind::ConsumerAssign);
        let mut ends = Vec::new();
        split.lay_out(&mut |end, owner| ends.push((end, owner)));
        assert_eq!(ends.len(), LAST_SLOT as usize);
        assert_eq!(ends.last(), Some(&(LAST_SLOT, Some(ConsumerKey(u64::from(LAST_SLOT))))));
    }
}
