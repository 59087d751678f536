//! Clients of a topic that keeps nothing: who may join, and leaving.
//!
//! Failure: refusals are the same as on stored topics.

use super::subscription::{Fanout, Joining};
use super::{Client, NonPersistentTopic, Peer, State, Subscription, refuse};
use crate::api::{
    ClientSink, ConsumerKey, ProducerKey, ProducerReady, ProducerRequest, SubscribeRequest, SubscriptionType,
    TopicError, TopicErrorKind, TopicLimits,
};
use crate::persistent::next_key;
use crate::producers::{Admission, Applicant};
use crate::rates::Rate;
use std::sync::Arc;

/// What came of an attempt to subscribe.
enum Attempt {
    Joined,
    /// An exclusive consumer is there: is it alive?
    Taken(ConsumerKey, Arc<dyn ClientSink>),
}

fn closed() -> TopicError {
    refuse(TopicErrorKind::ServiceNotReady, "The topic is closed here")
}

impl NonPersistentTopic {
    /// Adds a producer.
    pub(super) async fn admit(&self, request: ProducerRequest) -> Result<ProducerReady, TopicError> {
        let link = crate::origins::LinkIdentity::of(&request.name, &request.metadata, false).map(Arc::new);
        let applicant = Applicant {
            sink: Client(request.sink),
            producer_id: request.producer_id,
            name: request.name.into(),
            epoch: request.epoch,
            access_mode: request.access_mode,
            topic_epoch: request.topic_epoch,
            metadata: request.metadata,
            link,
        };
        loop {
            let (key, sink) = match self.try_admit(&applicant, request.encrypted)? {
                Admission::In(ready) | Admission::Waits(ready) | Admission::Claims(ready) => return Ok(ready),
                Admission::Refused(error) => return Err(error),
                Admission::NameTaken { key, sink } => (key, sink),
            };
            if sink.0.probe().await {
                let message =
                    format!("Producer with name '{}' is already connected to topic '{}'", applicant.name, self.name);
                return Err(refuse(TopicErrorKind::ProducerBusy, message));
            }
            let mut state = self.state.lock();
            state.producers.leave(key);
            state.run_producers(None, self.clock.now_ms());
        }
    }

    fn try_admit(&self, applicant: &Applicant<Client>, encrypted: bool) -> Result<Admission<Client>, TopicError> {
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        if state.limits.encryption_required && !encrypted && applicant.link.is_none() {
            let message = format!("Encryption is required in {}", self.name);
            return Err(refuse(TopicErrorKind::Metadata, message));
        }
        let (key, max) = (ProducerKey(next_key()), state.limits.max_producers);
        let admission = state.producers.admit(key, applicant.clone(), max, now_ms);
        let answer = state.run_producers(Some(key), now_ms);
        state.last_activity_ms = now_ms;
        match (admission, answer) {
            (Admission::Claims(_), Some(granted)) => granted.map(Admission::In),
            (admission, _) => Ok(admission),
        }
    }

    /// Adds a consumer, its subscription first.
    pub(super) async fn attach(&self, request: SubscribeRequest) -> Result<ConsumerKey, TopicError> {
        loop {
            let key = ConsumerKey(next_key());
            let (holder, sink) = match self.try_attach(key, &request)? {
                Attempt::Joined => return Ok(key),
                Attempt::Taken(holder, sink) => (holder, sink),
            };
            if sink.probe().await {
                return Err(refuse(TopicErrorKind::ConsumerBusy, "Exclusive consumer is already connected"));
            }
            self.state.lock().detach(holder);
        }
    }

    fn try_attach(&self, key: ConsumerKey, request: &SubscribeRequest) -> Result<Attempt, TopicError> {
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        let limits = state.limits.clone();
        self.check_subscribe(&state, request, &limits)?;
        state.subscribe_rates.check(request, limits.subscribe_rate, now_ms)?;
        let partition = self.name.partition();
        let subscription = state.subscriptions.entry(request.subscription.clone()).or_insert_with(|| Subscription {
            durable: request.durable,
            fanout: Fanout::new(partition),
            peers: Vec::new(),
            past_messages_out: 0,
            past_bytes_out: 0,
        });
        let same_type = subscription.fanout.sub_type() == Some(request.sub_type);
        if let Some(holder) = subscription.peers.first()
            && same_type
            && request.sub_type == SubscriptionType::Exclusive
        {
            return Ok(Attempt::Taken(holder.key, holder.sink.clone()));
        }
        let before = subscription.fanout.active();
        let joined = subscription.fanout.join(Joining {
            key,
            name: &request.consumer_name,
            priority: request.priority_level,
            sub_type: request.sub_type,
            key_shared: request.key_shared.as_ref(),
            consistent_hashing: limits.key_shared_consistent_hashing,
        });
        if let Err(error) = joined {
            state.subscriptions.retain(|_, sub| sub.durable || !sub.peers.is_empty());
            return Err(error);
        }
        subscription.peers.push(Peer {
            key,
            sink: request.sink.clone(),
            consumer_id: request.consumer_id,
            consumer_epoch: request.consumer_epoch,
            connected_ms: now_ms,
            metadata: request.metadata.clone(),
            rates: (Rate::default(), Rate::default()),
        });
        subscription.tell_active(before, Some(key));
        state.last_activity_ms = now_ms;
        Ok(Attempt::Joined)
    }

