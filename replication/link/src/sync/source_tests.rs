//! Scripts for the sending side.

use super::*;

fn key(name: &str) -> String {
    name.to_owned()
}

fn send(id: u64, keys: &[&str]) -> Effect {
    Effect::Send { id, keys: keys.iter().map(|name| key(name)).collect() }
}

fn applied(id: u64, outcomes: &[(&str, Applied)]) -> Event {
    Event::Applied { id, outcomes: outcomes.iter().map(|(name, outcome)| (key(name), outcome.clone())).collect() }
}

#[test]
fn golden_round() {
    let mut source = Source::new(1000, 0);
    assert_eq!(source.on(Event::Tick, 0), [Effect::Digests { round: 1 }]);
    let differ = Event::Differ { round: 1, buckets: vec![3, 9] };
    assert_eq!(source.on(differ, 1), [Effect::List { round: 1, bucket: 3 }]);
    assert_eq!(source.on(Event::Listed { messages: 1 }, 1), []);
    let wanted = |keys: &[(&str, u8)]| Event::Wanted {
        round: 1,
        keys: keys.iter().map(|(name, rank)| (key(name), *rank)).collect(),
    };
    assert_eq!(source.on(wanted(&[("n", 1)]), 2), [Effect::List { round: 1, bucket: 9 }]);
    assert_eq!(source.on(Event::Listed { messages: 1 }, 2), []);
    // Y5: the tenant was wished for last and goes first.
    assert_eq!(source.on(wanted(&[("t", 0)]), 3), [send(1, &["t", "n"])]);
    let ended = source.on(applied(1, &[("t", Applied::Taken), ("n", Applied::Older)]), 4);
    assert_eq!(ended, [Effect::RoundEnded { began_ms: 0, converged: true }]);
    assert_eq!(source.on(Event::Tick, 1003), []);
    assert_eq!(source.on(Event::Tick, 1004), [Effect::Digests { round: 2 }]);
    assert_eq!(source.stats().taken, 1);
}

#[test]
fn equal_digests_end_a_round_at_once() {
    let mut source = Source::new(1000, 0);
    source.on(Event::Tick, 0);
    let ended = source.on(Event::Differ { round: 1, buckets: vec![] }, 5);
    assert_eq!(ended, [Effect::RoundEnded { began_ms: 0, converged: true }]);
}

#[test]
fn a_change_goes_out_at_once_and_again_after_its_answer() {
    let mut source = Source::new(1000, 0);
    source.on(Event::Tick, 0);
    let changed = || Event::Changed { key: key("a"), rank: 1 };
    assert_eq!(source.on(changed(), 1), [send(1, &["a"])]);
    assert_eq!(source.on(changed(), 2), [], "it is on its way");
    assert_eq!(source.on(changed(), 2), [], "and waits once");
    assert_eq!(source.on(applied(1, &[("a", Applied::Taken)]), 3), [send(2, &["a"])]);
}

#[test]
fn what_is_not_possible_yet_is_repeated_then_left_to_the_next_round() {
    let mut source = Source::new(100_000, 0);
    source.on(Event::Tick, 0);
    source.on(Event::Differ { round: 1, buckets: vec![] }, 0);
    source.on(Event::Changed { key: key("n"), rank: 1 }, 0);
    let (mut now_ms, mut sent) = (0, 1);
    while sent <= u64::from(LATER_TRIES) {
        source.on(applied(sent, &[("n", Applied::Later("no tenant".into()))]), now_ms);
        now_ms += LATER_MS * 16;
        sent += 1;
        assert_eq!(source.on(Event::Tick, now_ms), [send(sent, &["n"])]);
    }
    source.on(applied(sent, &[("n", Applied::Later("no tenant".into()))]), now_ms);
    assert_eq!(source.on(Event::Tick, now_ms + LATER_MS * 16), []);
    assert_eq!(source.stats().refused, BTreeMap::from([(key("n"), key("no tenant"))]));
}

#[test]
fn a_round_with_a_refusal_has_not_converged() {
    let mut source = Source::new(1000, 0);
    source.on(Event::Tick, 0);
    source.on(Event::Differ { round: 1, buckets: vec![1] }, 0);
    source.on(Event::Listed { messages: 1 }, 0);
    source.on(Event::Wanted { round: 1, keys: vec![(key("a"), 0)] }, 0);
    let ended = source.on(applied(1, &[("a", Applied::Refused("clock".into()))]), 7);
    assert_eq!(ended, [Effect::RoundEnded { began_ms: 0, converged: false }]);
}

#[test]
fn a_round_does_not_wait_for_what_the_next_one_may_bring() {
    let mut source = Source::new(100_000, 0);
    source.on(Event::Tick, 0);
    source.on(Event::Differ { round: 1, buckets: vec![1] }, 0);
    source.on(Event::Listed { messages: 1 }, 0);
    source.on(Event::Wanted { round: 1, keys: vec![(key("topic"), 2)] }, 0);
    assert_eq!(source.on(applied(1, &[("topic", Applied::Later("no namespace".into()))]), 1), []);
    let ended = source.on(Event::Everything, 2);
    assert_eq!(ended, [Effect::RoundEnded { began_ms: 0, converged: false }, Effect::Digests { round: 2 }]);
}

#[test]
fn more_than_may_wait_is_left_to_a_round() {
    let mut source = Source::new(1_000_000, 0);
    source.on(Event::Tick, 0);
    source.on(Event::Differ { round: 1, buckets: vec![] }, 0);
    let mut effects = Vec::new();
    for number in 0..=MAX_QUEUED + MAX_IN_FLIGHT {
        effects = source.on(Event::Changed { key: format!("k{number}"), rank: 2 }, 1);
    }
    let stats = source.stats();
    assert_eq!((stats.overflows, stats.queued, stats.in_flight), (1, 1, MAX_IN_FLIGHT as u64));
    assert_eq!(effects, [Effect::Digests { round: 2 }]);
}

#[test]
fn silence_ends_the_connection_and_so_does_an_answer_nobody_asked_for() {
    let mut source = Source::new(1000, 0);
    source.on(Event::Tick, 0);
    assert_eq!(source.on(Event::Tick, ANSWER_MS), []);
    assert!(matches!(source.on(Event::Tick, ANSWER_MS + 1)[..], [Effect::Fail(_)]));
    let mut source = Source::new(1000, 0);
    source.on(Event::Tick, 0);
    assert!(matches!(source.on(Event::Differ { round: 9, buckets: vec![] }, 0)[..], [Effect::Fail(_)]));
    assert!(matches!(source.on(applied(4, &[]), 0)[..], [Effect::Fail(_)]));
}
