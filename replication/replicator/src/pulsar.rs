//! A [`Remote`] over the Pulsar protocol, for Meridian and Pulsar regions alike.
//!
//! Invariants: N1 the topic's shape comes from the source: nothing is created there before the shapes are compared, and a
//! difference refuses the link; N2 the producer is `pulsar.repl.<local>--><remote>` with the source's incarnation in its
//! metadata; N3 what the connection cannot take at once waits here, in order, and is bounded by the machine's window.
//! Failure: [`OpenFailure`] by who must act. Must never know: logs, cursors.

use crate::machine::words::{OpenFailure, Outgoing, Peer, Receipt, SendRefusal};
use crate::remote::{LocalSchemas, Remote, SchemaRegistrar, Session, SessionEvent};
use crate::source::BoxFuture;
use bytes::Bytes;
use meridian_client::{
    ClientError, Connection, LinkEvent, LinkEvents, LinkLimits, LinkOptions, LinkProducer, OutgoingEntry, PeerPool,
};
use meridian_types::{Incarnation, TopicName};
use meridian_wire::proto::{Schema, ServerError};
use meridian_wire::replicate::{INCARNATION_KEY, LINK_KEY, REGION_KEY, link_name};
use std::sync::Arc;

/// In the version text of a Meridian broker.
const MERIDIAN_VERSION: &str = "Meridian/";
/// The version of the link's rules.
const LINK_VERSION: &str = "1";
/// In the text of the error for an entry that a broker has in hand: it has no code of its own.
const UNDECIDED_TEXT: &str = "whether the message is a duplicate";
/// Entries per write when the connection was full.
const RUN_ENTRIES: usize = 64;

/// Makes topics in the remote region, for links whose peers can't be told by the region link.
pub trait TopicMaker: Send + Sync {
    /// Makes it with so many partitions (0 = without), or lets it grow to so many; it may be there already.
    fn make(&self, topic: &TopicName, partitions: u32) -> BoxFuture<'static, Result<(), String>>;
}

/// What a link needs to reach a topic in another region.
#[derive(Clone)]
pub struct PulsarRemote {
    /// The connections to the region.
    pub pool: PeerPool,
    /// The topic or partition.
    pub topic: TopicName,
    /// Partitions of the topic here; 0 = not partitioned.
    pub partitions: u32,
    /// The log's life.
    pub incarnation: Incarnation,
    /// Name of the region here.
    pub local: Arc<str>,
    /// Name of the region there.
    pub remote: Arc<str>,
    /// More of the producer's metadata, such as the epoch under which the namespace is active.
    pub metadata: Vec<(String, String)>,
    /// Entries that may be under way; as the machine's bounds.
    pub max_waiting_entries: u32,
    /// Bytes that may be under way; as the machine's bounds.
    pub max_waiting_bytes: u64,
    /// The topic's schemas here.
    pub schemas: Arc<dyn LocalSchemas>,
    /// Makes partitioned topics there.
    pub maker: Option<Arc<dyn TopicMaker>>,
}

/// What is known of the topic in the remote region; 0 partitions = it is not partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum There {
    Unknown,
    Missing,
    Partitions(u32),
}

impl PulsarRemote {
    /// N1.
    async fn compare(&self) -> Result<(), OpenFailure> {
        let base = self.topic.base();
        let mut there = self.there(&base).await?;
        if let Some(maker) = &self.maker
            && self.is_short(there)
        {
            match maker.make(&base, self.partitions).await {
                Ok(()) => there = self.there(&base).await?,
                // The remote's own rules may let it be made by its use.
                Err(reason) if self.partitions == 0 => {
                    tracing::debug!(topic = %base, remote = %self.remote, reason, "the topic was not made there");
                }
                Err(reason) => return Err(OpenFailure::Refused(reason)),
            }
        }
        let remote = match there {
            // A peer that can't be asked without creating.
            There::Unknown => return Ok(()),
            There::Missing => 0,
            There::Partitions(count) => count,
        };
        if remote == self.partitions {
            return Ok(());
        }
        Err(OpenFailure::PartitionMismatch { local: self.partitions, remote })
    }

