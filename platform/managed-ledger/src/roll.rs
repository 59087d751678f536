//! When a log changes to a new ledger.
//!
//! Role: pure decision. Invariants: R1 a ledger is never left before the next one is listed (the shell switches only to a
//! prepared ledger), so publishing does not wait for a roll; R2 an empty ledger is never rolled.
//! Must never know: I/O, clocks.

use crate::api::LogSettings;

/// Entries per ledger at most, whatever the settings say: acked sets hold 32-bit entry ids.
pub const ENTRIES_LIMIT: u64 = u32::MAX as u64;

/// The open ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLedger {
    /// Entries appended.
    pub entries: u64,
    /// Bytes appended.
    pub bytes: u64,
    /// Its age.
    pub age_ms: u64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roll {
    /// Go on.
    Keep,
    /// Go on, and have the next ledger ready.
    Prepare,
    /// Change as soon as the next ledger is ready.
    Switch,
}

/// Decides for one open ledger.
pub fn decide(ledger: OpenLedger, settings: &LogSettings) -> Roll {
    if ledger.entries == 0 {
        return Roll::Keep;
    }
    let max_entries = settings.max_entries_per_ledger.clamp(1, ENTRIES_LIMIT);
    if ledger.bytes >= settings.max_bytes_per_ledger || ledger.entries >= ENTRIES_LIMIT / 2 {
        return Roll::Switch;
    }
    let old_enough = ledger.age_ms >= settings.min_rollover_ms;
    if ledger.age_ms >= settings.max_rollover_ms || (ledger.entries >= max_entries && old_enough) {
        return Roll::Switch;
    }
    let nearly = |part: u64, whole: u64| part >= whole - whole / 4;
    let entries_near = nearly(ledger.entries, max_entries) && nearly(ledger.age_ms, settings.min_rollover_ms);
    if entries_near || nearly(ledger.bytes, settings.max_bytes_per_ledger) {
        return Roll::Prepare;
    }
    Roll::Keep
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line each: entries, bytes, age → what. The list is the documentation.
    #[test]
    fn golden_script() {
        let settings = LogSettings {
            max_entries_per_ledger: 100,
            max_bytes_per_ledger: 1000,
            min_rollover_ms: 40,
            max_rollover_ms: 400,
            ..LogSettings::default()
        };
        let script = [
            ((0, 0, 9999), Roll::Keep),     // empty, however old (R2)
            ((1, 10, 0), Roll::Keep),       //
            ((74, 10, 100), Roll::Keep),    //
            ((75, 10, 100), Roll::Prepare), // three quarters of the entries
            ((75, 10, 10), Roll::Keep),     // but too young to be rolled by entries soon
            ((100, 10, 39), Roll::Prepare), // full, too young
            ((100, 10, 40), Roll::Switch),  // full
            ((2, 750, 0), Roll::Prepare),   // bytes do not ask for the age
            ((2, 1000, 0), Roll::Switch),   //
            ((1, 10, 400), Roll::Switch),   // old
        ];
        for ((entries, bytes, age_ms), expected) in script {
            let ledger = OpenLedger { entries, bytes, age_ms };
            assert_eq!(decide(ledger, &settings), expected, "{ledger:?}");
        }
    }
}
