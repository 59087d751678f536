//! The policies of a namespace.
//!
//! Invariants: P1 an option that is `None` is unset and not written; what Pulsar knows as a plain value has Pulsar's
//! default.
//! Failure: unreadable JSON is serde's error; broken rules are [`crate::PolicyError`] by [`Policies::check`].
//! Must never know: brokers' defaults, where policies are stored.

use crate::access::Permission;
use crate::{
    BacklogQuota, BacklogQuotaKind, BookieAffinity, BundlesData, DelayedDelivery, DispatchRate, InactiveTopics,
    Persistence, PublishRate, Retention, SubscribeRate, lenient,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Who may do what in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthPolicies {
    /// Role → permissions in the whole namespace.
    #[serde(deserialize_with = "lenient::or_default")]
    pub namespace_auth: BTreeMap<String, BTreeSet<Permission>>,
    /// Topic → role → permissions.
    #[serde(deserialize_with = "lenient::or_default")]
    pub destination_auth: BTreeMap<String, BTreeMap<String, BTreeSet<Permission>>>,
    /// Subscription → roles that alone may use it.
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_auth_roles: BTreeMap<String, BTreeSet<String>>,
}

/// How subscription names are tied to roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum SubscriptionAuthMode {
    /// Not at all.
    #[default]
    None,
    /// A subscription's name begins with the role.
    Prefix,
}

/// Whether topics are created at first use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AutoTopicCreationOverride {
    /// They are.
    pub allow_auto_topic_creation: bool,
    /// `non-partitioned` or `partitioned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_type: Option<String>,
    /// Of a partitioned one.
    #[serde(deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub default_num_partitions: Option<u32>,
}

/// Whether subscriptions are created at first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AutoSubscriptionCreationOverride {
    /// They are.
    pub allow_auto_subscription_creation: bool,
}

/// Which schemas may follow which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SchemaCompatibility {
    /// As the level above says.
    #[default]
    Undefined,
    /// None.
    AlwaysIncompatible,
    /// All.
    AlwaysCompatible,
    /// New readers read the last schema.
    Backward,
    /// Readers of the last schema read the new one.
    Forward,
    /// Both.
    Full,
    /// New readers read all schemas.
    BackwardTransitive,
    /// Readers of all schemas read the new one.
    ForwardTransitive,
    /// Both, over all schemas.
    FullTransitive,
}

/// The older way to say [`SchemaCompatibility`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemaAutoUpdateStrategy {
    /// Producers register no schemas.
    AutoUpdateDisabled,
    /// See [`SchemaCompatibility`].
    Backward,
    /// See [`SchemaCompatibility`].
    Forward,
    /// See [`SchemaCompatibility`].
    Full,
    /// See [`SchemaCompatibility`].
    AlwaysCompatible,
    /// See [`SchemaCompatibility`].
    BackwardTransitive,
    /// See [`SchemaCompatibility`].
    ForwardTransitive,
    /// See [`SchemaCompatibility`].
    FullTransitive,
}

impl SchemaAutoUpdateStrategy {
    /// The same in the newer words.
    pub fn compatibility(self) -> SchemaCompatibility {
        match self {
            Self::AutoUpdateDisabled => SchemaCompatibility::AlwaysIncompatible,
            Self::Backward => SchemaCompatibility::Backward,
            Self::Forward => SchemaCompatibility::Forward,
            Self::Full => SchemaCompatibility::Full,
            Self::AlwaysCompatible => SchemaCompatibility::AlwaysCompatible,
            Self::BackwardTransitive => SchemaCompatibility::BackwardTransitive,
            Self::ForwardTransitive => SchemaCompatibility::ForwardTransitive,
            Self::FullTransitive => SchemaCompatibility::FullTransitive,
        }
    }
}

/// Filters of entries before dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryFilters {
    /// Names, separated by commas.
    pub entry_filter_names: String,
}

fn minus_one() -> i64 {
    -1
}

fn yes() -> bool {
    true
}

