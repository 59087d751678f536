//! The re-replication of one ledger as a pure machine (S7): events and time in, effects out.
//!
//! Invariants:
//! - P1 the last ensemble of a ledger that is not closed is never touched: its writer, or a recovery, decides there.
//! - P2 an ensemble changes in metadata only after the new members have answered, as durable, every entry that they have
//!   to hold. Readers look at the old one until then.
//! - P3 only what matches its digest is copied; damage counts as missing.
//! - P4 the change is a compare-and-set on the record that the copying began from. A record that was changed meanwhile is
//!   read again; what was copied is kept if the ensemble is still as it was.
//! - P5 at most [`ReplicateSettings::runs_in_flight`] runs of [`ReplicateSettings::batch_entries`] are on their way.
//! - P6 a copy tells the last-add-confirmed that was stored with the entry, never more: a recovery that hears of it
//!   learns nothing that was not known.
//!
//! Failure: an entry without a good copy ends it as [`LedgerError::Corrupt`] and metadata stays as it is (a lost bookie
//! may come back with it); everything else may be repeated from the beginning.
//! Must never know: clocks, sockets, why a bookie leaves.

use super::run::{Next, Run};
use crate::api::LedgerError;
use crate::layout::{Layout, SlotSet};
use crate::record::{LedgerRecord, LedgerState, Stored};
use crate::writer::words::Change;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, ReadEntry, ReadRequest};
use meridian_metadata::Version;
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};

/// What is to be done for a ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Bookies that must not be members any more. They are asked last: they may still have something.
    pub leaving: BTreeSet<BookieId>,
    /// Members that stay and lack copies: they get all that they have to hold again.
    pub refill: BTreeSet<BookieId>,
    /// Finished ensembles that do not keep the placement's rule get other members, where that is enough to keep it.
    pub mend: bool,
}

/// Times and bounds.
#[derive(Debug, Clone, Copy)]
pub struct ReplicateSettings {
    /// Entries asked for at once.
    pub batch_entries: u32,
    /// Bytes asked for at once.
    pub batch_bytes: u64,
    /// Runs on their way at once.
    pub runs_in_flight: usize,
    /// Pause before a holder or a busy target is asked again.
    pub retry_ms: u64,
    /// Without any progress for so long it ends.
    pub patience_ms: u64,
    /// Where the order of holders begins, so that ledgers do not all read from the same one.
    pub salt: u64,
}

