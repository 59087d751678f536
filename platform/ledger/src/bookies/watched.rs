//! The bookies of a cluster as the metadata store tells of them.
//!
//! Role: reads the registrations, follows them by watch, and keeps one connection per bookie. A bookie of this process is
//! reached by a direct call.
//! Invariants: V1 a bookie keeps its handle for ever: it may come back, under another address too, and writers that hold
//! the handle reach it there; V2 a key that is gone makes a bookie unchosen, never unreachable: a lost session is no lost
//! bookie; V3 a watch that fell behind reads everything again.
//! Failure: while the store is away the last known state holds; reading is tried again for ever, with pauses.
//! Must never know: ledgers, quorums.

use super::registration::BookieRegistration;
use crate::directory::BookieDirectory;
use crate::keys;
use meridian_bookie_api::{Bookie, RemoteBookie, RemoteConfig};
use meridian_metadata::{Entry, MetadataError, SharedStore, Version, WatchEvent};
use meridian_topology::Location;
use meridian_types::BookieId;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Bookies known at most; more are passed over, and said so.
pub const BOOKIES_MAX: usize = 10_000;
/// Pause before the registrations are read again after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// A bookie of this process.
pub struct OwnBookie {
    /// It.
    pub bookie: Arc<dyn Bookie>,
    /// Whether it takes ordinary adds now.
    pub writable: Box<dyn Fn() -> bool + Send + Sync>,
    /// Where it stands.
    pub location: Location,
}

struct Known {
    remote: Arc<RemoteBookie>,
    registration: BookieRegistration,
    /// Its key stands.
    present: bool,
}

/// What is known of one bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieView {
    /// Its id.
    pub id: BookieId,
    /// What it told last.
    pub registration: BookieRegistration,
    /// Its registration stands.
    pub present: bool,
}

/// See the head of this file.
pub struct WatchedBookies {
    own: Vec<OwnBookie>,
    known: RwLock<BTreeMap<BookieId, Known>>,
    remote: RemoteConfig,
    changes: watch::Sender<u64>,
}

impl WatchedBookies {
    /// Reads the registrations and follows them until the last handle is dropped. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The first reading.
    pub async fn open(
        store: SharedStore,
        own: Vec<OwnBookie>,
        remote: RemoteConfig,
    ) -> Result<Arc<Self>, MetadataError> {
        let bookies = Arc::new(Self { own, known: RwLock::default(), remote, changes: watch::channel(0).0 });
        let from = bookies.read_all(&store).await?;
        tokio::spawn(follow(Arc::downgrade(&bookies), store, from));
        Ok(bookies)
    }

    /// Every bookie that was ever seen, own ones excepted.
    pub fn all(&self) -> Vec<BookieView> {
        let view = |(id, known): (&BookieId, &Known)| BookieView {
            id: id.clone(),
            registration: known.registration.clone(),
            present: known.present,
        };
        self.known.read().iter().map(view).collect()
    }

    /// Counts up whenever something has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn read_all(&self, store: &SharedStore) -> Result<Version, MetadataError> {
        let from = store.current_version().await?;
        let entries = store.scan(keys::AVAILABLE_PREFIX).await?;
        {
            let mut known = self.known.write();
            known.values_mut().for_each(|one| one.present = false);
        }
        for entry in &entries {
            self.put(entry);
        }
        self.told();
        Ok(from)
    }

    fn put(&self, entry: &Entry) {
        let Some(id) = keys::available_id(&entry.key) else { return };
        if self.own(&id).is_some() {
            return;
        }
        let registration = match BookieRegistration::decode(&entry.value) {
            Ok(registration) => registration,
            Err(error) => return tracing::error!(bookie = %id, %error, "a registration is passed over"),
        };
        let mut known = self.known.write();
        let full = known.len() >= BOOKIES_MAX;
        match known.entry(id) {
            Slot::Occupied(mut slot) => {
                let one = slot.get_mut();
                one.remote.move_to(&registration.data_address);
                one.registration = registration;
                one.present = true;
            }
            Slot::Vacant(slot) if full => {
                tracing::error!(bookie = %slot.key(), limit = BOOKIES_MAX, "too many bookies; one is passed over");
            }
            Slot::Vacant(slot) => {
                let remote =
                    RemoteBookie::new(slot.key().clone(), registration.data_address.clone(), self.remote.clone());
                slot.insert(Known { remote, registration, present: true });
            }
        }
    }

    fn take(&self, event: &WatchEvent) -> bool {
        match event {
            WatchEvent::Put(entry) => self.put(entry),
            WatchEvent::Delete { key, .. } => {
                if let Some(id) = keys::available_id(key)
                    && let Some(known) = self.known.write().get_mut(&id)
                {
                    tracing::warn!(bookie = %id, "a bookie is not registered any more");
                    known.present = false;
                }
            }
            WatchEvent::Rescan => return false,
        }
        self.told();
        true
    }

    fn told(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn own(&self, id: &BookieId) -> Option<&OwnBookie> {
        self.own.iter().find(|own| own.bookie.id() == id)
    }
}

async fn follow(bookies: Weak<WatchedBookies>, store: SharedStore, first: Version) {
    let mut from = Some(first);
    loop {
        let Some(alive) = bookies.upgrade() else { return };
        let version = match from.take() {
            Some(version) => Ok(version),
            None => alive.read_all(&store).await,
        };
        let mut closed = alive.changes.subscribe();
        drop(alive);
        let watching = match version {
            Ok(version) => store.watch(keys::AVAILABLE_PREFIX, Some(version)).await,
            Err(error) => Err(error),
        };
        match watching {
            Ok(mut watching) => loop {
                let next = tokio::select! {
                    next = watching.next() => next,
                    () = gone(&mut closed) => return,
                };
                let Some(alive) = bookies.upgrade() else { return };
                match next {
                    Some((event, _)) if alive.take(&event) => {}
                    // A closed store opens no more; a rescan begins anew at once.
                    Some(_) => break,
                    None => {
                        tokio::time::sleep(RETRY_PAUSE).await;
                        break;
                    }
                }
            },
            Err(error) => {
                tracing::warn!(%error, "the registrations of bookies can't be read; the last known ones hold");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Returns when the directory is dropped.
async fn gone(changes: &mut watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {}
}

impl BookieDirectory for WatchedBookies {
    fn writable(&self) -> Vec<BookieId> {
        let own = self.own.iter().filter(|own| (own.writable)()).map(|own| own.bookie.id().clone());
        let known = self.known.read();
        let others = known.iter().filter(|(_, one)| one.present && one.registration.read_only.is_none());
        own.chain(others.map(|(id, _)| id.clone())).collect()
    }

    fn registered(&self) -> Option<Vec<BookieId>> {
        let own = self.own.iter().map(|own| own.bookie.id().clone());
        let known = self.known.read();
        let others = known.iter().filter(|(_, one)| one.present).map(|(id, _)| id.clone());
        Some(own.chain(others).collect())
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        if let Some(own) = self.own(id) {
            return Some(own.bookie.clone());
        }
        self.known.read().get(id).map(|known| known.remote.clone() as Arc<dyn Bookie>)
    }

    fn location(&self, id: &BookieId) -> Location {
        match self.own(id) {
            Some(own) => own.location.clone(),
            None => self.known.read().get(id).map(|known| known.registration.location()).unwrap_or_default(),
        }
    }
}
