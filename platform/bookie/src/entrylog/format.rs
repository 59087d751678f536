//! The bytes of an entry log.
//!
//! A log is named `{id:08x}-{salt:08x}.log`; the salt, drawn at random, seeds every checksum, so that a payload cannot
//! pose as a record. Little-endian.
//!
//! Header, [`LOG_HEADER_BYTES`]: `MRDNELOG` (8), version 1 (4), CRC32C of bytes 0–11 and 16–23 from the salt (4),
//! id (4), salt (4), zeros (8).
//!
//! Record, [`RECORD_HEADER_BYTES`], payload behind it:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C over bytes 4–39, seeded with the salt |
//! | 4 | 4 | payload length |
//! | 8 | 1 | kind: 1 entry, 2 fence, 3 ledger map |
//! | 9 | 3 | reserved, 0 |
//! | 12 | 4 | digest of ids and payload |
//! | 16 | 8 | ledger |
//! | 24 | 8 | entry |
//! | 32 | 8 | last-add-confirmed |
//!
//! The last record of a log that was filled is its ledger map: (ledger 8, live bytes 8) for each ledger.
//!
//! Invariants: N1 a record counts only if its checksum and digest agree.
//! Failure: decoders answer `None`; they never panic.
//! Must never know: files, the index.

use meridian_bookie_api::entry::digest_of;
use meridian_types::{EntryId, LedgerId};

/// Length of a log's header.
pub const LOG_HEADER_BYTES: usize = 32;
/// Length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 40;
/// The version written.
pub const LOG_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"MRDNELOG";

/// The identity of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogName {
    /// Number; never reused in a folder.
    pub id: u32,
    /// Seed of its checksums.
    pub salt: u32,
}

impl LogName {
    /// The file's name.
    pub fn file_name(self) -> String {
        format!("{:08x}-{:08x}.log", self.id, self.salt)
    }

    /// The identity in a file's name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let (id, salt) = name.strip_suffix(".log")?.split_once('-')?;
        if id.len() != 8 || salt.len() != 8 {
            return None;
        }
        let number = |text| u32::from_str_radix(text, 16).ok();
        Some(Self { id: number(id)?, salt: number(salt)? })
    }

    /// The header's bytes.
    pub fn encode_header(self) -> [u8; LOG_HEADER_BYTES] {
        let mut raw = [0u8; LOG_HEADER_BYTES];
        raw[..8].copy_from_slice(MAGIC);
        raw[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
        raw[16..20].copy_from_slice(&self.id.to_le_bytes());
        raw[20..24].copy_from_slice(&self.salt.to_le_bytes());
        let crc = self.header_crc(&raw);
        raw[12..16].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// The version in a header, or `None` if it is damaged.
    pub fn decode_header(self, bytes: &[u8]) -> Option<u32> {
        let raw: &[u8; LOG_HEADER_BYTES] = bytes.first_chunk()?;
        (&raw[..8] == MAGIC && self.header_crc(raw) == u32_at(raw, 12)).then(|| u32_at(raw, 8))
    }

    fn header_crc(self, raw: &[u8; LOG_HEADER_BYTES]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.salt, &raw[..12]), &raw[16..24])
    }
}

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRecordKind {
    /// An entry.
    Entry,
    /// The ledger was fenced; no payload.
    Fence,
    /// Bytes per ledger in this log.
    LedgerMap,
}

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord {
    /// What it holds.
    pub kind: LogRecordKind,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// Digest of ids and payload.
    pub digest: u32,
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The entry (-1 if none).
    pub entry_id: EntryId,
    /// Last-add-confirmed.
    pub last_add_confirmed: EntryId,
}

impl LogRecord {
    /// The fence of a ledger.
    pub fn fence(ledger_id: LedgerId, last_add_confirmed: EntryId) -> Self {
        let digest = digest_of(ledger_id, EntryId::NONE, &[]);
        let kind = LogRecordKind::Fence;
        Self { kind, payload_bytes: 0, digest, ledger_id, entry_id: EntryId::NONE, last_add_confirmed }
    }

