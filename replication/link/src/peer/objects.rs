//! Objects on their way to one peer: runs the machine of [`crate::sync::source`].
//!
//! Failure: one sentence, and the connection ends.

use super::{Client, Peer, named};
use crate::api::{ObjectStore, SharedChange};
use crate::config::{LISTING_KEYS, OBJECT_MESSAGE_BYTES, STREAM_QUEUE};
use crate::convert;
use crate::link::{Context, wall_ms};
use crate::proto::{self, sync_down, sync_up};
use crate::sync::source::{ANSWER_MS, Effect, Event, Source};
use meridian_types::RegionId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The machine's beat.
const TICK: Duration = Duration::from_millis(100);

/// Runs until the stream ends; answers why. Without a store here or there it waits for ever.
pub(super) async fn run(context: &Arc<Context>, peer: &Arc<Peer>, mut client: Client, peer_can: bool) -> String {
    let Some(store) = context.objects.get().filter(|_| peer_can).cloned() else {
        return std::future::pending().await;
    };
    let (up, messages) = mpsc::channel(STREAM_QUEUE);
    let request = named(&context.config.region, ReceiverStream::new(messages));
    let limit = Duration::from_millis(context.config.times.beat_timeout_ms);
    let mut down = match tokio::time::timeout(limit, client.sync(request)).await {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) => return status.message().to_owned(),
        Err(_) => return "the stream did not begin".to_owned(),
    };
    let own = RegionId::of(&context.config.region);
    let began = Instant::now();
    let mut changes = store.changes();
    let mut shell = Shell {
        source: Source::new(jittered(context.config.times.compare_ms), 0),
        store: store.clone(),
        peer: peer.clone(),
        up,
        began,
        counted: (0, 0),
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            message = down.message() => match message {
                Ok(Some(message)) => match shell.answer(message) {
                    Some(event) => event,
                    None => continue,
                },
                Ok(None) => return "the peer ended the stream".to_owned(),
                Err(status) => return status.message().to_owned(),
            },
            change = changes.recv() => match change {
                Ok(SharedChange::Key(key)) => match store.shared(&peer.name, &key) {
                    // What others changed they send themselves; the next comparison sees to the rest.
                    Some(version) if version.stamp.region == own => {
                        let rank = store.rank(&key);
                        Event::Changed { key, rank }
                    }
                    _ => continue,
                },
                Ok(SharedChange::Everything) | Err(RecvError::Lagged(_)) => Event::Everything,
                Err(RecvError::Closed) => return "the store is closed".to_owned(),
            },
            _ = tick.tick() => Event::Tick,
        };
        if let Err(why) = shell.run(event).await {
            return why;
        }
    }
}

/// Regions that began at once need not compare at once.
fn jittered(interval_ms: u64) -> u64 {
    interval_ms - rand::random::<u64>() % (interval_ms / 5).max(1)
}

struct Shell {
    source: Source,
    store: Arc<dyn ObjectStore>,
    peer: Arc<Peer>,
    up: mpsc::Sender<proto::SyncUp>,
    began: Instant,
    /// Objects taken and overflows that the status has already; it outlives the connection.
    counted: (u64, u64),
}

impl Shell {
    fn answer(&self, message: proto::SyncDown) -> Option<Event> {
        Some(match message.kind? {
            sync_down::Kind::Differ(differ) => {
                let buckets = differ.buckets.into_iter().filter_map(|bucket| u8::try_from(bucket).ok()).collect();
                Event::Differ { round: differ.round, buckets }
            }
            sync_down::Kind::Wanted(wanted) => {
                let ranked = |key: String| (self.store.rank(&key), key);
                let keys = wanted.keys.into_iter().map(ranked).map(|(rank, key)| (key, rank)).collect();
                Event::Wanted { round: wanted.round, keys }
            }
            sync_down::Kind::Applied(applied) => {
                let outcomes = applied.outcomes.into_iter().map(convert::applied).collect();
                Event::Applied { id: applied.id, outcomes }
            }
        })
    }

    /// One event and everything that follows from it.
    async fn run(&mut self, event: Event) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now_ms = self.began.elapsed().as_millis() as u64;
            for effect in self.source.on(event, now_ms) {
                if let Some(event) = self.perform(effect, now_ms).await? {
                    events.push_back(event);
                }
            }
        }
        let stats = self.source.stats();
        let (taken, overflows) = (stats.taken - self.counted.0, stats.overflows - self.counted.1);
        self.counted = (stats.taken, stats.overflows);
        self.peer.note(|status| {
            let sync = &mut status.sync;
            (sync.queued, sync.in_flight, sync.later) = (stats.queued, stats.in_flight, stats.later);
            sync.taken += taken;
            sync.overflows += overflows;
            sync.refused = stats.refused;
        });
        Ok(())
    }

    async fn perform(&mut self, effect: Effect, now_ms: u64) -> Result<Option<Event>, String> {
        match effect {
            Effect::Digests { round } => {
                let figures = self.store.digests(&self.peer.name).figures().to_vec();
                self.send(sync_up::Kind::Digests(proto::Digests { round, figures })).await?;
                Ok(None)
            }
            Effect::List { round, bucket } => {
                let listing = self.store.listing(&self.peer.name, bucket);
                let mut messages = 0;
                for part in listing.chunks(LISTING_KEYS) {
                    let items = part.iter().cloned().map(convert::summary_out).collect();
                    self.send(sync_up::Kind::Listing(proto::Listing { round, items })).await?;
                    messages += 1;
                }
                Ok(Some(Event::Listed { messages }))
            }
            Effect::Send { id, keys } => self.send_objects(id, &keys).await,
            Effect::RoundEnded { began_ms, converged } => {
                // Back to the time of day at which it began.
                let began_wall_ms = wall_ms().saturating_sub(now_ms.saturating_sub(began_ms));
                self.peer.note(|status| {
                    status.sync.rounds += 1;
                    if converged {
                        status.sync.converged_ms = began_wall_ms;
                    }
                });
                if converged {
                    self.store.converged(&self.peer.name, began_wall_ms);
                }
                Ok(None)
            }
            Effect::Fail(why) => Err(why),
        }
    }

    async fn send_objects(&mut self, id: u64, keys: &[String]) -> Result<Option<Event>, String> {
        let objects = self.store.read(&self.peer.name, keys).await?;
        let there: std::collections::BTreeSet<String> = objects.iter().map(|object| object.key.clone()).collect();
        let (mut message, mut bytes) = (Vec::new(), 0);
        for object in objects {
            bytes += object.value.len() + object.key.len();
            message.push(convert::object_out(object));
            if bytes >= OBJECT_MESSAGE_BYTES {
                let objects = std::mem::take(&mut message);
                self.send(sync_up::Kind::Objects(proto::Objects { id, objects })).await?;
                bytes = 0;
            }
        }
        if !message.is_empty() {
            self.send(sync_up::Kind::Objects(proto::Objects { id, objects: message })).await?;
        }
        let gone: Vec<String> = keys.iter().filter(|key| !there.contains(*key)).cloned().collect();
        Ok((!gone.is_empty()).then_some(Event::Vanished { id, keys: gone }))
    }

    async fn send(&self, kind: sync_up::Kind) -> Result<(), String> {
        let sent = self.up.send(proto::SyncUp { kind: Some(kind) });
        match tokio::time::timeout(Duration::from_millis(ANSWER_MS), sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("the stream has ended".to_owned()),
            Err(_) => Err("the peer takes no more".to_owned()),
        }
    }
}
