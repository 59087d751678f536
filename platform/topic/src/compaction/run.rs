//! The shell of a compaction: reads twice, writes a ledger, changes the properties.
//!
//! Invariants: C10 no more than [`UNCONFIRMED_MAX_BYTES`] wait for storage, and none for longer than
//! [`CONFIRM_DEADLINE`] without progress; C11 a read takes at most [`READ_BYTES`], so that memory is bounded by keys.

use super::latest::{LatestByKey, open};
use super::rewrite::{Remains, rewrite};
use super::{CompactedView, CompactionError, HORIZON_PROPERTY, Horizon, PENDING_PROPERTY, stored};
use crate::api::BoxFuture;
use meridian_ledger::{AppendEvent, AppendSink, LedgerError, LedgerOptions, LedgerWriter, Ledgers};
use meridian_managed_ledger::{LogEntry, LogError};
use meridian_types::{EntryId, LedgerId, Position};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const READ_ENTRIES: u32 = 500;
const READ_BYTES: u64 = 4 << 20;
/// Bytes of the new ledger that may wait for storage.
const UNCONFIRMED_MAX_BYTES: usize = 16 << 20;
/// Storage that confirms nothing for so long has failed.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(60);

/// What a compaction needs of a log.
pub trait CompactionSource: Send + Sync {
    /// Entries at or after a position; empty = no more.
    fn read(&self, from: Position, max_entries: u32, max_bytes: u64) -> BoxFuture<'_, Result<Vec<LogEntry>, LogError>>;
    /// Last confirmed position.
    fn last_confirmed(&self) -> Position;
    /// Properties of the log.
    fn properties(&self) -> BTreeMap<String, String>;
    /// Sets these properties (an empty value removes one) and leaves the others, in one durable write.
    fn change_properties(&self, changes: BTreeMap<String, String>) -> BoxFuture<'_, Result<(), LogError>>;
}

/// How to compact.
#[derive(Debug, Clone)]
pub struct CompactionOptions {
    /// Of the new ledger.
    pub ledger: LedgerOptions,
    /// Keep messages without a key.
    pub keep_keyless: bool,
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The new view.
    pub horizon: Horizon,
    /// Entries looked at.
    pub entries_in: u64,
    /// Bytes looked at.
    pub bytes_in: u64,
    /// Entries kept.
    pub entries_out: u64,
    /// Bytes kept.
    pub bytes_out: u64,
    /// Keys that have a latest message.
    pub keys: u64,
}

/// Compacts a log up to its last confirmed position; `None` if nothing came since the last time.
///
/// # Errors
/// [`CompactionError`]; the view is then as it was.
pub async fn compact(
    source: &dyn CompactionSource,
    ledgers: &dyn Ledgers,
    options: &CompactionOptions,
) -> Result<Option<Compacted>, CompactionError> {
    let properties = source.properties();
    let old = Horizon::of(&properties);
    delete_left_over(&properties, old, source, ledgers).await?;
    let end = source.last_confirmed();
    if end.entry_id < EntryId(0) || old.is_some_and(|old| old.position >= end) {
        return Ok(None);
    }
    let view = match old {
        Some(old) => Some(CompactedView::new(old, ledgers.open(old.ledger_id).await?)),
        None => None,
    };
    let input = Input { source, view, end };
    let mut latest = LatestByKey::default();
    let (mut entries_in, mut bytes_in) = (0, 0);
    let mut at = Position::new(0, 0);
    while let Some(entries) = input.read(&mut at).await? {
        for entry in entries.iter().filter(|entry| !entry.marker) {
            entries_in += 1;
            bytes_in += entry.payload.len() as u64;
            latest.observe(entry.position, open(&entry.payload));
        }
    }
    let mut output = Output::create(source, ledgers, options).await?;
    let written = write(&input, &latest, options.keep_keyless, &mut output).await;
    let horizon = Horizon { ledger_id: output.writer.id(), position: end };
    if let Err(error) = written {
        delete(ledgers, horizon.ledger_id).await;
        return Err(error);
    }
    // If this fails it may have happened all the same: whichever ledger does not count is deleted by the next run.
    count(source, horizon, old).await?;
    if let Some(old) = old {
        delete(ledgers, old.ledger_id).await;
    }
    let (entries_out, bytes_out, keys) = (output.entries, output.bytes, latest.live_keys());
    Ok(Some(Compacted { horizon, entries_in, bytes_in, entries_out, bytes_out, keys }))
}

async fn write(
    input: &Input<'_>,
    latest: &LatestByKey,
    keep_keyless: bool,
    output: &mut Output,
) -> Result<(), CompactionError> {
    let mut at = Position::new(0, 0);
    while let Some(entries) = input.read(&mut at).await? {
        for entry in entries.iter().filter(|entry| !entry.marker) {
            match rewrite(entry.position, &entry.payload, latest, keep_keyless) {
                Remains::Nothing => {}
                Remains::Whole => output.put(entry, entry.payload.clone()).await?,
                Remains::Part(payload) => output.put(entry, payload).await?,
            }
        }
    }
    output.writer.close().await?;
    Ok(())
}

