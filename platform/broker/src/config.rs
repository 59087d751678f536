//! The numbers and texts that a broker is run with.
//!
//! Role: plain values with Pulsar's defaults; whoever starts a broker fills them from its settings.
//! Invariants: none; every number that is a limit says by its name what it bounds, 0 means "no limit" where noted.
//! Must never know: files, property names, the command line.

use meridian_managed_ledger::LogSettings;
use meridian_topic::TopicLimits;
use std::collections::BTreeMap;

/// An address under which clients reach this broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertisedListener {
    /// Its name, as clients give it in a lookup.
    pub name: String,
    /// `pulsar://host:port`, if there is a plain port.
    pub broker_url: Option<String>,
    /// `pulsar+ssl://host:port`, if there is a TLS port.
    pub broker_url_tls: Option<String>,
}

/// Sizes and times of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLimits {
    /// Largest message; frames may be 10240 bytes longer.
    pub max_message_bytes: u32,
    /// Seconds between keep-alive ticks; also the time that a login may take.
    pub keep_alive_interval_s: u64,
    /// How long a peer may take to answer a probe.
    pub liveness_timeout_ms: u64,
    /// Publishes waiting for an answer per connection; reading stops above and resumes at half.
    pub max_pending_publishes: u32,
    /// Bytes of publishes waiting for an answer per connection; reading stops above and resumes at half. As many may wait
    /// for publish rates.
    pub max_pending_publish_bytes: u64,
    /// Slow commands (lookups, creations, seeks) in progress per connection; reading stops above.
    pub max_pending_commands: u32,
    /// Outbound bytes at which dispatch and reading stop.
    pub outbound_high_bytes: usize,
    /// Outbound bytes at which they go on.
    pub outbound_low_bytes: usize,
    /// Largest read buffer of a connection, between frames.
    pub max_read_buffer_bytes: usize,
    /// Connections at most, 0 = no limit.
    pub max_connections: u32,
    /// Connections from one address at most, 0 = no limit.
    pub max_connections_per_ip: u32,
    /// Connections that have not logged in at most, 0 = no limit.
    pub max_unauthenticated: u32,
    /// How long a connection may take to log in, TLS handshake included.
    pub login_timeout_ms: u64,
    /// How long a peer may take nothing of what waits for it, 0 = no limit.
    pub slow_peer_timeout_ms: u64,
    /// Seconds between looks at expiring credentials.
    pub auth_refresh_check_s: u64,
    /// Lookups, partition counts, listings in progress in the whole process.
    pub max_concurrent_lookups: u32,
    /// Characters of consumer metadata at most.
    pub max_consumer_metadata_chars: usize,
    /// Producers and consumers on one connection at most.
    pub max_handlers_per_connection: usize,
    /// Topic list watchers on one connection at most.
    pub max_watchers_per_connection: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            max_message_bytes: 5 * 1024 * 1024,
            keep_alive_interval_s: 30,
            liveness_timeout_ms: 5_000,
            max_pending_publishes: 1_000,
            max_pending_publish_bytes: 64 << 20,
            max_pending_commands: 1_024,
            outbound_high_bytes: 1 << 20,
            outbound_low_bytes: 256 << 10,
            max_read_buffer_bytes: 256 << 10,
            max_connections: 0,
            max_connections_per_ip: 0,
            max_unauthenticated: 0,
            login_timeout_ms: 30_000,
            slow_peer_timeout_ms: 120_000,
            auth_refresh_check_s: 60,
            max_concurrent_lookups: 50_000,
            max_consumer_metadata_chars: 1_024,
            max_handlers_per_connection: 100_000,
            max_watchers_per_connection: 1_000,
        }
    }
}

/// How topics are copied to other regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// A new link begins with everything that its topic holds, not with what comes from now on.
    pub from_earliest: bool,
    /// Connections to each broker of another region.
    pub connections_per_broker: u32,
    /// Entries on their way over one link at most.
    pub queue_entries: u32,
    /// Bytes on their way over one link at most.
    pub queue_bytes: u64,
    /// Bytes that all links to one region may have read from storage and not copied yet.
    pub read_ahead_bytes: u64,
    /// Topics are made in the other region, with as many partitions as here.
    pub create_remote_topics: bool,
    /// A link that makes no progress for so long, though it could, is started anew.
    pub stall_limit_ms: u64,
    /// A link of a topic that keeps nothing closes after so long without messages.
    pub idle_link_ms: u64,
    /// Compare links with policies every so often, 0 = never.
    pub policy_check_s: u64,
    /// A link that takes longer to stop is given up.
    pub stop_limit_ms: u64,
    /// The state of subscriptions is exchanged with other regions.
    pub share_subscriptions: bool,
    /// A snapshot of positions in Pulsar clusters begins at most so often.
    pub snapshot_every_ms: u64,
    /// A snapshot that is not answered in that time is given up.
    pub snapshot_timeout_ms: u64,
    /// Snapshots kept per subscription.
    pub snapshots_cached: u32,
}

impl Default for ReplicationConfig {
    fn default() -> Self {
        Self {
            from_earliest: false,
            connections_per_broker: 16,
            queue_entries: 1000,
            queue_bytes: 32 << 20,
            read_ahead_bytes: 64 << 20,
            create_remote_topics: true,
            stall_limit_ms: 30_000,
            idle_link_ms: 300_000,
            policy_check_s: 600,
            stop_limit_ms: 5_000,
            share_subscriptions: true,
            snapshot_every_ms: 1000,
            snapshot_timeout_ms: 30_000,
            snapshots_cached: 30,
        }
    }
}

