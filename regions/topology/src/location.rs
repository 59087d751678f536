//! Where a storage node stands.
//!
//! Invariants: what is not said is not guessed.
//! Failure: an unreadable label is `None`.

use std::fmt;

/// Region and zone (rack) of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Location {
    /// The region; `None` = not said (one region's own nodes).
    pub region: Option<String>,
    /// The zone or rack; `None` = not said.
    pub zone: Option<String>,
}

impl Location {
    /// Reads `/region/zone`, `/zone`, or an empty text for a place that is not known.
    pub fn parse(label: &str) -> Option<Self> {
        let label = label.trim();
        if label.is_empty() {
            return Some(Self::default());
        }
        let mut parts = label.strip_prefix('/').unwrap_or(label).split('/');
        let first = parts.next().filter(|part| !part.is_empty())?.to_owned();
        match (parts.next(), parts.next()) {
            (None, _) => Some(Self { region: None, zone: Some(first) }),
            (Some(zone), None) if !zone.is_empty() => Some(Self { region: Some(first), zone: Some(zone.to_owned()) }),
            _ => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.region, &self.zone].into_iter().flatten() {
            write!(f, "/{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_both_ways() {
        for label in ["/west/a", "/a", ""] {
            assert_eq!(Location::parse(label).unwrap().to_string(), label);
        }
        assert_eq!(Location::parse("a").unwrap().zone.as_deref(), Some("a"));
        for bad in ["/", "//a", "/a/", "/a/b/c"] {
            assert_eq!(Location::parse(bad), None, "{bad}");
        }
    }
}
