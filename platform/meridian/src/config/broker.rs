//! Settings of the broker: sessions, topics, identity, TLS.

use super::storage;
use crate::ready::Addresses;
use meridian_admin::WebLimits;
use meridian_broker::config::{AdvertisedListener, ReplicationConfig, SessionLimits, default_topic_limits};
use meridian_broker::{BrokerConfig, CheckIntervals, StorageOptions};
use meridian_door::DoorConfig;
use meridian_identity::tls::{RoleField, TlsFiles};
use meridian_identity::{IdentityConfig, TokenConfig};
use meridian_policy::{
    AccessRules, AutoSubscriptionCreation, AutoTopicCreation, BacklogQuotaPolicy, BrokerDefaults, ClusterData,
    DelayedDelivery, DispatchRate, InactiveTopicDeleteMode, InactiveTopics, Persistence, PublishRate, Retention,
    SchemaCompatibility, SubscribeRate,
};
use meridian_registry::SharingSettings;
use meridian_settings::{Key, Settings};
use meridian_topic::{BrokerLimits, TopicLimits};
use meridian_topology::Location;
use std::collections::BTreeMap;
use std::time::Duration;

fn small(settings: &Settings, key: Key) -> u32 {
    u32::try_from(settings.count(key)).unwrap_or(u32::MAX)
}

/// Host name that clients are told to connect to.
pub fn advertised_host(settings: &Settings) -> &str {
    settings.optional(Key::AdvertisedAddress).unwrap_or("localhost")
}

fn sessions(settings: &Settings) -> SessionLimits {
    let high = usize::try_from(settings.count(Key::ConnectionOutboundHighWaterBytes)).unwrap_or(1 << 20).max(64 << 10);
    SessionLimits {
        max_message_bytes: small(settings, Key::MaxMessageSize),
        keep_alive_interval_s: settings.count(Key::KeepAliveIntervalSeconds).max(1),
        liveness_timeout_ms: settings.count(Key::ConnectionLivenessCheckTimeoutMillis),
        max_pending_publishes: small(settings, Key::MaxPendingPublishRequestsPerConnection).max(1),
        outbound_high_bytes: high,
        outbound_low_bytes: high / 4,
        max_connections: small(settings, Key::BrokerMaxConnections),
        max_connections_per_ip: small(settings, Key::BrokerMaxConnectionsPerIp),
        max_unauthenticated: small(settings, Key::BrokerMaxUnauthenticatedConnections),
        login_timeout_ms: settings.count(Key::ConnectionLoginTimeoutSeconds).max(1) * 1000,
        slow_peer_timeout_ms: settings.count(Key::ConnectionSlowPeerTimeoutSeconds) * 1000,
        auth_refresh_check_s: settings.count(Key::AuthenticationRefreshCheckSeconds).max(1),
        max_concurrent_lookups: small(settings, Key::MaxConcurrentLookupRequest).max(1),
        max_consumer_metadata_chars: small(settings, Key::MaxConsumerMetadataSize) as usize,
        ..SessionLimits::default()
    }
}

