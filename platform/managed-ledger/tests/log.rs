//! A log from the outside: order, reopening after crashes, failing ledgers, rolls, trims, reads.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_managed_ledger::testing::{TestRegion, request};
use meridian_managed_ledger::{
    AppendRequest, CacheSettings, CursorOptions, InitialPosition, LogError, LogSettings, ManagedLedger,
};
use meridian_types::{Classify, ErrorClass, LedgerId, Position, RegionId};
use std::sync::Arc;

const NAME: &str = "public/default/persistent/orders";

fn settings() -> LogSettings {
    LogSettings { retention_ms: None, retention_bytes: None, ..LogSettings::default() }
}

fn small_ledgers(entries: u64) -> LogSettings {
    LogSettings { max_entries_per_ledger: entries, min_rollover_ms: 0, ..settings() }
}

fn texts(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|token| token.to_string()).collect()
}

fn durable() -> CursorOptions {
    CursorOptions { durable: true, ..CursorOptions::default() }
}

/// Waits until a condition on the log holds; the test's own limit is the deadline.
async fn until(what: impl Fn() -> bool) {
    let wait = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    let limit = std::time::Duration::from_secs(20);
    tokio::time::timeout(limit, wait).await.expect("condition within 20 s");
}

#[tokio::test]
async fn what_is_appended_is_read_back_with_indexes() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    assert_eq!(t.log.last_confirmed(), Position::EARLIEST);
    assert!(t.log.read(Position::EARLIEST, 10, 1000).await.unwrap().is_empty());
    assert_eq!(region.ledgers.creates(), 0, "an idle log has no ledger");
    let mut batch = request(7);
    batch.messages = 5;
    let marker = AppendRequest { marker: true, messages: 0, ..request(8) };
    t.log.append(vec![batch, marker, request(9)]);
    t.sink.answered(3).await;
    let indexes: Vec<(u64, u64)> = t.sink.appended_so_far().iter().map(|a| (a.token, a.index)).collect();
    assert_eq!(indexes, [(7, 4), (8, 4), (9, 5)]);
    let read = t.log.read(Position::EARLIEST, 10, 1000).await.unwrap();
    assert_eq!(
        read.iter().map(|e| (e.index, e.messages, e.marker)).collect::<Vec<_>>(),
        [(4, 5, false), (4, 0, true), (5, 1, false)]
    );
    assert_eq!(read[2].origin, (RegionId(1), t.log.incarnation(), read[2].position));
    assert_eq!((t.log.next_index(), t.log.info().entries), (6, 3));
}

#[tokio::test]
async fn a_crash_loses_nothing_and_a_new_owner_fences_the_old_one() {
    let region = TestRegion::default();
    let old = region.open(NAME, settings()).await;
    old.append(0, 5).await;
    let new = region.open(NAME, settings()).await;
    assert!(new.log.owner_epoch() > old.log.owner_epoch());
    assert_eq!(new.log.incarnation(), old.log.incarnation());
    assert_eq!(new.payloads(Position::EARLIEST).await.unwrap(), texts(0..5));
    new.append(5, 5).await;
    old.log.append(vec![request(99)]);
    old.sink.answered(6).await;
    assert_eq!(old.sink.failed_so_far()[0].1.class(), ErrorClass::Fenced);
    assert_eq!(new.payloads(Position::EARLIEST).await.unwrap(), texts(0..10));
    assert_eq!(new.log.next_index(), 10);
    drop((old, new));
    let third = region.open(NAME, settings()).await;
    assert_eq!(third.payloads(Position::EARLIEST).await.unwrap(), texts(0..10));
}

