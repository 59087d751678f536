//! Policies: one row each, those that namespaces and topics share written once.
//!
//! Invariants: W3 every policy of the schema that a tool may set has its verbs, and asks for what the schema says it holds.

use super::table::{field, plain};
use super::{Body, Field, Kind, Verb};

const NUMBER: Body = Body::One(Kind::Number);
const SWITCH: Body = Body::One(Kind::Switch);
const LIST: Body = Body::One(Kind::List);
const TEXT: Body = Body::One(Kind::Text);
const JSON: Body = Body::One(Kind::Json);

const RETENTION: Body = Body::Fields(&[
    field("time", "retentionTimeInMinutes", Kind::Number),
    field("size", "retentionSizeInMB", Kind::Number),
]);
const PERSISTENCE: Body = Body::Fields(&[
    field("bookkeeper-ensemble", "bookkeeperEnsemble", Kind::Number),
    field("bookkeeper-write-quorum", "bookkeeperWriteQuorum", Kind::Number),
    field("bookkeeper-ack-quorum", "bookkeeperAckQuorum", Kind::Number),
    field("ml-mark-delete-max-rate", "managedLedgerMaxMarkDeleteRate", Kind::Decimal),
]);
const DISPATCH: Body = Body::Fields(&[
    field("msg-dispatch-rate", "dispatchThrottlingRateInMsg", Kind::Number),
    field("byte-dispatch-rate", "dispatchThrottlingRateInByte", Kind::Number),
    field("dispatch-rate-period", "ratePeriodInSecond", Kind::Number),
    field("relative-to-publish-rate", "relativeToPublishRate", Kind::Switch),
]);
const SUBSCRIBE: Body = Body::Fields(&[
    field("subscribe-rate", "subscribeThrottlingRatePerConsumer", Kind::Number),
    field("period", "ratePeriodInSecond", Kind::Number),
]);
const PUBLISH: Body = Body::Fields(&[
    field("msg-publish-rate", "publishThrottlingRateInMsg", Kind::Number),
    field("byte-publish-rate", "publishThrottlingRateInByte", Kind::Number),
]);
const DELAYED: Body = Body::Fields(&[
    field("enable", "active", Kind::Switch),
    field("time", "tickTime", Kind::Number),
    field("max-delay", "maxDeliveryDelayInMillis", Kind::Number),
]);
const INACTIVE: Body = Body::Fields(&[
    field("enable", "deleteWhileInactive", Kind::Switch),
    field("max-inactive-seconds", "maxInactiveDurationSeconds", Kind::Number),
    field("delete-mode", "inactiveTopicDeleteMode", Kind::Text),
]);
const AUTO_TOPIC: Body = Body::Fields(&[
    field("enable", "allowAutoTopicCreation", Kind::Switch),
    field("type", "topicType", Kind::Text),
    field("num-partitions", "defaultNumPartitions", Kind::Number),
]);
const AUTO_SUBSCRIPTION: Body = Body::Fields(&[field("enable", "allowAutoSubscriptionCreation", Kind::Switch)]);
const AFFINITY: Body = Body::Fields(&[
    field("primary-group", "bookkeeperAffinityGroupPrimary", Kind::Text),
    field("secondary-group", "bookkeeperAffinityGroupSecondary", Kind::Text),
]);
const QUOTA: &[Field] = &[
    field("limit", "limitSize", Kind::Number),
    field("limit-time", "limitTime", Kind::Number),
    field("policy", "policy", Kind::Text),
];

/// Showing and setting, row by row.
macro_rules! lasting {
    ($at:literal, $asks:expr; $($name:literal $policy:literal $method:literal $body:expr;)*) => {
        &[$(
            plain(concat!("get-", $name), concat!("Show ", $policy), "GET", concat!($at, "/", $policy)).asking($asks),
            plain(concat!("set-", $name), concat!("Set ", $policy), $method, concat!($at, "/", $policy)).with($body),
        )*]
    };
}

/// Showing, setting and unsetting, row by row.
macro_rules! policies {
    ($at:literal, $asks:expr; $($name:literal $policy:literal $method:literal $body:expr;)*) => {
        &[$(
            plain(concat!("get-", $name), concat!("Show ", $policy), "GET", concat!($at, "/", $policy)).asking($asks),
            plain(concat!("set-", $name), concat!("Set ", $policy), $method, concat!($at, "/", $policy)).with($body),
            plain(concat!("remove-", $name), concat!("Unset ", $policy), "DELETE", concat!($at, "/", $policy)),
        )*]
    };
}

/// The one policy that is set without a value.
macro_rules! pause {
    () => {
        "dispatcherPauseOnAckStatePersistent"
    };
}

