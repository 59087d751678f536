//! How calls are refused: always a status that says whose fault it is and a reason that says what to change.

use crate::region::Region;

/// What is done to a topic: method and the end of the path.
const OF_TOPIC: &[(&str, &str)] = &[
    ("DELETE", ""),
    ("GET", "/stats"),
    ("GET", "/partitioned-stats"),
    ("GET", "/internalStats"),
    ("GET", "/partitioned-internalStats"),
    ("GET", "/internal-info"),
    ("GET", "/lastMessageId"),
    ("GET", "/messageid/0"),
    ("GET", "/ledger/0/entry/0"),
    ("GET", "/properties"),
    ("PUT", "/properties"),
    ("DELETE", "/properties"),
    ("GET", "/subscriptions"),
    ("DELETE", "/subscription/s"),
    ("POST", "/subscription/s/resetcursor"),
    ("POST", "/subscription/s/resetcursor/0"),
    ("POST", "/subscription/s/skip/1"),
    ("POST", "/subscription/s/skip_all"),
    ("POST", "/subscription/s/expireMessages/1"),
    ("POST", "/all_subscription/expireMessages/1"),
    ("GET", "/subscription/s/properties"),
    ("GET", "/subscription/s/position/1"),
    ("PUT", "/unload"),
    ("POST", "/terminate"),
    ("POST", "/terminate/partitions"),
    ("POST", "/trim"),
    ("GET", "/compaction"),
    ("PUT", "/compaction"),
    ("GET", "/restore/east"),
    ("PUT", "/restore/east"),
    ("GET", "/offload"),
    ("PUT", "/offload"),
    ("POST", "/partitions"),
    ("DELETE", "/partitions"),
    ("GET", "/backlogQuotaMap"),
    ("POST", "/backlogQuota"),
    ("DELETE", "/backlogQuota"),
    ("GET", "/retention"),
    ("POST", "/retention"),
    ("DELETE", "/retention"),
    ("GET", "/publishRate"),
];

/// What is done to a namespace.
const OF_NAMESPACE: &[(&str, &str)] = &[
    ("GET", ""),
    ("DELETE", ""),
    ("GET", "/topics"),
    ("GET", "/bundles"),
    ("PUT", "/unload"),
    ("PUT", "/0x00000000_0xffffffff/unload"),
    ("PUT", "/0x00000000_0xffffffff/split"),
    ("POST", "/clearBacklog"),
    ("POST", "/clearBacklog/s"),
    ("POST", "/unsubscribe/s"),
    ("GET", "/permissions"),
    ("POST", "/permissions/r"),
    ("DELETE", "/permissions/r"),
    ("GET", "/permissions/subscription"),
    ("GET", "/backlogQuotaMap"),
    ("DELETE", "/backlogQuota"),
    ("GET", "/property/k"),
    ("PUT", "/property/k/v"),
    ("DELETE", "/property/k"),
    ("GET", "/persistence/bookieAffinity"),
    ("POST", "/persistence/bookieAffinity"),
    ("DELETE", "/persistence/bookieAffinity"),
    ("DELETE", "/removeOffloadPolicies"),
    ("GET", "/retention"),
    ("DELETE", "/retention"),
    ("GET", "/messageTTL"),
    ("DELETE", "/messageTTL"),
];

fn a_body(method: &str, end: &str) -> &'static str {
    match (method, end) {
        ("POST", "/partitions") => "5",
        ("POST", "/permissions/r") => "[]",
        ("POST", "/persistence/bookieAffinity") => r#"{"bookkeeperAffinityGroupPrimary":"g"}"#,
        ("POST", "/subscription/s/resetcursor") => r#""earliest""#,
        _ => "",
    }
}

