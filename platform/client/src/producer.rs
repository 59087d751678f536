//! A simple producer, for tools and tests: messages one by one, over as many connections as it takes.
//!
//! Role: one task owns a [`LinkProducer`], keeps what has no receipt and sends it again after a reconnection, in order,
//! with the same sequence ids (so a topic that deduplicates stores each once).
//! Invariants: at most `pending` messages wait here; each has one outcome: a receipt, a refusal, or late.
//! Failure: what may pass is tried again with back-off; a refusal of the producer itself ends it, and every message that
//! waits or comes later gets that error.
//! Must never know: batches, schemas' meaning.

use crate::ClientError;
use crate::address::{BrokerAddress, Endpoint};
use crate::backoff::Backoff;
use crate::link_producer::{LinkEvent, LinkEvents, LinkOptions, LinkProducer, OutgoingEntry};
use crate::pool::PeerPool;
use crate::window::LinkLimits;
use bytes::{Bytes, BytesMut};
use meridian_types::{Position, TopicName};
use meridian_wire::payload;
use meridian_wire::proto::{KeyValue, MessageMetadata, Schema, ServerError};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};

/// How a producer is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct ProducerOptions {
    /// The topic or partition.
    pub topic: TopicName,
    /// Its name; without it the peer makes one.
    pub name: Option<String>,
    /// The schema of what will be sent.
    pub schema: Option<Schema>,
    /// Messages without an outcome; who sends more waits.
    pub pending: usize,
    /// How long a message may take to be stored, reconnections included.
    pub send_timeout_ms: u64,
}

impl ProducerOptions {
    /// Everything but the topic at its default.
    pub fn new(topic: TopicName) -> Self {
        Self { topic, name: None, schema: None, pending: 1000, send_timeout_ms: 60_000 }
    }
}

/// One message to send.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutgoingMessage {
    /// Its bytes.
    pub payload: Bytes,
    /// Its key.
    pub key: Option<String>,
    /// Its properties.
    pub properties: Vec<(String, String)>,
    /// Its sequence id; without it the number after the last one.
    pub sequence_id: Option<u64>,
    /// The only clusters that it is copied to; empty: all.
    pub replicate_to: Vec<String>,
    /// When it happened, in ms since 1970.
    pub event_time_ms: Option<u64>,
}

/// A message that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Where; -1:-1 if the topic had it already.
    pub position: Position,
    /// Its sequence id.
    pub sequence_id: u64,
}

type Outcome = Result<Stored, ClientError>;

/// A message on its way from the caller to the task.
#[derive(Debug)]
struct Submission {
    message: OutgoingMessage,
    due: Instant,
    outcome: oneshot::Sender<Outcome>,
}

#[derive(Debug)]
struct Pending {
    outgoing: OutgoingEntry,
    due: Instant,
    outcome: oneshot::Sender<Outcome>,
}

/// A producer. It closes when it is dropped.
#[derive(Debug)]
pub struct Producer {
    submissions: mpsc::Sender<Submission>,
    name: String,
    send_timeout: Duration,
}

impl Producer {
    /// Opens a producer.
    ///
    /// # Errors
    /// The peer refuses, or cannot be reached within `send_timeout_ms`.
    pub async fn open(pool: &PeerPool, options: ProducerOptions) -> Result<Self, ClientError> {
        let pending = options.pending.max(1);
        let send_timeout = Duration::from_millis(options.send_timeout_ms);
        let (submissions, inbox) = mpsc::channel(pending);
        let link_options = LinkOptions {
            name: options.name.clone(),
            schema: options.schema.clone(),
            limits: LinkLimits { entries: pending, ..LinkLimits::default() },
            ..LinkOptions::new(options.topic.clone())
        };
        let mut task = ProducerTask {
            pool: pool.clone(),
            options: link_options,
            backoff: Backoff::new(pool.peer().limits.backoff),
            hint: None,
            link: None,
            limit: pending,
            pending: VecDeque::new(),
            sent: 0,
            next_sequence_id: 0,
            opened: false,
            again_at: Instant::now(),
            send_timeout_ms: options.send_timeout_ms,
        };
        let deadline = Instant::now() + send_timeout;
        while let Err(error) = task.attach().await {
            if !task.may_pass(&error) || task.again_at > deadline {
                return Err(error);
            }
            tokio::time::sleep_until(task.again_at.into()).await;
        }
        let name = task.options.name.clone().unwrap_or_default();
        tokio::spawn(task.run(inbox));
        Ok(Self { submissions, name, send_timeout })
    }

