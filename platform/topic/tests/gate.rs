//! The gate of a topic: held for a switch, open again, or moved to another region.

mod support;

use meridian_topic::{Gate, MovedTo, ProducerRequest, SubscriptionType, TopicErrorKind, TopicHandle, Unsettled};
use meridian_types::Position;
use std::sync::Arc;
use support::{Bench, Client, Said, produce, reader, send, subscribe};

fn moved() -> Gate {
    let to = MovedTo { region: "east".into(), broker_url: Some("pulsar://east:6650".into()), broker_url_tls: None };
    Gate::Moved(Arc::new(to))
}

fn held() -> Gate {
    Gate::Held("a switch is under way".into())
}

fn link(client: &Arc<Client>, id: u64) -> ProducerRequest {
    produce(client, id, "pulsar.repl.east-->west")
}

#[tokio::test]
async fn what_is_held_is_neither_stored_nor_answered_nor_delivered() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let consumer = bench.consumer(&client, 2, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, 10);
    bench.topic.publish(producer, vec![send(0, "before")]);
    client.receipts(1, 1).await;
    bench.until("the first one is delivered", || client.got.lock().len() == 1).await;
    assert_eq!(bench.topic.unsettled(), Unsettled { sends: 0, unacked: 1 });

    bench.topic.set_gate(held());
    let stored = bench.topic.last_position();
    bench.topic.publish(producer, vec![send(1, "held")]);
    let refused = bench.topic.add_producer(produce(&client, 3, "q")).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ServiceNotReady);
    // Links go on, and what they bring waits.
    let from_link = bench.topic.add_producer(link(&client, 4)).await.expect("links pass").key;
    bench.topic.publish(from_link, vec![send(0, "copied")]);
    client.receipts(4, 1).await;
    assert_eq!(bench.topic.last_position(), stored.next_in_ledger(), "one entry: the link's");
    let first = client.got.lock()[0].1.position;
    bench.ack_durably(consumer, &[first]).await;
    assert_eq!(bench.topic.unsettled(), Unsettled::default(), "acknowledgements pass");
    assert_eq!(client.got.lock().len(), 1, "nothing is delivered");
    assert!(!client.said.lock().iter().any(|said| matches!(said, Said::CloseProducer(_))));

    bench.topic.set_gate(Gate::Open);
    assert!(client.said.lock().contains(&Said::CloseProducer(1)), "its client sends again what was not answered");
    bench.until("dispatch goes on", || client.got.lock().len() == 2).await;
    bench.producer(&client, 5, "p").await;
}

#[tokio::test]
async fn who_is_moved_is_told_where_and_readers_and_links_stay() {
    let bench = Bench::new().await;
    let client = Client::new();
    bench.producer(&client, 1, "p").await;
    let open = bench.topic.add_producer(link(&client, 2)).await.expect("links pass").key;
    bench.consumer(&client, 3, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    let reading = bench.consumer(&client, 4, reader("r", Position::EARLIEST)).await;
    bench.topic.flow(reading, 10);
    bench.topic.set_gate(held());
    bench.topic.set_gate(moved());
    let told: Vec<Said> = client.said.lock().iter().filter(|said| matches!(said, Said::Moved(..))).cloned().collect();
    assert_eq!(told, [Said::Moved(1, "east".into()), Said::Moved(3, "east".into())]);
    let producer = bench.topic.add_producer(produce(&client, 5, "q")).await.unwrap_err();
    assert!(producer.message.contains("region east"), "{producer}");
    let request = subscribe("s", SubscriptionType::Exclusive, "c");
    let consumer = bench.topic.subscribe(request).await.unwrap_err();
    assert_eq!(consumer.kind, TopicErrorKind::ServiceNotReady);
    bench.topic.publish(open, vec![send(0, "copied")]);
    bench.until("the reader reads on", || client.got.lock().len() == 1).await;

    bench.topic.set_gate(Gate::Open);
    bench.consumer(&client, 6, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.producer(&client, 7, "p").await;
}