/// All policies of a namespace, by Pulsar's names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// Permissions.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub auth_policies: AuthPolicies,
    /// Clusters that the namespace is replicated between.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub replication_clusters: BTreeSet<String>,
    /// Clusters that its topics may be in; empty = those of replication.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub allowed_clusters: BTreeSet<String>,
    /// Hash ranges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundles: Option<BundlesData>,
    /// Backlog quotas by what they measure.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub backlog_quota_map: BTreeMap<BacklogQuotaKind, BacklogQuota>,
    /// Cluster → dispatch rate of the whole namespace.
    #[serde(default, rename = "clusterDispatchRate", deserialize_with = "lenient::or_default")]
    pub cluster_dispatch_rate: BTreeMap<String, DispatchRate>,
    /// Cluster → dispatch rate of a topic.
    #[serde(default, rename = "topicDispatchRate", deserialize_with = "lenient::or_default")]
    pub topic_dispatch_rate: BTreeMap<String, DispatchRate>,
    /// Cluster → dispatch rate of a subscription.
    #[serde(default, rename = "subscriptionDispatchRate", deserialize_with = "lenient::or_default")]
    pub subscription_dispatch_rate: BTreeMap<String, DispatchRate>,
    /// Cluster → dispatch rate of a replicator.
    #[serde(default, rename = "replicatorDispatchRate", deserialize_with = "lenient::or_default")]
    pub replicator_dispatch_rate: BTreeMap<String, DispatchRate>,
    /// Cluster → subscribe rate of a consumer.
    #[serde(default, rename = "clusterSubscribeRate", deserialize_with = "lenient::or_default")]
    pub cluster_subscribe_rate: BTreeMap<String, SubscribeRate>,
    /// Cluster → publish rate of a topic.
    #[serde(default, rename = "publishMaxMessageRate", deserialize_with = "lenient::or_default")]
    pub publish_max_message_rate: BTreeMap<String, PublishRate>,
    /// Kept for those who read it back; nothing is sampled.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub latency_stats_sample_rate: BTreeMap<String, i64>,
    /// How topics are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,
    /// Deduplication.
    #[serde(default, rename = "deduplicationEnabled", skip_serializing_if = "Option::is_none")]
    pub deduplication_enabled: Option<bool>,
    /// Creation of topics at first use.
    #[serde(default, rename = "autoTopicCreationOverride", skip_serializing_if = "Option::is_none")]
    pub auto_topic_creation_override: Option<AutoTopicCreationOverride>,
    /// Creation of subscriptions at first use.
    #[serde(default, rename = "autoSubscriptionCreationOverride", skip_serializing_if = "Option::is_none")]
    pub auto_subscription_creation_override: Option<AutoSubscriptionCreationOverride>,
    /// Message time to live in seconds, 0 = none.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub message_ttl_in_seconds: Option<u32>,
    /// Subscriptions not used for so many minutes are deleted, 0 = never.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub subscription_expiration_time_minutes: Option<u32>,
    /// Retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_policies: Option<Retention>,
    /// The namespace is being deleted.
    #[serde(default)]
    pub deleted: bool,
    /// Producers must encrypt.
    #[serde(default)]
    pub encryption_required: bool,
    /// Delayed delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_delivery_policies: Option<DelayedDelivery>,
    /// Inactive topics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_topic_policies: Option<InactiveTopics>,
    /// Subscription names and roles.
    #[serde(default, deserialize_with = "lenient::known_or_default")]
    pub subscription_auth_mode: SubscriptionAuthMode,
    /// Producers of a topic at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_producers_per_topic: Option<u32>,
    /// Consumers of a topic at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_consumers_per_topic: Option<u32>,
    /// Consumers of a subscription at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_consumers_per_subscription: Option<u32>,
    /// Unacknowledged messages of a consumer at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_consumer: Option<u32>,
    /// Unacknowledged messages of a subscription at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_subscription: Option<u32>,
    /// Subscriptions of a topic at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_subscriptions_per_topic: Option<u32>,
    /// Topics at most, 0 = no limit.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub max_topics_per_namespace: Option<u32>,
    /// Compaction starts at so many bytes of backlog, 0 = never by itself.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub compaction_threshold: Option<i64>,
    /// Offloading starts at so many bytes, -1 = never.
    #[serde(default = "minus_one")]
    pub offload_threshold: i64,
    /// Offloading starts at this age, -1 = never.
    #[serde(default = "minus_one")]
    pub offload_threshold_in_seconds: i64,
    /// Offloaded data is deleted from bookies after so many ms.
    #[serde(default, deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub offload_deletion_lag_ms: Option<i64>,
    /// Where to offload to, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_policies: Option<serde_json::Value>,
    /// Schema rule, the older way.
    #[serde(default, deserialize_with = "lenient::known", skip_serializing_if = "Option::is_none")]
    pub schema_auto_update_compatibility_strategy: Option<SchemaAutoUpdateStrategy>,
    /// Schema rule.
    #[serde(default, deserialize_with = "lenient::known_or_default")]
    pub schema_compatibility_strategy: SchemaCompatibility,
    /// Producers may register schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_allow_auto_update_schema: Option<bool>,
    /// Replicators may register schemas.
    #[serde(default = "yes")]
    pub is_allow_auto_update_schema_with_replicator: bool,
    /// Producers without a schema are refused on topics that have one.
    #[serde(default)]
    pub schema_validation_enforced: bool,
    /// Subscription types that may be used; empty = all.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub subscription_types_enabled: BTreeSet<String>,
    /// Producers are the same in all regions: one that goes on in another region is deduplicated there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_producers: Option<bool>,
    /// Acknowledgements of all durable subscriptions are shared between regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate_subscription_state: Option<bool>,
    /// Marks of deduplication are stored so often, in seconds.
    #[serde(
        default,
        rename = "deduplicationSnapshotIntervalSeconds",
        deserialize_with = "lenient::number",
        skip_serializing_if = "Option::is_none"
    )]
    pub deduplication_snapshot_interval_seconds: Option<u32>,
    /// Properties.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub properties: BTreeMap<String, String>,
    /// Resource group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group_name: Option<String>,
    /// Filters of entries.
    #[serde(default, rename = "entryFilters", skip_serializing_if = "Option::is_none")]
    pub entry_filters: Option<EntryFilters>,
    /// The namespace has moved to another cluster.
    #[serde(default)]
    pub migrated: bool,
    /// Dispatch waits while acknowledgements can't be stored.
    #[serde(default, rename = "dispatcherPauseOnAckStatePersistentEnabled", skip_serializing_if = "Option::is_none")]
    pub dispatcher_pause_on_ack_state_persistent_enabled: Option<bool>,
    /// Bookies that ledgers go to.
    #[serde(default, rename = "bookieAffinityGroup", skip_serializing_if = "Option::is_none")]
    pub bookie_affinity_group: Option<BookieAffinity>,
    /// Group that is spread over failure domains.
    #[serde(default, rename = "antiAffinityGroup", skip_serializing_if = "Option::is_none")]
    pub anti_affinity_group: Option<String>,
}

