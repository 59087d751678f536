//! Managed ledgers over memory, for tests: ledgers with faults to switch on, a sink that records, a clock to set.
//! Compiled for tests and with the feature `testing` only.

use crate::api::{AppendRequest, Appended, CacheSettings, LogError, LogSettings, LogSink};
use crate::log::ManagedLedger;
use crate::registry::ManagedLedgers;
use bytes::Bytes;
use meridian_bookie_api::{BoxFuture, EntryBytes};
use meridian_ledger::{
    AppendEvent, AppendSink, LedgerEntry, LedgerError, LedgerOptions, LedgerReader, LedgerWriter, Ledgers,
};
use meridian_metadata::{MemoryStore, MetadataError, SharedStore};
use meridian_types::{EntryId, LedgerId, Position, RegionId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

#[derive(Default)]
struct Stored {
    entries: Vec<Bytes>,
    confirmed: usize,
    next_entry: i64,
    closed: bool,
    ended: bool,
    sink: Option<Arc<dyn AppendSink>>,
    kind: String,
}

#[derive(Default)]
struct World {
    ledgers: BTreeMap<i64, Stored>,
    next_id: i64,
    hold: bool,
    refuse_creates: bool,
    refuse_closes: bool,
    refused_closes: u64,
    reads: u64,
    creates: u64,
    lost_entries: BTreeSet<(i64, i64)>,
}

/// Ledgers in memory. They outlive the managed ledgers over them, as disks do.
#[derive(Clone, Default)]
pub struct MemoryLedgers {
    world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
}

impl MemoryLedgers {
    /// Entries are stored but not confirmed until [`MemoryLedgers::release`].
    pub fn hold(&self) {
        self.world.lock().hold = true;
    }

    /// Confirms what is stored, newest ledger first (the hard order), and what comes.
    pub fn release(&self) {
        let ids: Vec<i64> = {
            let mut world = self.world.lock();
            world.hold = false;
            world.ledgers.keys().rev().copied().collect()
        };
        ids.into_iter().for_each(|id| self.confirm(id));
    }

    /// New ledgers can't be created.
    pub fn refuse_creates(&self, refuse: bool) {
        self.world.lock().refuse_creates = refuse;
    }

    /// Closes find no metadata store.
    pub fn refuse_closes(&self, refuse: bool) {
        self.world.lock().refuse_closes = refuse;
    }

    /// Closes that found none.
    pub fn refused_closes(&self) -> u64 {
        self.world.lock().refused_closes
    }

    /// Ends a ledger's writer; of its entries not yet confirmed the first `survivors` are found by a recovery.
    pub fn end_writer(&self, id: LedgerId, survivors: usize) {
        let sink = {
            let mut world = self.world.lock();
            let Some(ledger) = world.ledgers.get_mut(&id.0) else { return };
            ledger.ended = true;
            let keep = (ledger.confirmed + survivors).min(ledger.entries.len());
            ledger.entries.truncate(keep);
            ledger.sink.clone()
        };
        if let Some(sink) = sink {
            let error = LedgerError::NotEnoughBookies { needed: 1, available: 0 };
            sink.append_event(AppendEvent::Ended { ledger_id: id, error });
        }
    }

    /// Removes a ledger as if every replica was lost.
    pub fn lose(&self, id: LedgerId) {
        self.world.lock().ledgers.remove(&id.0);
    }

    /// Makes one entry unreadable as if every replica of it was lost, or readable again.
    pub fn lose_entry(&self, at: Position, lost: bool) {
        let key = (at.ledger_id.0, at.entry_id.0);
        let mut world = self.world.lock();
        if lost {
            world.lost_entries.insert(key);
        } else {
            world.lost_entries.remove(&key);
        }
    }

    /// The ledgers there are, of one kind (`data`, `cursor`).
    pub fn ids(&self, kind: &str) -> Vec<LedgerId> {
        let world = self.world.lock();
        world.ledgers.iter().filter(|(_, ledger)| ledger.kind == kind).map(|(id, _)| LedgerId(*id)).collect()
    }

    /// Entries stored in a ledger.
    pub fn entries(&self, id: LedgerId) -> usize {
        self.world.lock().ledgers.get(&id.0).map_or(0, |ledger| ledger.entries.len())
    }

    /// Bytes stored in a ledger.
    pub fn bytes(&self, id: LedgerId) -> usize {
        self.world.lock().ledgers.get(&id.0).map_or(0, |ledger| ledger.entries.iter().map(Bytes::len).sum())
    }

    /// Read calls so far.
    pub fn reads(&self) -> u64 {
        self.world.lock().reads
    }

    /// Ledgers created so far.
    pub fn creates(&self) -> u64 {
        self.world.lock().creates
    }

    fn confirm(&self, id: i64) {
        let news = {
            let mut world = self.world.lock();
            let hold = world.hold;
            let Some(ledger) = world.ledgers.get_mut(&id) else { return };
            if hold || ledger.ended || ledger.confirmed == ledger.entries.len() {
                return;
            }
            ledger.confirmed = ledger.entries.len();
            let up_to = EntryId(ledger.confirmed as i64 - 1);
            ledger.sink.clone().map(|sink| (sink, up_to))
        };
        if let Some((sink, up_to)) = news {
            sink.append_event(AppendEvent::Confirmed { ledger_id: LedgerId(id), up_to });
        }
        self.changed.notify_waiters();
    }

    fn reader(&self, id: LedgerId) -> Result<Arc<dyn LedgerReader>, LedgerError> {
        if !self.world.lock().ledgers.contains_key(&id.0) {
            return Err(LedgerError::NoSuchLedger(id));
        }
        Ok(Arc::new(MemoryLedger { ledgers: self.clone(), id }))
    }
}

impl Ledgers for MemoryLedgers {
    fn create(
        &self,
        options: LedgerOptions,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'_, Result<Arc<dyn LedgerWriter>, LedgerError>> {
        Box::pin(async move {
            let mut world = self.world.lock();
            if world.refuse_creates {
                return Err(LedgerError::NotEnoughBookies { needed: options.ensemble_size, available: 0 });
            }
            let id = world.next_id;
            world.next_id += 1;
            world.creates += 1;
            let kind = options.properties.get("kind").cloned().unwrap_or_default();
            world.ledgers.insert(id, Stored { sink: Some(sink), kind, ..Stored::default() });
            let writer: Arc<dyn LedgerWriter> = Arc::new(MemoryLedger { ledgers: self.clone(), id: LedgerId(id) });
            Ok(writer)
        })
    }

    fn open(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>> {
        Box::pin(async move { self.reader(ledger_id) })
    }

    fn recover(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>> {
        Box::pin(async move {
            if let Some(ledger) = self.world.lock().ledgers.get_mut(&ledger_id.0) {
                ledger.closed = true;
                ledger.ended = true;
                ledger.confirmed = ledger.entries.len();
            }
            self.reader(ledger_id)
        })
    }

    fn delete(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<(), LedgerError>> {
        Box::pin(async move {
            self.world.lock().ledgers.remove(&ledger_id.0);
            Ok(())
        })
    }
}

struct MemoryLedger {
    ledgers: MemoryLedgers,
    id: LedgerId,
}

impl MemoryLedger {
    fn with<T>(&self, look: impl FnOnce(&mut Stored) -> T) -> Option<T> {
        self.ledgers.world.lock().ledgers.get_mut(&self.id.0).map(look)
    }
}

impl LedgerReader for MemoryLedger {
    fn id(&self) -> LedgerId {
        self.id
    }

    fn last_confirmed(&self) -> EntryId {
        EntryId(self.with(|ledger| ledger.confirmed).unwrap_or(0) as i64 - 1)
    }

    fn length_bytes(&self) -> u64 {
        let length = |ledger: &mut Stored| ledger.entries[..ledger.confirmed].iter().map(Bytes::len).sum::<usize>();
        self.with(length).unwrap_or(0) as u64
    }

    fn read(
        &self,
        first: EntryId,
        max_entries: u32,
        max_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<LedgerEntry>, LedgerError>> {
        Box::pin(async move {
            // Lets readers overlap, as a real read does.
            tokio::task::yield_now().await;
            let mut world = self.ledgers.world.lock();
            world.reads += 1;
            let ledger = world.ledgers.get(&self.id.0).ok_or(LedgerError::NoSuchLedger(self.id))?;
            let (mut entries, mut bytes) = (Vec::new(), 0);
            let start = first.0.max(0) as usize;
            for at in start..ledger.confirmed.min(start.saturating_add(max_entries as usize)) {
                if world.lost_entries.contains(&(self.id.0, at as i64)) {
                    if at == start {
                        let (ledger_id, entry_id, reason) = (self.id, first, "no replica".to_owned());
                        return Err(LedgerError::Corrupt { ledger_id, entry_id, reason });
                    }
                    break;
                }
                bytes += ledger.entries[at].len() as u64;
                if bytes > max_bytes && !entries.is_empty() {
                    break;
                }
                entries.push(LedgerEntry { entry_id: EntryId(at as i64), payload: ledger.entries[at].clone() });
            }
            if entries.is_empty() {
                let last_confirmed = EntryId(ledger.confirmed as i64 - 1);
                return Err(LedgerError::NoSuchEntry { ledger_id: self.id, entry_id: first, last_confirmed });
            }
            Ok(entries)
        })
    }
}

impl LedgerWriter for MemoryLedger {
    fn append(&self, entries: Vec<EntryBytes>) -> Result<EntryId, LedgerError> {
        let first = self
            .with(|ledger| {
                if ledger.closed {
                    return Err(LedgerError::Closed(self.id));
                }
                let first = EntryId(ledger.next_entry);
                ledger.next_entry += entries.len() as i64;
                if !ledger.ended {
                    ledger.entries.extend(entries.iter().map(EntryBytes::to_bytes));
                }
                Ok(first)
            })
            .unwrap_or(Err(LedgerError::NoSuchLedger(self.id)))?;
        // On the caller's stack: the hardest case for locks.
        self.ledgers.confirm(self.id.0);
        Ok(first)
    }

    fn next_entry_id(&self) -> EntryId {
        EntryId(self.with(|ledger| ledger.next_entry).unwrap_or(0))
    }

    fn close(&self) -> BoxFuture<'_, Result<EntryId, LedgerError>> {
        Box::pin(async move {
            {
                let mut world = self.ledgers.world.lock();
                if world.refuse_closes {
                    world.refused_closes += 1;
                    return Err(MetadataError::Unavailable("away".to_owned()).into());
                }
            }
            loop {
                let changed = self.ledgers.changed.notified();
                let done = self
                    .with(|ledger| {
                        if ledger.ended && !ledger.closed {
                            return Some(Err(LedgerError::NotEnoughBookies { needed: 1, available: 0 }));
                        }
                        let complete = ledger.confirmed == ledger.entries.len();
                        ledger.closed |= complete;
                        complete.then(|| Ok(EntryId(ledger.confirmed as i64 - 1)))
                    })
                    .unwrap_or(Some(Err(LedgerError::NoSuchLedger(self.id))));
                if let Some(done) = done {
                    return done;
                }
                changed.await;
            }
        })
    }
}

#[derive(Default)]
struct Answers {
    appended: Vec<Appended>,
    failed: Vec<(u64, LogError)>,
}

/// Records what a log answers.
#[derive(Default)]
pub struct RecordingSink {
    answers: Mutex<Answers>,
    told: Notify,
}

impl LogSink for RecordingSink {
    fn appended(&self, entries: &[Appended]) {
        self.answers.lock().appended.extend_from_slice(entries);
        self.told.notify_waiters();
    }

    fn append_failed(&self, tokens: &[u64], error: &LogError) {
        self.answers.lock().failed.extend(tokens.iter().map(|token| (*token, error.clone())));
        self.told.notify_waiters();
    }
}

impl RecordingSink {
    /// Waits until so many requests were answered, one way or the other.
    pub async fn answered(&self, count: usize) {
        loop {
            let told = self.told.notified();
            {
                let answers = self.answers.lock();
                if answers.appended.len() + answers.failed.len() >= count {
                    return;
                }
            }
            told.await;
        }
    }

    /// Confirmed so far.
    pub fn appended_so_far(&self) -> Vec<Appended> {
        self.answers.lock().appended.clone()
    }

    /// Failed so far.
    pub fn failed_so_far(&self) -> Vec<(u64, LogError)> {
        self.answers.lock().failed.clone()
    }
}

/// Stores in memory and a clock: what outlives a crash of the managed ledgers over them.
#[derive(Clone)]
pub struct TestRegion {
    /// The ledgers.
    pub ledgers: MemoryLedgers,
    /// The metadata.
    pub metadata: SharedStore,
    /// Its id.
    pub region: RegionId,
    now_ms: Arc<AtomicU64>,
}

impl Default for TestRegion {
    fn default() -> Self {
        let metadata: SharedStore = Arc::new(MemoryStore::new());
        Self {
            ledgers: MemoryLedgers::default(),
            metadata,
            region: RegionId(1),
            now_ms: Arc::new(AtomicU64::new(1_000_000)),
        }
    }
}

impl TestRegion {
    /// Another region than the default one.
    pub fn of(region: RegionId) -> Self {
        Self { region, ..Self::default() }
    }

    /// The managed ledgers of one more broker.
    pub fn broker(&self) -> Arc<ManagedLedgers> {
        self.broker_with(CacheSettings::default())
    }

    /// The same with cache bounds.
    pub fn broker_with(&self, caches: CacheSettings) -> Arc<ManagedLedgers> {
        let now_ms = self.now_ms.clone();
        let clock = Arc::new(move || now_ms.load(Ordering::Relaxed));
        let ledgers = Arc::new(self.ledgers.clone());
        ManagedLedgers::with_clock(ledgers, self.metadata.clone(), caches, self.region, clock)
    }

    /// A log with a recording sink, opened by one more broker.
    ///
    /// # Panics
    /// If it can't be opened.
    pub async fn open(&self, name: &str, settings: LogSettings) -> TestLog {
        let broker = self.broker();
        let sink = Arc::new(RecordingSink::default());
        match broker.open(name, settings, sink.clone()).await {
            Ok(log) => TestLog { broker, log, sink },
            Err(error) => panic!("opening {name}: {error}"),
        }
    }

    /// Now.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    /// Moves the clock on.
    pub fn advance(&self, ms: u64) -> u64 {
        self.now_ms.fetch_add(ms, Ordering::Relaxed) + ms
    }
}

/// An open log with its sink. Dropping it is a crash.
pub struct TestLog {
    /// Its broker.
    pub broker: Arc<ManagedLedgers>,
    /// The log.
    pub log: Arc<ManagedLedger>,
    /// What it answered.
    pub sink: Arc<RecordingSink>,
}

impl TestLog {
    /// Appends `count` single messages with tokens from `first_token`, payload = token as text, and waits for the answers.
    pub async fn append(&self, first_token: u64, count: u64) -> Vec<Position> {
        let before = self.sink.appended_so_far().len() + self.sink.failed_so_far().len();
        self.log.append((first_token..first_token + count).map(request).collect());
        self.sink.answered(before + count as usize).await;
        let appended = self.sink.appended_so_far();
        let new = appended.iter().filter(|a| (first_token..first_token + count).contains(&a.token));
        new.map(|a| a.position).collect()
    }

    /// All payloads from `from` on, as text.
    ///
    /// # Errors
    /// As [`ManagedLedger::read`].
    pub async fn payloads(&self, from: Position) -> Result<Vec<String>, LogError> {
        let (mut next, mut all) = (from, Vec::new());
        loop {
            let read = self.log.read(next, 100, 1 << 20).await?;
            let Some(last) = read.last() else { return Ok(all) };
            next = last.position.next_in_ledger();
            all.extend(read.iter().map(|entry| String::from_utf8_lossy(&entry.payload).into_owned()));
        }
    }
}

/// A single message whose payload is its token as text.
pub fn request(token: u64) -> AppendRequest {
    AppendRequest { payload: Bytes::from(token.to_string()), messages: 1, marker: false, origin: None, token }
}
