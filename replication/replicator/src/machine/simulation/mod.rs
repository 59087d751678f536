//! The machine between a log and a remote topic with random faults, in virtual time, with checkers:
//!
//! - nothing is acknowledged that the remote has not stored (at once, for each acknowledgement),
//! - when the faults are over everything arrives, within a bound of time,
//! - exactly the set that is to be sent, each once (peers that deduplicate), in order (peers that do not pass over).
//!
//! Each checker is proven by planted bugs, among them the upstream silent loss.

mod remote;
mod world;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use remote::Kind;
use world::{Faults, Planted, World};

const ENTRIES: u64 = 150;
const CALM_MS: u64 = 6_000;
const LIMIT_MS: u64 = 40_000;

/// What came of one run.
struct Outcome {
    done: bool,
    world: World,
}

fn run(seed: u64, kind: Kind, faults: Faults, planted: Planted) -> Outcome {
    let mut world = World::new(seed, kind, faults, planted, ENTRIES);
    let done = world.run(CALM_MS, LIMIT_MS);
    Outcome { done, world }
}

/// Everything that may go wrong without the remote breaking its word.
fn faults() -> impl Strategy<Value = Faults> {
    let often = prop_oneof![Just(0u64), 1u64..60];
    (often.clone(), 0u64..80, often.clone(), often.clone(), often, 0u64..40).prop_map(
        |(refuse, spell_ms, drop, open, read, latency_ms)| Faults {
            refuse,
            spell_ms,
            drop,
            open: open * 5,
            read,
            crash: 0,
            latency_ms,
        },
    )
}

