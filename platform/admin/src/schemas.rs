//! Schemas of topics.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use bytes::{BufMut, Bytes, BytesMut};
use meridian_broker::schema::check::split_key_value;
use meridian_broker::schema::{SchemaInfo, SchemaKind, StoredSchema};
use meridian_door::{Action, Scope};
use meridian_policy::SchemaCompatibility;
use meridian_types::{Domain, TopicName};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const PATH: &str = "/admin/v2/schemas/{tenant}/{namespace}/{topic}";

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}{rest}");
    Router::new()
        .route(&under("/schema"), get(latest).post(add).delete(delete))
        .route(&under("/schema/{version}"), get(version))
        .route(&under("/schemas"), get(all))
        .route(&under("/compatibility"), post(compatibility))
        .route(&under("/version"), post(find))
}

/// The topic whose schema is meant: all partitions have the one of their topic.
fn target(state: &AdminState, call: &Call, action: Action) -> Result<TopicName, AdminError> {
    let topic = call.topic_in(Domain::Persistent)?;
    state.allow(call, action, &Scope::Topic(&topic))?;
    state.require_namespace(&topic.namespace())?;
    Ok(topic.base())
}

fn schema_not_found() -> AdminError {
    AdminError::not_found("Schema not found")
}

/// What tools send.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Payload {
    #[serde(rename = "type")]
    kind: String,
    schema: String,
    properties: Option<BTreeMap<String, String>>,
}

fn given(call: &Call) -> Result<SchemaInfo, AdminError> {
    taken(call.json()?)
}

/// A schema as a document says it.
///
/// # Errors
/// 400 or 422 for what is none.
pub fn from_document(value: &Value) -> Result<SchemaInfo, AdminError> {
    taken(serde_json::from_value(value.clone()).map_err(|error| AdminError::bad_request(error.to_string()))?)
}

fn taken(payload: Payload) -> Result<SchemaInfo, AdminError> {
    let unknown =
        || AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("Unknown schema type '{}'", payload.kind));
    let kind = SchemaKind::from_name(&payload.kind).ok_or_else(unknown)?;
    let mut properties = payload.properties.unwrap_or_default();
    let data = match kind {
        SchemaKind::KeyValue => joined(&payload.schema, &mut properties)?,
        kind if kind.is_primitive() => Bytes::new(),
        _ => Bytes::from(payload.schema),
    };
    Ok(SchemaInfo { kind, data, properties })
}

/// A key/value schema as it is stored, from the JSON in which tools write it: `{"key": …, "value": …}`.
fn joined(text: &str, properties: &mut BTreeMap<String, String>) -> Result<Bytes, AdminError> {
    let refuse =
        || AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, "a key/value schema is {\"key\": …, \"value\": …}");
    let pair: Value = serde_json::from_str(text).map_err(|_| refuse())?;
    let mut data = BytesMut::new();
    for side in ["key", "value"] {
        let part = match pair.get(side).ok_or_else(refuse)? {
            Value::String(text) => text.clone(),
            part => part.to_string(),
        };
        let kind = if part.is_empty() { "STRING" } else { "JSON" };
        properties.entry(format!("{side}.schema.type")).or_insert_with(|| kind.to_owned());
        data.put_u32(u32::try_from(part.len()).map_err(|_| refuse())?);
        data.put_slice(part.as_bytes());
    }
    properties.entry("kv.encoding.type".to_owned()).or_insert_with(|| "INLINE".to_owned());
    Ok(data.freeze())
}

/// A definition as tools read it.
pub fn text_of(info: &SchemaInfo) -> String {
    let text = |data: &Bytes| String::from_utf8_lossy(data).into_owned();
    if info.kind != SchemaKind::KeyValue {
        return text(&info.data);
    }
    let part = |part: &SchemaInfo| {
        serde_json::from_slice::<Value>(&part.data).unwrap_or_else(|_| Value::from(text(&part.data)))
    };
    match split_key_value(info) {
        Ok((key, value)) => json!({ "key": part(&key), "value": part(&value) }).to_string(),
        Err(_) => text(&info.data),
    }
}

fn shown(stored: &StoredSchema) -> Value {
    json!({
        "version": stored.version,
        "type": stored.info.kind.name(),
        "timestamp": stored.created_ms,
        "data": text_of(&stored.info),
        "properties": stored.info.properties,
    })
}

async fn latest(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Lookup)?;
    let found = state.service.schemas().latest(&topic).await?.ok_or_else(schema_not_found)?;
    Ok(Reply::json(&shown(&found)))
}

async fn version(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Lookup)?;
    let version = u64::try_from(call.number("version")?).map_err(|_| schema_not_found())?;
    let found = state.service.schemas().version(&topic, version).await?.ok_or_else(schema_not_found)?;
    Ok(Reply::json(&shown(&found)))
}

async fn all(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Lookup)?;
    let all = state.service.schemas().all(&topic).await?;
    Ok(Reply::json(&json!({ "getSchemaResponses": all.iter().map(shown).collect::<Vec<_>>() })))
}

async fn add(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Produce)?;
    let info = given(&call)?;
    let version = state.service.register_schema(&topic, info, call.principal.acting()).await?;
    tracing::info!(%topic, version, by = call.principal.acting(), "schema stored");
    Ok(Reply::json(&json!({ "version": { "version": version } })))
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Produce)?;
    let author = call.principal.acting().unwrap_or_default();
    let schemas = state.service.schemas();
    let version = if call.flag("force") {
        schemas.purge(&topic).await?
    } else {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        schemas.delete(&topic, author, now_ms).await?
    };
    state.registry().unshare_schemas(&topic).await?;
    tracing::info!(%topic, by = call.principal.acting(), "schema deleted");
    let version = version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1);
    Ok(Reply::json(&json!({ "version": version })))
}

async fn compatibility(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Lookup)?;
    let info = given(&call)?;
    let strategy = state.service.schema_strategy(&topic);
    let compatible = state.service.schemas().check(&topic, &info, strategy).await.is_ok();
    let name = match state.registry().effective(&topic).schema_compatibility {
        SchemaCompatibility::Undefined => SchemaCompatibility::Full,
        strategy => strategy,
    };
    let answer = json!({ "compatibility": compatible, "schemaCompatibilityStrategy": name });
    Ok(Reply::json(&answer).with_status(StatusCode::ACCEPTED))
}

async fn find(State(state): Given, call: Call) -> Answer {
    let topic = target(&state, &call, Action::Lookup)?;
    let found = state.service.schemas().find(&topic, &given(&call)?).await?;
    Ok(Reply::json(&json!({ "version": found.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1) })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_value_schemas_are_written_as_json() {
        let text = r#"{"key":{"type":"int"},"value":""}"#;
        let mut properties = BTreeMap::new();
        let data = joined(text, &mut properties).unwrap();
        assert_eq!(&data[..4], [0, 0, 0, 14]);
        assert_eq!(properties["key.schema.type"], "JSON");
        let info = SchemaInfo { kind: SchemaKind::KeyValue, data, properties };
        assert_eq!(text_of(&info), text);
        assert!(joined("{}", &mut BTreeMap::new()).is_err());
    }
}
