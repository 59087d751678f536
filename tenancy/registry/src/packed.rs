//! Policies of all namespaces in memory: each as few bytes, those that are asked for also as values.
//!
//! A namespace that nobody uses costs a few hundred bytes: its header, and the fields in which it differs from a fresh
//! one, as JSON whose usual words are short. What is asked for is unpacked and kept for a while, in two generations.
//!
//! Invariants: K1 what is unpacked equals what was packed; K2 at most twice [`KEPT`] values are kept, and none that has
//! changed since.
//! Failure: what can't be packed takes the one before it away, so that nothing is decided on an old one.
//! Must never know: the store, what policies mean.

use crate::headers::Kept;
use crate::record::Header;
use crate::words::{expand, shorten};
use meridian_metadata::MetadataError;
use meridian_policy::{BundlesData, Policies};
use meridian_types::NamespaceName;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

/// Values of one generation.
const KEPT: usize = 2048;
/// Before all names of a tenant: the least character that a name may have is a dash.
const FIRST_NAME: &str = "-";
/// How the field of the hash ranges begins, which are nearly always even ones.
const BUNDLES: &str = r#""bundles":"#;

/// The fields of a fresh namespace.
static FRESH: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let fresh = serde_json::to_string(&Policies::default()).unwrap_or_default();
    members(&fresh).map(str::to_owned).collect()
});

/// The members of an object, each `"name":value`, in JSON as it is written here: without space between them.
fn members(object: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let between = move |character: char| {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            ',' if !quoted => return depth == 0,
            _ => {}
        }
        false
    };
    let inside = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    inside.split(between).filter(|member| !member.is_empty())
}

/// The names of clusters, shared by all namespaces that name the same.
type Clusters = Arc<BTreeSet<String>>;

/// One namespace.
#[derive(Debug)]
struct Packed {
    /// JSON of the fields that a fresh namespace does not have, shortened.
    fields: Box<[u8]>,
    /// What stands beside them in the store; `None` if it can't be read.
    header: Option<Kept>,
    /// So many even bundles; 0 = as the fields say.
    even_bundles: u32,
    has_group: bool,
    clusters: Clusters,
}

impl Packed {
    fn of(policies: &Policies, header: Option<Header>, clusters: Clusters) -> Result<Self, serde_json::Error> {
        let even = policies
            .bundles
            .as_ref()
            .filter(|bundles| BundlesData::even(bundles.num_bundles).is_ok_and(|even| even == **bundles));
        let even_bundles = even.map_or(0, |bundles| bundles.num_bundles);
        let all = serde_json::to_string(policies)?;
        let mut fields = String::with_capacity(all.len());
        for member in members(&all).filter(|member| !FRESH.contains(*member)) {
            if even_bundles == 0 || !member.starts_with(BUNDLES) {
                fields.push(if fields.is_empty() { '{' } else { ',' });
                fields.push_str(member);
            }
        }
        fields.push_str(if fields.is_empty() { "{}" } else { "}" });
        let has_group = policies.resource_group_name.is_some();
        Ok(Self { fields: shorten(&fields), header: header.map(Kept::from), even_bundles, has_group, clusters })
    }

