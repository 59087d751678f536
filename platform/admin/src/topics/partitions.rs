//! Partitioned topics: creating, growing, reading, deleting.

use super::{NAMESPACE, of_topic};
use crate::call::Call;
use crate::error::AdminError;
use crate::explain;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use meridian_broker::service::MAX_PARTITIONS;
use meridian_broker::service::is_system_topic;
use meridian_broker::{BrokerError, ListDomain};
use meridian_door::{Action, Scope};
use meridian_policy::PartitionedTopic;
use meridian_policy::quota::Place;
use meridian_types::{Domain, TopicName};
use serde_json::Value;

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&format!("{NAMESPACE}/partitioned"), get(list))
        .route(&of_topic("/partitions"), get(show).put(create).post(grow).delete(delete))
}

async fn list(State(state): Given, call: Call) -> Answer {
    let domain = match call.domain()? {
        Domain::Persistent => ListDomain::Persistent,
        Domain::NonPersistent => ListDomain::NonPersistent,
    };
    let namespace = call.namespace()?;
    state.allow(&call, Action::Lookup, &Scope::Namespace(&namespace))?;
    state.require_namespace(&namespace)?;
    let mut topics = state.service.list_partitioned_topics(&namespace, domain);
    topics.retain(|topic| call.flag("includeSystemTopic") || !is_system_topic(topic));
    Ok(Reply::json(&topics.iter().map(TopicName::as_str).collect::<Vec<_>>()))
}

/// Clients ask with `checkAllowAutoCreation`: then the rules of automatic creation decide what there is.
async fn show(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let partitions = match state.service.partitions_or_create(&topic, call.flag("checkAllowAutoCreation")).await {
        Err(BrokerError::TopicNotFound(_)) => return Err(crate::state::topic_not_found(&topic)),
        partitions => partitions?,
    };
    let found = state.registry().partitioned_topic(&topic);
    let properties = found.as_ref().map(|found| found.properties.clone()).unwrap_or_default();
    let deleted = found.is_some_and(|found| found.deleted);
    Ok(Reply::json(&PartitionedTopic { partitions, properties, deleted }))
}

/// A bare number, a number as text, or the whole record.
fn wanted(call: &Call, least: u32) -> Result<PartitionedTopic, AdminError> {
    let bad = || AdminError::bad_request("the body has to be a number of partitions");
    let of_number = |number| of_number(number, least);
    match call.value()? {
        Value::Object(record) => {
            let record: PartitionedTopic = explain::read("", &Value::Object(record))?;
            of_number(i64::from(record.partitions))
                .map(|number| PartitionedTopic { partitions: number.partitions, ..record })
        }
        Value::String(text) => of_number(text.trim().parse().map_err(|_| bad())?),
        Value::Number(number) => of_number(number.as_i64().ok_or_else(bad)?),
        _ => Err(bad()),
    }
}

fn of_number(number: i64, least: u32) -> Result<PartitionedTopic, AdminError> {
    let refuse = |text: &str| AdminError::new(StatusCode::NOT_ACCEPTABLE, text);
    if number > i64::from(MAX_PARTITIONS) {
        let text = format!("Number of partitions should be less than or equal to {MAX_PARTITIONS}");
        return Err(refuse(&text));
    }
    let partitions = u32::try_from(number).ok().filter(|count| *count >= least);
    let partitions = partitions.ok_or_else(|| refuse("Number of partitions should be more than 0"))?;
    Ok(PartitionedTopic { partitions, ..PartitionedTopic::default() })
}

async fn create(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let wanted = wanted(&call, 1)?;
    if topic.partition().is_some() {
        return Err(AdminError::invalid("Partitioned Topic Name should not contain '-partition-'"));
    }
    state.service.create_partitioned_topic(&topic, wanted.partitions, wanted.properties).await?;
    tracing::info!(%topic, partitions = wanted.partitions, by = call.principal.acting(), "partitioned topic created");
    Ok(Reply::done())
}

async fn grow(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let wanted = wanted(&call, 0)?.partitions;
    state.registry().learn_partitioned(&topic).await?;
    let before = state.registry().partitions(&topic);
    let before = before.ok_or_else(|| AdminError::conflict(format!("Topic {topic} is not the partitioned topic.")))?;
    if wanted < before {
        let text = format!("Desired partitions {wanted} can't be less than the current partitions {before}.");
        return Err(AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    state.service.grow_partitioned_topic(&topic, wanted).await?;
    tracing::info!(%topic, partitions = wanted, by = call.principal.acting(), "partitioned topic grown");
    Ok(Reply::done())
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    if !state.registry().learn_partitioned(&topic).await? {
        state.require_topic(&topic).await.map_err(|_| AdminError::not_found(format!("Topic {topic} not found.")))?;
        return Err(AdminError::conflict(format!(
            "{topic} is a non-partitioned topic. Instead of calling delete-partitioned-topic please call delete."
        )));
    }
    let force = call.flag("force");
    state.service.delete_partitioned_topic(&topic, force).await?;
    state.forget_limits(&call.principal, &Place::Topic(topic.clone())).await?;
    tracing::info!(%topic, by = call.principal.acting(), force, "partitioned topic deleted");
    Ok(Reply::done())
}
