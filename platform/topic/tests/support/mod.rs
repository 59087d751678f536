//! A client that records, and topics on managed ledgers in memory.
#![allow(dead_code, missing_docs)]

use bytes::Bytes;
use meridian_managed_ledger::testing::TestRegion;
use meridian_managed_ledger::{LogSettings, ManagedLedgers};
use meridian_topic::{
    AccessMode, AckMode, AckRequest, BrokerLimits, ClientSink, Clock, ConsumerKey, Delivery, InitialCursor, MovedTo,
    PersistentTopic, ProducerKey, ProducerReady, ProducerRequest, Publish, Receipt, SubscribeRequest, SubscriptionType,
    TopicDeps, TopicError, TopicErrorKind, TopicEvents, TopicHandle, TopicLimits,
};
use meridian_types::{Position, TopicName};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Nothing in these tests takes longer.
pub const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Receipt(u64, Receipt),
    SendError(u64, u64, TopicErrorKind),
    Ready(u64, ProducerReady),
    Refused(u64, TopicErrorKind),
    CloseProducer(u64),
    CloseConsumer(u64),
    Moved(u64, String),
    Active(u64, bool),
    End(u64),
}

/// A client's connection that records.
pub struct Client {
    pub said: Mutex<Vec<Said>>,
    pub got: Mutex<Vec<(u64, Delivery)>>,
    told: Notify,
    pub writable: AtomicBool,
    pub alive: AtomicBool,
}

impl Client {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            said: Mutex::default(),
            got: Mutex::default(),
            told: Notify::new(),
            writable: AtomicBool::new(true),
            alive: AtomicBool::new(true),
        })
    }

    fn say(&self, said: Said) {
        self.said.lock().push(said);
        self.told.notify_waiters();
    }

    pub async fn until<T>(&self, what: &str, check: impl Fn(&Self) -> Option<T>) -> T {
        let found = async {
            loop {
                let told = self.told.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if let Some(found) = check(self) {
                    return found;
                }
                told.await;
            }
        };
        match tokio::time::timeout(DEADLINE, found).await {
            Ok(found) => found,
            Err(_) => panic!("{what} did not happen; said {:?}, got {:?}", self.said.lock(), self.texts()),
        }
    }

    /// Waits until so many entries were delivered; their payloads.
    pub async fn received(&self, count: usize) -> Vec<String> {
        self.until(&format!("{count} deliveries"), |client| {
            let texts = client.texts();
            (texts.len() >= count).then_some(texts)
        })
        .await
    }

    pub fn texts(&self) -> Vec<String> {
        self.got.lock().iter().map(|(_, delivery)| text_of(delivery)).collect()
    }

    pub fn texts_of(&self, consumer_id: u64) -> Vec<String> {
        self.got.lock().iter().filter(|(id, _)| *id == consumer_id).map(|(_, delivery)| text_of(delivery)).collect()
    }

    pub async fn heard(&self, said: Said) {
        self.until(&format!("{said:?}"), |client| client.said.lock().contains(&said).then_some(())).await;
    }

    pub async fn receipts(&self, producer_id: u64, count: usize) -> Vec<Receipt> {
        self.until(&format!("{count} receipts"), |client| {
            let of = |said: &Said| match said {
                Said::Receipt(id, receipt) if *id == producer_id => Some(*receipt),
                _ => None,
            };
            let receipts: Vec<Receipt> = client.said.lock().iter().filter_map(of).collect();
            (receipts.len() >= count).then_some(receipts)
        })
        .await
    }

    pub fn clear(&self) {
        self.said.lock().clear();
        self.got.lock().clear();
    }
}

fn text_of(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.payload).into_owned()
}

impl ClientSink for Client {
    fn receipts(&self, producer_id: u64, receipts: &[Receipt]) {
        for receipt in receipts {
            self.say(Said::Receipt(producer_id, *receipt));
        }
    }

    fn send_error(&self, producer_id: u64, sequence_id: u64, kind: TopicErrorKind, _: &str) {
        self.say(Said::SendError(producer_id, sequence_id, kind));
    }

    fn producer_ready(&self, producer_id: u64, ready: ProducerReady) {
        self.say(Said::Ready(producer_id, ready));
    }

