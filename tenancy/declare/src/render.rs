//! What is, as a document: what it says of each object can be applied and changes nothing.

use crate::object::{Facet, Object, ObjectId};
use crate::plan::Actual;
use meridian_types::{Domain, NamespaceName, TopicName};
use serde_json::{Map, Value, json};

/// A document that names these objects and says all that is known of them. Secrets stand in it as they are.
pub fn render(actual: &Actual) -> Value {
    let mut document = Value::Object(Map::new());
    for (id, object) in actual {
        let place = place_of(&mut document, id);
        for (facet, value) in &object.facets {
            set(place, facet, value);
        }
        for group in &object.groups {
            child(place, group.key());
        }
        if let ObjectId::Topic(topic) = id
            && topic.domain() == Domain::NonPersistent
        {
            place.insert("domain".to_owned(), json!(topic.domain().as_str()));
        }
    }
    document
}

/// What a document says of one object, without what is under it.
pub fn render_one(object: &Object) -> Value {
    let mut place = Map::new();
    for group in &object.groups {
        child(&mut place, group.key());
    }
    object.facets.iter().for_each(|(facet, value)| set(&mut place, facet, value));
    Value::Object(place)
}

fn set(place: &mut Map<String, Value>, facet: &Facet, value: &Value) {
    match facet {
        Facet::Field("failover") => drop(place.insert("failover".to_owned(), json!({ "active": value }))),
        Facet::Field(key) => drop(place.insert((*key).to_owned(), value.clone())),
        Facet::Of(group, name) => drop(child(place, group.key()).insert(name.clone(), value.clone())),
    }
}

fn place_of<'a>(document: &'a mut Value, id: &ObjectId) -> &'a mut Map<String, Value> {
    let top = as_map(document);
    match id {
        ObjectId::Cluster => top,
        ObjectId::Region(name) => child(child(top, "regions"), name),
        ObjectId::Tenant(name) => child(child(top, "tenants"), name),
        ObjectId::Namespace(name) => namespace(top, name),
        ObjectId::Topic(topic) => of_topic(top, topic),
        ObjectId::Subscription(topic, name) => child(child(of_topic(top, topic), "subscriptions"), name),
    }
}

fn namespace<'a>(top: &'a mut Map<String, Value>, name: &NamespaceName) -> &'a mut Map<String, Value> {
    child(child(child(child(top, "tenants"), name.tenant()), "namespaces"), name.local())
}

fn of_topic<'a>(top: &'a mut Map<String, Value>, topic: &TopicName) -> &'a mut Map<String, Value> {
    child(child(namespace(top, &topic.namespace()), "topics"), topic.local())
}

fn child<'a>(place: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    as_map(place.entry(name.to_owned()).or_insert_with(|| json!({})))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made one"),
    }
}
