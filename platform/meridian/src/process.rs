//! One process, whatever its roles: started, ended.
//!
//! Role: builds the floors from the bottom up (metadata, bookies, ledgers, logs, policies, broker, admin API), waits for
//! a signal, and takes them down from the top.
//! Invariants: W1 ports are bound before anything is announced, and nothing is accepted before everything behind the
//! ports is ready; W2 at the end topics close before the bookies do, bookies before metadata.
//! Failure: an error before "ready" ends the process with what to change; a second signal ends it at once.

use crate::broker::Broker;
use crate::cli::{Failure, ProcessArgs};
use crate::config;
use crate::floors::{self, Floors};
use crate::logging;
use crate::ports::Ports;
use crate::ready;
use crate::recovery;
use crate::role::Role;
use crate::stats_page;
use meridian_settings::{Key, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// Stack of a runtime thread: futures are boxed where they are deep, so the usual two megabytes are not needed.
const STACK_BYTES: usize = 1 << 20;

/// Runs until a signal ends it.
///
/// # Errors
/// Whatever prevented the start or a clean end.
pub fn run(role: Role, args: &ProcessArgs, bookies: Option<u16>) -> Result<(), Failure> {
    let begun = Instant::now();
    let (mut settings, notices) = config::load(role, &args.settings)?;
    if let Some(bookies) = bookies {
        settings.set_pair("--bookies", &format!("bookies={bookies}"))?;
    }
    logging::start(&settings);
    for notice in notices {
        tracing::warn!("{notice}");
    }
    check(role, &settings)?;
    if role.has_folder() && args.data_dir.is_none() {
        return Err("--data-dir: expected the folder of all data".into());
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
    let outcome = runtime.block_on(serve(role, args, &settings, begun));
    // Reads and calls that nobody waits for any more must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// What can be said of the settings alone.
fn check(role: Role, settings: &Settings) -> Result<(), Failure> {
    if role == Role::Standalone && settings.optional(Key::MetadataStoreUrl).is_some() {
        tracing::warn!("metadataStoreUrl has no effect: `standalone` keeps its metadata in the data folder");
    }
    if !role.has_broker() {
        return Ok(());
    }
    if settings.switch(Key::TransactionCoordinatorEnabled) {
        return Err("transactionCoordinatorEnabled=true: transactions are not served; expected false".into());
    }
    config::storage::check_quorums(settings, (!role.in_cluster()).then(|| role.bookies(settings)))?;
    config::broker::check_security(settings)?;
    Ok(())
}

async fn serve(role: Role, args: &ProcessArgs, settings: &Settings, begun: Instant) -> Result<(), Failure> {
    let _claim = args.data_dir.as_deref().map(floors::claim).transpose()?;
    let mut ports = Ports::bind(role, settings)?;
    let floors = Arc::new(Floors::build(role, settings, args.data_dir.as_deref(), &mut ports).await?);
    let broker = match role.has_broker() {
        true => Some(Broker::start(role, settings, &floors, &mut ports, args.data_dir.as_deref()).await?),
        false => None,
    };
    let tasks = background(role, settings, &floors, &mut ports);
    ready::announce(role, settings.text(Key::ClusterName), &ports.at, begun.elapsed(), args.ready_file.as_deref())?;

    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
        () = parent_gone(args.end_with_stdin) => {}
    }
    tracing::info!("ending: no more connections, closing topics");
    tasks.iter().for_each(JoinHandle::abort);
    if let Some(broker) = &broker {
        broker.refuse();
    }
    let ended = Instant::now();
    let ending = async {
        if let Some(broker) = &broker {
            broker.end().await;
        }
        floors.close().await
    };
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

/// What runs beside: garbage collection, autorecovery, the metrics page of a process without a broker.
fn background(role: Role, settings: &Settings, floors: &Arc<Floors>, ports: &mut Ports) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if role.bookies(settings) > 0 {
        let pause_ms = settings.count(Key::GcWaitTime);
        tasks.push(tokio::spawn(floors.bookies.clone().collect_garbage(floors.store.clone(), pause_ms)));
    }
    tasks.extend(recovery::start(role, settings, floors));
    if let Some(listener) = ports.stats.take() {
        let asked = floors.clone();
        let healthy = move || {
            let missing = asked.served.as_ref().is_some_and(|served| !served.is_registered());
            asked.bookies.unwritable().or_else(|| missing.then(|| "not registered".to_owned()))
        };
        tasks.push(tokio::spawn(stats_page::run(listener, floors.metrics.clone(), Arc::new(healthy))));
    }
    tasks
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
