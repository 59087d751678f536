//! The choice of an ensemble, and of replacements.

use crate::spread::{Place, Places, Spread, find_row, spread_of, windows_with};
use crate::{PlacementError, Rule, Shape};
use meridian_topology::Location;
use meridian_types::BookieId;
use std::collections::BTreeMap;

/// A bookie that can be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: BookieId,
    /// Where it stands.
    pub location: Location,
    /// It failed lately (P2).
    pub last_resort: bool,
}

/// An ensemble for a new ledger, in order.
///
/// # Errors
/// [`PlacementError`] with what is missing.
pub fn choose(
    mut candidates: Vec<Candidate>,
    shape: Shape,
    rule: Rule,
    seed: u64,
) -> Result<Vec<BookieId>, PlacementError> {
    let size = shape.ensemble_size as usize;
    if candidates.len() < size {
        let available = candidates.len() as u32;
        return Err(PlacementError::NotEnoughBookies { needed: shape.ensemble_size, available });
    }
    shuffle(&mut candidates, seed);
    candidates.sort_by_key(|candidate| candidate.last_resort);
    let good = candidates.iter().filter(|candidate| !candidate.last_resort).count();
    let floor = rule.floor(shape.write_quorum);
    let least = if rule.enforced { floor } else { Spread { regions: 1, zones: 1 } };
    // P2: without those of last resort, then with as few as are needed; all of them only to keep an enforced rule.
    let mut pools = vec![good.max(size)];
    if rule.enforced && candidates.len() > good.max(size) {
        pools.push(candidates.len());
    }
    let found = pools.into_iter().find_map(|take| arrange(&candidates[..take], shape, least));
    found.ok_or_else(|| {
        let mut places = Places::default();
        for candidate in &candidates {
            places.of(&candidate.location);
        }
        PlacementError::NotEnoughPlaces {
            ensemble_size: shape.ensemble_size,
            write_quorum: shape.write_quorum,
            min_zones: floor.zones,
            min_regions: floor.regions,
            zones: places.zones(),
            regions: places.regions(),
        }
    })
}

/// Spreads as far as can be, at least as far as `least`.
fn arrange(candidates: &[Candidate], shape: Shape, least: Spread) -> Option<Vec<BookieId>> {
    let mut places = Places::default();
    let mut by_place: BTreeMap<Place, Vec<&BookieId>> = BTreeMap::new();
    for candidate in candidates {
        by_place.entry(places.of(&candidate.location)).or_default().push(&candidate.id);
    }
    let room: BTreeMap<Place, usize> = by_place.iter().map(|(place, ids)| (*place, ids.len())).collect();
    let most = |there: u32| there.min(shape.write_quorum);
    let floors = (least.regions..=most(places.regions())).rev().flat_map(|regions| {
        (least.zones.max(regions)..=most(places.zones())).rev().map(move |zones| Spread { regions, zones })
    });
    let row = floors.into_iter().find_map(|floor| find_row(shape, floor, &room))?;
    let mut taken: BTreeMap<Place, usize> = BTreeMap::new();
    let pick = |place: Place| {
        let next = taken.entry(place).or_default();
        let id = by_place.get(&place)?.get(*next)?;
        *next += 1;
        Some((*id).clone())
    };
    row.into_iter().map(pick).collect()
}

/// The ensemble with as many failed members replaced as possible; `None` = not one. `members` are the ensemble in order,
/// `candidates` may hold some of them.
pub fn replace(
    members: &[Candidate],
    failed: &[usize],
    mut candidates: Vec<Candidate>,
    shape: Shape,
    rule: Rule,
    seed: u64,
) -> Option<Vec<BookieId>> {
    candidates.retain(|one| !one.last_resort && members.iter().all(|member| member.id != one.id));
    shuffle(&mut candidates, seed);
    let mut places = Places::default();
    let before: Vec<Option<Place>> = members.iter().map(|member| Some(places.of(&member.location))).collect();
    // One after the other: a failed member counts with its place until it is replaced, since it may have to stay.
    let mut row = before.clone();
    let floor = rule.floor(shape.write_quorum);
    let mut changed: Vec<BookieId> = members.iter().map(|member| member.id.clone()).collect();
    let mut replaced = false;
    for slot in failed {
        let mut best: Option<(Spread, usize)> = None;
        for (at, candidate) in candidates.iter().enumerate() {
            row[*slot] = Some(places.of(&candidate.location));
            let spread = reached(&row, &before, *slot, shape, rule.enforced.then_some(floor));
            // The first of equals: the shuffle decides.
            if let Some(spread) = spread
                && best.is_none_or(|(found, _)| spread > found)
            {
                best = Some((spread, at));
            }
        }
        match best {
            Some((_, at)) => {
                let taken = candidates.swap_remove(at);
                row[*slot] = Some(places.of(&taken.location));
                changed[*slot] = taken.id;
                replaced = true;
            }
            // It stays a member: it may come back.
            None => row[*slot] = before[*slot],
        }
    }
    replaced.then_some(changed)
}

/// How far the worst window of a slot is spread; `None` if one falls below the floor, and below what it was before (P4).
fn reached(
    row: &[Option<Place>],
    before: &[Option<Place>],
    slot: usize,
    shape: Shape,
    floor: Option<Spread>,
) -> Option<Spread> {
    let mut worst = Spread { regions: u32::MAX, zones: u32::MAX };
    for window in windows_with(shape, slot) {
        let (spread, _) = spread_of(row, &window);
        if let Some(floor) = floor {
            let (was, _) = spread_of(before, &window);
            let needed = Spread { regions: floor.regions.min(was.regions), zones: floor.zones.min(was.zones) };
            if !spread.reaches(needed) {
                return None;
            }
        }
        worst.regions = worst.regions.min(spread.regions);
        worst.zones = worst.zones.min(spread.zones);
    }
    Some(worst)
}

/// Fisher–Yates over a xorshift of the seed.
pub(crate) fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for last in (1..all.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
