//! Gives a region that was built anew its own former messages back, of which this region holds copies.
//!
//! Role: one pass over a topic's log, by an operator's order and never by itself.
//! Invariants: Z1 only what was first stored in a former life of the region's topic is sent, each entry under the region,
//! life and position of then: what is there already is not stored again, whichever region brings it and how often;
//! Z2 it names its origin, so that nobody sends it on; Z3 entries go in the order of the log, and [`WINDOW`] of them at most
//! have no receipt; Z4 one pass at a time for a topic and a region, which ends with the topic's links.
//! Failure: a pass ends with a sentence; what it brought stays, and another one goes on from there by Z1.
//! Must never know: who asks for it.

use super::{Hosted, Replication, TopicLinks};
use crate::error::BrokerError;
use bytes::{Bytes, BytesMut};
use meridian_client::{
    Connection, LinkEvent, LinkEvents, LinkLimits, LinkOptions, LinkProducer, OutgoingEntry, PeerPool,
};
use meridian_managed_ledger::{LogEntry, ManagedLedger};
use meridian_policy::ClusterData;
use meridian_replicator::{LocalSchemas, known_life};
use meridian_topic::{TopicError, TopicErrorKind};
use meridian_types::{Incarnation, Position, RegionId, TopicName};
use meridian_wire::payload::summarize;
use meridian_wire::replicate::{
    INCARNATION_KEY, LINK_ARROW, LINK_KEY, REGION_KEY, Stamp, cursor_name, link_name, stamp,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// Entries without a receipt at most.
const WINDOW: usize = 1000;
/// Entries and bytes of one read.
const READ_ENTRIES: u32 = 500;
const READ_BYTES: u64 = 2 << 20;
/// Entries and bytes of one send (or one larger entry).
const SEND_ENTRIES: usize = 100;
const SEND_BYTES: usize = 1 << 20;
/// How long the region may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How a pass goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RestoreState {
    /// It goes on.
    #[default]
    Running,
    /// Everything is there.
    Done,
    /// Why it ended before that.
    Failed(String),
}

/// A pass at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreStatus {
    /// How it goes.
    pub state: RestoreState,
    /// Entries that the region stored.
    pub returned: u64,
    /// Entries that it had already.
    pub already_there: u64,
}

/// What the shell of links is given for one pass.
pub struct RestoreRequest {
    /// The topic or partition.
    pub topic: TopicName,
    /// Its log here.
    pub log: Arc<ManagedLedger>,
    /// The region.
    pub remote: String,
    /// How it is reached.
    pub cluster: Arc<ClusterData>,
    /// The present life of the topic there.
    pub life: Incarnation,
    /// Told of what is done.
    pub status: Arc<Mutex<RestoreStatus>>,
}

