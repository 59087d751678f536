//! The journal's files on disk: zero-filled ahead, taken into use by a rename, recycled after a checkpoint.
//!
//! Role: writing into extents that were written before costs half of writing into new ones, so files are filled with
//! zeros once, ahead of use, and used again. A node that starts for the first time makes a small file at once, so that
//! its first ack does not wait for a large one; the large one is filled in the background when it will be needed.
//! Invariants: L1 a file in use has its sequence and epoch in its name, synced in the folder, before the first record
//! is written; L2 sequences only grow, and none is left out: one that could not be made leaves no file and no gap; L3 at most `pool_files` free files are kept, and only
//! [`HELD_FREE_FILES`] while the disk is short: free files count as used, and would keep it short for ever.
//! Failure: a file that cannot be made is an error of this call only; the next call tries again.
//! Must never know: records.

use super::buffer::AlignedBuffer;
use super::record::{BLOCK_BYTES, FileHeader, round_up_to_block};
use crate::error::StorageError;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILL_CHUNK_BYTES: usize = 1 << 20;
/// A background fill syncs after so many bytes, so that it never hands the disk one large burst.
const FILL_SYNC_BYTES: u64 = 4 << 20;

/// Pause after a file that could not be filled: each attempt writes it from its begin.
const FILL_PAUSE: Duration = Duration::from_secs(60);

/// Free files kept while the disk is short, so that fences and recovery writes go on.
const HELD_FREE_FILES: usize = 1;

/// Journal files in order.
pub(crate) type UsedFiles = Vec<(FileHeader, PathBuf)>;

/// Sizes and ways of the files.
#[derive(Debug, Clone)]
pub(crate) struct FileSettings {
    pub dir: PathBuf,
    pub file_bytes: u64,
    pub first_file_bytes: u64,
    pub pool_files: usize,
    pub direct: bool,
}

/// A file being written.
#[derive(Debug)]
pub(crate) struct JournalFile {
    pub header: FileHeader,
    pub file: File,
    pub len_bytes: u64,
}

#[derive(Debug, Default)]
struct Pool {
    free: Vec<(PathBuf, u64)>,
    filling: bool,
    failed: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct JournalFiles {
    settings: FileSettings,
    pool: Mutex<Pool>,
    next_sequence: AtomicU64,
    next_free_name: AtomicU64,
    hold_fill: AtomicBool,
}

impl JournalFiles {
    /// Looks through the folder: the journal files in order, and the store of free ones.
    pub fn open(settings: FileSettings) -> Result<(Arc<Self>, UsedFiles), StorageError> {
        let mut used = Vec::new();
        let mut pool = Pool::default();
        let mut last_free_name = 0;
        for entry in fs::read_dir(&settings.dir).map_err(|e| StorageError::io("list", &settings.dir, e))? {
            let path = entry.map_err(|e| StorageError::io("list", &settings.dir, e))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if let Some(header) = FileHeader::from_file_name(name) {
                used.push((header, path));
            } else if name.ends_with(".filling") {
                fs::remove_file(&path).map_err(|e| StorageError::io("remove", &path, e))?;
            } else if let Some(number) = name.strip_prefix("pool-").and_then(|rest| rest.strip_suffix(".free")) {
                last_free_name = last_free_name.max(number.parse().unwrap_or(0));
                let len = fs::metadata(&path).map_err(|e| StorageError::io("stat", &path, e))?.len();
                pool.free.push((path, len));
            }
        }
        used.sort_by_key(|(header, _)| header.sequence);
        let next_sequence = used.last().map_or(1, |(header, _)| header.sequence + 1);
        let files = Self {
            settings,
            pool: Mutex::new(pool),
            next_sequence: AtomicU64::new(next_sequence),
            next_free_name: AtomicU64::new(last_free_name + 1),
            hold_fill: AtomicBool::new(false),
        };
        Ok((Arc::new(files), used))
    }

    /// Keeps later sequences above `sequence` (a checkpoint may know of files that are gone).
    pub fn raise_sequence(&self, sequence: u64) {
        self.next_sequence.fetch_max(sequence + 1, Ordering::Relaxed);
    }

    /// While the disk is nearly full: stops background fills and gives free files back to it.
    pub fn hold_fill(&self, hold: bool) {
        self.hold_fill.store(hold, Ordering::Relaxed);
        let mut pool = self.pool.lock();
        while pool.free.len() > self.free_files_max()
            && let Some((path, _)) = pool.free.pop()
        {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a free journal file could not be removed");
            }
        }
    }

