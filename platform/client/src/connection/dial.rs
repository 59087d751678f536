//! From an address to a connection: socket, TLS, CONNECT.
//!
//! Invariants: no frame larger than an unknown peer may send is taken before CONNECTED; the handshake has one deadline as
//! a whole; the system ends a connection whose bytes are not acknowledged for as long as the keep-alive allows, however
//! much is queued behind them.
//! Failure: [`ClientError::Connect`], a refusal as [`ClientError::Refused`], bad files as [`ClientError::Setting`].
//! Must never know: what the connection is for.

use super::inbound::Inbound;
use super::outbound::Outbound;
use super::{Connection, PeerFacts, Shared, Task, drive};
use crate::ClientError;
use crate::address::Endpoint;
use crate::peer::Peer;
use bytes::BytesMut;
use meridian_wire::encode::encode_command;
use meridian_wire::frame::{DEFAULT_MAX_MESSAGE_BYTES, Frame, FrameDecoder, FrameLimits};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{
    AuthData, BaseCommand, CommandAuthResponse, CommandConnect, CommandConnected, FeatureFlags,
};
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The newest version of the protocol that is spoken here.
pub(super) const PROTOCOL_VERSION: i32 = 21;
/// Challenges that are answered before CONNECTED.
const MAX_CHALLENGES: usize = 8;

/// Connects and shakes hands.
pub(crate) async fn dial(peer: &Peer, endpoint: &Endpoint) -> Result<Connection, ClientError> {
    let deadline_ms = peer.limits.connect_timeout_ms;
    match tokio::time::timeout(Duration::from_millis(deadline_ms), connect(peer, endpoint)).await {
        Ok(connected) => connected,
        Err(_) => {
            let reason = format!("not connected within {deadline_ms} ms");
            Err(ClientError::Connect { endpoint: endpoint.clone(), reason })
        }
    }
}

async fn connect(peer: &Peer, endpoint: &Endpoint) -> Result<Connection, ClientError> {
    let failed = |reason: String| ClientError::Connect { endpoint: endpoint.clone(), reason };
    let connector = match endpoint.address.tls {
        true => Some(peer.tls.connector().await?),
        false => None,
    };
    let stream = TcpStream::connect(endpoint.address.authority()).await.map_err(|error| failed(error.to_string()))?;
    configure(&stream, peer).map_err(|error| failed(error.to_string()))?;
    match connector {
        None => shake_hands(peer, endpoint, stream).await,
        Some(connector) => {
            let name = ServerName::try_from(endpoint.address.host.to_string())
                .map_err(|_| failed("the host is no name that a certificate could be for".to_owned()))?;
            let stream = connector.connect(name, stream).await.map_err(|error| failed(format!("TLS: {error}")))?;
            shake_hands(peer, endpoint, stream).await
        }
    }
}

fn configure(stream: &TcpStream, peer: &Peer) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let silence_ms = peer.limits.keep_alive.interval_ms.saturating_add(peer.limits.keep_alive.timeout_ms);
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, u32::try_from(silence_ms).unwrap_or(u32::MAX))?;
    Ok(())
}

async fn shake_hands<S>(peer: &Peer, endpoint: &Endpoint, mut stream: S) -> Result<Connection, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    write(&mut stream, endpoint, hello(peer, endpoint).await?).await?;
    let mut decoder = FrameDecoder::new(FrameLimits::before_connect());
    let mut buffer = BytesMut::new();
    for _ in 0..=MAX_CHALLENGES {
        let frame = read(&mut stream, endpoint, &decoder, &mut buffer).await?;
        match frame.command.body {
            Some(Body::Connected(connected)) => {
                let facts = facts(&connected, peer.limits.max_message_bytes);
                decoder.set_limits(FrameLimits::for_client(facts.max_message_bytes.max(DEFAULT_MAX_MESSAGE_BYTES)));
                return Ok(start(peer, endpoint, stream, facts, drive::Reader { decoder, buffer }));
            }
            Some(Body::AuthChallenge(_)) => {
                let answer = auth_response(&peer.credentials, &peer.client_version).await?;
                write(&mut stream, endpoint, answer.into()).await?;
            }
            Some(Body::Error(error)) => {
                return Err(ClientError::refused("the connection", error.error, &error.message));
            }
            Some(other) => return Err(super::unexpected("CONNECT", &other)),
            None => return Err(ClientError::Protocol("a frame without a command".to_owned())),
        }
    }
    Err(ClientError::Protocol(format!("more than {MAX_CHALLENGES} challenges")))
}

