//! The task of a connection: reads, writes and keeps alive until one of the three ends it.
//!
//! Invariants: C2, C3, C4; the reader waits for nothing but the socket.
//! Failure: the reason goes to everyone who waits ([`Shared::end`]).
//! Must never know: what the frames mean.

use super::inbound::Effect;
use super::{Shared, dial};
use crate::ClientError;
use crate::keepalive::{Action, KeepAlive};
use bytes::{Buf, Bytes, BytesMut};
use meridian_wire::frame::FrameDecoder;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Space that a read is offered at least.
const READ_BYTES: usize = 64 * 1024;
/// The most space that is reserved at once for a frame that was announced.
const RESERVE_BYTES: usize = 1024 * 1024;
/// Pieces of one write.
const WRITE_SLICES: usize = 64;

/// What the handshake leaves behind.
pub(super) struct Reader {
    pub(super) decoder: FrameDecoder,
    pub(super) buffer: BytesMut,
}

/// The monotonic time of a connection and the machine that watches it.
struct Alive {
    began: Instant,
    machine: Mutex<KeepAlive>,
}

impl Alive {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Runs a connection to its end.
pub(super) async fn drive<S>(stream: S, reader: Reader, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let alive = Alive { began: Instant::now(), machine: Mutex::new(KeepAlive::new(shared.limits.keep_alive, 0)) };
    let (reads, writes) = tokio::io::split(stream);
    let mut ended = shared.ended.subscribe();
    let reason = tokio::select! {
        reason = read(reads, reader, &shared, &alive) => reason,
        reason = write(writes, &shared, &alive) => reason,
        reason = watch(&shared, &alive) => reason,
        _ = ended.wait_for(|ended| *ended) => return,
    };
    tracing::debug!(endpoint = %shared.endpoint, %reason, "connection ended");
    shared.end(reason);
}

async fn read<R: AsyncRead + Unpin>(mut reads: R, reader: Reader, shared: &Arc<Shared>, alive: &Alive) -> ClientError {
    let Reader { decoder, mut buffer } = reader;
    loop {
        if let Err(reason) = take_all(&decoder, &mut buffer, shared) {
            return reason;
        }
        buffer.reserve(decoder.missing_bytes(&buffer).clamp(READ_BYTES, RESERVE_BYTES));
        match reads.read_buf(&mut buffer).await {
            Ok(0) => return ClientError::ended("the peer closed the connection"),
            Ok(_) => {}
            Err(error) => return ClientError::ended(format!("reading failed: {error}")),
        }
        alive.machine.lock().heard(alive.now_ms());
    }
}

/// Takes every whole frame out of the buffer and hands over what they bring.
fn take_all(decoder: &FrameDecoder, buffer: &mut BytesMut, shared: &Arc<Shared>) -> Result<(), ClientError> {
    let mut inbound = shared.inbound.lock();
    loop {
        let frame = decoder.decode(buffer).map_err(|error| ClientError::Protocol(error.to_string()));
        match frame {
            Ok(None) => return inbound.flush(),
            Ok(Some(frame)) => match inbound.take(frame) {
                Ok(Effect::None) => {}
                Ok(Effect::Pong) => shared.outbound.pong(),
                // One answer is enough for all challenges that come meanwhile.
                Ok(Effect::Authenticate) => {
                    if !shared.authenticating.swap(true, Ordering::Relaxed) {
                        tokio::spawn(authenticate(shared.clone()));
                    }
                }
                Err(reason) => return inbound.flush().and(Err(reason)),
            },
            // What came whole before still counts.
            Err(reason) => return inbound.flush().and(Err(reason)),
        }
    }
}

/// Answers a challenge; credentials that cannot be read any more end the connection.
async fn authenticate(shared: Arc<Shared>) {
    match dial::auth_response(&shared.credentials, &shared.client_version).await {
        Ok(answer) => {
            let frame = super::frame(answer.into());
            let weight_bytes = frame.len();
            // A connection that has ended needs no answer.
            let _ = shared.outbound.push(vec![frame], weight_bytes).await;
        }
        Err(error) => shared.end(error),
    }
    shared.authenticating.store(false, Ordering::Relaxed);
}

async fn write<W: AsyncWrite + Unpin>(mut writes: W, shared: &Shared, alive: &Alive) -> ClientError {
    let mut chunks = VecDeque::new();
    loop {
        let round = shared.outbound.take(&mut chunks);
        if chunks.is_empty() {
            shared.outbound.queued().await;
            continue;
        }
        if let Err(error) = write_round(&mut writes, &mut chunks, alive).await {
            return ClientError::ended(format!("writing failed: {error}"));
        }
        shared.outbound.written(round);
        if round.ping {
            alive.machine.lock().ping_written(alive.now_ms());
        }
    }
}

async fn write_round<W: AsyncWrite + Unpin>(
    writes: &mut W,
    chunks: &mut VecDeque<Bytes>,
    alive: &Alive,
) -> std::io::Result<()> {
    while !chunks.is_empty() {
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
        let count = chunks.len().min(WRITE_SLICES);
        for (slice, chunk) in slices.iter_mut().zip(chunks.iter()) {
            *slice = IoSlice::new(chunk);
        }
        let mut written = writes.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        alive.machine.lock().progressed(alive.now_ms());
        while let Some(first) = chunks.front_mut() {
            if first.len() > written {
                first.advance(written);
                break;
            }
            written -= first.len();
            chunks.pop_front();
        }
    }
    writes.flush().await
}

/// Ticks the keep-alive.
async fn watch(shared: &Shared, alive: &Alive) -> ClientError {
    let limits = shared.limits.keep_alive;
    let tick_ms = (limits.interval_ms.min(limits.timeout_ms) / 8).clamp(1, 1_000);
    let mut ticks = tokio::time::interval(Duration::from_millis(tick_ms));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let action = alive.machine.lock().tick(alive.now_ms());
        match action {
            Action::Wait => {}
            Action::Ping => shared.outbound.ping(),
            Action::Dead(reason) => return ClientError::ended(reason),
        }
    }
}