/// What namespaces and topics get that set nothing themselves.
pub fn defaults(settings: &Settings) -> BrokerDefaults {
    let partitioned = settings.text(Key::AllowAutoTopicCreationType) == "partitioned";
    let with_quotas = settings.switch(Key::BacklogQuotaCheckEnabled);
    let idle_s = match small(settings, Key::BrokerDeleteInactiveTopicsMaxInactiveDurationSeconds) {
        0 => small(settings, Key::BrokerDeleteInactiveTopicsFrequencySeconds),
        set => set,
    };
    BrokerDefaults {
        cluster: settings.text(Key::ClusterName).to_owned(),
        auto_topic_creation: AutoTopicCreation {
            allowed: settings.switch(Key::AllowAutoTopicCreation),
            partitions: partitioned.then(|| small(settings, Key::DefaultNumPartitions).max(1)),
        },
        auto_subscription_creation: AutoSubscriptionCreation {
            allowed: settings.switch(Key::AllowAutoSubscriptionCreation),
        },
        retention: Retention {
            time_minutes: settings.number(Key::DefaultRetentionTimeInMinutes),
            size_mib: settings.number(Key::DefaultRetentionSizeInMB),
        },
        message_ttl_s: small(settings, Key::TtlDurationDefaultInSeconds),
        subscription_expiration_minutes: small(settings, Key::SubscriptionExpirationTimeMinutes),
        compaction_threshold_bytes: settings.number(Key::BrokerServiceCompactionThresholdInBytes),
        backlog_quota_bytes: if with_quotas { backlog_quota_bytes(settings) } else { -1 },
        backlog_quota_s: if with_quotas { settings.number(Key::BacklogQuotaDefaultLimitSecond) } else { -1 },
        backlog_policy: match settings.text(Key::BacklogQuotaDefaultRetentionPolicy) {
            "producer_exception" => BacklogQuotaPolicy::ProducerException,
            "consumer_backlog_eviction" => BacklogQuotaPolicy::ConsumerBacklogEviction,
            _ => BacklogQuotaPolicy::ProducerRequestHold,
        },
        deduplication: settings.switch(Key::BrokerDeduplicationEnabled),
        deduplication_snapshot_s: small(settings, Key::BrokerDeduplicationSnapshotIntervalSeconds),
        persistence: Persistence {
            bookkeeper_ensemble: small(settings, Key::ManagedLedgerDefaultEnsembleSize).max(1),
            bookkeeper_write_quorum: small(settings, Key::ManagedLedgerDefaultWriteQuorum).max(1),
            bookkeeper_ack_quorum: small(settings, Key::ManagedLedgerDefaultAckQuorum).max(1),
            managed_ledger_max_mark_delete_rate: settings.decimal(Key::ManagedLedgerDefaultMarkDeleteRateLimit),
            ..Persistence::default()
        },
        max_producers: small(settings, Key::MaxProducersPerTopic),
        max_consumers: small(settings, Key::MaxConsumersPerTopic),
        max_consumers_per_subscription: small(settings, Key::MaxConsumersPerSubscription),
        max_subscriptions: small(settings, Key::MaxSubscriptionsPerTopic),
        max_topics: small(settings, Key::MaxTopicsPerNamespace),
        max_unacked_per_consumer: small(settings, Key::MaxUnackedMessagesPerConsumer),
        max_unacked_per_subscription: small(settings, Key::MaxUnackedMessagesPerSubscription),
        delayed_delivery: delayed_delivery(settings),
        inactive_topics: InactiveTopics {
            inactive_topic_delete_mode: match settings.text(Key::BrokerDeleteInactiveTopicsMode) {
                "delete_when_subscriptions_caught_up" => InactiveTopicDeleteMode::DeleteWhenSubscriptionsCaughtUp,
                _ => InactiveTopicDeleteMode::DeleteWhenNoSubscriptions,
            },
            max_inactive_duration_seconds: idle_s,
            delete_while_inactive: settings.switch(Key::BrokerDeleteInactiveTopicsEnabled),
        },
        schema_compatibility: schema_rule(settings.text(Key::SchemaCompatibilityStrategy)),
        schema_validation_enforced: settings.switch(Key::IsSchemaValidationEnforced),
        allow_auto_update_schema: settings.switch(Key::IsAllowAutoUpdateSchemaEnabled),
        subscription_types: settings.list(Key::SubscriptionTypesEnabled).into_iter().collect(),
        ..rates(settings)
    }
}

fn delayed_delivery(settings: &Settings) -> DelayedDelivery {
    DelayedDelivery {
        active: settings.switch(Key::DelayedDeliveryEnabled),
        tick_time: settings.count(Key::DelayedDeliveryTickTimeMillis).max(1),
        max_delivery_delay_in_millis: settings.count(Key::DelayedDeliveryMaxDelayInMillis),
    }
}

