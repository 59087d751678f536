//! The recovery's shell: runs the machine's effects as tasks and feeds the answers back until it is done.
//!
//! Invariants: O1 dropping the future ends its tasks; O2 what waits in the channel is bounded by what the machine
//! asked for: one answer a member and round, one an add.
//! Must never know: what an entry means.

use super::machine::{RecoveryEffect, RecoveryMachine, RecoverySettings};
use crate::api::LedgerError;
use crate::context::Core;
use crate::reader::{self, View, ask};
use crate::record::{LedgerRecord, Stored};
use crate::stats::count;
use meridian_bookie_api::{AddEntry, AddResult, AddSink, BookieError, FenceState, ReadEntry};
use meridian_metadata::{Condition, Version};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A ledger of so few entries is measured whole, a longer one by samples.
const MEASURE_ALL_ENTRIES: i64 = 64;
/// Samples of a longer one.
const MEASURE_SAMPLES: i64 = 16;
/// Bytes read to measure a short one.
const MEASURE_BYTES: u64 = 4 << 20;

enum Event {
    Loaded(Result<(LedgerRecord, Version), LedgerError>),
    Stored(Stored),
    Fenced(u64, usize, Result<FenceState, BookieError>),
    Answered(u64, usize, Result<Vec<ReadEntry>, BookieError>),
    Added(BookieId, Vec<AddResult>),
    Replaced(Result<Vec<BookieId>, u32>),
    Measured(u64, bool),
}

type Events = mpsc::UnboundedSender<Event>;

struct Sink(Events);

impl AddSink for Sink {
    fn add_results(&self, bookie: &BookieId, results: Vec<AddResult>) {
        // A recovery that is over needs no answers.
        let _ = self.0.send(Event::Added(bookie.clone(), results));
    }
}

/// Recovers and closes the ledger if it is not closed; answers its final record.
pub(crate) async fn recover(core: &Arc<Core>, ledger_id: LedgerId) -> Result<LedgerRecord, LedgerError> {
    count(&core.counters.recoveries, 1);
    let config = &core.config;
    let settings = RecoverySettings {
        times: config.times,
        retry_ms: config.times.retry_ms,
        deadline_ms: core.now_ms() + config.recovery_timeout_ms,
        batch_entries: config.recovery_batch_entries,
        batch_bytes: config.recovery_batch_bytes,
    };
    let mut machine = RecoveryMachine::new(ledger_id, settings);
    let (events, mut answers) = mpsc::unbounded_channel();
    let mut shell = Shell {
        core: core.clone(),
        ledger_id,
        sink: Arc::new(Sink(events.clone())),
        events,
        tasks: JoinSet::new(),
        known: None,
    };
    let tick = Duration::from_millis(config.tick_ms);
    let mut tick_at_ms = core.now_ms() + config.tick_ms;
    loop {
        for effect in machine.take_effects() {
            if let Some(result) = shell.perform(effect) {
                if result.is_ok() {
                    count(&core.counters.recovered, 1);
                    count(&core.counters.recovered_entries, machine.rewritten());
                }
                return result;
            }
        }
        if let Ok(Some(event)) = tokio::time::timeout(tick, answers.recv()).await {
            if let Event::Loaded(Ok((record, _))) = &event {
                shell.known = Some(record.clone());
            }
            apply(&mut machine, core.now_ms(), event);
        }
        if core.now_ms() >= tick_at_ms {
            machine.tick(core.now_ms());
            tick_at_ms = core.now_ms() + config.tick_ms;
        }
    }
}

fn apply(machine: &mut RecoveryMachine, now_ms: u64, event: Event) {
    match event {
        Event::Loaded(result) => machine.loaded(now_ms, result),
        Event::Stored(outcome) => machine.stored(now_ms, outcome),
        Event::Fenced(round, slot, result) => machine.fenced(now_ms, round, slot, result),
        Event::Answered(round, slot, result) => machine.answered(now_ms, round, slot, result),
        Event::Added(bookie, results) => machine.added(now_ms, &bookie, results),
        Event::Replaced(choice) => machine.replaced(now_ms, choice),
        Event::Measured(bytes, exact) => machine.measured(bytes, exact),
    }
}

struct Shell {
    core: Arc<Core>,
    ledger_id: LedgerId,
    sink: Arc<Sink>,
    events: Events,
    tasks: JoinSet<()>,
    /// The record as last read: what a store changes.
    known: Option<LedgerRecord>,
}

