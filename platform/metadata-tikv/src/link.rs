//! The connection to TiKV: every step has a deadline, and who finds the store away waits for its return.
//!
//! Role: holds the client, builds a new one after repeated absence, times every step, and holds new calls back while
//! the store is known to be away, so that its return meets one probe and not everything that waited.
//! Invariants: K4; the client is only ever used for optimistic transactions without its own heart beats; only silence is
//! absence: a step that fails or takes too long counts only if its part of the store answered nobody since it began.
//! Failure: [`Failure`].
//! Must never know: keys, the trait's calls.

use crate::config::TikvConfig;
use crate::failure::Failure;
use crate::stats::Counters;
use arc_swap::ArcSwap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tikv_client::transaction::HeartbeatOption;
use tikv_client::{
    Backoff, CheckLevel, Config, RetryOptions, Snapshot, Timestamp, Transaction, TransactionClient, TransactionOptions,
};
use tokio::time::Instant;

/// Largest answer: a page of the largest values.
const MAX_ANSWER_BYTES: usize = 288 * 1024 * 1024;
/// Absences in a row after which the store is taken for away.
const ABSENCES_UNTIL_AWAY: u32 = 2;

/// The parts of a store that answer or fall silent by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The placement driver, which gives time stamps.
    Clock,
    /// TiKV.
    Data,
}

/// What was heard of one part.
#[derive(Debug, Default)]
struct Heard {
    /// Absences in a row.
    absences: AtomicU32,
    /// When it last answered anything, in ms since the connection was made.
    answered_ms: AtomicU64,
}

/// The connection.
pub(crate) struct Link {
    config: TikvConfig,
    client: ArcSwap<TransactionClient>,
    made: Instant,
    heard: [Heard; 2],
    available: tokio::sync::watch::Sender<bool>,
    counters: Arc<Counters>,
}

/// Repetitions of the client itself are short: what lasts longer is repeated here, where deadlines are kept.
fn options() -> TransactionOptions {
    let retry = RetryOptions::new(
        Backoff::equal_jitter_backoff(5, 200, 8),
        // Long enough for the locks of a writer that died, which live three seconds.
        Backoff::equal_jitter_backoff(2, 400, 24),
    );
    TransactionOptions::new_optimistic()
        .drop_check(CheckLevel::None)
        .heartbeat_option(HeartbeatOption::NoHeartbeat)
        .retry_options(retry)
}

async fn build_client(config: &TikvConfig) -> Result<TransactionClient, Failure> {
    let mut client_config = Config::default()
        .with_timeout(Duration::from_millis(config.rpc_timeout_ms))
        .with_grpc_max_decoding_message_size(MAX_ANSWER_BYTES);
    if let (Some(ca), Some(cert), Some(key)) = (&config.ca_path, &config.cert_path, &config.key_path) {
        client_config = client_config.with_security(ca, cert, key);
    }
    let connecting = TransactionClient::new_with_config(config.pd_endpoints.clone(), client_config);
    let limit = Duration::from_millis(config.step_timeout_ms);
    match tokio::time::timeout(limit, connecting).await {
        Ok(client) => client.map_err(|error| Failure::of("connecting", &error)),
        Err(_) => Err(Failure::timed_out("connecting")),
    }
}

impl Link {
    pub(crate) async fn connect(config: TikvConfig, counters: Arc<Counters>) -> Result<Self, Failure> {
        let client = build_client(&config).await?;
        counters.available.store(true, Ordering::Relaxed);
        Ok(Self {
            config,
            client: ArcSwap::from_pointee(client),
            made: Instant::now(),
            heard: Default::default(),
            available: tokio::sync::watch::Sender::new(true),
            counters,
        })
    }

    /// Waits while the store is known to be away; false if it was until the deadline.
    pub(crate) async fn returned(&self, deadline: Instant) -> bool {
        let mut available = self.available.subscribe();
        let waiting = available.wait_for(|available| *available);
        matches!(tokio::time::timeout_at(deadline, waiting).await, Ok(Ok(_)))
    }

    /// Whether the store is known to be away.
    pub(crate) fn is_away(&self) -> bool {
        !*self.available.borrow()
    }

    /// Builds a new client in place of one that no longer reaches the store.
    pub(crate) async fn rebuild(&self) -> Result<(), Failure> {
        let client = build_client(&self.config).await?;
        self.client.store(Arc::new(client));
        self.counters.reconnects.add(1);
        Ok(())
    }

