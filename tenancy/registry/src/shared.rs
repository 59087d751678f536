//! What this region shares with others: which records, in which versions.
//!
//! Invariants: R7 a record is listed for a peer only if both regions are named: a tenant by its allowed clusters or by one
//! of its namespaces, a namespace by its replication or allowed clusters or because it was shared before, whatever hangs
//! on a topic by its namespace or the topic's own replication clusters; R6 a tombstone is dropped only when its time is
//! over and every region that shared the record has been found to have everything since.
//! Failure: what can't be read is not offered.
//! Must never know: how it travels.

use crate::cache::Cache;
use crate::keys::Key;
use crate::record::{Header, Tombstone, decode, decode_header};
use crate::{Registry, RegistryError};
use meridian_metadata::{Condition, Operation};
use meridian_topology::{Clock, ClockError, Digests, Object, ObjectVersion, SharedChange, Stamp, Summary, bucket_of};
use meridian_types::{NamespaceName, RegionId, TopicName};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// Changes that a receiver may leave unread before it has to compare everything.
const CHANGES_QUEUED: usize = 4096;

/// Fields of a namespace that each region has for itself.
pub(crate) const LOCAL_FIELDS: [&str; 3] = ["bundles", "bookieAffinityGroup", "antiAffinityGroup"];

/// Bounds of the sharing.
#[derive(Clone)]
pub struct SharingSettings {
    /// A stamp from elsewhere may be so far ahead of the time of day.
    pub max_ahead_ms: u64,
    /// Tombstones are kept at least so long.
    pub keep_tombstones_ms: u64,
    /// Time of day, ms since 1970.
    pub now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for SharingSettings {
    fn default() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self { max_ahead_ms: 60_000, keep_tombstones_ms: 7 * 86_400_000, now_ms: Arc::new(now) }
    }
}

/// The clock, and who is to be told.
pub(crate) struct Sharing {
    clock: Mutex<Clock>,
    settings: SharingSettings,
    changes: broadcast::Sender<SharedChange>,
    /// Region → since when (time of day here) it is known to have had everything.
    converged: Mutex<BTreeMap<String, u64>>,
    /// Keys whose topics are being deleted.
    pub(crate) ending: Mutex<HashSet<String>>,
    /// Who deletes topics.
    pub(crate) deletions: Mutex<Option<Arc<dyn crate::Deletions>>>,
}

impl Sharing {
    pub(crate) fn new(region: RegionId, settings: SharingSettings) -> Self {
        Self {
            clock: Mutex::new(Clock::new(region, settings.max_ahead_ms)),
            settings,
            changes: broadcast::Sender::new(CHANGES_QUEUED),
            converged: Mutex::default(),
            ending: Mutex::default(),
            deletions: Mutex::default(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.settings.now_ms)()
    }

    pub(crate) fn region(&self) -> RegionId {
        self.clock.lock().region()
    }

    pub(crate) fn tick(&self) -> Stamp {
        self.clock.lock().tick(self.now_ms())
    }

    pub(crate) fn recover(&self, stamp: Stamp) {
        self.clock.lock().recover(stamp);
    }

    pub(crate) fn observe(&self, stamp: Stamp) -> Result<(), ClockError> {
        self.clock.lock().observe(stamp, self.now_ms())
    }

    pub(crate) fn tell(&self, change: SharedChange) {
        // Nobody may be listening.
        let _ = self.changes.send(change);
    }

    fn too_old(&self, stamp: Stamp) -> bool {
        self.now_ms().saturating_sub(stamp.wall_ms()) > self.settings.keep_tombstones_ms
    }
}

/// Both are in it.
fn both(regions: &BTreeSet<String>, own: &str, peer: &str) -> bool {
    regions.contains(own) && regions.contains(peer)
}

/// What concerns the own region and a peer.
struct Concern<'a> {
    cache: &'a Cache,
    own: &'a str,
    peer: &'a str,
    /// Tenants of shared namespaces, when everything is gone through.
    tenants: Option<HashSet<&'a str>>,
}

