//! The schema of a topic: the latest version; older ones stay.

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, Kind, Set};
use crate::resource::{Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_declare::canonical_schema;
use meridian_types::TopicName;
use serde_json::{Value as Json, json};

/// The schema of a topic.
pub struct Schema {
    attributes: Vec<Attribute>,
}

impl Schema {
    /// The kind.
    pub fn new() -> Self {
        let attributes = vec![
            Attribute::new("topic", Kind::Text, "The topic, persistent://TENANT/NAMESPACE/NAME.").naming(),
            Attribute::new("type", Kind::Text, "What kind it is: AVRO, JSON, PROTOBUF, STRING, …")
                .set_by(Set::Required),
            Attribute::new("schema", Kind::Text, "The definition, as JSON; nothing for simple types.")
                .set_by(Set::Default(json!(""))),
            Attribute::new("properties", Kind::Labels, "Labels of one's own."),
        ];
        Self { attributes }
    }

    fn path(values: &Values) -> Result<String, Told> {
        let topic = TopicName::parse(text(values, "topic"))
            .map_err(|_| Told::error("No such topic can be", text(values, "topic")).at(&["topic"]))?;
        Ok(format!("/admin/v2/schemas/{}/{}/schema", topic.namespace(), encoded(topic.local())))
    }

    async fn set(&self, api: &Api, values: &Values) -> Result<Vec<Told>, Told> {
        let labels = values.get("properties").map(Value::json).filter(|labels| !labels.is_null());
        let body = json!({
            "type": text(values, "type"), "schema": text(values, "schema"),
            "properties": labels.unwrap_or_else(|| json!({})),
        });
        let answer = api.call(Method::POST, &Self::path(values)?, Some(&body)).await;
        answer.map(|_| Vec::new()).map_err(|error| told(&error).at(&["schema"]))
    }
}

impl Resource for Schema {
    fn type_name(&self) -> &'static str {
        "meridian_schema"
    }

    fn about(&self) -> &'static str {
        "The schema of a topic. Each change is a new version, if the rules of the namespace allow it."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        known(values, "topic").map(str::to_owned)
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        Ok(Values::from([("topic".to_owned(), Value::text(id))]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let mut all = Vec::new();
        if let Some(topic) = known(config, "topic").filter(|topic| TopicName::parse(topic).is_err()) {
            let detail = format!("topic is \"{topic}\", expected persistent://TENANT/NAMESPACE/TOPIC.");
            all.push(Told::error("No such topic can be", detail).at(&["topic"]));
        }
        let is_json = ["AVRO", "JSON"].contains(&text(config, "type"));
        if let Some(Value::Text(definition)) = config.get("schema").filter(|_| is_json)
            && let Err(error) = serde_json::from_str::<Json>(definition)
        {
            all.push(Told::error("The definition is not JSON", error.to_string()).at(&["schema"]));
        }
        all
    }

    fn is_unset(&self, name: &str, value: &Value) -> bool {
        name == "schema" && *value == Value::text("")
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let Some(found) = api.get(&Self::path(values)?).await.map_err(|error| told(&error))? else {
                return Ok(None);
            };
            let (given, there) = (text(values, "schema"), found["data"].as_str().unwrap_or_default());
            // Another way to write the same definition is no change.
            let same = canonical_schema(given) == canonical_schema(there);
            let mut region = Values::from([
                ("type".to_owned(), Value::of_json(&found["type"])),
                ("schema".to_owned(), Value::text(if same { given } else { there })),
            ]);
            let labels = found["properties"].as_object().filter(|labels| !labels.is_empty());
            let labels = labels.map_or(Value::Null, |labels| Value::of_json(&Json::Object(labels.clone())));
            region.insert("properties".to_owned(), labels);
            Ok(Some(region))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            if self.read(api, planned).await?.is_some() {
                let detail = format!("Import it: {}", text(planned, "topic"));
                return Err(Told::error("The topic has a schema already", detail).at(&["topic"]));
            }
            self.set(api, planned).await
        })
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let path = format!("{}?force=true", Self::path(prior)?);
            api.delete(&path).await.map(|()| Vec::new()).map_err(|error| told(&error))
        })
    }
}
