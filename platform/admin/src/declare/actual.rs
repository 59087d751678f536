//! What is, in a document's words.

use super::{Apply, forward};
use crate::error::AdminError;
use crate::schemas;
use crate::state::AdminState;
use meridian_broker::service::Deed;
use meridian_declare::{Actual, Facet, Group, Object, ObjectId, REGION_FIELDS, canonical_schema};
use meridian_policy::quota::Place;
use meridian_policy::schema::{NAMESPACE, TOPIC};
use meridian_policy::{ClusterData, TenantInfo};
use meridian_types::{NamespaceName, TopicName};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Objects that are read at once.
const AT_ONCE: usize = 16;

/// What has to be looked up in storage, because the document speaks of it.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Without limits the region itself is there only for those who name it.
    named: bool,
    properties: bool,
    schema: bool,
}

const EVERYTHING: Asked = Asked { named: true, properties: true, schema: true };

/// Everything that a document names, and what its owner owns beside.
pub(super) async fn of_document(apply: &Apply, owned: &BTreeSet<ObjectId>) -> Result<Actual, AdminError> {
    let document = &apply.document;
    let mut wanted: Vec<(ObjectId, Asked)> = Vec::with_capacity(document.objects.len());
    for (id, object) in &document.objects {
        let properties = object.groups.contains(&Group::Properties);
        wanted.push((id.clone(), Asked { named: true, properties, schema: object.field("schema").is_some() }));
    }
    let beside = owned.iter().filter(|id| !document.objects.contains_key(id));
    wanted.extend(beside.map(|id| (id.clone(), Asked::default())));
    let mut actual = Actual::new();
    let mut tasks = JoinSet::new();
    let share = wanted.len().div_ceil(AT_ONCE).max(1);
    let wanted = Arc::new(wanted);
    for first in (0..wanted.len()).step_by(share) {
        let (state, wanted, passing) = (apply.state.clone(), wanted.clone(), apply.passing.clone());
        tasks.spawn(async move {
            let mut found = Vec::new();
            for (id, asked) in wanted.iter().skip(first).take(share) {
                let here = one(&state, id, *asked).await;
                let object = match here.as_ref().err().and_then(|error| passing.place(error)) {
                    Some(url) => forward::object(&passing, &url, id).await?,
                    None => here?,
                };
                found.extend(object.map(|object| (id.clone(), object)));
            }
            Ok::<_, AdminError>(found)
        });
    }
    while let Some(found) = tasks.join_next().await {
        let found = found.map_err(|error| AdminError::invalid(format!("reading ended: {error}")))?;
        actual.extend(found?);
    }
    Ok(actual)
}

/// One object with everything that is known of it.
pub(super) async fn of_one(state: &AdminState, id: &ObjectId) -> Result<Option<Object>, AdminError> {
    one(state, id, EVERYTHING).await
}

async fn one(state: &AdminState, id: &ObjectId, asked: Asked) -> Result<Option<Object>, AdminError> {
    let found = match id {
        ObjectId::Cluster => cluster(state, asked),
        ObjectId::Region(name) => state.registry().cluster(name).map(|data| region(&data)),
        ObjectId::Tenant(name) => state.registry().tenant(name).map(|info| tenant(&info)),
        ObjectId::Namespace(name) => namespace(state, name),
        ObjectId::Topic(name) => topic(state, name, asked).await?,
        ObjectId::Subscription(topic, name) => subscription(state, topic, name).await?,
    };
    Ok(found.map(|object| with_quotas(state, id, object)))
}

/// The region itself is always there; what it has are limits.
fn cluster(state: &AdminState, asked: Asked) -> Option<Object> {
    let limited = || state.service.quotas().book().get(&Place::Cluster).is_some_and(|set| !set.operator.0.is_empty());
    (asked.named || limited()).then(Object::default)
}

/// An object with its limits.
fn with_quotas(state: &AdminState, id: &ObjectId, mut object: Object) -> Object {
    let Some(place) = id.quota_place() else { return object };
    let set = state.service.quotas().book().get(&place);
    for (group, layer) in id.quota_groups() {
        object.groups.insert(*group);
        for (limit, value) in set.iter().flat_map(|set| &set.layer(*layer).0) {
            object.set(Facet::Of(*group, limit.to_string()), json!(value));
        }
    }
    object
}

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn region(data: &ClusterData) -> Object {
    let (mut object, fields) = (Object::default(), shown(data));
    for field in REGION_FIELDS {
        object.set(Facet::Field(field.name), fields.get(field.name).cloned().unwrap_or_default());
    }
    object
}