/// The rates among them.
fn rates(settings: &Settings) -> BrokerDefaults {
    BrokerDefaults {
        publish_rate: PublishRate {
            publish_throttling_rate_in_msg: settings.number(Key::MaxPublishRatePerTopicInMessages),
            publish_throttling_rate_in_byte: settings.number(Key::MaxPublishRatePerTopicInBytes),
        },
        topic_dispatch_rate: dispatch_rate(
            settings,
            Key::DispatchThrottlingRatePerTopicInMsg,
            Key::DispatchThrottlingRatePerTopicInByte,
        ),
        subscription_dispatch_rate: dispatch_rate(
            settings,
            Key::DispatchThrottlingRatePerSubscriptionInMsg,
            Key::DispatchThrottlingRatePerSubscriptionInByte,
        ),
        subscribe_rate: SubscribeRate {
            subscribe_throttling_rate_per_consumer: settings.number(Key::SubscribeThrottlingRatePerConsumer),
            rate_period_in_second: small(settings, Key::SubscribeRatePeriodPerConsumerInSecond).max(1),
        },
        replicator_dispatch_rate: dispatch_rate(
            settings,
            Key::DispatchThrottlingRatePerReplicatorInMsg,
            Key::DispatchThrottlingRatePerReplicatorInByte,
        ),
        ..BrokerDefaults::default()
    }
}

/// What bounds the sharing of policies with other regions.
pub fn sharing(settings: &Settings) -> SharingSettings {
    SharingSettings {
        max_ahead_ms: settings.count(Key::RegionLinkMaxClockAheadMs),
        keep_tombstones_ms: settings.count(Key::RegionLinkTombstoneRetentionSeconds).saturating_mul(1000),
        ..SharingSettings::default()
    }
}

/// The limit in bytes, else the older one in GiB.
fn backlog_quota_bytes(settings: &Settings) -> i64 {
    let (bytes, gib) =
        (settings.number(Key::BacklogQuotaDefaultLimitBytes), settings.decimal(Key::BacklogQuotaDefaultLimitGB));
    if bytes <= 0 && gib > 0.0 { (gib * f64::from(1 << 30)) as i64 } else { bytes }
}

fn dispatch_rate(settings: &Settings, messages: Key, bytes: Key) -> DispatchRate {
    DispatchRate {
        dispatch_throttling_rate_in_msg: settings.number(messages),
        dispatch_throttling_rate_in_byte: settings.number(bytes),
        relative_to_publish_rate: settings.switch(Key::DispatchThrottlingRateRelativeToPublishRate),
        ..DispatchRate::default()
    }
}

/// Messages and bytes per second that all topics of the broker share: publishing, dispatch.
fn shared_rates(settings: &Settings) -> [(u64, u64); 2] {
    let rate = |messages: Key, bytes: Key| (settings.count(messages), settings.count(bytes));
    [
        rate(Key::BrokerPublisherThrottlingMaxMessageRate, Key::BrokerPublisherThrottlingMaxByteRate),
        rate(Key::DispatchThrottlingRateInMsg, Key::DispatchThrottlingRateInByte),
    ]
}

/// Links to other regions.
fn replication(settings: &Settings) -> ReplicationConfig {
    ReplicationConfig {
        from_earliest: settings.text(Key::ReplicationStartAt) == "earliest",
        connections_per_broker: small(settings, Key::ReplicationConnectionsPerBroker).max(1),
        queue_entries: small(settings, Key::ReplicationProducerQueueSize).max(1),
        queue_bytes: settings.count(Key::ReplicationProducerQueueBytes).max(1),
        read_ahead_bytes: settings.count(Key::ReplicationReadAheadMB).max(1) << 20,
        create_remote_topics: settings.switch(Key::CreateTopicToRemoteClusterForReplication),
        policy_check_s: settings.count(Key::ReplicationPolicyCheckDurationSeconds),
        stall_limit_ms: settings.count(Key::ReplicationStallRestartSeconds).max(1) * 1000,
        idle_link_ms: settings.count(Key::ReplicationIdleLinkSeconds).max(1) * 1000,
        share_subscriptions: settings.switch(Key::EnableReplicatedSubscriptions),
        snapshot_every_ms: settings.count(Key::ReplicatedSubscriptionsSnapshotFrequencyMillis).max(1),
        snapshot_timeout_ms: settings.count(Key::ReplicatedSubscriptionsSnapshotTimeoutSeconds).max(1) * 1000,
        snapshots_cached: small(settings, Key::ReplicatedSubscriptionsSnapshotMaxCachedPerSubscription),
        ..ReplicationConfig::default()
    }
}

