//! Producers and consumers of one run.
//!
//! Invariants: B1 the n-th entry of a paced run is due at `start + n / rate`, whatever happened to those before; B2 due
//! times that no producer has taken yet: [`DUE_QUEUE`] per producer, then the pacer waits (and is late, which B1 counts);
//! B3 a drain that gets more or less than expected fails.
//! Failure: [`BenchError`]; the first failure ends the run.
//! Must never know: what a run is for.

use crate::BenchError;
use crate::consumer::{Consumer, Received, Subscription};
use crate::entry::{EntryShape, WallClock};
use crate::link::{Link, Target};
use crate::producer::Producer;
use crate::record::Recorder;
use meridian_types::name::TopicName;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Due times that wait for one producer.
pub const DUE_QUEUE: usize = 1024;
/// A drain without progress for so long has failed.
pub const STALL: Duration = Duration::from_secs(60);
/// The longest sleep of the pacer between two looks at the stop flag.
const PACER_STEP: Duration = Duration::from_millis(50);

/// When entries are due.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    start: Instant,
    entries_per_s: f64,
}

impl Schedule {
    /// A steady schedule; the first entry is due at `start`.
    pub fn new(start: Instant, entries_per_s: f64) -> Self {
        debug_assert!(entries_per_s > 0.0);
        Self { start, entries_per_s }
    }

    /// When entry `index` is due.
    pub fn due(&self, index: u64) -> Instant {
        self.start + Duration::from_secs_f64(index as f64 / self.entries_per_s)
    }
}

/// When a run ends.
#[derive(Debug, Clone, Default)]
pub struct Until {
    /// After this many messages (rounded up to whole entries).
    pub messages: Option<u64>,
    /// After this time.
    pub lasting: Option<Duration>,
    /// When this is set.
    pub stop: Arc<AtomicBool>,
}

impl Until {
    fn over(&self, start: Instant) -> bool {
        self.stop.load(Ordering::Relaxed) || self.lasting.is_some_and(|lasting| start.elapsed() >= lasting)
    }
}

/// What is published.
#[derive(Debug, Clone)]
pub struct Publishing {
    /// Where; producers are spread over them.
    pub topics: Vec<TopicName>,
    /// Producers, each on a connection of its own.
    pub producers: usize,
    /// What an entry is.
    pub shape: EntryShape,
    /// Entries that each producer may have in flight.
    pub window: u32,
    /// Messages per second of all producers together; `None`: as many as the windows let through.
    pub messages_per_s: Option<f64>,
    /// When it ends.
    pub until: Until,
}

enum Source {
    /// A pacer says when the next one is due, until it closes the queue.
    Paced(mpsc::Receiver<Instant>),
    /// The next one is due when there is room for it.
    FlatOut { left: u64, start: Instant, until: Until },
}

/// Producers that are connected and have sent nothing yet.
pub struct Fleet {
    producers: Vec<Producer>,
    plan: Publishing,
}

impl Fleet {
    /// Connects all producers.
    ///
    /// # Errors
    /// A producer cannot be opened.
    pub async fn open(target: &Target, plan: Publishing, receipts: &Arc<Recorder>) -> Result<Self, BenchError> {
        let mut producers = Vec::with_capacity(plan.producers);
        for topic in plan.topics.iter().cycle().take(plan.producers.max(plan.topics.len())) {
            let link = Link::to_owner(target, topic).await?;
            producers.push(Producer::open(link, topic, plan.shape, plan.window, receipts.clone()).await?);
        }
        Ok(Self { producers, plan })
    }

