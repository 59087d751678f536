//! Who may publish: names, access modes, the topic's epoch.

use super::{EXCLUSIVE_WAITERS_MAX, Producer, ProducerCounters, ProducerEffect, Producers, Waiter};
use crate::api::{AccessMode, ProducerKey, ProducerReady, TopicError, TopicErrorKind};
use crate::origins::LinkIdentity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A producer that wants in.
#[derive(Debug, Clone)]
pub(crate) struct Applicant<S> {
    pub(crate) sink: S,
    pub(crate) producer_id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) access_mode: AccessMode,
    pub(crate) topic_epoch: Option<u64>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// It is another region's.
    pub(crate) link: Option<Arc<LinkIdentity>>,
}

/// The answer to an applicant.
#[derive(Debug, PartialEq)]
pub(crate) enum Admission<S> {
    /// It may publish.
    In(ProducerReady),
    /// It waits for exclusive access; [`ProducerEffect::Ready`] follows.
    Waits(ProducerReady),
    /// Its epoch is being persisted ([`ProducerEffect::PersistEpoch`]); [`ProducerEffect::Ready`] follows.
    Claims(ProducerReady),
    /// A producer of that name is there: probe its client, [`Producers::leave`] it if dead, and ask again.
    NameTaken {
        key: ProducerKey,
        sink: S,
    },
    Refused(TopicError),
}

fn fenced(message: impl Into<String>) -> TopicError {
    TopicError::new(TopicErrorKind::ProducerFenced, message)
}

impl<S: Clone + PartialEq> Producers<S> {
    /// Decides on an applicant. `key` is a fresh one, higher than every one before.
    pub(crate) fn admit(&mut self, key: ProducerKey, applicant: Applicant<S>, max: u32, now_ms: u64) -> Admission<S> {
        if let Some(refusal) = self.settle_name(&applicant) {
            return refusal;
        }
        if applicant.link.is_some() {
            return Admission::In(self.enter(key, applicant, now_ms));
        }
        if max != 0 && self.local().count() >= max as usize {
            return Admission::Refused(TopicError::new(
                TopicErrorKind::ProducerBusy,
                "Topic reached max producers limit",
            ));
        }
        if applicant.access_mode == AccessMode::Shared {
            if self.exclusive.is_some() || !self.waiters.is_empty() {
                return Admission::Refused(TopicError::new(
                    TopicErrorKind::ProducerBusy,
                    "Topic has an existing exclusive producer",
                ));
            }
            return Admission::In(self.enter(key, applicant, now_ms));
        }
        self.admit_exclusive(key, applicant)
    }

    /// A name may be taken over by the same client's next attempt only.
    fn settle_name(&mut self, applicant: &Applicant<S>) -> Option<Admission<S>> {
        let found = self.present().find(|producer| producer.name == applicant.name)?;
        let (key, sink) = (found.key, found.sink.clone());
        let successor =
            sink == applicant.sink && found.producer_id == applicant.producer_id && found.epoch < applicant.epoch;
        if successor {
            self.leave(key);
            return None;
        }
        Some(Admission::NameTaken { key, sink })
    }

    fn admit_exclusive(&mut self, key: ProducerKey, applicant: Applicant<S>) -> Admission<S> {
        if let (Some(theirs), Some(current)) = (applicant.topic_epoch, self.epoch)
            && theirs < current
        {
            return Admission::Refused(fenced(format!(
                "Topic epoch has already moved. Current epoch: {current}, Producer epoch: {theirs}"
            )));
        }
        let busy = self.local().next().is_some() || self.exclusive.is_some() || !self.waiters.is_empty();
        let ready = ProducerReady {
            key,
            name: applicant.name.to_string(),
            last_sequence_id: self.last_sequence_id(&applicant.name),
            topic_epoch: None,
            ready: false,
        };
        match applicant.access_mode {
            AccessMode::Exclusive if busy => {
                return Admission::Refused(fenced("Topic has an existing producer or one that waits for it"));
            }
            AccessMode::WaitForExclusive if busy => {
                if self.waiters.len() >= EXCLUSIVE_WAITERS_MAX {
                    return Admission::Refused(TopicError::new(
                        TopicErrorKind::ProducerBusy,
                        format!("{EXCLUSIVE_WAITERS_MAX} producers wait for exclusive access already"),
                    ));
                }
                self.waiters.push_back(Waiter { key, applicant });
                return Admission::Waits(ready);
            }
            AccessMode::ExclusiveWithFencing => self.fence_others(),
            AccessMode::Shared | AccessMode::Exclusive | AccessMode::WaitForExclusive => {}
        }
        self.claim(Waiter { key, applicant });
        Admission::Claims(ready)
    }

