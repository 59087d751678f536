//! Makes the index again from the entry logs.
//!
//! Role: for an index that is lost or damaged. Entries, ledgers, fences and the bytes per log come back from the logs;
//! what is behind the last checkpoint comes back from the journal at the next start, which replays all of it, because
//! a new index has no checkpoint. Ledgers deleted before come back until the next garbage collection.
//! Invariants: Z1 the old index is replaced only when the new one is complete and durable; Z2 of two copies of an entry
//! the one in the later log, or later in the log, counts.
//! Failure: [`OpenError`]; the old index is untouched then.

use crate::config::BookieConfig;
use crate::cookie;
use crate::entrylog::EntryLogs;
use crate::entrylog::format::{LogRecordKind, decode_ledger_map};
use crate::entrylog::scan::scan_log;
use crate::error::{OpenError, StorageError};
use crate::index::{Changes, Index, LogBytes, Place, StoredLedger};
use crate::journal::files::sync_dir;
use meridian_types::{EntryId, LedgerId};
use std::collections::HashMap;
use std::fs;

const CHANGES_AT_A_TIME: usize = 4096;

/// What a rebuild found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RebuildReport {
    /// Logs read.
    pub logs: u64,
    /// Entries found (copies counted).
    pub entries: u64,
    /// Ledgers found.
    pub ledgers: u64,
    /// Records whose payload is damaged.
    pub damaged_records: u64,
    /// Bytes that are no record.
    pub lost_bytes: u64,
    /// Ledgers of which a log's own map tells more bytes than were found in it.
    pub short_ledgers: u64,
}

/// Makes the index of a stopped node again from its entry logs. Blocks.
///
/// # Errors
/// [`OpenError`] if the folders are not this node's, the node is running, or a disk refuses.
pub fn rebuild_index(config: &BookieConfig) -> Result<RebuildReport, OpenError> {
    config.validate()?;
    let index_path = config.index_path();
    fs::create_dir_all(&index_path).map_err(|e| StorageError::io("make folder", &index_path, e))?;
    cookie::restore_index_cookie(config)?;
    cookie::check(config)?;
    let new_path = index_path.with_extension("rebuilt");
    if new_path.exists() {
        fs::remove_dir_all(&new_path).map_err(|e| StorageError::io("remove", &new_path, e))?;
    }
    refuse_if_running(&index_path)?;
    let report = fill(config, &Index::open(&new_path)?)?;
    let cookie_name = cookie::FILE_NAME;
    fs::copy(index_path.join(cookie_name), new_path.join(cookie_name))
        .map_err(|e| StorageError::io("copy the cookie to", &new_path, e))?;
    sync_dir(&new_path)?;
    fs::remove_dir_all(&index_path).map_err(|e| StorageError::io("remove", &index_path, e))?;
    fs::rename(&new_path, &index_path).map_err(|e| StorageError::io("rename", &new_path, e))?;
    if let Some(parent) = index_path.parent() {
        sync_dir(parent)?;
    }
    Ok(report)
}

/// A running node holds the lock of its index. An index that is damaged cannot be opened, which is no obstacle.
fn refuse_if_running(index_path: &std::path::Path) -> Result<(), OpenError> {
    match Index::open(index_path) {
        Err(StorageError::Index(error)) if error.to_string().contains("lock") => {
            Err(OpenError::Identity(format!("the bookie is running: {error}")))
        }
        _ => Ok(()),
    }
}

fn short_ledgers(map: &[(LedgerId, u64)], log: u32, found: &LogBytes) -> u64 {
    map.iter().filter(|(ledger_id, bytes)| found.get(&(log, *ledger_id)).is_none_or(|found| found < bytes)).count()
        as u64
}

fn fill(config: &BookieConfig, index: &Index) -> Result<RebuildReport, StorageError> {
    let logs = EntryLogs::open(&config.ledger_dirs, config.entry_log_bytes)?;
    let mut report = RebuildReport::default();
    let mut ledgers: HashMap<LedgerId, StoredLedger> = HashMap::new();
    for info in logs.list() {
        let mut changes = Changes::default();
        let mut bytes = LogBytes::new();
        let scanned = scan_log(&info, |offset_bytes, record, payload| {
            if record.kind == LogRecordKind::LedgerMap {
                report.short_ledgers += short_ledgers(&decode_ledger_map(payload), info.name.id, &bytes);
                return Ok(());
            }
            *bytes.entry((info.name.id, record.ledger_id)).or_default() += record.disk_bytes();
            let ledger = ledgers
                .entry(record.ledger_id)
                .or_insert(StoredLedger { fenced: false, last_add_confirmed: EntryId::NONE });
            ledger.last_add_confirmed = ledger.last_add_confirmed.max(record.last_add_confirmed);
            if record.kind == LogRecordKind::Fence {
                ledger.fenced = true;
                return Ok(());
            }
            let place = Place { log: info.name.id, offset_bytes, payload_bytes: record.payload_bytes };
            changes.put_place(record.ledger_id, record.entry_id, place);
            report.entries += 1;
            if changes.len() >= CHANGES_AT_A_TIME {
                index.apply(std::mem::take(&mut changes))?;
            }
            Ok(())
        })?;
        for ((log, ledger_id), bytes) in bytes {
            changes.put_log_bytes(log, ledger_id, bytes);
        }
        index.apply(changes)?;
        report.logs += 1;
        report.damaged_records += scanned.damaged_records;
        report.lost_bytes += scanned.lost_bytes;
    }
    let mut changes = Changes::default();
    for (ledger_id, ledger) in &ledgers {
        changes.put_ledger(*ledger_id, *ledger);
    }
    index.apply(changes)?;
    index.flush()?;
    report.ledgers = ledgers.len() as u64;
    Ok(report)
}
