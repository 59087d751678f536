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
use meridian_topic::{AccessMode, ConsumerStats, ProducerStats, SubscriptionStats, SubscriptionType, TopicStats};
use meridian_types::{Domain, TopicName};
use serde_json::{Map, Value, json};

pub fn routes() -> Router<AdminState> {
    Router::new()
        .route(&of_topic("/stats"), get(stats))
        .route(&of_topic("/partitioned-stats"), get(partitioned))
        .route(&of_topic("/internalStats"), get(internal))
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
    let mut shown = topic_stats(&state, &topic, &handle.stats(), Shown::of(&call));
    add_domain(&mut shown, &topic);
    Ok(Reply::json(&shown))
}

/// Non-persistent topics repeat their lists under names of their own.
fn add_domain(stats: &mut Value, topic: &TopicName) {
    if topic.domain() == Domain::NonPersistent {
        stats["nonPersistentPublishers"] = stats["publishers"].clone();
        stats["nonPersistentSubscriptions"] = stats["subscriptions"].clone();
        stats["nonPersistentReplicators"] = json!({});
        stats["msgDropRate"] = json!(0.0);
    }
}

fn require_partitioned(state: &AdminState, topic: &TopicName) -> Result<u32, AdminError> {
    let count = state.registry().partitions(topic);
    count.ok_or_else(|| AdminError::not_found(format!("Partitioned Topic not found: {topic}")))
}

async fn partitioned(State(state): Given, call: Call) -> Answer {
    let topic = state.topic_for(&call, Action::Lookup)?;
    let count = require_partitioned(&state, &topic)?;
    let mut total = Value::Null;
    let mut parts = Map::new();
    for partition in 0..count {
        let name = topic.with_partition(partition);
        let stats = state.load(&name).await?.stats();
        let mut part = topic_stats(&state, &name, &stats, Shown::of(&call));
        add_domain(&mut part, &name);
        add(&mut total, &part, "");
        parts.insert(name.as_str().to_owned(), part);
    }
    let messages = total["msgInCounter"].as_f64().unwrap_or(0.0);
    let average = if messages > 0.0 { total["bytesInCounter"].as_f64().unwrap_or(0.0) / messages } else { 0.0 };
    total["averageMsgSize"] = json!(average);
    total["metadata"] = json!(state.registry().partitioned_topic(&topic).as_deref());
    let per_partition = call.query("perPartition").is_none_or(|value| !value.eq_ignore_ascii_case("false"));
    total["partitions"] = Value::Object(if per_partition { parts } else { Map::new() });
    Ok(Reply::json(&total))
}

/// Adds up two figures of one kind: numbers are added, times and limits the largest, lists joined, objects field by
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
            let largest = field.contains("Time") || field.contains("Limit") || field.contains("Epoch");
            *total = match (total.as_i64(), part.as_i64()) {
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
    let publishers: Vec<Value> =
        if shown.publishers { stats.producers.iter().map(publisher).collect() } else { Vec::new() };
    let subscriptions: Map<String, Value> =
        stats.subscriptions.iter().map(|one| (one.name.clone(), subscription(one, shown))).collect();
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
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
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
            "lastCompactionRemovedEventCount": 0,
            "lastCompactionSucceedTimestamp": 0,
            "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": 0,
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

fn subscription(one: &SubscriptionStats, shown: Shown) -> Value {
    let consumers: Vec<Value> = if shown.consumers { one.consumers.iter().map(consumer).collect() } else { Vec::new() };
    let properties = one.cursor.as_ref().map(|cursor| cursor.properties.clone()).unwrap_or_default();
    let ranges = one.cursor.as_ref().map_or(0, |cursor| cursor.acked_range_count);
    json!({
        "msgRateOut": one.rate_out,
        "msgThroughputOut": one.throughput_out,
        "bytesOutCounter": one.bytes_out,
        "msgOutCounter": one.messages_out,
        "msgRateRedeliver": one.rate_redeliver,
        "messageAckRate": one.consumers.iter().map(|consumer| consumer.ack_rate).sum::<f64>(),
        "chunkedMessageRate": 0.0,
        "msgBacklog": one.backlog_entries,
        "backlogSize": -1,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": one.backlog_entries.saturating_sub(one.delayed_entries),
        "blockedSubscriptionOnUnackedMsgs": one.blocked_on_unacked,
        "msgDelayed": one.delayed_entries,
        "msgInReplay": 0,
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
        "lastConsumedFlowTimestamp": 0,
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

fn internal_stats(stats: &TopicStats, internal: &[CursorInfo]) -> Value {
    let subscriptions = stats.subscriptions.iter().filter_map(|one| {
        let info = one.cursor.as_ref()?;
        Some((one.name.clone(), cursor(info, one.messages_out, !one.consumers.is_empty())))
    });
    // Cursors of replication, deduplication and compaction: no subscriptions, but they hold data back.
    let others = internal.iter().map(|info| (info.name.clone(), cursor(info, 0, true)));
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
        "compactedLedger": { "ledgerId": -1, "entries": -1, "size": -1, "offloaded": false, "underReplicated": false },
        "properties": log.properties,
        "waiting": log.waiting,
    })
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

fn cursor(info: &CursorInfo, messages_out: u64, active: bool) -> Value {
    let ranges: Vec<String> = info.acked_ranges.iter().map(|(from, to)| format!("[{from}..{to}]")).collect();
    json!({
        "markDeletePosition": info.mark_delete.to_string(),
        "persistedMarkDeletePosition": info.persisted_mark_delete.to_string(),
        "readPosition": info.mark_delete.next_in_ledger().to_string(),
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
        "properties": {},
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
            "backlogQuotaLimitSize": -1,
            "publishers": [{ "producerName": "p" }, { "producerName": "p" }],
            "subscriptions": { "s": { "msgBacklog": 5, "isDurable": true, "type": "Shared" } },
        });
        assert_eq!(total, expected);
    }
}
