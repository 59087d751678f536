//! What is in force for a topic: its own value, else the namespace's, else the broker's.
//!
//! Invariants: P1 the first level that has set a value decides, also when that value is zero; 0 in a result means "no
//! limit" where its comment says so.
//! Failure: none; every combination resolves.
//! Must never know: where the levels are stored, topics.

use crate::{
    BacklogQuota, BacklogQuotaKind, BacklogQuotaPolicy, DelayedDelivery, DispatchRate, InactiveTopics, Persistence,
    Policies, PublishRate, Retention, SchemaCompatibility, SubscribeRate, TopicPolicies,
};
use std::collections::BTreeSet;

/// Whether and how topics are created at first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoTopicCreation {
    /// They are.
    pub allowed: bool,
    /// Partitions, `None` = not partitioned.
    pub partitions: Option<u32>,
}

/// Whether subscriptions are created at first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoSubscriptionCreation {
    /// They are.
    pub allowed: bool,
}

/// What the broker's settings say, in force where namespace and topic say nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerDefaults {
    /// The broker's cluster, whose rates count.
    pub cluster: String,
    /// `allowAutoTopicCreation` and its kin.
    pub auto_topic_creation: AutoTopicCreation,
    /// `allowAutoSubscriptionCreation`.
    pub auto_subscription_creation: AutoSubscriptionCreation,
    /// `defaultRetention…`.
    pub retention: Retention,
    /// `ttlDurationDefaultInSeconds`.
    pub message_ttl_s: u32,
    /// `subscriptionExpirationTimeMinutes`.
    pub subscription_expiration_minutes: u32,
    /// `backlogQuotaDefaultLimitBytes`, not positive = no limit.
    pub backlog_quota_bytes: i64,
    /// `backlogQuotaDefaultLimitSecond`, not positive = no limit.
    pub backlog_quota_s: i64,
    /// `backlogQuotaDefaultRetentionPolicy`.
    pub backlog_policy: BacklogQuotaPolicy,
    /// `brokerDeduplicationEnabled`.
    pub deduplication: bool,
    /// `brokerDeduplicationSnapshotIntervalSeconds`.
    pub deduplication_snapshot_s: u32,
    /// `managedLedgerDefault…`.
    pub persistence: Persistence,
    /// `maxProducersPerTopic`.
    pub max_producers: u32,
    /// `maxConsumersPerTopic`.
    pub max_consumers: u32,
    /// `maxConsumersPerSubscription`.
    pub max_consumers_per_subscription: u32,
    /// `maxSubscriptionsPerTopic`.
    pub max_subscriptions: u32,
    /// `maxTopicsPerNamespace`.
    pub max_topics: u32,
    /// `maxUnackedMessagesPerConsumer`.
    pub max_unacked_per_consumer: u32,
    /// `maxUnackedMessagesPerSubscription`.
    pub max_unacked_per_subscription: u32,
    /// `delayedDelivery…`.
    pub delayed_delivery: DelayedDelivery,
    /// `brokerDeleteInactiveTopics…`.
    pub inactive_topics: InactiveTopics,
    /// `brokerServiceCompactionThresholdInBytes`.
    pub compaction_threshold_bytes: i64,
    /// `schemaCompatibilityStrategy`.
    pub schema_compatibility: SchemaCompatibility,
    /// `isSchemaValidationEnforced`.
    pub schema_validation_enforced: bool,
    /// `isAllowAutoUpdateSchemaEnabled`.
    pub allow_auto_update_schema: bool,
    /// `subscriptionTypesEnabled`, empty = all.
    pub subscription_types: BTreeSet<String>,
    /// `maxPublishRatePerTopic…`.
    pub publish_rate: PublishRate,
    /// `dispatchThrottlingRatePerTopic…`.
    pub topic_dispatch_rate: DispatchRate,
    /// `dispatchThrottlingRatePerSubscription…`.
    pub subscription_dispatch_rate: DispatchRate,
    /// `dispatchThrottlingRatePerReplicator…`.
    pub replicator_dispatch_rate: DispatchRate,
    /// `subscribeThrottlingRatePerConsumer` and its period.
    pub subscribe_rate: SubscribeRate,
}

