//! A bookie behind a socket.
//!
//! Role: [`Bookie`] over one connection with many calls in flight, made when first needed and again after a failure.
//! Invariants: Z1 a call or add is answered exactly once; when the connection fails, everything in flight ends as
//! unavailable or timed out: its outcome is unknown; Z2 nothing in flight waits longer than
//! [`RemoteConfig::request_timeout`] without progress; Z3 what waits to be sent is bounded by
//! [`RemoteConfig::outbox_bytes`].
//! Failure: [`BookieError`]; a connection to another bookie than the one wanted is refused.
//! Must never know: quorums.

use crate::bookie::{AddEntry, AddSink, Bookie, BookieError, BoxFuture, FenceState, ReadEntry, ReadRequest};
use crate::frame::{
    Add, Body, Failure, Header, Hello, LedgerCall, PROTOCOL_VERSION, Read, minus_one, plus_one, take_frame,
};
use crate::outbox::{Outbox, Payload};
use crate::pending::{Answer, Pending, deliver};
use crate::secure::{self, ClientSide};
use bytes::BytesMut;
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

const READ_BUFFER_BYTES: usize = 256 << 10;

/// Limits of a connection.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// To connect and say hello.
    pub connect_timeout: Duration,
    /// For an answer.
    pub request_timeout: Duration,
    /// Pause after a failed connection; calls are refused meanwhile.
    pub retry_pause: Duration,
    /// Bytes that may wait to be sent.
    pub outbox_bytes: usize,
    /// The connection begins with a TLS handshake.
    pub tls: Option<ClientSide>,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            retry_pause: Duration::from_millis(200),
            outbox_bytes: 64 << 20,
            tls: None,
        }
    }
}

struct Link {
    pending: Mutex<Pending>,
    outbox: Outbox,
}

enum State {
    Down { until: Option<Instant>, why: String },
    Up(Arc<Link>),
}

struct Shared {
    id: BookieId,
    /// Where it is dialled; it may move while its id stays.
    address: Mutex<Arc<str>>,
    config: RemoteConfig,
    state: Mutex<State>,
    runtime: Handle,
}

/// A bookie behind a socket.
pub struct RemoteBookie {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for RemoteBookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteBookie({} at {})", self.shared.id, self.shared.address())
    }
}

impl RemoteBookie {
    /// A bookie at `host:port`. Connects at the first call. Must be called within a tokio runtime, whose tasks it uses.
    pub fn new(id: BookieId, address: impl Into<String>, config: RemoteConfig) -> Arc<Self> {
        let state = Mutex::new(State::Down { until: None, why: String::new() });
        let address = Mutex::new(address.into().into());
        let shared = Shared { id, address, config, state, runtime: Handle::current() };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// From the next connection on it is dialled there; a new address is tried at once.
    pub fn move_to(&self, address: &str) {
        {
            let mut current = self.shared.address.lock();
            if **current == *address {
                return;
            }
            *current = address.into();
        }
        if let State::Down { until, .. } = &mut *self.shared.state.lock() {
            *until = None;
        }
    }

    fn link(&self) -> Result<Arc<Link>, BookieError> {
        let mut state = self.shared.state.lock();
        match &*state {
            State::Up(link) => return Ok(Arc::clone(link)),
            State::Down { until: Some(until), why } if Instant::now() < *until => {
                return Err(BookieError::Unavailable(format!("{}: {why}", self.shared.address())));
            }
            State::Down { .. } => {}
        }
        let link = Arc::new(Link { pending: Mutex::default(), outbox: Outbox::default() });
        *state = State::Up(Arc::clone(&link));
        let (shared, running) = (Arc::clone(&self.shared), Arc::clone(&link));
        self.shared.runtime.spawn(async move {
            let error = match shared.run(&running).await {
                Ok(()) => BookieError::Unavailable(format!("{}: connection closed", shared.address())),
                Err(error) => error,
            };
            shared.went_down(&running, error);
        });
        Ok(link)
    }

    async fn call(&self, body: Body) -> Result<Answer, BookieError> {
        let link = self.link()?;
        if link.outbox.bytes() >= self.shared.config.outbox_bytes {
            return Err(BookieError::Busy(format!("{} bytes wait to be sent", link.outbox.bytes())));
        }
        let (done, waiting) = oneshot::channel();
        let call = {
            let mut pending = link.pending.lock();
            let call = pending.add_call(done)?;
            link.outbox.push(Header { call, body: Some(body) }, Payload::None);
            call
        };
        let patience = self.shared.config.request_timeout;
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(BookieError::Unavailable(format!("{}: connection closed", self.shared.address()))),
            Err(_) => {
                link.pending.lock().forget_call(call);
                Err(BookieError::Timeout(patience.as_millis() as u64))
            }
        }
    }

    async fn ledger_call(&self, body: Body) -> Result<FenceState, BookieError> {
        match self.call(body).await? {
            Answer::Ledger(answer) => Ok(FenceState {
                last_add_confirmed: EntryId(minus_one(answer.lac_plus_one)),
                last_entry: EntryId(minus_one(answer.last_entry_plus_one)),
            }),
            Answer::Entries(_) => Err(BookieError::Io("an answer of another kind".to_owned())),
        }
    }
}

