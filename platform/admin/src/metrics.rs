//! The metrics page: the broker's figures and those of the floors below it.
//!
//! It names every tenant's topics and what they do, so that where roles need grants it is for those who are named for it.

use crate::auth;
use crate::error::AdminError;
use crate::state::AdminState;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::IntoResponse;
use meridian_broker::access::Principal;
use meridian_settings::Key;
use prometheus::{Encoder, TextEncoder};

/// `GET /metrics`.
pub async fn page(State(state): State<AdminState>, request: Request) -> Result<impl IntoResponse, AdminError> {
    if state.service.access().door.authorization_enabled() && state.settings().switch(Key::AuthenticateMetricsEndpoint)
    {
        let asked = auth::principal_of(&state, &request);
        may_read(&state, &asked.await?)?;
    }
    let mut text = state.service.metrics_text().into_bytes();
    if let Err(error) = TextEncoder::new().encode(&state.metrics.gather(), &mut text) {
        tracing::warn!(%error, "figures of storage could not be written");
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// Super users, and the roles that are named for it; nobody reads it through a proxy.
fn may_read(state: &AdminState, principal: &Principal) -> Result<(), AdminError> {
    let named = state.settings().list(Key::MetricsRoles);
    let role = principal.role.as_ref().filter(|_| principal.original.is_none());
    if role.is_some_and(|role| named.contains(role)) {
        return Ok(());
    }
    state.allow_operating(principal).map_err(|error| {
        AdminError::forbidden(format!("/metrics is for super users and metricsRoles: {}", error.reason))
    })
}
