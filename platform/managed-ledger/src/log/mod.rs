//! One log: appends, reads, cursors, upkeep.
//!
//! Role: [`ManagedLedger`] is the shell around the pure parts ([`flight`], [`crate::layout`], [`crate::roll`],
//! [`crate::trim`]). It has no task and no timer of its own: appends run on the caller, confirmations on the ledger's
//! completion thread, rolls and recoveries in short tasks, time comes from [`crate::ManagedLedgers::tick`].
//! Invariants: L1–L5. Memory: an idle log owns no writer, no cache and no queue.
//! Must never know: bookies, frames, tenants.

pub(crate) mod append;
pub(crate) mod cursors;
pub(crate) mod ending;
pub(crate) mod flight;
pub(crate) mod follow;
pub(crate) mod ledgers;
pub(crate) mod meta;
pub(crate) mod read;
pub(crate) mod upkeep;

use crate::api::{LogEntry, LogError, LogInfo, LogSettings, LogSink};
use crate::cache::catch_up::SharedBlocks;
use crate::cache::tail::SharedView;
use crate::cursor::Cursor;
use crate::registry::Shared;
use append::Order;
use flight::Flight;
use meridian_bookie_api::envelope::{ENVELOPE_BYTES, Envelope, FLAG_MARKER};
use meridian_ledger::{LedgerEntry, LedgerReader};
use meridian_metadata::Version;
use meridian_types::{Incarnation, LedgerId, OwnerEpoch, Position};
use meta::Meta;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// An open log. See the head of the file and [`crate::api`].
pub struct ManagedLedger {
    pub(crate) me: Weak<ManagedLedger>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    pub(crate) sink: Arc<dyn LogSink>,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: OwnerEpoch,
    pub(crate) order: Mutex<Order>,
    pub(crate) flight: Mutex<Flight>,
    pub(crate) view: SharedView,
    pub(crate) blocks: SharedBlocks,
    pub(crate) readers: Mutex<Vec<(LedgerId, Arc<dyn LedgerReader>)>>,
    pub(crate) meta: tokio::sync::Mutex<Meta>,
    pub(crate) head_version: Mutex<Version>,
    pub(crate) properties: Mutex<BTreeMap<String, String>>,
    pub(crate) cursors: Mutex<HashMap<Arc<str>, Arc<Cursor>>>,
    pub(crate) cursor_count: AtomicU32,
    pub(crate) unconfirmed_bytes: AtomicU64,
    /// Requests refused for being too many, of which the sink has not been told yet.
    pub(crate) refused_untold: AtomicU64,
    /// When the upkeep must look again; `u64::MAX` = no need.
    pub(crate) check_at_ms: Arc<AtomicU64>,
    /// Told when all answers are given and when a cursor's flush ends; who waits looks again.
    pub(crate) drained: Notify,
    /// Told of confirmations if somebody follows.
    pub(crate) grown: Notify,
    pub(crate) followers: AtomicU32,
}

impl ManagedLedger {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last confirmed position; `-1:-1` before the first entry ever.
    pub fn last_confirmed(&self) -> Position {
        self.view.lock().layout.last_confirmed()
    }

    /// The first entry kept, or where the next one would come.
    pub fn first_position(&self) -> Position {
        self.view.lock().layout.next_valid(Position::EARLIEST)
    }

    /// Index that the next appended message gets.
    pub fn next_index(&self) -> u64 {
        self.order.lock().next_index
    }

    /// This life of the log.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The epoch of this opening.
    pub fn owner_epoch(&self) -> OwnerEpoch {
        self.epoch
    }

    /// The first existing position at or after `position`; where the next entry would come if there is none.
    pub fn next_valid(&self, position: Position) -> Position {
        self.view.lock().layout.next_valid(position)
    }

    /// The last existing position before `position`; before everything it is `first ledger:-1`.
    pub fn previous(&self, position: Position) -> Position {
        self.view.lock().layout.previous(position)
    }

    /// Entries kept between two positions, both included.
    pub fn entries_between(&self, from_inclusive: Position, to_inclusive: Position) -> u64 {
        self.view.lock().layout.entries_between(from_inclusive, to_inclusive)
    }

    /// The log's properties.
    pub fn properties(&self) -> BTreeMap<String, String> {
        self.properties.lock().clone()
    }

