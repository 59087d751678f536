//! Ownership among several brokers: the shell around the pure parts.
//!
//! Role: keeps this broker's lease ([`keeper`]), follows the records ([`follow`]), changes them ([`change`]), and does what is
//! due by itself ([`duties`]). Invariants O1 to O4 of the crate.
//! Failure: calls answer [`OwnershipError`]; tasks repeat until they succeed.
//! Must never know: topics' insides.

mod balance;
mod change;
mod duties;
mod follow;
mod keeper;
mod reach;
mod stats;
mod taken;

use crate::api::{BoxFuture, Figure, Host, Namespaces, Ownership, OwnershipError, Place};
use crate::assign::{Given, Groups};
use crate::bundles::{Bundles, topic_hash};
use crate::isolation::IsolationData;
use crate::lease::LeaseTimes;
use crate::records::{BrokerRecord, BundleId, LoadRecord, owner_key};
use crate::resize::ResizeLimits;
use crate::shed::ShedLimits;
use crate::table::{Holder, Table, Versioned};
use meridian_metadata::{Condition, Operation, SessionId, SharedStore};
use meridian_types::{NamespaceName, TopicName};
use parking_lot::{Mutex, RwLock};
use stats::Stats;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use taken::Taken;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a broker's ownership is run with.
#[derive(Debug, Clone)]
pub struct RegionConfig {
    /// Times of the lease.
    pub times: LeaseTimes,
    /// A call of the metadata store may take so long.
    pub call_limit_ms: u64,
    /// A lookup waits so long for an owner to be found.
    pub locate_limit_ms: u64,
    /// Loads are reported at most so often.
    pub report_every_ms: u64,
    /// A report that says nothing new is repeated so often.
    pub report_at_least_every_ms: u64,
    /// Loads and bundles are balanced so often.
    pub balance_every_ms: u64,
    /// Bundles move from busy brokers to others.
    pub shedding: bool,
    /// When.
    pub shed: ShedLimits,
    /// Hot bundles are cut, cold ones joined.
    pub resizing: bool,
    /// When.
    pub resize: ResizeLimits,
    /// What the network can carry in each direction, bytes per second; 0 = not known.
    pub bandwidth_bytes: u64,
    /// Bundles given anew in one transaction after a broker's loss.
    pub rescue_batch: usize,
    /// How long leaving may take.
    pub leave_limit_ms: u64,
}

impl Default for RegionConfig {
    fn default() -> Self {
        Self {
            times: LeaseTimes::of(3_000),
            call_limit_ms: 2_000,
            locate_limit_ms: 10_000,
            report_every_ms: 5_000,
            report_at_least_every_ms: 60_000,
            balance_every_ms: 60_000,
            shedding: true,
            shed: ShedLimits::default(),
            resizing: true,
            resize: ResizeLimits::default(),
            bandwidth_bytes: 0,
            rescue_batch: 64,
            leave_limit_ms: 30_000,
        }
    }
}

/// See the module.
pub struct RegionOwnership {
    weak: Weak<RegionOwnership>,
    store: SharedStore,
    config: RegionConfig,
    namespaces: Arc<dyn Namespaces>,
    host: OnceLock<Weak<dyn Host>>,
    base: Instant,
    me: RwLock<Arc<BrokerRecord>>,
    table: RwLock<Table>,
    /// The table has been read once.
    known: AtomicBool,
    /// Serving ends here, in ms since `base`; 0 = nothing is served.
    until_ms: AtomicU64,
    /// The store last answered then, in ms since `base`, plus 1; 0 = never.
    answered_ms: AtomicU64,
    /// Bundles of brokers that have gone may be taken from then on, in ms since `base`.
    settled_ms: AtomicU64,
    session: Mutex<Option<SessionId>>,
    /// Bundles that are this broker's, as the table says.
    ours: Mutex<HashSet<BundleId>>,
    /// Given out since the last reports.
    given: Mutex<Given>,
    /// Bundles of nobody that somebody asked for.
    wanted: Mutex<BTreeSet<BundleId>>,
    /// Who gives bundles away does so alone: two would only collide.
    giving: tokio::sync::Mutex<()>,
    /// What was heard of other brokers when they were asked.
    heard: Mutex<reach::AllHeard>,
    /// Owners or brokers have changed.
    changed: watch::Sender<u64>,
    /// Bundles may have to close.
    moved: watch::Sender<u64>,
    leaving: AtomicBool,
    /// Who holds this broker's address, and what was told of it.
    taken: Mutex<Taken>,
    stats: Stats,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct GroupsOf<'a>(&'a dyn Namespaces);

impl Groups for GroupsOf<'_> {
    fn group(&self, namespace: &NamespaceName) -> Option<String> {
        self.0.group(namespace)
    }

    fn domain(&self, broker: &str) -> Option<String> {
        self.0.domain(broker)
    }
}

