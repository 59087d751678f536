//! Giving a region that was built anew its own former messages of a topic back.
//!
//! Must never know: how they travel.

use super::of_topic;
use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::topics::life::require_persistent;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_broker::BrokerError;
use meridian_broker::replication::{RestoreState, RestoreStatus};
use meridian_door::Action;
use meridian_topic::TopicErrorKind;
use serde_json::{Value, json};

pub fn routes() -> Router<AdminState> {
    Router::new().route(&of_topic("/restore/{region}"), get(status).put(start))
}

async fn start(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    require_persistent(&topic, "Restoring a region")?;
    let region = call.name("region");
    for part in state.parts(&topic).await? {
        state.load(&part).await?;
        state.service.replication().restore(&part, &region).map_err(|error| match error {
            BrokerError::Topic(error) if error.kind == TopicErrorKind::Busy => AdminError::conflict(error.message),
            other => other.into(),
        })?;
    }
    tracing::info!(%topic, region, by = call.principal.acting(), "a region is given its former messages back");
    Ok(Reply::done())
}

async fn status(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    require_persistent(&topic, "The restoration of a region")?;
    let region = call.name("region");
    let mut parts = Vec::new();
    for part in state.parts(&topic).await? {
        state.load(&part).await?;
        parts.push(state.service.replication().restored(&part, &region)?);
    }
    Ok(Reply::json(&shown(&parts)))
}

/// Of several partitions the state that tells most: one that failed, else one that runs; and the sums.
fn shown(parts: &[Option<RestoreStatus>]) -> Value {
    let rank = |status: &&RestoreStatus| match &status.state {
        RestoreState::Done => 0,
        RestoreState::Running => 1,
        RestoreState::Failed(_) => 2,
    };
    let (status, error) = match parts.iter().flatten().max_by_key(rank).map(|status| &status.state) {
        None => ("NOT_RUN", ""),
        Some(RestoreState::Done) => ("SUCCESS", ""),
        Some(RestoreState::Running) => ("RUNNING", ""),
        Some(RestoreState::Failed(reason)) => ("ERROR", reason.as_str()),
    };
    let sum = |of: fn(&RestoreStatus) -> u64| parts.iter().flatten().map(of).sum::<u64>();
    json!({
        "status": status,
        "lastError": error,
        "returned": sum(|one| one.returned),
        "alreadyThere": sum(|one| one.already_there),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_partitions_the_worst_state_and_the_sums_are_shown() {
        let part = |state, returned| Some(RestoreStatus { state, returned, already_there: 1 });
        assert_eq!(shown(&[None, None])["status"], "NOT_RUN");
        let running = shown(&[part(RestoreState::Done, 3), None, part(RestoreState::Running, 4)]);
        assert_eq!((&running["status"], &running["returned"]), (&json!("RUNNING"), &json!(7)));
        let failed = shown(&[part(RestoreState::Running, 3), part(RestoreState::Failed("full".into()), 4)]);
        assert_eq!((&failed["status"], &failed["lastError"]), (&json!("ERROR"), &json!("full")));
        assert_eq!(failed["alreadyThere"], 2);
    }
}
