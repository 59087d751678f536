//! Real topics over storage in memory, through loopback sockets.

use crate::client::{Client, entry};
use meridian_broker::failover::TopicPositionsHere;
use meridian_broker::quotas::Forgotten;
use meridian_broker::service::ListDomain;
use meridian_broker::{
    Access, BrokerConfig, BrokerParts, BrokerService, CheckIntervals, Create, Listener, StorageFactory,
};
use meridian_door::{Door, DoorConfig};
use meridian_identity::Identity;
use meridian_link::PositionsHandler;
use meridian_managed_ledger::testing::TestRegion;
use meridian_policy::quota::{Layer, Limit, Place, Quota};
use meridian_policy::{AutoTopicCreation, BrokerDefaults, ClusterData, Policies, TopicPolicies};
use meridian_registry::{Registry, RegistryError};
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::payload;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_subscribe::{InitialPosition, SubType};
use meridian_wire::proto::{
    CommandAck, CommandFlow, CommandPartitionedTopicMetadata, CommandProducer, CommandSubscribe, MessageIdData,
    ServerError,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

pub struct Region {
    pub storage: TestRegion,
    pub service: Arc<BrokerService>,
    address: SocketAddr,
}

impl Region {
    pub async fn start() -> Self {
        Self::start_on(TestRegion::default(), BrokerConfig::default(), BrokerDefaults::default()).await
    }

    pub async fn start_on(storage: TestRegion, config: BrokerConfig, defaults: BrokerDefaults) -> Self {
        Self::guarded(storage, config, defaults, None, DoorConfig::default()).await
    }

    pub async fn guarded(
        storage: TestRegion,
        config: BrokerConfig,
        defaults: BrokerDefaults,
        identity: Option<Identity>,
        door: DoorConfig,
    ) -> Self {
        let store = storage.metadata.clone();
        let registry = Registry::open(store.clone(), defaults).await.unwrap();
        registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
        let factory = Arc::new(StorageFactory::new(storage.broker(), CheckIntervals::default()));
        let door = Arc::new(Door::new(door, registry.clone()));
        let access = Access { identity: identity.map(Arc::new), door };
        let parts = BrokerParts { config, store, registry, factory, access, linker: None };
        let service = BrokerService::new(parts).await.unwrap();
        service.start();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None, None).unwrap();
        let address = listener.local_address().unwrap();
        tokio::spawn(listener.run(service.clone()));
        Self { storage, service, address }
    }

    pub async fn open(&self) -> Client {
        Client::over(TcpStream::connect(self.address).await.unwrap())
    }

    pub async fn connect(&self) -> Client {
        let mut client = self.open().await;
        client.connect().await;
        client
    }
}

pub fn name(text: &str) -> TopicName {
    TopicName::parse(text).unwrap()
}

pub async fn subscribe_earliest(client: &mut Client, consumer_id: u64, topic: &str, sub_type: SubType) {
    client
        .send(CommandSubscribe {
            topic: topic.to_owned(),
            subscription: "s".to_owned(),
            sub_type: sub_type as i32,
            consumer_id,
            request_id: 1,
            initial_position: Some(InitialPosition::Earliest as i32),
            ..Default::default()
        })
        .await;
    assert!(matches!(client.body().await, Body::Success(_)));
}

pub async fn receive(client: &mut Client) -> (MessageIdData, u64) {
    loop {
        let frame = client.next().await.expect("the connection has ended");
        if let Some(Body::Message(message)) = frame.command.body {
            let entry = frame.payload.unwrap();
            assert_eq!(payload::verify_checksum(&entry), Ok(true));
            return (message.message_id, payload::summarize(&entry).unwrap().sequence_id);
        }
    }
}

async fn receipts(client: &mut Client, count: usize) {
    for _ in 0..count {
        assert!(matches!(client.body().await, Body::SendReceipt(_)));
    }
}

