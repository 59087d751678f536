//! How long to wait before the next attempt, as a pure machine.
//!
//! Invariants: a delay is never above `max_ms` and, after a failure, never below half of `min_ms`; delays double until
//! they reach `max_ms`; half of each is random, so that many that failed together do not come back together; only a
//! connection that lived for `max_ms` makes the machine forget earlier failures (a peer that accepts and fails at once
//! is not hammered).
//! Must never know: clocks, random sources.

/// Limits of the waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// The first wait.
    pub min_ms: u64,
    /// The longest wait.
    pub max_ms: u64,
}

/// The state of one target.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    limits: BackoffLimits,
    failures: u32,
}

impl Backoff {
    /// No failure yet.
    pub fn new(limits: BackoffLimits) -> Self {
        let min_ms = limits.min_ms.max(1);
        Self { limits: BackoffLimits { min_ms, max_ms: limits.max_ms.max(min_ms) }, failures: 0 }
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt failed. Answers how long to wait; `random` is uniform over all numbers.
    pub fn failed(&mut self, random: u64) -> u64 {
        let doubled = self.limits.min_ms.saturating_mul(1u64 << self.failures.min(40));
        self.failures = self.failures.saturating_add(1);
        let delay_ms = doubled.min(self.limits.max_ms);
        let half = delay_ms / 2;
        half + random % (delay_ms - half + 1)
    }

    /// What had succeeded ended after `lived_ms`. Answers how long to wait.
    pub fn ended(&mut self, lived_ms: u64, random: u64) -> u64 {
        if lived_ms >= self.limits.max_ms {
            self.failures = 0;
        }
        self.failed(random)
    }

    /// All is well again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{ProptestConfig, any, proptest};

    const LIMITS: BackoffLimits = BackoffLimits { min_ms: 100, max_ms: 5_000 };

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(LIMITS);
        let longest: Vec<_> = (0..8).map(|_| backoff.failed(u64::MAX / 2)).map(|ms| ms > 0).collect();
        assert_eq!((longest.len(), backoff.failures()), (8, 8));
        let mut backoff = Backoff::new(LIMITS);
        // random = half of the delay: the whole delay.
        let waits: Vec<_> =
            [50, 100, 200, 400, 800, 1600, 2500, 2500].into_iter().map(|half| backoff.failed(half)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn only_a_connection_that_lived_is_a_success() {
        let mut backoff = Backoff::new(LIMITS);
        for _ in 0..6 {
            backoff.ended(10, 0);
        }
        assert!(backoff.ended(10, 0) >= 2_500, "accepting and failing at once is a failure");
        assert!(backoff.ended(5_000, 0) <= 100);
        backoff.reset();
        assert_eq!(backoff.failures(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn waits_stay_within_their_limits(min_ms in 0u64..1_000, max_ms in 0u64..100_000, random in any::<u64>(), rounds in 1u32..100) {
            let mut backoff = Backoff::new(BackoffLimits { min_ms, max_ms });
            for _ in 0..rounds {
                let wait = backoff.failed(random);
                assert!(wait <= max_ms.max(min_ms).max(1));
                assert!(wait >= min_ms / 2);
            }
        }
    }
}
