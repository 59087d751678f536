//! Declarative documents: applied in order, with a plan before, a revision after, and one applier at a time.
//!
//! | method and path under `/admin/v2/meridian` | what it does |
//! |---|---|
//! | `PUT /apply?dryRun=&prune=&switch=&force=&takeOver=&revision=&leaf=&create=` | compares the document with what is, and does what is missing; with `leaf` only the last object is made or changed, with `create` it must not be there |
//! | `GET /applied` | owners of documents |
//! | `GET /applied/{owner}` | an owner's document, its revision and how far it came |
//! | `DELETE /applied/{owner}?prune=&takeOver=` | forgets an owner; with `prune` deletes what it owns |
//! | `GET /export?cluster=&region=&tenant=&namespace=&topic=&subscription=` | one object as a document says it, with the `region` that says it |
//!
//! A document with an owner has a revision: `If-Match` or `revision` names the one that the caller planned from, 0 = none yet. Without
//! an owner nothing is remembered and nothing is ever deleted.
//!
//! Invariants: A2 the door is asked about every object that the document names or its owner owns; A7 an apply that was
//! begun ends, also if the caller goes away, and answers 200 only once what it wrote is in force here; other regions are
//! waited for within bounds, and the answer says which have it; A8 an owner that super users made is theirs alone, and one
//! that administrators of a tenant made is not applied, and what it owns not deleted, by super users who do not say so.
//! Failure: 412 with every problem and its path, 409 for a revision that is not the one in force or an apply under way,
//! 202 for an apply that goes on after [`ANSWER_WITHIN`].
//! Must never know: how a step is carried out below the registry and the service.

mod actual;
mod carry_out;
mod forward;
mod regions;
mod steps;

use crate::call::Call;
use crate::error::AdminError;
use crate::quotas::{check_binding, check_release};
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::routing::{get, put};
use carry_out::Outcome;
use forward::Passing;
use meridian_broker::access::Principal;
use meridian_declare::{
    Allowed, Document, Facet, Group, Manifest, Object, ObjectId, Plan, Problem, Refused, compare, read, render_one,
};
use meridian_door::{Action, Scope};
use meridian_registry::Declared;
use meridian_settings::Key;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a caller is kept waiting; after that the apply goes on by itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(75);

pub fn routes() -> Router<AdminState> {
    const PATH: &str = "/admin/v2/meridian";
    Router::new()
        .route(&format!("{PATH}/apply"), put(apply))
        .route(&format!("{PATH}/applied"), get(owners))
        .route(&format!("{PATH}/applied/{{owner}}"), get(applied).delete(forget))
        .route(&format!("{PATH}/export"), get(export))
}

/// 412 with all problems, each with its path.
fn refused(problems: &[Problem]) -> Reply {
    let told: Vec<_> = problems.iter().map(|one| json!({ "path": one.path, "problem": one.problem })).collect();
    let reason = problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ");
    Reply::json(&json!({ "reason": reason, "problems": told })).with_status(StatusCode::PRECONDITION_FAILED)
}

impl From<Refused> for AdminError {
    fn from(error: Refused) -> Self {
        AdminError::conflict(error.to_string())
    }
}

impl From<Problem> for AdminError {
    fn from(error: Problem) -> Self {
        AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What an apply works with.
struct Apply {
    state: AdminState,
    principal: Principal,
    document: Arc<Document>,
    allowed: Allowed,
    /// Topics and subscriptions in use are deleted too.
    force: bool,
    /// How other brokers are asked.
    passing: Passing,
    /// Only the last object is made or changed.
    leaf: Leaf,
    /// Who applies is a super user; `None` where nobody is asked.
    operators: Option<bool>,
    /// An owner that administrators of a tenant made becomes the super users' (A8).
    take_over: bool,
}

/// How a document that describes one object is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaf {
    /// It is a whole document.
    Not,
    /// The objects above it have to be there.
    Set,
    /// They have to be there, and it must not.
    Create,
}

impl Leaf {
    fn of(call: &Call) -> Self {
        match (call.flag("leaf"), call.flag("create")) {
            (false, _) => Leaf::Not,
            (true, false) => Leaf::Set,
            (true, true) => Leaf::Create,
        }
    }

