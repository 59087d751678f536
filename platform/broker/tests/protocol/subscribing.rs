//! SUBSCRIBE, FLOW, messages, acks, seeks.

use crate::client::{Broker, entry};
use crate::fake::{Call, delivery};
use meridian_broker::BrokerConfig;
use meridian_topic::{SeekTo, TopicError, TopicErrorKind};
use meridian_types::Position;
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_subscribe::SubType;
use meridian_wire::proto::{
    CommandAck, CommandConsumerStats, CommandFlow, CommandGetLastMessageId, CommandPing,
    CommandRedeliverUnacknowledgedMessages, CommandSeek, CommandSubscribe, CommandUnsubscribe, KeyValue, MessageIdData,
    ServerError,
};

fn id(ledger_id: u64, entry_id: u64) -> MessageIdData {
    MessageIdData { ledger_id, entry_id, ..Default::default() }
}

#[tokio::test]
async fn being_active_is_told_after_the_success() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    let mut request = CommandSubscribe {
        topic: "a".to_owned(),
        subscription: "s".to_owned(),
        consumer_id: 1,
        request_id: 2,
        ..Default::default()
    };
    request.sub_type = SubType::Failover as i32;
    client.send(request).await;
    assert!(matches!(client.body().await, Body::Success(_)));
    let Body::ActiveConsumerChange(change) = client.body().await else { panic!("no change") };
    assert_eq!((change.consumer_id, change.is_active()), (1, true));
}

#[tokio::test]
async fn messages_carry_position_partition_and_broker_metadata() {
    let config = BrokerConfig { expose_broker_entry_metadata: true, ..Default::default() };
    let broker = Broker::start(config).await;
    let mut client = broker.connect().await;
    client.subscribe(3, "a").await;
    client.send(CommandFlow { consumer_id: 3, message_permits: 10 }).await;
    let topic = broker.factory.topic("a");
    topic.until_called(Call::Flow(10)).await;
    let (sink, consumer) = topic.only_consumer();
    let (small, large) = (entry(1, b"small"), entry(2, &vec![7; 100_000]));
    sink.deliver(consumer, vec![delivery(0, small.clone()), delivery(1, large.clone())]);
    for (entry_id, sent) in [(0, small), (1, large)] {
        let frame = client.next().await.unwrap();
        let Some(Body::Message(message)) = frame.command.body else { panic!("no message") };
        assert_eq!((message.consumer_id, message.message_id.entry_id), (3, entry_id));
        let (broker_entry, rest) = payload::strip_broker_entry(&frame.payload.unwrap()).unwrap();
        assert_eq!(broker_entry.unwrap().index, Some(entry_id));
        assert_eq!(rest, sent);
    }
}

#[tokio::test]
async fn acks_with_a_request_id_are_answered_and_others_never() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.subscribe(3, "a").await;
    let ack = |consumer_id, request_id| CommandAck {
        consumer_id,
        message_id: vec![id(5, 1), id(5, 2)],
        request_id,
        ..Default::default()
    };
    client.send(ack(3, None)).await;
    client.send(ack(4, Some(1))).await;
    client.send(ack(3, Some(2))).await;
    let Body::AckResponse(response) = client.body().await else { panic!("no response") };
    assert_eq!((response.request_id, response.error), (Some(2), None));
    let topic = broker.factory.topic("a");
    let acked = vec![Position::new(5, 1), Position::new(5, 2)];
    assert_eq!(topic.calls()[1..], [Call::Ack(acked.clone()), Call::Ack(acked)]);
    *topic.refusal.lock().unwrap() = Some(TopicError::new(TopicErrorKind::Persistence, "disk"));
    client.send(ack(3, Some(3))).await;
    let Body::AckResponse(response) = client.body().await else { panic!("no response") };
    assert_eq!((response.error(), response.message()), (ServerError::PersistenceError, "disk"));
    let transaction = CommandAck { txnid_least_bits: Some(1), txnid_most_bits: Some(2), ..ack(3, Some(4)) };
    client.send(transaction).await;
    let Body::AckResponse(response) = client.body().await else { panic!("no response") };
    assert_eq!(response.message(), "Server don't support transaction ack!");
}

