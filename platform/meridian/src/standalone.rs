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
use crate::ready::{self, Addresses};
use crate::region_link;
use meridian_admin::{AdminState, LiveSettings, WebListener};
use meridian_broker::failover::SharedStates;
use meridian_broker::replication::{Linker, RegionLinker};
use meridian_broker::{Access, BrokerParts, BrokerService, Listener, StorageFactory, live};
use meridian_door::Door;
use meridian_identity::{Identity, tls};
use meridian_link::RegionLink;
use meridian_metadata::SharedStore;
use meridian_registry::Registry;
use meridian_settings::{Key, Settings};
use meridian_topic::BrokerLimits;
use std::net::{IpAddr, SocketAddr, TcpListener};
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
    if settings.switch(Key::AuthenticationEnabled) && settings.list(Key::AuthenticationProviders).is_empty() {
        let text = "authenticationEnabled=true: authenticationProviders is empty, so that nobody could log in; expected at \
                    least one of token, basic, tls";
        return Err(text.into());
    }
    if settings.switch(Key::AuthorizationEnabled) && !settings.switch(Key::AuthenticationEnabled) {
        tracing::warn!(
            "authorizationEnabled=true without authenticationEnabled: nobody has a role, so everybody is refused"
        );
    }
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

/// The ports of one region.
struct Ports {
    binary: Vec<Listener>,
    web: Vec<WebListener>,
    region_link: Option<TcpListener>,
    at: Addresses,
}

/// Names the setting in the error of a port that can't be bound.
fn named(key: &'static str, port: u16) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{key}={port}: the port can't be bound: {error}")
}

/// The server side of TLS for a port, or which settings it needs.
fn tls_config(
    settings: &Settings,
    key: &'static str,
    port: u16,
    alpn: &[&[u8]],
) -> Result<Arc<rustls::ServerConfig>, Failure> {
    let files = broker_config::tls_files(settings, alpn);
    if files.certificate.is_empty() || files.key.is_empty() {
        let missing: Vec<&str> = [(&files.certificate, "tlsCertificateFilePath"), (&files.key, "tlsKeyFilePath")]
            .iter()
            .filter(|(value, _)| value.is_empty())
            .map(|(_, name)| *name)
            .collect();
        return Err(format!("{key}={port}: a port with TLS needs a certificate: set {}", missing.join(" and ")).into());
    }
    Ok(tls::server_config(&files)?)
}

fn bind(settings: &Settings) -> Result<Ports, Failure> {
    let host: IpAddr = settings
        .text(Key::BindAddress)
        .parse()
        .map_err(|_| format!("bindAddress={}: expected an IP address", settings.text(Key::BindAddress)))?;
    let mut ports = Ports { binary: Vec::new(), web: Vec::new(), region_link: None, at: Addresses::default() };
    if let Some(port) = settings.port(Key::BrokerServicePort) {
        let listener =
            Listener::bind(SocketAddr::new(host, port), None, None).map_err(named("brokerServicePort", port))?;
        ports.at.binary = Some(listener.local_address()?);
        ports.binary.push(listener);
    }
    if let Some(port) = settings.port(Key::BrokerServicePortTls) {
        let config = tls_config(settings, "brokerServicePortTls", port, &[])?;
        let address = SocketAddr::new(host, port);
        let listener = Listener::bind(address, Some(config), None).map_err(named("brokerServicePortTls", port))?;
        ports.at.binary_tls = Some(listener.local_address()?);
        ports.binary.push(listener);
    }
    if let Some(port) = settings.port(Key::WebServicePort) {
        let listener = WebListener::bind(SocketAddr::new(host, port), None).map_err(named("webServicePort", port))?;
        ports.at.web = Some(listener.local_address()?);
        ports.web.push(listener);
    }
    if let Some(port) = settings.port(Key::WebServicePortTls) {
        let config = tls_config(settings, "webServicePortTls", port, &[b"http/1.1"])?;
        let address = SocketAddr::new(host, port);
        let listener = WebListener::bind(address, Some(config)).map_err(named("webServicePortTls", port))?;
        ports.at.web_tls = Some(listener.local_address()?);
        ports.web.push(listener);
    }
    ports.region_link = region_link::bind(settings, host)?;
    ports.at.region_link = ports.region_link.as_ref().and_then(|listener| listener.local_addr().ok());
    if ports.binary.is_empty() {
        return Err("brokerServicePort and brokerServicePortTls are both empty: expected at least one port".into());
    }
    Ok(ports)
}

async fn serve(args: &StandaloneArgs, settings: &Settings, begun: Instant) -> Result<(), Failure> {
    let _claim = floors::claim(&args.data_dir)?;
    let ports = bind(settings)?;
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
        true => Some(Arc::new(Identity::new(&broker_config::identity(settings))?)),
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
