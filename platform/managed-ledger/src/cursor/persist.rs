//! Making a cursor's state durable.
//!
//! A cursor's changes go to a ledger of its own as deltas behind a snapshot ([`super::codec`]); its record in metadata names
//! that ledger. A new snapshot is written when the deltas since the last one outweigh it, a new ledger when the old one has
//! grown. On a clean close a small state goes into the record and the ledger is deleted.
//! Invariants: D1, D2; D4 a record names a ledger only after a snapshot in it is durable; D5 the record changes only while
//! this owner has the log (L2), so a stale owner can't bring an old state back.
//! Failure: the ledger is given up and the next persist writes a snapshot into a new one; who waits is told.

use super::ack_set::AckState;
use super::codec::{StateKind, encode_chunks, encode_state};
use super::{Cursor, State};
use crate::api::LogError;
use crate::keys;
use crate::log::ManagedLedger;
use crate::log::meta::put;
use crate::records::{CursorRecord, encode};
use bytes::Bytes;
use meridian_bookie_api::EntryBytes;
use meridian_ledger::{AppendEvent, AppendSink, LedgerError, LedgerWriter};
use meridian_metadata::{Condition, Operation};
use meridian_types::{EntryId, LedgerId, Position};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// A state up to that size may stand in the record.
const RECORD_STATE_BYTES: usize = 8 * 1024;
/// Deltas worth less than that do not ask for a snapshot.
const MIN_DELTA_BYTES: u64 = 64 * 1024;
/// A cursor's ledger is changed when it has grown over this.
const LEDGER_BYTES: u64 = 16 << 20;
const LEDGER_ENTRIES: i64 = 50_000;
/// A persist that takes longer has failed.
const PERSIST_LIMIT: Duration = Duration::from_secs(30);

/// Waits for a generation to be durable.
pub(crate) type Waiter = (u64, oneshot::Sender<Result<(), LogError>>);

/// The ledger that a cursor is writing.
pub(crate) struct Store {
    writer: Arc<dyn LedgerWriter>,
    sink: Arc<StoreSink>,
    snapshot_first: EntryId,
    snapshot_bytes: u64,
    delta_bytes: u64,
    total_bytes: u64,
}

/// Hears of the store's confirmations.
#[derive(Default)]
struct StoreSink {
    news: Mutex<(Option<EntryId>, Option<LedgerError>)>,
    told: Notify,
}

impl AppendSink for StoreSink {
    fn append_event(&self, event: AppendEvent) {
        {
            let mut news = self.news.lock();
            match event {
                AppendEvent::Confirmed { up_to, .. } => news.0 = Some(up_to),
                AppendEvent::Ended { error, .. } => news.1 = Some(error),
            }
        }
        self.told.notify_waiters();
    }
}

impl StoreSink {
    async fn confirmed(&self, entry: EntryId) -> Result<(), LogError> {
        loop {
            let told = self.told.notified();
            {
                let news = self.news.lock();
                if news.0.is_some_and(|up_to| up_to >= entry) {
                    return Ok(());
                }
                if let Some(error) = &news.1 {
                    return Err(error.clone().into());
                }
            }
            told.await;
        }
    }
}

impl Store {
    fn wants_snapshot(&self) -> bool {
        self.delta_bytes > self.snapshot_bytes.max(MIN_DELTA_BYTES)
    }

    fn is_full(&self) -> bool {
        self.total_bytes > LEDGER_BYTES || self.writer.next_entry_id() >= EntryId(LEDGER_ENTRIES)
    }

    /// Writes a state and waits until it is durable.
    async fn write(&mut self, kind: StateKind, state: &AckState) -> Result<(), LogError> {
        let chunks = encode_chunks(kind, state, self.snapshot_first);
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let count = chunks.len() as i64;
        let first = self.writer.append(chunks.into_iter().map(EntryBytes::plain).collect())?;
        let last = EntryId(first.0 + count - 1);
        match tokio::time::timeout(PERSIST_LIMIT, self.sink.confirmed(last)).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                let reason = format!("cursor state not durable within {} s", PERSIST_LIMIT.as_secs());
                return Err(LedgerError::QuorumUnavailable { ledger_id: self.writer.id(), reason }.into());
            }
        }
        self.total_bytes += bytes;
        match kind {
            StateKind::Snapshot => {
                (self.snapshot_first, self.snapshot_bytes, self.delta_bytes) = (first, bytes, 0);
            }
            StateKind::Delta => self.delta_bytes += bytes,
        }
        Ok(())
    }
}

/// One persist.
struct Job {
    generation: u64,
    mark_delete: Position,
    state: AckState,
    whole: bool,
    record: bool,
    store: Option<Box<Store>>,
}

impl State {
    fn is_durable(&self) -> bool {
        self.generation == self.durable_generation
    }

