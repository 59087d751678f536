//! Topics in memory: all subscription types, limits, statistics.

use super::*;
use crate::api::{AccessMode, InitialCursor, Receipt, SubscriptionType};
use crate::clock::SystemClock;
use bytes::{Bytes, BytesMut};
use meridian_wire::proto::MessageMetadata;

/// Everything that a connection was told, as text.
#[derive(Default)]
struct Recorder {
    told: Mutex<Vec<String>>,
    delivered: Mutex<Vec<(u64, String)>>,
    is_full: std::sync::atomic::AtomicBool,
    is_dead: bool,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn tell(&self, text: String) {
        self.told.lock().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock())
    }

    /// Bodies delivered to a consumer so far.
    fn bodies(&self, consumer_id: u64) -> Vec<String> {
        let delivered = self.delivered.lock();
        delivered.iter().filter(|(to, _)| *to == consumer_id).map(|(_, body)| body.clone()).collect()
    }
}

impl ClientSink for Recorder {
    fn receipts(&self, producer_id: u64, receipts: &[Receipt]) {
        for receipt in receipts {
            self.tell(format!("receipt {producer_id}: {} at {}", receipt.sequence_id, receipt.position));
        }
    }

    fn send_error(&self, producer_id: u64, sequence_id: u64, kind: TopicErrorKind, _: &str) {
        self.tell(format!("send error {producer_id}: {sequence_id} {kind:?}"));
    }

    fn producer_ready(&self, producer_id: u64, ready: ProducerReady) {
        self.tell(format!("producer {producer_id} ready: epoch {:?}", ready.topic_epoch));
    }

    fn producer_refused(&self, producer_id: u64, error: &TopicError) {
        self.tell(format!("producer {producer_id} refused: {:?}", error.kind));
    }

    fn close_producer(&self, producer_id: u64) {
        self.tell(format!("close producer {producer_id}"));
    }

    fn close_consumer(&self, consumer_id: u64) {
        self.tell(format!("close consumer {consumer_id}"));
    }

    fn deliver(&self, consumer_id: u64, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            assert_eq!(delivery.position, NOWHERE);
            let body = meridian_wire::payload::split(&delivery.payload).unwrap().payload;
            self.delivered.lock().push((consumer_id, String::from_utf8_lossy(body).into_owned()));
        }
    }

    fn active_consumer_changed(&self, consumer_id: u64, is_active: bool) {
        self.tell(format!("consumer {consumer_id} active: {is_active}"));
    }

    fn reached_end_of_topic(&self, _: u64) {}

    fn is_writable(&self) -> bool {
        !self.is_full.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn probe(&self) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(!self.is_dead))
    }

    fn peer_address(&self) -> String {
        "127.0.0.1:1".to_owned()
    }

    fn client_version(&self) -> String {
        "test".to_owned()
    }
}

fn topic() -> Arc<NonPersistentTopic> {
    let name = TopicName::parse("non-persistent://public/default/t").unwrap();
    NonPersistentTopic::new(name, limits(), BrokerLimits::default(), Arc::new(SystemClock))
}

fn limits() -> TopicLimits {
    TopicLimits {
        max_producers: 0,
        max_consumers: 0,
        max_consumers_per_subscription: 0,
        max_subscriptions: 0,
        max_unacked_per_consumer: 0,
        max_unacked_per_subscription: 0,
        max_message_bytes: 0,
        encryption_required: false,
        deduplication: false,
        global_producers: false,
        dedup_max_producers: 0,
        dedup_snapshot_entries: 0,
        dedup_snapshot_s: 0,
        message_ttl_s: 0,
        delayed_delivery: true,
        delayed_tick_ms: 1000,
        max_delay_ms: 0,
        batch_index_ack: true,
        failover_delay_ms: 0,
        key_shared_consistent_hashing: None,
        dispatch_read_entries: 100,
        dispatch_read_bytes: 5 << 20,
        dispatch_round_robin_entries: 20,
        backlog_quota_bytes: 0,
        backlog_quota_s: 0,
        backlog_bytes_policy: 0,
        backlog_age_policy: 0,
        allowed_types: Vec::new(),
        publish_rate: (0, 0),
        dispatch_rate: (0, 0),
        dispatch_relative: false,
        topic_dispatch_rate: (0, 0),
        topic_dispatch_relative: false,
        subscribe_rate: (0, 30),
        subscription_expiration_minutes: 0,
        compaction_threshold_bytes: 0,
    }
}

fn producer(sink: &Arc<Recorder>, producer_id: u64, name: &str, access_mode: AccessMode) -> ProducerRequest {
    ProducerRequest {
        sink: sink.clone(),
        producer_id,
        name: name.to_owned(),
        user_provided_name: true,
        epoch: 0,
        access_mode,
        topic_epoch: None,
        encrypted: false,
        metadata: BTreeMap::new(),
        schema_version: None,
        initial_subscription: None,
        receipts_by_position: false,
        principal: None,
    }
}

