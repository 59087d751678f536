//! Why a request was refused: a status and a reason, as Pulsar's tools expect them.
//!
//! Role: the one place where errors of the rooms below become statuses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use meridian_broker::BrokerError;
use meridian_broker::schema::SchemaError;
use meridian_policy::PolicyError;
use meridian_registry::RegistryError;
use meridian_topic::{TopicError, TopicErrorKind};
use meridian_types::{Classify, ErrorClass, NameError};

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub struct AdminError {
    /// The status.
    pub status: StatusCode,
    /// What the user reads.
    pub reason: String,
    /// Who answers instead, for a redirect: the plain and the TLS address of its web service.
    pub elsewhere: Option<(Option<String>, Option<String>)>,
}

impl AdminError {
    /// A refusal.
    pub fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), elsewhere: None }
    }

    /// 307 to the same path at another broker, by the plain and the TLS address of its web service.
    pub fn elsewhere(reason: impl Into<String>, web_url: Option<String>, web_url_tls: Option<String>) -> Self {
        Self { elsewhere: Some((web_url, web_url_tls)), ..Self::new(StatusCode::TEMPORARY_REDIRECT, reason) }
    }

    /// 404.
    pub fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, reason)
    }

    /// 412: a value that can't be.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, reason)
    }

    /// 400: a body that can't be read.
    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    /// 409.
    pub fn conflict(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, reason)
    }

    /// 405: not for this kind of topic, or switched off.
    pub fn not_allowed(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, reason)
    }

    /// What storage and metadata say, by who must act on it.
    pub fn by_class(error: &(impl Classify + std::fmt::Display)) -> Self {
        by_class(error)
    }

    /// 403.
    pub fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason)
    }
}

impl Classify for AdminError {
    fn class(&self) -> ErrorClass {
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                ErrorClass::Retry
            }
            StatusCode::INTERNAL_SERVER_ERROR => ErrorClass::Corrupt,
            _ => ErrorClass::Caller,
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "reason": bounded(&self.reason) }).to_string();
        let mut response = (self.status, body).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(elsewhere) = self.elsewhere {
            response.extensions_mut().insert(crate::elsewhere::Elsewhere(elsewhere));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
        }
        response
    }
}

/// Characters of a reason at most: what was sent is not sent back as a whole.
const MAX_REASON: usize = 1000;

/// A reason without its middle, if it is too long.
fn bounded(reason: &str) -> std::borrow::Cow<'_, str> {
    match reason.char_indices().nth(MAX_REASON) {
        None => reason.into(),
        Some(_) => {
            let (head, tail): (String, Vec<char>) =
                (reason.chars().take(MAX_REASON / 2).collect(), reason.chars().rev().take(MAX_REASON / 2).collect());
            format!("{head} … {}", tail.into_iter().rev().collect::<String>()).into()
        }
    }
}

/// What storage and metadata say, by who must act on it.
fn by_class(error: &(impl Classify + std::fmt::Display)) -> AdminError {
    let status = match error.class() {
        ErrorClass::Retry | ErrorClass::Redirect | ErrorClass::Fenced => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::Caller => StatusCode::PRECONDITION_FAILED,
        ErrorClass::Corrupt => StatusCode::INTERNAL_SERVER_ERROR,
    };
    AdminError::new(status, error.to_string())
}

impl From<BrokerError> for AdminError {
    fn from(error: BrokerError) -> Self {
        let text = error.to_string();
        match error {
            BrokerError::Topic(error) => error.into(),
            BrokerError::Log(error) => TopicError::from(error).into(),
            BrokerError::Registry(error) => error.into(),
            BrokerError::Schema(error) => error.into(),
            BrokerError::Name(error) => error.into(),
            BrokerError::TopicNotFound(text) if text.is_empty() => Self::not_found("Topic not found"),
            BrokerError::TopicNotFound(_) | BrokerError::NamespaceNotFound(_) => Self::not_found(text),
            BrokerError::AlreadyExists(_) | BrokerError::NotAllowed(_) => Self::conflict(text),
            BrokerError::InvalidValue(_) | BrokerError::TooLarge(_) | BrokerError::Busy(_) | BrokerError::Quota(_) => {
                Self::invalid(text)
            }
            BrokerError::Denied(_) => Self::forbidden(text),
            BrokerError::Unauthenticated(_) => Self::new(StatusCode::UNAUTHORIZED, text),
            BrokerError::TooManyRequests { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, text),
            BrokerError::NotReady(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, text),
            BrokerError::TimedOut { .. } => Self::new(StatusCode::GATEWAY_TIMEOUT, text),
            BrokerError::Elsewhere { broker, .. } => {
                Self::elsewhere(text, broker.web_url.clone(), broker.web_url_tls.clone())
            }
            BrokerError::Metadata(error) => by_class(&error),
        }
    }
}

