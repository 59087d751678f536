//! Consumers joining and leaving.
//!
//! Failure: a consumer that may not join is told why ([`TopicError`] as on the wire) and leaves no trace.

use super::{Consumer, ConsumerSpec, Dispatcher, Effect};
use crate::api::{ConsumerKey, KeySharedPolicy, SubscriptionType, TopicError, TopicErrorKind};
use crate::dispatch::key_shared::KeyHolders;
use meridian_types::Position;

/// A consumer that wants in, and where the cursor and the log stand.
#[derive(Debug, Clone)]
pub(crate) struct Joining<'a> {
    pub(crate) spec: ConsumerSpec,
    pub(crate) key_shared: Option<&'a KeySharedPolicy>,
    /// Points per consumer if keys are spread by consistent hashing.
    pub(crate) consistent_hashing: Option<u32>,
    pub(crate) first_unacked: Position,
    pub(crate) last_confirmed: Position,
}

impl Dispatcher {
    /// Adds a consumer. The limits on the number of consumers were checked by the caller.
    pub(crate) fn join(&mut self, joining: Joining<'_>, now_ms: u64) -> Result<(), TopicError> {
        if self.sub_type == SubscriptionType::Exclusive && !self.consumers.is_empty() {
            return Err(TopicError::new(TopicErrorKind::ConsumerBusy, "Exclusive consumer is already connected"));
        }
        let key = joining.spec.key;
        let first = self.consumers.is_empty();
        if self.sub_type == SubscriptionType::KeyShared {
            self.join_keys(&joining)?;
        }
        self.last_confirmed = self.last_confirmed.max(joining.last_confirmed);
        self.consumers.push(Consumer::new(joining.spec));
        if self.is_single() {
            let stays = self.choose_active(now_ms, joining.first_unacked);
            if stays && self.sub_type == SubscriptionType::Failover {
                self.effects.push_back(Effect::ActiveChanged { consumer: key, is_active: false });
            }
        } else if first {
            self.start_over(joining.first_unacked);
        } else if self.keys.is_some() {
            self.reassign_replay();
        }
        Ok(())
    }

    fn join_keys(&mut self, joining: &Joining<'_>) -> Result<(), TopicError> {
        let auto_split = KeySharedPolicy::AutoSplit { allow_out_of_order: false };
        let policy = joining.key_shared.unwrap_or(&auto_split);
        if self.consumers.is_empty() {
            self.keys = Some(KeyHolders::new(policy, joining.consistent_hashing));
        }
        match &mut self.keys {
            Some(keys) => keys.join(joining.spec.key, &joining.spec.name, policy),
            None => Ok(()),
        }
    }

    /// Nothing is held by anyone: start at the first unacked entry.
    fn start_over(&mut self, first_unacked: Position) {
        self.replay.clear();
        self.delayed.clear();
        self.chunked.clear();
        self.rewind(first_unacked);
    }

    /// Owners may have changed: by key, and parts of chunked messages whose holder is gone are anybody's.
    fn reassign_replay(&mut self) {
        let keys = self.keys.as_ref();
        self.replay.reassign(&|hash| keys.and_then(|keys| keys.owner(hash)));
    }

    /// Removes a consumer; what it held unacked waits for the others.
    pub(crate) fn leave(&mut self, key: ConsumerKey, now_ms: u64, first_unacked: Position) {
        let Some(index) = self.index_of(key) else { return };
        let gone = self.consumers.remove(index);
        if self.is_single() {
            self.choose_active(now_ms, first_unacked);
            return;
        }
        self.unacked -= gone.unacked;
        self.update_subscription_blocked();
        self.chunked.retain(|_, holder| *holder != key);
        if index < self.round_robin {
            self.round_robin -= 1;
        }
        if let Some(keys) = &mut self.keys {
            keys.leave(key);
        }
        if self.consumers.is_empty() {
            self.keys = None;
            self.start_over(first_unacked);
            return;
        }
        for (position, pending) in gone.pending {
            if let Some(keys) = &mut self.keys {
                keys.release(pending.key_hash);
            }
            self.replay.add(None, position, pending.key_hash);
        }
        self.reassign_replay();
    }
}
