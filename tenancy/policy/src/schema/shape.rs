//! What a value of a policy looks like: kinds, ranges, fields and their defaults, as data.
//!
//! Role: whoever takes policies from outside (documents, infrastructure tools) checks and completes values by the same
//! description that their own schemas are made from.
//! Invariants: a completed value has every field that has a default, sets are sorted and without repetition, and
//! completing it again changes nothing.
//! Failure: [`Misfit`] with the place within the value and the limit; all of them, not only the first.
//! Must never know: which policy it is, where it is stored.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// True or false.
    Flag,
    /// A whole number.
    Whole {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A number from 0.
    Number,
    /// A text; one of these, or any that is not empty if there are none.
    Text(&'static [&'static str]),
    /// A set of texts; each one of these, or any that is not empty if there are none.
    Texts(&'static [&'static str]),
    /// Texts by name.
    Labels,
    /// Any JSON.
    Free,
    /// Fields.
    Record(&'static [Field]),
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// What holds if it is left out.
    pub absent: Absent,
    /// What it is for, in one line.
    pub about: &'static str,
}

/// What a field that is left out means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Absent {
    /// It has to be there.
    Refused,
    /// Nothing.
    Unset,
    /// This.
    Flag(bool),
    /// This.
    Whole(i64),
    /// This.
    Number(f64),
    /// This.
    Text(&'static str),
}

impl Absent {
    /// The value that stands for a field left out.
    pub fn value(&self) -> Option<Value> {
        match *self {
            Absent::Refused | Absent::Unset => None,
            Absent::Flag(flag) => Some(Value::from(flag)),
            Absent::Whole(number) => Some(Value::from(number)),
            Absent::Number(number) => Some(Value::from(number)),
            Absent::Text(text) => Some(Value::from(text)),
        }
    }
}

/// Why a value does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Names of fields down to the place, from the outside.
    pub at: Vec<String>,
    /// What is there and what may be.
    pub problem: String,
}

impl Misfit {
    fn here(problem: impl Into<String>) -> Self {
        Self { at: Vec::new(), problem: problem.into() }
    }

    fn within(mut self, name: &str) -> Self {
        self.at.insert(0, name.to_owned());
        self
    }
}

/// A value as an error shows it: short.
fn seen(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Shape {
    /// Checks a value and fills in what it leaves out.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn complete(&self, value: &Value) -> Result<Value, Vec<Misfit>> {
        let refuse = |expected: String| Err(vec![Misfit::here(format!("is {}, expected {expected}", seen(value)))]);
        match *self {
            Shape::Flag if value.is_boolean() => Ok(value.clone()),
            Shape::Flag => refuse("true or false".to_owned()),
            Shape::Whole { min, max } => match value.as_i64().or_else(|| whole(value)) {
                Some(number) if (min..=max).contains(&number) => Ok(Value::from(number)),
                _ => refuse(format!("a whole number from {min} to {max}")),
            },
            Shape::Number => match value.as_f64() {
                Some(number) if number >= 0.0 => Ok(Value::from(number)),
                _ => refuse("a number from 0".to_owned()),
            },
            Shape::Text(names) => match value.as_str() {
                Some(text) if fits(text, names) => Ok(value.clone()),
                _ => refuse(kind_of(names)),
            },
            Shape::Texts(names) => match value.as_array() {
                Some(items) => texts(items, names),
                None => refuse(format!("a list, each {}", kind_of(names))),
            },
            Shape::Labels => match value.as_object() {
                Some(labels) => labels_of(labels),
                None => refuse("texts by name".to_owned()),
            },
            Shape::Free => Ok(value.clone()),
            Shape::Record(fields) => match value.as_object() {
                Some(given) => record(given, fields),
                None => {
                    refuse(format!("fields ({})", fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")))
                }
            },
        }
    }
}

/// A whole number that came as one with a fraction of 0.
fn whole(value: &Value) -> Option<i64> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9e15)?;
    Some(number as i64)
}

fn fits(text: &str, names: &[&str]) -> bool {
    if names.is_empty() { !text.is_empty() } else { names.contains(&text) }
}

