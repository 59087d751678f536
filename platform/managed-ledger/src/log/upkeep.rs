//! What time brings: rolling without traffic, trimming.
//!
//! Role: called once a second for logs that asked for it (`check_at_ms`); an idle log costs one comparison.
//! Invariants: L3; deletion is marked in the list first, then done, and repeated until it is known to be done.

use super::ManagedLedger;
use super::append::Chore;
use crate::api::LogError;
use crate::keys;
use crate::records::{HeadRecord, encode};
use crate::roll::{OpenLedger, Roll, decide};
use crate::trim::{TrimBounds, next_expiry_ms, trimmable};
use meridian_metadata::{Condition, Operation};
use meridian_types::{EntryId, LedgerId, Position};
use std::sync::atomic::Ordering;

impl ManagedLedger {
    /// One look, when it is due.
    pub(crate) fn tick(&self, now_ms: u64) {
        self.check_at_ms.store(u64::MAX, Ordering::Relaxed);
        if let Some(due_ms) = self.roll_by_age(now_ms) {
            self.check_at_ms.fetch_min(due_ms, Ordering::Relaxed);
        }
        if self.trim_count(now_ms, false) > 0 {
            self.spawn(async move |log| {
                match log.trim(now_ms).await {
                    // The next owner trims.
                    Ok(_) | Err(LogError::Closed(_) | LogError::Fenced(_)) => return,
                    Err(error) => tracing::warn!(log = %log.name, %error, "trimming failed; trying again"),
                }
                log.check_at_ms.fetch_min(now_ms + 10_000, Ordering::Relaxed);
            });
        }
        let expiry = next_expiry_ms(self.view.lock().layout.ledgers(), self.settings().retention_ms);
        if let Some(due_ms) = expiry.filter(|due_ms| *due_ms > now_ms) {
            self.check_at_ms.fetch_min(due_ms, Ordering::Relaxed);
        }
    }

    /// Changes the ledger if it is old: closed if nothing was written since the last look, else replaced ahead of need.
    /// Answers when to look again.
    fn roll_by_age(&self, now_ms: u64) -> Option<u64> {
        let mut chore = None;
        let due_ms = {
            let mut order = self.order.lock();
            let settings = order.settings.clone();
            let current = order.current.as_mut()?;
            let age_ms = now_ms.saturating_sub(current.created_ms);
            let ledger = OpenLedger { entries: current.next_entry.0 as u64, bytes: current.bytes, age_ms };
            let idle = current.seen_entries == current.next_entry.0;
            current.seen_entries = current.next_entry.0;
            match decide(ledger, &settings) {
                Roll::Switch if idle && !order.recovering => {
                    chore = ManagedLedger::take_current(&mut order, false).map(Chore::Retire);
                    None
                }
                Roll::Switch if order.next.is_none() => {
                    chore = order.want_ledger();
                    Some(now_ms + 1000)
                }
                Roll::Switch => Some(now_ms + 1000),
                _ if settings.max_rollover_ms == u64::MAX => None,
                _ => Some(order.current.as_ref()?.created_ms.saturating_add(settings.max_rollover_ms)),
            }
        };
        if let Some(chore) = chore {
            self.start(chore);
        }
        due_ms
    }

    /// Closes the current ledger if it holds an entry; the next append gets a new one.
    pub async fn roll(&self) {
        let retiring = {
            let mut order = self.order.lock();
            if order.recovering { None } else { ManagedLedger::take_current(&mut order, false) }
        };
        if let (Some(retiring), Some(log)) = (retiring, self.me.upgrade()) {
            log.retire(retiring).await;
        }
    }

    fn trim_count(&self, now_ms: u64, ignore_retention: bool) -> usize {
        let settings = self.settings();
        let slowest = {
            let cursors = self.cursors.lock();
            cursors.values().filter(|cursor| cursor.is_durable()).map(|cursor| cursor.persisted_mark_delete()).min()
        };
        let (retention_ms, retention_bytes) =
            if ignore_retention { (Some(0), Some(0)) } else { (settings.retention_ms, settings.retention_bytes) };
        let bounds = TrimBounds { slowest, now_ms, retention_ms, retention_bytes };
        trimmable(self.view.lock().layout.ledgers(), bounds)
    }

    /// Deletes the ledgers that no durable cursor and no retention needs (L3).
    ///
    /// # Errors
    /// [`LogError::Fenced`], or storage failed; what is left is done by a later call.
    pub async fn trim(&self, now_ms: u64) -> Result<(), LogError> {
        self.trim_with(now_ms, false).await
    }

