//! The one table of policies: each with its name, its shape, what it is for, and how it is read and set.
//!
//! Role: documents, their plans and infrastructure tools are made from this table, so that none of them lacks a policy.
//! Invariants: P5 every field of [`Policies`] and [`TopicPolicies`] is in the table or named as no policy, with the
//! reason; P6 reading what was set gives the completed value again; a policy that holds what holds without it reads as
//! unset, which is `null`.
//! Failure: [`PolicyError`] for values that their type refuses.
//! Must never know: the admin interface, where policies are stored.

mod namespace;
mod parts;
mod shape;
mod topic;

pub use namespace::NAMESPACE;
pub use shape::{Absent, Field, Misfit, Shape};
pub use topic::TOPIC;

use crate::{Policies, PolicyError, TopicPolicies};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One policy of `P`.
pub struct PolicySpec<P: 'static> {
    /// Its name, as in the path of the admin interface.
    pub name: &'static str,
    /// What its value looks like.
    pub shape: Shape,
    /// What it is for, in one line.
    pub about: &'static str,
    /// What holds if it is not set, where the policy itself says it; `null` = the level above.
    pub unset: fn() -> Value,
    /// Reads it for a cluster; `null` = not set.
    pub read: fn(&P, &str) -> Value,
    /// Sets it for a cluster; `null` unsets it.
    pub write: fn(&mut P, &str, Value) -> Result<(), PolicyError>,
}

/// A policy of namespaces.
pub type NamespacePolicy = PolicySpec<Policies>;
/// A policy of topics.
pub type TopicPolicy = PolicySpec<TopicPolicies>;

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn typed<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, PolicyError> {
    serde_json::from_value(value).map_err(|error| PolicyError { what: format!("{name}: {error}"), rule: "" })
}

/// What is as it would be without being set reads as unset.
fn unless_default(value: Value, default: &Value) -> Value {
    if value == *default { Value::Null } else { value }
}

/// A policy whose field is an option.
macro_rules! option {
    ($name:literal, $field:ident, $shape:expr, $about:literal) => {
        PolicySpec {
            name: $name,
            shape: $shape,
            about: $about,
            unset: || serde_json::Value::Null,
            read: |policies, _| super::shown(&policies.$field),
            write: |policies, _, value| {
                policies.$field = super::typed($name, value)?;
                Ok(())
            },
        }
    };
}

/// A policy whose field always has a value.
macro_rules! plain {
    ($name:literal, $field:ident, $default:tt, $shape:expr, $about:literal) => {
        PolicySpec {
            name: $name,
            shape: $shape,
            about: $about,
            unset: || serde_json::json!($default),
            read: |policies, _| super::unless_default(super::shown(&policies.$field), &serde_json::json!($default)),
            write: |policies, _, value| {
                let value = if value.is_null() { serde_json::json!($default) } else { value };
                policies.$field = super::typed($name, value)?;
                Ok(())
            },
        }
    };
}

/// A policy whose field holds values by cluster.
macro_rules! by_cluster {
    ($name:literal, $field:ident, $shape:expr, $about:literal) => {
        PolicySpec {
            name: $name,
            shape: $shape,
            about: $about,
            unset: || serde_json::Value::Null,
            read: |policies, cluster| super::shown(&policies.$field.get(cluster)),
            write: |policies, cluster, value| {
                if value.is_null() {
                    policies.$field.remove(cluster);
                } else {
                    policies.$field.insert(cluster.to_owned(), super::typed($name, value)?);
                }
                Ok(())
            },
        }
    };
}

/// The policy of both backlog quotas.
macro_rules! backlog_quota {
    () => {
        PolicySpec {
            name: "backlogQuota",
            shape: super::parts::BACKLOG_QUOTA,
            about: "What may be unacknowledged before the policy acts: by size (destination_storage) and by age \
                    (message_age).",
            unset: || serde_json::Value::Null,
            read: |policies, _| super::parts::read_quotas(&policies.backlog_quota_map),
            write: |policies, _, value| {
                policies.backlog_quota_map = super::parts::quotas(value)?;
                Ok(())
            },
        }
    };
}

use {backlog_quota, by_cluster, option, plain};

#[cfg(test)]
mod tests;
