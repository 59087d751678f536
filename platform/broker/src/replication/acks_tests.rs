//! Two brokers' exchanges over a link that the test is, with topics on memory.

use super::*;
use bytes::Bytes;
use meridian_managed_ledger::LogSettings;
use meridian_managed_ledger::testing::TestRegion;
use meridian_policy::{BrokerDefaults, Policies, TopicPolicies, resolve};
use meridian_topic::{BrokerLimits, Clock, PersistentTopic, SeekTo, TopicDeps, TopicEvents};
use meridian_types::Position;
use std::time::Instant;

struct TestClock(TestRegion);

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn monotonic_us(&self) -> u64 {
        self.0.now_ms() * 1000
    }
}

struct NoEvents;

impl TopicEvents for NoEvents {
    fn fenced(&self, _: &TopicName, _: &str) {}
}

/// A broker with one topic; counts how often its link was called.
struct Side {
    name: &'static str,
    topic: Arc<PersistentTopic>,
    exchange: Arc<AckExchange>,
    called: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
    /// Topics that were to be opened.
    got: Mutex<Vec<TopicName>>,
    /// The topic is not there (yet).
    absent: Mutex<bool>,
    /// Another broker has it.
    moved: Mutex<bool>,
    passed_on: Mutex<Vec<String>>,
}

impl AckTopics for Side {
    fn open(&self, name: &TopicName) -> Option<Arc<dyn TopicHandle>> {
        (name == self.topic.name()).then(|| self.topic.clone() as Arc<dyn TopicHandle>)
    }

    fn all_open(&self) -> Vec<Arc<dyn TopicHandle>> {
        vec![self.topic.clone()]
    }

    fn snapshot_setup(&self, _: &TopicName) -> Option<SnapshotSetup> {
        None
    }

    fn shares(&self, region: &str, name: &TopicName) -> bool {
        name == self.topic.name() && ["east", "west"].contains(&region)
    }

    fn get<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<Arc<dyn TopicHandle>, BrokerError>> {
        Box::pin(async move {
            self.got.lock().push(name.clone());
            if *self.moved.lock() {
                return Err(BrokerError::Elsewhere { topic: name.to_string(), broker: Arc::default() });
            }
            let found = self.open(name).filter(|_| !*self.absent.lock());
            found.ok_or_else(|| BrokerError::TopicNotFound(name.to_string()))
        })
    }

    fn pass_on<'a>(&'a self, _: &'a BrokerRecord, from: &'a str, delta: AckDelta) -> BoxFuture<'a, AckOutcome> {
        self.passed_on.lock().push(format!("{from} {} {}", delta.topic, delta.subscription));
        Box::pin(std::future::ready(AckOutcome::Stored))
    }

    fn resync_elsewhere(&self, peer: &str, topic: &str, subscription: &str) {
        self.passed_on.lock().push(format!("again {peer} {topic} {subscription}"));
    }
}

impl AckLink for Side {
    fn acks_ready(&self, region: &str) {
        self.called.lock().push(region.to_owned());
    }

    fn request_all(&self, region: &str) {
        self.asked.lock().push(region.to_owned());
    }
}

fn topic_name() -> TopicName {
    TopicName::parse("persistent://public/default/t").expect("a good name")
}

impl Side {
    async fn new(name: &'static str) -> Arc<Self> {
        let region = TestRegion::of(RegionId::of(name));
        let deps = Arc::new(TopicDeps {
            clock: Arc::new(TestClock(region.clone())),
            runtime: tokio::runtime::Handle::current(),
            events: Arc::new(NoEvents),
            ledgers: Arc::new(region.ledgers.clone()),
            compaction_keeps_keyless: true,
            expiry_check_ms: 1000,
            quota_check_ms: 1000,
            close_deadline_ms: 5000,
            fence_deadline_ms: 5000,
            compaction_check_ms: 1000,
            limits: BrokerLimits::default(),
        });
        let limits = crate::config::default_topic_limits();
        let opened = PersistentTopic::open(topic_name(), &region.broker(), LogSettings::default(), limits, deps).await;
        let side = Arc::new(Self {
            name,
            topic: opened.expect("the topic opens"),
            exchange: AckExchange::new(name),
            called: Mutex::default(),
            asked: Mutex::default(),
            got: Mutex::default(),
            absent: Mutex::new(false),
            moved: Mutex::new(false),
            passed_on: Mutex::default(),
        });
        let topics: Arc<dyn AckTopics> = side.clone();
        let link: Arc<dyn AckLink> = side.clone();
        side.exchange.connect(topics, Arc::downgrade(&link));
        let policies = Policies {
            replication_clusters: ["east", "west"].map(str::to_owned).into_iter().collect(),
            replicate_subscription_state: Some(true),
            ..Policies::default()
        };
        side.exchange
            .follow(&*side.topic, &resolve(Some(&TopicPolicies::default()), &policies, &BrokerDefaults::default()));
        side
    }

    async fn tell(&self, other: &Side) {
        let deltas = self.exchange.take(other.name, 1 << 20);
        let tokens: Vec<u64> = deltas.iter().map(|delta| delta.token).collect();
        let outcomes = other.exchange.apply(self.name, deltas).await;
        for (token, outcome) in tokens.into_iter().zip(outcomes) {
            self.exchange.confirmed(other.name, token, outcome);
        }
    }

    fn subscriptions(&self) -> Vec<String> {
        self.topic.stats().subscriptions.into_iter().map(|one| one.name).collect()
    }
}

