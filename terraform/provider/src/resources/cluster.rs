//! Cluster entries: how a region reaches another one.

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, json_of, values_of};
use crate::check;
use crate::resource::{Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_declare::REGION_FIELDS;
use serde_json::{Value as Json, json};

/// An entry.
pub struct Cluster {
    attributes: Vec<Attribute>,
}

/// What a field is for.
fn about(field: &str) -> &'static str {
    match field {
        "serviceUrl" => "Admin address, http://HOST:PORT.",
        "serviceUrlTls" => "Admin address by TLS, https://HOST:PORT.",
        "brokerServiceUrl" => "Broker address, pulsar://HOST:PORT.",
        "brokerServiceUrlTls" => "Broker address by TLS, pulsar+ssl://HOST:PORT.",
        "authenticationParameters" => {
            "With which parameters brokers authenticate there; a secret that is never read back."
        }
        "authenticationPlugin" => "How brokers authenticate there.",
        "peerClusterNames" => "Clusters that may answer look-ups for this one.",
        "regionLinkUrl" => "The region link's address; the admin address is asked if it is unset.",
        _ => "As in the cluster entries of the admin API.",
    }
}

impl Cluster {
    /// The kind.
    pub fn new() -> Self {
        let mut attributes = vec![Attribute::new("name", crate::attribute::Kind::Text, "The region's name.").naming()];
        attributes.extend(REGION_FIELDS.iter().map(|field| {
            let attribute = Attribute::of_policy(field.name, &field.shape, about(field.name));
            if field.name == "authenticationParameters" { attribute.secret() } else { attribute }
        }));
        Self { attributes }
    }

    fn body(&self, values: &Values) -> Json {
        let mut body = json_of(&self.attributes[1..], values);
        // Without it an update keeps those that there are.
        body.entry("peerClusterNames").or_insert_with(|| json!([]));
        Json::Object(body)
    }

    fn path(values: &Values) -> String {
        format!("/admin/v2/clusters/{}", encoded(text(values, "name")))
    }
}

impl Resource for Cluster {
    fn type_name(&self) -> &'static str {
        "meridian_cluster"
    }

    fn about(&self) -> &'static str {
        "How this region reaches another one. A region's own entry is there from the start: import it."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        known(values, "name").map(str::to_owned)
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        Ok(Values::from([("name".to_owned(), Value::text(id))]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let name = known(config, "name").unwrap_or(check::NOT_KNOWN);
        let body = Json::Object(json_of(&self.attributes[1..], config));
        let document = json!({ "regions": { name: body } });
        let under = meridian_declare::ObjectId::Region(name.to_owned()).path();
        check::document(&document, &under, &self.attributes, config, &["name"])
    }

    fn is_unset(&self, _: &str, value: &Value) -> bool {
        *value == Value::Flag(false)
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let path = format!("/admin/v2/meridian/export?region={}", encoded(text(values, "name")));
            let found = api.get(&path).await.map_err(|error| told(&error))?;
            let Some(Json::Object(found)) = found else { return Ok(None) };
            let mut region = values_of(&self.attributes[1..], &found);
            region.remove("authentication_parameters");
            for (name, value) in &mut region {
                // A flag that is off reads as one that is not set.
                if *value == Value::Flag(false) && values.get(name).is_none_or(Value::is_null) {
                    *value = Value::Null;
                }
            }
            Ok(Some(region))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let answer = api.call(Method::PUT, &Self::path(planned), Some(&self.body(planned))).await;
            answer.map(|_| Vec::new()).map_err(|error| told(&error).at(&["name"]))
        })
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let answer = api.call(Method::POST, &Self::path(planned), Some(&self.body(planned))).await;
            answer.map(|_| Vec::new()).map_err(|error| told(&error))
        })
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move { api.delete(&Self::path(prior)).await.map(|()| Vec::new()).map_err(|error| told(&error)) })
    }
}
