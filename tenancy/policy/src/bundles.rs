//! Into which hash ranges a namespace is cut.
//!
//! Invariants: boundaries rise strictly from `0x00000000` to `0xffffffff`; a range includes its start and excludes its
//! end, but the last includes its end.
//! Failure: [`PolicyError`] for boundaries that are none.
//! Must never know: who owns a bundle.

use crate::{PolicyError, refuse};
use serde::{Deserialize, Serialize};

const MAX_BUNDLES: u32 = 4096;

/// The bundles of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundlesData {
    /// Boundaries in hexadecimal, one more than bundles.
    #[serde(default)]
    pub boundaries: Vec<String>,
    /// How many bundles.
    #[serde(rename = "numBundles", default)]
    pub num_bundles: u32,
}

impl BundlesData {
    /// `count` bundles of the same size.
    ///
    /// # Errors
    /// [`PolicyError`] unless there are 1 to 4096.
    pub fn even(count: u32) -> Result<Self, PolicyError> {
        if count == 0 || count > MAX_BUNDLES {
            return refuse(format!("{count} bundles"), "a namespace has 1 to 4096 bundles");
        }
        let step = (1u64 << 32) / u64::from(count);
        let mut boundaries: Vec<_> = (0..u64::from(count)).map(|index| format!("0x{:08x}", index * step)).collect();
        boundaries.push("0xffffffff".to_owned());
        Ok(Self { boundaries, num_bundles: count })
    }

    /// What was given, completed: boundaries from a count, a count from boundaries.
    ///
    /// # Errors
    /// [`PolicyError`] for boundaries that don't rise over the whole range.
    pub fn normalized(&self) -> Result<Self, PolicyError> {
        if self.boundaries.is_empty() {
            return Self::even(self.num_bundles);
        }
        let parsed = self.parsed()?;
        let whole = parsed.first() == Some(&0) && parsed.last() == Some(&u32::MAX);
        if parsed.len() < 2 || !whole || parsed.windows(2).any(|pair| pair[0] >= pair[1]) {
            return refuse(
                format!("bundle boundaries {:?}", self.boundaries),
                "boundaries rise from 0x00000000 to 0xffffffff",
            );
        }
        let boundaries = parsed.iter().map(|boundary| format!("0x{boundary:08x}")).collect();
        Ok(Self { boundaries, num_bundles: parsed.len() as u32 - 1 })
    }

    fn parsed(&self) -> Result<Vec<u32>, PolicyError> {
        let parse = |text: &String| u32::from_str_radix(text.trim_start_matches("0x"), 16);
        match self.boundaries.iter().map(parse).collect() {
            Ok(parsed) => Ok(parsed),
            Err(_) => refuse(format!("bundle boundaries {:?}", self.boundaries), "boundaries are hexadecimal"),
        }
    }

    /// The bundle that holds a hash, as `0x…_0x…`.
    pub fn bundle_of(&self, hash: u32) -> Option<String> {
        let parsed = self.parsed().ok()?;
        let index = parsed.partition_point(|boundary| *boundary <= hash).min(parsed.len().saturating_sub(1));
        let (start, end) = (parsed.get(index.checked_sub(1)?)?, parsed.get(index)?);
        Some(format!("0x{start:08x}_0x{end:08x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_even_bundles() {
        let bundles = BundlesData::even(4).unwrap();
        assert_eq!(bundles.boundaries, ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]);
        assert_eq!(bundles.normalized(), Ok(bundles.clone()));
        assert_eq!(bundles.bundle_of(0).unwrap(), "0x00000000_0x40000000");
        assert_eq!(bundles.bundle_of(0x4000_0000).unwrap(), "0x40000000_0x80000000");
        assert_eq!(bundles.bundle_of(u32::MAX).unwrap(), "0xc0000000_0xffffffff");
        assert!(BundlesData::even(0).is_err());
        assert!(BundlesData::even(4097).is_err());
    }

    #[test]
    fn boundaries_cover_the_whole_range() {
        let given = |boundaries: &[&str]| BundlesData {
            boundaries: boundaries.iter().map(|text| (*text).to_owned()).collect(),
            num_bundles: 0,
        };
        assert_eq!(given(&["0x0", "0x80000000", "0xffffffff"]).normalized().unwrap().num_bundles, 2);
        for bad in [&["0x0"][..], &["0x1", "0xffffffff"], &["0x0", "0x5", "0x5", "0xffffffff"], &["0x0", "x"]] {
            assert!(given(bad).normalized().is_err(), "{bad:?}");
        }
        assert_eq!(given(&[]).bundle_of(1), None);
        assert_eq!(given(&["0x0"]).bundle_of(1), None);
    }

    proptest::proptest! {
        #[test]
        fn every_hash_is_in_exactly_the_bundle_that_says_so(count in 1..=MAX_BUNDLES, hash: u32) {
            let bundles = BundlesData::even(count).unwrap();
            proptest::prop_assert_eq!(bundles.normalized(), Ok(bundles.clone()));
            let name = bundles.bundle_of(hash).unwrap();
            let (start, end) = name.split_once('_').unwrap();
            let parse = |text: &str| u32::from_str_radix(&text[2..], 16).unwrap();
            proptest::prop_assert!(parse(start) <= hash);
            proptest::prop_assert!(hash < parse(end) || parse(end) == u32::MAX);
        }

        #[test]
        fn any_boundaries_are_refused_or_cover_everything(boundaries: Vec<String>, hash: u32) {
            let given = BundlesData { boundaries, num_bundles: 3 };
            if let Ok(normalized) = given.normalized() {
                proptest::prop_assert!(normalized.bundle_of(hash).is_some());
            }
            let _ = given.bundle_of(hash);
        }
    }
}
