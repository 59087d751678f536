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

pub use api::{
    AckPosition, AppendRequest, Appended, CursorInfo, CursorOptions, InitialPosition, LedgerInfo, LogEntry, LogError,
    LogInfo, LogSettings, LogSink,
};
