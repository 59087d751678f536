//! Which broker is given a bundle.
//!
//! Invariants: A1 a broker that drains is given nothing while another one may serve the bundle; A2 isolation rules come
//! before loads, anti-affinity before loads too; A3 the choice depends on nothing but what is given, so that brokers that
//! see the same choose the same.
//! Failure: `None` if nobody may serve it.
//! Must never know: tasks, the store.

use crate::isolation::permitted;
use crate::records::{BrokerRecord, BundleId, LoadRecord};
use crate::table::Table;
use meridian_types::NamespaceName;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// What is known of namespaces beside ownership.
pub trait Groups {
    /// The anti-affinity group of a namespace.
    fn group(&self, namespace: &NamespaceName) -> Option<String>;
    /// The failure domain of a broker that an operator set, if any; else its zone counts.
    fn domain(&self, broker: &str) -> Option<String>;
}

/// Without groups.
pub struct NoGroups;

impl Groups for NoGroups {
    fn group(&self, _namespace: &NamespaceName) -> Option<String> {
        None
    }

    fn domain(&self, _broker: &str) -> Option<String> {
        None
    }
}

/// How much a broker has to do, in thousandths: its busiest resource.
pub fn pressure(load: Option<&LoadRecord>) -> u64 {
    let Some(load) = load else { return 0 };
    u64::from(load.cpu_permille.max(load.memory_permille).max(load.bandwidth_permille))
}

/// Bundles given out since loads were measured, by broker.
pub type Given = BTreeMap<String, u64>;

fn domain_of(broker: &BrokerRecord, groups: &dyn Groups) -> String {
    let zone = || broker.labels.get("zone").cloned();
    groups.domain(&broker.id).or_else(zone).unwrap_or_else(|| broker.id.clone())
}

/// How many namespaces of the group each domain serves, but for this namespace.
fn crowding(table: &Table, bundle: &BundleId, group: &str, groups: &dyn Groups) -> BTreeMap<String, usize> {
    let mut seen: BTreeMap<String, BTreeSet<&NamespaceName>> = BTreeMap::new();
    for (other, owner) in table.owners() {
        if other.namespace == bundle.namespace || groups.group(&other.namespace).as_deref() != Some(group) {
            continue;
        }
        if let Some(broker) = table.brokers().get(&owner.record.broker) {
            seen.entry(domain_of(&broker.record, groups)).or_default().insert(&other.namespace);
        }
    }
    seen.into_iter().map(|(domain, namespaces)| (domain, namespaces.len())).collect()
}

