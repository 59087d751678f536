//! A topic that keeps nothing: what is published goes at once to who can take it, or is dropped.
//!
//! Role: [`TopicHandle`] wholly in memory: producers with the same rules as on stored topics, all four subscription
//! types, no backlog, no acknowledgement, nothing after a restart.
//! Invariants:
//! - N1 a receipt says that the broker took the message (0:0), not that anybody got it; receipts keep send order.
//! - N2, N3: see [`Fanout`].
//! - N4 nothing is queued: what a consumer without permits or with a full connection misses is counted and gone, so a
//!   topic's memory is bounded by its clients.
//! - N5 a copy for other regions is made of what tenants publish, never of what a link brought.
//! - N6 one short lock; under it clients are only told (they never call back), and nothing waits.
//!
//! Failure: calls that need something stored answer `NotAllowed`.
//! Must never know: logs, cursors.

mod admin;
mod clients;
mod subscription;
mod throttling;

use crate::api::{
    AckRequest, BoxFuture, ClientSink, ConsumerKey, ConsumerStats, Delivery, LastMessage, LiveTap, ProducerKey,
    ProducerReady, ProducerRequest, Publish, SeekTo, SubscribeRequest, SubscriptionStats, TopicError, TopicErrorKind,
    TopicHandle, TopicLimits, TopicStats,
};
use crate::clock::Clock;
use crate::figures::{Client, ProducerRates};
use crate::producers::{ProducerEffect, Producers, PublishGate, Send};
use crate::rates::{BrokerLimits, LimitsAbove, Rate, SubscribeRates};
use bytes::Bytes;
use meridian_managed_ledger::{Appended, LogEntry};
use meridian_types::{Position, TopicName};
use meridian_wire::key::{NO_KEY, key_hash, sticky_hash};
use meridian_wire::payload::summarize;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use subscription::Fanout;

/// Where a message "is" that is kept nowhere.
const NOWHERE: Position = Position::new(0, 0);

/// A connected consumer beside its [`subscription::Member`].
struct Peer {
    key: ConsumerKey,
    sink: Arc<dyn ClientSink>,
    consumer_id: u64,
    consumer_epoch: Option<u64>,
    connected_ms: u64,
    metadata: BTreeMap<String, String>,
    rates: (Rate, Rate),
}

struct Subscription {
    durable: bool,
    fanout: Fanout,
    peers: Vec<Peer>,
    /// Of consumers that left.
    past_messages_out: u64,
    past_bytes_out: u64,
}

#[derive(Default)]
struct Totals {
    messages_in: u64,
    bytes_in: u64,
    rates: ProducerRates,
}

struct State {
    producers: Producers<Client>,
    gate: PublishGate,
    /// A timer will look at the gate.
    gate_timer_runs: bool,
    subscribe_rates: SubscribeRates,
    subscriptions: BTreeMap<String, Subscription>,
    /// Links of other regions, by region.
    taps: BTreeMap<String, Arc<dyn LiveTap>>,
    totals: Totals,
    limits: TopicLimits,
    is_closed: bool,
    last_activity_ms: u64,
}

/// A non-persistent topic.
pub struct NonPersistentTopic {
    name: TopicName,
    me: Weak<NonPersistentTopic>,
    shared: BrokerLimits,
    /// Limits of what the topic belongs to.
    above: RwLock<LimitsAbove>,
    clock: Arc<dyn Clock>,
    loaded_ms: u64,
    state: Mutex<State>,
}

fn refuse(kind: TopicErrorKind, message: impl Into<String>) -> TopicError {
    TopicError::new(kind, message)
}

fn key_of(payload: &[u8]) -> u32 {
    summarize(payload).map_or_else(|_| key_hash(NO_KEY), |summary| sticky_hash(&summary))
}

