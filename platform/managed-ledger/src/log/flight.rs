//! Entries on their way to storage and answers on their way up.
//!
//! Role: pure queue. Invariants: L1 answers leave in append order: an entry is confirmed when its ledger's watermark
//! reached it and everything before it has left; F1 one thread at a time delivers (`claim`), so that answers are not
//! overtaken on their way to the sink.
//! Must never know: I/O, clocks, sinks.

use crate::api::{LogEntry, LogError};
use meridian_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// An entry appended and not yet confirmed.
#[derive(Debug)]
pub struct Pending {
    /// As it will be read.
    pub entry: LogEntry,
    /// Of the request.
    pub token: u64,
    /// First stored here: the origin is its own position.
    pub born_here: bool,
}

/// A place in the order of answers.
#[derive(Debug)]
pub enum Slot {
    /// Waits for its confirmation.
    Entry(Pending),
    /// Refused; waits only for its turn.
    Refused(Vec<u64>, LogError),
}

/// What a ledger holds in the end.
#[derive(Debug)]
pub struct Settled {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// Entries.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index after its last message.
    pub end_index: u64,
    /// When it was closed.
    pub closed_ms: u64,
    /// Told when this is in the layout.
    pub done: oneshot::Sender<()>,
}

/// Something to deliver.
#[derive(Debug)]
pub enum Answer {
    /// Durable.
    Confirmed(Vec<Pending>),
    /// Refused or unknown.
    Failed(Vec<u64>, LogError),
    /// A ledger is closed.
    Settled(Settled),
}

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Flight {
    pending: VecDeque<Slot>,
    watermarks: Vec<(LedgerId, EntryId)>,
    answers: Vec<Answer>,
    delivering: bool,
    ended: Vec<LedgerId>,
}

impl Flight {
    /// Becomes the deliverer if nobody is (F1); then [`Flight::take`] must be called until it gives `None`.
    pub fn claim(&mut self) -> bool {
        !std::mem::replace(&mut self.delivering, true)
    }

    /// Gives the role of the deliverer up if there is nothing to deliver.
    pub fn release_if_empty(&mut self) -> bool {
        if self.answers.is_empty() {
            self.delivering = false;
        }
        !self.delivering
    }

    /// The next answers, or `None` and the role of the deliverer is given up.
    pub fn take(&mut self) -> Option<Vec<Answer>> {
        if self.answers.is_empty() {
            self.delivering = false;
            if self.pending.is_empty() && self.pending.capacity() > 64 {
                self.pending = VecDeque::new();
            }
            return None;
        }
        Some(std::mem::take(&mut self.answers))
    }

    /// Gives back the room of what is empty.
    pub fn rest(&mut self) {
        self.pending.shrink_to_fit();
        self.watermarks.shrink_to_fit();
        self.ended.shrink_to_fit();
    }

