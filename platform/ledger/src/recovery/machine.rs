//! The recovery of one ledger as a pure machine (S4): events and time in, effects out.
//!
//! Invariants:
//! - V1 (S4a) nothing is fenced or read before IN_RECOVERY is in metadata: from then on no ensemble change of the old
//!   writer can succeed.
//! - V2 (S4b) reading begins when Qw − Qa + 1 members of every write quorum of the last ensemble are fenced.
//! - V3 (S4c) it begins after max(last-add-confirmed heard, first entry of the last ensemble − 1), and every read
//!   fences too: a member that says "not here" will never take that entry from the old writer.
//! - V4 (S4d) the end is where Qw − Qa + 1 members of the write quorum *said* "no such entry" in answer to a question
//!   for exactly that entry. Errors, damage and silence are no answers; such members are asked again.
//! - V5 (S4e) entries found are written back to a full write quorum (members without replacement left out, never fewer
//!   than Qa) before the close. They are looked for in the ensemble as it was, also after members were replaced.
//! - V6 (S4f) the close is one compare-and-set on the record that this recovery marked; whoever loses it takes what is
//!   there. Two recoveries may run at once: one closes, both answer the same.
//!
//! Failure: until the deadline everything is tried again; then the reason says what was waited for. A recovery can be
//! begun again at any time.
//! Must never know: clocks, sockets, what an entry means.

use crate::api::LedgerError;
use crate::layout::SlotSet;
use crate::record::{LedgerRecord, LedgerState, Stored};
use crate::writer::machine::{Pending, WriterMachine};
use crate::writer::words::{Change, ChangeRefusal, Mode, WriterEffect, WriterTimes};
use meridian_bookie_api::{AddEntry, AddResult, BookieError, EntryBytes, FenceState, ReadEntry, ReadRequest};
use meridian_metadata::Version;
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::BTreeMap;

/// Times and bounds of a recovery.
#[derive(Debug, Clone, Copy)]
pub struct RecoverySettings {
    /// Of the rewriting.
    pub times: WriterTimes,
    /// Pause before something that failed is tried again.
    pub retry_ms: u64,
    /// When to give up.
    pub deadline_ms: u64,
    /// Entries asked for at once.
    pub batch_entries: u32,
    /// Bytes asked for at once, and found entries in flight at most.
    pub batch_bytes: u64,
}

/// What the shell has to do. `round` goes back with the answer.
#[derive(Debug, Clone)]
pub enum RecoveryEffect {
    /// Read the record; answered by [`RecoveryMachine::loaded`].
    Load,
    /// Compare-and-set the record; answered by [`RecoveryMachine::stored`].
    Store {
        /// The new record.
        record: LedgerRecord,
        /// The version that must still be there.
        version: Version,
    },
    /// Fence a member; answered by [`RecoveryMachine::fenced`].
    Fence {
        /// Of the machine.
        round: u64,
        /// Its index.
        slot: usize,
        /// Its id.
        bookie: BookieId,
    },
    /// Read from a member; answered by [`RecoveryMachine::answered`]. The shell has checked the digests.
    Read {
        /// Of the machine.
        round: u64,
        /// Its index.
        slot: usize,
        /// Its id.
        bookie: BookieId,
        /// What.
        request: ReadRequest,
    },
    /// Send rewrites; answered by [`RecoveryMachine::added`].
    Send {
        /// To whom.
        bookie: BookieId,
        /// The adds.
        entries: Vec<AddEntry>,
    },
    /// Choose replacements; answered by [`RecoveryMachine::replaced`].
    Replace(Change),
    /// Tell the bytes of the entries up to this one; answered by [`RecoveryMachine::measured`].
    Measure {
        /// Where they are.
        record: LedgerRecord,
        /// The last one.
        up_to: EntryId,
    },
    /// It is over.
    Done(Result<LedgerRecord, LedgerError>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Marking,
    Fencing,
    Reading,
    Draining,
    Measuring,
    Closing,
    Done,
}

/// The members of the last ensemble as this recovery found it, and what they said in this round.
#[derive(Debug, Default)]
struct Members {
    ids: Vec<BookieId>,
    fenced: SlotSet,
    missing: SlotSet,
    failures: BTreeMap<usize, BookieError>,
}

/// See the head of this file.
#[derive(Debug)]
pub struct RecoveryMachine {
    ledger_id: LedgerId,
    settings: RecoverySettings,
    phase: Phase,
    record: Option<(LedgerRecord, Version)>,
    members: Members,
    round: u64,
    retry_at_ms: Option<u64>,
    metadata_error: Option<LedgerError>,
    heard: EntryId,
    begin: EntryId,
    next: EntryId,
    found: BTreeMap<i64, ReadEntry>,
    paused: bool,
    rewriter: Option<WriterMachine>,
    change: Option<Change>,
    effects: Vec<RecoveryEffect>,
}

impl RecoveryMachine {
    /// A recovery that begins by reading the record.
    pub fn new(ledger_id: LedgerId, settings: RecoverySettings) -> Self {
        Self {
            ledger_id,
            settings,
            phase: Phase::Loading,
            record: None,
            members: Members::default(),
            round: 0,
            retry_at_ms: None,
            metadata_error: None,
            heard: EntryId::NONE,
            begin: EntryId::NONE,
            next: EntryId(0),
            found: BTreeMap::new(),
            paused: false,
            rewriter: None,
            change: None,
            effects: vec![RecoveryEffect::Load],
        }
    }

