//! The running whole: the session, the auditor, the worker.
//!
//! Invariants: J1 to J4 of the crate; R1 everything ends with the shutdown, and the session is closed, so that another
//! process is auditor at once.
//! Failure: none ends it; what metadata does not answer is asked again.
//! Must never know: where it runs.

use crate::audit::{Audit, AuditSettings};
use crate::auditor::{Decision, Scene, look};
use crate::keys;
use crate::metrics::Metrics;
use crate::planner::PlannerSettings;
use crate::records::Report;
use crate::session;
use crate::store;
use crate::throttle::Throttle;
use crate::worker::{Shop, Worker};
use bytes::Bytes;
use meridian_ledger::keys::record_key;
use meridian_ledger::replicate::ReplicateSettings;
use meridian_ledger::{LedgerClient, LedgerRecord};
use meridian_metadata::{Condition, MetadataError, Operation, SessionId, SharedStore};
use meridian_types::{BookieId, LedgerId};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Marks of ledgers beyond recovery read at once.
const HOPELESS_PAGE: usize = 1_000;
/// Of these so many are looked at, drawn by lot: a long list costs no more than a short one.
const HOPELESS_LOOKS: usize = 50;
/// Marks counted at most.
const HOPELESS_MAX: i64 = 100_000;

/// Settings.
#[derive(Debug, Clone)]
pub struct AutorecoveryConfig {
    /// The name of this process in claims and in the auditor's key.
    pub name: String,
    /// Time to live of its session in metadata.
    pub session_ttl_ms: u64,
    /// The auditor looks for missing bookies, and workers for work, so often.
    pub look_ms: u64,
    /// A bookie may be missing for so long before its ledgers are moved.
    pub lost_grace_ms: u64,
    /// The writer of an open ledger has so long to replace a lost bookie before the ledger is closed.
    pub open_grace_ms: u64,
    /// Copies made by this process, bytes per second; 0 = no limit.
    pub bytes_per_second: u64,
    /// Ledgers at work at once.
    pub ledgers_in_flight: usize,
    /// Of one ledger.
    pub replicate: ReplicateSettings,
    /// Longest pause after failures at one ledger.
    pub retry_max_ms: u64,
    /// Longest pause after failures at a ledger that the bookies which are there can't bring back.
    pub hopeless_retry_max_ms: u64,
    /// All ledgers are looked at so often; 0 = only by order.
    pub audit_interval_ms: u64,
    /// Copies looked at beside the first and last of each member's share.
    pub audit_samples: u32,
    /// Ledgers looked at per second at most.
    pub audit_ledgers_per_second: u64,
    /// Audits have ensembles moved that do not keep the placement's rule and could.
    pub mends_placement: bool,
    /// Where figures are registered.
    pub registry: prometheus::Registry,
}

impl Default for AutorecoveryConfig {
    fn default() -> Self {
        Self {
            name: "autorecovery".to_owned(),
            session_ttl_ms: 10_000,
            look_ms: 1_000,
            lost_grace_ms: 30_000,
            open_grace_ms: 30_000,
            bytes_per_second: 64 << 20,
            ledgers_in_flight: 8,
            replicate: ReplicateSettings::default(),
            retry_max_ms: 60_000,
            hopeless_retry_max_ms: 3_600_000,
            audit_interval_ms: 7 * 24 * 3_600_000,
            audit_samples: 2,
            audit_ledgers_per_second: 100,
            mends_placement: true,
            registry: prometheus::Registry::new(),
        }
    }
}

