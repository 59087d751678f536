//! A client that speaks frames, for tests.

use crate::fake::FakeFactory;
use bytes::{Bytes, BytesMut};
use meridian_broker::session::{Peer, serve};
use meridian_broker::{Access, BrokerConfig, BrokerParts, BrokerService};
use meridian_door::{Door, DoorConfig};
use meridian_metadata::{MemoryStore, SharedStore};
use meridian_policy::{BrokerDefaults, ClusterData};
use meridian_registry::Registry;
use meridian_wire::encode::{encode_command, encode_with_payload};
use meridian_wire::frame::{Frame, FrameDecoder};
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{
    BaseCommand, CommandConnect, CommandConnected, CommandProducer, CommandSend, CommandSubscribe, FeatureFlags,
    MessageMetadata,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(10);

/// A broker with fake topics.
pub struct Broker {
    pub service: Arc<BrokerService>,
    pub factory: Arc<FakeFactory>,
}

impl Broker {
    pub async fn start(config: BrokerConfig) -> Self {
        let factory = Arc::new(FakeFactory::default());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let registry = Registry::open(store.clone(), BrokerDefaults::default()).await.unwrap();
        registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
        let door = Arc::new(Door::new(DoorConfig::default(), registry.clone()));
        let access = Access { identity: None, door };
        let parts = BrokerParts { config, store, registry, factory: factory.clone(), access, linker: None };
        let service = BrokerService::new(parts).await.unwrap();
        service.start();
        Self { service, factory }
    }

    /// A connection that has said nothing yet. `room` bytes fit into it each way.
    pub fn open(&self, room: usize) -> Client {
        let (near, far) = tokio::io::duplex(room);
        let peer = Peer { address: "127.0.0.1:4711".parse().unwrap(), listener: None, certificates: None, login: None };
        tokio::spawn(serve(self.service.clone(), far, peer));
        Client::over(near)
    }

    /// A connection after CONNECT.
    pub async fn connect(&self) -> Client {
        let mut client = self.open(1 << 20);
        client.connect().await;
        client
    }
}

/// Both ways of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The client's end.
pub struct Client {
    pub stream: Box<dyn Stream>,
    buffer: BytesMut,
    decoder: FrameDecoder,
}

impl Client {
    pub fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: BytesMut::new(), decoder: FrameDecoder::default() }
    }

    pub async fn send(&mut self, command: impl Into<BaseCommand>) {
        let mut bytes = BytesMut::new();
        encode_command(&command.into(), &mut bytes);
        self.raw(&bytes).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        // The broker may have closed already; what it answers tells.
        let _ = tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the broker does not read");
    }

    /// The next frame, or `None` if the connection has ended.
    pub async fn next(&mut self) -> Option<Frame> {
        tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(frame) = self.decoder.decode(&mut self.buffer).unwrap() {
                    return Some(frame);
                }
                if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                    return None;
                }
            }
        })
        .await
        .expect("the broker says nothing")
    }

    /// The next command; PINGs are passed over.
    pub async fn body(&mut self) -> Body {
        loop {
            match self.next().await.expect("the connection has ended").command.body.unwrap() {
                Body::Ping(_) => {}
                body => return body,
            }
        }
    }

    /// Nothing but the end follows.
    pub async fn ended(&mut self) {
        let next = self.next().await;
        assert_eq!(next, None, "expected the end of the connection");
    }

    pub async fn connect(&mut self) -> CommandConnected {
        self.send(CommandConnect {
            client_version: "test-client".to_owned(),
            protocol_version: Some(21),
            feature_flags: Some(FeatureFlags { supports_broker_entry_metadata: Some(true), ..Default::default() }),
            ..Default::default()
        })
        .await;
        match self.body().await {
            Body::Connected(connected) => connected,
            other => panic!("not CONNECTED: {other:?}"),
        }
    }

    pub async fn producer(&mut self, producer_id: u64, topic: &str) {
        self.send(CommandProducer { topic: topic.to_owned(), producer_id, request_id: 100, ..Default::default() })
            .await;
        match self.body().await {
            Body::ProducerSuccess(success) => assert_eq!(success.request_id, 100),
            other => panic!("not PRODUCER_SUCCESS: {other:?}"),
        }
    }

    pub async fn subscribe(&mut self, consumer_id: u64, topic: &str) {
        self.send(CommandSubscribe {
            topic: topic.to_owned(),
            subscription: "s".to_owned(),
            consumer_id,
            request_id: 200,
            ..Default::default()
        })
        .await;
        match self.body().await {
            Body::Success(success) => assert_eq!(success.request_id, 200),
            other => panic!("not SUCCESS: {other:?}"),
        }
    }

    /// Sends messages with these sequence ids in one write.
    pub async fn publish(&mut self, producer_id: u64, sequence_ids: impl IntoIterator<Item = u64>) {
        let mut bytes = BytesMut::new();
        for sequence_id in sequence_ids {
            put_send(producer_id, sequence_id, &mut bytes);
        }
        self.raw(&bytes).await;
    }
}

/// An entry as clients send it.
pub fn entry(sequence_id: u64, body: &[u8]) -> Bytes {
    let metadata =
        MessageMetadata { producer_name: "p".to_owned(), sequence_id, publish_time: 1, ..Default::default() };
    let mut bytes = BytesMut::new();
    payload::encode(&metadata, body, &mut bytes);
    bytes.freeze()
}

pub fn put_send(producer_id: u64, sequence_id: u64, bytes: &mut BytesMut) {
    let entry = entry(sequence_id, b"hello");
    let send = CommandSend { producer_id, sequence_id, ..Default::default() };
    encode_with_payload(&send.into(), entry.len(), bytes);
    bytes.extend_from_slice(&entry);
}