    fn producer_refused(&self, producer_id: u64, error: &TopicError) {
        self.say(Said::Refused(producer_id, error.kind));
    }

    fn close_producer(&self, producer_id: u64) {
        self.say(Said::CloseProducer(producer_id));
    }

    fn close_consumer(&self, consumer_id: u64) {
        self.say(Said::CloseConsumer(consumer_id));
    }

    fn producer_moved(&self, producer_id: u64, to: &MovedTo) {
        self.say(Said::Moved(producer_id, to.region.clone()));
    }

    fn consumer_moved(&self, consumer_id: u64, to: &MovedTo) {
        self.say(Said::Moved(consumer_id, to.region.clone()));
    }

    fn deliver(&self, consumer_id: u64, deliveries: Vec<Delivery>) {
        self.got.lock().extend(deliveries.into_iter().map(|delivery| (consumer_id, delivery)));
        self.told.notify_waiters();
    }

    fn active_consumer_changed(&self, consumer_id: u64, is_active: bool) {
        self.say(Said::Active(consumer_id, is_active));
    }

    fn reached_end_of_topic(&self, consumer_id: u64) {
        self.say(Said::End(consumer_id));
    }

    fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    fn probe(&self) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let alive = self.alive.load(Ordering::SeqCst);
        Box::pin(async move { alive })
    }

    fn peer_address(&self) -> String {
        "127.0.0.1:1".to_owned()
    }

    fn client_version(&self) -> String {
        "test".to_owned()
    }
}

struct RegionClock(TestRegion);

impl Clock for RegionClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn monotonic_us(&self) -> u64 {
        self.0.now_ms() * 1000
    }
}

#[derive(Default)]
pub struct Events {
    pub fenced: AtomicBool,
}

impl TopicEvents for Events {
    fn fenced(&self, _: &TopicName, _: &str) {
        self.fenced.store(true, Ordering::SeqCst);
    }
}