#[tokio::test]
async fn what_is_acked_does_not_come_back_and_the_rest_does() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.publish(1, 0..100).await;
    receipts(&mut client, 100).await;
    let mut consumer = region.connect().await;
    subscribe_earliest(&mut consumer, 1, "a", SubType::Shared).await;
    consumer.send(CommandFlow { consumer_id: 1, message_permits: 1000 }).await;
    for expected in 0..100 {
        let (id, sequence_id) = receive(&mut consumer).await;
        assert_eq!(sequence_id, expected);
        if sequence_id % 2 == 0 {
            let ack = CommandAck {
                consumer_id: 1,
                message_id: vec![id],
                request_id: Some(sequence_id),
                ..Default::default()
            };
            consumer.send(ack).await;
        }
    }
    for _ in 0..50 {
        let Body::AckResponse(response) = consumer.body().await else { panic!("no ack response") };
        assert_eq!(response.error, None);
    }
    // The broker dies without a word; another one opens the same storage.
    let again = Region::start_on(region.storage.clone(), BrokerConfig::default(), BrokerDefaults::default()).await;
    let mut consumer = again.connect().await;
    subscribe_earliest(&mut consumer, 7, "a", SubType::Exclusive).await;
    consumer.send(CommandFlow { consumer_id: 7, message_permits: 1000 }).await;
    for expected in (1..100).step_by(2) {
        assert_eq!(receive(&mut consumer).await.1, expected);
    }
    // The first broker's topic has lost its log; its producer is told, and the topic can be used there again.
    client.publish(1, [100]).await;
    loop {
        match client.body().await {
            Body::CloseProducer(_) => break,
            Body::SendError(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            client
                .send(CommandProducer { topic: "a".to_owned(), producer_id: 2, request_id: 5, ..Default::default() })
                .await;
            match client.body().await {
                Body::ProducerSuccess(_) => return,
                Body::Error(error) => assert_eq!(error.error(), ServerError::ServiceNotReady),
                other => panic!("unexpected {other:?}"),
            }
        }
    })
    .await
    .expect("the topic was not loaded anew");
}

