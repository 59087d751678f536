//! What other regions' replicators send: stored once, whatever is refused, lost or reloaded.

mod support;

use bytes::BytesMut;
use meridian_topic::{
    ProducerKey, ProducerRequest, Publish, Receipt, SubscriptionType, TopicErrorKind, TopicHandle, TopicLimits,
};
use meridian_types::{Incarnation, Position, RegionId};
use meridian_wire::proto::{KeyValue, MessageMetadata};
use meridian_wire::replicate::SOURCE_POSITION_PROPERTY;
use std::sync::Arc;
use support::{Bench, Client, Said, limits, produce, send, subscribe};

const LINK: &str = "pulsar.repl.west-->east";

/// An entry that the source stores at `7:entry`, as a replicator sends it.
fn copied(producer: &str, sequence_id: u64, entry: i64, text: &str) -> Publish {
    let metadata = MessageMetadata {
        producer_name: producer.to_owned(),
        sequence_id,
        publish_time: 1,
        replicated_from: Some("west".to_owned()),
        properties: vec![KeyValue { key: SOURCE_POSITION_PROPERTY.to_owned(), value: format!("7:{entry}") }],
        ..MessageMetadata::default()
    };
    let mut payload = BytesMut::new();
    meridian_wire::payload::encode(&metadata, text.as_bytes(), &mut payload);
    Publish { payload: payload.freeze(), ..send(sequence_id, "") }
}

fn entries(range: std::ops::Range<i64>) -> Vec<Publish> {
    range.map(|entry| copied("p", entry as u64, entry, &entry.to_string())).collect()
}

fn own(producer: &str, sequence_id: u64, text: &str) -> Publish {
    let metadata =
        MessageMetadata { producer_name: producer.to_owned(), sequence_id, publish_time: 1, ..Default::default() };
    let mut payload = BytesMut::new();
    meridian_wire::payload::encode(&metadata, text.as_bytes(), &mut payload);
    Publish { payload: payload.freeze(), ..send(sequence_id, "") }
}

/// A Meridian link of the given incarnation; 0 = a Pulsar link.
fn link(client: &Arc<Client>, id: u64, incarnation: u64) -> ProducerRequest {
    let mut request = ProducerRequest { receipts_by_position: true, ..produce(client, id, LINK) };
    if incarnation != 0 {
        let pairs = [("meridian.region", "west".to_owned()), ("meridian.incarnation", incarnation.to_string())];
        request.metadata = pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        request.metadata.insert("meridian.link".to_owned(), "1".to_owned());
    }
    request
}

async fn open(bench: &Bench, client: &Arc<Client>, id: u64, incarnation: u64) -> ProducerKey {
    bench.topic.add_producer(link(client, id, incarnation)).await.expect("the link is let in").key
}

/// Everything stored, in order: the payloads and where they were first stored.
async fn stored(bench: &Bench) -> Vec<(String, (RegionId, Incarnation, Position))> {
    let mut found = Vec::new();
    let ledgers = bench.topic.stats().log.expect("a log").ledgers;
    for ledger in ledgers {
        for entry in 0..ledger.entries as i64 {
            let position = Position::new(ledger.ledger_id.0, entry);
            let entry = bench.topic.entry(position).await.expect("readable").expect("there");
            let text = meridian_wire::payload::decode(&entry.payload).expect("metadata").1;
            found.push((String::from_utf8_lossy(&text).into_owned(), entry.origin));
        }
    }
    found
}

async fn texts(bench: &Bench) -> Vec<String> {
    stored(bench).await.into_iter().map(|(text, _)| text).collect()
}

fn numbers(range: std::ops::Range<i64>) -> Vec<String> {
    range.map(|entry| entry.to_string()).collect()
}

async fn reload(bench: Bench, limits: TopicLimits) -> Bench {
    let region = bench.region.clone();
    drop(bench);
    Bench::with(region, limits).await
}

fn duplicates(receipts: &[Receipt]) -> usize {
    receipts.iter().filter(|receipt| receipt.position == Position::EARLIEST).count()
}

#[tokio::test]
async fn the_origin_is_stored_and_the_receipt_tells_the_source_position() {
    let bench = Bench::new().await;
    let client = Client::new();
    let key = open(&bench, &client, 1, 5).await;
    let with_id = Publish { source: Some(Position::new(7, 9)), ..copied("p", 1, 0, "b") };
    bench.topic.publish(key, vec![copied("p", 0, 3, "a"), with_id]);
    let receipts = client.receipts(1, 2).await;
    let ids: Vec<_> = receipts.iter().map(|one| (one.sequence_id, one.highest_sequence_id)).collect();
    assert_eq!(ids, [(7, 3), (7, 9)]);
    let west = |entry| (RegionId::of("west"), Incarnation(5), Position::new(7, entry));
    assert_eq!(stored(&bench).await, [("a".to_owned(), west(3)), ("b".to_owned(), west(9))]);
    let stats = bench.topic.stats();
    assert!(stats.producers.is_empty(), "a link is no tenant's producer");
    assert_eq!((stats.links[0].region.as_str(), stats.links[0].incarnation), ("west", 5));
    assert_eq!(stats.links[0].persisted, Position::new(7, 9));
}

