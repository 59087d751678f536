//! A simple consumer, for tools and tests: entries as they are stored, over as many connections as it takes.
//!
//! Invariants: at most `queue` messages are permitted ahead, so no more wait here; after a reconnection the entries that
//! were not handed out yet are forgotten, since the broker sends them again; an entry may therefore come twice, never out
//! of sight.
//! Failure: what may pass is tried again with back-off until `retry_ms` have passed; the rest goes to the caller at once.
//! Must never know: batches' insides, what the messages mean.

use crate::ClientError;
use crate::address::{BrokerAddress, Endpoint};
use crate::backoff::Backoff;
use crate::connection::{Connection, ConsumerSlot, unexpected};
use crate::pool::PeerPool;
use bytes::Bytes;
use meridian_types::{Position, TopicName};
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_ack::AckType;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use meridian_wire::proto::{
    CommandAck, CommandCloseConsumer, CommandFlow, CommandMessage, CommandRedeliverUnacknowledgedMessages, CommandSeek,
    CommandSubscribe, CommandUnsubscribe, KeyValue, MessageIdData, Schema, ServerError,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Entries that a broker may send beyond twice what it is permitted.
const PERMIT_SLACK: usize = 100;

/// One entry as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delivery {
    pub(crate) message: CommandMessage,
    pub(crate) entry: Bytes,
}

/// What a consumer's broker says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConsumerEvent {
    Message(Delivery),
    EndOfTopic,
    Active(bool),
    TopicMigrated { url: String },
    Closed { reason: String, broker_url: Option<String> },
}

/// One entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    /// Its id, to be acknowledged.
    pub id: MessageIdData,
    /// Times it was redelivered.
    pub redelivery_count: u32,
    /// Bits of the messages that are not acknowledged; empty: all.
    pub ack_set: Vec<i64>,
    /// Messages in it.
    pub messages: u32,
    /// Checksum, metadata and payload.
    pub entry: Bytes,
}

impl Received {
    /// Where it is stored.
    pub fn position(&self) -> Position {
        Position::new(self.id.ledger_id as i64, self.id.entry_id as i64)
    }
}

/// What to subscribe to and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerOptions {
    /// The topic or partition.
    pub topic: TopicName,
    /// The subscription.
    pub subscription: String,
    /// Its type.
    pub sub_type: SubType,
    /// Where a new subscription starts.
    pub start: InitialPosition,
    /// Where a reader starts.
    pub start_message: Option<MessageIdData>,
    /// `false`: a reader, whose subscription vanishes with it.
    pub durable: bool,
    /// The consumer's name.
    pub name: Option<String>,
    /// Keep the subscription's state in the other regions too.
    pub replicate_state: bool,
    /// Only the latest message of each key.
    pub read_compacted: bool,
    /// The schema of what is expected.
    pub schema: Option<Schema>,
    /// Properties of the consumer.
    pub metadata: Vec<(String, String)>,
    /// Messages that are permitted ahead.
    pub queue: u32,
    /// How long failures that may pass are tried again.
    pub retry_ms: u64,
}

impl ConsumerOptions {
    /// An exclusive durable subscription from the earliest message on.
    pub fn new(topic: TopicName, subscription: &str) -> Self {
        Self {
            topic,
            subscription: subscription.to_owned(),
            sub_type: SubType::Exclusive,
            start: InitialPosition::Earliest,
            start_message: None,
            durable: true,
            name: None,
            replicate_state: false,
            read_compacted: false,
            schema: None,
            metadata: Vec::new(),
            queue: 1000,
            retry_ms: 60_000,
        }
    }
}

/// A consumer that is open on a connection.
#[derive(Debug)]
struct Attached {
    connection: Connection,
    consumer_id: u64,
    events: mpsc::UnboundedReceiver<Vec<ConsumerEvent>>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.connection.remove_consumer(self.consumer_id) {
            let request_id = self.connection.next_id();
            let command = CommandCloseConsumer { consumer_id: self.consumer_id, request_id, ..Default::default() };
            self.connection.command_beside(command);
        }
    }
}

