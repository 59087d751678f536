//! One region's view of one subscription's acknowledgements, and what each peer is still to be told.
//!
//! Role: local acks come in as parts ([`SharedAcks::author`]), peers' as what they sent ([`SharedAcks::receive`]); for
//! each peer [`SharedAcks::take`] answers what to send next, until [`SharedAcks::confirm`] says that the peer has stored it.
//! Invariants: X1–X5 of the parent; H1 a part is confirmed to a peer only by who stored it: this type says what changed and
//! leaves storing to its owner; H2 a peer whose epoch is behind is told everything; H3 the deletion of an older life never
//! deletes a subscription that was created after it.
//! Failure: [`OverLimit`]; nothing of the refused part but its `upto`s is taken, and the refusal stays visible
//! ([`SharedAcks::refusing_since_ms`]) until something is taken again.
//! Must never know: clocks, positions of this region's log, how parts travel.

use super::epoch::{Epoch, Origin};
use super::outbox::{Lag, Outbox};
use super::state::{AckState, Ackedness};
use meridian_types::{Classify, ErrorClass, Position, RegionId};
use std::collections::BTreeMap;

/// Bounds of one subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the state at most.
    pub max_bytes: usize,
    /// Bytes of one part to send, about.
    pub max_delta_bytes: usize,
    /// Parts sent to one peer and not confirmed at most.
    pub max_in_flight: usize,
    /// What one peer told is passed on to others after so long.
    pub relay_after_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 512 << 10, max_delta_bytes: 64 << 10, max_in_flight: 4, relay_after_ms: 5000 }
    }
}

/// No room for more scattered acks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("acknowledgements of other regions take {bytes} bytes, the limit is {max_bytes}: no more are taken")]
pub struct OverLimit {
    /// What is held.
    pub bytes: usize,
    /// The limit.
    pub max_bytes: usize,
}

impl Classify for OverLimit {
    fn class(&self) -> ErrorClass {
        ErrorClass::Retry
    }
}

/// What came of a part that a peer sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// Nothing new: it may be confirmed.
    Known,
    /// New under the same epoch: to be stored, then confirmed, then applied.
    Learned(AckState),
    /// A higher epoch: to be stored, then confirmed; the subscription has to be moved to it (or deleted, or created).
    Adopted,
    /// It is of an older epoch: it may be confirmed, the peer is told the newer one.
    Behind,
    /// It deletes an older life of a subscription that was created after that: the epoch was raised over it. To be
    /// stored, then confirmed; the subscription stays as it is.
    Outlived,
}

/// See the head of the file.
#[derive(Debug)]
pub struct SharedAcks {
    own: RegionId,
    state: AckState,
    limits: Limits,
    peers: BTreeMap<RegionId, Outbox>,
    refusing_since_ms: Option<u64>,
    refused_total: u64,
}

impl SharedAcks {
    /// The state of region `own`, as created or loaded. Every peer added is told everything first.
    pub fn new(own: RegionId, state: AckState, limits: Limits) -> Self {
        Self { own, state, limits, peers: BTreeMap::new(), refusing_since_ms: None, refused_total: 0 }
    }

    /// This region.
    pub fn own(&self) -> RegionId {
        self.own
    }

    /// Its bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is known.
    pub fn state(&self) -> &AckState {
        &self.state
    }

