//! Where entries are, and what is known of ledgers: a RocksDB.
//!
//! Layout (keys big-endian with the sign bit flipped, so that they order as numbers; values little-endian):
//!
//! | key | value |
//! |---|---|
//! | `E` ledger(8) entry(8) | log(4) offset(8) payload length(4) |
//! | `L` ledger(8) | version 1 (1), flags (1: bit 0 fenced), last-add-confirmed (8) |
//! | `F` ledger(8) | version 1 (1): the ledger was fenced and is deleted |
//! | `G` log(4) ledger(8) | bytes of that ledger in that log (8) |
//! | `M` journal(4) | checkpoint: sequence (8), offset (8) |
//! | `V` | version 1 (4) |
//!
//! Invariants: X1 no write-ahead log: a checkpoint is one flush, and its mark is written last, so that what is not in
//! the index after a crash is in the journal; X2 a place is written only after the entry log is synced; X3 on a disk
//! without room, where RocksDB opens for reading alone, the index is read, and opened for writing by the first write that
//! finds [`WRITING_NEEDS_BYTES`] free.
//! Failure: [`StorageError`]; values of a wrong length are damage.
//! Must never know: bytes of entries.

use crate::error::StorageError;
use crate::journal::JournalMark;
use meridian_types::{EntryId, LedgerId};
use parking_lot::{RwLock, RwLockReadGuard};
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, WriteBatch, WriteOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const VERSION: u32 = 1;
const STATE_VERSION: u8 = 1;
const FLAG_FENCED: u8 = 1;
const WRITE_BUFFER_BYTES: usize = 4 << 20;
const BLOCK_CACHE_BYTES: usize = 8 << 20;
/// Room that opening for writing needs: RocksDB's own files, and a first flush.
const WRITING_NEEDS_BYTES: u64 = 2 * WRITE_BUFFER_BYTES as u64;

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The entry log.
    pub log: u32,
    /// Offset of its record.
    pub offset_bytes: u64,
    /// Length of its payload.
    pub payload_bytes: u32,
}

/// What is stored of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredLedger {
    /// Refuses ordinary adds for ever (S3).
    pub fenced: bool,
    /// Highest last-add-confirmed heard of.
    pub last_add_confirmed: EntryId,
}

/// The index of one node.
pub struct Index {
    dir: PathBuf,
    db: RwLock<DB>,
    /// Opened for reading alone (X3).
    read_only: AtomicBool,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({})", self.dir.display())
    }
}

/// Bytes per ledger and log.
pub type LogBytes = BTreeMap<(u32, LedgerId), u64>;

/// Changes that go in together.
#[derive(Default)]
pub(crate) struct Changes {
    batch: WriteBatch,
}

impl Changes {
    pub fn put_place(&mut self, ledger_id: LedgerId, entry_id: EntryId, place: Place) {
        self.batch.put(entry_key(ledger_id, entry_id), encode_place(place));
    }

    pub fn put_ledger(&mut self, ledger_id: LedgerId, ledger: StoredLedger) {
        let mut raw = [0u8; 10];
        raw[0] = STATE_VERSION;
        raw[1] = if ledger.fenced { FLAG_FENCED } else { 0 };
        raw[2..].copy_from_slice(&ledger.last_add_confirmed.0.to_le_bytes());
        self.batch.put(ledger_key(ledger_id), raw);
    }

    /// Deletes a ledger; that it was fenced is kept (S3).
    pub fn delete_ledger(&mut self, ledger_id: LedgerId, fenced: bool) {
        if fenced {
            self.batch.put(fence_key(ledger_id), [STATE_VERSION]);
        }
        self.batch.delete_range(entry_key(ledger_id, EntryId(i64::MIN)), entry_key(ledger_id, EntryId(i64::MAX)));
        self.batch.delete(ledger_key(ledger_id));
    }

    pub fn put_log_bytes(&mut self, log: u32, ledger_id: LedgerId, bytes: u64) {
        self.batch.put(log_key(log, ledger_id), bytes.to_le_bytes());
    }

    pub fn delete_log_row(&mut self, log: u32, ledger_id: LedgerId) {
        self.batch.delete(log_key(log, ledger_id));
    }

