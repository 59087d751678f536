//! Quotas: what a cluster, a tenant, a namespace, a topic or a resource group may use at most.
//!
//! Quotas form a tree, cluster → tenant → namespace → topic, and every limit above a topic binds it together with
//! everything else below that place. A resource group stands beside the tree: its limits bind all namespaces that name it.
//! Each place has two layers: the operator's, and one that the tenant's administrators may set for themselves. The smaller
//! value counts, so that a tenant's layer can tighten the operator's and never lift it.
//!
//! Invariants: Q1 unset is apart from zero: an unset limit binds nobody, a count of zero allows nothing; Q2 the bound of a
//! topic is the smallest value on its way up; Q3 what is said of a bound names the limit, its value and its place.
//! Failure: [`PolicyError`] with the limit and the rule; [`Exceeded`].
//! Must never know: how much is used, clocks, brokers.

use crate::schema::Shape;
use crate::{PolicyError, refuse};
use meridian_types::{Classify, ErrorClass, NamespaceName, TopicName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// Messages published per second.
    PublishMessagesPerSecond,
    /// Bytes published per second.
    PublishBytesPerSecond,
    /// Messages dispatched per second.
    DispatchMessagesPerSecond,
    /// Bytes dispatched per second.
    DispatchBytesPerSecond,
    /// Messages copied to other regions per second.
    ReplicationMessagesPerSecond,
    /// Bytes copied to other regions per second.
    ReplicationBytesPerSecond,
    /// Bytes kept in storage, whoever has read them.
    StoredBytes,
    /// Bytes that subscriptions have not acknowledged.
    BacklogBytes,
    /// Namespaces.
    Namespaces,
    /// Topics; each partition is one.
    Topics,
    /// Partitions of one topic.
    Partitions,
    /// Producers that are connected.
    Producers,
    /// Consumers that are connected.
    Consumers,
    /// Durable subscriptions.
    Subscriptions,
    /// Connections that hold a producer or consumer.
    Connections,
}

/// The kind of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Level {
    Cluster,
    Tenant,
    Namespace,
    Topic,
    Group,
}

impl Limit {
    /// All of them, in the order of the reference.
    pub const ALL: [Limit; 15] = [
        Limit::PublishMessagesPerSecond,
        Limit::PublishBytesPerSecond,
        Limit::DispatchMessagesPerSecond,
        Limit::DispatchBytesPerSecond,
        Limit::ReplicationMessagesPerSecond,
        Limit::ReplicationBytesPerSecond,
        Limit::StoredBytes,
        Limit::BacklogBytes,
        Limit::Namespaces,
        Limit::Topics,
        Limit::Partitions,
        Limit::Producers,
        Limit::Consumers,
        Limit::Subscriptions,
        Limit::Connections,
    ];

    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Limit::PublishMessagesPerSecond => "publishMessagesPerSecond",
            Limit::PublishBytesPerSecond => "publishBytesPerSecond",
            Limit::DispatchMessagesPerSecond => "dispatchMessagesPerSecond",
            Limit::DispatchBytesPerSecond => "dispatchBytesPerSecond",
            Limit::ReplicationMessagesPerSecond => "replicationMessagesPerSecond",
            Limit::ReplicationBytesPerSecond => "replicationBytesPerSecond",
            Limit::StoredBytes => "storedBytes",
            Limit::BacklogBytes => "backlogBytes",
            Limit::Namespaces => "namespaces",
            Limit::Topics => "topics",
            Limit::Partitions => "partitions",
            Limit::Producers => "producers",
            Limit::Consumers => "consumers",
            Limit::Subscriptions => "subscriptions",
            Limit::Connections => "connections",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// What it is for, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Limit::PublishMessagesPerSecond => "Messages published per second; what is over waits.",
            Limit::PublishBytesPerSecond => "Bytes published per second; what is over waits.",
            Limit::DispatchMessagesPerSecond => "Messages dispatched per second, over all subscriptions.",
            Limit::DispatchBytesPerSecond => "Bytes dispatched per second, over all subscriptions.",
            Limit::ReplicationMessagesPerSecond => "Messages copied to other regions per second.",
            Limit::ReplicationBytesPerSecond => "Bytes copied to other regions per second.",
            Limit::StoredBytes => "Bytes kept in storage; above, publishing stops and the rest goes on.",
            Limit::BacklogBytes => "Bytes that subscriptions have not acknowledged; above, publishing stops.",
            Limit::Namespaces => "Namespaces.",
            Limit::Topics => "Topics; each partition is one.",
            Limit::Partitions => "Partitions of one topic.",
            Limit::Producers => "Producers that are connected.",
            Limit::Consumers => "Consumers that are connected.",
            Limit::Subscriptions => "Durable subscriptions.",
            Limit::Connections => "Connections that hold a producer or consumer.",
        }
    }

    /// What its values look like: a count may be 0, which allows nothing, a rate may not.
    pub fn shape(self) -> Shape {
        Shape::Whole { min: i64::from(self.is_rate()), max: i64::MAX }
    }

    /// Those that can be set at such a place, in the order of the reference.
    pub fn of(level: Level) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |limit| limit.fits(level))
    }

    /// Whether it is so much per second.
    pub fn is_rate(self) -> bool {
        self <= Limit::ReplicationBytesPerSecond
    }

    /// Whether brokers share it by leases: rates, and what lives as long as its connection.
    pub fn is_leased(self) -> bool {
        self.is_rate() || matches!(self, Limit::Producers | Limit::Consumers | Limit::Connections)
    }

    /// Whether it can be set at such a place.
    pub fn fits(self, level: Level) -> bool {
        match self {
            Limit::Namespaces => matches!(level, Level::Cluster | Level::Tenant),
            Limit::Topics => matches!(level, Level::Cluster | Level::Tenant | Level::Namespace),
            Limit::Partitions | Limit::Subscriptions | Limit::Producers | Limit::Consumers => level != Level::Group,
            Limit::Connections => matches!(level, Level::Cluster | Level::Tenant | Level::Namespace),
            Limit::StoredBytes | Limit::BacklogBytes => level != Level::Group,
            _ => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Level {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Level::Cluster => "cluster",
            Level::Tenant => "tenant",
            Level::Namespace => "namespace",
            Level::Topic => "topic",
            Level::Group => "resource group",
        }
    }
}

