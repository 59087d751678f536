//! One ledger from the outside: ensembles, quorums, last-add-confirmed, fencing, recovery, ensemble change.
//!
//! Role: [`Ledgers`] creates, opens, recovers and deletes ledgers; a [`LedgerWriter`] appends and a [`LedgerReader`]
//! reads. The decisions are pure machines ([`writer::machine`], [`recovery::machine`], [`reader::machine`]); the
//! shells carry their effects to bookies and metadata. [`LedgerClient`] is the whole of it.
//! Invariants: S1, S4, S5 of the design (see `writer` and `recovery`).
//! Failure: [`LedgerError`], by who must act.
//! Must never know: what an entry means, topics.
#![forbid(unsafe_code)]

pub mod api;
pub mod bookies;
pub mod client;
mod context;
pub mod directory;
pub mod keys;
pub mod layout;
pub mod placement;
pub mod reader;
pub mod record;
pub mod recovery;
pub mod replicate;
pub mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod writer;

pub use api::{
    AppendEvent, AppendSink, LedgerEntry, LedgerError, LedgerOptions, LedgerReader, LedgerWriter, Ledgers,
    PreparedLedger, StartWriter,
};
pub use bookies::announce::{Announcement, AnnouncementFigures};
pub use bookies::registration::BookieRegistration;
pub use bookies::watched::{BookieView, OwnBookie, WatchedBookies};
pub use client::LedgerClient;
pub use context::LedgerConfig;
pub use directory::{BookieDirectory, StaticBookies};
pub use record::{LedgerRecord, LedgerState};
pub use stats::CounterSnapshot;
