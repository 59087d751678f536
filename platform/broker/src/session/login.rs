//! CONNECT, credentials, and their renewal.
//!
//! Credentials are checked by a blocking task (password hashes are slow on purpose); the reader waits for it, so that
//! nothing is done for a client that is not logged in.

use super::{ClientInfo, Session};
use crate::access::{Original, Principal};
use crate::listener::reason;
use bytes::Bytes;
use meridian_wire::error::{NO_REQUEST, request_error};
use meridian_wire::proto::{
    AuthData, AuthMethod, CommandAuthChallenge, CommandAuthResponse, CommandConnect, CommandConnected, FeatureFlags,
    ServerError,
};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;

/// The newest protocol version that this broker speaks.
const PROTOCOL_VERSION: i32 = 21;
/// Peers from this version on answer AUTH_CHALLENGE.
const AUTH_CHALLENGE_SINCE: i32 = 14;

/// Credentials to check.
pub struct Credentials {
    method: String,
    data: Bytes,
    /// The CONNECT that brought them; `None` = a renewal.
    connect: Option<Box<CommandConnect>>,
}

fn method_of(connect: &CommandConnect) -> String {
    if let Some(name) = &connect.auth_method_name {
        return name.clone();
    }
    match connect.auth_method.and_then(|number| AuthMethod::try_from(number).ok()) {
        Some(AuthMethod::YcaV1) => "ycav1".to_owned(),
        Some(AuthMethod::Athens) => "athens".to_owned(),
        _ => "none".to_owned(),
    }
}

/// What a proxy says of its client.
fn original(connect: &CommandConnect) -> Original {
    Original {
        role: connect.original_principal.clone(),
        method: connect.original_auth_method.clone(),
        data: connect.original_auth_data.as_ref().map(|data| data.as_bytes().to_vec()),
    }
}

/// Clients that close the connection on REACHED_END_OF_TOPIC, by how they call themselves.
fn knows_end_of_topic(version: &str) -> bool {
    let version = version.to_ascii_lowercase();
    !["pulsar go", "pulsar-go", "pulsar-cpp"].iter().any(|name| version.starts_with(name))
}

/// What clients expect, and behind it what other regions know this broker by.
fn server_version(version: &str) -> String {
    format!("Pulsar Server{version} Meridian/{version}")
}

impl Session {
    pub(super) fn connect(&self, mut connect: CommandConnect) -> Result<Credentials, String> {
        if self.client().is_some() {
            return Err("CONNECT on a connected connection".to_owned());
        }
        let method = method_of(&connect);
        let data = connect.auth_data.take().unwrap_or_default();
        Ok(Credentials { method, data, connect: Some(Box::new(connect)) })
    }

    pub(super) fn auth_response(&self, response: CommandAuthResponse) -> Result<Option<Credentials>, String> {
        if self.client().is_none() {
            return Err("AUTH_RESPONSE before CONNECT".to_owned());
        }
        match response.response {
            Some(AuthData { auth_method_name: Some(method), auth_data: Some(data) }) => {
                Ok(Some(Credentials { method, data, connect: None }))
            }
            _ => Err("AUTH_RESPONSE without method or data".to_owned()),
        }
    }

