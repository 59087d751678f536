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
    ("resource-quotas", "Resource quotas of bundles are not served: the load balancer goes by what it measures"),
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
    routes
}

/// 501.
pub fn not_served(reason: &str) -> AdminError {
    AdminError::new(StatusCode::NOT_IMPLEMENTED, reason)
}