    fn check(self, document: &Document, plan: &Plan) -> Result<(), AdminError> {
        if self == Leaf::Not {
            return Ok(());
        }
        let Some(last) = document.objects.keys().next_back() else { return Ok(()) };
        let is_made = |step: &&meridian_declare::Step| step.action == meridian_declare::Action::Create;
        let mut made = plan.steps.iter().filter(is_made).map(|step| &step.object);
        if let Some(missing) = made.clone().find(|id| *id != last) {
            return Err(AdminError::not_found(format!("{missing} does not exist")));
        }
        match self == Leaf::Create && made.next().is_none() {
            true => Err(AdminError::conflict(format!("{last} already exists"))),
            false => Ok(()),
        }
    }
}

impl Apply {
    fn by(&self) -> String {
        self.principal.acting().unwrap_or("anonymous").to_owned()
    }

    /// Asks about everything that the document names (A2).
    fn check_named(&self, call: &Call) -> Result<(), AdminError> {
        self.document.objects.iter().try_for_each(|(id, object)| {
            // The operator's limits are the operator's, wherever they stand.
            if object.groups.contains(&Group::Quotas) {
                self.state.allow_operator(call).map_err(|error| {
                    let text = format!("quotas of {id} are set by super users; tenantQuotas are the tenant's own");
                    AdminError::new(error.status, format!("{text}: {}", error.reason))
                })?;
            }
            match id {
                // A tenant of which nothing is said is the way to its namespaces; one that is not there has no administrators.
                ObjectId::Tenant(name) if object.facets.is_empty() => {
                    self.state.allow(call, Action::Administer, &Scope::Tenant(name))
                }
                id => check_allowed(&self.state, call, id),
            }?;
            self.check_group(call, id, object)
        })
    }

