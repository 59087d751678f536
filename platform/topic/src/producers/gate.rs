//! The publish rate of a topic: what may be stored now, and what waits.
//!
//! Sends over the rate wait here, producer by producer, and are answered when they are stored: a client sees a slow topic,
//! its other topics on the same connection go on. What waits is bounded by the connections that it came from.
//!
//! Invariants:
//! - W1 sends of one producer pass in the order in which they came; none passes one that waits.
//! - W2 producers take turns, one send each, so that a flood of one does not hold up another.
//! - W3 what passes is counted against the topic's limit and the broker's, also what is more than was left (it is owed).
//!
//! Failure: none; sends of producers that are gone are dropped.
//! Must never know: clocks, sinks, logs.

use super::Send;
use crate::api::ProducerKey;
use crate::rates::{Limiter, Together};
use std::collections::VecDeque;

/// Sends of one producer that wait.
#[derive(Debug)]
struct Held {
    key: ProducerKey,
    sends: VecDeque<Send>,
}

/// What may be stored at once.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) pass: Vec<Send>,
    /// The producer has to wait, and did not before.
    pub(crate) begins: bool,
}

/// What has waited long enough.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// To be stored, in this order.
    pub(crate) runs: Vec<(ProducerKey, Vec<Send>)>,
    /// Producers of which nothing waits any more.
    pub(crate) freed: Vec<ProducerKey>,
}

/// The gate.
#[derive(Debug)]
pub(crate) struct PublishGate {
    limiter: Limiter,
    /// In the order of turns (W2).
    held: VecDeque<Held>,
    limited_times: u64,
}

/// Messages and bytes that a send counts for.
fn cost(send: &Send) -> (u64, u64) {
    match send.refusal {
        Some(_) => (0, 0),
        None => (u64::from(send.publish.messages), send.publish.payload.len() as u64),
    }
}

/// What is left of both limits.
struct Allowance {
    left: (u64, u64),
    taken: (u64, u64),
}

impl Allowance {
    fn is_used_up(&self) -> bool {
        self.left.0 == 0 || self.left.1 == 0
    }

    fn take(&mut self, send: &Send) {
        let (messages, bytes) = cost(send);
        self.left = (self.left.0.saturating_sub(messages), self.left.1.saturating_sub(bytes));
        self.taken = (self.taken.0 + messages, self.taken.1 + bytes);
    }
}

impl PublishGate {
    /// (messages, bytes) per second, 0 = no limit.
    pub(crate) fn new(rate: (u64, u64)) -> Self {
        Self { limiter: Limiter::new(rate), held: VecDeque::new(), limited_times: 0 }
    }

    pub(crate) fn set_rate(&mut self, rate: (u64, u64)) {
        self.limiter.set_rate(rate);
    }

    /// Nothing is limited and nothing waits: sends need not be offered.
    pub(crate) fn is_open(&self, broker: &impl Together) -> bool {
        self.held.is_empty() && !self.limiter.is_limited() && !broker.is_limited()
    }

    /// Times that sends had to wait.
    pub(crate) fn limited_times(&self) -> u64 {
        self.limited_times
    }

