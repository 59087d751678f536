//! What autorecovery shows.

use crate::records::Report;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntGauge, Registry};

/// Handles of everything that is shown.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub is_auditor: IntGauge,
    pub bookies_missing: IntGauge,
    pub bookies_leaving: IntGauge,
    pub held: IntGauge,
    pub ledgers_waiting: IntGauge,
    pub ledgers_working: IntGauge,
    pub ledgers_done: IntCounter,
    pub ledgers_failed: IntCounter,
    pub ledgers_closed: IntCounter,
    pub ledgers_contended: IntCounter,
    pub entries: IntCounter,
    pub bytes: IntCounter,
    pub lost_entries: IntCounter,
    pub mended: IntCounter,
    pub unrecoverable: IntGauge,
    pub looks_failed: IntCounter,
    pub audits: IntCounter,
    audit_end_seconds: IntGauge,
    audit_ledgers: IntGauge,
    audit_copies: IntGauge,
    audit_missing: IntGauge,
    audit_damaged: IntGauge,
    audit_unanswered: IntGauge,
    audit_misplaced: IntGauge,
    audit_mendable: IntGauge,
    audit_under_replicated: IntGauge,
    audit_failed: IntGauge,
}

struct Names<'a>(&'a Registry);

impl Names<'_> {
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(format!("autorecovery_{name}"), help)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(format!("autorecovery_{name}"), help)?)
    }
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let names = Names(registry);
        Ok(Self {
            is_auditor: names.gauge("is_auditor", "1 in the process that marks lost bookies and audits")?,
            bookies_missing: names.gauge("bookies_missing", "Bookies that hold ledgers and are not registered")?,
            bookies_leaving: names.gauge("bookies_leaving", "Bookies whose ledgers are being moved")?,
            held: names.gauge("held", "1 = more than half of the bookies are missing: nothing is moved")?,
            ledgers_waiting: names.gauge("ledgers_waiting", "Ledgers that still have a leaving bookie")?,
            ledgers_working: names.gauge("ledgers_working", "Ledgers at work in this process")?,
            ledgers_done: names.counter("ledgers_replicated_total", "Ledgers brought back to full copies")?,
            ledgers_failed: names.counter("ledgers_failed_total", "Attempts at ledgers that failed")?,
            ledgers_closed: names.counter("ledgers_closed_total", "Open ledgers that were recovered and closed")?,
            ledgers_contended: names.counter("ledgers_contended_total", "Ledgers that another worker held")?,
            entries: names.counter("entries_replicated_total", "Copies made")?,
            bytes: names.counter("bytes_replicated_total", "Bytes of copies made")?,
            lost_entries: names
                .counter("entries_without_copy_total", "Attempts that met an entry without a good copy")?,
            mended: names.counter(
                "placement_ensembles_mended_total",
                "Ensembles moved so that they keep the placement's rule",
            )?,
            unrecoverable: names
                .gauge("unrecoverable_ledgers", "Ledgers that the bookies which are there can't bring back")?,
            looks_failed: names.counter("looks_failed_total", "Looks of the auditor that metadata did not answer")?,
            audits: names.counter("audits_total", "Audits ended in this process")?,
            audit_end_seconds: names.gauge("audit_end_timestamp_seconds", "When the last audit ended")?,
            audit_ledgers: names.gauge("audit_ledgers", "Ledgers that the last audit looked at")?,
            audit_copies: names.gauge("audit_copies", "Copies that the last audit looked at")?,
            audit_missing: names.gauge("audit_missing_copies", "Copies that were not there")?,
            audit_damaged: names.gauge("audit_damaged_copies", "Copies whose bytes did not match")?,
            audit_unanswered: names.gauge("audit_unanswered_copies", "Copies on bookies that did not answer")?,
            audit_misplaced: names.gauge("audit_misplaced_ensembles", "Ensembles that break the placement's rule")?,
            audit_mendable: names
                .gauge("audit_mendable_ensembles", "Finished ones of them that other members would put right")?,
            audit_under_replicated: names.gauge("audit_under_replicated_ledgers", "Ledgers with a missing bookie")?,
            audit_failed: names.gauge("audit_failed_ledgers", "Ledgers that could not be looked at")?,
        })
    }

    /// Shows the last audit.
    pub(crate) fn show(&self, report: &Report) {
        self.audit_end_seconds.set((report.ended_ms / 1000) as i64);
        self.audit_ledgers.set(report.ledgers as i64);
        self.audit_copies.set(report.copies as i64);
        self.audit_missing.set(report.missing_copies as i64);
        self.audit_damaged.set(report.damaged_copies as i64);
        self.audit_unanswered.set(report.unanswered_copies as i64);
        self.audit_misplaced.set(report.misplaced_ensembles as i64);
        self.audit_mendable.set(report.mendable_ensembles as i64);
        self.audit_under_replicated.set(report.under_replicated_ledgers as i64);
        self.audit_failed.set(report.failed_ledgers as i64);
    }
}
