//! The store as everyone holds it: the trait's calls, run on threads of their own.
//!
//! Role: every call runs as a task on the store's own threads, so that a caller that goes away cuts no transaction in
//! half, and busy threads of the process delay no renewal of a session.
//! Invariants: M1 to M6, K1 to K5, by the modules behind it.
//! Failure: a store that was dropped answers [`MetadataError::Unavailable`]; its watches end.
//! Must never know: what keys mean.

use crate::calls::{READS, Shared, Step, View};
use crate::config::TikvConfig;
use crate::failure::Failure;
use crate::format::{Keys, decode_number, encode_number};
use crate::lanes::Lanes;
use crate::link::Link;
use crate::poll::{Poller, run};
use crate::publish::Publisher;
use crate::stats::{Counters, TikvStats};
use meridian_metadata::changes::WatchHub;
use meridian_metadata::{
    BoxFuture, Entry, Figure, MetadataError, MetadataStore, Operation, Page, Session, SessionId, Version, Watch,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tikv_client::TimestampExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Threads of a store.
const THREADS: usize = 2;

/// See the crate.
pub struct TikvStore {
    shared: Arc<Shared>,
    threads: Threads,
}

/// Threads that may end anywhere, in a task as well: nobody waits for what runs on them.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl TikvStore {
    /// Connects; waits at most for the time of one call.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`] for a configuration that can't be, [`MetadataError::Unavailable`] if the store can't
    /// be reached, [`MetadataError::Corrupt`] if what is there is of another kind.
    pub async fn connect(config: TikvConfig) -> Result<Arc<Self>, MetadataError> {
        config.check().map_err(MetadataError::Invalid)?;
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(THREADS).thread_name("metadata-tikv").enable_all().build();
        let runtime = built.map_err(|error| MetadataError::Unavailable(format!("no threads for metadata: {error}")))?;
        let threads = Threads(Some(runtime));
        let opened = threads.0.as_ref().map(|runtime| runtime.spawn(open(config)));
        let failed = || MetadataError::Unavailable("connecting failed".into());
        let shared = opened.ok_or_else(failed)?.await.unwrap_or_else(|_| Err(failed()))?;
        Ok(Arc::new(Self { shared, threads }))
    }

    /// Connects from a thread that runs no tasks.
    ///
    /// # Errors
    /// As [`TikvStore::connect`].
    pub fn connect_blocking(config: TikvConfig) -> Result<Arc<Self>, MetadataError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| MetadataError::Unavailable(format!("no thread to connect: {error}")))?;
        runtime.block_on(Self::connect(config))
    }

    /// What it does and what waits.
    pub fn stats(&self) -> TikvStats {
        let lag = self.shared.looked.lock().elapsed();
        self.shared.counters.read(lag.as_millis() as u64)
    }

    /// Looks for changes of other processes at once, when one of them says that there are some.
    pub fn look_now(&self) {
        self.shared.look_now.notify_one();
    }

    /// Runs a call on the store's threads.
    fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, MetadataError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, MetadataError>> {
        let handle = self.threads.0.as_ref().map(|runtime| runtime.handle().clone());
        self.shared.counters.calls.add(1);
        Box::pin(async move {
            let closed = || MetadataError::Unavailable("the store is closed".into());
            let handle = handle.ok_or_else(closed)?;
            handle.spawn(call).await.unwrap_or_else(|_| Err(closed()))
        })
    }
}

impl Drop for TikvStore {
    fn drop(&mut self) {
        self.shared.publisher.hub().close();
    }
}

/// Connects and begins to follow the changes of others.
async fn open(config: TikvConfig) -> Result<Arc<Shared>, MetadataError> {
    let counters = Arc::new(Counters::default());
    let reach = |failure: Failure| MetadataError::Unavailable(failure.reason);
    let link = Link::connect(config.clone(), counters.clone()).await.map_err(reach)?;
    let interval = Duration::from_millis(config.poll_interval_ms.max(1));
    let deadline = Instant::now() + Duration::from_millis(config.call_timeout_ms);
    let shared = Shared {
        keys: Keys::new(&config.prefix),
        config,
        link,
        lanes: Lanes::new(),
        groups: Default::default(),
        gets: Default::default(),
        own_lanes: Mutex::new(HashSet::new()),
        // Only for as long as nobody can watch; the picture below sets where it begins.
        publisher: Publisher::new(WatchHub::new(Version(0))),
        sequences: Default::default(),
        reads: Semaphore::new(READS),
        counters,
        look_now: Notify::new(),
        looked: Mutex::new(Instant::now()),
    };
    let failed = |step: Step| match step {
        Step::Final(error) => error,
        Step::Again(failure) => MetadataError::Unavailable(failure.reason),
    };
    claim(&shared, deadline).await.map_err(failed)?;
    let (picture, _) = shared.picture(deadline).await.map_err(failed)?;
    let hub = WatchHub::new(Version(picture.version));
    let shared = Arc::new(Shared { publisher: Publisher::new(hub), ..shared });
    tokio::spawn(run(Arc::downgrade(&shared), Poller::new(&picture), interval));
    Ok(shared)
}

/// Makes the store's own record, or checks that it is of this kind.
async fn claim(shared: &Shared, deadline: Instant) -> Result<(), Step> {
    let key = shared.keys.store();
    let mut backoff = crate::backoff::Backoff::new();
    loop {
        let mut transaction = shared.link.begin(deadline).await?;
        let found = shared.batch_get(&mut View::Of(&mut transaction), vec![key.clone()], deadline).await?;
        if let Some((_, record)) = found.into_iter().next() {
            decode_number(&key, &record)?;
            return Ok(());
        }
        let cluster = transaction.start_timestamp().version();
        let put = transaction.put(key.clone(), encode_number(&key, cluster)).await;
        put.map_err(|error| Failure::of("a write", &error))?;
        let Err(failure) = shared.link.step("a commit", deadline, transaction.commit()).await else { return Ok(()) };
        if !backoff.wait(deadline).await {
            return Err(failure.into());
        }
    }
}

impl MetadataStore for TikvStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        let (shared, key) = (self.shared.clone(), key.to_owned());
        self.call(async move { shared.get(&key).await })
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        let shared = self.shared.clone();
        self.call(async move { shared.commit(operations).await })
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        let (shared, prefix, after) = (self.shared.clone(), prefix.to_owned(), after.map(str::to_owned));
        self.call(async move { shared.range(&prefix, after.as_deref(), limit).await })
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        let (shared, sequence) = (self.shared.clone(), sequence.to_owned());
        self.call(async move { shared.allocate(&sequence, count).await })
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        let shared = self.shared.clone();
        self.call(async move { shared.open_session(ttl_ms).await })
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        let shared = self.shared.clone();
        self.call(async move { shared.renew_session(session).await })
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        let shared = self.shared.clone();
        self.call(async move { shared.close_session(session).await })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        Box::pin(async move { Ok(self.shared.publisher.hub().watch(prefix, from)) })
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move { Ok(self.shared.publisher.hub().latest()) })
    }

    fn silent_for(&self) -> Option<Duration> {
        Some(self.shared.link.silent_for())
    }

    fn own_figures(&self) -> Vec<Figure> {
        self.stats().figures()
    }
}
