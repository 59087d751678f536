//! What all ledgers of one client share: metadata, bookies, settings, counts, the clock and the ticker.
//!
//! Invariants: C1 one timer per client: only ledgers with something outstanding are ticked, an idle one costs nothing;
//! C2 every metadata call has a deadline, and a call that passed it counts as *unknown*, never as refused.
//! Must never know: which ledger does what.

use crate::api::LedgerError;
use crate::directory::BookieDirectory;
use crate::keys;
use crate::placement::Quarantine;
use crate::record::{LedgerRecord, Stored};
use crate::stats::Counters;
use crate::writer::shell::Writer;
use crate::writer::words::WriterTimes;
use meridian_metadata::{Condition, MetadataError, Operation, SharedStore, Version};
use meridian_placement::Rule;
use meridian_topology::Location;
use meridian_types::{BookieId, LedgerId};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Settings of a ledger client.
#[derive(Debug, Clone)]
pub struct LedgerConfig {
    /// Times and bounds of writers.
    pub times: WriterTimes,
    /// An entry (head and body) may have so many bytes.
    pub max_entry_bytes: u64,
    /// One metadata call may take so long.
    pub metadata_timeout_ms: u64,
    /// Everything that a close, an ensemble change or a create does in metadata may take so long.
    pub metadata_patience_ms: u64,
    /// One read request to one bookie may take so long.
    pub read_timeout_ms: u64,
    /// A second bookie is asked when the first has not answered a read for so long; 0 = only when it failed.
    pub read_hedge_ms: u64,
    /// A recovery may take so long before it reports why it does not end.
    pub recovery_timeout_ms: u64,
    /// Entries and bytes asked for in one read of a recovery.
    pub recovery_batch_entries: u32,
    /// Bytes asked for in one read of a recovery, and found entries in flight at most.
    pub recovery_batch_bytes: u64,
    /// A bookie that failed an add or a read is not chosen, and read last, for so long.
    pub quarantine_ms: u64,
    /// The ticker's beat.
    pub tick_ms: u64,
    /// Ledger ids reserved by one metadata write.
    pub id_block: u64,
    /// Check digests of entries read in the client too (the bookie has checked them): for bookies behind a network.
    pub verify_reads: bool,
    /// How copies are spread over zones and regions.
    pub placement: Rule,
    /// Where this client stands: the nearest copy is read first.
    pub location: Location,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            times: WriterTimes {
                add_timeout_ms: 5_000,
                give_up_ms: 25_000,
                retry_ms: 1_000,
                busy_retry_ms: 20,
                lac_idle_ms: 200,
                window_keep_bytes: 16 << 20,
                change_delay_ms: 0,
            },
            max_entry_bytes: 6 << 20,
            metadata_timeout_ms: 5_000,
            metadata_patience_ms: 10_000,
            read_timeout_ms: 5_000,
            read_hedge_ms: 1_000,
            recovery_timeout_ms: 30_000,
            recovery_batch_entries: 256,
            recovery_batch_bytes: 4 << 20,
            quarantine_ms: 30_000,
            tick_ms: 50,
            id_block: 1_000,
            verify_reads: true,
            placement: Rule::default(),
            location: Location::default(),
        }
    }
}

/// See the head of this file.
pub(crate) struct Core {
    pub(crate) metadata: SharedStore,
    pub(crate) bookies: Arc<dyn BookieDirectory>,
    pub(crate) config: LedgerConfig,
    pub(crate) counters: Counters,
    pub(crate) quarantine: Mutex<Quarantine>,
    pub(crate) ticker: Arc<Ticker>,
    /// Writers that live, so that they can be told of a bookie that leaves.
    pub(crate) writers: Mutex<HashMap<LedgerId, Weak<Writer>>>,
    /// Bookies that leave the cluster: never chosen.
    pub(crate) leaving: Mutex<Arc<BTreeSet<BookieId>>>,
    started: Instant,
    runtime: OnceLock<Handle>,
}

impl Core {
    pub(crate) fn new(metadata: SharedStore, bookies: Arc<dyn BookieDirectory>, config: LedgerConfig) -> Arc<Self> {
        Arc::new(Self {
            metadata,
            bookies,
            config,
            counters: Counters::default(),
            quarantine: Mutex::new(Quarantine::default()),
            ticker: Arc::new(Ticker::default()),
            writers: Mutex::default(),
            leaving: Mutex::default(),
            started: Instant::now(),
            runtime: OnceLock::new(),
        })
    }

    /// Milliseconds since the client began; never goes back.
    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Notes the runtime and starts the ticker on it. Called from every asynchronous entrance.
    pub(crate) fn attach(self: &Arc<Self>) {
        self.runtime.get_or_init(|| {
            let runtime = Handle::current();
            runtime.spawn(Ticker::run(self.ticker.clone(), Arc::downgrade(self), self.config.tick_ms));
            runtime
        });
    }

