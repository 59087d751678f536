//! Takes over what other regions changed.
//!
//! Invariants: R5 of two versions the greater one stays; R3 holds for what is taken over, too: who comes before what it
//! hangs on is put off; a record whose topics are here goes only after its topics; a record that no longer names this
//! region becomes a local one with its data, never a deletion; a region ends only what it has a part in.
//! Failure: an outcome per object; whatever was not taken is offered again by the region that has it.
//! Must never know: how objects travel, how topics are deleted.

use crate::keys::Key;
use crate::merge::{Here, detach, merge};
use crate::record::{Header, Tombstone, decode, decode_header};
use crate::write::{Beside, Tries};
use crate::{Registry, RegistryError};
use meridian_metadata::{Condition, Operation, Version};
use meridian_topology::{Applied, Object, ObjectVersion, Stamp};
use meridian_types::{Classify, ErrorClass, NamespaceName, TopicName};
use serde_json::Value;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Deletes topics whose records were deleted in another region.
pub trait Deletions: Send + Sync {
    /// Deletes all topics of a namespace with their data, also those in use, and its partitioned topics' records.
    fn delete_topics_of<'a>(
        &'a self,
        namespace: &'a NamespaceName,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

    /// Deletes a topic (all its `partitions` if it is a partitioned one) with its data, also in use, unless it was
    /// created after the deletion. Absent is no error.
    fn delete_topic<'a>(
        &'a self,
        topic: &'a TopicName,
        partitions: Option<u32>,
        deleted_ms: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
}

/// A record as it is here.
struct Live {
    header: Header,
    data: Value,
    at: Version,
}

/// Record and tombstone as they are here.
struct Local {
    live: Option<Live>,
    tombstone: Option<(Tombstone, Version)>,
}

/// What to do with an object.
enum Plan {
    Write(Vec<Operation>),
    /// Nothing is written (now).
    Answer(Applied),
}

impl Registry {
    /// Sets who deletes topics; without it records are deleted and topics stay.
    pub fn set_deletions(&self, deletions: Arc<dyn Deletions>) {
        *self.sharing.deletions.lock() = Some(deletions);
    }

    /// Takes an object of another region over if its version is greater than what is here. Safe to repeat.
    pub async fn apply_remote(self: &Arc<Self>, from: &str, object: &Object) -> Applied {
        match self.try_apply(from, object).await {
            Ok(applied) => applied,
            Err(error) if error.class() == ErrorClass::Retry => Applied::Later(error.to_string()),
            Err(error @ RegistryError::NotFound { .. }) => Applied::Later(error.to_string()),
            Err(error) => Applied::Refused(error.to_string()),
        }
    }

    async fn try_apply(self: &Arc<Self>, from: &str, object: &Object) -> Result<Applied, RegistryError> {
        let Some(key) = Key::parse(&object.key).filter(Key::is_shared) else {
            return Ok(Applied::Refused(format!("{} is not known here (an older program?)", object.key)));
        };
        for stamp in [object.version.stamp, object.version.born] {
            if let Err(ahead) = self.sharing.observe(stamp) {
                return Ok(Applied::Refused(ahead.to_string()));
            }
        }
        let mut tries = Tries::of(&key);
        loop {
            tries.next()?;
            let local = self.local(&key).await?;
            if object.version <= self.version_of(&local) {
                return Ok(Applied::Older);
            }
            match self.plan(from, &key, object, &local).await? {
                Plan::Answer(applied) => return Ok(applied),
                Plan::Write(operations) => {
                    if self.try_commit(&mut tries, operations).await? {
                        return Ok(Applied::Taken);
                    }
                }
            }
        }
    }

    async fn local(&self, key: &Key) -> Result<Local, RegistryError> {
        let live = match self.store.get(&key.path()).await? {
            Some(entry) => Some(Live {
                header: decode_header(&entry.key, &entry.value)?,
                data: decode(&entry.key, &entry.value)?,
                at: entry.version,
            }),
            None => None,
        };
        Ok(Local { live, tombstone: self.find_tombstone(key).await? })
    }

    fn version_of(&self, local: &Local) -> ObjectVersion {
        let live = local.live.as_ref().map(|live| live.header.version(self.sharing.region()));
        let gone = local.tombstone.as_ref().map(|(tombstone, _)| tombstone.version());
        live.max(gone).unwrap_or_default()
    }

