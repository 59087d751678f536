//! Cursors from the outside: what is acked stays acked over crashes, closes and seeks, at any size and at bounded cost.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_managed_ledger::testing::{TestLog, TestRegion, request};
use meridian_managed_ledger::{
    AckPosition, Cursor, CursorOptions, InitialPosition, LogError, LogSettings, ManagedLedger,
};
use meridian_types::{LedgerId, Position};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "public/default/persistent/orders";

fn settings() -> LogSettings {
    LogSettings { retention_ms: None, retention_bytes: None, ..LogSettings::default() }
}

fn durable() -> CursorOptions {
    CursorOptions { durable: true, ..CursorOptions::default() }
}

fn whole(position: Position) -> AckPosition {
    AckPosition { position, unacked_batch_indexes: None, messages: 1 }
}

fn part(position: Position, words: &[u64], messages: u32) -> AckPosition {
    AckPosition { position, unacked_batch_indexes: Some(words.to_vec()), messages }
}

async fn opened(region: &TestRegion) -> (TestLog, Arc<Cursor>) {
    let t = region.open(NAME, settings()).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    (t, cursor)
}

fn unacked(log: &ManagedLedger, cursor: &Cursor) -> Vec<Position> {
    let (mut at, mut all) = (cursor.next_unacked(Position::EARLIEST), Vec::new());
    while at <= log.last_confirmed() {
        all.push(at);
        at = cursor.next_unacked(at.next_in_ledger());
    }
    all
}

#[tokio::test]
async fn cursors_begin_where_they_are_told() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    let before = t.log.open_cursor("before", InitialPosition::Latest, durable()).await.unwrap();
    t.append(0, 4).await;
    let earliest = t.log.open_cursor("earliest", InitialPosition::Earliest, durable()).await.unwrap();
    let latest = t.log.open_cursor("latest", InitialPosition::Latest, durable()).await.unwrap();
    let at = t.log.open_cursor("at", InitialPosition::At(Position::new(0, 3)), durable()).await.unwrap();
    let backlogs = |cursors: [&Cursor; 4]| cursors.map(Cursor::backlog_entries);
    assert_eq!(backlogs([&before, &earliest, &latest, &at]), [4, 4, 0, 1]);
    assert_eq!(latest.read_start(), Position::new(0, 4));
    drop(t);
    let again = region.open(NAME, settings()).await;
    let named = ["before", "earliest", "latest", "at"].map(|name| again.log.cursor(name).unwrap());
    assert_eq!(backlogs([&named[0], &named[1], &named[2], &named[3]]), [4, 4, 0, 1]);
    assert_eq!(region.ledgers.ids("cursor"), [], "no cursor ledger before something is acked");
}

#[tokio::test]
async fn persisted_acks_survive_a_crash_exactly() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 10).await;
    cursor.ack(&[whole(at[0]), whole(at[3]), whole(at[7]), part(at[5], &[0b0101], 4)]);
    cursor.persisted().await.unwrap();
    cursor.ack(&[whole(at[1]), part(at[5], &[0b0110], 4), part(at[8], &[0b1], 4)]);
    cursor.persisted().await.unwrap();
    assert_eq!(region.ledgers.ids("cursor").len(), 1);
    assert_eq!(region.ledgers.entries(region.ledgers.ids("cursor")[0]), 2, "a snapshot and a delta");
    cursor.ack(&[whole(at[9])]);
    assert!(cursor.info().dirty);
    drop((t, cursor));

    let (t, cursor) = opened(&region).await;
    assert_eq!(cursor.mark_delete(), at[1]);
    assert_eq!(unacked(&t.log, &cursor), [at[2], at[4], at[5], at[6], at[8], at[9]]);
    assert_eq!(cursor.unacked_batch_indexes(at[5]), Some(vec![0b0100]));
    assert_eq!(cursor.unacked_batch_indexes(at[8]), Some(vec![0b1]));
    let outcome = cursor.ack(&[part(at[5], &[0b1011], 4), part(at[8], &[0], 4)]);
    assert_eq!((outcome.entries, outcome.messages, outcome.moved), (2, 2, false));
    cursor.persisted().await.unwrap();
    drop((t, cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!(unacked(&t.log, &cursor), [at[2], at[4], at[6], at[9]]);
    assert_eq!(region.ledgers.ids("cursor").len(), 1, "the old ledger is gone");
}

#[tokio::test]
async fn cumulative_acks_take_the_named_part_of_the_last_batch() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 5).await;
    let outcome = cursor.ack_cumulative(part(at[2], &[0b1100], 4));
    assert_eq!((outcome.mark_delete, outcome.entries), (at[1], 2));
    assert_eq!(cursor.unacked_batch_indexes(at[2]), Some(vec![0b1100]));
    assert_eq!(cursor.ack_cumulative(part(at[4].next_in_ledger(), &[1], 4)).beyond, 1);
    assert_eq!(cursor.mark_delete(), at[1]);
    assert_eq!(cursor.ack_cumulative(whole(at[3])).entries, 2);
    assert_eq!(cursor.ack(&[whole(Position::new(9, 0))]).beyond, 1);
    assert_eq!(cursor.backlog_entries(), 1);
    assert_eq!(t.log.entries_between(cursor.read_start(), t.log.last_confirmed()), 1);
}

