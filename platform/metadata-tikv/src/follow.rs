//! What of the log of changes was seen: a pure decision over the heads of all lanes.
//!
//! Role: from one look at all heads to the entries that must be read, or to the decision that too much was missed.
//! Invariants: M3 an entry that was written since the look before is read, or everything is read again; own lanes are
//! left out, since their changes were given at once.
//! Failure: none; a gap is [`Look::Rescan`].
//! Must never know: TiKV's interface, what the entries say.

use crate::format::Head;
use crate::lanes::LANE_LIFE_MS;
use std::collections::{BTreeMap, HashSet};

/// Entries read at one look; more are a rescan, which is cheaper.
const MAX_ENTRIES_PER_LOOK: u64 = 8192;

/// Entries `first..=last` of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lane: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// What to do after a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// Read these, in the view of the look.
    Read(Vec<Span>),
    /// Entries are gone or too many: everything has to be read again.
    Rescan,
}

/// What was seen of every lane.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    seen: BTreeMap<u64, u64>,
    looked_at_ms: u64,
}

impl Follower {
    /// Begins behind everything that the heads say, at `now_ms` of the store's clock.
    pub(crate) fn begin(heads: &BTreeMap<u64, Head>, now_ms: u64) -> Self {
        let seen = heads.iter().map(|(lane, head)| (*lane, head.last)).collect();
        Self { seen, looked_at_ms: now_ms }
    }

    /// Judges the heads of one view; nothing is seen until [`Follower::seen`] says so.
    pub(crate) fn look(&self, heads: &BTreeMap<u64, Head>, own: &HashSet<u64>, now_ms: u64) -> Look {
        // Lanes may have come and gone meanwhile.
        if now_ms.saturating_sub(self.looked_at_ms) > LANE_LIFE_MS / 2 {
            return Look::Rescan;
        }
        let mut spans = Vec::new();
        let mut entries = 0;
        for (lane, head) in heads.iter().filter(|(lane, _)| !own.contains(lane)) {
            let first = self.seen.get(lane).copied().unwrap_or(0) + 1;
            if first > head.last {
                continue;
            }
            if head.first > first {
                return Look::Rescan;
            }
            entries += head.last - first + 1;
            spans.push(Span { lane: *lane, first, last: head.last });
        }
        if entries > MAX_ENTRIES_PER_LOOK { Look::Rescan } else { Look::Read(spans) }
    }

    /// Everything that the heads say was given to the watchers, or they were told to read again.
    pub(crate) fn seen(&mut self, heads: &BTreeMap<u64, Head>, now_ms: u64) {
        *self = Self::begin(heads, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(heads: &[(u64, u64, u64)]) -> BTreeMap<u64, Head> {
        heads.iter().map(|(lane, first, last)| (*lane, Head { last: *last, version: 0, first: *first })).collect()
    }

    fn span(lane: u64, first: u64, last: u64) -> Span {
        Span { lane, first, last }
    }

    #[test]
    fn only_what_moved_is_read_and_own_lanes_are_not() {
        let own = HashSet::from([9]);
        let mut follower = Follower::begin(&heads(&[(1, 1, 5), (2, 1, 7), (9, 1, 1)]), 0);
        let next = heads(&[(1, 3, 5), (2, 8, 9), (3, 1, 2), (9, 1, 4)]);
        let look = follower.look(&next, &own, 1000);
        assert_eq!(look, Look::Read(vec![span(2, 8, 9), span(3, 1, 2)]));
        assert_eq!(follower.look(&next, &own, 1000), look, "a look that failed is repeated");
        follower.seen(&next, 1000);
        assert_eq!(follower.look(&next, &own, 2000), Look::Read(vec![]));
    }

    #[test]
    fn gaps_are_rescans() {
        let own = HashSet::new();
        let follower = Follower::begin(&heads(&[(1, 1, 5)]), 0);
        assert_eq!(follower.look(&heads(&[(1, 7, 9)]), &own, 0), Look::Rescan, "6 is gone");
        assert_eq!(
            follower.look(&heads(&[(1, 1, 5), (2, 3, 4)]), &own, 0),
            Look::Rescan,
            "a new lane without its start"
        );
        assert_eq!(follower.look(&heads(&[(1, 1, 5)]), &own, LANE_LIFE_MS), Look::Rescan, "away for too long");
        assert_eq!(follower.look(&heads(&[(1, 1, 5 + MAX_ENTRIES_PER_LOOK + 1)]), &own, 0), Look::Rescan);
        assert_eq!(follower.look(&heads(&[]), &own, 0), Look::Read(vec![]), "a lane that was taken away");
    }

    /// What a lane really holds, beside its head.
    #[derive(Debug, Default)]
    struct Model {
        heads: BTreeMap<u64, Head>,
        written: HashSet<(u64, u64)>,
        given: HashSet<(u64, u64)>,
    }

    impl Model {
        fn look(&mut self, follower: &mut Follower, now_ms: u64) {
            match follower.look(&self.heads, &HashSet::new(), now_ms) {
                Look::Rescan => self.given = self.written.clone(),
                Look::Read(spans) => {
                    for span in spans {
                        self.given.extend((span.first..=span.last).map(|number| (span.lane, number)));
                    }
                }
            }
            follower.seen(&self.heads, now_ms);
        }
    }

    proptest::proptest! {
        /// M3: whatever writers, trimming and the death of lanes do, after a look everything written was given.
        #[test]
        fn nothing_is_missed(steps in proptest::collection::vec((0u64..6, 0u8..10, 1u64..2_000), 1..200)) {
            let mut model = Model::default();
            let mut follower = Follower::begin(&model.heads, 0);
            let mut now_ms = 0;
            let mut written_at = BTreeMap::new();
            let mut names: Vec<u64> = (0..6).collect();
            for (slot, step, pause_ms) in steps {
                let lane = names[slot as usize];
                // Time stands for minutes: lanes die after half an hour.
                now_ms += pause_ms * 300;
                match step {
                    0..6 => {
                        let head = model.heads.entry(lane).or_insert(Head { last: 0, version: 0, first: 1 });
                        head.last += 1;
                        model.written.insert((lane, head.last));
                        written_at.insert(lane, now_ms);
                    }
                    6 => {
                        if let Some(head) = model.heads.get_mut(&lane) {
                            head.first = head.last;
                        }
                    }
                    7 => {
                        // Only a lane that nobody wrote for long is taken away, and its name never comes again.
                        let dead = written_at.get(&lane).is_some_and(|at| at + LANE_LIFE_MS < now_ms);
                        if dead && model.heads.remove(&lane).is_some() {
                            model.written.retain(|(of, _)| *of != lane);
                            model.given.retain(|(of, _)| *of != lane);
                            names[slot as usize] += 6;
                        }
                    }
                    _ => {
                        model.look(&mut follower, now_ms);
                        proptest::prop_assert!(model.written.is_subset(&model.given));
                    }
                }
            }
        }
    }
}
