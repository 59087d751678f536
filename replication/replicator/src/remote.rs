//! Who a link talks to: a producer in another region, as the shell sees it.
//!
//! Implemented by [`crate::PulsarRemote`]; tests bring their own.
//! Must never know: logs, cursors, the machine's decisions.

use crate::machine::words::{OpenFailure, Outgoing, Peer, Receipt, SeenMarker, SendRefusal};
use crate::source::BoxFuture;
use bytes::Bytes;
use meridian_wire::proto::Schema;

/// What a session says, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// An entry is stored.
    Receipt(Receipt),
    /// A send was refused.
    Refused(SendRefusal),
    /// The last event: connection or producer are gone.
    Lost(String),
}

/// One life of a link's producer.
pub trait Session: Send {
    /// Who is there.
    fn peer(&self) -> Peer;
    /// Which life of the topic is there, if the peer says so: another one than before has nothing of what was sent.
    fn topic_life(&self) -> Option<u64> {
        None
    }
    /// Where, for statistics.
    fn address(&self) -> String;
    /// Sends behind everything sent before. Does not wait: how much is under way is the caller's bound.
    fn send(&mut self, entries: Vec<Outgoing>);
    /// The next events, as many as came together; meanwhile writes what could not be written at once. May be given up and
    /// called again. After [`SessionEvent::Lost`] it is not called.
    fn next(&mut self) -> BoxFuture<'_, Vec<SessionEvent>>;
    /// What registers schemas there while the session goes on.
    fn registrar(&self) -> Box<dyn SchemaRegistrar>;
    /// Ends it; nothing is waited for but the remote's word.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Registers schemas of the topic in another region.
pub trait SchemaRegistrar: Send + Sync {
    /// Registers a schema if it is new and compatible; answers its version there.
    fn bring(&self, schema: Schema) -> BoxFuture<'_, Result<Bytes, String>>;
}

/// The topic in another region.
pub trait Remote: Send + Sync {
    /// Connects, compares the topic's shape, opens the producer. `epoch` grows with every call, over all lives of a link;
    /// `generation` is part of the producer's name, 0 = the plain one.
    fn open(&self, epoch: u64, generation: u64) -> BoxFuture<'static, Result<Box<dyn Session>, OpenFailure>>;
}

/// The schemas of the topic here.
pub trait LocalSchemas: Send + Sync {
    /// The schema of a version as it stands in messages; `None` = there is no such version.
    fn schema(&self, version: Bytes) -> BoxFuture<'static, Result<Option<Schema>, String>>;
    /// The latest one, if the topic has any.
    fn latest(&self) -> BoxFuture<'static, Result<Option<Schema>, String>>;
}

/// Takes the replicated-subscription markers that came from the remote of a link. Called in the order of the log, once each;
/// must not block.
pub trait MarkerSink: Send + Sync {
    /// One marker.
    fn marker(&self, remote: &str, marker: SeenMarker);
}
