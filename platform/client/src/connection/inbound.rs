//! Who waits for what on a connection: frames in, answers and batches of events out.
//!
//! Role: the pure part of reading. The shell decodes frames, gives them to [`Inbound::take`] and, when a buffer is
//! empty, calls [`Inbound::flush`].
//! Invariants: C1, C2, C3; a producer has at most as many answers as sends, a consumer at most as many waiting messages
//! as its queue allows (a peer that breaks this ends the connection, so nothing here grows without a bound); the end of a
//! producer or consumer is its last event.
//! Failure: an error of [`Inbound::take`] ends the connection.
//! Must never know: sockets, clocks.

use crate::ClientError;
use crate::consumer::{ConsumerEvent, Delivery};
use crate::link_producer::LinkEvent;
use crate::window::Window;
use meridian_types::Position;
use meridian_wire::frame::Frame;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::{CommandSendError, CommandSendReceipt, CommandTopicMigrated, ServerError};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

pub(super) type Answer = Result<Body, ClientError>;

/// What the shell has to do after a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Answer a PING.
    Pong,
    /// Send credentials again.
    Authenticate,
}

/// A producer's way out of the reader.
#[derive(Debug)]
pub(crate) struct ProducerSlot {
    pub(crate) events: mpsc::UnboundedSender<Vec<LinkEvent>>,
    pub(crate) window: Arc<Window>,
    pub(crate) batch: Vec<LinkEvent>,
}

/// A consumer's way out of the reader.
#[derive(Debug)]
pub(crate) struct ConsumerSlot {
    pub(crate) events: mpsc::UnboundedSender<Vec<ConsumerEvent>>,
    /// Messages that the consumer has not taken yet.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// The most of them.
    pub(crate) limit: usize,
    pub(crate) batch: Vec<ConsumerEvent>,
}

#[derive(Debug)]
struct Request {
    what: &'static str,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub(super) struct Inbound {
    tls: bool,
    max_requests: usize,
    ended: Option<ClientError>,
    requests: HashMap<u64, Request>,
    producers: HashMap<u64, ProducerSlot>,
    consumers: HashMap<u64, ConsumerSlot>,
    touched_producers: Vec<u64>,
    touched_consumers: Vec<u64>,
}

impl Inbound {
    pub(super) fn new(tls: bool, max_requests: usize) -> Self {
        Self {
            tls,
            max_requests,
            ended: None,
            requests: HashMap::new(),
            producers: HashMap::new(),
            consumers: HashMap::new(),
            touched_producers: Vec::new(),
            touched_consumers: Vec::new(),
        }
    }

    pub(super) fn ended(&self) -> Option<ClientError> {
        self.ended.clone()
    }

    fn alive(&self) -> Result<(), ClientError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    pub(super) fn add_request(
        &mut self,
        request_id: u64,
        what: &'static str,
        answer: oneshot::Sender<Answer>,
    ) -> Result<(), ClientError> {
        self.alive()?;
        if self.requests.len() >= self.max_requests {
            return Err(ClientError::Crowded { what: "requests without an answer", limit: self.max_requests });
        }
        self.requests.insert(request_id, Request { what, answer });
        Ok(())
    }

    pub(super) fn forget_request(&mut self, request_id: u64) {
        self.requests.remove(&request_id);
    }

    pub(super) fn add_producer(&mut self, producer_id: u64, slot: ProducerSlot) -> Result<(), ClientError> {
        self.alive()?;
        self.producers.insert(producer_id, slot);
        Ok(())
    }

    pub(super) fn add_consumer(&mut self, consumer_id: u64, slot: ConsumerSlot) -> Result<(), ClientError> {
        self.alive()?;
        self.consumers.insert(consumer_id, slot);
        Ok(())
    }

    pub(super) fn remove_producer(&mut self, producer_id: u64) -> bool {
        self.producers.remove(&producer_id).is_some()
    }

    pub(super) fn remove_consumer(&mut self, consumer_id: u64) -> bool {
        self.consumers.remove(&consumer_id).is_some()
    }

