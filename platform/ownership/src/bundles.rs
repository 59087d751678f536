//! Hash ranges of topic names: which bundle a topic falls into, how bundles are cut and joined.
//!
//! Invariants: R1 boundaries rise strictly from 0 to `0xffffffff`, so that every hash lies in exactly one bundle after any
//! splits and merges; R2 a range includes its start and excludes its end, but the last includes its end; R3 a cut changes
//! one boundary at a time: a split adds some within one bundle, a merge removes one.
//! Failure: [`BundleError`] for ranges that are none.
//! Must never know: who owns a bundle.

use meridian_types::TopicName;
use std::fmt;

/// Bundles of one namespace at most.
pub const MAX_BUNDLES: usize = 4096;
/// The end of the whole range, which belongs to the last bundle.
pub const TOP: u32 = u32::MAX;

/// Why a change of bundles is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// There is no such bundle.
    #[error("bundle range {0} does not exist")]
    NoSuchBundle(String),
    /// The boundaries do not cover the whole range.
    #[error("bundle boundaries rise from 0x00000000 to 0xffffffff")]
    NotWhole,
    /// No place within the bundle to cut at.
    #[error("bundle {0} can't be split there")]
    NoCut(String),
    /// The two are not neighbours.
    #[error("bundle {0} has no neighbour to merge with")]
    NoNeighbour(String),
    /// Too many bundles.
    #[error("a namespace has at most {limit} bundles")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// A hash range, written `0x00000000_0x40000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BundleRange {
    /// First hash.
    pub start: u32,
    /// First hash behind it; [`TOP`] belongs to the range that ends there (R2).
    pub end: u32,
}

impl BundleRange {
    /// All hashes.
    pub const WHOLE: BundleRange = BundleRange { start: 0, end: TOP };

    /// Reads what is written as `0x…_0x…`.
    pub fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once('_')?;
        let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let range = BundleRange { start: number(start)?, end: number(end)? };
        (range.start < range.end).then_some(range)
    }

    /// Whether a hash lies in it.
    pub fn holds(&self, hash: u32) -> bool {
        self.start <= hash && (hash < self.end || self.end == TOP)
    }

    /// Whether the two share a hash.
    pub fn overlaps(&self, other: &BundleRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for BundleRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}_0x{:08x}", self.start, self.end)
    }
}

/// The hash that decides on a topic's bundle: CRC-32 of its whole name, as Pulsar's brokers compute it.
pub fn topic_hash(topic: &TopicName) -> u32 {
    crc32fast::hash(topic.as_str().as_bytes())
}

/// The bundles of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundles(Vec<u32>);

impl Bundles {
    /// `count` bundles of the same size.
    ///
    /// # Errors
    /// [`BundleError::TooMany`] unless there are 1 to [`MAX_BUNDLES`].
    pub fn even(count: u32) -> Result<Self, BundleError> {
        if count == 0 || count as usize > MAX_BUNDLES {
            return Err(BundleError::TooMany { limit: MAX_BUNDLES });
        }
        let step = (1u64 << 32) / u64::from(count);
        let mut boundaries: Vec<u32> = (0..u64::from(count)).map(|index| (index * step) as u32).collect();
        boundaries.push(TOP);
        Ok(Self(boundaries))
    }

