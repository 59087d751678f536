//! The policies of one topic, and what is known of a partitioned topic.
//!
//! Invariants: P1 an option that is `None` is unset and not written.
//! Failure: unreadable JSON is serde's error.
//! Must never know: namespaces' and brokers' values.

use crate::{
    AutoSubscriptionCreationOverride, BacklogQuota, BacklogQuotaKind, DispatchRate, EntryFilters, InactiveTopics,
    Persistence, PublishRate, Retention, SchemaCompatibility, SubscribeRate, lenient,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Policies of one subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionPolicies {
    /// Dispatch at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_rate: Option<DispatchRate>,
}

/// All policies of a topic; each unset one is the namespace's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicPolicies {
    /// Backlog quotas.
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub backlog_quota_map: BTreeMap<BacklogQuotaKind, BacklogQuota>,
    /// Subscription types that may be used; empty = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_types_enabled: Option<BTreeSet<String>>,
    /// Clusters that the topic is replicated between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_clusters: Option<BTreeSet<String>>,
    /// How the topic is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,
    /// Retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// Deduplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_enabled: Option<bool>,
    /// Producers are the same in all regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_producers: Option<bool>,
    /// Acknowledgements of all durable subscriptions are shared between regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicate_subscription_state: Option<bool>,
    /// Marks of deduplication are stored so often, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_snapshot_interval_seconds: Option<u32>,
    /// Message time to live in seconds, 0 = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_ttl_in_seconds: Option<u32>,
    /// Producers at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_producers: Option<u32>,
    /// Consumers at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_consumers: Option<u32>,
    /// Consumers of a subscription at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_consumers_per_subscription: Option<u32>,
    /// Subscriptions at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_subscriptions: Option<u32>,
    /// Unacknowledged messages of a consumer at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_consumer: Option<u32>,
    /// Unacknowledged messages of a subscription at most, 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_subscription: Option<u32>,
    /// Bytes of a message at most, 0 = the broker's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<u32>,
    /// Delayed delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_delivery: Option<crate::DelayedDelivery>,
    /// What happens when nobody uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive_topic_policies: Option<InactiveTopics>,
    /// Dispatch of the topic at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_rate: Option<DispatchRate>,
    /// Dispatch of a subscription at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_dispatch_rate: Option<DispatchRate>,
    /// Dispatch of a replicator at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicator_dispatch_rate: Option<DispatchRate>,
    /// Publish at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_rate: Option<PublishRate>,
    /// Subscribe calls of a consumer at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe_rate: Option<SubscribeRate>,
    /// Compaction starts at so many bytes, 0 = never by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_threshold: Option<i64>,
    /// Where to offload to, as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_policies: Option<serde_json::Value>,
    /// Schema rule.
    #[serde(deserialize_with = "lenient::known", skip_serializing_if = "Option::is_none")]
    pub schema_compatibility_strategy: Option<SchemaCompatibility>,
    /// Producers without a schema are refused when the topic has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_validation_enforced: Option<bool>,
    /// Creation of subscriptions at first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_subscription_creation_override: Option<AutoSubscriptionCreationOverride>,
    /// Filters of entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry_filters: Option<EntryFilters>,
    /// Dispatch waits while acknowledgements can't be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatcher_pause_on_ack_state_persistent_enabled: Option<bool>,
    /// Policies of subscriptions by name.
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub subscription_policies: BTreeMap<String, SubscriptionPolicies>,
}

impl TopicPolicies {
    /// Nothing is set: the record can go.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is known of a partitioned topic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionedTopic {
    /// How many partitions.
    #[serde(deserialize_with = "count")]
    pub partitions: u32,
    /// Properties.
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// It is being deleted.
    pub deleted: bool,
}

fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(lenient::number(deserializer)?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_without_policies_is_an_empty_object() {
        assert_eq!(serde_json::to_string(&TopicPolicies::default()).unwrap(), "{}");
        let policies = TopicPolicies { max_producers: Some(0), ..Default::default() };
        assert!(!policies.is_empty(), "P1: zero is not unset");
        assert_eq!(serde_json::to_string(&policies).unwrap(), r#"{"maxProducers":0}"#);
    }

    #[test]
    fn a_partition_count_may_be_a_string() {
        let topic: PartitionedTopic = serde_json::from_str(r#"{"partitions":"3"}"#).unwrap();
        assert_eq!(topic.partitions, 3);
        assert_eq!(serde_json::to_string(&topic).unwrap(), r#"{"partitions":3,"deleted":false}"#);
    }
}
