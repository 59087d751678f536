//! Quotas stored, watched, shared among brokers, and what was used.
//!
//! Role: [`QuotaBook`] holds the limits of all places in memory and writes changes; [`lease`] divides one limit among
//! brokers, [`Leases`] keeps those divisions in the metadata store; [`stored`] knows what all topics have stored;
//! [`usage`] counts what tenants used, by the hour.
//! Invariants: N1 the book is written by the watch alone, and a write that answers `Ok` is seen by every later read here;
//! N2 what brokers hold of a limit never adds up to more than the limit, whoever crashes; N3 a lowered limit binds at
//! once here, and at the others by their next renewal.
//! Failure: [`QuotaError`]; while the store can't be reached, limits hold from memory and leases shrink to a fair share.
//! Must never know: sessions, topics, who may change a quota.
#![forbid(unsafe_code)]

mod book;
mod keys;
pub mod lease;
mod leases;
mod record;
pub mod stored;
pub mod usage;

pub use book::QuotaBook;
pub use leases::{LeaseConfig, Leases, Need};

use meridian_metadata::MetadataError;
use meridian_policy::PolicyError;
use meridian_types::{Classify, ErrorClass};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The value breaks a rule.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Others change the same thing all the time.
    #[error("the quota of {0} is being changed by others")]
    Busy(String),
    /// It was written, but this process did not see it in time.
    #[error("the change was stored, but is not in force here yet")]
    NotVisible,
    /// The metadata store.
    #[error(transparent)]
    Store(#[from] MetadataError),
}

impl Classify for QuotaError {
    fn class(&self) -> ErrorClass {
        match self {
            QuotaError::Policy(_) => ErrorClass::Caller,
            QuotaError::Busy(_) | QuotaError::NotVisible => ErrorClass::Retry,
            QuotaError::Store(error) => error.class(),
        }
    }
}
