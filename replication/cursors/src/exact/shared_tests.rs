//! What a region tells its peers, by scripts.

use super::*;
use meridian_types::Incarnation;

const A: RegionId = RegionId(1);
const B: RegionId = RegionId(2);
const C: RegionId = RegionId(3);

fn origin(region: RegionId) -> Origin {
    Origin::new(region, Incarnation(1))
}

fn at(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

fn created(own: RegionId) -> SharedAcks {
    let mut shared = SharedAcks::new(own, AckState::new(Epoch::creation(10, A)), Limits::default());
    for peer in [A, B, C].into_iter().filter(|peer| *peer != own) {
        shared.add_peer(peer, 10);
    }
    shared
}

fn part(shared: &SharedAcks, acks: &[(RegionId, i64, i64)]) -> AckState {
    let mut part = AckState::new(shared.state().epoch());
    acks.iter().for_each(|(region, ledger, entry)| part.ack(origin(*region), at(*ledger, *entry)));
    part
}

/// Everything that there is to say is said and confirmed.
fn talk(from: &mut SharedAcks, to: &mut SharedAcks, now_ms: u64) -> usize {
    let mut parts = 0;
    while let Some((version, part)) = from.take(to.own, now_ms) {
        to.receive(from.own, &part, now_ms).unwrap();
        assert!(from.confirm(to.own, version));
        parts += 1;
    }
    parts
}

#[test]
fn a_new_peer_is_told_the_epoch_even_if_nothing_is_acknowledged() {
    let mut a = created(A);
    let (version, first) = a.take(B, 10).unwrap();
    assert!(first.is_empty());
    assert!(first.epoch().is_creation());
    assert_eq!(a.take(B, 10), None);
    a.lost(B);
    let (again, _) = a.take(B, 10).unwrap();
    assert!(again > version);
    assert!(!a.confirm(B, version));
    assert!(a.confirm(B, again));
    assert!(!a.wants(B, 10));
}

#[test]
fn what_is_not_confirmed_is_sent_again() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    let acks = part(&a, &[(A, 1, 3), (B, 4, 4)]);
    assert_eq!(a.author(&acks, 20), Ok(true));
    assert_eq!(a.author(&acks, 21), Ok(false));
    assert_eq!(a.lag(B), Lag { entries: 2, since_ms: Some(20), ..Lag::default() });
    let (_, sent) = a.take(B, 30).unwrap();
    assert_eq!(sent, acks);
    a.lost(B);
    assert_eq!(a.lag(B).since_ms, Some(20));
    assert_eq!(talk(&mut a, &mut b, 40), 1);
    assert_eq!(b.ackedness(origin(B), at(4, 4)), Ackedness::Whole);
    assert_eq!(a.lag(B), Lag::default());
}

#[test]
fn what_waits_is_overtaken_by_upto() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    for entry in (2..2000).step_by(2) {
        a.author(&part(&a, &[(A, 1, entry)]), 20).unwrap();
    }
    let mut upto = AckState::new(a.state().epoch());
    upto.raise_upto(origin(A), at(1, 1999));
    a.author(&upto, 21).unwrap();
    assert_eq!(a.confirmed_upto(B, origin(A)), Position::EARLIEST);
    let (version, sent) = a.take(B, 30).unwrap();
    assert_eq!(sent, upto);
    a.confirm(B, version);
    assert_eq!(a.confirmed_upto(B, origin(A)), at(1, 1999));
}

#[test]
fn a_gap_that_the_peer_closed_counts_as_confirmed_by_it() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    talk(&mut b, &mut a, 10);
    let but_one = part(&a, &[(A, 1, 0), (A, 1, 1), (A, 1, 3), (A, 1, 4)]);
    a.author(&but_one, 20).unwrap();
    talk(&mut a, &mut b, 20);
    // The consumer moved, and B tells that the log is acknowledged without a gap.
    let mut rest = AckState::new(b.state().epoch());
    rest.raise_upto(origin(A), at(1, 4));
    b.author(&rest, 30).unwrap();
    let (version, told) = b.take(A, 30).unwrap();
    // While A still owes B something, nothing is assumed of what B has.
    a.author(&part(&a, &[(B, 7, 7)]), 31).unwrap();
    a.receive(B, &told, 31).unwrap();
    assert_eq!(a.confirmed_upto(B, origin(A)), Position::EARLIEST);
    b.confirm(A, version);
    talk(&mut a, &mut b, 32);
    assert_eq!(a.confirmed_upto(B, origin(A)), at(1, 4));
    assert_eq!(b.confirmed_upto(A, origin(A)), at(1, 4));
    // And when it owes nothing, B's own part is enough.
    let mut more = AckState::new(b.state().epoch());
    more.raise_upto(origin(A), at(1, 9));
    b.author(&more, 40).unwrap();
    talk(&mut b, &mut a, 40);
    assert_eq!(a.confirmed_upto(B, origin(A)), at(1, 9));
    assert_eq!((a.lag(B), b.lag(A)), (Lag::default(), Lag::default()));
}

#[test]
fn news_of_one_peer_reach_another_after_a_while() {
    let (mut a, mut b, mut c) = (created(A), created(B), created(C));
    talk(&mut a, &mut b, 10);
    talk(&mut a, &mut c, 10);
    talk(&mut b, &mut a, 10);
    // B and C can't talk; what B says reaches C by A.
    b.author(&part(&b, &[(B, 1, 5)]), 20).unwrap();
    talk(&mut b, &mut a, 20);
    assert_eq!(a.take(C, 21), None);
    assert!(a.holds_back(21) && !a.holds_back(20 + Limits::default().relay_after_ms));
    assert_eq!(talk(&mut a, &mut c, 20 + Limits::default().relay_after_ms), 1);
    assert_eq!(c.ackedness(origin(B), at(1, 5)), Ackedness::Whole);
    // It does not come back to where it came from.
    assert_eq!(a.take(B, 100_000), None);
}

