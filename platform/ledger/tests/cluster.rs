//! Bookies behind sockets, found by their registrations: what an owner sees when they come, go, move and fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

use bytes::Bytes;
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{Bookie, EntryBytes, RemoteConfig, ServeConfig, serve_connection};
use meridian_ledger::testing::{EventLog, MemoryLedgers};
use meridian_ledger::{
    Announcement, BookieDirectory, BookieRegistration, LedgerClient, LedgerOptions, LedgerWriter, Ledgers, OwnBookie,
    WatchedBookies,
};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_placement::Rule;
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

struct Node {
    bookie: Arc<LocalBookie>,
    announcement: Announcement,
    serving: JoinHandle<()>,
}

struct Cluster {
    folder: tempfile::TempDir,
    store: SharedStore,
    nodes: BTreeMap<usize, Node>,
}

fn home(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("b{number}"))
}

impl Cluster {
    async fn of(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { folder, store: Arc::new(MemoryStore::new()), nodes: BTreeMap::new() };
        for number in 0..count {
            cluster.start(number).await;
        }
        cluster
    }

    async fn start(&mut self, number: usize) {
        let home = home(self.folder.path(), number);
        let config = BookieConfig::new(BookieId::new(format!("b{number}")), home.join("journal"), home.join("ledgers"));
        let bookie = LocalBookie::open(config).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let registration = BookieRegistration {
            data_address: listener.local_addr().unwrap().to_string(),
            zone: Some(format!("z{}", number % 3)),
            ..BookieRegistration::default()
        };
        let served = bookie.clone();
        let serving = tokio::spawn(async move {
            // Connections end with the accepting task, as with a process.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let served = served.clone();
                connections.spawn(async move { serve_connection(stream, served, &ServeConfig::default()).await });
            }
        });
        let announcement = Announcement::start(self.store.clone(), bookie.id(), registration, 2_000).await.unwrap();
        self.nodes.insert(number, Node { bookie, announcement, serving });
    }

    /// The process is gone: its sockets close, its registration stays until the session ends.
    async fn kill(&mut self, number: usize) {
        let Node { bookie, announcement, serving } = self.nodes.remove(&number).unwrap();
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        drop(announcement);
        bookie.close().unwrap();
        let gone = Arc::downgrade(&bookie);
        drop(bookie);
        while gone.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn directory(&self) -> Arc<WatchedBookies> {
        WatchedBookies::open(self.store.clone(), Vec::new(), RemoteConfig::default()).await.unwrap()
    }

    fn client(&self, directory: Arc<WatchedBookies>) -> LedgerClient {
        let mut config = MemoryLedgers::quick_config();
        config.times.add_timeout_ms = 5_000;
        config.times.give_up_ms = 20_000;
        config.read_timeout_ms = 5_000;
        config.placement = Rule { min_zones: 3, min_regions: 1, enforced: true };
        LedgerClient::new(self.store.clone(), directory, config)
    }
}

fn options() -> LedgerOptions {
    LedgerOptions { ensemble_size: 3, write_quorum: 3, ack_quorum: 2, properties: BTreeMap::new() }
}

fn entries(from: i64, count: i64) -> Vec<EntryBytes> {
    (from..from + count).map(|n| EntryBytes::plain(Bytes::from(format!("entry {n}")))).collect()
}