    async fn plan(
        self: &Arc<Self>,
        from: &str,
        key: &Key,
        object: &Object,
        local: &Local,
    ) -> Result<Plan, RegistryError> {
        let born_here = local.live.as_ref().map(|live| live.header.version(self.sharing.region()).born);
        let over = object.version.deleted || born_here.is_some_and(|born| born <= object.ended);
        if over {
            return self.plan_end(from, key, object, local).await;
        }
        let data: Value = match serde_json::from_slice(&object.value) {
            Ok(data) => data,
            Err(error) => return Ok(Plan::Answer(Applied::Refused(format!("it is no JSON: {error}")))),
        };
        let own = self.defaults().cluster.clone();
        if let Key::Namespace(_) = key {
            let named =
                |field: &str| data[field].as_array().is_some_and(|all| all.iter().any(|name| *name == own.as_str()));
            if !named("replication_clusters") && !named("allowed_clusters") {
                return self.plan_leaving(key, object, local, &own);
            }
        }
        let mut operations = match key {
            Key::Namespace(name) => self.beside(&Beside::TenantOf(name)).await?,
            Key::TopicPolicies(topic) | Key::Partitioned(topic) | Key::Schemas(topic) => {
                vec![self.check_namespace_of(topic).await?]
            }
            Key::Cluster(_) | Key::Tenant(_) | Key::Ended(_) => Vec::new(),
        };
        let in_use = matches!(key, Key::Tenant(name) if self.namespaces(name).is_some_and(|all| !all.is_empty()));
        let here = Here { own: &own, data: local.live.as_ref().map(|live| &live.data), in_use };
        let merged = match merge(key, &here, data) {
            Ok(merged) => merged,
            Err(why) => return Ok(Plan::Answer(Applied::Refused(why))),
        };
        let stamp = if merged.adds { self.sharing.tick() } else { object.version.stamp };
        let header = Header {
            stamp: Some(stamp),
            born: Some(object.version.born),
            ended: Some(object.ended).filter(|ended| *ended != Stamp::ZERO),
            regions: object.regions.clone(),
            detached: false,
        };
        let condition = local.live.as_ref().map_or(Condition::Absent, |live| Condition::Is(live.at));
        operations.push(key.put(&header, &merged.data, condition)?);
        operations.extend(local.tombstone.as_ref().map(|(_, at)| key.delete_tombstone(*at)));
        Ok(Plan::Write(operations))
    }

    /// The namespace does not name this region any more: its copy here becomes a local one.
    fn plan_leaving(&self, key: &Key, object: &Object, local: &Local, own: &str) -> Result<Plan, RegistryError> {
        let Some(live) = &local.live else {
            let tombstone = Tombstone::new(object.version, object.regions.clone(), self.sharing.now_ms());
            return Ok(Plan::Write(vec![key.put_tombstone(&tombstone)?]));
        };
        let header = Header {
            stamp: Some(object.version.stamp),
            born: Some(object.version.born),
            ended: Some(object.ended).filter(|ended| *ended != Stamp::ZERO),
            regions: object.regions.clone(),
            detached: true,
        };
        let data = if live.header.detached { live.data.clone() } else { detach(own, live.data.clone()) };
        tracing::warn!(key = key.path(), "a namespace is no longer shared with this region: what is here stays, alone");
        Ok(Plan::Write(vec![key.put(&header, &data, Condition::Is(live.at))?]))
    }

    /// The life that is here has ended elsewhere.
    async fn plan_end(
        self: &Arc<Self>,
        from: &str,
        key: &Key,
        object: &Object,
        local: &Local,
    ) -> Result<Plan, RegistryError> {
        let Some(live) = &local.live else {
            return match key {
                // Of topics that the sender has no part in nothing is deleted.
                Key::Ended(topic) if self.concerns(from, topic) => self.end_in_background(key, object),
                _ => Ok(Plan::Write(vec![self.tombstone_of(key, object)?])),
            };
        };
        let shared_with_sender = self.shared_version(from, &object.key).is_some();
        if live.header.detached || !shared_with_sender {
            return self.plan_staying(key, live);
        }
        if let Key::Tenant(name) = key {
            let all = self.namespaces(name).unwrap_or_default();
            let shared = |name: &&NamespaceName| {
                self.namespace(name).is_some_and(|policies| policies.named_clusters().contains(from))
            };
            if let Some(first) = all.iter().find(shared) {
                return Ok(Plan::Answer(Applied::Later(format!("namespace {first} is still there"))));
            }
            if !all.is_empty() {
                return self.plan_staying(key, live);
            }
        }
        match key {
            Key::Namespace(_) | Key::Partitioned(_) => self.end_in_background(key, object),
            _ => Ok(Plan::Write(self.end_operations(key, object, live.at)?)),
        }
    }

