//! Whether a role may do something, decided from what was granted.
//!
//! Roles in grants may be patterns where the rules say so: `*` is every role, `a*` every role that begins with `a`, `*b`
//! every role that ends with `b`; a `*` elsewhere is an ordinary character. Names of super users, administrators and
//! the roles of a subscription are literal.
//! Invariants: P2 what is not granted is refused; P3 patterns never make an administrator; P4 a role without a permission is
//! refused in the same words whether the place, or a rule about it, exists or not.
//! Failure: [`Refusal`].
//! Must never know: credentials, connections.

use crate::{Policies, SubscriptionAuthMode, TenantInfo};
use meridian_types::{NamespaceName, TopicName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What can be granted on a namespace or topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// To send.
    Produce,
    /// To receive.
    Consume,
    /// To run functions.
    Functions,
    /// To run sources.
    Sources,
    /// To run sinks.
    Sinks,
    /// To store packages.
    Packages,
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send to a topic.
    Produce,
    /// Receive from a topic, or handle its subscriptions (skip, expire, reset, peek, unsubscribe).
    Consume,
    /// Find a topic, read its partition count, statistics or schema; list topics of a namespace.
    Lookup,
    /// Functions of a namespace.
    Functions,
    /// Sources of a namespace.
    Sources,
    /// Sinks of a namespace.
    Sinks,
    /// Packages of a namespace.
    Packages,
    /// Anything that changes a tenant's namespaces or topics: create, delete, unload, terminate, policies, grants.
    Administer,
    /// Tenants, clusters, brokers.
    Operate,
}

impl Action {
    /// The action's name in a refusal.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Produce => "produce",
            Action::Consume => "consume",
            Action::Lookup => "look up",
            Action::Functions => "run functions",
            Action::Sources => "run sources",
            Action::Sinks => "run sinks",
            Action::Packages => "handle packages",
            Action::Administer => "administer",
            Action::Operate => "operate",
        }
    }

    /// Any of these permissions is enough.
    fn permissions(self) -> &'static [Permission] {
        match self {
            Action::Produce => &[Permission::Produce],
            Action::Consume => &[Permission::Consume],
            Action::Lookup => &[Permission::Produce, Permission::Consume],
            Action::Functions => &[Permission::Functions],
            Action::Sources => &[Permission::Sources],
            Action::Sinks => &[Permission::Sinks],
            Action::Packages => &[Permission::Packages],
            Action::Administer | Action::Operate => &[],
        }
    }
}

/// Where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// The whole cluster.
    Cluster,
    /// A tenant.
    Tenant(&'a str),
    /// A namespace.
    Namespace(&'a NamespaceName),
    /// A topic or partition.
    Topic(&'a TopicName),
    /// A subscription of a topic.
    Subscription(&'a TopicName, &'a str),
}

impl Scope<'_> {
    /// The tenant that the place belongs to.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Scope::Cluster => None,
            Scope::Tenant(tenant) => Some(tenant),
            Scope::Namespace(namespace) => Some(namespace.tenant()),
            Scope::Topic(topic) | Scope::Subscription(topic, _) => Some(topic.tenant()),
        }
    }

    /// The namespace that the place belongs to.
    pub fn namespace(&self) -> Option<NamespaceName> {
        match self {
            Scope::Cluster | Scope::Tenant(_) => None,
            Scope::Namespace(namespace) => Some((*namespace).clone()),
            Scope::Topic(topic) | Scope::Subscription(topic, _) => Some(topic.namespace()),
        }
    }

    fn topic(&self) -> Option<&TopicName> {
        match self {
            Scope::Topic(topic) | Scope::Subscription(topic, _) => Some(topic),
            _ => None,
        }
    }
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scope::Cluster => f.write_str("the cluster"),
            Scope::Tenant(tenant) => write!(f, "tenant {tenant}"),
            Scope::Namespace(namespace) => write!(f, "namespace {namespace}"),
            Scope::Topic(topic) => write!(f, "topic {topic}"),
            Scope::Subscription(topic, subscription) => write!(f, "subscription {subscription} of topic {topic}"),
        }
    }
}

/// The rules that the broker's settings give.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessRules {
    /// Roles that may do everything.
    pub super_users: BTreeSet<String>,
    /// Roles in grants may be patterns (`authorizationAllowWildcardsMatching`).
    pub wildcards: bool,
}

