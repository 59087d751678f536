//! Time to live and backlog quotas: what is acked without a consumer, and when producers are kept out.
//!
//! Role: the checks that [`PersistentTopic::every_second`] starts. Internal cursors are outside of all of them.
//! Failure: a check that can't read storage ends; the next one tries again.

use super::PersistentTopic;
use super::subscription::Subscription;
use crate::api::{BacklogQuotaFigures, TopicError, TopicErrorKind, TopicLimits};
use crate::ttl::is_expired;
use meridian_managed_ledger::{AckPosition, LedgerInfo, LogEntry};
use meridian_types::Position;
use meridian_wire::payload::summarize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Entries looked at in one read of an expiry.
const EXPIRY_READ_ENTRIES: u32 = 1000;
/// Pause before the check that a refused producer asks for.
const HASTE_MS: u64 = 1000;
const EXPIRY_READ_BYTES: u64 = 4 << 20;
/// After an eviction by size this much of the quota is left, in percent, so that the next message does not evict again.
const EVICT_TO_PERCENT: u64 = 90;

/// Bits of what is exceeded.
const OVER_SIZE: u8 = 1;
const OVER_AGE: u8 = 2;
/// The policy that evicts.
const EVICT: u8 = 2;

/// The backlog's quotas, as the last check found them, and what was evicted since the load.
#[derive(Default)]
pub(super) struct QuotaState {
    /// Bits of the quotas that are exceeded.
    exceeded: AtomicU8,
    oldest_ms: AtomicU64,
    evicted_by_size: AtomicU64,
    evicted_by_age: AtomicU64,
}

fn broker_time_ms(entry: &LogEntry) -> u64 {
    entry.broker_time_ms
}

impl PersistentTopic {
    pub(super) fn start_expiry(&self, now_ms: u64) {
        let ttl_ms = u64::from(self.limits.read().message_ttl_s) * 1000;
        let Some(topic) = self.me.upgrade().filter(|_| ttl_ms != 0) else { return };
        let backlogged: Vec<_> =
            self.all_subscriptions().into_iter().filter(|sub| sub.cursor.backlog_entries() > 0).collect();
        if backlogged.is_empty() {
            return;
        }
        self.deps.runtime.spawn(async move {
            for subscription in backlogged {
                if let Err(error) = topic.expire_older(&subscription, ttl_ms, now_ms).await {
                    tracing::warn!(topic = %topic.name, subscription = %subscription.name, %error, "expiry failed");
                }
            }
        });
    }

    pub(super) async fn expire_named(&self, name: &str, older_than_s: u64) -> Result<(), TopicError> {
        let subscription = self.subscription(name).ok_or_else(|| {
            TopicError::new(TopicErrorKind::SubscriptionNotFound, format!("Subscription {name} not found"))
        })?;
        self.expire_older(&subscription, older_than_s.saturating_mul(1000), self.now_ms()).await?;
        Ok(())
    }

    /// Acks what was stored (or fell due, if later) longer ago than that; answers how many entries.
    async fn expire_older(
        &self,
        subscription: &Arc<Subscription>,
        ttl_ms: u64,
        now_ms: u64,
    ) -> Result<u64, TopicError> {
        let before_ms = now_ms.saturating_sub(ttl_ms).saturating_add(1);
        let mut from = subscription.cursor.read_start();
        // Mostly nothing has expired: one look tells.
        let first = self.log.read(from, 1, u64::MAX).await?;
        if first.first().is_none_or(|entry| entry.broker_time_ms >= before_ms) {
            return Ok(0);
        }
        let end = self.log.find_by_time(before_ms, &broker_time_ms).await?;
        if !self.limits.read().delayed_delivery {
            let ack = AckPosition { position: self.log.previous(end), unacked_batch_indexes: None, messages: 0 };
            let expired = subscription.cursor.ack_cumulative(ack).entries;
            self.note_expired(subscription, expired, now_ms);
            return Ok(expired);
        }
        let mut expired = 0;
        while from < end {
            let entries = self.log.read(from, EXPIRY_READ_ENTRIES, EXPIRY_READ_BYTES).await?;
            let Some(last) = entries.last() else { break };
            from = last.position.next_in_ledger();
            let acks: Vec<AckPosition> = entries
                .iter()
                .filter(|entry| entry.position < end && has_expired(entry, ttl_ms, now_ms))
                .map(|entry| AckPosition { position: entry.position, unacked_batch_indexes: None, messages: 0 })
                .collect();
            if !acks.is_empty() {
                expired += subscription.cursor.ack(&acks).entries;
            }
        }
        self.note_expired(subscription, expired, now_ms);
        Ok(expired)
    }

    fn note_expired(&self, subscription: &Arc<Subscription>, expired: u64, now_ms: u64) {
        if expired == 0 {
            return;
        }
        {
            let mut state = subscription.state.lock();
            state.expired_total += expired;
            state.last_expire_ms = now_ms;
        }
        self.acked_by_others(subscription);
    }

