//! Persistent topics over managed ledgers in memory.

mod support;

use meridian_managed_ledger::testing::TestRegion;
use meridian_managed_ledger::{CacheSettings, LogSettings};
use meridian_topic::{
    AccessMode, AckRequest, ConsumerKey, ProducerRequest, SeekTo, SubscribeRequest, SubscriptionType, TopicErrorKind,
    TopicHandle, TopicLimits,
};
use meridian_types::Position;
use meridian_wire::proto::MessageMetadata;
use std::sync::atomic::Ordering;
use support::{Bench, Client, Said, acks, cumulative, limits, produce, reader, send, subscribe};

const ALL: [SubscriptionType; 4] =
    [SubscriptionType::Exclusive, SubscriptionType::Failover, SubscriptionType::Shared, SubscriptionType::KeyShared];

#[tokio::test]
async fn what_is_published_is_received_by_every_type() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 10).await;
    assert_eq!(positions.len(), 10);
    assert!(positions.is_sorted());
    for (i, sub_type) in ALL.into_iter().enumerate() {
        let client = Client::new();
        let consumer = bench.consumer(&client, 1, subscribe(&format!("s{i}"), sub_type, "c")).await;
        bench.topic.flow(consumer, 100);
        let expected: Vec<String> = (0..10).map(|i| i.to_string()).collect();
        assert_eq!(client.received(10).await, expected, "{sub_type:?}");
    }
    let more = bench.publish_numbers(10, 5).await;
    assert_eq!(more.len(), 5);
    let stats = bench.topic.stats();
    assert_eq!((stats.messages_in, stats.messages_out), (15, 4 * 15));
    assert_eq!(stats.subscriptions.len(), 4);
    assert!(stats.subscriptions.iter().all(|sub| sub.backlog_entries == 15 && sub.waiting.is_none()), "{stats:?}");
}

#[tokio::test]
async fn acked_messages_stay_acked_over_a_crash() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 6).await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, 100);
    client.received(6).await;
    bench.ack_durably(consumer, &[positions[0], positions[2], positions[4]]).await;
    let bench = bench.crash().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 100);
    assert_eq!(client.received(3).await, ["1", "3", "5"]);
    let request = AckRequest { receipt: true, ..cumulative(positions[5]) };
    bench.topic.ack(consumer, request).unwrap().await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 0);
}

#[tokio::test]
async fn a_partly_acked_batch_comes_back_with_its_ack_set() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![meridian_topic::Publish { messages: 10, ..send(0, "batch") }]);
    let position = client.receipts(1, 1).await[0].position;
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, 100);
    client.received(1).await;
    let partly = |set: u64| AckRequest { ids: vec![(position, vec![set])], receipt: true, ..acks(&[]) };
    bench.topic.ack(consumer, partly(0b11_1111_1100)).unwrap().await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].unacked_messages, 8);
    bench.topic.ack(consumer, partly(0b11_1111_0011)).unwrap().await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].unacked_messages, 6);
    bench.topic.redeliver(consumer, vec![position], None);
    client.received(2).await;
    let again = client.got.lock()[1].1.clone();
    assert_eq!((again.ack_set, again.redelivery_count), (vec![0b11_1111_0000], 1));
    let bench = bench.crash().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, 100);
    client.received(1).await;
    assert_eq!(client.got.lock()[0].1.ack_set, [0b11_1111_0000]);
    bench.topic.ack(consumer, partly(0b00_0000_1111)).unwrap().await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 0, "all indexes are acked");
}

#[tokio::test]
async fn readers_start_where_they_ask_and_vanish() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 4).await;
    for (start, expected) in
        [(Position::EARLIEST, vec!["0", "1", "2", "3"]), (positions[2], vec!["2", "3"]), (Position::LATEST, vec![])]
    {
        let client = Client::new();
        let consumer = bench.consumer(&client, 1, reader("r", start)).await;
        bench.topic.flow(consumer, 100);
        assert_eq!(client.received(expected.len()).await, expected);
        bench.topic.remove_consumer(consumer).await;
        assert!(bench.topic.stats().subscriptions.is_empty());
    }
}