#[tokio::test]
async fn an_unknown_topic_namespace_or_tenant_is_not_found() {
    let region = Region::start().await;
    for (method, end) in OF_TOPIC {
        for place in ["public/default", "public/nowhere", "nobody/nowhere"] {
            let path = format!("/admin/v2/persistent/{place}/missing{end}");
            // What is there and is not partitioned, or is not there, can't grow: one answer of Pulsar's for both.
            let status = if (*method, *end, place) == ("POST", "/partitions", "public/default") { 409 } else { 404 };
            let reason = region.expect(method, &path, a_body(method, end), status).await.reason();
            let expected: &[&str] = match place {
                "public/default" => &["Topic", "Subscription"],
                _ => &["Namespace not found", "Namespace does not exist"],
            };
            let says = |text: &&str| reason.contains(*text);
            assert!(expected.iter().any(says), "{method} {path}: {reason}");
        }
    }
    for (method, end) in OF_NAMESPACE {
        for place in ["public/nowhere", "nobody/nowhere"] {
            let path = format!("/admin/v2/namespaces/{place}{end}");
            let reason = region.expect(method, &path, a_body(method, end), 404).await.reason();
            assert!(reason.starts_with("Namespace") && reason.contains("does not exist"), "{method} {path}: {reason}");
        }
    }
}

#[tokio::test]
async fn names_that_cannot_be_are_refused() {
    let region = Region::start().await;
    for (method, end) in OF_TOPIC {
        let path = format!("/admin/v2/persistent/public/a%20b/t{end}");
        region.expect(method, &path, a_body(method, end), 412).await.reason();
        let path = format!("/admin/v2/nonsense/public/default/t{end}");
        region.expect(method, &path, a_body(method, end), 404).await.reason();
    }
}

/// Calls with bodies: method and path.
const WITH_BODY: &[(&str, &str)] = &[
    ("PUT", "/admin/v2/clusters/c"),
    ("POST", "/admin/v2/clusters/standalone"),
    ("POST", "/admin/v2/clusters/standalone/peers"),
    ("PUT", "/admin/v2/tenants/x"),
    ("POST", "/admin/v2/tenants/public"),
    ("PUT", "/admin/v2/namespaces/public/x"),
    ("POST", "/admin/v2/namespaces/public/default/permissions/r"),
    ("POST", "/admin/v2/namespaces/public/default/permissions/subscription/s"),
    ("POST", "/admin/v2/namespaces/public/default/backlogQuota"),
    ("POST", "/admin/v2/namespaces/public/default/retention"),
    ("POST", "/admin/v2/namespaces/public/default/messageTTL"),
    ("POST", "/admin/v2/namespaces/public/default/replication"),
    ("POST", "/admin/v2/namespaces/public/default/publishRate"),
    ("PUT", "/admin/v2/namespaces/public/default/compactionThreshold"),
    ("PUT", "/admin/v2/persistent/public/default/u"),
    ("PUT", "/admin/v2/persistent/public/default/u/partitions"),
    ("POST", "/admin/v2/persistent/public/default/t/permissions/r"),
    ("PUT", "/admin/v2/persistent/public/default/t/subscription/s"),
    ("POST", "/admin/v2/persistent/public/default/t/subscription/s/resetcursor"),
    ("PUT", "/admin/v2/persistent/public/default/t/properties"),
    ("POST", "/admin/v2/persistent/public/default/t/retention"),
    ("POST", "/admin/v2/persistent/public/default/t/backlogQuota"),
    ("POST", "/admin/v2/persistent/public/default/t/dispatchRate"),
    ("POST", "/admin/v2/schemas/public/default/t/schema"),
    ("POST", "/admin/v2/schemas/public/default/t/compatibility"),
    ("POST", "/admin/v2/schemas/public/default/t/version"),
];

