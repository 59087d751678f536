//! Brokers over one store with faults: owners of a bundle never overlap in effect.
//!
//! Each broker reaches the store by a wire of its own that can be cut, delayed or hang; the store can be away for all.
//! Checked with every change of an owner: a broker whose bundle is taken without its doing served nothing any more at that
//! moment, and epochs rise. Checked at the end: everything is served by exactly one broker again.

#![allow(clippy::unwrap_used)]

use meridian_metadata::{
    BoxFuture, Entry, MemoryStore, MetadataError, MetadataStore, Operation, Page, Session, SessionId, SharedStore,
    Version, Watch,
};
use meridian_ownership::lease::Evidence;
use meridian_ownership::records::{OwnerRecord, decode};
use meridian_ownership::{
    BrokerRecord, BundleId, Bundles, Host, LeaseTimes, Namespaces, Ownership, RegionConfig, RegionOwnership, TopicLoad,
};
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const TTL_MS: u64 = 600;
/// Worlds that run side by side.
const WORLDS: u64 = 12;
/// How long everything may take to be served again.
const HEALED: Duration = Duration::from_secs(60);

struct FourBundles;

impl Namespaces for FourBundles {
    fn made_with(&self, _namespace: &NamespaceName) -> Option<Bundles> {
        Bundles::even(4).ok()
    }
}

/// What all brokers share: the store, whether it is away, and who they are.
struct World {
    store: MemoryStore,
    away: AtomicBool,
    brokers: Mutex<BTreeMap<(String, u64), Weak<RegionOwnership>>>,
    epochs: Mutex<BTreeMap<String, u64>>,
    taken: AtomicU64,
}

impl World {
    /// The invariant, at the moment of the change.
    fn check(&self, operations: &[Operation], before: &BTreeMap<String, OwnerRecord>) {
        for operation in operations {
            let Operation::Put { key, value, .. } = operation else { continue };
            if !key.starts_with("ownership/owner/") {
                continue;
            }
            let now: OwnerRecord = decode(key, value).unwrap();
            let mut epochs = self.epochs.lock().unwrap();
            let last = epochs.insert(key.clone(), now.epoch).unwrap_or(0);
            assert!(now.epoch > last, "{key}: epoch {} after {last}", now.epoch);
            let Some(before) = before.get(key) else { continue };
            if now.from.is_some() || (now.broker == before.broker && now.incarnation == before.incarnation) {
                continue;
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
            let life = (before.broker.clone(), before.incarnation);
            let holder = self.brokers.lock().unwrap().get(&life).and_then(Weak::upgrade);
            let serves =
                holder.is_some_and(|holder| holder.me().incarnation == before.incarnation && holder.in_force());
            assert!(!serves, "{key} was taken from {} while it served", before.broker);
        }
    }
}

/// A broker's wire to the store.
struct Wire {
    world: Arc<World>,
    cut: AtomicBool,
    /// Writes arrive, their answers do not.
    deaf: AtomicBool,
    delay_ms: AtomicU64,
}

impl Wire {
    async fn pass(&self) -> Result<(), MetadataError> {
        let delay_ms = self.delay_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            sleep(Duration::from_millis(delay_ms)).await;
        }
        if self.cut.load(Ordering::Relaxed) || self.world.away.load(Ordering::Relaxed) {
            // Nothing comes back; the caller's own limit ends it.
            sleep(Duration::from_secs(3_600)).await;
            return Err(MetadataError::Unavailable("cut".to_owned()));
        }
        Ok(())
    }
}

