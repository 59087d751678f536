//! The client and the load over a small broker made of the wire crate alone: it answers lookups, stores nothing, and can
//! be told to stall, refuse, lose or repeat.
#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use meridian_bench::cases::{self, Case, Settings};
use meridian_bench::consumer::Subscription;
use meridian_bench::entry::EntryShape;
use meridian_bench::link::Target;
use meridian_bench::load::{Drain, Fleet, Publishing, Until};
use meridian_bench::record::Recorder;
use meridian_bench::server::Server;
use meridian_types::Position;
use meridian_types::name::TopicName;
use meridian_wire::encode::{MessageHeader, SendReceipt, encode_command, encode_message, encode_send_receipt};
use meridian_wire::frame::{Frame, FrameDecoder, Incoming};
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use meridian_wire::proto::{
    BaseCommand, CommandConnected, CommandError, CommandLookupTopicResponse, CommandProducerSuccess, CommandSuccess,
};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    /// Waits so long before the first receipt.
    stall: Duration,
    refuse_producers: bool,
    /// Delivers the first entry twice.
    repeat: bool,
    /// Ends the connection after so many sends.
    hang_up_after: Option<u64>,
}

#[derive(Default)]
struct Topic {
    entries: Vec<(Bytes, u32)>,
    consumers: Vec<(u64, mpsc::UnboundedSender<Bytes>)>,
}

struct Broker {
    faults: Faults,
    topic: Mutex<Topic>,
    acked: Mutex<u64>,
    permits: Mutex<u64>,
    address: String,
}

impl Broker {
    async fn start(faults: Faults) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (topic, acked, permits) = Default::default();
        let broker = Arc::new(Self { faults, topic, acked, permits, address });
        let serving = broker.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        broker
    }

    fn target(&self) -> Target {
        Target::parse(&format!("pulsar://{}", self.address), None).unwrap()
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let (mut reads, mut writes) = stream.into_split();
        let (out, mut frames) = mpsc::unbounded_channel::<Bytes>();
        tokio::spawn(async move {
            while let Some(frame) = frames.recv().await {
                if writes.write_all(&frame).await.is_err() {
                    return;
                }
            }
        });
        let (decoder, mut buffer, mut sends) = (FrameDecoder::default(), BytesMut::new(), 0);
        while matches!(reads.read_buf(&mut buffer).await, Ok(1..)) {
            while let Some(incoming) = decoder.decode_incoming(&mut buffer).unwrap() {
                match incoming {
                    Incoming::Other(frame) => self.command(frame, &out),
                    Incoming::Send(header, entry) => {
                        if sends == 0 {
                            tokio::time::sleep(self.faults.stall).await;
                        }
                        sends += 1;
                        if self.faults.hang_up_after.is_some_and(|after| sends > after) {
                            return;
                        }
                        assert_eq!(payload::verify_checksum(&entry), Ok(true));
                        let mut receipt = BytesMut::new();
                        let (producer_id, sequence_id) = (header.producer_id, header.sequence_id);
                        let position = self.publish(entry, header.num_messages as u32);
                        let (partition, highest_sequence_id) = (None, 0);
                        encode_send_receipt(
                            &SendReceipt { producer_id, sequence_id, highest_sequence_id, position, partition },
                            &mut receipt,
                        );
                        let _ = out.send(receipt.freeze());
                    }
                }
            }
        }
    }

    fn publish(&self, entry: Bytes, messages: u32) -> Position {
        let mut topic = self.topic.lock().unwrap();
        let position = Position::new(1, topic.entries.len() as i64);
        let times = if self.faults.repeat && topic.entries.is_empty() { 2 } else { 1 };
        for (consumer_id, out) in &topic.consumers {
            for _ in 0..times {
                deliver(*consumer_id, position, &entry, out);
            }
        }
        topic.entries.push((entry, messages));
        position
    }

    fn command(&self, frame: Frame, out: &mpsc::UnboundedSender<Bytes>) {
        let reply = match frame.command.body.unwrap() {
            Body::Connect(_) => CommandConnected { server_version: "test".into(), ..Default::default() }.into(),
            Body::LookupTopic(lookup) => CommandLookupTopicResponse {
                broker_service_url: Some(format!("pulsar://{}", self.address)),
                response: Some(LookupType::Connect as i32),
                request_id: lookup.request_id,
                ..Default::default()
            }
            .into(),
            Body::Producer(producer) if self.faults.refuse_producers => {
                let request_id = producer.request_id;
                CommandError { request_id, error: 8, message: "quota".into() }.into()
            }
            Body::Producer(producer) => {
                let (request_id, producer_name) = (producer.request_id, "p".into());
                CommandProducerSuccess { request_id, producer_name, ..Default::default() }.into()
            }
            Body::Subscribe(subscribe) => {
                reply_to(subscribe.request_id, out);
                let mut topic = self.topic.lock().unwrap();
                for (index, (entry, _)) in topic.entries.iter().enumerate() {
                    deliver(subscribe.consumer_id, Position::new(1, index as i64), entry, out);
                }
                return topic.consumers.push((subscribe.consumer_id, out.clone()));
            }
            Body::CloseProducer(close) => return reply_to(close.request_id, out),
            Body::CloseConsumer(close) => return reply_to(close.request_id, out),
            Body::Flow(flow) => return *self.permits.lock().unwrap() += u64::from(flow.message_permits),
            Body::Ack(ack) => return *self.acked.lock().unwrap() += ack.message_id.len() as u64,
            other => panic!("{other:?}"),
        };
        send(&reply, out);
    }
}

fn send(command: &BaseCommand, out: &mpsc::UnboundedSender<Bytes>) {
    let mut frame = BytesMut::new();
    encode_command(command, &mut frame);
    let _ = out.send(frame.freeze());
}

