//! Consumers: joining, permits, acknowledgements, redelivery, leaving.

use super::entries::count_unacked;
use super::subscription::{Active, Peer, State, Subscription};
use super::{PersistentTopic, next_key};
use crate::api::{
    AckMode, AckRequest, BoxFuture, ClientSink, ConsumerKey, InitialCursor, SubscribeRequest, SubscriptionType,
    TopicError, TopicErrorKind, TopicLimits,
};
use crate::dispatch::{Acked, ConsumerSpec, Dispatcher, Joining};
use meridian_managed_ledger::{AckPosition, CursorOptions, InitialPosition};
use meridian_types::Position;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Cursor property that marks a subscription whose state is replicated.
pub(super) const REPLICATED_PROPERTY: &str = "pulsar.replicated.subscription";

/// In front of the names of properties that came with a cumulative ack, among those of the cursor.
pub const ACK_PROPERTY_PREFIX: &str = "pulsar.ack.";

/// What came of an attempt to join.
enum Attempt {
    Joined,
    /// A seek or delete is under way.
    Fenced,
    /// It was deleted; look it up again.
    Gone,
    /// An exclusive consumer is there: is it alive?
    Taken(ConsumerKey, Arc<dyn ClientSink>),
}

fn refuse(kind: TopicErrorKind, message: impl Into<String>) -> TopicError {
    TopicError::new(kind, message)
}

impl PersistentTopic {
    /// Adds a consumer, its subscription first if it may be created.
    pub(super) async fn attach(&self, request: SubscribeRequest) -> Result<ConsumerKey, TopicError> {
        let limits = self.limits();
        self.check_subscribe(&request, &limits)?;
        self.check_subscribe_rate(&request, &limits)?;
        loop {
            self.refuse_if_closed()?;
            self.gate_for_consumer(request.durable)?;
            let is_new = request.read_compacted && self.subscription(&request.subscription).is_none();
            let subscription = self.find_or_create(&request).await?;
            if is_new {
                self.place_in_view(&subscription, &request);
            }
            if request.start_rollback_s > 0 {
                self.roll_back(&subscription, request.start_rollback_s).await;
            }
            let key = ConsumerKey(next_key());
            self.consumers.write().insert(key, subscription.clone());
            let attempt = self.try_join(&subscription, key, &request, &limits);
            if !matches!(attempt, Ok(Attempt::Joined)) {
                self.consumers.write().remove(&key);
            }
            match attempt? {
                Attempt::Joined => return self.keep_consumer_if_open(key, request.durable),
                Attempt::Gone => {}
                Attempt::Fenced => self.wait_for_unfencing(&subscription).await?,
                Attempt::Taken(holder, sink) => {
                    if sink.probe().await {
                        return Err(refuse(TopicErrorKind::ConsumerBusy, "Exclusive consumer is already connected"));
                    }
                    self.detach(holder).await;
                }
            }
        }
    }

    fn keep_consumer_if_open(&self, key: ConsumerKey, durable: bool) -> Result<ConsumerKey, TopicError> {
        let result = self.refuse_if_closed().and_then(|()| self.gate_for_consumer(durable));
        if result.is_err()
            && let Some(subscription) = self.consumers.write().remove(&key)
        {
            self.drop_consumer(&subscription, key);
        }
        result.map(|()| key)
    }

    fn check_subscribe(&self, request: &SubscribeRequest, limits: &TopicLimits) -> Result<(), TopicError> {
        let individual = matches!(request.sub_type, SubscriptionType::Shared | SubscriptionType::KeyShared);
        if request.subscription.is_empty() {
            return Err(refuse(TopicErrorKind::ProducerBusy, "Empty subscription name"));
        }
        if request.subscription.starts_with("pulsar.repl") || request.subscription == "pulsar.dedup" {
            let message = format!("Subscription with reserved subscription name attempted: {}", request.subscription);
            return Err(refuse(TopicErrorKind::ProducerBusy, message));
        }
        if request.read_compacted && individual {
            let message = "readCompacted only allowed on failover or exclusive subscriptions";
            return Err(refuse(TopicErrorKind::NotAllowed, message));
        }
        if !limits.allowed_types.is_empty() && !limits.allowed_types.contains(&request.sub_type) {
            let message = format!("Topic[{}] doesn't support {:?} sub type!", self.name, request.sub_type);
            return Err(refuse(TopicErrorKind::NotAllowed, message));
        }
        if limits.max_consumers != 0 && self.consumers.read().len() >= limits.max_consumers as usize {
            return Err(refuse(TopicErrorKind::ConsumerBusy, "Topic reached max consumers limit"));
        }
        Ok(())
    }

