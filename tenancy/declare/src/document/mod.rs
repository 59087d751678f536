//! A document, checked: which objects it names and what it says of each.
//!
//! ```yaml
//! owner: platform            # whose document it is; without one nothing is remembered and nothing ever deleted
//! home: west                 # the one region that applies it
//! quotas: { connections: 10000 }   # of the whole region; set by super users, as all `quotas`
//! regions:                   # cluster entries
//!   west: { serviceUrl: "http://west:8080", brokerServiceUrl: "pulsar://west:6650" }
//! tenants:
//!   orders:
//!     adminRoles: [orders-admin]
//!     allowedClusters: [west]
//!     quotas: { publishBytesPerSecond: 10000000, topics: 500 }
//!     namespaces:
//!       live:
//!         bundles: 4
//!         policies: { messageTTL: 3600, retention: { retentionTimeInMinutes: 60, retentionSizeInMB: 512 } }
//!         grants: { shop: [produce, consume] }
//!         subscriptionGrants: { billing: [billing-role] }
//!         quotas: { producers: 100 }
//!         tenantQuotas: { producers: 50 }   # the tenant's own, within the operator's
//!         failover: { active: west }
//!         topics:
//!           placed:
//!             partitions: 4
//!             policies: { maxProducers: 10 }
//!             grants: { audit: [consume] }
//!             properties: { team: orders }
//!             schema: { type: AVRO, schema: "…" }
//!             subscriptions: { billing: { position: earliest, replicated: true } }
//! ```
//!
//! Failure: every [`Problem`], with its path.

mod quotas;
mod region;
mod topic;

pub use region::FIELDS as REGION_FIELDS;
pub use topic::canonical as canonical_schema;

use crate::object::{Facet, Group, Object, ObjectId};
use crate::walk::{Place, Problem, Problems, join, seen};
use meridian_policy::schema::{NAMESPACE, PolicySpec, Shape};
use meridian_policy::{Permission, Policies, TenantInfo};
use meridian_types::NamespaceName;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most objects of a document.
pub const MAX_OBJECTS: usize = 100_000;
/// Longest name of an owner.
const MAX_OWNER_BYTES: usize = 64;
/// Most bundles of a namespace.
const MAX_BUNDLES: u64 = 4096;

/// What a document says.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Whose it is.
    pub owner: Option<String>,
    /// The region that applies it.
    pub home: Option<String>,
    /// What it names.
    pub objects: BTreeMap<ObjectId, Object>,
    source: Value,
}

impl Document {
    /// Checks a document.
    ///
    /// # Errors
    /// All problems.
    pub fn check(source: &Value) -> Result<Document, Vec<Problem>> {
        let mut reading = Reading::default();
        let known = &["apiVersion", "owner", "home", "quotas", "regions", "tenants"];
        let top = Place::open(String::new(), source, known, &mut reading.problems);
        let (mut owner, mut home) = (None, None);
        if let Some(top) = &top {
            if let Some(version) = top.text("apiVersion", &mut reading.problems).filter(|text| *text != "meridian/v1") {
                reading.problems.tell("apiVersion", format!("is \"{version}\", expected \"meridian/v1\""));
            }
            owner = reading.owner(top);
            home = top.text("home", &mut reading.problems).map(str::to_owned);
            if top.get(Group::Quotas.key()).is_some() {
                let mut cluster = Object::default();
                quotas::read(&mut reading, top, &ObjectId::Cluster, &mut cluster);
                reading.objects.insert(ObjectId::Cluster, cluster);
            }
            for (path, name, value) in top.each("regions", &mut reading.problems) {
                region::read(&mut reading, &path, name, value);
            }
            for (path, name, value) in top.each("tenants", &mut reading.problems) {
                reading.tenant(&path, name, value);
            }
        }
        if reading.objects.len() > MAX_OBJECTS {
            let count = reading.objects.len();
            reading.problems.tell("", format!("names {count} objects, expected at most {MAX_OBJECTS}"));
        }
        match reading.problems.none() {
            true => Ok(Document { owner, home, objects: reading.objects, source: source.clone() }),
            false => Err(reading.problems.into_told()),
        }
    }

    /// As it was given, without secrets (D5).
    pub fn without_secrets(&self) -> Value {
        let mut shown = self.source.clone();
        if let Some(regions) = shown.get_mut("regions").and_then(Value::as_object_mut) {
            for region in regions.values_mut().filter_map(Value::as_object_mut) {
                region.remove("authenticationParameters");
            }
        }
        shown
    }