    /// The next check comes within a second.
    pub(super) fn hasten_quota_check(&self) {
        self.next_quota_ms.fetch_min(self.now_ms().saturating_add(HASTE_MS), Ordering::Relaxed);
    }

    pub(super) fn start_quota_check(&self, now_ms: u64) {
        let limits = self.limits();
        if limits.backlog_quota_bytes == 0 && limits.backlog_quota_s == 0 {
            self.quota.exceeded.store(0, Ordering::Relaxed);
            self.quota.oldest_ms.store(0, Ordering::Relaxed);
            return;
        }
        let Some(topic) = self.me.upgrade() else { return };
        self.deps.runtime.spawn(async move {
            if let Err(error) = topic.check_quota(now_ms).await {
                tracing::warn!(topic = %topic.name, %error, "the check of the backlog quota failed");
            }
        });
    }

    async fn check_quota(&self, now_ms: u64) -> Result<(), TopicError> {
        let limits = self.limits();
        let ledgers = self.log.info().ledgers;
        let (mut exceeded, mut oldest_ms) = (0, 0);
        for subscription in self.all_subscriptions().into_iter().filter(|subscription| subscription.durable) {
            let start = subscription.cursor.read_start();
            if subscription.cursor.backlog_entries() == 0 {
                continue;
            }
            let bytes = bytes_from(&ledgers, start);
            let over_size = limits.backlog_quota_bytes != 0 && bytes > limits.backlog_quota_bytes;
            let stored_ms = if limits.backlog_quota_s == 0 { None } else { self.stored_ms(start).await? };
            let limit_ms = limits.backlog_quota_s.saturating_mul(1000);
            let over_age = stored_ms.is_some_and(|stored_ms| now_ms.saturating_sub(stored_ms) > limit_ms);
            oldest_ms = stored_ms.filter(|stored_ms| oldest_ms == 0 || *stored_ms < oldest_ms).unwrap_or(oldest_ms);
            exceeded |= if over_size { OVER_SIZE } else { 0 } | if over_age { OVER_AGE } else { 0 };
            if over_size && limits.backlog_bytes_policy == EVICT {
                let keep = limits.backlog_quota_bytes / 100 * EVICT_TO_PERCENT;
                let evicted = self.evict_up_to(&subscription, position_with(&ledgers, keep), now_ms);
                self.quota.evicted_by_size.fetch_add(evicted, Ordering::Relaxed);
            }
            if over_age && limits.backlog_age_policy == EVICT {
                let before_ms = now_ms.saturating_sub(limits.backlog_quota_s * 1000);
                let end = self.log.find_by_time(before_ms, &broker_time_ms).await?;
                let evicted = self.evict_up_to(&subscription, end, now_ms);
                self.quota.evicted_by_age.fetch_add(evicted, Ordering::Relaxed);
            }
        }
        self.quota.oldest_ms.store(oldest_ms, Ordering::Relaxed);
        self.quota.exceeded.store(exceeded, Ordering::Relaxed);
        if self.quota_refusal(&limits).is_some() {
            self.with_producers(|side| side.core.close_all());
        }
        Ok(())
    }

    /// Why producers are kept out by a quota, if they are: the size before the age, each by its own policy.
    pub(super) fn quota_refusal(&self, limits: &TopicLimits) -> Option<TopicErrorKind> {
        let exceeded = self.quota.exceeded.load(Ordering::Relaxed);
        let refusal = |over: u8, policy: u8| match policy {
            _ if exceeded & over == 0 => None,
            0 => Some(TopicErrorKind::ProducerBlockedQuotaExceededError),
            1 => Some(TopicErrorKind::ProducerBlockedQuotaExceededException),
            _ => None,
        };
        refusal(OVER_SIZE, limits.backlog_bytes_policy).or_else(|| refusal(OVER_AGE, limits.backlog_age_policy))
    }

    /// When the first entry from a position on was stored.
    async fn stored_ms(&self, start: Position) -> Result<Option<u64>, TopicError> {
        let first = self.log.read(start, 1, u64::MAX).await?;
        Ok(first.first().map(|entry| entry.broker_time_ms))
    }

    /// How near the backlog is to its quotas.
    pub(super) fn backlog_quota_figures(&self) -> BacklogQuotaFigures {
        let limits = self.limits.read();
        BacklogQuotaFigures {
            limit_bytes: limits.backlog_quota_bytes,
            limit_s: limits.backlog_quota_s,
            oldest_ms: self.quota.oldest_ms.load(Ordering::Relaxed),
            evicted_by_size_entries: self.quota.evicted_by_size.load(Ordering::Relaxed),
            evicted_by_age_entries: self.quota.evicted_by_age.load(Ordering::Relaxed),
        }
    }

