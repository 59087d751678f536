//! Sessions against topics that only record: the rules of the protocol, one by one.

mod client;
mod clients;
mod fake;
mod limits;
mod producing;
mod subscribing;
