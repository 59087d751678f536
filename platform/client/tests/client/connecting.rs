//! Handshake, credentials, sharing, back-off, bounds of a connection.

use crate::server::{PATIENCE, Server, connected, eventually, topic, within};
use meridian_client::{ClientError, Credentials, PeerPool, Phase};
use meridian_types::{Classify, ErrorClass};
use meridian_wire::error::{NO_REQUEST, request_error};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::{
    AuthData, CommandAuthChallenge, CommandConnected, CommandPartitionedTopicMetadataResponse, CommandPing, ServerError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test]
async fn both_sides_say_who_they_are() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.credentials = Credentials::Token("secret".into());
    let pool = PeerPool::new(peer);
    let broker = async {
        let mut session = server.accept().await;
        (session.shake_hands(connected()).await, session)
    };
    let (connection, (connect, _session)) = tokio::join!(pool.any(), broker);
    let connection = connection.unwrap();
    assert_eq!(connect.auth_method_name.as_deref(), Some("token"));
    assert_eq!(connect.auth_data.as_deref(), Some(&b"secret"[..]));
    assert_eq!(connect.protocol_version, Some(21));
    let features = connect.feature_flags.unwrap();
    assert!(features.supports_repl_dedup_by_lid_and_eid() && features.supports_auth_refresh());
    assert!(!features.supports_broker_entry_metadata());
    let facts = connection.facts();
    assert!(facts.is_meridian(), "{facts:?}");
    assert!(facts.deduplicates_by_source_position());
    assert_eq!(facts.max_message_bytes, 5 * 1024 * 1024);
    let states = pool.states();
    assert_eq!((states.len(), states[0].phase, states[0].connects), (1, Phase::Connected, 1));
    assert_eq!(states[0].server_version, Some(facts.server_version.clone()));
}

#[tokio::test]
async fn a_challenge_is_answered_with_the_token_as_it_is_now() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "first").unwrap();
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.credentials = Credentials::parse("token", &format!("file://{}", token.display())).unwrap();
    let pool = PeerPool::new(peer);
    let challenge = || CommandAuthChallenge {
        challenge: Some(AuthData { auth_method_name: Some("token".into()), auth_data: None }),
        ..Default::default()
    };
    let broker = async {
        let mut session = server.accept().await;
        let Body::Connect(_) = session.body().await else { panic!("no CONNECT") };
        session.send(challenge()).await;
        let Body::AuthResponse(response) = session.body().await else { panic!("no AUTH_RESPONSE") };
        session.send(connected()).await;
        (session, response.response.unwrap())
    };
    let (connection, (mut session, answer)) = tokio::join!(pool.any(), broker);
    assert_eq!(answer.auth_data.as_deref(), Some(&b"first"[..]));
    std::fs::write(&token, "second").unwrap();
    session.send(challenge()).await;
    let Body::AuthResponse(response) = session.body().await else { panic!("no AUTH_RESPONSE") };
    assert_eq!(response.response.unwrap().auth_data.as_deref(), Some(&b"second"[..]));
    std::fs::remove_file(&token).unwrap();
    session.send(challenge()).await;
    let reason = within(connection.unwrap().ended()).await;
    assert!(reason.to_string().contains("token file"), "{reason}");
}

#[tokio::test]
async fn a_refusal_is_told_and_not_repeated_before_its_time() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.backoff.min_ms = 60_000;
    peer.limits.backoff.max_ms = 60_000;
    let pool = PeerPool::new(peer);
    let broker = async {
        let mut session = server.accept().await;
        let Body::Connect(_) = session.body().await else { panic!("no CONNECT") };
        session.send(request_error(NO_REQUEST, ServerError::AuthenticationError, "go away")).await;
    };
    let (refused, ()) = tokio::join!(pool.any(), broker);
    let refused = refused.unwrap_err();
    assert_eq!((refused.class(), refused.code()), (ErrorClass::Caller, Some(ServerError::AuthenticationError)));
    assert!(!refused.may_pass());
    let again = pool.any().await.unwrap_err();
    assert!(matches!(&again, ClientError::BackingOff { retry_in_ms, .. } if *retry_in_ms >= 29_000), "{again}");
    assert!(again.to_string().contains("go away"), "{again}");
    assert!(server.nobody_for(Duration::from_millis(30)).await);
    let states = pool.states();
    assert_eq!((states[0].phase, states[0].failures), (Phase::Failed, 1));
    assert_eq!(states[0].last_error.as_deref(), Some(&refused));
}

#[tokio::test]
async fn connections_are_shared_and_take_turns() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.connections_per_broker = 2;
    let pool = PeerPool::new(peer);
    let endpoint = server.endpoint();
    let ask = async {
        let asked: Vec<_> = (0..10)
            .map(|_| {
                let (pool, endpoint) = (pool.clone(), endpoint.clone());
                tokio::spawn(async move { pool.connection(&endpoint).await.unwrap() })
            })
            .collect();
        let mut connections = Vec::new();
        for connection in asked {
            connections.push(connection.await.unwrap());
        }
        connections
    };
    let broker = async { (server.connected().await, server.connected().await) };
    let (connections, _sessions) = tokio::join!(ask, broker);
    let of_first = connections.iter().filter(|connection| connection.is_same(&connections[0])).count();
    assert_eq!(of_first, 5);
    assert!(server.nobody_for(Duration::from_millis(30)).await);
}

#[tokio::test]
async fn one_attempt_fails_for_all_who_ask() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.backoff.min_ms = 60_000;
    peer.limits.backoff.max_ms = 60_000;
    let pool = Arc::new(PeerPool::new(peer));
    let asked: Vec<_> = (0..10)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.any().await.unwrap_err() })
        })
        .collect();
    drop(server.accept().await);
    for error in asked {
        let error = error.await.unwrap();
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
    }
    assert!(server.nobody_for(Duration::from_millis(30)).await);
}