    /// Nothing waits for a confirmation or for delivery.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.answers.is_empty() && !self.delivering
    }

    /// Slots that wait.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Entries were appended.
    pub fn push(&mut self, entries: impl Iterator<Item = Pending>) {
        self.pending.extend(entries.map(Slot::Entry));
    }

    /// Requests were refused; they answer in their turn.
    pub fn refuse(&mut self, tokens: Vec<u64>, error: LogError) {
        if self.pending.is_empty() {
            self.answers.push(Answer::Failed(tokens, error));
        } else {
            self.pending.push_back(Slot::Refused(tokens, error));
        }
    }

    /// Everything up to `up_to` of one ledger is durable.
    pub fn confirm(&mut self, ledger_id: LedgerId, up_to: EntryId) {
        match self.watermarks.iter_mut().find(|(ledger, _)| *ledger == ledger_id) {
            Some((_, watermark)) => *watermark = up_to.max(*watermark),
            None => self.watermarks.push((ledger_id, up_to)),
        }
        self.leave();
    }

    fn leave(&mut self) {
        let mut confirmed = Vec::new();
        let mut watermark: Option<(LedgerId, EntryId)> = None;
        while let Some(front) = self.pending.front() {
            if let Slot::Entry(pending) = front {
                let at = pending.entry.position;
                if watermark.is_none_or(|(ledger, _)| ledger != at.ledger_id) {
                    watermark = self.watermarks.iter().find(|(ledger, _)| *ledger == at.ledger_id).copied();
                }
                if watermark.is_none_or(|(_, up_to)| at.entry_id > up_to) {
                    break;
                }
            }
            match self.pending.pop_front() {
                Some(Slot::Entry(pending)) => confirmed.push(pending),
                Some(Slot::Refused(tokens, error)) => {
                    self.answer_confirmed(std::mem::take(&mut confirmed));
                    self.answers.push(Answer::Failed(tokens, error));
                }
                None => break,
            }
        }
        self.answer_confirmed(confirmed);
        if let Some(Slot::Entry(front)) = self.pending.front() {
            let oldest = front.entry.position.ledger_id;
            self.watermarks.retain(|(ledger, _)| *ledger >= oldest);
        }
    }

    fn answer_confirmed(&mut self, mut confirmed: Vec<Pending>) {
        if confirmed.is_empty() {
            return;
        }
        match self.answers.last_mut() {
            Some(Answer::Confirmed(earlier)) => earlier.append(&mut confirmed),
            _ => self.answers.push(Answer::Confirmed(confirmed)),
        }
    }

    /// A ledger is closed and its content known; said after what is confirmed by now.
    pub fn settle(&mut self, settled: Settled) {
        self.answers.push(Answer::Settled(settled));
    }

    /// A writer has ended with its entries unknown.
    pub fn note_ended(&mut self, ledger_id: LedgerId) {
        if !self.ended.contains(&ledger_id) {
            self.ended.push(ledger_id);
        }
    }

    /// The oldest ledger whose writer has ended.
    pub fn oldest_ended(&self) -> Option<LedgerId> {
        self.ended.iter().min().copied()
    }

    /// That ledger is dealt with.
    pub fn forget_ended(&mut self, ledger_id: LedgerId) {
        self.ended.retain(|ended| *ended != ledger_id);
    }

    /// Whether entries of ledgers before `ledger_id` still wait.
    pub fn waits_before(&self, ledger_id: LedgerId) -> bool {
        let entries = self.pending.iter().filter_map(Slot::ledger_id);
        entries.take(1).any(|first| first < ledger_id)
    }

    /// Whether an entry of `ledger_id` after `last` waits.
    pub fn has_after(&self, ledger_id: LedgerId, last: EntryId) -> bool {
        self.pending.iter().any(|slot| match slot {
            Slot::Entry(pending) => {
                let at = pending.entry.position;
                at.ledger_id == ledger_id && at.entry_id > last
            }
            Slot::Refused(..) => false,
        })
    }

    /// The waiting entry at that place.
    pub fn find(&self, ledger_id: LedgerId, entry_id: EntryId) -> Option<&Pending> {
        self.pending.iter().find_map(|slot| match slot {
            Slot::Entry(p) if p.entry.position.ledger_id == ledger_id && p.entry.position.entry_id == entry_id => {
                Some(p)
            }
            _ => None,
        })
    }

    /// Takes out the first entry of `ledger_id` after `last` and everything behind it.
    pub fn split_lost(&mut self, ledger_id: LedgerId, last: EntryId) -> VecDeque<Slot> {
        let lost = |slot: &Slot| match slot {
            Slot::Entry(pending) => {
                let at = pending.entry.position;
                at.ledger_id > ledger_id || (at.ledger_id == ledger_id && at.entry_id > last)
            }
            Slot::Refused(..) => false,
        };
        let at = self.pending.iter().position(lost).unwrap_or(self.pending.len());
        self.pending.split_off(at)
    }

    /// Fails everything that waits, in order.
    pub fn fail_all(&mut self, error: &LogError) -> u64 {
        let mut bytes = 0;
        for slot in std::mem::take(&mut self.pending) {
            let (token, refused) = match slot {
                Slot::Entry(pending) => {
                    bytes += pending.entry.payload.len() as u64;
                    (vec![pending.token], error.clone())
                }
                Slot::Refused(tokens, error) => (tokens, error),
            };
            self.answer_failed(token, refused);
        }
        bytes
    }

    fn answer_failed(&mut self, tokens: Vec<u64>, error: LogError) {
        match self.answers.last_mut() {
            Some(Answer::Failed(earlier, same)) if *same == error => earlier.extend(tokens),
            _ => self.answers.push(Answer::Failed(tokens, error)),
        }
    }
}

