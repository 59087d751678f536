//! Creation, seek, reset and deletion of shared subscriptions, here and elsewhere.
//!
//! Role: each begins a new epoch. A move here stores the new epoch first, then moves the cursor (E2); a move elsewhere is
//! followed by going through the log once with the new state.
//! A cut says of each origin which entries stand before the place moved to; of an origin that can't be found there nothing
//! is said, so all of it is delivered again: unknown means earliest, never latest.

use super::store::{ACKS_PROPERTY, acks_from};
use super::{Share, Work};
use crate::api::TopicError;
use crate::persistent::PersistentTopic;
use crate::persistent::consuming::REPLICATED_PROPERTY;
use crate::persistent::subscription::Subscription;
use crate::sharing::AckSetup;
use meridian_cursors::exact::{AckState, Epoch, Origin, SharedAcks};
use meridian_managed_ledger::LogError;
use meridian_types::{EntryId, Position};
use std::sync::Arc;

/// Entries before a place in which the origins are looked for.
const CUT_ENTRIES: i64 = 2000;
/// Ledgers that they may stand in.
const CUT_LEDGERS: usize = 8;

impl PersistentTopic {
    /// What counts as acknowledged if `first` is the first entry that does not.
    async fn cut_at(&self, first: Position, setup: &AckSetup) -> Result<AckState, LogError> {
        let mut cut = AckState::default();
        let before = self.log.previous(first);
        cut.raise_upto(self.own_origin(setup), before);
        let indexed = self.sharing.index.lock().as_ref().map(|index| index.last_before(first));
        indexed.into_iter().flatten().for_each(|(origin, last)| cut.raise_upto(origin, last));
        if !self.has_origins() {
            return Ok(cut);
        }
        let mut next = self.step_back(first);
        while next < first {
            let entries = self.log.read(next, CUT_ENTRIES as u32, u64::MAX).await?;
            let Some(last) = entries.last() else { break };
            next = last.position.next_in_ledger();
            for entry in entries.iter().filter(|entry| entry.position < first && !self.is_own(entry)) {
                let (region, incarnation, position) = entry.origin;
                cut.raise_upto(Origin::new(region, incarnation), position);
            }
        }
        Ok(cut)
    }

    /// About [`CUT_ENTRIES`] entries before a position.
    fn step_back(&self, from: Position) -> Position {
        let (mut at, mut left) = (from, CUT_ENTRIES);
        for _ in 0..CUT_LEDGERS {
            if at.entry_id.0 > left {
                return Position { entry_id: EntryId(at.entry_id.0 - left), ..at };
            }
            left -= at.entry_id.0.max(0);
            let before = self.log.previous(Position { entry_id: EntryId(0), ..at });
            if before.entry_id < EntryId(0) || before >= at {
                break;
            }
            at = before;
        }
        Position { entry_id: EntryId(0), ..at }
    }

    /// A subscription was created here, by a client or an administrator.
    pub(in crate::persistent) async fn share_created(
        &self,
        subscription: &Arc<Subscription>,
    ) -> Result<(), TopicError> {
        let Some(setup) = self.sharing.setup() else { return Ok(()) };
        if subscription.share().is_some() || !self.wants_sharing(subscription, &setup) {
            return Ok(());
        }
        let mark_delete = subscription.cursor.mark_delete();
        let cut = self.cut_at(mark_delete.next_in_ledger(), &setup).await?;
        let share = match self.sharing.share(&subscription.name) {
            // It was deleted before.
            Some(share) => share,
            None => {
                let acks = SharedAcks::new(setup.region, AckState::default(), setup.limits);
                Share::new(subscription.name.clone(), acks, acks_from(mark_delete), true)
            }
        };
        let mut work = share.work.lock().await;
        {
            let mut acks = share.acks.lock();
            match acks.state().is_deleted() {
                true => _ = acks.raise(&cut, self.now_ms()),
                false => acks.begin(&cut, Epoch::creation(self.now_ms(), setup.region)),
            }
        }
        work.authored = acks_from(mark_delete);
        work.generation = None;
        share.set_applied(&mut work, true);
        self.add_share(share.clone(), Some(subscription), &setup);
        self.store_acks(subscription, &share, &mut work).await?;
        self.drop_tombstone(&subscription.name).await
    }

