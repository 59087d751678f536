//! A ring of points: each consumer stands at several places, a slot belongs to the next point at or above it.
//!
//! Invariants: H6 a point is murmur3 of `name NUL number NUL i`, where the number tells consumers of one name apart (the
//! lowest one free); H7 where points of several consumers fall together, the one that joined first owns the place, and
//! the next one inherits it.

use super::LAST_SLOT;
use crate::api::ConsumerKey;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Ring {
    points_per_consumer: u32,
    points: BTreeMap<u32, SmallVec<[ConsumerKey; 1]>>,
    members: HashMap<ConsumerKey, (Arc<str>, u32)>,
    numbers: HashMap<Arc<str>, BTreeSet<u32>>,
}

fn lowest_free(taken: &BTreeSet<u32>) -> u32 {
    let mut free = 0;
    for number in taken {
        if *number != free {
            break;
        }
        free += 1;
    }
    free
}

impl Ring {
    pub(super) fn new(points_per_consumer: u32) -> Self {
        Self { points_per_consumer, points: BTreeMap::new(), members: HashMap::new(), numbers: HashMap::new() }
    }

    /// The slots where a member stands; two of its own points may fall together.
    fn places(&self, name: &str, number: u32) -> BTreeSet<u32> {
        let place = |i| slot_of_point(&format!("{name}\0{number}\0{i}"));
        (0..self.points_per_consumer).map(place).collect()
    }

    pub(super) fn add(&mut self, key: ConsumerKey, name: &str) {
        self.remove(key);
        let name: Arc<str> = name.into();
        let taken = self.numbers.entry(name.clone()).or_default();
        let number = lowest_free(taken);
        taken.insert(number);
        for place in self.places(&name, number) {
            self.points.entry(place).or_default().push(key);
        }
        self.members.insert(key, (name, number));
    }

    pub(super) fn remove(&mut self, key: ConsumerKey) {
        let Some((name, number)) = self.members.remove(&key) else { return };
        for place in self.places(&name, number) {
            if let Some(claims) = self.points.get_mut(&place) {
                claims.retain(|claim| *claim != key);
                if claims.is_empty() {
                    self.points.remove(&place);
                }
            }
        }
        if let Some(taken) = self.numbers.get_mut(&name) {
            taken.remove(&number);
            if taken.is_empty() {
                self.numbers.remove(&name);
            }
        }
    }

    pub(super) fn lay_out(&self, push: &mut impl FnMut(u32, Option<ConsumerKey>)) {
        for (place, claims) in &self.points {
            push(*place, claims.first().copied());
        }
        let (Some((last, _)), Some((_, claims))) = (self.points.last_key_value(), self.points.first_key_value()) else {
            return;
        };
        if *last < LAST_SLOT {
            push(LAST_SLOT, claims.first().copied());
        }
    }
}

fn slot_of_point(point: &str) -> u32 {
    meridian_wire::key::key_hash(point.as_bytes()) % LAST_SLOT + 1
}
