//! How near a bookie is: who is read first.

use meridian_topology::Location;

/// Nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nearness {
    /// In the own zone.
    SameZone,
    /// In the own region, or nothing is known of it.
    SameRegion,
    /// In another region.
    Elsewhere,
}

/// How near a place is. Without a place of one's own everything is equally near.
pub fn nearness(own: &Location, other: &Location) -> Nearness {
    if own.region.is_some() && other.region.is_some() && own.region != other.region {
        return Nearness::Elsewhere;
    }
    match (&own.zone, &other.zone) {
        (Some(own), Some(other)) if own == other => Nearness::SameZone,
        _ => Nearness::SameRegion,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_zone_before_the_own_region_before_others() {
        let at = |label: &str| Location::parse(label).unwrap();
        let own = at("/west/a");
        let mut others = [at("/east/a"), at("/west/b"), at(""), at("/west/a"), at("/a")];
        others.sort_by_key(|other| nearness(&own, other));
        assert_eq!(others, [at("/west/a"), at("/a"), at("/west/b"), at(""), at("/east/a")]);
        assert!(others.iter().all(|other| nearness(&Location::default(), other) == Nearness::SameRegion));
    }
}
