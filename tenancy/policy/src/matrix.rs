//! Who may do what, cell by cell: the decision asked for every principal, action and scope.
//!
//! Role: one tenant with grants of every kind stands for all; the table of the documentation and the tests that walk
//! every door are both made from it.
//! Invariants: M1 every cell is what [`decide`] answers, nothing is written down twice.
//! Failure: none.
//! Must never know: connections, credentials, requests.

use crate::access::{AccessRules, Action, Grants, Permission, Scope, decide};
use crate::{Policies, TenantInfo};
use meridian_types::{NameError, NamespaceName, TopicName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Tenant, namespace, topic and subscription that stand for all.
pub const TENANT: &str = "team";
/// See [`TENANT`].
pub const NAMESPACE: &str = "team/orders";
/// See [`TENANT`].
pub const TOPIC: &str = "persistent://team/orders/placed";
/// See [`TENANT`]; it is for the role [`Principal::SubscriptionRole`] alone.
pub const SUBSCRIPTION: &str = "billing";

/// Whom grants are given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Principal {
    /// `superUserRoles`.
    SuperUser,
    /// Administers the tenant.
    TenantAdmin,
    /// Administers a tenant whose name begins with the tenant's.
    OtherAdmin,
    /// May produce in the namespace.
    NamespaceProducer,
    /// May consume in the namespace.
    NamespaceConsumer,
    /// May produce to the topic.
    TopicProducer,
    /// May consume from the topic.
    TopicConsumer,
    /// May consume in the namespace and is the subscription's role.
    SubscriptionRole,
    /// May run functions in the namespace.
    FunctionRunner,
    /// Has no grant.
    Stranger,
    /// Has no role.
    Nobody,
}

impl Principal {
    /// All, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::SuperUser,
        Self::TenantAdmin,
        Self::OtherAdmin,
        Self::NamespaceProducer,
        Self::NamespaceConsumer,
        Self::TopicProducer,
        Self::TopicConsumer,
        Self::SubscriptionRole,
        Self::FunctionRunner,
        Self::Stranger,
        Self::Nobody,
    ];

    /// The role by which it is known.
    pub fn role(self) -> &'static str {
        match self {
            Self::SuperUser => "operator",
            Self::TenantAdmin => "team-admin",
            Self::OtherAdmin => "team-two-admin",
            Self::NamespaceProducer => "ns-producer",
            Self::NamespaceConsumer => "ns-consumer",
            Self::TopicProducer => "topic-producer",
            Self::TopicConsumer => "topic-consumer",
            Self::SubscriptionRole => "billing-service",
            Self::FunctionRunner => "function-runner",
            Self::Stranger => "stranger",
            Self::Nobody => "",
        }
    }

    fn described(self) -> &'static str {
        match self {
            Self::SuperUser => "super user",
            Self::TenantAdmin => "administrator of the tenant",
            Self::OtherAdmin => "administrator of another tenant",
            Self::NamespaceProducer => "`produce` on the namespace",
            Self::NamespaceConsumer => "`consume` on the namespace",
            Self::TopicProducer => "`produce` on the topic",
            Self::TopicConsumer => "`consume` on the topic",
            Self::SubscriptionRole => "`consume` on the namespace, role of the subscription",
            Self::FunctionRunner => "`functions` on the namespace",
            Self::Stranger => "a role without a grant",
            Self::Nobody => "no role",
        }
    }
}

/// One action at one kind of place.
const COLUMNS: [(&str, Action, Place); 10] = [
    ("produce, topic", Action::Produce, Place::Topic),
    ("consume, topic", Action::Consume, Place::Topic),
    ("consume, subscription", Action::Consume, Place::Subscription),
    ("look up, namespace", Action::Lookup, Place::Namespace),
    ("look up, topic", Action::Lookup, Place::Topic),
    ("functions, namespace", Action::Functions, Place::Namespace),
    ("administer, tenant", Action::Administer, Place::Tenant),
    ("administer, namespace", Action::Administer, Place::Namespace),
    ("administer, topic", Action::Administer, Place::Topic),
    ("operate, cluster", Action::Operate, Place::Cluster),
];

#[derive(Debug, Clone, Copy)]
enum Place {
    Cluster,
    Tenant,
    Namespace,
    Topic,
    Subscription,
}

/// The grants that the table is about.
pub fn fixture() -> (AccessRules, TenantInfo, Policies) {
    let rules = AccessRules { super_users: set([Principal::SuperUser.role().to_owned()]), wildcards: false };
    let tenant = TenantInfo {
        admin_roles: set([Principal::TenantAdmin.role().to_owned()]),
        allowed_clusters: set(["standalone".to_owned()]),
    };
    let grant = |who: Principal, what: Permission| (who.role().to_owned(), set([what]));
    let mut policies = Policies::default();
    policies.auth_policies.namespace_auth = BTreeMap::from([
        grant(Principal::NamespaceProducer, Permission::Produce),
        grant(Principal::NamespaceConsumer, Permission::Consume),
        grant(Principal::SubscriptionRole, Permission::Consume),
        grant(Principal::FunctionRunner, Permission::Functions),
    ]);
    let on_topic = BTreeMap::from([
        grant(Principal::TopicProducer, Permission::Produce),
        grant(Principal::TopicConsumer, Permission::Consume),
    ]);
    policies.auth_policies.destination_auth.insert(TOPIC.to_owned(), on_topic);
    let roles = set([Principal::SubscriptionRole.role().to_owned()]);
    policies.auth_policies.subscription_auth_roles.insert(SUBSCRIPTION.to_owned(), roles);
    (rules, tenant, policies)
}

