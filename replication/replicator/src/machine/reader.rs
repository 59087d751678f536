//! Where the link reads, what it has read and not sent, and what is missing in between.
//!
//! Invariants: D1 one read at a time; a rewind voids the read begun before it (epoch); D2 the queue holds entries in the
//! order of the log and is bounded: a read is asked for only while less than half of one read is queued; D3 message
//! indexes run on without a gap, so messages removed before they were read are counted exactly; D4 a marker from the remote
//! is handed on once, however often the link rewinds.
//! Must never know: peers, sessions.

use super::classify::{Skip, Verdict, classify};
use super::words::{Effect, Hold, Notice, Now, ReadEntry, SeenMarker};
use crate::machine::limit::Backoff;
use bytes::Bytes;
use meridian_types::{Position, RegionId};
use std::collections::VecDeque;

/// An entry that was read and classified.
#[derive(Clone)]
pub struct Ready {
    /// Where it is.
    pub position: Position,
    /// What becomes of it.
    pub verdict: Verdict,
    /// As stored.
    pub payload: Bytes,
    /// Messages in it.
    pub messages: u32,
    /// Index of its first message.
    pub first_index: u64,
    /// When the broker took it.
    pub broker_time_ms: u64,
    /// Given back when it is through.
    pub hold: Option<Hold>,
}

/// How much one read may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSize {
    /// Entries.
    pub entries: u32,
    /// Bytes.
    pub bytes: u64,
}

/// See the head of the file.
pub struct Reader {
    epoch: u64,
    from: Position,
    /// A read or a wait of this epoch is under way.
    busy: bool,
    caught_up: bool,
    next_index: Option<u64>,
    acked_up_to: Position,
    markers_up_to: Position,
    retry_at_ms: u64,
    backoff: Backoff,
    failure: Option<String>,
    queue: VecDeque<Ready>,
    queued_bytes: u64,
}

impl Reader {
    /// Nothing is read before [`Reader::rewind`].
    pub fn new(backoff: Backoff) -> Self {
        Self {
            epoch: 0,
            from: Position::EARLIEST,
            busy: false,
            caught_up: false,
            next_index: None,
            acked_up_to: Position::EARLIEST,
            markers_up_to: Position::EARLIEST,
            retry_at_ms: 0,
            backoff,
            failure: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
        }
    }

