//! Golden scripts of the producers' state machine.

use super::publish::Send;
use super::{Admission, Applicant, ProducerEffect, Producers};
use crate::api::{AccessMode, ProducerKey, Publish, TopicError, TopicErrorKind};
use crate::dedup::{Dedup, Sequence};
use bytes::Bytes;
use meridian_managed_ledger::{AppendRequest, Appended};
use meridian_types::Position;
use std::collections::BTreeMap;

fn applicant(sink: &'static str, name: &str, access_mode: AccessMode) -> Applicant<&'static str> {
    Applicant {
        sink,
        producer_id: 1,
        name: name.into(),
        epoch: 0,
        access_mode,
        topic_epoch: None,
        metadata: BTreeMap::new(),
        link: None,
    }
}

fn send(sequence_id: u64) -> Send {
    let publish = Publish {
        sequence_id,
        highest_sequence_id: None,
        messages: 1,
        marker: false,
        is_chunk: false,
        source: None,
        payload: Bytes::from_static(b"x"),
    };
    let sequence = Some(Sequence::new(sequence_id as i64, None, 1));
    Send { publish, sequence, origin: None, author: None, refusal: None }
}

fn refused(sequence_id: u64) -> Send {
    let error = TopicError::new(TopicErrorKind::NotAllowed, "no");
    Send { refusal: Some(Box::new(error)), ..send(sequence_id) }
}

fn appended(requests: &[AppendRequest], first_entry: i64) -> Vec<Appended> {
    let entry = |(i, request): (usize, &AppendRequest)| Appended {
        token: request.token,
        position: Position::new(1, first_entry + i as i64),
        index: 0,
        messages: 1,
    };
    requests.iter().enumerate().map(entry).collect()
}

fn trace(producers: &mut Producers<&'static str>) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(effect) = producers.next_effect() {
        out.push(match effect {
            ProducerEffect::Receipts { sink, receipts, .. } => {
                let list: Vec<String> =
                    receipts.iter().map(|receipt| format!("{}@{}", receipt.sequence_id, receipt.position)).collect();
                format!("{sink} receipts {}", list.join(" "))
            }
            ProducerEffect::SendError { sink, sequence_id, error, .. } => {
                format!("{sink} error {sequence_id} {:?}", error.kind)
            }
            ProducerEffect::PersistEpoch { key, epoch } => format!("persist epoch {epoch} for {}", key.0),
            ProducerEffect::Ready { sink, ready, .. } => format!("{sink} ready epoch {:?}", ready.topic_epoch),
            ProducerEffect::Refused { sink, error, .. } => format!("{sink} refused {:?}", error.kind),
            ProducerEffect::Close { sink, .. } => format!("{sink} close"),
            ProducerEffect::Moved { sink, .. } => format!("{sink} moved"),
            ProducerEffect::Gone { key } => format!("gone {}", key.0),
        });
    }
    out
}

fn admit(
    producers: &mut Producers<&'static str>,
    key: u64,
    applicant: Applicant<&'static str>,
) -> Admission<&'static str> {
    producers.admit(ProducerKey(key), applicant, 0, 0)
}

#[test]
fn receipts_are_coalesced_per_producer_and_in_order() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    admit(&mut producers, 2, applicant("b", "b", AccessMode::Shared));
    let mut requests = producers.publish(ProducerKey(1), vec![send(0), send(1)], 10, 0);
    requests.extend(producers.publish(ProducerKey(2), vec![send(5)], 11, 0));
    requests.extend(producers.publish(ProducerKey(1), vec![refused(2), send(3)], 12, 0));
    assert_eq!(requests.len(), 4);
    assert!(trace(&mut producers).is_empty(), "nothing may be answered before the first confirmation");
    let latency = producers.confirmed(&appended(&requests, 0), 110);
    assert_eq!(latency, Some(100));
    assert_eq!(
        trace(&mut producers),
        ["a receipts 0@1:0 1@1:1", "b receipts 5@1:2", "a error 2 NotAllowed", "a receipts 3@1:3"]
    );
}

