//! The metrics page: the broker's figures and those of the floors below it.

use crate::state::AdminState;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use prometheus::{Encoder, TextEncoder};

/// `GET /metrics`; open to everybody, as scrapers expect.
pub async fn page(State(state): State<AdminState>) -> impl IntoResponse {
    let mut text = state.service.metrics_text().into_bytes();
    if let Err(error) = TextEncoder::new().encode(&state.metrics.gather(), &mut text) {
        tracing::warn!(%error, "figures of storage could not be written");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