impl Default for BrokerDefaults {
    /// Pulsar's defaults for one machine.
    fn default() -> Self {
        Self {
            cluster: "standalone".to_owned(),
            auto_topic_creation: AutoTopicCreation { allowed: true, partitions: None },
            auto_subscription_creation: AutoSubscriptionCreation { allowed: true },
            retention: Retention::default(),
            message_ttl_s: 0,
            subscription_expiration_minutes: 0,
            backlog_quota_bytes: -1,
            backlog_quota_s: -1,
            backlog_policy: BacklogQuotaPolicy::ProducerRequestHold,
            deduplication: false,
            deduplication_snapshot_s: 120,
            persistence: Persistence {
                bookkeeper_ensemble: 1,
                bookkeeper_write_quorum: 1,
                bookkeeper_ack_quorum: 1,
                ..Persistence::default()
            },
            max_producers: 0,
            max_consumers: 0,
            max_consumers_per_subscription: 0,
            max_subscriptions: 0,
            max_topics: 0,
            max_unacked_per_consumer: 50_000,
            max_unacked_per_subscription: 200_000,
            delayed_delivery: DelayedDelivery::default(),
            inactive_topics: InactiveTopics::default(),
            compaction_threshold_bytes: 0,
            schema_compatibility: SchemaCompatibility::Full,
            schema_validation_enforced: false,
            allow_auto_update_schema: true,
            subscription_types: BTreeSet::new(),
            publish_rate: PublishRate::default(),
            topic_dispatch_rate: DispatchRate::default(),
            subscription_dispatch_rate: DispatchRate::default(),
            replicator_dispatch_rate: DispatchRate::default(),
            subscribe_rate: SubscribeRate::default(),
        }
    }
}

/// What is in force for one topic.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectivePolicies {
    /// Creation of topics at first use.
    pub auto_topic_creation: AutoTopicCreation,
    /// Creation of subscriptions at first use.
    pub auto_subscription_creation: AutoSubscriptionCreation,
    /// Clusters that the topic is replicated between.
    pub replication_clusters: BTreeSet<String>,
    /// Retention.
    pub retention: Retention,
    /// Message time to live in seconds, 0 = none.
    pub message_ttl_s: u32,
    /// Unused subscriptions are deleted after so many minutes, 0 = never.
    pub subscription_expiration_minutes: u32,
    /// Backlog in bytes at most, 0 = no limit.
    pub backlog_quota_bytes: u64,
    /// What happens above it.
    pub backlog_bytes_policy: BacklogQuotaPolicy,
    /// Age of the backlog in seconds at most, 0 = no limit.
    pub backlog_quota_s: u64,
    /// What happens above it.
    pub backlog_age_policy: BacklogQuotaPolicy,
    /// Deduplication.
    pub deduplication: bool,
    /// Producers are the same in all regions.
    pub global_producers: bool,
    /// Acknowledgements of all durable subscriptions are shared between regions.
    pub replicate_subscription_state: bool,
    /// Its marks are stored so often, in seconds.
    pub deduplication_snapshot_s: u32,
    /// How the topic is stored.
    pub persistence: Persistence,
    /// Producers at most, 0 = no limit.
    pub max_producers: u32,
    /// Consumers at most, 0 = no limit.
    pub max_consumers: u32,
    /// Consumers of a subscription at most, 0 = no limit.
    pub max_consumers_per_subscription: u32,
    /// Subscriptions at most, 0 = no limit.
    pub max_subscriptions: u32,
    /// Topics of the namespace at most, 0 = no limit.
    pub max_topics: u32,
    /// Unacknowledged messages of a consumer at most, 0 = no limit.
    pub max_unacked_per_consumer: u32,
    /// Unacknowledged messages of a subscription at most, 0 = no limit.
    pub max_unacked_per_subscription: u32,
    /// Bytes of a message at most, 0 = the broker's limit.
    pub max_message_bytes: u32,
    /// Delayed delivery.
    pub delayed_delivery: DelayedDelivery,
    /// Inactive topics.
    pub inactive_topics: InactiveTopics,
    /// Compaction starts at so many bytes, 0 = never by itself.
    pub compaction_threshold_bytes: u64,
    /// Producers must encrypt.
    pub encryption_required: bool,
    /// Schema rule; never undefined.
    pub schema_compatibility: SchemaCompatibility,
    /// Producers without a schema are refused when the topic has one.
    pub schema_validation_enforced: bool,
    /// Producers may register schemas.
    pub allow_auto_update_schema: bool,
    /// Subscription types that may be used, empty = all.
    pub subscription_types: BTreeSet<String>,
    /// Messages and bytes published per second at most, 0 = no limit.
    pub publish_rate: (u64, u64),
    /// Messages and bytes dispatched by the topic per second at most, 0 = no limit.
    pub topic_dispatch_rate: (u64, u64),
    /// They stand on top of the publish rate.
    pub topic_dispatch_relative: bool,
    /// Messages and bytes dispatched by a subscription per second at most, 0 = no limit.
    pub subscription_dispatch_rate: (u64, u64),
    /// They stand on top of the publish rate.
    pub subscription_dispatch_relative: bool,
    /// Messages and bytes dispatched by a replicator per second at most, 0 = no limit.
    pub replicator_dispatch_rate: (u64, u64),
    /// They stand on top of the publish rate.
    pub replicator_dispatch_relative: bool,
    /// Subscribe calls of a consumer in a period at most (0 = no limit), and the period in seconds.
    pub subscribe_rate: (u32, u32),
}

