//! Figures of topics as JSON.
//!
//! Figures of a partitioned topic are those of its partitions, added up field by field.

use super::of_topic;
use crate::call::Call;
use crate::error::AdminError;
use crate::headers::iso_time;
use crate::reply::Reply;
use crate::state::AdminState;
use crate::{Answer, Given};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use meridian_door::Action;
use meridian_managed_ledger::{CursorInfo, LogInfo};
use meridian_topic::rates::total as total_rate;
use meridian_topic::{
    ACK_PROPERTY_PREFIX, AccessMode, ConsumerStats, ProducerStats, SubscriptionStats, SubscriptionType, TopicHandle,
    TopicStats,
};
use meridian_types::{Domain, Position, TopicName};
use meridian_wire::payload;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&of_topic("/stats"), get(stats))
        .route(&of_topic("/partitioned-stats"), get(partitioned))
        .route(&of_topic("/internalStats"), get(internal))
        .route(&of_topic("/internal-info"), get(info))
        .route(&of_topic("/partitioned-internalStats"), get(partitioned_internal))
}

/// What a request wants to see.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    publishers: bool,
    consumers: bool,
}

impl Shown {
    /// Everything.
    pub const ALL: Self = Self { publishers: true, consumers: true };

    fn of(call: &Call) -> Self {
        Self { publishers: !call.flag("excludePublishers"), consumers: !call.flag("excludeConsumers") }
    }
}

async fn stats(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let handle = state.load(&topic).await?;
    let stats = handle.stats();
    let mut shown = topic_stats(&state, &topic, &stats, Shown::of(&call));
    if call.flag("getEarliestTimeInBacklog") {
        add_backlog_times(&handle, &stats, &mut shown).await?;
    }
    add_domain(&mut shown, &topic);
    Ok(Reply::json(&shown))
}

/// When the oldest message that is not acked was published, for each subscription and for all. Costs a read each, so
/// that it is done for who asks for it.
async fn add_backlog_times(
    handle: &Arc<dyn TopicHandle>,
    stats: &TopicStats,
    shown: &mut Value,
) -> Result<(), AdminError> {
    let mut oldest: Option<(u64, &str)> = None;
    for one in stats.subscriptions.iter().filter(|one| one.backlog_entries > 0) {
        let Some(entry) = handle.peek(one.name.clone(), 1).await? else { continue };
        let published = payload::decode(&entry.payload).map_or(entry.broker_time_ms, |(head, _)| head.publish_time);
        shown["subscriptions"][one.name.as_str()]["earliestMsgPublishTimeInBacklog"] = json!(published);
        if one.durable && oldest.is_none_or(|(time, _)| published < time) {
            oldest = Some((published, &one.name));
        }
    }
    if let Some((published, name)) = oldest {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        shown["earliestMsgPublishTimeInBacklogs"] = json!(published);
        shown["oldestBacklogMessageAgeSeconds"] = json!(now_ms.saturating_sub(published) / 1000);
        shown["oldestBacklogMessageSubscriptionName"] = json!(name);
    }
    Ok(())
}

/// Non-persistent topics repeat their lists under names of their own.
fn add_domain(stats: &mut Value, topic: &TopicName) {
    if topic.domain() == Domain::NonPersistent {
        stats["nonPersistentPublishers"] = stats["publishers"].clone();
        stats["nonPersistentSubscriptions"] = stats["subscriptions"].clone();
        stats["nonPersistentReplicators"] = stats["replication"].clone();
        stats["msgDropRate"] = json!(0.0);
    }
}

fn require_partitioned(state: &AdminState, topic: &TopicName) -> Result<u32, AdminError> {
    let count = state.registry().partitions(topic);
    count.ok_or_else(|| AdminError::not_found(format!("Partitioned Topic {topic} not found")))
}

