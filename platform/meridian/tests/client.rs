//! The client of replicators and tools against this binary as a process: messages, raw entries, questions, a crash.
#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use meridian_client::{
    Consumer, ConsumerOptions, LinkEvent, LinkOptions, LinkProducer, OutgoingEntry, OutgoingMessage, Peer, PeerPool,
    Producer, ProducerOptions,
};
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::payload;
use meridian_wire::proto::command_get_topics_of_namespace::Mode;
use meridian_wire::proto::schema::Type as SchemaType;
use meridian_wire::proto::{MessageMetadata, Schema, ServerError};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// One region; killed when dropped.
struct Region {
    process: Child,
    port: u16,
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Region {
    /// Starts over a folder; port 0 is any.
    fn start(folder: &Path, port: u16) -> Self {
        let ready = folder.join("ready.json");
        let _ = std::fs::remove_file(&ready);
        let mut process = Command::new(env!("CARGO_BIN_EXE_meridian"))
            .args([
                "standalone",
                "--set",
                "webServicePort=0",
                "--set",
                "advertisedAddress=localhost",
                "--set",
                "diskUsageThreshold=0.999",
                "--set",
            ])
            .arg(format!("brokerServicePort={port}"))
            .arg("--data-dir")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while !ready.exists() {
            assert_eq!(process.try_wait().unwrap(), None, "the region has ended");
            assert!(began.elapsed() < PATIENCE, "the region is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        let ready: serde_json::Value = serde_json::from_slice(&std::fs::read(&ready).unwrap()).unwrap();
        let port = u16::try_from(ready["binary_port"].as_u64().unwrap()).unwrap();
        Self { process, port }
    }

    fn pool(&self) -> PeerPool {
        PeerPool::new(Peer::new(&format!("pulsar://localhost:{}", self.port)).unwrap())
    }
}

fn topic(name: &str) -> TopicName {
    TopicName::parse(&format!("persistent://public/default/{name}")).unwrap()
}

fn raw(sequence_id: u64) -> OutgoingEntry {
    let metadata =
        MessageMetadata { producer_name: "origin".into(), sequence_id, publish_time: 1, ..Default::default() };
    let mut entry = BytesMut::new();
    payload::encode(&metadata, format!("raw-{sequence_id}").as_bytes(), &mut entry);
    OutgoingEntry {
        sequence_id,
        highest_sequence_id: None,
        num_messages: 1,
        marker: false,
        is_chunk: false,
        source: None,
        entry: entry.freeze(),
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("this takes too long")
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_come_back_also_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::start(folder.path(), 0);
    let pool = region.pool();
    let options = ProducerOptions { name: Some("steady".into()), ..ProducerOptions::new(topic("crash")) };
    let producer = within(Producer::open(&pool, options)).await.unwrap();
    for number in 0..10 {
        let payload = Bytes::from(format!("message-{number}"));
        let message = OutgoingMessage { payload, key: Some("k".into()), ..OutgoingMessage::default() };
        assert_eq!(within(producer.send(message)).await.unwrap().sequence_id, number);
    }
    let mut consumer = within(Consumer::open(&pool, ConsumerOptions::new(topic("crash"), "s"))).await.unwrap();
    let first = within(consumer.receive()).await.unwrap();
    assert_eq!(&payload::decode(&first.entry).unwrap().1[..], b"message-0");
    within(consumer.ack_confirmed(vec![first.id])).await.unwrap();

    let port = region.port;
    drop(region);
    let region = tokio::task::spawn_blocking({
        let folder = folder.path().to_owned();
        move || Region::start(&folder, port)
    });
    let (sent, region) = tokio::join!(within(producer.send_bytes("behind")), region);
    let _region = region.unwrap();
    assert_eq!(sent.unwrap().sequence_id, 10);
    let mut texts = Vec::new();
    while texts.last().map(Vec::as_slice) != Some(b"behind") {
        let received = within(consumer.receive()).await.unwrap();
        texts.push(payload::decode(&received.entry).unwrap().1.to_vec());
        within(consumer.ack(vec![received.id])).await.unwrap();
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 10, "the nine that were not acknowledged, and the one behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_entries_are_stored_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::start(folder.path(), 0);
    let pool = region.pool();
    let connection = within(pool.owner(&topic("raw"))).await.unwrap();
    assert!(connection.facts().max_message_bytes > 0);
    let options = LinkOptions { name: Some("tool".into()), ..LinkOptions::new(topic("raw")) };
    let (mut producer, mut events) = within(LinkProducer::open(&connection, &options)).await.unwrap();
    let run: Vec<_> = (0..100).map(raw).collect();
    producer.try_send(run.clone()).unwrap();
    let mut positions = Vec::new();
    while positions.len() < run.len() {
        for event in within(events.recv()).await.unwrap() {
            match event {
                LinkEvent::Receipt { sequence_id, position, .. } => {
                    assert_eq!(sequence_id, positions.len() as u64);
                    positions.push(position);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(positions.is_sorted());
    let mut consumer = within(Consumer::open(&pool, ConsumerOptions::new(topic("raw"), "s"))).await.unwrap();
    for (sent, position) in run.iter().zip(positions) {
        let received = within(consumer.receive()).await.unwrap();
        assert_eq!((received.position(), &received.entry), (position, &sent.entry));
    }
    within(consumer.close()).await.unwrap();
    within(producer.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::start(folder.path(), 0);
    let pool = region.pool();
    let missing = within(pool.partitions(&topic("missing"), false)).await;
    assert!(matches!(&missing, Ok(0)) || missing.unwrap_err().code() == Some(ServerError::TopicNotFound));
    let _producer = within(Producer::open(&pool, ProducerOptions::new(topic("asked")))).await.unwrap();
    let namespace = NamespaceName::parse("public/default").unwrap();
    let topics = within(pool.topics_of_namespace(&namespace, Mode::Persistent)).await.unwrap();
    assert_eq!(topics, [topic("asked").as_str()]);
    assert_eq!(within(pool.schema(&topic("asked"), None)).await.unwrap(), None);
    let schema = Schema {
        name: "asked".into(),
        schema_data: Bytes::from_static(br#"{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}"#),
        r#type: SchemaType::Json as i32,
        properties: vec![],
    };
    let version = within(pool.get_or_create_schema(&topic("asked"), schema.clone())).await.unwrap();
    let found = within(pool.schema(&topic("asked"), Some(version.clone()))).await.unwrap().unwrap();
    assert_eq!((found.schema.schema_data, found.version), (schema.schema_data, version));
}
