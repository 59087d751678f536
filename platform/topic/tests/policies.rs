//! Policies that a topic follows by itself, and the figures that tell of it.

mod messages;
mod support;

use meridian_topic::{
    ACK_PROPERTY_PREFIX, AckRequest, LimitsAbove, SeekTo, SharedLimiter, SubscriptionStats, SubscriptionType,
    TopicErrorKind, TopicHandle, TopicLimits,
};
use meridian_types::Position;
use messages::keyed;
use std::sync::Arc;
use support::{Bench, Client, Said, cumulative, limits, produce, send, subscribe};

fn earliest() -> SeekTo {
    SeekTo::Position(Position::EARLIEST, Vec::new())
}

fn figures(bench: &Bench, name: &str) -> Option<SubscriptionStats> {
    bench.topic.stats().subscriptions.into_iter().find(|one| one.name == name)
}

#[tokio::test]
async fn each_quota_has_a_policy_of_its_own() {
    let both = TopicLimits { backlog_quota_bytes: 10, backlog_bytes_policy: 0, ..limits() };
    let bench = Bench::with_limits(TopicLimits { backlog_quota_s: 60, backlog_age_policy: 2, ..both.clone() }).await;
    bench.topic.create_subscription("s".to_owned(), earliest(), Default::default(), false).await.unwrap();
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    bench.topic.publish(producer, (0..20).map(|i| send(i, "0123456789")).collect());
    client.receipts(1, 20).await;
    bench.region.advance(1000);
    bench.topic.tick(bench.region.now_ms());
    client.heard(Said::CloseProducer(1)).await;
    let refused = bench.topic.add_producer(produce(&client, 2, "q")).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ProducerBlockedQuotaExceededError, "held by size");
    assert_eq!(figures(&bench, "s").unwrap().backlog_entries, 20, "nothing was evicted for its size");
    bench.region.advance(61_000);
    bench.topic.tick(bench.region.now_ms());
    bench.until("the old ones are evicted", || figures(&bench, "s").unwrap().backlog_entries == 0).await;
}

#[tokio::test]
async fn a_relative_dispatch_rate_stands_on_what_is_published() {
    let relative = |yes| TopicLimits {
        dispatch_rate: (10, 0),
        dispatch_relative: yes,
        topic_dispatch_rate: (25, 0),
        topic_dispatch_relative: yes,
        ..limits()
    };
    let bench = Bench::with_limits(relative(true)).await;
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    for second in 0..4 {
        bench.topic.publish(producer, (second * 100..second * 100 + 100).map(|i| send(i, "x")).collect());
        client.receipts(1, second as usize * 100 + 100).await;
        bench.region.advance(1000);
        bench.topic.tick(bench.region.now_ms());
    }
    assert_eq!(bench.topic.published(), (100, 100));
    // Time stands still: what comes is one second's worth.
    let got = |subscription: &'static str, expected: usize| {
        let bench = &bench;
        async move {
            let reading = Client::new();
            let consumer = bench.consumer(&reading, 2, subscribe(subscription, SubscriptionType::Shared, "c")).await;
            bench.topic.flow(consumer, 1000);
            let count = reading.received(expected).await.len();
            bench.topic.remove_consumer(consumer).await;
            count
        }
    };
    assert_eq!(got("own", 110).await, 110, "ten on top of a hundred");
    assert_eq!(got("shared", 15).await, 15, "of the topic's hundred and twenty-five");
    // Silence: the rate falls back to what is set.
    for _ in 0..200 {
        bench.region.advance(1000);
        bench.topic.tick(bench.region.now_ms());
    }
    assert_eq!(bench.topic.published(), (0, 0));
    bench.topic.set_limits(relative(false));
    assert_eq!(got("later", 10).await, 10);
}

#[tokio::test]
async fn a_rate_set_while_nobody_was_connected_binds_the_next_consumer() {
    let bench = Bench::with_limits(limits()).await;
    let client = Client::new();
    for (id, name) in [(1, "own"), (2, "above")] {
        let leaving = bench.consumer(&client, id, subscribe(name, SubscriptionType::Shared, "c")).await;
        bench.topic.remove_consumer(leaving).await;
    }
    let producer = bench.producer(&client, 3, "p").await;
    bench.topic.publish(producer, (0..100).map(|i| send(i, "x")).collect());
    client.receipts(3, 100).await;
    let got = |name: &'static str, expected: usize| {
        let bench = &bench;
        async move {
            let reading = Client::new();
            let consumer = bench.consumer(&reading, 4, subscribe(name, SubscriptionType::Shared, "c")).await;
            bench.topic.flow(consumer, 1000);
            let count = reading.received(expected).await.len();
            bench.topic.remove_consumer(consumer).await;
            count
        }
    };
    bench.topic.set_limits(TopicLimits { dispatch_rate: (10, 0), ..limits() });
    assert_eq!(got("own", 10).await, 10);
    bench.topic.set_limits(limits());
    let tenant = Arc::new(SharedLimiter::new((15, 0)));
    bench.topic.set_limits_above(LimitsAbove { dispatch: Arc::new([tenant]), ..LimitsAbove::default() });
    assert_eq!(got("above", 15).await, 15);
}

