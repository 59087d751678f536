//! Grants: what a role may do in a namespace or with a topic, and which roles alone may use a subscription.

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, Kind, Set};
use crate::resource::{Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value as Json, json};

const ACTIONS: [&str; 6] = ["produce", "consume", "functions", "sources", "sinks", "packages"];

fn set_of(items: &[String]) -> Value {
    Value::List(items.iter().map(Value::text).collect())
}

fn texts(json: &Json) -> Vec<String> {
    json.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn bad_id(id: &str, form: &str) -> Told {
    Told::error("No such id can be", format!("\"{id}\": expected {form}."))
}

fn check_namespace(config: &Values) -> Vec<Told> {
    match known(config, "namespace") {
        Some(name) if NamespaceName::parse(name).is_err() => {
            let detail = format!("namespace is \"{name}\", expected TENANT/NAMESPACE.");
            vec![Told::error("No such namespace can be", detail).at(&["namespace"])]
        }
        _ => Vec::new(),
    }
}

/// What a role may do.
pub struct Grant {
    attributes: Vec<Attribute>,
}

impl Grant {
    /// The kind.
    pub fn new() -> Self {
        let attributes = vec![
            Attribute::new("namespace", Kind::Text, "In the whole namespace, TENANT/NAME; this or topic.").replacing(),
            Attribute::new("topic", Kind::Text, "With one topic, persistent://TENANT/NAMESPACE/NAME.").replacing(),
            Attribute::new("role", Kind::Text, "The role.").naming(),
            Attribute::new("actions", Kind::Texts, "Some of produce, consume, functions, sources, sinks, packages.")
                .set_by(Set::Required),
        ];
        Self { attributes }
    }

    fn path(values: &Values) -> Result<String, Told> {
        let role = encoded(text(values, "role"));
        match (known(values, "namespace"), known(values, "topic").map(TopicName::parse)) {
            (Some(namespace), None) => Ok(format!("/admin/v2/namespaces/{namespace}/permissions/{role}")),
            (None, Some(Ok(topic))) => Ok(format!(
                "/admin/v2/{}/{}/{}/permissions/{role}",
                topic.domain().as_str(),
                topic.namespace(),
                encoded(topic.local())
            )),
            _ => Err(Told::error("A grant is of a namespace or of a topic", "Set one of namespace and topic.")),
        }
    }

    async fn set(&self, api: &Api, values: &Values) -> Result<Vec<Told>, Told> {
        let actions = values.get("actions").map(Value::json).unwrap_or_default();
        let answer = api.call(Method::POST, &Self::path(values)?, Some(&actions)).await;
        answer.map(|_| Vec::new()).map_err(|error| told(&error).at(&["actions"]))
    }
}

impl Resource for Grant {
    fn type_name(&self) -> &'static str {
        "meridian_grant"
    }

    fn about(&self) -> &'static str {
        "What a role may do in a namespace or with a topic."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        let place = known(values, "namespace").or(known(values, "topic"))?;
        Some(format!("{place}|{}", known(values, "role")?))
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        let bad = || bad_id(id, "TENANT/NAMESPACE|ROLE or persistent://TENANT/NAMESPACE/TOPIC|ROLE");
        let (place, role) = id.rsplit_once('|').ok_or_else(bad)?;
        let name = if place.contains("://") { "topic" } else { "namespace" };
        Ok(Values::from([(name.to_owned(), Value::text(place)), ("role".to_owned(), Value::text(role))]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let mut all = check_namespace(config);
        let set = |name: &str| config.get(name).is_some_and(|value| !value.is_null());
        if set("namespace") == set("topic") {
            let detail = "Set one of namespace and topic, and not both.";
            all.push(Told::error("A grant is of a namespace or of a topic", detail).at(&["namespace"]));
        }
        if let Some(topic) = known(config, "topic").filter(|topic| TopicName::parse(topic).is_err()) {
            let detail = format!("topic is \"{topic}\", expected persistent://TENANT/NAMESPACE/TOPIC.");
            all.push(Told::error("No such topic can be", detail).at(&["topic"]));
        }
        if let Some(Value::List(actions)) = config.get("actions") {
            let unknown = |action: &&Value| action.as_text().is_some_and(|action| !ACTIONS.contains(&action));
            if let Some(action) = actions.iter().find(unknown) {
                let detail = format!("actions holds {}, expected some of {}.", action.json(), ACTIONS.join(", "));
                all.push(Told::error("No such action can be", detail).at(&["actions"]));
            }
            if actions.is_empty() {
                let detail = "A grant of nothing is none: leave the resource out.";
                all.push(Told::error("A grant without actions", detail).at(&["actions"]));
            }
        }
        all
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            Self::path(values)?;
            let query = match known(values, "namespace") {
                Some(namespace) => format!("namespace={}", encoded(namespace)),
                None => format!("topic={}", encoded(text(values, "topic"))),
            };
            let found = api.get(&format!("/admin/v2/meridian/export?{query}")).await.map_err(|error| told(&error))?;
            let Some(actions) = found.as_ref().and_then(|found| found["grants"].get(text(values, "role"))) else {
                return Ok(None);
            };
            Ok(Some(Values::from([("actions".to_owned(), set_of(&texts(actions)))])))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            if self.read(api, planned).await?.is_some() {
                let detail = format!("Import it: {}", self.id(planned).unwrap_or_default());
                return Err(Told::error("The role has a grant there already", detail).at(&["role"]));
            }
            self.set(api, planned).await
        })
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            // What is not there can't be withdrawn, and need not be.
            if self.read(api, prior).await?.is_none() {
                return Ok(Vec::new());
            }
            api.delete(&Self::path(prior)?).await.map(|()| Vec::new()).map_err(|error| told(&error))
        })
    }
}

