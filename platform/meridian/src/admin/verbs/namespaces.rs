//! Calls of namespaces.

use super::table::{FORCE, field, plain};
use super::{Body, Field, Kind, Verb};

const DISPATCH: &[Field] = &[
    field("msg-dispatch-rate", "dispatchThrottlingRateInMsg", Kind::Number),
    field("byte-dispatch-rate", "dispatchThrottlingRateInByte", Kind::Number),
    field("dispatch-rate-period", "ratePeriodInSecond", Kind::Number),
];

const QUOTA: &[Field] = &[
    field("limit", "limitSize", Kind::Number),
    field("limit-time", "limitTime", Kind::Number),
    field("policy", "policy", Kind::Text),
];

/// Reading, setting and unsetting one policy.
macro_rules! policy {
    ($at:literal, $name:literal, $field:literal, $method:literal, $body:expr) => {
        &[
            plain(concat!("get-", $name), concat!("Show ", $field), "GET", concat!($at, "/", $field)),
            plain(concat!("set-", $name), concat!("Set ", $field), $method, concat!($at, "/", $field)).with($body),
            plain(concat!("remove-", $name), concat!("Unset ", $field), "DELETE", concat!($at, "/", $field)),
        ]
    };
}

/// Reading and setting one that can't be unset.
macro_rules! lasting {
    ($at:literal, $name:literal, $field:literal, $method:literal, $body:expr) => {
        &[
            plain(concat!("get-", $name), concat!("Show ", $field), "GET", concat!($at, "/", $field)),
            plain(concat!("set-", $name), concat!("Set ", $field), $method, concat!($at, "/", $field)).with($body),
        ]
    };
}

