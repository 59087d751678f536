//! What the web ports answer while the process starts: that it is not ready and why, and its metrics.
//!
//! Invariants: E1 a web port answers from the moment it is bound: who asks for health during a start that waits is told
//! what it waits for; E2 once the pages are there all requests are theirs.
//! Failure: a request that comes before the pages is answered 503.
//! Must never know: what the pages are.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use meridian_admin::{WebListener, WebRefusals};
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use serde_json::json;
use std::sync::{Arc, OnceLock};
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// See the head of this file.
pub struct Front {
    metrics: Registry,
    refusals: WebRefusals,
    pages: OnceLock<Router>,
    waits_for: Mutex<String>,
}

impl Front {
    /// Of a process that starts.
    pub fn new(metrics: Registry) -> Arc<Self> {
        let refusals = WebRefusals::new(&metrics);
        Arc::new(Self { metrics, refusals, pages: OnceLock::new(), waits_for: Mutex::new("it is starting".to_owned()) })
    }

    /// Metrics of the process.
    pub fn metrics(&self) -> &Registry {
        &self.metrics
    }

    /// Requests that the ports refused.
    pub fn refusals(&self) -> &WebRefusals {
        &self.refusals
    }

    /// Serves the ports (E1); ends with the tasks.
    pub fn serve(self: &Arc<Self>, ports: impl IntoIterator<Item = WebListener>) -> Vec<JoinHandle<()>> {
        let router = Router::new().fallback(answer).with_state(self.clone());
        let run = |port: WebListener| tokio::spawn(port.run_router(router.clone(), self.refusals.clone()));
        ports.into_iter().map(run).collect()
    }

    /// What the start waits for.
    pub fn waits_for(&self, what: impl Into<String>) {
        *self.waits_for.lock() = what.into();
    }

    /// From now on these pages answer (E2).
    pub fn open(&self, pages: Router) {
        let _ = self.pages.set(pages);
    }
}

async fn answer(State(front): State<Arc<Front>>, request: Request) -> Response {
    if let Some(pages) = front.pages.get() {
        return pages.clone().oneshot(request).await.into_response();
    }
    if request.uri().path().trim_end_matches('/') == "/metrics" {
        return metrics_page(&front.metrics);
    }
    let reason = format!("the process is not ready: {}", *front.waits_for.lock());
    let body = json!({ "reason": reason }).to_string();
    (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The figures as text.
pub fn metrics_page(metrics: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&metrics.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::routing::get;

    async fn get_page(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
        let answer = router.clone().oneshot(request).await.expect("it never fails");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 16).await.expect("a body");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_port_says_what_the_start_waits_for_until_the_pages_are_there() {
        let front = Front::new(Registry::new());
        let router = Router::new().fallback(answer).with_state(front.clone());
        front.waits_for("the store at x:1 does not answer");
        for path in ["/health", "/admin/v2/brokers/ready", "/"] {
            let (status, text) = get_page(&router, path).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert!(text.contains("x:1"), "{text}");
        }
        assert_eq!(get_page(&router, "/metrics").await.0, StatusCode::OK);
        front.open(Router::new().route("/health", get(|| async { "ok" })));
        assert_eq!(get_page(&router, "/health").await, (StatusCode::OK, "ok".to_owned()));
        assert_eq!(get_page(&router, "/other").await.0, StatusCode::NOT_FOUND);
    }
}
