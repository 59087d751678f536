//! Texts of policies in fewer bytes: words that many of them have are two bytes long.
//!
//! Invariants: H1 every text comes back as it was; a word that is not listed here costs its length and nothing else.
//! Nothing of this is stored: the list may change with every version.
//! Failure: none for what was made here; a code that is none is left out.
//! Must never know: what the words mean.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Stands before a code; no text has this byte.
const MARK: u8 = 0xff;

/// Words that are usual in policies, at most 256.
const WORDS: &[&str] = &[
    // Fields of a namespace.
    "auth_policies",
    "namespace_auth",
    "destination_auth",
    "subscription_auth_roles",
    "replication_clusters",
    "allowed_clusters",
    "bundles",
    "backlog_quota_map",
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
    "latency_stats_sample_rate",
    "persistence",
    "deduplicationEnabled",
    "autoTopicCreationOverride",
    "autoSubscriptionCreationOverride",
    "message_ttl_in_seconds",
    "subscription_expiration_time_minutes",
    "retention_policies",
    "deleted",
    "encryption_required",
    "delayed_delivery_policies",
    "inactive_topic_policies",
    "subscription_auth_mode",
    "max_producers_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_unacked_messages_per_consumer",
    "max_unacked_messages_per_subscription",
    "max_subscriptions_per_topic",
    "max_topics_per_namespace",
    "compaction_threshold",
    "offload_threshold",
    "offload_threshold_in_seconds",
    "offload_deletion_lag_ms",
    "offload_policies",
    "schema_auto_update_compatibility_strategy",
    "schema_compatibility_strategy",
    "is_allow_auto_update_schema",
    "is_allow_auto_update_schema_with_replicator",
    "schema_validation_enforced",
    "subscription_types_enabled",
    "global_producers",
    "replicate_subscription_state",
    "deduplicationSnapshotIntervalSeconds",
    "properties",
    "resource_group_name",
    "entryFilters",
    "migrated",
    "dispatcherPauseOnAckStatePersistentEnabled",
    "bookieAffinityGroup",
    "antiAffinityGroup",
    // Fields of their parts.
    "boundaries",
    "numBundles",
    "limit",
    "limitSize",
    "limitTime",
    "policy",
    "dispatchThrottlingRateInMsg",
    "dispatchThrottlingRateInByte",
    "relativeToPublishRate",
    "ratePeriodInSecond",
    "subscribeThrottlingRatePerConsumer",
    "publishThrottlingRateInMsg",
    "publishThrottlingRateInByte",
    "bookkeeperEnsemble",
    "bookkeeperWriteQuorum",
    "bookkeeperAckQuorum",
    "managedLedgerMaxMarkDeleteRate",
    "managedLedgerStorageClassName",
    "allowAutoTopicCreation",
    "topicType",
    "defaultNumPartitions",
    "allowAutoSubscriptionCreation",
    "retentionTimeInMinutes",
    "retentionSizeInMB",
    "active",
    "tickTime",
    "maxDeliveryDelayInMillis",
    "inactiveTopicDeleteMode",
    "maxInactiveDurationSeconds",
    "deleteWhileInactive",
    "entryFilterNames",
    "bookkeeperAffinityGroupPrimary",
    "bookkeeperAffinityGroupSecondary",
    // Values.
    "produce",
    "consume",
    "functions",
    "sources",
    "sinks",
    "packages",
    "destination_storage",
    "message_age",
    "producer_request_hold",
    "producer_exception",
    "consumer_backlog_eviction",
    "partitioned",
    "non-partitioned",
    "delete_when_no_subscriptions",
    "delete_when_subscriptions_caught_up",
    "Prefix",
    "Exclusive",
    "Shared",
    "Failover",
    "Key_Shared",
    "ALWAYS_COMPATIBLE",
    "ALWAYS_INCOMPATIBLE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
];

/// Codes by words.
static CODES: LazyLock<HashMap<&str, u8>> = LazyLock::new(|| WORDS.iter().copied().zip(0..=u8::MAX).collect());

/// A text with codes in place of the quoted words that have one.
pub(crate) fn shorten(text: &str) -> Box<[u8]> {
    let mut short = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('"') {
        short.extend_from_slice(before.as_bytes());
        let (word, behind) = from.split_once('"').map_or((from, None), |(word, behind)| (word, Some(behind)));
        match (CODES.get(word), behind) {
            (Some(code), Some(_)) => short.extend_from_slice(&[MARK, *code]),
            (_, behind) => {
                short.push(b'"');
                short.extend_from_slice(word.as_bytes());
                short.extend(behind.map(|_| b'"'));
            }
        }
        rest = behind.unwrap_or_default();
    }
    short.extend_from_slice(rest.as_bytes());
    short.into()
}

/// The text that was shortened.
pub(crate) fn expand(short: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(4 * short.len());
    let mut bytes = short.iter();
    while let Some(byte) = bytes.next() {
        if *byte != MARK {
            text.push(*byte);
            continue;
        }
        if let Some(word) = bytes.next().and_then(|code| WORDS.get(usize::from(*code))) {
            text.push(b'"');
            text.extend_from_slice(word.as_bytes());
            text.push(b'"');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        let all = WORDS.iter().map(|word| format!(r#""{word}""#)).collect::<Vec<_>>().join(",");
        let texts = [
            "",
            "\"",
            "\"\"",
            "\"\"\"",
            r#""produce"#,
            r#"produce""#,
            r#"{"produce":"consume"}"#,
            r#"{"a\"produce\"":"\\"}"#,
            r#"{"é\u00ff":["ÿ","produce ","Produce"]}"#,
            &all,
        ];
        for text in texts {
            assert_eq!(expand(&shorten(text)), text.as_bytes(), "H1: {text}");
        }
    }

    #[test]
    fn words_are_two_bytes_and_each_has_its_own() {
        assert!(WORDS.len() <= 256 && CODES.len() == WORDS.len());
        for word in WORDS {
            assert_eq!(shorten(&format!(r#""{word}""#)).len(), 2, "{word}");
        }
        assert_eq!(&*shorten(r#"{"deleted":1}"#), b"{\xff\x16:1}");
    }

    #[test]
    fn a_code_that_is_none_is_left_out() {
        assert_eq!(expand(&[b'a', MARK, 0xfe, b'b', MARK]), b"ab");
    }
}