    /// Which resource group a namespace belongs to is the operator's to say, and the group is there.
    fn check_group(&self, call: &Call, id: &ObjectId, object: &Object) -> Result<(), AdminError> {
        let ObjectId::Namespace(name) = id else { return Ok(()) };
        if !object.groups.contains(&Group::Policies) {
            return Ok(());
        }
        let wanted = object.get(&Facet::Of(Group::Policies, "resourcegroup".to_owned())).and_then(Value::as_str);
        let found = self.state.registry().namespace(name);
        let found = found.as_ref().and_then(|policies| policies.resource_group_name.as_deref());
        match wanted {
            wanted if wanted == found => Ok(()),
            Some(group) => check_binding(&self.state, call, group).map_err(|error| {
                let path = format!("{}.policies.resourcegroup", id.path());
                AdminError::new(error.status, format!("{path}: {}", error.reason))
            }),
            None => self.state.allow_operator(call),
        }
    }
}

fn check_allowed(state: &AdminState, call: &Call, id: &ObjectId) -> Result<(), AdminError> {
    match id {
        ObjectId::Cluster | ObjectId::Region(_) | ObjectId::Tenant(_) => state.allow_operator(call),
        ObjectId::Namespace(name) => state.allow(call, Action::Administer, &Scope::Tenant(name.tenant())),
        ObjectId::Topic(topic) | ObjectId::Subscription(topic, _) => {
            state.allow(call, Action::Administer, &Scope::Topic(topic))
        }
    }
}

/// Whoever administers a tenant may read a document that speaks of it.
fn may_see(state: &AdminState, call: &Call, id: &ObjectId) -> Result<(), AdminError> {
    match id {
        ObjectId::Tenant(name) => state.allow(call, Action::Administer, &Scope::Tenant(name)),
        id => check_allowed(state, call, id),
    }
}

/// Asks about what an owner owns beyond what the document names (A2); the refusal does not say what that is. What stays may
/// be the caller's own tenant, the way to its namespaces.
fn check_owned(apply: &Apply, call: &Call, manifest: &Manifest) -> Result<(), AdminError> {
    let owned = manifest.owned();
    let mut beyond = owned.iter().filter(|id| !apply.document.objects.contains_key(id));
    let ask = if apply.allowed.prune { check_allowed } else { may_see };
    match beyond.all(|id| ask(&apply.state, call, id).is_ok()) {
        true => Ok(()),
        false => Err(of_another(call, &manifest.owner)),
    }
}

/// A8.
fn check_whose(apply: &Apply, call: &Call, manifest: &Manifest) -> Result<(), AdminError> {
    let Manifest { owner, by, .. } = manifest;
    match (manifest.operators, apply.operators) {
        (Some(true), Some(false)) => Err(of_another(call, owner)),
        (Some(false), Some(true)) if !apply.take_over => Err(AdminError::conflict(format!(
            "owner {owner} is of administrators of a tenant, applied last by {by}: choose another name, or take it over with \
             all that it owns (takeOver=true)"
        ))),
        _ => Ok(()),
    }
}

/// Whether the caller is a super user, where that is asked.
fn is_operator(state: &AdminState, call: &Call) -> Option<bool> {
    state.settings().switch(Key::AuthorizationEnabled).then(|| state.allow_operator(call).is_ok())
}

/// An owner is not the caller's, or is not known at all: super users are told which.
fn of_another(call: &Call, owner: &str) -> AdminError {
    let role = call.principal.acting().unwrap_or_default();
    AdminError::forbidden(format!("role {role} may not act for owner {owner}"))
}

/// Limits that bind several namespaces are the operator's, also in documents.
fn check_operators(apply: &Apply, plan: &Plan) -> Result<(), AdminError> {
    let binds = |change: &meridian_declare::Change| match &change.facet {
        Facet::Of(Group::Policies, name) => name == "resourcegroup",
        _ => false,
    };
    if plan.steps.iter().flat_map(|step| &step.changes).any(binds) {
        apply.state.allow_operating(&apply.principal)?;
    }
    let deleted = plan.steps.iter().filter(|step| step.action == meridian_declare::Action::Delete);
    deleted.map(|step| &step.object).try_for_each(|id| match id {
        ObjectId::Namespace(name) => check_release(&apply.state, &apply.principal, name),
        _ => Ok(()),
    })
}

/// The revision that the caller planned from, by `If-Match` or by `revision`.
fn expected(call: &Call) -> Result<Option<u64>, AdminError> {
    let header = call.headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    let Some(text) = header.or(call.query("revision")) else { return Ok(None) };
    let number = text.trim().trim_matches('"').parse();
    number.map(Some).map_err(|_| AdminError::bad_request(format!("revision {text}: expected a number, 0 for none yet")))
}

async fn apply(State(state): Given, call: Call) -> Answer {
    let mut document =
        match read(call.body()).map_err(|problem| vec![problem]).and_then(|value| Document::check(&value)) {
            Ok(document) => document,
            Err(problems) => {
                // A2: what is wrong with a document is no secret, but who asks must be somebody who administers something.
                return Ok(refused(&problems));
            }
        };
    let cluster = state.service.config().cluster.clone();
    if let Some(home) = document.home.as_ref().filter(|home| **home != cluster) {
        return Ok(refused(&[Problem::at(
            "home",
            format!("is \"{home}\", but this is region {cluster}: apply it there"),
        )]));
    }
    document.settle(&cluster);
    let allowed = Allowed { prune: call.flag("prune"), switch: call.flag("switch") };
    let (principal, force) = (call.principal.clone(), call.flag("force"));
    let (document, passing) = (Arc::new(document), Passing::of(&call));
    let (operators, take_over) = (is_operator(&state, &call), call.flag("takeOver"));
    let leaf = Leaf::of(&call);
    let apply = Apply { state, principal, document, allowed, force, passing, leaf, operators, take_over };
    apply.check_named(&call)?;
    let (dry_run, expected) = (call.flag("dryRun"), expected(&call)?);
    let kept = kept(&apply).await?;
    if let Some((_, manifest)) = &kept {
        check_owned(&apply, &call, manifest)?;
        check_whose(&apply, &call, manifest)?;
    }
    if dry_run {
        return plan_only(&apply, kept.map(|(_, manifest)| manifest), expected).await;
    }
    let work = tokio::spawn(run(apply, kept, expected));
    match tokio::time::timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the apply ended: {error}"))),
        Err(_) => Ok(Reply::json(&json!({ "state": "applying" })).with_status(StatusCode::ACCEPTED)),
    }
}

/// What is kept of the document's owner.
async fn kept(apply: &Apply) -> Result<Option<(Declared, Manifest)>, AdminError> {
    let Some(owner) = &apply.document.owner else { return Ok(None) };
    find(&apply.state, owner).await
}

async fn find(state: &AdminState, owner: &str) -> Result<Option<(Declared, Manifest)>, AdminError> {
    let Some(declared) = state.registry().declared(owner).await? else { return Ok(None) };
    let manifest = Manifest::decode(&declared.value)?;
    Ok(Some((declared, manifest)))
}

async fn plan(apply: &Apply, owned: &BTreeSet<ObjectId>) -> Result<Result<Plan, Vec<Problem>>, AdminError> {
    let actual = actual::of_document(apply, owned).await?;
    let compared = compare(&apply.document, &actual, owned, apply.allowed);
    if let Ok(plan) = &compared {
        check_operators(apply, plan)?;
    }
    Ok(compared)
}

