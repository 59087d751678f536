//! Which command does what, and what is legal when.
//!
//! Invariants: before the login only CONNECT (and its AUTH_RESPONSE) is legal; N2 anything that a client may not send ends
//! the connection; SENDs that follow each other from one producer reach the topic in one call, in order.

use super::Session;
use super::login::Credentials;
use bytes::{Bytes, BytesMut};
use meridian_topic::Publish;
use meridian_wire::error::{request_error, send_error};
use meridian_wire::frame::{FrameDecoder, Incoming};
use meridian_wire::payload::{self, PayloadError};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{CommandPong, ServerError};
use meridian_wire::send::SendHeader;
use std::time::{Duration, Instant};

/// What the reader has to do next.
pub enum Flow {
    /// Read more.
    Drained,
    /// The turn is over, whole frames may be left in the buffer: let others go on, then come back.
    Turn,
    /// Check these credentials, then go on with the buffer.
    Login(Box<Credentials>),
}

/// SENDs taken from a connection before others have their turn: a hundred publishers that each empty a full buffer would
/// let the acks and permits of a consumer wait for all of them.
const TURN_SENDS: usize = 128;
/// Bytes of SENDs likewise.
const TURN_BYTES: usize = 256 * 1024;

/// SENDs of one producer that follow each other.
#[derive(Default)]
struct Run {
    producer_id: u64,
    batch: Vec<Publish>,
}

impl Session {
    /// Takes whole frames from the buffer, all or a turn's worth, and does what they say.
    ///
    /// # Errors
    /// The reason to close the connection.
    pub(super) fn consume(&self, decoder: &FrameDecoder, buffer: &mut BytesMut) -> Result<Flow, String> {
        let mut run = Run::default();
        let (mut sends, mut bytes) = (0, 0);
        loop {
            if sends >= TURN_SENDS || bytes >= TURN_BYTES {
                self.publish(run)?;
                return Ok(Flow::Turn);
            }
            let incoming = match decoder.decode_incoming(buffer) {
                Ok(Some(Incoming::Send(header, payload))) => {
                    sends += 1;
                    bytes += payload.len();
                    self.send_command(&mut run, &header, payload)?;
                    continue;
                }
                other => other,
            };
            self.publish(std::mem::take(&mut run))?;
            match incoming {
                Ok(None) => return Ok(Flow::Drained),
                Err(error) => return Err(error.to_string()),
                Ok(Some(Incoming::Send(..))) => {}
                Ok(Some(Incoming::Other(frame))) => match frame.command.body {
                    Some(Body::Send(send)) => {
                        let payload = frame.payload.ok_or("a SEND command without a message behind it")?;
                        self.send_command(&mut run, &SendHeader::from(&send), payload)?;
                        self.publish(std::mem::take(&mut run))?;
                    }
                    Some(body) => {
                        if let Some(credentials) = self.command(body)? {
                            return Ok(Flow::Login(Box::new(credentials)));
                        }
                    }
                    None => return Err("a command without a body".to_owned()),
                },
            }
        }
    }

    /// Adds a SEND to the run, or refuses it.
    fn send_command(&self, run: &mut Run, header: &SendHeader, payload: Bytes) -> Result<(), String> {
        if self.client().is_none() {
            return Err("SEND before CONNECT".to_owned());
        }
        if run.producer_id != header.producer_id || run.batch.is_empty() {
            self.publish(std::mem::take(run))?;
            run.producer_id = header.producer_id;
        }
        if let Some((error, text)) = refusal(header, &payload) {
            // Answers keep their order: what came before is handed on first.
            self.publish(std::mem::take(run))?;
            let sequence_id = header.sequence_id.max(header.highest_sequence_id.unwrap_or_default());
            self.send(send_error(header.producer_id, sequence_id, error, &text));
            return Ok(());
        }
        run.batch.push(Publish {
            sequence_id: header.sequence_id,
            highest_sequence_id: header.highest_sequence_id,
            messages: header.num_messages.max(1) as u32,
            marker: header.marker,
            is_chunk: header.is_chunk,
            source: header.message_id,
            payload,
        });
        Ok(())
    }

