//! What the tests of a node share.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "test code outside a test function")]

use bytes::Bytes;
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{AddEntry, AddResult, AddSink, Bookie, BookieError, EntryBytes, ReadEntry, ReadRequest};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Small sizes, so that every limit is met quickly.
pub fn config(base: &Path) -> BookieConfig {
    let mut config = BookieConfig::new(BookieId::new("b1"), base.join("journal"), base.join("ledgers"));
    config.journal.file_bytes = 256 << 10;
    config.journal.first_file_bytes = 64 << 10;
    config.journal.buffer_bytes = 64 << 10;
    config.entry_log_bytes = 256 << 10;
    config.read_ahead_bytes = 16 << 10;
    config.read_cache_bytes = 64 << 10;
    config.disk.reserve_bytes = 0;
    config.disk.threshold = 1.0;
    config.disk.low_threshold = 1.0;
    config
}

pub fn open(base: &Path) -> Arc<LocalBookie> {
    LocalBookie::open(config(base)).unwrap()
}

/// Collects answers.
#[derive(Default)]
pub struct Answers {
    results: Mutex<Vec<AddResult>>,
    came: Condvar,
}

impl AddSink for Answers {
    fn add_results(&self, _bookie: &BookieId, results: Vec<AddResult>) {
        self.results.lock().unwrap().extend(results);
        self.came.notify_all();
    }
}

impl Answers {
    /// All answers so far, at least `count`, in order.
    pub fn wait(&self, count: usize) -> Vec<AddResult> {
        self.wait_for(count);
        self.results.lock().unwrap().clone()
    }

    pub fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut results = self.results.lock().unwrap();
        while results.len() < count {
            let left = deadline.checked_duration_since(Instant::now()).expect("answers in time");
            results = self.came.wait_timeout(results, left).unwrap().0;
        }
    }

    pub fn count(&self) -> usize {
        self.results.lock().unwrap().len()
    }
}

pub fn payload(ledger: i64, entry: i64, len: usize) -> Bytes {
    let seed = format!("{ledger}:{entry}|");
    seed.bytes().cycle().take(len).collect::<Vec<_>>().into()
}

pub fn add_entry(ledger: i64, entry: i64, body: Bytes, recovery: bool) -> AddEntry {
    let (ledger_id, entry_id) = (LedgerId(ledger), EntryId(entry));
    let entry = EntryBytes::plain(body);
    let digest = entry.digest(ledger_id, entry_id);
    AddEntry { ledger_id, entry_id, last_add_confirmed: EntryId(entry_id.0 - 1), digest, recovery, entry }
}

/// Adds entries of one ledger in one call and waits for the answers.
pub fn add(bookie: &dyn Bookie, ledger: i64, entries: std::ops::Range<i64>, len: usize) -> Vec<AddResult> {
    let adds: Vec<_> = entries.map(|entry| add_entry(ledger, entry, payload(ledger, entry, len), false)).collect();
    add_all(bookie, adds)
}

pub fn add_all(bookie: &dyn Bookie, adds: Vec<AddEntry>) -> Vec<AddResult> {
    let answers = Arc::new(Answers::default());
    let count = adds.len();
    bookie.add(adds, Arc::clone(&answers) as Arc<dyn AddSink>);
    answers.wait(count)
}

pub fn all_ok(results: &[AddResult]) {
    for result in results {
        assert_eq!(result.result, Ok(()), "{}:{}", result.ledger_id, result.entry_id);
    }
}

pub fn request(ledger: i64, first: i64, max_entries: u32) -> ReadRequest {
    ReadRequest {
        ledger_id: LedgerId(ledger),
        first_entry_id: EntryId(first),
        max_entries,
        max_bytes: u64::MAX,
        gaps_allowed: false,
        fence: false,
    }
}

/// Waits for a future without a runtime.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub fn read(bookie: &dyn Bookie, ledger: i64, first: i64, max: u32) -> Result<Vec<ReadEntry>, BookieError> {
    wait(bookie.read(request(ledger, first, max)))
}

/// Reads the whole range in batches and checks every byte.
pub fn check(bookie: &dyn Bookie, ledger: i64, entries: std::ops::Range<i64>, len: usize) {
    let mut next = entries.start;
    while next < entries.end {
        let found = read(bookie, ledger, next, (entries.end - next).min(100) as u32)
            .unwrap_or_else(|e| panic!("{ledger}:{next}: {e}"));
        for entry in found {
            assert_eq!(entry.entry_id, EntryId(next));
            assert_eq!(entry.payload, payload(ledger, next, len), "{ledger}:{next}");
            assert_eq!(entry.last_add_confirmed, EntryId(next - 1));
            next += 1;
        }
    }
}

/// Copies folders as they are: what a crash leaves behind (without what was never handed to the kernel).
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else if path.file_name().unwrap() != "LOCK" {
            // A file may be renamed or removed meanwhile, as in a crash at that moment.
            let _ = std::fs::copy(&path, &target);
        }
    }
}
