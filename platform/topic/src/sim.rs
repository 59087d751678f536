//! The producers of a topic without sockets and logs, for simulations (feature `sim`).
//!
//! Role: the decisions of a real topic, as a value: the same checks of sends, the same machine, the same marks. The shell
//! around it (log, sinks, clock) is the simulation's.
//! Must never know: more than [`crate::producers`].

use crate::api::{AccessMode, ProducerKey, Publish, Receipt, TopicError, TopicLimits};
use crate::dedup::Dedup;
use crate::origins::{LinkIdentity, OriginMarks};
use crate::persistent::{check_link_send, check_send};
use crate::producers::{Admission, Applicant, ProducerEffect, Producers};
use meridian_managed_ledger::{AppendRequest, Appended};
use meridian_types::Position;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The answer to a producer that wants in.
#[derive(Debug)]
pub enum Entry {
    /// It may publish.
    In(ProducerKey),
    /// A producer of that name is there: its key, and the connection that it came by.
    NameTaken(ProducerKey, u64),
    /// It may not.
    Refused(TopicError),
}

/// What a topic says to a connection.
#[derive(Debug)]
pub enum Answer {
    /// Receipts, in the order of the sends.
    Receipts(u64, Vec<Receipt>),
    /// One send is refused.
    SendError(u64, u64, TopicError),
    /// The producer was dropped.
    Close(u64),
}

/// See the head of the file.
pub struct ProducerCore {
    core: Producers<u64>,
    limits: TopicLimits,
    last_key: u64,
}

/// Limits that bind nothing; deduplication as said.
pub fn limits(deduplication: bool, global_producers: bool) -> TopicLimits {
    TopicLimits {
        max_producers: 0,
        max_consumers: 0,
        max_consumers_per_subscription: 0,
        max_subscriptions: 0,
        max_unacked_per_consumer: 0,
        max_unacked_per_subscription: 0,
        max_message_bytes: 0,
        encryption_required: false,
        deduplication,
        global_producers,
        dedup_max_producers: 0,
        dedup_snapshot_entries: 0,
        dedup_snapshot_s: 0,
        message_ttl_s: 0,
        delayed_delivery: false,
        delayed_tick_ms: 0,
        max_delay_ms: 0,
        batch_index_ack: true,
        failover_delay_ms: 0,
        key_shared_consistent_hashing: None,
        dispatch_read_entries: 0,
        dispatch_read_bytes: 0,
        dispatch_round_robin_entries: 0,
        backlog_quota_bytes: 0,
        backlog_quota_s: 0,
        backlog_bytes_policy: 0,
        backlog_age_policy: 0,
        allowed_types: Vec::new(),
        publish_rate: (0, 0),
        topic_dispatch_rate: (0, 0),
        topic_dispatch_relative: false,
        dispatch_rate: (0, 0),
        dispatch_relative: false,
        subscribe_rate: (0, 0),
        subscription_expiration_minutes: 0,
        compaction_threshold_bytes: 0,
    }
}

impl ProducerCore {
    /// A topic that was loaded: its marks are up to date up to `covered`.
    pub fn new(
        limits: TopicLimits,
        origins: OriginMarks,
        dedup: Option<Dedup>,
        covered: Position,
        now_ms: u64,
    ) -> Self {
        let mut core = Producers::new(None);
        core.start_origins(Box::new(origins), covered);
        core.start_dedup(dedup.map(Box::new), covered, now_ms);
        Self { core, limits, last_key: 0 }
    }

    /// A producer wants in; `connection` is where its answers go.
    pub fn admit(&mut self, connection: u64, name: &str, link: Option<LinkIdentity>, now_ms: u64) -> Entry {
        let applicant = Applicant {
            sink: connection,
            producer_id: 1,
            name: name.into(),
            epoch: 0,
            access_mode: AccessMode::Shared,
            topic_epoch: None,
            metadata: BTreeMap::new(),
            link: link.map(Arc::new),
        };
        self.last_key += 1;
        let key = ProducerKey(self.last_key);
        match self.core.admit(key, applicant, 0, now_ms) {
            Admission::In(ready) | Admission::Waits(ready) | Admission::Claims(ready) => Entry::In(ready.key),
            Admission::NameTaken { key, sink } => Entry::NameTaken(key, sink),
            Admission::Refused(error) => Entry::Refused(error),
        }
    }

    /// Sends of one producer; `Some` = something is in the way of that one. What has to be appended, in order.
    pub fn publish(
        &mut self,
        key: ProducerKey,
        run: Vec<(Publish, Option<TopicError>)>,
        now_ms: u64,
    ) -> Vec<AppendRequest> {
        let link = self.core.link(key);
        let check = |(publish, refusal): (Publish, Option<TopicError>)| {
            let mut send = match &link {
                Some(link) => check_link_send(publish, link, &self.limits),
                None => check_send(publish, &self.limits, now_ms),
            };
            send.refusal = refusal.map(Box::new).or(send.refusal);
            send
        };
        let sends = run.into_iter().map(check).collect();
        self.core.publish(key, sends, now_ms * 1000, now_ms)
    }

    /// The log has confirmed entries.
    pub fn confirmed(&mut self, entries: &[Appended], now_ms: u64) {
        self.core.confirmed(entries, now_ms * 1000);
    }

    /// The log has refused appends.
    pub fn failed(&mut self, tokens: &[u64], error: &TopicError) {
        self.core.failed(tokens, error);
    }

    /// A producer goes.
    pub fn leave(&mut self, key: ProducerKey) {
        self.core.leave(key);
    }

    /// The topic drops a producer.
    pub fn close(&mut self, key: ProducerKey) {
        self.core.close(key);
    }

    /// The next thing to say.
    pub fn next_answer(&mut self) -> Option<Answer> {
        loop {
            match self.core.next_effect()? {
                ProducerEffect::Receipts { sink, receipts, .. } => return Some(Answer::Receipts(sink, receipts)),
                ProducerEffect::SendError { sink, sequence_id, error, .. } => {
                    return Some(Answer::SendError(sink, sequence_id, error));
                }
                ProducerEffect::Close { sink, .. } => return Some(Answer::Close(sink)),
                _ => {}
            }
        }
    }

    /// The marks of what came over links.
    pub fn origins_mut(&mut self) -> Option<&mut OriginMarks> {
        self.core.origins.as_deref_mut()
    }

    /// The marks of producers.
    pub fn dedup_mut(&mut self) -> Option<&mut Dedup> {
        self.core.dedup.as_deref_mut()
    }

    /// The last entry that was confirmed to the marks.
    pub fn confirmed_to(&self) -> Position {
        self.core.confirmed_to()
    }
}
