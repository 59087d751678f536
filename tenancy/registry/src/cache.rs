//! What the registry holds in memory: pure maps that changes of the store are applied to.
//!
//! Invariants: R1 applied in the store's order, one change after the other.
//! Failure: a record that can't be read is left out and its key named.
//! Must never know: the store.

use crate::headers::Headers;
use crate::keys::Key;
use crate::packed::Namespaces;
use crate::record::{Header, Tombstone, decode, decode_both, decode_header};
use crate::registry::Changed;
use crate::schemas::SharedSchemas;
use meridian_metadata::{Entry, MetadataError};
use meridian_policy::{ClusterData, PartitionedTopic, Policies, TenantInfo, TopicPolicies};
use meridian_topology::{SharedChange, Stamp};
use meridian_types::{NamespaceName, TopicName};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Everything.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) clusters: BTreeMap<String, Arc<ClusterData>>,
    pub(crate) tenants: BTreeMap<String, Arc<TenantInfo>>,
    pub(crate) namespaces: Namespaces,
    pub(crate) topic_policies: HashMap<TopicName, Arc<TopicPolicies>>,
    /// By namespace, so that one namespace's topics are listed without the others.
    pub(crate) partitioned: HashMap<NamespaceName, BTreeMap<TopicName, Arc<PartitionedTopic>>>,
    /// By base topic.
    pub(crate) schemas: BTreeMap<TopicName, Arc<SharedSchemas>>,
    /// What stands beside the values that regions may share, by key; those of namespaces stand with them, but for those
    /// whose policies can't be read.
    pub(crate) headers: Headers,
    /// What is left of deleted ones, by the key that they had.
    pub(crate) tombstones: BTreeMap<String, (Key, Tombstone)>,
    /// The greatest stamp seen.
    pub(crate) latest: Stamp,
}

/// What a change of the store means.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// For those who act on values; `None` for keys that are not known here.
    pub(crate) changed: Option<Changed>,
    /// For those who bring it to other regions.
    pub(crate) shared: Vec<SharedChange>,
}

impl Cache {
    /// Adds records as they are read.
    pub(crate) fn load(&mut self, entries: &[Entry]) {
        for entry in entries {
            if let Err(error) = self.apply(&entry.key, Some(&entry.value)) {
                tracing::error!(%error, "a record of the registry is left out");
            }
        }
    }

