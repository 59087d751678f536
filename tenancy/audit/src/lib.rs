//! Who changed what: records of administrative changes, kept in a file and handed to a topic.
//!
//! Role: a place in a bounded queue is taken before a change begins ([`AuditLog::reserve`]), the record is put there when
//! it ends, and one task writes what is there, in order, first to the file, then to the topic; without a file to the topic
//! alone.
//! Invariants: U1 without a place there is no change: what is not recorded does not happen; U2 a place ends in exactly one
//! record, also when its request is given up half-way; U3 records of one process carry growing numbers, so that a gap is
//! seen; U4 no secret stands in a record ([`redact`]); U5 a record leaves the queue only once the file holds it;
//! without a file, once it waits for the topic among as many, which it leaves only once the topic holds it.
//! Failure: while the file can't be written, the queue fills and changes are refused ([`AuditFull`]); a topic that does not
//! take records is tried for a while, then passed over and counted: the file has them. Without a file it is waited for, until
//! the process ends.
//! Must never know: what a change means, who may do it.
#![forbid(unsafe_code)]

mod file;
mod log;
mod metrics;
pub mod record;
pub mod redact;

pub use log::{AuditConfig, AuditFull, AuditLog, AuditTopic, BoxFuture, Place};
pub use record::{Outcome, Record};
