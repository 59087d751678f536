//! What the floor above sees of ledgers.

use bytes::Bytes;
use meridian_bookie_api::{BookieError, BoxFuture, EntryBytes};
use meridian_metadata::{MetadataError, Operation, Version};
use meridian_types::{Classify, EntryId, ErrorClass, LedgerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a ledger is laid out. E ≥ Qw ≥ Qa ≥ 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerOptions {
    /// E: bookies in the ensemble.
    pub ensemble_size: u32,
    /// Qw: copies of each entry.
    pub write_quorum: u32,
    /// Qa: copies that must be durable before an entry counts.
    pub ack_quorum: u32,
    /// Kept with the ledger's metadata (owner's name, kind), so that an audit can tell what a ledger is for.
    pub properties: BTreeMap<String, String>,
}

/// News for the one who appends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendEvent {
    /// Every entry up to and with this one is confirmed (S1): in order, never back.
    Confirmed {
        /// The ledger.
        ledger_id: LedgerId,
        /// Last confirmed entry.
        up_to: EntryId,
    },
    /// The writer has ended: nothing after the last `Confirmed` will be confirmed by it. Entries after that are
    /// *unknown*: a recovery may still find and keep them. Said once.
    Ended {
        /// The ledger.
        ledger_id: LedgerId,
        /// Why.
        error: LedgerError,
    },
}

/// Where a writer's news go. Called from completion tasks: must not block.
pub trait AppendSink: Send + Sync {
    /// One piece of news.
    fn append_event(&self, event: AppendEvent);
}

/// An entry read.
#[derive(Debug, Clone)]
pub struct LedgerEntry {
    /// Its id.
    pub entry_id: EntryId,
    /// Head and body in one run.
    pub payload: Bytes,
}

