//! Policies of all namespaces in memory: each as few bytes, those that are asked for also as values.
//!
//! A namespace that nobody uses costs a few hundred bytes: the fields in which it differs from a fresh one, as JSON.
//! What is asked for is unpacked and kept for a while, in two generations.
//!
//! Invariants: K1 what is unpacked equals what was packed; K2 at most twice [`KEPT`] values are kept, and none that has
//! changed since.
//! Failure: what can't be packed takes the one before it away, so that nothing is decided on an old one.
//! Must never know: the store, what policies mean.

use meridian_metadata::MetadataError;
use meridian_policy::{BundlesData, Policies};
use meridian_types::NamespaceName;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

/// Values of one generation.
const KEPT: usize = 2048;
/// Before all names of a tenant: the least character that a name may have is a dash.
const FIRST_NAME: &str = "-";
/// Field of the hash ranges, which are nearly always even ones.
const BUNDLES: &str = "bundles";

/// The fields of a fresh namespace.
static FRESH: LazyLock<Map<String, Value>> = LazyLock::new(|| match serde_json::to_value(Policies::default()) {
    Ok(Value::Object(fields)) => fields,
    _ => Map::new(),
});

/// The names of clusters, shared by all namespaces that name the same.
type Clusters = Arc<BTreeSet<String>>;

/// One namespace.
#[derive(Debug)]
struct Packed {
    /// JSON of the fields that a fresh namespace does not have.
    fields: Box<[u8]>,
    /// So many even bundles; 0 = as the fields say.
    even_bundles: u32,
    has_group: bool,
    clusters: Clusters,
}

impl Packed {
    fn of(policies: &Policies, clusters: Clusters) -> Result<Self, serde_json::Error> {
        let mut fields = match serde_json::to_value(policies)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let even = policies
            .bundles
            .as_ref()
            .filter(|bundles| BundlesData::even(bundles.num_bundles).is_ok_and(|even| even == **bundles));
        let even_bundles = even.map_or(0, |bundles| bundles.num_bundles);
        if even_bundles > 0 {
            fields.remove(BUNDLES);
        }
        fields.retain(|name, value| FRESH.get(name) != Some(value));
        let has_group = policies.resource_group_name.is_some();
        Ok(Self { fields: serde_json::to_vec(&fields)?.into(), even_bundles, has_group, clusters })
    }

    fn unpacked(&self) -> Result<Policies, serde_json::Error> {
        let mut policies: Policies = serde_json::from_slice(&self.fields)?;
        if self.even_bundles > 0 {
            policies.bundles = BundlesData::even(self.even_bundles).ok();
        }
        Ok(policies)
    }
}

/// Values that were asked for: the older half goes when the younger is full.
#[derive(Debug, Default)]
struct Recent {
    young: HashMap<NamespaceName, Arc<Policies>>,
    old: HashMap<NamespaceName, Arc<Policies>>,
}

impl Recent {
    fn get(&mut self, name: &NamespaceName) -> Option<Arc<Policies>> {
        if let Some(found) = self.young.get(name) {
            return Some(found.clone());
        }
        let found = self.old.remove(name)?;
        self.keep(name, found.clone());
        Some(found)
    }

    fn keep(&mut self, name: &NamespaceName, policies: Arc<Policies>) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), policies);
        debug_assert!(self.young.len() <= KEPT && self.old.len() <= KEPT, "K2");
    }

    fn forget(&mut self, name: &NamespaceName) {
        self.young.remove(name);
        self.old.remove(name);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    packed: BTreeMap<NamespaceName, Packed>,
    clusters: HashSet<Clusters>,
    recent: Mutex<Recent>,
}

impl Namespaces {
    /// Sets or takes away the policies of a namespace.
    pub(crate) fn set(&mut self, name: NamespaceName, policies: Option<&Policies>) -> Result<(), MetadataError> {
        self.recent.get_mut().forget(&name);
        let Some(policies) = policies else {
            self.packed.remove(&name);
            return Ok(());
        };
        let clusters = self.one_of(policies.named_clusters());
        match Packed::of(policies, clusters) {
            Ok(packed) => drop(self.packed.insert(name, packed)),
            Err(error) => {
                self.packed.remove(&name);
                return Err(MetadataError::Corrupt(format!("the policies of {name} can't be kept: {error}")));
            }
        }
        Ok(())
    }

    /// The same set for all who name the same; sets that nobody names go when they have become many.
    fn one_of(&mut self, named: BTreeSet<String>) -> Clusters {
        if let Some(there) = self.clusters.get(&named) {
            return there.clone();
        }
        if self.clusters.len() == self.clusters.capacity() {
            self.clusters.retain(|set| Arc::strong_count(set) > 1);
        }
        let set = Arc::new(named);
        self.clusters.insert(set.clone());
        set
    }

    /// The policies of a namespace.
    pub(crate) fn get(&self, name: &NamespaceName) -> Option<Arc<Policies>> {
        let packed = self.packed.get(name)?;
        if let Some(found) = self.recent.lock().get(name) {
            return Some(found);
        }
        match packed.unpacked() {
            Ok(policies) => {
                let policies = Arc::new(policies);
                self.recent.lock().keep(name, policies.clone());
                Some(policies)
            }
            Err(error) => {
                tracing::error!(%name, %error, "kept policies can't be read");
                None
            }
        }
    }

    /// Whether there is such a namespace.
    pub(crate) fn contains(&self, name: &NamespaceName) -> bool {
        self.packed.contains_key(name)
    }

    /// All clusters that a namespace or its topics may be in.
    pub(crate) fn clusters(&self, name: &NamespaceName) -> Option<&Clusters> {
        self.packed.get(name).map(|packed| &packed.clusters)
    }