    /// Whether there is a record of this key.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        match key {
            Key::Cluster(name) => self.clusters.contains_key(name),
            Key::Tenant(name) => self.tenants.contains_key(name),
            Key::Namespace(name) => self.namespaces.contains(name),
            Key::TopicPolicies(topic) => self.topic_policies.contains_key(topic),
            Key::Partitioned(topic) => {
                self.partitioned.get(&topic.namespace()).is_some_and(|topics| topics.contains_key(topic))
            }
            Key::Schemas(topic) => self.schemas.contains_key(topic),
            Key::Ended(_) => false,
        }
    }

    /// What stands beside the value of a key.
    pub(crate) fn header(&self, path: &str) -> Option<Header> {
        let of_namespace = || match Key::parse(path)? {
            Key::Namespace(name) => self.namespaces.header(&name),
            _ => None,
        };
        self.headers.get(path).or_else(of_namespace)
    }

    /// Applies a change; answers what it means.
    pub(crate) fn apply(&mut self, path: &str, value: Option<&[u8]>) -> Result<Meaning, MetadataError> {
        if let Some(key) = Key::of_tombstone(path) {
            return self.apply_tombstone(key, path, value);
        }
        let Some(key) = Key::parse(path) else { return Ok(Meaning::default()) };
        let clusters_before = self.clusters_of(&key);
        let header = self.apply_header(&key, path, value);
        match key.clone() {
            Key::Cluster(name) => set(&mut self.clusters, name, path, value)?,
            Key::Tenant(name) => set(&mut self.tenants, name, path, value)?,
            Key::Namespace(name) => self.apply_namespace(name, path, value)?,
            Key::TopicPolicies(topic) => {
                match read(path, value)? {
                    Some(policies) => self.topic_policies.insert(topic, policies),
                    None => self.topic_policies.remove(&topic),
                };
            }
            Key::Partitioned(topic) => {
                let namespace = topic.namespace();
                let topics = self.partitioned.entry(namespace.clone()).or_default();
                set(topics, topic, path, value)?;
                if topics.is_empty() {
                    self.partitioned.remove(&namespace);
                }
            }
            Key::Schemas(topic) => set(&mut self.schemas, topic, path, value)?,
            Key::Ended(_) => {}
        }
        header?;
        let mut shared: Vec<SharedChange> =
            key.is_shared().then(|| SharedChange::Key(path.to_owned())).into_iter().collect();
        if self.clusters_of(&key) != clusters_before {
            // Whatever hangs on it concerns others now.
            shared.push(SharedChange::Everything);
        }
        let changed = match key {
            Key::Cluster(name) => Some(Changed::Cluster(name)),
            Key::Tenant(name) => Some(Changed::Tenant(name)),
            Key::Namespace(name) => Some(Changed::Namespace(name)),
            Key::TopicPolicies(topic) => Some(Changed::TopicPolicies(topic)),
            Key::Partitioned(topic) => Some(Changed::Partitioned(topic)),
            Key::Schemas(topic) => Some(Changed::Schemas(topic)),
            Key::Ended(_) => None,
        };
        Ok(Meaning { changed, shared })
    }

    fn apply_tombstone(&mut self, key: Key, path: &str, value: Option<&[u8]>) -> Result<Meaning, MetadataError> {
        let of = key.path();
        match value {
            Some(bytes) => {
                let tombstone = Tombstone::decode(path, bytes)?;
                self.latest = self.latest.max(tombstone.stamp);
                self.tombstones.insert(of.clone(), (key.clone(), tombstone));
            }
            None => drop(self.tombstones.remove(&of)),
        }
        // Schemas are deleted by what their tombstone says, and the change of their record is seen before it.
        let changed = match key {
            Key::Schemas(topic) => Some(Changed::Schemas(topic)),
            _ => None,
        };
        Ok(Meaning { changed, shared: vec![SharedChange::Key(of)] })
    }

    fn apply_namespace(&mut self, name: NamespaceName, path: &str, value: Option<&[u8]>) -> Result<(), MetadataError> {
        let Some(bytes) = value else {
            self.namespaces.remove(&name);
            return Ok(());
        };
        let (header, policies) = decode_both::<Policies>(path, bytes);
        if let Ok(header) = &header {
            self.latest = self.latest.max(header.stamp.unwrap_or_default());
        }
        match policies {
            Ok(policies) => {
                let (header, error) = header.map_or_else(|error| (None, Some(error)), |header| (Some(header), None));
                self.namespaces.set(name, &policies, header)?;
                error.map_or(Ok(()), Err)
            }
            Err(error) => {
                self.namespaces.remove(&name);
                // Other regions may have it: the version counts on.
                if let Ok(header) = header {
                    self.headers.insert(path, header);
                }
                Err(error)
            }
        }
    }

    fn apply_header(&mut self, key: &Key, path: &str, value: Option<&[u8]>) -> Result<(), MetadataError> {
        self.headers.remove(path);
        let beside = key.is_shared() && !matches!(key, Key::Namespace(_));
        if let Some(bytes) = value.filter(|_| beside) {
            let header = decode_header(path, bytes)?;
            self.latest = self.latest.max(header.stamp.unwrap_or_default());
            self.headers.insert(path, header);
        }
        Ok(())
    }

    /// The regions that others than this record itself depend on: those of a namespace or of a topic's policies.
    fn clusters_of(&self, key: &Key) -> Option<Arc<BTreeSet<String>>> {
        match key {
            Key::Namespace(name) => self.namespaces.clusters(name).cloned(),
            Key::TopicPolicies(topic) => self.topic_policies.get(topic)?.replication_clusters.clone().map(Arc::new),
            _ => None,
        }
    }

    /// Namespaces that are to be in other regions, or have topics that are by their own policies, in order.
    pub(crate) fn beyond(&self, own: &str) -> BTreeSet<NamespaceName> {
        let others = |clusters: &BTreeSet<String>| clusters.iter().any(|name| name != own);
        let by_own =
            self.namespaces.names().filter(|name| self.namespaces.clusters(name).is_some_and(|all| others(all)));
        let by_topic = self
            .topic_policies
            .iter()
            .filter(|(_, policies)| policies.replication_clusters.as_ref().is_some_and(others));
        let of_topics = by_topic.map(|(topic, _)| topic.namespace()).filter(|name| self.namespaces.contains(name));
        by_own.cloned().chain(of_topics).collect()
    }
}

