//! Who a peer is and how it is talked to: plain settings.
//!
//! Must never know: sockets.

use crate::ClientError;
use crate::address::ServiceUrl;
use crate::auth::Credentials;
use crate::backoff::BackoffLimits;
use crate::keepalive::KeepAliveLimits;
use crate::tls::TlsSettings;

/// Who a peer is and how it is talked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What it is called in logs and stats, such as the name of a region.
    pub name: String,
    /// Where it can be asked.
    pub service_url: ServiceUrl,
    /// Who this side is.
    pub credentials: Credentials,
    /// Used if the service URL says `pulsar+ssl://`.
    pub tls: TlsSettings,
    /// The advertised listener whose addresses lookups answer.
    pub listener: Option<String>,
    /// What this side calls itself in CONNECT.
    pub client_version: String,
    /// Bounds and deadlines.
    pub limits: PeerLimits,
}

impl Peer {
    /// A peer by its service URL, with everything else at its default.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn new(service_url: &str) -> Result<Self, ClientError> {
        Ok(Self {
            name: service_url.to_owned(),
            service_url: ServiceUrl::parse(service_url)?,
            credentials: Credentials::None,
            tls: TlsSettings::default(),
            listener: None,
            client_version: concat!("Meridian-", env!("CARGO_PKG_VERSION")).to_owned(),
            limits: PeerLimits::default(),
        })
    }
}

/// Bounds and deadlines towards one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Connections to each broker of the peer.
    pub connections_per_broker: usize,
    /// Bytes that wait to be written on one connection; a sender waits beyond it.
    pub outbound_bytes: usize,
    /// Requests without an answer on one connection; more are refused.
    pub max_requests: usize,
    /// The largest message that is taken from a peer, whatever it announces.
    pub max_message_bytes: usize,
    /// From dialling to CONNECTED.
    pub connect_timeout_ms: u64,
    /// From a request to its answer, and for a whole lookup.
    pub request_timeout_ms: u64,
    /// When a silent peer is asked, and when given up.
    pub keep_alive: KeepAliveLimits,
    /// Waits between attempts to connect.
    pub backoff: BackoffLimits,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            connections_per_broker: 1,
            outbound_bytes: 8 * 1024 * 1024,
            max_requests: 4096,
            max_message_bytes: 128 * 1024 * 1024,
            connect_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            keep_alive: KeepAliveLimits { interval_ms: 10_000, timeout_ms: 10_000 },
            backoff: BackoffLimits { min_ms: 100, max_ms: 1_000 },
        }
    }
}