async fn until(west: &Side, east: &Side, what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !check() {
        assert!(Instant::now() < deadline, "{what}: {:?} {:?}", west.subscriptions(), east.subscriptions());
        if west.called.lock().contains(&east.name.to_owned()) {
            west.tell(east).await;
        }
        east.tell(west).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn subscribe(side: &Side, name: &str) {
    let at = SeekTo::Position(Position::EARLIEST, Vec::new());
    let created = side.topic.create_subscription(name.to_owned(), at, BTreeMap::new(), false).await;
    created.expect("created");
}

#[tokio::test]
async fn a_policy_shares_every_subscription_and_the_link_is_called() {
    let (west, east) = (Side::new("west").await, Side::new("east").await);
    subscribe(&west, "one").await;
    subscribe(&west, "two").await;
    until(&west, &east, "both are in east", || east.subscriptions() == ["one", "two"]).await;
    let settled = || {
        let all = west.topic.stats().subscriptions;
        all.iter()
            .all(|one| one.acks.as_ref().is_some_and(|acks| acks.peers.iter().all(|(_, lag)| lag.since_ms.is_none())))
    };
    until(&west, &east, "everything is confirmed", settled).await;
    assert!(west.exchange.take("east", 1 << 20).is_empty());
    // A peer that lost everything asks for everything.
    west.exchange.resync("east", "", "");
    assert_eq!(west.exchange.take("east", 1 << 20).len(), 2);
    // Nothing sent before a new connection counts as confirmed.
    west.exchange.disconnected("east");
    west.exchange.connected("east");
    assert_eq!(west.exchange.take("east", 1 << 20).len(), 2);
    // It is asked for what it knows until it has said something.
    let asked = west.asked.lock().len();
    west.exchange.connected("east");
    assert_eq!(west.asked.lock().len(), asked + 1);
    west.exchange.apply("east", Vec::new()).await;
    west.exchange.connected("east");
    assert_eq!(west.asked.lock().len(), asked + 1);
}

#[tokio::test]
async fn what_comes_before_its_topic_is_offered_again() {
    let (west, east) = (Side::new("west").await, Side::new("east").await);
    *east.absent.lock() = true;
    subscribe(&west, "one").await;
    until(&west, &east, "it was offered", || west.called.lock().contains(&"east".to_owned())).await;
    west.tell(&east).await;
    assert!(east.subscriptions().is_empty());
    *east.absent.lock() = false;
    until(&west, &east, "it is there", || east.subscriptions() == ["one"]).await;
}

#[tokio::test]
async fn what_is_of_another_brokers_topic_is_merged_there() {
    let (west, east) = (Side::new("west").await, Side::new("east").await);
    *east.moved.lock() = true;
    subscribe(&west, "one").await;
    let settled = || {
        let all = west.topic.stats().subscriptions;
        all.iter()
            .all(|one| one.acks.as_ref().is_some_and(|acks| acks.peers.iter().all(|(_, lag)| lag.since_ms.is_none())))
    };
    until(&west, &east, "it is confirmed", || !east.passed_on.lock().is_empty() && settled()).await;
    assert_eq!(east.passed_on.lock()[0], format!("west {} one", topic_name()));
    assert!(east.subscriptions().is_empty(), "nothing is merged where the topic is not served");
    let delta = AckDelta {
        token: 0,
        topic: topic_name().to_string(),
        subscription: "one".to_owned(),
        full: false,
        payload: Bytes::new(),
    };
    assert!(east.exchange.receive_here("west", delta).await.is_err(), "who is asked by a colleague asks nobody else");
    // What a region asks for, every broker tells.
    east.passed_on.lock().clear();
    east.exchange.resync("west", "", "");
    assert_eq!(*east.passed_on.lock(), ["again west  "]);
}

#[tokio::test]
async fn nonsense_is_refused() {
    let east = Side::new("east").await;
    let delta = |topic: &str, payload: &'static [u8]| AckDelta {
        token: 1,
        topic: topic.to_owned(),
        subscription: "s".to_owned(),
        full: false,
        payload: payload.into(),
    };
    let outcomes =
        east.exchange.apply("west", vec![delta("persistent://a", &[]), delta(topic_name().as_str(), &[7])]).await;
    assert!(outcomes.iter().all(|one| matches!(one, AckOutcome::Refused(_))), "{outcomes:?}");
}

#[tokio::test]
async fn a_region_opens_and_learns_nothing_of_topics_that_it_has_no_part_in() {
    let west = Side::new("west").await;
    subscribe(&west, "one").await;
    let begun = Instant::now();
    let payload = loop {
        if let Some(part) = west.exchange.take("east", 1 << 20).pop() {
            break part.payload;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "a subscription is told of");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let delta = |topic: &str| AckDelta {
        token: 1,
        topic: topic.to_owned(),
        subscription: "two".to_owned(),
        full: false,
        payload: payload.clone(),
    };
    // One that is there, and one that is not.
    let (there, absent) = (topic_name(), "persistent://public/default/u");
    let outcomes = west.exchange.apply("north", vec![delta(there.as_str()), delta(absent)]).await;
    let told = |topic: &str| AckOutcome::Later(format!("{topic} is not shared with region north here"));
    assert_eq!(outcomes, [told(there.as_str()), told(absent)]);
    assert!(west.got.lock().is_empty() && west.subscriptions() == ["one"]);
    west.exchange.resync("north", there.as_str(), "");
    west.exchange.resync("north", "", "");
    assert!(west.exchange.take("north", 1 << 20).is_empty());
    // Who has a part in it is heard.
    let outcomes = west.exchange.apply("east", vec![delta(there.as_str()), delta(absent)]).await;
    assert_eq!(
        outcomes,
        [AckOutcome::Stored, AckOutcome::Later(format!("{absent} is not shared with region east here"))]
    );
    assert_eq!(west.subscriptions(), ["one", "two"]);
}
