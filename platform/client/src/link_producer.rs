//! A producer of raw entries, for replicators: what is sent is what another log holds, byte by byte.
//!
//! Invariants:
//! - P1 Entries go out in the order of the calls, and their answers come in the order of the peer (an error may overtake
//!   receipts); nothing is sent twice or again.
//! - P2 At most `entries` entries and `bytes` bytes (or one larger entry) are sent and not yet *taken from the events* by
//!   the owner, so the events are bounded too.
//! - P3 [`LinkEvent::Closed`] is the last event; nothing is sent behind it.
//! - P4 A producer that is dropped, or whose opening was given up, is closed at the peer.
//!
//! Failure: the owner decides; there is no reconnection here.
//! Must never know: logs, cursors, what an entry means.

use crate::ClientError;
use crate::connection::{Connection, ProducerSlot, unexpected};
use crate::window::{LinkLimits, Room, Window};
use bytes::{Bytes, BytesMut};
use meridian_types::{Position, TopicName};
use meridian_wire::encode::encode_with_payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{
    CommandCloseProducer, CommandProducer, CommandSend, KeyValue, MessageIdData, Schema, ServerError,
};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Entries up to this size are copied behind their command; larger ones are written from where they are.
const COPIED_BYTES: usize = 4096;
/// Bytes of a SEND command, as a guess for buffers.
const COMMAND_BYTES: usize = 64;

/// How a producer is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkOptions {
    /// The topic or partition.
    pub topic: TopicName,
    /// The producer's name; without it the peer makes one.
    pub name: Option<String>,
    /// Whether the name was chosen by this side (then the peer keeps it over reconnections).
    pub user_provided_name: bool,
    /// Properties of the producer.
    pub metadata: Vec<(String, String)>,
    /// The schema of what will be sent.
    pub schema: Option<Schema>,
    /// Higher with each opening under the same name.
    pub epoch: u64,
    /// The entries are encrypted.
    pub encrypted: bool,
    /// How much may be on its way.
    pub limits: LinkLimits,
}

impl LinkOptions {
    /// Everything but the topic at its default.
    pub fn new(topic: TopicName) -> Self {
        Self {
            topic,
            name: None,
            user_provided_name: true,
            metadata: Vec::new(),
            schema: None,
            epoch: 0,
            encrypted: false,
            limits: LinkLimits::default(),
        }
    }
}

/// One entry to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingEntry {
    /// Sequence id of the entry (of a batch: the lowest).
    pub sequence_id: u64,
    /// Highest sequence id of a batch.
    pub highest_sequence_id: Option<u64>,
    /// Messages in the entry; 1 if it is no batch.
    pub num_messages: u32,
    /// Written by a broker or replicator, not by an application.
    pub marker: bool,
    /// One part of a chunked message.
    pub is_chunk: bool,
    /// The position in the source's log. Only for peers that know what it means.
    pub source: Option<Position>,
    /// Checksum, metadata and payload, as they go out.
    pub entry: Bytes,
}

/// What a producer's peer says. Answers (receipts and errors) come in the order in which the peer sends them: receipts in
/// the order of the sends, but an error may overtake the receipts of earlier sends (Apache Pulsar does that).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// An entry is stored.
    Receipt {
        /// As in the send, or what the peer puts there instead.
        sequence_id: u64,
        /// As in the send, or what the peer puts there instead; 0 if nothing.
        highest_sequence_id: u64,
        /// Where the entry is at the peer; -1:-1 for a duplicate.
        position: Position,
    },
    /// An entry was not stored; what was sent behind it may have been, and receipts of what was sent before it may follow.
    SendError {
        /// As in the send.
        sequence_id: u64,
        /// The protocol's code.
        code: ServerError,
        /// The peer's reason.
        text: String,
    },
    /// The topic lives elsewhere now. [`Closed`](Self::Closed) follows.
    TopicMigrated {
        /// The service URL of the other cluster.
        url: String,
    },
    /// The last event: the peer closed the producer, or the connection ended. What has no answer is unknown.
    Closed {
        /// Why.
        reason: String,
        /// The broker that serves the topic now, if the peer said so.
        broker_url: Option<String>,
    },
}

