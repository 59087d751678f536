//! The metrics page of a process without a broker: `/metrics`, and `/health` for a supervisor.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use meridian_admin::{WebListener, WebRefusals};
use prometheus::{Registry, TextEncoder};
use std::sync::Arc;

/// Serves until it is dropped. `healthy` answers the reason if the process does not do what it is there for.
pub async fn run(listener: WebListener, metrics: Registry, healthy: Arc<dyn Fn() -> Option<String> + Send + Sync>) {
    let refusals = WebRefusals::new(&metrics);
    let page = move || {
        let text = TextEncoder::new().encode_to_string(&metrics.gather());
        async move {
            match text {
                Ok(text) => {
                    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
                }
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }
        }
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
    let router = Router::new().route("/metrics", get(page)).route("/health", get(health));
    listener.run_router(router, refusals).await;
}
