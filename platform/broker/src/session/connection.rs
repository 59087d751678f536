//! Reading and writing one connection.
//!
//! Role: one task reads, writes, keeps alive; slow commands run beside it. The read buffer exists only while bytes are in
//! it or a read is going on, so an idle connection holds none. Runs of SENDs of one producer become one publish.
//! Failure: whatever ends one of the parts ends the connection, with a reason.

use super::Session;
use super::dispatch::Flow;
use super::keepalive::{KeepAlive, KeepAliveStep};
use crate::listener::{Unauthenticated, reason};
use crate::service::BrokerService;
use bytes::{Buf, Bytes, BytesMut};
use meridian_wire::encode;
use meridian_wire::frame::{FrameDecoder, FrameLimits};
use rustls::pki_types::CertificateDer;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// First size of a read buffer; it doubles while reads fill it.
const MIN_READ_BYTES: usize = 8 * 1024;
/// A frame that lacks so much is read into room of its own.
const LARGE_FRAME_BYTES: usize = 32 * 1024;
/// Segments of one vectored write at most.
const MAX_WRITE_SEGMENTS: usize = 64;
/// How long the last answers of a closing connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The other end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Name of the listener that it came in by.
    pub listener: Option<String>,
    /// Certificates that it showed.
    pub certificates: Option<Vec<CertificateDer<'static>>>,
    /// Kept until it has logged in.
    pub login: Option<Arc<Unauthenticated>>,
}

/// Speaks the protocol on one connection until it ends.
pub async fn serve<S>(service: Arc<BrokerService>, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    serve_halves(service, reader, writer, peer).await;
}

/// As [`serve`], on two halves.
pub async fn serve_halves<R, W>(service: Arc<BrokerService>, reader: R, writer: W, peer: Peer)
where
    R: AsyncRead + Send,
    W: AsyncWrite + Send,
{
    let session = Session::new(service, peer.address, peer.listener, peer.login);
    let mut writer = std::pin::pin!(writer);
    let reader = std::pin::pin!(reader);
    let mut end = session.end.subscribe();
    let mut closed = session.service.closed();
    session.service.metrics().connections_created.inc();
    let reason = {
        let mut write = std::pin::pin!(write_loop(&session, writer.as_mut()));
        let reason = tokio::select! {
            reason = read_loop(&session, reader, peer.certificates) => Ok(reason),
            result = write.as_mut() => Err(result.map_or_else(|error| format!("write failed: {error}"), |()| "closed".into())),
            reason = keep_alive_loop(&session) => Ok(reason),
            reason = login_deadline(&session) => Ok(reason),
            reason = session.refresh_credentials() => Ok(reason),
            reason = session.follow_grants() => Ok(reason),
            _ = closed.wait_for(|closed| *closed) => Ok("the broker has shut down".to_owned()),
            reason = end.wait_for(Option::is_some) => {
                Ok(reason.ok().and_then(|reason| reason.clone()).unwrap_or_default())
            }
        };
        session.close(reason.clone().unwrap_or_else(|reason| reason));
        session.outbound.close();
        match reason {
            Ok(reason) => {
                // What was answered so far is still written, unless the peer does not take it.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, write).await;
                reason
            }
            Err(reason) => reason,
        }
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, writer.shutdown()).await;
    tracing::debug!(peer = %session.peer, reason, "connection ended");
    session.service.metrics().connections_closed.inc();
    session.detach_all().await;
}

async fn read_loop<R: AsyncRead>(
    session: &Arc<Session>,
    mut reader: Pin<&mut R>,
    certificates: Option<Vec<CertificateDer<'static>>>,
) -> String {
    let max_message_bytes = session.service.config().session.max_message_bytes as usize;
    let mut decoder = FrameDecoder::new(FrameLimits::before_connect());
    let mut buffer = ReadBuffer::new(session.service.config().session.max_read_buffer_bytes);
    loop {
        if session.throttle.admitted(&session.outbound).await {
            session.service.metrics().reads_paused.inc();
        }
        match buffer.fill(reader.as_mut(), &decoder).await {
            Ok(0) if buffer.bytes.is_empty() => return "closed by the peer".to_owned(),
            Ok(0) => return "closed by the peer within a frame".to_owned(),
            // Perhaps others serve already what this connection was opened for; they are found by a new lookup.
            Ok(_) if !session.service.ownership().in_force() && session.client().is_some() => {
                return "this broker's lease is not in force".to_owned();
            }
            Ok(_) => session.note_traffic(),
            Err(error) => return format!("read failed: {error}"),
        }
        loop {
            match session.consume(&decoder, &mut buffer.bytes) {
                Ok(Flow::Drained) => break,
                Ok(Flow::Turn) => {
                    tokio::task::yield_now().await;
                    if session.throttle.admitted(&session.outbound).await {
                        session.service.metrics().reads_paused.inc();
                    }
                }
                Ok(Flow::Login(credentials)) => {
                    if let Err(reason) = session.log_in(*credentials, certificates.as_deref()).await {
                        return reason;
                    }
                    decoder.set_limits(FrameLimits::for_messages(max_message_bytes));
                }
                Err(reason) => {
                    session.service.metrics().protocol_errors.inc();
                    return reason;
                }
            }
        }
    }
}

/// A read buffer that grows with use and vanishes when idle.
struct ReadBuffer {
    bytes: BytesMut,
    want: usize,
    max: usize,
}

impl ReadBuffer {
    fn new(max: usize) -> Self {
        Self { bytes: BytesMut::new(), want: MIN_READ_BYTES.min(max), max }
    }

