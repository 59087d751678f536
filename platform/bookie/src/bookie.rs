//! One storage node: opening, closing, and the [`Bookie`] contract over [`Core`].
//!
//! Failure: opening says in one error what to do; after [`LocalBookie::close`] every call answers unavailable.

use crate::cache::WriteCache;
use crate::compaction::LastRuns;
use crate::config::BookieConfig;
use crate::cookie::{self, Cookie};
use crate::core::Core;
use crate::disk::DiskState;
use crate::entrylog::EntryLogs;
use crate::entrylog::writer::LogWriter;
use crate::error::{OpenError, StorageError};
use crate::flush::{self, FlushSignal};
use crate::index::Index;
use crate::journal::completion::Completion;
use crate::journal::files::{FileSettings, JournalFiles};
use crate::journal::{Gate, Journal, JournalParts};
use crate::ledgers::Ledgers;
use crate::metrics::Metrics;
use crate::pool::ReadPool;
use crate::read::{ReadCache, Reading, Step};
use crate::replay::ReplayReport;
use meridian_bookie_api::{AddEntry, AddSink, Bookie, BookieError, BoxFuture, FenceState, ReadEntry, ReadRequest};
use meridian_types::{BookieId, EntryId, LedgerId, Repeats};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// One storage node on this machine's disks.
pub struct LocalBookie {
    core: Arc<Core>,
    cookie: Cookie,
    replay: ReplayReport,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for LocalBookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalBookie({})", self.core.id)
    }
}

impl LocalBookie {
    /// Opens the folders, replays the journals and starts the threads. Blocks; needs no runtime.
    ///
    /// # Errors
    /// [`OpenError`] if a setting makes no sense, the folders are not this node's, or a disk refuses.
    pub fn open(config: BookieConfig) -> Result<Arc<Self>, OpenError> {
        config.validate()?;
        let cookie = cookie::check(&config)?;
        let metrics = Metrics::register(&config.registry, &config.id)
            .map_err(|error| OpenError::Setting { setting: "registry", expected: error.to_string() })?;
        let index = Arc::new(Index::open(&config.index_path())?);
        let logs = EntryLogs::open(&config.ledger_dirs, config.entry_log_bytes)?;
        let core = Arc::new(new_core(config, metrics, index, logs)?);
        let mut replay = ReplayReport::default();
        let mut found = Vec::new();
        for (at, dir) in core.config.journal_dirs.iter().enumerate() {
            let (files, used) = JournalFiles::open(file_settings(&core.config, dir))?;
            let mark = core.index.mark(at as u32)?;
            files.raise_sequence(mark.sequence);
            core.replay(&used, mark, &mut replay)?;
            found.push(files);
        }
        // The first disk check comes before the first journal file, so that a full node starts read-only.
        core.check_disk();
        let mut journals = Vec::new();
        for (at, files) in found.into_iter().enumerate() {
            journals.push(Journal::start(journal_parts(&core, at, files))?);
        }
        let _ = core.journals.set(journals);
        core.check_disk();
        let flushing = Arc::clone(&core);
        let flusher = std::thread::Builder::new()
            .name("bookie-flush".to_owned())
            .spawn(move || flush::run(&flushing))
            .map_err(|source| StorageError::Io { what: "start the flush thread".to_owned(), source })?;
        if replay != ReplayReport::default() {
            tracing::info!(bookie = %core.id, ?replay, "journal replayed");
        }
        Ok(Arc::new(Self { core, cookie, replay, flusher: Mutex::new(Some(flusher)) }))
    }

    /// The identity of its folders, to be registered with the cluster and given back at the next start as
    /// [`BookieConfig::registered_cookie`].
    pub fn cookie(&self) -> String {
        self.cookie.encode("")
    }

    /// What the start found in the journals.
    pub fn replay_report(&self) -> ReplayReport {
        self.replay
    }

    /// What adds are taken now.
    pub fn disk_state(&self) -> DiskState {
        *self.core.disk.read()
    }

    /// Why ordinary adds are refused until something changes: a disk that is nearly full or fails. `None` = they are taken.
    pub fn refuses_adds(&self) -> Option<String> {
        self.core.refuses_adds()
    }

    /// Measures disk use now instead of at the next interval.
    pub fn check_disk(&self) {
        self.core.check_disk();
    }