async fn partitioned(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let count = require_partitioned(&state, &topic)?;
    let mut parts = Map::new();
    for partition in 0..count {
        let name = topic.with_partition(partition);
        let handle = state.load(&name).await?;
        let stats = handle.stats();
        let mut part = topic_stats(&state, &name, &stats, Shown::of(&call));
        if call.flag("getEarliestTimeInBacklog") {
            add_backlog_times(&handle, &stats, &mut part).await?;
        }
        add_domain(&mut part, &name);
        parts.insert(name.as_str().to_owned(), part);
    }
    let mut total = add_up(parts.values());
    total["metadata"] = json!(state.registry().partitioned_topic(&topic).as_deref());
    let per_partition = call.query("perPartition").is_none_or(|value| !value.eq_ignore_ascii_case("false"));
    total["partitions"] = Value::Object(if per_partition { parts } else { Map::new() });
    Ok(Reply::json(&total))
}

/// The figures of all partitions together.
pub fn add_up<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    let mut total = Value::Null;
    parts.for_each(|part| add(&mut total, part, ""));
    let messages = total["msgInCounter"].as_f64().unwrap_or(0.0);
    let average = if messages > 0.0 { total["bytesInCounter"].as_f64().unwrap_or(0.0) / messages } else { 0.0 };
    total["averageMsgSize"] = json!(average);
    total
}

/// Adds up two figures of one kind: numbers are added, times and limits the largest (earliest ones the smallest), lists joined, objects field by
/// field, texts as first seen.
fn add(total: &mut Value, part: &Value, field: &str) {
    match (total, part) {
        (total @ Value::Null, part) => *total = part.clone(),
        (Value::Object(total), Value::Object(part)) => {
            for (name, value) in part {
                add(total.entry(name.as_str()).or_insert(Value::Null), value, name);
            }
        }
        (Value::Array(total), Value::Array(part)) => total.extend(part.iter().cloned()),
        (Value::Bool(total), Value::Bool(part)) => *total |= part,
        (total @ Value::Number(_), Value::Number(part)) => {
            let largest = ["Time", "Limit", "Epoch", "Age"].iter().any(|word| field.contains(word));
            *total = match (total.as_i64(), part.as_i64()) {
                // 0 says that there is none.
                (Some(one), Some(other)) if field.starts_with("earliest") && one > 0 && other > 0 => {
                    Value::from(one.min(other))
                }
                (Some(one), Some(other)) if largest => Value::from(one.max(other)),
                (Some(one), Some(other)) => Value::from(one.saturating_add(other)),
                _ => Value::from(total.as_f64().unwrap_or(0.0) + part.as_f64().unwrap_or(0.0)),
            };
        }
        _ => {}
    }
}

