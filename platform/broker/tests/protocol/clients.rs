//! Connecting, garbage, lookups, listings, schemas.

use crate::client::{Broker, Client};
use meridian_broker::BrokerConfig;
use meridian_broker::config::SessionLimits;
use meridian_broker::service::TopicEvent;
use meridian_types::TopicName;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::{
    CommandConnect, CommandEndTxn, CommandGetSchema, CommandGetTopicsOfNamespace, CommandLookupTopic, CommandPing,
    CommandProducer, CommandWatchTopicList, Schema, ServerError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn quick() -> BrokerConfig {
    let session = SessionLimits { keep_alive_interval_s: 1, liveness_timeout_ms: 300, ..Default::default() };
    BrokerConfig { session, ..Default::default() }
}

#[tokio::test]
async fn connect_says_what_is_served() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let connected = broker.open(4096).connect().await;
    assert_eq!(connected.protocol_version, Some(21));
    assert_eq!(connected.max_message_size, Some(5 * 1024 * 1024));
    assert!(connected.server_version.starts_with("Pulsar Server"));
    let flags = connected.feature_flags.unwrap();
    assert!(flags.supports_topic_watchers());
    assert!(connected.server_version.contains("Meridian/"), "other regions know it by this");
    assert!(flags.supports_repl_dedup_by_lid_and_eid() && !flags.supports_scalable_topics());
}

#[tokio::test]
async fn nothing_but_connect_is_legal_at_first() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.open(4096);
    client.send(CommandPing {}).await;
    client.ended().await;
    let mut client = broker.connect().await;
    client.send(CommandConnect { client_version: "again".to_owned(), ..Default::default() }).await;
    client.ended().await;
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let oversized = (16u32 << 20).to_be_bytes();
    let unknown_command = [0, 0, 0, 7, 0, 0, 0, 3, 0x08, 0xe7, 0x07];
    let answer_from_a_client = [0, 0, 0, 9, 0, 0, 0, 5, 0x08, 3, 0x1a, 1, 0];
    let bad: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &oversized, &unknown_command, &answer_from_a_client];
    for bytes in bad {
        let mut client = broker.open(4096);
        client.raw(bytes).await;
        client.ended().await;
        let mut client = broker.connect().await;
        client.raw(bytes).await;
        client.ended().await;
    }
    // The others live on.
    broker.connect().await;
}

#[tokio::test]
async fn a_login_has_a_deadline() {
    let broker = Broker::start(quick()).await;
    let started = Instant::now();
    broker.open(4096).ended().await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_silent_client_is_asked_and_given_up() {
    let broker = Broker::start(quick()).await;
    let mut client = broker.connect().await;
    assert!(matches!(client.next().await.unwrap().command.body, Some(Body::Ping(_))));
    client.ended().await;
}

#[tokio::test]
async fn a_client_that_answers_stays() {
    let broker = Broker::start(quick()).await;
    let mut client = broker.connect().await;
    for _ in 0..3 {
        assert!(matches!(client.next().await.unwrap().command.body, Some(Body::Ping(_))));
        client.send(meridian_wire::proto::CommandPong {}).await;
    }
}

async fn lookup(
    client: &mut Client,
    topic: &str,
    listener: Option<&str>,
) -> meridian_wire::proto::CommandLookupTopicResponse {
    let advertised_listener_name = listener.map(str::to_owned);
    let request =
        CommandLookupTopic { topic: topic.to_owned(), request_id: 7, advertised_listener_name, ..Default::default() };
    client.send(request).await;
    match client.body().await {
        Body::LookupTopicResponse(response) => response,
        other => panic!("not a LOOKUP_RESPONSE: {other:?}"),
    }
}

#[tokio::test]
async fn lookups_answer_or_say_why_not() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    let found = lookup(&mut client, "persistent://public/default/a", None).await;
    assert_eq!(found.response(), LookupType::Connect);
    assert!(found.authoritative());
    assert_eq!(found.broker_service_url(), "pulsar://localhost:6650");
    let unknown = lookup(&mut client, "a", Some("elsewhere")).await;
    assert_eq!(unknown.error(), ServerError::ServiceNotReady);
    assert_eq!(unknown.message(), "the broker do not have elsewhere listener");
    let bad = lookup(&mut client, "persistent://a", None).await;
    assert_eq!(bad.error(), ServerError::InvalidTopicName);
}

#[tokio::test]
async fn transactions_are_refused_by_name() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client.send(CommandEndTxn { request_id: 3, ..Default::default() }).await;
    let Body::Error(error) = client.body().await else { panic!("not an ERROR") };
    assert_eq!((error.request_id, error.error()), (3, ServerError::NotAllowedError));
    assert_eq!(error.message, "Transactions are not enabled.");
}

