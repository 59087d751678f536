//! Reports from the field on dispatch, cursors, delayed delivery and time to live, each as a test named by its number.

mod messages;
mod support;

use meridian_managed_ledger::LogSettings;
use meridian_managed_ledger::testing::TestRegion;
use meridian_topic::{
    AckRequest, ConsumerKey, InitialCursor, KeySharedPolicy, Publish, SeekTo, SubscribeRequest, SubscriptionType,
    TopicHandle, TopicLimits,
};
use meridian_types::Position;
use messages::{bodies, body, delayed, keyed, message, metadata};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use support::{Bench, Client, Said, acks, cumulative, limits, send, subscribe};

async fn publish(bench: &Bench, sends: Vec<Publish>) -> Vec<Position> {
    let client = Client::new();
    let producer = bench.producer(&client, 0, "publisher").await;
    let count = sends.len();
    bench.topic.publish(producer, sends);
    let receipts = client.receipts(0, count).await;
    bench.topic.remove_producer(producer).await;
    receipts.iter().map(|receipt| receipt.position).collect()
}

async fn join(bench: &Bench, client: &Arc<Client>, id: u64, sub_type: SubscriptionType) -> ConsumerKey {
    let consumer = bench.consumer(client, id, subscribe("s", sub_type, &format!("c{id}"))).await;
    bench.topic.flow(consumer, 1000);
    consumer
}

/// Everything delivered and not yet taken, with its position.
fn take(client: &Client) -> Vec<(Position, String)> {
    client.got.lock().drain(..).map(|(_, delivery)| (delivery.position, body(&delivery.payload))).collect()
}

/// Reports on lost entries (B090): a reader of one that every replica lost says so in its figures, asks less and less
/// often, and goes past it when the operator allows that; mark-delete passes it too.
#[tokio::test]
async fn b090_a_lost_entry_is_shown_and_skipped_when_told() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 5).await;
    let lost = positions[2];
    bench.region.ledgers.lose_entry(lost, true);
    let client = Client::new();
    let consumer = join(&bench, &client, 1, SubscriptionType::Exclusive).await;
    let figures = || bench.topic.stats().subscriptions.remove(0);
    bench.until("the loss is shown", || figures().unreadable).await;
    assert_eq!(client.texts(), ["0", "1"]);
    let why = figures().waiting.unwrap_or_default();
    assert!(why.contains("unreadable") && why.contains("entry 2 of ledger"), "{why}");
    assert!(bench.region.ledgers.reads() <= 8, "it asks less and less often");

    let log = bench.logs.opened(&meridian_topic::log_name(bench.topic.name())).unwrap();
    log.set_settings(LogSettings { skip_unreadable: true, ..LogSettings::default() });
    client.received(4).await;
    assert_eq!(client.texts(), ["0", "1", "3", "4"]);
    assert!(!figures().unreadable);
    assert_eq!(bench.logs.entries_skipped(), 1);
    let rest: Vec<_> = positions.iter().copied().filter(|position| *position != lost).collect();
    bench.ack(consumer, &rest);
    assert_eq!(figures().backlog_entries, 0, "mark-delete passes the lost entry");
}

