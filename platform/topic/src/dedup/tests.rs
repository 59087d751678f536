//! Deduplication marks: scripts, exactly-once over crashes, snapshots.

use super::ranges::Ranges;
use super::*;
use proptest::prelude::*;

fn one(sequence: i64) -> Sequence {
    Sequence::new(sequence, Some(sequence), 1)
}

fn part(sequence: i64, uuid_hash: u64, index: u32, last: bool) -> Sequence {
    Sequence { chunk: Some(ChunkPart { uuid_hash, index, last }), ..one(sequence) }
}

#[test]
fn golden_script() {
    let mut dedup = Dedup::new(0, 0);
    assert_eq!(dedup.attach("p", 0), -1);
    assert_eq!(dedup.decide("p", &one(0), 0), Verdict::Store);
    assert_eq!(dedup.decide("p", &Sequence::new(1, Some(9), 1), 0), Verdict::Store);
    assert_eq!(dedup.decide("p", &one(0), 0), Verdict::Unknown);
    dedup.confirm("p", &one(0));
    assert_eq!(dedup.decide("p", &one(0), 0), Verdict::Duplicate);
    assert_eq!(dedup.decide("p", &Sequence::new(1, Some(9), 1), 0), Verdict::Unknown);
    dedup.confirm("p", &Sequence::new(1, Some(9), 1));
    assert_eq!(dedup.decide("p", &Sequence::new(1, Some(9), 1), 0), Verdict::Duplicate);
    assert_eq!(dedup.decide("p", &one(5), 0), Verdict::Duplicate);
    assert_eq!(dedup.decide("q", &one(5), 0), Verdict::Store, "each name has its own marks");
    dedup.detach("p", 1);
    assert_eq!(dedup.attach("p", 2), 9);
    assert_eq!(dedup.last_sequence_id("nobody"), -1);
}

/// Only what is proven stored as a whole is a duplicate.
#[test]
fn a_batch_that_is_partly_new_is_stored() {
    let mut dedup = Dedup::new(0, 0);
    dedup.replayed("p", &one(4), 0);
    assert_eq!(dedup.decide("p", &Sequence::new(3, Some(6), 1), 0), Verdict::Store);
}

/// A write fails in storage; the retry is stored, it is not called a duplicate.
#[test]
fn b063_a_failed_write_is_stored_when_it_comes_again() {
    let mut dedup = Dedup::new(0, 0);
    for sequence in 0..3 {
        assert_eq!(dedup.decide("p", &one(sequence), 0), Verdict::Store);
    }
    dedup.confirm("p", &one(0));
    dedup.refuse("p", &one(1));
    dedup.refuse("p", &one(2));
    assert_eq!(dedup.decide("p", &one(0), 0), Verdict::Duplicate);
    assert_eq!(dedup.decide("p", &one(1), 0), Verdict::Store);
    assert_eq!(dedup.decide("p", &one(2), 0), Verdict::Store);
}

/// What is still in flight before a refused send keeps its mark.
#[test]
fn b063_a_refused_send_does_not_open_what_is_in_flight_before_it() {
    let mut dedup = Dedup::new(0, 0);
    let sends = [one(0), part(1, 7, 0, false), part(1, 7, 1, false), part(1, 7, 2, true), one(2)];
    for sequence in &sends {
        assert_eq!(dedup.decide("p", sequence, 0), Verdict::Store);
    }
    for lost in sends[2..].iter().rev() {
        dedup.refuse("p", lost);
    }
    dedup.attach("p", 0);
    let again = sends.map(|sequence| dedup.decide("p", &sequence, 0));
    use Verdict::{Store, Unknown};
    assert_eq!(again, [Unknown, Unknown, Store, Store, Store]);
}

/// A refused send stops what was sent behind it: later ones must not be stored first, or the marks would cover it.
#[test]
fn b012_nothing_passes_a_refused_send() {
    let mut dedup = Dedup::new(0, 0);
    assert_eq!(dedup.decide("p", &one(0), 0), Verdict::Store);
    dedup.confirm("p", &one(0));
    assert_eq!(dedup.decide("p", &one(1), 0), Verdict::Store);
    dedup.refuse("p", &one(1));
    assert_eq!(dedup.decide("p", &one(2), 0), Verdict::Unknown);
    assert_eq!(dedup.decide("p", &one(3), 0), Verdict::Unknown);
    assert_eq!(dedup.decide("p", &one(1), 0), Verdict::Store);
    assert_eq!(dedup.decide("p", &one(2), 0), Verdict::Store);

    dedup.refuse("p", &one(2));
    assert_eq!(dedup.attach("p", 0), 1, "a producer that attaches anew may go on where it likes");
    assert_eq!(dedup.decide("p", &one(7), 0), Verdict::Store);
}