#[tokio::test]
async fn a_clean_close_leaves_nothing_to_recover() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    t.append(0, 3).await;
    t.log.close().await.unwrap();
    t.log.close().await.unwrap();
    t.log.append(vec![request(9)]);
    t.sink.answered(4).await;
    let reads = region.ledgers.reads();
    let again = region.open(NAME, settings()).await;
    assert_eq!(region.ledgers.reads(), reads);
    assert_eq!((again.log.next_index(), again.log.last_confirmed()), (3, Position::new(0, 2)));
    again.log.close().await.unwrap();
    let info = again.broker.read_info(NAME).await.unwrap();
    assert_eq!((info.entries, info.next_index), (3, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_appends_are_answered_and_stored_in_one_order() {
    let region = TestRegion::default();
    let t = region.open(NAME, small_ledgers(50)).await;
    let tasks: Vec<_> = (0..8u64)
        .map(|producer| {
            let log: Arc<ManagedLedger> = t.log.clone();
            tokio::spawn(async move {
                for batch in 0..50 {
                    let first = producer * 1000 + batch * 10;
                    log.append((first..first + 10).map(request).collect());
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    t.sink.answered(4000).await;
    let appended = t.sink.appended_so_far();
    assert_eq!(appended.len(), 4000);
    assert!(appended.windows(2).all(|w| w[0].position < w[1].position && w[0].index + 1 == w[1].index));
    let stored = t.payloads(Position::EARLIEST).await.unwrap();
    assert_eq!(stored, appended.iter().map(|a| a.token.to_string()).collect::<Vec<_>>());
    for producer in 0..8 {
        let own: Vec<u64> = appended.iter().map(|a| a.token).filter(|token| token / 1000 == producer).collect();
        assert!(own.is_sorted());
    }
    assert!(t.log.info().ledgers.len() > 10, "rolled under load");
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), stored);
    assert_eq!(again.log.next_index(), 4000);
}

#[tokio::test]
async fn survivors_of_a_failed_ledger_are_answered_and_the_rest_is_appended_again_in_order() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    t.append(0, 2).await;
    region.ledgers.hold();
    t.log.append((2..8).map(request).collect());
    region.ledgers.end_writer(LedgerId(0), 3);
    t.log.append((8..10).map(request).collect());
    until(|| region.ledgers.creates() > 1).await;
    region.ledgers.release();
    t.sink.answered(10).await;
    let places: Vec<(u64, Position)> = t.sink.appended_so_far().iter().map(|a| (a.token, a.position)).collect();
    let expected: Vec<(u64, Position)> = (0..10)
        .map(|token| {
            (token, if token < 5 { Position::new(0, token as i64) } else { Position::new(1, token as i64 - 5) })
        })
        .collect();
    assert_eq!(places, expected);
    assert!(t.sink.failed_so_far().is_empty());
    let read = t.log.read(Position::new(1, 0), 1, 1).await.unwrap();
    assert_eq!((read[0].index, read[0].origin.2), (5, Position::new(1, 0)));
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), texts(0..10));
}

/// The old ledger fails after the log has switched: what stands in the new one was never confirmed and is written again.
#[tokio::test]
async fn a_ledger_that_fails_behind_a_switch_does_not_change_the_order() {
    let region = TestRegion::default();
    let t = region.open(NAME, small_ledgers(10)).await;
    t.append(0, 9).await;
    until(|| region.ledgers.creates() == 2).await;
    region.ledgers.hold();
    for token in 9..16 {
        t.log.append(vec![request(token)]);
        tokio::task::yield_now().await;
    }
    until(|| region.ledgers.entries(LedgerId(1)) > 0).await;
    region.ledgers.end_writer(LedgerId(0), 0);
    until(|| region.ledgers.creates() == 3).await;
    region.ledgers.release();
    t.sink.answered(16).await;
    assert!(t.sink.appended_so_far().iter().map(|a| a.token).eq(0..16));
    assert!(t.sink.appended_so_far().windows(2).all(|w| w[0].position < w[1].position));
    assert_eq!(t.payloads(Position::EARLIEST).await.unwrap(), texts(0..16));
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), texts(0..16));
    assert_eq!(again.log.next_index(), 16);
}