impl RegionOwnership {
    /// For this broker; nothing runs before [`Ownership::attach`]. The incarnation of `me` is chosen here.
    pub fn new(
        store: SharedStore,
        me: BrokerRecord,
        namespaces: Arc<dyn Namespaces>,
        config: RegionConfig,
    ) -> Arc<Self> {
        let me = BrokerRecord { incarnation: keeper::new_incarnation(), ..me };
        Arc::new_cyclic(|weak| Self {
            weak: weak.clone(),
            store,
            config,
            namespaces,
            host: OnceLock::new(),
            base: Instant::now(),
            me: RwLock::new(Arc::new(me)),
            table: RwLock::default(),
            known: AtomicBool::new(false),
            until_ms: AtomicU64::new(0),
            answered_ms: AtomicU64::new(0),
            settled_ms: AtomicU64::new(u64::MAX),
            session: Mutex::default(),
            ours: Mutex::default(),
            given: Mutex::default(),
            wanted: Mutex::default(),
            giving: tokio::sync::Mutex::default(),
            heard: Mutex::default(),
            changed: watch::channel(0).0,
            moved: watch::channel(0).0,
            leaving: AtomicBool::new(false),
            taken: Mutex::default(),
            stats: Stats::default(),
            tasks: Mutex::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    fn host(&self) -> Option<Arc<dyn Host>> {
        self.host.get().and_then(Weak::upgrade)
    }

    fn is_mine(&self, broker: &str, incarnation: u64) -> bool {
        let me = self.me.read();
        me.id == broker && me.incarnation == incarnation
    }

    /// The owner record of a topic's bundle if it is this broker's.
    fn own_record(&self, topic: &TopicName) -> Option<(BundleId, Versioned<crate::records::OwnerRecord>)> {
        let bundle = self.bundle_of(topic)?;
        let table = self.table.read();
        let owner = table.owner(&bundle)?.clone();
        drop(table);
        self.is_mine(&owner.record.broker, owner.record.incarnation).then_some((bundle, owner))
    }

    /// Age of the store's last answer; `None` = there was none.
    fn contact_age_ms(&self) -> Option<u64> {
        let answered = self.answered_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.now_ms().saturating_sub(answered))
    }

    /// Ends the tasks; for brokers that end without leaving.
    pub fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    async fn locate_now(&self, topic: &TopicName, told: bool) -> Result<Place, OwnershipError> {
        let no_such = || OwnershipError::Invalid(format!("{topic}: no such namespace"));
        let mut bundle = self.bundle_of(topic).ok_or_else(no_such)?;
        if told && self.owner(&bundle).is_some_and(|owner| owner.id != self.me().id) {
            self.refresh(&self.keys_of(&bundle)).await?;
            bundle = self.bundle_of(topic).ok_or_else(no_such)?;
        }
        let mut changed = self.changed.subscribe();
        let broker = loop {
            let found = self.table.read().holder(&bundle);
            let (owner, broker) = match found {
                Holder::Held { owner, broker } => (owner, broker.record),
                Holder::Free(_) => break self.assign(&bundle).await?,
            };
            if self.is_mine(&owner.record.broker, owner.record.incarnation) {
                break self.me();
            }
            let Some(until_ms) = self.wait_until_ms(&broker) else {
                // Another one's: what is known may be old, but it knows better and sends the client on.
                return Ok(Place::There(broker));
            };
            let left = Duration::from_millis(until_ms.saturating_sub(self.now_ms()).max(1));
            let _ = tokio::time::timeout(left, changed.changed()).await;
            bundle = self.bundle_of(topic).ok_or_else(no_such)?;
        };
        if broker.id != self.me().id {
            return Ok(Place::There(broker));
        }
        if self.in_force() { Ok(Place::Here) } else { Err(not_in_force()) }
    }
}

fn not_in_force() -> OwnershipError {
    OwnershipError::NotReady("this broker's lease is not in force: it is starting, ending or cut off".to_owned())
}

impl Drop for RegionOwnership {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Ownership for RegionOwnership {
    fn in_force(&self) -> bool {
        self.now_ms() < self.until_ms.load(Ordering::Acquire)
    }

    fn unready(&self) -> Option<String> {
        if self.in_force() {
            return None;
        }
        let held = self.taken.lock().held(self.now_ms());
        let why = match held {
            Some(held) => held,
            None if !self.reaches_store() => "the metadata store did not answer lately".to_owned(),
            None => "it is starting, ending or cut off".to_owned(),
        };
        Some(format!("the lease of broker {} is not in force: {why}", self.me().id))
    }

    fn serves(&self, topic: &TopicName) -> bool {
        self.in_force() && self.own_record(topic).is_some()
    }

    fn locate<'a>(&'a self, topic: &'a TopicName, told: bool) -> BoxFuture<'a, Result<Place, OwnershipError>> {
        Box::pin(async move {
            if self.serves(topic) {
                return Ok(Place::Here);
            }
            let limit = Duration::from_millis(self.config.locate_limit_ms);
            tokio::time::timeout(limit, self.locate_now(topic, told)).await.unwrap_or_else(|_| {
                Err(OwnershipError::NotReady(format!("no owner was found for {topic} in {} ms", limit.as_millis())))
            })
        })
    }

    fn destination(&self, topic: &TopicName) -> Option<Arc<BrokerRecord>> {
        let bundle = self.bundle_of(topic)?;
        match self.table.read().holder(&bundle) {
            Holder::Held { broker, .. } if broker.record.id != self.me().id => Some(broker.record),
            _ => None,
        }
    }

    fn guard(&self, topic: &TopicName) -> Result<Option<Operation>, OwnershipError> {
        let owned = if self.in_force() { self.own_record(topic) } else { None };
        let (bundle, owner) = owned.ok_or_else(|| OwnershipError::NotHere(topic.to_string()))?;
        Ok(Some(Operation::Check { key: owner_key(&bundle), condition: Condition::Is(owner.version) }))
    }

    fn bundles(&self, namespace: &NamespaceName) -> Option<Arc<Bundles>> {
        let cut = self.table.read().bundles(namespace);
        cut.or_else(|| self.namespaces.made_with(namespace).map(Arc::new))
    }

    fn me(&self) -> Arc<BrokerRecord> {
        self.me.read().clone()
    }

    fn brokers(&self) -> Vec<Arc<BrokerRecord>> {
        self.table.read().brokers().values().map(|broker| broker.record.clone()).collect()
    }

    fn leader(&self) -> Option<Arc<BrokerRecord>> {
        self.table.read().leader().map(|leader| leader.record.clone())
    }

    fn owner(&self, bundle: &BundleId) -> Option<Arc<BrokerRecord>> {
        match self.table.read().holder(bundle) {
            Holder::Held { broker, .. } => Some(broker.record),
            Holder::Free(_) => None,
        }
    }

    fn owned(&self, broker: &str) -> Vec<(BundleId, u64)> {
        let table = self.table.read();
        let Some(life) = table.brokers().get(broker).map(|broker| broker.record.incarnation) else {
            return Vec::new();
        };
        let bundles = table.owned_by(broker, life).into_iter();
        bundles.filter_map(|bundle| table.owner(&bundle).map(|owner| (bundle.clone(), owner.record.epoch))).collect()
    }

    fn load(&self, broker: &str) -> Option<LoadRecord> {
        self.table.read().load(broker).cloned()
    }

    fn unload<'a>(&'a self, bundle: &'a BundleId, to: Option<&'a str>) -> BoxFuture<'a, Result<(), OwnershipError>> {
        Box::pin(self.unload_now(bundle, to))
    }

    fn split<'a>(
        &'a self,
        bundle: &'a BundleId,
        cuts: &'a [u32],
    ) -> BoxFuture<'a, Result<Vec<BundleId>, OwnershipError>> {
        Box::pin(self.split_now(bundle, cuts))
    }

    fn merge<'a>(&'a self, bundle: &'a BundleId) -> BoxFuture<'a, Result<BundleId, OwnershipError>> {
        Box::pin(self.merge_now(bundle))
    }

    fn forget<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), OwnershipError>> {
        Box::pin(self.forget_now(namespace))
    }

    fn isolation(&self) -> BTreeMap<String, IsolationData> {
        self.table.read().isolation().map(|(name, rule)| (name.clone(), rule.data.clone())).collect()
    }

    fn set_isolation<'a>(
        &'a self,
        name: &'a str,
        rule: Option<IsolationData>,
    ) -> BoxFuture<'a, Result<(), OwnershipError>> {
        Box::pin(self.set_isolation_now(name, rule))
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.leave_now())
    }

    fn attach(&self, host: Weak<dyn Host>) {
        if self.host.set(host).is_err() {
            return;
        }
        let tasks = [
            tokio::spawn(keeper::keep(self.weak.clone())),
            tokio::spawn(follow::follow(self.weak.clone())),
            tokio::spawn(duties::close_moved(self.weak.clone(), self.moved.subscribe())),
            tokio::spawn(duties::lead(self.weak.clone())),
            tokio::spawn(balance::report(self.weak.clone())),
        ];
        self.tasks.lock().extend(tasks);
    }

    fn reaches_store(&self) -> bool {
        self.contact_age_ms().is_some_and(|age_ms| age_ms < self.config.times.ttl_ms / 2)
    }

    fn figures(&self) -> Vec<Figure> {
        self.stats.figures(self)
    }

    fn bundle_of(&self, topic: &TopicName) -> Option<BundleId> {
        let (namespace, hash) = (topic.namespace(), topic_hash(topic));
        let cut = self.table.read().bundles(&namespace);
        let range = match cut {
            Some(bundles) => bundles.of(hash),
            None => self.namespaces.made_with(&namespace)?.of(hash),
        };
        Some(BundleId { namespace, range })
    }
}
