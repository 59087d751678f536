//! The link of a topic that keeps nothing to a remote region: best effort, without a cursor.
//!
//! Role: [`machine`] decides (pure), [`queue`] is what the topic hands over to, [`LiveReplicator`] is the shell: one task.
//! Invariants: V1–V5 of [`machine`], Q1–Q3 of [`queue`]; W1 publishing never waits for a link; W2 every wait of the task has
//! a deadline or ends with an order; W3 a stop ends within [`STOP_MS`] whatever the remote does.
//! Failure: nothing ends a link but a stop; every trouble is a state with its reason, and what is lost is counted.
//! Must never know: topics, policies, logs.

pub mod machine;
pub mod queue;
#[cfg(test)]
mod tests;
pub mod words;

use crate::budget::ReadBudget;
use crate::machine::limit::{LinkLimits, SharedLimit};
use crate::machine::state::LinkState;
use crate::machine::words::{Now, OpenFailure};
use crate::machine::{Bounds, LinkConfig};
use crate::remote::{LocalSchemas, Remote, Session, SessionEvent};
use crate::replicator::{CLOSE_MS, Clock, OPEN_MS, STEPS_PER_TURN, STOP_MS, session_events, take};
use crate::source::BoxFuture;
use crate::stats::{Meter, Totals};
use bytes::Bytes;
use machine::LiveMachine;
use meridian_types::TopicName;
use parking_lot::Mutex;
use queue::LiveQueue;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use words::{LiveCounters, LiveEffect, LiveEvent};

/// How long bringing one schema over may take: messages wait for it.
const SCHEMA_MS: u64 = 10_000;

/// What a link is made of.
#[derive(Clone)]
pub struct LiveParts {
    /// The topic or partition.
    pub topic: TopicName,
    /// Name of the region here.
    pub local: Arc<str>,
    /// Name of the region there.
    pub remote: Arc<str>,
    /// The topic there.
    pub target: Arc<dyn Remote>,
    /// The topic's schemas here.
    pub schemas: Arc<dyn LocalSchemas>,
    /// Bounds; those of what waits for receipts are also those of the queue.
    pub bounds: Bounds,
    /// What all links to the remote may hold.
    pub budget: Arc<ReadBudget>,
    /// It closes after so long without messages.
    pub idle_ms: u64,
    /// Limits at first.
    pub limits: LinkLimits,
    /// The limit of the namespace.
    pub shared: Option<Arc<dyn SharedLimit>>,
    /// Time.
    pub clock: Clock,
}

/// A link at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveStats {
    /// The remote region.
    pub remote: String,
    /// The state with its reason; prints as text.
    pub state: LinkState,
    /// Since when, ms since 1970.
    pub since_ms: u64,
    /// Where its producer is open, if it is.
    pub outbound_connection: Option<String>,
    /// Since when, ms since 1970.
    pub connected_since_ms: Option<u64>,
    /// Messages per second that the remote took.
    pub msg_rate_out: f64,
    /// Bytes per second sent.
    pub msg_throughput_out: f64,
    /// Messages per second dropped.
    pub msg_drop_rate: f64,
    /// Everything counted since the link was started here.
    pub counters: LiveCounters,
    /// Entries that wait to be taken.
    pub queued_entries: usize,
}

#[derive(Default)]
struct Orders {
    limits: Option<LinkLimits>,
    stop: bool,
}

struct Shared {
    machine: Mutex<LiveMachine>,
    queue: Arc<LiveQueue>,
    meter: Mutex<Meter>,
    address: Mutex<Option<String>>,
    orders: Mutex<Orders>,
    ordered: Notify,
}

/// A running link. Dropping it ends it at once; [`LiveReplicator::stop`] ends it in order.
pub struct LiveReplicator {
    parts: LiveParts,
    shared: Arc<Shared>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    abort: tokio::task::AbortHandle,
}

