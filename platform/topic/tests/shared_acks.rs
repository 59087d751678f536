//! Subscriptions whose acknowledgements two regions share, over a channel that the test drives.

mod support;

use bytes::Bytes;
use meridian_cursors::exact::Limits;
use meridian_managed_ledger::ManagedLedger;
use meridian_managed_ledger::testing::TestRegion;
use meridian_topic::{
    AckListener, AckMode, AckPart, AckRefusal, AckRequest, AckSetup, AckSharing, ConsumerKey, InitialCursor,
    ProducerRequest, Publish, SeekTo, SubscribeRequest, SubscriptionStats, SubscriptionType, TopicHandle,
};
use meridian_types::{Position, RegionId, TopicName};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Bench, Client, DEADLINE, acks, limits, produce, send, subscribe};

struct Quiet;

impl AckListener for Quiet {
    fn acks_ready(&self, _: &TopicName) {}
}

/// One region with its topic.
struct Side {
    name: &'static str,
    bench: Bench,
    peers: Vec<&'static str>,
}

impl Side {
    async fn new(name: &'static str, peers: &[&'static str]) -> Self {
        let region = TestRegion::of(RegionId::of(name));
        Self { name, bench: Bench::with(region, limits()).await, peers: peers.to_vec() }.shared()
    }

    fn shared(self) -> Self {
        self.bench.topic.share_acks(AckSetup {
            region: self.id(),
            peers: self.peers.iter().map(|name| RegionId::of(name)).collect::<BTreeSet<_>>(),
            all: false,
            limits: Limits::default(),
            listener: Arc::new(Quiet),
        });
        self
    }

    /// Everything in memory is lost.
    async fn crash(self) -> Self {
        Self { bench: self.bench.crash().await, ..self }.shared()
    }

    fn id(&self) -> RegionId {
        RegionId::of(self.name)
    }

    fn log(&self) -> Arc<ManagedLedger> {
        self.bench.logs.opened("public/default/persistent/t").expect("the log is open")
    }

    fn stats(&self, subscription: &str) -> Option<SubscriptionStats> {
        self.bench.topic.stats().subscriptions.into_iter().find(|one| one.name == subscription)
    }

    fn backlog(&self, subscription: &str) -> Option<u64> {
        self.stats(subscription).map(|stats| stats.backlog_entries)
    }

    /// What was published here, in `from..to` of its own entries, comes to another region by a link.
    async fn copy(&self, other: &Side, from: usize, to: usize) {
        let log = self.log();
        let entries = log.read(log.first_position(), 10_000, u64::MAX).await.expect("readable");
        let own = entries.into_iter().filter(|entry| entry.origin.2 == entry.position && entry.origin.0 == self.id());
        let sends: Vec<Publish> = own
            .enumerate()
            .filter(|(index, _)| (from..to).contains(index))
            .map(|(index, entry)| Publish {
                source: Some(entry.position),
                messages: entry.messages,
                payload: entry.payload,
                ..send(index as u64, "")
            })
            .collect();
        let client = Client::new();
        let mut request = ProducerRequest {
            receipts_by_position: true,
            ..produce(&client, 7, &format!("pulsar.repl.{}-->{}", self.name, other.name))
        };
        let incarnation = self.log().incarnation().0.to_string();
        for (key, value) in [("region", self.name), ("incarnation", incarnation.as_str()), ("link", "1")] {
            request.metadata.insert(format!("meridian.{key}"), value.to_owned());
        }
        let producer = other.bench.topic.add_producer(request).await.expect("the link is let in").key;
        let count = sends.len();
        other.bench.topic.publish(producer, sends);
        client.receipts(7, count).await;
        other.bench.topic.remove_producer(producer).await;
    }

    async fn consume(&self, client: &Arc<Client>, sub_type: SubscriptionType) -> ConsumerKey {
        let request = SubscribeRequest { replicate_state: Some(true), ..subscribe("s", sub_type, "c") };
        let key = self.bench.consumer(client, 1, request).await;
        self.bench.topic.flow(key, 1000);
        key
    }

    fn take(&self, other: &Side) -> Vec<AckPart> {
        self.bench.topic.take_acks(other.id(), 1 << 20)
    }

    async fn tell(&self, other: &Side) {
        for part in self.take(other) {
            let AckPart { subscription, version, payload } = part;
            let received = other.bench.topic.receive_acks(self.id(), subscription.clone(), payload).await;
            match received {
                Ok(()) => self.bench.topic.acks_confirmed(other.id(), &subscription, version),
                Err(AckRefusal::Later(_)) => self.bench.topic.acks_lost(other.id()),
                Err(AckRefusal::Never(why)) => panic!("{why}"),
            }
        }
    }
}

