//! Which broker serves what: bundles of topics, owned by lease with an epoch.
//!
//! Role: namespaces are cut into hash ranges (bundles); each has at most one owner, a broker's life, written by
//! compare-and-set. Pure parts ([`bundles`], [`lease`], [`table`], [`assign`], [`isolation`], [`shed`], [`resize`]) decide; a
//! thin shell ([`region`]) talks to the metadata store and to the broker that hosts the topics.
//! Invariants: O1 epochs of a bundle rise with every change of its owner, over splits and merges too; O2 a record names an
//! owner only together with a check that this very life is registered, and replaces another living one only by a move; O3 a
//! broker serves only while its lease is in force, and stops before anybody can take its bundles; O4 every change of
//! ownership is one transaction, so that no step of it can be left half done; what follows from it (closing topics, telling
//! clients) is derived from the records again and again until it is so.
//! Failure: [`OwnershipError`]; whoever is refused looks up again.
//! Must never know: topics' insides, frames, policies but through [`Namespaces`].
#![forbid(unsafe_code)]

pub mod api;
pub mod assign;
pub mod bundles;
pub mod everything;
pub mod isolation;
pub mod lease;
pub mod machine;

pub mod records;
pub mod region;
pub mod resize;
pub mod shed;
pub mod table;

pub use api::{BoxFuture, Host, Namespaces, Ownership, OwnershipError, Place, TopicLoad};
pub use bundles::{BundleError, BundleRange, Bundles, topic_hash};
pub use everything::Everything;
pub use lease::{LeaseTimes, StopReason};
pub use records::{BrokerRecord, BundleFigures, BundleId, BundleLoad, ListenerRecord, LoadRecord};
pub use region::{RegionConfig, RegionOwnership};
