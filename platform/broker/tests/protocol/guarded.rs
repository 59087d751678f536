//! The door while connections are open: permissions withdrawn, credentials behind proxies.

use crate::client::Client;
use crate::end_to_end::{Region, subscribe_earliest};
use meridian_broker::BrokerConfig;
use meridian_door::{AccessRules, DoorConfig};
use meridian_identity::{Identity, IdentityConfig};
use meridian_managed_ledger::testing::TestRegion;
use meridian_policy::{BrokerDefaults, Permission, Policies, TenantInfo};
use meridian_registry::RegistryError;
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_subscribe::SubType;
use meridian_wire::proto::{
    CommandConnect, CommandLookupTopic, CommandPartitionedTopicMetadata, CommandPing, CommandProducer,
    CommandWatchTopicList, ServerError,
};
use std::collections::BTreeSet;
use std::time::Duration;

async fn grant(region: &Region, role: &str, granted: &[Permission]) {
    let granted: BTreeSet<Permission> = granted.iter().copied().collect();
    let change = |policies: &mut Policies| {
        policies.auth_policies.namespace_auth.insert(role.to_owned(), granted.clone());
        Ok::<(), RegistryError>(())
    };
    let namespace = NamespaceName::parse("public/default").unwrap();
    region.service.registry().update_namespace(&namespace, change).await.unwrap();
}

async fn guarded() -> Region {
    let identity = IdentityConfig { anonymous_role: Some("app".to_owned()), ..IdentityConfig::default() };
    let door = DoorConfig { authorization: true, ..DoorConfig::default() };
    let identity = Some(Identity::new(&identity).unwrap());
    Region::guarded(TestRegion::default(), BrokerConfig::default(), BrokerDefaults::default(), identity, door).await
}

async fn within_a_second(client: &mut Client) -> Body {
    tokio::time::timeout(Duration::from_secs(1), client.body()).await.expect("nothing came within a second")
}

#[tokio::test]
async fn a_withdrawn_permission_closes_what_is_in_and_nothing_else() {
    let region = guarded().await;
    grant(&region, "app", &[Permission::Produce, Permission::Consume]).await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.producer(2, "b").await;
    subscribe_earliest(&mut client, 1, "a", SubType::Shared).await;
    grant(&region, "app", &[Permission::Consume]).await;
    let mut closed = BTreeSet::new();
    for _ in 0..2 {
        let Body::CloseProducer(close) = within_a_second(&mut client).await else { panic!("no producer was closed") };
        closed.insert(close.producer_id);
    }
    assert_eq!(closed, [1, 2].into());
    client.send(CommandProducer { topic: "a".to_owned(), producer_id: 3, request_id: 3, ..Default::default() }).await;
    let Body::Error(error) = client.body().await else { panic!("it was let in again") };
    assert_eq!(error.error(), ServerError::AuthorizationError);
    grant(&region, "other", &[Permission::Produce]).await;
    grant(&region, "app", &[]).await;
    let Body::CloseConsumer(close) = within_a_second(&mut client).await else { panic!("the consumer was not closed") };
    assert_eq!(close.consumer_id, 1);
    let stats = region.service.loaded_topics().into_iter().map(|topic| topic.stats());
    assert!(stats.into_iter().all(|one| one.producers.is_empty()));
}

#[tokio::test]
async fn a_watcher_is_told_nothing_while_it_may_not_list() {
    let region = guarded().await;
    grant(&region, "app", &[Permission::Consume]).await;
    let mut client = region.connect().await;
    let watch = CommandWatchTopicList {
        request_id: 1,
        watcher_id: 9,
        namespace: "public/default".to_owned(),
        topics_pattern: "public/default/.*".to_owned(),
        topics_hash: None,
    };
    client.send(watch).await;
    assert!(matches!(client.body().await, Body::WatchTopicListSuccess(_)));
    let create = |name: &'static str| {
        let service = region.service.clone();
        async move { service.create_topic(&TopicName::parse(name).unwrap(), Default::default()).await.unwrap() }
    };
    create("seen").await;
    let Body::WatchTopicUpdate(seen) = within_a_second(&mut client).await else { panic!("it was not told") };
    assert_eq!(seen.new_topics, ["persistent://public/default/seen"]);
    grant(&region, "app", &[]).await;
    create("hidden").await;
    client.send(CommandPing {}).await;
    assert!(matches!(client.body().await, Body::Pong(_)), "nothing was told before");
    grant(&region, "app", &[Permission::Consume]).await;
    let Body::WatchTopicUpdate(missed) = within_a_second(&mut client).await else { panic!("it was not told") };
    assert_eq!(missed.new_topics, ["persistent://public/default/hidden"]);
}

#[tokio::test]
async fn a_producer_that_calls_itself_a_replicator_has_to_be_one() {
    let region = guarded().await;
    grant(&region, "app", &[Permission::Produce]).await;
    let mut client = region.connect().await;
    let link = |id| CommandProducer {
        topic: "a".to_owned(),
        producer_id: id,
        request_id: id,
        producer_name: Some("pulsar.repl.east-->standalone".to_owned()),
        ..Default::default()
    };
    client.send(link(1)).await;
    let Body::Error(error) = client.body().await else { panic!("it was let in") };
    assert_eq!(error.error(), ServerError::AuthorizationError);
    assert!(error.message.contains("replicatorRoles"), "{}", error.message);
    client.producer(2, "a").await;
}

