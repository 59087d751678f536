//! The limits of all places: in memory, written by compare-and-set, kept up to date by a watch.
//!
//! Invariants: N1 of the crate.
//! Failure: [`QuotaError`]; a record that can't be read is reported, and the last good one stays in force.

use crate::record::{decode, encode};
use crate::usage::{HOUR_MS, Usage};
use crate::{QuotaError, keys};
use meridian_metadata::{Condition, Entry, MetadataError, SharedStore, Version, Watch, WatchEvent};
use meridian_policy::quota::{Bound, Layer, Limit, Place, Quota, Quotas, smallest};
use meridian_types::TopicName;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// How often a change is tried against others.
const TRIES: usize = 16;
/// How long a change may take to be seen here.
const VISIBLE_IN: Duration = Duration::from_secs(10);
/// Pause before everything is read again after a failure.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Entries read at once.
const PAGE: usize = 1_000;

/// See the module.
pub struct QuotaBook {
    store: SharedStore,
    quotas: RwLock<BTreeMap<Place, Arc<Quotas>>>,
    applied: watch::Sender<Version>,
    keeper: parking_lot::Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Drop for QuotaBook {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

fn read(entries: &[Entry]) -> BTreeMap<Place, Arc<Quotas>> {
    entries
        .iter()
        .filter_map(|entry| {
            let place = keys::parse_limits(&entry.key)?;
            match decode::<Quotas>(&entry.key, &entry.value) {
                Ok(quotas) => Some((place, Arc::new(quotas))),
                Err(error) => {
                    tracing::error!(%error, "a quota can't be read and is not in force");
                    None
                }
            }
        })
        .collect()
}

impl QuotaBook {
    /// Reads everything and keeps it up to date until the last handle is dropped.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn open(store: SharedStore) -> Result<Arc<Self>, QuotaError> {
        let version = store.current_version().await?;
        let quotas = read(&store.scan(keys::LIMITS).await?);
        let changes = store.watch(keys::LIMITS, Some(version)).await?;
        let book = Arc::new(Self {
            store,
            quotas: RwLock::new(quotas),
            applied: watch::Sender::new(version),
            keeper: parking_lot::Mutex::default(),
        });
        let keeper = tokio::spawn(keep(Arc::downgrade(&book), changes));
        *book.keeper.lock() = Some(keeper);
        Ok(book)
    }

    /// Becomes another version with each change that is in force here.
    pub fn changes(&self) -> watch::Receiver<Version> {
        self.applied.subscribe()
    }

    /// The store that it stands on.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The limits of a place.
    pub fn get(&self, place: &Place) -> Option<Arc<Quotas>> {
        self.quotas.read().get(place).cloned()
    }

    /// All places with limits.
    pub fn all(&self) -> BTreeMap<Place, Arc<Quotas>> {
        self.quotas.read().clone()
    }

    /// Places with limits that are this one or lie within it.
    pub fn within(&self, place: &Place) -> Vec<Place> {
        let quotas = self.quotas.read();
        match place {
            Place::Tenant(_) | Place::Namespace(_) => quotas.keys().filter(|one| place.holds(one)).cloned().collect(),
            // Nothing that is deleted with it lies within a topic; looked up, as topics go by the thousand.
            one => quotas.contains_key(one).then(|| one.clone()).into_iter().collect(),
        }
    }

    /// Whether there is any limit at all.
    pub fn is_empty(&self) -> bool {
        self.quotas.read().is_empty()
    }

    /// The smallest bound of a limit among places.
    pub fn bound(&self, limit: Limit, places: &[Place]) -> Option<Bound> {
        let quotas = self.quotas.read();
        smallest(limit, places.iter().filter_map(|place| Some((place, &**quotas.get(place)?))))
    }

    /// The smallest bound on a topic.
    pub fn bound_of(&self, limit: Limit, topic: &TopicName) -> Option<Bound> {
        self.bound(limit, &Place::way_to(topic))
    }

    /// Sets one layer of a place; both empty = there is no record any more.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn set(&self, place: &Place, layer: Layer, quota: &Quota) -> Result<(), QuotaError> {
        self.change(place, layer, |stored| stored.clone_from(quota)).await
    }

