//! Grants on namespaces and on subscriptions.

use super::PATH;
use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::{delete, get, post};
use meridian_door::{Action, Scope};
use meridian_policy::Policies;
use meridian_policy::access::Permission;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}/permissions{rest}");
    Router::new()
        .route(&under(""), get(show))
        .route(&under("/{role}"), post(grant).delete(revoke))
        .route(&under("/subscription"), get(show_subscriptions))
        .route(&under("/subscription/{subscription}"), post(grant_subscription).delete(revoke_named_subscription))
        .route(&under("/{subscription}/{role}"), delete(revoke_subscription))
}

async fn show(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(Reply::json(&policies.auth_policies.namespace_auth))
}

async fn change(state: &AdminState, call: &Call, mut change: impl FnMut(&mut Policies)) -> Answer {
    let namespace = state.administered_namespace(call)?;
    let apply = |policies: &mut Policies| {
        change(policies);
        Ok::<(), AdminError>(())
    };
    state.registry().update_namespace(&namespace, apply).await?;
    tracing::info!(%namespace, by = call.principal.acting(), "permissions of a namespace changed");
    Ok(Reply::done())
}

/// A list from the body; 400 with the text for none.
fn given<T: DeserializeOwned + Ord>(call: &Call, refusal: &str) -> Result<BTreeSet<T>, AdminError> {
    call.json::<Option<BTreeSet<T>>>()?.ok_or_else(|| AdminError::bad_request(refusal))
}

async fn grant(State(state): Given, call: Call) -> Answer {
    state.allow(&call, Action::Administer, &Scope::Namespace(&call.namespace()?))?;
    let granted = given::<Permission>(&call, "Actions should not be null")?;
    let role = state.granted_role(&call)?;
    change(&state, &call, |policies| {
        policies.auth_policies.namespace_auth.insert(role.clone(), granted.clone());
    })
    .await
}

async fn revoke(State(state): Given, call: Call) -> Answer {
    let role = call.name("role");
    change(&state, &call, |policies| {
        policies.auth_policies.namespace_auth.remove(&role);
    })
    .await
}

async fn show_subscriptions(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let policies = state.registry().namespace(&namespace).unwrap_or_default();
    Ok(Reply::json(&policies.auth_policies.subscription_auth_roles))
}

async fn grant_subscription(State(state): Given, call: Call) -> Answer {
    state.allow(&call, Action::Administer, &Scope::Namespace(&call.namespace()?))?;
    let roles = given::<String>(&call, "Roles should not be null")?;
    let name = call.name("subscription");
    change(&state, &call, |policies| {
        policies.auth_policies.subscription_auth_roles.insert(name.clone(), roles.clone());
    })
    .await
}

async fn revoke_subscription(State(state): Given, call: Call) -> Answer {
    withdraw(&state, &call, call.name("subscription"), call.name("role")).await
}

/// The same for a subscription that is called `subscription`: its path is that of another call.
async fn revoke_named_subscription(State(state): Given, call: Call) -> Answer {
    withdraw(&state, &call, "subscription".to_owned(), call.name("subscription")).await
}

async fn withdraw(state: &AdminState, call: &Call, name: String, role: String) -> Answer {
    change(state, call, |policies| {
        let all = &mut policies.auth_policies.subscription_auth_roles;
        if let Some(roles) = all.get_mut(&name) {
            roles.remove(&role);
        }
        // No role left is not "nobody" but "no rule".
        all.retain(|_, roles| !roles.is_empty());
    })
    .await
}
