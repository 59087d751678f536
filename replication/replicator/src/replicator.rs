//! The shell of a link: one task that feeds the machine and does what it asks for.
//!
//! Invariants: H1 the machine sees events one after the other, in the order in which they happened per source; H2 every wait
//! has a deadline: opening, closing, bringing a schema, flushing; a read has that of the log; H3 a stop ends within
//! [`STOP_MS`] whatever the remote does; H4 a link that waits costs no time: no polling, its timer is the machine's.
//! Must never know: why the machine wants what it wants.

use crate::machine::limit::{LinkLimits, SharedLimit};
use crate::machine::words::{Effect, Event, Notice, Now, OpenFailure};
use crate::machine::{Bounds, LinkConfig, Machine};
use crate::remote::{LocalSchemas, MarkerSink, Remote, Session, SessionEvent};
use crate::source::{BoxFuture, ReadRequest, Source};
use crate::stats::{Meter, ReplicatorStats};
use bytes::Bytes;
use meridian_types::TopicName;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// From dialling to an open producer.
pub(crate) const OPEN_MS: u64 = 40_000;
/// How long a close waits for the remote's word.
pub(crate) const CLOSE_MS: u64 = 3_000;
/// How long bringing one schema over may take.
const SCHEMA_MS: u64 = 40_000;
/// How long a stop may take.
pub const STOP_MS: u64 = 8_000;
/// Steps without a wait after which others get a turn.
pub(crate) const STEPS_PER_TURN: u32 = 32;

/// Ms since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a link is made of.
#[derive(Clone)]
pub struct ReplicatorParts {
    /// The topic or partition.
    pub topic: TopicName,
    /// Name of the region here.
    pub local: Arc<str>,
    /// Name of the region there.
    pub remote: Arc<str>,
    /// The log and the link's cursor.
    pub source: Arc<dyn Source>,
    /// The topic there.
    pub target: Arc<dyn Remote>,
    /// The topic's schemas here.
    pub schemas: Arc<dyn LocalSchemas>,
    /// Takes the remote's markers.
    pub markers: Arc<dyn MarkerSink>,
    /// Bounds.
    pub bounds: Bounds,
    /// Limits at first.
    pub limits: LinkLimits,
    /// The limit of the namespace.
    pub shared: Option<Arc<dyn SharedLimit>>,
    /// Time.
    pub clock: Clock,
}

#[derive(Default)]
struct Orders {
    limits: Option<LinkLimits>,
    cursor_moved: bool,
    stop: bool,
}

struct Shared {
    machine: Mutex<Machine>,
    meter: Mutex<Meter>,
    address: Mutex<Option<String>>,
    orders: Mutex<Orders>,
    ordered: Notify,
}

/// A running link. Dropping it ends it at once; [`Replicator::stop`] ends it in order.
pub struct Replicator {
    parts: ReplicatorParts,
    shared: Arc<Shared>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    abort: tokio::task::AbortHandle,
}

impl Replicator {
    /// Starts a link. It never ends by itself.
    pub fn start(parts: ReplicatorParts) -> Arc<Self> {
        let now_ms = (parts.clock)();
        let config = LinkConfig {
            local: parts.local.clone(),
            remote: parts.remote.clone(),
            bounds: parts.bounds,
            limits: parts.limits,
            shared: parts.shared.clone(),
        };
        let shared = Arc::new(Shared {
            machine: Mutex::new(Machine::new(config, now_ms)),
            meter: Mutex::new(Meter::new(now_ms)),
            address: Mutex::default(),
            orders: Mutex::default(),
            ordered: Notify::new(),
        });
        let runner = Runner::new(parts.clone(), shared.clone());
        let task = tokio::spawn(runner.run());
        let abort = task.abort_handle();
        Arc::new(Self { parts, shared, task: tokio::sync::Mutex::new(Some(task)), abort })
    }

    /// Ends the link: closes the producer, makes the acknowledgements durable. Answers within [`STOP_MS`]; the cursor stays.
    pub async fn stop(&self) {
        self.order(|orders| orders.stop = true);
        let mut task = self.task.lock().await;
        if let Some(running) = task.as_mut()
            && timeout(Duration::from_millis(STOP_MS), running).await.is_err()
        {
            self.abort.abort();
        }
        *task = None;
    }

