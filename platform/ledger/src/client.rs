//! The client: creates, opens, recovers and deletes ledgers.
//!
//! Invariants: L1 a ledger id is never given twice: ids come from a metadata sequence in blocks, and a record is only
//! created where there is none; L3 after [`Ledgers::ids_above`] no id at or below the floor is given; L2 a create costs one metadata write (and one more per [`LedgerConfig::id_block`]).
//! Failure: a create whose outcome is unknown is looked up; if that fails too the error says so and the record, if it
//! is there, is an open ledger that nobody writes to.
//! Must never know: what ledgers are for.

use crate::api::{AppendSink, LedgerError, LedgerOptions, LedgerReader, LedgerWriter, Ledgers, PreparedLedger};
use crate::context::{Core, LedgerConfig};
use crate::directory::BookieDirectory;
use crate::keys::creation;
use crate::layout::Layout;
use crate::reader::Reader;
use crate::record::{LedgerRecord, Stored};
use crate::recovery::shell::recover;
use crate::replicate::check::check;
use crate::replicate::shell::replicate;
use crate::replicate::{Checked, Pace, ReplicateSettings, Replicated, Work};
use crate::stats::{CounterSnapshot, count};
use crate::writer::shell::Writer;
use meridian_bookie_api::BoxFuture;
use meridian_metadata::{Condition, SharedStore, Version};
use meridian_types::{BookieId, LedgerId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// See the head of this file.
pub struct LedgerClient {
    core: Arc<Core>,
    ids: tokio::sync::Mutex<Range<u64>>,
}

impl LedgerClient {
    /// A client over a metadata store and bookies. Its calls want a tokio runtime with time enabled.
    pub fn new(metadata: SharedStore, bookies: Arc<dyn BookieDirectory>, config: LedgerConfig) -> Self {
        Self { core: Core::new(metadata, bookies, config), ids: tokio::sync::Mutex::new(0..0) }
    }

    /// What the client did so far.
    pub fn counters(&self) -> CounterSnapshot {
        self.core.counters.snapshot()
    }

    /// Writers with adds outstanding or news not yet told to bookies.
    pub fn active_writers(&self) -> usize {
        self.core.ticker.active()
    }

    /// The record of a ledger, for audits and tools.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchLedger`] or what metadata said.
    pub async fn record(&self, ledger_id: LedgerId) -> Result<LedgerRecord, LedgerError> {
        self.core.load(ledger_id).await.map(|(record, _)| record)
    }

    /// The bookies as this client finds them.
    pub fn bookies(&self) -> &dyn BookieDirectory {
        &*self.core.bookies
    }

    /// Which bookies leave the cluster, lost or by order: none of them is chosen from now on, and every open ledger of
    /// this client that has one of them in its ensemble replaces it now, also if it is idle. Answers how many ledgers
    /// were told.
    pub fn set_leaving(&self, leaving: BTreeSet<BookieId>) -> usize {
        let before = std::mem::replace(&mut *self.core.leaving.lock(), Arc::new(leaving.clone()));
        let fresh: Vec<_> = leaving.difference(&before).cloned().collect();
        if fresh.is_empty() {
            return 0;
        }
        let writers: Vec<_> = self.core.writers.lock().values().filter_map(|writer| writer.upgrade()).collect();
        writers.into_iter().filter(|writer| writer.leave(&fresh)).count()
    }

    /// Does the work for one ledger as far as it can be done now (S7).
    ///
    /// # Errors
    /// [`LedgerError`]; it may be repeated from the beginning.
    pub async fn replicate(
        &self,
        ledger_id: LedgerId,
        work: Work,
        settings: ReplicateSettings,
        pace: Arc<dyn Pace>,
    ) -> Result<Replicated, LedgerError> {
        self.core.attach();
        replicate(&self.core, ledger_id, work, settings, pace).await
    }

    /// Looks at copies of a ledger's entries, each on the bookie that has to hold it.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchLedger`] or what metadata said.
    pub async fn check(&self, ledger_id: LedgerId, samples: u32) -> Result<Checked, LedgerError> {
        check(&self.core, ledger_id, samples).await
    }

    async fn next_id(&self) -> Result<LedgerId, LedgerError> {
        let mut ids = self.ids.lock().await;
        if ids.is_empty() {
            let block = self.core.config.id_block.max(1);
            let first = self.core.allocate(block).await?;
            *ids = first..first + block;
        }
        let id = ids.next().and_then(|id| i64::try_from(id).ok());
        id.map(LedgerId).ok_or_else(|| LedgerError::Invalid("ledger ids are used up".to_owned()))
    }

    /// Leaves the ids of the block that are not above `floor`, and every block that is not.
    async fn skip_ids(&self, floor: LedgerId) -> Result<(), LedgerError> {
        let Ok(least) = u64::try_from(floor.0.saturating_add(1)) else { return Ok(()) };
        let mut ids = self.ids.lock().await;
        if ids.end > least {
            ids.start = ids.start.max(least);
            return Ok(());
        }
        let block = self.core.config.id_block.max(1);
        let mut first = self.core.allocate(block).await?;
        if first.saturating_add(block) <= least {
            // The sequence was set back (a restored backup): it goes on behind what is known to be in use.
            tracing::error!(first, least, "the sequence of ledger ids is behind ids that are in use; it is moved on");
            self.core.allocate(least - first).await?;
            first = self.core.allocate(block).await?;
        }
        *ids = first.max(least)..first.saturating_add(block);
        Ok(())
    }

    async fn create_ledger(
        &self,
        options: LedgerOptions,
        sink: Arc<dyn AppendSink>,
    ) -> Result<Arc<dyn LedgerWriter>, LedgerError> {
        self.core.attach();
        let record = self.new_record(options)?;
        loop {
            let ledger_id = self.next_id().await?;
            if let Some(version) = self.store_new(ledger_id, &record).await? {
                count(&self.core.counters.created, 1);
                return Ok(Writer::start(self.core.clone(), ledger_id, record, version, sink));
            }
            // The id is taken: the sequence was set back (a restored backup). The next one may be free.
            tracing::error!(ledger = ledger_id.0, "the sequence of ledger ids gave an id that is in use");
        }
    }

    fn new_record(&self, options: LedgerOptions) -> Result<LedgerRecord, LedgerError> {
        let layout = Layout::new(options.ensemble_size, options.write_quorum, options.ack_quorum)?;
        let ensemble = self.core.choose_ensemble(layout)?;
        let created_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        Ok(LedgerRecord::new(layout, options, ensemble, created_ms))
    }

    async fn prepare_ledger(&self, options: LedgerOptions) -> Result<PreparedLedger, LedgerError> {
        self.core.attach();
        let record = self.new_record(options)?;
        let id = self.next_id().await?;
        let (core, operations) = (self.core.clone(), creation(id, &record));
        let start = move |version, sink| -> Arc<dyn LedgerWriter> {
            count(&core.counters.created, 1);
            Writer::start(core, id, record, version, sink)
        };
        Ok(PreparedLedger { id, operations, start: Box::new(start) })
    }

    /// `None` = there is a record under this id that is not ours.
    async fn store_new(&self, ledger_id: LedgerId, record: &LedgerRecord) -> Result<Option<Version>, LedgerError> {
        match self.core.store(ledger_id, None, record, Condition::Absent).await {
            Stored::Done(version) => Ok(Some(version)),
            Stored::Changed => Ok(None),
            Stored::Failed(error) => Err(LedgerError::Metadata(error)),
            Stored::Unknown(error) => match self.core.load(ledger_id).await {
                Ok((stored, version)) if stored == *record => Ok(Some(version)),
                _ => Err(LedgerError::Metadata(error)),
            },
        }
    }

    async fn open_ledger(&self, ledger_id: LedgerId) -> Result<Arc<dyn LedgerReader>, LedgerError> {
        self.core.attach();
        let (record, _) = self.core.load(ledger_id).await?;
        let reader = Reader::new(self.core.clone(), ledger_id, record);
        reader.begin().await?;
        Ok(Arc::new(reader))
    }

    async fn recover_ledger(&self, ledger_id: LedgerId) -> Result<Arc<dyn LedgerReader>, LedgerError> {
        self.core.attach();
        let record = recover(&self.core, ledger_id).await?;
        Ok(Arc::new(Reader::new(self.core.clone(), ledger_id, record)))
    }

    async fn delete_ledger(&self, ledger_id: LedgerId) -> Result<(), LedgerError> {
        self.core.remove(ledger_id).await?;
        count(&self.core.counters.deleted, 1);
        Ok(())
    }
}

impl Ledgers for LedgerClient {
    fn create(
        &self,
        options: LedgerOptions,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'_, Result<Arc<dyn LedgerWriter>, LedgerError>> {
        Box::pin(self.create_ledger(options, sink))
    }

    fn prepare(&self, options: LedgerOptions) -> BoxFuture<'_, Result<Option<PreparedLedger>, LedgerError>> {
        Box::pin(async move { self.prepare_ledger(options).await.map(Some) })
    }

    fn ids_above(&self, floor: LedgerId) -> BoxFuture<'_, Result<(), LedgerError>> {
        Box::pin(self.skip_ids(floor))
    }

    fn open(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>> {
        Box::pin(self.open_ledger(ledger_id))
    }

    fn recover(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>> {
        Box::pin(self.recover_ledger(ledger_id))
    }

    fn delete(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<(), LedgerError>> {
        Box::pin(self.delete_ledger(ledger_id))
    }
}