    /// What is here goes on, as a new life that the other region's end does not reach.
    fn plan_staying(&self, key: &Key, live: &Live) -> Result<Plan, RegistryError> {
        let own = self.defaults().cluster.clone();
        let stamp = Some(self.sharing.tick());
        let ended = Some(live.header.version(self.sharing.region()).born);
        let header = Header { stamp, born: stamp, ended, regions: BTreeSet::new(), detached: false };
        let mut data = live.data.clone();
        if let Key::Tenant(_) = key {
            data["allowedClusters"] = Value::from(vec![own]);
        }
        Ok(Plan::Write(vec![key.put(&header, &data, Condition::Is(live.at))?]))
    }

    fn tombstone_of(&self, key: &Key, object: &Object) -> Result<Operation, RegistryError> {
        let version = match object.version.deleted {
            true => object.version,
            false => ObjectVersion { born: object.ended, deleted: true, stamp: object.ended },
        };
        key.put_tombstone(&Tombstone::new(version, object.regions.clone(), self.sharing.now_ms()))
    }

    fn end_operations(&self, key: &Key, object: &Object, at: Version) -> Result<Vec<Operation>, RegistryError> {
        let delete = Operation::Delete { key: key.path(), condition: Condition::Is(at) };
        Ok(vec![delete, self.tombstone_of(key, object)?])
    }

    /// Deletes the topics first, beside the stream of objects; the object is sent again until that is done.
    fn end_in_background(self: &Arc<Self>, key: &Key, object: &Object) -> Result<Plan, RegistryError> {
        if self.sharing.ending.lock().insert(object.key.clone()) {
            let (registry, key, object) = (self.clone(), key.clone(), object.clone());
            tokio::spawn(async move {
                match registry.end(&key, &object).await {
                    Ok(()) => tracing::info!(key = object.key, "deleted, as in another region"),
                    Err(why) => {
                        tracing::warn!(key = object.key, why, "what was deleted in another region is still here")
                    }
                }
                registry.sharing.ending.lock().remove(&object.key);
            });
        }
        Ok(Plan::Answer(Applied::Later("its topics are being deleted".to_owned())))
    }

    async fn end(&self, key: &Key, object: &Object) -> Result<(), String> {
        let deletions = self.sharing.deletions.lock().clone();
        if let Some(deletions) = deletions {
            let deleted_ms = object.version.stamp.wall_ms();
            match key {
                Key::Namespace(name) => deletions.delete_topics_of(name).await?,
                Key::Partitioned(topic) => {
                    deletions.delete_topic(topic, self.partitions(topic), deleted_ms).await?;
                }
                Key::Ended(topic) => deletions.delete_topic(topic, None, deleted_ms).await?,
                _ => {}
            }
        }
        self.end_record(key, object).await.map_err(|error| error.to_string())
    }

    async fn end_record(&self, key: &Key, object: &Object) -> Result<(), RegistryError> {
        if let Key::Namespace(name) = key {
            self.delete_records_of(name).await?;
            for topic in self.partitioned_topics(name) {
                match self.delete_partitioned(&topic).await {
                    Err(RegistryError::NotFound { .. }) => {}
                    other => other?,
                }
            }
        }
        let mut tries = Tries::of(key);
        loop {
            tries.next()?;
            let local = self.local(key).await?;
            let operations = match &local.live {
                Some(live) => {
                    let born = live.header.version(self.sharing.region()).born;
                    let over = born <= if object.version.deleted { object.version.born } else { object.ended };
                    // Created anew meanwhile.
                    if !over {
                        return Ok(());
                    }
                    self.end_operations(key, object, live.at)?
                }
                None if object.version <= self.version_of(&local) => return Ok(()),
                None => vec![self.tombstone_of(key, object)?],
            };
            if self.try_commit(&mut tries, operations).await? {
                return Ok(());
            }
        }
    }
}
