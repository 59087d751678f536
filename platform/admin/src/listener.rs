//! The web ports: connections, TLS, and the bounds of a request (A3).
//!
//! Failure: a connection that is slow, too large or broken is closed; accepting goes on.

use crate::state::AdminState;
use crate::{AdminError, router};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 2_048;
/// How long a client may take for a handshake, or for the head of a request (idle connections end after it, too).
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Largest head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after an accept that failed (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Certificates that the client showed.
#[derive(Clone)]
pub struct PeerCertificates(pub Arc<Vec<CertificateDer<'static>>>);

/// A bound web port.
pub struct WebListener {
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl WebListener {
    /// Binds; nothing is accepted yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr, tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: TcpListener::from_std(listener)?, tls })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn run(self, state: AdminState) {
        serve(self.listener, self.tls, router(state), std::future::pending()).await;
    }
}

/// Serves a router until `shutdown` ends; requests in progress are cut off then.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let acceptor = tls.map(TlsAcceptor::from);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => return,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                connections.spawn(async move {
                    connection(stream, acceptor, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a web connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, acceptor: Option<TlsAcceptor>, router: Router) {
    // Without it an answer may wait for the client's delayed acknowledgement; a socket that refuses it still works.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return requests(stream, None, router).await };
    match tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
            requests(stream, Some(PeerCertificates(Arc::new(chain))), router).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn requests(stream: impl AsyncRead + AsyncWrite + Unpin, peer: Option<PeerCertificates>, router: Router) {
    let service = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
        let (router, peer) = (router.clone(), peer.clone());
        async move { Ok::<_, Infallible>(answer(router, peer, request.map(Body::new)).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a web connection ended");
    }
}

async fn answer(router: Router, peer: Option<PeerCertificates>, mut request: Request) -> Response {
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer);
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, router.oneshot(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let text = format!("the request took longer than {} s", REQUEST_TIMEOUT.as_secs());
            AdminError::new(StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
    }
}
