//! Links follow policies, clusters and the topic's life, over logs in memory.

use super::*;
use meridian_managed_ledger::testing::TestRegion;
use meridian_managed_ledger::{AppendRequest, Appended, LogSettings, LogSink, ManagedLedgers};
use meridian_policy::{BrokerDefaults, DispatchRate, Policies, TopicPolicies, resolve};
use meridian_topic::{BrokerLimits, NonPersistentTopic, SystemClock};
use std::sync::atomic::AtomicUsize;

const STOP_LIMIT: Duration = Duration::from_millis(20);

struct NoSink;

impl LogSink for NoSink {
    fn appended(&self, _: &[Appended]) {}
    fn append_failed(&self, _: &[u64], _: &LogError) {}
}

/// Policies, clusters and open logs of a test.
#[derive(Default)]
struct World {
    clusters: Mutex<BTreeMap<String, Arc<ClusterData>>>,
    named: Mutex<BTreeSet<String>>,
    logs: Mutex<HashMap<TopicName, Arc<ManagedLedger>>>,
    live: Mutex<HashMap<TopicName, Arc<dyn TopicHandle>>>,
    rate: Mutex<Option<DispatchRate>>,
    published: Mutex<(u64, u64)>,
}

impl Surroundings for World {
    fn policies(&self, _: &TopicName) -> EffectivePolicies {
        let policies = Policies { replication_clusters: self.named.lock().clone(), ..Policies::default() };
        let topic = TopicPolicies { replicator_dispatch_rate: *self.rate.lock(), ..TopicPolicies::default() };
        resolve(Some(&topic), &policies, &BrokerDefaults::default())
    }

    fn cluster(&self, name: &str) -> Option<Arc<ClusterData>> {
        self.clusters.lock().get(name).cloned()
    }

    fn feed(&self, topic: &TopicName) -> Option<Feed> {
        let live = || self.live.lock().get(topic).cloned().map(Feed::Live);
        self.logs.lock().get(topic).cloned().map(Feed::Log).or_else(live)
    }

    fn published(&self, _: &TopicName) -> (u64, u64) {
        *self.published.lock()
    }
}

impl World {
    fn name(&self, clusters: &[&str]) {
        *self.named.lock() = clusters.iter().map(|name| (*name).to_owned()).collect();
    }

    fn register(&self, name: &str, url: &str) {
        let data = ClusterData { broker_service_url: Some(url.to_owned()), ..ClusterData::default() };
        self.clusters.lock().insert(name.to_owned(), Arc::new(data));
    }
}

/// Starts links that record.
#[derive(Default)]
struct Recorder {
    lines: Arc<Mutex<Vec<String>>>,
    /// Links never stop.
    stuck: AtomicBool,
    starts: AtomicUsize,
    /// Rates that links were given.
    rates: Arc<Mutex<Vec<(u64, u64)>>>,
}

struct Recorded {
    remote: String,
    lines: Arc<Mutex<Vec<String>>>,
    stuck: bool,
    rates: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Link for Recorded {
    fn set_policies(&self, policies: &EffectivePolicies) {
        self.rates.lock().push(policies.replicator_dispatch_rate);
    }

    fn figures(&self) -> ReplicationFigures {
        ReplicationFigures { remote: self.remote.clone(), state: "running".to_owned(), ..Default::default() }
    }

    fn cursor_moved(&self) {
        self.lines.lock().push(format!("moved {}", self.remote));
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.lines.lock().push(format!("stop {}", self.remote));
        match self.stuck {
            true => Box::pin(std::future::pending()),
            false => Box::pin(std::future::ready(())),
        }
    }
}

impl Linker for Recorder {
    fn start(&self, request: LinkRequest) -> BoxFuture<'_, Result<Arc<dyn Link>, String>> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        let url = request.cluster.broker_service_url.clone().unwrap_or_default();
        let stuck = self.stuck.load(Ordering::SeqCst);
        Box::pin(async move {
            let name = cursor_name(&request.remote);
            let (lines, rates) = (self.lines.clone(), self.rates.clone());
            let Feed::Log(log) = &request.feed else {
                self.lines.lock().push(format!("start {} {url} live", request.remote));
                return Ok(Arc::new(Recorded { remote: request.remote, lines, stuck, rates }) as Arc<dyn Link>);
            };
            let begins = if log.cursor(&name).is_none() { " new" } else { "" };
            self.lines.lock().push(format!("start {} {url}{begins}", request.remote));
            let options = CursorOptions { durable: true, internal: true, ..Default::default() };
            log.open_cursor(&name, InitialPosition::Earliest, options).await.map_err(|error| error.to_string())?;
            let link: Arc<dyn Link> = Arc::new(Recorded { remote: request.remote, lines, stuck, rates });
            Ok(link)
        })
    }
}

