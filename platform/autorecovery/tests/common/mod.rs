//! Real storage nodes behind sockets, a directory that a test can change, and autorecovery beside them.
#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::Bytes;
use meridian_autorecovery::{AutorecoveryConfig, Desk};
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{Bookie, EntryBytes, ReadRequest, RemoteBookie, RemoteConfig, ServeConfig, serve_data};
use meridian_ledger::testing::{EventLog, MemoryLedgers};
use meridian_ledger::{BookieDirectory, LedgerClient, LedgerOptions, LedgerRecord, LedgerWriter, Ledgers};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const BODY_BYTES: usize = 700;

/// The body of an entry: no two are equal.
pub fn body(ledger: LedgerId, entry: i64) -> Bytes {
    let mut bytes = format!("entry {entry} of ledger {ledger} ").into_bytes();
    bytes.resize(BODY_BYTES + (entry as usize * 37) % 300, b'.');
    bytes.into()
}

pub struct Node {
    pub local: Arc<LocalBookie>,
    pub remote: Arc<RemoteBookie>,
    server: JoinHandle<()>,
    pub registered: Mutex<bool>,
}

/// Storage nodes as a directory.
pub struct Nodes {
    pub nodes: BTreeMap<BookieId, Node>,
}

impl Nodes {
    /// Opens `count` nodes `b0`, `b1`, … and serves each on a port of its own.
    pub async fn open(folder: &Path, count: usize) -> Arc<Self> {
        let mut nodes = BTreeMap::new();
        for n in 0..count {
            let id = BookieId::new(format!("b{n}"));
            let home = folder.join(id.as_str());
            let config = BookieConfig::new(id.clone(), home.join("journal"), home.join("ledgers"));
            let local = LocalBookie::open(config).expect("a new folder opens");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound").to_string();
            let bookie: Arc<dyn Bookie> = local.clone();
            let server = tokio::spawn(async move {
                serve_data(listener, bookie, ServeConfig::default()).await.expect("serves until it is dropped");
            });
            let remote = RemoteBookie::new(id.clone(), address, RemoteConfig::default());
            nodes.insert(id, Node { local, remote, server, registered: Mutex::new(true) });
        }
        Arc::new(Self { nodes })
    }

    pub fn node(&self, id: &str) -> &Node {
        &self.nodes[&BookieId::new(id)]
    }

    /// The node is gone: its sockets, its threads, its registration.
    pub fn lose(&self, id: &str) {
        let node = self.node(id);
        node.server.abort();
        node.local.close().expect("closes");
        *node.registered.lock() = false;
    }
}

impl BookieDirectory for Nodes {
    fn writable(&self) -> Vec<BookieId> {
        let there = self.nodes.iter().filter(|(_, node)| *node.registered.lock());
        there.map(|(id, _)| id.clone()).collect()
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        self.nodes.get(id).map(|node| node.remote.clone() as Arc<dyn Bookie>)
    }
}

/// Quick times, so that tests take seconds.
pub fn quick(name: &str) -> AutorecoveryConfig {
    let mut config = AutorecoveryConfig {
        name: name.to_owned(),
        session_ttl_ms: 1_000,
        look_ms: 20,
        lost_grace_ms: 200,
        open_grace_ms: 400,
        bytes_per_second: 0,
        audit_interval_ms: 0,
        audit_ledgers_per_second: 10_000,
        retry_max_ms: 200,
        hopeless_retry_max_ms: 400,
        ..AutorecoveryConfig::default()
    };
    config.replicate.batch_entries = 16;
    config.replicate.patience_ms = 5_000;
    config
}

pub fn options(e: u32, qw: u32, qa: u32) -> LedgerOptions {
    LedgerOptions { ensemble_size: e, write_quorum: qw, ack_quorum: qa, properties: BTreeMap::new() }
}

/// A running autorecovery; ends when stopped.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    pub registry: prometheus::Registry,
}

