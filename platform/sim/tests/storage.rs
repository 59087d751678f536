//! The storage of a region over many seeds: nothing is found, enough happens, and every checker finds the bugs that are
//! planted for it.

use meridian_sim::storage::{Bug, run_many_storage, run_storage};

const SEEDS: u64 = 2_000;
/// A planted bug has to be found within so many seeds.
const BUG_SEEDS: u64 = 3_000;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Field report B138 among others: the network loses and delays what goes between writers, recoveries and bookies.
#[test]
fn two_thousand_seeds_violate_nothing() {
    let report = run_many_storage(0, SEEDS, Bug::Nothing, threads(), 1);
    assert_eq!(report.first, [], "play it: cargo run -p meridian-sim -- --world storage --seed N");
    assert_eq!((report.runs, report.violated), (SEEDS, 0));
    for (name, count) in report.coverage.list() {
        assert!(count > 0, "{name} never happened");
    }
    assert!(report.coverage.confirmed > SEEDS * 50 && report.coverage.copies > SEEDS, "{}", report.coverage);
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 7, 50] {
        let (one, other) = (run_storage(seed, Bug::Nothing, true), run_storage(seed, Bug::Nothing, true));
        assert!(one.trace.len() > 5);
        assert_eq!(one.trace, other.trace);
        assert_eq!((one.coverage, one.ended_ms), (other.coverage, other.ended_ms));
    }
}

/// The first violation that a planted bug causes; its first word is the checker.
fn found(bug: Bug, checkers: &[&str]) {
    let report = run_many_storage(0, BUG_SEEDS, bug, threads(), 1);
    let Some((seed, violation)) = report.first.first() else { panic!("{bug:?} was not found in {BUG_SEEDS} seeds") };
    assert!(checkers.iter().any(|checker| violation.starts_with(checker)), "{bug:?}, seed {seed}: {violation}");
}

#[test]
fn a_confirmation_with_a_copy_too_few_is_seen() {
    found(Bug::ConfirmsTooEarly, &["copies"]);
}

#[test]
fn answers_before_the_sync_are_seen() {
    found(Bug::AcksUnsynced, &["copies"]);
}

/// Found without planting it: a fence has to outlive its ledger.
#[test]
fn a_fence_that_goes_with_its_ledger_is_seen() {
    found(Bug::DeletedFencesForgotten, &["writer"]);
}

#[test]
fn fences_that_do_nothing_are_seen() {
    found(Bug::NothingIsFenced, &["writer", "lost"]);
}

#[test]
fn silence_that_counts_as_missing_is_seen() {
    found(Bug::ErrorsCountAsMissing, &["lost"]);
}

#[test]
fn a_recovery_that_writes_nothing_back_is_seen() {
    found(Bug::FoundIsNotRewritten, &["copies", "lost"]);
}

#[test]
fn a_member_that_counts_too_early_is_seen() {
    found(Bug::CountsBeforeStored, &["copies", "holdings"]);
}

#[test]
fn a_change_without_compare_is_seen() {
    found(Bug::ChangesWithoutCompare, &["state"]);
}

#[test]
fn a_recovery_that_tells_its_progress_is_seen() {
    found(Bug::RecoveryTellsItsProgress, &["lac"]);
}

#[test]
fn re_replication_that_copies_nothing_is_seen() {
    found(Bug::NothingIsCopied, &["copies"]);
}

#[test]
fn re_replication_of_an_open_end_is_seen() {
    found(Bug::OpenEndIsMoved, &["state"]);
}

#[test]
fn damage_that_is_not_said_is_seen() {
    found(Bug::DamageIsHidden, &["readers", "content"]);
}

#[test]
fn holdings_that_do_not_follow_are_seen() {
    found(Bug::HoldingsForgotten, &["holdings"]);
}

#[test]
fn a_cursor_that_passes_unread_entries_is_seen() {
    found(Bug::ReadPositionPersisted, &["cursor"]);
}

#[test]
fn trimming_of_what_is_not_acknowledged_is_seen() {
    found(Bug::TrimsUnacked, &["deleted"]);
}

#[test]
fn deleting_what_is_listed_is_seen() {
    found(Bug::DeletesBeforeListing, &["deleted"]);
}