#[tokio::test]
async fn b090_a_seek_leaves_a_lost_entry_and_a_replica_that_comes_back_is_read() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 5).await;
    bench.region.ledgers.lose_entry(positions[2], true);
    let client = Client::new();
    let first = join(&bench, &client, 1, SubscriptionType::Shared).await;
    let unreadable = || bench.topic.stats().subscriptions[0].unreadable;
    bench.until("the loss is shown", unreadable).await;
    bench.region.ledgers.lose_entry(positions[2], false);
    client.received(5).await;
    assert_eq!(client.texts(), ["0", "1", "2", "3", "4"]);
    assert!(!unreadable());

    bench.topic.seek(first, SeekTo::Position(Position::EARLIEST, Vec::new())).await.unwrap();
    bench.region.ledgers.lose_entry(positions[1], true);
    bench.logs.tick(bench.region.advance(60_000)).await;
    let late = Client::new();
    let second = join(&bench, &late, 2, SubscriptionType::Shared).await;
    bench.until("the loss is shown", unreadable).await;
    bench.topic.seek(second, SeekTo::Position(positions[2], Vec::new())).await.unwrap();
    let third = Client::new();
    join(&bench, &third, 3, SubscriptionType::Shared).await;
    third.received(3).await;
    assert_eq!(third.texts(), ["2", "3", "4"]);
    bench.until("the state ends with the read", || !unreadable()).await;
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// One message is never acked and its consumer restarts again and again: other keys flow, and nothing is read over and
/// over.
#[tokio::test]
async fn b074_a_poison_key_does_not_stop_the_others() {
    let bench = Bench::new().await;
    let poison = Client::new();
    let (mut seen, mut next) = (BTreeSet::new(), 0_u64);
    for round in 0..20 {
        let consumer = join(&bench, &poison, round, SubscriptionType::KeyShared).await;
        let mut sends = Vec::new();
        if round == 0 {
            sends.push(keyed(0, "poison", "poison"));
        }
        for i in 0..10 {
            sends.push(keyed(next, &format!("k{i}"), &next.to_string()));
            next += 1;
        }
        publish(&bench, sends).await;
        let (wanted, before) = (next as usize, seen.len());
        while seen.len() < wanted {
            poison.received(1).await;
            for (position, text) in take(&poison) {
                if text != "poison" {
                    bench.ack(consumer, &[position]);
                    seen.insert(text);
                }
            }
        }
        assert_eq!(seen.len() - before, 10);
        bench.topic.remove_consumer(consumer).await;
    }
    let reads = bench.region.ledgers.reads();
    assert!(reads < 3 * next, "{reads} storage reads for {next} messages");
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 1);
}

/// Consumers come and go all the time; every key reaches somebody, whoever names the ranges.
#[tokio::test]
async fn b075_opening_and_closing_loses_nothing() {
    for sticky in [false, true] {
        let bench = Bench::new().await;
        let client = Client::new();
        let request = |id: u64| {
            let third = 65_536 / 3;
            let start = (id % 3) as u32 * third;
            let end = if id % 3 == 2 { 65_535 } else { start + third - 1 };
            let named = KeySharedPolicy::Sticky { allow_out_of_order: false, ranges: vec![(start, end)] };
            SubscribeRequest {
                key_shared: sticky.then_some(named),
                ..subscribe("s", SubscriptionType::KeyShared, &format!("c{id}"))
            }
        };
        let mut open = Vec::new();
        for id in 0..3 {
            let consumer = bench.consumer(&client, id, request(id)).await;
            bench.topic.flow(consumer, 1000);
            open.push((id, consumer));
        }
        let (mut seen, mut sent) = (BTreeSet::new(), 0_u64);
        for round in 0..200_usize {
            let sends = (sent..sent + 20).map(|i| keyed(i, &format!("key-{}", i * 7919), &i.to_string())).collect();
            sent += 20;
            publish(&bench, sends).await;
            let (id, consumer) = open[round % 3];
            bench.topic.remove_consumer(consumer).await;
            let again = bench.consumer(&client, id, request(id)).await;
            bench.topic.flow(again, 1000);
            open[round % 3] = (id, again);
            acknowledge_all(&bench, &client, again, &mut seen);
        }
        while seen.len() < sent as usize {
            client.received(1).await;
            acknowledge_all(&bench, &client, open[0].1, &mut seen);
        }
        assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 0, "sticky: {sticky}");
    }
}

fn acknowledge_all(bench: &Bench, client: &Client, consumer: ConsumerKey, seen: &mut BTreeSet<String>) {
    for (position, text) in take(client) {
        bench.ack(consumer, &[position]);
        seen.insert(text);
    }
}

