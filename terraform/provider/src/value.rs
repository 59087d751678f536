//! Values as Terraform sends them: MessagePack, with a mark for what is not known yet.
//!
//! Invariants: V1 what was decoded is encoded to the same value; V2 a value from outside nests at most [`MAX_DEPTH`] deep.
//! Failure: [`ValueError`]; nothing here panics on input.

use rmpv::Value as Packed;
use serde_json::{Number, Value as Json};
use std::collections::BTreeMap;

/// Deepest nesting of a value.
const MAX_DEPTH: usize = 32;
/// Extensions by which Terraform marks a value that is not known: plain, and with what is known of it.
const UNKNOWN: [i8; 2] = [0, 12];

/// A value.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// Known only after other things were done.
    Unknown,
    /// Not set.
    #[default]
    Null,
    /// True or false.
    Flag(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list or set.
    List(Vec<Value>),
    /// An object or map.
    Map(BTreeMap<String, Value>),
}

/// Why a value can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a value can't be read: {0}")]
pub struct ValueError(String);

impl Value {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Value::Text(text.into())
    }

    /// Reads MessagePack.
    ///
    /// # Errors
    /// [`ValueError`].
    pub fn unpack(mut bytes: &[u8]) -> Result<Self, ValueError> {
        let packed = rmpv::decode::read_value_with_max_depth(&mut bytes, MAX_DEPTH);
        Self::of_packed(packed.map_err(|error| ValueError(error.to_string()))?)
    }

    fn of_packed(packed: Packed) -> Result<Self, ValueError> {
        Ok(match packed {
            Packed::Nil => Value::Null,
            Packed::Boolean(flag) => Value::Flag(flag),
            Packed::Integer(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::Number(number.into()),
                (None, Some(number)) => Value::Number(number.into()),
                (None, None) => return Err(ValueError("a number is out of range".to_owned())),
            },
            Packed::F32(number) => number_of(f64::from(number))?,
            Packed::F64(number) => number_of(number)?,
            Packed::String(text) => {
                Value::Text(text.into_str().ok_or_else(|| ValueError("a text is not UTF-8".to_owned()))?)
            }
            Packed::Array(items) => Value::List(items.into_iter().map(Self::of_packed).collect::<Result<_, _>>()?),
            Packed::Map(pairs) => {
                let mut map = BTreeMap::new();
                for (key, value) in pairs {
                    let key = key.as_str().ok_or_else(|| ValueError("a key is no text".to_owned()))?.to_owned();
                    map.insert(key, Self::of_packed(value)?);
                }
                Value::Map(map)
            }
            Packed::Ext(kind, _) if UNKNOWN.contains(&kind) => Value::Unknown,
            Packed::Ext(kind, _) => return Err(ValueError(format!("extension {kind} is not known"))),
            Packed::Binary(_) => return Err(ValueError("bytes are no value".to_owned())),
        })
    }

    /// Writes MessagePack.
    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = rmpv::encode::write_value(&mut bytes, &self.packed());
        bytes
    }

    fn packed(&self) -> Packed {
        match self {
            Value::Unknown => Packed::Ext(0, vec![0]),
            Value::Null => Packed::Nil,
            Value::Flag(flag) => Packed::Boolean(*flag),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Packed::from(number),
                (None, Some(number)) => Packed::from(number),
                (None, None) => Packed::F64(number.as_f64().unwrap_or_default()),
            },
            Value::Text(text) => Packed::from(text.as_str()),
            Value::List(items) => Packed::Array(items.iter().map(Value::packed).collect()),
            Value::Map(map) => {
                Packed::Map(map.iter().map(|(key, value)| (Packed::from(key.as_str()), value.packed())).collect())
            }
        }
    }

    /// Nothing in it is unknown.
    pub fn is_known(&self) -> bool {
        match self {
            Value::Unknown => false,
            Value::List(items) => items.iter().all(Value::is_known),
            Value::Map(map) => map.values().all(Value::is_known),
            _ => true,
        }
    }

    /// It is not set.
    pub fn is_null(&self) -> bool {
        *self == Value::Null
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is true.
    pub fn is_true(&self) -> bool {
        *self == Value::Flag(true)
    }

    /// As JSON; what is not known is `null`.
    pub fn json(&self) -> Json {
        match self {
            Value::Unknown | Value::Null => Json::Null,
            Value::Flag(flag) => Json::Bool(*flag),
            Value::Number(number) => Json::Number(number.clone()),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => items.iter().map(Value::json).collect(),
            Value::Map(map) => map.iter().map(|(key, value)| (key.clone(), value.json())).collect(),
        }
    }

    /// From JSON.
    pub fn of_json(json: &Json) -> Self {
        match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Flag(*flag),
            Json::Number(number) => Value::Number(number.clone()),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => Value::List(items.iter().map(Value::of_json).collect()),
            Json::Object(map) => {
                Value::Map(map.iter().map(|(key, value)| (key.clone(), Value::of_json(value))).collect())
            }
        }
    }
}

fn number_of(number: f64) -> Result<Value, ValueError> {
    // A whole number is one, however it was written.
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Ok(Value::Number((number as i64).into()));
    }
    Number::from_f64(number).map(Value::Number).ok_or_else(|| ValueError("a number is not finite".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let value = Value::Map(BTreeMap::from([
            ("a".to_owned(), Value::Unknown),
            ("b".to_owned(), Value::List(vec![Value::Null, Value::Flag(true), Value::Number(300.into())])),
        ]));
        let golden = [0x82, 0xa1, b'a', 0xd4, 0, 0, 0xa1, b'b', 0x93, 0xc0, 0xc3, 0xcd, 1, 44];
        assert_eq!(value.pack(), golden);
        assert_eq!(Value::unpack(&golden).unwrap(), value);
        assert!(!value.is_known());
        let refined = [0xc7, 3, 12, 0x81, 1, 0xc2];
        assert_eq!(Value::unpack(&refined).unwrap(), Value::Unknown, "with what is known of it");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Unknown),
            Just(Value::Null),
            any::<bool>().prop_map(Value::Flag),
            any::<i64>().prop_map(|number| Value::Number(number.into())),
            (0.0f64..1.0).prop_filter_map("finite", |number| Number::from_f64(number + 0.25).map(Value::Number)),
            "[a-z]{0,8}".prop_map(Value::Text),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                prop::collection::btree_map("[a-z]{1,3}", inner, 0..4).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn both_ways(value in any_value()) {
            prop_assert_eq!(Value::unpack(&value.pack()).unwrap(), value);
        }

        #[test]
        fn nothing_from_outside_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Value::unpack(&bytes);
        }
    }
}
