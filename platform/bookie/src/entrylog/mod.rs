//! Entry logs: where entries stay, sorted by ledger within each flush.
//!
//! Role: the set of log files over all ledger folders, opened for reading as needed.
//! Invariants: M1 ids only grow and are never used twice; M2 a log being written is never deleted; M3 at most
//! [`OPEN_FILES_MAX`] files are held open for reading.
//! Failure: reading a log that is gone answers `false`: the reader looks the place up again (compaction moved it).
//! Must never know: the index, caches.

pub(crate) mod format;
pub(crate) mod scan;
pub(crate) mod writer;

use crate::error::StorageError;
use crate::index::Place;
use bytes::Bytes;
use format::{LOG_VERSION, LogName, LogRecord, LogRecordKind, RECORD_HEADER_BYTES};
use meridian_bookie_api::ReadEntry;
use meridian_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files held open for reading.
pub const OPEN_FILES_MAX: usize = 256;

/// What is known of a log.
#[derive(Debug, Clone)]
pub(crate) struct LogInfo {
    pub name: LogName,
    pub path: PathBuf,
    /// Being written: not to be compacted or deleted (M2).
    pub writing: bool,
}

#[derive(Debug, Default)]
struct State {
    logs: BTreeMap<u32, LogInfo>,
    open: HashMap<u32, Arc<File>>,
    next_id: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct EntryLogs {
    dirs: Vec<PathBuf>,
    log_bytes_max: u64,
    state: Mutex<State>,
}

impl EntryLogs {
    /// Looks through the folders.
    pub fn open(dirs: &[PathBuf], log_bytes_max: u64) -> Result<Arc<Self>, StorageError> {
        let mut state = State::default();
        for dir in dirs {
            for entry in fs::read_dir(dir).map_err(|e| StorageError::io("list", dir, e))? {
                let path = entry.map_err(|e| StorageError::io("list", dir, e))?.path();
                let name = path.file_name().and_then(|name| name.to_str()).and_then(LogName::from_file_name);
                if let Some(name) = name {
                    check_version(&path, name)?;
                    state.next_id = state.next_id.max(name.id + 1);
                    state.logs.insert(name.id, LogInfo { name, path, writing: false });
                }
            }
        }
        Ok(Arc::new(Self { dirs: dirs.to_vec(), log_bytes_max, state: Mutex::new(state) }))
    }

    /// A new log in the folder with the most free space.
    fn create(&self) -> Result<(LogInfo, File), StorageError> {
        let dir = self.roomiest_dir();
        let id = {
            let mut state = self.state.lock();
            state.next_id += 1;
            state.next_id - 1
        };
        let name = LogName { id, salt: crate::journal::files::random_epoch() as u32 };
        let path = dir.join(name.file_name());
        let file = File::options()
            .write(true)
            .read(true)
            .create_new(true)
            .open(&path)
            .map_err(|e| StorageError::io("create", &path, e))?;
        if let Err(source) = file.write_all_at(&name.encode_header(), 0) {
            // A full disk: no log without a header is left behind.
            let _ = fs::remove_file(&path);
            return Err(StorageError::io("write", &path, source));
        }
        crate::journal::files::sync_dir(dir)?;
        let info = LogInfo { name, path, writing: true };
        self.state.lock().logs.insert(id, info.clone());
        Ok((info, file))
    }

    fn roomiest_dir(&self) -> &Path {
        let free = |dir: &PathBuf| rustix::fs::statvfs(dir).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        if self.dirs.len() == 1 {
            return &self.dirs[0];
        }
        // Ties (folders on one disk) rotate with the number of logs.
        let turn = self.state.lock().logs.len() % self.dirs.len();
        let rotated = self.dirs[turn..].iter().chain(&self.dirs[..turn]);
        rotated.max_by_key(|dir| free(dir) >> 30).unwrap_or(&self.dirs[0])
    }

    fn finished(&self, id: u32) {
        if let Some(info) = self.state.lock().logs.get_mut(&id) {
            info.writing = false;
        }
    }

    /// Every log.
    pub fn list(&self) -> Vec<LogInfo> {
        self.state.lock().logs.values().cloned().collect()
    }