    /// Publishes until the end, and until every receipt is there.
    ///
    /// # Errors
    /// A send failed.
    pub async fn run(self) -> Result<(), BenchError> {
        let start = Instant::now();
        let entries = self.plan.until.messages.map(|count| count.div_ceil(u64::from(self.plan.shape.messages())));
        let entries = entries.unwrap_or(u64::MAX);
        let count = self.producers.len() as u64;
        let mut pacer_queues = Vec::new();
        let mut tasks = JoinSet::new();
        for (index, producer) in self.producers.into_iter().enumerate() {
            let source = if self.plan.messages_per_s.is_some() {
                let (sender, receiver) = mpsc::channel(DUE_QUEUE);
                pacer_queues.push(sender);
                Source::Paced(receiver)
            } else {
                let left = entries / count + u64::from((index as u64) < entries % count);
                Source::FlatOut { left, start, until: self.plan.until.clone() }
            };
            tasks.spawn(produce(producer, source));
        }
        if let Some(rate) = self.plan.messages_per_s {
            let schedule = Schedule::new(start, rate / f64::from(self.plan.shape.messages()));
            let until = self.plan.until.clone();
            tasks.spawn_blocking(move || {
                pace(schedule, entries, &until, &pacer_queues);
                Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            let ended = ended.unwrap_or_else(|panic| Err(BenchError::Wrong(panic.to_string())));
            if ended.is_err() {
                self.plan.until.stop.store(true, Ordering::Relaxed);
                return ended;
            }
        }
        Ok(())
    }
}

/// Hands out due times when they are due. Runs on a thread of its own: a runtime's timers are too coarse.
fn pace(schedule: Schedule, entries: u64, until: &Until, queues: &[mpsc::Sender<Instant>]) {
    for (index, queue) in (0..entries).zip(queues.iter().cycle()) {
        let due = schedule.due(index);
        loop {
            if until.over(schedule.start) {
                return;
            }
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
            std::thread::sleep(wait.min(PACER_STEP));
        }
        if queue.blocking_send(due).is_err() {
            return;
        }
    }
}

async fn produce(mut producer: Producer, mut source: Source) -> Result<(), BenchError> {
    loop {
        let due = match &mut source {
            Source::Paced(queue) => match queue.recv().await {
                Some(due) => due,
                None => break,
            },
            Source::FlatOut { left, start, until } => {
                if *left == 0 || until.over(*start) {
                    break;
                }
                *left -= 1;
                producer.ready().await?;
                Instant::now()
            }
        };
        producer.send(due).await?;
    }
    producer.close().await
}

/// Consumers of one subscription at work.
pub struct Drain {
    tasks: JoinSet<Result<(), BenchError>>,
    progress: Arc<Progress>,
}

struct Progress {
    messages: AtomicU64,
    /// `u64::MAX` until it is known.
    expected: AtomicU64,
    stop: Arc<AtomicBool>,
    deliveries: Arc<Recorder>,
}

impl Progress {
    fn done(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.messages.load(Ordering::Acquire) >= self.expected.load(Ordering::Acquire)
    }
}

impl Drain {
    /// Subscribes with `consumers` consumers, each on a connection of its own, and begins to receive.
    ///
    /// # Errors
    /// A consumer cannot be opened.
    pub async fn start(
        target: &Target,
        topic: &TopicName,
        subscription: &Subscription,
        consumers: usize,
        deliveries: &Arc<Recorder>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, BenchError> {
        let progress = Arc::new(Progress {
            messages: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            stop: stop.clone(),
            deliveries: deliveries.clone(),
        });
        let mut opened = Vec::with_capacity(consumers);
        for _ in 0..consumers {
            let link = Link::to_owner(target, topic).await?;
            opened.push(Consumer::open(link, topic, subscription).await?);
        }
        let mut tasks = JoinSet::new();
        for consumer in opened {
            tasks.spawn(consume(consumer, progress.clone()));
        }
        Ok(Self { tasks, progress })
    }

    /// Says how many messages have to come.
    pub fn expect(&self, messages: u64) {
        self.progress.expected.store(messages, Ordering::Release);
    }

    /// Waits until all that is expected has come, or until it is stopped, and answers how many came.
    ///
    /// # Errors
    /// Messages are missing or were repeated; a consumer ended.
    pub async fn join(mut self) -> Result<u64, BenchError> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap_or_else(|panic| Err(BenchError::Wrong(panic.to_string())))?;
        }
        let (came, expected) =
            (self.progress.messages.load(Ordering::Acquire), self.progress.expected.load(Ordering::Acquire));
        if came != expected && !self.progress.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Wrong(format!("{came} messages were delivered of {expected}: some came twice")));
        }
        Ok(came)
    }
}

async fn consume(mut consumer: Consumer, progress: Arc<Progress>) -> Result<(), BenchError> {
    let clock = WallClock::default();
    let mut batch: Vec<Received> = Vec::new();
    let (mut seen, mut seen_at) = (0, Instant::now());
    while !progress.done() {
        let messages = consumer.receive(&mut batch).await?;
        for received in batch.drain(..) {
            let latency = clock.unix(received.arrived).saturating_sub(received.facts.due_unix);
            progress.deliveries.record(latency, u64::from(received.facts.messages));
        }
        let came = progress.messages.fetch_add(u64::from(messages), Ordering::AcqRel) + u64::from(messages);
        let expected = progress.expected.load(Ordering::Acquire);
        if came != seen || expected == u64::MAX {
            (seen, seen_at) = (came, Instant::now());
        } else if seen_at.elapsed() > STALL {
            return Err(BenchError::Wrong(format!("only {came} messages were delivered of {expected}")));
        }
    }
    consumer.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_slip() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 3000.0);
        assert_eq!(schedule.due(0), start);
        let after = schedule.due(3_000_000_000).duration_since(start);
        assert!((after.as_secs_f64() - 1e6).abs() < 1e-3, "{after:?}");
    }

    #[test]
    fn the_pacer_hands_out_due_times_in_turn_even_when_late() {
        let start = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let schedule = Schedule::new(start, 1000.0);
        let (queues, mut receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel(8)).unzip();
        pace(schedule, 5, &Until::default(), &queues);
        let got: Vec<Vec<Instant>> =
            receivers.iter_mut().map(|queue| std::iter::from_fn(|| queue.try_recv().ok()).collect()).collect();
        assert_eq!(got[0], [0, 2, 4].map(|index| schedule.due(index)));
        assert_eq!(got[1], [1, 3].map(|index| schedule.due(index)));
    }
}
