//! Every action at every place, allowed and refused (P2, P3).

use super::*;

const ALL: [Action; 9] = [
    Action::Produce,
    Action::Consume,
    Action::Lookup,
    Action::Functions,
    Action::Sources,
    Action::Sinks,
    Action::Packages,
    Action::Administer,
    Action::Operate,
];

struct World {
    rules: AccessRules,
    tenant: TenantInfo,
    namespace: Policies,
    namespace_name: NamespaceName,
    topic: TopicName,
}

impl World {
    fn new() -> Self {
        let set = |role: &str| BTreeSet::from([role.to_owned()]);
        Self {
            rules: AccessRules { super_users: set("root"), wildcards: false },
            tenant: TenantInfo { admin_roles: set("boss"), allowed_clusters: set("here") },
            namespace: Policies::default(),
            namespace_name: NamespaceName::parse("t/n").unwrap(),
            topic: TopicName::parse("t/n/topic").unwrap(),
        }
    }

    fn grant(&mut self, role: &str, permissions: &[Permission]) {
        let granted = permissions.iter().copied().collect();
        self.namespace.auth_policies.namespace_auth.insert(role.to_owned(), granted);
    }

    fn grant_on(&mut self, topic: &TopicName, role: &str, permission: Permission) {
        let roles = self.namespace.auth_policies.destination_auth.entry(topic.to_string()).or_default();
        roles.insert(role.to_owned(), BTreeSet::from([permission]));
    }

    fn grants(&self) -> Grants<'_> {
        Grants { tenant: Some(&self.tenant), namespace: Some(&self.namespace) }
    }

    fn may(&self, role: &str, action: Action, scope: &Scope<'_>) -> bool {
        decide(&self.rules, role, action, scope, self.grants()).is_ok()
    }

    fn may_on_topic(&self, role: &str) -> Vec<Action> {
        ALL.into_iter().filter(|action| self.may(role, *action, &Scope::Topic(&self.topic))).collect()
    }
}

#[test]
fn a_super_user_may_everything_everywhere_also_where_nothing_is() {
    let world = World::new();
    for scope in [
        Scope::Cluster,
        Scope::Tenant("none"),
        Scope::Namespace(&world.namespace_name),
        Scope::Topic(&world.topic),
        Scope::Subscription(&world.topic, "s"),
    ] {
        for action in ALL {
            assert!(decide(&world.rules, "root", action, &scope, Grants::default()).is_ok(), "{action:?} {scope}");
        }
    }
}

#[test]
fn a_tenant_admin_may_everything_in_the_tenant_but_operate() {
    let world = World::new();
    assert_eq!(world.may_on_topic("boss"), &ALL[..8]);
    assert!(world.may("boss", Action::Administer, &Scope::Tenant("t")));
    assert!(!world.may("boss", Action::Operate, &Scope::Cluster));
    let elsewhere = Grants { tenant: None, namespace: Some(&world.namespace) };
    assert!(decide(&world.rules, "boss", Action::Produce, &Scope::Topic(&world.topic), elsewhere).is_err());
}

#[test]
fn without_a_grant_nothing_is_allowed() {
    let world = World::new();
    assert_eq!(world.may_on_topic("somebody"), []);
    let refusal = decide(&world.rules, "somebody", Action::Produce, &Scope::Topic(&world.topic), world.grants());
    assert_eq!(
        refusal.unwrap_err().to_string(),
        "role somebody is not authorized to produce on topic persistent://t/n/topic"
    );
    let empty = decide(&world.rules, "", Action::Produce, &Scope::Topic(&world.topic), world.grants());
    assert!(matches!(empty, Err(Refusal::NoRole { .. })));
    let nothing = decide(&world.rules, "somebody", Action::Lookup, &Scope::Topic(&world.topic), Grants::default());
    assert!(nothing.is_err());
}

#[test]
fn each_permission_allows_its_action_and_look_ups() {
    let cases = [
        (Permission::Produce, vec![Action::Produce, Action::Lookup]),
        (Permission::Consume, vec![Action::Consume, Action::Lookup]),
        (Permission::Functions, vec![Action::Functions]),
        (Permission::Sources, vec![Action::Sources]),
        (Permission::Sinks, vec![Action::Sinks]),
        (Permission::Packages, vec![Action::Packages]),
    ];
    for (permission, allowed) in cases {
        let mut world = World::new();
        world.grant("somebody", &[permission]);
        assert_eq!(world.may_on_topic("somebody"), allowed, "{permission:?}");
        assert_eq!(world.may_on_topic("somebody else"), []);
        let on_namespace = allowed[0];
        assert!(world.may("somebody", on_namespace, &Scope::Namespace(&world.namespace_name)));
        assert!(!world.may("somebody", Action::Administer, &Scope::Namespace(&world.namespace_name)));
        assert!(!world.may("somebody", Action::Administer, &Scope::Tenant("t")));
    }
}