#[tokio::test]
async fn a_lost_connection_is_made_again_after_the_back_off() {
    let server = Server::start().await;
    let (pool, connection, session) = server.pair(server.peer()).await;
    drop(session);
    let reason = within(connection.ended()).await;
    assert_eq!(reason.class(), ErrorClass::Retry);
    assert!(matches!(pool.any().await, Err(ClientError::BackingOff { .. })));
    let endpoint = server.endpoint();
    let (again, _session) = tokio::join!(pool.connection_within(&endpoint, 10_000), server.connected());
    assert!(!again.unwrap().is_same(&connection));
    assert_eq!((pool.states()[0].phase, pool.states()[0].connects), (Phase::Connected, 2));
}

#[tokio::test]
async fn the_next_address_is_asked_if_one_is_down() {
    let server = Server::start().await;
    let down = Server::start().await;
    let mut peer = server.peer();
    peer.service_url = meridian_client::ServiceUrl::parse(&format!("{},{}", down.url(), server.authority)).unwrap();
    drop(down);
    let pool = PeerPool::new(peer);
    let (connection, mut session) = tokio::join!(pool.any(), server.connected());
    assert_eq!(connection.unwrap().endpoint(), &server.endpoint());
    // The one that answered is asked first from now on.
    let topic = topic();
    let (count, ()) = tokio::join!(pool.partitions(&topic, false), async {
        let Body::PartitionMetadata(asked) = session.body().await else { panic!("no question") };
        let request_id = asked.request_id;
        session
            .send(CommandPartitionedTopicMetadataResponse { partitions: Some(3), request_id, ..Default::default() })
            .await;
    });
    assert_eq!(count, Ok(3));
    assert_eq!(pool.states().iter().filter(|state| state.phase == Phase::Failed).count(), 1);
}

#[tokio::test]
async fn a_peer_that_never_answers_connect_is_given_up() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.connect_timeout_ms = 50;
    let (pool, began) = (PeerPool::new(peer), Instant::now());
    let (error, _session) = tokio::join!(pool.any(), server.accept());
    assert!(matches!(error, Err(ClientError::Connect { .. })), "{error:?}");
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test]
async fn before_connected_only_small_frames_are_taken() {
    let server = Server::start().await;
    let pool = server.pool();
    let broker = async {
        let mut session = server.accept().await;
        session.raw(&[0, 0x10, 0, 0]).await;
        session
    };
    let (error, _session) = tokio::join!(pool.any(), broker);
    assert!(matches!(&error, Err(ClientError::Protocol(text)) if text.contains("above the limit")), "{error:?}");
}

#[tokio::test]
async fn an_oversized_frame_ends_the_connection_before_it_is_read() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.max_message_bytes = 6 * 1024 * 1024;
    let pool = PeerPool::new(peer);
    let broker = async {
        let mut session = server.accept().await;
        session.shake_hands(CommandConnected { max_message_size: Some(i32::MAX), ..connected() }).await;
        session
    };
    let (connection, mut session) = tokio::join!(pool.any(), broker);
    let connection = connection.unwrap();
    assert_eq!(connection.facts().max_message_bytes, 6 * 1024 * 1024);
    session.raw(&[0x01, 0, 0, 0]).await;
    let reason = within(connection.ended()).await;
    assert!(matches!(&reason, ClientError::Protocol(text) if text.contains("16777220 bytes")), "{reason}");
    session.drained().await;
}

#[tokio::test]
async fn a_ping_is_answered() {
    let server = Server::start().await;
    let (_pool, _connection, mut session) = server.pair(server.peer()).await;
    session.send(CommandPing {}).await;
    assert!(matches!(session.body().await, Body::Pong(_)));
}

#[tokio::test]
async fn a_request_has_a_deadline_and_their_number_a_limit() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.request_timeout_ms = 300;
    peer.limits.max_requests = 2;
    let (pool, _connection, mut session) = server.pair(peer).await;
    let asked: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.partitions(&topic(), false).await })
        })
        .collect();
    session.body().await;
    session.body().await;
    let crowded = pool.partitions(&topic(), false).await;
    assert!(matches!(crowded, Err(ClientError::Crowded { limit: 2, .. })), "{crowded:?}");
    for asked in asked {
        let late = within(asked).await.unwrap();
        assert!(matches!(late, Err(ClientError::Late { deadline_ms: 300, .. })), "{late:?}");
    }
    // What was given up is forgotten.
    let topic = topic();
    let (_, body) = tokio::join!(pool.partitions(&topic, false), session.body());
    assert!(matches!(body, Body::PartitionMetadata(_)));
}

#[tokio::test]
async fn a_pool_that_closes_ends_its_connections() {
    let server = Server::start().await;
    let (pool, connection, mut session) = server.pair(server.peer()).await;
    pool.close();
    assert!(connection.error().is_some());
    session.drained().await;
}

#[tokio::test]
async fn the_last_handle_ends_the_connection() {
    let server = Server::start().await;
    let (pool, connection, mut session) = server.pair(server.peer()).await;
    drop((pool, connection));
    session.drained().await;
}

#[tokio::test]
async fn a_connection_error_of_the_broker_is_the_reason() {
    let server = Server::start().await;
    let (_pool, connection, mut session) = server.pair(server.peer()).await;
    session.send(request_error(NO_REQUEST, ServerError::AuthorizationError, "no longer")).await;
    assert_eq!(within(connection.ended()).await.code(), Some(ServerError::AuthorizationError));
    eventually("the end", || connection.error().is_some()).await;
}
