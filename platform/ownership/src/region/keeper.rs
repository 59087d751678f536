//! Keeps the lease: executes what the machine of [`crate::lease`] says.
//!
//! Invariants: O3; a new life begins only when the last one's topics are closed.

use super::{Ownership, RegionOwnership};
use crate::lease::{Evidence, Lease, LeaseEffect, LeaseEvent, StopReason};
use crate::records::{BrokerRecord, broker_key, decode, encode};
use meridian_metadata::{Condition, MetadataError, Operation, SessionId};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Events that may wait; each call under way has one.
const QUEUE: usize = 16;
/// How long closing everything may take before the broker comes back anyway; the logs are fenced by then.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);
/// How long peers may take to answer.
const PEERS_LIMIT_SHARE: u64 = 2;

/// Two lives never have the same number: the time above, chance below.
pub(super) fn new_incarnation() -> u64 {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    (now_ms << 20) | (RandomState::new().hash_one(now_ms) & 0xf_ffff)
}

/// Runs until the broker has gone.
pub(super) async fn keep(weak: Weak<RegionOwnership>) {
    let (sender, mut events) = mpsc::channel(QUEUE);
    let Some((mut lease, mut ticks)) = weak.upgrade().map(|region| {
        let times = region.config.times;
        let mut ticks = interval(Duration::from_millis((times.renew_every_ms / 10).max(5)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        (Lease::new(times, region.now_ms()), ticks)
    }) else {
        return;
    };
    loop {
        let event = tokio::select! {
            biased;
            event = events.recv() => event.unwrap_or(LeaseEvent::Tick),
            _ = ticks.tick() => LeaseEvent::Tick,
        };
        let Some(region) = weak.upgrade() else { return };
        if region.leaving.load(Ordering::Acquire) && region.session.lock().is_none() {
            return;
        }
        let effects = lease.step(region.now_ms(), event);
        region.until_ms.store(lease.serves_until_ms(), Ordering::Release);
        region.note_contact(&lease, event);
        for effect in effects {
            region.clone().run(effect, &sender).await;
        }
    }
}

impl RegionOwnership {
    fn note_contact(&self, lease: &Lease, event: LeaseEvent) {
        match event {
            LeaseEvent::Opened { .. } | LeaseEvent::Renewed { .. } => {
                self.answered_ms.store(self.now_ms() + 1, Ordering::Relaxed);
            }
            LeaseEvent::Failed => drop(self.stats.renewals_failed.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        // Who lost contact gives others the time to come back before it takes what was theirs.
        self.settled_ms.store(lease.settled_ms().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    async fn run(self: Arc<Self>, effect: LeaseEffect, events: &mpsc::Sender<LeaseEvent>) {
        let events = events.clone();
        match effect {
            LeaseEffect::Renew => {
                tokio::spawn(async move {
                    let event = self.renew().await;
                    let _ = events.send(event).await;
                });
            }
            LeaseEffect::Open { same_life } => {
                tokio::spawn(async move {
                    let event = self.open(same_life).await;
                    let _ = events.send(event).await;
                });
            }
            LeaseEffect::AskPeers => {
                tokio::spawn(async move {
                    let asked_ms = self.now_ms();
                    let evidence = self.ask_peers().await;
                    let _ = events.send(LeaseEvent::Peers { asked_ms, evidence }).await;
                });
            }
            LeaseEffect::Serve => tracing::info!(broker = self.me().id, "the lease is in force"),
            LeaseEffect::Stop(reason) => self.stop_serving(reason).await,
        }
    }

    /// Closes everything, then begins a new life.
    async fn stop_serving(&self, reason: StopReason) {
        self.stats.count_stopped(reason);
        tracing::warn!(reason = reason.word(), "the lease was lost or may have been: closing all topics");
        let session = self.session.lock().take();
        if let Some(host) = self.host()
            && timeout(CLOSE_LIMIT, host.close_all(reason.word())).await.is_err()
        {
            tracing::error!(limit_s = CLOSE_LIMIT.as_secs(), "not every topic closed; their logs are fenced");
        }
        let me = BrokerRecord { incarnation: new_incarnation(), ..(*self.me()).clone() };
        *self.me.write() = Arc::new(me);
        self.ours.lock().clear();
        if let Some(session) = session {
            // What was this life's is free at once instead of when its session ends.
            let store = self.store.clone();
            let limit = Duration::from_millis(self.config.call_limit_ms);
            tokio::spawn(async move {
                let _ = timeout(limit, store.close_session(session)).await;
            });
        }
    }

    async fn renew(&self) -> LeaseEvent {
        let (asked_ms, session) = (self.now_ms(), *self.session.lock());
        let Some(session) = session else { return LeaseEvent::Expired };
        let limit = Duration::from_millis(self.config.call_limit_ms.min(self.config.times.renew_every_ms).max(1));
        match timeout(limit, self.store.renew_session(session)).await {
            Ok(Ok(())) => LeaseEvent::Renewed { asked_ms },
            Ok(Err(MetadataError::SessionExpired(_))) => {
                *self.session.lock() = None;
                LeaseEvent::Expired
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the session was not renewed");
                LeaseEvent::Failed
            }
            Err(_) => LeaseEvent::Failed,
        }
    }

    async fn open(&self, same_life: bool) -> LeaseEvent {
        let limit = Duration::from_millis(self.config.call_limit_ms);
        match timeout(limit, self.open_session(same_life)).await {
            Ok(Ok(asked_ms)) => LeaseEvent::Opened { asked_ms },
            Ok(Err(error)) => {
                tracing::debug!(%error, "the broker is not registered yet");
                self.taken.lock().failed(&error);
                LeaseEvent::Failed
            }
            Err(_) => LeaseEvent::Failed,
        }
    }

    async fn open_session(&self, same_life: bool) -> Result<u64, MetadataError> {
        let asked_ms = self.now_ms();
        let session = self.store.open_session(self.config.times.ttl_ms).await?.id;
        match self.register(session, same_life).await {
            Ok(()) => {
                *self.session.lock() = Some(session);
                Ok(asked_ms)
            }
            Err(error) => {
                let _ = self.store.close_session(session).await;
                Err(error)
            }
        }
    }

    /// Writes this broker's record. An older life of it keeps the place until its session ends.
    async fn register(&self, session: SessionId, same_life: bool) -> Result<(), MetadataError> {
        let me = self.me();
        let key = broker_key(&me.id);
        let there = self.store.get(&key).await?;
        let condition = match &there {
            None => Condition::Absent,
            Some(entry) => match decode::<BrokerRecord>(&key, &entry.value) {
                Ok(record) if same_life && record.incarnation == me.incarnation => Condition::Is(entry.version),
                found => {
                    self.taken.lock().by(found.ok(), &me, self.config.times.ttl_ms, self.now_ms());
                    return Err(MetadataError::Unavailable(format!("{key} is still taken")));
                }
            },
        };
        let value = encode(&*me);
        let put = Operation::Put { key: key.clone(), value: value.clone(), condition, ephemeral: Some(session) };
        let version = self.store.commit(vec![put]).await?;
        self.apply_put(&key, &value, version);
        self.taken.lock().free(self.now_ms());
        Ok(())
    }

    async fn ask_peers(&self) -> Evidence {
        let me = self.me().id.clone();
        let peers: Vec<_> = self.brokers().into_iter().filter(|broker| broker.id != me).collect();
        if peers.is_empty() {
            // Nobody lives who could take anything.
            return if self.known.load(Ordering::Relaxed) { Evidence::AwayForAll } else { Evidence::Unknown };
        }
        let Some(host) = self.host() else { return Evidence::Unknown };
        let limit = Duration::from_millis(self.config.times.renew_every_ms / PEERS_LIMIT_SHARE);
        timeout(limit, host.ask_peers(peers)).await.unwrap_or(Evidence::Unknown)
    }
}