fn reply_to(request_id: u64, out: &mpsc::UnboundedSender<Bytes>) {
    send(&CommandSuccess { request_id, ..Default::default() }.into(), out);
}

fn deliver(consumer_id: u64, position: Position, entry: &Bytes, out: &mpsc::UnboundedSender<Bytes>) {
    let mut frame = BytesMut::new();
    let header = MessageHeader {
        consumer_id,
        position,
        partition: None,
        redelivery_count: 0,
        ack_set: &[],
        consumer_epoch: None,
        broker_entry: None,
    };
    encode_message(&header, entry.len(), &mut frame);
    frame.extend_from_slice(entry);
    let _ = out.send(frame.freeze());
}

fn topic() -> TopicName {
    TopicName::parse("persistent://public/default/t").unwrap()
}

fn publishing(batch_messages: Option<u32>, messages: u64, messages_per_s: Option<f64>) -> Publishing {
    Publishing {
        topics: vec![topic()],
        producers: 1,
        shape: EntryShape { message_bytes: 64, batch_messages, keys: 0 },
        window: 8,
        messages_per_s,
        until: Until { messages: Some(messages), ..Until::default() },
    }
}

fn subscription() -> Subscription {
    Subscription { name: "s".into(), sub_type: SubType::Exclusive, start: InitialPosition::Earliest, permits: 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_published_is_delivered_and_acknowledged() {
    let broker = Broker::start(Faults::default()).await;
    let (receipts, deliveries) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let target = broker.target();
    let drain = Drain::start(&target, &topic(), &subscription(), 1, &deliveries, &Arc::default()).await.unwrap();
    drain.expect(1_000);
    let plan = Publishing { producers: 3, ..publishing(Some(10), 1_000, None) };
    Fleet::open(&target, plan, &receipts).await.unwrap().run().await.unwrap();
    assert_eq!(drain.join().await.unwrap(), 1_000);
    assert_eq!((receipts.count(), deliveries.count()), (1_000, 1_000));
    assert_eq!(*broker.acked.lock().unwrap(), 100, "one id per entry");
    assert!(*broker.permits.lock().unwrap() >= 1_000, "permits are granted again");
    assert!(deliveries.take().max() < 60_000_000_000, "stamps are of this run");
}

/// Coordinated omission: the server stalls once; every send that was due meanwhile has to show it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_shows_in_every_send_that_it_delayed() {
    let stall = Duration::from_millis(400);
    let broker = Broker::start(Faults { stall, ..Faults::default() }).await;
    let receipts = Arc::new(Recorder::default());
    let plan = publishing(None, 400, Some(1_000.0));
    Fleet::open(&broker.target(), plan, &receipts).await.unwrap().run().await.unwrap();
    let latencies = receipts.take();
    assert_eq!(latencies.len(), 400);
    // A closed loop would show the stall in the 8 entries of the window only.
    let delayed = latencies.count_between(150_000_000, u64::MAX);
    assert!(delayed >= 200, "{delayed} of 400 sends show a stall of 400 ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paced_run_keeps_its_rate() {
    let broker = Broker::start(Faults::default()).await;
    let receipts = Arc::new(Recorder::default());
    let began = Instant::now();
    let plan = publishing(Some(5), 1_000, Some(2_000.0));
    Fleet::open(&broker.target(), plan, &receipts).await.unwrap().run().await.unwrap();
    // 200 entries, 2.5 ms apart: the last one is due after 497.5 ms, never earlier.
    assert!(began.elapsed() >= Duration::from_millis(497));
    assert_eq!(receipts.count(), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_end_the_run_with_their_reason() {
    let refusing = Broker::start(Faults { refuse_producers: true, ..Faults::default() }).await;
    let receipts = Arc::new(Recorder::default());
    let refused = Fleet::open(&refusing.target(), publishing(None, 10, None), &receipts).await.err().unwrap();
    assert_eq!(refused.to_string(), "the broker refused a producer: quota (code 8)");

    let ending = Broker::start(Faults { hang_up_after: Some(20), ..Faults::default() }).await;
    for rate in [None, Some(100_000.0)] {
        let plan = publishing(None, 1_000_000, rate);
        let ended = Fleet::open(&ending.target(), plan, &receipts).await.unwrap().run().await.unwrap_err();
        assert!(ended.to_string().starts_with("the connection ended: "), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_message_fails_the_run() {
    let broker = Broker::start(Faults { repeat: true, ..Faults::default() }).await;
    let (receipts, deliveries) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let target = broker.target();
    let drain = Drain::start(&target, &topic(), &subscription(), 1, &deliveries, &Arc::default()).await.unwrap();
    drain.expect(15);
    Fleet::open(&target, publishing(Some(10), 10, None), &receipts).await.unwrap().run().await.unwrap();
    let repeated = drain.join().await.unwrap_err();
    assert!(repeated.to_string().contains("20 messages were delivered of 15"), "{repeated}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_case_prints_its_figures() {
    let broker = Broker::start(Faults::default()).await;
    let settings = Settings {
        target: broker.target(),
        server: Server { pids: vec![std::process::id()], ..Server::default() },
        tag: "test".into(),
        scale: 0.01,
        producers: 2,
        messages_per_s: None,
        drop_caches: false,
    };
    let report = cases::run(Case::Latency, &settings).await.unwrap();
    assert_eq!((report["case"].as_str(), report["messages"].as_u64()), (Some("sync-send-1k"), Some(25)));
    for figure in ["msg_per_s", "cpu_s_per_million", "rss_mib", "publish_p50_ms", "publish_p999_ms"] {
        assert!(report[figure].is_number(), "{figure} in {report:?}");
    }
}
