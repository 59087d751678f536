//! The words and calls between a session (or the admin API) and a topic.

mod gate;
mod live;
mod stats;

pub use gate::{Gate, MovedTo, Unsettled};
pub use live::LiveTap;
pub use stats::{BacklogQuotaFigures, ConsumerStats, LinkStats, ProducerStats, SubscriptionStats, TopicStats};

use crate::compaction::CompactionStatus;
use crate::rates::LimitsAbove;
use crate::sharing::{AckSharing, SnapshotSharing};
use bytes::Bytes;
use meridian_managed_ledger::{LogEntry, LogError};
use meridian_types::{Classify, ErrorClass, Incarnation, Position, RegionId, TopicName};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future, for calls that happen seldom.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A producer attached to a topic: unique in the process, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerKey(pub u64);

/// A consumer attached to a subscription: unique in the process, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerKey(pub u64);

/// What a topic may say to a client's connection. Implemented by the session. No call blocks; all may be made under a
/// topic's lock, so none may call back into a topic.
pub trait ClientSink: Send + Sync {
    /// Sends receipts, in send order of the producer.
    fn receipts(&self, producer_id: u64, receipts: &[Receipt]);
    /// Refuses one send.
    fn send_error(&self, producer_id: u64, sequence_id: u64, kind: TopicErrorKind, message: &str);
    /// A producer that waited for exclusive access has it (second PRODUCER_SUCCESS with the first one's request id).
    fn producer_ready(&self, producer_id: u64, ready: ProducerReady);
    /// The wait for exclusive access ended in an error.
    fn producer_refused(&self, producer_id: u64, error: &TopicError);
    /// The topic has dropped this producer (unload, fencing, delete): CLOSE_PRODUCER.
    fn close_producer(&self, producer_id: u64);
    /// The topic has dropped this consumer (unload, seek, delete): CLOSE_CONSUMER.
    fn close_consumer(&self, consumer_id: u64);
    /// This producer belongs to another region now: TOPIC_MIGRATED for clients that know it.
    fn producer_moved(&self, producer_id: u64, _to: &MovedTo) {
        self.close_producer(producer_id);
    }
    /// This consumer belongs to another region now: TOPIC_MIGRATED for clients that know it.
    fn consumer_moved(&self, consumer_id: u64, _to: &MovedTo) {
        self.close_consumer(consumer_id);
    }
    /// Sends of this producer wait for the publish rate from now on, or none does any more.
    fn publishes_held(&self, _producer_id: u64, _is_held: bool) {}
    /// Sends messages, in this order.
    fn deliver(&self, consumer_id: u64, deliveries: Vec<Delivery>);
    /// Failover: this consumer became active or inactive.
    fn active_consumer_changed(&self, consumer_id: u64, is_active: bool);
    /// The topic is terminated and everything was delivered and acked.
    fn reached_end_of_topic(&self, consumer_id: u64);
    /// Whether the outbound buffer is below its high-water mark. A dispatcher stops for a consumer whose sink is not;
    /// the session calls [`TopicHandle::writable`] when it has drained.
    fn is_writable(&self) -> bool;
    /// PINGs the peer and waits for traffic; false = dead (the session closes it).
    fn probe(&self) -> BoxFuture<'static, bool>;
    /// `ip:port` of the peer.
    fn peer_address(&self) -> String;
    /// The version text that the client gave in CONNECT.
    fn client_version(&self) -> String;
}

/// A receipt for one SEND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// As in the SEND.
    pub sequence_id: u64,
    /// As in the SEND, 0 if it had none.
    pub highest_sequence_id: u64,
    /// Where the entry is; [`Position::EARLIEST`] (-1:-1) for a duplicate.
    pub position: Position,
}

/// One entry on its way to a consumer.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Where it is.
    pub position: Position,
    /// Times it was redelivered.
    pub redelivery_count: u32,
    /// Words, 1 = unacked; empty = all.
    pub ack_set: Vec<u64>,
    /// The consumer epoch to put on the message, if the client gave one.
    pub consumer_epoch: Option<u64>,
    /// Index and broker time for broker entry metadata, if the session exposes it.
    pub index: u64,
    /// When the broker took it, ms since 1970.
    pub broker_time_ms: u64,
    /// The client's bytes from the 0x0e01 magic on.
    pub payload: Bytes,
}

/// Producer access modes of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessMode {
    Shared,
    Exclusive,
    WaitForExclusive,
    ExclusiveWithFencing,
}

