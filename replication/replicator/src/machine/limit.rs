//! How fast a link may go, and how long it waits before it tries again.
//!
//! Invariants: B1 over any window a bucket gives at most one second's burst more than its rate, plus one entry; B2 a wait
//! that a bucket names is long enough for it to give again.
//! Must never know: clocks (time comes in), links.

use super::words::Now;
use parking_lot::Mutex;

/// Limits of one link; may change at any time. 0 = no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkLimits {
    /// Messages per second.
    pub messages_per_second: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Messages older than this are not copied; `None` = all are.
    pub ttl_ms: Option<u64>,
}

/// Throttled waits are at least this long, so that a slow link moves in batches and not in single entries.
const MIN_WAIT_MS: u64 = 10;

/// Tokens that come with time. It lends: as long as there is any token an entry of any size passes, and the debt is waited
/// off; so an entry larger than a second's worth passes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    rate: u64,
    /// In thousandths.
    level: i128,
    at_ms: u64,
}

impl Bucket {
    /// A full bucket; rate 0 = no limit.
    pub fn new(rate: u64, now_ms: u64) -> Self {
        Self { rate, level: i128::from(rate) * 1000, at_ms: now_ms }
    }

    /// Another rate from now on. What is there stays, up to a second's worth.
    pub fn set_rate(&mut self, rate: u64, now_ms: u64) {
        if rate == self.rate {
            return;
        }
        if self.rate == 0 {
            *self = Self::new(rate, now_ms);
        } else {
            self.fill(now_ms);
            self.rate = rate;
            self.level = self.level.min(i128::from(rate) * 1000);
        }
    }

    fn fill(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms);
        let full = i128::from(self.rate) * 1000;
        self.level = (self.level + i128::from(self.rate) * i128::from(passed)).min(full);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// How long until it gives, 0 = now.
    pub fn wait_ms(&mut self, now_ms: u64) -> u64 {
        if self.rate == 0 {
            return 0;
        }
        self.fill(now_ms);
        if self.level > 0 {
            return 0;
        }
        let missing = (1 - self.level) as u128;
        let wait_ms = missing.div_ceil(u128::from(self.rate));
        u64::try_from(wait_ms).unwrap_or(u64::MAX).max(MIN_WAIT_MS)
    }

    /// Takes; call only if there is no wait.
    pub fn take(&mut self, tokens: u64) {
        if self.rate > 0 {
            self.level -= i128::from(tokens) * 1000;
        }
    }
}

/// A limit that several links share, as those of a namespace.
pub trait SharedLimit: Send + Sync {
    /// Takes for one entry, or answers how many ms to wait.
    ///
    /// # Errors
    /// The wait; nothing was taken.
    fn take(&self, now_ms: u64, messages: u32, bytes: u64) -> Result<(), u64>;
}

/// Messages and bytes together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Throttle {
    messages: Bucket,
    bytes: Bucket,
}

impl Throttle {
    /// Puts rates in force.
    pub fn set(&mut self, messages_per_second: u64, bytes_per_second: u64, now_ms: u64) {
        self.messages.set_rate(messages_per_second, now_ms);
        self.bytes.set_rate(bytes_per_second, now_ms);
    }

    /// How long until both give, 0 = now.
    pub fn wait_ms(&mut self, now_ms: u64) -> u64 {
        self.messages.wait_ms(now_ms).max(self.bytes.wait_ms(now_ms))
    }

    /// Takes from both.
    pub fn take(&mut self, messages: u32, bytes: u64) {
        self.messages.take(u64::from(messages));
        self.bytes.take(bytes);
    }
}

/// A [`SharedLimit`] of its own buckets.
#[derive(Debug, Default)]
pub struct NamespaceLimit {
    throttle: Mutex<Throttle>,
}

impl NamespaceLimit {
    /// Puts rates in force; 0 = no limit.
    pub fn set(&self, messages_per_second: u64, bytes_per_second: u64, now_ms: u64) {
        self.throttle.lock().set(messages_per_second, bytes_per_second, now_ms);
    }