/// All parts share one sequence id; each is stored once, also when the connection breaks between them.
#[test]
fn b065_parts_of_a_chunked_message_are_told_apart() {
    let mut dedup = Dedup::new(0, 0);
    for index in 0..3 {
        assert_eq!(dedup.decide("p", &part(5, 77, index, false), 0), Verdict::Store, "part {index}");
    }
    dedup.confirm("p", &part(5, 77, 0, false));
    dedup.confirm("p", &part(5, 77, 1, false));
    assert_eq!(dedup.attach("p", 0), -1);
    let again = [0, 1, 2, 3].map(|index| dedup.decide("p", &part(5, 77, index, index == 3), 0));
    assert_eq!(again, [Verdict::Duplicate, Verdict::Duplicate, Verdict::Unknown, Verdict::Store]);
    dedup.confirm("p", &part(5, 77, 2, false));
    dedup.confirm("p", &part(5, 77, 3, true));
    assert_eq!(dedup.last_sequence_id("p"), 5);
    let late = [0, 3].map(|index| dedup.decide("p", &part(5, 77, index, index == 3), 0));
    assert_eq!(late, [Verdict::Duplicate; 2]);
}

/// A client that died half-way sends the message again under another uuid: all its parts are stored.
#[test]
fn b065_a_new_attempt_at_a_chunked_message_is_stored_as_a_whole() {
    let mut dedup = Dedup::new(0, 0);
    dedup.replayed("p", &part(5, 77, 0, false), 0);
    dedup.replayed("p", &part(5, 77, 1, false), 0);
    for index in 0..3 {
        let sequence = part(5, 88, index, index == 2);
        assert_eq!(dedup.decide("p", &sequence, 0), Verdict::Store, "part {index}");
        dedup.confirm("p", &sequence);
    }
    assert_eq!(dedup.decide("p", &one(5), 0), Verdict::Duplicate);
}

#[test]
fn b069_vanished_producers_are_forgotten_and_the_snapshot_says_so() {
    let mut dedup = Dedup::new(0, 0);
    for i in 0..2000 {
        let name = format!("p{i}");
        dedup.attach(&name, i);
        assert_eq!(dedup.decide(&name, &one(0), i), Verdict::Store);
        dedup.confirm(&name, &one(0));
        if i != 7 {
            dedup.detach(&name, i);
        }
    }
    let full = dedup.snapshot(Position::new(1, 1999), 2000);
    assert_eq!(full.producers.len(), 2000);
    assert!(!dedup.snapshot_due(1_000_000, 1000, 120_000), "nothing changed");
    assert_eq!(dedup.forget_idle(2000 + 60_000, 60_000), 1999);
    assert!(dedup.snapshot_due(2000 + 120_000, 1000, 120_000));
    let rest = dedup.snapshot(Position::new(1, 1999), 3_000_000);
    assert_eq!(rest.producers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["p7"]);
    assert_eq!(Dedup::restore(&rest, 0, 0).len(), 1);
}

#[test]
fn names_are_bounded_and_the_longest_idle_go_first() {
    let mut dedup = Dedup::new(100, 0);
    dedup.attach("stays", 0);
    for i in 1..1000 {
        dedup.replayed(&format!("p{i}"), &one(i), i as u64);
        assert!(dedup.len() <= 101);
    }
    assert_eq!(dedup.last_sequence_id("p999"), 999);
    assert_eq!(dedup.last_sequence_id("p1"), -1);
    assert_eq!(dedup.marks().filter(|(name, ..)| *name == "stays").count(), 1);
}

