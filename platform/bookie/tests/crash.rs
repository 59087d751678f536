//! Crash images: what was acked is there, what was not is whole or absent.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod common;

use common::{Answers, add, add_all, add_entry, all_ok, check, config, copy_tree, open, payload, read};
use meridian_bookie::LocalBookie;
use meridian_bookie_api::{AddSink, Bookie, BookieError};
use proptest::prelude::{ProptestConfig, any, prop, proptest};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Journal first: a checkpoint between the two copies then only makes the image's index newer.
fn image(base: &Path, to: &Path) {
    copy_tree(&base.join("journal"), &to.join("journal"));
    copy_tree(&base.join("ledgers"), &to.join("ledgers"));
}

fn journal_files(base: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(base.join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "journal"))
        .collect();
    files.sort();
    files
}

#[test]
fn images_taken_under_load_hold_everything_acked() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(&base.path().join("live"));
    let answers = Arc::new(Answers::default());
    let stop = Arc::new(AtomicBool::new(false));
    let loader = {
        let (bookie, answers, stop) = (Arc::clone(&bookie), Arc::clone(&answers), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut entry = 0;
            while !stop.load(Ordering::Relaxed) {
                let batch = (0..3).map(|ledger| add_entry(ledger, entry, payload(ledger, entry, 900), false)).collect();
                bookie.add(batch, Arc::clone(&answers) as Arc<dyn AddSink>);
                entry += 1;
                answers.wait_for((entry as usize * 3).saturating_sub(60));
            }
            entry
        })
    };
    for round in 0..8 {
        answers.wait_for((round + 1) * 600);
        let acked = answers.wait(0);
        let to = base.path().join(format!("image-{round}"));
        image(&base.path().join("live"), &to);
        let copy = open(&to);
        assert!(acked.iter().all(|result| result.result == Ok(())));
        for ledger in 0..3 {
            let count = acked.iter().filter(|result| result.ledger_id.0 == ledger).count();
            check(&*copy, ledger, 0..count as i64, 900);
        }
        if round % 3 == 2 {
            bookie.checkpoint().unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let entries = loader.join().unwrap();
    answers.wait(entries as usize * 3);
    for ledger in 0..3 {
        check(&*bookie, ledger, 0..entries, 900);
    }
}

#[test]
fn damage_in_the_middle_of_a_journal_costs_its_own_group_only() {
    let base = tempfile::tempdir().unwrap();
    let bookie = open(&base.path().join("live"));
    for entry in 0..20 {
        all_ok(&add(&*bookie, 1, entry..entry + 1, 2000));
    }
    let to = base.path().join("image");
    image(&base.path().join("live"), &to);
    let file = journal_files(&to).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[4096 * 4 + 200] ^= 0x80;
    std::fs::write(&file, bytes).unwrap();
    let copy = open(&to);
    let report = copy.replay_report();
    assert_eq!((report.damages, report.records), (1, 19), "{report:?}");
    check(&*copy, 1, 0..3, 2000);
    assert_eq!(read(&*copy, 1, 3, 1).unwrap_err(), BookieError::NoSuchEntry);
    check(&*copy, 1, 4..20, 2000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// A power cut while a group is being written leaves any of its sectors: the acked ones before it are whole, its
    /// own are whole or absent, and a second start finds the same.
    #[test]
    fn torn_groups_are_cut(
        acked in 1..30i64,
        torn in prop::collection::vec(0..4000usize, 1..12),
        sectors in prop::collection::vec(any::<bool>(), 128),
        garbage: bool,
    ) {
        let base = tempfile::tempdir().unwrap();
        let (live, to) = (base.path().join("live"), base.path().join("image"));
        let bookie = open(&live);
        all_ok(&add(&*bookie, 1, 0..acked, 700));
        image(&live, &to);
        let group: Vec<_> = torn
            .iter()
            .enumerate()
            .map(|(at, len)| add_entry(1, acked + at as i64, payload(1, acked + at as i64, *len), false))
            .collect();
        all_ok(&add_all(&*bookie, group));
        for (before, after) in journal_files(&to).iter().zip(journal_files(&live)) {
            let (mut old, new) = (std::fs::read(before).unwrap(), std::fs::read(after).unwrap());
            let mut changed = 0;
            for (at, sector) in new.chunks(512).enumerate() {
                let range = at * 512..at * 512 + sector.len();
                if old[range.clone()] == *sector {
                    continue;
                }
                if sectors[changed % sectors.len()] {
                    old[range].copy_from_slice(sector);
                } else if garbage {
                    old[range].fill(0xa5);
                }
                changed += 1;
            }
            std::fs::write(before, old).unwrap();
        }
        for _ in 0..2 {
            let mut again = config(&to);
            again.registry = prometheus::Registry::new();
            let copy = LocalBookie::open(again).unwrap();
            check(&*copy, 1, 0..acked, 700);
            for (at, len) in torn.iter().enumerate() {
                let entry = acked + at as i64;
                match read(&*copy, 1, entry, 1) {
                    Ok(found) => assert_eq!(found[0].payload, payload(1, entry, *len)),
                    Err(error) => assert_eq!(error, BookieError::NoSuchEntry),
                }
            }
        }
    }
}
