//! Fail-over of namespaces: who is active, what a switch costs, switches, and what they left behind.
//!
//! | method and path under `/admin/v2/meridian/failover` | what it does |
//! |---|---|
//! | `GET /` | all namespaces that have an active region |
//! | `GET /{tenant}/{namespace}` | the record of one |
//! | `PUT /{tenant}/{namespace}` `{"active": REGION}` | gives it its first active region |
//! | `GET /{tenant}/{namespace}/cost?to=REGION` | what a switch would cost |
//! | `POST /{tenant}/{namespace}/switch` `{"to": REGION}` | a planned switch, waits for its end |
//! | `POST /{tenant}/{namespace}/force` | makes this region active without the old one |
//! | `GET /{tenant}/{namespace}/settlement` | how the account of the last switch stands |
//! | `GET /{tenant}/{namespace}/tails` | what this region holds of messages that were never delivered |
//! | `POST /{tenant}/{namespace}/tails/replay` and `…/drop` `{"topic": NAME, "epoch": EPOCH}` | deals with one |
//!
//! `GET /meridian/controlled-failover/{tenant}/{namespace}` answers what a Java client's controlled fail-over asks for:
//! `{"serviceUrl": …}` of the active region, to who may look up the namespace.
//!
//! Failure: 404 for what does not exist, 409 for what is not possible now, 412 for bad values, 503 for regions that do not
//! answer.
//! Must never know: how switches are made.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use meridian_door::{Action, Scope};
use meridian_failover::returning::Tail;
use meridian_failover::{Epoch, FailoverError, FailoverService, NamespaceState, Phase};
use meridian_types::{NamespaceName, TopicName};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Routes behind the door.
pub fn routes() -> Router<AdminState> {
    const ONE: &str = "/admin/v2/meridian/failover/{tenant}/{namespace}";
    Router::new()
        .route("/admin/v2/meridian/failover", get(list))
        .route(ONE, get(show).put(manage))
        .route(&format!("{ONE}/cost"), get(cost))
        .route(&format!("{ONE}/switch"), post(switch))
        .route(&format!("{ONE}/force"), post(force))
        .route(&format!("{ONE}/settlement"), get(settlement))
        .route(&format!("{ONE}/tails"), get(tails))
        .route(&format!("{ONE}/tails/replay"), post(replay))
        .route(&format!("{ONE}/tails/drop"), post(drop_tail))
        .route("/meridian/controlled-failover/{tenant}/{namespace}", get(controlled))
}

impl From<FailoverError> for AdminError {
    fn from(error: FailoverError) -> Self {
        let status = match &error {
            FailoverError::NotManaged(_) | FailoverError::NoTail(_) => StatusCode::NOT_FOUND,
            FailoverError::UnknownRegion { .. } | FailoverError::NoPart { .. } | FailoverError::OneRegion(_) => {
                StatusCode::PRECONDITION_FAILED
            }
            FailoverError::AlreadyActive(_)
            | FailoverError::UnderWay { .. }
            | FailoverError::NotDrained { .. }
            | FailoverError::NotReady { .. }
            | FailoverError::TailOver(_)
            | FailoverError::Stale { .. } => StatusCode::CONFLICT,
            FailoverError::Unreachable { .. } | FailoverError::Host(_) => StatusCode::SERVICE_UNAVAILABLE,
            FailoverError::Unreadable(_) | FailoverError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        AdminError::new(status, error.to_string())
    }
}

/// The service and the namespace, for an operator.
fn asked(state: &AdminState, call: &Call) -> Result<(Arc<FailoverService>, NamespaceName), AdminError> {
    state.allow_operator(call)?;
    let namespace = call.namespace()?;
    if state.registry().namespace(&namespace).is_none() {
        return Err(AdminError::not_found("Namespace does not exist"));
    }
    let failover = state.service.failover().cloned();
    let failover = failover.ok_or_else(|| AdminError::invalid("This region has no links to other regions"))?;
    Ok((failover, namespace))
}

fn shown(namespace: &NamespaceName, state: &NamespaceState) -> Value {
    let switching = match &state.phase {
        Phase::Steady => Value::Null,
        Phase::Draining { to, begun_ms, .. } => json!({ "to": to, "begunMs": begun_ms }),
    };
    json!({
        "namespace": namespace.to_string(),
        "active": state.record.active,
        "epoch": state.record.epoch.to_string(),
        "forced": state.record.forced,
        "previous": state.record.previous,
        "sinceMs": state.record.since_ms,
        "confirmed": state.confirmed,
        "tailPending": state.tail_pending,
        "switching": switching,
    })
}

async fn list(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let Some(failover) = state.service.failover() else { return Ok(Reply::json(&json!([]))) };
    let mut namespaces = failover.namespaces();
    namespaces.sort();
    let all = namespaces.iter().filter_map(|name| failover.state(name).map(|state| shown(name, &state)));
    Ok(Reply::json(&all.collect::<Vec<_>>()))
}

async fn show(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let known = failover.known_state(&namespace).await?;
    Ok(Reply::json(&shown(&namespace, &known)))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Region {
    active: String,
    to: String,
}

fn given<'a>(name: &str, value: &'a str) -> Result<&'a str, AdminError> {
    if value.is_empty() {
        Err(AdminError::invalid(format!("{name}: expected the name of a region")))
    } else {
        Ok(value)
    }
}