impl Running {
    pub fn start(config: AutorecoveryConfig, store: SharedStore, ledgers: Arc<LedgerClient>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let registry = config.registry.clone();
        let task = tokio::spawn(async move {
            let shutdown = async move { drop(stopped.await) };
            meridian_autorecovery::run(config, store, ledgers, shutdown).await.expect("figures are new");
        });
        Self { stop, task, registry }
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.expect("ends");
    }

    /// The value of a figure.
    pub fn figure(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metric = family.and_then(|family| family.get_metric().first());
        metric.map_or(0.0, |m| m.get_counter().get_value() + m.get_gauge().get_value())
    }
}

/// A cluster in this process: metadata, nodes, and a client as a broker or worker would have it.
pub struct Cluster {
    pub store: SharedStore,
    pub nodes: Arc<Nodes>,
    pub client: Arc<LedgerClient>,
    pub desk: Desk,
}

impl Cluster {
    pub async fn open(folder: &Path, count: usize) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let nodes = Nodes::open(folder, count).await;
        let client = Self::another(&store, &nodes);
        let desk = Desk::new(store.clone(), client.clone()).hearing_within(100);
        Self { store, nodes, client, desk }
    }

    /// Another process's client.
    pub fn another(store: &SharedStore, nodes: &Arc<Nodes>) -> Arc<LedgerClient> {
        let mut config = MemoryLedgers::quick_config();
        config.times.add_timeout_ms = 3_000;
        config.times.give_up_ms = 20_000;
        config.read_timeout_ms = 3_000;
        config.recovery_timeout_ms = 10_000;
        config.quarantine_ms = 100;
        Arc::new(LedgerClient::new(store.clone(), nodes.clone(), config))
    }

    /// A ledger with so many entries, confirmed; its writer.
    pub async fn ledger(&self, options: LedgerOptions, entries: i64) -> Arc<dyn LedgerWriter> {
        write(&self.client, options, entries).await
    }

    /// Every copy of every entry that must be there, read from its node directly; answers how many there are.
    pub async fn verify(&self, ledger: LedgerId, entries: i64) -> u64 {
        let record = self.client.record(ledger).await.expect("the record is there");
        let mut copies = 0;
        for id in 0..entries {
            let (ensemble, _) = record.ensemble_of(EntryId(id));
            for slot in record.layout.write_set(EntryId(id)).iter() {
                let node = &self.nodes.nodes[&ensemble.bookies[slot]];
                let read = node.local.read(one(ledger, id)).await;
                let read =
                    read.unwrap_or_else(|e| panic!("{ledger} {id} on {}: {e}: {record:?}", ensemble.bookies[slot]));
                assert_eq!(read[0].payload, body(ledger, id));
                copies += 1;
            }
        }
        copies
    }
}

pub fn one(ledger: LedgerId, entry: i64) -> ReadRequest {
    ReadRequest {
        ledger_id: ledger,
        first_entry_id: EntryId(entry),
        max_entries: 1,
        max_bytes: 1,
        gaps_allowed: false,
        fence: false,
    }
}

/// A ledger with so many entries, confirmed; its writer.
pub async fn write(client: &Arc<LedgerClient>, options: LedgerOptions, entries: i64) -> Arc<dyn LedgerWriter> {
    let log = Arc::new(EventLog::default());
    let writer = client.create(options, log.clone()).await.expect("created");
    let ledger = writer.id();
    if entries > 0 {
        let all = (0..entries).map(|id| EntryBytes::plain(body(ledger, id))).collect();
        writer.append(all).expect("appended");
        assert!(log.wait_confirmed(EntryId(entries - 1)).await, "{:?}", log.events());
    }
    writer
}

pub fn holds(record: &LedgerRecord, bookie: &str) -> bool {
    record.ensembles.iter().any(|e| e.bookies.contains(&BookieId::new(bookie)))
}

/// Waits (60 s at most) until something holds.
pub async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let limit = Duration::from_secs(60);
    assert!(tokio::time::timeout(limit, waiting).await.is_ok(), "not within {limit:?}: {what}");
}
