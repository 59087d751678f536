//! What regions share becomes the same, whatever happens to the link; what is local stays.

use crate::region::{Region, join, ns, part, policies, set, tenant, topic, two, until};
use meridian_policy::{Policies, TopicPolicies};
use meridian_registry::{Deletions, Registry, RegistryError, SharedSchema};
use meridian_topology::{Applied, Object};
use meridian_types::{NamespaceName, TopicName};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn ttl(registry: &Registry, name: &str) -> Option<u32> {
    registry.namespace(&ns(name)).and_then(|policies| policies.message_ttl_in_seconds)
}

async fn set_ttl(registry: &Registry, name: &str, seconds: u32) {
    let change = |policies: &mut Policies| {
        policies.message_ttl_in_seconds = Some(seconds);
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&ns(name), change).await.unwrap();
}

async fn set_clusters(registry: &Registry, name: &str, clusters: &[&str]) {
    let change = |policies: &mut Policies| {
        policies.replication_clusters = set(clusters);
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&ns(name), change).await.unwrap();
}

async fn set_topic_ttl(registry: &Registry, name: &str, seconds: u32) {
    let change = |policies: &mut TopicPolicies| {
        policies.message_ttl_in_seconds = Some(seconds);
        Ok::<_, RegistryError>(())
    };
    registry.update_topic_policies(&topic(name), change).await.unwrap();
}

#[tokio::test]
async fn everything_that_both_share_travels_at_once_and_nothing_else() {
    let (west, east) = two().await;
    west.registry.create_partitioned(&topic("t/n/p"), 3, BTreeMap::new()).await.unwrap();
    set_topic_ttl(&west.registry, "t/n/p", 9).await;
    set_ttl(&west.registry, "t/n", 7).await;
    west.registry.create_tenant("home", &tenant(&["west"])).await.unwrap();
    west.registry.create_namespace(&ns("t/home"), policies(&["west"])).await.unwrap();
    west.registry.create_partitioned(&topic("t/home/p"), 2, BTreeMap::new()).await.unwrap();
    until("partitions", || east.registry.partitions(&topic("t/n/p")) == Some(3)).await;
    until("topic policies", || east.registry.topic_policies(&topic("t/n/p")).is_some()).await;
    until("policies", || ttl(&east.registry, "t/n") == Some(7)).await;
    west.converged(&east).await;
    assert_eq!(east.registry.tenants(), ["public", "pulsar", "t"]);
    assert_eq!(east.registry.namespace(&ns("t/home")), None);
    assert_eq!(east.registry.partitions(&topic("t/home/p")), None);
    // The tenant's own namespaces are each region's own.
    assert_eq!(east.registry.namespace(&ns("public/default")).unwrap().replication_clusters, set(&["east"]));
    west.registry.delete_topic_policies(&topic("t/n/p")).await.unwrap();
    until("policies go", || east.registry.topic_policies(&topic("t/n/p")).is_none()).await;
}

#[tokio::test]
async fn what_becomes_shared_later_brings_what_hangs_on_it() {
    let (west, east) = two().await;
    west.registry.create_tenant("later", &tenant(&["west"])).await.unwrap();
    west.registry.create_namespace(&ns("later/n"), policies(&["west"])).await.unwrap();
    west.registry.create_partitioned(&topic("later/n/p"), 4, BTreeMap::new()).await.unwrap();
    west.converged(&east).await;
    assert_eq!(east.registry.tenant("later"), None);
    set_clusters(&west.registry, "later/n", &["east", "west"]).await;
    until("its tenant and topics", || east.registry.partitions(&topic("later/n/p")) == Some(4)).await;
    west.converged(&east).await;
}

