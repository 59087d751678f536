//! The sending side of one peer's objects, as a pure machine.
//!
//! A round compares everything: digests go out, buckets that differ are listed, what the peer wants is sent. Changes go
//! out at once, between and during rounds, in the order of their ranks.
//! Invariants:
//! - Y1 at most [`MAX_QUEUED`] keys wait; above, they are dropped and a round is due at once, which finds them again.
//! - Y2 at most [`MAX_IN_FLIGHT`] batches of [`BATCH_KEYS`] keys are unanswered.
//! - Y3 a round counts as converged only if the peer answered everything asked in it with *taken* or *older*.
//! - Y4 an answer that does not come within [`ANSWER_MS`] ends the connection.
//! - Y5 what the peer wants is sent after all of its wishes are known: what others hang on goes first.
//!
//! Failure: an answer that was not asked for is an error, and the connection ends.
//! Must never know: the time, values, sockets.

use crate::api::Applied;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Keys that wait at most.
pub const MAX_QUEUED: usize = 20_000;
/// Keys of one batch.
pub const BATCH_KEYS: usize = 64;
/// Batches without an answer at most.
pub const MAX_IN_FLIGHT: usize = 8;
/// How long an answer may take.
pub const ANSWER_MS: u64 = 30_000;
/// Pause before what was not possible yet is sent again; doubled each time.
pub const LATER_MS: u64 = 250;
/// How often it is sent again before it is left to the next round.
pub const LATER_TRIES: u32 = 12;
/// Refusals that are kept for the stats.
const REFUSED_KEPT: usize = 100;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed.
    Tick,
    /// An object of the own region changed.
    Changed {
        /// Its key.
        key: String,
        /// Its rank.
        rank: u8,
    },
    /// What is shared changed.
    Everything,
    /// The peer compared the digests.
    Differ {
        /// The round.
        round: u64,
        /// Buckets that differ.
        buckets: Vec<u8>,
    },
    /// A bucket was listed, in so many messages.
    Listed {
        /// Messages sent.
        messages: u32,
    },
    /// The peer answered one listing: what it wants, with ranks.
    Wanted {
        /// The round.
        round: u64,
        /// Keys with their ranks.
        keys: Vec<(String, u8)>,
    },
    /// A batch was read; these are not there any more or concern the peer no longer.
    Vanished {
        /// The batch.
        id: u64,
        /// Keys.
        keys: Vec<String>,
    },
    /// The peer's outcome for objects of a batch.
    Applied {
        /// The batch.
        id: u64,
        /// Key and outcome.
        outcomes: Vec<(String, Applied)>,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send the digests.
    Digests {
        /// The round.
        round: u64,
    },
    /// Send the listing of a bucket, then say how many messages that took.
    List {
        /// The round.
        round: u64,
        /// The bucket.
        bucket: u8,
    },
    /// Read and send these.
    Send {
        /// The batch.
        id: u64,
        /// Keys.
        keys: Vec<String>,
    },
    /// A round ended.
    RoundEnded {
        /// When it began.
        began_ms: u64,
        /// The peer has everything.
        converged: bool,
    },
    /// The connection has to end.
    Fail(String),
}

#[derive(Debug)]
enum Round {
    Idle { due_ms: u64 },
    Comparing { asked_ms: u64 },
    Listing { asked_ms: u64, left: VecDeque<u8>, listing: bool, unanswered: u32, wanted: Vec<(String, u8)> },
    Sending,
}

#[derive(Debug)]
struct Batch {
    /// With their ranks.
    keys: BTreeMap<String, u8>,
    sent_ms: u64,
}

#[derive(Debug)]
struct Waiting {
    rank: u8,
    tries: u32,
    due_ms: u64,
}

/// Figures of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Keys that wait to be sent.
    pub queued: u64,
    /// Keys without an answer.
    pub in_flight: u64,
    /// Keys that are sent again later.
    pub later: u64,
    /// Rounds ended.
    pub rounds: u64,
    /// Objects that the peer took.
    pub taken: u64,
    /// Times that more waited than may.
    pub overflows: u64,
    /// What the peer refused last, with its reasons.
    pub refused: BTreeMap<String, String>,
}

/// See the module.
pub struct Source {
    interval_ms: u64,
    round: Round,
    number: u64,
    began_ms: u64,
    clean: bool,
    /// By rank, then in order of arrival.
    queue: BTreeMap<(u8, u64), String>,
    queued: BTreeSet<String>,
    sequence: u64,
    batches: BTreeMap<u64, Batch>,
    next_batch: u64,
    later: BTreeMap<String, Waiting>,
    /// A round is wanted as soon as the running one has ended.
    again: bool,
    stats: SourceStats,
}