    /// How long ago the part that has been silent for longer answered anything, a conflict or a refusal included.
    pub(crate) fn silent_for(&self) -> Duration {
        let answered_ms = self.heard.iter().map(|heard| heard.answered_ms.load(Ordering::Relaxed)).min();
        self.made.elapsed().saturating_sub(Duration::from_millis(answered_ms.unwrap_or(0)))
    }

    /// Runs one step with data within its own limit and the deadline of the call.
    pub(crate) async fn step<T>(
        &self,
        what: &'static str,
        deadline: Instant,
        step: impl Future<Output = Result<T, tikv_client::Error>>,
    ) -> Result<T, Failure> {
        self.step_of(Part::Data, what, deadline, step).await
    }

    async fn step_of<T>(
        &self,
        part: Part,
        what: &'static str,
        deadline: Instant,
        step: impl Future<Output = Result<T, tikv_client::Error>>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let limit = Duration::from_millis(self.config.step_timeout_ms);
        let outcome = tokio::time::timeout_at(deadline.min(started + limit), step).await;
        match outcome {
            Ok(Ok(value)) => {
                self.answered(part);
                Ok(value)
            }
            Ok(Err(error)) => {
                let failure = Failure::of(what, &error);
                if failure.is_absence() {
                    self.absent(part, started);
                } else {
                    self.answered(part);
                }
                Err(failure)
            }
            Err(_) => {
                self.counters.timeouts.add(1);
                // A call that had little time left says nothing about the store.
                if started.elapsed() * 2 >= limit {
                    self.absent(part, started);
                }
                Err(Failure::timed_out(what))
            }
        }
    }

    fn answered(&self, part: Part) {
        let heard = &self.heard[part as usize];
        heard.absences.store(0, Ordering::Relaxed);
        heard.answered_ms.fetch_max(self.made.elapsed().as_millis() as u64, Ordering::Relaxed);
        let present = |heard: &Heard| heard.absences.load(Ordering::Relaxed) < ABSENCES_UNTIL_AWAY;
        if self.is_away() && self.heard.iter().all(present) {
            self.counters.available.store(true, Ordering::Relaxed);
            self.available.send_replace(true);
            tracing::info!("the metadata store is back");
        }
    }

    /// A step that began then was not answered. Others may have been, or a conflict was resolved all the while.
    fn absent(&self, part: Part, started: Instant) {
        let heard = &self.heard[part as usize];
        let started_ms = started.duration_since(self.made).as_millis() as u64;
        if heard.answered_ms.load(Ordering::Relaxed) > started_ms {
            return;
        }
        let absences = heard.absences.fetch_add(1, Ordering::Relaxed) + 1;
        if absences >= ABSENCES_UNTIL_AWAY && self.available.send_replace(false) {
            self.counters.available.store(false, Ordering::Relaxed);
            tracing::warn!(?part, "the metadata store does not answer; calls wait for its return");
        }
    }

    /// A time stamp.
    pub(crate) async fn timestamp(&self, deadline: Instant) -> Result<Timestamp, Failure> {
        let client = self.client.load_full();
        let started = Instant::now();
        let stamp = self.step_of(Part::Clock, "a time stamp", deadline, client.current_timestamp()).await?;
        self.counters.timestamps.add(started.elapsed());
        Ok(stamp)
    }

    /// A transaction.
    pub(crate) async fn begin(&self, deadline: Instant) -> Result<Transaction, Failure> {
        let client = self.client.load_full();
        let started = Instant::now();
        let beginning = client.begin_with_options(options());
        let transaction = self.step_of(Part::Clock, "a time stamp", deadline, beginning).await?;
        self.counters.timestamps.add(started.elapsed());
        Ok(transaction)
    }

    /// A view of everything committed by now, with its time stamp.
    pub(crate) async fn snapshot(&self, deadline: Instant) -> Result<(Snapshot, Timestamp), Failure> {
        let stamp = self.timestamp(deadline).await?;
        Ok((self.client.load().snapshot(stamp.clone(), options()), stamp))
    }

    /// Moves the safe point, below which old versions are dropped. How long it takes says nothing about the store.
    pub(crate) async fn collect_garbage(&self, safe_point: Timestamp, limit: Duration) -> Result<bool, Failure> {
        const STEP: &str = "collection of garbage";
        let client = self.client.load_full();
        match tokio::time::timeout(limit, client.gc(safe_point)).await {
            Ok(outcome) => outcome.map_err(|error| Failure::of(STEP, &error)),
            Err(_) => Err(Failure::timed_out(STEP)),
        }
    }
}
