//! Answers of handlers, and how they become responses.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

/// What a handler answers.
pub struct Reply {
    status: StatusCode,
    content_type: Option<&'static str>,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    /// 204: it is done.
    pub fn done() -> Self {
        Self::empty(StatusCode::NO_CONTENT)
    }

    /// No body.
    pub fn empty(status: StatusCode) -> Self {
        Self { status, content_type: None, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// 200 with JSON.
    pub fn json(value: &impl Serialize) -> Self {
        // Values here have text keys and finite numbers, so that they always are JSON.
        let body = serde_json::to_vec(value).unwrap_or_default();
        let content_type = Some("application/json");
        Self { status: StatusCode::OK, content_type, headers: HeaderMap::new(), body: body.into() }
    }

    /// 200 with JSON, or with nothing for what is not set.
    pub fn setting(value: &Value) -> Self {
        if value.is_null() { Self::empty(StatusCode::OK) } else { Self::json(value) }
    }

    /// 200 with plain text.
    pub fn text(text: impl Into<Bytes>) -> Self {
        let content_type = Some("text/plain; charset=utf-8");
        Self { status: StatusCode::OK, content_type, headers: HeaderMap::new(), body: text.into() }
    }

    /// 200 with bytes and what is known of them in headers.
    pub fn bytes(body: Bytes, headers: HeaderMap) -> Self {
        Self { status: StatusCode::OK, content_type: Some("application/octet-stream"), headers, body }
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(kind) = self.content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        response
    }
}
