//! An ensemble that does not keep the rule, changed in as few members as can be found so that it does.
//!
//! Invariants: M1 what is answered keeps the rule in every window, or nothing is answered: copies are not moved for half
//! of it; M2 as long as that is enough, each member that is changed makes the sum of what the windows lack smaller; M3 no
//! bookie of last resort comes in.

use crate::choose::shuffle;
use crate::spread::{Place, Places, Spread, find_row, spread_of};
use crate::{Candidate, Rule, Shape};
use meridian_types::BookieId;
use std::collections::BTreeMap;

/// What all windows of a row lack together.
fn lack(row: &[Option<Place>], shape: Shape, floor: Spread) -> u32 {
    let (size, quorum) = (row.len(), shape.write_quorum as usize);
    let starts = if quorum >= size { 1 } else { size };
    let of = |start: usize| {
        let window: Vec<usize> = (0..quorum).map(|step| (start + step) % size).collect();
        let (spread, _) = spread_of(row, &window);
        floor.regions.saturating_sub(spread.regions) + floor.zones.saturating_sub(spread.zones)
    };
    (0..starts).map(of).sum()
}

/// The ensemble so that the rule is kept; `None` = it is kept, or the candidates do not allow it. `members` are the
/// ensemble in order, `candidates` may hold some of them.
pub fn mend(
    members: &[Candidate],
    mut candidates: Vec<Candidate>,
    shape: Shape,
    rule: Rule,
    seed: u64,
) -> Option<Vec<BookieId>> {
    if members.is_empty() || shape.ensemble_size as usize != members.len() {
        return None;
    }
    candidates.retain(|one| !one.last_resort && members.iter().all(|member| member.id != one.id));
    shuffle(&mut candidates, seed);
    let mut places = Places::default();
    let mut row: Vec<Option<Place>> = members.iter().map(|member| Some(places.of(&member.location))).collect();
    let mut changed: Vec<BookieId> = members.iter().map(|member| member.id.clone()).collect();
    let floor = rule.floor(shape.write_quorum);
    let mut lacking = lack(&row, shape, floor);
    if lacking == 0 {
        return None;
    }
    let all = candidates.clone();
    while lacking > 0 {
        let mut best: Option<(u32, usize, usize)> = None;
        for slot in 0..row.len() {
            let before = row[slot];
            for (at, candidate) in candidates.iter().enumerate() {
                row[slot] = Some(places.of(&candidate.location));
                let left = lack(&row, shape, floor);
                // The first of equals: the shuffle decides.
                if left < best.map_or(lacking, |(least, _, _)| least) {
                    best = Some((left, slot, at));
                }
            }
            row[slot] = before;
        }
        // No single member helps any more: perhaps several do.
        let Some((left, slot, at)) = best else { return rearranged(members, &all, shape, floor) };
        let taken = candidates.swap_remove(at);
        row[slot] = Some(places.of(&taken.location));
        changed[slot] = taken.id;
        lacking = left;
    }
    Some(changed)
}