impl NonPersistentTopic {
    /// A topic without clients; `shared` are the rates of all topics of the process together.
    pub fn new(name: TopicName, limits: TopicLimits, shared: BrokerLimits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let now_ms = clock.now_ms();
        let state = State {
            producers: Producers::new(None),
            gate: PublishGate::new(limits.publish_rate),
            gate_timer_runs: false,
            subscribe_rates: SubscribeRates::default(),
            subscriptions: BTreeMap::new(),
            taps: BTreeMap::new(),
            totals: Totals::default(),
            limits,
            is_closed: false,
            last_activity_ms: now_ms,
        };
        Arc::new_cyclic(|me| Self {
            name,
            me: me.clone(),
            shared,
            above: RwLock::default(),
            clock,
            loaded_ms: now_ms,
            state: Mutex::new(state),
        })
    }

    /// What a send is refused for. Metadata is read only if a rule needs it. Whether a copy is encrypted was asked where it
    /// was sent.
    fn checked(publish: Publish, limits: &TopicLimits, is_copy: bool) -> Send {
        let too_large = limits.max_message_bytes != 0 && publish.payload.len() > limits.max_message_bytes as usize;
        let is_open = limits.encryption_required
            && !is_copy
            && !publish.marker
            && summarize(&publish.payload).is_ok_and(|summary| !summary.is_encrypted());
        let refusal = if too_large {
            Some(Box::new(refuse(TopicErrorKind::NotAllowed, "Exceed maximum message size")))
        } else if is_open {
            Some(Box::new(refuse(TopicErrorKind::Metadata, "Messages must be encrypted")))
        } else {
            None
        };
        Send { sequence: None, origin: None, author: None, refusal, publish }
    }
}

impl State {
    /// Tells clients what the producers' machine decided. What concerns `caller`, a call that still waits, is answered.
    fn run_producers(&mut self, caller: Option<ProducerKey>, now_ms: u64) -> Option<Result<ProducerReady, TopicError>> {
        let mut answer = None;
        while let Some(effect) = self.producers.next_effect() {
            match effect {
                ProducerEffect::Receipts { sink, producer_id, receipts } => sink.0.receipts(producer_id, &receipts),
                ProducerEffect::SendError { sink, producer_id, sequence_id, error } => {
                    sink.0.send_error(producer_id, sequence_id, error.kind, &error.message);
                }
                // There is nothing to keep it in, and nobody after a restart who could have an older one.
                ProducerEffect::PersistEpoch { key, epoch } => {
                    self.producers.epoch_persisted(key, epoch, Ok(()), now_ms);
                }
                ProducerEffect::Ready { ready, .. } if Some(ready.key) == caller => answer = Some(Ok(ready)),
                ProducerEffect::Ready { sink, producer_id, ready } => sink.0.producer_ready(producer_id, ready),
                ProducerEffect::Refused { key, error, .. } if Some(key) == caller => answer = Some(Err(error)),
                ProducerEffect::Refused { sink, producer_id, error, .. } => {
                    sink.0.producer_refused(producer_id, &error);
                }
                ProducerEffect::Close { sink, producer_id } | ProducerEffect::Moved { sink, producer_id } => {
                    sink.0.close_producer(producer_id);
                }
                ProducerEffect::Gone { .. } => {}
            }
        }
        answer
    }

    /// Hands a run of entries to every subscription, one delivery call for each consumer.
    fn fan_out(&mut self, entries: &[Delivery], messages: &[u32], now_ms: u64) {
        let hashes: Vec<u32> = match self.subscriptions.values().any(|sub| sub.fanout.needs_hash()) {
            true => entries.iter().map(|entry| key_of(&entry.payload)).collect(),
            false => Vec::new(),
        };
        for subscription in self.subscriptions.values_mut() {
            for member in subscription.fanout.members_mut() {
                let peer = subscription.peers.iter().find(|peer| peer.key == member.key);
                member.is_writable = peer.is_some_and(|peer| peer.sink.is_writable());
            }
            let mut out: Vec<Vec<Delivery>> = Vec::new();
            out.resize_with(subscription.fanout.members().len(), Vec::new);
            for (at, entry) in entries.iter().enumerate() {
                let hash = hashes.get(at).copied().unwrap_or(0);
                let bytes = entry.payload.len() as u64;
                if let Some(index) = subscription.fanout.give(hash, messages[at], bytes, now_ms) {
                    out[index].push(entry.clone());
                }
            }
            for (member, mut deliveries) in subscription.fanout.members().iter().zip(out) {
                let Some(peer) = subscription.peers.iter().find(|peer| peer.key == member.key) else { continue };
                if !deliveries.is_empty() {
                    deliveries.iter_mut().for_each(|delivery| delivery.consumer_epoch = peer.consumer_epoch);
                    peer.sink.deliver(peer.consumer_id, deliveries);
                }
            }
        }
    }

