//! Who lives and who owns what, as the watched records say.
//!
//! Invariants: T1 a record is replaced only by one of a later version, so that changes may be told twice and in any order
//! between a read and a watch; T2 a bundle has an owner only while a broker of that very life is registered.
//! Failure: a record that can't be read is reported and passed over; its bundle counts as not known, never as free.
//! Must never know: tasks, the store.

use crate::bundles::Bundles;
use crate::isolation::IsolationRule;
use crate::records::{
    self, BrokerRecord, BundleId, CutRecord, IsolationRecord, Kind, LeaderRecord, LoadRecord, OwnerRecord, RecordError,
};
use bytes::Bytes;
use meridian_metadata::Version;
use meridian_types::NamespaceName;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A record with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub record: Arc<T>,
    /// The version that it was read with.
    pub version: Version,
}

/// Whose a bundle is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody's, or of a broker that has gone; the record to replace, if there is one.
    Free(Option<Versioned<OwnerRecord>>),
    /// A broker's.
    Held {
        /// Its record.
        owner: Versioned<OwnerRecord>,
        /// The broker.
        broker: Versioned<BrokerRecord>,
    },
}

/// What a change was about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A bundle has another record.
    Owner(BundleId),
    /// A broker came, changed or went.
    Broker(String),
    /// A namespace was cut anew.
    Cut(NamespaceName),
    /// Another leader, or none.
    Leader,
    /// Isolation rules.
    Isolation,
    /// Load figures.
    Load,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    brokers: BTreeMap<String, Versioned<BrokerRecord>>,
    loads: BTreeMap<String, Versioned<LoadRecord>>,
    owners: HashMap<BundleId, Versioned<OwnerRecord>>,
    cuts: HashMap<NamespaceName, Versioned<Bundles>>,
    leader: Option<Versioned<LeaderRecord>>,
    isolation: BTreeMap<String, Versioned<IsolationRule>>,
    /// Versions of deletions, so that an older write that is told late does not bring a record back (T1).
    gone: HashMap<String, Version>,
}

/// Deletions remembered at most; a watch tells changes of one key in order, so that only those of the last moments count.
const MAX_GONE: usize = 10_000;

fn replaced<T>(there: Option<&Versioned<T>>, version: Version) -> bool {
    there.is_none_or(|there| there.version < version)
}

impl Table {
    /// A key was written; what changed, if anything did.
    ///
    /// # Errors
    /// [`RecordError`] if it can't be read.
    pub fn put(&mut self, key: &str, value: &Bytes, version: Version) -> Result<Option<Change>, RecordError> {
        if self.gone.get(key).is_some_and(|gone| *gone > version) {
            return Ok(None);
        }
        let Some(kind) = records::kind(key) else { return Ok(None) };
        fn take<T>(record: T, version: Version) -> Versioned<T> {
            Versioned { record: Arc::new(record), version }
        }
        let change = match kind {
            Kind::Broker(id) if replaced(self.brokers.get(&id), version) => {
                self.brokers.insert(id.clone(), take(records::decode(key, value)?, version));
                Change::Broker(id)
            }
            Kind::Load(id) if replaced(self.loads.get(&id), version) => {
                self.loads.insert(id, take(records::decode(key, value)?, version));
                Change::Load
            }
            Kind::Owner(bundle) if replaced(self.owners.get(&bundle), version) => {
                self.owners.insert(bundle.clone(), take(records::decode(key, value)?, version));
                Change::Owner(bundle)
            }
            Kind::Cut(namespace) if replaced(self.cuts.get(&namespace), version) => {
                let cut: CutRecord = records::decode(key, value)?;
                let refuse = |error: crate::BundleError| RecordError { key: key.to_owned(), reason: error.to_string() };
                self.cuts.insert(namespace.clone(), take(Bundles::new(cut.boundaries).map_err(refuse)?, version));
                Change::Cut(namespace)
            }
            Kind::Isolation(name) if replaced(self.isolation.get(&name), version) => {
                let stored: IsolationRecord = records::decode(key, value)?;
                let refuse = |reason: String| RecordError { key: key.to_owned(), reason };
                self.isolation.insert(name, take(IsolationRule::parse(&stored.json).map_err(refuse)?, version));
                Change::Isolation
            }
            Kind::Leader if replaced(self.leader.as_ref(), version) => {
                self.leader = Some(take(records::decode(key, value)?, version));
                Change::Leader
            }
            _ => return Ok(None),
        };
        self.gone.remove(key);
        Ok(Some(change))
    }

