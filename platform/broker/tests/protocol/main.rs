//! Sessions against topics that only record: the rules of the protocol, one by one; and against real topics over memory.

#![allow(clippy::unwrap_used)]

mod client;
mod clients;
mod end_to_end;
mod fake;
mod guarded;
mod limits;
mod owning;
mod producing;
mod rates;
mod subscribing;