/// The unacked count passes its limit by a part of a batch; after acks and closes in any order nothing stays blocked.
#[tokio::test]
async fn b077_a_block_on_unacked_messages_ends_with_them() {
    let bench = Bench::with_limits(TopicLimits { max_unacked_per_consumer: 10, ..limits() }).await;
    let client = Client::new();
    let producer = bench.producer(&client, 9, "p").await;
    let batches = 60_u64;
    let sends = (0..batches).map(|i| Publish { messages: 9, ..send(i, &i.to_string()) }).collect();
    bench.topic.publish(producer, sends);
    client.receipts(9, batches as usize).await;
    let (mut acked, mut random, mut id) = (BTreeSet::new(), 7_u64, 0);
    let mut consumer = join(&bench, &client, id, SubscriptionType::Shared).await;
    while acked.len() < batches as usize {
        client.received(1).await;
        let got: Vec<Position> = client.got.lock().drain(..).map(|(_, delivery)| delivery.position).collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match random >> 61 {
            0 => bench.topic.redeliver(consumer, got, None),
            1 => {
                bench.topic.remove_consumer(consumer).await;
                id += 1;
                consumer = join(&bench, &client, id, SubscriptionType::Shared).await;
            }
            _ => {
                bench.ack(consumer, &got);
                acked.extend(got);
            }
        }
    }
    let stats = bench.topic.stats().subscriptions.remove(0);
    assert_eq!((stats.unacked_messages, stats.backlog_entries, stats.blocked_on_unacked), (0, 0, false));
}

/// Two consumers wait before anything is sent: exactly one gets all of it. On a switch only what is unacked comes twice.
#[tokio::test]
async fn b080_one_consumer_is_active_at_a_time() {
    let bench = Bench::new().await;
    let client = Client::new();
    let mut consumers = vec![join(&bench, &client, 0, SubscriptionType::Failover).await];
    consumers.push(join(&bench, &client, 1, SubscriptionType::Failover).await);
    let positions = bench.publish_numbers(0, 100).await;
    client.received(100).await;
    settle().await;
    let receivers: BTreeSet<u64> = client.got.lock().iter().map(|(id, _)| *id).collect();
    assert_eq!((receivers.len(), client.got.lock().len()), (1, 100));
    let active = receivers.into_iter().next().unwrap() as usize;
    let request = AckRequest { receipt: true, ..cumulative(positions[89]) };
    bench.topic.ack(consumers[active], request).unwrap().await.unwrap();
    client.clear();
    bench.topic.remove_consumer(consumers[active]).await;
    assert_eq!(client.received(10).await, (90..100).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// A consumer that comes back after a restart of the broker with a full queue gets what is left.
#[tokio::test]
async fn b081_delivery_resumes_after_every_restart() {
    let mut bench = Bench::new().await;
    let mut expected = 0;
    for round in 0..20 {
        bench.publish_numbers(round * 5, 5).await;
        expected += 5;
        let client = Client::new();
        join(&bench, &client, 1, SubscriptionType::Exclusive).await;
        assert_eq!(client.received(expected).await.len(), expected);
        bench = bench.crash().await;
    }
}

/// Every second message of 40,000 is acked, then a crash: the others come back, and only they.
#[tokio::test]
async fn b083_no_hole_is_forgotten() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 0, "p").await;
    let count = 40_000_usize;
    for start in (0..count).step_by(1000) {
        bench.topic.publish(producer, (start..start + 1000).map(|i| send(i as u64, &i.to_string())).collect());
    }
    let positions: Vec<Position> = client.receipts(0, count).await.iter().map(|receipt| receipt.position).collect();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    let even: Vec<Position> = positions.iter().copied().step_by(2).collect();
    bench.ack_durably(consumer, &even).await;
    let bench = bench.crash().await;
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, (count / 2) as u64);
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, count as u32);
    client.received(count / 2).await;
    settle().await;
    let mut got: Vec<usize> = client.texts().iter().map(|text| text.parse().unwrap()).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq((1..count).step_by(2)));
}

