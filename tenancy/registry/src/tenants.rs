//! Clusters and tenants.
//!
//! Invariants: R3 a tenant with namespaces is not deleted.
//! Failure: [`RegistryError`]; a call that failed half-way can be repeated.
//! Must never know: who may call.

use crate::keys::{Key, namespaces_of};
use crate::write::{Beside, Tries};
use crate::{Registry, RegistryError};
use meridian_metadata::Condition;
use meridian_policy::{ClusterData, PolicyError, TenantInfo};
use meridian_topology::{RegionSpec, Regions, TopologyError};
use meridian_types::NamespaceName;

impl Registry {
    /// Creates a cluster.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn create_cluster(&self, name: &str, data: &ClusterData) -> Result<(), RegistryError> {
        ClusterData::check_name(name)?;
        self.check_cluster(name, data)?;
        self.create(&Key::Cluster(name.to_owned()), data, Beside::Nothing).await
    }

    /// Changes a cluster. The closure may run several times.
    ///
    /// # Errors
    /// The closure's, or [`RegistryError`].
    pub async fn update_cluster<R, E: From<RegistryError>>(
        &self,
        name: &str,
        mut change: impl FnMut(&mut ClusterData) -> Result<R, E>,
    ) -> Result<R, E> {
        self.update(&Key::Cluster(name.to_owned()), |data: &mut ClusterData| {
            let result = change(data)?;
            self.check_cluster(name, data)?;
            Ok(result)
        })
        .await
    }

    /// The regions that there are, as values.
    pub fn regions(&self) -> Regions {
        let own = self.defaults().cluster.clone();
        let specs: Vec<RegionSpec> =
            self.cache.read().clusters.iter().map(|(name, data)| region_spec(name, data)).collect();
        Regions::new(own, specs)
    }

    fn check_cluster(&self, name: &str, data: &ClusterData) -> Result<(), RegistryError> {
        data.check()?;
        let refused = |error: TopologyError| PolicyError { what: error.to_string(), rule: "" };
        Ok(self.regions().admit(&region_spec(name, data)).map_err(refused)?)
    }

    /// Deletes a cluster that no tenant and no namespace names.
    ///
    /// # Errors
    /// [`RegistryError::InUse`] with the first that does.
    pub async fn delete_cluster(&self, name: &str) -> Result<(), RegistryError> {
        let used_by_tenant = self
            .tenants()
            .into_iter()
            .find(|tenant| self.tenant(tenant).is_some_and(|tenant| tenant.allowed_clusters.contains(name)));
        let used_by_namespace = || {
            self.naming(name).into_iter().find(|namespace| {
                self.namespace(namespace).is_some_and(|policies| policies.replication_clusters.contains(name))
            })
        };
        let used = match used_by_tenant {
            Some(tenant) => Some(format!("tenant {tenant}")),
            None => used_by_namespace().map(|namespace| format!("namespace {namespace}")),
        };
        if let Some(by) = used {
            return Err(RegistryError::InUse { kind: "cluster", name: name.to_owned(), by });
        }
        self.remove(&Key::Cluster(name.to_owned())).await
    }

    /// Creates a tenant.
    ///
    /// # Errors
    /// [`RegistryError`]; a cluster that does not exist is a [`PolicyError`].
    pub async fn create_tenant(&self, name: &str, info: &TenantInfo) -> Result<(), RegistryError> {
        TenantInfo::check_name(name)?;
        self.check_clusters(info.allowed_clusters.iter())?;
        self.create(&Key::Tenant(name.to_owned()), info, Beside::Nothing).await
    }

    /// Changes a tenant. The closure may run several times.
    ///
    /// # Errors
    /// The closure's, or [`RegistryError`].
    pub async fn update_tenant<R, E: From<RegistryError>>(
        &self,
        name: &str,
        mut change: impl FnMut(&mut TenantInfo) -> Result<R, E>,
    ) -> Result<R, E> {
        self.update(&Key::Tenant(name.to_owned()), |info: &mut TenantInfo| {
            let result = change(info)?;
            self.check_clusters(info.allowed_clusters.iter())?;
            Ok(result)
        })
        .await
    }

    /// Deletes a tenant without namespaces.
    ///
    /// # Errors
    /// [`RegistryError::InUse`] if it has some.
    pub async fn delete_tenant(&self, name: &str) -> Result<(), RegistryError> {
        let key = Key::Tenant(name.to_owned());
        let mut tries = Tries::of(&key);
        loop {
            tries.next()?;
            // Whoever creates a namespace writes the tenant too: its version tells if one came in between (R3).
            let Some(found) = self.find::<TenantInfo>(&key).await? else { return self.gone(&key, &tries).await };
            let namespaces = self.store.range(&namespaces_of(name), None, 1).await?;
            if let Some(first) = namespaces.entries.first() {
                let by = format!("it has namespaces ({})", first.key.trim_start_matches("tenancy/namespace/"));
                return Err(RegistryError::InUse { kind: key.kind(), name: name.to_owned(), by });
            }
            if self.try_commit(&mut tries, self.deletion(&key, &found.header, Condition::Is(found.version))?).await? {
                return Ok(());
            }
        }
    }

    /// Namespaces that name a cluster, in order.
    fn naming(&self, cluster: &str) -> Vec<NamespaceName> {
        let cache = self.cache.read();
        let named = |name: &&NamespaceName| cache.namespaces.clusters(name).is_some_and(|all| all.contains(cluster));
        cache.namespaces.names().filter(named).cloned().collect()
    }

    /// All clusters exist.
    pub(crate) fn check_clusters<'a>(&self, names: impl Iterator<Item = &'a String>) -> Result<(), RegistryError> {
        for name in names {
            if self.cluster(name).is_none() {
                let what = format!("Cluster {name} does not exist.");
                return Err(PolicyError { what, rule: "" }.into());
            }
        }
        Ok(())
    }
}

/// A cluster entry as a region.
fn region_spec(name: &str, data: &ClusterData) -> RegionSpec {
    let data = data.clone();
    RegionSpec {
        name: name.to_owned(),
        service_url: data.service_url,
        service_url_tls: data.service_url_tls,
        broker_service_url: data.broker_service_url,
        broker_service_url_tls: data.broker_service_url_tls,
        tls_enabled: data.broker_client_tls_enabled,
        tls_allow_insecure: data.tls_allow_insecure_connection,
        trust_certs_file: data.broker_client_trust_certs_file_path,
        key_file: data.broker_client_key_file_path,
        certificate_file: data.broker_client_certificate_file_path,
        authentication_plugin: data.authentication_plugin,
        authentication_parameters: data.authentication_parameters,
        link_url: data.region_link_url,
        peer_names: data.peer_cluster_names.unwrap_or_default().into_iter().collect(),
    }
}
