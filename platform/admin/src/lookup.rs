//! Look-ups over HTTP.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_door::Action;
use meridian_types::TopicName;
use serde_json::json;

/// Name of the advertised listener, if the query has none.
const LISTENER_HEADER: &str = "x-pulsar-listenername";

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", get(lookup))
        .route("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", get(bundle))
}

async fn lookup(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let _permit = state.service.lookup_permit()?;
    let header = call.headers.get(LISTENER_HEADER).and_then(|value| value.to_str().ok());
    if let Some(there) = state.service.lookup_elsewhere(&topic) {
        let url = there.web_url.as_deref().or(there.web_url_tls.as_deref()).unwrap_or_default();
        let path = topic.as_str().replacen("://", "/", 1);
        return Reply::redirect(&format!("{}/lookup/v2/topic/{path}", url.trim_end_matches('/')));
    }
    let listener = call.query("listenerName").or(header);
    // Whoever serves it: a redirect would lose the credentials of clients whose HTTP library sends them to one address only.
    let answer = state.service.lookup(&topic, listener, call.flag("authoritative")).await?;
    Ok(Reply::json(&json!({
        "brokerId": answer.broker_id,
        "brokerUrl": answer.broker_url,
        "brokerUrlTls": answer.broker_url_tls,
        "httpUrl": answer.web_url,
        "httpUrlTls": answer.web_url_tls,
        "nativeUrl": answer.broker_url,
        "brokerUrlSsl": "",
    })))
}

/// `host:port` of the web address, by which Pulsar names brokers.
pub fn broker_id(state: &AdminState) -> String {
    state.service.ownership().me().id.clone()
}

async fn bundle(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let range = bundle_of(&state, &topic).ok_or_else(|| AdminError::not_found("Namespace bundle not found"))?;
    Ok(Reply::text(range))
}

/// The hash range of its namespace that a topic falls into.
pub fn bundle_of(state: &AdminState, topic: &TopicName) -> Option<String> {
    state.service.ownership().bundle_of(topic).map(|bundle| bundle.range.to_string())
}
