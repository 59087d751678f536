//! Every checker finds the bugs that are planted for it.

use meridian_sim::{Planted, run_many};

/// A planted bug has to be found within so many seeds.
const SEEDS: u64 = 400;

/// The first violation that a planted bug causes; its first word is the checker.
fn found(planted: Planted, checkers: &[&str]) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let report = run_many(0, SEEDS, planted, threads, 1);
    let Some((seed, violation)) = report.first.first() else {
        panic!("{planted:?} was not found in {SEEDS} seeds");
    };
    let text = violation.split_once(": ").map_or("", |(_, text)| text);
    assert!(checkers.iter().any(|checker| text.starts_with(checker)), "{planted:?}, seed {seed}: {violation}");
}

/// The upstream silent loss: head of the queue refused, later entries stored, rewind, *duplicate*.
#[test]
fn b012_refusals_without_a_gate_lose_entries() {
    found(Planted::RefusalsUngated, &["dedup", "lost"]);
}

#[test]
fn forgotten_marks_store_twice() {
    found(Planted::MarksForgotten, &["twice"]);
}

#[test]
fn without_the_loop_rule_entries_come_back() {
    found(Planted::LoopRuleOff, &["twice", "dedup"]);
}

#[test]
fn a_network_that_turns_sends_round_loses_them() {
    found(Planted::SendsReordered, &["order", "dedup", "lost"]);
}

#[test]
fn a_log_that_turns_appends_round_breaks_the_order() {
    found(Planted::AppendsReordered, &["order"]);
}

#[test]
fn receipts_before_the_entry_is_durable_are_seen() {
    found(Planted::EarlyReceipts, &["lost", "dedup"]);
}

#[test]
fn expiry_without_a_count_is_seen() {
    found(Planted::ExpiryUncounted, &["lost"]);
}

#[test]
fn removal_without_a_gap_is_seen() {
    found(Planted::GapsHidden, &["lost"]);
}

#[test]
fn dropped_acks_keep_regions_apart() {
    found(Planted::AcksDropped, &["diverged", "epochs"]);
}

#[test]
fn acks_confirmed_before_they_are_stored_are_forgotten() {
    found(Planted::AcksUnstored, &["acks", "diverged", "epochs"]);
}

#[test]
fn a_dispatcher_that_does_not_ask_delivers_after_the_ack() {
    found(Planted::AcksUnasked, &["acks"]);
}

#[test]
fn a_region_that_does_not_ask_for_what_it_lost_stays_behind() {
    found(Planted::NoResync, &["diverged", "epochs"]);
}

#[test]
fn ignored_epochs_make_two_regions_active() {
    found(Planted::EpochsIgnored, &["epochs"]);
}

#[test]
fn a_switch_without_draining_loses() {
    found(Planted::DrainSkipped, &["epochs"]);
}

#[test]
fn a_forgotten_tail_is_a_loss() {
    found(Planted::TailForgotten, &["lost"]);
}

#[test]
fn producers_that_are_not_global_are_stored_twice() {
    found(Planted::GlobalOff, &["twice"]);
}
