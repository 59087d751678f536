//! Acknowledgements shared between regions, as the owner of a topic sees it.
//!
//! Role: the owner says which regions take part ([`AckSetup`]), carries parts of states to them and brings theirs
//! ([`AckSharing`]). What a part means only the topic knows.
//! Invariants: R1 a part is answered `Ok` only when it is stored; R2 a part that was taken and is not confirmed comes again
//! after [`AckSharing::acks_lost`].
//! Failure: [`AckRefusal`], which says whether the same part may be brought again.
//! Must never know: names of regions, connections.

use crate::api::BoxFuture;
use bytes::Bytes;
use meridian_cursors::exact::{Lag, Limits};
use meridian_cursors::snapshot::{Figures, RoundsConfig};
use meridian_types::{Position, RegionId, TopicName};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Told that there is something to take. Called often and without locks of subscriptions; must not block.
pub trait AckListener: Send + Sync {
    /// [`AckSharing::take_acks`] of this topic has something.
    fn acks_ready(&self, topic: &TopicName);
}

/// Who takes part.
#[derive(Clone)]
pub struct AckSetup {
    /// This region.
    pub region: RegionId,
    /// The others.
    pub peers: BTreeSet<RegionId>,
    /// All durable subscriptions are shared, not only those whose clients ask for it.
    pub all: bool,
    /// Bounds of one subscription.
    pub limits: Limits,
    /// Who is told.
    pub listener: Arc<dyn AckListener>,
}

/// A part of a subscription's state, on its way to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckPart {
    /// The subscription.
    pub subscription: String,
    /// Comes back with the confirmation.
    pub version: u64,
    /// What it holds.
    pub payload: Bytes,
}

/// Why a part was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AckRefusal {
    /// The same may work later.
    #[error("{0}")]
    Later(String),
    /// It will not work.
    #[error("{0}")]
    Never(String),
}

/// Figures of a subscription whose state is shared.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct AckShareStats {
    /// How often the state began anew (seek, reset, deletion, creation).
    pub epoch: u64,
    /// The cursor follows the epoch.
    pub applied: bool,
    /// Everything that is acknowledged here is in the state.
    pub shared: bool,
    /// Entries held above what is acknowledged without a gap, of all origins.
    pub scattered_entries: u64,
    pub state_bytes: u64,
    pub limit_bytes: u64,
    /// Since when other regions' acks are not taken because the limit is reached, and how many parts were refused.
    pub refusing_since_ms: Option<u64>,
    pub refused_total: u64,
    /// How far each peer is behind; the entries are those that it would deliver again.
    pub peers: Vec<(RegionId, Lag)>,
}

/// What replicated subscriptions towards Apache Pulsar clusters need to know, told each second.
#[derive(Debug, Clone)]
pub struct SnapshotSetup {
    /// This region's name.
    pub own: String,
    /// The Pulsar clusters that the topic is replicated to.
    pub remotes: BTreeSet<String>,
    /// All of them are connected.
    pub connected: bool,
    /// Times and bounds.
    pub rounds: RoundsConfig,
    /// Snapshots kept per subscription.
    pub cached: usize,
}

/// Snapshots of subscriptions (PIP-33) of one topic.
pub trait SnapshotSharing: Send + Sync {
    /// Once a second while the topic has Pulsar clusters around.
    fn tick_snapshots(&self, setup: SnapshotSetup);
    /// A marker that came from a Pulsar cluster, by the number of its kind; `position` is its place here.
    fn subscription_marker(&self, setup: SnapshotSetup, kind: i32, entry: Bytes, position: Position);
    /// What happened so far; `None` = nothing to do with Pulsar clusters.
    fn snapshot_figures(&self) -> Option<Figures>;
}

/// The acknowledgements of one topic. See the head of the file.
pub trait AckSharing: Send + Sync {
    /// Puts a set-up in force; called when the topic is open and whenever something of it changes.
    fn share_acks(&self, setup: AckSetup);
    /// Whether a set-up is in force.
    fn is_sharing(&self) -> bool;
    /// What is to go to a peer now, about `max_bytes` at most.
    fn take_acks(&self, peer: RegionId, max_bytes: usize) -> Vec<AckPart>;
    /// The peer has stored a part.
    fn acks_confirmed(&self, peer: RegionId, subscription: &str, version: u64);
    /// What the peer did not confirm may be lost: it is to be taken again.
    fn acks_lost(&self, peer: RegionId);
    /// The peer takes over: what other peers told is not held back from it any longer.
    fn relay_acks_now(&self, peer: RegionId);
    /// The peer needs the whole state of a subscription, or of all.
    fn resync_acks(&self, peer: RegionId, subscription: Option<&str>);
    /// A part that a peer sent; answered when it is stored (R1).
    fn receive_acks(
        &self,
        from: RegionId,
        subscription: String,
        payload: Bytes,
    ) -> BoxFuture<'_, Result<(), AckRefusal>>;
}
