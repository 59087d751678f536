//! What idle topics cost in memory, log and metadata in memory included. A process of its own: it looks at its own size.

mod support;

use meridian_managed_ledger::LogSettings;
use meridian_topic::{PersistentTopic, TopicHandle};
use meridian_types::TopicName;
use support::{Bench, Client, limits, produce};

const TOPICS: u64 = 10_000;

/// Resident bytes of this process; `None` where the system does not tell.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

#[tokio::test]
async fn an_idle_topic_costs_four_kib_and_two_more_with_a_producer() {
    let bench = Bench::new().await;
    let Some(start) = resident_bytes() else { return };
    let mut topics = Vec::new();
    for i in 0..TOPICS {
        let name = TopicName::parse(&format!("persistent://public/default/topic-{i}")).expect("a good name");
        let opened =
            PersistentTopic::open(name, &bench.logs, LogSettings::default(), limits(), bench.deps.clone()).await;
        topics.push(opened.expect("the topic opens"));
    }
    let open = resident_bytes().unwrap_or(start);
    let per_topic = open.saturating_sub(start) / TOPICS;
    assert!(per_topic <= 4096, "{per_topic} bytes per idle topic");
    let client = Client::new();
    for (topic, id) in topics.iter().zip(0..) {
        topic.add_producer(produce(&client, id, "p")).await.expect("the producer is let in");
    }
    let per_producer = resident_bytes().unwrap_or(open).saturating_sub(open) / TOPICS;
    assert!(per_producer <= 2048, "{per_producer} bytes more with a producer");
}
