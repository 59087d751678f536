//! The words between a topic and its managed ledger.
//!
//! The calls themselves, on the types of the same names:
//!
//! ```text
//! ManagedLedgers::new(ledgers: Arc<dyn Ledgers>, metadata: SharedStore, caches: CacheSettings, region: RegionId) -> Arc<Self>
//!     async list(&self, prefix: &str) -> Result<Vec<String>, LogError>  // names of logs, e.g. of "public/default/"
//!     async open(&self, name: &str, settings: LogSettings, sink: Arc<dyn LogSink>) -> Result<Arc<ManagedLedger>, LogError>
//!         // creates it if absent; recovers the last ledger; `name` is e.g. "public/default/persistent/orders"
//!     async exists(&self, name: &str) -> Result<bool, LogError>
//!     async cursor_names(&self, name: &str) -> Result<Vec<String>, LogError>   // durable ones, without opening
//!     async delete(&self, name: &str) -> Result<(), LogError>       // of a log that is not open here
//!     async read_info(&self, name: &str) -> Result<LogInfo, LogError>   // without opening
//!     async tick(&self, now_ms: u64)      // one call per second for all logs: age rollover, trim, cursor flush, cache ages
//! ManagedLedger
//!     append(&self, requests: Vec<AppendRequest>) -> ()             // answers through the sink, in order (L1)
//!     async read(&self, from: Position, max_entries: u32, max_bytes: u64) -> Result<Vec<LogEntry>, LogError>
//!         // entries at or after `from`, over ledger ends, up to the last confirmed; empty = caught up. Tail cache first.
//!     try_read_cached(&self, from: Position, max_entries: u32, max_bytes: u64) -> Option<Vec<LogEntry>>
//!         // the same without a wait if everything stands in the tail cache; None = go through `read`
//!     async wait_beyond(&self, position: Position) -> Result<Position, LogError>   // until an entry after it is confirmed
//!     last_confirmed(&self) -> Position                              // EARLIEST-like ledger:-1 when the log is empty
//!     first_position(&self) -> Position                              // first entry kept
//!     next_index(&self) -> u64; incarnation(&self) -> Incarnation; owner_epoch
//!     next_valid(&self, position: Position) -> Position              // the first existing position at or after
//!     previous(&self, position: Position) -> Position
//!     entries_between(&self, from_inclusive: Position, to_inclusive: Position) -> u64
//!     async find_by_time(&self, publish_time_ms: u64, time_of: &(dyn Fn(&LogEntry) -> u64 + Sync)) -> Result<Position, LogError>
//!         // binary search: first entry after the last one whose time is < the given
//!     async open_cursor(&self, name: &str, initial: InitialPosition, options: CursorOptions) -> Result<Arc<Cursor>, LogError>
//!     cursor(&self, name) -> Option<Arc<Cursor>>; cursors(&self) -> Vec<Arc<Cursor>>
//!     async delete_cursor(&self, name: &str) -> Result<(), LogError>
//!     async set_properties(&self, BTreeMap<String,String>) / properties(&self)   // topic metadata: epoch, migrated, …
//!     async roll(&self); async trim(&self, now_ms: u64); async truncate(&self)
//!     async terminate(&self) -> Result<Position, LogError>; is_terminated(&self) -> bool
//!     async close(&self) -> Result<(), LogError>                     // flushes cursors, closes the ledger
//!     async delete(&self) -> Result<(), LogError>
//!     info(&self) -> LogInfo; set_settings(&self, LogSettings)
//! Cursor
//!     ack(&self, acks: &[AckPosition]) -> AckOutcome                 // in memory, at once; counts what was new
//!     ack_cumulative(&self, ack: AckPosition) -> AckOutcome
//!     async persisted(&self) -> Result<(), LogError>                 // waits until all acks so far are durable
//!     mark_delete(&self) -> Position; read_start(&self) -> Position  // first position not acked
//!     is_acked(&self, Position) -> bool; unacked_batch_indexes(&self, Position) -> Option<Vec<u64>>  // words, 1 = unacked
//!     next_unacked(&self, from: Position) -> Position
//!     acks_since(&self, generation) -> Option<(u64, CursorAcks)>      // everything acked, if it changed since
//!     backlog_entries(&self) -> u64
//!     async reset(&self, to: Position, batch_set: Option<Vec<u64>>) -> Result<(), LogError>    // seek
//!     async skip(&self, entries: u64); async clear_backlog(&self)
//!     properties / set_properties; info(&self) -> CursorInfo
//! ```

use bytes::Bytes;
use meridian_ledger::LedgerError;
use meridian_metadata::MetadataError;
use meridian_types::{Classify, EntryId, ErrorClass, Incarnation, LedgerId, Position, RegionId};
use std::collections::BTreeMap;