#[tokio::test]
async fn what_waits_passes_soon_after_a_limit_above_has_grown() {
    let bench = Bench::with_limits(limits()).await;
    let client = Client::new();
    // What a broker has of a limit on bytes before it has leased its part.
    let tenant = Arc::new(SharedLimiter::new((0, 1)));
    bench.topic.set_limits_above(LimitsAbove { publish: Arc::new([tenant.clone()]), ..LimitsAbove::default() });
    let producer = bench.producer(&client, 1, "p").await;
    let body = "x".repeat(10_000);
    bench.topic.publish(producer, (0..2).map(|i| send(i, &body)).collect());
    client.receipts(1, 1).await;
    tenant.set_rate((0, 1_000_000));
    bench.region.advance(1_000);
    client.receipts(1, 2).await;
}

#[tokio::test]
async fn unused_subscriptions_are_deleted_and_others_stay() {
    let bench = Bench::with_limits(TopicLimits { subscription_expiration_minutes: 10, ..limits() }).await;
    for (name, replicated) in [("unused", false), ("replicated", true), ("connected", false), ("fresh", false)] {
        if name != "fresh" {
            bench.topic.create_subscription(name.to_owned(), earliest(), Default::default(), replicated).await.unwrap();
        }
    }
    let client = Client::new();
    bench.consumer(&client, 1, subscribe("connected", SubscriptionType::Shared, "c")).await;
    bench.region.advance(9 * 60_000);
    let leaving = bench.consumer(&client, 2, subscribe("fresh", SubscriptionType::Shared, "c")).await;
    bench.topic.remove_consumer(leaving).await;
    bench.region.advance(2 * 60_000);
    bench.topic.tick(bench.region.now_ms());
    bench.until("the unused one goes", || figures(&bench, "unused").is_none()).await;
    for name in ["replicated", "connected", "fresh"] {
        assert!(figures(&bench, name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_topic_over_its_threshold_compacts_itself_once() {
    let bench = Bench::with_limits(TopicLimits { compaction_threshold_bytes: 2000, ..limits() }).await;
    bench.topic.create_subscription("keeps".to_owned(), earliest(), Default::default(), false).await.unwrap();
    let client = Client::new();
    let producer = bench.producer(&client, 1, "p").await;
    let tick = || {
        bench.region.advance(1000);
        bench.topic.tick(bench.region.now_ms());
    };
    bench.topic.publish(producer, vec![keyed(0, "k", "v")]);
    client.receipts(1, 1).await;
    tick();
    assert_eq!(bench.topic.stats().compaction.succeeded_ms, 0, "below the threshold");
    let body = "x".repeat(200);
    bench.topic.publish(producer, (1..40).map(|i| keyed(i, &format!("k{}", i % 3), &body)).collect());
    client.receipts(1, 40).await;
    tick();
    bench.until("it compacts itself", || bench.topic.stats().compaction.succeeded_ms > 0).await;
    let compaction = bench.topic.stats().compaction;
    assert_eq!(compaction.removed_entries, 36, "one of k and one of each of three keys stay: {compaction:?}");
    let ledger = compaction.ledger.unwrap();
    assert_eq!(ledger.size.unwrap().0, 4);
    tick();
    assert_eq!(bench.topic.stats().compaction.ledger, Some(ledger), "nothing new came");
}

#[tokio::test]
async fn properties_of_a_cumulative_ack_stay_with_the_cursor() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 3).await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Exclusive, "c")).await;
    bench.topic.flow(consumer, 10);
    client.received(3).await;
    let with = |position, name: &str, value| AckRequest {
        properties: [(name.to_owned(), value)].into(),
        receipt: true,
        ..cumulative(position)
    };
    bench.topic.ack(consumer, with(positions[0], "offset", 7)).unwrap().await.unwrap();
    bench.topic.ack(consumer, with(positions[1], "other", -8)).unwrap().await.unwrap();
    let kept = |bench: &Bench| figures(bench, "s").unwrap().cursor.unwrap().properties;
    let expected = [(format!("{ACK_PROPERTY_PREFIX}other"), "-8".to_owned())];
    assert_eq!(kept(&bench), expected.clone().into());
    bench.ack_durably(consumer, &[positions[2]]).await;
    assert_eq!(kept(&bench), expected.clone().into(), "an ack without properties leaves them");
    assert_eq!(kept(&bench.crash().await), expected.into());
}

#[tokio::test]
async fn figures_of_consumers_that_left_are_kept() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 4).await;
    let client = Client::new();
    let consumer = bench.consumer(&client, 1, subscribe("s", SubscriptionType::Shared, "c")).await;
    bench.region.advance(1000);
    bench.topic.flow(consumer, 10);
    client.received(4).await;
    bench.ack(consumer, &positions[..2]);
    let connected = figures(&bench, "s").unwrap();
    assert_eq!(connected.read_position, Some(positions[3].next_in_ledger()));
    assert!(connected.last_acked_ms > 0 && connected.last_consumed_ms > 0 && connected.last_consumed_flow_ms > 0);
    let half = connected.backlog_bytes;
    bench.topic.remove_consumer(consumer).await;
    let left = figures(&bench, "s").unwrap();
    let times = |one: &SubscriptionStats| (one.last_acked_ms, one.last_consumed_ms, one.last_consumed_flow_ms);
    assert_eq!(times(&left), times(&connected));
    assert_eq!(left.read_position, None);
    bench.topic.skip("s".to_owned(), None).await.unwrap();
    let all = bench.topic.stats().storage_bytes;
    assert!(half > 0 && half <= all / 2, "{half} of {all}");
    assert_eq!(figures(&bench, "s").unwrap().backlog_bytes, 0);
}