/// An unreadable record takes the one before it away, so that nothing is decided on an old one.
fn set<K: Ord, T: DeserializeOwned>(
    map: &mut BTreeMap<K, Arc<T>>,
    name: K,
    path: &str,
    value: Option<&[u8]>,
) -> Result<(), MetadataError> {
    match read(path, value) {
        Ok(Some(value)) => {
            map.insert(name, value);
            Ok(())
        }
        Ok(None) => {
            map.remove(&name);
            Ok(())
        }
        Err(error) => {
            map.remove(&name);
            Err(error)
        }
    }
}

fn read<T: DeserializeOwned>(path: &str, value: Option<&[u8]>) -> Result<Option<Arc<T>>, MetadataError> {
    value.map(|bytes| decode(path, bytes).map(Arc::new)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_applied_and_named() {
        let mut cache = Cache::default();
        let topic = TopicName::parse("t/n/x").unwrap();
        let path = Key::Partitioned(topic.clone()).path();
        let changed = cache.apply(&path, Some(br#"{"v":1,"data":{"partitions":2}}"#)).unwrap();
        let shared = vec![SharedChange::Key(path.clone())];
        assert_eq!(changed, Meaning { changed: Some(Changed::Partitioned(topic.clone())), shared });
        assert_eq!(cache.partitioned[&topic.namespace()][&topic].partitions, 2);
        cache.apply(&path, None).unwrap();
        assert!(cache.partitioned.is_empty());
        assert_eq!(cache.apply("tenancy/later/x", Some(b"?")), Ok(Meaning::default()));
        assert_eq!(cache.headers.iter().count(), 0);
    }

    #[test]
    fn the_end_of_schemas_is_told_when_its_time_is_known() {
        let mut cache = Cache::default();
        let topic = TopicName::parse("t/n/x").unwrap();
        let key = Key::Schemas(topic.clone());
        let tombstone =
            br#"{"v":1,"stamp":"0000000000000007-00000001","born":"0000000000000005-00000001","kept_ms":1}"#;
        cache.apply(&key.path(), Some(br#"{"v":1,"data":{"schemas":[]}}"#)).unwrap();
        cache.apply(&key.path(), None).unwrap();
        assert!(cache.tombstones.is_empty(), "the record goes first");
        let meaning = cache.apply(&key.tombstone(), Some(tombstone)).unwrap();
        assert_eq!(meaning.changed, Some(Changed::Schemas(topic)));
    }

    #[test]
    fn stamps_and_tombstones_are_kept_beside_values() {
        let mut cache = Cache::default();
        let record = br#"{"v":1,"stamp":"0000000000000005-00000001","data":{}}"#;
        cache.apply("tenancy/tenant/t", Some(record)).unwrap();
        assert_eq!(cache.latest.time, 5);
        assert_eq!(cache.headers.get("tenancy/tenant/t").unwrap().stamp, Some(cache.latest));
        let tombstone =
            br#"{"v":1,"stamp":"0000000000000007-00000001","born":"0000000000000005-00000001","kept_ms":1}"#;
        cache.apply("tenancy/tenant/t", None).unwrap();
        let meaning = cache.apply("tenancy/tombstone/tenant/t", Some(tombstone)).unwrap();
        assert_eq!(meaning.shared, [SharedChange::Key("tenancy/tenant/t".into())]);
        assert_eq!(cache.headers.iter().count(), 0);
        assert!(cache.tombstones["tenancy/tenant/t"].1.version().deleted);
        assert_eq!(cache.latest.time, 7);
        let two = br#"{"v":1,"data":{"replication_clusters":["a","b"]}}"#;
        let meaning = cache.apply("tenancy/namespace/t/n", Some(two)).unwrap();
        let both = [SharedChange::Key("tenancy/namespace/t/n".into()), SharedChange::Everything];
        assert_eq!(meaning.shared, both);
        assert_eq!(cache.apply("tenancy/cluster/c", Some(br#"{"v":1,"data":{}}"#)).unwrap().shared, []);
    }

    #[test]
    fn namespaces_beyond_this_region_are_known_without_the_others() {
        let mut cache = Cache::default();
        let mut put =
            |path: &str, data: &str| cache.apply(path, Some(format!(r#"{{"v":1,"data":{data}}}"#).as_bytes())).unwrap();
        put("tenancy/namespace/t/here", r#"{"replication_clusters":["a"]}"#);
        put("tenancy/namespace/t/both", r#"{"replication_clusters":["a","b"]}"#);
        put("tenancy/namespace/t/away", r#"{"replication_clusters":["b"]}"#);
        put("tenancy/namespace/t/allowed", r#"{"replication_clusters":["a"],"allowed_clusters":["a","b"]}"#);
        put("tenancy/namespace/t/topic", r#"{"replication_clusters":["a"]}"#);
        put("tenancy/topic/t/topic/persistent/x", r#"{"replicationClusters":["a","b"]}"#);
        put("tenancy/topic/t/here/persistent/x", r#"{"replicationClusters":["a"]}"#);
        put("tenancy/topic/t/gone/persistent/x", r#"{"replicationClusters":["a","b"]}"#);
        let beyond: Vec<_> = cache.beyond("a").iter().map(ToString::to_string).collect();
        assert_eq!(beyond, ["t/allowed", "t/away", "t/both", "t/topic"]);
    }

    #[test]
    fn an_unreadable_record_takes_the_old_one_away() {
        let mut cache = Cache::default();
        cache.apply("tenancy/namespace/t/n", Some(br#"{"v":1,"data":{}}"#)).unwrap();
        assert!(cache.apply("tenancy/namespace/t/n", Some(br#"{"v":1,"data":7}"#)).is_err());
        assert!(cache.namespaces.get(&NamespaceName::parse("t/n").unwrap()).is_none());
        let stamped = br#"{"v":1,"stamp":"0000000000000005-00000001","data":7}"#;
        assert!(cache.apply("tenancy/namespace/t/n", Some(stamped)).is_err());
        assert_eq!(cache.header("tenancy/namespace/t/n").unwrap().stamp.unwrap().time, 5, "its version counts on");
        cache.apply("tenancy/namespace/t/n", Some(br#"{"v":1,"data":{}}"#)).unwrap();
        assert_eq!(cache.header("tenancy/namespace/t/n"), Some(Header::default()));
        assert!(cache.apply("tenancy/namespace/t/n", Some(br#"{"v":1,"stamp":"x","data":{}}"#)).is_err());
        assert!(cache.namespaces.contains(&NamespaceName::parse("t/n").unwrap()));
        assert_eq!(cache.header("tenancy/namespace/t/n"), None);
        cache.apply("tenancy/namespace/t/n", None).unwrap();
        assert_eq!(cache.headers.iter().count(), 0);
        cache.apply("tenancy/tenant/t", Some(br#"{"v":1,"data":{}}"#)).unwrap();
        assert!(cache.tenants.contains_key("t"));
        assert!(cache.apply("tenancy/tenant/t", Some(br#"{"v":9}"#)).is_err());
        assert!(!cache.tenants.contains_key("t"));
    }
}
