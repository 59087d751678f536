//! A link of a topic that keeps nothing, over a real socket.

use super::broker::Broker;
use super::{OneSchema, eventually, now_ms, numbers, quick};
use bytes::{Bytes, BytesMut};
use meridian_client::backoff::BackoffLimits;
use meridian_client::{Peer, PeerPool};
use meridian_replicator::{Bounds, LinkLimits, LiveParts, LiveQueue, LiveReplicator, PulsarRemote, ReadBudget};
use meridian_types::{Incarnation, TopicName};
use meridian_wire::metadata::MetadataSummary;
use meridian_wire::payload::{encode, split};
use meridian_wire::proto::MessageMetadata;
use std::ops::Range;
use std::sync::Arc;

fn link(url: &str, bounds: Bounds) -> Arc<LiveReplicator> {
    let topic = TopicName::parse("non-persistent://public/default/prices").unwrap();
    let mut peer = Peer::new(url).unwrap();
    peer.limits.backoff = BackoffLimits { min_ms: 1, max_ms: 20 };
    let target = PulsarRemote {
        pool: PeerPool::new(peer),
        topic: topic.clone(),
        partitions: 0,
        incarnation: Incarnation(0),
        local: "west".into(),
        remote: "east".into(),
        metadata: Vec::new(),
        max_waiting_entries: bounds.max_waiting_entries,
        max_waiting_bytes: bounds.max_waiting_bytes,
        schemas: Arc::new(OneSchema),
        maker: None,
    };
    LiveReplicator::start(LiveParts {
        topic,
        local: "west".into(),
        remote: "east".into(),
        target: Arc::new(target),
        schemas: Arc::new(OneSchema),
        bounds,
        budget: Arc::new(ReadBudget::new(1 << 20)),
        idle_ms: 300_000,
        limits: LinkLimits::default(),
        shared: None,
        clock: Arc::new(now_ms),
    })
}

fn entry(number: u64, change: impl Fn(&mut MessageMetadata)) -> (Bytes, u32) {
    let mut metadata = MessageMetadata { producer_name: "p".into(), sequence_id: number, ..Default::default() };
    change(&mut metadata);
    let mut payload = BytesMut::new();
    encode(&metadata, number.to_string().as_bytes(), &mut payload);
    (payload.freeze(), 1)
}

fn publish(queue: &LiveQueue, numbers: Range<u64>) {
    queue.offer(&numbers.map(|number| entry(number, |_| {})).collect::<Vec<_>>());
}

async fn broker() -> Broker {
    let east = Broker::start().await;
    east.state.lock().live = true;
    east
}

#[tokio::test]
async fn the_first_messages_and_all_later_ones_arrive_and_name_their_source() {
    let east = broker().await;
    let link = link(&east.url, quick());
    let queue = link.queue();
    publish(&queue, 0..3);
    eventually("the first ones arrive", || east.texts() == numbers(3)).await;
    for round in 0..20 {
        publish(&queue, 3 + round * 50..3 + (round + 1) * 50);
        eventually("they arrive", || east.texts().len() as u64 == 3 + (round + 1) * 50).await;
    }
    assert_eq!(east.texts(), numbers(1003));
    eventually("they are answered", || link.stats().counters.messages == 1003).await;
    let stats = link.stats();
    assert_eq!((stats.state.to_string().as_str(), stats.counters.dropped_messages), ("running", 0));
    assert!(stats.connected_since_ms.is_some() && stats.outbound_connection.is_some());
    let state = east.state.lock();
    assert_eq!(state.producers[0].producer_name.as_deref(), Some("pulsar.repl.west-->east"));
    let summary = MetadataSummary::decode(split(&state.stored[0].1).unwrap().metadata).unwrap();
    assert_eq!((summary.replicated_from, summary.producer_name), (Some("west"), "p"));
}

#[tokio::test]
async fn what_a_remote_that_is_away_misses_is_counted_and_what_was_not_for_it_is_not() {
    let link = link("pulsar://127.0.0.1:1", quick());
    let queue = link.queue();
    eventually("its absence is known", || link.stats().state.word() == "disconnected").await;
    publish(&queue, 0..7);
    let (elsewhere, from_there) = (vec!["north".to_owned()], Some("east".to_owned()));
    queue.offer(&[entry(7, |metadata| metadata.replicate_to = elsewhere.clone())]);
    queue.offer(&[entry(8, |metadata| metadata.replicated_from = from_there.clone())]);
    eventually("they are gone", || link.stats().queued_entries == 0).await;
    eventually("they are counted", || link.stats().counters.dropped_messages == 7).await;
    assert_eq!(link.stats().counters.messages, 0);
}

#[tokio::test]
async fn a_remote_that_takes_nothing_fills_the_queue_and_nobody_waits() {
    let east = broker().await;
    east.state.lock().silent = true;
    let link = link(&east.url, Bounds { max_waiting_entries: 10, ..quick() });
    let queue = link.queue();
    eventually("it is open", || link.stats().connected_since_ms.is_some()).await;
    // Ten may be on their way and ten wait.
    for number in 0..100 {
        publish(&queue, number..number + 1);
        tokio::task::yield_now().await;
    }
    let stats = link.stats();
    assert!(stats.counters.dropped_messages >= 80, "{stats:?}");
    assert!(stats.queued_entries <= 10, "{stats:?}");
    east.state.lock().silent = false;
    let stopped = tokio::time::Instant::now();
    link.stop().await;
    assert!(stopped.elapsed().as_millis() < u128::from(meridian_replicator::STOP_MS));
    publish(&queue, 200..300);
    assert_eq!((link.stats().state.word(), link.stats().queued_entries), ("stopped", 0));
}

#[tokio::test]
async fn messages_flow_again_after_a_cut_and_a_refusal() {
    let east = broker().await;
    let link = link(&east.url, quick());
    let queue = link.queue();
    publish(&queue, 0..1);
    eventually("it arrives", || east.texts().len() == 1).await;
    east.cut();
    let before = east.state.lock().producers.len();
    eventually("it is open again", || east.state.lock().producers.len() > before).await;
    let mut number = 1;
    let mut seen = 1;
    for _ in 0..20 {
        publish(&queue, number..number + 1);
        number += 1;
        seen += 1;
        eventually("the next arrives", || east.texts().len() >= seen).await;
    }
    east.state.lock().refuse = Some("over the quota");
    publish(&queue, number..number + 5);
    eventually("the refusal is shown", || link.stats().state.to_string().contains("over the quota")).await;
    eventually("and counted", || link.stats().counters.dropped_messages >= 5).await;
    east.state.lock().refuse = None;
    publish(&queue, number + 5..number + 6);
    eventually("the next arrives", || east.texts().len() > seen).await;
    eventually("all is well", || link.stats().state.word() == "running").await;
}

#[tokio::test]
async fn a_schema_goes_before_its_messages() {
    let east = broker().await;
    let link = link(&east.url, quick());
    let with_schema = |metadata: &mut MessageMetadata| metadata.schema_version = Some(Bytes::from_static(&[1]));
    link.queue().offer(&[entry(0, with_schema), entry(1, with_schema)]);
    eventually("they arrive", || east.texts().len() == 2).await;
    let state = east.state.lock();
    let summary = MetadataSummary::decode(split(&state.stored[1].1).unwrap().metadata).unwrap();
    assert_eq!(summary.schema_version, Some(&[0, 0, 0, 0, 0, 0, 0, 42][..]), "the remote's version");
}
