//! A broker of another region, as small as a link needs it. As Meridian it deduplicates by source position and gates behind
//! a refusal; as Pulsar it deduplicates by the highest position of each producer name and gates nothing.

use bytes::{Bytes, BytesMut};
use meridian_types::Position;
use meridian_wire::encode::{SendReceipt, encode_command, encode_send_receipt};
use meridian_wire::error::send_error;
use meridian_wire::frame::{FrameDecoder, Incoming};
use meridian_wire::payload::{split, verify_checksum};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::command_partitioned_topic_metadata_response::LookupType as PartitionsAnswer;
use meridian_wire::proto::{
    CommandConnected, CommandGetOrCreateSchemaResponse, CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse, CommandProducer, CommandProducerSuccess, CommandSuccess, FeatureFlags,
    ServerError,
};
use meridian_wire::replicate::source_position;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// How the broker behaves, and what it has seen.
#[derive(Default)]
pub struct State {
    /// What it has stored: source position and entry.
    pub stored: Vec<(Position, Bytes)>,
    /// Every producer that was opened.
    pub producers: Vec<CommandProducer>,
    /// Refuse sends with this text.
    pub refuse: Option<&'static str>,
    /// Take sends and say nothing.
    pub silent: bool,
    /// Take no schema, with this text.
    pub refuse_schemas: Option<&'static str>,
    /// Partitions of every topic.
    pub partitions: u32,
    /// Behave as Pulsar does.
    pub pulsar: bool,
    /// Topics keep nothing: entries have no source position, receipts the number of the send.
    pub live: bool,
    /// Refuse the message with this payload once.
    pub refuse_once: Option<&'static str>,
    names: HashMap<(u64, u64), String>,
    highest: HashMap<String, Position>,
    gates: HashMap<(u64, u64), Position>,
    connections: u64,
}

/// See the head of the file.
#[derive(Clone)]
pub struct Broker {
    pub state: Arc<Mutex<State>>,
    cut: Arc<Notify>,
    pub url: String,
}

impl Broker {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("pulsar://{}", listener.local_addr().unwrap());
        let broker = Self { state: Arc::default(), cut: Arc::new(Notify::new()), url };
        let serving = broker.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let broker = serving.clone();
                let number = {
                    let mut state = broker.state.lock();
                    state.connections += 1;
                    state.connections
                };
                tokio::spawn(async move {
                    tokio::select! {
                        () = broker.cut.notified() => {}
                        () = broker.serve(number, stream) => {}
                    }
                });
            }
        });
        broker
    }

    /// Resets every connection.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// Payloads stored, as text.
    pub fn texts(&self) -> Vec<String> {
        let state = self.state.lock();
        let text = |entry: &Bytes| String::from_utf8_lossy(split(entry).unwrap().payload).into_owned();
        state.stored.iter().map(|(_, entry)| text(entry)).collect()
    }

    async fn serve(&self, connection: u64, mut stream: TcpStream) {
        let mut inbound = BytesMut::new();
        loop {
            let mut out = BytesMut::new();
            while let Ok(Some(incoming)) = FrameDecoder::default().decode_incoming(&mut inbound) {
                self.answer(connection, incoming, &mut out);
            }
            if stream.write_all(&out).await.is_err() || !matches!(stream.read_buf(&mut inbound).await, Ok(1..)) {
                return;
            }
        }
    }

    fn answer(&self, connection: u64, incoming: Incoming, out: &mut BytesMut) {
        let mut state = self.state.lock();
        let frame = match incoming {
            Incoming::Send(header, entry) => {
                if !state.silent {
                    state.store((connection, header.producer_id), header.sequence_id, header.message_id, &entry, out);
                }
                return;
            }
            Incoming::Other(frame) => frame,
        };
        let answer = match frame.command.body.unwrap() {
            Body::Connect(_) => connected(state.pulsar).into(),
            Body::LookupTopic(asked) => CommandLookupTopicResponse {
                response: Some(LookupType::Connect as i32),
                broker_service_url: Some(self.url.clone()),
                authoritative: Some(true),
                request_id: asked.request_id,
                ..Default::default()
            }
            .into(),
            Body::PartitionMetadata(asked) => CommandPartitionedTopicMetadataResponse {
                partitions: Some(state.partitions),
                request_id: asked.request_id,
                response: Some(PartitionsAnswer::Success as i32),
                ..Default::default()
            }
            .into(),
            Body::Producer(opened) => {
                let success = CommandProducerSuccess {
                    request_id: opened.request_id,
                    producer_name: opened.producer_name.clone().unwrap_or_default(),
                    ..Default::default()
                };
                state.names.insert((connection, opened.producer_id), success.producer_name.clone());
                state.producers.push(opened);
                success.into()
            }
            Body::CloseProducer(closed) => CommandSuccess { request_id: closed.request_id, schema: None }.into(),
            Body::GetOrCreateSchema(asked) => match state.refuse_schemas {
                Some(text) => CommandGetOrCreateSchemaResponse {
                    request_id: asked.request_id,
                    error_code: Some(ServerError::IncompatibleSchema as i32),
                    error_message: Some(text.to_owned()),
                    ..Default::default()
                },
                None => CommandGetOrCreateSchemaResponse {
                    request_id: asked.request_id,
                    schema_version: Some(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 42])),
                    ..Default::default()
                },
            }
            .into(),
            _ => return,
        };
        encode_command(&answer, out);
    }
}