impl Shell {
    fn spawn(&mut self, answer: impl Future<Output = Event> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        let events = self.events.clone();
        self.tasks.spawn(async move {
            let _ = events.send(answer.await);
        });
    }

    /// Begins an effect; the last one answers the result.
    fn perform(&mut self, effect: RecoveryEffect) -> Option<Result<LedgerRecord, LedgerError>> {
        let (core, ledger_id) = (self.core.clone(), self.ledger_id);
        match effect {
            RecoveryEffect::Load => self.spawn(async move { Event::Loaded(core.load(ledger_id).await) }),
            RecoveryEffect::Store { record, version } => {
                let known = self.known.clone();
                self.spawn(async move {
                    let condition = Condition::Is(version);
                    Event::Stored(core.store(ledger_id, known.as_ref(), &record, condition).await)
                });
            }
            RecoveryEffect::Fence { round, slot, bookie } => {
                self.spawn(async move { Event::Fenced(round, slot, fence(&core, ledger_id, &bookie).await) })
            }
            RecoveryEffect::Read { round, slot, bookie, request } => {
                let asked = ask(&core, &bookie, slot, request);
                self.spawn(async move { Event::Answered(round, slot, asked.await.1) });
            }
            RecoveryEffect::Send { bookie, entries } => self.send(&bookie, entries),
            RecoveryEffect::Replace(change) => {
                core.quarantine(change.failed.iter().map(|slot| change.ensemble[slot].clone()));
                let _ = self.events.send(Event::Replaced(core.replace_members(&change)));
            }
            RecoveryEffect::Measure { record, up_to } => self.spawn(async move {
                let (bytes, exact) = measure(&core, ledger_id, record, up_to).await;
                Event::Measured(bytes, exact)
            }),
            RecoveryEffect::Done(result) => return Some(result),
        }
        None
    }

    fn send(&self, id: &BookieId, entries: Vec<AddEntry>) {
        if let Some(bookie) = self.core.bookies.get(id) {
            return bookie.add(entries, self.sink.clone());
        }
        let error = BookieError::Unavailable("not in the directory".to_owned());
        let answer =
            |add: AddEntry| AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result: Err(error.clone()) };
        self.sink.add_results(id, entries.into_iter().map(answer).collect());
    }
}

async fn fence(core: &Core, ledger_id: LedgerId, id: &BookieId) -> Result<FenceState, BookieError> {
    let Some(bookie) = core.bookies.get(id) else {
        return Err(BookieError::Unavailable("not in the directory".to_owned()));
    };
    let limit_ms = core.config.read_timeout_ms;
    match tokio::time::timeout(Duration::from_millis(limit_ms), bookie.fence(ledger_id)).await {
        Ok(result) => result,
        Err(_) => Err(BookieError::Timeout(limit_ms)),
    }
}

/// Bytes of the entries up to `up_to`: counted if they are few, else estimated from samples. The old writer knew, but
/// entries do not carry the running length.
async fn measure(core: &Arc<Core>, ledger_id: LedgerId, record: LedgerRecord, up_to: EntryId) -> (u64, bool) {
    let view = View { ledger_id, record: Arc::new(record), last_confirmed: up_to };
    let entries = up_to.0 + 1;
    if entries <= MEASURE_ALL_ENTRIES
        && let Some(bytes) = count_all(core, &view, entries).await
    {
        return (bytes, true);
    }
    let (mut bytes, mut samples) = (0u64, 0u64);
    for sample in 0..MEASURE_SAMPLES {
        let at = EntryId((entries * sample) / MEASURE_SAMPLES);
        if let Ok(found) = reader::read(core, view.clone(), at, 1, 0).await {
            bytes += found.iter().map(|e| e.payload.len() as u64).sum::<u64>();
            samples += 1;
        }
    }
    if samples == 0 { (0, false) } else { ((bytes as u128 * entries as u128 / samples as u128) as u64, false) }
}

async fn count_all(core: &Arc<Core>, view: &View, entries: i64) -> Option<u64> {
    let (mut next, mut bytes) = (EntryId(0), 0u64);
    while next.0 < entries {
        let found = reader::read(core, view.clone(), next, entries as u32, MEASURE_BYTES).await.ok()?;
        bytes += found.iter().map(|e| e.payload.len() as u64).sum::<u64>();
        next = found.last()?.entry_id.next();
        if bytes > MEASURE_BYTES {
            return None;
        }
    }
    Some(bytes)
}
