//! The shell of re-replication: runs the machine's effects as tasks and feeds the answers back until it is done.
//!
//! Invariants: O1 dropping the future ends its tasks; O2 what waits in the channel is bounded by what the machine asked
//! for; O3 no read begins before the pace allows it, and every byte sent is told to the pace.
//! Must never know: what an entry means, how fast it may go.

use super::machine::{ReplicateEffect, ReplicateMachine, ReplicateSettings, Replicated, Work};
use crate::api::LedgerError;
use crate::context::Core;
use crate::reader::ask;
use crate::record::{LedgerRecord, Stored};
use crate::stats::count;
use meridian_bookie_api::{AddEntry, AddResult, AddSink, BookieError, BoxFuture, ReadEntry};
use meridian_metadata::{Condition, Version};
use meridian_types::{BookieId, LedgerId};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How fast copies may be made; shared by all ledgers that are copied at once.
pub trait Pace: Send + Sync {
    /// Waits until more may be read.
    fn ready(&self) -> BoxFuture<'_, ()>;

    /// So many bytes were sent to a target.
    fn spent(&self, bytes: u64);
}

enum Event {
    Loaded(Result<(LedgerRecord, Version), LedgerError>),
    Stored(Stored),
    Answered(u64, usize, Result<Vec<ReadEntry>, BookieError>),
    Added(BookieId, Vec<AddResult>),
}

type Events = mpsc::UnboundedSender<Event>;

struct Sink(Events);

impl AddSink for Sink {
    fn add_results(&self, bookie: &BookieId, results: Vec<AddResult>) {
        // What is over needs no answers.
        let _ = self.0.send(Event::Added(bookie.clone(), results));
    }
}

/// Does the work for one ledger as far as it can be done now.
pub(crate) async fn replicate(
    core: &Arc<Core>,
    ledger_id: LedgerId,
    work: Work,
    settings: ReplicateSettings,
    pace: Arc<dyn Pace>,
) -> Result<Replicated, LedgerError> {
    let mut machine = ReplicateMachine::new(ledger_id, work, settings, core.now_ms());
    let (events, mut answers) = mpsc::unbounded_channel();
    let sink = Arc::new(Sink(events.clone()));
    let mut shell = Shell { core: core.clone(), ledger_id, pace, sink, events, tasks: JoinSet::new() };
    let tick = Duration::from_millis(core.config.tick_ms);
    let mut tick_at_ms = core.now_ms() + core.config.tick_ms;
    loop {
        // A choice is answered at once and has effects of its own.
        loop {
            let effects = machine.take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                if let Some(result) = shell.perform(&mut machine, effect) {
                    return result;
                }
            }
        }
        if let Ok(Some(event)) = tokio::time::timeout(tick, answers.recv()).await {
            apply(&mut machine, core.now_ms(), event);
        }
        if core.now_ms() >= tick_at_ms {
            machine.tick(core.now_ms());
            tick_at_ms = core.now_ms() + core.config.tick_ms;
        }
    }
}

fn apply(machine: &mut ReplicateMachine, now_ms: u64, event: Event) {
    match event {
        Event::Loaded(result) => machine.loaded(now_ms, result),
        Event::Stored(outcome) => machine.stored(now_ms, outcome),
        Event::Answered(run, slot, result) => machine.answered(now_ms, run, slot, result),
        Event::Added(bookie, results) => machine.added(now_ms, &bookie, results),
    }
}

struct Shell {
    core: Arc<Core>,
    ledger_id: LedgerId,
    pace: Arc<dyn Pace>,
    sink: Arc<Sink>,
    events: Events,
    tasks: JoinSet<()>,
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
    fn perform(
        &mut self,
        machine: &mut ReplicateMachine,
        effect: ReplicateEffect,
    ) -> Option<Result<Replicated, LedgerError>> {
        let (core, ledger_id) = (self.core.clone(), self.ledger_id);
        match effect {
            ReplicateEffect::Load => self.spawn(async move { Event::Loaded(core.load(ledger_id).await) }),
            ReplicateEffect::Choose(change) => machine.chosen(core.now_ms(), core.replace_members(&change)),
            ReplicateEffect::Mend { layout, ensemble } => {
                machine.mendable(core.now_ms(), core.mend_members(layout, &ensemble));
            }
            ReplicateEffect::Read { run, slot, bookie, request } => {
                let pace = self.pace.clone();
                self.spawn(async move {
                    pace.ready().await;
                    Event::Answered(run, slot, ask(&core, &bookie, slot, request).await.1)
                });
            }
            ReplicateEffect::Send { bookie, entries } => self.send(&bookie, entries),
            ReplicateEffect::Store { before, record, version } => self.spawn(async move {
                let condition = Condition::Is(version);
                Event::Stored(core.store(ledger_id, Some(&before), &record, condition).await)
            }),
            ReplicateEffect::Done(result) => {
                if let Ok(done) = &result {
                    count(&core.counters.replicated_entries, done.copies);
                    count(&core.counters.replicated_bytes, done.bytes);
                }
                return Some(result);
            }
        }
        None
    }

    fn send(&self, id: &BookieId, entries: Vec<AddEntry>) {
        self.pace.spent(entries.iter().map(|add| add.entry.len() as u64).sum());
        if let Some(bookie) = self.core.bookies.get(id) {
            return bookie.add(entries, self.sink.clone());
        }
        let error = BookieError::Unavailable("not in the directory".to_owned());
        let answer =
            |add: AddEntry| AddResult { ledger_id: add.ledger_id, entry_id: add.entry_id, result: Err(error.clone()) };
        self.sink.add_results(id, entries.into_iter().map(answer).collect());
    }
}