    pub fn put_mark(&mut self, journal: u32, mark: JournalMark) {
        let mut raw = [0u8; 16];
        raw[..8].copy_from_slice(&mark.sequence.to_le_bytes());
        raw[8..].copy_from_slice(&mark.offset_bytes.to_le_bytes());
        self.batch.put(mark_key(journal), raw);
    }

    pub fn len(&self) -> usize {
        self.batch.len()
    }
}

impl Index {
    /// Opens or makes the index.
    ///
    /// # Errors
    /// [`StorageError`] if RocksDB refuses (another process holds it) or the index is of a later version.
    pub fn open(dir: &Path) -> Result<Self, StorageError> {
        let (db, read_only) = match open_to_write(dir) {
            Ok(db) => (db, false),
            Err(full) if full.is_full() => {
                // An index that was never written can't be read: the disk is what is in the way.
                let Ok(db) = DB::open_for_read_only(&options(), dir, false) else { return Err(full) };
                check_version(&db)?;
                tracing::error!(dir = %dir.display(), error = %full, "the index is opened for reading alone");
                (db, true)
            }
            Err(error) => return Err(error),
        };
        Ok(Self { dir: dir.to_owned(), db: RwLock::new(db), read_only: AtomicBool::new(read_only) })
    }

    fn reader(&self) -> RwLockReadGuard<'_, DB> {
        self.db.read()
    }

    /// The index for a write (X3).
    fn writer(&self) -> Result<RwLockReadGuard<'_, DB>, StorageError> {
        if self.read_only.load(Ordering::Acquire) {
            let stat = rustix::fs::statvfs(&self.dir).map_err(|e| StorageError::io("measure", &self.dir, e.into()))?;
            if stat.f_bavail * stat.f_frsize < WRITING_NEEDS_BYTES {
                let source = std::io::ErrorKind::StorageFull.into();
                return Err(StorageError::io("open the index for writing in", &self.dir, source));
            }
            let mut db = self.db.write();
            if self.read_only.load(Ordering::Acquire) {
                *db = open_to_write(&self.dir)?;
                self.read_only.store(false, Ordering::Release);
                tracing::info!(dir = %self.dir.display(), "the index is open for writing again");
            }
        }
        Ok(self.db.read())
    }

    pub(crate) fn apply(&self, changes: Changes) -> Result<(), StorageError> {
        Ok(self.writer()?.write_opt(changes.batch, &no_wal())?)
    }

    /// Makes everything applied durable (X1).
    pub(crate) fn flush(&self) -> Result<(), StorageError> {
        Ok(self.writer()?.flush()?)
    }

    /// Where one entry is.
    pub(crate) fn place(&self, ledger_id: LedgerId, entry_id: EntryId) -> Result<Option<Place>, StorageError> {
        self.reader().get_pinned(entry_key(ledger_id, entry_id))?.map(|raw| decode_place(&raw)).transpose()
    }

    /// Up to `max` places from `from`, in order.
    pub(crate) fn places_from(
        &self,
        ledger_id: LedgerId,
        from: EntryId,
        max: usize,
    ) -> Result<Vec<(EntryId, Place)>, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(entry_key(ledger_id, EntryId(i64::MAX)));
        let db = self.reader();
        let mut rows = db.raw_iterator_opt(options);
        let mut places = Vec::new();
        rows.seek(entry_key(ledger_id, from));
        while places.len() < max
            && let Some((key, value)) = rows.item()
        {
            places.push((EntryId(number(&exact::<8>(&key[9..], "entry key")?)), decode_place(value)?));
            rows.next();
        }
        rows.status()?;
        Ok(places)
    }

    /// The highest entry of a ledger.
    pub(crate) fn last_entry(&self, ledger_id: LedgerId) -> Result<EntryId, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(entry_key(ledger_id, EntryId(i64::MIN)));
        let db = self.reader();
        let mut rows = db.raw_iterator_opt(options);
        rows.seek_for_prev(entry_key(ledger_id, EntryId(i64::MAX)));
        let last = match rows.key() {
            Some(key) => EntryId(number(&exact::<8>(&key[9..], "entry key")?)),
            None => EntryId::NONE,
        };
        rows.status()?;
        Ok(last)
    }

    /// What is stored of a ledger.
    pub(crate) fn ledger(&self, ledger_id: LedgerId) -> Result<Option<StoredLedger>, StorageError> {
        self.reader().get_pinned(ledger_key(ledger_id))?.map(|raw| decode_ledger(&raw)).transpose()
    }

    /// Whether a deleted ledger was fenced: its old writer may still try.
    pub(crate) fn was_fenced(&self, ledger_id: LedgerId) -> Result<bool, StorageError> {
        Ok(self.reader().get_pinned(fence_key(ledger_id))?.is_some())
    }

    /// Every ledger, in order.
    pub(crate) fn ledgers(&self) -> Result<Vec<(LedgerId, StoredLedger)>, StorageError> {
        let mut found = Vec::new();
        self.each(b"L", b"M", |key, value| {
            found.push((LedgerId(number(&exact::<8>(&key[1..], "ledger key")?)), decode_ledger(value)?));
            Ok(())
        })?;
        Ok(found)
    }

    /// Bytes per ledger of every log.
    pub(crate) fn log_bytes(&self) -> Result<LogBytes, StorageError> {
        let mut found = LogBytes::new();
        self.each(b"G", b"H", |key, value| {
            let log = u32::from_be_bytes(exact(&key[1..5], "log key")?);
            let ledger_id = LedgerId(number(&exact::<8>(&key[5..], "log key")?));
            found.insert((log, ledger_id), u64::from_le_bytes(exact(value, "log bytes")?));
            Ok(())
        })?;
        Ok(found)
    }

    /// Bytes of one ledger in one log.
    pub(crate) fn log_row(&self, log: u32, ledger_id: LedgerId) -> Result<u64, StorageError> {
        match self.reader().get_pinned(log_key(log, ledger_id))? {
            Some(raw) => Ok(u64::from_le_bytes(exact(&raw, "log bytes")?)),
            None => Ok(0),
        }
    }

    /// The checkpoint of one journal.
    pub(crate) fn mark(&self, journal: u32) -> Result<JournalMark, StorageError> {
        let Some(raw) = self.reader().get(mark_key(journal))? else { return Ok(JournalMark::default()) };
        let raw: [u8; 16] = exact(&raw, "journal mark")?;
        Ok(JournalMark {
            sequence: u64::from_le_bytes(exact(&raw[..8], "journal mark")?),
            offset_bytes: u64::from_le_bytes(exact(&raw[8..], "journal mark")?),
        })
    }

    fn each(
        &self,
        from: &[u8],
        to: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(to);
        options.fill_cache(false);
        let db = self.reader();
        let mut rows = db.raw_iterator_opt(options);
        rows.seek(from);
        while let Some((key, value)) = rows.item() {
            visit(key, value)?;
            rows.next();
        }
        Ok(rows.status()?)
    }
}

