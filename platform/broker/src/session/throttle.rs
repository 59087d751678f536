//! How much a connection may have under way before its socket is no longer read.
//!
//! Role: counts publishes (number and bytes) and slow commands of one connection. Above a limit the reader stops; it goes
//! on when all are at half. Publishes that wait for a topic's publish rate are counted apart, by bytes only, so that a
//! limited topic delays the others of its connection only when what waits of it fills its own bound.
//! Invariants: R1 what was taken is given back exactly once; counters never go below zero (asserted).
//! Must never know: what is under way.

use super::outbound::Outbound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::Notify;

/// What a publish that waits is taken to cost beside its bytes.
const HELD_OVERHEAD_BYTES: u64 = 128;

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct ThrottleLimits {
    /// Publishes.
    pub publishes: u32,
    /// Bytes of publishes.
    pub publish_bytes: u64,
    /// Bytes of publishes that wait for a publish rate.
    pub held_bytes: u64,
    /// Slow commands.
    pub commands: u32,
}

/// What one connection has under way.
pub struct Throttle {
    limits: ThrottleLimits,
    publishes: AtomicU32,
    publish_bytes: AtomicU64,
    held_bytes: AtomicU64,
    commands: AtomicU32,
    paused: AtomicBool,
    resume: Notify,
}

impl Throttle {
    /// Nothing under way.
    pub fn new(limits: ThrottleLimits) -> Self {
        Self {
            limits,
            publishes: AtomicU32::new(0),
            publish_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            commands: AtomicU32::new(0),
            paused: AtomicBool::new(false),
            resume: Notify::new(),
        }
    }

    /// Publishes begin.
    pub fn publishes_begun(&self, count: u32, bytes: u64) {
        self.publishes.fetch_add(count, Ordering::SeqCst);
        self.publish_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Publishes are answered.
    pub fn publishes_ended(&self, count: u32, bytes: u64) {
        let before = self.publishes.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(before >= count, "R1: {count} publishes of {before} ended");
        self.publish_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.poke();
    }

    /// Publishes that wait for a publish rate begin.
    pub fn held_begun(&self, count: u32, bytes: u64) {
        self.held_bytes.fetch_add(held_cost(count, bytes), Ordering::SeqCst);
    }

    /// Publishes of a producer that waits for a publish rate are answered.
    pub fn held_ended(&self, count: u32, bytes: u64) {
        let cost = held_cost(count, bytes);
        let before = self.held_bytes.fetch_sub(cost, Ordering::SeqCst);
        debug_assert!(before >= cost, "R1: {cost} held bytes of {before} ended");
        self.poke();
    }

    /// A slow command begins.
    pub fn command_begun(&self) {
        self.commands.fetch_add(1, Ordering::SeqCst);
    }

    /// A slow command is answered.
    pub fn command_ended(&self) {
        let before = self.commands.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "R1: a command ended twice");
        self.poke();
    }

    /// Whether reading is stopped.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Something may have changed for a stopped reader.
    pub fn poke(&self) {
        if self.paused.load(Ordering::SeqCst) {
            self.resume.notify_one();
        }
    }

    fn is_over(&self) -> bool {
        self.publishes.load(Ordering::SeqCst) >= self.limits.publishes
            || self.publish_bytes.load(Ordering::SeqCst) >= self.limits.publish_bytes
            || self.held_bytes.load(Ordering::SeqCst) >= self.limits.held_bytes
            || self.commands.load(Ordering::SeqCst) >= self.limits.commands
    }

    fn is_at_half(&self) -> bool {
        self.publishes.load(Ordering::SeqCst) <= self.limits.publishes / 2
            && self.publish_bytes.load(Ordering::SeqCst) <= self.limits.publish_bytes / 2
            // What waits drains at its rate: others need not wait until half of it is gone.
            && self.held_bytes.load(Ordering::SeqCst) < self.limits.held_bytes
            && self.commands.load(Ordering::SeqCst) <= self.limits.commands / 2
    }

    /// Waits while too much is under way or the peer does not read what it gets; true = it had to wait.
    pub async fn admitted(&self, outbound: &Outbound) -> bool {
        if !self.is_over() && !outbound.is_over() {
            return false;
        }
        self.paused.store(true, Ordering::SeqCst);
        while !(self.is_at_half() && outbound.is_drained()) {
            self.resume.notified().await;
        }
        self.paused.store(false, Ordering::SeqCst);
        true
    }
}

fn held_cost(count: u32, bytes: u64) -> u64 {
    bytes + u64::from(count) * HELD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn limits() -> ThrottleLimits {
        ThrottleLimits { publishes: 10, publish_bytes: 1000, held_bytes: 1000, commands: 4 }
    }

    fn is_ready(future: std::pin::Pin<&mut impl Future<Output = bool>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn reading_stops_at_the_limit_and_resumes_at_half() {
        let (throttle, outbound) = (Throttle::new(limits()), Outbound::new(100, 50));
        throttle.publishes_begun(9, 9);
        assert!(is_ready(pin!(throttle.admitted(&outbound))));
        throttle.publishes_begun(1, 1);
        let mut waiting = pin!(throttle.admitted(&outbound));
        assert!(!is_ready(waiting.as_mut()));
        assert!(throttle.is_paused());
        throttle.publishes_ended(4, 4);
        assert!(!is_ready(waiting.as_mut()));
        throttle.publishes_ended(1, 1);
        assert!(is_ready(waiting.as_mut()));
        assert!(!throttle.is_paused());
    }

    #[test]
    fn what_waits_for_a_rate_stops_reading_only_at_its_own_bound() {
        let (throttle, outbound) = (Throttle::new(limits()), Outbound::new(100, 50));
        throttle.held_begun(1, 800);
        assert!(is_ready(pin!(throttle.admitted(&outbound))));
        throttle.held_begun(1, 0);
        let mut waiting = pin!(throttle.admitted(&outbound));
        assert!(!is_ready(waiting.as_mut()));
        throttle.held_ended(1, 0);
        assert!(is_ready(waiting.as_mut()));
    }

    #[test]
    fn bytes_commands_and_an_unread_outbound_queue_stop_reading_too() {
        let (throttle, outbound) = (Throttle::new(limits()), Outbound::new(100, 50));
        throttle.publishes_begun(1, 1000);
        assert!(!is_ready(pin!(throttle.admitted(&outbound))));
        throttle.publishes_ended(1, 1000);
        (0..4).for_each(|_| throttle.command_begun());
        assert!(!is_ready(pin!(throttle.admitted(&outbound))));
        (0..4).for_each(|_| throttle.command_ended());
        outbound.append(|appender| appender.buffer().put_bytes(0, 100));
        assert!(!is_ready(pin!(throttle.admitted(&outbound))));
        outbound.wrote(60);
        assert!(is_ready(pin!(throttle.admitted(&outbound))));
    }
}