#[test]
fn a_leaving_producer_stays_until_everything_is_answered() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    let requests = producers.publish(ProducerKey(1), vec![send(0)], 0, 0);
    producers.leave(ProducerKey(1));
    assert!(trace(&mut producers).is_empty());
    assert!(producers.publish(ProducerKey(1), vec![send(1)], 0, 0).is_empty(), "it takes nothing more");
    producers.confirmed(&appended(&requests, 0), 0);
    assert_eq!(trace(&mut producers), ["a receipts 0@1:0", "gone 1"]);
    assert!(producers.is_unused());
}

#[test]
fn a_refused_append_closes_its_producer_only() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    admit(&mut producers, 2, applicant("b", "b", AccessMode::Shared));
    let a = producers.publish(ProducerKey(1), vec![send(0)], 0, 0);
    let b = producers.publish(ProducerKey(2), vec![send(0)], 0, 0);
    let error = TopicError::new(TopicErrorKind::Persistence, "busy");
    producers.failed(&[a[0].token], &error);
    assert_eq!(trace(&mut producers), ["a error 0 Persistence", "a close", "gone 1"]);
    producers.confirmed(&appended(&b, 0), 0);
    assert_eq!(trace(&mut producers), ["b receipts 0@1:0"]);
}

#[test]
fn names_are_unique_but_for_the_same_clients_next_attempt() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "n", AccessMode::Shared));
    let other = admit(&mut producers, 2, applicant("b", "n", AccessMode::Shared));
    assert_eq!(other, Admission::NameTaken { key: ProducerKey(1), sink: "a" });
    let next = Applicant { epoch: 1, ..applicant("a", "n", AccessMode::Shared) };
    assert!(matches!(admit(&mut producers, 3, next), Admission::In(_)));
    assert_eq!(trace(&mut producers), ["gone 1"]);
}

#[test]
fn exclusive_access_is_persisted_before_it_is_told() {
    let mut producers = Producers::new(None);
    let first = admit(&mut producers, 1, applicant("a", "a", AccessMode::Exclusive));
    assert!(matches!(first, Admission::Claims(_)));
    assert_eq!(trace(&mut producers), ["persist epoch 0 for 1"]);
    let shared = admit(&mut producers, 2, applicant("b", "b", AccessMode::Shared));
    assert!(matches!(shared, Admission::Refused(error) if error.kind == TopicErrorKind::ProducerBusy));
    producers.epoch_persisted(ProducerKey(1), 0, Ok(()), 0);
    assert_eq!(trace(&mut producers), ["a ready epoch Some(0)"]);
    let exclusive = admit(&mut producers, 3, applicant("c", "c", AccessMode::Exclusive));
    assert!(matches!(exclusive, Admission::Refused(error) if error.kind == TopicErrorKind::ProducerFenced));
}

#[test]
fn waiters_are_promoted_in_order_also_behind_shared_producers() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    assert!(matches!(admit(&mut producers, 2, applicant("b", "b", AccessMode::WaitForExclusive)), Admission::Waits(_)));
    assert!(matches!(admit(&mut producers, 3, applicant("c", "c", AccessMode::WaitForExclusive)), Admission::Waits(_)));
    producers.leave(ProducerKey(1));
    assert_eq!(trace(&mut producers), ["gone 1", "persist epoch 0 for 2"]);
    producers.epoch_persisted(ProducerKey(2), 0, Ok(()), 0);
    producers.leave(ProducerKey(2));
    assert_eq!(trace(&mut producers), ["b ready epoch Some(0)", "gone 2", "persist epoch 1 for 3"]);
}

#[test]
fn fencing_closes_everybody_and_moves_the_epoch() {
    let mut producers = Producers::new(Some(4));
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    admit(&mut producers, 2, applicant("b", "b", AccessMode::WaitForExclusive));
    admit(&mut producers, 3, applicant("c", "c", AccessMode::ExclusiveWithFencing));
    assert_eq!(trace(&mut producers), ["b refused ProducerFenced", "a close", "gone 1", "persist epoch 5 for 3"]);
    producers.epoch_persisted(ProducerKey(3), 5, Ok(()), 0);
    assert_eq!(trace(&mut producers), ["c ready epoch Some(5)"]);
    let stale = Applicant { topic_epoch: Some(4), ..applicant("d", "d", AccessMode::ExclusiveWithFencing) };
    let answer = admit(&mut producers, 4, stale);
    assert!(matches!(answer, Admission::Refused(error) if error.kind == TopicErrorKind::ProducerFenced));
}

