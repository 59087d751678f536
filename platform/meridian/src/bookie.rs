//! `meridian bookie rebuild-index`: work on a storage node's folders while it does not run.

use crate::cli::Failure;
use crate::config::storage::{self, Seat};
use crate::floors;
use meridian_settings::{Key, Settings};
use std::path::Path;

/// Builds the index of every bookie under the data folder anew from its entry logs.
///
/// # Errors
/// A folder that is in use or can't be read.
pub fn rebuild_index(settings: &Settings, data_dir: &Path) -> Result<(), Failure> {
    let _claim = floors::claim(data_dir)?;
    // The id and the cluster are those in the cookies; nothing is asked of the cluster.
    let seats = match Seat::is_alone(data_dir) {
        true => vec![Seat::alone(settings, data_dir, "", None)?],
        false => Seat::embedded(settings, data_dir, settings.text(Key::ClusterName)),
    };
    for seat in &seats {
        let config = storage::bookie(settings, seat);
        let report = meridian_bookie::rebuild_index(&config)?;
        println!(
            "{}: {} entries of {} ledgers found in {} logs; {} damaged records, {} bytes lost",
            config.id, report.entries, report.ledgers, report.logs, report.damaged_records, report.lost_bytes
        );
    }
    Ok(())
}