impl Drop for RemoteBookie {
    fn drop(&mut self) {
        if let State::Up(link) = &*self.shared.state.lock() {
            link.outbox.close();
        }
    }
}

impl Shared {
    fn address(&self) -> Arc<str> {
        self.address.lock().clone()
    }

    /// Runs one connection; ends with the reason why everything in flight fails.
    async fn run(&self, link: &Link) -> Result<(), BookieError> {
        let address = self.address();
        let unavailable = |error: std::io::Error| BookieError::Unavailable(format!("{address}: {error}"));
        let connecting = async {
            let stream = TcpStream::connect(&*address).await.map_err(unavailable)?;
            let _ = stream.set_nodelay(true);
            match &self.config.tls {
                None => Ok((Some(stream), None)),
                Some(side) => {
                    let secured = secure::connect(side, &address, stream).await.map_err(unavailable)?;
                    Ok::<_, BookieError>((None, Some(secured)))
                }
            }
        };
        let connected = tokio::time::timeout(self.config.connect_timeout, connecting).await;
        match connected.map_err(|_| BookieError::Unavailable(format!("{address}: no connection in time")))?? {
            (Some(stream), _) => {
                let (reader, writer) = stream.into_split();
                self.speak(link, reader, writer).await
            }
            (None, Some(stream)) => {
                let (reader, writer) = tokio::io::split(stream);
                self.speak(link, reader, writer).await
            }
            (None, None) => Err(BookieError::Unavailable(format!("{address}: no connection"))),
        }
    }

    async fn speak(
        &self,
        link: &Link,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl tokio::io::AsyncWrite + Unpin,
    ) -> Result<(), BookieError> {
        let address = self.address();
        let unavailable = |error: std::io::Error| BookieError::Unavailable(format!("{address}: {error}"));
        let mut input = BytesMut::with_capacity(8 << 10);
        tokio::time::timeout(self.config.connect_timeout, self.greet(&mut reader, &mut writer, &mut input))
            .await
            .map_err(|_| BookieError::Unavailable(format!("{address}: no hello in time")))??;
        tokio::select! {
            ended = link.read_from(&self.id, &mut reader, &mut input) => ended,
            written = link.outbox.write_to(&mut writer, self.config.request_timeout) => written.map_err(unavailable),
            stuck = link.watch(self.config.request_timeout) => Err(stuck),
        }
    }

    async fn greet(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl tokio::io::AsyncWrite + Unpin),
        input: &mut BytesMut,
    ) -> Result<(), BookieError> {
        let address = self.address();
        let unavailable = |why: String| BookieError::Unavailable(format!("{address}: {why}"));
        let hello = Hello { version: PROTOCOL_VERSION, bookie: self.id.as_str().to_owned() };
        let greeting = Outbox::default();
        greeting.push(Header { call: 0, body: Some(Body::Hello(hello)) }, Payload::None);
        let patience = self.config.connect_timeout;
        let written =
            async { greeting.write_to(writer, patience).await.map_err(|error| unavailable(error.to_string())) };
        let answered = async {
            let (header, _) = loop {
                if let Some(frame) = take_frame(input).map_err(|error| unavailable(error.to_string()))? {
                    break frame;
                }
                let count = reader.read_buf(input).await.map_err(|error| unavailable(error.to_string()))?;
                if count == 0 {
                    return Err(unavailable("closed before its hello".to_owned()));
                }
            };
            Ok(header.body)
        };
        let body = tokio::select! {
            body = answered => body?,
            ended = written => return ended.and(Err(unavailable("closed before its hello".to_owned()))),
        };
        match body {
            Some(Body::Hello(own)) if own.version != PROTOCOL_VERSION => {
                Err(unavailable(format!("protocol version {} is not known", own.version)))
            }
            Some(Body::Hello(own)) if own.bookie != self.id.as_str() => {
                Err(unavailable(format!("it is bookie {}, not {}", own.bookie, self.id)))
            }
            Some(Body::Hello(_)) => Ok(()),
            _ => Err(unavailable("its first frame is no hello".to_owned())),
        }
    }

    fn went_down(&self, link: &Arc<Link>, error: BookieError) {
        {
            let mut state = self.state.lock();
            if matches!(&*state, State::Up(current) if Arc::ptr_eq(current, link)) {
                let until = Some(Instant::now() + self.config.retry_pause);
                *state = State::Down { until, why: error.to_string() };
            }
        }
        tracing::debug!(bookie = %self.id, %error, "connection ended");
        link.outbox.close();
        let failed = link.pending.lock().fail_all(&error);
        deliver(&self.id, failed);
    }
}

