//! Calls of namespaces.

use super::table::{FORCE, field, plain};
use super::{Body, Kind, Verb, policies};

const CALLS: &[Verb] = &[
    plain("list", "List namespaces of a tenant", "GET", "namespaces/{tenant}"),
    plain("policies", "Show all policies", "GET", "namespaces/{namespace}"),
    plain("create", "Create a namespace", "PUT", "namespaces/{namespace}").with(Body::Fields(&[
        field("clusters", "replication_clusters", Kind::List),
        field("bundles", "bundles", Kind::Json),
        field("policies", "auth_policies", Kind::Json),
    ])),
    plain("delete", "Delete a namespace", "DELETE", "namespaces/{namespace}").asking(FORCE),
    plain("topics", "List topics", "GET", "namespaces/{namespace}/topics").asking(&[("mode", false)]),
    plain("bundles", "Show hash ranges", "GET", "namespaces/{namespace}/bundles"),
    plain("unload", "Unload all topics", "PUT", "namespaces/{namespace}/unload"),
    plain("unload-bundle", "Unload a hash range", "PUT", "namespaces/{namespace}/{bundle}/unload")
        .asking(&[("destinationBroker", false)]),
    plain("split-bundle", "Split a hash range", "PUT", "namespaces/{namespace}/{bundle}/split"),
    plain("clear-backlog", "Skip everything on all subscriptions", "POST", "namespaces/{namespace}/clearBacklog"),
    plain(
        "unsubscribe",
        "Delete a subscription of all topics",
        "POST",
        "namespaces/{namespace}/unsubscribe/{subscription}",
    ),
    plain("permissions", "Show grants", "GET", "namespaces/{namespace}/permissions"),
    plain("grant-permission", "Grant produce, consume, …", "POST", "namespaces/{namespace}/permissions/{role}")
        .with(Body::One(Kind::List)),
    plain("revoke-permission", "Withdraw all grants of a role", "DELETE", "namespaces/{namespace}/permissions/{role}"),
    plain(
        "subscription-permission",
        "Show roles of subscriptions",
        "GET",
        "namespaces/{namespace}/permissions/subscription",
    ),
    plain(
        "grant-subscription-permission",
        "Keep a subscription for roles",
        "POST",
        "namespaces/{namespace}/permissions/subscription/{subscription}",
    )
    .with(Body::One(Kind::List)),
    plain(
        "revoke-subscription-permission",
        "Take a role from a subscription",
        "DELETE",
        "namespaces/{namespace}/permissions/{subscription}/{role}",
    ),
    plain(
        "get-anti-affinity-namespaces",
        "List namespaces of a group",
        "GET",
        "namespaces/{cluster}/antiAffinity/{group}",
    )
    .asking(&[("tenant", false)]),
];

/// All of them.
pub fn verbs() -> Vec<Verb> {
    CALLS.iter().copied().chain(policies::of_namespaces()).collect()
}
