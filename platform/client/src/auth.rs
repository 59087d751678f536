//! Credentials towards a peer, in the notation of Pulsar's authentication plugins.
//!
//! Invariants: no secret is printed by `Debug`; a token that stands in a file is read again for each connection and each
//! renewal, so that a rotated token needs no restart.
//! Failure: [`ClientError::Setting`], which names the plugin or the file and never the secret.
//! Must never know: sockets.

use crate::ClientError;
use bytes::Bytes;
use std::fmt;
use std::path::PathBuf;

/// The largest token file.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// How a client shows who it is.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// Not at all.
    #[default]
    None,
    /// A token.
    Token(String),
    /// A token in a file.
    TokenFile(PathBuf),
    /// A name and a password.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// By the certificate of the TLS connection.
    Certificate,
}

/// What CONNECT and AUTH_RESPONSE carry.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthMessage {
    /// The method's name.
    pub method: &'static str,
    /// The credentials.
    pub data: Bytes,
}

impl fmt::Debug for AuthMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthMessage({}, <{} bytes hidden>)", self.method, self.data.len())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Token(_) => f.write_str("Token(<hidden>)"),
            Self::TokenFile(path) => write!(f, "TokenFile({})", path.display()),
            Self::Basic { user, .. } => write!(f, "Basic({user}, <hidden>)"),
            Self::Certificate => f.write_str("Certificate"),
        }
    }
}

impl Credentials {
    /// From the name of a plugin (the last part of its class name, or its short name) and its parameters: for tokens
    /// `token:…`, `file://…`, `{"token": …}` or the token itself; for basic `{"userId": …, "password": …}` or
    /// `user:password`.
    ///
    /// # Errors
    /// [`ClientError::Setting`] if the plugin is unknown or its parameters are not understood.
    pub fn parse(plugin: &str, parameters: &str) -> Result<Self, ClientError> {
        let (plugin, parameters) = (plugin.trim(), parameters.trim());
        let name = plugin.rsplit('.').next().unwrap_or_default();
        match name {
            "" | "AuthenticationDisabled" | "none" => Ok(Self::None),
            "AuthenticationToken" | "token" => token(parameters),
            "AuthenticationBasic" | "basic" => basic(parameters),
            "AuthenticationTls" | "AuthenticationKeyStoreTls" | "tls" => Ok(Self::Certificate),
            _ => Err(ClientError::setting(plugin, "this authentication plugin is not known")),
        }
    }

    /// What to send now.
    ///
    /// # Errors
    /// [`ClientError::Setting`] if the file cannot be read.
    pub async fn message(&self) -> Result<Option<AuthMessage>, ClientError> {
        Ok(match self {
            Self::None => None,
            Self::Token(token) => Some(AuthMessage { method: "token", data: token.clone().into() }),
            Self::TokenFile(path) => Some(AuthMessage { method: "token", data: read_token(path).await?.into() }),
            Self::Basic { user, password } => {
                Some(AuthMessage { method: "basic", data: format!("{user}:{password}").into() })
            }
            Self::Certificate => Some(AuthMessage { method: "tls", data: Bytes::new() }),
        })
    }
}

fn token(parameters: &str) -> Result<Credentials, ClientError> {
    let refuse = |reason| Err(ClientError::setting("authentication parameters of a token", reason));
    if let Some(token) = parameters.strip_prefix("token:") {
        return match token.trim() {
            "" => refuse("the token is empty"),
            token => Ok(Credentials::Token(token.to_owned())),
        };
    }
    if let Some(path) = parameters.strip_prefix("file:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return match path {
            "" => refuse("the file has no name"),
            path => Ok(Credentials::TokenFile(path.into())),
        };
    }
    if parameters.starts_with('{') {
        return match fields(parameters, ["token", "token"]) {
            Some([inner, _]) if !inner.starts_with('{') => token(&inner),
            _ => refuse("expected {\"token\": …}"),
        };
    }
    match parameters {
        "" => refuse("expected token:… or file://…"),
        token => Ok(Credentials::Token(token.to_owned())),
    }
}

