//! The bookies of this process: opened with their cookies, served to others, kept registered, cleared of garbage.
//!
//! Invariants: K1 a bookie's cookie is registered in metadata when it is first seen, and from then on a bookie with wiped
//! folders, or with folders of another cluster, is refused (S8); K2 garbage collection works on a complete listing only
//! (S6); K3 a bookie is registered after it can serve, and says that it is read-only as soon as it is.
//! Failure: an error at the start says what to do; later the state is registered, logged and counted.

use crate::cli::Failure;
use crate::config::storage::{self, Seat};
use crate::config::storage_tls;
use crate::patience::Patience;
use meridian_bookie::{DiskState, LocalBookie};
use meridian_bookie_api::control::serve_control;
use meridian_bookie_api::{Bookie, ServeConfig, serve_data};
use meridian_ledger::{Announcement, BookieDirectory, BookieRegistration, OwnBookie, keys};
use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_settings::{Key, Settings};
use meridian_topology::Location;
use meridian_types::{BookieId, LedgerId, Repeats};
use prometheus::{IntGauge, Registry as Metrics};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Ledgers asked for in one page of a listing.
const LISTING_PAGE: usize = 1000;
/// Pause between two looks whether a disk is short.
const DISK_LOOK: Duration = Duration::from_secs(10);
/// Pause between two looks whether a bookie takes entries.
const STATE_LOOK: Duration = Duration::from_millis(100);

/// See the head of this file.
pub struct OwnBookies {
    all: Vec<Arc<LocalBookie>>,
    /// Of the first ones, in their order.
    locations: Vec<Location>,
}

impl OwnBookies {
    /// Opens the bookies at these places.
    ///
    /// # Errors
    /// The first that can't be opened, or is not who it says.
    pub async fn open(
        settings: &Settings,
        seats: Vec<Seat>,
        store: &SharedStore,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, Failure> {
        let mut all = Vec::new();
        for seat in &seats {
            all.push(open_bookie(settings, seat, store, metrics).await?);
        }
        Ok(Arc::new(Self { all, locations: storage::bookie_locations(settings)? }))
    }

    /// For the ledger client of this process: called directly.
    pub fn handed(&self) -> Vec<OwnBookie> {
        let hand = |bookie: &Arc<LocalBookie>| {
            let asked = bookie.clone();
            OwnBookie {
                bookie: bookie.clone(),
                writable: Box::new(move || asked.refuses_adds().is_none()),
                location: self.location(bookie.id()),
            }
        };
        self.all.iter().map(hand).collect()
    }

    /// Why one of them takes no ordinary adds, if so.
    pub fn unwritable(&self) -> Option<String> {
        self.all.iter().find_map(|bookie| bookie.refuses_adds())
    }

    fn short_of_disk(&self) -> bool {
        self.all.iter().any(|bookie| bookie.disk_state() != DiskState::Writable)
    }

    /// Deletes entries of ledgers that are gone, every so often (S6); at once and again while a disk is short.
    pub async fn collect_garbage(self: Arc<Self>, store: SharedStore, pause_ms: u64) {
        let pause = Duration::from_millis(pause_ms.max(1000));
        let mut beat = tokio::time::interval(DISK_LOOK.min(pause));
        let mut last = Instant::now();
        let mut trouble = Repeats::by_minute();
        loop {
            beat.tick().await;
            if last.elapsed() < pause && !self.short_of_disk() {
                continue;
            }
            for bookie in &self.all {
                let Err(error) = collect(bookie, &store).await else {
                    trouble.end(Instant::now());
                    continue;
                };
                if let Some(line) = trouble.note(Instant::now(), &format!("{}: {error}", bookie.id())) {
                    let times = line.times;
                    tracing::warn!(bookie = %bookie.id(), %error, times, "garbage was not collected; it will be tried again");
                }
            }
            last = Instant::now();
        }
    }

    /// Flushes and closes the bookies.
    ///
    /// # Errors
    /// The first bookie that could not write its checkpoint.
    pub async fn close(&self) -> Result<(), Failure> {
        for bookie in self.all.clone() {
            tokio::task::spawn_blocking(move || bookie.close()).await??;
        }
        Ok(())
    }

    /// Serves the one bookie of a cluster's process and registers it (K3).
    ///
    /// # Errors
    /// The registration could not be written.
    pub async fn serve(
        &self,
        settings: &Settings,
        ports: (TcpListener, TcpListener),
        store: &SharedStore,
        metrics: &Metrics,
        patience: &mut Patience,
    ) -> Result<Served, Failure> {
        let bookie = self.all.first().ok_or("there is no bookie to serve")?.clone();
        let (data, control) = ports;
        let registration = self.registration(settings, data.local_addr()?, control.local_addr()?);
        let tls = storage_tls::server(settings)?;
        let serving = ServeConfig { tls: tls.clone(), ..ServeConfig::default() };
        let (behind_data, behind_control) = (bookie.clone(), bookie.clone());
        let mut tasks = vec![
            tokio::spawn(async move {
                if let Err(error) = serve_data(data, behind_data, serving).await {
                    tracing::error!(%error, "the data port is not served any more");
                }
            }),
            tokio::spawn(async move {
                if let Err(error) = serve_control(control, behind_control, tls).await {
                    tracing::error!(%error, "the control port is not served any more");
                }
            }),
        ];
        let ttl_ms = settings.count(Key::MetadataStoreSessionTimeoutMillis).max(1000);
        let announce = || Announcement::start(store.clone(), bookie.id(), registration.clone(), ttl_ms);
        let announcement = Arc::new(patience.until(announce).await?);
        let registered =
            IntGauge::new("bookie_registered", "1 while the registration stands, as far as is known here.")?;
        metrics.register(Box::new(registered.clone()))?;
        tasks.push(tokio::spawn(tell_state(bookie, announcement.clone(), registered)));
        Ok(Served { announcement, tasks })
    }

    fn registration(&self, settings: &Settings, data: SocketAddr, control: SocketAddr) -> BookieRegistration {
        let host = crate::config::broker::advertised_host(settings);
        let place = self.locations.first().cloned().unwrap_or_default();
        BookieRegistration {
            data_address: format!("{host}:{}", data.port()),
            control_address: format!("{host}:{}", control.port()),
            region: place.region,
            zone: place.zone,
            rack: settings.optional(Key::BookieRack).map(str::to_owned),
            read_only: self.unwritable(),
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        }
    }
}

/// A bookie that others reach.
pub struct Served {
    announcement: Arc<Announcement>,
    tasks: Vec<JoinHandle<()>>,
}

impl Served {
    /// Whether its registration stands.
    pub fn is_registered(&self) -> bool {
        self.announcement.figures().registered
    }

