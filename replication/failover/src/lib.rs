//! Who is active: epochs, promotion, fencing, fail-back, the cost report.
//!
//! Role: a namespace may have one *active region*. Which one it is stands in a record with an epoch; the record travels to
//! all regions of the namespace, and the greater epoch wins everywhere. This crate decides what a region may do under a
//! record ([`record`]), how a planned switch proceeds ([`switch`]), what a region does that returns after a forced one
//! ([`returning`]), and what a switch costs ([`cost`]); [`service`] is the shell that stores records and drives the machines.
//! Invariants: F1 an epoch belongs to one region: no two regions are ever active in the same epoch; F2 a region's epoch of a
//! namespace never goes back; F3 a planned switch hands over at one point, the durable write of the old region, and before it
//! everything stored there was confirmed by the new one; F4 a forced switch loses nothing silently: what the old region had
//! not sent is kept as a tail with a label until somebody replays or drops it.
//! Failure: [`FailoverError`] by who must act. A switch that can't drain in time ends where it began.
//! Must never know: sockets, frames, how topics are hosted.
#![forbid(unsafe_code)]

pub mod cost;
mod error;
pub mod keys;
pub mod record;
pub mod returning;
pub mod service;
pub mod switch;

pub use cost::{CostReport, Costs, SubscriptionCost, TopicCost};
pub use error::FailoverError;
pub use record::{ActiveRecord, Epoch, LinkRule, NamespaceState, Phase, PublishRule};
pub use service::{FailoverCall, FailoverReply, FailoverService, Host, PeerCalls};
