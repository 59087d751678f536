//! What must hold, at the moment it could break and at the end.

use crate::world::{Verdict, World, ensure};
use meridian_ledger::{LedgerRecord, LedgerState};
use meridian_types::EntryId;

impl World {
    /// S1 and "one confirming writer", at the moment of the news.
    pub(super) fn check_confirmed(&mut self, up_to: EntryId) -> Verdict {
        ensure(!self.writer.ended, || format!("{up_to} confirmed after the end"))?;
        ensure(up_to.0 > self.writer.confirmed, || format!("{up_to} after {}", self.writer.confirmed))?;
        for id in self.writer.confirmed + 1..=up_to.0 {
            let copies = self.copies(id);
            ensure(copies >= self.layout.ack_quorum(), || format!("{id} confirmed with {copies} copies"))?;
        }
        self.writer.confirmed = up_to.0;
        let record = &self.stored.0;
        ensure(record.state != LedgerState::Closed || up_to <= record.last_entry, || {
            format!("{up_to} confirmed after the ledger was closed at {}", record.last_entry)
        })
    }

    /// Members of the entry's write quorum, as metadata says, that hold it with its content.
    fn copies(&self, id: i64) -> u32 {
        let (ensemble, _) = self.stored.0.ensemble_of(EntryId(id));
        let holders = self.layout.write_set(EntryId(id));
        let holds = |slot: &usize| {
            let bookie = self.bookies.iter().find(|b| b.id == ensemble.bookies[*slot]);
            let content = bookie.and_then(|b| b.entries.get(&id));
            content.is_some_and(|(payload, _)| self.appended.get(&id) == Some(payload))
        };
        holders.iter().filter(holds).count() as u32
    }

    /// States never go back, and a close keeps what was confirmed.
    pub(super) fn check_transition(&self, new: &LedgerRecord) -> Verdict {
        let old = &self.stored.0;
        let forward = match old.state {
            LedgerState::Open => true,
            LedgerState::InRecovery => new.state != LedgerState::Open,
            LedgerState::Closed => false,
        };
        ensure(forward, || format!("{:?} became {:?}", old.state, new.state))?;
        let kept = new.state != LedgerState::Closed || new.last_entry.0 >= self.writer.confirmed;
        ensure(kept, || format!("closed at {}, but {} was confirmed", new.last_entry, self.writer.confirmed))
    }

    /// When all is over: one end, known by all, with every entry up to it on an ack quorum.
    pub(super) fn check_end(&self) -> Verdict {
        let record = &self.stored.0;
        ensure(record.state == LedgerState::Closed, || "not closed".to_owned())?;
        let last = record.last_entry.0;
        ensure(self.writer.confirmed <= last, || format!("{} confirmed, closed at {last}", self.writer.confirmed))?;
        for id in 0..=last {
            let copies = self.copies(id);
            ensure(copies >= self.layout.ack_quorum(), || format!("entry {id} of 0..={last} has {copies} copies"))?;
        }
        for bookie in &self.bookies {
            ensure(bookie.heard <= last, || format!("{} heard of {}, end is {last}", bookie.id, bookie.heard))?;
        }
        for found in self.recoveries.iter().filter_map(|r| r.result.as_ref()?.as_ref().ok()) {
            ensure(found.last_entry.0 == last, || format!("readers disagree: {} and {last}", found.last_entry))?;
        }
        let length: u64 = (0..=last).filter_map(|id| self.appended.get(&id)).map(|b| b.len() as u64).sum();
        ensure(record.length_bytes == length, || format!("length {} is {length}", record.length_bytes))?;
        ensure(!self.writer.closed || last == self.writer.confirmed, || "closed twice".to_owned())
    }

    /// For tests of the world itself: how much of the wild part did something.
    pub fn reached(&self) -> Reached {
        Reached {
            confirmed: self.writer.confirmed + 1,
            ensembles: self.stored.0.ensembles.len(),
            closed_by_writer: self.writer.closed,
            recovered: self.recoveries.iter().filter(|r| matches!(r.result, Some(Ok(_)))).count(),
        }
    }
}

/// See [`World::reached`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    pub confirmed: i64,
    pub ensembles: usize,
    pub closed_by_writer: bool,
    pub recovered: usize,
}
