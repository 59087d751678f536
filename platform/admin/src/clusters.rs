//! Clusters: how the regions are reached, their peers, and groups of brokers that fail together.

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
use meridian_policy::ClusterData;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const PATH: &str = "/admin/v2/clusters/{cluster}";

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/admin/v2/clusters", get(list))
        .route(PATH, get(show).put(create).post(update).delete(delete))
        .route(&format!("{PATH}/peers"), get(peers).post(set_peers))
        .route(&format!("{PATH}/failureDomains"), get(domains))
        .route(&format!("{PATH}/failureDomains/{{domain}}"), get(domain).post(set_domain).delete(delete_domain))
}

/// Open to everybody: clients in fail-over set-ups ask it before they log in.
async fn list(State(state): Given, _call: Call) -> Answer {
    Ok(Reply::json(&state.registry().clusters()))
}

fn find(state: &AdminState, call: &Call) -> Result<Arc<ClusterData>, AdminError> {
    state.registry().cluster(call.param("cluster")).ok_or_else(|| AdminError::not_found("Cluster does not exist"))
}

async fn show(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let found = find(&state, &call)?;
    // A secret of the peer's is written, never read; failure domains have calls of their own.
    let shown =
        ClusterData { authentication_parameters: None, failure_domains: Default::default(), ..(*found).clone() };
    Ok(Reply::json(&shown))
}

/// The body, without what has calls of its own.
fn given(call: &Call) -> Result<ClusterData, AdminError> {
    let body = call.value()?;
    if body.is_null() {
        return Err(AdminError::bad_request("cluster data is required"));
    }
    let data: ClusterData = explain::read("", &body)?;
    let is =
        |url: &Option<String>, scheme: &str| url.as_deref().is_none_or(|url| url.is_empty() || url.starts_with(scheme));
    let refuse =
        |what: &str, example: &str| Err(AdminError::bad_request(format!("Illegal {what}, example: {example}")));
    if !is(&data.service_url, "http://") {
        return refuse("service url", "http://pulsar.example.com:8080");
    }
    if !is(&data.service_url_tls, "https://") {
        return refuse("service tls url", "https://pulsar.example.com:8443");
    }
    if !is(&data.broker_service_url, "pulsar://") {
        return refuse("broker service url", "pulsar://pulsar.example.com:6650");
    }
    if !is(&data.broker_service_url_tls, "pulsar+ssl://") {
        return refuse("broker service tls url", "pulsar+ssl://pulsar.example.com:6651");
    }
    Ok(ClusterData { failure_domains: Default::default(), ..data })
}

async fn create(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let name = call.param("cluster");
    ClusterData::check_name(name).map_err(|error| crate::call::unfit("Cluster", &error))?;
    let data = given(&call)?;
    check_not_own_peer(name, data.peer_cluster_names.iter().flatten())?;
    state.registry().create_cluster(name, &data).await?;
    tracing::info!(cluster = name, by = call.principal.acting(), "cluster created");
    Ok(Reply::empty(StatusCode::OK))
}

async fn update(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let data = given(&call)?;
    let name = call.param("cluster");
    check_not_own_peer(name, data.peer_cluster_names.iter().flatten())?;
    let change = |stored: &mut ClusterData| {
        *stored = merged(stored, &data);
        Ok::<(), AdminError>(())
    };
    state.registry().update_cluster(name, change).await?;
    tracing::info!(cluster = name, by = call.principal.acting(), "cluster changed");
    Ok(Reply::empty(StatusCode::OK))
}

/// What is not shown, or has calls of its own, is kept by an update that does not name it.
fn merged(stored: &ClusterData, given: &ClusterData) -> ClusterData {
    let same_plugin = stored.authentication_plugin == given.authentication_plugin;
    let secret = stored.authentication_parameters.as_ref().filter(|_| same_plugin);
    ClusterData {
        peer_cluster_names: given.peer_cluster_names.as_ref().or(stored.peer_cluster_names.as_ref()).cloned(),
        authentication_parameters: given.authentication_parameters.as_ref().or(secret).cloned(),
        failure_domains: stored.failure_domains.clone(),
        ..given.clone()
    }
}

async fn delete(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let name = call.param("cluster");
    if name == state.service.config().cluster {
        return Err(AdminError::invalid(format!("Cluster not empty: {name} is this region")));
    }
    state.registry().delete_cluster(name).await?;
    tracing::info!(cluster = name, by = call.principal.acting(), "cluster deleted");
    Ok(Reply::done())
}