pub fn limits() -> TopicLimits {
    TopicLimits {
        max_producers: 0,
        max_consumers: 0,
        max_consumers_per_subscription: 0,
        max_subscriptions: 0,
        max_unacked_per_consumer: 50_000,
        max_unacked_per_subscription: 200_000,
        max_message_bytes: 0,
        encryption_required: false,
        deduplication: false,
        global_producers: false,
        dedup_max_producers: 10_000,
        dedup_snapshot_entries: 1000,
        dedup_snapshot_s: 120,
        message_ttl_s: 0,
        delayed_delivery: true,
        delayed_tick_ms: 1000,
        max_delay_ms: 0,
        batch_index_ack: true,
        failover_delay_ms: 20,
        key_shared_consistent_hashing: Some(100),
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

/// A topic on memory; a new one over the same region finds what was durable.
pub struct Bench {
    pub region: TestRegion,
    pub logs: Arc<ManagedLedgers>,
    pub topic: Arc<PersistentTopic>,
    pub events: Arc<Events>,
    pub deps: Arc<TopicDeps>,
}

impl Bench {
    pub async fn new() -> Self {
        Self::with(TestRegion::default(), limits()).await
    }

    pub async fn with_limits(limits: TopicLimits) -> Self {
        Self::with(TestRegion::default(), limits).await
    }

    pub async fn with(region: TestRegion, limits: TopicLimits) -> Self {
        Self::with_settings(region, limits, LogSettings::default()).await
    }

    pub async fn with_settings(region: TestRegion, limits: TopicLimits, settings: LogSettings) -> Self {
        let logs = region.broker();
        Self::with_logs(region, logs, limits, settings).await
    }

    pub async fn with_logs(
        region: TestRegion,
        logs: Arc<ManagedLedgers>,
        limits: TopicLimits,
        settings: LogSettings,
    ) -> Self {
        let events = Arc::new(Events::default());
        let deps = Arc::new(TopicDeps {
            clock: Arc::new(RegionClock(region.clone())),
            runtime: tokio::runtime::Handle::current(),
            events: events.clone(),
            ledgers: Arc::new(region.ledgers.clone()),
            compaction_keeps_keyless: true,
            expiry_check_ms: 1000,
            quota_check_ms: 1000,
            compaction_check_ms: 1000,
            limits: BrokerLimits::default(),
            close_deadline_ms: 5000,
            fence_deadline_ms: 5000,
        });
        let name = TopicName::parse("persistent://public/default/t").expect("a good name");
        let topic = PersistentTopic::open(name, &logs, settings, limits, deps.clone()).await.expect("the topic opens");
        Self { region, logs, topic, events, deps }
    }

    /// Everything in memory is lost.
    pub async fn crash(self) -> Self {
        let region = self.region.clone();
        drop(self);
        Self::with(region, limits()).await
    }

    pub async fn producer(&self, client: &Arc<Client>, id: u64, name: &str) -> ProducerKey {
        self.topic.add_producer(produce(client, id, name)).await.expect("the producer is let in").key
    }

    pub async fn consumer(&self, client: &Arc<Client>, id: u64, request: SubscribeRequest) -> ConsumerKey {
        let request = SubscribeRequest { sink: client.clone(), consumer_id: id, ..request };
        self.topic.subscribe(request).await.expect("the consumer is let in")
    }

    /// Publishes texts and waits for the receipts.
    pub async fn publish(&self, texts: &[&str]) -> Vec<Position> {
        let client = Client::new();
        let producer = self.producer(&client, 0, &format!("helper-{}", texts.join("-"))).await;
        self.topic.publish(producer, texts.iter().enumerate().map(|(i, text)| send(i as u64, text)).collect());
        let receipts = client.receipts(0, texts.len()).await;
        self.topic.remove_producer(producer).await;
        receipts.iter().map(|receipt| receipt.position).collect()
    }

    /// Publishes `count` messages named by number.
    pub async fn publish_numbers(&self, from: usize, count: usize) -> Vec<Position> {
        let texts: Vec<String> = (from..from + count).map(|i| i.to_string()).collect();
        self.publish(&texts.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    pub fn ack(&self, consumer: ConsumerKey, positions: &[Position]) {
        let receipt = self.topic.ack(consumer, acks(positions));
        assert!(receipt.is_none());
    }

    pub async fn ack_durably(&self, consumer: ConsumerKey, positions: &[Position]) {
        let request = AckRequest { receipt: true, ..acks(positions) };
        self.topic.ack(consumer, request).expect("a receipt was asked for").await.expect("the ack is durable");
    }

    pub async fn until(&self, what: &str, check: impl Fn() -> bool) {
        let wait = async {
            while !check() {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "{what}");
    }
}

pub fn acks(positions: &[Position]) -> AckRequest {
    AckRequest {
        mode: AckMode::Individual,
        ids: positions.iter().map(|position| (*position, Vec::new())).collect(),
        properties: BTreeMap::new(),
        receipt: false,
    }
}

pub fn cumulative(position: Position) -> AckRequest {
    AckRequest { mode: AckMode::Cumulative, ..acks(&[position]) }
}

pub fn produce(client: &Arc<Client>, id: u64, name: &str) -> ProducerRequest {
    ProducerRequest {
        sink: client.clone(),
        producer_id: id,
        name: name.to_owned(),
        user_provided_name: true,
        epoch: 0,
        access_mode: AccessMode::Shared,
        topic_epoch: None,
        encrypted: false,
        metadata: BTreeMap::new(),
        schema_version: None,
        initial_subscription: None,
        receipts_by_position: false,
        principal: None,
    }
}

pub fn send(sequence_id: u64, text: &str) -> Publish {
    Publish {
        sequence_id,
        highest_sequence_id: None,
        messages: 1,
        marker: false,
        is_chunk: false,
        source: None,
        payload: Bytes::copy_from_slice(text.as_bytes()),
    }
}

/// A consumer of a durable subscription that starts at the earliest message.
pub fn subscribe(subscription: &str, sub_type: SubscriptionType, name: &str) -> SubscribeRequest {
    SubscribeRequest {
        sink: Client::new(),
        consumer_id: 0,
        consumer_name: name.to_owned(),
        subscription: subscription.to_owned(),
        sub_type,
        durable: true,
        initial: InitialCursor::Earliest,
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

pub fn reader(subscription: &str, start: Position) -> SubscribeRequest {
    SubscribeRequest {
        durable: false,
        start_message_id: Some((start, -1)),
        ..subscribe(subscription, SubscriptionType::Exclusive, "reader")
    }
}