    /// Reads from there from now on; `next_index`: index of the first message expected, if it is known.
    pub fn rewind(&mut self, from: Position, next_index: Option<u64>) {
        self.epoch += 1;
        self.from = from;
        self.busy = false;
        self.caught_up = false;
        self.next_index = next_index;
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// Entries up to there may be acknowledged although they are behind unacknowledged ones.
    pub fn expect_acked_up_to(&mut self, position: Position) {
        self.acked_up_to = self.acked_up_to.max(position);
    }

    /// Where the next read begins, and the index expected there.
    pub fn place(&self) -> (Position, Option<u64>) {
        (self.from, self.next_index)
    }

    /// The next entry to be dealt with.
    pub fn front(&self) -> Option<&Ready> {
        self.queue.front()
    }

    /// Takes it.
    pub fn pop(&mut self) -> Option<Ready> {
        let ready = self.queue.pop_front()?;
        self.queued_bytes -= ready.payload.len() as u64;
        Some(ready)
    }

    /// Entries queued.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Everything confirmed is read.
    pub fn is_caught_up(&self) -> bool {
        self.caught_up && self.queue.is_empty()
    }

    /// Why the log can't be read, if it can't.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When a failed read is tried again.
    pub fn wake_at_ms(&self) -> Option<u64> {
        self.failure.is_some().then_some(self.retry_at_ms)
    }

    /// A read, if it is time for one (D1, D2).
    pub fn want(&mut self, now: Now, size: ReadSize) -> Option<Effect> {
        let room = self.queue.len() < size.entries.div_ceil(2) as usize && self.queued_bytes <= size.bytes / 2;
        let waits = self.failure.is_some() && now.ms < self.retry_at_ms;
        if self.busy || self.caught_up || !room || waits {
            return None;
        }
        self.busy = true;
        let (max_entries, max_bytes) = (size.entries, size.bytes);
        Some(Effect::Read { epoch: self.epoch, from: self.from, max_entries, max_bytes, acked_up_to: self.acked_up_to })
    }

    /// A read failed.
    pub fn failed(&mut self, now: Now, epoch: u64, error: String) {
        if epoch == self.epoch {
            self.busy = false;
            self.caught_up = false;
            self.failure = Some(error);
            self.retry_at_ms = now.ms + self.backoff.next_ms(now);
        }
    }

    /// There is more.
    pub fn grown(&mut self, epoch: u64) {
        if epoch == self.epoch {
            self.busy = false;
            self.caught_up = false;
        }
    }

    /// A read is done. Answers effects: the wait for more, markers, notices of gaps.
    pub fn read(&mut self, epoch: u64, entries: Vec<ReadEntry>, local: RegionId, remote: &str) -> Vec<Effect> {
        if epoch != self.epoch {
            return Vec::new();
        }
        self.busy = false;
        self.failure = None;
        self.backoff.reset();
        if entries.is_empty() {
            self.caught_up = true;
            self.busy = true;
            return vec![Effect::Await { epoch, from: self.from }];
        }
        let mut effects = Vec::new();
        for read in entries {
            if read.entry.position < self.from {
                continue;
            }
            self.take(read, local, remote, &mut effects);
        }
        effects
    }

    fn take(&mut self, read: ReadEntry, local: RegionId, remote: &str, effects: &mut Vec<Effect>) {
        let entry = read.entry;
        let end_index = entry.index.wrapping_add(1);
        let first_index = end_index.wrapping_sub(u64::from(entry.messages));
        if let Some(missing) = self.next_index.and_then(|next| first_index.checked_sub(next)).filter(|&n| n > 0) {
            effects.push(Effect::Announce(Notice::Gap { messages: missing, before: entry.position }));
        }
        self.next_index = Some(end_index);
        self.from = entry.position.next_in_ledger();
        if read.acked {
            return;
        }
        let verdict = classify(&entry, local, remote);
        if let Verdict::Skip(Skip::RemoteMarker(kind)) = &verdict
            && entry.position > self.markers_up_to
        {
            self.markers_up_to = entry.position;
            let entry = SeenMarker { kind: *kind, position: entry.position, entry: entry.payload.clone() };
            effects.push(Effect::Marker(entry));
        }
        self.queued_bytes += entry.payload.len() as u64;
        self.queue.push_back(Ready {
            position: entry.position,
            verdict,
            payload: entry.payload,
            messages: entry.messages,
            first_index,
            broker_time_ms: entry.broker_time_ms,
            hold: read.hold,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LOCAL, Written};

    const SIZE: ReadSize = ReadSize { entries: 4, bytes: 1000 };
    const NOW: Now = Now { ms: 0, jitter_permille: 0 };

    fn entries(range: std::ops::Range<i64>) -> Vec<ReadEntry> {
        range.map(|e| ReadEntry { entry: Written::default().at(1, e), acked: false, hold: None }).collect()
    }

    fn reader() -> Reader {
        let mut reader = Reader::new(Backoff::new(100, 1000));
        reader.rewind(Position::new(1, 0), None);
        reader
    }

    fn read(reader: &mut Reader, epoch: u64, entries: Vec<ReadEntry>) -> Vec<String> {
        let effects = reader.read(epoch, entries, RegionId::of(LOCAL), "east");
        effects.iter().map(|effect| format!("{effect:?}")).collect()
    }

    #[test]
    fn one_read_at_a_time_and_a_bounded_queue() {
        let mut r = reader();
        assert!(r.want(NOW, SIZE).is_some());
        assert!(r.want(NOW, SIZE).is_none());
        read(&mut r, 1, entries(0..2));
        assert!(r.want(NOW, SIZE).is_none(), "half of a read is queued");
        r.pop();
        assert!(matches!(r.want(NOW, SIZE), Some(Effect::Read { from, .. }) if from == Position::new(1, 2)));
        let effects = read(&mut r, 1, Vec::new());
        assert_eq!(effects, ["Await { epoch: 1, from: 1:2 }"]);
        assert!(!r.is_caught_up() && r.want(NOW, SIZE).is_none());
        r.pop();
        assert!(r.is_caught_up());
        r.grown(1);
        assert!(r.want(NOW, SIZE).is_some());
    }

    #[test]
    fn a_rewind_wins_over_the_read_before_it() {
        let mut r = reader();
        r.want(NOW, SIZE);
        r.rewind(Position::new(1, 0), None);
        assert!(read(&mut r, 1, entries(5..8)).is_empty());
        assert_eq!(r.queued(), 0);
        r.failed(NOW, 1, "late".into());
        r.grown(1);
        assert!(matches!(r.want(NOW, SIZE), Some(Effect::Read { epoch: 2, from, .. }) if from == Position::new(1, 0)));
    }

    #[test]
    fn missing_messages_are_counted_over_ledger_ends() {
        let mut r = reader();
        read(&mut r, 1, entries(0..2));
        let mut next = entries(7..8);
        next[0].entry.position = Position::new(9, 0);
        assert_eq!(read(&mut r, 1, next), ["Announce(Gap { messages: 5, before: 9:0 })"]);
        let mut known = entries(0..1);
        known[0].entry.position = Position::new(9, 5);
        known[0].entry.index = 8;
        known[0].acked = true;
        assert!(read(&mut r, 1, known).is_empty(), "what is acknowledged is not missing");
        assert_eq!(r.queued(), 3);
    }

    #[test]
    fn a_marker_is_handed_on_once() {
        let marker = Written { marker: Some(10), replicated_from: Some("east"), ..Written::default() };
        let entry = || vec![ReadEntry { entry: marker.clone().at(1, 0), acked: false, hold: None }];
        let mut r = reader();
        assert_eq!(read(&mut r, 1, entry()).len(), 1);
        r.rewind(Position::new(1, 0), None);
        assert!(read(&mut r, 2, entry()).is_empty());
    }

    #[test]
    fn a_failed_read_is_tried_again_later() {
        let mut r = reader();
        r.want(NOW, SIZE);
        r.failed(NOW, 1, "no bookie".into());
        assert_eq!((r.failure(), r.wake_at_ms()), (Some("no bookie"), Some(100)));
        assert!(r.want(NOW, SIZE).is_none());
        assert!(r.want(Now { ms: 100, jitter_permille: 0 }, SIZE).is_some());
        read(&mut r, 1, entries(0..1));
        assert_eq!(r.failure(), None);
    }
}
