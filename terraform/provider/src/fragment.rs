//! Resources that are a place in a declarative document: tenants, namespaces, topics, subscriptions.
//!
//! Role: from attributes to a document that names one object, from what the region exports to attributes.
//! Invariants: an object is made only if it is not there, and its parents have to be there (`leaf`, `create`).

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, Kind, Set, json_of, values_of};
use crate::check;
use crate::resource::{Planning, Resource, Values, Work, known, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_declare::ObjectId;
use meridian_policy::schema::{NAMESPACE, TOPIC};
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Map, Value as Json, json};

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Tenant,
    Namespace,
    Topic,
    Subscription,
}

/// A resource that is a place in a document.
pub struct Fragment {
    of: Of,
    attributes: Vec<Attribute>,
}

const FORCE: &str = "force_destroy";
/// The policy whose value without being set is the region's own name.
const REPLICATION: &str = "replication";

fn force(about: &str) -> Attribute {
    Attribute::new(FORCE, Kind::Flag, about).set_by(Set::Default(json!(false)))
}

/// The tenant.
pub fn tenant() -> Fragment {
    let attributes = vec![
        Attribute::new("name", Kind::Text, "Its name.").naming(),
        Attribute::new("admin_roles", Kind::Texts, "Roles that administer it, literally.").keyed("adminRoles"),
        Attribute::new(
            "allowed_clusters",
            Kind::Texts,
            "Regions that its namespaces may use; its own region if unset.",
        )
        .keyed("allowedClusters")
        .set_by(Set::OrRegion),
        force("Delete it with all its namespaces and topics."),
    ];
    Fragment { of: Of::Tenant, attributes }
}

/// The namespace, with all its policies.
pub fn namespace() -> Fragment {
    let mut attributes = vec![
        Attribute::new("tenant", Kind::Text, "The tenant.").naming(),
        Attribute::new("name", Kind::Text, "Its name within the tenant.").naming(),
        Attribute::new("bundles", Kind::Number, "Into how many hash ranges it is cut.")
            .set_by(Set::OrRegion)
            .replacing(),
        force("Delete it with all its topics."),
    ];
    attributes.extend(NAMESPACE.iter().map(|spec| {
        let attribute = Attribute::of_policy(spec.name, &spec.shape, spec.about);
        match (spec.unset)() {
            _ if spec.name == REPLICATION => attribute.set_by(Set::OrRegion),
            Json::Null => attribute,
            unset => attribute.set_by(Set::Default(unset)),
        }
    }));
    Fragment { of: Of::Namespace, attributes }
}

/// The topic, with all its policies.
pub fn topic() -> Fragment {
    let mut attributes = vec![
        Attribute::new("namespace", Kind::Text, "The namespace, TENANT/NAME.").naming(),
        Attribute::new("name", Kind::Text, "Its name within the namespace.").naming(),
        Attribute::new("domain", Kind::Text, "persistent or non-persistent.")
            .set_by(Set::Default(json!("persistent")))
            .replacing(),
        Attribute::new("partitions", Kind::Number, "How many; 0 = not partitioned. They only grow.")
            .set_by(Set::Default(json!(0))),
        Attribute::new("properties", Kind::Labels, "Labels of one's own."),
        force("Delete it also while it is in use."),
    ];
    attributes.extend(TOPIC.iter().map(|spec| Attribute::of_policy(spec.name, &spec.shape, spec.about)));
    Fragment { of: Of::Topic, attributes }
}

/// The subscription.
pub fn subscription() -> Fragment {
    let attributes = vec![
        Attribute::new("topic", Kind::Text, "The topic, persistent://TENANT/NAMESPACE/NAME.").naming(),
        Attribute::new("name", Kind::Text, "Its name.").naming(),
        Attribute::new("position", Kind::Text, "Where it begins when it is made: earliest or latest."),
        Attribute::new("replicated", Kind::Flag, "Its acknowledgements are shared between regions.")
            .set_by(Set::Default(json!(false))),
        force("Delete it also while it has consumers."),
    ];
    Fragment { of: Of::Subscription, attributes }
}

