//! Figures of the audit log.

use prometheus::{IntCounter, IntGauge, Registry};

/// Counters and gauges, at zero.
pub(crate) struct Metrics {
    pub(crate) recorded: IntCounter,
    pub(crate) refused: IntCounter,
    pub(crate) file_failures: IntCounter,
    pub(crate) topic_failures: IntCounter,
    pub(crate) topic_passed_over: IntCounter,
    pub(crate) queued: IntGauge,
}

impl Metrics {
    #[allow(clippy::expect_used)]
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str| IntCounter::new(name, help).expect("the name is constant and valid");
        let this = Self {
            recorded: counter("meridian_audit_records_total", "Administrative changes recorded in the file"),
            refused: counter(
                "meridian_audit_refused_total",
                "Administrative changes refused because the queue was full",
            ),
            file_failures: counter("meridian_audit_file_failures_total", "Times that the file could not be written"),
            topic_failures: counter("meridian_audit_topic_failures_total", "Times that the topic did not take records"),
            topic_passed_over: counter("meridian_audit_topic_passed_over_total", "Records that only the file holds"),
            queued: IntGauge::new("meridian_audit_queued", "Places of the queue that are taken")
                .expect("the name is constant and valid"),
        };
        let counters =
            [&this.recorded, &this.refused, &this.file_failures, &this.topic_failures, &this.topic_passed_over];
        for one in counters {
            if let Err(error) = registry.register(Box::new(one.clone())) {
                tracing::debug!(%error, "the audit log is counted already");
            }
        }
        let _ = registry.register(Box::new(this.queued.clone()));
        this
    }
}
