//! What came from other regions: which positions of an origin are stored here.
//!
//! Role: one mark per origin (region and the topic's incarnation there). *Pushed* is the highest origin position handed to
//! storage, *persisted* the highest one that is stored, and everything before it that the origin sent is stored too or
//! was left out by the sender. A snapshot ([`OriginSnapshot`]) and a replay of the envelopes behind it give the same marks
//! again after a reload, because the origin stands in every stored entry.
//! Invariants:
//! - O1 persisted ≤ pushed; persisted only rises.
//! - O2 [`OriginVerdict::Duplicate`] only for positions up to *persisted*; what is only pushed is
//!   [`OriginVerdict::Unknown`].
//! - O3 the gate: after a position was refused (or one behind an open gate), nothing behind it is stored until it (or one before it that is not stored)
//!   comes again, so that no mark passes an entry that is not stored. A sender that is known to rewind on its own opens
//!   the gate by attaching anew; of others only one that sends nothing else for [`GIVE_UP_MS`] is believed to have given
//!   the refused entry up, and that is counted.
//! - O4 origins are bounded ([`ORIGINS_MAX`]): those that are longest idle go first.
//!
//! Failure: none; an origin that was forgotten is simply unknown.
//! Must never know: clocks, sinks, storage, names of regions.

mod link;
mod snapshot;

pub use link::{LinkIdentity, is_link};
pub use snapshot::{OriginMark, OriginSnapshot, OriginSnapshotError};

use meridian_types::{EntryId, Incarnation, Position, RegionId};
use std::collections::BTreeMap;

/// Origins remembered at most.
pub const ORIGINS_MAX: usize = 1024;
/// So long an attached sender has to send only what lies behind a refused entry, until that one is given up.
pub const GIVE_UP_MS: u64 = 10_000;

/// One life of the topic in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The region.
    pub region: RegionId,
    /// The topic's incarnation there; 0 = unknown.
    pub incarnation: Incarnation,
}

/// Where an entry was first stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Region and incarnation.
    pub source: Source,
    /// The position there.
    pub position: Position,
}

impl Origin {
    /// As logs have it.
    pub fn parts(&self) -> (RegionId, Incarnation, Position) {
        (self.source.region, self.source.incarnation, self.position)
    }
}

/// What to do with an entry of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginVerdict {
    /// Store it.
    Store,
    /// It is stored already.
    Duplicate,
    /// It was sent before and its fate is open.
    Unknown,
    /// O3: an entry before it was refused.
    Behind(Position),
}

#[derive(Debug, Clone)]
struct Mark {
    pushed: Position,
    persisted: Position,
    /// O3: the lowest one that is known not to be stored.
    failed: Option<Position>,
    /// O3: the lowest one that was sent again while its fate was open.
    open: Option<Position>,
    /// Since when only positions behind the gate come.
    behind_since_ms: Option<u64>,
    last_active_ms: u64,
    duplicates: u64,
    given_up: u64,
}

impl Mark {
    fn at(position: Position, last_active_ms: u64) -> Self {
        Self {
            pushed: position,
            persisted: position,
            failed: None,
            open: None,
            behind_since_ms: None,
            last_active_ms,
            duplicates: 0,
            given_up: 0,
        }
    }

    /// The entry that has to come before all behind it.
    fn gate(&self) -> Option<Position> {
        match (self.failed, self.open) {
            (Some(failed), Some(open)) => Some(failed.min(open)),
            (failed, open) => failed.or(open),
        }
    }

    fn open_gate(&mut self) {
        (self.failed, self.open, self.behind_since_ms) = (None, None, None);
    }
}

/// Figures of one origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginFigures {
    /// Highest position handed to storage.
    pub pushed: Position,
    /// Highest position stored.
    pub persisted: Position,
    /// The entry that the gate waits for.
    pub refused: Option<Position>,
    /// Entries answered as duplicates.
    pub duplicates: u64,
    /// Refused entries that the sender gave up.
    pub given_up: u64,
}

impl OriginFigures {
    /// Of an origin that nothing came from.
    pub const NONE: Self =
        Self { pushed: Position::EARLIEST, persisted: Position::EARLIEST, refused: None, duplicates: 0, given_up: 0 };
}

/// The marks of one topic.
#[derive(Debug)]
pub struct OriginMarks {
    marks: BTreeMap<Source, Mark>,
    confirmed_since_snapshot: u64,
    snapshot_ms: u64,
}

fn before(position: Position) -> Position {
    Position { ledger_id: position.ledger_id, entry_id: EntryId(position.entry_id.0.saturating_sub(1)) }
}

impl OriginMarks {
    /// No marks.
    pub fn new(now_ms: u64) -> Self {
        Self { marks: BTreeMap::new(), confirmed_since_snapshot: 0, snapshot_ms: now_ms }
    }

    /// The marks of a snapshot, to be brought up to date by [`OriginMarks::replayed`].
    pub fn restore(snapshot: &OriginSnapshot, now_ms: u64) -> Self {
        let mut marks = Self::new(now_ms);
        for saved in &snapshot.marks {
            marks.marks.insert(saved.source, Mark::at(saved.persisted, saved.last_active_ms));
        }
        marks
    }

    /// An entry found in the log.
    pub fn replayed(&mut self, origin: &Origin, stored_ms: u64) {
        let mark = self.mark(origin.source, stored_ms);
        mark.persisted = mark.persisted.max(origin.position);
        mark.pushed = mark.pushed.max(mark.persisted);
        self.confirmed_since_snapshot += 1;
        self.bound();
    }