/// A consumer.
#[derive(Debug)]
pub struct Consumer {
    pool: PeerPool,
    options: ConsumerOptions,
    attached: Option<Attached>,
    /// The broker that the last one named as the next.
    hint: Option<Endpoint>,
    ready: VecDeque<Delivery>,
    used_permits: u32,
    backoff: Backoff,
    reconnections: u64,
    end_of_topic: bool,
    active: Option<bool>,
}

impl Consumer {
    /// Subscribes.
    ///
    /// # Errors
    /// The peer refuses, or cannot be reached within `retry_ms`.
    pub async fn open(pool: &PeerPool, options: ConsumerOptions) -> Result<Self, ClientError> {
        let backoff = Backoff::new(pool.peer().limits.backoff);
        let mut consumer = Self {
            pool: pool.clone(),
            options: ConsumerOptions { queue: options.queue.max(1), ..options },
            attached: None,
            hint: None,
            ready: VecDeque::new(),
            used_permits: 0,
            backoff,
            reconnections: 0,
            end_of_topic: false,
            active: None,
        };
        consumer.attach().await?;
        consumer.reconnections = 0;
        Ok(consumer)
    }

    /// Times that it subscribed again.
    pub fn reconnections(&self) -> u64 {
        self.reconnections
    }

    /// Whether the broker said that the topic has no more messages and never will.
    pub fn reached_end_of_topic(&self) -> bool {
        self.end_of_topic
    }

    /// Of a failover subscription: whether this is the active consumer, if the broker said so.
    pub fn is_active(&self) -> Option<bool> {
        self.active
    }

    /// The next entry. May be given up and called again.
    ///
    /// # Errors
    /// The peer refuses, or cannot be reached for `retry_ms`.
    pub async fn receive(&mut self) -> Result<Received, ClientError> {
        loop {
            if !self.ready.is_empty() {
                self.grant().await;
                if let Some(received) = self.take() {
                    return Ok(received);
                }
            }
            if self.attached.is_none() {
                self.attach().await?;
            }
            let Some(attached) = &mut self.attached else { continue };
            match attached.events.recv().await {
                Some(batch) => batch.into_iter().for_each(|event| self.note(event)),
                None => self.detach(),
            }
        }
    }

