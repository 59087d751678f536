//! What must be there before the first client comes.
//!
//! Invariants: what exists is left as it is, but the own cluster's addresses follow the settings; a first start is one
//! write, a later one none.
//! Failure: [`RegistryError`]; what was created stays, and a repeat creates the rest.
//! Must never know: the settings.

use crate::keys::Key;
use crate::record::Header;
use crate::write::Tries;
use crate::{Registry, RegistryError};
use meridian_metadata::Condition;
use meridian_policy::{ClusterData, Policies, TenantInfo};
use meridian_types::NamespaceName;
use std::collections::BTreeSet;

const TENANTS: [&str; 2] = ["public", "pulsar"];
const NAMESPACES: [&str; 2] = ["public/default", "pulsar/system"];

impl Registry {
    /// Creates the own cluster, the tenants `public` and `pulsar` and the namespaces `public/default` and
    /// `pulsar/system`, as far as they are missing.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn bootstrap(&self, data: &ClusterData, bundles: u32) -> Result<(), RegistryError> {
        data.check()?;
        let cluster = self.defaults().cluster.clone();
        let cluster_key = Key::Cluster(cluster.clone());
        let tenant = TenantInfo { admin_roles: BTreeSet::new(), allowed_clusters: BTreeSet::from([cluster.clone()]) };
        let policies = Policies::of_cluster(&cluster, bundles)?;
        // Without a stamp: what a first start creates is never newer than what another region has.
        let local = Header::default();
        let mut tries = Tries::of(&cluster_key);
        loop {
            tries.next()?;
            let mut operations = Vec::new();
            match self.find::<ClusterData>(&cluster_key).await? {
                None => operations.push(cluster_key.put(&local, data, Condition::Absent)?),
                Some(found) => {
                    let readdressed = with_addresses(&found.value, data);
                    if readdressed != found.value {
                        operations.push(cluster_key.put(&local, &readdressed, Condition::Is(found.version))?);
                    }
                }
            }
            for name in TENANTS {
                let key = Key::Tenant(name.to_owned());
                if self.find::<TenantInfo>(&key).await?.is_none() {
                    operations.push(key.put(&local, &tenant, Condition::Absent)?);
                }
            }
            for name in NAMESPACES {
                let Ok(namespace) = NamespaceName::parse(name) else { continue };
                let key = Key::Namespace(namespace);
                if self.find::<Policies>(&key).await?.is_none() {
                    operations.push(key.put(&local, &policies, Condition::Absent)?);
                }
            }
            if operations.is_empty() || self.try_commit(&mut tries, operations).await? {
                return Ok(());
            }
        }
    }
}

fn with_addresses(stored: &ClusterData, now: &ClusterData) -> ClusterData {
    ClusterData {
        service_url: now.service_url.clone(),
        service_url_tls: now.service_url_tls.clone(),
        broker_service_url: now.broker_service_url.clone(),
        broker_service_url_tls: now.broker_service_url_tls.clone(),
        ..stored.clone()
    }
}
