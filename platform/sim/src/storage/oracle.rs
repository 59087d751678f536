//! The checkers: their own books of what was appended, confirmed, closed, read, acknowledged, deleted.
//!
//! A violation begins with the checker's word: `copies`, `writer`, `lost`, `readers`, `lac`, `content`, `state`, `holdings`,
//! `cursor`, `deleted`, `epoch`, `stuck`.

use super::metadata::LogRecord;
use super::net::Address;
use super::world::World;
use bytes::Bytes;
use meridian_bookie_api::AddEntry;
use meridian_ledger::{LedgerRecord, LedgerState};
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::{BTreeMap, BTreeSet};

/// See the head of the file.
#[derive(Default)]
pub(super) struct Oracle {
    pub violations: Vec<String>,
    appended: BTreeMap<(LedgerId, i64), Bytes>,
    /// Who confirms a ledger.
    writers: BTreeMap<LedgerId, (usize, u64)>,
    confirmed: BTreeMap<LedgerId, i64>,
    acked: BTreeSet<Position>,
    /// Where ledgers ended that are gone.
    ended: BTreeMap<LedgerId, i64>,
    /// Some copy was damaged in this run.
    pub damaged: bool,
    /// For the violations.
    pub now_ms: u64,
}

impl Oracle {
    pub fn violation(&mut self, text: String) {
        self.violations.push(format!("{text} (at {} ms)", self.now_ms));
    }

    pub fn ensure(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violation(text());
        }
    }

    pub fn created(&mut self, ledger: LedgerId) {
        self.confirmed.entry(ledger).or_insert(-1);
    }

    pub fn appended(&mut self, ledger: LedgerId, entry: i64, body: Bytes) {
        let before = self.appended.insert((ledger, entry), body);
        self.ensure(before.is_none(), || format!("writer: {ledger}:{entry} was appended twice"));
    }

    pub fn acked(&mut self, position: Position) {
        self.acked.insert(position);
    }

    pub fn is_acked(&self, position: Position) -> bool {
        self.acked.contains(&position)
    }

    pub fn confirmed_of(&self, ledger: LedgerId) -> i64 {
        self.confirmed.get(&ledger).copied().unwrap_or(-1)
    }

    pub fn ledgers(&self) -> Vec<LedgerId> {
        self.confirmed.keys().copied().collect()
    }

    pub fn bytes_up_to(&self, ledger: LedgerId, up_to: EntryId) -> u64 {
        let run = self.appended.range((ledger, 0)..=(ledger, up_to.0));
        run.map(|(_, body)| body.len() as u64).sum()
    }
}

impl World {
    /// S1: at the moment of the news every entry has an ack quorum of durable copies where metadata says, and one process
    /// confirms a ledger.
    pub(super) fn check_confirmed(&mut self, by: Address, ledger: LedgerId, up_to: EntryId) {
        let before = self.oracle.confirmed_of(ledger);
        self.oracle.ensure(up_to.0 > before, || format!("writer: {ledger}:{up_to} was confirmed after {before}"));
        let writer = *self.oracle.writers.entry(ledger).or_insert((by.proc, by.life));
        self.oracle.ensure(writer == (by.proc, by.life), || format!("writer: two confirm ledger {ledger}"));
        // A lost bookie had what it had: S1 is about what was durable when the answer was given.
        let lost = usize::from(self.bookies.iter().any(|bookie| bookie.lost));
        let needed = (self.plan.ack_quorum as usize).saturating_sub(lost);
        if let Some(last) = self.oracle.ended.get(&ledger).copied() {
            // A paused owner hears late of what a recovery kept, and what was read and trimmed since.
            self.oracle
                .ensure(up_to.0 <= last, || format!("writer: {ledger}:{up_to} was confirmed, it ended at {last}"));
            self.oracle.confirmed.insert(ledger, up_to.0.max(before));
            return;
        }
        for entry in before + 1..=up_to.0 {
            let holders = self.holders(ledger, entry);
            let copies = holders.into_iter().filter(|at| self.bookies[*at].durable(ledger, entry).is_some()).count();
            self.oracle.ensure(copies >= needed, || format!("copies: {ledger}:{entry} confirmed with {copies} copies"));
            self.coverage.confirmed += 1;
        }
        if let Some((record, _)) = self.metadata.ledgers.get(&ledger) {
            let beyond = record.state == LedgerState::Closed && up_to > record.last_entry;
            let last = record.last_entry;
            self.oracle.ensure(!beyond, || format!("writer: {ledger}:{up_to} was confirmed behind the end at {last}"));
        }
        self.oracle.confirmed.insert(ledger, up_to.0.max(before));
    }

