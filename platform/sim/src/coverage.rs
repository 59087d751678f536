//! What happened in runs, so that a clean result says something.

use std::fmt;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of what happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Coverage {
            /// Adds what happened in another run.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }

            /// Names and counts.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Events handled.
    events,
    /// Entries stored, in all regions.
    entries_stored,
    /// Publishes of clients with a receipt.
    publishes_acked,
    /// Entries sent over links.
    link_sends,
    /// Link sends answered as duplicates.
    link_duplicates,
    /// Link sends refused or not decided.
    link_refusals,
    /// Link sends refused because one before them was.
    link_gated,
    /// Sessions of links opened.
    sessions,
    /// Openings that failed.
    opens_failed,
    /// Sessions cut by a reset.
    resets,
    /// Sessions that went silent.
    silent_cuts,
    /// Partitions between regions.
    partitions,
    /// Region crashes.
    crashes,
    /// Of them with appends under way.
    crashes_in_appends,
    /// Appends that became durable in a crash without a receipt.
    stored_in_crash,
    /// Appends that failed.
    appends_failed,
    /// Topics reloaded after their log was fenced.
    reloads,
    /// Entries that outlived their time before they were copied.
    expired,
    /// Entries removed before they were copied.
    removed_uncopied,
    /// Of them those that a link could not see: it began behind them, or had read nothing yet.
    removed_unseen,
    /// Gaps announced.
    gaps,
    /// Deliveries to consumers.
    deliveries,
    /// Entries not delivered because their ack came first.
    acked_before_arrival,
    /// Consumers that moved to another region.
    reader_moves,
    /// Subscriptions moved by hand.
    seeks,
    /// Epochs taken over from other regions.
    epochs_adopted,
    /// Parts of acknowledgements received.
    ack_parts,
    /// Parts that got lost on the way.
    ack_parts_lost,
    /// Producers that moved to another region.
    client_moves,
    /// Sends repeated by clients.
    resends,
    /// Publishes of clients answered as duplicates.
    client_duplicates,
    /// Planned switches done.
    switches,
    /// Planned switches given up.
    switches_given_up,
    /// Regions made active by force.
    forced,
    /// Tails set aside.
    tails,
    /// Entries in them.
    tail_entries,
    /// Links refused because of their epoch.
    stale_links,
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.list() {
            writeln!(f, "  {name:<22} {count}")?;
        }
        Ok(())
    }
}