    /// A key was deleted; what changed, if anything did.
    pub fn delete(&mut self, key: &str, version: Version) -> Option<Change> {
        fn older<T>(there: Option<&Versioned<T>>, version: Version) -> bool {
            there.is_some_and(|there| there.version < version)
        }
        let kind = records::kind(key)?;
        if self.gone.len() >= MAX_GONE {
            self.gone.clear();
        }
        let gone = self.gone.entry(key.to_owned()).or_insert(version);
        *gone = (*gone).max(version);
        let change = match kind {
            Kind::Broker(id) if older(self.brokers.get(&id), version) => {
                self.brokers.remove(&id);
                Change::Broker(id)
            }
            Kind::Load(id) if older(self.loads.get(&id), version) => {
                self.loads.remove(&id);
                Change::Load
            }
            Kind::Owner(bundle) if older(self.owners.get(&bundle), version) => {
                self.owners.remove(&bundle);
                Change::Owner(bundle)
            }
            Kind::Cut(namespace) if older(self.cuts.get(&namespace), version) => {
                self.cuts.remove(&namespace);
                Change::Cut(namespace)
            }
            Kind::Isolation(name) if older(self.isolation.get(&name), version) => {
                self.isolation.remove(&name);
                Change::Isolation
            }
            Kind::Leader if older(self.leader.as_ref(), version) => {
                self.leader = None;
                Change::Leader
            }
            _ => return None,
        };
        Some(change)
    }

    /// Keys that are known, for the comparison with a whole reading.
    pub fn keys(&self) -> Vec<String> {
        let brokers = self.brokers.keys().map(|id| records::broker_key(id));
        let loads = self.loads.keys().map(|id| records::load_key(id));
        let owners = self.owners.keys().map(records::owner_key);
        let cuts = self.cuts.keys().map(records::cut_key);
        let isolation = self.isolation.keys().map(|name| records::isolation_key(name));
        let leader = self.leader.iter().map(|_| records::LEADER.to_owned());
        brokers.chain(loads).chain(owners).chain(cuts).chain(isolation).chain(leader).collect()
    }

    /// The version of what is known under a key.
    pub fn version(&self, key: &str) -> Option<Version> {
        match records::kind(key)? {
            Kind::Broker(id) => self.brokers.get(&id).map(|one| one.version),
            Kind::Load(id) => self.loads.get(&id).map(|one| one.version),
            Kind::Owner(bundle) => self.owners.get(&bundle).map(|one| one.version),
            Kind::Cut(namespace) => self.cuts.get(&namespace).map(|one| one.version),
            Kind::Isolation(name) => self.isolation.get(&name).map(|one| one.version),
            Kind::Leader => self.leader.as_ref().map(|one| one.version),
        }
    }

    /// The bundles of a namespace: as they were cut, or as it was made.
    pub fn bundles(&self, namespace: &NamespaceName) -> Option<Arc<Bundles>> {
        self.cuts.get(namespace).map(|cut| cut.record.clone())
    }

    /// The version of a namespace's bundles, `None` if they were never cut anew.
    pub fn cut_version(&self, namespace: &NamespaceName) -> Option<Version> {
        self.cuts.get(namespace).map(|cut| cut.version)
    }

    /// Whose a bundle is (T2).
    pub fn holder(&self, bundle: &BundleId) -> Holder {
        let Some(owner) = self.owners.get(bundle) else { return Holder::Free(None) };
        match self.brokers.get(&owner.record.broker) {
            Some(broker) if broker.record.incarnation == owner.record.incarnation => {
                Holder::Held { owner: owner.clone(), broker: broker.clone() }
            }
            _ => Holder::Free(Some(owner.clone())),
        }
    }

    /// A bundle's record, whoever it names.
    pub fn owner(&self, bundle: &BundleId) -> Option<&Versioned<OwnerRecord>> {
        self.owners.get(bundle)
    }

    /// Namespaces that were cut anew, with their bundles.
    pub fn cuts(&self) -> impl Iterator<Item = (&NamespaceName, &Bundles)> {
        self.cuts.iter().map(|(namespace, cut)| (namespace, &*cut.record))
    }

