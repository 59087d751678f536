//! Ports: accepts connections, counts them, hands them to sessions.
//!
//! Invariants: a connection is counted from its accept to its end, also while its TLS handshake goes on, and as not logged
//! in until it is; limits refuse with an answer where the peer can read one, and are counted by reason in any case. A
//! failed accept (out of file descriptors) waits a moment and goes on.
//! Failure: [`std::io::Error`] only when a port can't be bound.

use crate::config::SessionLimits;
use crate::service::BrokerService;
use crate::session::{Peer, serve, serve_halves};
use bytes::BytesMut;
use meridian_identity::tls::ServerTls;
use meridian_wire::encode::encode_command;
use meridian_wire::error::{NO_REQUEST, request_error};
use meridian_wire::proto::ServerError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a refusal may take to be written.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that the system holds for us.
const ACCEPT_BACKLOG: u32 = 1_024;

/// Why connections are refused or ended, as in the metric.
pub(crate) const REASONS: [&str; 8] = [
    reason::CONNECTIONS,
    reason::PER_IP,
    reason::UNAUTHENTICATED,
    reason::TLS,
    reason::TLS_TIMEOUT,
    reason::LOGIN,
    reason::LOGIN_TIMEOUT,
    reason::SLOW_PEER,
];

/// The words of the metric.
pub(crate) mod reason {
    /// `brokerMaxConnections`.
    pub(crate) const CONNECTIONS: &str = "max_connections";
    /// `brokerMaxConnectionsPerIp`.
    pub(crate) const PER_IP: &str = "max_connections_per_ip";
    /// `brokerMaxUnauthenticatedConnections`.
    pub(crate) const UNAUTHENTICATED: &str = "max_unauthenticated";
    /// A handshake that failed: no TLS, no certificate, one of another authority.
    pub(crate) const TLS: &str = "tls_handshake";
    /// A handshake that took too long.
    pub(crate) const TLS_TIMEOUT: &str = "tls_handshake_timeout";
    /// Credentials that were not accepted.
    pub(crate) const LOGIN: &str = "login";
    /// `connectionLoginTimeoutSeconds`.
    pub(crate) const LOGIN_TIMEOUT: &str = "login_timeout";
    /// `connectionSlowPeerTimeoutSeconds`.
    pub(crate) const SLOW_PEER: &str = "slow_peer";
}

/// Counts connections.
#[derive(Default)]
pub struct ConnectionCounts {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: u32,
    unauthenticated: u32,
    per_ip: HashMap<IpAddr, u32>,
}

/// A connection was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooMany {
    /// For the metric.
    pub reason: &'static str,
    /// For the client.
    pub text: String,
}

/// One counted connection; dropped, it counts no more.
pub struct Counted {
    counts: Arc<ConnectionCounts>,
    ip: IpAddr,
}

/// One connection that has not logged in; dropped, it has, or has ended.
pub struct Unauthenticated {
    counts: Arc<ConnectionCounts>,
}

impl ConnectionCounts {
    /// Connections now.
    pub fn open(&self) -> u32 {
        self.counts.lock().all
    }

    /// Connections that have not logged in.
    pub fn unauthenticated(&self) -> u32 {
        self.counts.lock().unauthenticated
    }

    /// Counts a connection.
    ///
    /// # Errors
    /// [`TooMany`] if a limit is reached.
    pub fn admit(
        self: &Arc<Self>,
        ip: IpAddr,
        limits: &SessionLimits,
    ) -> Result<(Counted, Arc<Unauthenticated>), TooMany> {
        let mut counts = self.counts.lock();
        let reached = |count: u32, limit: u32| limit > 0 && count >= limit;
        let refuse = |reason: &'static str, limit: u32, which: String| {
            Err(TooMany { reason, text: format!("Reached the maximum number of connections {limit}{which}") })
        };
        if reached(counts.all, limits.max_connections) {
            return refuse(reason::CONNECTIONS, limits.max_connections, String::new());
        }
        if reached(counts.per_ip.get(&ip).copied().unwrap_or(0), limits.max_connections_per_ip) {
            return refuse(reason::PER_IP, limits.max_connections_per_ip, format!(" on address {ip}"));
        }
        if reached(counts.unauthenticated, limits.max_unauthenticated) {
            return refuse(reason::UNAUTHENTICATED, limits.max_unauthenticated, " that have not logged in".to_owned());
        }
        *counts.per_ip.entry(ip).or_default() += 1;
        counts.all += 1;
        counts.unauthenticated += 1;
        drop(counts);
        Ok((Counted { counts: self.clone(), ip }, Arc::new(Unauthenticated { counts: self.clone() })))
    }
}

impl Drop for Unauthenticated {
    fn drop(&mut self) {
        self.counts.counts.lock().unauthenticated -= 1;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.counts.lock();
        counts.all -= 1;
        if let Some(of_ip) = counts.per_ip.get_mut(&self.ip) {
            *of_ip -= 1;
            if *of_ip == 0 {
                counts.per_ip.remove(&self.ip);
            }
        }
    }
}

