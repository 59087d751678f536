//! Brokers: health, who leads, settings.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use meridian_settings::{Kind, TABLE};
use serde_json::{Map, Value, json};

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/admin/v2/brokers", get(list))
        .route("/admin/v2/brokers/health", get(health))
        .route("/admin/v2/brokers/ready", get(health))
        .route("/admin/v2/brokers/version", get(version))
        .route("/admin/v2/brokers/leaderBroker", get(leader))
        .route("/admin/v2/brokers/internal-configuration", get(internal))
        .route("/admin/v2/brokers/configuration", get(names))
        .route("/admin/v2/brokers/configuration/runtime", get(runtime))
        .route("/admin/v2/brokers/configuration/values", get(values))
        .route("/admin/v2/brokers/configuration/{key}", axum::routing::delete(reset))
        .route("/admin/v2/brokers/configuration/{key}/{*value}", post(update))
        .route("/admin/v2/brokers/{cluster}", get(of_cluster))
        .route("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", get(owned))
}

async fn list(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&broker_ids(&state)))
}

fn broker_ids(state: &AdminState) -> Vec<String> {
    state.service.ownership().brokers().iter().map(|broker| broker.id.clone()).collect()
}

async fn of_cluster(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    require_cluster(&state, &call)?;
    Ok(Reply::json(&broker_ids(&state)))
}

fn require_cluster(state: &AdminState, call: &Call) -> Result<(), AdminError> {
    match state.registry().cluster(call.param("cluster")) {
        Some(_) if call.param("cluster") == state.service.config().cluster => Ok(()),
        Some(_) => Err(AdminError::not_found("the brokers of another cluster are listed there")),
        None => Err(AdminError::not_found(format!("Cluster does not exist: cluster={}", call.param("cluster")))),
    }
}

async fn owned(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    require_cluster(&state, &call)?;
    let ownership = state.service.ownership();
    let broker = call.name("broker");
    if !ownership.brokers().iter().any(|one| one.id == broker) {
        return Err(AdminError::not_found(format!("Broker {broker} is not alive")));
    }
    let namespaced = |bundle: &meridian_ownership::BundleId| {
        let status = json!({ "broker_assignment": "shared", "is_controlled": false, "is_active": true });
        (bundle.to_string(), status)
    };
    let owned: Map<String, Value> = ownership.owned(&broker).iter().map(|(bundle, _)| namespaced(bundle)).collect();
    Ok(Reply::json(&owned))
}

/// For brokers that do not reach the metadata store: whether this one does.
pub async fn contact(State(state): Given) -> Answer {
    match state.service.ownership().reaches_store() {
        true => Ok(Reply::text("ok")),
        false => Err(AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "the metadata store did not answer lately")),
    }
}

async fn health(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    state.service.health().await?;
    Ok(Reply::text("ok"))
}

async fn version(State(state): Given, _call: Call) -> Answer {
    Ok(Reply::text(state.service.config().version.clone()))
}

async fn leader(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let leader = state.service.ownership().leader();
    let leader = leader.ok_or_else(|| AdminError::not_found("No broker leads for the moment"))?;
    let url = leader.web_url.as_ref().or(leader.web_url_tls.as_ref());
    Ok(Reply::json(&json!({ "serviceUrl": url, "brokerId": leader.id })))
}

async fn internal(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&json!({ "metadataStoreUrl": "", "configurationMetadataStoreUrl": "", "ledgersRootPath": "" })))
}

/// Settings that can change without a restart.
async fn names(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let live = TABLE.iter().filter(|setting| setting.reloadable);
    Ok(Reply::json(&live.map(|setting| setting.name).collect::<Vec<_>>()))
}

/// Those that were changed.
async fn values(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&state.service.live_settings().await?))
}

async fn runtime(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let shown = |setting: &meridian_settings::Setting, value: &str| match setting.kind {
        Kind::Secret if !value.is_empty() => Value::from("(not shown)"),
        _ => Value::from(value),
    };
    let rows: Map<String, Value> = TABLE
        .iter()
        .zip(state.settings().texts())
        .map(|(setting, value)| (setting.name.to_owned(), shown(setting, value)))
        .collect();
    Ok(Reply::json(&rows))
}

async fn update(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let (key, value) = (call.name("key"), call.name("value"));
    state.live.set(&state.service, &key, &value).await?;
    tracing::info!(key, value, by = call.principal.acting(), "setting changed");
    Ok(Reply::empty(StatusCode::OK))
}

async fn reset(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let key = call.name("key");
    state.live.remove(&state.service, &key).await?;
    tracing::info!(key, by = call.principal.acting(), "setting given back to the configuration");
    Ok(Reply::empty(StatusCode::OK))
}
