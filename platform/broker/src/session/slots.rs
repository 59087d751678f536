//! The producers and consumers of one connection, by the client's ids.
//!
//! Invariants: P1 an id has one slot; a creation that ends finds its own token or is undone; P2 the sizes of a producer's
//! unanswered publishes stand in its slot in send order, and leave with their answers or with the slot.
//! Must never know: frames; topics are held here, never called.

use crate::quotas::Hold;
use bytes::Bytes;
use meridian_topic::{ConsumerKey, ProducerKey, TopicHandle};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ids of producers that we closed, remembered for sends that were on their way.
const MAX_CLOSED_REMEMBERED: usize = 10_000;

/// A producer of the connection.
pub struct ProducerSlot {
    /// Tells this creation from others of the same id.
    pub token: u64,
    /// The client's request.
    pub request_id: u64,
    /// The topic, once the producer is in.
    pub attached: Option<(Arc<dyn TopicHandle>, ProducerKey)>,
    /// It may send.
    pub ready: bool,
    /// The topic dropped it while the creation was still going on.
    pub dropped: bool,
    /// Its name, once known.
    pub name: String,
    /// Version of its schema as on the wire.
    pub schema_version: Bytes,
    /// Bytes of each unanswered publish, oldest first (P2).
    pub unanswered: VecDeque<u32>,
    /// Its publishes wait for a publish rate, and are counted as such.
    pub held: bool,
    /// It counts against quotas as long as it is here.
    pub counted: Option<Hold>,
}

/// Publishes of one producer that were answered or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answered {
    /// How many.
    pub count: u32,
    /// Their bytes.
    pub bytes: u64,
    /// They were counted as waiting for a publish rate.
    pub held: bool,
}

/// A consumer of the connection.
pub struct ConsumerSlot {
    /// Tells this creation from others of the same id.
    pub token: u64,
    /// The topic, once the consumer is in.
    pub attached: Option<(Arc<dyn TopicHandle>, ConsumerKey)>,
    /// The topic dropped it while the creation was still going on.
    pub dropped: bool,
    /// News about being active, held back until the creation is answered.
    pub active: Option<bool>,
    /// Partition of the topic.
    pub partition: Option<u32>,
    /// Its subscription.
    pub subscription: Box<str>,
    /// It counts against quotas as long as it is here.
    pub counted: Option<Hold>,
}

/// The producers and consumers of one connection.
#[derive(Default)]
pub struct Slots {
    /// By the client's id.
    pub producers: HashMap<u64, ProducerSlot>,
    /// By the client's id.
    pub consumers: HashMap<u64, ConsumerSlot>,
    closed_producers: HashMap<u64, Instant>,
    next_token: u64,
    /// The connection has ended: nothing is added any more.
    pub ended: bool,
}

/// What becomes of a creation.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin {
    /// Go on, with this token.
    Fresh(u64),
    /// The same creation is going on.
    Pending,
    /// It is there already.
    Exists,
    /// The connection holds as many as it may.
    TooMany,
}

impl Slots {
    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn is_full(&self, max: usize) -> bool {
        self.producers.len() + self.consumers.len() >= max
    }

    /// Takes the place of a producer that is to be created.
    pub fn begin_producer(&mut self, id: u64, request_id: u64, max: usize) -> Begin {
        match self.producers.get(&id) {
            Some(slot) if slot.attached.is_some() => return Begin::Exists,
            Some(_) => return Begin::Pending,
            None if self.is_full(max) => return Begin::TooMany,
            None => {}
        }
        let token = self.token();
        self.closed_producers.remove(&id);
        let slot = ProducerSlot {
            token,
            request_id,
            attached: None,
            ready: false,
            dropped: false,
            name: String::new(),
            schema_version: Bytes::new(),
            unanswered: VecDeque::new(),
            held: false,
            counted: None,
        };
        self.producers.insert(id, slot);
        Begin::Fresh(token)
    }

    /// Takes the place of a consumer that is to be created.
    pub fn begin_consumer(&mut self, id: u64, subscription: &str, partition: Option<u32>, max: usize) -> Begin {
        match self.consumers.get(&id) {
            Some(slot) if slot.attached.is_some() => return Begin::Exists,
            Some(_) => return Begin::Pending,
            None if self.is_full(max) => return Begin::TooMany,
            None => {}
        }
        let token = self.token();
        let subscription = subscription.into();
        let slot = ConsumerSlot {
            token,
            attached: None,
            dropped: false,
            active: None,
            partition,
            subscription,
            counted: None,
        };
        self.consumers.insert(id, slot);
        Begin::Fresh(token)
    }

    /// The slot of a creation that is still wanted (P1).
    pub fn pending_producer(&mut self, id: u64, token: u64) -> Option<&mut ProducerSlot> {
        self.producers.get_mut(&id).filter(|slot| slot.token == token && !slot.dropped)
    }

