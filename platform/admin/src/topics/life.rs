//! Listing, creating, deleting, unloading, terminating, trimming topics; their properties; compaction.

use super::{NAMESPACE, TOPIC, of_topic};
use crate::call::Call;
use crate::error::AdminError;
use crate::namespaces::listed;
use crate::reply::Reply;
use crate::state::{AdminState, topic_not_found};
use crate::topics::messages::id_of;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use meridian_broker::ListDomain;
use meridian_door::{Action, Scope};
use meridian_policy::quota::Place;
use meridian_topic::compaction::CompactionStatus;
use meridian_types::{Domain, TopicName};
use serde_json::{Map, json};
use std::collections::BTreeMap;

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(NAMESPACE, get(list))
        .route(TOPIC, put(create).delete(delete))
        .route(&of_topic("/unload"), put(unload))
        .route(&of_topic("/terminate"), post(terminate))
        .route(&of_topic("/terminate/partitions"), post(terminate_partitions))
        .route(&of_topic("/trim"), post(trim))
        .route(&of_topic("/compaction"), get(compaction).put(compact))
        .route(&of_topic("/offload"), get(offload_status).put(offload))
        .route(&of_topic("/properties"), get(properties).put(set_properties).delete(remove_property))
}

fn list_domain(call: &Call) -> Result<ListDomain, AdminError> {
    Ok(match call.domain()? {
        Domain::Persistent => ListDomain::Persistent,
        Domain::NonPersistent => ListDomain::NonPersistent,
    })
}

async fn list(State(state): Given, call: Call) -> Answer {
    let domain = list_domain(&call)?;
    let namespace = call.namespace()?;
    state.allow(&call, Action::Lookup, &Scope::Namespace(&namespace))?;
    state.require_namespace(&namespace)?;
    let mut topics = listed(&state, &namespace, domain, call.flag("includeSystemTopic")).await?;
    if let Some(range) = call.query("bundle") {
        topics.retain(|topic| crate::lookup::bundle_of(&state, topic).as_deref() == Some(range));
    }
    Ok(Reply::json(&topics.iter().map(TopicName::as_str).collect::<Vec<_>>()))
}

async fn create(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let properties: BTreeMap<String, String> = call.json()?;
    if topic.partition().is_some() && state.registry().partitions(&topic.base()).is_none() {
        let (name, base) = (call.name("topic"), topic.base());
        let base = base.as_str().rsplit('/').next().unwrap_or_default();
        return Err(AdminError::invalid(format!(
            "Can't create topic {name} with \"-partition-\" followed by numeric value if there isn't a partitioned \
             topic {base} created."
        )));
    }
    state.service.create_topic(&topic, properties).await?;
    tracing::info!(%topic, by = call.principal.acting(), "topic created");
    Ok(Reply::done())
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    if state.registry().partitions(&topic).is_some() {
        return Err(AdminError::conflict(format!(
            "{topic} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
        )));
    }
    let force = call.flag("force");
    state.service.delete_topic_everywhere(&topic, force).await?;
    state.forget_limits(&call.principal, &Place::Topic(topic.clone())).await?;
    tracing::info!(%topic, by = call.principal.acting(), force, "topic deleted");
    Ok(Reply::done())
}

async fn unload(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let parts = match state.parts(&topic).await {
        // Non-persistent topics live only while they are loaded.
        Err(_) if topic.domain() == Domain::NonPersistent => return Err(topic_not_found(&topic)),
        parts => parts?,
    };
    for part in parts {
        state.service.require_served(&part).await?;
        state.service.unload_topic(&part).await?;
    }
    tracing::info!(%topic, by = call.principal.acting(), "topic unloaded");
    Ok(Reply::done())
}