    /// How long until it gives, 0 = now.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        self.throttle.lock().wait_ms(now_ms)
    }

    /// Takes for one entry, also more than is left (it is lent); where several limits bind, once none makes wait.
    pub fn take_now(&self, messages: u32, bytes: u64) {
        self.throttle.lock().take(messages, bytes);
    }
}

impl SharedLimit for NamespaceLimit {
    fn take(&self, now_ms: u64, messages: u32, bytes: u64) -> Result<(), u64> {
        let mut throttle = self.throttle.lock();
        match throttle.wait_ms(now_ms) {
            0 => {
                throttle.take(messages, bytes);
                Ok(())
            }
            wait_ms => Err(wait_ms),
        }
    }
}

/// Waits that double, with chance from outside so that many links do not try at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min_ms: u64,
    max_ms: u64,
    tries: u32,
}

impl Backoff {
    /// From `min_ms` to `max_ms`.
    pub fn new(min_ms: u64, max_ms: u64) -> Self {
        Self { min_ms, max_ms, tries: 0 }
    }

    /// The next wait: between half and the whole of the doubled one.
    pub fn next_ms(&mut self, now: Now) -> u64 {
        let whole = self.min_ms.saturating_mul(1 << self.tries.min(20)).min(self.max_ms);
        self.tries = self.tries.saturating_add(1);
        whole - whole / 2 * u64::from(now.jitter_permille.min(999)) / 1000
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::ProptestConfig;
    use proptest::{prop_assert, proptest};

    #[test]
    fn a_bucket_lends_and_waits_the_debt_off() {
        let mut bucket = Bucket::new(1000, 0);
        assert_eq!(bucket.wait_ms(0), 0);
        bucket.take(5000);
        assert_eq!(bucket.wait_ms(0), 4001);
        assert_eq!(bucket.wait_ms(4000), MIN_WAIT_MS);
        assert_eq!(bucket.wait_ms(4001), 0);
        let mut none = Bucket::new(0, 0);
        none.take(u64::MAX);
        assert_eq!(none.wait_ms(0), 0);
        none.set_rate(10, 5);
        assert_eq!(none.wait_ms(5), 0);
    }

    #[test]
    fn shared_limits_count_all_who_take() {
        let limit = NamespaceLimit::default();
        limit.set(0, 100, 0);
        assert_eq!(limit.take(0, 1, 60), Ok(()));
        assert_eq!(limit.take(0, 1, 60), Ok(()));
        assert_eq!(limit.take(0, 1, 60), Err(201));
        assert_eq!(limit.take(201, 1, 60), Ok(()));
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let mut backoff = Backoff::new(100, 1000);
        let at = |jitter_permille| Now { ms: 0, jitter_permille };
        assert_eq!(backoff.next_ms(at(0)), 100);
        assert_eq!(backoff.next_ms(at(500)), 150);
        assert_eq!(backoff.next_ms(at(999)), 201);
        let last: Vec<u64> = (0..40).map(|_| backoff.next_ms(at(0))).collect();
        assert_eq!((last[0], last[39]), (800, 1000));
        backoff.reset();
        assert_eq!(backoff.next_ms(at(0)), 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// B1, B2.
        #[test]
        fn a_bucket_keeps_its_rate(rate in 1u64..5000, sizes in vec(1u64..2000, 1..60)) {
            let mut bucket = Bucket::new(rate, 0);
            let (mut now_ms, mut taken, mut largest) = (0u64, 0u64, 0u64);
            for size in sizes {
                let wait_ms = bucket.wait_ms(now_ms);
                now_ms += wait_ms;
                prop_assert!(wait_ms == 0 || bucket.wait_ms(now_ms) == 0);
                bucket.take(size);
                taken += size;
                largest = largest.max(size);
                prop_assert!(taken <= rate + rate * now_ms / 1000 + largest);
            }
        }
    }
}
