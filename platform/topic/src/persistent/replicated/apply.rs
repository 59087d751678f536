//! From what other regions acknowledged to acks of this region's cursor.
//!
//! Role: own entries are acknowledged by their position; entries of other regions by the index; entries that arrive after
//! their acknowledgement when the index reaches them. The dispatcher is told of what consumers hold.
//! Failure: what is not applied yet is in the state: the dispatcher asks it, and it is stored.

use super::index::OriginIndex;
use super::{Elsewhere, Share, Work, elsewhere, origin_of};
use crate::api::TopicError;
use crate::persistent::PersistentTopic;
use crate::persistent::subscription::Subscription;
use crate::sharing::AckSetup;
use meridian_cursors::exact::{AckState, OriginAcks};
use meridian_managed_ledger::{AckPosition, LogEntry, LogError};
use meridian_types::{EntryId, Position};
use std::sync::Arc;

/// Acks handed to a cursor at once.
const ACKS_AT_ONCE: usize = 1000;
const READ_ENTRIES: u32 = 1000;
const READ_BYTES: u64 = 4 << 20;

fn whole(position: Position) -> AckPosition {
    AckPosition { position, unacked_batch_indexes: None, messages: 0 }
}

/// The ack that a state has for an entry.
fn ack_for(state: &AckState, entry: &LogEntry) -> Option<AckPosition> {
    let unacked_batch_indexes = match elsewhere(state, entry) {
        Elsewhere::Open => return None,
        Elsewhere::Acked => None,
        Elsewhere::Partly(words) => Some(words),
    };
    Some(AckPosition { position: entry.position, unacked_batch_indexes, messages: entry.messages })
}

fn plus(position: Position, entries: u32) -> Position {
    Position { entry_id: EntryId(position.entry_id.0 + i64::from(entries)), ..position }
}

impl PersistentTopic {
    /// Lets the index reach the end of the log; entries that were acknowledged before they arrived are acked. Answers
    /// whether it got there.
    pub(super) async fn extend_index(&self, setup: &AckSetup, shares: &[Arc<Share>]) -> bool {
        if self.sharing.index.lock().is_none() {
            let mut from = self.log.last_confirmed().next_in_ledger();
            for share in shares {
                let Some(subscription) = self.subscription(&share.name) else { continue };
                let authored = share.work.lock().await.authored.mark_delete;
                from = from.min(subscription.cursor.mark_delete().min(authored).next_in_ledger());
            }
            *self.sharing.index.lock() = Some(OriginIndex::new(self.log.next_valid(from)));
        }
        loop {
            let Some((from, full)) = self.sharing.index.lock().as_ref().map(|index| (index.to(), index.is_full()))
            else {
                return false;
            };
            let last = self.log.last_confirmed();
            if from > last || full {
                return true;
            }
            if !self.has_origins() {
                self.with_index(|index| index.looked_to(last.next_in_ledger()));
                return true;
            }
            match self.log.read(from, READ_ENTRIES, READ_BYTES).await {
                Ok(entries) if entries.is_empty() => return true,
                Ok(entries) => self.arrived(&entries, setup, shares).await,
                Err(error) => {
                    tracing::warn!(topic = %self.name, %error, "the origins of entries can't be read, trying again");
                    return false;
                }
            }
        }
    }

    fn with_index(&self, change: impl FnOnce(&mut OriginIndex)) {
        if let Some(index) = self.sharing.index.lock().as_mut() {
            change(index);
        }
    }

    async fn arrived(&self, entries: &[LogEntry], setup: &AckSetup, shares: &[Arc<Share>]) {
        let own = self.own_origin(setup);
        let foreign: Vec<&LogEntry> = entries.iter().filter(|entry| !self.is_own(entry)).collect();
        self.with_index(|index| {
            for entry in &foreign {
                let (origin, position) = origin_of(entry);
                debug_assert_ne!(origin, own);
                index.add(entry.position, origin, position);
            }
            if let Some(last) = entries.last() {
                index.looked_to(last.position.next_in_ledger());
            }
        });
        for share in shares.iter().filter(|_| !foreign.is_empty()) {
            let Some(subscription) = self.subscription(&share.name) else { continue };
            let _turn = share.work.lock().await;
            let acks: Vec<AckPosition> = {
                let acks = share.acks.lock();
                foreign.iter().filter_map(|entry| ack_for(acks.state(), entry)).collect()
            };
            self.ack_elsewhere(&subscription, &acks);
        }
    }

    /// What no share needs is dropped from the index.
    pub(super) async fn forget_index(&self, shares: &[Arc<Share>]) {
        let mut before = self.log.last_confirmed().next_in_ledger();
        for share in shares {
            let Some(subscription) = self.subscription(&share.name) else { continue };
            let authored = share.work.lock().await.authored.mark_delete;
            before = before.min(subscription.cursor.mark_delete().min(authored).next_in_ledger());
        }
        self.with_index(|index| index.forget_before(before));
    }

