//! Isolation policies: namespaces that stay on some brokers.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::unserved::not_served;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_broker::BrokerError;
use meridian_ownership::isolation::{IsolationData, IsolationRule, Standing};
use meridian_ownership::{BrokerRecord, BundleId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PATH: &str = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies";
const MIN_AVAILABLE: &str = "min_available";

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(PATH, get(list))
        .route(&format!("{PATH}/brokers"), get(brokers))
        .route(&format!("{PATH}/brokers/{{broker}}"), get(broker))
        .route(&format!("{PATH}/{{policy}}"), get(show).post(set).delete(delete))
}

/// Rules are of this region only.
fn require_cluster(state: &AdminState, call: &Call) -> Result<bool, AdminError> {
    state.allow_operator(call)?;
    let name = call.param("cluster");
    match state.registry().cluster(name) {
        Some(_) => Ok(name == state.service.config().cluster),
        None => Err(AdminError::invalid(format!("Cluster {name} does not exist."))),
    }
}

fn rules(state: &AdminState, call: &Call) -> Result<BTreeMap<String, IsolationData>, AdminError> {
    match require_cluster(state, call)? {
        true => Ok(state.service.ownership().isolation()),
        false => Ok(BTreeMap::new()),
    }
}

async fn list(State(state): Given, call: Call) -> Answer {
    Ok(Reply::json(&rules(&state, &call)?))
}

fn no_such(call: &Call) -> AdminError {
    let (policy, cluster) = (call.name("policy"), call.param("cluster"));
    AdminError::not_found(format!("NamespaceIsolationPolicies for cluster {cluster} does not hold {policy}"))
}

async fn show(State(state): Given, call: Call) -> Answer {
    let rules = rules(&state, &call)?;
    Ok(Reply::json(rules.get(&call.name("policy")).ok_or_else(|| no_such(&call))?))
}

async fn set(State(state): Given, call: Call) -> Answer {
    if !require_cluster(&state, &call)? {
        return Err(AdminError::invalid("isolation policies of another cluster are kept there"));
    }
    if state.service.ownership().is_alone() {
        return Err(not_served("Isolation policies are not served: one broker serves everything of this region"));
    }
    let data: IsolationData =
        serde_json::from_value(call.value()?).map_err(|error| AdminError::bad_request(error.to_string()))?;
    if let Some(failover) = &data.auto_failover_policy
        && failover.policy_type != MIN_AVAILABLE
    {
        return Err(AdminError::invalid(format!(
            "auto_failover_policy is {MIN_AVAILABLE}, not {}",
            failover.policy_type
        )));
    }
    let rule = IsolationRule::new(data.clone()).map_err(AdminError::invalid)?;
    let ownership = state.service.ownership().clone();
    let before = ownership.isolation().get(&call.name("policy")).cloned();
    let scope = data.unload_scope.clone();
    ownership.set_isolation(&call.name("policy"), Some(data)).await.map_err(BrokerError::from)?;
    tracing::info!(policy = call.name("policy"), by = call.principal.acting(), "isolation policy set");
    move_misplaced(&state, &rule, before, scope.as_deref()).await;
    Ok(Reply::done())
}

/// Bundles on brokers that the rule does not name move, as far as its scope says.
async fn move_misplaced(state: &AdminState, rule: &IsolationRule, before: Option<IsolationData>, scope: Option<&str>) {
    let earlier = before.and_then(|before| IsolationRule::new(before).ok());
    let is_new = |bundle: &BundleId| earlier.as_ref().is_none_or(|earlier| !earlier.concerns(&bundle.namespace));
    let ownership = state.service.ownership().clone();
    for broker in ownership.brokers() {
        for (bundle, _) in ownership.owned(&broker.id) {
            let touched = match scope {
                Some("none") => false,
                Some("all_matching") => rule.concerns(&bundle.namespace),
                _ => rule.concerns(&bundle.namespace) && (is_new(&bundle) || rule.standing(&broker) == Standing::Other),
            };
            if touched
                && rule.standing(&broker) != Standing::Primary
                && let Err(error) = ownership.unload(&bundle, None).await
            {
                tracing::warn!(%bundle, %error, "a bundle stays where the isolation policy does not want it");
            }
        }
    }
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let rules = rules(&state, &call)?;
    if !rules.contains_key(&call.name("policy")) {
        return Err(no_such(&call));
    }
    state.service.ownership().clone().set_isolation(&call.name("policy"), None).await.map_err(BrokerError::from)?;
    tracing::info!(policy = call.name("policy"), by = call.principal.acting(), "isolation policy deleted");
    Ok(Reply::done())
}

fn shown(broker: &BrokerRecord, rules: &BTreeMap<String, IsolationData>) -> Value {
    let mut patterns = Vec::new();
    let (mut policy, mut is_primary) = (None, false);
    for (name, data) in rules {
        let Ok(rule) = IsolationRule::new(data.clone()) else { continue };
        let standing = rule.standing(broker);
        if standing != Standing::Other {
            patterns.extend(data.namespaces.iter().cloned());
            policy = policy.or(Some(name.clone()));
            is_primary |= standing == Standing::Primary;
        }
    }
    json!({ "brokerName": broker.id, "policyName": policy, "isPrimary": is_primary, "namespaceRegex": patterns })
}

async fn brokers(State(state): Given, call: Call) -> Answer {
    let rules = rules(&state, &call)?;
    if rules.is_empty() {
        return Ok(Reply::json(&json!([])));
    }
    let all = state.service.ownership().brokers();
    Ok(Reply::json(&all.iter().map(|broker| shown(broker, &rules)).collect::<Vec<_>>()))
}

async fn broker(State(state): Given, call: Call) -> Answer {
    let rules = rules(&state, &call)?;
    let name = call.name("broker");
    let known = state.service.ownership().brokers().into_iter().find(|broker| broker.id == name);
    let record = known.map_or_else(|| BrokerRecord { id: name, ..BrokerRecord::default() }, |known| (*known).clone());
    Ok(Reply::json(&shown(&record, &rules)))
}
