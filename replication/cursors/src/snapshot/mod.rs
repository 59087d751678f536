//! Replicated subscriptions as Apache Pulsar has them (PIP-33), for regions that are Pulsar clusters.
//!
//! Role: positions differ from region to region; a snapshot says "everything up to p here is everything up to q there". It
//! is made by asking all remotes for their last position by markers in the topic itself ([`SnapshotRounds`]); snapshots
//! are kept spread over a subscription's backlog ([`SnapshotCache`]), and when mark-delete passes one, an update tells the
//! remotes where the subscription stands there.
//!
//! Invariants:
//! - P1 A snapshot is made only of answers of every remote; with more than one remote only after a second round that
//!   began when the first was complete. The rounds have ids of their own, so an answer that is sent again never counts in
//!   a later round.
//! - P2 Of each remote the position of its first answer of the first round counts; the local position is that of the last
//!   answer of the last round.
//! - P3 Markers are bounded: none without a remote, none if nothing was published since the last snapshot began, none
//!   while a remote is not connected, one request per time-out until the first snapshot is complete.
//! - P4 An update moves a subscription forward only.
//!
//! Failure: unreadable markers are [`MarkerError`]s and are ignored by who reads them; what gets no answer times out and is
//! counted.
//! Must never know: how markers get into a log, clocks.

mod cache;
mod marker;
mod rounds;

pub use cache::SnapshotCache;
pub use marker::{ClusterPosition, MARKER_PRODUCER, Marker, MarkerError, MarkerType};
pub use rounds::{Figures, RoundsConfig, SnapshotRounds, Tick, ToWrite};