async fn manage(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let body: Region = call.json()?;
    let record = failover.manage(&namespace, given("active", &body.active)?).await?;
    tracing::info!(%namespace, active = %record.active, by = call.principal.acting(), "namespace has an active region");
    Ok(Reply::json(&record))
}

async fn cost(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let to = given("to", call.query("to").unwrap_or_default())?.to_owned();
    // A figure that is not known is `null`, not left out.
    Ok(Reply::json_whole(&failover.cost(&namespace, &to).await?))
}

async fn switch(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let body: Region = call.json()?;
    let account = failover.switch(&namespace, given("to", &body.to)?).await?;
    tracing::info!(%namespace, to = body.to, by = call.principal.acting(), "namespace switched");
    Ok(Reply::json(&account))
}

async fn force(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let record = failover.force(&namespace).await?;
    tracing::warn!(%namespace, by = call.principal.acting(), "namespace switched here by force");
    Ok(Reply::json(&record))
}

async fn settlement(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    Ok(Reply::json_whole(&failover.settlement(&namespace).await?))
}

fn tail(tail: &Tail) -> Value {
    serde_json::from_slice::<Value>(&tail.encode()).map(|mut whole| whole["tail"].take()).unwrap_or_default()
}

async fn tails(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let tails = failover.tails(&namespace).await?;
    Ok(Reply::json(&tails.iter().map(tail).collect::<Vec<_>>()))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Which {
    topic: String,
    epoch: String,
}

fn which(call: &Call, namespace: &NamespaceName) -> Result<(TopicName, Epoch), AdminError> {
    let which: Which = call.json()?;
    let topic = TopicName::parse(&which.topic).ok().filter(|topic| topic.namespace() == *namespace);
    let topic = topic.ok_or_else(|| AdminError::invalid(format!("topic '{}': not one of {namespace}", which.topic)))?;
    let epoch = which.epoch.parse().map_err(|error: FailoverError| AdminError::invalid(error.to_string()))?;
    Ok((topic, epoch))
}

async fn replay(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let (topic, epoch) = which(&call, &namespace)?;
    let done = failover.replay(&topic, epoch).await?;
    tracing::info!(%topic, %epoch, by = call.principal.acting(), "tail replayed");
    Ok(Reply::json(&tail(&done)))
}

async fn drop_tail(State(state): Given, call: Call) -> Answer {
    let (failover, namespace) = asked(&state, &call)?;
    let (topic, epoch) = which(&call, &namespace)?;
    let done = failover.drop_tail(&topic, epoch).await?;
    tracing::info!(%topic, %epoch, by = call.principal.acting(), "tail dropped");
    Ok(Reply::json(&tail(&done)))
}

async fn controlled(State(state): Given, call: Call) -> Answer {
    let namespace = call.namespace()?;
    state.allow(&call, Action::Lookup, &Scope::Namespace(&namespace))?;
    if state.registry().namespace(&namespace).is_none() {
        return Err(AdminError::not_found("Namespace does not exist"));
    }
    let active = state.service.failover().and_then(|failover| failover.state(&namespace));
    let region = active.map_or_else(|| state.service.config().cluster.clone(), |known| known.record.active);
    let there = state.service.address_of(&region);
    let url = there.broker_url.or(there.broker_url_tls);
    let url = url.ok_or_else(|| AdminError::not_found(format!("region {region} has no broker address")))?;
    Ok(Reply::json(&json!({ "serviceUrl": url })))
}