#[tokio::test]
async fn changes_on_both_sides_of_a_long_outage_converge_without_a_restart() {
    let (west, east) = two().await;
    west.registry.create_partitioned(&topic("t/n/p"), 2, BTreeMap::new()).await.unwrap();
    west.registry.create_partitioned(&topic("t/n/gone"), 2, BTreeMap::new()).await.unwrap();
    west.converged(&east).await;
    part(&[&west, &east]);
    // A day passes in both; east changes everything a second later.
    for (region, later_ms) in [(&west, 0), (&east, 1_000)] {
        region.skew_ms.store(86_400_000 + later_ms, Ordering::Relaxed);
    }
    for number in 0..60 {
        set_topic_ttl(&west.registry, &format!("t/n/w{number}"), number).await;
        set_topic_ttl(&east.registry, &format!("t/n/e{number}"), number).await;
    }
    set_topic_ttl(&west.registry, "t/n/both", 1).await;
    set_topic_ttl(&east.registry, "t/n/both", 2).await;
    let grow = |by: u32| {
        move |partitioned: &mut meridian_policy::PartitionedTopic| {
            partitioned.partitions += by;
            Ok::<_, RegistryError>(())
        }
    };
    west.registry.update_partitioned(&topic("t/n/p"), grow(3)).await.unwrap();
    east.registry.update_partitioned(&topic("t/n/p"), grow(1)).await.unwrap();
    east.registry.delete_partitioned(&topic("t/n/gone")).await.unwrap();
    set_ttl(&west.registry, "t/n", 11).await;
    set_ttl(&east.registry, "t/n", 12).await;
    join(&[&west, &east]);
    west.converged(&east).await;
    for region in [&west, &east] {
        let registry = &region.registry;
        assert_eq!(ttl(registry, "t/n"), Some(12), "the later change, in {}", region.name);
        assert_eq!(registry.partitions(&topic("t/n/p")), Some(5), "partitions only grow, in {}", region.name);
        assert_eq!(registry.partitions(&topic("t/n/gone")), None, "{}", region.name);
        let both = registry.topic_policies(&topic("t/n/both")).unwrap();
        assert_eq!(both.message_ttl_in_seconds, Some(2), "{}", region.name);
        for number in 0..60 {
            assert!(registry.topic_policies(&topic(&format!("t/n/w{number}"))).is_some(), "{number}");
            assert!(registry.topic_policies(&topic(&format!("t/n/e{number}"))).is_some(), "{number}");
        }
    }
}

#[tokio::test]
async fn what_is_deleted_stays_deleted_until_it_is_created_anew() {
    let (west, east) = two().await;
    west.registry.create_namespace(&ns("t/d"), policies(&["east", "west"])).await.unwrap();
    west.registry.create_partitioned(&topic("t/d/p"), 5, BTreeMap::new()).await.unwrap();
    until("there", || east.registry.partitions(&topic("t/d/p")) == Some(5)).await;
    part(&[&west, &east]);
    west.registry.delete_partitioned(&topic("t/d/p")).await.unwrap();
    west.registry.delete_namespace(&ns("t/d")).await.unwrap();
    // East does not know, and writes to what is gone, later.
    east.skew_ms.store(5_000, Ordering::Relaxed);
    set_ttl(&east.registry, "t/d", 99).await;
    join(&[&west, &east]);
    until("deleted in east, too", || east.registry.namespace(&ns("t/d")).is_none()).await;
    west.converged(&east).await;
    assert_eq!(west.registry.namespace(&ns("t/d")), None, "a late change does not bring it back");
    // Created anew with fewer partitions while east is away and still has the old one.
    west.registry.create_namespace(&ns("t/d"), policies(&["east", "west"])).await.unwrap();
    west.registry.create_partitioned(&topic("t/d/p"), 5, BTreeMap::new()).await.unwrap();
    until("there again", || east.registry.partitions(&topic("t/d/p")) == Some(5)).await;
    part(&[&west, &east]);
    west.registry.delete_partitioned(&topic("t/d/p")).await.unwrap();
    west.registry.create_partitioned(&topic("t/d/p"), 2, BTreeMap::new()).await.unwrap();
    join(&[&west, &east]);
    until("the new one", || east.registry.partitions(&topic("t/d/p")) == Some(2)).await;
    west.converged(&east).await;
    assert_eq!(west.registry.partitions(&topic("t/d/p")), Some(2));
}

