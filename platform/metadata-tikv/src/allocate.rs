//! Numbers of sequences: callers of one sequence share a transaction.
//!
//! Invariants: M4 a number is given only after the transaction that passes it was certainly committed; numbers of a
//! transaction whose outcome is not known are left out. At most [`MAX_WAITING`] callers wait for one sequence.
//! Failure: [`MetadataError::Unavailable`].
//! Must never know: what numbers are for.

use crate::calls::{Shared, Step, View};
use crate::failure::Failure;
use crate::format::{SequenceRecord, decode_sequence, encode_sequence};
use meridian_metadata::MetadataError;
use meridian_metadata::limits::check_key;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tikv_client::TimestampExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Callers that may wait for one sequence.
const MAX_WAITING: usize = 4096;
/// Callers that share a transaction.
const MAX_SHARED: usize = 512;

/// A caller that waits.
#[derive(Debug)]
struct Waiting {
    count: u64,
    answer: oneshot::Sender<Result<u64, MetadataError>>,
}

/// Who waits for which sequence; one that is listed has a task that serves it.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    waiting: Mutex<HashMap<String, Vec<Waiting>>>,
}

/// The first number for each count, and what is next after them.
fn share(next: u64, counts: &[u64]) -> (Vec<Option<u64>>, u64) {
    let mut next = next;
    let firsts = counts.iter().map(|count| {
        let end = next.checked_add(*count)?;
        Some(std::mem::replace(&mut next, end))
    });
    let firsts = firsts.collect();
    (firsts, next)
}

impl Shared {
    /// [`meridian_metadata::MetadataStore::allocate`].
    pub(crate) async fn allocate(self: &Arc<Self>, sequence: &str, count: u64) -> Result<u64, MetadataError> {
        check_key(sequence)?;
        if count == 0 {
            return Err(MetadataError::Invalid(format!("no numbers of sequence {sequence}")));
        }
        let (answer, answered) = oneshot::channel();
        let waits = Waiting { count, answer };
        {
            let mut waiting = self.sequences.waiting.lock();
            match waiting.get_mut(sequence) {
                Some(line) if line.len() >= MAX_WAITING => {
                    return Err(self.unavailable("too many wait for numbers of a sequence"));
                }
                Some(line) => line.push(waits),
                None => {
                    waiting.insert(sequence.to_owned(), vec![waits]);
                    tokio::spawn(serve(self.clone(), sequence.to_owned()));
                }
            }
        }
        answered.await.unwrap_or_else(|_| Err(self.unavailable("the store is closed")))
    }

    /// Takes numbers for all counts in one transaction.
    async fn take(&self, sequence: &str, counts: &[u64]) -> Result<Vec<Option<u64>>, MetadataError> {
        let mut tries = self.tries();
        loop {
            match self.try_take(sequence, counts, tries.deadline).await {
                Ok(firsts) => return Ok(firsts),
                Err(step) => self.again(&mut tries, step).await?,
            }
        }
    }

    async fn try_take(&self, sequence: &str, counts: &[u64], deadline: Instant) -> Result<Vec<Option<u64>>, Step> {
        let key = self.keys.sequence(sequence);
        let mut transaction = self.link.begin(deadline).await?;
        let version = transaction.start_timestamp().version();
        let found = self.batch_get(&mut View::Of(&mut transaction), vec![key.clone()], deadline).await?;
        let next = match found.into_iter().next() {
            Some((_, record)) => decode_sequence(&key, &record)?.next,
            None => 0,
        };
        let (firsts, next_after) = share(next, counts);
        if next_after == next {
            return Ok(firsts);
        }
        let record = encode_sequence(&key, SequenceRecord { next: next_after, version });
        transaction.put(key, record).await.map_err(|error| Failure::of("a write", &error))?;
        let outcome = self.link.step("a commit", deadline, transaction.commit()).await;
        if outcome.is_err() {
            // With one key it does nothing to what was committed.
            drop(self.link.step("a rollback", deadline, transaction.rollback()).await);
        }
        outcome?;
        Ok(firsts)
    }
}

/// Serves everyone who waits for a sequence, then ends.
async fn serve(shared: Arc<Shared>, sequence: String) {
    loop {
        let line = {
            let mut waiting = shared.sequences.waiting.lock();
            let Some(line) = waiting.get_mut(&sequence) else { return };
            if line.is_empty() {
                waiting.remove(&sequence);
                return;
            }
            let rest = line.split_off(line.len().min(MAX_SHARED));
            std::mem::replace(line, rest)
        };
        let counts: Vec<_> = line.iter().map(|waits| waits.count).collect();
        let taken = shared.take(&sequence, &counts).await;
        for (index, waits) in line.into_iter().enumerate() {
            let answer = match &taken {
                Ok(firsts) => firsts.get(index).copied().flatten().ok_or_else(|| {
                    MetadataError::Invalid(format!("sequence {sequence} has no {} numbers left", waits.count))
                }),
                Err(error) => Err(error.clone()),
            };
            // An error means that the caller has gone; its numbers are left out.
            let _ = waits.answer.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shared_without_overlap_or_overflow() {
        assert_eq!(share(5, &[2, 3, 1]), (vec![Some(5), Some(7), Some(10)], 11));
        assert_eq!(share(u64::MAX - 2, &[2, 3]), (vec![Some(u64::MAX - 2), None], u64::MAX));
        assert_eq!(share(2, &[u64::MAX]), (vec![None], 2));
    }
}