/// A row of candidates alone that keeps the floor, turned so that most members whose places fit stay.
fn rearranged(members: &[Candidate], candidates: &[Candidate], shape: Shape, floor: Spread) -> Option<Vec<BookieId>> {
    let mut places = Places::default();
    let there: Vec<Place> = members.iter().map(|member| places.of(&member.location)).collect();
    let mut by_place: BTreeMap<Place, Vec<&BookieId>> = BTreeMap::new();
    for candidate in candidates {
        by_place.entry(places.of(&candidate.location)).or_default().push(&candidate.id);
    }
    let room = by_place.iter().map(|(place, ids)| (*place, ids.len())).collect();
    let row = find_row(shape, floor, &room)?;
    let size = row.len();
    let stay = |turn: usize| (0..size).filter(|slot| row[(slot + turn) % size] == there[*slot]).count();
    let turn = (0..size).max_by_key(|turn| (stay(*turn), usize::MAX - turn))?;
    let pick = |slot: usize| {
        let place = row[(slot + turn) % size];
        if place == there[slot] { Some(members[slot].id.clone()) } else { by_place.get_mut(&place)?.pop().cloned() }
    };
    (0..size).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{adherence, choose};
    use meridian_topology::Location;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    fn bookie(name: &str, label: &str) -> Candidate {
        Candidate { id: BookieId::new(name), location: Location::parse(label).unwrap(), last_resort: false }
    }

    fn row(labels: &str) -> Vec<Candidate> {
        labels.split(' ').enumerate().map(|(n, label)| bookie(&format!("m{n}"), label)).collect()
    }

    const TWO: Rule = Rule { min_zones: 2, min_regions: 1, enforced: false };

    fn told(members: &[Candidate], spare: &[Candidate], write_quorum: u32, rule: Rule) -> String {
        let shape = Shape { ensemble_size: members.len() as u32, write_quorum };
        match mend(members, spare.to_vec(), shape, rule, 7) {
            Some(ids) => ids.iter().map(BookieId::as_str).collect::<Vec<_>>().join(" "),
            None => "-".to_owned(),
        }
    }

    #[test]
    fn as_few_members_change_as_are_needed() {
        let spare = [bookie("x", "/a"), bookie("y", "/b")];
        assert_eq!(told(&row("/a /b /a"), &spare, 3, TWO), "-", "it keeps the rule");
        let one = told(&row("/a /a /a"), &spare, 3, TWO);
        assert_eq!(one.split(' ').filter(|id| id.starts_with('m')).count(), 2, "{one}");
        assert!(one.contains('y'), "{one}");
        // Windows of two around four members: every second one.
        let more = [bookie("y", "/b"), bookie("z", "/b")];
        assert!(
            ["m0 y m2 z", "m0 z m2 y", "y m1 z m3", "z m1 y m3"]
                .contains(&told(&row("/a /a /a /a"), &more, 2, TWO).as_str())
        );
    }

    #[test]
    fn half_of_a_rule_moves_nothing() {
        let three = Rule { min_zones: 3, ..TWO };
        assert_eq!(told(&row("/a /a /a"), &[bookie("y", "/b")], 3, three), "-", "two of three zones");
        assert_eq!(told(&row("/a /a"), &[bookie("x", "/a")], 2, TWO), "-", "no other zone is up");
        let failed = Candidate { last_resort: true, ..bookie("y", "/b") };
        assert_eq!(told(&row("/a /a"), &[failed], 2, TWO), "-", "one that failed lately");
        assert_eq!(told(&row("/a /a"), &[], 1, TWO), "-", "one copy stands in one place");
        let regions = Rule { min_regions: 2, ..TWO };
        let stretched = told(&row("/w/a /w/b"), &[bookie("e", "/e/a"), bookie("v", "/w/c")], 2, regions);
        assert!(["e m1", "m0 e"].contains(&stretched.as_str()), "{stretched}");
    }

    proptest! {
        /// M1 and P1 for any row and any candidates; where somebody stands in each zone nothing stays broken.
        #[test]
        fn what_is_answered_keeps_the_rule(zones in prop::collection::vec(0..4u8, 1..7), spare in prop::collection::vec(0..4u8, 0..8),
                                           quorum in 1..4u32, min_zones in 1..4u32, seed in any::<u64>()) {
            let label = |zone: &u8| format!("/z{zone}");
            let members = row(&zones.iter().map(label).collect::<Vec<_>>().join(" "));
            let spare: Vec<_> = spare.iter().enumerate().map(|(n, zone)| bookie(&format!("s{n}"), &label(zone))).collect();
            let shape = Shape { ensemble_size: members.len() as u32, write_quorum: quorum.min(members.len() as u32) };
            let rule = Rule { min_zones, ..TWO };
            let all: Vec<Candidate> = members.iter().chain(&spare).cloned().collect();
            let place = |id: &BookieId| all.iter().find(|one| one.id == *id).unwrap().location.clone();
            let before: Vec<_> = members.iter().map(|member| member.location.clone()).collect();
            let broken = adherence(&before, shape.write_quorum, rule).short_windows > 0;
            let mended = mend(&members, all.clone(), shape, rule, seed);
            prop_assert!(broken || mended.is_none());
            if let Some(ids) = mended {
                let after: Vec<_> = ids.iter().map(place).collect();
                prop_assert_eq!(adherence(&after, shape.write_quorum, rule).short_windows, 0);
                let mut distinct = ids.clone();
                distinct.sort();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), members.len());
            }
            let rich: Vec<Candidate> = (0..24u8).map(|n| bookie(&format!("r{n}"), &label(&(n % 4)))).collect();
            let possible = choose(rich.clone(), shape, Rule { enforced: true, ..rule }, seed).is_ok();
            prop_assert_eq!(mend(&members, rich, shape, rule, seed).is_some(), broken && possible);
        }
    }
}
