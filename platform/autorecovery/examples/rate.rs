//! How fast the ledgers of a lost bookie are back to full copies, beside what the disk can take.
//!
//! Five storage nodes on one disk, ledgers of MIB mebibytes with three copies; one node is dropped, and no rate is set. The
//! raw limit is measured in the same run and the same folder: blocks of 1 MiB, each synced.
//!
//! `cargo run --release -p meridian-autorecovery --example rate -- [MIB] [FOLDER]`

use bytes::Bytes;
use meridian_autorecovery::{AutorecoveryConfig, Desk, run};
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{Bookie, EntryBytes};
use meridian_ledger::{AppendEvent, AppendSink, BookieDirectory, LedgerClient, LedgerConfig, LedgerOptions, Ledgers};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_types::BookieId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRY_BYTES: usize = 8 << 10;
const LEDGER_ENTRIES: usize = 1_024;

struct Nodes {
    all: Vec<Arc<LocalBookie>>,
    gone: Mutex<BTreeSet<BookieId>>,
}

impl BookieDirectory for Nodes {
    fn writable(&self) -> Vec<BookieId> {
        let gone = self.gone.lock();
        self.all.iter().map(|node| node.id().clone()).filter(|id| !gone.contains(id)).collect()
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        let node = self.all.iter().find(|node| node.id() == id && !self.gone.lock().contains(id))?;
        Some(node.clone())
    }
}

/// Nobody waits for news: the close does.
struct Quiet;

impl AppendSink for Quiet {
    fn append_event(&self, _event: AppendEvent) {}
}

fn raw_limit(folder: &Path, mib: usize) -> Result<f64, Box<dyn Error>> {
    let mut file = std::fs::File::create(folder.join("raw"))?;
    let block = vec![7u8; 1 << 20];
    let begun = Instant::now();
    for _ in 0..mib {
        file.write_all(&block)?;
        file.sync_data()?;
    }
    let rate = mib as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(folder.join("raw"))?;
    Ok(rate)
}

async fn fill(client: &LedgerClient, mib: usize) -> Result<(), Box<dyn Error>> {
    let options = LedgerOptions { ensemble_size: 3, write_quorum: 3, ack_quorum: 2, properties: BTreeMap::new() };
    let body = Bytes::from(vec![1u8; ENTRY_BYTES]);
    for _ in 0..mib * (1 << 20) / (ENTRY_BYTES * LEDGER_ENTRIES) {
        let writer = client.create(options.clone(), Arc::new(Quiet)).await?;
        writer.append((0..LEDGER_ENTRIES).map(|_| EntryBytes::plain(body.clone())).collect())?;
        writer.close().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().unwrap_or_else(|| "256".to_owned()).parse()?;
    let folder = args.next().map_or_else(std::env::temp_dir, Into::into).join("meridian-rate");
    std::fs::create_dir_all(&folder)?;
    let mut all = Vec::new();
    for n in 0..5 {
        let home = folder.join(format!("b{n}"));
        let config = BookieConfig::new(BookieId::new(format!("b{n}")), home.join("journal"), home.join("ledgers"));
        all.push(LocalBookie::open(config)?);
    }
    let nodes = Arc::new(Nodes { all, gone: Mutex::default() });
    let store: SharedStore = Arc::new(MemoryStore::new());
    let client = Arc::new(LedgerClient::new(store.clone(), nodes.clone(), LedgerConfig::default()));
    fill(&client, mib).await?;

    let raw = raw_limit(&folder, mib.min(256))?;
    let lost = BookieId::new("b0");
    nodes.gone.lock().insert(lost.clone());
    let registry = prometheus::Registry::new();
    let config = AutorecoveryConfig {
        lost_grace_ms: 0,
        look_ms: 50,
        bytes_per_second: 0,
        audit_interval_ms: 0,
        registry: registry.clone(),
        ..AutorecoveryConfig::default()
    };
    let running = tokio::spawn(run(config, store.clone(), client.clone(), std::future::pending()));
    let desk = Desk::new(store, client.clone());
    let begun = Instant::now();
    while desk.progress(&lost).await?.ledgers_left > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = begun.elapsed().as_secs_f64();
    let moved = client.counters().replicated_bytes as f64 / f64::from(1 << 20);
    println!("raw limit          {raw:8.1} MiB/s (1 MiB blocks, each synced)");
    println!("re-replication     {:8.1} MiB/s ({moved:.0} MiB in {took:.1} s, no rate set)", moved / took);
    println!("ratio              {:8.2}", moved / took / raw);
    running.abort();
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
