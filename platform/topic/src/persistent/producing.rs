//! Producers and publishing: calls in, appends out, answers of the log back.

use super::{EPOCH_PROPERTY, PersistentTopic, next_key};
use crate::api::{ProducerKey, ProducerReady, ProducerRequest, Publish, TopicError, TopicErrorKind, TopicLimits};
use crate::dedup::Sequence;
use crate::figures::{Client, ProducerRates};
use crate::origins::{LinkIdentity, Origin, is_link};
use crate::producers::{Admission, Applicant, ProducerEffect, Producers, PublishGate, Send};
use meridian_managed_ledger::{Appended, LogError};
use meridian_types::{Classify, ErrorClass};
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{split, summarize};
use meridian_wire::replicate::source_position;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// An answer of the log that waits for the producers' lock.
pub(super) enum LogAnswer {
    Appended(Vec<Appended>),
    Failed(Vec<u64>, LogError),
}

/// The producers with who waits for what of them.
pub(super) struct ProducerSide {
    pub(super) core: Producers<Client>,
    /// Calls that wait for exclusive access to be granted.
    admissions: Vec<(ProducerKey, oneshot::Sender<Result<ProducerReady, TopicError>>)>,
    /// Calls that wait for a producer's last answer.
    departures: Vec<(ProducerKey, oneshot::Sender<()>)>,
    pub(super) gate: PublishGate,
    /// A timer will look at the gate.
    pub(super) gate_timer_runs: bool,
    pub(super) latency: super::stats::LatencyHistogram,
    pub(super) rates: ProducerRates,
    pub(super) messages_in: u64,
    pub(super) bytes_in: u64,
}

impl ProducerSide {
    fn new(epoch: Option<u64>, publish_rate: (u64, u64)) -> Box<Self> {
        Box::new(Self {
            core: Producers::new(epoch),
            gate: PublishGate::new(publish_rate),
            gate_timer_runs: false,
            admissions: Vec::new(),
            departures: Vec::new(),
            latency: super::stats::LatencyHistogram::default(),
            rates: ProducerRates::default(),
            messages_in: 0,
            bytes_in: 0,
        })
    }
}

impl PersistentTopic {
    /// Runs `event` on the producers and everything that follows from it (T1, T2).
    pub(super) fn with_producers<R>(&self, event: impl FnOnce(&mut ProducerSide) -> R) -> R {
        let result = {
            let mut guard = self.producers.lock();
            let side =
                guard.get_or_insert_with(|| ProducerSide::new(self.stored_epoch(), self.limits.read().publish_rate));
            // What the log has said before comes first: nothing passes a send that is known to have failed.
            self.take_answers(side);
            let result = event(side);
            self.run_producers(side);
            result
        };
        self.handle_answers();
        result
    }

    fn stored_epoch(&self) -> Option<u64> {
        self.log.properties().get(EPOCH_PROPERTY).and_then(|text| text.parse().ok())
    }

    fn run_producers(&self, side: &mut ProducerSide) {
        while let Some(effect) = side.core.next_effect() {
            match effect {
                ProducerEffect::Receipts { sink, producer_id, receipts } => sink.0.receipts(producer_id, &receipts),
                ProducerEffect::SendError { sink, producer_id, sequence_id, error } => {
                    sink.0.send_error(producer_id, sequence_id, error.kind, &error.message);
                }
                ProducerEffect::PersistEpoch { key, epoch } => self.persist_epoch(key, epoch),
                ProducerEffect::Ready { sink, producer_id, ready } => match take_by(&mut side.admissions, ready.key) {
                    Some(call) => {
                        if let Err(Ok(ready)) = call.send(Ok(ready)) {
                            // Whoever asked has gone meanwhile.
                            side.core.leave(ready.key);
                        }
                    }
                    None => sink.0.producer_ready(producer_id, ready),
                },
                ProducerEffect::Refused { key, sink, producer_id, error } => match take_by(&mut side.admissions, key) {
                    Some(call) => drop(call.send(Err(error))),
                    None => sink.0.producer_refused(producer_id, &error),
                },
                ProducerEffect::Close { sink, producer_id } => sink.0.close_producer(producer_id),
                ProducerEffect::Moved { sink, producer_id } => self.move_producer(&*sink.0, producer_id),
                ProducerEffect::Gone { key } => {
                    take_by(&mut side.admissions, key);
                    if let Some(call) = take_by(&mut side.departures, key) {
                        let _ = call.send(());
                    }
                }
            }
        }
    }