#[tokio::test]
async fn without_room_for_more_appends_are_refused_in_their_turn() {
    let region = TestRegion::default();
    let t = region.open(NAME, LogSettings { max_unconfirmed_bytes: 4, ..settings() }).await;
    t.append(0, 1).await;
    region.ledgers.hold();
    t.log.append((1..5).map(request).collect());
    t.log.append(vec![request(5)]);
    assert_eq!(t.log.info().pending_appends, 5);
    region.ledgers.release();
    t.sink.answered(6).await;
    assert!(matches!(t.sink.failed_so_far()[..], [(5, LogError::Busy { bytes: 4, max_bytes: 4 })]));
    assert_eq!(t.append(6, 1).await, [Position::new(0, 5)]);
}

#[tokio::test]
async fn a_full_ledger_is_replaced_ahead_of_need_and_publishing_never_waits() {
    let region = TestRegion::default();
    let t = region.open(NAME, small_ledgers(4)).await;
    for token in 0..20 {
        t.append(token, 1).await;
    }
    assert!(region.ledgers.creates() >= 4);
    region.ledgers.refuse_creates(true);
    // No new ledger to be had: the current one goes on.
    t.append(20, 30).await;
    assert!(t.sink.failed_so_far().is_empty());
    assert_eq!(t.payloads(Position::EARLIEST).await.unwrap(), texts(0..50));
}

/// The store goes away when the next ledger is ready and the full one is to be closed.
#[tokio::test]
async fn publishing_goes_on_while_a_full_ledger_waits_for_metadata_to_be_closed() {
    let region = TestRegion::default();
    let t = region.open(NAME, small_ledgers(4)).await;
    t.append(0, 1).await;
    region.ledgers.refuse_closes(true);
    for token in 1..20 {
        t.append(token, 1).await;
    }
    until(|| region.ledgers.refused_closes() >= 3).await;
    t.append(20, 10).await;
    assert!(t.sink.failed_so_far().is_empty());
    region.ledgers.refuse_closes(false);
    t.append(30, 10).await;
    t.log.close().await.unwrap();
    let again = region.open(NAME, small_ledgers(4)).await;
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), texts(0..40));
}

#[tokio::test]
async fn ledgers_roll_by_age_without_traffic_and_the_log_is_trimmed_to_nothing() {
    let region = TestRegion::default();
    let settings = LogSettings { max_rollover_ms: 5000, ..LogSettings::default() };
    let t = region.open(NAME, settings).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    t.append(0, 3).await;
    for _ in 0..7 {
        t.broker.tick(region.advance(1000)).await;
    }
    until(|| t.log.info().ledgers[0].closed_ms.is_some()).await;
    cursor.clear_backlog().await.unwrap();
    cursor.persisted().await.unwrap();
    until(|| {
        let now_ms = region.advance(1000);
        let (broker, log) = (t.broker.clone(), t.log.clone());
        tokio::spawn(async move { broker.tick(now_ms).await });
        log.info().ledgers.is_empty()
    })
    .await;
    until(|| region.ledgers.ids("data").is_empty()).await;
    assert_eq!(t.log.last_confirmed(), Position::new(0, 2));
    assert_eq!(cursor.backlog_entries(), 0);
    drop((t, cursor));
    let again = region.open(NAME, LogSettings::default()).await;
    assert_eq!((again.log.last_confirmed(), again.log.next_index()), (Position::new(0, 2), 3));
    again.append(3, 1).await;
    let cursor = again.log.cursor("s").unwrap();
    assert_eq!((cursor.backlog_entries(), again.payloads(cursor.read_start()).await.unwrap()), (1, texts(3..4)));
}

