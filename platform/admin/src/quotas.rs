//! Quotas, resource groups, and what tenants used.
//!
//! A place has two layers: super users set the operator's (or, with `layer=tenant`, the tenant's), administrators of a
//! tenant the tenant's on their namespaces and topics. The smaller value counts, so nobody lifts an operator's limit.

use crate::call::Call;
use crate::error::AdminError;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get};
use meridian_broker::access::Principal;
use meridian_door::{Action, Caller, Scope};
use meridian_policy::quota::{Layer, Level, Limit, Place, Quota, Quotas};
use meridian_quotas::QuotaError;
use meridian_quotas::usage::{HOUR_MS, Period, Usage, by_period};
use meridian_types::{Classify, ErrorClass, NamespaceName, TopicName};
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const AT: &str = "/admin/v2/meridian/quotas";
const NO_SUCH_GROUP: &str = "ResourceGroup does not exist";
/// Hours of usage that are shown if no time is named.
const DEFAULT_HOURS: u64 = 24;
/// Fields of Pulsar's resource groups and the limits that they are here.
const GROUP_FIELDS: [(&str, Limit); 4] = [
    ("publishRateInMsgs", Limit::PublishMessagesPerSecond),
    ("publishRateInBytes", Limit::PublishBytesPerSecond),
    ("dispatchRateInMsgs", Limit::DispatchMessagesPerSecond),
    ("dispatchRateInBytes", Limit::DispatchBytesPerSecond),
];

