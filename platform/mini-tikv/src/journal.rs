//! The file that keeps a server's data over a restart: every change as the request that made it.
//!
//! Layout: records one after another, each `length u32 | crc32c u32 | kind u8 | body`, little-endian; the checksum covers
//! kind and body, the length counts both. Bodies are protocol messages, or one `u64` for kinds that are a number.
//! Invariants: T3 a record is handed to the system before its change is answered; replay gives the same state.
//! Failure: a torn record at the end is cut off; one in the middle ends the start with [`JournalError::Damaged`].
//! Must never know: what the requests do.

use crate::pb::kvrpcpb as kv;
use prost::Message;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

const HEADER_BYTES: usize = 8;
/// Longest record; a transaction of the largest size fits well.
const MAX_RECORD_BYTES: usize = 64 * 1024 * 1024;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file can't be read or written.
    #[error("journal: {0}")]
    Io(#[from] std::io::Error),
    /// A record is not what was written.
    #[error("journal is damaged at byte {0}")]
    Damaged(u64),
}

/// A change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Prewrite(kv::PrewriteRequest),
    Commit(kv::CommitRequest),
    Rollback(kv::BatchRollbackRequest),
    HeartBeat(kv::TxnHeartBeatRequest),
    CheckStatus(kv::CheckTxnStatusRequest),
    Resolve(kv::ResolveLockRequest),
    TsoLimit(u64),
    Epoch(u64),
    SafePoint(u64),
}

impl Change {
    fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Change::Prewrite(request) => (1, request.encode_to_vec()),
            Change::Commit(request) => (2, request.encode_to_vec()),
            Change::Rollback(request) => (3, request.encode_to_vec()),
            Change::HeartBeat(request) => (4, request.encode_to_vec()),
            Change::CheckStatus(request) => (5, request.encode_to_vec()),
            Change::Resolve(request) => (6, request.encode_to_vec()),
            Change::TsoLimit(limit_ms) => (7, limit_ms.to_le_bytes().to_vec()),
            Change::Epoch(epoch) => (8, epoch.to_le_bytes().to_vec()),
            Change::SafePoint(ts) => (9, ts.to_le_bytes().to_vec()),
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let number = || Some(u64::from_le_bytes(body.try_into().ok()?));
        Some(match kind {
            1 => Change::Prewrite(Message::decode(body).ok()?),
            2 => Change::Commit(Message::decode(body).ok()?),
            3 => Change::Rollback(Message::decode(body).ok()?),
            4 => Change::HeartBeat(Message::decode(body).ok()?),
            5 => Change::CheckStatus(Message::decode(body).ok()?),
            6 => Change::Resolve(Message::decode(body).ok()?),
            7 => Change::TsoLimit(number()?),
            8 => Change::Epoch(number()?),
            9 => Change::SafePoint(number()?),
            _ => return None,
        })
    }
}

/// The open file, at its end.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    /// Opens the journal of a folder and gives every change to `apply`.
    pub(crate) fn open(folder: &Path, mut apply: impl FnMut(Change)) -> Result<Self, JournalError> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join("journal");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let length = file.metadata()?.len();
        let mut at = 0;
        let mut reader = std::io::BufReader::new(&mut file);
        while let Some((change, bytes)) = read_record(&mut reader, at, length)? {
            apply(change);
            at += bytes;
        }
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(Self { file })
    }

    pub(crate) fn write(&mut self, change: &Change) -> Result<(), JournalError> {
        let (kind, body) = change.encode();
        let mut record = Vec::with_capacity(HEADER_BYTES + 1 + body.len());
        record.extend_from_slice(&(body.len() as u32 + 1).to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&[kind]), &body);
        record.extend_from_slice(&checksum.to_le_bytes());
        record.push(kind);
        record.extend_from_slice(&body);
        self.file.write_all(&record)?;
        Ok(())
    }
}

/// The record at `at` with its size; `None` at the end or at a torn last record.
fn read_record(reader: &mut impl Read, at: u64, length: u64) -> Result<Option<(Change, u64)>, JournalError> {
    let rest = length - at;
    if rest < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let [a, b, c, d, crc @ ..] = header;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    let total = (HEADER_BYTES + bytes) as u64;
    if total > rest {
        return Ok(None);
    }
    if bytes == 0 || bytes > MAX_RECORD_BYTES {
        return Err(JournalError::Damaged(at));
    }
    let mut record = vec![0; bytes];
    reader.read_exact(&mut record)?;
    let intact = crc32c::crc32c(&record) == u32::from_le_bytes(crc);
    match Change::decode(record[0], &record[1..]).filter(|_| intact) {
        Some(change) => Ok(Some((change, total))),
        None if total == rest => Ok(None),
        None => Err(JournalError::Damaged(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(folder: &Path) -> Result<Vec<Change>, JournalError> {
        let mut changes = Vec::new();
        Journal::open(folder, |change| changes.push(change))?;
        Ok(changes)
    }

    #[test]
    fn what_was_written_comes_back_without_a_torn_end() {
        let folder = tempfile::tempdir().unwrap();
        let commit = kv::CommitRequest { start_version: 1, commit_version: 2, ..kv::CommitRequest::default() };
        let changes = [Change::Epoch(1), Change::Commit(commit), Change::TsoLimit(7)];
        let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
        for change in &changes {
            journal.write(change).unwrap();
        }
        assert_eq!(replay(folder.path()).unwrap(), changes);
        let path = folder.path().join("journal");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..9], [9, 0, 0, 0, 19, 231, 170, 74, 8], "length, checksum, kind");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(replay(folder.path()).unwrap(), changes[..2]);
        let mut damaged = bytes;
        damaged[10] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(matches!(replay(folder.path()), Err(JournalError::Damaged(0))));
    }
}