fn connected(pulsar: bool) -> CommandConnected {
    CommandConnected {
        server_version: if pulsar { "Pulsar Server 4.0.7" } else { "Pulsar Server Meridian/0.1" }.into(),
        protocol_version: Some(21),
        max_message_size: Some(5 * 1024 * 1024),
        feature_flags: Some(FeatureFlags {
            supports_repl_dedup_by_lid_and_eid: Some(true),
            supports_get_partitioned_metadata_without_auto_creation: Some(true),
            ..Default::default()
        }),
    }
}

impl State {
    fn store(
        &mut self,
        producer: (u64, u64),
        sequence_id: u64,
        named: Option<Position>,
        entry: &Bytes,
        out: &mut BytesMut,
    ) {
        assert_eq!(verify_checksum(entry), Ok(true));
        if self.live {
            assert_eq!((named, source_position(split(entry).unwrap().metadata)), (None, None));
            if let Some(text) = self.refuse {
                return encode_command(&send_error(producer.1, sequence_id, ServerError::PersistenceError, text), out);
            }
            self.stored.push((Position::EARLIEST, entry.clone()));
            let receipt = SendReceipt {
                producer_id: producer.1,
                sequence_id,
                highest_sequence_id: 0,
                position: Position::new(0, 0),
                partition: None,
            };
            return encode_send_receipt(&receipt, out);
        }
        let position = source_position(split(entry).unwrap().metadata).expect("a source position");
        assert_eq!(named, Some(position).filter(|_| !self.pulsar), "only Meridian knows what it means");
        let gated = !self.pulsar && self.gates.get(&producer).is_some_and(|refused| position > *refused);
        let body = split(entry).unwrap().payload;
        if self.refuse_once.take_if(|text| text.as_bytes() == body).is_some() {
            self.gates.insert(producer, position);
            return encode_command(
                &send_error(producer.1, sequence_id, ServerError::NotAllowedError, "too large"),
                out,
            );
        }
        if let Some(text) = self.refuse.or_else(|| gated.then_some("behind a refused one")) {
            self.gates.entry(producer).or_insert(position);
            return encode_command(&send_error(producer.1, sequence_id, ServerError::PersistenceError, text), out);
        }
        self.gates.remove(&producer);
        let name = if self.pulsar { self.names[&producer].clone() } else { String::new() };
        let highest = self.highest.get(&name).copied();
        let duplicate = highest.is_some_and(|highest| position <= highest);
        if !duplicate {
            self.stored.push((position, entry.clone()));
            self.highest.insert(name, position);
        }
        let receipt = SendReceipt {
            producer_id: producer.1,
            sequence_id: position.ledger_id.0 as u64,
            highest_sequence_id: position.entry_id.0 as u64,
            position: if duplicate { Position::EARLIEST } else { Position::new(500, self.stored.len() as i64) },
            partition: None,
        };
        encode_send_receipt(&receipt, out);
    }
}
