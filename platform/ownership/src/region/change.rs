//! Changes of ownership, each one transaction (O4).
//!
//! Invariants: O1 epochs rise; O2 whoever is named as owner is checked to be registered, and an owner that is replaced by
//! others than a move is checked to have gone.
//! Failure: a change that meets another one reads what is there and begins again, a bounded number of times.

use super::{GroupsOf, RegionOwnership, not_in_force};
use crate::api::{Ownership, OwnershipError};
use crate::assign::choose;
use crate::isolation::{IsolationData, IsolationRule};
use crate::records::{
    BrokerRecord, BundleId, CutRecord, IsolationRecord, OwnerRecord, broker_key, cut_key, encode, isolation_key,
    owner_key, owners_of,
};
use crate::table::{Holder, Versioned};
use bytes::Bytes;
use meridian_metadata::{Condition, MetadataError, Operation, Version};
use meridian_types::NamespaceName;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};

/// A change that meets others is begun again so often.
const ATTEMPTS: u32 = 12;
/// Pause before it is begun again; grows.
const PAUSE: Duration = Duration::from_millis(5);

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn put(key: String, value: Bytes, condition: Condition) -> Operation {
    Operation::Put { key, value, condition, ephemeral: None }
}

fn condition<T>(there: Option<&Versioned<T>>) -> Condition {
    there.map_or(Condition::Absent, |there| Condition::Is(there.version))
}

/// What a try came to.
enum Tried<T> {
    Done(T),
    Again,
}

/// Bundles that are given away together.
#[derive(Default)]
struct Gifts {
    operations: Vec<Operation>,
    /// Those that somebody asked for.
    wanted: u64,
    /// Those that brokers left behind.
    orphans: u64,
}

impl Gifts {
    fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

impl RegionOwnership {
    fn record_for(&self, to: &BrokerRecord, epoch: u64, from: Option<String>) -> OwnerRecord {
        OwnerRecord { broker: to.id.clone(), incarnation: to.incarnation, epoch, from, since_ms: wall_ms() }
    }

    /// Commits, and lets the table know at once.
    async fn commit(&self, operations: Vec<Operation>) -> Result<Tried<Version>, OwnershipError> {
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        let limit = Duration::from_millis(self.config.call_limit_ms);
        let outcome = timeout(limit, self.store.commit(operations.clone())).await;
        match outcome {
            Ok(Ok(version)) => {
                // Deletions first: a bundle's parts must not be there beside it.
                for operation in &operations {
                    if let Operation::Delete { key, .. } = operation {
                        self.apply_delete(key, version);
                    }
                }
                for operation in &operations {
                    if let Operation::Put { key, value, .. } = operation {
                        self.apply_put(key, value, version);
                    }
                }
                Ok(Tried::Done(version))
            }
            Ok(Err(MetadataError::Conflict { .. } | MetadataError::UnknownOutcome(_))) | Err(_) => {
                self.stats.conflicts.fetch_add(1, Ordering::Relaxed);
                let keys: Vec<String> =
                    operations.iter().map(|operation| operation_key(operation).to_owned()).collect();
                self.refresh(&keys).await?;
                Ok(Tried::Again)
            }
            Ok(Err(error)) => Err(error.into()),
        }
    }

    fn require_force(&self) -> Result<(), OwnershipError> {
        if self.in_force() && self.known.load(Ordering::Acquire) { Ok(()) } else { Err(not_in_force()) }
    }

