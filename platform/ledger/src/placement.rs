//! Which bookies a ledger gets, over the zones and regions in which they stand.
//!
//! Role: asks [`meridian_placement`] with the bookies that can be written to, where they stand, and which of them failed
//! lately (its P2: taken for a new ledger only if there are too few others, and never as a replacement).
//! Failure: what is missing is reported in numbers.
//! Must never know: what a ledger is for.

use crate::api::LedgerError;
use crate::context::Core;
use crate::directory::BookieDirectory;
use crate::layout::Layout;
use crate::writer::words::Change;
use meridian_placement::{Candidate, PlacementError, Shape, choose, mend, replace};
use meridian_types::BookieId;
use std::collections::HashMap;

/// Bookies that failed lately, each until a time.
#[derive(Debug, Default)]
pub struct Quarantine {
    until_ms: HashMap<BookieId, u64>,
}

/// Bookies remembered at most; more than that is no longer about single bookies.
const QUARANTINE_MAX: usize = 1000;

impl Quarantine {
    /// Keeps a bookie out until then.
    pub fn add(&mut self, bookie: &BookieId, until_ms: u64) {
        if self.until_ms.len() < QUARANTINE_MAX || self.until_ms.contains_key(bookie) {
            self.until_ms.insert(bookie.clone(), until_ms);
        }
    }

    /// Whether it is kept out.
    pub fn holds(&self, bookie: &BookieId) -> bool {
        self.until_ms.contains_key(bookie)
    }

    /// Lets go of those whose time is over.
    pub fn expire(&mut self, now_ms: u64) {
        self.until_ms.retain(|_, until| *until > now_ms);
    }
}

impl From<PlacementError> for LedgerError {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::NotEnoughBookies { needed, available } => {
                LedgerError::NotEnoughBookies { needed, available }
            }
            PlacementError::NotEnoughPlaces { .. } => LedgerError::NotPlaced(error.to_string()),
        }
    }
}

fn shape(layout: Layout) -> Shape {
    Shape { ensemble_size: layout.ensemble_size(), write_quorum: layout.write_quorum() }
}

fn candidate(bookies: &dyn BookieDirectory, quarantine: &Quarantine, id: BookieId) -> Candidate {
    Candidate { location: bookies.location(&id), last_resort: quarantine.holds(&id), id }
}

impl Core {
    /// Writable bookies that stay.
    fn takers(&self) -> Vec<BookieId> {
        let leaving = self.leaving.lock().clone();
        let mut writable = self.bookies.writable();
        writable.retain(|id| !leaving.contains(id));
        writable
    }

    /// An ensemble for a new ledger.
    pub(crate) fn choose_ensemble(&self, layout: Layout) -> Result<Vec<BookieId>, LedgerError> {
        let writable = self.takers();
        let chosen = self.with_quarantine(|quarantine, seed| {
            let all = writable.into_iter().map(|id| candidate(&*self.bookies, quarantine, id)).collect();
            choose(all, shape(layout), self.config.placement, seed)
        });
        Ok(chosen?)
    }

    /// The ensemble with as many failed members replaced as possible; the number of writable bookies if none can be.
    pub(crate) fn replace_members(&self, change: &Change) -> Result<Vec<BookieId>, u32> {
        let writable = self.takers();
        let available = writable.len() as u32;
        let failed: Vec<usize> = change.failed.iter().collect();
        let replaced = self.with_quarantine(|quarantine, seed| {
            let one = |id: BookieId| candidate(&*self.bookies, quarantine, id);
            let members: Vec<Candidate> = change.ensemble.iter().cloned().map(one).collect();
            let all = writable.into_iter().map(one).collect();
            replace(&members, &failed, all, shape(change.layout), self.config.placement, seed)
        });
        replaced.ok_or(available)
    }

    /// The ensemble changed so that it keeps the placement's rule; `None` = it does, or the writable bookies do not allow
    /// it. Ensembles with members that leave are left to those who move these.
    pub(crate) fn mend_members(&self, layout: Layout, ensemble: &[BookieId]) -> Option<Vec<BookieId>> {
        let registered = self.bookies.registered()?;
        let leaving = self.leaving.lock().clone();
        if ensemble.iter().any(|id| leaving.contains(id) || !registered.contains(id)) {
            return None;
        }
        let writable = self.takers();
        self.with_quarantine(|quarantine, seed| {
            let one = |id: BookieId| candidate(&*self.bookies, quarantine, id);
            let members: Vec<Candidate> = ensemble.iter().cloned().map(one).collect();
            mend(&members, writable.into_iter().map(one).collect(), shape(layout), self.config.placement, seed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantine_ends_by_itself() {
        let bookie = BookieId::new("b");
        let mut quarantine = Quarantine::default();
        quarantine.add(&bookie, 10);
        quarantine.expire(9);
        assert!(quarantine.holds(&bookie));
        quarantine.expire(10);
        assert!(!quarantine.holds(&bookie));
    }

    #[test]
    fn too_few_zones_are_said_as_such_and_may_pass() {
        use meridian_types::{Classify, ErrorClass};
        let short = PlacementError::NotEnoughBookies { needed: 3, available: 2 };
        assert_eq!(LedgerError::from(short), LedgerError::NotEnoughBookies { needed: 3, available: 2 });
        let places = PlacementError::NotEnoughPlaces {
            ensemble_size: 3,
            write_quorum: 2,
            min_zones: 2,
            min_regions: 1,
            zones: 1,
            regions: 1,
        };
        let error = LedgerError::from(places);
        assert_eq!(error.class(), ErrorClass::Retry);
        assert!(error.to_string().contains("must stand in 2 zones"), "{error}");
    }
}