    fn free_files_max(&self) -> usize {
        match self.hold_fill.load(Ordering::Relaxed) {
            true => self.settings.pool_files.min(HELD_FREE_FILES),
            false => self.settings.pool_files,
        }
    }

    /// The sequence of the next file: everything in front of it is in files with lower ones.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::Relaxed)
    }

    /// The next file, with room for `min_bytes` of records (L1). One thread takes.
    pub fn take(&self, min_bytes: u64) -> Result<JournalFile, StorageError> {
        let header = FileHeader { sequence: self.next_sequence(), epoch: random_epoch() };
        let path = self.settings.dir.join(header.file_name());
        let taken = self.take_as(header, &path, min_bytes);
        match &taken {
            Ok(_) => self.next_sequence.store(header.sequence + 1, Ordering::Relaxed),
            // Two files of one sequence would be a damage (L2).
            Err(_) => drop(fs::remove_file(&path)),
        }
        taken
    }

    fn take_as(&self, header: FileHeader, path: &Path, min_bytes: u64) -> Result<JournalFile, StorageError> {
        let need = round_up_to_block(min_bytes) + BLOCK_BYTES as u64;
        let free = {
            let mut pool = self.pool.lock();
            let at = pool.free.iter().position(|(_, len)| *len >= need);
            at.map(|at| pool.free.swap_remove(at))
        };
        let len_bytes = match free {
            Some((free, len)) => {
                fs::rename(&free, path).map_err(|e| StorageError::io("rename", &free, e))?;
                len
            }
            None => {
                let len = round_up_to_block(self.settings.first_file_bytes).max(need);
                zero_fill(path, len)?;
                len
            }
        };
        let file = self.open_for_writing(path)?;
        // What is cached of the file stands in large pieces, and a small record written into one dirties all of it. Dropped,
        // each write brings pages of its own size. It is advice: a system that does not follow it only writes more.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        block.fill(&header.encode());
        block.pad();
        file.write_all_at(block.as_slice(), 0).map_err(|e| StorageError::io("write", path, e))?;
        file.sync_data().map_err(|e| StorageError::io("sync", path, e))?;
        sync_dir(&self.settings.dir)?;
        Ok(JournalFile { header, file, len_bytes })
    }

    fn open_for_writing(&self, path: &Path) -> Result<File, StorageError> {
        let mut options = OpenOptions::new();
        options.write(true);
        if self.settings.direct {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        }
        options.open(path).map_err(|e| StorageError::io("open", path, e))
    }

    /// Gives back every file in front of `sequence`: recycled if it has the ordinary size and there is room (L3).
    pub fn release_before(&self, sequence: u64) -> Result<usize, StorageError> {
        let mut released = 0;
        for entry in fs::read_dir(&self.settings.dir).map_err(|e| StorageError::io("list", &self.settings.dir, e))? {
            let path = entry.map_err(|e| StorageError::io("list", &self.settings.dir, e))?.path();
            let header = path.file_name().and_then(|name| name.to_str()).and_then(FileHeader::from_file_name);
            if header.is_none_or(|header| header.sequence >= sequence) {
                continue;
            }
            self.recycle(&path)?;
            released += 1;
        }
        Ok(released)
    }

    fn recycle(&self, path: &Path) -> Result<(), StorageError> {
        let len = fs::metadata(path).map_err(|e| StorageError::io("stat", path, e))?.len();
        let mut pool = self.pool.lock();
        if len != self.settings.file_bytes || pool.free.len() >= self.free_files_max() {
            return fs::remove_file(path).map_err(|e| StorageError::io("remove", path, e));
        }
        let free = self.free_path();
        fs::rename(path, &free).map_err(|e| StorageError::io("rename", path, e))?;
        pool.free.push((free, len));
        Ok(())
    }

    fn free_path(&self) -> PathBuf {
        self.settings.dir.join(format!("pool-{:016}.free", self.next_free_name.fetch_add(1, Ordering::Relaxed)))
    }

    /// Starts to fill one file in the background unless one is there or being made.
    pub fn fill_ahead(self: &Arc<Self>) {
        {
            let mut pool = self.pool.lock();
            let failed_lately = pool.failed.is_some_and(|failed| failed.elapsed() < FILL_PAUSE);
            if failed_lately || pool.filling || !pool.free.is_empty() || self.hold_fill.load(Ordering::Relaxed) {
                return;
            }
            pool.filling = true;
        }
        let files = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("journal-fill".to_owned()).spawn(move || files.fill_one());
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread to fill a journal file ahead; the journal makes small ones");
            self.pool.lock().filling = false;
        }
    }

    fn fill_one(&self) {
        let free = self.free_path();
        let filling = free.with_extension("filling");
        let len = round_up_to_block(self.settings.file_bytes);
        let made = zero_fill(&filling, len)
            .and_then(|()| fs::rename(&filling, &free).map_err(|e| StorageError::io("rename", &filling, e)));
        let mut pool = self.pool.lock();
        pool.filling = false;
        pool.failed = made.is_err().then(Instant::now);
        match made {
            Ok(()) => pool.free.push((free, len)),
            Err(error) => {
                let _ = fs::remove_file(&filling);
                tracing::warn!(%error, "could not fill a journal file ahead; the journal makes small ones");
            }
        }
    }
}