impl Fragment {
    fn is_policy(&self, key: &str) -> bool {
        match self.of {
            Of::Namespace => NAMESPACE.iter().any(|spec| spec.name == key),
            Of::Topic => TOPIC.iter().any(|spec| spec.name == key),
            Of::Tenant | Of::Subscription => false,
        }
    }

    /// Which object it is, once its names are known and can be.
    fn object(&self, values: &Values) -> Option<ObjectId> {
        let name = known(values, "name")?;
        match self.of {
            Of::Tenant => Some(ObjectId::Tenant(name.to_owned())),
            Of::Namespace => {
                let whole = format!("{}/{name}", known(values, "tenant")?);
                NamespaceName::parse(&whole).ok().map(ObjectId::Namespace)
            }
            Of::Topic => {
                let domain = known(values, "domain").unwrap_or("persistent");
                let whole = format!("{domain}://{}/{name}", known(values, "namespace")?);
                TopicName::parse(&whole).ok().map(ObjectId::Topic)
            }
            Of::Subscription => {
                let topic = TopicName::parse(known(values, "topic")?).ok()?;
                Some(ObjectId::Subscription(topic, name.to_owned()))
            }
        }
    }

    fn the_object(&self, values: &Values) -> Result<ObjectId, Told> {
        self.object(values).ok_or_else(|| Told::error("No such name can be", "The names do not make one that can be."))
    }

    /// What a document says of the object.
    fn body(&self, values: &Values) -> Json {
        let (mut body, mut policies) = (Map::new(), Map::new());
        let named = ["name", "tenant", "namespace", "topic", FORCE];
        let own: Vec<_> =
            self.attributes.iter().filter(|attribute| !named.contains(&attribute.name.as_str())).cloned().collect();
        for (key, json) in json_of(&own, values) {
            let place = if self.is_policy(&key) { &mut policies } else { &mut body };
            place.insert(key, json);
        }
        match self.of {
            Of::Tenant => drop(body.entry("adminRoles").or_insert_with(|| json!([]))),
            Of::Namespace => drop(body.insert("policies".to_owned(), Json::Object(policies))),
            Of::Topic => {
                body.insert("policies".to_owned(), Json::Object(policies));
                body.entry("properties").or_insert_with(|| json!({}));
            }
            Of::Subscription => {}
        }
        Json::Object(body)
    }

    /// A document that says this of the object.
    fn document(id: &ObjectId, body: Json) -> Json {
        let under = |key: &str, name: &str, body: Json| json!({ key: { name: body } });
        let of_namespace =
            |name: &NamespaceName, body: Json| under("tenants", name.tenant(), under("namespaces", name.local(), body));
        match id {
            // None of these resources is the region itself.
            ObjectId::Cluster => body,
            ObjectId::Region(name) => under("regions", name, body),
            ObjectId::Tenant(name) => under("tenants", name, body),
            ObjectId::Namespace(name) => of_namespace(name, body),
            ObjectId::Topic(topic) => of_namespace(&topic.namespace(), under("topics", topic.local(), body)),
            ObjectId::Subscription(topic, name) => {
                let body = json!({ "domain": topic.domain().as_str(), "subscriptions": { name: body } });
                of_namespace(&topic.namespace(), under("topics", topic.local(), body))
            }
        }
    }

    async fn apply(&self, api: &Api, values: &Values, create: bool) -> Result<Vec<Told>, Told> {
        let id = self.the_object(values)?;
        let document = Self::document(&id, self.body(values));
        let path = format!("/admin/v2/meridian/apply?leaf=true&create={create}");
        match api.call(Method::PUT, &path, Some(&document)).await {
            Ok(_) => Ok(Vec::new()),
            Err(error) => Err(self.refused(&id, &error, values)),
        }
    }

    /// A refusal, at the attribute that it is about.
    fn refused(&self, id: &ObjectId, error: &crate::api::ApiError, values: &Values) -> Told {
        if let crate::api::ApiError::Refused { problems, .. } = error
            && let Some((path, problem)) = problems.first()
        {
            let problem = meridian_declare::Problem { path: path.clone(), problem: problem.clone() };
            let at = check::told(&problem, &id.path(), &self.attributes, values, self.names_of_names());
            return at.unwrap_or_else(|| told(error));
        }
        told(error)
    }