    /// N5.
    fn copy_out(&self, producer: ProducerKey, entries: &[Delivery], messages: &[u32]) {
        if self.taps.is_empty() || entries.is_empty() || self.producers.link(producer).is_some() {
            return;
        }
        let run: Vec<(Bytes, u32)> =
            entries.iter().zip(messages).map(|(entry, messages)| (entry.payload.clone(), *messages)).collect();
        self.taps.values().for_each(|tap| tap.offer(&run));
    }

    fn publish(&mut self, producer: ProducerKey, sends: Vec<Send>, now_us: u64, now_ms: u64) {
        let appends = self.producers.publish(producer, sends, now_us, now_ms);
        let mut index = self.totals.messages_in;
        let (mut entries, mut messages, mut confirmed) = (Vec::new(), Vec::new(), Vec::new());
        for append in appends {
            index += u64::from(append.messages);
            self.totals.bytes_in += append.payload.len() as u64;
            confirmed.push(Appended { token: append.token, position: NOWHERE, index, messages: append.messages });
            if append.marker {
                continue;
            }
            messages.push(append.messages);
            entries.push(Delivery {
                position: NOWHERE,
                redelivery_count: 0,
                ack_set: Vec::new(),
                consumer_epoch: None,
                index: index.saturating_sub(1),
                broker_time_ms: now_ms,
                payload: append.payload,
            });
        }
        self.totals.messages_in = index;
        self.copy_out(producer, &entries, &messages);
        self.fan_out(&entries, &messages, now_ms);
        self.producers.confirmed(&confirmed, now_us);
        self.last_activity_ms = now_ms;
        self.run_producers(None, now_ms);
    }
}

impl TopicHandle for NonPersistentTopic {
    fn name(&self) -> &TopicName {
        &self.name
    }

