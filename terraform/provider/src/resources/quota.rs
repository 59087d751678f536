//! Quotas: what the whole region, a tenant, a namespace or a topic may use at most.
//!
//! Invariants: every limit is an attribute, made from the one table of limits; a limit that is left out is not set, which
//! is apart from 0; the region whose limits are set is named, so that no limit lands in another one.

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, Kind, Set, json_of, snake, values_of};
use crate::check;
use crate::resource::{Planning, Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_declare::{Facet, Group, Object, ObjectId, render};
use meridian_policy::quota::Limit;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

const PATH: &str = "/admin/v2/meridian/quotas";
/// What a quota can be of, in the order of the tree, and what stands for a name that is not known yet.
const PLACES: [(&str, &str); 4] = [
    ("cluster", check::NOT_KNOWN),
    ("tenant", check::NOT_KNOWN),
    ("namespace", "not-known-yet/not-known-yet"),
    ("topic", "persistent://not-known-yet/not-known-yet/not-known-yet"),
];
const OPERATOR: &str = "operator";
const TENANT: &str = "tenant";

/// A quota.
pub struct Quota {
    attributes: Vec<Attribute>,
    limits: Vec<Attribute>,
}

impl Quota {
    /// The kind.
    pub fn new() -> Self {
        let place = |name: &str, about: &str| Attribute::new(name, Kind::Text, about).replacing();
        let limits: Vec<_> = Limit::ALL
            .into_iter()
            .map(|limit| Attribute::new(&snake(limit.name()), Kind::Number, limit.about()).keyed(limit.name()))
            .collect();
        let mut attributes = vec![
            place("cluster", "Of a whole region: its name, which is that of the region that the provider asks."),
            place("tenant", "Of a tenant: its name."),
            place("namespace", "Of a namespace: TENANT/NAME."),
            place("topic", "Of a topic, all partitions together: persistent://TENANT/NAMESPACE/NAME."),
            place("layer", "operator, or tenant: what a tenant sets for itself, within what the operator sets.")
                .set_by(Set::Default(json!(OPERATOR))),
        ];
        attributes.extend(limits.iter().cloned());
        Self { attributes, limits }
    }

    /// What it is of, once that is known and can be.
    fn object(values: &Values) -> Option<ObjectId> {
        if known(values, "cluster").is_some() {
            return Some(ObjectId::Cluster);
        }
        if let Some(name) = known(values, "tenant") {
            return Some(ObjectId::Tenant(name.to_owned()));
        }
        if let Some(name) = known(values, "namespace") {
            return NamespaceName::parse(name).ok().map(ObjectId::Namespace);
        }
        TopicName::parse(known(values, "topic")?).ok().map(ObjectId::Topic)
    }

    fn path(values: &Values) -> Result<String, Told> {
        let layer = known(values, "layer").unwrap_or(OPERATOR);
        let place = match Self::object(values) {
            Some(ObjectId::Cluster) => "cluster".to_owned(),
            Some(ObjectId::Tenant(name)) => format!("tenants/{}", encoded(&name)),
            Some(ObjectId::Namespace(name)) => format!("namespaces/{name}"),
            Some(ObjectId::Topic(topic)) => {
                format!("topics/{}/{}/{}", topic.domain().as_str(), topic.namespace(), encoded(topic.local()))
            }
            _ => return Err(not_one_place()),
        };
        Ok(format!("{PATH}/{place}?layer={layer}"))
    }

    /// The region that is asked is the one that is named.
    async fn check_region(api: &Api, values: &Values) -> Result<(), Told> {
        let Some(named) = known(values, "cluster") else { return Ok(()) };
        let own = api.own_region().await.map_err(|error| told(&error))?;
        match own == named {
            true => Ok(()),
            false => {
                let detail = format!("cluster is \"{named}\", but the provider asks region {own}.");
                Err(Told::error("Another region is asked", detail).at(&["cluster"]))
            }
        }
    }

    async fn set(&self, api: &Api, values: &Values) -> Result<Vec<Told>, Told> {
        let limits = json_of(&self.limits, values);
        if limits.is_empty() {
            return Err(no_limits());
        }
        let answer = api.call(Method::PUT, &Self::path(values)?, Some(&Json::Object(limits))).await;
        answer.map(|_| Vec::new()).map_err(|error| told(&error))
    }
}

fn not_one_place() -> Told {
    let detail = "Set one of cluster, tenant, namespace and topic, and not more.";
    Told::error("A quota is of one place", detail).at(&["tenant"])
}

fn no_limits() -> Told {
    Told::error("A quota without limits", "A quota that limits nothing is none: leave the resource out.")
}

/// The layer of a place that can have it.
fn check_layer(id: &ObjectId, layer: &str) -> Result<Group, Told> {
    match (layer, id) {
        (OPERATOR, _) => Ok(Group::Quotas),
        (TENANT, ObjectId::Namespace(_) | ObjectId::Topic(_)) => Ok(Group::TenantQuotas),
        (TENANT, _) => {
            let detail = "layer is \"tenant\", but a tenant limits its namespaces and topics alone.";
            Err(Told::error("No such layer can be there", detail).at(&["layer"]))
        }
        (other, _) => {
            let detail = format!("layer is \"{other}\", expected operator or tenant.");
            Err(Told::error("No such layer can be", detail).at(&["layer"]))
        }
    }
}

impl Resource for Quota {
    fn type_name(&self) -> &'static str {
        "meridian_quota"
    }

    fn about(&self) -> &'static str {
        "What a region, a tenant, a namespace or a topic may use at most. A limit that is not set here is not set."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        let (kind, name) = PLACES.iter().find_map(|(kind, _)| Some((kind, known(values, kind)?)))?;
        let layer = known(values, "layer").filter(|layer| *layer != OPERATOR);
        Some(format!("{kind}:{name}{}", layer.map(|layer| format!("|{layer}")).unwrap_or_default()))
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        let bad = || {
            let forms = "cluster:REGION, tenant:TENANT, namespace:TENANT/NAMESPACE or \
                         topic:persistent://TENANT/NAMESPACE/TOPIC, with |tenant behind it for the tenant's layer";
            Told::error("No such id can be", format!("\"{id}\": expected {forms}."))
        };
        let (place, layer) = id.split_once('|').unwrap_or((id, OPERATOR));
        let (kind, name) = place.split_once(':').ok_or_else(bad)?;
        let (kind, _) = PLACES.iter().find(|(one, _)| *one == kind).ok_or_else(bad)?;
        let pair = |name: &str, value: &str| (name.to_owned(), Value::text(value));
        let values = Values::from([pair(kind, name), pair("layer", layer)]);
        let object = Self::object(&values).ok_or_else(bad)?;
        check_layer(&object, layer).map(|_| values)
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let set = |name: &str| config.get(name).is_some_and(|value| !value.is_null());
        let mut places = PLACES.iter().filter(|(name, _)| set(name));
        let (Some((place, stand_in)), None) = (places.next(), places.next()) else { return vec![not_one_place()] };
        if !self.limits.iter().any(|limit| set(&limit.name)) {
            return vec![no_limits()];
        }
        let mut names = config.clone();
        if config.get(*place) == Some(&Value::Unknown) {
            names.insert((*place).to_owned(), Value::text(*stand_in));
        }
        let Some(id) = Self::object(&names) else {
            let detail = format!("{place} is \"{}\", which is no name that one can have.", text(config, place));
            return vec![Told::error("No such name can be", detail).at(&[*place])];
        };
        let group = match config.get("layer") {
            // Any may come; what the operator's could not be, the tenant's could not either.
            Some(Value::Unknown) => Ok(Group::Quotas),
            _ => check_layer(&id, known(config, "layer").unwrap_or(OPERATOR)),
        };
        let group = match group {
            Ok(group) => group,
            Err(told) => return vec![told],
        };
        let mut object = Object::default();
        object.groups.insert(group);
        for (limit, value) in json_of(&self.limits, config) {
            object.set(Facet::Of(group, limit), value);
        }
        let under =
            [id.path(), group.key().to_owned()].iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>();
        let document = render(&BTreeMap::from([(id, object)]));
        check::document(&document, &under.join("."), &self.limits, config, &[*place])
    }

    fn plan<'a>(&'a self, planning: Planning<'a>) -> Work<'a, (Vec<String>, Vec<Told>)> {
        Box::pin(async move {
            let Some(api) = planning.api else { return Default::default() };
            (Vec::new(), Self::check_region(api, planning.planned).await.err().into_iter().collect())
        })
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            Self::check_region(api, values).await?;
            let found = api.get(&Self::path(values)?).await.map_err(|error| told(&error))?;
            let layer = known(values, "layer").unwrap_or(OPERATOR);
            let limits = found.as_ref().and_then(|found| found[layer].as_object()).filter(|limits| !limits.is_empty());
            Ok(limits.map(|limits| values_of(&self.limits, limits)))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            if self.read(api, planned).await?.is_some() {
                let detail = format!("Import it: {}", self.id(planned).unwrap_or_default());
                let place = PLACES.iter().map(|(name, _)| *name).find(|name| known(planned, name).is_some());
                return Err(Told::error("There is a quota already", detail).at(&[place.unwrap_or("tenant")]));
            }
            self.set(api, planned).await
        })
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            Self::check_region(api, prior).await?;
            api.delete(&Self::path(prior)?).await.map(|()| Vec::new()).map_err(|error| told(&error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_the_place_and_the_layer() {
        let quota = Quota::new();
        for id in [
            "cluster:west",
            "tenant:orders",
            "namespace:orders/live",
            "namespace:orders/live|tenant",
            "topic:persistent://orders/live/a:b",
            "topic:non-persistent://orders/live/x|tenant",
        ] {
            assert_eq!(quota.id(&quota.names(id).unwrap()).as_deref(), Some(id));
        }
        for bad in [
            "orders",
            "tenant:",
            "namespace:orders",
            "topic:ftp://t/n/x",
            "group:g",
            "tenant:orders|tenant",
            "tenant:t|own",
        ] {
            assert!(quota.names(bad).is_err(), "{bad}");
        }
    }
}
