//! Which ledgers a log no longer needs.
//!
//! Role: pure decision. Invariants: L3 (nothing above a durable cursor's persisted mark-delete); T1 only whole closed
//! ledgers from the front; T2 a ledger goes when it is out of the retention time *or* what is left without it still
//! reaches the retention size: at least the stated size stays readable as long as the time allows.
//! Must never know: I/O, clocks.

use crate::layout::LedgerState;
use meridian_types::Position;

/// What binds trimming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimBounds {
    /// Lowest persisted mark-delete of the durable cursors; `None` = there is none, everything counts as consumed.
    pub slowest: Option<Position>,
    /// Now.
    pub now_ms: u64,
    /// As [`crate::LogSettings::retention_ms`].
    pub retention_ms: Option<u64>,
    /// As [`crate::LogSettings::retention_bytes`].
    pub retention_bytes: Option<u64>,
}

/// How many ledgers from the front can go.
pub fn trimmable(ledgers: &[LedgerState], bounds: TrimBounds) -> usize {
    let mut left_bytes: u64 = ledgers.iter().map(|ledger| ledger.bytes).sum();
    let mut count = 0;
    for ledger in ledgers {
        let Some(closed_ms) = ledger.closed_ms else { break };
        if bounds.slowest.is_some_and(|slowest| slowest < ledger.last_position()) {
            break;
        }
        left_bytes -= ledger.bytes;
        let age_ms = bounds.now_ms.saturating_sub(closed_ms);
        let expired = bounds.retention_ms.is_some_and(|keep_ms| age_ms >= keep_ms);
        let over_size = bounds.retention_bytes.is_some_and(|keep_bytes| left_bytes >= keep_bytes);
        if !expired && !over_size && ledger.entries > 0 {
            break;
        }
        count += 1;
    }
    count
}

/// When time alone may next make a ledger trimmable; `None` = never.
pub fn next_expiry_ms(ledgers: &[LedgerState], retention_ms: Option<u64>) -> Option<u64> {
    let first = ledgers.first()?;
    Some(first.closed_ms?.saturating_add(retention_ms?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::LedgerId;

    /// Ledgers 0..n of 10 entries and `bytes` each, closed at 1000 × number; the last one open.
    fn ledgers(n: i64, bytes: u64) -> Vec<LedgerState> {
        let ledger = |i: i64| LedgerState {
            id: LedgerId(i),
            entries: 10,
            bytes,
            bytes_estimated: false,
            first_index: 0,
            end_index: 0,
            first_ordinal: 0,
            created_ms: 0,
            closed_ms: (i < n - 1).then_some(1000 * i as u64),
        };
        (0..n).map(ledger).collect()
    }

    fn bounds(slowest: Option<Position>, retention_ms: Option<u64>, retention_bytes: Option<u64>) -> TrimBounds {
        TrimBounds { slowest, now_ms: 5000, retention_ms, retention_bytes }
    }

    #[test]
    fn golden_script() {
        let five = ledgers(5, 100);
        let at = |l, e| Some(Position::new(l, e));
        let script = [
            (bounds(None, Some(0), Some(0)), 4),      // no cursor: all but the open one
            (bounds(at(2, 8), Some(0), Some(0)), 2),  // the slowest cursor needs 2:9
            (bounds(at(2, 9), Some(0), Some(0)), 3),  //
            (bounds(at(0, -1), Some(0), Some(0)), 0), // has read nothing
            (bounds(None, Some(3000), None), 3),      // by time: closed at 0, 1000, 2000
            (bounds(None, None, None), 0),            // for ever
            (bounds(None, None, Some(250)), 2),       // by size: 300 stay
            (bounds(None, Some(4000), Some(450)), 2), // whichever ends first
            (bounds(at(0, 9), Some(0), Some(0)), 1),  //
        ];
        for (bounds, expected) in script {
            assert_eq!(trimmable(&five, bounds), expected, "{bounds:?}");
        }
    }

    /// Field report B099: a size retention of 5 MB over ten ledgers of 1 MB keeps 5 to 6 MB.
    #[test]
    fn b099_size_retention_keeps_at_least_its_size() {
        let ten = ledgers(11, 1 << 20);
        let dropped = trimmable(&ten, bounds(None, None, Some(5 << 20)));
        let kept = (ten.len() - dropped) as u64 * (1 << 20);
        assert!((5 << 20..=6 << 20).contains(&kept), "{kept}");
    }

    #[test]
    fn time_wakes_for_the_first_ledger_only() {
        assert_eq!(next_expiry_ms(&ledgers(3, 1)[1..], Some(500)), Some(1500));
        assert_eq!(next_expiry_ms(&ledgers(3, 1), None), None);
        assert_eq!(next_expiry_ms(&ledgers(1, 1), Some(1)), None);
    }
}
