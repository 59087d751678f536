//! One ledger from the outside: ensembles, quorums, last-add-confirmed, fencing, recovery, ensemble change.
//!
//! Role: [`Ledgers`] creates, opens, recovers and deletes ledgers; a [`LedgerWriter`] appends and a [`LedgerReader`]
//! reads. The decisions are pure machines; the shells carry their effects to bookies and metadata.
//! Invariants: S1, S4, S5 of the design (see `writer` and `recovery`).
//! Failure: [`LedgerError`], by who must act.
//! Must never know: what an entry means, topics.
#![forbid(unsafe_code)]

pub mod api;

pub use api::{AppendEvent, AppendSink, LedgerEntry, LedgerError, LedgerOptions, LedgerReader, LedgerWriter, Ledgers};