/// What was granted at a place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Grants<'a> {
    /// The tenant, if it exists.
    pub tenant: Option<&'a TenantInfo>,
    /// The namespace, if it exists.
    pub namespace: Option<&'a Policies>,
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no role.
    #[error("there is no role to {action} on {place}")]
    NoRole {
        /// What was asked.
        action: &'static str,
        /// Where.
        place: String,
    },
    /// The role has no permission.
    #[error("role {role} is not authorized to {action} on {place}")]
    NotGranted {
        /// The role.
        role: String,
        /// What was asked.
        action: &'static str,
        /// Where.
        place: String,
    },
    /// The subscription is for other roles.
    #[error("role {role} is not among the roles of {place}")]
    NotOfSubscription {
        /// The role.
        role: String,
        /// The subscription.
        place: String,
    },
    /// The subscription's name does not begin with the role.
    #[error("the name of {place} has to begin with the role, {role}")]
    SubscriptionPrefix {
        /// The role.
        role: String,
        /// The subscription.
        place: String,
    },
}

/// Whether a role may do something at a place.
///
/// # Errors
/// [`Refusal`] unless it was granted.
pub fn decide(
    rules: &AccessRules,
    role: &str,
    action: Action,
    scope: &Scope<'_>,
    grants: Grants<'_>,
) -> Result<(), Refusal> {
    if role.is_empty() {
        return Err(Refusal::NoRole { action: action.as_str(), place: scope.to_string() });
    }
    if rules.super_users.contains(role) {
        return Ok(());
    }
    let not_granted =
        || Refusal::NotGranted { role: role.to_owned(), action: action.as_str(), place: scope.to_string() };
    if action == Action::Operate {
        return Err(not_granted());
    }
    if grants.tenant.is_some_and(|tenant| tenant.admin_roles.contains(role)) {
        return Ok(());
    }
    let Some(namespace) = grants.namespace else { return Err(not_granted()) };
    let granted =
        |roles: &BTreeMap<String, BTreeSet<Permission>>| holds(roles, role, action.permissions(), rules.wildcards);
    let auth = &namespace.auth_policies;
    let on_topic = |topic: &TopicName| auth.destination_auth.get(topic.as_str()).is_some_and(granted);
    let somewhere = match scope.topic() {
        Some(topic) => on_topic(topic) || (topic.partition().is_some() && on_topic(&topic.base())),
        None => false,
    };
    // P4: who holds nothing here is told the same whatever is here.
    if !somewhere && !granted(&auth.namespace_auth) {
        return Err(not_granted());
    }
    match (action, scope) {
        (Action::Consume, Scope::Subscription(_, subscription)) => {
            check_subscription(role, subscription, scope, namespace)
        }
        _ => Ok(()),
    }
}

fn check_subscription(role: &str, subscription: &str, scope: &Scope<'_>, namespace: &Policies) -> Result<(), Refusal> {
    let roles = namespace.auth_policies.subscription_auth_roles.get(subscription);
    if roles.is_some_and(|roles| !roles.is_empty() && !roles.contains(role)) {
        return Err(Refusal::NotOfSubscription { role: role.to_owned(), place: scope.to_string() });
    }
    if namespace.subscription_auth_mode == SubscriptionAuthMode::Prefix && !subscription.starts_with(role) {
        return Err(Refusal::SubscriptionPrefix { role: role.to_owned(), place: scope.to_string() });
    }
    Ok(())
}

fn holds(grants: &BTreeMap<String, BTreeSet<Permission>>, role: &str, wanted: &[Permission], wildcards: bool) -> bool {
    let enough = |held: &BTreeSet<Permission>| wanted.iter().any(|permission| held.contains(permission));
    grants.get(role).is_some_and(enough)
        || (wildcards && grants.iter().any(|(pattern, held)| matches_pattern(pattern, role) && enough(held)))
}

/// Whether a text is a role or a pattern that means what it looks like: `*` alone, at the beginning, or at the end.
pub fn is_role_or_pattern(text: &str) -> bool {
    let within = text.strip_suffix('*').or(text.strip_prefix('*')).unwrap_or(text);
    !within.contains('*')
}

fn matches_pattern(pattern: &str, role: &str) -> bool {
    match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(start), _) if role.starts_with(start) => true,
        (_, Some(end)) => role.ends_with(end),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
