//! The metadata keys of this room: `/ledgers/r/{id}` (one record a ledger), and the sequence of ledger ids.
//!
//! Invariants: K1 ids are 19 digits with leading zeros, so that keys order as ids do.
//! Must never know: who else stores what.

use meridian_types::LedgerId;

/// Prefix of all ledger records.
pub const RECORD_PREFIX: &str = "/ledgers/r/";

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

#[cfg(test)]
mod tests {
    use super::*;

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