/// The regions talk until something is so.
async fn until(sides: &[&Side], what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for from in sides {
            for to in sides.iter().filter(|to| to.name != from.name) {
                from.tell(to).await;
            }
        }
        if check() {
            return;
        }
        let seen: Vec<_> = sides
            .iter()
            .map(|side| {
                (
                    side.name,
                    side.stats("s")
                        .map(|s| (s.backlog_entries, s.acks, s.cursor.map(|c| (c.mark_delete, c.acked_ranges)))),
                )
            })
            .collect();
        assert!(Instant::now() < deadline, "{what}: {seen:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn pair() -> (Side, Side) {
    (Side::new("west", &["east"]).await, Side::new("east", &["west"]).await)
}

fn pick(positions: &[Position], which: &[usize]) -> Vec<Position> {
    which.iter().map(|index| positions[*index]).collect()
}

#[tokio::test]
async fn acks_in_holes_are_not_delivered_in_the_other_region() {
    let (west, east) = pair().await;
    let positions = west.bench.publish_numbers(0, 10).await;
    west.copy(&east, 0, 10).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(10).await;
    west.bench.ack(consumer, &pick(&positions, &[0, 2, 5, 9]));
    until(&[&west, &east], "east knows the holes", || east.backlog("s") == Some(6)).await;
    assert!(east.stats("s").expect("created").replicated);
    let moved = Client::new();
    let consumer = east.consume(&moved, SubscriptionType::Shared).await;
    assert_eq!(moved.received(6).await, ["1", "3", "4", "6", "7", "8"]);
    // And back: what is acked in east is acked in west, whose consumer holds it.
    let held: Vec<Position> = moved.got.lock().iter().map(|(_, delivery)| delivery.position).collect();
    east.bench.ack(consumer, &held);
    until(&[&west, &east], "west knows the rest", || west.backlog("s") == Some(0)).await;
    assert_eq!(west.stats("s").expect("there").unacked_messages, 0);
    assert_eq!(moved.texts().len(), 6, "nothing more was delivered");
}

#[tokio::test]
async fn parts_of_batches_are_acked_in_the_other_region() {
    let (west, east) = pair().await;
    let client = Client::new();
    let producer = west.bench.producer(&client, 1, "p").await;
    west.bench.topic.publish(producer, vec![Publish { messages: 4, ..send(0, "batch") }, send(1, "one")]);
    let batch = client.receipts(1, 2).await[0].position;
    west.copy(&east, 0, 2).await;
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(2).await;
    let part = |words: u64| AckRequest { ids: vec![(batch, vec![words])], ..acks(&[]) };
    west.bench.topic.ack(consumer, part(0b1110));
    west.bench.topic.ack(consumer, part(0b1011));
    let words = |side: &Side| {
        let cursor = side.log().cursor("s")?;
        cursor.unacked_batch_indexes(side.log().first_position())
    };
    until(&[&west, &east], "east knows the part", || words(&east) == Some(vec![0b1010])).await;
    let moved = Client::new();
    let consumer = east.consume(&moved, SubscriptionType::Shared).await;
    moved.received(2).await;
    let sets: Vec<Vec<u64>> = moved.got.lock().iter().map(|(_, delivery)| delivery.ack_set.clone()).collect();
    assert_eq!(sets, [vec![0b1010], vec![]]);
    // The rest of the batch is acked in east: together it is whole, in both.
    let first = moved.got.lock()[0].1.position;
    east.bench.topic.ack(consumer, AckRequest { ids: vec![(first, vec![0b0101])], ..acks(&[]) });
    until(&[&west, &east], "the batch is whole in west", || west.backlog("s") == Some(1)).await;
}

#[tokio::test]
async fn cumulative_acks_move_mark_delete_in_the_other_region() {
    let (west, east) = pair().await;
    let positions = west.bench.publish_numbers(0, 100).await;
    west.copy(&east, 0, 100).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Exclusive).await;
    client.received(100).await;
    west.bench.topic.ack(consumer, AckRequest { mode: AckMode::Cumulative, ..acks(&positions[69..70]) });
    until(&[&west, &east], "east follows", || east.backlog("s") == Some(30)).await;
    let cursor = east.stats("s").and_then(|stats| stats.cursor).expect("a cursor");
    assert_eq!(cursor.acked_range_count, 0);
}