fn kind_of(names: &[&str]) -> String {
    if names.is_empty() { "a text that is not empty".to_owned() } else { format!("one of {}", names.join(", ")) }
}

fn texts(items: &[Value], names: &[&str]) -> Result<Value, Vec<Misfit>> {
    let (mut set, mut misfits) = (BTreeSet::new(), Vec::new());
    for item in items {
        match item.as_str().filter(|text| fits(text, names)) {
            Some(text) => drop(set.insert(text.to_owned())),
            None => misfits.push(Misfit::here(format!("holds {}, expected {}", seen(item), kind_of(names)))),
        }
    }
    if misfits.is_empty() { Ok(set.into_iter().collect()) } else { Err(misfits) }
}

fn labels_of(labels: &Map<String, Value>) -> Result<Value, Vec<Misfit>> {
    let wrong = labels.iter().filter(|(_, value)| !value.is_string());
    let misfits: Vec<_> =
        wrong.map(|(name, value)| Misfit::here(format!("is {}, expected a text", seen(value))).within(name)).collect();
    if misfits.is_empty() { Ok(Value::Object(labels.clone())) } else { Err(misfits) }
}

fn record(given: &Map<String, Value>, fields: &[Field]) -> Result<Value, Vec<Misfit>> {
    let (mut whole, mut misfits) = (Map::new(), Vec::new());
    for field in fields {
        match (given.get(field.name).filter(|value| !value.is_null()), field.absent) {
            (Some(value), _) => match field.shape.complete(value) {
                Ok(value) => drop(whole.insert(field.name.to_owned(), value)),
                Err(inner) => misfits.extend(inner.into_iter().map(|misfit| misfit.within(field.name))),
            },
            (None, Absent::Refused) => misfits.push(Misfit::here("is missing").within(field.name)),
            (None, absent) => drop(absent.value().map(|value| whole.insert(field.name.to_owned(), value))),
        }
    }
    for name in given.keys().filter(|name| !fields.iter().any(|field| field.name == name.as_str())) {
        let known = fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
        misfits.push(Misfit::here(format!("is not known; there are {known}")).within(name));
    }
    if misfits.is_empty() { Ok(Value::Object(whole)) } else { Err(misfits) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RATE: Shape = Shape::Record(&[
        Field { name: "messages", shape: Shape::Whole { min: -1, max: 9 }, absent: Absent::Refused, about: "" },
        Field { name: "period", shape: Shape::Whole { min: 1, max: 60 }, absent: Absent::Whole(1), about: "" },
    ]);

    #[test]
    fn a_value_is_completed_once_and_for_all() {
        let completed = RATE.complete(&json!({ "messages": 3.0 })).unwrap();
        assert_eq!(completed, json!({ "messages": 3, "period": 1 }));
        assert_eq!(RATE.complete(&completed).unwrap(), completed);
        assert_eq!(Shape::Texts(&[]).complete(&json!(["b", "a", "b"])).unwrap(), json!(["a", "b"]));
    }

    #[test]
    fn every_misfit_is_told_with_its_place_and_limit() {
        let misfits = RATE.complete(&json!({ "messages": 10, "periode": 1, "period": 0 })).unwrap_err();
        let told: Vec<_> =
            misfits.iter().map(|misfit| format!("{}: {}", misfit.at.join("."), misfit.problem)).collect();
        assert_eq!(
            told,
            [
                "messages: is 10, expected a whole number from -1 to 9",
                "period: is 0, expected a whole number from 1 to 60",
                "periode: is not known; there are messages, period",
            ]
        );
        assert_eq!(RATE.complete(&json!({})).unwrap_err()[0].problem, "is missing");
        let names = Shape::Texts(&["a", "b"]).complete(&json!(["a", "c", 1])).unwrap_err();
        assert_eq!(names[0].problem, "holds \"c\", expected one of a, b");
        assert_eq!(names.len(), 2);
        assert_eq!(Shape::Flag.complete(&json!("yes")).unwrap_err()[0].problem, "is \"yes\", expected true or false");
    }
}