    /// A sender attaches. `rewinds` = it begins with its first entry that has no receipt, whatever was refused before.
    pub fn open(&mut self, source: Source, rewinds: bool, now_ms: u64) {
        let mark = self.mark(source, now_ms);
        mark.behind_since_ms = None;
        if rewinds {
            mark.open_gate();
        }
        self.bound();
    }

    /// Decides on an entry, and counts it as pushed if it is to be stored.
    pub fn decide(&mut self, origin: &Origin, now_ms: u64) -> OriginVerdict {
        let mark = self.mark(origin.source, now_ms);
        let position = origin.position;
        if position <= mark.persisted {
            mark.duplicates += 1;
            return OriginVerdict::Duplicate;
        }
        if let Some(gate) = mark.gate().filter(|gate| position > *gate) {
            let since_ms = *mark.behind_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) < GIVE_UP_MS {
                if position > mark.pushed {
                    // When the one in front is stored, what is behind this one must not pass it.
                    mark.failed = Some(mark.failed.map_or(position, |failed| failed.min(position)));
                }
                return OriginVerdict::Behind(gate);
            }
            mark.given_up += 1;
            mark.open_gate();
        }
        if position <= mark.pushed {
            mark.open = Some(mark.open.map_or(position, |open| open.min(position)));
            return OriginVerdict::Unknown;
        }
        mark.open_gate();
        mark.pushed = position;
        OriginVerdict::Store
    }

    /// Whether an entry is known to be stored.
    pub fn is_stored(&self, origin: &Origin) -> bool {
        self.marks.get(&origin.source).is_some_and(|mark| origin.position <= mark.persisted)
    }

    /// Storage confirmed an entry, or it is known by another name and everything sent before it is answered.
    pub fn confirm(&mut self, origin: &Origin) {
        let Some(mark) = self.marks.get_mut(&origin.source) else { return };
        if mark.failed.is_none_or(|failed| failed > origin.position) {
            mark.persisted = mark.persisted.max(origin.position);
            mark.pushed = mark.pushed.max(mark.persisted);
            mark.open = mark.open.filter(|open| *open > mark.persisted);
        }
    }

    /// An entry is refused before storage is asked; an earlier copy of it may be on its way there.
    pub fn turn_away(&mut self, origin: &Origin) {
        let mark = self.marks.entry(origin.source).or_insert_with(|| Mark::at(Position::EARLIEST, 0));
        if origin.position > mark.pushed {
            self.refuse(origin);
        } else if origin.position > mark.persisted {
            mark.open = Some(mark.open.map_or(origin.position, |open| open.min(origin.position)));
        }
    }

    /// An entry was refused, or storage has not taken it: the gate is shut behind it (O3).
    pub fn refuse(&mut self, origin: &Origin) {
        let mark = self.marks.entry(origin.source).or_insert_with(|| Mark::at(Position::EARLIEST, 0));
        if origin.position <= mark.persisted {
            return;
        }
        // What is in flight before it stays pushed.
        mark.pushed = mark.pushed.min(before(origin.position)).max(mark.persisted);
        mark.failed = Some(mark.failed.map_or(origin.position, |failed| failed.min(origin.position)));
    }

    /// Entries of whatever origin were confirmed, for the pace of snapshots.
    pub fn note_confirmed(&mut self, entries: u64) {
        self.confirmed_since_snapshot += entries;
    }

    /// Whether a snapshot is due: after so many entries, or after so long if there were any.
    pub fn snapshot_due(&self, now_ms: u64, every_entries: u64, every_ms: u64) -> bool {
        self.confirmed_since_snapshot >= every_entries.max(1)
            || (self.confirmed_since_snapshot > 0 && now_ms.saturating_sub(self.snapshot_ms) >= every_ms)
    }

    /// The persisted marks; `covered` is the last entry that was confirmed to this object.
    pub fn snapshot(&mut self, covered: Position, now_ms: u64) -> OriginSnapshot {
        self.confirmed_since_snapshot = 0;
        self.snapshot_ms = now_ms;
        let known = |(_, mark): &(&Source, &Mark)| mark.persisted > Position::EARLIEST;
        let saved = |(source, mark): (&Source, &Mark)| OriginMark {
            source: *source,
            persisted: mark.persisted,
            last_active_ms: mark.last_active_ms,
        };
        OriginSnapshot { covered, taken_ms: now_ms, marks: self.marks.iter().filter(known).map(saved).collect() }
    }

    /// Figures of one origin.
    pub fn figures(&self, source: Source) -> Option<OriginFigures> {
        self.marks.get(&source).map(figures)
    }

    /// Figures of all origins.
    pub fn all(&self) -> impl Iterator<Item = (Source, OriginFigures)> {
        self.marks.iter().map(|(source, mark)| (*source, figures(mark)))
    }

    fn mark(&mut self, source: Source, now_ms: u64) -> &mut Mark {
        let mark = self.marks.entry(source).or_insert_with(|| Mark::at(Position::EARLIEST, now_ms));
        mark.last_active_ms = mark.last_active_ms.max(now_ms);
        mark
    }

    /// O4.
    fn bound(&mut self) {
        while self.marks.len() > ORIGINS_MAX {
            let oldest = self.marks.iter().min_by_key(|(_, mark)| mark.last_active_ms).map(|(source, _)| *source);
            let Some(oldest) = oldest else { return };
            self.marks.remove(&oldest);
        }
    }
}

fn figures(mark: &Mark) -> OriginFigures {
    OriginFigures {
        pushed: mark.pushed,
        persisted: mark.persisted,
        refused: mark.gate(),
        duplicates: mark.duplicates,
        given_up: mark.given_up,
    }
}

#[cfg(test)]
mod tests;
