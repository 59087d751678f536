//! The registry over a store that loses replies or is away (R4; field report B132).

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_metadata::{
    BoxFuture, Entry, MemoryStore, MetadataError, MetadataStore, Operation, Page, Session, SessionId, SharedStore,
    Version, Watch,
};
use meridian_policy::{BrokerDefaults, ClusterData, Policies, TenantInfo};
use meridian_registry::{Registry, RegistryError};
use meridian_types::{NamespaceName, TopicName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WELL: u8 = 0;
/// Every second commit is applied and its reply lost.
const LOSES_REPLIES: u8 = 1;
/// Every second commit is lost with its reply.
const LOSES_REQUESTS: u8 = 2;
/// Nothing is answered.
const AWAY: u8 = 3;

struct Faulty {
    inner: MemoryStore,
    mode: AtomicU8,
    commits: AtomicU64,
}

impl Faulty {
    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }

    fn reachable(&self) -> Result<(), MetadataError> {
        match self.mode.load(Ordering::Relaxed) {
            AWAY => Err(MetadataError::Unavailable("away".into())),
            _ => Ok(()),
        }
    }
}

impl MetadataStore for Faulty {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        Box::pin(async move {
            self.reachable()?;
            self.inner.get(key).await
        })
    }

    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        Box::pin(async move {
            self.reachable()?;
            let lost = self.commits.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            let unknown = || Err(MetadataError::UnknownOutcome("no reply".into()));
            match self.mode.load(Ordering::Relaxed) {
                LOSES_REPLIES if lost => self.inner.commit(operations).await.and_then(|_| unknown()),
                LOSES_REQUESTS if lost => unknown(),
                _ => self.inner.commit(operations).await,
            }
        })
    }

    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        Box::pin(async move {
            self.reachable()?;
            self.inner.range(prefix, after, limit).await
        })
    }

    fn allocate<'a>(&'a self, sequence: &'a str, count: u64) -> BoxFuture<'a, Result<u64, MetadataError>> {
        self.inner.allocate(sequence, count)
    }

    fn open_session(&self, ttl_ms: u64) -> BoxFuture<'_, Result<Session, MetadataError>> {
        self.inner.open_session(ttl_ms)
    }

    fn renew_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        self.inner.renew_session(session)
    }

    fn close_session(&self, session: SessionId) -> BoxFuture<'_, Result<(), MetadataError>> {
        self.inner.close_session(session)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<Version>,
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, MetadataError>> {
        self.inner.watch(prefix, from)
    }

    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        self.inner.current_version()
    }
}

async fn registry() -> (Arc<Faulty>, Arc<Registry>) {
    let faulty = Arc::new(Faulty { inner: MemoryStore::new(), mode: AtomicU8::new(WELL), commits: AtomicU64::new(0) });
    let registry = Registry::open(faulty.clone() as SharedStore, BrokerDefaults::default()).await.unwrap();
    registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
    (faulty, registry)
}

fn default_namespace() -> NamespaceName {
    NamespaceName::parse("public/default").unwrap()
}

/// Creates, changes and deletes one of everything.
async fn life(registry: &Registry, index: u32) -> Result<(), RegistryError> {
    let tenant = TenantInfo { allowed_clusters: BTreeSet::from(["standalone".into()]), ..Default::default() };
    let (name, namespace) = (format!("t{index}"), NamespaceName::parse(&format!("t{index}/n")).unwrap());
    let topic = TopicName::parse(&format!("t{index}/n/x")).unwrap();
    registry.create_tenant(&name, &tenant).await?;
    registry.create_namespace(&namespace, Policies::default()).await?;
    registry.create_partitioned(&topic, 2, BTreeMap::new()).await?;
    assert_eq!(registry.partitions(&topic), Some(2), "R2");
    let grow = |topic: &mut meridian_policy::PartitionedTopic| {
        topic.partitions += 1;
        Ok::<_, RegistryError>(topic.partitions)
    };
    assert_eq!(registry.update_partitioned(&topic, grow).await?, 3, "grown once, not twice");
    assert_eq!(registry.partitions(&topic), Some(3));
    registry.delete_partitioned(&topic).await?;
    registry.delete_namespace(&namespace).await?;
    registry.delete_tenant(&name).await
}

#[tokio::test]
async fn b132_a_lost_reply_is_no_conflict_with_oneself() {
    let (faulty, registry) = registry().await;
    for mode in [LOSES_REPLIES, LOSES_REQUESTS] {
        faulty.set(mode);
        for index in 0..20 {
            // The parity of the commits moves the losses over all steps.
            if index % 2 == 1 {
                faulty.commits.fetch_add(1, Ordering::Relaxed);
            }
            life(&registry, index).await.unwrap();
        }
        assert_eq!(registry.tenants(), ["public", "pulsar"]);
    }
}

#[tokio::test]
async fn somebody_elses_record_is_still_a_conflict() {
    let (faulty, registry) = registry().await;
    let tenant = TenantInfo::default();
    registry.create_tenant("theirs", &TenantInfo { admin_roles: ["x".into()].into(), ..tenant.clone() }).await.unwrap();
    faulty.set(LOSES_REPLIES);
    let exists = registry.create_tenant("theirs", &tenant).await;
    assert!(matches!(exists, Err(RegistryError::Exists { .. })), "{exists:?}");
}

#[tokio::test]
async fn while_the_store_is_away_reads_go_on_and_writes_fail_as_retryable() {
    let (faulty, registry) = registry().await;
    faulty.set(AWAY);
    assert!(registry.namespace(&default_namespace()).is_some());
    assert!(registry.effective(&TopicName::parse("x").unwrap()).auto_topic_creation.allowed);
    let update = registry.update_namespace(&default_namespace(), |_| Ok::<_, RegistryError>(())).await;
    assert!(matches!(update, Err(RegistryError::Store(MetadataError::Unavailable(_)))), "{update:?}");
    faulty.set(WELL);
    life(&registry, 0).await.unwrap();
}
