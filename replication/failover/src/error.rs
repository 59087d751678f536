//! Why a step of a failover was refused.
//!
//! Must never know: how it is shown.

use meridian_metadata::MetadataError;
use meridian_types::{Classify, ErrorClass};

/// Typed by who must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FailoverError {
    /// The namespace has no active region: all of its regions take publishes.
    #[error("namespace {0} has no active region: set one first")]
    NotManaged(String),
    /// There is no region to switch to.
    #[error("namespace {0} is in one region only: replicate it to another one first")]
    OneRegion(String),
    /// The region is none of the namespace's.
    #[error("region {region} is not one of the namespace's: {known}")]
    UnknownRegion {
        /// As it was given.
        region: String,
        /// The namespace's regions.
        known: String,
    },
    /// Another region asks about a namespace that it has no part in, or that is not there: it is not told which.
    #[error("region {region} has no part in namespace {namespace}")]
    NoPart {
        /// Who asks.
        region: String,
        /// About which.
        namespace: String,
    },
    /// It is active already.
    #[error("region {0} is active already")]
    AlreadyActive(String),
    /// A planned switch is under way.
    #[error("a switch to {to} is under way since {begun_ms} ms since 1970")]
    UnderWay {
        /// Its target.
        to: String,
        /// When it began.
        begun_ms: u64,
    },
    /// A planned switch has to be made where the namespace is active, and that region can't be reached.
    #[error("region {region} can't be reached: {reason}; a forced switch does without it")]
    Unreachable {
        /// The region.
        region: String,
        /// What its link says.
        reason: String,
    },
    /// The region answers, and its copy of the policies does not give this one a part in the namespace, or not yet.
    #[error(
        "region {region} has not heard yet that it shares the namespace: after {waited_ms} ms it still says that {reason}; \
         nothing was switched, try again"
    )]
    NotReady {
        /// The region.
        region: String,
        /// What it says.
        reason: String,
        /// How long it was asked.
        waited_ms: u64,
    },
    /// Draining took too long; the old region is active as before.
    #[error(
        "{entries_left} messages and {acks_left} acknowledgements were not over in {waited_ms} ms: nothing was switched"
    )]
    NotDrained {
        /// Messages that the target had not confirmed.
        entries_left: u64,
        /// Acknowledgements that it had not confirmed.
        acks_left: u64,
        /// How long publishes were held.
        waited_ms: u64,
    },
    /// Another region has moved on.
    #[error("the namespace is at epoch {current} here, the call is of {given}")]
    Stale {
        /// Here.
        current: String,
        /// There.
        given: String,
    },
    /// There is no such tail (any more).
    #[error("{0}")]
    NoTail(String),
    /// The tail was dealt with before.
    #[error("the tail of {0} was replayed or dropped already")]
    TailOver(String),
    /// What hosts the topics refused.
    #[error("{0}")]
    Host(String),
    /// A message of another region can't be read.
    #[error("failover message can't be read: {0}")]
    Unreadable(String),
    /// The metadata store.
    #[error(transparent)]
    Store(#[from] MetadataError),
}

impl Classify for FailoverError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NotManaged(_)
            | Self::OneRegion(_)
            | Self::UnknownRegion { .. }
            | Self::NoPart { .. }
            | Self::AlreadyActive(_)
            | Self::NoTail(_)
            | Self::TailOver(_) => ErrorClass::Caller,
            Self::UnderWay { .. }
            | Self::Unreachable { .. }
            | Self::NotReady { .. }
            | Self::NotDrained { .. }
            | Self::Host(_) => ErrorClass::Retry,
            Self::Stale { .. } => ErrorClass::Fenced,
            Self::Unreadable(_) => ErrorClass::Corrupt,
            Self::Store(error) => error.class(),
        }
    }
}
