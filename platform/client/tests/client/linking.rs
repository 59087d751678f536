//! The producer of raw entries: order, bounds, ends.

use crate::server::{Server, Session, eventually, topic, within};
use bytes::Bytes;
use meridian_client::{
    ClientError, Connection, LinkEvent, LinkEvents, LinkLimits, LinkOptions, LinkProducer, OutgoingEntry, PeerPool,
};
use meridian_types::{Classify, ErrorClass, Position};
use meridian_wire::encode::SendReceipt;
use meridian_wire::error::{request_error, send_error};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_topic_migrated::ResourceType;
use meridian_wire::proto::schema::Type as SchemaType;
use meridian_wire::proto::{
    CommandCloseProducer, CommandProducer, CommandProducerSuccess, CommandTopicMigrated, Schema, ServerError,
};
use std::time::Duration;

struct Linked {
    _pool: PeerPool,
    connection: Connection,
    session: Session,
    producer: LinkProducer,
    events: LinkEvents,
    opened: CommandProducer,
}

async fn opened(session: &mut Session) -> CommandProducer {
    let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
    session
        .send(CommandProducerSuccess {
            request_id: producer.request_id,
            producer_name: producer.producer_name.clone().unwrap_or("made".into()),
            last_sequence_id: Some(41),
            schema_version: Some(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 2])),
            ..Default::default()
        })
        .await;
    producer
}

async fn linked(server: &Server, options: LinkOptions) -> Linked {
    let (_pool, connection, mut session) = server.pair(server.peer()).await;
    let (link, opened) = tokio::join!(LinkProducer::open(&connection, &options), opened(&mut session));
    let (producer, events) = link.unwrap();
    Linked { _pool, connection, session, producer, events, opened }
}

fn entry(sequence_id: u64, bytes: usize) -> OutgoingEntry {
    OutgoingEntry {
        sequence_id,
        highest_sequence_id: None,
        num_messages: 1,
        marker: false,
        is_chunk: false,
        source: None,
        entry: Bytes::from(vec![sequence_id as u8; bytes]),
    }
}

fn run(sequence_ids: std::ops::Range<u64>, bytes: usize) -> Vec<OutgoingEntry> {
    sequence_ids.map(|sequence_id| entry(sequence_id, bytes)).collect()
}

fn receipt(producer_id: u64, sequence_id: u64) -> SendReceipt {
    let position = Position::new(9, sequence_id as i64);
    SendReceipt { producer_id, sequence_id, highest_sequence_id: 0, position, partition: None }
}

fn sequence_ids(events: &[LinkEvent]) -> Vec<u64> {
    let id = |event: &LinkEvent| match event {
        LinkEvent::Receipt { sequence_id, position, .. } => {
            assert_eq!(position.entry_id.0 as u64, *sequence_id);
            *sequence_id
        }
        other => panic!("{other:?}"),
    };
    events.iter().map(id).collect()
}

#[tokio::test]
async fn a_producer_is_opened_as_asked() {
    let server = Server::start().await;
    let schema = Schema {
        name: "s".into(),
        schema_data: Bytes::from_static(b"{}"),
        r#type: SchemaType::Json as i32,
        properties: vec![],
    };
    let options = LinkOptions {
        name: Some("pulsar.repl.west-->east".into()),
        metadata: vec![("meridian.link".into(), "1".into())],
        schema: Some(schema.clone()),
        epoch: 3,
        ..LinkOptions::new(topic())
    };
    let linked = linked(&server, options).await;
    assert_eq!(linked.producer.name(), "pulsar.repl.west-->east");
    assert_eq!(linked.producer.last_sequence_id(), 41);
    assert_eq!(linked.producer.schema_version().map(|version| version[7]), Some(2));
    let opened = linked.opened;
    assert_eq!((opened.topic.as_str(), opened.epoch, &opened.schema), (topic().as_str(), Some(3), &Some(schema)));
    assert_eq!((opened.metadata[0].key.as_str(), opened.metadata[0].value.as_str()), ("meridian.link", "1"));
    assert!(opened.user_provided_producer_name());
}

#[tokio::test]
async fn a_run_goes_out_as_it_is_and_its_receipts_come_as_one_batch() {
    let server = Server::start().await;
    let Linked { mut session, mut producer, mut events, opened, connection, _pool } =
        linked(&server, LinkOptions::new(topic())).await;
    let marker = OutgoingEntry { marker: true, source: Some(Position::new(3, 4)), ..entry(3, 100_000) };
    let mut sent = run(0..3, 10);
    sent.push(marker);
    producer.try_send(sent.clone()).unwrap();
    for outgoing in &sent {
        let (header, bytes) = session.sent().await;
        assert_eq!((header.producer_id, header.sequence_id), (opened.producer_id, outgoing.sequence_id));
        assert_eq!((header.marker, header.message_id), (outgoing.marker, outgoing.source));
        assert_eq!(bytes, outgoing.entry);
    }
    assert_eq!(producer.in_flight(), 4);
    let receipts: Vec<_> = (0..4).map(|sequence_id| receipt(opened.producer_id, sequence_id)).collect();
    session.receipts(&receipts).await;
    let mut taken = Vec::new();
    while taken.len() < 4 {
        taken.extend(within(events.recv()).await.unwrap());
    }
    assert_eq!(sequence_ids(&taken), [0, 1, 2, 3]);
    assert_eq!((producer.in_flight(), connection.outbound_bytes()), (0, 0));
}

