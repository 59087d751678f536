//! Load over the wire, and the raw limits of the machine beside it.
//!
//! Role: a small client of its own, load that is paced by a schedule instead of by the server's answers, the cases that
//! are compared with other servers, `meridian perf` for users, and the disk and loopback limits that results are put
//! beside.
//!
//! Invariants:
//! - B1 Latency counts from the moment a send was due, not from when it could be sent: a server that stalls cannot hide
//!   the sends that the stall delayed.
//! - B2 Nothing grows with the load: sends in flight, deliveries waiting, and frames not yet written have limits.
//! - B3 A case that loses or repeats a message fails; it never prints a figure.
//!
//! Failure: [`BenchError`]; a connection that ends is not opened again, since a figure over two connections means nothing.
//! Must never know: a server's insides. What it knows of a server comes over the wire, from `/proc` and from `/metrics`.
#![forbid(unsafe_code)]

pub mod cases;
pub mod consumer;
pub mod entry;
pub mod error;
pub mod link;
pub mod load;
pub mod perf;
pub mod producer;
pub mod raw;
pub mod record;
pub mod server;

pub use error::BenchError;
