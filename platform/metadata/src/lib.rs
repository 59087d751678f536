//! The metadata store as a trait, and the stores for one machine.
//!
//! Role: versioned keys with compare-and-set, multi-key transactions, ordered ranges, sequences, sessions with
//! ephemeral keys, and a watch that can be resumed. What a key means is its owner's business.
//! Invariants: M1 a version never repeats for a key, also after delete and create; M2 a transaction applies wholly or
//! not at all; M3 a watcher sees every change of its prefix in order, or is told [`WatchEvent::Rescan`], never a silent
//! gap; M4 a sequence never gives a number twice, also after a restart; M5 a write is durable before its `Ok`; M6 every
//! queue is bounded by a constant of [`limits`] and every wait has a deadline.
//! Failure: [`MetadataError`], by who must act; an unknown outcome is said as such.
//! Must never know: what keys mean.
#![forbid(unsafe_code)]

pub mod changes;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod limits;
mod memory;
mod observed;
pub mod plan;
mod rocks;
mod sessions;
pub mod store;

pub use memory::MemoryStore;
pub use observed::{ObservedStore, Patience, StoreFigures};
pub use rocks::{RocksStore, StoreStats};
pub use store::{
    BoxFuture, Condition, Entry, Figure, MetadataError, MetadataStore, Operation, Page, Session, SessionId,
    SharedStore, Version, Watch, WatchEvent,
};
