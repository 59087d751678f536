//! The bookie's end of the data connections.
//!
//! Role: frames that came together are given to the bookie together; answers leave as they come.
//! Invariants: Y1 adds are given in the order of their frames; Y2 a peer that does not read stops being read, so that
//! what waits for it is bounded by [`ServeConfig::outbox_bytes`] and the calls in flight; Y3 a connection that speaks
//! garbage, or nothing within the time allowed for a hello, is closed alone.
//! Failure: ends the connection; the peer treats its adds in flight as unknown.
//! Must never know: ledgers' meaning.

use crate::bookie::{AddEntry, AddResult, AddSink, Bookie, BookieError, ReadEntry, ReadRequest};
use crate::entry::EntryBytes;
use crate::frame::{
    self, AddAnswer, AddAnswers, Body, Failure, Header, Hello, LedgerAnswer, LedgerCall, PROTOCOL_VERSION,
    READ_ENTRIES_PER_FRAME, ReadAnswer, ReadItem, minus_one, plus_one, take_frame,
};
use crate::outbox::{Outbox, Payload};
use crate::secure::{self, ServerSide};
use bytes::{Bytes, BytesMut};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Answers in one frame, so that its header stays below the limit even if each is a failure with words.
const ANSWERS_PER_FRAME: usize = 128;
/// Read from a socket at a time.
const READ_BUFFER_BYTES: usize = 256 << 10;
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of data connections.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Bytes of answers that may wait for a peer; beyond, it is not read.
    pub outbox_bytes: usize,
    /// Reads and other calls in flight per connection.
    pub calls_in_flight: usize,
    /// Payload bytes of one read answer.
    pub read_bytes_max: u64,
    /// A peer must say hello, and take what is written to it, within this time.
    pub patience: Duration,
    /// Connections at once.
    pub connections_max: usize,
    /// Connections begin with a TLS handshake.
    pub tls: Option<ServerSide>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            outbox_bytes: 16 << 20,
            calls_in_flight: 64,
            read_bytes_max: 4 << 20,
            patience: Duration::from_secs(30),
            connections_max: 4096,
            tls: None,
        }
    }
}

