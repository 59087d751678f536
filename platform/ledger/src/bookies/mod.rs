//! The bookies of a cluster: how one is registered, and how the others find it.
//!
//! Must never know: ledgers.

pub mod announce;
pub mod registration;
pub mod watched;
