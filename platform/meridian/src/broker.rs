//! The broker of a process: built over the floors, started, ended.
//!
//! Invariants: W1 no client is accepted before everything behind the ports is ready; the admin API answers before, as it
//! says what is missing; W2 at the end connections are refused first, then topics close.
//! Failure: an error before it runs ends the start.

use crate::audit;
use crate::cli::Failure;
use crate::config::broker as broker_config;
use crate::config::ownership::region;
use crate::failover;
use crate::floors::Floors;
use crate::front::Front;
use crate::ports::Ports;
use crate::ready::Addresses;
use crate::region_link;
use crate::role::Role;
use crate::storage_desk::StorageDesk;
use meridian_admin::{AdminState, LiveSettings};
use meridian_audit::AuditLog;
use meridian_autorecovery::Desk;
use meridian_broker::failover::SharedStates;
use meridian_broker::replication::{Linker, RegionLinker};
use meridian_broker::service::{RegistryNamespaces, broker_record};
use meridian_broker::{Access, BrokerParts, BrokerService, Listener, StorageFactory, live};
use meridian_door::Door;
use meridian_identity::Identity;
use meridian_link::RegionLink;
use meridian_ownership::RegionOwnership;
use meridian_registry::Registry;
use meridian_settings::{Key, Settings};
use meridian_topic::BrokerLimits;
use meridian_types::NamespaceName;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};

/// The namespace of clients that name none.
const FIRST_NAMESPACE: &str = "public/default";
/// Pause between two looks whether it is seen, and how long it may take.
const SEEN_LOOK: Duration = Duration::from_millis(20);
const SEEN_LIMIT: Duration = Duration::from_secs(30);
/// Clients of a broker that gets no lease in that time are answered nevertheless: they are refused at once, and go to
/// others.
const IN_FORCE_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at the lease.
const IN_FORCE_LOOK: Duration = Duration::from_millis(10);