    /// Reads something behind what there is. Room for a large frame is made in steps, as its bytes come, and little more
    /// than it needs: what is read of the frame behind it would have to be copied to that one's room.
    async fn fill<R: AsyncRead>(&mut self, mut reader: Pin<&mut R>, decoder: &FrameDecoder) -> io::Result<usize> {
        let missing = decoder.missing_bytes(&self.bytes);
        let is_large = missing >= LARGE_FRAME_BYTES;
        let room = if is_large {
            missing.min(self.bytes.len().max(self.max)) + MIN_READ_BYTES
        } else {
            self.want.max(missing)
        };
        let count = poll_fn(|cx| {
            self.bytes.reserve(room);
            let polled = std::pin::pin!(reader.read_buf(&mut self.bytes)).poll(cx);
            if polled.is_pending() && self.bytes.is_empty() {
                self.bytes = BytesMut::new();
            }
            polled
        })
        .await?;
        if is_large {
            return Ok(count);
        }
        self.want = match count {
            full if full >= self.want => (self.want * 2).min(self.max),
            little if little < self.want / 4 => (self.want / 2).max(MIN_READ_BYTES.min(self.max)),
            _ => self.want,
        };
        Ok(count)
    }
}

async fn write_loop<W: AsyncWrite>(session: &Session, mut writer: Pin<&mut W>) -> io::Result<()> {
    let mut segments: VecDeque<Bytes> = VecDeque::new();
    loop {
        if !session.outbound.take(&mut segments) {
            return Ok(());
        }
        if segments.is_empty() {
            writer.flush().await?;
            session.outbound.wait().await;
            continue;
        }
        while !segments.is_empty() {
            let written = in_time(session, write_some(writer.as_mut(), &segments)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            drop_front(&mut segments, written);
            session.wrote(written);
        }
    }
}

/// A peer that takes nothing for too long is let go: what waits for it is memory.
async fn in_time(session: &Session, write: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
    let limit_ms = session.service.config().session.slow_peer_timeout_ms;
    if limit_ms == 0 {
        return write.await;
    }
    match tokio::time::timeout(Duration::from_millis(limit_ms), write).await {
        Ok(written) => written,
        Err(_) => {
            session.service.metrics().connections_refused.with_label_values(&[reason::SLOW_PEER]).inc();
            let text = format!("the peer took nothing for {} s (connectionSlowPeerTimeoutSeconds)", limit_ms / 1000);
            tracing::info!(peer = %session.peer, "{text}");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}

/// Ends if there is no login in time.
async fn login_deadline(session: &Session) -> String {
    let limit_ms = session.service.config().session.login_timeout_ms.max(1);
    tokio::time::sleep(Duration::from_millis(limit_ms)).await;
    if session.client().is_some() {
        return std::future::pending().await;
    }
    session.service.metrics().connections_refused.with_label_values(&[reason::LOGIN_TIMEOUT]).inc();
    format!("no login within {} s (connectionLoginTimeoutSeconds)", limit_ms.div_ceil(1000))
}

async fn write_some<W: AsyncWrite>(mut writer: Pin<&mut W>, segments: &VecDeque<Bytes>) -> io::Result<usize> {
    if segments.len() == 1 {
        return writer.write(&segments[0]).await;
    }
    let mut slices = [IoSlice::new(&[]); MAX_WRITE_SEGMENTS];
    let mut used = 0;
    for (slice, segment) in slices.iter_mut().zip(segments) {
        *slice = IoSlice::new(segment);
        used += 1;
    }
    writer.write_vectored(&slices[..used]).await
}

fn drop_front(segments: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = segments.front_mut() {
        if written < front.len() {
            front.advance(written);
            return;
        }
        written -= front.len();
        segments.pop_front();
    }
}

async fn keep_alive_loop(session: &Session) -> String {
    let interval = Duration::from_secs(session.service.config().session.keep_alive_interval_s.max(1));
    let mut state = KeepAlive::default();
    loop {
        tokio::time::sleep(interval).await;
        let received = session.received.load(Ordering::SeqCst);
        match state.tick(session.client().is_some(), !session.throttle.is_paused(), received) {
            KeepAliveStep::Wait => {}
            KeepAliveStep::Ping => session.outbound.append(|appender| encode::encode_ping(appender.buffer())),
            KeepAliveStep::Close(reason) => return reason.to_owned(),
        }
    }
}

impl Session {
    /// Bytes have left: consumers and the reader that waited for room are called.
    fn wrote(&self, bytes: usize) {
        let call_back = self.outbound.wrote(bytes);
        if self.outbound.is_drained() {
            self.throttle.poke();
        }
        if !call_back {
            return;
        }
        let consumers: Vec<_> = self.slots.lock().consumers.values().filter_map(|slot| slot.attached.clone()).collect();
        for (topic, key) in consumers {
            topic.writable(key);
        }
    }

    /// Takes everything the connection held away from the topics.
    async fn detach_all(&self) {
        let (producers, consumers) = {
            let mut slots = self.slots.lock();
            slots.ended = true;
            (std::mem::take(&mut slots.producers), std::mem::take(&mut slots.consumers))
        };
        self.watchers.lock().clear();
        self.count_no_more();
        // Consumers first: what they hold goes to others, while producers wait for what they have under way.
        for (topic, key) in consumers.into_values().filter_map(|slot| slot.attached) {
            topic.remove_consumer(key).await;
        }
        for (topic, key) in producers.into_values().filter_map(|slot| slot.attached) {
            topic.remove_producer(key).await;
        }
    }
}
