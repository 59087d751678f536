//! The metadata keys of this room, all under `/autorecovery/`: the auditor's key and the claims of ledgers (both die with
//! their process), marks of bookies that leave, marks of ledgers to be repaired and of those beyond recovery, the order for
//! an audit and its report.
//!
//! Invariants: K1 ledger ids are 19 digits with leading zeros.
//! Must never know: who reads them.

use meridian_types::{BookieId, LedgerId};

/// Prefix of everything.
pub const PREFIX: &str = "/autorecovery/";
/// The auditor's key; its value is the auditor's name.
pub const AUDITOR: &str = "/autorecovery/auditor";
/// Prefix of marks of bookies that leave.
pub const LEAVING_PREFIX: &str = "/autorecovery/leaving/";
/// Prefix of marks of ledgers to be repaired.
pub const REPAIR_PREFIX: &str = "/autorecovery/repair/";
/// Prefix of marks of ledgers that can't be brought back by those who are there.
pub const HOPELESS_PREFIX: &str = "/autorecovery/hopeless/";
/// Prefix of claims; their value is the worker's name.
pub const CLAIM_PREFIX: &str = "/autorecovery/claims/";
/// An operator wants an audit now; the value is the wall clock in ms, as text.
pub const AUDIT_ORDER: &str = "/autorecovery/audit/order";
/// What the last audit found.
pub const AUDIT_REPORT: &str = "/autorecovery/audit/report";

/// The mark of a bookie that leaves.
pub fn leaving_key(bookie: &BookieId) -> String {
    format!("{LEAVING_PREFIX}{bookie}")
}

/// The bookie of such a mark.
pub fn leaving_of(key: &str) -> Option<BookieId> {
    key.strip_prefix(LEAVING_PREFIX).filter(|id| !id.is_empty()).map(BookieId::new)
}

/// The mark of a ledger to be repaired.
pub fn repair_key(ledger_id: LedgerId) -> String {
    format!("{REPAIR_PREFIX}{:019}", ledger_id.0)
}

/// The ledger of such a mark.
pub fn repair_of(key: &str) -> Option<LedgerId> {
    ledger_of(key.strip_prefix(REPAIR_PREFIX)?)
}

/// The mark of a ledger beyond recovery.
pub fn hopeless_key(ledger_id: LedgerId) -> String {
    format!("{HOPELESS_PREFIX}{:019}", ledger_id.0)
}

/// The ledger of such a mark.
pub fn hopeless_of(key: &str) -> Option<LedgerId> {
    ledger_of(key.strip_prefix(HOPELESS_PREFIX)?)
}

fn ledger_of(digits: &str) -> Option<LedgerId> {
    let plain = digits.len() == 19 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok().map(LedgerId) } else { None }
}

/// The claim of a ledger.
pub fn claim_key(ledger_id: LedgerId) -> String {
    format!("{CLAIM_PREFIX}{:019}", ledger_id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back() {
        let bookie = BookieId::new("host:3181");
        assert_eq!(leaving_key(&bookie), "/autorecovery/leaving/host:3181");
        assert_eq!(leaving_of(&leaving_key(&bookie)), Some(bookie));
        assert_eq!(leaving_of("/autorecovery/leaving/"), None);
        assert_eq!(repair_key(LedgerId(42)), "/autorecovery/repair/0000000000000000042");
        assert_eq!(repair_of(&repair_key(LedgerId(42))), Some(LedgerId(42)));
        assert_eq!(repair_of("/autorecovery/repair/42"), None);
        assert_eq!(hopeless_key(LedgerId(42)), "/autorecovery/hopeless/0000000000000000042");
        assert_eq!(hopeless_of(&hopeless_key(LedgerId(42))), Some(LedgerId(42)));
        assert_eq!(claim_key(LedgerId(42)), "/autorecovery/claims/0000000000000000042");
    }
}
