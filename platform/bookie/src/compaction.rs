//! Compaction: the live entries of a mostly dead log move to a new one.
//!
//! Invariants: O1 an entry's place changes only if it still is the one that was read; O2 the new copy and the index
//! that points to it are durable before the old log is deleted; O3 a log with damage is left alone, so that its entries
//! stay damaged and do not become absent; O4 it stops when the disk would fall into its reserve.
//! Failure: what was not committed is garbage in the new log, bounded by [`MOVES_AT_A_TIME`] and one write buffer.
//! Must never know: listings.

use crate::core::Core;
use crate::disk::DiskState;
use crate::entrylog::LogInfo;
use crate::entrylog::format::{LogRecord, LogRecordKind};
use crate::entrylog::scan::scan_log;
use crate::entrylog::writer::LogWriter;
use crate::error::StorageError;
use crate::gc::{GcReport, LogUse};
use crate::index::{Changes, LogBytes, Place};
use meridian_types::{EntryId, LedgerId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries moved per commit.
const MOVES_AT_A_TIME: usize = 16_384;

/// When compactions ran last.
#[derive(Debug)]
pub(crate) struct LastRuns {
    minor: Instant,
    major: Instant,
}

impl LastRuns {
    pub fn new() -> Self {
        let now = Instant::now();
        Self { minor: now, major: now }
    }
}

struct Move {
    ledger_id: LedgerId,
    entry_id: EntryId,
    from: Place,
    to: Place,
}

/// Keeps a pace by waiting.
struct Pace {
    bytes_per_second: u64,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn note(&mut self, bytes: u64) {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second.max(1) as f64);
        if let Some(early) = due.checked_sub(self.since.elapsed())
            && early > Duration::from_millis(5)
        {
            std::thread::sleep(early);
        }
    }
}

impl Core {
    /// Runs the compaction whose interval has passed.
    pub(crate) fn compact_due(&self, uses: &[LogUse], report: &mut GcReport) -> Result<(), StorageError> {
        let now = Instant::now();
        let settings = &self.config.compaction;
        let threshold = {
            let mut last = self.last_compaction.lock();
            if now.duration_since(last.major) >= settings.major_interval {
                last.major = now;
                last.minor = now;
                settings.major_threshold
            } else if now.duration_since(last.minor) >= settings.minor_interval {
                last.minor = now;
                settings.minor_threshold
            } else {
                return Ok(());
            }
        };
        self.compact_below(threshold, uses, report)
    }

    /// Rewrites the logs with a live part below `threshold`, the deadest first.
    pub(crate) fn compact_below(
        &self,
        threshold: f64,
        uses: &[LogUse],
        report: &mut GcReport,
    ) -> Result<(), StorageError> {
        let mut chosen: Vec<_> = uses.iter().filter(|log| log.live_part() < threshold).collect();
        chosen.sort_by(|a, b| a.live_part().total_cmp(&b.live_part()));
        let mut writer = LogWriter::new(Arc::clone(&self.logs));
        let mut pace =
            Pace { bytes_per_second: self.config.compaction.rate_bytes_per_second, since: Instant::now(), bytes: 0 };
        let infos = self.logs.list();
        let mut outcome = Ok(());
        for log in chosen {
            let Some(info) = infos.iter().find(|info| info.name.id == log.log) else { continue };
            if *self.disk.read() == DiskState::Full || self.damaged_logs.lock().contains(&log.log) {
                continue;
            }
            match self.compact_log(info, &mut writer, &mut pace) {
                Ok(true) => {
                    report.compacted_logs += 1;
                    report.freed_bytes += log.file_bytes.saturating_sub(log.live_bytes);
                    self.metrics.compacted_logs.inc();
                }
                Ok(false) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if outcome.is_ok() {
            writer.leave();
            outcome = writer.seal_filled(|log| self.ledgers_of(log));
        }
        writer.abandon();
        outcome
    }

    /// Moves the live entries of one log; `false` if it must stay.
    fn compact_log(&self, info: &LogInfo, writer: &mut LogWriter, pace: &mut Pace) -> Result<bool, StorageError> {
        let mut moves = Vec::new();
        let mut bytes = LogBytes::new();
        let report = scan_log(info, |offset_bytes, record, payload| {
            if self.closed.load(Ordering::Relaxed) {
                return Err(StorageError::Closed);
            }
            let from = Place { log: info.name.id, offset_bytes, payload_bytes: record.payload_bytes };
            let live = match record.kind {
                LogRecordKind::Entry => self.index.place(record.ledger_id, record.entry_id)? == Some(from),
                LogRecordKind::Fence => self.index.ledger(record.ledger_id)?.is_some_and(|ledger| ledger.fenced),
                LogRecordKind::LedgerMap => false,
            };
            if live {
                pace.note(record.disk_bytes());
                let to = self.append_moved(writer, record, payload, &mut bytes)?;
                if record.kind == LogRecordKind::Entry {
                    moves.push(Move { ledger_id: record.ledger_id, entry_id: record.entry_id, from, to });
                }
            }
            if moves.len() >= MOVES_AT_A_TIME {
                self.commit_moves(writer, &mut moves, &mut bytes)?;
            }
            Ok(())
        })?;
        self.commit_moves(writer, &mut moves, &mut bytes)?;
        if report.damaged_records > 0 || report.lost_bytes > 0 {
            self.damaged_logs.lock().insert(info.name.id);
            self.metrics.corrupt_entries.inc_by(report.damaged_records);
            tracing::error!(path = %info.path.display(), ?report, "an entry log is damaged; it is kept as it is");
            return Ok(false);
        }
        let _flush = self.log_writer.lock();
        let mut changes = Changes::default();
        for (ledger_id, _) in self.ledgers_of(info.name.id)? {
            changes.delete_log_row(info.name.id, ledger_id);
        }
        self.index.apply(changes)?;
        self.index.flush()?;
        self.logs.delete(info.name.id)?;
        Ok(true)
    }

    fn append_moved(
        &self,
        writer: &mut LogWriter,
        record: &LogRecord,
        payload: &[u8],
        bytes: &mut LogBytes,
    ) -> Result<Place, StorageError> {
        let to = writer.append(record, &[payload])?;
        *bytes.entry((to.log, record.ledger_id)).or_default() += record.disk_bytes();
        self.metrics.compacted_bytes.inc_by(record.disk_bytes());
        Ok(to)
    }

    fn commit_moves(
        &self,
        writer: &mut LogWriter,
        moves: &mut Vec<Move>,
        bytes: &mut LogBytes,
    ) -> Result<(), StorageError> {
        writer.sync()?;
        let _flush = self.log_writer.lock();
        let mut changes = Changes::default();
        for one in moves.drain(..) {
            // O1: deleted or written again meanwhile.
            if self.index.place(one.ledger_id, one.entry_id)? == Some(one.from) {
                changes.put_place(one.ledger_id, one.entry_id, one.to);
            }
        }
        for ((log, ledger_id), moved) in std::mem::take(bytes) {
            let total = self.index.log_row(log, ledger_id)? + moved;
            changes.put_log_bytes(log, ledger_id, total);
        }
        self.index.apply(changes)?;
        self.index.flush()
    }
}
