//! Acknowledgements on their way to one peer.
//!
//! Invariants: at most [`ACK_WINDOW_BYTES`] are sent and not confirmed; what is not sent stays with the handler, where it
//! merges with what follows.
//! Failure: one sentence, and the connection ends; the handler is told, and sends what was not confirmed again.

use super::{Client, Peer, named};
use crate::api::{AckHandler, AckOutcome};
use crate::config::{ACK_TAKE_BYTES, ACK_WINDOW_BYTES, STREAM_QUEUE};
use crate::convert;
use crate::link::Context;
use crate::proto;
use crate::sync::source::ANSWER_MS;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Tells the handler when the stream has ended, however it ends.
struct Connected<'a> {
    handler: &'a dyn AckHandler,
    peer: &'a Peer,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.handler.disconnected(&self.peer.name);
        self.peer.note(|status| status.acks.in_flight_bytes = 0);
    }
}

/// Sent and not confirmed.
struct InFlight {
    bytes: usize,
    sent: Instant,
}

/// Runs until the stream ends; answers why. Without a handler here or there it waits for ever.
pub(super) async fn run(context: &Arc<Context>, peer: &Arc<Peer>, mut client: Client, peer_can: bool) -> String {
    let Some(handler) = context.acks.get().filter(|_| peer_can).cloned() else {
        return std::future::pending().await;
    };
    let (up, messages) = mpsc::channel(STREAM_QUEUE);
    let request = named(&context.config.region, ReceiverStream::new(messages));
    let limit = Duration::from_millis(context.config.times.beat_timeout_ms);
    let mut down = match tokio::time::timeout(limit, client.acks(request)).await {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) => return status.message().to_owned(),
        Err(_) => return "the stream did not begin".to_owned(),
    };
    handler.connected(&peer.name);
    let _connected = Connected { handler: &*handler, peer };
    let mut stream = Stream { handler: &*handler, peer, up, in_flight: BTreeMap::new(), in_flight_bytes: 0 };
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        if let Err(why) = stream.send().await {
            return why;
        }
        tokio::select! {
            message = down.message() => match message {
                Ok(Some(message)) => stream.confirmed(message),
                Ok(None) => return "the peer ended the stream".to_owned(),
                Err(status) => return status.message().to_owned(),
            },
            () = peer.acks.notified() => {}
            _ = tick.tick() => {
                if stream.silent() {
                    return format!("the peer did not confirm within {ANSWER_MS} ms");
                }
            }
        }
    }
}

struct Stream<'a> {
    handler: &'a dyn AckHandler,
    peer: &'a Peer,
    up: mpsc::Sender<proto::AckUp>,
    in_flight: BTreeMap<u64, InFlight>,
    in_flight_bytes: usize,
}

impl Stream<'_> {
    fn silent(&self) -> bool {
        let limit = Duration::from_millis(ANSWER_MS);
        self.in_flight.values().any(|one| one.sent.elapsed() > limit)
    }

    /// Sends requests for states, then deltas as long as there is room.
    async fn send(&mut self) -> Result<(), String> {
        loop {
            let Some((topic, subscription)) = self.peer.resyncs.lock().pop_front() else { break };
            let resync = proto::ack_up::Kind::Resync(proto::AckResync { topic, subscription });
            self.push(proto::AckUp { kind: Some(resync) }).await?;
        }
        while self.in_flight_bytes < ACK_WINDOW_BYTES {
            let room = (ACK_WINDOW_BYTES - self.in_flight_bytes).min(ACK_TAKE_BYTES);
            let deltas = self.handler.take(&self.peer.name, room);
            if deltas.is_empty() {
                break;
            }
            let (count, mut sent_bytes) = (deltas.len() as u64, 0);
            for delta in deltas {
                let bytes = delta.bytes();
                sent_bytes += bytes as u64;
                let before = self.in_flight.insert(delta.token, InFlight { bytes, sent: Instant::now() });
                self.in_flight_bytes += bytes;
                self.in_flight_bytes -= before.map_or(0, |one| one.bytes);
                self.push(convert::delta_out(delta)).await?;
            }
            let in_flight_bytes = self.in_flight_bytes as u64;
            self.peer.note(|status| {
                status.acks.sent += count;
                status.acks.sent_bytes += sent_bytes;
                status.acks.in_flight_bytes = in_flight_bytes;
            });
        }
        Ok(())
    }

    fn confirmed(&mut self, message: proto::AckDown) {
        let (token, outcome) = convert::ack_outcome(message);
        self.in_flight_bytes -= self.in_flight.remove(&token).map_or(0, |one| one.bytes);
        let in_flight_bytes = self.in_flight_bytes as u64;
        self.peer.note(|status| {
            status.acks.in_flight_bytes = in_flight_bytes;
            match outcome {
                AckOutcome::Stored => status.acks.confirmed += 1,
                _ => status.acks.again += 1,
            }
        });
        self.handler.confirmed(&self.peer.name, token, outcome);
    }

    async fn push(&self, message: proto::AckUp) -> Result<(), String> {
        match tokio::time::timeout(Duration::from_millis(ANSWER_MS), self.up.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("the stream has ended".to_owned()),
            Err(_) => Err("the peer takes no more".to_owned()),
        }
    }
}