fn consumer(
    sink: &Arc<Recorder>,
    consumer_id: u64,
    subscription: &str,
    sub_type: SubscriptionType,
) -> SubscribeRequest {
    SubscribeRequest {
        sink: sink.clone(),
        consumer_id,
        consumer_name: format!("c{consumer_id}"),
        subscription: subscription.to_owned(),
        sub_type,
        durable: true,
        initial: InitialCursor::Latest,
        start_message_id: None,
        start_rollback_s: 0,
        priority_level: 0,
        read_compacted: false,
        key_shared: None,
        consumer_epoch: None,
        replicate_state: None,
        metadata: BTreeMap::new(),
        subscription_properties: BTreeMap::new(),
        may_create: true,
        principal: None,
    }
}

fn send(sequence_id: u64, key: &str) -> Publish {
    let metadata = MessageMetadata {
        producer_name: "p".to_owned(),
        partition_key: Some(key.to_owned()),
        ..MessageMetadata::default()
    };
    let mut payload = BytesMut::new();
    meridian_wire::payload::encode(&metadata, format!("m{sequence_id}").as_bytes(), &mut payload);
    let payload: Bytes = payload.freeze();
    Publish {
        sequence_id,
        highest_sequence_id: None,
        messages: 1,
        marker: false,
        is_chunk: false,
        source: None,
        payload,
    }
}

#[tokio::test]
async fn what_nobody_can_take_is_dropped_and_still_received() {
    let (topic, sink) = (topic(), Recorder::new());
    let key = topic.add_producer(producer(&sink, 7, "p", AccessMode::Shared)).await.unwrap().key;
    let reader = topic.subscribe(consumer(&sink, 1, "s", SubscriptionType::Exclusive)).await.unwrap();
    topic.publish(key, vec![send(0, "k"), send(1, "k")]);
    assert_eq!(sink.take(), ["receipt 7: 0 at 0:0", "receipt 7: 1 at 0:0"]);
    topic.flow(reader, 2);
    topic.publish(key, vec![send(2, "k"), send(3, "k"), send(4, "k")]);
    assert_eq!(sink.bodies(1), ["m2", "m3"]);
    topic.flow(reader, 10);
    sink.is_full.store(true, std::sync::atomic::Ordering::Relaxed);
    topic.publish(key, vec![send(5, "k")]);
    sink.is_full.store(false, std::sync::atomic::Ordering::Relaxed);
    topic.publish(key, vec![send(6, "k")]);
    assert_eq!(sink.bodies(1), ["m2", "m3", "m6"]);
    let stats = topic.stats();
    assert_eq!((stats.messages_in, stats.messages_out, stats.storage_bytes), (7, 3, 0));
    assert_eq!(stats.subscriptions[0].waiting.as_deref(), Some("4 messages dropped"));
    assert_eq!(stats.subscriptions[0].backlog_entries, 0);
}

#[derive(Default)]
struct Copies(Mutex<Vec<String>>);

impl LiveTap for Copies {
    fn offer(&self, run: &[(Bytes, u32)]) {
        let body = |(payload, messages): &(Bytes, u32)| {
            let body = meridian_wire::payload::split(payload).unwrap().payload;
            format!("{}x{messages}", String::from_utf8_lossy(body))
        };
        self.0.lock().push(run.iter().map(body).collect::<Vec<_>>().join(" "));
    }
}

#[tokio::test]
async fn what_tenants_publish_is_offered_to_other_regions_and_what_links_bring_is_not() {
    let (topic, sink, east) = (topic(), Recorder::new(), Arc::new(Copies::default()));
    topic.set_limits(TopicLimits { encryption_required: true, publish_rate: (2, 0), ..limits() });
    let request = ProducerRequest { encrypted: true, ..producer(&sink, 7, "p", AccessMode::Shared) };
    let tenant = topic.add_producer(request).await.unwrap().key;
    let link =
        topic.add_producer(producer(&sink, 8, "pulsar.repl.north-->west", AccessMode::Shared)).await.unwrap().key;
    topic.set_tap("east", Some(east.clone()));
    topic.set_limits(limits());
    topic.publish(tenant, vec![send(0, "k"), send(1, "k")]);
    topic.publish(tenant, vec![Publish { marker: true, ..send(2, "k") }]);
    topic.set_limits(TopicLimits { encryption_required: true, publish_rate: (1, 0), ..limits() });
    topic.publish(link, (3..9).map(|id| send(id, "k")).collect());
    assert_eq!(*east.0.lock(), ["m0x1 m1x1"], "N5, and one call for a run");
    let told = sink.take();
    let of_link = told.iter().filter(|line| line.starts_with("receipt 8")).count();
    assert_eq!(of_link, 6, "neither the rate nor encryption is asked of copies: {told:?}");
    let stats = topic.stats();
    assert_eq!((stats.links.len(), stats.links[0].region.as_str(), stats.producers.len()), (1, "north", 1));
    assert_eq!(stats.links[0].producer.messages_in, 6);
    topic.set_limits(limits());
    topic.set_tap("east", None);
    topic.publish(tenant, vec![send(10, "k")]);
    assert_eq!(east.0.lock().len(), 1, "taken away");
}