    fn take_job(&mut self) -> Job {
        let store = self.store.take().filter(|store| !store.is_full());
        if store.as_ref().is_none_or(|store| store.wants_snapshot()) {
            self.acks.everything_changed();
        }
        let (state, whole) = self.acks.take_changes();
        Job {
            generation: self.generation,
            mark_delete: self.acks.mark_delete(),
            state,
            whole,
            record: std::mem::take(&mut self.record_changed),
            store,
        }
    }

    fn wake(&mut self, outcome: &Result<(), LogError>) {
        let durable = self.durable_generation;
        for (generation, waiter) in std::mem::take(&mut self.waiters) {
            if outcome.is_err() || generation <= durable {
                // Who does not wait any more does not care.
                let _ = waiter.send(outcome.clone());
            } else {
                self.waiters.push((generation, waiter));
            }
        }
    }
}

impl Cursor {
    /// Waits until all acks so far are durable.
    ///
    /// # Errors
    /// Storage or metadata failed, or [`LogError::Fenced`] / [`LogError::Closed`]: nothing is known of the acks since the
    /// last success.
    pub async fn persisted(&self) -> Result<(), LogError> {
        let told = {
            let mut state = self.state.lock();
            if !self.durable || state.is_durable() {
                return Ok(());
            }
            if state.ended {
                return Err(LogError::Closed(self.name.to_string()));
            }
            let (tell, told) = oneshot::channel();
            let generation = state.generation;
            state.waiters.push((generation, tell));
            self.begin_flush(&mut state);
            told
        };
        told.await.unwrap_or_else(|_| Err(LogError::Closed(self.name.to_string())))
    }

    /// Persists what changed, unless a persist is in flight (D2) or the last one is younger than the interval. Answers
    /// whether the cursor must stay listed.
    pub(crate) fn flush_if_due(&self, now_ms: u64) -> bool {
        let Some(log) = self.log.upgrade() else { return false };
        let interval_ms = log.settings().cursor_flush_interval_ms;
        let mut state = self.state.lock();
        if state.ended || state.is_durable() {
            state.listed = false;
            return false;
        }
        if now_ms < state.last_flush_ms.saturating_add(interval_ms) {
            return true;
        }
        state.listed = false;
        state.last_flush_ms = now_ms;
        self.begin_flush(&mut state);
        false
    }

    fn begin_flush(&self, state: &mut State) {
        if state.flushing {
            return;
        }
        let (Some(cursor), Some(log)) = (self.me.upgrade(), self.log.upgrade()) else { return };
        state.flushing = true;
        log.shared.runtime.clone().spawn(async move { cursor.flush(&log).await });
    }

    /// Persists until nobody waits for more.
    async fn flush(&self, log: &Arc<ManagedLedger>) {
        loop {
            let job = {
                let mut state = self.state.lock();
                if state.ended || state.is_durable() {
                    break;
                }
                state.take_job()
            };
            let (generation, mark_delete) = (job.generation, job.mark_delete);
            let outcome = self.save(log, job).await;
            let mut state = self.state.lock();
            let before = state.persisted_mark_delete;
            match &outcome {
                Ok(()) => {
                    state.durable_generation = generation;
                    // A reset meanwhile has lowered it already.
                    let at_most = if state.is_durable() { mark_delete } else { state.acks.mark_delete() };
                    state.persisted_mark_delete = mark_delete.min(at_most);
                }
                Err(error) => {
                    tracing::warn!(log = %log.name, cursor = %self.name, %error, "persisting a cursor failed");
                    state.acks.everything_changed();
                    state.record_changed = true;
                }
            }
            state.wake(&outcome);
            let after = state.persisted_mark_delete;
            let more = outcome.is_ok() && !state.waiters.is_empty();
            if !state.is_durable() && !more && !state.listed && !state.ended {
                state.listed = true;
                log.shared.list_changed(self.me.clone());
            }
            drop(state);
            log.mark_delete_moved(before, after);
            if !more {
                break;
            }
        }
        self.end_flush(log);
    }

    fn end_flush(&self, log: &ManagedLedger) {
        {
            let mut state = self.state.lock();
            state.flushing = false;
            if !state.waiters.is_empty() && !state.ended {
                self.begin_flush(&mut state);
            }
        }
        log.drained.notify_waiters();
    }

    async fn save(&self, log: &Arc<ManagedLedger>, mut job: Job) -> Result<(), LogError> {
        if let Some(mut store) = job.store.take() {
            let kind = if job.whole { StateKind::Snapshot } else { StateKind::Delta };
            store.write(kind, &job.state).await?;
            if job.record {
                let ledger = Some(store.writer.id());
                self.write_record(log, ledger, only_mark_delete(&job.state)).await?;
            }
            self.state.lock().store = Some(store);
            return Ok(());
        }
        let inline = job.record.then(|| encode_state(&job.state)).filter(|raw| raw.len() <= RECORD_STATE_BYTES);
        if let Some(raw) = inline {
            return self.write_record(log, None, raw.into()).await;
        }
        self.save_in_new_ledger(log, &job.state).await
    }