    /// Whether an entry is acknowledged, by its origin.
    pub fn ackedness(&self, origin: Origin, position: Position) -> Ackedness<'_> {
        self.state.ackedness(origin, position)
    }

    /// Since when parts are refused for want of room.
    pub fn refusing_since_ms(&self) -> Option<u64> {
        self.refusing_since_ms
    }

    /// Parts refused for want of room.
    pub fn refused_total(&self) -> u64 {
        self.refused_total
    }

    /// Adds a peer; one that is known stays as it is.
    pub fn add_peer(&mut self, peer: RegionId, now_ms: u64) {
        self.peers.entry(peer).or_insert_with(|| Outbox::new(now_ms));
    }

    /// Removes a peer.
    pub fn remove_peer(&mut self, peer: RegionId) {
        self.peers.remove(&peer);
    }

    /// Peers.
    pub fn peers(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.peers.keys().copied()
    }

    /// The peer is away for long, came back, or lost what it had: it is told everything when it is there.
    pub fn resync(&mut self, peer: RegionId, now_ms: u64) {
        if let Some(outbox) = self.peers.get_mut(&peer) {
            outbox.reset(now_ms);
        }
    }

    /// The connection to the peer broke for a moment: what it did not confirm is sent again.
    pub fn lost(&mut self, peer: RegionId) {
        if let Some(outbox) = self.peers.get_mut(&peer) {
            outbox.lost();
        }
    }

    /// The peer is to know everything soon, what others told included; whether something was held back from it.
    pub fn relay_now(&mut self, peer: RegionId) -> bool {
        self.peers.get_mut(&peer).is_some_and(Outbox::relay_now)
    }

    /// Takes acks of this region. A part of another epoch is ignored: its entries were acknowledged before a move.
    /// Answers whether anything was new.
    ///
    /// # Errors
    /// [`OverLimit`]: the same part may be given again later.
    pub fn author(&mut self, part: &AckState, now_ms: u64) -> Result<bool, OverLimit> {
        if part.epoch() != self.state.epoch() || self.state.is_deleted() {
            return Ok(false);
        }
        let (new, result) = self.take_within_limit(part, now_ms);
        let changed = !new.is_empty();
        if changed {
            self.peers.values_mut().for_each(|outbox| outbox.push(&new, now_ms));
        }
        result.map(|()| changed)
    }

    /// Begins a new epoch: `cut` is what counts as acknowledged under it (its own epoch is ignored).
    pub fn raise(&mut self, cut: &AckState, at_ms: u64) -> Epoch {
        let epoch = self.state.epoch().next(at_ms, self.own);
        self.replace(cut.under(epoch), at_ms)
    }

    /// Begins with an epoch that is given: a subscription of which nothing is known was created.
    pub fn begin(&mut self, cut: &AckState, epoch: Epoch) {
        self.replace(cut.under(epoch), epoch.at_ms);
    }

    /// The subscription is deleted: a tombstone under a new epoch.
    pub fn delete(&mut self, at_ms: u64) -> Epoch {
        let epoch = self.state.epoch().next(at_ms, self.own);
        self.replace(AckState::tombstone(epoch), at_ms)
    }

    fn replace(&mut self, state: AckState, now_ms: u64) -> Epoch {
        self.state = state;
        self.peers.values_mut().for_each(|outbox| outbox.reset(now_ms));
        self.state.epoch()
    }

    /// Takes what a peer sent.
    ///
    /// # Errors
    /// [`OverLimit`]: it must not be confirmed; the peer sends it again.
    pub fn receive(&mut self, from: RegionId, part: &AckState, now_ms: u64) -> Result<Received, OverLimit> {
        if part.epoch() < self.state.epoch() {
            if let Some(outbox) = self.peers.get_mut(&from) {
                outbox.peer_is_behind(now_ms);
            }
            return Ok(Received::Behind);
        }
        if part.epoch() > self.state.epoch() {
            return self.adopt(from, part, now_ms);
        }
        let (new, result) = self.take_within_limit(part, now_ms);
        if !new.is_empty() {
            let others = self.peers.iter_mut().filter(|(peer, _)| **peer != from);
            others.for_each(|(_, outbox)| outbox.push_relay(&new, now_ms));
            if let Some(outbox) = self.peers.get_mut(&from) {
                outbox.credit(&self.state);
            }
        }
        result?;
        Ok(if new.is_empty() { Received::Known } else { Received::Learned(new) })
    }

    fn adopt(&mut self, from: RegionId, part: &AckState, now_ms: u64) -> Result<Received, OverLimit> {
        let ours = self.state.epoch();
        if part.is_deleted() && ours.is_creation() && ours.at_ms > part.epoch().at_ms {
            let epoch = part.epoch().next(now_ms, self.own);
            let state = self.state.under(epoch);
            self.replace(state, now_ms);
            return Ok(Received::Outlived);
        }
        let bytes = part.bytes();
        if bytes > self.limits.max_bytes {
            return Err(self.refuse(bytes, now_ms));
        }
        self.refusing_since_ms = None;
        self.state = part.clone();
        for (peer, outbox) in &mut self.peers {
            match *peer == from {
                // It has what it sent, and the rest of its state is on its way.
                true => outbox.settle_under(part),
                false => outbox.reset(now_ms),
            }
        }
        Ok(Received::Adopted)
    }

    /// X5: over the limit only what makes the state smaller is taken.
    fn take_within_limit(&mut self, part: &AckState, now_ms: u64) -> (AckState, Result<(), OverLimit>) {
        if self.state.bytes() + part.bytes() > self.limits.max_bytes {
            let mut trial = self.state.clone();
            trial.merge(part);
            let bytes = trial.bytes();
            if bytes > self.limits.max_bytes && bytes > self.state.bytes() {
                let new = self.state.merge(&part.uptos());
                return (new, Err(self.refuse(bytes, now_ms)));
            }
        }
        self.refusing_since_ms = None;
        (self.state.merge(part), Ok(()))
    }

    fn refuse(&mut self, bytes: usize, now_ms: u64) -> OverLimit {
        self.refused_total += 1;
        self.refusing_since_ms.get_or_insert(now_ms);
        OverLimit { bytes, max_bytes: self.limits.max_bytes }
    }

    /// Whether there is something to send to the peer.
    pub fn wants(&self, peer: RegionId, now_ms: u64) -> bool {
        let before_ms = now_ms.checked_sub(self.limits.relay_after_ms);
        self.peers.get(&peer).is_some_and(|outbox| outbox.wants(before_ms))
    }

    /// Whether time alone will make something due: what is passed on to others after a while.
    pub fn holds_back(&self, now_ms: u64) -> bool {
        let before_ms = now_ms.checked_sub(self.limits.relay_after_ms);
        self.peers.values().any(|outbox| outbox.holds_back(before_ms))
    }

    /// The next part to send to a peer, with the version to confirm; `None` if there is nothing or too much is in flight.
    pub fn take(&mut self, peer: RegionId, now_ms: u64) -> Option<(u64, AckState)> {
        let before_ms = now_ms.checked_sub(self.limits.relay_after_ms);
        self.peers.get_mut(&peer)?.take(&self.state, &self.limits, before_ms, now_ms)
    }

    /// The peer has stored a part.
    pub fn confirm(&mut self, peer: RegionId, version: u64) -> bool {
        let Some(outbox) = self.peers.get_mut(&peer) else { return false };
        let was_in_flight = outbox.confirm(version);
        outbox.credit(&self.state);
        was_in_flight
    }

    /// Whether every peer has confirmed everything.
    pub fn is_settled(&self) -> bool {
        self.peers.values().all(Outbox::is_idle)
    }

    /// How far a peer is behind.
    pub fn lag(&self, peer: RegionId) -> Lag {
        self.peers.get(&peer).map_or(Lag::default(), |outbox| outbox.lag(&self.state))
    }

    /// Everything of an origin up to here is known to be acknowledged by the peer, under this epoch.
    pub fn confirmed_upto(&self, peer: RegionId, origin: Origin) -> Position {
        self.peers.get(&peer).map_or(Position::EARLIEST, |outbox| outbox.confirmed_upto(origin))
    }

    /// Forgets an origin of which no region holds messages.
    pub fn forget(&mut self, origin: Origin) {
        self.state.forget(origin);
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