#[tokio::test]
async fn seeks_are_durable_before_they_answer() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 10).await;
    cursor.ack_cumulative(whole(at[8]));
    cursor.persisted().await.unwrap();
    cursor.reset(at[4], Some(vec![0b10])).await.unwrap();
    drop((t, cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!(unacked(&t.log, &cursor), at[4..]);
    assert_eq!(cursor.unacked_batch_indexes(at[4]), Some(vec![0b10]));
    cursor.reset(Position::LATEST, None).await.unwrap();
    assert_eq!((cursor.backlog_entries(), cursor.mark_delete()), (0, at[9]));
    cursor.reset(Position::EARLIEST, None).await.unwrap();
    drop((t, cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!((cursor.backlog_entries(), cursor.read_start()), (10, at[0]));
    assert_eq!(cursor.nth_unacked(3), Some(at[2]));
    assert_eq!(cursor.skip(3).await.unwrap().entries, 3);
    assert_eq!((cursor.read_start(), cursor.nth_unacked(8)), (at[3], None));
    drop(t);
}

#[tokio::test]
async fn a_clean_close_puts_small_states_into_their_records() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 10).await;
    cursor.ack(&[whole(at[0]), whole(at[4])]);
    cursor.persisted().await.unwrap();
    cursor.ack(&[part(at[6], &[0b1], 2)]);
    t.log.close().await.unwrap();
    assert_eq!(region.ledgers.ids("cursor"), []);
    assert!(matches!(cursor.persisted().await, Ok(()) | Err(LogError::Closed(_))));
    let (t, cursor) = opened(&region).await;
    assert_eq!(unacked(&t.log, &cursor).len(), 8);
    assert_eq!(cursor.unacked_batch_indexes(at[6]), Some(vec![1]));
    t.log.close().await.unwrap();
}

/// Field report B083: nothing acked is dropped, however many holes there are.
#[tokio::test(flavor = "multi_thread")]
async fn b083_a_million_holes_survive_crash_and_close() {
    const ENTRIES: u64 = 2_000_000;
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    t.log.set_settings(LogSettings { max_entries_per_ledger: u64::MAX, ..settings() });
    for first in (0..ENTRIES).step_by(10_000) {
        t.log.append((first..first + 10_000).map(request).collect());
    }
    t.sink.answered(ENTRIES as usize).await;
    // Every second one, in a scattered order, so that bitmaps and deltas meet every case.
    let mut acks: Vec<AckPosition> = (0..ENTRIES / 2).map(|n| whole(Position::new(0, n as i64 * 2 + 1))).collect();
    acks.rotate_left(333_333);
    for (round, some) in acks.chunks(100_000).enumerate() {
        assert_eq!(cursor.ack(some).entries, some.len() as u64);
        if round % 2 == 0 {
            cursor.persisted().await.unwrap();
        }
    }
    cursor.persisted().await.unwrap();
    let stored: usize = region.ledgers.ids("cursor").iter().map(|id| region.ledgers.bytes(*id)).sum();
    assert!(stored < 4_000_000, "{stored} bytes for a million acks");
    drop((t, cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!((cursor.backlog_entries(), cursor.info().acked_range_count), (ENTRIES / 2, 1_000_000));
    t.log.close().await.unwrap();
    drop((t, cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!((cursor.backlog_entries(), cursor.info().acked_ranges.len()), (ENTRIES / 2, 1000));
    assert!((0..ENTRIES as i64).step_by(999).all(|n| cursor.is_acked(Position::new(0, n)) == (n % 2 == 1)));
    drop(t);
}

#[tokio::test]
async fn acks_during_a_persist_join_the_next_one() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 200).await;
    cursor.ack(&[whole(at[0])]);
    cursor.persisted().await.unwrap();
    let ledger = region.ledgers.ids("cursor")[0];
    region.ledgers.hold();
    let waits: Vec<_> = (1..200)
        .map(|n| {
            cursor.ack(&[whole(at[n])]);
            let cursor = cursor.clone();
            tokio::spawn(async move { cursor.persisted().await })
        })
        .collect();
    while region.ledgers.entries(ledger) < 2 {
        tokio::task::yield_now().await;
    }
    region.ledgers.release();
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
    assert!(region.ledgers.entries(ledger) <= 4, "199 waits, {} entries", region.ledgers.entries(ledger));
    assert_eq!(cursor.persisted_mark_delete(), at[199]);
    drop(t);
}

#[tokio::test]
async fn ticks_persist_what_nobody_waits_for_and_idle_cursors_cost_nothing() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 3).await;
    for n in 0..500 {
        t.log.open_cursor(&format!("idle-{n}"), InitialPosition::Earliest, durable()).await.unwrap();
    }
    t.broker.tick(region.advance(1000)).await;
    assert_eq!(region.ledgers.ids("cursor"), []);
    cursor.ack(&[whole(at[0])]);
    t.broker.tick(region.advance(1000)).await;
    while cursor.info().dirty {
        tokio::task::yield_now().await;
    }
    assert_eq!(cursor.persisted_mark_delete(), at[0]);
    assert_eq!(region.ledgers.ids("cursor").len(), 1);
    // At most one persist per interval.
    cursor.ack(&[whole(at[1])]);
    t.broker.tick(region.advance(10)).await;
    t.broker.tick(region.advance(10)).await;
    assert!(cursor.info().dirty);
    t.broker.tick(region.advance(1000)).await;
    while cursor.info().dirty {
        tokio::task::yield_now().await;
    }
    assert_eq!(cursor.info().persisted_mark_delete, at[1]);
}

#[tokio::test]
async fn a_cursor_ledger_that_fails_is_replaced() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 5).await;
    cursor.ack(&[whole(at[0])]);
    cursor.persisted().await.unwrap();
    region.ledgers.end_writer(region.ledgers.ids("cursor")[0], 0);
    cursor.ack(&[whole(at[1])]);
    assert!(cursor.persisted().await.is_err(), "who waits is told");
    cursor.persisted().await.unwrap();
    assert_eq!(cursor.persisted_mark_delete(), at[1]);
    drop((t, cursor));
    let (_t, cursor) = opened(&region).await;
    assert_eq!(cursor.mark_delete(), at[1]);
}

