//! Full disks, garbage collection, compaction, a lost index.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod common;

use common::{add, add_all, add_entry, all_ok, check, config, open, payload, read, wait};
use meridian_bookie::{DiskState, LocalBookie, rebuild_index};
use meridian_bookie_api::{Bookie, BookieError};
use meridian_types::LedgerId;
use prometheus::Registry;
use std::path::Path;

fn logs(base: &Path) -> usize {
    let is_log = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "log");
    std::fs::read_dir(base.join("ledgers")).unwrap().filter_map(Result::ok).filter(is_log).count()
}

fn ids(ledgers: impl IntoIterator<Item = i64>) -> impl Iterator<Item = LedgerId> {
    ledgers.into_iter().map(LedgerId)
}

/// Field report B153: what is written while a listing is made, copies under way among it, is outside of it.
#[test]
fn only_ledgers_that_are_gone_are_collected() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    for ledger in 0..10 {
        all_ok(&add(&*bookie, ledger, 0..100, 1000));
        bookie.checkpoint().unwrap();
    }
    let before = logs(base.path());
    assert!(bookie.begin_listing().unwrap().complete().is_err(), "an empty listing proves nothing");
    let mut listing = bookie.begin_listing().unwrap();
    all_ok(&add(&*bookie, 10, 0..10, 1000));
    bookie.checkpoint().unwrap();
    listing.page(ids([0, 1000]));
    listing.page(ids([9]));
    let report = bookie.gc(&listing.complete().unwrap()).unwrap();
    assert_eq!(report.deleted_ledgers, 8);
    assert!(report.deleted_logs > 0 && logs(base.path()) < before);
    for ledger in [0, 9] {
        check(&*bookie, ledger, 0..100, 1000);
    }
    check(&*bookie, 10, 0..10, 1000);
    assert_eq!(read(&*bookie, 5, 0, 1).unwrap_err(), BookieError::NoSuchLedger);
    drop(bookie);
    let bookie = open(base.path());
    assert_eq!(bookie.ledgers().unwrap(), ids([0, 9, 10]).collect::<Vec<_>>());
}

/// Found by simulation: a writer that was paused until its ledger had been recovered, deleted and collected was taken for
/// the writer of a new ledger, and confirmed what nobody would ever read.
#[test]
fn b120_a_fence_outlives_its_ledger() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    all_ok(&add(&*bookie, 1, 0..5, 100));
    all_ok(&add(&*bookie, 2, 0..5, 100));
    wait(bookie.fence(LedgerId(1))).unwrap();
    wait(bookie.fence(LedgerId(3))).unwrap();
    all_ok(&add(&*bookie, 4, 0..1, 100));
    bookie.checkpoint().unwrap();
    let mut listing = bookie.begin_listing().unwrap();
    listing.page(ids([4]));
    assert_eq!(bookie.gc(&listing.complete().unwrap()).unwrap().deleted_ledgers, 3);
    let refused = |bookie: &LocalBookie| {
        for ledger in [1, 3] {
            let late = add(bookie, ledger, 5..6, 100);
            assert_eq!(late[0].result, Err(BookieError::Fenced), "ledger {ledger}");
        }
    };
    refused(&bookie);
    all_ok(&add(&*bookie, 2, 5..6, 100));
    bookie.close().unwrap();
    drop(bookie);
    refused(&open(base.path()));
}

#[test]
fn compaction_moves_what_lives_and_frees_the_rest() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    for round in 0..10 {
        let adds = (0..10).flat_map(|ledger| (0..20).map(move |n| (ledger, round * 20 + n)));
        let adds = adds.map(|(ledger, entry)| add_entry(ledger, entry, payload(ledger, entry, 500), false)).collect();
        all_ok(&add_all(&*bookie, adds));
        bookie.checkpoint().unwrap();
    }
    wait(bookie.fence(LedgerId(3))).unwrap();
    bookie.checkpoint().unwrap();
    let mut listing = bookie.begin_listing().unwrap();
    listing.page(ids([3, 7]));
    bookie.gc(&listing.complete().unwrap()).unwrap();
    let before = logs(base.path());
    let report = bookie.compact(0.9).unwrap();
    assert!(report.compacted_logs > 2, "{report:?}");
    assert!(logs(base.path()) < before);
    for ledger in [3, 7] {
        check(&*bookie, ledger, 0..200, 500);
    }
    assert_eq!(bookie.compact(0.9).unwrap().compacted_logs, 0, "nothing more to gain");
    drop(bookie);
    rebuild_index(&config(base.path())).unwrap();
    let bookie = open(base.path());
    for ledger in [3, 7] {
        check(&*bookie, ledger, 0..200, 500);
    }
    assert_eq!(add(&*bookie, 3, 200..201, 10)[0].result, Err(BookieError::Fenced), "the fence moved along");
}

