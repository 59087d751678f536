//! Two brokers of one region over one store: who serves what, and what happens when that changes.

use crate::client::Client;
use crate::end_to_end::name;
use meridian_broker::config::AdvertisedListener;
use meridian_broker::service::{RegistryNamespaces, broker_record};
use meridian_broker::{
    Access, BrokerConfig, BrokerParts, BrokerService, CheckIntervals, Create, Listener, StorageFactory,
};
use meridian_door::{Door, DoorConfig};
use meridian_managed_ledger::testing::TestRegion;
use meridian_ownership::{BundleId, LeaseTimes, Ownership, RegionConfig, RegionOwnership};
use meridian_policy::{BrokerDefaults, ClusterData};
use meridian_registry::Registry;
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::{CommandLookupTopic, CommandProducer, ServerError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Long enough that a machine that is busy with other tests loses no lease.
const TTL_MS: u64 = 4_000;

struct Node {
    service: Arc<BrokerService>,
    ownership: Arc<RegionOwnership>,
    address: SocketAddr,
    url: String,
    /// Takes connections until it is aborted.
    listens: AbortHandle,
}

impl Node {
    async fn start(storage: &TestRegion) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None, None).unwrap();
        let address = listener.local_address().unwrap();
        let url = format!("pulsar://{address}");
        let outside = AdvertisedListener {
            name: "outside".to_owned(),
            broker_url: Some(format!("pulsar://outside-{}:6650", address.port())),
            broker_url_tls: Some(format!("pulsar+ssl://outside-{}:6651", address.port())),
        };
        let inside =
            AdvertisedListener { name: "internal".to_owned(), broker_url: Some(url.clone()), broker_url_tls: None };
        let config = BrokerConfig {
            listeners: vec![inside, outside],
            web_url: Some(format!("http://{address}")),
            ..BrokerConfig::default()
        };
        let store = storage.metadata.clone();
        let registry = Registry::open(store.clone(), BrokerDefaults::default()).await.unwrap();
        registry.bootstrap(&ClusterData::default(), 4).await.unwrap();
        let factory = Arc::new(StorageFactory::new(storage.broker(), CheckIntervals::default()));
        let access = Access { identity: None, door: Arc::new(Door::new(DoorConfig::default(), registry.clone())) };
        let namespaces = Arc::new(RegistryNamespaces::new(registry.clone(), &config.cluster));
        let timing = RegionConfig { times: LeaseTimes::of(TTL_MS), ..RegionConfig::default() };
        let ownership = RegionOwnership::new(store.clone(), broker_record(&config), namespaces, timing);
        let parts = BrokerParts { config, store, registry, factory, access, linker: None };
        let service = BrokerService::with_ownership(parts, ownership.clone()).await.unwrap();
        service.start();
        let listens = tokio::spawn(listener.run(service.clone())).abort_handle();
        let node = Self { service, ownership, address, url, listens };
        node.until("the lease is in force", |node| node.ownership.in_force() && node.ownership.leader().is_some())
            .await;
        node
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn connect(&self) -> Client {
        let mut client = Client::over(TcpStream::connect(self.address).await.unwrap());
        client.connect().await;
        client
    }

    fn id(&self) -> String {
        self.ownership.me().id.clone()
    }

    fn bundle(&self, topic: &str) -> BundleId {
        self.ownership.bundle_of(&name(topic)).unwrap()
    }
}

/// Answer to a lookup: whether the client is to connect there, and where.
async fn lookup(client: &mut Client, topic: &str, listener: Option<&str>) -> (bool, String, Option<String>) {
    client
        .send(CommandLookupTopic {
            topic: topic.to_owned(),
            request_id: 7,
            authoritative: Some(false),
            advertised_listener_name: listener.map(str::to_owned),
            ..Default::default()
        })
        .await;
    match client.body().await {
        Body::LookupTopicResponse(answer) => {
            let kind = answer.response();
            assert_ne!(kind, LookupType::Failed, "{answer:?}");
            (kind == LookupType::Connect, answer.broker_service_url.unwrap_or_default(), answer.broker_service_url_tls)
        }
        other => panic!("not a lookup response: {other:?}"),
    }
}

async fn two(storage: &TestRegion) -> (Node, Node) {
    let (one, two) = (Node::start(storage).await, Node::start(storage).await);
    for node in [&one, &two] {
        node.until("both are known", |node| node.ownership.brokers().len() == 2).await;
    }
    (one, two)
}