/// Everything a broker is told at its start.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    /// The region (Pulsar: cluster) that this broker belongs to.
    pub cluster: String,
    /// Version text in CONNECTED behind `Pulsar Server`.
    pub version: String,
    /// Where clients reach this broker; the first is the internal (default) one.
    pub listeners: Vec<AdvertisedListener>,
    /// Labels of this broker, such as `zone` and `rack`.
    pub labels: BTreeMap<String, String>,
    /// `http://host:port` of the admin API, for lookups over HTTP.
    pub web_url: Option<String>,
    /// `https://host:port` of the admin API.
    pub web_url_tls: Option<String>,
    /// Tell clients to stay on the service URL instead of connecting to the advertised one (one-machine set-ups).
    pub proxy_through_service_url: bool,
    /// Connections.
    pub session: SessionLimits,
    /// Topics loading at once.
    pub max_concurrent_topic_loads: u32,
    /// How long a topic may take to load.
    pub topic_load_timeout_s: u64,
    /// Partitions of one topic at most, 0 = no limit.
    pub max_partitions_per_topic: u32,
    /// Seconds between looks for topics that nobody uses.
    pub inactive_topic_check_s: u64,
    /// Delete partitioned topics with all partitions gone, too.
    pub delete_inactive_partitioned_metadata: bool,
    /// Answer WATCH_TOPIC_LIST.
    pub topic_list_watcher: bool,
    /// Characters of a topic pattern at most.
    pub max_pattern_chars: usize,
    /// Add index and broker time to messages for clients that understand them.
    pub expose_broker_entry_metadata: bool,
    /// Figures of single topics on the metrics page; otherwise of namespaces.
    pub topic_level_metrics: bool,
    /// Keep the replicated flag of subscriptions.
    pub replicated_subscriptions: bool,
    /// Links to other regions.
    pub replication: ReplicationConfig,
    /// Check subscription names (letters, digits, `_-=:.`).
    pub strictly_verify_subscription_names: bool,
    /// Quotas are shared with the other brokers of the region by leases of so many ms; `None` = this one is alone.
    pub quota_lease_ms: Option<u64>,
    /// How long topics may take to close at the broker's end.
    pub shutdown_timeout_ms: u64,
    /// Limits of topics, as far as they are no policies; those that are come from the registry.
    pub topic_limits: TopicLimits,
    /// Storage settings of topics, as far as they are no policies.
    pub log_settings: LogSettings,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            cluster: "standalone".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            listeners: vec![AdvertisedListener {
                name: "internal".to_owned(),
                broker_url: Some("pulsar://localhost:6650".to_owned()),
                broker_url_tls: None,
            }],
            labels: BTreeMap::new(),
            web_url: Some("http://localhost:8080".to_owned()),
            web_url_tls: None,
            proxy_through_service_url: false,
            session: SessionLimits::default(),
            max_concurrent_topic_loads: 5_000,
            topic_load_timeout_s: 60,
            max_partitions_per_topic: 0,
            inactive_topic_check_s: 60,
            delete_inactive_partitioned_metadata: false,
            topic_list_watcher: true,
            max_pattern_chars: 50,
            expose_broker_entry_metadata: false,
            topic_level_metrics: true,
            replicated_subscriptions: true,
            replication: ReplicationConfig::default(),
            strictly_verify_subscription_names: false,
            quota_lease_ms: Some(10_000),
            shutdown_timeout_ms: 60_000,
            topic_limits: default_topic_limits(),
            log_settings: LogSettings::default(),
        }
    }
}

/// Pulsar's defaults for a topic.
pub fn default_topic_limits() -> TopicLimits {
    use meridian_topic::SubscriptionType::{Exclusive, Failover, KeyShared, Shared};
    TopicLimits {
        max_producers: 0,
        max_consumers: 0,
        max_consumers_per_subscription: 0,
        max_subscriptions: 0,
        max_unacked_per_consumer: 50_000,
        max_unacked_per_subscription: 200_000,
        max_message_bytes: 0,
        encryption_required: false,
        deduplication: false,
        global_producers: false,
        dedup_max_producers: 10_000,
        dedup_snapshot_entries: 1_000,
        dedup_snapshot_s: 120,
        message_ttl_s: 0,
        delayed_delivery: true,
        delayed_tick_ms: 1_000,
        max_delay_ms: 0,
        batch_index_ack: true,
        failover_delay_ms: 1_000,
        key_shared_consistent_hashing: Some(100),
        dispatch_read_entries: 1_000,
        dispatch_read_bytes: 5 << 20,
        dispatch_round_robin_entries: 20,
        backlog_quota_bytes: 0,
        backlog_quota_s: 0,
        backlog_bytes_policy: 0,
        backlog_age_policy: 0,
        allowed_types: vec![Exclusive, Shared, Failover, KeyShared],
        publish_rate: (0, 0),
        dispatch_rate: (0, 0),
        dispatch_relative: false,
        topic_dispatch_rate: (0, 0),
        topic_dispatch_relative: false,
        subscribe_rate: (0, 30),
        subscription_expiration_minutes: 0,
        compaction_threshold_bytes: 0,
    }
}
