//! The admin API as an OpenAPI document.
//!
//! Role: every call that is answered, its path and methods; policies come from the tables that serve them, the rest from
//! the list below, which a test compares with the router.
//! Invariants: O1 no call is missing and none is too many.
//! Failure: none.
//! Must never know: what a call does.

use crate::reply::Reply;
use crate::{namespaces, topics};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Paths with their methods, but for single policies.
const CALLS: &[(&str, &str)] = &[];

/// Base of the policies of namespaces, and of topics.
const NAMESPACE: &str = "/admin/v2/namespaces/{tenant}/{namespace}";
const TOPIC: &str = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}";

/// All paths with their methods.
pub fn calls() -> BTreeMap<String, Vec<&'static str>> {
    let mut all: BTreeMap<String, Vec<&'static str>> =
        CALLS.iter().map(|(path, methods)| ((*path).to_owned(), methods.split(' ').collect())).collect();
    let of_namespaces = namespaces::policies::names().map(|row| (NAMESPACE, row));
    for (base, (name, by_put, removable)) in of_namespaces.chain(topics::policies::names().map(|row| (TOPIC, row))) {
        let mut methods = vec!["get", if by_put { "put" } else { "post" }];
        methods.extend(removable.then_some("delete"));
        all.insert(format!("{base}/{name}"), methods);
    }
    all
}

/// The document.
pub fn document() -> Value {
    let paths: Map<String, Value> = calls().iter().map(|(path, methods)| (plain(path), item(path, methods))).collect();
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Meridian admin API",
            "description": "The admin API of Pulsar, with calls of Meridian's own under /admin/v2/meridian.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "required": ["reason"],
                    "properties": { "reason": { "type": "string" } },
                },
            },
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "password": { "type": "http", "scheme": "basic" },
            },
        },
        "security": [{ "token": [] }, { "password": [] }, {}],
    })
}

/// A path without the mark of a part that holds slashes.
fn plain(path: &str) -> String {
    path.replace("{*", "{")
}

fn item(path: &str, methods: &[&str]) -> Value {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    let parameters: Vec<Value> = names
        .map(|name| {
            let name = name.trim_start_matches('*');
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    let mut item = Map::new();
    for method in methods {
        item.insert((*method).to_owned(), operation(path, method));
    }
    if !parameters.is_empty() {
        item.insert("parameters".to_owned(), Value::Array(parameters));
    }
    Value::Object(item)
}

fn operation(path: &str, method: &str) -> Value {
    let refusal = json!({
        "description": "refused, with a reason",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
    });
    let mut operation = json!({
        "operationId": format!("{method}{}", path.replace(['/', '{', '}', '*', '.'], "_")),
        "tags": [tag(path)],
        "responses": { "2XX": { "description": "done" }, "4XX": refusal, "5XX": refusal },
    });
    if matches!(method, "put" | "post") {
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": {} } } });
    }
    operation
}

/// What a call is about: the first part of its path below the version.
fn tag(path: &str) -> &str {
    let below = path.strip_prefix("/admin/v2/").or(path.strip_prefix("/admin/v3/")).unwrap_or(&path[1..]);
    match below.split('/').next().unwrap_or_default() {
        "{domain}" => "topics",
        part => part,
    }
}

/// The document over HTTP; it is the same for everybody.
pub async fn page() -> Reply {
    Reply::json(&document())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_parameters_and_refusals() {
        let document = document();
        let retention = &document["paths"]["/admin/v2/namespaces/{tenant}/{namespace}/retention"];
        assert_eq!(retention["parameters"].as_array().map(Vec::len), Some(2));
        assert!(retention["delete"].is_object() && retention["put"].is_null());
        assert_eq!(retention["get"]["responses"]["4XX"]["description"], "refused, with a reason");
        assert_eq!(retention["get"]["tags"][0], "namespaces");
    }
}
