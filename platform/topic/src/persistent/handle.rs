//! The topic as sessions and the admin API see it.

use super::entries::publish_time_ms as publish_time_ms_of;
use super::{PersistentTopic, shared_limits};
use crate::api::{
    AckRequest, BoxFuture, ConsumerKey, ConsumerStats, Gate, LastMessage, ProducerKey, ProducerReady, ProducerRequest,
    Publish, SeekTo, StoredOrigin, SubscribeRequest, SubscriptionStats, TopicError, TopicHandle, TopicLimits,
    TopicStats, Unsettled,
};
use crate::compaction::CompactionStatus;
use crate::rates::LimitsAbove;
use crate::sharing::{AckSharing, SnapshotSharing};
use meridian_managed_ledger::LogEntry;
use meridian_types::{Position, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;

impl TopicHandle for PersistentTopic {
    fn name(&self) -> &TopicName {
        &self.name
    }

    fn add_producer(&self, request: ProducerRequest) -> BoxFuture<'_, Result<ProducerReady, TopicError>> {
        Box::pin(self.admit(request))
    }

    fn publish(&self, producer: ProducerKey, batch: Vec<Publish>) {
        self.publish_run(producer, batch);
    }

    fn remove_producer(&self, producer: ProducerKey) -> BoxFuture<'_, ()> {
        Box::pin(self.dismiss(producer))
    }

    fn subscribe(&self, request: SubscribeRequest) -> BoxFuture<'_, Result<ConsumerKey, TopicError>> {
        Box::pin(self.attach(request))
    }

    fn flow(&self, consumer: ConsumerKey, permits: u32) {
        self.add_permits(consumer, permits);
    }

    fn ack(&self, consumer: ConsumerKey, request: AckRequest) -> Option<BoxFuture<'static, Result<(), TopicError>>> {
        self.acknowledge(consumer, request)
    }

    fn redeliver(&self, consumer: ConsumerKey, ids: Vec<Position>, consumer_epoch: Option<u64>) {
        self.redeliver_to(consumer, &ids, consumer_epoch);
    }

    fn writable(&self, consumer: ConsumerKey) {
        self.resume(consumer);
    }

    fn remove_consumer(&self, consumer: ConsumerKey) -> BoxFuture<'_, ()> {
        Box::pin(self.detach(consumer))
    }

    fn unsubscribe(&self, consumer: ConsumerKey, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(self.unsubscribe_of(consumer, force))
    }

    fn seek(&self, consumer: ConsumerKey, to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(self.seek_of(consumer, to))
    }

    fn last_message(&self, consumer: ConsumerKey) -> BoxFuture<'_, Result<LastMessage, TopicError>> {
        Box::pin(self.last_of(consumer))
    }

    fn consumer_stats(&self, consumer: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        self.figures_of(consumer)
    }

    fn set_gate(&self, gate: Gate) {
        self.change_gate(gate);
    }

    fn origin_marks(&self) -> BoxFuture<'_, Result<Vec<StoredOrigin>, TopicError>> {
        Box::pin(self.stored_origin_marks())
    }

    fn close_links(&self) {
        self.with_producers(|side| side.core.close_links());
    }

    fn unsettled(&self) -> Unsettled {
        self.still_unsettled()
    }

    fn stats(&self) -> TopicStats {
        self.figures()
    }

    fn published(&self) -> (u64, u64) {
        self.published_rate()
    }

    fn ack_sharing(&self) -> Option<Arc<dyn AckSharing>> {
        self.me.upgrade().map(|topic| topic as Arc<dyn AckSharing>)
    }

    fn snapshot_sharing(&self) -> Option<Arc<dyn SnapshotSharing>> {
        self.me.upgrade().map(|topic| topic as Arc<dyn SnapshotSharing>)
    }

    fn set_limits(&self, limits: TopicLimits) {
        let limits = shared_limits(limits);
        *self.limits.write() = limits.clone();
        self.follow_dedup_limit();
        self.follow_publish_rate(limits.publish_rate);
        if let Some(limiter) = self.dispatch_limit.get() {
            limiter.set_rate(self.dispatch_rate_now(limits.topic_dispatch_rate, limits.topic_dispatch_relative));
        }
        let shared = self.shared_dispatch_limits(&limits);
        for subscription in self.connected_subscriptions() {
            let limits = self.dispatch_limits(&limits, subscription.durable);
            subscription.with_core(self, |active, _| active.core.set_limits(limits, shared.clone()));
        }
    }

    fn limits_pending(&self) -> bool {
        self.dedup_pending()
    }

    fn limits_in_force(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.put_dedup_in_force())
    }

    fn set_limits_above(&self, above: LimitsAbove) {
        self.follow_above(above);
    }

    fn set_hold(&self, reason: Option<Arc<str>>) {
        self.follow_hold(reason);
    }

    fn tick(&self, now_ms: u64) {
        self.every_second(now_ms);
    }

    fn create_subscription(
        &self,
        name: String,
        at: SeekTo,
        properties: BTreeMap<String, String>,
        replicated: bool,
    ) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.create_named(&name, at, properties, replicated).await })
    }

    fn set_subscription_replicated(&self, name: String, replicated: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.set_replicated(&name, replicated).await })
    }

    fn delete_subscription(&self, name: String, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.delete_named(&name, force).await })
    }

    fn reset_subscription(&self, name: String, to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.reset_named(&name, to).await })
    }

    fn skip(&self, name: String, entries: Option<u64>) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.skip_named(&name, entries).await })
    }

    fn expire(&self, name: String, older_than_s: u64) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { self.expire_named(&name, older_than_s).await })
    }

    fn peek(&self, name: String, nth: u64) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        Box::pin(async move { self.peek_named(&name, nth).await })
    }

    fn entry(&self, position: Position) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        Box::pin(self.entry_at(position))
    }

    fn position_at(&self, publish_time_ms: u64) -> BoxFuture<'_, Result<Position, TopicError>> {
        Box::pin(async move { Ok(self.log.find_by_time(publish_time_ms, &publish_time_ms_of).await?) })
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { self.start_compaction() })
    }

    fn compaction_status(&self) -> CompactionStatus {
        self.compaction()
    }

    fn terminate(&self) -> BoxFuture<'_, Result<Position, TopicError>> {
        Box::pin(self.end())
    }

    fn last_position(&self) -> Position {
        self.log.last_confirmed()
    }

    fn trim(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move {
            self.log.trim(self.now_ms()).await?;
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(self.unload())
    }

    fn hand_over(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(self.unload_last())
    }

    fn delete(&self, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(self.remove(force))
    }
}
