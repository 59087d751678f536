//! A link over a real log and a real socket.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod broker;
mod live;

use broker::Broker;
use bytes::{Bytes, BytesMut};
use meridian_client::backoff::BackoffLimits;
use meridian_client::{Peer, PeerPool};
use meridian_managed_ledger::testing::{RecordingSink, TestRegion};
use meridian_managed_ledger::{
    AppendRequest, CacheSettings, InitialPosition, LogSettings, ManagedLedger, ManagedLedgers,
};
use meridian_replicator::{
    Bounds, BoxFuture, LinkLimits, LocalSchemas, LogSource, MarkerSink, PulsarRemote, ReadBudget, Replicator,
    ReplicatorParts, SeenMarker,
};
use meridian_types::{Position, RegionId, TopicName};
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{encode, split};
use meridian_wire::proto::{MessageMetadata, Schema};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PATIENCE: Duration = Duration::from_secs(30);
const NAME: &str = "public/default/persistent/orders";

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} does not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The topic has one schema, of version [1].
struct OneSchema;

impl LocalSchemas for OneSchema {
    fn schema(&self, version: Bytes) -> BoxFuture<'static, Result<Option<Schema>, String>> {
        Box::pin(async move { Ok((version[..] == [1]).then(Schema::default)) })
    }

    fn latest(&self) -> BoxFuture<'static, Result<Option<Schema>, String>> {
        Box::pin(async { Ok(None) })
    }
}

struct NoMarkers;

impl MarkerSink for NoMarkers {
    fn marker(&self, _remote: &str, _marker: SeenMarker) {}
}

/// The region `west` with one topic.
struct West {
    log: Arc<ManagedLedger>,
    sink: Arc<RecordingSink>,
    sent: u64,
    budget: Arc<ReadBudget>,
    caches: Arc<ManagedLedgers>,
}

impl West {
    async fn start(caches: CacheSettings, settings: LogSettings) -> Self {
        let region = TestRegion::default();
        let ledgers = Arc::new(region.ledgers.clone());
        let broker = ManagedLedgers::new(ledgers, region.metadata.clone(), caches, RegionId::of("west"));
        let sink = Arc::new(RecordingSink::default());
        let log = broker.open(NAME, settings, sink.clone()).await.unwrap();
        Self { log, sink, sent: 0, budget: Arc::new(ReadBudget::new(1 << 20)), caches: broker }
    }

    async fn plain() -> Self {
        Self::start(CacheSettings::default(), LogSettings::default()).await
    }

    /// Appends messages whose payloads are their numbers, without a schema or with one.
    async fn publish(&mut self, count: u64, schema_version: Option<&'static [u8]>) {
        let request = |number: u64| {
            let metadata = MessageMetadata {
                producer_name: "p".into(),
                sequence_id: number,
                publish_time: now_ms(),
                schema_version: schema_version.map(Bytes::from_static),
                ..Default::default()
            };
            let mut payload = BytesMut::new();
            encode(&metadata, number.to_string().as_bytes(), &mut payload);
            AppendRequest { payload: payload.freeze(), messages: 1, marker: false, origin: None, token: number }
        };
        self.log.append((self.sent..self.sent + count).map(request).collect());
        self.sent += count;
        self.sink.answered(self.sent as usize).await;
    }

    async fn link(&self, east: &Broker, bounds: Bounds, limits: LinkLimits) -> Arc<Replicator> {
        let topic = TopicName::parse("persistent://public/default/orders").unwrap();
        let start = InitialPosition::Earliest;
        let source = LogSource::open(self.log.clone(), "east", start, self.budget.clone()).await.unwrap();
        let mut peer = Peer::new(&east.url).unwrap();
        peer.limits.backoff = BackoffLimits { min_ms: 1, max_ms: 20 };
        let target = PulsarRemote {
            pool: PeerPool::new(peer),
            topic: topic.clone(),
            partitions: 0,
            incarnation: self.log.incarnation(),
            local: "west".into(),
            remote: "east".into(),
            metadata: vec![("meridian.epoch".into(), "7".into())],
            max_waiting_entries: bounds.max_waiting_entries,
            max_waiting_bytes: bounds.max_waiting_bytes,
            schemas: Arc::new(OneSchema),
            maker: None,
        };
        Replicator::start(ReplicatorParts {
            topic,
            local: "west".into(),
            remote: "east".into(),
            source,
            target: Arc::new(target),
            schemas: Arc::new(OneSchema),
            markers: Arc::new(NoMarkers),
            bounds,
            limits,
            shared: None,
            clock: Arc::new(now_ms),
        })
    }
}

fn quick() -> Bounds {
    Bounds { min_backoff_ms: 5, max_backoff_ms: 50, ..Bounds::default() }
}

