//! Lookup and the other questions.

use crate::server::{Server, Session, connected, topic, within};
use bytes::Bytes;
use meridian_client::pool::MAX_REDIRECTS;
use meridian_client::{ClientError, Endpoint};
use meridian_types::NamespaceName;
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_get_topics_of_namespace::Mode;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::{
    CommandConnected, CommandGetOrCreateSchemaResponse, CommandGetSchemaResponse, CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic, CommandLookupTopicResponse, CommandPartitionedTopicMetadataResponse, Schema, ServerError,
};

pub async fn asked(session: &mut Session) -> CommandLookupTopic {
    match session.body().await {
        Body::LookupTopic(lookup) => lookup,
        other => panic!("{other:?} where a lookup was due"),
    }
}

pub fn answer(kind: LookupType, url: &str, request_id: u64) -> CommandLookupTopicResponse {
    CommandLookupTopicResponse {
        broker_service_url: Some(url.to_owned()),
        response: Some(kind as i32),
        request_id,
        authoritative: Some(kind == LookupType::Redirect),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_redirect_is_followed_with_its_authority() {
    let (front, owner) = (Server::start().await, Server::start().await);
    let mut peer = front.peer();
    peer.listener = Some("outside".into());
    let (pool, _connection, mut session) = front.pair(peer).await;
    let broker = async {
        let first = asked(&mut session).await;
        assert_eq!((first.topic.as_str(), first.authoritative()), (topic().as_str(), false));
        assert_eq!(first.advertised_listener_name(), "outside");
        session.send(answer(LookupType::Redirect, &owner.url(), first.request_id)).await;
        let mut next = owner.connected().await;
        let second = asked(&mut next).await;
        assert!(second.authoritative());
        next.send(answer(LookupType::Connect, &owner.url(), second.request_id)).await;
        next
    };
    let topic = topic();
    let (connection, _next) = tokio::join!(pool.owner(&topic), broker);
    assert_eq!(connection.unwrap().endpoint(), &owner.endpoint());
    assert!(owner.nobody_for(std::time::Duration::from_millis(20)).await, "the connection is used again");
}

#[tokio::test]
async fn a_lookup_that_goes_in_circles_ends() {
    let server = Server::start().await;
    let (pool, _connection, mut session) = server.pair(server.peer()).await;
    let broker = async {
        for _ in 0..=MAX_REDIRECTS {
            let lookup = asked(&mut session).await;
            session.send(answer(LookupType::Redirect, &server.url(), lookup.request_id)).await;
        }
    };
    let topic = topic();
    let (found, ()) = within(async { tokio::join!(pool.lookup(&topic), broker) }).await;
    assert!(matches!(found, Err(ClientError::Redirected { redirects: MAX_REDIRECTS, .. })), "{found:?}");
}

#[tokio::test]
async fn behind_a_proxy_the_broker_is_named_in_connect() {
    let proxy = Server::start().await;
    let (pool, _connection, mut session) = proxy.pair(proxy.peer()).await;
    let broker = async {
        let lookup = asked(&mut session).await;
        let mut found = answer(LookupType::Connect, "pulsar://inner:6650", lookup.request_id);
        found.proxy_through_service_url = Some(true);
        session.send(found).await;
        let mut through = proxy.accept().await;
        (through.shake_hands(connected()).await, through)
    };
    let topic = topic();
    let (connection, (connect, _through)) = tokio::join!(pool.owner(&topic), broker);
    assert_eq!(connect.proxy_to_broker_url.as_deref(), Some("inner:6650"));
    let inner = meridian_client::BrokerAddress::parse("pulsar://inner:6650").unwrap();
    assert_eq!(connection.unwrap().endpoint(), &Endpoint::through_proxy(proxy.endpoint().address, &inner));
}

#[tokio::test]
async fn a_failed_lookup_keeps_its_reason() {
    let server = Server::start().await;
    let (pool, connection, mut session) = server.pair(server.peer()).await;
    let broker = async {
        let lookup = asked(&mut session).await;
        let mut failed = answer(LookupType::Failed, "", lookup.request_id);
        failed.error = Some(ServerError::AuthorizationError as i32);
        failed.message = Some("not yours".into());
        session.send(failed).await;
    };
    let topic = topic();
    let (found, ()) = tokio::join!(pool.lookup(&topic), broker);
    let error = found.unwrap_err();
    assert_eq!(error.code(), Some(ServerError::AuthorizationError));
    assert!(error.to_string().contains("not yours"), "{error}");
    assert_eq!(connection.error(), None, "the connection is still of use");
}

#[tokio::test]
async fn partitions_are_not_asked_of_a_peer_that_would_create_the_topic() {
    let server = Server::start().await;
    let pool = server.pool();
    let old = CommandConnected { feature_flags: None, ..connected() };
    let broker = async {
        let mut session = server.accept().await;
        session.shake_hands(old).await;
        let Body::PartitionMetadata(asked) = session.body().await else { panic!("no question") };
        assert!(asked.metadata_auto_creation_enabled());
        let request_id = asked.request_id;
        let error = Some(ServerError::TopicNotFound as i32);
        session.send(CommandPartitionedTopicMetadataResponse { request_id, error, ..Default::default() }).await;
    };
    let topic = topic();
    let client = async {
        assert!(matches!(pool.partitions(&topic, false).await, Err(ClientError::Unsupported(_))));
        pool.partitions(&topic, true).await
    };
    let (count, ()) = tokio::join!(client, broker);
    assert_eq!(count.unwrap_err().code(), Some(ServerError::TopicNotFound));
}

#[tokio::test]
async fn topics_and_schemas_are_asked_for() {
    let server = Server::start().await;
    let (pool, _connection, mut session) = server.pair(server.peer()).await;
    let schema = Schema { name: "s".into(), schema_data: Bytes::from_static(b"{}"), ..Default::default() };
    let broker = async {
        let Body::GetTopicsOfNamespace(list) = session.body().await else { panic!("no question") };
        assert_eq!((list.namespace.as_str(), list.mode()), ("public/default", Mode::All));
        let (request_id, topics) = (list.request_id, vec![topic().as_str().to_owned()]);
        session.send(CommandGetTopicsOfNamespaceResponse { request_id, topics, ..Default::default() }).await;
        for found in [Some(schema.clone()), None] {
            let Body::GetSchema(get) = session.body().await else { panic!("no question") };
            let error_code = found.is_none().then_some(ServerError::TopicNotFound as i32);
            let schema_version = get.schema_version.clone();
            let answer = CommandGetSchemaResponse {
                request_id: get.request_id,
                error_code,
                schema: found,
                schema_version,
                ..Default::default()
            };
            session.send(answer).await;
        }
        let lookup = asked(&mut session).await;
        session.send(answer(LookupType::Connect, &server.url(), lookup.request_id)).await;
        let Body::GetOrCreateSchema(create) = session.body().await else { panic!("no question") };
        assert_eq!(create.schema, schema);
        session
            .send(CommandGetOrCreateSchemaResponse {
                request_id: create.request_id,
                error_code: Some(ServerError::IncompatibleSchema as i32),
                error_message: Some("field x".into()),
                ..Default::default()
            })
            .await;
    };
    let client = async {
        let namespace = NamespaceName::parse("public/default").unwrap();
        assert_eq!(pool.topics_of_namespace(&namespace, Mode::All).await.unwrap(), [topic().as_str()]);
        let version = Bytes::from_static(&[7]);
        let found = pool.schema(&topic(), Some(version.clone())).await.unwrap().unwrap();
        assert_eq!((found.version, &found.schema), (version, &schema));
        assert_eq!(pool.schema(&topic(), None).await.unwrap(), None);
        let refused = pool.get_or_create_schema(&topic(), schema.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Some(ServerError::IncompatibleSchema));
    };
    within(async { tokio::join!(client, broker) }).await;
}