/// Resolves all policies of a topic.
pub fn resolve(topic: Option<&TopicPolicies>, namespace: &Policies, broker: &BrokerDefaults) -> EffectivePolicies {
    let none = TopicPolicies::default();
    let topic = topic.unwrap_or(&none);
    let size = quota(topic, namespace, broker, BacklogQuotaKind::DestinationStorage);
    let age = quota(topic, namespace, broker, BacklogQuotaKind::MessageAge);
    let limit = |topic: Option<u32>, namespace: Option<u32>, broker| topic.or(namespace).unwrap_or(broker);
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    let levels = Levels { topic, namespace, broker };
    let (max_unacked_per_consumer, max_unacked_per_subscription) = levels.max_unacked();
    EffectivePolicies {
        auto_topic_creation: auto_topic_creation(namespace, broker),
        auto_subscription_creation: auto_subscription_creation(topic, namespace, broker),
        replication_clusters: topic.replication_clusters.as_ref().unwrap_or(&namespace.replication_clusters).clone(),
        retention: topic.retention.or(namespace.retention_policies).unwrap_or(broker.retention),
        message_ttl_s: limit(topic.message_ttl_in_seconds, namespace.message_ttl_in_seconds, broker.message_ttl_s),
        subscription_expiration_minutes: namespace
            .subscription_expiration_time_minutes
            .unwrap_or(broker.subscription_expiration_minutes),
        backlog_quota_bytes: unsigned(size.size_bytes()),
        backlog_bytes_policy: size.policy.unwrap_or(broker.backlog_policy),
        backlog_quota_s: unsigned(age.limit_time.unwrap_or(-1)),
        backlog_age_policy: age.policy.unwrap_or(broker.backlog_policy),
        deduplication: topic.deduplication_enabled.or(namespace.deduplication_enabled).unwrap_or(broker.deduplication),
        global_producers: topic.global_producers.or(namespace.global_producers).unwrap_or(false),
        replicate_subscription_state: topic
            .replicate_subscription_state
            .or(namespace.replicate_subscription_state)
            .unwrap_or(false),
        deduplication_snapshot_s: levels.deduplication_snapshot_s(),
        persistence: levels.persistence().clone(),
        max_producers: limit(topic.max_producers, namespace.max_producers_per_topic, broker.max_producers),
        max_consumers: limit(topic.max_consumers, namespace.max_consumers_per_topic, broker.max_consumers),
        max_consumers_per_subscription: limit(
            topic.max_consumers_per_subscription,
            namespace.max_consumers_per_subscription,
            broker.max_consumers_per_subscription,
        ),
        max_subscriptions: limit(
            topic.max_subscriptions,
            namespace.max_subscriptions_per_topic,
            broker.max_subscriptions,
        ),
        max_topics: namespace.max_topics_per_namespace.unwrap_or(broker.max_topics),
        max_unacked_per_consumer,
        max_unacked_per_subscription,
        max_message_bytes: topic.max_message_size.unwrap_or(0),
        delayed_delivery: topic
            .delayed_delivery
            .or(namespace.delayed_delivery_policies)
            .unwrap_or(broker.delayed_delivery),
        inactive_topics: topic
            .inactive_topic_policies
            .or(namespace.inactive_topic_policies)
            .unwrap_or(broker.inactive_topics),
        compaction_threshold_bytes: unsigned(
            topic.compaction_threshold.or(namespace.compaction_threshold).unwrap_or(broker.compaction_threshold_bytes),
        ),
        encryption_required: namespace.encryption_required,
        schema_compatibility: schema_compatibility(topic, namespace, broker),
        schema_validation_enforced: topic
            .schema_validation_enforced
            .unwrap_or(namespace.schema_validation_enforced || broker.schema_validation_enforced),
        allow_auto_update_schema: namespace.is_allow_auto_update_schema.unwrap_or(broker.allow_auto_update_schema),
        subscription_types: subscription_types(topic, namespace, broker).clone(),
        publish_rate: levels.publish().per_second(),
        topic_dispatch_rate: levels.topic().per_second(),
        topic_dispatch_relative: levels.topic().relative_to_publish_rate,
        subscription_dispatch_rate: levels.subscription().per_second(),
        subscription_dispatch_relative: levels.subscription().relative_to_publish_rate,
        replicator_dispatch_rate: levels.replicator().per_second(),
        replicator_dispatch_relative: levels.replicator().relative_to_publish_rate,
        subscribe_rate: levels.subscribe().limit(),
    }
}

