//! Golden bytes, the price of an ack, and what decoders refuse.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn at(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

fn sample() -> AckState {
    let mut state = AckState::new(Epoch { number: 2, at_ms: 300, region: RegionId(0x0a0b_0c0d) });
    let origin = Origin::new(RegionId(3), Incarnation(4));
    state.raise_upto(origin, at(5, 6));
    state.ack(origin, at(5, 8));
    state.ack_run(origin, LedgerId(5), 100..=109);
    state.ack(origin, at(9, 0));
    state.ack_partly(origin, at(9, 2), &[0b101]);
    state
}

#[test]
fn golden_bytes() {
    let raw = encode(&sample());
    #[rustfmt::skip]
    assert_eq!(raw, [
        1, 0, 2, 0xac, 2, 0x0d, 0x0c, 0x0b, 0x0a,
        1, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 6, 7,
        2, 5, 2, 18, 0xb9, 1, 8, 4, 1, 2,
        1, 9, 2, 1, 5,
    ]);
    assert_eq!(decode(&raw), Ok(sample()));
    let tombstone = AckState::tombstone(Epoch { number: 3, at_ms: 1, region: RegionId(1) });
    assert_eq!(encode(&tombstone), [1, 1, 3, 1, 1, 0, 0, 0, 0]);
    assert_eq!(decode(&encode(&tombstone)), Ok(tombstone));
}

#[test]
fn extremes_go_both_ways() {
    let mut state = AckState::new(Epoch { number: u64::MAX, at_ms: u64::MAX, region: RegionId(u32::MAX) });
    let origin = Origin::new(RegionId(u32::MAX), Incarnation(u64::MAX));
    state.raise_upto(origin, at(0, -1));
    state.ack_run(origin, LedgerId(i64::MAX), u32::MAX - 1..=u32::MAX);
    state.ack_partly(origin, at(i64::MAX, 0), &[u64::MAX; 2048]);
    state.raise_upto(Origin::new(RegionId(1), Incarnation(0)), Position::LATEST);
    assert_eq!(decode(&encode(&state)), Ok(state));
}

/// Every third, hundredth or thousandth entry, and at random: 4 bytes each at most, all included.
#[test]
fn a_scattered_ack_costs_at_most_four_bytes() {
    for (step, most) in [(2u32, 1.1), (3, 1.1), (100, 2.1), (5000, 2.2), (100_000, 3.5)] {
        let mut state = AckState::new(Epoch::creation(1, RegionId(1)));
        let origin = Origin::new(RegionId(1), Incarnation(1));
        (1..=1000).for_each(|nth| state.ack(origin, at(7, i64::from(nth * step))));
        let bytes = encode(&state).len() as f64 / 1000.0;
        assert!(bytes <= most, "every {step}th: {bytes} bytes");
    }
    let mut state = AckState::new(Epoch::creation(1, RegionId(1)));
    let origin = Origin::new(RegionId(1), Incarnation(1));
    let mut random = 1u64;
    let mut members = BTreeSet::new();
    while members.len() < 1000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        members.insert((random >> 33) as u32 % 50_000_000);
    }
    members.iter().for_each(|entry| state.ack(origin, at(7, i64::from(*entry))));
    let bytes = encode(&state).len() as f64 / 1000.0;
    assert!(bytes <= 4.0, "{bytes} bytes");
    assert!(encode(&state).len() <= encoded_len_at_most(&state));
}

#[test]
fn faults_have_names() {
    let good = encode(&sample());
    let with = |index: usize, byte: u8| {
        let mut raw = good.clone();
        raw[index] = byte;
        decode(&raw)
    };
    assert_eq!(with(0, 9), Err(CodecError::Version(9)));
    assert_eq!(with(1, 2), Err(CodecError::Bad("flags")));
    assert_eq!(decode(&[good.as_slice(), &[0]].concat()), Err(CodecError::Trailing(1)));
    for cut in 0..good.len() {
        assert!(decode(&good[..cut]).is_err(), "{cut}");
    }
    let head = [1, 0, 1, 1, 1, 0, 0, 0];
    let of_origin = |more: &[u8]| {
        let origin = [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        decode(&[&head[..], &origin, more].concat())
    };
    // One run of four thousand million entries.
    assert_eq!(
        of_origin(&[1, 1, 1, 3, 0xff, 0xff, 0xff, 0xff, 0x0e, 0]),
        Err(CodecError::TooMany("acknowledged entries"))
    );
    assert_eq!(of_origin(&[1, 1, 2, 2, 2, 0]), Err(CodecError::Bad("order of runs")));
    assert_eq!(of_origin(&[2, 1, 1, 2, 0, 1, 2, 0]), Err(CodecError::Bad("order of ledgers")));
    assert_eq!(of_origin(&[0, 1, 1, 1, 0xff, 0xff, 3, 0]), Err(CodecError::TooMany("words of a batch")));
    let many = [&head[..], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert_eq!(decode(&many), Err(CodecError::TooMany("origins")));
}

fn any_state() -> impl Strategy<Value = AckState> {
    let step = (0..3u32, 0..4i64, 0..90u32, 0..40u32, 0..12u8, any::<u64>());
    let epoch = (any::<u64>(), any::<u64>(), any::<u32>());
    (epoch, any::<bool>(), proptest::collection::vec(step, 0..60)).prop_map(
        |((number, at_ms, region), deleted, steps)| {
            let epoch = Epoch { number, at_ms, region: RegionId(region) };
            let mut state = if deleted { AckState::tombstone(epoch) } else { AckState::new(epoch) };
            for (region, ledger, entry, more, kind, words) in steps {
                let origin = Origin::new(RegionId(region), Incarnation(u64::from(region) << 40));
                let position = at(ledger << 33, i64::from(entry));
                match kind {
                    0 => state.raise_upto(origin, position),
                    1..=3 => state.ack_partly(origin, position, &[words, words >> 60]),
                    4..=6 => state.ack_run(origin, position.ledger_id, entry * 1000..=entry * 1000 + more),
                    _ => state.ack(origin, position),
                }
            }
            state
        },
    )
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(state in any_state()) {
        let raw = encode(&state);
        prop_assert!(raw.len() <= encoded_len_at_most(&state));
        prop_assert_eq!(decode(&raw), Ok(state));
    }

    #[test]
    fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&raw);
    }

    #[test]
    fn damaged_bytes_do_not_panic(state in any_state(), index in any::<usize>(), byte in any::<u8>()) {
        let mut raw = encode(&state);
        let index = index % raw.len();
        raw[index] = byte;
        if let Ok(other) = decode(&raw) {
            prop_assert_eq!(decode(&encode(&other)), Ok(other));
        }
    }
}