    /// The slot of a creation that is still wanted (P1).
    pub fn pending_consumer(&mut self, id: u64, token: u64) -> Option<&mut ConsumerSlot> {
        self.consumers.get_mut(&id).filter(|slot| slot.token == token && !slot.dropped)
    }

    /// Gives a failed creation's place back.
    pub fn forget_producer(&mut self, id: u64, token: u64) {
        if self.producers.get(&id).is_some_and(|slot| slot.token == token) {
            self.producers.remove(&id);
        }
    }

    /// Gives a failed creation's place back.
    pub fn forget_consumer(&mut self, id: u64, token: u64) {
        if self.consumers.get(&id).is_some_and(|slot| slot.token == token) {
            self.consumers.remove(&id);
        }
    }

    /// Remembers that we closed a producer: its sends on their way are ignored for a while.
    pub fn remember_closed(&mut self, id: u64, now: Instant, keep: Duration) {
        if self.closed_producers.len() >= MAX_CLOSED_REMEMBERED {
            self.closed_producers.retain(|_, at| now.duration_since(*at) < keep);
        }
        if self.closed_producers.len() < MAX_CLOSED_REMEMBERED {
            self.closed_producers.insert(id, now);
        }
    }

    /// Whether we closed this producer a short time ago.
    pub fn closed_lately(&mut self, id: u64, now: Instant, keep: Duration) -> bool {
        match self.closed_producers.get(&id) {
            Some(at) if now.duration_since(*at) < keep => true,
            Some(_) => {
                self.closed_producers.remove(&id);
                false
            }
            None => false,
        }
    }

    /// A consumer that is in, with its topic.
    pub fn consumer(&self, id: u64) -> Option<(Arc<dyn TopicHandle>, ConsumerKey)> {
        self.consumers.get(&id).and_then(|slot| slot.attached.clone())
    }
}

impl ProducerSlot {
    /// Takes the sizes of the oldest `count` unanswered publishes: how many there were, and their bytes (P2).
    pub fn answered(&mut self, count: usize) -> Answered {
        let taken = count.min(self.unanswered.len());
        let bytes = self.unanswered.drain(..taken).map(u64::from).sum();
        Answered { count: taken as u32, bytes, held: self.held }
    }

    /// Counts its publishes as waiting for a publish rate from now on, or as ordinary ones; what changes sides, if any.
    pub fn hold(&mut self, held: bool) -> Option<(u32, u64)> {
        if self.held == held {
            return None;
        }
        self.held = held;
        Some((self.unanswered.len() as u32, self.unanswered.iter().map(|bytes| u64::from(*bytes)).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_that_was_given_up_finds_no_slot() {
        let mut slots = Slots::default();
        let Begin::Fresh(first) = slots.begin_producer(1, 10, 100) else { panic!("not fresh") };
        assert_eq!(slots.begin_producer(1, 11, 100), Begin::Pending);
        slots.producers.remove(&1);
        let Begin::Fresh(second) = slots.begin_producer(1, 12, 100) else { panic!("not fresh") };
        assert!(slots.pending_producer(1, first).is_none());
        assert!(slots.pending_producer(1, second).is_some());
        slots.forget_producer(1, first);
        assert!(slots.pending_producer(1, second).is_some());
    }

    #[test]
    fn the_number_of_handlers_is_bounded() {
        let mut slots = Slots::default();
        assert!(matches!(slots.begin_producer(1, 0, 2), Begin::Fresh(_)));
        assert!(matches!(slots.begin_consumer(1, "s", None, 2), Begin::Fresh(_)));
        assert_eq!(slots.begin_consumer(2, "s", None, 2), Begin::TooMany);
    }

    #[test]
    fn sends_of_closed_producers_are_ignored_for_a_while() {
        let (mut slots, now, keep) = (Slots::default(), Instant::now(), Duration::from_secs(30));
        assert!(!slots.closed_lately(4, now, keep));
        slots.remember_closed(4, now, keep);
        assert!(slots.closed_lately(4, now, keep));
        assert!(!slots.closed_lately(4, now + keep, keep));
    }

    #[test]
    fn answers_take_the_oldest_sizes() {
        let mut slots = Slots::default();
        slots.begin_producer(1, 0, 10);
        let slot = slots.producers.get_mut(&1).unwrap();
        slot.unanswered.extend([10, 20, 30]);
        let answered = |slot: &mut ProducerSlot| {
            let Answered { count, bytes, .. } = slot.answered(2);
            (count, bytes)
        };
        assert_eq!(answered(slot), (2, 30));
        assert_eq!(slot.hold(true), Some((1, 30)));
        assert_eq!(slot.hold(true), None);
        assert_eq!(slot.answered(2), Answered { count: 1, bytes: 30, held: true });
        assert_eq!(answered(slot), (0, 0));
    }
}