impl Source {
    /// Begins with a round at once; then one every `interval_ms`.
    pub fn new(interval_ms: u64, now_ms: u64) -> Self {
        Self {
            interval_ms,
            round: Round::Idle { due_ms: now_ms },
            number: 0,
            began_ms: now_ms,
            clean: true,
            queue: BTreeMap::new(),
            queued: BTreeSet::new(),
            sequence: 0,
            batches: BTreeMap::new(),
            next_batch: 0,
            later: BTreeMap::new(),
            again: false,
            stats: SourceStats::default(),
        }
    }

    /// Figures.
    pub fn stats(&self) -> SourceStats {
        SourceStats {
            queued: self.queue.len() as u64,
            in_flight: self.batches.values().map(|batch| batch.keys.len() as u64).sum(),
            later: self.later.len() as u64,
            ..self.stats.clone()
        }
    }

    /// One event; what to do about it.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Tick => self.tick(now_ms, &mut effects),
            Event::Changed { key, rank } => self.enqueue(key, rank),
            Event::Everything => self.again = true,
            Event::Differ { round, buckets } => self.differ(round, buckets, now_ms, &mut effects),
            Event::Listed { messages } => self.listed(messages, &mut effects),
            Event::Wanted { round, keys } => self.wanted(round, keys, now_ms, &mut effects),
            Event::Vanished { id, keys } => {
                let gone = keys.into_iter().map(|key| (key, Applied::Older)).collect();
                self.applied(id, gone, now_ms, &mut effects);
            }
            Event::Applied { id, outcomes } => self.applied(id, outcomes, now_ms, &mut effects),
        }
        self.advance(now_ms, &mut effects);
        effects
    }

    fn tick(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let due: Vec<String> =
            self.later.iter().filter(|(_, waiting)| waiting.due_ms <= now_ms).map(|(key, _)| key.clone()).collect();
        for key in due {
            let rank = self.later.get(&key).map_or(0, |waiting| waiting.rank);
            self.enqueue(key, rank);
        }
        let round_asked = match &self.round {
            Round::Comparing { asked_ms } | Round::Listing { asked_ms, .. } => Some(*asked_ms),
            Round::Idle { .. } | Round::Sending => None,
        };
        let oldest = self.batches.values().map(|batch| batch.sent_ms).chain(round_asked).min();
        if oldest.is_some_and(|asked| now_ms.saturating_sub(asked) > ANSWER_MS) {
            effects.push(Effect::Fail(format!("the peer did not answer within {ANSWER_MS} ms")));
        }
    }

    fn enqueue(&mut self, key: String, rank: u8) {
        if self.queue.len() >= MAX_QUEUED {
            // Y1: the round finds what is dropped here.
            self.queue.clear();
            self.queued.clear();
            self.again = true;
            self.clean = false;
            self.stats.overflows += 1;
        }
        if self.queued.insert(key.clone()) {
            self.sequence += 1;
            self.queue.insert((rank, self.sequence), key);
        }
    }

    fn begin(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        self.number += 1;
        self.began_ms = now_ms;
        self.again = false;
        // What waits from before is part of what the peer does not have yet.
        self.clean = true;
        self.round = Round::Comparing { asked_ms: now_ms };
        effects.push(Effect::Digests { round: self.number });
    }

    fn differ(&mut self, round: u64, buckets: Vec<u8>, now_ms: u64, effects: &mut Vec<Effect>) {
        if round != self.number || !matches!(self.round, Round::Comparing { .. }) {
            effects.push(Effect::Fail(format!("the peer compared round {round}, which was not asked")));
            return;
        }
        let left = buckets.into();
        self.round = Round::Listing { asked_ms: now_ms, left, listing: false, unanswered: 0, wanted: Vec::new() };
        self.list_next(effects);
    }

    /// Lists one bucket at a time, so that a round holds little in memory.
    fn list_next(&mut self, effects: &mut Vec<Effect>) {
        let number = self.number;
        let Round::Listing { left, listing, unanswered, wanted, .. } = &mut self.round else { return };
        if *listing || *unanswered > 0 {
            return;
        }
        if let Some(bucket) = left.pop_front() {
            *listing = true;
            effects.push(Effect::List { round: number, bucket });
            return;
        }
        // Y5
        let wanted = std::mem::take(wanted);
        self.round = Round::Sending;
        for (key, rank) in wanted {
            self.enqueue(key, rank);
        }
    }

    fn listed(&mut self, messages: u32, effects: &mut Vec<Effect>) {
        if let Round::Listing { listing, unanswered, .. } = &mut self.round {
            *listing = false;
            *unanswered += messages;
            self.list_next(effects);
        }
    }

    fn wanted(&mut self, round: u64, keys: Vec<(String, u8)>, now_ms: u64, effects: &mut Vec<Effect>) {
        match &mut self.round {
            Round::Listing { asked_ms, unanswered, wanted, .. } if round == self.number && *unanswered > 0 => {
                *asked_ms = now_ms;
                *unanswered -= 1;
                wanted.extend(keys);
                self.list_next(effects);
            }
            _ => effects.push(Effect::Fail(format!("the peer wants objects of round {round}, which was not listed"))),
        }
    }

    fn applied(&mut self, id: u64, outcomes: Vec<(String, Applied)>, now_ms: u64, effects: &mut Vec<Effect>) {
        let Some(batch) = self.batches.get_mut(&id) else {
            effects.push(Effect::Fail(format!("the peer answered batch {id}, which was not sent")));
            return;
        };
        batch.sent_ms = now_ms;
        let mut answered = Vec::new();
        for (key, outcome) in outcomes {
            let Some(rank) = batch.keys.remove(&key) else {
                effects.push(Effect::Fail(format!("the peer answered {key}, which was not sent")));
                return;
            };
            answered.push((key, rank, outcome));
        }
        if batch.keys.is_empty() {
            self.batches.remove(&id);
        }
        for (key, rank, outcome) in answered {
            self.settle(key, rank, outcome, now_ms);
        }
    }

    fn settle(&mut self, key: String, rank: u8, outcome: Applied, now_ms: u64) {
        match outcome {
            Applied::Taken | Applied::Older => {
                self.stats.taken += u64::from(outcome == Applied::Taken);
                self.stats.refused.remove(&key);
                self.later.remove(&key);
            }
            Applied::Later(reason) => {
                let tries = self.later.get(&key).map_or(0, |waiting| waiting.tries);
                if tries < LATER_TRIES {
                    let due_ms = now_ms + (LATER_MS << tries.min(4));
                    self.later.insert(key, Waiting { rank, tries: tries + 1, due_ms });
                } else {
                    self.later.remove(&key);
                    self.note_refused(key, reason);
                }
            }
            Applied::Refused(reason) => {
                self.later.remove(&key);
                self.note_refused(key, reason);
            }
        }
    }

    fn note_refused(&mut self, key: String, reason: String) {
        self.clean = false;
        if self.stats.refused.len() < REFUSED_KEPT || self.stats.refused.contains_key(&key) {
            self.stats.refused.insert(key, reason);
        }
    }

    /// Sends what may be sent, ends a round that is through, begins one that is due.
    fn advance(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        // A key that is on its way is sent again after its answer, so that answers can be told apart.
        while self.batches.len() < MAX_IN_FLIGHT {
            let on_the_way = |key: &String| self.batches.values().any(|batch| batch.keys.contains_key(key));
            let take: Vec<(u8, u64)> =
                self.queue.iter().filter(|(_, key)| !on_the_way(key)).map(|(at, _)| *at).take(BATCH_KEYS).collect();
            if take.is_empty() {
                break;
            }
            let mut batch = Batch { keys: BTreeMap::new(), sent_ms: now_ms };
            let mut keys = Vec::with_capacity(take.len());
            for at in take {
                let Some(key) = self.queue.remove(&at) else { continue };
                self.queued.remove(&key);
                if let Some(waiting) = self.later.get_mut(&key) {
                    // It is on its way: not due before its answer.
                    waiting.due_ms = u64::MAX;
                }
                batch.keys.insert(key.clone(), at.0);
                keys.push(key);
            }
            self.next_batch += 1;
            let id = self.next_batch;
            self.batches.insert(id, batch);
            effects.push(Effect::Send { id, keys });
        }
        // What could not be taken yet may be waiting for something that only the next round finds.
        let quiet = self.queue.is_empty() && self.batches.is_empty() && (self.later.is_empty() || self.again);
        if matches!(self.round, Round::Sending) && quiet {
            self.stats.rounds += 1;
            self.round = Round::Idle { due_ms: now_ms + self.interval_ms };
            effects
                .push(Effect::RoundEnded { began_ms: self.began_ms, converged: self.clean && self.later.is_empty() });
        }
        if let Round::Idle { due_ms } = self.round
            && (self.again || now_ms >= due_ms)
        {
            self.begin(now_ms, effects);
        }
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