    /// Acks everything before `end` for a subscription; answers how many entries.
    fn evict_up_to(&self, subscription: &Arc<Subscription>, end: Position, now_ms: u64) -> u64 {
        let last = self.log.previous(end);
        if last < subscription.cursor.read_start() {
            return 0;
        }
        let ack = AckPosition { position: last, unacked_batch_indexes: None, messages: 0 };
        let outcome = subscription.cursor.ack_cumulative(ack);
        tracing::warn!(
            topic = %self.name, subscription = %subscription.name, entries = outcome.entries,
            "evicted the oldest part of a backlog over its quota"
        );
        self.note_expired(subscription, outcome.entries, now_ms);
        outcome.entries
    }
}

fn has_expired(entry: &LogEntry, ttl_ms: u64, now_ms: u64) -> bool {
    let deliver_at_ms = || {
        let at = summarize(&entry.payload).ok()?.deliver_at_time_ms?;
        u64::try_from(at).ok()
    };
    entry.marker || is_expired(entry.broker_time_ms, deliver_at_ms(), ttl_ms, now_ms)
}

/// Bytes from a position to the end; within a ledger by the mean size of its entries.
pub(super) fn bytes_from(ledgers: &[LedgerInfo], from: Position) -> u64 {
    let in_ledger = |ledger: &LedgerInfo| {
        if ledger.ledger_id > from.ledger_id {
            ledger.bytes
        } else if ledger.ledger_id == from.ledger_id && ledger.entries > 0 {
            let before = u64::try_from(from.entry_id.0).unwrap_or(0).min(ledger.entries);
            ledger.bytes - ledger.bytes / ledger.entries * before
        } else {
            0
        }
    };
    ledgers.iter().map(in_ledger).sum()
}

/// Bytes of a backlog: those of its range, less the share of the entries in it that are acked.
pub(super) fn backlog_bytes(ledgers: &[LedgerInfo], from: Position, backlog_entries: u64) -> u64 {
    let entries: u64 = ledgers
        .iter()
        .map(|ledger| match ledger.ledger_id.cmp(&from.ledger_id) {
            std::cmp::Ordering::Greater => ledger.entries,
            std::cmp::Ordering::Equal => ledger.entries.saturating_sub(u64::try_from(from.entry_id.0).unwrap_or(0)),
            std::cmp::Ordering::Less => 0,
        })
        .sum();
    if entries == 0 || backlog_entries == 0 {
        return 0;
    }
    let share = u128::from(bytes_from(ledgers, from)) * u128::from(backlog_entries.min(entries)) / u128::from(entries);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The first position from which no more than that many bytes follow.
fn position_with(ledgers: &[LedgerInfo], keep_bytes: u64) -> Position {
    let mut kept = 0;
    let mut position = Position::LATEST;
    for ledger in ledgers.iter().rev() {
        if kept + ledger.bytes > keep_bytes {
            let mean = (ledger.bytes / ledger.entries.max(1)).max(1);
            let entries = (keep_bytes - kept) / mean;
            let first = ledger.entries.saturating_sub(entries);
            return Position::new(ledger.ledger_id.0, i64::try_from(first).unwrap_or(i64::MAX));
        }
        kept += ledger.bytes;
        position = Position::new(ledger.ledger_id.0, 0);
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::{EntryId, LedgerId};

    fn ledger(id: i64, entries: u64, bytes: u64) -> LedgerInfo {
        LedgerInfo {
            ledger_id: LedgerId(id),
            entries,
            bytes,
            bytes_estimated: false,
            first_index: 0,
            last_entry: EntryId(entries as i64 - 1),
            created_ms: 0,
            closed_ms: None,
        }
    }

    #[test]
    fn bytes_are_counted_from_the_position_on() {
        let ledgers = [ledger(1, 10, 1000), ledger(2, 10, 2000)];
        assert_eq!(bytes_from(&ledgers, Position::new(1, 0)), 3000);
        assert_eq!(bytes_from(&ledgers, Position::new(1, 4)), 2600);
        assert_eq!(bytes_from(&ledgers, Position::new(2, 10)), 0);
        assert_eq!(bytes_from(&ledgers, Position::new(3, 0)), 0);
    }

    #[test]
    fn a_backlog_with_holes_counts_what_is_left() {
        let ledgers = [ledger(1, 10, 1000), ledger(2, 10, 2000)];
        assert_eq!(backlog_bytes(&ledgers, Position::new(1, 0), 20), 3000);
        assert_eq!(backlog_bytes(&ledgers, Position::new(2, 0), 5), 1000);
        assert_eq!(backlog_bytes(&ledgers, Position::new(2, 5), 0), 0);
        assert_eq!(backlog_bytes(&[], Position::EARLIEST, 7), 0);
    }

    #[test]
    fn eviction_keeps_the_newest_bytes() {
        let ledgers = [ledger(1, 10, 1000), ledger(2, 10, 2000)];
        assert_eq!(position_with(&ledgers, 1000), Position::new(2, 5));
        assert_eq!(position_with(&ledgers, 2500), Position::new(1, 5));
        assert_eq!(position_with(&ledgers, 5000), Position::new(1, 0));
    }
}
