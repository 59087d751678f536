//! What namespaces and topics say, in the words of the service.
//!
//! Role: the one file that turns the policies of the registry into the numbers of topics, logs and schemas.

use super::BrokerService;
use crate::error::BrokerError;
use crate::factory::TopicSettings;
use crate::schema::{CompatibilityStrategy, PutRules};
use meridian_managed_ledger::LogSettings;
use meridian_policy::{EffectivePolicies, Retention, SchemaCompatibility};
use meridian_topic::{SubscriptionType, TopicLimits};
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeSet;

const MINUTE_MS: u64 = 60_000;
const MEBIBYTE: u64 = 1 << 20;

impl BrokerService {
    /// Whether the namespace exists; one that is not known here is asked for at the store.
    ///
    /// # Errors
    /// [`BrokerError::NamespaceNotFound`], or that the store does not say.
    pub async fn require_namespace(&self, namespace: &NamespaceName) -> Result<(), BrokerError> {
        match self.registry.learn_namespace(namespace).await? {
            true => Ok(()),
            false => Err(BrokerError::NamespaceNotFound(format!("Namespace {namespace} does not exist"))),
        }
    }

    /// Whether the topic's tenant and namespace exist.
    ///
    /// # Errors
    /// As [`BrokerService::require_namespace`].
    pub async fn check_namespace(&self, topic: &TopicName) -> Result<(), BrokerError> {
        self.require_namespace(&topic.namespace()).await.map_err(|error| match error {
            BrokerError::NamespaceNotFound(_) => {
                BrokerError::NamespaceNotFound(format!("Tenant or namespace or topic does not exist: {topic}"))
            }
            error => error,
        })
    }

    /// Limits and log settings in force for a topic.
    pub fn topic_settings(&self, topic: &TopicName) -> TopicSettings {
        let policies = self.registry.effective(topic);
        TopicSettings {
            limits: limits_of(&policies, &self.config.topic_limits),
            log: log_settings_of(&policies, &self.config.log_settings),
        }
    }

    /// Whether a subscription may have that name.
    ///
    /// # Errors
    /// [`BrokerError::TooLarge`], or [`BrokerError::NotAllowed`] if names are verified and this one holds other characters
    /// than Pulsar's names do.
    pub fn check_subscription_name(&self, name: &str) -> Result<(), BrokerError> {
        meridian_types::check_subscription(name).map_err(|error| BrokerError::TooLarge(error.to_string()))?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=:.".contains(&byte);
        if !self.config.strictly_verify_subscription_names || name.bytes().all(allowed) {
            return Ok(());
        }
        Err(BrokerError::NotAllowed(format!(
            "Subscription name '{name}' may hold letters, digits and any of _ - = : . only (strictlyVerifySubscriptionName)"
        )))
    }

    /// Whether a consumer's missing subscription is created.
    pub fn may_create_subscription(&self, topic: &TopicName) -> bool {
        self.registry.effective(topic).auto_subscription_creation.allowed
    }

    /// Whether producers must bring a schema if the topic has one.
    pub fn schema_enforced(&self, topic: &TopicName) -> bool {
        self.registry.effective(topic).schema_validation_enforced
    }

    /// What a new schema of a topic must satisfy.
    pub fn schema_rules(&self, topic: &TopicName) -> PutRules {
        let policies = self.registry.effective(topic);
        PutRules { strategy: strategy_of(policies.schema_compatibility), may_update: policies.allow_auto_update_schema }
    }
}

fn strategy_of(rule: SchemaCompatibility) -> CompatibilityStrategy {
    match rule {
        SchemaCompatibility::AlwaysIncompatible => CompatibilityStrategy::AlwaysIncompatible,
        SchemaCompatibility::AlwaysCompatible => CompatibilityStrategy::AlwaysCompatible,
        SchemaCompatibility::Backward => CompatibilityStrategy::Backward,
        SchemaCompatibility::Forward => CompatibilityStrategy::Forward,
        SchemaCompatibility::Undefined | SchemaCompatibility::Full => CompatibilityStrategy::Full,
        SchemaCompatibility::BackwardTransitive => CompatibilityStrategy::BackwardTransitive,
        SchemaCompatibility::ForwardTransitive => CompatibilityStrategy::ForwardTransitive,
        SchemaCompatibility::FullTransitive => CompatibilityStrategy::FullTransitive,
    }
}

fn types_of(names: &BTreeSet<String>) -> Vec<SubscriptionType> {
    use SubscriptionType::{Exclusive, Failover, KeyShared, Shared};
    let all = [(Exclusive, "Exclusive"), (Shared, "Shared"), (Failover, "Failover"), (KeyShared, "Key_Shared")];
    let enabled = |name: &str| names.is_empty() || names.iter().any(|given| given.eq_ignore_ascii_case(name));
    all.into_iter().filter(|(_, name)| enabled(name)).map(|(kind, _)| kind).collect()
}

