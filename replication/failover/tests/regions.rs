//! Regions in one process: real services over memory stores, a network that can be cut, and hosts that only keep count.

use meridian_failover::record::PublishRule;
use meridian_failover::returning::Tail;
use meridian_failover::service::Settings;
use meridian_failover::{
    ActiveRecord, Costs, FailoverCall, FailoverError, FailoverReply, FailoverService, Host, LinkRule, PeerCalls,
    TopicCost,
};
use meridian_metadata::{BoxFuture, MemoryStore, SharedStore};
use meridian_types::{EntryId, LedgerId, NamespaceName, Position, TopicName};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

fn at(entry: i64) -> Position {
    Position { ledger_id: LedgerId(1), entry_id: EntryId(entry) }
}

fn topic() -> TopicName {
    TopicName::parse("persistent://t/n/orders").expect("as the test made it")
}

#[derive(Default)]
struct Net {
    services: Mutex<HashMap<String, Weak<FailoverService>>>,
    cut: Mutex<HashSet<(String, String)>>,
}

impl Net {
    fn isolate(&self, region: &str, others: &[&str]) {
        let mut cut = self.cut.lock();
        for other in others {
            cut.insert((region.to_owned(), (*other).to_owned()));
            cut.insert(((*other).to_owned(), region.to_owned()));
        }
    }

    fn heal(&self) {
        self.cut.lock().clear();
    }
}

struct Peers {
    own: String,
    net: Arc<Net>,
}

impl PeerCalls for Peers {
    fn call<'a>(&'a self, region: &'a str, call: FailoverCall) -> BoxFuture<'a, Result<FailoverReply, String>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if self.net.cut.lock().contains(&(self.own.clone(), region.to_owned())) {
                return Err("disconnected".to_owned());
            }
            let there = self.net.services.lock().get(region).and_then(Weak::upgrade);
            // As on the wire.
            let call = serde_json::to_vec(&call).expect("as the test made it");
            let reply = there
                .ok_or("down")?
                .answer(&self.own, serde_json::from_slice(&call).expect("as the test made it"))
                .await;
            Ok(serde_json::from_slice(&serde_json::to_vec(&reply).expect("as the test made it"))
                .expect("as the test made it"))
        })
    }
}

#[derive(Default)]
struct Counting {
    regions: Vec<String>,
    left: Mutex<Vec<(u64, u64)>>,
    frozen: Mutex<u32>,
    rule_changes: Mutex<u32>,
    moved_to: Mutex<Vec<String>>,
    undelivered: Mutex<u64>,
    silent: Mutex<Vec<String>>,
    /// Whether this copy of the policies names the regions yet.
    unheard: Mutex<bool>,
    cuts: Mutex<u32>,
    released: Mutex<u32>,
}

impl Host for Counting {
    fn regions_of(&self, _: &NamespaceName) -> Vec<String> {
        if *self.unheard.lock() { Vec::new() } else { self.regions.clone() }
    }

    fn rule_changed<'a>(&'a self, _: &'a NamespaceName) -> BoxFuture<'a, ()> {
        *self.rule_changes.lock() += 1;
        Box::pin(async {})
    }

    fn freeze<'a>(&'a self, _: &'a NamespaceName) -> BoxFuture<'a, Result<(), FailoverError>> {
        *self.frozen.lock() += 1;
        Box::pin(async { Ok(()) })
    }

