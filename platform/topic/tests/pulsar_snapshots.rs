//! Replicated subscriptions towards a Pulsar cluster that the test is: markers in the log, updates both ways.

mod support;

use bytes::{Bytes, BytesMut};
use meridian_cursors::snapshot::{ClusterPosition, Marker, RoundsConfig};
use meridian_managed_ledger::LogEntry;
use meridian_topic::{SnapshotSetup, SnapshotSharing, SubscribeRequest, SubscriptionType, TopicHandle};
use meridian_types::Position;
use meridian_wire::metadata::{MetadataSummary, replicate_to};
use meridian_wire::payload;
use meridian_wire::proto::MessageMetadata;
use std::sync::Arc;
use support::{Bench, Client, acks, subscribe};

fn setup(remotes: &[&str]) -> SnapshotSetup {
    SnapshotSetup {
        own: "west".to_owned(),
        remotes: remotes.iter().map(|name| (*name).to_owned()).collect(),
        connected: true,
        rounds: RoundsConfig::default(),
        cached: 30,
    }
}

async fn entries(bench: &Bench) -> Vec<LogEntry> {
    let log = bench.logs.opened("public/default/persistent/t").expect("open");
    let (mut all, mut next) = (Vec::new(), log.first_position());
    while next <= log.last_confirmed() {
        let some = log.read(next, 10_000, u64::MAX).await.expect("readable");
        next = some.last().expect("there is more").position.next_in_ledger();
        all.extend(some);
    }
    all
}

/// The markers in the log: place, body, and whom they may travel to.
async fn markers(bench: &Bench) -> Vec<(Position, Marker, Vec<String>)> {
    let of = |entry: &LogEntry| {
        let parts = payload::split(&entry.payload).expect("an entry");
        let summary = MetadataSummary::decode(parts.metadata).expect("metadata");
        assert_eq!(summary.producer_name, "pulsar.marker");
        let kind = summary.marker_type.expect("a kind");
        let marker = Marker::decode(kind, parts.payload).expect("a marker");
        (entry.position, marker, replicate_to(parts.metadata).map(str::to_owned).collect())
    };
    entries(bench).await.iter().filter(|entry| entry.marker).map(of).collect()
}

/// The same, once there are so many.
async fn markers_when(bench: &Bench, count: usize) -> Vec<(Position, Marker, Vec<String>)> {
    let deadline = std::time::Instant::now() + support::DEADLINE;
    loop {
        let found = markers(bench).await;
        if found.len() >= count {
            assert_eq!(found.len(), count, "{found:?}");
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "{count} markers, there are {found:?}");
        tokio::task::yield_now().await;
    }
}

