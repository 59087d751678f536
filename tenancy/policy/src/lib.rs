//! Tenants, namespaces, topics: their policies, and who may do what.
//!
//! Role: the values that the admin interface sets (Pulsar's JSON names), their rules, the resolution topic → namespace →
//! broker default, and the decision whether a role may do something.
//! Invariants: P1 unset is apart from zero, an option that is `None`; P2 what is not granted is refused; P3 super users
//! and administrators are named literally, patterns never make one; P4 values from outside are checked before they are
//! stored, by [`PolicyError`].
//! Failure: [`PolicyError`] names the value and the rule; [`Refusal`] the role, the action and the place.
//! Must never know: I/O, clocks, credentials, sessions.
#![forbid(unsafe_code)]

pub mod access;
mod bundles;
mod effective;
mod lenient;
mod limits;
pub mod matrix;
mod namespace;
pub mod quota;
mod rates;
pub mod schema;
mod tenant;
mod topic;

pub use access::{AccessRules, Action, Grants, Permission, Refusal, Scope, decide};
pub use bundles::BundlesData;
pub use effective::{AutoSubscriptionCreation, AutoTopicCreation, BrokerDefaults, EffectivePolicies, resolve};
pub use limits::{
    BacklogQuota, BacklogQuotaKind, BacklogQuotaPolicy, BookieAffinity, DelayedDelivery, InactiveTopicDeleteMode,
    InactiveTopics, Persistence, Retention,
};
pub use namespace::{
    AuthPolicies, AutoSubscriptionCreationOverride, AutoTopicCreationOverride, EntryFilters, Policies,
    SchemaAutoUpdateStrategy, SchemaCompatibility, SubscriptionAuthMode,
};
pub use rates::{DispatchRate, PublishRate, SubscribeRate};
pub use tenant::{ClusterData, TenantInfo};
pub use topic::{PartitionedTopic, SubscriptionPolicies, TopicPolicies};

use meridian_types::{Classify, ErrorClass};

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// The value, as given.
    pub what: String,
    /// The rule that it breaks; empty where `what` says it in words that command line users look for.
    pub rule: &'static str,
}

/// Bytes of all names and values of the properties of one thing at most: they stand in one record with other things.
pub const MAX_PROPERTIES_BYTES: usize = 256 << 10;

/// Checks the size of the properties of a namespace, a topic or a subscription.
///
/// # Errors
/// [`PolicyError`] above [`MAX_PROPERTIES_BYTES`].
pub fn check_properties(properties: &std::collections::BTreeMap<String, String>) -> Result<(), PolicyError> {
    let bytes: usize = properties.iter().map(|(name, value)| name.len() + value.len()).sum();
    match bytes > MAX_PROPERTIES_BYTES {
        true => refuse(format!("properties of {bytes} bytes"), "names and values are at most 262144 bytes together"),
        false => Ok(()),
    }
}

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rule {
            "" => f.write_str(&self.what),
            rule => write!(f, "{}: {rule}", self.what),
        }
    }
}

impl Classify for PolicyError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

pub(crate) fn refuse<T>(what: impl Into<String>, rule: &'static str) -> Result<T, PolicyError> {
    Err(PolicyError { what: what.into(), rule })
}
