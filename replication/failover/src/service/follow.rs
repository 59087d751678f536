//! What goes on by itself: peers told and asked, records of other brokers followed, figures heard, tails set aside.
//!
//! Failure: everything here is tried again at the next beat.
//! Must never know: how calls travel.

use super::{FailoverCall, FailoverReply, FailoverService, now_ms};
use crate::error::FailoverError;
use crate::keys;
use crate::record::NamespaceState;
use meridian_metadata::{Watch, WatchEvent};
use meridian_types::NamespaceName;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Pause between two looks at namespaces that nobody has confirmed yet.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

impl FailoverService {
    /// Starts what runs by itself; the tasks end with the last handle.
    pub fn start(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let this = Arc::downgrade(self);
        vec![
            tokio::spawn(beat(this.clone(), Duration::from_millis(self.settings.beat_ms.max(100)))),
            tokio::spawn(confirm(this.clone())),
            tokio::spawn(follow(this)),
        ]
    }

    /// Tells every other region of the namespace, and learns what it knows.
    pub(super) async fn tell_all(&self, namespace: &NamespaceName) {
        let Some(state) = self.state(namespace) else { return };
        for region in self.host.regions_of(namespace).iter().filter(|region| **region != self.own) {
            self.exchange(namespace, &state, region).await;
        }
    }

    /// Whether the region answered.
    async fn exchange(&self, namespace: &NamespaceName, state: &NamespaceState, region: &str) -> bool {
        let call = FailoverCall::Learn { namespace: namespace.to_string(), record: state.record.clone() };
        match self.peers.call(region, call).await {
            Ok(FailoverReply::Record(Some(record))) => {
                if let Err(error) = self.learn(namespace, &record, false).await {
                    tracing::warn!(%namespace, region, %error, "the record of a region could not be taken over");
                }
                true
            }
            Ok(FailoverReply::NotYet(reason)) => {
                tracing::debug!(%namespace, region, reason, "a region is told again who is active");
                false
            }
            Ok(FailoverReply::Refused(reason)) => {
                tracing::warn!(%namespace, region, reason, "a region refuses the record of the active region");
                false
            }
            Ok(_) | Err(_) => false,
        }
    }

    async fn beat(self: &Arc<Self>) {
        for namespace in self.namespaces() {
            self.tell_all(&namespace).await;
            let Some(state) = self.state(&namespace) else { continue };
            if state.tail_pending {
                self.set_aside(&namespace).await;
            }
            if state.record.active != self.own {
                let call = FailoverCall::Cost { namespace: namespace.to_string(), to: self.own.clone() };
                if let Ok(FailoverReply::Cost(report)) = self.peers.call(&state.record.active, call).await {
                    self.heard.write().insert(namespace, report);
                }
            }
        }
    }

    /// S3: namespaces that are active here and that no peer has confirmed.
    async fn confirm(&self) {
        for namespace in self.namespaces() {
            let Some(state) = self.state(&namespace) else { continue };
            if state.confirmed || state.record.active != self.own {
                continue;
            }
            let since_ms = self.known.read().get(&namespace).map_or(0, |known| known.since_ms);
            let others: Vec<String> = self.host.regions_of(&namespace);
            let mut answered = others.iter().all(|region| *region == self.own);
            for region in others.iter().filter(|region| **region != self.own) {
                answered |= self.exchange(&namespace, &state, region).await;
            }
            let over = now_ms().saturating_sub(since_ms) >= self.settings.confirm_ms;
            if !answered && !over {
                continue;
            }
            if !answered {
                tracing::warn!(%namespace, "no other region answers: this one goes on as the active one, unconfirmed");
            }
            if let Some(known) = self.known.write().get_mut(&namespace)
                && known.state.record.epoch == state.record.epoch
            {
                known.state.confirmed = true;
            }
            self.host.rule_changed(&namespace).await;
        }
    }

    /// The state of a namespace, also if another broker has just made its first record: the watch tells that a moment later.
    ///
    /// # Errors
    /// [`FailoverError::NotManaged`], or what the store says.
    pub async fn known_state(&self, namespace: &NamespaceName) -> Result<NamespaceState, FailoverError> {
        if let Some(state) = self.state(namespace) {
            return Ok(state);
        }
        self.catch_up(namespace).await?;
        self.state(namespace).ok_or_else(|| FailoverError::NotManaged(namespace.to_string()))
    }

    /// Takes over what another broker stored and the watch may not have told yet.
    pub(super) async fn catch_up(&self, namespace: &NamespaceName) -> Result<(), FailoverError> {
        let key = keys::active(namespace);
        if let Some(entry) = self.store.get(&key).await? {
            self.stored_elsewhere(&key, &entry.value).await;
        }
        Ok(())
    }

    /// A record that another broker of the region has stored.
    pub(super) async fn stored_elsewhere(&self, key: &str, value: &[u8]) {
        let Some(namespace) = keys::namespace_of(key) else { return };
        let Ok(stored) = NamespaceState::decode(value) else {
            tracing::error!(key, "the stored record of an active region can't be read");
            return;
        };
        let newer = match self.state(&namespace) {
            None => true,
            Some(known) => stored.record.epoch > known.record.epoch,
        };
        if newer {
            self.remember(&namespace, NamespaceState { confirmed: stored.record.active != self.own, ..stored });
            self.host.rule_changed(&namespace).await;
        }
    }
}

async fn beat(service: Weak<FailoverService>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(service) = service.upgrade() else { return };
        service.beat().await;
    }
}

async fn confirm(service: Weak<FailoverService>) {
    let mut ticks = interval(CONFIRM_PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(service) = service.upgrade() else { return };
        if service.unconfirmed() != 0 {
            service.confirm().await;
        }
    }
}

async fn follow(service: Weak<FailoverService>) {
    loop {
        let Some(store) = service.upgrade().map(|service| service.store.clone()) else { return };
        match store.watch(keys::ACTIVE, None).await {
            Ok(mut watch) => follow_one(&service, &mut *watch).await,
            Err(error) => tracing::warn!(%error, "records of active regions can't be watched"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn read_again(service: &FailoverService) {
    if let Ok(entries) = service.store.scan(keys::ACTIVE).await {
        for entry in entries {
            service.stored_elsewhere(&entry.key, &entry.value).await;
        }
    }
}

async fn follow_one(service: &Weak<FailoverService>, watch: &mut dyn Watch) {
    // What was stored before the watch began is not told by it.
    match service.upgrade() {
        Some(service) => read_again(&service).await,
        None => return,
    }
    loop {
        let Some((event, _)) = watch.next().await else { return };
        let Some(service) = service.upgrade() else { return };
        match event {
            WatchEvent::Put(entry) => service.stored_elsewhere(&entry.key, &entry.value).await,
            WatchEvent::Delete { .. } => {}
            WatchEvent::Rescan => read_again(&service).await,
        }
    }
}
