//! What there can be: objects, and the facets that make one up.

use crate::walk::join;
use meridian_policy::quota::{Layer, Place};
use meridian_types::{NamespaceName, TopicName};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Names an object. The order is that of creation; deletion goes the other way round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    /// The region itself, which is always there: what binds all of it.
    Cluster,
    /// A cluster entry: how a region is reached.
    Region(String),
    /// A tenant.
    Tenant(String),
    /// A namespace.
    Namespace(NamespaceName),
    /// A topic, partitioned or not.
    Topic(TopicName),
    /// A subscription of a topic.
    Subscription(TopicName, String),
}

impl ObjectId {
    /// What kind of object it is.
    pub fn kind(&self) -> &'static str {
        match self {
            ObjectId::Cluster => "cluster",
            ObjectId::Region(_) => "region",
            ObjectId::Tenant(_) => "tenant",
            ObjectId::Namespace(_) => "namespace",
            ObjectId::Topic(_) => "topic",
            ObjectId::Subscription(..) => "subscription",
        }
    }

    /// Where a document speaks of it.
    pub fn path(&self) -> String {
        let of_namespace =
            |name: &NamespaceName| join(&format!("{}.namespaces", join("tenants", name.tenant())), name.local());
        let of_topic = |topic: &TopicName| join(&format!("{}.topics", of_namespace(&topic.namespace())), topic.local());
        match self {
            ObjectId::Cluster => String::new(),
            ObjectId::Region(name) => join("regions", name),
            ObjectId::Tenant(name) => join("tenants", name),
            ObjectId::Namespace(name) => of_namespace(name),
            ObjectId::Topic(topic) => of_topic(topic),
            ObjectId::Subscription(topic, name) => join(&format!("{}.subscriptions", of_topic(topic)), name),
        }
    }
}

impl ObjectId {
    /// Where its limits are kept, if it has any.
    pub fn quota_place(&self) -> Option<Place> {
        match self {
            ObjectId::Cluster => Some(Place::Cluster),
            ObjectId::Tenant(name) => Some(Place::Tenant(name.clone())),
            ObjectId::Namespace(name) => Some(Place::Namespace(name.clone())),
            ObjectId::Topic(topic) => Some(Place::Topic(topic.clone())),
            ObjectId::Region(_) | ObjectId::Subscription(..) => None,
        }
    }

    /// Groups of limits that it has: a tenant sets none for all of itself.
    pub fn quota_groups(&self) -> &'static [(Group, Layer)] {
        const OPERATORS: (Group, Layer) = (Group::Quotas, Layer::Operator);
        match self {
            ObjectId::Cluster | ObjectId::Tenant(_) => &[OPERATORS],
            ObjectId::Namespace(_) | ObjectId::Topic(_) => &[OPERATORS, (Group::TenantQuotas, Layer::Tenant)],
            ObjectId::Region(_) | ObjectId::Subscription(..) => &[],
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            ObjectId::Cluster => f.write_str("the cluster's limits"),
            ObjectId::Region(name) | ObjectId::Tenant(name) => write!(f, "{kind} {name}"),
            ObjectId::Namespace(name) => write!(f, "{kind} {name}"),
            ObjectId::Topic(topic) => write!(f, "{kind} {topic}"),
            ObjectId::Subscription(topic, name) => write!(f, "{kind} {name} of {topic}"),
        }
    }
}

/// Facets that are meant whole once the document speaks of one of them (D3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Policies.
    Policies,
    /// Grants.
    Grants,
    /// Roles that alone may use a subscription.
    SubscriptionGrants,
    /// Labels of a topic.
    Properties,
    /// Limits that the operator sets.
    Quotas,
    /// Limits that a tenant sets for itself, within the operator's.
    TenantQuotas,
}

impl Group {
    /// Its key in a document.
    pub fn key(self) -> &'static str {
        match self {
            Group::Policies => "policies",
            Group::Grants => "grants",
            Group::SubscriptionGrants => "subscriptionGrants",
            Group::Properties => "properties",
            Group::Quotas => "quotas",
            Group::TenantQuotas => "tenantQuotas",
        }
    }
}

/// One side of an object that is compared and set by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Facet {
    /// A field of a region, of a tenant, of a topic or of a subscription, by its key.
    Field(&'static str),
    /// One of a group, by name.
    Of(Group, String),
}

impl Facet {
    /// Its place under the object.
    pub fn path(&self) -> String {
        match self {
            Facet::Field(key) => (*key).to_owned(),
            Facet::Of(group, name) => join(group.key(), name),
        }
    }

    /// Its value is never shown (D5).
    pub fn is_secret(&self) -> bool {
        *self == Facet::Field("authenticationParameters")
    }

    /// It says how the object is made; it is not compared afterwards.
    pub fn is_of_creation(&self) -> bool {
        *self == Facet::Field("position")
    }
}

/// An object as it is meant or as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object {
    /// Its facets; none of them is `null`.
    pub facets: BTreeMap<Facet, Value>,
    /// Groups that it speaks of.
    pub groups: BTreeSet<Group>,
}

impl Object {
    /// Sets a facet; `null` takes it away.
    pub fn set(&mut self, facet: Facet, value: Value) {
        if value.is_null() {
            self.facets.remove(&facet);
        } else {
            self.facets.insert(facet, value);
        }
    }

    /// A facet's value.
    pub fn get(&self, facet: &Facet) -> Option<&Value> {
        self.facets.get(facet)
    }

    /// A field's value.
    pub fn field(&self, key: &'static str) -> Option<&Value> {
        self.facets.get(&Facet::Field(key))
    }
}
