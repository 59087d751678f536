//! Who holds this broker's address while this process can't register under it, and what is told of that.
//!
//! Role: a broker that was killed leaves its record until its session ends, and its next life waits for that. A record
//! that stands for longer is renewed by a process that lives: two brokers were given one address.
//! Invariants: A1 what stands for more than [`LEASES`] leases is told as an error; A2 a state is told when it begins and
//! once a minute.
//! Failure: none.
//! Must never know: the store, sockets.

use crate::records::BrokerRecord;
use meridian_metadata::MetadataError;
use meridian_types::Repeats;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A record of a process that has gone is gone after so many leases: its own, and one for clocks and slow stores.
const LEASES: u64 = 2;

struct Holder {
    record: Option<BrokerRecord>,
    me: String,
    since_ms: u64,
    lease_ms: u64,
}

/// See the head of this file.
pub(super) struct Taken {
    holder: Option<Holder>,
    told: Repeats,
    failed: Repeats,
}

impl Default for Taken {
    fn default() -> Self {
        Self { holder: None, told: Repeats::by_minute(), failed: Repeats::by_minute() }
    }
}

impl Taken {
    /// The record of another life stands at the address of `me`; `None` = it can't be read.
    pub fn by(&mut self, record: Option<BrokerRecord>, me: &BrokerRecord, lease_ms: u64, now_ms: u64) {
        if record.as_ref().is_some_and(|record| record.started_ms == me.started_ms) {
            // This process's own earlier life, whose session is being closed.
            return;
        }
        let life = |record: &Option<BrokerRecord>| record.as_ref().map(|record| record.incarnation);
        if self.holder.as_ref().is_none_or(|holder| life(&holder.record) != life(&record)) {
            self.holder = Some(Holder { record, me: me.id.clone(), since_ms: now_ms, lease_ms });
        }
        let Some(holder) = &self.holder else { return };
        let (lives, text) = (holder.lives(now_ms), holder.text(now_ms));
        let Some(line) = self.told.note(Instant::now(), if lives { "lives" } else { "is there" }) else { return };
        let (broker, lasted_ms) = (&holder.me, line.lasted_ms());
        match lives {
            true => tracing::error!(broker, lasted_ms, "this broker serves nothing: {text}"),
            false => tracing::warn!(broker, lasted_ms, "this broker serves nothing yet: {text}"),
        }
    }

    /// The broker could not be registered; that its address is taken is told by itself.
    pub fn failed(&mut self, error: &MetadataError) {
        if self.holder.is_none()
            && let Some(line) = self.failed.note(Instant::now(), &error.to_string())
        {
            tracing::warn!(%error, times = line.times, lasted_ms = line.lasted_ms(), "the broker is not registered yet");
        }
    }

    /// The broker is registered.
    pub fn free(&mut self, now_ms: u64) {
        let now = Instant::now();
        self.failed.end(now);
        self.told.end(now);
        if let Some(holder) = self.holder.take() {
            let waited_ms = now_ms.saturating_sub(holder.since_ms);
            tracing::info!(broker = holder.me, waited_ms, "the broker's address is free again and is its own now");
        }
    }

    /// Whether another process holds the address.
    pub fn by_another(&self) -> bool {
        self.holder.is_some()
    }

    /// Who holds the address, in words.
    pub fn held(&self, now_ms: u64) -> Option<String> {
        self.holder.as_ref().map(|holder| holder.text(now_ms))
    }
}

impl Holder {
    fn lives(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) > LEASES * self.lease_ms
    }

    fn text(&self, now_ms: u64) -> String {
        let who = match &self.record {
            None => "by a record that can't be read".to_owned(),
            Some(record) => {
                let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
                let age_s = wall_ms.saturating_sub(record.started_ms) / 1000;
                let url =
                    record.listener(None).and_then(|first| first.broker_url.as_ref().or(first.broker_url_tls.as_ref()));
                let url = url.map_or("no address for clients", String::as_str);
                format!("by another broker process ({url}, version {}, started {age_s} s ago)", record.version)
            }
        };
        let (me, lease_ms) = (&self.me, self.lease_ms);
        match self.lives(now_ms) {
            true => format!(
                "the address {me} is held {who}, which lives: stop one of the two, or give this one an advertisedAddress or \
                 webServicePort of its own"
            ),
            false => format!(
                "the address {me} is held {who}; if that was killed, its lease ends within {lease_ms} ms and this one \
                 goes on by itself, else give this one an advertisedAddress or webServicePort of its own"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(incarnation: u64, started_ms: u64) -> BrokerRecord {
        BrokerRecord { id: "host:8080".to_owned(), incarnation, started_ms, ..BrokerRecord::default() }
    }

    #[test]
    fn what_stands_for_longer_than_a_lease_of_the_dead_lives() {
        let (mut taken, me) = (Taken::default(), record(9, 900));
        assert!(!taken.by_another() && taken.held(0).is_none());
        taken.by(Some(record(1, 100)), &me, 1000, 5_000);
        let text = taken.held(5_000).unwrap_or_default();
        assert!(text.contains("host:8080") && text.contains("goes on by itself"), "{text}");
        taken.by(Some(record(1, 100)), &me, 1000, 7_001);
        let text = taken.held(7_001).unwrap_or_default();
        assert!(text.contains("which lives") && text.contains("advertisedAddress"), "{text}");
        // Another process took it meanwhile: counted anew.
        taken.by(Some(record(2, 200)), &me, 1000, 7_100);
        assert!(taken.held(7_100).unwrap_or_default().contains("goes on by itself"));
        taken.free(7_200);
        assert!(!taken.by_another());
    }

    #[test]
    fn its_own_earlier_life_is_nobody_else() {
        let mut taken = Taken::default();
        taken.by(Some(record(1, 900)), &record(2, 900), 1000, 10);
        assert!(!taken.by_another());
    }
}