#[tokio::test]
async fn trimming_stops_at_durable_cursors_and_ignores_others() {
    let region = TestRegion::default();
    let t =
        region.open(NAME, LogSettings { min_rollover_ms: 0, max_entries_per_ledger: 10, ..Default::default() }).await;
    let durable_cursor = t.log.open_cursor("d", InitialPosition::Earliest, durable()).await.unwrap();
    let reader = t.log.open_cursor("r", InitialPosition::Earliest, CursorOptions::default()).await.unwrap();
    for token in 0..60 {
        t.append(token, 1).await;
    }
    t.log.trim(region.now_ms()).await.unwrap();
    assert_eq!(t.log.info().entries, 60);
    let all = t.log.read(Position::EARLIEST, 100, 1 << 20).await.unwrap();
    let ack =
        |at: Position| meridian_managed_ledger::AckPosition { position: at, unacked_batch_indexes: None, messages: 1 };
    durable_cursor.ack_cumulative(ack(all[34].position));
    t.log.trim(region.now_ms()).await.unwrap();
    assert_eq!(t.log.info().entries, 60, "not persisted yet");
    durable_cursor.persisted().await.unwrap();
    t.log.trim(region.now_ms()).await.unwrap();
    let kept = t.log.info().entries;
    assert!((25..=45).contains(&kept), "{kept}");
    assert_eq!((durable_cursor.backlog_entries(), reader.backlog_entries()), (25, kept));
    assert_eq!(reader.read_start(), t.log.first_position());
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!((again.log.info().entries, again.log.next_index()), (kept, 60));
    assert_eq!(again.log.cursor("d").unwrap().backlog_entries(), 25);
    assert!(again.log.cursor("r").is_none());
}

#[tokio::test]
async fn truncate_drops_everything_also_without_a_new_ledger() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    t.append(0, 5).await;
    cursor.set_properties([("k".to_owned(), "v".to_owned())].into()).await.unwrap();
    region.ledgers.refuse_creates(true);
    cursor.clear_backlog().await.unwrap();
    // B101: deleting needs no writable storage. The cursor's state goes where it can.
    let outcome = t.log.truncate().await;
    region.ledgers.refuse_creates(false);
    if outcome.is_err() {
        t.log.truncate().await.unwrap();
    }
    assert!(t.log.info().ledgers.is_empty() && region.ledgers.ids("data").is_empty());
    t.append(5, 1).await;
    assert_eq!(t.payloads(Position::EARLIEST).await.unwrap(), texts(5..6));
    assert_eq!(cursor.backlog_entries(), 1);
}

#[tokio::test]
async fn a_long_list_of_ledgers_loads() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    for token in 0..300 {
        t.append(token, 1).await;
        t.log.roll().await;
    }
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.log.info().ledgers.len(), 300);
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), texts(0..300));
    let cursor = again.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    again.append(300, 1).await;
    let at = again.log.read(Position::EARLIEST, 1000, 1 << 20).await.unwrap();
    assert_eq!(at.len(), 1, "one read gives entries of one ledger");
    cursor.skip(250).await.unwrap();
    cursor.persisted().await.unwrap();
    again.log.set_settings(LogSettings::default());
    again.log.trim(region.now_ms()).await.unwrap();
    drop((again, cursor));
    let third = region.open(NAME, settings()).await;
    assert_eq!(third.payloads(Position::EARLIEST).await.unwrap(), texts(250..301));
}

#[tokio::test]
async fn terminated_logs_stay_terminated() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    t.append(0, 3).await;
    assert_eq!(t.log.terminate().await, Ok(Position::new(0, 2)));
    assert!(t.log.is_terminated());
    t.log.append(vec![request(3)]);
    t.sink.answered(4).await;
    assert_eq!(t.sink.failed_so_far(), [(3, LogError::Terminated(Position::new(0, 2)))]);
    drop(t);
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.log.info().terminated, Some(Position::new(0, 2)));
    assert_eq!(again.payloads(Position::EARLIEST).await.unwrap(), texts(0..3));
}