fn schema_rule(name: &str) -> SchemaCompatibility {
    match name {
        "ALWAYS_INCOMPATIBLE" => SchemaCompatibility::AlwaysIncompatible,
        "ALWAYS_COMPATIBLE" => SchemaCompatibility::AlwaysCompatible,
        "BACKWARD" => SchemaCompatibility::Backward,
        "FORWARD" => SchemaCompatibility::Forward,
        "BACKWARD_TRANSITIVE" => SchemaCompatibility::BackwardTransitive,
        "FORWARD_TRANSITIVE" => SchemaCompatibility::ForwardTransitive,
        "FULL_TRANSITIVE" => SchemaCompatibility::FullTransitive,
        _ => SchemaCompatibility::Full,
    }
}

/// Limits of topics that no policy sets.
fn topic_limits(settings: &Settings) -> TopicLimits {
    let ring = settings.switch(Key::SubscriptionKeySharedUseConsistentHashing);
    TopicLimits {
        encryption_required: settings.switch(Key::EncryptionRequireOnProducer),
        dedup_max_producers: small(settings, Key::BrokerDeduplicationMaxNumberOfProducers),
        dedup_snapshot_entries: small(settings, Key::BrokerDeduplicationEntriesInterval),
        batch_index_ack: settings.switch(Key::AcknowledgmentAtBatchIndexLevelEnabled),
        failover_delay_ms: settings.count(Key::ActiveConsumerFailoverDelayTimeMillis),
        key_shared_consistent_hashing: ring
            .then(|| small(settings, Key::SubscriptionKeySharedConsistentHashingReplicaPoints).max(1)),
        dispatch_read_entries: small(settings, Key::DispatcherMaxReadBatchSize).max(1),
        dispatch_read_bytes: settings.count(Key::DispatcherMaxReadSizeBytes).max(1),
        dispatch_round_robin_entries: small(settings, Key::DispatcherMaxRoundRobinBatchSize).max(1),
        ..default_topic_limits()
    }
}

/// Pauses between checks of topics.
fn check_intervals(settings: &Settings) -> CheckIntervals {
    let expiry_s = match settings.count(Key::MessageExpiryCheckIntervalInSeconds) {
        0 => settings.count(Key::MessageExpiryCheckIntervalInMinutes).max(1) * 60,
        own => own,
    };
    let quota_s = settings.count(Key::BacklogQuotaCheckIntervalInSeconds).max(1);
    let compaction_s = settings.count(Key::BrokerServiceCompactionMonitorIntervalInSeconds).max(1);
    CheckIntervals { expiry_ms: expiry_s * 1000, quota_ms: quota_s * 1000, compaction_ms: compaction_s * 1000 }
}

/// What topics are run with.
pub fn storage_options(settings: &Settings) -> StorageOptions {
    let limits = BrokerLimits::default();
    put_shared_rates(settings, &limits);
    StorageOptions {
        intervals: check_intervals(settings),
        compaction_keeps_keyless: settings.switch(Key::TopicCompactionRetainNullKey),
        limits,
    }
}

/// Puts the rates that all topics share in force.
pub fn put_shared_rates(settings: &Settings, limits: &BrokerLimits) {
    let [publish, dispatch] = shared_rates(settings);
    limits.publish.set_rate(publish);
    limits.dispatch.set_rate(dispatch);
}

