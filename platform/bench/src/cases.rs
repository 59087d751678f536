//! The cases that are compared between servers; one JSON line each.
//!
//! Role: says what each case does and how much; runs it once small as a warm-up, then measured.
//! Invariants: B3; every case uses topics of its own, named after a tag of the run.
//! Failure: [`BenchError`] ends the run.
//! Must never know: which server it measures.

use crate::BenchError;
use crate::consumer::{Consumer, Subscription};
use crate::entry::EntryShape;
use crate::link::{Link, Target};
use crate::load::{Drain, Fleet, Publishing, Until};
use crate::producer::Producer;
use crate::record::{Recorder, put_percentiles};
use crate::server::{Server, put_spent};
use meridian_types::name::TopicName;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages that a batching producer of the usual clients may have in flight here.
const WINDOW_MESSAGES: u32 = 20_000;
/// What an unbatched producer of the usual clients has in flight by default.
const WINDOW_UNBATCHED: u32 = 1_000;
const PERMITS: u32 = 5_000;
const FLOOD_PRODUCERS: usize = 100;
const FLOOD_CONSUMERS: usize = 8;
const FLOOD_LASTING: Duration = Duration::from_secs(10);
const LONE_WARM_UP: u64 = 500;
const LONE_SENDS: u64 = 2_500;

/// A case by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// 400,000 messages of 1 KiB in batches of 125, consumed once.
    Batched,
    /// 1,000,000 messages of 100 B in batches of 1,000, consumed once.
    Small,
    /// 100,000 messages of 1 KiB, no batches, from several producers, consumed once.
    Unbatched,
    /// 100,000 messages of 1 KiB in batches of 125, consumed by five subscriptions.
    Fanout,
    /// 200,000 messages of 1 KiB in batches of 20 at 20,000 messages per second, consumed once.
    Paced,
    /// 100 producers without batches as fast as they can for 10 s, one Key_Shared subscription with 8 consumers.
    Flood,
    /// 400,000 messages of 1 KiB written before, read by one consumer.
    Catchup,
    /// One producer that waits for each receipt, 1 KiB.
    Latency,
}

/// How the cases are run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The broker.
    pub target: Target,
    /// Its processes and metrics.
    pub server: Server,
    /// Part of the topics' names.
    pub tag: String,
    /// Multiplies the number of messages (of `flood`: its time).
    pub scale: f64,
    /// Producers of `unbatched`.
    pub producers: usize,
    /// Messages per second instead of as fast as the windows let through.
    pub messages_per_s: Option<f64>,
    /// Empty the machine's page cache before `catchup` reads (needs root).
    pub drop_caches: bool,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    name: &'static str,
    messages: u64,
    producers: usize,
    subscriptions: usize,
    batch_messages: Option<u32>,
    message_bytes: usize,
    messages_per_s: Option<f64>,
}

const BATCHED: Plan = Plan {
    name: "batched-1k",
    messages: 400_000,
    producers: 1,
    subscriptions: 1,
    batch_messages: Some(125),
    message_bytes: 1024,
    messages_per_s: None,
};

impl Plan {
    fn shape(&self) -> EntryShape {
        EntryShape { message_bytes: self.message_bytes, batch_messages: self.batch_messages, keys: 0 }
    }

    fn entries(&self, messages: u64) -> u64 {
        messages.div_ceil(u64::from(self.shape().messages()))
    }

    fn publishing(&self, topic: &TopicName, messages: u64) -> Publishing {
        let window = self.batch_messages.map_or(WINDOW_UNBATCHED, |count| WINDOW_MESSAGES.div_ceil(count));
        let until = Until { messages: Some(messages), ..Until::default() };
        let (producers, shape) = (self.producers, self.shape());
        Publishing { topics: vec![topic.clone()], producers, shape, window, messages_per_s: self.messages_per_s, until }
    }
}

fn subscription(name: String, sub_type: SubType) -> Subscription {
    Subscription { name, sub_type, start: InitialPosition::Earliest, permits: PERMITS }
}

fn report(case: &str) -> Map<String, Value> {
    Map::from_iter([("case".to_owned(), json!(case))])
}

