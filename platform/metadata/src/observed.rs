//! A store whose calls wait for it, within bounds, and which says how it fares.
//!
//! Role: passes calls on. A call that the store refuses because it is away is made again until it succeeds or its time is
//! over, so that those above see a slow store, not a broken one, while it is away for a moment.
//! Invariants: O1 no call waits longer than [`Patience::call_limit_ms`]; O2 at most [`Patience::waiting_max`] calls wait,
//! more are refused at once; O3 at most [`Patience::parallel`] calls are at the store, and repeated calls are spread in
//! time, so that a store that comes back is not run over; O4 only what is known not to have been done is repeated by
//! itself; renewals of sessions are never repeated here: who renews decides what a late one is worth; O5 only silence is
//! absence: a store that answered anything within [`SILENCE`], be it a conflict, is slow or contended, not away.
//! Failure: past its time a read is [`MetadataError::Unavailable`], a write that may have been done
//! [`MetadataError::UnknownOutcome`]; both may be repeated.
//! Must never know: what keys mean, which store it is.

use crate::store::{
    BoxFuture, Entry, Figure, MetadataError, MetadataStore, Operation, Page, Session, SessionId, SharedStore, Version,
    Watch,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bounds of waiting.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A call may take so long, with all its attempts.
    pub call_limit_ms: u64,
    /// One attempt may take so long.
    pub attempt_limit_ms: u64,
    /// Calls that may wait at once.
    pub waiting_max: usize,
    /// Calls at the store at once.
    pub parallel: usize,
    /// First pause before a call is made again; doubles up to eight times it.
    pub pause_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { call_limit_ms: 30_000, attempt_limit_ms: 10_000, waiting_max: 50_000, parallel: 512, pause_ms: 50 }
    }
}

/// A store that answers nobody for so long counts as away, whatever its callers still wait for.
const SILENCE: Duration = Duration::from_secs(2);

/// How the store fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreFigures {
    /// The last attempt that said anything about it found it there, and none has waited long since.
    pub available: bool,
    /// For how long it has been away, 0 if it is there.
    pub away_ms: u64,
    /// Times that it went away.
    pub outages: u64,
    /// Calls that wait now.
    pub waiting: u64,
    /// How long the oldest of them has waited.
    pub oldest_wait_ms: u64,
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded or were refused by their conditions.
    pub writes: u64,
    /// Attempts repeated because the store was away.
    pub repeated: u64,
    /// Attempts that failed although the store answered meanwhile: others stood in the way, or it is slow.
    pub contended: u64,
    /// Calls given up because their time was over.
    pub timed_out: u64,
    /// Calls refused because too many waited.
    pub refused: u64,
}

#[derive(Default)]
struct Health {
    away_since: Option<Instant>,
    /// The first attempt since the store last answered.
    unanswered: Option<Instant>,
    outages: u64,
    /// Beginnings of the calls that wait, by number.
    waiting: BTreeMap<u64, Instant>,
    next: u64,
}

/// See the head of this file.
pub struct ObservedStore {
    inner: SharedStore,
    patience: Patience,
    places: Semaphore,
    health: Mutex<Health>,
    reads: AtomicU64,
    writes: AtomicU64,
    repeated: AtomicU64,
    contended: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

/// What a call is, for the answer past its time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// A call among those that wait; not any more once dropped.
struct Waiting<'a> {
    store: &'a ObservedStore,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.store.health.lock().waiting.remove(&self.number);
    }
}

