//! RocksDB with our options: open, read, write, and the way back after a failed write.
//!
//! Invariants: M5 a write is synced before it is answered; options keep the whole store below about 20 MiB; a damaged
//! log (other than a torn tail) refuses to open instead of losing what stands behind the damage.
//! Failure: every RocksDB error becomes a [`MetadataError`]. A disk with less than [`ROOM_BYTES`] free takes no write at
//! all, so that RocksDB does not meet a full disk in its own background work. After a failed write RocksDB refuses further
//! ones: from a full disk it recovers by itself, in a thread of its own that must not find the database closed, so it gets
//! [`PATIENCE_ATTEMPTS`] before it is reopened; after any other failure it is reopened at once.
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
/// Free bytes without which nothing is written: what the log and a flush may take before they are asked again.
const ROOM_BYTES: u64 = 16 * 1024 * 1024;
/// Attempts to write, with room on the disk, before a database that does not recover by itself is reopened.
pub(super) const PATIENCE_ATTEMPTS: u32 = 30;
/// Room that must be on the disk again before a store whose write failed is written again: opening flushes the log, and
/// one that fails half-way would take the reads away too.
const PROBE_CHUNKS: usize = 16;
const PROBE_CHUNK_BYTES: usize = 1024 * 1024;

/// The database; absent while a reopen has not succeeded yet.
pub(super) struct Database {
    path: PathBuf,
    db: RwLock<Option<DB>>,
    #[cfg(test)]
    pub(super) faults: Faults,
}

/// Faults that a test switches on, and what they led to.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Faults {
    /// The next write fails as on a full disk.
    pub(super) fail_next_write: std::sync::atomic::AtomicBool,
    /// Writes fail in a way that RocksDB does not recover from.
    pub(super) broken: std::sync::atomic::AtomicBool,
    /// The disk is said to be full.
    pub(super) full: std::sync::atomic::AtomicBool,
    /// Times that the database was reopened.
    pub(super) reopened: std::sync::atomic::AtomicU32,
}

/// Why a write did not succeed.
#[derive(Debug, Clone)]
pub(super) enum WriteFailure {
    /// RocksDB was not asked: the disk is too full. Nothing was written.
    NoRoom(String),
    /// It was asked; the outcome is unknown. `by_itself` = it recovers when there is room again.
    Failed { why: String, by_itself: bool },
}

impl WriteFailure {
    pub(super) fn why(&self) -> &str {
        match self {
            WriteFailure::NoRoom(why) | WriteFailure::Failed { why, .. } => why,
        }
    }
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
            faults: Faults::default(),
        })
    }

    fn open_at(path: &Path) -> Result<DB, MetadataError> {
        DB::open(&options(), path).map_err(|error| failed(&format!("can't open {}", path.display()), &error))
    }

    fn db(&self) -> Result<MappedRwLockReadGuard<'_, DB>, MetadataError> {
        RwLockReadGuard::try_map(self.db.read(), Option::as_ref)
            .map_err(|_| MetadataError::Unavailable("the store is being reopened after a failed write".into()))
    }

    /// Writes and syncs.
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), WriteFailure> {
        self.check_room().map_err(WriteFailure::NoRoom)?;
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            let by_itself = !self.faults.broken.load(Relaxed);
            if self.faults.fail_next_write.swap(false, Relaxed) || !by_itself {
                return Err(WriteFailure::Failed { why: "a write that was made to fail".into(), by_itself });
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let failed = |why: String| {
            let by_itself = why.contains("No space left");
            WriteFailure::Failed { why, by_itself }
        };
        let db = self.db().map_err(|error| failed(error.to_string()))?;
        db.write_opt(batch, &options).map_err(|error| failed(error.to_string()))
    }

    /// Whether the disk has room for what RocksDB may write before it is asked again. A disk that does not tell has.
    pub(super) fn check_room(&self) -> Result<(), String> {
        #[cfg(test)]
        if self.faults.full.load(std::sync::atomic::Ordering::Relaxed) {
            return Err("the disk is said to be full".into());
        }
        let Ok(disk) = rustix::fs::statvfs(&self.path) else { return Ok(()) };
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free_bytes < ROOM_BYTES {
            let path = self.path.display();
            return Err(format!("{free_bytes} bytes are free at {path}, {ROOM_BYTES} are needed"));
        }
        Ok(())
    }

    /// Writes what is there already: whether the database takes writes again.
    pub(super) fn try_write(&self) -> Result<(), MetadataError> {
        self.probe_disk()?;
        let mut batch = WriteBatch::default();
        batch.put(format::STATE_KEY, format::encode_state(self.state()?));
        self.write(batch).map_err(|failure| MetadataError::Unavailable(failure.why().to_owned()))
    }

    /// Closes and opens the database again, if the disk takes a write.
    pub(super) fn reopen(&self) -> Result<(), MetadataError> {
        self.probe_disk()?;
        let mut db = self.db.write();
        *db = None;
        *db = Some(Self::open_at(&self.path)?);
        #[cfg(test)]
        {
            self.faults.reopened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.faults.broken.store(false, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }

    fn probe_disk(&self) -> Result<(), MetadataError> {
        self.probe()
            .map_err(|error| MetadataError::Unavailable(format!("can't write to {}: {error}", self.path.display())))
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
