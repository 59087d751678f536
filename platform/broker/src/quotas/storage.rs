//! What is stored: looked at once a second; a place over its limit keeps producers out until there is room.
//!
//! Topics that are not open here count with their record, which their owner writes ([`StoredBook`]): after a restart, and
//! of topics that other brokers serve.
//! Invariants: a topic is held as long as any of its places is over a limit, and for the outermost of them in words; a
//! topic is looked at as soon as a place of its has a limit on what is stored, and from then on as long as it has a record.

use super::Quotas;
use crate::service::{BrokerService, is_system_topic};
use meridian_policy::quota::{Exceeded, Limit, Place, Quotas as Limits};
use meridian_quotas::stored::{Stored, StoredBook, StoredLimits};
use meridian_topic::TopicHandle;
use meridian_types::{Domain, TopicName};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What is known of storage here.
pub(super) struct Storage {
    pub(super) stored: Arc<StoredBook>,
    held: Mutex<HashMap<TopicName, Arc<str>>>,
}

impl Storage {
    pub(super) fn new(stored: Arc<StoredBook>) -> Self {
        Self { stored, held: Mutex::default() }
    }
}

/// Places with limits on what is stored.
pub(super) type Limited = BTreeMap<Place, StoredLimits>;

/// The limits on what is stored, if there are any.
fn storage_limits(limits: &Limits) -> Option<StoredLimits> {
    let value = |limit: Limit| limits.get(limit).map(|(value, _)| value);
    let (stored_bytes, backlog_bytes) = (value(Limit::StoredBytes), value(Limit::BacklogBytes));
    let any = stored_bytes.is_some() || backlog_bytes.is_some() || value(Limit::Subscriptions).is_some();
    any.then_some(StoredLimits { stored_bytes, backlog_bytes })
}

fn is_counted(topic: &TopicName) -> bool {
    topic.domain() == Domain::Persistent && !is_system_topic(topic)
}

fn measure(topic: &dyn TopicHandle) -> Stored {
    let stats = topic.stats();
    let subscriptions = stats.subscriptions.iter().filter(|one| one.durable).count() as u64;
    Stored { stored_bytes: stats.storage_bytes, backlog_bytes: stats.backlog_bytes, subscriptions }
}

impl Quotas {
    /// Places with limits on what is stored.
    pub(super) fn limited(&self) -> Limited {
        let all = self.book.all();
        all.iter().filter_map(|(place, limits)| Some((place.clone(), storage_limits(limits)?))).collect()
    }

    /// Looks at all topics that count and holds those of places that are full.
    pub(super) fn look_at_storage(&self, service: &BrokerService) {
        let limited = self.limited();
        let topics = service.loaded_topics();
        self.look(service, &limited);
        if limited.is_empty() {
            self.release_all(&topics);
            return;
        }
        for topic in topics.iter().filter(|topic| !is_system_topic(topic.name())) {
            let reason = self.full(topic.name()).map(|exceeded| Arc::from(exceeded.to_string()));
            self.hold_topic(topic, reason);
        }
        self.forget_deleted(service);
    }

    fn look(&self, service: &BrokerService, limited: &Limited) {
        let stored = &self.storage.stored;
        if limited.is_empty() && stored.is_empty() {
            return;
        }
        let counts = |topic: &TopicName| {
            is_counted(topic)
                && (stored.has_record(topic) || Place::way_to(topic).iter().any(|place| limited.contains_key(place)))
        };
        stored.look(|| {
            let topics = service.loaded_topics();
            let counted = topics.iter().filter(|topic| counts(topic.name()));
            counted.map(|topic| (topic.name().clone(), measure(&**topic))).collect()
        });
    }

    /// Writes what the others have to know and what is needed after a restart; `all` = also what could wait.
    pub(super) async fn write_stored(&self, service: &BrokerService, all: bool) {
        let stored = &self.storage.stored;
        if stored.is_empty() {
            return;
        }
        for topic in stored.left() {
            // A topic that was deleted under its owner left, too.
            if matches!(service.is_stored(&topic).await, Ok(false)) {
                stored.deleted(&topic);
            }
        }
        if let Err(error) = stored.write(&self.limited(), all).await {
            tracing::debug!(%error, "what topics have stored could not be written; it will be tried again");
        }
    }

    fn full(&self, topic: &TopicName) -> Option<Exceeded> {
        Place::way_to(topic).iter().find_map(|place| {
            let limits = self.book.get(place).and_then(|limits| storage_limits(&limits))?;
            let sum = self.storage.stored.sum(place);
            let over = |limit: Limit, value: Option<u64>, used: u64| {
                value.filter(|value| used >= *value)?;
                Some(Exceeded { bound: self.bound_at(limit, place)?, used })
            };
            over(Limit::StoredBytes, limits.stored_bytes, sum.stored_bytes)
                .or_else(|| over(Limit::BacklogBytes, limits.backlog_bytes, sum.backlog_bytes))
        })
    }

    fn hold_topic(&self, topic: &Arc<dyn TopicHandle>, reason: Option<Arc<str>>) {
        let mut held = self.storage.held.lock();
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
        if self.storage.held.lock().is_empty() {
            return;
        }
        topics.iter().for_each(|topic| self.hold_topic(topic, None));
        self.storage.held.lock().clear();
    }

    /// What keeps a topic's producers out, for one that is being opened.
    pub(crate) fn hold_of(&self, topic: &TopicName) -> Option<Arc<str>> {
        if is_system_topic(topic) || self.book.is_empty() {
            return None;
        }
        let reason: Arc<str> = Arc::from(self.full(topic)?.to_string());
        // So that it is released.
        self.storage.held.lock().insert(topic.clone(), reason.clone());
        Some(reason)
    }

    /// Durable subscriptions of a place, the topics that are open looked at anew.
    pub(super) fn subscriptions_at(&self, service: &BrokerService, place: &Place) -> u64 {
        self.look(service, &self.limited());
        self.storage.stored.sum(place).subscriptions
    }

    /// Bytes stored and not acknowledged at a place. Of one without limits: by topics that have a record or are open here.
    pub fn bytes_at(&self, service: &BrokerService, place: &Place) -> (u64, u64) {
        let limited = self.limited();
        self.look(service, &limited);
        let mut sum = self.storage.stored.sum(place);
        if !limited.contains_key(place) {
            let uncounted = service.loaded_topics().into_iter().filter(|topic| {
                let name = topic.name();
                is_counted(name) && !self.storage.stored.counts(name) && Place::way_to(name).contains(place)
            });
            uncounted.for_each(|topic| sum.add(&measure(&*topic)));
        }
        (sum.stored_bytes, sum.backlog_bytes)
    }

    /// Bytes stored and not acknowledged at a place with limits, as they were at the last look.
    pub(crate) fn counted_bytes(&self, place: &Place) -> (u64, u64) {
        let sum = self.storage.stored.sum(place);
        (sum.stored_bytes, sum.backlog_bytes)
    }

    /// A topic has been deleted: it counts no more.
    pub(crate) fn topic_deleted(&self, topic: &TopicName) {
        self.storage.stored.deleted(topic);
        self.storage.held.lock().remove(topic);
    }

    /// Topics of namespaces that are gone.
    fn forget_deleted(&self, service: &BrokerService) {
        let gone = |topic: &TopicName| service.registry().namespace(&topic.namespace()).is_none();
        self.storage.held.lock().retain(|topic, _| !gone(topic));
    }
}
