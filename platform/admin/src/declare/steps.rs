//! One step of a plan against the registry and the service.
//!
//! Invariants: a step may be repeated: what is there already is changed instead of made, what is gone counts as deleted.
//! Failure: what the registry or the service says.

use crate::error::AdminError;
use crate::schemas;
use crate::state::AdminState;
use axum::http::StatusCode;
use meridian_broker::BrokerError;
use meridian_broker::access::Principal;
use meridian_broker::service::Deed;
use meridian_declare::{Action, Change, Facet, Group, Object, ObjectId, Step};
use meridian_policy::quota::{Limit, Quota};
use meridian_policy::schema::{NAMESPACE, TOPIC};
use meridian_policy::{BundlesData, ClusterData, Permission, Policies, TenantInfo, TopicPolicies};
use meridian_registry::RegistryError;
use meridian_types::{NamespaceName, TopicName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A step and all that it is carried out with.
pub(super) struct Doing<'a> {
    pub(super) state: &'a AdminState,
    pub(super) step: &'a Step,
    /// The object as the document says it.
    pub(super) wanted: Option<&'a Object>,
    /// Topics and subscriptions in use are deleted too.
    pub(super) force: bool,
    pub(super) principal: &'a Principal,
}

/// Carries one step out.
pub(super) async fn one(doing: &Doing<'_>) -> Result<(), AdminError> {
    let Doing { state, step, force, principal, .. } = *doing;
    let by = principal.acting();
    let create = step.action == Action::Create;
    let is_limit = |change: &Change| matches!(change.facet, Facet::Of(Group::Quotas | Group::TenantQuotas, _));
    let (limits, changes): (Vec<Change>, Vec<Change>) = step.changes.iter().cloned().partition(is_limit);
    let changes = changes.as_slice();
    let outcome = match (&step.object, step.action) {
        // The region stays; its limits go, as those of all that is deleted.
        (ObjectId::Cluster, _) => Ok(()),
        (_, Action::Update) if changes.is_empty() => Ok(()),
        (ObjectId::Region(name), Action::Delete) => delete_region(state, name).await,
        (ObjectId::Region(name), _) => region(state, name, changes, create).await,
        (ObjectId::Tenant(name), Action::Delete) => Ok(state.registry().delete_tenant(name).await?),
        (ObjectId::Tenant(name), _) => tenant(state, name, changes, create).await,
        (ObjectId::Namespace(name), Action::Delete) => Ok(state.service.delete_namespace(name, force).await?),
        (ObjectId::Namespace(name), _) => namespace(state, name, changes, create).await,
        (ObjectId::Topic(name), Action::Delete) => delete_topic(state, name, force).await,
        (ObjectId::Topic(name), _) => topic(state, name, changes, create, by).await,
        (ObjectId::Subscription(topic, name), Action::Delete) => delete_subscription(state, topic, name, force).await,
        (ObjectId::Subscription(topic, name), _) => subscription(state, topic, name, changes, create).await,
    };
    match outcome {
        Err(error) if step.action == Action::Delete && error.status == StatusCode::NOT_FOUND => {}
        outcome => outcome?,
    }
    match (step.action, step.object.quota_place()) {
        (Action::Delete, Some(place)) => state.forget_limits(principal, &place).await?,
        _ => quotas(doing, &limits).await?,
    }
    tracing::info!(object = %step.object, action = step.action.as_str(), by, "applied");
    Ok(())
}

fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, AdminError> {
    serde_json::from_value(value.clone()).map_err(|error| AdminError::bad_request(error.to_string()))
}

/// A change of a field of that name.
fn field<'a>(changes: &'a [Change], key: &'static str) -> Option<&'a Value> {
    changes.iter().find(|change| change.facet == Facet::Field(key)).map(|change| &change.to)
}

/// Changes of one group: name and new value, `null` = away with it.
fn of_group(changes: &[Change], group: Group) -> impl Iterator<Item = (&str, &Value)> {
    changes.iter().filter_map(move |change| match &change.facet {
        Facet::Of(found, name) if *found == group => Some((name.as_str(), &change.to)),
        _ => None,
    })
}

