//! Documents, good and bad, and the plans that they make.

use crate::plan::Allowed;
use crate::{
    Action, Actual, Document, Facet, Group, Manifest, Object, ObjectId, Problem, Refused, State, compare, read, render,
    render_one,
};
use meridian_types::{NamespaceName, TopicName};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

const WHOLE: &str = "
apiVersion: meridian/v1
owner: platform
home: west
regions:
  west: { serviceUrl: 'http://w:8080', brokerServiceUrl: 'pulsar://w:6650', authenticationParameters: s3cret }
  east: { serviceUrl: 'http://e:8080', brokerServiceUrl: 'pulsar://e:6650' }
tenants:
  orders:
    adminRoles: [b, a]
    allowedClusters: [west, east]
    namespaces:
      live:
        bundles: 8
        policies:
          messageTTL: 3600
          replication: [west, east]
          retention: { retentionTimeInMinutes: 60, retentionSizeInMB: 512 }
          dispatchRate: { dispatchThrottlingRateInMsg: 100 }
        grants: { shop: [produce, consume] }
        subscriptionGrants: { billing: [billing] }
        failover: { active: west }
        topics:
          placed:
            partitions: 4
            policies: { maxProducers: 0 }
            properties: { team: orders }
            schema: { type: AVRO, schema: { type: string } }
            subscriptions:
              billing: { position: earliest, replicated: true }
          seen:
            domain: non-persistent
      empty:
";

