//! The node's parts in one place, and the add and fence paths over them.
//!
//! Invariants: B4 an add is judged, put into the write cache and queued to its journal under one lock with the fence
//! decision, so that no ordinary add is queued behind the fence of its ledger (S3); B5 a fence is answered after its
//! record is synced; B6 refused adds are answered in their turn.
//! Failure: see [`BookieError`].
//! Must never know: sockets.

use crate::cache::{Fill, WriteCache};
use crate::compaction::LastRuns;
use crate::config::BookieConfig;
use crate::disk::DiskState;
use crate::entrylog::EntryLogs;
use crate::entrylog::writer::LogWriter;
use crate::flush::FlushSignal;
use crate::index::Index;
use crate::journal::completion::Completion;
use crate::journal::record::RecordKind;
use crate::journal::{Batch, Control, Item, Journal};
use crate::ledgers::{Ledgers, Locked};
use crate::metrics::Metrics;
use crate::pool::ReadPool;
use crate::read::ReadCache;
use meridian_bookie_api::{AddEntry, AddResult, AddSink, BookieError, FenceState};
use meridian_types::{BookieId, EntryId, LedgerId, Repeats};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;

/// Why a node with little room refuses adds.
const DISK_LIMIT: &str = "disk use is above its limit";
/// Why a node without room refuses all adds.
const DISK_FULL: &str = "a disk is full";

pub(crate) struct Core {
    pub id: BookieId,
    pub config: BookieConfig,
    pub metrics: Metrics,
    pub ledgers: Ledgers,
    pub cache: Arc<WriteCache>,
    pub read_cache: Mutex<ReadCache>,
    pub index: Arc<Index>,
    pub logs: Arc<EntryLogs>,
    /// Held during a flush and while places change.
    pub log_writer: Mutex<LogWriter>,
    /// Set when replay is over.
    pub journals: OnceLock<Vec<Journal>>,
    pub completion: Arc<Completion>,
    pub pool: ReadPool,
    pub flush: FlushSignal,
    pub disk: RwLock<DiskState>,
    /// The cause why the last checkpoint failed; none since then has succeeded. It names no file, so that it is the same as
    /// long as the trouble is.
    pub flush_failure: Mutex<Option<String>>,
    /// Checkpoints that failed, as far as they were told.
    pub flush_trouble: Mutex<Repeats>,
    pub last_compaction: Mutex<LastRuns>,
    /// Logs with damage, left alone by compaction.
    pub damaged_logs: Mutex<BTreeSet<u32>>,
    pub closed: AtomicBool,
}

impl Core {
    fn journal_of(&self, ledger_id: LedgerId) -> Result<(usize, &Journal), BookieError> {
        let journals = self.journals.get().map_or(&[][..], Vec::as_slice);
        let at = ledger_id.0.rem_euclid(journals.len().max(1) as i64) as usize;
        let journal = journals.get(at).ok_or_else(|| BookieError::Unavailable("the bookie is starting".to_owned()))?;
        Ok((at, journal))
    }

