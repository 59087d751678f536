//! RocksDB with our options: open, read, write, and the way back after a failed write.
//!
//! Invariants: M5 a write is synced before it is answered; options keep the whole store below about 20 MiB; a damaged
//! log (other than a torn tail) refuses to open instead of losing what stands behind the damage.
//! Failure: every RocksDB error becomes a [`MetadataError`]; after a failed write the database is reopened before it is
//! written again, since RocksDB refuses further writes.
//! Must never know: transactions, sessions.

use super::format::{self, end_of_prefix};
use crate::limits::MAX_PAGE_BYTES;
use crate::plan::Held;
use crate::store::{Entry, MetadataError, Page};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRecoveryMode, Direction, ErrorKind, IteratorMode, LogLevel,
    Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const WRITE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
const BLOCK_CACHE_BYTES: usize = 4 * 1024 * 1024;
const LOG_BYTES: u64 = 16 * 1024 * 1024;
const OPEN_FILES: i32 = 64;
const INFO_LOG_BYTES: usize = 1024 * 1024;
const INFO_LOGS: usize = 2;
/// Room that must be on the disk again before a store whose write failed is reopened: opening flushes the log, and one
/// that fails half-way would take the reads away too.
const PROBE_CHUNKS: usize = 16;
const PROBE_CHUNK_BYTES: usize = 1024 * 1024;

/// The database; absent while a reopen has not succeeded yet.
pub(super) struct Database {
    path: PathBuf,
    db: RwLock<Option<DB>>,
    #[cfg(test)]
    pub(super) fail_next_write: std::sync::atomic::AtomicBool,
}

fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    table.set_cache_index_and_filter_blocks(true);
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_arena_block_size(64 * 1024);
    options.set_max_total_wal_size(LOG_BYTES);
    options.set_max_open_files(OPEN_FILES);
    options.set_max_background_jobs(2);
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_log_level(LogLevel::Warn);
    options.set_max_log_file_size(INFO_LOG_BYTES);
    options.set_keep_log_file_num(INFO_LOGS);
    options
}

fn failed(what: &str, error: &rocksdb::Error) -> MetadataError {
    match error.kind() {
        ErrorKind::Corruption => MetadataError::Corrupt(format!("{what}: {error}")),
        _ => MetadataError::Unavailable(format!("{what}: {error}")),
    }
}

impl Database {
    pub(super) fn open(path: &Path) -> Result<Self, MetadataError> {
        let db = Self::open_at(path)?;
        Ok(Self {
            path: path.to_owned(),
            db: RwLock::new(Some(db)),
            #[cfg(test)]
            fail_next_write: false.into(),
        })
    }

    fn open_at(path: &Path) -> Result<DB, MetadataError> {
        DB::open(&options(), path).map_err(|error| failed(&format!("can't open {}", path.display()), &error))
    }

    fn db(&self) -> Result<MappedRwLockReadGuard<'_, DB>, MetadataError> {
        RwLockReadGuard::try_map(self.db.read(), Option::as_ref)
            .map_err(|_| MetadataError::Unavailable("the store is being reopened after a failed write".into()))
    }

    /// Writes and syncs. An error leaves the outcome unknown.
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), String> {
        #[cfg(test)]
        if self.fail_next_write.swap(false, std::sync::atomic::Ordering::Relaxed) {
            return Err("a write that was made to fail".into());
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let db = self.db().map_err(|error| error.to_string())?;
        db.write_opt(batch, &options).map_err(|error| error.to_string())
    }

    /// Closes and opens the database again, if the disk takes a write.
    pub(super) fn reopen(&self) -> Result<(), MetadataError> {
        self.probe()
            .map_err(|error| MetadataError::Unavailable(format!("can't write to {}: {error}", self.path.display())))?;
        let mut db = self.db.write();
        *db = None;
        *db = Some(Self::open_at(&self.path)?);
        Ok(())
    }

    fn probe(&self) -> std::io::Result<()> {
        let path = self.path.with_extension("probe");
        let written = File::create(&path).and_then(|mut file| {
            let chunk = vec![0x5a; PROBE_CHUNK_BYTES];
            for _ in 0..PROBE_CHUNKS {
                file.write_all(&chunk)?;
            }
            file.sync_data()
        });
        std::fs::remove_file(&path)?;
        written
    }

    fn read<T>(
        &self,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> Result<T, MetadataError>,
    ) -> Result<Option<T>, MetadataError> {
        let db = self.db()?;
        let record = db.get_pinned(key);
        record.map_err(|error| failed("can't read", &error))?.map(|record| decode(&record)).transpose()
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, MetadataError> {
        let data_key = format::data_key(key);
        self.read(&data_key, |record| {
            let (held, value) = format::decode_data(&data_key, record)?;
            Ok(Entry { key: key.to_owned(), value, version: held.version, ephemeral: held.ephemeral })
        })
    }

    pub(super) fn held(&self, key: &str) -> Result<Option<Held>, MetadataError> {
        let data_key = format::data_key(key);
        self.read(&data_key, |record| format::decode_data_held(&data_key, record))
    }

    pub(super) fn sequence(&self, name: &str) -> Result<u64, MetadataError> {
        let key = format::sequence_key(name);
        Ok(self.read(&key, |record| format::decode_sequence(&key, record))?.unwrap_or(0))
    }

    pub(super) fn state(&self) -> Result<format::StoreState, MetadataError> {
        Ok(self.read(format::STATE_KEY, format::decode_state)?.unwrap_or_default())
    }

    /// Calls `each` with the records from `start` that begin with `prefix` until it says stop.
    fn visit(
        &self,
        prefix: &[u8],
        start: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool, MetadataError>,
    ) -> Result<(), MetadataError> {
        let mut read = ReadOptions::default();
        if let Some(end) = end_of_prefix(prefix) {
            read.set_iterate_upper_bound(end);
        }
        let db = self.db()?;
        let mode = IteratorMode::From(start, Direction::Forward);
        for item in db.iterator_opt(mode, read) {
            let (key, record) = item.map_err(|error| failed("can't read a range", &error))?;
            if !each(&key, &record)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn range(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, MetadataError> {
        let prefix_key = format::data_key(prefix);
        let mut start = prefix_key.clone();
        if let Some(after) = after.filter(|after| *after >= prefix) {
            start = format::data_key(after);
            start.push(0);
        }
        let mut page = Page { entries: Vec::new(), next: None };
        let mut bytes = 0;
        self.visit(&prefix_key, &start, |key, record| {
            if page.entries.len() >= limit || bytes >= MAX_PAGE_BYTES {
                page.next = page.entries.last().map(|entry: &Entry| entry.key.clone());
                return Ok(false);
            }
            let (held, value) = format::decode_data(key, record)?;
            let key = format::key_of_data(key)?.to_owned();
            bytes += key.len() + value.len();
            page.entries.push(Entry { key, value, version: held.version, ephemeral: held.ephemeral });
            Ok(true)
        })?;
        Ok(page)
    }

    /// The bindings of one session, or of all, at most `limit`.
    pub(super) fn bindings(
        &self,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<(crate::SessionId, String)>, MetadataError> {
        let mut bindings = Vec::new();
        self.visit(prefix, prefix, |key, _| {
            bindings.push(format::parse_binding_key(key)?);
            Ok(bindings.len() < limit)
        })?;
        Ok(bindings)
    }
}