#[tokio::test]
async fn every_subscription_gets_it_and_shared_ones_take_turns() {
    let (topic, sink) = (topic(), Recorder::new());
    let key = topic.add_producer(producer(&sink, 7, "p", AccessMode::Shared)).await.unwrap().key;
    for (id, name, sub_type) in [
        (1, "one", SubscriptionType::Exclusive),
        (2, "many", SubscriptionType::Shared),
        (3, "many", SubscriptionType::Shared),
    ] {
        let consumer = topic.subscribe(consumer(&sink, id, name, sub_type)).await.unwrap();
        topic.flow(consumer, 100);
    }
    topic.publish(key, (0..4).map(|i| send(i, "k")).collect());
    assert_eq!(sink.bodies(1), ["m0", "m1", "m2", "m3"]);
    assert_eq!((sink.bodies(2), sink.bodies(3)), (vec!["m0".into(), "m2".into()], vec!["m1".into(), "m3".into()]));
}

#[tokio::test]
async fn a_key_has_one_consumer() {
    let (topic, sink) = (topic(), Recorder::new());
    let key = topic.add_producer(producer(&sink, 7, "p", AccessMode::Shared)).await.unwrap().key;
    for id in [1, 2] {
        let consumer = topic.subscribe(consumer(&sink, id, "s", SubscriptionType::KeyShared)).await.unwrap();
        topic.flow(consumer, 100);
    }
    topic.publish(key, (0..30).map(|i| send(i, &format!("key-shared-{}", i % 3))).collect());
    let (first, second) = (sink.bodies(1), sink.bodies(2));
    assert_eq!(first.len() + second.len(), 30);
    assert!(!first.is_empty() && !second.is_empty(), "{first:?} {second:?}");
    let keys = |bodies: &[String]| bodies.iter().map(|body| body[1..].parse::<u64>().unwrap() % 3).collect::<Vec<_>>();
    assert!(keys(&first).iter().all(|key| !keys(&second).contains(key)));
}

#[tokio::test]
async fn failover_tells_who_is_active_and_moves_on() {
    let (topic, sink) = (topic(), Recorder::new());
    let key = topic.add_producer(producer(&sink, 7, "p", AccessMode::Shared)).await.unwrap().key;
    let first = topic.subscribe(consumer(&sink, 1, "s", SubscriptionType::Failover)).await.unwrap();
    assert_eq!(sink.take(), ["consumer 1 active: true"]);
    let second = topic.subscribe(consumer(&sink, 2, "s", SubscriptionType::Failover)).await.unwrap();
    assert_eq!(sink.take(), ["consumer 2 active: false"]);
    topic.flow(first, 10);
    topic.flow(second, 10);
    topic.publish(key, vec![send(0, "k")]);
    topic.remove_consumer(first).await;
    topic.publish(key, vec![send(1, "k")]);
    assert_eq!((sink.bodies(1), sink.bodies(2)), (vec!["m0".to_owned()], vec!["m1".to_owned()]));
    assert!(sink.take().contains(&"consumer 2 active: true".to_owned()));
}

#[tokio::test]
async fn an_exclusive_consumer_gives_way_only_if_it_is_dead() {
    let topic = topic();
    let (alive, dead) = (Recorder::new(), Arc::new(Recorder { is_dead: true, ..Recorder::default() }));
    topic.subscribe(consumer(&dead, 1, "s", SubscriptionType::Exclusive)).await.unwrap();
    topic.subscribe(consumer(&alive, 2, "s", SubscriptionType::Exclusive)).await.unwrap();
    let refused = topic.subscribe(consumer(&alive, 3, "s", SubscriptionType::Exclusive)).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ConsumerBusy);
    let refused = topic.subscribe(consumer(&alive, 3, "s", SubscriptionType::Shared)).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ConsumerBusy);
    assert_eq!(topic.stats().subscriptions[0].consumers.len(), 1);
}

