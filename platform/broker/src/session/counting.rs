//! What of a connection counts against quotas.
//!
//! Invariants: a connection counts once at each place, from its first producer or consumer there to its end; links of other
//! regions count nowhere.

use super::Session;
use crate::error::BrokerError;
use crate::quotas::Hold;
use crate::service::is_system_topic;
use meridian_policy::quota::{Exceeded, Limit, Place};
use meridian_types::TopicName;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often other brokers are given time to let go of what they do not need.
const LEASE_TRIES: u32 = 8;
const LEASE_PAUSE: Duration = Duration::from_millis(400);

/// Places that a connection counts at.
#[derive(Default)]
pub(super) struct CountedAt {
    places: BTreeSet<Place>,
    holds: Vec<Hold>,
}

impl Session {
    /// Counts a producer or consumer, and the connection where it did not count yet.
    pub(super) async fn count_client(&self, limit: Limit, topic: &TopicName) -> Result<Hold, BrokerError> {
        let mut tries = LEASE_TRIES;
        loop {
            match self.try_count(limit, topic) {
                // There is room under the limit, but other brokers hold it: they let go as they renew.
                Err(exceeded) if exceeded.used < exceeded.bound.value && tries > 0 => {
                    tries -= 1;
                    self.service.quotas().ask_for_more(&exceeded).await;
                    if tries < LEASE_TRIES - 1 {
                        tokio::time::sleep(LEASE_PAUSE).await;
                    }
                }
                Err(exceeded) if exceeded.used < exceeded.bound.value => {
                    return Err(BrokerError::NotReady(format!("other brokers hold what is left: {exceeded}")));
                }
                other => return Ok(other?),
            }
        }
    }

    fn try_count(&self, limit: Limit, topic: &TopicName) -> Result<Hold, Exceeded> {
        let quotas = self.service.quotas();
        let hold = quotas.hold(limit, topic)?;
        if is_system_topic(topic) {
            return Ok(hold);
        }
        let mut counted = self.counted.lock();
        let mut places = Place::way_to(topic).to_vec();
        places.retain(|place| !matches!(place, Place::Topic(_)) && !counted.places.contains(place));
        if !places.is_empty() {
            let held = quotas.hold_at(Limit::Connections, &places)?;
            counted.holds.push(held);
            counted.places.extend(places);
        }
        Ok(hold)
    }

    /// The connection has ended.
    pub(super) fn count_no_more(&self) {
        *self.counted.lock() = CountedAt::default();
    }
}