fn open_to_write(dir: &Path) -> Result<DB, StorageError> {
    let db = DB::open(&options(), dir)?;
    if !check_version(&db)? {
        db.put_opt(b"V", VERSION.to_le_bytes(), &no_wal())?;
    }
    Ok(db)
}

/// Whether the index has a version: a new one has none.
fn check_version(db: &DB) -> Result<bool, StorageError> {
    let Some(raw) = db.get(b"V")? else { return Ok(false) };
    let version = u32::from_le_bytes(exact(&raw, "index version")?);
    if version != VERSION {
        return Err(StorageError::Version { what: "the index".to_owned(), version, known: VERSION });
    }
    Ok(true)
}

fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_background_jobs(2);
    options.set_max_open_files(64);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    options.set_skip_stats_update_on_db_open(true);
    options
}

fn no_wal() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

fn ordered(number: i64) -> [u8; 8] {
    ((number as u64) ^ (1 << 63)).to_be_bytes()
}

fn number(raw: &[u8; 8]) -> i64 {
    (u64::from_be_bytes(*raw) ^ (1 << 63)) as i64
}

fn entry_key(ledger_id: LedgerId, entry_id: EntryId) -> [u8; 17] {
    let mut key = [b'E'; 17];
    key[1..9].copy_from_slice(&ordered(ledger_id.0));
    key[9..].copy_from_slice(&ordered(entry_id.0));
    key
}

fn ledger_key(ledger_id: LedgerId) -> [u8; 9] {
    let mut key = [b'L'; 9];
    key[1..].copy_from_slice(&ordered(ledger_id.0));
    key
}

fn fence_key(ledger_id: LedgerId) -> [u8; 9] {
    let mut key = [b'F'; 9];
    key[1..].copy_from_slice(&ordered(ledger_id.0));
    key
}

