//! What a switch costs: asked before, settled after.
//!
//! Role: the active region knows exactly what a target has not confirmed; a target that can't reach it answers with what it
//! heard last, and says how old that is. After a forced switch the returned region's tails settle the account.
//! Invariants: C1 a report is exact only if the active region itself gave the figures; C2 sums are the sums of the topics.
//! Failure: none; what is not known is said in `blockers`.
//! Must never know: how figures are had.

use crate::record::Epoch;
use crate::returning::Tail;
use serde::{Deserialize, Serialize};

/// One subscription of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionCost {
    /// Its name.
    pub subscription: String,
    /// Its state is carried to the target.
    pub replicated: bool,
    /// Messages acked that the target does not know to be acked: they would be seen again there.
    pub again: u64,
}

/// One topic (partition).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicCost {
    /// Its name.
    pub topic: String,
    /// Entries that the target has not confirmed.
    pub missing: u64,
    /// State of the link to the target, with its reason.
    pub link: String,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionCost>,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostReport {
    /// Its name.
    pub namespace: String,
    /// The active region.
    pub from: String,
    /// The target.
    pub to: String,
    /// The epoch that the figures belong to.
    pub epoch: Epoch,
    /// The active region gave them (C1); else they are what was heard from it last.
    pub exact: bool,
    /// When they were taken, ms since 1970; `None` = nothing was ever heard.
    pub taken_ms: Option<u64>,
    /// Entries missing in the target if the switch were forced now. A planned one waits for them.
    pub missing: u64,
    /// Messages that subscriptions would see again if the switch were forced now. A planned one waits for them.
    pub again: u64,
    /// What stands in the way of a planned switch, or makes the figures doubtful.
    pub blockers: Vec<String>,
    /// By topic.
    pub topics: Vec<TopicCost>,
}

impl CostReport {
    /// Sums the figures of topics.
    pub fn of(namespace: &str, from: &str, to: &str, epoch: Epoch, topics: Vec<TopicCost>) -> Self {
        let missing = topics.iter().map(|topic| topic.missing).sum();
        let subscriptions = || topics.iter().flat_map(|topic| &topic.subscriptions);
        let again = subscriptions().map(|one| one.again).sum();
        let mut blockers: Vec<String> = topics
            .iter()
            .filter(|topic| topic.missing != 0 && topic.link != "running" && topic.link != "throttled")
            .map(|topic| format!("link of {} to {to}: {}", topic.topic, topic.link))
            .collect();
        let alone = subscriptions().filter(|one| !one.replicated).count();
        if alone != 0 {
            blockers.push(format!("{alone} subscriptions do not carry their state to {to}"));
        }
        Self {
            namespace: namespace.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            epoch,
            exact: false,
            taken_ms: None,
            missing,
            again,
            blockers,
            topics,
        }
    }

    /// Says when and by whom the figures were taken.
    pub fn taken(mut self, at_ms: u64, exact: bool) -> Self {
        (self.taken_ms, self.exact) = (Some(at_ms), exact);
        self
    }
}

/// What a switch has cost, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settlement {
    /// The namespace.
    pub namespace: String,
    /// The epoch that began with the switch.
    pub epoch: Epoch,
    /// It was forced.
    pub forced: bool,
    /// The old region has come back and has set aside what was not delivered; before that the account is open.
    pub settled: bool,
    /// What was expected before, if it was asked.
    pub expected_missing: Option<u64>,
    /// Entries that the new region never got.
    pub missing: u64,
    /// Of them already replayed or dropped.
    pub dealt_with: u64,
    /// Tails that wait for a decision, by topic.
    pub open: Vec<String>,
}

/// Settles the account of one epoch from the tails that the old region holds.
pub fn settle(namespace: &str, epoch: Epoch, forced: bool, pending: bool, tails: &[Tail]) -> Settlement {
    let of_epoch: Vec<&Tail> = tails.iter().filter(|tail| tail.epoch == epoch).collect();
    Settlement {
        namespace: namespace.to_owned(),
        epoch,
        forced,
        settled: !pending,
        expected_missing: None,
        missing: of_epoch.iter().map(|tail| tail.entries).sum(),
        dealt_with: of_epoch.iter().filter(|tail| tail.is_over()).map(|tail| tail.entries).sum(),
        open: of_epoch.iter().filter(|tail| !tail.is_over()).map(|tail| tail.topic.to_string()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;

    fn topic(name: &str, missing: u64, link: &str, subscriptions: &[(bool, u64)]) -> TopicCost {
        let subscriptions = subscriptions.iter().map(|(replicated, again)| SubscriptionCost {
            subscription: "s".into(),
            replicated: *replicated,
            again: *again,
        });
        TopicCost { topic: name.into(), missing, link: link.into(), subscriptions: subscriptions.collect() }
    }

    #[test]
    fn sums_are_of_the_topics() {
        let epoch = Epoch { counter: 1, region: RegionId(1) };
        let topics = vec![
            topic("a", 3, "running", &[(true, 2), (true, 1)]),
            topic("b", 4, "disconnected since 5", &[(false, 0)]),
            topic("c", 0, "disconnected since 5", &[]),
        ];
        let report = CostReport::of("t/n", "west", "east", epoch, topics);
        assert_eq!((report.missing, report.again), (7, 3));
        assert_eq!(
            report.blockers,
            ["link of b to east: disconnected since 5", "1 subscriptions do not carry their state to east"]
        );
        assert!(!report.exact && report.taken_ms.is_none());
        let report = report.taken(9, true);
        assert!(report.exact && report.taken_ms == Some(9));
    }
}