    /// Whether sends wait.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sends that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.held.iter().map(|held| held.sends.len() as u64).sum()
    }

    fn allowance(&mut self, broker: &impl Together, now_ms: u64) -> Allowance {
        let (own, shared) = (self.limiter.available(now_ms), broker.available(now_ms));
        Allowance { left: (own.0.min(shared.0), own.1.min(shared.1)), taken: (0, 0) }
    }

    fn settle(&mut self, allowance: &Allowance, broker: &impl Together, now_ms: u64) {
        let (messages, bytes) = allowance.taken;
        self.limiter.take(messages, bytes, now_ms);
        broker.take(messages, bytes, now_ms);
    }

    /// Takes sends of a producer; answers those that may be stored now.
    pub(crate) fn offer(
        &mut self,
        key: ProducerKey,
        mut sends: Vec<Send>,
        broker: &impl Together,
        now_ms: u64,
    ) -> Offer {
        let mut passing = 0;
        // W1, W2: while others wait, so does this one.
        if self.held.is_empty() {
            let mut allowance = self.allowance(broker, now_ms);
            while passing < sends.len() && !allowance.is_used_up() {
                allowance.take(&sends[passing]);
                passing += 1;
            }
            self.settle(&allowance, broker, now_ms);
        }
        let rest = sends.split_off(passing);
        if rest.is_empty() {
            return Offer { pass: sends, begins: false };
        }
        self.limited_times += 1;
        let begins = match self.held.iter_mut().find(|held| held.key == key) {
            Some(held) => {
                held.sends.extend(rest);
                false
            }
            None => {
                self.held.push_back(Held { key, sends: rest.into() });
                true
            }
        };
        Offer { pass: sends, begins }
    }

    /// What may be stored now of what waits; producers that are not present any more are forgotten.
    pub(crate) fn release(
        &mut self,
        broker: &impl Together,
        is_present: impl Fn(ProducerKey) -> bool,
        now_ms: u64,
    ) -> Released {
        self.held.retain(|held| is_present(held.key));
        let mut released = Released::default();
        let mut allowance = self.allowance(broker, now_ms);
        while !allowance.is_used_up()
            && let Some(mut held) = self.held.pop_front()
        {
            let Some(send) = held.sends.pop_front() else { continue };
            allowance.take(&send);
            match released.runs.iter_mut().find(|(key, _)| *key == held.key) {
                Some((_, run)) => run.push(send),
                None => released.runs.push((held.key, vec![send])),
            }
            if held.sends.is_empty() {
                released.freed.push(held.key);
            } else {
                self.held.push_back(held);
            }
        }
        self.settle(&allowance, broker, now_ms);
        released
    }

    /// How long until something may pass, if anything waits.
    pub(crate) fn wait_ms(&mut self, broker: &impl Together, now_ms: u64) -> Option<u64> {
        if self.held.is_empty() {
            return None;
        }
        Some(self.limiter.wait_ms(now_ms).max(broker.wait_ms(now_ms)))
    }

    /// A producer leaves: what it has waiting is not stored.
    pub(crate) fn forget(&mut self, key: ProducerKey) {
        self.held.retain(|held| held.key != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Publish;
    use crate::rates::SharedLimiter;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn send(sequence_id: u64, messages: u32) -> Send {
        let publish = Publish {
            sequence_id,
            highest_sequence_id: None,
            messages,
            marker: false,
            is_chunk: false,
            source: None,
            payload: Bytes::from_static(b"0123456789"),
        };
        Send { publish, sequence: None, author: None, origin: None, refusal: None }
    }

    fn ids(sends: &[Send]) -> Vec<u64> {
        sends.iter().map(|send| send.publish.sequence_id).collect()
    }

    fn everybody(_: ProducerKey) -> bool {
        true
    }

    const A: ProducerKey = ProducerKey(1);
    const B: ProducerKey = ProducerKey(2);

    #[test]
    fn a_flood_waits_and_the_other_producer_has_its_turns() {
        let (mut gate, broker) = (PublishGate::new((10, 0)), SharedLimiter::default());
        let offer = gate.offer(A, (0..100).map(|id| send(id, 1)).collect(), &broker, 0);
        assert_eq!((offer.pass.len(), offer.begins), (10, true), "a second's worth, then wait");
        let offer = gate.offer(B, vec![send(0, 1), send(1, 1)], &broker, 0);
        assert_eq!((offer.pass.len(), offer.begins), (0, true));
        assert!(!gate.offer(A, vec![send(100, 1)], &broker, 0).begins, "it waits already");
        assert_eq!(gate.wait_ms(&broker, 0), Some(100));
        let released = gate.release(&broker, everybody, 400);
        let runs: Vec<_> = released.runs.iter().map(|(key, run)| (*key, ids(run))).collect();
        assert_eq!(runs, [(A, vec![10, 11]), (B, vec![0, 1])]);
        assert_eq!(released.freed, [B]);
        assert_eq!((gate.waiting(), gate.limited_times()), (89, 3));
    }

    #[test]
    fn a_limit_that_is_lifted_lets_everything_pass() {
        let (mut gate, broker) = (PublishGate::new((1, 0)), SharedLimiter::default());
        gate.offer(A, (0..5).map(|id| send(id, 1)).collect(), &broker, 0);
        gate.set_rate((0, 0));
        assert!(!gate.is_open(&broker));
        let released = gate.release(&broker, everybody, 1);
        assert_eq!((ids(&released.runs[0].1), released.freed), (vec![1, 2, 3, 4], vec![A]));
        assert!(gate.is_open(&broker));
    }

    #[test]
    fn who_is_gone_takes_nothing_from_the_rate() {
        let (mut gate, broker) = (PublishGate::new((1, 0)), SharedLimiter::default());
        gate.offer(A, vec![send(0, 1), send(1, 1)], &broker, 0);
        gate.offer(B, vec![send(0, 1)], &broker, 0);
        let released = gate.release(&broker, |key| key != A, 1000);
        assert_eq!(released.runs.len(), 1);
        assert_eq!(released.runs[0].0, B);
        gate.offer(B, vec![send(1, 1)], &broker, 1000);
        gate.forget(B);
        assert_eq!(gate.wait_ms(&broker, 1000), None);
    }

    #[test]
    fn the_brokers_limit_counts_for_all_topics_together() {
        let broker = SharedLimiter::new((10, 0));
        let (mut one, mut other) = (PublishGate::new((0, 0)), PublishGate::new((0, 0)));
        assert_eq!(one.offer(A, (0..6).map(|id| send(id, 1)).collect(), &broker, 0).pass.len(), 6);
        assert_eq!(other.offer(B, (0..6).map(|id| send(id, 1)).collect(), &broker, 0).pass.len(), 4);
        assert!(one.offer(A, vec![send(6, 1)], &broker, 0).begins);
    }

    proptest! {
        #[test]
        fn order_is_kept_and_the_rate_holds(
            rate in 1u64..50,
            steps in proptest::collection::vec((0u64..200, 0u64..3, 1u32..5, 1usize..4), 1..100),
        ) {
            let (mut gate, broker) = (PublishGate::new((rate, 0)), SharedLimiter::default());
            let (mut now, mut next, mut passed) = (0, [0_u64; 3], 0_u64);
            let mut seen: Vec<Vec<u64>> = vec![Vec::new(); 3];
            let mut note = |key: ProducerKey, run: &[Send], passed: &mut u64| {
                seen[key.0 as usize].extend(ids(run));
                *passed += run.iter().map(|send| u64::from(send.publish.messages)).sum::<u64>();
            };
            for (pause, producer, messages, count) in steps {
                now += pause;
                for (key, run) in gate.release(&broker, everybody, now).runs {
                    note(key, &run, &mut passed);
                }
                let sends = (0..count as u64).map(|at| send(next[producer as usize] + at, messages)).collect();
                next[producer as usize] += count as u64;
                let offer = gate.offer(ProducerKey(producer), sends, &broker, now);
                note(ProducerKey(producer), &offer.pass, &mut passed);
                prop_assert!(passed * 1000 <= rate * now + rate * 1000 + 4 * 1000);
            }
            gate.set_rate((0, 0));
            for (key, run) in gate.release(&broker, everybody, now).runs {
                note(key, &run, &mut passed);
            }
            for (producer, ids) in seen.iter().enumerate() {
                prop_assert_eq!(ids, &(0..next[producer]).collect::<Vec<_>>());
            }
        }
    }
}