fn document(text: &str) -> Document {
    Document::check(&read(text.as_bytes()).unwrap()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn problems(text: &str) -> Vec<String> {
    let told = Document::check(&read(text.as_bytes()).unwrap()).unwrap_err();
    told.iter().map(Problem::to_string).collect()
}

fn live() -> ObjectId {
    ObjectId::Namespace(NamespaceName::parse("orders/live").unwrap())
}

fn placed() -> ObjectId {
    ObjectId::Topic(TopicName::parse("persistent://orders/live/placed").unwrap())
}

/// What is there after a plan was carried out.
fn carried_out(mut actual: Actual, plan: &crate::Plan) -> Actual {
    for step in &plan.steps {
        if step.action == Action::Delete {
            actual.remove(&step.object);
            continue;
        }
        let object = actual.entry(step.object.clone()).or_default();
        for change in step.changes.iter().filter(|change| !change.facet.is_of_creation()) {
            object.set(change.facet.clone(), change.to.clone());
        }
    }
    actual
}

const PRUNE: Allowed = Allowed { prune: true, switch: false };

#[test]
fn a_whole_document_is_read() {
    let document = document(WHOLE);
    let kinds: Vec<_> = document.objects.keys().map(ObjectId::kind).collect();
    let expected = "region region tenant namespace namespace topic topic subscription";
    assert_eq!(kinds.join(" "), expected, "in the order of creation");
    let policy = |name: &str| document.objects[&live()].get(&Facet::Of(Group::Policies, name.into())).cloned();
    assert_eq!(policy("messageTTL"), Some(json!(3600)));
    let rate = json!({ "dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": false, "ratePeriodInSecond": 1 });
    assert_eq!(policy("dispatchRate"), Some(rate), "completed");
    assert_eq!(document.objects[&placed()].field("schema").unwrap()["schema"], r#"{"type":"string"}"#);
    let maximum = Facet::Of(Group::Policies, "maxProducers".into());
    assert_eq!(document.objects[&placed()].get(&maximum), Some(&json!(0)), "zero is not unset");
    assert!(!document.without_secrets().to_string().contains("s3cret"), "D5");
    assert_eq!(document.regions().collect::<Vec<_>>(), ["east", "west"]);
}

#[test]
fn every_problem_names_its_path_and_the_limit() {
    let told = problems(
        "
apiVersion: v2
owner: a b
regions: { west: { serviceUrl: 'ftp://x' } }
tenants:
  'bad/name': {}
  t:
    adminRoles: [' a']
    allowedClusters: []
    namespace: {}
    namespaces:
      n:
        bundles: 5000
        policies:
          messageTTL: -1
          mesageTTL: 5
          nothingLikeIt: 1
          dispatchRate: { ratePeriodInSecond: 0 }
          persistence: { bookkeeperEnsemble: 1 }
        grants: { r: [write] }
        failover: {}
        topics:
          x: { partitions: many, policies: { maxProducersPerTopic: 1 }, domain: persistent }
          y: { domain: kept }
          z: { subscriptions: { s: { position: newest } }, schema: {} }
          'a-partition-1': {}
",
    );
    let expected = [
        "apiVersion: is \"v2\", expected \"meridian/v1\"",
        "owner: is \"a b\", expected at most 64 letters, digits and any of _ - .",
        "regions.west: ftp://x: an admin address begins with http://",
        "tenants[\"bad/name\"]: tenant name 'bad/name': may hold letters, digits and any of _ - = : .",
        "tenants.t.namespace: is not known; there are adminRoles, allowedClusters, quotas, namespaces",
        "tenants.t.adminRoles: holds \" a\", expected no space around it",
        "tenants.t.allowedClusters: is empty, expected at least one region",
        "tenants.t.namespaces.n.bundles: is 5000, expected a whole number from 1 to 4096",
        "tenants.t.namespaces.n.policies.dispatchRate.ratePeriodInSecond: is 0, expected a whole number from 1 to 86400",
        "tenants.t.namespaces.n.policies.mesageTTL: is not known; did you mean messageTTL?",
        "tenants.t.namespaces.n.policies.nothingLikeIt: is not known; there are 45 policies, see the reference of policies",
        "tenants.t.namespaces.n.policies.messageTTL: is -1, expected a whole number from 0 to 4294967295",
        "tenants.t.namespaces.n.grants.r: is [\"write\"], expected some of produce, consume, functions, sources, sinks, packages",
        "tenants.t.namespaces.n.failover.active: is missing, expected the name of a region",
        "tenants.t.namespaces.n.policies: Bookkeeper Ensemble (1) >= WriteQuorum (2) >= AckQuorum (2)",
        "tenants.t.namespaces.n.topics.a-partition-1: is no name that a topic can have",
        "tenants.t.namespaces.n.topics.x.partitions: is \"many\", expected a whole number from 0 to 100000",
        "tenants.t.namespaces.n.topics.x.policies.maxProducersPerTopic: is not known; did you mean maxProducers?",
        "tenants.t.namespaces.n.topics.y.domain: is \"kept\", expected persistent or non-persistent",
        "tenants.t.namespaces.n.topics.z.schema.type: is missing, expected a kind of schema, for example AVRO or JSON",
        "tenants.t.namespaces.n.topics.z.subscriptions.s.position: is \"newest\", expected earliest or latest",
    ];
    let told: BTreeSet<_> = told.iter().map(String::as_str).collect();
    assert_eq!(told, BTreeSet::from(expected));
}

#[test]
fn policies_and_regions_that_do_not_fit_together_are_refused() {
    let told = problems(
        "
tenants:
  t:
    allowedClusters: [west]
    namespaces:
      n:
        policies:
          replication: [west, east]
          retention: { retentionTimeInMinutes: 1, retentionSizeInMB: 1 }
          backlogQuota: { destination_storage: { limitSize: 2000000, policy: producer_exception } }
        failover: { active: north }
",
    );
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].ends_with("a backlog quota is below the retention"), "{told:?}");
    let path = "tenants.t.namespaces.n.policies.replication: holds \"east\"";
    assert!(told[1].starts_with(path), "{told:?}");
    assert!(told[2].starts_with("tenants.t.namespaces.n.failover.active: is \"north\""), "{told:?}");
}

#[test]
fn a_plan_leads_there_and_then_nothing_is_left_to_do() {
    let document = document(WHOLE);
    let plan = compare(&document, &Actual::new(), &BTreeSet::new(), Allowed::default()).unwrap();
    assert_eq!(plan.steps.len(), 8);
    let there = carried_out(Actual::new(), &plan);
    let again = compare(&document, &there, &document.objects.keys().cloned().collect(), PRUNE).unwrap();
    assert_eq!(again, crate::Plan::default(), "D1");
    assert!(!plan.steps[1].shown().to_string().contains("s3cret"), "D5");
}

#[test]
fn a_group_is_meant_whole_and_what_is_not_spoken_of_stays() {
    let there = carried_out(
        Actual::new(),
        &compare(&document(WHOLE), &Actual::new(), &BTreeSet::new(), Allowed::default()).unwrap(),
    );
    let less = document("tenants: { orders: { namespaces: { live: { policies: { messageTTL: 60 } } } } }");
    let plan = compare(&less, &there, &BTreeSet::new(), PRUNE).unwrap();
    let changes: Vec<_> =
        plan.steps[0].changes.iter().map(|change| format!("{} {}", change.facet.path(), change.to)).collect();
    let expected = [
        "policies.messageTTL 60",
        "policies.dispatchRate null",
        "policies.replication null",
        "policies.retention null",
    ];
    assert_eq!(changes, expected, "grants and the rest stay: D3");
    assert_eq!(plan.steps.len(), 1, "D2: nobody owned what is not named");
}

const LIMITED: &str = "
owner: platform
quotas: { connections: 1000, publishBytesPerSecond: ~ }
tenants:
  orders:
    quotas: { topics: 0, publishBytesPerSecond: 5000 }
    namespaces:
      live:
        quotas: { producers: 10 }
        tenantQuotas: { producers: 5 }
        topics:
          placed: { partitions: 4, quotas: { consumers: 3 }, tenantQuotas: {} }
";

#[test]
fn limits_are_planned_at_every_level_and_unset_is_apart_from_zero() {
    let limited = document(LIMITED);
    let plan = compare(&limited, &Actual::new(), &BTreeSet::new(), Allowed::default()).unwrap();
    let shown: Vec<_> = plan.steps.iter().map(|step| (step.object.to_string(), step.changes.len())).collect();
    let expected = [
        ("the cluster's limits", 1),
        ("tenant orders", 2),
        ("namespace orders/live", 2),
        ("topic persistent://orders/live/placed", 2),
    ];
    assert_eq!(shown, expected.map(|(object, changes)| (object.to_owned(), changes)), "from the outside in");
    assert_eq!(plan.steps[0].shown()["fields"][0]["field"], "quotas.connections");
    let topics = Facet::Of(Group::Quotas, "topics".into());
    assert_eq!(limited.objects[&ObjectId::Tenant("orders".into())].get(&topics), Some(&json!(0)));
    let there = carried_out(Actual::new(), &plan);
    assert!(compare(&limited, &there, &BTreeSet::new(), PRUNE).unwrap().is_empty(), "D1");
    // A layer that stands there is meant whole, the other one stays.
    let less = document("tenants: { orders: { quotas: {}, namespaces: { live: { tenantQuotas: {} } } } }");
    let plan = compare(&less, &there, &BTreeSet::new(), PRUNE).unwrap();
    let changes: Vec<_> = plan.steps.iter().flat_map(|step| &step.changes).map(|change| change.facet.path()).collect();
    assert_eq!(changes, ["quotas.publishBytesPerSecond", "quotas.topics", "tenantQuotas.producers"], "D3");
    assert!(plan.steps.iter().flat_map(|step| &step.changes).all(|change| change.to.is_null()));
    // What is there can be written as a document, the whole region's limits too.
    let mut rendered = there.clone();
    rendered.iter_mut().for_each(|(id, object)| object.groups.clone_from(&limited.objects[id].groups));
    assert_eq!(Document::check(&render(&rendered)).unwrap().objects, rendered);
    // The region's own limits are the last to go.
    let owned: BTreeSet<_> = limited.objects.keys().cloned().collect();
    let gone = compare(&document("owner: platform"), &there, &owned, PRUNE).unwrap();
    assert_eq!(gone.steps.last().unwrap().object, ObjectId::Cluster);
    let manifest = Manifest::begin(None, &limited, "platform", "a", None, 5).unwrap();
    let next =
        Manifest::begin(Some(&manifest.end(true, &BTreeSet::new())), &document("owner: platform"), "p", "a", None, 6);
    let next = next.unwrap();
    assert_eq!(Manifest::decode(&next.encode()).unwrap(), next, "with the region's limits among what is left");
}

#[test]
fn limits_that_can_not_be_are_told_with_their_path() {
    let told = problems(
        "
quotas: { topic: 1 }
tenants:
  t:
    quotas: { publishBytesPerSecond: 0, producers: -1, topics: many }
    tenantQuotas: {}
    namespaces:
      n:
        quotas: { namespaces: 1 }
        tenantQuotas: { producers: 1.5 }
        topics:
          x: { quotas: { topics: 1 } }
",
    );
    let most = i64::MAX;
    let expected = [
        "quotas.topic: is not known; there are publishMessagesPerSecond, publishBytesPerSecond, dispatchMessagesPerSecond, dispatchBytesPerSecond, replicationMessagesPerSecond, replicationBytesPerSecond, storedBytes, backlogBytes, namespaces, topics, partitions, producers, consumers, subscriptions, connections".to_owned(),
        format!("tenants.t.quotas.publishBytesPerSecond: is 0, expected a whole number from 1 to {most}"),
        format!("tenants.t.quotas.producers: is -1, expected a whole number from 0 to {most}"),
        format!("tenants.t.quotas.topics: is \"many\", expected a whole number from 0 to {most}"),
        "tenants.t.tenantQuotas: is not known; there are adminRoles, allowedClusters, quotas, namespaces".to_owned(),
        format!("tenants.t.namespaces.n.tenantQuotas.producers: is 1.5, expected a whole number from 0 to {most}"),
    ];
    for expected in expected {
        assert!(told.contains(&expected), "{expected}: {told:#?}");
    }
    let elsewhere = |path: &str| told.iter().any(|one| one.starts_with(path));
    assert!(elsewhere("tenants.t.namespaces.n.quotas.namespaces: is no limit of a namespace; there are"), "{told:#?}");
    assert!(elsewhere("tenants.t.namespaces.n.topics.x.quotas.topics: is no limit of a topic; there are"), "{told:#?}");
    assert_eq!(told.len(), 8, "{told:#?}");
}

#[test]
fn only_what_the_owner_named_is_deleted_and_only_when_asked() {
    let before = document(WHOLE);
    let there =
        carried_out(Actual::new(), &compare(&before, &Actual::new(), &BTreeSet::new(), Allowed::default()).unwrap());
    let owned: BTreeSet<_> = before.objects.keys().cloned().collect();
    let mut there = there;
    there.insert(ObjectId::Tenant("others".into()), Object::default());
    let after = document("owner: platform\ntenants: { orders: { namespaces: { live: ~ } } }");
    let kept = compare(&after, &there, &owned, Allowed::default()).unwrap();
    assert!(kept.is_empty());
    assert_eq!(kept.left.len(), 6);
    let pruned = compare(&after, &there, &owned, PRUNE).unwrap();
    let gone: Vec<_> = pruned.steps.iter().map(|step| step.object.kind()).collect();
    assert_eq!(gone.join(" "), "subscription topic topic namespace region region", "the other way round");
    assert!(carried_out(there, &pruned).contains_key(&ObjectId::Tenant("others".into())), "D2");
}

#[test]
fn what_can_not_be_reached_is_told_before_anything_is_done() {
    let mut there = Actual::new();
    let mut topic = Object::default();
    topic.set(Facet::Field("partitions"), json!(8));
    there.insert(placed(), topic);
    let mut namespace = Object::default();
    namespace.set(Facet::Field("bundles"), json!(4));
    there.insert(live(), namespace);
    let told = compare(&document(WHOLE), &there, &BTreeSet::new(), PRUNE).unwrap_err();
    let told: Vec<_> = told.iter().map(Problem::to_string).collect();
    let expected = [
        "tenants.orders.namespaces.live.bundles: is 8, expected 4: bundles are set when the namespace is made",
        "tenants.orders.namespaces.live.topics.placed.partitions: is 4, expected at least 8: partitions only grow",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_namespace_is_switched_only_when_asked() {
    let document = document(WHOLE);
    let plan = compare(&document, &Actual::new(), &BTreeSet::new(), Allowed::default()).unwrap();
    let mut there = carried_out(Actual::new(), &plan);
    there.get_mut(&live()).unwrap().set(Facet::Field("failover"), json!("east"));
    let plan = compare(&document, &there, &BTreeSet::new(), Allowed::default()).unwrap();
    assert!(plan.is_empty() && plan.elsewhere.len() == 1, "somebody switched, perhaps for a reason");
    let plan = compare(&document, &there, &BTreeSet::new(), Allowed { switch: true, prune: false }).unwrap();
    assert_eq!(plan.steps[0].changes[0].to, json!("west"));
}

#[test]
fn of_two_appliers_the_second_is_refused() {
    let document = document(WHOLE);
    let first = Manifest::begin(None, &document, "platform", "a", Some(0), 1000).unwrap();
    assert_eq!((first.revision, first.state), (1, State::Applying { until_ms: 1000 + crate::LEASE_MS }));
    let refused = Manifest::begin(Some(&first), &document, "platform", "b", Some(0), 2000).unwrap_err();
    assert_eq!(refused, Refused::UnderWay { revision: 1, by: "a".into(), left_ms: crate::LEASE_MS - 1000 });
    let done = first.clone().end(true, &BTreeSet::new());
    let stale = Manifest::begin(Some(&done), &document, "platform", "b", Some(0), 2000).unwrap_err();
    assert_eq!(stale, Refused::Stale { expected: 0, found: 1 });
    assert_eq!(Manifest::begin(Some(&done), &document, "platform", "b", None, 2000).unwrap().revision, 2);
    let late = Manifest::begin(Some(&first), &document, "platform", "b", Some(1), 1001 + crate::LEASE_MS).unwrap();
    assert_eq!(late.revision, 2, "one that was cut off keeps nobody waiting for ever");
}

#[test]
fn a_manifest_remembers_what_it_owned_until_it_is_gone() {
    let whole = Manifest::begin(None, &document(WHOLE), "p", "a", None, 5).unwrap().end(true, &BTreeSet::new());
    let less = document("owner: p\ntenants: { orders: ~ }");
    let next = Manifest::begin(Some(&whole), &less, "p", "a", None, 6).unwrap();
    assert_eq!(next.left.len(), 7);
    let gone: BTreeSet<_> = next.left.iter().skip(2).cloned().collect();
    let next = next.end(false, &gone);
    assert_eq!((next.left.len(), next.owned().len()), (2, 3));
    assert_eq!(Manifest::decode(&next.encode()).unwrap(), next);
    assert!(!next.is_settled_for(&less) && next.end(true, &BTreeSet::new()).is_settled_for(&less));
}

#[test]
fn what_holds_in_a_region_without_being_set_is_not_set() {
    let text = "tenants: { t: { namespaces: { n: { policies: { replication: [west], offloadThreshold: -1, messageTTL: 0 } } } } }";
    let mut settled = document(text);
    settled.settle("west");
    let object = settled.objects.values().nth(1).unwrap();
    assert_eq!(object.facets.keys().map(Facet::path).collect::<Vec<_>>(), ["policies.messageTTL"]);
    let mut elsewhere = document(text);
    elsewhere.settle("east");
    assert_eq!(elsewhere.objects.values().nth(1).unwrap().facets.len(), 2, "replication to west alone is meant");
}

#[test]
fn golden_bytes_of_a_manifest() {
    let document = document("owner: p\ntenants: { t: { adminRoles: [a] } }");
    let manifest = Manifest::begin(None, &document, "p", "me", None, 7).unwrap().end(true, &BTreeSet::new());
    let golden = r#"{"atMs":7,"by":"me","document":{"owner":"p","tenants":{"t":{"adminRoles":["a"]}}},"left":[],"operators":null,"owner":"p","revision":1,"state":"applied","untilMs":null,"v":1}"#;
    assert_eq!(String::from_utf8(manifest.encode()).unwrap(), golden);
    assert_eq!(Manifest::decode(golden.as_bytes()).unwrap(), manifest);
    // An earlier program did not say whose it is.
    let earlier = golden.replace("\"operators\":null,", "");
    assert_eq!(Manifest::decode(earlier.as_bytes()).unwrap(), manifest);
    let operators = Manifest { operators: Some(true), ..manifest };
    assert_eq!(Manifest::decode(&operators.encode()).unwrap(), operators);
    let newer = golden.replace("\"v\":1", "\"v\":2");
    assert!(Manifest::decode(newer.as_bytes()).unwrap_err().problem.contains("version 2"));
}

proptest! {
    /// Whatever is there, one plan leads to a state that the same document finds nothing to change in (D1).
    #[test]
    fn any_two_documents_converge(first in tenants(), second in tenants()) {
        let (first, second) = (Document::check(&first).unwrap(), Document::check(&second).unwrap());
        let plan = compare(&first, &Actual::new(), &BTreeSet::new(), PRUNE).unwrap();
        let there = carried_out(Actual::new(), &plan);
        let owned: BTreeSet<_> = first.objects.keys().cloned().collect();
        let there = carried_out(there.clone(), &compare(&second, &there, &owned, PRUNE).unwrap());
        let again = compare(&second, &there, &owned, PRUNE).unwrap();
        prop_assert!(again.is_empty(), "{again:?}");
        prop_assert_eq!(there.keys().collect::<Vec<_>>(), second.objects.keys().collect::<Vec<_>>());
    }

    /// What is, written as a document, names the same and changes nothing.
    #[test]
    fn what_is_can_be_written_as_a_document(given in tenants()) {
        let document = Document::check(&given).unwrap();
        let plan = compare(&document, &Actual::new(), &BTreeSet::new(), PRUNE).unwrap();
        let mut there = carried_out(Actual::new(), &plan);
        there.iter_mut().for_each(|(id, object)| object.groups.clone_from(&document.objects[id].groups));
        let again = Document::check(&render(&there)).unwrap();
        prop_assert_eq!(&again.objects, &there);
        for object in there.values() {
            prop_assert!(render_one(object).is_object());
        }
    }

    /// Nothing from outside makes the reader panic.
    #[test]
    fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(value) = read(&bytes) {
            let _ = Document::check(&value);
        }
        let _ = Manifest::decode(&bytes);
    }
}

fn tenants() -> impl Strategy<Value = serde_json::Value> {
    let topic = (0u64..3, prop::option::of(0u32..9)).prop_map(|(properties, maximum)| {
        let labels: serde_json::Map<_, _> = (0..properties).map(|label| (format!("l{label}"), json!("v"))).collect();
        json!({ "policies": { "maxConsumers": maximum }, "properties": labels, "quotas": { "consumers": maximum } })
    });
    let topics = prop::collection::btree_map("[a-c]", topic, 0..3);
    let namespace = (prop::option::of(0u32..100), topics)
        .prop_map(|(ttl, topics)| json!({ "policies": { "messageTTL": ttl }, "grants": {}, "tenantQuotas": { "topics": ttl }, "topics": topics }));
    let namespaces = prop::collection::btree_map("[a-c]", namespace, 0..3);
    let tenant = namespaces.prop_map(|namespaces| json!({ "adminRoles": ["r"], "namespaces": namespaces }));
    prop::collection::btree_map("[a-c]", tenant, 0..3).prop_map(|tenants| json!({ "tenants": tenants }))
}
