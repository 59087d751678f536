//! The stored form of the marks of origins.
//!
//! Layout, little-endian:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 3 | reserved, 0 |
//! | 4 | 4 | CRC32C over bytes 0–3 and everything from 8 on |
//! | 8 | 8 | ledger of the last entry covered |
//! | 16 | 8 | entry of the last entry covered |
//! | 24 | 8 | when it was taken, ms since 1970 |
//! | 32 | 4 | marks that follow |
//!
//! and for each mark 36 bytes: origin region (4), origin incarnation (8), ledger (8) and entry (8) of the highest origin
//! position stored, last activity in ms since 1970 (8).
//!
//! Invariants: O5 what was encoded decodes to the same; O6 a decoder never panics and allocates no more than the bytes
//! that it was given call for.
//! Failure: [`OriginSnapshotError`]; the marks are then made of the log from its first entry.

use super::Source;
use meridian_types::{Classify, ErrorClass, Incarnation, Position, RegionId};

/// The version written.
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 36;
const MARK_BYTES: usize = 36;

/// The mark of one origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginMark {
    /// Region and incarnation.
    pub source: Source,
    /// Highest origin position stored.
    pub persisted: Position,
    /// When something came from there last, ms since 1970.
    pub last_active_ms: u64,
}

/// All marks up to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginSnapshot {
    /// The last entry that the marks know of.
    pub covered: Position,
    /// When it was taken, ms since 1970.
    pub taken_ms: u64,
    /// By region and incarnation.
    pub marks: Vec<OriginMark>,
}

/// Why bytes are no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginSnapshotError {
    /// They end too early, or go on too long.
    #[error("a snapshot of origins of {0} bytes does not end where it should")]
    Length(usize),
    /// Written by a later version.
    #[error("version {0} of the snapshot of origins is not known (known: {VERSION})")]
    Version(u8),
    /// The checksum does not match.
    #[error("the snapshot of origins is damaged: checksum {stored:#010x} is not {computed:#010x}")]
    Checksum {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
}

impl Classify for OriginSnapshotError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Corrupt
    }
}

fn checksum(raw: &[u8]) -> u32 {
    let (head, rest) = (raw.get(..4).unwrap_or_default(), raw.get(8..).unwrap_or_default());
    crc32c::crc32c_append(crc32c::crc32c(head), rest)
}

fn put_position(position: Position, raw: &mut Vec<u8>) {
    raw.extend_from_slice(&position.ledger_id.0.to_le_bytes());
    raw.extend_from_slice(&position.entry_id.0.to_le_bytes());
}

fn u64_at(raw: &[u8], at: usize) -> Option<u64> {
    raw.get(at..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
}

fn u32_at(raw: &[u8], at: usize) -> Option<u32> {
    raw.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn position_at(raw: &[u8], at: usize) -> Option<Position> {
    Some(Position::new(u64_at(raw, at)? as i64, u64_at(raw, at + 8)? as i64))
}

fn mark_of(raw: &[u8]) -> Option<OriginMark> {
    Some(OriginMark {
        source: Source { region: RegionId(u32_at(raw, 0)?), incarnation: Incarnation(u64_at(raw, 4)?) },
        persisted: position_at(raw, 12)?,
        last_active_ms: u64_at(raw, 28)?,
    })
}

impl OriginSnapshot {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = Vec::with_capacity(HEAD_BYTES + self.marks.len() * MARK_BYTES);
        raw.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        put_position(self.covered, &mut raw);
        raw.extend_from_slice(&self.taken_ms.to_le_bytes());
        raw.extend_from_slice(&(self.marks.len() as u32).to_le_bytes());
        for mark in &self.marks {
            raw.extend_from_slice(&mark.source.region.0.to_le_bytes());
            raw.extend_from_slice(&mark.source.incarnation.0.to_le_bytes());
            put_position(mark.persisted, &mut raw);
            raw.extend_from_slice(&mark.last_active_ms.to_le_bytes());
        }
        let crc = checksum(&raw);
        raw[4..8].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`OriginSnapshotError`] if they are short, long, damaged or of a later version.
    pub fn decode(raw: &[u8]) -> Result<Self, OriginSnapshotError> {
        let length = OriginSnapshotError::Length(raw.len());
        let version = *raw.first().ok_or(length)?;
        if version != VERSION {
            return Err(OriginSnapshotError::Version(version));
        }
        let (stored, computed) = (u32_at(raw, 4).ok_or(length)?, checksum(raw));
        if stored != computed {
            return Err(OriginSnapshotError::Checksum { stored, computed });
        }
        let covered = position_at(raw, 8).ok_or(length)?;
        let taken_ms = u64_at(raw, 24).ok_or(length)?;
        let count = u32_at(raw, 32).ok_or(length)? as usize;
        let body = raw.get(HEAD_BYTES..).unwrap_or_default();
        if body.len() % MARK_BYTES != 0 || body.len() / MARK_BYTES != count {
            return Err(length);
        }
        Ok(Self { covered, taken_ms, marks: body.chunks_exact(MARK_BYTES).filter_map(mark_of).collect() })
    }
}