/// Odd indexes of a batch are acked, even ones refused, then the client or the broker dies: every unacked index returns.
#[tokio::test]
async fn b086_only_acked_indexes_are_gone() {
    let mut bench = Bench::new().await;
    let sends = (0..100).map(|i| Publish { messages: 10, ..send(i, &i.to_string()) }).collect();
    publish(&bench, sends).await;
    let odd_acked = 0b01_0101_0101;
    for round in 0..100_u64 {
        let client = Client::new();
        let consumer = join(&bench, &client, 1, SubscriptionType::Shared).await;
        client.received(100).await;
        let all = client.got.lock().iter().map(|(_, delivery)| delivery.clone()).collect::<Vec<_>>();
        for delivery in all {
            let number: u64 = String::from_utf8_lossy(&delivery.payload).parse().unwrap();
            let expected = if number < round { vec![odd_acked] } else { Vec::new() };
            assert_eq!(delivery.ack_set, expected, "message {number} in round {round}");
            if number == round {
                let request =
                    AckRequest { ids: vec![(delivery.position, vec![odd_acked])], receipt: true, ..acks(&[]) };
                bench.topic.ack(consumer, request).unwrap().await.unwrap();
                bench.topic.redeliver(consumer, vec![delivery.position], None);
            }
        }
        if round % 10 == 9 {
            bench = bench.crash().await;
        } else {
            bench.topic.remove_consumer(consumer).await;
        }
    }
}

/// A new subscription at the end, one message, a crash: the message is there. The same after a reset.
#[tokio::test]
async fn b072_the_first_unread_message_survives() {
    let bench = Bench::new().await;
    bench.publish_numbers(0, 3).await;
    let client = Client::new();
    let at_end =
        SubscribeRequest { initial: InitialCursor::Latest, ..subscribe("s", SubscriptionType::Exclusive, "c") };
    bench.consumer(&client, 1, at_end).await;
    bench.publish_numbers(3, 1).await;
    let bench = bench.crash().await;
    let client = Client::new();
    join(&bench, &client, 1, SubscriptionType::Exclusive).await;
    assert_eq!(client.received(1).await, ["3"]);
    bench.topic.reset_subscription("s".to_owned(), SeekTo::Position(Position::LATEST, Vec::new())).await.unwrap();
    bench.publish_numbers(4, 1).await;
    let bench = bench.crash().await;
    let client = Client::new();
    join(&bench, &client, 1, SubscriptionType::Exclusive).await;
    assert_eq!(client.received(1).await, ["4"]);
}

/// Entries fall due while the broker restarts: all arrive, each once.
#[tokio::test]
async fn b092_b093_delayed_messages_arrive_after_a_restart() {
    let bench = Bench::new().await;
    let now_ms = bench.region.now_ms();
    let count = 500;
    publish(&bench, (0..count).map(|i| delayed(i, &i.to_string(), now_ms + 5000 + i * 10)).collect()).await;
    let client = Client::new();
    join(&bench, &client, 1, SubscriptionType::Shared).await;
    settle().await;
    assert!(bodies(&client).is_empty(), "nothing is due");
    assert_eq!(bench.topic.stats().subscriptions[0].delayed_entries, count);
    bench.region.advance(7000);
    let bench = bench.crash().await;
    let client = Client::new();
    join(&bench, &client, 1, SubscriptionType::Shared).await;
    client.received(150).await;
    bench.region.advance(60_000);
    bench.topic.tick(bench.region.now_ms());
    client.received(count as usize).await;
    settle().await;
    let got: Vec<String> = bodies(&client);
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), count as usize);
    assert_eq!(got.len(), count as usize, "each once");
}