#[tokio::test]
async fn deleted_logs_leave_nothing_and_come_back_as_others() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    t.append(0, 3).await;
    cursor.skip(1).await.unwrap();
    cursor.persisted().await.unwrap();
    assert_eq!(region.ledgers.ids("cursor").len(), 1);
    let first_life = t.log.incarnation();
    assert_eq!(t.broker.list("public/default/").await.unwrap(), [NAME]);
    t.broker.delete(NAME).await.unwrap();
    assert!(region.ledgers.ids("data").is_empty() && region.ledgers.ids("cursor").is_empty());
    assert!(region.metadata.scan("ml/").await.unwrap().is_empty());
    assert_eq!(t.broker.delete(NAME).await, Err(LogError::NoSuchLog(NAME.into())));
    region.advance(1);
    let again = region.open(NAME, settings()).await;
    assert_ne!(again.log.incarnation(), first_life);
    assert!(
        again.log.cursor("s").is_none() && !again.payloads(Position::EARLIEST).await.unwrap().contains(&"0".into())
    );
}

#[tokio::test]
async fn entries_are_found_by_time() {
    let region = TestRegion::default();
    let t = region.open(NAME, small_ledgers(7)).await;
    for token in 0..40 {
        region.advance(10);
        t.append(token, 1).await;
    }
    let start = region.now_ms() - 390;
    let time_of = |entry: &meridian_managed_ledger::LogEntry| entry.broker_time_ms;
    let all = t.log.read(Position::EARLIEST, 1, 1).await.unwrap();
    assert_eq!(t.log.find_by_time(0, &time_of).await.unwrap(), all[0].position);
    for token in [0u64, 1, 13, 39] {
        for offset in [0, 5] {
            let at = t.log.find_by_time(start + token * 10 - offset, &time_of).await.unwrap();
            let found = t.log.read_entry(at).await.unwrap();
            assert_eq!(found.payload, token.to_string(), "{offset}");
        }
    }
    let end = t.log.find_by_time(region.now_ms() + 1, &time_of).await.unwrap();
    assert_eq!(end, t.log.last_confirmed().next_in_ledger());
}

