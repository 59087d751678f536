//! The writer's shell: carries what the machine decides to bookies, metadata and the owner.
//!
//! Invariants: H1 effects leave in the order in which the machine gave them: sends and news each have one drain at a
//! time, whoever finds it free; H2 nothing is called with a lock held; H3 news are never told from inside an append of
//! the same thread, so that an owner may append under a lock that its sink takes too.
//! Failure: see the machine; a bookie that is not in the directory counts as unavailable.
//! Must never know: what an entry means.

use super::machine::{Pending, WriterMachine};
use super::update::{Intent, RecordUpdate, UpdateFailure, UpdateStep};
use super::words::{Change, ChangeRefusal, Mode, WriterEffect};
use crate::api::{AppendEvent, AppendSink, LedgerEntry, LedgerError, LedgerReader, LedgerWriter};
use crate::context::Core;
use crate::reader::{self, View};
use crate::record::LedgerRecord;
use crate::stats::count;
use meridian_bookie_api::{AddEntry, AddResult, AddSink, Bookie, BookieError, BoxFuture, EntryBytes};
use meridian_metadata::{Condition, Version};
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

thread_local! {
    /// Appends under way on this thread (H3).
    static APPENDING: Cell<u32> = const { Cell::new(0) };
}

struct AppendingGuard;