async fn hello(peer: &Peer, endpoint: &Endpoint) -> Result<BaseCommand, ClientError> {
    let auth = peer.credentials.message().await?;
    let features = FeatureFlags {
        supports_auth_refresh: Some(true),
        supports_broker_entry_metadata: Some(false),
        supports_get_partitioned_metadata_without_auto_creation: Some(true),
        supports_repl_dedup_by_lid_and_eid: Some(true),
        ..Default::default()
    };
    let connect = CommandConnect {
        client_version: peer.client_version.clone(),
        auth_method_name: auth.as_ref().map(|auth| auth.method.to_owned()),
        auth_data: auth.map(|auth| auth.data),
        protocol_version: Some(PROTOCOL_VERSION),
        proxy_to_broker_url: endpoint.behind_proxy.as_deref().map(str::to_owned),
        feature_flags: Some(features),
        ..Default::default()
    };
    Ok(connect.into())
}

/// The answer to a challenge: the credentials as they are now.
pub(super) async fn auth_response(
    credentials: &crate::auth::Credentials,
    client_version: &str,
) -> Result<CommandAuthResponse, ClientError> {
    let auth = credentials.message().await?;
    Ok(CommandAuthResponse {
        client_version: Some(client_version.to_owned()),
        response: Some(AuthData {
            auth_method_name: Some(auth.as_ref().map_or("none", |auth| auth.method).to_owned()),
            auth_data: Some(auth.map(|auth| auth.data).unwrap_or_default()),
        }),
        protocol_version: Some(PROTOCOL_VERSION),
    })
}

fn facts(connected: &CommandConnected, limit_bytes: usize) -> PeerFacts {
    let announced = connected.max_message_size.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes > 0);
    PeerFacts {
        server_version: connected.server_version.chars().take(256).collect(),
        protocol_version: connected.protocol_version(),
        features: connected.feature_flags.unwrap_or_default(),
        max_message_bytes: announced.unwrap_or(DEFAULT_MAX_MESSAGE_BYTES).min(limit_bytes),
    }
}

fn start<S>(peer: &Peer, endpoint: &Endpoint, stream: S, facts: PeerFacts, reader: drive::Reader) -> Connection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shared = Arc::new(Shared {
        endpoint: endpoint.clone(),
        facts,
        limits: peer.limits,
        credentials: peer.credentials.clone(),
        client_version: peer.client_version.clone(),
        connected_at: Instant::now(),
        last_id: AtomicU64::new(0),
        inbound: Mutex::new(Inbound::new(endpoint.address.tls, peer.limits.max_requests)),
        outbound: Outbound::new(peer.limits.outbound_bytes),
        ended: watch::Sender::new(false),
        authenticating: AtomicBool::new(false),
    });
    let handle = tokio::spawn(drive::drive(stream, reader, shared.clone()));
    Connection { shared: shared.clone(), _task: Arc::new(Task { handle, shared }) }
}

async fn write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    endpoint: &Endpoint,
    command: BaseCommand,
) -> Result<(), ClientError> {
    let failed = |error: std::io::Error| ClientError::Connect {
        endpoint: endpoint.clone(),
        reason: format!("the handshake could not be written: {error}"),
    };
    let mut frame = BytesMut::new();
    encode_command(&command, &mut frame);
    stream.write_all(&frame).await.map_err(failed)?;
    stream.flush().await.map_err(failed)
}

async fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    endpoint: &Endpoint,
    decoder: &FrameDecoder,
    buffer: &mut BytesMut,
) -> Result<Frame, ClientError> {
    let failed = |reason: String| ClientError::Connect { endpoint: endpoint.clone(), reason };
    loop {
        let frame = decoder.decode(buffer).map_err(|error| ClientError::Protocol(error.to_string()))?;
        if let Some(frame) = frame {
            return Ok(frame);
        }
        match stream.read_buf(buffer).await {
            Ok(0) => return Err(failed("the peer closed the connection during the handshake".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(failed(format!("the handshake could not be read: {error}"))),
        }
    }
}
