//! What a switch costs: asked before, settled after.
//!
//! Role: the active region knows exactly what a target has not confirmed; a target that can't reach it answers with what it
//! heard last, and says how old that is. After a forced switch the returned region's tails settle the account.
//! Invariants: C1 a report is exact only if the active region itself gave the figures, and all of them; C2 sums are the sums
//! of the topics; C3 a sum of which a part is not known is not known, and the reason stands in `unknown`.
//! Failure: none; what is not known is said.
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
    /// Entries that the target has not confirmed; `None` = that is not known, `link` says why.
    pub missing: Option<u64>,
    /// State of the link to the target, with its reason.
    pub link: String,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionCost>,
}

/// What a region knows of its topics against a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Costs {
    /// By topic.
    pub topics: Vec<TopicCost>,
    /// Who did not say what it knows, and why.
    pub silent: Vec<String>,
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
    /// The active region gave them, and all of them (C1); else they are what was heard from it last, or some are not known.
    pub exact: bool,
    /// When they were taken, ms since 1970; `None` = nothing was ever heard.
    pub taken_ms: Option<u64>,
    /// Entries missing in the target if the switch were forced now. A planned one waits for them. `None` = not known.
    pub missing: Option<u64>,
    /// Messages that subscriptions would see again if the switch were forced now. A planned one waits for them. `None` = not
    /// known.
    pub again: Option<u64>,
    /// Why a sum is not known (C3).
    #[serde(default)]
    pub unknown: Vec<String>,
    /// What stands in the way of a planned switch, or makes the figures doubtful.
    pub blockers: Vec<String>,
    /// By topic.
    pub topics: Vec<TopicCost>,
}

impl CostReport {
    /// Sums the figures of topics.
    pub fn of(namespace: &str, from: &str, to: &str, epoch: Epoch, costs: Costs) -> Self {
        let Costs { topics, silent } = costs;
        // Of a part that is not known no sum is (C3).
        let missing = topics.iter().map(|topic| topic.missing).sum::<Option<u64>>().filter(|_| silent.is_empty());
        let subscriptions = || topics.iter().flat_map(|topic| &topic.subscriptions);
        let again = silent.is_empty().then(|| subscriptions().map(|one| one.again).sum());
        let not_known = topics.iter().filter(|topic| topic.missing.is_none());
        let mut unknown = silent;
        unknown.extend(not_known.map(|topic| format!("{} to {to}: {}", topic.topic, topic.link)));
        let mut blockers = unknown.clone();
        let is_stuck = |topic: &&TopicCost| topic.missing.is_some_and(|missing| missing != 0) && !flows(&topic.link);
        let stuck = topics.iter().filter(is_stuck);
        blockers.extend(stuck.map(|topic| format!("link of {} to {to}: {}", topic.topic, topic.link)));
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
            unknown,
            blockers,
            topics,
        }
    }

    /// Of a region that never said anything, and does not say anything now.
    pub fn never_heard(namespace: &str, from: &str, to: &str, epoch: Epoch, why: &str) -> Self {
        let silent = vec![format!("{why}; nothing was ever heard from it")];
        Self::of(namespace, from, to, epoch, Costs { topics: Vec::new(), silent })
    }

    /// Says that the active region took the figures, and when.
    pub fn taken(mut self, at_ms: u64) -> Self {
        (self.taken_ms, self.exact) = (Some(at_ms), self.unknown.is_empty());
        self
    }
}

/// Whether a link of that state makes progress by itself.
fn flows(link: &str) -> bool {
    matches!(link, "running" | "throttled")
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
    /// Entries that the new region never got; `None` = not known before `settled`.
    pub missing: Option<u64>,
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
        missing: (!pending).then(|| of_epoch.iter().map(|tail| tail.entries).sum()),
        dealt_with: of_epoch.iter().filter(|tail| tail.is_over()).map(|tail| tail.entries).sum(),
        open: of_epoch.iter().filter(|tail| !tail.is_over()).map(|tail| tail.topic.to_string()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;

    const EPOCH: Epoch = Epoch { counter: 1, region: RegionId(1) };

    fn topic(name: &str, missing: impl Into<Option<u64>>, link: &str, subscriptions: &[(bool, u64)]) -> TopicCost {
        let subscriptions = subscriptions.iter().map(|(replicated, again)| SubscriptionCost {
            subscription: "s".into(),
            replicated: *replicated,
            again: *again,
        });
        TopicCost {
            topic: name.into(),
            missing: missing.into(),
            link: link.into(),
            subscriptions: subscriptions.collect(),
        }
    }

    #[test]
    fn sums_are_of_the_topics() {
        let topics = vec![
            topic("a", 3, "running", &[(true, 2), (true, 1)]),
            topic("b", 4, "disconnected since 5", &[(false, 0)]),
            topic("c", 0, "disconnected since 5", &[]),
        ];
        let report = CostReport::of("t/n", "west", "east", EPOCH, Costs { topics, silent: Vec::new() });
        assert_eq!((report.missing, report.again), (Some(7), Some(3)));
        assert_eq!(
            report.blockers,
            ["link of b to east: disconnected since 5", "1 subscriptions do not carry their state to east"]
        );
        assert!(!report.exact && report.taken_ms.is_none());
        let report = report.taken(9);
        assert!(report.exact && report.taken_ms == Some(9));
    }

    #[test]
    fn what_is_not_known_is_no_sum() {
        let report = |topics, silent| CostReport::of("t/n", "west", "east", EPOCH, Costs { topics, silent }).taken(9);
        let of_topic =
            report(vec![topic("a", 3, "running", &[(true, 2)]), topic("b", None, "no link", &[])], Vec::new());
        assert_eq!((of_topic.missing, of_topic.again, of_topic.exact), (None, Some(2), false));
        assert_eq!(of_topic.unknown, ["b to east: no link"]);
        assert_eq!(of_topic.blockers, of_topic.unknown);
        let silent = "broker b2 does not answer: cut".to_owned();
        let of_broker = report(vec![topic("a", 3, "running", &[(true, 2)])], vec![silent.clone()]);
        assert_eq!((of_broker.missing, of_broker.again, of_broker.exact), (None, None, false));
        assert_eq!(of_broker.unknown, [silent]);
        let shown = serde_json::to_value(&of_broker).expect("it is JSON");
        assert!(shown["missing"].is_null() && shown["topics"][0]["missing"] == 3, "{shown}");
        let of_region = CostReport::never_heard("t/n", "west", "east", EPOCH, "region west does not answer: cut");
        assert_eq!((of_region.missing, of_region.again), (None, None));
        assert_eq!(of_region.unknown, ["region west does not answer: cut; nothing was ever heard from it"]);
    }

    #[test]
    fn an_open_account_has_no_sum() {
        assert_eq!(settle("t/n", EPOCH, true, true, &[]).missing, None);
        assert_eq!(settle("t/n", EPOCH, true, false, &[]).missing, Some(0));
    }
}
