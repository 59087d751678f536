//! Moving a subscription: seek, reset, rollback at the start.

use super::PersistentTopic;
use super::entries::publish_time_ms;
use super::subscription::Subscription;
use crate::api::{ConsumerKey, SeekTo, TopicError, TopicErrorKind};
use meridian_types::Position;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a move ends: the first entry to deliver, and what of it is unacked if it is a batch.
struct Target {
    position: Position,
    batch_set: Option<Vec<u64>>,
}

impl PersistentTopic {
    /// Moves a consumer's subscription; all its consumers are closed first.
    pub(super) async fn seek_of(&self, consumer: ConsumerKey, to: SeekTo) -> Result<(), TopicError> {
        let not_found = || TopicError::new(TopicErrorKind::Metadata, "Consumer not found");
        let subscription = self.subscription_of(consumer).ok_or_else(not_found)?;
        self.move_to(&subscription, to).await
    }

    /// Moves a subscription: fence, close its consumers, reset the cursor, lift the fence.
    pub(super) async fn move_to(&self, subscription: &Arc<Subscription>, to: SeekTo) -> Result<(), TopicError> {
        if !self.fence(subscription) {
            return Err(TopicError::new(TopicErrorKind::Busy, "Failed to fence subscription"));
        }
        let result = self.reset_cursor(subscription, to).await;
        self.lift_fence(subscription);
        result
    }

    /// Lets consumers in again after a move.
    pub(super) fn lift_fence(&self, subscription: &Subscription) {
        {
            let mut state = subscription.state.lock();
            let last_confirmed = self.log.last_confirmed();
            state.fenced = false;
            state.highest_acked = last_confirmed;
            if let Some(active) = state.active.as_mut() {
                active.core.reset(subscription.start(self), last_confirmed);
            }
        }
        self.unfenced.notify_waiters();
    }

    /// Keeps consumers out and closes those that are in; `false` if that is under way already.
    pub(super) fn fence(&self, subscription: &Arc<Subscription>) -> bool {
        {
            let mut state = subscription.state.lock();
            if state.fenced || state.gone {
                return false;
            }
            state.fenced = true;
        }
        self.close_consumers(subscription, None);
        true
    }

    /// Drops all consumers of a subscription; `spare` is not told (its client knows).
    pub(super) fn close_consumers(&self, subscription: &Arc<Subscription>, spare: Option<ConsumerKey>) {
        let mut keys = Vec::new();
        {
            let mut state = subscription.state.lock();
            let first_unacked = subscription.start(self);
            let now_ms = self.now_ms();
            if let Some(active) = state.active.as_mut() {
                for peer in &active.peers {
                    if Some(peer.key) != spare {
                        self.dismiss_consumer(subscription, &*peer.sink, peer.consumer_id);
                    }
                    keys.push(peer.key);
                }
                for key in &keys {
                    active.remove(*key, now_ms, first_unacked);
                }
            }
        }
        let mut consumers = self.consumers.write();
        for key in keys {
            consumers.remove(&key);
        }
    }

    async fn reset_cursor(&self, subscription: &Arc<Subscription>, to: SeekTo) -> Result<(), TopicError> {
        let asked = match &to {
            SeekTo::Position(position, _) => Some(*position),
            SeekTo::PublishTime(_) => None,
        };
        let target = self.resolve(to).await?;
        self.snapshots.forget(&subscription.name);
        self.reset_shared(subscription, target.position, target.batch_set).await?;
        if subscription.compacted.load(Ordering::Relaxed) {
            // A time before everything kept is before the compacted view, too.
            let is_first = target.position == self.log.first_position();
            subscription.start_in_view(asked.unwrap_or(if is_first { Position::EARLIEST } else { target.position }));
        }
        Ok(())
    }

    async fn resolve(&self, to: SeekTo) -> Result<Target, TopicError> {
        Ok(match to {
            SeekTo::PublishTime(time_ms) => {
                let position = self.log.find_by_time(time_ms, &publish_time_ms).await?;
                Target { position, batch_set: None }
            }
            SeekTo::Position(position, set) => {
                let existing = self.existing(position);
                let batch_set = (existing == position && set.iter().any(|word| *word != 0)).then_some(set);
                Target { position: existing, batch_set }
            }
        })
    }

    /// The position itself, or the next that exists, or the end.
    pub(super) fn existing(&self, position: Position) -> Position {
        let end = self.log.last_confirmed().next_in_ledger();
        if position.ledger_id.0 < 0 {
            self.log.first_position()
        } else if position > end {
            end
        } else {
            self.log.next_valid(position)
        }
    }

    /// Goes back in time at the start of a consumer, if nobody else is connected. Errors are ignored: the consumer
    /// starts where the subscription stands.
    pub(super) async fn roll_back(&self, subscription: &Arc<Subscription>, seconds: u64) {
        if Subscription::connected_type(&subscription.state.lock()).is_some() {
            return;
        }
        let time_ms = self.now_ms().saturating_sub(seconds.saturating_mul(1000));
        if let Err(error) = self.move_to(subscription, SeekTo::PublishTime(time_ms)).await {
            tracing::info!(topic = %self.name, subscription = %subscription.name, %error, "rollback at start failed");
        }
    }
}
