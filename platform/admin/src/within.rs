//! Questions of other brokers of the region: not for people.
//!
//! Failure: 401 without the region's key, 400 for what can't be read, 503 if the key can't be.
//! Must never know: what is asked.

use crate::Given;
use crate::error::AdminError;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use meridian_broker::{WITHIN_SCHEME, WithinError};

pub async fn answer(State(state): Given, headers: HeaderMap, body: Bytes) -> Result<Response, AdminError> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = given.and_then(|value| value.strip_prefix(WITHIN_SCHEME)).unwrap_or_default();
    match state.service.within(key, &body).await {
        Ok(said) => Ok(([(header::CONTENT_TYPE, "application/json")], said).into_response()),
        Err(error) => {
            let status = match &error {
                WithinError::Stranger => StatusCode::UNAUTHORIZED,
                WithinError::NotNow(_) => StatusCode::SERVICE_UNAVAILABLE,
                WithinError::Unreadable(_) => StatusCode::BAD_REQUEST,
            };
            Err(AdminError::new(status, error.to_string()))
        }
    }
}
