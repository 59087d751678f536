//! Bugs put between the machines and the world, to prove that the checkers find them.

use meridian_ledger::layout::Layout;

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// The writer confirms with one copy less than it should.
    ConfirmTooEarly,
    /// Bookies say that they fenced and do not.
    NothingIsFenced,
    /// Recovery reads do not fence (the first known fault of the original protocol).
    ReadsDoNotFence,
    /// A bookie that does not answer counts as one that does not hold the entry.
    ErrorsCountAsMissing,
    /// What a recovery found is not written back.
    FoundIsNotRewritten,
    /// The new bookie counts before the change is in metadata.
    CountBeforeTheChangeIsStored,
    /// A change of unknown outcome is taken as not made.
    UnknownIsRefused,
    /// A recovery tells bookies its own progress as the last-add-confirmed.
    RecoveryTellsItsProgress,
    /// An ensemble change overwrites whatever is in metadata.
    ChangeWithoutCompare,
}

impl Bug {
    /// Those that random runs find; the others take a written scenario.
    pub const FOUND_BY_CHANCE: [Bug; 7] = [
        Bug::ConfirmTooEarly,
        Bug::NothingIsFenced,
        Bug::ErrorsCountAsMissing,
        Bug::FoundIsNotRewritten,
        Bug::CountBeforeTheChangeIsStored,
        Bug::RecoveryTellsItsProgress,
        Bug::ChangeWithoutCompare,
    ];

    /// The layout that the writer is told.
    pub fn writer_layout(self, layout: Layout) -> Layout {
        if self != Bug::ConfirmTooEarly {
            return layout;
        }
        let ack_quorum = (layout.ack_quorum() - 1).max(1);
        Layout::new(layout.ensemble_size(), layout.write_quorum(), ack_quorum).expect("smaller is fine")
    }
}
