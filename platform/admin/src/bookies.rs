//! Storage nodes: which there are, taking one away, audits of all copies.
//!
//! | method and path | what it does |
//! |---|---|
//! | `GET /admin/v2/bookies/all` | ids, as Pulsar answers them |
//! | `GET /admin/v2/bookies/racks-info` | where they stand, as Pulsar answers it |
//! | `GET /admin/v2/meridian/bookies` | each with its state, place, ledgers, and whether it leaves |
//! | `GET /admin/v2/meridian/bookies/{bookie}/decommission` | how far it is |
//! | `PUT /admin/v2/meridian/bookies/{bookie}/decommission?keep=N` | has its ledgers moved; N writable ones have to be left |
//! | `DELETE /admin/v2/meridian/bookies/{bookie}/decommission` | takes the order back |
//! | `GET /admin/v2/meridian/bookies-audit` | what the last audit found |
//! | `POST /admin/v2/meridian/bookies-audit` | orders one; answers when that was |
//!
//! Failure: 501 where this process has no part in storage, 404 for a bookie that nobody knows, 409 if too few would be
//! left, 503 if the metadata store does not answer.
//! Must never know: how ledgers are moved.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::unserved::not_served;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Map, Value, json};
use std::pin::Pin;
use std::sync::Arc;

/// An answer about storage nodes.
pub type DeskAnswer<'a> = Pin<Box<dyn Future<Output = Result<Value, AdminError>> + Send + 'a>>;

/// What operators ask and order about storage nodes; values are JSON as it is shown.
pub trait BookieDesk: Send + Sync {
    /// A list of objects with `id`, `state`, `region`, `zone`, `ledgers`, `leaving`.
    fn list(&self) -> DeskAnswer<'_>;

    /// Has all ledgers of a bookie moved; `keep` writable ones have to be left.
    fn decommission<'a>(&'a self, bookie: &'a str, keep: usize) -> DeskAnswer<'a>;

    /// Takes the order back.
    fn recommission<'a>(&'a self, bookie: &'a str) -> DeskAnswer<'a>;

    /// How far it is.
    fn progress<'a>(&'a self, bookie: &'a str) -> DeskAnswer<'a>;

    /// Orders an audit.
    fn order_audit(&self) -> DeskAnswer<'_>;

    /// What the last audit found; null = there was none.
    fn report(&self) -> DeskAnswer<'_>;
}

/// Writable bookies that have to be left if the call does not say.
const KEEP: usize = 1;

pub fn routes() -> Router<AdminState> {
    const ONE: &str = "/admin/v2/meridian/bookies/{bookie}/decommission";
    Router::new()
        .route("/admin/v2/bookies/all", get(all))
        .route("/admin/v2/bookies/racks-info", get(racks))
        .route("/admin/v2/meridian/bookies", get(list))
        .route("/admin/v2/meridian/bookies-audit", get(report).post(order_audit))
        .route(ONE, get(progress).put(decommission).delete(recommission))
}

fn desk(state: &AdminState, call: &Call) -> Result<Arc<dyn BookieDesk>, AdminError> {
    state.allow_operator(call)?;
    state.desk.clone().ok_or_else(|| not_served("This process has no part in storage"))
}

async fn lines(state: &AdminState, call: &Call) -> Result<Vec<Value>, AdminError> {
    match desk(state, call)?.list().await? {
        Value::Array(lines) => Ok(lines),
        _ => Ok(Vec::new()),
    }
}

async fn all(State(state): Given, call: Call) -> Answer {
    let ids: Vec<Value> = lines(&state, &call).await?.iter().map(|line| json!({ "bookieId": line["id"] })).collect();
    Ok(Reply::json(&json!({ "bookies": ids })))
}

async fn racks(State(state): Given, call: Call) -> Answer {
    let mut racks = Map::new();
    for line in lines(&state, &call).await? {
        let place = ["region", "zone"].iter().filter_map(|part| line[*part].as_str());
        let rack: String = place.map(|part| format!("/{part}")).collect();
        let id = line["id"].as_str().unwrap_or_default().to_owned();
        if !rack.is_empty() {
            racks.insert(id.clone(), json!({ "rack": rack, "hostname": id }));
        }
    }
    let groups = if racks.is_empty() { json!({}) } else { json!({ "default": racks }) };
    Ok(Reply::json(&groups))
}

async fn list(State(state): Given, call: Call) -> Answer {
    Ok(Reply::json(&desk(&state, &call)?.list().await?))
}

async fn decommission(State(state): Given, call: Call) -> Answer {
    let desk = desk(&state, &call)?;
    let keep = match call.query("keep") {
        Some(keep) => keep.parse().map_err(|_| AdminError::invalid(format!("keep={keep}: expected a number")))?,
        None => KEEP,
    };
    let answer = desk.decommission(call.param("bookie"), keep).await?;
    tracing::info!(bookie = call.param("bookie"), by = call.principal.acting(), "a bookie is taken away by order");
    Ok(Reply::json(&answer))
}

async fn recommission(State(state): Given, call: Call) -> Answer {
    let desk = desk(&state, &call)?;
    desk.recommission(call.param("bookie")).await?;
    tracing::info!(bookie = call.param("bookie"), by = call.principal.acting(), "the order for a bookie is taken back");
    Ok(Reply::done())
}

async fn progress(State(state): Given, call: Call) -> Answer {
    Ok(Reply::json(&desk(&state, &call)?.progress(call.param("bookie")).await?))
}

async fn order_audit(State(state): Given, call: Call) -> Answer {
    Ok(Reply::json(&desk(&state, &call)?.order_audit().await?))
}

async fn report(State(state): Given, call: Call) -> Answer {
    match desk(&state, &call)?.report().await? {
        Value::Null => Err(AdminError::new(StatusCode::NOT_FOUND, "No audit has ended yet")),
        report => Ok(Reply::json(&report)),
    }
}
