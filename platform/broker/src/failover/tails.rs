//! Tails of topics: what a deposed region had stored and not delivered to the region that is active now.
//!
//! Invariants: R1 to R4 of [`meridian_failover::returning`]; the order is: links stopped, members found, tail's cursor made,
//! tail stored, replication cursors moved past, links again. Whatever ends in between is done again from the start and ends
//! at the same.
//! Failure: [`FailoverError::Host`].
//! Must never know: who decides.

use super::positions;
use crate::service::{BrokerService, Create, now_ms};
use bytes::Bytes;
use meridian_failover::returning::{EPOCH_PROPERTY, POSITION_PROPERTY, REGION_PROPERTY, Tail, cursor_name};
use meridian_failover::{ActiveRecord, FailoverError};
use meridian_managed_ledger::{AckPosition, Cursor, CursorOptions, InitialPosition, LogEntry, ManagedLedger};
use meridian_metadata::BoxFuture;
use meridian_types::{Position, RegionId, TopicName};
use meridian_wire::replicate;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entries read at once.
const READ_ENTRIES: u32 = 1000;
/// Entries published before they count as replayed.
const REPLAY_ENTRIES: usize = 500;
/// Bytes read at once.
const READ_BYTES: u64 = 4 << 20;

fn host(error: impl std::fmt::Display) -> FailoverError {
    FailoverError::Host(error.to_string())
}

async fn log_of(service: &Arc<BrokerService>, topic: &TopicName) -> Result<Arc<ManagedLedger>, FailoverError> {
    service.topic(topic, Create::Never).await.map_err(host)?;
    service.log_of(topic).ok_or_else(|| FailoverError::Host(format!("topic {topic} is closing")))
}

/// Sets aside what `record.active` never got of a topic.
pub(super) async fn cut<'a>(
    service: &Arc<BrokerService>,
    topic: &TopicName,
    record: &ActiveRecord,
    store: &'a (dyn Fn(Tail) -> BoxFuture<'a, Result<(), FailoverError>> + Sync),
) -> Result<(), FailoverError> {
    let log = log_of(service, topic).await?;
    let Some(link) = log.cursor(&replicate::cursor_name(&record.active)) else { return Ok(()) };
    let without_links = service.replication().stop(topic).await;
    // What the link's cursor knows may be older than what the region has: receipts were lost, or not made durable here.
    let delivered = positions::delivered(service, topic, &record.active).await.map_err(host)?;
    let after = delivered.map_or(link.mark_delete(), |delivered| delivered.max(link.mark_delete()));
    let to = log.last_confirmed();
    let own = RegionId::of(&service.config().cluster);
    let members = Members { log: &log, link: &link, own, after, to, active: &record.active };
    let mut entries = 0;
    let mut from = members.start();
    while let Some(run) = members.next(&mut from).await? {
        entries += run.len() as u64;
    }
    if entries != 0 {
        let start = after.next_in_ledger();
        let options = CursorOptions { durable: true, internal: true, properties: BTreeMap::new() };
        log.open_cursor(&cursor_name(record.epoch), InitialPosition::At(start), options).await.map_err(host)?;
        let tail = Tail {
            topic: topic.clone(),
            epoch: record.epoch,
            active: record.active.clone(),
            after,
            to,
            entries,
            cut_ms: now_ms(),
            replayed_to: None,
            dropped: false,
        };
        store(tail).await?;
        tracing::warn!(%topic, entries, active = %record.active, "messages that were never delivered are set aside");
    }
    // Last the active region's cursor: as long as it stands, all of this is found again.
    let all = log.cursors();
    let links = all.iter().filter(|cursor| cursor.name().starts_with(replicate::LINK_PREFIX));
    let others: Vec<&Arc<Cursor>> = links.filter(|cursor| cursor.name() != link.name()).collect();
    let mut from = members.start();
    while let Some(run) = members.next(&mut from).await? {
        for cursor in &others {
            cursor.ack(&whole(&run));
        }
    }
    for cursor in &others {
        cursor.persisted().await.map_err(host)?;
    }
    link.ack_cumulative(AckPosition { position: to, unacked_batch_indexes: None, messages: 0 });
    link.persisted().await.map_err(host)?;
    drop(without_links);
    service.replication().follow(topic);
    Ok(())
}

