//! Clusters: how the regions are reached.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use meridian_policy::ClusterData;
use std::collections::BTreeSet;

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/admin/v2/clusters", get(list))
        .route("/admin/v2/clusters/{cluster}", get(show).put(create).post(update).delete(delete))
        .route("/admin/v2/clusters/{cluster}/peers", get(peers).post(set_peers))
}

/// Open to everybody: clients in fail-over set-ups ask it before they log in.
async fn list(State(state): Given, _call: Call) -> Answer {
    Ok(Reply::json(&state.registry().clusters()))
}

fn find(state: &AdminState, call: &Call) -> Result<std::sync::Arc<ClusterData>, AdminError> {
    state.registry().cluster(call.param("cluster")).ok_or_else(|| AdminError::not_found("Cluster does not exist"))
}

async fn show(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let found = find(&state, &call)?;
    // A secret of the peer's is written, never read.
    let shown = ClusterData { authentication_parameters: None, ..(*found).clone() };
    Ok(Reply::json(&shown))
}

async fn create(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let data: ClusterData = call.json()?;
    state.registry().create_cluster(call.param("cluster"), &data).await?;
    tracing::info!(cluster = call.param("cluster"), by = call.principal.acting(), "cluster created");
    Ok(Reply::empty(StatusCode::OK))
}

async fn update(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let data: ClusterData = call.json()?;
    let change = |stored: &mut ClusterData| {
        // Peers have a call of their own; who does not name them does not mean to delete them.
        let peers = data.peer_cluster_names.clone().or_else(|| stored.peer_cluster_names.take());
        *stored = ClusterData { peer_cluster_names: peers, ..data.clone() };
        Ok::<(), AdminError>(())
    };
    state.registry().update_cluster(call.param("cluster"), change).await?;
    tracing::info!(cluster = call.param("cluster"), by = call.principal.acting(), "cluster changed");
    Ok(Reply::empty(StatusCode::OK))
}

async fn delete(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    state.registry().delete_cluster(call.param("cluster")).await?;
    tracing::info!(cluster = call.param("cluster"), by = call.principal.acting(), "cluster deleted");
    Ok(Reply::done())
}

async fn peers(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&find(&state, &call)?.peer_cluster_names.clone().unwrap_or_default()))
}

async fn set_peers(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let peers: BTreeSet<String> = call.json()?;
    let name = call.param("cluster");
    if peers.contains(name) {
        return Err(AdminError::invalid(format!("{name} itself can't be part of peer-list")));
    }
    if let Some(missing) = peers.iter().find(|peer| state.registry().cluster(peer).is_none()) {
        return Err(AdminError::invalid(format!("Peer cluster {missing} does not exist")));
    }
    let change = |stored: &mut ClusterData| {
        stored.peer_cluster_names = Some(peers.clone());
        Ok::<(), AdminError>(())
    };
    state.registry().update_cluster(name, change).await?;
    Ok(Reply::done())
}
