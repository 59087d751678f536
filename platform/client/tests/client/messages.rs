//! Messages one by one, over as many connections as it takes.

use crate::looking_up::{answer, asked};
use crate::server::{Server, Session, topic, within};
use bytes::{Bytes, BytesMut};
use meridian_client::{Consumer, ConsumerOptions, OutgoingMessage, Producer, ProducerOptions};
use meridian_types::Position;
use meridian_wire::encode::{MessageHeader, SendReceipt, encode_message};
use meridian_wire::error::{ack_error, request_error, send_error};
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_ack::AckType;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::{
    CommandCloseConsumer, CommandCloseProducer, CommandProducer, CommandProducerSuccess, CommandSubscribe,
    CommandSuccess, CommandTopicMigrated, MessageMetadata, ServerError,
};
use std::sync::Arc;

/// Answers a lookup with the server itself.
async fn found(server: &Server, session: &mut Session) {
    let lookup = asked(session).await;
    session.send(answer(LookupType::Connect, &server.url(), lookup.request_id)).await;
}

async fn produces(session: &mut Session, last_sequence_id: i64) -> CommandProducer {
    let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
    session
        .send(CommandProducerSuccess {
            request_id: producer.request_id,
            producer_name: "made".into(),
            last_sequence_id: Some(last_sequence_id),
            ..Default::default()
        })
        .await;
    producer
}

async fn confirm(session: &mut Session, sequence_id: u64, producer_id: u64) {
    let position = Position::new(1, sequence_id as i64);
    let receipt = SendReceipt { producer_id, sequence_id, highest_sequence_id: 0, position, partition: None };
    session.receipts(&[receipt]).await;
}

async fn producer(server: &Server, options: ProducerOptions) -> (Arc<Producer>, Session, CommandProducer) {
    let pool = server.pool();
    let broker = async {
        let mut session = server.connected().await;
        found(server, &mut session).await;
        let opened = produces(&mut session, 4).await;
        (session, opened)
    };
    let (producer, (session, opened)) = tokio::join!(Producer::open(&pool, options), broker);
    (Arc::new(producer.unwrap()), session, opened)
}

type Sending = tokio::task::JoinHandle<Result<meridian_client::Stored, meridian_client::ClientError>>;

fn send(producer: &Arc<Producer>, text: &'static str) -> Sending {
    let producer = producer.clone();
    tokio::spawn(async move { producer.send_bytes(text).await })
}

fn text(entry: &Bytes) -> (MessageMetadata, Bytes) {
    assert_eq!(payload::verify_checksum(entry), Ok(true));
    payload::decode(entry).unwrap()
}

#[tokio::test]
async fn a_message_is_sent_with_all_that_belongs_to_it() {
    let server = Server::start().await;
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    assert_eq!((producer.name(), opened.producer_name, opened.epoch), ("made", None, Some(0)));
    let message = OutgoingMessage {
        payload: Bytes::from_static(b"one"),
        key: Some("k".into()),
        properties: vec![("a".into(), "b".into())],
        replicate_to: vec!["east".into()],
        event_time_ms: Some(7),
        ..OutgoingMessage::default()
    };
    let broker = async {
        let (header, entry) = session.sent().await;
        confirm(&mut session, header.sequence_id, opened.producer_id).await;
        entry
    };
    let (stored, entry) = tokio::join!(producer.send(message), broker);
    let stored = stored.unwrap();
    assert_eq!((stored.sequence_id, stored.position), (5, Position::new(1, 5)));
    let (metadata, bytes) = text(&entry);
    assert_eq!((metadata.producer_name.as_str(), metadata.sequence_id, &bytes[..]), ("made", 5, &b"one"[..]));
    assert_eq!((metadata.partition_key(), metadata.event_time(), metadata.properties.len()), ("k", 7, 1));
    assert_eq!(metadata.replicate_to, ["east"]);
    assert!(metadata.publish_time > 1_600_000_000_000);
}

