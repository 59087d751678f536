//! One connection to a broker.
//!
//! Role: handshake, lookup, requests with an answer, and one task that hands receipts and messages to their owners.
//!
//! Invariants: B2 (frames not yet written: [`OUTBOUND_FRAMES`]; deliveries: the consumer's permits); an answer goes to the
//! request whose id it names; when the connection ends, everyone who waits on it is told why; the tasks end with the last
//! [`Link`].
//! Failure: [`BenchError`]; there is no second try.
//! Must never know: what is measured.

use crate::BenchError;
use crate::consumer::Delivery;
use crate::producer::SendWindow;
use bytes::{Bytes, BytesMut};
use meridian_types::name::TopicName;
use meridian_wire::encode::{PONG, encode_command};
use meridian_wire::frame::{DEFAULT_MAX_MESSAGE_BYTES, Frame, FrameDecoder, FrameLimits};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::{
    CommandConnect, CommandLookupTopic, CommandLookupTopicResponse, CommandPartitionedTopicMetadata,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Frames that wait to be written; a sender waits beyond it.
pub const OUTBOUND_FRAMES: usize = 1024;
/// How long an answer may take.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Brokers that a lookup is sent to.
const MAX_REDIRECTS: usize = 10;
/// Holds a token.
pub const TOKEN_VARIABLE: &str = "MERIDIAN_TOKEN";
const BUFFER_BYTES: usize = 256 * 1024;
const PROTOCOL_VERSION: i32 = 21;
/// The handshake's answer has no request id.
const HANDSHAKE: u64 = u64::MAX;

type Answer = Result<Body, BenchError>;

/// Where a broker is and how to be let in.
#[derive(Debug, Clone)]
pub struct Target {
    /// `HOST:PORT`.
    pub address: String,
    /// A token to authenticate with.
    pub token: Option<String>,
}

impl Target {
    /// From a service URL.
    ///
    /// # Errors
    /// [`BenchError::Address`] unless it is `pulsar://HOST[:PORT]`.
    pub fn parse(url: &str, token: Option<String>) -> Result<Self, BenchError> {
        let refuse = || BenchError::Address(url.to_owned(), "pulsar://HOST:PORT");
        let rest = url.strip_prefix("pulsar://").ok_or_else(refuse)?.trim_end_matches('/');
        if rest.is_empty() || rest.contains(['/', ',', ' ']) {
            return Err(refuse());
        }
        let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { rest.to_owned() } else { format!("{rest}:6650") };
        Ok(Self { address, token })
    }

    /// A token given as an option, or else by the environment, where other users of the machine do not see it.
    pub fn token(given: Option<String>) -> Option<String> {
        given.or_else(|| std::env::var(TOKEN_VARIABLE).ok()).filter(|token| !token.is_empty())
    }

    fn at(&self, url: &str) -> Result<Self, BenchError> {
        Self::parse(url, self.token.clone())
    }
}

#[derive(Default)]
struct Waiting {
    ended: Option<String>,
    requests: HashMap<u64, oneshot::Sender<Answer>>,
    producers: HashMap<u64, Arc<SendWindow>>,
    consumers: HashMap<u64, mpsc::Sender<Delivery>>,
}

struct Shared {
    outbound: mpsc::Sender<Bytes>,
    waiting: Mutex<Waiting>,
    last_id: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, reason: &str) {
        let mut waiting = self.lock();
        let ended = waiting.ended.get_or_insert_with(|| reason.to_owned()).clone();
        for (_, request) in waiting.requests.drain() {
            // A requester that gave up needs no answer.
            let _ = request.send(Err(BenchError::Ended(ended.clone())));
        }
        for (_, window) in waiting.producers.drain() {
            window.fail(BenchError::Ended(ended.clone()));
        }
        waiting.consumers.clear();
    }

    fn answer(&self, request_id: u64, answer: Answer) {
        if let Some(request) = self.lock().requests.remove(&request_id) {
            let _ = request.send(answer);
        }
    }
}

struct Tasks([JoinHandle<()>; 2]);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// A connection; clones share it.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
    _tasks: Arc<Tasks>,
}

impl Link {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// The address does not answer, or the broker refuses.
    pub async fn connect(target: &Target) -> Result<Self, BenchError> {
        let dialled = tokio::time::timeout(REQUEST_DEADLINE, TcpStream::connect(&target.address)).await;
        let stream = dialled
            .map_err(|_| BenchError::Late { what: "a connection", deadline_ms: REQUEST_DEADLINE.as_millis() as u64 })?
            .map_err(BenchError::io(format!("connecting to {}", target.address)))?;
        stream.set_nodelay(true).map_err(BenchError::io("TCP_NODELAY"))?;
        let (reads, writes) = stream.into_split();
        let (outbound, frames) = mpsc::channel(OUTBOUND_FRAMES);
        let shared = Arc::new(Shared { outbound, waiting: Mutex::default(), last_id: AtomicU64::new(0) });
        let tasks = [tokio::spawn(read(reads, shared.clone())), tokio::spawn(write(writes, frames, shared.clone()))];
        let link = Self { shared, _tasks: Arc::new(Tasks(tasks)) };
        let hello = CommandConnect {
            client_version: concat!("meridian-bench-", env!("CARGO_PKG_VERSION")).into(),
            auth_method_name: target.token.as_ref().map(|_| "token".into()),
            auth_data: target.token.as_ref().map(|token| Bytes::from(token.clone())),
            protocol_version: Some(PROTOCOL_VERSION),
            ..Default::default()
        };
        link.request(HANDSHAKE, "CONNECT", hello.into()).await?;
        Ok(link)
    }