impl From<TopicError> for AdminError {
    fn from(error: TopicError) -> Self {
        let status = match error.kind {
            TopicErrorKind::TopicNotFound | TopicErrorKind::SubscriptionNotFound | TopicErrorKind::ConsumerNotFound => {
                StatusCode::NOT_FOUND
            }
            TopicErrorKind::NotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            TopicErrorKind::IncompatibleSchema => StatusCode::CONFLICT,
            // Storage and metadata that do not answer are not broken: the call can be made again.
            TopicErrorKind::ServiceNotReady
            | TopicErrorKind::ProducerFenced
            | TopicErrorKind::Metadata
            | TopicErrorKind::Persistence => StatusCode::SERVICE_UNAVAILABLE,
            TopicErrorKind::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::PRECONDITION_FAILED,
        };
        Self::new(status, error.message)
    }
}

impl From<SchemaError> for AdminError {
    fn from(error: SchemaError) -> Self {
        let text = error.to_string();
        match error {
            SchemaError::Incompatible(_) => Self::conflict(text),
            SchemaError::Invalid(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, text),
            SchemaError::Corrupt(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, text),
            SchemaError::Metadata(error) => by_class(&error),
        }
    }
}

impl From<NameError> for AdminError {
    fn from(error: NameError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<PolicyError> for AdminError {
    fn from(error: PolicyError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<RegistryError> for AdminError {
    fn from(error: RegistryError) -> Self {
        match &error {
            RegistryError::NotFound { kind: "tenant", .. } => Self::not_found("Tenant does not exist"),
            RegistryError::NotFound { kind: "namespace", .. } => Self::not_found("Namespace does not exist"),
            RegistryError::NotFound { kind: "cluster", .. } => Self::not_found("Cluster does not exist"),
            RegistryError::NotFound { kind: "partitioned topic", name } => {
                Self::not_found(format!("Partitioned Topic not found: {name}"))
            }
            RegistryError::NotFound { .. } => Self::not_found(error.to_string()),
            // The missing "s" is Pulsar's and looked for.
            RegistryError::Exists { kind: "tenant", .. } => Self::conflict("Tenant already exist"),
            RegistryError::Exists { kind: "namespace", .. } => Self::conflict("Namespace already exists"),
            RegistryError::Exists { kind: "cluster", .. } => Self::conflict("Cluster already exists"),
            RegistryError::Exists { .. } => Self::conflict("This topic already exists"),
            RegistryError::InUse { kind: "cluster", .. } => Self::invalid(format!("Cluster not empty: {error}")),
            RegistryError::InUse { .. } => Self::conflict(error.to_string()),
            RegistryError::Policy(error) => Self::invalid(error.to_string()),
            RegistryError::Busy { .. } => Self::conflict(format!("Concurrent modification: {error}")),
            RegistryError::NotVisible | RegistryError::Store(_) => by_class(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_keep_their_beginning_and_end() {
        assert_eq!(bounded("short"), "short");
        let long = bounded(&format!("retention: \"{}\", expected an object", "ä".repeat(100_000))).into_owned();
        assert!(long.starts_with("retention: ") && long.ends_with("expected an object"), "{long}");
        assert!(long.chars().count() < 1100);
    }

    #[test]
    fn statuses_and_texts_that_tools_look_for() {
        let exists = RegistryError::Exists { kind: "tenant", name: "a".into() };
        assert_eq!(AdminError::from(exists), AdminError::conflict("Tenant already exist"));
        let missing = RegistryError::NotFound { kind: "namespace", name: "a/b".into() };
        assert_eq!(AdminError::from(missing), AdminError::not_found("Namespace does not exist"));
        let busy = TopicError::new(TopicErrorKind::Busy, "Topic has active producers/subscriptions");
        assert_eq!(AdminError::from(busy).status, StatusCode::PRECONDITION_FAILED);
        assert_eq!(AdminError::from(BrokerError::TopicNotFound(String::new())).reason, "Topic not found");
    }
}
