//! Golden script and model test of [`AckSet`].

use super::*;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

fn layout(shape: &[(i64, u64)]) -> Layout {
    let mut layout = Layout::new(Position::EARLIEST, 0);
    for (id, entries) in shape {
        layout.add(LedgerId(*id), 0);
        layout.settle(LedgerId(*id), *entries, *entries, *entries);
    }
    layout
}

fn at(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

#[test]
fn golden_script() {
    let l = layout(&[(1, 3), (4, 3)]);
    let mut set = AckSet::new(at(1, -1), true);
    let mut trace = Vec::new();
    let mut note = |set: &AckSet, what: &str, acked: Acked| {
        let line = format!("{what}: +{}e +{}m, {} holes {:?}", acked.entries, acked.messages, set.mark_delete(), {
            set.ranges(9).0
        });
        trace.push(if acked.beyond { format!("{what}: beyond") } else { line });
    };
    let acked = set.ack(&l, at(1, 1), 10);
    note(&set, "1:1", acked);
    let acked = set.ack(&l, at(1, 1), 10);
    note(&set, "1:1 again", acked);
    let acked = set.ack_partly(&l, at(1, 2), &[0b0110], 4);
    note(&set, "1:2 indexes 0 3", acked);
    let acked = set.ack(&l, at(1, 0), 1);
    note(&set, "1:0", acked);
    let acked = set.ack(&l, at(4, 0), 1);
    note(&set, "4:0", acked);
    let acked = set.ack_partly(&l, at(1, 2), &[0b1001], 4);
    note(&set, "1:2 the rest", acked);
    let acked = set.ack(&l, at(4, 3), 1);
    note(&set, "4:3", acked);
    let acked = set.ack_up_to(&l, at(4, 2));
    note(&set, "up to 4:2", acked);
    assert_eq!(
        trace,
        [
            "1:1: +1e +10m, 1:-1 holes [(1:1, 1:1)]",
            "1:1 again: +0e +0m, 1:-1 holes [(1:1, 1:1)]",
            "1:2 indexes 0 3: +0e +2m, 1:-1 holes [(1:1, 1:1)]",
            "1:0: +1e +1m, 1:1 holes []",
            "4:0: +1e +1m, 1:1 holes [(4:0, 4:0)]",
            "1:2 the rest: +1e +2m, 4:0 holes []",
            "4:3: beyond",
            "up to 4:2: +2e +2m, 4:2 holes []",
        ]
    );
}

#[test]
fn acked_entries_are_stepped_over_by_whole_runs() {
    let l = layout(&[(1, 200_000)]);
    let mut set = AckSet::new(at(1, -1), false);
    for entry in 1..150_000 {
        set.ack(&l, at(1, entry), 1);
    }
    assert_eq!(set.next_unacked(&l, at(1, 1)), at(1, 150_000));
    assert_eq!(set.ranges(5), (vec![(at(1, 1), at(1, 149_999))], 1));
    set.ack(&l, at(1, 0), 1);
    assert_eq!(set.mark_delete(), at(1, 149_999));
    assert!(set.holes.is_none());
}

#[test]
fn a_cursor_of_a_trimmed_log_stands_at_its_end() {
    let mut l = layout(&[(1, 3)]);
    l.trim(1);
    let mut set = AckSet::new(at(1, -1), false);
    set.settle(&l);
    assert_eq!(set.mark_delete(), at(1, 2));
    assert_eq!(set.backlog(&l), 0);
}

/// A cursor as a plain list of what is unacked.
#[derive(Debug, Clone)]
struct Model {
    unacked: BTreeMap<Position, u64>,
}

const MESSAGES: u32 = 5;

#[derive(Debug, Clone)]
enum Step {
    Ack(usize),
    Partly(usize, u64),
    UpTo(usize),
    Reset(usize, Option<u64>),
    Persist,
    Snapshot,
    Reload,
}

fn steps() -> impl Strategy<Value = Step> {
    let entry = any::<usize>;
    prop_oneof![
        6 => entry().prop_map(Step::Ack),
        4 => (entry(), 0u64..32).prop_map(|(e, w)| Step::Partly(e, w)),
        1 => entry().prop_map(Step::UpTo),
        1 => (entry(), proptest::option::of(0u64..32)).prop_map(|(e, w)| Step::Reset(e, w)),
        2 => Just(Step::Persist),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Reload),
    ]
}