const POLICIES: &[&[Verb]] = &[
    policy!("namespaces/{namespace}", "message-ttl", "messageTTL", "POST", Body::One(Kind::Number)),
    policy!(
        "namespaces/{namespace}",
        "subscription-expiration-time",
        "subscriptionExpirationTime",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-producers-per-topic",
        "maxProducersPerTopic",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-consumers-per-topic",
        "maxConsumersPerTopic",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-topics-per-namespace",
        "maxTopicsPerNamespace",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "namespaces/{namespace}",
        "deduplication-snapshot-interval",
        "deduplicationSnapshotInterval",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!("namespaces/{namespace}", "deduplication", "deduplication", "POST", Body::One(Kind::Switch)),
    policy!("namespaces/{namespace}", "encryption-required", "encryptionRequired", "POST", Body::One(Kind::Switch)),
    policy!("namespaces/{namespace}", "global-producers", "globalProducers", "POST", Body::One(Kind::Switch)),
    policy!(
        "namespaces/{namespace}",
        "replicate-subscription-state",
        "replicateSubscriptionState",
        "POST",
        Body::One(Kind::Switch)
    ),
    lasting!(
        "namespaces/{namespace}",
        "schema-validation-enforced",
        "schemaValidationEnforced",
        "POST",
        Body::One(Kind::Switch)
    ),
    lasting!(
        "namespaces/{namespace}",
        "is-allow-auto-update-schema",
        "isAllowAutoUpdateSchema",
        "POST",
        Body::One(Kind::Switch)
    ),
    policy!(
        "namespaces/{namespace}",
        "subscription-types-enabled",
        "subscriptionTypesEnabled",
        "POST",
        Body::One(Kind::List)
    ),
    policy!("namespaces/{namespace}", "anti-affinity-group", "antiAffinity", "POST", Body::One(Kind::Text)),
    lasting!("namespaces/{namespace}", "clusters", "replication", "POST", Body::One(Kind::List)),
    lasting!("namespaces/{namespace}", "allowed-clusters", "allowedClusters", "POST", Body::One(Kind::List)),
    policy!("namespaces/{namespace}", "compaction-threshold", "compactionThreshold", "PUT", Body::One(Kind::Number)),
    policy!("namespaces/{namespace}", "offload-threshold", "offloadThreshold", "PUT", Body::One(Kind::Number)),
    policy!(
        "namespaces/{namespace}",
        "offload-threshold-in-seconds",
        "offloadThresholdInSeconds",
        "PUT",
        Body::One(Kind::Number)
    ),
    policy!("namespaces/{namespace}", "offload-deletion-lag", "offloadDeletionLagMs", "PUT", Body::One(Kind::Number)),
    lasting!(
        "namespaces/{namespace}",
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        "PUT",
        Body::One(Kind::Text)
    ),
    lasting!(
        "namespaces/{namespace}",
        "schema-autoupdate-strategy",
        "schemaAutoUpdateCompatibilityStrategy",
        "PUT",
        Body::One(Kind::Text)
    ),
    lasting!("namespaces/{namespace}", "subscription-auth-mode", "subscriptionAuthMode", "POST", Body::One(Kind::Text)),
    policy!("namespaces/{namespace}", "properties", "properties", "PUT", Body::One(Kind::Json)),
    policy!("namespaces/{namespace}", "offload-policies", "offloadPolicies", "POST", Body::One(Kind::Json)),
    policy!(
        "namespaces/{namespace}",
        "retention",
        "retention",
        "POST",
        Body::Fields(&[
            field("time", "retentionTimeInMinutes", Kind::Number),
            field("size", "retentionSizeInMB", Kind::Number)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "persistence",
        "persistence",
        "POST",
        Body::Fields(&[
            field("bookkeeper-ensemble", "bookkeeperEnsemble", Kind::Number),
            field("bookkeeper-write-quorum", "bookkeeperWriteQuorum", Kind::Number),
            field("bookkeeper-ack-quorum", "bookkeeperAckQuorum", Kind::Number),
            field("ml-mark-delete-max-rate", "managedLedgerMaxMarkDeleteRate", Kind::Decimal)
        ])
    ),
    policy!("namespaces/{namespace}", "dispatch-rate", "dispatchRate", "POST", Body::Fields(DISPATCH)),
    policy!(
        "namespaces/{namespace}",
        "subscription-dispatch-rate",
        "subscriptionDispatchRate",
        "POST",
        Body::Fields(DISPATCH)
    ),
    policy!(
        "namespaces/{namespace}",
        "replicator-dispatch-rate",
        "replicatorDispatchRate",
        "POST",
        Body::Fields(DISPATCH)
    ),
    policy!(
        "namespaces/{namespace}",
        "subscribe-rate",
        "subscribeRate",
        "POST",
        Body::Fields(&[
            field("subscribe-rate", "subscribeThrottlingRatePerConsumer", Kind::Number),
            field("period", "ratePeriodInSecond", Kind::Number)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "publish-rate",
        "publishRate",
        "POST",
        Body::Fields(&[
            field("msg-publish-rate", "publishThrottlingRateInMsg", Kind::Number),
            field("byte-publish-rate", "publishThrottlingRateInByte", Kind::Number)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "delayed-delivery",
        "delayedDelivery",
        "POST",
        Body::Fields(&[
            field("enable", "active", Kind::Switch),
            field("time", "tickTime", Kind::Number),
            field("max-delay", "maxDeliveryDelayInMillis", Kind::Number)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "inactive-topic-policies",
        "inactiveTopicPolicies",
        "POST",
        Body::Fields(&[
            field("enable", "deleteWhileInactive", Kind::Switch),
            field("max-inactive-seconds", "maxInactiveDurationSeconds", Kind::Number),
            field("delete-mode", "inactiveTopicDeleteMode", Kind::Text)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "auto-topic-creation",
        "autoTopicCreation",
        "POST",
        Body::Fields(&[
            field("enable", "allowAutoTopicCreation", Kind::Switch),
            field("type", "topicType", Kind::Text),
            field("num-partitions", "defaultNumPartitions", Kind::Number)
        ])
    ),
    policy!(
        "namespaces/{namespace}",
        "auto-subscription-creation",
        "autoSubscriptionCreation",
        "POST",
        Body::Fields(&[field("enable", "allowAutoSubscriptionCreation", Kind::Switch)])
    ),
    policy!(
        "namespaces/{namespace}",
        "bookie-affinity-group",
        "persistence/bookieAffinity",
        "POST",
        Body::Fields(&[
            field("primary-group", "bookkeeperAffinityGroupPrimary", Kind::Text),
            field("secondary-group", "bookkeeperAffinityGroupSecondary", Kind::Text)
        ])
    ),
];

const CALLS: &[Verb] = &[
    plain("list", "List namespaces of a tenant", "GET", "namespaces/{tenant}"),
    plain("policies", "Show all policies", "GET", "namespaces/{namespace}"),
    plain("create", "Create a namespace", "PUT", "namespaces/{namespace}").with(Body::Fields(&[
        field("clusters", "replication_clusters", Kind::List),
        field("bundles", "bundles", Kind::Json),
        field("policies", "auth_policies", Kind::Json),
    ])),
    plain("delete", "Delete a namespace", "DELETE", "namespaces/{namespace}").asking(FORCE),
    plain("topics", "List topics", "GET", "namespaces/{namespace}/topics").asking(&[("mode", false)]),
    plain("bundles", "Show hash ranges", "GET", "namespaces/{namespace}/bundles"),
    plain("unload", "Unload all topics", "PUT", "namespaces/{namespace}/unload"),
    plain("unload-bundle", "Unload a hash range", "PUT", "namespaces/{namespace}/{bundle}/unload")
        .asking(&[("destinationBroker", false)]),
    plain("split-bundle", "Split a hash range", "PUT", "namespaces/{namespace}/{bundle}/split"),
    plain("clear-backlog", "Skip everything on all subscriptions", "POST", "namespaces/{namespace}/clearBacklog"),
    plain(
        "unsubscribe",
        "Delete a subscription of all topics",
        "POST",
        "namespaces/{namespace}/unsubscribe/{subscription}",
    ),
    plain("permissions", "Show grants", "GET", "namespaces/{namespace}/permissions"),
    plain("grant-permission", "Grant produce, consume, …", "POST", "namespaces/{namespace}/permissions/{role}")
        .with(Body::One(Kind::List)),
    plain("revoke-permission", "Withdraw all grants of a role", "DELETE", "namespaces/{namespace}/permissions/{role}"),
    plain(
        "subscription-permission",
        "Show roles of subscriptions",
        "GET",
        "namespaces/{namespace}/permissions/subscription",
    ),
    plain(
        "grant-subscription-permission",
        "Keep a subscription for roles",
        "POST",
        "namespaces/{namespace}/permissions/subscription/{subscription}",
    )
    .with(Body::One(Kind::List)),
    plain(
        "revoke-subscription-permission",
        "Take a role from a subscription",
        "DELETE",
        "namespaces/{namespace}/permissions/{subscription}/{role}",
    ),
    plain("get-backlog-quotas", "Show backlog quotas", "GET", "namespaces/{namespace}/backlogQuotaMap"),
    plain("set-backlog-quota", "Set a backlog quota", "POST", "namespaces/{namespace}/backlogQuota")
        .with(Body::Fields(QUOTA))
        .asking(&[("backlogQuotaType", false)]),
    plain("remove-backlog-quota", "Unset a backlog quota", "DELETE", "namespaces/{namespace}/backlogQuota")
        .asking(&[("backlogQuotaType", false)]),
    plain(
        "get-anti-affinity-namespaces",
        "List namespaces of a group",
        "GET",
        "namespaces/{cluster}/antiAffinity/{group}",
    )
    .asking(&[("tenant", false)]),
];

/// All of them.
pub fn verbs() -> Vec<Verb> {
    CALLS.iter().chain(POLICIES.iter().copied().flatten()).copied().collect()
}
