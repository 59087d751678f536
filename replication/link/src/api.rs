//! What the link carries, as traits: whoever gives a payload its meaning implements one of them.
//!
//! Invariants: nothing here names a topic's insides; payloads are bytes. Every answer has a deadline, so an implementor
//! that waits too long is taken as not answering.
//! Failure: outcomes per item, never an error for a whole stream.
//! Must never know: who implements them.

use bytes::Bytes;
pub use meridian_topology::{Applied, SharedChange};
use meridian_topology::{Digests, Object, ObjectVersion, Summary};
use meridian_types::{Incarnation, Position, RegionId};
use std::future::Future;
use std::pin::Pin;
use tokio::sync::broadcast;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The objects that regions share.
pub trait ObjectStore: Send + Sync {
    /// One figure per bucket over everything that concerns the own region and this peer.
    fn digests(&self, peer: &str) -> Digests;

    /// What concerns both, of one bucket.
    fn listing(&self, peer: &str, bucket: u8) -> Vec<Summary>;

    /// The version of an object if it concerns both.
    fn shared(&self, peer: &str, key: &str) -> Option<ObjectVersion>;

    /// Place in the order of sending: what others hang on comes before them, and goes after them.
    fn rank(&self, key: &str) -> u8;

    /// Which of these a peer has in a greater version than is here.
    fn wanted(&self, from: &str, offered: &[Summary]) -> Vec<String>;

    /// Objects to send; those that do not concern both (any more) are left out.
    fn read<'a>(&'a self, peer: &'a str, keys: &'a [String]) -> BoxFuture<'a, Result<Vec<Object>, String>>;

    /// Takes an object over if its version is greater than what is here. Must be safe to repeat.
    fn apply<'a>(&'a self, from: &'a str, object: Object) -> BoxFuture<'a, Applied>;

    /// Changes from now on, also those that were taken over.
    fn changes(&self) -> broadcast::Receiver<SharedChange>;

    /// Everything that concerned this peer at that time (ms since 1970) is there in this version or a greater one.
    fn converged(&self, peer: &str, began_ms: u64);
}

/// A change of a subscription's acknowledgements, or its whole state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckDelta {
    /// Chosen by the sender, comes back with the outcome.
    pub token: u64,
    /// The topic (partition).
    pub topic: String,
    /// The subscription.
    pub subscription: String,
    /// The whole state.
    pub full: bool,
    /// What it holds.
    pub payload: Bytes,
}

impl AckDelta {
    /// Its bytes as they count against the window.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.topic.len() + self.subscription.len() + 16
    }
}

/// What became of a delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckOutcome {
    /// It is merged, durably.
    Stored,
    /// It can't be merged: the whole state is needed.
    Resync,
    /// Not possible now; send it (merged with what came meanwhile) again.
    Later(String),
    /// Not possible.
    Refused(String),
}

/// The state of acknowledgements. The sending side is asked for deltas whenever there is room, so that a slow peer makes
/// deltas merge instead of wait.
pub trait AckHandler: Send + Sync {
    /// Sending: the stream to a peer is there (again). Nothing sent before counts as confirmed.
    fn connected(&self, peer: &str);

    /// Sending: what is to go to a peer now, about `max_bytes` at most (the first whatever its size). Called when
    /// [`crate::RegionLink::acks_ready`] was called and after confirmations, until it answers nothing.
    fn take(&self, peer: &str, max_bytes: usize) -> Vec<AckDelta>;

    /// Sending: the outcome of one delta.
    fn confirmed(&self, peer: &str, token: u64, outcome: AckOutcome);

    /// Sending: the stream has ended; what is not confirmed has to be sent again.
    fn disconnected(&self, peer: &str);

    /// Sending: a peer asks for the whole state of a subscription; of all if `topic` is empty.
    fn resync(&self, peer: &str, topic: &str, subscription: &str);

    /// Receiving: merges deltas; one outcome each, in order.
    fn apply<'a>(&'a self, from: &'a str, deltas: Vec<AckDelta>) -> BoxFuture<'a, Vec<AckOutcome>>;
}

/// Why a handler did not do what a peer asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerRefusal {
    /// The same may work later.
    #[error("{0}")]
    Later(String),
    /// It will not work.
    #[error("{0}")]
    Never(String),
}

/// Steps of a fail-over.
pub trait FailoverHandler: Send + Sync {
    /// Does a step that a peer asks for.
    fn step<'a>(&'a self, from: &'a str, step: &'a str, body: Bytes) -> BoxFuture<'a, Result<Bytes, HandlerRefusal>>;
}

/// How far what came from one life of a topic elsewhere is stored here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginMark {
    /// Where it came from.
    pub region: RegionId,
    /// The life of the topic there.
    pub incarnation: Incarnation,
    /// Everything up to this position is stored.
    pub position: Position,
}

/// How far a topic is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPositions {
    /// The topic (partition).
    pub topic: String,
    /// Its life here.
    pub incarnation: Incarnation,
    /// Its last confirmed entry, `None` if it is empty.
    pub last: Option<Position>,
    /// Per origin.
    pub marks: Vec<OriginMark>,
    /// Why nothing is known.
    pub error: Option<String>,
}

/// Positions of topics.
pub trait PositionsHandler: Send + Sync {
    /// One answer per topic, in order.
    fn positions<'a>(&'a self, from: &'a str, topics: Vec<String>) -> BoxFuture<'a, Vec<TopicPositions>>;
}
