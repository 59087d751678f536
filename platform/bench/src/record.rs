//! Latencies of one kind, counted per message.
//!
//! Invariants: a latency above the highest bound counts as that bound, none is dropped; `count` never goes back.
//! Must never know: what took the time.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest latency that is told apart.
const MAX_NS: u64 = 600_000_000_000;

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, MAX_NS, 3).expect("constant bounds are valid")
}

/// Latencies of one kind. Shared by everyone who records.
#[derive(Debug)]
pub struct Recorder {
    histogram: Mutex<Histogram<u64>>,
    count: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { histogram: Mutex::new(empty()), count: AtomicU64::new(0) }
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.histogram.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `messages` messages had this latency.
    pub fn record(&self, latency: Duration, messages: u64) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(MAX_NS);
        self.lock().saturating_record_n(ns, messages);
        self.count.fetch_add(messages, Ordering::Release);
    }

    /// `messages` messages came without a known latency.
    pub fn count_only(&self, messages: u64) {
        self.count.fetch_add(messages, Ordering::Release);
    }

    /// All messages so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The latencies since the last call.
    pub fn take(&self) -> Histogram<u64> {
        std::mem::replace(&mut *self.lock(), empty())
    }
}

/// Median, 99th, 99.9th percentile and maximum in ms as `NAME_p50_ms` …; nothing if nothing was recorded.
pub fn put_percentiles(name: &str, latencies: &Histogram<u64>, report: &mut Map<String, Value>) {
    if latencies.is_empty() {
        return;
    }
    for (suffix, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
        report.insert(format!("{name}_{suffix}_ms"), json!(to_ms(latencies.value_at_quantile(quantile))));
    }
}

/// Nanoseconds as ms with three digits.
pub fn to_ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_messages_not_batches() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_millis(1), 98);
        recorder.record(Duration::from_millis(50), 2);
        recorder.record(Duration::MAX, 0);
        recorder.count_only(5);
        let mut report = Map::new();
        put_percentiles("publish", &recorder.take(), &mut report);
        let ms = |key: &str| report[key].as_f64().unwrap();
        assert!((ms("publish_p50_ms") - 1.0).abs() < 0.01);
        assert!((ms("publish_p99_ms") - 50.0).abs() < 0.1);
        assert_eq!(recorder.count(), 105);
        assert!(recorder.take().is_empty(), "taken once");
    }

    #[test]
    fn a_latency_above_the_bound_is_kept() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_secs(100_000), 1);
        let taken = recorder.take();
        assert_eq!(taken.len(), 1);
        assert!(taken.max() >= MAX_NS);
    }
}