/// A pass that runs or ran.
pub(super) struct Restore {
    status: Arc<Mutex<RestoreStatus>>,
    task: AbortHandle,
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replication {
    /// Begins to give a region its own former messages of a topic back.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] without a link, a topic error of kind Busy while a pass runs, or
    /// [`BrokerError::NotAllowed`] while it is not known which life of the topic the region has.
    pub fn restore(&self, topic: &TopicName, remote: &str) -> Result<(), BrokerError> {
        let links = self.links_to(topic, remote)?;
        let cluster = match links.links.read().get(remote) {
            // The life that is known may be a former one until the region is heard.
            Some(Hosted { link: Ok(link), cluster: Some(cluster) }) if link.figures().connected => cluster.clone(),
            _ => return Err(BrokerError::NotAllowed(format!("the link of {topic} to {remote} is not connected"))),
        };
        let log = links.feed.log().cloned().ok_or_else(|| BrokerError::NotAllowed(format!("{topic} keeps nothing")))?;
        let life = log.cursor(&cursor_name(remote)).and_then(|cursor| known_life(&cursor)).ok_or_else(|| {
            BrokerError::NotAllowed(format!("region {remote} has not said yet which life of {topic} it has"))
        })?;
        let mut restores = links.restores.lock();
        if restores.get(remote).is_some_and(|one| one.status.lock().state == RestoreState::Running) {
            let text = format!("region {remote} is being given the messages of {topic} already");
            return Err(TopicError::new(TopicErrorKind::Busy, text).into());
        }
        let status = Arc::new(Mutex::new(RestoreStatus::default()));
        let (remote_name, told) = (remote.to_owned(), status.clone());
        let request =
            RestoreRequest { topic: topic.clone(), log, remote: remote_name, cluster, life, status: status.clone() };
        let (linker, topic, to) = (self.linker.clone(), topic.clone(), remote.to_owned());
        let task = tokio::spawn(async move {
            let outcome = linker.restore(request).await;
            let mut status = told.lock();
            let (returned, already_there) = (status.returned, status.already_there);
            match &outcome {
                Ok(()) => {
                    tracing::info!(%topic, remote = to, returned, already_there, "former messages are given back")
                }
                Err(error) => {
                    tracing::warn!(%topic, remote = to, returned, error, "former messages are not given back")
                }
            }
            status.state = outcome.map_or_else(RestoreState::Failed, |()| RestoreState::Done);
        });
        restores.insert(remote.to_owned(), Restore { status, task: task.abort_handle() });
        Ok(())
    }

    /// How the last pass for a region went; `None` = there was none since the topic was opened.
    ///
    /// # Errors
    /// [`BrokerError::TopicNotFound`] without a link.
    pub fn restored(&self, topic: &TopicName, remote: &str) -> Result<Option<RestoreStatus>, BrokerError> {
        let links = self.links_to(topic, remote)?;
        let status = links.restores.lock().get(remote).map(|one| one.status.lock().clone());
        Ok(status)
    }

    fn links_to(&self, topic: &TopicName, remote: &str) -> Result<Arc<TopicLinks>, BrokerError> {
        let links = self.topics.lock().get(topic).filter(|links| links.links.read().contains_key(remote)).cloned();
        links.ok_or_else(|| BrokerError::TopicNotFound(format!("Replicator {remote} of topic {topic} not found")))
    }
}

/// Who sends, beside the request.
pub(super) struct Sender {
    /// Connections to the region.
    pub(super) pool: PeerPool,
    /// Name of the region here.
    pub(super) own: Arc<str>,
    /// The topic's schemas here.
    pub(super) schemas: Arc<dyn LocalSchemas>,
    /// More of the producer's metadata.
    pub(super) metadata: Vec<(String, String)>,
}

/// One pass.
pub(super) async fn run(request: &RestoreRequest, sender: &Sender) -> Result<(), String> {
    let (log, region) = (&request.log, RegionId::of(&request.remote));
    let (mut from, end) = (log.first_position(), log.last_confirmed());
    let mut stream: Option<Stream> = None;
    while from <= end {
        let entries = log.read(from, READ_ENTRIES, READ_BYTES).await.map_err(|error| error.to_string())?;
        let Some(last) = entries.last() else { break };
        from = last.position.next_in_ledger();
        let former: Vec<&LogEntry> =
            entries.iter().filter(|entry| entry.position <= end && is_former(entry, region, request.life)).collect();
        for run in former.chunk_by(|one, other| one.origin.1 == other.origin.1) {
            let life = run[0].origin.1;
            if let Some(other) = stream.take_if(|stream| stream.life != life) {
                other.finish(request).await?;
            }
            let stream = match &mut stream {
                Some(stream) => stream,
                none => none.insert(Stream::open(request, sender, life).await?),
            };
            stream.send(request, sender, run).await?;
        }
    }
    match stream {
        Some(stream) => stream.finish(request).await,
        None => Ok(()),
    }
}

/// Z1.
fn is_former(entry: &LogEntry, region: RegionId, present: Incarnation) -> bool {
    let (from, life, _) = entry.origin;
    // Life 0 is a Pulsar cluster's, which knows no lives.
    !entry.marker && from == region && life != present && life != Incarnation(0)
}

/// The messages of one former life on their way.
struct Stream {
    life: Incarnation,
    connection: Connection,
    producer: LinkProducer,
    events: LinkEvents,
    unanswered: usize,
    sequence: u64,
    /// Numbers of schemas here and there.
    versions: HashMap<Bytes, Bytes>,
}

impl Stream {
    async fn open(request: &RestoreRequest, sender: &Sender, life: Incarnation) -> Result<Self, String> {
        let connection = sender.pool.owner(&request.topic).await.map_err(|error| error.to_string())?;
        let pair = |key: &str, value: String| (key.to_owned(), value);
        // Z1: what comes is the region's own of that life.
        let mut metadata = vec![
            pair(REGION_KEY, request.remote.clone()),
            pair(INCARNATION_KEY, life.0.to_string()),
            pair(LINK_KEY, "1".to_owned()),
        ];
        metadata.extend(sender.metadata.iter().cloned());
        let link = link_name(&sender.own, &request.remote);
        let options = LinkOptions {
            name: Some(format!("{link}{LINK_ARROW}restore-{}", life.0)),
            metadata,
            epoch: crate::service::now_ms(),
            limits: LinkLimits { entries: 2 * WINDOW, ..LinkLimits::default() },
            ..LinkOptions::new(request.topic.clone())
        };
        let (producer, events) = LinkProducer::open(&connection, &options).await.map_err(|error| error.to_string())?;
        Ok(Self { life, connection, producer, events, unanswered: 0, sequence: 0, versions: HashMap::new() })
    }

    async fn send(&mut self, request: &RestoreRequest, sender: &Sender, run: &[&LogEntry]) -> Result<(), String> {
        let (mut ready, mut bytes) = (Vec::new(), 0);
        for entry in run {
            let outgoing = self.outgoing(request, sender, entry).await?;
            if ready.len() == SEND_ENTRIES || (bytes > 0 && bytes + outgoing.entry.len() > SEND_BYTES) {
                self.push(request, std::mem::take(&mut ready), bytes).await?;
                bytes = 0;
            }
            bytes += outgoing.entry.len();
            ready.push(outgoing);
        }
        self.push(request, ready, bytes).await
    }

