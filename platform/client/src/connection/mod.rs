//! One connection to a broker of a peer.
//!
//! Role: requests with an answer, frames in order, and one task that reads, writes and keeps the connection alive.
//!
//! Invariants:
//! - C1 An answer goes to the request whose id it names; a request has an answer, a deadline or the end of the
//!   connection.
//! - C2 When the connection ends, everyone who waits on it is told why, once, and nothing is taken any more.
//! - C3 Receipts and messages of one read are handed over as one batch for each producer and consumer; the reader never
//!   waits for them.
//! - C4 The task ends with the last handle.
//!
//! Failure: [`ClientError`]; there is no second connection here, the pool makes one.
//! Must never know: topics, retries.

mod dial;
mod drive;
mod inbound;
mod outbound;

pub(crate) use dial::dial;
pub(crate) use inbound::{ConsumerSlot, ProducerSlot};
pub(crate) use outbound::Reserved;

use crate::ClientError;
use crate::address::Endpoint;
use crate::auth::Credentials;
use crate::peer::PeerLimits;
use bytes::{Bytes, BytesMut};
use inbound::Inbound;
use meridian_wire::encode::encode_command;
use meridian_wire::frame::FRAME_PADDING_BYTES;
use meridian_wire::proto::FeatureFlags;
use meridian_wire::proto::base_command::Body;
use outbound::Outbound;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Room in a frame's padding that a SEND command takes at most.
const SEND_COMMAND_BYTES: usize = 256;

/// What a broker says of itself in CONNECTED.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerFacts {
    /// Its version text.
    pub server_version: String,
    /// The protocol version that both sides speak.
    pub protocol_version: i32,
    /// What it promises.
    pub features: FeatureFlags,
    /// The largest message that it takes.
    pub max_message_bytes: usize,
}

impl PeerFacts {
    /// The largest entry (metadata and payload) that it takes.
    pub fn max_entry_bytes(&self) -> usize {
        self.max_message_bytes.saturating_add(FRAME_PADDING_BYTES - SEND_COMMAND_BYTES)
    }

    /// Whether it is a Meridian broker.
    pub fn is_meridian(&self) -> bool {
        self.server_version.contains("Meridian/")
    }

    /// Whether it deduplicates replicated entries by their source position and answers with it.
    pub fn deduplicates_by_source_position(&self) -> bool {
        self.features.supports_repl_dedup_by_lid_and_eid()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    endpoint: Endpoint,
    facts: PeerFacts,
    limits: PeerLimits,
    credentials: Credentials,
    client_version: String,
    connected_at: Instant,
    last_id: AtomicU64,
    inbound: Mutex<Inbound>,
    outbound: Outbound,
    ended: watch::Sender<bool>,
    /// A challenge is being answered.
    authenticating: AtomicBool,
}

impl Shared {
    /// Ends the connection; the first reason stays.
    fn end(&self, reason: ClientError) {
        let first = self.inbound.lock().end(reason);
        self.outbound.close();
        if first {
            self.ended.send_replace(true);
        }
    }

    fn reason(&self) -> ClientError {
        self.inbound.lock().ended().unwrap_or_else(|| ClientError::ended("the connection was closed"))
    }
}

/// Ends the task with the last handle.
#[derive(Debug)]
struct Task {
    handle: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
        // Whoever waits without a handle (events, an answer to a challenge) is told too.
        self.shared.end(ClientError::ended("nobody uses the connection any more"));
    }
}

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

/// Forgets a request whose asker has gone.
struct Asked<'a> {
    shared: &'a Shared,
    request_id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.shared.inbound.lock().forget_request(self.request_id);
    }
}

impl Connection {
    /// Where it goes.
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    /// What the broker says of itself.
    pub fn facts(&self) -> &PeerFacts {
        &self.shared.facts
    }

    /// Why it ended, or `None` while it has not.
    pub fn error(&self) -> Option<ClientError> {
        self.shared.inbound.lock().ended()
    }

    /// Waits for its end and answers the reason.
    pub async fn ended(&self) -> ClientError {
        let mut ended = self.shared.ended.subscribe();
        // The sender lives as long as this handle.
        let _ = ended.wait_for(|ended| *ended).await;
        self.shared.reason()
    }