/// Wall clock in ms.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Runs auditor and worker until `shutdown`.
///
/// # Errors
/// The figures can't be registered (they are already).
pub async fn run(
    config: AutorecoveryConfig,
    store: SharedStore,
    ledgers: Arc<LedgerClient>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), prometheus::Error> {
    let metrics = Metrics::register(&config.registry)?;
    let (told, session) = watch::channel(None);
    let planner = PlannerSettings {
        ledgers_in_flight: config.ledgers_in_flight,
        retry_ms: config.look_ms.max(1),
        retry_max_ms: config.retry_max_ms,
        hopeless_retry_max_ms: config.hopeless_retry_max_ms,
        busy_ms: config.look_ms.max(1) * 5,
        open_grace_ms: config.open_grace_ms,
    };
    let shop = Arc::new(Shop {
        store: store.clone(),
        ledgers: ledgers.clone(),
        pace: Arc::new(Throttle::new(config.bytes_per_second)),
        metrics: metrics.clone(),
        name: config.name.clone(),
        replicate: config.replicate,
    });
    let poll = Duration::from_millis(config.look_ms.max(1));
    let worker = Worker::new(shop, planner, poll, session.clone());
    let office = Office { store: store.clone(), ledgers, metrics, session: session.clone(), config };
    let mut tasks = JoinSet::new();
    tasks.spawn(session::hold(store.clone(), office.config.session_ttl_ms, told));
    tasks.spawn(office.run());
    tasks.spawn(worker.run());
    shutdown.await;
    let held = *session.borrow();
    tasks.shutdown().await;
    if let Some(session) = held {
        // Without an answer the session ends by itself.
        let _ = tokio::time::timeout(Duration::from_secs(1), store.close_session(session)).await;
    }
    Ok(())
}

/// The auditor.
struct Office {
    store: SharedStore,
    ledgers: Arc<LedgerClient>,
    metrics: Metrics,
    session: watch::Receiver<Option<SessionId>>,
    config: AutorecoveryConfig,
}

impl Office {
    async fn run(self) {
        let mut audits = JoinSet::new();
        loop {
            if let Err(error) = self.turn(&mut audits).await {
                tracing::warn!(%error, "the auditor could not look");
                self.metrics.looks_failed.inc();
            }
            if let Some(Ok(ended)) = audits.try_join_next() {
                self.audited(ended);
            }
            tokio::time::sleep(Duration::from_millis(self.config.look_ms.max(1))).await;
        }
    }

    async fn turn(&self, audits: &mut JoinSet<Result<Report, MetadataError>>) -> Result<(), MetadataError> {
        let elected = self.is_elected().await?;
        self.metrics.is_auditor.set(i64::from(elected));
        if !elected {
            audits.abort_all();
            return Ok(());
        }
        self.look().await?;
        if audits.is_empty() && self.is_audit_due().await? {
            let settings = AuditSettings {
                samples: self.config.audit_samples,
                ledgers_per_second: self.config.audit_ledgers_per_second,
                mends_placement: self.config.mends_placement,
            };
            let audit = Audit { store: self.store.clone(), ledgers: self.ledgers.clone(), settings };
            audits.spawn(async move { audit.run().await });
        }
        Ok(())
    }