fn basic(parameters: &str) -> Result<Credentials, ClientError> {
    let pair = match parameters.starts_with('{') {
        true => fields(parameters, ["userId", "password"]),
        false => parameters.split_once(':').map(|(user, password)| [user.to_owned(), password.to_owned()]),
    };
    match pair {
        Some([user, password]) if !user.is_empty() && !user.contains(':') => Ok(Credentials::Basic { user, password }),
        _ => {
            Err(ClientError::setting("authentication parameters of basic", "expected {\"userId\": …, \"password\": …}"))
        }
    }
}

/// Two texts of a JSON object.
fn fields(json: &str, names: [&str; 2]) -> Option<[String; 2]> {
    let object: serde_json::Value = serde_json::from_str(json).ok()?;
    let text = |name: &str| object.get(name)?.as_str().map(str::to_owned);
    Some([text(names[0])?, text(names[1])?])
}

async fn read_token(path: &std::path::Path) -> Result<String, ClientError> {
    let refuse = |reason: &dyn fmt::Display| ClientError::setting(format!("token file {}", path.display()), reason);
    let size = tokio::fs::metadata(path).await.map_err(|error| refuse(&error))?.len();
    if size > MAX_TOKEN_BYTES {
        return Err(refuse(&"it is too large for a token"));
    }
    let text = tokio::fs::read_to_string(path).await.map_err(|error| refuse(&error))?;
    match text.trim() {
        "" => Err(refuse(&"it is empty")),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "org.apache.pulsar.client.impl.auth.AuthenticationToken";

    #[test]
    fn plugins_are_read_as_pulsar_writes_them() {
        let parse = |plugin, parameters| Credentials::parse(plugin, parameters).ok();
        assert_eq!(parse("", "ignored"), Some(Credentials::None));
        for parameters in ["token:abc", "abc", r#"{"token":"abc"}"#, r#"{"token":"token:abc"}"#] {
            assert_eq!(parse(TOKEN, parameters), Some(Credentials::Token("abc".into())), "{parameters}");
        }
        for parameters in ["file:///run/t", "file:/run/t", r#"{"token":"file:///run/t"}"#] {
            assert_eq!(parse("token", parameters), Some(Credentials::TokenFile("/run/t".into())), "{parameters}");
        }
        let basic = Credentials::Basic { user: "u".into(), password: "p:q".into() };
        assert_eq!(parse("AuthenticationBasic", r#"{"userId":"u","password":"p:q"}"#), Some(basic.clone()));
        assert_eq!(parse("basic", "u:p:q"), Some(basic));
        assert_eq!(parse("AuthenticationTls", "tlsCertFile:/c,tlsKeyFile:/k"), Some(Credentials::Certificate));
        for (plugin, parameters) in
            [("AuthenticationAthenz", ""), (TOKEN, ""), (TOKEN, "{}"), (TOKEN, "{"), ("basic", "u")]
        {
            assert_eq!(parse(plugin, parameters), None, "{plugin} {parameters}");
        }
    }

    #[test]
    fn no_secret_is_printed() {
        let secret = "hunter2";
        let basic = Credentials::Basic { user: "u".into(), password: secret.into() };
        let message = AuthMessage { method: "token", data: Bytes::from_static(b"hunter2") };
        let error = Credentials::parse(TOKEN, r#"{"token":1,"x":"hunter2"}"#).unwrap_err();
        let text = format!("{:?} {basic:?} {message:?} {error} {error:?}", Credentials::Token(secret.into()));
        assert!(!text.contains(secret), "{text}");
    }

    #[tokio::test]
    async fn a_token_file_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credentials = Credentials::TokenFile(path.clone());
        assert!(credentials.message().await.unwrap_err().to_string().contains("token file"));
        for token in ["one\n", "two"] {
            std::fs::write(&path, token).unwrap();
            let message = credentials.message().await.unwrap().unwrap();
            assert_eq!((message.method, &message.data[..]), ("token", token.trim().as_bytes()));
        }
        std::fs::write(&path, " \n").unwrap();
        assert!(credentials.message().await.is_err());
    }
}
