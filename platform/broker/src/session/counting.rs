//! What of a connection counts against quotas.
//!
//! Invariants: a connection counts once at each place, from its first producer or consumer there to its end; links of other
//! regions count nowhere.

use super::Session;
use crate::error::BrokerError;
use crate::quotas::Hold;
use crate::service::is_system_topic;
use meridian_policy::quota::{Limit, Place};
use meridian_types::TopicName;
use std::collections::BTreeSet;

/// Places that a connection counts at.
#[derive(Default)]
pub(super) struct CountedAt {
    places: BTreeSet<Place>,
    holds: Vec<Hold>,
}

impl Session {
    /// Counts a producer or consumer, and the connection where it did not count yet.
    pub(super) fn count_client(&self, limit: Limit, topic: &TopicName) -> Result<Hold, BrokerError> {
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
