//! One process, whatever its roles: started, ended.
//!
//! Role: builds the floors from the bottom up (metadata, bookies, ledgers, logs, policies, broker, admin API), waits for
//! a signal, and takes them down from the top.
//! Invariants: W1 ports are bound before anything is announced, and no client is accepted before everything behind the
//! ports is ready: web ports say until then what is missing; W2 at the end topics close before the bookies do, bookies
//! before metadata; W3 a start that waits ends by a signal.
//! Failure: an error before "ready" ends the process with what to change; a second signal ends it at once.

use crate::broker::Broker;
use crate::cli::{Failure, ProcessArgs};
use crate::config;
use crate::floors::{self, Floors};
use crate::front::Front;
use crate::logging;
use crate::ports::Ports;
use crate::ready;
use crate::recovery;
use crate::role::Role;
use crate::stats_page;
use meridian_settings::{Key, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
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
    let mut ending = Ending::new(args.end_with_stdin)?;
    let _claim = args.data_dir.as_deref().map(floors::claim).transpose()?;
    let mut ports = Ports::bind(role, settings)?;
    let front = Front::new(prometheus::Registry::new());
    let web = std::mem::take(&mut ports.web).into_iter().chain(ports.stats.take());
    let mut tasks = front.serve(web);
    let floors = tokio::select! {
        floors = Floors::build(role, settings, args.data_dir.as_deref(), &mut ports, &front) => Arc::new(floors?),
        () = ending.asked() => {
            tracing::info!("ended while it was starting");
            return Ok(());
        }
    };
    let mut broker = None;
    let up = async {
        if role.has_broker() {
            broker = Some(Broker::start(role, settings, &floors, &mut ports, &front, args.data_dir.as_deref()).await?);
        }
        tasks.extend(background(role, settings, &floors, &front));
        if let Some(broker) = &broker {
            broker.in_force().await;
        }
        ready::announce(role, settings.text(Key::ClusterName), &ports.at, begun.elapsed(), args.ready_file.as_deref())
    };
    tokio::select! {
        outcome = up => {
            outcome?;
            ending.asked().await;
        }
        () = ending.asked() => {}
    }
    tracing::info!("ending: no more connections, closing topics");
    tasks.iter().for_each(JoinHandle::abort);
    if let Some(broker) = &broker {
        broker.refuse();
    }
    let ended = Instant::now();
    let closing = async {
        if let Some(broker) = &broker {
            broker.end().await;
        }
        floors.close().await
    };
    tokio::select! {
        outcome = closing => {
            outcome?;
            tracing::info!(took_ms = ended.elapsed().as_millis() as u64, "ended");
            Ok(())
        }
        () = ending.asked() => std::process::exit(1),
    }
}

/// What asks the process to end.
struct Ending {
    term: Signal,
    interrupt: Signal,
    /// Fires once standard input closes, if that is to be the end.
    parent: Option<oneshot::Receiver<()>>,
}

impl Ending {
    fn new(with_stdin: bool) -> std::io::Result<Self> {
        let parent = with_stdin.then(|| {
            let (gone, told) = oneshot::channel();
            // A thread of its own: a read of standard input can't be taken back, and must not hold up the end.
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                let _ = gone.send(());
            });
            told
        });
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())?, parent })
    }

    /// Returns at each signal, and once for the parent.
    async fn asked(&mut self) {
        let parent_gone = async {
            match &mut self.parent {
                Some(told) => drop(told.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
            () = parent_gone => self.parent = None,
        }
    }
}

/// What runs beside: garbage collection, autorecovery, the pages of a process without a broker.
fn background(role: Role, settings: &Settings, floors: &Arc<Floors>, front: &Front) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if role.bookies(settings) > 0 {
        let pause_ms = settings.count(Key::GcWaitTime);
        tasks.push(tokio::spawn(floors.bookies.clone().collect_garbage(floors.store.clone(), pause_ms)));
    }
    tasks.extend(recovery::start(role, settings, floors));
    if !role.has_broker() {
        let asked = floors.clone();
        let healthy = move || {
            let missing = asked.served.as_ref().is_some_and(|served| !served.is_registered());
            asked.bookies.unwritable().or_else(|| missing.then(|| "not registered".to_owned()))
        };
        front.open(stats_page::pages(floors.metrics.clone(), Arc::new(healthy)));
    }
    tasks
}