    /// The last-add-confirmed that bookies hear of is never above what is confirmed, and entries have one content.
    pub(super) fn check_told(&mut self, at: usize, adds: &[AddEntry]) {
        for add in adds {
            self.check_lac(add.ledger_id, add.last_add_confirmed.0, "that of an add");
            let appended = self.oracle.appended.get(&(add.ledger_id, add.entry_id.0));
            let same = appended.is_some_and(|body| *body == add.entry.to_bytes());
            self.oracle.ensure(same, || format!("content: {}:{} differs on bookie {at}", add.ledger_id, add.entry_id));
        }
    }

    pub(super) fn check_lac(&mut self, ledger: LedgerId, told: i64, what: &str) {
        let mut known = self.oracle.confirmed_of(ledger);
        if let Some((record, _)) = self.metadata.ledgers.get(&ledger)
            && record.state == LedgerState::Closed
        {
            known = known.max(record.last_entry.0);
        }
        // A ledger that is gone tells nothing any more.
        let gone = !self.metadata.ledgers.contains_key(&ledger);
        self.oracle
            .ensure(told <= known || gone, || format!("lac: {what} says {told} of {ledger}, {known} is confirmed"));
    }

    /// States never go back, a close keeps what was confirmed, and an ensemble that changes keeps its copies.
    pub(super) fn check_transition(&mut self, ledger: LedgerId, new: &LedgerRecord, by_replication: bool) {
        let Some((old, _)) = self.metadata.ledgers.get(&ledger).cloned() else { return };
        let forward = match old.state {
            LedgerState::Open => true,
            LedgerState::InRecovery => new.state != LedgerState::Open,
            LedgerState::Closed => new.state == LedgerState::Closed && new.last_entry == old.last_entry,
        };
        self.oracle.ensure(forward, || format!("state: {ledger} went from {:?} to {:?}", old.state, new.state));
        let confirmed = self.oracle.confirmed_of(ledger);
        let kept = new.state != LedgerState::Closed || new.last_entry.0 >= confirmed;
        self.oracle.ensure(kept, || format!("lost: {ledger} closes at {}, {confirmed} is confirmed", new.last_entry));
        let known = confirmed.max(if new.state == LedgerState::Closed { new.last_entry.0 } else { -1 });
        for entry in 0..=known {
            self.check_moved(ledger, &old, new, EntryId(entry), by_replication);
        }
        // The writer alone, or a recovery, changes an open end.
        let touched = old.state != LedgerState::Closed && new.last_ensemble() != old.last_ensemble();
        self.oracle
            .ensure(!(by_replication && touched), || format!("state: re-replication changed the open end of {ledger}"));
    }

