//! Quotas in force at this broker: the limiters that topics take from, what is counted, what is kept out.
//!
//! Role: a [`Node`] per place that something here belongs to; topics get the limiters of their places, sessions take
//! places for producers, consumers and connections, and once a second what is stored and used is looked at.
//! Invariants: E1 everything is counted whether or not there is a limit, so that a limit binds from the moment it is set;
//! E2 what was taken is given back exactly once ([`Hold`]); E3 all places on the way are asked, and either all give or none;
//! E4 system topics are outside of all quotas, and so are links of other regions where clients are counted; E5 an operator's
//! limit outlives the place that it is set at, unless an operator deletes that.
//! Failure: [`Exceeded`] names limit, value and place.
//! Must never know: frames, HTTP, how the metadata store keeps quotas.

mod counts;
mod node;
pub(crate) mod recount;
mod storage;
mod usage;

pub use counts::Hold;
pub use node::ReplicationLimit;

use crate::error::BrokerError;
use crate::service::{BrokerService, is_system_topic};
use meridian_policy::quota::{Bound, Exceeded, Layer, Limit, Place, Quota};
use meridian_quotas::stored::StoredBook;
use meridian_quotas::{LeaseConfig, Leases, Need, QuotaBook, QuotaError};
use meridian_registry::Registry;
use meridian_topic::LimitsAbove;
use meridian_types::TopicName;
use node::Node;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use usage::UsageCounter;

/// Pause between two looks at what is stored, and between renewals of leases.
const TICK: Duration = Duration::from_secs(1);
/// Usage of all topics is looked at every so many ticks.
const USAGE_TICKS: u64 = 10;
/// Pause between the first renewals of a lease: the other brokers give their parts up meanwhile.
const SOON: Duration = Duration::from_millis(200);
/// So many of them.
const SOON_TIMES: u32 = 5;

/// Whose limits go with what is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// Those that its tenant set. The operator's stay: a tenant that deletes a place and makes it anew has lifted nothing.
    OfTenant,
    /// Everybody's.
    All,
}

/// Quotas of one broker.
pub struct Quotas {
    book: Arc<QuotaBook>,
    registry: Arc<Registry>,
    leases: Option<Leases>,
    nodes: Mutex<HashMap<Place, Arc<Node>>>,
    /// E3: taken while places are asked.
    asking: Mutex<()>,
    pub(crate) usage: UsageCounter,
    storage: storage::Storage,
    /// A place has got a limit on what is stored.
    uncounted: Arc<Notify>,
    refused: IntCounterVec,
    /// There is a place here of whose limits nothing is leased yet.
    unleased: Notify,
}

impl Quotas {
    /// Over the limits of a book. With `leases` they are shared with other brokers; without, this broker has all of them.
    #[allow(clippy::expect_used)]
    pub fn new(
        book: Arc<QuotaBook>,
        stored: Arc<StoredBook>,
        registry: Arc<Registry>,
        broker: &str,
        leases: Option<LeaseConfig>,
    ) -> Arc<Self> {
        let opts = Opts::new("meridian_quota_refused_total", "Requests refused by a quota");
        Arc::new(Self {
            leases: leases.map(|config| Leases::new(book.store().clone(), config)),
            usage: UsageCounter::new(broker),
            refused: IntCounterVec::new(opts, &["limit", "level"]).expect("the name is constant and valid"),
            book,
            registry,
            nodes: Mutex::default(),
            asking: Mutex::default(),
            storage: storage::Storage::new(stored),
            uncounted: Arc::default(),
            unleased: Notify::new(),
        })
    }

    /// The limits.
    pub fn book(&self) -> &Arc<QuotaBook> {
        &self.book
    }

    /// Told when topics have to be counted that no record says anything of.
    pub(crate) fn uncounted(&self) -> Arc<Notify> {
        self.uncounted.clone()
    }

    /// Requests refused, by limit and level.
    pub(crate) fn refusals(&self) -> &IntCounterVec {
        &self.refused
    }

    fn note_refusal(&self, bound: &Bound) {
        self.refused.with_label_values(&[bound.limit.name(), bound.place.level().word()]).inc();
    }