/// Runs one case and answers its line.
///
/// # Errors
/// The case could not be run, or lost or repeated messages.
pub async fn run(case: Case, settings: &Settings) -> Result<Map<String, Value>, BenchError> {
    let rate = settings.messages_per_s;
    match case {
        Case::Batched => stream(settings, Plan { messages_per_s: rate, ..BATCHED }).await,
        Case::Small => {
            let size = Plan { message_bytes: 100, batch_messages: Some(1_000), ..BATCHED };
            stream(settings, Plan { name: "batched-100b", messages: 1_000_000, messages_per_s: rate, ..size }).await
        }
        Case::Unbatched => {
            let one = Plan { batch_messages: None, producers: settings.producers, ..BATCHED };
            stream(settings, Plan { name: "unbatched-1k", messages: 100_000, messages_per_s: rate, ..one }).await
        }
        Case::Fanout => {
            let five = Plan { name: "fanout5-1k", messages: 100_000, subscriptions: 5, ..BATCHED };
            stream(settings, Plan { messages_per_s: rate, ..five }).await
        }
        Case::Paced => {
            let paced = Plan { name: "paced-1k", messages: 200_000, batch_messages: Some(20), ..BATCHED };
            stream(settings, Plan { messages_per_s: rate.or(Some(20_000.0)), ..paced }).await
        }
        Case::Flood => flood(settings).await,
        Case::Catchup => catch_up(settings).await,
        Case::Latency => lone(settings).await,
    }
}

impl Settings {
    fn topic(&self, name: &str) -> Result<TopicName, BenchError> {
        Ok(TopicName::parse(&format!("persistent://public/default/{name}-{}", self.tag))?)
    }

    /// A number of messages that fills whole entries of `plan`.
    fn messages(&self, plan: &Plan, share: f64) -> u64 {
        let entry = u64::from(plan.shape().messages());
        (((plan.messages as f64 * self.scale * share) as u64) / entry).max(1) * entry
    }
}

/// Publishes and consumes at the same time.
async fn stream(settings: &Settings, plan: Plan) -> Result<Map<String, Value>, BenchError> {
    let warm = settings.topic(&format!("{}-warm", plan.name))?;
    stream_once(settings, &plan, &warm, settings.messages(&plan, 0.25)).await?;
    let topic = settings.topic(plan.name)?;
    stream_once(settings, &plan, &topic, settings.messages(&plan, 1.0)).await
}

async fn stream_once(
    settings: &Settings,
    plan: &Plan,
    topic: &TopicName,
    messages: u64,
) -> Result<Map<String, Value>, BenchError> {
    let (receipts, deliveries) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let publishing = plan.publishing(topic, messages);
    let stop = publishing.until.stop.clone();
    let mut drains = Vec::new();
    for index in 0..plan.subscriptions {
        let subscription = subscription(format!("s{index}"), SubType::Exclusive);
        let drain = Drain::start(&settings.target, topic, &subscription, 1, &deliveries, &stop).await?;
        drain.expect(messages);
        drains.push(drain);
    }
    let fleet = Fleet::open(&settings.target, publishing, &receipts).await?;
    let from = settings.server.sample().await?;
    fleet.run().await?;
    for drain in drains {
        drain.join().await?;
    }
    let to = settings.server.sample().await?;
    let mut report = report(plan.name);
    if let Some(rate) = plan.messages_per_s {
        report.insert("rate_per_s".into(), json!(rate));
    }
    put_spent(&from, &to, messages, plan.entries(messages), &mut report);
    put_percentiles("publish", &receipts.take(), &mut report);
    put_percentiles("end_to_end", &deliveries.take(), &mut report);
    Ok(report)
}

