//! Bundles of a namespace: which there are, unloading, splitting.
//!
//! Any broker answers what the records say; what is done to open topics is done by the broker that serves them: the others
//! send the caller there.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::{get, put};
use meridian_ownership::resize::{SplitAlgorithm, cuts};
use meridian_ownership::{BundleFigures, BundleId, topic_hash};
use meridian_types::{NamespaceName, TopicName};
use serde_json::json;

const PATH: &str = "/admin/v2/namespaces/{tenant}/{namespace}";
/// How a bundle is split if the call does not say.
const DEFAULT_ALGORITHM: &str = "range_equally_divide";

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}{rest}");
    Router::new()
        .route(&under("/bundles"), get(list))
        .route(&under("/unload"), put(unload_namespace))
        .route(&under("/{bundle}/unload"), put(unload))
        .route(&under("/{bundle}/split"), put(split))
        .route(&under("/{bundle}/topicHashPositions"), get(positions))
}

async fn list(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let Some(bundles) = state.service.ownership().bundles(&namespace) else { return Ok(Reply::json(&())) };
    let boundaries: Vec<String> = bundles.boundaries().iter().map(|boundary| format!("0x{boundary:08x}")).collect();
    Ok(Reply::json(&json!({ "boundaries": boundaries, "numBundles": bundles.count() })))
}

/// The bundles that the path names: none = 412. No name in the path means all.
pub fn named(state: &AdminState, call: &Call, namespace: &NamespaceName) -> Result<Option<Vec<BundleId>>, AdminError> {
    let bundle = call.param("bundle");
    if bundle.is_empty() {
        return Ok(None);
    }
    let named = state.service.ownership().named(namespace, bundle);
    let named = named.map_err(|error| AdminError::invalid(format!("Failed to find existing bundle: {error}")))?;
    Ok(Some(named))
}

/// Whether a topic lies in one of the bundles that the path names.
pub fn within(state: &AdminState, named: Option<&[BundleId]>, topic: &TopicName) -> bool {
    named.is_none_or(|bundles| {
        bundles.iter().any(|bundle| bundle.namespace == topic.namespace() && bundle.range.holds(topic_hash(topic)))
    }) && state.service.ownership().bundle_of(topic).is_some()
}

/// Sends the caller to the broker that serves the bundle, if that is another one.
fn require_owned(state: &AdminState, bundle: &BundleId) -> Result<(), AdminError> {
    let ownership = state.service.ownership();
    match ownership.owner(bundle).filter(|owner| owner.id != ownership.me().id) {
        Some(owner) => {
            let reason = format!("{bundle} is served by {}", owner.id);
            Err(AdminError::elsewhere(reason, owner.web_url.clone(), owner.web_url_tls.clone()))
        }
        None => Ok(()),
    }
}

async fn unload_namespace(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let bundles = state.service.ownership().bundles(&namespace);
    let of = |range| BundleId { namespace: namespace.clone(), range };
    let bundles: Vec<BundleId> = bundles.iter().flat_map(|bundles| bundles.ranges()).map(of).collect();
    state.service.unload_bundles(&bundles, None).await?;
    tracing::info!(%namespace, by = call.principal.acting(), "namespace unloaded");
    Ok(Reply::done())
}

async fn unload(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let bundles = named(&state, &call, &namespace)?.unwrap_or_default();
    if let [bundle] = &bundles[..] {
        require_owned(&state, bundle)?;
    }
    state.service.unload_bundles(&bundles, call.query("destinationBroker")).await?;
    let bundle = call.param("bundle");
    tracing::info!(%namespace, bundle, by = call.principal.acting(), "bundle unloaded");
    Ok(Reply::done())
}

async fn split(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let bundles = match call.param("bundle") {
        // The one with most topics, as Pulsar's tools say it.
        "LARGEST" | "HOT" => vec![largest(&state, &namespace)?],
        _ => named(&state, &call, &namespace)?.unwrap_or_default(),
    };
    let [bundle] = &bundles[..] else {
        return Err(AdminError::invalid("Failed to find existing bundle: name one bundle to split"));
    };
    require_owned(&state, bundle)?;
    let positions: Vec<i64> = call.json()?;
    let positions = positions.iter().filter_map(|at| u32::try_from(*at).ok()).collect();
    let name = call.query("splitAlgorithmName").unwrap_or(DEFAULT_ALGORITHM);
    let algorithm = SplitAlgorithm::named(name, positions)
        .ok_or_else(|| AdminError::invalid(format!("Unsupported namespace bundle split algorithm: {name}")))?;
    let topics: Vec<(u32, u64)> = loads(&state, bundle).map(|(hash, figures)| (hash, weight(&figures))).collect();
    let cuts = cuts(&algorithm, bundle.range, &topics);
    if cuts.is_empty() {
        return Err(AdminError::invalid(format!("{bundle} can't be split by {name}: no place parts it")));
    }
    let ownership = state.service.ownership().clone();
    let parts = ownership.split(bundle, &cuts).await.map_err(meridian_broker::BrokerError::from)?;
    tracing::info!(%bundle, parts = parts.len(), by = call.principal.acting(), "bundle split");
    if call.flag("unload") {
        // The first part stays: something of the load has to remain here.
        state.service.unload_bundles(&parts[1..], None).await?;
    }
    Ok(Reply::done())
}

fn weight(figures: &BundleFigures) -> u64 {
    figures.messages_in + figures.messages_out + (figures.bytes_in + figures.bytes_out) / 1024
}

fn loads<'a>(state: &'a AdminState, bundle: &'a BundleId) -> impl Iterator<Item = (u32, BundleFigures)> + 'a {
    let loads = state.service.topic_loads().into_iter();
    let within = move |topic: &TopicName| state.service.ownership().bundle_of(topic).as_ref() == Some(bundle);
    loads.filter(move |load| within(&load.topic)).map(|load| (topic_hash(&load.topic), load.figures))
}

fn largest(state: &AdminState, namespace: &NamespaceName) -> Result<BundleId, AdminError> {
    let mut counts = std::collections::BTreeMap::<BundleId, usize>::new();
    for topic in state.service.loaded_topics().iter().filter(|topic| topic.name().namespace() == *namespace) {
        if let Some(bundle) = state.service.ownership().bundle_of(topic.name()) {
            *counts.entry(bundle).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(bundle, _)| bundle);
    most.ok_or_else(|| AdminError::invalid("Failed to find existing bundle: no topic of the namespace is open here"))
}

/// The hashes of a bundle's stored topics.
async fn positions(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let bundles = named(&state, &call, &namespace)?;
    let topics = state.service.list_everywhere(&namespace, meridian_broker::ListDomain::All).await?;
    let positions: serde_json::Map<String, serde_json::Value> = topics
        .iter()
        .filter(|topic| within(&state, bundles.as_deref(), topic))
        .map(|topic| (topic.to_string(), json!(topic_hash(topic))))
        .collect();
    Ok(Reply::json(&json!({
        "namespace": namespace.as_str(),
        "bundle": call.param("bundle"),
        "hashPositions": positions,
    })))
}