    fn check_subscribe_rate(&self, request: &SubscribeRequest, limits: &TopicLimits) -> Result<(), TopicError> {
        let mut rates = self.subscribe_rates.lock();
        if limits.subscribe_rate.0 == 0 {
            *rates = None;
            return Ok(());
        }
        rates.get_or_insert_default().check(request, limits.subscribe_rate, self.now_ms())
    }

    async fn wait_for_unfencing(&self, subscription: &Subscription) -> Result<(), TopicError> {
        let lifted = async {
            loop {
                let notified = self.unfenced.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                let waits = {
                    let state = subscription.state.lock();
                    state.fenced && !state.gone && !self.is_closed()
                };
                if !waits {
                    return;
                }
                notified.await;
            }
        };
        let deadline = Duration::from_millis(self.deps.fence_deadline_ms);
        tokio::time::timeout(deadline, lifted)
            .await
            .map_err(|_| refuse(TopicErrorKind::ServiceNotReady, "Subscription is fenced"))
    }

    async fn find_or_create(&self, request: &SubscribeRequest) -> Result<Arc<Subscription>, TopicError> {
        if let Some(subscription) = self.subscription(&request.subscription) {
            if subscription.durable != request.durable {
                let message = format!(
                    "Durable subscription with the same name already exists: {} (durable: {})",
                    request.subscription, subscription.durable
                );
                return Err(refuse(TopicErrorKind::NotAllowed, message));
            }
            if request.replicate_state == Some(true) && request.durable {
                self.mark_replicated(&subscription).await?;
            }
            return Ok(subscription);
        }
        if request.durable && !request.may_create {
            return Err(refuse(TopicErrorKind::SubscriptionNotFound, "Subscription does not exist"));
        }
        let initial = if request.durable {
            match request.initial {
                InitialCursor::Earliest => InitialPosition::Earliest,
                InitialCursor::Latest => InitialPosition::Latest,
            }
        } else {
            match request.start_message_id {
                None => InitialPosition::Latest,
                Some((position, _)) => at(position),
            }
        };
        let mut properties = request.subscription_properties.clone();
        if request.replicate_state == Some(true) {
            properties.insert(REPLICATED_PROPERTY.to_owned(), "1".to_owned());
        }
        self.create(&request.subscription, request.durable, initial, properties).await
    }

    pub(super) async fn mark_replicated(&self, subscription: &Arc<Subscription>) -> Result<(), TopicError> {
        let mut properties = subscription.cursor.properties();
        if properties.insert(REPLICATED_PROPERTY.to_owned(), "1".to_owned()).as_deref() != Some("1") {
            subscription.cursor.set_properties(properties).await?;
        }
        self.share_existing(subscription);
        Ok(())
    }

    /// Creates a subscription, or answers the one that somebody else created meanwhile.
    pub(super) async fn create(
        &self,
        name: &str,
        durable: bool,
        initial: InitialPosition,
        properties: BTreeMap<String, String>,
    ) -> Result<Arc<Subscription>, TopicError> {
        let _turn = self.changes.lock().await;
        let existed = self.subscription(name).is_some();
        let subscription = self.create_locked(name, durable, initial, properties).await?;
        if !existed {
            self.share_created(&subscription).await?;
        }
        Ok(subscription)
    }