impl Model {
    fn apply(&mut self, all: &[Position], step: &Step) {
        let full = (1u64 << MESSAGES) - 1;
        match step {
            Step::Ack(n) => {
                self.unacked.remove(&all[n % all.len()]);
            }
            Step::Partly(n, words) => {
                if let Some(left) = self.unacked.get_mut(&all[n % all.len()]) {
                    *left &= words;
                }
            }
            Step::UpTo(n) => self.unacked = self.unacked.split_off(&after(all[n % all.len()])),
            Step::Reset(n, words) => {
                let to = n % all.len();
                self.unacked = all[to..].iter().map(|at| (*at, full)).collect();
                if let Some(words) = words.filter(|words| *words != 0) {
                    self.unacked.insert(all[to], words & full);
                }
            }
            Step::Persist | Step::Snapshot | Step::Reload => {}
        }
        self.unacked.retain(|_, left| *left != 0);
    }
}

fn apply(set: &mut AckSet, stored: &mut AckSet, l: &Layout, all: &[Position], step: &Step) {
    let pick = |n: &usize| all[n % all.len()];
    match step {
        Step::Ack(n) => {
            set.ack(l, pick(n), MESSAGES);
        }
        Step::Partly(n, words) => {
            set.ack_partly(l, pick(n), &[*words], MESSAGES);
        }
        Step::UpTo(n) => {
            set.ack_up_to(l, pick(n));
        }
        Step::Reset(n, words) => {
            set.reset(l.previous(pick(n)), words.map(|words| (pick(n), vec![words].into())));
        }
        Step::Persist | Step::Snapshot | Step::Reload => {
            if matches!(step, Step::Snapshot) {
                set.everything_changed();
            }
            let (state, whole) = set.take_changes();
            if whole {
                *stored = AckSet::load(state, true);
            } else {
                stored.merge(state);
            }
            stored.settle(l);
            if matches!(step, Step::Reload) {
                *set = stored.clone();
            }
        }
    }
}

proptest! {
    /// Random acks, seeks, persists and reloads equal a naive list of what is unacked (A1–A6).
    #[test]
    fn equals_a_naive_model(script in proptest::collection::vec(steps(), 1..80)) {
        let l = layout(&[(1, 7), (2, 0), (5, 9), (6, 1), (8, 3)]);
        let all: Vec<Position> = (0..20).map(|ordinal| l.at_ordinal(ordinal)).collect();
        let full = (1u64 << MESSAGES) - 1;
        let mut model = Model { unacked: all.iter().map(|at| (*at, full)).collect() };
        let mut set = AckSet::new(l.before_first(), true);
        let mut stored = set.clone();
        for step in &script {
            model.apply(&all, step);
            apply(&mut set, &mut stored, &l, &all, step);
            for position in &all {
                prop_assert_eq!(set.is_acked(*position), !model.unacked.contains_key(position), "{} {:?}", position, step);
                if let Some(left) = model.unacked.get(position) {
                    let words = set.partial(*position).map_or(full, |words| words[0]);
                    prop_assert_eq!(words, *left);
                }
            }
            let first = model.unacked.keys().next().copied().unwrap_or(l.end());
            prop_assert_eq!(l.successor(set.mark_delete()), first);
            prop_assert_eq!(set.next_unacked(&l, Position::EARLIEST), first);
            prop_assert_eq!(set.backlog(&l), model.unacked.len() as u64);
            if matches!(step, Step::Persist | Step::Snapshot | Step::Reload) {
                prop_assert_eq!(stored.state(), set.state());
            }
            if let Some(holes) = &set.holes {
                prop_assert_eq!(holes.acked_entries, holes.acked.values().map(RoaringBitmap::len).sum::<u64>());
                prop_assert!(holes.partial.keys().all(|at| *at > set.mark_delete() && !set.is_acked(*at)));
            }
        }
    }
}
