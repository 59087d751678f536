//! The producers of one topic as a state machine: who may publish, what was sent and is not answered yet.
//!
//! `S` is whatever the shell uses to reach a client; two values are equal if they are the same connection.
//!
//! Invariants:
//! - P1 sends are answered strictly in the order in which they came, per producer (one queue for the topic, in append order).
//! - P2 at most one exclusive producer; beside it there is no other, and its epoch was persisted before it is told.
//! - P3 a producer that is removed stays until all its sends are answered.
//! - P4 after a send of a producer was refused for storage, none of its later sends is stored: it is closed and comes back.
//! - P5 a duplicate is answered as such only if deduplication has proof that the original is stored.
//! - P6 producers of other regions' replicators (links) take no part in access modes, limits and names of tenants; what they
//!   send is known by its origin, and nothing of an origin passes what was refused of it (O3).
//! - P7 what a held producer sends is neither stored nor answered until it is closed, so that its client sends it again.
//!
//! Failure: refusals are [`TopicError`]s as on the wire.
//! Must never know: sockets, logs, policies.

mod admission;
mod gate;
mod publish;

pub(crate) use admission::{Admission, Applicant};
pub(crate) use gate::PublishGate;
pub(crate) use publish::Send;

use crate::api::{AccessMode, ProducerKey, ProducerReady, Receipt, TopicError};
use crate::dedup::{Dedup, Sequence};
use crate::origins::{LinkIdentity, Origin, OriginMarks};
use meridian_types::Position;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Producers that may wait for exclusive access.
pub(crate) const EXCLUSIVE_WAITERS_MAX: usize = 1000;

/// Counters for statistics, growing only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProducerCounters {
    pub(crate) messages_in: u64,
    pub(crate) bytes_in: u64,
}

/// A producer that may publish.
#[derive(Debug)]
pub(crate) struct Producer<S> {
    pub(crate) key: ProducerKey,
    pub(crate) sink: S,
    pub(crate) producer_id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) access_mode: AccessMode,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) connected_ms: u64,
    pub(crate) counters: ProducerCounters,
    /// It is another region's.
    pub(crate) link: Option<Arc<LinkIdentity>>,
    /// Sends not answered.
    unanswered: u32,
    /// Takes nothing more; goes when everything is answered.
    leaving: bool,
    /// P7.
    held: bool,
    /// Answers collected in the confirmation batch at hand.
    receipts: Vec<Receipt>,
}

impl<S> Producer<S> {
    /// Whether it counts as present.
    pub(crate) fn present(&self) -> bool {
        !self.leaving
    }

    /// Whether it counts as a tenant's.
    pub(crate) fn local(&self) -> bool {
        self.present() && self.link.is_none()
    }
}

/// What the shell has to do, in this order.
#[derive(Debug, PartialEq)]
pub(crate) enum ProducerEffect<S> {
    Receipts {
        sink: S,
        producer_id: u64,
        receipts: Vec<Receipt>,
    },
    SendError {
        sink: S,
        producer_id: u64,
        sequence_id: u64,
        error: TopicError,
    },
    /// Persist the epoch, then call [`Producers::epoch_persisted`].
    PersistEpoch {
        key: ProducerKey,
        epoch: u64,
    },
    Ready {
        sink: S,
        producer_id: u64,
        ready: ProducerReady,
    },
    Refused {
        key: ProducerKey,
        sink: S,
        producer_id: u64,
        error: TopicError,
    },
    Close {
        sink: S,
        producer_id: u64,
    },
    /// As Close; the topic is served elsewhere.
    Moved {
        sink: S,
        producer_id: u64,
    },
    /// Everything that a leaving producer had sent is answered.
    Gone {
        key: ProducerKey,
    },
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// When the log confirms the token.
    Append(u64),
    Duplicate,
    Refuse(Box<TopicError>),
}

#[derive(Debug)]
struct Unanswered {
    key: ProducerKey,
    answer: Answer,
    sequence_id: u64,
    /// As in the SEND.
    highest_sequence_id: Option<u64>,
    sequence: Option<Sequence>,
    /// Where a link's entry was first stored.
    origin: Option<Origin>,
    /// Who produced a link's entry, where producers are the same in all regions.
    author: Option<Arc<str>>,
    /// Receipts of a link that tell positions instead of sequence ids.
    by_position: bool,
    marker: bool,
    at_us: u64,
}