fn numbers(count: u64) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn a_topic_is_copied_in_order_and_names_its_source() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    west.publish(3, None).await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("the backlog is copied", || link.backlog_entries() == 0).await;
    for _ in 0..20 {
        west.publish(50, None).await;
    }
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!(east.texts(), numbers(1003));
    {
        let state = east.state.lock();
        let producer = &state.producers[0];
        assert_eq!(producer.producer_name.as_deref(), Some("pulsar.repl.west-->east"));
        let said = |key: &str| producer.metadata.iter().find(|pair| pair.key == key).map(|pair| pair.value.clone());
        assert_eq!(said("meridian.region").as_deref(), Some("west"));
        assert_eq!(said("meridian.epoch").as_deref(), Some("7"));
        assert_eq!(said("meridian.incarnation"), Some(west.log.incarnation().0.to_string()));
        let summary = MetadataSummary::decode(split(&state.stored[0].1).unwrap().metadata).unwrap();
        assert_eq!((summary.replicated_from, summary.producer_name), (Some("west"), "p"));
    }
    let stats = link.stats();
    assert_eq!((stats.state.to_string().as_str(), stats.connected), ("running", true));
    assert_eq!((stats.counters.messages_stored, stats.replication_delay_ms), (1003, 0));
    link.stop().await;
    assert_eq!(link.stats().state.word(), "stopped");
}

/// B002, B003: the link resumes on its own when the remote has room again.
#[tokio::test]
async fn b003_a_refusing_remote_is_tried_until_it_takes() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    west.publish(100, None).await;
    for round in 2..12 {
        east.state.lock().refuse = Some("backlog quota exceeded");
        west.publish(100, None).await;
        eventually("the refusal is shown", || link.stats().state.to_string().contains("backlog quota exceeded")).await;
        east.state.lock().refuse = None;
        eventually("everything is copied", || link.backlog_entries() == 0).await;
        assert_eq!(east.texts(), numbers(round * 100));
    }
    assert_eq!((link.stats().state.word(), link.stats().waiting_entries), ("running", 0));
}

/// B012 against Pulsar: it stores what stands behind a refused message and calls that one a duplicate from then on.
#[tokio::test]
async fn b012_a_refused_message_is_not_lost_at_a_pulsar_peer() {
    let east = Broker::start().await;
    east.state.lock().pulsar = true;
    let mut west = West::plain().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    for round in 1..6u64 {
        east.state.lock().refuse_once = Some(["20", "120", "220", "320", "420"][round as usize - 1]);
        west.publish(100, None).await;
        eventually("everything is through", || link.backlog_entries() == 0).await;
        let mut texts = east.texts();
        texts.sort_by_key(|text| text.parse::<u64>().unwrap());
        assert_eq!(texts, numbers(round * 100));
    }
    let generation = link.stats().generation;
    assert!(generation > 0, "{:?}", link.stats());
    link.stop().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("a producer is open again", || link.is_connected()).await;
    let name = east.state.lock().producers.last().unwrap().producer_name.clone();
    assert_eq!(name, Some(format!("pulsar.repl.west-->east-->{generation}")), "the name outlives the link");
}

/// B005, B024: connections that are reset again and again under load.
#[tokio::test]
async fn b005_everything_arrives_once_over_a_flapping_connection() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    for _ in 0..40 {
        let stored = east.state.lock().stored.len();
        west.publish(100, None).await;
        eventually("something is copied", || east.state.lock().stored.len() > stored).await;
        east.cut();
    }
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!(east.texts(), numbers(4000));
    assert!(link.stats().counters.disconnected > 0);
}

/// B011: silence is shown, and ended by a restart that is counted.
#[tokio::test]
async fn b011_a_silent_remote_is_noticed_and_the_link_recovers_alone() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    let bounds = Bounds { stalled_after_ms: 50, restart_after_ms: 200, ..quick() };
    let link = west.link(&east, bounds, LinkLimits::default()).await;
    east.state.lock().silent = true;
    west.publish(10, None).await;
    eventually("silence is shown", || link.stats().state.word() == "stalled").await;
    assert!(link.stats().replication_delay_ms > 0);
    eventually("the link is restarted", || link.stats().counters.restarts > 0).await;
    east.state.lock().silent = false;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!((east.texts(), link.stats().state.word()), (numbers(10), "running"));
}

/// B008: a stop ends within its bound whatever the remote does; the next link goes on where this one was.
#[tokio::test]
async fn b008_a_link_stops_in_time_and_the_next_one_goes_on() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    west.publish(50, None).await;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    east.state.lock().silent = true;
    west.publish(50, None).await;
    link.stop().await;
    east.state.lock().silent = false;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!(east.texts(), numbers(100));
    assert_eq!(link.stats().counters.messages_stored, 50);
}

