//! Ids of objects as they are stored: `["cluster"]`, `["tenant","t"]`, `["subscription","persistent://t/n/x","s"]`.

use crate::object::ObjectId;
use meridian_types::{NamespaceName, TopicName};
use serde_json::{Value, json};

/// An id as it is stored.
pub(crate) fn id(id: &ObjectId) -> Value {
    match id {
        ObjectId::Cluster => json!([id.kind()]),
        ObjectId::Region(name) | ObjectId::Tenant(name) => json!([id.kind(), name]),
        ObjectId::Namespace(name) => json!([id.kind(), name.as_str()]),
        ObjectId::Topic(topic) => json!([id.kind(), topic.as_str()]),
        ObjectId::Subscription(topic, name) => json!([id.kind(), topic.as_str(), name]),
    }
}

/// An id as it was stored.
pub(crate) fn parse_id(parts: &Value) -> Option<ObjectId> {
    let parts: Vec<&str> = parts.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    match parts.as_slice() {
        ["cluster"] => Some(ObjectId::Cluster),
        ["region", name] => Some(ObjectId::Region((*name).to_owned())),
        ["tenant", name] => Some(ObjectId::Tenant((*name).to_owned())),
        ["namespace", name] => NamespaceName::parse(name).ok().map(ObjectId::Namespace),
        ["topic", name] => TopicName::parse(name).ok().map(ObjectId::Topic),
        ["subscription", topic, name] => {
            TopicName::parse(topic).ok().map(|topic| ObjectId::Subscription(topic, (*name).to_owned()))
        }
        _ => None,
    }
}
