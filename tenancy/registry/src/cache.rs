//! What the registry holds in memory: pure maps that changes of the store are applied to.
//!
//! Invariants: R1 applied in the store's order, one change after the other.
//! Failure: a record that can't be read is left out and its key named.
//! Must never know: the store.

use crate::keys::Key;
use crate::record::decode;
use crate::registry::Changed;
use meridian_metadata::{Entry, MetadataError};
use meridian_policy::{ClusterData, PartitionedTopic, Policies, TenantInfo, TopicPolicies};
use meridian_types::{NamespaceName, TopicName};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Everything.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) clusters: BTreeMap<String, Arc<ClusterData>>,
    pub(crate) tenants: BTreeMap<String, Arc<TenantInfo>>,
    pub(crate) namespaces: BTreeMap<NamespaceName, Arc<Policies>>,
    pub(crate) topic_policies: HashMap<TopicName, Arc<TopicPolicies>>,
    /// By namespace, so that one namespace's topics are listed without the others.
    pub(crate) partitioned: HashMap<NamespaceName, BTreeMap<TopicName, Arc<PartitionedTopic>>>,
}

impl Cache {
    /// The cache of a whole range.
    pub(crate) fn load(entries: &[Entry]) -> Self {
        let mut cache = Self::default();
        for entry in entries {
            if let Err(error) = cache.apply(&entry.key, Some(&entry.value)) {
                tracing::error!(%error, "a record of the registry is left out");
            }
        }
        cache
    }

    /// Whether there is a record of this key.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        match key {
            Key::Cluster(name) => self.clusters.contains_key(name),
            Key::Tenant(name) => self.tenants.contains_key(name),
            Key::Namespace(name) => self.namespaces.contains_key(name),
            Key::TopicPolicies(topic) => self.topic_policies.contains_key(topic),
            Key::Partitioned(topic) => {
                self.partitioned.get(&topic.namespace()).is_some_and(|topics| topics.contains_key(topic))
            }
        }
    }

    /// Applies a change; answers its place, `None` for keys that are not known here.
    pub(crate) fn apply(&mut self, path: &str, value: Option<&[u8]>) -> Result<Option<Changed>, MetadataError> {
        let Some(key) = Key::parse(path) else { return Ok(None) };
        match key.clone() {
            Key::Cluster(name) => set(&mut self.clusters, name, path, value)?,
            Key::Tenant(name) => set(&mut self.tenants, name, path, value)?,
            Key::Namespace(name) => set(&mut self.namespaces, name, path, value)?,
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
        }
        Ok(Some(match key {
            Key::Cluster(name) => Changed::Cluster(name),
            Key::Tenant(name) => Changed::Tenant(name),
            Key::Namespace(name) => Changed::Namespace(name),
            Key::TopicPolicies(topic) => Changed::TopicPolicies(topic),
            Key::Partitioned(topic) => Changed::Partitioned(topic),
        }))
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
        assert_eq!(changed, Some(Changed::Partitioned(topic.clone())));
        assert_eq!(cache.partitioned[&topic.namespace()][&topic].partitions, 2);
        cache.apply(&path, None).unwrap();
        assert!(cache.partitioned.is_empty());
        assert_eq!(cache.apply("tenancy/later/x", Some(b"?")), Ok(None));
    }

    #[test]
    fn an_unreadable_record_takes_the_old_one_away() {
        let mut cache = Cache::default();
        cache.apply("tenancy/tenant/t", Some(br#"{"v":1,"data":{}}"#)).unwrap();
        assert!(cache.tenants.contains_key("t"));
        assert!(cache.apply("tenancy/tenant/t", Some(br#"{"v":9}"#)).is_err());
        assert!(!cache.tenants.contains_key("t"));
    }
}
