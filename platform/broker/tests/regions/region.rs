//! One region: a registry, a link, and a clock that can be wrong.

use meridian_broker::shared_objects::SharedObjects;
use meridian_link::{LinkConfig, LinkTimes, RegionLink};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_policy::{BrokerDefaults, ClusterData, Policies, TenantInfo};
use meridian_registry::{Registry, SharingSettings};
use meridian_topology::{Endpoint, LinkAddress};
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// How often everything is compared in tests that wait for it.
pub const COMPARE_MS: u64 = 300;

pub fn ns(name: &str) -> NamespaceName {
    NamespaceName::parse(name).unwrap()
}

pub fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

pub fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub fn tenant(clusters: &[&str]) -> TenantInfo {
    TenantInfo { admin_roles: BTreeSet::new(), allowed_clusters: set(clusters) }
}

pub fn policies(clusters: &[&str]) -> Policies {
    Policies { replication_clusters: set(clusters), ..Policies::default() }
}

/// Waits until a condition holds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub struct Region {
    pub name: &'static str,
    pub store: SharedStore,
    pub registry: Arc<Registry>,
    pub link: Arc<RegionLink>,
    /// The clock's error in ms.
    pub skew_ms: Arc<AtomicI64>,
    at: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Settings as shipped, but for tombstones, and with a clock that can be wrong.
fn sharing(skew_ms: &Arc<AtomicI64>, keep_tombstones_ms: u64) -> SharingSettings {
    let skew_ms = skew_ms.clone();
    let now = move || {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        u64::try_from(real + skew_ms.load(Ordering::Relaxed)).unwrap_or(0)
    };
    SharingSettings { now_ms: Arc::new(now), keep_tombstones_ms, ..SharingSettings::default() }
}

impl Region {
    /// A region that knows all others, not yet joined with them.
    pub async fn start(name: &'static str, all: &[&str], keep_tombstones_ms: u64) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let skew_ms = Arc::new(AtomicI64::new(0));
        let defaults = BrokerDefaults { cluster: name.to_owned(), ..BrokerDefaults::default() };
        let settings = sharing(&skew_ms, keep_tombstones_ms);
        let registry = Registry::open_with(store.clone(), defaults, settings).await.unwrap();
        let data = |name: &str| ClusterData {
            broker_service_url: Some(format!("pulsar://{name}:6650")),
            ..ClusterData::default()
        };
        registry.bootstrap(&data(name), 4).await.unwrap();
        for other in all.iter().filter(|other| **other != name) {
            registry.create_cluster(other, &data(other)).await.unwrap();
        }
        let times = LinkTimes { retry_min_ms: 5, retry_max_ms: 50, compare_ms: COMPARE_MS, ..LinkTimes::default() };
        let link = RegionLink::new(LinkConfig { region: name.to_owned(), version: "t".to_owned(), tls: None, times });
        link.set_objects(Arc::new(SharedObjects::new(registry.clone())));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let served = link.clone();
        let server = tokio::spawn(async move { served.serve(listener, std::future::pending()).await.unwrap() });
        Self { name, store, registry, link, skew_ms, at, server }
    }

    /// Where another one dials it.
    pub fn dialled(&self) -> LinkAddress {
        LinkAddress::Given(Endpoint::link(&format!("http://{}", self.at)).unwrap())
    }

    /// It has everything of the other, and the other everything of it, since now.
    pub async fn converged_loosely(&self, other: &Region) {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let since = |from: &Region, to: &Region| from.link.peer(to.name).map_or(0, |peer| peer.sync.converged_ms);
        until("everything is compared", || since(self, other) > now_ms && since(other, self) > now_ms).await;
    }

    /// As [`Self::converged_loosely`], and nothing is left that only one of them remembers.
    pub async fn converged(&self, other: &Region) {
        self.converged_loosely(other).await;
        let equal = || {
            let (here, there) = (self.registry.shared_digests(other.name), other.registry.shared_digests(self.name));
            here.differing(&there).is_empty()
        };
        until("the digests are equal", equal).await;
    }
}

/// Joins all with each other.
pub fn join(regions: &[&Region]) {
    for one in regions {
        let others = regions.iter().filter(|other| other.name != one.name);
        one.link.set_peers(others.map(|other| (other.name.to_owned(), other.dialled())));
    }
}

/// Parts all from each other, as an outage does.
pub fn part(regions: &[&Region]) {
    regions.iter().for_each(|region| region.link.set_peers([]));
}

/// West and east, with a tenant `t` that both share and a namespace `t/n` that is replicated.
pub async fn two() -> (Region, Region) {
    let all = ["west", "east"];
    let day_ms = 86_400_000;
    let (west, east) = (Region::start("west", &all, 7 * day_ms).await, Region::start("east", &all, 7 * day_ms).await);
    join(&[&west, &east]);
    west.registry.create_tenant("t", &tenant(&all)).await.unwrap();
    west.registry.create_namespace(&ns("t/n"), policies(&all)).await.unwrap();
    until("the namespace arrives", || east.registry.namespace(&ns("t/n")).is_some()).await;
    (west, east)
}
