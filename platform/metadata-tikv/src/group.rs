//! Which transactions that wait are written together.
//!
//! Role: transactions of this process that wait at the same time become one transaction of TiKV, which costs hardly more
//! than each of them would; those that would collide wait for each other here instead of at TiKV.
//! Invariants: G1 a key is touched by one running group at a time; G2 all of a group are judged against the same state, so
//! a key that one of them writes is touched by no other of it, while any number may check the same key; G3 what touches
//! the same key goes in the order in which it came, unless it is only checked; G4 groups, those that run and the queue
//! are bounded.
//! Failure: a full queue refuses; what is withdrawn was not begun.
//! Must never know: TiKV's interface, what keys mean.

use meridian_metadata::{Condition, Operation, SessionId};
use std::collections::{HashMap, HashSet, VecDeque};

/// Groups written at once. More of them would be smaller ones.
pub(crate) const GROUPS: usize = 8;
/// Transactions in a group at most.
const MAX_JOBS: usize = 128;
/// Keys and values of a group at most, unless one transaction alone has more: a group is one entry of the log of changes.
const MAX_BYTES: usize = 128 * 1024;
/// Transactions that may wait.
const MAX_WAITING: usize = 4096;
/// Transactions looked at for one group.
const MAX_LOOKED_AT: usize = 1024;

/// A key that a transaction touches, and whether it writes it.
pub(crate) type Touched = (Box<str>, bool);

struct Waiting<T> {
    number: u64,
    job: T,
    touched: Vec<Touched>,
    bytes: usize,
}

/// A group to be written; its keys are given back with [`Queue::end`].
#[derive(Debug)]
pub(crate) struct Group<T> {
    pub(crate) jobs: Vec<T>,
    pub(crate) keys: Vec<Box<str>>,
}

/// What waits and what runs.
pub(crate) struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    busy: HashSet<Box<str>>,
    running: usize,
    next: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), busy: HashSet::new(), running: 0, next: 0 }
    }
}

/// The keys on which the outcome of operations depends or that they write, sessions included.
pub(crate) fn touched(operations: &[Operation]) -> Vec<Touched> {
    let mut touched: Vec<Touched> = Vec::with_capacity(operations.len() + 1);
    let mut sessions = HashSet::new();
    for operation in operations {
        match operation {
            Operation::Put { key, ephemeral, .. } => {
                touched.push((key.as_str().into(), true));
                sessions.extend(ephemeral);
            }
            Operation::Delete { key, .. } => touched.push((key.as_str().into(), true)),
            Operation::Check { condition: Condition::Any, .. } => {}
            Operation::Check { key, .. } => touched.push((key.as_str().into(), false)),
        }
    }
    // No key begins with a zero byte and a number; if one did, it would only wait.
    touched.extend(sessions.into_iter().map(|session: &SessionId| (format!("\0{}", session.0).into(), false)));
    touched
}

/// Whether a key may be touched beside others that touch it.
fn meets(others: &HashMap<&str, bool>, (key, writes): &Touched) -> bool {
    others.get(&**key).is_some_and(|other_writes| *other_writes || *writes)
}

fn note<'a>(all: &mut HashMap<&'a str, bool>, touched: &'a [Touched]) {
    for (key, writes) in touched {
        *all.entry(key).or_default() |= *writes;
    }
}

impl<T> Queue<T> {
    /// Puts a transaction at the end; its number, or nothing if too many wait (G4).
    pub(crate) fn enter(&mut self, touched: Vec<Touched>, bytes: usize, job: T) -> Option<u64> {
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(Waiting { number, job, touched, bytes });
        Some(number)
    }

