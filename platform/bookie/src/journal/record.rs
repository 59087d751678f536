//! The journal's bytes: file header and records.
//!
//! A journal file is named `{sequence:016x}-{epoch:016x}.journal`, so that a rename alone gives a recycled file its new
//! identity; the header repeats it. Everything is little-endian.
//!
//! File header, in the first [`BLOCK_BYTES`] (the rest of the block is zero):
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 8 | `MRDNJRNL` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | CRC32C over bytes 0–11 and 16–31 |
//! | 16 | 8 | sequence |
//! | 24 | 8 | epoch: drawn at random for each use of the file |
//!
//! Record, [`RECORD_HEADER_BYTES`] and the payload behind it; a sync group starts on a block boundary and is padded
//! with zeros to the next one:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C over bytes 4–47 |
//! | 4 | 4 | payload length |
//! | 8 | 1 | version, 1 |
//! | 9 | 1 | kind: 1 add, 2 fence, 3 last-add-confirmed |
//! | 10 | 1 | flags: bit 0 = written by recovery |
//! | 11 | 1 | reserved, 0 |
//! | 12 | 4 | digest of ids and payload |
//! | 16 | 8 | file epoch |
//! | 24 | 8 | ledger |
//! | 32 | 8 | entry (-1 unless an add) |
//! | 40 | 8 | last-add-confirmed |
//!
//! Invariants: R1 a record counts only if its CRC, its epoch and its digest agree, so that stale records of a recycled
//! file, torn writes and payloads that look like records are told from real ones (the epoch never leaves the machine).
//! Failure: decoders answer `None` or an error; they never panic and never allocate.
//! Must never know: files, threads.

use meridian_types::{EntryId, LedgerId};

/// Groups start and files grow in whole blocks of this size; it suits direct I/O everywhere.
pub const BLOCK_BYTES: usize = 4096;
/// Length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 48;
/// The version written.
pub const JOURNAL_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"MRDNJRNL";
const RECORD_VERSION: u8 = 1;
const FLAG_RECOVERY: u8 = 1;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// An entry was added.
    Add,
    /// The ledger was fenced (S3).
    Fence,
    /// An explicit last-add-confirmed (S1).
    LastAddConfirmed,
}

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it says.
    pub kind: RecordKind,
    /// Written by recovery.
    pub recovery: bool,
    /// Bytes of payload behind the header.
    pub payload_bytes: u32,
    /// Digest of ids and payload (adds only).
    pub digest: u32,
    /// The file's epoch.
    pub epoch: u64,
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The entry.
    pub entry_id: EntryId,
    /// The writer's last-add-confirmed.
    pub last_add_confirmed: EntryId,
}

impl RecordHeader {
    /// The bytes.
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut raw = [0u8; RECORD_HEADER_BYTES];
        raw[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        raw[8] = RECORD_VERSION;
        raw[9] = match self.kind {
            RecordKind::Add => 1,
            RecordKind::Fence => 2,
            RecordKind::LastAddConfirmed => 3,
        };
        raw[10] = if self.recovery { FLAG_RECOVERY } else { 0 };
        raw[12..16].copy_from_slice(&self.digest.to_le_bytes());
        raw[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        raw[24..32].copy_from_slice(&self.ledger_id.0.to_le_bytes());
        raw[32..40].copy_from_slice(&self.entry_id.0.to_le_bytes());
        raw[40..48].copy_from_slice(&self.last_add_confirmed.0.to_le_bytes());
        let crc = crc32c::crc32c(&raw[4..]);
        raw[..4].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// Reads a header of the given file epoch, or `None` if these bytes are not one.
    pub fn decode(bytes: &[u8], epoch: u64) -> Option<Self> {
        let raw: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk()?;
        if u64_at(raw, 16) != epoch || crc32c::crc32c(&raw[4..]) != u32_at(raw, 0) || raw[8] != RECORD_VERSION {
            return None;
        }
        let kind = match raw[9] {
            1 => RecordKind::Add,
            2 => RecordKind::Fence,
            3 => RecordKind::LastAddConfirmed,
            _ => return None,
        };
        Some(Self {
            kind,
            recovery: raw[10] & FLAG_RECOVERY != 0,
            payload_bytes: u32_at(raw, 4),
            digest: u32_at(raw, 12),
            epoch,
            ledger_id: LedgerId(u64_at(raw, 24) as i64),
            entry_id: EntryId(u64_at(raw, 32) as i64),
            last_add_confirmed: EntryId(u64_at(raw, 40) as i64),
        })
    }
}

/// Why a journal file's header is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileHeaderError {
    /// Not one, or damaged.
    Damaged,
    /// Written by a later version.
    Version(u32),
}

/// The identity of one use of a journal file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// Order of the files.
    pub sequence: u64,
    /// Tells this use's records from earlier ones.
    pub epoch: u64,
}

