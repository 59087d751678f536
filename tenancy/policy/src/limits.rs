//! Quotas, retention, persistence and the other policies that are small structures.
//!
//! Invariants: P4 each has a check that its setter calls.
//! Failure: [`PolicyError`] with the value and the rule.
//! Must never know: where policies are stored.

use crate::{PolicyError, lenient, refuse};
use serde::{Deserialize, Serialize};

const MEBIBYTE: i64 = 1024 * 1024;

/// What a backlog quota measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BacklogQuotaKind {
    /// Bytes not acknowledged.
    DestinationStorage,
    /// Age of the oldest message that is not acknowledged.
    MessageAge,
}

/// What happens to a topic over its backlog quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BacklogQuotaPolicy {
    /// Producers wait.
    ProducerRequestHold,
    /// Producers are refused.
    ProducerException,
    /// The oldest messages are dropped from slow subscriptions.
    ConsumerBacklogEviction,
}

impl BacklogQuotaPolicy {
    /// The number that topics are given: hold, exception, eviction.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// A backlog quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BacklogQuota {
    /// Older name of `limitSize`.
    #[serde(deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// Bytes, not positive = no limit.
    #[serde(deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub limit_size: Option<i64>,
    /// Seconds, not positive = no limit.
    #[serde(deserialize_with = "lenient::number", skip_serializing_if = "Option::is_none")]
    pub limit_time: Option<i64>,
    /// What happens over the quota.
    #[serde(deserialize_with = "lenient::known", skip_serializing_if = "Option::is_none")]
    pub policy: Option<BacklogQuotaPolicy>,
}

impl BacklogQuota {
    /// A quota by size and age, the older name of the size filled in too.
    pub fn new(limit_size: i64, limit_time: i64, policy: BacklogQuotaPolicy) -> Self {
        Self {
            limit: Some(limit_size),
            limit_size: Some(limit_size),
            limit_time: Some(limit_time),
            policy: Some(policy),
        }
    }

    /// Bytes, by whichever name; not positive = no limit.
    pub fn size_bytes(&self) -> i64 {
        self.limit_size.or(self.limit).unwrap_or(-1)
    }

    /// What was given, completed.
    ///
    /// # Errors
    /// [`PolicyError`] without a policy.
    pub fn normalized(&self) -> Result<Self, PolicyError> {
        let Some(policy) = self.policy else {
            return refuse("backlog quota", "a quota says what happens over it (policy)");
        };
        Ok(Self::new(self.size_bytes(), self.limit_time.unwrap_or(-1), policy))
    }
}

/// How long acknowledged messages are kept; -1 = for ever, both 0 = not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// Minutes.
    #[serde(rename = "retentionTimeInMinutes")]
    pub time_minutes: i64,
    /// Mebibytes.
    #[serde(rename = "retentionSizeInMB")]
    pub size_mib: i64,
}

impl Retention {
    /// The rules that must hold whatever the quota is.
    ///
    /// # Errors
    /// [`PolicyError`] for values below -1, or one zero beside one that is not.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.time_minutes < -1 {
            return refuse("Invalid retention policy: time limit must be >= -1", "");
        }
        if self.size_mib < -1 {
            return refuse("Invalid retention policy: size limit must be >= -1", "");
        }
        if (self.time_minutes == 0) != (self.size_mib == 0) {
            return refuse(
                "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits \
                 has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention \
                 both limits must be set to 0.",
                "",
            );
        }
        Ok(())
    }

    /// A backlog must fit into what is kept, or a quota could never be reached. Where time or size is not limited,
    /// every quota fits.
    ///
    /// # Errors
    /// [`PolicyError`] if the quota is not below the retention.
    pub fn check_against(&self, quota: &BacklogQuota) -> Result<(), PolicyError> {
        if self.time_minutes <= 0 || self.size_mib <= 0 {
            return Ok(());
        }
        let (size, time) = (quota.size_bytes(), quota.limit_time.unwrap_or(-1));
        if size >= self.size_mib.saturating_mul(MEBIBYTE) || time >= self.time_minutes.saturating_mul(60) {
            return refuse(
                format!("backlog quota of {size} bytes and {time} seconds"),
                "a backlog quota is below the retention",
            );
        }
        Ok(())
    }
}

/// How a managed ledger is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Persistence {
    /// Bookies of an ensemble.
    pub bookkeeper_ensemble: u32,
    /// Copies of an entry.
    pub bookkeeper_write_quorum: u32,
    /// Copies before an entry is confirmed.
    pub bookkeeper_ack_quorum: u32,
    /// Mark-delete writes per second at most.
    pub managed_ledger_max_mark_delete_rate: f64,
    /// Which storage, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_ledger_storage_class_name: Option<String>,
}

impl Default for Persistence {
    fn default() -> Self {
        Self {
            bookkeeper_ensemble: 2,
            bookkeeper_write_quorum: 2,
            bookkeeper_ack_quorum: 2,
            managed_ledger_max_mark_delete_rate: 1.0,
            managed_ledger_storage_class_name: None,
        }
    }
}