/// Nobody is attached when a message falls due: it is there for whoever comes.
#[tokio::test]
async fn b096_a_message_due_without_a_consumer_is_delivered_at_once() {
    let bench = Bench::new().await;
    let client = Client::new();
    let consumer = join(&bench, &client, 1, SubscriptionType::Shared).await;
    publish(&bench, vec![delayed(0, "late", bench.region.now_ms() + 5000)]).await;
    settle().await;
    assert!(bodies(&client).is_empty());
    bench.topic.remove_consumer(consumer).await;
    bench.region.advance(20_000);
    bench.topic.tick(bench.region.now_ms());
    join(&bench, &client, 2, SubscriptionType::Shared).await;
    client.received(1).await;
    assert_eq!(bodies(&client), ["late"]);
}

/// With a time to live shorter than the delay a message still arrives; its time runs from when it is due.
#[tokio::test]
async fn time_to_live_starts_when_a_message_is_due() {
    let bench = Bench::with_limits(TopicLimits { message_ttl_s: 10, ..limits() }).await;
    let now_ms = bench.region.now_ms();
    let sends =
        vec![message(&metadata(0), "plain"), delayed(1, "delayed", now_ms + 30_000), message(&metadata(2), "more")];
    publish(&bench, sends).await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.tick(bench.region.advance(15_000));
    let backlog = || bench.topic.stats().subscriptions[0].backlog_entries;
    bench.until("the plain ones expire", || backlog() == 1).await;
    bench.topic.flow(consumer, 10);
    bench.topic.tick(bench.region.advance(20_000));
    client.received(1).await;
    assert_eq!(bodies(&client), ["delayed"]);
    bench.topic.remove_consumer(consumer).await;
    bench.topic.tick(bench.region.advance(10_000));
    bench.until("the delayed one expires", || backlog() == 0).await;
    assert_eq!(bench.topic.stats().subscriptions[0].expired_total, 3);
}

fn numbered(name: &str, sequence_id: u64) -> Publish {
    let metadata = meridian_wire::proto::MessageMetadata { producer_name: name.to_owned(), ..metadata(sequence_id) };
    message(&metadata, &sequence_id.to_string())
}

/// The same sequence id under one name is stored once, also over a reload; the policy is in force once stats say so.
#[tokio::test]
async fn b066_equal_sequence_ids_are_stored_once() {
    let bench = Bench::new().await;
    bench.topic.set_limits(TopicLimits { deduplication: true, ..limits() });
    bench.until("deduplication is in force", || bench.topic.stats().deduplication).await;
    settle().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![numbered("p", 5)]);
    client.receipts(1, 1).await;
    bench.topic.publish(producer, vec![numbered("p", 5), numbered("p", 6)]);
    let receipts = client.receipts(1, 3).await;
    assert_eq!(receipts[1].position, Position::EARLIEST, "a duplicate has no position");
    assert_ne!(receipts[2].position, Position::EARLIEST);
    assert_eq!(bench.topic.stats().log.unwrap().entries, 2);
    let region = bench.region.clone();
    drop(bench);
    let with_dedup = TopicLimits { deduplication: true, ..limits() };
    let bench = Bench::with_settings(region, with_dedup, LogSettings::default()).await;
    let client = Client::new();
    let ready = bench.topic.add_producer(support::produce(&client, 1, "p")).await.unwrap();
    assert_eq!(ready.last_sequence_id, 6);
    bench.topic.publish(ready.key, vec![numbered("p", 6), numbered("p", 7)]);
    let receipts = client.receipts(1, 2).await;
    assert_eq!(receipts[0].position, Position::EARLIEST);
    assert_eq!(bench.topic.stats().log.unwrap().entries, 3);
}