/// What namespaces and topics have alike.
macro_rules! of_both {
    ($at:literal, $asks:expr) => {
        &[
            lasting! { $at, $asks;
                "schema-validation-enforced" "schemaValidationEnforced" "POST" SWITCH;
            },
            policies! { $at, $asks;
                "message-ttl" "messageTTL" "POST" NUMBER;
                "max-consumers-per-subscription" "maxConsumersPerSubscription" "POST" NUMBER;
                "max-subscriptions-per-topic" "maxSubscriptionsPerTopic" "POST" NUMBER;
                "deduplication-snapshot-interval" "deduplicationSnapshotInterval" "POST" NUMBER;
                "global-producers" "globalProducers" "POST" SWITCH;
                "replicate-subscription-state" "replicateSubscriptionState" "POST" SWITCH;
                "subscription-types-enabled" "subscriptionTypesEnabled" "POST" LIST;
                "offload-policies" "offloadPolicies" "POST" JSON;
                "retention" "retention" "POST" RETENTION;
                "persistence" "persistence" "POST" PERSISTENCE;
                "dispatch-rate" "dispatchRate" "POST" DISPATCH;
                "subscription-dispatch-rate" "subscriptionDispatchRate" "POST" DISPATCH;
                "replicator-dispatch-rate" "replicatorDispatchRate" "POST" DISPATCH;
                "subscribe-rate" "subscribeRate" "POST" SUBSCRIBE;
                "publish-rate" "publishRate" "POST" PUBLISH;
                "delayed-delivery" "delayedDelivery" "POST" DELAYED;
                "inactive-topic-policies" "inactiveTopicPolicies" "POST" INACTIVE;
                "auto-subscription-creation" "autoSubscriptionCreation" "POST" AUTO_SUBSCRIPTION;
            },
            &[
                plain(
                    "get-dispatcher-pause-on-ack-state-persistent",
                    concat!("Show ", pause!()),
                    "GET",
                    concat!($at, "/", pause!()),
                )
                .asking($asks),
                plain(
                    "set-dispatcher-pause-on-ack-state-persistent",
                    concat!("Set ", pause!()),
                    "POST",
                    concat!($at, "/", pause!()),
                ),
                plain(
                    "remove-dispatcher-pause-on-ack-state-persistent",
                    concat!("Unset ", pause!()),
                    "DELETE",
                    concat!($at, "/", pause!()),
                ),
                plain("get-backlog-quotas", "Show backlog quotas", "GET", concat!($at, "/backlogQuotaMap"))
                    .asking($asks),
                plain("set-backlog-quota", "Set a backlog quota", "POST", concat!($at, "/backlogQuota"))
                    .with(Body::Fields(QUOTA))
                    .asking(QUOTA_TYPE),
                plain("remove-backlog-quota", "Unset a backlog quota", "DELETE", concat!($at, "/backlogQuota"))
                    .asking(QUOTA_TYPE),
            ],
        ]
    };
}

const QUOTA_TYPE: &[(&str, bool)] = &[("backlogQuotaType", false)];
const NOTHING: &[(&str, bool)] = &[];
const APPLIED: &[(&str, bool)] = &[("applied", true)];

const NAMESPACE_TOO: &[&[Verb]] = of_both!("namespaces/{namespace}", NOTHING);

const NAMESPACE: &[&[Verb]] = &[
    lasting! { "namespaces/{namespace}", NOTHING;
        "is-allow-auto-update-schema" "isAllowAutoUpdateSchema" "POST" SWITCH;
        "clusters" "replication" "POST" LIST;
        "allowed-clusters" "allowedClusters" "POST" LIST;
        "schema-compatibility-strategy" "schemaCompatibilityStrategy" "PUT" TEXT;
        "schema-autoupdate-strategy" "schemaAutoUpdateCompatibilityStrategy" "PUT" TEXT;
        "subscription-auth-mode" "subscriptionAuthMode" "POST" TEXT;
    },
    policies! { "namespaces/{namespace}", NOTHING;
        "subscription-expiration-time" "subscriptionExpirationTime" "POST" NUMBER;
        "max-producers-per-topic" "maxProducersPerTopic" "POST" NUMBER;
        "max-consumers-per-topic" "maxConsumersPerTopic" "POST" NUMBER;
        "max-topics-per-namespace" "maxTopicsPerNamespace" "POST" NUMBER;
        "max-unacked-messages-per-consumer" "maxUnackedMessagesPerConsumer" "POST" NUMBER;
        "max-unacked-messages-per-subscription" "maxUnackedMessagesPerSubscription" "POST" NUMBER;
        "deduplication" "deduplication" "POST" SWITCH;
        "encryption-required" "encryptionRequired" "POST" SWITCH;
        "anti-affinity-group" "antiAffinity" "POST" TEXT;
        "compaction-threshold" "compactionThreshold" "PUT" NUMBER;
        "offload-threshold" "offloadThreshold" "PUT" NUMBER;
        "offload-threshold-in-seconds" "offloadThresholdInSeconds" "PUT" NUMBER;
        "offload-deletion-lag" "offloadDeletionLagMs" "PUT" NUMBER;
        "properties" "properties" "PUT" JSON;
        "auto-topic-creation" "autoTopicCreation" "POST" AUTO_TOPIC;
        "bookie-affinity-group" "persistence/bookieAffinity" "POST" AFFINITY;
    },
    &[
        plain("get-resource-group", "Show its resource group", "GET", "namespaces/{namespace}/resourcegroup"),
        plain("set-resource-group", "Bind it to a group", "POST", "namespaces/{namespace}/resourcegroup/{group}"),
        plain("remove-resource-group", "Take it out of its group", "DELETE", "namespaces/{namespace}/resourcegroup"),
    ],
];

