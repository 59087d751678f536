//! When bundles are cut, where, and when they are joined again.
//!
//! Invariants: Z1 a bundle is cut only after it was over a limit in several looks that follow each other, and at a place that
//! parts its load; one hot topic is no reason, as a cut would not part it; Z2 bundles are joined only if both were cold for
//! many looks, and never beyond the bundles that the namespace was made with; Z3 in one look one change per namespace, so
//! that no topic is concerned twice.
//! Failure: none.
//! Must never know: who owns what.

use crate::bundles::{BundleRange, Bundles};
use crate::records::{BundleFigures, BundleId};
use meridian_types::NamespaceName;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How a bundle is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitAlgorithm {
    /// In the middle of its range.
    RangeEquallyDivide,
    /// Half of the topics on each side.
    TopicCountEquallyDivide,
    /// Half of the load on each side.
    FlowOrQpsEquallyDivide,
    /// At these hashes.
    SpecifiedPositions(Vec<u32>),
}

impl SplitAlgorithm {
    /// By Pulsar's name; positions count only for the algorithm that needs them.
    pub fn named(name: &str, positions: Vec<u32>) -> Option<Self> {
        match name {
            "range_equally_divide" => Some(Self::RangeEquallyDivide),
            "topic_count_equally_divide" => Some(Self::TopicCountEquallyDivide),
            "flow_or_qps_equally_divide" => Some(Self::FlowOrQpsEquallyDivide),
            "specified_positions_divide" => Some(Self::SpecifiedPositions(positions)),
            _ => None,
        }
    }
}

/// Where a bundle is cut; empty if there is no place. Topics are given by hash and weight.
pub fn cuts(algorithm: &SplitAlgorithm, range: BundleRange, topics: &[(u32, u64)]) -> Vec<u32> {
    match algorithm {
        SplitAlgorithm::RangeEquallyDivide => {
            let middle = range.start + (range.end - range.start) / 2;
            if middle > range.start { vec![middle] } else { Vec::new() }
        }
        SplitAlgorithm::TopicCountEquallyDivide => {
            quantile(topics.iter().map(|(hash, _)| (*hash, 1)).collect()).into_iter().collect()
        }
        SplitAlgorithm::FlowOrQpsEquallyDivide => quantile(topics.to_vec()).into_iter().collect(),
        SplitAlgorithm::SpecifiedPositions(positions) => {
            positions.iter().copied().filter(|at| range.start < *at && *at < range.end).collect()
        }
    }
}

/// The place that parts the weights best; `None` if all topics have one hash.
fn quantile(mut topics: Vec<(u32, u64)>) -> Option<u32> {
    topics.sort_unstable();
    let total: u64 = topics.iter().map(|(_, weight)| weight).sum();
    let (mut below, mut best) = (0u64, None::<(u64, u32)>);
    for pair in topics.windows(2) {
        below += pair[0].1;
        if pair[0].0 == pair[1].0 {
            continue;
        }
        let off = below.abs_diff(total - below);
        if best.is_none_or(|(least, _)| off < least) {
            best = Some((off, pair[0].0 + (pair[1].0 - pair[0].0).div_ceil(2)));
        }
    }
    best.map(|(_, at)| at)
}

/// When a bundle is hot or cold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeLimits {
    /// Topics.
    pub topics: u64,
    /// Producers and consumers.
    pub clients: u64,
    /// Messages per second, in and out.
    pub messages: u64,
    /// Bytes per second, in and out.
    pub bytes: u64,
    /// Looks over a limit before a cut.
    pub hot_looks: u32,
    /// Looks below the share before a merge.
    pub cold_looks: u32,
    /// Two neighbours are cold if together they are below this share of every limit, in thousandths.
    pub cold_permille: u64,
    /// Bundles of a namespace at most.
    pub max_bundles: usize,
}

impl Default for ResizeLimits {
    fn default() -> Self {
        Self {
            topics: 1_000,
            clients: 1_000,
            messages: 30_000,
            bytes: 100 << 20,
            hot_looks: 3,
            cold_looks: 10,
            cold_permille: 250,
            max_bundles: 128,
        }
    }
}

impl ResizeLimits {
    /// The largest share of a limit, in thousandths; a limit of 0 is none.
    pub fn heat(&self, figures: &BundleFigures) -> u64 {
        let share = |value: u64, limit: u64| (value.saturating_mul(1000)).checked_div(limit).unwrap_or(0);
        share(figures.topics, self.topics)
            .max(share(figures.clients, self.clients))
            .max(share(figures.messages_in + figures.messages_out, self.messages))
            .max(share(figures.bytes_in + figures.bytes_out, self.bytes))
    }
}