    /// With these boundaries.
    ///
    /// # Errors
    /// [`BundleError::NotWhole`] or [`BundleError::TooMany`] (R1).
    pub fn new(boundaries: Vec<u32>) -> Result<Self, BundleError> {
        let whole = boundaries.first() == Some(&0) && boundaries.last() == Some(&TOP);
        if !whole || boundaries.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(BundleError::NotWhole);
        }
        if boundaries.len() > MAX_BUNDLES + 1 {
            return Err(BundleError::TooMany { limit: MAX_BUNDLES });
        }
        Ok(Self(boundaries))
    }

    /// The boundaries, one more than bundles.
    pub fn boundaries(&self) -> &[u32] {
        &self.0
    }

    /// How many bundles.
    pub fn count(&self) -> usize {
        self.0.len() - 1
    }

    /// All bundles, in order.
    pub fn ranges(&self) -> impl Iterator<Item = BundleRange> + '_ {
        self.0.windows(2).map(|pair| BundleRange { start: pair[0], end: pair[1] })
    }

    /// The bundle of a hash.
    pub fn of(&self, hash: u32) -> BundleRange {
        let behind = self.0.partition_point(|boundary| *boundary <= hash).clamp(1, self.count());
        BundleRange { start: self.0[behind - 1], end: self.0[behind] }
    }

    /// Whether this is one of the bundles.
    pub fn contains(&self, range: BundleRange) -> bool {
        self.0.binary_search(&range.start).is_ok_and(|index| self.0.get(index + 1) == Some(&range.end))
    }

    /// One bundle cut at these hashes; the parts are given back in order.
    ///
    /// # Errors
    /// [`BundleError::NoSuchBundle`], [`BundleError::NoCut`] if none lies within, [`BundleError::TooMany`] over `limit`.
    pub fn split(
        &self,
        range: BundleRange,
        cuts: &[u32],
        limit: usize,
    ) -> Result<(Self, Vec<BundleRange>), BundleError> {
        if !self.contains(range) {
            return Err(BundleError::NoSuchBundle(range.to_string()));
        }
        let mut within: Vec<u32> = cuts.iter().copied().filter(|cut| range.start < *cut && *cut < range.end).collect();
        within.sort_unstable();
        within.dedup();
        if within.is_empty() {
            return Err(BundleError::NoCut(range.to_string()));
        }
        if self.count() + within.len() > limit.min(MAX_BUNDLES) {
            return Err(BundleError::TooMany { limit: limit.min(MAX_BUNDLES) });
        }
        let edges: Vec<u32> = [range.start].into_iter().chain(within.iter().copied()).chain([range.end]).collect();
        let parts = edges.windows(2).map(|pair| BundleRange { start: pair[0], end: pair[1] }).collect();
        let mut boundaries = self.0.clone();
        boundaries.extend(within);
        boundaries.sort_unstable();
        Ok((Self(boundaries), parts))
    }

    /// The bundle joined with its upper neighbour.
    ///
    /// # Errors
    /// [`BundleError::NoSuchBundle`] or [`BundleError::NoNeighbour`].
    pub fn merge(&self, lower: BundleRange) -> Result<(Self, [BundleRange; 2], BundleRange), BundleError> {
        if !self.contains(lower) {
            return Err(BundleError::NoSuchBundle(lower.to_string()));
        }
        let at = self.0.partition_point(|boundary| *boundary < lower.end);
        let Some(&end) = self.0.get(at + 1) else { return Err(BundleError::NoNeighbour(lower.to_string())) };
        let upper = BundleRange { start: lower.end, end };
        let mut boundaries = self.0.clone();
        boundaries.remove(at);
        Ok((Self(boundaries), [lower, upper], BundleRange { start: lower.start, end }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn ranges_are_written_as_pulsar_writes_them() {
        let bundles = Bundles::even(4).unwrap();
        let names: Vec<String> = bundles.ranges().map(|range| range.to_string()).collect();
        assert_eq!(names[0], "0x00000000_0x40000000");
        assert_eq!(names[3], "0xc0000000_0xffffffff");
        assert_eq!(BundleRange::parse(&names[0]), Some(BundleRange { start: 0, end: 0x4000_0000 }));
        for bad in ["", "0x0", "0x5_0x4", "5_6", "0x00000000_0x1ffffffff"] {
            assert_eq!(BundleRange::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_hash_is_crc_32_of_the_whole_name() {
        // CRC-32 (IEEE) of "123456789" is cbf43926; the name of a topic is hashed with its scheme.
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
        let topic = TopicName::parse("orders").unwrap();
        assert_eq!(topic_hash(&topic), crc32fast::hash(b"persistent://public/default/orders"));
    }

    #[test]
    fn one_bundle_is_cut_and_joined() {
        let bundles = Bundles::even(2).unwrap();
        let lower = BundleRange { start: 0, end: 0x8000_0000 };
        let (cut, parts) = bundles.split(lower, &[0x4000_0000, 0, 0x9000_0000], 128).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(cut.count(), 3);
        let (joined, [a, b], whole) = cut.merge(parts[0]).unwrap();
        assert_eq!(([a, b], whole), ([parts[0], parts[1]], lower));
        assert_eq!(joined, bundles);
        assert!(bundles.split(lower, &[0], 128).is_err());
        assert!(bundles.split(parts[0], &[1], 128).is_err());
        assert_eq!(bundles.split(lower, &[1], 2), Err(BundleError::TooMany { limit: 2 }));
        let upper = BundleRange { start: 0x8000_0000, end: TOP };
        assert_eq!(bundles.merge(upper), Err(BundleError::NoNeighbour(upper.to_string())));
    }

    proptest! {
        #[test]
        fn no_gap_and_no_overlap_after_any_splits_and_merges(
            count in 1u32..9,
            steps in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 0..40),
            hashes in prop::collection::vec(any::<u32>(), 20),
        ) {
            let mut bundles = Bundles::even(count).unwrap();
            for (at, cut, is_split) in steps {
                let range = bundles.of(at);
                let next = if is_split {
                    bundles.split(range, &[cut], 128).map(|(next, parts)| {
                        assert!(parts.iter().all(|part| next.contains(*part)));
                        next
                    })
                } else {
                    bundles.merge(range).map(|(next, ..)| next)
                };
                bundles = next.unwrap_or(bundles);
                prop_assert_eq!(Bundles::new(bundles.boundaries().to_vec()), Ok(bundles.clone()));
            }
            for hash in hashes.into_iter().chain([0, TOP, TOP - 1]) {
                let holders: Vec<_> = bundles.ranges().filter(|range| range.holds(hash)).collect();
                prop_assert_eq!(holders, vec![bundles.of(hash)]);
            }
        }

        #[test]
        fn any_text_is_a_range_or_none(text in "\\PC{0,30}") {
            if let Some(range) = BundleRange::parse(&text) {
                prop_assert!(range.start < range.end);
            }
        }
    }
}
