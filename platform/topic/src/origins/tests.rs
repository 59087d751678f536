//! Marks of origins: scripts, exactly-once over refusals and reloads, snapshots.

use super::*;
use proptest::prelude::*;

const WEST: Source = Source { region: RegionId(7), incarnation: Incarnation(1) };

fn at(entry: i64) -> Origin {
    Origin { source: WEST, position: Position::new(3, entry) }
}

fn verdicts<const N: usize>(marks: &mut OriginMarks, entries: [i64; N], now_ms: u64) -> [OriginVerdict; N] {
    entries.map(|entry| marks.decide(&at(entry), now_ms))
}

use OriginVerdict::{Behind, Duplicate, Store, Unknown};

#[test]
fn golden_script() {
    let mut marks = OriginMarks::new(0);
    marks.open(WEST, true, 0);
    assert_eq!(verdicts(&mut marks, [0, 1, 4], 0), [Store; 3], "positions may have holes");
    marks.confirm(&at(0));
    assert_eq!(verdicts(&mut marks, [0], 0), [Duplicate]);
    assert_eq!(verdicts(&mut marks, [1], 0), [Unknown], "its fate is open");
    marks.open(WEST, true, 0);
    marks.confirm(&at(1));
    marks.confirm(&at(4));
    assert_eq!(verdicts(&mut marks, [1, 4, 5], 0), [Duplicate, Duplicate, Store]);
    let other = Source { incarnation: Incarnation(2), ..WEST };
    let recreated = Origin { source: other, position: Position::new(1, 0) };
    assert_eq!(marks.decide(&recreated, 0), Store, "a recreated source is another one");
    assert_eq!(marks.figures(WEST).unwrap().duplicates, 3);
}

/// The head of the pipeline is refused, later entries must not be stored before it came again: with a sender that
/// rewinds at once, and with one that has later entries under way for a while.
#[test]
fn b012_nothing_passes_a_refused_head() {
    let mut marks = OriginMarks::new(0);
    marks.open(WEST, false, 0);
    assert_eq!(verdicts(&mut marks, [0], 0), [Store]);
    marks.confirm(&at(0));
    marks.turn_away(&at(1));
    let behind = Behind(Position::new(3, 1));
    assert_eq!(verdicts(&mut marks, [2, 3], 5), [behind; 2]);
    assert_eq!(verdicts(&mut marks, [0], 6), [Duplicate], "a lost receipt does not open the gate");
    assert_eq!(verdicts(&mut marks, [2], 6), [behind]);
    marks.open(WEST, false, 7);
    assert_eq!(verdicts(&mut marks, [2, 3], 8), [behind; 2], "nor does a reconnect of a sender that keeps its queue");
    assert_eq!(verdicts(&mut marks, [1, 2, 3], 9), [Store; 3]);
}

/// What was refused because of an entry in flight is not passed when that one is stored after all.
#[test]
fn b012_nothing_passes_what_was_refused_behind_an_open_fate() {
    let mut marks = OriginMarks::new(0);
    marks.open(WEST, true, 0);
    assert_eq!(verdicts(&mut marks, [7], 0), [Store]);
    marks.open(WEST, true, 1);
    let behind = |entry| Behind(Position::new(3, entry));
    assert_eq!(verdicts(&mut marks, [7, 8, 9], 2), [Unknown, behind(7), behind(7)]);
    marks.confirm(&at(7));
    assert_eq!(verdicts(&mut marks, [10], 3), [behind(8)], "8 and 9 were refused");
    marks.open(WEST, true, 4);
    assert_eq!(verdicts(&mut marks, [7, 8, 9, 10], 5), [Duplicate, Store, Store, Store]);
}

/// The same with more in flight: what is behind and on its way to storage is not taken for refused.
#[test]
fn what_is_in_flight_behind_an_open_fate_is_confirmed() {
    let mut marks = OriginMarks::new(0);
    assert_eq!(verdicts(&mut marks, [7, 8], 0), [Store; 2]);
    marks.open(WEST, true, 1);
    let behind = Behind(Position::new(3, 7));
    assert_eq!(verdicts(&mut marks, [7, 8, 9], 2), [Unknown, behind, behind]);
    marks.confirm(&at(7));
    marks.confirm(&at(8));
    assert!(marks.is_stored(&at(8)));
    assert_eq!(verdicts(&mut marks, [10], 3), [Behind(Position::new(3, 9))]);
    assert_eq!(verdicts(&mut marks, [8, 9, 10], 4), [Duplicate, Store, Store]);
}

#[test]
fn a_sender_that_rewinds_opens_the_gate_by_attaching() {
    let mut marks = OriginMarks::new(0);
    assert_eq!(verdicts(&mut marks, [0, 1], 0), [Store; 2]);
    marks.refuse(&at(1));
    marks.refuse(&at(0));
    assert_eq!(verdicts(&mut marks, [2], 0), [Behind(Position::new(3, 0))]);
    marks.open(WEST, true, 0);
    assert_eq!(verdicts(&mut marks, [2], 0), [Store], "0 and 1 have expired at the source meanwhile");
}

#[test]
fn a_refused_entry_that_never_comes_again_is_given_up_and_counted() {
    let mut marks = OriginMarks::new(0);
    marks.open(WEST, false, 0);
    assert_eq!(verdicts(&mut marks, [0], 0), [Store]);
    marks.confirm(&at(0));
    marks.refuse(&at(1));
    assert!(matches!(marks.decide(&at(2), 100), Behind(_)));
    assert!(matches!(marks.decide(&at(2), 99 + GIVE_UP_MS), Behind(_)));
    assert_eq!(marks.decide(&at(2), 100 + GIVE_UP_MS), Store);
    assert_eq!(marks.figures(WEST).unwrap().given_up, 1);
}

