//! Keeping what is shared over restarts.
//!
//! Role: a subscription's state stands in a property of its cursor, a deleted one's in a property of the log.
//! Failure: a stored state that can't be read is as none: the subscription begins anew with what its cursor says, and a
//! peer that knows more tells it.

use super::{Share, TOMBSTONES_MAX, Work};
use crate::api::TopicError;
use crate::persistent::PersistentTopic;
use crate::persistent::consuming::REPLICATED_PROPERTY;
use crate::persistent::deduplicating::{from_hex, to_hex};
use crate::persistent::subscription::Subscription;
use crate::sharing::AckSetup;
use meridian_cursors::exact::{AckState, Epoch, SharedAcks, StoredAcks};
use meridian_managed_ledger::CursorAcks;
use meridian_types::Position;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Property of a cursor with the shared state, as hexadecimal digits.
pub(in crate::persistent) const ACKS_PROPERTY: &str = "meridian.acks";
/// Properties of the log with the states of deleted subscriptions; the name follows.
const DELETED_PREFIX: &str = "meridian.acks.deleted.";
/// What nobody waits for is stored at most so often.
const STORE_EVERY_MS: u64 = 2000;

/// Nothing acknowledged up to a position.
pub(super) fn acks_from(mark_delete: Position) -> CursorAcks {
    CursorAcks { mark_delete, acked: BTreeMap::new(), partial: BTreeMap::new() }
}

impl PersistentTopic {
    /// Whether a subscription's acks are shared.
    pub(super) fn wants_sharing(&self, subscription: &Subscription, setup: &AckSetup) -> bool {
        let marked = || subscription.cursor.properties().get(REPLICATED_PROPERTY).is_some_and(|value| value == "1");
        subscription.durable && (setup.all || marked())
    }

    /// Shares a subscription that exists, with its stored state or as one that begins to be shared.
    pub(super) fn attach_stored(&self, subscription: &Arc<Subscription>, setup: &AckSetup) -> Arc<Share> {
        let stored = subscription.cursor.properties().remove(ACKS_PROPERTY).and_then(|text| {
            let raw = from_hex(&text)?;
            StoredAcks::decode(&raw)
                .inspect_err(|error| {
                    tracing::error!(topic = %self.name, subscription = %subscription.name, %error, "shared acks are unreadable");
                })
                .ok()
        });
        // Everything that the log still has and the cursor has acked is told, entry by entry.
        let stored = stored.unwrap_or_else(|| StoredAcks {
            state: AckState::new(Epoch::creation(self.now_ms(), setup.region)),
            applied: true,
            authored_to: Position::EARLIEST,
        });
        let acks = SharedAcks::new(setup.region, stored.state, setup.limits);
        let share = Share::new(subscription.name.clone(), acks, acks_from(stored.authored_to), stored.applied);
        self.add_share(share, Some(subscription), setup)
    }

    pub(super) fn load_tombstones(&self, setup: &AckSetup) {
        for (key, text) in self.log.properties() {
            let Some(name) = key.strip_prefix(DELETED_PREFIX) else { continue };
            let Some(Ok(stored)) = from_hex(&text).map(|raw| StoredAcks::decode(&raw)) else { continue };
            let acks = SharedAcks::new(setup.region, stored.state, setup.limits);
            let share = Share::new(name.into(), acks, acks_from(Position::EARLIEST), true);
            self.add_share(share, self.subscription(name).as_deref(), setup);
        }
    }

    /// Stores a share's state; durable when this returns.
    pub(super) async fn store_acks(
        &self,
        subscription: &Subscription,
        share: &Share,
        work: &mut Work,
    ) -> Result<(), TopicError> {
        let stored = StoredAcks {
            state: share.acks.lock().state().clone(),
            applied: work.applied,
            authored_to: work.authored.mark_delete,
        };
        let mut properties = subscription.cursor.properties();
        properties.insert(ACKS_PROPERTY.to_owned(), to_hex(&stored.encode()));
        subscription.cursor.set_properties(properties).await?;
        work.dirty = false;
        work.stored_ms = self.now_ms();
        Ok(())
    }

    pub(super) async fn store_if_due(
        &self,
        subscription: &Subscription,
        share: &Share,
        work: &mut Work,
    ) -> Result<(), TopicError> {
        if work.dirty && self.now_ms() >= work.stored_ms.saturating_add(STORE_EVERY_MS) {
            self.store_acks(subscription, share, work).await?;
        }
        Ok(())
    }

    /// Remembers a deletion; durable when this returns.
    pub(super) async fn store_tombstone(&self, share: &Share) -> Result<(), TopicError> {
        let stored =
            StoredAcks { state: share.acks.lock().state().clone(), applied: true, authored_to: Position::EARLIEST };
        let key = format!("{DELETED_PREFIX}{}", share.name);
        let too_many = self.drop_old_tombstones();
        let _turn = self.property_changes.lock().await;
        let mut properties = self.log.properties();
        properties.insert(key, to_hex(&stored.encode()));
        too_many.iter().for_each(|name| {
            properties.remove(&format!("{DELETED_PREFIX}{name}"));
        });
        Ok(self.log.set_properties(properties).await?)
    }

    /// The subscription exists again.
    pub(super) async fn drop_tombstone(&self, name: &str) -> Result<(), TopicError> {
        let _turn = self.property_changes.lock().await;
        let mut properties = self.log.properties();
        match properties.remove(&format!("{DELETED_PREFIX}{name}")) {
            Some(_) => Ok(self.log.set_properties(properties).await?),
            None => Ok(()),
        }
    }

    /// Over the limit the oldest are forgotten, those that all peers know first; their names.
    fn drop_old_tombstones(&self) -> Vec<Arc<str>> {
        let mut deleted: Vec<(bool, u64, Arc<str>)> = Vec::new();
        for share in self.sharing.all() {
            let acks = share.acks.lock();
            if acks.state().is_deleted() {
                deleted.push((!acks.is_settled(), acks.state().epoch().at_ms, share.name.clone()));
            }
        }
        deleted.sort_unstable();
        let many = deleted.len().saturating_sub(TOMBSTONES_MAX);
        let names: Vec<Arc<str>> = deleted.into_iter().take(many).map(|(_, _, name)| name).collect();
        let mut shares = self.sharing.shares.write();
        names.iter().for_each(|name| {
            shares.remove(name);
        });
        names
    }
}
