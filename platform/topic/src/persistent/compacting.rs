//! Compaction of a topic, and reading its compacted view.
//!
//! Role: runs one compaction at a time, keeps the view open, reads for consumers that want it: the view up to its horizon,
//! the log behind it. An internal cursor keeps what was not compacted yet from being trimmed.
//! Failure: a failed compaction leaves the old view; its text is in the status.

use super::PersistentTopic;
use super::quota::bytes_from;
use super::subscription::Subscription;
use crate::api::{BoxFuture, InitialCursor, LastMessage, SubscribeRequest, TopicError, TopicErrorKind};
use crate::compaction::{
    Compacted, CompactedLedger, CompactedView, CompactionFigures, CompactionOptions, CompactionSource,
    CompactionStatus, Horizon, compact,
};
use meridian_ledger::LedgerOptions;
use meridian_managed_ledger::{AckPosition, CursorOptions, InitialPosition, LogEntry, LogError};
use meridian_types::{EntryId, Position};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The internal cursor.
const COMPACTION_CURSOR: &str = "__compaction";

/// What a topic keeps of its compaction, once it had one.
#[derive(Default)]
pub(super) struct Compacting {
    status: CompactionStatus,
    view: Option<Arc<CompactedView>>,
    figures: CompactionFigures,
}

impl CompactionSource for PersistentTopic {
    fn read(&self, from: Position, max_entries: u32, max_bytes: u64) -> BoxFuture<'_, Result<Vec<LogEntry>, LogError>> {
        Box::pin(self.log.read(from, max_entries, max_bytes))
    }

    fn last_confirmed(&self) -> Position {
        self.log.last_confirmed()
    }

    fn properties(&self) -> BTreeMap<String, String> {
        self.log.properties()
    }

    fn change_properties(&self, changes: BTreeMap<String, String>) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(self.update_properties(changes))
    }
}

impl PersistentTopic {
    /// Sets properties of the log (an empty value removes one) and leaves the others.
    pub(super) async fn update_properties(&self, changes: BTreeMap<String, String>) -> Result<(), LogError> {
        let _turn = self.property_changes.lock().await;
        let mut properties = self.log.properties();
        for (name, value) in changes {
            if value.is_empty() {
                properties.remove(&name);
            } else {
                properties.insert(name, value);
            }
        }
        self.log.set_properties(properties).await
    }

    /// Starts a compaction, unless one runs.
    pub(super) fn start_compaction(&self) -> Result<(), TopicError> {
        self.refuse_if_closed()?;
        {
            let mut compacting = self.compacting.lock();
            let compacting = compacting.get_or_insert_default();
            if compacting.status == CompactionStatus::Running {
                return Err(TopicError::new(TopicErrorKind::Busy, "Compaction already in progress"));
            }
            compacting.status = CompactionStatus::Running;
        }
        let Some(topic) = self.me.upgrade() else { return self.refuse_if_closed() };
        self.deps.runtime.spawn(async move {
            let begun_ms = topic.now_ms();
            let outcome = topic.run_compaction().await;
            let now_ms = topic.now_ms();
            let mut compacting = topic.compacting.lock();
            let compacting = compacting.get_or_insert_default();
            compacting.status = match outcome {
                Ok(done) => {
                    compacting.figures.succeeded_ms = now_ms;
                    compacting.figures.duration_ms = now_ms.saturating_sub(begun_ms);
                    if let Some(done) = done {
                        let (ledger_id, size) = (done.horizon.ledger_id, Some((done.entries_out, done.bytes_out)));
                        compacting.figures.removed_entries = done.entries_in.saturating_sub(done.entries_out);
                        compacting.figures.ledger = Some(CompactedLedger { ledger_id, size });
                    }
                    CompactionStatus::Success
                }
                Err(error) => {
                    tracing::warn!(topic = %topic.name, %error, "compaction failed");
                    compacting.figures.failed_ms = now_ms;
                    CompactionStatus::Error(error.message)
                }
            };
        });
        Ok(())
    }

    /// Starts a compaction by itself when enough came since the last one.
    pub(super) fn compact_if_due(&self) {
        let threshold_bytes = self.limits.read().compaction_threshold_bytes;
        if threshold_bytes == 0 {
            return;
        }
        let horizon = Horizon::of(&self.log.properties());
        let from = horizon.map_or(Position::EARLIEST, |horizon| horizon.position.next_in_ledger());
        let bytes = bytes_from(&self.log.info().ledgers, from);
        if bytes <= threshold_bytes {
            return;
        }
        match self.start_compaction() {
            Ok(()) => {
                tracing::info!(topic = %self.name, bytes, threshold_bytes, "compaction starts: over its threshold")
            }
            Err(error) if error.kind == TopicErrorKind::Busy => {}
            Err(error) => tracing::debug!(topic = %self.name, %error, "no compaction now"),
        }
    }

    pub(super) fn compaction_figures(&self) -> CompactionFigures {
        let mut figures =
            self.compacting.lock().as_ref().map(|compacting| compacting.figures.clone()).unwrap_or_default();
        if figures.ledger.is_none() {
            let horizon = Horizon::of(&self.log.properties());
            figures.ledger = horizon.map(|horizon| CompactedLedger { ledger_id: horizon.ledger_id, size: None });
        }
        figures
    }

