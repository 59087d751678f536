//! Subscriptions whose acknowledgements are shared with other regions.
//!
//! Role: the shell around the states of `meridian-cursors`. A task per topic, asleep while nothing happens, turns what
//! was acknowledged here into parts by origin ([`author`]), and acknowledges here what other regions did ([`apply`]); the
//! dispatcher asks before it delivers, so nothing is delivered after its acknowledgement reached the region, whether the
//! message came before it or after it.
//!
//! Lock order: the topic's `changes`, then a share's `work`, then its `acks` (never held over a wait), then the index.
//! Invariants:
//! - E1 `work` serialises authoring, applying, moving and storing of one subscription.
//! - E2 A peer's part is answered when it is stored; a new epoch is stored before the cursor moves, and again when it has.
//! - E3 What the dispatcher asks is in memory before the part is answered.
//! - E4 A subscription that other regions have and this one has not is created at the earliest entry; one that they
//!   deleted is deleted here, unless it was created after that.
//!
//! Failure: what can't be stored or read is tried again by the next round; peers get no answer until then.
//! Must never know: how parts travel, regions but by id.

mod apply;
mod author;
mod epochs;
mod exchange;
mod index;
mod store;

use super::PersistentTopic;
use super::entries::Elsewhere;
use super::subscription::Subscription;
use crate::sharing::{AckSetup, AckShareStats};
use index::OriginIndex;
use meridian_cursors::exact::{AckState, Ackedness, Epoch, Origin, SharedAcks};
use meridian_managed_ledger::{Cursor, CursorAcks, LogEntry, ManagedLedger};
use meridian_types::{Position, RegionId};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

pub(super) use store::ACKS_PROPERTY;

/// Acks that follow each other are shared together after this time.
const GATHER: Duration = Duration::from_millis(50);
/// Pause before a round that could not do everything is repeated.
const AGAIN: Duration = Duration::from_millis(500);
/// A task looks after its topic at least that often.
const LOOK: Duration = Duration::from_secs(60);
/// Deleted subscriptions remembered at most; those that all peers know go first.
const TOMBSTONES_MAX: usize = 1000;

/// What serialises the work on one share (E1).
struct Work {
    /// The cursor's acks that are in the state.
    authored: CursorAcks,
    /// Generation of the cursor at that time; `None` = look anew.
    generation: Option<u64>,
    /// The cursor follows the state's epoch.
    applied: bool,
    /// Everything known has to be applied again, once the index is there.
    reapply: bool,
    /// Changed since it was stored.
    dirty: bool,
    stored_ms: u64,
}

/// One shared subscription, or the memory of a deleted one.
pub(super) struct Share {
    name: Arc<str>,
    acks: Mutex<SharedAcks>,
    work: tokio::sync::Mutex<Work>,
    applied: AtomicBool,
}

impl Share {
    fn new(name: Arc<str>, acks: SharedAcks, authored: CursorAcks, applied: bool) -> Arc<Self> {
        let work = Work { authored, generation: None, applied, reapply: true, dirty: true, stored_ms: 0 };
        let applied = AtomicBool::new(applied);
        Arc::new(Self { name, acks: Mutex::new(acks), work: tokio::sync::Mutex::new(work), applied })
    }

    fn epoch(&self) -> Epoch {
        self.acks.lock().state().epoch()
    }

    fn is_deleted(&self) -> bool {
        self.acks.lock().state().is_deleted()
    }

    fn set_applied(&self, work: &mut Work, applied: bool) {
        work.applied = applied;
        work.dirty = true;
        self.applied.store(applied, Ordering::Relaxed);
    }

    /// Runs `ask` with the question what is acknowledged elsewhere.
    pub(super) fn with_elsewhere<R>(&self, ask: impl FnOnce(&dyn Fn(&LogEntry) -> Elsewhere) -> R) -> R {
        let acks = self.acks.lock();
        ask(&|entry| elsewhere(acks.state(), entry))
    }