async fn until(directory: &WatchedBookies, wanted: impl Fn(&WatchedBookies) -> bool) {
    let mut changes = directory.changes();
    let wait = async {
        while !wanted(directory) {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the directory saw it in time");
}

async fn check_all(client: &LedgerClient, writer: &Arc<dyn LedgerWriter>, last: i64) {
    let reader = client.recover(writer.id()).await.unwrap();
    assert_eq!(reader.last_confirmed(), EntryId(last));
    let mut next = EntryId(0);
    while next <= reader.last_confirmed() {
        for entry in reader.read(next, 64, 1 << 20).await.unwrap() {
            assert_eq!(entry.payload, format!("entry {}", entry.entry_id.0));
            next = entry.entry_id.next();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_lost_under_load_costs_no_entry_and_its_copy_goes_to_the_same_zone_rule() {
    let mut cluster = Cluster::of(5).await;
    let directory = cluster.directory().await;
    assert_eq!(directory.writable().len(), 5);
    let client = cluster.client(directory.clone());
    let log = Arc::new(EventLog::default());
    let writer = client.create(options(), log.clone()).await.unwrap();
    // Zones 0 and 1 have two bookies: only there is one to take over.
    let members = client.record(writer.id()).await.unwrap().ensembles[0].bookies.clone();
    let victim = members.iter().map(|id| id.as_str()[1..].parse::<usize>().unwrap()).find(|n| n % 3 != 2).unwrap();
    for batch in 0..50i64 {
        writer.append(entries(batch * 10, 10)).unwrap();
        if batch == 20 {
            assert!(log.wait_confirmed(EntryId(100)).await);
            cluster.kill(victim).await;
        }
    }
    assert!(log.wait_confirmed(EntryId(499)).await, "{:?}", log.events());
    assert_eq!(writer.close().await, Ok(EntryId(499)));
    let record = client.record(writer.id()).await.unwrap();
    let last: BTreeSet<String> = record.last_ensemble().bookies.iter().map(|id| id.to_string()).collect();
    assert!(!last.contains(&format!("b{victim}")), "{record:?}");
    let zones: BTreeSet<String> =
        record.last_ensemble().bookies.iter().map(|id| directory.location(id).to_string()).collect();
    assert_eq!(zones.len(), 3, "{record:?}");
    check_all(&cluster.client(cluster.directory().await), &writer, 499).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_moves_keeps_its_handle_and_its_id() {
    let mut cluster = Cluster::of(3).await;
    let directory = cluster.directory().await;
    let client = cluster.client(directory.clone());
    let log = Arc::new(EventLog::default());
    let writer = client.create(options(), log.clone()).await.unwrap();
    writer.append(entries(0, 10)).unwrap();
    assert!(log.wait_confirmed(EntryId(9)).await);
    let before = directory.all()[0].registration.data_address.clone();
    cluster.kill(0).await;
    cluster.start(0).await;
    until(&directory, |directory| directory.all()[0].registration.data_address != before).await;
    // There is no fourth: the member that failed is tried again as it is, at its new address.
    for batch in 1..40 {
        writer.append(entries(batch * 10, 10)).unwrap();
        assert!(log.wait_confirmed(EntryId(batch * 10 + 9)).await);
    }
    let held = cluster.nodes[&0].bookie.clone();
    tokio::time::timeout(Duration::from_secs(10), async {
        while held.last_add_confirmed(writer.id()).await.map_or(-1, |state| state.last_entry.0) < 399 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it writes again");
    assert_eq!(writer.close().await, Ok(EntryId(399)));
    check_all(&client, &writer, 399).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_and_vanished_bookies_are_not_chosen_but_reached() {
    let mut cluster = Cluster::of(4).await;
    let directory = cluster.directory().await;
    let client = cluster.client(directory.clone());
    let log = Arc::new(EventLog::default());
    let writer = client.create(options(), log.clone()).await.unwrap();
    writer.append(entries(0, 10)).unwrap();
    assert!(log.wait_confirmed(EntryId(9)).await);
    cluster.nodes[&0].announcement.set_read_only(Some("disk use".to_owned()));
    until(&directory, |directory| directory.writable().len() == 3).await;
    assert!(!directory.writable().contains(&BookieId::new("b0")));
    for _ in 0..5 {
        let other = client.create(options(), Arc::new(EventLog::default())).await.unwrap();
        assert!(!client.record(other.id()).await.unwrap().ensembles[0].bookies.contains(&BookieId::new("b0")));
    }
    cluster.nodes[&0].announcement.set_read_only(None);
    until(&directory, |directory| directory.writable().len() == 4).await;
    // Its session ends while it serves on.
    cluster.nodes[&1].announcement.end().await;
    until(&directory, |directory| !directory.writable().contains(&BookieId::new("b1"))).await;
    assert!(directory.get(&BookieId::new("b1")).is_some());
    writer.append(entries(10, 10)).unwrap();
    assert!(log.wait_confirmed(EntryId(19)).await);
    writer.close().await.unwrap();
    check_all(&client, &writer, 19).await;
    cluster.start(7).await;
    until(&directory, |directory| directory.writable().contains(&BookieId::new("b7"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_bookie_is_called_directly() {
    let cluster = Cluster::of(2).await;
    let home = home(cluster.folder.path(), 9);
    let own =
        LocalBookie::open(BookieConfig::new(BookieId::new("own"), home.join("journal"), home.join("ledgers"))).unwrap();
    let zone = Location::parse("/z2").unwrap();
    let handed = OwnBookie { bookie: own.clone(), writable: Box::new(|| true), location: zone };
    let directory = WatchedBookies::open(cluster.store.clone(), vec![handed], RemoteConfig::default()).await.unwrap();
    // Its own registration is not dialled, whatever address stands there.
    let registration = BookieRegistration { data_address: "127.0.0.1:1".into(), ..BookieRegistration::default() };
    let _kept = Announcement::start(cluster.store.clone(), own.id(), registration, 2_000).await.unwrap();
    let log = Arc::new(EventLog::default());
    let client = cluster.client(directory);
    let writer = client.create(options(), log.clone()).await.unwrap();
    writer.append(entries(0, 50)).unwrap();
    assert!(log.wait_confirmed(EntryId(49)).await);
    writer.close().await.unwrap();
    assert_eq!(own.ledgers().unwrap(), [writer.id()]);
    check_all(&client, &writer, 49).await;
}
