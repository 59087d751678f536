//! Places in a row: how far windows are spread, and a search for rows that are spread far enough.
//!
//! Invariants: a row that is found keeps the floor in every window; the search is bounded by [`SEARCH_STEPS`], so that a
//! rule which can hardly be kept costs time, not the broker.

use crate::{Rule, Shape};
use meridian_topology::Location;
use std::collections::BTreeMap;

/// Steps of one search at most.
const SEARCH_STEPS: usize = 4_000;

/// A zone of a region, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) zone: usize,
    pub(crate) region: usize,
}

/// Numbers for places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    zones: BTreeMap<Location, usize>,
    regions: BTreeMap<Option<String>, usize>,
}

impl Places {
    /// The number of a place; all that is not known is one (P5).
    pub(crate) fn of(&mut self, location: &Location) -> Place {
        let (zones, regions) = (self.zones.len(), self.regions.len());
        Place {
            zone: *self.zones.entry(location.clone()).or_insert(zones),
            region: *self.regions.entry(location.region.clone()).or_insert(regions),
        }
    }

    pub(crate) fn zones(&self) -> u32 {
        self.zones.len() as u32
    }

    pub(crate) fn regions(&self) -> u32 {
        self.regions.len() as u32
    }
}

/// Regions, then zones: what every window has to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spread {
    pub(crate) regions: u32,
    pub(crate) zones: u32,
}

impl Rule {
    /// What a window of so many members has to have.
    pub(crate) fn floor(self, write_quorum: u32) -> Spread {
        Spread {
            regions: self.min_regions.clamp(1, write_quorum),
            zones: self.min_zones.max(self.min_regions).clamp(1, write_quorum),
        }
    }
}

impl Spread {
    pub(crate) fn reaches(self, floor: Spread) -> bool {
        self.regions >= floor.regions && self.zones >= floor.zones
    }
}

/// Slots of the windows that a slot is in, each around the end; one window if all are.
pub(crate) fn windows_with(shape: Shape, slot: usize) -> impl Iterator<Item = Vec<usize>> {
    let (size, quorum) = (shape.ensemble_size as usize, shape.write_quorum as usize);
    let starts = if quorum >= size { 1 } else { quorum };
    (0..starts).map(move |back| (0..quorum).map(|step| (slot + size - back + step) % size).collect())
}

/// How far the members of a window are spread; `None` = not (yet) chosen.
pub(crate) fn spread_of(row: &[Option<Place>], window: &[usize]) -> (Spread, u32) {
    let mut zones: Vec<usize> = Vec::with_capacity(window.len());
    let mut regions: Vec<usize> = Vec::with_capacity(window.len());
    let mut open = 0;
    for place in window.iter().map(|slot| row[*slot]) {
        match place {
            Some(place) => {
                zones.push(place.zone);
                regions.push(place.region);
            }
            None => open += 1,
        }
    }
    let distinct = |mut all: Vec<usize>| {
        all.sort_unstable();
        all.dedup();
        all.len() as u32
    };
    (Spread { regions: distinct(regions), zones: distinct(zones) }, open)
}

/// Whether a window can still reach the floor.
fn can_reach(row: &[Option<Place>], window: &[usize], floor: Spread) -> bool {
    let (spread, open) = spread_of(row, window);
    spread.regions + open >= floor.regions && spread.zones + open >= floor.zones
}

/// A row of places, at most `room` of each, that keeps the floor in every window.
pub(crate) fn find_row(shape: Shape, floor: Spread, room: &BTreeMap<Place, usize>) -> Option<Vec<Place>> {
    if !is_conceivable(shape, floor, room) {
        return None;
    }
    let mut search =
        Search { shape, floor, room: room.clone(), row: vec![None; shape.ensemble_size as usize], steps: SEARCH_STEPS };
    search.fill(0).then(|| search.row.into_iter().flatten().collect())
}

/// A place met too often leaves too few others in its windows: what is left over must fill the row.
fn is_conceivable(shape: Shape, floor: Spread, room: &BTreeMap<Place, usize>) -> bool {
    let (size, quorum) = (shape.ensemble_size as usize, shape.write_quorum as usize);
    let fits = |least: u32, group: fn(&Place) -> usize| {
        let most = size * (quorum + 1 - least as usize) / quorum;
        let mut groups: BTreeMap<usize, usize> = BTreeMap::new();
        for (place, left) in room {
            *groups.entry(group(place)).or_default() += left;
        }
        groups.values().map(|left| (*left).min(most)).sum::<usize>() >= size
    };
    fits(floor.zones, |place| place.zone) && fits(floor.regions, |place| place.region)
}

