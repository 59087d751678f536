//! Time to live: which entries of a subscription have expired.
//!
//! Role: finds the end of the expired front of a backlog with few reads ([`ExpirySearch`]), and says which of those
//! entries to acknowledge ([`expiry_acks`]).
//! Invariants:
//! - X1 an entry expires `ttl` after it was stored, a delayed one `ttl` after it is due: the clock that runs is the one
//!   of the reader's chance to read it.
//! - X2 an entry that is held back is never passed by a cumulative acknowledgement; those behind it go one by one.
//! - X3 a search looks at no more than 2 + log2(n) entries, and at one if nothing has expired.
//!
//! Must never know: clocks, logs, cursors.

use crate::delayed::PositionSet;
use meridian_types::Position;

/// X1: whether an entry stored at `stored_ms` and perhaps delayed has outlived `ttl_ms`.
pub fn is_expired(stored_ms: u64, deliver_at_ms: Option<u64>, ttl_ms: u64, now_ms: u64) -> bool {
    let from_ms = deliver_at_ms.map_or(stored_ms, |due_ms| due_ms.max(stored_ms));
    now_ms.saturating_sub(from_ms) >= ttl_ms && now_ms >= from_ms
}

/// Finds how many entries at the front of a backlog have expired, by the time they were stored, which rises. Ask
/// [`probe`](Self::probe), look at that entry, [`answer`](Self::answer), until there is nothing to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpirySearch {
    /// All below are expired.
    expired: u64,
    /// All from here on are not.
    alive: u64,
}

impl ExpirySearch {
    /// A search in a backlog of so many entries.
    pub fn new(entries: u64) -> Self {
        Self { expired: 0, alive: entries }
    }

    /// The entry to look at, counted from 0.
    pub fn probe(&self) -> Option<u64> {
        match (self.expired, self.alive) {
            (expired, alive) if expired >= alive => None,
            (0, _) => Some(0),
            (expired, alive) => Some(expired + (alive - expired) / 2),
        }
    }

    /// Whether the probed entry has expired; one that cannot be read counts as expired if one behind it has.
    pub fn answer(&mut self, is_expired: bool) {
        let Some(at) = self.probe() else { return };
        if is_expired {
            self.expired = at + 1;
        } else {
            self.alive = at;
        }
    }

    /// Entries at the front that have expired, once there is nothing to probe.
    pub fn expired(&self) -> u64 {
        self.expired
    }
}

/// What to acknowledge so that the expired front is gone and what is held back stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpiryAcks {
    /// Everything up to here.
    pub cumulative: Option<Position>,
    /// And these.
    pub individual: Vec<Position>,
}

/// X2 over the expired positions in order. `held` are those whose time has not begun
/// ([`held_up_to`](crate::delayed::DelayedTracker::held_up_to)).
pub fn expiry_acks(expired: impl Iterator<Item = Position>, held: &PositionSet) -> ExpiryAcks {
    let mut acks = ExpiryAcks::default();
    let mut passed_held = false;
    for position in expired {
        match held.contains(position) {
            true => passed_held = true,
            false if passed_held => acks.individual.push(position),
            false => acks.cumulative = Some(position),
        }
    }
    acks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn time_starts_when_an_entry_is_due() {
        assert!(is_expired(1000, None, 500, 1500));
        assert!(!is_expired(1000, None, 500, 1499));
        assert!(!is_expired(1000, Some(1400), 500, 1899));
        assert!(is_expired(1000, Some(1400), 500, 1900));
        assert!(is_expired(1000, Some(3), 500, 1500), "a due time in the past changes nothing");
        assert!(!is_expired(2000, None, 0, 1000), "stored by a clock ahead of ours");
        assert!(!is_expired(u64::MAX, Some(u64::MAX), u64::MAX, 5));
    }

    #[test]
    fn what_is_held_stays_and_what_is_behind_goes_one_by_one() {
        let p = |entry| Position::new(1, entry);
        let mut held = PositionSet::default();
        held.insert(p(2));
        held.insert(p(4));
        let acks = expiry_acks((0..6).map(p), &held);
        assert_eq!(acks, ExpiryAcks { cumulative: Some(p(1)), individual: vec![p(3), p(5)] });
        held.insert(p(0));
        assert_eq!(expiry_acks((0..6).map(p), &held).cumulative, None);
        assert_eq!(expiry_acks(std::iter::empty(), &held), ExpiryAcks::default());
    }

    proptest! {
        #[test]
        fn finds_the_end_in_few_looks(entries in 0u64..100_000, expired in 0u64..100_000) {
            let expired = expired.min(entries);
            let mut search = ExpirySearch::new(entries);
            let mut looks = 0;
            while let Some(at) = search.probe() {
                prop_assert!(at < entries);
                search.answer(at < expired);
                looks += 1;
            }
            prop_assert_eq!(search.expired(), expired);
            prop_assert!(looks <= 2 + entries.max(1).ilog2());
            prop_assert!(expired > 0 || looks <= 1);
        }
    }
}
