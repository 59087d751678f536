//! Who is active: epochs, promotion, fencing, fail-back, the cost report.
//!
//! Must never know: sockets.
#![forbid(unsafe_code)]
