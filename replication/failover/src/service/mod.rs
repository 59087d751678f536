//! The shell: records stored, told and learned; switches driven; tails set aside.
//!
//! Role: one per broker process. It knows the state of every namespace that has an active region, answers at once what a
//! producer or a link may do, and carries out what the machines decide through two seams: [`Host`] (topics of this region)
//! and [`PeerCalls`] (other regions).
//! Invariants: S1 a state is durable before anything acts on it; S2 at most one switch per namespace at a time; S3 a region
//! that is active takes publishes only after a peer confirmed its epoch, or after [`Settings::confirm_ms`] without any peer
//! that answered (said in the log and in [`FailoverService::unconfirmed`]).
//! Failure: [`FailoverError`]; a peer that does not answer is asked again every [`Settings::beat_ms`].
//! Must never know: sockets, topics' insides.

mod drive;
mod follow;
mod tails;

use crate::FailoverError;
use crate::cost::{CostReport, Costs, Settlement, settle};
use crate::keys;
use crate::record::{ActiveRecord, Epoch, Learned, LinkRule, NamespaceState, PublishRule};
use crate::returning::Tail;
use crate::switch::Account;
use meridian_metadata::{BoxFuture, Condition, MetadataError, SharedStore};
use meridian_types::{NamespaceName, TopicName};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Attempts to store a state that somebody else changed at the same time.
const STORE_ATTEMPTS: u32 = 8;

/// Times of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Pause between two rounds of asking peers.
    pub beat_ms: u64,
    /// How long an active region waits for a peer's confirmation after its start.
    pub confirm_ms: u64,
    /// How long a planned switch may hold publishes; twice of it, and a little, has to be below the limit of a call between regions.
    pub drain_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { beat_ms: 2_000, confirm_ms: 10_000, drain_ms: 12_000 }
    }
}

/// Topics of this region, as failover needs them. All calls are idempotent.
pub trait Host: Send + Sync {
    /// The regions that the namespace is replicated between, this one among them.
    fn regions_of(&self, namespace: &NamespaceName) -> Vec<String>;
    /// The publish rule has changed: closes producers and consumers that it refuses, lets others in.
    fn rule_changed<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, ()>;
    /// Holds publishes and waits until everything in flight is stored.
    fn freeze<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), FailoverError>>;
    /// The switch that held publishes since then is given up.
    fn thaw<'a>(&'a self, namespace: &'a NamespaceName, _begun_ms: u64) -> BoxFuture<'a, ()> {
        self.rule_changed(namespace)
    }
    /// Entries and acknowledgements that the target has not confirmed.
    fn left<'a>(
        &'a self,
        namespace: &'a NamespaceName,
        target: &'a str,
    ) -> BoxFuture<'a, Result<(u64, u64), FailoverError>>;
    /// Sends connected clients to the region.
    fn move_clients<'a>(&'a self, namespace: &'a NamespaceName, target: &'a str) -> BoxFuture<'a, ()>;
    /// Figures of all topics against a target.
    fn cost<'a>(&'a self, namespace: &'a NamespaceName, target: &'a str) -> BoxFuture<'a, Costs>;
    /// Sets aside what the active region never got (R1 to R4); `store` is called for each tail before links move past it.
    fn cut_tails<'a>(
        &'a self,
        namespace: &'a NamespaceName,
        record: &'a ActiveRecord,
        store: &'a (dyn Fn(Tail) -> BoxFuture<'a, Result<(), FailoverError>> + Sync),
    ) -> BoxFuture<'a, Result<(), FailoverError>>;
    /// Publishes a tail's entries in the active region, labelled; answers the position up to which that was confirmed.
    fn replay_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<meridian_types::Position, FailoverError>>;
    /// Lets go of what keeps a tail from trimming.
    fn release_tail<'a>(&'a self, tail: &'a Tail) -> BoxFuture<'a, Result<(), FailoverError>>;
}

