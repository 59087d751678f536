//! The words of the machine: what happens to it and what it wants done.
//!
//! Must never know: sockets, tasks, clocks.

use super::limit::LinkLimits;
use bytes::Bytes;
use meridian_managed_ledger::LogEntry;
use meridian_types::Position;
use std::any::Any;
use std::sync::Arc;

/// A moment as the machine sees it: time and chance come from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Ms since 1970.
    pub ms: u64,
    /// A random number from 0 to 999, drawn anew for each event.
    pub jitter_permille: u16,
}

/// Something that is given back when it is dropped, such as a share of a budget.
pub type Hold = Arc<dyn Any + Send + Sync>;

/// An entry of the source's log.
#[derive(Debug, Clone)]
pub struct ReadEntry {
    /// The entry.
    pub entry: LogEntry,
    /// The link's cursor has it acknowledged already: it is looked at for gaps and not sent.
    pub acked: bool,
    /// Given back when the entry is through.
    pub hold: Option<Hold>,
}

/// Where a link begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPoint {
    /// First position that is not acknowledged; it may not exist yet.
    pub first: Position,
    /// Last confirmed position of the log.
    pub last_confirmed: Position,
    /// The cursor was made just now: nothing was ever sent before.
    pub created: bool,
    /// Highest acknowledged position above the first unacknowledged one, if there is a hole.
    pub highest_acked: Option<Position>,
    /// As it was saved with [`Effect::Open`]; 0 = the plain name.
    pub generation: u64,
}

/// What the machine knows of who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// A Meridian region: its word *duplicate* is proof.
    pub meridian: bool,
    /// Its receipts name source positions (Pulsar: `supports_repl_dedup_by_lid_and_eid`).
    pub positions: bool,
    /// Largest entry that it takes, metadata included.
    pub max_entry_bytes: u64,
}

/// Why a session could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenFailure {
    /// No answer, no connection, no broker that owns the topic.
    #[error("{0}")]
    Unreachable(String),
    /// The remote says no: permission, quota, a producer of that name.
    #[error("{0}")]
    Refused(String),
    /// The topic has another shape there. 0 = not partitioned.
    #[error("{local} partitions here, {remote} there")]
    PartitionMismatch {
        /// Partitions here.
        local: u32,
        /// Partitions there.
        remote: u32,
    },
    /// The remote wants a schema that it was not given.
    #[error("{0}")]
    Schema(String),
}

/// A receipt as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Sequence id, or the source ledger.
    pub sequence_id: u64,
    /// Highest sequence id, or the source entry, or the mark of a marker.
    pub highest_sequence_id: u64,
    /// Where the entry is at the remote; -1:-1 for a duplicate.
    pub position: Position,
}

/// The remote refused one send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRefusal {
    /// As in the SEND.
    pub sequence_id: u64,
    /// By what, for people.
    pub error: String,
    /// The remote has this entry in hand and can't say yet whether it is stored: no refusal of the entry itself.
    pub undecided: bool,
}

/// Something has happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The cursor is open.
    Started(StartPoint),
    /// A time that was asked for has come.
    Tick,
    /// Entries were read; none = there are none yet.
    Read {
        /// Of the effect.
        epoch: u64,
        /// Ascending.
        entries: Vec<ReadEntry>,
    },
    /// A read failed.
    ReadFailed {
        /// Of the effect.
        epoch: u64,
        /// Why.
        error: String,
    },
    /// There is an entry behind the last one read.
    Grown {
        /// Of the effect.
        epoch: u64,
    },
    /// A session is open.
    Opened {
        /// Of the effect.
        session: u64,
        /// Who is there.
        peer: Peer,
    },
    /// A session could not be opened.
    OpenFailed {
        /// Of the effect.
        session: u64,
        /// Why.
        failure: OpenFailure,
    },
    /// Entries are stored at the remote.
    Receipts {
        /// Their session.
        session: u64,
        /// In the order they came.
        receipts: Vec<Receipt>,
    },
    /// Sends were refused.
    Refused {
        /// Their session.
        session: u64,
        /// In the order they came.
        refusals: Vec<SendRefusal>,
    },
    /// The connection or the producer is gone.
    Lost {
        /// The session.
        session: u64,
        /// Why.
        reason: String,
    },
    /// A close that was asked for is done, well or not.
    Closed {
        /// The session.
        session: u64,
    },
    /// A schema was brought over.
    Schema {
        /// Of the effect.
        session: u64,
        /// The local version.
        version: Bytes,
        /// The remote's version, if it needs one; or why not.
        outcome: Result<Option<Bytes>, String>,
    },
    /// Somebody else moved the cursor: backlog skipped, cleared or reset.
    CursorMoved {
        /// First position that is not acknowledged.
        first: Position,
    },
    /// Limits and time to live in force from now on.
    SetLimits(LinkLimits),
    /// No more.
    Stop,
}

/// An entry on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it is in the source topic.
    pub position: Position,
    /// Of the SEND.
    pub sequence_id: u64,
    /// Of the SEND.
    pub highest_sequence_id: Option<u64>,
    /// Messages in the entry.
    pub messages: u32,
    /// A marker.
    pub marker: bool,
    /// A part of a chunked message.
    pub chunk: bool,
    /// SEND.message_id: the source position, only towards Meridian.
    pub source_position: Option<Position>,
    /// What stands behind the SEND command.
    pub entry: Bytes,
}

/// A replicated-subscription marker that came from the remote of this link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenMarker {
    /// Number of its kind (10 request, 11 response, 13 update).
    pub kind: i32,
    /// Where it is here.
    pub position: Position,
    /// The entry, from its checksum on.
    pub entry: Bytes,
}

/// Something that people must hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Messages were removed here before they were copied.
    Gap {
        /// How many.
        messages: u64,
        /// The first entry behind them.
        before: Position,
    },
    /// An entry can't be read; it was not copied.
    Undecodable {
        /// Where.
        position: Position,
        /// Why.
        error: String,
    },
    /// The remote called an entry a duplicate that nothing proves to be there: it is sent again under another name.
    Unproven {
        /// Where.
        position: Position,
    },
    /// No progress for so long: the link was restarted.
    Restarted {
        /// How long.
        after_ms: u64,
    },
}

/// What the machine wants done.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Connect, compare, open the producer; first save the generation if it is another one than before.
    Open {
        /// Number of the session.
        session: u64,
        /// 0 = the plain name.
        generation: u64,
    },
    /// Close the producer, and say so in any case.
    Close {
        /// Number of the session.
        session: u64,
    },
    /// Read entries at or after `from`.
    Read {
        /// To be given back.
        epoch: u64,
        /// First position.
        from: Position,
        /// At most.
        max_entries: u32,
        /// At most, but one entry.
        max_bytes: u64,
        /// Up to here some may be acknowledged: look.
        acked_up_to: Position,
    },
    /// Say when there is an entry at or after this position.
    Await {
        /// To be given back.
        epoch: u64,
        /// The position.
        from: Position,
    },
    /// Send, in this order.
    Send {
        /// Number of the session.
        session: u64,
        /// What.
        entries: Vec<Outgoing>,
    },
    /// These entries are through.
    Ack(Vec<Position>),
    /// Bring this version of the topic's schema to the remote.
    BringSchema {
        /// Number of the session.
        session: u64,
        /// The local version.
        version: Bytes,
    },
    /// Give this to the subscriptions' controller.
    Marker(SeenMarker),
    /// Tell people.
    Announce(Notice),
}