    /// A subscription that exists begins to be shared.
    pub(in crate::persistent) fn share_existing(&self, subscription: &Arc<Subscription>) {
        if let Some(setup) = self.sharing.setup()
            && subscription.share().is_none()
        {
            self.attach_stored(subscription, &setup);
        }
    }

    /// A subscription is no longer shared, unless a policy shares all. What peers still send makes it shared again.
    pub(in crate::persistent) async fn unmark_replicated(
        &self,
        subscription: &Arc<Subscription>,
    ) -> Result<(), TopicError> {
        let mut properties = subscription.cursor.properties();
        properties.remove(REPLICATED_PROPERTY);
        let all = self.sharing.setup().is_some_and(|setup| setup.all);
        if !all {
            properties.remove(ACKS_PROPERTY);
            self.sharing.shares.write().remove(&subscription.name);
            subscription.set_share(None);
        }
        Ok(subscription.cursor.set_properties(properties).await?)
    }

    /// Moves a subscription that is fenced: the first entry to deliver, and what of it is unacked.
    pub(in crate::persistent) async fn reset_shared(
        &self,
        subscription: &Arc<Subscription>,
        to: Position,
        batch_set: Option<Vec<u64>>,
    ) -> Result<(), LogError> {
        let (Some(share), Some(setup)) = (subscription.share(), self.sharing.setup()) else {
            return subscription.cursor.reset(to, batch_set).await;
        };
        let mut work = share.work.lock().await;
        let cut = self.cut_at(to, &setup).await?;
        share.acks.lock().raise(&cut, self.now_ms());
        share.set_applied(&mut work, false);
        let failed = |error: TopicError| LogError::Corrupt(format!("the new epoch can't be stored: {error}"));
        self.store_acks(subscription, &share, &mut work).await.map_err(failed)?;
        subscription.cursor.reset(to, batch_set).await?;
        work.authored = acks_from(subscription.cursor.mark_delete());
        work.generation = None;
        share.set_applied(&mut work, true);
        self.restart_index_before(to);
        self.store_acks(subscription, &share, &mut work).await.map_err(failed)?;
        self.sharing.wake();
        Ok(())
    }

    /// The index has to reach back to a place.
    fn restart_index_before(&self, first: Position) {
        let mut index = self.sharing.index.lock();
        if index.as_ref().is_some_and(|index| index.from() > first) {
            *index = None;
        }
    }

    /// The subscription is going to be deleted here: the others learn it.
    pub(in crate::persistent) async fn bury(&self, subscription: &Subscription) -> Result<(), TopicError> {
        let Some(share) = subscription.share() else { return Ok(()) };
        let _work = share.work.lock().await;
        {
            let mut acks = share.acks.lock();
            if !acks.state().is_deleted() {
                acks.delete(self.now_ms());
            }
        }
        self.store_tombstone(&share).await?;
        self.sharing.wake();
        Ok(())
    }

    /// Another region deleted it.
    pub(super) async fn delete_shared(&self, subscription: &Arc<Subscription>) -> Result<(), TopicError> {
        tracing::info!(topic = %self.name, subscription = %subscription.name, "deleted, as in another region");
        self.delete_with(subscription, None).await
    }

    /// Another region moved it: everything begins anew with its state.
    pub(super) async fn follow_epoch(
        &self,
        subscription: &Arc<Subscription>,
        share: &Share,
        work: &mut Work,
    ) -> Result<(), TopicError> {
        // Fenced already if the part came just now.
        self.fence(subscription);
        let state = share.acks.lock().state().clone();
        subscription.cursor.reset(self.log.first_position(), None).await?;
        self.apply_everywhere(subscription, &state).await?;
        subscription.cursor.persisted().await?;
        if share.epoch() != state.epoch() {
            return Ok(());
        }
        (work.generation, work.authored) = match subscription.cursor.acks_since(None) {
            Some((generation, acks)) => (Some(generation), acks),
            None => (None, acks_from(subscription.cursor.mark_delete())),
        };
        work.reapply = true;
        share.set_applied(work, true);
        self.restart_index_before(subscription.cursor.read_start());
        self.store_acks(subscription, share, work).await?;
        self.lift_fence(subscription);
        Ok(())
    }
}