impl Default for ReplicateSettings {
    fn default() -> Self {
        Self {
            batch_entries: 256,
            batch_bytes: 1 << 20,
            runs_in_flight: 4,
            retry_ms: 200,
            patience_ms: 30_000,
            salt: 0,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replicated {
    /// Copies made.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Ensembles changed in metadata.
    pub ensembles: u32,
    /// Those of them that were changed for the placement's rule.
    pub mended: u32,
    /// The last ensemble of a ledger that is not closed still has a member that leaves (P1).
    pub left_open: bool,
    /// There is a bookie that could take the place of that member: closing the ledger would help.
    pub can_replace: bool,
}

/// What the shell has to do.
#[derive(Debug, Clone)]
pub enum ReplicateEffect {
    /// Read the record; answered by [`ReplicateMachine::loaded`].
    Load,
    /// Choose replacements; answered by [`ReplicateMachine::chosen`].
    Choose(Change),
    /// Choose members so that the placement's rule is kept; answered by [`ReplicateMachine::mendable`].
    Mend {
        /// How the ledger is laid out.
        layout: Layout,
        /// The ensemble as it is.
        ensemble: Vec<BookieId>,
    },
    /// Read from a member; answered by [`ReplicateMachine::answered`].
    Read {
        /// Of the machine.
        run: u64,
        /// Its index.
        slot: usize,
        /// Its id.
        bookie: BookieId,
        /// What.
        request: ReadRequest,
    },
    /// Send copies; answered by [`ReplicateMachine::added`].
    Send {
        /// To whom.
        bookie: BookieId,
        /// The adds.
        entries: Vec<AddEntry>,
    },
    /// Compare-and-set the record; answered by [`ReplicateMachine::stored`].
    Store {
        /// The record that has the version.
        before: LedgerRecord,
        /// The new record.
        record: LedgerRecord,
        /// The version that must still be there.
        version: Version,
    },
    /// It is over.
    Done(Result<Replicated, LedgerError>),
}

/// An ensemble that is being mended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    first: EntryId,
    /// The first entry that is no longer its.
    end: i64,
    old: Vec<BookieId>,
    new: Vec<BookieId>,
    /// Members that get copies.
    targets: SlotSet,
    /// Its members stay but for the placement's rule.
    mends: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Choosing,
    /// Asks whether other members would keep the placement's rule.
    Mending,
    /// Asks whether there is a replacement in an ensemble that must not be touched.
    Asking,
    Copying,
    Storing,
    Done,
}

/// See the head of this file.
#[derive(Debug)]
pub struct ReplicateMachine {
    ledger_id: LedgerId,
    work: Work,
    settings: ReplicateSettings,
    phase: Phase,
    record: Option<(LedgerRecord, Version)>,
    segment: Option<Segment>,
    /// Copied, but not yet in metadata.
    copied: Option<Segment>,
    /// Ensembles whose members were refilled.
    refilled: BTreeSet<i64>,
    /// Ensembles whose placement was looked at.
    placed: BTreeSet<i64>,
    runs: BTreeMap<u64, Run>,
    next_run: u64,
    next_entry: i64,
    progress_ms: u64,
    retry_at_ms: Option<u64>,
    metadata_error: Option<LedgerError>,
    report: Replicated,
    effects: Vec<ReplicateEffect>,
}

impl ReplicateMachine {
    /// Begins by reading the record.
    pub fn new(ledger_id: LedgerId, work: Work, settings: ReplicateSettings, now_ms: u64) -> Self {
        Self {
            ledger_id,
            work,
            settings,
            phase: Phase::Loading,
            record: None,
            segment: None,
            copied: None,
            refilled: BTreeSet::new(),
            placed: BTreeSet::new(),
            runs: BTreeMap::new(),
            next_run: 0,
            next_entry: 0,
            progress_ms: now_ms,
            retry_at_ms: None,
            metadata_error: None,
            report: Replicated::default(),
            effects: vec![ReplicateEffect::Load],
        }
    }

    /// What there is to do, in order.
    pub fn take_effects(&mut self) -> Vec<ReplicateEffect> {
        std::mem::take(&mut self.effects)
    }

    fn done(&mut self, result: Result<Replicated, LedgerError>) {
        self.phase = Phase::Done;
        self.runs.clear();
        self.effects.retain(|effect| !matches!(effect, ReplicateEffect::Read { .. } | ReplicateEffect::Send { .. }));
        self.effects.push(ReplicateEffect::Done(result));
    }

    /// The record as read.
    pub fn loaded(&mut self, now_ms: u64, result: Result<(LedgerRecord, Version), LedgerError>) {
        if self.phase != Phase::Loading {
            return;
        }
        match result {
            Ok(found) => {
                self.progress_ms = now_ms;
                self.metadata_error = None;
                self.record = Some(found);
                self.begin_segment(now_ms);
            }
            Err(error @ LedgerError::NoSuchLedger(_)) => self.done(Err(error)),
            Err(error) => {
                self.metadata_error = Some(error);
                self.retry_at_ms = Some(now_ms + self.settings.retry_ms);
            }
        }
    }

    /// The next ensemble that can be mended, or the end.
    fn begin_segment(&mut self, now_ms: u64) {
        let Some((record, _)) = &self.record else { return };
        let closed = record.state == LedgerState::Closed;
        let last = record.ensembles.len() - 1;
        for (at, ensemble) in record.ensembles.iter().enumerate() {
            let gone = self.slots(&ensemble.bookies, &self.work.leaving);
            if at == last && !closed {
                self.report.left_open = !gone.is_empty();
                break;
            }
            let refill = match self.refilled.contains(&ensemble.first.0) {
                true => SlotSet::EMPTY,
                false => self.slots(&ensemble.bookies, &self.work.refill),
            };
            let end = record.ensembles.get(at + 1).map_or(record.last_entry.0 + 1, |next| next.first.0);
            let (first, old) = (ensemble.first, ensemble.bookies.clone());
            let is_copied = |c: &mut Segment| c.first == first && c.end == end && c.old == old;
            if let Some(copied) = self.copied.take_if(is_copied) {
                self.segment = Some(copied);
                return self.store();
            }
            let mends = gone.is_empty() && refill.is_empty();
            if mends && !(self.work.mend && self.placed.insert(first.0)) {
                continue;
            }
            let (layout, targets) = (record.layout, refill.without(gone));
            self.segment = Some(Segment { first, end, new: old.clone(), old: old.clone(), targets, mends });
            if mends {
                self.phase = Phase::Mending;
                return self.effects.push(ReplicateEffect::Mend { layout, ensemble: old });
            }
            return if gone.is_empty() { self.begin_copying(now_ms) } else { self.choose(Phase::Choosing, at, gone) };
        }
        self.segment = None;
        if self.report.left_open {
            let gone = self.slots(&record.last_ensemble().bookies, &self.work.leaving);
            return self.choose(Phase::Asking, last, gone);
        }
        self.done(Ok(self.report));
    }

    fn slots(&self, members: &[BookieId], of: &BTreeSet<BookieId>) -> SlotSet {
        let mut set = SlotSet::EMPTY;
        members.iter().enumerate().filter(|(_, id)| of.contains(*id)).for_each(|(slot, _)| set.insert(slot));
        set
    }

    fn choose(&mut self, phase: Phase, at: usize, failed: SlotSet) {
        let Some((record, _)) = &self.record else { return };
        let ensemble = &record.ensembles[at];
        self.phase = phase;
        self.effects.push(ReplicateEffect::Choose(Change {
            first: ensemble.first,
            layout: record.layout,
            ensemble: ensemble.bookies.clone(),
            failed,
        }));
    }

    /// The choice: the new ensemble, or how many bookies could be written to.
    pub fn chosen(&mut self, now_ms: u64, choice: Result<Vec<BookieId>, u32>) {
        match (self.phase, choice) {
            (Phase::Asking, choice) => {
                self.report.can_replace = choice.is_ok();
                self.done(Ok(self.report));
            }
            (Phase::Choosing, Ok(ensemble)) => self.take_members(now_ms, ensemble),
            (Phase::Choosing, Err(available)) => {
                let needed = self.record.as_ref().map_or(0, |(record, _)| record.layout.ensemble_size());
                self.done(Err(LedgerError::NotEnoughBookies { needed, available }));
            }
            _ => {}
        }
    }

    /// The members that keep the placement's rule; `None` = it is kept, or can't be now.
    pub fn mendable(&mut self, now_ms: u64, ensemble: Option<Vec<BookieId>>) {
        match (self.phase, ensemble) {
            (Phase::Mending, Some(ensemble)) => self.take_members(now_ms, ensemble),
            (Phase::Mending, None) => self.begin_segment(now_ms),
            _ => {}
        }
    }

    fn take_members(&mut self, now_ms: u64, ensemble: Vec<BookieId>) {
        let Some(segment) = &mut self.segment else { return };
        for (slot, (new, old)) in ensemble.iter().zip(&segment.old).enumerate() {
            if new != old {
                segment.targets.insert(slot);
            }
        }
        segment.new = ensemble;
        self.begin_copying(now_ms);
    }

    fn begin_copying(&mut self, now_ms: u64) {
        let Some(segment) = &self.segment else { return };
        self.phase = Phase::Copying;
        self.next_entry = segment.first.0;
        self.progress_ms = now_ms;
        self.pump(now_ms);
    }

    /// Begins runs and reads as far as the bounds allow (P5); goes on when all is copied.
    fn pump(&mut self, now_ms: u64) {
        if self.phase != Phase::Copying {
            return;
        }
        let (Some((record, _)), Some(segment)) = (&self.record, &self.segment) else { return };
        while self.runs.len() < self.settings.runs_in_flight.max(1) && self.next_entry < segment.end {
            let end = segment.end.min(self.next_entry + i64::from(self.settings.batch_entries.max(1)));
            let run = Run::new(self.ledger_id, record.layout, segment.targets, self.next_entry, end);
            self.runs.insert(self.next_run, run);
            self.next_run += 1;
            self.next_entry = end;
        }
        let ids: Vec<u64> = self.runs.keys().copied().collect();
        let mut finished = false;
        for id in ids {
            let order = self.order(id);
            let Some(run) = self.runs.get_mut(&id) else { continue };
            match run.next(&order) {
                Next::Wait => {}
                Next::Ask { slot, first, max_entries } => self.ask(id, slot, first, max_entries),
                Next::Rest => {
                    run.resting = true;
                    self.retry_at_ms.get_or_insert(now_ms + self.settings.retry_ms);
                }
                Next::Lost(entry_id) => {
                    let (ledger_id, reason) = (self.ledger_id, run.said());
                    return self.done(Err(LedgerError::Corrupt { ledger_id, entry_id, reason }));
                }
                Next::Finished => finished |= self.runs.remove(&id).is_some(),
            }
        }
        let segment_end = self.segment.as_ref().map_or(0, |segment| segment.end);
        if self.next_entry < segment_end && finished {
            // There is room for the next run.
            self.pump(now_ms);
        } else if self.runs.is_empty() {
            self.copied_all(now_ms);
        }
    }

    /// Holders in the order in which this run asks them: those that stay before those that leave, each run from
    /// another one on.
    fn order(&self, run: u64) -> Vec<usize> {
        let Some(segment) = &self.segment else { return Vec::new() };
        let size = segment.old.len();
        let start = (self.settings.salt.wrapping_add(run) % size as u64) as usize;
        let mut order: Vec<usize> = (0..size).map(|step| (start + step) % size).collect();
        // A member that is refilled can't be its own source.
        order.retain(|slot| !(segment.targets.has(*slot) && segment.old[*slot] == segment.new[*slot]));
        order.sort_by_key(|slot| self.work.leaving.contains(&segment.old[*slot]));
        order
    }

    fn ask(&mut self, run: u64, slot: usize, first: EntryId, max_entries: u32) {
        let (Some((record, _)), Some(segment)) = (&self.record, &self.segment) else { return };
        let request = ReadRequest {
            ledger_id: self.ledger_id,
            first_entry_id: first,
            max_entries,
            max_bytes: self.settings.batch_bytes,
            gaps_allowed: record.layout.is_striped(),
            fence: false,
        };
        let bookie = segment.old[slot].clone();
        self.effects.push(ReplicateEffect::Read { run, slot, bookie, request });
    }

    /// A holder's answer.
    pub fn answered(&mut self, now_ms: u64, run: u64, slot: usize, result: Result<Vec<ReadEntry>, BookieError>) {
        if self.phase != Phase::Copying {
            return;
        }
        let adds = self.runs.get_mut(&run).map(|run| run.answered(slot, result)).unwrap_or_default();
        if !adds.is_empty() {
            self.progress_ms = now_ms;
        }
        self.send(adds);
        self.pump(now_ms);
    }

    fn send(&mut self, adds: BTreeMap<usize, Vec<AddEntry>>) {
        let Some(segment) = &self.segment else { return };
        for (slot, entries) in adds {
            self.effects.push(ReplicateEffect::Send { bookie: segment.new[slot].clone(), entries });
        }
    }

    /// A target's answers.
    pub fn added(&mut self, now_ms: u64, bookie: &BookieId, results: Vec<AddResult>) {
        let Some(segment) = self.segment.as_ref().filter(|_| self.phase == Phase::Copying) else { return };
        let Some(target) = segment.targets.iter().find(|slot| segment.new[*slot] == *bookie) else { return };
        for answer in results {
            match answer.result {
                Ok(()) => {
                    let bytes = self.runs.values_mut().find_map(|run| run.has(target, answer.entry_id));
                    if let Some(bytes) = bytes {
                        self.progress_ms = now_ms;
                        self.report.copies += 1;
                        self.report.bytes += bytes;
                    }
                }
                Err(BookieError::Busy(_)) => {
                    self.runs.values_mut().for_each(|run| run.refused(target, answer.entry_id));
                    self.retry_at_ms.get_or_insert(now_ms + self.settings.retry_ms);
                }
                Err(error) => return self.done(Err(LedgerError::Bookie(error))),
            }
        }
        self.pump(now_ms);
    }

    fn copied_all(&mut self, now_ms: u64) {
        let Some(segment) = &self.segment else { return };
        if segment.new == segment.old {
            self.refilled.insert(segment.first.0);
            return self.begin_segment(now_ms);
        }
        self.copied = Some(segment.clone());
        self.store();
    }

    /// P4.
    fn store(&mut self) {
        let (Some((record, version)), Some(segment)) = (&self.record, &self.segment) else { return };
        let mut changed = record.clone();
        let Some(ensemble) = changed.ensembles.iter_mut().find(|e| e.first == segment.first) else { return };
        ensemble.bookies = segment.new.clone();
        self.phase = Phase::Storing;
        self.copied = Some(segment.clone());
        let (before, version) = (record.clone(), *version);
        self.effects.push(ReplicateEffect::Store { before, record: changed, version });
    }

    /// What a store came to.
    pub fn stored(&mut self, now_ms: u64, outcome: Stored) {
        if self.phase != Phase::Storing {
            return;
        }
        match outcome {
            Stored::Done(version) => {
                let (Some((record, known)), Some(segment)) = (&mut self.record, self.segment.take()) else { return };
                self.report.mended += u32::from(segment.mends);
                if let Some(ensemble) = record.ensembles.iter_mut().find(|e| e.first == segment.first) {
                    ensemble.bookies = segment.new;
                }
                *known = version;
                self.copied = None;
                self.progress_ms = now_ms;
                self.report.ensembles += 1;
                self.refilled.insert(segment.first.0);
                // What could not be replaced now is another attempt's.
                let again = self.slots_left(segment.first);
                if again { self.done(Ok(self.report)) } else { self.begin_segment(now_ms) }
            }
            Stored::Changed => self.load(None, now_ms),
            Stored::Unknown(error) => self.load(Some(error.into()), now_ms),
            Stored::Failed(error) => self.done(Err(LedgerError::Metadata(error))),
        }
    }

    /// Whether members that leave are still in an ensemble that was just changed.
    fn slots_left(&self, first: EntryId) -> bool {
        let Some((record, _)) = &self.record else { return false };
        let ensemble = record.ensembles.iter().find(|e| e.first == first);
        ensemble.is_some_and(|e| !self.slots(&e.bookies, &self.work.leaving).is_empty())
    }

    fn load(&mut self, error: Option<LedgerError>, now_ms: u64) {
        self.phase = Phase::Loading;
        match error {
            None => self.effects.push(ReplicateEffect::Load),
            Some(error) => {
                self.metadata_error = Some(error);
                self.retry_at_ms = Some(now_ms + self.settings.retry_ms);
            }
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        if self.phase == Phase::Done {
            return;
        }
        if now_ms >= self.progress_ms + self.settings.patience_ms {
            let error = self.metadata_error.take().unwrap_or_else(|| self.no_progress());
            return self.done(Err(error));
        }
        if self.retry_at_ms.is_none_or(|at| at > now_ms) {
            return;
        }
        self.retry_at_ms = None;
        match self.phase {
            Phase::Loading => self.effects.push(ReplicateEffect::Load),
            Phase::Copying => {
                let mut again = Vec::new();
                for run in self.runs.values_mut() {
                    again.push(run.again());
                    if run.resting {
                        run.begin_round();
                    }
                }
                again.into_iter().for_each(|adds| self.send(adds));
                self.pump(now_ms);
            }
            _ => {}
        }
    }

    fn no_progress(&self) -> LedgerError {
        let said: Vec<String> = self.runs.values().map(Run::said).filter(|said| !said.is_empty()).collect();
        let reason = format!("re-replication made no progress ({:?}) {}", self.phase, said.join("; "));
        LedgerError::QuorumUnavailable { ledger_id: self.ledger_id, reason }
    }
}
