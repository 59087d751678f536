//! The node's metrics, under the names that operators of Apache BookKeeper know.
//!
//! Every metric carries the label `bookie`, so that several nodes of one process share a registry.

use meridian_types::BookieId;
use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

/// Handles of everything that is counted.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub journal_syncs: IntCounter,
    pub journal_sync_seconds: Histogram,
    pub journal_write_bytes: IntCounter,
    pub journal_records: IntCounter,
    pub journal_queue_bytes: IntGauge,
    pub journal_queue_batches: IntGauge,
    pub journal_damages: IntCounter,
    pub journal_torn_tails: IntCounter,
    pub journal_holds: IntCounter,
    pub server_status: IntGauge,
    pub ledger_dir_usage: IntGaugeVec,
    pub add_entries: IntCounter,
    pub write_bytes: IntCounter,
    pub refused_entries: IntCounter,
    pub read_entries: IntCounter,
    pub read_bytes: IntCounter,
    pub write_cache_bytes: IntGauge,
    pub read_cache_bytes: IntGauge,
    pub read_cache_hits: IntCounter,
    pub read_cache_misses: IntCounter,
    pub flushes: IntCounter,
    pub flush_failures: IntCounter,
    pub flush_seconds: Histogram,
    pub gc_runs: IntCounter,
    pub gc_deleted_ledgers: IntCounter,
    pub gc_deleted_logs: IntCounter,
    pub compacted_logs: IntCounter,
    pub compacted_bytes: IntCounter,
    pub corrupt_entries: IntCounter,
    pub free_space_bytes: IntGauge,
}

struct Names<'a> {
    registry: &'a Registry,
    bookie: String,
}

impl Names<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_label("bookie", &self.bookie)
    }

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::with_opts(self.opts(name, help))?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::with_opts(self.opts(name, help))?)
    }

    fn seconds(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        let buckets = vec![0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];
        let opts = HistogramOpts::new(name, help).const_label("bookie", &self.bookie).buckets(buckets);
        self.register(Histogram::with_opts(opts)?)
    }
}

impl Metrics {
    /// Registers everything.
    pub fn register(registry: &Registry, id: &BookieId) -> Result<Self, prometheus::Error> {
        let n = Names { registry, bookie: id.as_str().to_owned() };
        let usage = n.opts("bookie_ledger_dir_usage", "Used part of a folder's disk or quota, in percent");
        Ok(Self {
            journal_syncs: n.counter("bookie_journal_JOURNAL_SYNC_count", "Sync groups written")?,
            journal_sync_seconds: n.seconds("bookie_journal_JOURNAL_FORCE_WRITE_LATENCY", "Write and sync, seconds")?,
            journal_write_bytes: n.counter("bookie_journal_JOURNAL_WRITE_BYTES", "Bytes written to journals")?,
            journal_records: n.counter("bookie_journal_JOURNAL_ADD_ENTRY_count", "Records written to journals")?,
            journal_queue_bytes: n.gauge("bookie_journal_JOURNAL_QUEUE_BYTES", "Bytes waiting for a sync")?,
            journal_queue_batches: n.gauge("bookie_journal_JOURNAL_QUEUE_SIZE", "Batches waiting for a sync")?,
            journal_damages: n.counter("bookie_journal_damaged_ranges_count", "Damaged ranges met at replay")?,
            journal_torn_tails: n.counter("bookie_journal_torn_tails_count", "Torn tails cut at replay")?,
            journal_holds: n.counter("bookie_journal_held_groups_count", "Groups held for room in the write cache")?,
            server_status: n.gauge("bookie_SERVER_STATUS", "1 writable, 0 read-only, -1 a disk has failed")?,
            ledger_dir_usage: n.register(IntGaugeVec::new(usage, &["dir"])?)?,
            add_entries: n.counter("bookkeeper_server_ADD_ENTRY_count", "Entries given to add")?,
            write_bytes: n.counter("bookie_WRITE_BYTES", "Payload bytes given to add")?,
            refused_entries: n.counter("bookie_ADD_ENTRY_REFUSED_count", "Entries refused")?,
            read_entries: n.counter("bookkeeper_server_READ_ENTRY_count", "Entries read")?,
            read_bytes: n.counter("bookie_READ_BYTES", "Payload bytes read")?,
            write_cache_bytes: n.gauge("bookie_write_cache_size", "Bytes in the write caches")?,
            read_cache_bytes: n.gauge("bookie_read_cache_size", "Bytes in the read cache")?,
            read_cache_hits: n.counter("bookie_read_cache_hits_count", "Reads served from the read cache")?,
            read_cache_misses: n.counter("bookie_read_cache_misses_count", "Reads that touched a disk")?,
            flushes: n.counter("bookie_flush_count", "Checkpoints")?,
            flush_failures: n.counter("bookie_flush_failures_count", "Checkpoints that failed")?,
            flush_seconds: n.seconds("bookie_flush", "Duration of a checkpoint, seconds")?,
            gc_runs: n.counter("bookie_GC_count", "Garbage collections")?,
            gc_deleted_ledgers: n.counter("bookie_DELETED_LEDGER_COUNT", "Ledgers deleted by garbage collection")?,
            gc_deleted_logs: n.counter("bookie_GC_deleted_entry_logs_count", "Entry logs deleted")?,
            compacted_logs: n.counter("bookie_compaction_entry_logs_count", "Entry logs compacted")?,
            compacted_bytes: n.counter("bookie_compaction_bytes_count", "Bytes moved by compaction")?,
            corrupt_entries: n.counter("bookie_corrupt_entries_count", "Entries found damaged when read")?,
            free_space_bytes: n.gauge("bookie_free_space_bytes", "Least free space of any folder")?,
        })
    }
}