    /// Holds the auditor's key, or takes it if nobody does.
    async fn is_elected(&self) -> Result<bool, MetadataError> {
        let Some(session) = *self.session.borrow() else { return Ok(false) };
        if let Some(entry) = self.store.get(keys::AUDITOR).await? {
            return Ok(entry.ephemeral == Some(session));
        }
        let take = Operation::Put {
            key: keys::AUDITOR.to_owned(),
            value: Bytes::from(self.config.name.clone()),
            condition: Condition::Absent,
            ephemeral: Some(session),
        };
        match self.store.commit(vec![take]).await {
            Ok(_) => {
                tracing::info!(name = self.config.name, "this process is the auditor");
                Ok(true)
            }
            Err(MetadataError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn look(&self) -> Result<(), MetadataError> {
        // The holders before the bookies: one that registers in between is not missing.
        let scene = Scene {
            leaving: store::leaving(&*self.store).await?,
            holders: store::holders(&*self.store).await?,
            registered: self.ledgers.bookies().registered().map(BTreeSet::from_iter),
        };
        let now_ms = now_ms();
        let decisions = look(now_ms, self.config.lost_grace_ms, &scene);
        let held = decisions.iter().any(|decision| matches!(decision, Decision::Held { .. }));
        let missing = scene.registered.iter().map(|there| scene.holders.difference(there).count()).sum::<usize>();
        let due = scene.leaving.iter().filter(|(_, mark)| mark.is_due(now_ms));
        let mut waiting = 0;
        for (bookie, _) in due {
            waiting += store::count_ledgers(&*self.store, bookie).await?;
        }
        self.metrics.held.set(i64::from(held));
        self.metrics.bookies_missing.set(missing as i64);
        self.metrics.bookies_leaving.set(scene.leaving.len() as i64);
        self.metrics.ledgers_waiting.set(waiting as i64);
        self.look_at_hopeless(now_ms, &scene).await?;
        for decision in decisions {
            self.decide(decision, &scene).await?;
        }
        Ok(())
    }

    /// Counts the ledgers beyond recovery, and takes marks away that nothing stands behind any more: the ledger is gone,
    /// or none of its members leaves and no repair is ordered.
    async fn look_at_hopeless(&self, now_ms: u64, scene: &Scene) -> Result<(), MetadataError> {
        let (mut count, mut after) = (0, None);
        loop {
            let (marks, more) = store::hopeless(&*self.store, after, HOPELESS_PAGE).await?;
            after = marks.last().map(|(ledger_id, _, _)| *ledger_id);
            let read = marks.len();
            for (ledger_id, _, version) in marks {
                let looks = rand::random_range(0..read) < HOPELESS_LOOKS;
                if !looks || self.still_stands(ledger_id, now_ms, scene).await? {
                    count += 1;
                    continue;
                }
                let delete = self.store.delete(&keys::hopeless_key(ledger_id), Condition::Is(version)).await;
                if !matches!(delete, Ok(_) | Err(MetadataError::Conflict { .. })) {
                    return delete.map(drop);
                }
            }
            if !more || count >= HOPELESS_MAX {
                break;
            }
        }
        self.metrics.unrecoverable.set(count);
        Ok(())
    }

    async fn still_stands(&self, ledger_id: LedgerId, now_ms: u64, scene: &Scene) -> Result<bool, MetadataError> {
        let Some(entry) = self.store.get(&record_key(ledger_id)).await? else { return Ok(false) };
        let Ok(record) = LedgerRecord::decode(&entry.value) else { return Ok(true) };
        let leaves = |id: &BookieId| scene.leaving.get(id).is_some_and(|mark| mark.is_due(now_ms));
        let moves = record.ensembles.iter().flat_map(|ensemble| &ensemble.bookies).any(leaves);
        Ok(moves || store::repair(&*self.store, ledger_id).await?.is_some())
    }

    async fn decide(&self, decision: Decision, scene: &Scene) -> Result<(), MetadataError> {
        match decision {
            Decision::Mark(bookie, mark) => {
                if !scene.leaving.contains_key(&bookie) {
                    tracing::warn!(%bookie, grace_ms = self.config.lost_grace_ms, "a bookie is missing");
                }
                self.store.put(&keys::leaving_key(&bookie), mark.encode(), Condition::Any).await?;
            }
            Decision::Unmark(bookie) => {
                tracing::info!(%bookie, "a bookie is back, or nothing is left of it");
                self.store.delete(&keys::leaving_key(&bookie), Condition::Any).await?;
            }
            Decision::Held { missing, holders } => {
                tracing::error!(missing, holders, "more than half of the bookies are missing: nothing is moved");
            }
        }
        Ok(())
    }

    /// By order, or because the last one is long ago.
    async fn is_audit_due(&self) -> Result<bool, MetadataError> {
        let report = self.store.get(keys::AUDIT_REPORT).await?;
        let report = report.and_then(|entry| Report::decode(&entry.value).ok());
        if let Some(report) = &report {
            self.metrics.show(report);
        }
        let begun_ms = report.map(|report| report.begun_ms);
        let order = self.store.get(keys::AUDIT_ORDER).await?;
        let ordered_ms = order.and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse::<u64>().ok());
        if ordered_ms.is_some_and(|ordered| begun_ms.is_none_or(|begun| begun < ordered)) {
            return Ok(true);
        }
        let interval_ms = self.config.audit_interval_ms;
        Ok(interval_ms > 0 && begun_ms.is_none_or(|begun| now_ms() >= begun.saturating_add(interval_ms)))
    }

    fn audited(&self, ended: Result<Report, MetadataError>) {
        match ended {
            Ok(report) => {
                self.metrics.audits.inc();
                self.metrics.show(&report);
                tracing::info!(
                    ledgers = report.ledgers,
                    copies = report.copies,
                    missing = report.missing_copies,
                    damaged = report.damaged_copies,
                    misplaced = report.misplaced_ensembles,
                    "audit ended"
                );
            }
            Err(error) => tracing::warn!(%error, "an audit was broken off"),
        }
    }
}