/// Calls to other regions over the region link.
pub trait PeerCalls: Send + Sync {
    /// One call; the error says what the link says.
    fn call<'a>(&'a self, region: &'a str, call: FailoverCall) -> BoxFuture<'a, Result<FailoverReply, String>>;
}

/// What regions ask each other, as JSON on the region link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailoverCall {
    /// Learn a record, answer yours.
    Learn {
        /// The namespace.
        namespace: String,
        /// The caller's record.
        record: ActiveRecord,
    },
    /// Switch a namespace; you are active.
    Switch {
        /// The namespace.
        namespace: String,
        /// The target.
        to: String,
    },
    /// What would a switch to the region cost; you are active.
    Cost {
        /// The namespace.
        namespace: String,
        /// The target.
        to: String,
    },
    /// How the account of an epoch stands with you.
    Settle {
        /// The namespace.
        namespace: String,
        /// The epoch.
        epoch: Epoch,
    },
}

/// Answers to [`FailoverCall`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailoverReply {
    /// The record known there.
    Record(Option<ActiveRecord>),
    /// A switch went well.
    Switched(Account),
    /// Figures.
    Cost(CostReport),
    /// An account.
    Settled(Settlement),
    /// The caller has no part in the namespace, as far as is known here. To be asked again: policies may be on their way.
    NotYet(String),
    /// It was refused.
    Refused(String),
}

struct Known {
    state: NamespaceState,
    /// When this process came to know it.
    since_ms: u64,
    /// A switch is being driven here (S2).
    switching: bool,
}