/// Topics with the node that serves them and the other one.
async fn placed<'a>(one: &'a Node, two: &'a Node, count: usize) -> Vec<(String, &'a Node, &'a Node)> {
    let (mut first, mut second) = (one.connect().await, two.connect().await);
    let mut found = Vec::new();
    for index in 0..count {
        let topic = format!("persistent://public/default/t-{index}");
        let (connect, url, _) = lookup(&mut first, &topic, None).await;
        let (other_connect, other_url, _) = lookup(&mut second, &topic, None).await;
        assert_eq!(url, other_url, "both name the same owner");
        assert_ne!(connect, other_connect, "exactly one says that it is the owner");
        let (owner, other) = if url == one.url { (one, two) } else { (two, one) };
        assert_eq!(connect, url == one.url);
        found.push((topic, owner, other));
    }
    found
}

async fn publish(client: &mut Client, producer_id: u64, sequence_ids: std::ops::Range<u64>) {
    client.publish(producer_id, sequence_ids.clone()).await;
    for expected in sequence_ids {
        loop {
            match client.body().await {
                Body::SendReceipt(receipt) => break assert_eq!(receipt.sequence_id, expected),
                Body::ActiveConsumerChange(_) => {}
                other => panic!("not a receipt: {other:?}"),
            }
        }
    }
}

async fn entries(node: &Node, topic: &str) -> u64 {
    let handle = node.service.topic(&name(topic), Create::Never).await.unwrap();
    handle.stats().log.unwrap().entries
}

