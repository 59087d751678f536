//! The stored form of deduplication marks.
//!
//! Layout, little-endian:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 or 2 |
//! | 1 | 1 | version 2: bit 0 = sequence ids are known one by one; version 1: reserved, 0 |
//! | 2 | 2 | reserved, 0 |
//! | 4 | 4 | CRC32C over bytes 0–3 and everything from 8 on |
//! | 8 | 8 | ledger of the last entry covered |
//! | 16 | 8 | entry of the last entry covered |
//! | 24 | 8 | when it was taken, ms since 1970 |
//! | 32 | 4 | producers that follow |
//!
//! and for each producer: length of its name (2), sequence id (8), last activity in ms since 1970 (8), parts seen of the
//! chunked message behind it (4; 0 = none) and only if there are some its sequence id (8) and uuid hash (8), in version 2
//! the number of ranges of stored sequence ids (2) and each one's first and last id (16), then the name. Version 2 is
//! written only with its bit.
//!
//! Invariants: U6 what was encoded decodes to the same; U7 a decoder never panics and allocates no more than the bytes
//! that it was given call for.
//! Failure: [`SnapshotError`]; the marks are then made of the log from its first entry.

use super::mark::{Mark, Partial};
use super::ranges::Ranges;
use meridian_types::{Classify, ErrorClass, Position};

/// The version written, and the one written with ranges.
const VERSION: u8 = 1;
const VERSION_EXACT: u8 = 2;
const HEAD_BYTES: usize = 36;
/// A producer with an empty name and no parts.
const PRODUCER_BYTES_MIN: usize = 22;

/// The marks of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotProducer {
    /// Its name.
    pub name: String,
    /// Its persisted mark.
    pub mark: Mark,
    /// Stored sequence ids, if they are known one by one.
    pub ranges: Ranges,
    /// When it last did something, ms since 1970.
    pub last_active_ms: u64,
}

/// All persisted marks up to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry that the marks know of.
    pub covered: Position,
    /// When it was taken, ms since 1970.
    pub taken_ms: u64,
    /// Stored sequence ids are known one by one.
    pub exact: bool,
    /// By name.
    pub producers: Vec<SnapshotProducer>,
}

/// Why bytes are no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// They end too early, or go on too long.
    #[error("a deduplication snapshot of {0} bytes does not end where it should")]
    Length(usize),
    /// Written by a later version.
    #[error("deduplication snapshot version {0} is not known (known: {VERSION} and {VERSION_EXACT})")]
    Version(u8),
    /// The checksum does not match.
    #[error("deduplication snapshot is damaged: checksum {stored:#010x} is not {computed:#010x}")]
    Checksum {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// A name is no text.
    #[error("deduplication snapshot holds a producer name that is not UTF-8")]
    Name,
}

impl Classify for SnapshotError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Corrupt
    }
}

pub(super) fn checksum(raw: &[u8]) -> u32 {
    let head = raw.get(..4).unwrap_or_default();
    let rest = raw.get(8..).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c(head), rest)
}

/// Takes fixed pieces from the front.
struct Cut<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Cut<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], SnapshotError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(SnapshotError::Length(self.total))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(SnapshotError::Length(self.total))?;
        self.rest = rest;
        Ok(*taken)
    }
}

