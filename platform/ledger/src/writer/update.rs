//! One change of a ledger's record by its writer, as a pure machine: an ensemble change or the close.
//!
//! Invariants: U1 (S5) the record is changed by compare-and-set while its state is OPEN, or not at all; U2 an update
//! that is found in metadata was made, whatever the store answered; U3 when the time is over and no read told the
//! outcome it is *unknown*, never refused.
//! Failure: a record that is another owner's by now, or gone, loses the ledger.
//! Must never know: clocks, stores.

use crate::api::LedgerError;
use crate::record::{LedgerRecord, LedgerState, Stored};
use meridian_metadata::Version;
use meridian_types::{BookieId, EntryId, LedgerId};

/// What the writer wants of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// From `first` on entries go to `bookies`.
    Change {
        /// First entry of the new ensemble.
        first: EntryId,
        /// The new ensemble.
        bookies: Vec<BookieId>,
    },
    /// The ledger ends here.
    Close {
        /// Last entry.
        last_entry: EntryId,
        /// Bytes of all entries.
        length_bytes: u64,
    },
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateStep {
    /// Compare-and-set, then [`RecordUpdate::stored`].
    Store(LedgerRecord, Version),
    /// Read the record, then [`RecordUpdate::loaded`]; `pause` = metadata did not answer, wait a little first.
    Load {
        /// Wait first.
        pause: bool,
    },
    /// It is over.
    Done(Result<(LedgerRecord, Version), UpdateFailure>),
}

/// Why the record was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateFailure {
    /// The ledger is another owner's, closed otherwise, or gone.
    Lost(LedgerError),
    /// Metadata did not tell in time whether the record was changed.
    Unknown(LedgerError),
}

/// See the head of this file.
#[derive(Debug)]
pub struct RecordUpdate {
    ledger_id: LedgerId,
    intent: Intent,
    wanted: LedgerRecord,
    version: Version,
    deadline_ms: u64,
    last_error: LedgerError,
}

impl RecordUpdate {
    /// Begins with the record as last known; answers the first step.
    pub fn begin(
        ledger_id: LedgerId,
        intent: Intent,
        known: (LedgerRecord, Version),
        deadline_ms: u64,
    ) -> (Self, UpdateStep) {
        let (record, version) = known;
        let last_error = LedgerError::QuorumUnavailable { ledger_id, reason: "the record keeps changing".to_owned() };
        let mut update = Self { ledger_id, intent, wanted: record, version, deadline_ms, last_error };
        let step = update.store();
        (update, step)
    }

    fn store(&mut self) -> UpdateStep {
        match &self.intent {
            Intent::Change { first, bookies } => self.wanted.change_ensemble(*first, bookies.clone()),
            Intent::Close { last_entry, length_bytes } => self.wanted.close(*last_entry, *length_bytes, true),
        }
        UpdateStep::Store(self.wanted.clone(), self.version)
    }

    /// What the compare-and-set came to.
    pub fn stored(&mut self, outcome: Stored) -> UpdateStep {
        match outcome {
            Stored::Done(version) => UpdateStep::Done(Ok((self.wanted.clone(), version))),
            Stored::Changed => UpdateStep::Load { pause: false },
            Stored::Unknown(error) => {
                self.last_error = error.into();
                UpdateStep::Load { pause: false }
            }
            Stored::Failed(error) => UpdateStep::Done(Err(UpdateFailure::Lost(error.into()))),
        }
    }

    /// The record as it is now.
    pub fn loaded(&mut self, now_ms: u64, result: Result<(LedgerRecord, Version), LedgerError>) -> UpdateStep {
        match result {
            Ok((record, version)) if self.is_made_in(&record) => return UpdateStep::Done(Ok((record, version))),
            Ok((record, version)) if record.state == LedgerState::Open => {
                (self.wanted, self.version) = (record, version);
            }
            Ok(_) => return UpdateStep::Done(Err(UpdateFailure::Lost(LedgerError::Fenced(self.ledger_id)))),
            Err(error @ LedgerError::NoSuchLedger(_)) => return UpdateStep::Done(Err(UpdateFailure::Lost(error))),
            Err(error) => {
                self.last_error = error;
                return if now_ms >= self.deadline_ms { self.unknown() } else { UpdateStep::Load { pause: true } };
            }
        }
        if now_ms >= self.deadline_ms { self.unknown() } else { self.store() }
    }

    fn unknown(&self) -> UpdateStep {
        UpdateStep::Done(Err(UpdateFailure::Unknown(self.last_error.clone())))
    }