    /// What there is to do, in order.
    pub fn take_effects(&mut self) -> Vec<RecoveryEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Entries written back.
    pub fn rewritten(&self) -> u64 {
        (self.next.0 - 1 - self.begin.0).max(0) as u64
    }

    fn done(&mut self, result: Result<LedgerRecord, LedgerError>) {
        self.phase = Phase::Done;
        self.rewriter = None;
        self.found.clear();
        self.effects.push(RecoveryEffect::Done(result));
    }

    fn load(&mut self) {
        self.phase = Phase::Loading;
        self.effects.push(RecoveryEffect::Load);
    }

    /// The record as read.
    pub fn loaded(&mut self, now_ms: u64, result: Result<(LedgerRecord, Version), LedgerError>) {
        if self.phase != Phase::Loading {
            return;
        }
        let (mut record, version) = match result {
            Ok(found) => found,
            Err(error @ LedgerError::NoSuchLedger(_)) => return self.done(Err(error)),
            Err(error) => {
                self.metadata_error = Some(error);
                self.retry_at_ms = Some(now_ms + self.settings.retry_ms);
                return;
            }
        };
        match record.state {
            LedgerState::Closed => self.done(Ok(record)),
            LedgerState::InRecovery => self.begin_fencing(record, version),
            LedgerState::Open => {
                record.state = LedgerState::InRecovery;
                self.phase = Phase::Marking;
                self.effects.push(RecoveryEffect::Store { record: record.clone(), version });
                self.record = Some((record, version));
            }
        }
    }

    /// What a store came to.
    pub fn stored(&mut self, now_ms: u64, outcome: Stored) {
        let record = match (self.phase, self.record.take()) {
            (Phase::Marking | Phase::Closing, Some((record, _))) => record,
            (_, record) => {
                self.record = record;
                return;
            }
        };
        match outcome {
            Stored::Done(version) if self.phase == Phase::Marking => self.begin_fencing(record, version),
            Stored::Done(_) => self.done(Ok(record)),
            Stored::Failed(error) => self.done(Err(LedgerError::Metadata(error))),
            Stored::Changed => self.load(),
            Stored::Unknown(error) => {
                self.metadata_error = Some(error.into());
                self.phase = Phase::Loading;
                self.retry_at_ms = Some(now_ms + self.settings.retry_ms);
            }
        }
    }

    fn begin_fencing(&mut self, record: LedgerRecord, version: Version) {
        self.phase = Phase::Fencing;
        self.round += 1;
        self.heard = EntryId(record.last_ensemble().first.0 - 1);
        self.members = Members { ids: record.last_ensemble().bookies.clone(), ..Members::default() };
        self.record = Some((record, version));
        self.found.clear();
        self.rewriter = None;
        self.change = None;
        self.retry_at_ms = None;
        for slot in 0..self.members.ids.len() {
            self.ask(slot);
        }
    }

