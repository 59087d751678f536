//! A request as handlers see it: names, query, body, caller.
//!
//! Invariants: names of topics, subscriptions and roles are decoded once by routing and once more here, because clients
//! encode them twice; bodies are JSON whatever the content type says, and an empty one is `null`.
//! Failure: 412 for names, 400 for bodies.

use crate::error::AdminError;
use crate::explain;
use crate::state::AdminState;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use meridian_broker::access::Principal;
use meridian_policy::PolicyError;
use meridian_types::{Domain, NameError, NamespaceName, TopicName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;

/// A request.
pub struct Call {
    /// Who asks.
    pub principal: Principal,
    /// Its headers.
    pub headers: HeaderMap,
    params: HashMap<String, String>,
    query: HashMap<String, String>,
    body: Bytes,
}

impl FromRequest<AdminState> for Call {
    type Rejection = AdminError;

    async fn from_request(request: Request, state: &AdminState) -> Result<Self, AdminError> {
        let (mut parts, body) = request.into_parts();
        let bad = |error: &dyn std::fmt::Display| AdminError::bad_request(error.to_string());
        let Path(params) = Path::from_request_parts(&mut parts, state).await.map_err(|error| bad(&error))?;
        let Query(query) = Query::from_request_parts(&mut parts, state).await.map_err(|error| bad(&error))?;
        // A1: the layer in front has put it there.
        let principal = parts.extensions.remove::<Principal>();
        let principal = principal.ok_or_else(|| AdminError::new(StatusCode::UNAUTHORIZED, "HTTP 401 Unauthorized"))?;
        let headers = std::mem::take(&mut parts.headers);
        let request = Request::from_parts(parts, body);
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|error| AdminError::new(error.status(), error.body_text()))?;
        let call = Self { principal, headers, params, query, body };
        call.learn(state).await?;
        Ok(call)
    }
}

impl Call {
    /// What the path names may have been made by another broker a moment ago: it is known here before it is looked for.
    async fn learn(&self, state: &AdminState) -> Result<(), AdminError> {
        let (tenant, namespace) = (self.param("tenant"), self.param("namespace"));
        let any = if namespace.is_empty() { "any" } else { namespace };
        // What is no name is refused in the words of whoever looks for it.
        let Ok(named) = NamespaceName::parse(&format!("{tenant}/{any}")) else { return Ok(()) };
        state.registry().learn_tenant(named.tenant()).await?;
        if !namespace.is_empty() {
            state.registry().learn_namespace(&named).await?;
        }
        Ok(())
    }

    /// A part of the path, as routing gives it.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// A name in the path, decoded a second time.
    pub fn name(&self, name: &str) -> String {
        decode_percent(self.param(name))
    }

    /// A whole number in the path.
    pub fn number(&self, name: &str) -> Result<i64, AdminError> {
        let text = self.param(name);
        text.parse().map_err(|_| AdminError::not_found(format!("{name} '{text}' is not a number")))
    }

    /// The namespace of the path.
    pub fn namespace(&self) -> Result<NamespaceName, AdminError> {
        let text = format!("{}/{}", self.param("tenant"), self.param("namespace"));
        NamespaceName::parse(&text).map_err(|error| unnamed("Namespace", &text, &error))
    }

    /// The domain of the path.
    pub fn domain(&self) -> Result<Domain, AdminError> {
        match self.param("domain") {
            "persistent" => Ok(Domain::Persistent),
            "non-persistent" => Ok(Domain::NonPersistent),
            _ => Err(AdminError::not_found("HTTP 404 Not Found")),
        }
    }

    /// The topic of the path.
    pub fn topic(&self) -> Result<TopicName, AdminError> {
        self.topic_in(self.domain()?)
    }

    /// The topic of a path that does not name the domain.
    pub fn topic_in(&self, domain: Domain) -> Result<TopicName, AdminError> {
        let local = self.name("topic");
        let text = format!("{}://{}/{local}", domain.as_str(), self.namespace()?);
        TopicName::parse(&text).map_err(|error| unnamed("Topic", &text, &error))
    }

    /// A query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A query parameter that is true or false.
    pub fn flag(&self, name: &str) -> bool {
        self.query(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The body as it came.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as JSON.
    pub fn value(&self) -> Result<Value, AdminError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| AdminError::bad_request(format!("the body is not JSON: {error}")))
    }

    /// The body as a value of a kind; `null` or nothing is its default.
    pub fn json<T: DeserializeOwned + Default>(&self) -> Result<T, AdminError> {
        match self.value()? {
            Value::Null => Ok(T::default()),
            value => explain::read("", &value),
        }
    }
}

/// Decodes `%XX`; a `%` that begins no such thing stays.
pub fn decode_percent(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let decoded = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        // from_str_radix takes a sign, which is no digit.
        match decoded.filter(|digits| !digits.starts_with('+')).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// 412 for a name in a path, in Pulsar's words; what is too long is told with its limit.
fn unnamed(kind: &str, text: &str, error: &NameError) -> AdminError {
    match error.is_too_long() {
        true => AdminError::invalid(error.to_string()),
        false => AdminError::invalid(format!("{kind} name is not valid: {text}")),
    }
}

/// The same for names of tenants and clusters.
pub fn unfit(kind: &str, error: &PolicyError) -> AdminError {
    match error.rule.contains("bytes") {
        true => AdminError::invalid(error.to_string()),
        false => AdminError::invalid(format!("{kind} name is not valid")),
    }
}

#[cfg(test)]
mod tests {
    use super::decode_percent;

    #[test]
    fn only_whole_escapes_are_decoded() {
        assert_eq!(decode_percent("a%2Fb%20c"), "a/b c");
        assert_eq!(decode_percent("100%"), "100%");
        assert_eq!(decode_percent("%+1%zz"), "%+1%zz");
        assert_eq!(decode_percent("%ff"), "%ff", "not UTF-8: as it came");
    }
}
