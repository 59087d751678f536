//! Grants on topics.

use super::of_topic;
use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use meridian_door::Action;
use meridian_policy::Policies;
use meridian_policy::access::Permission;
use std::collections::{BTreeMap, BTreeSet};

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&of_topic("/permissions"), get(show))
        .route(&of_topic("/permissions/{role}"), post(grant).delete(revoke))
}

/// What holds on the topic: the namespace's grants and its own.
async fn show(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    state.require_topic(&topic).await?;
    let policies = state.registry().namespace(&topic.namespace()).unwrap_or_default();
    let auth = &policies.auth_policies;
    let mut all: BTreeMap<String, BTreeSet<Permission>> = auth.namespace_auth.clone();
    for name in [topic.base(), topic] {
        for (role, granted) in auth.destination_auth.get(name.as_str()).into_iter().flatten() {
            all.entry(role.clone()).or_default().extend(granted.iter().copied());
        }
    }
    Ok(Reply::json(&all))
}

async fn grant(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let granted: BTreeSet<Permission> = call.json()?;
    let role = state.granted_role(&call)?;
    state.require_topic(&topic).await?;
    let change = |policies: &mut Policies| {
        let of_topic = policies.auth_policies.destination_auth.entry(topic.as_str().to_owned()).or_default();
        of_topic.insert(role.clone(), granted.clone());
        Ok::<(), AdminError>(())
    };
    state.registry().update_namespace(&topic.namespace(), change).await?;
    tracing::info!(%topic, role, by = call.principal.acting(), "permission on a topic granted");
    Ok(Reply::done())
}

async fn revoke(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Administer)?;
    let role = call.name("role");
    state.require_topic(&topic).await?;
    let change = |policies: &mut Policies| {
        let all = &mut policies.auth_policies.destination_auth;
        if let Some(roles) = all.get_mut(topic.as_str()) {
            roles.remove(&role);
        }
        all.retain(|_, roles| !roles.is_empty());
        Ok::<(), AdminError>(())
    };
    state.registry().update_namespace(&topic.namespace(), change).await?;
    tracing::info!(%topic, role, by = call.principal.acting(), "permission on a topic revoked");
    Ok(Reply::done())
}