#[test]
fn duplicates_are_answered_in_their_turn_and_only_if_proven() {
    let mut producers = Producers::new(None);
    producers.dedup = Some(Box::new(Dedup::new(0, 0)));
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    let first = producers.publish(ProducerKey(1), vec![send(0), send(0), send(1)], 0, 0);
    assert_eq!(first.len(), 2, "the second send is only pushed: it is not stored, its answer is an error");
    producers.confirmed(&appended(&first, 0), 0);
    assert_eq!(trace(&mut producers), ["a receipts 0@1:0", "a error 0 Persistence", "a receipts 1@1:1"]);
    let second = producers.publish(ProducerKey(1), vec![send(1), send(2)], 0, 0);
    assert_eq!(second.len(), 1);
    producers.confirmed(&appended(&second, 2), 0);
    assert_eq!(trace(&mut producers), ["a receipts 1@-1:-1", "a receipts 2@1:2"]);
}

mod links {
    use super::*;
    use crate::origins::{LinkIdentity, Origin, OriginMarks};
    use std::sync::Arc;

    fn link(sink: &'static str, rewinds: bool) -> Applicant<&'static str> {
        let mut metadata = BTreeMap::new();
        if rewinds {
            metadata.insert("meridian.link".to_owned(), "1".to_owned());
        }
        let identity = LinkIdentity::of("pulsar.repl.west-->east", &metadata, true).map(Arc::new);
        Applicant { link: identity, ..applicant(sink, "pulsar.repl.west-->east", AccessMode::Shared) }
    }

    fn with_link(rewinds: bool) -> Producers<&'static str> {
        let mut producers = Producers::new(None);
        producers.start_origins(Box::new(OriginMarks::new(0)), Position::EARLIEST);
        admit(&mut producers, 1, link("w", rewinds));
        producers
    }

    /// An entry that the source stores at `9:entry`, of a producer that numbers them in its own way.
    fn copied(entry: i64) -> Send {
        let source = LinkIdentity::of("pulsar.repl.west", &BTreeMap::new(), true).unwrap().source;
        let origin = Some(Origin { source, position: Position::new(9, entry) });
        Send { sequence: None, origin, ..send(1000 + entry as u64) }
    }

    fn too_large(entry: i64) -> Send {
        let error = TopicError::new(TopicErrorKind::NotAllowed, "too large");
        Send { refusal: Some(Box::new(error)), ..copied(entry) }
    }

    #[test]
    fn receipts_tell_source_positions_and_duplicates_have_none() {
        let mut producers = with_link(true);
        let marker = Send { publish: Publish { marker: true, ..send(7).publish }, ..copied(2) };
        let requests = producers.publish(ProducerKey(1), vec![copied(0), copied(1), marker], 0, 0);
        assert_eq!(requests[1].origin.map(|(_, _, position)| position), Some(Position::new(9, 1)));
        producers.confirmed(&appended(&requests, 0), 0);
        let Some(ProducerEffect::Receipts { receipts, .. }) = producers.next_effect() else { panic!("no receipts") };
        let ids: Vec<_> = receipts.iter().map(|one| (one.sequence_id as i64, one.highest_sequence_id as i64)).collect();
        assert_eq!(ids, [(9, 0), (9, 1), (7, i64::MIN)]);
        assert!(producers.publish(ProducerKey(1), vec![copied(1)], 0, 0).is_empty());
        assert_eq!(trace(&mut producers), ["w receipts 9@-1:-1"]);
    }

    /// A head that is refused, later entries behind it in the pipeline, and the rewind: nothing is lost and nothing is
    /// taken for a duplicate, with a Pulsar sender that does not attach anew.
    #[test]
    fn b012_a_refused_head_stops_what_is_behind_it() {
        let mut producers = with_link(false);
        let first = producers.publish(ProducerKey(1), vec![copied(0), too_large(1), copied(2), copied(3)], 0, 0);
        assert_eq!(first.len(), 1);
        producers.confirmed(&appended(&first, 0), 0);
        let refused =
            ["w receipts 9@1:0", "w error 1001 NotAllowed", "w error 1002 NotAllowed", "w error 1003 NotAllowed"];
        assert_eq!(trace(&mut producers), refused);
        let again = producers.publish(ProducerKey(1), vec![copied(1), copied(2), copied(3)], 0, 0);
        assert_eq!(again.len(), 3);
        producers.confirmed(&appended(&again, 1), 0);
        assert_eq!(trace(&mut producers), ["w receipts 9@1:1 9@1:2 9@1:3"]);
    }