#[tokio::test]
async fn creations_on_both_sides_become_one_and_lose_nothing() {
    let (west, east) = two().await;
    part(&[&west, &east]);
    let deleted = Arc::new(Recorded::default());
    for (region, partitions) in [(&west, 4), (&east, 6)] {
        region.registry.set_deletions(deleted.clone());
        region.registry.create_partitioned(&topic("t/n/auto"), partitions, BTreeMap::new()).await.unwrap();
    }
    join(&[&west, &east]);
    until("the greater count", || west.registry.partitions(&topic("t/n/auto")) == Some(6)).await;
    west.converged(&east).await;
    assert_eq!(*deleted.names.lock(), Vec::<String>::new(), "nobody deleted anything");
}

#[tokio::test]
async fn a_clock_that_is_wrong_is_refused_and_explained_and_a_slow_one_is_followed() {
    let (west, east) = two().await;
    west.converged(&east).await;
    // East is an hour late: its change follows west's all the same.
    east.skew_ms.store(-3_600_000, Ordering::Relaxed);
    set_ttl(&west.registry, "t/n", 1).await;
    until("refused: from east's future", || !west.link.peer("east").unwrap().sync.refused.is_empty()).await;
    let refused = west.link.peer("east").unwrap().sync.refused["tenancy/namespace/t/n"].clone();
    assert!(refused.contains("in the future") && refused.contains("clock"), "{refused}");
    assert_ne!(ttl(&east.registry, "t/n"), Some(1));
    east.skew_ms.store(-30_000, Ordering::Relaxed);
    until("within the bound", || ttl(&east.registry, "t/n") == Some(1)).await;
    set_ttl(&east.registry, "t/n", 2).await;
    until("later than what it has seen", || ttl(&west.registry, "t/n") == Some(2)).await;
    west.converged(&east).await;
}

/// Records what it is asked to delete.
#[derive(Default)]
struct Recorded {
    names: Mutex<Vec<String>>,
    fail: Mutex<bool>,
}

impl Recorded {
    fn take(&self, name: String) -> Result<(), String> {
        self.names.lock().push(name);
        if *self.fail.lock() { Err("busy".to_owned()) } else { Ok(()) }
    }
}

type Done<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

impl Deletions for Recorded {
    fn delete_topics_of<'a>(&'a self, namespace: &'a NamespaceName) -> Done<'a> {
        Box::pin(async move { self.take(format!("{namespace}/*")) })
    }

    fn delete_topic<'a>(&'a self, topic: &'a TopicName, partitions: Option<u32>, _deleted_ms: u64) -> Done<'a> {
        Box::pin(async move { self.take(format!("{topic} {partitions:?}")) })
    }
}

#[tokio::test]
async fn topics_of_what_was_deleted_elsewhere_are_deleted_first_and_again_if_that_fails() {
    let (west, east) = two().await;
    let deletions = Arc::new(Recorded::default());
    *deletions.fail.lock() = true;
    east.registry.set_deletions(deletions.clone());
    west.registry.create_namespace(&ns("t/d"), policies(&["east", "west"])).await.unwrap();
    west.registry.create_partitioned(&topic("t/n/p"), 2, BTreeMap::new()).await.unwrap();
    until("there", || east.registry.partitions(&topic("t/n/p")) == Some(2)).await;
    west.registry.delete_partitioned(&topic("t/n/p")).await.unwrap();
    west.registry.end_topic(&topic("t/n/plain")).await.unwrap();
    west.registry.delete_namespace(&ns("t/d")).await.unwrap();
    west.registry.end_topic(&topic("public/default/local")).await.unwrap();
    let asked = |name: &str| deletions.names.lock().iter().filter(|asked| *asked == name).count();
    let wanted = ["persistent://t/n/p Some(2)", "persistent://t/n/plain None", "t/d/*"];
    until("asked for again and again", || wanted.iter().all(|name| asked(name) > 1)).await;
    assert!(east.registry.namespace(&ns("t/d")).is_some(), "its topics are still there");
    *deletions.fail.lock() = false;
    until("gone", || east.registry.namespace(&ns("t/d")).is_none()).await;
    until("gone, too", || east.registry.partitions(&topic("t/n/p")).is_none()).await;
    west.converged(&east).await;
    assert_eq!(asked("persistent://public/default/local None"), 0, "what is local does not travel");
}