fn sum(one: &BundleFigures, other: &BundleFigures) -> BundleFigures {
    BundleFigures {
        topics: one.topics + other.topics,
        clients: one.clients + other.clients,
        messages_in: one.messages_in + other.messages_in,
        messages_out: one.messages_out + other.messages_out,
        bytes_in: one.bytes_in + other.bytes_in,
        bytes_out: one.bytes_out + other.bytes_out,
    }
}

/// Adds to figures.
pub fn add(to: &mut BundleFigures, more: &BundleFigures) {
    *to = sum(to, more);
}

/// The bundles of a namespace as they are, and as it was made.
pub struct Cuts {
    /// As they are.
    pub now: Bundles,
    /// As the namespace was made.
    pub made: Bundles,
}

/// Counts looks.
#[derive(Debug, Default)]
pub struct Resizer {
    hot: HashMap<BundleId, u32>,
    cold: HashMap<BundleId, u32>,
}

impl Resizer {
    /// Bundles to cut, of those that are given, one per namespace (Z1, Z3).
    pub fn hot(
        &mut self,
        limits: &ResizeLimits,
        loads: &BTreeMap<BundleId, BundleFigures>,
        count: impl Fn(&NamespaceName) -> usize,
    ) -> Vec<BundleId> {
        self.hot.retain(|bundle, _| loads.get(bundle).is_some_and(|figures| limits.heat(figures) > 1000));
        let mut chosen: BTreeMap<&NamespaceName, (u64, &BundleId)> = BTreeMap::new();
        for (bundle, figures) in loads {
            let heat = limits.heat(figures);
            if heat <= 1000 || figures.topics < 2 {
                continue;
            }
            let looks = self.hot.entry(bundle.clone()).or_default();
            *looks += 1;
            if *looks < limits.hot_looks || count(&bundle.namespace) >= limits.max_bundles {
                continue;
            }
            let most = chosen.entry(&bundle.namespace).or_insert((heat, bundle));
            if heat > most.0 {
                *most = (heat, bundle);
            }
        }
        let chosen: Vec<BundleId> = chosen.into_values().map(|(_, bundle)| bundle.clone()).collect();
        for bundle in &chosen {
            self.hot.remove(bundle);
        }
        chosen
    }

    /// Bundles to join with their upper neighbours, one per namespace (Z2, Z3). A bundle without figures has no load.
    pub fn cold(
        &mut self,
        limits: &ResizeLimits,
        loads: &BTreeMap<BundleId, BundleFigures>,
        namespaces: &BTreeMap<NamespaceName, Cuts>,
    ) -> Vec<BundleId> {
        let mut seen = BTreeSet::new();
        let mut chosen = Vec::new();
        for (namespace, cuts) in namespaces {
            let ranges: Vec<BundleRange> = cuts.now.ranges().collect();
            let of = |range: BundleRange| BundleId { namespace: namespace.clone(), range };
            let load = |range: BundleRange| loads.get(&of(range)).copied().unwrap_or_default();
            let mut coldest: Option<(u64, BundleId)> = None;
            for pair in ranges.windows(2) {
                let heat = limits.heat(&sum(&load(pair[0]), &load(pair[1])));
                if cuts.made.boundaries().contains(&pair[0].end) || heat >= limits.cold_permille {
                    continue;
                }
                let lower = of(pair[0]);
                let looks = self.cold.entry(lower.clone()).or_default();
                *looks += 1;
                seen.insert(lower.clone());
                if *looks >= limits.cold_looks && coldest.as_ref().is_none_or(|(least, _)| heat < *least) {
                    coldest = Some((heat, lower));
                }
            }
            chosen.extend(coldest.map(|(_, lower)| lower));
        }
        self.cold.retain(|bundle, _| seen.contains(bundle) && !chosen.contains(bundle));
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, proptest};

    const LIMITS: ResizeLimits = ResizeLimits {
        topics: 10,
        clients: 0,
        messages: 0,
        bytes: 0,
        hot_looks: 3,
        cold_looks: 2,
        cold_permille: 500,
        max_bundles: 8,
    };

    fn ns() -> NamespaceName {
        NamespaceName::parse("t/n").unwrap()
    }

    fn id(start: u32, end: u32) -> BundleId {
        BundleId { namespace: ns(), range: BundleRange { start, end } }
    }

