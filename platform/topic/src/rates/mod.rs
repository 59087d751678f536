//! Rates: events per second out of counters, and limits on events per second.
//!
//! Role: [`Rate`] turns a growing counter into a rate, [`Bucket`] and [`Limiter`] say how much may pass now and how long
//! to wait. No clock inside: callers pass times in ms.
//! Invariants:
//! - G1 a rate is finite and never negative, also when a counter starts again or time stands still or goes back.
//! - G2 over a long time a bucket lets pass its rate and not more: what one grab takes too much is owed by the next ones.
//! - G3 a bucket never holds more than one second's worth, so a burst after silence is at most that, plus one grab.

mod shared;
mod subscribe;

pub use shared::{BrokerLimits, LimitsAbove, SharedLimiter, Stacked, Together};
pub use subscribe::SubscribeRates;

/// Sum of rates; of none it is 0, where the library's sum is −0.
pub fn total(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

/// A rate (messages, bytes) on top of what is published: who keeps up is not held back, who is behind catches up at the
/// rate. No limit (0) stays none.
pub fn on_top(rate: (u64, u64), published: (u64, u64)) -> (u64, u64) {
    let add = |rate: u64, published: u64| if rate == 0 { 0 } else { rate.saturating_add(published) };
    (add(rate.0, published.0), add(rate.1, published.1))
}

/// Time constant of the smoothing.
const SMOOTHING_MS: f64 = 10_000.0;

/// Events per second of one growing counter, smoothed over about ten seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    count: u64,
    at_ms: Option<u64>,
    per_second: f64,
    warm: bool,
}

impl Rate {
    /// Takes the counter's value now; the first call only notes it.
    pub fn sample(&mut self, count: u64, now_ms: u64) {
        let Some(at_ms) = self.at_ms.replace(now_ms) else {
            self.count = count;
            return;
        };
        if now_ms <= at_ms {
            self.at_ms = Some(at_ms.min(now_ms));
            return;
        }
        let new = count.checked_sub(self.count).unwrap_or(count);
        let elapsed_ms = (now_ms - at_ms) as f64;
        let measured = new as f64 * 1000.0 / elapsed_ms;
        let weight = if self.warm { 1.0 - (-elapsed_ms / SMOOTHING_MS).exp() } else { 1.0 };
        self.per_second += weight * (measured - self.per_second);
        if self.per_second < 1e-3 {
            self.per_second = 0.0;
        }
        self.warm = true;
        self.count = count;
    }

    /// Events per second.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// Tokens that come back at a steady rate. The balance may go below zero: an entry is never split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    per_second: u64,
    /// Thousandths of tokens, so that small rates add up exactly.
    milli_tokens: i64,
    at_ms: Option<u64>,
}

impl Bucket {
    /// A full bucket; 0 = no limit.
    pub fn new(per_second: u64) -> Self {
        Self { per_second, milli_tokens: Self::full(per_second), at_ms: None }
    }

    fn full(per_second: u64) -> i64 {
        i64::try_from(per_second.saturating_mul(1000)).unwrap_or(i64::MAX)
    }

    /// Another rate; what is owed stays owed.
    pub fn set_rate(&mut self, per_second: u64) {
        if self.per_second == 0 {
            *self = Self::new(per_second);
            return;
        }
        self.per_second = per_second;
        self.milli_tokens = self.milli_tokens.min(Self::full(per_second));
    }

    fn refill(&mut self, now_ms: u64) {
        let elapsed_ms = self.at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        self.at_ms = Some(self.at_ms.map_or(now_ms, |at_ms| at_ms.max(now_ms)));
        let gained = i64::try_from(elapsed_ms.saturating_mul(self.per_second)).unwrap_or(i64::MAX);
        self.milli_tokens = self.milli_tokens.saturating_add(gained).min(Self::full(self.per_second));
    }

    /// Whole tokens that may be taken now, at least 0; `u64::MAX` without a limit.
    pub fn available(&mut self, now_ms: u64) -> u64 {
        if self.per_second == 0 {
            return u64::MAX;
        }
        self.refill(now_ms);
        u64::try_from(self.milli_tokens / 1000).unwrap_or(0)
    }

    /// Takes tokens, also more than there are.
    pub fn take(&mut self, tokens: u64, now_ms: u64) {
        if self.per_second == 0 {
            return;
        }
        self.refill(now_ms);
        let taken = i64::try_from(tokens.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.milli_tokens = self.milli_tokens.saturating_sub(taken);
    }

    /// How long until one token is there; 0 = now.
    pub fn wait_ms(&mut self, now_ms: u64) -> u64 {
        if self.available(now_ms) > 0 {
            return 0;
        }
        let missing = 1000_i64.saturating_sub(self.milli_tokens).unsigned_abs();
        missing.div_ceil(self.per_second)
    }
}

/// A limit on messages and one on bytes; either may be absent (0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limiter {
    messages: Bucket,
    bytes: Bucket,
}

impl Limiter {
    /// Full buckets for (messages, bytes) per second.
    pub fn new(rate: (u64, u64)) -> Self {
        Self { messages: Bucket::new(rate.0), bytes: Bucket::new(rate.1) }
    }

