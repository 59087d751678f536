//! What a topic that keeps nothing has published and its link has not taken yet.
//!
//! Invariants: Q1 it holds no more than its entries and bytes (or one larger entry); Q2 offering never waits: what does not
//! fit is dropped and its messages are counted; Q3 entries come out in the order in which they went in.
//! Must never know: who publishes, links.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// An entry as a client wrote it, from its checksum on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveEntry {
    /// Messages in it.
    pub messages: u32,
    /// Its bytes.
    pub payload: Bytes,
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
    queued: Mutex<Queued>,
    filled: Notify,
    dropped_messages: AtomicU64,
}

impl LiveQueue {
    /// An empty one with bounds.
    pub fn new(max_entries: u32, max_bytes: u64) -> Self {
        Self {
            max_entries: max_entries.max(1) as usize,
            max_bytes: max_bytes.max(1),
            queued: Mutex::default(),
            filled: Notify::new(),
            dropped_messages: AtomicU64::new(0),
        }
    }

    /// Takes a run, as far as it fits (Q2).
    pub fn offer(&self, run: impl Iterator<Item = LiveEntry>) {
        let (mut dropped, mut begins) = (0, false);
        {
            let mut queued = self.queued.lock();
            if queued.closed {
                return;
            }
            for entry in run {
                let bytes = entry.payload.len() as u64;
                let is_empty = queued.entries.is_empty();
                let fits = queued.entries.len() < self.max_entries && queued.bytes + bytes <= self.max_bytes;
                if fits || is_empty {
                    begins |= is_empty;
                    queued.bytes += bytes;
                    queued.entries.push_back(entry);
                } else {
                    dropped += u64::from(entry.messages);
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

    fn run(sizes: &[usize]) -> impl Iterator<Item = LiveEntry> {
        sizes.iter().map(|&bytes| LiveEntry { messages: 2, payload: Bytes::from(vec![0; bytes]) })
    }

    fn sizes(run: &[LiveEntry]) -> Vec<usize> {
        run.iter().map(|entry| entry.payload.len()).collect()
    }

    #[tokio::test]
    async fn what_does_not_fit_is_counted_and_nobody_waits() {
        let queue = LiveQueue::new(3, 100);
        queue.offer(run(&[10, 20, 30, 40]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (3, 2), "entries");
        assert_eq!(sizes(&queue.next(2, 1000).await), [10, 20]);
        queue.offer(run(&[60, 20]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (2, 4), "bytes: 30 and 60, and then no 20");
        assert_eq!(sizes(&queue.next(9, 1).await), [30], "one at least");
        assert_eq!(sizes(&queue.next(9, 1000).await), [60]);
        queue.offer(run(&[1000]));
        assert_eq!(sizes(&queue.next(9, 10).await), [1000], "an empty queue takes one of any size");
    }

    #[tokio::test]
    async fn who_waits_is_woken_and_a_closed_queue_is_silent() {
        let queue = std::sync::Arc::new(LiveQueue::new(3, 100));
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next(10, 100).await.len() }
        });
        tokio::task::yield_now().await;
        queue.offer(run(&[1]));
        assert_eq!(waiting.await.unwrap(), 1);
        queue.offer(run(&[1]));
        queue.close();
        queue.offer(run(&[1, 2, 3, 4]));
        assert_eq!((queue.entries(), queue.dropped_messages()), (0, 0));
    }
}