/// A running broker.
pub struct Broker {
    service: Arc<BrokerService>,
    link: Arc<RegionLink>,
    audit: Option<Arc<AuditLog>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Broker {
    /// Builds it and serves the ports (W1).
    ///
    /// # Errors
    /// What is missing below it, or in the settings.
    pub async fn start(
        role: Role,
        settings: &Settings,
        floors: &Floors,
        ports: &mut Ports,
        front: &Front,
        data_dir: Option<&Path>,
    ) -> Result<Self, Failure> {
        let link = region_link::link(settings)?;
        let (service, admin) = build(role, settings, floors, &ports.at).await?;
        let audit = audit::start(settings, data_dir, &floors.metrics, &service)?;
        let (refusals, body_bytes) = (front.refusals().clone(), broker_config::web_limits(settings).body_bytes);
        let admin = AdminState { audit: audit.clone(), refusals, body_bytes, ..admin };
        service.attach_link(
            link.clone(),
            region_link::url(&link, broker_config::advertised_host(settings), ports.at.region_link),
        );
        floors.metrics.register(Box::new(region_link::LinkFigures::new(&link)))?;
        let acks = Arc::new(SharedStates(Arc::downgrade(&service)));
        let mut tasks = failover::start(&service, floors.store.clone(), &link, acks, settings).await?;
        service.start();
        front.open(meridian_admin::router(admin.clone()));
        let (binary, region_link) = (std::mem::take(&mut ports.binary), ports.region_link.take());
        tasks.push(tokio::spawn(accept(service.clone(), link.clone(), binary, region_link)));
        let (live, followed) = (admin.live.clone(), service.clone());
        tasks.push(tokio::spawn(async move { live.follow(&followed).await }));
        Ok(Self { service, link, audit, tasks })
    }

    /// Until its lease is in force: it may be another's for now.
    pub async fn in_force(&self) {
        wait_in_force(&self.service).await;
    }

    /// Accepts nothing more.
    pub fn refuse(&self) {
        for task in &self.tasks {
            task.abort();
        }
        self.link.set_peers([]);
    }

    /// Writes the last records and closes the topics (W2).
    pub async fn end(&self) {
        audit::close(self.audit.as_ref()).await;
        if let Err(error) = self.service.shut_down().await {
            tracing::warn!(%error, "not every topic closed cleanly; the next start recovers it");
        }
    }
}

async fn wait_in_force(service: &BrokerService) {
    while !service.ownership().in_force() {
        tokio::time::sleep(IN_FORCE_LOOK).await;
    }
}

/// Serves clients and other regions. Those that come before the lease is in force would be sent away again.
async fn accept(
    service: Arc<BrokerService>,
    link: Arc<RegionLink>,
    binary: Vec<Listener>,
    region_link: Option<TcpListener>,
) {
    let _ = tokio::time::timeout(IN_FORCE_LIMIT, wait_in_force(&service)).await;
    let mut serving = JoinSet::new();
    for listener in binary {
        serving.spawn(listener.run(service.clone()));
    }
    if let Some(listener) = region_link {
        serving.spawn(answer_regions(link, listener));
    }
    while serving.join_next().await.is_some() {}
}

async fn answer_regions(link: Arc<RegionLink>, listener: TcpListener) {
    if let Err(error) = link.serve(listener, std::future::pending()).await {
        tracing::error!(error, "other regions are not answered any more");
    }
}

async fn build(
    role: Role,
    settings: &Settings,
    floors: &Floors,
    at: &Addresses,
) -> Result<(Arc<BrokerService>, AdminState), Failure> {
    // What was changed while brokers run holds from the first moment.
    let (in_force, refused) = settings.with_live(&live::load(&floors.store).await?);
    for problem in refused {
        tracing::warn!(problem, "a stored setting is passed over");
    }
    let config = broker_config::broker(settings, at);
    let (defaults, sharing) = (broker_config::defaults(&in_force), broker_config::sharing(settings));
    let registry = Registry::open_with(floors.store.clone(), defaults, sharing).await?;
    let bundles = u32::try_from(settings.count(Key::DefaultNumberOfNamespaceBundles)).unwrap_or(4).max(1);
    // The entry of a region of several brokers is an operator's once it is there: no broker is the one address of all.
    let known = registry.cluster(&config.cluster).filter(|_| role.in_cluster());
    let data = known.map_or_else(|| broker_config::cluster_data(&config), |known| (*known).clone());
    registry.bootstrap(&data, bundles).await?;
    see_namespaces(&registry).await?;
    let identity = match settings.switch(Key::AuthenticationEnabled) {
        true => Some(Arc::new(Identity::new(&broker_config::identity(settings)?)?)),
        false => None,
    };
    let access = Access { identity, door: Arc::new(Door::new(broker_config::door(settings), registry.clone())) };
    let options = broker_config::storage_options(&in_force);
    let live = live_settings(settings, registry.clone(), options.limits.clone());
    let factory = StorageFactory::new(floors.logs(settings), options);
    let linker = RegionLinker::new(&config.cluster, config.replication.clone(), registry.clone(), floors.store.clone());
    let linker: Option<Arc<dyn Linker>> = Some(linker);
    let parts =
        BrokerParts { config, store: floors.store.clone(), registry, factory: Arc::new(factory), access, linker };
    let service = match role.in_cluster() {
        true => {
            let namespaces = Arc::new(RegistryNamespaces::new(parts.registry.clone(), &parts.config.cluster));
            let me = broker_record(&parts.config);
            let ownership = RegionOwnership::new(parts.store.clone(), me, namespaces, region(settings));
            BrokerService::with_ownership(parts, ownership).await?
        }
        false => BrokerService::new(parts).await?,
    };
    let desk = StorageDesk::new(Desk::new(floors.store.clone(), floors.ledgers.clone()));
    let admin = AdminState::with_live(service.clone(), live, floors.metrics.clone()).with_desk(Arc::new(desk));
    Ok((service, admin))
}

/// Waits until what another broker may have created a moment ago is seen here, too.
async fn see_namespaces(registry: &Registry) -> Result<(), Failure> {
    let first = NamespaceName::parse(FIRST_NAMESPACE)?;
    let seen = async {
        while registry.namespace(&first).is_none() {
            tokio::time::sleep(SEEN_LOOK).await;
        }
    };
    let late = |_| format!("namespace {FIRST_NAMESPACE} was not seen within {} s", SEEN_LIMIT.as_secs());
    Ok(tokio::time::timeout(SEEN_LIMIT, seen).await.map_err(late)?)
}

/// Settings whose changes become defaults of policies and shared rates.
fn live_settings(settings: &Settings, registry: Arc<Registry>, limits: BrokerLimits) -> LiveSettings {
    let apply = move |settings: &Settings| {
        registry.set_defaults(broker_config::defaults(settings));
        broker_config::put_shared_rates(settings, &limits);
    };
    LiveSettings::new(settings.clone(), Box::new(apply))
}