/// A topic's figures.
pub fn topic_stats(state: &AdminState, topic: &TopicName, stats: &TopicStats, shown: Shown) -> Value {
    let links = state.service.replication().figures(topic);
    let policies = state.registry().effective(topic);
    let compaction = &stats.compaction;
    let publishers: Vec<Value> =
        if shown.publishers { stats.producers.iter().map(publisher).collect() } else { Vec::new() };
    let subscriptions: Map<String, Value> =
        stats.subscriptions.iter().map(|one| (one.name.clone(), subscription(one, shown, state))).collect();
    let ranges: u64 =
        stats.subscriptions.iter().filter_map(|one| one.cursor.as_ref()).map(|one| one.acked_range_count).sum();
    json!({
        "msgRateIn": stats.rate_in,
        "msgThroughputIn": stats.throughput_in,
        "msgRateOut": stats.rate_out,
        "msgThroughputOut": stats.throughput_out,
        "bytesInCounter": stats.bytes_in,
        "msgInCounter": stats.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": stats.bytes_out,
        "msgOutCounter": stats.messages_out,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": stats.average_message_bytes,
        "msgChunkPublished": false,
        "storageSize": stats.storage_bytes,
        "backlogSize": stats.backlog_bytes,
        "backlogQuotaLimitSize": limit(policies.backlog_quota_bytes),
        "backlogQuotaLimitTime": limit(policies.backlog_quota_s),
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": stats.publish_limited_times,
        "publishesWaiting": stats.publishes_waiting,
        "earliestMsgPublishTimeInBacklogs": 0,
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": publishers,
        "waitingPublishers": stats.waiting_producers,
        "subscriptions": subscriptions,
        "replication": super::replication::replication(&links, &stats.links),
        "deduplicationStatus": if stats.deduplication { "Enabled" } else { "Disabled" },
        "topicEpoch": stats.topic_epoch,
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "compaction": {
            "lastCompactionRemovedEventCount": compaction.removed_entries,
            "lastCompactionSucceedTimestamp": compaction.succeeded_ms,
            "lastCompactionFailedTimestamp": compaction.failed_ms,
            "lastCompactionDurationTimeInMills": compaction.duration_ms,
        },
        "ownerBroker": crate::lookup::broker_id(state),
        "lastPublishTimeStamp": stats.last_activity_ms,
        "publishLatencyMicrosP50": stats.publish_latency_us_p50,
        "publishLatencyMicrosP99": stats.publish_latency_us_p99,
        "loadedTimestamp": stats.loaded_ms,
    })
}

fn publisher(one: &ProducerStats) -> Value {
    let access = match one.access_mode {
        AccessMode::Shared => "Shared",
        AccessMode::Exclusive => "Exclusive",
        AccessMode::WaitForExclusive => "WaitForExclusive",
        AccessMode::ExclusiveWithFencing => "ExclusiveWithFencing",
    };
    let average = if one.messages_in > 0 { one.bytes_in as f64 / one.messages_in as f64 } else { 0.0 };
    json!({
        "accessMode": access,
        "msgRateIn": one.rate_in,
        "msgThroughputIn": one.throughput_in,
        "averageMsgSize": average,
        "chunkedMessageRate": 0.0,
        "producerId": one.producer_id,
        "supportsPartialProducer": false,
        "producerName": one.name,
        "address": one.address,
        "connectedSince": iso_time(one.connected_since_ms),
        "clientVersion": one.client_version,
        "metadata": one.metadata,
    })
}

fn type_name(kind: SubscriptionType) -> &'static str {
    match kind {
        SubscriptionType::Exclusive => "Exclusive",
        SubscriptionType::Shared => "Shared",
        SubscriptionType::Failover => "Failover",
        SubscriptionType::KeyShared => "Key_Shared",
    }
}

/// What other regions know of a subscription's acknowledgements; `null` if they are not shared.
fn shared_acks(one: &SubscriptionStats, state: &AdminState) -> Value {
    let Some(acks) = &one.acks else { return Value::Null };
    let peers = acks.peers.iter().map(|(region, lag)| {
        json!({
            "cluster": state.service.region_name(*region),
            "entriesNotConfirmed": lag.entries,
            "notConfirmedSince": lag.since_ms,
            "needsEverything": lag.everything,
        })
    });
    let peers: Vec<Value> = peers.collect();
    json!({
        "epoch": acks.epoch,
        "applied": acks.applied,
        "scatteredEntries": acks.scattered_entries,
        "stateBytes": acks.state_bytes,
        "limitBytes": acks.limit_bytes,
        "refusingSince": acks.refusing_since_ms,
        "refusedTotal": acks.refused_total,
        "peers": peers,
    })
}