#[tokio::test]
async fn seek_closes_consumers_first_and_moves() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 5).await;
    let client = Client::new();
    let seek = async |to: SeekTo, expected: &[&str]| {
        client.clear();
        let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
        bench.topic.seek(consumer, to).await.unwrap();
        assert_eq!(*client.said.lock(), [Said::CloseConsumer(1)]);
        client.clear();
        let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
        bench.topic.flow(consumer, 100);
        assert_eq!(client.received(expected.len()).await, expected);
        bench.topic.remove_consumer(consumer).await;
    };
    seek(SeekTo::Position(positions[3], Vec::new()), &["3", "4"]).await;
    seek(SeekTo::Position(Position::EARLIEST, Vec::new()), &["0", "1", "2", "3", "4"]).await;
    seek(SeekTo::Position(Position::LATEST, Vec::new()), &[]).await;
    seek(SeekTo::Position(positions[1], vec![0b10]), &["1", "2", "3", "4"]).await;
    assert_eq!(client.got.lock()[0].1.ack_set, [0b10]);
    seek(SeekTo::PublishTime(0), &["0", "1", "2", "3", "4"]).await;
    bench.region.advance(5000);
    let time_ms = bench.region.now_ms();
    bench.publish_numbers(5, 2).await;
    seek(SeekTo::PublishTime(time_ms), &["5", "6"]).await;
}

#[tokio::test]
async fn the_last_message_skips_markers() {
    let bench = Bench::new().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    assert_eq!(bench.topic.last_message(consumer).await.unwrap().position, Position::EARLIEST);
    let positions = bench.publish_numbers(0, 2).await;
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![meridian_topic::Publish { marker: true, ..send(0, "marker") }]);
    client.receipts(1, 1).await;
    let last = bench.topic.last_message(consumer).await.unwrap();
    assert_eq!((last.position, last.batch_index), (positions[1], -1));
    bench.topic.flow(consumer, 100);
    assert_eq!(client.received(2).await, ["0", "1"]);
    bench.ack(consumer, &positions);
    bench.until("markers are acked by the way", || bench.topic.stats().subscriptions[0].backlog_entries == 0).await;
    let unknown = bench.topic.last_message(ConsumerKey(u64::MAX)).await.unwrap_err();
    assert_eq!(unknown.kind, TopicErrorKind::Metadata);
}

#[tokio::test]
async fn an_exclusive_consumer_gives_way_only_when_dead() {
    let bench = Bench::new().await;
    let (first, second) = (Client::new(), Client::new());
    bench.consumer(&first, 1, subscribe("s", SubscriptionType::Exclusive, "a")).await;
    let request = SubscribeRequest { sink: second.clone(), ..subscribe("s", SubscriptionType::Exclusive, "b") };
    let busy = bench.topic.subscribe(request.clone()).await.unwrap_err();
    assert_eq!(busy.kind, TopicErrorKind::ConsumerBusy);
    let other_type = SubscribeRequest { sub_type: SubscriptionType::Shared, ..request.clone() };
    assert_eq!(bench.topic.subscribe(other_type).await.unwrap_err().kind, TopicErrorKind::ConsumerBusy);
    first.alive.store(false, Ordering::SeqCst);
    bench.topic.subscribe(request).await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].consumers.len(), 1);
}

