//! The admin API as an OpenAPI document.
//!
//! Role: every call that is answered, its path and methods; policies come from the tables that serve them, the rest from
//! the list below, which a test compares with the router.
//! Invariants: O1 no call is missing and none is too many.
//! Failure: none.
//! Must never know: what a call does.

use crate::reply::Reply;
use crate::{namespaces, topics};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Paths with their methods, but for single policies.
const CALLS: &[(&str, &str)] = &[
    ("/admin/v2/bookies/all", "get"),
    ("/admin/v2/bookies/racks-info", "get"),
    ("/admin/v2/bookies/racks-info/{bookie}", "get put post delete"),
    ("/admin/v2/broker-stats/allocator-stats/{allocator}", "get put post delete"),
    ("/admin/v2/broker-stats/load-report", "get"),
    ("/admin/v2/broker-stats/mbeans", "get"),
    ("/admin/v2/broker-stats/metrics", "get"),
    ("/admin/v2/broker-stats/pending-bookie-ops-stats", "get put post delete"),
    ("/admin/v2/broker-stats/topics", "get"),
    ("/admin/v2/brokers", "get"),
    ("/admin/v2/brokers/configuration", "get"),
    ("/admin/v2/brokers/configuration/runtime", "get"),
    ("/admin/v2/brokers/configuration/values", "get"),
    ("/admin/v2/brokers/configuration/{key}", "delete"),
    ("/admin/v2/brokers/configuration/{key}/{*value}", "post"),
    ("/admin/v2/brokers/health", "get"),
    ("/admin/v2/brokers/internal-configuration", "get"),
    ("/admin/v2/brokers/leaderBroker", "get"),
    ("/admin/v2/brokers/ready", "get"),
    ("/admin/v2/brokers/version", "get"),
    ("/admin/v2/brokers/{cluster}", "get"),
    ("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", "get"),
    ("/admin/v2/clusters", "get"),
    ("/admin/v2/clusters/{cluster}", "get put post delete"),
    ("/admin/v2/clusters/{cluster}/failureDomains", "get"),
    ("/admin/v2/clusters/{cluster}/failureDomains/{domain}", "get post delete"),
    ("/admin/v2/clusters/{cluster}/migrate", "get put post delete"),
    ("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", "get"),
    ("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers", "get"),
    ("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}", "get"),
    ("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}", "get post delete"),
    ("/admin/v2/clusters/{cluster}/peers", "get post"),
    ("/admin/v2/function", "get"),
    ("/admin/v2/function/{*rest}", "get put post delete"),
    ("/admin/v2/functions", "get"),
    ("/admin/v2/functions/{*rest}", "get put post delete"),
    ("/admin/v2/meridian/applied", "get"),
    ("/admin/v2/meridian/applied/{owner}", "get delete"),
    ("/admin/v2/meridian/apply", "put"),
    ("/admin/v2/meridian/bookies", "get"),
    ("/admin/v2/meridian/bookies-audit", "get post"),
    ("/admin/v2/meridian/bookies/{bookie}/decommission", "get put delete"),
    ("/admin/v2/meridian/export", "get"),
    ("/admin/v2/meridian/contact", "get"),
    ("/admin/v2/meridian/failover", "get"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}", "get put"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/cost", "get"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/force", "post"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/settlement", "get"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/switch", "post"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/tails", "get"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/tails/drop", "post"),
    ("/admin/v2/meridian/failover/{tenant}/{namespace}/tails/replay", "post"),
    ("/admin/v2/meridian/openapi", "get"),
    ("/admin/v2/meridian/quotas", "get"),
    ("/admin/v2/meridian/quotas/cluster", "get put post delete"),
    ("/admin/v2/meridian/quotas/namespaces/{tenant}/{namespace}", "get put post delete"),
    ("/admin/v2/meridian/quotas/tenants/{tenant}", "get put post delete"),
    ("/admin/v2/meridian/quotas/topics/{domain}/{tenant}/{namespace}/{topic}", "get put post delete"),
    ("/admin/v2/meridian/region-link", "get"),
    ("/admin/v2/meridian/region-link/peers", "get"),
    ("/admin/v2/meridian/usage/tenants/{tenant}", "get"),
    ("/admin/v2/meridian/within", "post"),
    ("/admin/v2/namespaces/{tenant}", "get"),
    ("/admin/v2/namespaces/{tenant}/antiAffinity/{group}", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}", "get put delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/backlogQuota", "post delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/backlogQuotaMap", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/bundles", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/clearBacklog", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/clearBacklog/{subscription}", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/migration", "get put post delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}", "post delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}", "post delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/{subscription}/{role}", "delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/persistence/bookieAffinity", "get post delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/property/{key}", "get delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/property/{key}/{value}", "put"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/removeOffloadPolicies", "delete"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup/{group}", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/topics", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/unload", "put"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/unsubscribe/{subscription}", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog/{subscription}", "post"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split", "put"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions", "get"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload", "put"),
    ("/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unsubscribe/{subscription}", "post"),
    ("/admin/v2/packages", "get"),
    ("/admin/v2/packages/{*rest}", "get put post delete"),
    ("/admin/v2/resource-quotas", "get"),
    ("/admin/v2/resource-quotas/{*rest}", "get put post delete"),
    ("/admin/v2/resourcegroups", "get"),
    ("/admin/v2/resourcegroups/{group}", "get put post delete"),
    ("/admin/v2/scalable", "get"),
    ("/admin/v2/scalable/{*rest}", "get put post delete"),
    ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility", "post"),
    ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", "get post delete"),
    ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}", "get"),
    ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas", "get"),
    ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/version", "post"),
    ("/admin/v2/sink", "get"),
    ("/admin/v2/sink/{*rest}", "get put post delete"),
    ("/admin/v2/sinks", "get"),
    ("/admin/v2/sinks/{*rest}", "get put post delete"),
    ("/admin/v2/source", "get"),
    ("/admin/v2/source/{*rest}", "get put post delete"),
    ("/admin/v2/sources", "get"),
    ("/admin/v2/sources/{*rest}", "get put post delete"),
    ("/admin/v2/tenants", "get"),
    ("/admin/v2/tenants/{tenant}", "get put post delete"),
    ("/admin/v2/transactions", "get"),
    ("/admin/v2/transactions/{*rest}", "get put post delete"),
    ("/admin/v2/worker", "get"),
    ("/admin/v2/worker-stats", "get"),
    ("/admin/v2/worker-stats/{*rest}", "get put post delete"),
    ("/admin/v2/worker/{*rest}", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/partitioned", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}", "put delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/all_subscription/expireMessages/{seconds}", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlog", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogQuota", "post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogQuotaMap", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogSize", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction", "get put"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/examinemessage", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/internal-info", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/internalStats", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/lastMessageId", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/ledger/{ledger}/entry/{entry}", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/messageid/{timestamp}", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload", "get put"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitioned-internalStats", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitioned-stats", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions/{role}", "post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/properties", "get put delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/restore/{region}", "get put"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/shadowTopics", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}", "put delete"),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/analyzeBacklog",
        "get put post delete",
    ),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/expireMessages",
        "get put post delete",
    ),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/expireMessages/{seconds}", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/position/{nth}", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/properties", "get"),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
        "get post",
    ),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor/{timestamp}", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip/{count}", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscriptions", "get"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate/partitions", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/trim", "post"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/truncate", "get put post delete"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/unload", "put"),
    ("/admin/v3/function", "get"),
    ("/admin/v3/function/{*rest}", "get put post delete"),
    ("/admin/v3/functions", "get"),
    ("/admin/v3/functions/{*rest}", "get put post delete"),
    ("/admin/v3/packages", "get"),
    ("/admin/v3/packages/{*rest}", "get put post delete"),
    ("/admin/v3/resource-quotas", "get"),
    ("/admin/v3/resource-quotas/{*rest}", "get put post delete"),
    ("/admin/v3/scalable", "get"),
    ("/admin/v3/scalable/{*rest}", "get put post delete"),
    ("/admin/v3/sink", "get"),
    ("/admin/v3/sink/{*rest}", "get put post delete"),
    ("/admin/v3/sinks", "get"),
    ("/admin/v3/sinks/{*rest}", "get put post delete"),
    ("/admin/v3/source", "get"),
    ("/admin/v3/source/{*rest}", "get put post delete"),
    ("/admin/v3/sources", "get"),
    ("/admin/v3/sources/{*rest}", "get put post delete"),
    ("/admin/v3/transactions", "get"),
    ("/admin/v3/transactions/{*rest}", "get put post delete"),
    ("/admin/v3/worker", "get"),
    ("/admin/v3/worker-stats", "get"),
    ("/admin/v3/worker-stats/{*rest}", "get put post delete"),
    ("/admin/v3/worker/{*rest}", "get put post delete"),
    ("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", "get"),
    ("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", "get"),
    ("/meridian/controlled-failover/{tenant}/{namespace}", "get"),
    ("/metrics", "get"),
    ("/metrics/", "get"),
    ("/status.html", "get"),
];