const TOPIC_TOO: &[&[Verb]] = of_both!("{topic}", APPLIED);

const TOPIC: &[&[Verb]] = &[policies! { "{topic}", APPLIED;
    "max-producers" "maxProducers" "POST" NUMBER;
    "max-consumers" "maxConsumers" "POST" NUMBER;
    "max-unacked-messages-per-consumer" "maxUnackedMessagesOnConsumer" "POST" NUMBER;
    "max-unacked-messages-per-subscription" "maxUnackedMessagesOnSubscription" "POST" NUMBER;
    "max-message-size" "maxMessageSize" "POST" NUMBER;
    "deduplication" "deduplicationEnabled" "POST" SWITCH;
    "replication-clusters" "replication" "POST" LIST;
    "compaction-threshold" "compactionThreshold" "POST" NUMBER;
    "schema-compatibility-strategy" "schemaCompatibilityStrategy" "PUT" TEXT;
}];

fn all(rows: [&'static [&'static [Verb]]; 2]) -> impl Iterator<Item = Verb> {
    rows.into_iter().flatten().copied().flatten().copied()
}

/// Those of namespaces.
pub fn of_namespaces() -> impl Iterator<Item = Verb> {
    all([NAMESPACE_TOO, NAMESPACE])
}

/// Those of topics.
pub fn of_topics() -> impl Iterator<Item = Verb> {
    all([TOPIC_TOO, TOPIC])
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_policy::schema::{self, Shape};

    fn kind_of(shape: &Shape) -> Kind {
        match shape {
            Shape::Flag => Kind::Switch,
            Shape::Whole { .. } => Kind::Number,
            Shape::Number => Kind::Decimal,
            Shape::Text(_) => Kind::Text,
            Shape::Texts(_) => Kind::List,
            Shape::Labels | Shape::Free | Shape::Record(_) => Kind::Json,
        }
    }

    /// A verb asks for what the schema says (W3).
    fn check(verbs: &[Verb], at: &str, name: &str, shape: &Shape) {
        let path = format!("{at}/{name}");
        let set = verbs.iter().find(|verb| verb.path == path && verb.name.starts_with("set-"));
        let set = set.unwrap_or_else(|| panic!("{name} can't be set"));
        match (set.body, shape) {
            (Body::Fields(fields), Shape::Record(known)) => {
                for field in fields {
                    let found = known.iter().find(|one| one.name == field.name);
                    let found = found.unwrap_or_else(|| panic!("{name}: {} is no field", field.name));
                    assert!(field.kind == kind_of(&found.shape), "{name}: {}", field.name);
                }
            }
            (Body::One(kind), shape) => assert!(kind == kind_of(shape), "{name}"),
            _ => panic!("{name} is no record"),
        }
    }

    #[test]
    fn every_policy_of_the_schema_has_its_verbs() {
        // By calls of their own, without a value, by a query of another policy, or refused.
        let others =
            ["backlogQuota", "resourcegroup", pause!(), "isAllowAutoUpdateSchemaWithReplicator", "entryFilters"];
        let verbs: Vec<_> = of_namespaces().collect();
        for spec in schema::NAMESPACE.iter().filter(|spec| !others.contains(&spec.name)) {
            check(&verbs, "namespaces/{namespace}", spec.name, &spec.shape);
        }
        let verbs: Vec<_> = of_topics().collect();
        for spec in schema::TOPIC.iter().filter(|spec| !others.contains(&spec.name)) {
            check(&verbs, "{topic}", spec.name, &spec.shape);
        }
    }
}