/// A producer wants in.
#[derive(Clone)]
pub struct ProducerRequest {
    /// Where receipts go.
    pub sink: Arc<dyn ClientSink>,
    /// The client's id on its connection.
    pub producer_id: u64,
    /// Name; already made unique by the broker if the client gave none.
    pub name: String,
    /// Whether the client chose the name.
    pub user_provided_name: bool,
    /// Client's epoch of this producer.
    pub epoch: u64,
    /// Access mode.
    pub access_mode: AccessMode,
    /// Epoch of the topic that a reconnecting exclusive producer had.
    pub topic_epoch: Option<u64>,
    /// The client says that it encrypts.
    pub encrypted: bool,
    /// Metadata of the client.
    pub metadata: BTreeMap<String, String>,
    /// Schema version that was registered for it, shown in statistics.
    pub schema_version: Option<i64>,
    /// Create this subscription at earliest first.
    pub initial_subscription: Option<String>,
    /// A link on this connection matches receipts by source position.
    pub receipts_by_position: bool,
    /// The principal, for statistics.
    pub principal: Option<String>,
}

/// A producer is in (or waits: `ready` false, and [`ClientSink::producer_ready`] follows).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerReady {
    /// Its key for all further calls.
    pub key: ProducerKey,
    /// Its name.
    pub name: String,
    /// Highest sequence id known by deduplication, -1 if none.
    pub last_sequence_id: i64,
    /// Epoch of the topic, for exclusive producers.
    pub topic_epoch: Option<u64>,
    /// False while it waits for exclusive access.
    pub ready: bool,
}

/// One SEND.
#[derive(Debug, Clone)]
pub struct Publish {
    /// Lowest sequence id of the batch.
    pub sequence_id: u64,
    /// Highest, if the client gave it.
    pub highest_sequence_id: Option<u64>,
    /// Messages in the batch, at least 1.
    pub messages: u32,
    /// A marker written by a Pulsar replicator.
    pub marker: bool,
    /// Chunked message part.
    pub is_chunk: bool,
    /// Where the sending region stores it; links only.
    pub source: Option<Position>,
    /// Bytes from the 0x0e01 magic on; the session has checked the checksum.
    pub payload: Bytes,
}

/// Subscription types of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum SubscriptionType {
    Exclusive,
    Shared,
    Failover,
    KeyShared,
}

/// Where a new subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum InitialCursor {
    Earliest,
    Latest,
}

/// Key_Shared settings of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySharedPolicy {
    /// The broker splits the hash range.
    AutoSplit {
        /// The client does not care for order while ranges move.
        allow_out_of_order: bool,
    },
    /// The client names its ranges (inclusive).
    Sticky {
        /// The client does not care for order.
        allow_out_of_order: bool,
        /// The ranges, 0..=65535.
        ranges: Vec<(u32, u32)>,
    },
}

/// A consumer wants in.
#[derive(Clone)]
pub struct SubscribeRequest {
    /// Where messages go.
    pub sink: Arc<dyn ClientSink>,
    /// The client's id on its connection.
    pub consumer_id: u64,
    /// Name of the consumer; made by the broker if the client gave none.
    pub consumer_name: String,
    /// Subscription.
    pub subscription: String,
    /// Type.
    pub sub_type: SubscriptionType,
    /// Kept over restarts.
    pub durable: bool,
    /// Position for a new subscription.
    pub initial: InitialCursor,
    /// Start of a non-durable subscription, with batch index (-1 = none).
    pub start_message_id: Option<(Position, i32)>,
    /// Go back that many seconds at the start.
    pub start_rollback_s: u64,
    /// Priority: lower first.
    pub priority_level: i32,
    /// Read the compacted view.
    pub read_compacted: bool,
    /// Key_Shared settings.
    pub key_shared: Option<KeySharedPolicy>,
    /// Consumer epoch, if the client gave one.
    pub consumer_epoch: Option<u64>,
    /// Replicate the subscription's state.
    pub replicate_state: Option<bool>,
    /// Metadata of the client.
    pub metadata: BTreeMap<String, String>,
    /// Properties of a new subscription.
    pub subscription_properties: BTreeMap<String, String>,
    /// Whether a missing durable subscription may be created.
    pub may_create: bool,
    /// The principal, for statistics.
    pub principal: Option<String>,
}

/// Individual or cumulative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AckMode {
    Individual,
    Cumulative,
}

