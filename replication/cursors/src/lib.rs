//! The state of a subscription across regions: snapshots (PIP-33) and exact acknowledgements, as pure machines.
//!
//! Role: [`exact`] is the lattice of acknowledged origin positions between Meridian regions, [`snapshot`] the marker
//! protocol for Apache Pulsar peers. Both get events and time in and answer with effects or values.
//! Invariants and failures stand in the heads of the modules.
//! Must never know: sockets, topics, logs, clocks.
#![forbid(unsafe_code)]

pub mod exact;
pub mod snapshot;
mod varint;