    fn fence_others(&mut self) {
        self.refuse_waiters(&fenced("Fenced by another producer that took exclusive access"));
        let keys = self.local().map(|producer| producer.key).collect();
        self.close_these(keys);
    }

    fn refuse_waiters(&mut self, error: &TopicError) {
        let waiters = std::mem::take(&mut self.waiters);
        for waiter in self.claiming.take().into_iter().chain(waiters) {
            let (sink, producer_id) = (waiter.applicant.sink, waiter.applicant.producer_id);
            self.effects.push_back(ProducerEffect::Refused {
                key: waiter.key,
                sink,
                producer_id,
                error: error.clone(),
            });
        }
    }

    fn close_these(&mut self, keys: Vec<ProducerKey>) {
        for key in keys {
            self.close(key);
        }
        self.exclusive = None;
    }

    fn claim(&mut self, waiter: Waiter<S>) {
        let next = self.epoch.map_or(0, |epoch| epoch + 1);
        let epoch = waiter.applicant.topic_epoch.map_or(next, |theirs| theirs.max(self.epoch.unwrap_or(0)));
        self.exclusive = Some(waiter.key);
        self.effects.push_back(ProducerEffect::PersistEpoch { key: waiter.key, epoch });
        self.claiming = Some(waiter);
    }

    /// P2: the epoch is durable (or could not be made so): the exclusive producer is in, unless it went meanwhile.
    pub(crate) fn epoch_persisted(
        &mut self,
        key: ProducerKey,
        epoch: u64,
        result: Result<(), TopicError>,
        now_ms: u64,
    ) {
        if result.is_ok() {
            self.epoch = self.epoch.max(Some(epoch));
        }
        let Some(waiter) = self.claiming.take_if(|waiter| waiter.key == key) else { return };
        let (sink, producer_id) = (waiter.applicant.sink.clone(), waiter.applicant.producer_id);
        match result {
            Ok(()) => {
                let ready = self.enter(key, waiter.applicant, now_ms);
                self.effects.push_back(ProducerEffect::Ready { sink, producer_id, ready });
            }
            Err(error) => {
                self.effects.push_back(ProducerEffect::Refused { key, sink, producer_id, error });
                self.exclusive = None;
                self.promote();
            }
        }
    }

    fn enter(&mut self, key: ProducerKey, applicant: Applicant<S>, now_ms: u64) -> ProducerReady {
        let exclusive = applicant.access_mode != AccessMode::Shared && applicant.link.is_none();
        if let (Some(link), Some(origins)) = (&applicant.link, &mut self.origins) {
            origins.open(link.source, link.rewinds, now_ms);
        }
        let dedup = self.dedup.as_mut().filter(|_| applicant.link.is_none());
        let ready = ProducerReady {
            key,
            name: applicant.name.to_string(),
            last_sequence_id: dedup.map_or(-1, |dedup| dedup.attach(&applicant.name, now_ms)),
            topic_epoch: if exclusive { self.epoch } else { None },
            ready: true,
        };
        let producer = Producer {
            key,
            sink: applicant.sink,
            producer_id: applicant.producer_id,
            name: applicant.name,
            epoch: applicant.epoch,
            access_mode: applicant.access_mode,
            metadata: applicant.metadata,
            connected_ms: now_ms,
            counters: ProducerCounters::default(),
            link: applicant.link,
            unanswered: 0,
            leaving: false,
            held: false,
            receipts: Vec::new(),
        };
        let index = self.list.partition_point(|other| other.key < key);
        self.list.insert(index, producer);
        ready
    }

