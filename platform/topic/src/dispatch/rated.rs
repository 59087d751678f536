//! Dispatch rates: the subscription's own, and those that it shares with others.
//!
//! A round looks at all limits for its allowance and sends no more; what one entry takes too much is owed. At its end the
//! round takes what it sent from all limits at once.

use super::Dispatcher;
use crate::rates::SharedLimiter;
use smallvec::SmallVec;
use std::sync::Arc;

/// Limits that a dispatch shares with others: the topic's, the broker's.
pub(crate) type SharedLimits = SmallVec<[Arc<SharedLimiter>; 2]>;

impl Dispatcher {
    /// Whether nothing more may be sent of what the dispatch rate allowed for this round.
    pub(super) fn rate_used_up(&self) -> bool {
        self.allowance.0 == 0 || self.allowance.1 == 0
    }

    /// What the dispatch rate allows for the next round; answers whether that is something.
    pub(super) fn take_allowance(&mut self, now_ms: u64) -> bool {
        self.allowance = self.limiter.available(now_ms);
        for shared in &self.shared {
            let (messages, bytes) = shared.available(now_ms);
            self.allowance = (self.allowance.0.min(messages), self.allowance.1.min(bytes));
        }
        !self.rate_used_up()
    }

    /// When the dispatch rates allow more; worked out once, as it is a place in a queue.
    pub(super) fn rate_wake_at(&mut self, now_ms: u64) -> u64 {
        if let Some(at_ms) = self.rate_wake_ms.filter(|at_ms| *at_ms > now_ms) {
            return at_ms;
        }
        let shared_ms = self.shared.iter().map(|shared| shared.wait_ms(now_ms)).max().unwrap_or(0);
        let at_ms = now_ms + self.limiter.wait_ms(now_ms).max(shared_ms).max(1);
        self.rate_wake_ms = Some(at_ms);
        at_ms
    }

    /// Counts what is sent in this round.
    pub(super) fn count_sent(&mut self, messages: u64, bytes: u64) {
        self.sent = (self.sent.0.saturating_add(messages), self.sent.1.saturating_add(bytes));
        self.allowance = (self.allowance.0.saturating_sub(messages), self.allowance.1.saturating_sub(bytes));
    }

    /// Takes what this round sent from the rates.
    pub(super) fn settle_rates(&mut self, now_ms: u64) {
        let (messages, bytes) = std::mem::take(&mut self.sent);
        if (messages, bytes) != (0, 0) {
            self.limiter.take(messages, bytes, now_ms);
            self.shared.iter().for_each(|shared| shared.take(messages, bytes, now_ms));
        }
    }
}