    /// Tells everyone who waits; answers whether this is the first end.
    pub(super) fn end(&mut self, reason: ClientError) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let text = reason.to_string();
        self.ended = Some(reason.clone());
        for (_, request) in self.requests.drain() {
            // A requester that gave up needs no answer.
            let _ = request.answer.send(Err(reason.clone()));
        }
        for (_, slot) in self.producers.drain() {
            end_producer(slot, LinkEvent::Closed { reason: text.clone(), broker_url: None });
        }
        for (_, slot) in self.consumers.drain() {
            end_consumer(slot, ConsumerEvent::Closed { reason: text.clone(), broker_url: None });
        }
        true
    }

    /// Takes a frame; events stay in their batches until [`flush`](Self::flush).
    pub(super) fn take(&mut self, frame: Frame) -> Result<Effect, ClientError> {
        let Some(body) = frame.command.body else { return Ok(Effect::None) };
        match body {
            Body::SendReceipt(receipt) => self.receipt(receipt),
            Body::SendError(error) => self.send_error(error),
            Body::Message(message) => {
                let entry = frame.payload.ok_or_else(|| ClientError::Protocol("a MESSAGE without an entry".into()))?;
                let id = message.consumer_id;
                return self.message(id, Delivery { message, entry }).map(|()| Effect::None);
            }
            Body::CloseProducer(close) => {
                let broker_url = self.pick(close.assigned_broker_service_url, close.assigned_broker_service_url_tls);
                if let Some(slot) = self.producers.remove(&close.producer_id) {
                    let reason = "the broker closed the producer".to_owned();
                    end_producer(slot, LinkEvent::Closed { reason, broker_url });
                }
            }
            Body::CloseConsumer(close) => {
                let broker_url = self.pick(close.assigned_broker_service_url, close.assigned_broker_service_url_tls);
                if let Some(slot) = self.consumers.remove(&close.consumer_id) {
                    let reason = "the broker closed the consumer".to_owned();
                    end_consumer(slot, ConsumerEvent::Closed { reason, broker_url });
                }
            }
            Body::TopicMigrated(migrated) => self.migrated(migrated),
            Body::ReachedEndOfTopic(end) => self.tell_consumer(end.consumer_id, ConsumerEvent::EndOfTopic),
            Body::ActiveConsumerChange(change) => {
                let active = change.is_active();
                self.tell_consumer(change.consumer_id, ConsumerEvent::Active(active));
            }
            Body::Ping(_) => return Ok(Effect::Pong),
            Body::AuthChallenge(_) => return Ok(Effect::Authenticate),
            other => self.answer(other)?,
        }
        Ok(Effect::None)
    }

    /// Hands the batches over.
    pub(super) fn flush(&mut self) -> Result<(), ClientError> {
        for producer_id in self.touched_producers.drain(..) {
            if let Some(slot) = self.producers.get_mut(&producer_id) {
                hand_over(slot)?;
            }
        }
        for consumer_id in self.touched_consumers.drain(..) {
            if let Some(slot) = self.consumers.get_mut(&consumer_id) {
                // A consumer that is gone needs no messages.
                let _ = slot.events.send(std::mem::take(&mut slot.batch));
            }
        }
        Ok(())
    }

    fn tell_producer(&mut self, producer_id: u64, event: LinkEvent) {
        // Receipts of a producer that was closed meanwhile are of no use.
        if let Some(slot) = self.producers.get_mut(&producer_id) {
            if slot.batch.is_empty() {
                self.touched_producers.push(producer_id);
            }
            slot.batch.push(event);
        }
    }

    fn tell_consumer(&mut self, consumer_id: u64, event: ConsumerEvent) {
        if let Some(slot) = self.consumers.get_mut(&consumer_id) {
            if slot.batch.is_empty() {
                self.touched_consumers.push(consumer_id);
            }
            slot.batch.push(event);
        }
    }

    fn receipt(&mut self, receipt: CommandSendReceipt) {
        let position =
            receipt.message_id.map_or(Position::EARLIEST, |id| Position::new(id.ledger_id as i64, id.entry_id as i64));
        let event = LinkEvent::Receipt {
            sequence_id: receipt.sequence_id,
            highest_sequence_id: receipt.highest_sequence_id.unwrap_or(0),
            position,
        };
        self.tell_producer(receipt.producer_id, event);
    }

    fn send_error(&mut self, error: CommandSendError) {
        let code = ServerError::try_from(error.error).unwrap_or(ServerError::UnknownError);
        let event = LinkEvent::SendError { sequence_id: error.sequence_id, code, text: error.message };
        self.tell_producer(error.producer_id, event);
    }

    fn message(&mut self, consumer_id: u64, delivery: Delivery) -> Result<(), ClientError> {
        if let Some(slot) = self.consumers.get(&consumer_id)
            && slot.waiting.fetch_add(1, Ordering::Relaxed) >= slot.limit
        {
            let reason = format!("more than {} messages wait for a consumer that permitted fewer", slot.limit);
            return Err(ClientError::Protocol(reason));
        }
        self.tell_consumer(consumer_id, ConsumerEvent::Message(delivery));
        Ok(())
    }

    fn migrated(&mut self, migrated: CommandTopicMigrated) {
        let resource = migrated.resource_type();
        let Some(url) = self.pick(migrated.broker_service_url, migrated.broker_service_url_tls) else { return };
        match resource {
            ResourceType::Producer => self.tell_producer(migrated.resource_id, LinkEvent::TopicMigrated { url }),
            ResourceType::Consumer => self.tell_consumer(migrated.resource_id, ConsumerEvent::TopicMigrated { url }),
        }
    }

    fn pick(&self, plain: Option<String>, tls: Option<String>) -> Option<String> {
        if self.tls { tls } else { plain }.filter(|url| !url.is_empty())
    }

    /// Gives an answer to who asked; commands that nobody asked for are passed over.
    fn answer(&mut self, body: Body) -> Result<(), ClientError> {
        let request_id = match &body {
            Body::Success(answer) => answer.request_id,
            // One that is not ready waits for exclusive access; another answer follows.
            Body::ProducerSuccess(answer) if answer.producer_ready() => answer.request_id,
            Body::LookupTopicResponse(answer) => answer.request_id,
            Body::PartitionMetadataResponse(answer) => answer.request_id,
            Body::GetTopicsOfNamespaceResponse(answer) => answer.request_id,
            Body::GetSchemaResponse(answer) => answer.request_id,
            Body::GetOrCreateSchemaResponse(answer) => answer.request_id,
            Body::GetLastMessageIdResponse(answer) => answer.request_id,
            Body::AckResponse(answer) => match answer.request_id {
                Some(request_id) => request_id,
                None => return Ok(()),
            },
            Body::Error(error) if error.request_id == meridian_wire::error::NO_REQUEST => {
                return Err(ClientError::refused("the connection", error.error, &error.message));
            }
            Body::Error(error) => error.request_id,
            _ => return Ok(()),
        };
        if let Some(request) = self.requests.remove(&request_id) {
            let answer = match body {
                Body::Error(error) => Err(ClientError::refused(request.what, error.error, &error.message)),
                body => Ok(body),
            };
            // A requester that gave up needs no answer.
            let _ = request.answer.send(answer);
        }
        Ok(())
    }
}

/// Hands a producer's batch over.
fn hand_over(slot: &mut ProducerSlot) -> Result<(), ClientError> {
    let batch = std::mem::take(&mut slot.batch);
    let answers = batch.iter().filter(|event| event.is_answer()).count();
    if !slot.window.answered(answers) {
        return Err(ClientError::Protocol("a producer has more receipts than sends".to_owned()));
    }
    // A producer that is gone needs no receipts.
    let _ = slot.events.send(batch);
    Ok(())
}

fn end_producer(mut slot: ProducerSlot, event: LinkEvent) {
    slot.batch.push(event);
    // The end counts more than a receipt too many before it.
    let _ = hand_over(&mut slot);
    slot.window.close();
}

fn end_consumer(mut slot: ConsumerSlot, event: ConsumerEvent) {
    slot.batch.push(event);
    let _ = slot.events.send(slot.batch);
}
