//! Measures the journal of one node against plain pwrite + fdatasync of the same group size, on one folder.
//!
//! `journal_bench DIR [SECONDS]` runs alternating blocks and prints, for some loads, entries per sync, MB/s, the raw limit
//! at that group size and the ratio of syncs per second, then the latency of a lone add against the raw latency, and bytes on disk.
#![allow(clippy::unwrap_used, reason = "a measuring tool fails by panic")]

use bytes::Bytes;
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{AddEntry, AddResult, AddSink, Bookie, EntryBytes};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One producer: keeps one entry in flight, the next add is made from the answer.
struct Producer {
    bookie: Arc<LocalBookie>,
    ledger_id: LedgerId,
    next: AtomicU64,
    body: Bytes,
    until: Instant,
    done: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    latencies: parking_lot::Mutex<(Instant, Vec<Duration>)>,
    me: std::sync::Weak<Producer>,
}

impl Producer {
    fn send(&self) {
        let entry_id = EntryId(self.next.fetch_add(1, Ordering::Relaxed) as i64);
        let entry = EntryBytes::plain(self.body.clone());
        let digest = entry.digest(self.ledger_id, entry_id);
        let last_add_confirmed = EntryId(entry_id.0 - 1);
        let add = AddEntry { ledger_id: self.ledger_id, entry_id, last_add_confirmed, digest, recovery: false, entry };
        self.latencies.lock().0 = Instant::now();
        let sink = self.me.upgrade().unwrap();
        self.bookie.add(vec![add], sink);
    }
}

impl AddSink for Producer {
    fn add_results(&self, _: &BookieId, results: Vec<AddResult>) {
        for one in &results {
            one.result.as_ref().unwrap();
            let mut latencies = self.latencies.lock();
            let took = latencies.0.elapsed();
            latencies.1.push(took);
        }
        self.done.fetch_add(results.len() as u64, Ordering::Relaxed);
        if Instant::now() < self.until {
            self.send();
        } else {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Measured {
    entries: u64,
    syncs: u64,
    seconds: f64,
    p50: Duration,
    cpu_seconds: f64,
}

/// CPU time of this process so far (user and system, in ticks of 10 ms).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn metric(registry: &prometheus::Registry, name: &str) -> u64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    family.get_metric()[0].get_counter().get_value() as u64
}

fn run_node(dir: &Path, producers: u64, body_bytes: usize, time: Duration) -> Measured {
    let config = BookieConfig::new(BookieId::new("bench"), dir.join("journal"), dir.join("ledgers"));
    let registry = config.registry.clone();
    let bookie = LocalBookie::open(config).unwrap();
    let (done, running) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(producers)));
    let syncs_before = metric(&registry, "bookie_journal_JOURNAL_SYNC_count");
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let all: Vec<_> = (0..producers)
        .map(|ledger| {
            Arc::new_cyclic(|me| Producer {
                bookie: Arc::clone(&bookie),
                ledger_id: LedgerId(ledger as i64),
                next: AtomicU64::new(0),
                body: Bytes::from(vec![7; body_bytes]),
                until: start + time,
                done: Arc::clone(&done),
                running: Arc::clone(&running),
                latencies: parking_lot::Mutex::new((start, Vec::new())),
                me: me.clone(),
            })
        })
        .collect();
    all.iter().for_each(|producer| producer.send());
    while running.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
    let mut latencies: Vec<_> =
        all.iter().flat_map(|producer| std::mem::take(&mut producer.latencies.lock().1)).collect();
    latencies.sort_unstable();
    Measured {
        entries: done.load(Ordering::Relaxed),
        syncs: metric(&registry, "bookie_journal_JOURNAL_SYNC_count") - syncs_before,
        seconds,
        cpu_seconds,
        p50: latencies[latencies.len() / 2],
    }
}

/// Plain writes of `group_bytes` into a zero-filled file, each synced: writes per second, the median, CPU per write.
fn run_raw(dir: &Path, group_bytes: usize, time: Duration) -> (f64, Duration, f64) {
    let file_bytes = (64 << 20_usize).max(group_bytes * 2);
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join("raw");
    let file = std::fs::File::options().write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all_at(&vec![0; file_bytes], 0).unwrap();
    file.sync_all().unwrap();
    let group = vec![7; group_bytes];
    let (start, cpu_before, mut at, mut latencies) = (Instant::now(), cpu_seconds(), 0, Vec::new());
    while start.elapsed() < time {
        let before = Instant::now();
        file.write_all_at(&group, at as u64).unwrap();
        file.sync_data().unwrap();
        latencies.push(before.elapsed());
        at += group_bytes;
        if at + group_bytes > file_bytes {
            at = 0;
        }
    }
    let per_second = latencies.len() as f64 / start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let cpu = (cpu_seconds() - cpu_before) / latencies.len() as f64;
    (per_second, latencies[latencies.len() / 2], cpu)
}

fn tree_bytes(dir: &Path) -> u64 {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { tree_bytes(&path) } else { path.metadata().unwrap().len() }
        })
        .sum()
}

/// From nothing on disk to the first answered add.
fn cold_start(dir: &Path) -> Duration {
    let start = Instant::now();
    run_node(dir, 1, 100, Duration::ZERO);
    let took = start.elapsed();
    std::fs::remove_dir_all(dir).unwrap();
    took
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().unwrap_or_else(|| "journal-bench".to_owned()));
    let time = Duration::from_secs_f64(arguments.next().map_or(2.0, |seconds| seconds.parse().unwrap()));
    println!("cold start to first ack and close: {} ms", cold_start(&dir.join("cold")).as_millis());
    println!(
        "producers  entry bytes  entries/sync  MB/s   raw MB/s at that group  ratio  p50 µs  raw p50 µs  CPU µs/sync  raw CPU µs/sync"
    );
    for (producers, body_bytes) in [(1, 1024), (16, 1024), (100, 1024), (16, 128 << 10), (100, 128 << 10)] {
        let home = dir.join(format!("{producers}-{body_bytes}"));
        let node = run_node(&home, producers, body_bytes, time);
        let group_bytes = (node.entries as usize * (body_bytes + 48) / node.syncs as usize).next_multiple_of(4096);
        let (raw_per_second, raw_p50, raw_cpu) = run_raw(&home, group_bytes, time);
        let node_rate = node.entries as f64 * body_bytes as f64 / node.seconds / 1e6;
        let raw_rate = raw_per_second * group_bytes as f64 / 1e6;
        println!(
            "{producers:9}  {body_bytes:11}  {:12.1}  {node_rate:5.0}  {raw_rate:22.0}  {:5.2}  {:6}  {:10}  {:11.0}  {:15.0}",
            node.entries as f64 / node.syncs as f64,
            node.syncs as f64 / node.seconds / raw_per_second,
            node.p50.as_micros(),
            raw_p50.as_micros(),
            node.cpu_seconds * 1e6 / node.syncs as f64,
            raw_cpu * 1e6
        );
        if producers == 16 && body_bytes > 4096 {
            let payload = node.entries * body_bytes as u64;
            println!(
                "entry logs and index: {:.3} bytes per payload byte",
                tree_bytes(&home.join("ledgers")) as f64 / payload as f64
            );
        }
        std::fs::remove_dir_all(&home).unwrap();
    }
}
