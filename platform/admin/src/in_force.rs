//! A change answers after it is in force.
//!
//! Role: holds the answer of every changing request until this broker's topics follow what was changed.
//! Failure: a change that is not in force in time is stored all the same: the answer is 202 instead of 204, or 200 with
//! the header [`PENDING`].
//! Must never know: what the request changed.

use crate::state::AdminState;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header::HeaderName};
use axum::middleware::Next;
use axum::response::Response;

/// Says `policies` where they will be in force only later.
const PENDING: HeaderName = HeaderName::from_static("x-meridian-pending");

/// Waits after a change that went well.
pub async fn wait(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let mut answer = next.run(request).await;
    if !changes || !answer.status().is_success() {
        return answer;
    }
    if let Err(error) = state.service.policies_in_force().await {
        tracing::warn!(%error, "a change is stored but not in force yet");
        if answer.status() == StatusCode::NO_CONTENT {
            *answer.status_mut() = StatusCode::ACCEPTED;
        }
        answer.headers_mut().insert(PENDING, HeaderValue::from_static("policies"));
    }
    answer
}
