//! Namespaces: creating, deleting, listing, and what is done to all their topics.

mod permissions;
pub mod policies;
mod replication;

use replication::check_trusted;
pub use replication::{check_clusters, check_no_peers};

use crate::bundles;
use crate::call::Call;
use crate::error::AdminError;
use crate::quotas::{check_binding, check_release};
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use meridian_broker::ListDomain;
use meridian_broker::service::{Deed, is_system_topic};
use meridian_door::{Action, Scope};
use meridian_policy::Policies;
use meridian_policy::quota::Place;
use meridian_types::{NamespaceName, TopicName};

const PATH: &str = "/admin/v2/namespaces/{tenant}/{namespace}";

pub fn routes() -> Router<AdminState> {
    let under = |rest: &str| format!("{PATH}{rest}");
    Router::new()
        .route("/admin/v2/namespaces/{tenant}", get(list))
        .route(PATH, get(show).put(create).delete(delete))
        .route(&under("/topics"), get(topics))
        .route(&under("/clearBacklog"), post(clear_backlog))
        .route(&under("/clearBacklog/{subscription}"), post(clear_backlog))
        .route(&under("/{bundle}/clearBacklog"), post(clear_backlog))
        .route(&under("/{bundle}/clearBacklog/{subscription}"), post(clear_backlog))
        .route(&under("/unsubscribe/{subscription}"), post(unsubscribe))
        .route(&under("/{bundle}/unsubscribe/{subscription}"), post(unsubscribe))
        .merge(permissions::routes())
        .merge(policies::routes())
}

async fn list(State(state): Given, call: Call) -> Answer {
    let tenant = call.param("tenant");
    state.allow(&call, Action::Administer, &Scope::Tenant(tenant))?;
    let namespaces = state.registry().namespaces(tenant);
    let namespaces = namespaces.ok_or_else(|| AdminError::not_found("Tenant not found"))?;
    Ok(Reply::json(&namespaces.iter().map(NamespaceName::as_str).collect::<Vec<_>>()))
}

async fn show(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    match state.registry().namespace(&namespace) {
        Some(policies) => {
            let mut shown = (*policies).clone();
            // Clients read what is unset as false.
            shown.is_allow_auto_update_schema.get_or_insert(true);
            Ok(Reply::json(&shown))
        }
        None => Err(AdminError::not_found("Namespace does not exist")),
    }
}

async fn create(State(state): Given, call: Call) -> Answer {
    let namespace = call.namespace()?;
    state.allow(&call, Action::Administer, &Scope::Tenant(namespace.tenant()))?;
    let mut policies = call.json::<Policies>()?;
    policies.deleted = false;
    policies.check().map_err(|error| AdminError::bad_request(error.to_string()))?;
    if policies.bookie_affinity_group.is_some() {
        return Err(policies::no_affinity());
    }
    if let Some(group) = policies.resource_group_name.as_deref().filter(|group| !group.is_empty()) {
        check_binding(&state, &call, group)?;
    }
    if !policies.replication_clusters.is_empty() {
        check_trusted(&state, namespace.tenant(), &policies.replication_clusters)?;
        check_clusters(&state, &namespace, &policies.replication_clusters)?;
    }
    state.service.check_namespace_quota(&namespace)?;
    state.registry().create_namespace(&namespace, policies).await?;
    tracing::info!(%namespace, by = call.principal.acting(), "namespace created");
    Ok(Reply::done())
}

async fn delete(State(state): Given, call: Call) -> Answer {
    let namespace = call.namespace()?;
    state.allow(&call, Action::Administer, &Scope::Tenant(namespace.tenant()))?;
    if state.registry().namespace(&namespace).is_none() {
        return Err(AdminError::not_found(format!("Namespace {namespace} does not exist.")));
    }
    check_release(&state, &call.principal, &namespace)?;
    state.service.delete_namespace(&namespace, call.flag("force")).await?;
    state.forget_limits(&call.principal, &Place::Namespace(namespace.clone())).await?;
    tracing::info!(%namespace, by = call.principal.acting(), force = call.flag("force"), "namespace deleted");
    Ok(Reply::done())
}

async fn topics(State(state): Given, call: Call) -> Answer {
    let namespace = call.namespace()?;
    state.allow(&call, Action::Lookup, &Scope::Namespace(&namespace))?;
    state.require_namespace(&namespace)?;
    let domain = match call.query("mode") {
        None | Some("PERSISTENT") => ListDomain::Persistent,
        Some("NON_PERSISTENT") => ListDomain::NonPersistent,
        Some("ALL") => ListDomain::All,
        Some(mode) => {
            let text = format!("mode={mode}: expected PERSISTENT, NON_PERSISTENT or ALL");
            return Err(AdminError::not_found(text));
        }
    };
    let topics = listed(&state, &namespace, domain, call.flag("includeSystemTopic")).await?;
    Ok(Reply::json(&topics.iter().map(TopicName::as_str).collect::<Vec<_>>()))
}

/// Topics of a namespace, in order; a partitioned one by its partitions.
pub async fn listed(
    state: &AdminState,
    namespace: &NamespaceName,
    domain: ListDomain,
    with_system: bool,
) -> Result<Vec<TopicName>, AdminError> {
    let mut topics = state.service.list_everywhere(namespace, domain).await?;
    topics.retain(|topic| with_system || !is_system_topic(topic));
    Ok(topics)
}

/// Topics of the namespace, and of the bundle if the path names one.
async fn meant(
    state: &AdminState,
    call: &Call,
    namespace: &NamespaceName,
    domain: ListDomain,
) -> Result<Vec<TopicName>, AdminError> {
    let named = bundles::named(state, call, namespace)?;
    let mut topics = listed(state, namespace, domain, false).await?;
    topics.retain(|topic| bundles::within(state, named.as_deref(), topic));
    Ok(topics)
}

/// Skips everything, on all subscriptions or on one, wherever it exists.
async fn clear_backlog(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let topics = meant(&state, &call, &namespace, ListDomain::Persistent).await?;
    let wanted = call.name("subscription");
    let name = Some(wanted.as_str()).filter(|name| !name.is_empty());
    state.service.at_subscription(&topics, name, Deed::Skip).await?;
    Ok(Reply::done())
}

/// Deletes a subscription wherever it exists.
async fn unsubscribe(State(state): Given, call: Call) -> Answer {
    let namespace = state.administered_namespace(&call)?;
    let topics = meant(&state, &call, &namespace, ListDomain::All).await?;
    state.service.at_subscription(&topics, Some(&call.name("subscription")), Deed::Delete { force: false }).await?;
    Ok(Reply::done())
}
