//! A peer that stops answering without closing.

use crate::server::{Server, topic, within};
use meridian_client::keepalive::KeepAliveLimits;
use meridian_client::{ClientError, LinkEvent, LinkOptions, LinkProducer};
use meridian_wire::frame::Incoming;
use meridian_wire::proto::CommandProducerSuccess;
use meridian_wire::proto::base_command::Body;
use std::time::{Duration, Instant};

const QUICK: KeepAliveLimits = KeepAliveLimits { interval_ms: 60, timeout_ms: 60 };

#[tokio::test]
async fn a_silent_peer_is_noticed_and_everyone_who_waits_is_told() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.keep_alive = QUICK;
    let (pool, connection, mut session) = server.pair(peer).await;
    let options = LinkOptions::new(topic());
    let broker = async {
        let Body::Producer(producer) = session.body().await else { panic!("no PRODUCER") };
        let (request_id, producer_name) = (producer.request_id, "p".into());
        session.send(CommandProducerSuccess { request_id, producer_name, ..Default::default() }).await;
    };
    let (opened, ()) = tokio::join!(LinkProducer::open(&connection, &options), broker);
    let (_producer, mut events) = opened.unwrap();
    let began = Instant::now();
    let asked = pool.clone();
    let asked = tokio::spawn(async move { asked.partitions(&topic(), false).await });
    // The session is kept open and says nothing.
    let reason = within(connection.ended()).await;
    assert!(reason.to_string().contains("silent"), "{reason}");
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert!(matches!(within(asked).await.unwrap(), Err(ClientError::Ended(_))));
    let last = within(events.recv()).await.unwrap();
    assert!(matches!(&last[..], [LinkEvent::Closed { reason, .. }] if reason.contains("silent")), "{last:?}");
    assert_eq!(within(events.recv()).await, None);
}

#[tokio::test]
async fn a_peer_that_answers_pings_stays() {
    let server = Server::start().await;
    let mut peer = server.peer();
    peer.limits.keep_alive = QUICK;
    let (_pool, connection, mut session) = server.pair(peer).await;
    for _ in 0..4 {
        match session.next().await.expect("the connection has ended") {
            Incoming::Other(frame) => assert!(matches!(frame.command.body, Some(Body::Ping(_)))),
            other => panic!("{other:?}"),
        }
        session.raw(&meridian_wire::encode::PONG).await;
    }
    assert_eq!(connection.error(), None);
}

#[test]
fn the_defaults_notice_a_silent_cut_within_thirty_seconds() {
    let limits = meridian_client::PeerLimits::default().keep_alive;
    assert!(limits.interval_ms + limits.timeout_ms + 2_000 <= 30_000);
}