#[tokio::test]
async fn what_has_no_receipt_is_sent_again_in_order_after_a_reconnection() {
    let server = Server::start().await;
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    let sending = [send(&producer, "a"), send(&producer, "b"), send(&producer, "c")];
    let first = session.sent().await;
    session.sent().await;
    session.sent().await;
    confirm(&mut session, first.0.sequence_id, opened.producer_id).await;
    let [a, b, c] = sending;
    assert_eq!(within(a).await.unwrap().unwrap().sequence_id, 5);
    drop(session);
    let mut session = server.connected().await;
    found(&server, &mut session).await;
    let again = produces(&mut session, 5).await;
    assert_eq!((again.producer_name.as_deref(), again.epoch), (Some("made"), Some(1)));
    assert!(!again.user_provided_producer_name());
    for sequence_id in [6, 7] {
        assert_eq!(session.sent().await.0.sequence_id, sequence_id);
        confirm(&mut session, sequence_id, again.producer_id).await;
    }
    assert_eq!(within(b).await.unwrap().unwrap().sequence_id, 6);
    assert_eq!(within(c).await.unwrap().unwrap().sequence_id, 7);
}

#[tokio::test]
async fn the_broker_that_was_named_is_asked_without_a_lookup() {
    let (server, next) = (Server::start().await, Server::start().await);
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    session
        .send(CommandCloseProducer {
            producer_id: opened.producer_id,
            request_id: u64::MAX,
            assigned_broker_service_url: Some(next.url()),
            ..Default::default()
        })
        .await;
    let mut session = next.connected().await;
    let again = produces(&mut session, -1).await;
    let sending = send(&producer, "a");
    let (header, _) = session.sent().await;
    confirm(&mut session, header.sequence_id, again.producer_id).await;
    assert_eq!(within(sending).await.unwrap().unwrap().sequence_id, 5);
}

#[tokio::test]
async fn a_producer_follows_its_topic_to_another_cluster() {
    let (server, other) = (Server::start().await, Server::start().await);
    let (_producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    session
        .send(CommandTopicMigrated {
            resource_id: opened.producer_id,
            resource_type: ResourceType::Producer as i32,
            broker_service_url: Some(other.url()),
            broker_service_url_tls: None,
        })
        .await;
    drop(session);
    let mut session = other.connected().await;
    found(&other, &mut session).await;
    assert_eq!(produces(&mut session, -1).await.topic, topic().as_str());
}

#[tokio::test]
async fn a_refused_message_fails_alone() {
    let server = Server::start().await;
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    let (a, b) = (send(&producer, "a"), send(&producer, "b"));
    session.sent().await;
    session.sent().await;
    session.send(send_error(opened.producer_id, 5, ServerError::ChecksumError, "broken")).await;
    confirm(&mut session, 6, opened.producer_id).await;
    assert_eq!(within(a).await.unwrap().unwrap_err().code(), Some(ServerError::ChecksumError));
    assert_eq!(within(b).await.unwrap().unwrap().sequence_id, 6);
    // An error may overtake the receipts of earlier messages.
    let (c, d) = (send(&producer, "c"), send(&producer, "d"));
    session.sent().await;
    session.sent().await;
    session.send(send_error(opened.producer_id, 8, ServerError::ChecksumError, "broken")).await;
    confirm(&mut session, 7, opened.producer_id).await;
    assert_eq!(within(c).await.unwrap().unwrap().sequence_id, 7);
    assert_eq!(within(d).await.unwrap().unwrap_err().code(), Some(ServerError::ChecksumError));
}

#[tokio::test]
async fn a_refusal_that_may_pass_is_tried_again_in_order() {
    let server = Server::start().await;
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    let (a, b) = (send(&producer, "a"), send(&producer, "b"));
    session.sent().await;
    session.sent().await;
    session.send(send_error(opened.producer_id, 5, ServerError::PersistenceError, "full")).await;
    confirm(&mut session, 6, opened.producer_id).await;
    let Body::CloseProducer(_) = session.body().await else { panic!("no CLOSE_PRODUCER") };
    found(&server, &mut session).await;
    let again = produces(&mut session, -1).await;
    for sequence_id in [5, 6] {
        assert_eq!(session.sent().await.0.sequence_id, sequence_id);
        confirm(&mut session, sequence_id, again.producer_id).await;
    }
    assert_eq!(within(a).await.unwrap().unwrap().sequence_id, 5);
    assert_eq!(within(b).await.unwrap().unwrap().sequence_id, 6);
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_in_time_is_late() {
    let server = Server::start().await;
    let options = ProducerOptions { send_timeout_ms: 300, ..ProducerOptions::new(topic()) };
    let (producer, session, _) = producer(&server, options).await;
    drop(session);
    drop(server);
    let late = within(send(&producer, "a")).await.unwrap().unwrap_err();
    assert!(matches!(late, meridian_client::ClientError::Late { deadline_ms: 300, .. }), "{late}");
}

#[tokio::test]
async fn a_refusal_for_good_is_given_to_everyone_who_waits() {
    let server = Server::start().await;
    let (producer, mut session, _) = producer(&server, ProducerOptions::new(topic())).await;
    let sending = send(&producer, "a");
    session.sent().await;
    drop(session);
    let mut session = server.connected().await;
    // While the old connection is not noticed the name is taken; later the topic is gone.
    for refused in [ServerError::ProducerBusy, ServerError::ProducerBusy, ServerError::TopicTerminatedError] {
        found(&server, &mut session).await;
        let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
        session.send(request_error(producer.request_id, refused, "no")).await;
    }
    let error = within(sending).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ServerError::TopicTerminatedError));
    let error = within(send(&producer, "b")).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ServerError::TopicTerminatedError));
}

