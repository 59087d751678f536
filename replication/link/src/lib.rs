//! The region link between regions.
//!
//! Role: one gRPC service per region ([`RegionLink::serve`]) and one connection to each peer
//! ([`RegionLink::set_peers`]), over mutual TLS. It carries objects that regions share until both have the same
//! ([`ObjectStore`]), states of acknowledgements ([`AckHandler`]), steps of a fail-over ([`FailoverHandler`]) and
//! positions of topics ([`PositionsHandler`]); what a payload means is known to those who implement these.
//! Invariants:
//! - N1 a call is answered only if its region is registered here and either both sides have shown a certificate that the
//!   other trusts, or the region's entry says `http://`.
//! - N2 a connection that is cut silently is noticed within 15 s, and dialled again by itself, for ever.
//! - N3 every queue has a bound: what does not fit is compared or asked for again, never kept.
//! - N4 a region that was away is brought up to date by the next comparison, whatever it missed.
//!
//! Failure: [`LinkError`] for calls; a peer's state says since when it is what it is, and why ([`PeerStatus`]).
//! Must never know: topics, policies, subscriptions.
#![forbid(unsafe_code)]

pub mod api;
mod backoff;
mod config;
mod convert;
mod discover;
mod error;
mod link;
mod peer;
mod secure;
mod server;
mod status;
mod sync;

/// Generated messages, client and server.
#[allow(missing_docs, reason = "generated; described in the .proto file")]
#[allow(clippy::all, clippy::wildcard_imports, clippy::unwrap_used, reason = "generated")]
pub mod proto {
    tonic::include_proto!("meridian.link.v1");
}

pub use api::{
    AckDelta, AckHandler, AckOutcome, Applied, FailoverHandler, HandlerRefusal, ObjectStore, OriginMark,
    PositionsHandler, SharedChange, TopicPositions,
};
pub use config::{LinkConfig, LinkTimes, LinkTls};
pub use error::LinkError;
pub use link::RegionLink;
pub use status::{AckStatus, IncomingStatus, PeerState, PeerStatus, SyncStatus};
