//! A worker: takes ledgers of bookies that leave and ledgers that are to be repaired, and has them replicated.
//!
//! Invariants: N1 to N4 of the planner; W1 a ledger is worked at under a claim that dies with this process; without a
//! session nothing is begun; W2 a holding that nothing stands behind is taken away with the check that it is so.
//! Failure: every failure is an outcome for the planner.
//! Must never know: why a bookie leaves.

use crate::keys;
use crate::metrics::Metrics;
use crate::planner::{Outcome, Planner, PlannerSettings, Task};
use crate::records::Repair;
use crate::run::now_ms;
use crate::store;
use crate::verdict::{no_holder, no_recovery};
use bytes::Bytes;
use meridian_ledger::keys::{holding_key, record_key};
use meridian_ledger::replicate::{Pace, ReplicateSettings, Replicated, Work};
use meridian_ledger::{LedgerClient, LedgerError, LedgerRecord, Ledgers};
use meridian_metadata::{Condition, MetadataError, Operation, SessionId, SharedStore, Version};
use meridian_types::{BookieId, Classify, ErrorClass, LedgerId};
use rand::seq::SliceRandom;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

/// Why the bookies that are there can't do it; see [`crate::verdict`].
type Verdict = fn(&LedgerRecord, &BTreeSet<BookieId>) -> Option<String>;

/// What a worker is made of.
pub(crate) struct Shop {
    pub store: SharedStore,
    pub ledgers: Arc<LedgerClient>,
    pub pace: Arc<dyn Pace>,
    pub metrics: Metrics,
    pub name: String,
    pub replicate: ReplicateSettings,
}

pub(crate) struct Worker {
    shop: Arc<Shop>,
    planner: Planner,
    poll: Duration,
    session: watch::Receiver<Option<SessionId>>,
    due: Arc<BTreeSet<BookieId>>,
    /// Where the next page of each bookie's ledgers begins; absent = at the beginning.
    pages: BTreeMap<BookieId, LedgerId>,
    /// There are ledgers that found no room.
    more: bool,
    tasks: JoinSet<Outcome>,
    ledgers: HashMap<Id, LedgerId>,
}

impl Worker {
    pub(crate) fn new(
        shop: Arc<Shop>,
        settings: PlannerSettings,
        poll: Duration,
        session: watch::Receiver<Option<SessionId>>,
    ) -> Self {
        Self {
            shop,
            planner: Planner::new(settings),
            poll,
            session,
            due: Arc::default(),
            pages: BTreeMap::new(),
            more: false,
            tasks: JoinSet::new(),
            ledgers: HashMap::new(),
        }
    }