    /// The same; whoever calls holds `changes`, and shares it if that is wanted.
    pub(super) async fn create_locked(
        &self,
        name: &str,
        durable: bool,
        initial: InitialPosition,
        properties: BTreeMap<String, String>,
    ) -> Result<Arc<Subscription>, TopicError> {
        if let Some(subscription) = self.subscription(name) {
            return Ok(subscription);
        }
        let max = self.limits().max_subscriptions as usize;
        if max != 0 && self.subscriptions.read().len() >= max {
            let message = format!("Exceed the maximum number of subscriptions of the topic: {}", self.name);
            return Err(refuse(TopicErrorKind::NotAllowed, message));
        }
        let last_confirmed = self.log.last_confirmed();
        let options = CursorOptions { durable, internal: false, properties };
        let cursor = self.log.open_cursor(name, initial, options).await?;
        let name: Arc<str> = name.into();
        let subscription = Subscription::new(name.clone(), cursor, durable, last_confirmed);
        self.subscriptions.write().insert(name, subscription.clone());
        Ok(subscription)
    }

    /// Creates a durable subscription at the earliest position if it does not exist.
    pub(super) async fn ensure_subscription(&self, name: &str) -> Result<(), TopicError> {
        if self.subscription(name).is_none() {
            self.create(name, true, InitialPosition::Earliest, BTreeMap::new()).await?;
        }
        Ok(())
    }

    /// One attempt to join under the subscription's lock.
    fn try_join(
        &self,
        subscription: &Arc<Subscription>,
        key: ConsumerKey,
        request: &SubscribeRequest,
        limits: &TopicLimits,
    ) -> Result<Attempt, TopicError> {
        let mut state = subscription.state.lock();
        if state.gone {
            return Ok(Attempt::Gone);
        }
        if state.fenced {
            return Ok(Attempt::Fenced);
        }
        if let Some(connected) = Subscription::connected_type(&state)
            && connected != request.sub_type
        {
            return Err(refuse(TopicErrorKind::ConsumerBusy, "Subscription is of different type"));
        }
        let now_ms = self.now_ms();
        if Subscription::connected_type(&state).is_none() {
            subscription.compacted.store(request.read_compacted, Ordering::Relaxed);
        }
        let first_unacked = subscription.start(self);
        let active = self.active_for(&mut state, request.sub_type, subscription.durable, limits);
        if request.sub_type == SubscriptionType::Exclusive
            && let Some(holder) = active.peers.first()
        {
            return Ok(Attempt::Taken(holder.key, holder.sink.clone()));
        }
        let max = limits.max_consumers_per_subscription as usize;
        if max != 0 && active.peers.len() >= max {
            return Err(refuse(TopicErrorKind::ConsumerBusy, "Subscription reached max consumers limit"));
        }
        let joining = Joining {
            spec: ConsumerSpec {
                key,
                name: request.consumer_name.as_str().into(),
                priority: request.priority_level,
                epoch: request.consumer_epoch,
            },
            key_shared: request.key_shared.as_ref(),
            consistent_hashing: limits.key_shared_consistent_hashing,
            first_unacked,
            last_confirmed: self.log.last_confirmed(),
        };
        active.core.join(joining, now_ms)?;
        active.peers.push(Peer::new(key, request, now_ms));
        state.last_client_ms = now_ms;
        let Some(active) = state.active.as_mut() else { return Ok(Attempt::Gone) };
        if self.terminated.load(Ordering::Acquire) {
            self.announce_end(subscription, active);
        }
        subscription.run(self, &mut state);
        drop(state);
        self.touch(now_ms);
        Ok(Attempt::Joined)
    }

