//! Shared and Key_Shared: entries to consumers.

use super::{CHUNKED_MESSAGES_MAX, Candidate, Consumer, Dispatcher, Effect, LOOK_AHEAD_ENTRIES};
use crate::api::{ConsumerKey, Delivery, SubscriptionType};
use crate::dispatch::consumer::Pending;
use meridian_types::Position;
use smallvec::SmallVec;

/// What happens to one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Send it to the consumer at this index.
    Send(usize),
    /// This one has to wait for that consumer (or any), others may go.
    Wait(Option<ConsumerKey>),
    /// Nobody takes anything now.
    Stop,
}

/// Round robin in small runs: the consumer whose turn it is and what is left of its run.
#[derive(Debug, Clone, Copy)]
struct Turn {
    index: usize,
    left: u32,
}

impl Dispatcher {
    /// Sends entries of a normal read (`next` = where to read on) or of a replay read.
    pub(super) fn deliver_shared(&mut self, entries: Vec<Candidate>, next: Option<Position>, now_ms: u64) {
        // The few consumers that this batch goes to; what it costs does not depend on how many there are.
        let mut out: SmallVec<[(usize, Vec<Delivery>); 8]> = SmallVec::new();
        let mut turn = None;
        let normal = next.is_some();
        if let Some(next) = next {
            self.read_position = next;
        }
        for candidate in entries {
            let position = candidate.entry.position;
            if self.delays(&candidate, now_ms) {
                continue;
            }
            match self.choose(&candidate, normal, &mut turn) {
                Choice::Send(index) => {
                    self.replay.remove(position);
                    let delivery = self.hand_over(index, candidate, now_ms);
                    match out.iter_mut().rev().find(|(other, _)| *other == index) {
                        Some((_, deliveries)) => deliveries.push(delivery),
                        None => out.push((index, vec![delivery])),
                    }
                }
                Choice::Wait(owner) if !normal || self.replay.len() < LOOK_AHEAD_ENTRIES => {
                    self.replay.add(owner, position, candidate.key_hash);
                }
                Choice::Wait(_) | Choice::Stop => {
                    if normal {
                        self.read_position = position;
                        break;
                    }
                }
            }
        }
        for (index, deliveries) in out {
            self.effects.push_back(Effect::Deliver { consumer: self.consumers[index].key, deliveries });
        }
    }

    /// Parks an entry that may not be delivered yet. One that is read between its time and the tick waits too: those that were
    /// parked before it have the same time, and chunks of a message must not pass each other.
    fn delays(&mut self, candidate: &Candidate, now_ms: u64) -> bool {
        if !self.limits.delayed_delivery || self.delayed.due_ms(candidate.deliver_at_ms) <= now_ms {
            return false;
        }
        let position = candidate.entry.position;
        self.replay.remove(position);
        self.delayed.add(position, candidate.deliver_at_ms);
        true
    }

    fn choose(&mut self, candidate: &Candidate, normal: bool, turn: &mut Option<Turn>) -> Choice {
        if self.blocked || self.rate_used_up() {
            return Choice::Stop;
        }
        if self.sub_type == SubscriptionType::KeyShared {
            return self.choose_by_key(candidate, normal);
        }
        if let Some(holder) = candidate.chunk.as_ref().and_then(|chunk| self.chunked.get(&chunk.uuid).copied()) {
            // All parts of a chunked message go to one consumer.
            return match self.index_of(holder) {
                Some(index) if self.consumers[index].available() => Choice::Send(index),
                Some(_) if self.consumers.iter().any(Consumer::available) => Choice::Wait(Some(holder)),
                _ => Choice::Stop,
            };
        }
        match self.next_turn(turn) {
            Some(index) => Choice::Send(index),
            None => Choice::Stop,
        }
    }

