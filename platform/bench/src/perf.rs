//! `perf produce` and `perf consume`: load for users who want to know what their region does.
//!
//! Role: options, one line per second, one at the end.
//! Invariants: B1; a line is about the second before it, the last one about everything.
//! Failure: [`BenchError`], with the reason as text.
//! Must never know: a server's insides.

use crate::BenchError;
use crate::consumer::Subscription;
use crate::entry::EntryShape;
use crate::link::{Link, Target};
use crate::load::{Drain, Fleet, Publishing, Until};
use crate::record::{Recorder, to_ms};
use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use meridian_types::name::TopicName;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Load on a region, and what it does to latency.
#[derive(Debug, Args)]
pub struct PerfArgs {
    #[command(subcommand)]
    command: PerfCommand,
}

#[derive(Debug, Subcommand)]
enum PerfCommand {
    /// Publish at a steady rate. Latency counts from when a send was due, so that it holds what a stall delayed.
    Produce(ProduceArgs),
    /// Consume, and say how old messages are when they arrive.
    Consume(ConsumeArgs),
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Where the region answers.
    #[arg(long, default_value = "pulsar://127.0.0.1:6650", value_name = "URL")]
    url: String,
    /// A token to authenticate with; better given as MERIDIAN_TOKEN in the environment.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Seconds until it ends; without, until it is interrupted.
    #[arg(long, value_name = "S")]
    duration: Option<u64>,
    /// The topic. All partitions of a partitioned one.
    topic: String,
}

impl TargetArgs {
    fn target(&self) -> Result<Target, BenchError> {
        Target::parse(&self.url, Target::token(self.token.clone()))
    }
}

#[derive(Debug, Args)]
struct ProduceArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Messages per second of all producers together; 0: as fast as receipts come (latency is then that of a full pipe).
    #[arg(long, default_value_t = 1000.0, value_name = "N", value_parser = parse_rate)]
    rate: f64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 1024, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4 << 20))]
    size: u32,
    /// Messages of a batch; 0: no batches. A batch is due as a whole.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    batch: u32,
    /// Producers, each on a connection of its own; at least one per partition.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    producers: u16,
    /// Entries that each producer may have in flight.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: u32,
    /// Different keys that entries go through; 0: none.
    #[arg(long, default_value_t = 0, value_name = "N")]
    keys: u32,
    /// Messages until it ends.
    #[arg(long, value_name = "N")]
    messages: Option<u64>,
}

#[derive(Debug, Args)]
struct ConsumeArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The subscription.
    #[arg(long, default_value = "perf", value_name = "NAME")]
    subscription: String,
    /// Its type.
    #[arg(long = "type", default_value = "exclusive")]
    sub_type: Type,
    /// Where a new subscription starts.
    #[arg(long, default_value = "latest")]
    from: Start,
    /// Consumers, each on a connection of its own.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    consumers: u16,
    /// Messages that each consumer may be sent ahead.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    permits: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Type {
    Exclusive,
    Shared,
    Failover,
    KeyShared,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Start {
    Latest,
    Earliest,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("expected a number of messages per second, 0 or more".into()),
    }
}

/// Runs it to its end.
///
/// # Errors
/// The region refuses, or the connection ends.
pub fn run(args: PerfArgs) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(BenchError::io("starting threads"))?.block_on(async {
        match args.command {
            PerfCommand::Produce(args) => produce(args).await,
            PerfCommand::Consume(args) => consume(args).await,
        }
    })
}

async fn topics(target: &Target, topic: &str) -> Result<Vec<TopicName>, BenchError> {
    let topic = TopicName::parse(topic)?;
    Link::connect(target).await?.partitions(&topic).await
}

async fn produce(args: ProduceArgs) -> Result<(), BenchError> {
    let target = args.target.target()?;
    let lasting = args.target.duration.map(Duration::from_secs);
    let until = Until { messages: args.messages, lasting, ..Until::default() };
    let shape = EntryShape {
        message_bytes: args.size as usize,
        batch_messages: (args.batch > 0).then_some(args.batch),
        keys: args.keys,
    };
    let publishing = Publishing {
        topics: topics(&target, &args.target.topic).await?,
        producers: usize::from(args.producers),
        shape,
        window: args.in_flight,
        messages_per_s: (args.rate > 0.0).then_some(args.rate),
        until: until.clone(),
    };
    let receipts = Arc::new(Recorder::default());
    let fleet = Fleet::open(&target, publishing, &receipts).await?;
    watch("published", u64::from(args.size), &receipts, &until.stop, None, fleet.run()).await
}

