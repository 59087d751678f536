//! The client against a broker whose every word is in the test.
#![allow(clippy::unwrap_used)]

mod connecting;
mod linking;
mod looking_up;
mod messages;
mod server;
mod silence;
mod tls;
