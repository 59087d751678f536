//! Logs over the real ledger client and three bookies in memory that fail: nothing confirmed is lost, nothing is stored
//! twice or out of order, whoever crashes.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_ledger::testing::{Faults, MemoryLedgers};
use meridian_managed_ledger::testing::{RecordingSink, request};
use meridian_managed_ledger::{
    AckPosition, CacheSettings, CursorOptions, InitialPosition, LogSettings, ManagedLedger, ManagedLedgers,
};
use meridian_metadata::{
    BoxFuture, Entry, MetadataError, MetadataStore, Operation, Page, Session, SessionId, SharedStore, Version, Watch,
};
use meridian_types::{Position, RegionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// A store that counts what is written through it.
struct Counting {
    inner: SharedStore,
    writes: AtomicU64,
}

impl MetadataStore for Counting {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        self.inner.get(key)
    }
    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.commit(operations)
    }
    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        self.inner.range(prefix, after, limit)
    }
    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.allocate(sequence, count)
    }
    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        self.inner.open_session(ttl_ms)
    }
    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        self.inner.renew_session(session)
    }
    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        self.inner.close_session(session)
    }
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        self.inner.watch(prefix, from)
    }
    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        self.inner.current_version()
    }
}

/// What a broker's loss costs in metadata, for each topic that was written to: up to and with the first message after it.
const WRITES_PER_LOAD: u64 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_after_a_crash_costs_few_metadata_writes_up_to_the_first_message() {
    const LOGS: u64 = 50;
    let ledgers = MemoryLedgers::new(3);
    let name = |number: u64| format!("public/default/persistent/t{number}");
    let crashed = broker(&ledgers);
    let mut positions = Vec::new();
    for number in 0..LOGS {
        let sink = Arc::new(RecordingSink::default());
        let log = crashed.open(&name(number), settings(), sink.clone()).await.unwrap();
        log.append((0..5).map(request).collect());
        within(sink.answered(5)).await;
        positions.push(sink.appended_so_far()[4].position);
    }
    let counting = Arc::new(Counting { inner: ledgers.metadata.clone(), writes: Default::default() });
    let left = MemoryLedgers::over(counting.clone(), ledgers.bookies.clone(), MemoryLedgers::quick_config());
    let left = broker(&left);
    let mut loads = tokio::task::JoinSet::new();
    for number in 0..LOGS {
        let (left, name) = (left.clone(), name(number));
        loads.spawn(async move {
            let sink = Arc::new(RecordingSink::default());
            let log = left.open(&name, settings(), sink.clone()).await.unwrap();
            log.append(vec![request(5)]);
            within(sink.answered(1)).await;
            let appended = sink.appended_so_far();
            assert_eq!((appended[0].token, appended[0].index), (5, 5), "it goes on where the other one ended");
            let expected: Vec<String> = (0..6).map(|token| token.to_string()).collect();
            assert_eq!(within(all_payloads(&log)).await, expected);
            assert_eq!(log.info().ledgers.len(), 2, "the ledger that was left, and the one that goes on");
            (log, sink)
        });
    }
    let opened = within(loads.join_all()).await;
    let writes = counting.writes.load(Ordering::Relaxed);
    assert!(writes <= WRITES_PER_LOAD * LOGS, "{writes} metadata writes for {LOGS} loads");
    drop(opened);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_log_that_is_written_to_gets_its_next_ledger_with_the_opening() {
    let ledgers = MemoryLedgers::new(3);
    let entries = |log: &ManagedLedger| log.info().ledgers.iter().map(|ledger| ledger.entries).collect::<Vec<_>>();
    let (log, sink) = open(&ledgers).await;
    log.append((0..5).map(request).collect());
    within(sink.answered(5)).await;
    let (second, _) = within(open(&ledgers.another())).await;
    assert_eq!(entries(&second), [5, 0], "its writer crashed a moment ago");
    // Nobody wrote since, and that owner is gone, too.
    let late = ledgers.another();
    let in_a_while = std::time::SystemTime::now() + Duration::from_secs(120);
    let now_ms = in_a_while.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let (caches, clock) = (CacheSettings::default(), Arc::new(move || now_ms));
    let logs = ManagedLedgers::with_clock(late.client.clone(), late.metadata.clone(), caches, RegionId(1), clock);
    let third = within(logs.open(NAME, settings(), Arc::new(RecordingSink::default()))).await.unwrap();
    assert_eq!(entries(&third), [5]);
    assert_eq!(third.last_confirmed(), sink.appended_so_far()[4].position);
}
