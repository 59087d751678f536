//! A subscription of a topic that keeps nothing: who gets an entry now, if anybody.
//!
//! Invariants:
//! - N2 an entry goes to one consumer at most, and only to one with permits and a connection that takes it; otherwise it
//!   is dropped and counted.
//! - N3 with one active consumer and with keys, an entry is never given to another consumer because the right one is
//!   busy.
//!
//! Must never know: sinks, clocks, producers.

use crate::api::{ConsumerKey, KeySharedPolicy, SubscriptionType, TopicError, TopicErrorKind};
use crate::selector::Selector;
use std::sync::Arc;

/// Counters of one consumer, growing only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) messages_out: u64,
    pub(super) bytes_out: u64,
    pub(super) last_flow_ms: u64,
    pub(super) last_consumed_ms: u64,
}

/// A consumer as the choice sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: ConsumerKey,
    pub(super) name: Arc<str>,
    pub(super) priority: i32,
    /// May fall below zero: an entry is never split.
    pub(super) permits: i64,
    pub(super) is_writable: bool,
    pub(super) counters: Counters,
}

impl Member {
    fn is_ready(&self) -> bool {
        self.permits > 0 && self.is_writable
    }
}

/// A consumer that wants in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joining<'a> {
    pub(super) key: ConsumerKey,
    pub(super) name: &'a str,
    pub(super) priority: i32,
    pub(super) sub_type: SubscriptionType,
    pub(super) key_shared: Option<&'a KeySharedPolicy>,
    pub(super) consistent_hashing: Option<u32>,
}

#[derive(Debug)]
struct Keys {
    selector: Selector,
    is_sticky: bool,
    allow_out_of_order: bool,
}

const AUTO_SPLIT: KeySharedPolicy = KeySharedPolicy::AutoSplit { allow_out_of_order: false };

fn shape(policy: &KeySharedPolicy) -> (bool, bool) {
    match policy {
        KeySharedPolicy::AutoSplit { allow_out_of_order } => (false, *allow_out_of_order),
        KeySharedPolicy::Sticky { allow_out_of_order, .. } => (true, *allow_out_of_order),
    }
}

/// The consumers of one subscription.
#[derive(Debug)]
pub(super) struct Fanout {
    partition: Option<u32>,
    sub_type: Option<SubscriptionType>,
    members: Vec<Member>,
    keys: Option<Keys>,
    active: Option<ConsumerKey>,
    turn: usize,
    pub(super) dropped: u64,
}

impl Fanout {
    pub(super) fn new(partition: Option<u32>) -> Self {
        Self { partition, sub_type: None, members: Vec::new(), keys: None, active: None, turn: 0, dropped: 0 }
    }