/// Spreads equals: the same bundle prefers the same broker as long as brokers stay.
fn affinity(bundle: &BundleId, broker: &str) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    (bundle.namespace.as_str(), bundle.range.start, broker).hash(&mut hasher);
    hasher.finish()
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        // Mixed once more: the last bytes of names differ in few bits.
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The broker for a bundle, never one of `without`.
pub fn choose(
    table: &Table,
    bundle: &BundleId,
    without: &[&str],
    given: &Given,
    groups: &dyn Groups,
) -> Option<BrokerRecord> {
    let all: Vec<&BrokerRecord> = table
        .brokers()
        .values()
        .map(|broker| &*broker.record)
        .filter(|broker| !without.contains(&broker.id.as_str()))
        .collect();
    let ready: Vec<&BrokerRecord> = all.iter().copied().filter(|broker| !broker.draining).collect();
    let rules: Vec<_> = table.isolation().map(|(_, rule)| rule).collect();
    let mut candidates = permitted(&bundle.namespace, &ready, &rules);
    if candidates.is_empty() {
        candidates = permitted(&bundle.namespace, &all, &rules);
    }
    if let Some(group) = groups.group(&bundle.namespace) {
        let crowd = crowding(table, bundle, &group, groups);
        let of = |broker: &&BrokerRecord| crowd.get(&domain_of(broker, groups)).copied().unwrap_or(0);
        let least = candidates.iter().map(of).min().unwrap_or(0);
        candidates.retain(|broker| of(broker) == least);
    }
    let score = |broker: &&BrokerRecord| {
        let load = table.load(&broker.id);
        let bundles = load.map_or(0, |load| load.bundle_count) + given.get(&broker.id).copied().unwrap_or(0);
        // Equal within a tenth of pressure: then who has fewer bundles, then the bundle's own preference.
        (pressure(load) / 100, bundles, affinity(bundle, &broker.id))
    };
    candidates.into_iter().min_by_key(score).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundles::BundleRange;
    use crate::records::{OwnerRecord, broker_key, encode, isolation_key, load_key, owner_key};
    use meridian_metadata::Version;

    fn table(brokers: &[(&str, &str, u32)]) -> Table {
        let mut table = Table::default();
        for (id, zone, cpu_permille) in brokers {
            let labels = [("zone".to_owned(), (*zone).to_owned())].into();
            let broker = BrokerRecord { id: (*id).into(), incarnation: 1, labels, ..BrokerRecord::default() };
            table.put(&broker_key(id), &encode(&broker), Version(1)).unwrap();
            let load = LoadRecord { cpu_permille: *cpu_permille, ..LoadRecord::default() };
            table.put(&load_key(id), &encode(&load), Version(1)).unwrap();
        }
        table
    }

    fn bundle(namespace: &str, start: u32) -> BundleId {
        let range = BundleRange { start, end: u32::MAX };
        BundleId { namespace: NamespaceName::parse(namespace).unwrap(), range }
    }

    fn chosen(table: &Table, bundle: &BundleId, without: &[&str]) -> Option<String> {
        choose(table, bundle, without, &Given::new(), &NoGroups).map(|broker| broker.id)
    }

    #[test]
    fn the_least_busy_broker_is_chosen() {
        let table = table(&[("a:1", "z1", 900), ("b:1", "z2", 200)]);
        assert_eq!(chosen(&table, &bundle("t/n", 0), &[]), Some("b:1".into()));
        assert_eq!(chosen(&table, &bundle("t/n", 0), &["b:1"]), Some("a:1".into()));
        assert_eq!(chosen(&table, &bundle("t/n", 0), &["a:1", "b:1"]), None);
    }

    #[test]
    fn equals_share_what_there_is() {
        let table = table(&[("a:1", "z1", 110), ("b:1", "z2", 140)]);
        let mut given = Given::new();
        for index in 0..20 {
            let broker = choose(&table, &bundle("t/n", index << 20), &[], &given, &NoGroups).unwrap();
            *given.entry(broker.id).or_default() += 1;
        }
        assert_eq!(given.values().copied().collect::<Vec<_>>(), [10, 10]);
    }

    #[test]
    fn who_drains_is_given_nothing_while_there_is_another() {
        let mut table = table(&[("a:1", "z1", 0), ("b:1", "z2", 900)]);
        let draining = BrokerRecord { id: "a:1".into(), incarnation: 1, draining: true, ..BrokerRecord::default() };
        table.put("brokers/a:1", &encode(&draining), Version(2)).unwrap();
        assert_eq!(chosen(&table, &bundle("t/n", 0), &[]), Some("b:1".into()));
        assert_eq!(chosen(&table, &bundle("t/n", 0), &["b:1"]), Some("a:1".into()));
    }

    #[test]
    fn rules_come_before_loads() {
        let mut table = table(&[("a:1", "z1", 900), ("b:1", "z2", 100)]);
        let json = r#"{"namespaces":["pay/.*"],"primary":["zone=z1"]}"#.to_owned();
        let rule = crate::records::IsolationRecord { json };
        table.put(&isolation_key("p"), &encode(&rule), Version(2)).unwrap();
        assert_eq!(chosen(&table, &bundle("pay/n", 0), &[]), Some("a:1".into()));
        assert_eq!(chosen(&table, &bundle("t/n", 0), &[]), Some("b:1".into()));
        assert_eq!(chosen(&table, &bundle("pay/n", 0), &["a:1"]), None, "nobody else may serve it");
    }

    struct OneGroup;

    impl Groups for OneGroup {
        fn group(&self, namespace: &NamespaceName) -> Option<String> {
            (namespace.tenant() == "g").then(|| "group".to_owned())
        }

        fn domain(&self, _broker: &str) -> Option<String> {
            None
        }
    }

    #[test]
    fn namespaces_of_a_group_are_spread_over_zones() {
        let mut table = table(&[("a:1", "z1", 0), ("b:1", "z1", 0), ("c:1", "z2", 900)]);
        let owner = OwnerRecord { broker: "a:1".into(), incarnation: 1, ..OwnerRecord::default() };
        table.put(&owner_key(&bundle("g/one", 0)), &encode(&owner), Version(2)).unwrap();
        let other = choose(&table, &bundle("g/two", 0), &[], &Given::new(), &OneGroup).unwrap();
        assert_eq!(other.id, "c:1");
        let same = choose(&table, &bundle("g/one", 1), &[], &Given::new(), &OneGroup).unwrap();
        assert_ne!(same.id, "c:1");
    }
}
