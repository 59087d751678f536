//! Why a subscription's dispatcher sends nothing right now.
//!
//! Role: the answer for statistics, and whether a read may start.
//! Invariants: it is a function of the dispatcher's state; asking changes nothing.
//! Failure: none.
//! Must never know: what is done about it.

use super::{Consumer, Dispatcher, Reading};

/// Why nothing is sent right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    NoConsumer,
    FailoverDelay,
    Held,
    Reading { since_ms: u64 },
    SubscriptionUnacked,
    ConsumerUnacked,
    NotWritable,
    NoPermits,
    DispatchRate,
    DrainingHashes,
    Data,
}

impl Waiting {
    /// The text in the statistics.
    pub(crate) fn describe(self) -> Option<String> {
        Some(match self {
            Waiting::Data => return None,
            Waiting::NoConsumer => "no consumer".to_owned(),
            Waiting::FailoverDelay => "failover delay".to_owned(),
            Waiting::Held => "held: another region may take over".to_owned(),
            Waiting::Reading { since_ms } => format!("reading since {since_ms}"),
            Waiting::SubscriptionUnacked => "unacked limit of the subscription".to_owned(),
            Waiting::ConsumerUnacked => "unacked limit".to_owned(),
            Waiting::NotWritable => "client not writable".to_owned(),
            Waiting::NoPermits => "no permits".to_owned(),
            Waiting::DispatchRate => "dispatch rate".to_owned(),
            Waiting::DrainingHashes => "draining hashes".to_owned(),
        })
    }
}

impl Dispatcher {
    /// Why no read may start, if so.
    pub(super) fn stalled(&self) -> Option<Waiting> {
        if self.held {
            return Some(Waiting::Held);
        }
        if let Some(Reading::Normal { since_ms, .. } | Reading::Replay { since_ms, .. }) = self.reading {
            return Some(Waiting::Reading { since_ms });
        }
        if self.consumers.is_empty() {
            return Some(Waiting::NoConsumer);
        }
        if self.is_single() {
            return self.single_stalled();
        }
        if self.blocked {
            return Some(Waiting::SubscriptionUnacked);
        }
        if self.consumers.iter().any(Consumer::available) {
            return None;
        }
        Some(stall_of(self.consumers.iter()))
    }

    fn single_stalled(&self) -> Option<Waiting> {
        if self.single.switching() {
            return Some(Waiting::FailoverDelay);
        }
        match self.single.active().and_then(|key| self.index_of(key)) {
            None => Some(Waiting::NoConsumer),
            Some(index) if self.consumers[index].available() => None,
            Some(index) => Some(stall_of(std::iter::once(&self.consumers[index]))),
        }
    }

    /// Why nothing is sent right now.
    pub(crate) fn waiting(&self) -> Waiting {
        if let Some(waiting) = self.stalled() {
            return waiting;
        }
        if self.rate_used_up() {
            return Waiting::DispatchRate;
        }
        if !self.replay.is_empty() { Waiting::DrainingHashes } else { Waiting::Data }
    }
}

/// The strongest reason why none of these consumers is available.
fn stall_of<'a>(consumers: impl Iterator<Item = &'a Consumer>) -> Waiting {
    let mut permits = false;
    for consumer in consumers {
        if consumer.permits > 0 && consumer.writable {
            return Waiting::ConsumerUnacked;
        }
        permits |= consumer.permits > 0;
    }
    if permits { Waiting::NotWritable } else { Waiting::NoPermits }
}
