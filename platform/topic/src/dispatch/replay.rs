//! Entries that were read or delivered before and wait to be delivered (again).
//!
//! Invariants: R1 a position is in at most one set; R2 `hashes` counts the positions of each non-zero hash, so that a
//! newer entry of a key is never sent past an older one; R3 positions leave in log order within a set.
//! Must never know: consumers' state, entries' bytes.

use crate::api::ConsumerKey;
use meridian_types::Position;
use std::collections::{BTreeMap, HashMap};

/// The waiting positions, apart for each owner of keys; plain Shared keeps them all without an owner.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    sets: Vec<(Option<ConsumerKey>, BTreeMap<Position, u32>)>,
    hashes: HashMap<u32, u32>,
    len: usize,
}

impl Replay {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an entry of that key waits.
    pub(crate) fn holds_hash(&self, hash: u32) -> bool {
        hash != 0 && self.hashes.contains_key(&hash)
    }

    /// Adds or moves a position.
    pub(crate) fn add(&mut self, owner: Option<ConsumerKey>, position: Position, hash: u32) {
        self.remove(position);
        if hash != 0 {
            *self.hashes.entry(hash).or_insert(0) += 1;
        }
        self.len += 1;
        match self.sets.iter_mut().find(|(key, _)| *key == owner) {
            Some((_, set)) => {
                set.insert(position, hash);
            }
            None => self.sets.push((owner, BTreeMap::from([(position, hash)]))),
        }
    }

    /// Removes a position, if it waits.
    pub(crate) fn remove(&mut self, position: Position) {
        if self.len == 0 {
            return;
        }
        let Some(hash) = self.sets.iter_mut().find_map(|(_, set)| set.remove(&position)) else { return };
        self.len -= 1;
        self.forget_hash(hash);
        if self.len == 0 {
            self.sets.clear();
        }
    }

    fn forget_hash(&mut self, hash: u32) {
        if hash == 0 {
            return;
        }
        if let Some(count) = self.hashes.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.hashes.remove(&hash);
            }
        }
    }

    /// Drops every position for which `gone` holds.
    pub(crate) fn purge(&mut self, gone: &dyn Fn(Position) -> bool) {
        let all: Vec<Position> =
            self.sets.iter().flat_map(|(_, set)| set.keys().copied()).filter(|position| gone(*position)).collect();
        for position in all {
            self.remove(position);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sorts everything anew by the owner of its hash, after owners have changed. Hash 0 has no owner.
    pub(crate) fn reassign(&mut self, owner_of: &dyn Fn(u32) -> Option<ConsumerKey>) {
        for (_, set) in std::mem::take(&mut self.sets) {
            for (position, hash) in set {
                let owner = if hash == 0 { None } else { owner_of(hash) };
                match self.sets.iter_mut().find(|(key, _)| *key == owner) {
                    Some((_, set)) => {
                        set.insert(position, hash);
                    }
                    None => self.sets.push((owner, BTreeMap::from([(position, hash)]))),
                }
            }
        }
    }

    /// Appends to `out`, in order, at most `max` positions of one owner whose hash passes.
    pub(crate) fn pick(
        &self,
        owner: Option<ConsumerKey>,
        max: usize,
        passes: &dyn Fn(u32) -> bool,
        out: &mut Vec<Position>,
    ) {
        if let Some((_, set)) = self.sets.iter().find(|(key, _)| *key == owner) {
            out.extend(set.iter().filter(|(_, hash)| passes(**hash)).take(max).map(|(position, _)| *position));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(entry: i64) -> Position {
        Position::new(1, entry)
    }

    #[test]
    fn a_position_is_held_once_and_its_hash_is_counted() {
        let mut replay = Replay::default();
        replay.add(None, at(3), 7);
        replay.add(Some(ConsumerKey(1)), at(3), 7);
        replay.add(Some(ConsumerKey(1)), at(2), 7);
        assert_eq!(replay.len(), 2);
        replay.remove(at(3));
        assert!(replay.holds_hash(7));
        replay.remove(at(2));
        assert!(!replay.holds_hash(7));
        assert!(replay.is_empty());
    }

    #[test]
    fn positions_follow_the_owner_of_their_hash() {
        let mut replay = Replay::default();
        for entry in 0..6 {
            replay.add(None, at(entry), 1 + (entry % 2) as u32);
        }
        replay.reassign(&|hash| Some(ConsumerKey(u64::from(hash))));
        let mut out = Vec::new();
        replay.pick(Some(ConsumerKey(2)), 2, &|_| true, &mut out);
        assert_eq!(out, [at(1), at(3)]);
        assert_eq!(replay.len(), 6);
    }
}
