//! Bugs that can be planted, one at a time, to prove that the checkers see them.

/// A bug of the surroundings, or a rule of a core that is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Planted {
    /// None.
    #[default]
    Nothing,
    /// The receiver refuses a send and lets the ones behind it pass its mark (the upstream silent loss, B012).
    RefusalsUngated,
    /// The marks of origins are empty after a reload.
    MarksForgotten,
    /// Entries lose the sign of where they came from before a link looks at them.
    LoopRuleOff,
    /// The network turns two sends of a session round.
    SendsReordered,
    /// The log turns two appends round.
    AppendsReordered,
    /// Receipts are given before the entry is durable.
    EarlyReceipts,
    /// What expires is not counted.
    ExpiryUncounted,
    /// Message indexes of the log are made anew after a removal, so that no gap shows.
    GapsHidden,
    /// A part of acknowledgements that got lost counts as confirmed.
    AcksDropped,
    /// A part is confirmed before it is stored.
    AcksUnstored,
    /// The dispatcher does not ask what is acknowledged elsewhere.
    AcksUnasked,
    /// A region that comes back does not ask for what it may have lost.
    NoResync,
    /// Epochs are not asked: every region is active, every link is welcome.
    EpochsIgnored,
    /// A planned switch believes at once that everything is drained.
    DrainSkipped,
    /// A deposed region skips its tail without setting it aside.
    TailForgotten,
    /// Producers are not the same in all regions although the policy says so.
    GlobalOff,
}

impl Planted {
    /// All bugs.
    pub const ALL: [Planted; 16] = [
        Planted::RefusalsUngated,
        Planted::MarksForgotten,
        Planted::LoopRuleOff,
        Planted::SendsReordered,
        Planted::AppendsReordered,
        Planted::EarlyReceipts,
        Planted::ExpiryUncounted,
        Planted::GapsHidden,
        Planted::AcksDropped,
        Planted::AcksUnstored,
        Planted::AcksUnasked,
        Planted::NoResync,
        Planted::EpochsIgnored,
        Planted::DrainSkipped,
        Planted::TailForgotten,
        Planted::GlobalOff,
    ];

    /// By its name as `Debug` writes it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planted| format!("{planted:?}").eq_ignore_ascii_case(name))
    }
}