    /// Replaces the log's properties, durably.
    ///
    /// # Errors
    /// [`LogError::Fenced`] or a metadata error; then nothing is known to have changed.
    pub async fn set_properties(&self, properties: BTreeMap<String, String>) -> Result<(), LogError> {
        let mut meta = self.meta.lock().await;
        self.check_running()?;
        let mut head = meta.head.clone();
        head.properties = properties.clone();
        self.commit_head(&mut meta, head, Vec::new()).await?;
        *self.properties.lock() = properties;
        Ok(())
    }

    /// Whether the log was terminated.
    pub fn is_terminated(&self) -> bool {
        self.order.lock().terminated.is_some()
    }

    /// Puts new settings in force for what comes.
    pub fn set_settings(&self, settings: LogSettings) {
        self.order.lock().settings = self.shared.intern(settings);
        self.check_soon();
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<LogSettings> {
        self.order.lock().settings.clone()
    }

    /// Statistics.
    pub fn info(&self) -> LogInfo {
        let (pending, waiting, terminated, next_index) = {
            let order = self.order.lock();
            let waiting = order.waiting.map(|(since_ms, why)| format!("{why} since {since_ms}"));
            let pending = (order.queue.len() + self.flight.lock().len()) as u64;
            (pending, waiting, order.terminated, order.next_index)
        };
        let view = self.view.lock();
        let (entries, bytes) = view.layout.totals();
        LogInfo {
            ledgers: view.layout.info(),
            last_confirmed: view.layout.last_confirmed(),
            entries,
            bytes,
            next_index,
            pending_appends: pending,
            waiting,
            terminated,
            properties: self.properties.lock().clone(),
            incarnation: self.incarnation,
        }
    }

    /// Why nothing can be appended now: no ledger could be had, as when every bookie's disk is full. Asking tries again.
    pub fn unwritable(&self) -> Option<LogError> {
        let (reason, chore) = {
            let mut order = self.order.lock();
            let reason = order.unwritable.clone().filter(|_| order.current.is_none() && order.next.is_none())?;
            (reason, order.want_ledger())
        };
        if let Some(chore) = chore {
            self.start(chore);
        }
        Some(reason)
    }

    /// Gives back the room of empty queues. For logs that nobody appends to for a while.
    pub fn rest(&self) {
        self.order.lock().queue.shrink_to_fit();
        self.flight.lock().rest();
        self.view.lock().rest();
        self.readers.lock().shrink_to_fit();
    }

    /// Refuses what needs an owner that still runs.
    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        match &self.order.lock().stopped {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Ends this opening: nothing is appended or written any more. What waits is failed in order.
    pub(crate) fn stop(&self, error: LogError) {
        let (claimed, retired) = {
            let mut order = self.order.lock();
            if order.stopped.is_some() {
                return;
            }
            order.stopped = Some(error.clone());
            let retired = (order.current.take(), order.next.take());
            (self.fail_waiting(&mut order, &error), retired)
        };
        drop(retired);
        self.tell_followers();
        self.follow_up(claimed, None);
    }

    /// The upkeep shall look at the next tick.
    pub(crate) fn check_soon(&self) {
        self.check_at_ms.store(0, Ordering::Relaxed);
    }

    /// Runs something with the log kept alive.
    pub(crate) fn spawn<F, Fut>(&self, run: F)
    where
        F: FnOnce(Arc<ManagedLedger>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        if let Some(log) = self.me.upgrade() {
            self.shared.runtime.spawn(run(log));
        }
    }
}

impl Drop for ManagedLedger {
    fn drop(&mut self) {
        self.shared.forget(&self.name, &self.me);
    }
}

/// A stored entry without its envelope.
pub(crate) fn body_of(ledger_id: LedgerId, stored: &LedgerEntry) -> Result<LogEntry, LogError> {
    let position = Position { ledger_id, entry_id: stored.entry_id };
    let envelope =
        Envelope::decode(&stored.payload).map_err(|error| LogError::Corrupt(format!("entry {position}: {error}")))?;
    Ok(LogEntry {
        position,
        index: envelope.index,
        messages: envelope.messages,
        marker: envelope.flags & FLAG_MARKER != 0,
        broker_time_ms: envelope.broker_time_ms,
        origin: (envelope.origin_region, envelope.origin_incarnation, envelope.origin),
        payload: stored.payload.slice(ENVELOPE_BYTES..),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 10,000 idle topics cost: the structs themselves, beside their names and one ledger record each.
    #[test]
    fn idle_logs_and_cursors_are_small() {
        assert!(size_of::<ManagedLedger>() <= 1000, "{}", size_of::<ManagedLedger>());
        assert!(size_of::<Cursor>() <= 280, "{}", size_of::<Cursor>());
    }
}