    /// Stores entries; see [`meridian_bookie_api::Bookie::add`].
    pub fn add(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>) {
        self.metrics.add_entries.inc_by(entries.len() as u64);
        self.metrics.write_bytes.inc_by(entries.iter().map(|add| add.entry.len() as u64).sum());
        let journals = self.journals.get().map_or(0, Vec::len);
        if journals <= 1 {
            return self.add_to_one(entries, sink);
        }
        let mut parts: Vec<Vec<AddEntry>> = vec![Vec::new(); journals];
        for add in entries {
            parts[add.ledger_id.0.rem_euclid(journals as i64) as usize].push(add);
        }
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            self.add_to_one(part, Arc::clone(&sink));
        }
    }

    /// Adds whose ledgers share a journal.
    fn add_to_one(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>) {
        let Some(first) = entries.first() else { return };
        let journal = match self.journal_of(first.ledger_id) {
            Ok((_, journal)) => journal,
            Err(error) => return refuse_all(&self.id, entries, &*sink, error),
        };
        let shut = self.shut(journal);
        let disk = *self.disk.read();
        let mut refused: Vec<(usize, BookieError)> = Vec::new();
        let mut ledgers = self.ledgers.lock();
        for (at, add) in entries.iter().enumerate() {
            let verdict = match &shut {
                Some(error) => Err(error.clone()),
                None => self.judge(&mut ledgers, add, disk),
            };
            if let Err(error) = verdict {
                refused.push((at, error));
            }
        }
        self.metrics.refused_entries.inc_by(refused.len() as u64);
        let fill = if refused.len() == entries.len() {
            Fill::Room
        } else {
            self.cache.put(&entries, refused.iter().map(|(at, _)| at))
        };
        let pushed = journal.push(Item::Adds(Batch { entries, refused, sink }));
        drop(ledgers);
        if fill == Fill::Full {
            self.flush.request();
        }
        if let Err(Item::Adds(batch)) = pushed {
            let error = shut.unwrap_or_else(|| BookieError::Unavailable("the bookie is closing".to_owned()));
            refuse_all(&self.id, batch.entries, &*batch.sink, error);
        }
    }

    /// Why ordinary adds are refused, for as long as it lasts; a full queue is no such reason.
    pub fn refuses_adds(&self) -> Option<String> {
        let journals = self.journals.get().map_or(&[][..], Vec::as_slice);
        if let Some(reason) = journals.iter().find_map(Journal::failure) {
            return Some(format!("a journal has failed: {reason}"));
        }
        let disk = *self.disk.read();
        if disk == DiskState::Full {
            return Some(DISK_FULL.to_owned());
        }
        if let Some(reason) = self.flush_failure.lock().clone() {
            return Some(format!("checkpoints fail: {reason}"));
        }
        (disk == DiskState::ReadOnly).then(|| DISK_LIMIT.to_owned())
    }

    /// A reason to refuse everything.
    fn shut(&self, journal: &Journal) -> Option<BookieError> {
        if self.closed.load(Ordering::Relaxed) {
            return Some(BookieError::Unavailable("the bookie is closing".to_owned()));
        }
        if let Err(error) = journal.has_room() {
            return Some(error);
        }
        if let Some(reason) = &*self.flush_failure.lock() {
            return Some(BookieError::ReadOnly(format!("checkpoints fail: {reason}")));
        }
        if self.cache.is_overfull() {
            self.flush.request();
            return Some(BookieError::Busy("the write caches are full".to_owned()));
        }
        None
    }

    fn judge(&self, ledgers: &mut Locked<'_>, add: &AddEntry, disk: DiskState) -> Result<(), BookieError> {
        let bytes = add.entry.len() as u64;
        if bytes > self.config.max_entry_bytes {
            return Err(BookieError::TooLarge { bytes, max_bytes: self.config.max_entry_bytes });
        }
        if disk == DiskState::Full || (disk == DiskState::ReadOnly && !add.recovery) {
            return Err(BookieError::ReadOnly(DISK_LIMIT.to_owned()));
        }
        let state = ledgers.get(add.ledger_id, true).map_err(|error| error.to_bookie_error())?;
        let Some(state) = state else { return Err(BookieError::NoSuchLedger) };
        if state.fenced && !add.recovery {
            return Err(BookieError::Fenced);
        }
        state.raise_lac(add.last_add_confirmed);
        state.note_entry(add.entry_id);
        Ok(())
    }

    /// Fences durably (B5).
    pub async fn fence(&self, ledger_id: LedgerId) -> Result<FenceState, BookieError> {
        let waiting = self.begin_fence(ledger_id)?;
        if let Some(waiting) = waiting {
            let synced = waiting.await;
            synced.map_err(|_| BookieError::Unavailable("the bookie has closed".to_owned()))??;
        }
        let mut ledgers = self.ledgers.lock();
        let state = ledgers.get(ledger_id, true).map_err(|error| error.to_bookie_error())?;
        state
            .map(|state| {
                state.fence_is_durable();
                state.told()
            })
            .ok_or(BookieError::NoSuchLedger)
    }

    fn begin_fence(
        &self,
        ledger_id: LedgerId,
    ) -> Result<Option<oneshot::Receiver<Result<(), BookieError>>>, BookieError> {
        let (_, journal) = self.journal_of(ledger_id)?;
        let mut ledgers = self.ledgers.lock();
        let state = ledgers.get(ledger_id, true).map_err(|error| error.to_bookie_error())?;
        let Some(state) = state else { return Err(BookieError::NoSuchLedger) };
        if state.fence_durable() {
            return Ok(None);
        }
        state.fence();
        let (done, waiting) = oneshot::channel();
        let last_add_confirmed = state.last_add_confirmed;
        let control = Control { kind: RecordKind::Fence, ledger_id, last_add_confirmed, done: Some(done) };
        journal
            .push(Item::Control(control))
            .map_err(|_| BookieError::Unavailable("the journal takes no more records".to_owned()))?;
        Ok(Some(waiting))
    }

    /// What is known of a ledger.
    pub fn told(&self, ledger_id: LedgerId) -> Result<FenceState, BookieError> {
        let mut ledgers = self.ledgers.lock();
        let state = ledgers.get(ledger_id, false).map_err(|error| error.to_bookie_error())?;
        state.map(|state| state.told()).ok_or(BookieError::NoSuchLedger)
    }

    /// Notes an explicit last-add-confirmed.
    pub fn write_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> Result<(), BookieError> {
        let (_, journal) = self.journal_of(ledger_id)?;
        let mut ledgers = self.ledgers.lock();
        let state = ledgers.get(ledger_id, true).map_err(|error| error.to_bookie_error())?;
        let Some(state) = state else { return Err(BookieError::NoSuchLedger) };
        if state.fenced {
            return Err(BookieError::Fenced);
        }
        state.raise_lac(last_add_confirmed);
        journal.push_lazy_lac(ledger_id, last_add_confirmed);
        Ok(())
    }
}

fn refuse_all(bookie: &BookieId, entries: Vec<AddEntry>, sink: &dyn AddSink, error: BookieError) {
    let refuse =
        |add: AddEntry| AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result: Err(error.clone()) };
    sink.add_results(bookie, entries.into_iter().map(refuse).collect());
}