    async fn trim_with(&self, now_ms: u64, ignore_retention: bool) -> Result<(), LogError> {
        let mut meta = self.meta.lock().await;
        self.check_running()?;
        let count = self.trim_count(now_ms, ignore_retention);
        let (gone, trimmed_to, trimmed_index) = {
            let view = self.view.lock();
            let gone = &view.layout.ledgers()[..count];
            let last = gone.iter().rev().find(|ledger| ledger.entries > 0);
            let ids: Vec<LedgerId> = gone.iter().map(|ledger| ledger.id).collect();
            (ids, last.map(|ledger| ledger.last_position()), gone.last().map_or(0, |ledger| ledger.end_index))
        };
        if !gone.is_empty() {
            let (head, extra) = self.without(&meta.head, &meta.segments, &gone, trimmed_to, trimmed_index);
            self.commit_head(&mut meta, head, extra).await?;
            let is_gone = |id: i64| gone.contains(&LedgerId(id));
            for segment in &mut meta.segments {
                segment.record.ledgers.retain(|ledger| !is_gone(ledger.ledger_id));
            }
            meta.segments.retain(|segment| !segment.record.ledgers.is_empty());
            self.view.lock().layout.trim(gone.len());
            self.readers.lock().retain(|(id, _)| !gone.contains(id));
            self.blocks.lock().clear();
            for cursor in self.cursors() {
                cursor.settle(self);
            }
            tracing::debug!(log = %self.name, ledgers = gone.len(), "trimmed");
        }
        self.sweep(&mut meta).await
    }

    /// The head and the changes of segments without the given ledgers.
    fn without(
        &self,
        head: &HeadRecord,
        segments: &std::collections::VecDeque<super::meta::Segment>,
        gone: &[LedgerId],
        trimmed_to: Option<Position>,
        trimmed_index: u64,
    ) -> (HeadRecord, Vec<Operation>) {
        let mut head = head.clone();
        let is_gone = |id: i64| gone.contains(&LedgerId(id));
        let mut extra = Vec::new();
        for segment in segments {
            let kept = segment.record.ledgers.iter().filter(|ledger| !is_gone(ledger.ledger_id)).count();
            if kept == segment.record.ledgers.len() {
                break;
            }
            let key = keys::segment(&self.name, segment.number);
            if kept == 0 {
                extra.push(Operation::Delete { key, condition: Condition::Any });
                continue;
            }
            let mut record = segment.record.clone();
            record.ledgers.retain(|ledger| !is_gone(ledger.ledger_id));
            extra.push(super::meta::put(key, encode(&record), Condition::Any));
        }
        head.ledgers.retain(|ledger| !is_gone(ledger.ledger_id));
        head.doomed.extend(gone.iter().map(|id| id.0));
        if let Some(position) = trimmed_to {
            head.trimmed_to = Some(position.into());
            head.trimmed_index = trimmed_index;
        }
        (head, extra)
    }

    /// Goes on without a closed ledger that every replica lost (field report B090): counted and announced, cursors pass it.
    pub(crate) async fn leave_out(&self, ledger_id: LedgerId) -> Result<(), LogError> {
        let mut meta = self.meta.lock().await;
        let lost = self.view.lock().layout.ledger(ledger_id).filter(|ledger| ledger.closed_ms.is_some()).cloned();
        let Some(lost) = lost else { return Ok(()) };
        let mut head = meta.head.clone();
        head.ledgers.retain(|record| record.ledger_id != ledger_id.0);
        let mut extra = Vec::new();
        for segment in &mut meta.segments {
            let before = segment.record.ledgers.len();
            segment.record.ledgers.retain(|record| record.ledger_id != ledger_id.0);
            if segment.record.ledgers.len() != before {
                let key = keys::segment(&self.name, segment.number);
                extra.push(super::meta::put(key, encode(&segment.record), Condition::Any));
            }
        }
        self.commit_head(&mut meta, head, extra).await?;
        self.shared.ledgers_skipped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(log = %self.name, ledger = %ledger_id, entries = lost.entries, "ledger is lost; going on behind it");
        self.view.lock().layout.remove(ledger_id);
        for cursor in self.cursors() {
            cursor.settle(self);
        }
        Ok(())
    }

    /// Deletes doomed ledgers; the stored list of them shrinks with the next write.
    pub(crate) async fn sweep(&self, meta: &mut super::meta::Meta) -> Result<(), LogError> {
        while let Some(id) = meta.head.doomed.last().copied() {
            self.shared.ledgers.delete(LedgerId(id)).await?;
            meta.head.doomed.pop();
        }
        Ok(())
    }

    /// Acks everything for every cursor and deletes everything that is stored.
    ///
    /// # Errors
    /// As [`ManagedLedger::trim`].
    pub async fn truncate(&self) -> Result<(), LogError> {
        let cursors = self.cursors();
        for cursor in &cursors {
            cursor.clear_backlog().await?;
        }
        for cursor in &cursors {
            cursor.persisted().await?;
        }
        self.roll().await;
        self.trim_with(self.shared.now_ms(), true).await
    }

    /// Ledgers listed as open that hold nothing and are written by nobody, e.g. one prepared and not used.
    pub(crate) fn unused(&self) -> Vec<LedgerId> {
        let view = self.view.lock();
        let unused =
            |l: &&crate::layout::LedgerState| l.closed_ms.is_none() && l.last_position().entry_id == EntryId::NONE;
        view.layout.ledgers().iter().filter(unused).map(|ledger| ledger.id).collect()
    }

    /// Tells the upkeep that mark-delete crossed the end of a ledger.
    pub(crate) fn mark_delete_moved(&self, from: Position, to: Position) {
        let crossed = from.ledger_id != to.ledger_id || {
            let view = self.view.lock();
            view.layout.ledger(to.ledger_id).is_some_and(|l| l.closed_ms.is_some() && l.last_position() <= to)
        };
        if crossed {
            self.check_soon();
        }
    }
}