fn quota(topic: &TopicPolicies, namespace: &Policies, broker: &BrokerDefaults, kind: BacklogQuotaKind) -> BacklogQuota {
    let set = topic.backlog_quota_map.get(&kind).or(namespace.backlog_quota_map.get(&kind));
    set.copied()
        .unwrap_or_else(|| BacklogQuota::new(broker.backlog_quota_bytes, broker.backlog_quota_s, broker.backlog_policy))
}

fn auto_topic_creation(namespace: &Policies, broker: &BrokerDefaults) -> AutoTopicCreation {
    let Some(set) = &namespace.auto_topic_creation_override else { return broker.auto_topic_creation };
    let partitioned = set.topic_type.as_deref() == Some("partitioned");
    AutoTopicCreation {
        allowed: set.allow_auto_topic_creation,
        partitions: partitioned.then(|| set.default_num_partitions.unwrap_or(1).max(1)),
    }
}

fn auto_subscription_creation(
    topic: &TopicPolicies,
    namespace: &Policies,
    broker: &BrokerDefaults,
) -> AutoSubscriptionCreation {
    let set = topic.auto_subscription_creation_override.or(namespace.auto_subscription_creation_override);
    set.map_or(broker.auto_subscription_creation, |set| AutoSubscriptionCreation {
        allowed: set.allow_auto_subscription_creation,
    })
}

