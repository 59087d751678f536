//! Objects that regions share, their versions, and digests by which two regions find where they differ.
//!
//! A version is `(born, deleted, stamp)`, compared in this order: of two lives the one that began later wins; within one
//! life a deletion is final, whatever was written meanwhile elsewhere; otherwise the later change wins. So a thing is
//! deleted once and everywhere, and only creating it anew brings it back.
//! Invariants: G3 versions are totally ordered; equal sets of summaries have equal digests in any order, in every
//! program of this format.
//! Failure: none.
//! Must never know: what keys and values mean.

use crate::Stamp;
use std::collections::BTreeSet;

/// Keys are spread over so many buckets, each with one figure.
pub const BUCKETS: usize = 256;

/// The version of an object; the greater one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectVersion {
    /// When this life of it began.
    pub born: Stamp,
    /// It was deleted.
    pub deleted: bool,
    /// When it was changed last.
    pub stamp: Stamp,
}

/// A key and its version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Summary {
    /// The key.
    pub key: String,
    /// The version.
    pub version: ObjectVersion,
}

/// An object as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The key.
    pub key: String,
    /// The version.
    pub version: ObjectVersion,
    /// When the life that ended before this one had begun: whoever still has that life, or one before it, has missed
    /// its end. [`Stamp::ZERO`] = there was none.
    pub ended: Stamp,
    /// Regions that have it or had it in this life.
    pub regions: BTreeSet<String>,
    /// The value; empty when it was deleted.
    pub value: Vec<u8>,
}

impl Object {
    /// Key and version.
    pub fn summary(&self) -> Summary {
        Summary { key: self.key.clone(), version: self.version }
    }
}

/// What became of an object that another region sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// It is stored.
    Taken,
    /// As new or newer was here already.
    Older,
    /// Not possible yet (something it hangs on is missing, or a deletion is at work): it will be sent again.
    Later(String),
    /// Not possible; the reason is shown on both sides.
    Refused(String),
}

/// A change of something that regions may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedChange {
    /// One object.
    Key(String),
    /// What is shared with whom, or anything: compare everything.
    Everything,
}

/// The bucket of a key.
pub fn bucket_of(key: &str) -> u8 {
    (mix(fnv(FNV_START, key.as_bytes())) & 0xff) as u8
}

/// One figure per bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests(Vec<u64>);

impl Default for Digests {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Digests {
    /// Adds an object.
    pub fn add(&mut self, key: &str, version: &ObjectVersion) {
        let figure = &mut self.0[usize::from(bucket_of(key))];
        *figure = figure.wrapping_add(hash(key, version));
    }

    /// The figures in the order of buckets.
    pub fn figures(&self) -> &[u64] {
        &self.0
    }

    /// From figures of elsewhere; `None` if there are not as many as buckets.
    pub fn from_figures(figures: Vec<u64>) -> Option<Self> {
        (figures.len() == BUCKETS).then_some(Self(figures))
    }

    /// Buckets that differ.
    pub fn differing(&self, other: &Self) -> Vec<u8> {
        (0..=u8::MAX).filter(|bucket| self.0[usize::from(*bucket)] != other.0[usize::from(*bucket)]).collect()
    }
}

impl<'a> FromIterator<&'a Summary> for Digests {
    fn from_iter<I: IntoIterator<Item = &'a Summary>>(summaries: I) -> Self {
        let mut digests = Self::default();
        for summary in summaries {
            digests.add(&summary.key, &summary.version);
        }
        digests
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(mut state: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state
}

/// The finalizer of splitmix64: every bit of the input reaches every bit of the figure.
fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn hash(key: &str, version: &ObjectVersion) -> u64 {
    let mut state = fnv(FNV_START, key.as_bytes());
    for stamp in [version.born, version.stamp] {
        state = fnv(state, &stamp.time.to_le_bytes());
        state = fnv(state, &stamp.region.0.to_le_bytes());
    }
    mix(fnv(state, &[u8::from(version.deleted)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;
    use proptest::prelude::*;

    fn version(born: u64, deleted: bool, stamp: u64) -> ObjectVersion {
        let at = |time: u64| Stamp { time, region: RegionId(7) };
        ObjectVersion { born: at(born), deleted, stamp: at(stamp) }
    }

    #[test]
    fn a_deletion_ends_a_life_and_only_a_new_life_follows_it() {
        let deleted = version(5, true, 8);
        assert!(deleted > version(5, false, 7), "what it deleted");
        assert!(deleted > version(5, false, 100), "a change elsewhere that did not know of it");
        assert!(deleted < version(9, false, 9), "created anew");
        assert!(version(5, false, 7) > version(5, false, 6));
    }

    #[test]
    fn golden_figures() {
        let mut digests = Digests::default();
        digests.add("tenancy/tenant/t", &version(1, false, 2));
        let bucket = bucket_of("tenancy/tenant/t");
        let golden = (bucket, digests.figures()[usize::from(bucket)]);
        assert_eq!(golden, GOLDEN);
        assert_eq!(digests.differing(&Digests::default()), [bucket]);
    }

    const GOLDEN: (u8, u64) = (150, 6_588_915_681_326_510_151);

    proptest! {
        #[test]
        fn order_does_not_matter_and_every_change_shows(
            items in proptest::collection::btree_map("[a-z/]{1,12}", (0u64..9, any::<bool>(), 0u64..9), 1..40),
            changed: proptest::sample::Index,
        ) {
            let items: Vec<Summary> = items.into_iter()
                .map(|(key, (born, deleted, stamp))| Summary { key, version: version(born, deleted, stamp) }).collect();
            let forward: Digests = items.iter().collect();
            let backward: Digests = items.iter().rev().collect();
            prop_assert_eq!(&forward, &backward);
            let mut other = items.clone();
            let at = changed.index(other.len());
            other[at].version.stamp.time += 1;
            let differing = forward.differing(&other.iter().collect());
            prop_assert_eq!(differing, vec![bucket_of(&items[at].key)]);
        }
    }
}