/// Limits, layer by layer. What an earlier object of that name left behind goes where the document says what is to be.
async fn quotas(doing: &Doing<'_>, changes: &[Change]) -> Result<(), AdminError> {
    let Doing { state, step, wanted, .. } = *doing;
    let Some(place) = step.object.quota_place() else { return Ok(()) };
    for (group, layer) in step.object.quota_groups() {
        let limit = |(name, value): (&str, &Value)| Some((Limit::parse(name)?, value.as_u64()));
        let changed: Vec<_> = of_group(changes, *group).filter_map(limit).collect();
        let anew = step.action == Action::Create && wanted.is_some_and(|object| object.groups.contains(group));
        if changed.is_empty() && !anew {
            continue;
        }
        let change = |quota: &mut Quota| {
            if anew {
                quota.0.clear();
            }
            for (limit, value) in &changed {
                match value {
                    Some(value) => drop(quota.0.insert(*limit, *value)),
                    None => drop(quota.0.remove(limit)),
                }
            }
        };
        state.service.quotas().book().change(&place, *layer, change).await?;
    }
    Ok(())
}

async fn region(state: &AdminState, name: &str, changes: &[Change], create: bool) -> Result<(), AdminError> {
    let over = |stored: &ClusterData| {
        let mut fields = serde_json::to_value(stored).unwrap_or_default();
        for change in changes {
            if let (Facet::Field(key), Some(fields)) = (&change.facet, fields.as_object_mut()) {
                fields.insert((*key).to_owned(), change.to.clone());
            }
        }
        typed::<ClusterData>(&fields)
    };
    if create {
        match state.registry().create_cluster(name, &over(&ClusterData::default())?).await {
            Err(RegistryError::Exists { .. }) => {}
            outcome => return Ok(outcome?),
        }
    }
    let change = |stored: &mut ClusterData| {
        *stored = over(stored)?;
        Ok::<(), AdminError>(())
    };
    state.registry().update_cluster(name, change).await
}

async fn delete_region(state: &AdminState, name: &str) -> Result<(), AdminError> {
    if name == state.service.config().cluster {
        return Err(AdminError::invalid("is this region: its own entry stays"));
    }
    Ok(state.registry().delete_cluster(name).await?)
}

async fn tenant(state: &AdminState, name: &str, changes: &[Change], create: bool) -> Result<(), AdminError> {
    let apply = |info: &mut TenantInfo| {
        if let Some(roles) = field(changes, "adminRoles") {
            info.admin_roles = typed(roles)?;
        }
        if let Some(clusters) = field(changes, "allowedClusters") {
            info.allowed_clusters = typed(clusters)?;
        }
        Ok::<(), AdminError>(())
    };
    if create {
        let own = state.service.config().cluster.clone();
        let mut info = TenantInfo { allowed_clusters: BTreeSet::from([own]), ..TenantInfo::default() };
        apply(&mut info)?;
        match state.registry().create_tenant(name, &info).await {
            Err(RegistryError::Exists { .. }) => {}
            outcome => return Ok(outcome?),
        }
    }
    state.registry().update_tenant(name, apply).await
}

async fn namespace(
    state: &AdminState,
    name: &NamespaceName,
    changes: &[Change],
    create: bool,
) -> Result<(), AdminError> {
    let cluster = &state.service.config().cluster;
    check_roles(state, changes)?;
    let apply = |policies: &mut Policies| {
        for (policy, value) in of_group(changes, Group::Policies) {
            if let Some(spec) = NAMESPACE.iter().find(|spec| spec.name == policy) {
                (spec.write)(policies, cluster, value.clone())?;
            }
        }
        let auth = &mut policies.auth_policies;
        set_each(&mut auth.namespace_auth, of_group(changes, Group::Grants))?;
        set_each(&mut auth.subscription_auth_roles, of_group(changes, Group::SubscriptionGrants))?;
        check_regions(state, name, policies)
    };
    let mut made = false;
    if create {
        let mut policies = Policies { replication_clusters: BTreeSet::from([cluster.clone()]), ..Policies::default() };
        if let Some(count) = field(changes, "bundles").and_then(Value::as_u64) {
            policies.bundles = Some(BundlesData::even(u32::try_from(count).unwrap_or(u32::MAX))?);
        }
        apply(&mut policies)?;
        made = match state.registry().create_namespace(name, policies).await {
            Err(RegistryError::Exists { .. }) => false,
            outcome => outcome.map(|()| true)?,
        };
    }
    if !made {
        state.registry().update_namespace(name, apply).await?;
    }
    match changes.iter().find(|change| change.facet == Facet::Field("failover")) {
        Some(change) => failover(state, name, change).await,
        None => Ok(()),
    }
}

