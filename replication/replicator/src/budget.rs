//! How much of the logs all links to one remote hold in memory because they lag.
//!
//! Invariants: a share is given back when it is dropped, wherever the link is by then; nobody waits for one without end.
//! Must never know: what is read.

use crate::machine::words::Hold;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The unit of shares.
const UNIT_BYTES: u64 = 1024;
/// How long a link waits for its share.
const WAIT_MS: u64 = 1000;

/// Bytes that links to one remote may have read from storage and not yet through.
#[derive(Debug)]
pub struct ReadBudget {
    shares: Arc<Semaphore>,
    units: u32,
    wait: Duration,
}

impl ReadBudget {
    /// With so many bytes.
    pub fn new(bytes: u64) -> Self {
        let units = (bytes / UNIT_BYTES).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        Self { shares: Arc::new(Semaphore::new(units as usize)), units, wait: Duration::from_millis(WAIT_MS) }
    }

    /// Bytes that nobody holds.
    pub fn free_bytes(&self) -> u64 {
        self.shares.available_permits() as u64 * UNIT_BYTES
    }

    /// A share of that size (or of all there is); `None` if none came free in time.
    pub async fn take(&self, bytes: u64) -> Option<Hold> {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, u64::from(self.units)) as u32;
        let share = self.shares.clone().acquire_many_owned(units);
        let share = tokio::time::timeout(self.wait, share).await.ok()?.ok()?;
        Some(Arc::new(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shares_come_back_and_nobody_waits_for_ever() {
        let budget = ReadBudget { wait: Duration::from_millis(5), ..ReadBudget::new(10 * UNIT_BYTES) };
        let all = budget.take(1 << 40).await.expect("everything");
        assert_eq!(budget.free_bytes(), 0);
        assert!(budget.take(1).await.is_none());
        drop(all);
        let part = budget.take(3000).await;
        assert!(part.is_some());
        assert_eq!(budget.free_bytes(), 7 * UNIT_BYTES);
    }
}