    /// The dispatcher for consumers of that type; while nobody is connected the type may change.
    fn active_for<'a>(
        &self,
        state: &'a mut State,
        sub_type: SubscriptionType,
        durable: bool,
        limits: &TopicLimits,
    ) -> &'a mut Active {
        let new_core = || {
            let (own, shared) = (self.dispatch_limits(limits, durable), self.shared_dispatch_limits(limits));
            Dispatcher::new(sub_type, own, shared, self.name.as_str().into(), self.partition())
        };
        let active = state.active.get_or_insert_with(|| Box::new(Active::new(new_core())));
        if active.core.sub_type() != sub_type {
            active.core = new_core();
        } else if active.core.consumers().is_empty() {
            // Changes are told to connected subscriptions alone.
            active.core.set_limits(self.dispatch_limits(limits, durable), self.shared_dispatch_limits(limits));
        }
        active.core.set_held(durable && self.holds_dispatch());
        active
    }

    /// Adds permits.
    pub(super) fn add_permits(&self, key: ConsumerKey, permits: u32) {
        let Some(subscription) = self.subscription_of(key) else { return };
        subscription.with_core(self, |active, now_ms| {
            active.core.flow(key, permits, now_ms);
            self.touch(now_ms);
        });
    }

    /// The consumer's sink takes more.
    pub(super) fn resume(&self, key: ConsumerKey) {
        let Some(subscription) = self.subscription_of(key) else { return };
        subscription.with_core(self, |active, _| active.core.set_writable(key, true));
    }

    /// Redelivers some or all.
    pub(super) fn redeliver_to(&self, key: ConsumerKey, ids: &[Position], epoch: Option<u64>) {
        let Some(subscription) = self.subscription_of(key) else { return };
        let first_unacked = subscription.start(self);
        subscription.with_core(self, |active, _| active.core.redeliver(key, ids, epoch, first_unacked));
    }

    /// Acknowledges; the future of a receipt ends when everything acked so far is durable.
    pub(super) fn acknowledge(
        &self,
        key: ConsumerKey,
        request: AckRequest,
    ) -> Option<BoxFuture<'static, Result<(), TopicError>>> {
        let subscription = self.subscription_of(key)?;
        let receipt = request.receipt;
        let properties = match request.mode {
            AckMode::Cumulative => request.properties.clone(),
            AckMode::Individual => BTreeMap::new(),
        };
        let result = self.apply_ack(&subscription, key, request);
        let attaching = (!properties.is_empty() && result.is_ok()).then(|| attach(subscription.clone(), properties));
        if !receipt {
            if let Some(attaching) = attaching {
                self.deps.runtime.spawn(attaching);
            }
            return None;
        }
        let cursor = subscription.cursor.clone();
        Some(Box::pin(async move {
            result?;
            if let Some(attaching) = attaching {
                attaching.await?;
            }
            Ok(cursor.persisted().await?)
        }))
    }

    fn apply_ack(
        &self,
        subscription: &Arc<Subscription>,
        key: ConsumerKey,
        request: AckRequest,
    ) -> Result<(), TopicError> {
        let last_confirmed = self.log.last_confirmed();
        let beyond = request.ids.iter().map(|(position, _)| *position).find(|position| *position > last_confirmed);
        let mut state = subscription.state.lock();
        let Some(active) = state.active.as_ref() else { return Ok(()) };
        let individual = matches!(active.core.sub_type(), SubscriptionType::Shared | SubscriptionType::KeyShared);
        let partial = self.limits.read().batch_index_ack;
        let mut acks: Vec<AckPosition> = request
            .ids
            .into_iter()
            .filter(|(position, _)| *position <= last_confirmed)
            .filter(|(_, set)| partial || count_unacked(set) == 0)
            .map(|(position, set)| AckPosition {
                position,
                unacked_batch_indexes: (count_unacked(&set) != 0).then_some(set),
                messages: 0,
            })
            .collect();
        let highest = acks.iter().map(|ack| ack.position).max();
        let outcome = match request.mode {
            AckMode::Individual => subscription.cursor.ack(&acks),
            // One id only, and not where messages are shared: ignored with success.
            AckMode::Cumulative if individual || acks.len() != 1 => return Ok(()),
            AckMode::Cumulative => match acks.pop() {
                Some(ack) => subscription.cursor.ack_cumulative(ack),
                None => return Ok(()),
            },
        };
        state.highest_acked = state.highest_acked.max(highest.unwrap_or(Position::EARLIEST));
        self.sharing.wake();
        self.after_ack(subscription, &mut state, key, &acks, outcome.messages);
        subscription.run(self, &mut state);
        match beyond {
            Some(position) => Err(refuse(
                TopicErrorKind::Unknown,
                format!("position {position} is beyond the last confirmed one, {last_confirmed}"),
            )),
            None => Ok(()),
        }
    }

    fn after_ack(
        &self,
        subscription: &Subscription,
        state: &mut State,
        key: ConsumerKey,
        acks: &[AckPosition],
        messages: u64,
    ) {
        let Some(active) = state.active.as_mut() else { return };
        let left = |ack: &AckPosition| match &ack.unacked_batch_indexes {
            None => 0,
            Some(_) if subscription.cursor.is_acked(ack.position) => 0,
            Some(set) => subscription
                .cursor
                .unacked_batch_indexes(ack.position)
                .map_or(count_unacked(set), |set| count_unacked(&set)),
        };
        let acked: Vec<Acked> = acks.iter().map(|ack| Acked { position: ack.position, left: left(ack) }).collect();
        active.core.acked(key, &acked, self.now_ms());
        active.core.count_acked(key, messages);
        if self.terminated.load(Ordering::Acquire) {
            self.announce_end(subscription, active);
        }
    }

    /// Tells the consumers once that a terminated topic is read to its end.
    pub(super) fn announce_end(&self, subscription: &Subscription, active: &mut Active) {
        if subscription.cursor.backlog_entries() != 0 {
            return;
        }
        for peer in active.peers.iter_mut().filter(|peer| !peer.told_end) {
            peer.told_end = true;
            peer.sink.reached_end_of_topic(peer.consumer_id);
        }
    }

    /// Removes a consumer; a non-durable subscription goes with its last one.
    pub(super) async fn detach(&self, key: ConsumerKey) {
        let Some(subscription) = self.consumers.write().remove(&key) else { return };
        let last = self.drop_consumer(&subscription, key);
        if last && !subscription.durable {
            self.delete_if_idle(&subscription).await;
        }
    }

    /// Answers whether nobody is left.
    fn drop_consumer(&self, subscription: &Arc<Subscription>, key: ConsumerKey) -> bool {
        let mut state = subscription.state.lock();
        let first_unacked = subscription.start(self);
        let now_ms = self.now_ms();
        state.last_client_ms = now_ms;
        let Some(active) = state.active.as_mut() else { return false };
        active.remove(key, now_ms, first_unacked);
        let last = active.peers.is_empty();
        subscription.run(self, &mut state);
        last && !state.fenced
    }

    pub(super) async fn delete_if_idle(&self, subscription: &Arc<Subscription>) {
        let _turn = self.changes.lock().await;
        {
            let mut state = subscription.state.lock();
            if state.gone || state.fenced || Subscription::connected_type(&state).is_some() {
                return;
            }
            (state.gone, state.fenced) = (true, true);
        }
        self.subscriptions.write().remove(&*subscription.name);
        if let Err(error) = self.log.delete_cursor(&subscription.name).await {
            tracing::debug!(topic = %self.name, subscription = %subscription.name, %error, "a reader's cursor stays");
        }
    }
}

/// Keeps the properties of a cumulative ack with its cursor, in place of those of the one before. One at a time, so that
/// the last one stays.
async fn attach(subscription: Arc<Subscription>, given: BTreeMap<String, i64>) -> Result<(), TopicError> {
    let _turn = subscription.ack_properties.lock().await;
    let mut properties = subscription.cursor.properties();
    properties.retain(|name, _| !name.starts_with(ACK_PROPERTY_PREFIX));
    properties
        .extend(given.into_iter().map(|(name, value)| (format!("{ACK_PROPERTY_PREFIX}{name}"), value.to_string())));
    Ok(subscription.cursor.set_properties(properties).await?)
}

/// A start position of the wire.
pub(super) fn at(position: Position) -> InitialPosition {
    if position == Position::LATEST || position.ledger_id.0 == i64::MAX {
        InitialPosition::Latest
    } else if position.ledger_id.0 < 0 {
        InitialPosition::Earliest
    } else {
        InitialPosition::At(position)
    }
}