    /// Length on disk.
    pub fn disk_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.payload_bytes)
    }

    /// The header's bytes.
    pub fn encode(&self, salt: u32) -> [u8; RECORD_HEADER_BYTES] {
        let mut raw = [0u8; RECORD_HEADER_BYTES];
        raw[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        raw[8] = match self.kind {
            LogRecordKind::Entry => 1,
            LogRecordKind::Fence => 2,
            LogRecordKind::LedgerMap => 3,
        };
        raw[12..16].copy_from_slice(&self.digest.to_le_bytes());
        raw[16..24].copy_from_slice(&self.ledger_id.0.to_le_bytes());
        raw[24..32].copy_from_slice(&self.entry_id.0.to_le_bytes());
        raw[32..40].copy_from_slice(&self.last_add_confirmed.0.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &raw[4..]);
        raw[..4].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let raw: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk()?;
        let kind = match raw[8] {
            1 => LogRecordKind::Entry,
            2 => LogRecordKind::Fence,
            3 => LogRecordKind::LedgerMap,
            _ => return None,
        };
        (crc32c::crc32c_append(salt, &raw[4..]) == u32_at(raw, 0)).then(|| Self {
            kind,
            payload_bytes: u32_at(raw, 4),
            digest: u32_at(raw, 12),
            ledger_id: LedgerId(u64_at(raw, 16) as i64),
            entry_id: EntryId(u64_at(raw, 24) as i64),
            last_add_confirmed: EntryId(u64_at(raw, 32) as i64),
        })
    }

    /// Whether the payload is the one that was written (N1).
    pub fn matches(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_bytes as usize && digest_of(self.ledger_id, self.entry_id, payload) == self.digest
    }
}

/// The last record of a filled log: its ledger map.
pub fn encode_ledger_map(salt: u32, ledgers: &[(LedgerId, u64)]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(ledgers.len() * 16);
    for (ledger_id, bytes) in ledgers {
        payload.extend_from_slice(&ledger_id.0.to_le_bytes());
        payload.extend_from_slice(&bytes.to_le_bytes());
    }
    let (ledger_id, entry_id) = (LedgerId(-1), EntryId::NONE);
    let record = LogRecord {
        kind: LogRecordKind::LedgerMap,
        payload_bytes: payload.len() as u32,
        digest: digest_of(ledger_id, entry_id, &payload),
        ledger_id,
        entry_id,
        last_add_confirmed: EntryId::NONE,
    };
    let mut out = record.encode(salt).to_vec();
    out.append(&mut payload);
    out
}

/// The pairs of a ledger map's payload.
pub fn decode_ledger_map(payload: &[u8]) -> Vec<(LedgerId, u64)> {
    payload.chunks_exact(16).map(|pair| (LedgerId(u64_at(pair, 0) as i64), u64_at(pair, 8))).collect()
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    #[test]
    fn golden_bytes() {
        let name = LogName { id: 2, salt: 0xaabb_ccdd };
        assert_eq!(name.file_name(), "00000002-aabbccdd.log");
        assert_eq!(LogName::from_file_name(&name.file_name()), Some(name));
        let header = name.encode_header();
        assert_eq!(&header[..12], b"MRDNELOG\x01\0\0\0");
        assert_eq!(&header[16..24], &[2, 0, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa]);
        assert_eq!(name.decode_header(&header), Some(1));
        assert_eq!(LogName { id: 2, salt: 1 }.decode_header(&header), None);
        let record = LogRecord { payload_bytes: 6, ..LogRecord::fence(LedgerId(4), EntryId(5)) };
        let raw = record.encode(9);
        assert_eq!(&raw[4..12], &[6, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&raw[16..24], &[4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&raw[24..], &[255, 255, 255, 255, 255, 255, 255, 255, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(raw[..4], crc32c::crc32c_append(9, &raw[4..]).to_le_bytes());
    }

    #[test]
    fn golden_ledger_map() {
        let ledgers = [(LedgerId(1), 10), (LedgerId(7), 20)];
        let raw = encode_ledger_map(3, &ledgers);
        let record = LogRecord::decode(&raw, 3).unwrap();
        assert_eq!((record.kind, record.payload_bytes), (LogRecordKind::LedgerMap, 32));
        let payload = &raw[RECORD_HEADER_BYTES..];
        assert_eq!(payload[..16], [1, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
        assert!(record.matches(payload));
        assert_eq!(decode_ledger_map(payload), ledgers);
    }

    proptest! {
        #[test]
        fn records_round_trip(payload_bytes: u32, digest: u32, ids in any::<[i64; 3]>(), salt: u32, flip in 0..40usize) {
            let record = LogRecord {
                kind: LogRecordKind::Entry,
                payload_bytes,
                digest,
                ledger_id: LedgerId(ids[0]),
                entry_id: EntryId(ids[1]),
                last_add_confirmed: EntryId(ids[2]),
            };
            let mut raw = record.encode(salt);
            assert_eq!(LogRecord::decode(&raw, salt), Some(record));
            raw[flip] ^= 1;
            assert_eq!(LogRecord::decode(&raw, salt), None);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>, salt: u32) {
            let _ = LogRecord::decode(&bytes, salt);
            let _ = decode_ledger_map(&bytes);
        }
    }
}