    /// Says each policy as a region says it: what holds there without being set is not set.
    pub fn settle(&mut self, cluster: &str) {
        let mut fresh = Policies::default();
        for (id, object) in &mut self.objects {
            let ObjectId::Namespace(_) = id else { continue };
            for spec in NAMESPACE {
                let facet = Facet::Of(Group::Policies, spec.name.to_owned());
                let Some(value) = object.get(&facet).cloned() else { continue };
                if (spec.write)(&mut fresh, cluster, value).is_ok() {
                    object.set(facet, (spec.read)(&fresh, cluster));
                }
            }
        }
    }

    /// Names of its regions.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().filter_map(|id| match id {
            ObjectId::Region(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// A document while it is read.
#[derive(Default)]
struct Reading {
    objects: BTreeMap<ObjectId, Object>,
    problems: Problems,
}

impl Reading {
    fn owner(&mut self, top: &Place<'_>) -> Option<String> {
        let owner = top.text("owner", &mut self.problems)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if owner.len() > MAX_OWNER_BYTES || !owner.bytes().all(allowed) {
            let rule = format!("expected at most {MAX_OWNER_BYTES} letters, digits and any of _ - .");
            self.problems.tell("owner", format!("is \"{owner}\", {rule}"));
        }
        Some(owner.to_owned())
    }

    fn tenant(&mut self, path: &str, name: &str, value: &Value) {
        if let Err(error) = TenantInfo::check_name(name) {
            self.problems.tell(path, error.to_string());
        }
        let known = &["adminRoles", "allowedClusters", "quotas", "namespaces"];
        let Some(place) = Place::open(path.to_owned(), value, known, &mut self.problems) else { return };
        let mut object = Object::default();
        for key in ["adminRoles", "allowedClusters"] {
            if let Some(set) = place.get(key).and_then(|value| self.fitting(&place.at(key), &Shape::Texts(&[]), value))
            {
                object.set(Facet::Field(key), set);
            }
        }
        let roles = object.field("adminRoles").and_then(Value::as_array).cloned().unwrap_or_default();
        for role in roles.iter().filter_map(Value::as_str).filter(|role| role.trim() != *role) {
            self.problems.tell(&place.at("adminRoles"), format!("holds \"{role}\", expected no space around it"));
        }
        if object.field("allowedClusters") == Some(&json!([])) {
            self.problems.tell(&place.at("allowedClusters"), "is empty, expected at least one region");
        }
        let (allowed, id) = (object.field("allowedClusters").cloned(), ObjectId::Tenant(name.to_owned()));
        quotas::read(self, &place, &id, &mut object);
        self.objects.insert(id, object);
        for (path, local, value) in place.each("namespaces", &mut self.problems) {
            self.namespace(&path, name, local, value, allowed.as_ref());
        }
    }

    fn namespace(&mut self, path: &str, tenant: &str, local: &str, value: &Value, allowed: Option<&Value>) {
        let Ok(name) = NamespaceName::parse(&format!("{tenant}/{local}")) else {
            self.problems.tell(path, "is no name that a namespace can have: letters, digits and any of _ - = : .");
            return;
        };
        let known =
            &["bundles", "policies", "grants", "subscriptionGrants", "quotas", "tenantQuotas", "failover", "topics"];
        let Some(place) = Place::open(path.to_owned(), value, known, &mut self.problems) else { return };
        let mut object = Object::default();
        if let Some(count) = place.whole("bundles", (1, MAX_BUNDLES), &mut self.problems) {
            object.set(Facet::Field("bundles"), json!(count));
        }
        self.policies(&place, NAMESPACE, &mut object);
        self.grants(&place, &mut object);
        self.group(&place, Group::SubscriptionGrants, &mut object, |reading, path, value| {
            reading.fitting(path, &Shape::Texts(&[]), value)
        });
        let id = ObjectId::Namespace(name.clone());
        quotas::read(self, &place, &id, &mut object);
        self.failover(&place, &mut object);
        self.check_namespace(&place, &object, allowed);
        self.objects.insert(id, object);
        for (path, local, value) in place.each("topics", &mut self.problems) {
            topic::read(self, &path, &name, local, value);
        }
    }

    fn failover(&mut self, place: &Place<'_>, object: &mut Object) {
        let Some(value) = place.get("failover") else { return };
        let Some(inner) = Place::open(place.at("failover"), value, &["active"], &mut self.problems) else { return };
        match inner.text("active", &mut self.problems) {
            Some(active) => object.set(Facet::Field("failover"), json!(active)),
            None => self.problems.tell(&inner.at("active"), "is missing, expected the name of a region"),
        }
    }

    /// What policies say together.
    fn check_namespace(&mut self, place: &Place<'_>, object: &Object, allowed: Option<&Value>) {
        let mut policies = Policies::default();
        for spec in NAMESPACE {
            let facet = Facet::Of(Group::Policies, spec.name.to_owned());
            let Some(value) = object.get(&facet) else { continue };
            if let Err(error) = (spec.write)(&mut policies, "", value.clone()) {
                self.problems.tell(&join(&place.at("policies"), spec.name), error.to_string());
            }
        }
        if let Err(error) = policies.check() {
            self.problems.tell(&place.at("policies"), error.to_string());
        }
        let allowed: Option<BTreeSet<&str>> =
            allowed.and_then(Value::as_array).map(|names| names.iter().filter_map(Value::as_str).collect());
        for region in &policies.replication_clusters {
            if allowed.as_ref().is_some_and(|allowed| !allowed.contains(region.as_str())) {
                let problem = format!("holds \"{region}\", which is none of the tenant's allowedClusters");
                self.problems.tell(&join(&place.at("policies"), "replication"), problem);
            }
        }
        let active = object.field("failover").and_then(Value::as_str);
        let regions = &policies.replication_clusters;
        if let Some(active) = active.filter(|active| !regions.is_empty() && !regions.contains(*active)) {
            let problem = format!("is \"{active}\", which is none of the regions of policies.replication");
            self.problems.tell(&join(&place.at("failover"), "active"), problem);
        }
    }

    /// A group under its key: each of its values by `read`.
    fn group(
        &mut self,
        place: &Place<'_>,
        group: Group,
        object: &mut Object,
        mut read: impl FnMut(&mut Self, &str, &Value) -> Option<Value>,
    ) {
        if place.get(group.key()).is_none() {
            return;
        }
        object.groups.insert(group);
        for (path, name, value) in place.each(group.key(), &mut self.problems) {
            if name.is_empty() {
                self.problems.tell(&path, "has no name");
            }
            if let Some(value) = read(self, &path, value) {
                object.set(Facet::Of(group, name.to_owned()), value);
            }
        }
    }

    fn grants(&mut self, place: &Place<'_>, object: &mut Object) {
        self.group(place, Group::Grants, object, |reading, path, value| {
            let permissions: Result<BTreeSet<Permission>, _> = serde_json::from_value(value.clone());
            match permissions {
                Ok(permissions) if !permissions.is_empty() => {
                    Some(permissions.iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect())
                }
                _ => {
                    let rule = "expected some of produce, consume, functions, sources, sinks, packages";
                    reading.problems.tell(path, format!("is {}, {rule}", seen(value)));
                    None
                }
            }
        });
        sort_sets(object);
    }

    fn policies<P>(&mut self, place: &Place<'_>, table: &'static [PolicySpec<P>], object: &mut Object) {
        if place.get(Group::Policies.key()).is_none() {
            return;
        }
        object.groups.insert(Group::Policies);
        for (path, name, value) in place.each(Group::Policies.key(), &mut self.problems) {
            let Some(spec) = table.iter().find(|spec| spec.name == name) else {
                self.problems.tell(&path, format!("is not known; {}", nearest(table, name)));
                continue;
            };
            // Unset, said aloud.
            if value.is_null() {
                continue;
            }
            if let Some(value) = self.fitting(&path, &spec.shape, value) {
                object.set(Facet::Of(Group::Policies, name.to_owned()), value);
            }
        }
    }

    /// A value of a shape, completed.
    fn fitting(&mut self, path: &str, shape: &Shape, value: &Value) -> Option<Value> {
        match shape.complete(value) {
            Ok(value) => Some(value),
            Err(misfits) => {
                for misfit in misfits {
                    let place = misfit.at.iter().fold(path.to_owned(), |path, name| join(&path, name));
                    self.problems.tell(&place, misfit.problem);
                }
                None
            }
        }
    }
}

/// Sets are compared in the order of their texts.
fn sort_sets(object: &mut Object) {
    for (facet, value) in &mut object.facets {
        if let (Facet::Of(Group::Grants, _), Value::Array(items)) = (facet, value) {
            items.sort_by(|left, right| left.as_str().cmp(&right.as_str()));
        }
    }
}

/// Names that are like a name that is not known.
fn nearest<P>(table: &[PolicySpec<P>], name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let like = |known: &&str| {
        let known = known.to_ascii_lowercase();
        known.contains(&lower) || lower.contains(&known) || distance(&known, &lower) <= 2
    };
    let names: Vec<_> = table.iter().map(|spec| spec.name).filter(like).collect();
    match names.is_empty() {
        true => format!("there are {} policies, see the reference of policies", table.len()),
        false => format!("did you mean {}?", names.join(" or ")),
    }
}

/// Letters to put in, take out or change.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, a) in left.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, b) in right.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[to + 1];
            row[to + 1] = changed.min(row[to] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

/// A map's values that are texts, as a value of its own.
fn labels(value: &Value) -> Option<Map<String, Value>> {
    value.as_object().filter(|labels| labels.values().all(Value::is_string)).cloned()
}

#[cfg(test)]
mod tests;
