//! Closing, deleting, terminating; the tick.

use super::PersistentTopic;
use super::consuming::REPLICATED_PROPERTY;
use super::subscription::Subscription;
use crate::api::{Gate, TopicError, TopicErrorKind};
use meridian_managed_ledger::LogError;
use meridian_types::Position;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So long after the last activity all rates have faded to zero and need no more samples.
const RATES_FADE_MS: u64 = 180_000;
/// So long after the last activity a topic gives back the room of its queues.
const REST_AFTER_MS: u64 = 10_000;
/// Ticks may be late by so much.
const REST_WITHIN_MS: u64 = 5_000;

impl PersistentTopic {
    /// Drops all clients, telling them.
    pub(super) fn close_clients(&self) {
        self.closed.store(true, Ordering::Release);
        self.with_producers(|side| side.core.close_all());
        for subscription in self.all_subscriptions() {
            subscription.state.lock().fenced = true;
            self.close_consumers(&subscription, None);
        }
        self.unfenced.notify_waiters();
        self.sharing.wake();
    }

    pub(super) fn all_subscriptions(&self) -> Vec<Arc<Subscription>> {
        self.subscriptions.read().values().cloned().collect()
    }

    /// Subscriptions with consumers.
    pub(super) fn connected_subscriptions(&self) -> Vec<Arc<Subscription>> {
        let mut connected: Vec<Arc<Subscription>> = self.consumers.read().values().cloned().collect();
        connected.sort_unstable_by_key(|subscription| Arc::as_ptr(subscription).addr());
        connected.dedup_by(|a, b| Arc::ptr_eq(a, b));
        connected
    }

    /// A reader that did not come back after a seek leaves its subscription behind.
    fn drop_abandoned_readers(&self) {
        let abandoned = |subscription: &Arc<Subscription>| {
            !subscription.durable && Subscription::connected_type(&subscription.state.lock()).is_none()
        };
        let readers: Vec<_> = self.all_subscriptions().into_iter().filter(abandoned).collect();
        let Some(topic) = self.me.upgrade().filter(|_| !readers.is_empty()) else { return };
        self.deps.runtime.spawn(async move {
            for reader in readers {
                topic.delete_if_idle(&reader).await;
            }
        });
    }

    /// Durable subscriptions that had no consumer and no ack for the policy's time go.
    fn drop_unused_subscriptions(&self, now_ms: u64) {
        let unused_ms = u64::from(self.limits.read().subscription_expiration_minutes) * 60_000;
        let Some(topic) = self.me.upgrade().filter(|_| unused_ms != 0) else { return };
        let is_unused = |subscription: &Arc<Subscription>| {
            let cursor = subscription.cursor.info();
            let state = subscription.state.lock();
            let last_ms = cursor.last_active_ms.max(state.last_client_ms).max(self.loaded_ms);
            let is_replicated = cursor.properties.contains_key(REPLICATED_PROPERTY);
            subscription.durable
                && !is_replicated
                && Subscription::connected_type(&state).is_none()
                && now_ms.saturating_sub(last_ms) > unused_ms
        };
        let unused: Vec<_> = self.all_subscriptions().into_iter().filter(is_unused).collect();
        if unused.is_empty() {
            return;
        }
        self.deps.runtime.spawn(async move {
            for subscription in unused {
                match topic.delete_named(&subscription.name, false).await {
                    Ok(()) => tracing::info!(
                        topic = %topic.name, subscription = %subscription.name, "deleted: nobody has used it"
                    ),
                    Err(error) => tracing::debug!(
                        topic = %topic.name, subscription = %subscription.name, %error, "an unused subscription stays"
                    ),
                }
            }
        });
    }

    pub(super) async fn unload(&self) -> Result<(), TopicError> {
        self.close_clients();
        let _turn = self.changes.lock().await;
        self.wait_for_data.lock().clear();
        match self.log.close().await {
            // Closed already, or another owner has it: there is nothing to flush.
            Err(LogError::Closed(_) | LogError::Fenced(_)) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Closes the log before clients are closed; those that send meanwhile send it again to the next broker.
    pub(super) async fn unload_last(&self) -> Result<(), TopicError> {
        self.change_gate(Gate::Held("the topic moves to another broker".into()));
        let closed = self.log.close().await;
        self.unload().await?;
        match closed {
            Err(LogError::Closed(_) | LogError::Fenced(_)) => Ok(()),
            result => Ok(result?),
        }
    }

    pub(super) async fn remove(&self, force: bool) -> Result<(), TopicError> {
        if !force {
            let producers = self.producers.lock().as_ref().is_some_and(|side| !side.core.is_unused());
            if producers || !self.consumers.read().is_empty() {
                return Err(TopicError::new(TopicErrorKind::Busy, "Topic has active producers/subscriptions"));
            }
        }
        self.close_clients();
        let _turn = self.changes.lock().await;
        self.wait_for_data.lock().clear();
        for subscription in self.all_subscriptions() {
            subscription.state.lock().gone = true;
        }
        Ok(self.log.delete().await?)
    }

    pub(super) async fn end(&self) -> Result<Position, TopicError> {
        let position = self.log.terminate().await?;
        self.terminated.store(true, Ordering::Release);
        self.with_producers(|side| side.core.close_all());
        for subscription in self.connected_subscriptions() {
            subscription.with_core(self, |active, _| self.announce_end(&subscription, active));
        }
        Ok(position)
    }

    /// Nothing happens for a while: queues that are empty keep no room.
    fn rest(&self) {
        if let Some(side) = self.producers.lock().as_mut() {
            side.core.rest();
        }
        for subscription in self.all_subscriptions() {
            if let Some(active) = subscription.state.lock().active.as_mut() {
                active.core.rest();
            }
        }
        self.answers.lock().shrink_to_fit();
        self.wait_for_data.lock().shrink_to_fit();
        self.log.rest();
    }

    pub(super) fn every_second(&self, now_ms: u64) {
        if self.is_closed() {
            return;
        }
        let quiet_ms = now_ms.saturating_sub(self.last_activity_ms.load(Ordering::Relaxed));
        if quiet_ms < RATES_FADE_MS {
            self.sample_rates(now_ms);
        }
        if (REST_AFTER_MS..REST_AFTER_MS + REST_WITHIN_MS).contains(&quiet_ms) {
            self.rest();
        }
        self.snapshot_if_due(now_ms);
        self.snapshot_origins_if_due(now_ms);
        if due(&self.next_expiry_ms, now_ms, self.deps.expiry_check_ms) {
            self.start_expiry(now_ms);
            self.drop_abandoned_readers();
            self.drop_unused_subscriptions(now_ms);
        }
        if due(&self.next_compaction_ms, now_ms, self.deps.compaction_check_ms) {
            self.compact_if_due();
        }
        if due(&self.next_quota_ms, now_ms, self.deps.quota_check_ms) {
            self.start_quota_check(now_ms);
        }
    }
}

/// Whether something that repeats is due; sets when it is due next.
fn due(next_ms: &std::sync::atomic::AtomicU64, now_ms: u64, every_ms: u64) -> bool {
    let is_due = next_ms.load(Ordering::Relaxed) <= now_ms;
    if is_due {
        next_ms.store(now_ms.saturating_add(every_ms.max(1)), Ordering::Relaxed);
    }
    is_due
}
