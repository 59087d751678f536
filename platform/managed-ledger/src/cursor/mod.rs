//! What one subscription has acknowledged.
//!
//! Role: [`Cursor`] puts a lock and persistence around the pure [`ack_set::AckSet`].
//! Invariants: L4; D1 an ack is in force when the call returns and durable when a later [`Cursor::persisted`] returns; D2 at
//! most one persist of a cursor is in flight, all acks meanwhile join the next one; D3 a cursor that nothing happens to
//! costs nothing: changed ones stand in a list of the process, others are not looked at.
//! Memory: an idle cursor is its name and this struct.
//! Must never know: subscriptions, consumers, tenants.

pub mod ack_set;
pub mod codec;
pub(crate) mod load;
pub(crate) mod persist;

use crate::api::{AckOutcome, AckPosition, CursorInfo, LogError};
use crate::layout::{Layout, after};
use crate::log::ManagedLedger;
use ack_set::{AckSet, AckState, Acked, BatchWords};
use meridian_types::{LedgerId, Position};
use parking_lot::Mutex;
use persist::{Store, Waiter};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Acked ranges shown in statistics at most.
const RANGES_SHOWN: usize = 1000;

/// See the head of the file and [`crate::api`].
pub struct Cursor {
    pub(crate) me: Weak<Cursor>,
    pub(crate) log: Weak<ManagedLedger>,
    pub(crate) name: Arc<str>,
    pub(crate) durable: bool,
    pub(crate) internal: bool,
    pub(crate) created_ms: u64,
    pub(crate) state: Mutex<State>,
}

pub(crate) struct State {
    pub acks: AckSet,
    /// Grows with every change.
    pub generation: u64,
    /// The generation that is durable.
    pub durable_generation: u64,
    pub persisted_mark_delete: Position,
    pub flushing: bool,
    /// In the process's list of changed cursors.
    pub listed: bool,
    /// Deleted, or its log is closed.
    pub ended: bool,
    /// The record (properties) must be written.
    pub record_changed: bool,
    pub waiters: Vec<Waiter>,
    pub store: Option<Box<Store>>,
    /// The ledger that the record names.
    pub record_ledger: Option<LedgerId>,
    pub properties: BTreeMap<String, String>,
    pub last_active_ms: u64,
    pub last_advanced_ms: u64,
    pub last_flush_ms: u64,
}

/// How a cursor begins.
pub(crate) struct CursorStart {
    pub name: Arc<str>,
    pub durable: bool,
    pub internal: bool,
    pub created_ms: u64,
    pub acks: AckSet,
    pub record_ledger: Option<LedgerId>,
    pub properties: BTreeMap<String, String>,
}

