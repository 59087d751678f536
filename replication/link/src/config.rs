//! What a link is run with: names, times, certificates, and the bounds of its queues.

use crate::error::LinkError;
use meridian_identity::IdentityError;
use meridian_identity::tls::{ClientFiles, ClientTls, ServerTls, TlsFiles};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const CERTIFICATE: &str = "regionLinkTlsCertificateFilePath";
const KEY: &str = "regionLinkTlsKeyFilePath";
const AUTHORITIES: &str = "regionLinkTrustCertsFilePath";

/// Largest message, both ways: a batch of objects or a part of a listing.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Objects are gathered into messages of about this size.
pub(crate) const OBJECT_MESSAGE_BYTES: usize = 1 << 20;
/// Keys in one message of a listing.
pub(crate) const LISTING_KEYS: usize = 2_000;
/// Messages of one stream that wait to be sent.
pub(crate) const STREAM_QUEUE: usize = 32;
/// Bytes of acknowledgements that are sent and not confirmed.
pub(crate) const ACK_WINDOW_BYTES: usize = 4 << 20;
/// Bytes of acknowledgements asked for at once.
pub(crate) const ACK_TAKE_BYTES: usize = 256 << 10;
/// Deltas that are merged in one call.
pub(crate) const ACK_BATCH: usize = 256;
/// Requests for whole states that wait; above, all states are asked for.
pub(crate) const RESYNCS_QUEUED: usize = 1_000;

/// Times of a link, in milliseconds.
#[derive(Debug, Clone)]
pub struct LinkTimes {
    /// A connection may take so long, TLS included.
    pub connect_ms: u64,
    /// Pause between two looks whether the peer is there.
    pub beat_ms: u64,
    /// How long the peer may take to show that it is.
    pub beat_timeout_ms: u64,
    /// First pause before the peer is dialled again; doubled each time.
    pub retry_min_ms: u64,
    /// Longest such pause.
    pub retry_max_ms: u64,
    /// Everything is compared so often.
    pub compare_ms: u64,
    /// A peer without a region link is asked again so often.
    pub ask_again_ms: u64,
    /// A fail-over step or a question for positions may take so long.
    pub call_ms: u64,
}

impl Default for LinkTimes {
    fn default() -> Self {
        Self {
            connect_ms: 5_000,
            beat_ms: 5_000,
            beat_timeout_ms: 8_000,
            retry_min_ms: 100,
            retry_max_ms: 10_000,
            compare_ms: 60_000,
            ask_again_ms: 60_000,
            call_ms: 30_000,
        }
    }
}

/// Certificate, key and authorities of a link: the files as they are when a connection begins.
#[derive(Clone)]
pub struct LinkTls {
    server: ServerTls,
    client: ClientTls,
}

impl fmt::Debug for LinkTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkTls(…)")
    }
}

/// The settings of the link in the place of those of other listeners.
fn of_link(error: IdentityError) -> LinkError {
    match error {
        IdentityError::Config { setting, reason } => {
            let setting = match setting {
                "tlsCertificateFilePath" => CERTIFICATE,
                "tlsKeyFilePath" => KEY,
                _ => AUTHORITIES,
            };
            LinkError::Config { setting, reason }
        }
        other => LinkError::Config { setting: CERTIFICATE, reason: other.to_string() },
    }
}

impl LinkTls {
    /// From the files of the three settings, PEM; `None` if none of them is set. Files that change are used for
    /// connections made later; they are looked at that often.
    ///
    /// # Errors
    /// [`LinkError::Config`] if only some are set, or a file can't be used.
    pub fn load(
        certificate: &str,
        key: &str,
        authorities: &str,
        look_again: Duration,
    ) -> Result<Option<Self>, LinkError> {
        let settings = [(CERTIFICATE, certificate), (KEY, key), (AUTHORITIES, authorities)];
        if settings.iter().all(|(_, path)| path.is_empty()) {
            return Ok(None);
        }
        for (setting, path) in settings {
            let refuse = |reason: String| LinkError::Config { setting, reason };
            if path.is_empty() {
                return Err(refuse("all three files are needed, or none".to_owned()));
            }
            std::fs::File::open(path).map_err(|error| refuse(format!("{path}: {error}")))?;
        }
        let [certificate, key, trust] = [certificate, key, authorities].map(str::to_owned);
        let files =
            ClientFiles { trust: trust.clone(), certificate: certificate.clone(), key: key.clone(), look_again };
        let client = ClientTls::new(AUTHORITIES, files).map_err(of_link)?;
        let files = TlsFiles {
            certificate,
            key,
            trust,
            require_client_certificate: true,
            alpn: vec![b"h2".to_vec()],
            look_again,
            ..TlsFiles::default()
        };
        Ok(Some(Self { server: ServerTls::new(files).map_err(of_link)?, client }))
    }

    /// For a connection that a peer begins.
    pub(crate) fn server(&self) -> Arc<rustls::ServerConfig> {
        self.server.current()
    }

    /// For a connection that begins here, with the protocols to offer.
    pub(crate) fn client(&self, alpn: &[&[u8]]) -> Arc<rustls::ClientConfig> {
        let mut config = rustls::ClientConfig::clone(&self.client.current());
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

/// What a link is run with.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The own region.
    pub region: String,
    /// The program's version.
    pub version: String,
    /// Certificates; without them nothing is encrypted, and only regions whose entry says `http://` are spoken to.
    pub tls: Option<LinkTls>,
    /// Times.
    pub times: LinkTimes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_files_or_none() {
        let load = |certificate: &str, key: &str, authorities: &str| {
            LinkTls::load(certificate, key, authorities, Duration::ZERO)
        };
        assert!(load("", "", "").unwrap().is_none());
        let half = load("/nowhere/c.pem", "", "").unwrap_err();
        assert!(half.to_string().starts_with("regionLinkTlsCertificateFilePath: /nowhere/c.pem: "), "{half}");
        let half = load("", "k", "a").unwrap_err().to_string();
        assert_eq!(half, "regionLinkTlsCertificateFilePath: all three files are needed, or none");
        let file = |name: &str| format!("{}/tests/certs/{name}", env!("CARGO_MANIFEST_DIR"));
        let (west, key, trust) = (file("west.pem"), file("west.key"), file("authority.pem"));
        assert!(load(&west, &key, &trust).unwrap().is_some());
        let mixed = load(&west, &file("east.key"), &trust).unwrap_err().to_string();
        assert!(mixed.starts_with("regionLink"), "a key of another certificate: {mixed}");
        let none = load(&west, &key, &key).unwrap_err().to_string();
        assert!(none.starts_with("regionLinkTrustCertsFilePath: "), "{none}");
    }
}
