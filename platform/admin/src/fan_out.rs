//! Calls about a partitioned topic whose partitions are served by several brokers.
//!
//! Role: what concerns each partition is asked of the broker that serves it, with the caller's own credentials, and the
//! answers are put together as one broker would give them. Where everything is served here nothing of this happens.
//! Invariants: F1 a call for one partition is never fanned out again; F2 size and time of an answer are bounded; F3 a change
//! that one broker refuses is refused, and may be repeated as a whole; F4 nobody is asked for a caller that may not look at the
//! topic.
//! Failure: a broker that does not answer is a 503 that names it. Brokers without a plain web port are not asked.

use crate::AdminState;
use crate::auth;
use crate::error::AdminError;
use crate::topics::stats::add_up;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use meridian_door::{Action, Scope};
use meridian_ownership::{BrokerRecord, Place};
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

/// Largest answer of another broker.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// How long another broker may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What the layer needs.
#[derive(Clone)]
pub struct FanOut {
    state: AdminState,
    /// The routes without this layer, for partitions that are served here.
    inner: Arc<OnceLock<Router>>,
}

impl FanOut {
    /// For these routes.
    pub fn new(state: AdminState) -> Self {
        Self { state, inner: Arc::default() }
    }
}

/// How the answers of partitions become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// All do it; some may not have it.
    Done,
    /// Partitions by number.
    ByNumber,
    /// Figures added up, partitions by name.
    Stats,
    /// `metadata` and partitions by name.
    Internal,
    /// `version` and partitions by name.
    Info,
    /// Names, once each.
    Union,
    /// Objects, field by field.
    Fields,
    /// The first that has it.
    First,
    /// The state that tells most, and the sums of numbers beside it.
    Worst,
    /// Partitions of other brokers go first, then the whole call is answered here.
    ThenHere,
}

/// What a call about a partitioned topic asks of each partition: the rest of the path there, and how answers are merged.
fn plan<'a>(method: &Method, rest: &'a str) -> Option<(Method, &'a str, Merge)> {
    let is_get = method == Method::GET;
    let (asked, merge) = match rest {
        "/partitioned-stats" if is_get => ("/stats", Merge::Stats),
        "/partitioned-internalStats" if is_get => ("/internalStats", Merge::Internal),
        "/internal-info" if is_get => (rest, Merge::Info),
        "/subscriptions" if is_get => (rest, Merge::Union),
        "/compaction" if is_get => (rest, Merge::Worst),
        "/terminate/partitions" => ("/terminate", Merge::ByNumber),
        "/unload" | "/trim" | "/compaction" => (rest, Merge::Done),
        _ if rest.starts_with("/restore/") => (rest, if is_get { Merge::Worst } else { Merge::Done }),
        "/partitions" if method == Method::DELETE => ("", Merge::ThenHere),
        _ if is_get && rest.ends_with("/replicatedSubscriptionStatus") => (rest, Merge::Fields),
        _ if is_get && rest.starts_with("/subscription/") && rest.ends_with("/properties") => (rest, Merge::First),
        _ if !is_get && rest.starts_with("/subscription/") => (rest, Merge::Done),
        _ if !is_get && rest.starts_with("/all_subscription/") => (rest, Merge::Done),
        _ => return None,
    };
    Some((method.clone(), asked, merge))
}

/// The topic of a path and the rest behind it.
fn topic_of(path: &str) -> Option<(TopicName, &str)> {
    let rest = path.strip_prefix("/admin/v2/")?;
    let mut parts = rest.splitn(5, '/');
    let (domain, tenant, namespace, local) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if domain != "persistent" && domain != "non-persistent" {
        return None;
    }
    NamespaceName::parse(&format!("{tenant}/{namespace}")).ok()?;
    let local = crate::call::decode_percent(&crate::call::decode_percent(local));
    let topic = TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}")).ok()?;
    let behind = parts.next().map_or("", |rest| &path[path.len() - rest.len() - 1..]);
    Some((topic, behind))
}

fn path_of(topic: &TopicName, rest: &str, query: Option<&str>) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    let local: String = topic.local().bytes().map(encode).collect();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/admin/v2/{}/{}/{local}{rest}{query}", topic.domain().as_str(), topic.namespace())
}

