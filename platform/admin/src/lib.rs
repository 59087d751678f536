//! The Pulsar admin REST API, look-ups over HTTP and the metrics page, over the broker's service and the same door.
//!
//! Role: requests in, the door asked, the service or the registry called, JSON out, with the statuses and the
//! `{"reason": …}` texts that Pulsar's command line tools and libraries look for.
//! Invariants: A1 no route but the status page, the document of the API and what regions and brokers ask each other is
//! answered before the caller is known (where authorization is off, the metrics page, too); A2 every handler asks the door
//! before it looks at anything, so that a refusal tells nothing of what there is; A3 a request has bounds: size of head and
//! body, time, number of connections.
//! Failure: every refusal is an [`AdminError`]; a bad request never ends the process.
//! Must never know: frames, ledgers, bookies, the metadata store.
#![forbid(unsafe_code)]
// The figures of a subscription are one literal of more than forty fields.
#![recursion_limit = "256"]

mod audit;
mod auth;
mod body;
mod bookies;
mod broker_stats;
mod brokers;
mod bundles;
mod call;
mod clusters;
mod declare;
mod elsewhere;
mod error;
mod explain;
mod failover;
mod fan_out;
mod headers;
mod in_force;
mod isolation;
mod listener;
mod live;
mod lookup;
mod metrics;
mod namespaces;
mod offload;
pub mod openapi;
mod policy_table;
mod quotas;
mod region_link;
mod reply;
mod schemas;
mod state;
mod tenants;
mod topics;
mod unserved;
mod within;

pub use bookies::{BookieDesk, DeskAnswer};
pub use error::AdminError;
pub use listener::{WebLimits, WebListener, WebRefusals};
pub use live::{Apply, LiveSettings};
pub use state::AdminState;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post};

type Answer = Result<reply::Reply, AdminError>;

/// All routes; those of partitioned topics ask every broker that serves a part.
pub fn router(state: AdminState) -> Router {
    let fan_out = fan_out::FanOut::new(state.clone());
    routes(state).layer(middleware::from_fn_with_state(fan_out, fan_out::layer))
}

/// All routes, for what is served here.
fn routes(state: AdminState) -> Router {
    let max_body_bytes = state.body_bytes;
    let guarded = Router::new()
        .merge(tenants::routes())
        .merge(clusters::routes())
        .merge(brokers::routes())
        .merge(broker_stats::routes())
        .merge(namespaces::routes())
        .merge(bundles::routes())
        .merge(isolation::routes())
        .merge(topics::routes())
        .merge(schemas::routes())
        .merge(lookup::routes())
        .merge(region_link::routes())
        .merge(failover::routes())
        .merge(declare::routes())
        .merge(bookies::routes())
        .merge(quotas::routes())
        .merge(unserved::routes())
        .layer(middleware::from_fn_with_state(state.clone(), in_force::wait))
        .layer(middleware::from_fn_with_state(state.clone(), audit::record))
        .layer(middleware::from_fn_with_state(state.clone(), auth::authenticate));
    Router::new()
        .merge(guarded)
        .route(meridian_broker::service::CONTACT_PATH, get(brokers::contact))
        .route(meridian_broker::WITHIN_PATH, post(within::answer))
        .route("/metrics", get(metrics::page))
        .route("/metrics/", get(metrics::page))
        .route("/admin/v2/meridian/region-link", get(region_link::address))
        .route("/admin/v2/meridian/openapi", get(openapi::page))
        .route("/status.html", get(|| async { "OK" }))
        .fallback(|| async { AdminError::new(StatusCode::NOT_FOUND, "HTTP 404 Not Found") })
        .method_not_allowed_fallback(|| async {
            AdminError::new(StatusCode::METHOD_NOT_ALLOWED, "HTTP 405 Method Not Allowed")
        })
        .layer(middleware::from_fn(elsewhere::redirect))
        .layer(DefaultBodyLimit::max(max_body_bytes))
        .with_state(state)
}

/// What every handler is given.
type Given = State<AdminState>;
