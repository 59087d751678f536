//! Appends to entry logs in large sequential writes.
//!
//! Invariants: M4 a place is valid only after [`LogWriter::sync`] returned; M5 after an error the writer goes on in a
//! new log, what it had appended since the last sync counts as never written and is taken off the disk, so that repeated
//! failures on a full disk do not fill it further.
//! Failure: [`StorageError`]; see M5.

use super::format::{LOG_HEADER_BYTES, LogRecord, RECORD_HEADER_BYTES, encode_ledger_map};
use super::{EntryLogs, LogInfo};
use crate::error::StorageError;
use crate::index::Place;
use meridian_types::LedgerId;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Appends are gathered to writes of this size.
const BUFFER_BYTES: usize = 1 << 20;
/// A long flush syncs after so many bytes, so that the last sync is no burst that delays the journal.
const SYNC_EVERY_BYTES: u64 = 16 << 20;

struct Current {
    info: LogInfo,
    file: File,
    /// End of what was handed to the file.
    written_bytes: u64,
    unsynced_bytes: u64,
    /// End of what a [`LogWriter::sync`] has made durable; 0 = nothing.
    durable_bytes: u64,
}

/// See the module.
pub(crate) struct LogWriter {
    logs: Arc<EntryLogs>,
    current: Option<Current>,
    buffer: Vec<u8>,
    /// Filled since the last sync, to be sealed when the index knows their content.
    filled: Vec<Current>,
}

impl LogWriter {
    pub fn new(logs: Arc<EntryLogs>) -> Self {
        Self { logs, current: None, buffer: Vec::new(), filled: Vec::new() }
    }

    /// Appends a record whose payload comes in parts.
    pub fn append(&mut self, record: &LogRecord, parts: &[&[u8]]) -> Result<Place, StorageError> {
        let full = self.current.as_ref().is_some_and(|current| {
            current.written_bytes + self.buffer.len() as u64 + record.disk_bytes() > self.logs.log_bytes_max
                && current.written_bytes + self.buffer.len() as u64 > LOG_HEADER_BYTES as u64
        });
        if full {
            self.write_buffer()?;
            self.filled.extend(self.current.take());
        }
        let current = match &mut self.current {
            Some(current) => current,
            none => {
                let (info, file) = self.logs.create()?;
                none.insert(Current {
                    info,
                    file,
                    written_bytes: LOG_HEADER_BYTES as u64,
                    unsynced_bytes: 0,
                    durable_bytes: 0,
                })
            }
        };
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(BUFFER_BYTES + RECORD_HEADER_BYTES);
        }
        let place = Place {
            log: current.info.name.id,
            offset_bytes: current.written_bytes + self.buffer.len() as u64,
            payload_bytes: record.payload_bytes,
        };
        self.buffer.extend_from_slice(&record.encode(current.info.name.salt));
        for part in parts {
            let mut part = *part;
            while self.buffer.len() + part.len() > BUFFER_BYTES {
                let take = BUFFER_BYTES.saturating_sub(self.buffer.len());
                self.buffer.extend_from_slice(&part[..take]);
                part = &part[take..];
                self.write_buffer()?;
            }
            self.buffer.extend_from_slice(part);
        }
        Ok(place)
    }

    fn write_buffer(&mut self) -> Result<(), StorageError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let io = |action, source| StorageError::io(action, &current.info.path, source);
        current.file.write_all_at(&self.buffer, current.written_bytes).map_err(|e| io("write", e))?;
        current.unsynced_bytes += self.buffer.len() as u64;
        if current.unsynced_bytes >= SYNC_EVERY_BYTES {
            current.file.sync_data().map_err(|e| io("sync", e))?;
            current.unsynced_bytes = 0;
        }
        current.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes everything appended durable.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.write_buffer()?;
        self.buffer = Vec::new();
        for current in self.filled.iter_mut().chain(&mut self.current) {
            if current.unsynced_bytes > 0 {
                current.file.sync_data().map_err(|e| StorageError::io("sync", &current.info.path, e))?;
                current.unsynced_bytes = 0;
            }
            current.durable_bytes = current.written_bytes;
        }
        Ok(())
    }

    /// Gives filled logs their ledger map. After the index was updated.
    pub fn seal_filled(
        &mut self,
        ledgers_of: impl Fn(u32) -> Result<Vec<(LedgerId, u64)>, StorageError>,
    ) -> Result<(), StorageError> {
        while let Some(log) = self.filled.last() {
            let map = encode_ledger_map(log.info.name.salt, &ledgers_of(log.info.name.id)?);
            let io = |action, source| StorageError::io(action, &log.info.path, source);
            log.file.write_all_at(&map, log.written_bytes).map_err(|e| io("write", e))?;
            log.file.sync_data().map_err(|e| io("sync", e))?;
            self.logs.finished(log.info.name.id);
            self.filled.pop();
        }
        Ok(())
    }

    /// Leaves the current log, so that it may be compacted or deleted. What was appended must be synced.
    pub fn leave(&mut self) {
        self.filled.extend(self.current.take());
    }

    /// Forgets what was appended since the last sync (M5).
    pub fn abandon(&mut self) {
        self.buffer = Vec::new();
        for log in self.filled.drain(..).chain(self.current.take()) {
            self.logs.finished(log.info.name.id);
            let taken_off = match log.durable_bytes {
                0 => self.logs.delete(log.info.name.id).map(drop),
                durable => log.file.set_len(durable).map_err(|e| StorageError::io("cut", &log.info.path, e)),
            };
            if let Err(error) = taken_off {
                tracing::warn!(%error, "the rest of a failed flush stays until it is collected");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entrylog::format::LogRecordKind;
    use meridian_types::EntryId;

    #[test]
    fn a_failed_flush_leaves_only_what_was_synced_before() {
        let dir = tempfile::tempdir().unwrap();
        let logs = EntryLogs::open(&[dir.path().to_owned()], 1 << 30).unwrap();
        let mut writer = LogWriter::new(Arc::clone(&logs));
        let payload = vec![7; 3 << 20];
        let record = LogRecord {
            kind: LogRecordKind::Entry,
            payload_bytes: payload.len() as u32,
            digest: 0,
            ledger_id: LedgerId(1),
            entry_id: EntryId(0),
            last_add_confirmed: EntryId::NONE,
        };
        let len = |log: u32| {
            let info = logs.list().into_iter().find(|info| info.name.id == log);
            info.map(|info| std::fs::metadata(info.path).unwrap().len())
        };
        let first = writer.append(&record, &[&payload]).unwrap().log;
        writer.sync().unwrap();
        let synced = len(first);
        assert_eq!(synced, Some(LOG_HEADER_BYTES as u64 + record.disk_bytes()));
        writer.append(&record, &[&payload]).unwrap();
        assert!(len(first) > synced);
        writer.abandon();
        assert_eq!(len(first), synced);
        let second = writer.append(&record, &[&payload]).unwrap().log;
        assert!(second != first && len(second).is_some());
        writer.abandon();
        assert_eq!((len(first), len(second)), (synced, None));
    }
}