fn subscription(one: &SubscriptionStats, shown: Shown, state: &AdminState) -> Value {
    let consumers: Vec<Value> = if shown.consumers { one.consumers.iter().map(consumer).collect() } else { Vec::new() };
    let properties = one.cursor.as_ref().map(given_properties).unwrap_or_default();
    let ranges = one.cursor.as_ref().map_or(0, |cursor| cursor.acked_range_count);
    json!({
        "msgRateOut": one.rate_out,
        "msgThroughputOut": one.throughput_out,
        "bytesOutCounter": one.bytes_out,
        "msgOutCounter": one.messages_out,
        "msgRateRedeliver": one.rate_redeliver,
        "messageAckRate": total_rate(one.consumers.iter().map(|consumer| consumer.ack_rate)),
        "chunkedMessageRate": 0.0,
        "msgBacklog": one.backlog_entries,
        "backlogSize": one.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": one.backlog_entries.saturating_sub(one.delayed_entries),
        "blockedSubscriptionOnUnackedMsgs": one.blocked_on_unacked,
        "msgDelayed": one.delayed_entries,
        "msgInReplay": one.replay_entries,
        "unackedMessages": one.unacked_messages,
        "type": one.sub_type.map(type_name),
        "activeConsumerName": one.active_consumer,
        "msgRateExpired": one.rate_expired,
        "totalMsgExpired": one.expired_total,
        "msgExpired": one.expired_total,
        "lastExpireTimestamp": one.last_expire_ms,
        "lastConsumedFlowTimestamp": one.last_consumed_flow_ms,
        "lastConsumedTimestamp": one.last_consumed_ms,
        "lastAckedTimestamp": one.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": one.last_mark_delete_ms,
        "consumers": consumers,
        "isDurable": one.durable,
        "isReplicated": one.replicated,
        "allowOutOfOrderDelivery": false,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "subscriptionProperties": properties,
        "sharedAcks": shared_acks(one, state),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        "waiting": one.waiting,
    })
}

fn consumer(one: &ConsumerStats) -> Value {
    let ranges: Vec<String> = one.key_hash_ranges.iter().map(|(from, to)| format!("[{from}, {to}]")).collect();
    let arrays: Vec<[u32; 2]> = one.key_hash_ranges.iter().map(|(from, to)| [*from, *to]).collect();
    json!({
        "msgRateOut": one.rate_out,
        "msgThroughputOut": one.throughput_out,
        "bytesOutCounter": one.bytes_out,
        "msgOutCounter": one.messages_out,
        "msgRateRedeliver": one.rate_redeliver,
        "messageAckRate": one.ack_rate,
        "chunkedMessageRate": 0.0,
        "consumerName": one.name,
        "availablePermits": one.available_permits,
        "unackedMessages": one.unacked_messages,
        "avgMessagesPerEntry": 0,
        "blockedConsumerOnUnackedMsgs": one.blocked_on_unacked,
        "address": one.address,
        "connectedSince": iso_time(one.connected_since_ms),
        "clientVersion": one.client_version,
        "lastAckedTimestamp": one.last_acked_ms,
        "lastConsumedTimestamp": one.last_consumed_ms,
        "lastConsumedFlowTimestamp": one.last_flow_ms,
        "firstMessagesSentTimestamp": 0,
        "firstConsumedFlowTimestamp": 0,
        "keyHashRanges": ranges,
        "keyHashRangeArrays": arrays,
        "drainingHashes": [],
        "metadata": one.metadata,
    })
}

async fn internal(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    state.require_unpartitioned(&topic, "Internal stats of")?;
    let stats = state.load(&topic).await?.stats();
    Ok(Reply::json(&internal_stats(&stats, &state.service.internal_cursors(&topic))))
}

async fn partitioned_internal(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let mut parts = Map::new();
    for partition in 0..require_partitioned(&state, &topic)? {
        let name = topic.with_partition(partition);
        let stats = state.load(&name).await?.stats();
        let shown = internal_stats(&stats, &state.service.internal_cursors(&name));
        parts.insert(name.as_str().to_owned(), shown);
    }
    let metadata = json!(state.registry().partitioned_topic(&topic).as_deref());
    Ok(Reply::json(&json!({ "metadata": metadata, "partitions": parts })))
}