    /// All bundles with a record.
    pub fn owners(&self) -> impl Iterator<Item = (&BundleId, &Versioned<OwnerRecord>)> {
        self.owners.iter()
    }

    /// Bundles of a broker's life, in order.
    pub fn owned_by(&self, broker: &str, incarnation: u64) -> Vec<BundleId> {
        let is_its = |owner: &OwnerRecord| owner.broker == broker && owner.incarnation == incarnation;
        let mut bundles: Vec<_> =
            self.owners.iter().filter(|(_, owner)| is_its(&owner.record)).map(|(bundle, _)| bundle.clone()).collect();
        bundles.sort();
        bundles
    }

    /// Bundles whose record names a broker that has gone, in order.
    pub fn orphans(&self) -> Vec<(BundleId, Versioned<OwnerRecord>)> {
        let mut orphans: Vec<_> = self
            .owners
            .iter()
            .filter(|(bundle, _)| matches!(self.holder(bundle), Holder::Free(_)))
            .map(|(bundle, owner)| (bundle.clone(), owner.clone()))
            .collect();
        orphans.sort_by(|one, other| one.0.cmp(&other.0));
        orphans
    }

    /// Brokers that live, by id.
    pub fn brokers(&self) -> &BTreeMap<String, Versioned<BrokerRecord>> {
        &self.brokers
    }

    /// A broker's load.
    pub fn load(&self, broker: &str) -> Option<&LoadRecord> {
        self.loads.get(broker).map(|load| &*load.record)
    }

    /// Who leads, if that broker lives.
    pub fn leader(&self) -> Option<&Versioned<BrokerRecord>> {
        let leader = self.leader.as_ref()?;
        self.brokers.get(&leader.record.broker).filter(|broker| broker.record.incarnation == leader.record.incarnation)
    }

    /// Whether the leader's place is taken.
    pub fn has_leader_record(&self) -> bool {
        self.leader.is_some()
    }

    /// Rules that keep namespaces to brokers, by name.
    pub fn isolation(&self) -> impl Iterator<Item = (&String, &IsolationRule)> {
        self.isolation.iter().map(|(name, rule)| (name, &*rule.record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundles::BundleRange;
    use crate::records::{broker_key, encode, owner_key};

    fn bundle() -> BundleId {
        BundleId { namespace: NamespaceName::parse("t/n").unwrap(), range: BundleRange::WHOLE }
    }

    fn put(table: &mut Table, key: &str, value: Bytes, version: u64) -> Option<Change> {
        table.put(key, &value, Version(version)).unwrap()
    }

    #[test]
    fn a_bundle_is_held_by_a_life_not_by_a_name() {
        let mut table = Table::default();
        let owner = OwnerRecord { broker: "a".into(), incarnation: 1, epoch: 5, from: None, since_ms: 0 };
        put(&mut table, &owner_key(&bundle()), encode(&owner), 1);
        assert!(matches!(table.holder(&bundle()), Holder::Free(Some(_))));
        let broker = BrokerRecord { id: "a".into(), incarnation: 1, ..BrokerRecord::default() };
        assert_eq!(put(&mut table, &broker_key("a"), encode(&broker), 2), Some(Change::Broker("a".into())));
        assert!(matches!(table.holder(&bundle()), Holder::Held { .. }));
        assert_eq!(table.owned_by("a", 1), [bundle()]);
        let again = BrokerRecord { incarnation: 2, ..broker };
        put(&mut table, &broker_key("a"), encode(&again), 3);
        assert!(matches!(table.holder(&bundle()), Holder::Free(Some(_))));
        assert_eq!(table.orphans().len(), 1);
    }

    #[test]
    fn what_is_told_late_changes_nothing() {
        let mut table = Table::default();
        let broker = |incarnation| encode(&BrokerRecord { id: "a".into(), incarnation, ..BrokerRecord::default() });
        assert!(put(&mut table, "brokers/a", broker(2), 5).is_some());
        assert_eq!(put(&mut table, "brokers/a", broker(1), 4), None);
        assert_eq!(table.delete("brokers/a", Version(3)), None);
        assert!(table.delete("brokers/a", Version(6)).is_some());
        assert_eq!(put(&mut table, "brokers/a", broker(2), 5), None, "it is gone since 6");
        assert!(put(&mut table, "brokers/a", broker(3), 7).is_some());
        assert!(table.put("brokers/a", &Bytes::from_static(&[7]), Version(9)).is_err());
    }
}
