//! Which links of a topic have to run, pure.
//!
//! Invariants: H1 a replication cursor is deleted only if the policies, which are loaded before any topic, do not name its
//! region; H2 a link runs only to a region that they name and that is not the own one; H3 nothing runs for a namespace that
//! is not in this region.
//! Must never know: topics, clients, storage.

use meridian_wire::replicate::{LINK_PREFIX, cursor_name};
use std::collections::BTreeSet;

/// What is to be done for one topic, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Links to stop.
    pub stop: Vec<String>,
    /// Cursors to delete.
    pub drop_cursors: Vec<String>,
    /// Regions to start a link to.
    pub start: Vec<String>,
}

/// The regions that a topic's links lead to.
pub fn remotes(own: &str, clusters: &BTreeSet<String>) -> BTreeSet<String> {
    if !clusters.contains(own) {
        return BTreeSet::new();
    }
    clusters.iter().filter(|name| *name != own).cloned().collect()
}

/// Decides from what is wanted, what runs (`false` = it has to be started anew), and the log's cursors.
pub fn plan<'a>(
    wanted: &BTreeSet<String>,
    running: impl Iterator<Item = (&'a String, bool)>,
    cursors: impl Iterator<Item = &'a str>,
) -> Plan {
    let mut plan = Plan::default();
    let mut fine = BTreeSet::new();
    for (remote, current) in running {
        if wanted.contains(remote) && current {
            fine.insert(remote);
        } else {
            plan.stop.push(remote.clone());
        }
    }
    plan.start = wanted.iter().filter(|remote| !fine.contains(remote)).cloned().collect();
    let kept: BTreeSet<String> = wanted.iter().map(|remote| cursor_name(remote)).collect();
    let left_over = |name: &&str| name.starts_with(LINK_PREFIX) && !kept.contains(*name);
    plan.drop_cursors = cursors.filter(left_over).map(str::to_owned).collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn of(wanted: &[&str], running: &[(&str, bool)], cursors: &[&str]) -> Plan {
        let running: Vec<(String, bool)> = running.iter().map(|(name, fine)| ((*name).to_owned(), *fine)).collect();
        plan(&set(wanted), running.iter().map(|(name, fine)| (name, *fine)), cursors.iter().copied())
    }

    #[test]
    fn links_follow_the_policies() {
        assert_eq!(of(&["east"], &[], &[]).start, ["east"]);
        assert_eq!(of(&["east"], &[("east", true)], &["pulsar.repl.east", "pulsar.dedup"]), Plan::default());
        let gone = of(&[], &[("east", true)], &["pulsar.repl.east", "pulsar.dedup"]);
        assert_eq!((gone.stop, gone.drop_cursors), (vec!["east".to_owned()], vec!["pulsar.repl.east".to_owned()]));
    }

    #[test]
    fn a_peer_with_another_address_is_dialled_anew_and_keeps_its_cursor() {
        let moved = of(&["east"], &[("east", false)], &["pulsar.repl.east"]);
        assert_eq!(moved, Plan { stop: vec!["east".into()], start: vec!["east".into()], drop_cursors: vec![] });
    }

    #[test]
    fn b033_what_a_removed_cluster_left_is_cleaned() {
        let plan = of(&["east"], &[], &["pulsar.repl.east", "pulsar.repl.north"]);
        assert_eq!((plan.drop_cursors, plan.start), (vec!["pulsar.repl.north".to_owned()], vec!["east".to_owned()]));
    }

    #[test]
    fn the_own_region_is_no_remote_and_must_be_named() {
        assert_eq!(remotes("west", &set(&["east", "west"])), set(&["east"]));
        assert_eq!(remotes("west", &set(&["east", "north"])), set(&[]), "H3");
        assert_eq!(remotes("west", &set(&["west"])), set(&[]));
    }
}