    /// A connection to the broker that serves `topic`.
    ///
    /// # Errors
    /// No broker does, or a redirect does not end.
    pub async fn to_owner(target: &Target, topic: &TopicName) -> Result<Self, BenchError> {
        let mut asked = target.clone();
        let mut authoritative = false;
        for _ in 0..MAX_REDIRECTS {
            let link = Self::connect(&asked).await?;
            let found = link.lookup(topic, authoritative).await?;
            let stays = found.proxy_through_service_url() || found.broker_service_url.is_none();
            let owner = if stays { asked.clone() } else { target.at(found.broker_service_url())? };
            if found.response() == LookupType::Connect {
                return if owner.address == asked.address { Ok(link) } else { Self::connect(&owner).await };
            }
            authoritative = found.authoritative();
            asked = owner;
        }
        Err(BenchError::Wrong(format!("the lookup of {topic} was redirected {MAX_REDIRECTS} times")))
    }

    async fn lookup(&self, topic: &TopicName, authoritative: bool) -> Result<CommandLookupTopicResponse, BenchError> {
        let request_id = self.next_id();
        let command = CommandLookupTopic {
            topic: topic.as_str().into(),
            request_id,
            authoritative: Some(authoritative),
            ..Default::default()
        };
        match self.request(request_id, "a lookup", command.into()).await? {
            Body::LookupTopicResponse(found) if found.response() == LookupType::Failed => Err(BenchError::Refused {
                what: "a lookup",
                code: found.error.unwrap_or_default(),
                message: found.message.unwrap_or_default(),
            }),
            Body::LookupTopicResponse(found) => Ok(found),
            other => Err(unexpected("a lookup", &other)),
        }
    }

    /// The topics that a name stands for: its partitions, or itself.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn partitions(&self, topic: &TopicName) -> Result<Vec<TopicName>, BenchError> {
        let request_id = self.next_id();
        let topic_name = topic.as_str().into();
        let command = CommandPartitionedTopicMetadata { topic: topic_name, request_id, ..Default::default() };
        let what = "the number of partitions";
        match self.request(request_id, what, command.into()).await? {
            Body::PartitionMetadataResponse(found) if found.error.is_some() => Err(BenchError::Refused {
                what,
                code: found.error.unwrap_or_default(),
                message: found.message.unwrap_or_default(),
            }),
            Body::PartitionMetadataResponse(found) => Ok(match found.partitions() {
                0 => vec![topic.clone()],
                count => (0..count).map(|index| topic.with_partition(index)).collect(),
            }),
            other => Err(unexpected(what, &other)),
        }
    }

    /// A number that this connection has not used.
    pub fn next_id(&self) -> u64 {
        self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request and waits for the answer that names it.
    ///
    /// # Errors
    /// Refused, late, or the connection ended.
    pub async fn request(&self, request_id: u64, what: &'static str, command: Body) -> Result<Body, BenchError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.shared.lock();
            if let Some(ended) = &waiting.ended {
                return Err(BenchError::Ended(ended.clone()));
            }
            waiting.requests.insert(request_id, answer);
        }
        self.command(command).await?;
        match tokio::time::timeout(REQUEST_DEADLINE, answered).await {
            Ok(Ok(Err(BenchError::Refused { code, message, .. }))) => Err(BenchError::Refused { what, code, message }),
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.ended()),
            Err(_) => {
                self.shared.lock().requests.remove(&request_id);
                Err(BenchError::Late { what, deadline_ms: REQUEST_DEADLINE.as_millis() as u64 })
            }
        }
    }

    /// Sends a command that has no answer.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn command(&self, command: Body) -> Result<(), BenchError> {
        let mut frame = BytesMut::new();
        encode_command(&command.into(), &mut frame);
        self.frame(frame.freeze()).await
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn frame(&self, frame: Bytes) -> Result<(), BenchError> {
        self.shared.outbound.send(frame).await.map_err(|_| self.ended())
    }

    /// Why the connection ended.
    pub fn ended(&self) -> BenchError {
        BenchError::Ended(self.shared.lock().ended.clone().unwrap_or_else(|| "closed by the broker".into()))
    }

    pub(crate) fn attach_producer(&self, producer_id: u64, window: Arc<SendWindow>) {
        self.shared.lock().producers.insert(producer_id, window);
    }

    pub(crate) fn attach_consumer(&self, consumer_id: u64, deliveries: mpsc::Sender<Delivery>) {
        self.shared.lock().consumers.insert(consumer_id, deliveries);
    }

    pub(crate) fn detach(&self, id: u64) {
        let mut waiting = self.shared.lock();
        waiting.producers.remove(&id);
        waiting.consumers.remove(&id);
    }
}