fn set<T: Ord, const N: usize>(items: [T; N]) -> BTreeSet<T> {
    BTreeSet::from(items)
}

/// Whether each principal may do what each column says, by rows.
///
/// # Errors
/// None in practice: the names above are good ones.
pub fn cells() -> Result<Vec<(Principal, Vec<bool>)>, NameError> {
    let (rules, tenant, policies) = fixture();
    let (namespace, topic) = (NamespaceName::parse(NAMESPACE)?, TopicName::parse(TOPIC)?);
    let grants = Grants { tenant: Some(&tenant), namespace: Some(&policies) };
    let may = |who: Principal, action: Action, place: Place| {
        let scope = match place {
            Place::Cluster => Scope::Cluster,
            Place::Tenant => Scope::Tenant(TENANT),
            Place::Namespace => Scope::Namespace(&namespace),
            Place::Topic => Scope::Topic(&topic),
            Place::Subscription => Scope::Subscription(&topic, SUBSCRIPTION),
        };
        decide(&rules, who.role(), action, &scope, grants).is_ok()
    };
    let row = |who| (who, COLUMNS.iter().map(|(_, action, place)| may(who, *action, *place)).collect());
    Ok(Principal::ALL.into_iter().map(row).collect())
}

/// The page of the documentation.
///
/// # Errors
/// None in practice.
pub fn markdown() -> Result<String, NameError> {
    let mut page = String::from(HEAD);
    let titles: Vec<&str> = COLUMNS.iter().map(|(title, ..)| *title).collect();
    // Writing to a String does not fail.
    let _ = writeln!(page, "| principal | role | {} |", titles.join(" | "));
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(titles.len()));
    for (who, row) in cells()? {
        let marks: Vec<&str> = row.iter().map(|may| if *may { "yes" } else { "no" }).collect();
        let role = if who.role().is_empty() { "—".to_owned() } else { format!("`{}`", who.role()) };
        let _ = writeln!(page, "| {} | {role} | {} |", who.described(), marks.join(" | "));
    }
    page.push_str(FOOT);
    Ok(page)
}

const HEAD: &str = "\
<!-- Made from tenancy/policy/src/matrix.rs; a test tells when it is not. -->
# Permissions: who may do what

Everything that is not granted is refused. The door is asked once for each connection, producer, consumer, look-up and
admin call; a permission that is withdrawn closes what it opened within a second.

The table is the decision itself, asked for every cell. It is about the tenant `team`, its namespace `team/orders`, the topic
`placed` in it, and the subscription `billing`, which is for the role `billing-service` alone. `team-two-admin` administers
the tenant `team-two`.

";

const FOOT: &str = "
What the columns stand for:

| action | what needs it |
|---|---|
| produce | opening a producer, storing or deleting a schema |
| consume | opening a consumer or reader, skipping, expiring, resetting, peeking, deleting a subscription, reading a message by its id |
| look up | finding the broker of a topic, its partitions, statistics and schema, listing topics |
| functions | kept for tools; Functions are not served |
| administer | creating and deleting namespaces and topics, policies, grants, unloading, terminating, compacting, restoring a region |
| operate | tenants, clusters, brokers, settings, fail-over |

A refusal is 401 or 403 over HTTP (401 where the role has no permission on a topic or subscription, 403 elsewhere), and
AuthorizationError over the binary protocol. Without a role, where roles are asked for, it is 401 before anything is looked
at.
";

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/permissions.md");

    #[test]
    fn the_page_is_made_from_the_decision() {
        let page = markdown().unwrap();
        if std::env::var_os("WRITE_DOCS").is_some() {
            std::fs::write(PAGE, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(PAGE).unwrap(), page, "WRITE_DOCS=1 writes it anew");
    }

    #[test]
    fn the_corners_of_the_table() {
        let cells = cells().unwrap();
        let row = |who: Principal| &cells.iter().find(|(principal, _)| *principal == who).unwrap().1;
        assert!(row(Principal::SuperUser).iter().all(|may| *may));
        for nobody in [Principal::OtherAdmin, Principal::Stranger, Principal::Nobody] {
            assert!(row(nobody).iter().all(|may| !may), "{nobody:?}");
        }
        assert!(!row(Principal::NamespaceConsumer)[2], "the subscription is another role's");
        assert!(row(Principal::SubscriptionRole)[2]);
    }
}
