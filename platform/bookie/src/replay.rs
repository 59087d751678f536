//! Brings what the journals hold behind the last checkpoint back into the caches.
//!
//! Invariants: J7 every acked add behind the checkpoint is replayed, whatever is damaged elsewhere; what is damaged is
//! reported and counted; J8 replay is idempotent: a second one gives the same state; J9 on a full disk it goes on in
//! memory, within the bound of the caches.
//! Failure: a journal file of a later version ends the start, and a full disk once the caches are full; damage does not.
//! Must never know: sockets.

use crate::cache::{CachedEntry, Fill, owned_payload};
use crate::core::Core;
use crate::error::StorageError;
use crate::journal::JournalMark;
use crate::journal::record::{BLOCK_BYTES, FileHeader, FileHeaderError, JOURNAL_VERSION, RecordHeader, RecordKind};
use crate::journal::scan::{Found, Scan};
use std::fs;
use std::path::{Path, PathBuf};

/// What a replay found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReplayReport {
    /// Files read.
    pub files: u64,
    /// Records brought back.
    pub records: u64,
    /// Ranges that were damaged, with good records behind them.
    pub damages: u64,
    /// Files whose last group was torn.
    pub torn_tails: u64,
}

impl Core {
    /// Replays one journal's files from its checkpoint.
    pub(crate) fn replay(
        &self,
        files: &[(FileHeader, PathBuf)],
        mark: JournalMark,
        report: &mut ReplayReport,
    ) -> Result<(), StorageError> {
        let mut last_sequence = None;
        for (header, path) in files.iter().filter(|(header, _)| header.sequence >= mark.sequence) {
            if last_sequence.is_some_and(|last| header.sequence != last + 1) {
                tracing::error!(path = %path.display(), "journal files in front of this one are missing");
                report.damages += 1;
            }
            last_sequence = Some(header.sequence);
            let from_bytes = if header.sequence == mark.sequence { mark.offset_bytes as usize } else { 0 };
            self.replay_file(*header, path, from_bytes, report)?;
        }
        Ok(())
    }

    fn replay_file(
        &self,
        header: FileHeader,
        path: &Path,
        from_bytes: usize,
        report: &mut ReplayReport,
    ) -> Result<(), StorageError> {
        let bytes = fs::read(path).map_err(|e| StorageError::io("read", path, e))?;
        report.files += 1;
        let written_header = FileHeader::decode(&bytes);
        if let Err(FileHeaderError::Version(version)) = written_header {
            return Err(StorageError::Version { what: path.display().to_string(), version, known: JOURNAL_VERSION });
        }
        let mut scan = Scan::new(&bytes, header.epoch, from_bytes);
        let mut records = 0;
        for found in scan.by_ref() {
            match found {
                Found::Record(record, payload) => {
                    records += 1;
                    self.replay_record(&record, payload)?;
                }
                Found::Damage { from_bytes, to_bytes } => {
                    report.damages += 1;
                    self.metrics.journal_damages.inc();
                    tracing::error!(path = %path.display(), from_bytes, to_bytes, "journal bytes are damaged; records \
                        in them are lost here and will be read from other bookies");
                }
            }
        }
        if let Some(at_bytes) = scan.torn_tail() {
            report.torn_tails += 1;
            self.metrics.journal_torn_tails.inc();
            tracing::warn!(path = %path.display(), at_bytes, "the last group was torn by a crash; it was never acked");
        }
        // A header of an earlier use means that the crash came before the first record.
        if records > 0 && written_header != Ok(header) && bytes.len() >= BLOCK_BYTES {
            report.damages += 1;
            self.metrics.journal_damages.inc();
            tracing::error!(path = %path.display(), "the header of a journal file is damaged; its records are not");
        }
        report.records += records;
        Ok(())
    }

    fn replay_record(&self, record: &RecordHeader, payload: &[u8]) -> Result<(), StorageError> {
        {
            let mut ledgers = self.ledgers.lock();
            let Some(state) = ledgers.get(record.ledger_id, true)? else { return Ok(()) };
            state.raise_lac(record.last_add_confirmed);
            match record.kind {
                RecordKind::Add => state.note_entry(record.entry_id),
                RecordKind::Fence => {
                    state.fence();
                    state.fence_is_durable();
                }
                RecordKind::LastAddConfirmed => {}
            }
        }
        if record.kind != RecordKind::Add {
            return Ok(());
        }
        let cached = CachedEntry {
            entry_id: record.entry_id,
            last_add_confirmed: record.last_add_confirmed,
            digest: record.digest,
            entry: owned_payload(payload),
        };
        if self.cache.put_replayed(record.ledger_id, cached) == Fill::Full {
            self.store_replayed()?;
        }
        Ok(())
    }

    /// Makes room for more. On a full disk the caches take what they took before the restart (J9).
    fn store_replayed(&self) -> Result<(), StorageError> {
        let failed = self.flush_failure.lock().is_some();
        if failed && !self.cache.is_overfull() {
            return Ok(());
        }
        match self.checkpoint() {
            Err(full) if full.is_full() && !self.cache.is_overfull() => Ok(()),
            outcome => outcome,
        }
    }
}