#[tokio::test]
async fn readers_in_step_cost_one_storage_read_and_never_evict_the_tail() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    t.append(0, 1000).await;
    drop(t);
    let caches = CacheSettings { read_ahead_entries: 250, catch_up_bytes: 1 << 20, ..CacheSettings::default() };
    let broker = region.broker_with(caches);
    let sink = Arc::new(meridian_managed_ledger::testing::RecordingSink::default());
    let log = broker.open(NAME, settings(), sink.clone()).await.unwrap();
    let _cursor = log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    log.append((1000..1010).map(request).collect());
    sink.answered(10).await;
    let before = region.ledgers.reads();
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let log = log.clone();
            tokio::spawn(async move {
                let (mut next, mut count) = (Position::EARLIEST, 0);
                while count < 1000 {
                    let read = log.read(next, 50, 1 << 20).await.unwrap();
                    next = read.last().unwrap().position.next_in_ledger();
                    count += read.len();
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(region.ledgers.reads() - before, 4);
    let tail = log.try_read_cached(Position::new(1, 0), 100, 1 << 20).unwrap();
    assert_eq!(tail.len(), 10);
    broker.tick(region.advance(60_000)).await;
    assert_eq!((broker.cache_stats().tail_bytes, broker.cache_stats().catch_up_bytes), (0, 0));
    assert!(log.try_read_cached(Position::new(1, 0), 100, 1 << 20).is_none());
}

/// Field report B090: entries that every replica lost fail their readers, or are passed over and counted if the operator
/// says so; every cursor passes them.
#[tokio::test]
async fn b090_lost_entries_are_skipped_only_when_told() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    t.append(0, 6).await;
    t.log.roll().await;
    t.broker.tick(region.advance(60_000)).await;
    for entry in [2, 3] {
        region.ledgers.lose_entry(Position::new(0, entry), true);
    }
    assert_eq!(t.log.read(Position::new(0, 0), 10, 1000).await.unwrap().len(), 2);
    let strict = t.log.read(Position::new(0, 2), 10, 1000).await.unwrap_err();
    assert_eq!(strict.class(), ErrorClass::Corrupt);
    t.log.set_settings(LogSettings { skip_unreadable: true, ..settings() });
    let read = t.log.read(Position::new(0, 2), 10, 1000).await.unwrap();
    assert_eq!(read.iter().map(|entry| entry.position.entry_id.0).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(t.broker.entries_skipped(), 2);
    assert_eq!(cursor.backlog_entries(), 4);
    region.ledgers.lose_entry(Position::new(0, 5), true);
    t.broker.tick(region.advance(60_000)).await;
    assert!(t.log.read(Position::new(0, 5), 10, 1000).await.unwrap().is_empty(), "nothing behind it");
    cursor.skip(4).await.unwrap();
    assert_eq!(cursor.mark_delete(), Position::new(0, 5));
}

/// Field report B090: a lost ledger does not keep a log from loading if the operator says so.
#[tokio::test]
async fn b090_lost_ledgers_are_skipped_only_when_told() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    t.append(0, 3).await;
    t.log.roll().await;
    t.append(3, 3).await;
    drop(t);
    region.ledgers.lose(LedgerId(1));
    let broker = region.broker();
    let sink = Arc::new(meridian_managed_ledger::testing::RecordingSink::default());
    assert!(broker.open(NAME, settings(), sink.clone()).await.is_err());
    let log = broker.open(NAME, LogSettings { skip_unreadable: true, ..settings() }, sink).await.unwrap();
    assert_eq!((log.info().entries, broker.ledgers_skipped()), (3, 1));
}

#[tokio::test]
async fn b090_a_ledger_lost_from_the_middle_is_passed_and_mark_delete_moves() {
    let region = TestRegion::default();
    let t = region.open(NAME, LogSettings { skip_unreadable: true, ..settings() }).await;
    let cursor = t.log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    for first in [0, 3, 6] {
        t.append(first, 3).await;
        t.log.roll().await;
    }
    t.log.close().await.unwrap();
    drop((t, cursor));
    region.ledgers.lose(LedgerId(1));
    let strict = region.open(NAME, settings()).await;
    assert!(strict.log.read(Position::new(1, 0), 10, 1000).await.is_err());
    assert_eq!(strict.log.info().entries, 9);
    let t = region.open(NAME, LogSettings { skip_unreadable: true, ..settings() }).await;
    assert_eq!(t.payloads(Position::EARLIEST).await.unwrap(), ["0", "1", "2", "6", "7", "8"]);
    let cursor = t.log.cursor("s").unwrap();
    assert_eq!((cursor.backlog_entries(), t.broker.ledgers_skipped()), (6, 1));
    cursor.skip(4).await.unwrap();
    assert_eq!(cursor.mark_delete(), Position::new(2, 0));
    drop((strict, t, cursor));
    let again = region.open(NAME, settings()).await;
    assert_eq!(again.log.info().entries, 6);
}

#[tokio::test]
async fn a_follower_is_told_of_every_confirmation_and_of_the_end() {
    let region = TestRegion::default();
    let t = region.open(NAME, settings()).await;
    let log = t.log.clone();
    let follower = tokio::spawn(async move {
        let (mut seen, mut at) = (Vec::new(), Position::EARLIEST);
        loop {
            match log.wait_beyond(at).await {
                Ok(last) => at = last,
                Err(error) => return (seen, error),
            }
            seen.push(at);
        }
    });
    let mut last = Position::EARLIEST;
    for token in 0..20 {
        last = t.append(token, 1).await[0];
        if token % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(t.log.wait_beyond(Position::EARLIEST).await.unwrap(), last, "no wait for what is there");
    t.log.close().await.unwrap();
    let (seen, error) = follower.await.unwrap();
    assert!(seen.is_sorted() && seen.last() == Some(&last), "{seen:?}");
    assert_eq!(error.class(), ErrorClass::Fenced);
    let idle = t.log.wait_beyond(last);
    assert!(idle.await.is_err(), "a closed log keeps nobody waiting");
}