    fn left<'a>(&'a self, _: &'a NamespaceName, _: &'a str) -> BoxFuture<'a, Result<(u64, u64), FailoverError>> {
        let mut left = self.left.lock();
        let now = if left.len() > 1 { left.remove(0) } else { left.first().copied().unwrap_or_default() };
        Box::pin(async move { Ok(now) })
    }

    fn move_clients<'a>(&'a self, _: &'a NamespaceName, target: &'a str) -> BoxFuture<'a, ()> {
        self.moved_to.lock().push(target.to_owned());
        Box::pin(async {})
    }

    fn cost<'a>(&'a self, _: &'a NamespaceName, _: &'a str) -> BoxFuture<'a, Costs> {
        let missing = Some(*self.undelivered.lock());
        let silent = self.silent.lock().clone();
        let cost =
            TopicCost { topic: topic().to_string(), missing, link: "running".to_owned(), subscriptions: Vec::new() };
        Box::pin(async move { Costs { topics: vec![cost], silent } })
    }

    fn cut_tails<'a>(
        &'a self,
        _: &'a NamespaceName,
        record: &'a ActiveRecord,
        store: &'a (dyn Fn(Tail) -> BoxFuture<'a, Result<(), FailoverError>> + Sync),
    ) -> BoxFuture<'a, Result<(), FailoverError>> {
        Box::pin(async move {
            *self.cuts.lock() += 1;
            let entries = std::mem::take(&mut *self.undelivered.lock());
            if entries != 0 {
                let tail = Tail {
                    topic: topic(),
                    epoch: record.epoch,
                    active: record.active.clone(),
                    after: at(-1),
                    to: at(entries as i64 - 1),
                    entries,
                    cut_ms: 1,
                    replayed_to: None,
                    dropped: false,
                };
                store(tail).await?;
            }
            Ok(())
        })
    }

    fn replay_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<Position, FailoverError>> {
        Box::pin(async move { Ok(tail.to) })
    }

    fn release_tail<'a>(&'a self, _: &'a Tail) -> BoxFuture<'a, Result<(), FailoverError>> {
        *self.released.lock() += 1;
        Box::pin(async { Ok(()) })
    }
}

struct Region {
    name: &'static str,
    service: Arc<FailoverService>,
    host: Arc<Counting>,
    store: SharedStore,
}

struct World {
    net: Arc<Net>,
    names: Vec<&'static str>,
    namespace: NamespaceName,
}

const QUICK: Settings = Settings { beat_ms: 100, confirm_ms: 400, drain_ms: 300 };

