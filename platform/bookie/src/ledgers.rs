//! What is known of ledgers in memory: fenced or not, last-add-confirmed, last entry.
//!
//! Role: states are loaded from the index at first touch and leave memory when they are stored and idle, so that memory
//! follows the ledgers in use, not those that exist.
//! Invariants: G1 a state in memory is never older than the stored one; G2 once fenced, always fenced (S3); G3 a state
//! that differs from the stored one stays in memory.
//! Must never know: entries' bytes.

use crate::error::StorageError;
use crate::index::{Index, StoredLedger};
use meridian_bookie_api::FenceState;
use meridian_types::{EntryId, LedgerId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Idle states kept in memory.
pub const IDLE_STATES_MAX: usize = 16_384;

#[derive(Debug, Clone, Copy)]
pub(crate) struct LedgerState {
    pub fenced: bool,
    pub last_add_confirmed: EntryId,
    pub last_entry: EntryId,
    dirty: bool,
    /// The fence is in an entry log or must still go there.
    fence_logged: bool,
    /// The fence is synced in the journal or stored in the index.
    fence_durable: bool,
    touched: u32,
}

impl LedgerState {
    /// As told to a client.
    pub fn told(&self) -> FenceState {
        FenceState { last_add_confirmed: self.last_add_confirmed, last_entry: self.last_entry }
    }

    /// Notes a last-add-confirmed.
    pub fn raise_lac(&mut self, last_add_confirmed: EntryId) {
        if last_add_confirmed > self.last_add_confirmed {
            self.last_add_confirmed = last_add_confirmed;
            self.dirty = true;
        }
    }

    /// Notes an entry.
    pub fn note_entry(&mut self, entry_id: EntryId) {
        self.last_entry = self.last_entry.max(entry_id);
    }

    /// Whether an earlier fence needs no further record.
    pub fn fence_durable(&self) -> bool {
        self.fenced && self.fence_durable
    }

    /// The fence's record is synced.
    pub fn fence_is_durable(&mut self) {
        self.fence_durable = self.fenced;
    }

    /// Fences (G2).
    pub fn fence(&mut self) {
        if !self.fenced {
            self.fenced = true;
            self.dirty = true;
        }
    }
}

#[derive(Default)]
struct Table {
    states: HashMap<LedgerId, LedgerState>,
    generation: u32,
}

/// See the module.
pub(crate) struct Ledgers {
    table: Mutex<Table>,
    index: Arc<Index>,
}

/// A state to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dirty {
    pub ledger_id: LedgerId,
    pub stored: StoredLedger,
    /// Its fence must also go to an entry log.
    pub log_fence: bool,
}

/// The table, locked for one batch.
pub(crate) struct Locked<'a> {
    table: MutexGuard<'a, Table>,
    index: &'a Index,
}

impl Locked<'_> {
    /// The state of a ledger, made if `create` and unknown.
    pub fn get(&mut self, ledger_id: LedgerId, create: bool) -> Result<Option<&mut LedgerState>, StorageError> {
        let table = &mut *self.table;
        if !table.states.contains_key(&ledger_id) {
            let state = match self.index.ledger(ledger_id)? {
                Some(stored) => LedgerState {
                    fenced: stored.fenced,
                    last_add_confirmed: stored.last_add_confirmed,
                    last_entry: self.index.last_entry(ledger_id)?,
                    dirty: false,
                    fence_logged: stored.fenced,
                    fence_durable: stored.fenced,
                    touched: table.generation,
                },
                None if create => LedgerState {
                    fenced: self.index.was_fenced(ledger_id)?,
                    last_add_confirmed: EntryId::NONE,
                    last_entry: EntryId::NONE,
                    dirty: true,
                    fence_logged: false,
                    fence_durable: false,
                    touched: table.generation,
                },
                None => return Ok(None),
            };
            table.states.insert(ledger_id, state);
        }
        let mut state = table.states.get_mut(&ledger_id);
        if let Some(state) = &mut state {
            state.touched = table.generation;
        }
        Ok(state)
    }
}

impl Locked<'_> {
    /// Forgets a deleted ledger.
    pub fn remove(&mut self, ledger_id: LedgerId) {
        self.table.states.remove(&ledger_id);
    }
}

impl Ledgers {
    pub fn new(index: Arc<Index>) -> Self {
        Self { table: Mutex::new(Table::default()), index }
    }

