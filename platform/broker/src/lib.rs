//! Sessions and hosted topics: frames in, the door asked, the topic called, frames out.
//!
//! Role: [`BrokerService`] hosts topics and answers everything that the admin API asks; a session speaks the binary
//! protocol with one client and calls the service.
//! Invariants: B1 at most one handle of a topic is open at a time; B2 a topic is deleted or unloaded only after its
//! handle has closed; B3 every queue of a connection is bounded by a named limit of [`config::SessionLimits`].
//! Failure: every refusal is a [`BrokerError`]; a connection that breaks the protocol is closed, never the process.
//! Must never know: bookies, the kind of metadata store, files, HTTP.
#![forbid(unsafe_code)]

pub mod access;
mod colleagues;
pub mod config;
pub mod error;
pub mod factory;
pub mod failover;
pub mod listener;
pub mod live;
pub mod metrics;
pub mod quotas;
pub mod replication;
pub mod schema;
pub mod service;
pub mod session;
pub mod shared_objects;
pub mod storage;
mod time;
mod topic_list;

pub use access::Access;
pub use colleagues::{WITHIN_PATH, WITHIN_SCHEME};
pub use config::BrokerConfig;
pub use error::BrokerError;
pub use factory::{TopicFactory, TopicSettings};
pub use listener::Listener;
pub use service::{
    AttachedLink, BrokerParts, BrokerService, Create, ListDomain, LookupAnswer, TopicEvent, WithinError,
};
pub use storage::{CheckIntervals, StorageFactory, StorageOptions};