fn whole(run: &[LogEntry]) -> Vec<AckPosition> {
    let ack = |entry: &LogEntry| AckPosition { position: entry.position, unacked_batch_indexes: None, messages: 0 };
    run.iter().map(ack).collect()
}

/// The entries of a tail: first stored here, for the active region, not delivered to it.
struct Members<'a> {
    log: &'a ManagedLedger,
    link: &'a Cursor,
    own: RegionId,
    after: Position,
    to: Position,
    active: &'a str,
}

impl Members<'_> {
    fn holds(&self, entry: &LogEntry) -> bool {
        let (region, _, _) = entry.origin;
        !entry.marker
            && entry.position > self.after
            && region == self.own
            && !self.link.is_acked(entry.position)
            && replicate::is_for(&entry.payload, self.active)
    }

    fn start(&self) -> Position {
        self.link.read_start()
    }

    /// The next of them, perhaps none of one read; `None` = there are no more.
    async fn next(&self, from: &mut Position) -> Result<Option<Vec<LogEntry>>, FailoverError> {
        if *from > self.to {
            return Ok(None);
        }
        let read = self.log.read(*from, READ_ENTRIES, READ_BYTES).await.map_err(host)?;
        let Some(last) = read.last() else { return Ok(None) };
        *from = last.position.next_in_ledger();
        Ok(Some(read.into_iter().filter(|entry| entry.position <= self.to && self.holds(entry)).collect()))
    }
}

/// Publishes what is left of a tail in the active region, in order, each entry labelled; where that ended.
pub(super) async fn replay(service: &Arc<BrokerService>, tail: &Tail) -> Result<Position, FailoverError> {
    let log = log_of(service, &tail.topic).await?;
    let cursor = log
        .cursor(&cursor_name(tail.epoch))
        .ok_or_else(|| FailoverError::NoTail(format!("the tail of {} is not kept any more", tail.topic)))?;
    let own = RegionId::of(&service.config().cluster);
    let members = Members { log: &log, link: &cursor, own, after: tail.after, to: tail.to, active: &tail.active };
    let active = service.failover().and_then(|failover| failover.state(&tail.topic.namespace()));
    let active = active.map_or_else(|| tail.active.clone(), |state| state.record.active);
    let mut from = members.start();
    while let Some(read) = members.next(&mut from).await? {
        for run in read.chunks(REPLAY_ENTRIES) {
            let labelled = run.iter().map(|entry| label(entry, tail, &service.config().cluster));
            let payloads = labelled.collect::<Result<_, _>>()?;
            service.replication().linker().publish(&active, &tail.topic, payloads).await.map_err(host)?;
            // Run by run: what was confirmed is not published again if this ends in between.
            cursor.ack(&whole(run));
        }
    }
    cursor.persisted().await.map_err(host)?;
    Ok(tail.to)
}

fn label(entry: &LogEntry, tail: &Tail, region: &str) -> Result<Bytes, FailoverError> {
    let at = format!("{}:{}", entry.position.ledger_id.0, entry.position.entry_id.0);
    let epoch = tail.epoch.to_string();
    let labels = [(EPOCH_PROPERTY, epoch.as_str()), (REGION_PROPERTY, region), (POSITION_PROPERTY, &at)];
    replicate::with_properties(&entry.payload, &labels).map_err(host)
}

/// Lets the entries of a tail go.
pub(super) async fn release(service: &Arc<BrokerService>, tail: &Tail) -> Result<(), FailoverError> {
    let log = log_of(service, &tail.topic).await?;
    match log.delete_cursor(&cursor_name(tail.epoch)).await {
        Ok(()) | Err(meridian_managed_ledger::LogError::NoSuchCursor(_)) => Ok(()),
        Err(error) => Err(host(error)),
    }
}
