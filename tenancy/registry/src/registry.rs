//! The registry: opened once, read by everyone, kept up to date by a task.
//!
//! Invariants: R1, R2 of the crate.
//! Failure: a watch that ends is begun again; what was missed meanwhile is read anew.
//! Must never know: who reads.

use crate::RegistryError;
use crate::cache::{Cache, Meaning};
use crate::keys::{Key, PREFIX};
use crate::learn::Reads;
use crate::shared::{Sharing, SharingSettings};
use crate::write::Turns;
use arc_swap::ArcSwap;
use meridian_metadata::{MetadataError, SharedStore, Version, Watch, WatchEvent};
use meridian_policy::{
    BrokerDefaults, ClusterData, EffectivePolicies, PartitionedTopic, Policies, TenantInfo, TopicPolicies, resolve,
};
use meridian_topology::SharedChange;
use meridian_types::{NamespaceName, RegionId, TopicName};
use parking_lot::RwLock;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

/// Changes that a receiver may leave unread before it is told that it missed some.
const CHANGES_QUEUED: usize = 1024;
/// How long a write waits until it is seen here.
const VISIBLE_DEADLINE_MS: u64 = 10_000;
/// Pause before a watch that ended is begun again.
const WATCH_AGAIN_MS: u64 = 500;

/// Records read at once, so that what is read and what is made of it are not in memory together.
const PAGE: usize = 1_000;

/// What changed; read the registry for the new state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Changed {
    /// A cluster.
    Cluster(String),
    /// A tenant.
    Tenant(String),
    /// The policies of a namespace, or it was created or deleted.
    Namespace(NamespaceName),
    /// The policies of a topic (all its partitions).
    TopicPolicies(TopicName),
    /// A partitioned topic was created, grew or was deleted.
    Partitioned(TopicName),
    /// The schemas that a topic shares with other regions.
    Schemas(TopicName),
    /// The broker's defaults, or anything: look at everything again.
    Everything,
}

/// See the module.
pub struct Registry {
    pub(crate) store: SharedStore,
    pub(crate) cache: RwLock<Cache>,
    pub(crate) sharing: Sharing,
    pub(crate) reads: Reads,
    pub(crate) turns: Turns,
    defaults: ArcSwap<BrokerDefaults>,
    changes: broadcast::Sender<Changed>,
    /// The version up to which the cache holds the store.
    applied: watch::Sender<Version>,
    keeper: parking_lot::Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Registry {
    /// Reads everything and keeps it up to date until the last handle is dropped.
    ///
    /// # Errors
    /// [`RegistryError::Store`] if the store can't be read.
    pub async fn open(store: SharedStore, defaults: BrokerDefaults) -> Result<Arc<Self>, RegistryError> {
        Self::open_with(store, defaults, SharingSettings::default()).await
    }

    /// As [`Registry::open`], with what bounds the sharing with other regions.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_with(
        store: SharedStore,
        defaults: BrokerDefaults,
        settings: SharingSettings,
    ) -> Result<Arc<Self>, RegistryError> {
        let version = store.current_version().await?;
        let cache = read_all(&store).await?;
        let changes = store.watch(PREFIX, Some(version)).await?;
        let sharing = Sharing::new(RegionId::of(&defaults.cluster), settings);
        sharing.recover(cache.latest);
        let registry = Arc::new(Self {
            store,
            cache: RwLock::new(cache),
            sharing,
            reads: Reads::default(),
            turns: Turns::default(),
            defaults: ArcSwap::from_pointee(defaults),
            changes: broadcast::Sender::new(CHANGES_QUEUED),
            applied: watch::Sender::new(version),
            keeper: parking_lot::Mutex::new(None),
        });
        let keeper = tokio::spawn(keep(Arc::downgrade(&registry), changes));
        *registry.keeper.lock() = Some(keeper);
        Ok(registry)
    }

    /// Changes from now on. A receiver that lagged has to look at everything again.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// The broker's defaults.
    pub fn defaults(&self) -> Arc<BrokerDefaults> {
        self.defaults.load_full()
    }

