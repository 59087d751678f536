//! Parts to peers and from them.

use super::store::acks_from;
use super::{Share, Work};
use crate::api::{BoxFuture, TopicError};
use crate::persistent::PersistentTopic;
use crate::persistent::consuming::REPLICATED_PROPERTY;
use crate::sharing::{AckPart, AckRefusal, AckSetup, AckSharing};
use bytes::Bytes;
use meridian_cursors::exact::{AckState, Epoch, Received, SharedAcks, decode, encode};
use meridian_managed_ledger::InitialPosition;
use meridian_types::{Position, RegionId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest name of a subscription that a peer may bring.
const MAX_NAME_BYTES: usize = 1024;

fn later(error: TopicError) -> AckRefusal {
    AckRefusal::Later(error.to_string())
}

impl AckSharing for PersistentTopic {
    fn share_acks(&self, setup: AckSetup) {
        self.set_up_sharing(setup);
    }

    fn is_sharing(&self) -> bool {
        self.sharing.setup().is_some()
    }

    fn take_acks(&self, peer: RegionId, max_bytes: usize) -> Vec<AckPart> {
        let (now_ms, mut bytes, mut parts) = (self.now_ms(), 0, Vec::new());
        for share in self.sharing.all() {
            let mut acks = share.acks.lock();
            while bytes < max_bytes && acks.state().epoch() != Epoch::default() {
                let Some((version, part)) = acks.take(peer, now_ms) else { break };
                let payload = Bytes::from(encode(&part));
                bytes += payload.len() + share.name.len() + 16;
                parts.push(AckPart { subscription: share.name.to_string(), version, payload });
            }
        }
        parts
    }

    fn acks_confirmed(&self, peer: RegionId, subscription: &str, version: u64) {
        if let Some(share) = self.sharing.share(subscription) {
            share.acks.lock().confirm(peer, version);
        }
    }

    fn acks_lost(&self, peer: RegionId) {
        for share in self.sharing.all() {
            share.acks.lock().lost(peer);
        }
        self.sharing.wake();
    }

    fn relay_acks_now(&self, peer: RegionId) {
        let mut any = false;
        for share in self.sharing.all() {
            any |= share.acks.lock().relay_now(peer);
        }
        if any {
            self.sharing.wake();
        }
    }

    fn resync_acks(&self, peer: RegionId, subscription: Option<&str>) {
        let now_ms = self.now_ms();
        for share in self.sharing.all() {
            if subscription.is_none_or(|name| *share.name == *name) {
                share.acks.lock().resync(peer, now_ms);
            }
        }
        self.sharing.wake();
    }

    fn receive_acks(
        &self,
        from: RegionId,
        subscription: String,
        payload: Bytes,
    ) -> BoxFuture<'_, Result<(), AckRefusal>> {
        Box::pin(async move {
            let part = decode(&payload).map_err(|error| AckRefusal::Never(error.to_string()))?;
            if subscription.is_empty() || subscription.len() > MAX_NAME_BYTES {
                return Err(AckRefusal::Never("no name of a subscription".to_owned()));
            }
            let setup = self.sharing.setup().ok_or_else(|| AckRefusal::Later("not shared here yet".to_owned()))?;
            if !setup.peers.contains(&from) {
                return Err(AckRefusal::Later("the topic is not shared with that region here".to_owned()));
            }
            self.refuse_if_closed().map_err(later)?;
            self.receive(from, &subscription, &part, &setup).await
        })
    }
}

impl PersistentTopic {
    fn share_or_new(&self, name: &str, setup: &AckSetup) -> Arc<Share> {
        if let Some(share) = self.sharing.share(name) {
            return share;
        }
        if let Some(subscription) = self.subscription(name).filter(|one| one.durable) {
            return self.attach_stored(&subscription, setup);
        }
        let acks = SharedAcks::new(setup.region, AckState::default(), setup.limits);
        self.add_share(Share::new(name.into(), acks, acks_from(Position::EARLIEST), true), None, setup)
    }

    async fn receive(&self, from: RegionId, name: &str, part: &AckState, setup: &AckSetup) -> Result<(), AckRefusal> {
        let share = self.share_or_new(name, setup);
        // Epochs only grow: one that is not newer now will not be.
        let turn = if part.epoch() > share.epoch() { Some(self.changes.lock().await) } else { None };
        let mut work = share.work.lock().await;
        let received = share.acks.lock().receive(from, part, self.now_ms());
        let received = received.map_err(|error| AckRefusal::Later(error.to_string()))?;
        match received {
            Received::Known => {
                // What is known may not be stored yet.
                if work.dirty {
                    self.store_known(&share, &mut work).await?;
                }
            }
            Received::Behind => {}
            Received::Learned(new) => {
                work.dirty = true;
                if let Some(subscription) = self.subscription(name).filter(|_| work.applied) {
                    work.reapply |= !self.apply(&subscription, &new, setup).await.map_err(later)?;
                }
                self.store_known(&share, &mut work).await?;
            }
            Received::Outlived => {
                work.dirty = true;
                self.store_known(&share, &mut work).await?;
            }
            Received::Adopted => self.adopt(&share, &mut work).await?,
        }
        drop((work, turn));
        self.sharing.wake();
        Ok(())
    }

    async fn store_known(&self, share: &Share, work: &mut Work) -> Result<(), AckRefusal> {
        match self.subscription(&share.name) {
            Some(subscription) => self.store_acks(&subscription, share, work).await.map_err(later),
            None if share.is_deleted() => self.store_tombstone(share).await.map_err(later),
            None => Err(AckRefusal::Later("the subscription is being created".to_owned())),
        }
    }

    /// E4. The topic's `changes` are held.
    async fn adopt(&self, share: &Arc<Share>, work: &mut Work) -> Result<(), AckRefusal> {
        if share.is_deleted() {
            // The next round deletes the subscription.
            return self.store_tombstone(share).await.map_err(later);
        }
        share.set_applied(work, false);
        let subscription = match self.subscription(&share.name) {
            Some(subscription) if !subscription.durable => {
                return Err(AckRefusal::Later("a reader has the subscription's name".to_owned()));
            }
            Some(subscription) => {
                self.mark_replicated(&subscription).await.map_err(later)?;
                subscription
            }
            None => {
                let properties = BTreeMap::from([(REPLICATED_PROPERTY.to_owned(), "1".to_owned())]);
                let created = self.create_locked(&share.name, true, InitialPosition::Earliest, properties).await;
                created.map_err(later)?
            }
        };
        // Who comes before the next round has applied the state waits: he would be closed by it, and see again what he
        // has not acknowledged yet.
        self.fence(&subscription);
        subscription.set_share(Some(share.clone()));
        self.store_acks(&subscription, share, work).await.map_err(later)?;
        self.drop_tombstone(&share.name).await.map_err(later)
    }
}