impl AppendingGuard {
    fn enter() -> Self {
        APPENDING.with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for AppendingGuard {
    fn drop(&mut self) {
        APPENDING.with(|depth| depth.set(depth.get() - 1));
    }
}

struct Outgoing {
    to: Option<Arc<dyn Bookie>>,
    bookie: BookieId,
    entries: Vec<AddEntry>,
}

struct State {
    machine: WriterMachine,
    record: Arc<LedgerRecord>,
    version: Version,
    handles: Box<[Option<Arc<dyn Bookie>>]>,
    sends: VecDeque<Outgoing>,
    events: VecDeque<AppendEvent>,
    closers: Vec<oneshot::Sender<()>>,
    sending: bool,
    delivering: bool,
    /// Known to the ticker.
    listed: bool,
    /// The close is in metadata.
    closed: bool,
}

/// The one writer of a ledger.
pub(crate) struct Writer {
    ledger_id: LedgerId,
    core: Arc<Core>,
    sink: Arc<dyn AppendSink>,
    me: Weak<Writer>,
    /// The next entry's id: digests are computed under this lock and not under the machine's.
    next: Mutex<EntryId>,
    state: Mutex<State>,
}

impl Writer {
    pub(crate) fn start(
        core: Arc<Core>,
        ledger_id: LedgerId,
        record: LedgerRecord,
        version: Version,
        sink: Arc<dyn AppendSink>,
    ) -> Arc<Self> {
        let ensemble = &record.last_ensemble().bookies;
        let machine =
            WriterMachine::new(ledger_id, record.layout, Mode::Append, core.config.times, ensemble, EntryId::NONE);
        let handles = ensemble.iter().map(|id| core.bookies.get(id)).collect();
        let state = State {
            machine,
            record: Arc::new(record),
            version,
            handles,
            sends: VecDeque::new(),
            events: VecDeque::new(),
            closers: Vec::new(),
            sending: false,
            delivering: false,
            listed: false,
            closed: false,
        };
        let writer = Arc::new_cyclic(|me| Self {
            ledger_id,
            core,
            sink,
            me: me.clone(),
            next: Mutex::new(EntryId(0)),
            state: Mutex::new(state),
        });
        writer.core.writers.lock().insert(ledger_id, writer.me.clone());
        writer
    }

    /// Some bookies leave the cluster; answers whether one of them is a member that has to be replaced.
    pub(crate) fn leave(&self, bookies: &[BookieId]) -> bool {
        let mut told = false;
        self.on(|state| told = state.machine.leave(bookies));
        told
    }

    /// Takes what the machine decided and puts it where the drains find it.
    fn pump(&self, state: &mut State) {
        for effect in state.machine.take_effects() {
            match effect {
                WriterEffect::Send { slot, bookie, entries } => {
                    state.sends.push_back(Outgoing { to: state.handles[slot].clone(), bookie, entries });
                }
                WriterEffect::TellLac { bookies, last_add_confirmed } => self.tell(bookies, last_add_confirmed),
                WriterEffect::Replace(change) => self.start_change(state, change),
                WriterEffect::Confirmed(up_to) => Self::confirm(state, self.ledger_id, up_to),
                WriterEffect::Ended(error) => {
                    count(&self.core.counters.ended_writers, 1);
                    tracing::warn!(ledger = self.ledger_id.0, %error, "ledger writer ended");
                    state.sends.clear();
                    state.closers.clear();
                    state.events.push_back(AppendEvent::Ended { ledger_id: self.ledger_id, error });
                }
                WriterEffect::Drained => state.closers.clear(),
            }
        }
        if !state.listed && !state.machine.is_quiet() {
            state.listed = true;
            self.core.ticker.add(self.me.clone());
        }
    }

    /// One piece of news for all that was confirmed since the last one was told.
    fn confirm(state: &mut State, ledger_id: LedgerId, up_to: EntryId) {
        match state.events.back_mut() {
            Some(AppendEvent::Confirmed { up_to: last, .. }) => *last = up_to,
            _ => state.events.push_back(AppendEvent::Confirmed { ledger_id, up_to }),
        }
    }

    /// An event for the machine, then everything that follows from it.
    fn on(&self, event: impl FnOnce(&mut State)) {
        {
            let mut state = self.state.lock();
            let before = state.machine.confirmed().0;
            event(&mut state);
            count(&self.core.counters.confirmed, (state.machine.confirmed().0 - before) as u64);
            self.pump(&mut state);
        }
        self.drain_sends();
        self.drain_events();
    }

    fn drain_sends(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let mut state = self.state.lock();
        if state.sending {
            return;
        }
        state.sending = true;
        while let Some(Outgoing { to, bookie, entries }) = state.sends.pop_front() {
            drop(state);
            match to {
                Some(to) => to.add(entries, me.clone()),
                None => self.refuse(&bookie, &entries),
            }
            state = self.state.lock();
        }
        state.sending = false;
    }

    fn refuse(&self, bookie: &BookieId, entries: &[AddEntry]) {
        let error = BookieError::Unavailable("not in the directory".to_owned());
        let answer =
            |add: &AddEntry| AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result: Err(error.clone()) };
        self.add_results(bookie, entries.iter().map(answer).collect());
    }

    fn drain_events(&self) {
        let mut state = self.state.lock();
        if state.delivering || state.events.is_empty() {
            return;
        }
        if APPENDING.with(Cell::get) > 0 {
            let me = self.me.clone();
            self.core.spawn(async move {
                if let Some(writer) = me.upgrade() {
                    writer.drain_events();
                }
            });
            return;
        }
        state.delivering = true;
        while let Some(event) = state.events.pop_front() {
            drop(state);
            self.sink.append_event(event);
            state = self.state.lock();
        }
        state.delivering = false;
    }

    fn tell(&self, bookies: Vec<BookieId>, last_add_confirmed: EntryId) {
        count(&self.core.counters.explicit_lacs, 1);
        let (core, ledger_id) = (self.core.clone(), self.ledger_id);
        self.core.spawn(async move {
            let limit = Duration::from_millis(core.config.times.add_timeout_ms);
            for bookie in bookies {
                let Some(bookie) = core.bookies.get(&bookie) else { continue };
                // A lost one is no harm: the last-add-confirmed is only a lower bound.
                let _ = tokio::time::timeout(limit, bookie.write_lac(ledger_id, last_add_confirmed)).await;
            }
        });
    }

    /// Time passes; answers whether there is more to wait for.
    pub(crate) fn tick(&self, now_ms: u64) -> bool {
        self.on(|state| state.machine.tick(now_ms));
        let mut state = self.state.lock();
        if state.machine.is_quiet() {
            state.listed = false;
            state.machine.rest();
            state.sends.shrink_to_fit();
            state.events.shrink_to_fit();
        }
        state.listed
    }

    fn start_change(&self, state: &State, change: Change) {
        let failed: Vec<_> = change.failed.iter().map(|slot| change.ensemble[slot].clone()).collect();
        tracing::warn!(ledger = self.ledger_id.0, ?failed, first = change.first.0, "replacing bookies of a ledger");
        self.core.quarantine(failed);
        let (me, known) = (self.me.clone(), (state.record.as_ref().clone(), state.version));
        self.core.spawn(async move {
            let Some(writer) = me.upgrade() else { return };
            let outcome = change_ensemble(&writer.core, writer.ledger_id, &change, known).await;
            writer.changed(outcome);
        });
    }

    fn changed(&self, outcome: Result<(LedgerRecord, Version), ChangeRefusal>) {
        let now_ms = self.core.now_ms();
        self.on(|state| match outcome {
            Ok((record, version)) => {
                count(&self.core.counters.ensemble_changes, 1);
                let ensemble = record.last_ensemble().bookies.clone();
                state.handles = ensemble.iter().map(|id| self.core.bookies.get(id)).collect();
                state.record = Arc::new(record);
                state.version = version;
                state.machine.ensemble_changed(now_ms, &ensemble);
            }
            Err(refusal) => {
                count(&self.core.counters.refused_changes, 1);
                tracing::warn!(ledger = self.ledger_id.0, ?refusal, "ensemble not changed");
                state.machine.change_refused(now_ms, refusal);
            }
        });
    }

    async fn close_all(&self) -> Result<EntryId, LedgerError> {
        let (done, wait) = oneshot::channel::<()>();
        self.on(|state| {
            state.machine.close();
            if !state.machine.is_drained() && state.machine.end().is_none() {
                state.closers.push(done);
            }
        });
        // The sender is dropped when the machine has drained or ended; the machine's deadlines bound the wait.
        let _ = wait.await;
        let (intent, known) = {
            let state = self.state.lock();
            if let Some(error) = state.machine.end() {
                return Err(error.clone());
            }
            if state.closed {
                return Ok(state.machine.confirmed());
            }
            let (last_entry, length_bytes) = (state.machine.confirmed(), state.machine.confirmed_bytes());
            (Intent::Close { last_entry, length_bytes }, (state.record.as_ref().clone(), state.version))
        };
        let made = update_record(&self.core, self.ledger_id, intent, known).await;
        let (record, version) = made.map_err(|failure| match failure {
            UpdateFailure::Lost(error) | UpdateFailure::Unknown(error) => error,
        })?;
        let mut state = self.state.lock();
        if !state.closed {
            count(&self.core.counters.closed, 1);
        }
        state.closed = true;
        state.record = Arc::new(record);
        state.version = version;
        Ok(state.machine.confirmed())
    }

    fn view(&self) -> View {
        let state = self.state.lock();
        View { ledger_id: self.ledger_id, record: state.record.clone(), last_confirmed: state.machine.confirmed() }
    }
}

/// Finds replacements and puts them into metadata (S5).
async fn change_ensemble(
    core: &Core,
    ledger_id: LedgerId,
    change: &Change,
    known: (LedgerRecord, Version),
) -> Result<(LedgerRecord, Version), ChangeRefusal> {
    let chosen = core.replace_members(change);
    let bookies = chosen.map_err(|available| ChangeRefusal::NoReplacement { available })?;
    let replaced = bookies.iter().zip(&change.ensemble).filter(|(new, old)| new != old).count();
    match update_record(core, ledger_id, Intent::Change { first: change.first, bookies }, known).await {
        Ok(made) => {
            count(&core.counters.replaced_bookies, replaced as u64);
            Ok(made)
        }
        Err(UpdateFailure::Lost(error)) => Err(ChangeRefusal::Lost(error)),
        Err(UpdateFailure::Unknown(error)) => Err(ChangeRefusal::Unknown(error.to_string())),
    }
}

/// Runs one update of the record to its end.
async fn update_record(
    core: &Core,
    ledger_id: LedgerId,
    intent: Intent,
    known: (LedgerRecord, Version),
) -> Result<(LedgerRecord, Version), UpdateFailure> {
    let deadline_ms = core.now_ms() + core.config.metadata_patience_ms;
    let mut before = known.0.clone();
    let (mut update, mut step) = RecordUpdate::begin(ledger_id, intent, known, deadline_ms);
    loop {
        step = match step {
            UpdateStep::Store(record, version) => {
                update.stored(core.store(ledger_id, Some(&before), &record, Condition::Is(version)).await)
            }
            UpdateStep::Load { pause } => {
                if pause {
                    core.pause().await;
                }
                let loaded = core.load(ledger_id).await;
                if let Ok((record, _)) = &loaded {
                    before = record.clone();
                }
                update.loaded(core.now_ms(), loaded)
            }
            UpdateStep::Done(result) => return result,
        };
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.core.writers.lock().remove(&self.ledger_id);
    }
}

impl AddSink for Writer {
    fn add_results(&self, bookie: &BookieId, results: Vec<AddResult>) {
        let timeouts = results.iter().filter(|r| matches!(r.result, Err(BookieError::Timeout(_)))).count();
        if timeouts > 0 {
            count(&self.core.counters.add_timeouts, timeouts as u64);
        }
        let now_ms = self.core.now_ms();
        self.on(|state| state.machine.added(now_ms, bookie, results));
    }
}

impl LedgerWriter for Writer {
    fn append(&self, entries: Vec<EntryBytes>) -> Result<EntryId, LedgerError> {
        let max_bytes = self.core.config.max_entry_bytes;
        if let Some(large) = entries.iter().find(|e| e.len() as u64 > max_bytes) {
            let bytes = large.len();
            return Err(LedgerError::Invalid(format!("entry of {bytes} bytes is over the limit of {max_bytes}")));
        }
        let added = entries.len() as u64;
        let added_bytes: u64 = entries.iter().map(|e| e.len() as u64).sum();
        let first = {
            let mut next = self.next.lock();
            let first = *next;
            let with_digest = |(at, entry): (usize, EntryBytes)| {
                let digest = entry.digest(self.ledger_id, EntryId(first.0 + at as i64));
                Pending::new(entry, digest)
            };
            let pending: Vec<_> = entries.into_iter().enumerate().map(with_digest).collect();
            let mut state = self.state.lock();
            state.machine.append(self.core.now_ms(), pending)?;
            *next = EntryId(first.0 + added as i64);
            self.pump(&mut state);
            first
        };
        count(&self.core.counters.appends, added);
        count(&self.core.counters.append_bytes, added_bytes);
        let _guard = AppendingGuard::enter();
        self.drain_sends();
        Ok(first)
    }

