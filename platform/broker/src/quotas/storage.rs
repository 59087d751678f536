//! What is stored: looked at once a second; a place over its limit keeps producers out until there is room.
//!
//! Topics that are not open here count with what they had when they were last seen.
//! Invariants: a topic is held as long as any of its places is over a limit, and for the outermost of them in words.

use super::Quotas;
use crate::service::{BrokerService, is_system_topic};
use meridian_policy::quota::{Exceeded, Limit, Place};
use meridian_topic::TopicHandle;
use meridian_types::TopicName;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a topic had when it was last looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    stored_bytes: u64,
    backlog_bytes: u64,
    subscriptions: u64,
}

/// Topics as they were last seen.
#[derive(Default)]
pub(super) struct Stored {
    seen: Mutex<HashMap<TopicName, Seen>>,
    held: Mutex<HashMap<TopicName, Arc<str>>>,
}

/// Bytes at each place.
type Sums = BTreeMap<Place, Seen>;

impl Quotas {
    /// Looks at all topics and holds those of places that are full.
    pub(super) fn look_at_storage(&self, service: &BrokerService) {
        let limited = [Limit::StoredBytes, Limit::BacklogBytes, Limit::Subscriptions];
        let any = self.book.all().values().any(|quotas| limited.iter().any(|limit| quotas.get(*limit).is_some()));
        let topics = service.loaded_topics();
        if !any {
            self.release_all(&topics);
            return;
        }
        let sums = self.sums(&topics);
        for topic in topics.iter().filter(|topic| !is_system_topic(topic.name())) {
            let reason = self.full(topic.name(), &sums).map(|exceeded| Arc::from(exceeded.to_string()));
            self.hold_topic(topic, reason);
        }
        self.forget_deleted(service);
    }

    /// Bytes and subscriptions at every place, the topics that are open looked at anew.
    fn sums(&self, topics: &[Arc<dyn TopicHandle>]) -> Sums {
        let mut seen = self.stored.seen.lock();
        for topic in topics.iter().filter(|topic| !is_system_topic(topic.name())) {
            let stats = topic.stats();
            let durable = stats.subscriptions.iter().filter(|one| one.durable).count() as u64;
            let now =
                Seen { stored_bytes: stats.storage_bytes, backlog_bytes: stats.backlog_bytes, subscriptions: durable };
            seen.insert(topic.name().clone(), now);
        }
        let mut sums = Sums::new();
        for (topic, now) in seen.iter() {
            for place in Place::way_to(topic) {
                let sum = sums.entry(place).or_default();
                sum.stored_bytes += now.stored_bytes;
                sum.backlog_bytes += now.backlog_bytes;
                sum.subscriptions += now.subscriptions;
            }
        }
        sums
    }

    fn full(&self, topic: &TopicName, sums: &Sums) -> Option<Exceeded> {
        Place::way_to(topic).iter().find_map(|place| {
            let sum = sums.get(place)?;
            let over = |limit: Limit, used: u64| {
                let bound = self.bound_at(limit, place)?;
                (used >= bound.value).then_some(Exceeded { bound, used })
            };
            over(Limit::StoredBytes, sum.stored_bytes).or_else(|| over(Limit::BacklogBytes, sum.backlog_bytes))
        })
    }

    fn hold_topic(&self, topic: &Arc<dyn TopicHandle>, reason: Option<Arc<str>>) {
        let mut held = self.stored.held.lock();
        let before = held.get(topic.name()).is_some();
        match &reason {
            Some(reason) => {
                if !before {
                    tracing::warn!(topic = %topic.name(), %reason, "publishing is stopped");
                }
                held.insert(topic.name().clone(), reason.clone());
            }
            None if before => {
                held.remove(topic.name());
                tracing::info!(topic = %topic.name(), "publishing goes on");
            }
            None => return,
        }
        drop(held);
        topic.set_hold(reason);
    }

    fn release_all(&self, topics: &[Arc<dyn TopicHandle>]) {
        if self.stored.held.lock().is_empty() {
            return;
        }
        topics.iter().for_each(|topic| self.hold_topic(topic, None));
        self.stored.held.lock().clear();
    }

    /// What keeps a topic's producers out, for one that is being opened.
    pub(crate) fn hold_of(&self, topic: &TopicName) -> Option<Arc<str>> {
        if is_system_topic(topic) || self.book.is_empty() {
            return None;
        }
        let sums = self.sums(&[]);
        self.full(topic, &sums).map(|exceeded| Arc::from(exceeded.to_string()))
    }

    /// Durable subscriptions of a place, the topics that are open looked at anew.
    pub(super) fn subscriptions_at(&self, service: &BrokerService, place: &Place) -> u64 {
        self.sums(&service.loaded_topics()).get(place).map_or(0, |sum| sum.subscriptions)
    }

    /// Bytes stored and not acknowledged at a place.
    pub fn bytes_at(&self, service: &BrokerService, place: &Place) -> (u64, u64) {
        let sum = self.sums(&service.loaded_topics()).get(place).copied().unwrap_or_default();
        (sum.stored_bytes, sum.backlog_bytes)
    }

    /// A topic has been deleted: it counts no more.
    pub(crate) fn topic_deleted(&self, topic: &TopicName) {
        self.stored.seen.lock().remove(topic);
        self.stored.held.lock().remove(topic);
    }

    /// Topics of namespaces that are gone.
    fn forget_deleted(&self, service: &BrokerService) {
        let gone = |topic: &TopicName| service.registry().namespace(&topic.namespace()).is_none();
        self.stored.seen.lock().retain(|topic, _| !gone(topic));
        self.stored.held.lock().retain(|topic, _| !gone(topic));
    }
}
