//! Walking a document: every problem with its path.
//!
//! Invariants: reading goes on after a problem, so that one run tells them all; beyond [`MAX_PROBLEMS`] they are counted
//! only.

use meridian_types::{Classify, ErrorClass};
use serde_json::{Map, Value};
use std::fmt;

/// Problems that are told one by one.
pub const MAX_PROBLEMS: usize = 50;

/// Something that can't be, and where the document says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// Path in the document; empty = the document as a whole.
    pub path: String,
    /// What is there, and what may be.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the document" } else { &self.path };
        write!(f, "{place}: {}", self.problem)
    }
}

impl Classify for Problem {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

impl Problem {
    /// About the document as a whole.
    pub fn of_document(problem: impl Into<String>) -> Self {
        Self { path: String::new(), problem: problem.into() }
    }

    /// About a place.
    pub fn at(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }
}

/// Collects problems.
#[derive(Default)]
pub(crate) struct Problems {
    told: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub(crate) fn tell(&mut self, path: &str, problem: impl Into<String>) {
        if self.told.len() < MAX_PROBLEMS {
            self.told.push(Problem::at(path, problem));
        } else {
            self.more += 1;
        }
    }

    /// Nothing was wrong.
    pub(crate) fn none(&self) -> bool {
        self.told.is_empty()
    }

    /// All of them.
    pub(crate) fn into_told(mut self) -> Vec<Problem> {
        if self.more > 0 {
            self.told.push(Problem::of_document(format!("has {} more problems", self.more)));
        }
        self.told
    }
}

/// A value as an error shows it: short.
pub(crate) fn seen(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A place in the document: a map, its path, and which of its keys were taken.
pub(crate) struct Place<'a> {
    pub(crate) path: String,
    fields: &'a Map<String, Value>,
    known: &'static [&'static str],
}

impl<'a> Place<'a> {
    /// A map with these keys and no others.
    pub(crate) fn open(
        path: String,
        value: &'a Value,
        known: &'static [&'static str],
        problems: &mut Problems,
    ) -> Option<Self> {
        let fields = map(&path, value, problems)?;
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            problems.tell(&join(&path, name), format!("is not known; there are {}", known.join(", ")));
        }
        Some(Self { path, fields, known })
    }

    /// What a key holds; nothing and `null` are the same.
    pub(crate) fn get(&self, name: &'static str) -> Option<&'a Value> {
        debug_assert!(self.known.contains(&name), "{name}");
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// The path of a key.
    pub(crate) fn at(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// Key by key what a map under a key holds, each with its path. Nothing and `null` are an empty map.
    pub(crate) fn each(&self, name: &'static str, problems: &mut Problems) -> Vec<(String, &'a str, &'a Value)> {
        let (Some(value), path) = (self.get(name), self.at(name)) else { return Vec::new() };
        let Some(fields) = map(&path, value, problems) else { return Vec::new() };
        fields.iter().map(|(key, value)| (join(&path, key), key.as_str(), value)).collect()
    }

    /// A text.
    pub(crate) fn text(&self, name: &'static str, problems: &mut Problems) -> Option<&'a str> {
        let value = self.get(name)?;
        let text = value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            problems.tell(&self.at(name), format!("is {}, expected a text that is not empty", seen(value)));
        }
        text
    }

    /// A whole number within limits.
    pub(crate) fn whole(&self, name: &'static str, (min, max): (u64, u64), problems: &mut Problems) -> Option<u64> {
        let value = self.get(name)?;
        let number = value.as_u64().filter(|number| (min..=max).contains(number));
        if number.is_none() {
            problems.tell(&self.at(name), format!("is {}, expected a whole number from {min} to {max}", seen(value)));
        }
        number
    }

    /// True or false.
    pub(crate) fn flag(&self, name: &'static str, problems: &mut Problems) -> Option<bool> {
        let value = self.get(name)?;
        if !value.is_boolean() {
            problems.tell(&self.at(name), format!("is {}, expected true or false", seen(value)));
        }
        value.as_bool()
    }
}

fn map<'a>(path: &str, value: &'a Value, problems: &mut Problems) -> Option<&'a Map<String, Value>> {
    // A key with nothing behind it is how YAML writes an empty map.
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        Value::Object(fields) => Some(fields),
        Value::Null => Some(&EMPTY),
        _ => {
            problems.tell(path, format!("is {}, expected names with values", seen(value)));
            None
        }
    }
}

/// A path one step further; a name that holds a dot or a slash stands in brackets.
pub(crate) fn join(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && !name.contains(['.', '[', ']', '/', ' ', ':']);
    match (path.is_empty(), plain) {
        (true, true) => name.to_owned(),
        (false, true) => format!("{path}.{name}"),
        (_, false) => format!("{path}[\"{name}\"]"),
    }
}