/// The tick's marker, if it writes one, is in the log when this returns.
async fn tick(bench: &Bench, remotes: &[&str]) {
    bench.region.advance(1000);
    bench.topic.tick_snapshots(setup(remotes));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// As the other cluster's replicator brings it.
fn from_pulsar(bench: &Bench, marker: &Marker, position: Position) {
    let metadata = MessageMetadata {
        producer_name: "pulsar.marker".to_owned(),
        marker_type: Some(marker.kind().number()),
        replicated_from: Some("pulsar".to_owned()),
        ..MessageMetadata::default()
    };
    let mut entry = BytesMut::new();
    payload::encode(&metadata, &marker.encode(), &mut entry);
    let entry: Bytes = entry.freeze();
    bench.topic.subscription_marker(setup(&["pulsar"]), marker.kind().number(), entry, position);
}

async fn replicated(bench: &Bench, client: &Arc<Client>) -> meridian_topic::ConsumerKey {
    let request = SubscribeRequest { replicate_state: Some(true), ..subscribe("s", SubscriptionType::Shared, "c") };
    let key = bench.consumer(client, 1, request).await;
    bench.topic.flow(key, 1000);
    key
}

fn at_pulsar(entry: i64) -> ClusterPosition {
    ClusterPosition { cluster: "pulsar".to_owned(), position: Position::new(70, entry) }
}

fn backlog(bench: &Bench) -> u64 {
    bench.topic.stats().subscriptions.iter().map(|one| one.backlog_entries).sum()
}

#[tokio::test]
async fn a_snapshot_is_made_and_an_update_follows_mark_delete() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 10).await;
    let client = Client::new();
    let consumer = replicated(&bench, &client).await;
    client.received(10).await;
    tick(&bench, &["pulsar"]).await;
    let written = markers_when(&bench, 1).await;
    let Marker::Request { snapshot_id, source_cluster } = &written[0].1 else { panic!("{written:?}") };
    assert_eq!((source_cluster.as_str(), written[0].2.len()), ("west", 0));
    let answer = Marker::Response { snapshot_id: snapshot_id.clone(), cluster: at_pulsar(33) };
    from_pulsar(&bench, &answer, written[0].0);
    let written = markers_when(&bench, 2).await;
    let Marker::Snapshot { local, clusters, .. } = &written[1].1 else { panic!("{written:?}") };
    assert_eq!(
        (*local, clusters.as_slice(), written[1].2.as_slice()),
        (written[0].0, &[at_pulsar(33)][..], &["west".to_owned()][..])
    );
    // Markers are nobody's backlog, and nobody's messages.
    bench.until("markers are acked", || backlog(&bench) == 10).await;
    assert_eq!(client.texts().len(), 10);
    // Mark-delete does not pass the snapshot while a message before it is open.
    bench.ack(consumer, &positions[1..]);
    tick(&bench, &["pulsar"]).await;
    assert_eq!(markers(&bench).await.len(), 2);
    bench.ack(consumer, &positions[..1]);
    tick(&bench, &["pulsar"]).await;
    let written = markers_when(&bench, 3).await;
    assert_eq!(written[2].1, Marker::Update { subscription: "s".to_owned(), clusters: vec![at_pulsar(33)] });
    // Nothing new: no more markers.
    for _ in 0..100 {
        tick(&bench, &["pulsar"]).await;
    }
    assert_eq!(markers(&bench).await.len(), 3);
    let figures = bench.topic.snapshot_figures().expect("it has to do with Pulsar");
    assert_eq!((figures.started, figures.completed, figures.timed_out), (1, 1, 0));
}

/// B050, B051: nobody answers; few markers, no backlog.
#[tokio::test]
async fn b050_b051_requests_without_answers_are_few_and_are_nobodys_backlog() {
    let bench = Bench::new().await;
    bench.publish_numbers(0, 3).await;
    let at = meridian_topic::SeekTo::Position(Position::EARLIEST, Vec::new());
    bench.topic.create_subscription("s".to_owned(), at, Default::default(), true).await.expect("created");
    for _ in 0..600 {
        tick(&bench, &["pulsar"]).await;
    }
    let count = markers(&bench).await.len();
    assert!((10..30).contains(&count), "{count} markers in ten minutes");
    bench.until("markers are acked", || backlog(&bench) == 3).await;
    // Without a remote there is none.
    for _ in 0..100 {
        tick(&bench, &[]).await;
    }
    assert!(markers(&bench).await.len() <= count + 1);
}

#[tokio::test]
async fn another_clusters_update_acks_and_creates() {
    let bench = Bench::new().await;
    let positions = bench.publish_numbers(0, 10).await;
    let update = |position| Marker::Update {
        subscription: "s".to_owned(),
        clusters: vec![ClusterPosition { cluster: "west".to_owned(), position }],
    };
    from_pulsar(&bench, &update(positions[3]), positions[9]);
    bench
        .until("it is created and acked", || {
            bench.topic.stats().subscriptions.iter().any(|one| one.backlog_entries == 6)
        })
        .await;
    assert!(bench.topic.stats().subscriptions[0].replicated);
    let client = Client::new();
    let consumer = replicated(&bench, &client).await;
    assert_eq!(client.received(6).await, ["4", "5", "6", "7", "8", "9"]);
    // Forward only, and nothing that this log does not have.
    from_pulsar(&bench, &update(positions[1]), positions[9]);
    from_pulsar(&bench, &update(Position::new(9000, 0)), positions[9]);
    bench.topic.ack(consumer, acks(&positions[4..5]));
    bench.until("an ack", || backlog(&bench) == 5).await;
    // Others' requests are answered for them alone.
    from_pulsar(
        &bench,
        &Marker::Request { snapshot_id: "x".to_owned(), source_cluster: "pulsar".to_owned() },
        positions[9],
    );
    let written = markers_when(&bench, 1).await;
    let (_, marker, to) = written.last().expect("an answer");
    let Marker::Response { snapshot_id, cluster } = marker else { panic!("{marker:?}") };
    assert_eq!(
        (snapshot_id.as_str(), cluster.position, to.as_slice()),
        ("x", positions[9], &["pulsar".to_owned()][..])
    );
}
