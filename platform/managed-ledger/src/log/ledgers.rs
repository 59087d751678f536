//! The life of a log's ledgers: created, listed, switched to, closed, recovered when their writer has ended.
//!
//! Invariants: N1 a ledger is listed before anything in it is confirmed; N2 entries of unknown outcome are settled by
//! recovery before anything after them is written again, so nothing is stored out of order or twice (L1); N3 a ledger whose
//! entries were never confirmed to anyone leaves the list in the same write that closes the one before it.
//! Failure: creating and recovering repeat with growing waits; what waits for them is failed after [`WAIT_LIMIT_MS`].

use super::append::{Chore, Current, Order, Retiring, WriterSink};
use super::flight::Settled;
use super::meta::Meta;
use super::{ManagedLedger, body_of};
use crate::api::{LogError, LogSettings};
use crate::records::{HeadRecord, LedgerRecord};
use meridian_ledger::{LedgerError, LedgerOptions, LedgerReader, LedgerWriter};
use meridian_types::{Classify, EntryId, ErrorClass, LedgerId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Appends wait that long for a ledger.
pub const WAIT_LIMIT_MS: u64 = 10_000;
const FIRST_PAUSE_MS: u64 = 20;
const MAX_PAUSE_MS: u64 = 1000;
/// Ledgers thrown away at most because a store without [`meridian_ledger::Ledgers::ids_above`] gave them a low id.
const ID_ATTEMPTS: u32 = 100;

/// What recovery found in a ledger.
struct Found {
    ledger_id: LedgerId,
    last: EntryId,
    bytes: u64,
    bytes_exact: bool,
    end_index: u64,
}

impl ManagedLedger {
    /// Creates the next ledger and lists it (N1); repeats until it is there, then lets what waits be written.
    pub(crate) async fn create_ledger(self: Arc<Self>) {
        let started_ms = self.shared.now_ms();
        let mut pause_ms = FIRST_PAUSE_MS;
        let mut told = false;
        loop {
            match self.list_new_ledger().await {
                Ok((writer, created_ms)) => return self.install(writer, created_ms),
                Err(error) => {
                    let waited_ms = self.shared.now_ms().saturating_sub(started_ms);
                    if error.class() == ErrorClass::Fenced || waited_ms >= WAIT_LIMIT_MS {
                        return self.give_up_creating(&error);
                    }
                    // Once: many logs may wait for the same thing.
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(log = %self.name, %error, "creating a ledger failed; trying again");
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = (pause_ms * 2).min(MAX_PAUSE_MS);
        }
    }

    fn give_up_creating(&self, error: &LogError) {
        tracing::error!(log = %self.name, %error, "no ledger could be created; appends fail");
        let claimed = {
            let mut order = self.order.lock();
            order.creating = false;
            order.unwritable = Some(error.clone());
            // While the current ledger takes entries nobody waits for the next one.
            order.current.is_none() && self.fail_waiting(&mut order, error)
        };
        self.follow_up(claimed, None);
    }

    async fn list_new_ledger(self: &Arc<Self>) -> Result<(Arc<dyn LedgerWriter>, u64), LogError> {
        let mut meta = self.meta.lock().await;
        if let Some(error) = self.order.lock().stopped.clone() {
            return Err(error);
        }
        let last_id = meta.ledgers().last().map_or(LedgerId(-1), |ledger| LedgerId(ledger.ledger_id));
        let floor = last_id.max(self.view.lock().layout.last_confirmed().ledger_id);
        self.shared.ledgers.ids_above(floor).await?;
        let (created_ms, sink) = (self.shared.now_ms(), Arc::new(WriterSink(self.me.clone())));
        let prepared = self.shared.ledgers.prepare(self.ledger_options("data")).await?;
        let writer = match prepared.filter(|prepared| prepared.id > floor) {
            // Creation and listing are one write.
            Some(prepared) => {
                let head = with_ledger(&meta.head, prepared.id, created_ms);
                self.commit_head(&mut meta, head, prepared.operations).await?;
                (prepared.start)(meta.version, sink)
            }
            None => {
                let writer = self.create_above(floor).await?;
                let head = with_ledger(&meta.head, writer.id(), created_ms);
                if let Err(error) = self.commit_head(&mut meta, head, Vec::new()).await {
                    // Not listed (or listed and then found empty by the next owner): either way nobody needs it.
                    if error.class() != ErrorClass::Retry {
                        let _ = self.shared.ledgers.delete(writer.id()).await;
                    }
                    return Err(error);
                }
                writer
            }
        };
        self.view.lock().layout.add(writer.id(), created_ms);
        Ok((writer, created_ms))
    }

    /// A new ledger whose id is above all of the log's (positions ascend).
    async fn create_above(self: &Arc<Self>, floor: LedgerId) -> Result<Arc<dyn LedgerWriter>, LogError> {
        for _ in 0..ID_ATTEMPTS {
            let options = self.ledger_options("data");
            let sink = Arc::new(WriterSink(self.me.clone()));
            let writer = self.shared.ledgers.create(options, sink).await?;
            if writer.id() > floor {
                return Ok(writer);
            }
            tracing::warn!(log = %self.name, id = %writer.id(), %floor, "ledger id is below the log's last; taking another");
            self.shared.ledgers.delete(writer.id()).await?;
        }
        Err(LogError::Ledger(LedgerError::Invalid(format!("no ledger id above {floor} to be had"))))
    }

    /// How new ledgers of this log are laid out.
    pub(crate) fn ledger_options(&self, kind: &str) -> LedgerOptions {
        let settings = self.order.lock().settings.clone();
        ledger_options(&settings, &self.name, kind)
    }

    fn install(&self, writer: Arc<dyn LedgerWriter>, created_ms: u64) {
        self.check_soon();
        let (claimed, chore) = {
            let mut order = self.order.lock();
            order.creating = false;
            order.unwritable = None;
            if order.stopped.is_none() {
                order.next = Some((writer, created_ms));
            }
            if order.current.is_none() && !order.queue.is_empty() {
                self.drain_queue(&mut order)
            } else {
                (false, None)
            }
        };
        self.follow_up(claimed, chore);
    }

    /// Closes a writer that is written no more. If it can't be closed its ledger is recovered.
    pub(crate) async fn retire(self: Arc<Self>, retiring: Retiring) {
        let Retiring { current, end_index } = retiring;
        let ledger_id = current.ledger_id;
        match self.close_writer(&current).await {
            Ok(last) if last.next() == current.next_entry => {
                let (entries, bytes) = (current.next_entry.0 as u64, current.bytes);
                self.settle(ledger_id, entries, bytes, end_index).await;
            }
            Ok(last) => {
                tracing::error!(log = %self.name, %ledger_id, %last, expected = %current.next_entry, "ledger closed short");
                self.end_and_recover(ledger_id);
            }
            Err(error) => {
                tracing::warn!(log = %self.name, %ledger_id, %error, "closing a ledger failed; recovering it");
                self.end_and_recover(ledger_id);
            }
        }
    }

    /// Closes a writer. While only the metadata store is away it is repeated for as long as the log runs: everything in the
    /// ledger is confirmed, and a recovery would keep publishes waiting for the same store.
    async fn close_writer(&self, current: &Current) -> Result<EntryId, LedgerError> {
        let started_ms = self.shared.now_ms();
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            let error = match current.writer.close().await {
                Err(LedgerError::Metadata(error)) if error.class() == ErrorClass::Retry => error,
                outcome => return outcome,
            };
            let ending = self.order.lock().stopped.is_some();
            if ending && self.shared.now_ms().saturating_sub(started_ms) >= WAIT_LIMIT_MS {
                return Err(error.into());
            }
            tracing::warn!(log = %self.name, ledger = %current.ledger_id, %error, "closing a ledger waits for metadata");
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = (pause_ms * 2).min(MAX_PAUSE_MS);
        }
    }

    fn end_and_recover(&self, ledger_id: LedgerId) {
        self.flight.lock().note_ended(ledger_id);
        self.start(Chore::Recover);
    }

    /// Tells the layout what a closed ledger holds, after everything confirmed so far.
    async fn settle(&self, ledger_id: LedgerId, entries: u64, bytes: u64, end_index: u64) {
        let (done, told) = oneshot::channel();
        let closed_ms = self.shared.now_ms();
        let claimed = {
            let mut flight = self.flight.lock();
            flight.settle(Settled { ledger_id, entries, bytes, end_index, closed_ms, done });
            flight.claim()
        };
        if claimed {
            self.deliver();
        }
        // An error means that the log is being dropped.
        let _ = told.await;
        self.check_soon();
    }

    /// Settles every ledger whose writer has ended (N2). One at a time.
    pub(crate) async fn recover_ended(self: Arc<Self>) {
        {
            let mut order = self.order.lock();
            if order.stopped.is_some() || order.recovering {
                return;
            }
            order.recovering = true;
            order.waiting.get_or_insert((self.shared.now_ms(), "recovering a ledger"));
        }
        let mut started_ms = self.shared.now_ms();
        let mut pause_ms = FIRST_PAUSE_MS;
        let mut given_up = false;
        loop {
            let Some(ledger_id) = self.flight.lock().oldest_ended() else {
                if self.resume_writing() {
                    return;
                }
                continue;
            };
            match self.recover_one(ledger_id, given_up).await {
                Ok(()) => {
                    started_ms = self.shared.now_ms();
                    continue;
                }
                Err(LogError::Fenced(_) | LogError::Closed(_)) => return,
                Err(error) => {
                    tracing::warn!(log = %self.name, %ledger_id, %error, "recovering a ledger failed; trying again");
                    let now_ms = self.shared.now_ms();
                    let mut order = self.order.lock();
                    if order.stopped.is_some() {
                        return;
                    }
                    if now_ms.saturating_sub(started_ms) >= WAIT_LIMIT_MS {
                        given_up = true;
                        started_ms = now_ms;
                        let claimed = self.fail_waiting(&mut order, &error);
                        drop(order);
                        self.follow_up(claimed, None);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = (pause_ms * 2).min(MAX_PAUSE_MS);
        }
    }

    /// After the last recovery: what waits is written. `false` if another writer has ended meanwhile.
    fn resume_writing(&self) -> bool {
        let (claimed, chore) = {
            let mut order = self.order.lock();
            if self.flight.lock().oldest_ended().is_some() {
                return false;
            }
            order.recovering = false;
            order.waiting = None;
            self.drain_queue(&mut order)
        };
        self.follow_up(claimed, chore);
        true
    }

    async fn recover_one(self: &Arc<Self>, ledger_id: LedgerId, given_up: bool) -> Result<(), LogError> {
        let known = self.view.lock().layout.ledger(ledger_id).is_some_and(|ledger| ledger.closed_ms.is_none());
        if !known {
            self.flight.lock().forget_ended(ledger_id);
            return Ok(());
        }
        if self.flight.lock().waits_before(ledger_id) {
            let reason = "an earlier ledger has entries in flight".to_owned();
            return Err(LedgerError::QuorumUnavailable { ledger_id, reason }.into());
        }
        let reader = self.shared.ledgers.recover(ledger_id).await?;
        let found = self.inspect(&*reader).await?;
        let mut meta = self.meta.lock().await;
        self.check_survivors(&found)?;
        let removed = self.write_recovered(&mut meta, &found, given_up).await?;
        self.apply_recovered(&found, &removed).await;
        for id in removed {
            // Doomed in the head: the next upkeep repeats what fails here.
            let _ = self.shared.ledgers.delete(id).await;
        }
        Ok(())
    }

    /// What a closed ledger holds; the last envelope tells the index.
    async fn inspect(&self, reader: &dyn LedgerReader) -> Result<Found, LogError> {
        let (ledger_id, last, bytes) = (reader.id(), reader.last_confirmed(), reader.length_bytes());
        let end_index = match last {
            EntryId::NONE => self.view.lock().layout.next_index(),
            last => end_index_of(reader, last).await?,
        };
        Ok(Found { ledger_id, last, bytes, bytes_exact: reader.length_is_exact(), end_index })
    }

    /// The last survivor must be what we appended there.
    fn check_survivors(&self, found: &Found) -> Result<(), LogError> {
        let flight = self.flight.lock();
        match flight.find(found.ledger_id, found.last) {
            Some(pending) if pending.entry.index.wrapping_add(1) != found.end_index => Err(LogError::Corrupt(format!(
                "entry {} of ledger {} has index {}, appended was {}",
                found.last,
                found.ledger_id,
                found.end_index.wrapping_sub(1),
                pending.entry.index
            ))),
            _ => Ok(()),
        }
    }

    /// Lists the ledger as closed, and takes later ones out if entries before theirs were lost (N3).
    async fn write_recovered(&self, meta: &mut Meta, found: &Found, given_up: bool) -> Result<Vec<LedgerId>, LogError> {
        let lost = given_up || self.flight.lock().has_after(found.ledger_id, found.last);
        let unused = self.order.lock().next.as_ref().map(|(writer, _)| writer.id());
        let mut head = meta.head.clone();
        let mut removed = Vec::new();
        if lost {
            head.ledgers.retain(|record| {
                let id = LedgerId(record.ledger_id);
                let goes = id > found.ledger_id && Some(id) != unused;
                if goes {
                    removed.push(id);
                }
                !goes
            });
        }
        let closed_ms = self.shared.now_ms();
        for record in head.ledgers.iter_mut().filter(|record| record.ledger_id == found.ledger_id.0) {
            record.entries = (found.last.0 + 1) as u64;
            record.bytes = found.bytes;
            record.bytes_estimated = !found.bytes_exact;
            record.end_index = found.end_index;
            record.closed_ms = Some(closed_ms);
        }
        head.doomed.extend(removed.iter().map(|id| id.0));
        self.commit_head(meta, head, Vec::new()).await?;
        Ok(removed)
    }

    async fn apply_recovered(&self, found: &Found, removed: &[LedgerId]) {
        let claimed = {
            let mut order = self.order.lock();
            let gone = |id: LedgerId| id == found.ledger_id || removed.contains(&id);
            if order.current.as_ref().is_some_and(|current| gone(current.ledger_id)) {
                order.current = None;
            }
            if order.next.as_ref().is_some_and(|(writer, _)| gone(writer.id())) {
                order.next = None;
            }
            let mut flight = self.flight.lock();
            let lost = if flight.has_after(found.ledger_id, found.last) {
                flight.split_lost(found.ledger_id, found.last)
            } else {
                Default::default()
            };
            if !lost.is_empty() || order.current.is_none() {
                order.next_index = found.end_index;
            }
            ManagedLedger::requeue(&mut order, lost);
            flight.confirm(found.ledger_id, found.last);
            flight.forget_ended(found.ledger_id);
            removed.iter().for_each(|id| flight.forget_ended(*id));
            flight.claim()
        };
        if claimed {
            self.deliver();
        }
        {
            let mut view = self.view.lock();
            removed.iter().for_each(|id| view.layout.remove(*id));
            if !found.bytes_exact {
                view.layout.estimated(found.ledger_id);
            }
        }
        let entries = (found.last.0 + 1) as u64;
        self.settle(found.ledger_id, entries, found.bytes, found.end_index).await;
    }

    /// Everything appended so far is answered; at most [`WAIT_LIMIT_MS`].
    pub(crate) async fn drain(&self) -> bool {
        let wait = async {
            loop {
                let drained = self.drained.notified();
                let empty = { self.order.lock().queue.is_empty() && self.flight.lock().is_idle() };
                if empty {
                    return;
                }
                drained.await;
            }
        };
        tokio::time::timeout(Duration::from_millis(2 * WAIT_LIMIT_MS), wait).await.is_ok()
    }

    /// Takes the current ledger away from the writers, if there is one with entries (`any`: also an empty one).
    pub(crate) fn take_current(order: &mut Order, any: bool) -> Option<Retiring> {
        let end_index = order.next_index;
        let current = order.current.take_if(|current| any || current.next_entry > EntryId(0))?;
        Some(Retiring { current, end_index })
    }
}

/// How ledgers of a log are laid out.
pub(crate) fn ledger_options(settings: &LogSettings, log: &str, kind: &str) -> LedgerOptions {
    LedgerOptions {
        ensemble_size: settings.ensemble_size,
        write_quorum: settings.write_quorum,
        ack_quorum: settings.ack_quorum,
        properties: BTreeMap::from([("log".to_owned(), log.to_owned()), ("kind".to_owned(), kind.to_owned())]),
    }
}

fn with_ledger(head: &HeadRecord, id: LedgerId, created_ms: u64) -> HeadRecord {
    let mut head = head.clone();
    head.ledgers.reserve_exact(1);
    head.ledgers.push(LedgerRecord::open(id, created_ms));
    head
}

/// The index after the last message of an entry.
pub(crate) async fn end_index_of(reader: &dyn LedgerReader, entry: EntryId) -> Result<u64, LogError> {
    let read = reader.read(entry, 1, u64::MAX).await?;
    let stored =
        read.first().ok_or_else(|| LogError::Corrupt(format!("entry {entry} of {} is missing", reader.id())))?;
    body_of(reader.id(), stored).map(|entry| entry.index.wrapping_add(1))
}