/// What is granted is granted to roles, or to patterns that mean what they look like.
fn check_roles(state: &AdminState, changes: &[Change]) -> Result<(), AdminError> {
    let granted = of_group(changes, Group::Grants).filter(|(_, actions)| !actions.is_null());
    granted.map(|(role, _)| role).try_for_each(|role| state.check_granted(role))
}

/// Sets or takes away by name.
fn set_each<'a, T: DeserializeOwned>(
    stored: &mut BTreeMap<String, T>,
    changes: impl Iterator<Item = (&'a str, &'a Value)>,
) -> Result<(), AdminError> {
    for (name, value) in changes {
        match value {
            Value::Null => drop(stored.remove(name)),
            value => drop(stored.insert(name.to_owned(), typed(value)?)),
        }
    }
    Ok(())
}

/// Where data goes to is the tenant's to say, and regions of one namespace are not peers that answer for each other.
fn check_regions(state: &AdminState, name: &NamespaceName, policies: &Policies) -> Result<(), AdminError> {
    let registry = state.registry();
    let tenant = registry.tenant(name.tenant()).ok_or_else(|| AdminError::not_found("Tenant does not exist"))?;
    let (regions, allowed) = (&policies.replication_clusters, &policies.allowed_clusters);
    for region in regions.union(allowed) {
        if registry.cluster(region).is_none() {
            return Err(AdminError::forbidden(format!("Invalid cluster id: {region}")));
        }
        // A namespace that stays in its own region asks nobody.
        let alone = regions.len() == 1 && *region == state.service.config().cluster;
        if !alone && !tenant.allowed_clusters.contains(region) {
            let text = format!("Cluster [{region}] is not in the list of allowed clusters list for tenant");
            return Err(AdminError::forbidden(format!("{text} [{}]", name.tenant())));
        }
    }
    match regions.iter().find(|region| !allowed.is_empty() && !allowed.contains(*region)) {
        Some(region) => Err(AdminError::bad_request(format!(
            "policies.replication holds {region}, policies.allowedClusters does not"
        ))),
        None => crate::namespaces::check_no_peers(state, regions),
    }
}

async fn failover(state: &AdminState, name: &NamespaceName, change: &Change) -> Result<(), AdminError> {
    let failover = state.service.failover().cloned();
    let failover =
        failover.ok_or_else(|| AdminError::invalid("failover: this region has no links to other regions"))?;
    let to = change.to.as_str().unwrap_or_default();
    if change.from.is_null() {
        failover.manage(name, to).await?;
    } else {
        failover.switch(name, to).await?;
    }
    Ok(())
}

async fn topic(
    state: &AdminState,
    name: &TopicName,
    changes: &[Change],
    create: bool,
    by: Option<&str>,
) -> Result<(), AdminError> {
    let count = field(changes, "partitions").and_then(Value::as_u64).unwrap_or(0);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut properties_set = false;
    if create {
        let mut properties = BTreeMap::new();
        set_each(&mut properties, of_group(changes, Group::Properties))?;
        let made = match count {
            0 => state.service.create_topic(name, properties).await.map(drop),
            count => state.service.create_partitioned_topic(name, count, properties).await,
        };
        match made {
            Err(BrokerError::AlreadyExists(_)) => {}
            outcome => {
                outcome?;
                properties_set = true;
            }
        }
    } else if count > 0 {
        state.service.grow_partitioned_topic(name, count).await?;
    }
    if !properties_set && of_group(changes, Group::Properties).next().is_some() {
        let mut properties = state.service.topic_properties(name).await?;
        set_each(&mut properties, of_group(changes, Group::Properties))?;
        state.service.set_topic_properties(name, properties).await?;
    }
    topic_policies(state, name, changes).await?;
    topic_grants(state, name, changes).await?;
    match field(changes, "schema").filter(|schema| !schema.is_null()) {
        Some(schema) => {
            let info = schemas::from_document(schema)?;
            state.service.register_schema(name, info, by).await.map(drop)?;
            Ok(())
        }
        None => Ok(()),
    }
}