async fn subscribes(session: &mut Session) -> CommandSubscribe {
    let Body::Subscribe(subscribe) = session.body().await else { panic!("no SUBSCRIBE") };
    session.send(CommandSuccess { request_id: subscribe.request_id, ..Default::default() }).await;
    subscribe
}

async fn permits(session: &mut Session) -> u32 {
    match session.body().await {
        Body::Flow(flow) => flow.message_permits,
        other => panic!("{other:?} where FLOW was due"),
    }
}

async fn consumer(server: &Server, options: ConsumerOptions) -> (Consumer, Session, CommandSubscribe) {
    let pool = server.pool();
    let broker = async {
        let mut session = server.connected().await;
        found(server, &mut session).await;
        let subscribed = subscribes(&mut session).await;
        assert_eq!(permits(&mut session).await, options.queue);
        (session, subscribed)
    };
    let (consumer, (session, subscribed)) = tokio::join!(Consumer::open(&pool, options.clone()), broker);
    (consumer.unwrap(), session, subscribed)
}

async fn deliver(session: &mut Session, consumer_id: u64, entry_id: i64, redelivery_count: u32) {
    let metadata = MessageMetadata { producer_name: "p".into(), sequence_id: entry_id as u64, ..Default::default() };
    let (mut entry, mut frame) = (BytesMut::new(), BytesMut::new());
    payload::encode(&metadata, b"x", &mut entry);
    let header = MessageHeader {
        consumer_id,
        position: Position::new(1, entry_id),
        partition: None,
        redelivery_count,
        ack_set: &[],
        consumer_epoch: None,
        broker_entry: None,
    };
    encode_message(&header, entry.len(), &mut frame);
    frame.extend_from_slice(&entry);
    session.raw(&frame).await;
}

#[tokio::test]
async fn entries_are_received_permitted_again_and_acknowledged() {
    let server = Server::start().await;
    let options = ConsumerOptions { queue: 4, replicate_state: true, ..ConsumerOptions::new(topic(), "s") };
    let (mut consumer, mut session, subscribed) = consumer(&server, options).await;
    assert!(subscribed.replicate_subscription_state());
    for entry_id in 0..3 {
        deliver(&mut session, subscribed.consumer_id, entry_id, 0).await;
    }
    let mut ids = Vec::new();
    for entry_id in 0..3 {
        let received = within(consumer.receive()).await.unwrap();
        assert_eq!((received.position(), received.messages), (Position::new(1, entry_id), 1));
        ids.push(received.id);
    }
    assert_eq!(permits(&mut session).await, 2);
    consumer.ack(ids[..2].to_vec()).await.unwrap();
    let Body::Ack(ack) = session.body().await else { panic!("no ACK") };
    assert_eq!((ack.message_id.len(), ack.ack_type()), (2, AckType::Individual));
    consumer.ack_cumulative(ids[2].clone()).await.unwrap();
    let Body::Ack(ack) = session.body().await else { panic!("no ACK") };
    assert_eq!((ack.message_id[0].entry_id, ack.ack_type()), (2, AckType::Cumulative));
    consumer.redeliver(vec![]).await.unwrap();
    assert!(matches!(session.body().await, Body::RedeliverUnacknowledgedMessages(_)));
    assert_eq!(consumer.receive_within(10).await.unwrap(), None);
    let broker = async {
        let Body::Ack(ack) = session.body().await else { panic!("no ACK") };
        let request_id = ack.request_id.unwrap();
        session.send(ack_error(ack.consumer_id, request_id, ServerError::NotAllowedError, "no")).await;
    };
    let (refused, ()) = tokio::join!(consumer.ack_confirmed(ids), broker);
    assert_eq!(refused.unwrap_err().code(), Some(ServerError::NotAllowedError));
}

