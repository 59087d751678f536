//! Whether the bookies that are there can bring a ledger back at all: a pure judgement of its record.
//!
//! Invariants: V1 only absence that is known counts, a member that is registered may answer; V2 what is judged hopeless
//! would fail however often it is tried, until a member comes back: no holder of an entry is there, or too few members to
//! fence an open end (the ledger client's S4b).
//! Must never know: clocks, stores, what was tried.

use meridian_ledger::{LedgerRecord, LedgerState};
use meridian_types::{BookieId, EntryId};
use std::collections::BTreeSet;

/// The missing members of an ensemble, as text.
fn named<'a>(bookies: &'a [BookieId], registered: &'a BTreeSet<BookieId>) -> String {
    let missing = bookies.iter().filter(|id| !registered.contains(*id));
    missing.map(BookieId::as_str).collect::<Vec<_>>().join(", ")
}

/// Why an entry of a finished ensemble has no holder among those that are there; `None` = each has one.
pub(crate) fn no_holder(record: &LedgerRecord, registered: &BTreeSet<BookieId>) -> Option<String> {
    let closed = record.state == LedgerState::Closed;
    for (at, ensemble) in record.ensembles.iter().enumerate() {
        let end = match record.ensembles.get(at + 1) {
            Some(next) => next.first.0,
            None if closed => record.last_entry.0 + 1,
            None => break,
        };
        // Write quorums repeat after E entries.
        let size = i64::from(record.layout.ensemble_size());
        let alone = (ensemble.first.0..end.min(ensemble.first.0 + size)).find(|id| {
            record.layout.write_set(EntryId(*id)).iter().all(|slot| !registered.contains(&ensemble.bookies[slot]))
        });
        if let Some(entry) = alone {
            let missing = named(&ensemble.bookies, registered);
            return Some(format!("every bookie that has entry {entry} is missing ({missing})"));
        }
    }
    None
}

/// Why the open end can't be recovered by those who are there; `None` = it can.
pub(crate) fn no_recovery(record: &LedgerRecord, registered: &BTreeSet<BookieId>) -> Option<String> {
    if record.state == LedgerState::Closed {
        return None;
    }
    let (layout, bookies) = (record.layout, &record.last_ensemble().bookies);
    let (size, quorum) = (layout.ensemble_size() as usize, layout.write_quorum() as usize);
    let there =
        |start: usize| (0..quorum).filter(|step| registered.contains(&bookies[(start + step) % size])).count() as u32;
    let fewest = (0..size).map(there).min().unwrap_or(0);
    (fewest < layout.blocking()).then(|| {
        format!(
            "its end can't be recovered: {} of every {quorum} of its last bookies must answer, {fewest} are there (missing: {})",
            layout.blocking(),
            named(bookies, registered)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_ledger::LedgerOptions;
    use meridian_ledger::layout::Layout;
    use std::collections::BTreeMap;

    fn ids(names: &str) -> Vec<BookieId> {
        names.split_whitespace().map(BookieId::new).collect()
    }

    fn record(names: &str, (e, qw, qa): (u32, u32, u32)) -> LedgerRecord {
        let options = LedgerOptions { ensemble_size: e, write_quorum: qw, ack_quorum: qa, properties: BTreeMap::new() };
        LedgerRecord::new(Layout::new(e, qw, qa).unwrap(), options, ids(names), 0)
    }

    fn there(names: &str) -> BTreeSet<BookieId> {
        ids(names).into_iter().collect()
    }

    #[test]
    fn an_open_end_can_miss_one_less_than_its_ack_quorum() {
        let open = record("a b c", (3, 3, 2));
        assert_eq!(no_recovery(&open, &there("a b")), None);
        let lost = no_recovery(&open, &there("a")).expect("two of three are lost");
        assert_eq!(
            lost,
            "its end can't be recovered: 2 of every 3 of its last bookies must answer, 1 are there (missing: b, c)"
        );
        // Windows of two around four members: the two that are lost are neighbours, or they are not.
        let striped = record("a b c d", (4, 2, 2));
        assert_eq!(no_recovery(&striped, &there("a c")), None);
        assert!(no_recovery(&striped, &there("a b")).is_some());
        let mut closed = open.clone();
        closed.close(EntryId(4), 1, true);
        assert_eq!(no_recovery(&closed, &there("")), None);
    }

    #[test]
    fn an_entry_needs_one_of_its_holders() {
        let mut striped = record("a b c d", (4, 2, 2));
        assert_eq!(no_holder(&striped, &there("")), None, "nothing of it is finished");
        striped.close(EntryId(1), 1, true);
        // Entry 0 is on a and b, entry 1 on b and c; nothing is on c and d.
        assert_eq!(no_holder(&striped, &there("b")), None);
        assert_eq!(no_holder(&striped, &there("a b")), None);
        let lost = no_holder(&striped, &there("a d")).expect("entry 1 has nobody");
        assert_eq!(lost, "every bookie that has entry 1 is missing (b, c)");
        striped.close(EntryId(-1), 0, true);
        assert_eq!(no_holder(&striped, &there("")), None, "it is empty");
        let mut changed = record("a b", (2, 2, 2));
        changed.change_ensemble(EntryId(5), ids("c d"));
        assert_eq!(no_holder(&changed, &there("a")), None);
        assert!(no_holder(&changed, &there("c d")).is_some_and(|lost| lost.contains("entry 0")));
    }
}
