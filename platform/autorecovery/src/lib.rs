//! Brings ledgers back to full copies by itself: after a bookie was lost, when one is to be taken away, and where copies
//! are missing or damaged.
//!
//! Role: one process at a time is the *auditor*: it marks bookies that are missing for longer than a grace and looks at
//! all ledgers from time to time. Every process is a *worker*: it takes ledgers of marked bookies, one claim a ledger, and
//! has the ledger client replicate them at a limited rate. Decisions are pure ([`auditor`], [`planner`], [`throttle`]).
//! Invariants:
//! - J1 absence is no loss before the grace is over, and nobody is marked while most bookies are missing: then it is the
//!   metadata store or the network that is ill.
//! - J2 the work list is the range of holdings of the marked bookies, which shrinks by the same transactions that move
//!   ledgers: work is in proportion to what a bookie held, and no list can be out of date.
//! - J3 claims and the auditor's key save work, nothing more: two workers at one ledger are harmless (see the ledger
//!   client's compare-and-set).
//! - J4 an open ledger is fenced only after a grace, and only if there is a bookie to take the place of the lost one:
//!   its writer is told to replace it by itself before that ([`follow`]).
//!
//! Failure: whatever fails is tried again later, with growing pauses; metrics count it. What the bookies that are there
//! can't bring back ([`verdict`]) is marked with its reason, so that an operator sees it, and tried ever more seldom.
//! Must never know: what ledgers are for, topics, sockets.
#![forbid(unsafe_code)]

mod audit;
pub mod auditor;
pub mod desk;
mod follow;
pub mod keys;
mod metrics;
pub mod planner;
pub mod records;
mod run;
mod session;
mod store;
pub mod throttle;
mod verdict;
mod worker;

pub use desk::{BookieLine, BookieState, Desk, DeskError, Progress};
pub use follow::follow_leaving;
pub use run::{AutorecoveryConfig, run};