#[tokio::test]
async fn bodies_that_cannot_be_read_are_refused() {
    let region = Region::start().await;
    region.expect("PUT", "/admin/v2/persistent/public/default/t", "", 204).await;
    for (method, path) in WITH_BODY {
        for body in ["{", "\u{1}", "[[[", r#"{"a":}"#] {
            region.expect(method, path, body, 400).await.reason();
        }
    }
    let deep = "[".repeat(100_000);
    region.expect("PUT", "/admin/v2/tenants/x", &deep, 400).await.reason();
    let huge = format!("\"{}\"", "x".repeat(9 << 20));
    region.expect("PUT", "/admin/v2/tenants/x", &huge, 413).await.reason();
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let region = Region::start().await;
    for path in [
        "/admin/v2/clusters",
        "/admin/v2/tenants/public",
        "/admin/v2/namespaces/public/default",
        "/admin/v2/namespaces/public/default/topics",
        "/admin/v2/namespaces/public/default/retention",
        "/admin/v2/persistent/public/default/t",
        "/admin/v2/persistent/public/default/t/stats",
        "/admin/v2/persistent/public/default/t/retention",
        "/admin/v2/brokers/health",
        "/lookup/v2/topic/persistent/public/default/t",
        "/metrics",
    ] {
        region.expect("PATCH", path, "", 405).await.reason();
    }
    for path in
        ["/", "/admin", "/admin/v2", "/admin/v2/nonsense", "/admin/v2/persistent/a/b/c/d/e/f/g", "/lookup/v2/topic/x"]
    {
        region.expect("GET", path, "", 404).await.reason();
    }
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let region = Region::start().await;
    for (method, path) in [
        ("GET", "/admin/v3/functions/public/default"),
        ("POST", "/admin/v3/functions/public/default/f"),
        ("POST", "/admin/v3/functions/upload"),
        ("GET", "/admin/v3/sinks/builtinsinks"),
        ("DELETE", "/admin/v3/sinks/public/default/s"),
        ("PUT", "/admin/v3/sources/public/default/s"),
        ("GET", "/admin/v3/packages/function/public/default"),
        ("GET", "/admin/v3/transactions/transactionMetadata/0/1"),
        ("GET", "/admin/v2/worker/cluster"),
        ("GET", "/admin/v2/resource-quotas"),
        ("POST", "/admin/v2/resource-quotas"),
        ("GET", "/admin/v2/resource-quotas/public/default/0x00000000_0xffffffff"),
    ] {
        let reason = region.expect(method, path, "", 501).await.reason();
        assert!(reason.contains("not served"), "{method} {path}: {reason}");
    }
}

#[tokio::test]
async fn nothing_is_answered_before_the_caller_is_known() {
    let region = Region::closed().await;
    for (method, end) in OF_TOPIC {
        let path = format!("/admin/v2/persistent/public/default/t{end}");
        region.expect(method, &path, a_body(method, end), 401).await.reason();
    }
    for path in
        ["/admin/v2/clusters", "/admin/v2/tenants", "/admin/v3/functions/public/default", "/admin/v2/brokers/health"]
    {
        region.expect("GET", path, "", 401).await.reason();
    }
    region.expect("GET", "/metrics", "", 401).await;
    region.expect("GET", "/status.html", "", 200).await;
}

#[tokio::test]
async fn a_role_without_grants_may_nothing() {
    let region = Region::of_nobody().await;
    let refused = |method: &'static str, path: String, body: &'static str| {
        let region = &region;
        async move {
            let answer = region.call(method, &path, body).await;
            assert!([401, 403].contains(&answer.status.as_u16()), "{method} {path}: {answer:?}");
            answer.reason();
        }
    };
    for (method, end) in OF_TOPIC {
        refused(method, format!("/admin/v2/persistent/public/default/t{end}"), a_body(method, end)).await;
    }
    for (method, end) in OF_NAMESPACE {
        refused(method, format!("/admin/v2/namespaces/public/default{end}"), a_body(method, end)).await;
    }
    for (method, path) in [
        ("GET", "/admin/v2/tenants"),
        ("PUT", "/admin/v2/tenants/x"),
        ("GET", "/admin/v2/brokers"),
        ("GET", "/admin/v2/brokers/configuration"),
        ("POST", "/admin/v2/brokers/configuration/maxProducersPerTopic/1"),
        ("GET", "/admin/v2/broker-stats/topics"),
        ("GET", "/admin/v2/clusters/standalone"),
        ("GET", "/admin/v2/clusters/standalone/namespaceIsolationPolicies"),
        ("GET", "/admin/v2/schemas/public/default/t/schema"),
        ("GET", "/lookup/v2/topic/persistent/public/default/t"),
        ("GET", "/meridian/controlled-failover/public/default"),
        ("GET", "/metrics"),
    ] {
        refused(method, path.to_owned(), "").await;
    }
    assert!(region.service.loaded_topics().is_empty());
}
