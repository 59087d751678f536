//! One broker that serves everything of its region: no metadata is asked, nothing is watched, nothing can be lost.

use crate::api::{BoxFuture, Figure, Host, Namespaces, Ownership, OwnershipError, Place};
use crate::bundles::Bundles;
use crate::isolation::IsolationData;
use crate::records::{BrokerRecord, BundleId, LoadRecord};
use meridian_metadata::Operation;
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, OnceLock, Weak};

/// See the module.
pub struct Everything {
    me: Arc<BrokerRecord>,
    namespaces: Arc<dyn Namespaces>,
    host: OnceLock<Weak<dyn Host>>,
}

const ALONE: &str = "one broker serves everything of this region, so that nothing would be gained";

impl Everything {
    /// For this broker.
    pub fn new(me: BrokerRecord, namespaces: Arc<dyn Namespaces>) -> Self {
        Self { me: Arc::new(me), namespaces, host: OnceLock::new() }
    }
}

impl Ownership for Everything {
    fn is_alone(&self) -> bool {
        true
    }

    fn in_force(&self) -> bool {
        true
    }

    fn serves(&self, _topic: &TopicName) -> bool {
        true
    }

    fn locate<'a>(&'a self, _topic: &'a TopicName, _told: bool) -> BoxFuture<'a, Result<Place, OwnershipError>> {
        Box::pin(ready(Ok(Place::Here)))
    }

    fn destination(&self, _topic: &TopicName) -> Option<Arc<BrokerRecord>> {
        None
    }

    fn guard(&self, _topic: &TopicName) -> Result<Option<Operation>, OwnershipError> {
        Ok(None)
    }

    fn bundles(&self, namespace: &NamespaceName) -> Option<Arc<Bundles>> {
        self.namespaces.made_with(namespace).map(Arc::new)
    }

    fn me(&self) -> Arc<BrokerRecord> {
        self.me.clone()
    }

    fn brokers(&self) -> Vec<Arc<BrokerRecord>> {
        vec![self.me.clone()]
    }

    fn leader(&self) -> Option<Arc<BrokerRecord>> {
        Some(self.me.clone())
    }

    fn owner(&self, _bundle: &BundleId) -> Option<Arc<BrokerRecord>> {
        Some(self.me.clone())
    }

    fn owned(&self, _broker: &str) -> Vec<(BundleId, u64)> {
        let loads = self.host.get().and_then(Weak::upgrade).map(|host| host.loads()).unwrap_or_default();
        let bundles: std::collections::BTreeSet<BundleId> =
            loads.iter().filter_map(|load| self.bundle_of(&load.topic)).collect();
        bundles.into_iter().map(|bundle| (bundle, 1)).collect()
    }

    fn load(&self, _broker: &str) -> Option<LoadRecord> {
        None
    }

    fn unload<'a>(&'a self, _bundle: &'a BundleId, _to: Option<&'a str>) -> BoxFuture<'a, Result<(), OwnershipError>> {
        Box::pin(ready(Ok(())))
    }

    fn split<'a>(
        &'a self,
        _bundle: &'a BundleId,
        _cuts: &'a [u32],
    ) -> BoxFuture<'a, Result<Vec<BundleId>, OwnershipError>> {
        Box::pin(ready(Err(OwnershipError::Invalid(format!("bundles can't be split: {ALONE}")))))
    }

    fn merge<'a>(&'a self, _bundle: &'a BundleId) -> BoxFuture<'a, Result<BundleId, OwnershipError>> {
        Box::pin(ready(Err(OwnershipError::Invalid(format!("bundles can't be merged: {ALONE}")))))
    }

    fn forget<'a>(&'a self, _namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), OwnershipError>> {
        Box::pin(ready(Ok(())))
    }

    fn isolation(&self) -> BTreeMap<String, IsolationData> {
        BTreeMap::new()
    }

    fn set_isolation<'a>(
        &'a self,
        _name: &'a str,
        _rule: Option<IsolationData>,
    ) -> BoxFuture<'a, Result<(), OwnershipError>> {
        let text = format!("brokers can't be set apart for namespaces: {ALONE}");
        Box::pin(ready(Err(OwnershipError::Invalid(text))))
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn attach(&self, host: Weak<dyn Host>) {
        // A second host would be a mistake of the wiring; the first one stays.
        let _ = self.host.set(host);
    }

    fn reaches_store(&self) -> bool {
        true
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}
