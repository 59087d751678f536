//! When permissions have changed: connections ask the door again for what they hold.
//!
//! Invariants: B4 a change of a namespace's or tenant's permissions is announced, other changes are not.
//! Must never know: connections.

use super::BrokerService;
use meridian_policy::{Policies, TenantInfo};
use meridian_registry::Changed;
use meridian_types::NamespaceName;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;

/// Permissions as they were when last looked at.
#[derive(Default)]
pub struct KnownGrants {
    namespaces: HashMap<NamespaceName, Arc<Policies>>,
    tenants: HashMap<String, Arc<TenantInfo>>,
}

fn same_grants(one: &Policies, other: &Policies) -> bool {
    one.auth_policies == other.auth_policies && one.subscription_auth_mode == other.subscription_auth_mode
}

impl KnownGrants {
    fn see_namespace(&mut self, name: &NamespaceName, now: Option<Arc<Policies>>) -> bool {
        let Some(now) = now else { return self.namespaces.remove(name).is_some() };
        let before = self.namespaces.insert(name.clone(), now.clone());
        !before.is_some_and(|before| same_grants(&before, &now))
    }

    fn see_tenant(&mut self, name: &str, now: Option<Arc<TenantInfo>>) -> bool {
        let Some(now) = now else { return self.tenants.remove(name).is_some() };
        let before = self.tenants.insert(name.to_owned(), now.clone());
        before.is_none_or(|before| before.admin_roles != now.admin_roles)
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
                Changed::Namespace(name) => known.see_namespace(name, self.registry.namespace(name)),
                Changed::Tenant(name) => known.see_tenant(name, self.registry.tenant(name)),
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
        assert!(known.see_namespace(&name, Some(Arc::new(policies.clone()))), "nothing was known of it");
        policies.max_producers_per_topic = Some(3);
        assert!(!known.see_namespace(&name, Some(Arc::new(policies.clone()))));
        policies.auth_policies.namespace_auth.insert("a".into(), BTreeSet::from([Permission::Produce]));
        assert!(known.see_namespace(&name, Some(Arc::new(policies))));
        assert!(known.see_namespace(&name, None));
        let tenant = TenantInfo::default();
        assert!(known.see_tenant("t", Some(Arc::new(tenant.clone()))));
        assert!(!known.see_tenant("t", Some(Arc::new(TenantInfo { allowed_clusters: ["c".into()].into(), ..tenant }))));
    }
}
