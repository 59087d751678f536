//! How fast copies are made: bytes per second over all ledgers of this worker.
//!
//! Invariants: T1 over any time the bytes spent are at most the rate times that time, and one burst and what was under
//! way; T2 a read is let through for an estimate of what it will cost (the average so far), which its sends pay back: many
//! that wait do not go all at once.
//! Must never know: ledgers.

use meridian_ledger::replicate::Pace;
use meridian_metadata::BoxFuture;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// What may be saved up, as a part of a second's bytes.
const BURST_PART: u64 = 10;

/// The pure part: a bucket that may be in debt.
#[derive(Debug, Clone)]
pub struct Bucket {
    bytes_per_second: u64,
    /// In bytes and thousandths.
    balance: i128,
    reserved: u64,
    estimate: u64,
    last_ms: u64,
}

impl Bucket {
    /// A full bucket; 0 = no limit.
    pub fn new(bytes_per_second: u64, now_ms: u64) -> Self {
        let balance = i128::from(bytes_per_second / BURST_PART) * 1000;
        Self { bytes_per_second, balance, reserved: 0, estimate: 0, last_ms: now_ms }
    }

    fn fill(&mut self, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.last_ms);
        self.last_ms = self.last_ms.max(now_ms);
        let most = i128::from(self.bytes_per_second / BURST_PART) * 1000;
        self.balance = (self.balance + i128::from(self.bytes_per_second) * i128::from(elapsed)).min(most);
    }

    /// Lets a read through, or tells how long to wait.
    pub fn enter(&mut self, now_ms: u64) -> Result<(), u64> {
        if self.bytes_per_second == 0 {
            return Ok(());
        }
        self.fill(now_ms);
        if self.balance < 0 {
            let wait_ms = (-self.balance).div_ceil_by(i128::from(self.bytes_per_second));
            return Err(wait_ms.clamp(1, 1_000));
        }
        self.reserved += self.estimate;
        self.balance -= i128::from(self.estimate) * 1000;
        Ok(())
    }

    /// Bytes were sent.
    pub fn spend(&mut self, now_ms: u64, bytes: u64) {
        if self.bytes_per_second == 0 {
            return;
        }
        self.fill(now_ms);
        let paid = bytes.min(self.reserved);
        self.reserved -= paid;
        self.balance -= i128::from(bytes - paid) * 1000;
        self.estimate = if self.estimate == 0 { bytes } else { (self.estimate * 7 + bytes) / 8 };
    }
}

/// Division upwards for positive numbers, as milliseconds.
trait DivCeil {
    fn div_ceil_by(self, by: i128) -> u64;
}

impl DivCeil for i128 {
    fn div_ceil_by(self, by: i128) -> u64 {
        u64::try_from((self + by - 1) / by.max(1)).unwrap_or(u64::MAX)
    }
}

/// A bucket on the clock.
pub struct Throttle {
    bucket: Mutex<Bucket>,
    started: Instant,
}

impl Throttle {
    /// 0 = no limit.
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bucket: Mutex::new(Bucket::new(bytes_per_second, 0)), started: Instant::now() }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

impl Pace for Throttle {
    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let entered = self.bucket.lock().enter(self.now_ms());
                match entered {
                    Ok(()) => return,
                    Err(wait_ms) => tokio::time::sleep(Duration::from_millis(wait_ms)).await,
                }
            }
        })
    }

    fn spent(&self, bytes: u64) {
        self.bucket.lock().spend(self.now_ms(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, proptest};

    #[test]
    fn golden_script() {
        let mut bucket = Bucket::new(1_000, 0);
        assert_eq!(bucket.enter(0), Ok(()));
        bucket.spend(0, 400); // 100 were saved up: 300 of debt
        assert_eq!(bucket.enter(0), Err(300));
        assert_eq!(bucket.enter(299), Err(1));
        assert_eq!(bucket.enter(300), Ok(())); // 400 reserved
        assert_eq!(bucket.enter(300), Err(400));
        bucket.spend(310, 400); // paid with the reserve
        assert_eq!(bucket.enter(699), Err(1));
        assert_eq!(bucket.enter(700), Ok(()));
        bucket.spend(700, 100); // 300 stay reserved for who comes next
        assert_eq!(Bucket::new(0, 0).enter(0), Ok(()));
    }

    proptest! {
        /// T1: what one spends who enters only when let through.
        #[test]
        fn the_rate_is_kept(costs in prop::collection::vec(1..5_000u64, 1..200), rate in 100..10_000u64) {
            let mut bucket = Bucket::new(rate, 0);
            let (mut now_ms, mut spent, mut most) = (0u64, 0u64, 0u64);
            for cost in costs {
                while let Err(wait_ms) = bucket.enter(now_ms) {
                    now_ms += wait_ms;
                }
                prop_assert!(spent <= rate * now_ms / 1000 + rate / BURST_PART + most + 1, "{} after {} ms", spent, now_ms);
                bucket.spend(now_ms, cost);
                spent += cost;
                most = most.max(cost);
            }
        }
    }
}