/// C1: one write makes the new ledger the view and the old one a left-over.
async fn count(source: &dyn CompactionSource, new: Horizon, old: Option<Horizon>) -> Result<(), CompactionError> {
    let left_over = old.map_or(String::new(), |old| old.ledger_id.to_string());
    let changes = [(HORIZON_PROPERTY, new.to_property()), (PENDING_PROPERTY, left_over)];
    let changes = changes.map(|(name, value)| (name.to_owned(), value));
    Ok(source.change_properties(changes.into()).await?)
}

/// A ledger that an earlier compaction did not come to finish or to delete.
async fn delete_left_over(
    properties: &BTreeMap<String, String>,
    current: Option<Horizon>,
    source: &dyn CompactionSource,
    ledgers: &dyn Ledgers,
) -> Result<(), CompactionError> {
    let left_over = properties.get(PENDING_PROPERTY).and_then(|text| text.parse().ok()).map(LedgerId);
    let Some(left_over) = left_over else { return Ok(()) };
    if current.is_none_or(|current| current.ledger_id != left_over) {
        ledgers.delete(left_over).await?;
    }
    source.change_properties([(PENDING_PROPERTY.to_owned(), String::new())].into()).await?;
    Ok(())
}

/// Best effort: [`PENDING_PROPERTY`] still names the ledger if this fails.
async fn delete(ledgers: &dyn Ledgers, ledger_id: LedgerId) {
    if let Err(error) = ledgers.delete(ledger_id).await {
        tracing::warn!(%ledger_id, %error, "compacted ledger not deleted now; the next compaction does it");
    }
}

/// The old view, then the log behind it.
struct Input<'a> {
    source: &'a dyn CompactionSource,
    view: Option<CompactedView>,
    end: Position,
}

impl Input<'_> {
    /// The next entries up to the end, and moves `at` behind them; `None` = no more.
    async fn read(&self, at: &mut Position) -> Result<Option<Vec<LogEntry>>, CompactionError> {
        if let Some(view) = &self.view
            && *at <= view.horizon().position
        {
            let entries = view.read(*at, READ_ENTRIES, READ_BYTES).await?;
            if let Some(last) = entries.last() {
                *at = last.position.next_in_ledger();
                return Ok(Some(entries));
            }
            *at = view.horizon().position.next_in_ledger();
        }
        if *at > self.end {
            return Ok(None);
        }
        let mut entries = self.source.read(*at, READ_ENTRIES, READ_BYTES).await?;
        entries.retain(|entry| entry.position <= self.end);
        let Some(last) = entries.last() else { return Ok(None) };
        *at = last.position.next_in_ledger();
        Ok(Some(entries))
    }
}

#[derive(Debug, Clone)]
struct Progress {
    confirmed: EntryId,
    ended: Option<LedgerError>,
}

struct Confirmations(watch::Sender<Progress>);

impl AppendSink for Confirmations {
    fn append_event(&self, event: AppendEvent) {
        self.0.send_modify(|progress| match event {
            AppendEvent::Confirmed { up_to, .. } => progress.confirmed = progress.confirmed.max(up_to),
            AppendEvent::Ended { error, .. } => progress.ended = Some(error),
        });
    }
}

/// The new ledger.
struct Output {
    writer: Arc<dyn LedgerWriter>,
    progress: watch::Receiver<Progress>,
    unconfirmed_bytes: usize,
    entries: u64,
    bytes: u64,
}

impl Output {
    async fn create(
        source: &dyn CompactionSource,
        ledgers: &dyn Ledgers,
        options: &CompactionOptions,
    ) -> Result<Self, CompactionError> {
        let (sender, progress) = watch::channel(Progress { confirmed: EntryId::NONE, ended: None });
        let writer = ledgers.create(options.ledger.clone(), Arc::new(Confirmations(sender))).await?;
        let pending = (PENDING_PROPERTY.to_owned(), writer.id().to_string());
        if let Err(error) = source.change_properties([pending].into()).await {
            delete(ledgers, writer.id()).await;
            return Err(error.into());
        }
        Ok(Self { writer, progress, unconfirmed_bytes: 0, entries: 0, bytes: 0 })
    }

    async fn put(&mut self, entry: &LogEntry, payload: bytes::Bytes) -> Result<(), CompactionError> {
        let stored = stored::encode(entry, payload);
        self.unconfirmed_bytes += stored.len();
        self.entries += 1;
        self.bytes += stored.body.len() as u64;
        let appended = self.writer.append(vec![stored])?;
        if self.unconfirmed_bytes > UNCONFIRMED_MAX_BYTES {
            self.confirmed_up_to(appended).await?;
            self.unconfirmed_bytes = 0;
        }
        Ok(())
    }

    async fn confirmed_up_to(&mut self, entry: EntryId) -> Result<(), CompactionError> {
        loop {
            let now = self.progress.borrow_and_update().clone();
            if let Some(error) = now.ended {
                return Err(error.into());
            }
            if now.confirmed >= entry {
                return Ok(());
            }
            let timed_out = CompactionError::TimedOut(CONFIRM_DEADLINE.as_secs());
            match tokio::time::timeout(CONFIRM_DEADLINE, self.progress.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(timed_out),
            }
        }
    }
}