    fn add_producer(&self, request: ProducerRequest) -> BoxFuture<'_, Result<ProducerReady, TopicError>> {
        Box::pin(self.admit(request))
    }

    fn publish(&self, producer: ProducerKey, batch: Vec<Publish>) {
        let (now_us, now_ms) = (self.clock.monotonic_us(), self.clock.now_ms());
        let mut state = self.state.lock();
        let is_copy = state.producers.link(producer).is_some();
        let sends = batch.into_iter().map(|publish| Self::checked(publish, &state.limits, is_copy)).collect();
        let sends = self.through_gate(&mut state, producer, sends, now_ms);
        state.publish(producer, sends, now_us, now_ms);
    }

    fn remove_producer(&self, producer: ProducerKey) -> BoxFuture<'_, ()> {
        let mut state = self.state.lock();
        state.gate.forget(producer);
        state.producers.leave(producer);
        state.run_producers(None, self.clock.now_ms());
        Box::pin(std::future::ready(()))
    }

    fn subscribe(&self, request: SubscribeRequest) -> BoxFuture<'_, Result<ConsumerKey, TopicError>> {
        Box::pin(self.attach(request))
    }

    fn flow(&self, consumer: ConsumerKey, permits: u32) {
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        if let Some(member) = state.subscriptions.values_mut().find_map(|sub| sub.fanout.member_mut(consumer)) {
            member.permits = member.permits.saturating_add(i64::from(permits));
            member.counters.last_flow_ms = now_ms;
        }
    }

    /// There is nothing to acknowledge.
    fn ack(&self, _: ConsumerKey, _: AckRequest) -> Option<BoxFuture<'static, Result<(), TopicError>>> {
        None
    }

    /// There is nothing to deliver again.
    fn redeliver(&self, _: ConsumerKey, _: Vec<Position>, _: Option<u64>) {}

    /// Nothing waits for a connection.
    fn writable(&self, _: ConsumerKey) {}

    fn remove_consumer(&self, consumer: ConsumerKey) -> BoxFuture<'_, ()> {
        self.state.lock().detach(consumer);
        Box::pin(std::future::ready(()))
    }

    fn unsubscribe(&self, consumer: ConsumerKey, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(std::future::ready(self.state.lock().unsubscribe(consumer, force)))
    }

    /// There is nowhere to go: it succeeds and changes nothing.
    fn seek(&self, _: ConsumerKey, _: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn last_message(&self, _: ConsumerKey) -> BoxFuture<'_, Result<LastMessage, TopicError>> {
        let error = refuse(TopicErrorKind::Unknown, "A non-persistent topic has no last message");
        Box::pin(std::future::ready(Err(error)))
    }

    fn consumer_stats(&self, consumer: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        self.state.lock().consumer_stats(consumer)
    }

    fn stats(&self) -> TopicStats {
        self.figures()
    }

    fn set_limits(&self, limits: TopicLimits) {
        let mut state = self.state.lock();
        state.gate.set_rate(limits.publish_rate);
        state.limits = limits;
        self.release_held(&mut state);
    }

    fn set_limits_above(&self, above: LimitsAbove) {
        *self.above.write() = above;
        self.release_held(&mut self.state.lock());
    }

    fn set_tap(&self, region: &str, tap: Option<Arc<dyn LiveTap>>) {
        let mut state = self.state.lock();
        match tap {
            Some(tap) if !state.is_closed => drop(state.taps.insert(region.to_owned(), tap)),
            _ => drop(state.taps.remove(region)),
        }
    }

    fn close_links(&self) {
        let mut state = self.state.lock();
        state.producers.close_links();
        state.run_producers(None, self.clock.now_ms());
    }

    fn tick(&self, now_ms: u64) {
        self.state.lock().sample(now_ms);
    }

    fn create_subscription(
        &self,
        name: String,
        _: SeekTo,
        _: BTreeMap<String, String>,
        _: bool,
    ) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(std::future::ready(self.create(&name)))
    }

    fn set_subscription_replicated(&self, _: String, _: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        let message = "Cannot enable/disable replicated subscriptions on non-persistent topics";
        Box::pin(std::future::ready(Err(TopicError::new(TopicErrorKind::NotAllowed, message))))
    }

    fn delete_subscription(&self, name: String, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(std::future::ready(self.state.lock().delete(&name, force)))
    }

    fn reset_subscription(&self, _: String, _: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        admin::unsupported("Resetting a subscription")
    }

    fn skip(&self, _: String, _: Option<u64>) -> BoxFuture<'_, Result<(), TopicError>> {
        admin::unsupported("Skipping messages")
    }

    fn expire(&self, _: String, _: u64) -> BoxFuture<'_, Result<(), TopicError>> {
        admin::unsupported("Expiring messages")
    }

    fn peek(&self, _: String, _: u64) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        admin::unsupported("Peeking messages")
    }

    fn entry(&self, _: Position) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        admin::unsupported("Reading a message by its id")
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        admin::unsupported("Compaction")
    }

    fn terminate(&self) -> BoxFuture<'_, Result<Position, TopicError>> {
        admin::unsupported("Termination")
    }

    fn last_position(&self) -> Position {
        Position::EARLIEST
    }

    fn trim(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        admin::unsupported("Trimming")
    }

    fn close(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        self.state.lock().close(self.clock.now_ms());
        Box::pin(std::future::ready(Ok(())))
    }

    fn delete(&self, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(std::future::ready(self.state.lock().delete_topic(force, self.clock.now_ms())))
    }
}

#[cfg(test)]
mod tests;
