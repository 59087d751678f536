//! Attributes of resources: what they are called, what they hold, who sets them, and how JSON becomes their value.
//!
//! Role: one description from which Terraform's schema, the plan, the checks and the conversions are made.
//! Invariants: an attribute of a policy is made from the policy's row, so that no policy lacks one.

use crate::proto::tfplugin6::StringKind;
use crate::proto::tfplugin6::schema::{self, object::NestingMode};
use crate::value::Value;
use meridian_policy::schema::{Absent, Field, Shape};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// What an attribute holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A text.
    Text,
    /// Any JSON, as a text.
    JsonText,
    /// True or false.
    Flag,
    /// A number.
    Number,
    /// A set of texts.
    Texts,
    /// A list of texts, in order.
    Lines,
    /// Texts by name.
    Labels,
    /// Attributes of its own.
    Record(Vec<Attribute>),
}

/// Who sets it.
#[derive(Debug, Clone, PartialEq)]
pub enum Set {
    /// It has to be there.
    Required,
    /// It may be there.
    Optional,
    /// It may be there; without it this holds.
    Default(Json),
    /// It may be there; without it the region decides.
    OrRegion,
    /// The region alone.
    Computed,
}

/// One attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// Its name in Terraform.
    pub name: String,
    /// Its name in JSON.
    pub key: String,
    /// What it holds.
    pub kind: Kind,
    /// Who sets it.
    pub set: Set,
    /// What it is for.
    pub about: String,
    /// Another value is another object.
    pub replaces: bool,
    /// Never shown.
    pub sensitive: bool,
}

impl Attribute {
    /// An attribute that may be there.
    pub fn new(name: &str, kind: Kind, about: &str) -> Self {
        let (name, key) = (name.to_owned(), name.to_owned());
        Self { name, key, kind, set: Set::Optional, about: about.to_owned(), replaces: false, sensitive: false }
    }

    /// Named otherwise in JSON.
    #[must_use]
    pub fn keyed(mut self, key: &str) -> Self {
        self.key = key.to_owned();
        self
    }

    /// Set by others.
    #[must_use]
    pub fn set_by(mut self, set: Set) -> Self {
        self.set = set;
        self
    }

    /// Has to be there, and another value is another object.
    #[must_use]
    pub fn naming(mut self) -> Self {
        (self.set, self.replaces) = (Set::Required, true);
        self
    }

    /// Another value is another object.
    #[must_use]
    pub fn replacing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Never shown.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.sensitive = true;
        self
    }

    /// From a policy's row.
    pub fn of_policy(key: &str, shape: &Shape, about: &str) -> Self {
        Self::new(&snake(key), Kind::of_shape(shape), about).keyed(key)
    }

    fn of_field(field: &Field) -> Self {
        let set = match field.absent {
            Absent::Refused => Set::Required,
            Absent::Unset => Set::Optional,
            absent => absent.value().map_or(Set::Optional, Set::Default),
        };
        Self::of_policy(field.name, &field.shape, field.about).set_by(set)
    }

    /// As Terraform's schema says it.
    pub fn described(&self) -> schema::Attribute {
        let set = &self.set;
        let nested_type = match &self.kind {
            Kind::Record(fields) => Some(schema::Object {
                attributes: fields.iter().map(Attribute::described).collect(),
                nesting: NestingMode::Single.into(),
            }),
            _ => None,
        };
        schema::Attribute {
            name: self.name.clone(),
            r#type: if nested_type.is_some() { Vec::new() } else { self.kind.cty().to_string().into_bytes() },
            description: self.about.clone(),
            required: *set == Set::Required,
            optional: matches!(set, Set::Optional | Set::Default(_) | Set::OrRegion),
            computed: matches!(set, Set::Computed | Set::Default(_) | Set::OrRegion),
            sensitive: self.sensitive,
            description_kind: StringKind::Plain.into(),
            nested_type,
        }
    }

    /// Its value as JSON; `None` = not set or not known.
    pub fn json_of(&self, value: &Value) -> Option<Json> {
        match (&self.kind, value) {
            (_, Value::Null | Value::Unknown) => None,
            (Kind::JsonText, Value::Text(text)) => Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text))),
            (Kind::Record(fields), Value::Map(map)) => Some(Json::Object(json_of(fields, map))),
            (_, value) => Some(value.json()),
        }
    }

    /// JSON as its value.
    pub fn value_of(&self, json: Option<&Json>) -> Value {
        match (&self.kind, json) {
            (_, None | Some(Json::Null)) => Value::Null,
            (Kind::JsonText, Some(json)) => Value::text(json.to_string()),
            (Kind::Record(fields), Some(Json::Object(map))) => Value::Map(values_of(fields, map)),
            (Kind::Number, Some(Json::Number(number))) => whole(number),
            (_, Some(json)) => Value::of_json(json),
        }
    }

    /// What a configured value becomes in a plan: fields that are left out get their defaults.
    pub fn planned(&self, config: &Value) -> Value {
        match (&self.kind, config, &self.set) {
            (_, Value::Null, Set::Default(default)) => self.value_of(Some(default)),
            (Kind::Record(fields), Value::Map(map), _) => {
                let field = |field: &Attribute| {
                    (field.name.clone(), field.planned(map.get(&field.name).unwrap_or(&Value::Null)))
                };
                Value::Map(fields.iter().map(field).collect())
            }
            (_, config, _) => config.clone(),
        }
    }

    /// Both say the same, though perhaps in other words.
    pub fn same(&self, left: &Value, right: &Value) -> bool {
        left == right || self.canonical(left) == self.canonical(right)
    }

    fn canonical(&self, value: &Value) -> Json {
        match (&self.kind, self.json_of(value)) {
            // A set or map of nothing is as good as none.
            (Kind::Texts, Some(Json::Array(items))) if items.is_empty() => Json::Null,
            (Kind::Labels, Some(Json::Object(labels))) if labels.is_empty() => Json::Null,
            (Kind::Texts, Some(Json::Array(mut items))) => {
                items.sort_by(|left, right| left.as_str().cmp(&right.as_str()));
                Json::Array(items)
            }
            (Kind::Number, Some(Json::Number(number))) => json!(number.as_f64()),
            (_, json) => json.unwrap_or_default(),
        }
    }
}

