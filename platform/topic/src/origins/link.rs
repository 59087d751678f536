//! Which producers belong to another region's replicator, and what they say about themselves.
//!
//! Invariants: a name with the prefix is a link's, whatever else it says; metadata that can't be read is as none.
//! Must never know: who may use such a name.

use super::Source;
use meridian_types::{Incarnation, RegionId};
use meridian_wire::replicate::{INCARNATION_KEY, LINK_KEY, REGION_KEY, link_source};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a producer's name is one of a replicator.
pub fn is_link(name: &str) -> bool {
    link_source(name).is_some()
}

/// Who sends over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkIdentity {
    /// Name of the sending region.
    pub region: Arc<str>,
    /// The topic's life there.
    pub source: Source,
    /// The sender begins with its first unanswered entry whenever it attaches.
    pub rewinds: bool,
    /// It matches receipts by source position.
    pub by_position: bool,
}

impl LinkIdentity {
    /// Of a producer; `None` if it is no link.
    pub fn of(name: &str, metadata: &BTreeMap<String, String>, by_position: bool) -> Option<Self> {
        let source = link_source(name)?;
        let region = match metadata.get(REGION_KEY) {
            Some(region) if !region.is_empty() => region.as_str(),
            _ => source,
        };
        let incarnation = metadata.get(INCARNATION_KEY).and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(Self {
            region: region.into(),
            source: Source { region: RegionId::of(region), incarnation: Incarnation(incarnation) },
            rewinds: metadata.get(LINK_KEY).is_some_and(|version| version == "1"),
            by_position,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulsar_link_is_known_by_its_name() {
        let link = LinkIdentity::of("pulsar.repl.west-1-->east", &BTreeMap::new(), true).unwrap();
        assert_eq!((&*link.region, link.rewinds, link.by_position), ("west-1", false, true));
        assert_eq!(link.source, Source { region: RegionId::of("west-1"), incarnation: Incarnation(0) });
        assert_eq!(LinkIdentity::of("pulsar.replica", &BTreeMap::new(), true), None);
        assert!(is_link("pulsar.repl.a"));
    }

    #[test]
    fn a_meridian_link_names_region_and_incarnation() {
        let metadata = [("meridian.region", "west"), ("meridian.incarnation", "77"), ("meridian.link", "1")];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let link = LinkIdentity::of("pulsar.repl.w-->east", &metadata, false).unwrap();
        assert_eq!(link.source, Source { region: RegionId::of("west"), incarnation: Incarnation(77) });
        assert!(link.rewinds);
    }
}