#[test]
fn a_grant_on_a_topic_holds_for_its_partitions_and_nothing_else() {
    let mut world = World::new();
    let topic = world.topic.clone();
    world.grant_on(&topic, "somebody", Permission::Produce);
    let may = |topic: &TopicName| world.may("somebody", Action::Produce, &Scope::Topic(topic));
    assert!(may(&topic));
    assert!(may(&topic.with_partition(3)));
    assert!(!may(&TopicName::parse("t/n/topic2").unwrap()));
    assert!(!may(&TopicName::parse("non-persistent://t/n/topic").unwrap()));
    assert!(!world.may("somebody", Action::Consume, &Scope::Topic(&topic)));
    assert!(!world.may("somebody", Action::Produce, &Scope::Namespace(&world.namespace_name)));
}

#[test]
fn a_grant_on_one_partition_holds_for_it_alone() {
    let mut world = World::new();
    let partition = world.topic.with_partition(1);
    world.grant_on(&partition, "somebody", Permission::Consume);
    assert!(world.may("somebody", Action::Consume, &Scope::Topic(&partition)));
    assert!(!world.may("somebody", Action::Consume, &Scope::Topic(&world.topic)));
    assert!(!world.may("somebody", Action::Consume, &Scope::Topic(&world.topic.with_partition(2))));
}

#[test]
fn a_subscription_with_roles_is_for_them_alone() {
    let mut world = World::new();
    world.grant("one", &[Permission::Consume]);
    world.grant("two", &[Permission::Consume]);
    let roles = &mut world.namespace.auth_policies.subscription_auth_roles;
    roles.insert("reserved".into(), BTreeSet::from(["one".into(), "three".into()]));
    roles.insert("open".into(), BTreeSet::new());
    let may = |role: &str, subscription: &str| {
        world.may(role, Action::Consume, &Scope::Subscription(&world.topic, subscription))
    };
    assert!(may("one", "reserved"));
    assert!(!may("two", "reserved"));
    assert!(may("two", "open") && may("two", "other"));
    assert!(!may("three", "reserved"), "the permission to consume is needed all the same");
    assert!(may("boss", "reserved"), "administrators are not bound");
}

#[test]
fn subscription_names_may_have_to_begin_with_the_role() {
    let mut world = World::new();
    world.grant("team", &[Permission::Consume]);
    world.namespace.subscription_auth_mode = SubscriptionAuthMode::Prefix;
    let decide = |subscription: &str| {
        let scope = Scope::Subscription(&world.topic, subscription);
        decide(&world.rules, "team", Action::Consume, &scope, world.grants())
    };
    assert!(decide("team-sub").is_ok());
    assert!(matches!(decide("sub"), Err(Refusal::SubscriptionPrefix { .. })));
}

#[test]
fn patterns_hold_only_where_they_are_switched_on() {
    let roles = ["a", "ab", "ba", "bab", "b", "a*", "*", "x"];
    let expected =
        [("a*", vec!["a", "ab", "a*"]), ("*b", vec!["ab", "bab", "b"]), ("*", roles.to_vec()), ("a*b", vec![])];
    for (pattern, matching) in expected {
        let mut world = World::new();
        world.grant(pattern, &[Permission::Produce]);
        let may = |world: &World| -> Vec<_> {
            roles.into_iter().filter(|role| world.may(role, Action::Produce, &Scope::Topic(&world.topic))).collect()
        };
        let literal: Vec<_> = roles.into_iter().filter(|role| *role == pattern).collect();
        assert_eq!(may(&world), literal, "{pattern} off");
        world.rules.wildcards = true;
        assert_eq!(may(&world), matching, "{pattern} on");
    }
}

#[test]
fn patterns_never_make_an_administrator() {
    let mut world = World::new();
    world.rules = AccessRules { super_users: BTreeSet::from(["*".into()]), wildcards: true };
    world.tenant.admin_roles = BTreeSet::from(["*".into(), "a*".into()]);
    world.grant("*", &[Permission::Produce, Permission::Consume]);
    for role in ["a", "abc", "anybody"] {
        assert!(!world.may(role, Action::Operate, &Scope::Cluster));
        assert!(!world.may(role, Action::Administer, &Scope::Tenant("t")));
    }
}

#[test]
fn who_holds_nothing_is_told_the_same_whatever_is_there() {
    let mut world = World::new();
    world.grant("one", &[Permission::Consume]);
    let roles = &mut world.namespace.auth_policies.subscription_auth_roles;
    roles.insert("reserved".into(), BTreeSet::from(["one".into()]));
    world.namespace.subscription_auth_mode = SubscriptionAuthMode::Prefix;
    let scope = Scope::Subscription(&world.topic, "reserved");
    let said = |grants| decide(&world.rules, "stranger", Action::Consume, &scope, grants).unwrap_err().to_string();
    let absent = said(Grants::default());
    assert_eq!(said(world.grants()), absent);
    assert_eq!(said(Grants { tenant: Some(&world.tenant), namespace: None }), absent);
}

/// Field report B107: a pattern that would not mean what it looks like is told from the others.
#[test]
fn b107_patterns_have_their_star_at_one_end() {
    for good in ["a", "*", "a*", "*b", "a-b"] {
        assert!(is_role_or_pattern(good), "{good}");
    }
    for bad in ["a*b", "**", "*a*", "a**", "a*b*"] {
        assert!(!is_role_or_pattern(bad), "{bad}");
    }
}
