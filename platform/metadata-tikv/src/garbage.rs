//! Collection of old versions, for a TiKV that nothing else uses.
//!
//! Role: every ten minutes one process moves TiKV's safe point to ten minutes ago. Who does it is decided by writing a
//! record first.
//! Invariants: nothing is done unless the configuration says so: the safe point is of the whole TiKV.
//! Failure: a collection that fails is made again later.
//! Must never know: what keys mean.

use crate::calls::{Shared, Step, View};
use crate::failure::Failure;
use crate::format::{decode_number, encode_number};
use std::sync::Arc;
use std::time::Duration;
use tikv_client::{Timestamp, TimestampExt};
use tokio::time::Instant;

/// Time between collections.
const INTERVAL: Duration = Duration::from_secs(600);
/// Longest time of a collection: it looks at every lock there is.
const LONGEST: Duration = Duration::from_secs(120);
/// Versions of this age are kept: longer than any transaction or view lives.
const KEPT_MS: u64 = 600_000;
/// Bits of a time stamp below its milliseconds.
const LOGICAL_BITS: u32 = 18;

/// When this process last tried.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    tried: Option<Instant>,
}

impl Collector {
    /// Begins a collection if it is time; it runs beside everything else.
    pub(crate) fn collect(&mut self, shared: &Arc<Shared>, now_ms: u64) {
        let due = self.tried.is_none_or(|tried| tried.elapsed() >= INTERVAL);
        if !shared.config.collect_garbage || !due {
            return;
        }
        self.tried = Some(Instant::now());
        tokio::spawn(collect(shared.clone(), now_ms.saturating_sub(KEPT_MS)));
    }
}

/// Moves the safe point if no other process has.
async fn collect(shared: Arc<Shared>, safe_point_ms: u64) {
    match claim(&shared, safe_point_ms, shared.deadline()).await {
        Ok(false) => {}
        Ok(true) => {
            let safe_point = Timestamp::from_version(safe_point_ms << LOGICAL_BITS);
            if let Err(failure) = shared.link.collect_garbage(safe_point, LONGEST).await {
                tracing::warn!(reason = failure.reason, "old versions of metadata are not collected");
            }
        }
        Err(step) => tracing::debug!(?step, "another process may collect garbage"),
    }
}

/// Whether it is this process that moves the safe point to here.
async fn claim(shared: &Shared, safe_point_ms: u64, deadline: Instant) -> Result<bool, Step> {
    let key = shared.keys.garbage();
    let mut transaction = shared.link.begin(deadline).await?;
    let found = shared.batch_get(&mut View::Of(&mut transaction), vec![key.clone()], deadline).await?;
    if let Some((_, record)) = found.into_iter().next() {
        let last_ms = decode_number(&key, &record)?;
        if safe_point_ms < last_ms + INTERVAL.as_millis() as u64 {
            return Ok(false);
        }
    }
    let record = encode_number(&key, safe_point_ms);
    transaction.put(key, record).await.map_err(|error| Failure::of("a write", &error))?;
    shared.link.step("a commit", deadline, transaction.commit()).await?;
    Ok(true)
}