fn sample() -> Snapshot {
    let partial = Some(Partial { sequence: 8, uuid_hash: 0x0102, next: 3 });
    Snapshot {
        covered: Position::new(3, 4),
        taken_ms: 5,
        exact: false,
        producers: vec![
            SnapshotProducer {
                name: "ab".to_owned(),
                mark: Mark { sequence: 6, partial: None },
                ranges: Ranges::default(),
                last_active_ms: 7,
            },
            SnapshotProducer {
                name: "c".to_owned(),
                mark: Mark { sequence: -1, partial },
                ranges: Ranges::default(),
                last_active_ms: 9,
            },
        ],
    }
}

#[test]
fn golden_bytes() {
    let raw = sample().encode();
    let mut expected = vec![1, 0, 0, 0];
    expected.extend_from_slice(&raw[4..8]);
    expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend_from_slice(&[2, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
    expected.extend_from_slice(&[1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    expected.extend_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, b'c']);
    assert_eq!(raw, expected);
    assert_eq!(Snapshot::decode(&raw), Ok(sample()));
}

#[test]
fn damage_is_found() {
    let raw = sample().encode();
    for at in 0..raw.len() {
        let mut bad = raw.clone();
        bad[at] ^= 0x10;
        assert!(Snapshot::decode(&bad).is_err(), "byte {at}");
        assert!(Snapshot::decode(&raw[..at]).is_err(), "cut at {at}");
    }
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let mark =
        (any::<i64>(), proptest::option::of((any::<i64>(), any::<u64>(), 1u32..))).prop_map(|(sequence, part)| Mark {
            sequence,
            partial: part.map(|(sequence, uuid_hash, next)| Partial { sequence, uuid_hash, next }),
        });
    let producer = (".{0,20}", mark, any::<u64>()).prop_map(|(name, mark, last_active_ms)| SnapshotProducer {
        name,
        mark,
        ranges: Ranges::default(),
        last_active_ms,
    });
    (any::<i64>(), any::<i64>(), any::<u64>(), proptest::collection::vec(producer, 0..20)).prop_map(
        |(ledger, entry, taken_ms, producers)| Snapshot {
            covered: Position::new(ledger, entry),
            taken_ms,
            exact: false,
            producers,
        },
    )
}

proptest! {
    #[test]
    fn snapshots_come_back_as_they_were(snapshot in any_snapshot()) {
        prop_assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
    }

    #[test]
    fn a_decoder_survives_anything(mut raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Snapshot::decode(&raw);
        if raw.len() >= 8 {
            raw[0] = 1;
            let crc = super::snapshot::checksum(&raw);
            raw[4..8].copy_from_slice(&crc.to_le_bytes());
            let _ = Snapshot::decode(&raw);
        }
    }

    /// A producer sends 0, 1, 2 … one by one over connections that break; storage confirms a prefix of what is in flight
    /// and drops the rest; reloads come at any time. In the end each is stored exactly once, in order.
    #[test]
    fn every_send_is_stored_exactly_once(steps in proptest::collection::vec((0u8..5, 1usize..6), 1..200)) {
        let mut dedup = Dedup::new(0, 0);
        let (mut log, mut in_flight): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
        let mut next = 0_i64;
        let mut saved: Vec<(usize, Vec<u8>)> = Vec::new();
        let acked = |log: &[i64]| log.last().map_or(0, |last| last + 1);
        dedup.attach("p", 0);
        for (kind, count) in steps {
            match kind {
                0 | 1 => for _ in 0..count {
                    match dedup.decide("p", &one(next), 0) {
                        Verdict::Store => in_flight.push(next),
                        Verdict::Duplicate => prop_assert!(log.contains(&next), "{next} is not stored"),
                        Verdict::Unknown => break,
                    }
                    next += 1;
                },
                2 => for stored in in_flight.drain(..count.min(in_flight.len())) {
                    dedup.confirm("p", &one(stored));
                    log.push(stored);
                },
                3 => {
                    in_flight.drain(..).for_each(|lost| dedup.refuse("p", &one(lost)));
                    dedup.attach("p", 0);
                    next = acked(&log).saturating_sub(count as i64).max(0);
                }
                _ => {
                    let covered = log.len().saturating_sub(count);
                    let raw = saved.drain(..).chain([(log.len(), dedup.snapshot(Position::EARLIEST, 0).encode())]);
                    saved = raw.filter(|(at, _)| *at >= covered).collect();
                    let (at, raw) = saved[0].clone();
                    dedup = Dedup::restore(&Snapshot::decode(&raw).unwrap(), 0, 0);
                    log[at..].iter().for_each(|stored| dedup.replayed("p", &one(*stored), 0));
                    in_flight.clear();
                    dedup.attach("p", 0);
                    next = acked(&log);
                }
            }
        }
        prop_assert!(log.iter().copied().eq(0..log.len() as i64), "{log:?}");
    }
}

/// A producer goes on in another region: what comes by its own connection and what comes by the link are told apart by
/// nothing but name and sequence id, and neither path is in order with the other one.
#[test]
fn a_producer_that_changed_regions_is_stored_once_in_both() {
    use Verdict::{Duplicate, Store, Unknown};
    let mut dedup = Dedup::exact(0, 0);
    // It sent 0..=9 in the other region, of which the link has brought 0..=5.
    for sequence in 0..=5 {
        assert_eq!(dedup.decide_foreign("p", &one(sequence), 0), Store);
        dedup.confirm("p", &one(sequence));
    }
    assert_eq!(dedup.attach("p", 0), 5);
    // It has no receipts from 4 on and sends that again here.
    let again = [4, 5, 6, 7, 8, 9].map(|sequence| dedup.decide("p", &one(sequence), 0));
    assert_eq!(again, [Duplicate, Duplicate, Store, Store, Store, Store]);
    assert_eq!(dedup.decide_foreign("p", &one(6), 0), Unknown, "it is on its way to storage");
    for sequence in 6..=9 {
        dedup.confirm("p", &one(sequence));
    }
    let late = [6, 7, 8, 9].map(|sequence| dedup.decide_foreign("p", &one(sequence), 0));
    assert_eq!(late, [Duplicate; 4]);
}

/// The link lags: what it brings late lies below what the producer sent here, and is not lost.
#[test]
fn what_a_link_brings_late_is_stored() {
    let mut dedup = Dedup::exact(0, 0);
    for sequence in 6..=9 {
        assert_eq!(dedup.decide("p", &one(sequence), 0), Verdict::Store);
        dedup.confirm("p", &one(sequence));
    }
    for sequence in 0..=5 {
        assert_eq!(dedup.decide_foreign("p", &one(sequence), 0), Verdict::Store);
        dedup.confirm("p", &one(sequence));
    }
    let snapshot = Snapshot::decode(&dedup.snapshot(Position::new(1, 1), 9).encode()).unwrap();
    assert_eq!(snapshot.producers[0].ranges.pairs(), [(0, 9)]);
    let mut restored = Dedup::restore(&snapshot, 0, 10);
    assert!(restored.is_exact());
    assert_eq!(restored.decide_foreign("p", &Sequence::new(3, Some(7), 1), 0), Verdict::Duplicate);
    restored.refuse_foreign("p", &one(10));
    assert_eq!(restored.decide("p", &one(10), 0), Verdict::Store);
}

#[test]
fn parts_of_a_chunked_message_are_told_apart_also_one_by_one() {
    let mut dedup = Dedup::exact(0, 0);
    let sends = [part(1, 7, 0, false), part(1, 7, 1, false), part(1, 7, 2, true)];
    assert_eq!(sends.map(|sequence| dedup.decide("p", &sequence, 0)), [Verdict::Store; 3]);
    assert_eq!(dedup.decide("p", &sends[1], 0), Verdict::Unknown);
    dedup.confirm("p", &sends[0]);
    assert_eq!(dedup.decide("p", &sends[0], 0), Verdict::Duplicate);
    dedup.confirm("p", &sends[1]);
    dedup.confirm("p", &sends[2]);
    assert_eq!(dedup.decide("p", &sends[2], 0), Verdict::Duplicate);
}

#[test]
fn a_batch_that_is_cut_another_way_is_known_by_its_messages() {
    // As clients send it that name only the first message of a batch.
    let batch = |first: i64| Sequence::new(first, None, 10);
    assert_eq!((batch(40).lowest, batch(40).highest), (40, 49));
    let mut dedup = Dedup::new(10, 0);
    for first in (0..100).step_by(10) {
        assert_eq!(dedup.decide("p", &batch(first), 0), Verdict::Store);
        dedup.confirm("p", &batch(first));
    }
    assert_eq!(dedup.decide("p", &batch(45), 0), Verdict::Duplicate);
    // The last messages of this one are stored nowhere.
    assert_eq!(dedup.decide("p", &batch(95), 0), Verdict::Store);
}