#[tokio::test]
async fn what_is_acked_before_it_arrives_is_never_delivered() {
    let (west, east) = pair().await;
    let positions = west.bench.publish_numbers(0, 20).await;
    west.copy(&east, 0, 5).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(20).await;
    west.bench.ack(consumer, &pick(&positions, &[1, 7, 8, 12]));
    until(&[&west, &east], "east has the state", || {
        let acks = east.stats("s").and_then(|stats| stats.acks);
        acks.is_some_and(|acks| acks.applied && acks.scattered_entries == 4)
    })
    .await;
    // A consumer is connected while they arrive.
    let moved = Client::new();
    east.consume(&moved, SubscriptionType::Shared).await;
    assert_eq!(moved.received(4).await, ["0", "2", "3", "4"]);
    west.copy(&east, 5, 20).await;
    let rest = ["5", "6", "9", "10", "11", "13", "14", "15", "16", "17", "18", "19"];
    assert_eq!(moved.received(16).await[4..], rest);
    until(&[&west, &east], "they are acked in east", || east.backlog("s") == Some(16)).await;
}

/// The part is stored, the entries come after a crash.
#[tokio::test]
async fn what_was_told_survives_a_crash_before_it_is_applied() {
    let (west, mut east) = pair().await;
    let positions = west.bench.publish_numbers(0, 6).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(6).await;
    west.bench.ack(consumer, &pick(&positions, &[0, 1, 4]));
    let told =
        |side: &Side| side.stats("s").and_then(|stats| stats.acks).is_some_and(|acks| acks.scattered_entries == 1);
    let confirmed = || {
        let acks = west.stats("s").and_then(|stats| stats.acks);
        acks.is_some_and(|acks| acks.peers.iter().all(|(_, lag)| !lag.everything && lag.since_ms.is_none()))
    };
    until(&[&west, &east], "east has stored it", || told(&west) && told(&east) && confirmed()).await;
    // West is gone for good.
    east = east.crash().await;
    west.copy(&east, 0, 6).await;
    let moved = Client::new();
    east.consume(&moved, SubscriptionType::Shared).await;
    assert_eq!(moved.received(3).await, ["2", "3", "5"]);
    east.bench.until("they are acked in east", || east.backlog("s") == Some(3)).await;
}

/// Acks that were durable, but not told yet, are told after a crash.
#[tokio::test]
async fn acks_of_others_entries_are_told_after_a_crash() {
    let (mut west, east) = pair().await;
    east.bench.publish_numbers(0, 8).await;
    east.copy(&west, 0, 8).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(8).await;
    let got: Vec<Position> = client.got.lock().iter().map(|(_, delivery)| delivery.position).collect();
    west.bench.ack_durably(consumer, &pick(&got, &[0, 1, 2, 6])).await;
    west = west.crash().await;
    until(&[&west, &east], "east knows", || east.backlog("s") == Some(4)).await;
}

#[tokio::test]
async fn both_regions_produce_and_consume() {
    let (west, east) = pair().await;
    let mut keys = Vec::new();
    let clients = [Client::new(), Client::new()];
    for (side, client) in [&west, &east].into_iter().zip(&clients) {
        keys.push(side.consume(client, SubscriptionType::Shared).await);
    }
    until(&[&west, &east], "one epoch", || {
        let epochs = [&west, &east].map(|side| side.stats("s").and_then(|s| s.acks).map(|acks| acks.applied));
        epochs == [Some(true), Some(true)]
    })
    .await;
    for round in 0..5 {
        west.bench.publish_numbers(round * 10, 7).await;
        east.bench.publish_numbers(round * 10 + 500, 5).await;
        west.copy(&east, round * 7, round * 7 + 7).await;
        east.copy(&west, round * 5, round * 5 + 5).await;
    }
    // Creation in two places is one creation: the later one's consumer may have been closed.
    for (index, side) in [&west, &east].into_iter().enumerate() {
        if side.stats("s").is_some_and(|stats| stats.consumers.is_empty()) {
            keys[index] = side.consume(&clients[index], SubscriptionType::Shared).await;
        }
    }
    for (index, side) in [&west, &east].into_iter().enumerate() {
        clients[index].until("all", |client| (client.texts().len() >= 60).then_some(())).await;
        let all: Vec<Position> = clients[index].got.lock().iter().map(|(_, delivery)| delivery.position).collect();
        // West acks the first half of what it has, east every second.
        let mine: Vec<Position> = match index {
            0 => all[..30].to_vec(),
            _ => all.iter().step_by(2).copied().collect(),
        };
        side.bench.ack(keys[index], &mine);
    }
    until(&[&west, &east], "both have the same backlog", || {
        let (a, b) = (west.backlog("s"), east.backlog("s"));
        a == b && a.is_some_and(|left| left < 30)
    })
    .await;
}

