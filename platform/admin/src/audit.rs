//! Every administrative change is recorded, whoever asks and however it ends.
//!
//! Role: a layer behind authentication and in front of all handlers: takes a place in the audit log, keeps what the change
//! concerns before and after it, and the answer.
//! Invariants: U1 of the audit log; secrets are taken out before anything is kept.
//! Failure: 503 while the audit log has no place; nothing was done.
//! Must never know: what a route does.

use crate::error::AdminError;
use crate::listener::PeerAddress;
use crate::state::AdminState;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use meridian_audit::record::difference;
use meridian_audit::{Place, redact};
use meridian_broker::access::Principal;
use meridian_settings::Kind;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Bodies up to this size are recorded.
const MAX_RECORDED_BYTES: usize = 16 << 10;
/// Of an answer that refuses, so much is looked at for its reason.
const MAX_REASON_BYTES: usize = 64 << 10;

/// What a path speaks of.
#[derive(Debug, PartialEq)]
enum Concerned {
    Tenant(String),
    Cluster(String),
    Namespace(NamespaceName),
    Topic(TopicName),
    Setting(String),
    Quota(String),
    Other,
}

impl Concerned {
    fn of(path: &str) -> Self {
        let parts: Vec<String> = path.split('/').skip(3).map(crate::call::decode_percent).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["tenants", tenant, ..] => Concerned::Tenant((*tenant).to_owned()),
            ["clusters", cluster, ..] => Concerned::Cluster((*cluster).to_owned()),
            ["namespaces", tenant, namespace, ..] => {
                NamespaceName::parse(&format!("{tenant}/{namespace}")).map_or(Concerned::Other, Concerned::Namespace)
            }
            [domain @ ("persistent" | "non-persistent"), tenant, namespace, local, ..] => {
                let local = crate::call::decode_percent(local);
                TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}"))
                    .map_or(Concerned::Other, |topic| Concerned::Topic(topic.base()))
            }
            ["brokers", "configuration", name, ..] => Concerned::Setting((*name).to_owned()),
            ["meridian", "quotas", ..] | ["resourcegroups", ..] => Concerned::Quota(parts.join("/")),
            _ => Concerned::Other,
        }
    }

    /// As it is now; `null` = it is not there.
    async fn state(&self, state: &AdminState) -> Value {
        let registry = state.registry();
        let shown = |value: Option<Value>| value.unwrap_or(Value::Null);
        let mut found = match self {
            Concerned::Tenant(name) => {
                shown(registry.tenant(name).and_then(|found| serde_json::to_value(&*found).ok()))
            }
            Concerned::Cluster(name) => {
                shown(registry.cluster(name).and_then(|found| serde_json::to_value(&*found).ok()))
            }
            Concerned::Namespace(name) => {
                shown(registry.namespace(name).and_then(|found| serde_json::to_value(&*found).ok()))
            }
            Concerned::Topic(topic) => {
                let exists = state.service.topic_exists(topic).await.unwrap_or(false);
                let partitions = registry.partitions(topic);
                let policies = registry.topic_policies(topic).and_then(|found| serde_json::to_value(&*found).ok());
                match exists || partitions.is_some() || policies.is_some() {
                    true => {
                        json!({ "exists": exists || partitions.is_some(), "partitions": partitions, "policies": policies })
                    }
                    false => Value::Null,
                }
            }
            Concerned::Setting(name) => setting(state, name),
            Concerned::Quota(place) => crate::quotas::shown_at(state, place),
            Concerned::Other => Value::Null,
        };
        redact::value(&mut found);
        found
    }
}

fn setting(state: &AdminState, name: &str) -> Value {
    let Some(row) = meridian_settings::TABLE.iter().find(|row| row.name == name) else { return Value::Null };
    let value = match row.kind {
        Kind::Secret => redact::REDACTED.to_owned(),
        _ => {
            let at = meridian_settings::TABLE.iter().position(|other| other.name == name).unwrap_or_default();
            state.settings().texts().nth(at).unwrap_or_default().to_owned()
        }
    };
    json!({ name: value })
}

/// Records a change; lets everything else pass.
pub async fn record(State(state): State<AdminState>, request: Request, next: Next) -> Result<Response, AdminError> {
    let Some(log) = state.audit.clone() else { return Ok(next.run(request).await) };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if reads || !request.uri().path().starts_with("/admin/") {
        return Ok(next.run(request).await);
    }
    let mut place = log.reserve().map_err(|full| AdminError::new(StatusCode::SERVICE_UNAVAILABLE, full.to_string()))?;
    let concerned = Concerned::of(request.uri().path());
    describe(&mut place, &request);
    let request = match with_body(&mut place, request, state.body_bytes).await {
        Ok(request) => request,
        Err(error) => {
            place.end(error.status.as_u16(), Some(&error.reason));
            return Err(error);
        }
    };
    let before = concerned.state(&state).await;
    let response = next.run(request).await;
    let status = response.status();
    if status.is_success() {
        let (before, after) = difference(before, concerned.state(&state).await);
        (place.record().before, place.record().after) = (before, after);
    }
    let (response, reason) = with_reason(response).await;
    place.end(status.as_u16(), reason.as_deref().map(redact::text).as_deref());
    Ok(response)
}

