//! Figures of topics, producers, consumers and subscriptions, made when asked for.

use super::{AccessMode, SubscriptionType};
use crate::compaction::CompactionFigures;
use crate::sharing::AckShareStats;
use meridian_managed_ledger::{CursorInfo, LogInfo};
use meridian_types::Position;
use std::collections::BTreeMap;

/// Figures of one producer.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct ProducerStats {
    pub producer_id: u64,
    pub name: String,
    pub access_mode: AccessMode,
    pub address: String,
    pub client_version: String,
    pub connected_since_ms: u64,
    pub metadata: BTreeMap<String, String>,
    pub messages_in: u64,
    pub bytes_in: u64,
    pub rate_in: f64,
    pub throughput_in: f64,
}

/// Figures of another region's producer here.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct LinkStats {
    /// The sending region.
    pub region: String,
    /// Of the topic there, 0 = unknown.
    pub incarnation: u64,
    pub producer: ProducerStats,
    /// Origin positions: handed to storage, stored, and the one that was refused and is waited for.
    pub pushed: Position,
    pub persisted: Position,
    pub refused: Option<Position>,
    pub duplicates: u64,
    pub given_up: u64,
}

/// Figures of one consumer.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct ConsumerStats {
    pub consumer_id: u64,
    pub name: String,
    pub address: String,
    pub client_version: String,
    pub connected_since_ms: u64,
    pub metadata: BTreeMap<String, String>,
    pub available_permits: i64,
    pub unacked_messages: u64,
    pub blocked_on_unacked: bool,
    pub messages_out: u64,
    pub bytes_out: u64,
    pub rate_out: f64,
    pub throughput_out: f64,
    pub rate_redeliver: f64,
    pub ack_rate: f64,
    pub last_acked_ms: u64,
    pub last_consumed_ms: u64,
    pub last_flow_ms: u64,
    pub key_hash_ranges: Vec<(u32, u32)>,
}

/// Figures of one subscription.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct SubscriptionStats {
    pub name: String,
    /// `None` = nobody has connected since the load.
    pub sub_type: Option<SubscriptionType>,
    pub durable: bool,
    pub replicated: bool,
    /// Entries not acked.
    pub backlog_entries: u64,
    /// About how many bytes they are.
    pub backlog_bytes: u64,
    /// Where its dispatch reads on; `None` without consumers.
    pub read_position: Option<Position>,
    /// Entries that wait to be sent again, or for their key.
    pub replay_entries: u64,
    pub delayed_entries: u64,
    /// When the last of them is due, by the index of those that are tracked; 0 = none.
    pub delayed_until_ms: u64,
    pub unacked_messages: u64,
    pub blocked_on_unacked: bool,
    pub active_consumer: Option<String>,
    pub messages_out: u64,
    pub bytes_out: u64,
    pub rate_out: f64,
    pub throughput_out: f64,
    pub rate_redeliver: f64,
    pub rate_expired: f64,
    pub expired_total: u64,
    pub last_expire_ms: u64,
    pub last_consumed_flow_ms: u64,
    pub last_consumed_ms: u64,
    pub last_acked_ms: u64,
    pub last_mark_delete_ms: u64,
    /// Why dispatch waits (`no permits`, `unacked limit`, `reading since …`, `draining hashes`, `client not writable`).
    pub waiting: Option<String>,
    /// The next entry to read is lost or damaged on every replica: `waiting` says which.
    pub unreadable: bool,
    pub consumers: Vec<ConsumerStats>,
    pub cursor: Option<CursorInfo>,
    /// If its acknowledgements are shared with other regions.
    pub acks: Option<Box<AckShareStats>>,
}

/// How near a backlog is to its quotas, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct BacklogQuotaFigures {
    /// 0 = no quota.
    pub limit_bytes: u64,
    /// 0 = no quota.
    pub limit_s: u64,
    /// When the oldest message of a backlog was stored, as the last check of a quota by age saw it; 0 = none.
    pub oldest_ms: u64,
    pub evicted_by_size_entries: u64,
    pub evicted_by_age_entries: u64,
}

/// Figures of one topic.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct TopicStats {
    pub messages_in: u64,
    pub bytes_in: u64,
    pub messages_out: u64,
    pub bytes_out: u64,
    pub rate_in: f64,
    pub throughput_in: f64,
    pub rate_out: f64,
    pub throughput_out: f64,
    pub average_message_bytes: f64,
    pub storage_bytes: u64,
    pub backlog_bytes: u64,
    pub backlog_quota: BacklogQuotaFigures,
    pub topic_epoch: Option<u64>,
    pub deduplication: bool,
    pub publish_latency_us_p50: u64,
    pub publish_latency_us_p99: u64,
    /// Times that sends had to wait for the publish rate.
    pub publish_limited_times: u64,
    /// Sends that wait for it now.
    pub publishes_waiting: u64,
    /// How compactions went since the load, and what the last one left.
    pub compaction: CompactionFigures,
    pub producers: Vec<ProducerStats>,
    /// Producers of other regions' replicators.
    pub links: Vec<LinkStats>,
    pub waiting_producers: u32,
    pub subscriptions: Vec<SubscriptionStats>,
    /// `None` for non-persistent topics.
    pub log: Option<LogInfo>,
    pub loaded_ms: u64,
    pub last_activity_ms: u64,
}