#[tokio::test]
async fn a_seek_is_followed_and_what_came_before_it_does_not_count() {
    let (west, east) = pair().await;
    let positions = west.bench.publish_numbers(0, 10).await;
    west.copy(&east, 0, 10).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(10).await;
    west.bench.ack(consumer, &positions);
    until(&[&west, &east], "all acked in east", || east.backlog("s") == Some(0)).await;
    west.bench.topic.seek(consumer, SeekTo::Position(positions[4], Vec::new())).await.expect("the seek");
    until(&[&west, &east], "east went back, too", || east.backlog("s") == Some(6)).await;
    let moved = Client::new();
    east.consume(&moved, SubscriptionType::Shared).await;
    assert_eq!(moved.received(6).await, ["4", "5", "6", "7", "8", "9"]);
    // A seek in east moves west, and closes its consumers.
    let again = Client::new();
    west.consume(&again, SubscriptionType::Shared).await;
    again.received(6).await;
    east.bench
        .topic
        .reset_subscription("s".to_owned(), SeekTo::Position(Position::LATEST, Vec::new()))
        .await
        .expect("reset");
    until(&[&west, &east], "west went to the end", || west.backlog("s") == Some(0)).await;
    again.heard(support::Said::CloseConsumer(1)).await;
    let (here, there) = (west.stats("s").and_then(|s| s.acks), east.stats("s").and_then(|s| s.acks));
    assert_eq!(here.map(|acks| acks.epoch), there.map(|acks| acks.epoch));
}

#[tokio::test]
async fn deleted_once_is_deleted_everywhere_and_a_new_one_lives() {
    let (west, mut east) = pair().await;
    let positions = west.bench.publish_numbers(0, 4).await;
    west.copy(&east, 0, 4).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(4).await;
    west.bench.ack(consumer, &positions[..2]);
    until(&[&west, &east], "east has it", || east.backlog("s") == Some(2)).await;
    west.bench.topic.unsubscribe(consumer, false).await.expect("unsubscribed");
    until(&[&west, &east], "gone in east", || east.stats("s").is_none()).await;
    // The deletion is remembered over a crash.
    east = east.crash().await;
    assert!(east.stats("s").is_none());
    let moved = Client::new();
    east.consume(&moved, SubscriptionType::Shared).await;
    assert_eq!(moved.received(4).await, ["0", "1", "2", "3"]);
    until(&[&west, &east], "made anew in west", || west.backlog("s") == Some(4)).await;
    assert!(east.stats("s").is_some());
}

#[tokio::test]
async fn a_consumer_that_comes_first_to_the_second_region_does_not_move_the_subscription() {
    let (west, east) = pair().await;
    west.bench.publish_numbers(0, 6).await;
    west.copy(&east, 0, 6).await;
    let client = Client::new();
    let consumer = west.consume(&client, SubscriptionType::Shared).await;
    client.received(6).await;
    west.bench.region.advance(10);
    east.bench.region.advance(1000);
    // East has not heard of it when somebody subscribes there at the end.
    let late = SubscribeRequest {
        replicate_state: Some(true),
        initial: InitialCursor::Latest,
        ..subscribe("s", SubscriptionType::Shared, "late")
    };
    let moved = Client::new();
    east.bench.consumer(&moved, 1, late).await;
    assert_eq!(east.backlog("s"), Some(0));
    until(&[&west, &east], "east has what is not acked", || east.backlog("s") == Some(6)).await;
    assert_eq!(west.backlog("s"), Some(6));
    west.bench.topic.remove_consumer(consumer).await;
}

#[tokio::test]
async fn what_is_no_part_is_refused_and_others_are_not_heard() {
    let (west, east) = pair().await;
    let sharing: &dyn AckSharing = &*east.bench.topic;
    let refused = sharing.receive_acks(west.id(), "s".to_owned(), Bytes::from_static(&[9, 9])).await;
    assert!(matches!(refused, Err(AckRefusal::Never(_))), "{refused:?}");
    let state = meridian_cursors::exact::AckState::new(meridian_cursors::exact::Epoch::creation(1, RegionId(9)));
    let raw = Bytes::from(meridian_cursors::exact::encode(&state));
    let stranger = sharing.receive_acks(RegionId(9), "s".to_owned(), raw).await;
    assert!(matches!(stranger, Err(AckRefusal::Later(_))), "{stranger:?}");
    assert!(east.stats("s").is_none());
}
