//! Ledgers without disks or sockets, for tests: a bookie in memory with faults to switch on, and a client over some of
//! them. Compiled for tests and with the feature `testing` only.

mod bookie;

pub use bookie::{Faults, MemoryBookie};

use crate::api::{AppendEvent, AppendSink};
use crate::client::LedgerClient;
use crate::context::LedgerConfig;
use crate::directory::BookieDirectory;
use meridian_bookie_api::Bookie;
use meridian_metadata::SharedStore;
use meridian_topology::Location;
use meridian_types::{BookieId, EntryId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Memory bookies as a directory: those that are up and not read-only are writable.
pub struct MemoryBookies {
    bookies: Vec<Arc<MemoryBookie>>,
    locations: Vec<Location>,
}

impl BookieDirectory for MemoryBookies {
    fn writable(&self) -> Vec<BookieId> {
        self.bookies.iter().filter(|b| b.is_writable()).map(|b| b.id().clone()).collect()
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        let found = self.bookies.iter().find(|b| b.id() == id)?;
        Some(found.clone())
    }

    fn location(&self, id: &BookieId) -> Location {
        let at = self.bookies.iter().position(|b| b.id() == id);
        at.and_then(|at| self.locations.get(at).cloned()).unwrap_or_default()
    }
}

/// A ledger client over memory bookies `b0`, `b1`, … and a metadata store.
pub struct MemoryLedgers {
    /// The client.
    pub client: Arc<LedgerClient>,
    /// Its bookies.
    pub bookies: Vec<Arc<MemoryBookie>>,
    /// Its metadata.
    pub metadata: SharedStore,
}

impl MemoryLedgers {
    /// `count` bookies and a new metadata store.
    pub fn new(count: usize) -> Self {
        Self::over(Arc::new(meridian_metadata::MemoryStore::new()), Self::new_bookies(count), Self::quick_config())
    }

    /// `count` bookies.
    pub fn new_bookies(count: usize) -> Vec<Arc<MemoryBookie>> {
        (0..count).map(|n| Arc::new(MemoryBookie::new(&format!("b{n}")))).collect()
    }

    /// A client (one more owner) over what is there.
    pub fn over(metadata: SharedStore, bookies: Vec<Arc<MemoryBookie>>, config: LedgerConfig) -> Self {
        Self::with_places(metadata, bookies, Vec::new(), config)
    }

    /// One bookie at each place.
    pub fn at_places(places: Vec<Location>, config: LedgerConfig) -> Self {
        let bookies = Self::new_bookies(places.len());
        Self::with_places(Arc::new(meridian_metadata::MemoryStore::new()), bookies, places, config)
    }

    fn with_places(
        metadata: SharedStore,
        bookies: Vec<Arc<MemoryBookie>>,
        locations: Vec<Location>,
        config: LedgerConfig,
    ) -> Self {
        let directory = Arc::new(MemoryBookies { bookies: bookies.clone(), locations });
        let client = Arc::new(LedgerClient::new(metadata.clone(), directory, config));
        Self { client, bookies, metadata }
    }

    /// Another client over the same bookies and metadata, as another broker would have it.
    pub fn another(&self) -> Self {
        Self::over(self.metadata.clone(), self.bookies.clone(), Self::quick_config())
    }

    /// Short times, so that tests of failures are quick.
    pub fn quick_config() -> LedgerConfig {
        let mut config = LedgerConfig::default();
        config.times.add_timeout_ms = 200;
        config.times.give_up_ms = 1_500;
        config.times.retry_ms = 20;
        config.times.busy_retry_ms = 5;
        config.times.lac_idle_ms = 20;
        config.metadata_timeout_ms = 500;
        config.metadata_patience_ms = 1_000;
        config.read_timeout_ms = 300;
        config.read_hedge_ms = 30;
        config.recovery_timeout_ms = 3_000;
        config.quarantine_ms = 300;
        config.tick_ms = 5;
        config
    }
}

/// A sink that keeps the news and can be waited on.
#[derive(Default)]
pub struct EventLog {
    events: Mutex<Vec<AppendEvent>>,
    news: Notify,
}

impl EventLog {
    /// All news so far.
    pub fn events(&self) -> Vec<AppendEvent> {
        self.events.lock().clone()
    }

    /// The last confirmed entry told.
    pub fn confirmed(&self) -> EntryId {
        let confirmed = |event: &AppendEvent| match event {
            AppendEvent::Confirmed { up_to, .. } => Some(*up_to),
            AppendEvent::Ended { .. } => None,
        };
        self.events.lock().iter().rev().find_map(confirmed).unwrap_or(EntryId::NONE)
    }

    /// Waits (10 s at most) until the news are as wanted; answers whether they are.
    pub async fn wait_for(&self, wanted: impl Fn(&[AppendEvent]) -> bool) -> bool {
        let waiting = async {
            loop {
                let news = self.news.notified();
                if wanted(&self.events.lock()) {
                    return;
                }
                news.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.is_ok()
    }

    /// Waits until an entry is confirmed.
    pub async fn wait_confirmed(&self, entry: EntryId) -> bool {
        let reached = |e: &AppendEvent| matches!(e, AppendEvent::Confirmed { up_to, .. } if *up_to >= entry);
        self.wait_for(|events| events.iter().any(reached)).await
    }

    /// Waits until the writer has ended.
    pub async fn wait_ended(&self) -> bool {
        self.wait_for(|events| events.iter().any(|e| matches!(e, AppendEvent::Ended { .. }))).await
    }
}

impl AppendSink for EventLog {
    fn append_event(&self, event: AppendEvent) {
        self.events.lock().push(event);
        self.news.notify_waiters();
    }
}
