//! How much all links to one remote hold in memory because they lag.
//!
//! Invariants: a share is given back when it is dropped, wherever the link is by then; nobody waits for one without end.
//! Must never know: what is held.

use crate::machine::words::Hold;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of shares.
const UNIT_BYTES: u64 = 1024;
/// How long a link waits for its share.
const WAIT_MS: u64 = 1000;

/// Bytes that links to one remote may have taken up and not yet through.
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
    pub async fn take(&self, bytes: u64) -> Option<Share> {
        let units = units_of(bytes).clamp(1, self.units as usize) as u32;
        let share = self.shares.clone().acquire_many_owned(units);
        let share = tokio::time::timeout(self.wait, share).await.ok()?.ok()?;
        Some(Share(share))
    }

    /// The same without waiting.
    pub fn try_take(&self, bytes: u64) -> Option<Hold> {
        let units = units_of(bytes).clamp(1, self.units as usize) as u32;
        let share = self.shares.clone().try_acquire_many_owned(units).ok()?;
        Some(Arc::new(share))
    }
}

fn units_of(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX)
}

/// A share of a budget.
#[derive(Debug)]
pub struct Share(OwnedSemaphorePermit);

impl Share {
    /// Gives back what is above so many bytes and keeps the rest until it is dropped.
    pub fn keep(mut self, bytes: u64) -> Hold {
        match self.0.split(units_of(bytes)) {
            Some(kept) => Arc::new(kept),
            // It is not larger than that.
            None => Arc::new(self.0),
        }
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
        let part = budget.take(3000).await.expect("a part");
        assert_eq!(budget.free_bytes(), 7 * UNIT_BYTES);
        let kept = part.keep(1);
        assert_eq!(budget.free_bytes(), 9 * UNIT_BYTES);
        drop(kept);
        let kept = budget.take(3000).await.expect("a part").keep(1 << 40);
        assert_eq!(budget.free_bytes(), 7 * UNIT_BYTES);
        drop(kept);
        assert_eq!(budget.free_bytes(), 10 * UNIT_BYTES);
        let part = budget.try_take(9000).expect("a part");
        assert!(budget.try_take(2000).is_none(), "not at once");
        drop(part);
        assert!(budget.try_take(1 << 40).is_some(), "everything");
    }
}
