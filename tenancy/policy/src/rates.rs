//! Rate limits as they are set; not positive means no limit.
//!
//! Invariants: a limit never becomes none by rounding.
//! Failure: none; whatever is not positive is no limit.
//! Must never know: clocks, how a rate is kept.

use serde::{Deserialize, Serialize};

/// Dispatch at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DispatchRate {
    /// Messages in a period.
    pub dispatch_throttling_rate_in_msg: i64,
    /// Bytes in a period.
    pub dispatch_throttling_rate_in_byte: i64,
    /// On top of the publish rate.
    pub relative_to_publish_rate: bool,
    /// The period in seconds.
    pub rate_period_in_second: u32,
}

impl Default for DispatchRate {
    fn default() -> Self {
        Self {
            dispatch_throttling_rate_in_msg: -1,
            dispatch_throttling_rate_in_byte: -1,
            relative_to_publish_rate: false,
            rate_period_in_second: 1,
        }
    }
}

impl DispatchRate {
    /// Messages and bytes per second, 0 = no limit.
    pub fn per_second(&self) -> (u64, u64) {
        let period = u64::from(self.rate_period_in_second.max(1));
        let rate = |value: i64| match u64::try_from(value) {
            Ok(0) | Err(_) => 0,
            Ok(value) => (value / period).max(1),
        };
        (rate(self.dispatch_throttling_rate_in_msg), rate(self.dispatch_throttling_rate_in_byte))
    }
}

/// Publish at most, per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PublishRate {
    /// Messages per second.
    pub publish_throttling_rate_in_msg: i64,
    /// Bytes per second.
    pub publish_throttling_rate_in_byte: i64,
}

impl Default for PublishRate {
    fn default() -> Self {
        Self { publish_throttling_rate_in_msg: -1, publish_throttling_rate_in_byte: -1 }
    }
}

impl PublishRate {
    /// Messages and bytes per second, 0 = no limit.
    pub fn per_second(&self) -> (u64, u64) {
        let rate = |value: i64| u64::try_from(value).unwrap_or(0);
        (rate(self.publish_throttling_rate_in_msg), rate(self.publish_throttling_rate_in_byte))
    }
}

/// Subscribe calls of one consumer at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscribeRate {
    /// Calls in a period.
    pub subscribe_throttling_rate_per_consumer: i64,
    /// The period in seconds.
    pub rate_period_in_second: u32,
}

impl Default for SubscribeRate {
    fn default() -> Self {
        Self { subscribe_throttling_rate_per_consumer: -1, rate_period_in_second: 30 }
    }
}

impl SubscribeRate {
    /// Calls in a period and the period in seconds, 0 = no limit.
    pub fn limit(&self) -> (u32, u32) {
        let calls = u32::try_from(self.subscribe_throttling_rate_per_consumer.max(0)).unwrap_or(u32::MAX);
        (calls, self.rate_period_in_second.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_reduced_to_seconds_and_a_limit_never_becomes_none() {
        let rate = |messages, seconds| DispatchRate {
            dispatch_throttling_rate_in_msg: messages,
            rate_period_in_second: seconds,
            ..Default::default()
        };
        assert_eq!(rate(100, 10).per_second(), (10, 0));
        assert_eq!(rate(5, 10).per_second(), (1, 0), "rounded up to a limit, not down to none");
        assert_eq!(rate(0, 0).per_second(), (0, 0));
        assert_eq!(PublishRate::default().per_second(), (0, 0));
        assert_eq!(SubscribeRate::default().limit(), (0, 30));
    }

    #[test]
    fn unset_fields_have_their_defaults() {
        let rate: DispatchRate = serde_json::from_str(r#"{"dispatchThrottlingRateInMsg":7}"#).unwrap();
        assert_eq!(rate.dispatch_throttling_rate_in_byte, -1);
        assert_eq!(rate.rate_period_in_second, 1);
    }
}
