//! One entry of a compacted ledger.
//!
//! Layout, little-endian, [`STORED_HEAD_BYTES`] = 48 bytes, then the client's bytes as in the log:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 3 | reserved, 0 |
//! | 4 | 4 | CRC32C over bytes 0–3 and 8–47 |
//! | 8 | 8 | ledger of the entry in the log |
//! | 16 | 8 | entry in the log |
//! | 24 | 8 | index of its last message |
//! | 32 | 8 | when the broker took it, ms since 1970 |
//! | 40 | 4 | messages in it, the compacted ones included |
//! | 44 | 4 | reserved, 0 |
//!
//! Invariants: C8 entries of a compacted ledger rise by their position in the log.
//! Failure: [`CompactionError::Corrupt`]; a decoder never panics.

use super::CompactionError;
use bytes::Bytes;
use meridian_bookie_api::{EntryBytes, Head};
use meridian_managed_ledger::LogEntry;
use meridian_types::{Incarnation, Position, RegionId};

const VERSION: u8 = 1;
/// Length of the head in bytes.
pub const STORED_HEAD_BYTES: usize = 48;

fn checksum(head: &[u8; STORED_HEAD_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..4]), &head[8..])
}

/// The bytes to append for an entry with these client's bytes.
pub(super) fn encode(entry: &LogEntry, payload: Bytes) -> EntryBytes {
    let mut head = [0u8; STORED_HEAD_BYTES];
    head[0] = VERSION;
    head[8..16].copy_from_slice(&entry.position.ledger_id.0.to_le_bytes());
    head[16..24].copy_from_slice(&entry.position.entry_id.0.to_le_bytes());
    head[24..32].copy_from_slice(&entry.index.to_le_bytes());
    head[32..40].copy_from_slice(&entry.broker_time_ms.to_le_bytes());
    head[40..44].copy_from_slice(&entry.messages.to_le_bytes());
    let crc = checksum(&head);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    EntryBytes { head: Head::new(&head), body: payload }
}

fn u64_at(head: &[u8; STORED_HEAD_BYTES], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// Reads a stored entry.
pub(super) fn decode(stored: &Bytes) -> Result<LogEntry, CompactionError> {
    let corrupt = |what: String| CompactionError::Corrupt(what);
    let head: &[u8; STORED_HEAD_BYTES] =
        stored.first_chunk().ok_or_else(|| corrupt(format!("an entry of {} bytes has no head", stored.len())))?;
    if head[0] != VERSION {
        return Err(corrupt(format!("entry version {} is not known (known: {VERSION})", head[0])));
    }
    let crc = (u64_at(head, 0) >> 32) as u32;
    if crc != checksum(head) {
        return Err(corrupt("the head's checksum does not match".to_owned()));
    }
    let position = Position::new(u64_at(head, 8) as i64, u64_at(head, 16) as i64);
    Ok(LogEntry {
        position,
        index: u64_at(head, 24),
        messages: u64_at(head, 40) as u32,
        marker: false,
        broker_time_ms: u64_at(head, 32),
        origin: (RegionId::default(), Incarnation::default(), position),
        payload: stored.slice(STORED_HEAD_BYTES..),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LogEntry {
        LogEntry {
            position: Position::new(3, 4),
            index: 5,
            messages: 6,
            marker: false,
            broker_time_ms: 7,
            origin: (RegionId::default(), Incarnation::default(), Position::new(3, 4)),
            payload: Bytes::from_static(b"body"),
        }
    }

    #[test]
    fn golden_bytes() {
        let raw = encode(&sample(), sample().payload).to_bytes();
        let mut expected = vec![1, 0, 0, 0];
        expected.extend_from_slice(&raw[4..8]);
        for number in [3u64, 4, 5, 7, 6] {
            expected.extend_from_slice(&number.to_le_bytes());
        }
        expected.extend_from_slice(b"body");
        assert_eq!(raw, expected);
        let back = decode(&raw).unwrap();
        assert_eq!((back.position, back.index, back.messages, back.broker_time_ms), (Position::new(3, 4), 5, 6, 7));
        assert_eq!(&back.payload[..], b"body");
    }

    #[test]
    fn damage_is_found() {
        let raw = encode(&sample(), Bytes::new()).to_bytes();
        for at in 0..raw.len() {
            let mut bad = raw.to_vec();
            bad[at] ^= 0x20;
            assert!(decode(&bad.into()).is_err(), "byte {at}");
            assert!(decode(&raw.slice(..at)).is_err(), "cut at {at}");
        }
    }
}