    /// The consumer whose turn it is: best priority first, runs of `round_robin_entries`.
    fn next_turn(&mut self, turn: &mut Option<Turn>) -> Option<usize> {
        if let Some(Turn { index, left }) = turn
            && *left > 0
            && self.consumers[*index].available()
        {
            // Within a batch consumers only become unavailable: nobody better has turned up since.
            *left -= 1;
            return Some(*index);
        }
        let best =
            self.consumers.iter().filter(|consumer| consumer.available()).map(|consumer| consumer.priority).min()?;
        let count = self.consumers.len();
        let index = (0..count)
            .map(|step| (self.round_robin + step) % count)
            .find(|index| self.consumers[*index].priority == best && self.consumers[*index].available())?;
        self.round_robin = (index + 1) % count;
        *turn = Some(Turn { index, left: self.limits.round_robin_entries.max(1) - 1 });
        Some(index)
    }

    fn choose_by_key(&self, candidate: &Candidate, normal: bool) -> Choice {
        let Some(keys) = &self.keys else { return Choice::Stop };
        let hash = candidate.key_hash;
        let owner = keys.owner(hash);
        let older_waits = normal && keys.ordered() && self.replay.holds_hash(hash);
        if let Some(index) = owner.and_then(|owner| self.index_of(owner))
            && self.consumers[index].available()
            && keys.may_send(hash, self.consumers[index].key)
            && !older_waits
        {
            return Choice::Send(index);
        }
        if self.consumers.iter().any(Consumer::available) { Choice::Wait(owner) } else { Choice::Stop }
    }

    /// Books an entry to a consumer (D2, D6, K1).
    fn hand_over(&mut self, index: usize, candidate: Candidate, now_ms: u64) -> Delivery {
        let (position, unacked, key_hash) = (candidate.entry.position, candidate.unacked, candidate.key_hash);
        let key = self.consumers[index].key;
        if let Some(chunk) = &candidate.chunk {
            if chunk.id + 1 >= chunk.count {
                self.chunked.remove(&chunk.uuid);
            } else if self.chunked.len() < CHUNKED_MESSAGES_MAX {
                self.chunked.insert(chunk.uuid.clone(), key);
            }
        }
        let consumer = &mut self.consumers[index];
        let before = consumer.hold(position, Pending { unacked, key_hash });
        consumer.update_blocked(self.limits.max_unacked_per_consumer);
        if let Some(before) = before {
            self.unacked -= u64::from(before.unacked);
            if let Some(keys) = &mut self.keys {
                keys.release(before.key_hash);
            }
        }
        self.unacked += u64::from(unacked);
        self.update_subscription_blocked();
        if let Some(keys) = &mut self.keys {
            keys.hold(key_hash, key);
        }
        self.delivery(index, candidate, now_ms)
    }

    /// Positions to replay that somebody can take now.
    pub(super) fn pick_replay(&self, max: usize) -> Option<Vec<Position>> {
        if self.replay.is_empty() {
            return None;
        }
        let mut out = Vec::new();
        // Without owner: anybody's, or the key is not known before it is read. A known key without owner waits.
        self.replay.pick(None, max, &|hash| hash == 0, &mut out);
        for consumer in self.consumers.iter().filter(|consumer| consumer.available()) {
            let room = max.saturating_sub(out.len()).min(consumer.permits.max(0) as usize);
            let passes = |hash| self.keys.as_ref().is_none_or(|keys| keys.may_send(hash, consumer.key));
            self.replay.pick(Some(consumer.key), room, &passes, &mut out);
        }
        out.sort_unstable();
        (!out.is_empty()).then_some(out)
    }

    /// Who holds an entry unacked.
    pub(super) fn holder_of(&self, position: Position, asked: ConsumerKey) -> Option<usize> {
        let first = self.index_of(asked).filter(|index| self.consumers[*index].pending.contains_key(&position));
        first.or_else(|| self.consumers.iter().position(|consumer| consumer.pending.contains_key(&position)))
    }
}
