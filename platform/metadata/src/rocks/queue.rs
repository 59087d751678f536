//! The way from async callers to the writer thread.
//!
//! Invariants: M6 what waits is bounded by [`QUEUE_BYTES`]; a caller waits for room no longer than
//! [`ROOM_DEADLINE_MS`].
//! Failure: no room in time is [`MetadataError::Unavailable`]: nothing was changed.
//! Must never know: what a request means.

use crate::store::{MetadataError, Operation, SessionId, Version};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Bytes of transactions that may wait for the writer.
const QUEUE_BYTES: usize = 16 * 1024 * 1024;
/// How long a caller waits for room in the queue.
const ROOM_DEADLINE_MS: u64 = 10_000;
/// Requests written with one sync.
const GROUP_REQUESTS: usize = 512;
/// Bytes written with one sync (the last request may exceed it).
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Room is counted in units of this, so that small requests are bounded too.
const UNIT_BYTES: usize = 256;

/// Where an answer goes.
pub(super) type Answer<T> = oneshot::Sender<Result<T, MetadataError>>;

/// What the writer is asked.
pub(super) enum Work {
    Commit { operations: Vec<Operation>, answer: Answer<Version> },
    Reserve { sequence: String, count: u64, answer: Answer<u64> },
    EndSession { session: SessionId, answer: Answer<()> },
}

impl Work {
    /// Answers with an error. A caller that has gone is no matter.
    fn refuse(self, error: MetadataError) {
        match self {
            Work::Commit { answer, .. } => drop(answer.send(Err(error))),
            Work::Reserve { answer, .. } => drop(answer.send(Err(error))),
            Work::EndSession { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

/// Work with its share of the room, given back when the work is done.
pub(super) struct Request {
    work: Work,
    room: OwnedSemaphorePermit,
}

impl Request {
    pub(super) fn refuse(self, error: MetadataError) {
        self.work.refuse(error);
    }

    /// The work, and its room, to be kept until the work is done.
    pub(super) fn into_parts(self) -> (Work, OwnedSemaphorePermit) {
        (self.work, self.room)
    }
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    woken: bool,
    closed: bool,
}

/// What [`Queue::take`] found.
pub(super) struct Taken {
    pub(super) requests: Vec<Request>,
    /// No more will come, and none waits.
    pub(super) finished: bool,
}

pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    room: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new() -> Self {
        let room = Arc::new(Semaphore::new(QUEUE_BYTES / UNIT_BYTES));
        Self { waiting: Mutex::default(), arrived: Condvar::new(), room }
    }

    /// Waits for room for a request of so many bytes.
    pub(super) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, MetadataError> {
        let units = (1 + bytes / UNIT_BYTES) as u32;
        let room = self.room.clone().acquire_many_owned(units);
        match tokio::time::timeout(Duration::from_millis(ROOM_DEADLINE_MS), room).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(MetadataError::Unavailable("the store is closed".into())),
            Err(_) => Err(MetadataError::Unavailable(format!("no room in the queue in {ROOM_DEADLINE_MS} ms"))),
        }
    }

    pub(super) fn push(&self, work: Work, room: OwnedSemaphorePermit) {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            drop(waiting);
            return work.refuse(MetadataError::Unavailable("the store is closed".into()));
        }
        waiting.requests.push_back(Request { work, room });
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Makes the writer look at its deadlines again.
    pub(super) fn wake(&self) {
        self.waiting.lock().woken = true;
        self.arrived.notify_one();
    }

    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.arrived.notify_one();
    }

    /// The writer is gone: what waits is dropped (its callers learn that the outcome is unknown), nothing more gets in.
    pub(super) fn abandon(&self) {
        self.room.close();
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.requests.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().requests.len()
    }

    /// Waits for requests, a wake-up or the deadline, and takes what one sync may hold.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Taken {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() && !waiting.closed && !waiting.woken {
            match deadline {
                Some(deadline) => {
                    if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                        break;
                    }
                }
                None => self.arrived.wait(&mut waiting),
            }
        }
        waiting.woken = false;
        let finished = waiting.closed && waiting.requests.is_empty();
        let mut requests = Vec::new();
        let mut bytes = 0;
        while requests.len() < GROUP_REQUESTS && bytes < GROUP_BYTES {
            let Some(request) = waiting.requests.pop_front() else { break };
            bytes += request.room.num_permits() * UNIT_BYTES;
            requests.push(request);
        }
        Taken { requests, finished }
    }
}