    /// Sets the broker's defaults, when its settings were changed.
    pub fn set_defaults(&self, defaults: BrokerDefaults) {
        self.defaults.store(Arc::new(defaults));
        self.tell(Changed::Everything);
    }

    /// The clusters' names.
    pub fn clusters(&self) -> Vec<String> {
        self.cache.read().clusters.keys().cloned().collect()
    }

    /// A cluster.
    pub fn cluster(&self, name: &str) -> Option<Arc<ClusterData>> {
        self.cache.read().clusters.get(name).cloned()
    }

    /// The tenants' names.
    pub fn tenants(&self) -> Vec<String> {
        self.cache.read().tenants.keys().cloned().collect()
    }

    /// A tenant.
    pub fn tenant(&self, name: &str) -> Option<Arc<TenantInfo>> {
        self.cache.read().tenants.get(name).cloned()
    }

    /// The namespaces of a tenant, `None` if there is no such tenant.
    pub fn namespaces(&self, tenant: &str) -> Option<Vec<NamespaceName>> {
        let cache = self.cache.read();
        cache.tenants.get(tenant)?;
        Some(cache.namespaces.of_tenant(tenant).cloned().collect())
    }

    /// All namespaces.
    pub fn all_namespaces(&self) -> Vec<NamespaceName> {
        self.cache.read().namespaces.names().cloned().collect()
    }

    /// How many namespaces there are.
    pub fn namespace_count(&self) -> usize {
        self.cache.read().namespaces.len()
    }

    /// Namespaces that are to be in other regions, or have topics that are by their own policies, in order.
    pub fn namespaces_beyond(&self) -> Vec<NamespaceName> {
        let own = self.defaults().cluster.clone();
        self.cache.read().beyond(&own).into_iter().collect()
    }

    /// The resource group of a namespace, if it names one.
    pub fn resource_group(&self, name: &NamespaceName) -> Option<String> {
        self.cache.read().namespaces.resource_group(name)
    }

    /// The policies of a namespace, `None` if it does not exist.
    pub fn namespace(&self, name: &NamespaceName) -> Option<Arc<Policies>> {
        self.cache.read().namespaces.get(name)
    }

    /// The policies of a topic, if some are set; those of a partition are its topic's.
    pub fn topic_policies(&self, topic: &TopicName) -> Option<Arc<TopicPolicies>> {
        self.cache.read().topic_policies.get(&topic.base()).cloned()
    }

    /// A partitioned topic, `None` if this is not the name of one.
    pub fn partitioned_topic(&self, topic: &TopicName) -> Option<Arc<PartitionedTopic>> {
        self.cache.read().partitioned.get(&topic.namespace())?.get(topic).cloned()
    }

    /// How many partitions, `None` if this is not the name of a partitioned topic.
    pub fn partitions(&self, topic: &TopicName) -> Option<u32> {
        self.partitioned_topic(topic).map(|partitioned| partitioned.partitions)
    }

    /// The partitioned topics of a namespace.
    pub fn partitioned_topics(&self, namespace: &NamespaceName) -> Vec<TopicName> {
        let cache = self.cache.read();
        cache.partitioned.get(namespace).map_or_else(Vec::new, |topics| topics.keys().cloned().collect())
    }

    /// What is in force for a topic or partition. A namespace that does not exist counts as one with nothing set.
    pub fn effective(&self, topic: &TopicName) -> EffectivePolicies {
        let (namespace, policies) = {
            let cache = self.cache.read();
            (cache.namespaces.get(&topic.namespace()), cache.topic_policies.get(&topic.base()).cloned())
        };
        resolve(policies.as_deref(), &namespace.unwrap_or_default(), &self.defaults.load())
    }

    /// What is in force for topics of a namespace that set nothing themselves.
    pub fn effective_namespace(&self, namespace: &NamespaceName) -> EffectivePolicies {
        resolve(None, &self.namespace(namespace).unwrap_or_default(), &self.defaults.load())
    }

    /// Waits until the cache holds a version (R2).
    pub(crate) async fn visible(&self, version: Version) -> Result<(), RegistryError> {
        self.applied_until(|applied| *applied >= version).await
    }

