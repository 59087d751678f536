//! The journal: what is synced here is durable.
//!
//! Role: one thread per folder takes everything that is queued, writes it in one run and syncs once (group commit: the
//! sync is batched, the answer never waits for company), then hands the group to [`completion`].
//! Invariants: J3 an add is answered `Ok` only after the sync of its group returned (S2); J4 groups of one journal are
//! answered in queue order; J5 after a failed write or sync nothing is answered `Ok` any more (what the disk holds is
//! unknown); J6 the queue is bounded in bytes by `queue_bytes`, refusals beside it by [`REFUSALS_MAX`].
//! Failure: a file that cannot be made fails its group and is tried again with the next one; a failed write or sync
//! fails the journal until a restart.
//! Must never know: ledgers' state, entry logs, sockets.

pub(crate) mod buffer;
pub(crate) mod completion;
pub(crate) mod files;
pub(crate) mod record;
pub(crate) mod scan;
mod writer;

use crate::error::StorageError;
use crate::metrics::Metrics;
use completion::Completion;
use files::JournalFiles;
use meridian_bookie_api::{AddEntry, AddSink, BookieError};
use meridian_types::{EntryId, LedgerId};
use parking_lot::{Condvar, Mutex};
use record::RecordKind;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Refused batches that may wait for their turn in the queue; beyond, they are answered at once.
pub const REFUSALS_MAX: usize = 65_536;
/// Explicit last-add-confirmed values that may wait for the next group; beyond, they are only kept in memory.
pub const LAZY_LAC_MAX: usize = 65_536;

/// A place in a journal: everything in front of it is in the caches or on the entry logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct JournalMark {
    /// The file.
    pub sequence: u64,
    /// Offset in it.
    pub offset_bytes: u64,
}

/// Adds given in one call.
pub(crate) struct Batch {
    pub entries: Vec<AddEntry>,
    /// Index and reason of those not to be written, by index; answered in their turn (B2).
    pub refused: Vec<(usize, BookieError)>,
    pub sink: Arc<dyn AddSink>,
}

/// A record without an entry.
pub(crate) struct Control {
    pub kind: RecordKind,
    pub ledger_id: LedgerId,
    pub last_add_confirmed: EntryId,
    pub done: Option<oneshot::Sender<Result<(), BookieError>>>,
}

pub(crate) enum Item {
    Adds(Batch),
    Control(Control),
}

impl Item {
    fn bytes(&self) -> u64 {
        match self {
            Item::Control(_) => record::RECORD_HEADER_BYTES as u64,
            Item::Adds(batch) => {
                batch.entries.iter().map(|add| (add.entry.len() + record::RECORD_HEADER_BYTES) as u64).sum()
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<(Item, u64)>,
    bytes: u64,
    lazy_lac: HashMap<LedgerId, EntryId>,
    closed: bool,
    failed: Option<String>,
}

/// Asked before each group: holds the journal while the write cache has no room.
pub(crate) trait Gate: Send + Sync {
    /// Returns when there is room, or when a bounded time has passed; tells whether it had to wait.
    fn wait_for_room(&self) -> bool;
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    mark: Mutex<JournalMark>,
    files: Arc<JournalFiles>,
    queue_bytes_max: u64,
    metrics: Metrics,
}

/// One journal.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread needs.
pub(crate) struct JournalParts {
    pub name: String,
    pub files: Arc<JournalFiles>,
    pub completion: Arc<Completion>,
    pub gate: Arc<dyn Gate>,
    pub metrics: Metrics,
    pub queue_bytes: u64,
    pub buffer_bytes: usize,
    pub group_bytes: u64,
    pub nice: Option<i32>,
}

impl Journal {
    /// Takes the first file, if there is room for one, and starts the thread.
    pub fn start(parts: JournalParts) -> Result<Self, StorageError> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            mark: Mutex::new(JournalMark::default()),
            files: Arc::clone(&parts.files),
            queue_bytes_max: parts.queue_bytes,
            metrics: parts.metrics.clone(),
        });
        let name = parts.name.clone();
        let writer = writer::Writer::new(Arc::clone(&shared), parts)?;
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || writer.run())
            .map_err(|source| StorageError::Io { what: "start the journal thread".to_owned(), source })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether `bytes` more may be queued.
    pub fn has_room(&self) -> Result<(), BookieError> {
        let queue = self.shared.queue.lock();
        if let Some(reason) = &queue.failed {
            return Err(BookieError::ReadOnly(format!("the journal has failed: {reason}")));
        }
        if queue.closed {
            return Err(BookieError::Unavailable("the bookie is closing".to_owned()));
        }
        if queue.bytes >= self.shared.queue_bytes_max {
            return Err(BookieError::Busy(format!("{} bytes wait for the journal", queue.bytes)));
        }
        Ok(())
    }

    /// Queues an item; gives it back if the journal is closed or overfull, to be answered at once.
    pub fn push(&self, item: Item) -> Result<(), Item> {
        let bytes = item.bytes();
        {
            let mut queue = self.shared.queue.lock();
            if queue.closed || (queue.bytes >= self.shared.queue_bytes_max && queue.items.len() >= REFUSALS_MAX) {
                return Err(item);
            }
            queue.bytes += bytes;
            queue.items.push_back((item, bytes));
            self.shared.metrics.journal_queue_bytes.add(bytes as i64);
            self.shared.metrics.journal_queue_batches.inc();
        }
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Lets an explicit last-add-confirmed travel with the next group; it does not cause one.
    pub fn push_lazy_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) {
        let mut queue = self.shared.queue.lock();
        if queue.lazy_lac.len() < LAZY_LAC_MAX || queue.lazy_lac.contains_key(&ledger_id) {
            let known = queue.lazy_lac.entry(ledger_id).or_insert(last_add_confirmed);
            *known = (*known).max(last_add_confirmed);
        }
    }

    /// Everything in front of this place was in the write cache before the call.
    pub fn mark(&self) -> JournalMark {
        *self.shared.mark.lock()
    }

    /// Recycles the files in front of a checkpoint.
    pub fn trim(&self, mark: JournalMark) -> Result<usize, StorageError> {
        self.shared.files.release_before(mark.sequence)
    }

    /// Stops background fills while the disk is nearly full.
    pub fn hold_fill(&self, hold: bool) {
        self.shared.files.hold_fill(hold);
    }

    /// The reason if the journal has failed.
    pub fn failure(&self) -> Option<String> {
        self.shared.queue.lock().failed.clone()
    }

    /// Writes what is queued and ends the thread.
    pub fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}
