//! Subscriptions: creating, deleting, moving, skipping, expiring.

use super::of_topic;
use super::stats::given_properties;
use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use meridian_door::{Action, Scope};
use meridian_policy::check_properties;
use meridian_topic::{SeekTo, TopicError, TopicErrorKind, TopicHandle};
use meridian_types::{Domain, Position, TopicName};
use meridian_wire::replicate::LINK_PREFIX;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| of_topic(&format!("/subscription/{{subscription}}{rest}"));
    Router::new()
        .route(&of_topic("/subscriptions"), get(list))
        .route(&under(""), put(create).delete(delete))
        .route(&under("/resetcursor"), post(reset))
        .route(&under("/resetcursor/{timestamp}"), post(reset_to_time))
        .route(&under("/skip/{count}"), post(skip))
        .route(&under("/skip_all"), post(skip_all))
        .route(&under("/expireMessages/{seconds}"), post(expire))
        .route(&of_topic("/all_subscription/expireMessages/{seconds}"), post(expire_all))
        .route(&under("/properties"), get(properties))
        .route(&under("/replicatedSubscriptionStatus"), get(is_replicated).post(set_replicated))
}

/// Topic and subscription of the path, for who may use the subscription.
fn target(state: &AdminState, call: &Call) -> Result<(TopicName, String), AdminError> {
    let (topic, name) = (call.topic()?, call.name("subscription"));
    state.allow(call, Action::Consume, &Scope::Subscription(&topic, &name))?;
    state.require_namespace(&topic.namespace())?;
    Ok((topic, name))
}

/// 404 in words that tools look for.
fn not_found(error: TopicError, topic: &TopicName, name: &str) -> AdminError {
    match error.kind {
        TopicErrorKind::SubscriptionNotFound => {
            AdminError::not_found(format!("Subscription {name} not found for topic {topic}"))
        }
        _ => error.into(),
    }
}

/// What can be done to a subscription.
enum Change {
    Delete { force: bool },
    Reset(SeekTo),
    Skip(Option<u64>),
    Expire { older_than_s: u64 },
    Replicate(bool),
}

impl Change {
    async fn apply(&self, handle: &Arc<dyn TopicHandle>, name: &str) -> Result<(), TopicError> {
        let name = name.to_owned();
        match self {
            Change::Delete { force } => handle.delete_subscription(name, *force).await,
            Change::Reset(to) => handle.reset_subscription(name, to.clone()).await,
            Change::Skip(entries) => handle.skip(name, *entries).await,
            Change::Expire { older_than_s } => handle.expire(name, *older_than_s).await,
            Change::Replicate(on) => handle.set_subscription_replicated(name, *on).await,
        }
    }
}