    /// Its resource group.
    pub(crate) fn resource_group(&self, name: &NamespaceName) -> Option<String> {
        self.packed.get(name).filter(|packed| packed.has_group)?;
        self.get(name)?.resource_group_name.clone()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.packed.len()
    }

    /// All names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamespaceName> {
        self.packed.keys()
    }

    /// The namespaces of a tenant, in order.
    pub(crate) fn of_tenant(&self, tenant: &str) -> impl Iterator<Item = &NamespaceName> {
        let first = NamespaceName::parse(&format!("{tenant}/{FIRST_NAME}")).ok();
        let behind = first.map(|first| self.packed.range(first..));
        behind.into_iter().flatten().map(|(name, _)| name).take_while(move |name| name.tenant() == tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ns(name: &str) -> NamespaceName {
        NamespaceName::parse(name).unwrap()
    }

    fn read(value: Value) -> Policies {
        serde_json::from_value(value).unwrap()
    }

    fn usual() -> Policies {
        let rate = json!({"west": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1_000_000}});
        let quota = json!({"limitSize": 100_000_000, "limitTime": -1, "policy": "producer_request_hold"});
        read(json!({
            "auth_policies": {"namespace_auth": {"app-00042": ["produce", "consume"]}},
            "replication_clusters": ["west"],
            "bundles": BundlesData::even(4).unwrap(),
            "message_ttl_in_seconds": 3600,
            "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512},
            "backlog_quota_map": {"destination_storage": quota},
            "publishMaxMessageRate": rate,
            "max_producers_per_topic": 10
        }))
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        let zero = read(json!({
            "max_producers_per_topic": 0, "encryption_required": true, "deduplicationEnabled": false,
            "offload_threshold": 0, "is_allow_auto_update_schema_with_replicator": false,
            "schema_compatibility_strategy": "FULL", "subscription_types_enabled": ["Shared"],
            "offload_policies": {"driver": "x"}, "properties": {"a": "b"}, "deleted": true
        }));
        let uneven =
            read(json!({"bundles": {"boundaries": ["0x00000000", "0x10000000", "0xffffffff"], "numBundles": 2}}));
        let unsaid = read(json!({"bundles": {"boundaries": [], "numBundles": 4}}));
        for policies in [Policies::default(), usual(), zero, uneven, unsaid, Policies::of_cluster("a", 4096).unwrap()] {
            let packed = Packed::of(&policies, Clusters::default()).unwrap();
            assert_eq!(packed.unpacked().unwrap(), policies);
        }
        assert_eq!(&*Packed::of(&Policies::default(), Clusters::default()).unwrap().fields, b"{}");
    }

    #[test]
    fn usual_policies_are_kept_in_few_bytes() {
        let packed = Packed::of(&usual(), Clusters::default()).unwrap();
        let bytes = packed.fields.len() + size_of::<Packed>() + size_of::<NamespaceName>();
        assert!(bytes < 640, "{bytes} bytes: {}", String::from_utf8_lossy(&packed.fields));
    }

    #[test]
    fn a_value_that_was_asked_for_goes_when_it_changes() {
        let mut all = Namespaces::default();
        let mut policies = usual();
        all.set(ns("t/n"), Some(&policies)).unwrap();
        let first = all.get(&ns("t/n")).unwrap();
        assert!(Arc::ptr_eq(&first, &all.get(&ns("t/n")).unwrap()), "kept");
        policies.resource_group_name = Some("g".into());
        all.set(ns("t/n"), Some(&policies)).unwrap();
        assert_eq!(*all.get(&ns("t/n")).unwrap(), policies);
        assert_eq!(all.resource_group(&ns("t/n")).as_deref(), Some("g"));
        all.set(ns("t/n"), None).unwrap();
        assert!(all.get(&ns("t/n")).is_none() && !all.contains(&ns("t/n")) && all.len() == 0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_used_stays() {
        let mut all = Namespaces::default();
        let names: Vec<_> = (0..3 * KEPT).map(|number| ns(&format!("t/n{number}"))).collect();
        for name in &names {
            all.set(name.clone(), Some(&Policies::default())).unwrap();
        }
        let used = all.get(&names[0]).unwrap();
        for name in &names {
            all.get(name).unwrap();
            assert!(Arc::ptr_eq(&used, &all.get(&names[0]).unwrap()), "asked for all the time");
        }
        let recent = all.recent.lock();
        assert!(recent.young.len() + recent.old.len() <= 2 * KEPT);
        assert_eq!(all.clusters.len(), 1, "one set for all");
    }

    #[test]
    fn names_of_a_tenant_are_its_own() {
        let mut all = Namespaces::default();
        for name in ["a/n", "ab/n", "ab-/n", "ab/-", "ab/..", "ab.c/n", "ab:/n", "b/n"] {
            all.set(ns(name), Some(&Policies::default())).unwrap();
        }
        let names: Vec<_> = all.of_tenant("ab").map(NamespaceName::as_str).collect();
        assert_eq!(names, ["ab/-", "ab/..", "ab/n"]);
        assert_eq!(all.of_tenant("c").count(), 0);
        assert_eq!(all.of_tenant("not a name").count(), 0);
    }

    #[test]
    fn sets_that_nobody_names_go() {
        let mut all = Namespaces::default();
        for number in 0..10_000 {
            let policies = Policies::of_cluster(&format!("c{number}"), 1).unwrap();
            all.set(ns("t/n"), Some(&policies)).unwrap();
        }
        assert!(all.clusters.len() < 100, "{}", all.clusters.len());
        assert_eq!(all.clusters(&ns("t/n")).unwrap().first().map(String::as_str), Some("c9999"));
    }
}
