//! The broker's service: hosts topics, answers lookups, keeps schemas; everything that sessions and the admin API call.
//!
//! Invariants: B1, B2 (see [`topic_map`]).
//! Failure: every call answers a typed [`BrokerError`]; waits have the deadlines of [`BrokerConfig`].
//! Must never know: frames, HTTP.

mod acks;
mod append;
mod background;
mod colleagues;
mod create;
mod delete;
mod grants;
mod health;
mod listing;
mod live;
mod lookup;
mod names;
mod owning;
mod partitions;
mod policies;
mod regions;
mod schemas;
mod subscriptions;
mod topic_map;
mod topics;

pub use append::Appender;
pub use colleagues::WithinError;
pub use listing::{ListDomain, is_system_topic};
pub use lookup::LookupAnswer;
pub use owning::{CONTACT_PATH, RegistryNamespaces, broker_id, broker_record};
pub use partitions::MAX_PARTITIONS;
pub use regions::AttachedLink;
pub use subscriptions::Deed;
pub use topics::Create;

use crate::access::Access;
use crate::colleagues::Colleagues;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::factory::TopicFactory;
use crate::failover::TopicsHost;
use crate::listener::ConnectionCounts;
use crate::metrics::BrokerMetrics;
use crate::quotas::Quotas;
use crate::replication::{AckExchange, Feed, Linker, NoLinks, Replication, Surroundings, TopicMarkers};
use crate::schema::SchemaRegistry;
use meridian_failover::FailoverService;
use meridian_managed_ledger::{CursorInfo, InitialPosition, ManagedLedger};
use meridian_metadata::{MetadataError, SharedStore};
use meridian_ownership::{Everything, Ownership};
use meridian_policy::{ClusterData, EffectivePolicies};
use meridian_quotas::stored::StoredBook;
use meridian_quotas::{LeaseConfig, QuotaBook, QuotaError};
use meridian_registry::Registry;
use meridian_replicator::MarkerSink;
use meridian_types::{Domain, TopicName};
use meridian_wire::replicate::LINK_PREFIX;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, broadcast, mpsc, watch};
use tokio::task::JoinHandle;

/// Topic events that a slow listener may be behind before it has to list anew.
const EVENT_BACKLOG: usize = 1_024;

/// A topic came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicEvent {
    /// It was created.
    Created(TopicName),
    /// It was deleted.
    Deleted(TopicName),
    /// Some may have come or gone elsewhere: list them anew.
    Missed,
}

/// What a broker is made of.
pub struct BrokerParts {
    /// Numbers and texts.
    pub config: BrokerConfig,
    /// The metadata store.
    pub store: SharedStore,
    /// Tenants, namespaces, policies.
    pub registry: Arc<Registry>,
    /// Opens topics.
    pub factory: Arc<dyn TopicFactory>,
    /// Identity and permissions.
    pub access: Access,
    /// Starts links to other regions; `None` = this broker has none.
    pub linker: Option<Arc<dyn Linker>>,
}

/// What links see of the broker.
struct Around {
    registry: Arc<Registry>,
    factory: Arc<dyn TopicFactory>,
    acks: Arc<AckExchange>,
    topics: Arc<topic_map::TopicMap>,
}

impl Surroundings for Around {
    fn policies(&self, topic: &TopicName) -> EffectivePolicies {
        self.registry.effective(topic)
    }

    fn cluster(&self, name: &str) -> Option<Arc<ClusterData>> {
        self.registry.cluster(name)
    }

    fn feed(&self, topic: &TopicName) -> Option<Feed> {
        match topic.domain() {
            Domain::Persistent => self.factory.log(topic).map(Feed::Log),
            Domain::NonPersistent => self.topics.loaded(topic).map(Feed::Live),
        }
    }

    fn markers(&self, topic: &TopicName) -> Option<Arc<dyn MarkerSink>> {
        Some(Arc::new(TopicMarkers::new(self.acks.clone(), topic.clone())))
    }

    fn published(&self, topic: &TopicName) -> (u64, u64) {
        self.topics.loaded(topic).map_or((0, 0), |topic| topic.published())
    }
}

