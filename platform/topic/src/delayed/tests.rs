//! The index of delayed messages against a model, its bounds and its order.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn p(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

#[test]
fn golden_script() {
    let mut tracker = DelayedTracker::new(1000);
    tracker.add(p(1, 5), 2500);
    tracker.add(p(1, 6), 1001);
    tracker.add(p(1, 7), 3000);
    tracker.add(p(1, 7), 3000);
    assert_eq!((tracker.len(), tracker.next_due()), (3, Some(2000)));
    assert_eq!(tracker.take_due(1999, 10), []);
    assert_eq!(tracker.take_due(2000, 10), [p(1, 6)]);
    assert_eq!(tracker.next_due(), Some(3000), "2500 is rounded up, never down");
    assert_eq!(tracker.take_due(9000, 1), [p(1, 5)]);
    assert_eq!(tracker.take_due(9000, 1), [p(1, 7)]);
    assert_eq!((tracker.len(), tracker.next_due(), tracker.index_bytes()), (0, None, 0));
    tracker.add(p(2, 0), u64::MAX);
    assert_eq!(tracker.take_due(u64::MAX - 1, 10), []);
    tracker.clear();
    assert!(tracker.is_empty());
}

#[test]
fn forgets_what_was_acknowledged() {
    let mut tracker = DelayedTracker::new(1);
    for entry in 0..100 {
        tracker.add(p(1, entry), 50);
        tracker.add(p(2, entry), 60);
    }
    tracker.forget_up_to(p(2, -1));
    assert_eq!(tracker.len(), 100, "before the first entry of a ledger");
    tracker.forget_up_to(p(2, 98));
    assert_eq!(tracker.len(), 1);
    assert_eq!(tracker.take_due(60, 10), [p(2, 99)]);
}

/// Due beats tracked: an entry seen again when it is due is delivered by whoever reads it; the tracker neither asks nor
/// answers whether it is tracked, and gives it out at most once.
#[test]
fn b092_an_entry_is_given_out_once_however_often_it_was_added() {
    let mut tracker = DelayedTracker::new(1000);
    for _restart in 0..3 {
        for entry in 0..1000 {
            tracker.add(p(1, entry), 5000);
        }
    }
    assert_eq!(tracker.len(), 1000);
    assert_eq!(tracker.take_due(5000, 10_000).len(), 1000);
    assert_eq!(tracker.take_due(u64::MAX, 10_000), []);
}

/// Nothing is stored, so nothing can be lost: the index made of the unacknowledged entries is the index.
#[test]
fn b093_the_index_is_made_of_the_log_again() {
    let log: Vec<(Position, u64)> =
        (0..5000).map(|i| (p(i / 500, i % 500), 1000 + (i as u64 * 7919) % 60_000)).collect();
    let fill = |tracker: &mut DelayedTracker| log.iter().for_each(|(position, due)| tracker.add(*position, *due));
    let (mut first, mut again) = (DelayedTracker::new(1000), DelayedTracker::new(1000));
    fill(&mut first);
    fill(&mut again);
    for now in (0..62_000).step_by(1000) {
        assert_eq!(first.take_due(now, usize::MAX), again.take_due(now, usize::MAX));
    }
    assert!(first.is_empty());
}

/// A million entries over ten minutes: exact buckets all the way, and the index is small.
#[test]
fn b095_a_million_entries_over_ten_minutes_stay_exact_and_small() {
    let mut tracker = DelayedTracker::new(1000);
    let due_of = |i: i64| 1000 + (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 600_000;
    for i in 0..1_000_000 {
        tracker.add(p(i / 50_000, i % 50_000), due_of(i));
    }
    assert!(tracker.index_bytes() < 2 * EXACT_INDEX_BYTES, "{} bytes", tracker.index_bytes());
    let mut given = 0;
    for now in (0..=601_000).step_by(1000) {
        for position in tracker.take_due(now, usize::MAX) {
            let due = due_of(position.ledger_id.0 * 50_000 + position.entry_id.0);
            assert!(due <= now || tracker.index_bytes() > 0, "{position} is early");
            given += 1;
        }
    }
    assert_eq!(given, 1_000_000);
}

/// Times far apart: buckets are joined, so the taker sees entries early and adds them again; each comes out at its time.
#[test]
fn b095_delays_spread_over_a_month_stay_within_the_bound() {
    let mut tracker = DelayedTracker::new(1000);
    let month_ms = 30 * 86_400_000_u64;
    let due_of = |i: i64| 1000 + (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % month_ms;
    let entries = 300_000;
    let mut most_bytes = 0;
    for i in 0..entries {
        tracker.add(p(i / 50_000, i % 50_000), due_of(i));
        most_bytes = most_bytes.max(tracker.index_bytes());
    }
    assert!(most_bytes <= EXACT_INDEX_BYTES + 1024, "{most_bytes} bytes");
    let (mut now, mut delivered, mut looked_at) = (0, 0, 0_u64);
    while let Some(due) = tracker.next_due() {
        now = due.max(now);
        for position in tracker.take_due(now, usize::MAX) {
            looked_at += 1;
            let own = due_of(position.ledger_id.0 * 50_000 + position.entry_id.0);
            if own <= now {
                assert!(now - own < 1000, "late by {} ms", now - own);
                delivered += 1;
            } else {
                tracker.add(position, own);
            }
        }
    }
    assert_eq!(delivered, entries);
    assert!(looked_at < 12 * entries as u64, "{looked_at} looks for {entries} entries");
}

/// Time passes without a consumer: what fell due meanwhile is there at once.
#[test]
fn b096_due_time_does_not_depend_on_a_consumer() {
    let mut tracker = DelayedTracker::new(1000);
    tracker.add(p(1, 0), 5000);
    assert_eq!(tracker.next_due(), Some(5000));
    assert_eq!(tracker.take_due(20_000, 100), [p(1, 0)]);
}

proptest! {
    #[test]
    fn behaves_like_a_sorted_set(
        adds in proptest::collection::vec((0i64..4, 0i64..60, 0u64..5000), 0..300),
        takes in proptest::collection::vec((0u64..6000, 0usize..40), 1..20),
        forget in (0i64..4, -1i64..60),
    ) {
        let mut tracker = DelayedTracker::new(100);
        let mut model: BTreeSet<(u64, Position)> = BTreeSet::new();
        for (ledger, entry, due) in adds {
            tracker.add(p(ledger, entry), due);
            model.insert((due.div_ceil(100) * 100, p(ledger, entry)));
        }
        tracker.forget_up_to(p(forget.0, forget.1));
        model.retain(|(_, position)| *position > p(forget.0, forget.1));
        for (now, max) in takes {
            let expected: Vec<_> = model.iter().take_while(|(due, _)| *due <= now).take(max).copied().collect();
            for gone in &expected {
                model.remove(gone);
            }
            let taken = tracker.take_due(now, max);
            prop_assert_eq!(taken, expected.iter().map(|(_, position)| *position).collect::<Vec<_>>());
            prop_assert_eq!(tracker.len(), model.len() as u64);
            prop_assert_eq!(tracker.next_due(), model.first().map(|(due, _)| *due));
        }
    }
}
