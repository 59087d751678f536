//! Registries of several regions over memory stores, joined by the region link over real sockets.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod converging;
mod region;
