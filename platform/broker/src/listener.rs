//! Ports: accepts connections, counts them, hands them to sessions.
//!
//! Invariants: a connection is counted from its accept to its end, also while its TLS handshake goes on; limits refuse with
//! an answer, not with silence. A failed accept (out of file descriptors) waits a moment and goes on.
//! Failure: [`std::io::Error`] only when a port can't be bound.

use crate::config::SessionLimits;
use crate::service::BrokerService;
use crate::session::{Peer, serve, serve_halves};
use bytes::BytesMut;
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
/// How long a TLS handshake or a refusal may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that the system holds for us.
const ACCEPT_BACKLOG: u32 = 1_024;

/// Counts connections.
#[derive(Default)]
pub struct ConnectionCounts {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: u32,
    per_ip: HashMap<IpAddr, u32>,
}

/// One counted connection; dropped, it counts no more.
pub struct Counted {
    counts: Arc<ConnectionCounts>,
    ip: IpAddr,
}

impl ConnectionCounts {
    /// Connections now.
    pub fn open(&self) -> u32 {
        self.counts.lock().all
    }

    /// Counts a connection.
    ///
    /// # Errors
    /// The text for the client if a limit is reached.
    pub fn admit(self: &Arc<Self>, ip: IpAddr, limits: &SessionLimits) -> Result<Counted, String> {
        let mut counts = self.counts.lock();
        let reached = |count: u32, limit: u32| limit > 0 && count >= limit;
        if reached(counts.all, limits.max_connections) {
            return Err(format!("Reached the maximum number of connections {}", limits.max_connections));
        }
        let of_ip = counts.per_ip.entry(ip).or_default();
        if reached(*of_ip, limits.max_connections_per_ip) {
            let text =
                format!("Reached the maximum number of connections {} on address {ip}", limits.max_connections_per_ip);
            return Err(text);
        }
        *of_ip += 1;
        counts.all += 1;
        Ok(Counted { counts: self.clone(), ip })
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
    tls: Option<TlsAcceptor>,
    name: Option<String>,
}

impl Listener {
    /// Binds a port; with `tls` every connection begins with a handshake. `name` is the advertised listener that
    /// connections of this port use when they name none.
    ///
    /// # Errors
    /// [`io::Error`] if the address can't be bound.
    pub fn bind(address: SocketAddr, tls: Option<Arc<rustls::ServerConfig>>, name: Option<String>) -> io::Result<Self> {
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
        Ok(Self { socket: TcpListener::from_std(socket.into())?, tls: tls.map(TlsAcceptor::from), name })
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
                    let (service, tls, name) = (service.clone(), self.tls.clone(), self.name.clone());
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
    let counted = match service.connections().admit(address.ip(), &service.config().session) {
        Ok(counted) => counted,
        Err(text) if tls.is_none() => return refuse(stream, &text).await,
        Err(_) => return,
    };
    match tls {
        None => {
            let (reader, writer) = stream.into_split();
            serve_halves(service, reader, writer, Peer { address, listener, certificates: None }).await;
        }
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let certificates = stream.get_ref().1.peer_certificates();
                let certificates = certificates.map(|chain| chain.iter().map(|one| one.clone().into_owned()).collect());
                serve(service, stream, Peer { address, listener, certificates }).await;
            }
            Ok(Err(error)) => tracing::debug!(peer = %address, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(peer = %address, "TLS handshake took too long"),
        },
    }
    drop(counted);
}

async fn refuse(mut stream: TcpStream, text: &str) {
    let mut answer = BytesMut::new();
    encode_command(&request_error(NO_REQUEST, ServerError::NotAllowedError, text), &mut answer);
    let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_in_all_and_per_address() {
        let counts = Arc::new(ConnectionCounts::default());
        let limits = SessionLimits { max_connections: 3, max_connections_per_ip: 2, ..Default::default() };
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let first = counts.admit(ip(1), &limits);
        let _second = counts.admit(ip(1), &limits).unwrap();
        assert!(counts.admit(ip(1), &limits).is_err());
        let _third = counts.admit(ip(2), &limits).unwrap();
        assert!(counts.admit(ip(3), &limits).is_err());
        drop(first);
        assert_eq!(counts.open(), 2);
        assert!(counts.admit(ip(3), &limits).is_ok());
    }
}
