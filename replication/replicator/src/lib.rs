//! One link of a topic to a remote region.
//!
//! Must never know: sessions, policies.
#![forbid(unsafe_code)]
