//! The entry envelope: what the broker writes in front of a message's bytes.
//!
//! Layout, little-endian, [`ENVELOPE_BYTES`] = 56 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | flags: bit 0 = the entry is a marker (never shown to a tenant) |
//! | 2 | 2 | reserved, 0 |
//! | 4 | 4 | CRC32C over bytes 0–3 and 8–55 |
//! | 8 | 8 | broker time, ms since 1970 |
//! | 16 | 8 | index of the last message in the entry (running message count of the partition, from 0) |
//! | 24 | 4 | messages in the entry |
//! | 28 | 4 | origin region ([`RegionId`]) |
//! | 32 | 8 | origin incarnation |
//! | 40 | 8 | origin ledger |
//! | 48 | 8 | origin entry |
//!
//! Invariants: V1 the origin of an entry published here is its own position; V2 the bytes behind the envelope are the
//! client's, untouched.
//! Failure: [`EnvelopeError`]; a decoder never panics.

use crate::entry::Head;
use meridian_types::{Incarnation, Position, RegionId};

/// The version written.
pub const ENVELOPE_VERSION: u8 = 1;
/// Length of an envelope in bytes.
pub const ENVELOPE_BYTES: usize = 56;
/// Flag bit 0: a marker, never shown to a tenant.
pub const FLAG_MARKER: u8 = 1;

/// What stands in front of the client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// See the layout.
    pub flags: u8,
    /// When the broker took the entry, ms since 1970.
    pub broker_time_ms: u64,
    /// Index of the last message in the entry.
    pub index: u64,
    /// Messages in the entry.
    pub messages: u32,
    /// The region where the entry was first stored.
    pub origin_region: RegionId,
    /// The topic's incarnation there.
    pub origin_incarnation: Incarnation,
    /// The entry's position there.
    pub origin: Position,
}

/// Why bytes are no envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Fewer bytes than [`ENVELOPE_BYTES`].
    #[error("entry of {0} bytes is shorter than its envelope ({ENVELOPE_BYTES} bytes)")]
    Short(usize),
    /// Written by a later version.
    #[error("envelope version {0} is not known (known: {ENVELOPE_VERSION})")]
    Version(u8),
    /// The checksum does not match.
    #[error("envelope checksum {stored:#010x} does not match its bytes ({computed:#010x})")]
    Checksum {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
}

impl Envelope {
    /// The bytes, as a head to stand in front of an entry's body.
    pub fn encode(&self) -> Head {
        let mut raw = [0u8; ENVELOPE_BYTES];
        raw[0] = ENVELOPE_VERSION;
        raw[1] = self.flags;
        raw[8..16].copy_from_slice(&self.broker_time_ms.to_le_bytes());
        raw[16..24].copy_from_slice(&self.index.to_le_bytes());
        raw[24..28].copy_from_slice(&self.messages.to_le_bytes());
        raw[28..32].copy_from_slice(&self.origin_region.0.to_le_bytes());
        raw[32..40].copy_from_slice(&self.origin_incarnation.0.to_le_bytes());
        raw[40..48].copy_from_slice(&self.origin.ledger_id.0.to_le_bytes());
        raw[48..56].copy_from_slice(&self.origin.entry_id.0.to_le_bytes());
        let crc = checksum(&raw);
        raw[4..8].copy_from_slice(&crc.to_le_bytes());
        Head::new(&raw)
    }

    /// Reads the envelope at the front of a stored entry; the client's bytes start at [`ENVELOPE_BYTES`].
    ///
    /// # Errors
    /// [`EnvelopeError`] if the bytes are short, of a later version or damaged.
    pub fn decode(entry: &[u8]) -> Result<Self, EnvelopeError> {
        let raw: &[u8; ENVELOPE_BYTES] = entry.first_chunk().ok_or(EnvelopeError::Short(entry.len()))?;
        if raw[0] != ENVELOPE_VERSION {
            return Err(EnvelopeError::Version(raw[0]));
        }
        let stored = u32_at(raw, 4);
        let computed = checksum(raw);
        if stored != computed {
            return Err(EnvelopeError::Checksum { stored, computed });
        }
        Ok(Self {
            flags: raw[1],
            broker_time_ms: u64_at(raw, 8),
            index: u64_at(raw, 16),
            messages: u32_at(raw, 24),
            origin_region: RegionId(u32_at(raw, 28)),
            origin_incarnation: Incarnation(u64_at(raw, 32)),
            origin: Position::new(u64_at(raw, 40) as i64, u64_at(raw, 48) as i64),
        })
    }
}

fn checksum(raw: &[u8; ENVELOPE_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&raw[..4]), &raw[8..])
}

fn u32_at(raw: &[u8; ENVELOPE_BYTES], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(raw: &[u8; ENVELOPE_BYTES], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Envelope {
        Envelope {
            flags: 0,
            broker_time_ms: 0x0102_0304_0506,
            index: 41,
            messages: 42,
            origin_region: RegionId(0xdead_beef),
            origin_incarnation: Incarnation(7),
            origin: Position::new(3, 4),
        }
    }

    #[test]
    fn golden_bytes() {
        let head = sample().encode();
        let raw = head.as_slice();
        assert_eq!(raw.len(), ENVELOPE_BYTES);
        assert_eq!(&raw[..4], &[1, 0, 0, 0]);
        assert_eq!(&raw[8..16], &[6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(&raw[16..32], &[41, 0, 0, 0, 0, 0, 0, 0, 42, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde]);
        assert_eq!(&raw[32..56], &[7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Envelope::decode(raw), Ok(sample()));
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let head = sample().encode();
        for at in 0..ENVELOPE_BYTES {
            let mut raw = head.as_slice().to_vec();
            raw[at] ^= 0x40;
            assert!(Envelope::decode(&raw).is_err(), "byte {at}");
        }
        assert_eq!(Envelope::decode(&[1; 10]), Err(EnvelopeError::Short(10)));
    }
}
