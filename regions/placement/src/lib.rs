//! Pure choice of bookies over zones and regions.
//!
//! Must never know: I/O.
#![forbid(unsafe_code)]
