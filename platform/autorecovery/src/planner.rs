//! Which ledger a worker takes next: a pure queue with bounds, pauses and graces.
//!
//! Invariants:
//! - N1 a ledger is never at work twice here, and at most [`PlannerSettings::ledgers_in_flight`] are at work.
//! - N2 what failed waits, each time twice as long, up to a bound; what those who are there can't bring back waits up to a
//!   longer one; what another worker holds waits a little.
//! - N3 an open ledger is closed only when it was first met at least the grace ago and a replacement was there at the
//!   last look (J4).
//! - N4 at most [`QUEUE_MAX`] ledgers wait here, and [`HOPELESS_MAX`] more that can't be brought back, so that these do
//!   not stand in the others' way; the work list itself is in metadata.
//!
//! Must never know: clocks, stores, bookies.

use meridian_types::LedgerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ledgers that wait here at most.
pub const QUEUE_MAX: usize = 4_000;
/// Ledgers beyond recovery that are remembered at most without taking others' room.
pub const HOPELESS_MAX: usize = 100_000;

/// Bounds and times.
#[derive(Debug, Clone, Copy)]
pub struct PlannerSettings {
    /// Ledgers at work at once.
    pub ledgers_in_flight: usize,
    /// First pause after a failure; each one more doubles it.
    pub retry_ms: u64,
    /// Longest pause.
    pub retry_max_ms: u64,
    /// Longest pause of a ledger that those who are there can't bring back.
    pub hopeless_retry_max_ms: u64,
    /// Pause before a ledger that another worker holds is looked at again.
    pub busy_ms: u64,
    /// How long the writer of an open ledger has to replace a lost bookie by itself.
    pub open_grace_ms: u64,
}

/// A ledger to work at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// It.
    pub ledger_id: LedgerId,
    /// If it is open, it is recovered and closed first.
    pub close: bool,
}

/// What came of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do.
    Done,
    /// Another worker holds it.
    Busy,
    /// It is open and its last ensemble has a bookie that leaves.
    Open {
        /// There is a bookie that could take its place.
        can_replace: bool,
    },
    /// It failed.
    Failed,
    /// It failed, and will until a bookie comes back.
    Hopeless,
}

#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    at_ms: u64,
    failures: u32,
    open_since_ms: Option<u64>,
    can_replace: bool,
    hopeless: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Planner {
    settings: PlannerSettings,
    queue: VecDeque<LedgerId>,
    queued: BTreeSet<LedgerId>,
    working: BTreeSet<LedgerId>,
    later: BTreeMap<LedgerId, Memory>,
    /// How many of these are beyond recovery.
    hopeless: usize,
}

impl Planner {
    /// Nothing to do yet.
    pub fn new(settings: PlannerSettings) -> Self {
        Self {
            settings,
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            working: BTreeSet::new(),
            later: BTreeMap::new(),
            hopeless: 0,
        }
    }

    /// Ledgers of the work list; those that wait or are at work are passed over. Answers how many were new.
    pub fn offer(&mut self, ledgers: impl IntoIterator<Item = LedgerId>) -> usize {
        let mut fresh = 0;
        for ledger_id in ledgers {
            if self.room() == 0 {
                break;
            }
            let known = self.working.contains(&ledger_id) || self.later.contains_key(&ledger_id);
            if !known && self.queued.insert(ledger_id) {
                self.queue.push_back(ledger_id);
                fresh += 1;
            }
        }
        fresh
    }

    /// Ledgers that may still be offered (N4).
    pub fn room(&self) -> usize {
        let later = self.later.len() - self.hopeless.min(HOPELESS_MAX);
        QUEUE_MAX.saturating_sub(self.queue.len() + later)
    }