async fn plan_only(apply: &Apply, manifest: Option<Manifest>, expected: Option<u64>) -> Answer {
    if let Some(owner) = &apply.document.owner {
        Manifest::begin(manifest.as_ref(), &apply.document, owner, &apply.by(), expected, now_ms())?;
    }
    let owned = manifest.as_ref().map(Manifest::owned).unwrap_or_default();
    match plan(apply, &owned).await? {
        Ok(plan) => Ok(answer(apply, &plan, manifest.map_or(0, |manifest| manifest.revision), "planned", json!({}))),
        Err(problems) => Ok(refused(&problems)),
    }
}

/// The whole of an apply, from the plan to its being in force.
async fn run(apply: Apply, kept: Option<(Declared, Manifest)>, expected: Option<u64>) -> Answer {
    let Some(owner) = apply.document.owner.clone() else {
        let plan = match plan(&apply, &BTreeSet::new()).await? {
            Ok(plan) => plan,
            Err(problems) => return Ok(refused(&problems)),
        };
        apply.leaf.check(&apply.document, &plan)?;
        carry_out::all(&apply, &plan, &BTreeSet::new()).await.result?;
        let regions = regions::wait(&apply, &plan).await;
        return Ok(answer(&apply, &plan, 0, "applied", regions));
    };
    let (declared, before) = kept.map_or((None, None), |(declared, manifest)| (Some(declared), Some(manifest)));
    let mut manifest = Manifest::begin(before.as_ref(), &apply.document, &owner, &apply.by(), expected, now_ms())?;
    manifest.operators = apply.operators.or(manifest.operators);
    let owned = before.as_ref().map(Manifest::owned).unwrap_or_default();
    let plan = match plan(&apply, &owned).await? {
        Ok(plan) => plan,
        Err(problems) => return Ok(refused(&problems)),
    };
    let is_settled = |before: &Manifest| {
        plan.is_empty() && before.is_settled_for(&apply.document) && before.operators == manifest.operators
    };
    if let Some(before) = before.filter(is_settled) {
        return Ok(answer(&apply, &plan, before.revision, "applied", json!({})));
    }
    let registry = apply.state.registry();
    let begun = registry.set_declared(&owner, &manifest.encode(), declared.as_ref()).await?;
    tracing::info!(owner, revision = manifest.revision, steps = plan.steps.len(), by = apply.by(), "apply begins");
    let Outcome { gone, result } = carry_out::all(&apply, &plan, &owned).await;
    let manifest = manifest.end(result.is_ok(), &gone);
    let kept = registry.set_declared(&owner, &manifest.encode(), Some(&begun)).await;
    tracing::info!(owner, revision = manifest.revision, state = manifest.state.as_str(), "apply ended");
    result?;
    kept?;
    let regions = regions::wait(&apply, &plan).await;
    Ok(answer(&apply, &plan, manifest.revision, "applied", regions))
}

fn answer(apply: &Apply, plan: &Plan, revision: u64, state: &str, regions: Value) -> Reply {
    let shown = |steps: &[meridian_declare::Step]| steps.iter().map(|step| step.shown()).collect::<Vec<_>>();
    let body = json!({
        "owner": apply.document.owner,
        "revision": revision,
        "state": state,
        "changes": shown(&plan.steps),
        "left": plan.left.iter().map(ObjectId::to_string).collect::<Vec<_>>(),
        "elsewhere": shown(&plan.elsewhere),
        "regions": regions,
    });
    with_revision(Reply::json_whole(&body), revision)
}

fn with_revision(reply: Reply, revision: u64) -> Reply {
    match HeaderValue::from_str(&format!("\"{revision}\"")) {
        Ok(value) => reply.with_header(header::ETAG, value),
        Err(_) => reply,
    }
}

async fn owners(State(state): Given, call: Call) -> Answer {
    state.allow_operator(&call)?;
    Ok(Reply::json(&state.registry().declared_owners().await?))
}

