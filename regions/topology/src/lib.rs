//! Regions, their peers, and the order of what regions share: values and pure decisions.
//!
//! Role: from the cluster entries to [`Peer`]s that can be dialled ([`Regions`], [`RegionSpec`]); which regions a
//! namespace names; where a storage node stands ([`Location`]); the clock and the versions by which objects that
//! regions share converge ([`Clock`], [`ObjectVersion`]).
//! Invariants: G1 two regions never have one [`meridian_types::RegionId`]; G2 stamps of one clock only grow, and a stamp
//! too far in the future is refused, never taken over; G3 versions of an object are totally ordered, so that taking the
//! greater one converges in any order.
//! Failure: [`TopologyError`] names the region and the field; [`ClockError`] the region and how far it is ahead.
//! Must never know: I/O, time of day, ledgers, policies.
#![forbid(unsafe_code)]

mod endpoint;
mod location;
mod object;
mod region;
mod regions;
mod stamp;

pub use endpoint::{Endpoint, HostPort, LinkAddress};
pub use location::Location;
pub use object::{Applied, BUCKETS, Digests, Object, ObjectVersion, SharedChange, Summary, bucket_of};
pub use region::{Credentials, Peer, RegionSpec, Trust};
pub use regions::{Named, Regions};
pub use stamp::{Clock, ClockError, Stamp};

use meridian_types::{Classify, ErrorClass};

/// Why a region can't be registered or reached as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A field does not hold what it must.
    #[error("region {region}: {field}={value}: {rule}")]
    Field {
        /// The region.
        region: String,
        /// The field, as it is called in a cluster entry.
        field: &'static str,
        /// What it holds; never a secret.
        value: String,
        /// What it must hold.
        rule: &'static str,
    },
    /// Two names have the same id; one of them must be changed.
    #[error("region {region} has the same id as region {other} (CRC32C of the name): choose another name")]
    SameId {
        /// The region.
        region: String,
        /// The one that is there already.
        other: String,
    },
    /// There is no such region.
    #[error("region {0} is not registered")]
    Unknown(String),
}

impl Classify for TopologyError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}