impl<'a> Concern<'a> {
    fn of_all(cache: &'a Cache, own: &'a str, peer: &'a str) -> Self {
        let mut concern = Self { cache, own, peer, tenants: None };
        let shared = cache.namespaces.names().filter(|name| concern.namespace(name));
        concern.tenants = Some(shared.map(NamespaceName::tenant).collect());
        concern
    }

    fn namespace(&self, name: &NamespaceName) -> bool {
        self.cache.namespaces.clusters(name).is_some_and(|clusters| both(clusters, self.own, self.peer))
    }

    fn tenant(&self, name: &str) -> bool {
        let allowed = self.cache.tenants.get(name);
        if allowed.is_some_and(|tenant| both(&tenant.allowed_clusters, self.own, self.peer)) {
            return true;
        }
        match &self.tenants {
            Some(tenants) => tenants.contains(name),
            None => self.cache.namespaces.of_tenant(name).any(|one| self.namespace(one)),
        }
    }

    fn topic(&self, topic: &TopicName) -> bool {
        let own_clusters = || self.cache.topic_policies.get(&topic.base())?.replication_clusters.as_ref();
        self.namespace(&topic.namespace()) || own_clusters().is_some_and(|regions| both(regions, self.own, self.peer))
    }

    fn record(&self, key: &Key, header: &Header) -> bool {
        match key {
            Key::Cluster(_) => false,
            Key::Tenant(name) => self.tenant(name),
            Key::Namespace(name) => self.namespace(name) || both(&header.regions, self.own, self.peer),
            Key::TopicPolicies(topic) | Key::Partitioned(topic) | Key::Schemas(topic) | Key::Ended(topic) => {
                self.topic(topic)
            }
        }
    }

    fn tombstone(&self, tombstone: &Tombstone) -> bool {
        both(&tombstone.regions, self.own, self.peer)
    }

    /// Key and version of everything, each key once.
    fn each(&self, region: RegionId, mut take: impl FnMut(&str, ObjectVersion)) {
        let mut live = |path: &str, header: &Header| {
            let version = header.version(region);
            let after = self.cache.tombstones.get(path).map(|(_, tombstone)| tombstone.version());
            take(path, after.map_or(version, |after| after.max(version)));
        };
        for (path, header) in self.cache.headers.iter() {
            if Key::parse(path).is_some_and(|key| self.record(&key, &header)) {
                live(path, &header);
            }
        }
        for (name, header) in self.cache.namespaces.headers() {
            let key = Key::Namespace(name.clone());
            if self.record(&key, &header) {
                live(&key.path(), &header);
            }
        }
        for (path, (_, tombstone)) in &self.cache.tombstones {
            if self.tombstone(tombstone) && self.cache.header(path).is_none() {
                take(path, tombstone.version());
            }
        }
    }
}

impl Registry {
    fn own(&self) -> String {
        self.defaults().cluster.clone()
    }

    /// One figure per bucket over everything that concerns the own region and a peer.
    pub fn shared_digests(&self, peer: &str) -> Digests {
        let (cache, own) = (self.cache.read(), self.own());
        let mut digests = Digests::default();
        Concern::of_all(&cache, &own, peer).each(self.sharing.region(), |key, version| digests.add(key, &version));
        digests
    }

    /// What concerns both, of one bucket.
    pub fn shared_listing(&self, peer: &str, bucket: u8) -> Vec<Summary> {
        let (cache, own) = (self.cache.read(), self.own());
        let mut listing = Vec::new();
        Concern::of_all(&cache, &own, peer).each(self.sharing.region(), |key, version| {
            if bucket_of(key) == bucket {
                listing.push(Summary { key: key.to_owned(), version });
            }
        });
        listing
    }

    /// The version of a record or tombstone, if it concerns the own region and a peer.
    pub fn shared_version(&self, peer: &str, key: &str) -> Option<ObjectVersion> {
        let (cache, own) = (self.cache.read(), self.own());
        let concern = Concern { cache: &cache, own: &own, peer, tenants: None };
        match (cache.header(key), cache.tombstones.get(key)) {
            (Some(header), _) => {
                concern.record(&Key::parse(key)?, &header).then(|| header.version(self.sharing.region()))
            }
            (None, Some((_, tombstone))) => concern.tombstone(tombstone).then(|| tombstone.version()),
            (None, None) => None,
        }
    }