impl MetadataStore for Wire {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.get(key).await
        })
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            let mut before = BTreeMap::new();
            for operation in &operations {
                if let Operation::Put { key, .. } = operation
                    && key.starts_with("ownership/owner/")
                    && let Some(entry) = self.world.store.get(key).await?
                {
                    before.insert(key.clone(), decode(key, &entry.value).unwrap());
                }
            }
            let version = self.world.store.commit(operations.clone()).await?;
            self.world.check(&operations, &before);
            if self.deaf.load(Ordering::Relaxed) {
                sleep(Duration::from_secs(3_600)).await;
            }
            Ok(version)
        })
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.range(prefix, after, limit).await
        })
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        self.world.store.allocate(sequence, count)
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.open_session(ttl_ms).await
        })
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.renew_session(session).await
        })
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.close_session(session).await
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.watch(prefix, from).await
        })
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move {
            self.pass().await?;
            self.world.store.current_version().await
        })
    }
}

/// A broker without topics; peers answer as they are.
struct Bare {
    world: Arc<World>,
}

impl Host for Bare {
    fn close_moved(&self) -> meridian_ownership::BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn close_all(&self, _reason: &'static str) -> meridian_ownership::BoxFuture<'_, ()> {
        Box::pin(sleep(Duration::from_millis(20)))
    }

    fn gained(&self, _bundle: BundleId) {}

    fn loads(&self) -> Vec<TopicLoad> {
        Vec::new()
    }

    fn ask_peers(&self, peers: Vec<Arc<BrokerRecord>>) -> meridian_ownership::BoxFuture<'_, Evidence> {
        let brokers = self.world.brokers.lock().unwrap();
        let reaches = |peer: &Arc<BrokerRecord>| {
            let mut found =
                brokers.iter().filter(|((id, _), _)| *id == peer.id).filter_map(|(_, broker)| broker.upgrade());
            found.next_back().map(|broker| broker.reaches_store())
        };
        let answers: Vec<bool> = peers.iter().filter_map(reaches).collect();
        Box::pin(std::future::ready(Evidence::of(peers.len(), &answers)))
    }
}

struct Node {
    ownership: Arc<RegionOwnership>,
    wire: Arc<Wire>,
    _host: Arc<dyn Host>,
}

fn start(world: &Arc<World>, id: &str) -> Node {
    let wire = Arc::new(Wire {
        world: world.clone(),
        cut: AtomicBool::new(false),
        deaf: AtomicBool::new(false),
        delay_ms: AtomicU64::new(0),
    });
    let config = RegionConfig {
        times: LeaseTimes::of(TTL_MS),
        call_limit_ms: 200,
        locate_limit_ms: 300,
        shedding: false,
        resizing: false,
        ..RegionConfig::default()
    };
    let store: SharedStore = wire.clone();
    let me = BrokerRecord { id: id.to_owned(), ..BrokerRecord::default() };
    let ownership = RegionOwnership::new(store, me, Arc::new(FourBundles), config);
    let host: Arc<dyn Host> = Arc::new(Bare { world: world.clone() });
    ownership.attach(Arc::downgrade(&host));
    Node { ownership, wire, _host: host }
}

/// Lives change; the checker has to find whose they are.
fn enrol(world: &World, nodes: &[Node]) {
    let mut brokers = world.brokers.lock().unwrap();
    for node in nodes {
        let me = node.ownership.me();
        brokers.insert((me.id.clone(), me.incarnation), Arc::downgrade(&node.ownership));
    }
}

fn topics() -> Vec<TopicName> {
    (0..16).map(|index| TopicName::parse(&format!("persistent://t/n/{index}")).unwrap()).collect()
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Cut(usize),
    Heal(usize),
    Deafen(usize),
    Delay(usize, u64),
    Away,
    Back,
    Restart(usize),
    Move(usize),
}

fn fault(kind: u8, node: u8) -> Fault {
    let node = usize::from(node) % 3;
    match kind % 10 {
        0 | 1 => Fault::Cut(node),
        2 | 3 => Fault::Heal(node),
        4 => Fault::Delay(node, 120),
        5 => Fault::Away,
        6 => Fault::Back,
        7 => Fault::Restart(node),
        9 => Fault::Deafen(node),
        _ => Fault::Move(node),
    }
}