#[tokio::test]
async fn topics_are_listed_filtered_and_hashed() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    for (id, topic) in ["foo-1", "foo-2", "bar", "non-persistent://public/default/foo-3"].iter().enumerate() {
        client.producer(id as u64, topic).await;
    }
    let mut request = CommandGetTopicsOfNamespace {
        request_id: 1,
        namespace: "public/default".to_owned(),
        topics_pattern: Some("persistent://public/default/foo.*".to_owned()),
        ..Default::default()
    };
    client.send(request.clone()).await;
    let Body::GetTopicsOfNamespaceResponse(found) = client.body().await else { panic!("no topics") };
    assert_eq!(found.topics, ["persistent://public/default/foo-1", "persistent://public/default/foo-2"]);
    assert!(found.filtered() && found.changed());
    request.topics_hash = found.topics_hash;
    client.send(request.clone()).await;
    let Body::GetTopicsOfNamespaceResponse(same) = client.body().await else { panic!("no topics") };
    assert!(same.topics.is_empty() && !same.changed());
    request.topics_pattern = Some("a".repeat(51));
    client.send(request.clone()).await;
    let Body::GetTopicsOfNamespaceResponse(all) = client.body().await else { panic!("no topics") };
    assert_eq!((all.topics.len(), all.filtered()), (3, false));
    request.namespace = "no/where".to_owned();
    client.send(request).await;
    let Body::GetTopicsOfNamespaceResponse(none) = client.body().await else { panic!("no topics") };
    assert!(none.topics.is_empty());
}

#[tokio::test]
async fn watchers_hear_of_topics_that_come_and_go() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    client
        .send(CommandWatchTopicList {
            request_id: 1,
            watcher_id: 9,
            namespace: "public/default".to_owned(),
            topics_pattern: "public/default/w-.*".to_owned(),
            topics_hash: None,
        })
        .await;
    let Body::WatchTopicListSuccess(success) = client.body().await else { panic!("no success") };
    assert!(success.topic.is_empty());
    let mut other = broker.connect().await;
    other.producer(1, "x-1").await;
    other.producer(2, "w-1").await;
    let Body::WatchTopicUpdate(update) = client.body().await else { panic!("no update") };
    assert_eq!(update.new_topics, ["persistent://public/default/w-1"]);
    assert!(update.deleted_topics.is_empty());
    let name = TopicName::parse("w-1").unwrap();
    let mut events = broker.service.events();
    assert!(broker.service.delete_topic(&name, false).await.is_err(), "it has a producer");
    broker.service.delete_topic(&name, true).await.unwrap();
    assert_eq!(events.recv().await.unwrap(), TopicEvent::Deleted(name));
    let Body::WatchTopicUpdate(update) = client.body().await else { panic!("no update") };
    assert_eq!(update.deleted_topics, ["persistent://public/default/w-1"]);
    assert_eq!(update.topics_hash, "00000000");
}

fn schema(kind: i32, data: &'static str) -> Schema {
    Schema { name: "s".to_owned(), schema_data: data.into(), r#type: kind, properties: Vec::new() }
}

#[tokio::test]
async fn schemas_get_versions_and_are_compared() {
    const ONE: &str = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}"#;
    const OTHER: &str = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}"#;
    let broker = Broker::start(BrokerConfig::default()).await;
    let mut client = broker.connect().await;
    for (id, schema, expected) in [
        (1, schema(4, ONE), Ok(0u64)),
        (2, schema(4, ONE), Ok(0)),
        (3, schema(4, OTHER), Err(ServerError::IncompatibleSchema)),
        (4, schema(1, ""), Err(ServerError::IncompatibleSchema)),
        (5, schema(4, "{"), Err(ServerError::IncompatibleSchema)),
    ] {
        let topic = "with-schema".to_owned();
        client
            .send(CommandProducer {
                topic,
                producer_id: id,
                request_id: id,
                schema: Some(schema),
                ..Default::default()
            })
            .await;
        match (client.body().await, expected) {
            (Body::ProducerSuccess(success), Ok(version)) => {
                assert_eq!(&success.schema_version.unwrap()[..], version.to_be_bytes());
            }
            (Body::Error(error), Err(expected)) => assert_eq!(error.error(), expected),
            (body, expected) => panic!("{body:?} instead of {expected:?}"),
        }
    }
    client.send(CommandGetSchema { request_id: 1, topic: "with-schema".to_owned(), schema_version: None }).await;
    let Body::GetSchemaResponse(found) = client.body().await else { panic!("no schema") };
    assert_eq!(&found.schema.unwrap().schema_data[..], ONE.as_bytes());
    client.send(CommandGetSchema { request_id: 1, topic: "without".to_owned(), schema_version: None }).await;
    let Body::GetSchemaResponse(none) = client.body().await else { panic!("no answer") };
    assert_eq!(none.error_code(), ServerError::TopicNotFound);
}

#[tokio::test]
async fn a_topic_is_loaded_once_for_all_who_ask() {
    let broker = Broker::start(BrokerConfig::default()).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    *broker.factory.slow.lock().unwrap() = Some(gate.clone());
    let mut clients = Vec::new();
    for id in 0..5 {
        let mut client = broker.connect().await;
        let topic = "shared".to_owned();
        client.send(CommandProducer { topic, producer_id: id, request_id: 100, ..Default::default() }).await;
        clients.push(client);
    }
    gate.add_permits(10);
    for mut client in clients {
        assert!(matches!(client.body().await, Body::ProducerSuccess(_)));
    }
    assert_eq!(broker.factory.opened(), 1);
    let name = TopicName::parse("shared").unwrap();
    broker.service.unload_topic(&name).await.unwrap();
    assert!(broker.service.loaded_topic(&name).is_none());
}
