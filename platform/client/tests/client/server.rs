//! A broker that says what the test tells it to.

use bytes::{Bytes, BytesMut};
use meridian_client::{Connection, Endpoint, Peer, PeerPool};
use meridian_types::TopicName;
use meridian_wire::encode::{PONG, SendReceipt, encode_command, encode_send_receipt};
use meridian_wire::frame::{FrameDecoder, Incoming};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{BaseCommand, CommandConnect, CommandConnected, FeatureFlags};
use meridian_wire::send::SendHeader;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Whoever waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub struct Server {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    pub authority: String,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(None).await
    }

    pub async fn with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = format!("localhost:{}", listener.local_addr().unwrap().port());
        Self { listener, tls, authority }
    }

    pub fn url(&self) -> String {
        format!("pulsar{}://{}", if self.tls.is_some() { "+ssl" } else { "" }, self.authority)
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::direct(meridian_client::BrokerAddress::parse(&self.url()).unwrap())
    }

    /// A peer with short waits.
    pub fn peer(&self) -> Peer {
        let mut peer = Peer::new(&self.url()).unwrap();
        peer.limits.backoff = meridian_client::backoff::BackoffLimits { min_ms: 20, max_ms: 200 };
        peer.limits.request_timeout_ms = 5_000;
        peer
    }

    pub fn pool(&self) -> PeerPool {
        PeerPool::new(self.peer())
    }

    /// The next connection, about which nothing is known yet; `None` if TLS fails.
    pub async fn try_accept(&self) -> Option<Session> {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Some(match &self.tls {
            None => Session::over(stream),
            Some(tls) => Session::over(tls.accept(stream).await.ok()?),
        })
    }

    pub async fn accept(&self) -> Session {
        self.try_accept().await.expect("the TLS handshake failed")
    }

    /// The next connection, after CONNECT and CONNECTED.
    pub async fn connected(&self) -> Session {
        let mut session = self.accept().await;
        session.shake_hands(connected()).await;
        session
    }

    /// No connection comes for so long.
    pub async fn nobody_for(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.listener.accept()).await.is_err()
    }

    /// A pool, its connection to this server, and the server's end of it.
    pub async fn pair(&self, peer: Peer) -> (PeerPool, Connection, Session) {
        let pool = PeerPool::new(peer);
        let (connection, session) = tokio::join!(pool.any(), self.connected());
        (pool, connection.unwrap(), session)
    }
}

/// What a broker says first.
pub fn connected() -> CommandConnected {
    CommandConnected {
        server_version: "Pulsar Server-test Meridian/0.0".into(),
        protocol_version: Some(21),
        max_message_size: Some(5 * 1024 * 1024),
        feature_flags: Some(FeatureFlags {
            supports_repl_dedup_by_lid_and_eid: Some(true),
            supports_get_partitioned_metadata_without_auto_creation: Some(true),
            ..Default::default()
        }),
    }
}

pub fn topic() -> TopicName {
    TopicName::parse("persistent://public/default/t").unwrap()
}

pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("this takes too long")
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} does not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One connection, seen from the broker.
pub struct Session {
    pub stream: Box<dyn Stream>,
    buffer: BytesMut,
    pub pings: usize,
}

impl Session {
    fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: BytesMut::new(), pings: 0 }
    }

    pub async fn shake_hands(&mut self, answer: CommandConnected) -> CommandConnect {
        let Body::Connect(connect) = self.body().await else { panic!("no CONNECT") };
        self.send(answer).await;
        connect
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        // The client may have ended the connection; what it answers tells.
        let _ = within(self.stream.write_all(bytes)).await;
        let _ = within(self.stream.flush()).await;
    }

    pub async fn send(&mut self, command: impl Into<BaseCommand>) {
        let mut bytes = BytesMut::new();
        encode_command(&command.into(), &mut bytes);
        self.raw(&bytes).await;
    }

    /// Receipts in one write.
    pub async fn receipts(&mut self, receipts: &[SendReceipt]) {
        let mut bytes = BytesMut::new();
        receipts.iter().for_each(|receipt| encode_send_receipt(receipt, &mut bytes));
        self.raw(&bytes).await;
    }

    /// The next frame, or `None` if the connection has ended.
    pub async fn next(&mut self) -> Option<Incoming> {
        within(async {
            loop {
                if let Some(frame) = FrameDecoder::default().decode_incoming(&mut self.buffer).unwrap() {
                    return Some(frame);
                }
                match self.stream.read_buf(&mut self.buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
    }

    /// The next command but PING, which is answered.
    pub async fn body(&mut self) -> Body {
        self.try_body().await.expect("the connection has ended")
    }

    /// The next command but PING, which is answered; `None` if the connection has ended.
    pub async fn try_body(&mut self) -> Option<Body> {
        loop {
            match self.next().await? {
                Incoming::Send(header, _) => panic!("a SEND where none was due: {header:?}"),
                Incoming::Other(frame) => match frame.command.body.unwrap() {
                    Body::Ping(_) => {
                        self.pings += 1;
                        self.raw(&PONG).await;
                    }
                    body => return Some(body),
                },
            }
        }
    }

    /// The next SEND.
    pub async fn sent(&mut self) -> (SendHeader, Bytes) {
        loop {
            match self.next().await.expect("the connection has ended") {
                Incoming::Send(header, entry) => return (header, entry),
                Incoming::Other(frame) => match frame.command.body.unwrap() {
                    Body::Ping(_) => self.raw(&PONG).await,
                    other => panic!("{other:?} where a SEND was due"),
                },
            }
        }
    }

    /// Reads until the client ends the connection.
    pub async fn drained(&mut self) {
        while self.next().await.is_some() {}
    }
}
