//! Compaction of persistent topics, and what readers of the compacted view see.

mod messages;
mod support;

use meridian_managed_ledger::LogSettings;
use meridian_managed_ledger::testing::TestRegion;
use meridian_topic::compaction::CompactionStatus;
use meridian_topic::{ConsumerKey, InitialCursor, SeekTo, SubscribeRequest, SubscriptionType, TopicHandle};
use meridian_types::Position;
use messages::{bodies, keyed};
use std::sync::Arc;
use support::{Bench, Client, Said, cumulative, limits, reader, subscribe};

async fn publish(bench: &Bench, messages: &[(&str, &str)]) -> Vec<Position> {
    let client = Client::new();
    let producer = bench.producer(&client, 0, "p").await;
    for (i, (key, value)) in messages.iter().enumerate() {
        bench.topic.publish(producer, vec![keyed(i as u64, key, value)]);
        client.receipts(0, i + 1).await;
    }
    let receipts = client.receipts(0, messages.len()).await;
    bench.topic.remove_producer(producer).await;
    receipts.iter().map(|receipt| receipt.position).collect()
}

async fn compact(bench: &Bench) {
    bench.topic.compact().await.expect("the compaction starts");
    bench.until("the compaction ends", || bench.topic.compaction_status() != CompactionStatus::Running).await;
    assert_eq!(bench.topic.compaction_status(), CompactionStatus::Success);
}

async fn read(bench: &Bench, request: SubscribeRequest, count: usize) -> (Arc<Client>, ConsumerKey) {
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, SubscribeRequest { read_compacted: true, ..request }).await;
    bench.topic.flow(consumer, 1000);
    client.received(count).await;
    (client, consumer)
}

/// Small ledgers that are dropped as soon as nobody needs them.
fn quick_to_trim() -> LogSettings {
    LogSettings { max_entries_per_ledger: 2, min_rollover_ms: 0, ..LogSettings::default() }
}

