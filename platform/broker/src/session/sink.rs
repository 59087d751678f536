//! What topics say to a connection.
//!
//! All calls come from topics, perhaps under their locks: they take the session's locks for a moment (slots before
//! outbound, never the other way) and call no topic (N1).

use super::Session;
use super::slots::{Answered, ProducerSlot};
use crate::session::reply;
use meridian_topic::api::BoxFuture;
use meridian_topic::origins::is_link;
use meridian_topic::{ClientSink, Delivery, MovedTo, ProducerReady, Receipt, TopicError, TopicErrorKind};
use meridian_wire::encode::{self, MessageHeader, SendReceipt};
use meridian_wire::error::NO_REQUEST;
use meridian_wire::payload::{self, BrokerEntry};
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::{
    CommandActiveConsumerChange, CommandCloseConsumer, CommandCloseProducer, CommandReachedEndOfTopic,
    CommandTopicMigrated,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Protocol version from which a peer understands a command.
const CLOSE_COMMANDS_SINCE: i32 = 5;
const END_OF_TOPIC_SINCE: i32 = 9;
const CHECKSUM_SINCE: i32 = 11;
const ACTIVE_CHANGE_SINCE: i32 = 12;
const TOPIC_MIGRATED_SINCE: i32 = 20;

impl Session {
    /// Tells a client that knows it where its producer or consumer belongs.
    pub(super) fn send_moved(&self, resource: ResourceType, resource_id: u64, to: &MovedTo) {
        if self.protocol() < TOPIC_MIGRATED_SINCE {
            return;
        }
        self.send(CommandTopicMigrated {
            resource_id,
            resource_type: resource as i32,
            broker_service_url: to.broker_url.clone(),
            broker_service_url_tls: to.broker_url_tls.clone(),
        });
    }
}

impl ClientSink for Session {
    fn receipts(&self, producer_id: u64, receipts: &[Receipt]) {
        let answered = {
            let mut slots = self.slots.lock();
            slots.producers.get_mut(&producer_id).map(|slot| slot.answered(receipts.len())).unwrap_or_default()
        };
        self.outbound.append(|appender| {
            for receipt in receipts {
                let receipt = SendReceipt {
                    producer_id,
                    sequence_id: receipt.sequence_id,
                    highest_sequence_id: receipt.highest_sequence_id,
                    position: receipt.position,
                    partition: None,
                };
                encode::encode_send_receipt(&receipt, appender.buffer());
            }
        });
        self.give_back(answered);
    }

    fn send_error(&self, producer_id: u64, sequence_id: u64, kind: TopicErrorKind, message: &str) {
        let (answered, link) = {
            let mut slots = self.slots.lock();
            let slot = slots.producers.get_mut(&producer_id);
            slot.map(|slot| (slot.answered(1), is_link(&slot.name))).unwrap_or_default()
        };
        // A Pulsar broker that sends to us takes "not allowed" for the end of that message, and its replicator then stands
        // still; after any other word it opens a new session and sends again.
        let kind = if link && kind == TopicErrorKind::NotAllowed { TopicErrorKind::Persistence } else { kind };
        self.send(meridian_wire::error::send_error(producer_id, sequence_id, reply::server_error(kind), message));
        self.give_back(answered);
    }

    fn producer_ready(&self, producer_id: u64, ready: ProducerReady) {
        let answer = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.producers.get_mut(&producer_id) else { return };
            let is_same = slot.attached.as_ref().is_none_or(|(_, key)| *key == ready.key);
            if !is_same || slot.ready {
                return;
            }
            slot.ready = ready.ready;
            // Without a topic yet the creation is not answered; its own answer will say that it is ready.
            slot.attached.is_some().then(|| reply::producer_success(slot.request_id, &ready, &slot.schema_version))
        };
        if let Some(answer) = answer {
            self.send(answer);
        }
    }

    fn producer_refused(&self, producer_id: u64, error: &TopicError) {
        let Some(mut slot) = self.slots.lock().producers.remove(&producer_id) else { return };
        self.give_back(slot.answered(usize::MAX));
        let kind = reply::server_error(error.kind);
        self.send(meridian_wire::error::request_error(slot.request_id, kind, &error.message));
    }

    fn close_producer(&self, producer_id: u64) {
        let mut assigned = None;
        let gone = {
            let mut slots = self.slots.lock();
            match slots.producers.get_mut(&producer_id) {
                None => return,
                Some(slot) if slot.attached.is_none() => {
                    slot.dropped = true;
                    return;
                }
                Some(_) => {}
            }
            let keep = Duration::from_secs(self.service.config().session.keep_alive_interval_s);
            slots.remember_closed(producer_id, Instant::now(), keep);
            slots.producers.remove(&producer_id)
        };
        if let Some((topic, _)) = gone.as_ref().and_then(|slot| slot.attached.as_ref()) {
            assigned = self.service.assigned_to(topic.name(), self.listener.as_deref());
        }
        if let Some(slot) = gone {
            self.drop_unanswered(slot);
        }
        if self.protocol() < CLOSE_COMMANDS_SINCE {
            return self.close("a producer was closed and the client is too old to be told");
        }
        let (url, url_tls) = assigned.map(|to| (to.broker_url, to.broker_url_tls)).unwrap_or_default();
        self.send(CommandCloseProducer {
            producer_id,
            request_id: NO_REQUEST,
            assigned_broker_service_url: url,
            assigned_broker_service_url_tls: url_tls,
        });
    }

    fn producer_moved(&self, producer_id: u64, to: &MovedTo) {
        self.send_moved(ResourceType::Producer, producer_id, to);
        self.close_producer(producer_id);
    }

    fn consumer_moved(&self, consumer_id: u64, to: &MovedTo) {
        self.send_moved(ResourceType::Consumer, consumer_id, to);
        self.close_consumer(consumer_id);
    }

    fn publishes_held(&self, producer_id: u64, is_held: bool) {
        // Under the lock, so that no answer is given back to the side that it was not taken from.
        let mut slots = self.slots.lock();
        let moved = slots.producers.get_mut(&producer_id).and_then(|slot| slot.hold(is_held));
        let Some((count, bytes)) = moved else { return };
        if is_held {
            self.throttle.held_begun(count, bytes);
            self.throttle.publishes_ended(count, bytes);
        } else {
            self.throttle.publishes_begun(count, bytes);
            self.throttle.held_ended(count, bytes);
        }
    }

    fn close_consumer(&self, consumer_id: u64) {
        let gone = {
            let mut slots = self.slots.lock();
            match slots.consumers.get_mut(&consumer_id) {
                None => return,
                Some(slot) if slot.attached.is_none() => {
                    slot.dropped = true;
                    return;
                }
                Some(_) => slots.consumers.remove(&consumer_id),
            }
        };
        let topic = gone.and_then(|slot| slot.attached).map(|(topic, _)| topic);
        let assigned = topic.and_then(|topic| self.service.assigned_to(topic.name(), self.listener.as_deref()));
        if self.protocol() < CLOSE_COMMANDS_SINCE {
            return self.close("a consumer was closed and the client is too old to be told");
        }
        let (url, url_tls) = assigned.map(|to| (to.broker_url, to.broker_url_tls)).unwrap_or_default();
        self.send(CommandCloseConsumer {
            consumer_id,
            request_id: NO_REQUEST,
            assigned_broker_service_url: url,
            assigned_broker_service_url_tls: url_tls,
        });
    }

    fn deliver(&self, consumer_id: u64, deliveries: Vec<Delivery>) {
        let partition = self.slots.lock().consumers.get(&consumer_id).and_then(|slot| slot.partition);
        let Some(client) = self.client() else { return };
        self.outbound.append(|appender| {
            for delivery in deliveries {
                let broker_entry = client
                    .broker_entry_metadata
                    .then_some(BrokerEntry { broker_timestamp_ms: delivery.broker_time_ms, index: delivery.index });
                let header = MessageHeader {
                    consumer_id,
                    position: delivery.position,
                    partition,
                    redelivery_count: delivery.redelivery_count,
                    ack_set: &delivery.ack_set,
                    consumer_epoch: delivery.consumer_epoch,
                    broker_entry,
                };
                let entry = if client.protocol >= CHECKSUM_SINCE {
                    delivery.payload
                } else {
                    payload::without_checksum(&delivery.payload)
                };
                encode::encode_message(&header, entry.len(), appender.buffer());
                appender.payload(entry);
            }
        });
    }

    fn active_consumer_changed(&self, consumer_id: u64, is_active: bool) {
        {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.consumers.get_mut(&consumer_id) else { return };
            if slot.attached.is_none() {
                slot.active = Some(is_active);
                return;
            }
        }
        self.send_active(consumer_id, is_active);
    }

    fn reached_end_of_topic(&self, consumer_id: u64) {
        let known = self.client().is_some_and(|client| client.knows_end_of_topic);
        if known && self.protocol() >= END_OF_TOPIC_SINCE {
            self.send(CommandReachedEndOfTopic { consumer_id });
        }
    }

    fn is_writable(&self) -> bool {
        self.outbound.is_writable()
    }

    fn probe(&self) -> BoxFuture<'static, bool> {
        let session = self.this.upgrade();
        Box::pin(async move {
            match session {
                Some(session) => session.is_alive().await,
                None => false,
            }
        })
    }

    fn peer_address(&self) -> String {
        self.peer.to_string()
    }

    fn client_version(&self) -> String {
        self.client().map(|client| client.version.clone()).unwrap_or_default()
    }
}