/// The broker.
pub struct BrokerService {
    config: BrokerConfig,
    store: SharedStore,
    registry: Arc<Registry>,
    factory: Arc<dyn TopicFactory>,
    ownership: Arc<dyn Ownership>,
    this: Weak<BrokerService>,
    /// Bundles came: what in them has to be open without being asked for is looked for.
    gained: Arc<Notify>,
    replication: Arc<Replication>,
    failover: OnceLock<Arc<FailoverService>>,
    topics_host: OnceLock<Arc<TopicsHost>>,
    colleagues: Colleagues,
    acks: Arc<AckExchange>,
    topics: Arc<topic_map::TopicMap>,
    loads: Semaphore,
    lookups: Semaphore,
    access: Access,
    connections: Arc<ConnectionCounts>,
    schemas: SchemaRegistry,
    events: broadcast::Sender<TopicEvent>,
    names: names::ProducerNames,
    quotas: Arc<Quotas>,
    metrics: BrokerMetrics,
    runtime: Handle,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    link: OnceLock<AttachedLink>,
    known_grants: Mutex<grants::KnownGrants>,
    grants: watch::Sender<u64>,
    last_tick_ms: AtomicU64,
    /// Who waits for policies to be in force; the other end is there until the broker starts.
    push_now: mpsc::Sender<background::PushNow>,
    push_asked: Mutex<Option<mpsc::Receiver<background::PushNow>>>,
    /// No logins and loads any more.
    closing: watch::Sender<bool>,
    /// Connections end.
    closed: watch::Sender<bool>,
}

impl BrokerService {
    /// Figures of everything below topics, by their names as metrics.
    pub(crate) fn storage_figures(&self) -> Vec<(&'static str, u64)> {
        self.factory.figures()
    }

    /// Builds the service; nothing runs before [`BrokerService::start`].
    ///
    /// # Errors
    /// [`MetadataError`] if no number for generated names can be had.
    pub async fn new(mut parts: BrokerParts) -> Result<Arc<Self>, MetadataError> {
        parts.config.quota_lease_ms = None;
        let namespaces = Arc::new(RegistryNamespaces::new(parts.registry.clone(), &parts.config.cluster));
        let alone = Arc::new(Everything::new(broker_record(&parts.config), namespaces));
        Self::with_ownership(parts, alone).await
    }