    /// Whether the topic is missing there, or has fewer partitions than here.
    fn is_short(&self, there: There) -> bool {
        match there {
            There::Unknown => false,
            There::Missing => true,
            There::Partitions(count) => count < self.partitions,
        }
    }

    async fn there(&self, base: &TopicName) -> Result<There, OpenFailure> {
        match self.pool.partitions(base, false).await {
            Ok(partitions) => Ok(There::Partitions(partitions)),
            Err(ClientError::Unsupported(_)) => Ok(There::Unknown),
            Err(error) if error.code() == Some(ServerError::TopicNotFound) => Ok(There::Missing),
            Err(error) => Err(failure(&error)),
        }
    }

    fn options(&self, epoch: u64, generation: u64) -> LinkOptions {
        let mut name = link_name(&self.local, &self.remote);
        if generation > 0 {
            name = format!("{name}-->{generation}");
        }
        let pair = |key: &str, value: String| (key.to_owned(), value);
        let mut metadata = vec![
            pair(REGION_KEY, self.local.to_string()),
            pair(INCARNATION_KEY, self.incarnation.0.to_string()),
            pair(LINK_KEY, LINK_VERSION.to_owned()),
        ];
        metadata.extend(self.metadata.iter().cloned());
        LinkOptions {
            name: Some(name),
            metadata,
            epoch,
            limits: LinkLimits {
                entries: self.max_waiting_entries as usize,
                bytes: usize::try_from(self.max_waiting_bytes).unwrap_or(usize::MAX),
            },
            ..LinkOptions::new(self.topic.clone())
        }
    }

    async fn open_session(self, epoch: u64, generation: u64) -> Result<Box<dyn Session>, OpenFailure> {
        self.compare().await?;
        let connection = self.pool.owner(&self.topic).await.map_err(|error| failure(&error))?;
        let mut options = self.options(epoch, generation);
        let mut opened = LinkProducer::open(&connection, &options).await;
        if let Err(error) = &opened
            && error.code() == Some(ServerError::IncompatibleSchema)
        {
            // A peer that takes no producer without a schema; each message's own is checked all the same.
            options.schema = self.schemas.latest().await.map_err(OpenFailure::Schema)?;
            if options.schema.is_some() {
                opened = LinkProducer::open(&connection, &options).await;
            }
        }
        let (producer, events) = opened.map_err(|error| failure(&error))?;
        let facts = connection.facts();
        let meridian = facts.server_version.contains(MERIDIAN_VERSION);
        let peer = Peer {
            meridian,
            positions: meridian || facts.deduplicates_by_source_position(),
            max_entry_bytes: facts.max_entry_bytes() as u64,
        };
        Ok(Box::new(PulsarSession {
            topic: self.topic,
            connection,
            producer,
            events,
            peer,
            outbox: Vec::new(),
            broken: None,
        }))
    }
}

impl Remote for PulsarRemote {
    fn open(&self, epoch: u64, generation: u64) -> BoxFuture<'static, Result<Box<dyn Session>, OpenFailure>> {
        Box::pin(self.clone().open_session(epoch, generation))
    }
}

/// By who must act.
fn failure(error: &ClientError) -> OpenFailure {
    let text = error.to_string();
    match error {
        ClientError::Refused { .. } => match error.code() {
            Some(ServerError::IncompatibleSchema) => OpenFailure::Schema(text),
            Some(ServerError::ServiceNotReady) => OpenFailure::Unreachable(text),
            _ => OpenFailure::Refused(text),
        },
        _ => OpenFailure::Unreachable(text),
    }
}

struct PulsarSession {
    topic: TopicName,
    connection: Connection,
    producer: LinkProducer,
    events: LinkEvents,
    peer: Peer,
    outbox: Vec<OutgoingEntry>,
    broken: Option<String>,
}