#[test]
fn who_takes_over_is_told_at_once_what_others_told() {
    let (mut a, mut b, mut c) = (created(A), created(B), created(C));
    talk(&mut a, &mut b, 10);
    talk(&mut a, &mut c, 10);
    talk(&mut b, &mut a, 10);
    assert!(!a.relay_now(C));
    b.author(&part(&b, &[(B, 1, 5)]), 20).unwrap();
    talk(&mut b, &mut a, 20);
    assert_eq!(a.lag(C), Lag { relaying: true, ..Lag::default() });
    assert!(a.relay_now(C));
    assert_eq!(a.lag(C), Lag { entries: 1, since_ms: Some(20), ..Lag::default() });
    assert_eq!(talk(&mut a, &mut c, 21), 1);
    assert_eq!((c.ackedness(origin(B), at(1, 5)), a.lag(C)), (Ackedness::Whole, Lag::default()));
}

#[test]
fn a_raised_epoch_is_told_as_a_whole_and_the_old_one_is_behind() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    talk(&mut b, &mut a, 10);
    b.author(&part(&b, &[(B, 1, 5)]), 20).unwrap();
    let mut cut = AckState::default();
    cut.raise_upto(origin(A), at(1, 1));
    a.raise(&cut, 30);
    // B's ack of the old life crosses the seek.
    let (version, old) = b.take(A, 30).unwrap();
    assert_eq!(a.receive(B, &old, 30), Ok(Received::Behind));
    b.confirm(A, version);
    let (version, new) = a.take(B, 31).unwrap();
    assert_eq!(b.receive(A, &new, 31), Ok(Received::Adopted));
    assert_eq!(b.state(), a.state());
    a.confirm(B, version);
    assert_eq!(a.take(B, 32), None);
    assert_eq!(b.take(A, 32), None);
    // Acks made before the move are not taken for acks after it.
    assert_eq!(b.author(&old, 33), Ok(false));
}

#[test]
fn a_peer_that_lost_its_state_is_told_everything() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    a.raise(&AckState::default(), 20);
    talk(&mut a, &mut b, 21);
    b = created(B);
    let (_, old) = b.take(A, 30).unwrap();
    assert_eq!(a.receive(B, &old, 30), Ok(Received::Behind));
    assert_eq!(talk(&mut a, &mut b, 31), 1);
    assert_eq!(b.state(), a.state());
}

#[test]
fn an_old_tombstone_does_not_delete_what_was_created_after_it() {
    let (mut a, mut b) = (created(A), created(B));
    talk(&mut a, &mut b, 10);
    b.delete(50);
    a = SharedAcks::new(A, AckState::new(Epoch::creation(60, A)), Limits::default());
    a.add_peer(B, 60);
    a.author(&part(&a, &[(A, 1, 1)]), 61).unwrap();
    let (version, tombstone) = b.take(A, 70).unwrap();
    assert_eq!(a.receive(B, &tombstone, 70), Ok(Received::Outlived));
    assert!(!a.state().is_deleted());
    b.confirm(A, version);
    talk(&mut a, &mut b, 71);
    assert_eq!(b.state(), a.state());
    assert_eq!(b.ackedness(origin(A), at(1, 1)), Ackedness::Whole);
    // One that is deleted in its own life is.
    b.delete(80);
    talk(&mut b, &mut a, 80);
    assert!(a.state().is_deleted());
}

#[test]
fn over_the_limit_acks_are_refused_until_there_is_room() {
    let limits = Limits { max_bytes: 1000, ..Limits::default() };
    let mut a = SharedAcks::new(A, AckState::new(Epoch::creation(10, A)), limits);
    a.add_peer(B, 10);
    let mut many = AckState::new(a.state().epoch());
    (1..100).for_each(|ledger| many.ack(origin(B), at(ledger, 7)));
    many.raise_upto(origin(C), at(3, 3));
    let before = a.state().clone();
    assert!(a.receive(B, &many, 20).is_err());
    assert_eq!(a.state().ackedness(origin(B), at(1, 7)), Ackedness::No);
    assert_eq!(a.state().upto(origin(C)), at(3, 3));
    assert!(before.is_empty());
    assert!(a.author(&many, 21).is_err());
    assert_eq!((a.refusing_since_ms(), a.refused_total()), (Some(20), 2));
    // The origin says upto: there is room again, and the same part is taken.
    let mut upto = AckState::new(a.state().epoch());
    upto.raise_upto(origin(B), at(95, 7));
    a.receive(B, &upto, 30).unwrap();
    assert!(matches!(a.receive(B, &many, 31), Ok(Received::Learned(_))));
    assert_eq!((a.refusing_since_ms(), a.refused_total()), (None, 2));
    assert_eq!(a.ackedness(origin(B), at(99, 7)), Ackedness::Whole);
}

#[test]
fn what_is_in_flight_is_bounded() {
    let mut a = created(A);
    a.take(B, 10).unwrap();
    for entry in 0..10 {
        a.author(&part(&a, &[(A, 1, 2 * entry + 1)]), 20).unwrap();
        a.take(B, 20);
    }
    assert_eq!(a.take(B, 20), None);
    assert!(a.lag(B).entries >= 10);
    a.resync(B, 30);
    let (_, everything) = a.take(B, 30).unwrap();
    assert_eq!(&everything, a.state());
}