impl Session {
    pub(super) fn send_active(&self, consumer_id: u64, is_active: bool) {
        if self.protocol() >= ACTIVE_CHANGE_SINCE {
            self.send(CommandActiveConsumerChange { consumer_id, is_active: Some(is_active) });
        }
    }

    fn give_back(&self, answered: Answered) {
        let Answered { count, bytes, held } = answered;
        match held {
            _ if count == 0 => {}
            true => self.throttle.held_ended(count, bytes),
            false => self.throttle.publishes_ended(count, bytes),
        }
    }

    /// What a producer had under way will not be answered any more.
    pub(super) fn drop_unanswered(&self, mut slot: ProducerSlot) {
        self.give_back(slot.answered(usize::MAX));
    }

    /// PINGs the peer; anything that comes within the liveness time-out proves it alive.
    async fn is_alive(&self) -> bool {
        if self.end.borrow().is_some() {
            return false;
        }
        let before = self.received.load(Ordering::SeqCst);
        self.probing.fetch_add(1, Ordering::SeqCst);
        self.outbound.append(|appender| encode::encode_ping(appender.buffer()));
        let limit = Duration::from_millis(self.service.config().session.liveness_timeout_ms);
        let heard = tokio::time::timeout(limit, async {
            loop {
                let traffic = self.traffic.notified();
                // While we do not read on purpose, silence proves nothing.
                if self.received.load(Ordering::SeqCst) != before || self.throttle.is_paused() {
                    return;
                }
                traffic.await;
            }
        });
        let mut end = self.end.subscribe();
        let alive = tokio::select! {
            heard = heard => heard.is_ok(),
            _ = end.wait_for(Option::is_some) => false,
        };
        self.probing.fetch_sub(1, Ordering::SeqCst);
        if !alive {
            self.close("no answer to a liveness probe");
        }
        alive
    }
}
