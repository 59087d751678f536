//! From credentials to a principal: tokens, passwords, client certificates.
//!
//! Role: [`Identity`] is built once from configuration and asked once per connection (and per HTTP request).
//! Invariants: I1 no credential and no part of one stands in an error, a log line or a `Debug` text; I2 a method that is
//! not configured never yields a role other than the anonymous one; I3 a password or token file that can't be read any
//! more keeps the last good state and says so.
//! Failure: [`IdentityError`]; the wire and HTTP show it as "Failed to authenticate".
//! Must never know: policies, tenants, sockets.
#![forbid(unsafe_code)]

mod apr1;
mod basic;
mod https;
mod jwks;
mod old_certificates;
pub mod source;
pub mod tls;
pub mod token;
mod watched;

pub use token::TokenConfig;

use meridian_types::{Classify, ErrorClass};
use rustls_pki_types::CertificateDer;
use std::time::{SystemTime, UNIX_EPOCH};
use tls::RoleField;

/// Who a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The role that grants are given to.
    pub role: String,
    /// When the credential ends, ms since 1970; `None` = it does not.
    pub expires_ms: Option<u64>,
}

/// Why credentials were refused, or configuration can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// There is no provider for the method and no anonymous role.
    #[error("authentication method '{0}' is not offered and there is no anonymous role")]
    MethodNotOffered(String),
    /// The token is not valid: malformed, wrong signature, expired, wrong audience, no role.
    #[error("token refused: {0}")]
    Token(String),
    /// Name and password do not match.
    #[error("unknown user or wrong password")]
    Password,
    /// No certificate, or one without a common name.
    #[error("client certificate refused: {0}")]
    Certificate(&'static str),
    /// A key, password or certificate file can't be used.
    #[error("{setting}: {reason}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Classify for IdentityError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

/// Which ways to authenticate there are.
#[derive(Clone, Default)]
pub struct IdentityConfig {
    /// `token`, `basic`, `tls` or Pulsar's class names; anything else is refused.
    pub providers: Vec<String>,
    /// Role of who shows nothing or uses a method that is not offered.
    pub anonymous_role: Option<String>,
    /// Tokens.
    pub token: TokenConfig,
    /// Password file or data.
    pub basic_auth_conf: String,
    /// Fields of a client's certificate that may hold its role, in this order; none = the common name.
    pub certificate_role: Vec<RoleField>,
}

/// Authenticates.
pub struct Identity {
    anonymous_role: Option<String>,
    token: Option<token::Tokens>,
    basic: Option<basic::Passwords>,
    tls: bool,
    certificate_role: Vec<RoleField>,
}

impl Identity {
    /// Reads keys and password files.
    ///
    /// # Errors
    /// [`IdentityError::Config`] for an unknown provider or a file that can't be used.
    pub fn new(config: &IdentityConfig) -> Result<Self, IdentityError> {
        let certificate_role = match config.certificate_role.as_slice() {
            [] => vec![RoleField::CommonName],
            named => named.to_vec(),
        };
        let anonymous_role = config.anonymous_role.clone();
        let mut this = Self { anonymous_role, token: None, basic: None, tls: false, certificate_role };
        for provider in &config.providers {
            match provider_method(provider) {
                Some("token") => this.token = Some(token::Tokens::new(&config.token)?),
                Some("basic") => this.basic = Some(basic::Passwords::new(&config.basic_auth_conf)?),
                Some(_) => this.tls = true,
                None => {
                    return Err(IdentityError::Config {
                        setting: "authenticationProviders",
                        reason: format!("'{provider}' is not offered; expected token, basic or tls"),
                    });
                }
            }
        }
        Ok(this)
    }

    /// The role of who shows no credentials, if there is one.
    pub fn anonymous_role(&self) -> Option<&str> {
        self.anonymous_role.as_deref()
    }

    /// Turns credentials into a principal. `method` is the wire's method name (`none` or empty = no credentials).
    ///
    /// # Errors
    /// [`IdentityError`] if the method is offered and the credentials are wrong, or if it is not offered and there is no
    /// anonymous role (I2).
    pub fn authenticate(
        &self,
        method: &str,
        data: &[u8],
        tls_chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<Principal, IdentityError> {
        match (method, &self.token, &self.basic) {
            ("token", Some(tokens), _) => tokens.authenticate(data),
            ("basic", _, Some(passwords)) => passwords.authenticate(data),
            ("tls", _, _) if self.tls => {
                let chain = tls_chain.unwrap_or_default();
                let shown = chain.first().ok_or(IdentityError::Certificate("none was shown"))?;
                let (role, until_ms) = tls::role(shown, &self.certificate_role, now_ms())?;
                Ok(Principal { role, expires_ms: Some(until_ms) })
            }
            _ => match &self.anonymous_role {
                Some(role) => Ok(Principal { role: role.clone(), expires_ms: None }),
                None => Err(IdentityError::MethodNotOffered(method.chars().take(64).collect())),
            },
        }
    }

    /// Times that keys could not be read or fetched again.
    pub fn key_failures(&self) -> u64 {
        self.token.as_ref().map_or(0, token::Tokens::failures)
    }

    /// Whether a check of this method takes long enough to be done aside (password hashes are slow on purpose).
    pub fn is_slow(&self, method: &str) -> bool {
        method == "basic" && self.basic.is_some()
    }

    /// Whether a method has a provider.
    pub fn offers(&self, method: &str) -> bool {
        match method {
            "token" => self.token.is_some(),
            "basic" => self.basic.is_some(),
            "tls" => self.tls,
            _ => false,
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn provider_method(provider: &str) -> Option<&'static str> {
    match provider.rsplit('.').next().unwrap_or_default() {
        "token" | "AuthenticationProviderToken" => Some("token"),
        "basic" | "AuthenticationProviderBasic" => Some("basic"),
        "tls" | "AuthenticationProviderTls" => Some("tls"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_is_not_offered_is_anonymous_or_refused() {
        let mut config = IdentityConfig { anonymous_role: Some("anonymous".into()), ..IdentityConfig::default() };
        let identity = Identity::new(&config).unwrap();
        assert_eq!(identity.authenticate("athenz", b"x", None).unwrap().role, "anonymous");
        config.anonymous_role = None;
        let identity = Identity::new(&config).unwrap();
        assert!(matches!(identity.authenticate("none", b"", None), Err(IdentityError::MethodNotOffered(_))));
    }

    #[test]
    fn class_names_of_pulsar_are_taken() {
        let class = "org.apache.pulsar.broker.authentication.AuthenticationProviderTls";
        let config = IdentityConfig { providers: vec![class.into()], ..IdentityConfig::default() };
        assert!(Identity::new(&config).unwrap().offers("tls"));
        let config = IdentityConfig { providers: vec!["kerberos".into()], ..IdentityConfig::default() };
        assert!(Identity::new(&config).is_err());
    }

    #[test]
    fn tls_without_a_certificate_is_refused() {
        let config = IdentityConfig { providers: vec!["tls".into()], ..IdentityConfig::default() };
        let identity = Identity::new(&config).unwrap();
        assert_eq!(identity.authenticate("tls", b"", None), Err(IdentityError::Certificate("none was shown")));
    }
}