#[tokio::test]
async fn exclusive_producers_wait_and_fence() {
    let (topic, sink) = (topic(), Recorder::new());
    let first = topic.add_producer(producer(&sink, 1, "a", AccessMode::Exclusive)).await.unwrap();
    assert_eq!((first.ready, first.topic_epoch), (true, Some(0)));
    let second = topic.add_producer(producer(&sink, 2, "b", AccessMode::WaitForExclusive)).await.unwrap();
    assert!(!second.ready);
    assert!(topic.add_producer(producer(&sink, 3, "c", AccessMode::Shared)).await.is_err());
    topic.remove_producer(first.key).await;
    assert_eq!(sink.take(), ["producer 2 ready: epoch Some(1)"]);
    let third = topic.add_producer(producer(&sink, 4, "d", AccessMode::ExclusiveWithFencing)).await.unwrap();
    assert_eq!((third.topic_epoch, sink.take()), (Some(2), vec!["close producer 2".to_owned()]));
    let again = topic.add_producer(producer(&sink, 5, "d", AccessMode::Shared)).await.unwrap_err();
    assert_eq!(again.kind, TopicErrorKind::ProducerBusy);
}

#[tokio::test]
async fn subscriptions_end_as_on_stored_topics() {
    let (topic, sink) = (topic(), Recorder::new());
    let first = topic.subscribe(consumer(&sink, 1, "s", SubscriptionType::Shared)).await.unwrap();
    let second = topic.subscribe(consumer(&sink, 2, "s", SubscriptionType::Shared)).await.unwrap();
    assert_eq!(topic.unsubscribe(first, false).await.unwrap_err().kind, TopicErrorKind::Metadata);
    topic.remove_consumer(second).await;
    topic.unsubscribe(first, false).await.unwrap();
    assert!(topic.stats().subscriptions.is_empty());
    let reader =
        topic.subscribe(SubscribeRequest { durable: false, ..consumer(&sink, 3, "r", SubscriptionType::Exclusive) });
    topic.remove_consumer(reader.await.unwrap()).await;
    assert!(topic.stats().subscriptions.is_empty(), "a reader leaves nothing");
    topic.create_subscription("made".to_owned(), SeekTo::PublishTime(0), BTreeMap::new(), false).await.unwrap();
    topic.subscribe(consumer(&sink, 4, "made", SubscriptionType::Shared)).await.unwrap();
    assert_eq!(topic.delete_subscription("made".to_owned(), false).await.unwrap_err().kind, TopicErrorKind::Busy);
    sink.take();
    topic.delete_subscription("made".to_owned(), true).await.unwrap();
    assert_eq!(sink.take(), ["close consumer 4"]);
    assert_eq!(topic.terminate().await.unwrap_err().kind, TopicErrorKind::NotAllowed);
}

#[tokio::test]
async fn closing_tells_everybody_and_takes_nobody() {
    let (topic, sink) = (topic(), Recorder::new());
    let key = topic.add_producer(producer(&sink, 1, "p", AccessMode::Shared)).await.unwrap().key;
    topic.subscribe(consumer(&sink, 2, "s", SubscriptionType::Shared)).await.unwrap();
    assert_eq!(topic.delete(false).await.unwrap_err().kind, TopicErrorKind::Busy);
    topic.close().await.unwrap();
    topic.close().await.unwrap();
    assert_eq!(sink.take(), ["close producer 1", "close consumer 2"]);
    topic.publish(key, vec![send(0, "k")]);
    assert!(sink.take().is_empty());
    let refused = topic.subscribe(consumer(&sink, 2, "s", SubscriptionType::Shared)).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ServiceNotReady);
    assert!(topic.add_producer(producer(&sink, 1, "p", AccessMode::Shared)).await.is_err());
}

#[tokio::test]
async fn limits_hold() {
    let (topic, sink) = (topic(), Recorder::new());
    topic.set_limits(TopicLimits { max_message_bytes: 10, max_consumers: 1, max_subscriptions: 1, ..limits() });
    let key = topic.add_producer(producer(&sink, 1, "p", AccessMode::Shared)).await.unwrap().key;
    topic.publish(key, vec![send(0, "a long key")]);
    assert_eq!(sink.take(), ["send error 1: 0 NotAllowed"]);
    topic.subscribe(consumer(&sink, 1, "s", SubscriptionType::Shared)).await.unwrap();
    let refused = topic.subscribe(consumer(&sink, 2, "s", SubscriptionType::Shared)).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::ConsumerBusy);
    topic.set_limits(TopicLimits { max_subscriptions: 1, ..limits() });
    let refused = topic.subscribe(consumer(&sink, 2, "t", SubscriptionType::Shared)).await.unwrap_err();
    assert_eq!(refused.kind, TopicErrorKind::NotAllowed);
    topic.tick(1000);
    topic.tick(2000);
    assert_eq!(topic.stats().rate_in, 0.0);
}