impl PulsarSession {
    /// Writes what waits, as far as it goes.
    fn write(&mut self) {
        while !self.outbox.is_empty() {
            let rest = if self.outbox.len() > RUN_ENTRIES { self.outbox.split_off(RUN_ENTRIES) } else { Vec::new() };
            let run = std::mem::replace(&mut self.outbox, rest);
            if let Err(mut not_sent) = self.producer.try_send(run) {
                not_sent.run.append(&mut self.outbox);
                self.outbox = not_sent.run;
                self.broken = not_sent.error.map(|error| error.to_string());
                return;
            }
        }
    }
}

/// Bytes of the next run that waits.
fn next_run(outbox: &[OutgoingEntry]) -> (usize, usize) {
    let entries = outbox.len().min(RUN_ENTRIES);
    (entries, outbox[..entries].iter().map(|outgoing| outgoing.entry.len()).sum())
}

impl Session for PulsarSession {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn topic_life(&self) -> Option<u64> {
        self.producer.topic_epoch().filter(|_| self.peer.meridian)
    }

    fn address(&self) -> String {
        self.connection.endpoint().to_string()
    }

    fn send(&mut self, entries: Vec<Outgoing>) {
        let blocked = !self.outbox.is_empty();
        self.outbox.extend(entries.into_iter().map(|outgoing| OutgoingEntry {
            sequence_id: outgoing.sequence_id,
            highest_sequence_id: outgoing.highest_sequence_id,
            num_messages: outgoing.messages,
            marker: outgoing.marker,
            is_chunk: outgoing.chunk,
            source: outgoing.source_position,
            entry: outgoing.entry,
        }));
        if !blocked {
            self.write();
        }
    }

    fn next(&mut self) -> BoxFuture<'_, Vec<SessionEvent>> {
        Box::pin(async move {
            loop {
                if let Some(reason) = self.broken.take() {
                    return vec![SessionEvent::Lost(reason)];
                }
                if self.outbox.is_empty() {
                    return translate(self.events.recv().await);
                }
                let (entries, bytes) = next_run(&self.outbox);
                tokio::select! {
                    events = self.events.recv() => return translate(events),
                    room = self.producer.writable(entries, bytes) => match room {
                        Ok(()) => self.write(),
                        Err(error) => return vec![SessionEvent::Lost(error.to_string())],
                    },
                }
            }
        })
    }

    fn registrar(&self) -> Box<dyn SchemaRegistrar> {
        Box::new(Registrar { topic: self.topic.clone(), connection: self.connection.clone() })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Err(error) = self.producer.close().await {
                tracing::debug!(topic = %self.topic, %error, "the remote did not confirm the close of a link");
            }
        })
    }
}

fn translate(events: Option<Vec<LinkEvent>>) -> Vec<SessionEvent> {
    let Some(events) = events else { return vec![SessionEvent::Lost("the producer has ended".to_owned())] };
    let said = |event| match event {
        LinkEvent::Receipt { sequence_id, highest_sequence_id, position } => {
            Some(SessionEvent::Receipt(Receipt { sequence_id, highest_sequence_id, position }))
        }
        LinkEvent::SendError { sequence_id, code, text } => {
            let error = format!("{code:?}: {text}");
            let undecided = text.contains(UNDECIDED_TEXT);
            Some(SessionEvent::Refused(SendRefusal { sequence_id, error, undecided }))
        }
        LinkEvent::TopicMigrated { .. } => None,
        LinkEvent::Closed { reason, .. } => Some(SessionEvent::Lost(reason)),
    };
    events.into_iter().filter_map(said).collect()
}

struct Registrar {
    topic: TopicName,
    connection: Connection,
}

impl SchemaRegistrar for Registrar {
    fn bring(&self, schema: Schema) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            let version = self.connection.get_or_create_schema(&self.topic, schema).await;
            version.map_err(|error| error.to_string())
        })
    }
}
