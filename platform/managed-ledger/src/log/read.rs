//! Reading: tail cache, then catch-up blocks, then storage.
//!
//! Invariants: H3 (a block is read from storage once); a read never answers empty while there is an entry at or after
//! `from`; R1 an entry that every replica *says* it has lost or damaged is passed over only if the operator's setting
//! allows it, after [`LOST_ATTEMPTS`] reads, counted, and acked for every cursor, so that mark-delete passes it too.
//! Failure: without that setting a lost entry fails every read that needs it.

use super::{ManagedLedger, body_of};
use crate::api::{AckPosition, LogEntry, LogError};
use crate::cache::catch_up::{Blocks, Landing, Next};
use meridian_ledger::{LedgerError, LedgerReader};
use meridian_types::{LedgerId, Position};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Closed ledgers whose readers are kept.
const READERS_KEPT: usize = 4;
/// Reads of an entry that every replica calls lost before it is passed over.
const LOST_ATTEMPTS: u32 = 3;
/// Pause between them.
const LOST_PAUSE: Duration = Duration::from_millis(100);

impl ManagedLedger {
    /// Entries at or after `from`, over ledger ends, up to the last confirmed; empty = caught up.
    ///
    /// # Errors
    /// [`LogError::Ledger`] if storage does not answer, [`LogError::Corrupt`] if an envelope is damaged.
    pub async fn read(&self, from: Position, max_entries: u32, max_bytes: u64) -> Result<Vec<LogEntry>, LogError> {
        let mut from = from;
        // After the first lost entry of a run its neighbours are not asked for as often again.
        let mut attempts = 0;
        loop {
            let Some(at) = self.place_or_cached(from, max_entries, max_bytes) else { return Ok(Vec::new()) };
            let at = match at {
                Place::Cached(entries) => return Ok(entries),
                Place::Stored(at) => at,
            };
            let settings = *self.shared.catch_up.settings();
            match Blocks::ask(&self.blocks, at, max_entries, max_bytes, settings.read_ahead_entries) {
                Next::Entries(entries, next) => {
                    if let Some(landing) = next {
                        self.read_ahead(landing);
                    }
                    self.shared.catch_up.hits.fetch_add(entries.len() as u64, Ordering::Relaxed);
                    return Ok(entries);
                }
                Next::Wait(done) => done.await,
                Next::Read(landing) => {
                    let (entries, bytes) = (settings.read_ahead_entries, settings.read_ahead_bytes);
                    let entries = match self.read_stored(at, entries, bytes).await {
                        Ok(entries) => entries,
                        // Trimmed, or left out for good: go on behind it.
                        Err(error) if self.passed_over(at, &error).await => continue,
                        Err(error) if is_lost_entry(at, &error) && self.settings().skip_unreadable => {
                            attempts += 1;
                            if attempts < LOST_ATTEMPTS {
                                drop(landing);
                                tokio::time::sleep(LOST_PAUSE).await;
                                continue;
                            }
                            self.leave_out_entry(at, &error);
                            from = at.next_in_ledger();
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    let block = landing.land(entries, &self.shared.catch_up, self.shared.coarse_now_ms());
                    return Ok(crate::cache::tail::take(block.iter(), max_entries, max_bytes));
                }
            }
        }
    }

    /// Whether a read failed because its ledger is no longer of the log, or is lost and may be left out.
    async fn passed_over(&self, at: Position, error: &LogError) -> bool {
        if self.view.lock().layout.ledger(at.ledger_id).is_none() {
            return true;
        }
        let lost = matches!(error, LogError::Ledger(LedgerError::NoSuchLedger(_)));
        lost && self.settings().skip_unreadable && self.leave_out(at.ledger_id).await.is_ok()
    }

    /// Goes on without an entry that every replica lost (R1).
    fn leave_out_entry(&self, at: Position, error: &LogError) {
        self.shared.entries_skipped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(log = %self.name, entry = %at, %error, "entry is lost; going on behind it");
        let lost = AckPosition { position: at, unacked_batch_indexes: None, messages: 0 };
        for cursor in self.cursors() {
            cursor.ack(std::slice::from_ref(&lost));
        }
    }

    /// Reads the next block while the reader is still busy with this one. A failure is met again by who needs the block.
    fn read_ahead(&self, landing: Landing) {
        let at = landing.first();
        let exists = {
            let view = self.view.lock();
            at <= view.layout.last_confirmed() && view.layout.next_valid(at) == at
        };
        if !exists {
            return;
        }
        self.spawn(async move |log| {
            let settings = *log.shared.catch_up.settings();
            if let Ok(read) = log.read_stored(at, settings.read_ahead_entries, settings.read_ahead_bytes).await {
                landing.land(read, &log.shared.catch_up, log.shared.coarse_now_ms());
            }
        });
    }

    /// The same without a wait, if everything stands in the tail cache; `None` = go through [`ManagedLedger::read`].
    pub fn try_read_cached(&self, from: Position, max_entries: u32, max_bytes: u64) -> Option<Vec<LogEntry>> {
        let entries = self.view.lock().read(from, max_entries, max_bytes)?;
        self.shared.tail.hit(entries.len());
        Some(entries)
    }

    fn place_or_cached(&self, from: Position, max_entries: u32, max_bytes: u64) -> Option<Place> {
        let view = self.view.lock();
        if let Some(entries) = view.read(from, max_entries, max_bytes) {
            self.shared.tail.hit(entries.len());
            return Some(Place::Cached(entries));
        }
        let at = view.layout.next_valid(from);
        (at <= view.layout.last_confirmed()).then_some(Place::Stored(at))
    }

    async fn read_stored(&self, at: Position, max_entries: u32, max_bytes: u64) -> Result<Vec<LogEntry>, LogError> {
        // Not beyond what is confirmed to the sink: the writer may know more.
        let confirmed = self.view.lock().layout.ledger(at.ledger_id).map_or(0, |ledger| ledger.entries);
        let there = (confirmed as i64).saturating_sub(at.entry_id.0).clamp(1, i64::from(u32::MAX)) as u32;
        let reader = self.reader(at.ledger_id).await?;
        let stored = reader.read(at.entry_id, max_entries.min(there), max_bytes).await?;
        self.shared.catch_up.count_read(stored.len());
        let mut entries = Vec::with_capacity(stored.len());
        for entry in &stored {
            match body_of(at.ledger_id, entry) {
                Ok(entry) => entries.push(entry),
                // What stands before the damage can be used.
                Err(error) if entries.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(entries)
    }

    /// The reader of a ledger: its writer if it is open here.
    pub(crate) async fn reader(&self, ledger_id: LedgerId) -> Result<Arc<dyn LedgerReader>, LogError> {
        if let Some(current) = self.order.lock().current.as_ref().filter(|current| current.ledger_id == ledger_id) {
            return Ok(current.writer.clone());
        }
        let known = self.readers.lock().iter().find(|(id, _)| *id == ledger_id).map(|(_, reader)| reader.clone());
        if let Some(reader) = known {
            return Ok(reader);
        }
        let reader = self.shared.ledgers.open(ledger_id).await?;
        // An open ledger's reader would not see what is confirmed later.
        let closed = self.view.lock().layout.ledger(ledger_id).is_some_and(|ledger| ledger.closed_ms.is_some());
        if closed {
            let mut readers = self.readers.lock();
            if readers.len() >= READERS_KEPT {
                readers.remove(0);
            }
            readers.push((ledger_id, reader.clone()));
        }
        Ok(reader)
    }

    /// The entry at exactly that position.
    ///
    /// # Errors
    /// [`LogError::BadPosition`] if there is none; as [`ManagedLedger::read`].
    pub async fn read_entry(&self, position: Position) -> Result<LogEntry, LogError> {
        if self.next_valid(position) != position || position > self.last_confirmed() {
            return Err(LogError::BadPosition(position));
        }
        if let Some(entry) = self.try_read_cached(position, 1, 0).and_then(|read| read.into_iter().next()) {
            return Ok(entry);
        }
        self.read_stored(position, 1, 0).await?.into_iter().next().ok_or(LogError::BadPosition(position))
    }

    /// The first entry after the last one whose time is below `publish_time_ms`: the first of all if none is, the end of
    /// the log if all are. Times are taken to ascend.
    ///
    /// # Errors
    /// As [`ManagedLedger::read`].
    pub async fn find_by_time(
        &self,
        publish_time_ms: u64,
        time_of: &(dyn Fn(&LogEntry) -> u64 + Sync),
    ) -> Result<Position, LogError> {
        let (mut low, mut high) = {
            let view = self.view.lock();
            (view.layout.ordinal(Position::EARLIEST), view.layout.ordinal(Position::LATEST))
        };
        while low < high {
            let middle = low + (high - low) / 2;
            let at = self.view.lock().layout.at_ordinal(middle);
            match self.read_entry(at).await {
                Ok(entry) if time_of(&entry) < publish_time_ms => low = middle + 1,
                Ok(_) => high = middle,
                // Trimmed meanwhile: what is looked for lies behind.
                Err(LogError::BadPosition(_)) => low = middle + 1,
                Err(error) if is_lost_entry(at, &error) && self.settings().skip_unreadable => low = middle + 1,
                Err(error) => return Err(error),
            }
        }
        Ok(self.view.lock().layout.at_ordinal(low))
    }
}

/// Whether every replica said that it has not got the entry, or a damaged one.
fn is_lost_entry(at: Position, error: &LogError) -> bool {
    match error {
        LogError::Ledger(LedgerError::Corrupt { entry_id, .. }) => *entry_id == at.entry_id,
        LogError::Corrupt(_) => true,
        _ => false,
    }
}

enum Place {
    Cached(Vec<LogEntry>),
    Stored(Position),
}