    fn next_entry_id(&self) -> EntryId {
        *self.next.lock()
    }

    fn close(&self) -> BoxFuture<'_, Result<EntryId, LedgerError>> {
        Box::pin(self.close_all())
    }
}

impl LedgerReader for Writer {
    fn id(&self) -> LedgerId {
        self.ledger_id
    }

    fn last_confirmed(&self) -> EntryId {
        self.state.lock().machine.confirmed()
    }

    fn length_bytes(&self) -> u64 {
        self.state.lock().machine.confirmed_bytes()
    }

    fn read(
        &self,
        first: EntryId,
        max_entries: u32,
        max_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<LedgerEntry>, LedgerError>> {
        Box::pin(reader::read(&self.core, self.view(), first, max_entries, max_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    /// What an idle open ledger keeps beside its record: the shell, the machine, and E members.
    #[test]
    fn an_idle_writer_is_small() {
        let ids: Vec<_> = (0..3).map(|n| BookieId::new(format!("b{n}"))).collect();
        let machine = WriterMachine::new(
            LedgerId(1),
            Layout::new(3, 3, 2).unwrap(),
            Mode::Append,
            crate::LedgerConfig::default().times,
            &ids,
            EntryId::NONE,
        );
        let bytes = std::mem::size_of::<Writer>() + 16 + machine.members_bytes() + 3 * 16;
        assert!(bytes <= 1_024, "{bytes} bytes");
    }
}
