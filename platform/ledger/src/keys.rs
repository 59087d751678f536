//! The metadata keys of this room: `/ledgers/r/{id}` (one record a ledger), `/ledgers/b/{bookie}/{id}` (one holding a
//! bookie and ledger: which ledgers a bookie has to do with), the sequence of ledger ids, and what bookies tell:
//! `bookies/available/{id}` while they run, `bookies/cookies/{id}` for good.
//!
//! Format of a holding's value: one byte version (1), nothing else: the record says the rest.
//! Invariants: K1 ids are 19 digits with leading zeros, so that keys order as ids do; K2 the holdings of a ledger are
//! changed in the same transaction as its record, so that each member of its ensembles has one.
//! Must never know: who else stores what.

use crate::record::LedgerRecord;
use bytes::Bytes;
use meridian_metadata::{Condition, Operation};
use meridian_types::{BookieId, LedgerId};
use std::collections::BTreeSet;

/// Prefix of the registrations of running bookies, ephemeral keys.
pub const AVAILABLE_PREFIX: &str = "bookies/available/";

/// Prefix of the identities of bookies' folders.
pub const COOKIE_PREFIX: &str = "bookies/cookies/";

/// The key of a bookie's registration.
pub fn available_key(id: &BookieId) -> String {
    format!("{AVAILABLE_PREFIX}{id}")
}

/// The bookie of a registration's key, `None` if it is no such key.
pub fn available_id(key: &str) -> Option<BookieId> {
    key.strip_prefix(AVAILABLE_PREFIX).filter(|id| !id.is_empty()).map(BookieId::new)
}

/// The key of a bookie's cookie.
pub fn cookie_key(id: &BookieId) -> String {
    format!("{COOKIE_PREFIX}{id}")
}

/// Prefix of all ledger records.
pub const RECORD_PREFIX: &str = "/ledgers/r/";

/// Prefix of all holdings.
pub const HOLDING_PREFIX: &str = "/ledgers/b/";

/// The value of a holding: the version of the format.
pub const HOLDING_VALUE: [u8; 1] = [1];

/// The sequence that ledger ids come from.
pub const ID_SEQUENCE: &str = "/ledgers/ids";

/// The key of a ledger's record.
pub fn record_key(ledger_id: LedgerId) -> String {
    format!("{RECORD_PREFIX}{:019}", ledger_id.0)
}

/// The ledger of a record's key, `None` if it is no such key.
pub fn ledger_of(key: &str) -> Option<LedgerId> {
    let digits = key.strip_prefix(RECORD_PREFIX)?;
    if digits.len() != 19 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(LedgerId)
}

/// Prefix of one bookie's holdings; what lies under it may belong to a longer name too ([`holding_of`] tells).
pub fn holdings_prefix(bookie: &BookieId) -> String {
    format!("{HOLDING_PREFIX}{bookie}/")
}

/// The key of a holding.
pub fn holding_key(bookie: &BookieId, ledger_id: LedgerId) -> String {
    format!("{HOLDING_PREFIX}{bookie}/{:019}", ledger_id.0)
}

/// The bookie and the ledger of a holding, `None` if it is no such key.
pub fn holding_of(key: &str) -> Option<(BookieId, LedgerId)> {
    let (bookie, digits) = key.strip_prefix(HOLDING_PREFIX)?.rsplit_once('/')?;
    let ledger_id = ledger_of(&format!("{RECORD_PREFIX}{digits}"))?;
    (!bookie.is_empty()).then(|| (BookieId::new(bookie), ledger_id))
}

/// What creates a ledger's record, with its holdings.
pub fn creation(ledger_id: LedgerId, record: &LedgerRecord) -> Vec<Operation> {
    let (key, value) = (record_key(ledger_id), record.encode());
    let put = Operation::Put { key, value, condition: Condition::Absent, ephemeral: None };
    std::iter::once(put).chain(holding_changes(ledger_id, None, Some(record))).collect()
}

