//! A small Pulsar client: connect, look up, produce, consume, reconnect (for replicators, tools, tests).
//!
//! ```text
//! Peer             who the peer is: service URL, credentials, TLS, limits            plain values
//! PeerPool         its connections, shared; lookup and the other questions           .owner(topic) → Connection
//! Connection       one connection: facts() of the broker, error(), ended()
//! LinkProducer     raw entries, pipelined, one owner, no reconnection                open(&connection, &LinkOptions)
//! LinkEvents       its receipts and errors in batches, in order; Closed is last      recv() → Option<Vec<LinkEvent>>
//! Producer         messages one by one, with reconnection                            send(message) → Stored
//! Consumer         entries one by one, with reconnection                             receive() → Received
//! ```
//!
//! A replicator asks [`PeerPool::owner`] for the connection to the broker that serves its topic, opens a [`LinkProducer`]
//! on it, and sends runs of entries with [`LinkProducer::try_send`] (at once or not at all) or [`LinkProducer::send`]
//! (waits for room) while it takes [`LinkEvents`]: room comes only when answers are taken, so one task may do both with
//! `try_send` and [`LinkProducer::writable`], or two tasks with `send`. After [`LinkEvent::Closed`] or an error it opens
//! another one when it wants; [`ClientError::BackingOff`] says when that makes sense.
//!
//! Invariants: every queue has a bound and every wait a deadline (see the modules); a peer that is cut off silently is
//! noticed within `keep_alive.interval_ms + keep_alive.timeout_ms` and a tick; an entry's bytes are sent and received as
//! they are; no secret is printed.
//! Failure: [`ClientError`], which says by its class who must act; [`ClientError::may_pass`] whether to try again.
//! Must never know: brokers' insides.
#![forbid(unsafe_code)]

pub mod address;
pub mod auth;
pub mod backoff;
mod connection;
pub mod consumer;
mod error;
pub mod keepalive;
pub mod link_producer;
pub mod peer;
pub mod pool;
pub mod producer;
pub mod requests;
pub mod tls;
mod window;

pub use address::{BrokerAddress, Endpoint, ServiceUrl};
pub use auth::Credentials;
pub use connection::{Connection, PeerFacts};
pub use consumer::{Consumer, ConsumerOptions, Received};
pub use error::ClientError;
pub use link_producer::{LinkEvent, LinkEvents, LinkOptions, LinkProducer, NotSent, OutgoingEntry};
pub use peer::{Peer, PeerLimits};
pub use pool::{ConnectionState, PeerPool, Phase};
pub use producer::{OutgoingMessage, Producer, ProducerOptions, Stored};
pub use requests::VersionedSchema;
pub use tls::TlsSettings;
pub use window::{LinkLimits, Room};