    fn persist_epoch(&self, key: ProducerKey, epoch: u64) {
        let Some(topic) = self.me.upgrade() else { return };
        let runtime = topic.deps.runtime.clone();
        runtime.spawn(async move {
            let change = [(EPOCH_PROPERTY.to_owned(), epoch.to_string())].into();
            let result = topic.update_properties(change).await.map_err(TopicError::from);
            let now_ms = topic.now_ms();
            topic.with_producers(|side| side.core.epoch_persisted(key, epoch, result, now_ms));
        });
    }

    /// Adds a producer.
    pub(super) async fn admit(&self, request: ProducerRequest) -> Result<ProducerReady, TopicError> {
        let limits = self.limits();
        self.check_producer(&request, &limits)?;
        if let Some(subscription) = &request.initial_subscription {
            self.ensure_subscription(subscription).await?;
        }
        let link = LinkIdentity::of(&request.name, &request.metadata, request.receipts_by_position).map(Arc::new);
        if let Some(link) = &link {
            self.refuse_own_life(link)?;
            self.ensure_origins().await?;
        }
        let max = limits.max_producers;
        let applicant = Applicant {
            sink: Client(request.sink),
            producer_id: request.producer_id,
            name: request.name.into(),
            epoch: request.epoch,
            access_mode: request.access_mode,
            topic_epoch: request.topic_epoch,
            metadata: request.metadata,
            link: link.clone(),
        };
        loop {
            let now_ms = self.now_ms();
            let key = ProducerKey(next_key());
            let (admission, granted) = self.with_producers(|side| {
                let admission = side.core.admit(key, applicant.clone(), max, now_ms);
                let mut granted = None;
                if let Admission::Claims(_) = admission {
                    let (call, answer) = oneshot::channel();
                    side.admissions.push((key, call));
                    granted = Some(answer);
                }
                (admission, granted)
            });
            match admission {
                Admission::In(mut ready) | Admission::Waits(mut ready) => {
                    self.touch(now_ms);
                    if let Some(link) = link {
                        // Of Meridian's links nobody is exclusive: the epoch tells them which life of the topic this is.
                        ready.topic_epoch = ready.topic_epoch.or(link.rewinds.then_some(self.log.incarnation().0));
                        self.note_link(ready.key, link);
                    }
                    return self.keep_if_open(ready);
                }
                Admission::Claims(_) => {
                    let Some(granted) = granted else { continue };
                    let lost = || TopicError::new(TopicErrorKind::ProducerFenced, "Exclusive access was lost");
                    return self.keep_if_open(granted.await.map_err(|_| lost())??);
                }
                Admission::Refused(error) => return Err(error),
                Admission::NameTaken { key, sink } => {
                    if sink.0.probe().await {
                        return Err(TopicError::new(
                            TopicErrorKind::ProducerBusy,
                            format!(
                                "Producer with name '{}' is already connected to topic '{}'",
                                applicant.name, self.name
                            ),
                        ));
                    }
                    self.with_producers(|side| side.core.leave(key));
                }
            }
        }
    }

    /// What was first stored in this life of the topic is here: a link that brings it is mistaken.
    fn refuse_own_life(&self, link: &LinkIdentity) -> Result<(), TopicError> {
        if link.source.incarnation != self.log.incarnation() {
            return Ok(());
        }
        let message = format!("The link brings what {} has stored itself", self.name);
        Err(TopicError::new(TopicErrorKind::NotAllowed, message))
    }

    /// A topic that was closed meanwhile keeps nobody.
    fn keep_if_open(&self, ready: ProducerReady) -> Result<ProducerReady, TopicError> {
        let result = self.refuse_if_closed().and_then(|()| self.gate_for_producer(&ready.name));
        if result.is_err() {
            self.with_producers(|side| side.core.leave(ready.key));
        }
        result.map(|()| ready)
    }