#[derive(Debug)]
struct Waiter<S> {
    key: ProducerKey,
    applicant: Applicant<S>,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Producers<S> {
    /// By key, ascending.
    list: Vec<Producer<S>>,
    waiters: VecDeque<Waiter<S>>,
    /// The exclusive producer, or the one that becomes it when its epoch is persisted.
    exclusive: Option<ProducerKey>,
    /// An exclusive producer whose epoch is being persisted.
    claiming: Option<Waiter<S>>,
    epoch: Option<u64>,
    unanswered: VecDeque<Unanswered>,
    next_token: u64,
    /// Last entry whose confirmation was taken.
    confirmed_to: Position,
    /// Keys with answers in `receipts`.
    touched: Vec<ProducerKey>,
    pub(crate) dedup: Option<Box<Dedup>>,
    /// Marks of what came over links; there is none before they are up to date.
    pub(crate) origins: Option<Box<OriginMarks>>,
    effects: VecDeque<ProducerEffect<S>>,
}

impl<S: Clone + PartialEq> Producers<S> {
    /// Of a topic without producers.
    pub(crate) fn new(epoch: Option<u64>) -> Self {
        Self {
            list: Vec::new(),
            waiters: VecDeque::new(),
            exclusive: None,
            claiming: None,
            epoch,
            unanswered: VecDeque::new(),
            next_token: 0,
            confirmed_to: Position::EARLIEST,
            touched: Vec::new(),
            dedup: None,
            origins: None,
            effects: VecDeque::new(),
        }
    }

    pub(crate) fn next_effect(&mut self) -> Option<ProducerEffect<S>> {
        self.effects.pop_front()
    }

    /// Gives back the room of empty queues.
    pub(crate) fn rest(&mut self) {
        self.unanswered.shrink_to_fit();
        self.touched.shrink_to_fit();
        self.effects.shrink_to_fit();
        self.list.shrink_to_fit();
        self.list.iter_mut().for_each(|producer| producer.receipts.shrink_to_fit());
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Up to where deduplication knows every entry.
    pub(crate) fn confirmed_to(&self) -> Position {
        self.confirmed_to
    }

    pub(crate) fn waiters(&self) -> u32 {
        self.waiters.len() as u32
    }

    /// Deduplication with up-to-date marks comes into force; the producers that are there count as attached.
    pub(crate) fn start_dedup(&mut self, dedup: Option<Box<Dedup>>, covered: Position, now_ms: u64) {
        self.confirmed_to = self.confirmed_to.max(covered);
        self.dedup = dedup;
        if let Some(dedup) = &mut self.dedup {
            for producer in self.list.iter().filter(|producer| producer.local()) {
                dedup.attach(&producer.name, now_ms);
            }
        }
    }

    /// Marks of origins with up-to-date marks come into force.
    pub(crate) fn start_origins(&mut self, origins: Box<OriginMarks>, covered: Position) {
        self.confirmed_to = self.confirmed_to.max(covered);
        self.origins = Some(origins);
    }

    /// Who sends over a link; `None` for other producers.
    pub(crate) fn link(&self, key: ProducerKey) -> Option<Arc<LinkIdentity>> {
        self.index_of(key).and_then(|index| self.list[index].link.clone())
    }

    /// Tenants' producers that may publish.
    pub(crate) fn local(&self) -> impl Iterator<Item = &Producer<S>> {
        self.list.iter().filter(|producer| producer.local())
    }

    /// Producers that may publish.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Producer<S>> {
        self.list.iter().filter(|producer| producer.present())
    }

    /// A producer that may publish.
    pub(crate) fn find(&self, key: ProducerKey) -> Option<&Producer<S>> {
        self.index_of(key).map(|index| &self.list[index]).filter(|producer| producer.present())
    }

    /// No tenant publishes or waits for it.
    pub(crate) fn is_unused(&self) -> bool {
        self.list.iter().all(|producer| producer.link.is_some()) && self.waiters.is_empty() && self.claiming.is_none()
    }

    fn index_of(&self, key: ProducerKey) -> Option<usize> {
        self.list.binary_search_by_key(&key, |producer| producer.key).ok()
    }
}

#[cfg(test)]
mod tests;