impl LinkEvent {
    /// Whether it is the answer to one send.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Receipt { .. } | Self::SendError { .. })
    }
}

/// Why a run was not sent at once; it comes back unchanged.
#[derive(Debug)]
pub struct NotSent {
    /// The run.
    pub run: Vec<OutgoingEntry>,
    /// `None`: there is no room now ([`LinkProducer::writable`]).
    pub error: Option<ClientError>,
}

/// A producer of raw entries. One owner sends; its events come by [`LinkEvents`].
#[derive(Debug)]
pub struct LinkProducer {
    connection: Connection,
    producer_id: u64,
    name: String,
    last_sequence_id: i64,
    topic_epoch: Option<u64>,
    schema_version: Option<Bytes>,
    window: Arc<Window>,
}

/// The events of a producer.
#[derive(Debug)]
pub struct LinkEvents {
    batches: mpsc::UnboundedReceiver<Vec<LinkEvent>>,
    window: Arc<Window>,
}

impl LinkEvents {
    /// The next events, in order, as many as came together; `None` behind [`LinkEvent::Closed`] or after the producer
    /// was dropped. May be given up and called again.
    pub async fn recv(&mut self) -> Option<Vec<LinkEvent>> {
        let batch = self.batches.recv().await?;
        self.count(&batch);
        Some(batch)
    }

    /// The next events if there are some now.
    pub fn try_recv(&mut self) -> Option<Vec<LinkEvent>> {
        let batch = self.batches.try_recv().ok()?;
        self.count(&batch);
        Some(batch)
    }

    fn count(&self, batch: &[LinkEvent]) {
        self.window.taken(batch.iter().filter(|event| event.is_answer()).count());
    }
}

impl LinkProducer {
    /// Opens a producer on the broker that serves the topic ([`PeerPool::owner`](crate::PeerPool::owner)).
    ///
    /// # Errors
    /// The peer refuses or does not answer, or the connection ends.
    pub async fn open(connection: &Connection, options: &LinkOptions) -> Result<(Self, LinkEvents), ClientError> {
        let (producer_id, request_id) = (connection.next_id(), connection.next_id());
        let window = Arc::new(Window::new(options.limits));
        let (events, batches) = mpsc::unbounded_channel();
        connection.add_producer(producer_id, ProducerSlot { events, window: window.clone(), batch: Vec::new() })?;
        // From here on dropping it closes the producer at the peer.
        let mut producer = Self {
            connection: connection.clone(),
            producer_id,
            name: String::new(),
            last_sequence_id: -1,
            topic_epoch: None,
            schema_version: None,
            window: window.clone(),
        };
        let command = open_command(options, producer_id, request_id);
        match connection.request("a producer", request_id, command).await {
            Ok(Body::ProducerSuccess(success)) => {
                producer.last_sequence_id = success.last_sequence_id();
                producer.topic_epoch = success.topic_epoch;
                producer.name = success.producer_name;
                producer.schema_version = success.schema_version.filter(|version| !version.is_empty());
                Ok((producer, LinkEvents { batches, window }))
            }
            Ok(other) => Err(unexpected("a producer", &other)),
            Err(error) => {
                if matches!(error, ClientError::Refused { .. }) {
                    // There is nothing to close.
                    connection.remove_producer(producer_id);
                }
                Err(error)
            }
        }
    }

    /// Its name at the peer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last sequence id that the peer stored under this name, or -1.
    pub fn last_sequence_id(&self) -> i64 {
        self.last_sequence_id
    }

    /// The topic's epoch as the broker said it; a Meridian broker tells links which life of the topic it has.
    pub fn topic_epoch(&self) -> Option<u64> {
        self.topic_epoch
    }

    /// The version of the schema with which it was opened.
    pub fn schema_version(&self) -> Option<&Bytes> {
        self.schema_version.as_ref()
    }

    /// The connection that it uses.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Entries that were sent and whose answers were not taken from the events.
    pub fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// How much may be sent now, as far as this producer's own limits go.
    pub fn room(&self) -> Room {
        self.window.room()
    }

