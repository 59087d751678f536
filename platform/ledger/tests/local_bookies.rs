//! The client over real storage nodes: three and five of them, with restarts.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use meridian_bookie::{BookieConfig, LocalBookie};
use meridian_bookie_api::{Bookie, EntryBytes};
use meridian_ledger::testing::{EventLog, MemoryLedgers};
use meridian_ledger::{LedgerClient, LedgerOptions, Ledgers, StaticBookies};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_types::{BookieId, EntryId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn open_bookies(folder: &Path, count: usize) -> Vec<Arc<LocalBookie>> {
    let open = |n: usize| {
        let home = folder.join(format!("b{n}"));
        let config = BookieConfig::new(BookieId::new(format!("b{n}")), home.join("journal"), home.join("ledgers"));
        LocalBookie::open(config).unwrap()
    };
    (0..count).map(open).collect()
}

fn client(metadata: &SharedStore, bookies: &[Arc<LocalBookie>]) -> LedgerClient {
    let bookies = bookies.iter().map(|b| b.clone() as Arc<dyn Bookie>).collect();
    let mut config = MemoryLedgers::quick_config();
    config.times.add_timeout_ms = 5_000;
    config.times.give_up_ms = 20_000;
    config.read_timeout_ms = 5_000;
    LedgerClient::new(metadata.clone(), Arc::new(StaticBookies::new(bookies)), config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_found_after_an_owner_and_all_bookies_were_lost() {
    for (count, (e, qw, qa)) in [(1, (1, 1, 1)), (3, (3, 3, 2)), (5, (5, 3, 2))] {
        let folder = tempfile::tempdir().unwrap();
        let metadata: SharedStore = Arc::new(MemoryStore::new());
        let bookies = open_bookies(folder.path(), count);
        let options = LedgerOptions { ensemble_size: e, write_quorum: qw, ack_quorum: qa, properties: BTreeMap::new() };
        let log = Arc::new(EventLog::default());
        let owner = client(&metadata, &bookies);
        let writer = owner.create(options, log.clone()).await.unwrap();
        for batch in 0..20i64 {
            let entry = |n: i64| EntryBytes::plain(Bytes::from(vec![n as u8; 1_000]));
            writer.append((batch * 10..batch * 10 + 10).map(entry).collect()).unwrap();
        }
        assert!(log.wait_confirmed(EntryId(199)).await, "{:?}", log.events());
        let ledger_id = writer.id();
        drop((writer, owner));
        for bookie in &bookies {
            bookie.close().unwrap();
        }
        drop(bookies);

        let bookies = open_bookies(folder.path(), count);
        let heir = client(&metadata, &bookies);
        let reader = heir.recover(ledger_id).await.unwrap();
        assert_eq!(reader.last_confirmed(), EntryId(199));
        assert_eq!(reader.length_bytes(), 200_000);
        let mut next = EntryId(0);
        while next <= reader.last_confirmed() {
            for entry in reader.read(next, 64, 1 << 20).await.unwrap() {
                assert_eq!(entry.entry_id, next);
                assert_eq!(entry.payload, vec![next.0 as u8; 1_000]);
                next = next.next();
            }
        }
    }
}
