//! Topics that record what sessions ask of them and answer as the test says.

use meridian_broker::{BrokerError, TopicFactory, TopicSettings};
use meridian_managed_ledger::{LogEntry, LogSettings};
use meridian_topic::api::BoxFuture;
use meridian_topic::{
    AckRequest, ClientSink, ConsumerKey, ConsumerStats, Delivery, LastMessage, ProducerKey, ProducerReady,
    ProducerRequest, Publish, Receipt, SeekTo, SubscribeRequest, SubscriptionStats, TopicError, TopicErrorKind,
    TopicHandle, TopicLimits, TopicStats,
};
use meridian_types::{NamespaceName, Position, TopicName};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};

/// What a topic was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    AddProducer(String),
    Publish(Vec<u64>),
    RemoveProducer(u64),
    Subscribe(String),
    Flow(u32),
    Ack(Vec<Position>),
    Redeliver(Vec<Position>),
    Writable,
    RemoveConsumer(u64),
    Unsubscribe(bool),
    Seek(SeekTo),
}

type Stored = Arc<Mutex<BTreeSet<TopicName>>>;

struct Attached {
    sink: Arc<dyn ClientSink>,
    id: u64,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    producers: HashMap<u64, Attached>,
    consumers: HashMap<u64, Attached>,
    unanswered: Vec<(u64, Receipt)>,
    next_entry: i64,
}

/// A topic that records.
pub struct FakeTopic {
    name: TopicName,
    stored: Stored,
    state: Mutex<State>,
    keys: AtomicU64,
    changed: watch::Sender<u64>,
    /// Publishes are answered at once.
    pub answers: AtomicBool,
    /// Creations and durable acks wait for a permit each.
    pub gate: Semaphore,
    /// Creations are refused with this.
    pub refusal: Mutex<Option<TopicError>>,
}

