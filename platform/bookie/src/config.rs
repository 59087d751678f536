//! Settings of one storage node.

use crate::error::OpenError;
use meridian_types::BookieId;
use prometheus::Registry;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of one storage node. [`BookieConfig::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct BookieConfig {
    /// Its stable id.
    pub id: BookieId,
    /// The cluster it belongs to: folders of another one are refused (S8).
    pub instance_id: String,
    /// Journal folders, one thread each; a ledger always uses the same one.
    pub journal_dirs: Vec<PathBuf>,
    /// Folders of entry logs.
    pub ledger_dirs: Vec<PathBuf>,
    /// Folder of the index; `None` = `index` in the first ledger folder.
    pub index_dir: Option<PathBuf>,
    /// What the cluster has registered as this node's cookie ([`crate::LocalBookie::cookie`]). With it, empty folders
    /// are refused: the data that the cluster counts on is gone (S8).
    pub registered_cookie: Option<String>,
    /// The journal.
    pub journal: JournalConfig,
    /// Size of each of the two write caches in bytes.
    pub write_cache_bytes: u64,
    /// Size of the read cache in bytes.
    pub read_cache_bytes: u64,
    /// Bytes read ahead of a reader.
    pub read_ahead_bytes: u64,
    /// Threads for reads that touch a disk.
    pub read_threads: usize,
    /// Size of an entry log in bytes.
    pub entry_log_bytes: u64,
    /// Largest entry taken.
    pub max_entry_bytes: u64,
    /// A checkpoint is made at least so often while there is something to store.
    pub flush_interval: Duration,
    /// Disk use.
    pub disk: DiskConfig,
    /// Compaction.
    pub compaction: CompactionConfig,
    /// Where metrics are registered.
    pub registry: Registry,
}

/// The journal's settings.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// Size of a journal file in bytes.
    pub file_bytes: u64,
    /// Size of a file that must be made at once because none was filled ahead.
    pub first_file_bytes: u64,
    /// Free files kept.
    pub pool_files: usize,
    /// Bytes that may wait; beyond, adds are refused as busy.
    pub queue_bytes: u64,
    /// Bytes of one sync group at most.
    pub group_bytes: u64,
    /// Bytes of one write.
    pub buffer_bytes: usize,
    /// Open files with O_DIRECT.
    pub direct: bool,
    /// Nice value of the journal thread (needs the privilege if below 0).
    pub nice: Option<i32>,
}

/// Limits of disk use.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Used part of a folder's disk or quota at which the node becomes read-only.
    pub threshold: f64,
    /// Used part below which it takes adds again.
    pub low_threshold: f64,
    /// Free bytes below which the node becomes read-only, whatever the part: room for what is in the caches and for
    /// recovery writes and compaction.
    pub reserve_bytes: u64,
    /// Bytes that the node may use per folder, if less than the disk.
    pub quota_bytes: Option<u64>,
    /// How often it looks.
    pub check_interval: Duration,
}

/// When entry logs are rewritten.
#[derive(Debug, Clone)]
pub struct CompactionConfig {
    /// Minor: logs with a live part below this.
    pub minor_threshold: f64,
    /// At least so long after the last minor one.
    pub minor_interval: Duration,
    /// Major: logs with a live part below this.
    pub major_threshold: f64,
    /// At least so long after the last major one.
    pub major_interval: Duration,
    /// Bytes rewritten per second.
    pub rate_bytes_per_second: u64,
}

const MIB: u64 = 1 << 20;

impl BookieConfig {
    /// Defaults, with one journal and one ledger folder.
    pub fn new(id: BookieId, journal_dir: impl Into<PathBuf>, ledger_dir: impl Into<PathBuf>) -> Self {
        Self {
            id,
            instance_id: String::new(),
            journal_dirs: vec![journal_dir.into()],
            ledger_dirs: vec![ledger_dir.into()],
            index_dir: None,
            registered_cookie: None,
            journal: JournalConfig {
                file_bytes: 64 * MIB,
                first_file_bytes: 4 * MIB,
                pool_files: 4,
                queue_bytes: 64 * MIB,
                group_bytes: 8 * MIB,
                buffer_bytes: MIB as usize,
                direct: false,
                nice: None,
            },
            write_cache_bytes: 64 * MIB,
            read_cache_bytes: 32 * MIB,
            read_ahead_bytes: MIB / 2,
            read_threads: 2,
            entry_log_bytes: 1024 * MIB,
            max_entry_bytes: 64 * MIB,
            flush_interval: Duration::from_secs(60),
            disk: DiskConfig {
                threshold: 0.95,
                low_threshold: 0.90,
                reserve_bytes: 256 * MIB,
                quota_bytes: None,
                check_interval: Duration::from_secs(10),
            },
            compaction: CompactionConfig {
                minor_threshold: 0.2,
                minor_interval: Duration::from_secs(3600),
                major_threshold: 0.5,
                major_interval: Duration::from_secs(86_400),
                rate_bytes_per_second: 64 * MIB,
            },
            registry: Registry::new(),
        }
    }

    /// Folder of the index.
    pub fn index_path(&self) -> PathBuf {
        match (&self.index_dir, self.ledger_dirs.first()) {
            (Some(dir), _) => dir.clone(),
            (None, Some(first)) => first.join("index"),
            (None, None) => PathBuf::from("index"),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), OpenError> {
        let refuse = |setting, expected: &str| Err(OpenError::Setting { setting, expected: expected.to_owned() });
        if self.journal_dirs.is_empty() {
            return refuse("journal_dirs", "at least one folder");
        }
        if self.ledger_dirs.is_empty() {
            return refuse("ledger_dirs", "at least one folder");
        }
        if self.id.as_str().is_empty() || self.id.as_str().contains(['\n', '\r']) {
            return refuse("id", "one line of text");
        }
        let parts = [self.disk.threshold, self.disk.low_threshold];
        if parts.iter().any(|part| !(0.0..=1.0).contains(part)) || self.disk.low_threshold > self.disk.threshold {
            return refuse("disk.threshold", "0 ≤ low threshold ≤ threshold ≤ 1");
        }
        if self.max_entry_bytes >= u64::from(u32::MAX) - 4096 {
            return refuse("max_entry_bytes", "less than 4 GiB");
        }
        if self.write_cache_bytes == 0 || self.journal.queue_bytes == 0 || self.read_threads == 0 {
            return refuse("write_cache_bytes, journal.queue_bytes, read_threads", "more than 0");
        }
        Ok(())
    }
}
