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
    }
}

fn send(sequence_id: u64) -> Send {
    let publish = Publish {
        sequence_id,
        highest_sequence_id: None,
        messages: 1,
        marker: false,
        is_chunk: false,
        payload: Bytes::from_static(b"x"),
    };
    Send { publish, sequence: Some(Sequence::new(sequence_id as i64, sequence_id as i64)), refusal: None }
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
    assert!(producers.is_empty());
}

#[test]
fn a_refused_append_closes_its_producer_only() {
    let mut producers = Producers::new(None);
    admit(&mut producers, 1, applicant("a", "a", AccessMode::Shared));
    admit(&mut producers, 2, applicant("b", "b", AccessMode::Shared));
    let a = producers.publish(ProducerKey(1), vec![send(0)], 0, 0);
    let b = producers.publish(ProducerKey(2), vec![send(0)], 0, 0);
    let error = TopicError::new(TopicErrorKind::Persistence, "busy");
    producers.failed(&[a[0].token], &error, true);
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
