//! Where entries of other regions stand in this region's log.
//!
//! Role: pure; built once from the log for all subscriptions of a topic, so that neither an acknowledgement of an entry
//! (local position known, origin asked) nor one that another region tells (origin known, local position asked) reads the
//! log. Entries of this region need no index: their position is their origin.
//! Invariants: I1 every foreign entry in `from..to` stands in exactly one run; I2 a run is consecutive both here and at its
//! origin, within one ledger each; I3 at most [`RUNS_MAX`] runs are kept: the index then ends before the log does and goes
//! on when the front is forgotten.
//! Must never know: what is acknowledged.

use meridian_cursors::exact::Origin;
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Runs kept at most; about 200 bytes each.
pub(super) const RUNS_MAX: usize = 32_768;

/// Foreign entries that follow each other both here and at their origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) local: Position,
    pub(super) origin: Origin,
    pub(super) first: Position,
    pub(super) len: u32,
}

impl Run {
    fn last_local(&self) -> Position {
        plus(self.local, self.len - 1)
    }

    pub(super) fn last(&self) -> Position {
        plus(self.first, self.len - 1)
    }

    /// The part of it whose local positions lie in a range.
    fn within(&self, from: Position, to: Position) -> Option<Run> {
        let (start, end) = (self.local.max(from), self.last_local().min(to));
        (start <= end).then(|| {
            let skipped = (start.entry_id.0 - self.local.entry_id.0) as u32;
            let len = (end.entry_id.0 - start.entry_id.0) as u32 + 1;
            Run { local: start, first: plus(self.first, skipped), len, ..*self }
        })
    }
}

