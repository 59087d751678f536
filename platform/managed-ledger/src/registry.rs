//! All logs of one process, and what they share: stores, cache bounds, the list of changed cursors, time.
//!
//! Invariants: D3; a log is open once per process: a second opening of a name ends the first one (its epoch is older).

use crate::api::{CacheSettings, CacheStats, LogError, LogInfo, LogSettings, LogSink};
use crate::cache::catch_up::CatchUpBudget;
use crate::cache::tail::TailBudget;
use crate::cursor::Cursor;
use crate::keys;
use crate::log::ManagedLedger;
use crate::log::ending::erase;
use crate::log::meta::put;
use crate::open::{Stored, open, read_stored};
use crate::records::encode;
use meridian_ledger::Ledgers;
use meridian_metadata::{Condition, MetadataError, Operation, SharedStore, WatchEvent};
use meridian_types::{EntryId, Incarnation, LedgerId, Position, RegionId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time in ms since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Pause before names are followed again after a failure.
const FOLLOW_AGAIN: Duration = Duration::from_secs(1);
/// Names listed per page.
const PAGE: usize = 1000;

/// What must hold in metadata while a log of that name is opened, `None` = nothing; an error refuses the opening.
pub type OpenGuard = Arc<dyn Fn(&str) -> Result<Option<Operation>, LogError> + Send + Sync>;

struct OpenLog {
    log: Weak<ManagedLedger>,
    check_at_ms: Arc<AtomicU64>,
}

/// What all logs of a process share.
pub(crate) struct Shared {
    pub ledgers: Arc<dyn Ledgers>,
    pub metadata: SharedStore,
    pub region: RegionId,
    pub tail: TailBudget,
    pub catch_up: CatchUpBudget,
    pub runtime: tokio::runtime::Handle,
    pub cursors_rewound: AtomicU64,
    pub ledgers_skipped: AtomicU64,
    pub entries_skipped: AtomicU64,
    clock: Clock,
    coarse_ms: AtomicU64,
    guard: OnceLock<OpenGuard>,
    changed: Mutex<Vec<Weak<Cursor>>>,
    /// Open logs with the time when each must be looked at. Nothing is dropped under this lock: a log's end takes it.
    logs: Mutex<HashMap<Box<str>, OpenLog>>,
    settings: Mutex<Arc<LogSettings>>,
}

impl Shared {
    pub fn now_ms(&self) -> u64 {
        let now_ms = (self.clock)();
        self.coarse_ms.store(now_ms, Ordering::Relaxed);
        now_ms
    }

    /// The time of the last append or tick.
    pub fn coarse_now_ms(&self) -> u64 {
        self.coarse_ms.load(Ordering::Relaxed)
    }

    /// What an opening has to check in its commit (L2).
    pub fn opening_check(&self, name: &str) -> Result<Option<Operation>, LogError> {
        self.guard.get().map_or(Ok(None), |guard| guard(name))
    }

    /// One copy of equal settings for many logs.
    pub fn intern(&self, settings: LogSettings) -> Arc<LogSettings> {
        let mut last = self.settings.lock();
        if **last != settings {
            *last = Arc::new(settings);
        }
        last.clone()
    }

    pub fn list_changed(&self, cursor: Weak<Cursor>) {
        self.changed.lock().push(cursor);
    }

    pub fn forget(&self, name: &str, log: &Weak<ManagedLedger>) {
        let mut logs = self.logs.lock();
        if logs.get(name).is_some_and(|there| there.log.ptr_eq(log)) {
            logs.remove(name);
        }
    }

    fn open_log(&self, name: &str) -> Option<Arc<ManagedLedger>> {
        let log = self.logs.lock().get(name).map(|open| open.log.clone());
        log?.upgrade()
    }
}

/// See the head of the file and [`crate::api`].
pub struct ManagedLedgers {
    shared: Arc<Shared>,
}

impl ManagedLedgers {
    /// Where ledgers are made, for what belongs to a log and is no part of it.
    pub fn ledgers(&self) -> Arc<dyn Ledgers> {
        self.shared.ledgers.clone()
    }

    /// Over the given stores. Must be called within a runtime: tasks run there.
    pub fn new(ledgers: Arc<dyn Ledgers>, metadata: SharedStore, caches: CacheSettings, region: RegionId) -> Arc<Self> {
        let system = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self::with_clock(ledgers, metadata, caches, region, Arc::new(system))
    }

    /// The same with a clock of the caller's.
    pub fn with_clock(
        ledgers: Arc<dyn Ledgers>,
        metadata: SharedStore,
        caches: CacheSettings,
        region: RegionId,
        clock: Clock,
    ) -> Arc<Self> {
        let shared = Shared {
            ledgers,
            metadata,
            region,
            tail: TailBudget::new(caches),
            catch_up: CatchUpBudget::new(caches),
            runtime: tokio::runtime::Handle::current(),
            cursors_rewound: AtomicU64::new(0),
            ledgers_skipped: AtomicU64::new(0),
            entries_skipped: AtomicU64::new(0),
            coarse_ms: AtomicU64::new(clock()),
            clock,
            guard: OnceLock::new(),
            changed: Mutex::default(),
            logs: Mutex::default(),
            settings: Mutex::default(),
        };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// Openings are guarded from now on: who is not the owner any more when an opening commits opens nothing. Once.
    pub fn set_guard(&self, guard: OpenGuard) {
        // A second guard would be a mistake of the wiring; the first one stays.
        let _ = self.shared.guard.set(guard);
    }

    /// Opens a log, created if it is absent. A log that is open here already is fenced by the new opening.
    ///
    /// # Errors
    /// Storage or metadata failed, or a record is damaged.
    pub async fn open(
        &self,
        name: &str,
        settings: LogSettings,
        sink: Arc<dyn LogSink>,
    ) -> Result<Arc<ManagedLedger>, LogError> {
        let log = open(&self.shared, name, settings, sink).await?;
        let open = OpenLog { log: Arc::downgrade(&log), check_at_ms: log.check_at_ms.clone() };
        let earlier = self.shared.logs.lock().insert(name.into(), open);
        if let Some(earlier) = earlier.and_then(|earlier| earlier.log.upgrade()) {
            earlier.stop(LogError::Fenced(name.to_owned()));
        }
        Ok(log)
    }

    /// The log if it is open here.
    pub fn opened(&self, name: &str) -> Option<Arc<ManagedLedger>> {
        self.shared.open_log(name)
    }

    /// Whether there is such a log.
    ///
    /// # Errors
    /// The metadata store failed.
    pub async fn exists(&self, name: &str) -> Result<bool, LogError> {
        Ok(self.shared.metadata.get(&keys::name(name)).await?.is_some())
    }

    /// The names of all logs that start with `prefix`, in order.
    ///
    /// # Errors
    /// The metadata store failed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, LogError> {
        let (prefix, mut after, mut names) = (keys::names(prefix), None, Vec::new());
        loop {
            let page = self.shared.metadata.range(&prefix, after.as_deref(), PAGE).await?;
            names.extend(page.entries.iter().filter_map(|entry| keys::log_of(&entry.key)));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Tells which logs come and go, by whichever broker: a name and whether it exists now, or `None` when changes may
    /// have been missed. Ends when the store is closed.
    pub async fn follow_names(&self, tell: &(dyn Fn(Option<(String, bool)>) + Send + Sync)) {
        loop {
            let Ok(mut watch) = self.shared.metadata.watch(&keys::names(""), None).await else {
                tokio::time::sleep(FOLLOW_AGAIN).await;
                continue;
            };
            tell(None);
            loop {
                match watch.next().await {
                    None => return,
                    Some((WatchEvent::Put(entry), _)) => tell(keys::log_of(&entry.key).map(|name| (name, true))),
                    Some((WatchEvent::Delete { key, .. }, _)) => tell(keys::log_of(&key).map(|name| (name, false))),
                    Some((WatchEvent::Rescan, _)) => tell(None),
                }
            }
        }
    }

    /// The names of a log's durable cursors, in order; the log need not be open.
    ///
    /// # Errors
    /// The metadata store failed.
    pub async fn cursor_names(&self, name: &str) -> Result<Vec<String>, LogError> {
        let (log, prefix) = (keys::log(name), keys::cursor(name, ""));
        let cursor_of = |key: &str| match keys::kind(&log, key) {
            Some(keys::Kind::Cursor(cursor)) => Some(cursor),
            _ => None,
        };
        let (mut after, mut names) = (None, Vec::new());
        loop {
            let page = self.shared.metadata.range(&prefix, after.as_deref(), PAGE).await?;
            names.extend(page.entries.iter().filter_map(|entry| cursor_of(&entry.key)));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Deletes a log. Idempotent as [`ManagedLedger::delete`].
    ///
    /// # Errors
    /// [`LogError::NoSuchLog`] if there is nothing of it, or storage or metadata failed.
    pub async fn delete(&self, name: &str) -> Result<(), LogError> {
        if let Some(log) = self.shared.open_log(name) {
            return log.delete().await;
        }
        loop {
            let stored = read_stored(&self.shared, name).await?;
            let Stored { mut head, version, segments, cursors } =
                stored.ok_or_else(|| LogError::NoSuchLog(name.to_owned()))?;
            if !head.deleting {
                head.deleting = true;
                head.owner_epoch += 1;
                head.revision += 1;
                let ledgers = segments.iter().flat_map(|segment| &segment.record.ledgers).chain(&head.ledgers);
                let mut doomed: Vec<i64> = ledgers.map(|ledger| ledger.ledger_id).collect();
                doomed.extend(cursors.iter().flat_map(|(_, record)| record.ledger_id.iter().chain(&record.doomed)));
                head.doomed.extend(doomed);
                let mark = put(keys::head(name), encode(&head), Condition::Is(version));
                let unname = Operation::Delete { key: keys::name(name), condition: Condition::Any };
                match self.shared.metadata.commit(vec![mark, unname]).await {
                    Err(MetadataError::Conflict { .. }) => continue,
                    outcome => outcome?,
                };
            }
            return erase(&self.shared, name, &head.doomed).await;
        }
    }

    /// Statistics of a log without opening it; counts of a ledger that is open elsewhere are not known here.
    ///
    /// # Errors
    /// [`LogError::NoSuchLog`], or the metadata store failed.
    pub async fn read_info(&self, name: &str) -> Result<LogInfo, LogError> {
        if let Some(log) = self.shared.open_log(name) {
            return Ok(log.info());
        }
        let stored = read_stored(&self.shared, name).await?.filter(|stored| !stored.head.deleting);
        let Stored { head, segments, .. } = stored.ok_or_else(|| LogError::NoSuchLog(name.to_owned()))?;
        let trimmed_to = head.trimmed_to.map_or(Position::EARLIEST, Position::from);
        let mut layout = crate::layout::Layout::new(trimmed_to, head.trimmed_index);
        for record in segments.iter().flat_map(|segment| &segment.record.ledgers).chain(&head.ledgers) {
            let id = LedgerId(record.ledger_id);
            layout.add(id, record.created_ms);
            layout.settle(id, record.entries, record.bytes, record.end_index);
            if let Some(closed_ms) = record.closed_ms {
                layout.close(id, closed_ms);
            }
            if record.bytes_estimated {
                layout.estimated(id);
            }
        }
        let (entries, bytes) = layout.totals();
        debug_assert!(layout.last_confirmed().entry_id >= EntryId::NONE);
        Ok(LogInfo {
            ledgers: layout.info(),
            last_confirmed: layout.last_confirmed(),
            entries,
            bytes,
            next_index: layout.next_index(),
            pending_appends: 0,
            waiting: None,
            terminated: head.terminated.map(Position::from),
            properties: head.properties,
            incarnation: Incarnation(head.incarnation),
        })
    }

    /// Once a second: rolls by age, trims, persists changed cursors, lets caches age. Starts the work and does not wait
    /// for it. Costs a comparison per open log and nothing per idle cursor (D3).
    pub async fn tick(&self, now_ms: u64) {
        self.shared.coarse_ms.store(now_ms, Ordering::Relaxed);
        self.shared.tail.age(now_ms);
        self.shared.catch_up.age(now_ms);
        let changed = std::mem::take(&mut *self.shared.changed.lock());
        let mut later = Vec::new();
        for cursor in changed {
            if cursor.upgrade().is_some_and(|cursor| cursor.flush_if_due(now_ms)) {
                later.push(cursor);
            }
        }
        if !later.is_empty() {
            self.shared.changed.lock().append(&mut later);
        }
        let due = |open: &&OpenLog| open.check_at_ms.load(Ordering::Relaxed) <= now_ms;
        let logs: Vec<Weak<ManagedLedger>> =
            self.shared.logs.lock().values().filter(due).map(|open| open.log.clone()).collect();
        for log in logs.iter().filter_map(Weak::upgrade) {
            log.tick(now_ms);
        }
    }

    /// What the caches hold and how they did.
    pub fn cache_stats(&self) -> CacheStats {
        let (tail, catch_up) = (&self.shared.tail, &self.shared.catch_up);
        CacheStats {
            tail_bytes: tail.bytes(),
            catch_up_bytes: catch_up.bytes(),
            tail_hits: tail.hits.load(Ordering::Relaxed),
            catch_up_hits: catch_up.hits.load(Ordering::Relaxed),
            storage_reads: catch_up.storage_reads.load(Ordering::Relaxed),
            storage_entries: catch_up.storage_entries.load(Ordering::Relaxed),
        }
    }

    /// Cursors that went back to an older state because their ledger was lost, since the start.
    pub fn cursors_rewound(&self) -> u64 {
        self.shared.cursors_rewound.load(Ordering::Relaxed)
    }

    /// Lost entries that readers passed over, since the start.
    pub fn entries_skipped(&self) -> u64 {
        self.shared.entries_skipped.load(Ordering::Relaxed)
    }

    /// Lost ledgers that logs were opened without, since the start.
    pub fn ledgers_skipped(&self) -> u64 {
        self.shared.ledgers_skipped.load(Ordering::Relaxed)
    }
}