    /// Whether a peer has a part in a topic now.
    pub(crate) fn concerns(&self, peer: &str, topic: &TopicName) -> bool {
        let (cache, own) = (self.cache.read(), self.own());
        Concern { cache: &cache, own: &own, peer, tenants: None }.topic(topic)
    }

    /// Whether a peer may know of a topic: it has a part in it, or had one in its namespace.
    pub fn shares_topic(&self, peer: &str, topic: &TopicName) -> bool {
        let shared_before = |cache: &Cache| {
            let header = cache.header(&Key::Namespace(topic.namespace()).path());
            header.is_some_and(|header| both(&header.regions, &self.own(), peer))
        };
        self.concerns(peer, topic) || shared_before(&self.cache.read())
    }

    /// Place in the order of sending: tenants, namespaces, topics; what was deleted the other way round.
    pub fn shared_rank(&self, key: &str) -> u8 {
        let live = self.cache.read().header(key).is_some();
        let level = match Key::parse(key) {
            Some(Key::Tenant(_)) => 0,
            Some(Key::Namespace(_)) => 1,
            _ => 2,
        };
        if live { level } else { 5 - level }
    }

    /// Which of these are newer than what is here.
    pub fn shared_wanted(&self, offered: &[Summary]) -> Vec<String> {
        let cache = self.cache.read();
        let region = self.sharing.region();
        let wanted = offered.iter().filter(|summary| {
            if Key::parse(&summary.key).is_none() {
                return false;
            }
            let live = cache.header(&summary.key).map(|header| header.version(region));
            let gone = cache.tombstones.get(&summary.key).map(|(_, tombstone)| tombstone.version());
            match live.max(gone) {
                Some(here) => summary.version > here,
                // A tombstone that was dropped here does not come back.
                None => !(summary.version.deleted && self.sharing.too_old(summary.version.stamp)),
            }
        });
        wanted.map(|summary| summary.key.clone()).collect()
    }