/// Changes the subscription of each partition; 404 only if none of them has it.
async fn on_each(state: &AdminState, topic: &TopicName, name: &str, change: Change) -> Answer {
    let mut found = false;
    let mut missing = None;
    for part in state.parts(topic).await? {
        match change.apply(&state.load(&part).await?, name).await {
            Ok(()) => found = true,
            Err(error) if error.kind == TopicErrorKind::SubscriptionNotFound => missing = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match missing {
        Some(error) if !found => Err(not_found(error, topic, name)),
        _ => Ok(Reply::done()),
    }
}

async fn list(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let mut names = BTreeSet::new();
    for part in state.parts(&topic).await? {
        let subscriptions = state.load(&part).await?.stats().subscriptions;
        names.extend(subscriptions.into_iter().map(|subscription| subscription.name));
    }
    Ok(Reply::json(&names))
}

/// Where a body says to: `"earliest"`, `"latest"`, or a message id.
fn place(value: &Value) -> Result<SeekTo, AdminError> {
    let to = |position| Ok(SeekTo::Position(position, Vec::new()));
    let number = |name: &str| value.get(name).and_then(|field| field.as_i64());
    match value {
        Value::Null => to(Position::LATEST),
        Value::String(text) if text.eq_ignore_ascii_case("latest") => to(Position::LATEST),
        Value::String(text) if text.eq_ignore_ascii_case("earliest") => to(Position::EARLIEST),
        Value::Object(_) => {
            let missing = || AdminError::bad_request("a message id has ledgerId and entryId");
            let (ledger, entry) = (number("ledgerId").ok_or_else(missing)?, number("entryId").ok_or_else(missing)?);
            let at = Position::new(ledger, entry);
            let excluded = value.get("isExcluded").and_then(Value::as_bool).unwrap_or(false);
            if at == Position::LATEST || at == Position::EARLIEST {
                return to(at);
            }
            match number("batchIndex").and_then(|index| u32::try_from(index).ok()) {
                _ if excluded => to(at.next_in_ledger()),
                Some(index) if index > 0 => Ok(SeekTo::Position(at, unacked_from(index))),
                _ => to(at),
            }
        }
        _ => Err(AdminError::bad_request("expected \"earliest\", \"latest\" or a message id")),
    }
}

/// Largest batch index that a body may name; larger ones mean the whole entry.
const MAX_BATCH_INDEX: u32 = 1 << 16;

/// Words with 1 = unacked from a batch index on.
fn unacked_from(index: u32) -> Vec<u64> {
    if index > MAX_BATCH_INDEX {
        return Vec::new();
    }
    let last = MAX_BATCH_INDEX / 64;
    let word = |at: u32| match at.cmp(&(index / 64)) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => u64::MAX << (index % 64),
        std::cmp::Ordering::Greater => u64::MAX,
    };
    (0..=last).map(word).collect()
}

/// The properties that come with a place.
fn properties_of(value: &Value) -> BTreeMap<String, String> {
    let properties = value.get("properties").cloned().unwrap_or_default();
    serde_json::from_value(properties).unwrap_or_default()
}

async fn create(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    if topic.domain() == Domain::NonPersistent {
        let text = "Create subscription on non-persistent topic can only be done through client";
        return Err(AdminError::bad_request(text));
    }
    let verified = state.service.check_subscription_name(&name);
    verified.map_err(|error| AdminError::invalid(error.to_string()))?;
    let body = call.value()?;
    let (to, properties) = (place(&body)?, properties_of(&body));
    check_properties(&properties)?;
    let replicated = call.flag("replicated");
    for part in parts_to_create(&state, &topic).await? {
        let handle = state.load(&part).await?;
        state.service.check_subscription_quota(&part, &name)?;
        match handle.create_subscription(name.clone(), to.clone(), properties.clone(), replicated).await {
            Ok(()) => {}
            // On the partitions of one topic a subscription is completed.
            Err(error) if error.kind == TopicErrorKind::Busy && part != topic => {}
            Err(error) if error.kind == TopicErrorKind::Busy => return Err(AdminError::conflict(error.message)),
            Err(error) => return Err(error.into()),
        }
    }
    tracing::info!(%topic, subscription = name, by = call.principal.acting(), "subscription created");
    Ok(Reply::done())
}

/// Creating a subscription creates the topic, if the rules of automatic creation say so.
async fn parts_to_create(state: &AdminState, topic: &TopicName) -> Result<Vec<TopicName>, AdminError> {
    let found = state.parts(topic).await;
    if !found.as_ref().is_err_and(|error| error.status == StatusCode::NOT_FOUND) {
        return found;
    }
    match state.service.partitions_or_create(topic, true).await {
        Ok(0) => {
            state.service.topic(topic, meridian_broker::Create::IfAllowed).await?;
            Ok(vec![topic.clone()])
        }
        Ok(_) => state.parts(topic).await,
        Err(_) => found,
    }
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let force = call.flag("force");
    let done = on_each(&state, &topic, &name, Change::Delete { force }).await?;
    tracing::info!(%topic, subscription = name, by = call.principal.acting(), force, "subscription deleted");
    Ok(done)
}

async fn reset(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let to = place(&call.value()?)?;
    if state.registry().partitions(&topic).is_some() {
        return Err(AdminError::not_allowed("Reset-cursor at position is not allowed for partitioned-topic"));
    }
    on_each(&state, &topic, &name, Change::Reset(to)).await
}

async fn reset_to_time(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let to = SeekTo::PublishTime(u64::try_from(call.number("timestamp")?).unwrap_or(0));
    on_each(&state, &topic, &name, Change::Reset(to)).await
}

async fn skip(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let count = u64::try_from(call.number("count")?).map_err(|_| AdminError::invalid("count must be 0 or more"))?;
    state.require_unpartitioned(&topic, "Skip messages on")?;
    on_each(&state, &topic, &name, Change::Skip(Some(count))).await
}

async fn skip_all(State(state): Given, call: Call) -> Answer {
    if let Some(remote) = call.name("subscription").strip_prefix(LINK_PREFIX) {
        return skip_link(&state, &call, remote).await;
    }
    let (topic, name) = target(&state, &call)?;
    on_each(&state, &topic, &name, Change::Skip(None)).await
}

/// Everything that a link to another region has not copied yet.
async fn skip_link(state: &AdminState, call: &Call, remote: &str) -> Answer {
    let topic = state.topic_for(call, Action::Administer)?;
    for part in state.parts(&topic).await? {
        state.load(&part).await?;
        state.service.replication().clear_backlog(&part, remote).await?;
    }
    tracing::info!(%topic, remote, by = call.principal.acting(), "what a link had not copied was skipped");
    Ok(Reply::done())
}

fn seconds(call: &Call) -> Result<u64, AdminError> {
    u64::try_from(call.number("seconds")?).map_err(|_| AdminError::invalid("expireTimeInSeconds must be 0 or more"))
}

async fn expire(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let seconds = seconds(&call)?;
    on_each(&state, &topic, &name, Change::Expire { older_than_s: seconds }).await
}

async fn expire_all(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let seconds = seconds(&call)?;
    for part in state.parts(&topic).await? {
        let handle = state.load(&part).await?;
        for subscription in handle.stats().subscriptions {
            handle.expire(subscription.name, seconds).await?;
        }
    }
    Ok(Reply::done())
}

async fn properties(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    for part in state.parts(&topic).await? {
        let subscriptions = state.load(&part).await?.stats().subscriptions;
        if let Some(found) = subscriptions.into_iter().find(|subscription| subscription.name == name) {
            return Ok(Reply::json(&found.cursor.as_ref().map(given_properties).unwrap_or_default()));
        }
    }
    Err(AdminError::not_found(format!("Subscription {name} not found for topic {topic}")))
}

/// Whether its acknowledgements go to other regions, by partition.
async fn is_replicated(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let mut found = BTreeMap::new();
    for part in state.parts(&topic).await? {
        let subscriptions = state.load(&part).await?.stats().subscriptions;
        if let Some(one) = subscriptions.into_iter().find(|subscription| subscription.name == name) {
            found.insert(part.to_string(), one.replicated);
        }
    }
    match found.is_empty() {
        true => Err(AdminError::not_found(format!("Subscription {name} not found for topic {topic}"))),
        false => Ok(Reply::json(&found)),
    }
}

async fn set_replicated(State(state): Given, call: Call) -> Answer {
    let (topic, name) = target(&state, &call)?;
    let wanted = call.value()?;
    let on = wanted.as_bool().ok_or_else(|| AdminError::bad_request(format!("{wanted}: expected true or false")))?;
    if on && !state.service.config().replicated_subscriptions {
        return Err(AdminError::invalid("enableReplicatedSubscriptions=false: subscriptions are not replicated here"));
    }
    on_each(&state, &topic, &name, Change::Replicate(on)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn places_as_tools_write_them() {
        let at = |value: Value| place(&value).unwrap();
        assert_eq!(at(json!("latest")), SeekTo::Position(Position::LATEST, Vec::new()));
        assert_eq!(at(Value::Null), SeekTo::Position(Position::LATEST, Vec::new()));
        assert_eq!(at(json!({"ledgerId": -1, "entryId": -1})), SeekTo::Position(Position::EARLIEST, Vec::new()));
        let id = json!({"ledgerId": 3, "entryId": 4, "isExcluded": true});
        assert_eq!(at(id), SeekTo::Position(Position::new(3, 5), Vec::new()));
        assert!(place(&json!({"ledgerId": 3})).is_err());
        assert!(place(&json!(7)).is_err());
    }

    #[test]
    fn a_batch_index_leaves_the_rest_unacked() {
        let SeekTo::Position(_, words) = place(&json!({"ledgerId": 1, "entryId": 2, "batchIndex": 66})).unwrap() else {
            panic!("a position");
        };
        assert_eq!(words[..3], [0, u64::MAX << 2, u64::MAX]);
        assert!(unacked_from(u32::MAX).is_empty());
    }
}