    fn file(&self, id: u32) -> Result<Option<(u32, Arc<File>)>, StorageError> {
        let mut state = self.state.lock();
        let Some(info) = state.logs.get(&id).cloned() else { return Ok(None) };
        if let Some(file) = state.open.get(&id) {
            return Ok(Some((info.name.salt, Arc::clone(file))));
        }
        let file = match File::open(&info.path) {
            Ok(file) => Arc::new(file),
            Err(error) => return Err(StorageError::io("open", &info.path, error)),
        };
        if state.open.len() >= OPEN_FILES_MAX {
            let oldest = state.open.keys().min().copied();
            oldest.and_then(|id| state.open.remove(&id));
        }
        state.open.insert(id, Arc::clone(&file));
        Ok(Some((info.name.salt, file)))
    }

    /// Reads the records of consecutive places (one run on disk) and checks them; stops in front of the first that is
    /// damaged, which is an error only if it is the first of all. `false` if the log does not exist any more.
    pub fn read_run(
        &self,
        ledger_id: LedgerId,
        run: &[(EntryId, Place)],
        out: &mut Vec<ReadEntry>,
    ) -> Result<bool, StorageError> {
        let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { return Ok(true) };
        let Some((salt, file)) = self.file(first.log)? else { return Ok(false) };
        let len = end_of(last) - first.offset_bytes;
        let mut raw = vec![0; len as usize];
        file.read_exact_at(&mut raw, first.offset_bytes).map_err(|source| damaged_or_io(first, source))?;
        let raw = Bytes::from(raw);
        for (at, (entry_id, place)) in run.iter().enumerate() {
            let start = (place.offset_bytes - first.offset_bytes) as usize;
            let payload_start = start + RECORD_HEADER_BYTES;
            let payload = raw.slice(payload_start..payload_start + place.payload_bytes as usize);
            let record = LogRecord::decode(&raw[start..], salt).filter(|record| {
                record.kind == LogRecordKind::Entry
                    && record.ledger_id == ledger_id
                    && record.entry_id == *entry_id
                    && record.matches(&payload)
            });
            match record {
                Some(record) => out.push(ReadEntry {
                    entry_id: *entry_id,
                    last_add_confirmed: record.last_add_confirmed,
                    digest: record.digest,
                    payload,
                }),
                None if at == 0 => {
                    let what = format!("entry {ledger_id}:{entry_id} in log {} at {}", place.log, place.offset_bytes);
                    return Err(StorageError::Corrupt(what));
                }
                None => break,
            }
        }
        Ok(true)
    }

    /// Deletes a log that nothing points to any more.
    pub fn delete(&self, id: u32) -> Result<u64, StorageError> {
        let info = {
            let mut state = self.state.lock();
            match state.logs.get(&id) {
                Some(info) if !info.writing => {}
                _ => return Ok(0),
            }
            state.open.remove(&id);
            state.logs.remove(&id)
        };
        let Some(info) = info else { return Ok(0) };
        let len = fs::metadata(&info.path).map_or(0, |meta| meta.len());
        fs::remove_file(&info.path).map_err(|e| StorageError::io("remove", &info.path, e))?;
        Ok(len)
    }
}

/// Where a record ends.
pub(crate) fn end_of(place: &Place) -> u64 {
    place.offset_bytes + RECORD_HEADER_BYTES as u64 + u64::from(place.payload_bytes)
}

fn damaged_or_io(place: &Place, source: std::io::Error) -> StorageError {
    let what = format!("read log {} at {}", place.log, place.offset_bytes);
    match source.kind() {
        std::io::ErrorKind::UnexpectedEof => StorageError::Corrupt(format!("{what}: the file is too short")),
        _ => StorageError::Io { what, source },
    }
}

fn check_version(path: &Path, name: LogName) -> Result<(), StorageError> {
    let mut header = [0; format::LOG_HEADER_BYTES];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut header, 0));
    match read.ok().and_then(|()| name.decode_header(&header)) {
        Some(LOG_VERSION) => Ok(()),
        Some(version) => Err(StorageError::Version { what: path.display().to_string(), version, known: LOG_VERSION }),
        None => {
            // The name carries what is needed; a log cut in its first bytes by a crash holds nothing.
            tracing::warn!(path = %path.display(), "the header of an entry log is damaged");
            Ok(())
        }
    }
}
