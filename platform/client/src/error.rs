//! Why something could not be done at a peer.
//!
//! Invariants: an error says who must act by its class; a refusal keeps the peer's code and text; errors are cheap to
//! clone, since everyone who waits on a connection is told the same reason.
//! Must never know: what the caller does next.

use crate::address::Endpoint;
use meridian_types::{Classify, ErrorClass};
use meridian_wire::proto::ServerError;
use std::sync::Arc;

/// Why something could not be done at a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A service URL or a broker's address that is not understood.
    #[error("'{text}' is not a service URL: {rule}")]
    Address {
        /// As given.
        text: String,
        /// What it breaks.
        rule: &'static str,
    },
    /// Credentials, trust or another setting that cannot be used.
    #[error("{what}: {reason}")]
    Setting {
        /// Which one.
        what: String,
        /// Why.
        reason: String,
    },
    /// No connection came about.
    #[error("no connection to {endpoint}: {reason}")]
    Connect {
        /// Where to.
        endpoint: Endpoint,
        /// Why.
        reason: String,
    },
    /// The last attempts failed and the next one is not due yet.
    #[error("the next attempt to connect to {endpoint} is due in {retry_in_ms} ms; the last one: {last}")]
    BackingOff {
        /// Where to.
        endpoint: Endpoint,
        /// When a call may try again.
        retry_in_ms: u64,
        /// Why the last attempt failed or the last connection ended.
        last: Arc<ClientError>,
    },
    /// The peer refused.
    #[error("the peer refused {what}: {text} ({})", .code.as_str_name())]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The protocol's code.
        code: ServerError,
        /// The peer's reason.
        text: String,
    },
    /// The peer does not know how.
    #[error("the peer does not support {0}")]
    Unsupported(&'static str),
    /// A lookup that goes round and round.
    #[error("the lookup of {topic} was redirected {redirects} times")]
    Redirected {
        /// The topic.
        topic: String,
        /// How often.
        redirects: usize,
    },
    /// The connection, or the producer or consumer on it, has ended.
    #[error("ended: {0}")]
    Ended(Arc<str>),
    /// No answer in time.
    #[error("no answer to {what} within {deadline_ms} ms")]
    Late {
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        deadline_ms: u64,
    },
    /// The peer does not keep to the protocol.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// Too much of something waits.
    #[error("{what} are at their limit of {limit}")]
    Crowded {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// An entry that the peer would not take.
    #[error("an entry of {bytes} bytes is above the peer's limit of {limit_bytes} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
}

impl ClientError {
    /// A connection or something on it ended for this reason.
    pub fn ended(reason: impl Into<Arc<str>>) -> Self {
        Self::Ended(reason.into())
    }

    /// A setting that cannot be used.
    pub fn setting(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Setting { what: what.into(), reason: reason.to_string() }
    }

    /// The peer's error command; a code of a later version counts as an unknown error.
    pub(crate) fn refused(what: &'static str, code: i32, text: &str) -> Self {
        let code = ServerError::try_from(code).unwrap_or(ServerError::UnknownError);
        let text = text[..text.floor_char_boundary(meridian_wire::error::MAX_ERROR_TEXT_BYTES)].to_owned();
        Self::Refused { what, code, text }
    }

    /// How long a caller has to wait at least before it tries again; 0 if it may at once.
    pub fn retry_in_ms(&self) -> u64 {
        match self {
            Self::BackingOff { retry_in_ms, .. } => *retry_in_ms,
            _ => 0,
        }
    }

    /// Whether the same call may succeed later without anybody doing anything.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::BackingOff { last, .. } => last.may_pass(),
            _ => matches!(self.class(), ErrorClass::Retry | ErrorClass::Redirect),
        }
    }

    /// The peer's code, if it refused.
    pub fn code(&self) -> Option<ServerError> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::BackingOff { last, .. } => last.code(),
            _ => None,
        }
    }
}

impl Classify for ClientError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Address { .. } | Self::Setting { .. } | Self::Unsupported(_) | Self::TooLarge { .. } => {
                ErrorClass::Caller
            }
            Self::Refused { code, .. } => code.class(),
            Self::Redirected { .. }
            | Self::Connect { .. }
            | Self::BackingOff { .. }
            | Self::Ended(_)
            | Self::Late { .. }
            | Self::Protocol(_)
            | Self::Crowded { .. } => ErrorClass::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_the_code_and_names_who_must_act() {
        let refused = ClientError::refused("a producer", ServerError::ProducerFenced as i32, "fenced");
        assert_eq!((refused.class(), refused.code()), (ErrorClass::Fenced, Some(ServerError::ProducerFenced)));
        assert_eq!(refused.to_string(), "the peer refused a producer: fenced (ProducerFenced)");
        let unknown = ClientError::refused("a producer", 4711, "?");
        assert_eq!((unknown.class(), unknown.code()), (ErrorClass::Retry, Some(ServerError::UnknownError)));
        let endpoint = Endpoint::direct(crate::address::BrokerAddress::parse("pulsar://a:1").unwrap());
        let waiting = ClientError::BackingOff { endpoint, retry_in_ms: 7, last: Arc::new(refused) };
        assert_eq!((waiting.retry_in_ms(), waiting.class()), (7, ErrorClass::Retry));
        assert_eq!(waiting.code(), Some(ServerError::ProducerFenced));
    }
}