/// The region's entry in the cluster registry.
pub fn cluster_data(config: &BrokerConfig) -> ClusterData {
    let listener = config.listeners.first();
    ClusterData {
        service_url: config.web_url.clone(),
        service_url_tls: config.web_url_tls.clone(),
        broker_service_url: listener.and_then(|listener| listener.broker_url.clone()),
        broker_service_url_tls: listener.and_then(|listener| listener.broker_url_tls.clone()),
        ..ClusterData::default()
    }
}

/// Who may do what.
pub fn door(settings: &Settings) -> DoorConfig {
    DoorConfig {
        authorization: settings.switch(Key::AuthorizationEnabled),
        rules: AccessRules {
            super_users: settings.list(Key::SuperUserRoles).into_iter().collect(),
            wildcards: settings.switch(Key::AuthorizationAllowWildcardsMatching),
        },
        proxy_roles: settings.list(Key::ProxyRoles).into_iter().collect(),
        replicator_roles: settings.list(Key::ReplicatorRoles).into_iter().collect(),
        original_credentials: settings.switch(Key::AuthenticateOriginalAuthData),
    }
}

/// The broker, once it is known where it listens.
pub fn broker(settings: &Settings, at: &Addresses) -> BrokerConfig {
    let host = advertised_host(settings);
    let url = |scheme: &str, address: Option<std::net::SocketAddr>| {
        address.map(|address| format!("{scheme}://{host}:{}", address.port()))
    };
    let own = AdvertisedListener {
        name: "internal".to_owned(),
        broker_url: url("pulsar", at.binary),
        broker_url_tls: url("pulsar+ssl", at.binary_tls),
    };
    let named = advertised_listeners(&settings.list(Key::AdvertisedListeners));
    let listeners = in_order(own, named, settings.optional(Key::InternalListenerName));
    BrokerConfig {
        cluster: settings.text(Key::ClusterName).to_owned(),
        listeners,
        labels: labels(settings.text(Key::BrokerLocation)),
        web_url: url("http", at.web),
        web_url_tls: url("https", at.web_tls),
        session: sessions(settings),
        max_concurrent_topic_loads: small(settings, Key::MaxConcurrentTopicLoadRequest).max(1),
        topic_load_timeout_s: settings.count(Key::TopicLoadTimeoutSeconds).max(1),
        max_partitions_per_topic: small(settings, Key::MaxNumPartitionsPerPartitionedTopic),
        inactive_topic_check_s: settings.count(Key::BrokerDeleteInactiveTopicsFrequencySeconds).max(1),
        delete_inactive_partitioned_metadata: settings.switch(Key::BrokerDeleteInactivePartitionedTopicMetadataEnabled),
        strictly_verify_subscription_names: settings.switch(Key::StrictlyVerifySubscriptionName),
        topic_list_watcher: settings.switch(Key::EnableBrokerTopicListWatcher),
        max_pattern_chars: small(settings, Key::SubscriptionPatternMaxLength) as usize,
        topic_level_metrics: settings.switch(Key::ExposeTopicLevelMetricsInPrometheus),
        expose_broker_entry_metadata: settings.switch(Key::ExposingBrokerEntryMetadataToClientEnabled),
        shutdown_timeout_ms: settings.count(Key::BrokerShutdownTimeoutMs).max(1),
        replication: replication(settings),
        topic_limits: topic_limits(settings),
        log_settings: storage::log(settings),
        ..BrokerConfig::default()
    }
}

