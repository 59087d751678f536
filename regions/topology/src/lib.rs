//! Regions, peers, endpoints, credentials and trust: the registry of regions, as values and pure decisions.
//!
//! Must never know: ledgers.
#![forbid(unsafe_code)]
