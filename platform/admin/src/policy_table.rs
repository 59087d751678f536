//! Policies as rows of a table: name in the path, how to read, set and unset one.
//!
//! Role: namespaces and topics have dozens of policies that differ in nothing but a field and a check; each is one row.
//! Invariants: A4 a value is checked before it is stored; unset is apart from zero.
//! Failure: 412 for values outside what is accepted, 400 for bodies of another kind.

use crate::error::AdminError;
use axum::http::StatusCode;
use meridian_policy::EffectivePolicies;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a setter is given.
pub struct Input<'a> {
    /// The body.
    pub value: Value,
    /// The broker's cluster, by which rates of namespaces are kept.
    pub cluster: &'a str,
}

impl Input<'_> {
    /// The value as a type; a text that holds a number is one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, AdminError> {
        let direct = serde_json::from_value(self.value.clone());
        let (Err(error), Value::String(text)) = (&direct, &self.value) else {
            return direct.map_err(|error| AdminError::bad_request(error.to_string()));
        };
        serde_json::from_str(text).map_err(|_| AdminError::bad_request(error.to_string()))
    }

    /// A number from 0, or unset; 412 with the text for anything below.
    pub fn count(&self, refusal: &str) -> Result<Option<u32>, AdminError> {
        let number: Option<i64> = self.parse()?;
        match number {
            None => Ok(None),
            Some(number) => u32::try_from(number).map(Some).map_err(|_| AdminError::invalid(refusal)),
        }
    }
}

/// One policy of `P`.
pub struct Row<P: 'static> {
    /// Its name in the path.
    pub name: &'static str,
    /// Set by PUT instead of POST.
    pub by_put: bool,
    /// Status of a change.
    pub set_status: StatusCode,
    /// Reads it for a cluster; `null` = not set.
    pub read: fn(&P, &str) -> Value,
    /// Sets it.
    pub write: fn(&mut P, &Input<'_>) -> Result<(), AdminError>,
    /// Unsets it, if that has a meaning.
    pub remove: Option<fn(&mut P, &str)>,
    /// What is in force.
    pub applied: Option<fn(&EffectivePolicies) -> Value>,
}

impl<P> Row<P> {
    /// A row that is set by POST and answers 204.
    pub const fn new(
        name: &'static str,
        read: fn(&P, &str) -> Value,
        write: fn(&mut P, &Input<'_>) -> Result<(), AdminError>,
    ) -> Self {
        Self { name, by_put: false, set_status: StatusCode::NO_CONTENT, read, write, remove: None, applied: None }
    }

    /// Set by PUT instead.
    #[must_use]
    pub const fn put(mut self) -> Self {
        self.by_put = true;
        self
    }

    /// Answers another status to a change.
    #[must_use]
    pub const fn answering(mut self, status: StatusCode) -> Self {
        self.set_status = status;
        self
    }

    /// Can be unset.
    #[must_use]
    pub const fn removed_by(mut self, remove: fn(&mut P, &str)) -> Self {
        self.remove = Some(remove);
        self
    }

    /// Shows what is in force on request.
    #[must_use]
    pub const fn applied_by(mut self, applied: fn(&EffectivePolicies) -> Value) -> Self {
        self.applied = Some(applied);
        self
    }
}

/// A part of policies as JSON.
pub fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A row whose field holds the value as it comes. `Line` is the caller's kind of row.
macro_rules! field {
    ($name:literal, $field:ident) => {
        Line::new(
            $name,
            |policies, _| shown(&policies.$field),
            |policies, input| {
                policies.$field = input.parse()?;
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = Default::default())
    };
}

/// A row whose field holds a number from 0.
macro_rules! count {
    ($name:literal, $field:ident, $refusal:literal) => {
        Line::new(
            $name,
            |policies, _| shown(&policies.$field),
            |policies, input| {
                policies.$field = input.count($refusal)?;
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = None)
    };
}

/// A row whose field holds values by cluster.
macro_rules! rate {
    ($name:literal, $field:ident) => {
        Line::new(
            $name,
            |policies, cluster| shown(&policies.$field.get(cluster)),
            |policies, input| {
                policies.$field.insert(input.cluster.to_owned(), input.parse()?);
                Ok(())
            },
        )
        .removed_by(|policies, cluster| {
            policies.$field.remove(cluster);
        })
    };
}

pub(crate) use {count, field, rate};

#[cfg(test)]
mod tests {
    use super::*;

    fn input(value: Value) -> Input<'static> {
        Input { value, cluster: "here" }
    }

    #[test]
    fn numbers_may_come_as_text_and_below_zero_is_refused() {
        assert_eq!(input(Value::from("7")).count("x"), Ok(Some(7)));
        assert_eq!(input(Value::from(0)).count("x"), Ok(Some(0)));
        assert_eq!(input(Value::Null).count("x"), Ok(None));
        assert_eq!(input(Value::from(-1)).count("below"), Err(AdminError::invalid("below")));
        assert_eq!(input(Value::Bool(true)).count("x").unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(input(Value::from("true")).parse::<bool>(), Ok(true));
    }
}
