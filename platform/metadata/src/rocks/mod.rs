//! The metadata store of one machine, in RocksDB.
//!
//! Role: reads go to the database directly; writes go through one thread that syncs many of them at once. Sessions live
//! in memory: all sessions of an earlier process are ended when the store is opened, since only one process can hold it.
//! Invariants: M1 to M6 of the crate. The log of changes is in memory: a watch resumed from a position before the store
//! was opened is told to rescan.
//! Failure: opening refuses a store that another process holds or whose log is damaged other than at its end. A failed
//! write (a full disk) leaves reads working; the store takes writes again by itself when the disk does.
//! Must never know: what keys mean.

mod database;
mod format;
mod queue;
mod writer;

use crate::changes::WatchHub;
use crate::limits::{MAX_PAGE_ENTRIES, check_key, check_transaction};
use crate::sessions::SessionTable;
use crate::store::{
    BoxFuture, Entry, MetadataError, MetadataStore, Operation, Page, Session, SessionId, Version, Watch,
};
use database::Database;
use parking_lot::Mutex;
use queue::{Answer, Queue, Work};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use writer::{Reserved, Writer};

/// How long a caller waits for the writer's answer.
const ANSWER_DEADLINE_MS: u64 = 30_000;
/// Ranges up to this many entries are read on the caller's thread.
const DIRECT_RANGE_ENTRIES: usize = 128;
/// Session ids: opens of the store above, a counter below.
const SESSION_COUNTER_BITS: u32 = 32;

/// What the callers and the writer thread share.
struct Shared {
    db: Database,
    hub: Arc<WatchHub>,
    queue: Queue,
    sessions: Mutex<SessionTable>,
    sequences: Mutex<HashMap<String, Reserved>>,
    started: Instant,
    failed: AtomicBool,
    syncs: AtomicU64,
    commits: AtomicU64,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// Lets callers know at once when the writer thread has ended, however it did.
struct AbandonQueue(Arc<Shared>);

impl Drop for AbandonQueue {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

/// What the store does and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreStats {
    /// Requests that wait for the writer.
    pub queued_requests: u64,
    /// Transactions that changed something, since the store was opened.
    pub commits: u64,
    /// Synced writes, since the store was opened; each carries one or more transactions.
    pub syncs: u64,
    /// Open sessions.
    pub sessions: u64,
    /// The last write failed: writes are refused until the disk takes them again.
    pub failed: bool,
}

/// See the module.
pub struct RocksStore {
    shared: Arc<Shared>,
    first_session: u64,
    sessions_opened: AtomicU64,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl RocksStore {
    /// Opens the store in a folder, which is made if it is missing. Blocks while the log is replayed.
    ///
    /// # Errors
    /// [`MetadataError::Unavailable`] if another process holds the store or the folder can't be written,
    /// [`MetadataError::Corrupt`] if it is damaged.
    pub fn open(path: &Path) -> Result<Self, MetadataError> {
        let db = Database::open(path)?;
        let mut state = db.state()?;
        state.opens += 1;
        let shared = Arc::new(Shared {
            db,
            hub: WatchHub::new(Version(state.version)),
            queue: Queue::new(),
            sessions: Mutex::default(),
            sequences: Mutex::default(),
            started: Instant::now(),
            failed: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        });
        let mut writer = Writer::new(shared.clone(), state);
        writer.begin()?;
        let queue = shared.clone();
        let thread = std::thread::Builder::new()
            .name("metadata-writer".into())
            .spawn(move || {
                let _abandon = AbandonQueue(queue);
                writer.run();
            })
            .map_err(|error| MetadataError::Unavailable(format!("can't start the writer thread: {error}")))?;
        let first_session = state.opens << SESSION_COUNTER_BITS;
        Ok(Self { shared, first_session, sessions_opened: AtomicU64::new(0), writer: Some(thread) })
    }

    /// What the store does now.
    pub fn stats(&self) -> StoreStats {
        let shared = &self.shared;
        StoreStats {
            queued_requests: shared.queue.len() as u64,
            commits: shared.commits.load(Ordering::Relaxed),
            syncs: shared.syncs.load(Ordering::Relaxed),
            sessions: shared.sessions.lock().len() as u64,
            failed: shared.failed.load(Ordering::Relaxed),
        }
    }

    /// Asks the writer and waits for its answer.
    async fn ask<T>(&self, bytes: usize, work: impl FnOnce(Answer<T>) -> Work) -> Result<T, MetadataError> {
        let room = self.shared.queue.room(bytes).await?;
        let (answer, answered) = oneshot::channel();
        self.shared.queue.push(work(answer), room);
        match tokio::time::timeout(Duration::from_millis(ANSWER_DEADLINE_MS), answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(MetadataError::UnknownOutcome("the writer has ended".into())),
            Err(_) => Err(MetadataError::UnknownOutcome(format!("no answer in {ANSWER_DEADLINE_MS} ms"))),
        }
    }

    /// Numbers that are persisted ahead need no write.
    fn allocate_reserved(&self, sequence: &str, count: u64) -> Option<u64> {
        let mut sequences = self.shared.sequences.lock();
        let reserved = sequences.get_mut(sequence)?;
        let first = reserved.next;
        reserved.next = first.checked_add(count).filter(|next| *next <= reserved.bound)?;
        Some(first)
    }
}

impl Drop for RocksStore {
    fn drop(&mut self) {
        self.shared.queue.close();
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the metadata writer ended by a panic");
        }
        self.shared.hub.close();
    }
}

impl MetadataStore for RocksStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        Box::pin(async move { self.shared.db.get(key) })
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move {
            let bytes = check_transaction(&operations)?;
            self.ask(bytes, |answer| Work::Commit { operations, answer }).await
        })
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        Box::pin(async move {
            let limit = limit.clamp(1, MAX_PAGE_ENTRIES);
            if limit <= DIRECT_RANGE_ENTRIES {
                return self.shared.db.range(prefix, after, limit);
            }
            let (shared, prefix, after) = (self.shared.clone(), prefix.to_owned(), after.map(str::to_owned));
            let page = tokio::task::spawn_blocking(move || shared.db.range(&prefix, after.as_deref(), limit));
            page.await.unwrap_or_else(|error| Err(MetadataError::Unavailable(format!("the read was ended: {error}"))))
        })
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        Box::pin(async move {
            check_key(sequence)?;
            if count == 0 {
                return Err(MetadataError::Invalid(format!("no numbers of sequence {sequence}")));
            }
            if let Some(first) = self.allocate_reserved(sequence, count) {
                return Ok(first);
            }
            let sequence = sequence.to_owned();
            self.ask(sequence.len(), |answer| Work::Reserve { sequence, count, answer }).await
        })
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        Box::pin(async move {
            let id = SessionId(self.first_session + self.sessions_opened.fetch_add(1, Ordering::Relaxed));
            let session = self.shared.sessions.lock().open(id, ttl_ms, self.shared.now_ms());
            self.shared.queue.wake();
            session.ok_or_else(|| MetadataError::Unavailable("too many sessions are open".into()))
        })
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(async move {
            let renewed = self.shared.sessions.lock().renew(session, self.shared.now_ms());
            if renewed { Ok(()) } else { Err(MetadataError::SessionExpired(session)) }
        })
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(self.ask(0, move |answer| Work::EndSession { session, answer }))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        Box::pin(async move { Ok(self.shared.hub.watch(prefix, from)) })
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move { Ok(self.shared.hub.latest()) })
    }
}

#[cfg(test)]
mod tests;