/// Whether a planted bug is noticed in any of many runs.
fn is_noticed(kind: Kind, faults: Faults, planted: Planted, what: impl Fn(&Outcome) -> bool) -> bool {
    (1..200).any(|seed| what(&run(seed, kind, faults, planted)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Between Meridian regions: every fault, each entry once and in order.
    #[test]
    fn meridian_gets_everything_once_and_in_order(seed in any::<u64>(), faults in faults(), crash in 0u64..3) {
        let outcome = run(seed, Kind::Meridian, Faults { crash, ..faults }, Planted::Nothing);
        prop_assert_eq!(&outcome.world.violations, &Vec::<String>::new());
        prop_assert!(outcome.done, "{:?}", outcome.world.machine.view());
        let (twice, missing, in_order) = outcome.world.compare();
        prop_assert!(twice.is_empty() && missing.is_empty() && in_order, "{twice:?} {missing:?} {in_order}");
    }

    /// A Pulsar peer that refuses single sends and stores what stands behind them: nothing is lost, nothing is there twice.
    #[test]
    fn b012_a_peer_that_stores_behind_a_refused_send_loses_nothing(seed in any::<u64>(), faults in faults()) {
        let faults = Faults { drop: 0, ..faults };
        let outcome = run(seed, Kind::Pulsar, faults, Planted::Nothing);
        prop_assert_eq!(&outcome.world.violations, &Vec::<String>::new());
        prop_assert!(outcome.done, "{:?}", outcome.world.machine.view());
        let (twice, missing, _) = outcome.world.compare();
        prop_assert!(twice.is_empty() && missing.is_empty(), "{twice:?} {missing:?}");
    }

    /// A Pulsar peer whose connections are cut: everything once and in order.
    #[test]
    fn pulsar_gets_everything_over_a_flapping_connection(seed in any::<u64>(), faults in faults(), crash in 0u64..3) {
        let outcome = run(seed, Kind::Pulsar, Faults { refuse: 0, crash, ..faults }, Planted::Nothing);
        prop_assert_eq!(&outcome.world.violations, &Vec::<String>::new());
        prop_assert!(outcome.done, "{:?}", outcome.world.machine.view());
        let (twice, missing, in_order) = outcome.world.compare();
        prop_assert!(twice.is_empty() && missing.is_empty() && in_order, "{twice:?} {missing:?} {in_order}");
    }

    /// Peers without deduplication: at least once.
    #[test]
    fn peers_without_memory_get_everything(seed in any::<u64>(), faults in faults(), crash in 0u64..3, old in any::<bool>()) {
        let kind = if old { Kind::Old } else { Kind::Forgetful };
        let outcome = run(seed, kind, Faults { crash, ..faults }, Planted::Nothing);
        prop_assert_eq!(&outcome.world.violations, &Vec::<String>::new());
        prop_assert!(outcome.done, "{:?}", outcome.world.machine.view());
        let (_, missing, _) = outcome.world.compare();
        prop_assert!(missing.is_empty(), "{missing:?}");
    }
}

/// What the peer can't tell yet is not refused: an acknowledgement of what stands behind it must not say so after a crash.
#[test]
fn what_pulsar_cant_tell_before_a_crash_is_not_sent_under_another_name() {
    let faults = Faults { read: 10, crash: 2, latency_ms: 2, ..Faults::default() };
    let outcome = run(10_651_764_030_789_973_164, Kind::Pulsar, faults, Planted::Nothing);
    assert!(outcome.done && outcome.world.violations.is_empty());
    assert_eq!(outcome.world.compare(), (Vec::new(), Vec::new(), true));
    assert_eq!(outcome.world.machine.view().counters.unproven_duplicates, 0);
}

#[test]
fn the_worlds_faults_do_happen() {
    let faults = Faults { refuse: 20, spell_ms: 30, drop: 20, open: 100, read: 50, crash: 2, latency_ms: 20 };
    let outcome = run(7, Kind::Meridian, faults, Planted::Nothing);
    let counters = outcome.world.machine.view().counters;
    assert!(outcome.done && outcome.world.refusals > 10 && outcome.world.drops > 5, "{counters:?}");
}

/// The upstream fault: head of the queue refused, later entries stored, rewind, *duplicate* believed.
#[test]
fn planted_the_silent_loss_is_noticed() {
    let faults = Faults { refuse: 30, spell_ms: 3, latency_ms: 10, ..Faults::default() };
    let lost = |outcome: &Outcome| !outcome.world.violations.is_empty() && !outcome.world.compare().1.is_empty();
    assert!(is_noticed(Kind::Pulsar, faults, Planted::BelievesDuplicates, lost));
}

#[test]
fn planted_receipts_of_an_old_session_are_noticed() {
    let faults = Faults { drop: 40, latency_ms: 30, ..Faults::default() };
    let acked = |outcome: &Outcome| !outcome.world.violations.is_empty();
    assert!(is_noticed(Kind::Old, faults, Planted::OldReceipts, acked));
}

#[test]
fn planted_answers_before_storing_are_noticed() {
    let faults = Faults { drop: 20, latency_ms: 10, ..Faults::default() };
    let acked = |outcome: &Outcome| !outcome.world.violations.is_empty();
    assert!(is_noticed(Kind::Forgetful, faults, Planted::AnswersTooEarly, acked));
}

#[test]
fn planted_reordering_is_noticed() {
    let faults = Faults { latency_ms: 10, ..Faults::default() };
    assert!(is_noticed(Kind::Forgetful, faults, Planted::Reorders, |outcome| !outcome.world.compare().2));
}

#[test]
fn planted_forgotten_marks_are_noticed() {
    let faults = Faults { drop: 40, latency_ms: 30, ..Faults::default() };
    assert!(is_noticed(Kind::Meridian, faults, Planted::Forgets, |outcome| !outcome.world.compare().0.is_empty()));
}

/// A read of before a rewind that is taken for one after it leaves entries out (B005).
#[test]
fn planted_reads_of_before_a_rewind_are_noticed() {
    let faults = Faults { refuse: 30, spell_ms: 10, drop: 40, latency_ms: 40, ..Faults::default() };
    let stuck =
        |outcome: &Outcome| !outcome.done || !outcome.world.compare().1.is_empty() || !outcome.world.compare().2;
    assert!(is_noticed(Kind::Meridian, faults, Planted::OldReads, stuck));
}
