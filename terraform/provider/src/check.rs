//! What declarative documents say of a configuration: the same checks, told at attributes.

use crate::attribute::{Attribute, Kind};
use crate::resource::Values;
use crate::told::Told;
use crate::value::Value;
use meridian_declare::{Document, Problem};
use serde_json::Value as Json;

/// Stands for names that are not known yet.
pub const NOT_KNOWN: &str = "not-known-yet";

/// Checks a document that one resource makes; `under` is the path of what the resource describes.
pub fn document(document: &Json, under: &str, attributes: &[Attribute], config: &Values, names: &[&str]) -> Vec<Told> {
    match Document::check(document) {
        Ok(_) => Vec::new(),
        Err(problems) => {
            problems.iter().filter_map(|problem| told(problem, under, attributes, config, names)).collect()
        }
    }
}

/// A problem of a document, at the attribute that it comes from. A value that is not known yet has none.
pub fn told(problem: &Problem, under: &str, attributes: &[Attribute], config: &Values, names: &[&str]) -> Option<Told> {
    let told = Told::error("The document can't be", problem.to_string());
    let Some(rest) = problem.path.strip_prefix(under) else {
        return Some(match names.first() {
            Some(name) => told.at(&[name]),
            None => told,
        });
    };
    let mut at = Vec::new();
    let (mut level, mut value) = (attributes, config.get(""));
    for key in rest.split(['.', '[']).filter(|key| !key.is_empty() && *key != "policies") {
        let Some(attribute) = level.iter().find(|attribute| attribute.key == key) else { break };
        value = match value {
            Some(Value::Map(inner)) => inner.get(&attribute.name),
            _ if at.is_empty() => config.get(&attribute.name),
            _ => None,
        };
        at.push(attribute.name.clone());
        level = match &attribute.kind {
            Kind::Record(fields) => fields,
            _ => &[],
        };
    }
    if value.is_some_and(|value| !value.is_known()) {
        return None;
    }
    if at.is_empty() {
        let name = names.last().filter(|_| rest.is_empty());
        let told = Told { summary: "It can't be as it is".to_owned(), ..told };
        return Some(name.map_or(told.clone(), |name| told.at(&[name])));
    }
    let summary = format!("{} can't be so", at.join("."));
    // Terraform shows the line of an attribute, not of what is within it.
    at.truncate(1);
    Some(Told { at, summary, ..told })
}