    /// Waits until a run of so many entries and bytes fits (or as much as ever does). May be given up and called again.
    ///
    /// Room comes only when the owner takes answers from the events, so whoever awaits this has to take them meanwhile.
    ///
    /// # Errors
    /// The producer has closed.
    pub async fn writable(&self, entries: usize, bytes: usize) -> Result<(), ClientError> {
        if !self.window.wait(entries, bytes).await {
            return Err(self.closed());
        }
        self.connection.writable(bytes).await
    }

    /// Sends a run if all of it fits now.
    ///
    /// # Errors
    /// [`NotSent`] with the run: no room, an entry is too large, or the producer has closed.
    pub fn try_send(&mut self, run: Vec<OutgoingEntry>) -> Result<(), NotSent> {
        match self.try_send_run(&run) {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotSent { run, error: None }),
            Err(error) => Err(NotSent { run, error: Some(error) }),
        }
    }

    fn try_send_run(&mut self, run: &[OutgoingEntry]) -> Result<bool, ClientError> {
        let bytes = self.check(run)?;
        if !self.window.add(sizes(run), bytes) {
            return Ok(false);
        }
        let reserved = self.connection.try_reserve(bytes);
        let Ok(Some(reserved)) = reserved else {
            self.window.undo(run.len());
            return reserved.map(|_| false);
        };
        self.connection.push_reserved(reserved, encode_run(self.producer_id, run)).map(|()| true)
    }

    /// Sends a run, in pieces as there is room. Returns when all of it waits to be written.
    ///
    /// Room comes only when the owner takes answers from the events: they have to be taken at the same time. If this is
    /// given up half-way it is unknown what was sent; close the producer then.
    ///
    /// # Errors
    /// An entry is too large (nothing was sent), or the producer has closed (what was sent has no answer).
    pub async fn send(&mut self, mut run: Vec<OutgoingEntry>) -> Result<(), ClientError> {
        self.check(&run)?;
        while !run.is_empty() {
            let first_bytes = run[0].entry.len();
            if !self.window.wait(1, first_bytes).await {
                return Err(self.closed());
            }
            let (count, bytes) = self.piece(&run);
            let rest = run.split_off(count);
            if self.window.add(sizes(&run), bytes) {
                self.connection.push(encode_run(self.producer_id, &run), bytes).await?;
                run = rest;
            } else {
                run.extend(rest);
            }
        }
        Ok(())
    }

    /// How much of a run fits now; at least one entry.
    fn piece(&self, run: &[OutgoingEntry]) -> (usize, usize) {
        let room = self.window.room();
        let limit_bytes = room.bytes.min(self.connection.limits().outbound_bytes);
        let (mut count, mut bytes) = (0, 0);
        for outgoing in run.iter().take(room.entries.max(1)) {
            if count > 0 && bytes + outgoing.entry.len() > limit_bytes {
                break;
            }
            count += 1;
            bytes += outgoing.entry.len();
        }
        (count, bytes)
    }

    /// The bytes of a run, if it may be sent.
    fn check(&self, run: &[OutgoingEntry]) -> Result<usize, ClientError> {
        if self.window.is_closed() {
            return Err(self.closed());
        }
        let limit_bytes = self.connection.facts().max_entry_bytes();
        let mut sum = 0;
        for outgoing in run {
            let bytes = outgoing.entry.len();
            if bytes > limit_bytes {
                return Err(ClientError::TooLarge { bytes, limit_bytes });
            }
            sum += bytes;
        }
        Ok(sum)
    }

    fn closed(&self) -> ClientError {
        self.connection.error().unwrap_or_else(|| ClientError::ended("the producer was closed by the peer"))
    }

    /// Closes it at the peer and waits for the answer. Answers to sends that are still on their way are lost.
    ///
    /// # Errors
    /// The peer refuses or does not answer.
    pub async fn close(self) -> Result<(), ClientError> {
        if !self.connection.remove_producer(self.producer_id) {
            return Ok(());
        }
        let request_id = self.connection.next_id();
        let command = CommandCloseProducer { producer_id: self.producer_id, request_id, ..Default::default() };
        self.connection.request("closing a producer", request_id, command).await.map(drop)
    }
}