/// What is stored of a topic; of a partitioned one that of each partition.
async fn info(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    if topic.domain() == Domain::NonPersistent {
        return Err(AdminError::not_allowed("Internal info of a non-persistent topic is not allowed"));
    }
    let parts = state.parts(&topic).await?;
    if state.registry().partitions(&topic).is_none() {
        return Ok(Reply::json(&managed_ledger_info(&state.load(&topic).await?.stats())));
    }
    let mut shown = Map::new();
    for part in parts {
        shown.insert(part.as_str().to_owned(), managed_ledger_info(&state.load(&part).await?.stats()));
    }
    Ok(Reply::json(&json!({ "version": 0, "partitions": shown })))
}

fn managed_ledger_info(stats: &TopicStats) -> Value {
    let place = |position: Position| json!({ "ledgerId": position.ledger_id.0, "entryId": position.entry_id.0 });
    let cursor = |info: &CursorInfo| {
        let range = |(from, to): &(Position, Position)| json!({ "from": place(*from), "to": place(*to) });
        json!({
            "version": 0,
            "cursorsLedgerId": info.cursor_ledger.map_or(-1, |ledger| ledger.0),
            "markDelete": place(info.mark_delete),
            "individualDeletedMessages": info.acked_ranges.iter().map(range).collect::<Vec<_>>(),
            "properties": ack_properties(info),
        })
    };
    let cursors: Map<String, Value> =
        stats.subscriptions.iter().filter_map(|one| Some((one.name.clone(), cursor(one.cursor.as_ref()?)))).collect();
    let log = stats.log.as_ref();
    let created = log.and_then(|log| log.ledgers.first()).map(|ledger| iso_time(ledger.created_ms));
    json!({
        "version": 0,
        "creationDate": created,
        "ledgers": log.map(ledgers).unwrap_or_default(),
        "terminatedPosition": log.and_then(|log| log.terminated).map(place),
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": stats.compaction.ledger.is_some().then(|| compacted_ledger(stats)),
        "properties": log.map(|log| log.properties.clone()),
    })
}

fn internal_stats(stats: &TopicStats, internal: &[CursorInfo]) -> Value {
    let subscriptions = stats.subscriptions.iter().filter_map(|one| {
        let info = one.cursor.as_ref()?;
        Some((one.name.clone(), cursor(info, one.read_position, one.messages_out, !one.consumers.is_empty())))
    });
    // Cursors of replication, deduplication and compaction: no subscriptions, but they hold data back.
    let others = internal.iter().map(|info| (info.name.clone(), cursor(info, None, 0, true)));
    let cursors: Map<String, Value> = subscriptions.chain(others).collect();
    let Some(log) = &stats.log else { return json!({ "cursors": cursors, "ledgers": [], "schemaLedgers": [] }) };
    let last = log.ledgers.last();
    json!({
        "entriesAddedCounter": log.next_index,
        "numberOfEntries": log.entries,
        "totalSize": log.bytes,
        "currentLedgerEntries": last.map_or(0, |ledger| ledger.entries),
        "currentLedgerSize": last.map_or(0, |ledger| ledger.bytes),
        "lastLedgerCreatedTimestamp": last.map(|ledger| iso_time(ledger.created_ms)),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": log.pending_appends,
        "lastConfirmedEntry": log.last_confirmed.to_string(),
        "state": state_of(log),
        "ledgers": ledgers(log),
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": compacted_ledger(stats),
        "properties": log.properties,
        "waiting": log.waiting,
    })
}

fn compacted_ledger(stats: &TopicStats) -> Value {
    let (id, size) = stats.compaction.ledger.map_or((-1, None), |ledger| (ledger.ledger_id.0, ledger.size));
    let (entries, bytes) = size.map_or((json!(-1), json!(-1)), |(entries, bytes)| (json!(entries), json!(bytes)));
    json!({ "ledgerId": id, "entries": entries, "size": bytes, "offloaded": false, "underReplicated": false })
}

