//! One node from the outside: adds, reads, fencing, restart.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod common;

use common::{Answers, add, add_all, add_entry, all_ok, check, config, open, payload, read, request, wait};
use meridian_bookie::LocalBookie;
use meridian_bookie_api::{AddSink, Bookie, BookieError, FenceState};
use meridian_types::{EntryId, LedgerId};
use std::sync::Arc;

#[test]
fn acked_entries_are_read_from_cache_disk_and_after_a_restart() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    for ledger in [3, 1, 2] {
        all_ok(&add(&*bookie, ledger, 0..200, 700));
    }
    check(&*bookie, 1, 0..200, 700);
    bookie.checkpoint().unwrap();
    all_ok(&add(&*bookie, 1, 200..300, 700));
    check(&*bookie, 1, 0..300, 700);
    check(&*bookie, 3, 0..200, 700);
    bookie.close().unwrap();
    assert!(matches!(read(&*bookie, 1, 0, 1), Err(BookieError::Unavailable(_))));
    drop(bookie);
    let bookie = open(base.path());
    assert_eq!(bookie.replay_report().records, 0, "a clean close leaves nothing to replay");
    check(&*bookie, 1, 0..300, 700);
    check(&*bookie, 2, 0..200, 700);
    assert_eq!(bookie.ledgers().unwrap(), [LedgerId(1), LedgerId(2), LedgerId(3)]);
}

#[test]
fn what_is_not_there_is_said_exactly() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    assert_eq!(read(&*bookie, 9, 0, 1).unwrap_err(), BookieError::NoSuchLedger);
    assert_eq!(wait(bookie.last_add_confirmed(LedgerId(9))).unwrap_err(), BookieError::NoSuchLedger);
    all_ok(&add(&*bookie, 9, 0..2, 10));
    assert_eq!(read(&*bookie, 9, 2, 1).unwrap_err(), BookieError::NoSuchEntry);
    assert_eq!(read(&*bookie, 9, 1, 5).unwrap().len(), 1);
    bookie.checkpoint().unwrap();
    assert_eq!(read(&*bookie, 9, 2, 1).unwrap_err(), BookieError::NoSuchEntry);
    let told = wait(bookie.last_add_confirmed(LedgerId(9))).unwrap();
    assert_eq!(told, FenceState { last_add_confirmed: EntryId(0), last_entry: EntryId(1) });
    wait(bookie.write_lac(LedgerId(9), EntryId(1))).unwrap();
    assert_eq!(wait(bookie.last_add_confirmed(LedgerId(9))).unwrap().last_add_confirmed, EntryId(1));
}

#[test]
fn a_fence_holds_for_ever_and_recovery_may_write() {
    let base = tempfile::tempdir().unwrap();
    for flushed in [false, true] {
        let base = base.path().join(flushed.to_string());
        let bookie = open(&base);
        all_ok(&add(&*bookie, 5, 0..3, 10));
        let state = wait(bookie.fence(LedgerId(5))).unwrap();
        assert_eq!(state, FenceState { last_add_confirmed: EntryId(1), last_entry: EntryId(2) });
        assert_eq!(add(&*bookie, 5, 3..4, 10)[0].result, Err(BookieError::Fenced));
        assert_eq!(wait(bookie.write_lac(LedgerId(5), EntryId(9))).unwrap_err(), BookieError::Fenced);
        all_ok(&add_all(&*bookie, vec![add_entry(5, 3, payload(5, 3, 10), true)]));
        assert_eq!(wait(bookie.fence(LedgerId(77))).unwrap().last_entry, EntryId::NONE);
        if flushed {
            bookie.checkpoint().unwrap();
        }
        let image = base.join("image");
        common::copy_tree(&base.join("journal"), &image.join("journal"));
        common::copy_tree(&base.join("ledgers"), &image.join("ledgers"));
        drop(bookie);
        let bookie = open(&image);
        check(&*bookie, 5, 0..4, 10);
        for ledger in [5, 77] {
            assert_eq!(add(&*bookie, ledger, 4..5, 10)[0].result, Err(BookieError::Fenced), "flushed: {flushed}");
        }
    }
}

#[test]
fn a_fencing_read_fences() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    all_ok(&add(&*bookie, 5, 0..3, 10));
    let mut fencing = request(5, 1, 1);
    fencing.fence = true;
    assert_eq!(wait(bookie.read(fencing)).unwrap()[0].payload, payload(5, 1, 10));
    assert_eq!(add(&*bookie, 5, 3..4, 10)[0].result, Err(BookieError::Fenced));
}