impl Cursor {
    pub(crate) fn new(log: Weak<ManagedLedger>, start: CursorStart) -> Arc<Self> {
        let state = State {
            generation: 0,
            durable_generation: 0,
            persisted_mark_delete: start.acks.mark_delete(),
            acks: start.acks,
            flushing: false,
            listed: false,
            ended: false,
            record_changed: false,
            waiters: Vec::new(),
            store: None,
            record_ledger: start.record_ledger,
            properties: start.properties,
            last_active_ms: start.created_ms,
            last_advanced_ms: 0,
            last_flush_ms: 0,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            log,
            name: start.name,
            durable: start.durable,
            internal: start.internal,
            created_ms: start.created_ms,
            state: Mutex::new(state),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kept over restarts.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Not a tenant's.
    pub fn is_internal(&self) -> bool {
        self.internal
    }

    /// Acks entries or parts of them: in force when this returns.
    pub fn ack(&self, acks: &[AckPosition]) -> AckOutcome {
        self.change(|set, layout| {
            let mut sum = Sum::default();
            for ack in acks {
                sum.add(match &ack.unacked_batch_indexes {
                    None => set.ack(layout, ack.position, ack.messages),
                    Some(words) => set.ack_partly(layout, ack.position, words, ack.messages),
                });
            }
            sum
        })
    }

    /// Acks everything before the given entry, and the entry or its given part.
    pub fn ack_cumulative(&self, ack: AckPosition) -> AckOutcome {
        self.change(|set, layout| {
            let mut sum = Sum::default();
            match &ack.unacked_batch_indexes {
                None => sum.add(set.ack_up_to(layout, ack.position)),
                Some(_) if ack.position > layout.last_confirmed() => sum.beyond += 1,
                Some(words) => {
                    sum.add(set.ack_up_to(layout, layout.previous(ack.position)));
                    sum.add(set.ack_partly(layout, ack.position, words, ack.messages));
                }
            }
            sum
        })
    }

    fn change(&self, change: impl FnOnce(&mut AckSet, &Layout) -> Sum) -> AckOutcome {
        let Some(log) = self.log.upgrade() else {
            let mark_delete = self.mark_delete();
            return AckOutcome { entries: 0, messages: 0, beyond: 0, mark_delete, moved: false };
        };
        let mut state = self.state.lock();
        let before = state.acks.mark_delete();
        let sum = change(&mut state.acks, &log.view.lock().layout);
        let mark_delete = state.acks.mark_delete();
        if sum.changed {
            self.touch(&mut state, &log);
        }
        if mark_delete != before {
            state.last_advanced_ms = state.last_active_ms;
        }
        AckOutcome {
            entries: sum.entries,
            messages: sum.messages,
            beyond: sum.beyond,
            mark_delete,
            moved: mark_delete != before,
        }
    }

    /// Something changed: it must be persisted, soon (D3).
    pub(crate) fn touch(&self, state: &mut State, log: &ManagedLedger) {
        state.generation += 1;
        state.last_active_ms = log.shared.coarse_now_ms();
        if self.durable && !state.listed {
            state.listed = true;
            log.shared.list_changed(self.me.clone());
        }
    }

    /// What is acked, with its generation, unless that is the given one.
    pub fn acks_since(&self, generation: Option<u64>) -> Option<(u64, AckState)> {
        let state = self.state.lock();
        (generation != Some(state.generation)).then(|| (state.generation, state.acks.state()))
    }

    /// Everything up to here is acked.
    pub fn mark_delete(&self) -> Position {
        self.state.lock().acks.mark_delete()
    }

    /// The mark-delete that survives a crash.
    pub fn persisted_mark_delete(&self) -> Position {
        self.state.lock().persisted_mark_delete
    }

    /// The first position not acked; it may not exist yet.
    pub fn read_start(&self) -> Position {
        self.next_unacked(Position::EARLIEST)
    }

    /// Whether the whole entry is acked.
    pub fn is_acked(&self, position: Position) -> bool {
        self.state.lock().acks.is_acked(position)
    }

    /// The unacked batch indexes of a partly acked entry: words, 1 = unacked.
    pub fn unacked_batch_indexes(&self, position: Position) -> Option<Vec<u64>> {
        self.state.lock().acks.partial(position).map(|words| words.to_vec())
    }

    /// For a run of entries: which of them are wholly acked, under one lock.
    pub fn acked_of(&self, positions: impl Iterator<Item = Position>) -> Vec<bool> {
        let state = self.state.lock();
        positions.map(|position| state.acks.is_acked(position)).collect()
    }

    /// The first position at or after `from` that is not acked; it may not exist yet.
    pub fn next_unacked(&self, from: Position) -> Position {
        let state = self.state.lock();
        match self.log.upgrade() {
            Some(log) => state.acks.next_unacked(&log.view.lock().layout, from),
            None => from.max(after(state.acks.mark_delete())),
        }
    }

    /// Entries not acked.
    pub fn backlog_entries(&self) -> u64 {
        let state = self.state.lock();
        self.log.upgrade().map_or(0, |log| state.acks.backlog(&log.view.lock().layout))
    }

    /// Moves the cursor: the given entry (or the next existing one) is the first one unread. Durable when this returns; on
    /// an error it is in force here and may or may not survive a crash.
    ///
    /// # Errors
    /// As [`Cursor::persisted`].
    pub async fn reset(&self, to: Position, batch_set: Option<Vec<u64>>) -> Result<(), LogError> {
        let log = self.log()?;
        {
            let mut state = self.state.lock();
            let view = log.view.lock();
            let first = view.layout.next_valid(to);
            let mark_delete = view.layout.previous(first);
            let partial = batch_set.filter(|_| first == to && first <= view.layout.last_confirmed());
            drop(view);
            state.acks.reset(mark_delete, partial.map(|words| (first, BatchWords::from(words))));
            // Trimming must stop there from now on, not from the persist on.
            state.persisted_mark_delete = state.persisted_mark_delete.min(mark_delete);
            self.touch(&mut state, &log);
        }
        self.persisted().await
    }

    /// Acks the next `entries` unacked entries.
    ///
    /// # Errors
    /// [`LogError::Closed`].
    pub async fn skip(&self, entries: u64) -> Result<AckOutcome, LogError> {
        self.log()?;
        Ok(self.change(|set, layout| {
            let mut sum = Sum::default();
            let mut last = None;
            let mut at = set.next_unacked(layout, Position::EARLIEST);
            for _ in 0..entries {
                if at > layout.last_confirmed() {
                    break;
                }
                last = Some(at);
                at = set.next_unacked(layout, after(at));
            }
            if let Some(last) = last {
                sum.add(set.ack_up_to(layout, last));
            }
            sum
        }))
    }

    /// Acks everything there is.
    ///
    /// # Errors
    /// [`LogError::Closed`].
    pub async fn clear_backlog(&self) -> Result<AckOutcome, LogError> {
        self.log()?;
        Ok(self.change(|set, layout| {
            let mut sum = Sum::default();
            sum.add(set.ack_up_to(layout, layout.last_confirmed()));
            sum
        }))
    }

    /// The `nth` (from 1) unacked entry's position.
    pub fn nth_unacked(&self, nth: u64) -> Option<Position> {
        let log = self.log.upgrade()?;
        let state = self.state.lock();
        let view = log.view.lock();
        let mut at = state.acks.next_unacked(&view.layout, Position::EARLIEST);
        for _ in 1..nth {
            if at > view.layout.last_confirmed() {
                return None;
            }
            at = state.acks.next_unacked(&view.layout, after(at));
        }
        (nth > 0 && at <= view.layout.last_confirmed()).then_some(at)
    }

    /// The cursor's properties.
    pub fn properties(&self) -> BTreeMap<String, String> {
        self.state.lock().properties.clone()
    }

    /// Replaces the cursor's properties; durable when this returns.
    ///
    /// # Errors
    /// As [`Cursor::persisted`].
    pub async fn set_properties(&self, properties: BTreeMap<String, String>) -> Result<(), LogError> {
        let log = self.log()?;
        {
            let mut state = self.state.lock();
            if state.properties == properties {
                return Ok(());
            }
            state.properties = properties;
            state.record_changed = true;
            self.touch(&mut state, &log);
        }
        self.persisted().await
    }

    /// Statistics.
    pub fn info(&self) -> CursorInfo {
        let backlog_entries = self.backlog_entries();
        let state = self.state.lock();
        let (acked_ranges, acked_range_count) = state.acks.ranges(RANGES_SHOWN);
        CursorInfo {
            name: self.name.to_string(),
            durable: self.durable,
            internal: self.internal,
            mark_delete: state.acks.mark_delete(),
            persisted_mark_delete: state.persisted_mark_delete,
            acked_ranges,
            acked_range_count,
            backlog_entries,
            cursor_ledger: state.record_ledger,
            dirty: self.durable && state.generation != state.durable_generation,
            last_active_ms: state.last_active_ms,
            last_advanced_ms: state.last_advanced_ms,
            properties: state.properties.clone(),
        }
    }

    /// Steps over what was trimmed.
    pub(crate) fn settle(&self, log: &ManagedLedger) {
        let mut state = self.state.lock();
        state.acks.settle(&log.view.lock().layout);
    }

    fn log(&self) -> Result<Arc<ManagedLedger>, LogError> {
        match self.log.upgrade() {
            Some(log) if !self.state.lock().ended => Ok(log),
            _ => Err(LogError::Closed(self.name.to_string())),
        }
    }
}

#[derive(Default)]
struct Sum {
    entries: u64,
    messages: u64,
    beyond: u32,
    changed: bool,
}

impl Sum {
    fn add(&mut self, acked: Acked) {
        self.entries += acked.entries;
        self.messages += acked.messages;
        self.beyond += u32::from(acked.beyond);
        self.changed |= acked.changed;
    }
}
