//! The writer of one ledger as a pure machine: events and time in, effects out.
//!
//! Invariants:
//! - W1 (S1) an entry is confirmed when Qa members that are in the ensemble *as metadata holds it for sure* have it
//!   and every earlier entry is confirmed: `confirmed` only grows, by one entry after the other.
//! - W2 (S5) a failed member counts no more, its earlier answers neither. The replacement begins at the first entry
//!   that was unconfirmed when the change began, is sent entries and counts only after the change is in metadata.
//!   Members that are not replaced go on counting meanwhile: they are in the ensemble before and after the change.
//! - W3 a change whose outcome is unknown bars the failed member: it may no longer be in the ensemble that a recovery
//!   would fence, so it never counts again before a later change tells the outcome.
//! - W4 after the end nothing is confirmed and no effect but the end leaves.
//! - W5 lost, late, repeated and reordered answers change nothing but time.
//! - W6 a rewrite tells the last-add-confirmed that the recovery began with, never its own progress: what it rewrote
//!   counts only with its close, and another recovery that heard of it would not look for those entries any more.
//! - W7 confirmed entries stay in the window while a change runs, so that the new member gets them too; at most
//!   [`WriterTimes::window_keep_bytes`] of them.
//! - W8 a change may be delayed only while every write quorum can confirm without the failed members, and at most
//!   [`WriterTimes::change_delay_ms`]; a member that refuses for good, and a rewrite, are never waited for.
//! - W9 a member that is too busy for an entry which the others have confirmed has failed: it is too slow, and nobody
//!   would bring it that entry any more.
//!
//! Failure: a member that fails is replaced; without replacement the writer goes on while Qa members are left, sends
//! again to the failed one from time to time, and ends when an entry has waited longer than the add time-out with too
//! few members. In [`Mode::Rewrite`] (recovery) every write-quorum member must answer unless it has no replacement.
//! Must never know: clocks, metadata, sockets, what an entry means.

use super::member::{Delay, Phase, Slot};
use super::words::{Change, ChangeRefusal, Mode, WriterEffect, WriterTimes};
use crate::api::LedgerError;
use crate::layout::{Layout, SlotSet};
use meridian_bookie_api::{AddEntry, AddResult, BookieError, EntryBytes};
use meridian_types::{BookieId, Classify, EntryId, ErrorClass, LedgerId};
use std::collections::VecDeque;

/// One entry in flight.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its bytes.
    pub entry: EntryBytes,
    /// [`EntryBytes::digest`] for its place.
    pub digest: u32,
    /// Members that have it.
    acks: SlotSet,
    /// Members that were too busy for it.
    refused: SlotSet,
    /// When it was first sent.
    sent_ms: u64,
}

