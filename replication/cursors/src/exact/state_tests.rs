//! The lattice by examples; its laws stand in `tests/laws.rs`.

use super::*;
use meridian_types::{Incarnation, RegionId};

fn origin(region: u32) -> Origin {
    Origin::new(RegionId(region), Incarnation(1))
}

fn at(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

fn state() -> AckState {
    AckState::new(Epoch::creation(1, RegionId(1)))
}

#[test]
fn acks_without_a_gap_raise_upto_within_a_ledger() {
    let (mut state, o) = (state(), origin(1));
    state.raise_upto(o, at(5, 10));
    state.ack(o, at(5, 12));
    assert_eq!(state.upto(o), at(5, 10));
    state.ack(o, at(5, 11));
    assert_eq!(state.upto(o), at(5, 12));
    assert_eq!(state.scattered_entries(), 0);
    state.ack(o, at(6, 0));
    // Whether ledger 5 has an entry 13 is not known here.
    assert_eq!(state.upto(o), at(5, 12));
    assert_eq!(state.ackedness(o, at(6, 0)), Ackedness::Whole);
    assert_eq!(state.ackedness(o, at(5, 13)), Ackedness::No);
    assert_eq!(state.ackedness(origin(2), at(5, 1)), Ackedness::No);
}

#[test]
fn parts_of_batches_are_or_ed_and_end_with_the_whole() {
    let (mut state, o) = (state(), origin(1));
    state.ack_partly(o, at(1, 4), &[0b01, 0]);
    state.ack_partly(o, at(1, 4), &[0b10]);
    assert_eq!(state.ackedness(o, at(1, 4)), Ackedness::Partly(&[0b11]));
    state.ack_partly(o, at(1, 5), &[0, 1]);
    state.ack(o, at(1, 4));
    assert_eq!(state.ackedness(o, at(1, 4)), Ackedness::Whole);
    assert_eq!(state.origins()[&o].partial().len(), 1);
    state.raise_upto(o, at(1, 5));
    assert!(state.origins()[&o].partial().is_empty());
    state.ack_partly(o, at(1, 5), &[1]);
    assert!(state.origins()[&o].partial().is_empty());
}

#[test]
fn merging_answers_what_was_new() {
    let (mut mine, mut theirs, o) = (state(), state(), origin(2));
    mine.ack(o, at(1, 1));
    mine.ack_partly(o, at(1, 8), &[1]);
    theirs.raise_upto(o, at(1, 2));
    theirs.ack(o, at(1, 6));
    theirs.ack_partly(o, at(1, 8), &[0b11]);
    let new = mine.merge(&theirs);
    assert_eq!(new.upto(o), at(1, 2));
    assert_eq!(new.ackedness(o, at(1, 6)), Ackedness::Whole);
    assert_eq!(new.ackedness(o, at(1, 8)), Ackedness::Partly(&[0b10]));
    assert!(mine.merge(&theirs).is_empty());
    assert_eq!(mine.ackedness(o, at(1, 8)), Ackedness::Partly(&[0b11]));
}

#[test]
fn a_higher_epoch_replaces_everything_and_a_lower_one_says_nothing() {
    let (mut mine, o) = (state(), origin(1));
    mine.raise_upto(o, at(9, 9));
    let old = mine.clone();
    let mut seek = AckState::new(mine.epoch().next(50, RegionId(2)));
    seek.raise_upto(o, at(3, 3));
    assert_eq!(mine.merge(&seek), seek);
    assert_eq!(mine.ackedness(o, at(3, 4)), Ackedness::No);
    assert!(mine.merge(&old).is_empty());
    assert_eq!(mine, seek);
    let tombstone = AckState::tombstone(seek.epoch().next(60, RegionId(1)));
    mine.merge(&tombstone);
    assert!(mine.is_deleted());
    mine.ack(o, at(3, 4));
    assert_eq!(mine, tombstone);
}

#[test]
fn positions_that_cannot_be_are_not_taken() {
    let (mut state, o) = (state(), origin(1));
    state.ack(o, at(1, -1));
    state.ack(o, at(-1, 1));
    state.ack(o, at(1, i64::from(u32::MAX) + 1));
    state.ack_partly(o, at(-4, 0), &[1]);
    assert!(state.is_empty());
    state.raise_upto(o, Position::LATEST);
    assert_eq!(state.ackedness(o, at(1, 1)), Ackedness::Whole);
}

#[test]
fn parts_taken_add_up_to_the_whole() {
    let (mut state, o) = (state(), origin(1));
    state.raise_upto(o, at(1, 0));
    state.raise_upto(origin(2), at(7, 0));
    for ledger in 2..40 {
        (0..200).step_by(2).for_each(|entry| state.ack(o, at(ledger, entry)));
        state.ack_partly(o, at(ledger, 301), &[7]);
    }
    let mut rest = state.clone();
    let mut sum = AckState::new(state.epoch());
    let mut parts = 0;
    loop {
        let part = rest.take_part(1000);
        assert!(crate::exact::encode(&part).len() < 1500);
        parts += 1;
        if parts == 1 {
            assert_eq!(part.upto(origin(2)), at(7, 0));
        }
        sum.merge(&part);
        if rest.is_empty() {
            break;
        }
    }
    assert!(parts > 3, "{parts}");
    assert_eq!(sum, state);
}