#[tokio::test]
async fn a_region_ends_no_topic_that_it_has_no_part_in() {
    let (west, east) = two().await;
    west.registry.create_namespace(&ns("t/home"), policies(&["west"])).await.unwrap();
    part(&[&west, &east]);
    let deletions = Arc::new(Recorded::default());
    west.registry.set_deletions(deletions.clone());
    east.registry.end_topic(&topic("t/n/plain")).await.unwrap();
    let key = "tenancy/ended/t/n/persistent/plain".to_owned();
    let [end] = &east.registry.read_shared("west", std::slice::from_ref(&key)).await.unwrap()[..] else {
        panic!("{key} is told of")
    };
    for beyond in ["tenancy/ended/t/home/persistent/plain", "tenancy/ended/public/default/persistent/plain"] {
        let forged = Object { key: beyond.to_owned(), ..end.clone() };
        assert_eq!(west.registry.apply_remote("east", &forged).await, Applied::Taken, "it is not sent for ever");
        assert_eq!(west.registry.apply_remote("east", &forged).await, Applied::Older);
    }
    assert!(matches!(west.registry.apply_remote("east", end).await, Applied::Later(_)));
    until("the shared one is deleted", || !deletions.names.lock().is_empty()).await;
    assert_eq!(*deletions.names.lock(), ["persistent://t/n/plain None"]);
}

#[tokio::test]
async fn a_region_that_is_left_out_keeps_its_data_and_can_come_back() {
    let (west, east) = two().await;
    set_clusters(&west.registry, "t/n", &["west"]).await;
    let clusters = |region: &Region| region.registry.namespace(&ns("t/n")).unwrap().replication_clusters.clone();
    until("left out", || clusters(&east) == set(&["east"])).await;
    west.converged(&east).await;
    // From now on each has its own.
    set_ttl(&east.registry, "t/n", 5).await;
    set_ttl(&west.registry, "t/n", 6).await;
    west.converged(&east).await;
    assert_eq!((ttl(&west.registry, "t/n"), ttl(&east.registry, "t/n")), (Some(6), Some(5)));
    set_clusters(&west.registry, "t/n", &["east", "west"]).await;
    until("back", || ttl(&east.registry, "t/n") == Some(6)).await;
    assert_eq!(clusters(&east), set(&["east", "west"]));
    // Left out again, it deletes its own copy: the others keep theirs.
    set_clusters(&west.registry, "t/n", &["west"]).await;
    until("left out", || clusters(&east) == set(&["east"])).await;
    east.registry.delete_namespace(&ns("t/n")).await.unwrap();
    west.converged(&east).await;
    assert!(west.registry.namespace(&ns("t/n")).is_some() && east.registry.namespace(&ns("t/n")).is_none());
}

#[tokio::test]
async fn three_regions_pass_on_what_a_cut_keeps_from_one() {
    let all = ["west", "east", "north"];
    let mut regions = Vec::new();
    for name in all {
        regions.push(Region::start(name, &all, 86_400_000).await);
    }
    let [west, east, north] = &regions[..] else { panic!("three") };
    // West and north never see each other.
    join(&[west, east]);
    join(&[east, north]);
    let peers = |region: &Region| (region.name.to_owned(), region.dialled());
    east.link.set_peers([peers(west), peers(north)]);
    west.registry.create_tenant("t", &tenant(&all)).await.unwrap();
    west.registry.create_namespace(&ns("t/n"), policies(&all)).await.unwrap();
    until("by way of east", || north.registry.namespace(&ns("t/n")).is_some()).await;
    set_ttl(&north.registry, "t/n", 3).await;
    until("and back", || ttl(&west.registry, "t/n") == Some(3)).await;
    north.registry.delete_namespace(&ns("t/n")).await.unwrap();
    until("deleted everywhere", || regions.iter().all(|region| region.registry.namespace(&ns("t/n")).is_none())).await;
}

