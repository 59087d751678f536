//! Single messages: peeking, reading by id, the last id.

use super::of_topic;
use crate::call::Call;
use crate::error::AdminError;
use crate::headers::message_headers;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_door::{Action, Scope};
use meridian_managed_ledger::LogEntry;
use meridian_topic::{TopicErrorKind, TopicHandle};
use meridian_types::{Domain, Position, TopicName};
use meridian_wire::compression::decompress;
use meridian_wire::payload;
use serde_json::{Value, json};
use std::sync::Arc;

/// Largest payload that is unpacked for a reader.
const MAX_UNPACKED_BYTES: usize = 64 << 20;

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&of_topic("/lastMessageId"), get(last_id))
        .route(&of_topic("/messageid/{timestamp}"), get(id_at))
        .route(&of_topic("/subscription/{subscription}/position/{nth}"), get(peek))
        .route(&of_topic("/ledger/{ledger}/entry/{entry}"), get(by_id))
}

/// A message id as JSON.
pub fn id_of(topic: &TopicName, position: Position) -> Value {
    let partition = topic.partition().map_or(-1, i64::from);
    json!({
        "ledgerId": position.ledger_id.0,
        "entryId": position.entry_id.0,
        "partitionIndex": partition,
        "batchIndex": -1,
        "batchSize": 0,
    })
}

async fn last_id(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    if topic.domain() == Domain::NonPersistent {
        return Err(AdminError::not_allowed("GetLastMessageId on a non-persistent topic is not allowed"));
    }
    state.require_unpartitioned(&topic, "GetLastMessageId on")?;
    let handle = state.load(&topic).await?;
    let last = handle.last_position();
    let mut id = id_of(&topic, last);
    // Of a batch, the last message.
    let entry = if last.entry_id.0 >= 0 { handle.entry(last).await.unwrap_or(None) } else { None };
    let summary = entry.as_ref().and_then(|entry| payload::summarize(&entry.payload).ok());
    if let Some(summary) = summary.filter(|summary| summary.is_batch()) {
        id["batchIndex"] = Value::from(i64::from(summary.messages()) - 1);
        id["batchSize"] = Value::from(summary.messages());
    }
    Ok(Reply::json(&id))
}

/// The id of the first message published at or after a time; where the next one will be if there is none.
async fn id_at(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    if topic.domain() == Domain::NonPersistent {
        return Err(AdminError::not_allowed("GetMessageId by timestamp on a non-persistent topic is not allowed"));
    }
    state.require_unpartitioned(&topic, "GetMessageId by timestamp on")?;
    let time_ms = u64::try_from(call.number("timestamp")?);
    let time_ms = time_ms.map_err(|_| AdminError::invalid("the time is in ms since 1970, from 0"))?;
    let position = state.load(&topic).await?.position_at(time_ms).await?;
    Ok(Reply::json(&id_of(&topic, position)))
}

/// Payload as bytes, metadata as headers.
fn show(entry: LogEntry) -> Answer {
    let damaged = |error: &dyn std::fmt::Display| {
        AdminError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, format!("{}: {error}", entry.position))
    };
    let (metadata, packed) = payload::decode(&entry.payload).map_err(|error| damaged(&error))?;
    // What is encrypted was packed before; it can only be handed on as it is.
    let plain = if metadata.encryption_keys.is_empty() {
        decompress(metadata.compression(), &packed, metadata.uncompressed_size() as usize, MAX_UNPACKED_BYTES)
            .map_err(|error| damaged(&error))?
    } else {
        packed
    };
    let headers = message_headers(entry.position, &metadata, plain.len());
    Ok(Reply::bytes(plain, headers))
}

/// The position of the nth entry that the topic holds.
fn nth_of_all(handle: &Arc<dyn TopicHandle>, nth: u64) -> Option<Position> {
    let mut left = nth.checked_sub(1)?;
    for ledger in handle.stats().log?.ledgers {
        if left < ledger.entries {
            return Some(Position::new(ledger.ledger_id.0, i64::try_from(left).ok()?));
        }
        left -= ledger.entries;
    }
    None
}

async fn peek(State(state): Given, call: Call) -> Answer {
    let (topic, name) = (call.topic()?, call.name("subscription"));
    state.allow(&call, Action::Consume, &Scope::Subscription(&topic, &name))?;
    state.require_namespace(&topic.namespace())?;
    state.require_unpartitioned(&topic, "Peek messages on")?;
    let nth = u64::try_from(call.number("nth")?).ok().filter(|nth| *nth > 0);
    let nth = nth.ok_or_else(|| AdminError::invalid("the position of a message is counted from 1"))?;
    let handle = state.load(&topic).await?;
    let found = match handle.peek(name, nth).await {
        // A subscription that is not there yet would begin at the first message.
        Err(error) if error.kind == TopicErrorKind::SubscriptionNotFound => match nth_of_all(&handle, nth) {
            Some(position) => handle.entry(position).await?,
            None => None,
        },
        found => found?,
    };
    show(found.ok_or_else(|| AdminError::not_found("Message not found"))?)
}

async fn by_id(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Consume)?;
    state.require_unpartitioned(&topic, "GetMessageById on")?;
    let position = Position::new(call.number("ledger")?, call.number("entry")?);
    let found = state.load(&topic).await?.entry(position).await;
    // An id from another topic or ledger is no message of this one.
    let found = found.map_err(|_| AdminError::not_found("Message id not found"))?;
    show(found.ok_or_else(|| AdminError::not_found("Message id not found"))?)
}
