//! Declarative documents: applied, applied again, changed by others, shrunk, raced for.

use crate::region::{Answer, Region};
use meridian_policy::schema::{NAMESPACE, Shape, TOPIC};
use serde_json::{Map, Value, json};

const APPLY: &str = "/admin/v2/meridian/apply";

const DOCUMENT: &str = "
owner: platform
regions:
  east: { serviceUrl: 'http://e:8080' }
tenants:
  orders:
    adminRoles: [orders-admin]
    allowedClusters: [standalone, east]
    namespaces:
      live:
        bundles: 8
        policies: { messageTTL: 60, maxProducersPerTopic: 0 }
        grants: { shop: [produce, consume] }
        subscriptionGrants: { billing: [billing] }
        topics:
          placed:
            partitions: 3
            policies: { maxConsumers: 5 }
            grants: { audit: [consume] }
            properties: { team: orders }
            schema: { type: JSON, schema: { type: record, name: o, fields: [] } }
            subscriptions: { billing: { position: earliest } }
          plain:
          quick: { domain: non-persistent, partitions: 2 }
";

async fn apply(region: &Region, how: &str, document: &str, status: u16) -> Value {
    region.expect("PUT", &format!("{APPLY}?{how}"), document, status).await.json()
}

fn changes(answer: &Value) -> Vec<String> {
    let shown = |change: &Value| {
        let fields: Vec<_> = change["fields"]
            .as_array()
            .expect("as the API describes it")
            .iter()
            .map(|field| field["field"].as_str().expect("as the API describes it"))
            .collect();
        format!(
            "{} {} [{}]",
            change["action"].as_str().expect("as the API describes it"),
            change["object"].as_str().expect("as the API describes it"),
            fields.join(" ")
        )
    };
    answer["changes"].as_array().expect("as the API describes it").iter().map(shown).collect()
}

#[tokio::test]
async fn a_document_is_applied_once_and_then_there_is_nothing_to_do() {
    let region = Region::start().await;
    let planned = apply(&region, "dryRun=true", DOCUMENT, 200).await;
    assert_eq!((&planned["state"], planned["changes"].as_array().unwrap().len()), (&json!("planned"), 7));
    region.expect("GET", "/admin/v2/tenants/orders", "", 404).await;
    let first = apply(&region, "", DOCUMENT, 200).await;
    assert_eq!((&first["revision"], &first["changes"]), (&json!(1), &planned["changes"]), "what was planned is done");
    assert_eq!(region.get("/admin/v2/namespaces/orders/live/messageTTL").await, json!(60));
    assert_eq!(region.get("/admin/v2/persistent/orders/live/placed/partitions").await["partitions"], json!(3));
    assert_eq!(region.get("/admin/v2/persistent/orders/live/placed/maxConsumers").await, json!(5));
    assert_eq!(region.get("/admin/v2/persistent/orders/live/placed/subscriptions").await, json!(["billing"]));
    let grants = region.get("/admin/v2/persistent/orders/live/placed/permissions").await;
    assert_eq!(grants, json!({ "audit": ["consume"], "shop": ["produce", "consume"] }));
    let second = apply(&region, "", DOCUMENT, 200).await;
    assert_eq!((&second["revision"], &second["changes"]), (&json!(1), &json!([])), "idempotent");
    let kept = region.get("/admin/v2/meridian/applied/platform").await;
    assert_eq!((&kept["state"], &kept["revision"]), (&json!("applied"), &json!(1)));
    assert_eq!(region.get("/admin/v2/meridian/applied").await, json!(["platform"]));
}