    /// The next entry if one comes within `wait_ms`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn receive_within(&mut self, wait_ms: u64) -> Result<Option<Received>, ClientError> {
        match tokio::time::timeout(Duration::from_millis(wait_ms), self.receive()).await {
            Ok(received) => received.map(Some),
            Err(_) => Ok(None),
        }
    }

    fn take(&mut self) -> Option<Received> {
        let Delivery { message, entry } = self.ready.pop_front()?;
        let messages = payload::summarize(&entry).map_or(1, |summary| summary.messages()).max(1);
        if let Some(attached) = &self.attached {
            attached.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.used_permits = self.used_permits.saturating_add(messages);
        Some(Received {
            id: message.message_id,
            redelivery_count: message.redelivery_count.unwrap_or(0),
            ack_set: message.ack_set,
            messages,
            entry,
        })
    }

    /// Grants again what was used, half a queue at a time.
    async fn grant(&mut self) {
        if self.used_permits < self.options.queue.div_ceil(2) {
            return;
        }
        if let Some(attached) = &self.attached {
            let command = CommandFlow { consumer_id: attached.consumer_id, message_permits: self.used_permits };
            // If the connection has ended the events say so.
            let _ = attached.connection.command(command).await;
        }
        self.used_permits = 0;
    }

    fn note(&mut self, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Message(delivery) => self.ready.push_back(delivery),
            ConsumerEvent::EndOfTopic => self.end_of_topic = true,
            ConsumerEvent::Active(active) => self.active = Some(active),
            ConsumerEvent::TopicMigrated { url } => match self.pool.at(&url) {
                Ok(pool) => self.pool = pool,
                Err(error) => tracing::warn!(%error, "the topic was migrated to an address that is not understood"),
            },
            ConsumerEvent::Closed { reason, broker_url } => {
                tracing::debug!(topic = %self.options.topic, reason, "consumer closed");
                self.detach();
                self.hint = broker_url.and_then(|url| BrokerAddress::parse(&url).ok()).map(Endpoint::direct);
            }
        }
    }

    fn detach(&mut self) {
        self.attached = None;
        self.ready.clear();
        self.used_permits = 0;
    }

    /// Subscribes again until it succeeds, may not be repeated or took too long.
    async fn attach(&mut self) -> Result<(), ClientError> {
        let deadline = Instant::now() + Duration::from_millis(self.options.retry_ms);
        loop {
            let error = match self.try_attach().await {
                Ok(()) => {
                    self.backoff.reset();
                    self.reconnections += 1;
                    return Ok(());
                }
                Err(error) => error,
            };
            // Until the broker notices that an old connection is gone this consumer is in its own way.
            let in_own_way = self.reconnections > 0 && error.code() == Some(ServerError::ConsumerBusy);
            let wait_ms = self.backoff.failed(rand::random()).max(error.retry_in_ms());
            let again_at = Instant::now() + Duration::from_millis(wait_ms);
            if !(error.may_pass() || in_own_way) || again_at > deadline {
                return Err(error);
            }
            tokio::time::sleep_until(again_at.into()).await;
        }
    }

    async fn try_attach(&mut self) -> Result<(), ClientError> {
        self.detach();
        let connection = match self.hint.take() {
            Some(endpoint) => self.pool.connection(&endpoint).await?,
            None => self.pool.owner(&self.options.topic).await?,
        };
        let (consumer_id, request_id) = (connection.next_id(), connection.next_id());
        let (sender, events) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        // Twice what is permitted: brokers count messages, and not all of them exactly.
        let limit = (self.options.queue as usize).saturating_mul(2).saturating_add(PERMIT_SLACK);
        let slot = ConsumerSlot { events: sender, waiting: waiting.clone(), limit, batch: Vec::new() };
        connection.add_consumer(consumer_id, slot)?;
        // From here on dropping it closes the consumer at the peer.
        let attached = Attached { connection, consumer_id, events, waiting };
        let command = subscribe_command(&self.options, consumer_id, request_id);
        match attached.connection.request("a subscription", request_id, command).await {
            Ok(Body::Success(_)) => {}
            Ok(other) => return Err(unexpected("a subscription", &other)),
            Err(error) => {
                if matches!(error, ClientError::Refused { .. }) {
                    // There is nothing to close.
                    attached.connection.remove_consumer(consumer_id);
                }
                return Err(error);
            }
        }
        attached.connection.command(CommandFlow { consumer_id, message_permits: self.options.queue }).await?;
        self.attached = Some(attached);
        Ok(())
    }

    async fn connected(&mut self) -> Result<&Attached, ClientError> {
        if self.attached.as_ref().is_none_or(|attached| attached.connection.error().is_some()) {
            self.attach().await?;
        }
        self.attached.as_ref().ok_or_else(|| ClientError::ended("the consumer was closed"))
    }

    /// Acknowledges entries one by one (`ack_set` of an id: the messages of its batch that are not).
    ///
    /// # Errors
    /// The peer cannot be reached for `retry_ms`. Without an error the broker may still not have got it.
    pub async fn ack(&mut self, ids: Vec<MessageIdData>) -> Result<(), ClientError> {
        self.send_ack(AckType::Individual, ids).await
    }

    /// Acknowledges everything up to an entry.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn ack_cumulative(&mut self, id: MessageIdData) -> Result<(), ClientError> {
        self.send_ack(AckType::Cumulative, vec![id]).await
    }

    async fn send_ack(&mut self, ack_type: AckType, message_id: Vec<MessageIdData>) -> Result<(), ClientError> {
        let attached = self.connected().await?;
        let command = CommandAck {
            consumer_id: attached.consumer_id,
            ack_type: ack_type as i32,
            message_id,
            ..Default::default()
        };
        attached.connection.command(command).await
    }

    /// Acknowledges entries one by one and waits until the broker has confirmed it.
    ///
    /// # Errors
    /// Refused, late, or the peer cannot be reached for `retry_ms`.
    pub async fn ack_confirmed(&mut self, ids: Vec<MessageIdData>) -> Result<(), ClientError> {
        let what = "an acknowledgement";
        let attached = self.connected().await?;
        let request_id = attached.connection.next_id();
        let command = CommandAck {
            consumer_id: attached.consumer_id,
            ack_type: AckType::Individual as i32,
            message_id: ids,
            request_id: Some(request_id),
            ..Default::default()
        };
        match attached.connection.request(what, request_id, command).await? {
            Body::AckResponse(answer) => match answer.error {
                Some(code) => Err(ClientError::refused(what, code, answer.message())),
                None => Ok(()),
            },
            other => Err(unexpected(what, &other)),
        }
    }

    /// Asks for entries again; empty: for all that are not acknowledged.
    ///
    /// # Errors
    /// The peer cannot be reached for `retry_ms`.
    pub async fn redeliver(&mut self, message_ids: Vec<MessageIdData>) -> Result<(), ClientError> {
        let attached = self.connected().await?;
        let consumer_id = attached.consumer_id;
        let command = CommandRedeliverUnacknowledgedMessages { consumer_id, message_ids, consumer_epoch: None };
        attached.connection.command(command).await
    }

    /// Moves the subscription to an entry. The broker closes the consumer, and it subscribes again.
    ///
    /// # Errors
    /// Refused, late, or the peer cannot be reached for `retry_ms`.
    pub async fn seek(&mut self, id: MessageIdData) -> Result<(), ClientError> {
        self.send_seek(CommandSeek { message_id: Some(id), ..Default::default() }).await
    }

    /// Moves the subscription to the first message published at or after a time.
    ///
    /// # Errors
    /// As [`seek`](Self::seek).
    pub async fn seek_to_time(&mut self, publish_time_ms: u64) -> Result<(), ClientError> {
        self.send_seek(CommandSeek { message_publish_time: Some(publish_time_ms), ..Default::default() }).await
    }

    async fn send_seek(&mut self, command: CommandSeek) -> Result<(), ClientError> {
        let attached = self.connected().await?;
        let request_id = attached.connection.next_id();
        let command = CommandSeek { consumer_id: attached.consumer_id, request_id, ..command };
        attached.connection.request("a seek", request_id, command).await?;
        // What was sent before belongs to the old place.
        self.detach();
        Ok(())
    }

    /// Deletes the subscription.
    ///
    /// # Errors
    /// Refused, late, or the peer cannot be reached for `retry_ms`.
    pub async fn unsubscribe(mut self) -> Result<(), ClientError> {
        let attached = self.connected().await?;
        let request_id = attached.connection.next_id();
        let command = CommandUnsubscribe { consumer_id: attached.consumer_id, request_id, ..Default::default() };
        attached.connection.request("unsubscribing", request_id, command).await?;
        // The consumer went with its subscription.
        attached.connection.remove_consumer(attached.consumer_id);
        Ok(())
    }

    /// Closes at the peer and waits for the answer.
    ///
    /// # Errors
    /// Refused or late.
    pub async fn close(mut self) -> Result<(), ClientError> {
        let Some(attached) = self.attached.take() else { return Ok(()) };
        if !attached.connection.remove_consumer(attached.consumer_id) {
            return Ok(());
        }
        let request_id = attached.connection.next_id();
        let command = CommandCloseConsumer { consumer_id: attached.consumer_id, request_id, ..Default::default() };
        attached.connection.request("closing a consumer", request_id, command).await.map(drop)
    }
}

fn subscribe_command(options: &ConsumerOptions, consumer_id: u64, request_id: u64) -> CommandSubscribe {
    let pair = |(key, value): &(String, String)| KeyValue { key: key.clone(), value: value.clone() };
    CommandSubscribe {
        topic: options.topic.as_str().to_owned(),
        subscription: options.subscription.clone(),
        sub_type: options.sub_type as i32,
        consumer_id,
        request_id,
        consumer_name: options.name.clone(),
        durable: Some(options.durable),
        start_message_id: options.start_message.clone(),
        metadata: options.metadata.iter().map(pair).collect(),
        read_compacted: options.read_compacted.then_some(true),
        schema: options.schema.clone(),
        initial_position: Some(options.start as i32),
        replicate_subscription_state: options.replicate_state.then_some(true),
        ..Default::default()
    }
}
