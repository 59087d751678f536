//! The keys of this crate in the metadata store, all under one prefix.
//!
//! | key | value |
//! |---|---|
//! | `tenancy/cluster/NAME` | how a cluster is reached |
//! | `tenancy/tenant/NAME` | a tenant |
//! | `tenancy/namespace/TENANT/NAMESPACE` | the policies of a namespace |
//! | `tenancy/topic/TENANT/NAMESPACE/DOMAIN/TOPIC` | the policies of a topic |
//! | `tenancy/partitioned/TENANT/NAMESPACE/DOMAIN/TOPIC` | a partitioned topic |
//! | `tenancy/schemas/TENANT/NAMESPACE/DOMAIN/TOPIC` | the schemas that a topic shares with other regions |
//! | `tenancy/tombstone/…` | what is left of a deleted record, under the rest of its key |
//!
//! A topic without partitions has no record; its end in a namespace that regions share is a tombstone of the key
//! `tenancy/ended/TENANT/NAMESPACE/DOMAIN/TOPIC`.
//!
//! Invariants: a key that was made here is parsed back to the same; others are passed over.
//! Failure: none.
//! Must never know: what the values hold.

use meridian_types::{NamespaceName, TopicName};

/// All keys of this crate begin with it.
pub(crate) const PREFIX: &str = "tenancy/";

/// What a key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Cluster(String),
    Tenant(String),
    Namespace(NamespaceName),
    TopicPolicies(TopicName),
    Partitioned(TopicName),
    Schemas(TopicName),
    Ended(TopicName),
}

/// Tombstones begin with it.
const TOMBSTONES: &str = "tombstone/";

impl Key {
    /// What it is called in errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Key::Cluster(_) => "cluster",
            Key::Tenant(_) => "tenant",
            Key::Namespace(_) => "namespace",
            Key::TopicPolicies(_) => "topic policies",
            Key::Partitioned(_) => "partitioned topic",
            Key::Schemas(_) => "schemas",
            Key::Ended(_) => "ended topic",
        }
    }

    /// Its name in errors.
    pub(crate) fn name(&self) -> String {
        match self {
            Key::Cluster(name) | Key::Tenant(name) => name.clone(),
            Key::Namespace(namespace) => namespace.to_string(),
            Key::TopicPolicies(topic) | Key::Partitioned(topic) | Key::Schemas(topic) | Key::Ended(topic) => {
                topic.to_string()
            }
        }
    }

    /// The key in the store.
    pub(crate) fn path(&self) -> String {
        match self {
            Key::Cluster(name) => format!("{PREFIX}cluster/{name}"),
            Key::Tenant(name) => format!("{PREFIX}tenant/{name}"),
            Key::Namespace(namespace) => format!("{PREFIX}namespace/{namespace}"),
            Key::TopicPolicies(topic) => format!("{PREFIX}topic/{}", topic_path(topic)),
            Key::Partitioned(topic) => format!("{PREFIX}partitioned/{}", topic_path(topic)),
            Key::Schemas(topic) => format!("{PREFIX}schemas/{}", topic_path(topic)),
            Key::Ended(topic) => format!("{PREFIX}ended/{}", topic_path(topic)),
        }
    }

    /// Where its tombstone is.
    pub(crate) fn tombstone(&self) -> String {
        format!("{PREFIX}{TOMBSTONES}{}", &self.path()[PREFIX.len()..])
    }

    /// What a tombstone is of.
    pub(crate) fn of_tombstone(path: &str) -> Option<Self> {
        let rest = path.strip_prefix(PREFIX)?.strip_prefix(TOMBSTONES)?;
        Self::parse(&format!("{PREFIX}{rest}")).filter(|key| key.is_shared())
    }

    /// Regions may share it.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self, Key::Cluster(_))
    }

    /// What a key in the store stands for, `None` for keys that this program does not know.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let (kind, rest) = path.strip_prefix(PREFIX)?.split_once('/')?;
        match kind {
            "cluster" => Some(Key::Cluster(rest.to_owned())),
            "tenant" => Some(Key::Tenant(rest.to_owned())),
            "namespace" => NamespaceName::parse(rest).ok().map(Key::Namespace),
            "topic" => parse_topic(rest).map(Key::TopicPolicies),
            "partitioned" => parse_topic(rest).map(Key::Partitioned),
            "schemas" => parse_topic(rest).map(Key::Schemas),
            "ended" => parse_topic(rest).map(Key::Ended),
            _ => None,
        }
    }
}

/// Keys of namespaces of one tenant begin with it.
pub(crate) fn namespaces_of(tenant: &str) -> String {
    format!("{PREFIX}namespace/{tenant}/")
}

/// Keys of policies of topics of one namespace begin with it.
pub(crate) fn topic_policies_of(namespace: &NamespaceName) -> String {
    format!("{PREFIX}topic/{namespace}/")
}

/// Keys of shared schemas of one namespace begin with it.
pub(crate) fn schemas_of(namespace: &NamespaceName) -> String {
    format!("{PREFIX}schemas/{namespace}/")
}

/// Keys of partitioned topics of one namespace begin with it.
pub(crate) fn partitioned_of(namespace: &NamespaceName) -> String {
    format!("{PREFIX}partitioned/{namespace}/")
}

fn topic_path(topic: &TopicName) -> String {
    format!("{}/{}/{}", topic.namespace(), topic.domain().as_str(), topic.local())
}

fn parse_topic(path: &str) -> Option<TopicName> {
    let mut parts = path.splitn(4, '/');
    let (tenant, namespace, domain, local) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys_both_ways() {
        let topic = TopicName::parse("non-persistent://t/n/a b%").unwrap();
        let namespace = NamespaceName::parse("t/n").unwrap();
        let keys = [
            (Key::Cluster("c".into()), "tenancy/cluster/c"),
            (Key::Tenant("t".into()), "tenancy/tenant/t"),
            (Key::Namespace(namespace.clone()), "tenancy/namespace/t/n"),
            (Key::TopicPolicies(topic.clone()), "tenancy/topic/t/n/non-persistent/a b%"),
            (Key::Partitioned(topic.clone()), "tenancy/partitioned/t/n/non-persistent/a b%"),
            (Key::Schemas(topic.clone()), "tenancy/schemas/t/n/non-persistent/a b%"),
            (Key::Ended(topic), "tenancy/ended/t/n/non-persistent/a b%"),
        ];
        for (key, path) in keys {
            assert_eq!(key.path(), path);
            assert_eq!(Key::parse(path), Some(key.clone()));
            assert_eq!(key.tombstone(), path.replacen("tenancy/", "tenancy/tombstone/", 1));
            assert_eq!(Key::of_tombstone(&key.tombstone()), Some(key.clone()).filter(Key::is_shared));
            assert_eq!((Key::of_tombstone(path), Key::parse(&key.tombstone())), (None, None));
        }
        assert!("tenancy/namespace/t/n".starts_with(&namespaces_of("t")));
        assert!("tenancy/topic/t/n/persistent/x".starts_with(&topic_policies_of(&namespace)));
        assert!("tenancy/partitioned/t/n/persistent/x".starts_with(&partitioned_of(&namespace)));
        for unknown in ["tenancy/", "tenancy/x/y", "tenancy/topic/t/n", "other/tenant/t", "tenancy/namespace/t"] {
            assert_eq!(Key::parse(unknown), None, "{unknown}");
        }
    }
}
