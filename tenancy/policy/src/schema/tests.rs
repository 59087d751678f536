//! The table is whole, and reads what it sets.

use super::{Absent, Field, NAMESPACE, PolicySpec, Shape, TOPIC};
use crate::{Policies, TopicPolicies};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// A value of a shape that is no default.
fn example(shape: &Shape) -> Value {
    match *shape {
        Shape::Flag => json!(true),
        Shape::Whole { min, max } => json!((min + 7).min(max)),
        Shape::Number => json!(2.5),
        Shape::Text(names) => json!(names.last().unwrap_or(&"text")),
        Shape::Texts(names) => json!([names.last().unwrap_or(&"text")]),
        Shape::Labels => json!({ "a": "b" }),
        Shape::Free => json!({ "driver": "x" }),
        Shape::Record(fields) => {
            let required = |field: &&Field| field.absent == Absent::Refused || fields.len() < 3;
            fields.iter().filter(required).map(|field| (field.name.to_owned(), example(&field.shape))).collect()
        }
    }
}

/// Every policy with a value, set by the table.
fn all_set<P: Default>(table: &[PolicySpec<P>]) -> P {
    let mut policies = P::default();
    for spec in table {
        // The one plain flag that is on by itself.
        let value = if spec.name.ends_with("WithReplicator") { json!(false) } else { example(&spec.shape) };
        let value = spec.shape.complete(&value).unwrap_or_else(|misfits| panic!("{}: {misfits:?}", spec.name));
        (spec.write)(&mut policies, "here", value.clone()).unwrap_or_else(|error| panic!("{}: {error}", spec.name));
        assert_eq!((spec.read)(&policies, "here"), value, "{}", spec.name);
        assert_eq!(spec.shape.complete(&value).unwrap(), value, "{}", spec.name);
    }
    policies
}

fn all_unset<P>(table: &[PolicySpec<P>], policies: &mut P) {
    for spec in table {
        (spec.write)(policies, "here", Value::Null).unwrap();
        assert!((spec.read)(policies, "here").is_null(), "{} is unset", spec.name);
    }
}

/// Fields of `after` that are not as in `before`.
fn changed(before: &Value, after: &Value) -> BTreeSet<String> {
    let none = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&none), after.as_object().unwrap_or(&none));
    after.iter().filter(|(name, value)| before.get(*name) != Some(value)).map(|(name, _)| name.clone()).collect()
}

#[test]
fn no_policy_of_a_namespace_is_missing() {
    let fresh = Policies::of_cluster("here", 4).unwrap();
    let before = serde_json::to_value(&fresh).unwrap();
    let mut policies = all_set(NAMESPACE);
    policies.bundles.clone_from(&fresh.bundles);
    let mut covered = changed(&before, &serde_json::to_value(&policies).unwrap());
    // No policies: grants, hash ranges, states of a namespace, and three fields that no call sets.
    let others = [
        "auth_policies",
        "bundles",
        "deleted",
        "migrated",
        "clusterDispatchRate",
        "latency_stats_sample_rate",
        "bookieAffinityGroup",
    ];
    covered.extend(others.map(str::to_owned));
    let source = include_str!("../namespace.rs");
    let body = source.split("pub struct Policies {").nth(1).unwrap().split("\n}\n").next().unwrap();
    let fields = body.lines().filter(|line| line.trim_start().starts_with("pub ")).count();
    assert_eq!(covered.len(), fields, "a field of Policies is neither a policy nor named as none: {covered:?}");
    all_unset(NAMESPACE, &mut policies);
    assert_eq!(serde_json::to_value(&policies).unwrap(), before);
}

#[test]
fn no_policy_of_a_topic_is_missing() {
    let mut policies = all_set(TOPIC);
    let mut covered = changed(&json!({}), &serde_json::to_value(&policies).unwrap());
    // Of subscriptions, and no call sets it.
    covered.insert("subscriptionPolicies".to_owned());
    let source = include_str!("../topic.rs");
    let body = source.split("pub struct TopicPolicies {").nth(1).unwrap().split("\n}\n").next().unwrap();
    let fields = body.lines().filter(|line| line.trim_start().starts_with("pub ")).count();
    assert_eq!(covered.len(), fields, "a field of TopicPolicies is neither a policy nor named as none: {covered:?}");
    all_unset(TOPIC, &mut policies);
    assert_eq!(policies, TopicPolicies::default());
}

#[test]
fn names_are_used_once_and_every_policy_says_what_it_is_for() {
    let namespace: BTreeSet<_> = NAMESPACE.iter().map(|spec| spec.name).collect();
    let topic: BTreeSet<_> = TOPIC.iter().map(|spec| spec.name).collect();
    assert_eq!((namespace.len(), topic.len()), (NAMESPACE.len(), TOPIC.len()));
    assert!(
        NAMESPACE.iter().all(|spec| spec.about.ends_with('.')) && TOPIC.iter().all(|spec| spec.about.ends_with('.'))
    );
}

#[test]
fn the_page_of_policies_says_of_each_what_it_does() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/policies.md")).unwrap();
    let names = NAMESPACE.iter().map(|spec| spec.name).chain(TOPIC.iter().map(|spec| spec.name));
    let missing: BTreeSet<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/policies.md does not speak of {missing:?}");
}

#[test]
fn a_default_that_is_set_reads_as_unset() {
    let mut policies = Policies::of_cluster("here", 4).unwrap();
    for (name, value) in [("offloadThreshold", json!(-1)), ("replication", json!(["here"])), ("properties", json!({}))]
    {
        let spec = NAMESPACE.iter().find(|spec| spec.name == name).unwrap();
        (spec.write)(&mut policies, "here", value).unwrap();
        assert!((spec.read)(&policies, "here").is_null(), "{name}");
    }
}
