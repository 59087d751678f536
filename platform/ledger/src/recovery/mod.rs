//! Finding the end of a ledger that lost its owner: a pure machine and its shell.

pub mod machine;
pub(crate) mod shell;
