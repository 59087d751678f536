//! What a link is run with: names, times, certificates, and the bounds of its queues.

use crate::error::LinkError;
use std::fmt;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

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
    /// A peer without a control link is asked again so often.
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

/// Certificate, key and authorities of a link, PEM.
#[derive(Clone)]
pub struct LinkTls {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

impl fmt::Debug for LinkTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkTls(…)")
    }
}

impl LinkTls {
    /// From PEM texts.
    pub fn new(certificate: Vec<u8>, key: Vec<u8>, authorities: Vec<u8>) -> Self {
        Self { certificate, key, authorities }
    }

    /// From the files of the three settings; `None` if none of them is set.
    ///
    /// # Errors
    /// [`LinkError::Config`] if only some are set, or a file can't be read.
    pub fn load(certificate: &str, key: &str, authorities: &str) -> Result<Option<Self>, LinkError> {
        let settings = [
            ("regionLinkTlsCertificateFilePath", certificate),
            ("regionLinkTlsKeyFilePath", key),
            ("regionLinkTrustCertsFilePath", authorities),
        ];
        if settings.iter().all(|(_, path)| path.is_empty()) {
            return Ok(None);
        }
        let mut read = settings.into_iter().map(|(setting, path)| match path {
            "" => Err(LinkError::Config { setting, reason: "all three files are needed, or none".to_owned() }),
            path => {
                std::fs::read(path).map_err(|error| LinkError::Config { setting, reason: format!("{path}: {error}") })
            }
        });
        let mut next = || read.next().unwrap_or_else(|| Ok(Vec::new()));
        Ok(Some(Self::new(next()?, next()?, next()?)))
    }

    pub(crate) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(Identity::from_pem(&self.certificate, &self.key))
            .client_ca_root(Certificate::from_pem(&self.authorities))
            .client_auth_optional(false)
            .timeout(std::time::Duration::from_secs(10))
    }

    pub(crate) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn authorities(&self) -> &[u8] {
        &self.authorities
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
        assert!(LinkTls::load("", "", "").unwrap().is_none());
        let half = LinkTls::load("/nowhere/c.pem", "", "").unwrap_err();
        assert!(half.to_string().starts_with("regionLinkTlsCertificateFilePath: /nowhere/c.pem: "), "{half}");
        let half = LinkTls::load("", "k", "a").unwrap_err().to_string();
        assert_eq!(half, "regionLinkTlsCertificateFilePath: all three files are needed, or none");
    }
}