#[tokio::test]
async fn who_may_not_look_does_not_learn_what_there_is() {
    let region = guarded().await;
    let mut client = region.connect().await;
    let no_tenant = "Tenant or namespace or topic does not exist: persistent://nobody/nowhere/a";
    for topic in ["public/default/a", "public/nowhere/a", "nobody/nowhere/a"] {
        let topic = format!("persistent://{topic}");
        client.send(CommandLookupTopic { topic: topic.clone(), request_id: 1, ..Default::default() }).await;
        let Body::LookupTopicResponse(answer) = client.body().await else { panic!("no answer") };
        let denied =
            format!("Client is not authorized to Lookup: role app is not authorized to look up on topic {topic}");
        assert_eq!((answer.error(), answer.message()), (ServerError::AuthorizationError, denied.as_str()));
        // As clients that mistype a tenant expect of their first request.
        let expected = match topic.contains("nobody") {
            true => (ServerError::TopicNotFound, no_tenant),
            false => (ServerError::AuthorizationError, denied.as_str()),
        };
        let request = CommandPartitionedTopicMetadata { topic, request_id: 2, ..Default::default() };
        client.send(request).await;
        let Body::PartitionMetadataResponse(answer) = client.body().await else { panic!("no answer") };
        assert_eq!((answer.error(), answer.message()), expected);
    }
}

#[tokio::test]
async fn an_administrator_that_is_one_no_more_is_closed_too() {
    let region = guarded().await;
    let tenant = |roles: &[&str]| TenantInfo {
        admin_roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        allowed_clusters: ["standalone".to_owned()].into(),
    };
    let put = |info: TenantInfo| {
        let registry = region.service.registry().clone();
        async move {
            let change = |stored: &mut TenantInfo| {
                *stored = info.clone();
                Ok::<(), RegistryError>(())
            };
            registry.update_tenant("public", change).await.unwrap();
        }
    };
    put(tenant(&["app"])).await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    put(tenant(&[])).await;
    assert!(matches!(within_a_second(&mut client).await, Body::CloseProducer(_)));
}

/// A region with the users `proxy` and `ann`, who have the same password, and `proxy` speaking for others.
async fn proxied(original_credentials: bool) -> (Region, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("passwords");
    let hash = "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/";
    std::fs::write(&file, format!("proxy:{hash}\nann:{hash}\n")).unwrap();
    let identity = IdentityConfig {
        providers: vec!["basic".to_owned()],
        basic_auth_conf: format!("file://{}", file.display()),
        ..IdentityConfig::default()
    };
    let door = DoorConfig {
        authorization: true,
        rules: AccessRules::default(),
        proxy_roles: ["proxy".to_owned()].into(),
        original_credentials,
        ..DoorConfig::default()
    };
    let identity = Some(Identity::new(&identity).unwrap());
    let (config, defaults) = (BrokerConfig::default(), BrokerDefaults::default());
    (Region::guarded(TestRegion::default(), config, defaults, identity, door).await, dir)
}

/// A proxy's CONNECT for a client: its role, and the credentials that it forwards.
async fn connect(
    region: &Region,
    principal: Option<&str>,
    method: Option<&str>,
    data: Option<&str>,
) -> Result<(), String> {
    let mut client = region.open().await;
    client
        .send(CommandConnect {
            client_version: "proxy".to_owned(),
            protocol_version: Some(21),
            auth_method_name: Some("basic".to_owned()),
            auth_data: Some(bytes::Bytes::from_static(b"proxy:myPassword")),
            original_principal: principal.map(str::to_owned),
            original_auth_method: method.map(str::to_owned),
            original_auth_data: data.map(Into::into),
            ..Default::default()
        })
        .await;
    match client.body().await {
        Body::Connected(_) => Ok(()),
        Body::Error(error) => {
            client.ended().await;
            Err(error.message)
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[tokio::test]
async fn credentials_behind_a_proxy_are_checked_when_they_are_forwarded() {
    let (region, _files) = proxied(false).await;
    let good = Some("ann:myPassword");
    assert_eq!(connect(&region, Some("ann"), Some("basic"), good).await, Ok(()));
    assert_eq!(connect(&region, Some("ann"), None, None).await, Ok(()), "the proxy vouches for it");
    let failed = |text: &str| Err(text.to_owned());
    let wrong = connect(&region, Some("ann"), Some("basic"), Some("ann:wrong")).await;
    assert_eq!(wrong, failed("Failed to authenticate"));
    let unknown = connect(&region, Some("ann"), Some("athenz"), Some("x")).await;
    assert_eq!(unknown, failed("Failed to authenticate"));
    let other = connect(&region, Some("bob"), Some("basic"), good).await;
    let text = "Failed to authenticate: the original principal is not the role of the original credentials";
    assert_eq!(other, failed(text));
}

#[tokio::test]
async fn forwarded_credentials_can_be_required() {
    let (region, _files) = proxied(true).await;
    assert_eq!(connect(&region, Some("ann"), Some("basic"), Some("ann:myPassword")).await, Ok(()));
    let refused = connect(&region, Some("ann"), None, None).await.unwrap_err();
    assert!(refused.contains("authenticateOriginalAuthData"), "{refused}");
}