    /// Takes the registration back, then ends the connections.
    pub async fn end(&self) {
        self.announcement.end().await;
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Says in the registration, and by one line per change, whether the bookie takes entries.
async fn tell_state(bookie: Arc<LocalBookie>, announcement: Arc<Announcement>, registered: IntGauge) {
    let mut trouble = Repeats::by_minute();
    loop {
        let (now, refused) = (Instant::now(), bookie.refuses_adds());
        match &refused {
            Some(reason) => {
                if let Some(line) = trouble.note(now, reason) {
                    let lasted_ms = line.lasted_ms();
                    tracing::error!(bookie = %bookie.id(), reason, lasted_ms, "the bookie is read-only");
                }
            }
            None => {
                if let Some(line) = trouble.end(now) {
                    tracing::info!(bookie = %bookie.id(), lasted_ms = line.lasted_ms(), "the bookie takes entries again");
                }
            }
        }
        announcement.set_read_only(refused);
        registered.set(i64::from(announcement.figures().registered));
        tokio::time::sleep(STATE_LOOK).await;
    }
}

/// One bookie's garbage, judged by a complete listing of the ledgers that exist (K2).
async fn collect(bookie: &Arc<LocalBookie>, store: &SharedStore) -> Result<(), Failure> {
    let held = bookie.clone();
    let mut listing = tokio::task::spawn_blocking(move || held.begin_listing()).await??;
    let mut after: Option<String> = None;
    loop {
        let page = store.range(keys::RECORD_PREFIX, after.as_deref(), LISTING_PAGE).await?;
        listing.page(page.entries.iter().filter_map(|entry| keys::ledger_of(&entry.key)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let live = if listing.names_nothing() {
        // Nothing lives any more, or the store was wiped: an id that it gives out now tells which.
        let next = store.allocate(keys::ID_SEQUENCE, 1).await?;
        listing.complete_below(LedgerId(i64::try_from(next)?))
    } else {
        listing.complete()?
    };
    let bookie = bookie.clone();
    tokio::task::spawn_blocking(move || bookie.gc(&live)).await??;
    Ok(())
}

impl BookieDirectory for OwnBookies {
    fn writable(&self) -> Vec<BookieId> {
        let writable = self.all.iter().filter(|bookie| bookie.refuses_adds().is_none());
        writable.map(|bookie| bookie.id().clone()).collect()
    }

    fn registered(&self) -> Option<Vec<BookieId>> {
        Some(self.all.iter().map(|bookie| bookie.id().clone()).collect())
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        self.all.iter().find(|bookie| bookie.id() == id).map(|bookie| bookie.clone() as Arc<dyn Bookie>)
    }

    fn location(&self, id: &BookieId) -> Location {
        let at = self.all.iter().position(|bookie| bookie.id() == id);
        at.and_then(|at| self.locations.get(at).cloned()).unwrap_or_default()
    }
}

async fn open_bookie(
    settings: &Settings,
    seat: &Seat,
    store: &SharedStore,
    metrics: &Metrics,
) -> Result<Arc<LocalBookie>, Failure> {
    let mut config = storage::bookie(settings, seat);
    let key = keys::cookie_key(&config.id);
    let registered = store.get(&key).await?;
    config.registered_cookie = match &registered {
        Some(entry) => Some(String::from_utf8(entry.value.to_vec())?),
        None => None,
    };
    config.registry = metrics.clone();
    let id = config.id.clone();
    let bookie = tokio::task::spawn_blocking(move || LocalBookie::open(config)).await??;
    if registered.is_none() {
        let written = store.put(&key, bookie.cookie(), Condition::Absent).await;
        let there = match written {
            Ok(_) => true,
            // Told late, or another node of this id was faster: what stands there says which.
            Err(MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_)) => {
                store.get(&key).await?.is_some_and(|entry| entry.value == bookie.cookie())
            }
            Err(error) => return Err(error.into()),
        };
        if !there {
            return Err(format!("bookieId={id}: another bookie has registered under this id meanwhile").into());
        }
    }
    Ok(bookie)
}