/// Limits of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quota(pub BTreeMap<Limit, u64>);

impl Quota {
    /// Reads a document of limits; `null` and what is absent is unset (Q1).
    ///
    /// # Errors
    /// [`PolicyError`] for an unknown name, a value that is no whole number from 0, a rate of 0, or a limit that this level
    /// does not have.
    pub fn read(document: &Value, level: Level) -> Result<Self, PolicyError> {
        let fields = match document {
            Value::Null => &Map::new(),
            Value::Object(fields) => fields,
            other => return refuse(format!("quota {other}"), "a quota is an object of limits"),
        };
        let mut quota = Self::default();
        for (name, value) in fields {
            let Some(limit) = Limit::parse(name) else {
                return refuse(format!("quota limit {name}"), KNOWN_LIMITS);
            };
            if value.is_null() {
                continue;
            }
            let Some(value) = value.as_u64().filter(|value| i64::try_from(*value).is_ok()) else {
                return refuse(format!("quota limit {name}={value}"), "a limit is a whole number from 0, or null");
            };
            if limit.is_rate() && value == 0 {
                return refuse(
                    format!("quota limit {name}=0"),
                    "a rate is at least 1; null or leaving it out unsets it",
                );
            }
            if !limit.fits(level) {
                let what = format!("quota limit {name} of a {}", level.word());
                return refuse(what, "such a place has no such limit");
            }
            quota.0.insert(limit, value);
        }
        Ok(quota)
    }

    /// A limit, if it is set.
    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0.get(&limit).copied()
    }
}

/// The rule behind a name that is not known.
const KNOWN_LIMITS: &str = "the limits are publishMessagesPerSecond, publishBytesPerSecond, dispatchMessagesPerSecond, \
     dispatchBytesPerSecond, replicationMessagesPerSecond, replicationBytesPerSecond, storedBytes, backlogBytes, namespaces, \
     topics, partitions, producers, consumers, subscriptions, connections";

/// Who set a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The operator: super users only.
    Operator,
    /// The tenant's administrators, for themselves.
    Tenant,
}

/// Both layers of one place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quotas {
    /// The operator's.
    pub operator: Quota,
    /// The tenant's.
    pub tenant: Quota,
}

impl Quotas {
    /// A limit and who set it: the smaller value counts.
    pub fn get(&self, limit: Limit) -> Option<(u64, Layer)> {
        let operator = self.operator.get(limit).map(|value| (value, Layer::Operator));
        let tenant = self.tenant.get(limit).map(|value| (value, Layer::Tenant));
        [operator, tenant].into_iter().flatten().min()
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.operator.0.is_empty() && self.tenant.0.is_empty()
    }

