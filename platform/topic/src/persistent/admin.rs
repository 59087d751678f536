//! Calls of the admin API, and what clients ask about a topic.

use super::PersistentTopic;
use super::consuming::{REPLICATED_PROPERTY, at};
use super::entries::{last_batch_index, publish_time_ms};
use super::subscription::Subscription;
use crate::api::{ConsumerKey, LastMessage, SeekTo, SubscriptionType, TopicError, TopicErrorKind};
use meridian_managed_ledger::{InitialPosition, LogEntry};
use meridian_types::Position;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Markers that are skipped when looking for the last message.
const MARKERS_SKIPPED_MAX: usize = 10_000;

impl PersistentTopic {
    fn must_find(&self, name: &str) -> Result<Arc<Subscription>, TopicError> {
        self.subscription(name).ok_or_else(|| {
            TopicError::new(TopicErrorKind::SubscriptionNotFound, format!("Subscription {name} not found"))
        })
    }

    pub(super) async fn create_named(
        &self,
        name: &str,
        to: SeekTo,
        mut properties: BTreeMap<String, String>,
        replicated: bool,
    ) -> Result<(), TopicError> {
        self.refuse_if_closed()?;
        if self.subscription(name).is_some() {
            return Err(TopicError::new(TopicErrorKind::Busy, "Subscription already exists for topic"));
        }
        if replicated {
            properties.insert(REPLICATED_PROPERTY.to_owned(), "1".to_owned());
        }
        let (initial, batch) = match to {
            SeekTo::Position(position, set) if set.is_empty() => (at(position), None),
            SeekTo::Position(position, set) => (at(position), Some(SeekTo::Position(position, set))),
            SeekTo::PublishTime(time_ms) => {
                (InitialPosition::At(self.log.find_by_time(time_ms, &publish_time_ms).await?), None)
            }
        };
        let subscription = self.create(name, true, initial, properties).await?;
        match batch {
            Some(to) => self.move_to(&subscription, to).await,
            None => Ok(()),
        }
    }

    pub(super) async fn set_replicated(&self, name: &str, replicated: bool) -> Result<(), TopicError> {
        self.refuse_if_closed()?;
        let _turn = self.changes.lock().await;
        let subscription = self.must_find(name)?;
        match replicated {
            true => self.mark_replicated(&subscription).await,
            false => self.unmark_replicated(&subscription).await,
        }
    }

    pub(super) async fn unsubscribe_of(&self, consumer: ConsumerKey, force: bool) -> Result<(), TopicError> {
        let not_found = || TopicError::new(TopicErrorKind::Metadata, "Consumer not found");
        let subscription = self.subscription_of(consumer).ok_or_else(not_found)?;
        if !force && !may_unsubscribe(&subscription, consumer) {
            let message = "Unconnected or shared consumer attempting to unsubscribe";
            return Err(TopicError::new(TopicErrorKind::Metadata, message));
        }
        self.delete_with(&subscription, Some(consumer)).await
    }

    pub(super) async fn delete_named(&self, name: &str, force: bool) -> Result<(), TopicError> {
        let subscription = self.must_find(name)?;
        if !force && Subscription::connected_type(&subscription.state.lock()).is_some() {
            return Err(TopicError::new(TopicErrorKind::Busy, "Subscription has active connected consumers"));
        }
        self.delete_with(&subscription, None).await
    }

    pub(super) async fn delete_with(
        &self,
        subscription: &Arc<Subscription>,
        spare: Option<ConsumerKey>,
    ) -> Result<(), TopicError> {
        let _turn = self.changes.lock().await;
        {
            let mut state = subscription.state.lock();
            if state.fenced || state.gone {
                return Err(TopicError::new(TopicErrorKind::ServiceNotReady, "Subscription is fenced"));
            }
            state.fenced = true;
        }
        let result = match self.bury(subscription).await {
            Ok(()) => self.log.delete_cursor(&subscription.name).await.map_err(TopicError::from),
            Err(error) => Err(error),
        };
        let done = result.is_ok();
        {
            let mut state = subscription.state.lock();
            state.fenced = done;
            state.gone = done;
            subscription.run(self, &mut state);
        }
        if done {
            self.close_consumers(subscription, spare);
            self.subscriptions.write().remove(&*subscription.name);
        }
        self.unfenced.notify_waiters();
        result
    }