/// A bound port.
pub struct Listener {
    socket: TcpListener,
    tls: Option<ServerTls>,
    name: Option<String>,
}

impl Listener {
    /// Binds a port; with `tls` every connection begins with a handshake. `name` is the advertised listener that
    /// connections of this port use when they name none.
    ///
    /// # Errors
    /// [`io::Error`] if the address can't be bound.
    pub fn bind(address: SocketAddr, tls: Option<ServerTls>, name: Option<String>) -> io::Result<Self> {
        let domain = if address.is_ipv6() { socket2::Domain::IPV6 } else { socket2::Domain::IPV4 };
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // One port for both families.
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(ACCEPT_BACKLOG as i32)?;
        Ok(Self { socket: TcpListener::from_std(socket.into())?, tls, name })
    }

    /// The bound address.
    ///
    /// # Errors
    /// [`io::Error`] of the system.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts connections until dropped.
    pub async fn run(self, service: Arc<BrokerService>) {
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => {
                    // As the certificates are now: who connects later gets the renewed ones.
                    let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
                    let (service, name) = (service.clone(), self.name.clone());
                    tokio::spawn(take(service, stream, address, tls, name));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn take(
    service: Arc<BrokerService>,
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    listener: Option<String>,
) {
    let _ = stream.set_nodelay(true);
    let limits = &service.config().session;
    let counter = |reason: &str| service.metrics().connections_refused.with_label_values(&[reason]).inc();
    let (counted, unauthenticated) = match service.connections().admit(address.ip(), limits) {
        Ok(admitted) => admitted,
        Err(too_many) => {
            counter(too_many.reason);
            tracing::debug!(peer = %address, reason = too_many.text, "connection refused");
            // Over TLS nothing can be said before a handshake, which is what the limit saves.
            if tls.is_none() {
                refuse(stream, &too_many.text).await;
            }
            return;
        }
    };
    let login = Some(unauthenticated);
    match tls {
        None => {
            let (reader, writer) = stream.into_split();
            serve_halves(service, reader, writer, Peer { address, listener, certificates: None, login }).await;
        }
        Some(acceptor) => {
            let limit = Duration::from_millis(limits.login_timeout_ms.max(1));
            match tokio::time::timeout(limit, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificates = stream.get_ref().1.peer_certificates();
                    let certificates =
                        certificates.map(|chain| chain.iter().map(|one| one.clone().into_owned()).collect());
                    serve(service, stream, Peer { address, listener, certificates, login }).await;
                }
                Ok(Err(error)) => {
                    counter(reason::TLS);
                    tracing::info!(peer = %address, %error, "TLS handshake failed");
                }
                Err(_) => {
                    counter(reason::TLS_TIMEOUT);
                    tracing::info!(peer = %address, "TLS handshake took too long");
                }
            }
        }
    }
    drop(counted);
}

async fn refuse(mut stream: TcpStream, text: &str) {
    let mut answer = BytesMut::new();
    encode_command(&request_error(NO_REQUEST, ServerError::NotAllowedError, text), &mut answer);
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn limits_hold_in_all_and_per_address() {
        let counts = Arc::new(ConnectionCounts::default());
        let limits = SessionLimits { max_connections: 3, max_connections_per_ip: 2, ..Default::default() };
        let first = counts.admit(ip(1), &limits);
        let _second = counts.admit(ip(1), &limits).unwrap();
        let refused = counts.admit(ip(1), &limits).err().unwrap();
        assert_eq!(refused.reason, reason::PER_IP);
        assert_eq!(refused.text, "Reached the maximum number of connections 2 on address 10.0.0.1");
        let _third = counts.admit(ip(2), &limits).unwrap();
        let refused = counts.admit(ip(3), &limits).err().unwrap();
        assert_eq!(refused.text, "Reached the maximum number of connections 3");
        drop(first);
        assert_eq!(counts.open(), 2);
        assert!(counts.admit(ip(3), &limits).is_ok());
    }

    #[test]
    fn who_has_logged_in_makes_room_for_others() {
        let counts = Arc::new(ConnectionCounts::default());
        let limits = SessionLimits { max_unauthenticated: 1, ..Default::default() };
        let (_first, waiting) = counts.admit(ip(1), &limits).unwrap();
        let refused = counts.admit(ip(2), &limits).err().unwrap();
        assert_eq!(refused.text, "Reached the maximum number of connections 1 that have not logged in");
        drop(waiting);
        assert_eq!((counts.open(), counts.unauthenticated()), (1, 0));
        let (second, waiting) = counts.admit(ip(2), &limits).unwrap();
        drop((second, waiting));
        assert_eq!((counts.open(), counts.unauthenticated()), (1, 0));
    }
}
