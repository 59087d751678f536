//! What is served, route by route, in the order in which an administrator would use it.

use crate::region::Region;
use serde_json::{Value, json};

/// Method, path, body, status. `T`: a topic of a tenant of its own, `N`: its namespace.
type Row = (&'static str, &'static str, &'static str, u16);

const CLUSTER: &[Row] = &[
    ("GET", "/status.html", "", 200),
    ("GET", "/metrics", "", 200),
    ("GET", "/admin/v2/clusters", "", 200),
    ("GET", "/admin/v2/clusters/standalone", "", 200),
    ("PUT", "/admin/v2/clusters/east", r#"{"serviceUrl":"http://east:8080"}"#, 200),
    ("PUT", "/admin/v2/clusters/east", r#"{"serviceUrl":"http://east:8080"}"#, 409),
    ("POST", "/admin/v2/clusters/east", r#"{"serviceUrl":"http://east:8081"}"#, 200),
    ("POST", "/admin/v2/clusters/east", r#"{"serviceUrl":"ftp://east"}"#, 400),
    ("GET", "/admin/v2/clusters/east/peers", "", 200),
    ("POST", "/admin/v2/clusters/east/peers", r#"["standalone"]"#, 204),
    ("POST", "/admin/v2/clusters/east/peers", r#"["east"]"#, 412),
    ("GET", "/admin/v2/clusters/nowhere", "", 404),
    ("DELETE", "/admin/v2/clusters/east", "", 204),
    ("DELETE", "/admin/v2/clusters/east", "", 404),
    ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies", "", 200),
    ("GET", "/admin/v2/clusters/nowhere/namespaceIsolationPolicies", "", 412),
    ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/brokers", "", 200),
    ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/brokers/b:1", "", 200),
    ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/p", "", 404),
    ("DELETE", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/p", "", 404),
    ("POST", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/p", "{}", 501),
    ("GET", "/admin/v2/brokers", "", 200),
    ("GET", "/admin/v2/brokers/standalone", "", 200),
    ("GET", "/admin/v2/brokers/nowhere", "", 404),
    ("GET", "/admin/v2/brokers/standalone/localhost:8080/ownedNamespaces", "", 200),
    ("GET", "/admin/v2/brokers/health", "", 200),
    ("GET", "/admin/v2/brokers/ready", "", 200),
    ("GET", "/admin/v2/brokers/version", "", 200),
    ("GET", "/admin/v2/brokers/leaderBroker", "", 200),
    ("GET", "/admin/v2/brokers/internal-configuration", "", 200),
    ("GET", "/admin/v2/brokers/configuration", "", 200),
    ("GET", "/admin/v2/brokers/configuration/runtime", "", 200),
    ("GET", "/admin/v2/brokers/configuration/values", "", 200),
    ("GET", "/admin/v2/broker-stats/topics", "", 200),
    ("GET", "/admin/v2/broker-stats/metrics", "", 200),
    ("GET", "/admin/v2/broker-stats/mbeans", "", 200),
    ("GET", "/admin/v2/tenants", "", 200),
    ("PUT", "/admin/v2/tenants/x", r#"{"adminRoles":["a"],"allowedClusters":["standalone"]}"#, 204),
    ("PUT", "/admin/v2/tenants/x", r#"{"adminRoles":["a"],"allowedClusters":["standalone"]}"#, 409),
    ("PUT", "/admin/v2/tenants/x%20y", r#"{"allowedClusters":["standalone"]}"#, 412),
    ("PUT", "/admin/v2/tenants/y", r#"{"adminRoles":[" a"],"allowedClusters":["standalone"]}"#, 412),
    ("PUT", "/admin/v2/tenants/y", r#"{"allowedClusters":[]}"#, 412),
    ("PUT", "/admin/v2/tenants/y", r#"{"allowedClusters":["nowhere"]}"#, 412),
    ("POST", "/admin/v2/tenants/x", r#"{"adminRoles":["b"],"allowedClusters":["standalone"]}"#, 204),
    ("POST", "/admin/v2/tenants/y", r#"{"allowedClusters":["standalone"]}"#, 404),
    ("GET", "/admin/v2/tenants/x", "", 200),
    ("GET", "/admin/v2/tenants/y", "", 404),
    ("PUT", "/admin/v2/namespaces/x/n", "", 204),
    ("DELETE", "/admin/v2/tenants/x", "", 409),
    ("DELETE", "/admin/v2/tenants/x?force=true", "", 204),
    ("DELETE", "/admin/v2/tenants/x", "", 404),
];

const NAMESPACE: &[Row] = &[
    ("PUT", "N", r#"{"bundles":{"numBundles":2}}"#, 204),
    ("PUT", "N", "", 409),
    ("PUT", "/admin/v2/namespaces/public/a%20b", "", 412),
    ("GET", "N", "", 200),
    ("GET", "/admin/v2/namespaces/public", "", 200),
    ("GET", "N/topics", "", 200),
    ("GET", "N/topics?mode=ALL", "", 200),
    ("GET", "N/bundles", "", 200),
    ("GET", "N/permissions", "", 200),
    ("POST", "N/permissions/a", r#"["produce","consume"]"#, 204),
    ("DELETE", "N/permissions/a", "", 204),
    ("GET", "N/permissions/subscription", "", 200),
    ("POST", "N/permissions/subscription/s", r#"["a"]"#, 204),
    ("DELETE", "N/permissions/s/a", "", 204),
    ("GET", "N/backlogQuotaMap", "", 200),
    ("POST", "N/backlogQuota", r#"{"limitSize":100,"policy":"producer_exception"}"#, 204),
    ("POST", "N/backlogQuota?backlogQuotaType=message_age", r#"{"limitTime":9,"policy":"producer_exception"}"#, 204),
    ("POST", "N/backlogQuota", r#"{"limitSize":100,"policy":"nothing"}"#, 400),
    ("DELETE", "N/backlogQuota", "", 204),
    ("DELETE", "N/backlogQuota?backlogQuotaType=message_age", "", 204),
    ("PUT", "N/property/k/v", "", 204),
    ("GET", "N/property/k", "", 200),
    ("DELETE", "N/property/k", "", 200),
    ("GET", "N/property/k", "", 200),
    ("GET", "N/persistence/bookieAffinity", "", 204),
    ("POST", "N/persistence/bookieAffinity", r#"{"bookkeeperAffinityGroupPrimary":"g"}"#, 501),
    ("GET", "N/persistence/bookieAffinity", "", 204),
    ("DELETE", "N/persistence/bookieAffinity", "", 204),
    ("DELETE", "N/removeOffloadPolicies", "", 204),
    ("PUT", "N/unload", "", 204),
    ("PUT", "N/0x00000000_0x80000000/unload", "", 204),
    ("PUT", "N/0x00000000_0x70000000/unload", "", 412),
    ("PUT", "N/0x00000000_0x80000000/split", "", 412),
    ("POST", "N/clearBacklog", "", 204),
    ("POST", "N/clearBacklog/s", "", 204),
    ("POST", "N/0x00000000_0x80000000/clearBacklog", "", 204),
    ("POST", "N/0x00000000_0x80000000/clearBacklog/s", "", 204),
    ("POST", "N/unsubscribe/s", "", 204),
    ("POST", "N/0x00000000_0x80000000/unsubscribe/s", "", 204),
    ("GET", "N/nonsense", "", 404),
    ("DELETE", "N", "", 204),
    ("DELETE", "N", "", 404),
];

const TOPIC: &[Row] = &[
    ("PUT", "N", "", 204),
    ("GET", "T/stats", "", 404),
    ("PUT", "T", "", 204),
    ("PUT", "T", "", 409),
    ("GET", "T/stats", "", 200),
    ("GET", "T/stats?getEarliestTimeInBacklog=true", "", 200),
    ("GET", "T/internalStats", "", 200),
    ("GET", "T/internal-info", "", 200),
    ("GET", "T/partitions", "", 200),
    ("GET", "T/partitioned-stats", "", 404),
    ("GET", "T/lastMessageId", "", 200),
    ("GET", "T/messageid/0", "", 200),
    ("GET", "T/messageid/-1", "", 412),
    ("GET", "T/messageid/x", "", 404),
    ("GET", "T/ledger/0/entry/0", "", 404),
    ("GET", "T/properties", "", 200),
    ("PUT", "T/properties", r#"{"k":"v"}"#, 204),
    ("DELETE", "T/properties?key=k", "", 204),
    ("GET", "T/permissions", "", 200),
    ("POST", "T/permissions/a", r#"["produce"]"#, 204),
    ("DELETE", "T/permissions/a", "", 204),
    ("DELETE", "T/permissions/a", "", 204),
    ("PUT", "T/subscription/s", r#""earliest""#, 204),
    ("PUT", "T/subscription/s", r#""earliest""#, 409),
    ("PUT", "T/subscription/p", r#"{"ledgerId":-1,"entryId":-1,"properties":{"k":"v"}}"#, 204),
    ("GET", "T/subscriptions", "", 200),
    ("GET", "T/subscription/p/properties", "", 200),
    ("GET", "T/subscription/q/properties", "", 404),
    ("POST", "T/subscription/s/resetcursor", r#"{"ledgerId":-1,"entryId":-1}"#, 204),
    ("POST", "T/subscription/s/resetcursor/0", "", 204),
    ("POST", "T/subscription/q/resetcursor/0", "", 404),
    ("POST", "T/subscription/s/skip/1", "", 204),
    ("POST", "T/subscription/s/skip/-1", "", 412),
    ("POST", "T/subscription/s/skip_all", "", 204),
    ("POST", "T/subscription/s/expireMessages/5", "", 204),
    ("POST", "T/all_subscription/expireMessages/5", "", 204),
    ("GET", "T/subscription/s/position/1", "", 404),
    ("GET", "T/subscription/s/position/0", "", 412),
    ("DELETE", "T/subscription/p", "", 204),
    ("DELETE", "T/subscription/p", "", 404),
    ("GET", "T/compaction", "", 200),
    ("PUT", "T/compaction", "", 204),
    ("GET", "T/restore/nowhere", "", 404),
    ("PUT", "T/restore/nowhere", "", 404),
    ("GET", "T/offload", "", 200),
    ("PUT", "T/offload", "", 412),
    ("POST", "T/trim", "", 200),
    ("PUT", "T/unload", "", 204),
    ("GET", "T/backlogQuotaMap", "", 200),
    ("GET", "T/backlogQuotaMap?applied=true", "", 200),
    ("POST", "T/backlogQuota", r#"{"limitSize":100,"policy":"producer_exception"}"#, 204),
    ("DELETE", "T/backlogQuota", "", 204),
    ("POST", "T/messageTTL?messageTTL=7", "", 204),
    ("GET", "T/nonsense", "", 404),
    ("GET", "S/schema", "", 404),
    ("POST", "S/schema", r#"{"type":"STRING","schema":"","properties":{}}"#, 200),
    ("POST", "S/schema", r#"{"type":"JSON","schema":"{","properties":{}}"#, 422),
    ("GET", "S/schema", "", 200),
    ("GET", "S/schema/0", "", 200),
    ("GET", "S/schema/9", "", 404),
    ("GET", "S/schemas", "", 200),
    ("POST", "S/compatibility", r#"{"type":"STRING","schema":"","properties":{}}"#, 202),
    ("POST", "S/version", r#"{"type":"STRING","schema":"","properties":{}}"#, 200),
    ("DELETE", "S/schema", "", 200),
    ("GET", "L", "", 200),
    ("GET", "L/bundle", "", 200),
    ("POST", "T/terminate", "", 200),
    ("DELETE", "T", "", 204),
    ("DELETE", "T", "", 404),
];

const PARTITIONED: &[Row] = &[
    ("PUT", "N", "", 204),
    ("PUT", "T/partitions", "2", 204),
    ("PUT", "T/partitions", "2", 409),
    ("PUT", "/admin/v2/persistent/public/walk/u/partitions", "0", 406),
    ("GET", "T/partitions", "", 200),
    ("POST", "T/partitions", "3", 204),
    ("POST", "T/partitions", "1", 422),
    ("GET", "/admin/v2/persistent/public/walk/partitioned", "", 200),
    ("GET", "/admin/v2/persistent/public/walk", "", 200),
    ("PUT", "T/subscription/s", r#""earliest""#, 204),
    ("GET", "T/partitioned-stats", "", 200),
    ("GET", "T/partitioned-internalStats", "", 200),
    ("GET", "T/internal-info", "", 200),
    ("GET", "T/internalStats", "", 405),
    ("GET", "T/lastMessageId", "", 405),
    ("GET", "T/messageid/0", "", 405),
    ("POST", "T/terminate", "", 405),
    ("POST", "T/subscription/s/skip/1", "", 405),
    ("POST", "T/subscription/s/skip_all", "", 204),
    ("POST", "T/terminate/partitions", "", 200),
    ("DELETE", "T", "", 409),
    ("DELETE", "T/partitions", "", 204),
    ("DELETE", "T/partitions", "", 404),
];

const NON_PERSISTENT: &[Row] = &[
    ("PUT", "N", "", 204),
    ("PUT", "/admin/v2/non-persistent/public/walk/t", "", 204),
    ("GET", "/admin/v2/non-persistent/public/walk/t/stats", "", 200),
    ("GET", "/admin/v2/non-persistent/public/walk/t/internalStats", "", 200),
    ("GET", "/admin/v2/non-persistent/public/walk/t/lastMessageId", "", 405),
    ("GET", "/admin/v2/non-persistent/public/walk/t/messageid/0", "", 405),
    ("GET", "/admin/v2/non-persistent/public/walk/t/internal-info", "", 405),
    ("GET", "/admin/v2/non-persistent/public/walk/t/compaction", "", 405),
    ("PUT", "/admin/v2/non-persistent/public/walk/t/compaction", "", 405),
    ("POST", "/admin/v2/non-persistent/public/walk/t/terminate", "", 406),
    ("GET", "/admin/v2/non-persistent/public/walk", "", 200),
    ("PUT", "/admin/v2/non-persistent/public/walk/t/unload", "", 204),
];

fn full(path: &str) -> String {
    let place = |prefix: &str| path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    let places = [
        ("N", "/admin/v2/namespaces/public/walk"),
        ("T", "/admin/v2/persistent/public/walk/t"),
        ("S", "/admin/v2/schemas/public/walk/t"),
        ("L", "/lookup/v2/topic/persistent/public/walk/t"),
    ];
    places.iter().find_map(|(short, long)| Some(format!("{long}{}", place(short)?))).unwrap_or_else(|| path.to_owned())
}

async fn walk(rows: &[Row]) {
    let region = Region::start().await;
    for (method, path, body, status) in rows {
        let answer = region.expect(method, &full(path), body, *status).await;
        if answer.status.is_client_error() || answer.status.is_server_error() {
            answer.reason();
        } else if *status == 204 {
            assert_eq!(answer.body, "", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn clusters_brokers_and_tenants() {
    walk(CLUSTER).await;
}

#[tokio::test]
async fn namespaces() {
    walk(NAMESPACE).await;
}

#[tokio::test]
async fn topics_subscriptions_and_schemas() {
    walk(TOPIC).await;
}

#[tokio::test]
async fn partitioned_topics() {
    walk(PARTITIONED).await;
}

#[tokio::test]
async fn non_persistent_topics() {
    walk(NON_PERSISTENT).await;
}

/// Policy, a value, by PUT, status of the change, and whether it can be removed. What is set is read back, removing unsets.
type Policy = (&'static str, &'static str, bool, u16, bool);

const NAMESPACE_POLICIES: &[Policy] = &[
    ("messageTTL", "7", false, 204, true),
    ("subscriptionExpirationTime", "7", false, 204, true),
    ("maxProducersPerTopic", "7", false, 204, true),
    ("maxConsumersPerTopic", "7", false, 204, true),
    ("maxConsumersPerSubscription", "7", false, 204, true),
    ("maxSubscriptionsPerTopic", "7", false, 204, true),
    ("maxTopicsPerNamespace", "7", false, 204, true),
    ("maxUnackedMessagesPerConsumer", "7", false, 204, true),
    ("maxUnackedMessagesPerSubscription", "7", false, 204, true),
    ("deduplicationSnapshotInterval", "7", false, 204, true),
    ("deduplication", "true", false, 204, true),
    ("encryptionRequired", "true", false, 204, true),
    ("delayedDelivery", r#"{"active":true,"tickTime":500,"maxDeliveryDelayInMillis":0}"#, false, 204, true),
    (
        "inactiveTopicPolicies",
        r#"{"inactiveTopicDeleteMode":"delete_when_no_subscriptions","maxInactiveDurationSeconds":9,"deleteWhileInactive":true}"#,
        false,
        204,
        true,
    ),
    ("autoSubscriptionCreation", r#"{"allowAutoSubscriptionCreation":false}"#, false, 204, true),
    ("autoTopicCreation", r#"{"allowAutoTopicCreation":true,"topicType":"non-partitioned"}"#, false, 204, true),
    ("subscriptionTypesEnabled", r#"["Shared"]"#, false, 204, true),
    ("properties", r#"{"a":"b"}"#, true, 204, true),
    ("offloadThresholdInSeconds", "100", true, 200, false),
    ("offloadThreshold", "100", true, 204, false),
    ("offloadDeletionLagMs", "100", true, 204, true),
    ("schemaCompatibilityStrategy", r#""FULL""#, true, 204, false),
    ("compactionThreshold", "100", true, 204, true),
    ("retention", r#"{"retentionTimeInMinutes":5,"retentionSizeInMB":-1}"#, false, 204, true),
    (
        "dispatchRate",
        r#"{"dispatchThrottlingRateInMsg":5,"dispatchThrottlingRateInByte":-1,"relativeToPublishRate":false,"ratePeriodInSecond":1}"#,
        false,
        204,
        true,
    ),
    ("publishRate", r#"{"publishThrottlingRateInMsg":5,"publishThrottlingRateInByte":-1}"#, false, 204, true),
    ("subscribeRate", r#"{"subscribeThrottlingRatePerConsumer":5,"ratePeriodInSecond":7}"#, false, 204, true),
];

const TOPIC_POLICIES: &[Policy] = &[
    ("messageTTL", "7", false, 204, true),
    ("maxProducers", "7", false, 204, true),
    ("maxConsumers", "7", false, 204, true),
    ("maxConsumersPerSubscription", "7", false, 204, true),
    ("maxSubscriptionsPerTopic", "7", false, 204, true),
    ("maxUnackedMessagesOnConsumer", "7", false, 204, true),
    ("maxUnackedMessagesOnSubscription", "7", false, 204, true),
    ("maxMessageSize", "7", false, 204, true),
    ("deduplicationSnapshotInterval", "7", false, 204, true),
    ("deduplicationEnabled", "true", false, 204, true),
    ("publishRate", r#"{"publishThrottlingRateInMsg":5,"publishThrottlingRateInByte":-1}"#, false, 204, true),
    ("subscribeRate", r#"{"subscribeThrottlingRatePerConsumer":5,"ratePeriodInSecond":7}"#, false, 204, true),
    ("compactionThreshold", "100", false, 204, true),
    ("subscriptionTypesEnabled", r#"["Shared"]"#, false, 204, true),
    ("schemaCompatibilityStrategy", r#""FULL""#, true, 204, true),
    ("retention", r#"{"retentionTimeInMinutes":5,"retentionSizeInMB":-1}"#, false, 204, true),
];

async fn walk_policies(region: &Region, place: &str, policies: &[Policy]) {
    for (name, value, by_put, status, removable) in policies {
        let path = format!("{place}/{name}");
        let (set, other) = if *by_put { ("PUT", "POST") } else { ("POST", "PUT") };
        region.expect(other, &path, value, 405).await.reason();
        region.expect(set, &path, value, *status).await;
        let expected: Value = serde_json::from_str(value).expect("as the test made it");
        assert_eq!(region.get(&path).await, expected, "{path}");
        region.expect(set, &path, "{{", 400).await.reason();
        assert_eq!(region.get(&path).await, expected, "{path}: a body that can't be read changes nothing");
        if !removable {
            continue;
        }
        region.expect("DELETE", &path, "", 204).await;
        let unset = region.call("GET", &path, "").await;
        assert!(unset.status.is_success(), "{path}: {unset:?}");
        assert_ne!(unset.body, expected.to_string(), "{path} is unset");
    }
}

#[tokio::test]
async fn every_policy_of_a_namespace_is_read_back() {
    let region = Region::start().await;
    region.expect("PUT", "/admin/v2/namespaces/public/walk", "", 204).await;
    walk_policies(&region, "/admin/v2/namespaces/public/walk", NAMESPACE_POLICIES).await;
}

#[tokio::test]
async fn every_policy_of_a_topic_is_read_back() {
    let region = Region::start().await;
    region.expect("PUT", "/admin/v2/persistent/public/default/t", "", 204).await;
    walk_policies(&region, "/admin/v2/persistent/public/default/t", TOPIC_POLICIES).await;
}

#[tokio::test]
async fn settings_change_while_the_broker_runs() {
    let region = Region::start().await;
    let at = "/admin/v2/brokers/configuration";
    let names = region.get(at).await;
    assert!(names.as_array().expect("as the test made it").contains(&json!("maxProducersPerTopic")), "{names}");
    assert!(!names.as_array().expect("as the test made it").contains(&json!("clusterName")));
    region.expect("PUT", "/admin/v2/persistent/public/default/t", "", 204).await;
    let in_force = "/admin/v2/persistent/public/default/t/maxProducers?applied=true";
    assert_eq!(region.get(in_force).await, json!(0));
    region.expect("POST", &format!("{at}/maxProducersPerTopic/3"), "", 200).await;
    assert_eq!(region.get(in_force).await, json!(3));
    assert_eq!(region.get(&format!("{at}/values")).await, json!({ "maxProducersPerTopic": "3" }));
    assert_eq!(region.get(&format!("{at}/runtime")).await["maxProducersPerTopic"], "3");
    for (key, value) in [("maxProducersPerTopic", "x"), ("clusterName", "c"), ("nonsense", "1")] {
        let reason = region.expect("POST", &format!("{at}/{key}/{value}"), "", 412).await.reason();
        assert!(reason.contains(key), "{reason}");
    }
    region.expect("DELETE", &format!("{at}/clusterName"), "", 412).await.reason();
    region.expect("DELETE", &format!("{at}/maxProducersPerTopic"), "", 200).await;
    assert_eq!(region.get(in_force).await, json!(0));
    assert_eq!(region.get(&format!("{at}/values")).await, json!({}));
}

#[tokio::test]
async fn figures_have_no_negative_zeros_and_tell_limits() {
    let region = Region::start().await;
    let topic = "/admin/v2/persistent/public/default/t";
    region.expect("PUT", topic, "", 204).await;
    region.expect("PUT", &format!("{topic}/subscription/s"), r#""earliest""#, 204).await;
    region
        .expect("POST", &format!("{topic}/backlogQuota"), r#"{"limitSize":100,"policy":"producer_exception"}"#, 204)
        .await;
    let answer = region.expect("GET", &format!("{topic}/stats"), "", 200).await;
    assert!(!answer.body.contains("-0"), "{}", answer.body);
    let stats = answer.json();
    assert_eq!((&stats["backlogQuotaLimitSize"], &stats["backlogQuotaLimitTime"]), (&json!(100), &json!(-1)));
    assert_eq!(stats["subscriptions"]["s"]["backlogSize"], 0);
    let metrics = region.expect("GET", "/metrics", "", 200).await;
    assert!(!metrics.body.lines().any(|line| line.ends_with(" -0")), "{}", metrics.body);
    let internal = region.get(&format!("{topic}/internalStats")).await;
    assert_eq!(internal["compactedLedger"]["ledgerId"], -1);
    assert_eq!(internal["cursors"]["s"]["properties"], json!({}));
    let info = region.get(&format!("{topic}/internal-info")).await;
    assert!(info["cursors"]["s"]["markDelete"]["ledgerId"].is_i64(), "{info}");
}