/// Why a ledger call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// There is no such ledger (in metadata).
    #[error("ledger {0} does not exist")]
    NoSuchLedger(LedgerId),
    /// The entry is beyond the last confirmed one.
    #[error("entry {entry_id} of ledger {ledger_id} does not exist (last confirmed {last_confirmed})")]
    NoSuchEntry {
        /// The ledger.
        ledger_id: LedgerId,
        /// The entry.
        entry_id: EntryId,
        /// Last confirmed as known here.
        last_confirmed: EntryId,
    },
    /// Another owner has recovered or fenced the ledger (S3, S5).
    #[error("ledger {0} was fenced by another owner")]
    Fenced(LedgerId),
    /// The ledger is closed.
    #[error("ledger {0} is closed")]
    Closed(LedgerId),
    /// Too few bookies can be written to.
    #[error("{needed} writable bookies are needed, {available} are there")]
    NotEnoughBookies {
        /// E.
        needed: u32,
        /// Writable ones.
        available: u32,
    },
    /// The writable bookies do not stand in as many zones or regions as is demanded.
    #[error("{0}")]
    NotPlaced(String),
    /// Too few bookies answered; nothing is known. Repeat.
    #[error("ledger {ledger_id}: bookies did not answer: {reason}")]
    QuorumUnavailable {
        /// The ledger.
        ledger_id: LedgerId,
        /// Which and how.
        reason: String,
    },
    /// Every replica of an entry is damaged or missing.
    #[error("entry {entry_id} of ledger {ledger_id} is lost or damaged on every replica: {reason}")]
    Corrupt {
        /// The ledger.
        ledger_id: LedgerId,
        /// The entry.
        entry_id: EntryId,
        /// What each replica said.
        reason: String,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A bookie failed in a way that has no better name.
    #[error(transparent)]
    Bookie(#[from] BookieError),
    /// The options are not E ≥ Qw ≥ Qa ≥ 1, or an entry is over the limit.
    #[error("{0}")]
    Invalid(String),
}

impl Classify for LedgerError {
    fn class(&self) -> ErrorClass {
        match self {
            LedgerError::NoSuchLedger(_) | LedgerError::NoSuchEntry { .. } | LedgerError::Invalid(_) => {
                ErrorClass::Caller
            }
            LedgerError::Fenced(_) | LedgerError::Closed(_) => ErrorClass::Fenced,
            LedgerError::NotEnoughBookies { .. }
            | LedgerError::NotPlaced(_)
            | LedgerError::QuorumUnavailable { .. } => ErrorClass::Retry,
            LedgerError::Corrupt { .. } => ErrorClass::Corrupt,
            LedgerError::Metadata(e) => e.class(),
            LedgerError::Bookie(e) => e.class(),
        }
    }
}

/// Starts the writer of a prepared ledger, with the version that its creation was committed with.
pub type StartWriter = Box<dyn FnOnce(Version, Arc<dyn AppendSink>) -> Arc<dyn LedgerWriter> + Send>;

/// A ledger that is there once its operations are committed, in whatever transaction. Nothing is left of one that was
/// dropped instead, but an id that is never given again.
pub struct PreparedLedger {
    /// Its id, never used before.
    pub id: LedgerId,
    /// What creates it. A conflict on a key of these says that the id is taken (a sequence that was set back).
    pub operations: Vec<Operation>,
    /// Only after they were committed.
    pub start: StartWriter,
}

/// Creates, opens, recovers and deletes ledgers.
pub trait Ledgers: Send + Sync {
    /// Creates a ledger with an id never used before and answers its writer.
    fn create(
        &self,
        options: LedgerOptions,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'_, Result<Arc<dyn LedgerWriter>, LedgerError>>;

    /// A ledger whose creation is written by the caller, together with what names it; `None` = this store can only create.
    fn prepare(&self, options: LedgerOptions) -> BoxFuture<'_, Result<Option<PreparedLedger>, LedgerError>> {
        let _ = options;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The next ledger created here gets an id above `floor`. Ids of one sequence are handed out in blocks, so a process
    /// that holds an older block must leave it before it goes on with a log that another process wrote to: positions of
    /// a log order by ledger id. A store that never gives an id below one given before may do nothing.
    fn ids_above(&self, floor: LedgerId) -> BoxFuture<'_, Result<(), LedgerError>> {
        let _ = floor;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Opens for reading, without fencing. An open ledger is readable up to its last-add-confirmed.
    fn open(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>>;

    /// Fences, recovers and closes the ledger if it is open (S4), then opens it for reading. Idempotent.
    fn recover(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<Arc<dyn LedgerReader>, LedgerError>>;

    /// Deletes the ledger's metadata; bookies drop their entries by garbage collection. An absent ledger is no error.
    fn delete(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<(), LedgerError>>;
}

/// Appends to one ledger. There is one writer per ledger, ever.
pub trait LedgerWriter: LedgerReader {
    /// Appends entries and answers the id of the first; the rest follow it. Never blocks; bounds are the caller's (it
    /// counts what is not yet confirmed). After [`AppendEvent::Ended`] appended entries are dropped.
    ///
    /// # Errors
    /// [`LedgerError::Closed`] or the error that ended the writer.
    fn append(&self, entries: Vec<EntryBytes>) -> Result<EntryId, LedgerError>;

    /// The id that the next appended entry will get.
    fn next_entry_id(&self) -> EntryId;

    /// Waits for what was appended, closes the ledger and answers its last entry ([`EntryId::NONE`] if empty).
    fn close(&self) -> BoxFuture<'_, Result<EntryId, LedgerError>>;
}

/// Reads one ledger.
pub trait LedgerReader: Send + Sync {
    /// The ledger's id.
    fn id(&self) -> LedgerId;

    /// Last confirmed entry as known here; final once closed.
    fn last_confirmed(&self) -> EntryId;

    /// Bytes of all confirmed entries as known here.
    fn length_bytes(&self) -> u64;

    /// Whether [`LedgerReader::length_bytes`] was counted; after the recovery of a long ledger it is an estimate.
    fn length_is_exact(&self) -> bool {
        true
    }

    /// Entries from `first` on, at least one, at most `max_entries` and `max_bytes` (the first whatever its size), none
    /// beyond the last confirmed.
    fn read(
        &self,
        first: EntryId,
        max_entries: u32,
        max_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<LedgerEntry>, LedgerError>>;
}