#[tokio::test]
async fn errors_of_sends_come_in_their_place() {
    let server = Server::start().await;
    let Linked { mut session, mut producer, mut events, opened, .. } = linked(&server, LinkOptions::new(topic())).await;
    producer.try_send(run(0..2, 10)).unwrap();
    session.receipts(&[receipt(opened.producer_id, 0)]).await;
    session.send(send_error(opened.producer_id, 1, ServerError::PersistenceError, "disk")).await;
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(within(events.recv()).await.unwrap());
    }
    assert_eq!(sequence_ids(&taken[..1]), [0]);
    let refused = LinkEvent::SendError { sequence_id: 1, code: ServerError::PersistenceError, text: "disk".to_owned() };
    assert_eq!(taken[1], refused);
    assert_eq!(producer.in_flight(), 0);
}

#[tokio::test]
async fn a_closed_producer_says_where_the_topic_went_and_sends_nothing_more() {
    let server = Server::start().await;
    let Linked { mut session, mut producer, mut events, opened, connection, .. } =
        linked(&server, LinkOptions::new(topic())).await;
    let producer_id = opened.producer_id;
    producer.try_send(run(0..2, 10)).unwrap();
    session.sent().await;
    session.sent().await;
    session.receipts(&[receipt(producer_id, 0)]).await;
    session
        .send(CommandTopicMigrated {
            resource_id: producer_id,
            resource_type: ResourceType::Producer as i32,
            broker_service_url: Some("pulsar://other:1".into()),
            broker_service_url_tls: Some("pulsar+ssl://other:2".into()),
        })
        .await;
    session
        .send(CommandCloseProducer {
            producer_id,
            request_id: u64::MAX,
            assigned_broker_service_url: Some("pulsar://next:1".into()),
            ..Default::default()
        })
        .await;
    let mut taken = Vec::new();
    while let Some(batch) = within(events.recv()).await {
        taken.extend(batch);
    }
    assert_eq!(sequence_ids(&taken[..1]), [0]);
    assert_eq!(taken[1], LinkEvent::TopicMigrated { url: "pulsar://other:1".into() });
    assert!(matches!(&taken[2], LinkEvent::Closed { broker_url: Some(url), .. } if url == "pulsar://next:1"));
    assert_eq!(taken.len(), 3);
    let refused = producer.try_send(run(2..3, 10)).unwrap_err();
    assert_eq!((refused.run.len(), refused.error.unwrap().class()), (1, ErrorClass::Retry));
    assert!(producer.writable(1, 1).await.is_err());
    assert!(producer.send(run(2..3, 10)).await.is_err());
    // The peer closed it, so it is not closed again.
    producer.close().await.unwrap();
    session.send(meridian_wire::proto::CommandPing {}).await;
    assert!(matches!(session.body().await, Body::Pong(_)));
    assert_eq!(connection.error(), None);
}

#[tokio::test]
async fn what_is_on_its_way_is_bounded_until_its_answers_are_taken() {
    let server = Server::start().await;
    let limits = LinkLimits { entries: 4, bytes: 1_000 };
    let Linked { mut session, mut producer, mut events, opened, .. } =
        linked(&server, LinkOptions { limits, ..LinkOptions::new(topic()) }).await;
    producer.try_send(run(0..4, 10)).unwrap();
    let full = producer.try_send(run(4..5, 10)).unwrap_err();
    assert!(full.error.is_none());
    assert_eq!(producer.room().entries, 0);
    session.receipts(&[receipt(opened.producer_id, 0), receipt(opened.producer_id, 1)]).await;
    assert!(tokio::time::timeout(Duration::from_millis(20), producer.writable(1, 10)).await.is_err(), "not taken yet");
    let batch = within(events.recv()).await.unwrap();
    assert_eq!(sequence_ids(&batch), [0, 1]);
    within(producer.writable(2, 20)).await.unwrap();
    producer.try_send(full.run).unwrap();
    let large = producer.try_send(run(5..6, 990)).unwrap_err();
    assert!(large.error.is_none(), "too many bytes");
    for _ in 0..5 {
        session.sent().await;
    }
}