/// One entry to append.
#[derive(Debug, Clone)]
pub struct AppendRequest {
    /// The client's bytes, untouched.
    pub payload: Bytes,
    /// Messages in the entry, at least 1 (markers: 0).
    pub messages: u32,
    /// A marker (envelope flag), never shown to a tenant.
    pub marker: bool,
    /// First stored elsewhere: its region, incarnation and position there. `None` = here.
    pub origin: Option<(RegionId, Incarnation, Position)>,
    /// Given back with the answer.
    pub token: u64,
}

/// An entry that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Of the request.
    pub token: u64,
    /// Where it is.
    pub position: Position,
    /// Index of its last message.
    pub index: u64,
    /// Messages in it.
    pub messages: u32,
}

/// Where a log's answers go. Called from completion tasks, in append order (L1); must not block.
pub trait LogSink: Send + Sync {
    /// These entries are durable and readable.
    fn appended(&self, entries: &[Appended]);

    /// These requests were refused or their outcome is unknown (see the class of `error`); nothing appended after them
    /// was stored before them. The log takes appends again only after a reopening if `error` is of class Fenced.
    fn append_failed(&self, tokens: &[u64], error: &LogError);
}

/// An entry read from a log.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// Where it is.
    pub position: Position,
    /// Index of its last message.
    pub index: u64,
    /// Messages in it.
    pub messages: u32,
    /// A marker.
    pub marker: bool,
    /// When the broker took it, ms since 1970.
    pub broker_time_ms: u64,
    /// Where it was first stored.
    pub origin: (RegionId, Incarnation, Position),
    /// The client's bytes.
    pub payload: Bytes,
}

/// Acknowledges one entry or some of its batch indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckPosition {
    /// The entry.
    pub position: Position,
    /// `None` = the whole entry; else words as on the wire, 1 = still unacked. AND-ed into what is known.
    pub unacked_batch_indexes: Option<Vec<u64>>,
    /// Messages in the entry if known (0 = not known), to count and to tell when a batch is complete.
    pub messages: u32,
}

/// What a call of acknowledgements changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckOutcome {
    /// Entries that became acked.
    pub entries: u64,
    /// Messages that became acked, as far as their number was known (an entry of unknown size counts one; a cumulative
    /// ack counts entries).
    pub messages: u64,
    /// Positions beyond the last confirmed one: refused.
    pub beyond: u32,
    /// Mark-delete afterwards.
    pub mark_delete: Position,
    /// Whether mark-delete moved.
    pub moved: bool,
}

/// Bounds of the caches of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSettings {
    /// Tail caches of all logs together.
    pub tail_bytes: u64,
    /// Entries older than that leave the tail cache.
    pub tail_max_age_ms: u64,
    /// Catch-up caches of all logs together.
    pub catch_up_bytes: u64,
    /// Blocks older than that leave the catch-up cache.
    pub catch_up_max_age_ms: u64,
    /// Entries per storage read of a lagging reader at most.
    pub read_ahead_entries: u32,
    /// Bytes per storage read of a lagging reader.
    pub read_ahead_bytes: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            tail_bytes: 64 << 20,
            tail_max_age_ms: 10_000,
            catch_up_bytes: 32 << 20,
            catch_up_max_age_ms: 10_000,
            read_ahead_entries: 2000,
            read_ahead_bytes: 2 << 20,
        }
    }
}

/// What the caches hold and how they did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Bytes in tail caches.
    pub tail_bytes: u64,
    /// Bytes in catch-up caches.
    pub catch_up_bytes: u64,
    /// Entries served from a tail cache.
    pub tail_hits: u64,
    /// Entries served from a catch-up block.
    pub catch_up_hits: u64,
    /// Reads that went to storage.
    pub storage_reads: u64,
    /// Entries that storage gave.
    pub storage_entries: u64,
}

/// Where a new cursor starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialPosition {
    /// Before everything kept.
    Earliest,
    /// After everything there is.
    Latest,
    /// The given entry is the first one unread (it may not exist: next valid).
    At(Position),
}

/// What a new cursor is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CursorOptions {
    /// Kept over restarts; a cursor that is not lives in memory and does not hold back trimming.
    pub durable: bool,
    /// Internal (dedup, replication, compaction): outside everything a tenant sees.
    pub internal: bool,
    /// Kept with it.
    pub properties: BTreeMap<String, String>,
}