impl Default for Policies {
    fn default() -> Self {
        // An empty object is a valid namespace: the defaults stand in one place, the attributes above.
        serde_json::from_value(serde_json::Value::Object(serde_json::Map::new()))
            .unwrap_or_else(|_| unreachable!("every field has a default"))
    }
}

impl Policies {
    /// A namespace of one cluster with `bundles` hash ranges.
    ///
    /// # Errors
    /// [`crate::PolicyError`] for a number of bundles that can't be.
    pub fn of_cluster(cluster: &str, bundles: u32) -> Result<Self, crate::PolicyError> {
        let replication_clusters = BTreeSet::from([cluster.to_owned()]);
        Ok(Self { replication_clusters, bundles: Some(BundlesData::even(bundles)?), ..Self::default() })
    }

    /// All clusters that it or its topics may be in.
    pub fn named_clusters(&self) -> BTreeSet<String> {
        self.replication_clusters.union(&self.allowed_clusters).cloned().collect()
    }

    /// The schema rule, the newer way before the older.
    pub fn schema_compatibility(&self) -> SchemaCompatibility {
        match (self.schema_compatibility_strategy, self.schema_auto_update_compatibility_strategy) {
            (SchemaCompatibility::Undefined, Some(older)) => older.compatibility(),
            (strategy, _) => strategy,
        }
    }

