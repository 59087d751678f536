//! The pages of a process without a broker: `/metrics`, and `/health` for a supervisor.

use crate::front::metrics_page;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus::Registry;
use std::sync::Arc;

/// The pages. `healthy` answers the reason if the process does not do what it is there for.
pub fn pages(metrics: Registry, healthy: Arc<dyn Fn() -> Option<String> + Send + Sync>) -> Router {
    let figures = move || {
        let page = metrics_page(&metrics);
        async move { page }
    };
    let health = move || {
        let reason = healthy();
        async move {
            match reason {
                None => (StatusCode::OK, "ok\n".to_owned()),
                Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            }
        }
    };
    Router::new().route("/metrics", get(figures)).route("/health", get(health))
}
