//! Policies of namespaces: one row each.

use super::parts::{
    AUTO_SUBSCRIPTION, AUTO_TOPIC, COMPATIBILITY, COUNT, DELAYED_DELIVERY, DISPATCH_RATE, ENTRY_FILTERS, FROM_ZERO,
    INACTIVE_TOPICS, OR_NEVER, PERSISTENCE, PUBLISH_RATE, REGIONS, RETENTION, SUBSCRIBE_RATE, SUBSCRIPTION_TYPES,
};
use super::{PolicySpec, Shape, backlog_quota, by_cluster, option, plain, shown, typed};
use crate::Policies;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// All of them, by name.
pub const NAMESPACE: &[PolicySpec<Policies>] = &[
    plain!(
        "allowedClusters",
        allowed_clusters,
        [],
        REGIONS,
        "Regions that its topics may be in; unset = those of replication."
    ),
    option!(
        "antiAffinity",
        anti_affinity_group,
        Shape::Text(&[]),
        "Group of namespaces that are spread over failure domains."
    ),
    option!(
        "autoSubscriptionCreation",
        auto_subscription_creation_override,
        AUTO_SUBSCRIPTION,
        "Whether subscriptions are created at first use."
    ),
    option!(
        "autoTopicCreation",
        auto_topic_creation_override,
        AUTO_TOPIC,
        "Whether topics are created at first use, and which."
    ),
    backlog_quota!(),
    option!(
        "compactionThreshold",
        compaction_threshold,
        FROM_ZERO,
        "Bytes after which a topic compacts itself, 0 = never."
    ),
    option!("deduplication", deduplication_enabled, Shape::Flag, "What a producer sends again is stored once."),
    option!(
        "deduplicationSnapshotInterval",
        deduplication_snapshot_interval_seconds,
        COUNT,
        "Seconds between two snapshots of producers' sequence numbers, 0 = by entries alone."
    ),
    option!("delayedDelivery", delayed_delivery_policies, DELAYED_DELIVERY, "Delivery at a later time."),
    option!(
        "dispatcherPauseOnAckStatePersistent",
        dispatcher_pause_on_ack_state_persistent_enabled,
        Shape::Flag,
        "Dispatch waits while acknowledgements can't be stored."
    ),
    by_cluster!(
        "dispatchRate",
        topic_dispatch_rate,
        DISPATCH_RATE,
        "What all subscriptions of a topic are sent together."
    ),
    plain!("encryptionRequired", encryption_required, false, Shape::Flag, "Producers must encrypt."),
    option!("entryFilters", entry_filters, ENTRY_FILTERS, "Filters of entries before dispatch."),
    option!("globalProducers", global_producers, Shape::Flag, "A producer's name is the same producer in all regions."),
    option!(
        "inactiveTopicPolicies",
        inactive_topic_policies,
        INACTIVE_TOPICS,
        "What happens to topics that nobody uses."
    ),
    option!("isAllowAutoUpdateSchema", is_allow_auto_update_schema, Shape::Flag, "Producers may register schemas."),
    plain!(
        "isAllowAutoUpdateSchemaWithReplicator",
        is_allow_auto_update_schema_with_replicator,
        true,
        Shape::Flag,
        "Replicators may register schemas."
    ),
    option!(
        "maxConsumersPerSubscription",
        max_consumers_per_subscription,
        COUNT,
        "Consumers of a subscription at most, 0 = no limit."
    ),
    option!("maxConsumersPerTopic", max_consumers_per_topic, COUNT, "Consumers of a topic at most, 0 = no limit."),
    option!("maxProducersPerTopic", max_producers_per_topic, COUNT, "Producers of a topic at most, 0 = no limit."),
    option!(
        "maxSubscriptionsPerTopic",
        max_subscriptions_per_topic,
        COUNT,
        "Subscriptions of a topic at most, 0 = no limit."
    ),
    option!("maxTopicsPerNamespace", max_topics_per_namespace, COUNT, "Topics at most, 0 = no limit."),
    option!(
        "maxUnackedMessagesPerConsumer",
        max_unacked_messages_per_consumer,
        COUNT,
        "Unacknowledged messages of a consumer at most, 0 = no limit."
    ),
    option!(
        "maxUnackedMessagesPerSubscription",
        max_unacked_messages_per_subscription,
        COUNT,
        "Unacknowledged messages of a subscription at most, 0 = no limit."
    ),
    option!(
        "messageTTL",
        message_ttl_in_seconds,
        COUNT,
        "Seconds after which a message counts as acknowledged, 0 = never."
    ),
    option!(
        "offloadDeletionLagMs",
        offload_deletion_lag_ms,
        OR_NEVER,
        "Offloaded data is deleted from bookies after so many ms."
    ),
    option!("offloadPolicies", offload_policies, Shape::Free, "Where to offload to; kept, there is no tiered storage."),
    plain!("offloadThreshold", offload_threshold, (-1), OR_NEVER, "Bytes after which offloading starts, -1 = never."),
    plain!(
        "offloadThresholdInSeconds",
        offload_threshold_in_seconds,
        (-1),
        OR_NEVER,
        "Age at which offloading starts, -1 = never."
    ),
    option!("persistence", persistence, PERSISTENCE, "Copies of what is stored."),
    plain!("properties", properties, {}, Shape::Labels, "Labels of one's own."),
    by_cluster!("publishRate", publish_max_message_rate, PUBLISH_RATE, "What a topic stores per second."),
    option!(
        "replicateSubscriptionState",
        replicate_subscription_state,
        Shape::Flag,
        "Acknowledgements of all subscriptions are shared between regions."
    ),
    PolicySpec {
        name: "replication",
        shape: REGIONS,
        about: "Regions that it is replicated between; unset = its own region alone.",
        unset: || Value::Null,
        read: |policies, cluster| own_alone(shown(&policies.replication_clusters), cluster),
        write: |policies, cluster, value| {
            policies.replication_clusters = match value {
                Value::Null => BTreeSet::from([cluster.to_owned()]),
                value => typed("replication", value)?,
            };
            Ok(())
        },
    },
    by_cluster!(
        "replicatorDispatchRate",
        replicator_dispatch_rate,
        DISPATCH_RATE,
        "What a link to another region is sent."
    ),
    option!("resourcegroup", resource_group_name, Shape::Text(&[]), "Resource group."),
    option!("retention", retention_policies, RETENTION, "How long acknowledged messages are kept."),
    option!(
        "schemaAutoUpdateCompatibilityStrategy",
        schema_auto_update_compatibility_strategy,
        Shape::Text(&[
            "AutoUpdateDisabled",
            "Backward",
            "Forward",
            "Full",
            "AlwaysCompatible",
            "BackwardTransitive",
            "ForwardTransitive",
            "FullTransitive",
        ]),
        "Schema rule, the older way."
    ),
    plain!(
        "schemaCompatibilityStrategy",
        schema_compatibility_strategy,
        "UNDEFINED",
        COMPATIBILITY,
        "Which schemas may follow which."
    ),
    plain!(
        "schemaValidationEnforced",
        schema_validation_enforced,
        false,
        Shape::Flag,
        "Producers without a schema are refused on topics that have one."
    ),
    by_cluster!("subscribeRate", cluster_subscribe_rate, SUBSCRIBE_RATE, "How often a consumer may subscribe."),
    plain!(
        "subscriptionAuthMode",
        subscription_auth_mode,
        "None",
        Shape::Text(&["None", "Prefix"]),
        "Whether names of subscriptions begin with the role."
    ),
    by_cluster!(
        "subscriptionDispatchRate",
        subscription_dispatch_rate,
        DISPATCH_RATE,
        "What one subscription is sent."
    ),
    option!(
        "subscriptionExpirationTime",
        subscription_expiration_time_minutes,
        COUNT,
        "Minutes after which an unused subscription is deleted, 0 = never."
    ),
    plain!(
        "subscriptionTypesEnabled",
        subscription_types_enabled,
        [],
        SUBSCRIPTION_TYPES,
        "Subscription types that may be used; unset = all."
    ),
];

fn own_alone(value: Value, cluster: &str) -> Value {
    super::unless_default(value, &json!([cluster]))
}