    /// Locks the table for one batch.
    pub fn lock(&self) -> Locked<'_> {
        Locked { table: self.table.lock(), index: &self.index }
    }

    /// States that differ from the stored ones; they count as stored from now on.
    pub fn take_dirty(&self) -> Vec<Dirty> {
        let mut table = self.table.lock();
        table.generation = table.generation.wrapping_add(1);
        let mut dirty: Vec<_> = table
            .states
            .iter_mut()
            .filter(|(_, state)| state.dirty)
            .map(|(ledger_id, state)| {
                state.dirty = false;
                let log_fence = state.fenced && !state.fence_logged;
                state.fence_logged = state.fenced;
                let stored = StoredLedger { fenced: state.fenced, last_add_confirmed: state.last_add_confirmed };
                Dirty { ledger_id: *ledger_id, stored, log_fence }
            })
            .collect();
        dirty.sort_unstable_by_key(|dirty| dirty.ledger_id);
        dirty
    }

    /// Storing failed: they differ again.
    pub fn put_back(&self, dirty: &[Dirty]) {
        let mut table = self.table.lock();
        for one in dirty {
            if let Some(state) = table.states.get_mut(&one.ledger_id) {
                state.dirty = true;
                state.fence_logged &= !one.log_fence;
            }
        }
    }

    /// Lets idle stored states leave memory (G3). `in_use` tells ledgers with entries in a cache.
    pub fn forget_idle(&self, in_use: impl Fn(LedgerId) -> bool) {
        let mut table = self.table.lock();
        if table.states.len() <= IDLE_STATES_MAX {
            return;
        }
        let generation = table.generation;
        table
            .states
            .retain(|ledger_id, state| state.dirty || generation.wrapping_sub(state.touched) < 2 || in_use(*ledger_id));
        table.states.shrink_to_fit();
    }

    /// Every ledger known, in order.
    pub fn list(&self) -> Result<Vec<LedgerId>, StorageError> {
        let table = self.table.lock();
        let mut ids: Vec<_> = self.index.ledgers()?.into_iter().map(|(id, _)| id).collect();
        ids.extend(table.states.keys());
        drop(table);
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Changes;

    fn store(ledgers: &Ledgers, index: &Index) {
        let mut changes = Changes::default();
        for dirty in ledgers.take_dirty() {
            changes.put_ledger(dirty.ledger_id, dirty.stored);
        }
        index.apply(changes).unwrap();
    }

    #[test]
    fn idle_states_leave_memory_and_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let index = Arc::new(Index::open(dir.path()).unwrap());
        let ledgers = Ledgers::new(Arc::clone(&index));
        let count = IDLE_STATES_MAX as i64 + 100;
        for ledger in 0..count {
            let mut locked = ledgers.lock();
            let state = locked.get(LedgerId(ledger), true).unwrap().unwrap();
            state.raise_lac(EntryId(ledger));
            if ledger % 2 == 0 {
                state.fence();
            }
        }
        ledgers.forget_idle(|_| false);
        assert_eq!(ledgers.table.lock().states.len() as i64, count, "not stored yet (G3)");
        store(&ledgers, &index);
        store(&ledgers, &index);
        ledgers.lock().get(LedgerId(7), false).unwrap().unwrap().raise_lac(EntryId(1000));
        ledgers.forget_idle(|ledger_id| ledger_id == LedgerId(8));
        assert_eq!(ledgers.table.lock().states.len(), 2, "one differs, one has entries in a cache");
        let mut locked = ledgers.lock();
        for ledger in [5, 6] {
            let state = locked.get(LedgerId(ledger), false).unwrap().unwrap();
            assert_eq!((state.fenced, state.last_add_confirmed), (ledger % 2 == 0, EntryId(ledger)));
        }
        assert!(locked.get(LedgerId(count), false).unwrap().is_none());
    }

    #[test]
    fn a_failed_store_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = Ledgers::new(Arc::new(Index::open(dir.path()).unwrap()));
        ledgers.lock().get(LedgerId(1), true).unwrap().unwrap().fence();
        let first = ledgers.take_dirty();
        assert!(first[0].log_fence);
        assert!(ledgers.take_dirty().is_empty());
        ledgers.put_back(&first);
        assert!(ledgers.take_dirty()[0].log_fence);
    }
}
