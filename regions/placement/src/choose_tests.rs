//! The choice against the rule itself, and against trying everything.

use super::*;
use crate::adherence;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

fn bookie(name: &str, label: &str) -> Candidate {
    Candidate { id: BookieId::new(name), location: Location::parse(label).unwrap(), last_resort: false }
}

fn shape(ensemble_size: u32, write_quorum: u32) -> Shape {
    Shape { ensemble_size, write_quorum }
}

fn enforced(min_zones: u32) -> Rule {
    Rule { min_zones, min_regions: 1, enforced: true }
}

fn locations(ids: &[BookieId], all: &[Candidate]) -> Vec<Location> {
    let of = |id: &BookieId| all.iter().find(|one| one.id == *id).unwrap().location.clone();
    ids.iter().map(of).collect()
}

#[test]
fn without_labels_every_bookie_is_as_good_as_another() {
    let all: Vec<Candidate> = (0..5).map(|n| bookie(&format!("b{n}"), "")).collect();
    let mut seen = HashSet::new();
    for seed in 0..200u64 {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let chosen = choose(all.clone(), shape(3, 2), Rule::default(), seed).unwrap();
        assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), 3);
        seen.extend(chosen);
    }
    assert_eq!(seen.len(), 5);
    let short = choose(all[..2].to_vec(), shape(3, 2), Rule::default(), 1);
    assert_eq!(short, Err(PlacementError::NotEnoughBookies { needed: 3, available: 2 }));
}

#[test]
fn bookies_of_last_resort_come_last_and_never_replace() {
    let mut all: Vec<Candidate> = (0..4).map(|n| bookie(&format!("b{n}"), "")).collect();
    all[3].last_resort = true;
    let size = |n| shape(n, 2);
    for seed in 1..50 {
        assert!(!choose(all.clone(), size(3), Rule::default(), seed).unwrap().contains(&all[3].id));
        assert!(choose(all.clone(), size(4), Rule::default(), seed).unwrap().contains(&all[3].id));
    }
    assert_eq!(replace(&all[..3], &[1], all.clone(), size(3), Rule::default(), 3), None);
    all[3].last_resort = false;
    let changed = replace(&all[..3], &[1], all.clone(), size(3), Rule::default(), 3).unwrap();
    assert_eq!(changed, [all[0].id.clone(), all[3].id.clone(), all[2].id.clone()]);
}

#[test]
fn three_zones_hold_one_copy_each() {
    let all: Vec<Candidate> = (0..9).map(|n| bookie(&format!("b{n}"), ["/a", "/b", "/c"][n % 3])).collect();
    for seed in 0..50 {
        let chosen = choose(all.clone(), shape(6, 3), Rule::default(), seed).unwrap();
        assert_eq!(adherence(&locations(&chosen, &all), 3, enforced(3)).short_windows, 0);
    }
}

#[test]
fn an_enforced_rule_is_kept_or_nothing_is_chosen() {
    let all = vec![bookie("a1", "/a"), bookie("a2", "/a"), bookie("a3", "/a"), bookie("b1", "/b")];
    // One of each two neighbours around a ring of three must be in b, which has one bookie.
    let refused = choose(all.clone(), shape(3, 2), enforced(2), 1).unwrap_err();
    assert!(matches!(refused, PlacementError::NotEnoughPlaces { zones: 2, .. }), "{refused}");
    assert!(choose(all.clone(), shape(2, 2), enforced(2), 1).is_ok());
    assert!(choose(all.clone(), shape(3, 2), Rule { enforced: false, ..enforced(2) }, 1).is_ok());
    // Where the rule needs it, one that failed lately is better than none.
    let mut quarantined = all;
    quarantined[3].last_resort = true;
    assert!(choose(quarantined, shape(2, 2), enforced(2), 1).unwrap().contains(&BookieId::new("b1")));
}

#[test]
fn b155_a_stretched_ensemble_has_copies_in_every_region() {
    let all: Vec<Candidate> = ["/w/a", "/w/b", "/w/c", "/e/a", "/e/b", "/n/a"]
        .iter()
        .enumerate()
        .map(|(n, label)| bookie(&format!("b{n}"), label))
        .collect();
    let rule = Rule { min_zones: 3, min_regions: 2, enforced: true };
    for seed in 0..50 {
        let chosen = choose(all.clone(), shape(4, 3), rule, seed).unwrap();
        let found = adherence(&locations(&chosen, &all), 3, rule);
        assert!(found.short_windows == 0 && found.regions >= 2 && found.zones == 3, "{found:?}");
    }
}