#[tokio::test]
async fn producer_names_and_exclusive_access() {
    let bench = Bench::new().await;
    let (a, b) = (Client::new(), Client::new());
    let first = bench.producer(&a, 1, "n").await;
    let busy = bench.topic.add_producer(produce(&b, 1, "n")).await.unwrap_err();
    assert_eq!(busy.kind, TopicErrorKind::ProducerBusy);
    let wait = ProducerRequest { access_mode: AccessMode::WaitForExclusive, ..produce(&b, 2, "w") };
    let ready = bench.topic.add_producer(wait).await.unwrap();
    assert!(!ready.ready);
    bench.topic.remove_producer(first).await;
    let ready = b
        .until("the waiter is let in", |client| {
            client.said.lock().iter().find_map(|said| match said {
                Said::Ready(2, ready) => Some(ready.clone()),
                _ => None,
            })
        })
        .await;
    assert_eq!((ready.topic_epoch, ready.ready), (Some(0), true));
    let shared = bench.topic.add_producer(produce(&a, 3, "x")).await.unwrap_err();
    assert_eq!(shared.kind, TopicErrorKind::ProducerBusy);
    let fencing = ProducerRequest { access_mode: AccessMode::ExclusiveWithFencing, ..produce(&a, 4, "f") };
    let ready = bench.topic.add_producer(fencing).await.unwrap();
    assert_eq!(ready.topic_epoch, Some(1));
    b.heard(Said::CloseProducer(2)).await;
    let bench = bench.crash().await;
    let stale = ProducerRequest { access_mode: AccessMode::Exclusive, topic_epoch: Some(0), ..produce(&a, 5, "w") };
    assert_eq!(bench.topic.add_producer(stale).await.unwrap_err().kind, TopicErrorKind::ProducerFenced);
}

#[tokio::test]
async fn a_closing_producer_waits_for_its_receipts() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, vec![send(0, "first")]);
    client.receipts(1, 1).await;
    bench.region.ledgers.hold();
    bench.topic.publish(producer, vec![send(1, "a"), send(2, "b")]);
    let removal = bench.topic.remove_producer(producer);
    tokio::pin!(removal);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(20), removal.as_mut()).await.is_err());
    bench.region.ledgers.release();
    removal.await;
    assert_eq!(client.receipts(1, 3).await.iter().map(|receipt| receipt.sequence_id).collect::<Vec<_>>(), [0, 1, 2]);
}

#[tokio::test]
async fn a_terminated_topic_tells_its_end_and_takes_nothing() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 3).await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.flow(consumer, 100);
    client.received(3).await;
    assert_eq!(bench.topic.terminate().await.unwrap(), positions[2]);
    client.heard(Said::CloseProducer(1)).await;
    bench.topic.publish(producer, vec![send(9, "late")]);
    let refused = bench.topic.add_producer(produce(&client, 2, "q")).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::TopicTerminated);
    bench.ack(consumer, &positions[..2]);
    assert!(!client.said.lock().contains(&Said::End(1)));
    bench.ack(consumer, &positions[2..]);
    client.heard(Said::End(1)).await;
}

#[tokio::test]
async fn unsubscribing_needs_to_be_alone_or_force() {
    let bench = Bench::new().await;
    let client = Client::new();
    let a = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "a")).await;
    let b = bench.consumer(&client, 2, subscribe("s", SubscriptionType::Shared, "b")).await;
    assert_eq!(bench.topic.unsubscribe(a, false).await.unwrap_err().kind, TopicErrorKind::Metadata);
    bench.topic.remove_consumer(b).await;
    bench.topic.unsubscribe(a, false).await.unwrap();
    assert!(bench.topic.stats().subscriptions.is_empty());
    let missing =
        SubscribeRequest { may_create: false, sink: client.clone(), ..subscribe("s", SubscriptionType::Shared, "a") };
    assert_eq!(bench.topic.subscribe(missing).await.unwrap_err().kind, TopicErrorKind::SubscriptionNotFound);
}

#[tokio::test]
async fn idle_subscriptions_only_gather_backlog() {
    let bench = Bench::new().await;
    for i in 0..200 {
        let at = SeekTo::Position(Position::LATEST, Vec::new());
        bench.topic.create_subscription(format!("idle-{i}"), at, Default::default(), false).await.unwrap();
    }
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 1000);
    bench.publish_numbers(0, 50).await;
    client.received(50).await;
    let stats = bench.topic.stats();
    assert_eq!(stats.subscriptions.iter().filter(|sub| sub.backlog_entries == 50).count(), 201);
}

