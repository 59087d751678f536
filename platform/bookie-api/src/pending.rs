//! What waits for an answer on one connection: a pure table.
//!
//! Invariants: I1 everything put in comes out exactly once, answered or failed; I2 adds of one ledger are answered in
//! the order in which they were given (B2): another order ends the connection.

use crate::bookie::{AddResult, AddSink, BookieError, ReadEntry};
use crate::frame::{AddAnswers, Failure, LedgerAnswer};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Calls in flight.
pub const CALLS_MAX: usize = 65_536;

/// The answer to a call.
#[derive(Debug)]
pub(crate) enum Answer {
    Entries(Vec<ReadEntry>),
    Ledger(LedgerAnswer),
}

/// Results per sink.
pub(crate) type Results = Vec<(Arc<dyn AddSink>, Vec<AddResult>)>;

struct PendingAdd {
    entry_id: EntryId,
    sink: Arc<dyn AddSink>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pending {
    adds: HashMap<LedgerId, VecDeque<PendingAdd>>,
    adds_count: usize,
    calls: HashMap<u64, oneshot::Sender<Result<Answer, BookieError>>>,
    last_call: u64,
    progress: Option<Instant>,
    failure: Option<BookieError>,
}

impl Pending {
    /// Why nothing more may be put in.
    pub fn failure(&self) -> Option<BookieError> {
        self.failure.clone()
    }

    /// Notes an add.
    pub fn add(&mut self, ledger_id: LedgerId, entry_id: EntryId, sink: &Arc<dyn AddSink>) {
        if self.adds_count == 0 {
            self.progress = Some(Instant::now());
        }
        self.adds_count += 1;
        self.adds.entry(ledger_id).or_default().push_back(PendingAdd { entry_id, sink: Arc::clone(sink) });
    }

    /// Notes a call and gives it its number.
    pub fn add_call(&mut self, done: oneshot::Sender<Result<Answer, BookieError>>) -> Result<u64, BookieError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if self.calls.len() >= CALLS_MAX {
            return Err(BookieError::Busy(format!("{CALLS_MAX} calls are in flight")));
        }
        self.last_call += 1;
        self.calls.insert(self.last_call, done);
        Ok(self.last_call)
    }

    /// The caller waits no longer.
    pub fn forget_call(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    /// Answers a call; one that nobody waits for any more is dropped.
    pub fn end_call(&mut self, call: u64, answer: Result<Answer, BookieError>) {
        if let Some(done) = self.calls.remove(&call) {
            let _ = done.send(answer);
        }
    }

    /// Since when adds in flight have had no answer.
    pub fn stuck_since(&self) -> Option<Instant> {
        if self.adds_count == 0 { None } else { self.progress }
    }

    /// Matches answers with adds (I2). Answers that match nothing fail the connection: see [`Pending::failure`].
    pub fn take_adds(&mut self, answers: AddAnswers) -> Results {
        let mut results = Collected::default();
        for answer in answers.answers {
            let ledger_id = LedgerId(answer.ledger);
            let result = answer.failure.map_or(Ok(()), |failure| Err(Failure::into_error(failure)));
            let Some(queue) = self.adds.get_mut(&ledger_id) else {
                self.failure = Some(out_of_order());
                break;
            };
            for at in 0..i64::from(answer.count) {
                let expected = answer.first_entry.wrapping_add(at);
                let Some(add) = queue.pop_front_if(|add| add.entry_id.0 == expected) else {
                    self.failure = Some(out_of_order());
                    break;
                };
                self.adds_count -= 1;
                results.push(&add.sink, ledger_id, add.entry_id, result.clone());
            }
            if queue.is_empty() {
                self.adds.remove(&ledger_id);
            }
        }
        self.progress = Some(Instant::now());
        results.list
    }

    /// Fails everything, and everything that may still come.
    pub fn fail_all(&mut self, error: &BookieError) -> Results {
        self.failure = Some(error.clone());
        for (_, done) in self.calls.drain() {
            let _ = done.send(Err(error.clone()));
        }
        let mut results = Collected::default();
        for (ledger_id, queue) in self.adds.drain() {
            for add in queue {
                results.push(&add.sink, ledger_id, add.entry_id, Err(error.clone()));
            }
        }
        self.adds_count = 0;
        results.list
    }
}

fn out_of_order() -> BookieError {
    BookieError::Unavailable("answers out of order".to_owned())
}

#[derive(Default)]
struct Collected {
    list: Results,
    places: HashMap<usize, usize>,
}

impl Collected {
    fn push(
        &mut self,
        sink: &Arc<dyn AddSink>,
        ledger_id: LedgerId,
        entry_id: EntryId,
        result: Result<(), BookieError>,
    ) {
        let key = |sink: &Arc<dyn AddSink>| Arc::as_ptr(sink).cast::<()>().addr();
        let wanted = key(sink);
        let place = match self.list.last() {
            Some((last, _)) if key(last) == wanted => self.list.len() - 1,
            _ => *self.places.entry(wanted).or_insert_with(|| {
                self.list.push((Arc::clone(sink), Vec::new()));
                self.list.len() - 1
            }),
        };
        self.list[place].1.push(AddResult { ledger_id, entry_id, result });
    }
}

/// Hands results to their sinks.
pub(crate) fn deliver(id: &BookieId, results: Results) {
    for (sink, results) in results {
        sink.add_results(id, results);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::AddAnswer;

    struct Nobody;
    impl AddSink for Nobody {
        fn add_results(&self, _: &BookieId, _: Vec<AddResult>) {}
    }

    fn answer(ledger: i64, first_entry: i64, count: u32) -> AddAnswers {
        AddAnswers { answers: vec![AddAnswer { ledger, first_entry, count, failure: None }] }
    }

    #[test]
    fn golden_script() {
        let mut pending = Pending::default();
        let sinks: [Arc<dyn AddSink>; 2] = [Arc::new(Nobody), Arc::new(Nobody)];
        // Zero-sized sinks share an address: results of both come together then, which is no harm.
        for entry in 0..4 {
            pending.add(LedgerId(1), EntryId(entry), &sinks[0]);
        }
        pending.add(LedgerId(2), EntryId(0), &sinks[1]);
        assert!(pending.stuck_since().is_some());
        let first = pending.take_adds(answer(1, 0, 2));
        assert_eq!(
            first[0].1.iter().map(|r| (r.entry_id.0, r.result.is_ok())).collect::<Vec<_>>(),
            [(0, true), (1, true)]
        );
        assert!(pending.failure().is_none());
        assert_eq!(pending.take_adds(answer(1, 2, 1)).len(), 1);
        assert!(pending.take_adds(answer(1, 9, 1)).is_empty(), "another entry than the next");
        assert!(pending.failure().is_some());
        let rest = pending.fail_all(&BookieError::Timeout(1));
        assert_eq!(rest.iter().map(|(_, results)| results.len()).sum::<usize>(), 2);
        assert!(pending.stuck_since().is_none());
    }
}
