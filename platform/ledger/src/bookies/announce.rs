//! A bookie's registration kept alive: a session, an ephemeral key, renewals.
//!
//! Invariants: N1 the key is written again whenever the session was lost, with what the node is now; N2 a node that is
//! not registered serves on: absence of its key ends nothing here; N3 calls have deadlines, attempts have pauses: a store
//! that is away costs one small call every so often.
//! Failure: [`Announcement::figures`] says since when the registration is missing; it comes back by itself.
//! Must never know: what a bookie does.

use super::registration::BookieRegistration;
use crate::keys;
use meridian_metadata::{Condition, MetadataError, Operation, SessionId, SharedStore};
use meridian_types::{BookieId, Repeats};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Pause after a failed call.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// One call may take so long.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How the registration fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnnouncementFigures {
    /// The key stands, as far as is known here.
    pub registered: bool,
    /// Sessions that were lost.
    pub sessions_lost: u64,
    /// Calls to the store that failed.
    pub failed_calls: u64,
}

#[derive(Default)]
struct Shared {
    registered: AtomicBool,
    sessions_lost: AtomicU64,
    failed_calls: AtomicU64,
    session: AtomicU64,
}

/// See the head of this file. Dropped without [`Announcement::end`] the key stays until its session ends.
pub struct Announcement {
    wanted: watch::Sender<BookieRegistration>,
    shared: Arc<Shared>,
    store: SharedStore,
    task: JoinHandle<()>,
}

struct Keeper {
    store: SharedStore,
    key: String,
    ttl_ms: u64,
    wanted: watch::Receiver<BookieRegistration>,
    shared: Arc<Shared>,
}

impl Announcement {
    /// Registers the bookie and keeps it registered.
    ///
    /// # Errors
    /// The first attempt: a store that can't be reached at the start is told at the start.
    pub async fn start(
        store: SharedStore,
        id: &BookieId,
        registration: BookieRegistration,
        ttl_ms: u64,
    ) -> Result<Self, MetadataError> {
        let (wanted, receiver) = watch::channel(registration);
        let shared = Arc::new(Shared::default());
        let mut keeper = Keeper {
            store: store.clone(),
            key: keys::available_key(id),
            ttl_ms,
            wanted: receiver,
            shared: shared.clone(),
        };
        let session = keeper.register().await?;
        let task = tokio::spawn(async move { keeper.keep(session).await });
        Ok(Self { wanted, shared, store, task })
    }

    /// Tells that the bookie takes no ordinary adds for this reason, or takes them again.
    pub fn set_read_only(&self, reason: Option<String>) {
        self.wanted.send_if_modified(|registration| {
            let news = registration.read_only != reason;
            registration.read_only = reason;
            news
        });
    }

    /// How the registration fares.
    pub fn figures(&self) -> AnnouncementFigures {
        AnnouncementFigures {
            registered: self.shared.registered.load(Ordering::Relaxed),
            sessions_lost: self.shared.sessions_lost.load(Ordering::Relaxed),
            failed_calls: self.shared.failed_calls.load(Ordering::Relaxed),
        }
    }

    /// Takes the registration back.
    pub async fn end(&self) {
        self.task.abort();
        let session = SessionId(self.shared.session.load(Ordering::Relaxed));
        if self.shared.registered.swap(false, Ordering::Relaxed)
            && let Err(error) = in_time(self.store.close_session(session)).await
        {
            tracing::warn!(%error, "the registration stays until its session ends");
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, MetadataError>>) -> Result<T, MetadataError> {
    let late = || MetadataError::UnknownOutcome(format!("no answer within {} ms", CALL_LIMIT.as_millis()));
    tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| Err(late()))
}

impl Keeper {
    /// A new session, and the key with it. The id is ours (the cookie said so), whoever wrote the key before.
    async fn register(&mut self) -> Result<SessionId, MetadataError> {
        let session = in_time(self.store.open_session(self.ttl_ms)).await?;
        self.put(session.id).await?;
        Ok(session.id)
    }