    /// As [`BrokerService::new`], for a broker that shares its region with others.
    ///
    /// # Errors
    /// As [`BrokerService::new`].
    pub async fn with_ownership(parts: BrokerParts, ownership: Arc<dyn Ownership>) -> Result<Arc<Self>, MetadataError> {
        let names = names::ProducerNames::claim(&parts.config.cluster, &parts.store).await?;
        let acks = AckExchange::new(&parts.config.cluster);
        let (registry, factory) = (parts.registry.clone(), parts.factory.clone());
        let topics: Arc<topic_map::TopicMap> = Arc::default();
        let around = Around { registry, factory, acks: acks.clone(), topics: topics.clone() };
        let settings = parts.config.replication.clone();
        let linker = parts.linker.unwrap_or_else(|| Arc::new(NoLinks));
        let of_store = |error| match error {
            QuotaError::Store(error) => error,
            other => MetadataError::Corrupt(other.to_string()),
        };
        let book = QuotaBook::open(parts.store.clone()).await.map_err(of_store)?;
        let stored = StoredBook::open(parts.store.clone()).await.map_err(of_store)?;
        let holder = ownership.me().id.clone();
        let leases = parts.config.quota_lease_ms.map(|ttl_ms| LeaseConfig { holder: holder.clone(), ttl_ms });
        let quotas = Quotas::new(book, stored, parts.registry.clone(), &holder, leases);
        linker.limit_by(quotas.clone());
        let start_at = if settings.from_earliest { InitialPosition::Earliest } else { InitialPosition::Latest };
        let stop_limit = Duration::from_millis(settings.stop_limit_ms.max(1));
        let replication =
            Replication::new(parts.config.cluster.clone(), start_at, stop_limit, Arc::new(around), linker);
        let (push_now, push_asked) = mpsc::channel(background::PUSHES_ASKED);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            gained: Arc::default(),
            ownership,
            replication,
            failover: OnceLock::new(),
            topics_host: OnceLock::new(),
            colleagues: Colleagues::new(parts.store.clone()),
            acks,
            loads: Semaphore::new(parts.config.max_concurrent_topic_loads as usize),
            lookups: Semaphore::new(parts.config.session.max_concurrent_lookups as usize),
            access: parts.access,
            connections: Arc::default(),
            config: parts.config,
            factory: parts.factory,
            topics,
            schemas: SchemaRegistry::new(parts.store.clone()),
            store: parts.store,
            registry: parts.registry,
            events: broadcast::channel(EVENT_BACKLOG).0,
            names,
            metrics: {
                let metrics = BrokerMetrics::new();
                metrics.register(Box::new(quotas.refusals().clone()));
                metrics
            },
            quotas,
            runtime: Handle::current(),
            tasks: Mutex::default(),
            link: OnceLock::new(),
            known_grants: Mutex::default(),
            grants: watch::channel(0).0,
            last_tick_ms: AtomicU64::new(0),
            push_now,
            push_asked: Mutex::new(Some(push_asked)),
            closing: watch::channel(false).0,
            closed: watch::channel(false).0,
        }))
    }

    /// Numbers and texts.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Tenants, namespaces, policies.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Quotas in force here.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// Identity and permissions.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Links of topics to other regions.
    pub fn replication(&self) -> &Arc<Replication> {
        &self.replication
    }

    /// Cursors of an open topic that are no subscriptions.
    pub fn internal_cursors(&self, topic: &TopicName) -> Vec<CursorInfo> {
        let cursors = self.factory.log(topic).map(|log| log.cursors()).unwrap_or_default();
        cursors.iter().filter(|cursor| cursor.is_internal()).map(|cursor| cursor.info()).collect()
    }

    /// Whether a stored topic has a cursor of a link.
    ///
    /// # Errors
    /// What storage says.
    pub async fn has_replication_cursor(&self, name: &TopicName) -> Result<bool, BrokerError> {
        let names = self.factory.cursor_names(name).await?;
        Ok(names.iter().any(|name| name.starts_with(LINK_PREFIX)))
    }

    pub(crate) fn failover_slot(&self) -> &OnceLock<Arc<FailoverService>> {
        &self.failover
    }

    pub(crate) fn log_of(&self, topic: &TopicName) -> Option<Arc<ManagedLedger>> {
        self.factory.log(topic)
    }

    /// Counters of the broker.
    pub fn metrics(&self) -> &BrokerMetrics {
        &self.metrics
    }

    /// Becomes true when connections have to end.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// A place among the lookups in progress.
    ///
    /// # Errors
    /// [`BrokerError::TooManyRequests`].
    pub fn lookup_permit(&self) -> Result<SemaphorePermit<'_>, BrokerError> {
        self.lookups.try_acquire().map_err(|_| BrokerError::TooManyRequests {
            what: "lookups",
            limit: self.config.session.max_concurrent_lookups,
        })
    }

    /// Connections of clients.
    pub fn connections(&self) -> &Arc<ConnectionCounts> {
        &self.connections
    }

    /// Schemas of all topics.
    pub fn schemas(&self) -> &SchemaRegistry {
        &self.schemas
    }

    /// Comings and goings of topics from now on.
    pub fn events(&self) -> broadcast::Receiver<TopicEvent> {
        self.events.subscribe()
    }

    /// A name for a producer that brought none, unique in the cluster.
    pub fn next_producer_name(&self) -> String {
        self.names.next()
    }

    /// Told when bundles come.
    pub(crate) fn gained(&self) -> Arc<Notify> {
        self.gained.clone()
    }

    fn announce(&self, event: TopicEvent) {
        // Nobody listening is no error.
        let _ = self.events.send(event);
    }
}

/// Wall clock in ms since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