struct Bench {
    world: Arc<World>,
    recorder: Arc<Recorder>,
    replication: Arc<Replication>,
    logs: Arc<ManagedLedgers>,
    topic: TopicName,
}

impl Bench {
    async fn new() -> Self {
        let logs = TestRegion::default().broker();
        let (world, recorder) = (Arc::new(World::default()), Arc::new(Recorder::default()));
        world.register("east", "pulsar://east:6650");
        let replication =
            Replication::new("west".to_owned(), InitialPosition::Earliest, STOP_LIMIT, world.clone(), recorder.clone());
        let topic = TopicName::parse("persistent://t/n/x").unwrap();
        let bench = Self { world, recorder, replication, logs, topic };
        bench.open().await;
        bench
    }

    async fn open(&self) {
        let log = self.logs.open("t/n/persistent/x", LogSettings::default(), Arc::new(NoSink)).await.unwrap();
        self.world.logs.lock().insert(self.topic.clone(), log);
    }

    fn log(&self) -> Arc<ManagedLedger> {
        self.world.logs.lock()[&self.topic].clone()
    }

    async fn follow(&self) -> Vec<String> {
        self.replication.followed(&self.topic).await;
        std::mem::take(&mut *self.recorder.lines.lock())
    }

    fn cursors(&self) -> Vec<String> {
        self.log().cursors().iter().map(|cursor| cursor.name().to_owned()).collect()
    }
}

#[tokio::test]
async fn links_begin_and_end_with_the_policies() {
    let bench = Bench::new().await;
    assert!(bench.follow().await.is_empty());
    assert!(bench.replication.topics().is_empty(), "a topic that is not replicated costs nothing");
    bench.world.name(&["west", "east"]);
    assert_eq!(bench.follow().await, ["start east pulsar://east:6650 new"]);
    assert!(bench.follow().await.is_empty());
    assert_eq!(bench.cursors(), ["pulsar.repl.east"]);
    bench.world.name(&["west"]);
    assert_eq!(bench.follow().await, ["stop east"]);
    assert!(bench.cursors().is_empty());
    assert!(bench.replication.topics().is_empty());
}

#[tokio::test]
async fn a_relative_rate_of_links_stands_on_what_is_published() {
    let bench = Bench::new().await;
    let set = |relative_to_publish_rate| {
        let rate = DispatchRate { dispatch_throttling_rate_in_msg: 10, relative_to_publish_rate, ..Default::default() };
        *bench.world.rate.lock() = Some(rate);
    };
    let given = || std::mem::take(&mut *bench.recorder.rates.lock());
    bench.world.name(&["west", "east"]);
    *bench.world.published.lock() = (7, 700);
    set(false);
    bench.follow().await;
    bench.replication.follow_published();
    assert_eq!(given(), [(10, 0)], "set once, and left alone");
    set(true);
    bench.follow().await;
    *bench.world.published.lock() = (90, 9000);
    bench.replication.follow_published();
    assert_eq!(given(), [(17, 0), (100, 0)]);
    set(false);
    bench.follow().await;
    bench.replication.follow_published();
    assert_eq!(given(), [(10, 0)]);
}

#[tokio::test]
async fn an_unregistered_region_has_a_cursor_and_a_reason() {
    let bench = Bench::new().await;
    bench.world.name(&["west", "north"]);
    assert!(bench.follow().await.is_empty());
    assert_eq!(bench.cursors(), ["pulsar.repl.north"], "H6");
    let figures = bench.replication.figures(&bench.topic);
    assert_eq!(figures[0].state, "refused: cluster north is not registered here");
    let request =
        AppendRequest { payload: bytes::Bytes::from_static(b"x"), messages: 1, marker: false, origin: None, token: 1 };
    bench.log().append(vec![request]);
    bench.log().wait_beyond(bench.log().previous(bench.log().first_position())).await.unwrap();
    assert!(bench.replication.has_backlog(&bench.topic));
    bench.world.register("north", "pulsar://north:6650");
    assert_eq!(bench.follow().await, ["start north pulsar://north:6650"]);
    bench.replication.clear_backlog(&bench.topic, "north").await.unwrap();
    assert!(!bench.replication.has_backlog(&bench.topic));
    assert_eq!(*bench.recorder.lines.lock(), ["moved north"]);
    let missing = bench.replication.clear_backlog(&bench.topic, "south").await;
    assert!(matches!(missing, Err(BrokerError::TopicNotFound(_))));
}

