//! Which region holds a key, and the encoding of region bounds.
//!
//! Role: a fixed number of regions that cut the whole key space; their epoch is one number that a test can raise.
//! Invariants: bounds are sorted and start with the empty key; [`decode`] undoes [`encode`]; T2.
//! Failure: an unknown region is `None`.
//! Must never know: transactions.

use crate::pb::metapb;

const GROUP_BYTES: usize = 8;
const FIRST_REGION: u64 = 100;
const FIRST_PEER: u64 = 1000;
/// The only store.
pub(crate) const STORE: u64 = 1;

/// A key as region bounds have it: groups of eight bytes, each followed by how many of them count.
pub(crate) fn encode(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity((key.len() / GROUP_BYTES + 1) * (GROUP_BYTES + 1));
    let mut rest = key;
    loop {
        let (group, after) = rest.split_at(rest.len().min(GROUP_BYTES));
        let padding = GROUP_BYTES - group.len();
        out.extend_from_slice(group);
        out.resize(out.len() + padding, 0);
        out.push(0xff - padding as u8);
        if padding > 0 {
            return out;
        }
        rest = after;
    }
}

/// The regions of a server.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Start keys, not encoded; the first is empty.
    starts: Vec<Vec<u8>>,
    epoch: u64,
}

impl Regions {
    /// Cuts the key space after `prefix` into `count` regions by the bytes that follow it.
    pub(crate) fn new(count: usize, prefix: &[u8], epoch: u64) -> Self {
        let mut starts = vec![Vec::new()];
        for index in 1..count.max(1) {
            let mut start = prefix.to_vec();
            start.extend_from_slice(&((0x1_0000 * index / count) as u16).to_be_bytes());
            starts.push(start);
        }
        Self { starts, epoch }
    }

    /// Cuts the key space at the given keys.
    pub(crate) fn at(cuts: &[Vec<u8>], epoch: u64) -> Self {
        let mut starts = vec![Vec::new()];
        starts.extend(cuts.iter().filter(|cut| !cut.is_empty()).cloned());
        starts.sort();
        starts.dedup();
        Self { starts, epoch }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes every client's picture of the regions stale.
    pub(crate) fn raise_epoch(&mut self) {
        self.epoch += 1;
    }

    /// The region of an encoded key.
    pub(crate) fn by_encoded_key(&self, key: &[u8]) -> metapb::Region {
        let index = self.starts.partition_point(|start| start.is_empty() || encode(start).as_slice() <= key);
        self.describe(index.saturating_sub(1))
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<metapb::Region> {
        let index = id.checked_sub(FIRST_REGION)? as usize;
        (index < self.starts.len()).then(|| self.describe(index))
    }

    /// The plain bounds of a region; an empty end is no end.
    pub(crate) fn bounds(&self, id: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        let index = id.checked_sub(FIRST_REGION)? as usize;
        let start = self.starts.get(index)?;
        Some((start.clone(), self.starts.get(index + 1).cloned().unwrap_or_default()))
    }

    fn describe(&self, index: usize) -> metapb::Region {
        let bound = |at: usize| match self.starts.get(at) {
            Some(start) if !start.is_empty() => encode(start),
            _ => Vec::new(),
        };
        metapb::Region {
            id: FIRST_REGION + index as u64,
            start_key: bound(index),
            end_key: bound(index + 1),
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: self.epoch }),
            peers: vec![metapb::Peer { id: FIRST_PEER + index as u64, store_id: STORE }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn bounds_are_encoded_as_the_protocol_has_them() {
        assert_eq!(encode(b""), [0, 0, 0, 0, 0, 0, 0, 0, 247]);
        assert_eq!(encode(b"abc"), *b"abc\0\0\0\0\0\xfa");
        assert_eq!(encode(b"12345678"), *b"12345678\xff\0\0\0\0\0\0\0\0\xf7");
    }

    #[test]
    fn every_key_has_one_region_and_the_epoch_grows() {
        let mut regions = Regions::new(45, b"m", 3);
        assert_eq!(regions.by_encoded_key(&encode(b"a")).id, 100);
        assert_eq!(regions.by_encoded_key(&encode(b"m\xff\xff\xff")).id, 144);
        assert_eq!(regions.by_id(144).unwrap().end_key, b"");
        assert!(regions.by_id(145).is_none() && regions.by_id(99).is_none());
        regions.raise_epoch();
        assert_eq!(regions.by_id(100).unwrap().region_epoch.unwrap().version, 4);
    }

    proptest! {
        #[test]
        fn encoding_keeps_the_order(a in any::<Vec<u8>>(), b in any::<Vec<u8>>()) {
            prop_assert_eq!(a.cmp(&b), encode(&a).cmp(&encode(&b)));
        }
    }
}