    /// Runs a task beside the caller. Only after [`Self::attach`].
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.runtime.get() {
            Some(runtime) => drop(runtime.spawn(task)),
            None => debug_assert!(false, "a ledger exists before the client was attached to a runtime"),
        }
    }

    pub(crate) fn quarantine(&self, bookies: impl IntoIterator<Item = BookieId>) {
        let now_ms = self.now_ms();
        let mut quarantine = self.quarantine.lock();
        for bookie in bookies {
            quarantine.add(&bookie, now_ms + self.config.quarantine_ms);
        }
    }

    /// Asks the placement with the quarantine as it is now.
    pub(crate) fn with_quarantine<T>(&self, choose: impl FnOnce(&Quarantine, u64) -> T) -> T {
        let mut quarantine = self.quarantine.lock();
        quarantine.expire(self.now_ms());
        choose(&quarantine, rand::random())
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, MetadataError>> + Send,
    ) -> Result<T, MetadataError> {
        let limit_ms = self.config.metadata_timeout_ms;
        match tokio::time::timeout(Duration::from_millis(limit_ms), call).await {
            Ok(result) => result,
            Err(_) => Err(MetadataError::UnknownOutcome(format!("no answer within {limit_ms} ms"))),
        }
    }

    /// The record of a ledger.
    pub(crate) async fn load(&self, ledger_id: LedgerId) -> Result<(LedgerRecord, Version), LedgerError> {
        let key = keys::record_key(ledger_id);
        match self.in_time(self.metadata.get(&key)).await? {
            Some(entry) => Ok((LedgerRecord::decode(&entry.value)?, entry.version)),
            None => Err(LedgerError::NoSuchLedger(ledger_id)),
        }
    }

    /// Stores a record with its holdings if the stored one has still this version (or is absent). `before` is the
    /// record that has this version.
    pub(crate) async fn store(
        &self,
        ledger_id: LedgerId,
        before: Option<&LedgerRecord>,
        record: &LedgerRecord,
        condition: Condition,
    ) -> Stored {
        let key = keys::record_key(ledger_id);
        let mut operations = vec![Operation::Put { key, value: record.encode(), condition, ephemeral: None }];
        operations.extend(keys::holding_changes(ledger_id, before, Some(record)));
        match self.in_time(self.metadata.commit(operations)).await {
            Ok(version) => Stored::Done(version),
            Err(MetadataError::Conflict { .. }) => Stored::Changed,
            Err(error @ (MetadataError::Unavailable(_) | MetadataError::UnknownOutcome(_))) => Stored::Unknown(error),
            Err(error) => Stored::Failed(error),
        }
    }

    pub(crate) async fn allocate(&self, count: u64) -> Result<u64, MetadataError> {
        self.in_time(self.metadata.allocate(keys::ID_SEQUENCE, count)).await
    }

    /// Deletes a record with its holdings; an absent one is no error.
    pub(crate) async fn remove(&self, ledger_id: LedgerId) -> Result<(), MetadataError> {
        let key = keys::record_key(ledger_id);
        let deadline_ms = self.now_ms() + self.config.metadata_patience_ms;
        loop {
            let Some(entry) = self.in_time(self.metadata.get(&key)).await? else { return Ok(()) };
            // The holdings of a record that can't be read are left to the audit.
            let record = LedgerRecord::decode(&entry.value).ok();
            let condition = Condition::Is(entry.version);
            let mut operations = vec![Operation::Delete { key: key.clone(), condition }];
            operations.extend(keys::holding_changes(ledger_id, record.as_ref(), None));
            match self.in_time(self.metadata.commit(operations)).await {
                Err(MetadataError::Conflict { .. }) if self.now_ms() < deadline_ms => {}
                result => return result.map(drop),
            }
        }
    }

    /// A pause between attempts.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(self.config.times.retry_ms.min(100))).await;
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.ticker.stopped.store(true, Ordering::Release);
        self.ticker.wake.notify_one();
    }
}

/// Ticks the writers that have something outstanding (C1).
#[derive(Default)]
pub(crate) struct Ticker {
    active: Mutex<Vec<Weak<Writer>>>,
    wake: Notify,
    stopped: AtomicBool,
}

impl Ticker {
    /// From now on the writer is ticked until it says that it is quiet.
    pub(crate) fn add(&self, writer: Weak<Writer>) {
        let mut active = self.active.lock();
        active.push(writer);
        if active.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// Writers with something outstanding.
    pub(crate) fn active(&self) -> usize {
        self.active.lock().len()
    }

    async fn run(ticker: Arc<Ticker>, core: Weak<Core>, tick_ms: u64) {
        loop {
            ticker.wake.notified().await;
            loop {
                tokio::time::sleep(Duration::from_millis(tick_ms)).await;
                let Some(now_ms) = core.upgrade().map(|core| core.now_ms()) else { return };
                if ticker.beat(now_ms) == 0 {
                    break;
                }
            }
            if ticker.stopped.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// One tick of all active writers; answers how many stay active.
    fn beat(&self, now_ms: u64) -> usize {
        let mut writers = std::mem::take(&mut *self.active.lock());
        writers.retain(|writer| writer.upgrade().is_some_and(|writer| writer.tick(now_ms)));
        let mut active = self.active.lock();
        writers.append(&mut active);
        *active = writers;
        active.len()
    }
}