    /// Fences or reads, whatever this phase asks of members.
    fn ask(&mut self, slot: usize) {
        let (round, bookie) = (self.round, self.members.ids[slot].clone());
        if self.phase == Phase::Fencing {
            self.effects.push(RecoveryEffect::Fence { round, slot, bookie });
            return;
        }
        let striped = self.record.as_ref().is_some_and(|(record, _)| record.layout.is_striped());
        let request = ReadRequest {
            ledger_id: self.ledger_id,
            first_entry_id: self.next,
            max_entries: if striped { 1 } else { self.settings.batch_entries },
            max_bytes: self.settings.batch_bytes,
            gaps_allowed: false,
            fence: true,
        };
        self.effects.push(RecoveryEffect::Read { round, slot, bookie, request });
    }

    /// A member's answer to a fence.
    pub fn fenced(&mut self, now_ms: u64, round: u64, slot: usize, result: Result<FenceState, BookieError>) {
        if self.phase != Phase::Fencing || round != self.round {
            return;
        }
        match result {
            Ok(state) => {
                self.members.fenced.insert(slot);
                self.heard = self.heard.max(state.last_add_confirmed);
            }
            Err(error) => return self.member_failed(now_ms, slot, error),
        }
        let Some((record, _)) = &self.record else { return };
        if !record.layout.blocks_every_quorum(self.members.fenced) {
            return;
        }
        self.phase = Phase::Reading;
        self.begin = self.heard;
        self.next = self.heard.next();
        self.rewriter = Some(WriterMachine::new(
            self.ledger_id,
            record.layout,
            Mode::Rewrite,
            self.settings.times,
            &self.members.ids,
            self.heard,
        ));
        self.begin_round();
    }

    fn member_failed(&mut self, now_ms: u64, slot: usize, error: BookieError) {
        self.members.failures.insert(slot, error);
        self.retry_at_ms.get_or_insert(now_ms + self.settings.retry_ms);
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.paused = false;
        self.retry_at_ms = None;
        self.members.missing = SlotSet::EMPTY;
        self.members.failures.clear();
        for slot in self.holders().iter() {
            self.ask(slot);
        }
    }

    /// Members that would hold the next entry.
    fn holders(&self) -> SlotSet {
        self.record.as_ref().map_or(SlotSet::EMPTY, |(record, _)| record.layout.write_set(self.next))
    }

    /// A member's answer to a read.
    pub fn answered(&mut self, now_ms: u64, round: u64, slot: usize, result: Result<Vec<ReadEntry>, BookieError>) {
        if self.phase != Phase::Reading {
            return;
        }
        match result {
            // What was found in an earlier round is found all the same.
            Ok(entries) => {
                for entry in entries.into_iter().filter(|e| e.entry_id >= self.next) {
                    self.found.insert(entry.entry_id.0, entry);
                }
            }
            Err(_) if round != self.round => {}
            Err(BookieError::NoSuchEntry | BookieError::NoSuchLedger) => self.members.missing.insert(slot),
            Err(error) => self.member_failed(now_ms, slot, error),
        }
        if self.take_found(now_ms) {
            let full = self.rewriter.as_ref().is_some_and(|r| r.window_bytes() >= self.settings.batch_bytes);
            if full { self.paused = true } else { self.begin_round() }
        } else if !self.paused {
            self.look_for_the_end();
        }
        self.pump_rewriter(now_ms);
    }

    /// Hands found entries that follow without a gap to the rewriter; answers whether there were any.
    fn take_found(&mut self, now_ms: u64) -> bool {
        let mut run = Vec::new();
        while let Some(entry) = self.found.remove(&self.next.0) {
            run.push(Pending::new(EntryBytes::plain(entry.payload), entry.digest));
            self.next = self.next.next();
        }
        let any = !run.is_empty();
        if any && let Some(rewriter) = &mut self.rewriter {
            // It refuses entries only after its end, which is told by itself.
            let _ = rewriter.append(now_ms, run);
        }
        any
    }

    /// V4.
    fn look_for_the_end(&mut self) {
        let Some((record, _)) = &self.record else { return };
        let said = self.members.missing.and(record.layout.write_set(self.next)).len();
        if said < record.layout.blocking() {
            return;
        }
        self.phase = Phase::Draining;
        self.retry_at_ms = None;
        if let Some(rewriter) = &mut self.rewriter {
            rewriter.close();
        }
    }

    /// Answers to rewrites.
    pub fn added(&mut self, now_ms: u64, bookie: &BookieId, results: Vec<AddResult>) {
        if let Some(rewriter) = &mut self.rewriter {
            rewriter.added(now_ms, bookie, results);
        }
        self.pump_rewriter(now_ms);
    }