/// See the module.
pub struct FailoverService {
    own: String,
    store: SharedStore,
    host: Arc<dyn Host>,
    peers: Arc<dyn PeerCalls>,
    settings: Settings,
    known: RwLock<HashMap<NamespaceName, Known>>,
    /// How many there are: most regions have none, and every producer asks.
    count: AtomicUsize,
    /// Figures that active regions gave last, by namespace.
    heard: RwLock<HashMap<NamespaceName, CostReport>>,
    changes: tokio::sync::Mutex<()>,
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl FailoverService {
    /// Reads what is stored. Nothing runs before [`FailoverService::start`].
    ///
    /// # Errors
    /// What the store says, [`FailoverError::Unreadable`].
    pub async fn open(
        own: &str,
        store: SharedStore,
        host: Arc<dyn Host>,
        peers: Arc<dyn PeerCalls>,
        settings: Settings,
    ) -> Result<Arc<Self>, FailoverError> {
        let mut known = HashMap::new();
        for entry in store.scan(keys::ACTIVE).await? {
            let Some(namespace) = keys::namespace_of(&entry.key) else { continue };
            let state = NamespaceState::decode(&entry.value)?;
            known.insert(namespace, Known { state, since_ms: now_ms(), switching: false });
        }
        Ok(Arc::new(Self {
            own: own.to_owned(),
            store,
            host,
            peers,
            settings,
            count: AtomicUsize::new(known.len()),
            known: RwLock::new(known),
            heard: RwLock::default(),
            changes: tokio::sync::Mutex::new(()),
        }))
    }

    /// What an ordinary producer or consumer of the namespace gets.
    pub fn publish_rule(&self, namespace: &NamespaceName) -> PublishRule {
        if self.count.load(Ordering::Acquire) == 0 {
            return PublishRule::Accept;
        }
        self.known.read().get(namespace).map_or(PublishRule::Accept, |known| known.state.publish_rule(&self.own))
    }

    /// What a link into the namespace gets whose source is at `epoch`.
    pub fn link_rule(&self, namespace: &NamespaceName, epoch: Option<Epoch>) -> LinkRule {
        if self.count.load(Ordering::Acquire) == 0 {
            return LinkRule::Accept;
        }
        self.known.read().get(namespace).map_or(LinkRule::Accept, |known| known.state.link_rule(epoch))
    }

    /// The epoch that links out of the namespace have to name; `Err` = they have to wait (R2).
    ///
    /// # Errors
    /// [`FailoverError::Host`] with what they wait for.
    pub fn link_epoch(&self, namespace: &NamespaceName) -> Result<Option<Epoch>, FailoverError> {
        let known = self.known.read();
        match known.get(namespace) {
            None => Ok(None),
            Some(known) if known.state.tail_pending => {
                Err(FailoverError::Host("what a forced switch left behind is being set aside".to_owned()))
            }
            Some(known) => Ok(Some(known.state.record.epoch)),
        }
    }

    /// The state of a namespace, `None` if all its regions are active.
    pub fn state(&self, namespace: &NamespaceName) -> Option<NamespaceState> {
        self.known.read().get(namespace).map(|known| known.state.clone())
    }

    /// All namespaces that have an active region.
    pub fn namespaces(&self) -> Vec<NamespaceName> {
        self.known.read().keys().cloned().collect()
    }

    /// How many namespaces are active here and not confirmed by a peer.
    pub fn unconfirmed(&self) -> usize {
        let known = self.known.read();
        known.values().filter(|known| known.state.record.active == self.own && !known.state.confirmed).count()
    }

    /// Gives a namespace its first active region, or answers the record that it has.
    ///
    /// # Errors
    /// [`FailoverError::UnknownRegion`], or what the store says.
    pub async fn manage(&self, namespace: &NamespaceName, active: &str) -> Result<ActiveRecord, FailoverError> {
        self.check_region(namespace, active)?;
        match self.known_state(namespace).await {
            Ok(state) => return Ok(state.record),
            Err(FailoverError::NotManaged(_)) => {}
            Err(error) => return Err(error),
        }
        if self.host.regions_of(namespace).len() < 2 {
            return Err(FailoverError::OneRegion(namespace.to_string()));
        }
        let record = ActiveRecord::first(active, now_ms());
        let record = self.learn(namespace, &record, true).await?;
        self.tell_all(namespace).await;
        Ok(record)
    }

    /// Makes this region active without asking the one that is (F4: what it had not sent becomes its tail).
    ///
    /// # Errors
    /// [`FailoverError::NotManaged`], [`FailoverError::AlreadyActive`], or what the store says.
    pub async fn force(&self, namespace: &NamespaceName) -> Result<ActiveRecord, FailoverError> {
        let state = self.known_state(namespace).await?;
        if state.record.active == self.own {
            return Err(FailoverError::AlreadyActive(self.own.clone()));
        }
        self.check_region(namespace, &self.own)?;
        let record = state.record.next(&self.own, true, now_ms());
        tracing::warn!(%namespace, epoch = %record.epoch, "this region is made active by force");
        let record = self.learn(namespace, &record, true).await?;
        self.tell_all(namespace).await;
        Ok(record)
    }

    /// What a switch to a region would cost.
    ///
    /// # Errors
    /// [`FailoverError::NotManaged`], [`FailoverError::UnknownRegion`].
    pub async fn cost(&self, namespace: &NamespaceName, to: &str) -> Result<CostReport, FailoverError> {
        self.check_region(namespace, to)?;
        let state = self.known_state(namespace).await?;
        let record = state.record;
        if record.active == self.own {
            let costs = self.host.cost(namespace, to).await;
            let report = CostReport::of(&namespace.to_string(), &self.own, to, record.epoch, costs);
            return Ok(report.taken(now_ms()));
        }
        let call = FailoverCall::Cost { namespace: namespace.to_string(), to: to.to_owned() };
        let why = match self.peers.call(&record.active, call).await {
            Ok(FailoverReply::Cost(report)) => return Ok(report),
            Ok(FailoverReply::Refused(why) | FailoverReply::NotYet(why)) => format!("does not say: {why}"),
            Ok(_) => "does not answer: what it says is no cost".to_owned(),
            Err(why) => format!("does not answer: {why}"),
        };
        let why = format!("region {} {why}", record.active);
        let heard = self.heard.read().get(namespace).filter(|report| report.to == to).cloned();
        let Some(mut report) = heard else {
            return Ok(CostReport::never_heard(&namespace.to_string(), &record.active, to, record.epoch, &why));
        };
        report.exact = false;
        report.blockers.push(why);
        Ok(report)
    }

    /// How the account of the present epoch stands.
    ///
    /// # Errors
    /// [`FailoverError::NotManaged`], [`FailoverError::Unreachable`] if the region that holds the tails does not answer.
    pub async fn settlement(&self, namespace: &NamespaceName) -> Result<Settlement, FailoverError> {
        let state = self.known_state(namespace).await?;
        let record = &state.record;
        let holder = record.previous.clone().filter(|_| record.forced).unwrap_or_else(|| self.own.clone());
        if holder == self.own {
            let tails = self.tails(namespace).await?;
            let name = namespace.to_string();
            return Ok(settle(&name, record.epoch, record.forced, state.tail_pending, &tails));
        }
        let call = FailoverCall::Settle { namespace: namespace.to_string(), epoch: record.epoch };
        match self.peers.call(&holder, call).await {
            Ok(FailoverReply::Settled(mut settlement)) => {
                settlement.expected_missing = self.heard.read().get(namespace).and_then(|report| report.missing);
                Ok(settlement)
            }
            Ok(FailoverReply::NotYet(reason)) => Err(FailoverError::NotReady { region: holder, reason, waited_ms: 0 }),
            Ok(FailoverReply::Refused(reason)) | Err(reason) => {
                Err(FailoverError::Unreachable { region: holder, reason })
            }
            Ok(_) => Err(FailoverError::Unreadable("the answer is no settlement".to_owned())),
        }
    }

    /// Answers another region.
    pub async fn answer(self: &Arc<Self>, from: &str, call: FailoverCall) -> FailoverReply {
        match self.try_answer(from, call).await {
            Ok(reply) => reply,
            // The policies that give it a part may come behind its call.
            Err(error @ FailoverError::NoPart { .. }) => FailoverReply::NotYet(error.to_string()),
            Err(error) => FailoverReply::Refused(error.to_string()),
        }
    }

    async fn try_answer(self: &Arc<Self>, from: &str, call: FailoverCall) -> Result<FailoverReply, FailoverError> {
        let name = match &call {
            FailoverCall::Learn { namespace, .. }
            | FailoverCall::Switch { namespace, .. }
            | FailoverCall::Cost { namespace, .. }
            | FailoverCall::Settle { namespace, .. } => namespace,
        };
        let unreadable = |error: meridian_types::NameError| FailoverError::Unreadable(error.to_string());
        let namespace = NamespaceName::parse(name).map_err(unreadable)?;
        // A region has a say in the namespaces that it has a part in.
        if !self.host.regions_of(&namespace).iter().any(|region| region == from) {
            return Err(FailoverError::NoPart { region: from.to_owned(), namespace: namespace.to_string() });
        }
        Ok(match call {
            FailoverCall::Learn { record, .. } => {
                FailoverReply::Record(Some(self.learn(&namespace, &record, false).await?))
            }
            FailoverCall::Switch { to, .. } => FailoverReply::Switched(self.switch(&namespace, &to).await?),
            FailoverCall::Cost { to, .. } => {
                self.active_here(&namespace).await?;
                FailoverReply::Cost(self.cost(&namespace, &to).await?)
            }
            FailoverCall::Settle { epoch, .. } => {
                let state = self.known_state(&namespace).await?;
                let tails = self.tails(&namespace).await?;
                let pending = state.tail_pending || state.record.epoch < epoch;
                FailoverReply::Settled(settle(&namespace.to_string(), epoch, state.record.forced, pending, &tails))
            }
        })
    }

    async fn active_here(&self, namespace: &NamespaceName) -> Result<NamespaceState, FailoverError> {
        let state = self.known_state(namespace).await?;
        if state.record.active != self.own {
            let current = state.record.epoch.to_string();
            return Err(FailoverError::Stale { current, given: format!("one in which {} is active", self.own) });
        }
        Ok(state)
    }

    fn check_region(&self, namespace: &NamespaceName, region: &str) -> Result<(), FailoverError> {
        let regions = self.host.regions_of(namespace);
        if regions.iter().any(|known| known == region) {
            return Ok(());
        }
        Err(FailoverError::UnknownRegion { region: region.to_owned(), known: regions.join(", ") })
    }

    /// Takes a record into force: stored first (S1), then acted on. `own_act` = this region made it. Answers the record in
    /// force afterwards.
    async fn learn(
        &self,
        namespace: &NamespaceName,
        told: &ActiveRecord,
        own_act: bool,
    ) -> Result<ActiveRecord, FailoverError> {
        if !told.is_sound() {
            return Err(FailoverError::Unreadable(format!("epoch {} is not one of {}", told.epoch, told.active)));
        }
        let (state, learned, confirmed) = {
            let _turn = self.changes.lock().await;
            let before = self.state(namespace);
            let was_confirmed = before.as_ref().is_some_and(|state| state.confirmed);
            let (state, learned) = match before {
                None => {
                    let mut state = NamespaceState::new(told.clone());
                    state.confirmed = own_act || told.active != self.own;
                    (state, Learned::Newer { deposed: false })
                }
                Some(mut state) => {
                    let learned = state.learn(&self.own, told);
                    (state, learned)
                }
            };
            match learned {
                Learned::Older => return Ok(state.record),
                Learned::Known => {}
                Learned::Newer { .. } => self.save(namespace, &state).await?,
            }
            self.remember(namespace, state.clone());
            let confirmed = state.confirmed && !was_confirmed;
            (state, learned, confirmed)
        };
        if learned != Learned::Known {
            tracing::info!(%namespace, epoch = %state.record.epoch, active = %state.record.active, "a new active region");
        }
        // Regions tell each other again and again: what is known already changes nothing.
        if learned != Learned::Known || confirmed {
            self.host.rule_changed(namespace).await;
        }
        Ok(state.record)
    }

    fn remember(&self, namespace: &NamespaceName, state: NamespaceState) {
        let mut known = self.known.write();
        match known.get_mut(namespace) {
            Some(one) => one.state = state,
            None => {
                known.insert(namespace.clone(), Known { state, since_ms: now_ms(), switching: false });
            }
        }
        self.count.store(known.len(), Ordering::Release);
    }

    /// Stores a state unless the store has a newer epoch, written by another broker of the region (F2).
    async fn save(&self, namespace: &NamespaceName, state: &NamespaceState) -> Result<(), FailoverError> {
        let key = keys::active(namespace);
        for _ in 0..STORE_ATTEMPTS {
            let condition = match self.store.get(&key).await? {
                None => Condition::Absent,
                Some(entry) => {
                    let stored = NamespaceState::decode(&entry.value)?;
                    if stored.record.epoch > state.record.epoch {
                        let (current, given) = (stored.record.epoch.to_string(), state.record.epoch.to_string());
                        return Err(FailoverError::Stale { current, given });
                    }
                    Condition::Is(entry.version)
                }
            };
            match self.store.put(&key, state.encode(), condition).await {
                Ok(_) => return Ok(()),
                Err(MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(MetadataError::Unavailable(format!("{key} is being changed by others")).into())
    }

    /// The tails that are held here.
    ///
    /// # Errors
    /// What the store says.
    pub async fn tails(&self, namespace: &NamespaceName) -> Result<Vec<Tail>, FailoverError> {
        let entries = self.store.scan(&keys::tails_of(namespace)).await?;
        entries.iter().map(|entry| Tail::decode(&entry.value)).collect()
    }

    /// The tail of a topic that an epoch cut off.
    async fn tail(&self, topic: &TopicName, epoch: Epoch) -> Result<Tail, FailoverError> {
        match self.store.get(&keys::tail(topic, epoch)).await? {
            Some(entry) => Tail::decode(&entry.value),
            None => Err(FailoverError::NoTail(format!("topic {topic} has no tail of epoch {epoch}"))),
        }
    }
}