impl FileHeader {
    /// The bytes, at the start of the first block.
    pub fn encode(&self) -> [u8; 32] {
        let mut raw = [0u8; 32];
        raw[..8].copy_from_slice(MAGIC);
        raw[8..12].copy_from_slice(&JOURNAL_VERSION.to_le_bytes());
        raw[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        raw[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = file_header_crc(&raw);
        raw[12..16].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, FileHeaderError> {
        let raw: &[u8; 32] = bytes.first_chunk().ok_or(FileHeaderError::Damaged)?;
        if &raw[..8] != MAGIC || file_header_crc(raw) != u32_at(raw, 12) {
            return Err(FileHeaderError::Damaged);
        }
        match u32_at(raw, 8) {
            JOURNAL_VERSION => Ok(Self { sequence: u64_at(raw, 16), epoch: u64_at(raw, 24) }),
            later => Err(FileHeaderError::Version(later)),
        }
    }

    /// The file's name.
    pub fn file_name(&self) -> String {
        format!("{:016x}-{:016x}.journal", self.sequence, self.epoch)
    }

    /// The identity in a file's name, or `None` if it is not a journal file's.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let (sequence, epoch) = name.strip_suffix(".journal")?.split_once('-')?;
        if sequence.len() != 16 || epoch.len() != 16 {
            return None;
        }
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { sequence: number(sequence)?, epoch: number(epoch)? })
    }
}

/// `bytes` rounded up to whole blocks.
pub fn round_up_to_block(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64) * BLOCK_BYTES as u64
}

fn file_header_crc(raw: &[u8; 32]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&raw[..12]), &raw[16..])
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

    fn sample() -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Add,
            recovery: true,
            payload_bytes: 5,
            digest: 0x0403_0201,
            epoch: 0x1122_3344_5566_7788,
            ledger_id: LedgerId(7),
            entry_id: EntryId(8),
            last_add_confirmed: EntryId::NONE,
        }
    }

    #[test]
    fn golden_record() {
        let raw = sample().encode();
        assert_eq!(&raw[4..16], &[5, 0, 0, 0, 1, 1, 1, 0, 1, 2, 3, 4]);
        assert_eq!(&raw[16..32], &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&raw[32..48], &[8, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(raw[..4], crc32c::crc32c(&raw[4..]).to_le_bytes());
        assert_eq!(RecordHeader::decode(&raw, sample().epoch), Some(sample()));
        assert_eq!(RecordHeader::decode(&raw, 1), None, "another epoch is a stale record");
    }

    #[test]
    fn golden_file_header_and_name() {
        let header = FileHeader { sequence: 3, epoch: 0xab };
        let raw = header.encode();
        assert_eq!(&raw[..12], b"MRDNJRNL\x01\0\0\0");
        assert_eq!(&raw[16..], &[3, 0, 0, 0, 0, 0, 0, 0, 0xab, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(FileHeader::decode(&raw), Ok(header));
        assert_eq!(header.file_name(), "0000000000000003-00000000000000ab.journal");
        assert_eq!(FileHeader::from_file_name(&header.file_name()), Some(header));
        assert_eq!(FileHeader::from_file_name("pool-0000000000000003.free"), None);
    }

    #[test]
    fn a_flipped_byte_is_found() {
        for at in 0..RECORD_HEADER_BYTES {
            let mut raw = sample().encode();
            raw[at] ^= 0x10;
            assert_eq!(RecordHeader::decode(&raw, sample().epoch), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn headers_round_trip(payload_bytes: u32, digest: u32, epoch: u64, ids in any::<[i64; 3]>(), recovery: bool) {
            let header = RecordHeader {
                kind: RecordKind::Fence,
                recovery,
                payload_bytes,
                digest,
                epoch,
                ledger_id: LedgerId(ids[0]),
                entry_id: EntryId(ids[1]),
                last_add_confirmed: EntryId(ids[2]),
            };
            assert_eq!(RecordHeader::decode(&header.encode(), epoch), Some(header));
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>, epoch: u64) {
            let _ = RecordHeader::decode(&bytes, epoch);
            let _ = FileHeader::decode(&bytes);
        }
    }
}