fn zero_fill(path: &Path, len_bytes: u64) -> Result<(), StorageError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| StorageError::io("create", path, e))?;
    let zeros = vec![0; FILL_CHUNK_BYTES];
    let mut at = 0;
    while at < len_bytes {
        let chunk = (len_bytes - at).min(FILL_CHUNK_BYTES as u64);
        file.write_all_at(&zeros[..chunk as usize], at).map_err(|e| StorageError::io("fill", path, e))?;
        at += chunk;
        if at % FILL_SYNC_BYTES == 0 && at < len_bytes {
            file.sync_data().map_err(|e| StorageError::io("sync", path, e))?;
        }
    }
    file.sync_all().map_err(|e| StorageError::io("sync", path, e))
}

/// Makes renames and creations in the folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| StorageError::io("sync folder", dir, e))
}

/// A number that nobody outside can guess.
pub(crate) fn random_epoch() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dir: &Path) -> FileSettings {
        FileSettings {
            dir: dir.to_owned(),
            file_bytes: 64 << 10,
            first_file_bytes: 16 << 10,
            pool_files: 1,
            direct: false,
        }
    }

    #[test]
    fn files_are_recycled_under_a_new_identity() {
        let dir = tempfile::tempdir().unwrap();
        let (files, used) = JournalFiles::open(settings(dir.path())).unwrap();
        assert!(used.is_empty());
        let small = files.take(100).unwrap();
        assert_eq!((small.header.sequence, small.len_bytes), (1, 16 << 10));
        files.fill_one();
        let large = files.take(100).unwrap();
        assert_eq!((large.header.sequence, large.len_bytes), (2, 64 << 10));
        assert_eq!(files.release_before(3).unwrap(), 2);
        assert_eq!(files.pool.lock().free.len(), 1, "the small one is not kept");
        let again = files.take(100).unwrap();
        assert_eq!((again.header.sequence, again.len_bytes), (3, 64 << 10));
        assert_ne!(again.header.epoch, large.header.epoch);
        let (_, used) = JournalFiles::open(settings(dir.path())).unwrap();
        assert_eq!(used.iter().map(|(header, _)| *header).collect::<Vec<_>>(), [again.header]);
    }

    #[test]
    fn free_files_are_given_back_while_the_disk_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _) = JournalFiles::open(FileSettings { pool_files: 3, ..settings(dir.path()) }).unwrap();
        (0..3).for_each(|_| files.fill_one());
        assert_eq!(files.pool.lock().free.len(), 3);
        files.hold_fill(true);
        assert_eq!(files.pool.lock().free.len(), 1);
        let used = [files.take(100).unwrap(), files.take(100).unwrap()];
        files.release_before(used[1].header.sequence).unwrap();
        assert_eq!(files.pool.lock().free.len(), 1);
        let on_disk = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(on_disk, 2, "one free, one in use");
    }

    /// Otherwise a replay would take the gap for lost files.
    #[test]
    fn a_file_that_can_not_be_made_leaves_no_gap() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("journal");
        fs::create_dir(&home).unwrap();
        let (files, _) = JournalFiles::open(settings(&home)).unwrap();
        assert_eq!(files.take(100).unwrap().header.sequence, 1);
        fs::rename(&home, dir.path().join("away")).unwrap();
        for _ in 0..3 {
            assert!(files.take(100).is_err());
        }
        fs::rename(dir.path().join("away"), &home).unwrap();
        assert_eq!((files.next_sequence(), files.take(100).unwrap().header.sequence), (2, 2));
    }

    #[test]
    fn an_entry_larger_than_a_file_gets_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _) = JournalFiles::open(settings(dir.path())).unwrap();
        assert!(files.take(1 << 20).unwrap().len_bytes > 1 << 20);
    }
}