/// Who asks for what, from where.
fn describe(place: &mut Place, request: &Request) {
    let record = place.record();
    if let Some(principal) = request.extensions().get::<Principal>() {
        record.principal.clone_from(&principal.role);
        record.original_principal.clone_from(&principal.original);
        record.method.clone_from(&principal.method);
    }
    let source = request.extensions().get::<PeerAddress>();
    record.source = source.map_or_else(|| "unknown".to_owned(), |peer| peer.0.to_string());
    record.action = format!("{} {}", request.method(), redact::text(&route_of(request.uri().path())));
    record.path = redact::text(request.uri().path());
    record.query = query_of(request.uri().query().unwrap_or_default());
}

/// The path with the names of its parts instead of what they hold, so that records of one kind look alike.
fn route_of(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    let names: &[&str] = match parts.get(3).copied().unwrap_or_default() {
        "tenants" => &["{tenant}"],
        "clusters" => &["{cluster}"],
        "namespaces" => &["{tenant}", "{namespace}"],
        "persistent" | "non-persistent" | "schemas" => &["{tenant}", "{namespace}", "{topic}"],
        "resourcegroups" => &["{group}"],
        _ => &[],
    };
    for (part, name) in parts.iter_mut().skip(4).zip(names) {
        *part = name;
    }
    parts.join("/")
}

fn query_of(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .take(64)
        .map(|(name, value)| {
            let (name, value) = (crate::call::decode_percent(name), crate::call::decode_percent(value));
            let value = if redact::is_secret(&name) { redact::REDACTED.to_owned() } else { redact::text(&value) };
            (name, value)
        })
        .collect()
}

/// The request with its body read, and the body in the record.
async fn with_body(place: &mut Place, request: Request, max_bytes: usize) -> Result<Request, AdminError> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, max_bytes).await.map_err(|error| {
        let text = format!("the body can't be read, or is larger than {max_bytes} bytes (httpMaxRequestSize): {error}");
        AdminError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    })?;
    place.record().request = recorded(&body);
    Ok(Request::from_parts(parts, Body::from(body)))
}

fn recorded(body: &Bytes) -> Option<Value> {
    if body.is_empty() {
        return None;
    }
    let value = if body.len() <= MAX_RECORDED_BYTES { serde_json::from_slice(body).ok() } else { None };
    match value {
        Some(mut value) => {
            redact::value(&mut value);
            Some(value)
        }
        None => Some(json!({ "omitted_bytes": body.len() })),
    }
}

/// The answer, and why it refuses.
async fn with_reason(response: Response) -> (Response, Option<String>) {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return (response, None);
    }
    let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > MAX_REASON_BYTES) {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    // Refusals are made here and small.
    let body = axum::body::to_bytes(body, MAX_REASON_BYTES).await.unwrap_or_default();
    let reason = serde_json::from_slice::<Value>(&body).ok();
    let reason = reason.and_then(|value| value["reason"].as_str().map(str::to_owned));
    (Response::from_parts(parts, Body::from(body)), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_speak_of_what_they_name() {
        assert_eq!(Concerned::of("/admin/v2/tenants/a"), Concerned::Tenant("a".into()));
        assert_eq!(Concerned::of("/admin/v2/clusters/c/x"), Concerned::Cluster("c".into()));
        let namespace = NamespaceName::parse("a/b").unwrap();
        assert_eq!(Concerned::of("/admin/v2/namespaces/a/b/retention"), Concerned::Namespace(namespace));
        let topic = TopicName::parse("persistent://a/b/c d").unwrap();
        assert_eq!(Concerned::of("/admin/v2/persistent/a/b/c%20d/retention"), Concerned::Topic(topic.clone()));
        assert_eq!(Concerned::of("/admin/v2/persistent/a/b/c%2520d-partition-3"), Concerned::Topic(topic));
        assert_eq!(Concerned::of("/admin/v2/brokers/configuration/x/1"), Concerned::Setting("x".into()));
        assert_eq!(Concerned::of("/admin/v2/persistent/a//c"), Concerned::Other);
        assert_eq!(Concerned::of("/"), Concerned::Other);
    }

    #[test]
    fn records_of_one_kind_look_alike() {
        assert_eq!(route_of("/admin/v2/tenants/a"), "/admin/v2/tenants/{tenant}");
        let route = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions";
        assert_eq!(route_of("/admin/v2/persistent/a/b/c%20d/partitions"), route);
        assert_eq!(route_of("/admin/v2/namespaces/a"), "/admin/v2/namespaces/{tenant}");
        assert_eq!(route_of("/admin/v2/brokers/configuration/x/1"), "/admin/v2/brokers/configuration/x/1");
    }

    #[test]
    fn what_is_kept_of_a_request_holds_no_secret() {
        let query = query_of("force=true&token=eyJ&x=%2F&flag&authParams=y");
        assert_eq!(query["force"], "true");
        assert_eq!((query["token"].as_str(), query["x"].as_str(), query["flag"].as_str()), ("***", "/", ""));
        assert_eq!(query["authParams"], "***");
        let body = recorded(&Bytes::from_static(br#"{"authenticationParameters":"token:x","serviceUrl":"u"}"#));
        assert_eq!(body, Some(json!({"authenticationParameters": "***", "serviceUrl": "u"})));
        assert_eq!(recorded(&Bytes::from(vec![b'1'; 20_000])), Some(json!({"omitted_bytes": 20_000})));
        assert_eq!(recorded(&Bytes::new()), None);
    }
}