impl Persistence {
    /// Ensemble ≥ write quorum ≥ ack quorum ≥ 1, and a rate that is not negative.
    ///
    /// # Errors
    /// [`PolicyError`]; the text of the first rule is one that command line users look for.
    pub fn check(&self) -> Result<(), PolicyError> {
        let (ensemble, write, ack) =
            (self.bookkeeper_ensemble, self.bookkeeper_write_quorum, self.bookkeeper_ack_quorum);
        if ensemble < write || write < ack || ack == 0 {
            return refuse(
                format!("Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})"),
                "",
            );
        }
        if self.managed_ledger_max_mark_delete_rate < 0.0 {
            return refuse("managedLedgerMaxMarkDeleteRate", "is not negative");
        }
        Ok(())
    }
}

/// Groups of bookies that a namespace's ledgers go to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BookieAffinity {
    /// Groups that are used first, separated by commas.
    pub bookkeeper_affinity_group_primary: String,
    /// Groups that are used if those do not suffice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookkeeper_affinity_group_secondary: Option<String>,
}

/// Delayed delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DelayedDelivery {
    /// Allowed.
    pub active: bool,
    /// Precision in ms.
    pub tick_time: u64,
    /// Longest delay in ms, 0 = no limit.
    pub max_delivery_delay_in_millis: u64,
}

impl Default for DelayedDelivery {
    fn default() -> Self {
        Self { active: true, tick_time: 1000, max_delivery_delay_in_millis: 0 }
    }
}

/// When an inactive topic may be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InactiveTopicDeleteMode {
    /// Without subscriptions and producers.
    DeleteWhenNoSubscriptions,
    /// When all subscriptions have read everything and nobody is connected.
    DeleteWhenSubscriptionsCaughtUp,
}

/// What happens to inactive topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InactiveTopics {
    /// When.
    pub inactive_topic_delete_mode: InactiveTopicDeleteMode,
    /// After so many seconds.
    pub max_inactive_duration_seconds: u32,
    /// At all.
    pub delete_while_inactive: bool,
}

impl Default for InactiveTopics {
    fn default() -> Self {
        Self {
            inactive_topic_delete_mode: InactiveTopicDeleteMode::DeleteWhenNoSubscriptions,
            max_inactive_duration_seconds: 60,
            delete_while_inactive: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_may_come_with_strings_and_by_its_older_name() {
        let quota: BacklogQuota =
            serde_json::from_str(r#"{"limit":"1024","limitTime":"-1","policy":"producer_exception"}"#).unwrap();
        let quota = quota.normalized().unwrap();
        assert_eq!(quota, BacklogQuota::new(1024, -1, BacklogQuotaPolicy::ProducerException));
        let unknown: BacklogQuota = serde_json::from_str(r#"{"limitSize":5,"policy":"nothing"}"#).unwrap();
        assert_eq!(unknown.policy, None);
        assert!(unknown.normalized().is_err());
        assert!(serde_json::from_str::<BacklogQuota>(r#"{"limitSize":"x"}"#).is_err());
    }

    #[test]
    fn a_quota_is_below_the_retention() {
        let quota = |bytes, seconds| BacklogQuota::new(bytes, seconds, BacklogQuotaPolicy::ProducerException);
        let retention = Retention { time_minutes: 1, size_mib: 10 };
        assert!(retention.check_against(&quota(10 * MEBIBYTE - 1, 59)).is_ok());
        assert!(retention.check_against(&quota(10 * MEBIBYTE, -1)).is_err());
        assert!(retention.check_against(&quota(-1, 60)).is_err());
        assert!(Retention::default().check_against(&quota(i64::MAX, i64::MAX)).is_ok());
        for (minutes, mib) in [(-1, -1), (-1, 5), (5, -1)] {
            let retention = Retention { time_minutes: minutes, size_mib: mib };
            assert!(retention.check_against(&quota(i64::MAX, i64::MAX)).is_ok(), "{minutes} {mib}");
        }
        for (minutes, mib, good) in
            [(0, 0, true), (-1, -1, true), (5, -1, true), (0, 5, false), (5, 0, false), (-2, 1, false)]
        {
            assert_eq!(Retention { time_minutes: minutes, size_mib: mib }.check().is_ok(), good, "{minutes} {mib}");
        }
    }

    #[test]
    fn quorums_are_ordered() {
        let persistence = |ensemble, write, ack| Persistence {
            bookkeeper_ensemble: ensemble,
            bookkeeper_write_quorum: write,
            bookkeeper_ack_quorum: ack,
            ..Default::default()
        };
        assert!(persistence(3, 2, 2).check().is_ok());
        let refused = persistence(2, 5, 2).check().unwrap_err().to_string();
        assert_eq!(refused, "Bookkeeper Ensemble (2) >= WriteQuorum (5) >= AckQuorum (2)");
        assert!(persistence(2, 2, 0).check().is_err());
    }
}