impl Link {
    async fn read_from(
        &self,
        id: &BookieId,
        reader: &mut (impl AsyncRead + Unpin),
        input: &mut BytesMut,
    ) -> Result<(), BookieError> {
        loop {
            while let Some((header, payload)) =
                take_frame(input).map_err(|error| BookieError::Unavailable(error.to_string()))?
            {
                let call = header.call;
                match header.body {
                    Some(Body::AddAnswers(answers)) => {
                        let (results, failure) = {
                            let mut pending = self.pending.lock();
                            (pending.take_adds(answers), pending.failure())
                        };
                        deliver(id, results);
                        if let Some(failure) = failure {
                            return Err(failure);
                        }
                    }
                    Some(Body::ReadAnswer(answer)) => {
                        let entries = read_entries(answer, payload)?;
                        self.pending.lock().end_call(call, Ok(Answer::Entries(entries)));
                    }
                    Some(Body::LedgerAnswer(answer)) => {
                        self.pending.lock().end_call(call, Ok(Answer::Ledger(answer)));
                    }
                    Some(Body::Failure(failure)) => {
                        self.pending.lock().end_call(call, Err(Failure::into_error(failure)));
                    }
                    _ => return Err(BookieError::Unavailable("a frame that a bookie does not send".to_owned())),
                }
            }
            input.reserve(READ_BUFFER_BYTES);
            let count = reader.read_buf(input).await.map_err(|error| BookieError::Unavailable(error.to_string()))?;
            if count == 0 {
                return Err(BookieError::Unavailable("closed by the bookie".to_owned()));
            }
        }
    }

    /// Ends when adds are in flight and nothing has been answered for too long.
    async fn watch(&self, patience: Duration) -> BookieError {
        let mut ticks = tokio::time::interval(patience / 4);
        loop {
            ticks.tick().await;
            if self.pending.lock().stuck_since().is_some_and(|since| since.elapsed() >= patience) {
                return BookieError::Timeout(patience.as_millis() as u64);
            }
        }
    }
}

fn read_entries(answer: crate::frame::ReadAnswer, mut payload: bytes::Bytes) -> Result<Vec<ReadEntry>, BookieError> {
    let mut entries = Vec::with_capacity(answer.items.len());
    for item in answer.items {
        if item.bytes as usize > payload.len() {
            return Err(BookieError::Unavailable("a read answer with fewer bytes than it tells".to_owned()));
        }
        entries.push(ReadEntry {
            entry_id: EntryId(item.entry),
            last_add_confirmed: EntryId(minus_one(item.lac_plus_one)),
            digest: item.digest,
            payload: payload.split_to(item.bytes as usize),
        });
    }
    Ok(entries)
}

fn refuse(id: &BookieId, entries: Vec<AddEntry>, sink: &dyn AddSink, error: &BookieError) {
    let results = entries.into_iter().map(|add| crate::AddResult {
        ledger_id: add.ledger_id,
        entry_id: add.entry_id,
        result: Err(error.clone()),
    });
    sink.add_results(id, results.collect());
}

impl Bookie for RemoteBookie {
    fn id(&self) -> &BookieId {
        &self.shared.id
    }

    fn add(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>) {
        let link = match self.link() {
            Ok(link) => link,
            Err(error) => return refuse(&self.shared.id, entries, &*sink, &error),
        };
        let waiting_bytes = link.outbox.bytes();
        if waiting_bytes >= self.shared.config.outbox_bytes {
            let error = BookieError::Busy(format!("{waiting_bytes} bytes wait to be sent"));
            return refuse(&self.shared.id, entries, &*sink, &error);
        }
        let mut pending = link.pending.lock();
        if let Some(error) = pending.failure() {
            drop(pending);
            return refuse(&self.shared.id, entries, &*sink, &error);
        }
        for add in entries {
            pending.add(add.ledger_id, add.entry_id, &sink);
            let header = Add {
                ledger: add.ledger_id.0,
                entry: add.entry_id.0,
                lac_plus_one: plus_one(add.last_add_confirmed.0),
                digest: add.digest,
                recovery: add.recovery,
            };
            link.outbox.push(Header { call: 0, body: Some(Body::Add(header)) }, Payload::Entry(add.entry));
        }
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'_, Result<Vec<ReadEntry>, BookieError>> {
        let read = Read {
            ledger: request.ledger_id.0,
            first_entry: request.first_entry_id.0,
            max_entries: request.max_entries,
            max_bytes: request.max_bytes,
            gaps_allowed: request.gaps_allowed,
            fence: request.fence,
        };
        Box::pin(async move {
            match self.call(Body::Read(read)).await? {
                Answer::Entries(entries) => Ok(entries),
                Answer::Ledger(_) => Err(BookieError::Io("an answer of another kind".to_owned())),
            }
        })
    }

    fn fence(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(self.ledger_call(Body::Fence(LedgerCall { ledger: ledger_id.0, lac_plus_one: 0 })))
    }

    fn last_add_confirmed(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(self.ledger_call(Body::LastAddConfirmed(LedgerCall { ledger: ledger_id.0, lac_plus_one: 0 })))
    }

    fn write_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> BoxFuture<'_, Result<(), BookieError>> {
        let call = LedgerCall { ledger: ledger_id.0, lac_plus_one: plus_one(last_add_confirmed.0) };
        Box::pin(async move { self.ledger_call(Body::WriteLac(call)).await.map(|_| ()) })
    }
}