impl ObservedStore {
    /// Over a store.
    pub fn new(inner: SharedStore, patience: Patience) -> Arc<Self> {
        Arc::new(Self {
            inner,
            places: Semaphore::new(patience.parallel.max(1)),
            patience,
            health: Mutex::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// How the store fares.
    pub fn figures(&self) -> StoreFigures {
        let now = Instant::now();
        let ms = |since: Instant| now.saturating_duration_since(since).as_millis() as u64;
        if self.answered_lately() {
            self.note(true, None);
        }
        let health = self.health.lock();
        let silent = health.unanswered.filter(|since| now.saturating_duration_since(*since) >= SILENCE);
        let away = health.away_since.or(silent);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreFigures {
            available: away.is_none(),
            away_ms: away.map_or(0, ms),
            outages: health.outages,
            waiting: health.waiting.len() as u64,
            oldest_wait_ms: health.waiting.first_key_value().map_or(0, |(_, since)| ms(*since)),
            reads: read(&self.reads),
            writes: read(&self.writes),
            repeated: read(&self.repeated),
            contended: read(&self.contended),
            timed_out: read(&self.timed_out),
            refused: read(&self.refused),
        }
    }

    fn begin(&self) -> Result<Waiting<'_>, MetadataError> {
        let mut health = self.health.lock();
        if health.waiting.len() >= self.patience.waiting_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(MetadataError::Unavailable(format!("{} calls wait for it already", health.waiting.len())));
        }
        health.next += 1;
        let number = health.next;
        health.waiting.insert(number, Instant::now());
        Ok(Waiting { store: self, number })
    }

    /// Whether the store said anything of late, to whomever (O5).
    fn answered_lately(&self) -> bool {
        self.inner.silent_for().is_some_and(|silent| silent < SILENCE)
    }

    /// Notes an attempt that failed: the store is away only if it says nothing to anybody.
    fn failed(&self, error: &MetadataError) {
        let answers = self.answered_lately();
        if answers {
            self.contended.fetch_add(1, Ordering::Relaxed);
        }
        self.note(answers, Some(error));
    }

    fn note(&self, there: bool, error: Option<&MetadataError>) {
        let mut health = self.health.lock();
        if there {
            health.unanswered = None;
        }
        match (there, health.away_since) {
            (false, None) => {
                health.away_since = Some(Instant::now());
                health.outages += 1;
                drop(health);
                tracing::warn!(
                    error = error.map(ToString::to_string),
                    "the metadata store is away; what is open goes on, what needs it waits"
                );
            }
            (true, Some(since)) => {
                health.away_since = None;
                let waiting = health.waiting.len();
                drop(health);
                tracing::info!(away_ms = since.elapsed().as_millis() as u64, waiting, "the metadata store is back");
            }
            _ => {}
        }
    }

    /// One attempt, with a place at the store and a limit of its own.
    async fn attempt<T>(
        &self,
        kind: Kind,
        limit: Duration,
        call: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        self.health.lock().unanswered.get_or_insert_with(Instant::now);
        let Ok(outcome) = tokio::time::timeout(limit, call).await else {
            let text = format!("no answer within {} ms", limit.as_millis());
            let error = match kind {
                Kind::Read => MetadataError::Unavailable(text),
                Kind::Write => MetadataError::UnknownOutcome(text),
            };
            self.failed(&error);
            return Err(error);
        };
        match &outcome {
            Err(error @ (MetadataError::Unavailable(_) | MetadataError::UnknownOutcome(_))) => {
                self.failed(error);
            }
            _ => {
                let counter = if kind == Kind::Read { &self.reads } else { &self.writes };
                counter.fetch_add(1, Ordering::Relaxed);
                self.note(true, None);
            }
        }
        outcome
    }

    /// Makes a call until it says something, or its time is over.
    async fn patient<T, F>(&self, kind: Kind, mut call: impl FnMut() -> F) -> Result<T, MetadataError>
    where
        F: Future<Output = Result<T, MetadataError>>,
    {
        let _waiting = self.begin()?;
        let deadline = Instant::now() + Duration::from_millis(self.patience.call_limit_ms);
        let attempt_limit = Duration::from_millis(self.patience.attempt_limit_ms);
        let mut pause_ms = self.patience.pause_ms.max(1);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match tokio::time::timeout(left, self.places.acquire()).await {
                Ok(Ok(_place)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match self.attempt(kind, attempt_limit.min(left), call()).await {
                        Err(error @ MetadataError::Unavailable(_)) => error,
                        outcome => return outcome,
                    }
                }
                _ => MetadataError::Unavailable("no place among the calls to it in time".to_owned()),
            };
            // Spread, so that those who wait do not come together when it is back (O3).
            let pause = Duration::from_millis(pause_ms / 2 + rand::random_range(0..=pause_ms));
            if Instant::now() + pause >= deadline {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
                return Err(error);
            }
            self.repeated.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            pause_ms = (pause_ms * 2).min(self.patience.pause_ms.max(1) * 8);
        }
    }