    /// Makes a checkpoint now. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; what was to be stored stays in the caches and in the journal.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        self.core.checkpoint()
    }

    /// Every ledger held here, in order.
    ///
    /// # Errors
    /// [`StorageError`] if the index cannot be read.
    pub fn ledgers(&self) -> Result<Vec<LedgerId>, StorageError> {
        self.core.ledgers.list()
    }

    /// Takes no more adds, answers those taken, makes a checkpoint, ends the threads. Blocks.
    ///
    /// # Errors
    /// [`StorageError`] if the checkpoint failed: the journal still has everything.
    pub fn close(&self) -> Result<(), StorageError> {
        if self.core.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.core.flush.close();
        if let Some(thread) = self.flusher.lock().take() {
            let _ = thread.join();
        }
        self.core.cache.close();
        self.core.pool.close();
        for journal in self.core.journals.get().map_or(&[][..], Vec::as_slice) {
            journal.close();
        }
        self.core.completion.close();
        // The first may finish a flush that was under way; the second stores what came after it.
        self.core.checkpoint()?;
        self.core.checkpoint()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for LocalBookie {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(bookie = %self.core.id, %error, "no last checkpoint; the journal will be replayed");
        }
    }
}

fn new_core(
    config: BookieConfig,
    metrics: Metrics,
    index: Arc<Index>,
    logs: Arc<EntryLogs>,
) -> Result<Core, StorageError> {
    let hard_bytes = config.write_cache_bytes * 2 + config.journal.queue_bytes;
    let cache = WriteCache::new(config.write_cache_bytes, hard_bytes, metrics.write_cache_bytes.clone());
    let completion = Completion::start(config.id.clone())
        .map_err(|source| StorageError::Io { what: "start the completion thread".to_owned(), source })?;
    Ok(Core {
        id: config.id.clone(),
        metrics,
        ledgers: Ledgers::new(Arc::clone(&index)),
        cache: Arc::new(cache),
        read_cache: Mutex::new(ReadCache::new(config.read_cache_bytes)),
        log_writer: Mutex::new(LogWriter::new(Arc::clone(&logs))),
        index,
        logs,
        journals: OnceLock::new(),
        completion,
        pool: ReadPool::new(config.read_threads),
        flush: FlushSignal::default(),
        disk: RwLock::new(DiskState::Writable),
        flush_failure: Mutex::new(None),
        flush_trouble: Mutex::new(Repeats::by_minute()),
        last_compaction: Mutex::new(LastRuns::new()),
        damaged_logs: Mutex::default(),
        closed: AtomicBool::new(false),
        config,
    })
}

fn file_settings(config: &BookieConfig, dir: &std::path::Path) -> FileSettings {
    FileSettings {
        dir: dir.to_owned(),
        file_bytes: config.journal.file_bytes,
        first_file_bytes: config.journal.first_file_bytes,
        pool_files: config.journal.pool_files,
        direct: config.journal.direct,
    }
}

fn journal_parts(core: &Arc<Core>, at: usize, files: Arc<JournalFiles>) -> JournalParts {
    JournalParts {
        name: format!("journal-{at}"),
        files,
        completion: Arc::clone(&core.completion),
        gate: Arc::clone(&core.cache) as Arc<dyn Gate>,
        metrics: core.metrics.clone(),
        queue_bytes: core.config.journal.queue_bytes,
        buffer_bytes: core.config.journal.buffer_bytes,
        group_bytes: core.config.journal.group_bytes,
        nice: core.config.journal.nice,
    }
}

impl Bookie for LocalBookie {
    fn id(&self) -> &BookieId {
        &self.core.id
    }

    fn add(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>) {
        self.core.add(entries, sink);
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'_, Result<Vec<ReadEntry>, BookieError>> {
        Box::pin(async move {
            if self.core.closed.load(Ordering::Relaxed) {
                return Err(BookieError::Unavailable("the bookie is closing".to_owned()));
            }
            if request.fence {
                self.core.fence(request.ledger_id).await?;
            }
            let mut reading = Reading::begin(&self.core, request)?;
            if reading.in_memory(&self.core) == Step::Done {
                return reading.answer(&self.core);
            }
            let (done, waiting) = tokio::sync::oneshot::channel();
            let core = Arc::clone(&self.core);
            self.core.pool.run(move || {
                if !done.is_closed() {
                    let _ = done.send(reading.finish_on_disk(&core));
                }
            })?;
            waiting.await.map_err(|_| BookieError::Unavailable("the bookie has closed".to_owned()))?
        })
    }

    fn fence(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(self.core.fence(ledger_id))
    }

    fn last_add_confirmed(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>> {
        Box::pin(async move { self.core.told(ledger_id) })
    }

    fn write_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> BoxFuture<'_, Result<(), BookieError>> {
        Box::pin(async move { self.core.write_lac(ledger_id, last_add_confirmed) })
    }
}
