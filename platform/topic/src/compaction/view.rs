//! Reading what a compaction left.
//!
//! Invariants: C9 a read answers entries at or after a position, none beyond the horizon, in order, none twice.
//! Failure: [`CompactionError`]; a view that cannot be read is no reason to lose the log behind it.

use super::{CompactionError, Horizon, stored};
use crate::compaction::latest::{Content, open};
use meridian_ledger::LedgerReader;
use meridian_managed_ledger::LogEntry;
use meridian_types::{EntryId, Position};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Places that readers stopped at and will go on from.
const PLACES_MAX: usize = 16;

/// A compacted ledger, open for reading.
pub struct CompactedView {
    horizon: Horizon,
    ledger: Arc<dyn LedgerReader>,
    /// (position to go on from, entry of the compacted ledger there).
    places: Mutex<VecDeque<(Position, EntryId)>>,
}

impl CompactedView {
    /// Over an open compacted ledger.
    pub fn new(horizon: Horizon, ledger: Arc<dyn LedgerReader>) -> Self {
        Self { horizon, ledger, places: Mutex::new(VecDeque::new()) }
    }

    /// Which ledger, and how far it reaches.
    pub fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// Entries that stayed.
    pub fn entries(&self) -> u64 {
        u64::try_from(self.ledger.last_confirmed().next().0).unwrap_or(0)
    }

    /// Bytes that stayed.
    pub fn bytes(&self) -> u64 {
        self.ledger.length_bytes()
    }

    /// Entries at or after `from`; empty = nothing more up to the horizon.
    ///
    /// # Errors
    /// [`CompactionError`] if the ledger cannot be read.
    pub async fn read(
        &self,
        from: Position,
        max_entries: u32,
        max_bytes: u64,
    ) -> Result<Vec<LogEntry>, CompactionError> {
        let first = self.find(from).await?;
        if first > self.ledger.last_confirmed() {
            return Ok(Vec::new());
        }
        let raw = self.ledger.read(first, max_entries.max(1), max_bytes).await?;
        let next = EntryId(first.0 + raw.len() as i64);
        let entries = raw.iter().map(|one| stored::decode(&one.payload)).collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = entries.last() {
            let mut places = self.places.lock();
            places.push_front((last.position.next_in_ledger(), next));
            places.truncate(PLACES_MAX);
        }
        Ok(entries)
    }

    /// The last entry that stayed, and the index of its last message that did (-1 if it is no batch).
    ///
    /// # Errors
    /// [`CompactionError`] if the ledger cannot be read.
    pub async fn last_message(&self) -> Result<Option<(Position, i32)>, CompactionError> {
        let last = self.ledger.last_confirmed();
        if last < EntryId(0) {
            return Ok(None);
        }
        let entry = self.entry(last).await?;
        let batch_index = match open(&entry.payload) {
            Content::Batch(messages) => messages.iter().rposition(|(metadata, _)| !metadata.compacted_out()),
            Content::Closed if entry.messages > 1 => Some(entry.messages as usize - 1),
            _ => None,
        };
        Ok(Some((entry.position, batch_index.map_or(-1, |index| index as i32))))
    }

    /// The first entry of the compacted ledger at or after a position of the log.
    async fn find(&self, from: Position) -> Result<EntryId, CompactionError> {
        let known = self.places.lock().iter().find(|(position, _)| *position == from).map(|(_, entry)| *entry);
        if let Some(entry) = known {
            return Ok(entry);
        }
        let (mut low, mut high) = (0, self.ledger.last_confirmed().0 + 1);
        if from <= Position::new(0, 0) {
            return Ok(EntryId(low));
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(EntryId(middle)).await?.position < from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(EntryId(low))
    }

    async fn entry(&self, at: EntryId) -> Result<LogEntry, CompactionError> {
        let raw = self.ledger.read(at, 1, 1).await?;
        let one = raw.first().ok_or_else(|| CompactionError::Corrupt(format!("entry {at} is missing")))?;
        stored::decode(&one.payload)
    }
}