    /// Makes a call once.
    async fn once<T>(
        &self,
        kind: Kind,
        call: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let limit = self.patience.attempt_limit_ms.min(self.patience.call_limit_ms);
        self.attempt(kind, Duration::from_millis(limit), call).await
    }
}

impl MetadataStore for ObservedStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        Box::pin(self.patient(Kind::Read, || self.inner.get(key)))
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(self.patient(Kind::Write, move || self.inner.commit(operations.clone())))
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        Box::pin(self.patient(Kind::Read, move || self.inner.range(prefix, after, limit)))
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        Box::pin(self.patient(Kind::Write, move || self.inner.allocate(sequence, count)))
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        Box::pin(self.once(Kind::Write, self.inner.open_session(ttl_ms)))
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(self.once(Kind::Write, self.inner.renew_session(session)))
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        Box::pin(self.once(Kind::Write, self.inner.close_session(session)))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        Box::pin(self.once(Kind::Read, self.inner.watch(prefix, from)))
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(self.patient(Kind::Read, || self.inner.current_version()))
    }

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silent_for()
    }

    fn own_figures(&self) -> Vec<Figure> {
        self.inner.own_figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::store::Condition;
    use std::sync::atomic::AtomicBool;

    /// A store that is away when told so.
    struct Leaving {
        inner: MemoryStore,
        away: AtomicBool,
        /// How long ago it answered others, ms; [`UNTOLD`] = it does not say.
        silent_ms: AtomicU64,
    }

    const UNTOLD: u64 = u64::MAX;

    impl Leaving {
        async fn there<T>(&self, call: BoxFuture<'_, Result<T, MetadataError>>) -> Result<T, MetadataError> {
            if self.away.load(Ordering::SeqCst) {
                return Err(MetadataError::Unavailable("away".to_owned()));
            }
            call.await
        }
    }

    impl MetadataStore for Leaving {
        fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
            Box::pin(self.there(self.inner.get(key)))
        }
        fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
            Box::pin(self.there(self.inner.commit(operations)))
        }
        fn range<'a>(
            &'a self,
            prefix: &'a str,
            after: Option<&'a str>,
            limit: usize,
        ) -> BoxFuture<'a, Result<Page, MetadataError>> {
            Box::pin(self.there(self.inner.range(prefix, after, limit)))
        }
        fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
            Box::pin(self.there(self.inner.allocate(sequence, count)))
        }
        fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
            Box::pin(self.there(self.inner.open_session(ttl_ms)))
        }
        fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
            Box::pin(self.there(self.inner.renew_session(session)))
        }
        fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
            Box::pin(self.there(self.inner.close_session(session)))
        }
        fn watch<'a>(
            &'a self,
            prefix: &'a str,
            from: Option<Version>,
        ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
            Box::pin(self.there(self.inner.watch(prefix, from)))
        }
        fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
            Box::pin(self.there(self.inner.current_version()))
        }
        fn silent_for(&self) -> Option<Duration> {
            let silent_ms = self.silent_ms.load(Ordering::SeqCst);
            (silent_ms != UNTOLD).then(|| Duration::from_millis(silent_ms))
        }
    }

    fn leaving(patience: Patience) -> (Arc<Leaving>, Arc<ObservedStore>) {
        let inner = Arc::new(Leaving {
            inner: MemoryStore::new(),
            away: AtomicBool::new(false),
            silent_ms: AtomicU64::new(UNTOLD),
        });
        (inner.clone(), ObservedStore::new(inner, patience))
    }

    #[tokio::test]
    async fn a_call_waits_for_the_store_and_is_counted_meanwhile() {
        let (inner, store) = leaving(Patience { pause_ms: 2, ..Patience::default() });
        inner.away.store(true, Ordering::SeqCst);
        let shared: SharedStore = store.clone();
        let waiting = tokio::spawn(async move { shared.put("a", "1", Condition::Absent).await });
        while store.figures().repeated < 3 {
            tokio::task::yield_now().await;
        }
        let figures = store.figures();
        assert_eq!((figures.available, figures.waiting, figures.outages), (false, 1, 1));
        inner.away.store(false, Ordering::SeqCst);
        waiting.await.expect("no panic").expect("it came to pass");
        let figures = store.figures();
        assert_eq!((figures.available, figures.waiting, figures.away_ms, figures.writes), (true, 0, 0, 1));
    }

    #[tokio::test]
    async fn a_call_is_given_up_past_its_time_and_may_be_repeated() {
        let (inner, store) = leaving(Patience { call_limit_ms: 50, pause_ms: 5, ..Patience::default() });
        inner.away.store(true, Ordering::SeqCst);
        assert!(matches!(store.get("a").await, Err(MetadataError::Unavailable(_))));
        assert_eq!(store.figures().timed_out, 1);
        let renewal = store.renew_session(SessionId(1)).await;
        assert!(matches!(renewal, Err(MetadataError::Unavailable(_))), "renewals are not repeated");
    }

    #[tokio::test]
    async fn too_many_waiting_calls_are_refused_at_once() {
        let (inner, store) = leaving(Patience { waiting_max: 1, pause_ms: 5, ..Patience::default() });
        inner.away.store(true, Ordering::SeqCst);
        let first = tokio::spawn({
            let store = store.clone();
            async move { store.get("a").await }
        });
        while store.figures().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(store.get("b").await, Err(MetadataError::Unavailable(text)) if text.contains("wait")));
        assert_eq!(store.figures().refused, 1);
        first.abort();
        let _ = first.await;
        assert_eq!(store.figures().waiting, 0, "who left does not wait");
    }

    #[tokio::test]
    async fn a_store_that_answers_nobody_is_away_before_anybody_gives_up() {
        let (_, store) = leaving(Patience::default());
        let hanging = |limit_ms| {
            store.attempt(Kind::Read, Duration::from_secs(60), async move {
                tokio::time::sleep(Duration::from_millis(limit_ms)).await;
                Ok::<_, MetadataError>(())
            })
        };
        // Its caller leaves before the store says anything.
        assert!(tokio::time::timeout(Duration::from_millis(10), hanging(60_000)).await.is_err());
        assert!(store.figures().available);
        let started = Instant::now();
        while store.figures().available {
            assert!(started.elapsed() < Duration::from_secs(20), "it is seen in time");
            tokio::task::yield_now().await;
        }
        assert!(store.figures().away_ms >= 2_000);
        hanging(1).await.expect("it answers");
        assert!(store.figures().available);
    }

    #[tokio::test]
    async fn a_write_that_hangs_is_unknown() {
        let (_, store) = leaving(Patience::default());
        let never =
            store.attempt(Kind::Write, Duration::from_millis(10), std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(never, Err(MetadataError::UnknownOutcome(_))));
        assert!(!store.figures().available);
    }

    #[tokio::test]
    async fn a_call_that_others_kept_from_its_end_says_nothing_of_the_store() {
        let (inner, store) = leaving(Patience { call_limit_ms: 50, pause_ms: 5, ..Patience::default() });
        inner.away.store(true, Ordering::SeqCst);
        inner.silent_ms.store(100, Ordering::SeqCst);
        assert!(matches!(store.get("a").await, Err(MetadataError::Unavailable(_))));
        let slow = store.attempt(Kind::Write, Duration::from_millis(10), std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(slow, Err(MetadataError::UnknownOutcome(_))));
        let figures = store.figures();
        assert_eq!((figures.available, figures.outages, figures.away_ms), (true, 0, 0), "a conflict is an answer");
        assert!(figures.contended >= 2);
        // Now it says nothing to anybody any more.
        inner.silent_ms.store(SILENCE.as_millis() as u64, Ordering::SeqCst);
        assert!(store.get("a").await.is_err());
        assert_eq!((store.figures().available, store.figures().outages), (false, 1));
        // An answer to somebody else is enough to be there again.
        inner.silent_ms.store(0, Ordering::SeqCst);
        assert!(store.figures().available);
    }
}
