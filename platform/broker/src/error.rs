//! Why the broker refused, in one type for sessions and the admin API.
//!
//! Role: each variant is one answer of the wire (`ServerError`) and one status of the admin API; the text is what a user
//! reads. Lower rooms' errors are carried as they are.
//! Must never know: frames, HTTP.

use crate::schema::SchemaError;
use meridian_managed_ledger::LogError;
use meridian_metadata::MetadataError;
use meridian_ownership::BrokerRecord;
use meridian_policy::quota::Exceeded;
use meridian_registry::RegistryError;
use meridian_topic::{TopicError, TopicErrorKind};
use meridian_types::{Classify, ErrorClass, NameError};
use std::sync::Arc;

/// Why the broker refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BrokerError {
    /// The topic refused.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The topic's log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A schema was refused.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The topic does not exist (404).
    #[error("{0}")]
    TopicNotFound(String),
    /// The tenant or namespace does not exist (404).
    #[error("{0}")]
    NamespaceNotFound(String),
    /// It exists already (409).
    #[error("{0}")]
    AlreadyExists(String),
    /// A policy or rule forbids it (409 or 405).
    #[error("{0}")]
    NotAllowed(String),
    /// A value is outside what is accepted (412).
    #[error("{0}")]
    InvalidValue(String),
    /// A name or a value is too long for where it is kept (412); no client repeats it.
    #[error("{0}")]
    TooLarge(String),
    /// A quota has no room (412).
    #[error(transparent)]
    Quota(#[from] Exceeded),
    /// Clients are connected (412).
    #[error("{0}")]
    Busy(String),
    /// The principal lacks a permission (403).
    #[error("{0}")]
    Denied(String),
    /// The credentials are not accepted (401).
    #[error("{0}")]
    Unauthenticated(String),
    /// Over a limit of concurrent requests; repeat later.
    #[error("too many concurrent {what} (limit {limit})")]
    TooManyRequests {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// Not served here or not now: look up again.
    #[error("{0}")]
    NotReady(String),
    /// Another broker serves the topic.
    #[error("{topic} is not served by this broker but by {}; please redo the lookup", broker.id)]
    Elsewhere {
        /// The topic.
        topic: String,
        /// Who serves it.
        broker: Arc<BrokerRecord>,
    },
    /// It took too long.
    #[error("{what} took longer than {limit_ms} ms")]
    TimedOut {
        /// What took too long.
        what: String,
        /// The limit.
        limit_ms: u64,
    },
}

impl BrokerError {
    /// The kind of answer on the wire, in the topics' words.
    pub fn topic_kind(&self) -> TopicErrorKind {
        match self {
            BrokerError::Topic(error) => error.kind,
            BrokerError::Log(error) => TopicError::from(error.clone()).kind,
            BrokerError::TooLarge(_)
            | BrokerError::Registry(RegistryError::Policy(_))
            | BrokerError::Metadata(MetadataError::TooLarge { .. })
            | BrokerError::Registry(RegistryError::Store(MetadataError::TooLarge { .. })) => TopicErrorKind::TooLarge,
            BrokerError::Metadata(_) | BrokerError::Registry(_) => TopicErrorKind::Metadata,
            BrokerError::Schema(_) => TopicErrorKind::IncompatibleSchema,
            BrokerError::TopicNotFound(_) | BrokerError::NamespaceNotFound(_) => TopicErrorKind::TopicNotFound,
            BrokerError::NotAllowed(_) | BrokerError::Quota(_) => TopicErrorKind::NotAllowed,
            BrokerError::Busy(_) => TopicErrorKind::Busy,
            BrokerError::NotReady(_) | BrokerError::TimedOut { .. } | BrokerError::Elsewhere { .. } => {
                TopicErrorKind::ServiceNotReady
            }
            _ => TopicErrorKind::Unknown,
        }
    }
}

impl Classify for BrokerError {
    fn class(&self) -> ErrorClass {
        match self {
            BrokerError::Topic(error) => error.class(),
            BrokerError::Log(error) => error.class(),
            BrokerError::Metadata(error) => error.class(),
            BrokerError::Registry(error) => error.class(),
            BrokerError::TooManyRequests { .. } | BrokerError::TimedOut { .. } => ErrorClass::Retry,
            BrokerError::NotReady(_) | BrokerError::Elsewhere { .. } => ErrorClass::Redirect,
            _ => ErrorClass::Caller,
        }
    }
}