    /// Puts limits and time to live in force.
    pub fn set_limits(&self, limits: LinkLimits) {
        self.order(|orders| orders.limits = Some(limits));
    }

    /// The cursor was moved by somebody else (backlog skipped, cleared, reset): the link goes on from there.
    pub fn cursor_moved(&self) {
        self.order(|orders| orders.cursor_moved = true);
    }

    /// The remote region.
    pub fn remote(&self) -> &str {
        &self.parts.remote
    }

    /// Whether a producer is open at the remote.
    pub fn is_connected(&self) -> bool {
        self.shared.machine.lock().view().connected_since_ms.is_some()
    }

    /// Entries not yet through.
    pub fn backlog_entries(&self) -> u64 {
        self.parts.source.backlog_entries()
    }

    /// The link at this moment.
    pub fn stats(&self) -> ReplicatorStats {
        let view = self.shared.machine.lock().view();
        let now_ms = (self.parts.clock)();
        let rates = self.shared.meter.lock().rates(now_ms, (&view.counters).into());
        let backlog = self.parts.source.backlog_entries();
        let delay_ms = view.oldest_ms.filter(|_| backlog > 0).map_or(0, |oldest_ms| now_ms.saturating_sub(oldest_ms));
        ReplicatorStats {
            remote: self.parts.remote.to_string(),
            state: view.state,
            since_ms: view.since_ms,
            connected: view.connected_since_ms.is_some(),
            outbound_connection: self.shared.address.lock().clone().filter(|_| view.connected_since_ms.is_some()),
            outbound_connected_since_ms: view.connected_since_ms,
            msg_rate_out: rates.0,
            msg_throughput_out: rates.1,
            msg_rate_expired: rates.2,
            replication_backlog: backlog,
            replication_delay_ms: delay_ms,
            counters: view.counters,
            waiting_entries: view.waiting_entries,
            waiting_bytes: view.waiting_bytes,
            queued_entries: view.queued_entries,
            window: view.window,
            generation: view.generation,
            last_notice: view.last_notice,
        }
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.orders.lock());
        self.shared.ordered.notify_one();
    }
}

impl Drop for Replicator {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// A session, and whether the topic there is another one than before.
type Opened = (u64, Result<(Box<dyn Session>, bool), OpenFailure>);

/// Everything of a link that is not a decision.
struct Runner {
    parts: ReplicatorParts,
    shared: Arc<Shared>,
    inbox: VecDeque<Event>,
    session: Option<(u64, Box<dyn Session>)>,
    opening: Option<BoxFuture<'static, Opened>>,
    closing: Option<BoxFuture<'static, Event>>,
    reading: Option<BoxFuture<'static, Event>>,
    bringing: Option<BoxFuture<'static, Event>>,
    chance: RandomState,
    started_ms: u64,
    steps: u64,
    stopped: bool,
}

/// Awaits what stands in a slot and empties it; an empty slot waits for ever.
pub(crate) async fn take<T>(slot: &mut Option<BoxFuture<'static, T>>) -> T {
    match slot {
        Some(future) => {
            let value = future.as_mut().await;
            *slot = None;
            value
        }
        None => std::future::pending().await,
    }
}

/// The next events of a session; none is open = waits for ever.
pub(crate) async fn session_events(session: &mut Option<(u64, Box<dyn Session>)>) -> (u64, Vec<SessionEvent>) {
    match session {
        Some((number, session)) => (*number, session.next().await),
        None => std::future::pending().await,
    }
}

impl Runner {
    fn new(parts: ReplicatorParts, shared: Arc<Shared>) -> Self {
        let start = Event::Started(parts.source.start());
        let started_ms = (parts.clock)();
        Self {
            parts,
            shared,
            inbox: VecDeque::from([start]),
            session: None,
            opening: None,
            closing: None,
            reading: None,
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
                Some(event) => {
                    self.step(event);
                    turn += 1;
                    if turn >= STEPS_PER_TURN {
                        turn = 0;
                        tokio::task::yield_now().await;
                        // What is there to be read must not keep receipts and orders waiting.
                        self.look();
                    }
                }
                None => {
                    turn = 0;
                    self.wait().await;
                }
            }
        }
        self.finish().await;
    }

