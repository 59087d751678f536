//! Figures of the broker as JSON.

use crate::call::Call;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::topics::stats::{Shown, topic_stats};
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde_json::{Map, Value, json};

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/admin/v2/broker-stats/topics", get(topics))
        .route("/admin/v2/broker-stats/metrics", get(metrics))
        .route("/admin/v2/broker-stats/mbeans", get(metrics))
}

/// Namespace → bundle → domain → topic → figures.
async fn topics(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let mut all = Map::new();
    for topic in state.service.loaded_topics() {
        let name = topic.name();
        let range = crate::lookup::bundle_of(&state, name).unwrap_or_default();
        let mut level = entry(&mut all, name.namespace().as_str());
        for key in [range.as_str(), name.domain().as_str()] {
            level = entry(level, key);
        }
        level.insert(name.as_str().to_owned(), topic_stats(&state, name, &topic.stats(), Shown::ALL));
    }
    Ok(Reply::json(&all))
}

fn entry<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    match value {
        Value::Object(inner) => inner,
        _ => unreachable!("only objects are put here"),
    }
}

async fn metrics(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let figures = json!({
        "brk_active_connections": state.service.connections().open(),
        "brk_topics_count": state.service.topic_count(),
        "brk_topics_loading": state.service.loading_count(),
    });
    let dimensions = json!({ "cluster": state.service.config().cluster });
    Ok(Reply::json(&json!([{ "metrics": figures, "dimensions": dimensions }])))
}