    /// The type in force; it may change while nobody is connected.
    pub(super) fn sub_type(&self) -> Option<SubscriptionType> {
        self.sub_type
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(super) fn members_mut(&mut self) -> &mut [Member] {
        &mut self.members
    }

    pub(super) fn member_mut(&mut self, key: ConsumerKey) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.key == key)
    }

    /// The one that gets everything (Exclusive, Failover).
    pub(super) fn active(&self) -> Option<ConsumerKey> {
        self.active
    }

    /// Adds a consumer; whether it is alone there is checked by the caller.
    pub(super) fn join(&mut self, joining: Joining<'_>) -> Result<(), TopicError> {
        let busy = |message: &str| TopicError::new(TopicErrorKind::ConsumerBusy, message);
        if self.members.is_empty() {
            self.sub_type = Some(joining.sub_type);
            self.keys = None;
        } else if self.sub_type != Some(joining.sub_type) {
            return Err(busy("Subscription is of different type"));
        } else if joining.sub_type == SubscriptionType::Exclusive {
            return Err(busy("Exclusive consumer is already connected"));
        }
        if joining.sub_type == SubscriptionType::KeyShared {
            self.join_keys(&joining)?;
        }
        self.members.push(Member {
            key: joining.key,
            name: joining.name.into(),
            priority: joining.priority,
            permits: 0,
            is_writable: true,
            counters: Counters::default(),
        });
        self.members.sort_by(|a, b| (a.priority, &a.name, a.key).cmp(&(b.priority, &b.name, b.key)));
        self.choose_active();
        Ok(())
    }

    fn join_keys(&mut self, joining: &Joining<'_>) -> Result<(), TopicError> {
        let policy = joining.key_shared.unwrap_or(&AUTO_SPLIT);
        let (is_sticky, allow_out_of_order) = shape(policy);
        let keys = self.keys.get_or_insert_with(|| Keys {
            selector: match joining.consistent_hashing {
                _ if is_sticky => Selector::sticky(),
                Some(points) => Selector::consistent_hash(points),
                None => Selector::auto_split(),
            },
            is_sticky,
            allow_out_of_order,
        });
        if (keys.is_sticky, keys.allow_out_of_order) != (is_sticky, allow_out_of_order) {
            let message = "Subscription is of different type: its consumers use another Key_Shared mode or order rule";
            return Err(TopicError::new(TopicErrorKind::ConsumerBusy, message));
        }
        let ranges: &[(u32, u32)] = match policy {
            KeySharedPolicy::Sticky { ranges, .. } => ranges,
            KeySharedPolicy::AutoSplit { .. } => &[],
        };
        keys.selector.add(joining.key, joining.name, ranges)
    }

    /// Removes a consumer.
    pub(super) fn leave(&mut self, key: ConsumerKey) -> Option<Member> {
        let index = self.members.iter().position(|member| member.key == key)?;
        let member = self.members.remove(index);
        if let Some(keys) = &mut self.keys {
            keys.selector.remove(key);
        }
        self.choose_active();
        Some(member)
    }

    /// Members are sorted by priority and name, so the best ones stand in front.
    fn choose_active(&mut self) {
        let is_single = matches!(self.sub_type, Some(SubscriptionType::Exclusive | SubscriptionType::Failover));
        self.active = None;
        if let Some(first) = self.members.first().filter(|_| is_single) {
            let best = self.members.iter().take_while(|member| member.priority == first.priority).count();
            let index = self.partition.map_or(0, |partition| partition as usize % best);
            self.active = Some(self.members[index].key);
        }
    }

    /// Ranges of hashes that a consumer owns.
    pub(super) fn ranges(&self, key: ConsumerKey) -> Vec<(u32, u32)> {
        self.keys.as_ref().map_or(Vec::new(), |keys| keys.selector.ranges(key))
    }

    /// Whether choosing needs the hash of an entry's key.
    pub(super) fn needs_hash(&self) -> bool {
        self.keys.is_some() && !self.members.is_empty()
    }

    /// Gives an entry to somebody: the index of the member, whose permits are taken. `None`: it is dropped (N2).
    pub(super) fn give(&mut self, hash: u32, messages: u32, bytes: u64, now_ms: u64) -> Option<usize> {
        let chosen = match self.sub_type? {
            SubscriptionType::Exclusive | SubscriptionType::Failover => self.index_if_ready(self.active),
            SubscriptionType::KeyShared => {
                self.index_if_ready(self.keys.as_ref().and_then(|keys| keys.selector.select(hash)))
            }
            SubscriptionType::Shared => self.next_in_turn(),
        };
        let Some(index) = chosen else {
            self.dropped += u64::from(messages);
            return None;
        };
        let member = &mut self.members[index];
        member.permits -= i64::from(messages);
        member.counters.messages_out += u64::from(messages);
        member.counters.bytes_out += bytes;
        member.counters.last_consumed_ms = now_ms;
        Some(index)
    }

    fn index_if_ready(&self, key: Option<ConsumerKey>) -> Option<usize> {
        self.members.iter().position(|member| Some(member.key) == key).filter(|index| self.members[*index].is_ready())
    }

    /// Round robin among those of the best priority that have permits.
    fn next_in_turn(&mut self) -> Option<usize> {
        let best = self.members.iter().find(|member| member.is_ready())?.priority;
        let count = self.members.len();
        let index = (0..count)
            .map(|step| (self.turn + step) % count)
            .find(|index| self.members[*index].is_ready() && self.members[*index].priority == best)?;
        self.turn = (index + 1) % count;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(fanout: &mut Fanout, key: u64, name: &str, sub_type: SubscriptionType) -> Result<(), TopicError> {
        let key = ConsumerKey(key);
        fanout.join(Joining { key, name, priority: 0, sub_type, key_shared: None, consistent_hashing: None })?;
        if let Some(member) = fanout.member_mut(key) {
            member.permits = 100;
        }
        Ok(())
    }

    fn give(fanout: &mut Fanout, hash: u32) -> Option<u64> {
        fanout.give(hash, 1, 10, 0).map(|index| fanout.members()[index].key.0)
    }

    #[test]
    fn shared_takes_turns_and_skips_who_is_not_ready() {
        let mut fanout = Fanout::new(None);
        for (key, name) in [(1, "a"), (2, "b"), (3, "c")] {
            join(&mut fanout, key, name, SubscriptionType::Shared).unwrap();
        }
        assert_eq!([0; 4].map(|hash| give(&mut fanout, hash)), [Some(1), Some(2), Some(3), Some(1)]);
        fanout.member_mut(ConsumerKey(2)).unwrap().permits = 0;
        fanout.member_mut(ConsumerKey(3)).unwrap().is_writable = false;
        assert_eq!([0; 2].map(|hash| give(&mut fanout, hash)), [Some(1), Some(1)]);
        fanout.member_mut(ConsumerKey(1)).unwrap().permits = 1;
        assert_eq!(fanout.give(0, 5, 10, 0), Some(0), "an entry is never split");
        assert_eq!((give(&mut fanout, 0), fanout.dropped), (None, 1));
    }

    #[test]
    fn one_active_consumer_gets_all_or_nobody_does() {
        let mut fanout = Fanout::new(Some(3));
        join(&mut fanout, 1, "b", SubscriptionType::Failover).unwrap();
        join(&mut fanout, 2, "a", SubscriptionType::Failover).unwrap();
        assert_eq!(fanout.active(), Some(ConsumerKey(1)), "partition 3 of two consumers: the second by name");
        fanout.member_mut(ConsumerKey(1)).unwrap().permits = 0;
        assert_eq!((give(&mut fanout, 0), fanout.dropped), (None, 1));
        fanout.leave(ConsumerKey(1));
        assert_eq!(give(&mut fanout, 0), Some(2));
        assert!(join(&mut fanout, 3, "c", SubscriptionType::Shared).is_err());
        fanout.leave(ConsumerKey(2));
        join(&mut fanout, 3, "c", SubscriptionType::Exclusive).unwrap();
        assert_eq!(
            join(&mut fanout, 4, "d", SubscriptionType::Exclusive).unwrap_err().kind,
            TopicErrorKind::ConsumerBusy
        );
    }

    #[test]
    fn a_key_goes_to_its_owner_only() {
        let mut fanout = Fanout::new(None);
        join(&mut fanout, 1, "a", SubscriptionType::KeyShared).unwrap();
        join(&mut fanout, 2, "b", SubscriptionType::KeyShared).unwrap();
        assert_eq!((give(&mut fanout, 40_000), give(&mut fanout, 5)), (Some(1), Some(2)));
        fanout.member_mut(ConsumerKey(2)).unwrap().permits = 0;
        assert_eq!(give(&mut fanout, 5), None);
        fanout.leave(ConsumerKey(2));
        assert_eq!(give(&mut fanout, 5), Some(1));
        let sticky = KeySharedPolicy::Sticky { allow_out_of_order: false, ranges: vec![(0, 10)] };
        let joining = Joining {
            key: ConsumerKey(3),
            name: "c",
            priority: 0,
            sub_type: SubscriptionType::KeyShared,
            key_shared: Some(&sticky),
            consistent_hashing: None,
        };
        assert_eq!(fanout.join(joining).unwrap_err().kind, TopicErrorKind::ConsumerBusy);
    }
}
