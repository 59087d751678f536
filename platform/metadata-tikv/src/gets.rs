//! Reading single keys: calls that wait together share one view.
//!
//! Invariants: a key is read in a view that begins after the call; at most [`READERS`] views run at once, each for at most
//! [`KEYS_AT_ONCE`] calls; a record that can't be read fails its own call only.
//! Failure: as every read.
//! Must never know: what keys mean.

use crate::calls::{KEYS_AT_ONCE, Shared, Step, View, entry};
use crate::format::decode_data;
use meridian_metadata::{Entry, MetadataError};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Views at once.
const READERS: usize = 8;
/// Calls that may wait.
const MAX_WAITING: usize = 65_536;

type Answer = Result<Option<Entry>, MetadataError>;

/// Calls that wait, and how many views run.
#[derive(Debug, Default)]
pub(crate) struct Gets {
    waiting: VecDeque<(String, oneshot::Sender<Answer>)>,
    readers: usize,
}

/// Reads for those who wait; there is room for another when it is dropped.
struct Reader {
    shared: Arc<Shared>,
    /// It counts as one that runs.
    counted: bool,
}

impl Reader {
    /// The calls of the next view; none ends the reader, in the same moment in which nobody waits.
    fn calls(&mut self) -> Vec<(String, oneshot::Sender<Answer>)> {
        let mut gets = self.shared.gets.lock();
        let count = gets.waiting.len().min(KEYS_AT_ONCE);
        if count == 0 {
            gets.readers -= 1;
            self.counted = false;
        }
        gets.waiting.drain(..count).collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.counted {
            self.shared.gets.lock().readers -= 1;
        }
    }
}

impl Shared {
    /// The value of a key.
    pub(crate) async fn get(self: &Arc<Self>, key: &str) -> Answer {
        let deadline = self.deadline();
        let (answer, answered) = oneshot::channel();
        {
            let mut gets = self.gets.lock();
            if gets.waiting.len() >= MAX_WAITING {
                return Err(self.unavailable("too many reads wait"));
            }
            gets.waiting.push_back((key.to_owned(), answer));
            self.counters.waiting.add(1);
            if gets.readers < READERS {
                gets.readers += 1;
                tokio::spawn(read_waiting(Reader { shared: self.clone(), counted: true }));
            }
        }
        match timeout_at(deadline, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(self.unavailable("the store was closed"))),
            Err(_) => Err(self.unavailable("the store is away or too many reads wait")),
        }
    }

    /// Reads for so many calls.
    async fn read_keys(&self, keys: &BTreeSet<String>, calls: u64) -> Result<HashMap<String, Answer>, MetadataError> {
        let mut tries = self.tries();
        let slot = self.slot(&tries).await;
        self.counters.waiting.sub(calls);
        let _slot = slot?;
        loop {
            match self.try_read_keys(keys, &tries).await {
                Ok(found) => return Ok(found),
                Err(step) => self.again(&mut tries, step).await?,
            }
        }
    }

    async fn try_read_keys(
        &self,
        keys: &BTreeSet<String>,
        tries: &crate::calls::Tries,
    ) -> Result<HashMap<String, Answer>, Step> {
        let (mut snapshot, _) = self.link.snapshot(tries.deadline).await?;
        let wanted = keys.iter().map(|key| self.keys.data(key)).collect();
        let mut found = HashMap::with_capacity(keys.len());
        for (data_key, record) in self.batch_get(&mut View::At(&mut snapshot), wanted, tries.deadline).await? {
            let key = self.keys.key_of_data(&data_key)?;
            let value = decode_data(&data_key, &record).map(|value| Some(entry(key, value)));
            found.insert(key.to_owned(), value);
        }
        Ok(found)
    }
}

/// Reads until nobody waits.
async fn read_waiting(mut reader: Reader) {
    loop {
        let mut calls = reader.calls();
        if calls.is_empty() {
            return;
        }
        let count = calls.len() as u64;
        // Whoever has gone is not read for.
        calls.retain(|(_, answer)| !answer.is_closed());
        let keys: BTreeSet<String> = calls.iter().map(|(key, _)| key.clone()).collect();
        let found = reader.shared.read_keys(&keys, count).await;
        for (key, answer) in calls {
            let value = match &found {
                Ok(found) => found.get(&key).cloned().unwrap_or(Ok(None)),
                Err(error) => Err(error.clone()),
            };
            // An error means that the caller has gone.
            let _ = answer.send(value);
        }
    }
}