async fn peers(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::setting(&json!(find(&state, &call)?.peer_cluster_names)))
}

fn check_not_own_peer<'a>(name: &str, mut peers: impl Iterator<Item = &'a String>) -> Result<(), AdminError> {
    match peers.any(|peer| peer == name) {
        true => Err(AdminError::invalid(format!("{name} itself can't be part of peer-list"))),
        false => Ok(()),
    }
}

/// A cluster may be made with peers that come later; who sets its peers names clusters that are there.
fn check_peers<'a>(
    state: &AdminState,
    name: &str,
    mut peers: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), AdminError> {
    check_not_own_peer(name, peers.clone())?;
    peers.try_for_each(|peer| match state.registry().cluster(peer) {
        Some(_) => Ok(()),
        None => Err(AdminError::invalid(format!("Peer cluster {peer} does not exist"))),
    })
}

async fn set_peers(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let mut peers: Vec<String> = call.json()?;
    let mut seen = BTreeSet::new();
    peers.retain(|peer| seen.insert(peer.clone()));
    let name = call.param("cluster");
    check_peers(&state, name, peers.iter())?;
    let change = |stored: &mut ClusterData| {
        stored.peer_cluster_names = Some(peers.clone());
        Ok::<(), AdminError>(())
    };
    state.registry().update_cluster(name, change).await?;
    Ok(Reply::done())
}

/// A failure domain as it is sent and shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FailureDomain {
    brokers: BTreeSet<String>,
}

/// A cluster whose failure domains are meant.
fn domains_of(state: &AdminState, call: &Call) -> Result<Arc<ClusterData>, AdminError> {
    let name = call.param("cluster");
    let found = state.registry().cluster(name);
    found.ok_or_else(|| AdminError::invalid(format!("Cluster {name} does not exist.")))
}

async fn domains(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let found = domains_of(&state, &call)?;
    let shown: Map<String, Value> =
        found.failure_domains.iter().map(|(name, brokers)| (name.clone(), json!({ "brokers": brokers }))).collect();
    Ok(Reply::json(&shown))
}

fn no_such_domain(call: &Call) -> AdminError {
    let (domain, cluster) = (call.param("domain"), call.param("cluster"));
    AdminError::not_found(format!("Domain-name {domain} or cluster {cluster} does not exist"))
}

async fn domain(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let found = domains_of(&state, &call)?;
    let brokers = found.failure_domains.get(call.param("domain")).ok_or_else(|| {
        let (domain, cluster) = (call.param("domain"), call.param("cluster"));
        AdminError::not_found(format!("Domain {domain} for cluster {cluster} does not exist"))
    })?;
    Ok(Reply::json(&json!({ "brokers": brokers })))
}

async fn set_domain(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let given: FailureDomain = call.json()?;
    domains_of(&state, &call)?;
    let name = call.param("domain");
    let change = |stored: &mut ClusterData| {
        for (other, brokers) in stored.failure_domains.iter().filter(|(other, _)| *other != name) {
            if given.brokers.intersection(brokers).next().is_some() {
                let both: Vec<_> = given.brokers.intersection(brokers).map(String::as_str).collect();
                return Err(AdminError::conflict(format!("[{}] already exists in {other}", both.join(", "))));
            }
        }
        stored.failure_domains.insert(name.to_owned(), given.brokers.clone());
        Ok(())
    };
    state.registry().update_cluster(call.param("cluster"), change).await?;
    Ok(Reply::done())
}

async fn delete_domain(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    domains_of(&state, &call)?;
    let change = |stored: &mut ClusterData| {
        stored.failure_domains.remove(call.param("domain")).map(drop).ok_or_else(|| no_such_domain(&call))
    };
    state.registry().update_cluster(call.param("cluster"), change).await?;
    Ok(Reply::empty(StatusCode::OK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_keeps_what_it_can_not_know() {
        let stored = ClusterData {
            authentication_plugin: Some("token".into()),
            authentication_parameters: Some("secret".into()),
            peer_cluster_names: Some(["a".to_owned()].into()),
            failure_domains: [("d".to_owned(), ["b".to_owned()].into())].into(),
            ..ClusterData::default()
        };
        let shown = ClusterData { authentication_plugin: Some("token".into()), ..ClusterData::default() };
        assert_eq!(merged(&stored, &shown), stored);
        let other = ClusterData { authentication_plugin: Some("basic".into()), ..ClusterData::default() };
        assert_eq!(merged(&stored, &other).authentication_parameters, None);
    }
}