/// An ACK.
#[derive(Debug, Clone)]
pub struct AckRequest {
    /// Mode.
    pub mode: AckMode,
    /// Entries, each with the wire's ack set (1 = still unacked; empty = whole entry).
    pub ids: Vec<(Position, Vec<u64>)>,
    /// Properties to attach to the cursor (cumulative only).
    pub properties: BTreeMap<String, i64>,
    /// The client wants a receipt: the returned future ends when the ack is durable.
    pub receipt: bool,
}

/// Where to seek.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekTo {
    /// The given entry is delivered next, with the batch indexes of the words unacked.
    Position(Position, Vec<u64>),
    /// First entry after the last one published before that time (ms since 1970).
    PublishTime(u64),
}

/// Answer to GET_LAST_MESSAGE_ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastMessage {
    /// Last dispatchable entry, [`Position::EARLIEST`] if there is none.
    pub position: Position,
    /// Last index of its batch, -1 if it is no batch.
    pub batch_index: i32,
    /// The subscription's mark-delete.
    pub mark_delete: Option<Position>,
}

/// Numbers that bind a topic; 0 = no limit. Pushed by the broker whenever policies change.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicLimits {
    /// Producers at most.
    pub max_producers: u32,
    /// Consumers at most on the topic.
    pub max_consumers: u32,
    /// Consumers at most on one subscription.
    pub max_consumers_per_subscription: u32,
    /// Subscriptions at most.
    pub max_subscriptions: u32,
    /// Unacked messages at most per consumer (Shared, Key_Shared).
    pub max_unacked_per_consumer: u32,
    /// Unacked messages at most per subscription.
    pub max_unacked_per_subscription: u32,
    /// Bytes of one message at most (0 = broker's limit only).
    pub max_message_bytes: u32,
    /// Producers must encrypt.
    pub encryption_required: bool,
    /// Deduplication is on.
    pub deduplication: bool,
    /// Producers are the same in all regions: deduplication knows them by name whatever region their messages came by.
    pub global_producers: bool,
    /// Producers remembered by deduplication at most.
    pub dedup_max_producers: u32,
    /// Snapshot the deduplication marks every so many entries.
    pub dedup_snapshot_entries: u32,
    /// And every so many seconds, if anything changed; 0 = by entries alone.
    pub dedup_snapshot_s: u32,
    /// Message time to live in seconds.
    pub message_ttl_s: u32,
    /// Delayed delivery is on.
    pub delayed_delivery: bool,
    /// Delayed delivery tick in ms.
    pub delayed_tick_ms: u64,
    /// Longest delay in ms.
    pub max_delay_ms: u64,
    /// Partial acks of batches are kept.
    pub batch_index_ack: bool,
    /// Wait before a failover consumer becomes active, ms.
    pub failover_delay_ms: u64,
    /// Key_Shared by consistent hashing instead of range splitting; points per consumer.
    pub key_shared_consistent_hashing: Option<u32>,
    /// Entries per dispatch read at most.
    pub dispatch_read_entries: u32,
    /// Bytes per dispatch read at most.
    pub dispatch_read_bytes: u64,
    /// Entries per consumer and round (Shared).
    pub dispatch_round_robin_entries: u32,
    /// Backlog over this size: see `backlog_bytes_policy`.
    pub backlog_quota_bytes: u64,
    /// Oldest unacked message over this age in seconds: see `backlog_age_policy`.
    pub backlog_quota_s: u64,
    /// 0 = producer_request_hold, 1 = producer_exception, 2 = consumer_backlog_eviction.
    pub backlog_bytes_policy: u8,
    /// The same words for the age.
    pub backlog_age_policy: u8,
    /// Subscription types that may be used.
    pub allowed_types: Vec<SubscriptionType>,
    /// Publish rates at most: messages, bytes per second.
    pub publish_rate: (u64, u64),
    /// Dispatch rates at most of all subscriptions together: messages, bytes per second.
    pub topic_dispatch_rate: (u64, u64),
    /// They stand on top of the publish rate.
    pub topic_dispatch_relative: bool,
    /// Dispatch rates at most per subscription: messages, bytes per second.
    pub dispatch_rate: (u64, u64),
    /// They stand on top of the publish rate.
    pub dispatch_relative: bool,
    /// Subscribe calls per consumer at most in a period, and the period in seconds.
    pub subscribe_rate: (u32, u32),
    /// Durable subscriptions without consumers that nobody moved for so long are deleted, in minutes.
    pub subscription_expiration_minutes: u32,
    /// Compaction starts by itself when so many bytes are not compacted.
    pub compaction_threshold_bytes: u64,
}