    fn names_of_names(&self) -> &'static [&'static str] {
        match self.of {
            Of::Tenant => &["name"],
            Of::Namespace => &["tenant", "name"],
            Of::Topic => &["namespace", "name"],
            Of::Subscription => &["topic", "name"],
        }
    }
}

impl Resource for Fragment {
    fn type_name(&self) -> &'static str {
        match self.of {
            Of::Tenant => "meridian_tenant",
            Of::Namespace => "meridian_namespace",
            Of::Topic => "meridian_topic",
            Of::Subscription => "meridian_subscription",
        }
    }

    fn about(&self) -> &'static str {
        match self.of {
            Of::Tenant => "A tenant: a team's own part of the platform.",
            Of::Namespace => "A namespace with its policies. A policy that is not set here is not set.",
            Of::Topic => "A topic with its policies. A policy that is not set here is the namespace's.",
            Of::Subscription => "A durable subscription of a topic.",
        }
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        Some(match self.object(values)? {
            ObjectId::Cluster => return None,
            ObjectId::Region(name) | ObjectId::Tenant(name) => name,
            ObjectId::Namespace(name) => name.to_string(),
            ObjectId::Topic(topic) => topic.to_string(),
            ObjectId::Subscription(topic, name) => format!("{topic}|{name}"),
        })
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        let bad = |form: &str| Told::error("No such id can be", format!("\"{id}\": expected {form}."));
        let mut values = Values::new();
        let mut set = |name: &str, value: &str| drop(values.insert(name.to_owned(), Value::text(value)));
        match self.of {
            Of::Tenant => set("name", id),
            Of::Namespace => {
                let name = NamespaceName::parse(id).map_err(|_| bad("TENANT/NAMESPACE"))?;
                set("tenant", name.tenant());
                set("name", name.local());
            }
            Of::Topic => {
                let topic = TopicName::parse(id).map_err(|_| bad("persistent://TENANT/NAMESPACE/TOPIC"))?;
                set("namespace", topic.namespace().as_str());
                set("name", topic.local());
                set("domain", topic.domain().as_str());
            }
            Of::Subscription => {
                let form = "persistent://TENANT/NAMESPACE/TOPIC|SUBSCRIPTION";
                let (topic, name) = id.rsplit_once('|').ok_or_else(|| bad(form))?;
                let topic = TopicName::parse(topic).map_err(|_| bad(form))?;
                set("topic", topic.as_str());
                set("name", name);
            }
        }
        Ok(values)
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let mut names = config.clone();
        for (name, stand_in) in [
            ("tenant", check::NOT_KNOWN),
            ("namespace", "not-known-yet/not-known-yet"),
            ("topic", "persistent://not-known-yet/not-known-yet/not-known-yet"),
            ("name", check::NOT_KNOWN),
        ] {
            if names.get(name) == Some(&Value::Unknown) {
                names.insert(name.to_owned(), Value::text(stand_in));
            }
        }
        let Some(id) = self.object(&names) else {
            let form = match self.of {
                Of::Topic => "namespace is TENANT/NAME, and name is not empty",
                Of::Subscription => "topic is persistent://TENANT/NAMESPACE/TOPIC, and name is not empty",
                _ => "expected letters, digits and any of _ - = : .",
            };
            let first = self.names_of_names()[0];
            return vec![Told::error("No such name can be", form).at(&[first])];
        };
        let document = Self::document(&id, self.body(&names));
        check::document(&document, &id.path(), &self.attributes, config, self.names_of_names())
    }

    fn plan<'a>(&'a self, planning: Planning<'a>) -> Work<'a, (Vec<String>, Vec<Told>)> {
        Box::pin(async move {
            let Some(prior) = planning.prior else { return Default::default() };
            let number = |values: &Values| values.get("partitions").and_then(|value| value.json().as_u64());
            let replaces = match (self.of, number(prior), number(planning.planned)) {
                (Of::Topic, Some(before), Some(after)) => after < before || (before == 0 && after > 0),
                _ => false,
            };
            let replaced = if replaces { vec!["partitions".to_owned()] } else { Vec::new() };
            if self.of == Of::Namespace && planning.config.get(REPLICATION).is_none_or(Value::is_null) {
                let Some(api) = planning.api else { return (replaced, Vec::new()) };
                match api.own_region().await {
                    Ok(own) => {
                        let alone = Value::List(vec![Value::text(own)]);
                        planning.planned.insert(REPLICATION.to_owned(), alone);
                    }
                    Err(error) => return (replaced, vec![told(&error)]),
                }
            }
            (replaced, Vec::new())
        })
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let query = match self.the_object(values)? {
                ObjectId::Cluster => "cluster=own".to_owned(),
                ObjectId::Region(name) => format!("region={}", encoded(&name)),
                ObjectId::Tenant(name) => format!("tenant={}", encoded(&name)),
                ObjectId::Namespace(name) => format!("namespace={}", encoded(name.as_str())),
                ObjectId::Topic(topic) => format!("topic={}", encoded(topic.as_str())),
                ObjectId::Subscription(topic, name) => {
                    format!("topic={}&subscription={}", encoded(topic.as_str()), encoded(&name))
                }
            };
            let found = api.get(&format!("/admin/v2/meridian/export?{query}")).await.map_err(|error| told(&error))?;
            let Some(Json::Object(mut found)) = found else { return Ok(None) };
            let own = found.remove("region").unwrap_or_default();
            if let Some(Json::Object(policies)) = found.remove("policies") {
                found.extend(policies);
            }
            let not_kept = ["name", "tenant", "namespace", "topic", "domain", "position", FORCE];
            let kept: Vec<_> = self
                .attributes
                .iter()
                .filter(|attribute| !not_kept.contains(&attribute.name.as_str()))
                .cloned()
                .collect();
            let mut region = values_of(&kept, &found);
            for attribute in kept.iter().filter(|attribute| self.is_policy(&attribute.key)) {
                match (&attribute.set, region.get_mut(&attribute.name)) {
                    (Set::Default(default), Some(value)) if value.is_null() => {
                        *value = attribute.value_of(Some(default))
                    }
                    (Set::OrRegion, Some(value)) if value.is_null() => *value = attribute.value_of(Some(&json!([own]))),
                    _ => {}
                }
            }
            Ok(Some(region))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.apply(api, planned, true))
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.apply(api, planned, false))
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let force = prior.get(FORCE).is_some_and(Value::is_true);
            let of_topic = |topic: &TopicName| {
                format!("/admin/v2/{}/{}/{}", topic.domain().as_str(), topic.namespace(), encoded(topic.local()))
            };
            let path = match self.the_object(prior)? {
                ObjectId::Cluster => return Err(Told::error("The region itself stays", "It can't be deleted.")),
                ObjectId::Region(name) => format!("/admin/v2/clusters/{}", encoded(&name)),
                ObjectId::Tenant(name) => format!("/admin/v2/tenants/{}?force={force}", encoded(&name)),
                ObjectId::Namespace(name) => format!("/admin/v2/namespaces/{name}?force={force}"),
                ObjectId::Topic(topic) => {
                    let partitioned = prior.get("partitions").and_then(|value| value.json().as_u64()).unwrap_or(0) > 0;
                    let rest = if partitioned { "/partitions" } else { "" };
                    format!("{}{rest}?force={force}", of_topic(&topic))
                }
                ObjectId::Subscription(topic, name) => {
                    format!("{}/subscription/{}?force={force}", of_topic(&topic), encoded(&name))
                }
            };
            api.delete(&path).await.map(|()| Vec::new()).map_err(|error| {
                let refused = told(&error);
                let why = format!(
                    "{}\nSet {FORCE} = true and apply before destroying, if that is what you want.",
                    refused.detail
                );
                Told { detail: if force { refused.detail.clone() } else { why }, ..refused }
            })
        })
    }
}