async fn flood(settings: &Settings) -> Result<Map<String, Value>, BenchError> {
    let topic = settings.topic("flood")?;
    let lasting = FLOOD_LASTING.mul_f64(settings.scale);
    let (receipts, deliveries) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let publishing = Publishing {
        topics: vec![topic.clone()],
        producers: FLOOD_PRODUCERS,
        shape: EntryShape { message_bytes: 128, batch_messages: None, keys: 1_000 },
        window: WINDOW_UNBATCHED,
        messages_per_s: settings.messages_per_s,
        until: Until { lasting: Some(lasting), ..Until::default() },
    };
    let stop = publishing.until.stop.clone();
    let shared = subscription("shared".into(), SubType::KeyShared);
    let drain = Drain::start(&settings.target, &topic, &shared, FLOOD_CONSUMERS, &deliveries, &stop).await?;
    let fleet = Fleet::open(&settings.target, publishing, &receipts).await?;
    let from = settings.server.sample().await?;
    let publishing = tokio::spawn(fleet.run());
    tokio::time::sleep(lasting).await;
    let (published, delivered) = (receipts.count(), deliveries.count());
    publishing.await.unwrap_or_else(|panic| Err(BenchError::Wrong(panic.to_string())))?;
    let messages = receipts.count();
    drain.expect(messages);
    drain.join().await?;
    let to = settings.server.sample().await?;
    let mut report = report("flood-128b");
    put_spent(&from, &to, messages, messages, &mut report);
    let rate = |count: u64| json!((count as f64 / lasting.as_secs_f64()).round());
    report.insert("published_per_s".into(), rate(published));
    report.insert("delivered_per_s".into(), rate(delivered));
    let share = delivered as f64 / published.max(1) as f64;
    report.insert("delivered_of_published".into(), json!((share * 1e4).round() / 1e4));
    put_percentiles("publish", &receipts.take(), &mut report);
    put_percentiles("end_to_end", &deliveries.take(), &mut report);
    Ok(report)
}

async fn catch_up(settings: &Settings) -> Result<Map<String, Value>, BenchError> {
    let plan = Plan { name: "catchup-1k", ..BATCHED };
    let topic = settings.topic(plan.name)?;
    let messages = settings.messages(&plan, 1.0);
    let reader = Subscription { permits: 2 * PERMITS, ..subscription("reader".into(), SubType::Exclusive) };
    let link = Link::to_owner(&settings.target, &topic).await?;
    Consumer::open(link, &topic, &Subscription { permits: 1, ..reader.clone() }).await?.close().await?;
    let receipts = Arc::new(Recorder::default());
    Fleet::open(&settings.target, plan.publishing(&topic, messages), &receipts).await?.run().await?;
    if settings.drop_caches {
        std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(BenchError::io("emptying the page cache"))?;
    }
    let deliveries = Arc::new(Recorder::default());
    let from = settings.server.sample().await?;
    let drain = Drain::start(&settings.target, &topic, &reader, 1, &deliveries, &Arc::default()).await?;
    drain.expect(messages);
    drain.join().await?;
    let to = settings.server.sample().await?;
    let mut report = report(plan.name);
    put_spent(&from, &to, messages, plan.entries(messages), &mut report);
    let bytes_per_s = report.get("msg_per_s").and_then(Value::as_f64).unwrap_or_default() * plan.message_bytes as f64;
    report.insert("mb_per_s".into(), json!((bytes_per_s / 1e6).round()));
    Ok(report)
}

async fn lone(settings: &Settings) -> Result<Map<String, Value>, BenchError> {
    let topic = settings.topic("sync-send")?;
    let receipts = Arc::new(Recorder::default());
    let shape = EntryShape { message_bytes: 1024, batch_messages: None, keys: 0 };
    let link = Link::to_owner(&settings.target, &topic).await?;
    let mut producer = Producer::open(link, &topic, shape, 1, receipts.clone()).await?;
    for _ in 0..LONE_WARM_UP {
        producer.send(Instant::now()).await?;
        producer.flush().await?;
    }
    receipts.take();
    let sends = ((LONE_SENDS as f64 * settings.scale) as u64).max(1);
    let from = settings.server.sample().await?;
    for _ in 0..sends {
        producer.send(Instant::now()).await?;
        producer.flush().await?;
    }
    let to = settings.server.sample().await?;
    producer.close().await?;
    let mut report = report("sync-send-1k");
    put_spent(&from, &to, sends, sends, &mut report);
    put_percentiles("publish", &receipts.take(), &mut report);
    Ok(report)
}
