//! Hands the answers of synced groups to their sinks.
//!
//! Role: groups are answered in the order of their syncs, coalesced per sink. When nothing waits for the journal the
//! journal thread answers by itself (a lone add saves a thread switch); under load a thread of its own does, so that
//! the next sync starts at once.
//! Invariants: C1 a group is answered on the journal thread only if every earlier one has been answered (B2);
//! C2 at most [`COMPLETION_GROUPS_MAX`] groups wait, then the journal waits.
//! Failure: a sink that panics loses its own answers only.
//! Must never know: files.

use super::{Batch, Item};
use meridian_bookie_api::{AddResult, AddSink, BookieError};
use meridian_types::BookieId;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Groups that may wait for the completion thread.
pub const COMPLETION_GROUPS_MAX: usize = 64;

/// A synced (or failed) group.
pub(super) struct Group {
    pub items: Vec<Item>,
    pub outcome: Result<(), BookieError>,
}

#[derive(Default)]
struct State {
    groups: VecDeque<Group>,
    answering: bool,
    closed: bool,
}

/// The completion thread.
pub(crate) struct Completion {
    bookie: BookieId,
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Completion {
    pub fn start(bookie: BookieId) -> std::io::Result<Arc<Self>> {
        let completion = Arc::new(Self {
            bookie,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            thread: Mutex::new(None),
        });
        let worker = Arc::clone(&completion);
        let thread = std::thread::Builder::new().name("bookie-acks".to_owned()).spawn(move || worker.run())?;
        *completion.thread.lock() = Some(thread);
        Ok(completion)
    }

    /// Answers a group; `idle` says that the journal has nothing else to do.
    pub(super) fn deliver(&self, group: Group, idle: bool) {
        let mut state = self.state.lock();
        if idle && state.groups.is_empty() && !state.answering {
            drop(state);
            return answer(&self.bookie, group);
        }
        while state.groups.len() >= COMPLETION_GROUPS_MAX && !state.closed {
            self.changed.wait(&mut state);
        }
        state.groups.push_back(group);
        drop(state);
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(group) = state.groups.pop_front() {
                state.answering = true;
                drop(state);
                answer(&self.bookie, group);
                state = self.state.lock();
                state.answering = false;
                if state.groups.len() + 1 == COMPLETION_GROUPS_MAX {
                    self.changed.notify_all();
                }
            } else if state.closed {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    /// Answers what waits, then ends the thread. The journals must have ended before.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

fn answer(bookie: &BookieId, group: Group) {
    let mut sinks: Vec<(Arc<dyn AddSink>, Vec<AddResult>)> = Vec::new();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for item in group.items {
        match item {
            Item::Control(control) => {
                if let Some(done) = control.done {
                    let _ = done.send(group.outcome.clone());
                }
            }
            Item::Adds(batch) => {
                let key = Arc::as_ptr(&batch.sink).cast::<()>().addr();
                let place = match sinks.last() {
                    Some((last, _)) if Arc::as_ptr(last).cast::<()>().addr() == key => sinks.len() - 1,
                    _ => *places.entry(key).or_insert_with(|| {
                        sinks.push((Arc::clone(&batch.sink), Vec::with_capacity(batch.entries.len())));
                        sinks.len() - 1
                    }),
                };
                results_of(batch, &group.outcome, &mut sinks[place].1);
            }
        }
    }
    for (sink, results) in sinks {
        if catch_unwind(AssertUnwindSafe(|| sink.add_results(bookie, results))).is_err() {
            tracing::error!(%bookie, "a receiver of add results panicked; its results are lost");
        }
    }
}

fn results_of(batch: Batch, outcome: &Result<(), BookieError>, results: &mut Vec<AddResult>) {
    let mut refused = batch.refused.into_iter().peekable();
    for (at, entry) in batch.entries.into_iter().enumerate() {
        let result = match refused.next_if(|(index, _)| *index == at) {
            Some((_, error)) => Err(error),
            None => outcome.clone(),
        };
        results.push(AddResult { ledger_id: entry.ledger_id, entry_id: entry.entry_id, result });
    }
}
