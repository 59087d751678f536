//! A planned switch, at the region that is active: freeze, drain, hand over, move.
//!
//! ```text
//! Begin → Freeze → [Frozen] → Poll … [Drain{0,0}] → Store(next record) → [Stored] → Tell(target) → [Told] → Move → Done
//!                              [Drain, deadline over] → Thaw → Aborted
//! ```
//!
//! Invariants: W1 the record is stored only after a drain status with nothing left that was taken *after* the freeze; W2 once
//! it is stored nothing goes back: the target is told until it knows; W3 publishes are held from the freeze to the end or the
//! thaw, and at no other time; W4 clients are moved only after the target knows that it is active, so that none is sent back.
//! Failure: before W2 a refusal or the deadline ends it with a thaw; behind it, telling is repeated.
//! Must never know: how topics are hosted, how regions are reached.

use crate::FailoverError;
use crate::record::ActiveRecord;

/// Pause between two looks at what is left, ms.
pub const POLL_MS: u64 = 10;
/// Pause before a target that did not answer is told again, ms.
pub const TELL_AGAIN_MS: u64 = 200;

/// What has come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Publishes are held, everything in flight is stored.
    Frozen,
    /// Freezing failed.
    Refused(FailoverError),
    /// What the target had not confirmed.
    Left {
        /// Messages.
        entries: u64,
        /// Acknowledgements.
        acks: u64,
    },
    /// The next record is durable here.
    Stored,
    /// It could not be stored; nothing has changed.
    NotStored(FailoverError),
    /// The target knows the record.
    Told,
    /// The target did not answer.
    NotTold,
    /// Publishes go on.
    Thawed,
    /// Clients have been sent to the target.
    Moved,
    /// Time has passed.
    Tick,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Hold publishes and wait until everything in flight is stored.
    Freeze,
    /// Look what is left.
    Poll,
    /// Make the record durable: the one point of the hand-over (F3).
    Store(ActiveRecord),
    /// Tell the target.
    Tell(ActiveRecord),
    /// Let publishes go on.
    Thaw,
    /// Send clients to the target.
    Move,
    /// Over.
    End(Result<Account, FailoverError>),
}

/// How a switch went.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// The record in force.
    pub record: ActiveRecord,
    /// From the freeze to the moment when the target knew that it is active, ms.
    pub held_ms: u64,
    /// Messages that had to be drained, at the first look.
    pub drained_entries: u64,
    /// Acknowledgements that had to be drained, at the first look.
    pub drained_acks: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Freezing,
    Draining,
    Storing,
    Telling,
    Moving,
    Thawing,
    Ended,
}

/// One switch.
#[derive(Debug)]
pub struct Switch {
    stage: Stage,
    next: ActiveRecord,
    begun_ms: u64,
    deadline_ms: u64,
    /// An answer to a poll or a telling is awaited.
    asked: bool,
    again_ms: u64,
    first: Option<(u64, u64)>,
    left: (u64, u64),
    held_ms: u64,
    failure: Option<FailoverError>,
}

impl Switch {
    /// Begins; the first effect is [`Effect::Freeze`].
    pub fn begin(current: &ActiveRecord, to: &str, now_ms: u64, limit_ms: u64) -> (Self, Vec<Effect>) {
        let switch = Self {
            stage: Stage::Freezing,
            next: current.next(to, false, now_ms),
            begun_ms: now_ms,
            deadline_ms: now_ms.saturating_add(limit_ms),
            asked: false,
            again_ms: 0,
            first: None,
            left: (0, 0),
            held_ms: 0,
            failure: None,
        };
        (switch, vec![Effect::Freeze])
    }

