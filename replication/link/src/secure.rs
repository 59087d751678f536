//! Mutual TLS of the control link: who the other side is, by its certificate.
//!
//! Invariants: N5 a region is who its certificate says: the region's name stands in it, as the common name, a DNS name or
//! the URI `meridian:region:NAME`, whoever dials; a certificate of a trusted authority that names another region is refused.
//! Failure: a sentence.
//! Must never know: calls.

use crate::config::LinkTls;
use hyper_util::rt::TokioIo;
use meridian_identity::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// In front of a region's name in a URI.
const URI_PREFIX: &str = "meridian:region:";

/// Whether a certificate is one of a region.
///
/// # Errors
/// What it is instead.
pub(crate) fn is_of_region(certificate: Option<&CertificateDer<'_>>, region: &str) -> Result<(), String> {
    let certificate = certificate.ok_or("no certificate was shown")?;
    let names = tls::names(certificate).map_err(|error| error.to_string())?;
    let named = |name: &String| name == region || name.strip_prefix(URI_PREFIX) == Some(region);
    match names.iter().any(named) {
        true => Ok(()),
        false => Err(format!("the certificate is not of region {region}: it names {}", names.join(", "))),
    }
}

/// The client side, with the protocols to offer.
///
/// # Errors
/// A PEM text that can't be used.
pub(crate) fn client(link: &LinkTls, alpn: &[&[u8]]) -> Result<Arc<rustls::ClientConfig>, String> {
    let bad = |what: &str, error: &dyn std::fmt::Display| format!("{what} of the control link: {error}");
    let certificates = |what: &str, pem: &[u8]| {
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|error| bad(what, &error))
    };
    let mut roots = rustls::RootCertStore::empty();
    for authority in certificates("authorities", link.authorities())? {
        roots.add(authority).map_err(|error| bad("authorities", &error))?;
    }
    let key = PrivateKeyDer::from_pem_slice(link.key()).map_err(|error| bad("key", &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("TLS", &error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates("certificate", link.certificate())?, key)
        .map_err(|error| bad("certificate", &error))?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A connection whose server is the host that was dialled.
///
/// # Errors
/// What the system or the other side says.
pub(crate) async fn connect(
    config: Arc<rustls::ClientConfig>,
    host: &str,
    port: u16,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    TlsConnector::from(config).connect(name, stream).await
}

/// As [`connect`], and the server is of the region (N5).
///
/// # Errors
/// What the system or the other side says.
pub(crate) async fn connect_to_region(
    config: Arc<rustls::ClientConfig>,
    host: String,
    port: u16,
    region: String,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let stream = connect(config, &host, port).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    is_of_region(shown, &region).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
    Ok(TokioIo::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> CertificateDer<'static> {
        let file = format!("{}/tests/certs/{name}.pem", env!("CARGO_MANIFEST_DIR"));
        CertificateDer::from_pem_file(file).unwrap()
    }

    #[test]
    fn a_certificate_is_of_the_region_that_it_names() {
        assert_eq!(is_of_region(Some(&certificate("west")), "west"), Ok(()));
        let refused = is_of_region(Some(&certificate("stranger")), "west").unwrap_err();
        assert!(refused.starts_with("the certificate is not of region west: it names stranger"), "{refused}");
        assert!(is_of_region(Some(&certificate("west")), "wes").is_err());
        assert!(is_of_region(None, "west").is_err());
    }
}
