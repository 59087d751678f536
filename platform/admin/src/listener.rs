//! The web ports: connections, TLS, and the bounds of a request (A3).
//!
//! Invariants: a connection is counted from its accept to its end; every refusal has a reason in its answer, where one can
//! be given, and in `meridian_web_refused_total`.
//! Failure: a connection that is slow, too large or broken is closed; accepting goes on.

use crate::AdminError;
use crate::body::KeptBody;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use meridian_identity::tls::ServerTls;
use prometheus::{IntCounterVec, Opts};
use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Pause after an accept that failed (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a refusal may take to be written.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Smallest bound of a head that the HTTP library can keep.
const MIN_HEAD_BYTES: usize = 8 << 10;
/// Largest body of a request where nothing else is said: room for a schema of 1 MiB with every character escaped.
pub const MAX_BODY_BYTES: usize = 8 << 20;

const CONNECTIONS: &str = "max_connections";
const PER_IP: &str = "max_connections_per_ip";
const TLS: &str = "tls_handshake";
const TLS_TIMEOUT: &str = "tls_handshake_timeout";
const HEAD_BYTES: &str = "head_too_large";
const HEAD_TIMEOUT: &str = "head_timeout";
const BODY_BYTES: &str = "body_too_large";
const REQUEST_TIMEOUT: &str = "request_timeout";
const UNAUTHENTICATED: &str = "unauthenticated";
const REASONS: [&str; 9] =
    [CONNECTIONS, PER_IP, TLS, TLS_TIMEOUT, HEAD_BYTES, HEAD_TIMEOUT, BODY_BYTES, REQUEST_TIMEOUT, UNAUTHENTICATED];

/// Bounds of the connections and requests of a port; counts of 0 are no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebLimits {
    /// `maxHttpServerConnections`.
    pub connections: usize,
    /// `maxHttpServerConnectionsPerIp`.
    pub connections_per_ip: usize,
    /// `httpMaxRequestHeaderSize`.
    pub head_bytes: usize,
    /// `httpMaxRequestSize`.
    pub body_bytes: usize,
    /// `httpHeadTimeoutSeconds`: a TLS handshake or the head of a request; idle connections end after it, too.
    pub head_timeout: Duration,
    /// `httpRequestTimeoutSeconds`.
    pub request_timeout: Duration,
}

impl Default for WebLimits {
    fn default() -> Self {
        Self {
            connections: 2_048,
            connections_per_ip: 0,
            head_bytes: 64 << 10,
            body_bytes: MAX_BODY_BYTES,
            head_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(90),
        }
    }
}

