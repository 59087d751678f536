//! `meridian standalone`: one region in one process.
//!
//! Role: builds the floors from the bottom up (metadata, bookies, ledgers, logs, policies, broker, admin API), waits for
//! a signal, and takes them down from the top.
//! Invariants: W1 ports are bound before anything is announced, and nothing is accepted before everything behind the
//! ports is ready; W2 at the end topics close before the bookies do, bookies before metadata; W3 one process owns a data
//! folder, and claims it before it touches anything else.
//! Failure: an error before "ready" ends the process with what to change; a second signal ends it at once.

use crate::cli::{Failure, StandaloneArgs};
use crate::config::{self, broker as broker_config};
use crate::failover;
use crate::floors::{self, Bookies, Floors};
use crate::logging;
use crate::ports::Ports;
use crate::ready::{self, Addresses};
use crate::region_link;
use meridian_admin::{AdminState, LiveSettings};
use meridian_broker::failover::SharedStates;
use meridian_broker::replication::{Linker, RegionLinker};
use meridian_broker::{Access, BrokerParts, BrokerService, StorageFactory, live};
use meridian_door::Door;
use meridian_identity::Identity;
use meridian_link::RegionLink;
use meridian_metadata::SharedStore;
use meridian_registry::Registry;
use meridian_settings::{Key, Settings};
use meridian_topic::BrokerLimits;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Stack of a runtime thread: futures are boxed where they are deep, so the usual two megabytes are not needed.
const STACK_BYTES: usize = 1 << 20;
/// Pause between two looks whether a disk is short.
const DISK_LOOK: Duration = Duration::from_secs(10);

/// Runs until a signal ends it.
///
/// # Errors
/// Whatever prevented the start or a clean end.
pub fn run(args: StandaloneArgs) -> Result<(), Failure> {
    let begun = Instant::now();
    let (settings, notices) = config::load(&args)?;
    logging::start(&settings);
    for notice in notices {
        tracing::warn!("{notice}");
    }
    if settings.switch(Key::TransactionCoordinatorEnabled) {
        return Err("transactionCoordinatorEnabled=true: transactions are not served; expected false".into());
    }
    config::storage::check_quorums(&settings)?;
    config::broker::check_security(&settings)?;
    let threads = match settings.count(Key::NumIOThreads) {
        0 => std::thread::available_parallelism().map_or(2, usize::from),
        set => usize::try_from(set).unwrap_or(2).min(256),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(serve(&args, &settings, begun));
    // Reads and calls that nobody waits for any more must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn serve(args: &StandaloneArgs, settings: &Settings, begun: Instant) -> Result<(), Failure> {
    let _claim = floors::claim(&args.data_dir)?;
    let ports = Ports::bind(settings)?;
    let floors = Floors::build(settings, &args.data_dir).await?;
    let link = region_link::link(settings)?;
    let (service, admin) = broker(settings, &floors, &ports.at).await?;
    service.attach_link(
        link.clone(),
        region_link::url(&link, broker_config::advertised_host(settings), ports.at.region_link),
    );
    floors.metrics.register(Box::new(region_link::LinkFigures::new(&link)))?;
    let acks = Arc::new(SharedStates(Arc::downgrade(&service)));
    let mut tasks = failover::start(&service, floors.store.clone(), &link, acks).await?;
    service.start();
    tasks.extend(ports.binary.into_iter().map(|listener| tokio::spawn(listener.run(service.clone()))));
    tasks.extend(ports.web.into_iter().map(|listener| tokio::spawn(listener.run(admin.clone()))));
    if let Some(listener) = ports.region_link {
        tasks.push(tokio::spawn(answer_regions(link.clone(), listener)));
    }
    let (live, followed) = (admin.live.clone(), service.clone());
    tasks.push(tokio::spawn(async move { live.follow(&followed).await }));
    let garbage = collect_garbage(floors.bookies.clone(), floors.store.clone(), settings.count(Key::GcWaitTime));
    tasks.push(tokio::spawn(garbage));
    ready::announce(settings.text(Key::ClusterName), &ports.at, begun.elapsed(), args.ready_file.as_deref())?;

    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
        () = parent_gone(args.end_with_stdin) => {}
    }
    tracing::info!("ending: no more connections, closing topics");
    for task in &tasks {
        task.abort();
    }
    link.set_peers([]);
    let ended = Instant::now();
    let ending = end(&service, &floors);
    tokio::select! {
        outcome = ending => {
            outcome?;
            tracing::info!(took_ms = ended.elapsed().as_millis() as u64, "ended");
            Ok(())
        }
        _ = term.recv() => std::process::exit(1),
        _ = interrupt.recv() => std::process::exit(1),
    }
}

async fn answer_regions(link: Arc<RegionLink>, listener: TcpListener) {
    if let Err(error) = link.serve(listener, std::future::pending()).await {
        tracing::error!(error, "other regions are not answered any more");
    }
}

async fn broker(
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
    registry.bootstrap(&broker_config::cluster_data(&config), bundles).await?;
    let identity = match settings.switch(Key::AuthenticationEnabled) {
        true => Some(Arc::new(Identity::new(&broker_config::identity(settings)?)?)),
        false => None,
    };
    let access = Access { identity, door: Arc::new(Door::new(broker_config::door(settings), registry.clone())) };
    let options = broker_config::storage_options(&in_force);
    let live = live_settings(settings, registry.clone(), options.limits.clone());
    let factory = StorageFactory::new(floors.logs.clone(), options);
    let linker = RegionLinker::new(&config.cluster, config.replication.clone(), registry.clone(), floors.store.clone());
    let linker: Option<Arc<dyn Linker>> = Some(linker);
    let parts =
        BrokerParts { config, store: floors.store.clone(), registry, factory: Arc::new(factory), access, linker };
    let service = BrokerService::new(parts).await?;
    let admin = AdminState::with_live(service.clone(), live, floors.metrics.clone());
    Ok((service, admin))
}

/// Settings whose changes become defaults of policies and shared rates.
fn live_settings(settings: &Settings, registry: Arc<Registry>, limits: BrokerLimits) -> LiveSettings {
    let apply = move |settings: &Settings| {
        registry.set_defaults(broker_config::defaults(settings));
        broker_config::put_shared_rates(settings, &limits);
    };
    LiveSettings::new(settings.clone(), Box::new(apply))
}

/// Takes everything down from the top (W2).
async fn end(service: &Arc<BrokerService>, floors: &Floors) -> Result<(), Failure> {
    if let Err(error) = service.shut_down().await {
        tracing::warn!(%error, "not every topic closed cleanly; the next start recovers it");
    }
    floors.close().await
}

/// Deletes entries of ledgers that are gone, every so often (S6); at once and again while a disk is short.
async fn collect_garbage(bookies: Arc<Bookies>, store: SharedStore, pause_ms: u64) {
    let pause = Duration::from_millis(pause_ms.max(1000));
    let mut beat = tokio::time::interval(DISK_LOOK.min(pause));
    let mut last = Instant::now();
    loop {
        beat.tick().await;
        if last.elapsed() >= pause || bookies.short_of_disk() {
            bookies.collect_garbage(&store).await;
            last = Instant::now();
        }
    }
}

/// Returns once standard input closes, if that is to be the end; never otherwise.
async fn parent_gone(wanted: bool) {
    if !wanted {
        return std::future::pending().await;
    }
    let (gone, told) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of standard input can't be taken back, and must not hold up the end.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = gone.send(());
    });
    let _ = told.await;
}

/// The folder of the metadata store.
pub fn metadata_dir(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("metadata")
}
