//! What is on its way on one producer, shared by its owner and the reader of the connection.
//!
//! Invariants: P2; every entry is counted from its send until the owner took its answer, every answer against a send
//! without one.
//! Must never know: entries' bytes, sockets.

use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// How much may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Entries.
    pub entries: usize,
    /// Bytes of entries.
    pub bytes: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self { entries: 1000, bytes: 16 * 1024 * 1024 }
    }
}

/// How much more may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Entries.
    pub entries: usize,
    /// Bytes of entries; if nothing is on its way one entry of any size fits.
    pub bytes: usize,
}

#[derive(Debug, Default)]
struct InFlight {
    sizes: VecDeque<usize>,
    bytes: usize,
    unanswered: usize,
    closed: bool,
}

/// What is on its way, shared by the owner and the reader.
#[derive(Debug)]
pub(crate) struct Window {
    limits: LinkLimits,
    state: Mutex<InFlight>,
    changed: Notify,
}

impl Window {
    pub(crate) fn new(limits: LinkLimits) -> Self {
        let limits = LinkLimits { entries: limits.entries.max(1), bytes: limits.bytes.max(1) };
        Self { limits, state: Mutex::default(), changed: Notify::new() }
    }

    pub(crate) fn room(&self) -> Room {
        let state = self.state.lock();
        Room {
            entries: self.limits.entries.saturating_sub(state.sizes.len()),
            bytes: self.limits.bytes.saturating_sub(state.bytes),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.state.lock().sizes.len()
    }

    fn fits(&self, state: &InFlight, entries: usize, bytes: usize) -> bool {
        state.sizes.len() + entries <= self.limits.entries
            && (state.bytes == 0 || state.bytes + bytes <= self.limits.bytes)
    }

    /// Waits until a run of this size fits; `false` if the producer closed.
    pub(crate) async fn wait(&self, entries: usize, bytes: usize) -> bool {
        let entries = entries.clamp(1, self.limits.entries);
        loop {
            {
                let state = self.state.lock();
                if state.closed {
                    return false;
                }
                if self.fits(&state, entries, bytes.min(self.limits.bytes)) {
                    return true;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Counts a run of entries of these sizes, `bytes` together, if it fits.
    pub(crate) fn add(&self, sizes: impl ExactSizeIterator<Item = usize>, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let entries = sizes.len();
        if !self.fits(&state, entries, bytes) {
            return false;
        }
        state.sizes.extend(sizes);
        state.bytes += bytes;
        state.unanswered += entries;
        true
    }

    /// Takes the last run back, which was not sent.
    pub(crate) fn undo(&self, entries: usize) {
        let mut state = self.state.lock();
        for _ in 0..entries {
            let bytes = state.sizes.pop_back().unwrap_or_default();
            state.bytes -= bytes;
        }
        state.unanswered = state.unanswered.saturating_sub(entries);
    }

    /// Counts answers that were read; `false` if there are more than sends.
    pub(crate) fn answered(&self, answers: usize) -> bool {
        let mut state = self.state.lock();
        match state.unanswered.checked_sub(answers) {
            Some(left) => {
                state.unanswered = left;
                true
            }
            None => false,
        }
    }

    /// Counts answers that the owner took.
    pub(crate) fn taken(&self, answers: usize) {
        if answers == 0 {
            return;
        }
        let mut state = self.state.lock();
        for _ in 0..answers {
            let bytes = state.sizes.pop_front().unwrap_or_default();
            state.bytes -= bytes;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Nothing more is sent.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_counts_until_answers_are_taken() {
        let window = Window::new(LinkLimits { entries: 3, bytes: 100 });
        assert!(window.add([60].into_iter(), 60));
        assert!(!window.add([60].into_iter(), 60), "bytes");
        assert!(window.add([20, 20].into_iter(), 40));
        assert!(!window.add([0].into_iter(), 0), "entries");
        assert!(window.answered(2));
        assert_eq!(window.room(), Room { entries: 0, bytes: 0 });
        window.taken(2);
        assert_eq!(window.room(), Room { entries: 2, bytes: 80 });
        assert!(!window.answered(2), "one send has no answer");
        window.undo(1);
        assert_eq!((window.in_flight(), window.room().bytes), (0, 100));
        assert!(window.add([1_000].into_iter(), 1_000), "an entry above the limit goes alone");
    }
}
