//! Frames waiting to be written to one connection.
//!
//! Role: up to [`FRAMES_PER_WRITE`] frames go out in one write; small payloads are copied beside their headers, large
//! ones are written from where they are.
//! Invariants: U1 frames leave in the order of their pushes; U2 what waits is counted in bytes, the pushing side keeps
//! the bound.
//! Must never know: what frames mean.

use crate::entry::EntryBytes;
use crate::frame::{FrameError, Header, put_header};
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// Frames in one write.
pub const FRAMES_PER_WRITE: usize = 256;
/// Payloads up to this size are copied.
const COPY_BYTES_MAX: usize = 4096;
/// What waits beside a payload.
const FRAME_OVERHEAD_BYTES: usize = 128;

/// Payload of a frame.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    None,
    Entry(EntryBytes),
    Parts(Vec<Bytes>),
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Entry(entry) => entry.len(),
            Payload::Parts(parts) => parts.iter().map(Bytes::len).sum(),
        }
    }
}

#[derive(Debug)]
struct Frame {
    header: Header,
    payload: Payload,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Frame>,
    bytes: usize,
    closed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
}

impl Outbox {
    /// Queues a frame; dropped if the connection is closed (its owner then fails what waits for an answer).
    pub fn push(&self, header: Header, payload: Payload) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.bytes += payload.len() + FRAME_OVERHEAD_BYTES;
            state.frames.push_back(Frame { header, payload });
        }
        self.filled.notify_one();
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Waits until at most `bytes` wait, or the connection is closed.
    pub async fn wait_below(&self, bytes: usize) {
        loop {
            let drained = self.drained.notified();
            {
                let state = self.state.lock();
                if state.bytes <= bytes || state.closed {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Drops what waits, for ever.
    pub fn close(&self) {
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.frames.clear();
            state.bytes = 0;
        }
        self.filled.notify_one();
        self.drained.notify_one();
    }

    async fn take(&self) -> Option<Vec<Frame>> {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.state.lock();
                if state.closed {
                    return None;
                }
                if !state.frames.is_empty() {
                    let count = state.frames.len().min(FRAMES_PER_WRITE);
                    let frames: Vec<_> = state.frames.drain(..count).collect();
                    state.bytes -= frames.iter().map(|frame| frame.payload.len() + FRAME_OVERHEAD_BYTES).sum::<usize>();
                    return Some(frames);
                }
            }
            filled.await;
        }
    }

    /// Writes until the outbox is closed.
    pub async fn write_to(&self, writer: &mut (impl AsyncWrite + Unpin), patience: Duration) -> io::Result<()> {
        while let Some(frames) = self.take().await {
            let mut chunks = gather(frames).map_err(io::Error::other)?;
            tokio::time::timeout(patience, async {
                writer.write_all_buf(&mut chunks).await?;
                writer.flush().await
            })
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"))??;
            self.drained.notify_one();
        }
        Ok(())
    }
}

/// Byte runs to be written one behind the other.
#[derive(Debug, Default)]
struct Chunks {
    runs: VecDeque<Bytes>,
    remaining: usize,
}

impl Chunks {
    fn push(&mut self, run: Bytes) {
        if !run.is_empty() {
            self.remaining += run.len();
            self.runs.push_back(run);
        }
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.runs.front().map_or(&[], |run| run)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let count = self.runs.len().min(slices.len());
        for (slice, run) in slices.iter_mut().zip(&self.runs) {
            *slice = IoSlice::new(run);
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while let Some(front) = self.runs.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.runs.pop_front();
        }
    }
}

fn gather(frames: Vec<Frame>) -> Result<Chunks, FrameError> {
    let mut chunks = Chunks::default();
    let mut small = BytesMut::new();
    let mut put = |small: &mut BytesMut, run: Bytes| {
        if run.len() <= COPY_BYTES_MAX {
            small.extend_from_slice(&run);
        } else {
            chunks.push(small.split().freeze());
            chunks.push(run);
        }
    };
    for frame in frames {
        put_header(&mut small, &frame.header, frame.payload.len())?;
        match frame.payload {
            Payload::None => {}
            Payload::Entry(entry) => {
                small.extend_from_slice(entry.head.as_slice());
                put(&mut small, entry.body);
            }
            Payload::Parts(parts) => parts.into_iter().for_each(|part| put(&mut small, part)),
        }
    }
    chunks.push(small.freeze());
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Head;
    use crate::frame::{Body, Hello, take_frame};

    #[test]
    fn small_and_large_payloads_come_out_in_order() {
        let header = |call| Header { call, body: Some(Body::Hello(Hello::default())) };
        let large = Bytes::from(vec![7; COPY_BYTES_MAX + 1]);
        let frames = vec![
            Frame { header: header(1), payload: Payload::Entry(EntryBytes::plain(Bytes::from_static(b"small"))) },
            Frame {
                header: header(2),
                payload: Payload::Entry(EntryBytes { head: Head::new(b"head"), body: large.clone() }),
            },
            Frame { header: header(3), payload: Payload::Parts(vec![Bytes::from_static(b"a"), large.clone()]) },
            Frame { header: header(4), payload: Payload::None },
        ];
        let mut chunks = gather(frames).unwrap();
        assert_eq!(chunks.runs.len(), 5);
        let mut slices = [IoSlice::new(&[]); 2];
        assert_eq!(chunks.chunks_vectored(&mut slices), 2);
        let total = chunks.remaining();
        let mut wire = BytesMut::new();
        wire.extend_from_slice(&chunks.copy_to_bytes(total));
        let mut payloads = Vec::new();
        while let Some((header, payload)) = take_frame(&mut wire).unwrap() {
            payloads.push((header.call, payload.len()));
        }
        assert_eq!(payloads, [(1, 5), (2, 4 + large.len()), (3, 1 + large.len()), (4, 0)]);
    }
}
