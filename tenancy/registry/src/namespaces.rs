//! Namespaces.
//!
//! Invariants: R3 a namespace is created together with a write of its tenant, so that the tenant can't vanish meanwhile.
//! Failure: [`RegistryError`]; a call that failed half-way can be repeated.
//! Must never know: who may call, topics' content.

use crate::keys::{Key, partitioned_of, schemas_of, topic_policies_of};
use crate::record::decode_header;
use crate::write::{Beside, Tries};
use crate::{Registry, RegistryError};
use meridian_metadata::{Condition, Operation};
use meridian_policy::{BundlesData, Policies};
use meridian_types::NamespaceName;

/// Hash ranges of a namespace that asks for none.
const DEFAULT_BUNDLES: u32 = 4;
/// Records of a namespace deleted in one transaction.
const DELETED_AT_ONCE: usize = 250;

impl Registry {
    /// Creates a namespace; bundles and replication clusters that are not given get their defaults.
    ///
    /// # Errors
    /// [`RegistryError`]; a tenant that does not exist is [`RegistryError::NotFound`] of kind `tenant`.
    pub async fn create_namespace(&self, name: &NamespaceName, policies: Policies) -> Result<(), RegistryError> {
        let policies = self.complete(policies)?;
        self.create(&Key::Namespace(name.clone()), &policies, Beside::TenantOf(name)).await
    }

    fn complete(&self, mut policies: Policies) -> Result<Policies, RegistryError> {
        let bundles = match &policies.bundles {
            Some(bundles) if bundles.num_bundles > 0 || !bundles.boundaries.is_empty() => bundles.normalized()?,
            _ => BundlesData::even(DEFAULT_BUNDLES)?,
        };
        policies.bundles = Some(bundles);
        if policies.replication_clusters.is_empty() {
            policies.replication_clusters.insert(self.defaults().cluster.clone());
        }
        self.check_namespace(&policies)?;
        Ok(policies)
    }

    fn check_namespace(&self, policies: &Policies) -> Result<(), RegistryError> {
        policies.check()?;
        self.check_clusters(policies.replication_clusters.iter().chain(&policies.allowed_clusters))
    }

    /// Changes the policies of a namespace. The closure may run several times.
    ///
    /// # Errors
    /// The closure's, or [`RegistryError`].
    pub async fn update_namespace<R, E: From<RegistryError>>(
        &self,
        name: &NamespaceName,
        mut change: impl FnMut(&mut Policies) -> Result<R, E>,
    ) -> Result<R, E> {
        self.update(&Key::Namespace(name.clone()), |policies: &mut Policies| {
            let result = change(policies)?;
            self.check_namespace(policies)?;
            Ok(result)
        })
        .await
    }

    /// Marks a namespace as being deleted: no topic is created in it any more. May be repeated.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn mark_namespace_deleted(&self, name: &NamespaceName) -> Result<(), RegistryError> {
        let mark = |policies: &mut Policies| {
            policies.deleted = true;
            Ok::<_, RegistryError>(())
        };
        self.update(&Key::Namespace(name.clone()), mark).await
    }

    /// Deletes a namespace with the policies of its topics, after its topics were deleted. May be repeated after it
    /// failed.
    ///
    /// # Errors
    /// [`RegistryError::InUse`] if there are partitioned topics.
    pub async fn delete_namespace(&self, name: &NamespaceName) -> Result<(), RegistryError> {
        self.mark_namespace_deleted(name).await?;
        let key = Key::Namespace(name.clone());
        let mut tries = Tries::of(&key);
        loop {
            tries.next()?;
            // Nothing is created under a namespace that is marked, so what is listed now is all there is.
            let Some(entry) = self.store.get(&key.path()).await? else { return self.gone(&key, &tries).await };
            let topics = self.store.range(&partitioned_of(name), None, 1).await?;
            if let Some(first) = topics.entries.first() {
                let by = format!("it has partitioned topics ({})", first.key);
                return Err(RegistryError::InUse { kind: key.kind(), name: key.name(), by });
            }
            self.delete_records_of(name).await?;
            let header = decode_header(&entry.key, &entry.value)?;
            if self.try_commit(&mut tries, self.deletion(&key, &header, Condition::Is(entry.version))?).await? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn delete_records_of(&self, name: &NamespaceName) -> Result<(), RegistryError> {
        for prefix in [topic_policies_of(name), schemas_of(name)] {
            self.delete_range(&prefix).await?;
        }
        Ok(())
    }

    async fn delete_range(&self, prefix: &str) -> Result<(), RegistryError> {
        loop {
            let page = self.store.range(prefix, None, DELETED_AT_ONCE).await?;
            if page.entries.is_empty() {
                return Ok(());
            }
            let mut operations = Vec::new();
            for entry in page.entries {
                match (Key::parse(&entry.key), decode_header(&entry.key, &entry.value)) {
                    (Some(key), Ok(header)) => operations.extend(self.deletion(&key, &header, Condition::Any)?),
                    // What can't be read is deleted nevertheless.
                    _ => operations.push(Operation::Delete { key: entry.key, condition: Condition::Any }),
                }
            }
            self.store.commit(operations).await?;
        }
    }
}
