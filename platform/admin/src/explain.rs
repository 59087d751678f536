//! Bodies that do not fit, explained: which field, and what would fit.
//!
//! Failure: 400 with the field and the values it may have.
//! Must never know: which call a body belongs to.

use crate::error::AdminError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// How numbers of a width are called by the parser, and what they may be.
const LIMITS: &[(&str, &str)] = &[
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected i32", "expected a whole number from -2147483648 to 2147483647"),
    ("expected u64", "expected a whole number from 0 to 18446744073709551615"),
    ("expected i64", "expected a whole number from -9223372036854775808 to 9223372036854775807"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected an object"),
];

/// A value of a kind from JSON; `name` is what it is called in the answer.
///
/// # Errors
/// 400.
pub fn read<T: DeserializeOwned>(name: &str, value: &Value) -> Result<T, AdminError> {
    // The parser takes a list for an object, field by field; nobody means that.
    if value.is_array() && serde_json::from_value::<T>(Value::Object(Map::new())).is_ok() {
        let place = if name.is_empty() { "the body" } else { name };
        return Err(AdminError::bad_request(format!("{place}: a list, expected an object")));
    }
    serde_json::from_value(value.clone()).map_err(|error| {
        let (place, error) = match culprit::<T>(value) {
            Some((field, why)) if name.is_empty() => (field.to_owned(), why),
            Some((field, why)) => (format!("{name}.{field}"), why),
            None if name.is_empty() => ("the body".to_owned(), error.to_string()),
            None => (name.to_owned(), error.to_string()),
        };
        AdminError::bad_request(format!("{place}: {}", with_limits(&error)))
    })
}

/// The first field that does not fit by itself, and why. All fields of what is read here have a default.
fn culprit<T: DeserializeOwned>(value: &Value) -> Option<(&str, String)> {
    let fields = value.as_object()?;
    fields.iter().find_map(|(name, field)| {
        let alone = Map::from_iter([(name.clone(), field.clone())]);
        let error = serde_json::from_value::<T>(Value::Object(alone)).err()?;
        Some((name.as_str(), error.to_string()))
    })
}

/// Names of types are told as what they hold.
fn with_limits(text: &str) -> String {
    if let Some((before, _)) = text.split_once("expected struct ") {
        return format!("{before}expected an object");
    }
    let limit = LIMITS.iter().find(|(kind, _)| text.contains(kind));
    limit.map_or_else(|| text.to_owned(), |(kind, limit)| text.replace(kind, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_policy::{DispatchRate, Policies};
    use serde_json::json;

    #[test]
    fn the_field_and_its_limits_are_named() {
        let refused = |value: Value| read::<DispatchRate>("dispatchRate", &value).unwrap_err().reason;
        let text = refused(json!({ "dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": -1 }));
        assert_eq!(
            text,
            "dispatchRate.ratePeriodInSecond: invalid value: integer `-1`, expected a whole number from 0 to 4294967295"
        );
        assert_eq!(refused(json!(7)), "dispatchRate: invalid type: integer `7`, expected an object");
        let text = read::<Policies>("", &json!({ "message_ttl_in_seconds": -4 })).unwrap_err().reason;
        assert!(text.starts_with("message_ttl_in_seconds: "), "{text}");
        assert!(read::<Policies>("", &json!([])).is_err());
    }
}