#[tokio::test]
async fn a_flow_of_nothing_ends_the_connection() {
    let broker = Broker::start(BrokerConfig::default()).await;
    for permits in [0, u32::MAX] {
        let mut client = broker.connect().await;
        client.subscribe(3, "a").await;
        client.send(CommandFlow { consumer_id: 77, message_permits: 1 }).await;
        client.send(CommandFlow { consumer_id: 3, message_permits: permits }).await;
        client.ended().await;
    }
}

#[tokio::test]
async fn consumers_that_are_not_there_are_named() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.send(CommandUnsubscribe { consumer_id: 8, request_id: 1, force: None }).await;
    client
        .send(CommandSeek { consumer_id: 8, request_id: 2, message_id: Some(id(1, 1)), message_publish_time: None })
        .await;
    client.send(CommandGetLastMessageId { consumer_id: 8, request_id: 3 }).await;
    for request_id in 1..=3 {
        let Body::Error(error) = client.body().await else { panic!("no error") };
        assert_eq!((error.request_id, error.error()), (request_id, ServerError::MetadataError));
        assert_eq!(error.message, "Consumer not found");
    }
    client.send(CommandConsumerStats { consumer_id: 8, request_id: 4 }).await;
    let Body::ConsumerStatsResponse(stats) = client.body().await else { panic!("no stats") };
    assert_eq!((stats.error_code(), stats.error_message()), (ServerError::ConsumerNotFound, "Consumer 8 not found"));
}

#[tokio::test]
async fn a_seek_closes_the_consumer_before_it_succeeds() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.subscribe(3, "a").await;
    client.send(CommandSeek { consumer_id: 3, request_id: 6, message_id: None, message_publish_time: Some(99) }).await;
    let Body::CloseConsumer(close) = client.body().await else { panic!("no close") };
    assert_eq!((close.consumer_id, close.request_id), (3, u64::MAX));
    let Body::Success(success) = client.body().await else { panic!("no success") };
    assert_eq!(success.request_id, 6);
    broker.factory.topic("a").until_called(Call::Seek(SeekTo::PublishTime(99))).await;
    // The id is free again.
    client.subscribe(3, "a").await;
    client.send(CommandSeek { consumer_id: 3, request_id: 7, message_id: None, message_publish_time: None }).await;
    let Body::Error(error) = client.body().await else { panic!("no error") };
    assert_eq!(error.error(), ServerError::MetadataError);
}

#[tokio::test]
async fn the_rest_of_a_consumers_commands_reach_the_topic() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.subscribe(3, "a").await;
    client
        .send(CommandRedeliverUnacknowledgedMessages {
            consumer_id: 3,
            message_ids: vec![id(5, 9)],
            consumer_epoch: None,
        })
        .await;
    client.send(CommandGetLastMessageId { consumer_id: 3, request_id: 5 }).await;
    let Body::GetLastMessageIdResponse(last) = client.body().await else { panic!("no id") };
    assert_eq!((last.last_message_id.entry_id, last.last_message_id.batch_index), (8, Some(3)));
    assert_eq!(last.consumer_mark_delete_position, None, "a ledger below zero is left out");
    client.send(CommandUnsubscribe { consumer_id: 3, request_id: 6, force: Some(true) }).await;
    assert!(matches!(client.body().await, Body::Success(_)));
    let calls = broker.factory.topic("a").calls();
    assert_eq!(calls[1..], [Call::Redeliver(vec![Position::new(5, 9)]), Call::Unsubscribe(true)]);
    client.send(CommandUnsubscribe { consumer_id: 3, request_id: 7, force: None }).await;
    assert!(matches!(client.body().await, Body::Error(_)));
}

#[tokio::test]
async fn too_much_metadata_is_refused() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    let request = CommandSubscribe {
        topic: "a".to_owned(),
        subscription: "s".to_owned(),
        consumer_id: 1,
        request_id: 2,
        metadata: vec![KeyValue { key: "k".to_owned(), value: "v".repeat(1024) }],
        ..Default::default()
    };
    client.send(request).await;
    let Body::Error(error) = client.body().await else { panic!("no error") };
    assert_eq!(error.error(), ServerError::MetadataError);
    client.send(CommandPing {}).await;
    assert!(matches!(client.body().await, Body::Pong(_)));
}
