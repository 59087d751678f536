//! Reading JSON as tolerantly as administrators' clients need it.
//!
//! Invariants: a numeric string is a number; an unknown name of an enumeration is unset; nothing else is bent.
//! Failure: serde's error.
//! Must never know: which fields use it.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A number, a numeric string, or unset.
pub(crate) fn number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::String(text) => {
            let number: serde_json::Number = text.trim().parse().map_err(|_| D::Error::custom("expected a number"))?;
            Value::Number(number)
        }
        value => value,
    };
    serde_json::from_value(value).map(Some).map_err(D::Error::custom)
}

/// A known name, or unset.
pub(crate) fn known<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// A known name, or the default.
pub(crate) fn known_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(known(deserializer)?.unwrap_or_default())
}

/// A list in which what comes again is passed over, or unset.
pub(crate) fn once_each<'de, D>(deserializer: D) -> Result<Option<Vec<String>>, D::Error>
where
    D: Deserializer<'de>,
{
    let Some(given) = Option::<Vec<String>>::deserialize(deserializer)? else { return Ok(None) };
    let mut kept: Vec<String> = Vec::with_capacity(given.len());
    for item in given {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    Ok(Some(kept))
}

/// A value, or its default for `null`.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