    pub(super) fn stats(&self, cursor: &Cursor, log: &ManagedLedger) -> AckShareStats {
        // What is being worked on counts as not shared yet.
        let shared = self
            .work
            .try_lock()
            .ok()
            .is_some_and(|work| cursor.acks_since(work.generation).is_none_or(|(_, acks)| acks == work.authored));
        let acks = self.acks.lock();
        let state = acks.state();
        let own = Origin::new(acks.own(), log.incarnation());
        let lag_of = |peer: RegionId| {
            let mut lag = acks.lag(peer);
            let from = acks.confirmed_upto(peer, own).next_in_ledger();
            lag.entries += log.entries_between(log.next_valid(from), state.upto(own));
            lag
        };
        AckShareStats {
            epoch: state.epoch().number,
            applied: self.applied.load(Ordering::Relaxed),
            shared,
            scattered_entries: state.scattered_entries(),
            state_bytes: state.bytes() as u64,
            limit_bytes: acks.limits().max_bytes as u64,
            refusing_since_ms: acks.refusing_since_ms(),
            refused_total: acks.refused_total(),
            peers: acks.peers().map(|peer| (peer, lag_of(peer))).collect(),
        }
    }
}

fn origin_of(entry: &LogEntry) -> (Origin, Position) {
    let (region, incarnation, position) = entry.origin;
    (Origin::new(region, incarnation), position)
}

/// What a state says of an entry.
fn elsewhere(state: &AckState, entry: &LogEntry) -> Elsewhere {
    let (origin, position) = origin_of(entry);
    match state.ackedness(origin, position) {
        Ackedness::No => Elsewhere::Open,
        Ackedness::Whole => Elsewhere::Acked,
        Ackedness::Partly(acked) => match unacked(entry.messages, acked) {
            Some(words) => Elsewhere::Partly(words),
            None => Elsewhere::Acked,
        },
    }
}

/// The words of a batch's unacked messages; `None` if there are none.
fn unacked(messages: u32, acked: &[u64]) -> Option<Vec<u64>> {
    let words = messages.max(1).div_ceil(64) as usize;
    let word = |index: usize| {
        let bits = (messages.max(1) as usize - index * 64).min(64);
        let all = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        all & !acked.get(index).copied().unwrap_or(0)
    };
    let left: Vec<u64> = (0..words).map(word).collect();
    left.iter().any(|word| *word != 0).then_some(left)
}

/// The shared subscriptions of a topic.
#[derive(Default)]
pub(super) struct Sharing {
    setup: RwLock<Option<Arc<AckSetup>>>,
    shares: RwLock<BTreeMap<Arc<str>, Arc<Share>>>,
    index: Mutex<Option<OriginIndex>>,
    wake: Arc<Notify>,
    running: AtomicBool,
}

