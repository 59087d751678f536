//! What all calls share: the state of a store, and reads with their bounds.
//!
//! Invariants: K4; at most [`READS`] reads run at once, so that the store's return is no burst.
//! Failure: [`MetadataError::Unavailable`] after the deadline of the call.
//! Must never know: what the calls are for.

use crate::allocate::Sequences;
use crate::backoff::Backoff;
use crate::commit::Member;
use crate::config::TikvConfig;
use crate::failure::{Failure, Kind};
use crate::format::Keys;
use crate::gets::Gets;
use crate::group::Queue;
use crate::lanes::Lanes;
use crate::link::Link;
use crate::publish::Publisher;
use crate::stats::Counters;
use bytes::Bytes;
use meridian_metadata::plan::Held;
use meridian_metadata::{Entry, MetadataError};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tikv_client::{Snapshot, Transaction};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Reads at once.
pub(crate) const READS: usize = 64;
/// Keys of one request to read.
pub(crate) const KEYS_AT_ONCE: usize = 256;

/// Pairs of keys and records.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The state of a store.
pub(crate) struct Shared {
    pub(crate) config: TikvConfig,
    pub(crate) keys: Keys,
    pub(crate) link: Link,
    pub(crate) lanes: Lanes,
    /// Calls that wait to be written.
    pub(crate) groups: Mutex<Queue<Member>>,
    /// Calls that wait to be read.
    pub(crate) gets: Mutex<Gets>,
    /// Lanes of this process, for as long as their heads may be there.
    pub(crate) own_lanes: Mutex<HashSet<u64>>,
    pub(crate) publisher: Publisher,
    pub(crate) sequences: Sequences,
    pub(crate) reads: Semaphore,
    pub(crate) counters: Arc<Counters>,
    /// Asks for a look at the log now.
    pub(crate) look_now: Notify,
    /// When the last look succeeded.
    pub(crate) looked: Mutex<Instant>,
}

/// How a try ended that did not succeed.
#[derive(Debug)]
pub(crate) enum Step {
    /// The answer of the call.
    Final(MetadataError),
    /// Try again.
    Again(Failure),
}

impl From<MetadataError> for Step {
    fn from(error: MetadataError) -> Self {
        Step::Final(error)
    }
}

impl From<Failure> for Step {
    fn from(failure: Failure) -> Self {
        Step::Again(failure)
    }
}

/// The tries of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    pub(crate) deadline: Instant,
    backoff: Backoff,
    waits_for_return: bool,
}

/// What can be read from: a transaction or a snapshot.
pub(crate) enum View<'a> {
    Of(&'a mut Transaction),
    At(&'a mut Snapshot),
}

impl Shared {
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.call_timeout_ms)
    }

    pub(crate) fn unavailable(&self, reason: impl Into<String>) -> MetadataError {
        self.counters.unavailable.add(1);
        MetadataError::Unavailable(reason.into())
    }

    /// Counts a failed try.
    pub(crate) fn count(&self, failure: &Failure) {
        match failure.kind {
            Kind::Conflict => self.counters.conflicts.add(1),
            _ => self.counters.retries.add(1),
        }
    }

    /// Tries of a call that waits for the store's return with all others.
    pub(crate) fn tries(&self) -> Tries {
        Tries { deadline: self.deadline(), backoff: Backoff::new(), waits_for_return: true }
    }

    /// Tries of a call that can't wait.
    pub(crate) fn urgent_tries(&self) -> Tries {
        Tries { waits_for_return: false, ..self.tries() }
    }

    /// After a failed try: waits for the next one, or ends the call.
    pub(crate) async fn again(&self, tries: &mut Tries, step: Step) -> Result<(), MetadataError> {
        let failure = match step {
            Step::Final(error) => return Err(error),
            Step::Again(failure) => failure,
        };
        self.count(&failure);
        let time_left = tries.backoff.wait(tries.deadline).await;
        if time_left && (!tries.waits_for_return || self.link.returned(tries.deadline).await) {
            return Ok(());
        }
        Err(self.unavailable(failure.reason))
    }

    /// A slot to read, once the store is there.
    pub(crate) async fn slot(&self, tries: &Tries) -> Result<tokio::sync::SemaphorePermit<'_>, MetadataError> {
        self.counters.waiting.add(1);
        let slot = self.reading_slot(tries.deadline).await;
        self.counters.waiting.sub(1);
        slot.ok_or_else(|| self.unavailable("the store is away or too many reads wait"))
    }

    async fn reading_slot(&self, deadline: Instant) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if !self.link.returned(deadline).await {
            return None;
        }
        tokio::time::timeout_at(deadline, self.reads.acquire()).await.ok()?.ok()
    }

    /// Reads keys in a view; absent ones are left out.
    pub(crate) async fn batch_get(
        &self,
        view: &mut View<'_>,
        keys: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<Pairs, Failure> {
        let mut pairs = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(KEYS_AT_ONCE) {
            let chunk = chunk.to_vec();
            let step = async {
                Ok(match view {
                    View::Of(transaction) => collect(transaction.batch_get(chunk).await?),
                    View::At(snapshot) => collect(snapshot.batch_get(chunk).await?),
                })
            };
            pairs.extend(self.link.step("a read", deadline, step).await?);
        }
        Ok(pairs)
    }

    /// Up to `limit` pairs from `from` to before `to` in a view.
    pub(crate) async fn scan(
        &self,
        view: &mut View<'_>,
        (from, to): (Vec<u8>, Vec<u8>),
        limit: u32,
        deadline: Instant,
    ) -> Result<Pairs, Failure> {
        let step = async {
            Ok(match view {
                View::Of(transaction) => collect(transaction.scan(from..to, limit).await?),
                View::At(snapshot) => collect(snapshot.scan(from..to, limit).await?),
            })
        };
        self.link.step("a scan", deadline, step).await
    }
}

pub(crate) fn entry(key: &str, (held, value): (Held, Bytes)) -> Entry {
    Entry { key: key.to_owned(), value, version: held.version, ephemeral: held.ephemeral }
}

fn collect(pairs: impl Iterator<Item = tikv_client::KvPair>) -> Pairs {
    pairs.map(|pair| (Vec::from(pair.0), pair.1)).collect()
}