/// An answer of another kind than the question.
pub(crate) fn unexpected(what: &'static str, body: &Body) -> BenchError {
    BenchError::Wrong(format!("{what} was answered with {}", body.kind().as_str_name()))
}

async fn write(writes: OwnedWriteHalf, mut frames: mpsc::Receiver<Bytes>, shared: Arc<Shared>) {
    let mut writes = BufWriter::with_capacity(BUFFER_BYTES, writes);
    let mut ready = Vec::with_capacity(OUTBOUND_FRAMES);
    while frames.recv_many(&mut ready, OUTBOUND_FRAMES).await > 0 {
        for frame in ready.drain(..) {
            if let Err(error) = writes.write_all(&frame).await {
                return shared.end(&format!("writing failed: {error}"));
            }
        }
        if let Err(error) = writes.flush().await {
            return shared.end(&format!("writing failed: {error}"));
        }
    }
}

async fn read(mut reads: OwnedReadHalf, shared: Arc<Shared>) {
    // What a broker accepts above the default is more than any entry made here.
    let decoder = FrameDecoder::new(FrameLimits::for_client(4 * DEFAULT_MAX_MESSAGE_BYTES));
    let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
    loop {
        buffer.reserve(decoder.missing_bytes(&buffer).max(BUFFER_BYTES / 4));
        match reads.read_buf(&mut buffer).await {
            Ok(0) => return shared.end("closed by the broker"),
            Ok(_) => {}
            Err(error) => return shared.end(&format!("reading failed: {error}")),
        }
        let arrived = Instant::now();
        loop {
            match decoder.decode(&mut buffer) {
                Ok(None) => break,
                Err(error) => return shared.end(&error.to_string()),
                Ok(Some(frame)) => {
                    if let Err(reason) = handle(frame, arrived, &shared).await {
                        return shared.end(&reason);
                    }
                }
            }
        }
    }
}

async fn handle(frame: Frame, arrived: Instant, shared: &Shared) -> Result<(), String> {
    let Some(body) = frame.command.body else { return Ok(()) };
    match body {
        Body::Ping(_) => shared.outbound.send(Bytes::from_static(&PONG)).await.map_err(|_| "not writable".to_owned()),
        Body::SendReceipt(receipt) => {
            let window = shared.lock().producers.get(&receipt.producer_id).cloned();
            window.map_or(Ok(()), |window| window.confirm(receipt.sequence_id, arrived))
        }
        Body::Message(message) => {
            let deliveries = shared.lock().consumers.get(&message.consumer_id).cloned();
            if let (Some(deliveries), Some(entry)) = (deliveries, frame.payload) {
                // A consumer that is gone needs no messages.
                let _ = deliveries.send(Delivery::new(message, entry, arrived)).await;
            }
            Ok(())
        }
        Body::SendError(error) => {
            if let Some(window) = shared.lock().producers.remove(&error.producer_id) {
                window.fail(BenchError::Refused { what: "a send", code: error.error, message: error.message });
            }
            Ok(())
        }
        Body::CloseProducer(close) => {
            if let Some(window) = shared.lock().producers.remove(&close.producer_id) {
                window.fail(BenchError::Ended("the broker closed the producer".into()));
            }
            Ok(())
        }
        Body::CloseConsumer(close) => {
            shared.lock().consumers.remove(&close.consumer_id);
            Ok(())
        }
        other => {
            answer(other, shared);
            Ok(())
        }
    }
}

/// Gives an answer to who asked; commands that nobody asked for are passed over.
fn answer(body: Body, shared: &Shared) {
    let request_id = match &body {
        Body::Connected(_) => HANDSHAKE,
        Body::Success(answer) => answer.request_id,
        Body::ProducerSuccess(answer) if answer.producer_ready() => answer.request_id,
        Body::LookupTopicResponse(answer) => answer.request_id,
        Body::PartitionMetadataResponse(answer) => answer.request_id,
        Body::Error(error) => {
            let refused = BenchError::Refused { what: "a request", code: error.error, message: error.message.clone() };
            return shared.answer(error.request_id, Err(refused));
        }
        _ => return,
    };
    shared.answer(request_id, Ok(body));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_urls_are_read() {
        let address = |url: &str| Target::parse(url, None).map(|target| target.address).ok();
        assert_eq!(address("pulsar://127.0.0.1:7650"), Some("127.0.0.1:7650".into()));
        assert_eq!(address("pulsar://broker/"), Some("broker:6650".into()));
        for bad in ["pulsar+ssl://broker:6651", "broker:6650", "pulsar://", "pulsar://a:1,b:2", "pulsar://a:1/x"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