    /// Changes one layer of a place, whatever others do at the same time.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn change(&self, place: &Place, layer: Layer, change: impl Fn(&mut Quota)) -> Result<(), QuotaError> {
        let key = keys::limits(place);
        for _ in 0..TRIES {
            let found = self.store.get(&key).await?;
            let mut quotas = match &found {
                Some(entry) => decode::<Quotas>(&key, &entry.value)?,
                None => Quotas::default(),
            };
            change(quotas.layer_mut(layer));
            let condition = found.as_ref().map_or(Condition::Absent, |entry| Condition::Is(entry.version));
            let written = match (quotas.is_empty(), &found) {
                (true, None) => return Ok(()),
                (true, Some(_)) => self.store.delete(&key, condition).await,
                (false, _) => self.store.put(&key, encode(&key, &quotas)?, condition).await,
            };
            match written {
                Ok(version) => return self.wait_for(version).await,
                Err(MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(QuotaError::Busy(place.to_string()))
    }

    /// Forgets the limits of a place that is gone.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn forget(&self, place: &Place) -> Result<(), QuotaError> {
        self.set(place, Layer::Operator, &Quota::default()).await?;
        self.set(place, Layer::Tenant, &Quota::default()).await
    }

    async fn wait_for(&self, version: Version) -> Result<(), QuotaError> {
        let mut applied = self.applied.subscribe();
        let seen = tokio::time::timeout(VISIBLE_IN, applied.wait_for(|applied| *applied >= version)).await;
        match seen {
            Ok(Ok(_)) => Ok(()),
            _ => Err(QuotaError::NotVisible),
        }
    }

    /// Writes what a tenant used in an hour at this broker.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn put_usage(&self, tenant: &str, hour: u64, broker: &str, usage: &Usage) -> Result<(), QuotaError> {
        let key = keys::usage(tenant, hour, broker);
        self.store.put(&key, encode(&key, usage)?, Condition::Any).await?;
        Ok(())
    }

    /// What was written of an hour at this broker, e.g. before a restart.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn written_usage(&self, tenant: &str, hour: u64, broker: &str) -> Result<Usage, QuotaError> {
        let key = keys::usage(tenant, hour, broker);
        match self.store.get(&key).await? {
            Some(entry) => Ok(decode(&key, &entry.value)?),
            None => Ok(Usage::default()),
        }
    }

    /// What a tenant used at all brokers, by the hour, from one time to another.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn usage(&self, tenant: &str, from_ms: u64, to_ms: u64) -> Result<BTreeMap<u64, Usage>, QuotaError> {
        let mut hours: BTreeMap<u64, Usage> = BTreeMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.range(&keys::usage_of(tenant), after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                let Some((hour, _)) = keys::parse_usage(&entry.key) else { continue };
                if hour.saturating_mul(HOUR_MS) < to_ms && (hour + 1).saturating_mul(HOUR_MS) > from_ms {
                    hours.entry(hour).or_default().add(&decode(&entry.key, &entry.value)?, true);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(hours),
            }
        }
    }

    /// Deletes what is older than so many hours before now.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub async fn trim_usage(&self, before_hour: u64) -> Result<usize, QuotaError> {
        let mut after: Option<String> = None;
        let mut deleted = 0;
        loop {
            let page = self.store.range(keys::USAGE, after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                if keys::parse_usage(&entry.key).is_some_and(|(hour, _)| hour < before_hour) {
                    self.store.delete(&entry.key, Condition::Any).await?;
                    deleted += 1;
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(deleted),
            }
        }
    }

    fn apply(&self, event: WatchEvent) {
        match event {
            WatchEvent::Put(entry) => {
                let mut found = read(std::slice::from_ref(&entry));
                self.quotas.write().append(&mut found);
            }
            WatchEvent::Delete { key, .. } => {
                if let Some(place) = keys::parse_limits(&key) {
                    self.quotas.write().remove(&place);
                }
            }
            WatchEvent::Rescan => {}
        }
    }
}

async fn keep(book: Weak<QuotaBook>, mut changes: Box<dyn Watch>) {
    while let Some((event, version)) = changes.next().await {
        if !matches!(event, WatchEvent::Rescan) {
            let Some(book) = book.upgrade() else { return };
            book.apply(event);
            book.applied.send_replace(version);
            continue;
        }
        loop {
            let Some(book) = book.upgrade() else { return };
            match book.store.scan(keys::LIMITS).await {
                Ok(entries) => {
                    *book.quotas.write() = read(&entries);
                    book.applied.send_replace(version);
                    break;
                }
                Err(error) => tracing::warn!(%error, "quotas can't be read again; the last ones stay in force"),
            }
            drop(book);
            tokio::time::sleep(READ_AGAIN).await;
        }
    }
}
