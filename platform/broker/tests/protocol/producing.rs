//! PRODUCER, SEND, receipts, closes.

use crate::client::{Broker, put_send};
use crate::fake::Call;
use bytes::BytesMut;
use meridian_broker::BrokerConfig;
use meridian_topic::{TopicError, TopicErrorKind};
use meridian_types::TopicName;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{CommandCloseProducer, CommandPing, CommandProducer, ServerError};

#[tokio::test]
async fn sends_that_follow_each_other_are_one_publish() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    client.producer(2, "b").await;
    let mut bytes = BytesMut::new();
    for (producer, sequence) in [(1, 10), (1, 11), (1, 12), (2, 20), (1, 13)] {
        put_send(producer, sequence, &mut bytes);
    }
    client.raw(&bytes).await;
    let mut receipts = Vec::new();
    for _ in 0..5 {
        let Body::SendReceipt(receipt) = client.body().await else { panic!("not a receipt") };
        receipts.push((receipt.producer_id, receipt.sequence_id, receipt.message_id.unwrap().entry_id));
    }
    assert_eq!(receipts, [(1, 10, 0), (1, 11, 1), (1, 12, 2), (2, 20, 0), (1, 13, 3)]);
    let calls = broker.factory.topic("a").calls();
    assert_eq!(calls[1..], [Call::Publish(vec![10, 11, 12]), Call::Publish(vec![13])]);
}

#[tokio::test]
async fn a_damaged_message_is_refused_alone() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    let mut bytes = BytesMut::new();
    put_send(1, 1, &mut bytes);
    let damaged_at = bytes.len();
    put_send(1, 2, &mut bytes);
    let last = bytes.len() - 1;
    assert!(last > damaged_at);
    bytes[last] ^= 1;
    put_send(1, 3, &mut bytes);
    client.raw(&bytes).await;
    let Body::SendReceipt(receipt) = client.body().await else { panic!("not a receipt") };
    assert_eq!(receipt.sequence_id, 1);
    let Body::SendError(error) = client.body().await else { panic!("not an error") };
    assert_eq!((error.sequence_id, error.error()), (2, ServerError::ChecksumError));
    let Body::SendReceipt(receipt) = client.body().await else { panic!("not a receipt") };
    assert_eq!(receipt.sequence_id, 3);
}

#[tokio::test]
async fn names_are_made_unique_and_kept() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    client.producer(2, "a").await;
    let names: Vec<String> = broker
        .factory
        .topic("a")
        .calls()
        .into_iter()
        .filter_map(|call| if let Call::AddProducer(name) = call { Some(name) } else { None })
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].starts_with("standalone-0-") && names[0] != names[1], "{names:?}");
}

#[tokio::test]
async fn the_same_id_again_is_pending_then_there() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let topic = broker.factory.topic("a");
    topic.close_gate();
    let mut client = broker.connect().await;
    let mut request = CommandProducer { topic: "a".to_owned(), producer_id: 1, request_id: 1, ..Default::default() };
    client.send(request.clone()).await;
    request.request_id = 2;
    client.send(request.clone()).await;
    let Body::Error(error) = client.body().await else { panic!("not an error") };
    assert_eq!((error.request_id, error.error()), (2, ServerError::ServiceNotReady));
    topic.open_gate(1);
    let Body::ProducerSuccess(success) = client.body().await else { panic!("no success") };
    assert_eq!(success.request_id, 1);
    request.request_id = 3;
    client.send(request).await;
    let Body::ProducerSuccess(again) = client.body().await else { panic!("no success") };
    assert_eq!((again.request_id, again.producer_name), (3, success.producer_name));
}

#[tokio::test]
async fn a_refusal_frees_the_id() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let topic = broker.factory.topic("a");
    *topic.refusal.lock().unwrap() = Some(TopicError::new(TopicErrorKind::ProducerBusy, "taken"));
    let mut client = broker.connect().await;
    let request = CommandProducer { topic: "a".to_owned(), producer_id: 1, request_id: 1, ..Default::default() };
    client.send(request).await;
    let Body::Error(error) = client.body().await else { panic!("not an error") };
    assert_eq!((error.error(), error.message.as_str()), (ServerError::ProducerBusy, "taken"));
    *topic.refusal.lock().unwrap() = None;
    client.producer(1, "a").await;
}

#[tokio::test]
async fn a_creation_given_up_by_close_or_disconnect_is_undone() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let topic = broker.factory.topic("a");
    topic.close_gate();
    let mut client = broker.connect().await;
    let request = |id| CommandProducer { topic: "a".to_owned(), producer_id: id, request_id: id, ..Default::default() };
    client.send(request(1)).await;
    client.send(CommandCloseProducer { producer_id: 1, request_id: 9, ..Default::default() }).await;
    let Body::Success(success) = client.body().await else { panic!("no success") };
    assert_eq!(success.request_id, 9);
    client.send(request(2)).await;
    topic.until("both creations", |calls| calls.len() == 2).await;
    drop(client);
    topic.open_gate(2);
    let removed = |calls: &[Call]| calls.iter().filter(|call| matches!(call, Call::RemoveProducer(_))).count() == 2;
    topic.until("the removal of both", removed).await;
}

#[tokio::test]
async fn a_close_by_the_topic_is_told_and_late_sends_are_ignored() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    broker.service.unload_topic(&TopicName::parse("a").unwrap()).await.unwrap();
    let Body::CloseProducer(close) = client.body().await else { panic!("no close") };
    assert_eq!((close.producer_id, close.request_id), (1, u64::MAX));
    client.publish(1, [5]).await;
    client.send(CommandPing {}).await;
    assert!(matches!(client.body().await, Body::Pong(_)));
    // A producer that never was ends the connection.
    client.publish(2, [5]).await;
    client.ended().await;
}

#[tokio::test]
async fn a_closed_producer_answers_after_the_topic_let_it_go() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    for request_id in [4, 5] {
        client.send(CommandCloseProducer { producer_id: 1, request_id, ..Default::default() }).await;
        let Body::Success(success) = client.body().await else { panic!("no success") };
        assert_eq!(success.request_id, request_id);
    }
    broker.factory.topic("a").until_called(Call::RemoveProducer(1)).await;
}

#[tokio::test]
async fn a_probe_tells_a_live_peer_from_a_dead_one() {
    let mut config = BrokerConfig::default();
    config.session.liveness_timeout_ms = 200;
    let broker = Broker::start(config).await;
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    let (sink, _) = broker.factory.topic("a").only_producer();
    let probe = tokio::spawn(sink.probe());
    assert!(matches!(client.next().await.unwrap().command.body, Some(Body::Ping(_))));
    client.send(meridian_wire::proto::CommandPong {}).await;
    assert!(probe.await.unwrap());
    assert!(!sink.probe().await, "nobody answered");
    assert!(matches!(client.next().await.unwrap().command.body, Some(Body::Ping(_))));
    client.ended().await;
    assert!(!sink.probe().await, "it has ended");
}
