//! The state of a subscription across regions: snapshots (PIP-33) and exact acknowledgements, as pure machines.
//!
//! Must never know: sockets.
#![forbid(unsafe_code)]
