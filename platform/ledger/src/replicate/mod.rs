//! Re-replication of one ledger (S7), and the check of its copies.
//!
//! Role: [`machine`] decides, the shell carries out; [`check`] looks at single copies directly.
//! Must never know: which bookies are lost and why, other ledgers.

pub mod check;
pub mod machine;
mod run;
pub(crate) mod shell;

pub use check::{Checked, Finding, Probe};
pub use machine::{ReplicateSettings, Replicated, Work};
pub use shell::Pace;