    fn check_producer(&self, request: &ProducerRequest, limits: &TopicLimits) -> Result<(), TopicError> {
        self.refuse_if_closed()?;
        self.gate_for_producer(&request.name)?;
        if self.terminated.load(Ordering::Acquire) {
            return Err(TopicError::new(TopicErrorKind::TopicTerminated, "Topic was already terminated"));
        }
        if let Some(kind) = self.quota_refusal(limits) {
            // Somebody waits for room: look again soon, not only at the next round.
            self.hasten_quota_check();
            return Err(TopicError::new(kind, "Cannot create producer on topic with backlog quota exceeded"));
        }
        if let Some(reason) = self.hold.read().as_deref().filter(|_| !is_link(&request.name)) {
            return Err(TopicError::new(TopicErrorKind::ProducerBlockedQuotaExceededException, reason));
        }
        // Clients fail what they hold with this error and go on trying, where others would be repeated without end.
        if let Some(reason) = self.log.unwritable() {
            let message = format!("Storage takes no messages: {reason}");
            return Err(TopicError::new(TopicErrorKind::ProducerBlockedQuotaExceededException, message));
        }
        if limits.encryption_required && !request.encrypted && !is_link(&request.name) {
            let message = format!("Encryption is required in {}", self.name);
            return Err(TopicError::new(TopicErrorKind::Metadata, message));
        }
        Ok(())
    }

    /// Takes a run of sends of one producer.
    pub(super) fn publish_run(&self, key: ProducerKey, batch: Vec<Publish>) {
        let limits = self.limits();
        let now_us = self.deps.clock.monotonic_us();
        let now_ms = self.now_ms();
        let sends: Vec<Send> = match self.link_of(key) {
            Some(link) => batch.into_iter().map(|publish| check_link_send(publish, &link, &limits)).collect(),
            None => batch.into_iter().map(|publish| check_send(publish, &limits, now_ms)).collect(),
        };
        self.with_producers(|side| {
            let sends = self.through_gate(side, key, sends, now_ms);
            self.store(side, key, sends, now_us, now_ms);
        });
        self.touch(now_ms);
    }

    /// Hands sends that may pass to the log (T1).
    pub(super) fn store(&self, side: &mut ProducerSide, key: ProducerKey, sends: Vec<Send>, now_us: u64, now_ms: u64) {
        let appends = side.core.publish(key, sends, now_us, now_ms);
        if appends.is_empty() {
            return;
        }
        for append in &appends {
            side.messages_in += u64::from(append.messages);
            side.bytes_in += append.payload.len() as u64;
        }
        self.log.append(appends);
    }

    /// Removes a producer after its last answer, or after the deadline.
    pub(super) async fn dismiss(&self, key: ProducerKey) {
        let gone = self.with_producers(|side| {
            side.gate.forget(key);
            side.core.leave(key);
            side.core.is_leaving(key).then(|| {
                let (call, gone) = oneshot::channel();
                side.departures.push((key, call));
                gone
            })
        });
        let Some(gone) = gone else { return };
        if tokio::time::timeout(Duration::from_millis(self.deps.close_deadline_ms), gone).await.is_err() {
            tracing::warn!(topic = %self.name, producer = key.0, "closing a producer whose sends are not answered");
            self.with_producers(|side| side.core.abandon(key));
        }
    }

    pub(super) fn appended(&self, entries: &[Appended]) {
        if !self.answer_now(|topic, side| topic.confirm(side, entries)) {
            self.answers.lock().push_back(LogAnswer::Appended(entries.to_vec()));
        }
        self.handle_answers();
        self.markers_stored(entries);
        self.announce_data();
    }

    pub(super) fn append_failed(&self, tokens: &[u64], error: &LogError) {
        self.markers_failed(tokens);
        self.answers.lock().push_back(LogAnswer::Failed(tokens.to_vec(), error.clone()));
        self.handle_answers();
        if error.class() == ErrorClass::Fenced {
            self.close_clients();
            self.deps.events.fenced(&self.name, &error.to_string());
        }
    }

    /// Handles an answer at once if nobody holds the lock and none is queued before it.
    fn answer_now(&self, event: impl FnOnce(&Self, &mut ProducerSide)) -> bool {
        let Some(mut guard) = self.producers.try_lock() else { return false };
        if !self.answers.lock().is_empty() {
            return false;
        }
        if let Some(side) = guard.as_mut() {
            event(self, side);
            self.run_producers(side);
        }
        true
    }

    /// T2: whoever queues an answer tries this, and whoever releases the lock does it again.
    fn handle_answers(&self) {
        while !self.answers.lock().is_empty() {
            let Some(mut guard) = self.producers.try_lock() else { return };
            match guard.as_mut() {
                Some(side) => self.take_answers(side),
                None => self.answers.lock().clear(),
            }
        }
    }