    /// One of the layers.
    pub fn layer(&self, layer: Layer) -> &Quota {
        match layer {
            Layer::Operator => &self.operator,
            Layer::Tenant => &self.tenant,
        }
    }

    /// One of the layers.
    pub fn layer_mut(&mut self, layer: Layer) -> &mut Quota {
        match layer {
            Layer::Operator => &mut self.operator,
            Layer::Tenant => &mut self.tenant,
        }
    }
}

/// Where a quota is set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The whole region.
    Cluster,
    /// A tenant.
    Tenant(String),
    /// A namespace.
    Namespace(NamespaceName),
    /// A topic; of a partitioned one, all partitions together.
    Topic(TopicName),
    /// A resource group.
    Group(String),
}

impl Place {
    /// Its kind.
    pub fn level(&self) -> Level {
        match self {
            Place::Cluster => Level::Cluster,
            Place::Tenant(_) => Level::Tenant,
            Place::Namespace(_) => Level::Namespace,
            Place::Topic(_) => Level::Topic,
            Place::Group(_) => Level::Group,
        }
    }

    /// The places whose limits bind a topic, the outermost first.
    pub fn way_to(topic: &TopicName) -> [Place; 4] {
        let topic = topic.base();
        let namespace = topic.namespace();
        let tenant = namespace.tenant().to_owned();
        [Place::Cluster, Place::Tenant(tenant), Place::Namespace(namespace), Place::Topic(topic)]
    }

    /// Whether another place is this one or lies within it.
    pub fn holds(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Tenant(name), _) => other.tenant() == Some(name),
            (Place::Namespace(name), Place::Topic(topic)) => topic.namespace() == *name,
            _ => self == other,
        }
    }

    /// The tenant that it belongs to.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Place::Cluster | Place::Group(_) => None,
            Place::Tenant(name) => Some(name),
            Place::Namespace(name) => Some(name.tenant()),
            Place::Topic(name) => Some(name.tenant()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cluster => f.write_str("the cluster"),
            Place::Tenant(name) => write!(f, "tenant {name}"),
            Place::Namespace(name) => write!(f, "namespace {name}"),
            Place::Topic(name) => write!(f, "topic {name}"),
            Place::Group(name) => write!(f, "resource group {name}"),
        }
    }
}

/// A limit that binds, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// What is limited.
    pub limit: Limit,
    /// How much there may be.
    pub value: u64,
    /// Where it is set.
    pub place: Place,
    /// Who set it.
    pub layer: Layer,
}

/// The smallest bound among places (Q2); of equal ones the outermost.
pub fn smallest<'a>(limit: Limit, places: impl IntoIterator<Item = (&'a Place, &'a Quotas)>) -> Option<Bound> {
    let mut found: Option<Bound> = None;
    for (place, quotas) in places {
        let Some((value, layer)) = quotas.get(limit) else { continue };
        if found.as_ref().is_none_or(|found| value < found.value) {
            found = Some(Bound { limit, value, place: place.clone(), layer });
        }
    }
    found
}

/// There is no room under a bound (Q3).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("quota exceeded: {} {used} of {} of {}", bound.limit, bound.value, bound.place)]
pub struct Exceeded {
    /// The bound.
    pub bound: Bound,
    /// How much there is.
    pub used: u64,
}

impl Classify for Exceeded {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_read_back_and_are_those_of_documents() {
        for limit in Limit::ALL {
            assert_eq!(Limit::parse(limit.name()), Some(limit));
            assert_eq!(serde_json::to_value(limit).unwrap(), json!(limit.name()));
            assert!(KNOWN_LIMITS.contains(limit.name()), "{limit}");
            assert!(limit.fits(Level::Cluster), "{limit}");
            assert!(!limit.about().is_empty() && limit.shape().complete(&json!(1)).is_ok(), "{limit}");
            let zero = Quota::read(&json!({ limit.name(): 0 }), Level::Cluster);
            assert_eq!(limit.shape().complete(&json!(0)).is_ok(), zero.is_ok(), "{limit}: one rule");
        }
        assert_eq!(Limit::of(Level::Group).count(), 6);
        assert_eq!(Limit::ALL.iter().filter(|limit| limit.is_rate()).count(), 6);
    }