impl FakeTopic {
    fn new(name: TopicName, stored: Stored) -> Self {
        Self {
            name,
            stored,
            state: Mutex::default(),
            keys: AtomicU64::new(1),
            changed: watch::channel(0).0,
            answers: AtomicBool::new(true),
            gate: Semaphore::new(Semaphore::MAX_PERMITS / 2),
            refusal: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn record(&self, call: Call) {
        self.state().calls.push(call);
        self.changed.send_modify(|count| *count += 1);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// Waits until the calls satisfy a condition.
    pub async fn until(&self, what: &str, condition: impl Fn(&[Call]) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !condition(&self.calls()) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await.is_err() {
            panic!("{what} did not happen; calls: {:?}", self.calls());
        }
    }

    pub async fn until_called(&self, call: Call) {
        self.until(&format!("{call:?}"), |calls| calls.contains(&call)).await;
    }

    /// Creations wait from now on, until [`Self::open_gate`].
    pub fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX >> 4);
    }

    pub fn open_gate(&self, permits: usize) {
        self.gate.add_permits(permits);
    }

    async fn pass_gate(&self) -> Result<(), TopicError> {
        self.gate.acquire().await.unwrap().forget();
        match self.refusal.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Answers everything that was published and not answered.
    pub fn answer_all(&self) -> usize {
        let unanswered = std::mem::take(&mut self.state().unanswered);
        for (key, receipt) in &unanswered {
            let (sink, id) = self.producer(*key);
            sink.receipts(id, &[*receipt]);
        }
        unanswered.len()
    }

    fn producer(&self, key: u64) -> (Arc<dyn ClientSink>, u64) {
        let state = self.state();
        let attached = &state.producers[&key];
        (attached.sink.clone(), attached.id)
    }

    /// The only producer's sink and id.
    pub fn only_producer(&self) -> (Arc<dyn ClientSink>, u64) {
        let state = self.state();
        let attached = state.producers.values().next().unwrap();
        (attached.sink.clone(), attached.id)
    }

    /// The only consumer's sink and id.
    pub fn only_consumer(&self) -> (Arc<dyn ClientSink>, u64) {
        let state = self.state();
        let attached = state.consumers.values().next().unwrap();
        (attached.sink.clone(), attached.id)
    }
}

/// One entry for a consumer.
pub fn delivery(entry: i64, payload: bytes::Bytes) -> Delivery {
    Delivery {
        position: Position::new(5, entry),
        redelivery_count: 0,
        ack_set: Vec::new(),
        consumer_epoch: None,
        index: entry as u64,
        broker_time_ms: 77,
        payload,
    }
}

fn not_faked<T>() -> Result<T, TopicError> {
    Err(TopicError::new(TopicErrorKind::Unknown, "not faked"))
}

impl TopicHandle for FakeTopic {
    fn name(&self) -> &TopicName {
        &self.name
    }

    fn add_producer(&self, request: ProducerRequest) -> BoxFuture<'_, Result<ProducerReady, TopicError>> {
        self.record(Call::AddProducer(request.name.clone()));
        Box::pin(async move {
            self.pass_gate().await?;
            let key = self.keys.fetch_add(1, Ordering::SeqCst);
            self.state().producers.insert(key, Attached { sink: request.sink, id: request.producer_id });
            let name = request.name;
            Ok(ProducerReady { key: ProducerKey(key), name, last_sequence_id: -1, topic_epoch: None, ready: true })
        })
    }

    fn publish(&self, producer: ProducerKey, batch: Vec<Publish>) {
        self.record(Call::Publish(batch.iter().map(|publish| publish.sequence_id).collect()));
        let mut receipts = Vec::new();
        {
            let mut state = self.state();
            for publish in batch {
                let position = Position::new(5, state.next_entry);
                state.next_entry += 1;
                receipts.push(Receipt {
                    sequence_id: publish.sequence_id,
                    highest_sequence_id: publish.highest_sequence_id.unwrap_or_default(),
                    position,
                });
            }
        }
        if self.answers.load(Ordering::SeqCst) {
            let (sink, id) = self.producer(producer.0);
            sink.receipts(id, &receipts);
        } else {
            self.state().unanswered.extend(receipts.into_iter().map(|receipt| (producer.0, receipt)));
        }
    }

    fn remove_producer(&self, producer: ProducerKey) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.record(Call::RemoveProducer(producer.0)) })
    }

    fn subscribe(&self, request: SubscribeRequest) -> BoxFuture<'_, Result<ConsumerKey, TopicError>> {
        self.record(Call::Subscribe(request.subscription.clone()));
        Box::pin(async move {
            if request.sub_type == meridian_topic::SubscriptionType::Failover {
                request.sink.active_consumer_changed(request.consumer_id, true);
            }
            self.pass_gate().await?;
            let key = self.keys.fetch_add(1, Ordering::SeqCst);
            self.state().consumers.insert(key, Attached { sink: request.sink, id: request.consumer_id });
            Ok(ConsumerKey(key))
        })
    }

    fn flow(&self, _consumer: ConsumerKey, permits: u32) {
        self.record(Call::Flow(permits));
    }

    fn ack(&self, _consumer: ConsumerKey, request: AckRequest) -> Option<BoxFuture<'static, Result<(), TopicError>>> {
        self.record(Call::Ack(request.ids.iter().map(|(position, _)| *position).collect()));
        request.receipt.then(|| -> BoxFuture<'static, Result<(), TopicError>> {
            let refusal = self.refusal.lock().unwrap().clone();
            Box::pin(async move { refusal.map_or(Ok(()), Err) })
        })
    }

    fn redeliver(&self, _consumer: ConsumerKey, ids: Vec<Position>, _consumer_epoch: Option<u64>) {
        self.record(Call::Redeliver(ids));
    }

    fn writable(&self, _consumer: ConsumerKey) {
        self.record(Call::Writable);
    }

    fn remove_consumer(&self, consumer: ConsumerKey) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.record(Call::RemoveConsumer(consumer.0)) })
    }

    fn unsubscribe(&self, _consumer: ConsumerKey, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        self.record(Call::Unsubscribe(force));
        Box::pin(async { Ok(()) })
    }

    fn seek(&self, consumer: ConsumerKey, to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        self.record(Call::Seek(to));
        Box::pin(async move {
            let attached = self.state().consumers.remove(&consumer.0).unwrap();
            attached.sink.close_consumer(attached.id);
            Ok(())
        })
    }

    fn last_message(&self, _consumer: ConsumerKey) -> BoxFuture<'_, Result<LastMessage, TopicError>> {
        Box::pin(async {
            Ok(LastMessage { position: Position::new(5, 8), batch_index: 3, mark_delete: Some(Position::EARLIEST) })
        })
    }

    fn consumer_stats(&self, _consumer: ConsumerKey) -> Option<(ConsumerStats, SubscriptionStats)> {
        None
    }

    fn stats(&self) -> TopicStats {
        TopicStats {
            messages_in: 0,
            bytes_in: 0,
            messages_out: 0,
            bytes_out: 0,
            rate_in: 0.0,
            throughput_in: 0.0,
            rate_out: 0.0,
            throughput_out: 0.0,
            average_message_bytes: 0.0,
            storage_bytes: 0,
            backlog_bytes: 0,
            backlog_quota: Default::default(),
            topic_epoch: None,
            deduplication: false,
            publish_latency_us_p50: 0,
            publish_latency_us_p99: 0,
            publish_limited_times: 0,
            publishes_waiting: 0,
            compaction: Default::default(),
            producers: Vec::new(),
            links: Vec::new(),
            waiting_producers: 0,
            subscriptions: Vec::new(),
            log: None,
            loaded_ms: 0,
            last_activity_ms: 0,
        }
    }

    fn set_limits(&self, _limits: TopicLimits) {}

    fn tick(&self, _now_ms: u64) {}

    fn create_subscription(
        &self,
        _name: String,
        _at: SeekTo,
        _properties: BTreeMap<String, String>,
        _replicated: bool,
    ) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn set_subscription_replicated(&self, _name: String, _on: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn delete_subscription(&self, _name: String, _force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn reset_subscription(&self, _name: String, _to: SeekTo) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn skip(&self, _name: String, _entries: Option<u64>) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn expire(&self, _name: String, _older_than_s: u64) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn peek(&self, _name: String, _nth: u64) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn entry(&self, _position: Position) -> BoxFuture<'_, Result<Option<LogEntry>, TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn compact(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn terminate(&self) -> BoxFuture<'_, Result<Position, TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn last_position(&self) -> Position {
        Position::EARLIEST
    }

    fn trim(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async { not_faked() })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), TopicError>> {
        let attached: Vec<_> = self.state().producers.drain().map(|(_, attached)| attached).collect();
        for producer in attached {
            producer.sink.close_producer(producer.id);
        }
        Box::pin(async { Ok(()) })
    }

    fn delete(&self, force: bool) -> BoxFuture<'_, Result<(), TopicError>> {
        let busy = !force && !self.state().producers.is_empty();
        Box::pin(async move {
            if busy {
                return Err(TopicError::new(TopicErrorKind::Busy, "Topic has active producers/subscriptions"));
            }
            self.stored.lock().unwrap().remove(&self.name);
            self.close().await
        })
    }
}

