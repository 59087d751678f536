//! The words between the writer's machine and its shell: settings, effects, ensemble changes.
//!
//! Must never know: how either of them works.

use crate::api::LedgerError;
use crate::layout::{Layout, SlotSet};
use meridian_bookie_api::AddEntry;
use meridian_types::{BookieId, EntryId};

/// Times and bounds of a writer.
#[derive(Debug, Clone, Copy)]
pub struct WriterTimes {
    /// A member that leaves an add unanswered so long has failed.
    pub add_timeout_ms: u64,
    /// An entry that waits so long, whatever was tried, ends the writer.
    pub give_up_ms: u64,
    /// Pause before a refused member is tried again.
    pub retry_ms: u64,
    /// Pause before adds refused as busy are sent again.
    pub busy_retry_ms: u64,
    /// An explicit last-add-confirmed follows so long after the last add (S1).
    pub lac_idle_ms: u64,
    /// Confirmed entries kept for the new member while a change runs (W7).
    pub window_keep_bytes: u64,
    /// A failed member is tried again as it is for so long before it is replaced, as long as every entry can be confirmed
    /// without it (W8); 0 = it is replaced at once.
    pub change_delay_ms: u64,
}

/// What the entries are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The owner's own writer.
    Append,
    /// A recovery that writes back what it found (S4e).
    Rewrite,
}

/// What the shell has to do.
#[derive(Debug, Clone)]
pub enum WriterEffect {
    /// Send adds to a member, in this order.
    Send {
        /// Its index.
        slot: usize,
        /// Its id.
        bookie: BookieId,
        /// The adds.
        entries: Vec<AddEntry>,
    },
    /// Tell members the last-add-confirmed.
    TellLac {
        /// Who.
        bookies: Vec<BookieId>,
        /// What.
        last_add_confirmed: EntryId,
    },
    /// Find replacements and put them into metadata; answered by `ensemble_changed` or
    /// `change_refused`.
    Replace(Change),
    /// Every entry up to this one is confirmed.
    Confirmed(EntryId),
    /// The writer has ended.
    Ended(LedgerError),
    /// Closing: nothing is outstanding any more.
    Drained,
}

/// An ensemble change wanted (S5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// First entry that goes to the new ensemble.
    pub first: EntryId,
    /// How the ledger is laid out.
    pub layout: Layout,
    /// The ensemble as it is.
    pub ensemble: Vec<BookieId>,
    /// Members to replace.
    pub failed: SlotSet,
}

/// Why no change was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeRefusal {
    /// No bookie is left to take; metadata was not touched.
    NoReplacement {
        /// Bookies that can be written to.
        available: u32,
    },
    /// Metadata does not answer; whether the change is in it is not known (W3).
    Unknown(String),
    /// The ledger is another owner's (or gone): the writer ends with this.
    Lost(LedgerError),
}
