//! Why a call over the link, or its set-up, failed.

use meridian_types::{Classify, ErrorClass};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// There is no such peer.
    #[error("region {0} is no peer of this one")]
    NoPeer(String),
    /// The peer can't be reached now.
    #[error("the region link to region {region} is not there: {why}")]
    NotConnected {
        /// The region.
        region: String,
        /// Its state.
        why: String,
    },
    /// The peer did not answer in time: it may have done what was asked, or not.
    #[error("region {region} did not answer within {limit_ms} ms")]
    TimedOut {
        /// The region.
        region: String,
        /// The limit.
        limit_ms: u64,
    },
    /// The peer answered that it may work later.
    #[error("region {region}: {reason}")]
    Later {
        /// The region.
        region: String,
        /// Its reason.
        reason: String,
    },
    /// The peer refused.
    #[error("region {region} refused: {reason}")]
    Refused {
        /// The region.
        region: String,
        /// Its reason.
        reason: String,
    },
    /// A setting does not hold what it must.
    #[error("{setting}: {reason}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Classify for LinkError {
    fn class(&self) -> ErrorClass {
        match self {
            LinkError::NotConnected { .. } | LinkError::TimedOut { .. } | LinkError::Later { .. } => ErrorClass::Retry,
            LinkError::NoPeer(_) | LinkError::Refused { .. } | LinkError::Config { .. } => ErrorClass::Caller,
        }
    }
}

impl LinkError {
    /// From a status of gRPC.
    pub(crate) fn of_status(region: &str, status: &tonic::Status) -> Self {
        use tonic::Code;
        let (region, reason) = (region.to_owned(), status.message().to_owned());
        match status.code() {
            Code::Unavailable | Code::Aborted | Code::ResourceExhausted | Code::Cancelled | Code::Unknown => {
                LinkError::Later { region, reason }
            }
            _ => LinkError::Refused { region, reason },
        }
    }
}