#[tokio::test]
async fn a_region_that_moved_is_dialled_anew_without_losing_its_place() {
    let bench = Bench::new().await;
    bench.world.name(&["west", "east"]);
    bench.follow().await;
    bench.world.register("east", "pulsar://east-2:6650");
    assert_eq!(bench.follow().await, ["stop east", "start east pulsar://east-2:6650"]);
}

/// B017: only a policy deletes a cursor; closing and opening a topic does not.
#[tokio::test]
async fn b017_a_cursor_survives_the_topics_unload() {
    let bench = Bench::new().await;
    bench.world.name(&["west", "east"]);
    bench.follow().await;
    let ended = bench.replication.stop(&bench.topic).await;
    assert!(bench.follow().await.ends_with(&["stop east".to_owned()]), "H7: nothing starts while it closes");
    bench.log().close().await.unwrap();
    drop(ended);
    bench.open().await;
    assert_eq!(bench.follow().await, ["start east pulsar://east:6650"], "not a new cursor");
}

/// B008: a link whose connection is cut does not hold up the unload.
#[tokio::test]
async fn b008_an_unload_ends_although_a_link_does_not() {
    let bench = Bench::new().await;
    bench.recorder.stuck.store(true, Ordering::SeqCst);
    bench.world.name(&["west", "east"]);
    bench.follow().await;
    let ended = tokio::time::timeout(STOP_LIMIT * 100, bench.replication.stop(&bench.topic)).await;
    assert!(ended.is_ok());
    assert!(bench.replication.topics().is_empty());
}

fn live_topic() -> Arc<dyn TopicHandle> {
    let name = TopicName::parse("non-persistent://t/n/x").unwrap();
    let limits = crate::config::default_topic_limits();
    NonPersistentTopic::new(name, limits, BrokerLimits::default(), Arc::new(SystemClock))
}

#[tokio::test]
async fn a_topic_that_keeps_nothing_has_links_from_its_opening_to_its_end() {
    let bench = Bench::new().await;
    let topic = live_topic();
    let lines = || std::mem::take(&mut *bench.recorder.lines.lock());
    bench.replication.opening(&topic).await;
    assert!(bench.replication.topics().is_empty(), "a topic that is not replicated costs nothing");
    bench.world.live.lock().insert(topic.name().clone(), topic.clone());
    bench.world.name(&["west", "east"]);
    bench.replication.followed(topic.name()).await;
    assert_eq!(lines(), ["start east pulsar://east:6650 live"], "switched on while it is open");
    assert!(!bench.replication.has_backlog(topic.name()));
    let missing = bench.replication.clear_backlog(topic.name(), "east").await;
    assert!(matches!(missing, Err(BrokerError::TopicNotFound(_))), "there is none to clear");
    bench.world.name(&["west", "east", "north"]);
    bench.replication.followed(topic.name()).await;
    assert!(lines().is_empty());
    let figures = bench.replication.figures(topic.name());
    assert_eq!(figures[1].state, "refused: cluster north is not registered here");
    bench.world.name(&["west"]);
    bench.replication.followed(topic.name()).await;
    assert_eq!(lines(), ["stop east"]);
    assert!(bench.replication.topics().is_empty(), "a switch off removes it");
}

#[tokio::test]
async fn a_topic_that_is_opened_anew_is_the_one_that_is_copied() {
    let bench = Bench::new().await;
    bench.world.name(&["west", "east"]);
    let (first, second) = (live_topic(), live_topic());
    bench.replication.opening(&first).await;
    bench.replication.opening(&first).await;
    assert_eq!(
        *bench.recorder.lines.lock(),
        ["start east pulsar://east:6650 live"],
        "before anybody finds it, and once"
    );
    bench.recorder.lines.lock().clear();
    bench.replication.opening(&second).await;
    assert_eq!(*bench.recorder.lines.lock(), ["stop east", "start east pulsar://east:6650 live"]);
    drop(bench.replication.stop(second.name()).await);
    assert!(bench.replication.topics().is_empty());
}