#[tokio::test]
async fn a_tenant_with_namespaces_of_its_own_here_is_kept_here() {
    let (west, east) = two().await;
    east.registry.create_namespace(&ns("t/own"), policies(&["east"])).await.unwrap();
    let allow = |clusters: &'static [&'static str]| {
        move |tenant: &mut meridian_policy::TenantInfo| {
            tenant.allowed_clusters = set(clusters);
            Ok::<_, RegistryError>(())
        }
    };
    west.registry.delete_namespace(&ns("t/n")).await.unwrap();
    until("gone", || east.registry.namespace(&ns("t/n")).is_none()).await;
    west.registry.update_tenant("t", allow(&["west", "east"])).await.unwrap();
    west.converged(&east).await;
    west.registry.delete_tenant("t").await.unwrap();
    until("east's alone", || east.registry.tenant("t").is_some_and(|tenant| tenant.allowed_clusters == set(&["east"])))
        .await;
    west.converged_loosely(&east).await;
    assert_eq!(west.registry.tenant("t"), None);
    assert!(east.registry.namespace(&ns("t/own")).is_some());
}

#[tokio::test]
async fn tombstones_go_when_every_region_has_them() {
    let all = ["west", "east", "north"];
    let (west, east) = (Region::start("west", &all, 0).await, Region::start("east", &all, 0).await);
    join(&[&west, &east]);
    west.registry.create_tenant("t", &tenant(&all)).await.unwrap();
    west.registry.create_namespace(&ns("t/two"), policies(&["west", "east"])).await.unwrap();
    west.registry.create_namespace(&ns("t/three"), policies(&all)).await.unwrap();
    until("there", || east.registry.namespace(&ns("t/three")).is_some()).await;
    west.registry.delete_namespace(&ns("t/two")).await.unwrap();
    west.registry.delete_namespace(&ns("t/three")).await.unwrap();
    let key = |name: &str| format!("tenancy/tombstone/namespace/{name}");
    west.converged(&east).await;
    assert_eq!(west.registry.collect_tombstones().await.unwrap(), 1, "north does not have the other");
    assert!(west.store.get(&key("t/two")).await.unwrap().is_none());
    assert!(west.store.get(&key("t/three")).await.unwrap().is_some());
    // East has it still and offers it: it does not come back, nor does what it is of.
    west.converged_loosely(&east).await;
    assert!(west.store.get(&key("t/two")).await.unwrap().is_none());
    assert!(east.store.get(&key("t/two")).await.unwrap().is_some());
    west.registry.delete_cluster("north").await.unwrap_err();
    let drop_north = |tenant: &mut meridian_policy::TenantInfo| {
        tenant.allowed_clusters.remove("north");
        Ok::<_, RegistryError>(())
    };
    west.registry.update_tenant("t", drop_north).await.unwrap();
    west.registry.delete_cluster("north").await.unwrap();
    assert_eq!(west.registry.collect_tombstones().await.unwrap(), 1, "who is no region any more is not waited for");
}

fn schema(data: &str) -> SharedSchema {
    SharedSchema { kind: 4, data: data.to_owned(), properties: BTreeMap::new() }
}

#[tokio::test]
async fn schemas_of_both_sides_become_one_set_and_go_together() {
    let (west, east) = two().await;
    let name = topic("t/n/s");
    let held = |region: &Region| {
        let schemas = region.registry.shared_schemas(&name).map(|held| held.schemas.clone()).unwrap_or_default();
        schemas.into_iter().map(|schema| schema.data).collect::<BTreeSet<_>>()
    };
    west.registry.share_schema(&name, &schema("first")).await.unwrap();
    until("the first", || held(&east) == set(&["first"])).await;
    part(&[&west, &east]);
    west.registry.share_schema(&name.with_partition(1), &schema("west")).await.unwrap();
    east.registry.share_schema(&name, &schema("east")).await.unwrap();
    join(&[&west, &east]);
    let all = set(&["east", "first", "west"]);
    until("the union", || held(&west) == all && held(&east) == all).await;
    west.converged(&east).await;
    east.registry.unshare_schemas(&name).await.unwrap();
    until("gone", || held(&west).is_empty()).await;
    assert!(west.registry.schemas_deleted_ms(&name).is_some(), "and it is known that they were deleted");
    west.registry.share_schema(&topic("public/default/s"), &schema("local")).await.unwrap();
    assert!(west.registry.shared_schemas(&topic("public/default/s")).is_none(), "nobody shares it");
}
