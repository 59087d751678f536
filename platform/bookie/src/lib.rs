//! bookie