    async fn run_compaction(&self) -> Result<Option<Compacted>, TopicError> {
        let failed = |error: &dyn std::fmt::Display| TopicError::new(TopicErrorKind::Persistence, error.to_string());
        let internal = CursorOptions { durable: true, internal: true, properties: BTreeMap::new() };
        let cursor = self.log.open_cursor(COMPACTION_CURSOR, InitialPosition::Earliest, internal).await?;
        let settings = self.log.settings();
        let options = CompactionOptions {
            ledger: LedgerOptions {
                ensemble_size: settings.ensemble_size,
                write_quorum: settings.write_quorum,
                ack_quorum: settings.ack_quorum,
                properties: BTreeMap::from([
                    ("kind".to_owned(), "compacted".to_owned()),
                    ("log".to_owned(), super::log_name(&self.name)),
                ]),
            },
            keep_keyless: self.deps.compaction_keeps_keyless,
        };
        let Some(done) = compact(self, &*self.deps.ledgers, &options).await.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        self.compacting.lock().get_or_insert_default().view = None;
        let position = done.horizon.position;
        cursor.ack_cumulative(AckPosition { position, unacked_batch_indexes: None, messages: 0 });
        tracing::info!(
            topic = %self.name, keys = done.keys, bytes_in = done.bytes_in, bytes_out = done.bytes_out, "compacted"
        );
        Ok(Some(done))
    }

    pub(super) fn compaction(&self) -> CompactionStatus {
        self.compacting.lock().as_ref().map(|compacting| compacting.status.clone()).unwrap_or_default()
    }

    /// The compacted view, opened if there is one.
    async fn view(&self) -> Result<Option<Arc<CompactedView>>, LogError> {
        let Some(horizon) = Horizon::of(&self.log.properties()) else { return Ok(None) };
        let known = self.compacting.lock().as_ref().and_then(|compacting| compacting.view.clone());
        if let Some(view) = known.filter(|view| view.horizon() == horizon) {
            return Ok(Some(view));
        }
        let reader = self.deps.ledgers.open(horizon.ledger_id).await?;
        let view = Arc::new(CompactedView::new(horizon, reader));
        self.compacting.lock().get_or_insert_default().view = Some(view.clone());
        Ok(Some(view))
    }

    /// Whether a position is read from the compacted view by those who want it.
    pub(super) fn is_compacted(&self, position: Position) -> bool {
        Horizon::of(&self.log.properties()).is_some_and(|horizon| position <= horizon.position)
    }

    /// Reads the view up to its horizon, then the log.
    pub(super) async fn read_compacted(
        &self,
        from: Position,
        max_entries: u32,
        max_bytes: u64,
    ) -> Result<Vec<LogEntry>, LogError> {
        let mut from = from;
        if let Some(view) = self.view().await?
            && from <= view.horizon().position
        {
            let read = view.read(from, max_entries, max_bytes).await;
            let entries = read.map_err(|error| LogError::Corrupt(error.to_string()))?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            from = view.horizon().position.next_in_ledger();
        }
        self.log.read(from, max_entries, max_bytes).await
    }

    /// Says where a new subscription starts in the compacted view: its cursor can only stand in the log.
    pub(super) fn place_in_view(&self, subscription: &Subscription, request: &SubscribeRequest) {
        let position = match (request.durable, request.initial, request.start_message_id) {
            (true, InitialCursor::Earliest, _) => Position::EARLIEST,
            (false, _, Some((position, _))) => position,
            (true, InitialCursor::Latest, _) | (false, _, None) => Position::LATEST,
        };
        subscription.start_in_view(position);
    }

    /// The last message for a consumer of the compacted view: the view's, if nothing newer is in the log.
    pub(super) async fn last_compacted(&self, last: LastMessage) -> Result<LastMessage, TopicError> {
        if !self.is_compacted(last.position) {
            return Ok(last);
        }
        let Some(view) = self.view().await? else { return Ok(last) };
        let failed =
            |error: crate::compaction::CompactionError| TopicError::new(TopicErrorKind::Persistence, error.to_string());
        let found = view.last_message().await.map_err(failed)?.unwrap_or((Position::EARLIEST, -1));
        Ok(LastMessage { position: found.0, batch_index: found.1, ..last })
    }
}

impl Subscription {
    /// Where dispatch starts over. For the compacted view that is where it was asked to start, as long as nothing was
    /// acked since; what is known of a cursor from an earlier life is whether anything was ever acked.
    pub(super) fn start(&self, topic: &PersistentTopic) -> Position {
        let start = self.cursor.read_start();
        if !self.compacted.load(Ordering::Relaxed) {
            return start;
        }
        let mark_delete = self.cursor.mark_delete();
        match self.view_start.lock().as_deref() {
            Some((asked, then)) if *then == mark_delete => *asked,
            Some(_) => start,
            None if mark_delete.entry_id == EntryId::NONE && start <= topic.log.first_position() => Position::EARLIEST,
            None => start,
        }
    }

    /// The next consumer starts there if it reads the compacted view; the cursor was just moved as near as it can.
    pub(super) fn start_in_view(&self, asked: Position) {
        let is_end = asked.ledger_id == Position::LATEST.ledger_id;
        let asked = if is_end { self.cursor.read_start() } else { asked };
        *self.view_start.lock() = Some(Box::new((asked, self.cursor.mark_delete())));
    }

    /// Positions before it can't be acked: they are in the compacted view only.
    pub(super) fn first_kept(&self, topic: &PersistentTopic) -> Position {
        if self.compacted.load(Ordering::Relaxed) { topic.log.first_position() } else { Position::EARLIEST }
    }
}