#[tokio::test]
async fn a_long_run_is_sent_in_pieces_as_receipts_are_taken() {
    let server = Server::start().await;
    let limits = LinkLimits { entries: 7, bytes: 50_000 };
    let Linked { mut session, mut producer, mut events, opened, .. } =
        linked(&server, LinkOptions { limits, ..LinkOptions::new(topic()) }).await;
    let broker = async {
        for due in 0..100 {
            let (header, _) = session.sent().await;
            assert_eq!(header.sequence_id, due);
            session.receipts(&[receipt(opened.producer_id, due)]).await;
        }
    };
    let owner = async {
        let mut taken = Vec::new();
        while taken.len() < 100 {
            taken.extend(events.recv().await.unwrap());
        }
        taken
    };
    let (sent, (), taken) = within(async { tokio::join!(producer.send(run(0..100, 9_000)), broker, owner) }).await;
    sent.unwrap();
    assert_eq!(sequence_ids(&taken), (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_a_bounded_queue() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.outbound_bytes = 100_000;
    let (_pool, connection, mut session) = server.pair(peer).await;
    let limits = LinkLimits { entries: 100_000, bytes: usize::MAX };
    let options = LinkOptions { limits, ..LinkOptions::new(topic()) };
    let (link, _) = tokio::join!(LinkProducer::open(&connection, &options), opened(&mut session));
    let (mut producer, _events) = link.unwrap();
    // Until the socket is full and the queue behind it too.
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_millis(50), producer.writable(1, 50_000)).await.is_ok() {
        if producer.try_send(run(sent..sent + 1, 50_000)).is_ok() {
            sent += 1;
        }
        assert!(connection.outbound_bytes() <= 101_000, "{} bytes wait", connection.outbound_bytes());
        assert!(sent < 10_000, "the socket takes everything");
    }
    let refused = producer.try_send(run(sent..sent + 1, 50_000)).unwrap_err();
    assert!(refused.error.is_none());
    assert_eq!(refused.run.len(), 1);
    for due in 0..sent {
        assert_eq!(session.sent().await.0.sequence_id, due);
    }
    within(producer.writable(1, 50_000)).await.unwrap();
}

#[tokio::test]
async fn an_entry_that_the_peer_would_not_take_is_refused_here() {
    let server = Server::start().await;
    let Linked { mut producer, connection, .. } = linked(&server, LinkOptions::new(topic())).await;
    let limit = connection.facts().max_entry_bytes();
    let refused = producer.try_send(vec![entry(0, 1), entry(1, limit + 1)]).unwrap_err();
    let error = refused.error.unwrap();
    assert_eq!(error, ClientError::TooLarge { bytes: limit + 1, limit_bytes: limit });
    assert_eq!((error.class(), producer.in_flight()), (ErrorClass::Caller, 0));
}

#[tokio::test]
async fn a_receipt_without_a_send_ends_the_connection() {
    let server = Server::start().await;
    let Linked { mut session, mut producer, opened, connection, .. } = linked(&server, LinkOptions::new(topic())).await;
    producer.try_send(run(0..1, 10)).unwrap();
    session.receipts(&[receipt(opened.producer_id, 0), receipt(opened.producer_id, 1)]).await;
    let reason = within(connection.ended()).await;
    assert!(reason.to_string().contains("more receipts than sends"), "{reason}");
}

#[tokio::test]
async fn a_refused_producer_leaves_nothing_behind() {
    let server = Server::start().await;
    let (_pool, connection, mut session) = server.pair(server.peer()).await;
    let options = LinkOptions::new(topic());
    let broker = async {
        let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
        session.send(request_error(producer.request_id, ServerError::ProducerBusy, "taken")).await;
    };
    let (refused, ()) = tokio::join!(LinkProducer::open(&connection, &options), broker);
    assert_eq!(refused.unwrap_err().code(), Some(ServerError::ProducerBusy));
    session.send(meridian_wire::proto::CommandPing {}).await;
    assert!(matches!(session.body().await, Body::Pong(_)), "there is nothing to close");
}

#[tokio::test]
async fn a_producer_whose_opening_is_late_is_closed() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.request_timeout_ms = 30;
    let (_pool, connection, mut session) = server.pair(peer).await;
    let options = LinkOptions::new(topic());
    let late = LinkProducer::open(&connection, &options).await.unwrap_err();
    assert!(matches!(late, ClientError::Late { .. }), "{late}");
    let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
    let Body::CloseProducer(close) = session.body().await else { panic!("no CLOSE_PRODUCER") };
    assert_eq!(close.producer_id, producer.producer_id);
}

#[tokio::test]
async fn a_dropped_producer_is_closed_at_the_peer() {
    let server = Server::start().await;
    let Linked { mut session, producer, mut events, opened, connection, .. } =
        linked(&server, LinkOptions::new(topic())).await;
    drop(producer);
    let Body::CloseProducer(close) = session.body().await else { panic!("no CLOSE_PRODUCER") };
    assert_eq!(close.producer_id, opened.producer_id);
    assert_eq!(within(events.recv()).await, None);
    // Receipts that still come are of no use to anyone.
    session.receipts(&[receipt(opened.producer_id, 0)]).await;
    session.send(meridian_wire::proto::CommandPing {}).await;
    assert!(matches!(session.body().await, Body::Pong(_)));
    eventually("the empty queue", || connection.outbound_bytes() == 0).await;
    assert_eq!(connection.error(), None);
}
