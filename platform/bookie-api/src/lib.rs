//! The contract between the ledger client and a bookie: the calls, the data frames, the control service and the
//! entry envelope.
//!
//! Role: [`Bookie`] is what a ledger client sees of one storage node, be it in the same process or behind a socket.
//! Invariants: B1 an add is answered `Ok` only after its journal record is synced (S2); B2 results of one ledger are
//! reported in the order in which its adds were given; B3 "no such entry" is only ever said by a bookie that looked
//! and does not hold it: a time-out or an I/O error is another error (S4).
//! Failure: [`BookieError`], by who must act.
//! Must never know: quorums, topics, files.
#![forbid(unsafe_code)]

pub mod bookie;
pub mod control;
pub mod entry;
pub mod envelope;
pub mod frame;
mod outbox;
mod pending;
pub mod remote;
pub mod secure;
pub mod serve;

pub use bookie::{AddEntry, AddResult, AddSink, Bookie, BookieError, BoxFuture, FenceState, ReadEntry, ReadRequest};
pub use entry::{EntryBytes, Head};
pub use remote::{RemoteBookie, RemoteConfig};
pub use serve::{ServeConfig, serve_connection, serve_data};
