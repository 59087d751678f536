//! The floors below the broker: metadata, bookies, ledgers, managed ledgers.
//!
//! Invariants: F1 one process owns a data folder, and claims it before it touches anything in it; F2 a process of a
//! cluster works on a store that was initialised for this cluster, or not at all.
//! Failure: an error says which folder, store or setting to change.

use crate::bookies::{OwnBookies, Served};
use crate::cli::Failure;
use crate::cluster::identity::ClusterIdentity;
use crate::config::storage::{self, Seat};
use crate::config::storage_tls;
use crate::front::Front;
use crate::patience::Patience;
use crate::ports::Ports;
use crate::role::Role;
use crate::store::{self, StoreMetrics, StoreUrl};
use meridian_bookie_api::RemoteConfig;
use meridian_ledger::{BookieDirectory, LedgerClient, WatchedBookies};
use meridian_managed_ledger::{CacheSettings, ManagedLedgers};
use meridian_metadata::SharedStore;
use meridian_settings::{Key, Settings};
use meridian_types::RegionId;
use prometheus::Registry as Metrics;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

/// File whose lock says that a process works on the data folder.
const CLAIM_FILE: &str = "in-use.lock";

/// Everything below the broker.
pub struct Floors {
    /// Metadata.
    pub store: SharedStore,
    /// Storage nodes of this process.
    pub bookies: Arc<OwnBookies>,
    /// What others see of them.
    pub served: Option<Served>,
    /// Metrics of all floors.
    pub metrics: Metrics,
    /// Ledgers on the storage nodes of the cluster.
    pub ledgers: Arc<LedgerClient>,
}

impl Floors {
    /// Opens everything that the role needs.
    ///
    /// # Errors
    /// The first folder that is in use, damaged or can't be made; a store that is another cluster's or did not answer in
    /// time.
    pub async fn build(
        role: Role,
        settings: &Settings,
        data_dir: Option<&Path>,
        ports: &mut Ports,
        front: &Arc<Front>,
    ) -> Result<Self, Failure> {
        let metrics = front.metrics().clone();
        let mut patience = Patience::new(settings, front);
        let url = match role {
            Role::Standalone => StoreUrl::Embedded,
            _ => StoreUrl::parse(settings.text(Key::MetadataStoreUrl))?,
        };
        let folder = data_dir.filter(|_| !role.in_cluster());
        let observed = store::await_open(&url, settings, folder, &mut patience).await?;
        metrics.register(Box::new(StoreMetrics::new(&observed)?))?;
        let store: SharedStore = observed;
        let instance = match role {
            Role::Standalone => settings.text(Key::ClusterName).to_owned(),
            _ => {
                let (cluster, url) = (settings.text(Key::ClusterName), settings.text(Key::MetadataStoreUrl));
                let found = patience.until(|| ClusterIdentity::load(&store)).await?;
                ClusterIdentity::demand(found, cluster, url)?.instance
            }
        };
        let seats = match (role, data_dir) {
            (Role::Standalone, Some(data_dir)) => Seat::embedded(settings, data_dir, &instance),
            (Role::Bookie | Role::Node, Some(data_dir)) => {
                vec![Seat::alone(settings, data_dir, &instance, ports.at.bookie)?]
            }
            _ => Vec::new(),
        };
        let bookies = OwnBookies::open(settings, seats, &store, &metrics).await?;
        let served = match ports.bookie.take() {
            Some(ports) => Some(bookies.serve(settings, ports, &store, &metrics, &mut patience).await?),
            None => None,
        };
        let directory: Arc<dyn BookieDirectory> = match role {
            Role::Standalone => bookies.clone(),
            _ => {
                let tls = storage_tls::client(settings)?;
                let remote = RemoteConfig { tls, ..storage::connections(settings) };
                let open = || WatchedBookies::open(store.clone(), bookies.handed(), remote.clone());
                patience.until(open).await?
            }
        };
        let ledgers = Arc::new(LedgerClient::new(store.clone(), directory, storage::ledgers(settings)?));
        Ok(Self { store, bookies, served, metrics, ledgers })
    }

    /// The logs of a broker on these floors.
    pub fn logs(&self, settings: &Settings) -> Arc<ManagedLedgers> {
        let caches = CacheSettings {
            tail_bytes: storage::tail_cache_bytes(settings),
            catch_up_bytes: storage::catch_up_cache_bytes(settings),
            ..CacheSettings::default()
        };
        let region = RegionId::of(settings.text(Key::ClusterName));
        ManagedLedgers::new(self.ledgers.clone(), self.store.clone(), caches, region)
    }

    /// Takes the registration back, then flushes and closes the bookies.
    ///
    /// # Errors
    /// The first bookie that could not write its checkpoint.
    pub async fn close(&self) -> Result<(), Failure> {
        if let Some(served) = &self.served {
            served.end().await;
        }
        self.bookies.close().await
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