impl Pending {
    /// An entry to append.
    pub fn new(entry: EntryBytes, digest: u32) -> Self {
        Self { entry, digest, acks: SlotSet::EMPTY, refused: SlotSet::EMPTY, sent_ms: 0 }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct WriterMachine {
    ledger_id: LedgerId,
    layout: Layout,
    mode: Mode,
    times: WriterTimes,
    slots: Box<[Slot]>,
    healthy: SlotSet,
    /// Failed members that may not be tried again as they are (W3).
    barred: SlotSet,
    /// Failed members for which there is no replacement (for [`Mode::Rewrite`]).
    given_up: SlotSet,
    window: VecDeque<Pending>,
    window_first: i64,
    confirmed: i64,
    confirmed_bytes: u64,
    told: i64,
    last_send_ms: u64,
    changing: Option<SlotSet>,
    refusals: u32,
    retry_at_ms: u64,
    busy_at_ms: Option<u64>,
    /// A change that is put off (W8).
    delay: Delay,
    phase: Phase,
    effects: Vec<WriterEffect>,
}

impl WriterMachine {
    /// A writer whose next entry is the one after `confirmed`.
    pub fn new(
        ledger_id: LedgerId,
        layout: Layout,
        mode: Mode,
        times: WriterTimes,
        ensemble: &[BookieId],
        confirmed: EntryId,
    ) -> Self {
        assert_eq!(ensemble.len(), layout.ensemble_size() as usize, "an ensemble has E members");
        Self {
            ledger_id,
            layout,
            mode,
            times,
            slots: ensemble.iter().map(|b| Slot::new(b.clone(), 0)).collect(),
            healthy: layout.all(),
            barred: SlotSet::EMPTY,
            given_up: SlotSet::EMPTY,
            window: VecDeque::new(),
            window_first: confirmed.0 + 1,
            confirmed: confirmed.0,
            confirmed_bytes: 0,
            told: confirmed.0,
            last_send_ms: 0,
            changing: None,
            refusals: 0,
            retry_at_ms: 0,
            busy_at_ms: None,
            delay: Delay::default(),
            phase: Phase::Open,
            effects: Vec::new(),
        }
    }

    /// The id that the next entry gets.
    pub fn next_entry(&self) -> EntryId {
        EntryId(self.window_first + self.window.len() as i64)
    }

    /// Last confirmed entry.
    pub fn confirmed(&self) -> EntryId {
        EntryId(self.confirmed)
    }

    /// Bytes of the entries confirmed by this machine.
    pub fn confirmed_bytes(&self) -> u64 {
        self.confirmed_bytes
    }

    /// Bytes held for the members of the ensemble.
    #[cfg(test)]
    pub(super) fn members_bytes(&self) -> usize {
        self.slots.len() * std::mem::size_of::<Slot>()
    }

    /// Bytes of entries held in the window.
    pub fn window_bytes(&self) -> u64 {
        self.window.iter().map(|p| p.entry.len() as u64).sum()
    }

    /// Members as the machine holds them.
    pub fn ensemble(&self) -> Vec<BookieId> {
        self.slots.iter().map(|s| s.bookie.clone()).collect()
    }

    /// Why it ended, if it did.
    pub fn end(&self) -> Option<&LedgerError> {
        match &self.phase {
            Phase::Ended(error) => Some(error),
            _ => None,
        }
    }

    /// Whether everything was drained for a close.
    pub fn is_drained(&self) -> bool {
        self.phase == Phase::Drained
    }

    /// Whether time changes nothing: no need for [`Self::tick`] until the next event.
    pub fn is_quiet(&self) -> bool {
        match self.phase {
            Phase::Ended(_) | Phase::Drained => true,
            Phase::Open | Phase::Closing => {
                self.window.is_empty()
                    && (self.told == self.confirmed || self.mode == Mode::Rewrite)
                    && self.changing.is_none()
                    && self.slots.iter().all(|s| s.failure.is_some() || s.answered >= s.sent)
            }
        }
    }

    /// What there is to do, in order.
    pub fn take_effects(&mut self) -> Vec<WriterEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Appends entries; the first gets [`Self::next_entry`].
    ///
    /// # Errors
    /// What ended the writer, or [`LedgerError::Closed`].
    pub fn append(&mut self, now_ms: u64, entries: Vec<Pending>) -> Result<(), LedgerError> {
        match &self.phase {
            Phase::Open => {}
            Phase::Ended(error) => return Err(error.clone()),
            Phase::Closing | Phase::Drained => return Err(LedgerError::Closed(self.ledger_id)),
        }
        let from = self.window.len();
        for mut pending in entries {
            pending.sent_ms = now_ms;
            self.window.push_back(pending);
        }
        for slot in self.healthy.iter() {
            self.send(now_ms, slot, from, |_, _| true);
        }
        if self.changing.is_none() && self.healthy != self.layout.all() && now_ms >= self.retry_at_ms {
            self.begin_change(now_ms);
        }
        Ok(())
    }

    /// Sends the entries of the window from index `from` on that belong to `slot`, are not there and are `wanted`.
    fn send(&mut self, now_ms: u64, slot: usize, from: usize, wanted: impl Fn(&Pending, usize) -> bool) {
        let last_add_confirmed = EntryId(if self.mode == Mode::Append { self.confirmed } else { self.told });
        let mut entries = Vec::with_capacity(self.window.len().saturating_sub(from));
        for (index, pending) in self.window.iter_mut().enumerate().skip(from) {
            let entry_id = EntryId(self.window_first + index as i64);
            if pending.acks.has(slot) || !self.layout.write_set(entry_id).has(slot) || !wanted(pending, slot) {
                continue;
            }
            pending.refused.remove_all(SlotSet::one(slot));
            entries.push(AddEntry {
                ledger_id: self.ledger_id,
                entry_id,
                last_add_confirmed,
                digest: pending.digest,
                recovery: self.mode == Mode::Rewrite,
                entry: pending.entry.clone(),
            });
        }
        let Some(last) = entries.last() else { return };
        let member = &mut self.slots[slot];
        if member.answered >= member.sent {
            member.progress_ms = now_ms;
        }
        member.sent = member.sent.max(last.entry_id.0);
        self.told = last_add_confirmed.0;
        self.last_send_ms = now_ms;
        self.effects.push(WriterEffect::Send { slot, bookie: member.bookie.clone(), entries });
    }

    /// Answers of one bookie. Answers of a bookie that is not (or no longer) a member change nothing.
    pub fn added(&mut self, now_ms: u64, bookie: &BookieId, results: Vec<AddResult>) {
        if matches!(self.phase, Phase::Ended(_) | Phase::Drained) {
            return;
        }
        let Some(slot) = self.slots.iter().position(|s| s.bookie == *bookie) else { return };
        for answer in results {
            match answer.result {
                Ok(()) => self.has(now_ms, slot, answer.entry_id),
                Err(error) => self.refuses(now_ms, slot, answer.entry_id, error),
            }
            if matches!(self.phase, Phase::Ended(_)) {
                return;
            }
        }
        self.advance();
    }

    fn pending(&mut self, entry: EntryId) -> Option<&mut Pending> {
        let index = usize::try_from(entry.0 - self.window_first).ok()?;
        self.window.get_mut(index)
    }

    fn has(&mut self, now_ms: u64, slot: usize, entry: EntryId) {
        let belongs = self.layout.write_set(entry).has(slot);
        let member = &mut self.slots[slot];
        if !belongs || entry.0 > member.sent {
            return;
        }
        member.answered = member.answered.max(entry.0);
        member.progress_ms = now_ms;
        if let Some(pending) = self.pending(entry) {
            pending.acks.insert(slot);
        }
        self.delay.answered(slot);
    }

    fn refuses(&mut self, now_ms: u64, slot: usize, entry: EntryId, error: BookieError) {
        match error {
            BookieError::Fenced => self.finish(LedgerError::Fenced(self.ledger_id)),
            BookieError::TooLarge { .. } => self.finish(LedgerError::Bookie(error)),
            BookieError::Busy(_) => {
                let retry_at_ms = now_ms + self.times.busy_retry_ms;
                match self.pending(entry) {
                    Some(pending) => {
                        pending.refused.insert(slot);
                        self.busy_at_ms.get_or_insert(retry_at_ms);
                    }
                    None => self.fail(now_ms, slot, error),
                }
            }
            error => self.fail(now_ms, slot, error),
        }
    }

    /// A member counts no more (W2).
    fn fail(&mut self, now_ms: u64, slot: usize, error: BookieError) {
        if !self.healthy.has(slot) {
            return;
        }
        self.healthy.remove_all(SlotSet::one(slot));
        self.slots[slot].failure = Some(error);
        for pending in &mut self.window {
            pending.acks.remove_all(SlotSet::one(slot));
        }
        if self.changing.is_none() && now_ms >= self.retry_at_ms {
            self.begin_change(now_ms);
        }
    }

    /// Bookies leave the cluster: those that are members count no more and are replaced, also in an idle ledger. Answers
    /// whether there is one.
    pub fn leave(&mut self, bookies: &[BookieId]) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        let leaves = |slot: &usize| bookies.contains(&self.slots[*slot].bookie);
        let slots: Vec<usize> = self.healthy.iter().filter(leaves).collect();
        for slot in &slots {
            self.healthy.remove_all(SlotSet::one(*slot));
            self.slots[*slot].failure = Some(BookieError::Unavailable("it leaves the cluster".to_owned()));
            for pending in &mut self.window {
                pending.acks.remove_all(SlotSet::one(*slot));
            }
        }
        if !slots.is_empty() && self.changing.is_none() {
            self.replace_failed();
        }
        !slots.is_empty()
    }

    fn begin_change(&mut self, now_ms: u64) {
        let useful = match self.phase {
            Phase::Open => true,
            Phase::Closing => !self.window.is_empty(),
            Phase::Drained | Phase::Ended(_) => false,
        };
        if useful && !self.delays(now_ms) {
            self.replace_failed();
        }
    }

    fn replace_failed(&mut self) {
        let failed = self.layout.all().without(self.healthy);
        self.changing = Some(failed);
        let first = EntryId(self.confirmed + 1);
        self.effects.push(WriterEffect::Replace(Change {
            first,
            layout: self.layout,
            ensemble: self.ensemble(),
            failed,
        }));
    }

    /// Whether the failed members get time to come back (W8); from the second turn on they are tried as they are.
    fn delays(&mut self, now_ms: u64) -> bool {
        let delay_ms = self.times.change_delay_ms;
        let failed = self.layout.all().without(self.healthy);
        let lasting = |slot: usize| matches!(&self.slots[slot].failure, Some(e) if e.class() == ErrorClass::Redirect);
        let can_wait = delay_ms > 0
            && self.mode == Mode::Append
            && self.layout.can_ack_everywhere(self.healthy)
            && failed.and(self.barred).is_empty()
            && !failed.iter().any(lasting);
        let turn = self.delay.turn(failed, now_ms, self.times.retry_ms);
        if !can_wait || turn.waited_ms >= delay_ms {
            self.delay = Delay::default();
            return false;
        }
        if turn.try_again {
            self.reinstate(now_ms);
        }
        true
    }

    /// The change is in metadata: members whose id differs are new and count from now on (W2).
    pub fn ensemble_changed(&mut self, now_ms: u64, ensemble: &[BookieId]) {
        let Some(changing) = self.changing.take() else { return };
        if matches!(self.phase, Phase::Ended(_) | Phase::Drained) {
            return;
        }
        self.barred.remove_all(changing);
        for (slot, bookie) in ensemble.iter().enumerate() {
            if self.slots[slot].bookie == *bookie {
                continue;
            }
            self.slots[slot] = Slot::new(bookie.clone(), now_ms);
            self.count_again(now_ms, slot);
        }
        self.refusals = 0;
        self.after_change(now_ms);
    }

    /// The change was not made, or nobody knows.
    pub fn change_refused(&mut self, now_ms: u64, refusal: ChangeRefusal) {
        let Some(changing) = self.changing.take() else { return };
        if matches!(self.phase, Phase::Ended(_) | Phase::Drained) {
            return;
        }
        match refusal {
            ChangeRefusal::Lost(error) => return self.finish(error),
            ChangeRefusal::Unknown(_) => self.barred = self.barred.or(changing),
            ChangeRefusal::NoReplacement { available } => {
                self.given_up = self.given_up.or(changing);
                if let Some(error) = self.hopeless(now_ms, changing, available) {
                    return self.finish(error);
                }
            }
        }
        self.refusals += 1;
        self.retry_at_ms = now_ms + self.times.retry_ms;
        if self.refusals > 1 {
            self.reinstate(now_ms);
        }
        self.after_change(now_ms);
    }

    /// Whether waiting is useless: an ack quorum is gone, and the members that failed refuse for good or the entry at
    /// the front has waited too long.
    fn hopeless(&self, now_ms: u64, changing: SlotSet, available: u32) -> Option<LedgerError> {
        if self.layout.can_ack_everywhere(self.healthy) {
            return None;
        }
        let failures = changing.iter().filter_map(|slot| self.slots[slot].failure.as_ref());
        let lasting = failures.clone().find(|error| error.class() == ErrorClass::Redirect);
        if let Some(error) = lasting {
            return Some(LedgerError::Bookie(error.clone()));
        }
        let waited = self.front_unconfirmed().is_some_and(|p| p.sent_ms + self.times.add_timeout_ms <= now_ms);
        if !waited {
            return None;
        }
        match failures.last() {
            Some(error) if self.layout.ensemble_size() == 1 => Some(LedgerError::Bookie(error.clone())),
            _ => Some(LedgerError::NotEnoughBookies { needed: self.layout.ensemble_size(), available }),
        }
    }

    fn quorum_unavailable(&self) -> LedgerError {
        let failed = self.slots.iter().filter_map(|s| Some(format!("{}: {}", s.bookie, s.failure.as_ref()?)));
        let reason = failed.collect::<Vec<_>>().join("; ");
        let reason = if reason.is_empty() { "answers are missing".to_owned() } else { reason };
        LedgerError::QuorumUnavailable { ledger_id: self.ledger_id, reason }
    }

    /// Failed members are tried again as they are, except those that may not be members any more (W3).
    fn reinstate(&mut self, now_ms: u64) {
        let failed = self.layout.all().without(self.healthy).without(self.barred);
        for slot in failed.iter() {
            let bookie = self.slots[slot].bookie.clone();
            self.slots[slot] = Slot::new(bookie, now_ms);
            self.count_again(now_ms, slot);
        }
    }

    fn count_again(&mut self, now_ms: u64, slot: usize) {
        self.healthy.insert(slot);
        self.given_up.remove_all(SlotSet::one(slot));
        for pending in &mut self.window {
            pending.acks.remove_all(SlotSet::one(slot));
        }
        self.send(now_ms, slot, 0, |_, _| true);
    }

    fn after_change(&mut self, now_ms: u64) {
        self.advance();
        let failed = self.layout.all().without(self.healthy);
        if !failed.is_empty() && now_ms >= self.retry_at_ms && self.changing.is_none() {
            self.begin_change(now_ms);
        }
    }

    fn front_unconfirmed(&self) -> Option<&Pending> {
        self.window.get((self.confirmed + 1 - self.window_first) as usize)
    }

    /// Answers needed for an entry.
    fn needed(&self, entry: EntryId) -> u32 {
        let quorum = self.layout.ack_quorum();
        match self.mode {
            Mode::Append => quorum,
            Mode::Rewrite => quorum.max(self.layout.write_set(entry).without(self.given_up).len()),
        }
    }

    /// Confirms what can be confirmed (W1) and lets go of what is no longer needed (W7).
    fn advance(&mut self) {
        let before = self.confirmed;
        while let Some(pending) = self.front_unconfirmed() {
            let entry = EntryId(self.confirmed + 1);
            if pending.acks.and(self.healthy).len() < self.needed(entry) {
                break;
            }
            self.confirmed_bytes += pending.entry.len() as u64;
            self.confirmed += 1;
        }
        if self.confirmed > before {
            self.effects.push(WriterEffect::Confirmed(EntryId(self.confirmed)));
        }
        self.trim();
        if self.phase == Phase::Closing && self.window.is_empty() && self.changing.is_none() {
            self.phase = Phase::Drained;
            self.effects.push(WriterEffect::Drained);
        }
    }

    fn trim(&mut self) {
        let confirmed = (self.confirmed + 1 - self.window_first) as usize;
        let kept_max = if self.changing.is_some() { self.times.window_keep_bytes } else { 0 };
        let mut kept: u64 = if kept_max == 0 {
            u64::MAX
        } else {
            self.window.iter().take(confirmed).map(|p| p.entry.len() as u64).sum()
        };
        for _ in 0..confirmed {
            if kept <= kept_max {
                break;
            }
            if let Some(gone) = self.window.pop_front() {
                self.window_first += 1;
                kept = kept.saturating_sub(gone.entry.len() as u64);
            }
        }
    }

    /// Gives back what only a busy writer needs. For a writer that [`Self::is_quiet`].
    pub fn rest(&mut self) {
        self.window.shrink_to_fit();
        self.effects.shrink_to_fit();
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        if matches!(self.phase, Phase::Ended(_) | Phase::Drained) {
            return;
        }
        if self.busy_at_ms.is_some_and(|at| at <= now_ms) {
            self.busy_at_ms = None;
            for slot in self.healthy.iter() {
                self.send(now_ms, slot, 0, |pending, slot| pending.refused.has(slot));
            }
        }
        self.fail_the_silent(now_ms);
        if self.front_unconfirmed().is_some_and(|p| p.sent_ms + self.times.give_up_ms <= now_ms) {
            return self.finish(self.quorum_unavailable());
        }
        let retry = self.healthy != self.layout.all() && !self.window.is_empty() && self.changing.is_none();
        if retry && now_ms >= self.retry_at_ms {
            self.begin_change(now_ms);
        }
        let idle = self.front_unconfirmed().is_none() && now_ms >= self.last_send_ms + self.times.lac_idle_ms;
        if idle && self.told < self.confirmed && self.mode == Mode::Append {
            self.told = self.confirmed;
            let bookies = self.healthy.iter().map(|slot| self.slots[slot].bookie.clone()).collect();
            self.effects.push(WriterEffect::TellLac { bookies, last_add_confirmed: EntryId(self.confirmed) });
        }
    }

    /// Members that have answered nothing for too long, and those that lost the answer of the entry at the front.
    fn fail_the_silent(&mut self, now_ms: u64) {
        let timeout = self.times.add_timeout_ms;
        let front = EntryId(self.confirmed + 1);
        let overdue = self.front_unconfirmed().filter(|p| p.sent_ms + timeout <= now_ms).map(|p| p.acks);
        for slot in self.healthy.iter() {
            let member = &self.slots[slot];
            let silent = member.answered < member.sent && member.progress_ms + timeout <= now_ms;
            let lost = overdue.is_some_and(|acks| !acks.has(slot) && self.layout.write_set(front).has(slot))
                && member.since_ms + timeout <= now_ms;
            if silent || lost {
                self.fail(now_ms, slot, BookieError::Timeout(timeout));
            }
        }
    }

    /// No more appends; [`WriterEffect::Drained`] follows when everything appended is confirmed.
    pub fn close(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
            self.advance();
        }
    }

    /// Ends the writer (W4).
    pub fn finish(&mut self, error: LedgerError) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        self.effects.retain(|effect| matches!(effect, WriterEffect::Confirmed(_)));
        self.effects.push(WriterEffect::Ended(error.clone()));
        self.phase = Phase::Ended(error);
        self.window = VecDeque::new();
        self.window_first = self.confirmed + 1;
        self.changing = None;
    }
}