#[test]
fn answers_come_in_order_and_refusals_in_their_turn() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    wait(bookie.fence(LedgerId(2))).unwrap();
    let answers = Arc::new(Answers::default());
    for entry in 0..500 {
        let mut batch = vec![add_entry(1, entry, payload(1, entry, 300), false)];
        batch.push(add_entry(2, entry, payload(2, entry, 300), false));
        bookie.add(batch, Arc::clone(&answers) as Arc<dyn AddSink>);
    }
    let results = answers.wait(1000);
    for (at, pair) in results.chunks(2).enumerate() {
        assert_eq!((pair[0].ledger_id, pair[0].entry_id.0, &pair[0].result), (LedgerId(1), at as i64, &Ok(())));
        let refused = Err(BookieError::Fenced);
        assert_eq!((pair[1].ledger_id, pair[1].entry_id.0, &pair[1].result), (LedgerId(2), at as i64, &refused));
    }
}

#[test]
fn a_striped_ledger_is_read_with_gaps() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    let some: Vec<_> = (0..30).filter(|n| n % 3 != 1).map(|n| add_entry(4, n, payload(4, n, 50), false)).collect();
    let expected: Vec<_> = some.iter().map(|add| add.entry_id).collect();
    all_ok(&add_all(&*bookie, some[..8].to_vec()));
    bookie.checkpoint().unwrap();
    all_ok(&add_all(&*bookie, some[8..].to_vec()));
    let mut gaps = request(4, 0, 100);
    gaps.gaps_allowed = true;
    let found: Vec<_> = wait(bookie.read(gaps)).unwrap().iter().map(|entry| entry.entry_id).collect();
    assert_eq!(found, expected);
    assert_eq!(read(&*bookie, 4, 2, 100).unwrap().len(), 2, "without gaps the read ends at the first");
    assert_eq!(read(&*bookie, 4, 1, 100).unwrap_err(), BookieError::NoSuchEntry);
}

#[test]
fn reads_keep_their_limits() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    all_ok(&add(&*bookie, 1, 0..50, 1000));
    for _ in 0..2 {
        let mut limited = request(1, 0, 100);
        limited.max_bytes = 5500;
        assert_eq!(wait(bookie.read(limited)).unwrap().len(), 5);
        limited.max_bytes = 1;
        assert_eq!(wait(bookie.read(limited)).unwrap().len(), 1, "the first whatever its size");
        assert_eq!(read(&*bookie, 1, 10, 7).unwrap().len(), 7);
        bookie.checkpoint().unwrap();
    }
}

#[test]
fn large_entries_and_many_files() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    all_ok(&add(&*bookie, 1, 0..4, 600_000));
    all_ok(&add(&*bookie, 1, 4..5, 3));
    bookie.checkpoint().unwrap();
    for entry in 0..4 {
        assert_eq!(read(&*bookie, 1, entry, 1).unwrap()[0].payload, payload(1, entry, 600_000));
    }
    let mut small = config(&base.path().join("small"));
    small.max_entry_bytes = 100;
    let bookie = LocalBookie::open(small).unwrap();
    let refused = add(&*bookie, 1, 0..1, 101).remove(0).result;
    assert_eq!(refused, Err(BookieError::TooLarge { bytes: 101, max_bytes: 100 }));
}

#[test]
fn journal_files_are_recycled_after_checkpoints() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(base.path());
    for round in 0..20 {
        all_ok(&add(&*bookie, 1, round * 100..round * 100 + 100, 3000));
        bookie.checkpoint().unwrap();
    }
    let bytes: u64 = std::fs::read_dir(base.path().join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 3 << 20, "{bytes} bytes of journal after 6 MB and as many checkpoints");
    check(&*bookie, 1, 0..2000, 3000);
}

#[test]
fn several_journals_and_ledger_folders() {
    let base = tempfile::tempdir().unwrap();
    let several = || {
        let mut several = config(base.path());
        several.journal_dirs = vec![base.path().join("j0"), base.path().join("j1"), base.path().join("j2")];
        several.ledger_dirs = vec![base.path().join("l0"), base.path().join("l1")];
        several.registry = prometheus::Registry::new();
        several
    };
    let bookie = LocalBookie::open(several()).unwrap();
    let adds: Vec<_> = (0..60)
        .flat_map(|entry| (0..7).map(move |ledger| add_entry(ledger, entry, payload(ledger, entry, 2000), false)))
        .collect();
    all_ok(&add_all(&*bookie, adds));
    bookie.checkpoint().unwrap();
    let logs = |dir: &str| std::fs::read_dir(base.path().join(dir)).unwrap().count();
    assert!(logs("l0") > 2 && logs("l1") > 1, "both folders are used");
    drop(bookie);
    let bookie = LocalBookie::open(several()).unwrap();
    for ledger in 0..7 {
        check(&*bookie, ledger, 0..60, 2000);
    }
}