/// Field report B090: a lost cursor ledger brings entries back, it does not keep the topic from loading.
#[tokio::test]
async fn b090_a_lost_cursor_ledger_rewinds_to_the_record() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 5).await;
    cursor.ack(&[whole(at[0])]);
    cursor.persisted().await.unwrap();
    cursor.ack(&[whole(at[1])]);
    cursor.persisted().await.unwrap();
    drop((t, cursor));
    region.ledgers.lose(region.ledgers.ids("cursor")[0]);
    let (t, cursor) = opened(&region).await;
    assert_eq!((cursor.mark_delete(), t.broker.cursors_rewound()), (at[0], 1));
}

#[tokio::test]
async fn a_stale_owner_cannot_bring_an_old_state_back() {
    let region = TestRegion::default();
    let (old, old_cursor) = opened(&region).await;
    let at = old.append(0, 5).await;
    old_cursor.ack(&[whole(at[0])]);
    old_cursor.persisted().await.unwrap();
    old_cursor.ack(&[whole(at[1])]);
    let (new, new_cursor) = opened(&region).await;
    assert!(old_cursor.persisted().await.is_err());
    assert!(old_cursor.set_properties([("a".to_owned(), "b".to_owned())].into()).await.is_err());
    assert!(old.log.delete_cursor("s").await.is_err());
    new_cursor.ack(&[whole(at[2])]);
    new_cursor.persisted().await.unwrap();
    drop((old, old_cursor, new, new_cursor));
    let (t, cursor) = opened(&region).await;
    assert_eq!(unacked(&t.log, &cursor), [at[1], at[3], at[4]]);
}