/// Certificates that the client showed.
#[derive(Clone)]
pub struct PeerCertificates(pub Arc<Vec<CertificateDer<'static>>>);

/// Where the client is.
#[derive(Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// What was refused, by reason.
#[derive(Clone)]
pub struct WebRefusals(IntCounterVec);

impl WebRefusals {
    /// Counters at zero, in the registry.
    #[allow(clippy::expect_used)]
    pub fn new(registry: &prometheus::Registry) -> Self {
        let opts = Opts::new("meridian_web_refused_total", "Web connections and requests refused or ended by a limit");
        let counters = IntCounterVec::new(opts, &["reason"]).expect("the name is constant and valid");
        // Every reason from the start, so that a rise from nothing can be seen.
        for reason in REASONS {
            counters.with_label_values(&[reason]);
        }
        if let Err(error) = registry.register(Box::new(counters.clone())) {
            tracing::debug!(%error, "refusals of web requests are counted by another service of the process already");
        }
        Self(counters)
    }

    fn note(&self, reason: &str) {
        self.0.with_label_values(&[reason]).inc();
    }
}

/// Connections now.
#[derive(Default)]
struct Places {
    counts: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

struct Place {
    places: Arc<Places>,
    ip: IpAddr,
}

impl Places {
    fn take(self: &Arc<Self>, ip: IpAddr, limits: &WebLimits) -> Result<Place, (&'static str, String)> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = |count: usize, limit: usize| limit > 0 && count >= limit;
        if reached(counts.0, limits.connections) {
            let text = format!("{} connections are open (maxHttpServerConnections)", limits.connections);
            return Err((CONNECTIONS, text));
        }
        if reached(counts.1.get(&ip).copied().unwrap_or(0), limits.connections_per_ip) {
            let count = limits.connections_per_ip;
            return Err((PER_IP, format!("{count} connections are open from {ip} (maxHttpServerConnectionsPerIp)")));
        }
        counts.0 += 1;
        *counts.1.entry(ip).or_default() += 1;
        Ok(Place { places: self.clone(), ip })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 -= 1;
        if let Some(of_ip) = counts.1.get_mut(&self.ip) {
            *of_ip -= 1;
            if *of_ip == 0 {
                counts.1.remove(&self.ip);
            }
        }
    }
}

/// A bound web port.
pub struct WebListener {
    listener: TcpListener,
    tls: Option<ServerTls>,
    limits: WebLimits,
}

/// What the connections of a port share.
#[derive(Clone)]
struct Port {
    router: Router,
    limits: WebLimits,
    refusals: WebRefusals,
}

impl WebListener {
    /// Binds; nothing is accepted yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr, tls: Option<ServerTls>, limits: WebLimits) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: TcpListener::from_std(listener)?, tls, limits })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves pages until it is dropped; requests in progress are cut off then.
    pub async fn run_router(self, router: Router, refusals: WebRefusals) {
        let port = Port { router, limits: self.limits, refusals };
        let places = Arc::new(Places::default());
        let mut connections = JoinSet::new();
        loop {
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, address)) => {
                    // As the certificates are now: who connects later gets the renewed ones.
                    let acceptor = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
                    let place = places.take(address.ip(), &port.limits);
                    connections.spawn(connection(stream, address, acceptor, port.clone(), place));
                }
                Err(error) => {
                    tracing::warn!(%error, "a web connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn connection(
    mut stream: TcpStream,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    port: Port,
    place: Result<Place, (&'static str, String)>,
) {
    // Without it an answer may wait for the client's delayed acknowledgement; a socket that refuses it still works.
    let _ = stream.set_nodelay(true);
    let place = match place {
        Ok(place) => place,
        Err((reason, text)) => {
            port.refusals.note(reason);
            if acceptor.is_none() {
                refuse(&mut stream, &text).await;
            }
            return;
        }
    };
    let Some(acceptor) = acceptor else { return requests(stream, address, None, port, place).await };
    match tokio::time::timeout(port.limits.head_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
            requests(stream, address, Some(PeerCertificates(Arc::new(chain))), port, place).await;
        }
        Ok(Err(error)) => {
            port.refusals.note(TLS);
            tracing::debug!(peer = %address, %error, "a TLS handshake failed");
        }
        Err(_) => {
            port.refusals.note(TLS_TIMEOUT);
            tracing::debug!(peer = %address, "a TLS handshake took too long");
        }
    }
}

async fn refuse(stream: &mut TcpStream, text: &str) {
    let body = serde_json::json!({ "reason": text }).to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    peer: Option<PeerCertificates>,
    port: Port,
    place: Place,
) {
    let service = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
        let (port, peer) = (port.clone(), peer.clone());
        async move {
            let is_expected = request.headers().contains_key(header::EXPECT);
            let (head, incoming) = request.into_parts();
            let body = KeptBody::new(incoming, is_expected);
            let response = answer(port, address, peer, Request::from_parts(head, Body::new(body.clone()))).await;
            if !response.status().is_success() {
                body.drop_rest().await;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(port.limits.head_timeout)
        .max_buf_size(port.limits.head_bytes.max(MIN_HEAD_BYTES))
        .serve_connection(TokioIo::new(stream), service)
        .await;
    drop(place);
    if let Err(error) = served {
        if error.is_parse_too_large() {
            port.refusals.note(HEAD_BYTES);
        } else if error.is_timeout() {
            port.refusals.note(HEAD_TIMEOUT);
        }
        tracing::debug!(peer = %address, %error, "a web connection ended");
    }
}

async fn answer(port: Port, address: SocketAddr, peer: Option<PeerCertificates>, mut request: Request) -> Response {
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer);
    }
    request.extensions_mut().insert(PeerAddress(address));
    let limit = port.limits.request_timeout;
    match tokio::time::timeout(limit, port.router.oneshot(request)).await {
        Ok(Ok(response)) => {
            match response.status() {
                StatusCode::PAYLOAD_TOO_LARGE => port.refusals.note(BODY_BYTES),
                StatusCode::UNAUTHORIZED => port.refusals.note(UNAUTHENTICATED),
                _ => {}
            }
            response
        }
        Ok(Err(never)) => match never {},
        Err(_) => {
            port.refusals.note(REQUEST_TIMEOUT);
            let text = format!("the request took longer than {} s", limit.as_secs());
            AdminError::new(StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_all_and_by_address() {
        let places = Arc::new(Places::default());
        let limits = WebLimits { connections: 3, connections_per_ip: 2, ..WebLimits::default() };
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let first = places.take(ip(1), &limits).ok();
        let _second = places.take(ip(1), &limits).ok().unwrap();
        assert_eq!(places.take(ip(1), &limits).err().unwrap().0, PER_IP);
        let _third = places.take(ip(2), &limits).ok().unwrap();
        assert_eq!(places.take(ip(3), &limits).err().unwrap().0, CONNECTIONS);
        drop(first);
        assert!(places.take(ip(1), &limits).is_ok());
    }
}