    fn topics(topics: u64) -> BundleFigures {
        BundleFigures { topics, ..BundleFigures::default() }
    }

    #[test]
    fn a_cut_parts_the_load() {
        let range = BundleRange { start: 0, end: 100 };
        let load = [(10, 1), (20, 1), (30, 97), (40, 1)];
        assert_eq!(cuts(&SplitAlgorithm::RangeEquallyDivide, range, &load), [50]);
        assert_eq!(cuts(&SplitAlgorithm::TopicCountEquallyDivide, range, &load), [25]);
        assert_eq!(cuts(&SplitAlgorithm::FlowOrQpsEquallyDivide, range, &load), [25]);
        assert_eq!(cuts(&SplitAlgorithm::SpecifiedPositions(vec![0, 7, 100]), range, &load), [7]);
        assert!(cuts(&SplitAlgorithm::FlowOrQpsEquallyDivide, range, &load[..1]).is_empty());
        assert!(cuts(&SplitAlgorithm::RangeEquallyDivide, BundleRange { start: 5, end: 6 }, &[]).is_empty());
        assert_eq!(SplitAlgorithm::named("nonsense", Vec::new()), None);
    }

    #[test]
    fn only_a_lasting_load_cuts_a_bundle() {
        let mut resizer = Resizer::default();
        let hot = BTreeMap::from([(id(0, 50), topics(20)), (id(50, 100), topics(30))]);
        let calm = BTreeMap::from([(id(0, 50), topics(5)), (id(50, 100), topics(30))]);
        assert_eq!(resizer.hot(&LIMITS, &hot, |_| 2), []);
        assert_eq!(resizer.hot(&LIMITS, &calm, |_| 2), []);
        assert_eq!(resizer.hot(&LIMITS, &hot, |_| 2), [id(50, 100)], "one per namespace, the hottest");
        assert_eq!(resizer.hot(&LIMITS, &hot, |_| 2), [], "it counts anew");
        assert_eq!(resizer.hot(&LIMITS, &hot, |_| 8), [], "as many bundles as there may be");
    }

    #[test]
    fn b129_one_hot_topic_is_no_reason() {
        let limits = ResizeLimits { messages: 10, ..LIMITS };
        let load = BundleFigures { topics: 1, messages_in: 1_000, ..BundleFigures::default() };
        let mut resizer = Resizer::default();
        for _ in 0..10 {
            assert_eq!(resizer.hot(&limits, &BTreeMap::from([(id(0, 50), load)]), |_| 1), []);
        }
    }

    #[test]
    fn cold_neighbours_are_joined_but_not_beyond_the_beginning() {
        let made = Bundles::even(2).unwrap();
        let lower = BundleRange { start: 0, end: 0x8000_0000 };
        let (now, parts) = made.split(lower, &[0x4000_0000], 8).unwrap();
        let namespaces = BTreeMap::from([(ns(), Cuts { now, made: made.clone() })]);
        let part = BundleId { namespace: ns(), range: parts[0] };
        let mut resizer = Resizer::default();
        let warm = BTreeMap::from([(part.clone(), topics(6))]);
        assert_eq!(resizer.cold(&LIMITS, &BTreeMap::new(), &namespaces), []);
        assert_eq!(resizer.cold(&LIMITS, &warm, &namespaces), [], "the count begins anew");
        assert_eq!(resizer.cold(&LIMITS, &BTreeMap::new(), &namespaces), []);
        assert_eq!(resizer.cold(&LIMITS, &BTreeMap::new(), &namespaces), [part]);
        let whole = BTreeMap::from([(ns(), Cuts { now: made.clone(), made })]);
        for _ in 0..5 {
            assert_eq!(resizer.cold(&LIMITS, &BTreeMap::new(), &whole), []);
        }
    }

    proptest! {
        #[test]
        fn a_cut_leaves_topics_on_both_sides(
            topics in prop::collection::vec((any::<u32>(), 0u64..1000), 2..50),
        ) {
            for algorithm in [SplitAlgorithm::TopicCountEquallyDivide, SplitAlgorithm::FlowOrQpsEquallyDivide] {
                for cut in cuts(&algorithm, BundleRange::WHOLE, &topics) {
                    prop_assert!(topics.iter().any(|(hash, _)| *hash < cut));
                    prop_assert!(topics.iter().any(|(hash, _)| *hash >= cut));
                }
            }
        }
    }
}