    /// Its name at the peer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message and waits until it is stored.
    ///
    /// # Errors
    /// Refused, late, or the producer has ended.
    pub async fn send(&self, message: OutgoingMessage) -> Result<Stored, ClientError> {
        let (outcome, stored) = oneshot::channel();
        let submission = Submission { message, due: Instant::now() + self.send_timeout, outcome };
        let ended = || ClientError::ended("the producer has ended");
        self.submissions.send(submission).await.map_err(|_| ended())?;
        stored.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Sends bytes and waits until they are stored.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_bytes(&self, payload: impl Into<Bytes>) -> Result<Stored, ClientError> {
        self.send(OutgoingMessage { payload: payload.into(), ..OutgoingMessage::default() }).await
    }
}

struct ProducerTask {
    pool: PeerPool,
    options: LinkOptions,
    backoff: Backoff,
    /// The broker that the last one named as the next.
    hint: Option<Endpoint>,
    link: Option<(LinkProducer, LinkEvents)>,
    limit: usize,
    pending: VecDeque<Pending>,
    /// How many of `pending` were sent on this link.
    sent: usize,
    next_sequence_id: u64,
    opened: bool,
    /// When the next attempt to open is due.
    again_at: Instant,
    send_timeout_ms: u64,
}

/// What the task woke up for.
enum Wake {
    Submitted(Option<Submission>),
    Events(Option<Vec<LinkEvent>>),
    Writable,
    Due,
}

impl ProducerTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Submission>) {
        let mut open = true;
        while open || !self.pending.is_empty() {
            if let Err(error) = self.link_up().await {
                return self.give_up(&error, inbox).await;
            }
            match self.wake(&mut inbox, open).await {
                Wake::Submitted(Some(submission)) => {
                    self.accept(submission);
                    while self.pending.len() < self.limit
                        && let Ok(submission) = inbox.try_recv()
                    {
                        self.accept(submission);
                    }
                }
                Wake::Submitted(None) => open = false,
                Wake::Events(Some(events)) => events.into_iter().for_each(|event| self.note(event)),
                Wake::Events(None) => self.unlink(),
                Wake::Writable => {}
                Wake::Due => self.expire(),
            }
        }
        if let Some((producer, _)) = self.link.take() {
            // The connection closes what could not be closed.
            let _ = producer.close().await;
        }
    }

    /// Opens the producer if it is time, and sends what waits.
    async fn link_up(&mut self) -> Result<(), ClientError> {
        if self.link.is_none() && Instant::now() >= self.again_at {
            match self.attach().await {
                Err(error) if self.may_pass(&error) => {
                    tracing::debug!(topic = %self.options.topic, %error, "no producer")
                }
                attached => attached?,
            }
        }
        self.send_rest();
        Ok(())
    }

    async fn wake(&mut self, inbox: &mut mpsc::Receiver<Submission>, open: bool) -> Wake {
        let due = self.pending.front().map(|first| first.due);
        let unsent_bytes = self.pending.get(self.sent).map(|next| next.outgoing.entry.len());
        let takes = open && self.pending.len() < self.limit;
        let Some((producer, events)) = &mut self.link else {
            let until = due.map_or(self.again_at, |due| due.min(self.again_at));
            return tokio::select! {
                submission = inbox.recv(), if takes => Wake::Submitted(submission),
                () = tokio::time::sleep_until(until.into()) => Wake::Due,
            };
        };
        tokio::select! {
            submission = inbox.recv(), if takes => Wake::Submitted(submission),
            events = events.recv() => Wake::Events(events),
            _ = producer.writable(1, unsent_bytes.unwrap_or(0)), if unsent_bytes.is_some() => Wake::Writable,
            () = tokio::time::sleep_until(due.unwrap_or(self.again_at).into()), if due.is_some() => Wake::Due,
        }
    }

    fn accept(&mut self, submission: Submission) {
        let Submission { message, due, outcome } = submission;
        let sequence_id = message.sequence_id.unwrap_or(self.next_sequence_id);
        self.next_sequence_id = self.next_sequence_id.max(sequence_id.saturating_add(1));
        let entry = encode(self.options.name.as_deref().unwrap_or_default(), sequence_id, message);
        let outgoing = OutgoingEntry {
            sequence_id,
            highest_sequence_id: None,
            num_messages: 1,
            marker: false,
            is_chunk: false,
            source: None,
            entry,
        };
        self.pending.push_back(Pending { outgoing, due, outcome });
    }

    /// Sends what was not sent on this link, as far as there is room.
    fn send_rest(&mut self) {
        let Some((producer, _)) = &mut self.link else { return };
        while let Some(next) = self.pending.get(self.sent) {
            match producer.try_send(vec![next.outgoing.clone()]) {
                Ok(()) => self.sent += 1,
                Err(refused) => match refused.error {
                    Some(error @ ClientError::TooLarge { .. }) => {
                        if let Some(pending) = self.pending.remove(self.sent) {
                            let _ = pending.outcome.send(Err(error));
                        }
                    }
                    // The events say that the link has ended.
                    Some(_) | None => return,
                },
            }
        }
    }

    fn note(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Receipt { sequence_id, position, .. } => {
                self.settle(sequence_id, Ok(Stored { position, sequence_id }));
            }
            LinkEvent::SendError { code, .. } if ClientError::refused("a send", code as i32, "").may_pass() => {
                // It and what was sent behind it is sent again in order on a new link.
                self.unlink();
                self.again_at = Instant::now() + Duration::from_millis(self.backoff.failed(rand::random()));
            }
            LinkEvent::SendError { sequence_id, code, text } => {
                self.settle(sequence_id, Err(ClientError::Refused { what: "a send", code, text }));
            }
            LinkEvent::TopicMigrated { url } => match self.pool.at(&url) {
                Ok(pool) => self.pool = pool,
                Err(error) => tracing::warn!(%error, "the topic was migrated to an address that is not understood"),
            },
            LinkEvent::Closed { reason, broker_url } => {
                tracing::debug!(topic = %self.options.topic, reason, "producer closed");
                self.unlink();
                self.hint = broker_url.and_then(|url| BrokerAddress::parse(&url).ok()).map(Endpoint::direct);
            }
        }
    }

    /// Gives a message its outcome. Receipts come in order, errors may overtake them. An answer that fits nothing means
    /// that the order is lost: then everything is sent again on a new link.
    fn settle(&mut self, sequence_id: u64, outcome: Outcome) {
        let within = if outcome.is_ok() { self.sent.min(1) } else { self.sent };
        let mut sent = self.pending.iter().take(within);
        let Some(index) = sent.position(|pending| pending.outgoing.sequence_id == sequence_id) else {
            return self.unlink();
        };
        self.sent -= 1;
        if let Some(settled) = self.pending.remove(index) {
            // A sender that gave up needs no outcome.
            let _ = settled.outcome.send(outcome);
        }
    }

    fn unlink(&mut self) {
        self.link = None;
        self.sent = 0;
    }

    /// Answers what took too long. Its receipt may still come, so the link is made anew.
    fn expire(&mut self) {
        let now = Instant::now();
        while self.pending.front().is_some_and(|first| first.due <= now) {
            if self.sent > 0 {
                self.unlink();
            }
            if let Some(first) = self.pending.pop_front() {
                let late = ClientError::Late { what: "a send", deadline_ms: self.send_timeout_ms };
                let _ = first.outcome.send(Err(late));
            }
        }
    }

    /// Whether an attempt to open may succeed later. Until the broker notices that an old connection is gone this
    /// producer is in its own way.
    fn may_pass(&self, error: &ClientError) -> bool {
        error.may_pass() || (self.opened && error.code() == Some(ServerError::ProducerBusy))
    }

    /// Opens the producer; after a failure the next attempt is due at `again_at`.
    async fn attach(&mut self) -> Result<(), ClientError> {
        match self.try_attach().await {
            Ok(()) => {
                self.backoff.reset();
                Ok(())
            }
            Err(error) => {
                let wait_ms = self.backoff.failed(rand::random()).max(error.retry_in_ms());
                self.again_at = Instant::now() + Duration::from_millis(wait_ms);
                Err(error)
            }
        }
    }

    async fn try_attach(&mut self) -> Result<(), ClientError> {
        let connection = match self.hint.take() {
            Some(endpoint) => self.pool.connection(&endpoint).await?,
            None => self.pool.owner(&self.options.topic).await?,
        };
        let (producer, events) = LinkProducer::open(&connection, &self.options).await?;
        if !self.opened {
            self.opened = true;
            self.options.user_provided_name = self.options.name.is_some();
            self.options.name = Some(producer.name().to_owned());
            self.next_sequence_id = (producer.last_sequence_id() + 1).max(0) as u64;
        }
        self.options.epoch += 1;
        self.link = Some((producer, events));
        self.sent = 0;
        Ok(())
    }

    async fn give_up(&mut self, error: &ClientError, mut inbox: mpsc::Receiver<Submission>) {
        for pending in self.pending.drain(..) {
            let _ = pending.outcome.send(Err(error.clone()));
        }
        while let Some(submission) = inbox.recv().await {
            let _ = submission.outcome.send(Err(error.clone()));
        }
    }
}

fn encode(producer_name: &str, sequence_id: u64, message: OutgoingMessage) -> Bytes {
    let metadata = MessageMetadata {
        producer_name: producer_name.to_owned(),
        sequence_id,
        publish_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        properties: message.properties.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        partition_key: message.key,
        replicate_to: message.replicate_to,
        event_time: message.event_time_ms,
        uncompressed_size: Some(message.payload.len() as u32),
        ..Default::default()
    };
    let mut entry = BytesMut::new();
    payload::encode(&metadata, &message.payload, &mut entry);
    entry.freeze()
}
