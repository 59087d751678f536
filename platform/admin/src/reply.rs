//! Answers of handlers, and how they become responses.

use crate::error::AdminError;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
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

    /// 200 with JSON; fields that are `null` are left out, as some clients read them as text.
    pub fn json(value: &impl Serialize) -> Self {
        // Values here have text keys and finite numbers, so that they always are JSON.
        let mut value = serde_json::to_value(value).unwrap_or_default();
        drop_nulls(&mut value);
        let body = value.to_string();
        let content_type = Some("application/json");
        Self { status: StatusCode::OK, content_type, headers: HeaderMap::new(), body: body.into() }
    }

    /// 200 with JSON in which `null` means something.
    pub fn json_whole(value: &impl Serialize) -> Self {
        let body = serde_json::to_value(value).unwrap_or_default().to_string();
        let content_type = Some("application/json");
        Self { status: StatusCode::OK, content_type, headers: HeaderMap::new(), body: body.into() }
    }

    /// The same with a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
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

    /// 307 to another address.
    pub fn redirect(to: &str) -> Result<Self, AdminError> {
        let to = HeaderValue::from_str(to).map_err(|_| AdminError::invalid(format!("'{to}' is no address")))?;
        let headers = HeaderMap::from_iter([(header::LOCATION, to)]);
        Ok(Self { headers, ..Self::empty(StatusCode::TEMPORARY_REDIRECT) })
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_without_a_value_are_left_out() {
        let mut value = json!({ "a": null, "b": [{ "c": null, "d": 0 }], "e": "" });
        drop_nulls(&mut value);
        assert_eq!(value, json!({ "b": [{ "d": 0 }], "e": "" }));
    }
}