    #[test]
    fn documents_are_checked() {
        let read = |document: Value, level| Quota::read(&document, level);
        let quota = read(json!({"topics": 0, "producers": null, "publishBytesPerSecond": 5}), Level::Tenant).unwrap();
        assert_eq!((quota.get(Limit::Topics), quota.get(Limit::Producers)), (Some(0), None));
        assert_eq!(serde_json::to_value(&quota).unwrap(), json!({"topics": 0, "publishBytesPerSecond": 5}));
        assert_eq!(read(Value::Null, Level::Topic).unwrap(), Quota::default());
        for (bad, level, says) in [
            (json!({"topic": 1}), Level::Tenant, "the limits are publishMessagesPerSecond"),
            (json!({"topics": -1}), Level::Tenant, "a whole number from 0"),
            (json!({"topics": 1.5}), Level::Tenant, "a whole number from 0"),
            (json!({"topics": "1"}), Level::Tenant, "a whole number from 0"),
            (json!({"topics": u64::MAX}), Level::Tenant, "a whole number from 0"),
            (json!({"publishBytesPerSecond": 0}), Level::Tenant, "at least 1"),
            (json!({"namespaces": 1}), Level::Namespace, "no such limit"),
            (json!({"storedBytes": 1}), Level::Group, "no such limit"),
            (json!([1]), Level::Tenant, "an object of limits"),
        ] {
            let refused = read(bad.clone(), level).unwrap_err().to_string();
            assert!(refused.contains(says), "{bad}: {refused}");
        }
    }

    #[test]
    fn places_hold_what_is_within_them_and_nothing_of_a_like_name() {
        let namespace = |name: &str| Place::Namespace(NamespaceName::parse(name).unwrap());
        let topic = |name: &str| Place::Topic(TopicName::parse(name).unwrap());
        let (tenant, cluster) = (Place::Tenant("a".into()), Place::Cluster);
        for within in [tenant.clone(), namespace("a/n"), topic("a/n/t")] {
            assert!(tenant.holds(&within), "{within}");
        }
        for beside in
            [cluster.clone(), Place::Tenant("ab".into()), namespace("a-b/n"), topic("ab/n/t"), Place::Group("a".into())]
        {
            assert!(!tenant.holds(&beside), "{beside}");
        }
        assert!(namespace("a/n").holds(&topic("a/n/t")) && namespace("a/n").holds(&namespace("a/n")));
        assert!(!namespace("a/n").holds(&topic("a/n2/t")) && !namespace("a/n").holds(&tenant));
        assert!(topic("a/n/t").holds(&topic("a/n/t")) && !topic("a/n/t").holds(&topic("a/n/t2")));
        assert!(cluster.holds(&cluster) && !cluster.holds(&tenant), "what the cluster may is set apart");
    }

    #[test]
    fn a_tenant_tightens_and_never_lifts() {
        let quota = |value| Quota([(Limit::Topics, value)].into());
        let both = |operator, tenant| Quotas { operator: quota(operator), tenant: quota(tenant) }.get(Limit::Topics);
        assert_eq!(both(10, 100), Some((10, Layer::Operator)));
        assert_eq!(both(10, 3), Some((3, Layer::Tenant)));
        assert_eq!(both(10, 10), Some((10, Layer::Operator)));
        let alone = Quotas { tenant: quota(7), ..Quotas::default() };
        assert_eq!((alone.get(Limit::Topics), alone.get(Limit::Producers)), (Some((7, Layer::Tenant)), None));
    }

    #[test]
    fn the_smallest_bound_on_the_way_counts_and_is_named() {
        let topic = TopicName::parse("persistent://a/b/c-partition-3").unwrap();
        let way = Place::way_to(&topic);
        assert_eq!(way[3], Place::Topic(TopicName::parse("persistent://a/b/c").unwrap()));
        let quotas: Vec<Quotas> = [Some(9), Some(5), None, Some(5)]
            .into_iter()
            .map(|value: Option<u64>| Quotas {
                operator: Quota(value.map(|value| (Limit::Producers, value)).into_iter().collect()),
                ..Quotas::default()
            })
            .collect();
        let bound = smallest(Limit::Producers, way.iter().zip(&quotas)).unwrap();
        assert_eq!((bound.value, &bound.place), (5, &Place::Tenant("a".into())));
        let text = Exceeded { bound, used: 5 }.to_string();
        assert_eq!(text, "quota exceeded: producers 5 of 5 of tenant a");
        assert_eq!(smallest(Limit::Topics, way.iter().zip(&quotas)), None);
    }
}
