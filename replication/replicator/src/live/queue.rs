//! What a topic that keeps nothing has published and its link has not taken yet.
//!
//! Invariants: Q1 it holds no more than its entries and bytes (or one larger entry), and all queues to one remote together
//! no more than their budget, what they handed on until it has an answer included; Q2 offering never waits: what does not
//! fit is dropped and its messages are counted; Q3 entries come out in the order in which they went in.
//! Must never know: who publishes, links.

use crate::budget::ReadBudget;
use crate::machine::words::Hold;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// An entry as a client wrote it, from its checksum on.
#[derive(Debug, Clone)]
pub struct LiveEntry {
    /// Messages in it.
    pub messages: u32,
    /// Its bytes.
    pub payload: Bytes,
    /// The share of the budget that it takes with others of its run.
    pub hold: Option<Hold>,
}

#[derive(Default)]
struct Queued {
    entries: VecDeque<LiveEntry>,
    bytes: u64,
    closed: bool,
}

/// See the head of the file.
pub struct LiveQueue {
    max_entries: usize,
    max_bytes: u64,
    budget: Arc<ReadBudget>,
    queued: Mutex<Queued>,
    filled: Notify,
    dropped_messages: AtomicU64,
}

impl LiveQueue {
    /// An empty one with bounds of its own and those of all to its remote.
    pub fn new(max_entries: u32, max_bytes: u64, budget: Arc<ReadBudget>) -> Self {
        Self {
            max_entries: max_entries.max(1) as usize,
            max_bytes: max_bytes.max(1),
            budget,
            queued: Mutex::default(),
            filled: Notify::new(),
            dropped_messages: AtomicU64::new(0),
        }
    }

    /// Takes a run of entries and of how many messages each is, as far as it fits (Q2).
    pub fn offer(&self, run: &[(Bytes, u32)]) {
        let run_bytes = run.iter().map(|(payload, _)| payload.len() as u64).sum();
        let share = self.budget.try_take(run_bytes);
        let (mut dropped, mut begins) = (0, false);
        {
            let mut queued = self.queued.lock();
            if queued.closed {
                return;
            }
            for (payload, messages) in run {
                let bytes = payload.len() as u64;
                let is_empty = queued.entries.is_empty();
                let fits = queued.entries.len() < self.max_entries && queued.bytes + bytes <= self.max_bytes;
                if share.is_some() && (fits || is_empty) {
                    begins |= is_empty;
                    queued.bytes += bytes;
                    let hold = share.clone();
                    queued.entries.push_back(LiveEntry { messages: *messages, payload: payload.clone(), hold });
                } else {
                    dropped += u64::from(*messages);
                }
            }
        }
        if dropped > 0 {
            self.dropped_messages.fetch_add(dropped, Ordering::Relaxed);
        }
        if begins {
            self.filled.notify_one();
        }
    }

    /// What is there, at most so much but one entry; waits for the first. May be given up and called again: what it
    /// has taken it answers at once.
    pub async fn next(&self, max_entries: usize, max_bytes: u64) -> Vec<LiveEntry> {
        loop {
            let run = self.take(max_entries, max_bytes);
            if !run.is_empty() {
                return run;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self, max_entries: usize, max_bytes: u64) -> Vec<LiveEntry> {
        let mut queued = self.queued.lock();
        let (mut count, mut bytes) = (0, 0);
        for entry in queued.entries.iter().take(max_entries.max(1)) {
            let more = entry.payload.len() as u64;
            if count > 0 && bytes + more > max_bytes {
                break;
            }
            count += 1;
            bytes += more;
        }
        queued.bytes -= bytes;
        queued.entries.drain(..count).collect()
    }

    /// Takes nothing more; what is in it goes.
    pub fn close(&self) {
        let mut queued = self.queued.lock();
        *queued = Queued { closed: true, ..Queued::default() };
    }

    /// Entries in it.
    pub fn entries(&self) -> usize {
        self.queued.lock().entries.len()
    }

    /// Messages that did not fit.
    pub fn dropped_messages(&self) -> u64 {
        self.dropped_messages.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sizes: &[usize]) -> Vec<(Bytes, u32)> {
        sizes.iter().map(|&bytes| (Bytes::from(vec![0; bytes]), 2)).collect()
    }

    fn bounded(max_entries: u32, max_bytes: u64) -> LiveQueue {
        LiveQueue::new(max_entries, max_bytes, Arc::new(ReadBudget::new(1 << 20)))
    }

    fn sizes(run: &[LiveEntry]) -> Vec<usize> {
        run.iter().map(|entry| entry.payload.len()).collect()
    }

    #[tokio::test]
    async fn what_does_not_fit_is_counted_and_nobody_waits() {
        let queue = bounded(3, 100);
        queue.offer(&run(&[10, 20, 30, 40]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (3, 2), "entries");
        assert_eq!(sizes(&queue.next(2, 1000).await), [10, 20]);
        queue.offer(&run(&[60, 20]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (2, 4), "bytes: 30 and 60, and then no 20");
        assert_eq!(sizes(&queue.next(9, 1).await), [30], "one at least");
        assert_eq!(sizes(&queue.next(9, 1000).await), [60]);
        queue.offer(&run(&[1000]));
        assert_eq!(sizes(&queue.next(9, 10).await), [1000], "an empty queue takes one of any size");
    }

    #[tokio::test]
    async fn who_waits_is_woken_and_a_closed_queue_is_silent() {
        let queue = Arc::new(bounded(3, 100));
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next(10, 100).await.len() }
        });
        tokio::task::yield_now().await;
        queue.offer(&run(&[1]));
        assert_eq!(waiting.await.unwrap(), 1);
        queue.offer(&run(&[1]));
        queue.close();
        queue.offer(&run(&[1, 2, 3, 4]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (0, 0));
    }

    #[tokio::test]
    async fn all_queues_to_a_remote_share_a_budget_until_there_are_answers() {
        let budget = Arc::new(ReadBudget::new(10 << 10));
        let (one, other) = (LiveQueue::new(9, 1 << 20, budget.clone()), LiveQueue::new(9, 1 << 20, budget.clone()));
        one.offer(&run(&[4 << 10, 4 << 10]));
        other.offer(&run(&[4 << 10]));
        assert_eq!((other.entries(), other.dropped_messages()), (0, 2), "nothing is left for it");
        let taken = one.next(9, 1 << 20).await;
        other.offer(&run(&[4 << 10]));
        assert_eq!(other.dropped_messages(), 4, "what was taken has no answer yet");
        drop(taken);
        other.offer(&run(&[4 << 10]));
        assert_eq!((other.entries(), other.dropped_messages()), (1, 4));
        other.close();
        assert_eq!(budget.free_bytes(), 10 << 10);
    }
}
