//! The Pulsar binary protocol as bytes, both ways.
//!
//! Role: frames, commands, message metadata, batches, checksums, compression and routing keys. Everything here is a pure
//! function over byte buffers; sockets, sessions and topics live above.
//!
//! Invariants:
//! - W1 No decoder panics on any input, and none allocates more than a small multiple of the bytes that it was given
//!   (decompression: of the limit that the caller named).
//! - W2 A frame is refused by its size fields before it is buffered ([`frame::FrameLimits`]).
//! - W3 A client's payload is never re-encoded: what stands behind the command is handed on as the same bytes.
//! - W4 The fast encoders and scanners agree with the generated ones (tested by properties and by captured traffic).
//!
//! Failure: typed errors with the reason as text. A [`frame::FrameError`] ends the connection; the others end one message.
//! Must never know: sockets, topics, ledgers, policies.
#![forbid(unsafe_code)]

pub mod batch;
pub mod command;
pub mod compression;
pub mod encode;
pub mod error;
mod field;
pub mod frame;
pub mod key;
pub mod metadata;
pub mod payload;
mod redact;
pub mod replicate;
pub mod send;

/// The generated messages and enums of `proto/pulsar_api.proto`.
///
/// Getters of optional fields answer the protocol's default. The getter of an enum answers the default also for a number
/// that this version does not know; compare the field itself where that matters.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/meridian.wire.rs"));
}

pub use field::FieldError;
pub use prost;
