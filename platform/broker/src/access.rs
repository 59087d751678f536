//! Who a connection is and what it may do, asked of the tenancy rooms in the words of sessions.
//!
//! Role: the one place of the broker that calls identity and door.
//! Must never know: frames, topics.

use crate::error::BrokerError;
use meridian_door::{Action, Caller, Door, Scope};
use meridian_identity::{Identity, IdentityError};
use meridian_types::{NamespaceName, TopicName};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// Who a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The role; `None` while authentication is off.
    pub role: Option<String>,
    /// How it was proven.
    pub method: String,
    /// Role of the client behind a proxy.
    pub original: Option<String>,
    /// When the credentials end, ms since 1970.
    pub expires_ms: Option<u64>,
}

impl Principal {
    /// A connection that has not logged in, or any connection while authentication is off.
    pub fn nobody() -> Self {
        Self { role: None, method: "none".to_owned(), original: None, expires_ms: None }
    }

    /// The role that acts: the client's behind a proxy.
    pub fn acting(&self) -> Option<&str> {
        self.original.as_deref().or(self.role.as_deref())
    }

    fn caller(&self) -> Caller<'_> {
        Caller { role: self.role.as_deref(), original_role: self.original.as_deref() }
    }
}

/// What a proxy says of the client behind it.
#[derive(Clone, Default)]
pub struct Original {
    /// Its role.
    pub role: Option<String>,
    /// How its credentials are to be checked.
    pub method: Option<String>,
    /// Its credentials, if the proxy forwards them.
    pub data: Option<Vec<u8>>,
}

/// Why credentials were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// Those of the connection.
    #[error(transparent)]
    Own(#[from] IdentityError),
    /// Those of the client behind a proxy.
    #[error("original credentials: {0}")]
    Original(IdentityError),
    /// The proxy says one role, the client's credentials another.
    #[error("the original principal is not the role of the original credentials")]
    Mismatch,
    /// They are required and the proxy forwards none.
    #[error("the proxy forwards no original credentials, which authenticateOriginalAuthData requires")]
    Missing,
}

impl LoginError {
    /// What the client is told. Who holds wrong credentials learns nothing; a proxy learns what to change.
    pub fn told(&self) -> String {
        match self {
            LoginError::Own(_) | LoginError::Original(_) => "Failed to authenticate".to_owned(),
            LoginError::Mismatch | LoginError::Missing => format!("Failed to authenticate: {self}"),
        }
    }
}

/// What a session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish<'a> {
    /// To find a topic.
    Lookup(&'a TopicName),
    /// To send.
    Produce(&'a TopicName),
    /// To receive by a subscription.
    Consume(&'a TopicName, &'a str),
    /// To list topics.
    List(&'a NamespaceName),
    /// To send what was sent in another region.
    Replicate(&'a TopicName),
}

/// The tenancy rooms, as far as this broker was given them.
#[derive(Clone)]
pub struct Access {
    /// Checks credentials; `None` = authentication is off.
    pub identity: Option<Arc<Identity>>,
    /// Decides who may do what.
    pub door: Arc<Door>,
}

impl Access {
    /// Checks credentials, and those of the client behind a proxy if they are forwarded.
    ///
    /// # Errors
    /// [`LoginError`] if they are not accepted.
    pub fn authenticate(
        &self,
        method: &str,
        data: &[u8],
        certificates: Option<&[CertificateDer<'static>]>,
        original: Original,
    ) -> Result<Principal, LoginError> {
        let Some(identity) = &self.identity else { return Ok(Principal::nobody()) };
        let principal = identity.authenticate(method, data, certificates)?;
        let speaks_for_other = self.door.is_proxy(&principal.role);
        let (original, original_expires_ms) = self.original(identity, original, speaks_for_other)?;
        Ok(Principal {
            role: Some(principal.role),
            method: method.to_owned(),
            original,
            expires_ms: [principal.expires_ms, original_expires_ms].into_iter().flatten().min(),
        })
    }

    /// The client's role behind a proxy, and when its credentials end.
    fn original(
        &self,
        identity: &Identity,
        original: Original,
        is_proxy: bool,
    ) -> Result<(Option<String>, Option<u64>), LoginError> {
        let said = original.role.filter(|role| !role.is_empty());
        let Some(data) = original.data.filter(|data| !data.is_empty()) else {
            let missing = is_proxy && self.door.requires_original_credentials();
            return if missing { Err(LoginError::Missing) } else { Ok((said, None)) };
        };
        let method = original.method.unwrap_or_default();
        if !identity.offers(&method) || method == "tls" {
            // The anonymous role is for who shows nothing; a certificate does not pass through a proxy.
            let method = method.chars().take(64).collect();
            return Err(LoginError::Original(IdentityError::MethodNotOffered(method)));
        }
        let proven = identity.authenticate(&method, &data, None).map_err(LoginError::Original)?;
        match said {
            Some(said) if said != proven.role => Err(LoginError::Mismatch),
            _ => Ok((Some(proven.role), proven.expires_ms)),
        }
    }

    /// Whether proxy and client roles fit together.
    ///
    /// # Errors
    /// [`BrokerError::Denied`].
    pub fn check_proxy(&self, principal: &Principal, says_proxy: bool) -> Result<(), BrokerError> {
        self.door.admit(principal.caller()).map_err(|denied| BrokerError::Denied(denied.reason))?;
        let is_proxy = principal.role.as_deref().is_some_and(|role| self.door.is_proxy(role));
        if says_proxy && !is_proxy && self.door.authorization_enabled() {
            let text = "Must not set proxyVersion without connecting as a ProxyRole.";
            return Err(BrokerError::Denied(text.to_owned()));
        }
        Ok(())
    }

    /// Whether a connection may do what it wishes.
    ///
    /// # Errors
    /// [`BrokerError::Denied`].
    pub fn check(&self, principal: &Principal, wish: Wish<'_>) -> Result<(), BrokerError> {
        if let Wish::Replicate(_) = wish {
            let admitted = self.door.admit_replicator(principal.caller());
            admitted
                .map_err(|denied| BrokerError::Denied(format!("Client is not authorized to Replicate: {denied}")))?;
        }
        let (action, scope, text) = match wish {
            Wish::Lookup(topic) => (Action::Lookup, Scope::Topic(topic), "Lookup"),
            Wish::Produce(topic) | Wish::Replicate(topic) => (Action::Produce, Scope::Topic(topic), "Produce"),
            Wish::Consume(topic, name) => (Action::Consume, Scope::Subscription(topic, name), "Consume"),
            Wish::List(namespace) => (Action::Lookup, Scope::Namespace(namespace), "GetTopicsOfNamespace"),
        };
        self.door
            .authorize(principal.caller(), action, &scope)
            .map_err(|denied| BrokerError::Denied(format!("Client is not authorized to {text}: {}", denied.reason)))
    }
}
