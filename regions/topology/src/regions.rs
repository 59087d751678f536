//! The registry of regions, as a value.
//!
//! Invariants: G1 no two regions of one id are admitted.
//! Failure: [`TopologyError`].
//! Must never know: where it is stored.

use crate::{Peer, RegionSpec, TopologyError};
use meridian_types::RegionId;
use std::collections::{BTreeMap, BTreeSet};

/// All regions as one of them knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Regions {
    own: String,
    specs: BTreeMap<String, RegionSpec>,
}

/// Which regions a namespace or topic names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Named {
    /// The own region is one of them.
    pub own: bool,
    /// Others that are registered.
    pub peers: Vec<String>,
    /// Names that are not registered here.
    pub unknown: Vec<String>,
}

impl Regions {
    /// What the region `own` knows.
    pub fn new(own: impl Into<String>, specs: impl IntoIterator<Item = RegionSpec>) -> Self {
        Self { own: own.into(), specs: specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect() }
    }

    /// The own region's name.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// Whether a region may be registered or changed like this.
    ///
    /// # Errors
    /// [`TopologyError::Field`], or [`TopologyError::SameId`] if its name can't be told from another in stored entries.
    pub fn admit(&self, spec: &RegionSpec) -> Result<(), TopologyError> {
        spec.check()?;
        let id = RegionId::of(&spec.name);
        let names = self.specs.keys().chain(std::iter::once(&self.own));
        match names.into_iter().find(|name| **name != spec.name && RegionId::of(name) == id) {
            Some(other) => Err(TopologyError::SameId { region: spec.name.clone(), other: other.clone() }),
            None => Ok(()),
        }
    }

    /// The entry of a region.
    pub fn spec(&self, name: &str) -> Option<&RegionSpec> {
        self.specs.get(name)
    }

    /// A peer as it is dialled.
    ///
    /// # Errors
    /// [`TopologyError::Unknown`], or the field that is missing.
    pub fn peer(&self, name: &str) -> Result<Peer, TopologyError> {
        self.specs.get(name).ok_or_else(|| TopologyError::Unknown(name.to_owned()))?.peer()
    }

    /// All others, each as it is dialled or with what is missing. Entries without any broker address (`global`) are
    /// passed over.
    pub fn peers(&self) -> Vec<(String, Result<Peer, TopologyError>)> {
        let others = self.specs.values().filter(|spec| spec.name != self.own && spec.broker_url().is_some());
        others.map(|spec| (spec.name.clone(), spec.peer())).collect()
    }

    /// The name of a region by its id in stored entries.
    pub fn name_of(&self, id: RegionId) -> Option<&str> {
        let names = self.specs.keys().map(String::as_str).chain(std::iter::once(self.own.as_str()));
        names.into_iter().find(|name| RegionId::of(name) == id)
    }

    /// Sorts the names that a namespace or topic gives.
    pub fn named(&self, names: &BTreeSet<String>) -> Named {
        let mut named = Named { own: names.contains(&self.own), ..Named::default() };
        for name in names.iter().filter(|name| **name != self.own) {
            let list = if self.specs.contains_key(name) { &mut named.peers } else { &mut named.unknown };
            list.push(name.clone());
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> RegionSpec {
        let broker_service_url = Some(format!("pulsar://{name}:6650"));
        RegionSpec { name: name.into(), broker_service_url, ..RegionSpec::default() }
    }

    fn regions() -> Regions {
        let global = RegionSpec { name: "global".into(), ..RegionSpec::default() };
        Regions::new("west", [region("west"), region("east"), region("north"), global])
    }

    #[test]
    fn peers_are_all_others_that_can_be_dialled() {
        let names: Vec<String> = regions().peers().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["east", "north"]);
        assert_eq!(regions().peer("south"), Err(TopologyError::Unknown("south".into())));
        assert_eq!(regions().name_of(RegionId::of("north")), Some("north"));
        assert_eq!(regions().name_of(RegionId(0)), None);
    }

    #[test]
    fn a_namespace_names_regions() {
        let names = ["east", "west", "south"].map(str::to_owned).into();
        let named = regions().named(&names);
        assert_eq!(named, Named { own: true, peers: vec!["east".into()], unknown: vec!["south".into()] });
    }

    #[test]
    fn two_names_of_one_id_are_refused() {
        let (first, second) = ("region-a60ac2d3a3".to_owned(), "region-259214b786".to_owned());
        assert_eq!(RegionId::of(&first), RegionId::of(&second));
        let regions = Regions::new("west", [region(&first)]);
        let refused = regions.admit(&region(&second)).unwrap_err();
        assert_eq!(refused, TopologyError::SameId { region: second.clone(), other: first.clone() });
        assert_eq!(Regions::new(first.clone(), []).admit(&region(&second)).unwrap_err(), refused);
        assert_eq!(regions.admit(&region(&first)), Ok(()), "a change of the same one");
    }
}