    /// Waits until the cache does not hold a key any more (R2).
    pub(crate) async fn visibly_gone(&self, key: &Key) -> Result<(), RegistryError> {
        self.applied_until(|_| !self.cache.read().holds(key)).await
    }

    /// Waits until the cache holds a key.
    pub(crate) async fn visibly_there(&self, key: &Key) -> Result<(), RegistryError> {
        self.applied_until(|_| self.cache.read().holds(key)).await
    }

    async fn applied_until(&self, holds: impl FnMut(&Version) -> bool) -> Result<(), RegistryError> {
        let mut applied = self.applied.subscribe();
        let reached = applied.wait_for(holds);
        match tokio::time::timeout(Duration::from_millis(VISIBLE_DEADLINE_MS), reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(RegistryError::NotVisible),
        }
    }

    fn tell(&self, changed: Changed) {
        // Nobody may be listening.
        let _ = self.changes.send(changed);
    }

    fn apply(&self, event: WatchEvent, position: Version) {
        let applied = {
            let mut cache = self.cache.write();
            let applied = match &event {
                WatchEvent::Put(entry) => cache.apply(&entry.key, Some(&entry.value)),
                WatchEvent::Delete { key, .. } => cache.apply(key, None),
                WatchEvent::Rescan => Ok(Meaning::default()),
            };
            // What is written later here is later than everything that was seen here.
            self.sharing.recover(cache.latest);
            applied
        };
        let meaning = applied.unwrap_or_else(|error| {
            tracing::error!(%error, "a record of the registry is left out");
            Meaning { changed: Some(Changed::Everything), shared: Vec::new() }
        });
        // Told first: who waited for the change finds it among the changes told.
        if let Some(changed) = meaning.changed {
            self.tell(changed);
        }
        self.applied.send_replace(position);
        meaning.shared.into_iter().for_each(|shared| self.sharing.tell(shared));
    }

    async fn rescan(&self) -> Result<Version, RegistryError> {
        let version = self.store.current_version().await?;
        let cache = read_all(&self.store).await?;
        self.sharing.recover(cache.latest);
        *self.cache.write() = cache;
        self.applied.send_replace(version);
        self.tell(Changed::Everything);
        self.sharing.tell(SharedChange::Everything);
        Ok(version)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

/// Everything, page by page: the next is on its way while one is looked at.
async fn read_all(store: &SharedStore) -> Result<Cache, MetadataError> {
    let mut cache = Cache::default();
    let mut page = store.range(PREFIX, None, PAGE).await?;
    let mut ahead = JoinSet::new();
    loop {
        if let Some(after) = page.next {
            let store = store.clone();
            ahead.spawn(async move { store.range(PREFIX, Some(&after), PAGE).await });
        }
        cache.load(&page.entries);
        match ahead.join_next().await {
            Some(Ok(next)) => page = next?,
            Some(Err(error)) => return Err(MetadataError::Unavailable(format!("the read was ended: {error}"))),
            None => break,
        }
    }
    cache.namespaces.settle();
    Ok(cache)
}

/// Applies changes until the registry is dropped.
async fn keep(registry: Weak<Registry>, mut changes: Box<dyn Watch>) {
    loop {
        let change = changes.next().await;
        let Some(registry) = registry.upgrade() else { return };
        match change {
            Some((WatchEvent::Rescan, _)) => {
                // Whatever is applied next may be older than what was read, never newer: it ends at the same state.
                changes = watch_anew(&registry).await;
            }
            Some((event, position)) => registry.apply(event, position),
            None => {
                tokio::time::sleep(Duration::from_millis(WATCH_AGAIN_MS)).await;
                changes = watch_anew(&registry).await;
            }
        }
    }
}

/// Reads everything and watches from there, again and again until the store answers.
async fn watch_anew(registry: &Registry) -> Box<dyn Watch> {
    loop {
        let watching = async {
            let version = registry.rescan().await?;
            Ok::<_, RegistryError>(registry.store.watch(PREFIX, Some(version)).await?)
        };
        match watching.await {
            Ok(watch) => return watch,
            Err(error) => tracing::warn!(%error, "the registry can't be read from the metadata store"),
        }
        tokio::time::sleep(Duration::from_millis(WATCH_AGAIN_MS)).await;
    }
}