    /// Takes a transaction out that has not begun.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        let Ok(at) = self.waiting.binary_search_by_key(&number, |waiting| waiting.number) else { return false };
        self.waiting.remove(at).is_some()
    }

    /// The next group that can be written now.
    pub(crate) fn take(&mut self) -> Option<Group<T>> {
        if self.running >= GROUPS {
            return None;
        }
        let chosen = self.choose();
        if chosen.is_empty() {
            return None;
        }
        let mut group = Group { jobs: Vec::with_capacity(chosen.len()), keys: Vec::new() };
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        let mut chosen = chosen.into_iter().peekable();
        for (index, waiting) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            if chosen.next_if_eq(&index).is_none() {
                rest.push_back(waiting);
                continue;
            }
            group.jobs.push(waiting.job);
            for (key, _) in waiting.touched {
                if self.busy.insert(key.clone()) {
                    group.keys.push(key);
                }
            }
        }
        self.waiting = rest;
        self.running += 1;
        Some(group)
    }

    /// Indexes of those that go together, in order.
    fn choose(&self) -> Vec<usize> {
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        let (mut together, mut passed) = (HashMap::new(), HashMap::new());
        for (index, waiting) in self.waiting.iter().enumerate().take(MAX_LOOKED_AT) {
            if chosen.len() >= MAX_JOBS || (!chosen.is_empty() && bytes + waiting.bytes > MAX_BYTES) {
                break;
            }
            let fits = |touched: &Touched| {
                !self.busy.contains(&touched.0) && !meets(&passed, touched) && !meets(&together, touched)
            };
            if waiting.touched.iter().all(fits) {
                note(&mut together, &waiting.touched);
                chosen.push(index);
                bytes += waiting.bytes;
            } else {
                note(&mut passed, &waiting.touched);
            }
        }
        chosen
    }

    /// A group has been written, or not.
    pub(crate) fn end(&mut self, keys: &[Box<str>]) {
        self.running -= 1;
        for key in keys {
            self.busy.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use meridian_metadata::Version;
    use proptest::prelude::{prop_assert, proptest};

    fn put(key: &str) -> Operation {
        let (key, value) = (key.to_owned(), Bytes::new());
        Operation::Put { key, value, condition: Condition::Any, ephemeral: None }
    }

    fn check(key: &str) -> Operation {
        Operation::Check { key: key.to_owned(), condition: Condition::Is(Version(1)) }
    }

    fn queue(jobs: &[(&'static str, Vec<Operation>)]) -> Queue<&'static str> {
        let mut queue = Queue::default();
        for (name, operations) in jobs {
            queue.enter(touched(operations), 100, *name).unwrap();
        }
        queue
    }

    #[test]
    fn many_that_check_one_key_go_together_and_hold_up_who_writes_it() {
        let mut queue = queue(&[
            ("open a", vec![put("a"), check("bundle")]),
            ("open b", vec![put("b"), check("bundle")]),
            ("move", vec![put("bundle")]),
            ("open c", vec![put("c"), check("bundle")]),
            ("other", vec![put("d")]),
        ]);
        let first = queue.take().unwrap();
        assert_eq!(first.jobs, ["open a", "open b", "other"], "whoever came after the move waits for it (G3)");
        assert!(queue.take().is_none(), "the bundle's key is being checked (G1)");
        queue.end(&first.keys);
        let second = queue.take().unwrap();
        assert_eq!(second.jobs, ["move"], "G2");
        queue.end(&second.keys);
        assert_eq!(queue.take().unwrap().jobs, ["open c"]);
        assert!(queue.take().is_none());
    }

    #[test]
    fn one_key_is_written_in_order_and_one_session_binds_many_keys() {
        let bound = |key: &str| match put(key) {
            Operation::Put { key, value, condition, .. } => {
                Operation::Put { key, value, condition, ephemeral: Some(SessionId(7)) }
            }
            other => other,
        };
        let mut queue =
            queue(&[("1", vec![put("a")]), ("2", vec![put("a")]), ("3", vec![bound("x")]), ("4", vec![bound("y")])]);
        let first = queue.take().unwrap();
        assert_eq!(first.jobs, ["1", "3", "4"]);
        queue.end(&first.keys);
        assert_eq!(queue.take().unwrap().jobs, ["2"]);
    }

    #[test]
    fn groups_are_bounded_and_what_waits_can_be_withdrawn() {
        let mut queue = Queue::default();
        for number in 0..MAX_WAITING as u64 {
            assert_eq!(queue.enter(touched(&[put(&format!("k{number}"))]), 1000, number), Some(number));
        }
        assert_eq!(queue.enter(touched(&[put("one more")]), 1000, 0), None);
        assert!(queue.withdraw(3) && !queue.withdraw(3));
        let mut runs = Vec::new();
        while let Some(group) = queue.take() {
            assert!(group.jobs.len() <= MAX_JOBS && group.jobs.len() * 1000 <= MAX_BYTES);
            assert!(!group.jobs.contains(&3));
            runs.push(group);
        }
        assert_eq!(runs.len(), GROUPS);
        queue.end(&runs[0].keys);
        assert!(queue.take().is_some());
        assert!(!queue.withdraw(0), "it has begun");
        let mut large = Queue::default();
        large.enter(touched(&[put("a")]), 2 * MAX_BYTES, 1);
        large.enter(touched(&[put("b")]), 1, 2);
        assert_eq!(large.take().unwrap().jobs, [1], "what is too large goes alone");
    }

    proptest! {
        /// Whatever comes: nothing that collides runs at once, one key's writers keep their order, and all is written.
        #[test]
        fn nothing_that_collides_runs_at_once(
            jobs in proptest::collection::vec(proptest::collection::btree_map(0u8..6, proptest::bool::ANY, 1..4), 1..60),
            ends in proptest::collection::vec(0usize..8, 0..200),
        ) {
            let operations: Vec<Vec<Operation>> = jobs
                .iter()
                .map(|keys| {
                    let one = |(key, writes): (&u8, &bool)| {
                        let key = format!("k{key}");
                        if *writes { put(&key) } else { check(&key) }
                    };
                    keys.iter().map(one).collect()
                })
                .collect();
            let mut queue = Queue::default();
            for (number, operations) in operations.iter().enumerate() {
                queue.enter(touched(operations), 10, number);
            }
            let mut running: Vec<Group<usize>> = Vec::new();
            let mut done: Vec<usize> = Vec::new();
            let mut ends = ends.into_iter();
            loop {
                while let Some(group) = queue.take() {
                    for number in &group.jobs {
                        for (key, writes) in &jobs[*number] {
                            let collides = |other: &usize| {
                                other != number && jobs[*other].get(key).is_some_and(|other| *other || *writes)
                            };
                            prop_assert!(!group.jobs.iter().any(collides));
                            let other_group = |other: &Group<usize>| {
                                other.jobs.iter().any(|other| jobs[*other].contains_key(key))
                            };
                            prop_assert!(!running.iter().any(other_group));
                        }
                    }
                    running.push(group);
                }
                if running.is_empty() {
                    break;
                }
                let group = running.remove(ends.next().unwrap_or(0) % running.len());
                queue.end(&group.keys);
                done.extend(group.jobs);
            }
            prop_assert!(done.len() == jobs.len());
            for key in 0u8..6 {
                let writers: Vec<_> = done.iter().filter(|number| jobs[**number].get(&key) == Some(&true)).collect();
                prop_assert!(writers.is_sorted());
            }
        }
    }
}