fn limits_of(policies: &EffectivePolicies, base: &TopicLimits) -> TopicLimits {
    TopicLimits {
        max_producers: policies.max_producers,
        max_consumers: policies.max_consumers,
        max_consumers_per_subscription: policies.max_consumers_per_subscription,
        max_subscriptions: policies.max_subscriptions,
        max_unacked_per_consumer: policies.max_unacked_per_consumer,
        max_unacked_per_subscription: policies.max_unacked_per_subscription,
        max_message_bytes: policies.max_message_bytes,
        encryption_required: policies.encryption_required || base.encryption_required,
        deduplication: policies.deduplication,
        global_producers: policies.global_producers,
        message_ttl_s: policies.message_ttl_s,
        delayed_delivery: policies.delayed_delivery.active,
        delayed_tick_ms: policies.delayed_delivery.tick_time,
        max_delay_ms: policies.delayed_delivery.max_delivery_delay_in_millis,
        backlog_quota_bytes: policies.backlog_quota_bytes,
        backlog_quota_s: policies.backlog_quota_s,
        backlog_bytes_policy: policies.backlog_bytes_policy.code(),
        backlog_age_policy: policies.backlog_age_policy.code(),
        allowed_types: types_of(&policies.subscription_types),
        publish_rate: policies.publish_rate,
        dedup_snapshot_s: policies.deduplication_snapshot_s,
        topic_dispatch_rate: policies.topic_dispatch_rate,
        topic_dispatch_relative: policies.topic_dispatch_relative,
        dispatch_rate: policies.subscription_dispatch_rate,
        dispatch_relative: policies.subscription_dispatch_relative,
        subscribe_rate: policies.subscribe_rate,
        subscription_expiration_minutes: policies.subscription_expiration_minutes,
        compaction_threshold_bytes: policies.compaction_threshold_bytes,
        ..base.clone()
    }
}

/// Retention in units of ours: -1 is "without bound", anything else is times the unit.
fn bound(value: i64, unit: u64) -> Option<u64> {
    u64::try_from(value).ok().map(|value| value.saturating_mul(unit))
}

fn log_settings_of(policies: &EffectivePolicies, base: &LogSettings) -> LogSettings {
    let Retention { time_minutes, size_mib } = policies.retention;
    let persistence = &policies.persistence;
    LogSettings {
        ensemble_size: persistence.bookkeeper_ensemble,
        write_quorum: persistence.bookkeeper_write_quorum,
        ack_quorum: persistence.bookkeeper_ack_quorum,
        retention_ms: bound(time_minutes, MINUTE_MS),
        retention_bytes: bound(size_mib, MEBIBYTE),
        ..base.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::default_topic_limits;
    use meridian_policy::{
        BacklogQuota, BacklogQuotaKind, BacklogQuotaPolicy, BrokerDefaults, DispatchRate, Policies, TopicPolicies,
        resolve,
    };

    fn effective(policies: &Policies, topic: &TopicPolicies) -> EffectivePolicies {
        resolve(Some(topic), policies, &BrokerDefaults::default())
    }

    #[test]
    fn policies_become_numbers() {
        let topic = TopicPolicies {
            max_producers: Some(3),
            subscription_types_enabled: Some(BTreeSet::from(["Shared".to_owned()])),
            retention: Some(Retention { time_minutes: 2, size_mib: -1 }),
            ..Default::default()
        };
        let policies = effective(&Policies::default(), &topic);
        let limits = limits_of(&policies, &default_topic_limits());
        assert_eq!(limits.max_producers, 3);
        assert_eq!(limits.allowed_types, [SubscriptionType::Shared]);
        assert_eq!(limits.max_unacked_per_consumer, 50_000);
        let log = log_settings_of(&policies, &LogSettings::default());
        assert_eq!((log.retention_ms, log.retention_bytes), (Some(120_000), None));
        assert_eq!(log.ensemble_size, 1);
    }

    #[test]
    fn defaults_stay_what_the_configuration_says() {
        let policies = effective(&Policies::default(), &TopicPolicies::default());
        assert_eq!(limits_of(&policies, &default_topic_limits()), default_topic_limits());
    }

    #[test]
    fn rates_and_quotas_keep_apart() {
        let namespace = Policies {
            backlog_quota_map: [
                (
                    BacklogQuotaKind::DestinationStorage,
                    BacklogQuota::new(10, -1, BacklogQuotaPolicy::ProducerException),
                ),
                (BacklogQuotaKind::MessageAge, BacklogQuota::new(-1, 5, BacklogQuotaPolicy::ConsumerBacklogEviction)),
            ]
            .into(),
            ..Default::default()
        };
        let rate = |messages| DispatchRate { dispatch_throttling_rate_in_msg: messages, ..Default::default() };
        let topic = TopicPolicies {
            dispatch_rate: Some(rate(7)),
            subscription_dispatch_rate: Some(DispatchRate { relative_to_publish_rate: true, ..rate(3) }),
            deduplication_snapshot_interval_seconds: Some(9),
            ..Default::default()
        };
        let limits = limits_of(&effective(&namespace, &topic), &default_topic_limits());
        assert_eq!((limits.backlog_bytes_policy, limits.backlog_age_policy), (1, 2));
        assert_eq!((limits.topic_dispatch_rate, limits.dispatch_rate), ((7, 0), (3, 0)));
        assert_eq!((limits.topic_dispatch_relative, limits.dispatch_relative), (false, true));
        assert_eq!(limits.dedup_snapshot_s, 9);
        assert_eq!(limits.subscribe_rate, (0, 30));
    }
}
