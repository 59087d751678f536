//! The region-to-region control channel (gRPC over mutual TLS): policy sync, acknowledgement state, health.
//!
//! Must never know: topics' insides.
#![forbid(unsafe_code)]
