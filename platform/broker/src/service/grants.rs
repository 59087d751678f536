//! When permissions have changed: connections ask the door again for what they hold.
//!
//! Invariants: B4 a change of a namespace's or tenant's permissions is announced, other changes are not.
//! Must never know: connections.
//!
//! Of what was seen only a keyed hash is kept: 100,000 namespaces cost a few MiB.

use super::BrokerService;
use meridian_policy::{Policies, TenantInfo};
use meridian_registry::Changed;
use meridian_types::NamespaceName;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::watch;

/// Permissions as they were when last looked at.
#[derive(Default)]
pub struct KnownGrants {
    hasher: RandomState,
    namespaces: HashMap<NamespaceName, u64>,
    tenants: HashMap<String, u64>,
}

impl KnownGrants {
    fn see_namespace(&mut self, name: &NamespaceName, now: Option<&Policies>) -> bool {
        let Some(now) = now else { return self.namespaces.remove(name).is_some() };
        let grants = self.hasher.hash_one((&now.auth_policies, now.subscription_auth_mode));
        self.namespaces.insert(name.clone(), grants) != Some(grants)
    }

    fn see_tenant(&mut self, name: &str, now: Option<&TenantInfo>) -> bool {
        let Some(now) = now else { return self.tenants.remove(name).is_some() };
        let grants = self.hasher.hash_one(&now.admin_roles);
        self.tenants.insert(name.to_owned(), grants) != Some(grants)
    }
}

impl BrokerService {
    /// Counts up whenever permissions may have changed.
    pub(crate) fn grants(&self) -> watch::Receiver<u64> {
        self.grants.subscribe()
    }

    /// Announces it if these changes concern permissions (B4).
    pub(super) fn announce_grants(&self, concerned: &HashSet<Changed>) {
        if !self.access.door.authorization_enabled() {
            return;
        }
        let mut known = self.known_grants.lock();
        let mut changed = false;
        for place in concerned {
            changed |= match place {
                Changed::Everything => true,
                Changed::Namespace(name) => known.see_namespace(name, self.registry.namespace(name).as_deref()),
                Changed::Tenant(name) => known.see_tenant(name, self.registry.tenant(name).as_deref()),
                Changed::Cluster(_) | Changed::TopicPolicies(_) | Changed::Partitioned(_) | Changed::Schemas(_) => {
                    false
                }
            };
        }
        drop(known);
        if changed {
            self.grants.send_modify(|version| *version += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_policy::Permission;
    use std::collections::BTreeSet;

    #[test]
    fn only_permissions_are_news() {
        let (mut known, name) = (KnownGrants::default(), NamespaceName::parse("t/n").unwrap());
        let mut policies = Policies::default();
        assert!(known.see_namespace(&name, Some(&policies)), "nothing was known of it");
        policies.max_producers_per_topic = Some(3);
        assert!(!known.see_namespace(&name, Some(&policies)));
        policies.auth_policies.namespace_auth.insert("a".into(), BTreeSet::from([Permission::Produce]));
        assert!(known.see_namespace(&name, Some(&policies)));
        assert!(known.see_namespace(&name, None));
        let tenant = TenantInfo::default();
        assert!(known.see_tenant("t", Some(&tenant)));
        assert!(!known.see_tenant("t", Some(&TenantInfo { allowed_clusters: ["c".into()].into(), ..tenant })));
    }
}