    fn now(&mut self) -> Now {
        self.steps += 1;
        let mut hasher = self.chance.build_hasher();
        hasher.write_u64(self.steps);
        Now { ms: (self.parts.clock)(), jitter_permille: (hasher.finish() % 1000) as u16 }
    }

    fn step(&mut self, event: Event) {
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

    /// Takes orders without a wait.
    fn look(&mut self) {
        let orders = std::mem::take(&mut *self.shared.orders.lock());
        if let Some(limits) = orders.limits {
            self.inbox.push_back(Event::SetLimits(limits));
        }
        if orders.cursor_moved {
            self.inbox.push_back(Event::CursorMoved { first: self.parts.source.start().first });
        }
        if orders.stop {
            self.inbox.push_back(Event::Stop);
        }
    }

    /// Waits for the next event (H4).
    async fn wait(&mut self) {
        let wake_at_ms = self.shared.machine.lock().wake_at_ms();
        let now_ms = (self.parts.clock)();
        let tick = async {
            match wake_at_ms {
                Some(at_ms) => tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms))).await,
                None => std::future::pending().await,
            }
        };
        // In no fixed order: a steady stream of receipts must not keep reads waiting.
        let event = tokio::select! {
            () = self.shared.ordered.notified() => return self.look(),
            event = take(&mut self.closing) => event,
            (number, events) = session_events(&mut self.session) => return self.heard(number, events),
            opened = take(&mut self.opening) => return self.opened(opened),
            event = take(&mut self.bringing) => event,
            event = take(&mut self.reading) => event,
            () = tick => Event::Tick,
        };
        self.inbox.push_back(event);
    }

    fn opened(&mut self, (session, outcome): Opened) {
        let event = match outcome {
            Ok((open, anew)) => {
                let peer = open.peer();
                if anew {
                    tracing::warn!(
                        topic = %self.parts.topic, remote = %self.parts.remote,
                        "the remote has the topic anew: what is still here is copied again"
                    );
                    self.inbox.push_back(Event::CursorMoved { first: self.parts.source.start().first });
                }
                *self.shared.address.lock() = Some(open.address());
                self.session = Some((session, open));
                Event::Opened { session, peer }
            }
            Err(failure) => Event::OpenFailed { session, failure },
        };
        self.inbox.push_back(event);
    }

    /// Events of a session, runs of one kind together.
    fn heard(&mut self, session: u64, events: Vec<SessionEvent>) {
        let (mut receipts, mut refusals) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                SessionEvent::Receipt(receipt) => {
                    if !refusals.is_empty() {
                        let refusals = std::mem::take(&mut refusals);
                        self.inbox.push_back(Event::Refused { session, refusals });
                    }
                    receipts.push(receipt);
                }
                SessionEvent::Refused(refusal) => {
                    if !receipts.is_empty() {
                        let receipts = std::mem::take(&mut receipts);
                        self.inbox.push_back(Event::Receipts { session, receipts });
                    }
                    refusals.push(refusal);
                }
                SessionEvent::Lost(reason) => {
                    self.flush_heard(session, &mut receipts, &mut refusals);
                    self.session = None;
                    self.inbox.push_back(Event::Lost { session, reason });
                    return;
                }
            }
        }
        self.flush_heard(session, &mut receipts, &mut refusals);
    }

    fn flush_heard(
        &mut self,
        session: u64,
        receipts: &mut Vec<crate::machine::words::Receipt>,
        refusals: &mut Vec<crate::machine::words::SendRefusal>,
    ) {
        if !receipts.is_empty() {
            self.inbox.push_back(Event::Receipts { session, receipts: std::mem::take(receipts) });
        }
        if !refusals.is_empty() {
            self.inbox.push_back(Event::Refused { session, refusals: std::mem::take(refusals) });
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Open { session, generation } => self.open(session, generation),
            Effect::Close { session } => self.close(session),
            Effect::Read { epoch, from, max_entries, max_bytes, acked_up_to } => {
                self.read(epoch, ReadRequest { from, max_entries, max_bytes, acked_up_to });
            }
            Effect::Await { epoch, from } => {
                let wait = self.parts.source.clone().wait(from);
                self.reading = Some(Box::pin(async move {
                    match wait.await {
                        Ok(()) => Event::Grown { epoch },
                        Err(error) => Event::ReadFailed { epoch, error },
                    }
                }));
            }
            Effect::Send { session, entries } => {
                if let Some((number, open)) = &mut self.session
                    && *number == session
                {
                    open.send(entries);
                }
            }
            Effect::Ack(positions) => self.parts.source.ack(&positions),
            Effect::BringSchema { session, version } => self.bring(session, version),
            Effect::Marker(marker) => self.parts.markers.marker(&self.parts.remote, marker),
            Effect::Announce(notice) => self.announce(&notice),
        }
    }

    fn open(&mut self, session: u64, generation: u64) {
        let (source, target) = (self.parts.source.clone(), self.parts.target.clone());
        // Grows over all lives of the link.
        let epoch = self.started_ms + session;
        self.opening = Some(Box::pin(async move {
            let open = async {
                // Before the name is used: the next life of the link must know it.
                source.clone().save_generation(generation).await.map_err(OpenFailure::Unreachable)?;
                let open = target.open(epoch, generation).await?;
                let anew = match open.topic_life() {
                    Some(life) => source.remote_life(life).await.map_err(OpenFailure::Unreachable)?,
                    None => false,
                };
                Ok((open, anew))
            };
            let late = || Err(OpenFailure::Unreachable(format!("no open producer within {OPEN_MS} ms")));
            (session, timeout(Duration::from_millis(OPEN_MS), open).await.unwrap_or_else(|_| late()))
        }));
    }

    fn close(&mut self, session: u64) {
        self.opening = None;
        self.bringing = None;
        let closed = Event::Closed { session };
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

    fn read(&mut self, epoch: u64, request: ReadRequest) {
        if let Some(entries) = self.parts.source.try_read(request) {
            // A read of an older epoch that is still under way is void.
            self.reading = None;
            self.inbox.push_back(Event::Read { epoch, entries });
            return;
        }
        let read = self.parts.source.clone().read(request);
        self.reading = Some(Box::pin(async move {
            match read.await {
                Ok(entries) => Event::Read { epoch, entries },
                Err(error) => Event::ReadFailed { epoch, error },
            }
        }));
    }

    fn bring(&mut self, session: u64, version: Bytes) {
        let Some((_, open)) = &self.session else { return };
        let schemas = self.parts.schemas.clone();
        // The session stays here: what it needs to register a schema is taken now.
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
            Event::Schema { session, version, outcome }
        }));
    }

    fn announce(&self, notice: &Notice) {
        let (topic, remote) = (&self.parts.topic, &self.parts.remote);
        match notice {
            Notice::Gap { messages, before } => {
                tracing::warn!(%topic, %remote, messages, %before, "messages were removed before they were copied");
            }
            Notice::Undecodable { position, error } => {
                tracing::warn!(%topic, %remote, %position, error, "an entry that can't be read was not copied");
            }
            Notice::Unproven { position } => {
                tracing::warn!(%topic, %remote, %position, "the remote may call a refused entry a duplicate; changing the producer's name");
            }
            Notice::Restarted { after_ms } => {
                tracing::warn!(%topic, %remote, after_ms, "no progress; restarting the link");
            }
        }
    }

    /// H3.
    async fn finish(mut self) {
        if let Some(closing) = self.closing.take() {
            closing.await;
        }
        let flush = timeout(Duration::from_millis(CLOSE_MS), self.parts.source.clone().flush()).await;
        if let Ok(Err(error)) = flush {
            tracing::debug!(topic = %self.parts.topic, remote = %self.parts.remote, error, "acknowledgements not flushed");
        }
    }
}
