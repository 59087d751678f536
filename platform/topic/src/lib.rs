//! A topic: producers, deduplication, subscriptions, dispatch, acknowledgement, limits given as numbers.
//!
//! Role: [`TopicHandle`] is what a session and the admin API see of one topic (or one partition), persistent or not.
//! Failure: [`TopicError`], which carries the wire's `ServerError` meaning in [`TopicErrorKind`].
//! Must never know: sockets, policies (only numbers), regions but by id.
#![forbid(unsafe_code)]

pub mod api;
pub mod clock;
pub mod compaction;
pub mod dedup;
pub mod delayed;
mod dispatch;
mod figures;
pub mod nonpersistent;
pub mod origins;
pub mod persistent;
mod producers;
pub mod rates;
pub mod selector;
pub mod sharing;
#[cfg(feature = "sim")]
pub mod sim;
pub mod ttl;

pub use api::{
    AccessMode, AckMode, AckRequest, BacklogQuotaFigures, ClientSink, ConsumerKey, ConsumerStats, Delivery, Gate,
    InitialCursor, KeySharedPolicy, LastMessage, LinkStats, LiveTap, MovedTo, ProducerKey, ProducerReady,
    ProducerRequest, ProducerStats, Publish, Receipt, SeekTo, SubscribeRequest, SubscriptionStats, SubscriptionType,
    TopicError, TopicErrorKind, TopicHandle, TopicLimits, TopicStats, Unsettled,
};
pub use clock::{Clock, SystemClock};
pub use nonpersistent::NonPersistentTopic;
pub use persistent::{ACK_PROPERTY_PREFIX, PersistentTopic, TopicDeps, TopicEvents, log_name};
pub use rates::{BrokerLimits, LimitsAbove, SharedLimiter, on_top};
pub use sharing::{
    AckListener, AckPart, AckRefusal, AckSetup, AckShareStats, AckSharing, SnapshotSetup, SnapshotSharing,
};
