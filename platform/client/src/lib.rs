//! A small Pulsar client: connect, look up, produce, consume, reconnect (for replicators, tools, tests).
//!
//! Must never know: brokers' insides.
#![forbid(unsafe_code)]