/// The layer.
pub async fn layer(State(fan): State<FanOut>, request: Request, next: Next) -> Response {
    let ownership = fan.state.service.ownership();
    let found = if ownership.is_alone() { None } else { topic_of(request.uri().path()) };
    let planned = found.and_then(|(topic, rest)| Some((topic, plan(request.method(), rest)?)));
    let Some((topic, (method, rest, merge))) = planned else { return next.run(request).await };
    let Some(count) = fan.state.registry().partitions(&topic) else { return next.run(request).await };
    // F4: everything that is fanned out needs more than to look; who may not is refused as for any other topic.
    let asked = auth::principal_of(&fan.state, &request);
    let may_look = match asked.await {
        Ok(principal) => fan.state.allow_principal(&principal, Action::Lookup, &Scope::Topic(&topic)).is_ok(),
        Err(_) => false,
    };
    if !may_look {
        return next.run(request).await;
    }
    let (topic, rest) = (topic.clone(), rest.to_owned());
    let mut places = Vec::new();
    for number in 0..count {
        let part = topic.with_partition(number);
        match ownership.locate(&part, false).await {
            Ok(place) => places.push((part, place)),
            Err(error) => return AdminError::from(meridian_broker::BrokerError::from(error)).into_response(),
        }
    }
    if places.iter().all(|(_, place)| *place == Place::Here) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, fan.state.body_bytes).await {
        Ok(body) => body,
        Err(error) => return AdminError::bad_request(error.to_string()).into_response(),
    };
    let asked = Asked { method, rest, head: &parts, body: &body };
    let answers = match fan.ask_all(&asked, &places, merge).await {
        Ok(answers) => answers,
        Err(error) => return error.into_response(),
    };
    if merge == Merge::ThenHere {
        return next.run(Request::from_parts(parts, Body::from(body))).await;
    }
    match merged(&fan.state, &topic, merge, answers) {
        Ok(Value::Null) => StatusCode::NO_CONTENT.into_response(),
        Ok(value) => crate::reply::Reply::json(&value).into_response(),
        Err(error) => error.into_response(),
    }
}

struct Asked<'a> {
    method: Method,
    rest: String,
    head: &'a Parts,
    body: &'a Bytes,
}

type Answers = Vec<(TopicName, Value)>;

impl FanOut {
    /// Asks for each partition; those that do not have what is asked for are left out, unless none has.
    async fn ask_all(
        &self,
        asked: &Asked<'_>,
        places: &[(TopicName, Place)],
        merge: Merge,
    ) -> Result<Answers, AdminError> {
        let (mut answers, mut missing) = (Vec::new(), None);
        for (part, place) in places {
            let path = path_of(part, &asked.rest, asked.head.uri.query());
            let answer = match place {
                Place::Here if merge == Merge::ThenHere => continue,
                Place::Here => self.ask_here(asked, &path).await?,
                Place::There(broker) => ask_there(asked, broker, &path).await?,
            };
            match answer {
                (status, value) if status.is_success() => answers.push((part.clone(), value)),
                (StatusCode::NOT_FOUND, value) => missing = Some(refusal(StatusCode::NOT_FOUND, &value)),
                (status, value) => return Err(refusal(status, &value)),
            }
        }
        match missing {
            Some(error) if answers.is_empty() && merge != Merge::ThenHere => Err(error),
            _ => Ok(answers),
        }
    }

    async fn ask_here(&self, asked: &Asked<'_>, path: &str) -> Result<(StatusCode, Value), AdminError> {
        let uri: Uri = path.parse().map_err(|_| AdminError::invalid(format!("'{path}' is no path")))?;
        let mut request = Request::new(Body::from(asked.body.clone()));
        *request.method_mut() = asked.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = asked.head.headers.clone();
        *request.extensions_mut() = asked.head.extensions.clone();
        let inner = self.inner.get_or_init(|| crate::routes(self.state.clone())).clone();
        let Ok(response) = inner.oneshot(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), MAX_ANSWER_BYTES as usize).await;
        let body = body.map_err(|error| AdminError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}

fn refusal(status: StatusCode, value: &Value) -> AdminError {
    let reason = value["reason"].as_str().unwrap_or("a broker refused").to_owned();
    // It has moved meanwhile: everything is asked again.
    let status = if status.is_redirection() { StatusCode::SERVICE_UNAVAILABLE } else { status };
    AdminError::new(status, reason)
}

async fn ask_there(asked: &Asked<'_>, broker: &BrokerRecord, path: &str) -> Result<(StatusCode, Value), AdminError> {
    let unavailable = |reason: String| {
        AdminError::new(StatusCode::SERVICE_UNAVAILABLE, format!("broker {} was not asked: {reason}", broker.id))
    };
    let url = broker.web_url.as_deref().and_then(|url| url.strip_prefix("http://"));
    let host = url.ok_or_else(|| unavailable("it has no plain web port".to_owned()))?.trim_end_matches('/');
    let call = send(asked, host, path);
    let answer = tokio::time::timeout(LIMIT, call).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    let answer = answer.map_err(unavailable)?;
    parse(&answer).ok_or_else(|| unavailable("its answer is not HTTP".to_owned()))
}

/// Headers that go along: who asks, and what the body is.
fn passed(headers: &HeaderMap) -> String {
    let line = |name: &header::HeaderName| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(format!("{name}: {value}\r\n"))
    };
    [header::AUTHORIZATION, header::CONTENT_TYPE].iter().filter_map(line).collect()
}

