//! What the managed ledger itself costs, over ledgers in memory: CPU time per appended entry, per ack and per read, and
//! resident bytes per idle log and per idle cursor. `cargo run --release -p meridian-managed-ledger --example costs`

#![allow(clippy::unwrap_used, reason = "a measuring tool")]

use meridian_managed_ledger::testing::{RecordingSink, TestRegion};
use meridian_managed_ledger::{
    AckPosition, AppendRequest, CursorOptions, InitialPosition, LogSettings, ManagedLedger, ManagedLedgers,
};
use meridian_types::Position;
use std::sync::Arc;

const ENTRIES: u64 = 1_000_000;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// CPU time of this thread, which runs everything here.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn per(what: &str, since_ns: u64, count: u64) {
    println!("{what}: {:.0} ns each", (cpu_ns() - since_ns) as f64 / count as f64);
}

fn settings() -> LogSettings {
    LogSettings { max_entries_per_ledger: u64::MAX, ..LogSettings::default() }
}

fn durable() -> CursorOptions {
    CursorOptions { durable: true, ..CursorOptions::default() }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let region = TestRegion::default();
    let broker = region.broker();
    let idle = idle(&region, &broker).await;
    busy(&broker).await;
    drop(idle);
}

async fn idle(region: &TestRegion, broker: &ManagedLedgers) -> Vec<Arc<ManagedLedger>> {
    let before = resident_bytes();
    let mut logs = Vec::new();
    for n in 0..10_000 {
        let name = format!("public/default/persistent/idle-{n}");
        let log = broker.open(&name, settings(), Arc::new(RecordingSink::default())).await.unwrap();
        log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
        logs.push(log);
    }
    println!("idle log with a cursor, its metadata in memory included: {} bytes", (resident_bytes() - before) / 10_000);
    let before = resident_bytes();
    for n in 0..10_000 {
        logs[0].open_cursor(&format!("s-{n}"), InitialPosition::Earliest, durable()).await.unwrap();
    }
    println!("idle cursor, its metadata in memory included: {} bytes", (resident_bytes() - before) / 10_000);
    broker.tick(region.advance(1000)).await;
    let started = cpu_ns();
    for _ in 0..10 {
        broker.tick(region.advance(1000)).await;
    }
    println!("tick over 10,000 idle logs: {} us", (cpu_ns() - started) / 10_000);
    logs
}

async fn busy(broker: &ManagedLedgers) {
    let sink = Arc::new(RecordingSink::default());
    let log = broker.open("public/default/persistent/busy", settings(), sink.clone()).await.unwrap();
    let cursor = log.open_cursor("s", InitialPosition::Earliest, durable()).await.unwrap();
    let payload = bytes::Bytes::from(vec![7u8; 1024]);
    let request = |token| AppendRequest { payload: payload.clone(), messages: 1, marker: false, origin: None, token };
    log.append(vec![request(0)]);
    sink.answered(1).await;
    for batch in [1, 10, 100] {
        let started = cpu_ns();
        for _ in 0..ENTRIES / 10 / batch {
            log.append((0..batch).map(request).collect());
            tokio::task::yield_now().await;
        }
        per(
            &format!("append of 1 KiB in batches of {batch}, the memory ledger's copy included"),
            started,
            ENTRIES / 10,
        );
    }
    let last = log.last_confirmed();
    let acks = |step: usize| {
        let ack = |entry| AckPosition {
            position: Position { entry_id: meridian_types::EntryId(entry), ..last },
            unacked_batch_indexes: None,
            messages: 1,
        };
        (1..last.entry_id.0).step_by(step).map(ack).collect::<Vec<_>>()
    };
    let started = cpu_ns();
    let holes = acks(2);
    for some in holes.chunks(100) {
        std::hint::black_box(cursor.ack(some));
    }
    per("individual ack that makes a hole", started, holes.len() as u64);
    cursor.persisted().await.unwrap();
    let started = cpu_ns();
    let (mut next, mut count) = (Position::EARLIEST, 0);
    while next <= last {
        let read = log.read(next, 100, 1 << 20).await.unwrap();
        count += read.len() as u64;
        next = read.last().map_or(Position::LATEST, |entry| entry.position.next_in_ledger());
    }
    per("catch-up read", started, count);
}
