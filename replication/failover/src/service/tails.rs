//! Tails: set aside once, then listed, replayed or dropped by an operator.
//!
//! Invariants: R1 to R4 of [`crate::returning`].
//! Failure: setting aside is tried again at each beat, and links of the namespace wait for it.
//! Must never know: logs.

use super::FailoverService;
use crate::FailoverError;
use crate::keys;
use crate::record::Epoch;
use crate::returning::Tail;
use meridian_metadata::{BoxFuture, Condition};
use meridian_types::{NamespaceName, TopicName};

impl FailoverService {
    /// Sets aside what the active region never got (R2).
    pub(super) async fn set_aside(&self, namespace: &NamespaceName) {
        let Some(state) = self.state(namespace) else { return };
        let store = |tail: Tail| -> BoxFuture<'_, Result<(), FailoverError>> { Box::pin(self.store_tail(tail)) };
        if let Err(error) = self.host.cut_tails(namespace, &state.record, &store).await {
            tracing::warn!(%namespace, %error, "what a forced switch left behind is not set aside yet, trying again");
            return;
        }
        let _turn = self.changes.lock().await;
        let Some(mut now) = self.state(namespace).filter(|now| now.record.epoch == state.record.epoch) else { return };
        now.tail_pending = false;
        match self.save(namespace, &now).await {
            Ok(()) => {
                self.remember(namespace, now);
                tracing::info!(%namespace, epoch = %state.record.epoch, "what was not delivered is set aside");
            }
            Err(error) => tracing::warn!(%namespace, %error, "that tails are set aside could not be stored"),
        }
    }

    /// Stores a tail; the first one of an epoch stays (R4).
    ///
    /// # Errors
    /// What the store says.
    pub async fn store_tail(&self, tail: Tail) -> Result<(), FailoverError> {
        let key = keys::tail(&tail.topic, tail.epoch);
        if self.store.get(&key).await?.is_none() {
            self.store.put(&key, tail.encode(), Condition::Absent).await?;
        }
        Ok(())
    }

    /// Publishes a tail in the active region, each message labelled with where it stood.
    ///
    /// # Errors
    /// If there is none, or the active region does not take it; what was confirmed is remembered.
    pub async fn replay(&self, topic: &TopicName, epoch: Epoch) -> Result<Tail, FailoverError> {
        let mut tail = self.tail(topic, epoch).await?;
        if tail.is_over() {
            return Err(FailoverError::TailOver(topic.to_string()));
        }
        tail.replayed_to = Some(self.host.replay_tail(&tail).await?);
        self.finish(tail).await
    }

    /// Gives a tail up.
    ///
    /// # Errors
    /// If there is none.
    pub async fn drop_tail(&self, topic: &TopicName, epoch: Epoch) -> Result<Tail, FailoverError> {
        let mut tail = self.tail(topic, epoch).await?;
        tail.dropped = true;
        self.finish(tail).await
    }

    async fn finish(&self, tail: Tail) -> Result<Tail, FailoverError> {
        self.store.put(&keys::tail(&tail.topic, tail.epoch), tail.encode(), Condition::Any).await?;
        if tail.is_over() {
            self.host.release_tail(&tail).await?;
        }
        Ok(tail)
    }
}
