//! Calls of Pulsar's API for what is not served here: refused with a reason, never with "not found", so that a tool or
//! an operator sees at once that it is no mistyped path.
//!
//! What would be stored without effect is refused as well.

use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;

/// First part of the path below `/admin/v2` and `/admin/v3`, and what is refused.
const AREAS: &[(&str, &str)] = &[
    ("functions", "Functions are not served: there is no function worker"),
    ("function", "Functions are not served: there is no function worker"),
    ("sources", "Sources are not served: there is no function worker"),
    ("source", "Sources are not served: there is no function worker"),
    ("sinks", "Sinks are not served: there is no function worker"),
    ("sink", "Sinks are not served: there is no function worker"),
    ("worker", "Function workers are not served"),
    ("worker-stats", "Function workers are not served"),
    ("packages", "Packages are not served: there is no function worker that would use them"),
    ("transactions", "Transactions are not served"),
    ("scalable", "Scalable topics are not served: topics are partitioned"),
    ("resource-quotas", "Resource quotas of bundles are not served: the load balancer goes by what it measures"),
];

/// Single calls, and why they are refused.
const CALLS: &[(&str, &str)] = &[
    (
        "/admin/v2/clusters/{cluster}/migrate",
        "Clusters are not migrated: namespaces are switched between regions instead",
    ),
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/migration",
        "Namespaces are not migrated: they are switched between regions instead",
    ),
    (
        "/admin/v2/broker-stats/allocator-stats/{allocator}",
        "There is no allocator with figures of its own; see /metrics",
    ),
    ("/admin/v2/broker-stats/pending-bookie-ops-stats", "Bookies show what they wait for by /metrics"),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlog",
        "Statistics show what is left of each subscription: …/stats",
    ),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogSize",
        "Statistics show what is left of each subscription: …/stats",
    ),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/expireMessages",
        "Messages expire by age: …/expireMessages/{seconds}",
    ),
    ("/admin/v2/bookies/racks-info/{bookie}", "Racks are told by the bookies themselves, as labels"),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/shadowTopics", "Shadow topics are not served"),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/truncate",
        "Topics are not truncated: trim them once their subscriptions are past what is to go",
    ),
    ("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/examinemessage", "Messages are read by their id, or peeked at"),
    (
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/analyzeBacklog",
        "Backlogs are not analyzed: there are no filters that would leave messages out",
    ),
];

pub fn routes() -> Router<AdminState> {
    let mut routes = Router::new();
    for (area, reason) in AREAS {
        for version in ["v2", "v3"] {
            let refuse = move || async move { Err::<Reply, _>(not_served(reason)) };
            routes = routes
                .route(&format!("/admin/{version}/{area}"), any(refuse))
                .route(&format!("/admin/{version}/{area}/{{*rest}}"), any(refuse));
        }
    }
    for (path, reason) in CALLS {
        routes = routes.route(path, any(move || async move { Err::<Reply, _>(not_served(reason)) }));
    }
    routes
}

/// 501.
pub fn not_served(reason: &str) -> AdminError {
    AdminError::new(StatusCode::NOT_IMPLEMENTED, reason)
}