/// A limit as Pulsar writes it: none is -1.
fn limit(value: u64) -> i64 {
    if value == 0 { -1 } else { i64::try_from(value).unwrap_or(i64::MAX) }
}

/// Properties of a subscription, without those that acks brought.
pub fn given_properties(cursor: &CursorInfo) -> BTreeMap<String, String> {
    let given = cursor.properties.iter().filter(|(name, _)| !name.starts_with(ACK_PROPERTY_PREFIX));
    given.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Properties that the last cumulative ack with properties brought: numbers by name.
fn ack_properties(cursor: &CursorInfo) -> BTreeMap<&str, i64> {
    cursor
        .properties
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(ACK_PROPERTY_PREFIX)?, value.parse().ok()?)))
        .collect()
}

fn state_of(log: &LogInfo) -> &'static str {
    match (log.terminated, log.ledgers.last()) {
        (Some(_), _) => "Terminated",
        (None, Some(ledger)) if ledger.closed_ms.is_none() => "LedgerOpened",
        _ => "ClosedLedger",
    }
}

fn ledgers(log: &LogInfo) -> Vec<Value> {
    let one = |ledger: &meridian_managed_ledger::LedgerInfo| {
        json!({
            "ledgerId": ledger.ledger_id.0,
            "entries": ledger.entries,
            "size": ledger.bytes,
            "timestamp": ledger.closed_ms.unwrap_or(0),
            "offloaded": false,
            "underReplicated": false,
        })
    };
    log.ledgers.iter().map(one).collect()
}

fn cursor(info: &CursorInfo, read_position: Option<Position>, messages_out: u64, active: bool) -> Value {
    let ranges: Vec<String> = info.acked_ranges.iter().map(|(from, to)| format!("[{from}..{to}]")).collect();
    json!({
        "markDeletePosition": info.mark_delete.to_string(),
        "persistedMarkDeletePosition": info.persisted_mark_delete.to_string(),
        "readPosition": read_position.unwrap_or_else(|| info.mark_delete.next_in_ledger()).to_string(),
        "waitingReadOp": false,
        "pendingReadOps": 0,
        "messagesConsumedCounter": messages_out,
        "cursorLedger": info.cursor_ledger.map_or(-1, |ledger| ledger.0),
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": format!("[{}]", ranges.join(", ")),
        "lastLedgerSwitchTimestamp": iso_time(info.last_active_ms),
        "state": if info.dirty { "Dirty" } else { "Open" },
        "active": active,
        "numberOfEntriesSinceFirstNotAckedMessage": info.backlog_entries,
        "totalNonContiguousDeletedMessagesRange": info.acked_range_count,
        "subscriptionHavePendingRead": false,
        "subscriptionHavePendingReplayRead": false,
        "properties": ack_properties(info),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_partitions_add_up() {
        let mut total = Value::Null;
        let part = |count: u64, time: u64| {
            json!({
                "msgInCounter": count,
                "msgRateIn": 0.5,
                "lastConsumedTimestamp": time,
                "earliestMsgPublishTimeInBacklogs": time,
                "backlogQuotaLimitSize": -1,
                "publishers": [{ "producerName": "p" }],
                "subscriptions": { "s": { "msgBacklog": count, "isDurable": true, "type": "Shared" } },
            })
        };
        add(&mut total, &part(2, 9), "");
        add(&mut total, &part(3, 4), "");
        let expected = json!({
            "msgInCounter": 5,
            "msgRateIn": 1.0,
            "lastConsumedTimestamp": 9,
            "earliestMsgPublishTimeInBacklogs": 4,
            "backlogQuotaLimitSize": -1,
            "publishers": [{ "producerName": "p" }, { "producerName": "p" }],
            "subscriptions": { "s": { "msgBacklog": 5, "isDurable": true, "type": "Shared" } },
        });
        assert_eq!(total, expected);
    }
}
