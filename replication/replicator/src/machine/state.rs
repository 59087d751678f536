//! What a link says of itself.
//!
//! Must never know: how it came to be so.

use super::words::Notice;
use std::fmt;

/// The state of a link, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// The cursor is not open yet.
    Starting,
    /// The first connection is under way.
    Connecting,
    /// Copies, or there is nothing to copy.
    Running,
    /// Closed for want of messages; the next one opens it.
    Idle,
    /// Held back by a limit.
    Throttled,
    /// The remote refuses: by what.
    Refused(String),
    /// A schema can't be brought over: why.
    SchemaBlocked(String),
    /// The topic has another number of partitions there. 0 = not partitioned.
    PartitionMismatch {
        /// Here.
        local: u32,
        /// There.
        remote: u32,
    },
    /// No connection: why.
    Disconnected(String),
    /// Sends are under way and nothing comes back.
    Stalled,
    /// The source's log can't be read: why.
    Unreadable(String),
    /// Stopped here.
    Stopped,
}

impl LinkState {
    /// The state in one word, for labels of metrics.
    pub fn word(&self) -> &'static str {
        match self {
            LinkState::Starting => "starting",
            LinkState::Connecting => "connecting",
            LinkState::Running => "running",
            LinkState::Idle => "idle",
            LinkState::Throttled => "throttled",
            LinkState::Refused(_) => "refused",
            LinkState::SchemaBlocked(_) => "schema-blocked",
            LinkState::PartitionMismatch { .. } => "partition-mismatch",
            LinkState::Disconnected(_) => "disconnected",
            LinkState::Stalled => "stalled",
            LinkState::Unreadable(_) => "unreadable",
            LinkState::Stopped => "stopped",
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            LinkState::Refused(why)
            | LinkState::SchemaBlocked(why)
            | LinkState::Disconnected(why)
            | LinkState::Unreadable(why) => write!(f, ": {why}"),
            LinkState::PartitionMismatch { local, remote } => write!(f, ": {local} here, {remote} there"),
            _ => Ok(()),
        }
    }
}

/// What was counted since the link was started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Entries sent, again sent ones included.
    pub entries_sent: u64,
    /// Messages in them.
    pub messages_sent: u64,
    /// Bytes in them, as they stood behind the SEND command.
    pub bytes_sent: u64,
    /// Entries that the remote has stored.
    pub entries_stored: u64,
    /// Messages in them.
    pub messages_stored: u64,
    /// Entries that the remote had already.
    pub duplicates: u64,
    /// Messages that outlived their time before they were copied.
    pub messages_expired: u64,
    /// Entries that can't be read.
    pub undecodable: u64,
    /// Entries that came from other regions.
    pub skipped_foreign: u64,
    /// Entries that are meant for other regions.
    pub skipped_not_targeted: u64,
    /// Markers that stay here.
    pub skipped_markers: u64,
    /// Entries of transactions, sent as plain ones.
    pub transactional: u64,
    /// Times that messages were found to be removed before they were copied.
    pub gaps: u64,
    /// How many messages.
    pub gap_messages: u64,
    /// Sends refused.
    pub refused: u64,
    /// Open sessions lost.
    pub disconnected: u64,
    /// Restarts by the watchdog.
    pub restarts: u64,
    /// Times that the link went back to its first unacknowledged entry.
    pub rewinds: u64,
    /// Receipts for what was through already.
    pub stale_receipts: u64,
    /// Duplicates that nothing proves: sent again under another name, or believed for want of a way to tell (old peers).
    pub unproven_duplicates: u64,
}

/// A link at one moment, as the machine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// The state.
    pub state: LinkState,
    /// Since when, ms since 1970.
    pub since_ms: u64,
    /// Since when a session is open, ms since 1970; `None` = none is.
    pub connected_since_ms: Option<u64>,
    /// Counts.
    pub counters: Counters,
    /// When the oldest entry that is not through was stored here; `None` = nothing known to wait.
    pub oldest_ms: Option<u64>,
    /// Entries sent without a receipt.
    pub waiting_entries: u32,
    /// Bytes of them.
    pub waiting_bytes: u64,
    /// Entries read and not sent.
    pub queued_entries: u32,
    /// Entries that may wait for receipts at this moment.
    pub window: u32,
    /// The producer's name has this suffix; 0 = none.
    pub generation: u64,
    /// The last thing that people must hear of, and when.
    pub last_notice: Option<(u64, Notice)>,
}