fn plus(position: Position, entries: u32) -> Position {
    Position { entry_id: EntryId(position.entry_id.0 + i64::from(entries)), ..position }
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct OriginIndex {
    from: Position,
    to: Position,
    runs: BTreeMap<Position, Run>,
    by_origin: BTreeMap<Origin, BTreeMap<Position, Position>>,
}

impl OriginIndex {
    /// Covers nothing yet; `from` is the first entry that it will.
    pub(super) fn new(from: Position) -> Self {
        Self { from, to: from, runs: BTreeMap::new(), by_origin: BTreeMap::new() }
    }

    /// The first entry that is covered.
    pub(super) fn from(&self) -> Position {
        self.from
    }

    /// The first entry that is not covered any more.
    pub(super) fn to(&self) -> Position {
        self.to
    }

    pub(super) fn is_full(&self) -> bool {
        self.runs.len() >= RUNS_MAX
    }

    /// Everything before `to` was looked at.
    pub(super) fn looked_to(&mut self, to: Position) {
        self.to = self.to.max(to);
    }

    /// The next foreign entry, in log order.
    pub(super) fn add(&mut self, local: Position, origin: Origin, at: Position) {
        if local < self.to {
            return;
        }
        self.to = local.next_in_ledger();
        if let Some(mut last) = self.runs.last_entry() {
            let run = last.get_mut();
            if run.origin == origin && plus(run.local, run.len) == local && plus(run.first, run.len) == at {
                run.len += 1;
                return;
            }
        }
        self.runs.insert(local, Run { local, origin, first: at, len: 1 });
        self.by_origin.entry(origin).or_default().insert(at, local);
    }

    /// Nobody asks for what stands before `from` any more.
    pub(super) fn forget_before(&mut self, from: Position) {
        while let Some(first) = self.runs.first_entry().filter(|first| first.get().last_local() < from) {
            let run = first.remove();
            if let Some(locals) = self.by_origin.get_mut(&run.origin) {
                locals.remove(&run.first);
                if locals.is_empty() {
                    self.by_origin.remove(&run.origin);
                }
            }
        }
        self.from = self.from.max(from.min(self.to));
    }

    /// Runs of foreign entries with local positions in a range, cut to it, in order.
    pub(super) fn between(&self, from: Position, to: Position) -> impl Iterator<Item = Run> + '_ {
        let before = self.runs.range(..from).next_back().map(|(_, run)| run);
        let after = (from <= to).then(|| self.runs.range(from..=to)).into_iter().flatten().map(|(_, run)| run);
        before.into_iter().chain(after).filter_map(move |run| run.within(from, to))
    }

    /// The local places of some of an origin's entries: first position and how many.
    pub(super) fn locals(&self, origin: Origin, ledger_id: LedgerId, run: RangeInclusive<u32>) -> Vec<(Position, u32)> {
        let at = |entry: u32| Position { ledger_id, entry_id: EntryId(i64::from(entry)) };
        self.locals_between(origin, at(*run.start()), at(*run.end()))
    }

    /// The local places of an origin's entries in a range of its positions.
    pub(super) fn locals_between(&self, origin: Origin, from: Position, to: Position) -> Vec<(Position, u32)> {
        let Some(places) = self.by_origin.get(&origin).filter(|_| from <= to) else { return Vec::new() };
        let before = places.range(..from).next_back();
        let cut = |local: &Position| {
            let run = self.runs.get(local)?;
            let (start, end) = (run.first.max(from), run.last().min(to));
            (start <= end).then(|| {
                let skipped = (start.entry_id.0 - run.first.entry_id.0) as u32;
                (plus(run.local, skipped), (end.entry_id.0 - start.entry_id.0) as u32 + 1)
            })
        };
        before.into_iter().chain(places.range(from..=to)).filter_map(|(_, local)| cut(local)).collect()
    }

    /// The last entry of each origin before a local position, as far as it is covered.
    pub(super) fn last_before(&self, local: Position) -> BTreeMap<Origin, Position> {
        let mut last = BTreeMap::new();
        for run in self.between(self.from, Position { entry_id: EntryId(local.entry_id.0 - 1), ..local }) {
            last.insert(run.origin, run.last());
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{Incarnation, RegionId};

    fn at(ledger: i64, entry: i64) -> Position {
        Position::new(ledger, entry)
    }

    fn origin(region: u32) -> Origin {
        Origin::new(RegionId(region), Incarnation(1))
    }

    /// Here 3:0..3:9, of region 2 70:5..70:9 at 3:2..3:6, of region 4 8:1 at 3:8.
    fn sample() -> OriginIndex {
        let mut index = OriginIndex::new(at(3, 0));
        for entry in 2..=6 {
            index.add(at(3, entry), origin(2), at(70, entry + 3));
        }
        index.add(at(3, 8), origin(4), at(8, 1));
        index.looked_to(at(3, 10));
        index
    }

    #[test]
    fn both_ways() {
        let index = sample();
        assert_eq!(index.runs.len(), 2);
        let found: Vec<Run> = index.between(at(3, 4), at(3, 8)).collect();
        assert_eq!((found[0].local, found[0].first, found[0].len), (at(3, 4), at(70, 7), 3));
        assert_eq!((found[1].local, found[1].first, found[1].len), (at(3, 8), at(8, 1), 1));
        assert_eq!(index.locals(origin(2), LedgerId(70), 0..=6), [(at(3, 2), 2)]);
        assert_eq!(index.locals(origin(2), LedgerId(70), 8..=100), [(at(3, 5), 2)]);
        assert!(index.locals(origin(2), LedgerId(71), 0..=100).is_empty());
        assert_eq!(index.locals_between(origin(2), Position::EARLIEST, at(70, 6)), [(at(3, 2), 2)]);
        assert_eq!(index.last_before(at(3, 4)), BTreeMap::from([(origin(2), at(70, 6))]));
        assert_eq!(index.last_before(at(3, 9)).len(), 2);
    }

    #[test]
    fn the_front_is_forgotten() {
        let mut index = sample();
        index.forget_before(at(3, 4));
        assert_eq!((index.from(), index.runs.len()), (at(3, 4), 2));
        index.forget_before(at(3, 7));
        assert!(index.locals(origin(2), LedgerId(70), 0..=100).is_empty());
        index.forget_before(at(9, 0));
        assert_eq!((index.from(), index.to(), index.runs.len()), (at(3, 10), at(3, 10), 0));
    }

    #[test]
    fn what_was_looked_at_is_not_added_again() {
        let mut index = sample();
        index.add(at(3, 6), origin(2), at(70, 9));
        assert_eq!(index.runs.len(), 2);
        // A gap on either side begins a new run.
        index.add(at(3, 10), origin(4), at(8, 3));
        index.add(at(4, 0), origin(4), at(8, 4));
        assert_eq!(index.runs.len(), 4);
    }
}
