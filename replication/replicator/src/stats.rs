//! A link at one moment, for statistics and metrics.
//!
//! Must never know: how it is printed.

use crate::machine::state::{Counters, LinkState};
use crate::machine::words::Notice;

/// See the head of the file. Field names after Pulsar's replicator statistics where there are such.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicatorStats {
    /// The remote region.
    pub remote: String,
    /// The state with its reason; prints as text.
    pub state: LinkState,
    /// Since when, ms since 1970.
    pub since_ms: u64,
    /// A producer is open at the remote.
    pub connected: bool,
    /// Where, if it is.
    pub outbound_connection: Option<String>,
    /// Since when, ms since 1970.
    pub outbound_connected_since_ms: Option<u64>,
    /// Messages per second that the remote stored, over the last ten seconds or more.
    pub msg_rate_out: f64,
    /// Bytes per second sent.
    pub msg_throughput_out: f64,
    /// Messages per second that expired before they were copied.
    pub msg_rate_expired: f64,
    /// Entries not yet through.
    pub replication_backlog: u64,
    /// Age of the oldest one of them; 0 = none waits.
    pub replication_delay_ms: u64,
    /// Everything counted since the link was started here.
    pub counters: Counters,
    /// Entries sent without a receipt.
    pub waiting_entries: u32,
    /// Bytes of them.
    pub waiting_bytes: u64,
    /// Entries read and not sent.
    pub queued_entries: u32,
    /// Entries that may wait for receipts at this moment.
    pub window: u32,
    /// Suffix of the producer's name, 0 = none.
    pub generation: u64,
    /// The last thing that people must hear of, and when.
    pub last_notice: Option<(u64, Notice)>,
}

/// Rates between two looks that are some time apart.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    older: Sample,
    newer: Sample,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at_ms: u64,
    totals: Totals,
}

/// What a meter looks at, growing only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages that went.
    pub messages: u64,
    /// Bytes that went.
    pub bytes: u64,
    /// Messages that did not: expired, or dropped.
    pub lost: u64,
}

impl From<&Counters> for Totals {
    fn from(counters: &Counters) -> Self {
        Self { messages: counters.messages_stored, bytes: counters.bytes_sent, lost: counters.messages_expired }
    }
}

/// Samples are at least that far apart.
const SAMPLE_MS: u64 = 10_000;

impl Meter {
    /// From now on.
    pub fn new(now_ms: u64) -> Self {
        let sample = Sample { at_ms: now_ms, ..Sample::default() };
        Self { older: sample, newer: sample }
    }

    /// Messages, bytes and lost messages per second.
    pub fn rates(&mut self, now_ms: u64, totals: Totals) -> (f64, f64, f64) {
        let now = Sample { at_ms: now_ms, totals };
        if now_ms.saturating_sub(self.newer.at_ms) >= SAMPLE_MS {
            self.older = self.newer;
            self.newer = now;
        }
        let seconds = now_ms.saturating_sub(self.older.at_ms) as f64 / 1000.0;
        if seconds <= 0.0 {
            return (0.0, 0.0, 0.0);
        }
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let older = self.older.totals;
        (rate(totals.messages, older.messages), rate(totals.bytes, older.bytes), rate(totals.lost, older.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_last_two_samples() {
        let mut meter = Meter::new(0);
        let at = |messages| Totals { messages, ..Totals::default() };
        assert_eq!(meter.rates(0, at(0)).0, 0.0);
        assert_eq!(meter.rates(5_000, at(50)).0, 10.0);
        assert_eq!(meter.rates(10_000, at(100)).0, 10.0);
        assert_eq!(meter.rates(20_000, at(100)).0, 0.0);
        assert_eq!(meter.rates(25_000, at(100)).0, 0.0);
    }
}
