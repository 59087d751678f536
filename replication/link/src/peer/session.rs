//! One connection, from the greeting to its end.
//!
//! Invariants: N2: the peer is greeted again and again, and a greeting without an answer ends the connection, whatever
//! the transport thinks.
//! Failure: one sentence.

use super::{Client, Peer, acks, greeting, named, objects};
use crate::link::{Context, wall_ms};
use crate::proto;
use crate::status::PeerState;
use meridian_topology::Endpoint;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs until the connection ends; answers why.
pub(super) async fn run(context: &Arc<Context>, peer: &Arc<Peer>, mut client: Client, endpoint: &Endpoint) -> String {
    let can = match greet(context, peer, &mut client).await {
        Ok(reply) => reply.capabilities,
        Err(error) => return error,
    };
    let can = |what: &str| can.iter().any(|one| one == what);
    *peer.client.lock() = Some(client.clone());
    peer.note(|status| {
        status.connects += 1;
        status.attempts = 0;
    });
    peer.enter(PeerState::Connected);
    tracing::info!(region = peer.name, tls = endpoint.tls, "the region link is there");
    let beats = beat(context, peer, client.clone());
    let objects = objects::run(context, peer, client.clone(), can("objects"));
    let acks = acks::run(context, peer, client.clone(), can("acks"));
    tokio::select! {
        why = beats => why,
        why = objects => format!("objects: {why}"),
        why = acks => format!("acknowledgements: {why}"),
    }
}

/// Greets once and checks who answers.
async fn greet(context: &Context, peer: &Peer, client: &mut Client) -> Result<proto::HelloReply, String> {
    let limit_ms = context.config.times.beat_timeout_ms;
    let (asked, asked_ms) = (Instant::now(), wall_ms());
    let request = named(&context.config.region, greeting(context, &peer.name));
    let reply = match tokio::time::timeout(Duration::from_millis(limit_ms), client.hello(request)).await {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) => return Err(format!("greeting: {}", status.message())),
        Err(_) => return Err(format!("it did not answer a greeting within {limit_ms} ms")),
    };
    if reply.region != peer.name {
        return Err(format!("at this address answers region {}", reply.region));
    }
    let took = asked.elapsed();
    peer.note(|status| {
        status.version = Some(reply.version.clone());
        status.round_trip_us = took.as_micros() as u64;
        let here_ms = asked_ms as i64 + took.as_millis() as i64 / 2;
        status.clock_ahead_ms = reply.wall_ms as i64 - here_ms;
    });
    Ok(reply)
}

async fn beat(context: &Context, peer: &Peer, mut client: Client) -> String {
    let pause = Duration::from_millis(context.config.times.beat_ms);
    let can = super::capabilities(context);
    loop {
        tokio::time::sleep(pause).await;
        if let Err(error) = greet(context, peer, &mut client).await {
            return error;
        }
        if super::capabilities(context) != can {
            return "this region can do more now".to_owned();
        }
    }
}
