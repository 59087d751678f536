//! Counts of what the ledger client did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters and their snapshot from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Running counts, shared by all ledgers of a client.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        /// The counts at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct CounterSnapshot {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// The counts now.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Ledgers created.
    created,
    /// Ledgers closed by their writer.
    closed,
    /// Ledgers deleted.
    deleted,
    /// Entries appended.
    appends,
    /// Bytes appended.
    append_bytes,
    /// Entries confirmed.
    confirmed,
    /// Members of ensembles replaced.
    replaced_bookies,
    /// Ensemble changes put into metadata.
    ensemble_changes,
    /// Ensemble changes that found no bookie or no answer from metadata.
    refused_changes,
    /// Writers ended by an error.
    ended_writers,
    /// Explicit last-add-confirmed sent.
    explicit_lacs,
    /// Recoveries begun.
    recoveries,
    /// Recoveries that closed a ledger or found it closed.
    recovered,
    /// Entries rewritten by recoveries.
    recovered_entries,
    /// Adds of which the answer was a time-out.
    add_timeouts,
    /// Entries read from the first bookie asked.
    reads_first_replica,
    /// Entries read from another bookie because the first failed or was late.
    reads_other_replica,
    /// Reads for which a second bookie was asked before the first answered.
    hedged_reads,
    /// Replicas found damaged.
    corrupt_replicas,
    /// Copies made by re-replication.
    replicated_entries,
    /// Their bytes.
    replicated_bytes,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
