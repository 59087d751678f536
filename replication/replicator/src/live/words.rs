//! What a link of a topic that keeps nothing is told, and what it wants done.
//!
//! Must never know: how either is decided.

use super::queue::LiveEntry;
use crate::machine::limit::LinkLimits;
use crate::machine::state::LinkState;
use crate::machine::words::{OpenFailure, Outgoing, Peer};
use bytes::Bytes;

/// Something has happened.
#[derive(Debug)]
pub enum LiveEvent {
    /// A time that was asked for has come.
    Tick,
    /// Entries were published; no more than [`super::machine::LiveMachine::wants`].
    Entries(Vec<LiveEntry>),
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
    /// Sends were answered, the oldest first: taken, or refused by what.
    Answers {
        /// Their session.
        session: u64,
        /// In the order they came.
        answers: Vec<Result<(), String>>,
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
    /// Limits in force from now on.
    SetLimits(LinkLimits),
    /// No more.
    Stop,
}

/// What the machine wants done.
#[derive(Debug)]
pub enum LiveEffect {
    /// Connect, compare, open the producer.
    Open {
        /// Number of the session.
        session: u64,
    },
    /// Close the producer, and say so in any case.
    Close {
        /// Number of the session.
        session: u64,
    },
    /// Send, in this order.
    Send {
        /// Number of the session.
        session: u64,
        /// What.
        entries: Vec<Outgoing>,
    },
    /// Bring this version of the topic's schema to the remote.
    BringSchema {
        /// Number of the session.
        session: u64,
        /// The local version.
        version: Bytes,
    },
}

/// What was counted since the link was started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LiveCounters {
    /// Messages that the remote took.
    pub messages: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Messages that were not sent, or were refused or not answered.
    pub dropped_messages: u64,
    /// Entries that can't be read.
    pub undecodable: u64,
    /// Restarts by the watchdog.
    pub restarts: u64,
}

/// A link at one moment, as the machine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveView {
    /// The state.
    pub state: LinkState,
    /// Since when, ms since 1970.
    pub since_ms: u64,
    /// Since when a session is open, ms since 1970; `None` = none is.
    pub connected_since_ms: Option<u64>,
    /// Counts.
    pub counters: LiveCounters,
}
