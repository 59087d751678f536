//! Calls of Pulsar's API for what is not served here: refused with a reason, never with "not found", so that a tool or
//! an operator sees at once that it is no mistyped path.
//!
//! What would be stored without effect is refused as well; what there is none of is listed as empty.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{any, get};
use serde_json::{Map, json};

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
    ("resource-quotas", "Resource quotas of bundles are not served: they guide a load balancer, and there is none"),
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
    let isolation = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies";
    routes
        .route(isolation, get(isolation_policies))
        .route(&format!("{isolation}/brokers"), get(isolated_brokers))
        .route(&format!("{isolation}/brokers/{{broker}}"), get(isolated_broker))
        .route(&format!("{isolation}/{{policy}}"), get(isolation_policy).post(isolate).delete(isolation_policy))
}

/// 501.
pub fn not_served(reason: &str) -> AdminError {
    AdminError::new(StatusCode::NOT_IMPLEMENTED, reason)
}

fn require_cluster(state: &AdminState, call: &Call) -> Result<(), AdminError> {
    state.allow_operator(call)?;
    let name = call.param("cluster");
    match state.registry().cluster(name) {
        Some(_) => Ok(()),
        None => Err(AdminError::invalid(format!("Cluster {name} does not exist."))),
    }
}

async fn isolation_policies(State(state): Given, call: Call) -> Answer {
    require_cluster(&state, &call)?;
    Ok(Reply::json(&Map::new()))
}

async fn isolated_brokers(State(state): Given, call: Call) -> Answer {
    require_cluster(&state, &call)?;
    Ok(Reply::json(&json!([])))
}

/// A broker that no policy names.
async fn isolated_broker(State(state): Given, call: Call) -> Answer {
    require_cluster(&state, &call)?;
    Ok(Reply::json(&json!({ "brokerName": call.name("broker"), "isPrimary": false, "namespaceRegex": [] })))
}

async fn isolation_policy(State(state): Given, call: Call) -> Answer {
    require_cluster(&state, &call)?;
    let (policy, cluster) = (call.name("policy"), call.param("cluster"));
    Err(AdminError::not_found(format!("NamespaceIsolationPolicies for cluster {cluster} does not hold {policy}")))
}

async fn isolate(State(state): Given, call: Call) -> Answer {
    require_cluster(&state, &call)?;
    Err(not_served("Isolation policies are not served: brokers can't be set apart for namespaces"))
}
