//! What tenants used: counted by the hour, summed up by hour, day or month.
//!
//! Invariants: G1 of counters that grow the difference counts, and a counter that begins anew counts from zero; G2 sums
//! of periods are sums of their hours, but for sizes, of which the greatest counts.
//! Must never know: clocks, stores, where figures come from.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds of an hour.
pub const HOUR_MS: u64 = 3_600_000;

/// What was used in some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Messages published.
    pub messages_in: u64,
    /// Bytes published.
    pub bytes_in: u64,
    /// Messages dispatched.
    pub messages_out: u64,
    /// Bytes dispatched.
    pub bytes_out: u64,
    /// Messages copied to other regions.
    pub replicated_messages: u64,
    /// Bytes copied to other regions.
    pub replicated_bytes: u64,
    /// Bytes stored at most at one time.
    pub stored_bytes_max: u64,
}

impl Usage {
    /// Adds what was used beside or after it (G2).
    pub fn add(&mut self, other: &Usage, beside: bool) {
        self.messages_in = self.messages_in.saturating_add(other.messages_in);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.messages_out = self.messages_out.saturating_add(other.messages_out);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.replicated_messages = self.replicated_messages.saturating_add(other.replicated_messages);
        self.replicated_bytes = self.replicated_bytes.saturating_add(other.replicated_bytes);
        // Brokers store side by side; one hour follows the other.
        self.stored_bytes_max = match beside {
            true => self.stored_bytes_max.saturating_add(other.stored_bytes_max),
            false => self.stored_bytes_max.max(other.stored_bytes_max),
        };
    }

    /// What was used since an earlier look at growing counters (G1); the size is the present one.
    #[must_use]
    pub fn since(&self, earlier: &Usage) -> Usage {
        let grown = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        Usage {
            messages_in: grown(self.messages_in, earlier.messages_in),
            bytes_in: grown(self.bytes_in, earlier.bytes_in),
            messages_out: grown(self.messages_out, earlier.messages_out),
            bytes_out: grown(self.bytes_out, earlier.bytes_out),
            replicated_messages: grown(self.replicated_messages, earlier.replicated_messages),
            replicated_bytes: grown(self.replicated_bytes, earlier.replicated_bytes),
            stored_bytes_max: self.stored_bytes_max,
        }
    }
}

/// How long a period is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// An hour.
    Hour,
    /// A day, UTC.
    Day,
}

impl Period {
    /// By its word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "hour" => Some(Period::Hour),
            "day" => Some(Period::Day),
            _ => None,
        }
    }

    /// Hours.
    pub fn hours(self) -> u64 {
        match self {
            Period::Hour => 1,
            Period::Day => 24,
        }
    }
}

/// Hours summed up into periods, by the beginning of each in ms since 1970.
pub fn by_period(hours: &BTreeMap<u64, Usage>, period: Period) -> BTreeMap<u64, Usage> {
    let mut periods: BTreeMap<u64, Usage> = BTreeMap::new();
    for (hour, usage) in hours {
        let begins = hour - hour % period.hours();
        periods.entry(begins.saturating_mul(HOUR_MS)).or_default().add(usage, false);
    }
    periods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(messages_in: u64, stored_bytes_max: u64) -> Usage {
        Usage { messages_in, stored_bytes_max, ..Usage::default() }
    }

    #[test]
    fn counters_that_begin_anew_count_from_zero() {
        assert_eq!(usage(10, 5).since(&usage(4, 9)), usage(6, 5));
        assert_eq!(usage(3, 5).since(&usage(4, 9)), usage(3, 5));
    }

    #[test]
    fn hours_make_days() {
        let hours = [(23, usage(1, 10)), (24, usage(2, 30)), (47, usage(4, 20)), (48, usage(8, 1))].into();
        let days = by_period(&hours, Period::Day);
        assert_eq!(days, [(0, usage(1, 10)), (24 * HOUR_MS, usage(6, 30)), (48 * HOUR_MS, usage(8, 1))].into());
        assert_eq!(by_period(&hours, Period::Hour).len(), 4);
        let mut beside = usage(1, 10);
        beside.add(&usage(1, 10), true);
        assert_eq!(beside, usage(2, 20));
        assert_eq!((Period::parse("day"), Period::parse("week")), (Some(Period::Day), None));
    }
}