/// Makes fake topics and remembers which "are stored".
#[derive(Default)]
pub struct FakeFactory {
    topics: Mutex<HashMap<TopicName, Arc<FakeTopic>>>,
    stored: Stored,
    opened: AtomicU64,
    /// Opening waits while this is closed.
    pub slow: Mutex<Option<Arc<Semaphore>>>,
}

impl FakeFactory {
    pub fn topic(&self, name: &str) -> Arc<FakeTopic> {
        let name = TopicName::parse(name).unwrap();
        self.topics
            .lock()
            .unwrap()
            .entry(name.clone())
            .or_insert_with(|| Arc::new(FakeTopic::new(name, self.stored.clone())))
            .clone()
    }

    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }
}

impl TopicFactory for FakeFactory {
    fn open(
        &self,
        name: TopicName,
        _settings: TopicSettings,
    ) -> BoxFuture<'_, Result<Arc<dyn TopicHandle>, BrokerError>> {
        Box::pin(async move {
            let slow = self.slow.lock().unwrap().clone();
            if let Some(slow) = slow {
                slow.acquire().await.unwrap().forget();
            }
            self.opened.fetch_add(1, Ordering::SeqCst);
            if name.domain() == meridian_types::Domain::Persistent {
                self.stored.lock().unwrap().insert(name.clone());
            }
            let handle: Arc<dyn TopicHandle> = self.topic(name.as_str());
            Ok(handle)
        })
    }

    fn exists<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<bool, BrokerError>> {
        Box::pin(async move { Ok(self.stored.lock().unwrap().contains(name)) })
    }

    fn list<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<Vec<TopicName>, BrokerError>> {
        Box::pin(async move {
            let stored = self.stored.lock().unwrap();
            Ok(stored.iter().filter(|name| name.namespace() == *namespace).cloned().collect())
        })
    }

    fn delete<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            self.stored.lock().unwrap().remove(name);
            Ok(())
        })
    }

    fn set_log_settings(&self, _name: &TopicName, _settings: &LogSettings) {}

    fn properties(&self, _name: &TopicName) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn on_fenced(&self, _listener: meridian_broker::factory::FencedListener) {}

    fn set_properties<'a>(
        &'a self,
        _name: &'a TopicName,
        _properties: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    fn tick(&self, _now_ms: u64) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
