//! What stands beside the values that regions may share, by key: of nearly all it is two stamps. Those of namespaces stand
//! with their policies.
//!
//! Invariants: a header is given back as it was put in.
//! Failure: none.
//! Must never know: values, the store.

use crate::record::Header;
use meridian_topology::Stamp;
use std::collections::{BTreeMap, BTreeSet};

/// A header as it is kept.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Nothing else is set.
    Stamps {
        stamp: Stamp,
        born: Stamp,
    },
    Whole(Box<Header>),
}

impl From<Header> for Kept {
    fn from(header: Header) -> Self {
        match header {
            Header { stamp: Some(stamp), born: Some(born), ended: None, ref regions, detached: false }
                if regions.is_empty() =>
            {
                Kept::Stamps { stamp, born }
            }
            header => Kept::Whole(Box::new(header)),
        }
    }
}

impl Kept {
    /// As it was put in.
    pub(crate) fn header(&self) -> Header {
        match self {
            Kept::Stamps { stamp, born } => Header {
                stamp: Some(*stamp),
                born: Some(*born),
                ended: None,
                regions: BTreeSet::new(),
                detached: false,
            },
            Kept::Whole(header) => (**header).clone(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Headers(BTreeMap<Box<str>, Kept>);

impl Headers {
    pub(crate) fn insert(&mut self, path: &str, header: Header) {
        self.0.insert(path.into(), header.into());
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.0.remove(path);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Header> {
        self.0.get(path).map(Kept::header)
    }

    /// All of them, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Header)> {
        self.0.iter().map(|(path, kept)| (&**path, kept.header()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;

    #[test]
    fn headers_come_back_as_they_were() {
        let at = |time| Some(Stamp { time, region: RegionId(7) });
        let two = Header { stamp: at(2), born: at(1), ..Header::default() };
        let all = [
            Header::default(),
            two.clone(),
            Header { ended: at(0), ..two.clone() },
            Header { regions: ["e".to_owned()].into(), ..two.clone() },
            Header { detached: true, ..two },
        ];
        let mut headers = Headers::default();
        for (at, header) in all.iter().enumerate() {
            headers.insert(&at.to_string(), header.clone());
        }
        assert_eq!(headers.iter().map(|(_, header)| header).collect::<Vec<_>>(), all);
        assert!(matches!(headers.0["1"], Kept::Stamps { .. }) && size_of::<Kept>() <= 40);
        headers.remove("1");
        assert!(headers.get("1").is_none() && headers.get("2").is_some());
    }
}
