//! Walks one entry log from front to back, for compaction and for a rebuild of the index.
//!
//! Invariants: N2 memory is bounded by one payload plus [`WINDOW_BYTES`]; N3 damage is passed byte by byte until a
//! record of this log begins (the salt keeps payloads from posing as one).

use super::LogInfo;
use super::format::{LOG_HEADER_BYTES, LogRecord, LogRecordKind, RECORD_HEADER_BYTES};
use crate::error::StorageError;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Read at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// What a walk met.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ScanReport {
    /// Good records.
    pub records: u64,
    /// Records whose payload is damaged.
    pub damaged_records: u64,
    /// Bytes that are no record.
    pub lost_bytes: u64,
}

struct Window {
    file: File,
    len_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `want` bytes at `at`, fewer at the end of the file.
    fn at(&mut self, at: u64, want: u64) -> std::io::Result<&[u8]> {
        let want = want.min(self.len_bytes.saturating_sub(at));
        if at < self.start || at + want > self.start + self.bytes.len() as u64 {
            let len = want.max(WINDOW_BYTES).min(self.len_bytes.saturating_sub(at));
            self.bytes.resize(len as usize, 0);
            self.file.read_exact_at(&mut self.bytes, at)?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + want as usize])
    }
}

/// Visits every good record with its offset and payload.
pub(crate) fn scan_log(
    log: &LogInfo,
    mut visit: impl FnMut(u64, &LogRecord, &[u8]) -> Result<(), StorageError>,
) -> Result<ScanReport, StorageError> {
    let io = |source| StorageError::io("read", &log.path, source);
    let file = File::open(&log.path).map_err(io)?;
    let len_bytes = file.metadata().map_err(io)?.len();
    let mut window = Window { file, len_bytes, start: 0, bytes: Vec::new() };
    let mut report = ScanReport::default();
    let mut at = LOG_HEADER_BYTES as u64;
    while at + RECORD_HEADER_BYTES as u64 <= len_bytes {
        let header = window.at(at, RECORD_HEADER_BYTES as u64).map_err(io)?;
        let record = LogRecord::decode(header, log.name.salt).filter(|record| at + record.disk_bytes() <= len_bytes);
        let Some(record) = record else {
            report.lost_bytes += 1;
            at += 1;
            continue;
        };
        let payload = window.at(at + RECORD_HEADER_BYTES as u64, u64::from(record.payload_bytes)).map_err(io)?;
        if record.matches(payload) {
            report.records += 1;
            visit(at, &record, payload)?;
        } else {
            report.damaged_records += 1;
        }
        at += record.disk_bytes();
        if record.kind == LogRecordKind::LedgerMap {
            break;
        }
    }
    Ok(report)
}