/// Base of the policies of namespaces, and of topics.
const NAMESPACE: &str = "/admin/v2/namespaces/{tenant}/{namespace}";
const TOPIC: &str = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}";

/// All paths with their methods.
pub fn calls() -> BTreeMap<String, Vec<&'static str>> {
    let mut all: BTreeMap<String, Vec<&'static str>> =
        CALLS.iter().map(|(path, methods)| ((*path).to_owned(), methods.split(' ').collect())).collect();
    let of_namespaces = namespaces::policies::names().map(|row| (NAMESPACE, row));
    for (base, (name, by_put, removable)) in of_namespaces.chain(topics::policies::names().map(|row| (TOPIC, row))) {
        let mut methods = vec!["get", if by_put { "put" } else { "post" }];
        methods.extend(removable.then_some("delete"));
        all.insert(format!("{base}/{name}"), methods);
    }
    all
}

/// The document.
pub fn document() -> Value {
    let paths: Map<String, Value> = calls().iter().map(|(path, methods)| (plain(path), item(path, methods))).collect();
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Meridian admin API",
            "description": "The admin API of Pulsar, with calls of Meridian's own under /admin/v2/meridian.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "required": ["reason"],
                    "properties": { "reason": { "type": "string" } },
                },
            },
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "password": { "type": "http", "scheme": "basic" },
            },
        },
        "security": [{ "token": [] }, { "password": [] }, {}],
    })
}

