//! Which bookies a ledger gets: a pure choice over those that can be written to.
//!
//! Invariants: P1 no bookie twice in an ensemble; P2 a quarantined bookie (it failed lately) is taken for a new ledger
//! only if there are too few others, and never as a replacement.
//! Failure: too few bookies are reported with their number.
//! Must never know: ledgers, I/O.

use crate::api::LedgerError;
use crate::layout::SlotSet;
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

/// An ensemble of `size` for a new ledger.
///
/// # Errors
/// [`LedgerError::NotEnoughBookies`].
pub fn choose(
    mut writable: Vec<BookieId>,
    size: u32,
    quarantine: &Quarantine,
    seed: u64,
) -> Result<Vec<BookieId>, LedgerError> {
    if writable.len() < size as usize {
        return Err(LedgerError::NotEnoughBookies { needed: size, available: writable.len() as u32 });
    }
    shuffle(&mut writable, seed);
    writable.sort_by_key(|bookie| quarantine.holds(bookie));
    writable.truncate(size as usize);
    Ok(writable)
}

/// The ensemble with as many failed members replaced as possible; `None` = not one.
pub fn replace(
    ensemble: &[BookieId],
    failed: SlotSet,
    mut writable: Vec<BookieId>,
    quarantine: &Quarantine,
    seed: u64,
) -> Option<Vec<BookieId>> {
    writable.retain(|bookie| !ensemble.contains(bookie) && !quarantine.holds(bookie));
    if writable.is_empty() {
        return None;
    }
    shuffle(&mut writable, seed);
    let mut changed = ensemble.to_vec();
    for (slot, bookie) in failed.iter().zip(writable) {
        changed[slot] = bookie;
    }
    Some(changed)
}

/// Fisher–Yates over a xorshift of the seed.
fn shuffle(bookies: &mut [BookieId], seed: u64) {
    let mut state = seed | 1;
    for last in (1..bookies.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bookies.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn bookies(count: usize) -> Vec<BookieId> {
        (0..count).map(|n| BookieId::new(format!("b{n}"))).collect()
    }

    #[test]
    fn ensembles_have_distinct_members_and_spread() {
        let mut seen = HashSet::new();
        for seed in 0..200u64 {
            let chosen =
                choose(bookies(5), 3, &Quarantine::default(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
            assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), 3);
            seen.extend(chosen);
        }
        assert_eq!(seen.len(), 5);
        let short = choose(bookies(2), 3, &Quarantine::default(), 1);
        assert_eq!(short, Err(LedgerError::NotEnoughBookies { needed: 3, available: 2 }));
    }

    #[test]
    fn quarantined_bookies_come_last_and_never_replace() {
        let all = bookies(4);
        let mut quarantine = Quarantine::default();
        quarantine.add(&all[3], 10);
        for seed in 1..50 {
            assert!(!choose(all.clone(), 3, &quarantine, seed).unwrap().contains(&all[3]));
            assert!(choose(all.clone(), 4, &quarantine, seed).unwrap().contains(&all[3]));
        }
        assert_eq!(replace(&all[..3], SlotSet::one(1), all.clone(), &quarantine, 3), None);
        quarantine.expire(10);
        let changed = replace(&all[..3], SlotSet::one(1), all.clone(), &quarantine, 3).unwrap();
        assert_eq!(changed, [all[0].clone(), all[3].clone(), all[2].clone()]);
    }
}