impl Slot {
    fn ledger_id(&self) -> Option<LedgerId> {
        match self {
            Slot::Entry(pending) => Some(pending.entry.position.ledger_id),
            Slot::Refused(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{Incarnation, Position, RegionId};

    fn entries(ledger: i64, ids: std::ops::Range<i64>) -> impl Iterator<Item = Pending> {
        ids.map(move |id| {
            let position = Position::new(ledger, id);
            let entry = LogEntry {
                position,
                index: 0,
                messages: 1,
                marker: false,
                broker_time_ms: 0,
                origin: (RegionId(1), Incarnation(1), position),
                payload: bytes::Bytes::new(),
            };
            Pending { entry, token: (ledger * 100 + id) as u64, born_here: true }
        })
    }

    fn trace(flight: &mut Flight) -> String {
        let mut lines = Vec::new();
        while let Some(answers) = flight.take() {
            for answer in answers {
                lines.push(match answer {
                    Answer::Confirmed(p) => format!("ok {:?}", p.iter().map(|p| p.token).collect::<Vec<_>>()),
                    Answer::Failed(tokens, error) => format!("failed {tokens:?} {error}"),
                    Answer::Settled(settled) => format!("settled {}", settled.ledger_id),
                });
            }
        }
        lines.join("; ")
    }

    #[test]
    fn golden_script() {
        let busy = LogError::Busy { bytes: 1, max_bytes: 1 };
        let mut f = Flight::default();
        assert!(f.claim() && !f.claim());
        f.push(entries(1, 0..3));
        f.refuse(vec![7, 8], busy.clone());
        f.push(entries(2, 0..2));
        // The later ledger is faster: nothing leaves (L1).
        f.confirm(LedgerId(2), EntryId(0));
        assert_eq!(trace(&mut f), "");
        f.confirm(LedgerId(1), EntryId(1));
        assert_eq!(trace(&mut f), "ok [100, 101]");
        f.confirm(LedgerId(1), EntryId(2));
        assert_eq!(trace(&mut f), "ok [102]; failed [7, 8] 1 bytes wait for storage, the limit is 1; ok [200]");
        f.confirm(LedgerId(2), EntryId(1));
        assert_eq!(trace(&mut f), "ok [201]");
        f.refuse(vec![9], busy);
        assert_eq!(trace(&mut f), "failed [9] 1 bytes wait for storage, the limit is 1");
        assert!(f.is_idle());
    }

    #[test]
    fn lost_entries_take_all_behind_them() {
        let mut f = Flight::default();
        f.push(entries(1, 0..3));
        f.push(entries(2, 0..2));
        assert!(f.has_after(LedgerId(1), EntryId(1)) && !f.has_after(LedgerId(1), EntryId(2)));
        assert!(f.waits_before(LedgerId(2)) && !f.waits_before(LedgerId(1)));
        assert_eq!(f.split_lost(LedgerId(1), EntryId(1)).len(), 3);
        f.confirm(LedgerId(1), EntryId(1));
        assert_eq!(trace(&mut f), "ok [100, 101]");
    }
}