/// A path without the mark of a part that holds slashes.
fn plain(path: &str) -> String {
    path.replace("{*", "{")
}

fn item(path: &str, methods: &[&str]) -> Value {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    let parameters: Vec<Value> = names
        .map(|name| {
            let name = name.trim_start_matches('*');
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    let mut item = Map::new();
    for method in methods {
        item.insert((*method).to_owned(), operation(path, method));
    }
    if !parameters.is_empty() {
        item.insert("parameters".to_owned(), Value::Array(parameters));
    }
    Value::Object(item)
}

fn operation(path: &str, method: &str) -> Value {
    let refusal = json!({
        "description": "refused, with a reason",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
    });
    let mut operation = json!({
        "operationId": format!("{method}{}", path.replace(['/', '{', '}', '*', '.'], "_")),
        "tags": [tag(path)],
        "responses": { "2XX": { "description": "done" }, "4XX": refusal, "5XX": refusal },
    });
    if matches!(method, "put" | "post") {
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": {} } } });
    }
    operation
}

/// What a call is about: the first part of its path below the version.
fn tag(path: &str) -> &str {
    let below = path.strip_prefix("/admin/v2/").or(path.strip_prefix("/admin/v3/")).unwrap_or(&path[1..]);
    match below.split('/').next().unwrap_or_default() {
        "{domain}" => "topics",
        part => part,
    }
}

/// The document over HTTP; it is the same for everybody.
pub async fn page() -> Reply {
    Reply::json(&document())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_parameters_and_refusals() {
        let document = document();
        let retention = &document["paths"]["/admin/v2/namespaces/{tenant}/{namespace}/retention"];
        assert_eq!(retention["parameters"].as_array().map(Vec::len), Some(2));
        assert!(retention["delete"].is_object() && retention["put"].is_null());
        assert_eq!(retention["get"]["responses"]["4XX"]["description"], "refused, with a reason");
        assert_eq!(retention["get"]["tags"][0], "namespaces");
    }
}