    async fn put(&mut self, session: SessionId) -> Result<(), MetadataError> {
        let value = self.wanted.borrow_and_update().encode();
        let put = Operation::Put { key: self.key.clone(), value, condition: Condition::Any, ephemeral: Some(session) };
        in_time(self.store.commit(vec![put])).await?;
        self.shared.session.store(session.0, Ordering::Relaxed);
        if !self.shared.registered.swap(true, Ordering::Relaxed) {
            tracing::info!(key = self.key, "registered");
        }
        Ok(())
    }

    async fn keep(&mut self, session: SessionId) {
        let beat = Duration::from_millis((self.ttl_ms / 4).max(1));
        let mut current = Some(session);
        let mut pause = beat;
        let mut trouble = Repeats::by_minute();
        loop {
            let changed = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                told = self.wanted.changed() => match told {
                    Ok(()) => true,
                    Err(_) => return,
                },
            };
            let outcome = match current {
                None => self.register().await.map(|session| current = Some(session)),
                Some(session) if changed => self.put(session).await,
                Some(session) => in_time(self.store.renew_session(session)).await,
            };
            pause = beat;
            let Err(error) = outcome else {
                if let Some(line) = trouble.end(Instant::now()) {
                    tracing::info!(key = self.key, lasted_ms = line.lasted_ms(), "the registration is kept again");
                }
                continue;
            };
            self.shared.failed_calls.fetch_add(1, Ordering::Relaxed);
            pause = RETRY_PAUSE.min(beat);
            if changed {
                // What was to be told is not told: the next turn writes it again.
                self.wanted.mark_changed();
                tokio::time::sleep(pause).await;
            }
            if matches!(error, MetadataError::SessionExpired(_)) {
                current = None;
                pause = Duration::ZERO;
                self.shared.registered.store(false, Ordering::Relaxed);
                self.shared.sessions_lost.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(line) = trouble.note(Instant::now(), &error.to_string()) {
                let times = line.times;
                tracing::warn!(key = self.key, %error, times, "the registration could not be kept; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_metadata::MemoryStore;

    fn registration() -> BookieRegistration {
        BookieRegistration { data_address: "h:1".into(), ..BookieRegistration::default() }
    }

    async fn stored(store: &SharedStore) -> Option<BookieRegistration> {
        let entry = store.get("bookies/available/b").await.expect("the store answers")?;
        Some(BookieRegistration::decode(&entry.value).expect("it is readable"))
    }

    async fn until(store: &SharedStore, wanted: impl Fn(&Option<BookieRegistration>) -> bool) {
        let mut watch = store.watch("bookies/available/", None).await.expect("it can be watched");
        let wait = async {
            while !wanted(&stored(store).await) {
                let _ = watch.next().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it came in time");
    }

    #[tokio::test]
    async fn it_is_renewed_changed_and_taken_back() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let id = BookieId::new("b");
        let kept = Announcement::start(store.clone(), &id, registration(), 200).await.expect("the store is there");
        assert_eq!(stored(&store).await, Some(registration()));
        kept.set_read_only(Some("full".into()));
        until(&store, |found| found.as_ref().is_some_and(|one| one.read_only.as_deref() == Some("full"))).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(stored(&store).await.is_some(), "three times its time to live later");
        assert!(kept.figures().registered);
        kept.end().await;
        assert_eq!(stored(&store).await, None);
    }

    #[tokio::test]
    async fn a_lost_session_is_replaced_with_what_the_node_is_now() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let id = BookieId::new("b");
        let kept = Announcement::start(store.clone(), &id, registration(), 400).await.expect("the store is there");
        let session = SessionId(kept.shared.session.load(Ordering::Relaxed));
        kept.set_read_only(Some("full".into()));
        store.close_session(session).await.expect("it lived");
        until(&store, |found| found.as_ref().is_some_and(|one| one.read_only.is_some())).await;
        assert_eq!(kept.figures().sessions_lost, 1);
    }
}
