//! What waits to be written on a connection.
//!
//! Invariants: runs that wait weigh at most `limit_bytes` together, but one run alone may weigh more (a run weighs what
//! its entries do, or what its frame does); who waits for room gets it in the order of asking; PING and PONG are flags, not frames, so a flood of them takes no memory; frames of closing producers and
//! consumers go beside the limit, since there is one for each at most.
//! Failure: after [`Outbound::close`] nothing is taken any more and nobody waits.
//! Must never know: sockets, what a frame means.

use bytes::Bytes;
use meridian_wire::encode::{PING, PONG};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::{Notify, Semaphore};

/// Bytes that one round of writing takes from the queue; PING and PONG wait for one round at most.
const ROUND_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
struct Run {
    chunks: Vec<Bytes>,
    bytes: usize,
    permits: usize,
}

#[derive(Debug, Default)]
struct Queue {
    runs: VecDeque<Run>,
    bytes: usize,
    ping: bool,
    pong: bool,
    closed: bool,
}

/// One round of writing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round {
    permits: usize,
    /// A PING is in it.
    pub(crate) ping: bool,
}

/// The queue of one connection.
#[derive(Debug)]
pub(crate) struct Outbound {
    queue: Mutex<Queue>,
    wake: Notify,
    room: Semaphore,
    limit_bytes: usize,
}

/// Room that was taken for a run.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Reserved(usize);

/// The connection has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Outbound {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let limit_bytes = limit_bytes.clamp(1, u32::MAX as usize);
        Self { queue: Mutex::default(), wake: Notify::new(), room: Semaphore::new(limit_bytes), limit_bytes }
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    /// Waits until there is room for a run of this weight.
    pub(crate) async fn writable(&self, weight_bytes: usize) -> Result<(), Closed> {
        self.room.acquire_many(self.permits(weight_bytes)).await.map(drop).map_err(|_| Closed)
    }

    /// Queues frames that weigh so much when there is room for them.
    pub(crate) async fn push(&self, chunks: Vec<Bytes>, weight_bytes: usize) -> Result<(), Closed> {
        let permits = self.permits(weight_bytes);
        self.room.acquire_many(permits).await.map_err(|_| Closed)?.forget();
        self.enqueue(chunks, permits as usize)
    }

    /// Takes room for a run of this weight if there is now; [`push_reserved`](Self::push_reserved) follows.
    pub(crate) fn try_reserve(&self, weight_bytes: usize) -> Result<Option<Reserved>, Closed> {
        let permits = self.permits(weight_bytes);
        match self.room.try_acquire_many(permits) {
            Ok(taken) => taken.forget(),
            Err(tokio::sync::TryAcquireError::NoPermits) => return Ok(None),
            Err(tokio::sync::TryAcquireError::Closed) => return Err(Closed),
        }
        Ok(Some(Reserved(permits as usize)))
    }

    /// Queues frames for which room was taken.
    pub(crate) fn push_reserved(&self, reserved: Reserved, chunks: Vec<Bytes>) -> Result<(), Closed> {
        self.enqueue(chunks, reserved.0)
    }

    /// Queues a frame beside the limit.
    pub(crate) fn push_beside(&self, frame: Bytes) -> Result<(), Closed> {
        self.enqueue(vec![frame], 0)
    }

    fn permits(&self, weight_bytes: usize) -> u32 {
        weight_bytes.clamp(1, self.limit_bytes) as u32
    }

    fn enqueue(&self, chunks: Vec<Bytes>, permits: usize) -> Result<(), Closed> {
        let bytes = chunks.iter().map(Bytes::len).sum::<usize>();
        let run = Run { chunks, bytes, permits };
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(Closed);
        }
        queue.bytes += run.bytes;
        queue.runs.push_back(run);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    pub(crate) fn ping(&self) {
        self.queue.lock().ping = true;
        self.wake.notify_one();
    }

    pub(crate) fn pong(&self) {
        self.queue.lock().pong = true;
        self.wake.notify_one();
    }

    /// Waits until something was queued since the last call of [`take`](Self::take) that found nothing.
    pub(crate) async fn queued(&self) {
        self.wake.notified().await;
    }

    /// Takes a round of frames into `chunks`; none are taken if nothing waits.
    pub(crate) fn take(&self, chunks: &mut VecDeque<Bytes>) -> Round {
        let mut queue = self.queue.lock();
        let mut round = Round { permits: 0, ping: std::mem::take(&mut queue.ping) };
        if std::mem::take(&mut queue.pong) {
            chunks.push_back(Bytes::from_static(&PONG));
        }
        if round.ping {
            chunks.push_back(Bytes::from_static(&PING));
        }
        let mut taken = 0;
        while taken < ROUND_BYTES
            && let Some(run) = queue.runs.pop_front()
        {
            taken += run.bytes;
            round.permits += run.permits;
            chunks.extend(run.chunks);
        }
        queue.bytes -= taken;
        round
    }

    /// A round was written.
    pub(crate) fn written(&self, round: Round) {
        self.room.add_permits(round.permits);
    }

    /// Nothing is taken any more.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.runs.clear();
        queue.bytes = 0;
        drop(queue);
        self.room.close();
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: usize) -> Vec<Bytes> {
        vec![Bytes::from(vec![7; bytes])]
    }

    #[tokio::test]
    async fn a_full_queue_makes_senders_wait_and_a_written_round_lets_them_go() {
        let outbound = Outbound::new(10);
        outbound.push(run(6), 6).await.unwrap();
        assert_eq!(outbound.try_reserve(5), Ok(None));
        let reserved = outbound.try_reserve(4).unwrap().unwrap();
        outbound.push_reserved(reserved, run(4)).unwrap();
        assert_eq!(outbound.bytes(), 10);
        let mut chunks = VecDeque::new();
        let round = outbound.take(&mut chunks);
        assert_eq!((chunks.len(), outbound.bytes()), (2, 0));
        assert_eq!(outbound.try_reserve(1), Ok(None), "what is being written still counts");
        outbound.written(round);
        let reserved = outbound.try_reserve(1).unwrap().unwrap();
        outbound.push_reserved(reserved, run(1)).unwrap();
        let large = outbound.push(run(1_000), 1_000);
        tokio::pin!(large);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), &mut large).await.is_err());
        outbound.written(outbound.take(&mut chunks));
        large.await.unwrap();
        assert_eq!(outbound.bytes(), 1_000, "one run may be larger than the limit");
    }

    #[tokio::test]
    async fn pings_are_flags_and_go_first() {
        let outbound = Outbound::new(10);
        outbound.push(run(3), 3).await.unwrap();
        for _ in 0..100 {
            outbound.pong();
            outbound.ping();
        }
        outbound.queued().await;
        let mut chunks = VecDeque::new();
        let round = outbound.take(&mut chunks);
        assert!(round.ping);
        let sizes: Vec<_> = chunks.iter().map(Bytes::len).collect();
        assert_eq!(sizes, [13, 13, 3]);
        assert_eq!(chunks[0][..], PONG);
        chunks.clear();
        assert_eq!(outbound.take(&mut chunks), Round::default());
    }

    #[tokio::test]
    async fn the_end_wakes_everyone() {
        let outbound = Outbound::new(1);
        outbound.push(run(1), 1).await.unwrap();
        let (waiting, ()) = tokio::join!(outbound.push(run(1), 1), async { outbound.close() });
        assert_eq!(waiting, Err(Closed));
        assert_eq!(outbound.writable(1).await, Err(Closed));
        assert_eq!(outbound.push_beside(Bytes::new()), Err(Closed));
        outbound.queued().await;
    }
}