impl From<QuotaError> for AdminError {
    fn from(error: QuotaError) -> Self {
        let status = match (&error, error.class()) {
            (QuotaError::Policy(_), _) => StatusCode::PRECONDITION_FAILED,
            (QuotaError::Busy(_), _) => StatusCode::CONFLICT,
            (_, ErrorClass::Corrupt) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

pub fn routes() -> Router<AdminState> {
    let place = || -> MethodRouter<AdminState> { get(show).put(set).post(set).delete(unset) };
    Router::new()
        .route(AT, get(list))
        .route(&format!("{AT}/cluster"), place())
        .route(&format!("{AT}/tenants/{{tenant}}"), place())
        .route(&format!("{AT}/namespaces/{{tenant}}/{{namespace}}"), place())
        .route(&format!("{AT}/topics/{{domain}}/{{tenant}}/{{namespace}}/{{topic}}"), place())
        .route("/admin/v2/meridian/usage/tenants/{tenant}", get(usage))
        .route("/admin/v2/resourcegroups", get(groups))
        .route("/admin/v2/resourcegroups/{group}", get(group).put(set_group).post(set_group).delete(delete_group))
}

/// The place of the path.
fn place_of(call: &Call) -> Result<Place, AdminError> {
    let tenant = call.param("tenant");
    if tenant.is_empty() {
        return Ok(Place::Cluster);
    }
    if call.param("namespace").is_empty() {
        return Ok(Place::Tenant(tenant.to_owned()));
    }
    if call.param("topic").is_empty() {
        return Ok(Place::Namespace(call.namespace()?));
    }
    Ok(Place::Topic(call.topic()?.base()))
}

/// What the place names exists; a topic may come later.
fn require(state: &AdminState, place: &Place) -> Result<(), AdminError> {
    match place {
        Place::Tenant(name) if state.registry().tenant(name).is_none() => {
            Err(AdminError::not_found("Tenant does not exist"))
        }
        Place::Namespace(name) => state.require_namespace(name),
        Place::Topic(name) => state.require_namespace(&name.namespace()),
        _ => Ok(()),
    }
}

fn is_operator(state: &AdminState, call: &Call) -> bool {
    let principal = &call.principal;
    let caller = Caller { role: principal.role.as_deref(), original_role: principal.original.as_deref() };
    state.service.access().door.authorize(caller, Action::Operate, &Scope::Cluster).is_ok()
}

/// Whether the caller may look at a place: its tenant's administrators and super users.
fn may_look(state: &AdminState, call: &Call, place: &Place) -> Result<(), AdminError> {
    match place.tenant() {
        None => state.allow_operator(call),
        Some(tenant) => state.allow(call, Action::Administer, &Scope::Tenant(tenant)),
    }
}

/// The layer that the caller sets.
fn layer_of(state: &AdminState, call: &Call, place: &Place) -> Result<Layer, AdminError> {
    if is_operator(state, call) {
        return match call.query("layer") {
            None | Some("operator") => Ok(Layer::Operator),
            Some("tenant") => Ok(Layer::Tenant),
            Some(other) => Err(AdminError::bad_request(format!("layer={other}: expected operator or tenant"))),
        };
    }
    may_look(state, call, place)?;
    let above = matches!(place.level(), Level::Cluster | Level::Tenant | Level::Group);
    if above || call.query("layer") == Some("operator") {
        let text =
            format!("limits of {place} are set by super users; a tenant sets those of its namespaces and topics");
        return Err(AdminError::forbidden(text));
    }
    Ok(Layer::Tenant)
}

fn document(quotas: Option<&Quotas>) -> Value {
    let empty = Quotas::default();
    let quotas = quotas.unwrap_or(&empty);
    json!({ "operator": quotas.operator, "tenant": quotas.tenant })
}

/// What is set at the place that the path of a call names (from behind `/admin/v2/`); `null` = nothing.
pub(crate) fn shown_at(state: &AdminState, path: &str) -> Value {
    let parts: Vec<&str> = path.split('/').collect();
    let place = match parts.as_slice() {
        ["resourcegroups", name] => Some(Place::Group((*name).to_owned())),
        [_, _, "cluster"] => Some(Place::Cluster),
        [_, _, "tenants", tenant] => Some(Place::Tenant((*tenant).to_owned())),
        [_, _, "namespaces", tenant, namespace] => {
            NamespaceName::parse(&format!("{tenant}/{namespace}")).ok().map(Place::Namespace)
        }
        [_, _, "topics", domain, tenant, namespace, rest @ ..] => {
            let name = TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{}", rest.join("/")));
            name.ok().map(|name| Place::Topic(name.base()))
        }
        _ => None,
    };
    let found = place.and_then(|place| state.service.quotas().book().get(&place));
    found.map_or(Value::Null, |quotas| document(Some(&quotas)))
}

/// What is used of what can be counted at any moment.
async fn used(state: &AdminState, place: &Place) -> Result<Value, AdminError> {
    let quotas = state.service.quotas();
    let (stored, backlog) = quotas.bytes_at(&state.service, place);
    let mut used = Map::new();
    used.insert(Limit::StoredBytes.to_string(), stored.into());
    used.insert(Limit::BacklogBytes.to_string(), backlog.into());
    for limit in [Limit::Producers, Limit::Consumers, Limit::Connections] {
        if limit.fits(place.level()) {
            used.insert(limit.to_string(), quotas.counted(limit, place).into());
        }
    }
    if Limit::Topics.fits(place.level()) {
        used.insert(Limit::Topics.to_string(), state.service.topics_of(place).await?.into());
    }
    Ok(Value::Object(used))
}

/// Every limit that binds a place, with its value and where it is set.
fn effective(state: &AdminState, place: &Place) -> Value {
    let mut way = vec![Place::Cluster];
    way.extend(place.tenant().map(|tenant| Place::Tenant(tenant.to_owned())));
    if let Place::Topic(name) = place {
        way.push(Place::Namespace(name.namespace()));
    }
    if !way.contains(place) {
        way.push(place.clone());
    }
    let bounds = Limit::ALL.into_iter().filter_map(|limit| state.service.quotas().book().bound(limit, &way));
    let shown = bounds.map(|bound| {
        let set = json!({ "value": bound.value, "place": bound.place.to_string(), "layer": bound.layer });
        (bound.limit.to_string(), set)
    });
    Value::Object(shown.collect())
}

async fn list(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let all = state.service.quotas().book().all();
    let all = all.iter().map(|(place, quotas)| {
        let mut document = document(Some(quotas));
        document["level"] = place.level().word().into();
        document["place"] = place.to_string().into();
        document
    });
    Ok(Reply::json(&all.collect::<Vec<_>>()))
}

async fn show(State(state): Given, call: Call) -> Answer {
    let place = place_of(&call)?;
    may_look(&state, &call, &place)?;
    require(&state, &place)?;
    let mut document = document(state.service.quotas().book().get(&place).as_deref());
    document["effective"] = effective(&state, &place);
    document["used"] = used(&state, &place).await?;
    Ok(Reply::json(&document))
}

async fn set(State(state): Given, call: Call) -> Answer {
    let place = place_of(&call)?;
    let layer = layer_of(&state, &call, &place)?;
    require(&state, &place)?;
    let quota = Quota::read(&call.value()?, place.level())?;
    state.service.quotas().book().set(&place, layer, &quota).await?;
    tracing::info!(%place, ?layer, by = call.principal.acting(), "quota set");
    Ok(Reply::done())
}

async fn unset(State(state): Given, call: Call) -> Answer {
    let place = place_of(&call)?;
    let layer = layer_of(&state, &call, &place)?;
    state.service.quotas().book().set(&place, layer, &Quota::default()).await?;
    tracing::info!(%place, ?layer, by = call.principal.acting(), "quota unset");
    Ok(Reply::done())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// From when to when, and how it is cut.
fn period_of(call: &Call) -> Result<(Period, u64, u64), AdminError> {
    let word = call.query("period").unwrap_or("hour");
    let period = Period::parse(word);
    let period = period.ok_or_else(|| AdminError::bad_request(format!("period={word}: expected hour or day")))?;
    let time = |name: &str, default: u64| match call.query(name) {
        None => Ok(default),
        Some(text) => {
            text.parse().map_err(|_| AdminError::bad_request(format!("{name}={text}: expected ms since 1970")))
        }
    };
    let from_ms = time("from", now_ms().saturating_sub(DEFAULT_HOURS * HOUR_MS))?;
    Ok((period, from_ms, time("to", now_ms() + HOUR_MS)?))
}

async fn usage(State(state): Given, call: Call) -> Answer {
    let tenant = call.param("tenant").to_owned();
    state.allow(&call, Action::Administer, &Scope::Tenant(&tenant))?;
    let (period, from_ms, to_ms) = period_of(&call)?;
    let quotas = state.service.quotas();
    quotas.flush(&state.service).await;
    let hours = quotas.book().usage(&tenant, from_ms, to_ms).await?;
    let mut total = Usage::default();
    hours.values().for_each(|one| total.add(one, false));
    let periods: Vec<Value> = by_period(&hours, period)
        .into_iter()
        .map(|(from_ms, usage)| {
            let mut shown = serde_json::to_value(usage).unwrap_or_default();
            shown["from_ms"] = from_ms.into();
            shown["to_ms"] = (from_ms + period.hours() * HOUR_MS).into();
            shown
        })
        .collect();
    Ok(Reply::json(&json!({ "tenant": tenant, "total": total, "periods": periods })))
}

fn group_document(quotas: &Quotas) -> Value {
    let fields = GROUP_FIELDS.map(|(name, limit)| (name.to_owned(), quotas.operator.get(limit).into()));
    Value::Object(fields.into_iter().collect())
}

fn group_of(call: &Call) -> Result<Place, AdminError> {
    let name = call.name("group");
    match name.is_empty() || name.contains('/') {
        true => Err(AdminError::invalid(format!("'{name}' is no name of a resource group"))),
        false => Ok(Place::Group(name)),
    }
}

/// A namespace may be bound to a group: it is there, and who binds is the operator, whose limits they are.
pub(crate) fn check_binding(state: &AdminState, call: &Call, group: &str) -> Result<(), AdminError> {
    state.allow_operator(call)?;
    match state.service.quotas().book().get(&Place::Group(group.to_owned())) {
        Some(_) => Ok(()),
        None => Err(AdminError::invalid(NO_SUCH_GROUP)),
    }
}

/// A namespace may be deleted: who would leave a group's limits by that is the operator.
pub(crate) fn check_release(
    state: &AdminState,
    principal: &Principal,
    namespace: &NamespaceName,
) -> Result<(), AdminError> {
    let policies = state.registry().namespace(namespace);
    match policies.as_ref().and_then(|policies| policies.resource_group_name.as_deref()) {
        None | Some("") => Ok(()),
        Some(group) => state.allow_operating(principal).map_err(|error| {
            let text =
                format!("namespace {namespace} is bound to resource group {group} and is deleted by super users");
            AdminError::new(error.status, format!("{text}: {}", error.reason))
        }),
    }
}

async fn groups(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let all = state.service.quotas().book().all();
    let names = all.keys().filter_map(|place| match place {
        Place::Group(name) => Some(name.clone()),
        _ => None,
    });
    Ok(Reply::json(&names.collect::<Vec<_>>()))
}

async fn group(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    match state.service.quotas().book().get(&group_of(&call)?) {
        Some(quotas) => Ok(Reply::json(&group_document(&quotas))),
        None => Err(AdminError::not_found(NO_SUCH_GROUP)),
    }
}

/// Pulsar's fields; what is not named stays as it is, a rate that is not positive is no limit.
async fn set_group(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let place = group_of(&call)?;
    let body = call.value()?;
    let book = state.service.quotas().book();
    let mut quota = book.get(&place).map(|quotas| quotas.operator.clone()).unwrap_or_default();
    for (name, limit) in GROUP_FIELDS {
        match body.get(name).map(|value| (value.as_i64(), value)) {
            None => {}
            Some((Some(rate), _)) if rate > 0 => drop(quota.0.insert(limit, rate.unsigned_abs())),
            Some((Some(_), _) | (None, Value::Null)) => drop(quota.0.remove(&limit)),
            Some((None, value)) => {
                return Err(AdminError::bad_request(format!("{name}={value}: expected a whole number")));
            }
        }
    }
    if quota.0.is_empty() {
        return Err(AdminError::invalid("a resource group has at least one rate"));
    }
    book.set(&place, Layer::Operator, &quota).await?;
    tracing::info!(%place, by = call.principal.acting(), "resource group set");
    Ok(Reply::done())
}

async fn delete_group(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    let place = group_of(&call)?;
    if state.service.quotas().book().get(&place).is_none() {
        return Err(AdminError::not_found(NO_SUCH_GROUP));
    }
    let name = call.name("group");
    let all = state.registry().all_namespaces();
    let user =
        all.iter().find(|namespace| state.registry().resource_group(namespace).as_deref() == Some(name.as_str()));
    if let Some(namespace) = user {
        return Err(AdminError::invalid(format!("ResourceGroup {name} is in use by namespace {namespace}")));
    }
    state.service.quotas().book().forget(&place).await?;
    tracing::info!(%place, by = call.principal.acting(), "resource group deleted");
    Ok(Reply::done())
}
