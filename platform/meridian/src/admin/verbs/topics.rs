//! Calls of topics, and of their policies.

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
            plain(concat!("get-", $name), concat!("Show ", $field), "GET", concat!($at, "/", $field)).asking(APPLIED),
            plain(concat!("set-", $name), concat!("Set ", $field), $method, concat!($at, "/", $field)).with($body),
            plain(concat!("remove-", $name), concat!("Unset ", $field), "DELETE", concat!($at, "/", $field)),
        ]
    };
}

/// Reading and setting one that can't be unset.
macro_rules! lasting {
    ($at:literal, $name:literal, $field:literal, $method:literal, $body:expr) => {
        &[
            plain(concat!("get-", $name), concat!("Show ", $field), "GET", concat!($at, "/", $field)).asking(APPLIED),
            plain(concat!("set-", $name), concat!("Set ", $field), $method, concat!($at, "/", $field)).with($body),
        ]
    };
}

const APPLIED: &[(&str, bool)] = &[("applied", true)];

const POLICIES: &[&[Verb]] = &[
    policy!("{topic}", "max-producers", "maxProducers", "POST", Body::One(Kind::Number)),
    policy!("{topic}", "max-consumers", "maxConsumers", "POST", Body::One(Kind::Number)),
    policy!(
        "{topic}",
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!("{topic}", "max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "POST", Body::One(Kind::Number)),
    policy!(
        "{topic}",
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesOnConsumer",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!(
        "{topic}",
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesOnSubscription",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!("{topic}", "max-message-size", "maxMessageSize", "POST", Body::One(Kind::Number)),
    policy!("{topic}", "message-ttl", "messageTTL", "POST", Body::One(Kind::Number)),
    policy!(
        "{topic}",
        "deduplication-snapshot-interval",
        "deduplicationSnapshotInterval",
        "POST",
        Body::One(Kind::Number)
    ),
    policy!("{topic}", "deduplication", "deduplicationEnabled", "POST", Body::One(Kind::Switch)),
    policy!("{topic}", "global-producers", "globalProducers", "POST", Body::One(Kind::Switch)),
    policy!("{topic}", "replicate-subscription-state", "replicateSubscriptionState", "POST", Body::One(Kind::Switch)),
    lasting!("{topic}", "schema-validation-enforced", "schemaValidationEnforced", "POST", Body::One(Kind::Switch)),
    policy!("{topic}", "subscription-types-enabled", "subscriptionTypesEnabled", "POST", Body::One(Kind::List)),
    policy!("{topic}", "replication-clusters", "replication", "POST", Body::One(Kind::List)),
    policy!("{topic}", "compaction-threshold", "compactionThreshold", "POST", Body::One(Kind::Number)),
    policy!("{topic}", "schema-compatibility-strategy", "schemaCompatibilityStrategy", "PUT", Body::One(Kind::Text)),
    policy!("{topic}", "offload-policies", "offloadPolicies", "POST", Body::One(Kind::Json)),
    policy!(
        "{topic}",
        "retention",
        "retention",
        "POST",
        Body::Fields(&[
            field("time", "retentionTimeInMinutes", Kind::Number),
            field("size", "retentionSizeInMB", Kind::Number)
        ])
    ),
    policy!(
        "{topic}",
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
    policy!("{topic}", "dispatch-rate", "dispatchRate", "POST", Body::Fields(DISPATCH)),
    policy!("{topic}", "subscription-dispatch-rate", "subscriptionDispatchRate", "POST", Body::Fields(DISPATCH)),
    policy!("{topic}", "replicator-dispatch-rate", "replicatorDispatchRate", "POST", Body::Fields(DISPATCH)),
    policy!(
        "{topic}",
        "subscribe-rate",
        "subscribeRate",
        "POST",
        Body::Fields(&[
            field("subscribe-rate", "subscribeThrottlingRatePerConsumer", Kind::Number),
            field("period", "ratePeriodInSecond", Kind::Number)
        ])
    ),
    policy!(
        "{topic}",
        "publish-rate",
        "publishRate",
        "POST",
        Body::Fields(&[
            field("msg-publish-rate", "publishThrottlingRateInMsg", Kind::Number),
            field("byte-publish-rate", "publishThrottlingRateInByte", Kind::Number)
        ])
    ),
    policy!(
        "{topic}",
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
        "{topic}",
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
        "{topic}",
        "auto-subscription-creation",
        "autoSubscriptionCreation",
        "POST",
        Body::Fields(&[field("enable", "allowAutoSubscriptionCreation", Kind::Switch)])
    ),
    &[
        plain("get-backlog-quotas", "Show backlog quotas", "GET", "{topic}/backlogQuotaMap").asking(APPLIED),
        plain("set-backlog-quota", "Set a backlog quota", "POST", "{topic}/backlogQuota")
            .with(Body::Fields(QUOTA))
            .asking(&[("backlogQuotaType", false)]),
        plain("remove-backlog-quota", "Unset a backlog quota", "DELETE", "{topic}/backlogQuota")
            .asking(&[("backlogQuotaType", false)]),
    ],
];

const CALLS: &[Verb] = &[
    plain("list", "List topics", "GET", "persistent/{namespace}").asking(&[("bundle", false)]),
    plain("list-partitioned-topics", "List partitioned topics", "GET", "persistent/{namespace}/partitioned"),
    plain("create", "Create a topic", "PUT", "{topic}"),
    plain("create-partitioned-topic", "Create a partitioned topic", "PUT", "{topic}/partitions")
        .with(Body::One(Kind::Number)),
    plain("update-partitioned-topic", "Give it more partitions", "POST", "{topic}/partitions")
        .with(Body::One(Kind::Number)),
    plain("get-partitioned-topic-metadata", "Show its partitions", "GET", "{topic}/partitions"),
    plain("delete", "Delete a topic", "DELETE", "{topic}").asking(FORCE),
    plain("delete-partitioned-topic", "Delete a partitioned topic", "DELETE", "{topic}/partitions").asking(FORCE),
    plain("unload", "Unload a topic", "PUT", "{topic}/unload"),
    plain("lookup", "Find a topic's broker", "GET", "/lookup/v2/topic/{topic}"),
    plain("bundle-range", "Show its hash range", "GET", "/lookup/v2/topic/{topic}/bundle"),
    plain("stats", "Figures", "GET", "{topic}/stats"),
    plain("partitioned-stats", "Figures of all partitions", "GET", "{topic}/partitioned-stats"),
    plain("stats-internal", "Figures of its storage", "GET", "{topic}/internalStats"),
    plain("info-internal", "Its record", "GET", "{topic}/internal-info"),
    plain("get-properties", "Show properties", "GET", "{topic}/properties"),
    plain("update-properties", "Set properties", "PUT", "{topic}/properties").with(Body::One(Kind::Json)),
    plain("remove-properties", "Remove a property", "DELETE", "{topic}/properties").asking(&[("key", false)]),
    plain("permissions", "Show grants", "GET", "{topic}/permissions"),
    plain("grant-permission", "Grant produce, consume, …", "POST", "{topic}/permissions/{role}")
        .with(Body::One(Kind::List)),
    plain("revoke-permission", "Withdraw a role's grants", "DELETE", "{topic}/permissions/{role}"),
    plain("terminate", "End a topic: nothing can be published any more", "POST", "{topic}/terminate"),
    plain("partitioned-terminate", "End all partitions", "POST", "{topic}/terminate/partitions"),
    plain("compact", "Compact a topic", "PUT", "{topic}/compaction"),
    plain("compaction-status", "Whether it is compacted", "GET", "{topic}/compaction"),
    plain("trim-topic", "Drop what nobody needs", "POST", "{topic}/trim"),
    plain("last-message-id", "Show the last id", "GET", "{topic}/lastMessageId"),
    plain("get-message-id", "Show the first id at a time (ms since 1970)", "GET", "{topic}/messageid/{time}"),
    plain("get-message-by-id", "Show a message", "GET", "{topic}/ledger/{ledger}/entry/{entry}"),
    plain("subscriptions", "List subscriptions", "GET", "{topic}/subscriptions"),
    plain(
        "create-subscription",
        "Create a subscription at earliest or latest",
        "PUT",
        "{topic}/subscription/{subscription}",
    )
    .with(Body::One(Kind::Text))
    .asking(&[("replicated", true)]),
    plain("unsubscribe", "Delete a subscription", "DELETE", "{topic}/subscription/{subscription}").asking(FORCE),
    plain("skip", "Skip messages", "POST", "{topic}/subscription/{subscription}/skip/{count}"),
    plain("clear-backlog", "Skip everything", "POST", "{topic}/subscription/{subscription}/skip_all"),
    plain("expire-messages", "Expire messages", "POST", "{topic}/subscription/{subscription}/expireMessages/{seconds}"),
    plain(
        "expire-messages-all-subscriptions",
        "Expire messages of all subscriptions",
        "POST",
        "{topic}/all_subscription/expireMessages/{seconds}",
    ),
    plain("peek-messages", "Show the nth message", "GET", "{topic}/subscription/{subscription}/position/{nth}"),
    plain(
        "reset-cursor",
        "Move a subscription to a time (ms since 1970)",
        "POST",
        "{topic}/subscription/{subscription}/resetcursor/{time}",
    ),
    plain(
        "set-replicated-subscription-status",
        "Share acknowledgements with other regions",
        "POST",
        "{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
    )
    .with(Body::One(Kind::Switch)),
];

/// All but policies.
pub fn verbs() -> Vec<Verb> {
    CALLS.to_vec()
}

/// Policies.
pub fn policies() -> Vec<Verb> {
    POLICIES.iter().copied().flatten().copied().collect()
}