/// A whole number is one, however it was written.
fn whole(number: &serde_json::Number) -> Value {
    match number.as_f64() {
        Some(float) if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < 9e15 => {
            Value::Number((float as i64).into())
        }
        _ => Value::Number(number.clone()),
    }
}

impl Kind {
    fn of_shape(shape: &Shape) -> Self {
        match *shape {
            Shape::Flag => Kind::Flag,
            Shape::Whole { .. } | Shape::Number => Kind::Number,
            Shape::Text(_) => Kind::Text,
            Shape::Texts(_) => Kind::Texts,
            Shape::Labels => Kind::Labels,
            Shape::Free => Kind::JsonText,
            Shape::Record(fields) => Kind::Record(fields.iter().map(Attribute::of_field).collect()),
        }
    }

    fn cty(&self) -> Json {
        match self {
            Kind::Text | Kind::JsonText => json!("string"),
            Kind::Flag => json!("bool"),
            Kind::Number => json!("number"),
            Kind::Texts => json!(["set", "string"]),
            Kind::Lines => json!(["list", "string"]),
            Kind::Labels => json!(["map", "string"]),
            Kind::Record(_) => json!("dynamic"),
        }
    }
}

/// JSON of what is set among attributes.
pub fn json_of(attributes: &[Attribute], values: &BTreeMap<String, Value>) -> Map<String, Json> {
    let set = attributes.iter().filter_map(|attribute| {
        let json = attribute.json_of(values.get(&attribute.name)?)?;
        Some((attribute.key.clone(), json))
    });
    set.collect()
}

/// Values of all attributes from JSON.
pub fn values_of(attributes: &[Attribute], json: &Map<String, Json>) -> BTreeMap<String, Value> {
    attributes.iter().map(|one| (one.name.clone(), one.value_of(json.get(&one.key)))).collect()
}

/// `maxProducersPerTopic` as `max_producers_per_topic`, `messageTTL` as `message_ttl`.
pub fn snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::with_capacity(name.len() + 8);
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| letters[before]);
        let lower_before = before.is_some_and(|before| before.is_ascii_lowercase() || before.is_ascii_digit());
        let word_begins = before.is_some_and(|before| before.is_ascii_uppercase())
            && letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if letter.is_ascii_uppercase() && (lower_before || word_begins) {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_terraform() {
        for (name, expected) in [
            ("messageTTL", "message_ttl"),
            ("retentionSizeInMB", "retention_size_in_mb"),
            ("offloadDeletionLagMs", "offload_deletion_lag_ms"),
            ("destination_storage", "destination_storage"),
            ("isAllowAutoUpdateSchema", "is_allow_auto_update_schema"),
        ] {
            assert_eq!(snake(name), expected);
        }
    }

    #[test]
    fn a_record_is_planned_with_its_defaults_and_comes_back_as_it_was() {
        let fields = &meridian_policy::schema::NAMESPACE;
        let spec = fields.iter().find(|spec| spec.name == "dispatchRate").unwrap();
        let attribute = Attribute::of_policy(spec.name, &spec.shape, spec.about);
        let config =
            Value::Map(BTreeMap::from([("dispatch_throttling_rate_in_msg".to_owned(), Value::Number(5.into()))]));
        let planned = attribute.planned(&config);
        let json = attribute.json_of(&planned).unwrap();
        assert_eq!(spec.shape.complete(&json).unwrap(), json, "nothing is left for the region to fill in");
        assert_eq!(attribute.value_of(Some(&json)), planned);
    }
}