#[test]
fn a_replacement_keeps_the_rule_or_is_left_out() {
    let members = vec![bookie("a1", "/a"), bookie("b1", "/b"), bookie("c1", "/c")];
    let near = vec![bookie("a2", "/a"), bookie("b2", "/b")];
    for seed in 0..20 {
        let changed = replace(&members, &[1], near.clone(), shape(3, 3), enforced(3), seed).unwrap();
        assert_eq!(changed[1], BookieId::new("b2"));
        let wish = Rule { enforced: false, ..enforced(3) };
        assert_eq!(replace(&members, &[1], near.clone(), shape(3, 3), wish, seed).unwrap()[1], BookieId::new("b2"));
        assert_eq!(replace(&members, &[1], near[..1].to_vec(), shape(3, 3), enforced(3), seed), None);
        assert!(replace(&members, &[1], near[..1].to_vec(), shape(3, 3), wish, seed).is_some());
    }
    // What was never kept does not stand in the way.
    let old = vec![bookie("a1", "/a"), bookie("a2", "/a"), bookie("a3", "/a")];
    assert!(replace(&old, &[0], vec![bookie("a4", "/a")], shape(3, 2), enforced(2), 1).is_some());
}

/// Whether any row of these keeps the rule.
fn possible(all: &[Candidate], shape: Shape, rule: Rule) -> bool {
    fn grow(row: &mut Vec<usize>, all: &[Candidate], shape: Shape, rule: Rule) -> bool {
        if row.len() == shape.ensemble_size as usize {
            let places: Vec<Location> = row.iter().map(|at| all[*at].location.clone()).collect();
            return adherence(&places, shape.write_quorum, rule).short_windows == 0;
        }
        (0..all.len()).any(|at| {
            if row.contains(&at) {
                return false;
            }
            row.push(at);
            let found = grow(row, all, shape, rule);
            row.pop();
            found
        })
    }
    grow(&mut Vec::new(), all, shape, rule)
}

const LABELS: [&str; 7] = ["", "/a", "/b", "/c", "/w/a", "/w/b", "/e/a"];

fn candidates(most: usize) -> impl Strategy<Value = Vec<Candidate>> {
    proptest::collection::vec((proptest::sample::select(&LABELS[..]), proptest::bool::weighted(0.2)), 1..most).prop_map(
        |all| {
            let one = |(n, (label, last_resort)): (usize, (&str, bool))| Candidate {
                last_resort,
                ..bookie(&format!("b{n}"), label)
            };
            all.into_iter().enumerate().map(one).collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn enforced_means_kept_and_refused_means_impossible(
        all in candidates(7), size in 1u32..5, quorum in 1u32..5, zones in 1u32..4, regions in 1u32..3, seed: u64,
    ) {
        let shape = shape(size, quorum.min(size));
        let rule = Rule { min_zones: zones, min_regions: regions, enforced: true };
        match choose(all.clone(), shape, rule, seed) {
            Ok(chosen) => {
                prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), size as usize);
                prop_assert_eq!(adherence(&locations(&chosen, &all), shape.write_quorum, rule).short_windows, 0);
            }
            Err(PlacementError::NotEnoughBookies { .. }) => prop_assert!(all.len() < size as usize),
            Err(PlacementError::NotEnoughPlaces { .. }) => prop_assert!(!possible(&all, shape, rule)),
        }
    }

    #[test]
    fn a_wish_never_refuses_and_takes_as_few_of_last_resort_as_can_be(
        all in candidates(40), size in 1u32..13, quorum in 1u32..13, seed: u64,
    ) {
        let shape = shape(size, quorum.min(size));
        let good = all.iter().filter(|one| !one.last_resort).count();
        match choose(all.clone(), shape, Rule { min_zones: 3, min_regions: 2, enforced: false }, seed) {
            Ok(chosen) => {
                let resort = |id: &&BookieId| all.iter().any(|one| one.id == **id && one.last_resort);
                prop_assert_eq!(chosen.iter().filter(resort).count(), (size as usize).saturating_sub(good));
                prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), size as usize);
            }
            Err(error) => prop_assert!(all.len() < size as usize, "{}", error),
        }
    }

    #[test]
    fn replacements_never_break_what_was_kept(
        all in candidates(16), size in 2u32..6, quorum in 1u32..5, zones in 1u32..4,
        failed in proptest::collection::btree_set(0usize..6, 1..3), seed: u64,
    ) {
        let (shape, rule) = (shape(size, quorum.min(size)), enforced(zones));
        if let Ok(chosen) = choose(all.clone(), shape, rule, seed) {
            let member = |id: &BookieId| all.iter().find(|one| one.id == *id).unwrap().clone();
            let members: Vec<Candidate> = chosen.iter().map(member).collect();
            let failed: Vec<usize> = failed.into_iter().filter(|slot| *slot < size as usize).collect();
            if let Some(changed) = replace(&members, &failed, all.clone(), shape, rule, seed) {
                prop_assert_eq!(changed.iter().collect::<BTreeSet<_>>().len(), size as usize);
                prop_assert_eq!(adherence(&locations(&changed, &all), shape.write_quorum, rule).short_windows, 0);
                for (slot, id) in changed.iter().enumerate() {
                    prop_assert!(failed.contains(&slot) || *id == chosen[slot], "only failed ones are replaced");
                }
            }
        }
    }
}