    fn last_sequence_id(&self, name: &str) -> i64 {
        self.dedup.as_ref().map_or(-1, |dedup| dedup.last_sequence_id(name))
    }

    /// A producer goes; [`ProducerEffect::Gone`] follows when everything it sent is answered (P3).
    pub(crate) fn leave(&mut self, key: ProducerKey) {
        self.waiters.retain(|waiter| waiter.key != key);
        if self.claiming.take_if(|waiter| waiter.key == key).is_some() {
            self.effects.push_back(ProducerEffect::Gone { key });
        }
        if let Some(index) = self.index_of(key).filter(|index| self.list[*index].present()) {
            self.list[index].leaving = true;
            if let Some(dedup) = self.dedup.as_mut().filter(|_| self.list[index].link.is_none()) {
                // Idle since its last send.
                dedup.detach(&self.list[index].name, 0);
            }
            self.drop_if_answered(index);
        }
        if self.exclusive == Some(key) {
            self.exclusive = None;
        }
        self.promote();
    }

    /// The topic drops a producer.
    pub(crate) fn close(&mut self, key: ProducerKey) {
        let Some(index) = self.index_of(key).filter(|index| self.list[*index].present()) else { return };
        let (sink, producer_id) = (self.list[index].sink.clone(), self.list[index].producer_id);
        self.effects.push_back(ProducerEffect::Close { sink, producer_id });
        self.leave(key);
    }

    /// P7: holds the tenants' producers that are there.
    pub(crate) fn hold(&mut self) {
        for producer in self.list.iter_mut().filter(|producer| producer.local()) {
            producer.held = true;
        }
    }

    /// The tenants' producers go, those that were held and others; `moved` = to another region.
    pub(crate) fn close_local(&mut self, moved: bool) {
        let why =
            if moved { "The topic is served in another region" } else { "The topic was not available for a moment" };
        self.refuse_waiters(&TopicError::new(TopicErrorKind::ServiceNotReady, why));
        let local: Vec<ProducerKey> =
            self.list.iter().filter(|producer| producer.local()).map(|producer| producer.key).collect();
        for key in local {
            let Some(index) = self.index_of(key) else { continue };
            let (sink, producer_id) = (self.list[index].sink.clone(), self.list[index].producer_id);
            self.effects.push_back(match moved {
                true => ProducerEffect::Moved { sink, producer_id },
                false => ProducerEffect::Close { sink, producer_id },
            });
            self.leave(key);
        }
    }

    /// The producers of other regions go.
    pub(crate) fn close_links(&mut self) {
        let links: Vec<ProducerKey> =
            self.present().filter(|producer| producer.link.is_some()).map(|producer| producer.key).collect();
        for key in links {
            self.close(key);
        }
    }

    /// Sends of tenants without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        self.list.iter().filter(|producer| producer.link.is_none()).map(|producer| u64::from(producer.unanswered)).sum()
    }

    /// Unload, delete or fencing of the topic: everybody goes.
    pub(crate) fn close_all(&mut self) {
        self.refuse_waiters(&TopicError::new(TopicErrorKind::ServiceNotReady, "The topic is being closed"));
        let keys = self.present().map(|producer| producer.key).collect();
        self.close_these(keys);
    }

    /// Whether a removed producer still has sends without an answer.
    pub(crate) fn is_leaving(&self, key: ProducerKey) -> bool {
        self.index_of(key).is_some()
    }

    /// Gives up on the answers of a leaving producer.
    pub(crate) fn abandon(&mut self, key: ProducerKey) {
        if let Some(index) = self.index_of(key) {
            self.list.remove(index);
            self.effects.push_back(ProducerEffect::Gone { key });
        }
    }

    pub(super) fn drop_if_answered(&mut self, index: usize) {
        let producer = &self.list[index];
        if producer.leaving && producer.unanswered == 0 {
            let key = producer.key;
            self.list.remove(index);
            self.effects.push_back(ProducerEffect::Gone { key });
        }
    }

    fn promote(&mut self) {
        if self.exclusive.is_none()
            && self.local().next().is_none()
            && let Some(waiter) = self.waiters.pop_front()
        {
            self.claim(waiter);
        }
    }
}
