//! The metadata store of a region of many nodes, in TiKV.
//!
//! Role: the trait of `meridian-metadata` over optimistic transactions. Every process holds its own [`TikvStore`]; all of
//! them share keys, sequences and sessions, and see each other's changes by polling a log of changes.
//! Invariants: M1 to M6 of the trait, and besides: K1 a version is the start time stamp of the transaction that wrote
//! it, so it is unique in the cluster for each key and names its writer; K2 the log of changes is written in the transaction of the
//! change; K3 an outcome that is not known is settled by reading back the lane's head, which only one transaction at a
//! time writes; K4 every call to TiKV has a deadline, connecting included; K5 a session ends only by a transaction that
//! deletes it, so nothing that is guarded by it can be written after.
//! Failure: what can be repeated is [`MetadataError::Unavailable`] after the deadline of the call; an outcome that could
//! not be settled until then is [`MetadataError::UnknownOutcome`], and its changes are published once it is.
//! Must never know: what keys mean.
//!
//! [`MetadataError::Unavailable`]: meridian_metadata::MetadataError::Unavailable
//! [`MetadataError::UnknownOutcome`]: meridian_metadata::MetadataError::UnknownOutcome
#![forbid(unsafe_code)]

mod allocate;
mod backoff;
mod calls;
mod commit;
mod config;
mod failure;
mod follow;
mod format;
mod garbage;
mod gets;
mod group;
mod lanes;
mod link;
mod log;
mod poll;
mod publish;
mod range;
mod reap;
mod sessions;
mod stats;
mod store;

pub use config::{TikvConfig, UrlError};
pub use stats::{LatencyMs, TikvStats};
pub use store::TikvStore;
