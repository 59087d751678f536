//! Disk use: when the node refuses adds, and when it takes them again.
//!
//! Role: a pure decision over measured use, and the measuring. Nothing is remembered across a restart: the state
//! follows from the disk as it is.
//! Invariants: D1 (S10) ordinary adds end at the threshold or when less than the reserve is free, before the disk is
//! full; D2 recovery writes, deletes and compaction go on in the reserve, recovery writes until a quarter of it is left;
//! D3 the way back needs every folder below the low threshold and above the reserve, without an operator.
//! Must never know: entries.

use crate::config::DiskConfig;
use std::fs;
use std::path::Path;

/// Use of one folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes used (of the quota, or of the disk).
    pub used_bytes: u64,
    /// The quota or the disk's size.
    pub total_bytes: u64,
}

impl DiskUse {
    /// Used part.
    pub fn part(&self) -> f64 {
        if self.total_bytes == 0 { 1.0 } else { self.used_bytes as f64 / self.total_bytes as f64 }
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.used_bytes)
    }
}

/// What the node takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskState {
    /// Everything.
    Writable,
    /// Recovery writes only.
    ReadOnly,
    /// No adds at all.
    Full,
}

/// The next state (D1, D3).
pub(crate) fn decide(config: &DiskConfig, now: DiskState, folders: &[DiskUse]) -> DiskState {
    let limit = if now == DiskState::Writable { config.threshold } else { config.low_threshold };
    let over = |folder: &DiskUse| folder.part() > limit || folder.free_bytes() < reserve(config, folder);
    let full = |folder: &DiskUse| folder.free_bytes() < reserve(config, folder) / 4;
    if folders.iter().any(full) {
        DiskState::Full
    } else if folders.iter().any(over) {
        DiskState::ReadOnly
    } else {
        DiskState::Writable
    }
}

/// The reserve never takes more than half of a small disk.
fn reserve(config: &DiskConfig, folder: &DiskUse) -> u64 {
    config.reserve_bytes.min(folder.total_bytes / 2)
}

/// Measures one folder. With a quota, what the folder's own files take counts.
pub(crate) fn measure(dir: &Path, quota_bytes: Option<u64>) -> std::io::Result<DiskUse> {
    let stat = rustix::fs::statvfs(dir)?;
    let total_bytes = stat.f_blocks * stat.f_frsize;
    let disk = DiskUse { used_bytes: total_bytes.saturating_sub(stat.f_bavail * stat.f_frsize), total_bytes };
    let Some(quota) = quota_bytes else { return Ok(disk) };
    let quota = DiskUse { used_bytes: folder_bytes(dir), total_bytes: quota };
    Ok(if quota.free_bytes() < disk.free_bytes() { quota } else { disk })
}

/// Bytes of the files in a folder and the folders in it. Files that vanish meanwhile do not count.
pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn config() -> DiskConfig {
        DiskConfig {
            threshold: 0.9,
            low_threshold: 0.8,
            reserve_bytes: 8,
            quota_bytes: None,
            check_interval: Duration::from_secs(1),
        }
    }

    fn used(used_bytes: u64) -> [DiskUse; 1] {
        [DiskUse { used_bytes, total_bytes: 100 }]
    }

    #[test]
    fn golden_script() {
        let mut state = DiskState::Writable;
        let script = [
            (50, DiskState::Writable),
            (90, DiskState::Writable),
            (91, DiskState::ReadOnly),
            (85, DiskState::ReadOnly),
            (99, DiskState::Full),
            (97, DiskState::ReadOnly),
            (80, DiskState::Writable),
            (85, DiskState::Writable),
        ];
        for (at, (used_bytes, expected)) in script.into_iter().enumerate() {
            state = decide(&config(), state, &used(used_bytes));
            assert_eq!(state, expected, "step {at}");
        }
    }

    #[test]
    fn the_reserve_counts_whatever_the_part_and_any_folder_counts() {
        let large = DiskConfig { reserve_bytes: 30, ..config() };
        assert_eq!(decide(&large, DiskState::Writable, &used(75)), DiskState::ReadOnly);
        assert_eq!(decide(&config(), DiskState::Writable, &[used(10)[0], used(95)[0]]), DiskState::ReadOnly);
    }
}
