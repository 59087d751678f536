//! Topics and subscriptions in a document.

use super::{Reading, labels, quotas};
use crate::object::{Facet, Group, Object, ObjectId};
use crate::walk::{Place, join, seen};
use meridian_policy::schema::TOPIC;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value, json};

/// Most partitions that a document may ask for; a region's own limit may be lower.
const MAX_PARTITIONS: u64 = 100_000;

/// Reads one topic with its subscriptions.
pub(super) fn read(reading: &mut Reading, path: &str, namespace: &NamespaceName, local: &str, value: &Value) {
    let known = &[
        "domain",
        "partitions",
        "policies",
        "grants",
        "properties",
        "quotas",
        "tenantQuotas",
        "schema",
        "subscriptions",
    ];
    let Some(place) = Place::open(path.to_owned(), value, known, &mut reading.problems) else { return };
    let domain = place.text("domain", &mut reading.problems).unwrap_or("persistent");
    if !["persistent", "non-persistent"].contains(&domain) {
        let problem = format!("is \"{domain}\", expected persistent or non-persistent");
        return reading.problems.tell(&place.at("domain"), problem);
    }
    let topic = TopicName::parse(&format!("{domain}://{namespace}/{local}"));
    let Some(topic) = topic.ok().filter(|topic| topic.partition().is_none() && !local.is_empty()) else {
        return reading.problems.tell(path, "is no name that a topic can have");
    };
    let mut object = Object::default();
    if let Some(count) = place.whole("partitions", (0, MAX_PARTITIONS), &mut reading.problems) {
        object.set(Facet::Field("partitions"), json!(count));
    }
    reading.policies(&place, TOPIC, &mut object);
    reading.grants(&place, &mut object);
    reading.group(&place, Group::Properties, &mut object, |reading, path, value| {
        if !value.is_string() {
            reading.problems.tell(path, format!("is {}, expected a text", seen(value)));
        }
        Some(value.clone())
    });
    let id = ObjectId::Topic(topic.clone());
    quotas::read(reading, &place, &id, &mut object);
    if let Some(schema) = place.get("schema") {
        let found = read_schema(reading, place.at("schema"), schema);
        object.set(Facet::Field("schema"), found.unwrap_or_default());
    }
    reading.objects.insert(id, object);
    for (path, name, value) in place.each("subscriptions", &mut reading.problems) {
        read_subscription(reading, &path, &topic, name, value);
    }
}

fn read_schema(reading: &mut Reading, path: String, value: &Value) -> Option<Value> {
    let place = Place::open(path, value, &["type", "schema", "properties"], &mut reading.problems)?;
    let Some(kind) = place.text("type", &mut reading.problems) else {
        reading.problems.tell(&place.at("type"), "is missing, expected a kind of schema, for example AVRO or JSON");
        return None;
    };
    // A definition may be given as text or, in YAML, as what the text says.
    let text = match place.get("schema") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let properties = match place.get("properties") {
        None => Default::default(),
        Some(value) => labels(value).unwrap_or_else(|| {
            reading.problems.tell(&place.at("properties"), format!("is {}, expected texts by name", seen(value)));
            Default::default()
        }),
    };
    Some(json!({ "type": kind, "schema": canonical(&text), "properties": properties }))
}

/// A definition that is JSON, without what does not matter in it; any other as it is.
pub fn canonical(text: &str) -> String {
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string())
}

fn read_subscription(reading: &mut Reading, path: &str, topic: &TopicName, name: &str, value: &Value) {
    let known = &["position", "replicated"];
    let Some(place) = Place::open(path.to_owned(), value, known, &mut reading.problems) else { return };
    if name.is_empty() {
        reading.problems.tell(path, "has no name");
    }
    let mut object = Object::default();
    if let Some(position) = place.text("position", &mut reading.problems) {
        if !["earliest", "latest"].contains(&position) {
            let problem = format!("is \"{position}\", expected earliest or latest");
            reading.problems.tell(&join(path, "position"), problem);
        }
        object.set(Facet::Field("position"), json!(position));
    }
    if let Some(replicated) = place.flag("replicated", &mut reading.problems) {
        object.set(Facet::Field("replicated"), json!(replicated));
    }
    reading.objects.insert(ObjectId::Subscription(topic.clone(), name.to_owned()), object);
}