impl Drop for LinkProducer {
    fn drop(&mut self) {
        if self.connection.remove_producer(self.producer_id) {
            let request_id = self.connection.next_id();
            let command = CommandCloseProducer { producer_id: self.producer_id, request_id, ..Default::default() };
            self.connection.command_beside(command);
        }
    }
}

fn sizes(run: &[OutgoingEntry]) -> impl ExactSizeIterator<Item = usize> {
    run.iter().map(|outgoing| outgoing.entry.len())
}

fn open_command(options: &LinkOptions, producer_id: u64, request_id: u64) -> CommandProducer {
    let pair = |(key, value): &(String, String)| KeyValue { key: key.clone(), value: value.clone() };
    CommandProducer {
        topic: options.topic.as_str().to_owned(),
        producer_id,
        request_id,
        producer_name: options.name.clone(),
        encrypted: Some(options.encrypted),
        metadata: options.metadata.iter().map(pair).collect(),
        schema: options.schema.clone(),
        epoch: Some(options.epoch),
        user_provided_producer_name: Some(options.user_provided_name && options.name.is_some()),
        ..Default::default()
    }
}

/// The frames of a run: commands and small entries in shared buffers, large entries as they are.
fn encode_run(producer_id: u64, run: &[OutgoingEntry]) -> Vec<Bytes> {
    let copied = |outgoing: &OutgoingEntry| if outgoing.entry.len() <= COPIED_BYTES { outgoing.entry.len() } else { 0 };
    let mut buffer = BytesMut::with_capacity(run.iter().map(|outgoing| copied(outgoing) + COMMAND_BYTES).sum());
    let mut chunks = Vec::new();
    for outgoing in run {
        let command = send_command(producer_id, outgoing);
        encode_with_payload(&command.into(), outgoing.entry.len(), &mut buffer);
        if outgoing.entry.len() <= COPIED_BYTES {
            buffer.extend_from_slice(&outgoing.entry);
        } else {
            chunks.push(buffer.split().freeze());
            chunks.push(outgoing.entry.clone());
        }
    }
    if !buffer.is_empty() {
        chunks.push(buffer.freeze());
    }
    chunks
}

fn send_command(producer_id: u64, outgoing: &OutgoingEntry) -> CommandSend {
    let message_id = |position: Position| MessageIdData {
        ledger_id: position.ledger_id.0 as u64,
        entry_id: position.entry_id.0 as u64,
        ..Default::default()
    };
    CommandSend {
        producer_id,
        sequence_id: outgoing.sequence_id,
        num_messages: (outgoing.num_messages != 1).then_some(outgoing.num_messages as i32),
        highest_sequence_id: outgoing.highest_sequence_id,
        is_chunk: outgoing.is_chunk.then_some(true),
        marker: outgoing.marker.then_some(true),
        message_id: outgoing.source.map(message_id),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_wire::frame::{FrameDecoder, Incoming};

    fn outgoing(bytes: usize) -> OutgoingEntry {
        OutgoingEntry {
            sequence_id: 7,
            highest_sequence_id: Some(9),
            num_messages: 3,
            marker: true,
            is_chunk: true,
            source: Some(Position::new(5, 6)),
            entry: Bytes::from(vec![1; bytes]),
        }
    }

    #[test]
    fn a_run_is_frames_of_which_large_entries_are_not_copied() {
        let run = [outgoing(10), outgoing(COPIED_BYTES + 1), outgoing(COPIED_BYTES), outgoing(1)];
        let chunks = encode_run(4, &run);
        assert_eq!(chunks.len(), 3);
        assert_eq!(chunks[1].as_ptr(), run[1].entry.as_ptr());
        let mut bytes = BytesMut::new();
        chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        for sent in &run {
            let Some(Incoming::Send(header, entry)) = FrameDecoder::default().decode_incoming(&mut bytes).unwrap()
            else {
                panic!("no SEND")
            };
            assert_eq!((header.producer_id, header.sequence_id, header.highest_sequence_id), (4, 7, Some(9)));
            assert_eq!((header.num_messages, header.marker, header.is_chunk), (3, true, true));
            assert_eq!((header.message_id, header.txnid), (Some(Position::new(5, 6)), None));
            assert_eq!(entry, sent.entry);
        }
        assert!(bytes.is_empty());
    }
}