/// B032: a topic of another shape is not copied into, and the link says so.
#[tokio::test]
async fn b032_partition_counts_are_compared_first() {
    let east = Broker::start().await;
    east.state.lock().partitions = 4;
    let mut west = West::plain().await;
    west.publish(1, None).await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("the mismatch is shown", || link.stats().state.to_string() == "partition-mismatch: 0 here, 4 there")
        .await;
    assert!(east.state.lock().producers.is_empty());
    east.state.lock().partitions = 0;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
}

/// B015: a schema that the remote refuses stops the link at that message; the rest follows in order when it is taken.
#[tokio::test]
async fn b015_schemas_are_brought_over_before_their_messages() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    east.state.lock().refuse_schemas = Some("updates are off");
    west.publish(1, None).await;
    west.publish(1, Some(&[1])).await;
    west.publish(1, None).await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("the reason is shown", || link.stats().state.to_string().contains("updates are off")).await;
    assert_eq!((east.texts(), link.stats().state.word()), (numbers(1), "schema-blocked"));
    east.state.lock().refuse_schemas = None;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!(east.texts(), numbers(3));
    let state = east.state.lock();
    let summary = MetadataSummary::decode(split(&state.stored[1].1).unwrap().metadata).unwrap();
    assert_eq!(summary.schema_version, Some(&[0, 0, 0, 0, 0, 0, 0, 42][..]), "the remote's version");
}

/// Messages that were removed before they were copied are counted, exactly.
#[tokio::test]
async fn what_is_removed_before_it_is_copied_is_counted() {
    let east = Broker::start().await;
    let settings = LogSettings { max_entries_per_ledger: 10, min_rollover_ms: 0, ..LogSettings::default() };
    let caches = CacheSettings { tail_bytes: 1, ..CacheSettings::default() };
    let mut west = West::start(caches, settings).await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    west.publish(5, None).await;
    eventually("the first ones are copied", || link.backlog_entries() == 0).await;
    east.state.lock().refuse = Some("full");
    west.publish(40, None).await;
    eventually("the refusal is shown", || link.stats().state.word() == "refused").await;
    west.log.truncate().await.unwrap();
    west.publish(5, None).await;
    east.state.lock().refuse = None;
    eventually("the rest is copied", || link.backlog_entries() == 0).await;
    let counters = link.stats().counters;
    let copied = east.texts().len() as u64;
    assert_eq!((copied + counters.gap_messages, counters.gap_messages > 0), (50, true), "{counters:?}");
}

/// B018: time to live is applied when a message would be sent, and counted.
#[tokio::test]
async fn b018_what_expires_is_counted() {
    let east = Broker::start().await;
    east.state.lock().refuse = Some("later");
    let mut west = West::plain().await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    west.publish(20, None).await;
    eventually("the refusal is shown", || link.stats().state.word() == "refused").await;
    link.set_limits(LinkLimits { ttl_ms: Some(0), ..LinkLimits::default() });
    eventually("all have expired", || link.backlog_entries() == 0).await;
    assert_eq!((link.stats().counters.messages_expired, east.texts().len()), (20, 0));
}

/// B044: a link keeps its limit, and says that it does.
#[tokio::test]
async fn b044_a_limited_link_keeps_its_rate() {
    let east = Broker::start().await;
    let mut west = West::plain().await;
    west.publish(300, None).await;
    let started = tokio::time::Instant::now();
    let limits = LinkLimits { messages_per_second: 100, ..LinkLimits::default() };
    let link = west.link(&east, quick(), limits).await;
    eventually("the limit is shown", || link.stats().state.word() == "throttled").await;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    let seconds = started.elapsed().as_secs_f64();
    // One second's worth goes at once.
    assert!(seconds >= 1.8, "{seconds}");
    assert_eq!(east.texts(), numbers(300));
}

/// A remote that lags reads past the tail cache, within its budget, and gives it back.
#[tokio::test]
async fn a_lagging_link_reads_from_storage_within_its_budget() {
    let east = Broker::start().await;
    let caches = CacheSettings { tail_bytes: 4096, read_ahead_entries: 50, ..CacheSettings::default() };
    let mut west = West::start(caches, LogSettings::default()).await;
    west.publish(2000, None).await;
    let link = west.link(&east, quick(), LinkLimits::default()).await;
    eventually("everything is copied", || link.backlog_entries() == 0).await;
    assert_eq!(east.texts(), numbers(2000));
    assert!(west.caches.cache_stats().storage_reads > 0);
    let budget = west.budget.clone();
    eventually("the budget is free again", || budget.free_bytes() == 1 << 20).await;
    assert_eq!(west.log.cursor("pulsar.repl.east").unwrap().read_start(), west.log.last_confirmed().next_in_ledger());
    assert!(west.log.last_confirmed() > Position::EARLIEST);
}