/// What the wire's `ServerError` would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TopicErrorKind {
    Unknown,
    Metadata,
    Persistence,
    ConsumerBusy,
    ServiceNotReady,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    Checksum,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TopicTerminated,
    ProducerBusy,
    IncompatibleSchema,
    ConsumerAssign,
    NotAllowed,
    ProducerFenced,
    /// A name or a value is too long for where it is kept: repeating it is useless (412).
    TooLarge,
    /// Admin only: the subscription or topic has consumers or producers (412).
    Busy,
}

/// Why a topic refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TopicError {
    /// The kind.
    pub kind: TopicErrorKind,
    /// What a client shows.
    pub message: String,
}

impl TopicError {
    /// An error of a kind.
    pub fn new(kind: TopicErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<LogError> for TopicError {
    fn from(error: LogError) -> Self {
        let kind = match &error {
            LogError::NoSuchLog(_) => TopicErrorKind::TopicNotFound,
            LogError::NoSuchCursor(_) => TopicErrorKind::SubscriptionNotFound,
            LogError::Terminated(_) => TopicErrorKind::TopicTerminated,
            LogError::Fenced(_) | LogError::Closed(_) => TopicErrorKind::ServiceNotReady,
            LogError::Metadata(error) if error.class() == ErrorClass::Caller => TopicErrorKind::TooLarge,
            LogError::Metadata(_) => TopicErrorKind::Metadata,
            _ => TopicErrorKind::Persistence,
        };
        Self { kind, message: error.to_string() }
    }
}

impl Classify for TopicError {
    fn class(&self) -> ErrorClass {
        match self.kind {
            TopicErrorKind::Unknown | TopicErrorKind::Metadata | TopicErrorKind::Persistence => ErrorClass::Retry,
            TopicErrorKind::ServiceNotReady => ErrorClass::Redirect,
            TopicErrorKind::ProducerFenced => ErrorClass::Fenced,
            _ => ErrorClass::Caller,
        }
    }
}

/// A region, the life of a topic there, and the position up to which everything of it is stored here.
pub type StoredOrigin = (RegionId, Incarnation, Position);

/// A topic as sessions and the admin API see it; persistent and non-persistent topics implement it.
pub trait TopicHandle: Send + Sync {
    /// Its name.
    fn name(&self) -> &TopicName;
    /// Adds a producer.
    fn add_producer(&self, request: ProducerRequest) -> BoxFuture<'_, Result<ProducerReady, TopicError>>;
    /// Publishes a run of SENDs of one producer. Answers through its sink, in order.
    fn publish(&self, producer: ProducerKey, batch: Vec<Publish>);
    /// Removes a producer after what it sent is answered. An absent one is no error.
    fn remove_producer(&self, producer: ProducerKey) -> BoxFuture<'_, ()>;
    /// Adds a consumer; nothing is delivered before the first flow.
    fn subscribe(&self, request: SubscribeRequest) -> BoxFuture<'_, Result<ConsumerKey, TopicError>>;
    /// Adds permits (at least 1).
    fn flow(&self, consumer: ConsumerKey, permits: u32);
    /// Acknowledges. In memory when this returns; with `receipt` the future ends when it is durable. `None` = nothing
    /// to wait for.
    fn ack(&self, consumer: ConsumerKey, request: AckRequest) -> Option<BoxFuture<'static, Result<(), TopicError>>>;
    /// Redelivers the given entries, or all pending ones if empty.
    fn redeliver(&self, consumer: ConsumerKey, ids: Vec<Position>, consumer_epoch: Option<u64>);
    /// The consumer's connection has drained its outbound buffer.
    fn writable(&self, consumer: ConsumerKey);
    /// Removes a consumer; what it had pending goes to others. An absent one is no error.
    fn remove_consumer(&self, consumer: ConsumerKey) -> BoxFuture<'_, ()>;
    /// Deletes the consumer's subscription.
    fn unsubscribe(&self, consumer: ConsumerKey, force: bool) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Moves the consumer's subscription; its consumers are closed first.
    fn seek(&self, consumer: ConsumerKey, to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Last message, as this consumer may see it.
    fn last_message(&self, consumer: ConsumerKey) -> BoxFuture<'_, Result<LastMessage, TopicError>>;
    /// Figures of one consumer with its subscription's type and backlog.
    fn consumer_stats(&self, consumer: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)>;

    /// Serves tenants' clients, holds them or sends them away. Idempotent.
    fn set_gate(&self, _gate: Gate) {}
    /// Up to which position of which topic's life elsewhere everything is stored here.
    fn origin_marks(&self) -> BoxFuture<'_, Result<Vec<StoredOrigin>, TopicError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// From now on the region's link gets what tenants publish here, or no more. For topics that keep nothing: others have a
    /// log to be read.
    fn set_tap(&self, _region: &str, _tap: Option<Arc<dyn LiveTap>>) {}
    /// Closes the producers of other regions: they come again.
    fn close_links(&self) {}
    /// What is under way with them.
    fn unsettled(&self) -> Unsettled {
        Unsettled::default()
    }

    /// Figures.
    fn stats(&self) -> TopicStats;
    /// Messages and bytes published per second, as of the last second.
    fn published(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Puts new limits in force. What takes time ([`Self::limits_pending`]) is begun.
    fn set_limits(&self, limits: TopicLimits);
    /// Puts the limits of what the topic belongs to in force.
    fn set_limits_above(&self, _above: LimitsAbove) {}
    /// Keeps producers of tenants out for this reason, or lets them in again; deliveries, acknowledgements and deletions go
    /// on. Topics that store nothing have nothing to keep out.
    fn set_hold(&self, _reason: Option<Arc<str>>) {}
    /// Whether something of the limits is not in force yet (deduplication reads what is stored first).
    fn limits_pending(&self) -> bool {
        false
    }
    /// Ends when the limits are in force, or could not be brought in force ([`Self::limits_pending`] tells).
    fn limits_in_force(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Once a second: TTL, delayed delivery, rates, inactive producers, snapshots. Cheap when idle.
    fn tick(&self, now_ms: u64);

    /// Admin: creates a durable subscription.
    fn create_subscription(
        &self,
        name: String,
        at: SeekTo,
        properties: BTreeMap<String, String>,
        replicated: bool,
    ) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: a durable subscription's acknowledgements go to other regions from now on, or no more.
    fn set_subscription_replicated(&self, name: String, replicated: bool) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: deletes a subscription; with consumers only if forced.
    fn delete_subscription(&self, name: String, force: bool) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: moves a subscription.
    fn reset_subscription(&self, name: String, to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: skips entries (`None` = all).
    fn skip(&self, name: String, entries: Option<u64>) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: acks everything published longer than that ago.
    fn expire(&self, name: String, older_than_s: u64) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: entry at 1-based `nth` of the subscription's backlog.
    fn peek(&self, name: String, nth: u64) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>>;
    /// Admin: the entry at a position.
    fn entry(&self, position: Position) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>>;
    /// Admin: the first entry after the last one published before that time (ms since 1970), or where the next one will be.
    fn position_at(&self, _publish_time_ms: u64) -> BoxFuture<'_, Result<Position, TopicError>> {
        let error = TopicError::new(TopicErrorKind::NotAllowed, "This topic keeps no messages to look for");
        Box::pin(std::future::ready(Err(error)))
    }
    /// Admin: starts a compaction; statistics tell how it went.
    fn compact(&self) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Admin: how the last compaction went.
    fn compaction_status(&self) -> CompactionStatus {
        CompactionStatus::NotRun
    }
    /// Admin: no more messages; answers the last position.
    fn terminate(&self) -> BoxFuture<'_, Result<Position, TopicError>>;
    /// Last confirmed position, no consumer needed.
    fn last_position(&self) -> Position;
    /// Admin: drops ledgers that nobody needs, now.
    fn trim(&self) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Acknowledgements shared with other regions; `None` = this topic stores nothing.
    fn ack_sharing(&self) -> Option<Arc<dyn AckSharing>> {
        None
    }
    /// Replicated subscriptions towards Pulsar clusters; `None` = this topic stores nothing.
    fn snapshot_sharing(&self) -> Option<Arc<dyn SnapshotSharing>> {
        None
    }
    /// Unloads: closes clients, flushes, closes the log. Idempotent.
    fn close(&self) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Unloads for another broker: what was sent is answered, nothing more is taken, the log is closed, and only then are
    /// clients closed, so that the other broker finds nothing to recover.
    fn hand_over(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        self.close()
    }
    /// Deletes the topic; with clients (or subscriptions with consumers) only if forced.
    fn delete(&self, force: bool) -> BoxFuture<'_, Result<(), TopicError>>;
}