    fn take_answers(&self, side: &mut ProducerSide) {
        loop {
            let answers = std::mem::take(&mut *self.answers.lock());
            if answers.is_empty() {
                return;
            }
            for answer in answers {
                match answer {
                    LogAnswer::Appended(entries) => self.confirm(side, &entries),
                    LogAnswer::Failed(tokens, error) => {
                        side.core.failed(&tokens, &publish_error(&error));
                    }
                }
                self.run_producers(side);
            }
        }
    }

    fn confirm(&self, side: &mut ProducerSide, entries: &[Appended]) {
        let now_us = self.deps.clock.monotonic_us();
        if let Some(latency_us) = side.core.confirmed(entries, now_us) {
            side.latency.add(latency_us);
        }
    }
}

fn take_by<T>(list: &mut Vec<(ProducerKey, T)>, key: ProducerKey) -> Option<T> {
    let index = list.iter().position(|(other, _)| *other == key)?;
    Some(list.swap_remove(index).1)
}

/// The error of a send as the wire knows it: everything but termination is one of persistence.
fn publish_error(error: &LogError) -> TopicError {
    let kind = match error {
        LogError::Terminated(_) => TopicErrorKind::TopicTerminated,
        _ => TopicErrorKind::Persistence,
    };
    TopicError::new(kind, error.to_string())
}

/// What can be refused before storage is asked. Metadata is read only if a rule needs it.
pub(crate) fn check_send(publish: Publish, limits: &TopicLimits, now_ms: u64) -> Send {
    let refuse = |kind, message: &str| Some(Box::new(TopicError::new(kind, message)));
    let mut send = Send { sequence: None, origin: None, author: None, refusal: None, publish };
    let publish = &send.publish;
    if publish.marker {
        return send;
    }
    if limits.max_message_bytes != 0 && publish.payload.len() > limits.max_message_bytes as usize {
        send.refusal = refuse(TopicErrorKind::NotAllowed, "Exceed maximum message size");
        return send;
    }
    let dedup = limits.deduplication || limits.global_producers;
    if dedup {
        let highest = publish.highest_sequence_id.map(|highest| highest as i64);
        send.sequence = Some(Sequence::new(publish.sequence_id as i64, highest, publish.messages));
    }
    if !limits.encryption_required && limits.max_delay_ms == 0 && !(dedup && publish.is_chunk) {
        return send;
    }
    let Ok(summary) = summarize(&publish.payload) else { return send };
    let deliver_at_ms = summary.deliver_at_time_ms.map_or(0, |at| u64::try_from(at).unwrap_or(0));
    if limits.encryption_required && !summary.is_encrypted() {
        send.refusal = refuse(TopicErrorKind::Metadata, "Messages must be encrypted");
    } else if limits.max_delay_ms != 0 && deliver_at_ms > now_ms.saturating_add(limits.max_delay_ms) {
        send.refusal = refuse(TopicErrorKind::NotAllowed, "Exceeds max allowed delivery delay");
    }
    if dedup && publish.is_chunk {
        send.sequence = Some(Sequence::of(&summary));
    }
    send
}

/// What a link sends was admitted in its own region: only what storage and this region's sizes bound is checked.
pub(crate) fn check_link_send(publish: Publish, link: &LinkIdentity, limits: &TopicLimits) -> Send {
    let mut send = Send { sequence: None, origin: None, author: None, refusal: None, publish };
    let publish = &send.publish;
    let global = limits.global_producers && !publish.marker;
    let mut source = link.source;
    let mut position = publish.source;
    if position.is_none() || global {
        let parts = split(&publish.payload).ok();
        let summary = parts.and_then(|parts| MetadataSummary::decode(parts.metadata).ok());
        if let (None, Some(parts)) = (position, parts) {
            position = source_position(parts.metadata);
            if let Some(region) = summary.and_then(|summary| summary.replicated_from).filter(|name| !name.is_empty()) {
                source.region = meridian_types::RegionId::of(region);
            }
        }
        if let Some(summary) = summary.filter(|_| global) {
            send.author = Some(summary.producer_name.into());
            send.sequence = Some(Sequence::of(&summary));
        }
    }
    send.origin = position.map(|position| Origin { source, position });
    if !publish.marker && limits.max_message_bytes != 0 && publish.payload.len() > limits.max_message_bytes as usize {
        let error = TopicError::new(TopicErrorKind::NotAllowed, "Exceed maximum message size");
        send.refusal = Some(Box::new(error));
    }
    send
}