/// Labels by which namespaces choose brokers: the region and the zone in which this one stands.
fn labels(location: &str) -> BTreeMap<String, String> {
    let place = Location::parse(location).unwrap_or_default();
    let named = [("region", place.region), ("zone", place.zone)];
    named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// `name:pulsar://host:port` items; both schemes of one name make one listener.
fn advertised_listeners(items: &[String]) -> Vec<AdvertisedListener> {
    let mut listeners: Vec<AdvertisedListener> = Vec::new();
    for item in items {
        let Some((name, url)) = item.split_once(':') else { continue };
        let at = listeners.iter().position(|listener| listener.name == name).unwrap_or_else(|| {
            listeners.push(AdvertisedListener { name: name.to_owned(), broker_url: None, broker_url_tls: None });
            listeners.len() - 1
        });
        if url.starts_with("pulsar+ssl://") {
            listeners[at].broker_url_tls = Some(url.to_owned());
        } else if url.starts_with("pulsar://") {
            listeners[at].broker_url = Some(url.to_owned());
        }
    }
    listeners
}

/// The listener that counts when a client names none, and the others: the named one, else the first that is advertised,
/// else the ports of this process.
fn in_order(
    mut own: AdvertisedListener,
    mut named: Vec<AdvertisedListener>,
    internal: Option<&str>,
) -> Vec<AdvertisedListener> {
    match internal.map(|name| (name, named.iter().position(|listener| listener.name == name))) {
        Some((_, Some(at))) => named.swap(0, at),
        Some((name, None)) => {
            own.name = name.to_owned();
            named.insert(0, own);
        }
        None if named.is_empty() => named.push(own),
        None => {}
    }
    named
}

/// Who may come in, and how they prove it.
///
/// # Errors
/// A field of certificates that is not known.
pub fn identity(settings: &Settings) -> Result<IdentityConfig, String> {
    let fields = settings.list(Key::TlsClientRoleFrom);
    let fields = fields.iter().map(|name| {
        RoleField::parse(name)
            .ok_or_else(|| format!("tlsClientRoleFrom={name}: expected CN, SAN_DNS, SAN_URI or SAN_EMAIL"))
    });
    Ok(IdentityConfig {
        certificate_role: fields.collect::<Result<_, _>>()?,
        providers: settings.list(Key::AuthenticationProviders),
        anonymous_role: settings.optional(Key::AnonymousUserRole).map(str::to_owned),
        token: TokenConfig {
            secret_key: settings.text(Key::TokenSecretKey).to_owned(),
            public_key: settings.text(Key::TokenPublicKey).to_owned(),
            public_alg: settings.text(Key::TokenPublicAlg).to_owned(),
            jwks: settings.text(Key::TokenJwks).to_owned(),
            jwks_trust: settings.text(Key::TokenJwksTrustCertsFilePath).to_owned(),
            jwks_refresh_s: settings.count(Key::TokenJwksRefreshSeconds),
            auth_claim: settings.text(Key::TokenAuthClaim).to_owned(),
            audience_claim: settings.text(Key::TokenAudienceClaim).to_owned(),
            audience: settings.text(Key::TokenAudience).to_owned(),
            clock_skew_s: settings.count(Key::TokenAllowedClockSkewSeconds),
        },
        basic_auth_conf: settings.text(Key::BasicAuthConf).to_owned(),
    })
}

/// Bounds of the admin API's connections and requests.
pub fn web_limits(settings: &Settings) -> WebLimits {
    let count = |key: Key| usize::try_from(settings.count(key)).unwrap_or(usize::MAX);
    WebLimits {
        connections: count(Key::MaxHttpServerConnections),
        connections_per_ip: count(Key::MaxHttpServerConnectionsPerIp),
        head_bytes: count(Key::HttpMaxRequestHeaderSize),
        body_bytes: usize::try_from(settings.number(Key::HttpMaxRequestSize)).unwrap_or(usize::MAX),
        head_timeout: Duration::from_secs(settings.count(Key::HttpHeadTimeoutSeconds).max(1)),
        request_timeout: Duration::from_secs(settings.count(Key::HttpRequestTimeoutSeconds).max(1)),
    }
}

/// What can't be meant, and what is likely not meant.
///
/// # Errors
/// The first setting that can't be met.
pub fn check_security(settings: &Settings) -> Result<(), String> {
    if settings.switch(Key::AuthenticationEnabled) && settings.list(Key::AuthenticationProviders).is_empty() {
        let text = "authenticationEnabled=true: authenticationProviders is empty, so that nobody could log in; expected at \
                    least one of token, basic, tls";
        return Err(text.to_owned());
    }
    if settings.switch(Key::TlsAllowInsecureConnection) {
        return Err(
            "tlsAllowInsecureConnection=true: client certificates are always checked; expected false".to_owned()
        );
    }
    if settings.switch(Key::AuthorizationEnabled) && !settings.switch(Key::AuthenticationEnabled) {
        tracing::warn!(
            "authorizationEnabled=true without authenticationEnabled: nobody has a role, so everybody is refused"
        );
    }
    Ok(())
}

/// Certificates of the TLS listeners.
pub fn tls_files(settings: &Settings, alpn: &[&[u8]]) -> TlsFiles {
    TlsFiles {
        certificate: settings.text(Key::TlsCertificateFilePath).to_owned(),
        key: settings.text(Key::TlsKeyFilePath).to_owned(),
        trust: settings.text(Key::TlsTrustCertsFilePath).to_owned(),
        require_client_certificate: settings.switch(Key::TlsRequireTrustedClientCertOnConnect),
        protocols: settings.list(Key::TlsProtocols),
        alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
        look_again: Duration::from_secs(settings.count(Key::TlsCertRefreshCheckDurationSec)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_listeners_join_their_schemes() {
        let items = ["a:pulsar://h:1", "a:pulsar+ssl://h:2", "b:pulsar://g:3"].map(str::to_owned);
        let listeners = advertised_listeners(&items);
        assert_eq!(listeners.len(), 2);
        assert_eq!(listeners[0].broker_url.as_deref(), Some("pulsar://h:1"));
        assert_eq!(listeners[0].broker_url_tls.as_deref(), Some("pulsar+ssl://h:2"));
    }

    #[test]
    fn who_names_no_listener_gets_the_internal_one() {
        let own = || AdvertisedListener { name: "internal".into(), broker_url: None, broker_url_tls: None };
        let named = || advertised_listeners(&["a:pulsar://h:1", "b:pulsar://g:3"].map(str::to_owned));
        let names = |listeners: Vec<AdvertisedListener>| -> Vec<String> {
            listeners.into_iter().map(|listener| listener.name).collect()
        };
        assert_eq!(names(in_order(own(), Vec::new(), None)), ["internal"]);
        assert_eq!(names(in_order(own(), named(), None)), ["a", "b"]);
        assert_eq!(names(in_order(own(), named(), Some("b"))), ["b", "a"]);
        assert_eq!(names(in_order(own(), named(), Some("c"))), ["c", "a", "b"]);
    }

    #[test]
    fn defaults_are_pulsars() {
        let settings = Settings::default();
        assert_eq!(topic_limits(&settings), default_topic_limits());
        let types = ["Exclusive", "Failover", "Key_Shared", "Shared"].map(str::to_owned);
        let mut found = defaults(&settings);
        for rate in [&found.topic_dispatch_rate, &found.subscription_dispatch_rate, &found.replicator_dispatch_rate] {
            assert_eq!(rate.per_second(), (0, 0), "no limit");
        }
        assert_eq!((found.publish_rate.per_second(), found.subscribe_rate.limit()), ((0, 0), (0, 30)));
        let unset = BrokerDefaults::default();
        found.publish_rate = unset.publish_rate;
        found.topic_dispatch_rate = unset.topic_dispatch_rate;
        found.subscription_dispatch_rate = unset.subscription_dispatch_rate;
        found.replicator_dispatch_rate = unset.replicator_dispatch_rate;
        found.subscribe_rate = unset.subscribe_rate;
        assert_eq!(found, BrokerDefaults { subscription_types: types.into(), ..unset });
    }

    #[test]
    fn the_older_quota_in_gib_counts_while_the_one_in_bytes_is_not_set() {
        let mut settings = Settings::default();
        settings.set_pair("--set", "backlogQuotaDefaultLimitGB=1.5").unwrap();
        assert_eq!(defaults(&settings).backlog_quota_bytes, 3 << 29);
        settings.set_pair("--set", "backlogQuotaDefaultLimitBytes=7").unwrap();
        assert_eq!(defaults(&settings).backlog_quota_bytes, 7);
    }
}
