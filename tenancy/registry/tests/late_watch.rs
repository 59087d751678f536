//! The registry behind its store: what another process made is known as soon as it is asked for.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_metadata::{
    BoxFuture, Entry, MemoryStore, MetadataError, MetadataStore, Operation, Page, Session, SessionId, SharedStore,
    Version, Watch, WatchEvent,
};
use meridian_policy::{BrokerDefaults, ClusterData, PartitionedTopic, Policies};
use meridian_registry::{Registry, RegistryError};
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A process's view of a store that all share: its watches bring nothing until they are let go.
struct Late {
    inner: Arc<MemoryStore>,
    flowing: watch::Sender<bool>,
    gets: AtomicU64,
}

impl Late {
    fn over(inner: &Arc<MemoryStore>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), flowing: watch::Sender::new(true), gets: AtomicU64::new(0) })
    }
}

struct Held {
    inner: Box<dyn Watch>,
    flowing: watch::Receiver<bool>,
}

impl Watch for Held {
    fn next(&mut self) -> BoxFuture<'_, Option<(WatchEvent, Version)>> {
        Box::pin(async move {
            let next = self.inner.next().await;
            let _ = self.flowing.wait_for(|flowing| *flowing).await;
            next
        })
    }
}

impl MetadataStore for Late {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, MetadataError>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            // Lets others ask meanwhile, as a real store does.
            tokio::task::yield_now().await;
            self.inner.get(key).await
        })
    }
    fn commit(&self, operations: Vec<Operation>) -> BoxFuture<'_, Result<Version, MetadataError>> {
        self.inner.commit(operations)
    }
    fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Page, MetadataError>> {
        self.inner.range(prefix, after, limit)
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
        Box::pin(async move {
            let inner = self.inner.watch(prefix, from).await?;
            let held: Box<dyn Watch> = Box::new(Held { inner, flowing: self.flowing.subscribe() });
            Ok(held)
        })
    }
    fn current_version(&self) -> BoxFuture<'_, Result<Version, MetadataError>> {
        self.inner.current_version()
    }
}

fn ns(name: &str) -> NamespaceName {
    NamespaceName::parse(name).unwrap()
}

async fn open(store: SharedStore) -> Arc<Registry> {
    Registry::open(store, BrokerDefaults::default()).await.unwrap()
}

/// A registry that writes, and one that hears of it late.
async fn two() -> (Arc<Registry>, Arc<Registry>, Arc<Late>) {
    let shared = Arc::new(MemoryStore::new());
    let writer = open(shared.clone()).await;
    writer.bootstrap(&ClusterData::default(), 4).await.unwrap();
    let late = Late::over(&shared);
    let reader = open(late.clone()).await;
    late.flowing.send_replace(false);
    (writer, reader, late)
}

#[tokio::test]
async fn what_another_process_made_is_known_when_it_is_asked_for() {
    let (writer, reader, late) = two().await;
    let (namespace, topic) = (ns("public/new"), TopicName::parse("persistent://public/new/parts").unwrap());
    assert_eq!(reader.learn_namespace(&namespace).await, Ok(false));
    writer.create_namespace(&namespace, Policies::default()).await.unwrap();
    writer.create_partitioned(&topic, 3, BTreeMap::new()).await.unwrap();
    assert!(reader.namespace(&namespace).is_none(), "the watch is behind");
    let asking = {
        let (reader, namespace, topic) = (reader.clone(), namespace.clone(), topic.clone());
        tokio::spawn(async move { (reader.learn_namespace(&namespace).await, reader.learn_partitioned(&topic).await) })
    };
    tokio::task::yield_now().await;
    late.flowing.send_replace(true);
    assert_eq!(asking.await.unwrap(), (Ok(true), Ok(true)));
    assert!(reader.namespace(&namespace).is_some() && reader.partitions(&topic) == Some(3));
}

#[tokio::test]
async fn partitions_that_another_process_added_are_known_when_they_are_asked_for() {
    let (writer, reader, late) = two().await;
    let topic = TopicName::parse("persistent://public/default/parts").unwrap();
    late.flowing.send_replace(true);
    writer.create_partitioned(&topic, 2, BTreeMap::new()).await.unwrap();
    assert_eq!(reader.learn_partition(&topic.with_partition(1)).await, Ok(true));
    late.flowing.send_replace(false);
    let grow = |found: &mut PartitionedTopic| {
        found.partitions = 4;
        Ok::<(), RegistryError>(())
    };
    writer.update_partitioned(&topic, grow).await.unwrap();
    assert_eq!(reader.partitions(&topic), Some(2), "the watch is behind");
    let asking: Vec<_> = [3, 3, 9]
        .map(|number| {
            let (reader, part) = (reader.clone(), topic.with_partition(number));
            tokio::spawn(async move { reader.learn_partition(&part).await })
        })
        .into();
    tokio::task::yield_now().await;
    late.flowing.send_replace(true);
    let mut answers = Vec::new();
    for one in asking {
        answers.push(one.await.unwrap());
    }
    assert_eq!(answers, [Ok(true), Ok(true), Ok(false)]);
    assert_eq!(reader.learn_partition(&topic).await, Ok(false), "it is no partition");
}

#[tokio::test]
async fn a_watch_that_stays_behind_is_an_error_and_no_absence() {
    let (writer, reader, _late) = two().await;
    writer.create_namespace(&ns("public/new"), Policies::default()).await.unwrap();
    let asked = reader.learn_namespace(&ns("public/new")).await;
    assert!(matches!(asked, Err(RegistryError::Store(MetadataError::Unavailable(_)))), "{asked:?}");
}

#[tokio::test]
async fn a_flood_of_unknown_names_is_no_flood_at_the_store() {
    let (_, reader, late) = two().await;
    let mut asking = JoinSet::new();
    for _ in 0..2_000 {
        let reader = reader.clone();
        asking.spawn(async move { reader.learn_namespace(&ns("public/none")).await });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), Ok(false));
    }
    let same = late.gets.swap(0, Ordering::Relaxed);
    assert!(same <= 100, "{same} reads for one name that all asked for at once");
    let begun = Instant::now();
    for number in 0..20_000 {
        let reader = reader.clone();
        asking.spawn(async move { reader.learn_namespace(&ns(&format!("public/none-{number}"))).await });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), Ok(false));
    }
    let (reads, windows) = (late.gets.load(Ordering::Relaxed), begun.elapsed().as_millis() / 100 + 2);
    assert!(u128::from(reads) <= 100 * windows, "{reads} reads for 20,000 names in {:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(reader.learn_namespace(&ns("public/default")).await, Ok(true));
}
