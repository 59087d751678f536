//! The words of the project: ids, positions, names, error classes, and which lines of a repeated trouble are written.
//!
//! Role: plain values that every room shares. Ids are types, so that a ledger id is never taken for an entry id.
//! Invariants: T1 a parsed name prints as it was parsed (canonical form); T2 positions order by ledger, then entry; T3 the
//! parts of names are bounded.
//! Failure: parsing answers [`NameError`] with the part and the rule it broke; nothing here panics on input.
//! Must never know: I/O, async, clocks.
#![forbid(unsafe_code)]

pub mod error;
pub mod id;
pub mod name;
pub mod position;
pub mod repeats;

pub use error::{Classify, ErrorClass};
pub use id::{BookieId, Incarnation, OwnerEpoch, RegionId};
pub use name::{Domain, NameError, NamespaceName, TopicName, check_subscription};
pub use position::{EntryId, LedgerId, Position};
pub use repeats::Repeats;