#[tokio::test]
async fn deleted_cursors_stay_deleted_and_properties_stay() {
    let region = TestRegion::default();
    let (t, cursor) = opened(&region).await;
    let at = t.append(0, 5).await;
    let properties: BTreeMap<String, String> = [("k".to_owned(), "v".to_owned())].into();
    cursor.set_properties(properties.clone()).await.unwrap();
    cursor.ack(&[whole(at[3])]);
    cursor.persisted().await.unwrap();
    let gone = t.log.open_cursor("gone", InitialPosition::Earliest, durable()).await.unwrap();
    gone.ack(&[whole(at[0])]);
    gone.persisted().await.unwrap();
    t.log.delete_cursor("gone").await.unwrap();
    assert_eq!(t.log.delete_cursor("gone").await, Err(LogError::NoSuchCursor("gone".into())));
    assert_eq!(region.ledgers.ids("cursor").len(), 1);
    gone.ack(&[whole(at[1])]);
    assert!(gone.persisted().await.is_err());
    drop((t, cursor, gone));
    let (t, cursor) = opened(&region).await;
    assert!(t.log.cursor("gone").is_none());
    assert_eq!((cursor.properties(), cursor.is_acked(at[3])), (properties, true));
}

#[derive(Debug, Clone)]
enum Step {
    Append(u64),
    Roll,
    Ack(usize),
    Part(usize, u64),
    UpTo(usize),
    Seek(usize),
    Persist,
    Crash,
    Close,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1u64..6).prop_map(Step::Append),
        1 => Just(Step::Roll),
        6 => any::<usize>().prop_map(Step::Ack),
        3 => (any::<usize>(), 0u64..8).prop_map(|(n, w)| Step::Part(n, w)),
        1 => any::<usize>().prop_map(Step::UpTo),
        1 => any::<usize>().prop_map(Step::Seek),
        3 => Just(Step::Persist),
        2 => Just(Step::Crash),
        1 => Just(Step::Close),
    ]
}

/// What is unacked, as a plain map; the copy is what was persisted last.
#[derive(Clone, Default)]
struct Model {
    all: Vec<Position>,
    unacked: BTreeMap<Position, u64>,
}

impl Model {
    fn pick(&self, n: usize) -> Option<Position> {
        (!self.all.is_empty()).then(|| self.all[n % self.all.len()])
    }

    fn add(&mut self, new: &[Position]) {
        self.all.extend(new);
        self.unacked.extend(new.iter().map(|at| (*at, 0b111)));
    }
}

async fn run(script: Vec<Step>) {
    let region = TestRegion::default();
    let (mut t, mut cursor) = opened(&region).await;
    let (mut now, mut stored) = (Model::default(), Model::default());
    let mut token = 0;
    for step in script {
        match step {
            Step::Append(count) => {
                let new = t.append(token, count).await;
                token += count;
                now.add(&new);
                stored.add(&new);
            }
            Step::Roll => t.log.roll().await,
            Step::Ack(n) => {
                let Some(at) = now.pick(n) else { continue };
                cursor.ack(&[AckPosition { messages: 3, ..whole(at) }]);
                now.unacked.remove(&at);
            }
            Step::Part(n, words) => {
                let Some(at) = now.pick(n) else { continue };
                cursor.ack(&[part(at, &[words], 3)]);
                let left = now.unacked.get(&at).map_or(0, |left| left & words);
                now.unacked.insert(at, left);
                now.unacked.retain(|_, left| *left != 0);
            }
            Step::UpTo(n) => {
                let Some(at) = now.pick(n) else { continue };
                cursor.ack_cumulative(whole(at));
                now.unacked = now.unacked.split_off(&at.next_in_ledger());
            }
            Step::Seek(n) => {
                let Some(at) = now.pick(n) else { continue };
                cursor.reset(at, None).await.unwrap();
                now.unacked = now.all.iter().filter(|there| **there >= at).map(|there| (*there, 0b111)).collect();
                stored = now.clone();
            }
            Step::Persist => {
                cursor.persisted().await.unwrap();
                stored = now.clone();
            }
            Step::Crash | Step::Close => {
                if matches!(step, Step::Close) {
                    t.log.close().await.unwrap();
                    stored = now.clone();
                }
                drop((t, cursor));
                (t, cursor) = opened(&region).await;
                now = stored.clone();
            }
        }
        let expected: Vec<Position> = now.unacked.keys().copied().collect();
        assert_eq!(unacked(&t.log, &cursor), expected);
        assert_eq!(cursor.backlog_entries(), expected.len() as u64);
        for (at, left) in &now.unacked {
            assert_eq!(cursor.unacked_batch_indexes(*at).map_or(0b111, |words| words[0]), *left, "{at}");
        }
    }
    assert!(region.ledgers.ids("cursor").len() <= 1);
    assert!(region.ledgers.ids("data").iter().all(|id| *id >= LedgerId(0)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Random acks, seeks, rolls, crashes and closes equal a naive model: what was persisted is there after a crash, exactly,
    /// and nothing else.
    #[test]
    fn equals_a_naive_model_over_crashes(script in proptest::collection::vec(steps(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(script));
    }
}