fn log_key(log: u32, ledger_id: LedgerId) -> [u8; 13] {
    let mut key = [b'G'; 13];
    key[1..5].copy_from_slice(&log.to_be_bytes());
    key[5..].copy_from_slice(&ordered(ledger_id.0));
    key
}

fn mark_key(journal: u32) -> [u8; 5] {
    let mut key = [b'M'; 5];
    key[1..].copy_from_slice(&journal.to_be_bytes());
    key
}

fn encode_place(place: Place) -> [u8; 16] {
    let mut raw = [0u8; 16];
    raw[..4].copy_from_slice(&place.log.to_le_bytes());
    raw[4..12].copy_from_slice(&place.offset_bytes.to_le_bytes());
    raw[12..].copy_from_slice(&place.payload_bytes.to_le_bytes());
    raw
}

fn decode_place(raw: &[u8]) -> Result<Place, StorageError> {
    let raw: [u8; 16] = exact(raw, "place")?;
    Ok(Place {
        log: u32::from_le_bytes(exact(&raw[..4], "place")?),
        offset_bytes: u64::from_le_bytes(exact(&raw[4..12], "place")?),
        payload_bytes: u32::from_le_bytes(exact(&raw[12..], "place")?),
    })
}

fn decode_ledger(raw: &[u8]) -> Result<StoredLedger, StorageError> {
    let raw: [u8; 10] = exact(raw, "ledger state")?;
    if raw[0] != STATE_VERSION {
        let (version, known) = (u32::from(raw[0]), u32::from(STATE_VERSION));
        return Err(StorageError::Version { what: "a ledger's state".to_owned(), version, known });
    }
    Ok(StoredLedger {
        fenced: raw[1] & FLAG_FENCED != 0,
        last_add_confirmed: EntryId(i64::from_le_bytes(exact(&raw[2..], "ledger state")?)),
    })
}

fn exact<const N: usize>(raw: &[u8], what: &str) -> Result<[u8; N], StorageError> {
    raw.try_into().map_err(|_| StorageError::Corrupt(format!("{what} in the index has {} bytes, not {N}", raw.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys_and_values() {
        let key = entry_key(LedgerId(1), EntryId(2));
        assert_eq!(key, [b'E', 128, 0, 0, 0, 0, 0, 0, 1, 128, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(log_key(3, LedgerId(0)), [b'G', 0, 0, 0, 3, 128, 0, 0, 0, 0, 0, 0, 0]);
        let place = Place { log: 1, offset_bytes: 2, payload_bytes: 3 };
        assert_eq!(encode_place(place), [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert!(decode_place(&[1, 2, 3]).is_err());
        assert!(decode_ledger(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "later version");
    }

    #[test]
    fn ledgers_do_not_see_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(dir.path()).unwrap();
        let place = |offset_bytes| Place { log: 1, offset_bytes, payload_bytes: 1 };
        let mut changes = Changes::default();
        for (ledger, entry) in [(1, 0), (1, 1), (1, 3), (2, 0), (3, 5)] {
            changes.put_place(LedgerId(ledger), EntryId(entry), place(entry as u64));
        }
        changes.put_ledger(LedgerId(2), StoredLedger { fenced: true, last_add_confirmed: EntryId(7) });
        changes.put_mark(0, JournalMark { sequence: 4, offset_bytes: 8192 });
        index.apply(changes).unwrap();
        index.flush().unwrap();
        let found = index.places_from(LedgerId(1), EntryId(1), 10).unwrap();
        assert_eq!(found, [(EntryId(1), place(1)), (EntryId(3), place(3))]);
        assert_eq!(index.last_entry(LedgerId(2)).unwrap(), EntryId(0));
        assert_eq!(index.last_entry(LedgerId(4)).unwrap(), EntryId::NONE);
        let mut changes = Changes::default();
        changes.delete_ledger(LedgerId(2), false);
        index.apply(changes).unwrap();
        assert_eq!(index.place(LedgerId(2), EntryId(0)).unwrap(), None);
        assert_eq!(index.place(LedgerId(3), EntryId(5)).unwrap(), Some(place(5)));
        assert_eq!(index.ledger(LedgerId(2)).unwrap(), None);
        assert_eq!(index.mark(0).unwrap(), JournalMark { sequence: 4, offset_bytes: 8192 });
    }
}
