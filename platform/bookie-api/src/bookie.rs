//! What a ledger client sees of one bookie.
//!
//! Adds go down in batches and come back in batches through an [`AddSink`]; everything else is a future, because it
//! happens per batch of entries or seldom.

use crate::entry::EntryBytes;
use bytes::Bytes;
use meridian_types::{BookieId, Classify, EntryId, ErrorClass, LedgerId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future, for calls that happen per batch or seldom.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One entry to be stored.
#[derive(Debug, Clone)]
pub struct AddEntry {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The entry.
    pub entry_id: EntryId,
    /// The writer's last-add-confirmed when the add was sent (S1).
    pub last_add_confirmed: EntryId,
    /// [`EntryBytes::digest`], computed once by the writer, stored, and checked at every read (S9).
    pub digest: u32,
    /// A rewrite by recovery or re-replication: accepted on a fenced ledger.
    pub recovery: bool,
    /// The bytes.
    pub entry: EntryBytes,
}

/// The answer to one add.
#[derive(Debug, Clone)]
pub struct AddResult {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// The entry.
    pub entry_id: EntryId,
    /// `Ok` = durable (B1).
    pub result: Result<(), BookieError>,
}

/// Where the answers of adds go. Called from the bookie's completion thread or task: must not block.
pub trait AddSink: Send + Sync {
    /// Answers of one sync group (or one socket read) from one bookie, in the order of the adds (B2).
    fn add_results(&self, bookie: &BookieId, results: Vec<AddResult>);
}

/// A read of consecutive entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The ledger.
    pub ledger_id: LedgerId,
    /// First entry wanted.
    pub first_entry_id: EntryId,
    /// Entries at most, at least 1.
    pub max_entries: u32,
    /// Bytes at most; the first entry is given whatever its size.
    pub max_bytes: u64,
    /// Entry step: this bookie holds every entry of its stripe only, so a striped reader asks with step = 1 and takes
    /// what is there. With `gaps_allowed` entries that the bookie does not hold are left out, without it the read ends
    /// at the first one missing.
    pub gaps_allowed: bool,
    /// Also fence the ledger (recovery reads, S4c).
    pub fence: bool,
}

/// One entry read.
#[derive(Debug, Clone)]
pub struct ReadEntry {
    /// The entry.
    pub entry_id: EntryId,
    /// Last-add-confirmed stored with it.
    pub last_add_confirmed: EntryId,
    /// Digest as stored; the bookie has checked it against the bytes (S9).
    pub digest: u32,
    /// Head and body in one run.
    pub payload: Bytes,
}

/// A bookie's answer to a fence or last-add-confirmed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FenceState {
    /// Highest last-add-confirmed known here (from adds or explicit), [`EntryId::NONE`] if none.
    pub last_add_confirmed: EntryId,
    /// Highest entry stored here, [`EntryId::NONE`] if none.
    pub last_entry: EntryId,
}

/// Why a bookie refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookieError {
    /// The bookie does not hold this ledger at all (it looked).
    #[error("no such ledger on this bookie")]
    NoSuchLedger,
    /// The bookie holds the ledger but not this entry (it looked).
    #[error("no such entry on this bookie")]
    NoSuchEntry,
    /// The ledger is fenced: this writer has lost it (S3).
    #[error("the ledger is fenced")]
    Fenced,
    /// Disk use is above the limit; writes go elsewhere (S10).
    #[error("the bookie is read-only: {0}")]
    ReadOnly(String),
    /// A queue is full; wait and repeat.
    #[error("the bookie is busy: {0}")]
    Busy(String),
    /// The entry is larger than the bookie takes.
    #[error("entry of {bytes} bytes is over the limit of {max_bytes}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// Stored bytes do not match their checksum; read another replica.
    #[error("stored entry is damaged: {0}")]
    Corrupt(String),
    /// Disk or socket failed; the outcome of an add is unknown.
    #[error("bookie I/O failed: {0}")]
    Io(String),
    /// No answer in time; the outcome of an add is unknown.
    #[error("no answer from the bookie within {0} ms")]
    Timeout(u64),
    /// The bookie is shutting down or the connection is closed.
    #[error("the bookie is not reachable: {0}")]
    Unavailable(String),
}

impl Classify for BookieError {
    fn class(&self) -> ErrorClass {
        match self {
            BookieError::NoSuchLedger | BookieError::NoSuchEntry | BookieError::TooLarge { .. } => ErrorClass::Caller,
            BookieError::Fenced => ErrorClass::Fenced,
            BookieError::Corrupt(_) => ErrorClass::Corrupt,
            BookieError::ReadOnly(_) => ErrorClass::Redirect,
            BookieError::Busy(_) | BookieError::Io(_) | BookieError::Timeout(_) | BookieError::Unavailable(_) => {
                ErrorClass::Retry
            }
        }
    }
}

/// One storage node, local or remote.
pub trait Bookie: Send + Sync {
    /// Its id.
    fn id(&self) -> &BookieId;

    /// Stores entries; each is answered once through `sink`. Never blocks: a full queue answers
    /// [`BookieError::Busy`] through the sink.
    fn add(&self, entries: Vec<AddEntry>, sink: Arc<dyn AddSink>);

    /// Reads consecutive entries from `first_entry_id`: at least one, up to the limits, or an error for the first.
    fn read(&self, request: ReadRequest) -> BoxFuture<'_, Result<Vec<ReadEntry>, BookieError>>;

    /// Fences the ledger durably (S3), also one that this bookie has never seen, and tells what it knows of it.
    fn fence(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>>;

    /// What the bookie knows of the ledger, without fencing.
    fn last_add_confirmed(&self, ledger_id: LedgerId) -> BoxFuture<'_, Result<FenceState, BookieError>>;

    /// Notes an explicit last-add-confirmed (S1: sent by an idle writer). Need not be durable.
    fn write_lac(&self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> BoxFuture<'_, Result<(), BookieError>>;
}