    /// When the next [`Event::Tick`] is due, `None` = nothing waits for time.
    pub fn due_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::Draining if !self.asked => Some(self.again_ms.min(self.deadline_ms)),
            Stage::Draining | Stage::Freezing => Some(self.deadline_ms),
            Stage::Telling if !self.asked => Some(self.again_ms),
            _ => None,
        }
    }

    /// Takes what has come in.
    pub fn handle(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        match (self.stage, event) {
            (Stage::Freezing, Event::Frozen) => {
                self.stage = Stage::Draining;
                self.poll()
            }
            (Stage::Freezing, Event::Refused(error)) => self.give_up(error),
            (Stage::Freezing | Stage::Draining, Event::Tick) if now_ms >= self.deadline_ms => {
                let (entries_left, acks_left) = self.left;
                let waited_ms = now_ms.saturating_sub(self.begun_ms);
                self.give_up(FailoverError::NotDrained { entries_left, acks_left, waited_ms })
            }
            (Stage::Draining, Event::Tick) if !self.asked && now_ms >= self.again_ms => self.poll(),
            (Stage::Draining, Event::Left { entries, acks }) => self.left_over(entries, acks, now_ms),
            (Stage::Storing, Event::Stored) => {
                self.stage = Stage::Telling;
                self.asked = true;
                vec![Effect::Tell(self.next.clone())]
            }
            (Stage::Storing, Event::NotStored(error)) => self.give_up(error),
            (Stage::Telling, Event::NotTold) => {
                self.asked = false;
                self.again_ms = now_ms.saturating_add(TELL_AGAIN_MS);
                Vec::new()
            }
            (Stage::Telling, Event::Tick) if !self.asked && now_ms >= self.again_ms => {
                self.asked = true;
                vec![Effect::Tell(self.next.clone())]
            }
            (Stage::Telling, Event::Told) => {
                self.stage = Stage::Moving;
                self.held_ms = now_ms.saturating_sub(self.begun_ms);
                vec![Effect::Move]
            }
            (Stage::Moving, Event::Moved) => {
                self.stage = Stage::Ended;
                let (drained_entries, drained_acks) = self.first.unwrap_or_default();
                let record = self.next.clone();
                vec![Effect::End(Ok(Account { record, held_ms: self.held_ms, drained_entries, drained_acks }))]
            }
            (Stage::Thawing, Event::Thawed) => {
                self.stage = Stage::Ended;
                let failure = self.failure.take().unwrap_or_else(|| FailoverError::Host("given up".to_owned()));
                vec![Effect::End(Err(failure))]
            }
            _ => Vec::new(),
        }
    }

    /// Whether nothing goes back any more (W2).
    pub fn handed_over(&self) -> bool {
        matches!(self.stage, Stage::Telling | Stage::Moving) || (self.stage == Stage::Ended && self.held_ms != 0)
    }

    fn poll(&mut self) -> Vec<Effect> {
        self.asked = true;
        vec![Effect::Poll]
    }

    fn left_over(&mut self, entries: u64, acks: u64, now_ms: u64) -> Vec<Effect> {
        self.asked = false;
        self.left = (entries, acks);
        self.first.get_or_insert((entries, acks));
        if self.left == (0, 0) {
            // W1: this status was asked for after the freeze.
            self.stage = Stage::Storing;
            return vec![Effect::Store(self.next.clone())];
        }
        self.again_ms = now_ms.saturating_add(POLL_MS);
        Vec::new()
    }

    fn give_up(&mut self, error: FailoverError) -> Vec<Effect> {
        self.failure = Some(error);
        self.stage = Stage::Thawing;
        vec![Effect::Thaw]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn begin() -> Switch {
        let (switch, effects) = Switch::begin(&ActiveRecord::first("west", 0), "east", 100, 1000);
        assert_eq!(effects, [Effect::Freeze]);
        switch
    }

    /// The trace of the usual case.
    #[test]
    fn golden_planned_switch() {
        let mut switch = begin();
        let next = ActiveRecord::first("west", 0).next("east", false, 100);
        assert_eq!(switch.handle(Event::Frozen, 101), [Effect::Poll]);
        assert_eq!(switch.handle(Event::Left { entries: 5, acks: 2 }, 102), []);
        assert_eq!(switch.due_ms(), Some(112));
        assert_eq!(switch.handle(Event::Tick, 112), [Effect::Poll]);
        assert_eq!(switch.handle(Event::Tick, 113), [], "one look at a time");
        assert_eq!(switch.handle(Event::Left { entries: 0, acks: 1 }, 114), []);
        assert_eq!(switch.handle(Event::Tick, 124), [Effect::Poll]);
        assert_eq!(switch.handle(Event::Left { entries: 0, acks: 0 }, 125), [Effect::Store(next.clone())]);
        assert_eq!(switch.handle(Event::Stored, 126), [Effect::Tell(next.clone())]);
        assert_eq!(switch.handle(Event::NotTold, 127), []);
        assert_eq!(switch.handle(Event::Tick, 327), [Effect::Tell(next.clone())]);
        assert_eq!(switch.handle(Event::Told, 330), [Effect::Move]);
        let account = Account { record: next, held_ms: 230, drained_entries: 5, drained_acks: 2 };
        assert_eq!(switch.handle(Event::Moved, 331), [Effect::End(Ok(account))]);
        assert!(switch.handed_over());
    }

    #[test]
    fn what_does_not_drain_ends_where_it_began() {
        let mut switch = begin();
        switch.handle(Event::Frozen, 101);
        switch.handle(Event::Left { entries: 5, acks: 0 }, 102);
        assert_eq!(switch.handle(Event::Tick, 1100), [Effect::Thaw]);
        let error = FailoverError::NotDrained { entries_left: 5, acks_left: 0, waited_ms: 1000 };
        assert_eq!(switch.handle(Event::Thawed, 1101), [Effect::End(Err(error))]);
        assert!(!switch.handed_over());
    }

    #[test]
    fn a_refused_freeze_or_store_thaws() {
        let refusal = FailoverError::Host("no".to_owned());
        let mut switch = begin();
        assert_eq!(switch.handle(Event::Refused(refusal.clone()), 101), [Effect::Thaw]);
        assert_eq!(switch.handle(Event::Thawed, 102), [Effect::End(Err(refusal.clone()))]);
        let mut switch = begin();
        switch.handle(Event::Frozen, 101);
        switch.handle(Event::Left { entries: 0, acks: 0 }, 102);
        assert_eq!(switch.handle(Event::NotStored(refusal), 103), [Effect::Thaw]);
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Frozen),
            (0u64..2, 0u64..2).prop_map(|(entries, acks)| Event::Left { entries, acks }),
            Just(Event::Stored),
            Just(Event::Told),
            Just(Event::NotTold),
            Just(Event::Thawed),
            Just(Event::Moved),
            Just(Event::Tick),
            Just(Event::Refused(FailoverError::Host(String::new()))),
            Just(Event::NotStored(FailoverError::Host(String::new()))),
        ]
    }

    proptest! {
        /// W1 to W4 under events in any order.
        #[test]
        fn rules_hold_whatever_comes(events in proptest::collection::vec((events(), 0u64..300), 0..60)) {
            let mut switch = begin();
            let (mut now, mut stored, mut told, mut thawed, mut clean) = (100, false, false, false, false);
            for (event, pause) in events {
                now += pause;
                clean = event == Event::Left { entries: 0, acks: 0 };
                let was_told = event == Event::Told;
                for effect in switch.handle(event, now) {
                    match effect {
                        Effect::Store(_) => { prop_assert!(clean && !thawed); stored = true; }
                        Effect::Tell(_) => prop_assert!(stored),
                        Effect::Thaw => { prop_assert!(!told); thawed = true; }
                        Effect::Move => { prop_assert!(stored && was_told && !thawed); told = true; }
                        Effect::End(Ok(_)) => prop_assert!(told),
                        Effect::End(Err(_)) => prop_assert!(thawed && !told),
                        Effect::Freeze | Effect::Poll => {}
                    }
                }
            }
            let _ = clean;
        }
    }
}
