//! How often one consumer may subscribe in a period.
//!
//! Role: counts the calls of each consumer (host, subscription, name) in periods that begin with its first call.
//! Invariants: G5 at most [`REMEMBERED_MAX`] consumers are remembered; a flood of names makes it forgetful, not large.
//! Must never know: clocks.

use crate::api::{SubscribeRequest, TopicError, TopicErrorKind};
use std::collections::HashMap;

/// Consumers whose calls are counted at most.
pub const REMEMBERED_MAX: usize = 10_000;

/// Calls of consumers in their periods.
#[derive(Debug, Default)]
pub struct SubscribeRates {
    periods: HashMap<Box<str>, (u64, u32)>,
}

impl SubscribeRates {
    /// Counts a consumer's call, known by the host it came from, the subscription and its name.
    ///
    /// # Errors
    /// `NotAllowed` with the limit and the time until the next call is admitted.
    pub fn check(&mut self, request: &SubscribeRequest, limit: (u32, u32), now_ms: u64) -> Result<(), TopicError> {
        let address = request.sink.peer_address();
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let who = format!("{host}/{}/{}", request.subscription, request.consumer_name);
        self.admit(&who, limit, now_ms).map_err(|wait_ms| {
            let message = format!(
                "Subscribe limited by subscribe rate limit per consumer: {} in {} s; the next is admitted in {wait_ms} ms",
                limit.0, limit.1
            );
            TopicError::new(TopicErrorKind::NotAllowed, message)
        })
    }

    /// Counts a call; `limit` is calls in a period (0 = no limit) and the period in seconds.
    ///
    /// # Errors
    /// How long until the next call is admitted, in ms.
    pub fn admit(&mut self, who: &str, limit: (u32, u32), now_ms: u64) -> Result<(), u64> {
        let (calls, period_ms) = (limit.0, u64::from(limit.1.max(1)) * 1000);
        if calls == 0 {
            self.periods = HashMap::new();
            return Ok(());
        }
        let ended = |begun_ms: u64| now_ms.saturating_sub(begun_ms) >= period_ms;
        if let Some((begun_ms, count)) = self.periods.get_mut(who) {
            if ended(*begun_ms) {
                (*begun_ms, *count) = (now_ms, 0);
            }
            if *count >= calls {
                return Err((*begun_ms + period_ms).saturating_sub(now_ms));
            }
            *count += 1;
            return Ok(());
        }
        if self.periods.len() >= REMEMBERED_MAX {
            self.periods.retain(|_, (begun_ms, _)| !ended(*begun_ms));
        }
        if self.periods.len() >= REMEMBERED_MAX {
            self.periods.clear();
        }
        self.periods.insert(who.into(), (now_ms, 1));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_consumer_has_its_calls_in_each_period() {
        let mut rates = SubscribeRates::default();
        let limit = (2, 10);
        assert_eq!(rates.admit("a", limit, 0), Ok(()));
        assert_eq!(rates.admit("a", limit, 4000), Ok(()));
        assert_eq!(rates.admit("a", limit, 4000), Err(6000));
        assert_eq!(rates.admit("b", limit, 4000), Ok(()));
        assert_eq!(rates.admit("a", limit, 10_000), Ok(()));
        assert_eq!(rates.admit("a", (0, 10), 10_000), Ok(()));
        assert!(rates.periods.is_empty());
    }

    #[test]
    fn a_flood_of_names_is_forgotten() {
        let mut rates = SubscribeRates::default();
        for number in 0..=REMEMBERED_MAX {
            assert_eq!(rates.admit(&number.to_string(), (1, 10), 0), Ok(()));
        }
        assert!(rates.periods.len() <= REMEMBERED_MAX);
    }
}