    fn node(&self, place: &Place) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(place) {
            return node.clone();
        }
        let node = Arc::new(Node::default());
        self.put_rates(place, &node);
        nodes.insert(place.clone(), node.clone());
        if self.leases.is_some() && self.book.get(place).is_some() {
            self.unleased.notify_one();
        }
        node
    }

    /// A topic without partitions is served by one broker at a time: its own limits are all that broker's.
    fn is_of_one_broker(&self, place: &Place) -> bool {
        matches!(place, Place::Topic(topic) if self.registry.partitions(topic).is_none())
    }

    /// Places whose rates bind a topic. The topic's own is one only if it has limits.
    fn places_of(&self, topic: &TopicName) -> Vec<Place> {
        if is_system_topic(topic) {
            return Vec::new();
        }
        let [cluster, tenant, namespace, own] = Place::way_to(topic);
        let group = self.registry.resource_group(&topic.namespace());
        let mut places = vec![cluster, tenant, namespace];
        places.extend(Some(own).filter(|own| self.book.get(own).is_some()));
        places.extend(group.filter(|name| !name.is_empty()).map(Place::Group));
        places
    }

    /// The limiters of a topic's places.
    pub fn above(&self, topic: &TopicName) -> LimitsAbove {
        let nodes: Vec<Arc<Node>> = self.places_of(topic).iter().map(|place| self.node(place)).collect();
        LimitsAbove {
            publish: nodes.iter().map(|node| node.publish.clone()).collect(),
            dispatch: nodes.iter().map(|node| node.dispatch.clone()).collect(),
        }
    }

    /// The limit of a topic's links to other regions.
    pub fn replication(&self, topic: &TopicName) -> ReplicationLimit {
        ReplicationLimit::new(self.places_of(topic).iter().map(|place| self.node(place).replication.clone()).collect())
    }

    /// How much of a limit this broker may use: all of it, or what it has leased.
    fn allowed(&self, bound: &Bound, in_use: u64) -> u64 {
        let Some(leases) = self.leases.as_ref().filter(|_| bound.limit.is_leased()) else { return bound.value };
        if self.is_of_one_broker(&bound.place) {
            return bound.value;
        }
        let need = Need { limit: bound.limit, place: bound.place.clone(), total: bound.value, demand: 0, in_use };
        leases.allowed(&need, crate::service::now_ms())
    }

    fn bound_at(&self, limit: Limit, place: &Place) -> Option<Bound> {
        self.book.bound(limit, std::slice::from_ref(place))
    }

    fn put_rates(&self, place: &Place, node: &Node) {
        let has_limits = self.book.get(place).is_some();
        let rate = |messages: Limit, bytes: Limit| {
            let bound = |limit: Limit| has_limits.then(|| self.bound_at(limit, place)).flatten();
            let one = |limit: Limit| bound(limit).map_or(0, |bound| self.allowed(&bound, 0).max(1));
            (one(messages), one(bytes))
        };
        node.put_rates(
            rate(Limit::PublishMessagesPerSecond, Limit::PublishBytesPerSecond),
            rate(Limit::DispatchMessagesPerSecond, Limit::DispatchBytesPerSecond),
            rate(Limit::ReplicationMessagesPerSecond, Limit::ReplicationBytesPerSecond),
        );
    }

    /// Puts changed limits in force; answers whether a rate has changed.
    fn put_all_rates(&self) {
        let nodes: Vec<(Place, Arc<Node>)> =
            self.nodes.lock().iter().map(|(place, node)| (place.clone(), node.clone())).collect();
        for (place, node) in nodes {
            self.put_rates(&place, &node);
        }
    }

    /// Forgets places that nothing belongs to any more.
    fn sweep(&self) {
        self.nodes.lock().retain(|_, node| Arc::strong_count(node) > 1 || node.is_used());
    }

    /// Renews what is leased of every limit that something here belongs to.
    async fn renew(&self) {
        let Some(leases) = &self.leases else { return };
        let needs = self.needs();
        self.renew_these(leases, &needs).await;
        if let Err(error) = leases.retain(&needs).await {
            tracing::debug!(%error, "a leased quota could not be given back");
        }
        self.put_all_rates();
    }

    async fn renew_these(&self, leases: &Leases, needs: &[Need]) {
        for (need, error) in leases.renew_all(needs, crate::service::now_ms()).await {
            tracing::debug!(place = %need.place, limit = %need.limit, %error, "a quota could not be leased");
        }
    }

    /// Leases what is not leased yet, without waiting for the next tick; adds what it was.
    async fn lease_new(&self, fresh: &mut HashSet<(Limit, Place)>) {
        let Some(leases) = &self.leases else { return };
        let needs: Vec<Need> = self.needs().into_iter().filter(|need| !leases.knows(need)).collect();
        self.renew_these(leases, &needs).await;
        fresh.extend(needs.into_iter().map(|need| (need.limit, need.place)));
        self.put_all_rates();
    }

    /// Renews what was leased for the first time a moment ago.
    async fn renew_fresh(&self, fresh: &HashSet<(Limit, Place)>) {
        let Some(leases) = &self.leases else { return };
        let is_fresh = |need: &Need| fresh.contains(&(need.limit, need.place.clone()));
        let needs: Vec<Need> = self.needs().into_iter().filter(is_fresh).collect();
        self.renew_these(leases, &needs).await;
        self.put_all_rates();
    }

    /// Leases room for one more of what a place has no room for here.
    pub(crate) async fn ask_for_more(&self, exceeded: &Exceeded) {
        let Some(leases) = &self.leases else { return };
        let bound = &exceeded.bound;
        if self.is_of_one_broker(&bound.place) {
            return;
        }
        let need = Need {
            limit: bound.limit,
            place: bound.place.clone(),
            total: bound.value,
            demand: exceeded.used + 1,
            in_use: exceeded.used,
        };
        if let Err(error) = leases.renew(&need, crate::service::now_ms()).await {
            tracing::debug!(place = %bound.place, %error, "a quota could not be leased");
        }
    }

    fn needs(&self) -> Vec<Need> {
        let nodes: Vec<(Place, Arc<Node>)> =
            self.nodes.lock().iter().map(|(place, node)| (place.clone(), node.clone())).collect();
        let mut needs = Vec::new();
        for (place, node) in nodes {
            let Some(quotas) = self.book.get(&place).filter(|_| !self.is_of_one_broker(&place)) else { continue };
            for limit in Limit::ALL.into_iter().filter(|limit| limit.is_leased()) {
                let Some((total, _)) = quotas.get(limit) else { continue };
                let in_use = node.count(limit);
                let demand = if limit.is_rate() { self.usage.demand(&place, limit) } else { in_use };
                needs.push(Need { limit, place: place.clone(), total, demand, in_use });
            }
        }
        needs
    }
}