/// A region is given back what it had before it was built anew, and never what it has stored itself.
#[tokio::test]
async fn no_link_brings_what_this_life_of_the_topic_has_stored() {
    let (bench, client) = (Bench::new().await, Client::new());
    let life = bench.topic.stats().log.expect("a log").incarnation.0;
    let refused = bench.topic.add_producer(link(&client, 1, life)).await.expect_err("it is its own");
    assert_eq!(refused.kind, TopicErrorKind::NotAllowed);
    let former = open(&bench, &client, 1, life - 1).await;
    bench.topic.publish(former, entries(0..3));
    client.receipts(1, 3).await;
    assert_eq!(texts(&bench).await, numbers(0..3));
}

/// The source resends what it has no receipts for, with reloads of the target between, with and without snapshot.
#[tokio::test]
async fn lost_receipts_and_reloads_store_nothing_twice() {
    for incarnation in [5, 0] {
        let mut bench = Bench::new().await;
        for (round, snapshot) in [(0, false), (1, true), (2, false), (3, true)] {
            let client = Client::new();
            let key = open(&bench, &client, 1, incarnation).await;
            bench.topic.publish(key, entries(0..round * 10 + 10));
            let receipts = client.receipts(1, (round * 10 + 10) as usize).await;
            assert_eq!(duplicates(&receipts), (round * 10) as usize, "round {round}");
            if snapshot {
                bench.region.advance(130_000);
                bench.topic.tick(bench.region.now_ms());
                let taken = || {
                    let log = bench.logs.opened("public/default/persistent/t").expect("open");
                    let cursor = log.cursor("meridian.origins").expect("there");
                    cursor.mark_delete() == log.last_confirmed()
                };
                bench.until("the snapshot is there", taken).await;
            }
            bench = reload(bench, limits()).await;
        }
        assert_eq!(texts(&bench).await, numbers(0..40));
    }
}

/// The head is refused (too large for this region for a while), what is behind it in the pipeline must not be stored
/// before it. The sender is Pulsar's: it does not attach anew, and sends what it had queued behind the refused entry.
#[tokio::test]
async fn b012_a_refused_head_is_not_lost() {
    let bench = Bench::new().await;
    let client = Client::new();
    let key = open(&bench, &client, 1, 0).await;
    bench.topic.publish(key, entries(0..2));
    client.receipts(1, 2).await;
    bench.topic.set_limits(TopicLimits { max_message_bytes: 1, ..limits() });
    bench.topic.publish(key, entries(2..3));
    client.heard(Said::SendError(1, 2, TopicErrorKind::NotAllowed)).await;
    bench.topic.set_limits(limits());
    bench.topic.publish(key, entries(3..6));
    for sequence in 3..6 {
        client.heard(Said::SendError(1, sequence, TopicErrorKind::NotAllowed)).await;
    }
    bench.topic.publish(key, entries(2..6));
    let receipts = client.receipts(1, 6).await;
    assert_eq!(duplicates(&receipts), 0);
    assert_eq!(texts(&bench).await, numbers(0..6));
}

#[tokio::test]
async fn a_recreated_source_starts_anew() {
    let mut bench = Bench::new().await;
    let client = Client::new();
    let key = open(&bench, &client, 1, 5).await;
    bench.topic.publish(key, entries(0..3));
    client.receipts(1, 3).await;
    bench = reload(bench, limits()).await;
    let again = Client::new();
    let key = open(&bench, &again, 1, 6).await;
    bench.topic.publish(key, entries(0..3));
    assert_eq!(duplicates(&again.receipts(1, 3).await), 0, "positions of another life of the source");
    assert_eq!(texts(&bench).await, ["0", "1", "2", "0", "1", "2"]);
}