async fn consume(args: ConsumeArgs) -> Result<(), BenchError> {
    let target = args.target.target()?;
    let subscription = Subscription {
        name: args.subscription.clone(),
        sub_type: match args.sub_type {
            Type::Exclusive => SubType::Exclusive,
            Type::Shared => SubType::Shared,
            Type::Failover => SubType::Failover,
            Type::KeyShared => SubType::KeyShared,
        },
        start: match args.from {
            Start::Latest => InitialPosition::Latest,
            Start::Earliest => InitialPosition::Earliest,
        },
        permits: args.permits,
    };
    let (deliveries, stop) = (Arc::new(Recorder::default()), Arc::new(AtomicBool::new(false)));
    let mut drains = JoinSet::new();
    for topic in topics(&target, &args.target.topic).await? {
        let consumers = usize::from(args.consumers);
        let drain = Drain::start(&target, &topic, &subscription, consumers, &deliveries, &stop).await?;
        drains.spawn(drain.join());
    }
    let all = async move {
        while let Some(ended) = drains.join_next().await {
            ended.unwrap_or_else(|panic| Err(BenchError::Wrong(panic.to_string())))?;
        }
        Ok(())
    };
    let lasting = args.target.duration.map(Duration::from_secs);
    watch("received", 0, &deliveries, &stop, lasting, all).await
}

/// Prints a line a second until `work` ends; sets `stop` after `lasting` and when interrupted.
async fn watch(
    what: &str,
    message_bytes: u64,
    recorder: &Recorder,
    stop: &AtomicBool,
    lasting: Option<Duration>,
    work: impl Future<Output = Result<(), BenchError>>,
) -> Result<(), BenchError> {
    let start = Instant::now();
    let mut all = recorder.take();
    let (mut counted, mut counted_at) = (0, start);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    tokio::pin!(work);
    let ended = loop {
        tokio::select! {
            ended = &mut work => break ended,
            _ = tokio::signal::ctrl_c() => stop.store(true, Ordering::Relaxed),
            _ = seconds.tick() => {
                if lasting.is_some_and(|lasting| start.elapsed() >= lasting) {
                    stop.store(true, Ordering::Relaxed);
                }
                let (taken, count) = (recorder.take(), recorder.count());
                println!("{}", line(what, count - counted, counted_at.elapsed(), message_bytes, &taken));
                (counted, counted_at) = (count, Instant::now());
                add(&mut all, &taken);
            }
        }
    };
    add(&mut all, &recorder.take());
    println!("in all: {}", line(what, recorder.count(), start.elapsed(), message_bytes, &all));
    ended
}

fn add(all: &mut Histogram<u64>, more: &Histogram<u64>) {
    // Both have the same bounds, which is all that could be wrong.
    let added = all.add(more);
    debug_assert!(added.is_ok());
}

fn line(what: &str, messages: u64, time: Duration, message_bytes: u64, latencies: &Histogram<u64>) -> String {
    let rate = messages as f64 / time.as_secs_f64().max(1e-9);
    let volume = match message_bytes {
        0 => String::new(),
        bytes => format!(" ({:.1} MB/s)", rate * bytes as f64 / 1e6),
    };
    let at = |quantile| to_ms(latencies.value_at_quantile(quantile));
    let latency = if latencies.is_empty() {
        String::new()
    } else {
        let (median, p99, p999, max) = (at(0.5), at(0.99), at(0.999), to_ms(latencies.max()));
        format!("; latency ms: median {median:.3}, p99 {p99:.3}, p99.9 {p999:.3}, max {max:.3}")
    };
    format!("{what} {messages} messages, {rate:.0}/s{volume}{latency}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_rate_volume_and_percentiles() {
        let recorder = Recorder::default();
        assert_eq!(line("received", 0, Duration::from_secs(1), 0, &recorder.take()), "received 0 messages, 0/s");
        recorder.record(Duration::from_millis(2), 100);
        let text = line("published", 100, Duration::from_secs(2), 1_000_000, &recorder.take());
        assert!(text.starts_with("published 100 messages, 50/s (50.0 MB/s); latency ms: median 2.0"), "{text}");
    }

    #[test]
    fn rates_are_checked() {
        assert_eq!(parse_rate("0"), Ok(0.0));
        for bad in ["-1", "NaN", "inf", "fast"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
