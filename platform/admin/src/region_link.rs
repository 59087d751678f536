//! The region link to other regions: its address, for them, and its state, for operators.

use crate::call::Call;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Json};
use axum::routing::get;
use serde_json::{Value, json};

pub fn routes() -> Router<AdminState> {
    Router::new().route("/admin/v2/meridian/region-link/peers", get(peers))
}

/// Open to everybody: a region asks it before it can show a certificate. Holds nothing that the port does not tell.
pub async fn address(State(state): Given) -> impl IntoResponse {
    let url = state.service.link().and_then(|attached| attached.url.clone());
    Json(json!({ "region": state.service.config().cluster, "url": url }))
}

async fn peers(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let Some(attached) = state.service.link() else { return Ok(Reply::json(&json!({}))) };
    let mut shown = serde_json::Map::new();
    for peer in attached.link.peers() {
        let value: Value = json!({
            "state": peer.state.word(),
            "explanation": peer.explain(),
            "sinceMs": peer.since_ms,
            "address": peer.address,
            "tls": peer.tls,
            "version": peer.version,
            "attempts": peer.attempts,
            "connects": peer.connects,
            "lastError": peer.last_error.as_ref().map(|(error, _)| error),
            "lastErrorMs": peer.last_error.as_ref().map(|(_, at_ms)| at_ms),
            "clockAheadMs": peer.clock_ahead_ms,
            "roundTripMicros": peer.round_trip_us,
            "objects": {
                "convergedMs": peer.sync.converged_ms,
                "rounds": peer.sync.rounds,
                "queued": peer.sync.queued,
                "inFlight": peer.sync.in_flight,
                "later": peer.sync.later,
                "taken": peer.sync.taken,
                "overflows": peer.sync.overflows,
                "refused": peer.sync.refused,
            },
            "acks": {
                "inFlightBytes": peer.acks.in_flight_bytes,
                "sent": peer.acks.sent,
                "sentBytes": peer.acks.sent_bytes,
                "confirmed": peer.acks.confirmed,
                "again": peer.acks.again,
            },
            "incoming": {
                "lastSeenMs": peer.incoming.last_seen_ms,
                "objectsTaken": peer.incoming.objects_taken,
                "objectsRefused": peer.incoming.objects_refused,
                "acks": peer.incoming.acks,
                "callsRefused": peer.incoming.calls_refused,
                "lastRefusal": peer.incoming.last_refusal,
            },
        });
        shown.insert(peer.region, value);
    }
    Ok(Reply::json(&Value::Object(shown)))
}