    /// Gives a bundle of nobody to somebody; answers who has it. Bundles that are asked for at the same time, and those of
    /// brokers that have gone, are given with it.
    pub(super) async fn assign(&self, bundle: &BundleId) -> Result<Arc<BrokerRecord>, OwnershipError> {
        for attempt in 0..ATTEMPTS {
            self.wanted.lock().insert(bundle.clone());
            let giving = self.giving.lock().await;
            if let Holder::Held { broker, .. } = self.table.read().holder(bundle) {
                self.wanted.lock().remove(bundle);
                return Ok(broker.record);
            }
            self.require_force()?;
            let given = self.gifts(bundle)?;
            if given.is_empty() {
                drop(giving);
                self.refresh(&self.keys_of(bundle)).await?;
                sleep(PAUSE * attempt).await;
                continue;
            }
            match self.commit(given.operations).await? {
                Tried::Done(_) => {
                    self.stats.count_assigned("lookup", given.wanted);
                    if given.orphans > 0 {
                        self.stats.count_assigned("broker_lost", given.orphans);
                    }
                }
                Tried::Again => {
                    drop(giving);
                    sleep(PAUSE * attempt).await;
                }
            }
        }
        Err(OwnershipError::NotReady(format!("{bundle}: others change its owner at the same time")))
    }

    /// What is given in one transaction: this bundle, others that are asked for, and those that brokers left behind.
    fn gifts(&self, bundle: &BundleId) -> Result<Gifts, OwnershipError> {
        let mut gifts = Gifts::default();
        let mut checked = BTreeSet::new();
        let Some(first) = self.assignment(bundle, &mut checked)? else { return Ok(gifts) };
        gifts.operations.extend(first);
        gifts.wanted = 1;
        let wanted = std::mem::take(&mut *self.wanted.lock());
        let orphans = {
            let table = self.table.read();
            let is_orphan = matches!(table.holder(bundle), Holder::Free(Some(_)));
            if is_orphan { table.orphans() } else { Vec::new() }
        };
        let orphans = orphans.into_iter().map(|(orphan, _)| orphan);
        let mut seen = BTreeSet::from([bundle.clone()]);
        let others = wanted.into_iter().map(|other| (other, true)).chain(orphans.map(|orphan| (orphan, false)));
        for (other, is_wanted) in others {
            if gifts.wanted + gifts.orphans >= self.config.rescue_batch.max(1) as u64 {
                break;
            }
            // What can't be given now is said to whoever asks for it.
            if seen.insert(other.clone())
                && let Ok(Some(more)) = self.assignment(&other, &mut checked)
            {
                gifts.operations.extend(more);
                *(if is_wanted { &mut gifts.wanted } else { &mut gifts.orphans }) += 1;
            }
        }
        Ok(gifts)
    }

    /// The operations that give a bundle of nobody to somebody; `None` if it has an owner after all. Keys in `checked` are
    /// not checked once more.
    fn assignment(
        &self,
        bundle: &BundleId,
        checked: &mut BTreeSet<String>,
    ) -> Result<Option<Vec<Operation>>, OwnershipError> {
        let table = self.table.read();
        let Holder::Free(previous) = table.holder(bundle) else { return Ok(None) };
        if let Some(previous) = &previous
            && !self.is_own_name(&previous.record.broker)
            // Also before the first renewal after a silence: this broker said then that nobody reaches the store, and others
            // serve on because of it.
            && (!self.reaches_store() || self.now_ms() < self.settled_ms.load(Ordering::Relaxed))
        {
            let text = format!("{bundle}: its broker has gone and may come back, as the metadata store was away");
            return Err(OwnershipError::NotReady(text));
        }
        let groups = GroupsOf(&*self.namespaces);
        let given = self.given.lock().clone();
        let to =
            choose(&table, bundle, &[], &given, &groups).ok_or_else(|| OwnershipError::NoBroker(bundle.to_string()))?;
        *self.given.lock().entry(to.id.clone()).or_default() += 1;
        let epoch = previous.as_ref().map_or(0, |previous| previous.record.epoch) + 1;
        let record = self.record_for(&to, epoch, None);
        let mut operations = vec![put(owner_key(bundle), encode(&record), condition(previous.as_ref()))];
        let mut names = vec![to.id.as_str()];
        names.extend(previous.as_ref().map(|previous| previous.record.broker.as_str()));
        for name in names {
            let key = broker_key(name);
            if checked.insert(key.clone()) {
                operations.push(Operation::Check { key, condition: condition(table.brokers().get(name)) });
            }
        }
        Ok(Some(operations))
    }