struct Search {
    shape: Shape,
    floor: Spread,
    room: BTreeMap<Place, usize>,
    row: Vec<Option<Place>>,
    steps: usize,
}

impl Search {
    fn fill(&mut self, slot: usize) -> bool {
        if slot == self.row.len() {
            return true;
        }
        let mut options: Vec<(Place, usize)> =
            self.room.iter().filter(|(_, left)| **left > 0).map(|(place, left)| (*place, *left)).collect();
        // Who was not met lately comes first, then the place with the most bookies left.
        let lately = slot.saturating_sub(self.shape.write_quorum as usize - 1)..slot;
        let met =
            |same: &dyn Fn(Place) -> bool| self.row[lately.clone()].iter().flatten().filter(|at| same(**at)).count();
        options.sort_by_key(|(place, left)| {
            (met(&|at| at.region == place.region), met(&|at| at.zone == place.zone), usize::MAX - left)
        });
        for (place, _) in options {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            self.row[slot] = Some(place);
            let possible = windows_with(self.shape, slot).all(|window| can_reach(&self.row, &window, self.floor));
            if possible {
                self.take(place, 1);
                if self.fill(slot + 1) {
                    return true;
                }
                self.take(place, -1);
            }
            self.row[slot] = None;
        }
        false
    }

    fn take(&mut self, place: Place, count: isize) {
        if let Some(left) = self.room.get_mut(&place) {
            *left = left.saturating_add_signed(-count);
        }
    }
}

/// How an ensemble keeps a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adherence {
    /// The fewest zones in any window.
    pub zones: u32,
    /// The fewest regions in any window.
    pub regions: u32,
    /// Windows that do not keep the rule.
    pub short_windows: u32,
}

/// Looks whether an ensemble, member by member, keeps a rule.
pub fn adherence(members: &[Location], write_quorum: u32, rule: Rule) -> Adherence {
    let shape = Shape { ensemble_size: members.len() as u32, write_quorum: write_quorum.min(members.len() as u32) };
    let mut places = Places::default();
    let row: Vec<Option<Place>> = members.iter().map(|location| Some(places.of(location))).collect();
    let floor = rule.floor(shape.write_quorum.max(1));
    let starts = if shape.write_quorum == shape.ensemble_size { row.len().min(1) } else { row.len() };
    let mut found = Adherence { zones: u32::MAX, regions: u32::MAX, short_windows: 0 };
    for start in 0..starts {
        let window: Vec<usize> = (0..shape.write_quorum as usize).map(|step| (start + step) % row.len()).collect();
        let (spread, _) = spread_of(&row, &window);
        found.zones = found.zones.min(spread.zones);
        found.regions = found.regions.min(spread.regions);
        found.short_windows += u32::from(!spread.reaches(floor));
    }
    if starts == 0 { Adherence { zones: 0, regions: 0, short_windows: 0 } } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(labels: &[&str]) -> Vec<Location> {
        labels.iter().map(|label| Location::parse(label).unwrap()).collect()
    }

    #[test]
    fn every_window_counts_also_around_the_end() {
        let rule = Rule { min_zones: 2, min_regions: 1, enforced: true };
        let good = adherence(&at(&["/a", "/b", "/a", "/b"]), 2, rule);
        assert_eq!(good, Adherence { zones: 2, regions: 1, short_windows: 0 });
        let around = adherence(&at(&["/a", "/b", "/a"]), 2, rule);
        assert_eq!(around, Adherence { zones: 1, regions: 1, short_windows: 1 });
        let whole = adherence(&at(&["/a", "/b", "/a"]), 3, rule);
        assert_eq!(whole.short_windows, 0);
        let stretched = adherence(&at(&["/w/a", "/e/a", "/w/b", "/e/b"]), 2, Rule { min_regions: 2, ..rule });
        assert_eq!(stretched, Adherence { zones: 2, regions: 2, short_windows: 0 });
        assert_eq!(adherence(&[], 2, rule).short_windows, 0);
    }

    #[test]
    fn what_is_not_known_is_one_place() {
        let rule = Rule { min_zones: 2, ..Rule::default() };
        assert_eq!(adherence(&at(&["", "", ""]), 2, rule).zones, 1);
        assert_eq!(adherence(&at(&["", "/a"]), 2, rule).zones, 2);
        assert_eq!(adherence(&at(&["", "/a"]), 1, rule).short_windows, 0, "one copy is in one place");
    }
}