    /// U2.
    fn is_made_in(&self, record: &LedgerRecord) -> bool {
        match &self.intent {
            Intent::Change { first, bookies } => {
                let last = record.last_ensemble();
                record.state == LedgerState::Open && last.first == *first && last.bookies == *bookies
            }
            Intent::Close { last_entry, length_bytes } => {
                record.state == LedgerState::Closed
                    && record.last_entry == *last_entry
                    && record.length_bytes == *length_bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LedgerOptions;
    use crate::layout::Layout;
    use meridian_metadata::MetadataError;
    use std::collections::BTreeMap;

    const LEDGER: LedgerId = LedgerId(7);

    fn ids(names: &str) -> Vec<BookieId> {
        names.split(' ').map(BookieId::new).collect()
    }

    fn record() -> LedgerRecord {
        let options = LedgerOptions { ensemble_size: 2, write_quorum: 2, ack_quorum: 1, properties: BTreeMap::new() };
        LedgerRecord::new(Layout::new(2, 2, 1).unwrap(), options, ids("a b"), 0)
    }

    fn change() -> (RecordUpdate, LedgerRecord) {
        let intent = Intent::Change { first: EntryId(3), bookies: ids("c b") };
        let (update, step) = RecordUpdate::begin(LEDGER, intent, (record(), Version(1)), 100);
        let UpdateStep::Store(wanted, Version(1)) = step else { panic!("{step:?}") };
        (update, wanted)
    }

    fn unknown() -> Stored {
        Stored::Unknown(MetadataError::UnknownOutcome("late".to_owned()))
    }

    #[test]
    fn an_unknown_outcome_is_read_back() {
        let (mut update, wanted) = change();
        assert_eq!(update.stored(unknown()), UpdateStep::Load { pause: false });
        let made = update.loaded(10, Ok((wanted.clone(), Version(2))));
        assert_eq!(made, UpdateStep::Done(Ok((wanted.clone(), Version(2)))));

        let (mut update, _) = change();
        update.stored(unknown());
        assert_eq!(update.loaded(10, Ok((record(), Version(1)))), UpdateStep::Store(wanted, Version(1)));
    }

    #[test]
    fn what_was_never_told_is_unknown_and_not_refused() {
        let (mut update, _) = change();
        update.stored(unknown());
        let down = || Err(LedgerError::Metadata(MetadataError::Unavailable("down".to_owned())));
        assert_eq!(update.loaded(99, down()), UpdateStep::Load { pause: true });
        let end = update.loaded(100, down());
        assert!(matches!(end, UpdateStep::Done(Err(UpdateFailure::Unknown(_)))), "{end:?}");
        // The old record seen after the time is over proves nothing: the write may still be on its way.
        let (mut update, _) = change();
        update.stored(unknown());
        let end = update.loaded(100, Ok((record(), Version(1))));
        assert!(matches!(end, UpdateStep::Done(Err(UpdateFailure::Unknown(_)))), "{end:?}");
    }

    #[test]
    fn another_owner_takes_the_ledger() {
        for (state, intent) in [
            (LedgerState::InRecovery, Intent::Change { first: EntryId(3), bookies: ids("c b") }),
            (LedgerState::InRecovery, Intent::Close { last_entry: EntryId(2), length_bytes: 9 }),
            (LedgerState::Closed, Intent::Change { first: EntryId(3), bookies: ids("c b") }),
            (LedgerState::Closed, Intent::Close { last_entry: EntryId(2), length_bytes: 9 }),
        ] {
            let (mut update, _) = RecordUpdate::begin(LEDGER, intent, (record(), Version(1)), 100);
            assert_eq!(update.stored(Stored::Changed), UpdateStep::Load { pause: false });
            let mut theirs = record();
            theirs.state = state;
            let end = update.loaded(5, Ok((theirs, Version(2))));
            assert_eq!(end, UpdateStep::Done(Err(UpdateFailure::Lost(LedgerError::Fenced(LEDGER)))));
        }
    }

    #[test]
    fn a_repair_of_an_earlier_ensemble_is_kept() {
        let (mut update, _) = change();
        update.stored(Stored::Changed);
        let mut repaired = record();
        repaired.change_ensemble(EntryId(1), ids("x b"));
        let step = update.loaded(5, Ok((repaired.clone(), Version(4))));
        repaired.change_ensemble(EntryId(3), ids("c b"));
        assert_eq!(step, UpdateStep::Store(repaired, Version(4)));
    }
}