    fn is_own_name(&self, broker: &str) -> bool {
        self.me.read().id == broker
    }

    /// Gives all bundles of brokers that have gone to others, many in one transaction.
    pub(super) async fn rescue(&self) -> Result<(), OwnershipError> {
        self.require_force()?;
        let orphans: Vec<BundleId> = self.table.read().orphans().into_iter().map(|(bundle, _)| bundle).collect();
        for batch in orphans.chunks(self.config.rescue_batch.max(1)) {
            let giving = self.giving.lock().await;
            let (mut operations, mut checked) = (Vec::new(), BTreeSet::new());
            for bundle in batch {
                match self.assignment(bundle, &mut checked) {
                    Ok(more) => operations.extend(more.into_iter().flatten()),
                    Err(OwnershipError::NoBroker(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let count = operations.iter().filter(|one| matches!(one, Operation::Put { .. })).count() as u64;
            if count == 0 {
                continue;
            }
            match self.commit(operations).await? {
                Tried::Done(_) => {
                    self.stats.count_assigned("broker_lost", count);
                    tracing::info!(bundles = count, "bundles of brokers that have gone were given to others");
                }
                // Lookups were quicker for some of them: one by one, or at the next look.
                Tried::Again => {
                    drop(giving);
                    for bundle in batch {
                        let _ = self.assign(bundle).await;
                    }
                }
            }
        }
        Ok(())
    }

    /// See [`Ownership::unload`].
    pub(super) async fn unload_now(&self, bundle: &BundleId, to: Option<&str>) -> Result<(), OwnershipError> {
        self.move_bundle(bundle, to, "unload").await?;
        if let Some(host) = self.host() {
            host.close_moved().await;
        }
        Ok(())
    }

    /// Gives a bundle to another broker, or to a new epoch of its owner if there is no other.
    pub(super) async fn move_bundle(
        &self,
        bundle: &BundleId,
        to: Option<&str>,
        why: &'static str,
    ) -> Result<(), OwnershipError> {
        if let Some(id) = to
            && !self.table.read().brokers().contains_key(id)
        {
            // It may have come a moment ago.
            self.refresh(&[broker_key(id)]).await?;
        }
        for attempt in 0..ATTEMPTS {
            self.require_force()?;
            let Some(operations) = self.movement(bundle, to)? else { return Ok(()) };
            match self.commit(operations).await? {
                Tried::Done(_) => {
                    self.stats.count_assigned(why, 1);
                    return Ok(());
                }
                Tried::Again => sleep(PAUSE * attempt).await,
            }
        }
        Err(OwnershipError::NotReady(format!("{bundle}: others change its owner at the same time")))
    }

    fn movement(&self, bundle: &BundleId, to: Option<&str>) -> Result<Option<Vec<Operation>>, OwnershipError> {
        let table = self.table.read();
        let there = table.owner(bundle).cloned();
        let Some(owner) = &there else { return Ok(None) };
        let groups = GroupsOf(&*self.namespaces);
        let chosen = match to {
            Some(id) => {
                let found = table.brokers().get(id).map(|broker| (*broker.record).clone());
                found.ok_or_else(|| OwnershipError::NoSuchBroker(id.to_owned()))?
            }
            None => {
                let given = self.given.lock().clone();
                let other = choose(&table, bundle, &[&owner.record.broker], &given, &groups);
                let Some(other) = other.filter(|other| !other.draining) else { return Ok(None) };
                *self.given.lock().entry(other.id.clone()).or_default() += 1;
                other
            }
        };
        if chosen.id == owner.record.broker && chosen.incarnation == owner.record.incarnation {
            return Ok(None);
        }
        let record = self.record_for(&chosen, owner.record.epoch + 1, Some(owner.record.broker.clone()));
        let key = broker_key(&chosen.id);
        Ok(Some(vec![
            put(owner_key(bundle), encode(&record), Condition::Is(owner.version)),
            Operation::Check { key, condition: condition(table.brokers().get(&chosen.id)) },
        ]))
    }

    /// See [`Ownership::split`].
    pub(super) async fn split_now(&self, bundle: &BundleId, cuts: &[u32]) -> Result<Vec<BundleId>, OwnershipError> {
        for attempt in 0..ATTEMPTS {
            self.require_force()?;
            let bundles = self.bundles(&bundle.namespace);
            let bundles = bundles.ok_or_else(|| OwnershipError::Invalid("Namespace does not exist".to_owned()))?;
            let (next, parts) = bundles.split(bundle.range, cuts, self.config.resize.max_bundles)?;
            let of = |range: &crate::BundleRange| BundleId { namespace: bundle.namespace.clone(), range: *range };
            let parts: Vec<BundleId> = parts.iter().map(of).collect();
            let operations = self.recut(&bundle.namespace, next.boundaries(), std::slice::from_ref(bundle), &parts);
            match self.commit(operations).await? {
                Tried::Done(_) => {
                    self.stats.splits.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%bundle, parts = parts.len(), "bundle split");
                    return Ok(parts);
                }
                Tried::Again => sleep(PAUSE * attempt).await,
            }
        }
        Err(OwnershipError::NotReady(format!("{bundle}: others change its owner at the same time")))
    }

    /// See [`Ownership::merge`].
    pub(super) async fn merge_now(&self, bundle: &BundleId) -> Result<BundleId, OwnershipError> {
        for attempt in 0..ATTEMPTS {
            self.require_force()?;
            let bundles = self.bundles(&bundle.namespace);
            let bundles = bundles.ok_or_else(|| OwnershipError::Invalid("Namespace does not exist".to_owned()))?;
            let (next, parts, whole) = bundles.merge(bundle.range)?;
            let parts = parts.map(|range| BundleId { namespace: bundle.namespace.clone(), range });
            let whole = BundleId { namespace: bundle.namespace.clone(), range: whole };
            let operations = self.recut(&bundle.namespace, next.boundaries(), &parts, std::slice::from_ref(&whole));
            match self.commit(operations).await? {
                Tried::Done(_) => {
                    self.stats.merges.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(bundle = %whole, "bundles merged");
                    self.moved.send_modify(|count| *count += 1);
                    return Ok(whole);
                }
                Tried::Again => sleep(PAUSE * attempt).await,
            }
        }
        Err(OwnershipError::NotReady(format!("{bundle}: others change its owner at the same time")))
    }

    /// One set of bundles instead of another that covers the same hashes: the new ones belong to the first owner that lives,
    /// with a higher epoch than any of the old ones (O1).
    fn recut(
        &self,
        namespace: &NamespaceName,
        boundaries: &[u32],
        old: &[BundleId],
        new: &[BundleId],
    ) -> Vec<Operation> {
        let table = self.table.read();
        let cut = encode(&CutRecord { boundaries: boundaries.to_vec() });
        let version = table.cut_version(namespace).map_or(Condition::Absent, Condition::Is);
        let mut operations = vec![put(cut_key(namespace), cut, version)];
        let owners: Vec<_> = old.iter().map(|bundle| (bundle, table.owner(bundle).cloned())).collect();
        for (bundle, owner) in &owners {
            let condition = condition(owner.as_ref());
            operations.push(match owner {
                Some(_) => Operation::Delete { key: owner_key(bundle), condition },
                None => Operation::Check { key: owner_key(bundle), condition },
            });
        }
        let lives = |bundle: &&BundleId| matches!(table.holder(bundle), Holder::Held { .. });
        let keeper =
            old.iter().find(lives).or_else(|| owners.iter().find(|(_, owner)| owner.is_some()).map(|one| one.0));
        if let Some(keeper) = keeper.and_then(|keeper| table.owner(keeper)) {
            let epoch =
                owners.iter().flat_map(|(_, owner)| owner).map(|owner| owner.record.epoch).max().unwrap_or(0) + 1;
            let record = OwnerRecord { epoch, from: None, since_ms: wall_ms(), ..(*keeper.record).clone() };
            operations.extend(new.iter().map(|part| put(owner_key(part), encode(&record), Condition::Absent)));
        }
        operations
    }

    /// See [`Ownership::forget`].
    pub(super) async fn forget_now(&self, namespace: &NamespaceName) -> Result<(), OwnershipError> {
        let mut keys: Vec<String> =
            self.store.scan(&owners_of(namespace)).await?.into_iter().map(|entry| entry.key).collect();
        keys.push(cut_key(namespace));
        for chunk in keys.chunks(self.config.rescue_batch.max(1)) {
            let delete = |key: &String| Operation::Delete { key: key.clone(), condition: Condition::Any };
            if let Tried::Again = self.commit(chunk.iter().map(delete).collect()).await? {
                return Err(OwnershipError::NotReady(format!("the bundles of {namespace} are not yet forgotten")));
            }
        }
        Ok(())
    }

    /// See [`Ownership::set_isolation`].
    pub(super) async fn set_isolation_now(
        &self,
        name: &str,
        rule: Option<IsolationData>,
    ) -> Result<(), OwnershipError> {
        let key = isolation_key(name);
        let operation = match rule {
            Some(rule) => {
                let rule = IsolationRule::new(rule).map_err(OwnershipError::Invalid)?;
                let json =
                    serde_json::to_string(&rule.data).map_err(|error| OwnershipError::Invalid(error.to_string()))?;
                put(key, encode(&IsolationRecord { json }), Condition::Any)
            }
            None => Operation::Delete { key, condition: Condition::Any },
        };
        match self.commit(vec![operation]).await? {
            Tried::Done(_) => Ok(()),
            Tried::Again => Err(OwnershipError::NotReady("the rule was not stored; repeat".to_owned())),
        }
    }

    /// See [`Ownership::leave`].
    pub(super) async fn leave_now(&self) {
        let limit = Duration::from_millis(self.config.leave_limit_ms);
        if timeout(limit, self.drain()).await.is_err() {
            tracing::warn!(limit_ms = limit.as_millis() as u64, "not everything was moved away before the end");
        }
        self.leaving.store(true, Ordering::Release);
        self.until_ms.store(0, Ordering::Release);
        let session = self.session.lock().take();
        if let Some(session) = session {
            let limit = Duration::from_millis(self.config.call_limit_ms);
            let _ = timeout(limit, self.store.close_session(session)).await;
        }
        self.stop();
    }

    /// Says that nothing more may come here, then moves what is here, many bundles side by side.
    async fn drain(&self) {
        if let Err(error) = self.say_draining().await {
            tracing::warn!(%error, "other brokers were not told that this one ends");
        }
        loop {
            let me = self.me();
            let mine = self.table.read().owned_by(&me.id, me.incarnation);
            let mut moved = false;
            for bundle in mine {
                match self.move_bundle(&bundle, None, "drain").await {
                    Ok(()) => moved |= self.owner(&bundle).is_some_and(|owner| owner.id != me.id),
                    Err(error) => tracing::warn!(%bundle, %error, "a bundle was not moved away"),
                }
                self.moved.send_modify(|count| *count += 1);
            }
            if let Some(host) = self.host() {
                host.close_moved().await;
            }
            if !moved {
                return;
            }
        }
    }

    async fn say_draining(&self) -> Result<(), OwnershipError> {
        let session = *self.session.lock();
        let Some(session) = session else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            let me = BrokerRecord { draining: true, ..(*self.me()).clone() };
            let key = broker_key(&me.id);
            let there = self.table.read().brokers().get(&me.id).cloned();
            let put = Operation::Put {
                key,
                value: encode(&me),
                condition: condition(there.as_ref()),
                ephemeral: Some(session),
            };
            if let Tried::Done(_) = self.commit(vec![put]).await? {
                *self.me.write() = Arc::new(me);
                return Ok(());
            }
        }
        Ok(())
    }
}

fn operation_key(operation: &Operation) -> &str {
    match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } | Operation::Check { key, .. } => key,
    }
}
