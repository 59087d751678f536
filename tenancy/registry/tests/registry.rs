//! The registry over a memory store: what is written is read, by this process and by another.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use meridian_metadata::{Condition, MemoryStore, MetadataError, RocksStore, SharedStore};
use meridian_policy::{BrokerDefaults, ClusterData, Policies, PolicyError, PublishRate, TenantInfo, TopicPolicies};
use meridian_registry::{Changed, Registry, RegistryError};
use meridian_types::{NamespaceName, TopicName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

async fn open(store: &SharedStore) -> Arc<Registry> {
    Registry::open(store.clone(), BrokerDefaults::default()).await.unwrap()
}

async fn bootstrapped(store: &SharedStore) -> Arc<Registry> {
    let registry = open(store).await;
    registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
    registry
}

fn ns(name: &str) -> NamespaceName {
    NamespaceName::parse(name).unwrap()
}

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

fn tenant() -> TenantInfo {
    TenantInfo { admin_roles: BTreeSet::new(), allowed_clusters: BTreeSet::from(["standalone".to_owned()]) }
}

/// Waits until a condition holds, looking again after each change.
async fn eventually(registry: &Registry, holds: impl Fn(&Registry) -> bool) {
    let mut changes = registry.changes();
    let waiting = async {
        while !holds(registry) {
            let _ = changes.recv().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the change in time");
}

#[tokio::test]
async fn bootstrap_creates_what_is_missing_and_nothing_twice() {
    let store = store();
    let first = ClusterData { service_url: Some("http://a:1".into()), ..Default::default() };
    let registry = open(&store).await;
    registry.bootstrap(&first, 4).await.unwrap();
    assert_eq!(registry.clusters(), ["standalone"]);
    assert_eq!(registry.tenants(), ["public", "pulsar"]);
    assert_eq!(registry.all_namespaces(), [ns("public/default"), ns("pulsar/system")]);
    let policies = registry.namespace(&ns("public/default")).unwrap();
    assert_eq!(policies.replication_clusters, BTreeSet::from(["standalone".to_owned()]));
    assert_eq!(policies.bundles.as_ref().unwrap().boundaries.len(), 5);
    let ttl = |policies: &mut Policies| {
        policies.message_ttl_in_seconds = Some(7);
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&ns("public/default"), ttl).await.unwrap();
    let version = store.current_version().await.unwrap();
    registry.bootstrap(&first, 8).await.unwrap();
    assert_eq!(store.current_version().await.unwrap(), version, "nothing was missing, nothing is written");
    assert_eq!(registry.namespace(&ns("public/default")).unwrap().message_ttl_in_seconds, Some(7));
    let moved = ClusterData { service_url: Some("http://b:2".into()), ..Default::default() };
    registry.bootstrap(&moved, 4).await.unwrap();
    assert_eq!(registry.cluster("standalone").unwrap().service_url.as_deref(), Some("http://b:2"));
}

#[tokio::test]
async fn another_process_sees_changes_and_a_later_one_everything() {
    let store = store();
    let registry = bootstrapped(&store).await;
    let other = open(&store).await;
    registry.create_tenant("t", &tenant()).await.unwrap();
    registry.create_namespace(&ns("t/n"), Policies::default()).await.unwrap();
    registry.create_partitioned(&topic("t/n/x"), 3, BTreeMap::new()).await.unwrap();
    eventually(&other, |other| other.partitions(&topic("t/n/x")) == Some(3)).await;
    assert_eq!(other.namespaces("t"), Some(vec![ns("t/n")]));
    registry.delete_partitioned(&topic("t/n/x")).await.unwrap();
    eventually(&other, |other| other.partitions(&topic("t/n/x")).is_none()).await;
    let later = open(&store).await;
    assert_eq!(later.namespaces("t"), Some(vec![ns("t/n")]));
    assert_eq!(later.partitioned_topics(&ns("t/n")), []);
}

#[tokio::test]
async fn everything_is_there_again_after_a_restart_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let open_on_disk = || Arc::new(RocksStore::open(dir.path()).unwrap()) as SharedStore;
    {
        let registry = bootstrapped(&open_on_disk()).await;
        registry.create_partitioned(&topic("x"), 3, BTreeMap::new()).await.unwrap();
        let role = |tenant: &mut TenantInfo| Ok::<_, RegistryError>(tenant.admin_roles.insert("r".into()));
        registry.update_tenant("public", role).await.unwrap();
    }
    let registry = bootstrapped(&open_on_disk()).await;
    assert_eq!(registry.partitions(&topic("x")), Some(3));
    assert_eq!(registry.tenant("public").unwrap().admin_roles, BTreeSet::from(["r".to_owned()]));
    assert_eq!(registry.all_namespaces().len(), 2);
}

#[tokio::test]
async fn concurrent_changes_are_all_kept() {
    let registry = bootstrapped(&store()).await;
    let tasks: Vec<_> = (0..8)
        .map(|index| {
            let registry = registry.clone();
            tokio::spawn(async move {
                let add = |policies: &mut Policies| {
                    policies.properties.insert(format!("k{index}"), "v".into());
                    Ok::<_, RegistryError>(policies.properties.len())
                };
                registry.update_namespace(&ns("public/default"), add).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(registry.namespace(&ns("public/default")).unwrap().properties.len(), 8);
}

#[tokio::test]
async fn a_refused_change_changes_nothing() {
    let registry = bootstrapped(&store()).await;
    let own =
        |_: &mut Policies| -> Result<(), RegistryError> { Err(PolicyError { what: "x".into(), rule: "never" }.into()) };
    assert!(matches!(registry.update_namespace(&ns("public/default"), own).await, Err(RegistryError::Policy(_))));
    let unknown_cluster = |policies: &mut Policies| {
        policies.replication_clusters.insert("nowhere".into());
        Ok::<_, RegistryError>(())
    };
    let refused = registry.update_namespace(&ns("public/default"), unknown_cluster).await.unwrap_err();
    assert_eq!(refused.to_string(), "Cluster nowhere does not exist.");
    let policies = registry.namespace(&ns("public/default")).unwrap();
    assert!(!policies.replication_clusters.contains("nowhere"));
    let missing = registry.update_namespace(&ns("public/none"), |_| Ok::<_, RegistryError>(())).await;
    assert!(matches!(missing, Err(RegistryError::NotFound { kind: "namespace", .. })));
}

#[tokio::test]
async fn tenants_namespaces_and_topics_hang_on_each_other() {
    let registry = bootstrapped(&store()).await;
    let no_tenant = registry.create_namespace(&ns("t/n"), Policies::default()).await;
    assert!(matches!(no_tenant, Err(RegistryError::NotFound { kind: "tenant", .. })));
    registry.create_tenant("t", &tenant()).await.unwrap();
    assert!(matches!(registry.create_tenant("t", &tenant()).await, Err(RegistryError::Exists { kind: "tenant", .. })));
    let no_namespace = registry.create_partitioned(&topic("t/n/x"), 1, BTreeMap::new()).await;
    assert!(matches!(no_namespace, Err(RegistryError::NotFound { kind: "namespace", .. })));
    registry.create_namespace(&ns("t/n"), Policies::default()).await.unwrap();
    let again = registry.create_namespace(&ns("t/n"), Policies::default()).await;
    assert!(matches!(again, Err(RegistryError::Exists { kind: "namespace", .. })));
    registry.create_partitioned(&topic("t/n/x"), 1, BTreeMap::new()).await.unwrap();
    assert!(matches!(registry.delete_tenant("t").await, Err(RegistryError::InUse { .. })));
    assert!(matches!(registry.delete_cluster("standalone").await, Err(RegistryError::InUse { .. })));
    assert!(matches!(registry.delete_namespace(&ns("t/n")).await, Err(RegistryError::InUse { .. })));
    let marked = registry.create_partitioned(&topic("t/n/y"), 1, BTreeMap::new()).await;
    assert!(matches!(marked, Err(RegistryError::NotFound { .. })), "the deletion has begun");
    registry.delete_partitioned(&topic("t/n/x")).await.unwrap();
    registry.delete_namespace(&ns("t/n")).await.unwrap();
    assert_eq!(registry.namespace(&ns("t/n")), None);
    registry.delete_tenant("t").await.unwrap();
    assert_eq!(registry.namespaces("t"), None);
    assert!(matches!(registry.delete_tenant("t").await, Err(RegistryError::NotFound { .. })));
}

#[tokio::test]
async fn a_namespace_created_while_its_tenant_is_deleted_is_never_an_orphan() {
    for _ in 0..20 {
        let registry = bootstrapped(&store()).await;
        registry.create_tenant("t", &tenant()).await.unwrap();
        let creating = tokio::spawn({
            let registry = registry.clone();
            async move { registry.create_namespace(&ns("t/n"), Policies::default()).await }
        });
        let deleting = tokio::spawn({
            let registry = registry.clone();
            async move { registry.delete_tenant("t").await }
        });
        let created = creating.await.unwrap().is_ok();
        let deleted = deleting.await.unwrap().is_ok();
        assert!(created != deleted, "R3: created {created}, deleted {deleted}");
        assert_eq!(registry.namespace(&ns("t/n")).is_some(), created);
    }
}

#[tokio::test]
async fn hundred_namespaces_go_and_their_names_can_be_used_again() {
    let registry = bootstrapped(&store()).await;
    for index in 0..100 {
        let name = ns(&format!("public/n{index}"));
        for _ in 0..2 {
            registry.create_namespace(&name, Policies::default()).await.unwrap();
            let limit = |policies: &mut TopicPolicies| {
                policies.max_producers = Some(1);
                Ok::<_, RegistryError>(())
            };
            let topic = topic(&format!("{name}/x"));
            registry.update_topic_policies(&topic, limit).await.unwrap();
            registry.delete_namespace(&name).await.unwrap();
            assert_eq!(registry.topic_policies(&topic), None);
        }
    }
}

#[tokio::test]
async fn effective_policies_follow_every_level() {
    let registry = bootstrapped(&store()).await;
    let (name, partition) = (topic("public/default/x"), topic("public/default/x-partition-2"));
    assert_eq!(registry.effective(&partition).max_unacked_per_consumer, 50_000);
    registry.set_defaults(BrokerDefaults { max_unacked_per_consumer: 5, ..Default::default() });
    assert_eq!(registry.effective(&partition).max_unacked_per_consumer, 5);
    let namespace = |policies: &mut Policies| {
        policies.max_unacked_messages_per_consumer = Some(4);
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&ns("public/default"), namespace).await.unwrap();
    assert_eq!(registry.effective(&partition).max_unacked_per_consumer, 4);
    let own = |policies: &mut TopicPolicies| {
        policies.max_unacked_messages_per_consumer = Some(0);
        policies.publish_rate = Some(PublishRate { publish_throttling_rate_in_msg: 9, ..Default::default() });
        Ok::<_, RegistryError>(())
    };
    registry.update_topic_policies(&name, own).await.unwrap();
    let effective = registry.effective(&partition);
    assert_eq!((effective.max_unacked_per_consumer, effective.publish_rate), (0, (9, 0)));
    assert_eq!(registry.effective_namespace(&ns("public/default")).max_unacked_per_consumer, 4);
    let unset = |policies: &mut TopicPolicies| {
        *policies = TopicPolicies::default();
        Ok::<_, RegistryError>(())
    };
    registry.update_topic_policies(&partition, unset).await.unwrap();
    assert_eq!(registry.topic_policies(&name), None, "an empty record goes");
    registry.delete_topic_policies(&name).await.unwrap();
}

#[tokio::test]
async fn partitions_grow_only() {
    let registry = bootstrapped(&store()).await;
    let name = topic("x");
    let properties = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    registry.create_partitioned(&name, 2, properties.clone()).await.unwrap();
    assert_eq!(registry.partitioned_topic(&name).unwrap().properties, properties);
    assert_eq!(registry.partitions(&name.with_partition(0)), None);
    let partitions = |count| {
        registry.update_partitioned(&name, move |partitioned| {
            partitioned.partitions = count;
            Ok::<_, RegistryError>(())
        })
    };
    partitions(5).await.unwrap();
    assert_eq!(registry.partitions(&name), Some(5));
    assert!(matches!(partitions(4).await, Err(RegistryError::Policy(_))));
    for bad in [(name.clone(), 0), (name.with_partition(1), 2)] {
        assert!(registry.create_partitioned(&bad.0, bad.1, BTreeMap::new()).await.is_err());
    }
}

#[tokio::test]
async fn changes_are_told_by_place() {
    let registry = bootstrapped(&store()).await;
    let mut changes = registry.changes();
    registry.create_partitioned(&topic("x"), 2, BTreeMap::new()).await.unwrap();
    assert_eq!(changes.recv().await.unwrap(), Changed::Partitioned(topic("x")));
    registry
        .update_tenant("public", |tenant| Ok::<_, RegistryError>(tenant.admin_roles.insert("r".into())))
        .await
        .unwrap();
    assert_eq!(changes.recv().await.unwrap(), Changed::Tenant("public".into()));
    registry.set_defaults(BrokerDefaults::default());
    assert_eq!(changes.recv().await.unwrap(), Changed::Everything);
}

#[tokio::test]
async fn an_unreadable_record_is_left_out_and_blocks_nothing_else() {
    let store = store();
    bootstrapped(&store).await;
    store.put("tenancy/tenant/bad", "garbage", Condition::Any).await.unwrap();
    store.put("tenancy/later/x", "from a newer program", Condition::Any).await.unwrap();
    let registry = open(&store).await;
    assert_eq!(registry.tenants(), ["public", "pulsar"]);
    let update = registry.update_tenant("bad", |_| Ok::<_, RegistryError>(())).await;
    assert!(matches!(update, Err(RegistryError::Store(MetadataError::Corrupt(_)))));
    registry.create_tenant("good", &tenant()).await.unwrap();
}

#[tokio::test]
async fn a_flood_of_changes_ends_in_the_same_state() {
    let store = store();
    let registry = bootstrapped(&store).await;
    let other = open(&store).await;
    for index in 0..5_000 {
        registry.create_partitioned(&topic(&format!("t{index}")), 1, BTreeMap::new()).await.unwrap();
    }
    let all = |registry: &Registry| registry.partitioned_topics(&ns("public/default")).len();
    assert_eq!(all(&registry), 5_000);
    eventually(&other, |other| all(other) == 5_000).await;
}

#[tokio::test]
async fn a_document_is_kept_whole_and_of_two_writers_one_is_refused() {
    let registry = open(&store()).await;
    let large: Vec<u8> = (0..700_000u32).map(|at| at as u8).collect();
    let first = registry.set_declared("p", &large, None).await.unwrap();
    assert_eq!(first.value, large);
    assert!(matches!(registry.set_declared("p", b"x", None).await, Err(RegistryError::Busy { .. })));
    let second = registry.set_declared("p", b"small", Some(&first)).await.unwrap();
    assert!(matches!(registry.set_declared("p", b"late", Some(&first)).await, Err(RegistryError::Busy { .. })));
    assert_eq!(registry.declared("p").await.unwrap(), Some(second.clone()));
    assert_eq!(registry.declared_owners().await.unwrap(), ["p"]);
    registry.forget_declared("p", &second).await.unwrap();
    assert_eq!(registry.declared("p").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn b164_changes_of_one_record_that_come_at_once_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(RocksStore::open(folder.path()).unwrap());
    let registry = bootstrapped(&store).await;
    let changes: Vec<_> = (0..200)
        .map(|number| {
            let registry = registry.clone();
            tokio::spawn(async move {
                let mark = |policies: &mut Policies| {
                    policies.properties.insert(format!("p{number}"), "x".to_owned());
                    Ok::<_, RegistryError>(())
                };
                registry.update_namespace(&ns("public/default"), mark).await
            })
        })
        .collect();
    for change in changes {
        change.await.unwrap().unwrap();
    }
    assert_eq!(registry.namespace(&ns("public/default")).unwrap().properties.len(), 200);
}