impl World {
    fn new(names: &[&'static str]) -> Self {
        Self {
            net: Arc::default(),
            names: names.to_vec(),
            namespace: NamespaceName::parse("t/n").expect("as the test made it"),
        }
    }

    async fn region(&self, name: &'static str, store: SharedStore) -> Region {
        let host = Arc::new(Counting {
            regions: self.names.iter().map(|name| (*name).to_owned()).collect(),
            ..Counting::default()
        });
        let peers = Arc::new(Peers { own: name.to_owned(), net: self.net.clone() });
        let service =
            FailoverService::open(name, store.clone(), host.clone(), peers, QUICK).await.expect("as the test made it");
        self.net.services.lock().insert(name.to_owned(), Arc::downgrade(&service));
        service.start();
        Region { name, service, host, store }
    }

    async fn regions(&self) -> Vec<Region> {
        let mut regions = Vec::new();
        for name in &self.names {
            regions.push(self.region(name, Arc::new(MemoryStore::new())).await);
        }
        regions
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not in time: {what}");
}

impl Region {
    fn rule(&self, world: &World) -> PublishRule {
        self.service.publish_rule(&world.namespace)
    }

    fn is_active(&self, world: &World) -> bool {
        self.rule(world) == PublishRule::Accept
    }

    fn sends_to(&self, world: &World, region: &str) -> bool {
        self.rule(world) == PublishRule::Moved { to: region.to_owned() }
    }
}

#[tokio::test]
async fn a_planned_switch_hands_over_when_nothing_is_left_and_comes_back_the_same_way() {
    let world = World::new(&["west", "east"]);
    let regions = world.regions().await;
    let (west, east) = (&regions[0], &regions[1]);
    assert!(west.is_active(&world) && east.is_active(&world), "without a record all regions are active");
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    until("both know", || west.is_active(&world) && east.sends_to(&world, "west")).await;

    *west.host.left.lock() = vec![(7, 3), (0, 1), (0, 0)];
    // Asked at the region that is not active: it is carried out where it is.
    let account = east.service.switch(&world.namespace, "east").await.expect("as the test made it");
    assert_eq!((account.drained_entries, account.drained_acks), (7, 3));
    assert!(east.is_active(&world) && west.sends_to(&world, "east"));
    assert_eq!(*west.host.moved_to.lock(), ["east"]);
    assert_eq!(*west.host.cuts.lock(), 0, "a hand-over leaves no tail");

    let back = east.service.switch(&world.namespace, "west").await.expect("as the test made it");
    assert_eq!(back.record.epoch.counter, 3);
    assert!(west.is_active(&world) && east.sends_to(&world, "west"));
}

#[tokio::test]
async fn a_broker_knows_what_another_one_has_just_stored_when_it_is_asked() {
    let world = World::new(&["west", "east"]);
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (other, driver) = (world.region("west", store.clone()).await, world.region("west", store).await);
    let nobody =
        other.service.hold_too(&world.namespace, "east", 5, 9).await.expect_err("no broker has stored a record");
    assert!(matches!(nobody, FailoverError::NotManaged(_)), "{nobody}");
    let record = driver.service.manage(&world.namespace, "west").await.expect("as the test made it");
    // Without a moment for the watch.
    assert_eq!(other.service.hold_too(&world.namespace, "east", 5, 9).await, Ok(true));
    let again = other.service.manage(&world.namespace, "east").await;
    assert_eq!(again, Ok(record), "the record that there is, not a second first one");
}

#[tokio::test]
async fn another_broker_of_the_region_holds_publishes_while_one_switches() {
    let world = World::new(&["west", "east"]);
    let east = world.region("east", Arc::new(MemoryStore::new())).await;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (other, driver) = (world.region("west", store.clone()).await, world.region("west", store).await);
    driver.service.manage(&world.namespace, "west").await.expect("as the test made it");
    // The other broker has it from the store, and a peer has confirmed it to that one too.
    until("all know", || east.sends_to(&world, "west") && other.service.state(&world.namespace).is_some()).await;
    until("it is confirmed", || other.is_active(&world)).await;

    // It is given up.
    assert_eq!(other.service.hold_too(&world.namespace, "east", 5, 9).await, Ok(true));
    assert_eq!(other.service.hold_too(&world.namespace, "east", 5, 9).await, Ok(false), "asked again");
    assert!(matches!(other.rule(&world), PublishRule::Hold(_)));
    assert_eq!(other.service.free(&world.namespace, 4).await, Ok(false), "that was another one");
    assert!(matches!(other.rule(&world), PublishRule::Hold(_)));
    assert_eq!(other.service.free(&world.namespace, 5).await, Ok(true));
    assert!(other.is_active(&world));

    // It ends with a hand-over, which the other broker reads from the store before it lets anything in.
    assert_eq!(other.service.hold_too(&world.namespace, "east", 6, 9).await, Ok(true));
    driver.service.switch(&world.namespace, "east").await.expect("as the test made it");
    assert_eq!(other.service.free(&world.namespace, 6).await, Ok(false));
    assert!(other.sends_to(&world, "east") && driver.sends_to(&world, "east"));
}

#[tokio::test]
async fn a_namespace_of_one_region_has_nowhere_to_go() {
    let world = World::new(&["west"]);
    let regions = world.regions().await;
    let refused = regions[0].service.manage(&world.namespace, "west").await.unwrap_err();
    assert_eq!(refused, FailoverError::OneRegion("t/n".to_owned()));
}

#[tokio::test]
async fn what_is_known_already_changes_nothing() {
    let world = World::new(&["west", "east"]);
    let regions = world.regions().await;
    let (west, east) = (&regions[0], &regions[1]);
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    until("both know", || west.is_active(&world) && east.sends_to(&world, "west")).await;
    let changes = || (*west.host.rule_changes.lock(), *east.host.rule_changes.lock());
    let before = changes();
    assert!(before.0 >= 1 && before.1 >= 1);
    // Several beats, in which both tell each other.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(changes(), before);
}

#[tokio::test]
async fn what_does_not_drain_is_not_switched() {
    let world = World::new(&["west", "east"]);
    let regions = world.regions().await;
    let (west, east) = (&regions[0], &regions[1]);
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    *west.host.left.lock() = vec![(5, 0)];
    let (first, second) =
        tokio::join!(west.service.switch(&world.namespace, "east"), west.service.switch(&world.namespace, "east"));
    let errors = [first.unwrap_err(), second.unwrap_err()];
    assert!(errors.iter().any(|error| matches!(error, FailoverError::UnderWay { .. })), "{errors:?}");
    assert!(
        errors.iter().any(|error| matches!(error, FailoverError::NotDrained { entries_left: 5, .. })),
        "{errors:?}"
    );
    assert!(west.is_active(&world) && east.sends_to(&world, "west"));
    let unknown = west.service.switch(&world.namespace, "north").await.unwrap_err();
    assert!(matches!(unknown, FailoverError::UnknownRegion { .. }));
    // A region without a part in the namespace switches nothing, and does not learn whose it is.
    let call = FailoverCall::Switch { namespace: world.namespace.to_string(), to: "east".to_owned() };
    let FailoverReply::NotYet(why) = west.service.answer("north", call).await else { panic!("it was answered") };
    assert_eq!(why, format!("region north has no part in namespace {}", world.namespace));
    let same = west.service.switch(&world.namespace, "west").await.unwrap_err();
    assert_eq!(same, FailoverError::AlreadyActive("west".to_owned()));
}

/// What regions share may come behind the call of one that has it already.
#[tokio::test]
async fn a_target_that_has_not_heard_yet_is_asked_until_it_has() {
    let world = World::new(&["west", "east"]);
    let regions = world.regions().await;
    let (west, east) = (&regions[0], &regions[1]);
    *east.host.unheard.lock() = true;
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    let refused = west.service.switch(&world.namespace, "east").await.unwrap_err();
    assert!(matches!(refused, FailoverError::NotReady { waited_ms, .. } if waited_ms >= QUICK.drain_ms), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("region east has not heard yet") && text.contains("region west has no part"), "{text}");
    assert!(west.is_active(&world) && *west.host.frozen.lock() == 0, "nothing was held for it");
    let late = async {
        tokio::time::sleep(Duration::from_millis(QUICK.drain_ms / 3)).await;
        *east.host.unheard.lock() = false;
    };
    let (switched, ()) = tokio::join!(west.service.switch(&world.namespace, "east"), late);
    switched.expect("it has heard by then");
    assert!(east.is_active(&world) && west.sends_to(&world, "east"));
    // The same where the active region is the one that has not heard.
    *east.host.unheard.lock() = true;
    let late = async {
        tokio::time::sleep(Duration::from_millis(QUICK.drain_ms / 3)).await;
        *east.host.unheard.lock() = false;
    };
    let (back, ()) = tokio::join!(west.service.switch(&world.namespace, "west"), late);
    back.expect("it has heard by then");
}

/// A part that is not known makes the sum unknown, whoever is asked.
#[tokio::test]
async fn what_nobody_says_is_not_nothing() {
    let world = World::new(&["west", "east"]);
    let regions = world.regions().await;
    let (west, east) = (&regions[0], &regions[1]);
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    until("east knows", || east.sends_to(&world, "west")).await;
    *west.host.silent.lock() = vec!["broker b2 does not answer: cut".to_owned()];
    for asked in &regions {
        let report = asked.service.cost(&world.namespace, "east").await.expect("as the test made it");
        assert!(report.missing.is_none() && report.again.is_none() && !report.exact, "{report:?}");
        assert_eq!(report.unknown, ["broker b2 does not answer: cut"]);
    }
    world.net.isolate("west", &["east"]);
    let north = world.region("east", Arc::new(MemoryStore::new())).await;
    let nobody = north.service.cost(&world.namespace, "east").await.unwrap_err();
    assert!(matches!(nobody, FailoverError::NotManaged(_)), "{nobody}");
    let restarted = world.region("east", east.store.clone()).await;
    let report = restarted.service.cost(&world.namespace, "east").await.expect("as the test made it");
    assert!(report.missing.is_none() && report.again.is_none() && report.taken_ms.is_none(), "{report:?}");
    assert!(report.unknown[0].contains("west") && report.unknown[0].contains("nothing was ever heard"), "{report:?}");
}

#[tokio::test]
async fn a_forced_switch_deposes_the_old_region_and_keeps_its_tail() {
    let world = World::new(&["west", "east", "north"]);
    let regions = world.regions().await;
    let (west, east, north) = (&regions[0], &regions[1], &regions[2]);
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    *west.host.undelivered.lock() = 4;
    until("east has heard the figures", || {
        east.service.state(&world.namespace).is_some() && north.sends_to(&world, "west")
    })
    .await;
    let mut report = east.service.cost(&world.namespace, "east").await.expect("as the test made it");
    assert!(report.exact && report.missing == Some(4), "{report:?}");
    // One beat at least, so that east has figures of its own when west is away.
    tokio::time::sleep(Duration::from_millis(300)).await;

    world.net.isolate("west", &["east", "north"]);
    report = east.service.cost(&world.namespace, "east").await.expect("as the test made it");
    assert!(
        !report.exact && report.missing == Some(4) && report.blockers.iter().any(|why| why.contains("west")),
        "{report:?}"
    );
    let planned = east.service.switch(&world.namespace, "east").await.unwrap_err();
    assert!(matches!(planned, FailoverError::Unreachable { .. }), "{planned}");
    let old = west.service.state(&world.namespace).expect("as the test made it").record.epoch;
    let record = east.service.force(&world.namespace).await.expect("as the test made it");
    assert!(record.forced && east.is_active(&world));
    until("north follows", || north.sends_to(&world, "east")).await;
    assert!(west.is_active(&world), "it can't know");
    assert_eq!(east.service.link_rule(&world.namespace, Some(old)), LinkRule::Stale { current: record.epoch });
    assert!(east.service.settlement(&world.namespace).await.is_err());

    world.net.heal();
    until("west is deposed", || west.sends_to(&world, "east")).await;
    until("its tail is set aside", || west.service.link_epoch(&world.namespace) == Ok(Some(record.epoch))).await;
    let settlement = east.service.settlement(&world.namespace).await.expect("as the test made it");
    assert!(settlement.settled && settlement.missing == Some(4) && settlement.dealt_with == 0, "{settlement:?}");
    assert_eq!(settlement.expected_missing, Some(4));
    assert_eq!(settlement.open, [topic().to_string()]);

    let tail = west.service.replay(&topic(), record.epoch).await.expect("as the test made it");
    assert!(tail.is_over() && *west.host.released.lock() == 1);
    assert!(west.service.replay(&topic(), record.epoch).await.is_err(), "not twice");
    assert_eq!(east.service.settlement(&world.namespace).await.expect("as the test made it").dealt_with, 4);
    // And back, as a planned one.
    west.service.switch(&world.namespace, "west").await.expect("as the test made it");
    assert!(west.is_active(&world) && east.sends_to(&world, "west"));
}

#[tokio::test]
async fn a_region_that_starts_asks_before_it_takes_publishes() {
    let world = World::new(&["west", "east"]);
    let mut regions = world.regions().await;
    let west = regions.remove(0);
    let east = &regions[0];
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    let (store, name) = (west.store.clone(), west.name);
    drop(west);
    let record = east.service.force(&world.namespace).await.expect("as the test made it");

    let west = world.region(name, store.clone()).await;
    assert!(matches!(west.rule(&world), PublishRule::Hold(_)), "not before somebody was asked");
    until("it has heard", || west.sends_to(&world, "east")).await;
    until("nothing pends", || west.service.link_epoch(&world.namespace) == Ok(Some(record.epoch))).await;
    assert_eq!(*west.host.cuts.lock(), 1);
    drop(west);

    // Alone it waits, then goes on: availability, with a warning.
    east.service.switch(&world.namespace, "west").await.unwrap_err();
    world.net.isolate("east", &["west"]);
    let alone = world.region("west", store).await;
    assert!(alone.sends_to(&world, "east"), "what it knows outlives it");
    let again = world.region("east", east.store.clone()).await;
    assert!(matches!(again.rule(&world), PublishRule::Hold(_)));
    assert_eq!(again.service.unconfirmed(), 1);
    until("it goes on alone", || again.is_active(&world)).await;
}

#[tokio::test]
async fn two_forced_switches_unseen_by_each_other_end_as_one() {
    let world = World::new(&["west", "east", "north"]);
    let regions = world.regions().await;
    let (west, east, north) = (&regions[0], &regions[1], &regions[2]);
    west.service.manage(&world.namespace, "west").await.expect("as the test made it");
    until("all know", || east.sends_to(&world, "west") && north.sends_to(&world, "west")).await;
    world.net.isolate("west", &["east", "north"]);
    world.net.isolate("east", &["west", "north"]);
    let (one, other) = (
        east.service.force(&world.namespace).await.expect("as the test made it"),
        north.service.force(&world.namespace).await.expect("as the test made it"),
    );
    assert_ne!(one.epoch, other.epoch);
    world.net.heal();
    let winner = if one.epoch > other.epoch { &one } else { &other };
    until("all agree", || {
        regions.iter().all(|region| {
            let state = region.service.state(&world.namespace).expect("as the test made it");
            state.record == *winner && !state.tail_pending
        })
    })
    .await;
    assert_eq!(regions.iter().filter(|region| region.is_active(&world)).count(), 1);
    let loser = if winner.active == "east" { north } else { east };
    assert_eq!(*loser.host.cuts.lock(), 1, "it was deposed without handing over");
}