fn schema_compatibility(topic: &TopicPolicies, namespace: &Policies, broker: &BrokerDefaults) -> SchemaCompatibility {
    let levels = [
        topic.schema_compatibility_strategy.unwrap_or_default(),
        namespace.schema_compatibility(),
        broker.schema_compatibility,
    ];
    let set = levels.into_iter().find(|level| *level != SchemaCompatibility::Undefined);
    set.unwrap_or(SchemaCompatibility::Full)
}

fn subscription_types<'a>(
    topic: &'a TopicPolicies,
    namespace: &'a Policies,
    broker: &'a BrokerDefaults,
) -> &'a BTreeSet<String> {
    match &topic.subscription_types_enabled {
        Some(types) if !types.is_empty() => types,
        _ if !namespace.subscription_types_enabled.is_empty() => &namespace.subscription_types_enabled,
        _ => &broker.subscription_types,
    }
}

/// The three levels of one topic.
struct Levels<'a> {
    topic: &'a TopicPolicies,
    namespace: &'a Policies,
    broker: &'a BrokerDefaults,
}

impl Levels<'_> {
    fn persistence(&self) -> &Persistence {
        let set = self.topic.persistence.as_ref().or(self.namespace.persistence.as_ref());
        set.unwrap_or(&self.broker.persistence)
    }

    fn deduplication_snapshot_s(&self) -> u32 {
        let topic = self.topic.deduplication_snapshot_interval_seconds;
        let set = topic.or(self.namespace.deduplication_snapshot_interval_seconds);
        set.unwrap_or(self.broker.deduplication_snapshot_s)
    }

    /// Per consumer and per subscription.
    fn max_unacked(&self) -> (u32, u32) {
        let consumer =
            self.topic.max_unacked_messages_per_consumer.or(self.namespace.max_unacked_messages_per_consumer);
        let subscription =
            self.topic.max_unacked_messages_per_subscription.or(self.namespace.max_unacked_messages_per_subscription);
        (
            consumer.unwrap_or(self.broker.max_unacked_per_consumer),
            subscription.unwrap_or(self.broker.max_unacked_per_subscription),
        )
    }

    // A namespace sets rates per cluster; those of the broker's own count.

    fn publish(&self) -> PublishRate {
        let namespace = self.namespace.publish_max_message_rate.get(&self.broker.cluster).copied();
        self.topic.publish_rate.or(namespace).unwrap_or(self.broker.publish_rate)
    }

    fn topic(&self) -> DispatchRate {
        let namespace = self.namespace.topic_dispatch_rate.get(&self.broker.cluster).copied();
        self.topic.dispatch_rate.or(namespace).unwrap_or(self.broker.topic_dispatch_rate)
    }

    fn subscription(&self) -> DispatchRate {
        let namespace = self.namespace.subscription_dispatch_rate.get(&self.broker.cluster).copied();
        self.topic.subscription_dispatch_rate.or(namespace).unwrap_or(self.broker.subscription_dispatch_rate)
    }

    fn replicator(&self) -> DispatchRate {
        let namespace = self.namespace.replicator_dispatch_rate.get(&self.broker.cluster).copied();
        self.topic.replicator_dispatch_rate.or(namespace).unwrap_or(self.broker.replicator_dispatch_rate)
    }

    fn subscribe(&self) -> SubscribeRate {
        let namespace = self.namespace.cluster_subscribe_rate.get(&self.broker.cluster).copied();
        self.topic.subscribe_rate.or(namespace).unwrap_or(self.broker.subscribe_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AutoTopicCreationOverride, Persistence};

    #[test]
    fn each_level_is_asked_in_turn_and_zero_decides() {
        let broker = BrokerDefaults { max_producers: 7, message_ttl_s: 9, ..Default::default() };
        let mut namespace = Policies::default();
        assert_eq!(resolve(None, &namespace, &broker).max_producers, 7);
        namespace.max_producers_per_topic = Some(5);
        assert_eq!(resolve(None, &namespace, &broker).max_producers, 5);
        let topic = TopicPolicies { max_producers: Some(0), message_ttl_in_seconds: Some(0), ..Default::default() };
        let effective = resolve(Some(&topic), &namespace, &broker);
        assert_eq!((effective.max_producers, effective.message_ttl_s), (0, 0), "P1");
    }

    #[test]
    fn the_two_backlog_quotas_are_independent() {
        let mut namespace = Policies::default();
        let broker = BrokerDefaults { backlog_quota_s: 60, ..Default::default() };
        let size = BacklogQuota::new(100, 5, BacklogQuotaPolicy::ConsumerBacklogEviction);
        namespace.backlog_quota_map.insert(BacklogQuotaKind::DestinationStorage, size);
        let effective = resolve(None, &namespace, &broker);
        assert_eq!((effective.backlog_quota_bytes, effective.backlog_quota_s), (100, 60));
        assert_eq!(effective.backlog_bytes_policy.code(), 2);
        assert_eq!(effective.backlog_age_policy.code(), 0);
        let mut topic = TopicPolicies::default();
        let none = BacklogQuota::new(-1, -1, BacklogQuotaPolicy::ProducerException);
        topic.backlog_quota_map.insert(BacklogQuotaKind::DestinationStorage, none);
        assert_eq!(resolve(Some(&topic), &namespace, &broker).backlog_quota_bytes, 0);
    }

    #[test]
    fn rates_of_a_namespace_count_for_the_brokers_cluster() {
        let mut namespace = Policies::default();
        let rate = PublishRate { publish_throttling_rate_in_msg: 10, publish_throttling_rate_in_byte: -1 };
        namespace.publish_max_message_rate.insert("other".into(), rate);
        let broker = BrokerDefaults::default();
        assert_eq!(resolve(None, &namespace, &broker).publish_rate, (0, 0));
        namespace.publish_max_message_rate.insert("standalone".into(), rate);
        assert_eq!(resolve(None, &namespace, &broker).publish_rate, (10, 0));
    }

    #[test]
    fn an_undefined_schema_rule_is_the_level_aboves() {
        let (mut namespace, broker) = (Policies::default(), BrokerDefaults::default());
        assert_eq!(resolve(None, &namespace, &broker).schema_compatibility, SchemaCompatibility::Full);
        namespace.schema_compatibility_strategy = SchemaCompatibility::Forward;
        let topic =
            TopicPolicies { schema_compatibility_strategy: Some(SchemaCompatibility::Undefined), ..Default::default() };
        assert_eq!(resolve(Some(&topic), &namespace, &broker).schema_compatibility, SchemaCompatibility::Forward);
    }

    #[test]
    fn topics_are_created_as_the_namespace_says() {
        let mut namespace = Policies::default();
        let broker = BrokerDefaults::default();
        assert!(resolve(None, &namespace, &broker).auto_topic_creation.allowed);
        namespace.auto_topic_creation_override = Some(AutoTopicCreationOverride {
            allow_auto_topic_creation: true,
            topic_type: Some("partitioned".into()),
            default_num_partitions: Some(3),
        });
        assert_eq!(resolve(None, &namespace, &broker).auto_topic_creation.partitions, Some(3));
        namespace.auto_topic_creation_override = Some(AutoTopicCreationOverride::default());
        assert!(!resolve(None, &namespace, &broker).auto_topic_creation.allowed);
    }

    #[test]
    fn whole_structures_replace_each_other() {
        let topic = TopicPolicies { persistence: Some(Persistence::default()), ..Default::default() };
        let effective = resolve(Some(&topic), &Policies::default(), &BrokerDefaults::default());
        assert_eq!(effective.persistence.bookkeeper_ensemble, 2);
        let types = BTreeSet::from(["Exclusive".to_owned()]);
        let namespace = Policies { subscription_types_enabled: types.clone(), ..Default::default() };
        assert_eq!(resolve(None, &namespace, &BrokerDefaults::default()).subscription_types, types);
    }
}