impl Sharing {
    /// Something happened that peers may have to know, or that came from them.
    pub(super) fn wake(&self) {
        if self.running.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    fn setup(&self) -> Option<Arc<AckSetup>> {
        self.setup.read().clone()
    }

    fn share(&self, name: &str) -> Option<Arc<Share>> {
        self.shares.read().get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<Share>> {
        self.shares.read().values().cloned().collect()
    }
}

impl PersistentTopic {
    pub(super) fn own_origin(&self, setup: &AckSetup) -> Origin {
        Origin::new(setup.region, self.log.incarnation())
    }

    /// Puts a set-up in force.
    pub(super) fn set_up_sharing(&self, setup: AckSetup) {
        let setup = Arc::new(setup);
        let first = self.sharing.setup.write().replace(setup.clone()).is_none();
        if first {
            self.load_tombstones(&setup);
        }
        for subscription in self.all_subscriptions() {
            if subscription.share().is_none() && self.wants_sharing(&subscription, &setup) {
                self.attach_stored(&subscription, &setup);
            }
        }
        let now_ms = self.now_ms();
        for share in self.sharing.all() {
            set_peers(&mut share.acks.lock(), &setup, now_ms);
        }
        self.start_sharing();
        self.sharing.wake();
    }

    /// Starts the task, if there is something to share.
    fn start_sharing(&self) {
        if self.sharing.shares.read().is_empty() || self.sharing.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (topic, wake) = (self.me.clone(), self.sharing.wake.clone());
        self.deps.runtime.spawn(run(topic, wake));
    }

    /// Adds a share, whose subscription (if it exists) asks it from now on. The first one of a name stays.
    fn add_share(&self, share: Arc<Share>, subscription: Option<&Subscription>, setup: &AckSetup) -> Arc<Share> {
        set_peers(&mut share.acks.lock(), setup, self.now_ms());
        let share = self.sharing.shares.write().entry(share.name.clone()).or_insert(share).clone();
        if let Some(subscription) = subscription {
            subscription.set_share(Some(share.clone()));
        }
        self.start_sharing();
        self.sharing.wake();
        share
    }

    /// One round: the index grows, acks go out, what came is applied. Answers whether something is left to do soon.
    async fn share_round(&self) -> bool {
        let Some(setup) = self.sharing.setup() else { return false };
        let shares = self.sharing.all();
        let mut left = !self.extend_index(&setup, &shares).await;
        for share in &shares {
            match self.share_one(share, &setup).await {
                Ok(more) => left |= more,
                Err(error) => {
                    tracing::warn!(topic = %self.name, subscription = %share.name, %error, "sharing acks failed, trying again");
                    left = true;
                }
            }
        }
        self.forget_index(&shares).await;
        let now_ms = self.now_ms();
        let ready = shares.iter().any(|share| {
            let acks = share.acks.lock();
            setup.peers.iter().any(|peer| acks.wants(*peer, now_ms))
        });
        if ready {
            setup.listener.acks_ready(&self.name);
        }
        left || shares.iter().any(|share| share.acks.lock().holds_back(now_ms))
    }

    async fn share_one(&self, share: &Arc<Share>, setup: &AckSetup) -> Result<bool, crate::api::TopicError> {
        let subscription = self.subscription(&share.name);
        if share.is_deleted() {
            if let Some(subscription) = subscription {
                self.delete_shared(&subscription).await?;
            }
            return Ok(false);
        }
        let Some(subscription) = subscription else { return Ok(false) };
        let mut work = share.work.lock().await;
        if !work.applied {
            self.follow_epoch(&subscription, share, &mut work).await?;
        }
        self.reapply(&subscription, share, &mut work, setup).await?;
        let more = self.author(&subscription, share, &mut work, setup).await?;
        self.store_if_due(&subscription, share, &mut work).await?;
        Ok(more || work.dirty || work.reapply)
    }
}

fn set_peers(acks: &mut SharedAcks, setup: &AckSetup, now_ms: u64) {
    let gone: Vec<_> = acks.peers().filter(|peer| !setup.peers.contains(peer)).collect();
    gone.into_iter().for_each(|peer| acks.remove_peer(peer));
    setup.peers.iter().for_each(|peer| acks.add_peer(*peer, now_ms));
}

async fn run(topic: Weak<PersistentTopic>, wake: Arc<Notify>) {
    let mut pause = LOOK;
    loop {
        // A wait that ends without a call is as good as one.
        let woken = tokio::time::timeout(pause, wake.notified()).await.is_ok();
        if woken {
            tokio::time::sleep(GATHER).await;
        }
        let Some(topic) = topic.upgrade().filter(|topic| !topic.is_closed()) else { return };
        pause = if topic.share_round().await { AGAIN } else { LOOK };
    }
}

#[cfg(test)]
mod tests {
    use super::unacked;

    #[test]
    fn unacked_words_end_with_the_batch() {
        assert_eq!(unacked(10, &[0b11]), Some(vec![0b11_1111_1100]));
        assert_eq!(unacked(3, &[0b111]), None);
        assert_eq!(unacked(64, &[u64::MAX]), None);
        assert_eq!(unacked(65, &[u64::MAX]), Some(vec![0, 1]));
        assert_eq!(unacked(130, &[]), Some(vec![u64::MAX, u64::MAX, 3]));
        assert_eq!(unacked(0, &[1]), None);
    }
}