impl Snapshot {
    /// The bytes. Producers with names longer than 65,535 bytes are left out.
    pub fn encode(&self) -> Vec<u8> {
        let producers: Vec<_> = self.producers.iter().filter(|one| one.name.len() <= usize::from(u16::MAX)).collect();
        let names: usize = producers.iter().map(|one| one.name.len()).sum();
        let mut raw = Vec::with_capacity(HEAD_BYTES + names + producers.len() * (PRODUCER_BYTES_MIN + 16));
        let version = if self.exact { VERSION_EXACT } else { VERSION };
        raw.extend_from_slice(&[version, u8::from(self.exact), 0, 0, 0, 0, 0, 0]);
        raw.extend_from_slice(&self.covered.ledger_id.0.to_le_bytes());
        raw.extend_from_slice(&self.covered.entry_id.0.to_le_bytes());
        raw.extend_from_slice(&self.taken_ms.to_le_bytes());
        raw.extend_from_slice(&(producers.len() as u32).to_le_bytes());
        for one in producers {
            raw.extend_from_slice(&(one.name.len() as u16).to_le_bytes());
            raw.extend_from_slice(&one.mark.sequence.to_le_bytes());
            raw.extend_from_slice(&one.last_active_ms.to_le_bytes());
            match one.mark.partial {
                Some(partial) if partial.next > 0 => {
                    raw.extend_from_slice(&partial.next.to_le_bytes());
                    raw.extend_from_slice(&partial.sequence.to_le_bytes());
                    raw.extend_from_slice(&partial.uuid_hash.to_le_bytes());
                }
                _ => raw.extend_from_slice(&0u32.to_le_bytes()),
            }
            if self.exact {
                raw.extend_from_slice(&(one.ranges.pairs().len() as u16).to_le_bytes());
                for (first, last) in one.ranges.pairs() {
                    raw.extend_from_slice(&first.to_le_bytes());
                    raw.extend_from_slice(&last.to_le_bytes());
                }
            }
            raw.extend_from_slice(one.name.as_bytes());
        }
        let crc = checksum(&raw);
        raw[4..8].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`SnapshotError`] if they are short, long, damaged or of a later version.
    pub fn decode(raw: &[u8]) -> Result<Self, SnapshotError> {
        let mut cut = Cut { rest: raw, total: raw.len() };
        let [version, flags, ..] = cut.array::<4>()?;
        let exact = version == VERSION_EXACT && flags & 1 == 1;
        if version != VERSION && !exact {
            return Err(SnapshotError::Version(version));
        }
        let stored = u32::from_le_bytes(cut.array()?);
        let computed = checksum(raw);
        if stored != computed {
            return Err(SnapshotError::Checksum { stored, computed });
        }
        let covered = Position::new(i64::from_le_bytes(cut.array()?), i64::from_le_bytes(cut.array()?));
        let taken_ms = u64::from_le_bytes(cut.array()?);
        let count = u32::from_le_bytes(cut.array()?) as usize;
        let mut producers = Vec::with_capacity(count.min(cut.rest.len() / PRODUCER_BYTES_MIN));
        for _ in 0..count {
            producers.push(Self::decode_producer(&mut cut, exact)?);
        }
        if !cut.rest.is_empty() {
            return Err(SnapshotError::Length(raw.len()));
        }
        Ok(Self { covered, taken_ms, exact, producers })
    }

    fn decode_producer(cut: &mut Cut<'_>, exact: bool) -> Result<SnapshotProducer, SnapshotError> {
        let name_bytes = usize::from(u16::from_le_bytes(cut.array()?));
        let sequence = i64::from_le_bytes(cut.array()?);
        let last_active_ms = u64::from_le_bytes(cut.array()?);
        let next = u32::from_le_bytes(cut.array()?);
        let mut partial = None;
        if next > 0 {
            let sequence = i64::from_le_bytes(cut.array()?);
            partial = Some(Partial { sequence, uuid_hash: u64::from_le_bytes(cut.array()?), next });
        }
        let count = if exact { u16::from_le_bytes(cut.array()?) } else { 0 };
        let mut ranges = Ranges::default();
        for _ in 0..count {
            let first = i64::from_le_bytes(cut.array()?);
            ranges.insert(first, i64::from_le_bytes(cut.array()?));
        }
        let name = std::str::from_utf8(cut.bytes(name_bytes)?).map_err(|_| SnapshotError::Name)?;
        Ok(SnapshotProducer { name: name.to_owned(), mark: Mark { sequence, partial }, ranges, last_active_ms })
    }
}