    /// Checks what stands in rules that its setters check one by one.
    ///
    /// # Errors
    /// [`crate::PolicyError`] with the first rule that is broken.
    pub fn check(&self) -> Result<(), crate::PolicyError> {
        crate::check_properties(&self.properties)?;
        if let Some(persistence) = &self.persistence {
            persistence.check()?;
        }
        let retention = self.retention_policies.unwrap_or_default();
        retention.check()?;
        self.backlog_quota_map.values().try_for_each(|quota| retention.check_against(quota))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_namespace_has_pulsars_defaults_and_leaves_unset_out() {
        let policies: Policies = serde_json::from_str("{}").unwrap();
        assert_eq!(policies, Policies::default());
        assert_eq!(policies.offload_threshold, -1);
        assert!(policies.is_allow_auto_update_schema_with_replicator);
        let json = serde_json::to_value(&policies).unwrap();
        for unset in ["message_ttl_in_seconds", "deduplicationEnabled", "retention_policies", "persistence"] {
            assert!(json.get(unset).is_none(), "{unset}");
        }
        assert_eq!(json["schema_compatibility_strategy"], "UNDEFINED");
        assert_eq!(json["subscription_auth_mode"], "None");
        assert_eq!(json["auth_policies"]["namespace_auth"], serde_json::json!({}));
    }

    #[test]
    fn what_clients_send_is_taken() {
        let json = r#"{
            "auth_policies": {"namespace_auth": {"anonymous": ["produce", "consume"]}},
            "replication_clusters": ["standalone"],
            "encryption_required": true,
            "bundles": {"boundaries": [], "numBundles": 4},
            "backlog_quota_map": {"destination_storage": {"limitSize": "10", "policy": "producer_exception"}},
            "schema_compatibility_strategy": "BACKWARD_TRANSITIVE",
            "schema_auto_update_compatibility_strategy": "no such name",
            "max_producers_per_topic": 0,
            "subscription_auth_mode": "no such name",
            "topicDispatchRate": null,
            "unknown": 1
        }"#;
        let policies: Policies = serde_json::from_str(json).unwrap();
        assert_eq!(policies.max_producers_per_topic, Some(0), "P1: zero is not unset");
        assert_eq!(policies.max_consumers_per_topic, None);
        assert!(policies.auth_policies.namespace_auth["anonymous"].contains(&Permission::Produce));
        assert_eq!(policies.schema_compatibility(), SchemaCompatibility::BackwardTransitive);
        assert_eq!(policies.schema_auto_update_compatibility_strategy, None);
        let again: Policies = serde_json::from_str(&serde_json::to_string(&policies).unwrap()).unwrap();
        assert_eq!(again, policies);
    }

    #[test]
    fn what_was_sent_reads_back_the_same() {
        let rate = serde_json::json!({"standalone": {
            "dispatchThrottlingRateInMsg": 50, "dispatchThrottlingRateInByte": 2048,
            "relativeToPublishRate": false, "ratePeriodInSecond": 50
        }});
        let sent = serde_json::json!({
            "auth_policies": {
                "namespace_auth": {"a": ["produce", "consume", "functions"]},
                "destination_auth": {}, "subscription_auth_roles": {}
            },
            "replication_clusters": ["standalone"],
            "allowed_clusters": [],
            "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "backlog_quota_map": {"destination_storage": {
                "limit": 10_000_000_000_i64, "limitSize": 10_000_000_000_i64, "limitTime": -1,
                "policy": "producer_request_hold"
            }},
            "clusterDispatchRate": rate, "topicDispatchRate": rate, "subscriptionDispatchRate": rate,
            "replicatorDispatchRate": {}, "clusterSubscribeRate": {}, "publishMaxMessageRate": {},
            "persistence": {
                "bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 0.0
            },
            "deduplicationEnabled": true,
            "autoTopicCreationOverride": {
                "allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 3
            },
            "latency_stats_sample_rate": {},
            "message_ttl_in_seconds": 86400, "subscription_expiration_time_minutes": 90,
            "retention_policies": {"retentionTimeInMinutes": 1600, "retentionSizeInMB": 10000},
            "deleted": false, "encryption_required": false, "subscription_auth_mode": "None",
            "max_producers_per_topic": 50, "max_consumers_per_topic": 50
        });
        let policies: Policies = serde_json::from_value(sent.clone()).unwrap();
        policies.check().unwrap();
        let read = serde_json::to_value(&policies).unwrap();
        for (name, value) in sent.as_object().unwrap() {
            assert_eq!(&read[name], value, "{name}");
        }
    }

    #[test]
    fn the_older_schema_rule_counts_when_the_newer_is_unset() {
        let older = Some(SchemaAutoUpdateStrategy::Forward);
        let mut policies = Policies { schema_auto_update_compatibility_strategy: older, ..Policies::default() };
        assert_eq!(policies.schema_compatibility(), SchemaCompatibility::Forward);
        policies.schema_compatibility_strategy = SchemaCompatibility::Full;
        assert_eq!(policies.schema_compatibility(), SchemaCompatibility::Full);
    }

    #[test]
    fn a_namespace_is_checked_as_a_whole() {
        let mut policies = Policies::of_cluster("a", 4).unwrap();
        assert!(policies.check().is_ok());
        policies.retention_policies = Some(Retention { time_minutes: 10, size_mib: 1 });
        let quota = BacklogQuota::new(5 << 20, -1, crate::BacklogQuotaPolicy::ProducerException);
        policies.backlog_quota_map.insert(BacklogQuotaKind::DestinationStorage, quota);
        assert!(policies.check().is_err());
    }
}
