//! What a broker does by itself: closes what was moved away, and leads if it is elected.

use super::RegionOwnership;
use super::balance::Balancer;
use crate::api::Ownership;
use crate::records::{LEADER, LeaderRecord, encode};
use meridian_metadata::{Condition, Operation};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Changes that follow each other are acted on together; the parts of a split bundle come one by one.
const GATHER: Duration = Duration::from_millis(5);
/// Pause between two looks of the leader, and of those who may become it.
const LOOK: Duration = Duration::from_millis(100);

/// Closes topics of bundles that were moved away, by whomever.
pub(super) async fn close_moved(weak: Weak<RegionOwnership>, mut moved: watch::Receiver<u64>) {
    while moved.changed().await.is_ok() {
        sleep(GATHER).await;
        moved.mark_unchanged();
        let Some(host) = weak.upgrade().and_then(|region| region.host()) else { return };
        host.close_moved().await;
    }
}

/// Stands for election, and does what the leader does.
pub(super) async fn lead(weak: Weak<RegionOwnership>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut balancer = Balancer::default();
    loop {
        looks.tick().await;
        let Some(region) = weak.upgrade() else { return };
        if !region.in_force() || !region.known.load(Ordering::Acquire) || region.leaving.load(Ordering::Acquire) {
            continue;
        }
        let me = region.me();
        let (vacant, leads, orphans) = {
            let table = region.table.read();
            let leader = table.leader();
            let leads = leader.is_some_and(|one| one.record.id == me.id && one.record.incarnation == me.incarnation);
            (!table.has_leader_record(), leads, leads && !table.orphans().is_empty())
        };
        if vacant && !me.draining {
            region.stand_for_election().await;
        }
        if orphans
            && region.now_ms() >= region.settled_ms.load(Ordering::Relaxed)
            && let Err(error) = region.rescue().await
        {
            tracing::warn!(%error, "bundles of brokers that have gone were not given to others yet");
        }
        if leads && balancer.is_due(region.now_ms(), region.config.balance_every_ms) {
            region.balance(&mut balancer).await;
        }
    }
}

impl RegionOwnership {
    async fn stand_for_election(&self) {
        let session = *self.session.lock();
        let Some(session) = session else { return };
        let me = self.me();
        let value = encode(&LeaderRecord { broker: me.id.clone(), incarnation: me.incarnation });
        let put = Operation::Put {
            key: LEADER.to_owned(),
            value: value.clone(),
            condition: Condition::Absent,
            ephemeral: Some(session),
        };
        let limit = Duration::from_millis(self.config.call_limit_ms);
        match timeout(limit, self.store.commit(vec![put])).await {
            Ok(Ok(version)) => {
                self.apply_put(LEADER, &value, version);
                tracing::info!(broker = me.id, "this broker leads");
            }
            _ => drop(self.refresh(&[LEADER.to_owned()]).await),
        }
    }
}
