//! A consumer that grants permits and acknowledges in groups, as the usual clients do.
//!
//! Invariants: B2 at most `permits` messages wait here, as far as the broker keeps to its permits (else the connection is
//! read no further until there is room); every delivery that was handed out is acknowledged, at the latest
//! [`ACK_INTERVAL`] after the next call or when closed.
//! Failure: [`BenchError`].
//! Must never know: what is measured.

use crate::BenchError;
use crate::entry::{self, EntryFacts};
use crate::link::{Link, unexpected};
use bytes::Bytes;
use meridian_types::name::TopicName;
use meridian_wire::proto::MessageIdData;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_ack::AckType;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use meridian_wire::proto::{CommandAck, CommandCloseConsumer, CommandFlow, CommandMessage, CommandSubscribe};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Entries that are acknowledged by one command at most.
pub const ACK_GROUP: usize = 1000;
/// How long an acknowledgement waits for others.
pub const ACK_INTERVAL: Duration = Duration::from_millis(100);

/// One entry as it came.
#[derive(Debug)]
pub struct Delivery {
    id: MessageIdData,
    entry: Bytes,
    arrived: Instant,
}

impl Delivery {
    pub(crate) fn new(message: CommandMessage, entry: Bytes, arrived: Instant) -> Self {
        Self { id: message.message_id, entry, arrived }
    }

    fn facts(&self) -> Result<EntryFacts, BenchError> {
        let unreadable =
            || BenchError::Wrong(format!("entry {}:{} cannot be read", self.id.ledger_id, self.id.entry_id));
        entry::read(&self.entry).ok_or_else(unreadable)
    }
}

/// One entry as the caller sees it.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// What it says of itself.
    pub facts: EntryFacts,
    /// When it was read from the socket.
    pub arrived: Instant,
}

/// What to subscribe to and how.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// Its type.
    pub sub_type: SubType,
    /// Where a new one starts.
    pub start: InitialPosition,
    /// Messages that the broker may send ahead.
    pub permits: u32,
}

/// A consumer.
pub struct Consumer {
    link: Link,
    id: u64,
    deliveries: mpsc::Receiver<Delivery>,
    batch: Vec<Delivery>,
    permits: u32,
    used: u32,
    unacked: Vec<MessageIdData>,
    acked_at: Instant,
}

impl Consumer {
    /// Subscribes and grants the first permits.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn open(link: Link, topic: &TopicName, subscription: &Subscription) -> Result<Self, BenchError> {
        let (id, request_id) = (link.next_id(), link.next_id());
        let permits = subscription.permits.max(1);
        let (sender, deliveries) = mpsc::channel(permits as usize);
        link.attach_consumer(id, sender);
        let command = CommandSubscribe {
            topic: topic.as_str().into(),
            subscription: subscription.name.clone(),
            sub_type: subscription.sub_type as i32,
            consumer_id: id,
            request_id,
            initial_position: Some(subscription.start as i32),
            ..Default::default()
        };
        match link.request(request_id, "a subscription", command.into()).await? {
            Body::Success(_) => {}
            other => return Err(unexpected("a subscription", &other)),
        }
        let flow = CommandFlow { consumer_id: id, message_permits: permits };
        link.command(flow.into()).await?;
        let (batch, unacked) = (Vec::with_capacity(ACK_GROUP), Vec::with_capacity(ACK_GROUP));
        Ok(Self { link, id, deliveries, batch, permits, used: 0, unacked, acked_at: Instant::now() })
    }

    /// Waits up to [`ACK_INTERVAL`] for entries and appends those that are there, acknowledged or soon to be. Answers how
    /// many messages came; 0 if none did.
    ///
    /// # Errors
    /// The connection or the consumer ended.
    pub async fn receive(&mut self, into: &mut Vec<Received>) -> Result<u32, BenchError> {
        let came = tokio::time::timeout(ACK_INTERVAL, self.deliveries.recv_many(&mut self.batch, ACK_GROUP)).await;
        if came == Ok(0) {
            return Err(self.link.ended());
        }
        let mut messages = 0;
        for delivery in self.batch.drain(..) {
            let facts = delivery.facts()?;
            messages += facts.messages;
            into.push(Received { facts, arrived: delivery.arrived });
            self.unacked.push(delivery.id);
        }
        self.used += messages;
        if self.used >= self.permits.div_ceil(2) {
            let message_permits = std::mem::take(&mut self.used);
            self.link.command(CommandFlow { consumer_id: self.id, message_permits }.into()).await?;
        }
        if self.unacked.len() >= ACK_GROUP || self.acked_at.elapsed() >= ACK_INTERVAL {
            self.acknowledge().await?;
        }
        Ok(messages)
    }

    async fn acknowledge(&mut self) -> Result<(), BenchError> {
        self.acked_at = Instant::now();
        if self.unacked.is_empty() {
            return Ok(());
        }
        let command = CommandAck {
            consumer_id: self.id,
            ack_type: AckType::Individual as i32,
            message_id: std::mem::take(&mut self.unacked),
            ..Default::default()
        };
        self.link.command(command.into()).await
    }

    /// Acknowledges what is left and closes.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn close(mut self) -> Result<(), BenchError> {
        self.acknowledge().await?;
        // What still comes is dropped, so that the answer behind it can be read.
        self.deliveries.close();
        let request_id = self.link.next_id();
        let command = CommandCloseConsumer { consumer_id: self.id, request_id, ..Default::default() };
        let closed = self.link.request(request_id, "closing a consumer", command.into()).await;
        self.link.detach(self.id);
        closed.map(drop)
    }
}