async fn send(asked: &Asked<'_>, host: &str, path: &str) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(host).await.map_err(text)?;
    let (method, headers, length) = (&asked.method, passed(&asked.head.headers), asked.body.len());
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(text)?;
    stream.write_all(asked.body).await.map_err(text)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await.map_err(text)?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Option<(StatusCode, Value)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let line = answer[..end].split(|byte| *byte == b'\r').next()?;
    let status = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/")?.split(' ').nth(1)?;
    let status = StatusCode::from_bytes(status.as_bytes()).ok()?;
    Some((status, serde_json::from_slice(&answer[end + 4..]).unwrap_or(Value::Null)))
}

fn merged(state: &AdminState, topic: &TopicName, merge: Merge, answers: Answers) -> Result<Value, AdminError> {
    let metadata = || json!(state.registry().partitioned_topic(topic).as_deref());
    let by_name = |answers: &Answers| -> Map<String, Value> {
        answers.iter().map(|(part, value)| (part.to_string(), value.clone())).collect()
    };
    Ok(match merge {
        Merge::Done | Merge::ThenHere => Value::Null,
        Merge::ByNumber => {
            let number = |part: &TopicName| part.partition().unwrap_or_default().to_string();
            Value::Object(answers.into_iter().map(|(part, value)| (number(&part), value)).collect())
        }
        Merge::Stats => {
            let parts = by_name(&answers);
            let mut total = add_up(answers.iter().map(|(_, value)| value));
            total["metadata"] = metadata();
            total["partitions"] = Value::Object(parts);
            total
        }
        Merge::Internal => json!({ "metadata": metadata(), "partitions": by_name(&answers) }),
        Merge::Info => json!({ "version": 0, "partitions": by_name(&answers) }),
        Merge::Union => {
            let names = answers.iter().flat_map(|(_, value)| value.as_array().into_iter().flatten());
            json!(names.filter_map(Value::as_str).collect::<BTreeSet<_>>())
        }
        Merge::Fields => {
            let fields = answers.into_iter().filter_map(|(_, value)| match value {
                Value::Object(fields) => Some(fields),
                _ => None,
            });
            Value::Object(fields.flatten().collect())
        }
        Merge::First => answers.into_iter().next().map(|(_, value)| value).unwrap_or_default(),
        Merge::Worst => {
            let rank = |value: &Value| match value["status"].as_str() {
                Some("ERROR") => 3,
                Some("RUNNING") => 2,
                Some("SUCCESS") => 1,
                _ => 0,
            };
            let mut worst = answers.iter().map(|(_, value)| value).max_by_key(|value| rank(value)).cloned();
            for (name, shown) in worst.iter_mut().filter_map(Value::as_object_mut).flatten() {
                if shown.is_u64() {
                    *shown = json!(answers.iter().filter_map(|(_, value)| value[name.as_str()].as_u64()).sum::<u64>());
                }
            }
            worst.unwrap_or_default()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_topics_are_told_from_others() {
        let (topic, rest) = topic_of("/admin/v2/persistent/t/n/a%20b/subscription/s%2F1/skip_all").unwrap();
        assert_eq!((topic.as_str(), rest), ("persistent://t/n/a b", "/subscription/s%2F1/skip_all"));
        assert_eq!(path_of(&topic, "/stats", Some("x=1")), "/admin/v2/persistent/t/n/a%20b/stats?x=1");
        assert_eq!(topic_of("/admin/v2/persistent/t/n/a").unwrap().1, "");
        assert_eq!(topic_of("/admin/v2/namespaces/t/n/unload"), None);
        assert_eq!(topic_of("/metrics"), None);
    }

    #[test]
    fn what_concerns_partitions_is_planned() {
        let merge = |method: Method, rest| plan(&method, rest).map(|(_, asked, merge)| (asked.to_owned(), merge));
        assert_eq!(merge(Method::GET, "/partitioned-stats"), Some(("/stats".into(), Merge::Stats)));
        assert_eq!(merge(Method::DELETE, "/partitions"), Some((String::new(), Merge::ThenHere)));
        assert_eq!(merge(Method::PUT, "/unload").unwrap().1, Merge::Done);
        assert_eq!(merge(Method::GET, "/partitions"), None, "metadata is the same everywhere");
        assert_eq!(merge(Method::GET, "/stats"), None);
    }

    #[test]
    fn answers_are_read() {
        let (status, value) = parse(b"HTTP/1.0 404 Not Found\r\na: b\r\n\r\n{\"reason\":\"x\"}").unwrap();
        assert_eq!((status, refusal(status, &value).reason), (StatusCode::NOT_FOUND, "x".to_owned()));
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().1, Value::Null);
        assert_eq!(parse(b"nonsense"), None);
    }
}
