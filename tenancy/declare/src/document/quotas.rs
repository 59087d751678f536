//! Limits in a document: unset apart from zero, each one that the place can have.

use super::Reading;
use crate::object::{Facet, Object, ObjectId};
use crate::walk::Place;
use meridian_policy::quota::{Level, Limit};

/// Reads the limits of an object, layer by layer.
pub(super) fn read(reading: &mut Reading, place: &Place<'_>, id: &ObjectId, object: &mut Object) {
    let Some(level) = id.quota_place().map(|place| place.level()) else { return };
    for (group, _) in id.quota_groups() {
        if place.get(group.key()).is_none() {
            continue;
        }
        object.groups.insert(*group);
        for (path, name, value) in place.each(group.key(), &mut reading.problems) {
            match Limit::parse(name) {
                None => reading.problems.tell(&path, format!("is not known; there are {}", names(level))),
                Some(limit) if !limit.fits(level) => {
                    let problem = format!("is no limit of a {}; there are {}", level.word(), names(level));
                    reading.problems.tell(&path, problem);
                }
                // Unset, said aloud.
                Some(_) if value.is_null() => {}
                Some(limit) => {
                    if let Some(value) = reading.fitting(&path, &limit.shape(), value) {
                        object.set(Facet::Of(*group, name.to_owned()), value);
                    }
                }
            }
        }
    }
}

fn names(level: Level) -> String {
    Limit::of(level).map(Limit::name).collect::<Vec<_>>().join(", ")
}
