//! Tenants.

use crate::call::Call;
use crate::error::AdminError;
use crate::explain;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_policy::TenantInfo;
use meridian_policy::quota::Place;
use serde_json::Value;

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/admin/v2/tenants", get(list))
        .route("/admin/v2/tenants/{tenant}", get(show).put(create).post(update).delete(delete))
}

async fn list(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&state.registry().tenants()))
}

async fn show(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let tenant = state.registry().tenant(call.param("tenant"));
    let tenant = tenant.ok_or_else(|| AdminError::not_found("Tenant does not exist"))?;
    Ok(Reply::json(&*tenant))
}

/// What the body says, checked as Pulsar checks it.
fn info(state: &AdminState, call: &Call) -> Result<TenantInfo, AdminError> {
    let body = call.value()?;
    if body.is_null() {
        return Err(AdminError::invalid("TenantInfo is null"));
    }
    let info: TenantInfo = explain::read("", &body)?;
    if info.admin_roles.iter().any(|role| role.trim() != role || role.is_empty()) {
        return Err(AdminError::invalid("AdminRoles contains whitespace in the beginning or end."));
    }
    if body.get("allowedClusters").is_none_or(Value::is_null) {
        return Err(AdminError::invalid("Clusters cannot be null"));
    }
    if info.allowed_clusters.is_empty() || info.allowed_clusters.contains("") {
        return Err(AdminError::invalid("Clusters cannot be empty or blank"));
    }
    match info.allowed_clusters.iter().find(|name| state.registry().cluster(name).is_none()) {
        Some(_) => Err(AdminError::invalid("Clusters do not exist")),
        None => Ok(info),
    }
}

async fn create(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let name = call.param("tenant");
    TenantInfo::check_name(name).map_err(|error| crate::call::unfit("Tenant", &error))?;
    let info = info(&state, &call)?;
    state.registry().create_tenant(name, &info).await?;
    tracing::info!(tenant = name, by = call.principal.acting(), "tenant created");
    Ok(Reply::done())
}

async fn update(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let name = call.param("tenant");
    let info = info(&state, &call)?;
    if state.registry().tenant(name).is_none() {
        return Err(AdminError::not_found(format!("Tenant {name} not found")));
    }
    let change = |stored: &mut TenantInfo| {
        *stored = info.clone();
        Ok::<(), AdminError>(())
    };
    state.registry().update_tenant(name, change).await?;
    tracing::info!(tenant = name, by = call.principal.acting(), "tenant changed");
    Ok(Reply::done())
}

async fn delete(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let name = call.param("tenant");
    if call.flag("force") {
        for namespace in state.registry().namespaces(name).unwrap_or_default() {
            state.service.delete_namespace(&namespace, true).await?;
        }
    }
    state.registry().delete_tenant(name).await.map_err(|error| match error {
        meridian_registry::RegistryError::InUse { .. } => {
            AdminError::conflict("The tenant still has active namespaces")
        }
        meridian_registry::RegistryError::NotFound { .. } => AdminError::not_found("Tenant doesn't exist"),
        error => error.into(),
    })?;
    state.forget_limits(&call.principal, &Place::Tenant(name.to_owned())).await?;
    tracing::info!(tenant = name, by = call.principal.acting(), "tenant deleted");
    Ok(Reply::done())
}