#[tokio::test]
async fn markers_are_stored_once_and_never_delivered() {
    let bench = Bench::new().await;
    let client = Client::new();
    let key = open(&bench, &client, 1, 5).await;
    let marker = || Publish { marker: true, ..copied("p", 1, 1, "marker") };
    bench.topic.publish(key, vec![copied("p", 0, 0, "a"), marker(), copied("p", 2, 2, "b")]);
    client.receipts(1, 3).await;
    bench.topic.publish(key, vec![marker()]);
    let receipts = client.receipts(1, 4).await;
    let ids: Vec<_> = receipts.iter().map(|one| (one.sequence_id, one.highest_sequence_id as i64)).collect();
    assert_eq!(ids, [(7, 0), (1, i64::MIN), (7, 2), (1, i64::MIN)]);
    assert_eq!(duplicates(&receipts), 1);
    assert_eq!(texts(&bench).await, ["a", "marker", "b"]);
    let consumer = Client::new();
    let request = subscribe("s", SubscriptionType::Exclusive, "c");
    let consumer_key = bench.consumer(&consumer, 1, request).await;
    bench.topic.flow(consumer_key, 10);
    consumer.received(2).await;
    assert_eq!(consumer.got.lock().len(), 2);
}

/// Limits of tenants do not bind a link; a backlog over its quota does, until there is room, without anybody's help.
#[tokio::test]
async fn b002_b003_a_full_backlog_refuses_a_link_and_lets_it_in_again_by_itself() {
    let quota = TopicLimits { max_producers: 1, backlog_quota_bytes: 60, backlog_bytes_policy: 1, ..limits() };
    let bench = Bench::with_limits(quota).await;
    let tenant = Client::new();
    bench.producer(&tenant, 9, "tenant").await;
    let consumer = Client::new();
    let consumer_key = bench.consumer(&consumer, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    let client = Client::new();
    let key = open(&bench, &client, 1, 5).await;
    bench.topic.publish(key, entries(0..3));
    client.receipts(1, 3).await;
    bench.region.advance(2000);
    bench.topic.tick(bench.region.now_ms());
    client.heard(Said::CloseProducer(1)).await;
    let refused = bench.topic.add_producer(link(&client, 2, 5)).await.expect_err("over the quota");
    assert_eq!(refused.kind, TopicErrorKind::ProducerBlockedQuotaExceededException);
    bench.topic.flow(consumer_key, 10);
    consumer.received(3).await;
    let positions: Vec<Position> = consumer.got.lock().iter().map(|(_, delivery)| delivery.position).collect();
    bench.ack(consumer_key, &positions);
    bench.region.advance(1100);
    bench.topic.tick(bench.region.now_ms());
    let mut admitted = Err(refused);
    for id in 3.. {
        admitted = bench.topic.add_producer(link(&client, id, 5)).await.map(|ready| (id, ready.key));
        if admitted.is_ok() || id > 100_000 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (id, key) = admitted.expect("the link is let in again");
    bench.topic.publish(key, entries(2..5));
    assert_eq!(duplicates(&client.receipts(id, 3).await), 1);
    assert_eq!(texts(&bench).await, numbers(0..5));
}

/// A producer that goes on in this region, and whose messages the link brings late: each is stored once, also after a
/// reload; by default equal names in two regions are two producers.
#[tokio::test]
async fn a_global_producer_that_changed_regions_is_stored_once() {
    let global = || TopicLimits { global_producers: true, ..limits() };
    let mut bench = Bench::with_limits(global()).await;
    for _ in 0..2 {
        let client = Client::new();
        let west = open(&bench, &client, 1, 5).await;
        bench.topic.publish(west, entries(0..4));
        client.receipts(1, 4).await;
        let ready = bench.topic.add_producer(produce(&client, 2, "p")).await.expect("p is let in");
        bench.topic.publish(ready.key, (2..8).map(|sequence| own("p", sequence, &sequence.to_string())).collect());
        client.receipts(2, 6).await;
        bench.topic.publish(west, entries(4..9));
        let late = client.receipts(1, 9).await;
        assert!(duplicates(&late[4..]) >= 4);
        bench = reload(bench, global()).await;
    }
    assert_eq!(texts(&bench).await, numbers(0..9));

    let bench = Bench::with_limits(TopicLimits { deduplication: true, ..limits() }).await;
    let client = Client::new();
    let west = open(&bench, &client, 1, 5).await;
    bench.topic.publish(west, entries(0..4));
    client.receipts(1, 4).await;
    let bench = reload(bench, TopicLimits { deduplication: true, ..limits() }).await;
    let ready = bench.topic.add_producer(produce(&client, 2, "p")).await.expect("p is let in");
    assert_eq!(ready.last_sequence_id, -1, "what came by a link is another producer's");
    bench.topic.publish(ready.key, vec![own("p", 0, "mine")]);
    client.receipts(2, 1).await;
    assert_eq!(texts(&bench).await, ["0", "1", "2", "3", "mine"]);
}

#[tokio::test]
async fn a_topic_with_links_only_is_deleted_without_force() {
    let bench = Bench::new().await;
    let client = Client::new();
    open(&bench, &client, 1, 5).await;
    bench.topic.delete(false).await.expect("nobody of the tenant is there");
    client.heard(Said::CloseProducer(1)).await;
}
