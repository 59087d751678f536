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
        .route("/admin/v2/broker-stats/load-report", get(load_report))
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

/// What this broker has to do, as it reports it to the others, in Pulsar's words.
async fn load_report(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let ownership = state.service.ownership();
    let me = ownership.me();
    let load = ownership.load(&me.id).unwrap_or_default();
    let total = load.total.unwrap_or_default();
    let usage = |permille: u32| json!({ "usage": f64::from(permille) / 10.0, "limit": 100.0 });
    let bundle = |bundle: &meridian_ownership::BundleLoad| {
        let name = format!("{}/0x{:08x}_0x{:08x}", bundle.namespace, bundle.start, bundle.end);
        let figures = bundle.figures.unwrap_or_default();
        let shown = json!({
            "msgRateIn": figures.messages_in,
            "msgRateOut": figures.messages_out,
            "msgThroughputIn": figures.bytes_in,
            "msgThroughputOut": figures.bytes_out,
            "topics": figures.topics,
            "clients": figures.clients,
        });
        (name, shown)
    };
    let bundles: Map<String, Value> = load.bundles.iter().map(bundle).collect();
    let listener = me.listener(None).cloned().unwrap_or_default();
    Ok(Reply::json(&json!({
        "webServiceUrl": me.web_url,
        "webServiceUrlTls": me.web_url_tls,
        "pulsarServiceUrl": listener.broker_url,
        "pulsarServiceUrlTls": listener.broker_url_tls,
        "brokerVersionString": me.version,
        "startTimestamp": me.started_ms,
        "persistentTopicsEnabled": true,
        "nonPersistentTopicsEnabled": true,
        "cpu": usage(load.cpu_permille),
        "memory": usage(load.memory_permille),
        "bandwidthIn": usage(load.bandwidth_permille),
        "bandwidthOut": usage(load.bandwidth_permille),
        "msgRateIn": total.messages_in,
        "msgRateOut": total.messages_out,
        "msgThroughputIn": total.bytes_in,
        "msgThroughputOut": total.bytes_out,
        "numTopics": total.topics,
        "numBundles": load.bundle_count,
        "lastUpdate": load.at_ms,
        "bundles": ownership.owned(&me.id).iter().map(|(bundle, _)| bundle.to_string()).collect::<Vec<_>>(),
        "bundleStats": bundles,
    })))
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