/// What has to be changed in the holdings when a record becomes another one (K2).
pub fn holding_changes(
    ledger_id: LedgerId,
    before: Option<&LedgerRecord>,
    after: Option<&LedgerRecord>,
) -> Vec<Operation> {
    let members = |record: Option<&LedgerRecord>| -> BTreeSet<BookieId> {
        record.into_iter().flat_map(|r| &r.ensembles).flat_map(|e| e.bookies.iter().cloned()).collect()
    };
    let (old, new) = (members(before), members(after));
    let come = new.difference(&old).map(|bookie| Operation::Put {
        key: holding_key(bookie, ledger_id),
        value: Bytes::from_static(&HOLDING_VALUE),
        condition: Condition::Any,
        ephemeral: None,
    });
    let gone = old
        .difference(&new)
        .map(|bookie| Operation::Delete { key: holding_key(bookie, ledger_id), condition: Condition::Any });
    come.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::{LedgerOptions, record::LedgerRecord};
    use meridian_types::EntryId;
    use std::collections::BTreeMap;

    #[test]
    fn holdings_name_a_bookie_and_a_ledger() {
        let bookie = BookieId::new("host:3181");
        assert_eq!(holding_key(&bookie, LedgerId(42)), "/ledgers/b/host:3181/0000000000000000042");
        assert_eq!(holding_of(&holding_key(&bookie, LedgerId(42))), Some((bookie, LedgerId(42))));
        let odd = BookieId::new("a/b");
        assert_eq!(holding_of(&holding_key(&odd, LedgerId(1))), Some((odd, LedgerId(1))));
        assert_eq!(holding_of("/ledgers/b//0000000000000000042"), None);
        assert_eq!(holding_of("/ledgers/r/0000000000000000042"), None);
        assert_eq!(HOLDING_VALUE, [1], "golden bytes");
    }

    #[test]
    fn holdings_follow_the_members_of_all_ensembles() {
        let names = |ids: &str| -> Vec<BookieId> { ids.split(' ').map(BookieId::new).collect() };
        let options = LedgerOptions { ensemble_size: 2, write_quorum: 2, ack_quorum: 1, properties: BTreeMap::new() };
        let first = LedgerRecord::new(Layout::new(2, 2, 1).unwrap(), options, names("a b"), 0);
        let mut second = first.clone();
        second.change_ensemble(EntryId(3), names("a c"));
        let mut third = second.clone();
        third.ensembles[0].bookies = names("a c");
        let told = |before: Option<&LedgerRecord>, after: Option<&LedgerRecord>| -> Vec<String> {
            let word = |operation: Operation| match operation {
                Operation::Put { key, value, .. } => {
                    assert_eq!(&value[..], HOLDING_VALUE);
                    format!("+{}", holding_of(&key).unwrap().0)
                }
                Operation::Delete { key, .. } => format!("-{}", holding_of(&key).unwrap().0),
                Operation::Check { .. } => "?".to_owned(),
            };
            holding_changes(LedgerId(7), before, after).into_iter().map(word).collect()
        };
        assert_eq!(told(None, Some(&first)), ["+a", "+b"]);
        assert_eq!(told(Some(&first), Some(&second)), ["+c"]);
        assert_eq!(told(Some(&second), Some(&third)), ["-b"]);
        assert_eq!(told(Some(&third), None), ["-a", "-c"]);
        assert!(told(Some(&third), Some(&third)).is_empty());
    }

    #[test]
    fn keys_order_as_ids_and_read_back() {
        assert_eq!(record_key(LedgerId(42)), "/ledgers/r/0000000000000000042");
        assert!(record_key(LedgerId(9)) < record_key(LedgerId(10)));
        assert_eq!(ledger_of(&record_key(LedgerId(i64::MAX))), Some(LedgerId(i64::MAX)));
        for bad in ["/ledgers/r/42", "/ledgers/ids", "/ledgers/r/+000000000000000042", "/ledgers/r/9999999999999999999"]
        {
            assert_eq!(ledger_of(bad), None, "{bad}");
        }
    }
}