/// Drops what was compacted from the log.
async fn trim(bench: &Bench) {
    let entries = || bench.topic.stats().log.map_or(0, |log| log.entries);
    let before = entries();
    // The ledger may be dropped once the internal cursor's move is stored, which happens beside the tick.
    for _ in 0..100 {
        bench.logs.tick(bench.region.advance(60_000)).await;
        bench.topic.trim().await.expect("the log is trimmed");
        if entries() < before {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("nothing was trimmed: {:?}", bench.topic.stats().log);
}

/// Lets everything that is under way come to rest; storage reads since then.
async fn reads_at_rest(bench: &Bench) -> u64 {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    let before = bench.region.ledgers.reads();
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    bench.region.ledgers.reads() - before
}

#[tokio::test]
async fn a_reader_sees_the_latest_of_each_key_and_then_what_comes() {
    let bench = Bench::new().await;
    publish(&bench, &[("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "")]).await;
    compact(&bench).await;
    let (client, _) = read(&bench, reader("r", Position::EARLIEST), 2).await;
    publish(&bench, &[("a", "a3")]).await;
    client.received(3).await;
    assert_eq!(bodies(&client), ["a2", "c1", "a3"]);
    let plain = Client::new();
    let consumer = bench.consumer(&plain, 2, reader("plain", Position::EARLIEST)).await;
    bench.topic.flow(consumer, 1000);
    plain.received(6).await;
    assert_eq!(bodies(&plain), ["a1", "b1", "a2", "c1", "", "a3"], "others see everything");
}

#[tokio::test]
async fn the_view_outlives_a_crash_and_the_log() {
    let region = TestRegion::default();
    let bench = Bench::with_settings(region, limits(), quick_to_trim()).await;
    publish(&bench, &[("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("c", "c1"), ("d", "")]).await;
    compact(&bench).await;
    trim(&bench).await;
    let bench = bench.crash().await;
    let (client, _) = read(&bench, reader("r", Position::EARLIEST), 3).await;
    assert_eq!(bodies(&client), ["a2", "b2", "c1"]);
    assert!(
        bench.topic.stats().subscriptions.iter().all(|sub| sub.name != "__compaction"),
        "internal cursors are hidden"
    );
}

/// Every key is gone: nothing is delivered, nothing is read over and over, and what comes later arrives.
#[tokio::test]
async fn an_empty_view_is_waited_behind() {
    let bench = Bench::new().await;
    publish(&bench, &[("a", "a1"), ("a", "")]).await;
    compact(&bench).await;
    let (client, consumer) = read(&bench, reader("r", Position::EARLIEST), 0).await;
    let last = bench.topic.last_message(consumer).await.unwrap();
    assert_eq!((last.position, last.batch_index), (Position::EARLIEST, -1));
    assert!(reads_at_rest(&bench).await < 5, "the reader spins");
    let positions = publish(&bench, &[("b", "b1")]).await;
    client.received(1).await;
    assert_eq!(bodies(&client), ["b1"]);
    assert_eq!(bench.topic.last_message(consumer).await.unwrap().position, positions[0]);
}

#[tokio::test]
async fn the_last_message_is_one_that_stayed() {
    let bench = Bench::new().await;
    let positions = publish(&bench, &[("a", "a1"), ("b", "b1"), ("c", "c1"), ("c", "")]).await;
    compact(&bench).await;
    let (_, consumer) = read(&bench, reader("r", Position::EARLIEST), 2).await;
    assert_eq!(bench.topic.last_message(consumer).await.unwrap().position, positions[1]);
}

#[tokio::test]
async fn who_starts_at_the_end_sees_nothing_old() {
    let bench = Bench::with_settings(TestRegion::default(), limits(), quick_to_trim()).await;
    publish(&bench, &[("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1")]).await;
    compact(&bench).await;
    trim(&bench).await;
    let (at_end, _) = read(&bench, reader("r", Position::LATEST), 0).await;
    let request =
        SubscribeRequest { initial: InitialCursor::Latest, ..subscribe("s", SubscriptionType::Exclusive, "c") };
    let (durable, _) = read(&bench, request, 0).await;
    publish(&bench, &[("e", "e1")]).await;
    at_end.received(1).await;
    durable.received(1).await;
    assert_eq!((bodies(&at_end), bodies(&durable)), (vec!["e1".to_owned()], vec!["e1".to_owned()]));
}

/// A durable subscription that acknowledged everything does not see the view again after a reconnect or a reload.
#[tokio::test]
async fn what_was_acknowledged_does_not_come_back() {
    let bench = Bench::with_settings(TestRegion::default(), limits(), quick_to_trim()).await;
    let positions = publish(&bench, &[("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1")]).await;
    compact(&bench).await;
    let request = || subscribe("s", SubscriptionType::Exclusive, "c");
    let (client, consumer) = read(&bench, request(), 4).await;
    assert_eq!(bodies(&client), ["a1", "b1", "c1", "d1"]);
    let ack = meridian_topic::AckRequest { receipt: true, ..cumulative(positions[3]) };
    bench.topic.ack(consumer, ack).unwrap().await.unwrap();
    bench.topic.remove_consumer(consumer).await;
    trim(&bench).await;
    let (again, consumer) = read(&bench, request(), 0).await;
    publish(&bench, &[("e", "e1")]).await;
    again.received(1).await;
    assert_eq!(bodies(&again), ["e1"]);
    bench.topic.remove_consumer(consumer).await;
    let bench = bench.crash().await;
    let (reloaded, _) = read(&bench, request(), 1).await;
    assert_eq!(bodies(&reloaded), ["e1"]);
}

#[tokio::test]
async fn a_reader_starts_in_the_middle_of_the_view() {
    let bench = Bench::with_settings(TestRegion::default(), limits(), quick_to_trim()).await;
    let positions = publish(&bench, &[("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1"), ("e", "e1")]).await;
    compact(&bench).await;
    trim(&bench).await;
    let (client, _) = read(&bench, reader("r", positions[2]), 3).await;
    assert_eq!(bodies(&client), ["c1", "d1", "e1"]);
}

#[tokio::test]
async fn a_seek_moves_within_the_view() {
    let bench = Bench::with_settings(TestRegion::default(), limits(), quick_to_trim()).await;
    let positions = publish(&bench, &[("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1"), ("e", "e1")]).await;
    compact(&bench).await;
    trim(&bench).await;
    let request = || subscribe("s", SubscriptionType::Exclusive, "c");
    let (client, consumer) = read(&bench, request(), 5).await;
    bench.topic.seek(consumer, SeekTo::Position(positions[1], Vec::new())).await.unwrap();
    client.heard(Said::CloseConsumer(1)).await;
    let (again, consumer) = read(&bench, request(), 4).await;
    assert_eq!(bodies(&again), ["b1", "c1", "d1", "e1"]);
    bench.topic.seek(consumer, SeekTo::Position(Position::EARLIEST, Vec::new())).await.unwrap();
    let (first, consumer) = read(&bench, request(), 5).await;
    assert_eq!(bodies(&first), ["a1", "b1", "c1", "d1", "e1"]);
    bench.topic.seek(consumer, SeekTo::Position(Position::LATEST, Vec::new())).await.unwrap();
    let (end, _) = read(&bench, request(), 0).await;
    publish(&bench, &[("f", "f1")]).await;
    end.received(1).await;
    assert_eq!(bodies(&end), ["f1"]);
}

/// A consumer that is in the middle of the view when a new compaction replaces it goes on.
#[tokio::test]
async fn a_reader_survives_the_next_compaction() {
    let bench = Bench::new().await;
    let names: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    let messages: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    publish(&bench, &messages).await;
    compact(&bench).await;
    let client = Client::new();
    let request = SubscribeRequest { read_compacted: true, ..reader("r", Position::EARLIEST) };
    let consumer = bench.consumer(&client, 1, request).await;
    bench.topic.flow(consumer, 10);
    client.received(10).await;
    publish(&bench, &[("k5", ""), ("k39", "new")]).await;
    compact(&bench).await;
    bench.topic.flow(consumer, 1000);
    client.received(40).await;
    let mut expected = names.clone();
    expected[39] = "new".to_owned();
    assert_eq!(bodies(&client), expected);
}