impl LiveReplicator {
    /// Starts a link. It never ends by itself.
    pub fn start(parts: LiveParts) -> Arc<Self> {
        let now_ms = (parts.clock)();
        let config = LinkConfig {
            local: parts.local.clone(),
            remote: parts.remote.clone(),
            bounds: parts.bounds,
            limits: parts.limits,
            shared: parts.shared.clone(),
        };
        let queue =
            LiveQueue::new(parts.bounds.max_waiting_entries, parts.bounds.max_waiting_bytes, parts.budget.clone());
        let shared = Arc::new(Shared {
            machine: Mutex::new(LiveMachine::new(config, parts.idle_ms, now_ms)),
            queue: Arc::new(queue),
            meter: Mutex::new(Meter::new(now_ms)),
            address: Mutex::default(),
            orders: Mutex::default(),
            ordered: Notify::new(),
        });
        let task = tokio::spawn(Runner::new(parts.clone(), shared.clone()).run());
        let abort = task.abort_handle();
        Arc::new(Self { parts, shared, task: tokio::sync::Mutex::new(Some(task)), abort })
    }

    /// Where the topic puts what it publishes.
    pub fn queue(&self) -> Arc<LiveQueue> {
        self.shared.queue.clone()
    }

    /// Ends the link: takes nothing more, closes the producer. Answers within [`STOP_MS`].
    pub async fn stop(&self) {
        self.shared.queue.close();
        self.order(|orders| orders.stop = true);
        let mut task = self.task.lock().await;
        if let Some(running) = task.as_mut()
            && timeout(Duration::from_millis(STOP_MS), running).await.is_err()
        {
            self.abort.abort();
        }
        *task = None;
    }

    /// Puts limits in force.
    pub fn set_limits(&self, limits: LinkLimits) {
        self.order(|orders| orders.limits = Some(limits));
    }

    /// The link at this moment.
    pub fn stats(&self) -> LiveStats {
        let view = self.shared.machine.lock().view();
        let mut counters = view.counters;
        counters.dropped_messages += self.shared.queue.dropped_messages();
        let totals =
            Totals { messages: counters.messages, bytes: counters.bytes_sent, lost: counters.dropped_messages };
        let rates = self.shared.meter.lock().rates((self.parts.clock)(), totals);
        LiveStats {
            remote: self.parts.remote.to_string(),
            state: view.state,
            since_ms: view.since_ms,
            outbound_connection: self.shared.address.lock().clone().filter(|_| view.connected_since_ms.is_some()),
            connected_since_ms: view.connected_since_ms,
            msg_rate_out: rates.0,
            msg_throughput_out: rates.1,
            msg_drop_rate: rates.2,
            counters,
            queued_entries: self.shared.queue.entries(),
        }
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.orders.lock());
        self.shared.ordered.notify_one();
    }
}

impl Drop for LiveReplicator {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.abort.abort();
    }
}

type Opened = (u64, Result<Box<dyn Session>, OpenFailure>);

/// Everything of a link that is not a decision.
struct Runner {
    parts: LiveParts,
    shared: Arc<Shared>,
    inbox: VecDeque<LiveEvent>,
    session: Option<(u64, Box<dyn Session>)>,
    opening: Option<BoxFuture<'static, Opened>>,
    closing: Option<BoxFuture<'static, LiveEvent>>,
    bringing: Option<BoxFuture<'static, LiveEvent>>,
    chance: RandomState,
    started_ms: u64,
    steps: u64,
    stopped: bool,
}

impl Runner {
    fn new(parts: LiveParts, shared: Arc<Shared>) -> Self {
        let started_ms = (parts.clock)();
        Self {
            parts,
            shared,
            inbox: VecDeque::from([LiveEvent::Tick]),
            session: None,
            opening: None,
            closing: None,
            bringing: None,
            chance: RandomState::new(),
            started_ms,
            steps: 0,
            stopped: false,
        }
    }

    async fn run(mut self) {
        let mut turn = 0;
        while !self.stopped {
            match self.inbox.pop_front() {
                Some(event) => self.step(event),
                None => self.wait().await,
            }
            turn += 1;
            if turn >= STEPS_PER_TURN {
                turn = 0;
                // With messages always there nothing above waits.
                tokio::task::yield_now().await;
            }
        }
    }

    fn now(&mut self) -> Now {
        self.steps += 1;
        let mut hasher = self.chance.build_hasher();
        hasher.write_u64(self.steps);
        Now { ms: (self.parts.clock)(), jitter_permille: (hasher.finish() % 1000) as u16 }
    }

    fn step(&mut self, event: LiveEvent) {
        let now = self.now();
        let effects = {
            let mut machine = self.shared.machine.lock();
            let effects = machine.handle(now, event);
            self.stopped = machine.is_stopped();
            effects
        };
        for effect in effects {
            self.perform(effect);
        }
    }

