//! Ids of nodes, regions, owners and topic incarnations.

use std::fmt;
use std::sync::Arc;

/// The stable id of a storage node, as written in its cookie (`host:port` or a chosen name).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookieId(Arc<str>);

impl BookieId {
    /// Wraps an id; any non-empty text is one.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BookieId({})", self.0)
    }
}

/// A region (Pulsar: cluster) as it stands in stored entries: CRC32C of its name, checked for collisions when a
/// region is registered. Zero is no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RegionId(pub u32);

impl RegionId {
    /// The id of a region by its name: CRC32C (Castagnoli, reflected); zero, which is no region, becomes 1.
    pub fn of(name: &str) -> Self {
        let mut crc = !0u32;
        for byte in name.bytes() {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        Self((!crc).max(1))
    }
}

/// One life of a topic: drawn at creation, so that a topic deleted and created again is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Incarnation(pub u64);

/// The epoch of an owner (a broker that opened a managed ledger); a higher one fences a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct OwnerEpoch(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_ids_are_castagnoli() {
        // The check value of CRC-32C.
        assert_eq!(RegionId::of("123456789"), RegionId(0xe306_9283));
        assert_eq!(RegionId::of(""), RegionId(1));
    }
}