    /// The choice of replacements: the new ensemble, or how many bookies could be written to.
    pub fn replaced(&mut self, now_ms: u64, choice: Result<Vec<BookieId>, u32>) {
        let (Some(change), Some(rewriter)) = (self.change.take(), &mut self.rewriter) else { return };
        match choice {
            Ok(ensemble) => {
                if let Some((record, _)) = &mut self.record {
                    record.change_ensemble(change.first, ensemble.clone());
                }
                rewriter.ensemble_changed(now_ms, &ensemble);
            }
            Err(available) => rewriter.change_refused(now_ms, ChangeRefusal::NoReplacement { available }),
        }
        self.pump_rewriter(now_ms);
    }

    fn pump_rewriter(&mut self, _now_ms: u64) {
        let Some(rewriter) = &mut self.rewriter else { return };
        let effects = rewriter.take_effects();
        let room = rewriter.window_bytes() < self.settings.batch_bytes;
        for effect in effects {
            match effect {
                WriterEffect::Send { bookie, entries, .. } => {
                    self.effects.push(RecoveryEffect::Send { bookie, entries })
                }
                WriterEffect::Replace(change) => {
                    self.change = Some(change.clone());
                    self.effects.push(RecoveryEffect::Replace(change));
                }
                WriterEffect::Ended(error) => return self.done(Err(error)),
                WriterEffect::Drained => return self.drained(),
                WriterEffect::Confirmed(_) | WriterEffect::TellLac { .. } => {}
            }
        }
        if self.paused && room && self.phase == Phase::Reading {
            self.begin_round();
        }
    }

    fn drained(&mut self) {
        let Some((record, _)) = &self.record else { return };
        if self.begin == EntryId::NONE {
            return self.close(0, true);
        }
        self.phase = Phase::Measuring;
        self.effects.push(RecoveryEffect::Measure { record: record.clone(), up_to: self.begin });
    }

    /// Bytes of the entries that were confirmed before, counted or estimated.
    pub fn measured(&mut self, bytes: u64, exact: bool) {
        if self.phase == Phase::Measuring {
            self.close(bytes, exact);
        }
    }

    /// V6.
    fn close(&mut self, before_bytes: u64, exact: bool) {
        let rewritten_bytes = self.rewriter.as_ref().map_or(0, WriterMachine::confirmed_bytes);
        let Some((record, version)) = &mut self.record else { return };
        self.phase = Phase::Closing;
        record.close(EntryId(self.next.0 - 1), before_bytes + rewritten_bytes, exact);
        self.effects.push(RecoveryEffect::Store { record: record.clone(), version: *version });
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        if self.phase == Phase::Done {
            return;
        }
        if now_ms >= self.settings.deadline_ms {
            let error = self.too_late();
            return self.done(Err(error));
        }
        if self.retry_at_ms.is_some_and(|at| at <= now_ms) {
            self.retry_at_ms = None;
            match self.phase {
                Phase::Loading => self.load(),
                Phase::Fencing | Phase::Reading => {
                    for slot in std::mem::take(&mut self.members.failures).into_keys() {
                        self.ask(slot);
                    }
                }
                _ => {}
            }
        }
        if let Some(rewriter) = &mut self.rewriter {
            rewriter.tick(now_ms);
        }
        self.pump_rewriter(now_ms);
    }

    fn too_late(&self) -> LedgerError {
        if let (Phase::Loading, Some(error)) = (self.phase, &self.metadata_error) {
            return error.clone();
        }
        let failures = self.members.failures.iter();
        let said = failures.map(|(slot, error)| format!("; {}: {error}", self.members.ids[*slot])).collect::<String>();
        let waited_for = match self.phase {
            Phase::Loading | Phase::Marking | Phase::Closing => "metadata".to_owned(),
            Phase::Fencing => format!("fencing ({} members fenced)", self.members.fenced.len()),
            Phase::Reading => {
                format!("entry {}: {} members said that they do not hold it", self.next, self.members.missing.len())
            }
            Phase::Draining => "rewriting what was found".to_owned(),
            Phase::Measuring | Phase::Done => "reading lengths".to_owned(),
        };
        LedgerError::QuorumUnavailable {
            ledger_id: self.ledger_id,
            reason: format!("recovery waited for {waited_for}{said}"),
        }
    }
}
