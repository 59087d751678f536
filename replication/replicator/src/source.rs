//! Where a link reads from: the log of a topic and the link's cursor on it.
//!
//! Invariants: O1 an acknowledgement is what the machine said, nothing else; O2 entries that stand in the tail cache are
//! read without a wait and without a budget, all others through the catch-up cache and within the budget of the remote, so
//! a remote that lags neither evicts the tail nor starves another one; O3 a link that gets nothing of the budget in time
//! goes on entry by entry.
//! Must never know: peers, schemas.

use crate::budget::ReadBudget;
use crate::machine::words::{ReadEntry, StartPoint};
use meridian_managed_ledger::{AckPosition, Cursor, CursorOptions, InitialPosition, LogEntry, LogError, ManagedLedger};
use meridian_types::{Incarnation, Position};
use meridian_wire::replicate::cursor_name;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Key of the cursor's property that names the generation of the link's producer.
const GENERATION_KEY: &str = "meridian.link.generation";
/// Property of the cursor with the life of the topic that the remote had, as a decimal number.
const LIFE_KEY: &str = "meridian.link.life";

/// What to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// First position.
    pub from: Position,
    /// At most.
    pub max_entries: u32,
    /// At most, but one entry.
    pub max_bytes: u64,
    /// Entries up to here may be acknowledged: look.
    pub acked_up_to: Position,
}

/// A log and a cursor. Implemented by [`LogSource`].
pub trait Source: Send + Sync {
    /// Where the link begins.
    fn start(&self) -> StartPoint;
    /// Entries, if that takes no wait; `None` = use [`Source::read`].
    fn try_read(&self, request: ReadRequest) -> Option<Vec<ReadEntry>>;
    /// Entries; none = there are none yet.
    fn read(self: Arc<Self>, request: ReadRequest) -> BoxFuture<'static, Result<Vec<ReadEntry>, String>>;
    /// Until there is an entry at or after that position.
    fn wait(self: Arc<Self>, from: Position) -> BoxFuture<'static, Result<(), String>>;
    /// These entries are through.
    fn ack(&self, positions: &[Position]);
    /// Until all acknowledgements so far are durable.
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>>;
    /// Entries that are not through.
    fn backlog_entries(&self) -> u64;
    /// Keeps the generation of the producer's name, durably.
    fn save_generation(self: Arc<Self>, generation: u64) -> BoxFuture<'static, Result<(), String>>;
    /// Which life of the topic the remote has. If it is another one than before (the remote was rebuilt), the cursor goes
    /// back to the first message that the log still has, durably, and the answer is `true`.
    fn remote_life(self: Arc<Self>, life: u64) -> BoxFuture<'static, Result<bool, String>>;
}

/// The life of the topic that the remote of a link's cursor has, as it said last.
pub fn known_life(cursor: &Cursor) -> Option<Incarnation> {
    cursor.properties().get(LIFE_KEY)?.parse().ok().map(Incarnation)
}

/// A [`Source`] over a managed ledger.
pub struct LogSource {
    log: Arc<ManagedLedger>,
    cursor: Arc<Cursor>,
    created: bool,
    budget: Arc<ReadBudget>,
}

impl LogSource {
    /// Opens the cursor of the link to `remote`, created where `initial` says if there is none. A topic that is new has to
    /// do this before its first message.
    ///
    /// # Errors
    /// As [`ManagedLedger::open_cursor`].
    pub async fn open(
        log: Arc<ManagedLedger>,
        remote: &str,
        initial: InitialPosition,
        budget: Arc<ReadBudget>,
    ) -> Result<Arc<Self>, LogError> {
        let name = cursor_name(remote);
        let created = log.cursor(&name).is_none();
        let options = CursorOptions { durable: true, internal: true, ..CursorOptions::default() };
        let cursor = log.open_cursor(&name, initial, options).await?;
        Ok(Arc::new(Self { log, cursor, created, budget }))
    }