async fn apply(world: &Arc<World>, nodes: &mut [Node], fault: Fault) {
    match fault {
        Fault::Cut(node) => nodes[node].wire.cut.store(true, Ordering::Relaxed),
        Fault::Heal(node) => {
            nodes[node].wire.cut.store(false, Ordering::Relaxed);
            nodes[node].wire.deaf.store(false, Ordering::Relaxed);
            nodes[node].wire.delay_ms.store(0, Ordering::Relaxed);
        }
        Fault::Deafen(node) => nodes[node].wire.deaf.store(true, Ordering::Relaxed),
        Fault::Delay(node, delay_ms) => nodes[node].wire.delay_ms.store(delay_ms, Ordering::Relaxed),
        Fault::Away => world.away.store(true, Ordering::Relaxed),
        Fault::Back => world.away.store(false, Ordering::Relaxed),
        Fault::Restart(node) => {
            nodes[node].ownership.stop();
            let id = nodes[node].ownership.me().id.clone();
            nodes[node] = start(world, &id);
        }
        Fault::Move(node) => {
            let bundles = nodes[node].ownership.owned(&nodes[node].ownership.me().id);
            if let Some((bundle, _)) = bundles.first() {
                let _ = nodes[node].ownership.unload(bundle, None).await;
            }
        }
    }
}

async fn run(steps: Vec<(u8, u8, u64)>) -> u64 {
    let world = Arc::new(World {
        store: MemoryStore::new(),
        away: AtomicBool::new(false),
        brokers: Mutex::default(),
        epochs: Mutex::default(),
        taken: AtomicU64::new(0),
    });
    let mut nodes: Vec<Node> = ["a", "b", "c"].map(|id| start(&world, id)).into();
    let topics = topics();
    for (kind, node, pause_ms) in steps {
        apply(&world, &mut nodes, fault(kind, node)).await;
        for _ in 0..pause_ms / 50 {
            sleep(Duration::from_millis(50)).await;
            enrol(&world, &nodes);
            let asked = &nodes[usize::from(node) % 3].ownership;
            let _ = asked.locate(&topics[usize::from(kind) % topics.len()], kind % 2 == 0).await;
        }
    }
    world.away.store(false, Ordering::Relaxed);
    for node in 0..3 {
        apply(&world, &mut nodes, Fault::Heal(node)).await;
    }
    // However busy the machine is: in the end everything is served, by one.
    let begun = Instant::now();
    for topic in &topics {
        loop {
            enrol(&world, &nodes);
            let _ = nodes[0].ownership.locate(topic, false).await;
            let serving = nodes.iter().filter(|node| node.ownership.serves(topic)).count();
            if serving == 1 {
                break;
            }
            assert!(begun.elapsed() < HEALED, "{topic}: {serving} serve it though everything was healed");
            sleep(Duration::from_millis(50)).await;
        }
    }
    world.taken.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn b122_a_broker_that_is_cut_off_has_stopped_when_its_bundles_are_taken() {
    let taken = run(vec![(8, 0, 1_000), (0, 0, 3_000), (2, 0, 3_000), (1, 1, 3_000), (3, 1, 2_000)]).await;
    assert!(taken > 0, "nothing was taken, so that nothing was shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_over_when_the_store_comes_back() {
    assert_eq!(run(vec![(8, 0, 2_000), (5, 0, 5_000), (6, 0, 3_000)]).await, 0);
}

/// Numbers that a seed gives, one after the other.
fn steps(seed: u64) -> Vec<(u8, u8, u64)> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..10).map(|_| (next() as u8, next() as u8, 100 + next() % 1_200)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_never_overlap_in_effect() {
    let worlds: Vec<_> = (1..=WORLDS).map(|seed| (seed, tokio::spawn(run(steps(seed))))).collect();
    let mut taken = 0;
    for (seed, world) in worlds {
        taken += world.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(taken > 0, "nothing was taken, so that nothing was shown");
}
