//! A member of the writer's ensemble, and the delay of its replacement: the parts of the machine's state.
//!
//! Must never know: what the machine decides with them.

use crate::api::LedgerError;
use crate::layout::SlotSet;
use meridian_bookie_api::BookieError;
use meridian_types::BookieId;

/// Where the writer is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closing,
    Drained,
    Ended(LedgerError),
}

/// A member as its writer sees it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) bookie: BookieId,
    /// Highest entry sent and highest entry answered.
    pub(super) sent: i64,
    pub(super) answered: i64,
    /// Last answer, or the first send after all was answered.
    pub(super) progress_ms: u64,
    /// Since when this member counts from anew.
    pub(super) since_ms: u64,
    pub(super) failure: Option<BookieError>,
}

impl Slot {
    pub(super) fn new(bookie: BookieId, now_ms: u64) -> Self {
        Self { bookie, sent: -1, answered: -1, progress_ms: now_ms, since_ms: now_ms, failure: None }
    }
}

/// Failed members that get time to come back before they are replaced.
#[derive(Debug, Default)]
pub(super) struct Delay {
    since_ms: u64,
    again_at_ms: u64,
    members: SlotSet,
}

/// What a look at a [`Delay`] says.
pub(super) struct Turn {
    /// How long it has waited.
    pub(super) waited_ms: u64,
    /// It is time to try the members as they are.
    pub(super) try_again: bool,
}

impl Delay {
    /// Waits for these members from now on, if not already.
    pub(super) fn turn(&mut self, failed: SlotSet, now_ms: u64, retry_ms: u64) -> Turn {
        if self.members.is_empty() {
            self.since_ms = now_ms;
            self.again_at_ms = now_ms + retry_ms;
        }
        self.members = self.members.or(failed);
        let try_again = now_ms >= self.again_at_ms;
        if try_again {
            self.again_at_ms = now_ms + retry_ms;
        }
        Turn { waited_ms: now_ms.saturating_sub(self.since_ms), try_again }
    }

    /// A member has come back.
    pub(super) fn answered(&mut self, slot: usize) {
        self.members.remove_all(SlotSet::one(slot));
    }
}
