//! Whether this broker can work.

use super::{BrokerService, now_ms};
use crate::error::BrokerError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// How long the metadata store may take to answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How old the last tick may be.
const MAX_TICK_AGE_MS: u64 = 10_000;

impl BrokerService {
    /// Asks what the broker depends on: its lease is in force, the metadata store answers, topics are ticked, it is not
    /// ending.
    ///
    /// # Errors
    /// The first thing that is not well.
    pub async fn health(&self) -> Result<(), BrokerError> {
        if self.is_closing() {
            return Err(BrokerError::NotReady("the broker is shutting down".to_owned()));
        }
        if let Some(why) = self.ownership().unready() {
            return Err(BrokerError::NotReady(why));
        }
        match timeout(STORE_TIMEOUT, self.store.current_version()).await {
            Ok(answer) => answer.map(drop)?,
            Err(_) => {
                let what = "the metadata store's answer".to_owned();
                return Err(BrokerError::TimedOut { what, limit_ms: STORE_TIMEOUT.as_millis() as u64 });
            }
        }
        let last = self.last_tick_ms.load(Ordering::Relaxed);
        let age_ms = now_ms().saturating_sub(last);
        if last > 0 && age_ms > MAX_TICK_AGE_MS {
            return Err(BrokerError::NotReady(format!("topics were last ticked {age_ms} ms ago")));
        }
        Ok(())
    }
}
