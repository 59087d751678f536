//! Mutual TLS of the region link: who the other side is, by its certificate.
//!
//! Invariants: N5 a region is who its certificate says: the region's name stands in it, as the common name, a DNS name or
//! the URI `meridian:region:NAME`, whoever dials; a certificate of a trusted authority that names another region is refused.
//! Failure: a sentence.
//! Must never know: calls.

use crate::config::LinkTls;
use hyper_util::rt::TokioIo;
use meridian_identity::tls;
use rustls::pki_types::{CertificateDer, ServerName};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, server};
use tokio_stream::wrappers::ReceiverStream;

/// Connections that are shaking hands at once; others wait in the listener's queue.
const HANDSHAKES: usize = 1024;
/// How long one may take for it.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Pause after the system let none in, e.g. for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
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

/// Connections whose other side has shown a certificate of a trusted authority, each with the files as they were when it
/// began, until the stream is dropped.
pub(crate) fn accepted(
    listener: TcpListener,
    tls: LinkTls,
) -> ReceiverStream<io::Result<server::TlsStream<TcpStream>>> {
    let (ready, connections) = mpsc::channel(HANDSHAKES);
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    tokio::spawn(async move {
        while let Ok(permit) = room.clone().acquire_owned().await {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ready.closed() => return,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "the region link lets nobody in for a moment");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let (ready, acceptor) = (ready.clone(), TlsAcceptor::from(tls.server()));
            tokio::spawn(async move {
                let _permit = permit;
                let _ = stream.set_nodelay(true);
                match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => drop(ready.send(Ok(stream)).await),
                    Ok(Err(error)) => tracing::debug!(%from, %error, "no TLS on the region link"),
                    Err(_) => tracing::debug!(%from, "TLS on the region link took too long"),
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;

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
