//! The publish rate: what has to wait is held by the gate and passed on by a timer.
//!
//! Failure: none; what waits goes with its producer.

use super::{NonPersistentTopic, State};
use crate::api::ProducerKey;
use crate::producers::Send;
use crate::rates::Stacked;
use std::time::Duration;

/// Shortest sleep of the timer, so that a high rate does not wake it for every message.
const WAKE_MIN_MS: u64 = 2;

impl NonPersistentTopic {
    /// What may pass now of a run of sends; the rest waits.
    pub(super) fn through_gate(&self, state: &mut State, key: ProducerKey, sends: Vec<Send>, now_ms: u64) -> Vec<Send> {
        let above = self.above.read().publish.clone();
        let shared = Stacked { broker: &self.shared.publish, above: &above };
        if state.gate.is_open(&shared) {
            return sends;
        }
        // Copies are limited where they are read.
        let Some(producer) = state.producers.find(key).filter(|producer| producer.link.is_none()) else { return sends };
        let offer = state.gate.offer(key, sends, &shared, now_ms);
        if offer.begins {
            producer.sink.0.publishes_held(producer.producer_id, true);
        }
        self.wake_gate_later(state, now_ms);
        offer.pass
    }

    /// Sleeps until something may pass, unless a timer runs already.
    fn wake_gate_later(&self, state: &mut State, now_ms: u64) {
        if state.gate_timer_runs || !state.gate.has_waiting() {
            return;
        }
        let above = self.above.read().publish.clone();
        let shared = Stacked { broker: &self.shared.publish, above: &above };
        let Some(wait_ms) = state.gate.wait_ms(&shared, now_ms) else { return };
        // Sends come from connections, which are tasks of a runtime.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        state.gate_timer_runs = true;
        let topic = self.me.clone();
        runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait_ms.max(WAKE_MIN_MS))).await;
            let Some(topic) = topic.upgrade() else { return };
            let mut state = topic.state.lock();
            state.gate_timer_runs = false;
            topic.release_held(&mut state);
        });
    }

    /// Passes on what may pass of what waits.
    pub(super) fn release_held(&self, state: &mut State) {
        let (now_us, now_ms) = (self.clock.monotonic_us(), self.clock.now_ms());
        let producers = &state.producers;
        let above = self.above.read().publish.clone();
        let shared = Stacked { broker: &self.shared.publish, above: &above };
        let released = state.gate.release(&shared, |key| producers.find(key).is_some(), now_ms);
        for (key, sends) in released.runs {
            state.publish(key, sends, now_us, now_ms);
        }
        for producer in released.freed.into_iter().filter_map(|key| state.producers.find(key)) {
            producer.sink.0.publishes_held(producer.producer_id, false);
        }
        self.wake_gate_later(state, now_ms);
    }
}