async fn applied(State(state): Given, call: Call) -> Answer {
    let found = find(&state, call.param("owner")).await?;
    let Some((_, manifest)) = found else { return Err(no_such_owner(&state, &call)) };
    if manifest.owned().iter().any(|id| may_see(&state, &call, id).is_err()) {
        return Err(of_another(&call, &manifest.owner));
    }
    let body = json!({
        "owner": manifest.owner,
        "revision": manifest.revision,
        "state": manifest.state.as_str(),
        "by": manifest.by,
        "atMs": manifest.at_ms,
        "left": manifest.left.iter().map(ObjectId::to_string).collect::<Vec<_>>(),
        "document": manifest.document,
    });
    Ok(with_revision(Reply::json_whole(&body), manifest.revision))
}

fn no_such_owner(state: &AdminState, call: &Call) -> AdminError {
    let owner = call.param("owner");
    match state.allow_operator(call) {
        Ok(()) => AdminError::not_found(format!("owner {owner} has applied nothing")),
        Err(_) => of_another(call, owner),
    }
}

async fn forget(State(state): Given, call: Call) -> Answer {
    let owner = call.param("owner").to_owned();
    let Some((declared, manifest)) = find(&state, &owner).await? else {
        return match state.allow_operator(&call) {
            Ok(()) => Ok(Reply::done()),
            Err(_) => Err(of_another(&call, &owner)),
        };
    };
    // A document that names nothing, so that everything owned is to go.
    let document = Document::check(&json!({ "owner": owner })).map_err(|problems| problems[0].clone())?;
    let allowed = Allowed { prune: call.flag("prune"), switch: false };
    let (principal, force) = (call.principal.clone(), call.flag("force"));
    let (document, passing) = (Arc::new(document), Passing::of(&call));
    let operators = is_operator(&state, &call);
    // What is only forgotten stays as it is, so that nobody's is taken.
    let take_over = call.flag("takeOver") || !allowed.prune;
    let apply = Apply { state, principal, document, allowed, force, passing, leaf: Leaf::Not, operators, take_over };
    check_owned(&apply, &call, &manifest)?;
    check_whose(&apply, &call, &manifest)?;
    if !apply.allowed.prune {
        apply.state.registry().forget_declared(&owner, &declared).await?;
        return Ok(Reply::done());
    }
    let expected = expected(&call)?;
    let work = tokio::spawn(async move {
        let state = apply.state.clone();
        run(apply, Some((declared, manifest)), expected).await?;
        let left = find(&state, &owner).await?;
        if let Some((declared, manifest)) = left.filter(|(_, manifest)| manifest.owned().is_empty()) {
            tracing::info!(owner = manifest.owner, "owner forgotten");
            state.registry().forget_declared(&owner, &declared).await?;
        }
        Ok(Reply::done())
    });
    match tokio::time::timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the apply ended: {error}"))),
        Err(_) => Ok(Reply::json(&json!({ "state": "applying" })).with_status(StatusCode::ACCEPTED)),
    }
}

/// The object that the query names.
fn named(call: &Call) -> Result<ObjectId, AdminError> {
    let bad = |what: &str, text: &str| AdminError::invalid(format!("{what}={text}: no such name can be"));
    let topic = |text: &str| TopicName::parse(text).map_err(|_| bad("topic", text));
    if call.query("cluster").is_some() {
        return Ok(ObjectId::Cluster);
    }
    match (call.query("region"), call.query("tenant"), call.query("namespace"), call.query("topic")) {
        (Some(name), None, None, None) => Ok(ObjectId::Region(name.to_owned())),
        (None, Some(name), None, None) => Ok(ObjectId::Tenant(name.to_owned())),
        (None, None, Some(text), None) => {
            NamespaceName::parse(text).map(ObjectId::Namespace).map_err(|_| bad("namespace", text))
        }
        (None, None, None, Some(text)) => match call.query("subscription") {
            Some(name) => Ok(ObjectId::Subscription(topic(text)?, name.to_owned())),
            None => Ok(ObjectId::Topic(topic(text)?)),
        },
        _ => Err(AdminError::bad_request(
            "expected one of cluster, region, tenant, namespace, topic (with subscription)",
        )),
    }
}

async fn export(State(state): Given, call: Call) -> Answer {
    let id = named(&call)?;
    check_allowed(&state, &call, &id)?;
    let found = actual::of_one(&state, &id).await?;
    let mut object = found.ok_or_else(|| AdminError::not_found(format!("{id} does not exist")))?;
    // D5: what is secret is compared, never shown.
    object.facets.retain(|facet, _| !facet.is_secret());
    let mut value: Value = render_one(&object);
    value["region"] = json!(state.service.config().cluster);
    Ok(Reply::json_whole(&value))
}
