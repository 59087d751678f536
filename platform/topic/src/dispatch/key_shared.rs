//! Key_Shared: which consumer owns a key, and which one holds entries of it unacked.
//!
//! Invariants: K1 a hash is held by one consumer at most, with a count of its unacked entries; K2 while it is held,
//! another owner gets nothing of it (a draining hash), unless the clients allow disorder.
//! Must never know: entries, permits.

use crate::api::{ConsumerKey, KeySharedPolicy, TopicError, TopicErrorKind};
use crate::selector::Selector;
use std::collections::HashMap;

/// Owners by selector, holders by count.
#[derive(Debug)]
pub(super) struct KeyHolders {
    selector: Selector,
    sticky: bool,
    allow_out_of_order: bool,
    held: HashMap<u32, (ConsumerKey, u32)>,
}

fn shape(policy: &KeySharedPolicy) -> (bool, bool) {
    match policy {
        KeySharedPolicy::AutoSplit { allow_out_of_order } => (false, *allow_out_of_order),
        KeySharedPolicy::Sticky { allow_out_of_order, .. } => (true, *allow_out_of_order),
    }
}

impl KeyHolders {
    /// By the first consumer's policy.
    pub(super) fn new(policy: &KeySharedPolicy, consistent_hashing: Option<u32>) -> Self {
        let (sticky, allow_out_of_order) = shape(policy);
        let selector = match consistent_hashing {
            _ if sticky => Selector::sticky(),
            Some(points) => Selector::consistent_hash(points),
            None => Selector::auto_split(),
        };
        Self { selector, sticky, allow_out_of_order, held: HashMap::new() }
    }

    /// A consumer joins; its policy has to be the one in force.
    pub(super) fn join(&mut self, key: ConsumerKey, name: &str, policy: &KeySharedPolicy) -> Result<(), TopicError> {
        if shape(policy) != (self.sticky, self.allow_out_of_order) {
            return Err(TopicError::new(
                TopicErrorKind::ConsumerBusy,
                "Subscription is of different type: its consumers use another Key_Shared mode or order rule",
            ));
        }
        let ranges: &[(u32, u32)] = match policy {
            KeySharedPolicy::Sticky { ranges, .. } => ranges,
            KeySharedPolicy::AutoSplit { .. } => &[],
        };
        self.selector.add(key, name, ranges)
    }

    pub(super) fn leave(&mut self, key: ConsumerKey) {
        self.selector.remove(key);
    }

    /// Who gets new entries of that hash.
    pub(super) fn owner(&self, hash: u32) -> Option<ConsumerKey> {
        self.selector.select(hash)
    }

    /// K2: whether an entry of that hash may go to that consumer now.
    pub(super) fn may_send(&self, hash: u32, to: ConsumerKey) -> bool {
        self.allow_out_of_order || self.held.get(&hash).is_none_or(|(holder, _)| *holder == to)
    }

    pub(super) fn ordered(&self) -> bool {
        !self.allow_out_of_order
    }

    pub(super) fn hold(&mut self, hash: u32, by: ConsumerKey) {
        if self.allow_out_of_order {
            return;
        }
        self.held.entry(hash).or_insert((by, 0)).1 += 1;
    }

    pub(super) fn release(&mut self, hash: u32) {
        if let Some((_, count)) = self.held.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&hash);
            }
        }
    }

    pub(super) fn ranges(&self, key: ConsumerKey) -> Vec<(u32, u32)> {
        self.selector.ranges(key)
    }
}