    /// Sends at once what fits into the window as a whole.
    async fn push(&mut self, request: &RestoreRequest, ready: Vec<OutgoingEntry>, bytes: usize) -> Result<(), String> {
        let count = ready.len();
        self.settle(request, WINDOW.saturating_sub(count)).await?;
        // Room for its bytes comes with the answers to others.
        while self.unanswered > 0 && self.producer.room().bytes < bytes {
            self.settle(request, self.unanswered - 1).await?;
        }
        let sent = tokio::time::timeout(ANSWER_LIMIT, self.producer.send(ready)).await;
        sent.map_err(|_| late())?.map_err(|error| error.to_string())?;
        self.unanswered += count;
        Ok(())
    }

    async fn outgoing(
        &mut self,
        request: &RestoreRequest,
        sender: &Sender,
        entry: &LogEntry,
    ) -> Result<OutgoingEntry, String> {
        let text = |error: meridian_wire::payload::PayloadError| format!("{}: {error}", entry.position);
        let summary = summarize(&entry.payload).map_err(text)?;
        let version = match summary.schema_version {
            Some(version) => Some(self.version(request, sender, entry.payload.slice_ref(version)).await?),
            None => None,
        };
        let position = entry.origin.2;
        let mark = Stamp { from: &request.remote, position: Some(position), schema_version: version.as_deref() };
        let mut whole = BytesMut::new();
        let payload = stamp(&entry.payload, &mark, &mut whole).map_err(text)?;
        whole.extend_from_slice(&payload);
        self.sequence += 1;
        Ok(OutgoingEntry {
            sequence_id: self.sequence,
            highest_sequence_id: None,
            num_messages: entry.messages.max(1),
            marker: false,
            is_chunk: summary.is_chunk(),
            source: Some(position),
            entry: whole.freeze(),
        })
    }

    /// The region's number of a schema, which is brought over first.
    async fn version(&mut self, request: &RestoreRequest, sender: &Sender, version: Bytes) -> Result<Bytes, String> {
        if let Some(known) = self.versions.get(&version) {
            return Ok(known.clone());
        }
        let schema = sender.schemas.schema(version.clone()).await?;
        let schema = schema.ok_or_else(|| format!("the topic has no schema of version {version:?} here"))?;
        let there = self.connection.get_or_create_schema(&request.topic, schema);
        let there = tokio::time::timeout(ANSWER_LIMIT, there).await;
        let there = there.map_err(|_| late())?.map_err(|error| error.to_string())?;
        self.versions.insert(version, there.clone());
        Ok(there)
    }

    /// Waits until no more than so many have no answer.
    async fn settle(&mut self, request: &RestoreRequest, left: usize) -> Result<(), String> {
        while self.unanswered > left {
            let events = tokio::time::timeout(ANSWER_LIMIT, self.events.recv()).await.map_err(|_| late())?;
            let events = events.ok_or_else(|| "the producer has ended".to_owned())?;
            let mut status = request.status.lock();
            for event in events {
                match event {
                    LinkEvent::Receipt { position, .. } => {
                        self.unanswered = self.unanswered.saturating_sub(1);
                        match position == Position::EARLIEST {
                            true => status.already_there += 1,
                            false => status.returned += 1,
                        }
                    }
                    LinkEvent::SendError { text, .. } => return Err(text),
                    LinkEvent::TopicMigrated { url } => return Err(format!("the topic has moved to {url}")),
                    LinkEvent::Closed { reason, .. } => return Err(reason),
                }
            }
        }
        Ok(())
    }

    async fn finish(mut self, request: &RestoreRequest) -> Result<(), String> {
        self.settle(request, 0).await?;
        if let Err(error) = self.producer.close().await {
            // Everything is stored: that the connection ended instead changes nothing.
            tracing::debug!(topic = %request.topic, %error, "the producer of a restoration did not close");
        }
        Ok(())
    }
}

fn late() -> String {
    format!("no answer within {} s", ANSWER_LIMIT.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_former_life_stored_is_given_back() {
        let (east, west) = (RegionId::of("east"), RegionId::of("west"));
        let of = |region, life, marker| LogEntry {
            position: Position::new(1, 2),
            index: 0,
            messages: 1,
            marker,
            broker_time_ms: 0,
            origin: (region, Incarnation(life), Position::new(7, 8)),
            payload: Bytes::new(),
        };
        let is_given = |region, life, marker| is_former(&of(region, life, marker), east, Incarnation(9));
        assert!(is_given(east, 8, false));
        assert!(!is_given(east, 9, false), "it is there");
        assert!(!is_given(west, 8, false), "that is the link's");
        assert!(!is_given(east, 8, true), "markers were for their moment");
        assert!(!is_given(east, 0, false));
    }
}