/// Follows changes, renews leases, looks at what is stored and used, as long as the broker is there.
pub(crate) async fn run(service: Weak<BrokerService>, quotas: Arc<Quotas>) {
    let mut changes = quotas.book.changes();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut tick, mut limited) = (0u64, quotas.limited());
    let (mut soon, mut fresh) = (0u32, HashSet::new());
    loop {
        let event = tokio::select! {
            changed = changes.changed() => match changed {
                Ok(()) => Event::Changed,
                Err(_) => return,
            },
            () = quotas.unleased.notified() => Event::Unleased,
            () = tokio::time::sleep(SOON), if soon > 0 => Event::Soon,
            _ = ticks.tick() => Event::Tick,
        };
        let Some(service) = service.upgrade() else { return };
        match event {
            Event::Changed => {
                quotas.put_all_rates();
                service.push_limits_above();
                quotas.look_at_storage(&service);
                quotas.count_new(&mut limited);
                quotas.lease_new(&mut fresh).await;
                soon = if fresh.is_empty() { 0 } else { SOON_TIMES };
            }
            Event::Unleased => {
                quotas.lease_new(&mut fresh).await;
                soon = if fresh.is_empty() { 0 } else { SOON_TIMES };
            }
            Event::Soon => {
                quotas.renew_fresh(&fresh).await;
                soon -= 1;
                if soon == 0 {
                    fresh.clear();
                }
            }
            Event::Tick => {
                tick += 1;
                quotas.on_tick(&service, tick).await;
            }
        }
    }
}

/// Why the task of quotas has something to do.
enum Event {
    /// Limits were changed.
    Changed,
    /// A place has come that nothing is leased for.
    Unleased,
    /// Parts of fresh leases may be free now.
    Soon,
    /// A second has passed.
    Tick,
}

impl Quotas {
    /// Asks for a count when a place has got a limit on what is stored.
    fn count_new(&self, limited: &mut storage::Limited) {
        let before = std::mem::replace(limited, self.limited());
        if limited.keys().any(|place| !before.contains_key(place)) {
            self.uncounted.notify_one();
        }
    }

    async fn on_tick(&self, service: &BrokerService, tick: u64) {
        self.renew().await;
        let limited = !self.book.is_empty();
        self.look_at_storage(service);
        self.write_stored(service, tick.is_multiple_of(USAGE_TICKS)).await;
        // What a broker would use of leased rates is asked for every second, what tenants used is not.
        if tick.is_multiple_of(USAGE_TICKS) || limited && self.leases.is_some() {
            self.usage.sample(self, service, crate::service::now_ms());
        }
        if tick.is_multiple_of(USAGE_TICKS) {
            self.usage.write(&self.book, crate::service::now_ms()).await;
            self.sweep();
        }
    }
}

impl BrokerService {
    /// Forgets limits at a place that is gone and within it, also of topics that never came.
    ///
    /// # Errors
    /// What the metadata store says.
    pub async fn forget_quotas(&self, place: &Place, whose: Forgotten) -> Result<(), BrokerError> {
        let book = self.quotas().book();
        for gone in book.within(place) {
            let forgotten = match whose {
                Forgotten::OfTenant => book.set(&gone, Layer::Tenant, &Quota::default()).await,
                Forgotten::All => book.forget(&gone).await,
            };
            forgotten.map_err(|error| match error {
                QuotaError::Store(error) => BrokerError::Metadata(error),
                other => BrokerError::NotReady(other.to_string()),
            })?;
        }
        Ok(())
    }

    /// Gives every topic the limits of its places anew, and wakes what waits for them.
    pub(crate) fn push_limits_above(&self) {
        for topic in self.loaded_topics() {
            topic.set_limits_above(self.quotas().above(topic.name()));
        }
    }
}