#[tokio::test]
async fn an_unload_closes_clients_and_loses_nothing() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    subscribe_earliest(&mut client, 1, "a", SubType::Failover).await;
    client.publish(1, [1, 2]).await;
    let mut seen = 0;
    while seen < 2 {
        match client.body().await {
            Body::SendReceipt(_) => seen += 1,
            Body::ActiveConsumerChange(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    region.service.unload_topic(&name("a")).await.unwrap();
    let mut closed = Vec::new();
    while closed.len() < 2 {
        match client.body().await {
            Body::CloseProducer(_) => closed.push("producer"),
            Body::CloseConsumer(_) => closed.push("consumer"),
            Body::ActiveConsumerChange(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    closed.sort_unstable();
    assert_eq!(closed, ["consumer", "producer"]);
    subscribe_earliest(&mut client, 2, "a", SubType::Exclusive).await;
    client.send(CommandFlow { consumer_id: 2, message_permits: 10 }).await;
    assert_eq!(receive(&mut client).await.1, 1);
    assert_eq!(receive(&mut client).await.1, 2);
}

async fn partitions(client: &mut Client, topic: &str, create: bool) -> Result<u32, ServerError> {
    client
        .send(CommandPartitionedTopicMetadata {
            topic: topic.to_owned(),
            request_id: 1,
            metadata_auto_creation_enabled: Some(create),
            ..Default::default()
        })
        .await;
    loop {
        match client.body().await {
            Body::PartitionMetadataResponse(response) => return response.partitions.ok_or(response.error()),
            Body::CloseConsumer(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

async fn produce_error(client: &mut Client, topic: &str) -> Option<ServerError> {
    produce_error_with(client, topic, 99).await
}

async fn produce_error_with(client: &mut Client, topic: &str, producer_id: u64) -> Option<ServerError> {
    client.send(CommandProducer { topic: topic.to_owned(), producer_id, request_id: 9, ..Default::default() }).await;
    match client.body().await {
        Body::ProducerSuccess(_) => None,
        Body::Error(error) => Some(error.error()),
        other => panic!("unexpected {other:?}"),
    }
}

/// Creates producers until they are refused, for a second.
async fn refused_within_a_second(client: &mut Client, topic: &str) -> Option<ServerError> {
    let refused = async {
        for id in 100.. {
            if let Some(error) = produce_error_with(client, topic, id).await {
                return Some(error);
            }
        }
        None
    };
    tokio::time::timeout(Duration::from_secs(1), refused).await.ok().flatten()
}

#[tokio::test]
async fn partitioned_topics_are_created_by_use_grown_and_deleted() {
    let auto_topic_creation = AutoTopicCreation { allowed: true, partitions: Some(3) };
    let defaults = BrokerDefaults { auto_topic_creation, ..Default::default() };
    let region = Region::start_on(TestRegion::default(), BrokerConfig::default(), defaults).await;
    let mut client = region.connect().await;
    assert_eq!(partitions(&mut client, "p", false).await, Err(ServerError::TopicNotFound));
    assert_eq!(partitions(&mut client, "p", true).await, Ok(3));
    assert_eq!(partitions(&mut client, "p-partition-1", true).await, Ok(0));
    assert_eq!(partitions(&mut client, "p-DLQ", true).await, Ok(0));
    assert_eq!(partitions(&mut client, "no/where/p", true).await, Err(ServerError::TopicNotFound));
    assert_eq!(produce_error(&mut client, "p").await, Some(ServerError::NotAllowedError));
    assert_eq!(produce_error(&mut client, "p-partition-3").await, Some(ServerError::NotAllowedError));
    assert_eq!(produce_error(&mut client, "q-partition-0").await, Some(ServerError::NotAllowedError));
    assert_eq!(produce_error(&mut client, "no/where/p").await, Some(ServerError::TopicNotFound));
    subscribe_earliest(&mut client, 1, "p-partition-0", SubType::Shared).await;
    region.service.grow_partitioned_topic(&name("p"), 4).await.unwrap();
    let grown = region.service.topic(&name("p-partition-3"), Create::Never).await.unwrap();
    assert_eq!(grown.stats().subscriptions[0].name, "s");
    let namespace = NamespaceName::parse("public/default").unwrap();
    let listed = region.service.list_topics(&namespace, ListDomain::All).await.unwrap();
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert!(region.service.delete_partitioned_topic(&name("p"), false).await.is_err(), "it has a consumer");
    assert_eq!(region.service.list_topics(&namespace, ListDomain::All).await.unwrap().len(), 4);
    region.service.delete_partitioned_topic(&name("p"), true).await.unwrap();
    assert!(region.service.list_topics(&namespace, ListDomain::All).await.unwrap().is_empty());
    assert_eq!(partitions(&mut client, "p", false).await, Err(ServerError::TopicNotFound));
}

#[tokio::test]
async fn creation_by_use_can_be_forbidden() {
    let auto_topic_creation = AutoTopicCreation { allowed: false, partitions: None };
    let defaults = BrokerDefaults { auto_topic_creation, max_topics: 1, ..Default::default() };
    let region = Region::start_on(TestRegion::default(), BrokerConfig::default(), defaults).await;
    let mut client = region.connect().await;
    assert_eq!(partitions(&mut client, "a", true).await, Err(ServerError::TopicNotFound));
    assert_eq!(produce_error(&mut client, "a").await, Some(ServerError::TopicNotFound));
    region.service.create_topic(&name("a"), BTreeMap::from([("k".to_owned(), "v".to_owned())])).await.unwrap();
    assert_eq!(region.service.topic_properties(&name("a")).await.unwrap()["k"], "v");
    assert_eq!(produce_error(&mut client, "a").await, None);
    assert!(region.service.create_topic(&name("a"), BTreeMap::new()).await.is_err(), "it exists");
    assert!(region.service.create_topic(&name("b"), BTreeMap::new()).await.is_err(), "the namespace is full");
}

#[tokio::test]
async fn policies_are_in_force_within_a_second() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    let one = |policies: &mut TopicPolicies| {
        policies.max_producers = Some(1);
        Ok::<(), RegistryError>(())
    };
    region.service.registry().update_topic_policies(&name("a"), one).await.unwrap();
    assert_eq!(refused_within_a_second(&mut client, "a").await, Some(ServerError::ProducerBusy));
    let encrypted = |policies: &mut Policies| {
        policies.encryption_required = true;
        Ok::<(), RegistryError>(())
    };
    let namespace = NamespaceName::parse("public/default").unwrap();
    region.service.registry().update_namespace(&namespace, encrypted).await.unwrap();
    assert_eq!(refused_within_a_second(&mut client, "b").await, Some(ServerError::MetadataError));
}

#[tokio::test]
async fn connections_are_limited_with_an_answer() {
    let mut config = BrokerConfig::default();
    config.session.max_connections = 1;
    let region = Region::start_on(TestRegion::default(), config, BrokerDefaults::default()).await;
    let first = region.connect().await;
    let mut second = region.open().await;
    let Body::Error(error) = second.body().await else { panic!("no error") };
    assert_eq!((error.request_id, error.error()), (u64::MAX, ServerError::NotAllowedError));
    second.ended().await;
    drop(first);
    tokio::time::timeout(Duration::from_secs(10), async {
        while region.service.connections().open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("a closed connection is still counted");
    region.connect().await;
}

#[tokio::test]
async fn an_ending_broker_closes_topics_then_connections() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    client.publish(1, 0..10).await;
    receipts(&mut client, 10).await;
    region.service.shut_down().await.unwrap();
    assert!(matches!(client.body().await, Body::CloseProducer(_)));
    client.ended().await;
    assert!(region.service.topic(&name("b"), Create::IfAllowed).await.is_err());
    assert!(region.service.health().await.is_err());
}

#[tokio::test]
async fn namespaces_are_deleted_with_everything_in_them() {
    let region = Region::start().await;
    let namespace = NamespaceName::parse("public/gone").unwrap();
    region.service.registry().create_namespace(&namespace, Policies::default()).await.unwrap();
    let mut client = region.connect().await;
    client.producer(1, "public/gone/a").await;
    region.service.create_partitioned_topic(&name("public/gone/p"), 2, BTreeMap::new()).await.unwrap();
    assert!(region.service.delete_namespace(&namespace, false).await.is_err(), "it holds topics");
    region.service.delete_namespace(&namespace, true).await.unwrap();
    assert!(matches!(client.body().await, Body::CloseProducer(_)));
    assert_eq!(produce_error(&mut client, "public/gone/a").await, Some(ServerError::TopicNotFound));
    assert!(region.service.delete_namespace(&namespace, true).await.is_err(), "it is gone");
}

#[tokio::test]
async fn a_region_is_told_positions_of_what_it_shares_and_of_nothing_else() {
    let region = Region::start().await;
    let registry = region.service.registry();
    registry.create_cluster("east", &ClusterData::default()).await.unwrap();
    let policies = |clusters: &[&str]| Policies {
        replication_clusters: clusters.iter().map(|one| (*one).to_owned()).collect(),
        ..Policies::default()
    };
    let namespace = |text: &str| NamespaceName::parse(text).unwrap();
    registry.create_namespace(&namespace("public/both"), policies(&["standalone", "east"])).await.unwrap();
    registry.create_namespace(&namespace("public/ours"), policies(&["standalone"])).await.unwrap();
    for topic in ["public/both/t", "public/ours/t", "public/ours/shared"] {
        region.service.create_topic(&name(topic), BTreeMap::new()).await.unwrap();
    }
    let own = |stored: &mut TopicPolicies| {
        stored.replication_clusters = Some(policies(&["standalone", "east"]).replication_clusters);
        Ok::<_, RegistryError>(())
    };
    registry.update_topic_policies(&name("public/ours/shared"), own).await.unwrap();
    let here = TopicPositionsHere(Arc::downgrade(&region.service));
    let asked = async |from: &str, topics: &[&str]| {
        let answers = here.positions(from, topics.iter().map(|one| name(one).to_string()).collect()).await;
        answers.into_iter().map(|one| one.error.unwrap_or_default()).collect::<Vec<_>>()
    };
    let all = ["public/both/t", "public/ours/shared", "public/ours/t", "public/ours/absent", "public/absent/t"];
    let refused = |topic: &str, from: &str| format!("{} is not shared with region {from}", name(topic));
    let mut told = asked("east", &all).await;
    assert_eq!(told.split_off(2), all[2..].iter().map(|one| refused(one, "east")).collect::<Vec<_>>());
    assert_eq!(told, ["", ""]);
    assert_eq!(asked("north", &all).await, all.map(|one| refused(one, "north")));
    // A region that leaves the namespace may still ask what of its own arrived.
    let leave = |stored: &mut Policies| {
        stored.replication_clusters = policies(&["standalone"]).replication_clusters;
        Ok::<_, RegistryError>(())
    };
    registry.update_namespace(&namespace("public/both"), leave).await.unwrap();
    assert_eq!(asked("east", &all[..1]).await, [""]);
}

#[tokio::test]
async fn an_operators_limits_outlive_what_is_deleted_and_a_tenants_do_not() {
    let region = Region::start().await;
    let namespace = NamespaceName::parse("public/limited").unwrap();
    let quota = |limit, value| Quota([(limit, value)].into());
    let (whole, topic, other) = (
        Place::Namespace(namespace.clone()),
        Place::Topic(name("public/limited/t")),
        Place::Topic(name("public/limited2/t")),
    );
    let book = region.service.quotas().book();
    for place in [&whole, &topic, &other] {
        book.set(place, Layer::Operator, &quota(Limit::Producers, 1)).await.unwrap();
        book.set(place, Layer::Tenant, &quota(Limit::Consumers, 2)).await.unwrap();
    }
    let layers = |place: &Place| book.get(place).map(|set| (set.operator.0.len(), set.tenant.0.len()));
    region.service.registry().create_namespace(&namespace, Policies::default()).await.unwrap();
    region.service.create_topic(&name("public/limited/t"), BTreeMap::new()).await.unwrap();
    region.service.delete_topic(&name("public/limited/t"), false).await.unwrap();
    assert_eq!([layers(&whole), layers(&topic)], [Some((1, 1)), Some((1, 0))]);
    region.service.delete_namespace(&namespace, false).await.unwrap();
    assert_eq!([layers(&whole), layers(&topic)], [Some((1, 0)); 2]);
    // They bind the next one of that name, until an operator takes them away with it.
    region.service.registry().create_namespace(&namespace, Policies::default()).await.unwrap();
    let mut client = region.connect().await;
    client.producer(1, "public/limited/t").await;
    let refused = produce_error(&mut client, "public/limited/t").await;
    assert_eq!(refused, Some(ServerError::NotAllowedError));
    region.service.forget_quotas(&whole, Forgotten::All).await.unwrap();
    assert_eq!([layers(&whole), layers(&topic), layers(&other)], [None, None, Some((1, 1))]);
}

#[tokio::test]
async fn unused_topics_go_when_their_policy_says_so() {
    let config = BrokerConfig { inactive_topic_check_s: 1, ..Default::default() };
    let mut defaults = BrokerDefaults::default();
    defaults.inactive_topics.max_inactive_duration_seconds = 1;
    let region = Region::start_on(TestRegion::default(), config, defaults).await;
    let mut events = region.service.events();
    let mut client = region.connect().await;
    client.producer(1, "unused").await;
    client.producer(2, "used").await;
    subscribe_earliest(&mut client, 1, "used", SubType::Shared).await;
    drop(client);
    let deleted = meridian_broker::TopicEvent::Deleted(name("unused"));
    tokio::time::timeout(Duration::from_secs(15), async { while events.recv().await.unwrap() != deleted {} })
        .await
        .expect("the unused topic is still there");
    assert!(!region.service.topic_exists(&name("unused")).await.unwrap());
    assert!(region.service.topic_exists(&name("used")).await.unwrap());
}

#[tokio::test]
async fn figures_have_the_names_that_dashboards_know() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    subscribe_earliest(&mut client, 1, "a", SubType::Shared).await;
    client.publish(1, 0..3).await;
    receipts(&mut client, 3).await;
    let text = region.service.metrics_text();
    let topic = r#"cluster="standalone",namespace="public/default",topic="persistent://public/default/a""#;
    for line in [
        format!("pulsar_in_messages_total{{{topic}}} 3"),
        format!("pulsar_producers_count{{{topic}}} 1"),
        format!("pulsar_subscription_back_log{{{topic},subscription=\"s\"}} 3"),
        "pulsar_topics_count{cluster=\"standalone\",namespace=\"public/default\"} 1".to_owned(),
        "pulsar_active_connections{cluster=\"standalone\"} 1".to_owned(),
        "pulsar_connection_created_total_count 1".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_large_entry_goes_through_whole() {
    let region = Region::start().await;
    let mut client = region.connect().await;
    client.producer(1, "a").await;
    subscribe_earliest(&mut client, 1, "a", SubType::Exclusive).await;
    client.send(CommandFlow { consumer_id: 1, message_permits: 10 }).await;
    let large = entry(5, &vec![42; 5_000_000]);
    let mut bytes = bytes::BytesMut::new();
    let send = meridian_wire::proto::CommandSend { producer_id: 1, sequence_id: 5, ..Default::default() };
    meridian_wire::encode::encode_with_payload(&send.into(), large.len(), &mut bytes);
    bytes.extend_from_slice(&large);
    client.raw(&bytes).await;
    assert_eq!(receive(&mut client).await.1, 5);
}
