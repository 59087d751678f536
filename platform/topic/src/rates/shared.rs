//! A limit that several take from: the subscriptions of a topic, the topics of a broker.
//!
//! Role: one [`Limiter`] behind a lock that is taken only while there is a limit, and an order among those who wait.
//! Invariants: G2 holds for all takers together; G4 who waits is told a time at which something is left after those who
//! asked before, so that nobody always comes first; G5 nobody is told to wait longer than [`LOOK_AGAIN_MS`]: the rate may
//! be another by then, e.g. since a broker's part of a limit has grown, and nobody tells those who wait.
//! Must never know: who takes.

use super::Limiter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest time that somebody is sent away for beyond the wait itself; after that the queue is thought to have dissolved.
const QUEUE_MAX_MS: u64 = 1000;

/// Whoever waits looks again after so long.
const LOOK_AGAIN_MS: u64 = 1000;

#[derive(Debug)]
struct Inner {
    limiter: Limiter,
    /// Time given to the last one who waits.
    last_turn_ms: u64,
}

/// A limit that several take from.
#[derive(Debug)]
pub struct SharedLimiter {
    is_limited: AtomicBool,
    inner: Mutex<Inner>,
}

impl Default for SharedLimiter {
    /// No limit.
    fn default() -> Self {
        Self::new((0, 0))
    }
}

impl SharedLimiter {
    /// (messages, bytes) per second, 0 = no limit.
    pub fn new(rate: (u64, u64)) -> Self {
        let inner = Inner { limiter: Limiter::new(rate), last_turn_ms: 0 };
        Self { is_limited: AtomicBool::new(inner.limiter.is_limited()), inner: Mutex::new(inner) }
    }

    /// Other rates; what is owed stays owed.
    pub fn set_rate(&self, rate: (u64, u64)) {
        let mut inner = self.inner.lock();
        inner.limiter.set_rate(rate);
        inner.last_turn_ms = 0;
        self.is_limited.store(inner.limiter.is_limited(), Ordering::Relaxed);
    }

    /// Whether there is a limit at all.
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// (messages, bytes) that may pass now; nothing may pass if either is 0.
    pub fn available(&self, now_ms: u64) -> (u64, u64) {
        if !self.is_limited() {
            return (u64::MAX, u64::MAX);
        }
        self.inner.lock().limiter.available(now_ms)
    }

    /// Counts what passed.
    pub fn take(&self, messages: u64, bytes: u64, now_ms: u64) {
        if self.is_limited() {
            self.inner.lock().limiter.take(messages, bytes, now_ms);
        }
    }

    /// How long the caller should wait before it asks again (G4, G5); 0 = not at all.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        if !self.is_limited() {
            return 0;
        }
        let mut inner = self.inner.lock();
        let wait_ms = inner.limiter.wait_ms(now_ms);
        if wait_ms == 0 {
            return 0;
        }
        let earliest_ms = now_ms.saturating_add(wait_ms);
        let next_ms = inner.last_turn_ms.saturating_add(inner.limiter.ms_per_message());
        let in_queue = next_ms > earliest_ms && next_ms <= earliest_ms.saturating_add(QUEUE_MAX_MS);
        let turn_ms = if in_queue { next_ms } else { earliest_ms };
        inner.last_turn_ms = turn_ms;
        (turn_ms - now_ms).min(LOOK_AGAIN_MS)
    }
}

/// What several take from: one limiter, or several at once.
pub trait Together {
    /// Whether there is a limit at all.
    fn is_limited(&self) -> bool;
    /// (messages, bytes) that may pass now; nothing may pass if either is 0.
    fn available(&self, now_ms: u64) -> (u64, u64);
    /// Counts what passed.
    fn take(&self, messages: u64, bytes: u64, now_ms: u64);
    /// How long the caller should wait before it asks again; 0 = not at all.
    fn wait_ms(&self, now_ms: u64) -> u64;
}

impl Together for SharedLimiter {
    fn is_limited(&self) -> bool {
        self.is_limited()
    }

    fn available(&self, now_ms: u64) -> (u64, u64) {
        self.available(now_ms)
    }

    fn take(&self, messages: u64, bytes: u64, now_ms: u64) {
        self.take(messages, bytes, now_ms);
    }

    fn wait_ms(&self, now_ms: u64) -> u64 {
        self.wait_ms(now_ms)
    }
}

/// The broker's limiter and those of the places that a topic belongs to; all of them bind.
#[derive(Debug, Clone, Copy)]
pub struct Stacked<'a> {
    /// Of the broker.
    pub broker: &'a SharedLimiter,
    /// Of the places above the topic.
    pub above: &'a [Arc<SharedLimiter>],
}

