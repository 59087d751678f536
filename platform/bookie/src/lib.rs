//! One storage node: journal first, write caches, sorted entry logs, index, read cache, fencing, garbage collection.
//!
//! Role: [`LocalBookie`] is a [`meridian_bookie_api::Bookie`] over folders of this machine.
//! Invariants: numbered in the modules; S2, S3, S6, S8, S9 and S10 of the design are kept here.
//! Failure: a disk that refuses makes the node refuse, never lie; what was acked is in a journal or an entry log.
//! Must never know: ensembles, quorums, topics, tenants.
#![forbid(unsafe_code)]

mod bookie;
mod cache;
mod compaction;
mod config;
mod control;
mod cookie;
mod core;
mod disk;
mod entrylog;
mod error;
mod flush;
mod gc;
mod index;
mod journal;
mod ledgers;
mod metrics;
mod pool;
mod read;
mod rebuild;
mod replay;

pub use bookie::LocalBookie;
pub use config::{BookieConfig, CompactionConfig, DiskConfig, JournalConfig};
pub use disk::{DiskState, DiskUse};
pub use error::{OpenError, StorageError};
pub use gc::{EmptyListing, GcReport, Listing, LiveLedgers};
pub use rebuild::{RebuildReport, rebuild_index};
pub use replay::ReplayReport;