async fn topic_policies(state: &AdminState, name: &TopicName, changes: &[Change]) -> Result<(), AdminError> {
    if of_group(changes, Group::Policies).next().is_none() {
        return Ok(());
    }
    let cluster = &state.service.config().cluster;
    let regions = of_group(changes, Group::Policies).find(|(policy, _)| *policy == "replication");
    if let Some((_, regions)) = regions.filter(|(_, regions)| !regions.is_null()) {
        crate::namespaces::check_clusters(state, &name.namespace(), &typed(regions)?)?;
    }
    let change = |policies: &mut TopicPolicies| {
        for (policy, value) in of_group(changes, Group::Policies) {
            if let Some(spec) = TOPIC.iter().find(|spec| spec.name == policy) {
                (spec.write)(policies, cluster, value.clone())?;
            }
        }
        check_together(policies)
    };
    state.registry().update_topic_policies(name, change).await
}

/// What policies of a topic say together.
fn check_together(policies: &TopicPolicies) -> Result<(), AdminError> {
    if let Some(persistence) = &policies.persistence {
        persistence.check()?;
    }
    let retention = policies.retention.unwrap_or_default();
    retention.check()?;
    Ok(policies.backlog_quota_map.values().try_for_each(|quota| retention.check_against(quota))?)
}

async fn topic_grants(state: &AdminState, name: &TopicName, changes: &[Change]) -> Result<(), AdminError> {
    if of_group(changes, Group::Grants).next().is_none() {
        return Ok(());
    }
    check_roles(state, changes)?;
    let change = |policies: &mut Policies| {
        let all = &mut policies.auth_policies.destination_auth;
        let mut own: BTreeMap<String, BTreeSet<Permission>> = all.remove(name.as_str()).unwrap_or_default();
        set_each(&mut own, of_group(changes, Group::Grants))?;
        if !own.is_empty() {
            all.insert(name.as_str().to_owned(), own);
        }
        Ok::<(), AdminError>(())
    };
    state.registry().update_namespace(&name.namespace(), change).await
}

async fn delete_topic(state: &AdminState, name: &TopicName, force: bool) -> Result<(), AdminError> {
    let outcome = match state.registry().partitions(name) {
        Some(_) => state.service.delete_partitioned_topic(name, force).await,
        None => state.service.delete_topic_everywhere(name, force).await,
    };
    match outcome.map_err(AdminError::from) {
        Err(error) if error.status == StatusCode::NOT_FOUND => {}
        outcome => outcome?,
    }
    let named = state.registry().namespace(&name.namespace());
    if named.is_some_and(|policies| policies.auth_policies.destination_auth.contains_key(name.as_str())) {
        // A later topic of that name is somebody else's.
        let change = |policies: &mut Policies| {
            policies.auth_policies.destination_auth.remove(name.as_str());
            Ok::<(), AdminError>(())
        };
        state.registry().update_namespace(&name.namespace(), change).await?;
    }
    Ok(())
}

async fn subscription(
    state: &AdminState,
    topic: &TopicName,
    name: &str,
    changes: &[Change],
    create: bool,
) -> Result<(), AdminError> {
    let checked = state.service.check_subscription_name(name);
    checked.map_err(|error| AdminError::invalid(error.to_string()))?;
    let replicated = field(changes, "replicated").and_then(Value::as_bool);
    let earliest = field(changes, "position").and_then(Value::as_str) == Some("earliest");
    let deed = match (create, replicated) {
        (true, _) => Deed::Ensure { earliest, replicated },
        (false, Some(replicated)) => Deed::Replicate(replicated),
        (false, None) => return Ok(()),
    };
    state.service.at_subscription(&state.parts(topic).await?, Some(name), deed).await?;
    Ok(())
}

async fn delete_subscription(state: &AdminState, topic: &TopicName, name: &str, force: bool) -> Result<(), AdminError> {
    state.service.at_subscription(&state.parts(topic).await?, Some(name), Deed::Delete { force }).await?;
    Ok(())
}