#[tokio::test]
async fn a_full_sink_stops_its_consumer_until_it_has_drained() {
    let bench = Bench::new().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    client.writable.store(false, Ordering::SeqCst);
    bench.topic.flow(consumer, 1000);
    bench.publish_numbers(0, 1).await;
    client.received(1).await;
    bench.publish_numbers(1, 3).await;
    let waiting = bench.topic.stats().subscriptions[0].waiting.clone();
    assert_eq!(waiting.as_deref(), Some("client not writable"));
    assert_eq!(client.texts(), ["0"]);
    client.writable.store(true, Ordering::SeqCst);
    bench.topic.writable(consumer);
    assert_eq!(client.received(4).await, ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn limits_on_clients_hold() {
    let bench = Bench::with_limits(TopicLimits {
        max_producers: 1,
        max_consumers: 2,
        max_consumers_per_subscription: 1,
        max_subscriptions: 2,
        encryption_required: false,
        ..limits()
    })
    .await;
    let client = Client::new();
    bench.producer(&client, 1, "p").await;
    assert_eq!(
        bench.topic.add_producer(produce(&client, 2, "q")).await.unwrap_err().kind,
        TopicErrorKind::ProducerBusy
    );
    bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "a")).await;
    let refusal = async |subscription: &str| {
        let request =
            SubscribeRequest { sink: client.clone(), ..subscribe(subscription, SubscriptionType::Shared, "x") };
        bench.topic.subscribe(request).await.map_err(|error| error.kind)
    };
    assert_eq!(refusal("s").await, Err(TopicErrorKind::ConsumerBusy));
    assert!(refusal("t").await.is_ok());
    assert_eq!(refusal("u").await, Err(TopicErrorKind::ConsumerBusy));
    bench.topic.set_limits(TopicLimits { max_subscriptions: 2, ..limits() });
    assert_eq!(refusal("u").await, Err(TopicErrorKind::NotAllowed));
}

#[tokio::test]
async fn closing_tells_everybody_and_reopening_finds_everything() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 3).await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let consumer = bench.consumer(&client, 7, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 10);
    client.received(3).await;
    bench.topic.ack(consumer, cumulative(positions[0]));
    bench.topic.close().await.unwrap();
    client.heard(Said::CloseProducer(1)).await;
    client.heard(Said::CloseConsumer(7)).await;
    bench.topic.publish(producer, vec![send(0, "late")]);
    let refused = bench.topic.add_producer(produce(&client, 2, "q")).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ServiceNotReady);
    let bench = bench.crash().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 10);
    assert_eq!(client.received(2).await, ["1", "2"]);
}

#[tokio::test]
async fn expiry_acks_what_is_too_old() {
    let bench = Bench::with_limits(TopicLimits { message_ttl_s: 10, ..limits() }).await;
    let at = SeekTo::Position(Position::EARLIEST, Vec::new());
    bench.topic.create_subscription("s".to_owned(), at, Default::default(), false).await.unwrap();
    bench.publish_numbers(0, 3).await;
    bench.region.advance(11_000);
    bench.publish_numbers(3, 2).await;
    bench.topic.tick(bench.region.now_ms());
    let stats = || bench.topic.stats().subscriptions[0].clone();
    bench.until("the old ones expire", || stats().backlog_entries == 2).await;
    assert_eq!(stats().expired_total, 3);
    bench.topic.expire("s".to_owned(), 0).await.unwrap();
    assert_eq!(stats().backlog_entries, 0);
}

#[tokio::test]
async fn b102_backlog_quotas_by_size_and_age() {
    let bench = Bench::with_limits(TopicLimits { backlog_quota_bytes: 10, backlog_bytes_policy: 1, ..limits() }).await;
    let at = || SeekTo::Position(Position::EARLIEST, Vec::new());
    bench.topic.create_subscription("s".to_owned(), at(), Default::default(), false).await.unwrap();
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, (0..20).map(|i| send(i, "0123456789")).collect());
    client.receipts(1, 20).await;
    bench.region.advance(1000);
    bench.topic.tick(bench.region.now_ms());
    client.heard(Said::CloseProducer(1)).await;
    let refused = bench.topic.add_producer(produce(&client, 2, "q")).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ProducerBlockedQuotaExceededException);
    bench.topic.skip("s".to_owned(), None).await.unwrap();
    bench.region.advance(1000);
    bench.topic.tick(bench.region.now_ms());
    let again = async || bench.topic.add_producer(produce(&client, 3, "r")).await.is_ok();
    while !again().await {
        tokio::task::yield_now().await;
    }
    bench.topic.set_limits(TopicLimits { backlog_quota_s: 60, backlog_age_policy: 2, ..limits() });
    bench.publish_numbers(0, 2).await;
    bench.region.advance(61_000);
    bench.publish_numbers(2, 1).await;
    bench.topic.tick(bench.region.now_ms());
    bench.until("the old ones are evicted", || bench.topic.stats().subscriptions[0].backlog_entries == 1).await;
}

