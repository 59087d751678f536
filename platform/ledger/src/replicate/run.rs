//! A run of entries that is being copied: which are wanted, who was asked, which copies are not yet durable.
//!
//! Invariants: N1 an entry is asked of one holder at a time, and of each at most once a round; N2 a copy stays here
//! until every target has answered it; N3 what is read is checked against its digest.
//! Must never know: clocks, sockets, other runs.

use crate::layout::{Layout, SlotSet};
use meridian_bookie_api::entry::digest_of;
use meridian_bookie_api::{AddEntry, BookieError, EntryBytes, ReadEntry};
use meridian_types::{EntryId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// A copy on its way.
#[derive(Debug)]
struct Copy {
    add: AddEntry,
    /// Targets that have not answered.
    left: SlotSet,
    /// Targets that were too busy.
    refused: SlotSet,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Run {
    ledger_id: LedgerId,
    layout: Layout,
    end: i64,
    targets: SlotSet,
    wanted: BTreeSet<i64>,
    copies: BTreeMap<i64, Copy>,
    /// For the first entry that is wanted: who was asked in this round, and what they said.
    tried: SlotSet,
    said: Vec<(usize, BookieError)>,
    asked: Option<usize>,
    /// Waits before a new round.
    pub(super) resting: bool,
}

/// What to do for a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: answers are awaited.
    Wait,
    /// Ask this member for so many entries from here on.
    Ask { slot: usize, first: EntryId, max_entries: u32 },
    /// Every holder was asked; some may have it another time.
    Rest,
    /// Every holder said that it has no good copy of this entry.
    Lost(EntryId),
    /// Every copy is durable.
    Finished,
}

impl Run {
    /// The entries of `first..end` that the targets have to hold.
    pub(super) fn new(ledger_id: LedgerId, layout: Layout, targets: SlotSet, first: i64, end: i64) -> Self {
        let wanted = (first..end).filter(|id| !layout.write_set(EntryId(*id)).and(targets).is_empty()).collect();
        Self {
            ledger_id,
            layout,
            end,
            targets,
            wanted,
            copies: BTreeMap::new(),
            tried: SlotSet::EMPTY,
            said: Vec::new(),
            asked: None,
            resting: false,
        }
    }

    /// The next step. `order` are the members that may be asked, in order.
    pub(super) fn next(&mut self, order: &[usize]) -> Next {
        let Some(first) = self.wanted.first().copied() else {
            return if self.copies.is_empty() { Next::Finished } else { Next::Wait };
        };
        if self.asked.is_some() || self.resting {
            return Next::Wait;
        }
        let holders = self.layout.write_set(EntryId(first));
        let untried = order.iter().copied().find(|slot| holders.has(*slot) && !self.tried.has(*slot));
        if let Some(slot) = untried {
            self.asked = Some(slot);
            let max_entries = u32::try_from(self.end - first).unwrap_or(u32::MAX);
            return Next::Ask { slot, first: EntryId(first), max_entries };
        }
        let lasting = |error: &BookieError| {
            matches!(error, BookieError::NoSuchEntry | BookieError::NoSuchLedger | BookieError::Corrupt(_))
        };
        if self.said.iter().all(|(_, error)| lasting(error)) { Next::Lost(EntryId(first)) } else { Next::Rest }
    }

    /// What the holders of the first entry that is wanted said.
    pub(super) fn said(&self) -> String {
        self.said.iter().map(|(slot, error)| format!("member {slot}: {error}")).collect::<Vec<_>>().join("; ")
    }

    /// A new round: everybody may be asked again.
    pub(super) fn begin_round(&mut self) {
        self.resting = false;
        self.tried = SlotSet::EMPTY;
        self.said.clear();
    }

    /// A member's answer. Answers the adds to send by target.
    pub(super) fn answered(
        &mut self,
        slot: usize,
        result: Result<Vec<ReadEntry>, BookieError>,
    ) -> BTreeMap<usize, Vec<AddEntry>> {
        if self.asked != Some(slot) {
            return BTreeMap::new();
        }
        self.asked = None;
        let first = self.wanted.first().copied();
        let mut adds: BTreeMap<usize, Vec<AddEntry>> = BTreeMap::new();
        let mut refusal = BookieError::NoSuchEntry;
        match result {
            Ok(entries) => {
                for entry in entries {
                    if digest_of(self.ledger_id, entry.entry_id, &entry.payload) != entry.digest {
                        refusal = BookieError::Corrupt(format!("entry {}", entry.entry_id));
                        break;
                    }
                    self.take(entry, &mut adds);
                }
            }
            Err(error) => refusal = error,
        }
        if self.wanted.first().copied() == first {
            self.tried.insert(slot);
            self.said.push((slot, refusal));
        } else {
            // Another entry is the first now: everybody may have it, but for who has just been found without it.
            self.begin_round();
        }
        adds
    }

    fn take(&mut self, entry: ReadEntry, adds: &mut BTreeMap<usize, Vec<AddEntry>>) {
        if !self.wanted.remove(&entry.entry_id.0) {
            return;
        }
        let left = self.layout.write_set(entry.entry_id).and(self.targets);
        let add = AddEntry {
            ledger_id: self.ledger_id,
            entry_id: entry.entry_id,
            last_add_confirmed: entry.last_add_confirmed,
            digest: entry.digest,
            recovery: true,
            entry: EntryBytes::plain(entry.payload),
        };
        for target in left.iter() {
            adds.entry(target).or_default().push(add.clone());
        }
        self.copies.insert(entry.entry_id.0, Copy { add, left, refused: SlotSet::EMPTY });
    }

    /// A target has an entry; answers its bytes if it was waited for.
    pub(super) fn has(&mut self, target: usize, entry: EntryId) -> Option<u64> {
        let copy = self.copies.get_mut(&entry.0)?;
        if !copy.left.has(target) {
            return None;
        }
        copy.left.remove_all(SlotSet::one(target));
        copy.refused.remove_all(SlotSet::one(target));
        let bytes = copy.add.entry.len() as u64;
        if copy.left.is_empty() {
            self.copies.remove(&entry.0);
        }
        Some(bytes)
    }

    /// A target was too busy for an entry.
    pub(super) fn refused(&mut self, target: usize, entry: EntryId) {
        if let Some(copy) = self.copies.get_mut(&entry.0).filter(|copy| copy.left.has(target)) {
            copy.refused.insert(target);
        }
    }

    /// What busy targets have to be sent again.
    pub(super) fn again(&mut self) -> BTreeMap<usize, Vec<AddEntry>> {
        let mut adds: BTreeMap<usize, Vec<AddEntry>> = BTreeMap::new();
        for copy in self.copies.values_mut() {
            for target in copy.refused.iter() {
                adds.entry(target).or_default().push(copy.add.clone());
            }
            copy.refused = SlotSet::EMPTY;
        }
        adds
    }
}
