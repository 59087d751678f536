//! The publish rate: what has to wait is held by the gate and stored by a timer.
//!
//! Role: the shell of [`crate::producers::PublishGate`]: tells clients that their sends wait, wakes when some may pass.
//! Invariants: H1 at most one timer runs, and one does while anything waits.
//! Failure: none; what waits goes with its producer.

use super::PersistentTopic;
use super::producing::ProducerSide;
use crate::api::ProducerKey;
use crate::producers::Send;
use crate::rates::{LimitsAbove, Stacked};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Shortest sleep of the timer, so that a high rate does not wake it for every message.
const WAKE_MIN_MS: u64 = 2;

impl PersistentTopic {
    /// What may be stored now of a run of sends; the rest waits.
    pub(super) fn through_gate(
        &self,
        side: &mut ProducerSide,
        key: ProducerKey,
        sends: Vec<Send>,
        now_ms: u64,
    ) -> Vec<Send> {
        let above = self.above.read().publish.clone();
        let broker = &Stacked { broker: &self.deps.limits.publish, above: &above };
        if side.gate.is_open(broker) {
            return sends;
        }
        // Copies are limited where they are read.
        let Some(producer) = side.core.find(key).filter(|producer| producer.link.is_none()) else {
            return sends;
        };
        let offer = side.gate.offer(key, sends, broker, now_ms);
        if offer.begins {
            producer.sink.0.publishes_held(producer.producer_id, true);
        }
        self.wake_gate_later(side, now_ms);
        offer.pass
    }

    /// Sleeps until something may pass, unless a timer runs already (H1).
    pub(super) fn wake_gate_later(&self, side: &mut ProducerSide, now_ms: u64) {
        if side.gate_timer_runs || !side.gate.has_waiting() {
            return;
        }
        let above = self.above.read().publish.clone();
        let shared = Stacked { broker: &self.deps.limits.publish, above: &above };
        let Some(wait_ms) = side.gate.wait_ms(&shared, now_ms) else { return };
        side.gate_timer_runs = true;
        let topic = self.me.clone();
        self.deps.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait_ms.max(WAKE_MIN_MS))).await;
            if let Some(topic) = topic.upgrade() {
                topic.gate_timer();
            }
        });
    }

    fn gate_timer(&self) {
        self.with_producers(|side| {
            side.gate_timer_runs = false;
            self.release_held(side);
        });
    }

    /// Stores what may pass of what waits.
    pub(super) fn release_held(&self, side: &mut ProducerSide) {
        let (now_us, now_ms) = (self.deps.clock.monotonic_us(), self.now_ms());
        let core = &side.core;
        let above = self.above.read().publish.clone();
        let shared = Stacked { broker: &self.deps.limits.publish, above: &above };
        let released = side.gate.release(&shared, |key| core.find(key).is_some(), now_ms);
        if !released.runs.is_empty() {
            self.touch(now_ms);
        }
        for (key, sends) in released.runs {
            self.store(side, key, sends, now_us, now_ms);
        }
        for producer in released.freed.into_iter().filter_map(|key| side.core.find(key)) {
            producer.sink.0.publishes_held(producer.producer_id, false);
        }
        self.wake_gate_later(side, now_ms);
    }

    /// Another rate is in force.
    pub(super) fn follow_publish_rate(&self, rate: (u64, u64)) {
        if self.producers.lock().is_some() {
            self.with_producers(|side| {
                side.gate.set_rate(rate);
                self.release_held(side);
            });
        }
    }

    /// Messages and bytes published per second, as of the last second.
    pub(super) fn published_rate(&self) -> (u64, u64) {
        let [messages, bytes] = &self.published;
        (messages.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    /// So much is published now: rates of dispatch that stand on top of it follow.
    pub(super) fn follow_published(&self, now: (f64, f64)) {
        let now = (now.0.ceil() as u64, now.1.ceil() as u64);
        if now == self.published_rate() {
            return;
        }
        self.published[0].store(now.0, Ordering::Relaxed);
        self.published[1].store(now.1, Ordering::Relaxed);
        let limits = self.limits();
        if limits.topic_dispatch_relative
            && let Some(limiter) = self.dispatch_limit.get()
        {
            limiter.set_rate(self.dispatch_rate_now(limits.topic_dispatch_rate, true));
        }
        if limits.dispatch_relative {
            let rate = self.dispatch_rate_now(limits.dispatch_rate, true);
            for subscription in self.connected_subscriptions() {
                subscription.with_core(self, |active, _| active.core.set_rate(rate));
            }
        }
    }

    /// Other limits stand above the topic, or their rates are others.
    pub(super) fn follow_above(&self, above: LimitsAbove) {
        *self.above.write() = above;
        if self.producers.lock().is_some() {
            self.with_producers(|side| self.release_held(side));
        }
        let limits = self.limits();
        let shared = self.shared_dispatch_limits(&limits);
        for subscription in self.connected_subscriptions() {
            let limits = self.dispatch_limits(&limits, subscription.durable);
            subscription.with_core(self, |active, _| active.core.set_limits(limits, shared.clone()));
        }
    }

    /// Producers are kept out for this reason, or let in again. Everything else goes on.
    pub(super) fn follow_hold(&self, reason: Option<Arc<str>>) {
        let begins = {
            let mut hold = self.hold.write();
            let begins = hold.is_none() && reason.is_some();
            *hold = reason;
            begins
        };
        if begins && self.producers.lock().is_some() {
            self.with_producers(|side| side.core.close_all());
        }
    }
}