    /// Checks credentials and answers CONNECTED, or puts renewed ones in force.
    ///
    /// # Errors
    /// The reason to close; the client was told.
    pub(super) async fn log_in(
        self: &Arc<Self>,
        credentials: Credentials,
        certificates: Option<&[CertificateDer<'static>]>,
    ) -> Result<(), String> {
        let Credentials { method, data, connect } = credentials;
        let access = self.service.access().clone();
        let certificates = certificates.map(<[_]>::to_vec);
        let proxied = connect.as_deref().map(original).unwrap_or_default();
        let checked =
            tokio::task::spawn_blocking(move || access.authenticate(&method, &data, certificates.as_deref(), proxied));
        let principal = match checked.await {
            Ok(Ok(principal)) => principal,
            Ok(Err(error)) => {
                self.service.metrics().logins_refused.inc();
                self.service.metrics().connections_refused.with_label_values(&[reason::LOGIN]).inc();
                tracing::warn!(peer = %self.peer, %error, "login refused");
                self.send(request_error(NO_REQUEST, ServerError::AuthenticationError, &error.told()));
                return Err(format!("login refused: {error}"));
            }
            Err(error) => return Err(format!("login failed: {error}")),
        };
        match connect {
            Some(connect) => self.connected(&connect, principal),
            None => self.renewed(principal),
        }
    }

    fn connected(&self, connect: &CommandConnect, principal: Principal) -> Result<(), String> {
        if let Err(error) = self.service.access().check_proxy(&principal, connect.proxy_version.is_some()) {
            self.send(request_error(NO_REQUEST, ServerError::AuthorizationError, &error.to_string()));
            return Err(error.to_string());
        }
        if self.service.is_closing() {
            self.send(request_error(NO_REQUEST, ServerError::ServiceNotReady, "Server is not ready"));
            return Err("the broker is shutting down".to_owned());
        }
        let config = self.service.config();
        let flags = connect.feature_flags.unwrap_or_default();
        let protocol = connect.protocol_version.unwrap_or(0).clamp(0, PROTOCOL_VERSION);
        *self.principal.lock() = principal;
        let info = ClientInfo {
            version: connect.client_version.clone(),
            protocol,
            broker_entry_metadata: config.expose_broker_entry_metadata
                && flags.supports_broker_entry_metadata()
                && protocol >= 18,
            repl_dedup: flags.supports_repl_dedup_by_lid_and_eid(),
            auth_refresh: flags.supports_auth_refresh(),
            knows_end_of_topic: knows_end_of_topic(&connect.client_version),
        };
        tracing::debug!(peer = %self.peer, client = info.version, protocol, "connected");
        let _ = self.client.set(info);
        self.unauthenticated.lock().take();
        self.send(CommandConnected {
            server_version: server_version(&config.version),
            protocol_version: Some(protocol),
            max_message_size: Some(config.session.max_message_bytes as i32),
            // A flag is a promise to serve the matching commands; what is not set is not served.
            feature_flags: Some(FeatureFlags {
                supports_topic_watchers: Some(config.topic_list_watcher),
                supports_topic_watcher_reconcile: Some(config.topic_list_watcher),
                supports_repl_dedup_by_lid_and_eid: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..Default::default()
            }),
        });
        Ok(())
    }

    fn renewed(&self, principal: Principal) -> Result<(), String> {
        let mut current = self.principal.lock();
        if current.role != principal.role {
            return Err("renewed credentials are those of another role".to_owned());
        }
        current.expires_ms = principal.expires_ms;
        Ok(())
    }

    /// Asks for new credentials when those at hand have ended; ends with a reason if none come.
    pub(super) async fn refresh_credentials(&self) -> String {
        let interval = Duration::from_secs(self.service.config().session.auth_refresh_check_s.max(1));
        let mut asked_for: Option<u64> = None;
        loop {
            tokio::time::sleep(interval).await;
            let principal = self.principal();
            let Some(expires_ms) = principal.expires_ms.filter(|ends| *ends <= crate::service::now_ms()) else {
                asked_for = None;
                continue;
            };
            let Some(client) = self.client() else { continue };
            if !client.auth_refresh || client.protocol < AUTH_CHALLENGE_SINCE {
                return "credentials have ended and the client cannot renew them".to_owned();
            }
            if asked_for == Some(expires_ms) {
                return "credentials have ended and were not renewed".to_owned();
            }
            if principal.original.is_some() {
                return "credentials of a proxied client have ended".to_owned();
            }
            asked_for = Some(expires_ms);
            self.send(CommandAuthChallenge {
                server_version: Some(server_version(&self.service.config().version)),
                challenge: Some(AuthData {
                    auth_method_name: Some(principal.method.clone()),
                    auth_data: Some(Bytes::from_static(b"PulsarAuthRefresh")),
                }),
                protocol_version: Some(client.protocol),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_an_old_and_a_new_form() {
        let mut connect = CommandConnect::default();
        assert_eq!(method_of(&connect), "none");
        connect.auth_method = Some(AuthMethod::Athens as i32);
        assert_eq!(method_of(&connect), "athens");
        connect.auth_method_name = Some("token".to_owned());
        assert_eq!(method_of(&connect), "token");
    }

    #[test]
    fn some_clients_are_spared_what_they_do_not_know() {
        assert!(knows_end_of_topic("Pulsar-Java-v4.0.7"));
        assert!(!knows_end_of_topic("Pulsar Go 0.15.0"));
        assert!(!knows_end_of_topic("Pulsar-CPP-v3.7.2"));
    }
}