    /// The cursor of the link.
    pub fn cursor(&self) -> &Arc<Cursor> {
        &self.cursor
    }

    fn look(
        &self,
        entries: Vec<LogEntry>,
        acked_up_to: Position,
        hold: Option<crate::machine::words::Hold>,
    ) -> Vec<ReadEntry> {
        let acked = |at: Position| at <= acked_up_to && self.cursor.is_acked(at);
        let read = |entry: LogEntry| ReadEntry { acked: acked(entry.position), entry, hold: hold.clone() };
        entries.into_iter().map(read).collect()
    }
}

impl Source for LogSource {
    fn start(&self) -> StartPoint {
        let info = self.cursor.info();
        let first = self.cursor.read_start();
        let last_confirmed = self.log.last_confirmed();
        let shown_all = info.acked_ranges.len() as u64 == info.acked_range_count;
        let highest = info.acked_ranges.last().map(|(_, last)| if shown_all { *last } else { last_confirmed });
        StartPoint {
            first,
            last_confirmed,
            created: self.created,
            highest_acked: highest.filter(|highest| *highest > first),
            generation: info.properties.get(GENERATION_KEY).and_then(|text| text.parse().ok()).unwrap_or(0),
        }
    }

    fn try_read(&self, request: ReadRequest) -> Option<Vec<ReadEntry>> {
        let entries = self.log.try_read_cached(request.from, request.max_entries, request.max_bytes)?;
        Some(self.look(entries, request.acked_up_to, None))
    }

    fn read(self: Arc<Self>, request: ReadRequest) -> BoxFuture<'static, Result<Vec<ReadEntry>, String>> {
        Box::pin(async move {
            let share = self.budget.take(request.max_bytes).await;
            let max_entries = if share.is_some() { request.max_entries } else { 1 };
            let entries = self.log.read(request.from, max_entries, request.max_bytes).await;
            let entries = entries.map_err(|error| error.to_string())?;
            let bytes = entries.iter().map(|entry| entry.payload.len() as u64).sum();
            Ok(self.look(entries, request.acked_up_to, share.map(|share| share.keep(bytes))))
        })
    }

    fn wait(self: Arc<Self>, from: Position) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            let last = self.log.last_confirmed();
            if self.log.next_valid(from) <= last {
                return Ok(());
            }
            self.log.wait_beyond(last).await.map(drop).map_err(|error| error.to_string())
        })
    }

    fn ack(&self, positions: &[Position]) {
        let ack = |&position: &Position| AckPosition { position, unacked_batch_indexes: None, messages: 0 };
        self.cursor.ack(&positions.iter().map(ack).collect::<Vec<_>>());
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move { self.cursor.persisted().await.map_err(|error| error.to_string()) })
    }

    fn backlog_entries(&self) -> u64 {
        self.cursor.backlog_entries()
    }

    fn save_generation(self: Arc<Self>, generation: u64) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            let mut properties = self.cursor.properties();
            let text = generation.to_string();
            let kept = properties.get(GENERATION_KEY);
            if kept == Some(&text) || (kept.is_none() && generation == 0) {
                return Ok(());
            }
            properties.insert(GENERATION_KEY.to_owned(), text);
            self.cursor.set_properties(properties).await.map_err(|error| error.to_string())
        })
    }

    fn remote_life(self: Arc<Self>, life: u64) -> BoxFuture<'static, Result<bool, String>> {
        Box::pin(async move {
            let mut properties = self.cursor.properties();
            let text = life.to_string();
            let known = properties.get(LIFE_KEY);
            if known == Some(&text) {
                return Ok(false);
            }
            let is_new = known.is_some();
            if is_new {
                // Before the new life is noted: an end in between begins once more, and the remote drops what it has.
                self.cursor.reset(self.log.first_position(), None).await.map_err(|error| error.to_string())?;
            }
            properties.insert(LIFE_KEY.to_owned(), text);
            self.cursor.set_properties(properties).await.map_err(|error| error.to_string())?;
            Ok(is_new)
        })
    }
}