    /// Other rates; what is owed stays owed.
    pub fn set_rate(&mut self, rate: (u64, u64)) {
        self.messages.set_rate(rate.0);
        self.bytes.set_rate(rate.1);
    }

    /// (messages, bytes) that may pass now; nothing may pass if either is 0.
    pub fn available(&mut self, now_ms: u64) -> (u64, u64) {
        (self.messages.available(now_ms), self.bytes.available(now_ms))
    }

    /// Counts what passed.
    pub fn take(&mut self, messages: u64, bytes: u64, now_ms: u64) {
        self.messages.take(messages, now_ms);
        self.bytes.take(bytes, now_ms);
    }

    /// How long until something may pass; 0 = now.
    pub fn wait_ms(&mut self, now_ms: u64) -> u64 {
        self.messages.wait_ms(now_ms).max(self.bytes.wait_ms(now_ms))
    }

    /// How long one message takes at the rate, at least 1.
    pub fn ms_per_message(&self) -> u64 {
        1000_u64.checked_div(self.messages.per_second).unwrap_or(1).max(1)
    }

    /// Whether there is a limit at all.
    pub fn is_limited(&self) -> bool {
        self.messages.per_second != 0 || self.bytes.per_second != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_total_of_nothing_is_zero_without_a_sign() {
        assert!(total(std::iter::empty()).is_sign_positive());
        assert_eq!(total([1.5, 2.0].into_iter()), 3.5);
    }

    #[test]
    fn a_relative_rate_stands_on_what_is_published_and_none_stays_none() {
        assert_eq!(on_top((10, 0), (7, 1000)), (17, 0));
        assert_eq!(on_top((0, 5), (7, 1000)), (0, 1005));
        assert_eq!(on_top((u64::MAX, 1), (1, u64::MAX)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_steady_flow_has_its_rate_and_silence_fades() {
        let mut rate = Rate::default();
        for second in 0..30 {
            rate.sample(second * 100, second * 1000);
        }
        assert!((rate.per_second() - 100.0).abs() < 1e-6, "{}", rate.per_second());
        for second in 30..150 {
            rate.sample(2900, second * 1000);
        }
        assert!(rate.per_second() < 0.01, "{}", rate.per_second());
    }

    #[test]
    fn counters_and_clocks_that_go_back_do_no_harm() {
        let mut rate = Rate::default();
        rate.sample(1000, 10_000);
        rate.sample(5, 11_000);
        assert_eq!(rate.per_second(), 5.0);
        rate.sample(6, 11_000);
        rate.sample(7, 3000);
        assert!(rate.per_second().is_finite() && rate.per_second() >= 0.0);
    }

    #[test]
    fn b114_batches_over_the_limit_are_owed() {
        let mut limiter = Limiter::new((10, 0));
        let mut passed = 0_u64;
        for now in (0..60_000).step_by(20) {
            if limiter.wait_ms(now) == 0 {
                limiter.take(1000, 1, now);
                passed += 1000;
            }
        }
        assert_eq!(passed, 1000, "one batch of 1000 at 10 a second is paid off after 100 s");
        assert!(limiter.wait_ms(60_000) > 38_000);
    }

    #[test]
    fn b114_a_limit_on_bytes_alone_holds() {
        let mut limiter = Limiter::new((0, 100_000));
        let mut bytes = 0_u64;
        for now in (0..60_000).step_by(5) {
            let (messages, allowed) = limiter.available(now);
            if messages > 0 && allowed > 0 {
                limiter.take(1, 1024, now);
                bytes += 1024;
            }
        }
        assert!(bytes as f64 <= 1.05 * 100_000.0 * 60.0 && bytes as f64 >= 0.95 * 100_000.0 * 60.0, "{bytes}");
    }

    #[test]
    fn a_limit_can_come_change_and_go() {
        let mut bucket = Bucket::new(0);
        assert_eq!((bucket.available(5), bucket.wait_ms(5)), (u64::MAX, 0));
        bucket.set_rate(10);
        assert_eq!(bucket.available(5), 10);
        bucket.take(15, 5);
        assert_eq!((bucket.available(5), bucket.wait_ms(5)), (0, 600));
        bucket.set_rate(100);
        assert_eq!(bucket.wait_ms(5), 60);
        bucket.set_rate(0);
        assert_eq!(bucket.available(6), u64::MAX);
    }

    proptest! {
        #[test]
        fn never_more_than_rate_and_one_burst_and_one_grab(
            per_second in 1u64..10_000,
            grabs in proptest::collection::vec((0u64..400, 1u64..500), 1..200),
        ) {
            let mut bucket = Bucket::new(per_second);
            let (mut now, mut passed, mut largest) = (0, 0, 0);
            for (pause_ms, grab) in grabs {
                now += pause_ms;
                if bucket.available(now) > 0 {
                    bucket.take(grab, now);
                    passed += grab;
                    largest = largest.max(grab);
                } else {
                    let wait_ms = bucket.wait_ms(now);
                    prop_assert!(wait_ms > 0);
                    let mut later = bucket;
                    prop_assert!(later.available(now + wait_ms) > 0);
                    let mut sooner = bucket;
                    prop_assert_eq!(sooner.available(now + wait_ms - 1), 0);
                }
            }
            prop_assert!(passed * 1000 <= per_second * now + per_second * 1000 + largest * 1000);
        }
    }
}