#[tokio::test]
async fn after_a_reconnection_entries_that_were_not_handed_out_come_again_once() {
    let server = Server::start().await;
    let (mut consumer, mut session, subscribed) = consumer(&server, ConsumerOptions::new(topic(), "s")).await;
    for entry_id in 0..3 {
        deliver(&mut session, subscribed.consumer_id, entry_id, 0).await;
    }
    assert_eq!(within(consumer.receive()).await.unwrap().position(), Position::new(1, 0));
    session
        .send(CommandCloseConsumer { consumer_id: subscribed.consumer_id, request_id: u64::MAX, ..Default::default() })
        .await;
    let broker = async {
        // The first attempt is in the way of the old one.
        found(&server, &mut session).await;
        let Body::Subscribe(subscribe) = session.body().await else { panic!("no SUBSCRIBE") };
        session.send(request_error(subscribe.request_id, ServerError::ServiceNotReady, "moving")).await;
        found(&server, &mut session).await;
        let subscribed = subscribes(&mut session).await;
        assert_eq!(permits(&mut session).await, 1000);
        for entry_id in 1..4 {
            deliver(&mut session, subscribed.consumer_id, entry_id, 1).await;
        }
    };
    let receive = async {
        let mut received = Vec::new();
        while received.last() != Some(&3) {
            received.push(consumer.receive().await.unwrap().position().entry_id.0);
        }
        received
    };
    let (received, ()) = within(async { tokio::join!(receive, broker) }).await;
    // What had been handed over before the close may come first; then everything from the mark on, in order.
    let again: Vec<_> = received.iter().rev().take(3).rev().copied().collect();
    assert_eq!(again, [1, 2, 3]);
    assert_eq!(consumer.reconnections(), 1);
}

#[tokio::test]
async fn more_messages_than_permitted_end_the_connection() {
    let server = Server::start().await;
    let options = ConsumerOptions { queue: 1, retry_ms: 0, ..ConsumerOptions::new(topic(), "s") };
    let (mut consumer, mut session, subscribed) = consumer(&server, options).await;
    for entry_id in 0..200 {
        deliver(&mut session, subscribed.consumer_id, entry_id, 0).await;
    }
    session.drained().await;
    let error = within(async {
        loop {
            if let Err(error) = consumer.receive().await {
                return error;
            }
        }
    })
    .await;
    assert!(error.to_string().contains("permitted fewer"), "{error}");
}

#[tokio::test]
async fn closing_waits_for_the_broker() {
    let server = Server::start().await;
    let (consumer, mut session, subscribed) = consumer(&server, ConsumerOptions::new(topic(), "s")).await;
    let broker = async {
        let Body::CloseConsumer(close) = session.body().await else { panic!("no CLOSE_CONSUMER") };
        assert_eq!(close.consumer_id, subscribed.consumer_id);
        session.send(CommandSuccess { request_id: close.request_id, ..Default::default() }).await;
    };
    let (closed, ()) = tokio::join!(consumer.close(), broker);
    closed.unwrap();
    let (producer, mut session, opened) = producer(&server, ProducerOptions::new(topic())).await;
    drop(producer);
    let Body::CloseProducer(close) = session.body().await else { panic!("no CLOSE_PRODUCER") };
    assert_eq!(close.producer_id, opened.producer_id);
}
