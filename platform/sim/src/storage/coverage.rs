//! How often each thing happened, so that a quiet simulation is not taken for a good one.

use std::fmt;

/// Defines the counts from one list.
macro_rules! counts {
    ($($name:ident: $words:literal),+ $(,)?) => {
        /// What happened in a run, or in many.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the words stand beside each in the list")]
        pub struct StorageCoverage {
            $(pub $name: u64,)+
        }

        impl StorageCoverage {
            /// Names and counts.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($words, self.$name),)+]
            }

            /// Adds another run's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counts! {
    events: "events",
    appended: "entries appended",
    confirmed: "entries confirmed",
    takeovers: "take-overs of the log",
    recoveries: "recoveries that closed a ledger",
    rewritten: "entries rewritten by recoveries",
    rolls: "ledgers closed by their writer",
    ensemble_changes: "ensemble changes",
    trimmed: "ledgers trimmed",
    reads: "entries read",
    acks: "entries acknowledged",
    bookie_crashes: "crashes of bookies",
    torn: "crashes that kept a part of what was not synced",
    unsynced_lost: "records lost because they were not synced",
    bookies_lost: "bookies lost for ever",
    damaged: "copies damaged",
    process_crashes: "crashes of brokers and workers",
    pauses: "pauses of brokers and workers",
    partitions: "partitions",
    lost_messages: "messages lost",
    metadata_outages: "outages of metadata",
    unknown_outcomes: "metadata writes with an unknown outcome",
    fenced_writers: "writers that found themselves fenced",
    marked: "bookies marked as leaving",
    moved: "ensembles moved by autorecovery",
    copies: "copies made by autorecovery",
    closed_by_autorecovery: "open ledgers closed by autorecovery",
}

impl fmt::Display for StorageCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list().into_iter().try_for_each(|(name, count)| writeln!(f, "  {name}: {count}"))
    }
}
