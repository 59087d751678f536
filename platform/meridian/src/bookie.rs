//! `meridian bookie`: work on a storage node's folders while it does not run.

use crate::cli::Failure;
use crate::config::storage;
use crate::floors;
use meridian_settings::{Key, Settings};
use std::path::Path;

/// Builds the index of every bookie under the data folder anew from its entry logs.
///
/// # Errors
/// A folder that is in use or can't be read.
pub fn rebuild_index(settings: &Settings, data_dir: &Path) -> Result<(), Failure> {
    let _claim = floors::claim(data_dir)?;
    for index in 0..settings.count(Key::Bookies).max(1) {
        let config = storage::bookie(settings, data_dir, index);
        let id = config.id.clone();
        let report = meridian_bookie::rebuild_index(&config)?;
        println!(
            "{id}: {} entries of {} ledgers found in {} logs; {} damaged records, {} bytes lost",
            report.entries, report.ledgers, report.logs, report.damaged_records, report.lost_bytes
        );
    }
    Ok(())
}
