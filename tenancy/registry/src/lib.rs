//! Tenants, namespaces, clusters, policies and partitioned topics: stored, cached, watched, resolved.
//!
//! Role: reads are answered at once from memory; writes are compare-and-set on the metadata store and end when they can
//! be read here; whoever has to act on a change is told its place.
//! Invariants: R1 the cache is written by the watch alone, in the order of the store; R2 a write that answers `Ok` is seen
//! by every later read here; R3 a namespace has a tenant, a partitioned topic a namespace that is not being deleted,
//! also when both are changed at once; R4 a write whose outcome is unknown is read back before it is repeated; R5 what
//! regions share carries a version ([`meridian_topology::ObjectVersion`]), and of two versions the greater one stays,
//! whatever the order in which they come; R6 what is deleted leaves a tombstone in the same transaction, until every
//! region that shared it is known to have it; R7 what names no other region never leaves this one.
//! Failure: [`RegistryError`]. While the store can't be reached, reads go on from memory and writes fail; a record that
//! can't be read is reported and left out, so that what hangs on it is refused.
//! Must never know: sessions, frames, topics' content.
#![forbid(unsafe_code)]

mod bootstrap;
mod cache;
mod declared;
mod headers;
mod keys;
mod learn;
mod merge;
mod namespaces;
mod packed;
mod record;
mod registry;
mod remote;
mod schemas;
mod shared;
mod tenants;
mod topics;
mod words;
mod write;

pub use declared::Declared;
pub use registry::{Changed, Registry};
pub use remote::Deletions;
pub use schemas::{SharedSchema, SharedSchemas};
pub use shared::SharingSettings;

use meridian_metadata::MetadataError;
use meridian_policy::PolicyError;
use meridian_types::{Classify, ErrorClass};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is no such thing.
    #[error("{kind} {name} does not exist")]
    NotFound {
        /// `cluster`, `tenant`, `namespace`, `topic policies` or `partitioned topic`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is one already.
    #[error("{kind} {name} already exists")]
    Exists {
        /// As of [`RegistryError::NotFound`].
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Others hang on it.
    #[error("{kind} {name} is in use: {by}")]
    InUse {
        /// As of [`RegistryError::NotFound`].
        kind: &'static str,
        /// Its name.
        name: String,
        /// What hangs on it.
        by: String,
    },
    /// The value breaks a rule.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Too many others changed the same thing at once.
    #[error("{kind} {name} is being changed by others")]
    Busy {
        /// As of [`RegistryError::NotFound`].
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It was written, but this process did not see it in time.
    #[error("the change was stored, but is not in force here yet")]
    NotVisible,
    /// The metadata store.
    #[error(transparent)]
    Store(#[from] MetadataError),
}

impl Classify for RegistryError {
    fn class(&self) -> ErrorClass {
        match self {
            RegistryError::NotFound { .. }
            | RegistryError::Exists { .. }
            | RegistryError::InUse { .. }
            | RegistryError::Policy(_) => ErrorClass::Caller,
            RegistryError::Busy { .. } | RegistryError::NotVisible => ErrorClass::Retry,
            RegistryError::Store(error) => error.class(),
        }
    }
}
