//! Logs over the real ledger client and three bookies in memory that fail: nothing confirmed is lost, nothing is stored
//! twice or out of order, whoever crashes.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_ledger::testing::{Faults, MemoryLedgers};
use meridian_managed_ledger::testing::{RecordingSink, request};
use meridian_managed_ledger::{
    AckPosition, CacheSettings, CursorOptions, InitialPosition, LogSettings, ManagedLedger, ManagedLedgers,
};
use meridian_types::{Position, RegionId};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "public/default/persistent/orders";

fn settings() -> LogSettings {
    LogSettings {
        ensemble_size: 2,
        write_quorum: 2,
        ack_quorum: 2,
        max_entries_per_ledger: 40,
        min_rollover_ms: 0,
        retention_ms: None,
        retention_bytes: None,
        ..LogSettings::default()
    }
}

fn broker(ledgers: &MemoryLedgers) -> Arc<ManagedLedgers> {
    ManagedLedgers::new(ledgers.client.clone(), ledgers.metadata.clone(), CacheSettings::default(), RegionId(1))
}

async fn open(ledgers: &MemoryLedgers) -> (Arc<ManagedLedger>, Arc<RecordingSink>) {
    let sink = Arc::new(RecordingSink::default());
    (broker(ledgers).open(NAME, settings(), sink.clone()).await.unwrap(), sink)
}

async fn all_payloads(log: &ManagedLedger) -> Vec<String> {
    let (mut next, mut all) = (Position::EARLIEST, Vec::new());
    loop {
        let read = log.read(next, 100, 1 << 20).await.unwrap();
        let Some(last) = read.last() else { return all };
        next = last.position.next_in_ledger();
        all.extend(read.iter().map(|entry| String::from_utf8_lossy(&entry.payload).into_owned()));
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("within 60 s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bookies_that_fail_under_load_cost_no_order_and_no_entry() {
    let ledgers = MemoryLedgers::new(3);
    let (log, sink) = open(&ledgers).await;
    for round in 0..30u64 {
        let failing = &ledgers.bookies[(round % 3) as usize];
        log.append((round * 20..round * 20 + 10).map(request).collect());
        if round % 3 == 1 {
            failing.crash();
        }
        log.append((round * 20 + 10..round * 20 + 20).map(request).collect());
        within(sink.answered((round as usize + 1) * 20)).await;
    }
    assert!(sink.failed_so_far().is_empty(), "{:?}", sink.failed_so_far().first());
    let appended = sink.appended_so_far();
    assert!(appended.iter().map(|a| a.token).eq(0..600));
    assert!(appended.windows(2).all(|w| w[0].position < w[1].position && w[0].index + 1 == w[1].index));
    let expected: Vec<String> = (0..600).map(|token| token.to_string()).collect();
    assert_eq!(within(all_payloads(&log)).await, expected);
    let (again, _) = within(open(&ledgers.another())).await;
    assert_eq!(within(all_payloads(&again)).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_that_take_over_from_each_other_lose_nothing_and_ids_ascend() {
    let mut ledgers = MemoryLedgers::new(3);
    let mut expected = Vec::new();
    let mut owners = Vec::new();
    let mut acked = 0;
    for round in 0..6u64 {
        // An earlier owner is left running: it is fenced by the next one.
        let (log, sink) = within(open(&ledgers)).await;
        let cursor = log
            .open_cursor("s", InitialPosition::Earliest, CursorOptions { durable: true, ..CursorOptions::default() })
            .await
            .unwrap();
        assert_eq!(cursor.backlog_entries(), round * 100 - acked);
        let first = round * 100;
        log.append((first..first + 100).map(request).collect());
        within(sink.answered(100)).await;
        assert!(sink.failed_so_far().is_empty());
        expected.extend((first..first + 100).map(|token| token.to_string()));
        let positions: Vec<Position> = sink.appended_so_far().iter().map(|a| a.position).collect();
        let ack = |position: &Position| AckPosition { position: *position, unacked_batch_indexes: None, messages: 1 };
        let acks: Vec<AckPosition> = positions.iter().step_by(3).map(ack).collect();
        acked += acks.len() as u64;
        cursor.ack(&acks);
        within(cursor.persisted()).await.unwrap();
        assert_eq!(within(all_payloads(&log)).await, expected);
        owners.push((log, sink));
        ledgers = ledgers.another();
    }
    for (log, sink) in &owners[..5] {
        log.append(vec![request(9999)]);
        within(sink.answered(101)).await;
        assert_eq!(sink.failed_so_far().len(), 1);
    }
    let (last, _) = &owners[5];
    assert_eq!(within(all_payloads(last)).await, expected);
    assert!(last.info().ledgers.windows(2).all(|w| w[0].ledger_id < w[1].ledger_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_log_opens_at_once_and_a_deleted_one_leaves_no_key() {
    let ledgers = MemoryLedgers::new(3);
    let (log, sink) = open(&ledgers).await;
    log.append((0..100).map(request).collect());
    within(sink.answered(100)).await;
    within(log.close()).await.unwrap();
    let (again, sink) = within(open(&ledgers)).await;
    assert_eq!(again.next_index(), 100);
    again.append((100..110).map(request).collect());
    within(sink.answered(10)).await;
    assert_eq!(within(all_payloads(&again)).await.len(), 110);
    within(again.delete()).await.unwrap();
    assert!(ledgers.metadata.scan("ml/").await.unwrap().is_empty());
    assert!(!broker(&ledgers).exists(NAME).await.unwrap());
}

/// Two of three bookies go: the writer ends, its ledger is recovered when they are back, and what waited is stored once, in
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_wait_out_an_outage_in_order() {
    let ledgers = MemoryLedgers::new(3);
    let (log, sink) = open(&ledgers).await;
    log.append((0..10).map(request).collect());
    within(sink.answered(10)).await;
    for fault in [|f: &mut Faults| f.down = true, |f: &mut Faults| f.mute = true] {
        let first = sink.appended_so_far().len() as u64;
        ledgers.bookies[..2].iter().for_each(|bookie| bookie.set(fault));
        log.append((first..first + 10).map(request).collect());
        let recovering = async {
            while log.info().waiting.is_none() {
                tokio::task::yield_now().await;
            }
        };
        within(recovering).await;
        log.append((first + 10..first + 20).map(request).collect());
        ledgers.bookies[..2].iter().for_each(|bookie| bookie.set(|f| (f.down, f.mute) = (false, false)));
        within(sink.answered(first as usize + 20)).await;
        assert!(sink.failed_so_far().is_empty(), "{:?}", sink.failed_so_far().first());
        assert!(sink.appended_so_far().iter().map(|a| a.token).eq(0..first + 20));
    }
    let (again, _) = within(open(&ledgers.another())).await;
    let expected: Vec<String> = (0..50).map(|token| token.to_string()).collect();
    assert_eq!(within(all_payloads(&again)).await, expected);
}
