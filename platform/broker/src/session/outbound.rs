//! What waits to be written to one connection.
//!
//! Role: a queue of byte segments with a size. Whoever has something for the client appends it under a short lock and
//! wakes the writer at most once; the writer takes everything there is and hands it to vectored writes.
//! Small frames and payloads are copied together, large payloads stay the buffers they are.
//! Invariants: O1 bytes leave in the order in which they came; O2 `queued_bytes` counts exactly what was appended and is
//! not yet written; O3 after [`Outbound::close`] nothing more is taken.
//! Bound: the queue refuses nothing by itself; dispatchers ask [`Outbound::is_writable`] and the reader stops above the
//! high-water mark, so that what is queued stays below the mark and what those had under way.
//! Must never know: commands, topics.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Payloads below this are copied behind their header; above it, they are written from where they are.
const COPY_BELOW_BYTES: usize = 4 * 1024;
/// A buffer of copied frames is cut here and a new one begun.
const CUT_AT_BYTES: usize = 64 * 1024;

#[derive(Default)]
struct Queue {
    segments: VecDeque<Bytes>,
    tail: BytesMut,
    closed: bool,
}

/// Appends frames to the queue; made by [`Outbound::append`].
pub struct Appender<'a> {
    queue: &'a mut Queue,
    before: usize,
    appended: usize,
}

impl Appender<'_> {
    /// The buffer to encode a command into.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.queue.tail.len() >= CUT_AT_BYTES {
            self.cut();
        }
        &mut self.queue.tail
    }

    /// Appends a payload behind what was encoded.
    pub fn payload(&mut self, payload: Bytes) {
        if payload.len() < COPY_BELOW_BYTES {
            self.queue.tail.extend_from_slice(&payload);
            return;
        }
        self.cut();
        self.appended += payload.len();
        self.queue.segments.push_back(payload);
    }

    fn cut(&mut self) {
        if self.queue.tail.is_empty() {
            return;
        }
        self.appended += self.queue.tail.len() - self.before;
        self.before = 0;
        let segment = self.queue.tail.split().freeze();
        self.queue.segments.push_back(segment);
    }

    fn total(&self) -> usize {
        self.appended + self.queue.tail.len() - self.before
    }
}

/// What waits to be written to one connection.
pub struct Outbound {
    queue: Mutex<Queue>,
    queued_bytes: AtomicUsize,
    refused: AtomicBool,
    wake: Notify,
    high_bytes: usize,
    low_bytes: usize,
}

impl Outbound {
    /// An empty queue with its marks.
    pub fn new(high_bytes: usize, low_bytes: usize) -> Self {
        Self {
            queue: Mutex::default(),
            queued_bytes: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            wake: Notify::new(),
            high_bytes,
            low_bytes: low_bytes.min(high_bytes),
        }
    }

    /// Appends frames. Nothing happens after the close.
    pub fn append(&self, encode: impl FnOnce(&mut Appender<'_>)) {
        let mut queue = self.queue.lock();
        if queue.closed {
            return;
        }
        let before = queue.tail.len();
        let mut appender = Appender { queue: &mut queue, before, appended: 0 };
        encode(&mut appender);
        let total = appender.total();
        self.queued_bytes.fetch_add(total, Ordering::AcqRel);
        drop(queue);
        self.wake.notify_one();
    }

    /// Bytes appended and not yet written (O2).
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Acquire)
    }

    /// Whether dispatchers may append. One that hears "no" is told when the queue has drained.
    pub fn is_writable(&self) -> bool {
        if self.queued_bytes() < self.high_bytes {
            return true;
        }
        self.refused.store(true, Ordering::SeqCst);
        // The queue may have drained between the two lines above; then nobody would come back.
        self.queued_bytes.load(Ordering::SeqCst) < self.low_bytes && self.refused.swap(false, Ordering::SeqCst)
    }

    /// Whether the queue is over its high-water mark.
    pub fn is_over(&self) -> bool {
        self.queued_bytes() >= self.high_bytes
    }

    /// Whether the queue is below its low-water mark.
    pub fn is_drained(&self) -> bool {
        self.queued_bytes() < self.low_bytes
    }

    /// Takes nothing more (O3); the writer writes what there is and ends.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.wake.notify_one();
    }

    /// Everything that waits, for the writer. `false` = closed and empty.
    pub fn take(&self, into: &mut VecDeque<Bytes>) -> bool {
        let mut queue = self.queue.lock();
        into.append(&mut queue.segments);
        if queue.tail.is_empty() {
            if into.is_empty() {
                // Nothing waits: an idle connection keeps no buffer.
                queue.tail = BytesMut::new();
            }
        } else {
            into.push_back(queue.tail.split().freeze());
        }
        !(queue.closed && into.is_empty())
    }

    /// Waits until there may be something to take.
    pub async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Counts what was written; true = someone was refused before and the queue is drained now.
    pub fn wrote(&self, bytes: usize) -> bool {
        let before = self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "O2: wrote {bytes} of {before}");
        before - bytes < self.low_bytes && self.refused.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    fn drain(outbound: &Outbound) -> Vec<u8> {
        let mut segments = VecDeque::new();
        outbound.take(&mut segments);
        let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.iter().copied()).collect();
        outbound.wrote(bytes.len());
        bytes
    }

    #[test]
    fn order_and_count_hold_over_copies_and_references() {
        let outbound = Outbound::new(1 << 20, 1 << 10);
        let large = Bytes::from(vec![7; COPY_BELOW_BYTES]);
        let mut expected = Vec::new();
        for round in 0..50u8 {
            outbound.append(|appender| {
                appender.buffer().put_slice(&[round; 3000]);
                appender.payload(Bytes::from_static(b"small"));
                appender.payload(large.clone());
                appender.buffer().put_u8(round);
            });
            expected.extend_from_slice(&[round; 3000]);
            expected.extend_from_slice(b"small");
            expected.extend_from_slice(&large);
            expected.push(round);
            assert_eq!(outbound.queued_bytes(), expected.len());
        }
        assert_eq!(drain(&outbound), expected);
        assert_eq!(outbound.queued_bytes(), 0);
    }

    #[test]
    fn a_refused_dispatcher_is_called_once_when_drained() {
        let outbound = Outbound::new(100, 50);
        assert!(outbound.is_writable());
        outbound.append(|appender| appender.buffer().put_bytes(0, 120));
        assert!(!outbound.is_writable());
        assert!(!outbound.wrote(60));
        assert!(outbound.wrote(40));
        assert!(!outbound.wrote(10));
        assert!(outbound.is_writable());
    }

    #[test]
    fn nothing_is_taken_after_the_close() {
        let outbound = Outbound::new(100, 50);
        outbound.append(|appender| appender.buffer().put_u8(1));
        outbound.close();
        outbound.append(|appender| appender.buffer().put_u8(2));
        let mut segments = VecDeque::new();
        assert!(outbound.take(&mut segments));
        assert_eq!(segments, [Bytes::from_static(&[1])]);
        segments.clear();
        assert!(!outbound.take(&mut segments));
    }
}