async fn terminate(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    state.require_unpartitioned(&topic, "Termination of")?;
    if topic.domain() == Domain::NonPersistent {
        let text = "Need to provide a persistent topic name";
        return Err(AdminError::new(StatusCode::NOT_ACCEPTABLE, text));
    }
    let last = state.load(&topic).await?.terminate().await?;
    tracing::info!(%topic, by = call.principal.acting(), "topic terminated");
    Ok(Reply::json(&id_of(&topic, last)))
}

async fn terminate_partitions(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let count = state.registry().partitions(&topic);
    let Some(count) = count else {
        state.require_topic(&topic).await?;
        return Err(AdminError::not_allowed(
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use terminate \
             commands",
        ));
    };
    let mut ids = Map::new();
    for partition in 0..count {
        let part = topic.with_partition(partition);
        let last = state.load(&part).await?.terminate().await?;
        ids.insert(partition.to_string(), id_of(&part, last));
    }
    Ok(Reply::json(&ids))
}

async fn trim(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    for part in state.parts(&topic).await? {
        state.load(&part).await?.trim().await?;
    }
    Ok(Reply::empty(StatusCode::OK))
}

/// Refuses what needs something stored.
pub fn require_persistent(topic: &TopicName, what: &str) -> Result<(), AdminError> {
    match topic.domain() {
        Domain::Persistent => Ok(()),
        Domain::NonPersistent => {
            Err(AdminError::not_allowed(format!("{what} on a non-persistent topic is not allowed")))
        }
    }
}

async fn compact(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    require_persistent(&topic, "Compaction")?;
    for part in state.parts(&topic).await? {
        state.load(&part).await?.compact().await.map_err(|error| match error.kind {
            meridian_topic::TopicErrorKind::Busy => AdminError::conflict(error.message),
            _ => error.into(),
        })?;
    }
    tracing::info!(%topic, by = call.principal.acting(), "compaction started");
    Ok(Reply::done())
}

async fn compaction(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    require_persistent(&topic, "Compaction status")?;
    // Of several partitions the one that tells most: one that failed, else one that runs.
    let rank = |status: &CompactionStatus| match status {
        CompactionStatus::NotRun => 0,
        CompactionStatus::Success => 1,
        CompactionStatus::Running => 2,
        CompactionStatus::Error(_) => 3,
    };
    let mut worst = CompactionStatus::NotRun;
    for part in state.parts(&topic).await? {
        let status = state.load(&part).await?.compaction_status();
        if rank(&status) > rank(&worst) {
            worst = status;
        }
    }
    let (status, error) = match worst {
        CompactionStatus::NotRun => ("NOT_RUN", String::new()),
        CompactionStatus::Running => ("RUNNING", String::new()),
        CompactionStatus::Success => ("SUCCESS", String::new()),
        CompactionStatus::Error(reason) => ("ERROR", reason),
    };
    Ok(Reply::json(&json!({ "status": status, "lastError": error })))
}

/// Nothing is offloaded here.
async fn offload_status(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    require_persistent(&topic, "Offload status")?;
    state.require_topic(&topic).await?;
    Ok(Reply::json(&json!({ "status": "NOT_RUN", "lastError": "" })))
}

async fn offload(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    state.require_topic(&topic).await?;
    Err(AdminError::invalid("no offloader is configured"))
}

async fn properties(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    state.require_topic(&topic).await?;
    Ok(Reply::json(&state.service.topic_properties(&topic).await?))
}

/// Adds to what there is.
async fn set_properties(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    state.require_topic(&topic).await?;
    let given: BTreeMap<String, String> = call.json()?;
    let mut properties = state.service.topic_properties(&topic).await?;
    properties.extend(given);
    state.service.set_topic_properties(&topic, properties).await?;
    Ok(Reply::done())
}

async fn remove_property(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    state.require_topic(&topic).await?;
    let mut properties = state.service.topic_properties(&topic).await?;
    if let Some(key) = call.query("key") {
        properties.remove(key);
        state.service.set_topic_properties(&topic, properties).await?;
    }
    Ok(Reply::done())
}