    async fn save_in_new_ledger(&self, log: &Arc<ManagedLedger>, state: &AckState) -> Result<(), LogError> {
        let sink = Arc::new(StoreSink::default());
        let writer = log.shared.ledgers.create(log.ledger_options("cursor"), sink.clone()).await?;
        let ledger_id = writer.id();
        let mut store = Box::new(Store {
            writer,
            sink,
            snapshot_first: EntryId::NONE,
            snapshot_bytes: 0,
            delta_bytes: 0,
            total_bytes: 0,
        });
        let written = match store.write(StateKind::Snapshot, state).await {
            Ok(()) => self.write_record(log, Some(ledger_id), only_mark_delete(state)).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => self.state.lock().store = Some(store),
            // The record may name it if the outcome is unknown: then it must stay.
            Err(LogError::Metadata(_)) => {}
            Err(_) => drop(log.shared.ledgers.delete(ledger_id).await),
        }
        written
    }

    /// Writes the record (D5); a ledger that it named before and does not name any more is deleted.
    async fn write_record(
        &self,
        log: &Arc<ManagedLedger>,
        ledger: Option<LedgerId>,
        state: Bytes,
    ) -> Result<(), LogError> {
        let (operation, before) = self.record_operation(log, ledger, state);
        log.commit_owned(vec![operation]).await?;
        self.state.lock().record_ledger = ledger;
        if let Some(old) = before.filter(|old| ledger != Some(*old)) {
            // Named as doomed in the record: repeated at the next opening if this fails.
            let _ = log.shared.ledgers.delete(old).await;
        }
        Ok(())
    }

    pub(crate) fn record_operation(
        &self,
        log: &ManagedLedger,
        ledger: Option<LedgerId>,
        state: Bytes,
    ) -> (Operation, Option<LedgerId>) {
        let this = self.state.lock();
        let before = this.record_ledger;
        let record = CursorRecord {
            internal: self.internal,
            properties: this.properties.clone(),
            state,
            ledger_id: ledger.map(|id| id.0),
            doomed: before.filter(|old| ledger != Some(*old)).map(|old| old.0).into_iter().collect(),
            created_ms: self.created_ms,
        };
        (put(keys::cursor(&log.name, &self.name), encode(&record), Condition::Any), before)
    }

    /// Waits for the flush in flight and keeps others from starting.
    pub(crate) async fn hold_flushes(&self, log: &ManagedLedger) {
        loop {
            let ended = log.drained.notified();
            {
                let mut state = self.state.lock();
                if !state.flushing {
                    state.flushing = true;
                    return;
                }
            }
            ended.await;
        }
    }

    /// Ends this cursor: who waits is told, nothing is persisted any more.
    pub(crate) fn end(&self) -> Option<LedgerId> {
        let mut state = self.state.lock();
        state.ended = true;
        state.store = None;
        state.wake(&Err(LogError::Closed(self.name.to_string())));
        state.record_ledger
    }

    /// What a clean close writes for this cursor: the whole state in its record if it is small. Call while flushes are
    /// held. `None` = nothing to write that way.
    pub(crate) fn closing_operation(&self, log: &ManagedLedger) -> Option<(Operation, Option<LedgerId>)> {
        let raw = {
            let state = self.state.lock();
            let untouched = state.is_durable() && state.store.is_none() && !state.record_changed;
            if !self.durable || state.ended || untouched {
                return None;
            }
            encode_state(&state.acks.state())
        };
        (raw.len() <= RECORD_STATE_BYTES).then(|| self.record_operation(log, None, raw.into()))
    }

    /// A clean close of a state that is too large for the record: what changed goes into the ledger, which is closed.
    pub(crate) async fn close_large(&self, log: &Arc<ManagedLedger>) -> Result<(), LogError> {
        let job = {
            let mut state = self.state.lock();
            let clean = state.is_durable();
            (!clean && self.durable && !state.ended).then(|| state.take_job())
        };
        if let Some(job) = job {
            let generation = job.generation;
            self.save(log, job).await?;
            self.state.lock().durable_generation = generation;
        }
        let store = self.state.lock().store.take();
        if let Some(store) = store {
            store.writer.close().await?;
        }
        Ok(())
    }
}

/// The copy in the record of a state whose ledger knows better.
fn only_mark_delete(state: &AckState) -> Bytes {
    let mark_delete = state.mark_delete;
    encode_state(&AckState { mark_delete, acked: Default::default(), partial: Default::default() }).into()
}
