//! Deduplication and compaction of persistent topics.

mod support;

use meridian_topic::compaction::CompactionStatus;
use meridian_topic::{SubscribeRequest, SubscriptionType, TopicErrorKind, TopicHandle, TopicLimits};
use meridian_types::Position;
use meridian_wire::proto::MessageMetadata;
use support::{Bench, Client, limits, produce, reader, send, subscribe};

/// A SEND whose stored bytes carry metadata.
fn keyed(producer: &str, sequence_id: u64, key: &str, value: &str) -> meridian_topic::Publish {
    let metadata = MessageMetadata {
        producer_name: producer.to_owned(),
        sequence_id,
        publish_time: 1,
        partition_key: Some(key.to_owned()),
        ..MessageMetadata::default()
    };
    let mut payload = bytes::BytesMut::new();
    meridian_wire::payload::encode(&metadata, value.as_bytes(), &mut payload);
    meridian_topic::Publish { payload: payload.freeze(), ..send(sequence_id, "") }
}

fn values(client: &Client) -> Vec<String> {
    let value = |(_, delivery): &(u64, meridian_topic::Delivery)| {
        let (_, value) = meridian_wire::payload::decode(&delivery.payload).expect("metadata");
        String::from_utf8_lossy(&value).into_owned()
    };
    client.got.lock().iter().map(value).collect()
}

#[tokio::test]
async fn deduplication_survives_a_crash_with_and_without_snapshot() {
    let dedup = || TopicLimits { deduplication: true, dedup_snapshot_entries: 2, ..limits() };
    let mut bench = Bench::with_limits(dedup()).await;
    for (round, snapshot) in [(0, false), (1, true), (2, false)] {
        let client = Client::new();
        let ready = bench.topic.add_producer(produce(&client, 1, "p")).await.unwrap();
        assert_eq!(ready.last_sequence_id, round * 3 - 1, "round {round}");
        let from = round as u64 * 3;
        let sends = |from: u64| (from..from + 3).map(|i| keyed("p", i, "k", "v")).collect::<Vec<_>>();
        bench.topic.publish(ready.key, sends(from));
        let positions: Vec<Position> = client.receipts(1, 3).await.iter().map(|receipt| receipt.position).collect();
        assert!(positions.is_sorted() && positions[0] > Position::EARLIEST);
        bench.topic.publish(ready.key, sends(from));
        let again = client.receipts(1, 6).await;
        assert!(again[3..].iter().all(|receipt| receipt.position == Position::EARLIEST), "{again:?}");
        if snapshot {
            bench.region.advance(1000);
            bench.topic.tick(bench.region.now_ms());
            let covered = || {
                let log = bench.topic.stats().log.unwrap();
                log.last_confirmed == positions[2]
            };
            bench.until("the snapshot is there", covered).await;
        }
        let region = bench.region.clone();
        drop(bench);
        bench = Bench::with(region, dedup()).await;
    }
    assert!(bench.topic.stats().subscriptions.is_empty(), "the internal cursor is nobody's subscription");
}

#[tokio::test]
async fn marks_are_stored_as_often_as_the_limits_say() {
    let dedup = |seconds| TopicLimits { deduplication: true, dedup_snapshot_s: seconds, ..limits() };
    let bench = Bench::with_limits(dedup(60)).await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let log = bench.logs.opened("public/default/persistent/t").unwrap();
    let covered = || log.cursor("pulsar.dedup").unwrap().mark_delete();
    let send = async |number: u64| {
        bench.topic.publish(producer, vec![keyed("p", number, "k", "v")]);
        client.receipts(1, number as usize + 1).await[number as usize].position
    };
    let tick = |ms: u64| {
        bench.region.advance(ms);
        bench.topic.tick(bench.region.now_ms());
    };
    let first = send(0).await;
    tick(59_000);
    assert!(covered() < first, "the time is not over");
    tick(1_000);
    bench.until("it is", || covered() == first).await;
    // A shorter time is in force at once.
    let second = send(1).await;
    tick(2_000);
    assert_eq!(covered(), first);
    bench.topic.set_limits(dedup(2));
    tick(10);
    bench.until("the shorter time is over", || covered() == second).await;
    // 0: by entries alone.
    bench.topic.set_limits(dedup(0));
    send(2).await;
    tick(100_000_000);
    assert_eq!(covered(), second);
    bench.topic.set_limits(TopicLimits { dedup_snapshot_entries: 2, ..dedup(0) });
    let last = send(3).await;
    tick(1);
    bench.until("so many entries", || covered() == last).await;
}

#[tokio::test]
async fn the_compacted_view_shows_the_latest_of_each_key_and_what_follows() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let send_all = async |from: u64, pairs: &[(&str, &str)]| {
        let sends = pairs.iter().zip(from..).map(|((key, value), i)| keyed("p", i, key, value)).collect();
        bench.topic.publish(producer, sends);
        client.receipts(1, from as usize + pairs.len()).await
    };
    let receipts = send_all(0, &[("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", "")]).await;
    bench.topic.compact().await.unwrap();
    let done = || bench.topic.compaction_status() == CompactionStatus::Success;
    bench.until("the compaction ends", done).await;
    let last_of = async || {
        let reading = Client::new();
        let request = SubscribeRequest { read_compacted: true, ..reader("last", Position::EARLIEST) };
        let consumer = bench.consumer(&reading, 1, request).await;
        let last = bench.topic.last_message(consumer).await.unwrap();
        bench.topic.remove_consumer(consumer).await;
        last.position
    };
    assert_eq!(last_of().await, receipts[2].position, "what is compacted away is not the last message");
    let receipts = send_all(5, &[("b", "5")]).await;
    assert_eq!(last_of().await, receipts[5].position);
    for (compacted, expected) in [(true, vec!["2", "3", "5"]), (false, vec!["1", "2", "3", "4", "", "5"])] {
        let reading = Client::new();
        let request = SubscribeRequest { read_compacted: compacted, ..reader("r", Position::EARLIEST) };
        let consumer = bench.consumer(&reading, 1, request).await;
        bench.topic.flow(consumer, 100);
        reading.received(expected.len()).await;
        assert_eq!(values(&reading), expected, "compacted: {compacted}");
        bench.topic.remove_consumer(consumer).await;
    }
    let request = SubscribeRequest { read_compacted: true, ..subscribe("s", SubscriptionType::Shared, "c") };
    let refused = bench.topic.subscribe(SubscribeRequest { sink: client.clone(), ..request }).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::NotAllowed);
}

#[tokio::test]
async fn a_view_in_which_nothing_is_left_is_read_to_its_end() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![keyed("p", 0, "a", "1"), keyed("p", 1, "a", "")]);
    client.receipts(1, 2).await;
    bench.topic.compact().await.unwrap();
    bench.until("the compaction ends", || bench.topic.compaction_status() == CompactionStatus::Success).await;
    let reading = Client::new();
    let request = SubscribeRequest { read_compacted: true, ..reader("r", Position::EARLIEST) };
    let consumer = bench.consumer(&reading, 1, request).await;
    bench.topic.flow(consumer, 100);
    assert_eq!(bench.topic.last_message(consumer).await.unwrap().position, Position::EARLIEST);
    bench.until("it waits for data", || bench.topic.stats().subscriptions[0].waiting.is_none()).await;
    bench.topic.publish(producer, vec![keyed("p", 2, "b", "2")]);
    reading.received(1).await;
    assert_eq!(values(&reading), ["2"]);
}