    /// Hands a run to its topic.
    fn publish(&self, run: Run) -> Result<(), String> {
        if run.batch.is_empty() {
            return Ok(());
        }
        let (topic, key) = {
            let mut slots = self.slots.lock();
            match slots.producers.get_mut(&run.producer_id) {
                Some(slot) if slot.ready => {
                    let Some(attached) = slot.attached.clone() else { return Ok(()) };
                    let sizes = run.batch.iter().map(|publish| publish.payload.len() as u32);
                    slot.unanswered.extend(sizes.clone());
                    // Under the lock: a drop of the slot gives back what was begun, never before.
                    let (count, bytes) = (run.batch.len() as u32, sizes.map(u64::from).sum());
                    match slot.held {
                        true => self.throttle.held_begun(count, bytes),
                        false => self.throttle.publishes_begun(count, bytes),
                    }
                    attached
                }
                _ => {
                    let keep = Duration::from_secs(self.service.config().session.keep_alive_interval_s);
                    if slots.closed_lately(run.producer_id, Instant::now(), keep) {
                        return Ok(());
                    }
                    return Err(format!("SEND for producer {}, which is not ready", run.producer_id));
                }
            }
        };
        topic.publish(key, run.batch);
        Ok(())
    }

    /// Does what one command says; answers credentials that are to be checked.
    fn command(&self, body: Body) -> Result<Option<Credentials>, String> {
        match body {
            Body::Connect(connect) => return self.connect(connect).map(Some),
            Body::AuthResponse(response) => return self.auth_response(response),
            _ if self.client().is_none() => return Err(format!("{} before CONNECT", body.kind().as_str_name())),
            Body::Ping(_) => self.send(CommandPong {}),
            Body::Pong(_) => {}
            Body::LookupTopic(lookup) => self.lookup(lookup),
            Body::PartitionMetadata(request) => self.partition_metadata(request),
            Body::Producer(producer) => self.create_producer(producer),
            Body::CloseProducer(close) => self.close_producer_command(close),
            Body::Subscribe(subscribe) => self.subscribe(subscribe),
            Body::Flow(flow) => self.flow(&flow)?,
            Body::Ack(ack) => self.ack(ack),
            Body::RedeliverUnacknowledgedMessages(redeliver) => self.redeliver(redeliver),
            Body::CloseConsumer(close) => self.close_consumer_command(close),
            Body::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe),
            Body::Seek(seek) => self.seek(seek),
            Body::GetLastMessageId(request) => self.last_message_id(request),
            Body::ConsumerStats(request) => self.consumer_stats(&request),
            Body::GetTopicsOfNamespace(request) => self.topics_of_namespace(request),
            Body::WatchTopicList(watch) => self.watch_topic_list(watch),
            Body::WatchTopicListClose(close) => self.watch_topic_list_close(&close),
            Body::GetSchema(request) => self.get_schema(request),
            Body::GetOrCreateSchema(request) => self.get_or_create_schema(request),
            other => self.not_offered(other)?,
        }
        Ok(None)
    }

    /// Commands of features that are off, and commands that no client may send.
    fn not_offered(&self, body: Body) -> Result<(), String> {
        let transaction = match &body {
            Body::TcClientConnectRequest(request) => request.request_id,
            Body::NewTxn(request) => request.request_id,
            Body::AddPartitionToTxn(request) => request.request_id,
            Body::AddSubscriptionToTxn(request) => request.request_id,
            Body::EndTxn(request) => request.request_id,
            Body::EndTxnOnPartition(request) => request.request_id,
            Body::EndTxnOnSubscription(request) => request.request_id,
            other => return Err(format!("{} is not a command for this broker", other.kind().as_str_name())),
        };
        self.send(request_error(transaction, ServerError::NotAllowedError, "Transactions are not enabled."));
        Ok(())
    }
}

/// Why a SEND is refused without asking its topic.
fn refusal(header: &SendHeader, payload: &[u8]) -> Option<(ServerError, String)> {
    if header.txnid.is_some() {
        return Some((ServerError::NotAllowedError, "Transactions are not enabled.".into()));
    }
    match payload::verify_checksum(payload) {
        Ok(_) => {}
        Err(error @ PayloadError::Checksum { .. }) => return Some((ServerError::ChecksumError, error.to_string())),
        Err(error) => return Some((ServerError::MetadataError, error.to_string())),
    }
    match header.highest_sequence_id {
        Some(highest) if header.sequence_id > highest => {
            Some((ServerError::MetadataError, "Invalid lowest or highest sequence id".into()))
        }
        _ => None,
    }
}