    fn check_subscribe(
        &self,
        state: &State,
        request: &SubscribeRequest,
        limits: &TopicLimits,
    ) -> Result<(), TopicError> {
        let over = |count: usize, max: u32| max != 0 && count >= max as usize;
        if request.subscription.is_empty() {
            return Err(refuse(TopicErrorKind::ProducerBusy, "Empty subscription name"));
        }
        if request.read_compacted {
            let message = "readCompacted only allowed on persistent topics";
            return Err(refuse(TopicErrorKind::NotAllowed, message));
        }
        if !limits.allowed_types.is_empty() && !limits.allowed_types.contains(&request.sub_type) {
            let message = format!("Topic[{}] doesn't support {:?} sub type!", self.name, request.sub_type);
            return Err(refuse(TopicErrorKind::NotAllowed, message));
        }
        let consumers = state.subscriptions.values().map(|sub| sub.peers.len()).sum();
        if over(consumers, limits.max_consumers) {
            return Err(refuse(TopicErrorKind::ConsumerBusy, "Topic reached max consumers limit"));
        }
        match state.subscriptions.get(&request.subscription) {
            Some(sub) if over(sub.peers.len(), limits.max_consumers_per_subscription) => {
                Err(refuse(TopicErrorKind::ConsumerBusy, "Subscription reached max consumers limit"))
            }
            None if over(state.subscriptions.len(), limits.max_subscriptions) => {
                let message = format!("Exceed the maximum number of subscriptions of the topic: {}", self.name);
                Err(refuse(TopicErrorKind::NotAllowed, message))
            }
            _ => Ok(()),
        }
    }

    /// Creates a subscription without consumers.
    pub(super) fn create(&self, name: &str) -> Result<(), TopicError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        let partition = self.name.partition();
        state.subscriptions.entry(name.to_owned()).or_insert_with(|| Subscription {
            durable: true,
            fanout: Fanout::new(partition),
            peers: Vec::new(),
            past_messages_out: 0,
            past_bytes_out: 0,
        });
        Ok(())
    }
}

impl Subscription {
    /// Failover: all are told of a change, a newcomer is told in any case.
    fn tell_active(&self, before: Option<ConsumerKey>, newcomer: Option<ConsumerKey>) {
        if self.fanout.sub_type() != Some(SubscriptionType::Failover) {
            return;
        }
        let active = self.fanout.active();
        for peer in self.peers.iter().filter(|peer| active != before || Some(peer.key) == newcomer) {
            peer.sink.active_consumer_changed(peer.consumer_id, active == Some(peer.key));
        }
    }

    fn drop_consumer(&mut self, key: ConsumerKey) {
        let before = self.fanout.active();
        if let Some(member) = self.fanout.leave(key) {
            self.past_messages_out += member.counters.messages_out;
            self.past_bytes_out += member.counters.bytes_out;
        }
        self.peers.retain(|peer| peer.key != key);
        self.tell_active(before, None);
    }

    fn close_consumers(&mut self) {
        for peer in std::mem::take(&mut self.peers) {
            self.fanout.leave(peer.key);
            peer.sink.close_consumer(peer.consumer_id);
        }
    }
}

impl State {
    /// A consumer goes, and its subscription with it if that was for it alone.
    pub(super) fn detach(&mut self, key: ConsumerKey) {
        let holds = |sub: &Subscription| sub.peers.iter().any(|peer| peer.key == key);
        if let Some(subscription) = self.subscriptions.values_mut().find(|sub| holds(sub)) {
            subscription.drop_consumer(key);
            self.subscriptions.retain(|_, sub| sub.durable || !sub.peers.is_empty());
        }
    }

    /// Deletes the subscription of its only consumer (or of any, if forced); the others are told.
    pub(super) fn unsubscribe(&mut self, key: ConsumerKey, force: bool) -> Result<(), TopicError> {
        let found = self.subscriptions.iter_mut().find(|(_, sub)| sub.peers.iter().any(|peer| peer.key == key));
        let Some((name, subscription)) = found else {
            return Err(refuse(TopicErrorKind::Metadata, "Consumer not found"));
        };
        if subscription.peers.len() > 1 && !force {
            let message = "Unconnected or shared consumer attempting to unsubscribe";
            return Err(refuse(TopicErrorKind::Metadata, message));
        }
        let name = name.clone();
        subscription.drop_consumer(key);
        subscription.close_consumers();
        self.subscriptions.remove(&name);
        Ok(())
    }

    pub(super) fn delete(&mut self, name: &str, force: bool) -> Result<(), TopicError> {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return Err(refuse(TopicErrorKind::SubscriptionNotFound, format!("Subscription {name} not found")));
        };
        if !subscription.peers.is_empty() && !force {
            return Err(refuse(TopicErrorKind::Busy, "Subscription has active connected consumers"));
        }
        subscription.close_consumers();
        self.subscriptions.remove(name);
        Ok(())
    }

    /// Everybody goes.
    pub(super) fn close(&mut self, now_ms: u64) {
        self.is_closed = true;
        self.taps.clear();
        self.producers.close_all();
        self.run_producers(None, now_ms);
        self.subscriptions.values_mut().for_each(Subscription::close_consumers);
    }

    pub(super) fn delete_topic(&mut self, force: bool, now_ms: u64) -> Result<(), TopicError> {
        let has_clients =
            self.producers.present().next().is_some() || self.subscriptions.values().any(|sub| !sub.peers.is_empty());
        if has_clients && !force {
            return Err(refuse(TopicErrorKind::Busy, "Topic has active producers or consumers"));
        }
        self.close(now_ms);
        self.subscriptions.clear();
        Ok(())
    }
}