    fn unpacked(&self) -> Result<Policies, serde_json::Error> {
        let mut policies: Policies = serde_json::from_slice(&expand(&self.fields))?;
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
    /// Sets the policies of a namespace, and what stands beside them if that can be read.
    pub(crate) fn set(
        &mut self,
        name: NamespaceName,
        policies: &Policies,
        header: Option<Header>,
    ) -> Result<(), MetadataError> {
        self.recent.get_mut().forget(&name);
        let clusters = self.one_of(policies.named_clusters());
        match Packed::of(policies, header, clusters) {
            Ok(packed) => drop(self.packed.insert(name, packed)),
            Err(error) => {
                self.packed.remove(&name);
                return Err(MetadataError::Corrupt(format!("the policies of {name} can't be kept: {error}")));
            }
        }
        Ok(())
    }

    /// Takes a namespace away.
    pub(crate) fn remove(&mut self, name: &NamespaceName) {
        self.recent.get_mut().forget(name);
        self.packed.remove(name);
    }

    /// After many were set in order: a map that grew so is half empty, one that is made of all is full.
    pub(crate) fn settle(&mut self) {
        self.packed = std::mem::take(&mut self.packed).into_iter().collect();
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

    /// What stands beside the policies of a namespace.
    pub(crate) fn header(&self, name: &NamespaceName) -> Option<Header> {
        self.packed.get(name)?.header.as_ref().map(Kept::header)
    }

    /// What stands beside all of them, in the order of their names.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&NamespaceName, Header)> {
        self.packed.iter().filter_map(|(name, packed)| Some((name, packed.header.as_ref()?.header())))
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
    use serde_json::{Value, json};

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
        let marks = read(json!({
            "properties": {"a\"},{[": "b,\\", "bundles": "\"bundles\":{}", "é": ",\"deleted\":true"},
            "resource_group_name": "\"deleted\""
        }));
        let unsaid = read(json!({"bundles": {"boundaries": [], "numBundles": 4}}));
        let many = Policies::of_cluster("a", 4096).unwrap();
        for policies in [Policies::default(), usual(), zero, uneven, marks, unsaid, many] {
            let packed = Packed::of(&policies, None, Clusters::default()).unwrap();
            assert_eq!(packed.unpacked().unwrap(), policies);
        }
        assert_eq!(&*Packed::of(&Policies::default(), None, Clusters::default()).unwrap().fields, b"{}");
    }

    #[test]
    fn usual_policies_are_kept_in_few_bytes() {
        let packed = Packed::of(&usual(), None, Clusters::default()).unwrap();
        let bytes = packed.fields.len() + size_of::<Packed>() + size_of::<NamespaceName>();
        assert!(bytes < 320, "{bytes} bytes: {}", String::from_utf8_lossy(&packed.fields));
    }

    #[test]
    fn what_has_settled_is_all_there_and_changes_on() {
        let mut all = Namespaces::default();
        let names: Vec<_> = (0..100).map(|number| ns(&format!("t/n{number:03}"))).collect();
        for (at, name) in names.iter().enumerate() {
            let policies = Policies { max_producers_per_topic: Some(at as u32), ..usual() };
            let header = Header { detached: at % 2 == 0, ..Header::default() };
            all.set(name.clone(), &policies, Some(header)).unwrap();
        }
        all.settle();
        assert!(all.names().eq(&names));
        assert!(all.headers().all(|(name, header)| all.header(name) == Some(header)));
        assert_eq!(all.get(&names[7]).unwrap().max_producers_per_topic, Some(7));
        assert!(all.header(&names[8]).unwrap().detached && !all.header(&names[7]).unwrap().detached);
        all.remove(&names[7]);
        all.set(ns("t/o"), &usual(), None).unwrap();
        assert_eq!((all.len(), all.headers().count(), all.header(&names[7])), (100, 99, None));
    }

    #[test]
    fn a_value_that_was_asked_for_goes_when_it_changes() {
        let mut all = Namespaces::default();
        let mut policies = usual();
        all.set(ns("t/n"), &policies, None).unwrap();
        let first = all.get(&ns("t/n")).unwrap();
        assert!(Arc::ptr_eq(&first, &all.get(&ns("t/n")).unwrap()), "kept");
        policies.resource_group_name = Some("g".into());
        all.set(ns("t/n"), &policies, None).unwrap();
        assert_eq!(*all.get(&ns("t/n")).unwrap(), policies);
        assert_eq!(all.resource_group(&ns("t/n")).as_deref(), Some("g"));
        all.remove(&ns("t/n"));
        assert!(all.get(&ns("t/n")).is_none() && !all.contains(&ns("t/n")) && all.len() == 0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_used_stays() {
        let mut all = Namespaces::default();
        let names: Vec<_> = (0..3 * KEPT).map(|number| ns(&format!("t/n{number}"))).collect();
        for name in &names {
            all.set(name.clone(), &Policies::default(), None).unwrap();
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
            all.set(ns(name), &Policies::default(), None).unwrap();
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
            all.set(ns("t/n"), &policies, None).unwrap();
        }
        assert!(all.clusters.len() < 100, "{}", all.clusters.len());
        assert_eq!(all.clusters(&ns("t/n")).unwrap().first().map(String::as_str), Some("c9999"));
    }
}