    pub(super) async fn reset_named(&self, name: &str, to: SeekTo) -> Result<(), TopicError> {
        let subscription = self.must_find(name)?;
        self.move_to(&subscription, to).await
    }

    pub(super) async fn skip_named(&self, name: &str, entries: Option<u64>) -> Result<(), TopicError> {
        let subscription = self.must_find(name)?;
        match entries {
            Some(entries) => subscription.cursor.skip(entries).await?,
            None => subscription.cursor.clear_backlog().await?,
        };
        self.acked_by_others(&subscription);
        self.sharing.wake();
        Ok(())
    }

    /// Entries were acked, but not by consumers: what is held and what waits follows.
    pub(super) fn acked_by_others(&self, subscription: &Arc<Subscription>) {
        let mut state = subscription.state.lock();
        state.highest_acked = self.log.last_confirmed();
        let cursor = subscription.cursor.clone();
        if let Some(active) = state.active.as_mut() {
            active.core.purge(&|position| cursor.is_acked(position));
            active.core.skip_to(cursor.read_start());
        }
        subscription.run(self, &mut state);
    }

    pub(super) async fn peek_named(&self, name: &str, nth: u64) -> Result<Option<LogEntry>, TopicError> {
        let subscription = self.must_find(name)?;
        let mut from = subscription.cursor.read_start();
        let mut left = nth.max(1);
        loop {
            let position = subscription.cursor.next_unacked(from);
            if position > self.log.last_confirmed() {
                return Ok(None);
            }
            let Some(entry) = self.log.read(position, 1, u64::MAX).await?.pop() else { return Ok(None) };
            from = entry.position.next_in_ledger();
            if entry.marker || subscription.cursor.is_acked(entry.position) {
                continue;
            }
            left -= 1;
            if left == 0 {
                return Ok(Some(entry));
            }
        }
    }

    pub(super) async fn entry_at(&self, position: Position) -> Result<Option<LogEntry>, TopicError> {
        if position > self.log.last_confirmed() || position.ledger_id.0 < 0 || position.entry_id.0 < 0 {
            return Ok(None);
        }
        let found = self.log.read(position, 1, u64::MAX).await?.pop();
        Ok(found.filter(|entry| entry.position == position))
    }

    pub(super) async fn last_of(&self, consumer: ConsumerKey) -> Result<LastMessage, TopicError> {
        let not_found = || TopicError::new(TopicErrorKind::Metadata, "Consumer not found");
        let subscription = self.subscription_of(consumer).ok_or_else(not_found)?;
        let mark_delete = subscription.cursor.mark_delete();
        let mark_delete = (mark_delete.ledger_id.0 >= 0).then_some(mark_delete);
        let last = self.last_dispatchable().await?;
        let none = LastMessage { position: Position::EARLIEST, batch_index: -1, mark_delete };
        let last = last.map_or(none, |entry| LastMessage {
            position: entry.position,
            batch_index: last_batch_index(&entry),
            mark_delete,
        });
        if subscription.compacted.load(Ordering::Relaxed) { self.last_compacted(last).await } else { Ok(last) }
    }

    /// The last entry that a client may see.
    pub(super) async fn last_dispatchable(&self) -> Result<Option<LogEntry>, TopicError> {
        let mut position = self.log.last_confirmed();
        for _ in 0..MARKERS_SKIPPED_MAX {
            let Some(entry) = self.entry_at(position).await? else { return Ok(None) };
            if !entry.marker {
                return Ok(Some(entry));
            }
            position = self.log.previous(position);
        }
        Ok(None)
    }
}

/// The only consumer of its subscription (of a Failover subscription also the active one).
fn may_unsubscribe(subscription: &Subscription, consumer: ConsumerKey) -> bool {
    let state = subscription.state.lock();
    let Some(active) = state.active.as_ref() else { return false };
    let sole = active.peers.len() == 1 && active.peers[0].key == consumer;
    sole && (active.core.sub_type() != SubscriptionType::Failover || active.core.active() == Some(consumer))
}