    /// Ends it for everyone who shares it.
    pub fn close(&self) {
        self.shared.end(ClientError::ended("closed by this side"));
    }

    /// Bytes that wait to be written.
    pub fn outbound_bytes(&self) -> usize {
        self.shared.outbound.bytes()
    }

    /// How long it has been connected.
    pub fn age(&self) -> Duration {
        self.shared.connected_at.elapsed()
    }

    /// Whether both handles are of one connection.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A number that this connection has not used.
    pub(crate) fn next_id(&self) -> u64 {
        self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn limits(&self) -> &PeerLimits {
        &self.shared.limits
    }

    /// Sends a request with the id `request_id` and waits for its answer.
    pub(crate) async fn request(
        &self,
        what: &'static str,
        request_id: u64,
        command: impl Into<Body>,
    ) -> Result<Body, ClientError> {
        let deadline_ms = self.shared.limits.request_timeout_ms;
        let asking = self.ask(what, request_id, command.into());
        match tokio::time::timeout(Duration::from_millis(deadline_ms), asking).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Late { what, deadline_ms }),
        }
    }

    async fn ask(&self, what: &'static str, request_id: u64, command: Body) -> Result<Body, ClientError> {
        let (answer, answered) = oneshot::channel();
        self.shared.inbound.lock().add_request(request_id, what, answer)?;
        let _asked = Asked { shared: &self.shared, request_id };
        self.command(command).await?;
        answered.await.unwrap_or_else(|_| Err(self.shared.reason()))
    }

    /// Sends a command that has no answer, when there is room.
    pub(crate) async fn command(&self, command: impl Into<Body>) -> Result<(), ClientError> {
        let frame = frame(command.into());
        let weight_bytes = frame.len();
        self.push(vec![frame], weight_bytes).await
    }

    /// Sends a command beside the limit of what waits; for those of which there is one for each producer or consumer.
    pub(crate) fn command_beside(&self, command: impl Into<Body>) {
        // A connection that has ended has closed everything on it.
        let _ = self.shared.outbound.push_beside(frame(command.into()));
    }

    /// Sends a run of frames when there is room.
    pub(crate) async fn push(&self, chunks: Vec<Bytes>, weight_bytes: usize) -> Result<(), ClientError> {
        self.shared.outbound.push(chunks, weight_bytes).await.map_err(|_| self.shared.reason())
    }

    /// Takes room for a run of frames if there is now.
    pub(crate) fn try_reserve(&self, weight_bytes: usize) -> Result<Option<Reserved>, ClientError> {
        self.shared.outbound.try_reserve(weight_bytes).map_err(|_| self.shared.reason())
    }

    /// Sends a run of frames for which room was taken.
    pub(crate) fn push_reserved(&self, reserved: Reserved, chunks: Vec<Bytes>) -> Result<(), ClientError> {
        self.shared.outbound.push_reserved(reserved, chunks).map_err(|_| self.shared.reason())
    }

    /// Waits until there is room for a run of this weight.
    pub(crate) async fn writable(&self, weight_bytes: usize) -> Result<(), ClientError> {
        self.shared.outbound.writable(weight_bytes).await.map_err(|_| self.shared.reason())
    }

    pub(crate) fn add_producer(&self, producer_id: u64, slot: ProducerSlot) -> Result<(), ClientError> {
        self.shared.inbound.lock().add_producer(producer_id, slot)
    }

    pub(crate) fn add_consumer(&self, consumer_id: u64, slot: ConsumerSlot) -> Result<(), ClientError> {
        self.shared.inbound.lock().add_consumer(consumer_id, slot)
    }

    /// Forgets a producer; answers whether it was open.
    pub(crate) fn remove_producer(&self, producer_id: u64) -> bool {
        self.shared.inbound.lock().remove_producer(producer_id)
    }

    /// Forgets a consumer; answers whether it was open.
    pub(crate) fn remove_consumer(&self, consumer_id: u64) -> bool {
        self.shared.inbound.lock().remove_consumer(consumer_id)
    }
}

fn frame(command: Body) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_command(&command.into(), &mut bytes);
    bytes.freeze()
}

/// An answer of another kind than the question.
pub(crate) fn unexpected(what: &'static str, body: &Body) -> ClientError {
    ClientError::Protocol(format!("{what} was answered with {}", body.kind().as_str_name()))
}
