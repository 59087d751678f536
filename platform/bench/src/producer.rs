//! A producer that keeps many sends in flight.
//!
//! Invariants: B1 a receipt is counted from the time at which its send was due; B2 at most `window` entries are in flight;
//! receipts come in the order of the sends (a receipt out of order ends the connection).
//! Failure: the first failure stays, and every later call answers it.
//! Must never know: pacing, what else is measured.

use crate::BenchError;
use crate::entry::{EntryShape, EntryTemplate};
use crate::link::{Link, unexpected};
use crate::record::Recorder;
use meridian_types::name::TopicName;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{CommandCloseProducer, CommandProducer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long the receipts of everything in flight may take.
pub const FLUSH_DEADLINE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
struct InFlight {
    sequence_id: u64,
    due: Instant,
    messages: u32,
}

#[derive(Debug, Default)]
struct WindowState {
    in_flight: VecDeque<InFlight>,
    failure: Option<BenchError>,
}

/// The sends that have no receipt yet.
#[derive(Debug)]
pub struct SendWindow {
    entries: u32,
    free: Semaphore,
    state: Mutex<WindowState>,
    receipts: Arc<Recorder>,
}

impl SendWindow {
    fn new(entries: u32, receipts: Arc<Recorder>) -> Self {
        Self { entries, free: Semaphore::new(entries as usize), state: Mutex::default(), receipts }
    }

    fn lock(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn confirm(&self, sequence_id: u64, arrived: Instant) -> Result<(), String> {
        let first = {
            let mut state = self.lock();
            match state.in_flight.pop_front() {
                Some(first) if first.sequence_id == sequence_id => first,
                other => {
                    let due = other.map(|first| first.sequence_id);
                    return Err(format!("a receipt for {sequence_id} where {due:?} was the next"));
                }
            }
        };
        self.receipts.record(arrived.saturating_duration_since(first.due), u64::from(first.messages));
        self.free.add_permits(1);
        Ok(())
    }

    pub(crate) fn fail(&self, failure: BenchError) {
        self.lock().failure.get_or_insert(failure);
        self.free.close();
    }

    fn failure(&self) -> BenchError {
        self.lock().failure.clone().unwrap_or_else(|| BenchError::Ended("the producer was closed".into()))
    }

    async fn room(&self, entries: u32) -> Result<tokio::sync::SemaphorePermit<'_>, BenchError> {
        self.free.acquire_many(entries).await.map_err(|_| self.failure())
    }
}

/// A producer.
pub struct Producer {
    link: Link,
    id: u64,
    template: EntryTemplate,
    next_sequence_id: u64,
    window: Arc<SendWindow>,
}

impl Producer {
    /// Opens a producer with at most `window` entries in flight, whose receipts are recorded in `receipts`.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn open(
        link: Link,
        topic: &TopicName,
        shape: EntryShape,
        window: u32,
        receipts: Arc<Recorder>,
    ) -> Result<Self, BenchError> {
        let (id, request_id) = (link.next_id(), link.next_id());
        let window = Arc::new(SendWindow::new(window.max(1), receipts));
        link.attach_producer(id, window.clone());
        let topic_name = topic.as_str().into();
        let command = CommandProducer { topic: topic_name, producer_id: id, request_id, ..Default::default() };
        let name = match link.request(request_id, "a producer", command.into()).await? {
            Body::ProducerSuccess(success) => success.producer_name,
            other => return Err(unexpected("a producer", &other)),
        };
        let template = EntryTemplate::new(shape, &name);
        Ok(Self { link, id, template, next_sequence_id: 0, window })
    }

    /// Waits until one more entry may be in flight.
    ///
    /// # Errors
    /// A send failed.
    pub async fn ready(&self) -> Result<(), BenchError> {
        self.window.room(1).await.map(drop)
    }

    /// Sends an entry that was due at `due`; waits for room if there is none.
    ///
    /// # Errors
    /// A send failed.
    pub async fn send(&mut self, due: Instant) -> Result<(), BenchError> {
        self.window.room(1).await?.forget();
        let (sequence_id, messages) = (self.next_sequence_id, self.template.messages());
        self.next_sequence_id += u64::from(messages);
        let frame = self.template.frame(self.id, sequence_id, due);
        self.window.lock().in_flight.push_back(InFlight { sequence_id, due, messages });
        self.link.frame(frame).await
    }

    /// Waits for every receipt.
    ///
    /// # Errors
    /// A send failed, or the receipts are late.
    pub async fn flush(&self) -> Result<(), BenchError> {
        let all = tokio::time::timeout(FLUSH_DEADLINE, self.window.room(self.window.entries)).await;
        let late = BenchError::Late { what: "the sends in flight", deadline_ms: FLUSH_DEADLINE.as_millis() as u64 };
        all.map_err(|_| late)?.map(drop)
    }

    /// Waits for every receipt and closes.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), or the broker refuses.
    pub async fn close(self) -> Result<(), BenchError> {
        self.flush().await?;
        let request_id = self.link.next_id();
        let command = CommandCloseProducer { producer_id: self.id, request_id, ..Default::default() };
        let closed = self.link.request(request_id, "closing a producer", command.into()).await;
        self.link.detach(self.id);
        closed.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_counted_from_when_the_send_was_due() {
        let receipts = Arc::new(Recorder::default());
        let window = SendWindow::new(4, receipts.clone());
        let due = Instant::now();
        for sequence_id in [0, 10] {
            window.lock().in_flight.push_back(InFlight { sequence_id, due, messages: 10 });
        }
        window.confirm(0, due + Duration::from_millis(300)).unwrap();
        let taken = receipts.take();
        assert_eq!((receipts.count(), taken.len()), (10, 10));
        assert!((299_000_000..=301_000_000).contains(&taken.max()));
        assert!(window.confirm(11, due).unwrap_err().contains("Some(10)"));
        assert!(window.confirm(11, due).is_err(), "nothing is in flight");
    }
}