#[tokio::test]
async fn admin_calls_see_and_move_backlogs() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 5).await;
    let at = SeekTo::Position(positions[1], Vec::new());
    let properties = [("team".to_owned(), "a".to_owned())].into();
    bench.topic.create_subscription("s".to_owned(), at.clone(), properties, true).await.unwrap();
    let twice = bench.topic.create_subscription("s".to_owned(), at, Default::default(), false).await.unwrap_err();
    assert_eq!(twice.kind, TopicErrorKind::Busy);
    let stats = bench.topic.stats().subscriptions[0].clone();
    assert_eq!((stats.backlog_entries, stats.replicated), (4, true));
    let peeked = bench.topic.peek("s".to_owned(), 2).await.unwrap().unwrap();
    assert_eq!(peeked.position, positions[2]);
    assert!(bench.topic.peek("s".to_owned(), 5).await.unwrap().is_none());
    bench.topic.skip("s".to_owned(), Some(2)).await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 2);
    assert_eq!(bench.topic.entry(positions[3]).await.unwrap().unwrap().position, positions[3]);
    assert!(bench.topic.entry(Position::new(77, 0)).await.unwrap().is_none());
    bench.topic.reset_subscription("s".to_owned(), SeekTo::PublishTime(0)).await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions[0].backlog_entries, 5);
    let client = Client::new();
    bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    let busy = bench.topic.delete_subscription("s".to_owned(), false).await.unwrap_err();
    assert_eq!(busy.kind, TopicErrorKind::Busy);
    assert_eq!(bench.topic.delete(false).await.unwrap_err().kind, TopicErrorKind::Busy);
    bench.topic.delete_subscription("s".to_owned(), true).await.unwrap();
    client.heard(Said::CloseConsumer(1)).await;
    bench.topic.delete(false).await.unwrap();
}

#[tokio::test]
async fn lagging_consumers_of_all_types_read_from_storage_over_ledger_ends() {
    let region = TestRegion::default();
    let settings = LogSettings { max_entries_per_ledger: 7, min_rollover_ms: 0, ..LogSettings::default() };
    let caches = CacheSettings { tail_bytes: 1, catch_up_bytes: 1 << 20, read_ahead_entries: 10, ..Default::default() };
    let bench = Bench::with_logs(region.clone(), region.broker_with(caches), limits(), settings).await;
    let mut expected = Vec::new();
    for i in 0..60 {
        bench.publish_numbers(i * 5, 5).await;
        expected.extend((i * 5..i * 5 + 5).map(|number| number.to_string()));
    }
    assert!(bench.topic.stats().log.unwrap().ledgers.len() > 10);
    for (i, sub_type) in ALL.into_iter().enumerate() {
        let client = Client::new();
        let consumer = bench.consumer(&client, 1, subscribe(&format!("s{i}"), sub_type, "c")).await;
        bench.topic.flow(consumer, 1000);
        assert_eq!(client.received(300).await, expected, "{sub_type:?}");
        if sub_type == SubscriptionType::Shared {
            let every_third: Vec<Position> =
                client.got.lock().iter().step_by(3).map(|(_, delivery)| delivery.position).collect();
            client.clear();
            bench.topic.redeliver(consumer, every_third, None);
            let again: Vec<String> = expected.iter().step_by(3).cloned().collect();
            assert_eq!(client.received(100).await, again, "redelivered from storage");
        }
    }
}