    /// Ledgers that wait, those that wait for a later time, those at work.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.queue.len(), self.later.len(), self.working.len())
    }

    /// The next task, if there is one and room for it (N1).
    pub fn next(&mut self, now_ms: u64) -> Option<Task> {
        if self.working.len() >= self.settings.ledgers_in_flight.max(1) {
            return None;
        }
        let due = self.later.iter().find(|(id, memory)| memory.at_ms <= now_ms && !self.working.contains(*id));
        let (ledger_id, memory) = match due {
            Some((ledger_id, memory)) => (*ledger_id, *memory),
            None => {
                let ledger_id = self.queue.pop_front()?;
                self.queued.remove(&ledger_id);
                (ledger_id, Memory::default())
            }
        };
        self.working.insert(ledger_id);
        let grace_over = memory.open_since_ms.is_some_and(|since| now_ms >= since + self.settings.open_grace_ms);
        Some(Task { ledger_id, close: grace_over && memory.can_replace })
    }

    /// A task ended.
    pub fn finished(&mut self, now_ms: u64, ledger_id: LedgerId, outcome: Outcome) {
        if !self.working.remove(&ledger_id) {
            return;
        }
        let mut memory = self.later.remove(&ledger_id).unwrap_or_default();
        self.hopeless -= usize::from(memory.hopeless);
        memory.hopeless = memory.hopeless && outcome == Outcome::Busy;
        match outcome {
            Outcome::Done => return,
            Outcome::Busy => memory = Memory { at_ms: now_ms + self.settings.busy_ms, ..memory },
            Outcome::Open { can_replace } => {
                let since_ms = *memory.open_since_ms.get_or_insert(now_ms);
                let close_ms = since_ms + self.settings.open_grace_ms;
                memory.can_replace = can_replace;
                memory.at_ms = match can_replace {
                    // Looked at again before the end of the grace: its writer may be done sooner.
                    true => close_ms.clamp(
                        now_ms + self.settings.retry_ms.min(self.settings.busy_ms),
                        now_ms + self.settings.busy_ms,
                    ),
                    false => now_ms + self.settings.busy_ms,
                };
                memory.failures = 0;
            }
            Outcome::Failed => {
                let pause_ms = self.settings.retry_ms.saturating_mul(1 << memory.failures.min(20));
                memory.failures += 1;
                memory.at_ms = now_ms + pause_ms.min(self.settings.retry_max_ms);
            }
            Outcome::Hopeless => {
                let pause_ms = self.settings.retry_ms.saturating_mul(1 << memory.failures.min(20));
                memory.failures += 1;
                memory.hopeless = true;
                memory.at_ms = now_ms + pause_ms.min(self.settings.hopeless_retry_max_ms);
            }
        }
        self.hopeless += usize::from(memory.hopeless);
        self.later.insert(ledger_id, memory);
    }

    /// Everything that is not at work is forgotten: the work list has become another one.
    pub fn forget(&mut self) {
        self.queue.clear();
        self.queued.clear();
        let working = &self.working;
        self.later.retain(|ledger_id, _| working.contains(ledger_id));
        self.hopeless = self.later.values().filter(|memory| memory.hopeless).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, proptest};

    const SETTINGS: PlannerSettings = PlannerSettings {
        ledgers_in_flight: 2,
        retry_ms: 10,
        retry_max_ms: 50,
        hopeless_retry_max_ms: 300,
        busy_ms: 30,
        open_grace_ms: 100,
    };

    fn ids(numbers: &[i64]) -> Vec<LedgerId> {
        numbers.iter().copied().map(LedgerId).collect()
    }

    /// Lines of `offer 1 2`, `next` and `end 1 outcome` with the time before them, and what came of it.
    fn play(planner: &mut Planner, lines: &[(u64, &str, &str)]) {
        for (now_ms, line, expected) in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| LedgerId(word.parse().unwrap());
            let told = match words[0] {
                "offer" => planner.offer(words[1..].iter().map(|word| number(word))).to_string(),
                "next" => match planner.next(*now_ms) {
                    Some(Task { ledger_id, close }) => format!("{}{}", ledger_id.0, if close { " close" } else { "" }),
                    None => "-".to_owned(),
                },
                _ => {
                    let outcome = match words[2] {
                        "done" => Outcome::Done,
                        "busy" => Outcome::Busy,
                        "failed" => Outcome::Failed,
                        "hopeless" => Outcome::Hopeless,
                        "open" => Outcome::Open { can_replace: true },
                        _ => Outcome::Open { can_replace: false },
                    };
                    planner.finished(*now_ms, number(words[1]), outcome);
                    String::new()
                }
            };
            assert_eq!(told, *expected, "{now_ms} {line}");
        }
    }

    #[test]
    fn golden_script_of_a_queue() {
        let mut planner = Planner::new(SETTINGS);
        let script = [
            (0, "offer 1 2 3 2", "3"),
            (0, "next", "1"),
            (0, "next", "2"),
            (0, "next", "-"), // two are at work
            (5, "end 1 done", ""),
            (5, "next", "3"),
            (6, "end 2 failed", ""),
            (6, "offer 2", "0"), // it waits for its time
            (6, "next", "-"),
            (16, "next", "2"),
            (16, "end 2 failed", ""),
            (35, "next", "-"),
            (36, "next", "2"), // twice the pause
            (40, "end 3 busy", ""),
            (40, "end 2 done", ""),
            (69, "next", "-"),
            (70, "next", "3"),
            (70, "end 3 done", ""),
            (99, "next", "-"),
        ];
        play(&mut planner, &script);
        assert_eq!(planner.counts(), (0, 0, 0));
    }

    #[test]
    fn golden_script_of_an_open_ledger() {
        let mut planner = Planner::new(SETTINGS);
        let script = [
            (0, "offer 1", "1"),
            (0, "next", "1"),
            (10, "end 1 stuck", ""), // open, and nobody could take the bookie's place
            (40, "next", "1"),
            (41, "end 1 open", ""),
            (71, "next", "1"),
            (72, "end 1 open", ""),
            (102, "next", "1"),
            (103, "end 1 open", ""), // the grace ends at 110
            (113, "next", "1 close"),
            (114, "end 1 failed", ""),
            (124, "next", "1 close"),
            (125, "end 1 stuck", ""), // the replacement is gone again: it stays open
            (155, "next", "1"),
            (156, "end 1 done", ""),
        ];
        play(&mut planner, &script);
        assert_eq!(planner.counts(), (0, 0, 0));
    }

    #[test]
    fn golden_script_of_a_ledger_beyond_recovery() {
        let mut planner = Planner::new(SETTINGS);
        let script = [
            (0, "offer 1", "1"),
            (0, "next", "1"),
            (0, "end 1 hopeless", ""),
            (9, "next", "-"),
            (10, "next", "1"),
            (10, "end 1 hopeless", ""),
            (30, "next", "1"),
            (30, "end 1 hopeless", ""),
            (70, "next", "1"),
            (70, "end 1 hopeless", ""),
            (150, "next", "1"),
            (150, "end 1 hopeless", ""),
            (310, "next", "1"), // a pause of 160, beyond the bound of other failures
            (310, "end 1 hopeless", ""),
            (609, "next", "-"),
            (610, "next", "1"), // never more than 300
            (610, "end 1 hopeless", ""),
        ];
        play(&mut planner, &script);
        assert_eq!((planner.counts(), planner.room()), ((0, 1, 0), QUEUE_MAX), "it takes nobody's room");
        // A bookie came back: it is tried at once.
        planner.forget();
        play(&mut planner, &[(611, "offer 1", "1"), (611, "next", "1"), (612, "end 1 done", "")]);
        assert_eq!((planner.counts(), planner.room()), ((0, 0, 0), QUEUE_MAX));
    }

    proptest! {
        #[test]
        fn bounds_hold(steps in prop::collection::vec((0..8u8, 0..12i64), 0..200)) {
            let mut planner = Planner::new(SETTINGS);
            let (mut now_ms, mut working) = (0, BTreeSet::new());
            for (kind, which) in steps {
                now_ms += 7;
                let hopeless = planner.later.values().filter(|memory| memory.hopeless).count();
                prop_assert!(planner.hopeless == hopeless, "N4");
                match kind {
                    0 => drop(planner.offer(ids(&[which, which + 1]))),
                    7 => planner.forget(),
                    1 | 2 => {
                        if let Some(task) = planner.next(now_ms) {
                            prop_assert!(working.insert(task.ledger_id), "N1");
                            prop_assert!(!task.close || now_ms >= SETTINGS.open_grace_ms, "N3");
                        }
                    }
                    _ => {
                        if let Some(ledger_id) = working.pop_first() {
                            let open = Outcome::Open { can_replace: which % 2 == 0 };
                            let outcomes = [Outcome::Done, Outcome::Failed, open, Outcome::Hopeless];
                            planner.finished(now_ms, ledger_id, outcomes[usize::from(kind - 3)]);
                        }
                    }
                }
                prop_assert!(working.len() <= SETTINGS.ledgers_in_flight);
            }
            // Everything offered comes to an end.
            for _ in 0..200 {
                now_ms += 100;
                working.extend(std::iter::from_fn(|| planner.next(now_ms)).map(|task| task.ledger_id));
                while let Some(ledger_id) = working.pop_first() {
                    planner.finished(now_ms, ledger_id, Outcome::Done);
                }
            }
            prop_assert!(planner.counts() == (0, 0, 0));
        }
    }
}
