//! Shapes that several policies have, and the backlog quotas.

use super::{Absent, Field, Shape};
use crate::{BacklogQuota, BacklogQuotaKind, PolicyError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Largest number that every reader keeps whole.
const LARGE: i64 = i64::MAX;

/// A count from 0, 0 = no limit.
pub const COUNT: Shape = Shape::Whole { min: 0, max: u32::MAX as i64 };
/// Bytes or ms from 0.
pub const FROM_ZERO: Shape = Shape::Whole { min: 0, max: LARGE };
/// Bytes or seconds, -1 = never.
pub const OR_NEVER: Shape = Shape::Whole { min: -1, max: LARGE };
/// Names of subscription types.
pub const SUBSCRIPTION_TYPES: Shape = Shape::Texts(&["Exclusive", "Shared", "Failover", "Key_Shared"]);
/// Names of regions.
pub const REGIONS: Shape = Shape::Texts(&[]);
/// The schema rule.
pub const COMPATIBILITY: Shape = Shape::Text(&[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]);

const fn field(name: &'static str, shape: Shape, absent: Absent, about: &'static str) -> Field {
    Field { name, shape, absent, about }
}

/// Dispatch at most.
pub const DISPATCH_RATE: Shape = Shape::Record(&[
    field("dispatchThrottlingRateInMsg", OR_NEVER, Absent::Whole(-1), "Messages in a period, -1 = no limit."),
    field("dispatchThrottlingRateInByte", OR_NEVER, Absent::Whole(-1), "Bytes in a period, -1 = no limit."),
    field("relativeToPublishRate", Shape::Flag, Absent::Flag(false), "On top of the publish rate."),
    field("ratePeriodInSecond", Shape::Whole { min: 1, max: 86_400 }, Absent::Whole(1), "The period in seconds."),
]);

/// Publish at most.
pub const PUBLISH_RATE: Shape = Shape::Record(&[
    field("publishThrottlingRateInMsg", OR_NEVER, Absent::Whole(-1), "Messages per second, -1 = no limit."),
    field("publishThrottlingRateInByte", OR_NEVER, Absent::Whole(-1), "Bytes per second, -1 = no limit."),
]);

/// Subscribe calls at most.
pub const SUBSCRIBE_RATE: Shape = Shape::Record(&[
    field(
        "subscribeThrottlingRatePerConsumer",
        Shape::Whole { min: -1, max: u32::MAX as i64 },
        Absent::Whole(-1),
        "Calls of one consumer in a period, -1 = no limit.",
    ),
    field("ratePeriodInSecond", Shape::Whole { min: 1, max: 86_400 }, Absent::Whole(30), "The period in seconds."),
]);

/// How topics are stored.
pub const PERSISTENCE: Shape = Shape::Record(&[
    field("bookkeeperEnsemble", Shape::Whole { min: 1, max: 64 }, Absent::Whole(2), "Bookies that a ledger is on."),
    field("bookkeeperWriteQuorum", Shape::Whole { min: 1, max: 64 }, Absent::Whole(2), "Copies of an entry."),
    field("bookkeeperAckQuorum", Shape::Whole { min: 1, max: 64 }, Absent::Whole(2), "Copies before it is confirmed."),
    field("managedLedgerMaxMarkDeleteRate", Shape::Number, Absent::Number(1.0), "Cursor writes per second at most."),
    field("managedLedgerStorageClassName", Shape::Text(&[]), Absent::Unset, "Which storage, if there are several."),
]);

/// How long acknowledged messages are kept.
pub const RETENTION: Shape = Shape::Record(&[
    field("retentionTimeInMinutes", OR_NEVER, Absent::Refused, "Minutes, -1 = for ever, 0 with size 0 = not at all."),
    field("retentionSizeInMB", OR_NEVER, Absent::Refused, "Mebibytes, -1 = no limit, 0 with time 0 = nothing."),
]);

/// Delayed delivery.
pub const DELAYED_DELIVERY: Shape = Shape::Record(&[
    field("active", Shape::Flag, Absent::Flag(true), "Delays are kept."),
    field("tickTime", FROM_ZERO, Absent::Whole(1000), "Precision in ms."),
    field("maxDeliveryDelayInMillis", FROM_ZERO, Absent::Whole(0), "Longest delay in ms, 0 = no limit."),
]);

/// Inactive topics.
pub const INACTIVE_TOPICS: Shape = Shape::Record(&[
    field(
        "inactiveTopicDeleteMode",
        Shape::Text(&["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]),
        Absent::Text("delete_when_no_subscriptions"),
        "When a topic counts as inactive.",
    ),
    field("maxInactiveDurationSeconds", COUNT, Absent::Whole(60), "For how long it may be inactive."),
    field("deleteWhileInactive", Shape::Flag, Absent::Flag(true), "It is deleted then."),
]);

/// Filters of entries.
pub const ENTRY_FILTERS: Shape = Shape::Record(&[field(
    "entryFilterNames",
    Shape::Text(&[]),
    Absent::Refused,
    "Names of filters, separated by commas.",
)]);

/// Creation of subscriptions at first use.
pub const AUTO_SUBSCRIPTION: Shape = Shape::Record(&[field(
    "allowAutoSubscriptionCreation",
    Shape::Flag,
    Absent::Refused,
    "A consumer creates the subscription that it names.",
)]);

/// Creation of topics at first use.
pub const AUTO_TOPIC: Shape = Shape::Record(&[
    field("allowAutoTopicCreation", Shape::Flag, Absent::Refused, "A client creates the topic that it names."),
    field("topicType", Shape::Text(&["non-partitioned", "partitioned"]), Absent::Unset, "What it creates."),
    field("defaultNumPartitions", COUNT, Absent::Unset, "Partitions of a partitioned one."),
]);

const QUOTA: Shape = Shape::Record(&[
    field("limitSize", OR_NEVER, Absent::Whole(-1), "Bytes, -1 = no limit."),
    field("limitTime", OR_NEVER, Absent::Whole(-1), "Seconds, -1 = no limit."),
    field(
        "policy",
        Shape::Text(&["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]),
        Absent::Refused,
        "What happens over the quota.",
    ),
]);

/// Backlog quotas by what they measure.
pub const BACKLOG_QUOTA: Shape = Shape::Record(&[
    field("destination_storage", QUOTA, Absent::Unset, "By bytes that are not acknowledged."),
    field("message_age", QUOTA, Absent::Unset, "By the age of the oldest message that is not acknowledged."),
]);

/// Both quotas under one name, without the older name of the size; unset if there is none.
pub fn read_quotas(quotas: &BTreeMap<BacklogQuotaKind, BacklogQuota>) -> Value {
    if quotas.is_empty() {
        return Value::Null;
    }
    let mut shown = Map::new();
    for (kind, quota) in quotas {
        let newer = BacklogQuota { limit: None, limit_size: Some(quota.size_bytes()), ..*quota };
        let name = super::shown(kind);
        shown.insert(name.as_str().unwrap_or_default().to_owned(), super::shown(&newer));
    }
    Value::Object(shown)
}

/// Both quotas from what [`read_quotas`] shows.
///
/// # Errors
/// [`PolicyError`].
pub fn quotas(value: Value) -> Result<BTreeMap<BacklogQuotaKind, BacklogQuota>, PolicyError> {
    if value.is_null() {
        return Ok(BTreeMap::new());
    }
    let given: BTreeMap<BacklogQuotaKind, BacklogQuota> = super::typed("backlogQuota", value)?;
    given.into_iter().map(|(kind, quota)| Ok((kind, quota.normalized()?))).collect()
}
