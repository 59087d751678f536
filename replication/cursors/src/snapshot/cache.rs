//! Snapshots kept for one subscription.
//!
//! Role: as snapshots are read behind mark-delete they are kept, spread over the backlog; when mark-delete passes one, the
//! highest one passed says where the subscription stands in other clusters.
//! Invariants: C1 local positions ascend; C2 at most `max` are kept; over it goes the inner one with the least distance
//! between its neighbours, never the first or the last; C3 one that is not above the last means that the cursor went back:
//! all others are dropped.
//! Must never know: mark-delete but when it is given.

use super::marker::{ClusterPosition, Marker};
use meridian_types::Position;

/// Fewer make no spread.
const MIN_KEPT: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    local: Position,
    clusters: Vec<ClusterPosition>,
}

/// See the head of the file.
#[derive(Debug)]
pub struct SnapshotCache {
    kept: Vec<Kept>,
    max: usize,
}

impl SnapshotCache {
    /// Keeps `max` snapshots, at least three (`replicatedSubscriptionsSnapshotMaxCachedPerSubscription`).
    pub fn new(max: usize) -> Self {
        Self { kept: Vec::new(), max: max.max(MIN_KEPT) }
    }

    /// Keeps a snapshot. `entries_between` answers how many entries lie between two positions of this topic.
    pub fn add(
        &mut self,
        local: Position,
        clusters: Vec<ClusterPosition>,
        entries_between: impl Fn(Position, Position) -> u64,
    ) {
        if self.kept.last().is_some_and(|last| local <= last.local) {
            self.kept.clear();
        }
        self.kept.push(Kept { local, clusters });
        if self.kept.len() <= self.max {
            return;
        }
        let around = |index: usize| entries_between(self.kept[index - 1].local, self.kept[index + 1].local);
        if let Some(least) = (1..self.kept.len() - 1).min_by_key(|index| around(*index)) {
            self.kept.remove(least);
        }
    }

    /// Mark-delete is at `mark_delete`: the update to send, if it passed a snapshot. What it passed is dropped.
    pub fn passed(&mut self, mark_delete: Position, subscription: &str) -> Option<Marker> {
        let count = self.kept.partition_point(|kept| kept.local <= mark_delete);
        let last = self.kept.drain(..count).next_back()?;
        Some(Marker::Update { subscription: subscription.to_owned(), clusters: last.clusters })
    }

    /// The cursor was moved.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// None are kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

/// Where this cluster's subscription stands according to another cluster's update.
impl Marker {
    /// The position for cluster `own`: everything up to it is acknowledged (P4: cumulatively).
    pub fn position_for(&self, own: &str) -> Option<Position> {
        let (Marker::Update { clusters, .. } | Marker::Snapshot { clusters, .. }) = self else { return None };
        clusters.iter().find(|one| one.cluster == own).map(|one| one.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(entry: i64) -> Position {
        Position::new(1, entry)
    }

    fn clusters(entry: i64) -> Vec<ClusterPosition> {
        vec![ClusterPosition { cluster: "b".into(), position: Position::new(7, entry) }]
    }

    fn between(from: Position, to: Position) -> u64 {
        (to.entry_id.0 - from.entry_id.0) as u64
    }

    fn locals(cache: &SnapshotCache) -> Vec<i64> {
        cache.kept.iter().map(|kept| kept.local.entry_id.0).collect()
    }

    #[test]
    fn snapshots_stay_spread() {
        let mut cache = SnapshotCache::new(4);
        for entry in [0, 100, 110, 200] {
            cache.add(at(entry), clusters(entry), between);
        }
        cache.add(at(300), clusters(300), between);
        // Around 100 lie 110 entries, around 110 lie 100, around 200 lie 190.
        assert_eq!(locals(&cache), [0, 100, 200, 300]);
        for entry in 301..1000 {
            cache.add(at(entry), clusters(entry), between);
        }
        let kept = locals(&cache);
        assert_eq!((kept[0], kept[3], kept.len()), (0, 999, 4));
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] < 800), "{kept:?}");
    }

    #[test]
    fn the_highest_one_passed_is_told_once() {
        let mut cache = SnapshotCache::new(30);
        [10, 20, 30].into_iter().for_each(|entry| cache.add(at(entry), clusters(entry), between));
        assert_eq!(cache.passed(at(9), "s"), None);
        let update = cache.passed(at(25), "s").unwrap();
        assert_eq!(update.position_for("b"), Some(Position::new(7, 20)));
        assert_eq!(update.position_for("c"), None);
        assert_eq!(cache.passed(at(25), "s"), None);
        assert_eq!(locals(&cache), [30]);
    }

    #[test]
    fn going_back_drops_what_was_kept() {
        let mut cache = SnapshotCache::new(30);
        [10, 20, 30].into_iter().for_each(|entry| cache.add(at(entry), clusters(entry), between));
        cache.add(at(20), clusters(20), between);
        assert_eq!(locals(&cache), [20]);
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn at_least_three_are_kept() {
        let mut cache = SnapshotCache::new(0);
        (0..10).for_each(|entry| cache.add(at(entry), clusters(entry), between));
        assert_eq!(cache.len(), 3);
    }
}
