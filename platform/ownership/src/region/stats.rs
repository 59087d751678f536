//! Counters of ownership, with reasons.

use super::RegionOwnership;
use crate::api::{Figure, Ownership};
use crate::lease::StopReason;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Default)]
pub(super) struct Stats {
    /// Bundles given to somebody, by why.
    pub assigned: Mutex<BTreeMap<&'static str, u64>>,
    /// Times that serving ended, by why.
    pub stopped: Mutex<BTreeMap<StopReason, u64>>,
    /// Busy brokers that shed nothing, by why.
    pub stuck: Mutex<BTreeMap<&'static str, u64>>,
    /// Bundles cut.
    pub splits: AtomicU64,
    /// Bundles joined.
    pub merges: AtomicU64,
    /// Changes that met another one and were begun again.
    pub conflicts: AtomicU64,
    /// Renewals that were not answered.
    pub renewals_failed: AtomicU64,
    /// Records that can't be read.
    pub unreadable: AtomicU64,
    /// Transactions of ownership.
    pub commits: AtomicU64,
    /// Times the whole table was read anew.
    pub rescans: AtomicU64,
}

impl Stats {
    pub fn count_assigned(&self, why: &'static str, bundles: u64) {
        *self.assigned.lock().entry(why).or_default() += bundles;
    }

    pub fn count_stuck(&self, why: &'static str) {
        *self.stuck.lock().entry(why).or_default() += 1;
    }

    pub fn count_stopped(&self, reason: StopReason) {
        *self.stopped.lock().entry(reason).or_default() += 1;
    }

    pub fn figures(&self, of: &RegionOwnership) -> Vec<Figure> {
        let counter =
            |name, value: &AtomicU64| Figure { name, label: None, value: value.load(Ordering::Relaxed) as f64 };
        let gauge = |name, value: f64| Figure { name, label: None, value };
        let (brokers, orphans) = {
            let table = of.table.read();
            (table.brokers().len(), table.orphans().len())
        };
        let me = of.me();
        let leads = of.leader().is_some_and(|leader| leader.id == me.id && leader.incarnation == me.incarnation);
        let mut figures = vec![
            counter("meridian_ownership_bundles_split_total", &self.splits),
            counter("meridian_ownership_bundles_merged_total", &self.merges),
            counter("meridian_ownership_conflicts_total", &self.conflicts),
            counter("meridian_ownership_renewals_failed_total", &self.renewals_failed),
            counter("meridian_ownership_records_unreadable_total", &self.unreadable),
            counter("meridian_ownership_commits_total", &self.commits),
            counter("meridian_ownership_rescans_total", &self.rescans),
            gauge("meridian_ownership_bundles", of.ours.lock().len() as f64),
            gauge("meridian_ownership_bundles_unowned", orphans as f64),
            gauge("meridian_ownership_brokers", brokers as f64),
            gauge("meridian_ownership_leader", f64::from(u8::from(leads))),
            gauge("meridian_ownership_in_force", f64::from(u8::from(of.in_force()))),
            gauge("meridian_ownership_address_taken", f64::from(u8::from(of.taken.lock().by_another()))),
            gauge(
                "meridian_ownership_store_answer_age_seconds",
                of.contact_age_ms().map_or(f64::NAN, |age| age as f64 / 1000.0),
            ),
        ];
        figures.extend(self.assigned.lock().iter().map(|(why, count)| Figure {
            name: "meridian_ownership_bundles_assigned_total",
            label: Some(("reason", (*why).to_owned())),
            value: *count as f64,
        }));
        figures.extend(self.stuck.lock().iter().map(|(why, count)| Figure {
            name: "meridian_ownership_shedding_stuck_total",
            label: Some(("reason", (*why).to_owned())),
            value: *count as f64,
        }));
        figures.extend(self.stopped.lock().iter().map(|(reason, count)| Figure {
            name: "meridian_ownership_stops_total",
            label: Some(("reason", reason.word().to_owned())),
            value: *count as f64,
        }));
        figures
    }
}