/// A storage failure in the middle: what was in flight before it is confirmed, the failed one is not covered by it.
#[test]
fn a_failed_append_is_stored_when_it_comes_again() {
    let mut marks = OriginMarks::new(0);
    assert_eq!(verdicts(&mut marks, [0, 1, 2], 0), [Store; 3]);
    marks.refuse(&at(1));
    marks.refuse(&at(2));
    assert_eq!(verdicts(&mut marks, [0], 0), [Unknown], "still in flight");
    marks.confirm(&at(0));
    marks.open(WEST, true, 0);
    assert_eq!(verdicts(&mut marks, [0, 1, 2], 0), [Duplicate, Store, Store]);
}

#[test]
fn what_is_known_by_another_name_counts_only_if_nothing_before_it_failed() {
    let mut marks = OriginMarks::new(0);
    assert_eq!(verdicts(&mut marks, [0, 1], 0), [Store; 2]);
    marks.refuse(&at(0));
    marks.confirm(&at(1));
    assert!(!marks.is_stored(&at(0)), "the mark must not cover the failed one");
    assert_eq!(verdicts(&mut marks, [0], 0), [Store]);
}

#[test]
fn origins_are_bounded() {
    let mut marks = OriginMarks::new(0);
    for incarnation in 0..ORIGINS_MAX as u64 + 10 {
        marks.open(Source { incarnation: Incarnation(incarnation), ..WEST }, true, incarnation);
    }
    assert_eq!(marks.all().count(), ORIGINS_MAX);
    assert_eq!(marks.figures(Source { incarnation: Incarnation(9), ..WEST }), None, "the longest idle ones went");
}

#[test]
fn golden_bytes() {
    let mark = OriginMark { source: WEST, persisted: Position::new(3, 4), last_active_ms: 5 };
    let snapshot = OriginSnapshot { covered: Position::new(1, 2), taken_ms: 9, marks: vec![mark] };
    let raw = snapshot.encode();
    let mut expected = vec![1, 0, 0, 0];
    expected.extend_from_slice(&raw[4..8]);
    for word in [1u64, 2, 9] {
        expected.extend_from_slice(&word.to_le_bytes());
    }
    expected.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
    for word in [1u64, 3, 4, 5] {
        expected.extend_from_slice(&word.to_le_bytes());
    }
    assert_eq!(raw, expected);
    assert_eq!(OriginSnapshot::decode(&raw), Ok(snapshot));
}

#[test]
fn damage_is_found() {
    let mark = OriginMark { source: WEST, persisted: Position::new(3, 4), last_active_ms: 5 };
    let raw = OriginSnapshot { covered: Position::new(1, 2), taken_ms: 9, marks: vec![mark; 3] }.encode();
    for byte in 0..raw.len() {
        let mut damaged = raw.clone();
        damaged[byte] ^= 0x10;
        assert!(OriginSnapshot::decode(&damaged).is_err(), "byte {byte}");
        assert!(OriginSnapshot::decode(&raw[..byte]).is_err(), "cut at {byte}");
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = OriginSnapshot::decode(&raw);
    }

    /// A sender that pipelines, loses receipts, is refused, reconnects, and a topic that reloads: everything is stored
    /// exactly once and in order.
    #[test]
    fn every_entry_is_stored_once(
        steps in proptest::collection::vec((0u8..10, 1usize..6), 1..120),
        rewinds in any::<bool>(),
    ) {
        const TOTAL: i64 = 40;
        let mut marks = OriginMarks::new(0);
        marks.open(WEST, rewinds, 0);
        let mut stored: Vec<i64> = Vec::new();
        let mut flight: std::collections::VecDeque<i64> = Default::default();
        // The sender: everything below is acked; it sends from `next` on.
        let (mut acked, mut next) = (0i64, 0i64);
        let mut now_ms = 0;
        let calm = std::iter::repeat_n((9u8, 3usize), 400);
        for (step, count) in steps.into_iter().chain(calm) {
            now_ms += 1;
            match step {
                // Storage fails what is in flight from some point on.
                0 => {
                    let keep = count.min(flight.len());
                    for lost in flight.split_off(keep) {
                        marks.refuse(&at(lost));
                        next = next.min(lost);
                    }
                    next = next.min(acked).max(0);
                }
                // A single entry is refused before storage is asked.
                1 if next < TOTAL && !marks.is_stored(&at(next)) => {
                    marks.turn_away(&at(next));
                    next = acked;
                }
                // Receipts are lost and the sender reconnects.
                2 => {
                    marks.open(WEST, rewinds, now_ms);
                    next = acked;
                }
                // The topic reloads from what is stored.
                3 => {
                    for entry in flight.drain(..) {
                        stored.push(entry);
                    }
                    marks = OriginMarks::new(now_ms);
                    for entry in &stored {
                        marks.replayed(&at(*entry), 0);
                    }
                    marks.open(WEST, rewinds, now_ms);
                    next = acked;
                }
                // Confirmations, with receipts for the even step only.
                4 | 9 => {
                    for _ in 0..count {
                        let Some(entry) = flight.pop_front() else { break };
                        marks.confirm(&at(entry));
                        stored.push(entry);
                    }
                }
                _ => {}
            }
            for _ in 0..count {
                if next >= TOTAL {
                    next = acked;
                    break;
                }
                match marks.decide(&at(next), now_ms) {
                    Store => {
                        flight.push_back(next);
                        next += 1;
                    }
                    Duplicate => {
                        acked = acked.max(next + 1);
                        next += 1;
                    }
                    Unknown | Behind(_) => {
                        next = acked;
                        break;
                    }
                }
            }
        }
        prop_assert_eq!(stored, (0..TOTAL).collect::<Vec<_>>());
    }
}
