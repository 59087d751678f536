//! The floors below the broker: metadata, bookies, ledgers, managed ledgers.
//!
//! Invariants: a bookie's cookie is registered in metadata when it is first seen, and from then on a bookie with wiped
//! folders is refused (S8); garbage collection works on a complete listing only (S6).

use crate::cli::Failure;
use crate::config::storage;
use crate::standalone::metadata_dir;
use meridian_bookie::{DiskState, LocalBookie};
use meridian_bookie_api::Bookie;
use meridian_ledger::{BookieDirectory, LedgerClient, keys};
use meridian_managed_ledger::{CacheSettings, ManagedLedgers};
use meridian_metadata::{Condition, RocksStore, SharedStore};
use meridian_settings::{Key, Settings};
use meridian_topology::Location;
use meridian_types::{BookieId, LedgerId, RegionId};
use prometheus::Registry as Metrics;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

/// Where cookies of bookies stand in metadata.
const COOKIES: &str = "bookies/cookies/";
/// File whose lock says that a process works on the data folder.
const CLAIM_FILE: &str = "in-use.lock";
/// Ledgers asked for in one page of a listing.
const LISTING_PAGE: usize = 1000;

/// The bookies of this process.
pub struct Bookies {
    all: Vec<Arc<LocalBookie>>,
    /// Of the first ones, in their order.
    locations: Vec<Location>,
}

impl Bookies {
    /// Whether a bookie is short of disk, so that garbage should go now.
    pub fn short_of_disk(&self) -> bool {
        self.all.iter().any(|bookie| bookie.disk_state() != DiskState::Writable)
    }

    /// Deletes entries of ledgers that are gone. An error leaves them for the next time.
    pub async fn collect_garbage(&self, store: &SharedStore) {
        for bookie in &self.all {
            if let Err(error) = collect(bookie, store).await {
                tracing::warn!(bookie = %bookie.id(), %error, "garbage was not collected; it will be tried again");
            }
        }
    }
}

/// One bookie's garbage, judged by a complete listing of the ledgers that exist (S6).
async fn collect(bookie: &Arc<LocalBookie>, store: &SharedStore) -> Result<(), Failure> {
    let held = bookie.clone();
    let mut listing = tokio::task::spawn_blocking(move || held.begin_listing()).await??;
    let mut after: Option<String> = None;
    loop {
        let page = store.range(keys::RECORD_PREFIX, after.as_deref(), LISTING_PAGE).await?;
        listing.page(page.entries.iter().filter_map(|entry| keys::ledger_of(&entry.key)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let live = if listing.names_nothing() {
        // Nothing lives any more, or the store was wiped: an id that it gives out now tells which.
        let next = store.allocate(keys::ID_SEQUENCE, 1).await?;
        listing.complete_below(LedgerId(i64::try_from(next)?))
    } else {
        listing.complete()?
    };
    let bookie = bookie.clone();
    tokio::task::spawn_blocking(move || bookie.gc(&live)).await??;
    Ok(())
}

impl BookieDirectory for Bookies {
    fn writable(&self) -> Vec<BookieId> {
        let writable = self.all.iter().filter(|bookie| bookie.disk_state() == DiskState::Writable);
        writable.map(|bookie| bookie.id().clone()).collect()
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        self.all.iter().find(|bookie| bookie.id() == id).map(|bookie| bookie.clone() as Arc<dyn Bookie>)
    }

    fn location(&self, id: &BookieId) -> Location {
        let at = self.all.iter().position(|bookie| bookie.id() == id);
        at.and_then(|at| self.locations.get(at).cloned()).unwrap_or_default()
    }
}

/// Everything below the broker.
pub struct Floors {
    /// Metadata.
    pub store: SharedStore,
    /// Storage nodes.
    pub bookies: Arc<Bookies>,
    /// Logs.
    pub logs: Arc<ManagedLedgers>,
    /// Metrics of all floors.
    pub metrics: Metrics,
}

impl Floors {
    /// Opens everything under the data folder.
    ///
    /// # Errors
    /// The first folder that is in use, damaged or can't be made.
    pub async fn build(settings: &Settings, data_dir: &Path) -> Result<Self, Failure> {
        let store: SharedStore = Arc::new(RocksStore::open(&metadata_dir(data_dir))?);
        let metrics = Metrics::new();
        let mut all = Vec::new();
        for index in 0..settings.count(Key::Bookies).max(1) {
            all.push(open_bookie(settings, data_dir, index, &store, &metrics).await?);
        }
        let bookies = Arc::new(Bookies { all, locations: storage::bookie_locations(settings)? });
        let ledgers = Arc::new(LedgerClient::new(store.clone(), bookies.clone(), storage::ledgers(settings)?));
        let caches = CacheSettings {
            tail_bytes: storage::tail_cache_bytes(settings),
            catch_up_bytes: storage::catch_up_cache_bytes(settings),
            ..CacheSettings::default()
        };
        let region = RegionId::of(settings.text(Key::ClusterName));
        let logs = ManagedLedgers::new(ledgers, store.clone(), caches, region);
        Ok(Self { store, bookies, logs, metrics })
    }

    /// Flushes and closes the bookies.
    ///
    /// # Errors
    /// The first bookie that could not write its checkpoint.
    pub async fn close(&self) -> Result<(), Failure> {
        for bookie in self.bookies.all.clone() {
            tokio::task::spawn_blocking(move || bookie.close()).await??;
        }
        Ok(())
    }
}

/// Claims a data folder for this process, as long as the file is kept; made if absent. The end of the process gives it
/// back, however it ends.
///
/// # Errors
/// The folder, if another process has it or it can't be written.
pub fn claim(data_dir: &Path) -> Result<File, Failure> {
    let named = |error: &dyn std::fmt::Display| format!("--data-dir {}: {error}", data_dir.display());
    std::fs::create_dir_all(data_dir).map_err(|error| named(&error))?;
    let file = File::options().create(true).truncate(false).write(true).open(data_dir.join(CLAIM_FILE));
    let file = file.map_err(|error| named(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(named(&"the folder is in use by another process").into()),
        Err(TryLockError::Error(error)) => Err(named(&error).into()),
    }
}

async fn open_bookie(
    settings: &Settings,
    data_dir: &Path,
    index: u64,
    store: &SharedStore,
    metrics: &Metrics,
) -> Result<Arc<LocalBookie>, Failure> {
    let mut config = storage::bookie(settings, data_dir, index);
    let key = format!("{COOKIES}{}", config.id);
    let registered = store.get(&key).await?;
    config.registered_cookie = match &registered {
        Some(entry) => Some(String::from_utf8(entry.value.to_vec())?),
        None => None,
    };
    config.registry = metrics.clone();
    let bookie = tokio::task::spawn_blocking(move || LocalBookie::open(config)).await??;
    if registered.is_none() {
        store.put(&key, bookie.cookie(), Condition::Absent).await?;
    }
    Ok(bookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("data");
        let first = claim(&home).unwrap();
        let refused = claim(&home).unwrap_err().to_string();
        assert!(refused.contains("in use by another process") && refused.contains(home.to_str().unwrap()), "{refused}");
        drop(first);
        claim(&home).unwrap();
    }
}
