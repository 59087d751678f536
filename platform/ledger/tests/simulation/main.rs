//! The writer's and the recovery's machines against lost, late, repeated and reordered messages, crashes, doubtful
//! metadata and contending owners: no confirmed entry is lost, readers agree, one writer confirms, the
//! last-add-confirmed is never wrong, and everything ends.

mod bookies;
mod checks;
mod planted;
mod script;
mod world;

use checks::Reached;
use meridian_ledger::layout::Layout;
use planted::Bug;
use proptest::prelude::*;
use world::{Verdict, World};

/// Bookies and (E, Qw, Qa).
const SHAPES: [(usize, (u32, u32, u32)); 9] = [
    (1, (1, 1, 1)),
    (2, (1, 1, 1)),
    (3, (3, 3, 2)),
    (4, (3, 3, 2)),
    (3, (3, 2, 2)),
    (5, (3, 3, 2)),
    (5, (3, 3, 3)),
    (5, (5, 3, 2)),
    (6, (5, 5, 3)),
];

fn run(shape: (usize, (u32, u32, u32)), bug: Bug, choices: &[u16]) -> (Verdict, Reached) {
    let (bookies, (e, qw, qa)) = shape;
    let mut world = World::new(bookies, Layout::new(e, qw, qa).expect("shapes are ordered"), bug);
    for choice in choices {
        if let Err(violation) = world.step(*choice) {
            return (Err(violation), world.reached());
        }
    }
    (world.settle(), world.reached())
}

/// Choices from a seed (xorshift), for runs that need no shrinking.
fn choices(seed: u64, count: usize) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u16
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_protocol_holds(shape in 0..SHAPES.len(), choices in proptest::collection::vec(any::<u16>(), 0..500)) {
        let (verdict, _) = run(SHAPES[shape], Bug::None, &choices);
        prop_assert_eq!(verdict, Ok(()));
    }
}

#[test]
fn the_protocol_holds_over_many_seeds() {
    let rounds: u64 = std::env::var("LEDGER_SIM_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    let mut total = Reached { confirmed: 0, ensembles: 0, closed_by_writer: false, recovered: 0 };
    for seed in 0..rounds {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let (verdict, reached) = run(shape, Bug::None, &choices(seed, 120 + seed as usize % 500));
        assert_eq!(verdict, Ok(()), "seed {seed}, shape {shape:?}");
        total.confirmed += reached.confirmed;
        total.ensembles += reached.ensembles;
        total.closed_by_writer |= reached.closed_by_writer;
        total.recovered += reached.recovered;
    }
    // The world is wild, but not so wild that nothing happens.
    assert!(total.confirmed > rounds as i64 * 3, "{total:?}");
    assert!(total.ensembles > rounds as usize * 11 / 10, "{total:?}");
    assert!(total.recovered > rounds as usize && total.closed_by_writer, "{total:?}");
}

#[test]
fn planted_bugs_are_found() {
    let missed: Vec<_> = Bug::FOUND_BY_CHANCE.into_iter().filter(|bug| find(*bug).is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// The first seed that shows the bug, and how.
fn find(bug: Bug) -> Option<(u64, String)> {
    (0..20_000u64).find_map(|seed| {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        run(shape, bug, &choices(seed, 120 + seed as usize % 500)).0.err().map(|violation| (seed, violation))
    })
}

/// Plays a written scenario with and without the bug: it must hold without and break with it.
fn scenario(bookies: usize, bug: Bug, lines: &[&str]) {
    for bug in [Bug::None, bug] {
        let mut world = World::new(bookies, Layout::new(3, 3, 2).expect("ordered"), bug);
        let verdict = lines.iter().try_for_each(|line| world.act(line)).and_then(|()| world.settle());
        assert_eq!(verdict.is_err(), bug != Bug::None, "{bug:?}: {verdict:?}");
    }
}

/// The first known fault of the original protocol: an add that was on its way when the end was found.
#[test]
fn a_read_that_does_not_fence_lets_a_late_add_be_confirmed_behind_the_end() {
    let lines = [
        "append",
        "add b1",
        "recover",
        "load",
        "loaded",
        "store",
        "stored",
        "fence b0",
        "fence b1",
        "fenced b0",
        "fenced b1",
        "read b0",
        "read b2",
        "answered b0",
        "answered b2",
        "store",
        "stored",
        "add b2",
        "added b1",
        "added b2",
    ];
    scenario(3, Bug::ReadsDoNotFence, &lines);
}

/// W3: the change was stored, nobody told the writer, and the failed member comes back.
#[test]
fn a_member_that_may_have_been_replaced_does_not_count_again() {
    let lines = [
        "append",
        "down b1",
        "add b1",
        "added b1",
        "add b0",
        "added b0",
        "add b2",
        "added b2",
        "store",
        "lose stored",
        "stored",
        "lose load",
        "loaded",
        "time 350",
        "lose load",
        "loaded",
        "down b3",
        "time 150",
        "up b1",
        "append",
        "maybe add b1",
        "maybe added b1",
        "add b0",
        "added b0",
    ];
    scenario(4, Bug::UnknownIsRefused, &lines);
}