fn tenant(info: &TenantInfo) -> Object {
    let mut object = Object::default();
    object.set(Facet::Field("adminRoles"), shown(&info.admin_roles));
    object.set(Facet::Field("allowedClusters"), shown(&info.allowed_clusters));
    object
}

fn namespace(state: &AdminState, name: &NamespaceName) -> Option<Object> {
    let policies = state.registry().namespace(name)?;
    let mut object = Object::default();
    object.groups.extend([Group::Policies, Group::Grants, Group::SubscriptionGrants]);
    object.set(Facet::Field("bundles"), shown(&policies.bundles.as_ref().map(|bundles| bundles.num_bundles)));
    for spec in NAMESPACE {
        let value = (spec.read)(&policies, &state.service.config().cluster);
        object.set(Facet::Of(Group::Policies, spec.name.to_owned()), value);
    }
    for (role, permissions) in &policies.auth_policies.namespace_auth {
        object.set(Facet::Of(Group::Grants, role.clone()), permissions_of(permissions));
    }
    for (subscription, roles) in &policies.auth_policies.subscription_auth_roles {
        object.set(Facet::Of(Group::SubscriptionGrants, subscription.clone()), shown(roles));
    }
    let active = state.service.failover().and_then(|failover| failover.state(name));
    object.set(Facet::Field("failover"), shown(&active.map(|known| known.record.active)));
    Some(object)
}

/// Names in the order in which documents are compared.
fn permissions_of(permissions: &impl Serialize) -> Value {
    let mut names: Vec<String> = serde_json::from_value(shown(permissions)).unwrap_or_default();
    names.sort();
    json!(names)
}

async fn topic(state: &AdminState, name: &TopicName, asked: Asked) -> Result<Option<Object>, AdminError> {
    let partitioned = state.registry().partitioned_topic(name);
    if partitioned.as_ref().is_some_and(|topic| topic.deleted) {
        return Ok(None);
    }
    let known = match &partitioned {
        Some(_) => true,
        None if state.registry().namespace(&name.namespace()).is_none() => false,
        None => state.service.topic_exists(name).await?,
    };
    if !known {
        return Ok(None);
    }
    let mut object = Object::default();
    object.groups.extend([Group::Policies, Group::Grants]);
    object.set(Facet::Field("partitions"), json!(partitioned.as_ref().map_or(0, |topic| topic.partitions)));
    if let Some(policies) = state.registry().topic_policies(name) {
        for spec in TOPIC {
            let value = (spec.read)(&policies, &state.service.config().cluster);
            object.set(Facet::Of(Group::Policies, spec.name.to_owned()), value);
        }
    }
    let namespace = state.registry().namespace(&name.namespace()).unwrap_or_default();
    for (role, permissions) in namespace.auth_policies.destination_auth.get(name.as_str()).into_iter().flatten() {
        object.set(Facet::Of(Group::Grants, role.clone()), permissions_of(permissions));
    }
    if asked.properties {
        object.groups.insert(Group::Properties);
        for (label, value) in state.service.topic_properties(name).await? {
            object.set(Facet::Of(Group::Properties, label), json!(value));
        }
    }
    if asked.schema {
        object.set(Facet::Field("schema"), schema(state, name).await?);
    }
    Ok(Some(object))
}

async fn schema(state: &AdminState, topic: &TopicName) -> Result<Value, AdminError> {
    let Some(found) = state.service.schemas().latest(topic).await? else { return Ok(Value::Null) };
    let text = canonical_schema(&schemas::text_of(&found.info));
    Ok(json!({ "type": found.info.kind.name(), "schema": text, "properties": found.info.properties }))
}

/// A subscription is there if every partition has it.
async fn subscription(state: &AdminState, topic: &TopicName, name: &str) -> Result<Option<Object>, AdminError> {
    if state.require_namespace(&topic.namespace()).is_err() || state.require_topic(topic).await.is_err() {
        return Ok(None);
    }
    let found = state.service.at_subscription(&state.parts(topic).await?, Some(name), Deed::Look).await?;
    // There if every partition has it.
    let Some(replicated) = found.into_iter().collect::<Option<Vec<bool>>>() else { return Ok(None) };
    let replicated = replicated.into_iter().all(|one| one);
    let mut object = Object::default();
    object.set(Facet::Field("replicated"), json!(replicated));
    Ok(Some(object))
}
