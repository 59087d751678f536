//! Bugs that can be planted, one at a time, between the cores and the world, to prove that the checkers see them.

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bug {
    /// Nothing.
    #[default]
    Nothing,
    /// The writer confirms with one copy less than it should.
    ConfirmsTooEarly,
    /// Bookies answer adds before they are synced.
    AcksUnsynced,
    /// Bookies forget with a deleted ledger that it was fenced.
    DeletedFencesForgotten,
    /// Bookies say that they fenced and do not.
    NothingIsFenced,
    /// A bookie that does not answer a recovery counts as one that does not hold the entry.
    ErrorsCountAsMissing,
    /// What a recovery found is not written back.
    FoundIsNotRewritten,
    /// A new member counts before the change is in metadata.
    CountsBeforeStored,
    /// An ensemble change overwrites whatever is in metadata.
    ChangesWithoutCompare,
    /// A recovery tells bookies its own progress as the last-add-confirmed.
    RecoveryTellsItsProgress,
    /// Re-replication changes metadata although nothing was copied.
    NothingIsCopied,
    /// Re-replication takes the open end of a ledger for a finished one.
    OpenEndIsMoved,
    /// Bookies give damaged bytes with a digest made for them.
    DamageIsHidden,
    /// A change of members does not change holdings.
    HoldingsForgotten,
    /// The position read is persisted instead of the one acknowledged.
    ReadPositionPersisted,
    /// Ledgers are trimmed up to the position read.
    TrimsUnacked,
    /// A ledger is deleted before the list that names it has changed.
    DeletesBeforeListing,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 16] = [
        Bug::ConfirmsTooEarly,
        Bug::AcksUnsynced,
        Bug::DeletedFencesForgotten,
        Bug::NothingIsFenced,
        Bug::ErrorsCountAsMissing,
        Bug::FoundIsNotRewritten,
        Bug::CountsBeforeStored,
        Bug::ChangesWithoutCompare,
        Bug::RecoveryTellsItsProgress,
        Bug::NothingIsCopied,
        Bug::OpenEndIsMoved,
        Bug::DamageIsHidden,
        Bug::HoldingsForgotten,
        Bug::ReadPositionPersisted,
        Bug::TrimsUnacked,
        Bug::DeletesBeforeListing,
    ];

    /// By its name as `Debug` writes it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name))
    }
}
