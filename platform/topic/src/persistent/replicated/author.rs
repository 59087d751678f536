//! From what was acknowledged here to parts by origin.
//!
//! Role: compares the cursor with what of it is in the state already. Own entries need no look-up: their position is their
//! origin, so acked ranges go out as they are. Entries of other regions are found in the index, and where it does not
//! reach, in the log.
//! Failure: an entry that can't be read any more (trimmed meanwhile) can't be told; its region delivers it again.

use super::{Share, Work, origin_of};
use crate::api::TopicError;
use crate::persistent::PersistentTopic;
use crate::persistent::subscription::Subscription;
use crate::sharing::AckSetup;
use meridian_cursors::exact::{AckState, EntrySet, Origin};
use meridian_managed_ledger::{CursorAcks, LogError};
use meridian_types::{EntryId, LedgerId, Position};

/// Entries read in one look-up, and in one round at most.
const READ_ENTRIES: u32 = 1000;
const READ_BYTES: u64 = 4 << 20;
const ROUND_ENTRIES: u64 = 20_000;

fn at(ledger_id: LedgerId, entry: u32) -> Position {
    Position { ledger_id, entry_id: EntryId(i64::from(entry)) }
}

impl PersistentTopic {
    /// Takes what is newly acknowledged into the state; whether more is left for another round.
    pub(super) async fn author(
        &self,
        subscription: &Subscription,
        share: &Share,
        work: &mut Work,
        setup: &AckSetup,
    ) -> Result<bool, TopicError> {
        let Some((generation, mut acks)) = subscription.cursor.acks_since(work.generation) else { return Ok(false) };
        let own = self.own_origin(setup);
        let mut part = AckState::new(share.epoch());
        if acks.mark_delete.ledger_id.0 >= 0 {
            part.raise_upto(own, acks.mark_delete);
        }
        let wanted = acks.mark_delete;
        if wanted > work.authored.mark_delete {
            let from = work.authored.mark_delete.next_in_ledger();
            acks.mark_delete = self.foreign_of(&mut part, from, wanted, ROUND_ENTRIES).await?;
        }
        for (ledger, set) in &acks.acked {
            let mut new = set.clone();
            if let Some(known) = work.authored.acked.get(ledger) {
                new -= known;
            }
            for run in new.into_iter().collect::<EntrySet>().runs() {
                part.ack_run(own, *ledger, run.clone());
                self.foreign_of(&mut part, at(*ledger, *run.start()), at(*ledger, *run.end()), u64::MAX).await?;
            }
        }
        self.author_batches(&mut part, &acks, work, own).await?;
        match share.acks.lock().author(&part, self.now_ms()) {
            Ok(changed) => work.dirty |= changed,
            Err(error) => {
                tracing::debug!(topic = %self.name, subscription = %subscription.name, %error, "acks are kept back");
                return Ok(true);
            }
        }
        let more = acks.mark_delete < wanted;
        work.generation = (!more).then_some(generation);
        work.authored = acks;
        Ok(more)
    }

    /// Batches of which another part is acknowledged now.
    async fn author_batches(
        &self,
        part: &mut AckState,
        acks: &CursorAcks,
        work: &Work,
        own: Origin,
    ) -> Result<(), TopicError> {
        for (position, left) in &acks.partial {
            if work.authored.partial.get(position) == Some(left) {
                continue;
            }
            let Some(entry) = self.entry_at(*position).await? else { continue };
            let acked = |index: usize| {
                let bits = (entry.messages.max(1) as usize).saturating_sub(index * 64).min(64);
                let all = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                all & !left.get(index).copied().unwrap_or(0)
            };
            let words: Vec<u64> = (0..entry.messages.div_ceil(64) as usize).map(acked).collect();
            let (origin, position) = match self.is_own(&entry) {
                true => (own, entry.position),
                false => origin_of(&entry),
            };
            part.ack_partly(origin, position, &words);
        }
        Ok(())
    }

    /// Acks the foreign entries among the local ones from `from` to `to`; up to where, if `most` entries had to be read.
    async fn foreign_of(
        &self,
        part: &mut AckState,
        from: Position,
        to: Position,
        most: u64,
    ) -> Result<Position, LogError> {
        let covered = self.sharing.index.lock().as_ref().map(|index| {
            for run in index.between(from, to) {
                let first = run.first.entry_id.0 as u32;
                part.ack_run(run.origin, run.first.ledger_id, first..=first + (run.len - 1));
            }
            (index.from(), index.to())
        });
        let Some((covered_from, covered_to)) = covered else {
            return self.read_foreign(part, from, to, most).await;
        };
        let mut reached = to;
        if from < covered_from {
            let end = to.min(self.log.previous(covered_from));
            reached = self.read_foreign(part, from, end, most).await?;
            if reached < end {
                return Ok(reached);
            }
            reached = to;
        }
        if to >= covered_to {
            reached = self.read_foreign(part, from.max(covered_to), to, most).await?;
        }
        Ok(reached)
    }

    async fn read_foreign(
        &self,
        part: &mut AckState,
        from: Position,
        to: Position,
        most: u64,
    ) -> Result<Position, LogError> {
        let (mut next, mut read) = (from, 0u64);
        while next <= to && self.has_origins() {
            if read >= most {
                return Ok(self.log.previous(next));
            }
            let entries = self.log.read(next, READ_ENTRIES, READ_BYTES).await?;
            let Some(last) = entries.last() else { break };
            next = last.position.next_in_ledger();
            read += entries.len() as u64;
            for entry in entries.iter().filter(|entry| entry.position <= to && !self.is_own(entry)) {
                let (origin, position) = origin_of(entry);
                part.ack(origin, position);
            }
        }
        Ok(to)
    }
}
