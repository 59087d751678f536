//! Which bookies a ledger gets, over zones and regions: a pure choice.
//!
//! Entry n of a ledger goes to Qw consecutive members of its ensemble, so the rule is about every Qw consecutive members,
//! around the end: each such window stands in at least so many zones and regions.
//! Invariants:
//! - P1 no bookie twice in an ensemble.
//! - P2 a bookie of last resort (it failed lately) is taken for a new ensemble only if there are too few others, and
//!   never as a replacement.
//! - P3 an enforced rule is kept or nothing is chosen; otherwise the windows are spread as far as can be, regions before
//!   zones.
//! - P4 a replacement makes no window worse than the rule and what it was before.
//! - P5 all bookies whose place is not known count as standing in one place.
//!
//! Failure: [`PlacementError`] says what is missing, in numbers.
//! Must never know: ledgers, I/O, time; chance comes in as a seed.
#![forbid(unsafe_code)]

mod choose;
mod mend;
mod near;
mod spread;

pub use choose::{Candidate, choose, replace};
pub use mend::mend;
pub use near::{Nearness, nearness};
pub use spread::{Adherence, adherence};

use meridian_types::{Classify, ErrorClass};

/// Members of an ensemble at most.
pub const ENSEMBLE_MAX: usize = 32;

/// Sizes of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// E: bookies in the ensemble.
    pub ensemble_size: u32,
    /// Qw: copies of each entry, at most E.
    pub write_quorum: u32,
}

/// How copies are to be spread. A window can't stand in more places than it has members: more than that is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Zones per write quorum at least.
    pub min_zones: u32,
    /// Regions per write quorum at least (ensembles that are stretched over regions).
    pub min_regions: u32,
    /// Without that many nothing is chosen; otherwise it is a wish.
    pub enforced: bool,
}

impl Default for Rule {
    /// Two zones where there are two.
    fn default() -> Self {
        Self { min_zones: 2, min_regions: 1, enforced: false }
    }
}

/// Why nothing was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Too few bookies.
    #[error("{needed} writable bookies are needed, {available} are there")]
    NotEnoughBookies {
        /// E.
        needed: u32,
        /// Those that there are.
        available: u32,
    },
    /// They do not stand as the enforced rule wants it.
    #[error(
        "every {write_quorum} of {ensemble_size} bookies must stand in {min_zones} zones and {min_regions} regions; the \
         writable ones stand in {zones} zones and {regions} regions, too few or with too few bookies"
    )]
    NotEnoughPlaces {
        /// E.
        ensemble_size: u32,
        /// Qw.
        write_quorum: u32,
        /// The rule.
        min_zones: u32,
        /// The rule.
        min_regions: u32,
        /// Those that there are.
        zones: u32,
        /// Those that there are.
        regions: u32,
    },
}

impl Classify for PlacementError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Retry
    }
}
