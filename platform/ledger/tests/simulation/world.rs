//! One ledger, its writer, recoveries by other owners, bookies and metadata in one deterministic world: what happens
//! next is chosen by a list of numbers, so that a failure is replayed and shrunk.
//!
//! Requests and answers are messages that arrive late, in any order, twice or never. A call that the real shells end by
//! a deadline ends here with a time-out or an unknown outcome instead of silence, and its request may still arrive.

use crate::bookies::SimBookie;
use crate::planted::Bug;
use bytes::Bytes;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, EntryBytes, FenceState, ReadEntry, ReadRequest};
use meridian_ledger::layout::Layout;
use meridian_ledger::record::Stored;
use meridian_ledger::recovery::machine::{RecoveryEffect, RecoveryMachine, RecoverySettings};
use meridian_ledger::writer::machine::{Pending, WriterMachine};
use meridian_ledger::writer::update::{Intent, RecordUpdate, UpdateFailure, UpdateStep};
use meridian_ledger::writer::words::{Change, ChangeRefusal, Mode, WriterEffect, WriterTimes};
use meridian_ledger::{LedgerError, LedgerOptions, LedgerRecord, LedgerState};
use meridian_metadata::{MetadataError, Version};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::BTreeMap;

pub const LEDGER: LedgerId = LedgerId(3);
const RECOVERIES_MAX: usize = 3;
const TIMES: WriterTimes = WriterTimes {
    add_timeout_ms: 400,
    give_up_ms: 3_000,
    retry_ms: 100,
    busy_retry_ms: 20,
    lac_idle_ms: 100,
    window_keep_bytes: 1 << 20,
    change_delay_ms: 0,
};

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Writer,
    Recovery(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Message {
    Add { to: BookieId, from: Owner, entries: Vec<AddEntry> },
    Added { bookie: BookieId, to: Owner, results: Vec<AddResult> },
    Fence { to: BookieId, from: usize, round: u64, slot: usize },
    Fenced { to: usize, round: u64, slot: usize, result: Result<FenceState, BookieError> },
    Read { to: BookieId, from: usize, round: u64, slot: usize, request: ReadRequest },
    Answered { to: usize, round: u64, slot: usize, result: Result<Vec<ReadEntry>, BookieError> },
    Store { from: Option<Owner>, record: LedgerRecord, version: Version },
    Stored { to: Owner, outcome: Stored },
    Load { from: Owner },
    Loaded { to: Owner, result: Box<Result<(LedgerRecord, Version), LedgerError>> },
    Lac { to: BookieId, lac: i64 },
}

/// The writer with what its shell would keep.
pub(super) struct WriterSide {
    machine: WriterMachine,
    known: (LedgerRecord, Version),
    change: Option<RecordUpdate>,
    close: Option<RecordUpdate>,
    closing: bool,
    /// News told.
    pub(super) confirmed: i64,
    pub(super) ended: bool,
    pub(super) closed: bool,
}

/// One recovery.
pub(super) struct RecoverySide {
    machine: RecoveryMachine,
    pub(super) result: Option<Result<LedgerRecord, LedgerError>>,
}

pub struct World {
    pub(super) layout: Layout,
    bug: Bug,
    now_ms: u64,
    pub bookies: Vec<SimBookie>,
    pub(super) stored: (LedgerRecord, Version),
    pub(super) network: Vec<Message>,
    pub(super) writer: WriterSide,
    pub(super) recoveries: Vec<RecoverySide>,
    pub(super) appended: BTreeMap<i64, Bytes>,
    /// Links that are slow: other messages overtake theirs.
    slow: Vec<(Owner, BookieId)>,
    /// Metadata does not answer; what it is asked to store may be stored all the same.
    metadata_mute: bool,
    salt: u64,
}

/// Answers instead of panicking, so that planted bugs can be counted.
pub type Verdict = Result<(), String>;

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    pub fn new(bookies: usize, layout: Layout, bug: Bug) -> Self {
        let ids: Vec<_> = (0..bookies).map(|n| BookieId::new(format!("b{n}"))).collect();
        let ensemble = ids[..layout.ensemble_size() as usize].to_vec();
        let options = LedgerOptions {
            ensemble_size: layout.ensemble_size(),
            write_quorum: layout.write_quorum(),
            ack_quorum: layout.ack_quorum(),
            properties: BTreeMap::new(),
        };
        let record = LedgerRecord::new(layout, options, ensemble.clone(), 0);
        let known = (record, Version(1));
        // Some layouts give failed members time to come back.
        let change_delay_ms = if layout.ensemble_size() == 3 { 0 } else { 700 };
        let times = WriterTimes { change_delay_ms, ..TIMES };
        let machine =
            WriterMachine::new(LEDGER, bug.writer_layout(layout), Mode::Append, times, &ensemble, EntryId::NONE);
        Self {
            layout,
            bug,
            now_ms: 1_000,
            bookies: ids.into_iter().map(SimBookie::new).collect(),
            stored: known.clone(),
            network: Vec::new(),
            writer: WriterSide {
                machine,
                known,
                change: None,
                close: None,
                closing: false,
                confirmed: -1,
                ended: false,
                closed: false,
            },
            recoveries: Vec::new(),
            appended: BTreeMap::new(),
            slow: Vec::new(),
            metadata_mute: false,
            salt: 0,
        }
    }

    pub(super) fn bookie(&mut self, id: &BookieId) -> &mut SimBookie {
        self.bookies.iter_mut().find(|b| b.id == *id).expect("all bookies are there")
    }

    /// One step of the wild part.
    pub fn step(&mut self, choice: u16) -> Verdict {
        let (kind, which) = (choice % 32, usize::from(choice / 32));
        self.salt = self.salt.wrapping_mul(31).wrapping_add(u64::from(choice));
        match kind {
            0..=14 => self.deliver(which, false)?,
            15 | 16 => self.lose(which)?,
            17 => self.repeat(which),
            18..=22 => self.append(1 + which % 3),
            23..=25 => self.advance(10 + (which as u64 * 7) % 200),
            26 => self.flip(which),
            27 => self.refuse(which),
            28 | 29 if which % 4 == 0 => self.recover(),
            30 if which % 8 == 0 => self.close(),
            30 if which % 8 < 5 => self.slow_down(which / 8),
            31 if which % 8 == 0 => self.metadata_mute = !self.metadata_mute,
            _ => self.deliver(which, true)?,
        }
        self.pump()
    }

    /// The quiet part: everything is up, every message arrives, and a last owner recovers the ledger.
    pub fn settle(&mut self) -> Verdict {
        for bookie in &mut self.bookies {
            bookie.up = true;
            bookie.refuse = None;
        }
        self.slow.clear();
        self.metadata_mute = false;
        self.run_until(|world| world.recoveries.iter().all(|r| r.result.is_some()))?;
        self.recoveries.push(RecoverySide { machine: RecoveryMachine::new(LEDGER, self.settings()), result: None });
        self.pump()?;
        self.run_until(|world| world.recoveries.iter().all(|r| r.result.is_some()))?;
        let last = self.recoveries.len() - 1;
        let result = self.recoveries[last].result.clone();
        ensure(matches!(result, Some(Ok(_))), || format!("with all bookies up a recovery ends well: {result:?}"))?;
        // The old owner hears of it, whatever it still tries.
        self.append(1);
        self.pump()?;
        self.run_until(|world| world.network.is_empty())?;
        self.check_end()
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> Verdict {
        for _ in 0..20_000 {
            if done(self) && self.network.is_empty() {
                return Ok(());
            }
            if self.network.is_empty() {
                self.advance(25);
            } else {
                self.deliver(0, false)?;
            }
            self.pump()?;
        }
        Err("nothing moves any more".to_owned())
    }

    fn settings(&self) -> RecoverySettings {
        RecoverySettings {
            times: TIMES,
            retry_ms: TIMES.retry_ms,
            deadline_ms: self.now_ms + 6_000,
            batch_entries: 4,
            batch_bytes: 60,
        }
    }

    pub(super) fn advance(&mut self, by_ms: u64) {
        self.now_ms += by_ms;
        self.writer.machine.tick(self.now_ms);
        for recovery in &mut self.recoveries {
            if recovery.result.is_none() {
                recovery.machine.tick(self.now_ms);
            }
        }
    }

    pub(super) fn append(&mut self, count: usize) {
        let first = self.writer.machine.next_entry().0;
        let pending = (first..).take(count).map(|id| {
            let body = Bytes::from(format!("entry {id} of {}", self.salt));
            let entry = EntryBytes::plain(body.clone());
            let digest = entry.digest(LEDGER, EntryId(id));
            (id, body, Pending::new(entry, digest))
        });
        let all: Vec<_> = pending.collect();
        let batch = all.iter().map(|(_, _, pending)| pending.clone()).collect();
        if self.writer.machine.append(self.now_ms, batch).is_ok() {
            self.appended.extend(all.into_iter().map(|(id, body, _)| (id, body)));
        }
    }

    fn close(&mut self) {
        self.writer.closing = true;
        self.writer.machine.close();
    }

    fn flip(&mut self, which: usize) {
        let at = which % self.bookies.len();
        self.bookies[at].up = !self.bookies[at].up;
    }

    /// Makes one more link slow, or all quick again.
    fn slow_down(&mut self, which: usize) {
        if which.is_multiple_of(5) {
            self.slow.clear();
            return;
        }
        let owner = if which.is_multiple_of(2) { Owner::Writer } else { Owner::Recovery(which / 2 % RECOVERIES_MAX) };
        let bookie = self.bookies[which / 8 % self.bookies.len()].id.clone();
        self.slow.push((owner, bookie));
    }

    fn is_slow(&self, message: &Message) -> bool {
        let bookie = |slot: usize| self.stored.0.last_ensemble().bookies[slot].clone();
        let link = match message {
            Message::Add { to, from, .. } => (*from, to.clone()),
            Message::Added { bookie, to, .. } => (*to, bookie.clone()),
            Message::Fence { to, from, .. } | Message::Read { to, from, .. } => (Owner::Recovery(*from), to.clone()),
            Message::Fenced { to, slot, .. } | Message::Answered { to, slot, .. } => {
                (Owner::Recovery(*to), bookie(*slot))
            }
            _ => return false,
        };
        self.slow.contains(&link)
    }

    fn refuse(&mut self, which: usize) {
        let error = match which % 4 {
            0 => BookieError::Busy("full".to_owned()),
            1 => BookieError::Io("disk".to_owned()),
            2 => BookieError::ReadOnly("space".to_owned()),
            _ => BookieError::Timeout(5),
        };
        let at = (which / 4) % self.bookies.len();
        self.bookies[at].refuse = Some(error);
    }

    pub(super) fn recover(&mut self) {
        if self.recoveries.len() < RECOVERIES_MAX {
            let machine = RecoveryMachine::new(LEDGER, self.settings());
            self.recoveries.push(RecoverySide { machine, result: None });
        }
    }

    fn repeat(&mut self, which: usize) {
        if self.network.is_empty() {
            return;
        }
        let message = self.network[which % self.network.len()].clone();
        if matches!(message, Message::Add { .. } | Message::Added { .. } | Message::Fence { .. } | Message::Lac { .. })
        {
            self.network.push(message);
        }
    }

    fn deliver(&mut self, which: usize, newest: bool) -> Verdict {
        if self.network.is_empty() {
            return Ok(());
        }
        let wanted = if newest { self.network.len() - 1 } else { which % self.network.len() };
        let quick = (0..self.network.len()).map(|step| (wanted + step) % self.network.len());
        let at = quick.into_iter().find(|at| !self.is_slow(&self.network[*at])).unwrap_or(wanted);
        self.take(at)
    }

    pub(super) fn take(&mut self, at: usize) -> Verdict {
        let message = self.network.remove(at);
        match message {
            Message::Add { to, from, entries } => self.deliver_add(&to, from, entries),
            Message::Added { bookie, to, results } => self.deliver_added(&bookie, to, results),
            Message::Fence { to, from, round, slot } => self.deliver_fence(&to, from, round, slot),
            Message::Fenced { to, round, slot, result } => {
                self.recoveries[to].machine.fenced(self.now_ms, round, slot, result);
            }
            Message::Read { to, from, round, slot, request } => self.deliver_read(&to, from, round, slot, request),
            Message::Answered { to, round, slot, result } => {
                self.recoveries[to].machine.answered(self.now_ms, round, slot, result);
            }
            Message::Store { from, record, version } => self.deliver_store(from, record, version)?,
            Message::Stored { to, outcome } => self.deliver_stored(to, outcome),
            Message::Load { from } => {
                let mute = || LedgerError::Metadata(MetadataError::Unavailable("mute".to_owned()));
                let result = Box::new(if self.metadata_mute { Err(mute()) } else { Ok(self.stored.clone()) });
                self.network.push(Message::Loaded { to: from, result });
            }
            Message::Loaded { to, result } => self.deliver_loaded(to, *result),
            Message::Lac { to, lac } => {
                let bookie = self.bookie(&to);
                if bookie.up {
                    bookie.heard = bookie.heard.max(lac);
                }
            }
        }
        Ok(())
    }

    fn deliver_add(&mut self, to: &BookieId, from: Owner, entries: Vec<AddEntry>) {
        let bookie = self.bookie(to);
        let results = if bookie.up {
            bookie.add(entries)
        } else {
            let down = Err(BookieError::Unavailable("down".to_owned()));
            let refused = |add: AddEntry| AddResult { ledger_id: LEDGER, entry_id: add.entry_id, result: down.clone() };
            entries.into_iter().map(refused).collect()
        };
        self.network.push(Message::Added { bookie: to.clone(), to: from, results });
    }

    fn deliver_added(&mut self, bookie: &BookieId, to: Owner, results: Vec<AddResult>) {
        match to {
            Owner::Writer => self.writer.machine.added(self.now_ms, bookie, results),
            Owner::Recovery(at) => self.recoveries[at].machine.added(self.now_ms, bookie, results),
        }
    }

    fn deliver_fence(&mut self, to: &BookieId, from: usize, round: u64, slot: usize) {
        let lying = self.bug == Bug::NothingIsFenced;
        let bookie = self.bookie(to);
        let before = bookie.fenced;
        let result = match bookie.up {
            true => Ok(bookie.fence()),
            false => Err(BookieError::Unavailable("down".to_owned())),
        };
        bookie.fenced = if lying { before } else { bookie.fenced };
        self.network.push(Message::Fenced { to: from, round, slot, result });
    }

    fn deliver_read(&mut self, to: &BookieId, from: usize, round: u64, slot: usize, mut request: ReadRequest) {
        request.fence &= !matches!(self.bug, Bug::ReadsDoNotFence | Bug::NothingIsFenced);
        let lying = self.bug == Bug::ErrorsCountAsMissing;
        let bookie = self.bookie(to);
        let result = match bookie.up {
            true => bookie.read(request),
            false if lying => Err(BookieError::NoSuchEntry),
            false => Err(BookieError::Unavailable("down".to_owned())),
        };
        self.network.push(Message::Answered { to: from, round, slot, result });
    }

    fn deliver_store(&mut self, from: Option<Owner>, record: LedgerRecord, version: Version) -> Verdict {
        let blind = self.bug == Bug::ChangeWithoutCompare && record.state == LedgerState::Open;
        let mute = self.metadata_mute;
        let outcome = if mute && self.salt.is_multiple_of(2) {
            Stored::Changed
        } else if self.stored.1 == version || blind {
            self.check_transition(&record)?;
            self.stored = (record, Version(self.stored.1.0 + 1));
            Stored::Done(self.stored.1)
        } else {
            Stored::Changed
        };
        if let Some(to) = from {
            let unknown = || Stored::Unknown(MetadataError::UnknownOutcome("mute".to_owned()));
            let outcome = if mute { unknown() } else { outcome };
            self.network.push(Message::Stored { to, outcome });
        }
        Ok(())
    }

    fn deliver_stored(&mut self, to: Owner, outcome: Stored) {
        match to {
            Owner::Writer => self.update_writer(|update| update.stored(outcome)),
            Owner::Recovery(at) => self.recoveries[at].machine.stored(self.now_ms, outcome),
        }
    }

    fn deliver_loaded(&mut self, to: Owner, result: Result<(LedgerRecord, Version), LedgerError>) {
        let now_ms = self.now_ms;
        match to {
            Owner::Writer => self.update_writer(|update| update.loaded(now_ms, result)),
            Owner::Recovery(at) => self.recoveries[at].machine.loaded(now_ms, result),
        }
    }

    /// The writer's shell runs one update at a time here: a close waits for its change.
    fn update_writer(&mut self, event: impl FnOnce(&mut RecordUpdate) -> UpdateStep) {
        if let Some(mut update) = self.writer.change.take() {
            let step = event(&mut update);
            self.writer.change = Some(update);
            self.follow_change(step);
        } else if let Some(mut update) = self.writer.close.take() {
            let step = event(&mut update);
            self.writer.close = Some(update);
            self.follow_close(step);
        }
    }

    fn request(&mut self, step: UpdateStep) -> Option<Result<(LedgerRecord, Version), UpdateFailure>> {
        match step {
            UpdateStep::Store(record, version) => {
                self.network.push(Message::Store { from: Some(Owner::Writer), record, version });
            }
            UpdateStep::Load { .. } => self.network.push(Message::Load { from: Owner::Writer }),
            UpdateStep::Done(result) => return Some(result),
        }
        None
    }

    fn follow_change(&mut self, step: UpdateStep) {
        let early = self.bug == Bug::CountBeforeTheChangeIsStored;
        if early && let UpdateStep::Store(record, _) = &step {
            let ensemble = record.last_ensemble().bookies.clone();
            self.writer.machine.ensemble_changed(self.now_ms, &ensemble);
        }
        let Some(result) = self.request(step) else { return };
        self.writer.change = None;
        match result {
            Ok(known) => {
                let ensemble = known.0.last_ensemble().bookies.clone();
                self.writer.known = known;
                self.writer.machine.ensemble_changed(self.now_ms, &ensemble);
            }
            Err(UpdateFailure::Lost(error)) => self.refuse_change(ChangeRefusal::Lost(error)),
            Err(UpdateFailure::Unknown(_)) if self.bug == Bug::UnknownIsRefused => {
                self.refuse_change(ChangeRefusal::NoReplacement { available: 0 });
            }
            Err(UpdateFailure::Unknown(error)) => self.refuse_change(ChangeRefusal::Unknown(error.to_string())),
        }
    }

    fn refuse_change(&mut self, refusal: ChangeRefusal) {
        self.writer.machine.change_refused(self.now_ms, refusal);
    }

    fn follow_close(&mut self, step: UpdateStep) {
        let Some(result) = self.request(step) else { return };
        self.writer.close = None;
        self.writer.closed = result.is_ok();
    }

    /// Replacements: any bookie that is up and no member, chosen by the salt.
    fn choose(&self, change: &Change) -> Result<Vec<BookieId>, u32> {
        let free: Vec<_> =
            self.bookies.iter().filter(|b| b.up && !change.ensemble.contains(&b.id)).map(|b| b.id.clone()).collect();
        if free.is_empty() {
            return Err(self.bookies.iter().filter(|b| b.up).count() as u32);
        }
        let mut ensemble = change.ensemble.clone();
        for (step, slot) in change.failed.iter().enumerate().take(free.len()) {
            ensemble[slot] = free[(self.salt as usize + step) % free.len()].clone();
        }
        Ok(ensemble)
    }

    /// Carries out what the machines decided.
    pub(super) fn pump(&mut self) -> Verdict {
        loop {
            let effects = self.writer.machine.take_effects();
            let mut moved = !effects.is_empty();
            for effect in effects {
                self.writer_effect(effect)?;
            }
            for at in 0..self.recoveries.len() {
                let effects = self.recoveries[at].machine.take_effects();
                moved |= !effects.is_empty();
                for effect in effects {
                    self.recovery_effect(at, effect)?;
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn writer_effect(&mut self, effect: WriterEffect) -> Verdict {
        match effect {
            WriterEffect::Send { bookie, entries, .. } => {
                self.network.push(Message::Add { to: bookie, from: Owner::Writer, entries });
            }
            WriterEffect::TellLac { bookies, last_add_confirmed } => {
                for to in bookies {
                    self.network.push(Message::Lac { to, lac: last_add_confirmed.0 });
                }
            }
            WriterEffect::Replace(change) => match self.choose(&change) {
                Ok(bookies) => {
                    let intent = Intent::Change { first: change.first, bookies };
                    let deadline_ms = self.now_ms + 300;
                    let (update, step) = RecordUpdate::begin(LEDGER, intent, self.writer.known.clone(), deadline_ms);
                    self.writer.change = Some(update);
                    self.follow_change(step);
                }
                Err(available) => self.refuse_change(ChangeRefusal::NoReplacement { available }),
            },
            WriterEffect::Confirmed(up_to) => self.check_confirmed(up_to)?,
            WriterEffect::Ended(_) => {
                ensure(!self.writer.ended, || "the end is told once".to_owned())?;
                self.writer.ended = true;
            }
            WriterEffect::Drained => {
                let machine = &self.writer.machine;
                let intent = Intent::Close { last_entry: machine.confirmed(), length_bytes: machine.confirmed_bytes() };
                let (update, step) = RecordUpdate::begin(LEDGER, intent, self.writer.known.clone(), self.now_ms + 300);
                self.writer.close = Some(update);
                self.follow_close(step);
            }
        }
        Ok(())
    }

    fn recovery_effect(&mut self, at: usize, effect: RecoveryEffect) -> Verdict {
        let owner = Owner::Recovery(at);
        match effect {
            RecoveryEffect::Load => self.network.push(Message::Load { from: owner }),
            RecoveryEffect::Store { record, version } => {
                self.network.push(Message::Store { from: Some(owner), record, version });
            }
            RecoveryEffect::Fence { round, slot, bookie } => {
                self.network.push(Message::Fence { to: bookie, from: at, round, slot });
            }
            RecoveryEffect::Read { round, slot, bookie, request } => {
                self.network.push(Message::Read { to: bookie, from: at, round, slot, request });
            }
            RecoveryEffect::Send { bookie, entries } if self.bug == Bug::FoundIsNotRewritten => {
                let done = |add: AddEntry| AddResult { ledger_id: LEDGER, entry_id: add.entry_id, result: Ok(()) };
                let results = entries.into_iter().map(done).collect();
                self.network.push(Message::Added { bookie, to: owner, results });
            }
            RecoveryEffect::Send { bookie, mut entries } => {
                for add in entries.iter_mut().filter(|_| self.bug == Bug::RecoveryTellsItsProgress) {
                    add.last_add_confirmed = EntryId(add.entry_id.0 - 1);
                }
                self.network.push(Message::Add { to: bookie, from: owner, entries });
            }
            RecoveryEffect::Replace(change) => {
                let choice = self.choose(&change);
                self.recoveries[at].machine.replaced(self.now_ms, choice);
            }
            RecoveryEffect::Measure { up_to, .. } => {
                let bytes = (0..=up_to.0).filter_map(|id| self.appended.get(&id)).map(|b| b.len() as u64).sum();
                self.recoveries[at].machine.measured(bytes, true);
            }
            RecoveryEffect::Done(result) => {
                ensure(self.recoveries[at].result.is_none(), || "a recovery ends once".to_owned())?;
                if let Ok(record) = &result {
                    ensure(record.last_entry == self.stored.0.last_entry, || {
                        format!("a recovery answers {}, metadata says {}", record.last_entry, self.stored.0.last_entry)
                    })?;
                }
                self.recoveries[at].result = Some(result);
            }
        }
        Ok(())
    }
}
