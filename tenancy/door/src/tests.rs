//! The door over a registry in memory (D1 to D4).

use super::*;
use meridian_metadata::MemoryStore;
use meridian_policy::{BrokerDefaults, ClusterData, Permission, Policies, TenantInfo};
use meridian_registry::RegistryError;
use meridian_types::{NamespaceName, TopicName};

fn caller<'a>(role: &'a str, original: Option<&'a str>) -> Caller<'a> {
    Caller { role: Some(role), original_role: original }
}

async fn door(authorization: bool) -> (Door, Arc<Registry>) {
    let registry = Registry::open(Arc::new(MemoryStore::new()), BrokerDefaults::default()).await.unwrap();
    registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
    let set = |role: &str| BTreeSet::from([role.to_owned()]);
    let tenant = TenantInfo { admin_roles: set("boss"), allowed_clusters: set("standalone") };
    registry.create_tenant("t", &tenant).await.unwrap();
    registry.create_namespace(&NamespaceName::parse("t/n").unwrap(), Policies::default()).await.unwrap();
    let rules = AccessRules { super_users: set("root"), wildcards: false };
    let (proxy_roles, replicator_roles) = (set("proxy"), set("link"));
    let config = DoorConfig { authorization, rules, proxy_roles, replicator_roles, original_credentials: false };
    (Door::new(config, registry.clone()), registry)
}

async fn grant(registry: &Registry, role: &str) {
    let grant = |policies: &mut Policies| {
        policies.auth_policies.namespace_auth.insert(role.to_owned(), BTreeSet::from([Permission::Produce]));
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&NamespaceName::parse("t/n").unwrap(), grant).await.unwrap();
}

#[tokio::test]
async fn grants_are_in_force_when_they_are_answered() {
    let (door, registry) = door(true).await;
    let topic = TopicName::parse("t/n/x").unwrap();
    let produce = |role| door.authorize(caller(role, None), Action::Produce, &Scope::Topic(&topic));
    assert!(produce("somebody").is_err());
    grant(&registry, "somebody").await;
    assert!(produce("somebody").is_ok());
    assert!(produce("boss").is_ok() && produce("root").is_ok());
    assert!(door.authorize(Caller::default(), Action::Produce, &Scope::Topic(&topic)).is_err());
}

#[tokio::test]
async fn behind_a_proxy_both_roles_must_be_allowed() {
    let (door, registry) = door(true).await;
    let topic = TopicName::parse("t/n/x").unwrap();
    let produce = |proxy, client| door.authorize(caller(proxy, client), Action::Produce, &Scope::Topic(&topic));
    grant(&registry, "client").await;
    assert!(produce("proxy", Some("client")).is_err(), "D2: the proxy may not");
    grant(&registry, "proxy").await;
    assert!(produce("proxy", Some("client")).is_ok());
    assert!(produce("proxy", Some("other")).is_err(), "D2: the client may not");
    assert!(produce("proxy", None).is_err(), "D3");
    assert!(produce("client", Some("root")).is_err(), "D3");
    assert!(produce("root", Some("client")).is_err(), "D3: a super user is no proxy");
}

#[tokio::test]
async fn roles_of_connections_are_checked() {
    let (door, _registry) = door(true).await;
    assert!(door.admit(caller("proxy", Some("client"))).is_ok());
    assert!(door.admit(caller("client", None)).is_ok());
    assert!(door.admit(caller("client", Some(""))).is_ok());
    for (role, original) in [("proxy", None), ("proxy", Some("proxy")), ("client", Some("root")), ("proxy", Some(""))] {
        assert!(door.admit(caller(role, original)).is_err(), "{role} {original:?}");
    }
}

#[tokio::test]
async fn without_authorization_all_is_allowed() {
    let (door, _registry) = door(false).await;
    assert!(door.authorize(Caller::default(), Action::Operate, &Scope::Cluster).is_ok());
    assert!(!door.authorization_enabled());
}

#[tokio::test]
async fn only_replicators_copy() {
    let (door, registry) = door(true).await;
    grant(&registry, "client").await;
    assert!(door.admit_replicator(caller("link", None)).is_ok() && door.admit_replicator(caller("root", None)).is_ok());
    for (role, original) in [("client", None), ("boss", None), ("link", Some("client")), ("", None)] {
        let denied = door.admit_replicator(caller(role, original)).unwrap_err();
        assert!(denied.reason.contains("replicatorRoles"), "{role} {original:?}");
    }
}