#[test]
fn a_damaged_log_is_not_compacted_away() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    let adds = (0..400).map(|n| add_entry(n % 4, n / 4, payload(n % 4, n / 4, 1000), false)).collect();
    all_ok(&add_all(&*bookie, adds));
    bookie.checkpoint().unwrap();
    drop(bookie);
    let mut all: Vec<_> = std::fs::read_dir(base.path().join("ledgers")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    let first = all.iter().find(|path| path.extension().is_some_and(|extension| extension == "log")).unwrap();
    let mut bytes = std::fs::read(first).unwrap();
    bytes[32 + 40 + 100] ^= 1;
    std::fs::write(first, bytes).unwrap();
    let bookie = open(base.path());
    assert!(matches!(read(&*bookie, 0, 0, 1), Err(BookieError::Corrupt(_))));
    assert_eq!(read(&*bookie, 0, 1, 5).unwrap().len(), 5, "the others are whole");
    let mut listing = bookie.begin_listing().unwrap();
    listing.page(ids([0]));
    bookie.gc(&listing.complete().unwrap()).unwrap();
    bookie.compact(1.0).unwrap();
    assert!(first.exists());
    assert!(matches!(read(&*bookie, 0, 0, 1), Err(BookieError::Corrupt(_))), "never 'no such entry'");
    check(&*bookie, 0, 1..100, 1000);
}

#[test]
fn a_rebuilt_index_is_the_same() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    for ledger in 0..20 {
        all_ok(&add(&*bookie, ledger, 0..50, 800));
        if ledger % 5 == 0 {
            bookie.checkpoint().unwrap();
            wait(bookie.fence(LedgerId(ledger))).unwrap();
        }
    }
    assert!(rebuild_index(&config(base.path())).unwrap_err().to_string().contains("running"));
    bookie.close().unwrap();
    let ledgers = bookie.ledgers().unwrap();
    drop(bookie);
    std::fs::remove_dir_all(base.path().join("ledgers/index")).unwrap();
    let refused = LocalBookie::open(config(base.path())).unwrap_err().to_string();
    assert!(refused.contains("carries no cookie"), "{refused}");
    let report = rebuild_index(&config(base.path())).unwrap();
    assert_eq!((report.entries, report.ledgers, report.damaged_records, report.lost_bytes), (1000, 20, 0, 0));
    assert_eq!(report.short_ledgers, 0);
    let bookie = open(base.path());
    assert_eq!(bookie.ledgers().unwrap(), ledgers);
    for ledger in 0..20 {
        check(&*bookie, ledger, 0..50, 800);
        let again = add(&*bookie, ledger, 50..51, 1)[0].result.clone();
        assert_eq!(again == Err(BookieError::Fenced), ledger % 5 == 0, "{again:?}");
    }
}

/// B143, B144, B146: a full node refuses ordinary adds, takes recovery writes, starts, and comes back by itself.
#[test]
fn a_full_disk_makes_the_node_read_only_and_back() {
    let base = tempfile::tempdir().unwrap();
    let limited = || {
        let mut limited = config(base.path());
        limited.disk.quota_bytes = Some(3 << 20);
        limited.disk.threshold = 0.8;
        limited.disk.low_threshold = 0.6;
        limited.disk.reserve_bytes = 256 << 10;
        limited.registry = Registry::new();
        limited
    };
    let bookie = LocalBookie::open(limited()).unwrap();
    assert_eq!(bookie.disk_state(), DiskState::Writable);
    let mut ledger = 0;
    while bookie.disk_state() == DiskState::Writable {
        all_ok(&add(&*bookie, ledger, 0..100, 2000));
        bookie.checkpoint().unwrap();
        bookie.check_disk();
        ledger += 1;
        assert!(ledger < 30, "it never became read-only");
    }
    assert_eq!(bookie.disk_state(), DiskState::ReadOnly);
    assert!(matches!(add(&*bookie, 99, 0..1, 10)[0].result, Err(BookieError::ReadOnly(_))));
    all_ok(&add_all(&*bookie, vec![add_entry(99, 0, payload(99, 0, 10), true)]));
    check(&*bookie, 0, 0..100, 2000);
    drop(bookie);
    let bookie = LocalBookie::open(limited()).unwrap();
    assert_eq!(bookie.disk_state(), DiskState::ReadOnly, "from the disk as it is, not from memory");
    let mut listing = bookie.begin_listing().unwrap();
    listing.page(ids([0, 99]));
    bookie.gc(&listing.complete().unwrap()).unwrap();
    assert_eq!(bookie.disk_state(), DiskState::Writable, "garbage collection brought it back");
    all_ok(&add(&*bookie, 100, 0..1, 10));
    check(&*bookie, 0, 0..100, 2000);
}

/// What is dead goes although all of it is in the log being written and nothing lives any more.
#[test]
fn a_full_disk_comes_back_from_a_single_log_without_a_live_ledger() {
    let base = tempfile::tempdir().unwrap();
    let mut limited = config(base.path());
    limited.entry_log_bytes = 1 << 30;
    limited.disk.quota_bytes = Some(3 << 20);
    limited.disk.threshold = 0.8;
    limited.disk.low_threshold = 0.6;
    limited.disk.reserve_bytes = 256 << 10;
    let bookie = LocalBookie::open(limited).unwrap();
    let mut ledger = 0;
    while bookie.disk_state() == DiskState::Writable {
        all_ok(&add(&*bookie, ledger, 0..100, 2000));
        bookie.checkpoint().unwrap();
        bookie.check_disk();
        ledger += 1;
        assert!(ledger < 30, "it never became read-only");
    }
    assert_eq!(logs(base.path()), 1);
    let listing = bookie.begin_listing().unwrap();
    let report = bookie.gc(&listing.complete_below(LedgerId(ledger))).unwrap();
    assert_eq!((report.deleted_ledgers, report.deleted_logs), (ledger as u64, 1));
    assert_eq!(bookie.disk_state(), DiskState::Writable);
    all_ok(&add(&*bookie, 100, 0..1, 10));
}