#[tokio::test]
async fn a_topic_taken_by_another_owner_closes_its_clients_and_says_so() {
    let bench = Bench::new().await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let consumer = bench.consumer(&client, 2, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.topic.publish(producer, vec![send(0, "a")]);
    client.receipts(1, 1).await;
    let other = Bench::with(bench.region.clone(), limits()).await;
    other.publish_numbers(0, 1).await;
    bench.topic.publish(producer, vec![send(1, "stale")]);
    client.heard(Said::SendError(1, 1, TopicErrorKind::Persistence)).await;
    client.heard(Said::CloseProducer(1)).await;
    client.heard(Said::CloseConsumer(2)).await;
    bench.until("the owner is told", || bench.events.fenced.load(Ordering::SeqCst)).await;
    bench.topic.flow(consumer, 10);
    bench.topic.close().await.unwrap();
    let reading = Client::new();
    let consumer = other.consumer(&reading, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    other.topic.flow(consumer, 10);
    assert_eq!(reading.received(2).await, ["a", "0"], "what the stale owner sent is not there");
}

#[tokio::test]
async fn b081_reconnecting_consumers_are_served_again() {
    let mut bench = Bench::new().await;
    for round in 0..20usize {
        bench.publish_numbers(round * 3, 3).await;
        for sub_type in ALL {
            let client = Client::new();
            let consumer = bench.consumer(&client, 1, subscribe("s", sub_type, "c")).await;
            bench.topic.flow(consumer, 1000);
            client.received((round + 1) * 3).await;
            bench.topic.remove_consumer(consumer).await;
        }
        bench = bench.crash().await;
    }
}

#[tokio::test]
async fn a_reader_that_does_not_come_back_after_a_seek_leaves_nothing() {
    let bench = Bench::new().await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, reader("r", Position::EARLIEST)).await;
    bench.topic.seek(consumer, SeekTo::Position(Position::EARLIEST, Vec::new())).await.unwrap();
    assert_eq!(bench.topic.stats().subscriptions.len(), 1, "it may come back");
    bench.region.advance(2000);
    bench.topic.tick(bench.region.now_ms());
    bench.until("its subscription goes", || bench.topic.stats().subscriptions.is_empty()).await;
}

#[tokio::test]
async fn a_consumer_of_a_finished_topic_is_told_at_once() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 1).await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 10);
    client.received(1).await;
    bench.ack(consumer, &positions);
    bench.topic.terminate().await.unwrap();
    client.heard(Said::End(1)).await;
    bench.topic.remove_consumer(consumer).await;
    bench.consumer(&client, 2, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    client.heard(Said::End(2)).await;
}

#[tokio::test]
async fn time_to_live_starts_when_a_delayed_message_is_due() {
    for delayed_delivery in [true, false] {
        let bench = Bench::with_limits(TopicLimits { message_ttl_s: 10, delayed_delivery, ..limits() }).await;
        let at = SeekTo::Position(Position::EARLIEST, Vec::new());
        bench.topic.create_subscription("s".to_owned(), at, Default::default(), false).await.unwrap();
        let client = Client::new();
        let producer = bench.producer(&client, 1, "p").await;
        let metadata = MessageMetadata {
            producer_name: "p".to_owned(),
            deliver_at_time: Some(bench.region.now_ms() as i64 + 20_000),
            ..MessageMetadata::default()
        };
        let mut payload = bytes::BytesMut::new();
        meridian_wire::payload::encode(&metadata, b"later", &mut payload);
        let delayed = meridian_topic::Publish { payload: payload.freeze(), ..send(0, "") };
        bench.topic.publish(producer, vec![delayed, send(1, "plain")]);
        client.receipts(1, 2).await;
        let backlog = || bench.topic.stats().subscriptions[0].backlog_entries;
        bench.region.advance(11_000);
        bench.topic.tick(bench.region.now_ms());
        let left = if delayed_delivery { 1 } else { 0 };
        bench.until("the plain one expires", || backlog() == left).await;
        bench.region.advance(18_000);
        bench.topic.expire("s".to_owned(), 10).await.unwrap();
        assert_eq!(backlog(), left, "due for 9 s only");
        bench.region.advance(2000);
        bench.topic.expire("s".to_owned(), 10).await.unwrap();
        assert_eq!(backlog(), 0);
    }
}