    /// After loading, or if the index was behind: applies everything known.
    pub(super) async fn reapply(
        &self,
        subscription: &Arc<Subscription>,
        share: &Share,
        work: &mut Work,
        setup: &AckSetup,
    ) -> Result<(), TopicError> {
        if work.reapply {
            let state = share.acks.lock().state().clone();
            work.reapply = !self.apply(subscription, &state, setup).await?;
        }
        Ok(())
    }

    /// Acks what a part says; whether the index reached far enough for all of it.
    pub(super) async fn apply(
        &self,
        subscription: &Arc<Subscription>,
        part: &AckState,
        setup: &AckSetup,
    ) -> Result<bool, TopicError> {
        let own = self.own_origin(setup);
        let (mut acks, mut batches, mut complete) = (Vec::new(), Vec::new(), true);
        {
            let index = self.sharing.index.lock();
            let Some(index) = index.as_ref() else { return Ok(false) };
            for (origin, of) in part.origins() {
                match *origin == own {
                    true => complete &= self.own_acks(subscription, index, of, &mut acks, &mut batches),
                    false => self.foreign_acks(subscription, index, (*origin, of), &mut acks, &mut batches),
                }
            }
        }
        for position in batches {
            let Some(entry) = self.entry_at(position).await? else { continue };
            acks.extend(ack_for(part, &entry));
        }
        self.ack_elsewhere(subscription, &acks);
        Ok(complete)
    }

    /// Acks of entries first stored here. Everything up to `upto` but the entries of others.
    fn own_acks(
        &self,
        subscription: &Subscription,
        index: &OriginIndex,
        of: &OriginAcks,
        acks: &mut Vec<AckPosition>,
        batches: &mut Vec<Position>,
    ) -> bool {
        let last = self.log.last_confirmed();
        let upto = of.upto().min(last);
        let mut next = subscription.cursor.read_start();
        let covered = upto < index.to() && next >= index.from();
        while covered && next <= upto {
            let foreign = index.between(next, upto).next();
            let end = foreign.map_or(upto, |run| self.log.previous(run.local));
            while next <= end {
                acks.push(whole(next));
                next = self.log.next_valid(next.next_in_ledger());
            }
            let Some(run) = foreign else { break };
            next = self.log.next_valid(plus(run.local, run.len));
        }
        for (ledger, set) in of.acked() {
            let position = |entry: u32| Position { ledger_id: *ledger, entry_id: EntryId(i64::from(entry)) };
            acks.extend(set.iter().map(|entry| whole(position(entry))));
        }
        batches.extend(of.partial().keys().copied());
        covered || subscription.cursor.read_start() > upto
    }

    fn foreign_acks(
        &self,
        subscription: &Subscription,
        index: &OriginIndex,
        (origin, of): (meridian_cursors::exact::Origin, &OriginAcks),
        acks: &mut Vec<AckPosition>,
        batches: &mut Vec<Position>,
    ) {
        let mut places = index.locals_between(origin, Position::EARLIEST, of.upto());
        for (ledger, set) in of.acked() {
            places.extend(set.runs().flat_map(|run| index.locals(origin, *ledger, run)));
        }
        let mark_delete = subscription.cursor.mark_delete();
        for (first, len) in places {
            let all = (0..len).map(|nth| plus(first, nth));
            acks.extend(all.filter(|position| *position > mark_delete).map(whole));
        }
        for at in of.partial().keys() {
            batches.extend(index.locals_between(origin, *at, *at).into_iter().map(|(local, _)| local));
        }
    }

    /// Acks that are not this region's consumers'.
    pub(super) fn ack_elsewhere(&self, subscription: &Arc<Subscription>, acks: &[AckPosition]) {
        let mut changed = false;
        for some in acks.chunks(ACKS_AT_ONCE) {
            let outcome = subscription.cursor.ack(some);
            changed |= outcome.entries > 0 || outcome.messages > 0;
        }
        if changed {
            self.acked_by_others(subscription);
        }
    }

    /// Goes through the whole log and acks what the state says.
    pub(super) async fn apply_everywhere(&self, subscription: &Subscription, state: &AckState) -> Result<(), LogError> {
        let mut next = self.log.first_position();
        loop {
            let entries = self.log.read(next, READ_ENTRIES, READ_BYTES).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            next = last.position.next_in_ledger();
            let acks: Vec<AckPosition> = entries.iter().filter_map(|entry| ack_for(state, entry)).collect();
            subscription.cursor.ack(&acks);
        }
    }
}