#[tokio::test]
async fn what_others_change_is_shown_and_repaired_and_what_is_not_named_stays() {
    let region = Region::start().await;
    apply(&region, "", DOCUMENT, 200).await;
    region.expect("POST", "/admin/v2/namespaces/orders/live/messageTTL", "5", 204).await;
    region.expect("POST", "/admin/v2/namespaces/orders/live/deduplication", "true", 204).await;
    region.expect("POST", "/admin/v2/namespaces/orders/live/permissions/thief", r#"["consume"]"#, 204).await;
    region.expect("DELETE", "/admin/v2/persistent/orders/live/plain", "", 204).await;
    region.expect("PUT", "/admin/v2/persistent/orders/live/others", "", 204).await;
    let expected = [
        "update namespace orders/live [policies.messageTTL policies.deduplication grants.thief]",
        "create topic persistent://orders/live/plain []",
    ];
    assert_eq!(changes(&apply(&region, "dryRun=true", DOCUMENT, 200).await), expected);
    assert_eq!(changes(&apply(&region, "prune=true", DOCUMENT, 200).await), expected);
    assert_eq!(changes(&apply(&region, "", DOCUMENT, 200).await), [""; 0]);
    region.expect("GET", "/admin/v2/persistent/orders/live/others/stats", "", 200).await;
}

#[tokio::test]
async fn what_is_not_named_any_more_goes_when_asked() {
    let region = Region::start().await;
    apply(&region, "", DOCUMENT, 200).await;
    let less = "owner: platform\ntenants: { orders: { allowedClusters: [standalone], namespaces: { live: ~ } } }";
    let kept = apply(&region, "", less, 200).await;
    assert_eq!((kept["changes"].as_array().unwrap().len(), kept["left"].as_array().unwrap().len()), (1, 5));
    let pruned = changes(&apply(&region, "prune=true", less, 200).await);
    assert_eq!(pruned.len(), 5, "{pruned:?}");
    assert!(pruned[0].starts_with("delete subscription") && pruned[4].starts_with("delete region east"), "{pruned:?}");
    region.expect("GET", "/admin/v2/persistent/orders/live/placed/stats", "", 404).await;
    let grants = &region.get("/admin/v2/namespaces/orders/live").await["auth_policies"]["destination_auth"];
    assert_eq!(grants, &json!({}), "a later topic of that name is somebody else's");
    region.expect("DELETE", "/admin/v2/meridian/applied/platform?prune=true", "", 204).await;
    region.expect("GET", "/admin/v2/tenants/orders", "", 404).await;
    region.expect("GET", "/admin/v2/meridian/applied/platform", "", 404).await;
}

#[tokio::test]
async fn two_appliers_never_race() {
    let region = Region::start().await;
    apply(&region, "revision=1", DOCUMENT, 409).await;
    apply(&region, "revision=0", DOCUMENT, 200).await;
    let with = |ttl: u32| DOCUMENT.replace("messageTTL: 60", &format!("messageTTL: {ttl}"));
    let (first, second) = (with(1), with(2));
    let path = format!("{APPLY}?revision=1");
    let (one, other) = tokio::join!(region.call("PUT", &path, &first), region.call("PUT", &path, &second));
    let good = |answer: &Answer| answer.status.is_success();
    assert!(good(&one) != good(&other), "{one:?} {other:?}");
    let refused = if good(&one) { other } else { one };
    assert_eq!(refused.status.as_u16(), 409, "{refused:?}");
    let ttl = region.get("/admin/v2/namespaces/orders/live/messageTTL").await;
    let document = region.get("/admin/v2/meridian/applied/platform").await["document"].clone();
    assert_eq!(document["tenants"]["orders"]["namespaces"]["live"]["policies"]["messageTTL"], ttl);
}

#[tokio::test]
async fn a_bad_document_changes_nothing_and_every_problem_has_its_path() {
    let region = Region::start().await;
    let bad = DOCUMENT.replace("messageTTL: 60", "messageTTL: -1").replace("maxConsumers: 5", "maxConsumer: 5");
    let refused = apply(&region, "", &bad, 412).await;
    let paths: Vec<_> =
        refused["problems"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    let base = "tenants.orders.namespaces.live";
    let expected = [format!("{base}.policies.messageTTL"), format!("{base}.topics.placed.policies.maxConsumer")];
    assert_eq!(paths, expected);
    assert!(refused["reason"].as_str().unwrap().contains("expected a whole number from 0 to 4294967295"));
    apply(&region, "", "a: [", 412).await;
    apply(&region, "", "home: elsewhere", 412).await;
    region.expect("GET", "/admin/v2/tenants/orders", "", 404).await;
    apply(&region, "", DOCUMENT, 200).await;
    let fewer = DOCUMENT.replace("partitions: 3", "partitions: 2");
    let refused = apply(&region, "", &fewer, 412).await;
    assert!(refused["reason"].as_str().unwrap().ends_with("is 2, expected at least 3: partitions only grow"));
    let foreign = DOCUMENT.replace("messageTTL: 60", "replication: [standalone, east, west]");
    let refused = apply(&region, "", &foreign, 412).await;
    assert!(refused["reason"].as_str().unwrap().contains("none of the tenant's allowedClusters"));
}

#[tokio::test]
async fn who_may_not_administer_may_not_apply() {
    let region = Region::of_nobody().await;
    region.expect("PUT", APPLY, "tenants: { t: { namespaces: { n: ~ } } }", 403).await;
    region.expect("PUT", &format!("{APPLY}?dryRun=true"), "tenants: { public: ~ }", 403).await;
    region.expect("PUT", APPLY, "quotas: { topics: 1 }", 401).await;
    region.expect("GET", "/admin/v2/meridian/export?cluster=own", "", 401).await;
    for path in ["applied", "export?region=standalone"] {
        region.expect("GET", &format!("/admin/v2/meridian/{path}"), "", 401).await;
    }
    let unknown = region.expect("GET", "/admin/v2/meridian/applied/x", "", 403).await.reason();
    assert_eq!(unknown, "role nobody may not act for owner x");
    region.expect("GET", "/admin/v2/meridian/export?namespace=public/default", "", 403).await;
    region.expect("DELETE", "/admin/v2/meridian/applied/x", "", 403).await;
}

#[tokio::test]
async fn one_object_is_set_only_where_it_belongs() {
    let region = Region::start().await;
    let topic = "tenants: { t: { namespaces: { n: { topics: { x: { partitions: 2 } } } } } }";
    let refused = apply(&region, "leaf=true", topic, 404).await;
    assert_eq!(refused["reason"], "tenant t does not exist");
    apply(&region, "leaf=true&create=true", "tenants: { t: { adminRoles: [] } }", 200).await;
    assert_eq!(apply(&region, "leaf=true", topic, 404).await["reason"], "namespace t/n does not exist");
    apply(&region, "leaf=true&create=true", "tenants: { t: { namespaces: { n: ~ } } }", 200).await;
    apply(&region, "leaf=true&create=true", topic, 200).await;
    let refused = apply(&region, "leaf=true&create=true", topic, 409).await;
    assert_eq!(refused["reason"], "topic persistent://t/n/x already exists");
    let read = region.get("/admin/v2/meridian/export?topic=persistent://t/n/x").await;
    assert_eq!((&read["partitions"], &read["region"]), (&json!(2), &json!("standalone")));
    region.expect("GET", "/admin/v2/meridian/export?topic=persistent://t/n/y", "", 404).await;
}

const LIMITED: &str = "
owner: limits
quotas: { connections: 1000 }
tenants:
  orders:
    allowedClusters: [standalone]
    quotas: { topics: 10, publishBytesPerSecond: 5000 }
    namespaces:
      live:
        quotas: { producers: 10 }
        tenantQuotas: { producers: 5 }
        topics: { placed: { partitions: 2, quotas: { consumers: 0 } } }
";

#[tokio::test]
async fn limits_are_applied_at_every_level_read_back_repaired_and_removed() {
    const QUOTAS: &str = "/admin/v2/meridian/quotas";
    let region = Region::start().await;
    let planned = apply(&region, "dryRun=true", LIMITED, 200).await;
    assert_eq!(region.get(&format!("{QUOTAS}/cluster")).await["operator"], json!({}), "a plan does nothing");
    assert_eq!(apply(&region, "", LIMITED, 200).await["changes"], planned["changes"]);
    assert_eq!(changes(&apply(&region, "", LIMITED, 200).await), [""; 0], "idempotent");
    let at = async |place: &str, layer: &str| region.get(&format!("{QUOTAS}/{place}")).await[layer].clone();
    assert_eq!(at("cluster", "operator").await, json!({ "connections": 1000 }));
    assert_eq!(at("tenants/orders", "operator").await, json!({ "topics": 10, "publishBytesPerSecond": 5000 }));
    assert_eq!(at("namespaces/orders/live", "operator").await, json!({ "producers": 10 }));
    assert_eq!(at("namespaces/orders/live", "tenant").await, json!({ "producers": 5 }));
    let placed = "topics/persistent/orders/live/placed";
    assert_eq!(at(placed, "operator").await, json!({ "consumers": 0 }), "none allowed is not unset");
    // Others change them.
    region.expect("DELETE", &format!("{QUOTAS}/cluster"), "", 204).await;
    region.expect("PUT", &format!("{QUOTAS}/tenants/orders"), r#"{"topics":11,"producers":1}"#, 204).await;
    region.expect("PUT", &format!("{QUOTAS}/{placed}?layer=tenant"), r#"{"consumers":7}"#, 204).await;
    let expected = [
        "update the cluster's limits [quotas.connections]",
        "update tenant orders [quotas.publishBytesPerSecond quotas.topics quotas.producers]",
    ];
    assert_eq!(changes(&apply(&region, "dryRun=true", LIMITED, 200).await), expected, "a layer not named stays");
    assert_eq!(changes(&apply(&region, "", LIMITED, 200).await), expected);
    assert_eq!(changes(&apply(&region, "", LIMITED, 200).await), [""; 0]);
    assert_eq!(at(placed, "tenant").await, json!({ "consumers": 7 }));
    // What the region says is what a document says.
    let said = region.get("/admin/v2/meridian/export?namespace=orders/live").await;
    assert_eq!((&said["quotas"], &said["tenantQuotas"]), (&json!({ "producers": 10 }), &json!({ "producers": 5 })));
    assert_eq!(region.get("/admin/v2/meridian/export?cluster=own").await["quotas"], json!({ "connections": 1000 }));
    // One limit less, and then none.
    let less = LIMITED.replace(", publishBytesPerSecond: 5000", "");
    assert_eq!(changes(&apply(&region, "", &less, 200).await), ["update tenant orders [quotas.publishBytesPerSecond]"]);
    apply(&region, "", &LIMITED.replace("topics: 10", "topics: -1"), 412).await;
    let gone = changes(&apply(&region, "prune=true", "owner: limits", 200).await);
    assert_eq!(gone.last().map(String::as_str), Some("delete the cluster's limits []"), "{gone:?}");
    assert_eq!(region.get(QUOTAS).await, json!([]), "nothing is limited any more");
    // A tenant and a topic made anew begin without limits, however they went.
    apply(&region, "", LIMITED, 200).await;
    region.expect("DELETE", "/admin/v2/persistent/orders/live/placed/partitions", "", 204).await;
    region.expect("DELETE", "/admin/v2/tenants/orders?force=true", "", 204).await;
    region.expect("DELETE", &format!("{QUOTAS}/cluster"), "", 204).await;
    assert_eq!(region.get(QUOTAS).await, json!([]), "nothing is left behind");
}

/// A value of a shape that is no default.
fn example(shape: &Shape) -> Value {
    match *shape {
        Shape::Flag => json!(true),
        Shape::Whole { min, max } => json!((min + 7).min(max)),
        Shape::Number => json!(2.5),
        Shape::Text(names) => json!(names.last().unwrap_or(&"text")),
        Shape::Texts(names) => json!([names.last().unwrap_or(&"standalone")]),
        Shape::Labels => json!({ "a": "b" }),
        Shape::Free => json!({ "driver": "x" }),
        Shape::Record(fields) => fields.iter().map(|field| (field.name.to_owned(), example(&field.shape))).collect(),
    }
}

/// Values that fit each other.
fn examples(rows: impl Iterator<Item = (&'static str, Shape)>) -> Map<String, Value> {
    let special = |name: &str| match name {
        "persistence" => Some(json!({ "bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1 })),
        "replication" | "allowedClusters" => Some(json!(["east", "standalone"])),
        "retention" => Some(json!({ "retentionTimeInMinutes": 600, "retentionSizeInMB": 600 })),
        "isAllowAutoUpdateSchemaWithReplicator" => Some(json!(false)),
        _ => None,
    };
    rows.map(|(name, shape)| (name.to_owned(), special(name).unwrap_or_else(|| example(&shape)))).collect()
}

#[tokio::test]
async fn every_policy_is_applied_read_back_and_repaired() {
    let region = Region::start().await;
    let of_namespace = examples(NAMESPACE.iter().map(|spec| (spec.name, spec.shape)));
    let of_topic = examples(TOPIC.iter().map(|spec| (spec.name, spec.shape)));
    let document = |namespace: &Value, topic: &Value| {
        let namespaces = json!({ "n": { "policies": namespace, "topics": { "x": { "policies": topic } } } });
        let tenant = json!({ "allowedClusters": ["standalone", "east"], "namespaces": namespaces });
        json!({ "regions": { "east": { "serviceUrl": "http://e:8080" } }, "tenants": { "t": tenant } }).to_string()
    };
    let (all, none) = (document(&json!(of_namespace), &json!(of_topic)), document(&json!({}), &json!({})));
    let told = apply(&region, "", &all, 412).await;
    let no_group = "tenants.t.namespaces.n.policies.resourcegroup: ResourceGroup does not exist";
    assert_eq!(told["reason"], no_group, "a group that is not there limits nothing");
    region.expect("PUT", "/admin/v2/resourcegroups/text", r#"{"publishRateInMsgs":1000000}"#, 204).await;
    apply(&region, "", &all, 200).await;
    assert_eq!(changes(&apply(&region, "", &all, 200).await), [""; 0]);
    let read = region.get("/admin/v2/meridian/export?namespace=t/n").await;
    assert_eq!(read["policies"].as_object().unwrap().len(), NAMESPACE.len(), "{read}");
    let read = region.get("/admin/v2/meridian/export?topic=persistent://t/n/x").await;
    assert_eq!(read["policies"].as_object().unwrap().len(), TOPIC.len(), "{read}");
    // Each one behind the document's back.
    for name in of_namespace.keys().filter(|name| *name != "replication") {
        let mut others = of_namespace.clone();
        others.remove(name);
        let plain = json!({ "tenants": { "t": { "namespaces": { "n": { "policies": others } } } } }).to_string();
        assert_eq!(
            changes(&apply(&region, "", &plain, 200).await),
            [format!("update namespace t/n [policies.{name}]")]
        );
        let shown = changes(&apply(&region, "", &all, 200).await);
        assert_eq!(shown, [format!("update namespace t/n [policies.{name}]")]);
    }
    for name in of_topic.keys() {
        let mut others = of_topic.clone();
        others.remove(name);
        let topics = json!({ "x": { "policies": others } });
        let plain = json!({ "tenants": { "t": { "namespaces": { "n": { "topics": topics } } } } }).to_string();
        apply(&region, "", &plain, 200).await;
        let shown = changes(&apply(&region, "", &all, 200).await);
        assert_eq!(shown, [format!("update topic persistent://t/n/x [policies.{name}]")]);
    }
    apply(&region, "", &none, 200).await;
    let read = region.get("/admin/v2/meridian/export?namespace=t/n").await;
    assert_eq!(read["policies"], json!({}), "everything is unset again");
}