/// The deduplication cursor is nobody's backlog.
#[tokio::test]
async fn b068_internal_cursors_hold_no_quota() {
    let with_quota =
        TopicLimits { deduplication: true, backlog_quota_bytes: 1000, backlog_bytes_policy: 1, ..limits() };
    let bench = Bench::with_limits(with_quota).await;
    let client = Client::new();
    let consumer = join(&bench, &client, 1, SubscriptionType::Exclusive).await;
    let producer = bench.producer(&client, 2, "p").await;
    bench.topic.publish(producer, (0..200).map(|i| numbered("p", i)).collect());
    let last = client.receipts(2, 200).await[199].position;
    bench.topic.ack(consumer, AckRequest { receipt: true, ..cumulative(last) }).unwrap().await.unwrap();
    bench.topic.remove_producer(producer).await;
    bench.topic.tick(bench.region.advance(5000));
    settle().await;
    bench.producer(&client, 3, "q").await;
    assert_eq!(bench.topic.stats().subscriptions.len(), 1, "internal cursors are no subscriptions");
}

/// Acked items of a batch never count as unacked again: what comes back carries the broker's own ack set.
#[tokio::test]
async fn b087_b089_the_ack_set_comes_from_the_broker() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![Publish { messages: 10, ..send(0, "batch") }]);
    let position = client.receipts(1, 1).await[0].position;
    let consumer = join(&bench, &client, 1, SubscriptionType::Shared).await;
    client.received(1).await;
    let three = AckRequest { ids: vec![(position, vec![0b11_1111_1000])], ..acks(&[]) };
    bench.topic.ack(consumer, three);
    bench.topic.remove_consumer(consumer).await;
    client.clear();
    join(&bench, &client, 2, SubscriptionType::Shared).await;
    client.received(1).await;
    let again = client.got.lock()[0].1.clone();
    assert_eq!(again.ack_set.iter().map(|word| word.count_ones()).sum::<u32>(), 7, "exactly seven come back");
    assert_eq!(bench.topic.stats().subscriptions[0].unacked_messages, 7);
    assert!(!client.said.lock().contains(&Said::CloseConsumer(2)));
}

/// Keys keep their order while consumers come and go.
#[tokio::test]
async fn keys_keep_their_order_while_consumers_change() {
    let bench = Bench::with_settings(TestRegion::default(), limits(), LogSettings::default()).await;
    let clients: Vec<Arc<Client>> = (0..4).map(|_| Client::new()).collect();
    let mut consumers = Vec::new();
    for (id, client) in clients.iter().enumerate() {
        consumers.push(join(&bench, client, id as u64, SubscriptionType::KeyShared).await);
    }
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let (mut sent, mut done) = (0_u64, 0);
    for round in 0..60_usize {
        let sends = (sent..sent + 30).map(|i| keyed(i, &format!("k{}", i % 13), &format!("k{}:{i}", i % 13))).collect();
        sent += 30;
        publish(&bench, sends).await;
        if round % 3 == 2 {
            let index = round % 4;
            // What it holds is not looked at by anybody: it comes again, in order, at the next owner.
            bench.topic.remove_consumer(consumers[index]).await;
            take(&clients[index]);
            consumers[index] = join(&bench, &clients[index], index as u64, SubscriptionType::KeyShared).await;
        }
        settle().await;
        done += check_order(&bench, &clients, &consumers, &mut last);
    }
    while done < sent {
        settle().await;
        done += check_order(&bench, &clients, &consumers, &mut last);
    }
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 0);
}

fn check_order(
    bench: &Bench,
    clients: &[Arc<Client>],
    consumers: &[ConsumerKey],
    last: &mut BTreeMap<String, u64>,
) -> u64 {
    let mut done = 0;
    for (client, consumer) in clients.iter().zip(consumers) {
        for (position, text) in take(client) {
            let (key, number) = text.split_once(':').expect("a key and a number");
            let number: u64 = number.parse().expect("a number");
            let before = last.insert(key.to_owned(), number);
            assert!(before.is_none_or(|before| before + 13 == number), "{key}: {number} after {before:?}");
            bench.ack(*consumer, &[position]);
            done += 1;
        }
    }
    done
}