    /// An entry that is known to be confirmed has its copies where the new record says: every new member of an ensemble that
    /// was mended, and an ack quorum of one that the writer changed.
    fn check_moved(&mut self, ledger: LedgerId, old: &LedgerRecord, new: &LedgerRecord, entry: EntryId, mended: bool) {
        let (before, after) = (old.ensemble_of(entry).0, new.ensemble_of(entry).0);
        if before.bookies == after.bookies {
            return;
        }
        // Whoever was lost meanwhile had it when it answered.
        let has = |slot: &usize| {
            let at = self.bookie_at(&after.bookies[*slot]);
            at.is_some_and(|at| self.bookies[at].lost || self.bookies[at].durable(ledger, entry.0).is_some())
        };
        let slots = new.layout.write_set(entry);
        let copies = slots.iter().filter(has).count();
        let missing = slots.iter().find(|slot| mended && before.bookies[*slot] != after.bookies[*slot] && !has(slot));
        let lacks = missing.map(|slot| after.bookies[slot].clone());
        let few = copies < self.plan.ack_quorum as usize;
        self.oracle.ensure(lacks.is_none(), || {
            format!("copies: {ledger}:{entry} is said to be on {lacks:?}, which has it not")
        });
        self.oracle.ensure(!few, || format!("copies: {ledger}:{entry} is left with {copies} copies"));
    }

    /// The holdings of a ledger are the members of its ensembles.
    pub(super) fn check_holdings(&mut self, ledger: LedgerId) {
        let Some((record, _)) = self.metadata.ledgers.get(&ledger) else { return };
        let members: BTreeSet<_> = record.ensembles.iter().flat_map(|e| e.bookies.iter().cloned()).collect();
        let held = self.metadata.holdings.iter().filter(|(_, of)| *of == ledger).map(|(bookie, _)| bookie.clone());
        let held: BTreeSet<_> = held.collect();
        self.oracle
            .ensure(members == held, || format!("holdings: {ledger} has {members:?}, the holdings are {held:?}"));
    }

    /// Readers agree with the writer.
    pub(super) fn check_read(&mut self, ledger: LedgerId, entry: EntryId, payload: &Bytes) {
        let same = self.oracle.appended.get(&(ledger, entry.0)).is_some_and(|body| body == payload);
        self.oracle.ensure(same, || format!("readers: {ledger}:{entry} was read as {payload:?}"));
    }

    /// No cursor passes an entry that was not acknowledged; epochs rise; nothing unacknowledged leaves the list.
    pub(super) fn check_log(&mut self, new: &LogRecord) {
        let old = self.metadata.log.clone();
        let rises = new.epoch > old.epoch || (new.epoch == old.epoch && new.owner == old.owner);
        self.oracle
            .ensure(rises, || format!("epoch: {} of {} after {} of {}", new.epoch, new.owner, old.epoch, old.owner));
        // What left the list before was judged then.
        let in_list = old.ledgers.iter().map(|ledger| (ledger.id, self.oracle.confirmed_of(ledger.id)));
        let confirmed: Vec<Position> = in_list.flat_map(|(ledger, last)| positions(ledger, last)).collect();
        let mark = new.acks.as_ref().map(|state| state.mark_delete);
        for position in confirmed {
            let acked = self.oracle.is_acked(position);
            let passed = mark.is_some_and(|mark| position <= mark);
            self.oracle.ensure(acked || !passed, || format!("cursor: {position:?} is passed and was not acknowledged"));
            let listed = |list: &LogRecord| list.ledgers.iter().any(|ledger| ledger.id == position.ledger_id);
            let trimmed = listed(&old) && !listed(new);
            self.oracle
                .ensure(acked || !trimmed, || format!("deleted: {position:?} is trimmed and was not acknowledged"));
        }
    }

    /// Nothing that is referenced is deleted.
    pub(super) fn check_delete(&mut self, ledger: LedgerId) {
        let referenced = self.metadata.log.ledgers.iter().any(|listed| listed.id == ledger);
        self.oracle.ensure(!referenced, || format!("deleted: ledger {ledger} is in the log's list"));
        if let Some((record, _)) = self.metadata.ledgers.get(&ledger) {
            self.oracle.ended.insert(ledger, record.last_entry.0);
        }
    }
}

fn positions(ledger: LedgerId, last: i64) -> impl Iterator<Item = Position> {
    (0..=last).map(move |entry| Position { ledger_id: ledger, entry_id: EntryId(entry) })
}