#[tokio::test(flavor = "multi_thread")]
async fn any_broker_names_the_one_owner() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 32).await;
    let at_one = placed.iter().filter(|(_, owner, _)| owner.url == one.url).count();
    assert!((1..32).contains(&at_one), "bundles are shared: {at_one} of 32");
    let (topic, owner, other) = &placed[0];
    // Somebody else's listener, by name; a name that it does not have.
    let mut client = other.connect().await;
    let (_, url, tls) = lookup(&mut client, topic, Some("outside")).await;
    assert_eq!(url, format!("pulsar://outside-{}:6650", owner.address.port()));
    assert_eq!(tls, Some(format!("pulsar+ssl://outside-{}:6651", owner.address.port())));
    // Only the owner serves it.
    client.send(CommandProducer { topic: topic.clone(), producer_id: 1, request_id: 9, ..Default::default() }).await;
    match client.body().await {
        Body::Error(error) => assert_eq!(error.error(), ServerError::ServiceNotReady, "{}", error.message),
        other => panic!("served by two: {other:?}"),
    }
    let mut client = owner.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 0..3).await;
    // Listings come from metadata, wherever the topic is open.
    let namespace = NamespaceName::parse("public/default").unwrap();
    let listed = other.service.list_topics(&namespace, meridian_broker::ListDomain::All).await.unwrap();
    assert_eq!(listed, [name(topic)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_bundle_goes_to_the_other_broker_and_clients_are_told_where() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 1).await;
    let (topic, owner, other) = &placed[0];
    let mut client = owner.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 0..10).await;
    client.subscribe(2, topic).await;
    let bundle = owner.bundle(topic);
    let epoch = |node: &Node| node.ownership.owned(&node.id()).into_iter().find(|one| one.0 == bundle).unwrap().1;
    let before = epoch(owner);
    owner.ownership.unload(&bundle, None).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 2 {
        match client.body().await {
            Body::CloseProducer(close) => told.push(close.assigned_broker_service_url),
            Body::CloseConsumer(close) => told.push(close.assigned_broker_service_url),
            Body::ActiveConsumerChange(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(told, [Some(other.url.clone()), Some(other.url.clone())]);
    // At once, without a lookup.
    let mut client = other.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 10..15).await;
    assert_eq!(entries(other, topic).await, 15);
    assert!(epoch(other) > before);
    assert_eq!(owner.service.topic_count(), 0);
    // And back, by name, from the broker that does not own it.
    owner.ownership.unload(&bundle, Some(&owner.id())).await.unwrap();
    owner.until("it is back", |node| node.ownership.serves(&name(topic))).await;
    other.until("it is closed there", |node| node.service.topic_count() == 0).await;
    assert_eq!(entries(owner, topic).await, 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_of_a_broker_that_has_gone_are_taken_and_its_late_writes_are_refused() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 8).await;
    let (topic, owner, other) = &placed[0];
    let mut zombie = owner.connect().await;
    zombie.producer(1, topic).await;
    // What no subscription holds would be trimmed by the next owner.
    zombie.subscribe(2, topic).await;
    publish(&mut zombie, 1, 0..5).await;
    // It renews no more and does not know it.
    owner.ownership.stop();
    other.until("it has gone", |node| node.ownership.brokers().len() == 1).await;
    other
        .until("everything was taken", |node| placed.iter().all(|(topic, ..)| node.ownership.serves(&name(topic))))
        .await;
    let mut client = other.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 5..8).await;
    // What the old one is sent now is confirmed by nobody.
    zombie.publish(1, 100..101).await;
    loop {
        match zombie.next().await.map(|frame| frame.command.body.unwrap()) {
            None | Some(Body::CloseProducer(_) | Body::SendError(_)) => break,
            Some(Body::SendReceipt(receipt)) => panic!("confirmed by two: {receipt:?}"),
            Some(_) => {}
        }
    }
    assert_eq!(entries(other, topic).await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_broker_that_has_died_waits_for_the_next_owner() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 1).await;
    let (topic, owner, other) = &placed[0];
    owner.listens.abort();
    while TcpStream::connect(owner.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    owner.ownership.stop();
    let mut client = other.connect().await;
    let (begun, mut sent_there) = (Instant::now(), 0);
    loop {
        let (connect, url, _) = lookup(&mut client, topic, None).await;
        if connect {
            break assert_eq!(url, other.url);
        }
        // The first one asks a broker of which nothing is known yet.
        sent_there += 1;
        assert!(sent_there <= 3, "sent {sent_there} times to a broker that is not there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() < Duration::from_millis(2 * TTL_MS), "{:?}", begun.elapsed());
    client.producer(1, topic).await;
    publish(&mut client, 1, 0..3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_are_cut_and_joined_under_open_topics() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 1).await;
    let (topic, owner, other) = &placed[0];
    let mut client = owner.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 0..5).await;
    let bundle = owner.bundle(topic);
    let middle = bundle.range.start + (bundle.range.end - bundle.range.start) / 2;
    let parts = other.ownership.split(&bundle, &[middle]).await.unwrap();
    assert_eq!(parts.len(), 2);
    owner.until("the cut is seen", |node| node.bundle(topic) != bundle && node.ownership.serves(&name(topic))).await;
    publish(&mut client, 1, 5..10).await;
    assert_eq!(owner.ownership.bundles(&bundle.namespace).unwrap().count(), 5);
    assert!(other.ownership.split(&bundle, &[middle]).await.is_err(), "it is no bundle any more");
    let whole = owner.ownership.merge(&parts[0]).await.unwrap();
    assert_eq!(whole, bundle);
    publish(&mut client, 1, 10..15).await;
    assert_eq!(entries(owner, topic).await, 15);
    assert_eq!(owner.service.topic_count(), 1, "it was never closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_leaves_nothing_behind() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 8).await;
    let (topic, owner, other) = &placed[0];
    let mut client = owner.connect().await;
    client.producer(1, topic).await;
    client.subscribe(2, topic).await;
    publish(&mut client, 1, 0..5).await;
    owner.service.shut_down().await.unwrap();
    let told = loop {
        match client.body().await {
            Body::CloseProducer(close) => break close.assigned_broker_service_url,
            Body::ActiveConsumerChange(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    };
    assert_eq!(told, Some(other.url.clone()));
    let ended = Instant::now();
    let serves_all = |node: &Node| placed.iter().all(|(topic, ..)| node.ownership.serves(&name(topic)));
    other.until("all is its", serves_all).await;
    assert!(ended.elapsed() < Duration::from_millis(TTL_MS), "no lease had to run out");
    other.until("it has gone", |node| node.ownership.brokers().len() == 1).await;
    let mut client = other.connect().await;
    client.producer(1, topic).await;
    publish(&mut client, 1, 5..6).await;
    assert_eq!(entries(other, topic).await, 6);
}

/// Not owned, not opened: neither by a session nor by the broker itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_not_opened_by_who_is_not_its_owner() {
    let storage = TestRegion::default();
    let (one, two) = two(&storage).await;
    let placed = placed(&one, &two, 1).await;
    let (topic, owner, other) = &placed[0];
    let topic: TopicName = name(topic);
    owner.service.topic(&topic, Create::Always).await.unwrap();
    let refused = other.service.topic(&topic, Create::Always).await.err().unwrap();
    assert!(matches!(refused, meridian_broker::BrokerError::Elsewhere { .. }), "{refused}");
    assert!(other.ownership.guard(&topic).is_err());
    assert!(owner.ownership.guard(&topic).unwrap().is_some());
}
