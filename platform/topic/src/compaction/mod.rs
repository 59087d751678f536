//! Compaction: the latest message of each key, in a ledger of its own.
//!
//! Role: two passes over a topic (what an earlier compaction left, then the log behind it). The first finds the latest
//! message of each key, the second writes what stays. Readers of the compacted view read that ledger up to its
//! [`Horizon`] and the log behind it.
//! Invariants:
//! - C1 a new compacted ledger counts once the log's properties name it, which is one write; before that nothing has
//!   changed, and a ledger half written is deleted by the next compaction.
//! - C2 the old ledger is deleted only after the new one counts. A reader that still has it open reads on or fails and
//!   reads again from its position.
//! - C3 to C9: see the parts.
//!
//! Failure: [`CompactionError`]; a failed compaction leaves the view as it was.
//! Must never know: consumers, policies, when to compact.

mod latest;
mod rewrite;
mod run;
mod stored;
mod view;

pub use latest::UNCOMPRESSED_MAX_BYTES;
pub use run::{Compacted, CompactionOptions, CompactionSource, compact};
pub use stored::STORED_HEAD_BYTES;
pub use view::CompactedView;

use meridian_ledger::LedgerError;
use meridian_managed_ledger::LogError;
use meridian_types::{Classify, ErrorClass, LedgerId, Position};
use std::collections::BTreeMap;

/// Property of the log: the compacted ledger and the last position it stands for, `ledger@ledger:entry`.
pub const HORIZON_PROPERTY: &str = "compaction.horizon";
/// Property of the log: a ledger that a compaction is writing or has replaced; to be deleted if it is not the one above.
pub const PENDING_PROPERTY: &str = "compaction.pending";

/// Which ledger holds the compacted view, and up to where in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The compacted ledger.
    pub ledger_id: LedgerId,
    /// The last position that it stands for.
    pub position: Position,
}

impl Horizon {
    /// As the property's text.
    pub fn to_property(self) -> String {
        format!("{}@{}", self.ledger_id, self.position)
    }

    /// From the property's text; `None` if it is none.
    pub fn from_property(text: &str) -> Option<Self> {
        let (ledger_id, position) = text.split_once('@')?;
        let (ledger, entry) = position.split_once(':')?;
        let position = Position::new(ledger.parse().ok()?, entry.parse().ok()?);
        Some(Self { ledger_id: LedgerId(ledger_id.parse().ok()?), position })
    }

    /// Of a log with these properties.
    pub fn of(properties: &BTreeMap<String, String>) -> Option<Self> {
        properties.get(HORIZON_PROPERTY).and_then(|text| Self::from_property(text))
    }
}

/// How the last compaction of a topic went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CompactionStatus {
    /// There was none since the topic was loaded.
    #[default]
    NotRun,
    /// It is running.
    Running,
    /// It ended well.
    Success,
    /// It failed.
    Error(String),
}

/// How compactions of a topic went since it was loaded, and what the last one left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactionFigures {
    /// Entries that the last one left out.
    pub removed_entries: u64,
    /// When one last ended well, ms since 1970; 0 = none did.
    pub succeeded_ms: u64,
    /// When one last failed, ms since 1970; 0 = none did.
    pub failed_ms: u64,
    /// How long the last good one took.
    pub duration_ms: u64,
    /// The compacted ledger; entries and bytes are known once a compaction has run since the load.
    pub ledger: Option<CompactedLedger>,
}

/// A compacted ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactedLedger {
    /// Its id.
    pub ledger_id: LedgerId,
    /// Its entries and bytes, if known.
    pub size: Option<(u64, u64)>,
}

/// Why a compaction or a read of what it left failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompactionError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The compacted ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The compacted ledger holds something else.
    #[error("compacted ledger is damaged: {0}")]
    Corrupt(String),
    /// Storage did not confirm in time.
    #[error("storage confirmed nothing of the compacted ledger for {0} s")]
    TimedOut(u64),
}

impl Classify for CompactionError {
    fn class(&self) -> ErrorClass {
        match self {
            CompactionError::Log(error) => error.class(),
            CompactionError::Ledger(error) => error.class(),
            CompactionError::Corrupt(_) => ErrorClass::Corrupt,
            CompactionError::TimedOut(_) => ErrorClass::Retry,
        }
    }
}

#[cfg(test)]
mod tests;