impl Stacked<'_> {
    fn all(&self) -> impl Iterator<Item = &SharedLimiter> {
        std::iter::once(self.broker).chain(self.above.iter().map(|one| &**one))
    }
}

impl Together for Stacked<'_> {
    fn is_limited(&self) -> bool {
        self.all().any(SharedLimiter::is_limited)
    }

    fn available(&self, now_ms: u64) -> (u64, u64) {
        self.all()
            .map(|one| one.available(now_ms))
            .fold((u64::MAX, u64::MAX), |left, one| (left.0.min(one.0), left.1.min(one.1)))
    }

    fn take(&self, messages: u64, bytes: u64, now_ms: u64) {
        self.all().for_each(|one| one.take(messages, bytes, now_ms));
    }

    fn wait_ms(&self, now_ms: u64) -> u64 {
        self.all().map(|one| one.wait_ms(now_ms)).max().unwrap_or(0)
    }
}

/// Limits of the places that a topic belongs to: cluster, tenant, namespace, the topic over all its partitions, a resource
/// group. Shared with everything else that belongs there.
#[derive(Debug, Clone, Default)]
pub struct LimitsAbove {
    /// Publishing.
    pub publish: Arc<[Arc<SharedLimiter>]>,
    /// Dispatch.
    pub dispatch: Arc<[Arc<SharedLimiter>]>,
}

/// Limits of a whole broker, which all its topics take from.
#[derive(Debug, Clone, Default)]
pub struct BrokerLimits {
    /// Publishing.
    pub publish: Arc<SharedLimiter>,
    /// Dispatch.
    pub dispatch: Arc<SharedLimiter>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_wait_come_in_turn() {
        let shared = SharedLimiter::new((10, 0));
        shared.take(10, 0, 1000);
        assert_eq!(shared.available(1000).0, 0);
        let turns: Vec<u64> = (0..4).map(|_| shared.wait_ms(1000)).collect();
        assert_eq!(turns, [100, 200, 300, 400], "one message every 100 ms");
        assert_eq!(shared.wait_ms(2000), 0, "paid off");
        shared.take(10, 0, 5000);
        assert_eq!(shared.wait_ms(5000), 100, "an old queue does not count");
    }

    #[test]
    fn whoever_owes_much_looks_again_soon() {
        let shared = SharedLimiter::new((0, 1));
        shared.take(1, 1_000_000, 0);
        assert_eq!(shared.wait_ms(0), LOOK_AGAIN_MS);
        assert_eq!(shared.wait_ms(LOOK_AGAIN_MS), LOOK_AGAIN_MS);
        shared.set_rate((0, 1_000_000));
        assert_eq!(shared.wait_ms(3 * LOOK_AGAIN_MS), 0);
    }

    #[test]
    fn takers_share_one_rate() {
        let shared = SharedLimiter::new((100, 0));
        let mut passed = [0_u64; 5];
        let mut due = [0_u64; 5];
        for now in 0..10_000 {
            for taker in 0..5 {
                if due[taker] > now {
                    continue;
                }
                match shared.available(now).0 {
                    0 => due[taker] = now + shared.wait_ms(now).max(1),
                    _ => {
                        shared.take(1, 100, now);
                        passed[taker] += 1;
                    }
                }
            }
        }
        let total: u64 = passed.iter().sum();
        assert!((1000..=1105).contains(&total), "{passed:?}");
        assert!(passed.iter().all(|one| *one > 150), "nobody starves: {passed:?}");
    }

    #[test]
    fn all_limits_of_a_stack_bind() {
        let broker = SharedLimiter::default();
        let above = [Arc::new(SharedLimiter::new((10, 0))), Arc::new(SharedLimiter::new((0, 50)))];
        let stack = Stacked { broker: &broker, above: &above };
        assert!(stack.is_limited());
        assert_eq!(stack.available(1000), (10, 50));
        stack.take(4, 60, 1000);
        assert_eq!(stack.available(1000), (6, 0));
        let alone = SharedLimiter::new((0, 50));
        alone.take(4, 60, 1000);
        assert_eq!(stack.wait_ms(1000), alone.wait_ms(1000), "the longer wait counts");
        assert!(!Stacked { broker: &broker, above: &[] }.is_limited());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let shared = SharedLimiter::default();
        shared.take(u64::MAX, u64::MAX, 0);
        assert_eq!((shared.available(0), shared.wait_ms(0)), ((u64::MAX, u64::MAX), 0));
        shared.set_rate((0, 7));
        assert_eq!(shared.available(0), (u64::MAX, 7));
    }
}
