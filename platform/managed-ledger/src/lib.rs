//! An endless log of ledgers with durable cursors, rollover, trimming, tail and catch-up caches.
//!
//! Role: [`ManagedLedgers`] opens logs; a [`ManagedLedger`] appends, reads and trims; a [`Cursor`] holds what one
//! subscription has acknowledged.
//! Invariants: L1 confirmations reach the sink in append order; L2 the ledger list changes only by CAS with the owner's
//! epoch; L3 nothing above a durable cursor's mark-delete or inside retention is trimmed; L4 no acked range is ever
//! dropped, whatever its size; L5 indexes run on without a gap over ledgers.
//! Failure: [`LogError`], by who must act.
//! Must never know: bookies, frames, tenants.
#![forbid(unsafe_code)]

pub mod api;
mod cache;
pub mod cursor;
pub mod keys;
pub mod layout;
mod log;
mod open;
pub mod records;
mod registry;
pub mod roll;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trim;

pub use api::{
    AckOutcome, AckPosition, AppendRequest, Appended, CacheSettings, CacheStats, CursorInfo, CursorOptions,
    InitialPosition, LedgerInfo, LogEntry, LogError, LogInfo, LogSettings, LogSink,
};
pub use cursor::Cursor;
pub use cursor::ack_set::AckState as CursorAcks;
pub use log::ManagedLedger;
pub use registry::{Clock, ManagedLedgers, OpenGuard};
