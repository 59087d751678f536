//! One link of a topic to a remote region.
//!
//! Role: [`machine`] decides (pure: events and time in, effects out), [`Replicator`] is the shell that runs it over a
//! [`Source`] (the topic's log and the link's cursor) and a [`Remote`] (a producer in the other region). Topics that keep
//! nothing have [`live`] links.
//! Invariants: M1–M8 of [`machine`]. The cursor of a link is named `pulsar.repl.<remote>`, its producer
//! `pulsar.repl.<local>--><remote>`; an entry keeps the client's bytes and gets what [`meridian_wire::replicate`] says.
//! Failure: nothing ends a link but a stop; every trouble is a state with its reason, a count and another try.
//! Must never know: sessions of clients, policies.
#![forbid(unsafe_code)]

pub mod budget;
pub mod live;
pub mod machine;
mod pulsar;
pub mod remote;
mod replicator;
mod source;
pub mod stats;
#[cfg(test)]
mod testing;

pub use budget::ReadBudget;
pub use live::queue::{LiveEntry, LiveQueue};
pub use live::{LiveParts, LiveReplicator, LiveStats};
pub use machine::Bounds;
pub use machine::limit::{LinkLimits, NamespaceLimit, SharedLimit};
pub use machine::state::{Counters, LinkState};
pub use machine::words::SeenMarker;
pub use pulsar::{PulsarRemote, TopicMaker};
pub use remote::{LocalSchemas, MarkerSink, Remote, SchemaRegistrar, Session};
pub use replicator::{Clock, Replicator, ReplicatorParts, STOP_MS};
pub use source::{BoxFuture, LogSource, ReadRequest, Source, known_life};
pub use stats::ReplicatorStats;
