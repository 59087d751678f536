//! What another broker of the region has to do: the same call there, as the same caller.
//!
//! Invariants: a call is passed on once; it goes to brokers that registered themselves, over plain HTTP between them.
//! Failure: 503 if the broker can't be asked; its own refusal otherwise.

use crate::call::Call;
use crate::error::AdminError;
use axum::http::{HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use meridian_declare::{Action, Document, Facet, Object, ObjectId, Step, render};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long the other broker may take.
const WITHIN: Duration = Duration::from_secs(30);
/// Longest answer.
const ANSWER_BYTES: usize = 8 << 20;

/// How other brokers are asked for one caller.
#[derive(Clone, Default)]
pub(super) struct Passing {
    authorization: Option<HeaderValue>,
    /// The call was passed on by another broker: it is not passed on again.
    passed_on: bool,
}

impl Passing {
    pub(super) fn of(call: &Call) -> Self {
        let authorization = call.headers.get(header::AUTHORIZATION).cloned();
        Self { authorization, passed_on: call.flag("authoritative") }
    }

    /// Where an error says that the answer is to be had.
    pub(super) fn place(&self, error: &AdminError) -> Option<String> {
        let (plain, _) = error.elsewhere.as_ref().filter(|_| !self.passed_on)?;
        plain.clone()
    }
}

fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A step, at the broker that has to carry it out.
///
/// # Errors
/// 503, or what it answered.
pub(super) async fn step(
    passing: &Passing,
    url: &str,
    step: &Step,
    wanted: Option<&Object>,
    force: bool,
) -> Result<(), AdminError> {
    let of_topic = |topic: &meridian_types::TopicName| {
        format!("/admin/v2/{}/{}/{}", topic.domain().as_str(), topic.namespace(), encoded(topic.local()))
    };
    let (method, path, body) = match (&step.object, step.action) {
        (ObjectId::Topic(topic), Action::Delete) => {
            (Method::DELETE, format!("{}?force={}", of_topic(topic), force), Bytes::new())
        }
        (ObjectId::Subscription(topic, name), Action::Delete) => {
            let path = format!("{}/subscription/{}?force={}", of_topic(topic), encoded(name), force);
            (Method::DELETE, path, Bytes::new())
        }
        (id, _) => {
            let object = wanted.cloned().unwrap_or_default();
            let document = render(&BTreeMap::from([(id.clone(), object)]));
            (Method::PUT, "/admin/v2/meridian/apply?leaf=true".to_owned(), Bytes::from(document.to_string()))
        }
    };
    call(passing, url, method, &path, body).await.map(drop)
}

/// An object, as the broker that knows it says it.
///
/// # Errors
/// 503, or what it answered.
pub(super) async fn object(passing: &Passing, url: &str, id: &ObjectId) -> Result<Option<Object>, AdminError> {
    let query = match id {
        ObjectId::Subscription(topic, name) => {
            format!("topic={}&subscription={}", encoded(topic.as_str()), encoded(name))
        }
        ObjectId::Topic(topic) => format!("topic={}", encoded(topic.as_str())),
        _ => return Ok(None),
    };
    let path = format!("/admin/v2/meridian/export?{query}");
    let mut said = match call(passing, url, Method::GET, &path, Bytes::new()).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => return Ok(None),
        said => said?,
    };
    if let Some(fields) = said.as_object_mut() {
        fields.remove("region");
    }
    // The same words as a document's: read as one.
    let mut whole = render(&BTreeMap::from([(id.clone(), Object::default())]));
    if let Some(place) = whole.pointer_mut(&pointer(id)) {
        merge(place, said);
    }
    let read = Document::check(&whole).map_err(|problems| AdminError::from(problems[0].clone()))?;
    let mut object = read.objects.get(id).cloned();
    if let Some(object) = object.as_mut() {
        object.facets.retain(|facet, _| *facet != Facet::Field("position"));
    }
    Ok(object)
}

fn merge(place: &mut Value, said: Value) {
    if let (Some(place), Value::Object(said)) = (place.as_object_mut(), said) {
        place.extend(said);
    }
}

/// Where a document that names only this object speaks of it.
fn pointer(id: &ObjectId) -> String {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match id {
        ObjectId::Cluster => String::new(),
        ObjectId::Region(name) => format!("/regions/{}", escaped(name)),
        ObjectId::Tenant(name) => format!("/tenants/{}", escaped(name)),
        ObjectId::Namespace(name) => {
            format!("/tenants/{}/namespaces/{}", escaped(name.tenant()), escaped(name.local()))
        }
        ObjectId::Topic(topic) => {
            format!("{}/topics/{}", pointer(&ObjectId::Namespace(topic.namespace())), escaped(topic.local()))
        }
        ObjectId::Subscription(topic, name) => {
            format!("{}/subscriptions/{}", pointer(&ObjectId::Topic(topic.clone())), escaped(name))
        }
    }
}

async fn call(passing: &Passing, url: &str, method: Method, path: &str, body: Bytes) -> Result<Value, AdminError> {
    let away = |error: &dyn std::fmt::Display| {
        AdminError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the broker at {url}: {error}"))
    };
    let host = url.strip_prefix("http://").ok_or_else(|| away(&"is not reached over plain HTTP"))?;
    let host = host.trim_end_matches('/').to_owned();
    let joint = if path.contains('?') { '&' } else { '?' };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{path}{joint}authoritative=true"))
        .header(header::HOST, &host)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(value) = &passing.authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request.body(Full::new(body)).map_err(|error| away(&error))?;
    let exchange = async {
        let stream = TcpStream::connect(&host).await.map_err(|error| away(&error))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| away(&error))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| away(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(|error| away(&error))?;
        Ok::<_, AdminError>((status, body.to_bytes()))
    };
    let outcome = tokio::time::timeout(WITHIN, exchange).await;
    let (status, text) = outcome.map_err(|_| away(&"did not answer in time"))??;
    let said: Value = serde_json::from_slice(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(said);
    }
    let reason =
        said["reason"].as_str().map_or_else(|| format!("the broker at {url} answered {status}"), str::to_owned);
    Err(AdminError::new(status, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::TopicName;

    #[test]
    fn an_object_is_found_where_a_document_speaks_of_it() {
        let topic = TopicName::parse("persistent://t/n/a~b c").expect("a name");
        for id in [ObjectId::Topic(topic.clone()), ObjectId::Subscription(topic, "s/1".to_owned())] {
            let document = render(&BTreeMap::from([(id.clone(), Object::default())]));
            assert!(document.pointer(&pointer(&id)).is_some(), "{id}: {document}");
        }
    }
}