    /// Storage fails: the link's producer is closed, comes back and sends from its first entry without a receipt.
    #[test]
    fn a_failed_append_is_sent_again_and_stored_once() {
        let mut producers = with_link(true);
        let requests = producers.publish(ProducerKey(1), vec![copied(0), copied(1), copied(2)], 0, 0);
        producers.confirmed(&appended(&requests[..1], 0), 0);
        let error = TopicError::new(TopicErrorKind::Persistence, "busy");
        producers.failed(&[requests[1].token, requests[2].token], &error);
        let lines = ["w receipts 9@1:0", "w error 1001 Persistence", "w error 1002 Persistence", "w close", "gone 1"];
        assert_eq!(trace(&mut producers), lines);
        admit(&mut producers, 2, link("w", true));
        let again = producers.publish(ProducerKey(2), vec![copied(0), copied(1), copied(2)], 0, 0);
        producers.confirmed(&appended(&again, 1), 0);
        assert_eq!(trace(&mut producers), ["w receipts 9@-1:-1", "w receipts 9@1:1 9@1:2"]);
    }

    #[test]
    fn links_take_no_part_in_limits_and_access_modes() {
        let mut producers = with_link(true);
        let mine = producers.admit(ProducerKey(2), applicant("a", "a", AccessMode::Exclusive), 1, 0);
        assert!(matches!(mine, Admission::Claims(_)), "a link is nobody who is in the way");
        producers.epoch_persisted(ProducerKey(2), 0, Ok(()), 0);
        let mut other = link("v", true);
        other.name = "pulsar.repl.north-->east".into();
        assert!(matches!(producers.admit(ProducerKey(3), other, 1, 0), Admission::In(_)));
        let taker = admit(&mut producers, 4, applicant("b", "b", AccessMode::ExclusiveWithFencing));
        assert!(matches!(taker, Admission::Claims(_)));
        trace(&mut producers);
        assert!(producers.link(ProducerKey(1)).is_some(), "fencing does not touch it");
        producers.leave(ProducerKey(4));
        assert!(producers.is_unused());
    }

    #[test]
    fn source_positions_are_for_links_only() {
        let mut producers = Producers::new(None);
        admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
        let odd = Send { publish: Publish { source: Some(Position::new(1, 1)), ..send(0).publish }, ..send(0) };
        assert!(producers.publish(ProducerKey(1), vec![odd], 0, 0).is_empty());
        assert_eq!(trace(&mut producers), ["a error 0 NotAllowed"]);
    }

    /// Producers are the same everywhere: what a producer has sent here is not stored again when the link brings it.
    #[test]
    fn a_global_producers_message_is_stored_once() {
        let mut producers = with_link(true);
        producers.dedup = Some(Box::new(Dedup::exact(0, 0)));
        admit(&mut producers, 2, applicant("p", "p", AccessMode::Shared));
        let own = producers.publish(ProducerKey(2), vec![send(5), send(6)], 0, 0);
        let by_link = |sequence: i64, entry: i64| {
            let sequence = Some(Sequence::new(sequence, Some(sequence), 1));
            Send { sequence, author: Some("p".into()), ..copied(entry) }
        };
        assert!(producers.publish(ProducerKey(1), vec![by_link(5, 0)], 0, 0).is_empty(), "its fate is open");
        producers.confirmed(&appended(&own, 0), 0);
        assert_eq!(trace(&mut producers), ["p receipts 5@1:0 6@1:1", "w error 1000 Persistence"]);
        let late = producers.publish(ProducerKey(1), vec![by_link(5, 0), by_link(4, 1), by_link(6, 2)], 0, 0);
        assert_eq!(late.len(), 1, "what came late and is new is stored");
        producers.confirmed(&appended(&late, 2), 0);
        assert_eq!(trace(&mut producers), ["w receipts 9@-1:-1", "w receipts 9@1:2 9@-1:-1"]);
        let again = producers.publish(ProducerKey(1), vec![by_link(6, 2)], 0, 0);
        assert!(again.is_empty());
        assert_eq!(trace(&mut producers), ["w receipts 9@-1:-1"]);
    }
}
