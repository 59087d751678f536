//! Rates and other policies that bind clients which are in already.

use crate::client::Client;
use crate::end_to_end::{Region, name, receive, subscribe_earliest};
use meridian_broker::BrokerConfig;
use meridian_managed_ledger::testing::TestRegion;
use meridian_policy::{BrokerDefaults, DispatchRate, Policies, PublishRate, SubscribeRate, TopicPolicies};
use meridian_registry::RegistryError;
use meridian_types::NamespaceName;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_subscribe::SubType;
use meridian_wire::proto::{CommandFlow, CommandPing, CommandSubscribe, ServerError};
use std::time::{Duration, Instant};

async fn change_topic(region: &Region, topic: &str, change: impl Fn(&mut TopicPolicies)) {
    let apply = |policies: &mut TopicPolicies| {
        change(policies);
        Ok::<(), RegistryError>(())
    };
    region.service.registry().update_topic_policies(&name(topic), apply).await.unwrap();
}

fn messages(rate: i64) -> Option<PublishRate> {
    Some(PublishRate { publish_throttling_rate_in_msg: rate, publish_throttling_rate_in_byte: -1 })
}

/// The next receipt: producer and sequence id.
async fn receipt(client: &mut Client) -> (u64, u64) {
    loop {
        match client.body().await {
            Body::SendReceipt(receipt) => return (receipt.producer_id, receipt.sequence_id),
            Body::Message(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_publish_rate_holds_and_other_topics_of_the_connection_go_on() {
    let mut config = BrokerConfig::default();
    // What waits for the rate is not counted among these.
    config.session.max_pending_publishes = 20;
    let region = Region::start_on(TestRegion::default(), config, BrokerDefaults::default()).await;
    change_topic(&region, "slow", |policies| policies.publish_rate = messages(50)).await;
    let mut client = region.connect().await;
    client.producer(1, "slow").await;
    client.producer(2, "quick").await;
    let begun = Instant::now();
    client.publish(1, 0..150).await;
    client.publish(2, 0..10).await;
    let (mut slow, mut quick) = (0, 0);
    while quick < 10 {
        match receipt(&mut client).await {
            (1, id) => {
                assert_eq!(id, slow, "in order");
                slow += 1;
            }
            (_, id) => {
                assert_eq!(id, quick);
                quick += 1;
            }
        }
    }
    assert!(slow < 100, "{slow} of the slow topic came before those of the quick one");
    assert!(begun.elapsed() < Duration::from_secs(1), "the quick topic waited for {:?}", begun.elapsed());
    while slow < 150 {
        assert_eq!(receipt(&mut client).await, (1, slow));
        slow += 1;
    }
    assert!(begun.elapsed() >= Duration::from_millis(1900), "100 over the burst at 50 a second: {:?}", begun.elapsed());
    let stats = region.service.loaded_topic(&name("slow")).unwrap().stats();
    assert!(stats.publish_limited_times > 0 && stats.publishes_waiting == 0);
    assert!(region.service.metrics_text().contains("pulsar_publish_rate_limit_times"));
}

#[tokio::test]
async fn a_publish_rate_that_is_lifted_frees_what_waits() {
    let region = Region::start().await;
    for topic in ["a", "non-persistent://public/default/a"] {
        change_topic(&region, topic, |policies| policies.publish_rate = messages(1)).await;
        let mut client = region.connect().await;
        client.producer(1, topic).await;
        client.publish(1, 0..100).await;
        assert_eq!(receipt(&mut client).await, (1, 0));
        assert!(region.service.loaded_topic(&name(topic)).unwrap().stats().publishes_waiting > 90);
        change_topic(&region, topic, |policies| policies.publish_rate = None).await;
        let all = async {
            for id in 1..100 {
                assert_eq!(receipt(&mut client).await, (1, id));
            }
        };
        tokio::time::timeout(Duration::from_secs(2), all).await.expect("they still wait");
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_what_waits_with_it() {
    let region = Region::start().await;
    change_topic(&region, "a", |policies| policies.publish_rate = messages(1)).await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.publish(1, 0..100).await;
    assert_eq!(receipt(&mut client).await, (1, 0));
    drop(client);
    let topic = region.service.loaded_topic(&name("a")).unwrap();
    let gone = async {
        while !topic.stats().producers.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("the producer is still there");
    assert_eq!(topic.stats().publishes_waiting, 0);
}

async fn subscribe_named(client: &mut Client, consumer_id: u64, consumer: &str) -> Option<(ServerError, String)> {
    client
        .send(CommandSubscribe {
            topic: "a".to_owned(),
            subscription: "s".to_owned(),
            sub_type: SubType::Shared as i32,
            consumer_id,
            consumer_name: Some(consumer.to_owned()),
            request_id: 1,
            ..Default::default()
        })
        .await;
    match client.body().await {
        Body::Success(_) => None,
        Body::Error(error) => Some((error.error(), error.message)),
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn a_consumer_may_subscribe_so_often_in_a_period() {
    let region = Region::start().await;
    let rate = SubscribeRate { subscribe_throttling_rate_per_consumer: 2, rate_period_in_second: 60 };
    change_topic(&region, "a", |policies| policies.subscribe_rate = Some(rate)).await;
    let mut client = region.connect().await;
    assert_eq!(subscribe_named(&mut client, 1, "c").await, None);
    assert_eq!(subscribe_named(&mut client, 2, "c").await, None);
    let (error, text) = subscribe_named(&mut client, 3, "c").await.expect("a third call in the period");
    assert_eq!(error, ServerError::NotAllowedError);
    assert!(text.contains("subscribe rate limit per consumer: 2 in 60 s"), "{text}");
    assert_eq!(subscribe_named(&mut client, 4, "other").await, None);
}

#[tokio::test]
async fn a_topics_dispatch_rate_counts_for_all_its_subscriptions_together() {
    let region = Region::start().await;
    let rate = DispatchRate { dispatch_throttling_rate_in_msg: 40, ..Default::default() };
    change_topic(&region, "a", |policies| policies.dispatch_rate = Some(rate)).await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.publish(1, 0..200).await;
    for id in 0..200 {
        assert_eq!(receipt(&mut client).await, (1, id));
    }
    let begun = Instant::now();
    let mut readers = Vec::new();
    for (index, subscription) in ["one", "other"].into_iter().enumerate() {
        let mut reader = region.connect().await;
        reader
            .send(CommandSubscribe {
                topic: "a".to_owned(),
                subscription: subscription.to_owned(),
                sub_type: if index == 0 { SubType::Shared } else { SubType::Exclusive } as i32,
                consumer_id: 1,
                request_id: 1,
                initial_position: Some(1),
                ..Default::default()
            })
            .await;
        assert!(matches!(reader.body().await, Body::Success(_)));
        reader.send(CommandFlow { consumer_id: 1, message_permits: 1000 }).await;
        readers.push(reader);
    }
    let mut counts = [0_u32; 2];
    let end = begun + Duration::from_secs(2);
    let (one, other) = readers.split_at_mut(1);
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        tokio::select! {
            _ = receive(&mut one[0]) => counts[0] += 1,
            _ = receive(&mut other[0]) => counts[1] += 1,
            () = tokio::time::sleep(left) => {}
        }
    }
    let total = counts[0] + counts[1];
    // A burst of one second, two seconds' worth, and one read of each that was under way.
    assert!((80..=150).contains(&total), "{counts:?}");
    assert!(counts.iter().all(|count| *count > 10), "nobody starves: {counts:?}");
}

#[tokio::test]
async fn plain_messages_are_refused_as_soon_as_encryption_is_required() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.publish(1, [0]).await;
    assert_eq!(receipt(&mut client).await, (1, 0));
    let encrypted = |policies: &mut Policies| {
        policies.encryption_required = true;
        Ok::<(), RegistryError>(())
    };
    let namespace = NamespaceName::parse("public/default").unwrap();
    region.service.registry().update_namespace(&namespace, encrypted).await.unwrap();
    let refused = async {
        for id in 1.. {
            client.publish(1, [id]).await;
            match client.body().await {
                Body::SendReceipt(_) => {}
                Body::SendError(error) => return (error.error(), error.message),
                other => panic!("unexpected {other:?}"),
            }
        }
        unreachable!("the ids do not end");
    };
    let refused = tokio::time::timeout(Duration::from_secs(1), refused).await.expect("plain messages are still taken");
    assert_eq!(refused, (ServerError::MetadataError, "Messages must be encrypted".to_owned()));
    client.send(CommandPing {}).await;
    assert!(matches!(client.body().await, Body::Pong(_)), "the connection stays");
}

#[tokio::test]
async fn subscription_names_can_be_verified() {
    let config = BrokerConfig { strictly_verify_subscription_names: true, ..Default::default() };
    let region = Region::start_on(TestRegion::default(), config, BrokerDefaults::default()).await;
    let mut client = region.connect().await;
    subscribe_earliest(&mut client, 1, "a", SubType::Shared).await;
    let request = CommandSubscribe {
        topic: "a".to_owned(),
        subscription: "a/b".to_owned(),
        consumer_id: 2,
        request_id: 2,
        ..Default::default()
    };
    client.send(request).await;
    let Body::Error(error) = client.body().await else { panic!("it was let in") };
    assert_eq!(error.error(), ServerError::NotAllowedError);
    assert!(error.message.contains("strictlyVerifySubscriptionName"), "{}", error.message);
}

#[tokio::test]
async fn a_partitioned_topic_goes_with_its_last_unused_partition_if_that_is_wanted() {
    for wanted in [true, false] {
        let config = BrokerConfig {
            inactive_topic_check_s: 1,
            delete_inactive_partitioned_metadata: wanted,
            ..Default::default()
        };
        let mut defaults = BrokerDefaults::default();
        defaults.inactive_topics.max_inactive_duration_seconds = 1;
        let region = Region::start_on(TestRegion::default(), config, defaults).await;
        let partitioned = name("p");
        region.service.create_partitioned_topic(&partitioned, 2, Default::default()).await.unwrap();
        let mut client = region.connect().await;
        client.producer(1, "p-partition-0").await;
        client.producer(2, "p-partition-1").await;
        drop(client);
        let unused = async {
            while !region.service.loaded_topics().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(15), unused).await.expect("the partitions are still there");
        let gone = async {
            while region.service.partitions(&partitioned).is_some() {
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(2), gone).await.is_ok(), wanted);
    }
}
