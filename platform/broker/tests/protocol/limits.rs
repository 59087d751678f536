//! What a connection may cost.

use crate::client::{Broker, entry};
use crate::fake::{Call, delivery};
use meridian_broker::BrokerConfig;
use meridian_broker::config::SessionLimits;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{CommandPing, CommandProducer};

fn published(calls: &[Call]) -> usize {
    calls.iter().map(|call| if let Call::Publish(ids) = call { ids.len() } else { 0 }).sum()
}

#[tokio::test]
async fn unanswered_publishes_stop_the_reading_until_half() {
    let session = SessionLimits { max_pending_publishes: 10, max_read_buffer_bytes: 512, ..Default::default() };
    let broker = Broker::start(BrokerConfig { session, ..Default::default() }).await;
    let topic = broker.factory.topic("a");
    topic.answers.store(false, std::sync::atomic::Ordering::SeqCst);
    let mut client = broker.connect().await;
    client.producer(1, "a").await;
    client.publish(1, 0..1000).await;
    // A PING behind the sends is read only when everything before it was.
    client.send(CommandPing {}).await;
    topic.until("the limit", |calls| published(calls) >= 10).await;
    let in_one_buffer = 512 / 40 + 1;
    let mut answered = 0;
    while answered < 1000 {
        let pending = published(&topic.calls()) - answered;
        assert!(pending <= 10 + 2 * in_one_buffer, "{pending} publishes are under way");
        answered += topic.answer_all();
        topic.until("more publishes", |calls| published(calls) > answered || answered == 1000).await;
    }
    let mut receipts = 0;
    loop {
        match client.body().await {
            Body::SendReceipt(receipt) => {
                assert_eq!(receipt.sequence_id, receipts);
                receipts += 1;
            }
            Body::Pong(_) => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    // The PONG may overtake receipts, not lose them.
    while receipts < 1000 {
        assert!(matches!(client.body().await, Body::SendReceipt(_)));
        receipts += 1;
    }
}

#[tokio::test]
async fn a_client_that_never_reads_costs_bounded_memory() {
    let session = SessionLimits { outbound_high_bytes: 100_000, outbound_low_bytes: 20_000, ..Default::default() };
    let broker = Broker::start(BrokerConfig { session, ..Default::default() }).await;
    let mut client = broker.open(4096);
    client.connect().await;
    client.subscribe(1, "a").await;
    let topic = broker.factory.topic("a");
    let (sink, consumer) = topic.only_consumer();
    let body = entry(1, &[1; 10_000]);
    let mut sent = 0;
    while sink.is_writable() {
        sink.deliver(consumer, vec![delivery(sent, body.clone())]);
        sent += 1;
        assert!(sent < 20, "{sent} messages wait for a client that does not read");
        tokio::task::yield_now().await;
    }
    assert!(sent >= 10);
    // Commands of such a client are not read either, so that it cannot pile up answers.
    let mut pings = 0;
    let mut bytes = bytes::BytesMut::new();
    meridian_wire::encode::encode_command(&CommandPing {}.into(), &mut bytes);
    use tokio::io::AsyncWriteExt;
    while let Ok(written) =
        tokio::time::timeout(std::time::Duration::from_millis(200), client.stream.write_all(&bytes)).await
    {
        written.unwrap();
        pings += 1;
        assert!(pings < 2_000, "the broker goes on reading");
    }
    // Once it reads, dispatch is called back.
    for entry_id in 0..sent {
        let Body::Message(message) = client.body().await else { panic!("no message") };
        assert_eq!(message.message_id.entry_id, entry_id as u64);
    }
    topic.until_called(Call::Writable).await;
}

#[tokio::test]
async fn slow_commands_are_bounded() {
    let session = SessionLimits { max_pending_commands: 8, max_read_buffer_bytes: 256, ..Default::default() };
    let broker = Broker::start(BrokerConfig { session, ..Default::default() }).await;
    let topic = broker.factory.topic("a");
    topic.close_gate();
    let mut client = broker.connect().await;
    for id in 0..200 {
        client
            .send(CommandProducer { topic: "a".to_owned(), producer_id: id, request_id: id, ..Default::default() })
            .await;
    }
    topic.until("the limit", |calls| calls.len() >= 8).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(topic.calls().len() < 8 + 256 / 14, "{} creations are going on", topic.calls().len());
    topic.open_gate(200);
    for _ in 0..200 {
        assert!(matches!(client.body().await, Body::ProducerSuccess(_)));
    }
}