/// Which roles alone may use a subscription.
pub struct SubscriptionGrant {
    attributes: Vec<Attribute>,
}

impl SubscriptionGrant {
    /// The kind.
    pub fn new() -> Self {
        let attributes = vec![
            Attribute::new("namespace", Kind::Text, "The namespace, TENANT/NAME.").naming(),
            Attribute::new("subscription", Kind::Text, "The subscription's name, on whichever topic.").naming(),
            Attribute::new("roles", Kind::Texts, "Roles that alone may use it.").set_by(Set::Required),
        ];
        Self { attributes }
    }

    async fn set(&self, api: &Api, values: &Values) -> Result<Vec<Told>, Told> {
        let (namespace, name) = (text(values, "namespace"), encoded(text(values, "subscription")));
        let path = format!("/admin/v2/namespaces/{namespace}/permissions/subscription/{name}");
        let roles = values.get("roles").map(Value::json).unwrap_or_default();
        let answer = api.call(Method::POST, &path, Some(&roles)).await;
        answer.map(|_| Vec::new()).map_err(|error| told(&error).at(&["roles"]))
    }
}

impl Resource for SubscriptionGrant {
    fn type_name(&self) -> &'static str {
        "meridian_subscription_grant"
    }

    fn about(&self) -> &'static str {
        "Roles that alone may use subscriptions of a name in a namespace."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        Some(format!("{}|{}", known(values, "namespace")?, known(values, "subscription")?))
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        let (namespace, name) = id.split_once('|').ok_or_else(|| bad_id(id, "TENANT/NAMESPACE|SUBSCRIPTION"))?;
        let pair = |name: &str, value: &str| (name.to_owned(), Value::text(value));
        Ok(Values::from([pair("namespace", namespace), pair("subscription", name)]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let mut all = check_namespace(config);
        if config.get("roles") == Some(&Value::List(Vec::new())) {
            let detail = "No role is not \"nobody\" but \"no rule\": leave the resource out.";
            all.push(Told::error("A subscription grant without roles", detail).at(&["roles"]));
        }
        all
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let path = format!("/admin/v2/meridian/export?namespace={}", encoded(text(values, "namespace")));
            let found = api.get(&path).await.map_err(|error| told(&error))?.unwrap_or_else(|| json!({}));
            let roles = found["subscriptionGrants"].get(text(values, "subscription"));
            Ok(roles.map(|roles| Values::from([("roles".to_owned(), set_of(&texts(roles)))])))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            if self.read(api, planned).await?.is_some() {
                let detail = format!("Import it: {}", self.id(planned).unwrap_or_default());
                return Err(Told::error("The subscription has roles already", detail).at(&["subscription"]));
            }
            self.set(api, planned).await
        })
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let Some(region) = self.read(api, prior).await? else { return Ok(Vec::new()) };
            let (namespace, name) = (text(prior, "namespace"), encoded(text(prior, "subscription")));
            for role in region.get("roles").map(|roles| texts(&roles.json())).unwrap_or_default() {
                let path = format!("/admin/v2/namespaces/{namespace}/permissions/{name}/{}", encoded(&role));
                api.delete(&path).await.map_err(|error| told(&error))?;
            }
            Ok(Vec::new())
        })
    }
}
