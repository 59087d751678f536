//! Policies of topics: one row each; what is unset is the namespace's.

use super::parts::{
    AUTO_SUBSCRIPTION, COMPATIBILITY, COUNT, DELAYED_DELIVERY, DISPATCH_RATE, ENTRY_FILTERS, FROM_ZERO,
    INACTIVE_TOPICS, PERSISTENCE, PUBLISH_RATE, REGIONS, RETENTION, SUBSCRIBE_RATE, SUBSCRIPTION_TYPES,
};
use super::{PolicySpec, Shape, backlog_quota, option};
use crate::TopicPolicies;

/// All of them, by name.
pub const TOPIC: &[PolicySpec<TopicPolicies>] = &[
    option!(
        "autoSubscriptionCreation",
        auto_subscription_creation_override,
        AUTO_SUBSCRIPTION,
        "Whether subscriptions are created at first use."
    ),
    backlog_quota!(),
    option!(
        "compactionThreshold",
        compaction_threshold,
        FROM_ZERO,
        "Bytes after which the topic compacts itself, 0 = never."
    ),
    option!("deduplicationEnabled", deduplication_enabled, Shape::Flag, "What a producer sends again is stored once."),
    option!(
        "deduplicationSnapshotInterval",
        deduplication_snapshot_interval_seconds,
        COUNT,
        "Seconds between two snapshots of producers' sequence numbers, 0 = by entries alone."
    ),
    option!("delayedDelivery", delayed_delivery, DELAYED_DELIVERY, "Delivery at a later time."),
    option!(
        "dispatcherPauseOnAckStatePersistent",
        dispatcher_pause_on_ack_state_persistent_enabled,
        Shape::Flag,
        "Dispatch waits while acknowledgements can't be stored."
    ),
    option!("dispatchRate", dispatch_rate, DISPATCH_RATE, "What all subscriptions are sent together."),
    option!("entryFilters", entry_filters, ENTRY_FILTERS, "Filters of entries before dispatch."),
    option!("globalProducers", global_producers, Shape::Flag, "A producer's name is the same producer in all regions."),
    option!("inactiveTopicPolicies", inactive_topic_policies, INACTIVE_TOPICS, "What happens when nobody uses it."),
    option!("maxConsumers", max_consumers, COUNT, "Consumers at most, 0 = no limit."),
    option!(
        "maxConsumersPerSubscription",
        max_consumers_per_subscription,
        COUNT,
        "Consumers of a subscription at most, 0 = no limit."
    ),
    option!("maxMessageSize", max_message_size, COUNT, "Bytes of a message at most, 0 = the broker's limit."),
    option!("maxProducers", max_producers, COUNT, "Producers at most, 0 = no limit."),
    option!("maxSubscriptionsPerTopic", max_subscriptions, COUNT, "Subscriptions at most, 0 = no limit."),
    option!(
        "maxUnackedMessagesOnConsumer",
        max_unacked_messages_per_consumer,
        COUNT,
        "Unacknowledged messages of a consumer at most, 0 = no limit."
    ),
    option!(
        "maxUnackedMessagesOnSubscription",
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
    option!("offloadPolicies", offload_policies, Shape::Free, "Where to offload to; kept, there is no tiered storage."),
    option!("persistence", persistence, PERSISTENCE, "Copies of what is stored."),
    option!("publishRate", publish_rate, PUBLISH_RATE, "What is stored per second."),
    option!(
        "replicateSubscriptionState",
        replicate_subscription_state,
        Shape::Flag,
        "Acknowledgements of all subscriptions are shared between regions."
    ),
    option!("replication", replication_clusters, REGIONS, "Regions that it is replicated between."),
    option!(
        "replicatorDispatchRate",
        replicator_dispatch_rate,
        DISPATCH_RATE,
        "What a link to another region is sent."
    ),
    option!("retention", retention, RETENTION, "How long acknowledged messages are kept."),
    option!(
        "schemaCompatibilityStrategy",
        schema_compatibility_strategy,
        COMPATIBILITY,
        "Which schemas may follow which."
    ),
    option!(
        "schemaValidationEnforced",
        schema_validation_enforced,
        Shape::Flag,
        "Producers without a schema are refused when the topic has one."
    ),
    option!("subscribeRate", subscribe_rate, SUBSCRIBE_RATE, "How often a consumer may subscribe."),
    option!("subscriptionDispatchRate", subscription_dispatch_rate, DISPATCH_RATE, "What one subscription is sent."),
    option!(
        "subscriptionTypesEnabled",
        subscription_types_enabled,
        SUBSCRIPTION_TYPES,
        "Subscription types that may be used; unset = all."
    ),
];