    /// Works until dropped.
    pub(crate) async fn run(mut self) {
        let mut look_at = Instant::now();
        loop {
            let hungry = self.more && self.planner.counts().0 == 0;
            if hungry || Instant::now() >= look_at {
                if let Err(error) = self.look().await {
                    tracing::warn!(%error, "the work list can't be read");
                    self.shop.metrics.looks_failed.inc();
                    self.more = false;
                }
                look_at = Instant::now() + self.poll;
            }
            self.begin();
            self.shop.metrics.ledgers_working.set(self.tasks.len() as i64);
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = tokio::time::sleep_until(look_at) => {}
            }
        }
    }

    fn begin(&mut self) {
        let Some(session) = *self.session.borrow() else { return };
        while let Some(task) = self.planner.next(now_ms()) {
            let (shop, due) = (self.shop.clone(), self.due.clone());
            let handle = self.tasks.spawn(async move { shop.claimed(session, task, &due).await });
            self.ledgers.insert(handle.id(), task.ledger_id);
        }
    }

    fn ended(&mut self, ended: Result<(Id, Outcome), tokio::task::JoinError>) {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Outcome::Failed),
        };
        if let Some(ledger_id) = self.ledgers.remove(&id) {
            self.planner.finished(now_ms(), ledger_id, outcome);
        }
    }

    /// Reads the marks and offers ledgers to the planner as far as there is room.
    async fn look(&mut self) -> Result<(), MetadataError> {
        let store = self.shop.store.clone();
        let now_ms = now_ms();
        let marks = store::leaving(&*store).await?;
        let due: BTreeSet<BookieId> =
            marks.into_iter().filter(|(_, mark)| mark.is_due(now_ms)).map(|(bookie, _)| bookie).collect();
        if due != *self.due {
            self.due = Arc::new(due.clone());
            self.planner.forget();
            self.pages.clear();
        }
        self.shop.ledgers.set_leaving(due.clone());
        self.planner.offer(store::repairs(&*store).await?);
        self.more = false;
        for bookie in due {
            while self.planner.room() > 0 {
                let (mut ledgers, next) = store::ledgers_of(&*store, &bookie, self.pages.get(&bookie).copied()).await?;
                // Each worker in an order of its own, so that claims seldom meet.
                ledgers.shuffle(&mut rand::rng());
                let fresh = self.planner.offer(ledgers);
                match next {
                    Some(next) => drop(self.pages.insert(bookie.clone(), next)),
                    None => drop(self.pages.remove(&bookie)),
                }
                self.more |= next.is_some();
                if next.is_none() || fresh > 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Shop {
    /// W1.
    async fn claimed(&self, session: SessionId, task: Task, due: &BTreeSet<BookieId>) -> Outcome {
        let key = keys::claim_key(task.ledger_id);
        let claim = Operation::Put {
            key: key.clone(),
            value: Bytes::from(self.name.clone()),
            condition: Condition::Absent,
            ephemeral: Some(session),
        };
        let version = match self.store.commit(vec![claim]).await {
            Ok(version) => version,
            Err(MetadataError::Conflict { .. }) => {
                self.metrics.ledgers_contended.inc();
                return Outcome::Busy;
            }
            Err(_) => return Outcome::Failed,
        };
        let outcome = self.work(task, due).await;
        match outcome {
            Outcome::Done => self.metrics.ledgers_done.inc(),
            Outcome::Failed | Outcome::Hopeless => self.metrics.ledgers_failed.inc(),
            Outcome::Busy | Outcome::Open { .. } => {}
        }
        // One that stays dies with the session.
        let _ = self.store.delete(&key, Condition::Is(version)).await;
        outcome
    }

    async fn work(&self, task: Task, due: &BTreeSet<BookieId>) -> Outcome {
        let ledger_id = task.ledger_id;
        let repair = match store::repair(&*self.store, ledger_id).await {
            Ok(repair) => repair,
            Err(_) => return Outcome::Failed,
        };
        let mut result = self.replicate(ledger_id, due, repair.as_ref()).await;
        if let Ok(Replicated { left_open: true, can_replace, .. }) = result {
            if !(task.close && can_replace) {
                return Outcome::Open { can_replace };
            }
            if let Some(reason) = self.judge(ledger_id, no_recovery).await {
                return self.hopeless(ledger_id, &reason).await;
            }
            tracing::info!(ledger = ledger_id.0, "closing an open ledger whose writer has not replaced a lost bookie");
            match self.ledgers.recover(ledger_id).await {
                Ok(_) => self.metrics.ledgers_closed.inc(),
                Err(error) => return self.failed(ledger_id, &error, no_recovery).await,
            }
            result = self.replicate(ledger_id, due, repair.as_ref()).await;
        }
        let done = match result {
            Ok(Replicated { left_open: true, can_replace, .. }) => return Outcome::Open { can_replace },
            Ok(Replicated { copies: 0, ensembles: 0, .. }) | Err(LedgerError::NoSuchLedger(_)) => {
                self.tidy(ledger_id, due).await
            }
            Ok(_) => Ok(()),
            Err(error) => return self.failed(ledger_id, &error, no_holder).await,
        };
        let done = match (done, repair) {
            (Ok(()), Some((_, version))) => {
                self.store.delete(&keys::repair_key(ledger_id), Condition::Is(version)).await.map(drop)
            }
            (done, _) => done,
        };
        if done.is_ok() { Outcome::Done } else { Outcome::Failed }
    }

    async fn replicate(
        &self,
        ledger_id: LedgerId,
        due: &BTreeSet<BookieId>,
        repair: Option<&(Repair, Version)>,
    ) -> Result<Replicated, LedgerError> {
        let refill = repair.iter().flat_map(|(repair, _)| &repair.bookies).cloned().collect();
        let mend = repair.is_some_and(|(repair, _)| repair.mend);
        let work = Work { leaving: due.clone(), refill, mend };
        let settings = ReplicateSettings { salt: rand::random(), ..self.replicate };
        let done = self.ledgers.replicate(ledger_id, work, settings, self.pace.clone()).await?;
        self.metrics.entries.inc_by(done.copies);
        self.metrics.bytes.inc_by(done.bytes);
        self.metrics.mended.inc_by(u64::from(done.mended));
        Ok(done)
    }

    /// `verdict` says whether trying again can help.
    async fn failed(&self, ledger_id: LedgerId, error: &LedgerError, verdict: Verdict) -> Outcome {
        if error.class() == ErrorClass::Corrupt {
            self.metrics.lost_entries.inc();
            tracing::error!(ledger = ledger_id.0, %error, "an entry has no good copy among the bookies that are left");
            return self.hopeless(ledger_id, &error.to_string()).await;
        }
        tracing::warn!(ledger = ledger_id.0, %error, "a ledger was not replicated");
        match self.judge(ledger_id, verdict).await {
            Some(reason) => self.hopeless(ledger_id, &reason).await,
            None => Outcome::Failed,
        }
    }

    async fn judge(&self, ledger_id: LedgerId, verdict: Verdict) -> Option<String> {
        let registered: BTreeSet<BookieId> = self.ledgers.bookies().registered()?.into_iter().collect();
        let record = self.ledgers.record(ledger_id).await.ok()?;
        verdict(&record, &registered)
    }

    async fn hopeless(&self, ledger_id: LedgerId, reason: &str) -> Outcome {
        tracing::error!(ledger = ledger_id.0, reason, "a ledger can't be brought back by the bookies that are there");
        if let Err(error) = store::give_up_for_now(&*self.store, ledger_id, now_ms(), reason).await {
            tracing::warn!(ledger = ledger_id.0, %error, "that is not noted");
        }
        Outcome::Hopeless
    }

    /// W2.
    async fn tidy(&self, ledger_id: LedgerId, due: &BTreeSet<BookieId>) -> Result<(), MetadataError> {
        let entry = self.store.get(&record_key(ledger_id)).await?;
        let record = entry.as_ref().map(|entry| LedgerRecord::decode(&entry.value)).transpose()?;
        let is_member = |bookie: &BookieId| {
            record.iter().flat_map(|record| &record.ensembles).any(|ensemble| ensemble.bookies.contains(bookie))
        };
        for bookie in due.iter().filter(|bookie| !is_member(bookie)) {
            if self.store.get(&holding_key(bookie, ledger_id)).await?.is_some() {
                store::drop_holding(&*self.store, bookie, ledger_id, entry.as_ref().map(|entry| entry.version)).await?;
            }
        }
        Ok(())
    }
}
