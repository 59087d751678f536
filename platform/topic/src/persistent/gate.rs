//! The gate of a topic: whether tenants' clients are served here, held for a moment, or sent to another region.
//!
//! Invariants: G1 what is held is neither stored nor answered nor delivered; what was stored before is answered; G2 links of
//! other regions, acknowledgements and readers pass every gate; G3 a client that is let in while the gate closes is closed
//! with the others: the gate is set before it looks who is there, and looked at again after somebody is in.
//! Failure: none.
//! Must never know: regions' reasons.

use super::PersistentTopic;
use super::subscription::Subscription;
use crate::api::{ClientSink, Gate, TopicError, TopicErrorKind, Unsettled};
use crate::origins::is_link;
use std::sync::Arc;

fn not_ready(message: String) -> TopicError {
    TopicError::new(TopicErrorKind::ServiceNotReady, message)
}

impl PersistentTopic {
    /// Sets the gate and does what follows for those who are there.
    pub(super) fn change_gate(&self, gate: Gate) {
        let before = std::mem::replace(&mut *self.gate.write(), gate.clone());
        if before == gate {
            return;
        }
        match &gate {
            Gate::Held(_) => self.with_producers(|side| side.core.hold()),
            Gate::Open if matches!(before, Gate::Held(_)) => self.with_producers(|side| side.core.close_local(false)),
            Gate::Open => {}
            Gate::Moved(_) => self.with_producers(|side| side.core.close_local(true)),
        }
        for subscription in self.all_subscriptions().iter().filter(|subscription| subscription.durable) {
            subscription.with_core(self, |active, _| active.core.set_held(gate != Gate::Open));
            if matches!(gate, Gate::Moved(_)) {
                self.close_consumers(subscription, None);
            }
        }
    }

    /// Whether a new core of a durable subscription is held.
    pub(super) fn holds_dispatch(&self) -> bool {
        *self.gate.read() != Gate::Open
    }

    /// Whether a producer of that name is let in.
    pub(super) fn gate_for_producer(&self, name: &str) -> Result<(), TopicError> {
        match &*self.gate.read() {
            Gate::Held(reason) if !is_link(name) => Err(not_ready(reason.to_string())),
            Gate::Moved(to) if !is_link(name) => Err(not_ready(format!("the topic is served in region {}", to.region))),
            _ => Ok(()),
        }
    }

    /// Whether a consumer is let in.
    pub(super) fn gate_for_consumer(&self, durable: bool) -> Result<(), TopicError> {
        match &*self.gate.read() {
            Gate::Moved(to) if durable => Err(not_ready(format!("the topic is served in region {}", to.region))),
            _ => Ok(()),
        }
    }

    /// Tells a producer that it goes.
    pub(super) fn move_producer(&self, sink: &dyn ClientSink, producer_id: u64) {
        match &*self.gate.read() {
            Gate::Moved(to) => sink.producer_moved(producer_id, to),
            _ => sink.close_producer(producer_id),
        }
    }

    /// Tells a consumer of the subscription that it goes.
    pub(super) fn dismiss_consumer(&self, subscription: &Subscription, sink: &dyn ClientSink, consumer_id: u64) {
        match &*self.gate.read() {
            Gate::Moved(to) if subscription.durable => sink.consumer_moved(consumer_id, to),
            _ => sink.close_consumer(consumer_id),
        }
    }

    /// What is under way with tenants' clients.
    pub(super) fn still_unsettled(&self) -> Unsettled {
        let sends = self.producers.lock().as_ref().map_or(0, |side| side.core.unanswered());
        let unacked = |subscription: &Arc<Subscription>| {
            subscription.state.lock().active.as_ref().map_or(0, |active| active.core.unacked())
        };
        let durable = self.all_subscriptions();
        Unsettled { sends, unacked: durable.iter().filter(|one| one.durable).map(unacked).sum() }
    }
}