/// How one log rolls, keeps and persists. Pulsar's settings of the same names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// E of new ledgers.
    pub ensemble_size: u32,
    /// Qw of new ledgers.
    pub write_quorum: u32,
    /// Qa of new ledgers.
    pub ack_quorum: u32,
    /// Roll after that many entries.
    pub max_entries_per_ledger: u64,
    /// Roll after that many bytes.
    pub max_bytes_per_ledger: u64,
    /// Not younger than this when rolled by entries.
    pub min_rollover_ms: u64,
    /// Roll when older, also without traffic.
    pub max_rollover_ms: u64,
    /// Keep acked data that long: 0 = not at all, `None` = for ever.
    pub retention_ms: Option<u64>,
    /// Keep acked data up to that size: 0 = not at all, `None` = without bound.
    pub retention_bytes: Option<u64>,
    /// Persist mark-delete moves nobody waits for at most every so many ms.
    pub cursor_flush_interval_ms: u64,
    /// Bytes appended and not yet confirmed at most; over it appends fail with [`LogError::Busy`].
    pub max_unconfirmed_bytes: u64,
    /// Go on without ledgers and entries that every replica lost instead of failing (Pulsar:
    /// `autoSkipNonRecoverableData`).
    pub skip_unreadable: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            ensemble_size: 1,
            write_quorum: 1,
            ack_quorum: 1,
            max_entries_per_ledger: 50_000,
            max_bytes_per_ledger: 2 << 30,
            min_rollover_ms: 10 * 60_000,
            max_rollover_ms: 240 * 60_000,
            retention_ms: Some(0),
            retention_bytes: Some(0),
            cursor_flush_interval_ms: 1000,
            max_unconfirmed_bytes: 256 << 20,
            skip_unreadable: false,
        }
    }
}

/// One ledger of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerInfo {
    /// Its id.
    pub ledger_id: LedgerId,
    /// Entries confirmed.
    pub entries: u64,
    /// Bytes confirmed.
    pub bytes: u64,
    /// A recovery estimated them from samples: its writer ended without closing the ledger.
    pub bytes_estimated: bool,
    /// Index of its first message.
    pub first_index: u64,
    /// Last entry, [`EntryId::NONE`] if empty.
    pub last_entry: EntryId,
    /// When it was created, ms since 1970.
    pub created_ms: u64,
    /// When it was closed; `None` = open.
    pub closed_ms: Option<u64>,
}

/// A cursor as statistics show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorInfo {
    /// Its name.
    pub name: String,
    /// Kept over restarts.
    pub durable: bool,
    /// Not a tenant's.
    pub internal: bool,
    /// Everything up to here is acked.
    pub mark_delete: Position,
    /// Persisted mark-delete.
    pub persisted_mark_delete: Position,
    /// Acked ranges above it, as (first, last).
    pub acked_ranges: Vec<(Position, Position)>,
    /// How many ranges there are in all (`acked_ranges` is cut at 1000).
    pub acked_range_count: u64,
    /// Entries not acked.
    pub backlog_entries: u64,
    /// Ledger that holds its state, if one was needed.
    pub cursor_ledger: Option<LedgerId>,
    /// Changes not yet persisted.
    pub dirty: bool,
    /// When a mark-delete or ack last moved it, ms since 1970.
    pub last_active_ms: u64,
    /// When everything up to a later position was acked for the last time since it was opened, ms since 1970; 0 = not yet.
    pub last_advanced_ms: u64,
    /// Its properties.
    pub properties: BTreeMap<String, String>,
}

/// A log as statistics show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInfo {
    /// Its ledgers, oldest first.
    pub ledgers: Vec<LedgerInfo>,
    /// Last confirmed position.
    pub last_confirmed: Position,
    /// Entries kept.
    pub entries: u64,
    /// Bytes kept.
    pub bytes: u64,
    /// Messages ever appended.
    pub next_index: u64,
    /// Requests waiting for a ledger or a confirmation.
    pub pending_appends: u64,
    /// Why appends wait, if they do (`creating ledger since …`).
    pub waiting: Option<String>,
    /// Terminated at.
    pub terminated: Option<Position>,
    /// Its properties.
    pub properties: BTreeMap<String, String>,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// Why a log refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// There is no such log.
    #[error("managed ledger {0} does not exist")]
    NoSuchLog(String),
    /// There is no such cursor.
    #[error("cursor {0} does not exist")]
    NoSuchCursor(String),
    /// Another owner has opened the log (L2).
    #[error("managed ledger {0} is owned by a later epoch")]
    Fenced(String),
    /// The log is closed here.
    #[error("managed ledger {0} is closed")]
    Closed(String),
    /// The log was terminated.
    #[error("the topic was terminated at {0}")]
    Terminated(Position),
    /// Too much is waiting; nothing was appended.
    #[error("{bytes} bytes wait for storage, the limit is {max_bytes}")]
    Busy {
        /// Waiting.
        bytes: u64,
        /// Limit.
        max_bytes: u64,
    },
    /// A position is outside the log.
    #[error("position {0} is not in the log")]
    BadPosition(Position),
    /// A stored entry or record can't be read.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// Ledgers failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl Classify for LogError {
    fn class(&self) -> ErrorClass {
        match self {
            LogError::NoSuchLog(_) | LogError::NoSuchCursor(_) | LogError::BadPosition(_) | LogError::Terminated(_) => {
                ErrorClass::Caller
            }
            LogError::Fenced(_) | LogError::Closed(_) => ErrorClass::Fenced,
            LogError::Busy { .. } => ErrorClass::Retry,
            LogError::Corrupt(_) => ErrorClass::Corrupt,
            LogError::Ledger(e) => e.class(),
            LogError::Metadata(e) => e.class(),
        }
    }
}