    /// Records and tombstones to send to a peer; those that do not concern both are left out.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn read_shared(&self, peer: &str, keys: &[String]) -> Result<Vec<Object>, RegistryError> {
        let mut objects = Vec::with_capacity(keys.len());
        for path in keys {
            if self.shared_version(peer, path).is_none() {
                continue;
            }
            let Some(key) = Key::parse(path) else { continue };
            match self.store.get(path).await? {
                Some(entry) => {
                    let header = decode_header(path, &entry.value)?;
                    if !header.detached {
                        objects.push(self.live_object(path, header, decode(path, &entry.value)?)?);
                    }
                }
                None => {
                    let found = self.find_tombstone(&key).await?.filter(|(tombstone, _)| tombstone.version().deleted);
                    objects.extend(found.map(|(tombstone, _)| Object {
                        key: path.clone(),
                        version: tombstone.version(),
                        ended: Stamp::ZERO,
                        regions: tombstone.regions,
                        value: Vec::new(),
                    }));
                }
            }
        }
        Ok(objects)
    }

    fn live_object(&self, path: &str, header: Header, mut data: serde_json::Value) -> Result<Object, RegistryError> {
        if let (Some(Key::Namespace(_)), Some(fields)) = (Key::parse(path), data.as_object_mut()) {
            // The number of bundles goes along for who has none yet.
            LOCAL_FIELDS[1..].iter().for_each(|field| drop(fields.remove(*field)));
        }
        let value = serde_json::to_vec(&data)
            .map_err(|error| meridian_metadata::MetadataError::Corrupt(format!("record {path}: {error}")))?;
        Ok(Object {
            key: path.to_owned(),
            version: header.version(self.sharing.region()),
            ended: header.ended.unwrap_or_default(),
            regions: header.regions,
            value,
        })
    }

    /// Changes of what may be shared, from now on.
    pub fn shared_changes(&self) -> broadcast::Receiver<SharedChange> {
        self.sharing.changes.subscribe()
    }

    /// A peer has everything that concerned it at this time (ms since 1970).
    pub fn note_converged(&self, peer: &str, began_ms: u64) {
        let mut converged = self.sharing.converged.lock();
        let since = converged.entry(peer.to_owned()).or_default();
        *since = began_ms.max(*since);
    }

    /// Regions that have to learn of a deletion; none if nobody shares the record.
    pub(crate) fn sharers(&self, key: &Key, header: &Header) -> BTreeSet<String> {
        let (cache, own) = (self.cache.read(), self.own());
        let mut regions = header.regions.clone();
        match key {
            Key::Cluster(_) => {}
            Key::Tenant(name) => {
                regions.extend(cache.tenants.get(name).iter().flat_map(|tenant| tenant.allowed_clusters.clone()));
            }
            Key::Namespace(name) => {
                regions
                    .extend(cache.namespaces.clusters(name).into_iter().flat_map(|clusters| clusters.iter().cloned()));
            }
            Key::TopicPolicies(topic) | Key::Partitioned(topic) | Key::Schemas(topic) | Key::Ended(topic) => {
                let namespace = cache.namespaces.clusters(&topic.namespace());
                regions.extend(namespace.into_iter().flat_map(|clusters| clusters.iter().cloned()));
                let policies = cache.topic_policies.get(&topic.base());
                let named = policies.iter().filter_map(|policies| policies.replication_clusters.as_ref());
                regions.extend(named.flatten().cloned());
            }
        }
        regions.insert(own);
        if regions.len() > 1 { regions } else { BTreeSet::new() }
    }

    /// Whether other regions share a topic's namespace or the topic.
    pub fn is_shared(&self, topic: &TopicName) -> bool {
        !self.sharers(&Key::Ended(topic.clone()), &Header::default()).is_empty()
    }

    /// Makes the end of a topic without partitions known to the regions that share its namespace.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn end_topic(&self, topic: &TopicName) -> Result<(), RegistryError> {
        let key = Key::Ended(topic.clone());
        let regions = self.sharers(&key, &Header::default());
        if regions.is_empty() {
            return Ok(());
        }
        let version = ObjectVersion { born: Stamp::ZERO, deleted: true, stamp: self.sharing.tick() };
        let tombstone = Tombstone::new(version, regions, self.sharing.now_ms());
        let written = self.store.commit(vec![key.put_tombstone(&tombstone)?]).await?;
        self.visible(written).await
    }

    /// Drops tombstones whose time is over and that every region has (R6); answers how many.
    ///
    /// # Errors
    /// [`RegistryError::Store`]; the others are dropped the next time.
    pub async fn collect_tombstones(&self) -> Result<usize, RegistryError> {
        let (now_ms, keep_ms, own) = (self.sharing.now_ms(), self.sharing.settings.keep_tombstones_ms, self.own());
        let due: Vec<(Key, Tombstone)> = {
            let (cache, converged) = (self.cache.read(), self.sharing.converged.lock());
            let known = |region: &String, since: u64| {
                *region == own
                    || !cache.clusters.contains_key(region)
                    || converged.get(region).is_some_and(|at| *at > since)
            };
            let is_due = |tombstone: &Tombstone| {
                tombstone.version().deleted
                    && now_ms.saturating_sub(tombstone.kept_ms) > keep_ms
                    && tombstone.regions.iter().all(|region| known(region, tombstone.kept_ms))
            };
            cache.tombstones.values().filter(|(_, tombstone)| is_due(tombstone)).cloned().collect()
        };
        let mut dropped = 0;
        for (key, tombstone) in due {
            let Some((found, version)) = self.find_tombstone(&key).await? else { continue };
            if found == tombstone {
                let delete = Operation::Delete { key: key.tombstone(), condition: Condition::Is(version) };
                match self.store.commit(vec![delete]).await {
                    Ok(_) => dropped += 1,
                    Err(meridian_metadata::MetadataError::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(dropped)
    }
}