    /// Waits for the next event.
    async fn wait(&mut self) {
        let (wake_at_ms, (entries, bytes)) = {
            let machine = self.shared.machine.lock();
            (machine.wake_at_ms(), machine.wants())
        };
        let now_ms = (self.parts.clock)();
        let tick = async {
            match wake_at_ms {
                Some(at_ms) => tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms))).await,
                None => std::future::pending().await,
            }
        };
        let shared = self.shared.clone();
        let published = async {
            match entries {
                0 => std::future::pending().await,
                entries => shared.queue.next(entries, bytes).await,
            }
        };
        // In no fixed order: a steady stream of messages must not keep receipts waiting.
        let event = tokio::select! {
            () = self.shared.ordered.notified() => return self.look(),
            event = take(&mut self.closing) => event,
            (number, events) = session_events(&mut self.session) => return self.heard(number, events),
            opened = take(&mut self.opening) => self.opened(opened),
            event = take(&mut self.bringing) => event,
            run = published => LiveEvent::Entries(run),
            () = tick => LiveEvent::Tick,
        };
        self.inbox.push_back(event);
    }

    fn look(&mut self) {
        let orders = std::mem::take(&mut *self.shared.orders.lock());
        if let Some(limits) = orders.limits {
            self.inbox.push_back(LiveEvent::SetLimits(limits));
        }
        if orders.stop {
            self.inbox.push_back(LiveEvent::Stop);
        }
    }

    fn opened(&mut self, (session, outcome): Opened) -> LiveEvent {
        match outcome {
            Ok(open) => {
                let peer = open.peer();
                *self.shared.address.lock() = Some(open.address());
                self.session = Some((session, open));
                LiveEvent::Opened { session, peer }
            }
            Err(failure) => LiveEvent::OpenFailed { session, failure },
        }
    }

    fn heard(&mut self, session: u64, events: Vec<SessionEvent>) {
        let mut answers = Vec::with_capacity(events.len());
        let mut lost = None;
        for event in events {
            match event {
                SessionEvent::Receipt(_) => answers.push(Ok(())),
                SessionEvent::Refused(refusal) => answers.push(Err(refusal.error)),
                SessionEvent::Lost(reason) => lost = Some(reason),
            }
        }
        if !answers.is_empty() {
            self.inbox.push_back(LiveEvent::Answers { session, answers });
        }
        if let Some(reason) = lost {
            self.session = None;
            self.inbox.push_back(LiveEvent::Lost { session, reason });
        }
    }

    fn perform(&mut self, effect: LiveEffect) {
        match effect {
            LiveEffect::Open { session } => {
                // Grows over all lives of the link.
                let open = self.parts.target.open(self.started_ms + session, 0);
                let late = || Err(OpenFailure::Unreachable(format!("no open producer within {OPEN_MS} ms")));
                self.opening = Some(Box::pin(async move {
                    (session, timeout(Duration::from_millis(OPEN_MS), open).await.unwrap_or_else(|_| late()))
                }));
            }
            LiveEffect::Close { session } => self.close(session),
            LiveEffect::Send { session, entries } => {
                if let Some((number, open)) = &mut self.session
                    && *number == session
                {
                    open.send(entries);
                }
            }
            LiveEffect::BringSchema { session, version } => self.bring(session, version),
        }
    }

    fn close(&mut self, session: u64) {
        self.opening = None;
        self.bringing = None;
        let closed = LiveEvent::Closed { session };
        match self.session.take() {
            Some((_, open)) => {
                self.closing = Some(Box::pin(async move {
                    let _late = timeout(Duration::from_millis(CLOSE_MS), open.close()).await;
                    closed
                }));
            }
            None => self.inbox.push_back(closed),
        }
    }

    fn bring(&mut self, session: u64, version: Bytes) {
        let Some((_, open)) = &self.session else { return };
        let schemas = self.parts.schemas.clone();
        let register = open.registrar();
        self.bringing = Some(Box::pin(async move {
            let asked = version.clone();
            let bring = async {
                match schemas.schema(asked.clone()).await? {
                    Some(schema) => register.bring(schema).await.map(Some),
                    None => Err(format!("the topic has no schema of version {asked:?} here")),
                }
            };
            let late = || Err(format!("no answer within {SCHEMA_MS} ms"));
            let outcome = timeout(Duration::from_millis(SCHEMA_MS), bring).await.unwrap_or_else(|_| late());
            LiveEvent::Schema { session, version, outcome }
        }));
    }
}
