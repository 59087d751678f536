//! TLS between ledger clients and bookies.
//!
//! Role: the configurations in force are asked for at the beginning of each connection, so that renewed certificates count
//! without a restart; which files they come from is the caller's matter.
//! Failure: [`io::Error`] with what the other side did wrong.
//! Must never know: files, settings.

use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::wrappers::ReceiverStream;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections whose handshake is done and that wait to be served.
const ACCEPTED: usize = 64;
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The server side in force.
#[derive(Clone)]
pub struct ServerSide(pub Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>);

/// The client side in force.
#[derive(Clone)]
pub struct ClientSide(pub Arc<dyn Fn() -> Arc<rustls::ClientConfig> + Send + Sync>);

impl fmt::Debug for ServerSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerSide(…)")
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSide(…)")
    }
}

fn in_time<T>(outcome: Result<io::Result<T>, tokio::time::error::Elapsed>) -> io::Result<T> {
    outcome.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long")))
}

/// Shakes hands as the server.
pub(crate) async fn accept(
    side: &ServerSide,
    stream: TcpStream,
) -> io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    in_time(tokio::time::timeout(HANDSHAKE, TlsAcceptor::from((side.0)()).accept(stream)).await)
}

/// Shakes hands as the client of `host:port`.
pub(crate) async fn connect(
    side: &ClientSide,
    address: &str,
    stream: TcpStream,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    in_time(tokio::time::timeout(HANDSHAKE, TlsConnector::from((side.0)()).connect(name, stream)).await)
}

/// Connections of a port whose handshakes are done.
pub(crate) fn incoming(
    listener: TcpListener,
    side: ServerSide,
) -> ReceiverStream<io::Result<tokio_rustls::server::TlsStream<TcpStream>>> {
    let (done, accepted) = tokio::sync::mpsc::channel(ACCEPTED);
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = done.closed() => return,
            };
            match stream {
                Ok((stream, peer)) => {
                    let (side, done) = (side.clone(), done.clone());
                    tokio::spawn(async move {
                        match accept(&side, stream).await {
                            Ok(stream) => drop(done.send(Ok(stream)).await),
                            Err(error) => tracing::info!(%peer, %error, "a TLS handshake failed"),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(accepted)
}
