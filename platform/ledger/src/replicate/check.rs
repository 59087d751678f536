//! Looks at single copies of a ledger's entries, each on the bookie that has to hold it.
//!
//! Invariants: Q1 only entries that are known to be confirmed are looked for; Q2 a bookie that does not answer proves
//! nothing: it is counted, not found fault with; Q3 the first and the last entry of each member's share are always
//! among the samples.
//! Must never know: what is done about a finding.

use crate::api::LedgerError;
use crate::context::Core;
use crate::layout::Layout;
use crate::reader::ask;
use crate::record::{LedgerRecord, LedgerState};
use meridian_bookie_api::entry::digest_of;
use meridian_bookie_api::{BookieError, ReadRequest};
use meridian_placement::adherence;
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Looks under way at once for one ledger.
const LOOKS_IN_FLIGHT: usize = 16;

/// One copy to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// On this bookie,
    pub bookie: BookieId,
    /// this entry.
    pub entry_id: EntryId,
}

/// What is wrong with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The bookie said that it does not hold it.
    Missing,
    /// Its bytes do not match.
    Damaged,
}

/// What a look at a ledger found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Copies looked at.
    pub copies: u64,
    /// What is wrong, and where.
    pub findings: Vec<(Probe, Finding)>,
    /// Copies on bookies that did not answer (Q2).
    pub unanswered: u64,
    /// Bookies that did not answer.
    pub silent: BTreeSet<BookieId>,
    /// Ensembles that do not keep the placement's rule.
    pub misplaced: u32,
    /// Those of them that are finished and could keep it now with other members.
    pub mendable: u32,
    /// Whether the ledger is closed.
    pub closed: bool,
}

/// The copies to look at: of every ensemble that is finished and every member the first and the last entry of its share
/// and `samples` others.
pub fn probes(record: &LedgerRecord, samples: u32, salt: u64) -> Vec<Probe> {
    let closed = record.state == LedgerState::Closed;
    let mut probes = Vec::new();
    for (at, ensemble) in record.ensembles.iter().enumerate() {
        let end = match record.ensembles.get(at + 1) {
            Some(next) => next.first.0,
            None if closed => record.last_entry.0 + 1,
            None => break,
        };
        for (slot, bookie) in ensemble.bookies.iter().enumerate() {
            let entries = share(record.layout, slot, ensemble.first.0, end, samples, salt);
            probes.extend(entries.into_iter().map(|id| Probe { bookie: bookie.clone(), entry_id: EntryId(id) }));
        }
    }
    probes
}

fn share(layout: Layout, slot: usize, first: i64, end: i64, samples: u32, salt: u64) -> BTreeSet<i64> {
    let holds = |id: &i64| layout.write_set(EntryId(*id)).has(slot);
    let mut entries = BTreeSet::new();
    entries.extend((first..end).find(holds));
    entries.extend((first..end).rev().find(holds));
    let mut state = salt ^ (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..samples {
        if end <= first {
            break;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let from = first + (state % (end - first) as u64) as i64;
        entries.extend((from..end).find(holds));
    }
    entries
}

/// Looks at a ledger's copies.
pub(crate) async fn check(core: &Arc<Core>, ledger_id: LedgerId, samples: u32) -> Result<Checked, LedgerError> {
    let (record, _) = core.load(ledger_id).await?;
    let mut checked = Checked { closed: record.state == LedgerState::Closed, ..Checked::default() };
    for (at, ensemble) in record.ensembles.iter().enumerate() {
        let places: Vec<_> = ensemble.bookies.iter().map(|id| core.bookies.location(id)).collect();
        let kept = adherence(&places, record.layout.write_quorum(), core.config.placement);
        if kept.short_windows == 0 {
            continue;
        }
        let finished = checked.closed || at + 1 < record.ensembles.len();
        checked.misplaced += 1;
        checked.mendable += u32::from(finished && core.mend_members(record.layout, &ensemble.bookies).is_some());
    }
    let mut looks = JoinSet::new();
    let mut probes = probes(&record, samples, rand::random()).into_iter();
    loop {
        while looks.len() < LOOKS_IN_FLIGHT
            && let Some(probe) = probes.next()
        {
            let core = core.clone();
            looks.spawn(async move {
                let said = look(&core, ledger_id, &probe).await;
                (probe, said)
            });
        }
        let Some(looked) = looks.join_next().await else { return Ok(checked) };
        let Ok((probe, said)) = looked else { continue };
        checked.copies += 1;
        match said {
            Ok(None) => {}
            Ok(Some(finding)) => checked.findings.push((probe, finding)),
            Err(()) => {
                checked.unanswered += 1;
                checked.silent.insert(probe.bookie);
            }
        }
    }
}

async fn look(core: &Core, ledger_id: LedgerId, probe: &Probe) -> Result<Option<Finding>, ()> {
    let request = ReadRequest {
        ledger_id,
        first_entry_id: probe.entry_id,
        max_entries: 1,
        max_bytes: 1,
        gaps_allowed: false,
        fence: false,
    };
    match ask(core, &probe.bookie, 0, request).await.1 {
        Ok(entries) => {
            let good = entries.first().is_some_and(|e| digest_of(ledger_id, e.entry_id, &e.payload) == e.digest);
            Ok((!good).then_some(Finding::Damaged))
        }
        Err(BookieError::NoSuchEntry | BookieError::NoSuchLedger) => Ok(Some(Finding::Missing)),
        Err(BookieError::Corrupt(_)) => Ok(Some(Finding::Damaged)),
        Err(_) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LedgerOptions;
    use std::collections::BTreeMap;

    #[test]
    fn the_ends_of_each_share_are_looked_at_and_an_open_end_is_not() {
        let names = |ids: &str| -> Vec<BookieId> { ids.split(' ').map(BookieId::new).collect() };
        let options = LedgerOptions { ensemble_size: 3, write_quorum: 2, ack_quorum: 2, properties: BTreeMap::new() };
        let mut record = LedgerRecord::new(Layout::new(3, 2, 2).unwrap(), options, names("a b c"), 0);
        assert!(probes(&record, 3, 1).is_empty(), "nothing is known to be confirmed");
        record.change_ensemble(EntryId(10), names("a b d"));
        let of = |probes: Vec<Probe>| -> Vec<String> {
            probes.into_iter().map(|p| format!("{}{}", p.bookie, p.entry_id)).collect()
        };
        // Entry n is on members n mod 3 and the next: a lacks 1, 4, 7; b lacks 2, 5, 8; c lacks 0, 3, 6, 9.
        assert_eq!(of(probes(&record, 0, 1)), ["a0", "a9", "b0", "b9", "c1", "c8"]);
        record.close(EntryId(10), 1, true);
        assert_eq!(of(probes(&record, 0, 1))[6..], ["b10", "d10"]);
        for probe in probes(&record, 5, 7) {
            let (ensemble, _) = record.ensemble_of(probe.entry_id);
            let slot = ensemble.bookies.iter().position(|b| *b == probe.bookie).unwrap();
            assert!(record.layout.write_set(probe.entry_id).has(slot), "{probe:?}");
        }
    }
}