/// Serves data connections until the future is dropped.
///
/// # Errors
/// Never ends by itself; failed accepts are logged and tried again.
pub async fn serve_data(listener: TcpListener, bookie: Arc<dyn Bookie>, config: ServeConfig) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(config.connections_max));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                let (bookie, config) = (Arc::clone(&bookie), config.clone());
                tokio::spawn(async move {
                    let ended = match &config.tls {
                        None => serve_connection(stream, bookie, &config).await,
                        Some(side) => match secure::accept(side, stream).await {
                            Ok(stream) => serve_connection(stream, bookie, &config).await,
                            Err(error) => {
                                tracing::info!(%peer, %error, "a TLS handshake failed");
                                return;
                            }
                        },
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "data connection ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a data connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct ConnectionSink {
    outbox: Arc<Outbox>,
}

impl AddSink for ConnectionSink {
    fn add_results(&self, _bookie: &BookieId, results: Vec<AddResult>) {
        let answers = pack(results);
        for part in answers.chunks(ANSWERS_PER_FRAME) {
            let body = Body::AddAnswers(AddAnswers { answers: part.to_vec() });
            self.outbox.push(Header { call: 0, body: Some(body) }, Payload::None);
        }
    }
}

/// Joins equal answers of consecutive entries.
fn pack(results: Vec<AddResult>) -> Vec<AddAnswer> {
    let mut answers: Vec<AddAnswer> = Vec::new();
    for one in results {
        let failure = one.result.err().map(|error| Failure::from_error(&error));
        match answers.last_mut() {
            Some(last)
                if last.ledger == one.ledger_id.0
                    && last.first_entry + i64::from(last.count) == one.entry_id.0
                    && last.failure == failure =>
            {
                last.count += 1;
            }
            _ => answers.push(AddAnswer { ledger: one.ledger_id.0, first_entry: one.entry_id.0, count: 1, failure }),
        }
    }
    answers
}

/// Serves one connection until it ends.
///
/// # Errors
/// What ended it.
pub async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    bookie: Arc<dyn Bookie>,
    config: &ServeConfig,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let outbox = Arc::new(Outbox::default());
    let connection = Connection {
        sink: Arc::new(ConnectionSink { outbox: Arc::clone(&outbox) }),
        calls: Arc::new(Semaphore::new(config.calls_in_flight)),
        outbox: Arc::clone(&outbox),
        bookie,
    };
    let ended = tokio::select! {
        read = connection.read_from(&mut reader, config) => read,
        written = outbox.write_to(&mut writer, config.patience) => written,
    };
    outbox.close();
    ended
}

struct Connection {
    bookie: Arc<dyn Bookie>,
    outbox: Arc<Outbox>,
    sink: Arc<ConnectionSink>,
    calls: Arc<Semaphore>,
}

impl Connection {
    async fn read_from(&self, reader: &mut (impl AsyncRead + Unpin), config: &ServeConfig) -> io::Result<()> {
        let mut input = BytesMut::with_capacity(8 << 10);
        let mut greeted = false;
        loop {
            let mut adds = Vec::new();
            while let Some((header, payload)) = take_frame(&mut input).map_err(invalid)? {
                match header.body {
                    Some(Body::Add(add)) if greeted => adds.push(to_add(add, payload)),
                    Some(Body::Hello(hello)) if !greeted => {
                        self.greet(&hello)?;
                        greeted = true;
                    }
                    Some(body) if greeted => {
                        self.give(&mut adds);
                        self.outbox.wait_below(config.outbox_bytes).await;
                        self.call(header.call, body, config).await?;
                    }
                    Some(_) => return Err(invalid("the first frame is no hello")),
                    None => return Err(invalid("a frame of an unknown kind")),
                }
            }
            self.give(&mut adds);
            self.outbox.wait_below(config.outbox_bytes).await;
            input.reserve(if greeted { READ_BUFFER_BYTES } else { 1 << 10 });
            let read = reader.read_buf(&mut input);
            let count = if greeted {
                read.await?
            } else {
                tokio::time::timeout(config.patience, read).await.map_err(|_| invalid("no hello in time"))??
            };
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn give(&self, adds: &mut Vec<AddEntry>) {
        if !adds.is_empty() {
            self.bookie.add(std::mem::take(adds), Arc::clone(&self.sink) as Arc<dyn AddSink>);
        }
    }

    fn greet(&self, hello: &Hello) -> io::Result<()> {
        let own = Hello { version: PROTOCOL_VERSION, bookie: self.bookie.id().as_str().to_owned() };
        let known = hello.version == PROTOCOL_VERSION;
        self.outbox.push(Header { call: 0, body: Some(Body::Hello(own)) }, Payload::None);
        if known { Ok(()) } else { Err(invalid(format!("protocol version {} is not known", hello.version))) }
    }

    async fn call(&self, call: u64, body: Body, config: &ServeConfig) -> io::Result<()> {
        let Ok(place) = Arc::clone(&self.calls).acquire_owned().await else { return Ok(()) };
        if !matches!(body, Body::Read(_) | Body::Fence(_) | Body::LastAddConfirmed(_) | Body::WriteLac(_)) {
            return Err(invalid("a frame that only a bookie sends"));
        }
        let (bookie, outbox, read_bytes_max) =
            (Arc::clone(&self.bookie), Arc::clone(&self.outbox), config.read_bytes_max);
        tokio::spawn(async move {
            let (body, payload) = match answer(&*bookie, body, read_bytes_max).await {
                Ok(answer) => answer,
                Err(error) => (Body::Failure(Failure::from_error(&error)), Payload::None),
            };
            outbox.push(Header { call, body: Some(body) }, payload);
            drop(place);
        });
        Ok(())
    }
}

async fn answer(bookie: &dyn Bookie, body: Body, read_bytes_max: u64) -> Result<(Body, Payload), BookieError> {
    let ledger = |call: &LedgerCall| (LedgerId(call.ledger), EntryId(minus_one(call.lac_plus_one)));
    let known = |state: crate::FenceState| {
        let lac_plus_one = plus_one(state.last_add_confirmed.0);
        Body::LedgerAnswer(LedgerAnswer { lac_plus_one, last_entry_plus_one: plus_one(state.last_entry.0) })
    };
    match body {
        Body::Read(read) => {
            let request = ReadRequest {
                ledger_id: LedgerId(read.ledger),
                first_entry_id: EntryId(read.first_entry),
                max_entries: read.max_entries.clamp(1, READ_ENTRIES_PER_FRAME),
                max_bytes: read.max_bytes.min(read_bytes_max),
                gaps_allowed: read.gaps_allowed,
                fence: read.fence,
            };
            Ok(read_answer(bookie.read(request).await?))
        }
        Body::Fence(call) => Ok((known(bookie.fence(ledger(&call).0).await?), Payload::None)),
        Body::LastAddConfirmed(call) => Ok((known(bookie.last_add_confirmed(ledger(&call).0).await?), Payload::None)),
        Body::WriteLac(call) => {
            let (ledger_id, last_add_confirmed) = ledger(&call);
            bookie.write_lac(ledger_id, last_add_confirmed).await?;
            Ok((Body::LedgerAnswer(LedgerAnswer::default()), Payload::None))
        }
        _ => Err(BookieError::Io("no call".to_owned())),
    }
}

fn read_answer(mut entries: Vec<ReadEntry>) -> (Body, Payload) {
    // The frame must hold them; at least one is always given.
    let mut bytes = 0;
    let room = frame::FRAME_BYTES_MAX - frame::HEADER_BYTES_MAX - 2;
    let fits = entries.iter().take(READ_ENTRIES_PER_FRAME as usize).take_while(|entry| {
        bytes += entry.payload.len();
        bytes <= room
    });
    let count = fits.count().max(1);
    entries.truncate(count);
    let items = entries.iter().map(|entry| ReadItem {
        entry: entry.entry_id.0,
        lac_plus_one: plus_one(entry.last_add_confirmed.0),
        digest: entry.digest,
        bytes: entry.payload.len() as u32,
    });
    let body = Body::ReadAnswer(ReadAnswer { items: items.collect() });
    (body, Payload::Parts(entries.into_iter().map(|entry| entry.payload).collect()))
}

fn to_add(add: frame::Add, payload: Bytes) -> AddEntry {
    AddEntry {
        ledger_id: LedgerId(add.ledger),
        entry_id: EntryId(add.entry),
        last_add_confirmed: EntryId(minus_one(add.lac_plus_one)),
        digest: add.digest,
        recovery: add.recovery,
        entry: EntryBytes::plain(payload),
    }
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_answers_of_consecutive_entries_are_one() {
        let one = |ledger, entry, result| AddResult { ledger_id: LedgerId(ledger), entry_id: EntryId(entry), result };
        let packed = pack(vec![
            one(1, 0, Ok(())),
            one(1, 1, Ok(())),
            one(2, 2, Ok(())),
            one(1, 2, Err(BookieError::Fenced)),
            one(1, 3, Err(BookieError::Fenced)),
            one(1, 5, Err(BookieError::Fenced)),
        ]);
        let shape: Vec<_> = packed.iter().map(|a| (a.ledger, a.first_entry, a.count, a.failure.is_some())).collect();
        assert_eq!(shape, [(1, 0, 2, false), (2, 2, 1, false), (1, 2, 2, true), (1, 5, 1, true)]);
    }
}
